//! Holds the code to rules that no compiler knows.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use collcast_sim::profile::Constant;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// All Rust files below a directory, with their text.
fn rust_files(directory: &Path, into: &mut Vec<(PathBuf, String)>) {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(directory)
        .unwrap_or_else(|e| panic!("{}: {e}", directory.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            rust_files(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            into.push((path, text));
        }
    }
}

/// The `src` of every crate of the workspace.
fn sources() -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    let mut crates: Vec<PathBuf> = std::fs::read_dir(root())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("Cargo.toml").is_file() && path.join("src").is_dir())
        .collect();
    crates.push(root());
    crates.sort();
    for path in &crates {
        rust_files(&path.join("src"), &mut files);
    }
    files.retain(|(path, _)| path.file_name().is_none_or(|name| name != "tests.rs"));
    assert!(crates.len() >= 6 && files.len() > 20, "found {} crates, {} files", crates.len(), files.len());
    files
}

/// The lines of a file before its tests, with their numbers.
fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines()).take_while(|(_, line)| line.trim() != "#[cfg(test)]")
}

/// Fails with every place at which `is_bad` holds.
fn check_lines(files: &[(PathBuf, String)], rule: &str, is_bad: impl Fn(&str) -> bool) {
    let places: Vec<String> = files
        .iter()
        .flat_map(|(path, text)| code_lines(text).map(move |(number, line)| (path, number, line)))
        .filter(|(_, _, line)| !line.trim_start().starts_with("//") && is_bad(line))
        .map(|(path, number, line)| format!("{}:{number}: {}", path.display(), line.trim()))
        .collect();
    assert!(places.is_empty(), "{rule}:\n{}", places.join("\n"));
}

/// Goal: the engine knows nothing of what is computed, so that no result is special-cased.
#[test]
fn the_engine_names_no_algorithm() {
    let mut files = Vec::new();
    rust_files(&root().join("sim/src/engine"), &mut files);
    assert!(files.len() >= 3);
    for (path, text) in files {
        for word in ["Algorithm", "Collective"] {
            assert!(!text.contains(word), "{} contains `{word}`", path.display());
        }
    }
}

/// Goal: a profile has no knob without effect.
#[test]
fn every_constant_is_used() {
    let mut files = Vec::new();
    rust_files(&root().join("sim/src/profile"), &mut files);
    let code: String = files.iter().flat_map(|(_, text)| code_lines(text).map(|(_, line)| line)).collect();
    let words: BTreeSet<&str> = code.split(|c: char| !c.is_alphanumeric() && c != ':').collect();
    for constant in Constant::ALL {
        assert!(words.contains(format!("Constant::{constant:?}").as_str()), "`{constant}` is not used");
    }
}

/// Whether a line declares numbers that are no integers: shares, times, rates, odds.
fn declares_numbers(line: &str) -> bool {
    let declared = line.split_once("const ").and_then(|(_, rest)| rest.split_once(':'));
    let Some((name, declared)) = declared else { return false };
    let shouted = name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    let of = declared.split('=').next().unwrap_or_default();
    shouted && (of.contains("f64") || of.contains("f32"))
}

/// Goal: a number that is in no profile has its reason or its origin beside it: the comment above it or above those
/// that it stands with. No time and no rate is written where it is used.
#[test]
fn numbers_outside_profiles_say_why() {
    let mut files = Vec::new();
    rust_files(&root().join("sim/src"), &mut files);
    rust_files(&root().join("scenarios/src"), &mut files);
    let mut declared = 0;
    for (path, text) in &files {
        let mut explained = false;
        for (number, line) in code_lines(text) {
            let line = line.trim();
            if declares_numbers(line) {
                assert!(explained, "{}:{number}: {line}", path.display());
                declared += 1;
            }
            explained = !line.is_empty() && (explained || line.starts_with("//"));
        }
    }
    assert!(declared > 40, "{declared}");
    let is_digit = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    check_lines(&files, "numbers without a name", |line| {
        ["from_us(", "from_gb_per_s("].iter().any(|call| line.split(call).skip(1).any(is_digit))
    });
}

/// Goal: the work of reading a file is in proportion to it: no line is counted from the start of the text.
#[test]
fn importers_do_not_count_lines_again() {
    let mut files = Vec::new();
    rust_files(&root().join("sim/src/schedule/msccl"), &mut files);
    check_lines(&files, "lines are found in an index, once made", |line| line.contains("text_pos_at"));
}

/// Goal: nothing is left for later.
#[test]
fn nothing_is_unfinished() {
    let places = ["todo!", "unimplemented!"];
    check_lines(&sources(), "unfinished code", |line| places.iter().any(|p| line.contains(p)));
}

/// Goal: errors are values outside of tests.
#[test]
fn nothing_is_unwrapped_outside_tests() {
    check_lines(&sources(), "`.unwrap()` outside tests", |line| line.contains(".unwrap()"));
}

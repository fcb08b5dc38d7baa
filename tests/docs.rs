//! Goal: what README and the book show and link is true, and their sentences are short.
//! Method: each block fenced as `console` is run by bash from a clone, page by page, and prints what is shown: `...` stands
//! for anything, runs of blanks for one. Blocks fenced as `console,gpu` need GPUs or follow from what did, those fenced as
//! `console,minutes` run where `COLLCAST_ALL_TESTS` is set: of both the options are held against `--help`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::read_to_string;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};

use crate::common::{all, collcast};
use rayon::prelude::*;

/// Words of a sentence at most.
const WORDS: usize = 35;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Markdown files of a folder and those below it, in order of their names.
fn pages(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// README and the book, without the tables that tests write.
fn told() -> Vec<PathBuf> {
    let written = root().join("docs/accuracy");
    let book = pages("docs").into_iter().filter(|page| !page.starts_with(&written));
    std::iter::once(root().join("README.md")).chain(book).collect()
}

fn name(page: &Path) -> String {
    page.strip_prefix(root()).unwrap().display().to_string()
}

/// A fenced block.
struct Block {
    info: String,
    lines: Vec<String>,
}

/// Fenced blocks, and the lines outside of them.
fn split(text: &str) -> (Vec<Block>, Vec<String>) {
    let (mut blocks, mut outside) = (Vec::new(), Vec::new());
    let mut open: Option<Block> = None;
    for line in text.lines() {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(info), None) => open = Some(Block { info: info.to_owned(), lines: Vec::new() }),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some(block)) => block.lines.push(line.to_owned()),
            (None, None) => outside.push(line.to_owned()),
        }
    }
    assert!(open.is_none(), "a block is never closed");
    (blocks, outside)
}

/// Commands of a block with what is shown of their output.
fn commands(block: &Block) -> Vec<(String, Vec<String>)> {
    let mut all: Vec<(String, Vec<String>)> = Vec::new();
    let mut open = false;
    for line in &block.lines {
        if let Some(command) = line.strip_prefix("$ ") {
            all.push((command.to_owned(), Vec::new()));
            open = command.ends_with('\\');
        } else if let Some((command, shown)) = all.last_mut() {
            if open {
                *command += &format!("\n{line}");
                open = line.ends_with('\\');
            } else {
                shown.extend(line.split("...").map(words).filter(|part| !part.is_empty()));
            }
        }
    }
    all
}

/// Words with one blank between them; rules of tables are as wide as their screen.
fn words(text: &str) -> String {
    text.split_whitespace().filter(|word| !word.starts_with("-----")).collect::<Vec<_>>().join(" ")
}

/// What commands of the program alone printed, which several pages show: those that write nothing and read no file of their page.
type Printed = Mutex<BTreeMap<String, Arc<OnceLock<(Option<i32>, String)>>>>;

/// Whether a command prints the same in every folder.
fn is_the_same_everywhere(command: &str) -> bool {
    let writes = ["-o", "--output", "--timeline", "--plots", "--history", "--update", "--next-runs"];
    let shell = ['|', '>', '<', ';', '&', '$', '`', '=', '\n'];
    command.starts_with("collcast ")
        && !command.contains(shell)
        && command
            .split_whitespace()
            .all(|word| !writes.contains(&word) && (!word.contains('.') || word.contains("..")))
}

/// Runs a command and finds what is shown, in order.
fn check_prints(page: &str, folder: &Path, command: &str, shown: &[String], known: &Printed) {
    let once = is_the_same_everywhere(command);
    let cell = match once {
        true => known.lock().unwrap().entry(command.to_owned()).or_default().clone(),
        false => Arc::default(),
    };
    let (code, printed) = cell.get_or_init(|| run(folder, command));
    // 1: what was asked does not hold, as some are shown to.
    let fails = ["validate", "compare", "check", "lint", "trace", "plan"]
        .iter()
        .any(|name| command.contains(&format!("collcast {name} ")));
    assert!(matches!((*code, fails), (Some(0), _) | (Some(1), true)), "{page}: `{command}` failed:\n{printed}");
    let mut rest = printed.as_str();
    for part in shown {
        let at = rest.find(part).unwrap_or_else(|| panic!("{page}: `{command}`: `{part}` is missing in\n{rest}"));
        rest = &rest[at + part.len()..];
    }
}

/// Runs a command: its exit code, and what it printed.
fn run(folder: &Path, command: &str) -> (Option<i32>, String) {
    let program = Path::new(env!("CARGO_BIN_EXE_collcast")).parent().unwrap();
    let out = crate::common::without_own(&mut Command::new("bash"))
        .args(["-c", command])
        .current_dir(folder)
        .env("PATH", format!("{}:{}", program.display(), std::env::var("PATH").unwrap()))
        .env("COLLCAST_CONFIG", "")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let printed = [out.stdout, out.stderr].map(|b| words(&String::from_utf8_lossy(&b))).join(" ");
    (out.status.code(), printed)
}

/// Finds the options of a command's calls of the program in their help.
fn check_options(page: &str, command: &str, helps: &mut BTreeMap<String, String>) {
    let joined = command.replace("\\\n", " ");
    for call in joined.split(['|', ';', '&']) {
        let mut words = call.split_whitespace().skip_while(|word| *word != "collcast").skip(1);
        let Some(subcommand) = words.next() else { continue };
        let help = helps.entry(subcommand.to_owned()).or_insert_with(|| {
            let (code, help, said) = collcast(&[subcommand, "--help"]);
            assert_eq!(code, 0, "{page}: `{command}`: {said}");
            help
        });
        for option in words.filter(|word| word.starts_with('-')) {
            let option = option.split('=').next().unwrap();
            let known = help.split([' ', ',', '\n']).any(|word| word == option);
            assert!(known, "{page}: `{command}`: `collcast {subcommand}` has no option {option}");
        }
    }
}

/// Runs the blocks of a page, one after the other as its reader does; how many commands there are.
fn run_page(path: &Path, known: &Printed) -> usize {
    let mut helps = BTreeMap::new();
    let mut ran = 0;
    let page = name(path);
    let folder = tempfile::tempdir().unwrap();
    for name in ["tests", "examples", "checks"] {
        std::os::unix::fs::symlink(root().join(name), folder.path().join(name)).unwrap();
    }
    for block in split(&read_to_string(path).unwrap()).0 {
        let Some(kind) = block.info.strip_prefix("console") else { continue };
        for (command, shown) in commands(&block) {
            match kind {
                "" => check_prints(&page, folder.path(), &command, &shown, known),
                ",minutes" if all(&page, &command) => check_prints(&page, folder.path(), &command, &shown, known),
                ",gpu" | ",minutes" => check_options(&page, &command, &mut helps),
                _ => panic!("{page}: blocks are console, console,gpu or console,minutes, not console{kind}"),
            }
            ran += 1;
        }
    }
    ran
}

/// Pages have folders of their own, so that they run at the same time. Commands of the gallery are run by `tests/report.rs`.
#[test]
fn commands_print_what_is_shown() {
    let gallery = root().join("docs/gallery");
    let known = Printed::default();
    let ran: usize =
        told().par_iter().filter(|path| !path.starts_with(&gallery)).map(|path| run_page(path, &known)).sum();
    assert!(ran >= 100, "only {ran} commands are shown");
}

/// Sentences outside of blocks, tables and comments. A heading, an item of a list and a paragraph each end one.
fn sentences(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for line in split(text).1 {
        let line = line.trim();
        let item = line
            .strip_prefix("- ")
            .or_else(|| line.split_once(". ").filter(|(n, _)| n.parse::<u8>().is_ok()).map(|(_, rest)| rest));
        if line.is_empty() || line.starts_with(['|', '#', '!', '<']) {
            parts.push(String::new());
            continue;
        }
        if item.is_some() {
            parts.push(String::new());
        }
        let part = parts.last_mut().unwrap();
        *part += item.unwrap_or(line);
        part.push(' ');
    }
    let mut found = Vec::new();
    for part in parts {
        // Code is one word whatever is in it.
        let plain: String = part.split('`').enumerate().map(|(i, s)| if i % 2 == 1 { "code" } else { s }).collect();
        let mut sentence = String::new();
        for word in plain.split_whitespace() {
            sentence += word;
            sentence.push(' ');
            if word.trim_end_matches([')', '"', '*', '_']).ends_with(['.', '!', '?']) {
                found.push(std::mem::take(&mut sentence));
            }
        }
        found.push(sentence);
    }
    found
}

#[test]
fn sentences_are_short() {
    for path in told() {
        for sentence in sentences(&read_to_string(&path).unwrap()) {
            let count = sentence.split_whitespace().count();
            assert!(count <= WORDS, "{}: {count} words: {sentence}", name(&path));
        }
    }
}

#[test]
fn sentences_are_told_apart() {
    let text = "# Title\nOne `two words` three. Four\nfive (six.) Seven\n- eight\n1. nine ten\n\n```\nnone. of. this\n```\n| no. |\n";
    let found: Vec<usize> =
        sentences(text).iter().map(|s| s.split_whitespace().count()).filter(|count| *count > 0).collect();
    assert_eq!(found, [3, 3, 1, 1, 2]);
}

/// Goal: README is as short as CONTRIBUTING asks for.
#[test]
fn readme_is_one_screen_or_two() {
    let [lines, contributing] = ["README.md", "CONTRIBUTING.md"].map(|name| read_to_string(root().join(name)).unwrap());
    let lines = lines.lines().count();
    let most = contributing.split_once("README of at most ").and_then(|(_, rest)| rest.split(' ').next()).unwrap();
    assert!(lines <= most.parse().unwrap(), "README has {lines} lines, more than {most}");
}

/// Targets of links and pictures outside of blocks and inline code.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let outside = split(text).1.join("\n");
    let plain: String = outside.split('`').step_by(2).collect::<Vec<_>>().join("`");
    for part in plain.split("](").skip(1) {
        found.extend(part.split(')').next().map(str::to_owned));
    }
    found
}

/// Anchors of a page's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let slug = |heading: &str| -> String {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>().to_lowercase()
    };
    split(text)
        .1
        .iter()
        .filter(|line| line.starts_with('#'))
        .map(|line| slug(line.trim_start_matches('#').trim()))
        .collect()
}

#[test]
fn links_lead_somewhere() {
    let mut checked = 0;
    let named = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root().join(name));
    for path in named.into_iter().chain(pages("docs")).chain(pages("examples")) {
        for link in links(&read_to_string(&path).unwrap()) {
            if link.contains("://") {
                continue;
            }
            let (file, anchor) =
                link.split_once('#').map_or((link.as_str(), None), |(file, anchor)| (file, Some(anchor)));
            let target = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {link} leads nowhere", name(&path));
            if let Some(anchor) = anchor {
                let known = anchors(&read_to_string(&target).unwrap()).contains(anchor);
                assert!(known, "{}: {link}: there is no such heading", name(&path));
            }
            checked += 1;
        }
    }
    assert!(checked > 50, "only {checked} links were found");
}

#[test]
fn every_page_is_in_the_summary() {
    let docs = root().join("docs");
    let listed: BTreeSet<PathBuf> =
        links(&read_to_string(docs.join("SUMMARY.md")).unwrap()).into_iter().map(|link| docs.join(link)).collect();
    let written: BTreeSet<PathBuf> = pages("docs").into_iter().filter(|page| !page.ends_with("SUMMARY.md")).collect();
    assert_eq!(listed, written);
}

//! Goal: each command in README prints what README shows of it, from a clone.
//! Method: its blocks are run by bash; `...` stands for anything, runs of blanks for one.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::all;

/// What needs GPUs, or follows from what did.
const ELSEWHERE: [&str; 4] = ["--backend cuda", "torchrun", "collcast probe", " mybox"];
/// Minutes: fits a profile five times.
const LONG: [&str; 1] = ["collcast calibrate"];

/// Commands with what is shown of their output.
fn commands(text: &str) -> Vec<(String, Vec<String>)> {
    let mut all: Vec<(String, Vec<String>)> = Vec::new();
    for block in text.split("```").skip(1).step_by(2) {
        let mut open = false;
        let first = all.len();
        for line in block.lines() {
            if let Some(command) = line.strip_prefix("$ ") {
                all.push((command.to_owned(), Vec::new()));
                open = command.ends_with('\\');
            } else if all.len() > first {
                let (command, shown) = all.last_mut().unwrap();
                if open {
                    *command += &format!("\n{line}");
                    open = line.ends_with('\\');
                } else {
                    shown.extend(line.split("...").map(words).filter(|part| !part.is_empty()));
                }
            }
        }
    }
    all
}

/// Words with one blank between them; rules of tables are as wide as their screen.
fn words(text: &str) -> String {
    text.split_whitespace().filter(|word| !word.starts_with("-----")).collect::<Vec<_>>().join(" ")
}

#[test]
fn commands_print_what_is_shown() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    for name in ["tests", "examples", "checks"] {
        std::os::unix::fs::symlink(root.join(name), folder.path().join(name)).unwrap();
    }
    let program = Path::new(env!("CARGO_BIN_EXE_collcast")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let commands = commands(&std::fs::read_to_string(root.join("README.md")).unwrap());
    let mut ran = 0;
    for (command, shown) in &commands {
        let is = |list: &[&str]| list.iter().any(|part| command.contains(part));
        if is(&ELSEWHERE) || is(&LONG) && !all("README", command) {
            continue;
        }
        let out = Command::new("bash")
            .args(["-c", command])
            .current_dir(folder.path())
            .env("PATH", &path)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let printed = [out.stdout, out.stderr].map(|b| words(&String::from_utf8_lossy(&b))).join(" ");
        let mut rest = printed.as_str();
        for part in shown {
            let at = rest.find(part).unwrap_or_else(|| panic!("`{command}`: `{part}` is missing in\n{rest}"));
            rest = &rest[at + part.len()..];
        }
        ran += 1;
    }
    assert!(ran >= 10, "{ran} of {} commands ran", commands.len());
}

//! Goal: what comes with an installed tool: completions, man pages, and a test of what works here.

use std::collections::BTreeSet;
use std::process::Command;

use crate::common::collcast;

/// What bash offers behind words, by the script that `completions bash` prints.
fn offered(words: &[&str]) -> BTreeSet<String> {
    let (code, script, err) = collcast(&["completions", "bash"]);
    assert_eq!(code, 0, "{err}");
    let ask = format!(
        "{script}\nCOMP_WORDS=({}); COMP_CWORD={}; _collcast collcast '{}' '{}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.join(" "),
        words.len() - 1,
        words[words.len() - 1],
        words[words.len() - 2],
    );
    let out = Command::new("bash").args(["-c", &ask]).output().unwrap();
    String::from_utf8(out.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Goal: a shell completes commands, options and their values.
#[test]
fn shells_complete() {
    assert_eq!(offered(&["collcast", "sw"]), BTreeSet::from(["sweep".to_owned()]));
    let options = offered(&["collcast", "sweep", "--no"]);
    assert_eq!(options, BTreeSet::from(["--nodes".to_owned()]), "{options:?}");
    let formats = offered(&["collcast", "topo", "list", "--format", "j"]);
    assert_eq!(formats, BTreeSet::from(["json".to_owned(), "junit".to_owned()]));
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        let (code, script, err) = collcast(&["completions", shell]);
        assert!(code == 0 && script.contains("self-test") && script.contains("explain-choice"), "{shell}: {err}");
    }
    let (code, _, err) = collcast(&["completions", "tcsh"]);
    assert!(code == 2 && err.contains("bash"), "{err}");
}

/// Goal: every command has a man page with all of its options.
#[test]
fn commands_have_man_pages() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("man1");
    let (code, out, err) = collcast(&["man", "-o", folder.to_str().unwrap()]);
    assert!(code == 0 && out.is_empty(), "{err}");
    let all = collcast::cli::definition();
    let mut pages = 0;
    for command in all.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help") {
        let text = std::fs::read_to_string(folder.join(format!("collcast-{}.1", command.get_name()))).unwrap();
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
            let Some(long) = arg.get_long() else { continue };
            let escaped = format!("\\-\\-{}", long.replace('-', "\\-"));
            assert!(text.contains(&escaped), "{}: --{long} is missing", command.get_name());
        }
        pages += 1;
    }
    assert!(pages > 18, "{pages}");
    for inner in ["collcast-topo-show.1", "collcast-profile-list.1", "collcast-tune-install.1"] {
        assert!(folder.join(inner).exists(), "{inner}");
    }
    let (code, page, err) = collcast(&["man"]);
    assert!(code == 0 && page.contains(".TH collcast 1") && page.contains("Exit codes"), "{err}");
}

/// Goal: the test of what works tells what is needed from what is not: without GPUs, NCCL and NICs it passes.
#[test]
fn what_works_here_is_told() {
    let (code, out, err) = collcast(&["self-test", "--format", "json"]);
    assert_eq!(code, 0, "{err}");
    let result: serde_json::Value = serde_json::from_str(&out).unwrap();
    let rows = result["rows"].as_array().unwrap();
    let part = |name: &str| rows.iter().find(|row| row["part"] == name).unwrap_or_else(|| panic!("{name}: {out}"));
    assert!(part("simulator")["found"].as_str().unwrap().contains("proved"), "{out}");
    assert!(part("schedules on CPU threads")["found"].as_str().unwrap().contains("65536 elements exact"), "{out}");
    for row in rows {
        let state = row["state"].as_str().unwrap();
        assert!(state == "ok" || state == "missing" && row["found"] != "", "{row}");
    }
    let (code, out, err) = collcast(&["self-test"]);
    assert!(code == 0 && err.contains("ok: ") && out.contains("NVRTC"), "{out}{err}");
}

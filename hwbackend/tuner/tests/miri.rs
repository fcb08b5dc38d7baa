//! Goal: nothing in the plugin is undefined behaviour: no access beyond what it owns or was given, no race, no leak.
//! Method: its own tests, those of the border to C (`tests/border.rs`), and tables with bytes overwritten, run in Miri, which
//! interprets every access. That takes a nightly toolchain with Miri, and some minutes: `COLLCAST_ALL_TESTS=1`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::Write as _;
use std::process::Command;

/// What Miri is told: files and variables are those of this machine.
const FLAGS: &str = "-Zmiri-disable-isolation";
/// Cases of each property: each takes 100 times as long as by itself.
const CASES: &str = "12";

/// A command of the nightly toolchain, without what this run of cargo has set.
fn nightly(words: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly"]).args(words);
    for name in
        ["RUSTUP_TOOLCHAIN", "CARGO", "RUSTC", "RUSTFLAGS", "RUSTDOCFLAGS", "CARGO_TARGET_DIR", "LD_LIBRARY_PATH"]
    {
        command.env_remove(name);
    }
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    command
}

/// Says why nothing runs, past what captures the output of tests that pass.
fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

#[test]
fn no_access_is_undefined() {
    if std::env::var_os("COLLCAST_ALL_TESTS").is_none() {
        skipped("it takes minutes; COLLCAST_ALL_TESTS=1 runs it");
        return;
    }
    if !nightly(&["cargo", "miri", "--version"]).output().is_ok_and(|output| output.status.success()) {
        skipped("there is no nightly toolchain with Miri; `rustup +nightly component add miri rust-src` adds it");
        return;
    }
    let mut command = nightly(&["cargo", "miri", "test", "--lib", "--test", "border"]);
    let output = command.env("MIRIFLAGS", FLAGS).env("PROPTEST_CASES", CASES).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    let ran: usize = out.matches(" ... ok").count();
    assert!(ran >= 10, "{ran} tests ran: {out}{err}");
}

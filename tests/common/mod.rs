//! Runs the program as a user does.

use std::io::Write as _;
use std::process::{Command, Stdio};

/// Variables of the tests themselves, some of whose names are near those of defaults of the program's options.
const OWN: [&str; 4] = ["COLLCAST_ALL_TESTS", "COLLCAST_FIT_PUBLISHED", "COLLCAST_SEEDS", "COLLCAST_UPDATE"];

/// A command that does not see them.
pub(crate) fn without_own(command: &mut Command) -> &mut Command {
    OWN.iter().for_each(|name| _ = command.env_remove(name));
    command
}

/// The program, run where the data of the tests is, without profiles and defaults of whoever runs the tests.
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_collcast"));
    without_own(&mut command)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("COLLCAST_PROFILES", "")
        .env("COLLCAST_CONFIG", "")
        .stdin(Stdio::null());
    command
}

/// Exit code, stdout and stderr of a command.
pub(crate) fn run(command: &mut Command) -> (i32, String, String) {
    let out = command.output().unwrap();
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    (out.status.code().unwrap_or(-1), text(&out.stdout), text(&out.stderr))
}

/// The same of the program with these arguments.
#[allow(dead_code)] // Not all tests need it.
pub(crate) fn collcast(args: &[&str]) -> (i32, String, String) {
    run(program().args(args))
}

/// Whether the longest tests run in full (`COLLCAST_ALL_TESTS=1`); what is left out is said.
#[allow(dead_code)] // Not all tests have a long part.
pub(crate) fn all(test: &str, left_out: &str) -> bool {
    let all = std::env::var_os("COLLCAST_ALL_TESTS").is_some();
    if !all {
        skipped(&format!("{test}: {left_out}; COLLCAST_ALL_TESTS=1 runs it"));
    }
    all
}

/// Says what is not tried here, past what captures the output of tests that pass.
pub(crate) fn skipped(what: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {what}");
}

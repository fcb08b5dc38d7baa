//! Goal: the edge of the program: streams that are gone, files of every kind, text of strangers, options
//! that have no meaning where they are given.

#![cfg(unix)]
#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::collcast;

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_collcast"));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null());
    command
}

/// Goal: a stderr that is full or closed loses notes and errors, and changes no exit code.
#[test]
fn exit_codes_need_no_stderr() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for (args, code) in [
        (&["simulate", "-s", "8"][..], 0),
        (&["simulate", "dgx-h10"], 2),
        (&["sweep", "--no-such-flag"], 2),
        (&["simulate", "ddp-buckets", "--format", "json"], 0),
    ] {
        let status = program().args(args).stdout(Stdio::null()).stderr(full()).status().unwrap();
        assert_eq!(status.code(), Some(code), "{args:?} with a full stderr");
        let closed = format!("exec \"$0\" {} >/dev/null 2>&-", args.join(" "));
        let status = Command::new("sh").args(["-c", &closed, env!("CARGO_BIN_EXE_collcast")]).status().unwrap();
        assert_eq!(status.code(), Some(code), "{args:?} with a closed stderr");
    }
}

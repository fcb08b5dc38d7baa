//! The command line of Collcast: parses, dispatches, prints. One file per command.
//!
//! [`main()`] is the program. [`ask()`] gives other programs what a command answers, as data.

// They panic where the stream is gone; `output` does not.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

#[macro_use]
mod output;

mod ask;
mod bench;
mod calibrate;
mod call;
mod check;
mod compare;
mod completions;
mod config;
mod convert;
mod guard;
mod launch;
mod lint;
mod merge;
mod plan;
mod probe;
mod profile;
mod program;
mod progress;
mod queries;
mod report;
mod scenario;
mod schema;
mod selectors;
mod self_test;
mod serve;
mod sets;
mod shard;
mod simulate;
mod sweep;
mod topo;
mod trace;
mod transfer;
mod tune;
mod validate;

pub use ask::{Choice, Takes, Value, about, ask, choices, commands, definition, words};
pub use call::Answer;
pub use program::{exit_code, main};

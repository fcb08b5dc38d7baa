//! The program `collcast`: see [`collcast::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    collcast::cli::main(std::env::args_os().collect(), None)
}

//! `collcast merge`, and `--shard` of the commands whose answers it puts together.

use std::path::PathBuf;

use collcast::Error;
use collcast::shard::{self, Parts, Shard};
use collcast::values::plural;
use serde::Serialize;

use super::call::{self, Code};
use super::output::{OutputArgs, PageArgs, write};
use super::program::{Command, Parsed, parsed};
use super::{check, plan, sweep};

#[derive(clap::Args, Debug)]
#[command(
    after_help = "Each part is what `sweep`, `check` or `plan` wrote with --shard. All parts are merged where they were \
made: with the same machine files, profiles, defaults and version. The answer, its formats and its exit code are those \
of the command without --shard.

  for i in 1 2 3 4; do collcast sweep dgx-h100 --nodes 64,256 --shard $i/4 -o part-$i.json; done
  collcast merge part-*.json
  collcast merge part-*.json --format csv -o sweep.csv --report sweep.html

`examples/scale` has an array job for Slurm and an indexed Job for Kubernetes."
)]
pub(crate) struct Args {
    /// All parts, in any order
    #[arg(required = true, value_name = "PART.json")]
    parts: Vec<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    page: PageArgs,
}

pub(crate) fn run(args: &Args) -> Result<Code, Error> {
    let parts = Parts::read(&args.parts)?;
    let words: Vec<_> = parts.command.iter().map(Into::into).collect();
    let refused = || {
        Error::usage(
            format!("the parts are of `{}`, which is no command that is merged", parts.command.join(" ")),
            "merge what sweep, check or plan wrote with --shard",
        )
    };
    let Parsed { cli, given, taken } = parsed(&words, call::asked()).map_err(|_| refused())?;
    call::with_defaults(taken);
    let (output, page) = (args.output.clone(), args.page.clone());
    match cli.command {
        Command::Sweep(mut of) => {
            (of.output, of.page) = (output, page);
            sweep::answer(&of, &given, Some(&parts))
        }
        Command::Check(mut of) => {
            (of.output, of.page) = (output, page);
            check::answer(&of, &given, Some(&parts))
        }
        Command::Plan(mut of) => {
            (of.output, of.page) = (output, page);
            plan::answer(&of, Some(&parts))
        }
        _ => Err(refused()),
    }
}

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ShardArgs {
    /// Work out only a part of the calls, such as 2/16, and write it for `merge`: for array jobs
    #[arg(long, value_name = "I/N", conflicts_with_all = ["format", "report"], help_heading = "Output")]
    shard: Option<Shard>,
}

impl ShardArgs {
    /// The part to work out, where it is not all of the answer and nobody merges.
    pub(crate) fn of(&self, merged: Option<&Parts>) -> Option<Shard> {
        self.shard.filter(|_| merged.is_none())
    }
}

/// Writes a part.
pub(crate) fn write_part<T: Serialize>(
    output: &OutputArgs,
    question: &str,
    shard: Shard,
    answers: &[T],
) -> Result<Code, Error> {
    let words = call::words().iter().map(|word| word.to_string_lossy().into_owned()).collect();
    write(output.output.as_deref(), shard::write(words, question, shard, answers).as_bytes())?;
    let calls = plural(answers.len(), "call", "calls");
    say!("ok: part {shard} has {calls}; `collcast merge` makes the answer of all parts");
    Ok(Code::SUCCESS)
}

//! `--shard`: a part of an answer, for `merge`.

use collcast::Error;
use collcast::shard::{self, Parts, Shard};
use collcast::values::plural;
use serde::Serialize;

use super::call::{self, Code};
use super::output::{OutputArgs, extension, write};

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ShardArgs {
    /// Work out only one of N parts, such as 2/16, and write it as JSON for `merge`: for array jobs
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
    if let Some(path) = output.output.as_deref().filter(|path| extension(path).as_deref() != Some("json")) {
        return Err(Error::usage(
            format!("a part is JSON, and `{}` is named otherwise", path.display()),
            "name it .json; `merge` writes the answer in other formats",
        ));
    }
    let words = call::words().iter().map(|word| word.to_string_lossy().into_owned()).collect();
    write(output.output.as_deref(), shard::write(words, question, shard, answers).as_bytes())?;
    let calls = plural(answers.len(), "call", "calls");
    say!("ok: part {shard} has the times of {calls}; `collcast merge` makes the answer of all parts");
    Ok(Code::SUCCESS)
}

//! `collcast schema`: the shape of answers in JSON, and of files that people write.

use collcast::Error;
use collcast::schema::{all, find};
use collcast::views::schema::list_report;

use super::call::Code;
use super::output::{OutputArgs, write};
use super::selectors::Named;

#[derive(clap::Args, Debug)]
#[command(
    after_help = "An answer that `--format json` prints says in `schema` which one it is of: `collcast/sweep/1` is of `sweep`. The number \
grows where a key changes its meaning or is gone, and not where one is added.

  collcast schema                       all of them
  collcast schema sweep > sweep.json    what `sweep --format json` prints
  collcast schema topology.toml         what a topology file may say"
)]
pub(crate) struct Args {
    /// Name of a schema; left out, all are listed
    #[arg(value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn run(args: &Args, given: &Named) -> Result<Code, Error> {
    match &args.name {
        Some(name) => {
            given.without(&["--format"], "a schema is JSON", "leave it out")?;
            let text = find(name)?.text;
            write(args.output.output.as_deref(), format!("{}\n", text.trim_end()).as_bytes())?;
        }
        None => args.output.print(&list_report(&all()), None)?,
    }
    Ok(Code::SUCCESS)
}

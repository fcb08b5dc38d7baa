//! `collcast compare A B`: what became slower between two sets of measurements or results.

use std::path::PathBuf;

use collcast::Error;
use collcast::compare::{Condition, Request, Set, compare};
use collcast::values::percent;
use collcast::views::{only, shorten};

use super::call::Code;
use super::output::{Format, OutputArgs, PageArgs};
use super::selectors::ReadArgs;

#[derive(clap::Args, Debug)]
#[command(after_help = "Rows are matched by collective, ranks, size and settings of the call. A setting with \
one value throughout A and another throughout B is what is compared: the first lines say so. They \
also say where the NCCL version, GPUs and variables differ, by which rows are not matched. Rows \
alike are repeats: their median counts, and how far they lie apart; without repeats the known \
noise of the launch mode does. Medians over neighbouring sizes decide, not single rows, until both \
have five runs, or four of which all of B's lie beyond all of A's. A row above 16 MiB that takes 1.75 times as long counts \
by itself. Hosts that both name are each held against themselves too. With nothing changed, a \
report says `slower` with a chance below 2%, where noise is as known or runs are repeated. The interval of one or two sizes that ran once reaches \
further: one disturbed measurement could be all of their change. Exit 1 where B or a host of it is slower, and where B has \
wrong values, failed runs, or a larger share of cut ones.

  slower       all of the interval is above 1, and the ratio is at the tolerance or above
  no change    all of the interval is within the tolerance
  cannot tell  else: repeat the runs (a folder of logs is one set)

  collcast compare before.log after.log
  collcast compare before/ after/ --tolerance 3% --format markdown
  collcast compare runs.csv --where-a run=old --where-b run=new --where size=1M:4G
  collcast compare run.log --where-a in_place=0 --where-b in_place=1
  collcast compare old.json new.json --allow-predicted       two results of `sweep`")]
pub(crate) struct Args {
    /// Before: nccl-tests log, JSON, CSV or a folder of them
    #[arg(value_name = "A")]
    a: PathBuf,
    /// After; left out, other rows of A, as --where-b says
    #[arg(value_name = "B")]
    b: Option<PathBuf>,
    /// Slowdown that does not matter
    #[arg(long, value_name = "PERCENT", default_value = "5%")]
    tolerance: String,
    /// Only these rows: `collective=all_reduce,all_gather`, `size=1M:4G`; repeat to narrow
    #[arg(long = "where", value_name = "KEY=VALUE", help_heading = "Rows")]
    both: Vec<String>,
    /// Only these rows of A: `run=NAME`, `in_place=0`
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Rows")]
    where_a: Vec<String>,
    /// Only these rows of B
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Rows")]
    where_b: Vec<String>,
    #[command(flatten)]
    read: ReadArgs,
    /// Print every row too
    #[arg(long)]
    rows: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    page: PageArgs,
}

/// Bands that a screen shows; the worst come first.
const BANDS_SHOWN: usize = 40;

pub(crate) fn run(args: &Args) -> Result<Code, Error> {
    let outcome = compare(&request(args)?)?;
    args.page.write(|| outcome.report(true))?;
    let format = args.output.format();
    let mut report = outcome.report(!matches!(format, Format::Json | Format::Csv));
    match format {
        Format::Csv => only(&mut report, "rows"),
        Format::Table => {
            shorten(&mut report, "bands", BANDS_SHOWN, "bands");
            shorten(&mut report, "hosts", BANDS_SHOWN, "bands of hosts");
            report.tables.retain(|table| args.rows || table.name != "rows");
        }
        _ => {}
    }
    args.output.print(&report, None)?;
    Ok(Code::from(u8::from(outcome.failed())))
}

fn request(args: &Args) -> Result<Request, Error> {
    let tolerance = percent("--tolerance", &args.tolerance)?;
    let b = match &args.b {
        Some(b) => b,
        None if args.where_a.is_empty() && args.where_b.is_empty() => {
            return Err(Error::usage(
                "there is nothing to compare A with",
                "name a second file or folder, or two parts of this one: --where-a run=old --where-b run=new",
            ));
        }
        None => &args.a,
    };
    let set = |path: &PathBuf, flag: &str, own: &[String]| -> Result<Set, Error> {
        let both = args.both.iter().map(|text| Condition::parse("--where", text));
        let conditions = both.chain(own.iter().map(|text| Condition::parse(flag, text)));
        Ok(Set { path: path.clone(), conditions: conditions.collect::<Result<_, _>>()? })
    };
    let sets = [set(&args.a, "--where-a", &args.where_a)?, set(b, "--where-b", &args.where_b)?];
    Ok(Request { sets, tolerance, read: args.read.options()? })
}

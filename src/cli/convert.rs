//! `collcast convert`: an algorithm as MSCCL XML, as a plan of MSCCL++, or its messages as a GOAL schedule.

use std::io::IsTerminal as _;
use std::path::PathBuf;

use collcast::Error;
use collcast::convert::{Target, convert};

use super::call::{self, Code};
use super::output::{extension, write};
use super::queries::queries;
use super::selectors::{CallArgs, MachineArgs, Named, of_one_call, only_one, refused};

#[derive(clap::Args, Debug)]
#[command(
    after_help = "Writes the algorithm, protocol and channels that a call of the size would use, once through its loop \
of chunks. Read it back with `collcast simulate --schedule FILE`, and a GOAL schedule with `collcast trace FILE --on MACHINE`. \
A plan of MSCCL++ is for MSCCL++'s executor, and of one host."
)]
#[command(mut_args(refused(&["split", "explain_choice"])))]
#[command(mut_args(of_one_call("64M, or the nearest that --schedule is for")))]
pub(crate) struct Args {
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    call: CallArgs,
    /// What to write; by itself what the ending of -o says (.goal, .bin for goal-binary, .json for mscclpp), else msccl
    #[arg(long, value_enum, value_name = "WHAT", help_heading = "Output")]
    target: Option<Written>,
    /// Write there in place of stdout: whole or not at all
    #[arg(short, long, value_name = "PATH", help_heading = "Output")]
    output: Option<PathBuf>,
}

/// See [`Target`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Written {
    /// MSCCL XML
    Msccl,
    /// An execution plan of MSCCL++, in JSON, proved before it is written
    Mscclpp,
    /// The messages as a GOAL schedule, for LogGOPSim and ATLAHS
    Goal,
    /// The same in LogGOPSim's binary form, as its txt2bin makes it
    GoalBinary,
}

pub(crate) fn run(args: &Args, given: &Named) -> Result<Code, Error> {
    let mut asked = args.call.clone();
    asked.no_split("convert")?;
    given.without(&["--graph", "--explain-choice"], "the file holds no graph and no reason", "leave it out")?;
    asked.check(given)?;
    if let Some(size) = asked.take_size()? {
        say!("note: no size given; this is what {size} would use");
    }
    let site = asked.site(&args.machine, args.machine.one_node_count()?)?;
    let query = &only_one(queries(&asked, std::slice::from_ref(&site))?.concat(), "convert")?;
    let by_name = args.output.as_deref().and_then(extension).and_then(|ending| match ending.as_str() {
        "goal" => Some(Written::Goal),
        "bin" => Some(Written::GoalBinary),
        "json" => Some(Written::Mscclpp),
        _ => None,
    });
    let target = match args.target.or(by_name) {
        Some(Written::Mscclpp) => Target::Mscclpp,
        Some(Written::Goal) => Target::Goal,
        Some(Written::GoalBinary) => Target::GoalBinary,
        Some(Written::Msccl) | None => Target::Msccl,
    };
    let to_person = args.output.is_none() && (call::asked() || std::io::stdout().is_terminal());
    if target == Target::GoalBinary && to_person {
        return Err(Error::usage("the binary form of GOAL is no text", "name a file: -o schedule.bin"));
    }
    let outcome = convert(&site, query, target)?;
    if let Some(note) = &outcome.note {
        say!("{note}");
    }
    write(args.output.as_deref(), &outcome.bytes)?;
    Ok(Code::SUCCESS)
}

//! `collcast convert`: an algorithm as MSCCL XML.

use std::path::PathBuf;

use collcast::Error;
use collcast::convert::convert;

use super::call::Code;
use super::output::write;
use super::selectors::{CallArgs, MachineArgs, Named, default_sizes, queries};

#[derive(clap::Args, Debug)]
#[command(
    after_help = "Writes the algorithm, protocol and channels that a call of the size would use, once through its loop \
of chunks. Read it back with `collcast simulate --schedule FILE`."
)]
#[command(mut_arg("size", default_sizes("64M")))]
pub(crate) struct Args {
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    call: CallArgs,
    /// Write there in place of stdout: whole or not at all
    #[arg(short, long, value_name = "PATH", help_heading = "Output")]
    output: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, given: &Named) -> Result<Code, Error> {
    let mut call = args.call.clone();
    call.no_split("convert")?;
    given.without(&["--graph", "--explain-choice"], "the file holds no graph and no reason", "leave it out")?;
    call.check(given)?;
    if call.size.is_none() && call.minbytes.is_none() {
        say!("note: no size given; this is what 64 MiB would use");
        call.size = Some("64M".to_owned());
    }
    let site = call.site(&args.machine, args.machine.one_node_count()?)?;
    let queries = queries(&call, std::slice::from_ref(&site))?.concat();
    let [query] = queries.as_slice() else {
        return Err(Error::usage(
            format!("convert takes exactly one point, this is {}", queries.len()),
            "give one collective, size, algorithm, protocol and channel count",
        ));
    };
    let outcome = convert(&site, query)?;
    if let Some(note) = &outcome.note {
        say!("{note}");
    }
    write(args.output.as_deref(), outcome.xml.as_bytes())?;
    Ok(Code::SUCCESS)
}

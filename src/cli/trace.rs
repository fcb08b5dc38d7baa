//! `collcast trace`: what a recorded training step says.

use std::path::PathBuf;

use collcast::trace::{Kind, Request, trace};
use collcast::views::{only, shorten, without_empty};
use collcast::{Error, SiteSpec, step};
use collcast_reports::model::Report;

use super::call::Code;
use super::output::{Format, OutputArgs, PageArgs};
use super::progress::watched;
use super::selectors::{Named, NcclArgs, profile_folders};

#[derive(clap::Args, Debug)]
#[command(group = clap::ArgGroup::new("machine").args(["topology", "on"]))]
#[command(
    after_help = "Reads traces of PyTorch's profiler (`prof.export_chrome_trace`, .json or .json.gz) and dumps of its flight \
recorder as JSON, a file for each rank. Says what of the communication is exposed, by group and collective, where the GPU \
waits for launches, and which rank is late. Mark steps with `prof.step()`, record CPU and CUDA activities.

With -t each call is held against its forecast on that machine: a call slower than its 90% interval makes the exit code 1, \
and so does a call of a flight recorder that never ended. Slow calls are held against all causes that `validate` knows.

  collcast trace rank*.json.gz                       exposed time, launch gaps, late ranks
  collcast trace traces/ -t dgx-h100                 which calls are slower than they should be
  collcast trace fr_0.json fr_1.json                 who never came to the call that hangs

With --on it says what the step would take on a machine: computations take what they took, calls are forecast. It takes
the profiler's traces, Chakra execution traces (trace.0.et, trace.1.et, ...), a GOAL schedule or a SimAI workload.

  collcast trace rank*.json.gz --on dgx-h200         the recorded step on another machine
  collcast trace traces/*.et --on dgx-h200           the same of Chakra's traces
  collcast trace schedule.goal --on dgx-h100         a schedule of LogGOPSim or ATLAHS"
)]
pub(crate) struct Args {
    /// Traces of a profiler, dumps of a flight recorder, or Chakra execution traces: files or folders, one file for each
    /// rank; or one GOAL schedule or SimAI workload
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Built-in machine or topology file: the one that it ran on, to judge calls by
    #[arg(short, long, value_name = "TOPOLOGY", help_heading = "Machine")]
    topology: Option<String>,
    /// Built-in machine or topology file: the one that the step is to run on
    #[arg(long, value_name = "TOPOLOGY", conflicts_with = "topology", help_heading = "Machine")]
    on: Option<String>,
    /// Hosts [default: as many as the ranks need]
    #[arg(long, alias = "hosts", value_name = "N", requires = "machine", help_heading = "Machine")]
    nodes: Option<u32>,
    /// GPUs of each host, from the first
    #[arg(long, value_name = "N", requires = "machine", help_heading = "Machine")]
    gpus: Option<u32>,
    /// Profile of links and hosts: built-in name or TOML file; several layer, the later wins per parameter
    #[arg(
        long,
        value_name = "PROFILE[,PROFILE]",
        value_delimiter = ',',
        requires = "machine",
        help_heading = "Machine"
    )]
    profile: Vec<String>,
    /// Do not look for the cause of what is slow
    #[arg(long, requires = "topology")]
    no_doctor: bool,
    #[command(flatten)]
    nccl: NcclArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    page: PageArgs,
}

/// Launch gaps that a screen shows; the longest come first.
const GAPS_SHOWN: usize = 5;

pub(crate) fn run(args: &Args, given: &Named) -> Result<Code, Error> {
    let described = args.files.iter().any(|path| step::is_recorded(path));
    if described && args.on.is_none() {
        return Err(Error::usage(
            "this says what is run, not how long calls took: there is nothing to judge",
            "name a machine with --on, and the step is forecast there",
        ));
    }
    // A default of --on is for what can only be forecast.
    let forecast = described || given.has("--on");
    let site = match if forecast { &args.on } else { &args.topology } {
        Some(topology) => Some(args.nccl.on(SiteSpec {
            topology: Some(topology.clone()),
            nodes: args.nodes,
            gpus: args.gpus,
            profiles: args.profile.clone(),
            profile_folders: profile_folders()?,
            ..SiteSpec::default()
        })?),
        None => {
            let hint = "name the one that it ran on with -t, or leave it out";
            given.without(&["--nccl", "--env"], "it changes forecasts, and no machine is named", hint)?;
            None
        }
    };
    if let (true, Some(site)) = (forecast, &site) {
        let outcome = watched("reading traces", |watch| {
            if described { step::recorded(&args.files, site, watch) } else { step::profiled(&args.files, site, watch) }
        })?;
        args.page.write(|| Report { figures: step::pictures(&outcome), ..outcome.report() })?;
        args.output.print(&outcome.report(), None)?;
        return Ok(Code::SUCCESS);
    }
    let request = Request { files: args.files.clone(), site, doctor: !args.no_doctor, ..Request::default() };
    let outcome = watched("reading traces", |watch| trace(&Request { watch: watch.clone(), ..request }))?;
    args.page.write(|| outcome.report(false))?;
    let mut report = outcome.report(args.output.for_people());
    match args.output.format() {
        Format::Csv => {
            let no_calls = outcome.kind == Kind::Profile && outcome.calls.is_empty();
            only(&mut report, if no_calls { "ranks" } else { "calls" });
        }
        Format::Table => shorten(&mut report, "gaps", GAPS_SHOWN, "launch gaps"),
        _ => {}
    }
    if args.output.for_people() {
        without_empty(&mut report, &["ranks", "calls"]);
    }
    args.output.print(&report, None)?;
    Ok(Code::from(u8::from(outcome.failed())))
}

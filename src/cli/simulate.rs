//! `collcast simulate`: one call, a group of calls or one training step in detail, and its timeline.

use std::path::{Path, PathBuf};

use collcast::forecast::{self, group, pictures::pictures, timeline::timeline};
use collcast::sim::collective::nearest;
use collcast::sim::workload::Level;
use collcast::views::profile::constants;
use collcast::{Error, step};
use collcast_reports::model::Report;

use super::call::Code;
use super::output::{OutputArgs, PageArgs, write};
use super::progress::watched;
use super::queries::queries;
use super::selectors::{CallArgs, MachineArgs, Named, OF_A_CALL, of_one_call, only_one};

#[derive(clap::Args, Debug)]
#[command(
    after_help = "In place of a machine, a SCENARIO: a training step as TOML (schema: --scenario-schema) or a built-in one:
  ten-and-twelve ddp-buckets backward-100mb gpt-ddp gpt-fsdp gpt-tensor gpt-pipeline megatron-128 megatron-1024
  collcast simulate dgx-h100 --group 64K*48            48 calls as one kernel
  collcast simulate ddp-buckets --vary \"data_parallel.bucket=5 MiB,25 MiB,1000 MiB\""
)]
#[command(mut_args(of_one_call("64M, or the nearest that --schedule is for")))]
pub(crate) struct Args {
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    call: CallArgs,
    /// Several calls between ncclGroupStart and ncclGroupEnd, which NCCL runs as one kernel: sizes, each with a
    /// collective before it and a number of times behind it if need be, such as 64K*48 or all_gather:1M,all_reduce:64K
    #[arg(
        long,
        value_name = "CALL[,CALL]",
        help_heading = "Collective",
        conflicts_with_all = ["size", "minbytes", "maxbytes", "stepfactor", "split", "schedule", "counts", "timeline", "chakra", "goal", "explain_choice", "vary"]
    )]
    group: Option<String>,
    /// Other values of a key: any of a scenario, one row each, such as data_parallel.bucket=5 MiB,25 MiB
    #[arg(long, value_name = "KEY=A[,B]", help_heading = "Scenario")]
    vary: Vec<String>,
    /// Print the JSON schema of scenario files
    #[arg(long, help_heading = "Scenario")]
    scenario_schema: bool,
    /// How a scenario's communication is simulated: flows, slices or auto
    #[arg(long, value_enum, default_value = "auto", help_heading = "Scenario")]
    level: LevelArg,
    /// Write a timeline for ui.perfetto.dev: ranks, channels and links
    #[arg(long, alias = "trace", value_name = "FILE", help_heading = "Output")]
    timeline: Option<PathBuf>,
    /// Write a scenario's step as Chakra execution traces, a file for each rank: step.0.et, step.1.et
    #[arg(long, value_name = "DIR", help_heading = "Scenario")]
    chakra: Option<PathBuf>,
    /// Write a scenario's step as a GOAL schedule; in LogGOPSim's binary form where the name ends in .bin
    #[arg(long, value_name = "FILE", help_heading = "Scenario")]
    goal: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    page: PageArgs,
}

/// See [`Level`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum LevelArg {
    /// Slices where they are few, else flows
    Auto,
    /// Each call once alone, then as one flow
    Flows,
    /// Every slice of every call
    Slices,
}

pub(crate) fn run(args: &Args, given: &Named) -> Result<Code, Error> {
    if args.scenario_schema {
        let schema = format!("{}\n", collcast::scenarios::file::json_schema());
        write(args.output.output.as_deref(), schema.as_bytes())?;
        return Ok(Code::SUCCESS);
    }
    let scenario = args.machine.machine.as_deref().and_then(step::Request::find);
    if let (Some(_), Some(_)) = (&args.group, &scenario) {
        return Err(Error::usage("a scenario has its own calls, --group is for a machine", "leave one of them out"));
    }
    if let Some(scenario) = scenario {
        return run_step(args, given, scenario);
    }
    if !args.vary.is_empty() {
        let known: Vec<&str> = collcast::scenarios::builtin::names().collect();
        return Err(Error::usage(
            "--vary changes keys of a scenario, and this is none",
            format!("give a scenario file or a built-in one: {}", known.join(" ")),
        ));
    }
    given.without(
        &["--level", "--chakra", "--goal"],
        "it is for a scenario's step, and this is none",
        "leave it out",
    )?;
    args.call.check(given)?;
    if args.call.split.is_some() {
        given.without(&["--timeline"], "a timeline is of one communicator", "leave out --split")?;
    }
    args.machine.note_default();
    no_such_scenario(args.machine.name())?;
    match &args.group {
        Some(calls) => run_group(args, calls),
        None => run_call(args),
    }
}

/// One call.
fn run_call(args: &Args) -> Result<Code, Error> {
    let mut call = args.call.clone();
    if let Some(size) = call.take_size()?.filter(|_| call.counts.is_none()) {
        say!("note: no size given; this is {size}");
    }
    let site = call.site(&args.machine, args.machine.one_node_count()?)?;
    let query = only_one(queries(&call, std::slice::from_ref(&site))?.concat(), "simulate")?;
    let request =
        forecast::Request { queries: vec![query], explain: call.explain_choice, ..forecast::Request::default() };
    let outcome = watched("simulating", |watch| {
        let mut outcome = forecast::forecast(&site, &forecast::Request { watch: watch.clone(), ..request })?;
        if let Some(row) = outcome.rows.first() {
            outcome.warnings.extend(forecast::without_slow_ports(&site, row)?);
        }
        Ok::<_, Error>(outcome)
    })?;
    if let (Some(path), Some(row)) = (&args.timeline, outcome.rows.first()) {
        write_timeline(path, &timeline(&site, row)?)?;
    }
    args.page.write_drawn(|| {
        let figures = outcome.rows.iter().map(|row| pictures(&site, row)).collect::<Result<Vec<_>, Error>>()?.concat();
        let mut report = Report { figures, ..outcome.detail(&site, false) };
        report.tables.push(constants(&site.profile));
        Ok(report)
    })?;
    args.output.print(&outcome.detail(&site, args.output.for_people()), None)?;
    Ok(Code::SUCCESS)
}

/// Several calls as one kernel.
fn run_group(args: &Args, calls: &str) -> Result<Code, Error> {
    let site = args.call.site(&args.machine, args.machine.one_node_count()?)?;
    let calls = args.call.grouped(calls, args.call.ranks.unwrap_or_else(|| site.topology.ranks()))?;
    let (algorithms, protocols, channels) =
        (args.call.algorithms()?, args.call.protocols()?, args.call.channel_counts()?);
    let (&[algorithm], &[protocol], &[channels]) = (&algorithms[..], &protocols[..], &channels[..]) else {
        return Err(Error::usage(
            "a group takes one algorithm, one protocol and one number of channels",
            "leave them out for NCCL's choice, or name one of each",
        ));
    };
    let outcome = watched("simulating", |watch| {
        let watch = watch.clone();
        group::group(&site, &group::Request { calls, algorithm, protocol, channels, watch })
    })?;
    args.page.write(|| outcome.report(false))?;
    args.output.print(&outcome.report(args.output.for_people()), None)?;
    Ok(Code::SUCCESS)
}

/// A training step.
fn run_step(args: &Args, given: &Named, scenario: step::Request) -> Result<Code, Error> {
    given.without(
        &OF_A_CALL,
        "a scenario says itself which calls there are",
        "change the scenario, or its keys with --vary; `collcast simulate MACHINE` takes it",
    )?;
    let level = match args.level {
        LevelArg::Auto => Level::Auto,
        LevelArg::Flows => Level::Flows,
        LevelArg::Slices => Level::Slices,
    };
    let mut site = args.call.spec(&args.machine, args.machine.one_node_count()?)?;
    site.topology = args.machine.topology.clone();
    let outcome = watched("simulating the step", |watch| {
        step::step(&step::Request { site, vary: args.vary.clone(), level, watch: watch.clone(), ..scenario })
    })?;
    if let Some(path) = &args.timeline {
        write_timeline(path, &step::timeline(&outcome)?)?;
    }
    if let Some(folder) = &args.chakra {
        let ranks = step::write_recorded(&outcome, folder)?;
        let first = if outcome.variants.len() > 1 { " of the first variant" } else { "" };
        say!("note: Chakra traces of {ranks} ranks{first} in {}; `collcast trace` reads them", folder.display());
    }
    if let Some(path) = &args.goal {
        let written = step::write_goal(&outcome, path)?;
        say!(
            "note: GOAL schedule of {} ranks with {} operations in {}; `collcast trace` and LogGOPSim read it",
            written.ranks,
            written.operations,
            path.display()
        );
        if !written.as_rings.is_empty() {
            let calls: Vec<String> = written.as_rings.into_iter().collect();
            say!(
                "warning: switches would do {}, and have no messages in GOAL: these are rings there",
                calls.join(", ")
            );
        }
    }
    if !outcome.not_in_files.is_empty() && (args.chakra.is_some() || args.goal.is_some()) {
        let what = outcome.not_in_files.join(" and ");
        say!("warning: the file says what ranks do, and has no {what}: a forecast from it is one without");
    }
    args.page.write(|| Report { figures: step::pictures(&outcome), ..outcome.report() })?;
    args.output.print(&outcome.report(), None)?;
    Ok(Code::SUCCESS)
}

fn write_timeline(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    write(Some(path), bytes)?;
    say!("note: timeline in {}; open it in ui.perfetto.dev", path.display());
    Ok(())
}

/// Refuses what is neither a file nor like a machine, but like a scenario.
fn no_such_scenario(name: Option<&str>) -> Result<(), Error> {
    let Some(name) =
        name.filter(|n| !Path::new(n).exists() && nearest(n, collcast::topologies::builtin::names()).is_none())
    else {
        return Ok(());
    };
    let names: Vec<&str> = collcast::scenarios::builtin::names().collect();
    match nearest(name, names.iter().copied()) {
        Some(near) => Err(Error::usage(
            format!("`{name}` is neither a built-in machine or scenario nor a file: did you mean `{near}`?"),
            format!("scenarios: {}; machines: collcast topo list", names.join(" ")),
        )),
        None => Ok(()),
    }
}

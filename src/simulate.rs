//! `collcast simulate`: one call, a group of calls or one training step in detail, and its timeline.

mod group;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use collcast_reports::model::{Cell, Column, Report, Table, Verdict};
use collcast_reports::perfetto::{Counter, TraceEvent, TraceWriter};
use collcast_sim::collective::{Algorithm, nearest};
use collcast_sim::engine::Observer;
use collcast_sim::ids::LinkId;
use collcast_sim::network::{Laid, lay};
use collcast_sim::predict::{Choice, Prediction, Predictor, Settings};
use collcast_sim::schedule::Schedule;
use collcast_sim::topology::Topology;
use collcast_sim::units::{SimDuration, SimTime};
use collcast_sim::workload::Level;

use crate::error::CliError;
use crate::explain;
use crate::files::write;
use crate::output::{Format, OutputArgs};
use crate::scenario;
use crate::selectors::{
    CallArgs, MachineArgs, Named, Point, UNMEASURED_SWITCHES, asked_cells, asked_columns, assumptions, default_sizes,
    hide, points, trust, unsaid, unsaid_line,
};
use crate::sweep::{busbw, warnings};

/// Most slices of a timeline: about a gigabyte of JSON, more than viewers take.
const MAX_TRACE_MESSAGES: u64 = 2_000_000;

#[derive(clap::Args, Debug)]
#[command(
    after_help = "In place of a machine, a SCENARIO: a training step as TOML (schema: --scenario-schema) or a built-in one:
  ten-and-twelve ddp-buckets backward-100mb gpt-ddp gpt-fsdp gpt-tensor gpt-pipeline megatron-128 megatron-1024
  collcast simulate dgx-h100 --group 64K*48            48 calls as one kernel
  collcast simulate ddp-buckets --vary \"data_parallel.bucket=5 MiB,25 MiB,1000 MiB\""
)]
#[command(mut_arg("size", default_sizes("64M")))]
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
        conflicts_with_all = ["size", "minbytes", "maxbytes", "stepfactor", "split", "schedule", "counts", "trace", "explain_choice", "vary"]
    )]
    group: Option<String>,
    /// Another value of any key of a scenario, one row each: data_parallel.bucket=5 MiB,25 MiB
    #[arg(long, value_name = "KEY=A[,B]", help_heading = "Scenario")]
    vary: Vec<String>,
    /// Print the JSON schema of scenario files
    #[arg(long, help_heading = "Scenario")]
    scenario_schema: bool,
    /// How a scenario's communication is simulated: flows, slices or auto
    #[arg(long, value_enum, default_value = "auto", help_heading = "Scenario")]
    level: LevelArg,
    /// Write a timeline of ranks, channels and links for ui.perfetto.dev
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
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

pub(crate) fn run(args: &Args, given: &Named) -> Result<ExitCode, CliError> {
    if args.scenario_schema {
        let schema = format!("{}\n", collcast_scenarios::file::json_schema());
        write(args.output.output.as_deref(), schema.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let scenario = args.machine.machine.as_deref().and_then(scenario::find);
    if let (Some(_), Some(_)) = (&args.group, &scenario) {
        return Err(CliError::usage("a scenario has its own calls, --group is for a machine", "leave one of them out"));
    }
    if let Some((text, name)) = scenario {
        given.without(
            &scenario::CALL,
            "a scenario says itself which calls there are",
            "change the scenario, or its keys with --vary; `collcast simulate MACHINE` takes it",
        )?;
        let level = match args.level {
            LevelArg::Auto => Level::Auto,
            LevelArg::Flows => Level::Flows,
            LevelArg::Slices => Level::Slices,
        };
        let (machine, call, vary) = (&args.machine, &args.call, args.vary.as_slice());
        let asked = scenario::Asked { machine, call, vary, level, trace: args.trace.as_ref(), output: &args.output };
        return scenario::run(&text, &name, &asked);
    }
    if !args.vary.is_empty() {
        return Err(CliError::usage(
            "--vary changes keys of a scenario, and this is none",
            format!(
                "give a scenario file or a built-in one: {}",
                collcast_scenarios::builtin::names().collect::<Vec<_>>().join(" ")
            ),
        ));
    }
    given.without(&["--level"], "it is how a scenario is simulated, and this is none", "leave it out")?;
    args.call.check(given)?;
    if args.call.split.is_some() {
        given.without(&["--trace"], "a timeline is of one communicator", "leave out --split")?;
    }
    if args.machine.name().is_none() {
        say!("note: no topology given; this is `dgx-h100` (others: collcast topo list)");
    }
    no_such_scenario(args.machine.name())?;
    if let Some(group) = &args.group {
        return group::run(args, group);
    }
    let mut call_args = args.call.clone();
    if call_args.size.is_none() && call_args.minbytes.is_none() {
        if call_args.counts.is_none() {
            say!("note: no size given; this is 64 MiB");
        }
        call_args.size = Some("64M".to_owned());
    }
    let topology = args.machine.load(args.machine.one_node_count()?)?;
    let (profile, inputs) = args.machine.load_profile(&topology)?;
    let told = call_args.told(&topology)?;
    let nodes = u32::try_from(topology.hosts().len()).unwrap_or(u32::MAX);
    let machines = BTreeMap::from([(nodes, topology)]);
    let points = points(&call_args, &machines)?;
    let topology = &machines[&nodes];
    let [point] = points.as_slice() else {
        return Err(CliError::usage(
            format!("simulate takes exactly one point, this is {}", points.len()),
            "give one size, algorithm, protocol and channel count, or use `collcast sweep`",
        ));
    };
    let settings = Settings { channels: point.channels, ..told.settings };
    let given = args.machine.graphs(topology, Some(point.call.ranks))?;
    let predictor = Predictor::new(topology, &profile).with_tuner(told.tuner).with_graphs(given);
    let prediction = point.predict(&predictor, &settings)?;

    let mut report = Report::new("simulate", env!("CARGO_PKG_VERSION"));
    report.predicted = true;
    report.inputs = inputs;
    report.assumptions = assumptions(topology, &profile, &settings, &prediction.beyond);
    report.assumptions.extend(told.assumptions);
    report.assumptions.extend(point.split_note());
    report.assumptions.extend(unsaid_line(&unsaid(&args.machine, &call_args, &machines)));
    if prediction.beyond.switches() {
        report.assumptions.push(UNMEASURED_SWITCHES.to_owned());
    }
    report.warnings.extend(told.warnings);
    report.warnings.extend(warnings(std::slice::from_ref(&prediction)));
    report.warnings.extend(explain::not_modelled(std::slice::from_ref(&prediction)));
    let mut row = row(point, &prediction, &settings);
    if args.output.format() == Format::Table {
        hide(&mut row, &asked_columns().map(|column| column.key));
    }
    report.tables.push(row);
    report.tables.push(facts(point, &prediction));
    report.tables.push(links(topology, &prediction));
    if call_args.explain_choice {
        report.tables.extend(explain::table_of_one(point, &predictor, &settings)?);
    }
    let (status, confidence, basis) = trust(&prediction.beyond);
    report.verdict = Some(Verdict {
        status,
        sentence: format!(
            "{} of {} over {} ranks takes {} ({:.1} GB/s of bus bandwidth), bound by {}",
            point.call.collective,
            point.call.size(),
            point.call.ranks,
            prediction.time,
            busbw(point, &prediction),
            prediction.bound_by()
        ),
        confidence,
        basis,
        next: None,
    });
    if let Some(path) = &args.trace {
        let (algorithm, protocol) = (prediction.algorithm, prediction.protocol);
        let settings = Settings { channels: settings.channels.or(prediction.tuned_channels), ..settings };
        let schedule = match &point.schedule {
            Some(imported) => predictor.imported_schedule(imported, &point.call, &settings)?,
            None => predictor.schedule(&point.call, algorithm, protocol, &settings)?,
        };
        if prediction.messages > MAX_TRACE_MESSAGES {
            return Err(CliError::usage(
                format!(
                    "the timeline would hold {} messages; at most {MAX_TRACE_MESSAGES} are written",
                    prediction.messages
                ),
                "trace a smaller size or fewer ranks: the pattern is the same",
            ));
        }
        let laid = lay(topology, &profile, &settings.transport, &schedule)
            .map_err(collcast_sim::predict::PredictError::from)?;
        let mut recorder = Recorder::default();
        let unfolded = Settings { fold: false, ..settings };
        match &point.schedule {
            Some(imported) => predictor.predict_imported(imported, &point.call, &unfolded, &mut recorder)?,
            None => predictor.predict_one(&point.call, algorithm, protocol, &unfolded, &mut recorder)?,
        };
        let bytes = recorder.write(topology, &schedule, &laid).map_err(|source| CliError::File {
            what: "write",
            path: path.clone(),
            source,
        })?;
        write(Some(path), &bytes)?;
        say!("note: timeline in {}; open it in ui.perfetto.dev", path.display());
    }
    args.output.print(&report, None)?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses what is neither a file nor like a machine, but like a scenario.
fn no_such_scenario(name: Option<&str>) -> Result<(), CliError> {
    let Some(name) =
        name.filter(|n| !Path::new(n).exists() && nearest(n, collcast_topologies::builtin::names()).is_none())
    else {
        return Ok(());
    };
    let names: Vec<&str> = collcast_scenarios::builtin::names().collect();
    match nearest(name, names.iter().copied()) {
        Some(near) => Err(CliError::usage(
            format!("`{name}` is neither a built-in machine or scenario nor a file: did you mean `{near}`?"),
            format!("scenarios: {}; machines: collcast topo list", names.join(" ")),
        )),
        None => Ok(()),
    }
}

fn row(point: &Point, p: &Prediction, settings: &Settings) -> Table {
    let columns = [
        Column::text("collective", "collective"),
        Column::text("algorithm", "algorithm"),
        Column::text("protocol", "protocol"),
        Column::number("channels", "ch"),
        Column::number("ranks", "ranks"),
        Column::number("nodes", "nodes"),
        Column::number("size_bytes", "size B"),
        Column::number("time_us", "time us"),
        Column::number("time_us_low", "low"),
        Column::number("time_us_high", "high"),
        Column::number("algbw_gbps", "algbw GB/s"),
        Column::number("busbw_gbps", "busbw GB/s"),
        Column::number("messages", "messages"),
        Column::text("folded", "folded"),
    ];
    let mut table = Table::new("rows", "", columns.into_iter().chain(asked_columns()));
    let cells = [
        point.call.collective.name().into(),
        p.algorithm.name().into(),
        p.protocol.name().into(),
        p.plan.channels.into(),
        point.call.ranks.into(),
        point.nodes.into(),
        point.call.size().0.into(),
        Cell::float(p.time.as_us(), 2),
        Cell::float(p.low.as_us(), 2),
        Cell::float(p.high.as_us(), 2),
        Cell::float(p.algbw_gb_per_s(point.call.size()), 2),
        Cell::float(busbw(point, p), 2),
        p.messages.into(),
        format!("{} -> {}", p.folded.0, p.folded.1).into(),
    ];
    table.push(cells.into_iter().chain(asked_cells(&point.call, settings)));
    table
}

fn facts(point: &Point, p: &Prediction) -> Table {
    let mut table =
        Table::new("facts", "how it comes about", [Column::text("fact", "fact"), Column::text("value", "value")]);
    let element = point.call.dtype.size();
    let chosen = match (point.algorithm, p.layer) {
        _ if p.algorithm == Algorithm::Msccl => "the file".to_owned(),
        _ if p.algorithm == Algorithm::Direct => "NCCL's rule for send and receive".to_owned(),
        (_, Some(layer)) => layer.to_string(),
        (Choice::Best, _) => "the fastest of all that were predicted".to_owned(),
        _ => "the user".to_owned(),
    };
    let values: [(&str, String); 10] = [
        ("chosen by", chosen),
        ("on the device", format!("{} (the host issues one every {})", p.kernel, p.issue)),
        ("threads a block", p.plan.threads.to_string()),
        (
            "chunk",
            format!(
                "{} in {} slice(s), {} slices fit a FIFO",
                collcast_sim::units::Bytes(p.plan.chunk * element),
                p.plan.slices,
                p.plan.fifo_slices
            ),
        ),
        ("schedule", p.proof.to_string()),
        ("schedule hash", schedule_hash(p.schedule_hash)),
        ("cannot be below", format!("{} ({})", p.bound.time, p.bound.what)),
        ("bound by", p.bound_by().to_owned()),
        ("busiest lane", format!("{:.0}% of its instruction rate", p.lane_utilisation * 100.0)),
        ("events", p.events.to_string()),
    ];
    for (fact, value) in values {
        table.push([fact.into(), value.into()]);
    }
    table
}

/// How commands print [`Schedule::identity`].
pub(crate) fn schedule_hash(hash: u64) -> String {
    format!("{hash:016x}")
}

fn link_name(topology: &Topology, link: LinkId) -> String {
    let (from, to) = topology.ends(link);
    format!("{} -> {}", topology.vertex(from).name, topology.vertex(to).name)
}

fn links(topology: &Topology, p: &Prediction) -> Table {
    let columns = [
        Column::text("link", "link (the first of its kind)"),
        Column::text("kind", "kind"),
        Column::number("rate_gbps", "rate GB/s"),
        Column::number("utilisation", "used %"),
    ];
    let mut table = Table::new("links", "busiest links, protocol overhead included", columns);
    for used in &p.busiest {
        let link = topology.link(used.link);
        table.push([
            link_name(topology, used.link).into(),
            link.kind.name().into(),
            Cell::float(link.rate.gb_per_s(), 1),
            Cell::float(used.utilisation * 100.0, 1),
        ]);
    }
    table
}

/// Keeps everything that happens, for the timeline.
#[derive(Default)]
struct Recorder {
    slices: Vec<(u32, usize, u64, SimTime, SimTime)>,
    messages: Vec<(u32, u64, SimTime, SimTime)>,
}

impl Observer for Recorder {
    fn slice(&mut self, lane: u32, instruction: usize, bytes: u64, from: SimTime, to: SimTime) {
        self.slices.push((lane, instruction, bytes, from, to));
    }

    fn message(&mut self, conn: u32, bytes: u64, from: SimTime, to: SimTime) {
        self.messages.push((conn, bytes, from, to));
    }
}

/// What an instruction does, in the field's words.
fn spelling(schedule: &Schedule, template: usize, instruction: usize) -> String {
    let op = &schedule.templates[template].ops()[instruction];
    let words = [
        (!op.recv.is_empty(), "recv"),
        (op.reduce, "reduce"),
        (op.dst.is_some(), "copy"),
        (!op.send.is_empty(), "send"),
    ];
    let words: Vec<&str> = words.into_iter().filter(|w| w.0).map(|w| w.1).collect();
    if words.is_empty() { "nop".to_owned() } else { words.join("+") }
}

impl Recorder {
    fn write(mut self, topology: &Topology, schedule: &Schedule, laid: &Laid<'_>) -> std::io::Result<Vec<u8>> {
        let fabric = u32::try_from(topology.hosts().len()).unwrap_or(u32::MAX);
        let mut trace = TraceWriter::new(Vec::new())?;
        for (host, info) in (0..).zip(topology.hosts()) {
            trace.process_name(host, &info.name)?;
        }
        trace.process_name(fabric, "links: messages in flight")?;
        let lanes = u64::from(schedule.lanes.max(1));
        let place = |lane: usize| {
            let w = &laid.wiring.workers[lane];
            let thread = (u64::from(w.rank.0) * 64 + u64::from(w.channel.0)) * lanes + u64::from(w.lane.0);
            (topology.host_of(w.rank).0, thread)
        };
        for (index, w) in laid.wiring.workers.iter().enumerate() {
            let (process, thread) = place(index);
            trace.thread_name(process, thread, &format!("rank {} channel {} lane {}", w.rank, w.channel, w.lane))?;
        }
        let category = format!("{}/{}", schedule.plan.algorithm, schedule.plan.protocol);
        self.slices.sort();
        for (lane, instruction, bytes, from, to) in self.slices {
            let (process, thread) = place(lane as usize);
            trace.event(&TraceEvent {
                name: spelling(schedule, laid.wiring.workers[lane as usize].template, instruction),
                category: category.clone(),
                process,
                thread,
                start: from,
                duration: to - from,
                args: vec![("bytes".to_owned(), bytes.to_string())],
            })?;
        }
        // How many messages are on each link, as steps up and down.
        let mut steps: BTreeMap<u32, BTreeMap<SimTime, i64>> = BTreeMap::new();
        for (conn, _, from, to) in self.messages {
            let resources: BTreeSet<u32> = laid.instance.conns[conn as usize].uses.iter().map(|u| u.0).collect();
            for resource in resources {
                let steps = steps.entry(resource).or_default();
                *steps.entry(from).or_default() += 1;
                *steps.entry(to.max(from + SimDuration(1))).or_default() -= 1;
            }
        }
        for (resource, steps) in steps {
            let collcast_sim::network::ResourceName::Link(link) = laid.names[resource as usize] else { continue };
            let mut in_flight = 0;
            for (time, step) in steps {
                in_flight += step;
                let values = vec![("messages".to_owned(), u64::try_from(in_flight).unwrap_or(0))];
                trace.counter(&Counter { name: link_name(topology, link), process: fabric, time, values })?;
            }
        }
        trace.finish()
    }
}

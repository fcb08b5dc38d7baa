//! `collcast simulate SCENARIO`: one training step, what of it is exposed, by what, and what would
//! help.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use collcast_reports::model::{Cell, Column, Report, Table, Verdict};
use collcast_reports::perfetto::{Counter, TraceEvent, TraceWriter};
use collcast_scenarios::file::{self, Scenario};
use collcast_scenarios::study::{self, Breakdown, Signed};
use collcast_scenarios::{builtin, device};
use collcast_sim::collective::Launch;
use collcast_sim::domain::Beyond;
use collcast_sim::ids::{LinkId, Rank};
use collcast_sim::predict::{Predictor, Settings};
use collcast_sim::profile::Profile;
use collcast_sim::topology::{Topology, VertexKind};
use collcast_sim::units::{Bandwidth, SimDuration, SimTime};
use collcast_sim::workload::{Device, Level, Mechanisms, OpGraph, Simulator, Step, WorkloadError};
use rayon::prelude::*;

use crate::output::OutputArgs;
use crate::output::write;
use crate::selectors::{CallArgs, MachineArgs, assumptions, trust};
use collcast::Error as CliError;
use collcast::files::read_text;

/// Most variants of one `--vary`.
const MAX_VARIANTS: usize = 200;
/// Ranks that tables show, the first of their roles.
const SHOWN_RANKS: usize = 8;

/// Options of a call, or of the search for its channels, that no call of a scenario heeds.
pub(crate) const CALL: [&str; 18] = [
    "--size",
    "--minbytes",
    "--maxbytes",
    "--stepfactor",
    "--ranks",
    "--split",
    "--schedule",
    "--collective",
    "--algorithm",
    "--protocol",
    "--channels",
    "--dtype",
    "--op",
    "--root",
    "--in-place",
    "--counts",
    "--cold",
    "--explain-choice",
];

/// What `simulate` takes beside a scenario.
pub(crate) struct Asked<'a> {
    pub(crate) machine: &'a MachineArgs,
    pub(crate) call: &'a CallArgs,
    pub(crate) vary: &'a [String],
    pub(crate) level: Level,
    pub(crate) trace: Option<&'a PathBuf>,
    pub(crate) output: &'a OutputArgs,
}

/// The text of a scenario and its name for messages, where the argument is one: a built-in name, or
/// a file that says so.
pub(crate) fn find(name: &str) -> Option<(String, String)> {
    if let Some(text) = builtin::text(name) {
        return Some((text.to_owned(), format!("{name} (built in)")));
    }
    let path = Path::new(name);
    if path.extension().is_none_or(|e| e != "toml") || !path.is_file() {
        return None;
    }
    let text = read_text("read", path).ok()?;
    let says = text.lines().any(|line| line.trim_start().starts_with("schema") && line.contains("collcast/scenario/"));
    says.then(|| (text, name.to_owned()))
}

/// A scenario with everything that it runs on.
struct Loaded {
    scenario: Scenario,
    topology: Topology,
    profile: Profile,
    device: Device,
    settings: Settings,
    inputs: Vec<collcast_reports::model::Input>,
    notes: Vec<String>,
    warnings: Vec<String>,
}

impl Loaded {
    fn new(text: &str, name: &str, asked: &Asked<'_>) -> Result<Self, CliError> {
        let scenario = file::read(text, name)?;
        let own = &scenario.machine;
        let told = asked.machine;
        let machine = MachineArgs {
            machine: None,
            topology: Some(own.topology.clone()),
            nodes: if told.nodes.is_empty() { own.nodes.into_iter().collect() } else { told.nodes.clone() },
            gpus: told.gpus.or(own.gpus),
            profile: if told.profile.is_empty() { own.profile.clone() } else { told.profile.clone() },
            placement: told.placement.clone(),
            graph: told.graph.clone(),
        };
        let topology = machine.load(machine.one_node_count()?)?;
        let (profile, inputs) = machine.load_profile(&topology)?;
        let told = asked.call.told(&topology)?;
        if told.tuner.is_some() || asked.machine.graph.is_some() {
            return Err(CliError::usage(
                "a scenario's calls take NCCL's own choice and channels: no tuner's table, no graph file",
                "leave out --graph and NCCL_TUNER_CONFIG_FILE; `collcast simulate MACHINE` takes them for one call",
            ));
        }
        // Frameworks run a process a GPU.
        let launch = if asked.call.launch.is_some() { told.settings.launch } else { Launch::Processes };
        let device = device(&topology).ok_or_else(|| {
            CliError::usage(
                format!("nothing is known of the GPUs of `{}`", topology.name),
                "give their kind in the topology file, such as kind = \"H100-SXM5-80GB\"",
            )
        })?;
        let slow = slowed(&topology, &scenario.slow_links);
        Ok(Self {
            scenario,
            topology: slow,
            profile,
            device,
            settings: Settings { launch, ..told.settings },
            inputs,
            notes: told.notes,
            warnings: told.warnings,
        })
    }

    fn simulator(&self) -> Simulator<'_> {
        Simulator::new(Predictor::new(&self.topology, &self.profile), self.device, self.settings)
    }

    /// Whether the profile was made elsewhere.
    fn beyond(&self) -> Beyond {
        self.simulator().predictor().beyond(self.topology.ranks(), self.settings.launch)
    }

    fn graph(&self) -> OpGraph {
        self.scenario.graph(&self.profile, self.device)
    }
}

/// The machine with the links of some ranks' GPUs, and of the NICs with the same numbers, slower.
fn slowed(topology: &Topology, slow: &[(u32, f64)]) -> Topology {
    if slow.is_empty() {
        return topology.clone();
    }
    let share = |id: LinkId| {
        let (from, to) = topology.ends(id);
        let touches = |rank: u32| {
            let gpu = topology.gpu_of(Rank(rank));
            let (host, index) = (topology.host_of(Rank(rank)), topology.gpu(gpu).map(|g| g.index));
            [from, to].into_iter().any(|end| {
                let vertex = topology.vertex(end);
                let nic =
                    matches!(&vertex.kind, VertexKind::Nic(n) if Some(n.index) == index && vertex.host == Some(host));
                end == gpu || nic
            })
        };
        slow.iter().filter(|(rank, _)| *rank < topology.ranks() && touches(*rank)).map(|s| s.1).product::<f64>()
    };
    topology.with_links(|id, link| scale(link, share(id)))
}

fn scale(link: collcast_sim::topology::Link, share: f64) -> collcast_sim::topology::Link {
    let rate = Bandwidth::from_gb_per_s(link.rate.gb_per_s() * share);
    collcast_sim::topology::Link { rate, ..link }
}

fn failed(error: WorkloadError) -> CliError {
    match error {
        WorkloadError::Predict(error) => error.into(),
        other => CliError::usage(other.to_string(), "change the layout or the strategy of the scenario"),
    }
}

fn ms(time: SimDuration) -> f64 {
    time.as_us() / 1e3
}

fn signed(time: Signed) -> f64 {
    time as f64 / 1e9
}

pub(crate) fn run(text: &str, name: &str, asked: &Asked<'_>) -> Result<ExitCode, CliError> {
    let variants = variants(text, name, asked.vary)?;
    check_tensor(text, name, &variants, asked.vary)?;
    let mut report = Report::new("simulate", env!("CARGO_PKG_VERSION"));
    report.predicted = true;
    let mut rows = rows_table(asked.vary.iter().any(|v| !v.is_empty()));
    let Some(((label, text), others)) = variants.split_first() else {
        return Err(CliError::usage("there is nothing to simulate", "give a scenario"));
    };
    let named = |label: &str| if label.is_empty() { name.to_owned() } else { format!("{name} with {label}") };
    let loaded = Loaded::new(text, &named(label), asked)?;
    let simulator = loaded.simulator();
    let (graph, step, parts) = simulated(label, &loaded, &simulator, asked, &mut rows)?;
    let mut beyond = vec![loaded.beyond()];
    for (label, text) in others {
        let loaded = Loaded::new(text, &named(label), asked)?;
        simulated(label, &loaded, &loaded.simulator(), asked, &mut rows)?;
        beyond.push(loaded.beyond());
    }
    let beyond: Beyond = beyond.into_iter().collect();
    report.inputs.clone_from(&loaded.inputs);
    report.assumptions = assumptions(&loaded.topology, &loaded.profile, &loaded.settings, &beyond);
    report.assumptions.insert(0, format!("scenario {}: {}", loaded.scenario.name, loaded.scenario.description));
    report.assumptions.push(format!(
        "communication as {}; ranks of the same role once: {} -> {}",
        if step.slices { "slices, all at once" } else { "flows, each call simulated alone first" },
        graph.ranks.len(),
        step.ranks.len()
    ));
    report.assumptions.extend(loaded.notes.clone());
    report.warnings.extend(loaded.warnings.clone());
    report.tables.push(rows);
    let mut next = None;
    if variants.len() == 1 {
        report.tables.push(parts_table(&parts));
        report.tables.push(kinds_table(&step));
        report.tables.push(streams_table(&graph, &step));
        report.tables.push(path_table(&step));
        if !step.links.is_empty() {
            report.tables.push(links_table(&loaded.topology, &step));
        }
        disturbed(&loaded, &simulator, &graph, &mut report)?;
        if loaded.scenario.layout.data <= MOST_ADVISED {
            let (table, best) = advice(text, name, asked, (&loaded, &simulator), &step)?;
            report.tables.push(table);
            next = best;
        } else {
            report.assumptions.push(format!(
                "what would help is not tried with more than {MOST_ADVISED} ranks in a communicator (it takes minutes); \
                 try changes with --vary, such as --vary communication.channels=8,16"
            ));
        }
    }
    let exposed = parts.step.as_us() - parts.compute.as_us();
    let (status, confidence, basis) = trust(&beyond);
    report.verdict = Some(Verdict {
        status,
        sentence: format!(
            "a step takes {:.3} ms, {:.3} ms ({:.0}%) of it exposed: interference {:.3}, launches {:.3}, framework {:.3}, not hidden {:.3} ms",
            ms(parts.step),
            exposed / 1e3,
            100.0 * exposed / parts.step.as_us().max(1e-9),
            signed(parts.interference),
            signed(parts.launch),
            signed(parts.framework),
            signed(parts.unhidden),
        ),
        confidence,
        basis,
        next,
    });
    if let Some(path) = asked.trace {
        let bytes = timeline(&loaded.topology, &graph, &step).map_err(|source| CliError::File {
            what: "write",
            path: path.clone(),
            source,
        })?;
        write(Some(path), &bytes)?;
        say!("note: timeline in {}; open it in ui.perfetto.dev", path.display());
    }
    asked.output.print(&report, None)?;
    Ok(ExitCode::SUCCESS)
}

/// Simulates a variant and adds its row.
fn simulated(
    label: &str,
    loaded: &Loaded,
    simulator: &Simulator<'_>,
    asked: &Asked<'_>,
    rows: &mut Table,
) -> Result<(OpGraph, Step, Breakdown), CliError> {
    let graph = loaded.graph();
    let step = simulator.run(&graph, Mechanisms::default(), asked.level).map_err(failed)?;
    let parts = study::breakdown(simulator, &graph, &step).map_err(failed)?;
    push_row(rows, label, loaded, &step, &parts);
    Ok((graph, step, parts))
}

/// The scenario as it is, or one for each combination of `--vary key=a,b,c`, with a label.
fn variants(text: &str, name: &str, vary: &[String]) -> Result<Vec<(String, String)>, CliError> {
    let mut all = vec![(String::new(), text.to_owned())];
    for one in vary {
        let Some((key, values)) = one.split_once('=') else {
            return Err(CliError::usage(
                format!("--vary {one} has no value"),
                "give --vary key=a,b,c, such as --vary \"data_parallel.bucket=5 MiB,25 MiB\"",
            ));
        };
        let mut more = Vec::new();
        for (label, text) in &all {
            for value in values.split(',').map(str::trim) {
                let changed = file::with_value(text, key.trim(), value)
                    .map_err(|e| CliError::usage(format!("--vary {one}: {e}"), "keys are dotted: layers.0.count"))?;
                let comma = if label.is_empty() { "" } else { ", " };
                more.push((format!("{label}{comma}{key}={value}"), changed));
            }
        }
        all = more;
        if all.len() > MAX_VARIANTS {
            return Err(CliError::usage(
                format!("{name} has {} variants; at most {MAX_VARIANTS} are run", all.len()),
                "vary fewer values",
            ));
        }
    }
    Ok(all)
}

/// Refuses another number of tensor-parallel ranks with the same layers, which say what one of them computes.
fn check_tensor(text: &str, name: &str, variants: &[(String, String)], vary: &[String]) -> Result<(), CliError> {
    if !vary.iter().any(|v| v.starts_with("layout.tensor")) || vary.iter().any(|v| v.starts_with("layers.")) {
        return Ok(());
    }
    let own = file::read(text, name)?.layout.tensor;
    for (label, text) in variants {
        if file::read(text, &format!("{name} with {label}"))?.layout.tensor != own {
            return Err(CliError::usage(
                format!(
                    "--vary {label}: layers say what one of {own} tensor-parallel ranks computes, and would with any number of them"
                ),
                "vary the times or shapes of layers too (--vary layers.0.forward=...), or write a scenario for each number",
            ));
        }
    }
    Ok(())
}

fn rows_table(varied: bool) -> Table {
    let mut columns = Vec::new();
    if varied {
        columns.push(Column::text("variant", "variant"));
    }
    columns.extend([
        Column::number("ranks", "ranks"),
        Column::number("step_ms", "step ms"),
        Column::number("compute_ms", "compute ms"),
        Column::number("exposed_ms", "exposed ms"),
        Column::number("interference_ms", "interference"),
        Column::number("launch_ms", "launch"),
        Column::number("framework_ms", "framework"),
        Column::number("unhidden_ms", "not hidden"),
        Column::number("bubble_ms", "bubble ms"),
        Column::number("events", "events"),
    ]);
    Table::new("rows", "", columns)
}

fn push_row(table: &mut Table, label: &str, loaded: &Loaded, step: &Step, parts: &Breakdown) {
    let mut row: Vec<Cell> = Vec::new();
    if table.columns.len() == 11 {
        row.push(label.into());
    }
    row.extend([
        loaded.scenario.layout.ranks().into(),
        Cell::float(ms(parts.step), 3),
        Cell::float(ms(parts.compute), 3),
        Cell::float(ms(parts.step) - ms(parts.compute), 3),
        Cell::float(signed(parts.interference), 3),
        Cell::float(signed(parts.launch), 3),
        Cell::float(signed(parts.framework), 3),
        Cell::float(signed(parts.unhidden), 3),
        Cell::float(ms(parts.compute) - ms(parts.busiest), 3),
        step.events.into(),
    ]);
    table.rows.push(row);
}

fn parts_table(parts: &Breakdown) -> Table {
    let columns = [Column::text("part", "part"), Column::number("time_ms", "ms"), Column::number("share", "% of step")];
    let mut table =
        Table::new("parts", "where the step goes: each part left out in turn, so that they add up", columns);
    let share = |value: f64| 100.0 * value / ms(parts.step).max(1e-12);
    let bubble = ms(parts.compute) - ms(parts.busiest);
    for (part, value) in [
        ("computation of the busiest rank", ms(parts.busiest)),
        ("waits for other ranks (bubble, stragglers)", bubble),
        ("not hidden: last calls, and those that computation waits for", signed(parts.unhidden)),
        ("copies of the framework", signed(parts.framework)),
        ("launches, and streams that wait for each other", signed(parts.launch)),
        ("interference: shared SMs and memory, kernels that wait for a turn", signed(parts.interference)),
    ] {
        table.push([part.into(), Cell::float(value, 3), Cell::float(share(value), 1)]);
    }
    table
}

fn kinds_table(step: &Step) -> Table {
    let columns = [
        Column::number("rank", "rank"),
        Column::number("like", "like it"),
        Column::text("kind", "communication"),
        Column::number("calls", "calls"),
        Column::number("busy_ms", "busy ms"),
        Column::number("exposed_ms", "exposed ms"),
        Column::text("how", "how"),
    ];
    let mut table =
        Table::new("communication", "communication by kind: exposed is without any computation beside it", columns);
    for rank in step.ranks.iter().take(SHOWN_RANKS) {
        for (kind, (calls, busy, exposed)) in &rank.communication {
            table.push([
                rank.rank.0.into(),
                (rank.count as u64).into(),
                kind.to_string().into(),
                (*calls as u64).into(),
                Cell::float(ms(*busy), 3),
                Cell::float(ms(*exposed), 3),
                step.how.get(kind).cloned().unwrap_or_default().into(),
            ]);
        }
    }
    table
}

fn streams_table(graph: &OpGraph, step: &Step) -> Table {
    let columns = [
        Column::number("rank", "rank"),
        Column::text("stream", "stream"),
        Column::number("busy_ms", "busy ms"),
        Column::number("idle_ms", "idle ms"),
    ];
    let mut table = Table::new("streams", "streams", columns);
    for rank in step.ranks.iter().take(SHOWN_RANKS) {
        for (stream, busy) in graph.programs[rank.program].streams.iter().zip(&rank.busy) {
            let busy = ms(*busy);
            table.push([
                rank.rank.0.into(),
                stream.name.to_string().into(),
                Cell::float(busy, 3),
                Cell::float(ms(step.time) - busy, 3),
            ]);
        }
    }
    table
}

/// The critical path, added up by what its time went to.
fn path_table(step: &Step) -> Table {
    let columns = [
        Column::text("what", "on the critical path"),
        Column::number("parts", "parts"),
        Column::number("time_ms", "ms"),
        Column::number("share", "% of step"),
        Column::text("bound_by", "bound by"),
    ];
    let mut table = Table::new("path", "the way that led to the end of the step", columns);
    let mut sums: BTreeMap<(&str, &str), (u64, f64)> = BTreeMap::new();
    for part in &step.path {
        let sum = sums.entry((&part.what, part.bound_by.unwrap_or(""))).or_default();
        *sum = (sum.0 + 1, sum.1 + ms(part.to - part.from));
    }
    let mut rows: Vec<_> = sums.into_iter().collect();
    rows.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
    for ((what, bound_by), (parts, time)) in rows {
        let share = 100.0 * time / ms(step.time).max(1e-12);
        table.push([what.into(), parts.into(), Cell::float(time, 3), Cell::float(share, 1), bound_by.into()]);
    }
    table
}

fn link_name(topology: &Topology, link: LinkId) -> String {
    let (from, to) = topology.ends(link);
    format!("{} -> {}", topology.vertex(from).name, topology.vertex(to).name)
}

fn links_table(topology: &Topology, step: &Step) -> Table {
    let columns = [Column::text("link", "link where calls met"), Column::number("utilisation", "used %")];
    let mut table = Table::new("links", "links that different calls shared (the first of those alike)", columns);
    for (link, share) in step.links.iter().take(8) {
        table.push([link_name(topology, *link).into(), Cell::float(share * 100.0, 1)]);
    }
    table
}

/// What stragglers and jitter cost: the step with and without.
fn disturbed(loaded: &Loaded, simulator: &Simulator<'_>, graph: &OpGraph, report: &mut Report) -> Result<(), CliError> {
    let scenario = &loaded.scenario;
    if scenario.stragglers.is_empty() && scenario.jitter.is_none() {
        return Ok(());
    }
    let columns = [
        Column::text("case", "case"),
        Column::number("step_ms", "step ms"),
        Column::number("low_ms", "shortest"),
        Column::number("high_ms", "longest"),
        Column::text("seeds", "seeds"),
    ];
    let mut table = Table::new("disturbed", "stragglers and jitter", columns);
    let mut even = graph.clone();
    for rank in &mut even.ranks {
        (rank.pace_ppm, rank.late) = (1_000_000, SimDuration::ZERO);
    }
    let mut cases = vec![("as it is", graph), ("without stragglers", &even)];
    if scenario.stragglers.is_empty() {
        cases.pop();
    }
    for (name, graph) in cases {
        let step = simulator.run(graph, Mechanisms::default(), Level::Flows).map_err(failed)?;
        table.push([name.into(), Cell::float(ms(step.time), 3), Cell::Missing, Cell::Missing, "".into()]);
        if let Some((jitter, seeds)) = scenario.jitter {
            let spread = study::spread(simulator, graph, jitter, seeds).map_err(failed)?;
            let [low, median, high] = spread.quantiles();
            table.push([
                format!("{name}, with jitter (median)").into(),
                Cell::float(ms(median), 3),
                Cell::float(ms(low), 3),
                Cell::float(ms(high), 3),
                format!("{} to {}", jitter.seed, jitter.seed + u64::from(seeds) - 1).into(),
            ]);
        }
    }
    report.tables.push(table);
    Ok(())
}

/// Ranks of a communicator up to which [`advice`] is asked for: it simulates the step some 15 times.
const MOST_ADVISED: u32 = 128;

/// What would help: the step again, with one thing changed.
fn advice(
    text: &str,
    name: &str,
    asked: &Asked<'_>,
    (loaded, simulator): (&Loaded, &Simulator<'_>),
    step: &Step,
) -> Result<(Table, Option<String>), CliError> {
    use collcast_scenarios::step::DataParallel;
    let mut changes: Vec<(&str, &str, Vec<&str>)> = vec![
        ("channels", "communication.channels", vec!["4", "8", "16", "32"]),
        ("algorithm", "communication.algorithm", vec!["ring", "tree", "nvls"]),
    ];
    match loaded.scenario.data_parallel {
        DataParallel::Ddp(_) if loaded.scenario.layout.data > 1 => {
            changes.push(("bucket size", "data_parallel.bucket", vec!["5 MiB", "25 MiB", "100 MiB", "400 MiB"]));
            changes.push((
                "gradients stay in buckets (gradient_as_bucket_view)",
                "data_parallel.bucket_view",
                vec!["true"],
            ));
        }
        DataParallel::AtEnd | DataParallel::OneGpu => changes.push(("strategy", "data_parallel.kind", vec!["ddp"])),
        DataParallel::Fsdp(_) => {
            changes.push(("prefetch", "data_parallel.prefetch", vec!["0", "1", "2"]));
            changes.push(("keep parameters after the forward pass", "data_parallel.reshard", vec!["false"]));
        }
        _ => {}
    }
    if loaded.scenario.layout.pipeline > 1 {
        changes.push(("sends by copy engines (no SM)", "communication.send", vec!["copy_engine"]));
    }
    let mut rows: Vec<(String, String, f64)> = Vec::new();
    let all: Vec<(usize, &str)> =
        changes.iter().enumerate().flat_map(|(at, change)| change.2.iter().map(move |&value| (at, value))).collect();
    // What the machine cannot do is no advice.
    let time_of = |&(at, value): &(usize, &str)| {
        let changed = file::with_value(text, changes[at].1, value).ok()?;
        let graph = file::read(&changed, name).ok()?.graph(&loaded.profile, loaded.device);
        Some(ms(simulator.run(&graph, Mechanisms::default(), asked.level).ok()?.time))
    };
    let times: Vec<Option<f64>> = all.par_iter().map(time_of).collect();
    for (at, (what, key, _)) in changes.iter().enumerate() {
        let tried = all.iter().zip(&times).filter(|((of, _), _)| *of == at);
        let best = tried.filter_map(|((_, value), time)| time.map(|time| (time, value)));
        if let Some((time, value)) = best.min_by(|a, b| a.0.total_cmp(&b.0)) {
            rows.push(((*what).to_owned(), format!("{key}={value}"), time));
        }
    }
    let topology = &loaded.topology;
    let several = topology.hosts().len() > 1;
    for (what, network) in [("network twice as fast", true), ("links inside hosts twice as fast", false)] {
        if network && !several {
            continue;
        }
        let faster = topology.with_links(|_, l| if l.kind.is_network() == network { scale(l, 2.0) } else { l });
        let simulator = Simulator::new(Predictor::new(&faster, &loaded.profile), loaded.device, loaded.settings);
        let graph = loaded.graph();
        let time = simulator.run(&graph, Mechanisms::default(), asked.level).map_err(failed)?.time;
        rows.push((what.to_owned(), String::new(), ms(time)));
    }
    rows.sort_by(|a, b| a.2.total_cmp(&b.2));
    let columns = [
        Column::text("change", "change"),
        Column::text("setting", "setting (the best that was tried)"),
        Column::number("step_ms", "step ms"),
        Column::number("gain", "gain %"),
    ];
    let mut table = Table::new("advice", "what would help, each simulated", columns);
    let now = ms(step.time);
    let mut next = None;
    for (what, setting, time) in rows {
        let gain = 100.0 * (1.0 - time / now.max(1e-12));
        if next.is_none() && gain > 1.0 && !setting.is_empty() {
            next = Some(format!("{what}: {setting} would save {gain:.1}%"));
        }
        table.push([what.into(), setting.into(), Cell::float(time, 3), Cell::float(gain, 1)]);
    }
    Ok((table, next))
}

/// Streams of every rank that was run, and how much of their busiest links calls use.
fn timeline(topology: &Topology, graph: &OpGraph, step: &Step) -> std::io::Result<Vec<u8>> {
    let mut trace = TraceWriter::new(Vec::new())?;
    let links = u32::try_from(step.ranks.len()).unwrap_or(u32::MAX);
    for (process, rank) in (0..).zip(&step.ranks) {
        trace.process_name(process, &format!("rank {} (and {} like it)", rank.rank, rank.count - 1))?;
        let program = &graph.programs[rank.program];
        for (thread, stream) in (0..).zip(&program.streams) {
            trace.thread_name(process, thread, &stream.name)?;
        }
        for activity in &rank.activities {
            let op = &program.ops[activity.op];
            if activity.end == activity.start {
                continue;
            }
            let waits = activity.moves - activity.start;
            let mut args = vec![("kind".to_owned(), op.kind.to_string())];
            if waits.0 > 0 {
                args.push(("waits for other ranks".to_owned(), waits.to_string()));
            }
            trace.event(&TraceEvent {
                name: op.label.to_string(),
                category: op.kind.to_string(),
                process,
                thread: op.stream as u64,
                start: activity.start,
                duration: activity.end - activity.start,
                args,
            })?;
        }
    }
    trace.process_name(links, "links: % used by the calls under way")?;
    let mut steps: BTreeMap<LinkId, BTreeMap<SimTime, i64>> = BTreeMap::new();
    let mut seen: BTreeSet<(LinkId, SimTime, SimTime)> = BTreeSet::new();
    for (rank, op, shares) in &step.link_shares {
        let Some(activity) = step.ranks[*rank].activities.iter().find(|a| a.op == *op) else { continue };
        for &(link, share) in shares {
            // Both ends of a call name it.
            if activity.moves < activity.end && seen.insert((link, activity.moves, activity.end)) {
                let percent = (share * 100.0).round() as i64;
                let steps = steps.entry(link).or_default();
                *steps.entry(activity.moves).or_default() += percent;
                *steps.entry(activity.end).or_default() -= percent;
            }
        }
    }
    for (link, steps) in steps {
        let mut used = 0;
        for (time, change) in steps {
            used += change;
            let values = vec![("used".to_owned(), u64::try_from(used).unwrap_or(0))];
            trace.counter(&Counter { name: link_name(topology, link), process: links, time, values })?;
        }
    }
    trace.finish()
}

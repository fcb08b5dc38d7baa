//! `collcast sweep`: a table over sizes, algorithms, protocols, channels and node counts.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::process::ExitCode;

use collcast_reports::model::{Cell, Column, Report, Table, Verdict};
use collcast_reports::nccl_tests::{self, NcclTests, NcclTestsRow};
use collcast_sim::collective::{Algorithm, Collective, Launch};
use collcast_sim::domain::Beyond;
use collcast_sim::ids::Rank;
use collcast_sim::predict::{Choice, Prediction, Predictor, Settings};
use collcast_sim::schedule::valid_algorithms;
use collcast_sim::topology::Topology;
use rayon::prelude::*;

use crate::explain;
use crate::output::{Format, OutputArgs, with_nccl_tests};
use crate::scaling;
use crate::selectors::{
    CallArgs, MachineArgs, Named, Point, Told, UNMEASURED_SWITCHES, asked_cells, asked_columns, assumptions,
    default_sizes, hide, points, trust, unsaid, unsaid_line,
};
use collcast::Error as CliError;

#[derive(clap::Args, Debug)]
#[command(
    after_help = "Sizes default to 8:8GiB:2. `auto` is what NCCL picks: by its environment (--env), the tuner plugin \
of the machine, or its cost table. Where that has no schedule here, NCCL's next choice is \
predicted and the output says so. `best` is what this forecast finds fastest. Several node counts \
(--nodes 2,4,8) print how bandwidth scales and where the choice changes; every row is in \
--format csv and json."
)]
#[command(mut_arg("format", with_nccl_tests))]
#[command(mut_arg("size", default_sizes("8:8GiB:2")))]
pub(crate) struct Args {
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    call: CallArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn run(args: &Args, given: &Named) -> Result<ExitCode, CliError> {
    args.call.check(given)?;
    if args.machine.name().is_none() {
        say!("note: no topology given; this is `dgx-h100` (others: collcast topo list)");
    }
    let machines: BTreeMap<u32, Topology> = if args.machine.nodes.is_empty() {
        let topology = args.machine.load(None)?;
        BTreeMap::from([(u32::try_from(topology.hosts().len()).unwrap_or(u32::MAX), topology)])
    } else {
        args.machine.nodes.iter().map(|&n| Ok((n, args.machine.load(Some(n))?))).collect::<Result<_, CliError>>()?
    };
    let Some(largest) = machines.values().last() else {
        return Err(CliError::usage("--nodes is an empty list", "give at least one number"));
    };
    let (profile, inputs) = args.machine.load_profile(largest)?;
    let told: BTreeMap<u32, Told> =
        machines.iter().map(|(&n, t)| Ok((n, args.call.told(t)?))).collect::<Result<_, CliError>>()?;
    let settings: BTreeMap<u32, Settings> = told.iter().map(|(&n, told)| (n, told.settings)).collect();
    let points = points(&args.call, &machines)?;
    let predictors: BTreeMap<u32, Predictor<'_>> = machines
        .iter()
        .map(|(&n, t)| {
            let given = args.machine.graphs(t, args.call.ranks)?;
            Ok((n, Predictor::new(t, &profile).with_tuner(told[&n].tuner.clone()).with_graphs(given)))
        })
        .collect::<Result<_, CliError>>()?;
    let predictions = predict_all(&points, &predictors, &settings)?;

    let mut report = Report::new("sweep", env!("CARGO_PKG_VERSION"));
    report.predicted = true;
    report.inputs = inputs;
    let beyond: Beyond = predictions.iter().map(|p| p.beyond.clone()).collect();
    let first = settings.values().next().copied().unwrap_or_default();
    report.assumptions = assumptions(largest, &profile, &first, &beyond);
    if let Some(told) = told.values().next() {
        report.assumptions.extend(told.notes.clone());
        report.warnings.extend(told.warnings.clone());
    }
    report.assumptions.extend(points.first().and_then(|point| point.split_note()));
    if beyond.switches() {
        report.assumptions.push(UNMEASURED_SWITCHES.to_owned());
    }
    report.warnings.extend(warnings(&predictions));
    report.warnings.extend(explain::not_modelled(&predictions));
    let mut unsaid = unsaid(&args.machine, &args.call, &machines);
    if args.output.format() == Format::NcclTests {
        unsaid.extend(unsaid_in_text(&points, &first));
    }
    report.assumptions.extend(unsaid_line(&unsaid));
    let mut rows = table(&points, &predictions, &settings);
    let scaling = scaling::tables(&points, &predictions);
    if args.output.format() == Format::Table {
        for_people(&mut rows, &points);
    }
    // On a screen the tables over node counts say what hundreds of rows would hide.
    if args.output.format() != Format::Table || scaling.is_empty() {
        report.tables.push(rows);
    }
    report.tables.extend(scaling);
    if args.call.explain_choice {
        report.tables.extend(explain::tables(&points, &predictors, &settings)?);
    }
    report.verdict = verdict(&points, &predictions, &beyond);
    let nccl_tests = match args.output.format() {
        Format::NcclTests => {
            let in_place = predict_all(&in_place(&points), &predictors, &settings)?;
            Some(nccl_tests_text((&points, &predictions, &in_place), largest, &first, &report)?)
        }
        _ => None,
    };
    args.output.print(&report, nccl_tests)?;
    Ok(ExitCode::SUCCESS)
}

/// Predicts all points in parallel; the result is in the order of the points.
fn predict_all(
    points: &[Point],
    predictors: &BTreeMap<u32, Predictor<'_>>,
    settings: &BTreeMap<u32, Settings>,
) -> Result<Vec<Prediction>, CliError> {
    let bar = if std::io::stderr().is_terminal() && points.len() > 16 {
        indicatif::ProgressBar::new(points.len() as u64)
    } else {
        indicatif::ProgressBar::hidden()
    };
    // Large points first: they take longest.
    let mut order: Vec<usize> = (0..points.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse((points[i].nodes, points[i].call.size())));
    let mut done: Vec<(usize, Prediction)> = order
        .into_par_iter()
        .with_max_len(1)
        .map(|index| {
            let point = &points[index];
            let settings = Settings { channels: point.channels, ..settings[&point.nodes] };
            let prediction = point.predict(&predictors[&point.nodes], &settings)?;
            bar.inc(1);
            Ok((index, prediction))
        })
        .collect::<Result<_, CliError>>()?;
    bar.finish_and_clear();
    done.sort_by_key(|(index, _)| *index);
    Ok(done.into_iter().map(|(_, p)| p).collect())
}

/// The warnings of predictions, each kind and place once, with how many of them it is about.
pub(crate) fn warnings(predictions: &[Prediction]) -> Vec<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for warning in predictions.iter().flat_map(|p| &p.warnings) {
        *counts.entry(warning.to_string()).or_default() += 1;
    }
    let of = predictions.len();
    let with_count = |(text, count)| if of > 1 { format!("{text} ({count} of {of} rows)") } else { text };
    counts.into_iter().map(with_count).collect()
}

/// Bus bandwidth in GB/s.
pub(crate) fn busbw(point: &Point, prediction: &Prediction) -> f64 {
    prediction.algbw_gb_per_s(point.call.size()) * point.call.collective.bus_factor(point.call.ranks)
}

fn table(points: &[Point], predictions: &[Prediction], settings: &BTreeMap<u32, Settings>) -> Table {
    let columns = [
        Column::text("collective", "collective"),
        Column::number("nodes", "nodes"),
        Column::number("ranks", "ranks"),
        Column::number("size_bytes", "size B"),
        Column::text("algorithm", "algorithm"),
        Column::text("protocol", "protocol"),
        Column::number("channels", "ch"),
        Column::number("time_us", "time us"),
        Column::number("time_us_low", "low"),
        Column::number("time_us_high", "high"),
        Column::number("algbw_gbps", "algbw GB/s"),
        Column::number("busbw_gbps", "busbw GB/s"),
        Column::text("bound", "bound by"),
        Column::number("messages", "messages"),
        Column::text("folded", "folded"),
        Column::text("chosen_by", "chosen by"),
        Column::text("instead_of", "instead of"),
    ];
    let mut table = Table::new("rows", "", columns.into_iter().chain(asked_columns()));
    for (point, p) in points.iter().zip(predictions) {
        let cells = [
            point.call.collective.name().into(),
            point.nodes.into(),
            point.call.ranks.into(),
            point.call.size().0.into(),
            p.algorithm.name().into(),
            p.protocol.name().into(),
            p.plan.channels.into(),
            Cell::float(p.time.as_us(), 2),
            Cell::float(p.low.as_us(), 2),
            Cell::float(p.high.as_us(), 2),
            Cell::float(p.algbw_gb_per_s(point.call.size()), 2),
            Cell::float(busbw(point, p), 2),
            p.bound_by().into(),
            p.messages.into(),
            format!("{} -> {}", p.folded.0, p.folded.1).into(),
            p.layer.map(|layer| layer.to_string()).into(),
            p.instead_of.map(|(a, p)| format!("{a}/{p}, not modelled")).into(),
        ];
        table.push(cells.into_iter().chain(asked_cells(&point.call, &settings[&point.nodes])));
    }
    table
}

/// For a screen: what is the same in every row goes into the title, what only files need goes.
fn for_people(table: &mut Table, points: &[Point]) {
    let first = &points[0];
    table.title = format!("{} over {} ranks", first.call.collective, first.call.ranks);
    let same = |f: &dyn Fn(&Point) -> u64| points.iter().all(|p| f(p) == f(first));
    let asked = asked_columns().map(|column| column.key);
    let mut hidden = [&["messages", "folded", "chosen_by"], &asked[..]].concat();
    let instead_of = table.columns.iter().position(|column| column.key == "instead_of");
    if table.rows.iter().all(|row| instead_of.is_none_or(|at| row[at] == Cell::Missing)) {
        hidden.push("instead_of");
    }
    if same(&|p| p.call.collective as u64) && same(&|p| u64::from(p.nodes)) {
        hidden.extend(["collective", "nodes", "ranks"]);
    } else {
        table.title.clear();
    }
    hide(table, &hidden);
}

fn verdict(points: &[Point], predictions: &[Prediction], beyond: &Beyond) -> Option<Verdict> {
    let rows: Vec<_> = points.iter().zip(predictions).collect();
    let (best_point, best) = rows.iter().max_by(|a, b| busbw(a.0, a.1).total_cmp(&busbw(b.0, b.1)))?;
    let smallest = rows
        .iter()
        .filter(|r| (r.0.nodes, r.0.call.collective) == (best_point.nodes, best_point.call.collective))
        .min_by_key(|r| r.0.call.size())?;
    let sentence = format!(
        "{} over {} ranks peaks at {:.0} GB/s of bus bandwidth ({}/{} at {}), bound by {}; {} takes {:.1} us",
        best_point.call.collective,
        best_point.call.ranks,
        busbw(best_point, best),
        best.algorithm,
        best.protocol,
        best_point.call.size(),
        best.bound_by(),
        smallest.0.call.size(),
        smallest.1.time.as_us(),
    );
    let (status, confidence, basis) = trust(beyond);
    Some(Verdict {
        status,
        sentence,
        confidence,
        basis,
        next: Some("run nccl-tests there, then `collcast validate LOG -t TOPOLOGY`".to_owned()),
    })
}

/// The same points in place, where there is such a form.
fn in_place(points: &[Point]) -> Vec<Point> {
    let mut points = points.to_vec();
    for point in &mut points {
        point.query.call.in_place = !matches!(point.call.collective, Collective::AllToAll | Collective::SendRecv);
    }
    points
}

/// What nccl-tests' table cannot say, beside what other formats cannot.
fn unsaid_in_text(points: &[Point], settings: &Settings) -> Vec<&'static str> {
    let any = |what: &dyn Fn(&Point) -> bool| points.iter().any(what);
    let flags = [
        // nccl-tests registers its buffers in CUDA graphs, and nowhere else.
        ("--registered", settings.registered != (settings.launch == Launch::Graph)),
        ("--in-place", any(&|p| p.call.in_place)),
        ("best", any(&|p| p.algorithm == Choice::Best || p.protocol == Choice::Best)),
    ];
    flags.into_iter().filter(|flag| flag.1).map(|flag| flag.0).collect()
}

/// The lines of nccl-tests above its table, as its readers understand them: what ran where.
fn header(point: &Point, topology: &Topology, settings: &Settings) -> Vec<String> {
    let call = &point.call;
    let version = settings.version.unwrap_or_default();
    let mut set = Vec::new();
    if let Choice::Forced(algorithm) = point.algorithm {
        set.push(format!("NCCL_ALGO={algorithm}"));
    }
    if let Choice::Forced(protocol) = point.protocol {
        set.push(format!("NCCL_PROTO={protocol}"));
    }
    if let Some(channels) = point.channels {
        let peers = if valid_algorithms(call.collective) == [Algorithm::Direct] { "P2P_" } else { "" };
        set.extend(["MIN", "MAX"].map(|end| format!("NCCL_{end}_{peers}NCHANNELS={channels}")));
    }
    set.push(nccl_tests::perf_name(call.collective).to_owned());
    let (threads, gpus) = match settings.launch {
        Launch::Threads => (call.ranks, 1),
        Launch::SingleThread => (1, call.ranks),
        Launch::Processes | Launch::Graph => (1, 1),
    };
    let graph = u8::from(settings.launch == Launch::Graph);
    let mut lines = vec![
        format!("cmd: {}", set.join(" ")),
        format!("NCCL version {version}"),
        format!("nThread {threads} nGpus {gpus} graph: {graph}"),
        "Using devices".to_owned(),
    ];
    lines.extend((0..call.ranks.min(topology.ranks())).map(|rank| {
        let host = topology.host_of(Rank(rank));
        let gpu = topology.gpu(topology.gpu_of(Rank(rank)));
        let (device, model) = gpu.map_or((0, ""), |gpu| (gpu.index, gpu.model.as_str()));
        let name = topology.hosts().get(host.index()).map_or("host", |host| host.name.as_str());
        format!(" Rank {rank:2} Group  0 Pid {:6} on {name} device {device:2} [{device:02x}] {model}", rank + 1)
    }));
    lines
}

fn nccl_tests_text(
    (points, predictions, in_place): (&[Point], &[Prediction], &[Prediction]),
    topology: &Topology,
    settings: &Settings,
    report: &Report,
) -> Result<String, CliError> {
    let series = |p: &Point| (p.nodes, p.call.collective, p.algorithm, p.protocol, p.channels);
    if points.iter().any(|p| series(p) != series(&points[0])) {
        return Err(CliError::usage(
            "nccl-tests' table holds one collective, algorithm, protocol and node count",
            "ask for one of each, or use --format table, csv or json",
        ));
    }
    let rows = points.iter().zip(predictions).zip(in_place).map(|((point, p), in_place)| NcclTestsRow {
        size_bytes: point.call.size().0,
        count: point.call.count,
        data_type: point.call.dtype,
        redop: point.call.collective.reduces().then_some(point.call.op),
        root: point.call.collective.rooted().then_some(point.call.root.0),
        out_of_place_us: p.time.as_us(),
        in_place_us: Some(in_place.time.as_us()),
        bus_factor: point.call.collective.bus_factor(point.call.ranks),
    });
    Ok(nccl_tests::render(&NcclTests {
        collective: points[0].call.collective,
        predicted: true,
        checked: false,
        comments: [report.assumptions.clone(), header(&points[0], topology, settings)].concat(),
        rows: rows.collect(),
    }))
}

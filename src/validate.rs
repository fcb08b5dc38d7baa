//! `collcast validate`: measurements against the forecast, by group and as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;

use collcast_hwbackend::read::{Outcome, ReadOptions, read_paths};
use collcast_reports::model::{Cell, Column, Input, Report, Status, Table, Verdict};
use collcast_sim::collective::{Algorithm, Collective, DataType, Launch, Protocol};
use collcast_sim::engine::Unobserved;
use collcast_sim::ids::Rank;
use collcast_sim::measurement::{Measurement, Origin, PeerAccess};
use collcast_sim::model::nccl::{Environment, NcclSettings, Selection, Version};
use collcast_sim::network::Transport;
use collcast_sim::predict::{Choice, Prediction, Predictor, Settings};
use collcast_sim::profile::Profile;
use collcast_sim::schedule::Call;
use collcast_sim::topology::Topology;
use collcast_sim::units::SimDuration;
use rayon::prelude::*;

use crate::error::CliError;
use crate::output::OutputArgs;
use crate::selectors::{MachineArgs, assumptions, content_hash};

#[derive(clap::Args, Debug)]
#[command(
    after_help = "Reads nccl-tests logs (text and JSON) and CSV, files or folders. Rows that set a constant of the
profile (its anchors) are left out of every figure. Rows where NCCL chose the algorithm are
predicted through `auto` and grouped apart. The .toml beside a file can name machine, NCCL version and
environment; hosts and GPUs of each follow from the rows."
)]
pub(crate) struct Args {
    /// Measurements: files or folders
    #[arg(required = true, value_name = "MEASUREMENTS")]
    measurements: Vec<PathBuf>,
    /// Built-in machine or topology file
    #[arg(short, long, value_name = "TOPOLOGY", help_heading = "Machine")]
    topology: Option<String>,
    /// Hosts
    #[arg(long, alias = "hosts", value_name = "N", help_heading = "Machine")]
    nodes: Option<u32>,
    /// GPUs of each host
    #[arg(long, value_name = "N", help_heading = "Machine")]
    gpus: Option<u32>,
    /// Profile: built-in name or TOML file; several layer
    #[arg(long, value_name = "PROFILE", help_heading = "Machine")]
    profile: Vec<String>,
    /// Launch mode of rows that do not say theirs
    #[arg(long, value_name = "MODE")]
    launch: Option<String>,
    /// Fail (exit 1) when the median error of a forced group is larger, such as 20%
    #[arg(long, value_name = "PERCENT")]
    max_error: Option<String>,
    /// Fail (exit 1) when a row reaches less of the expected bus bandwidth, such as 90%
    #[arg(long, value_name = "PERCENT")]
    min_busbw: Option<String>,
    /// Also name the algorithm and protocol whose prediction is closest to each row
    #[arg(long)]
    closest: bool,
    /// Accept our own predictions as measurements
    #[arg(long)]
    allow_predicted: bool,
    /// Print every row too
    #[arg(long)]
    rows: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// A measured row with its prediction.
struct Judged<'a> {
    row: &'a Measurement,
    launch: Launch,
    prediction: Prediction,
    nccl_us: Option<f64>,
    /// The closest of the algorithms and protocols that may have run.
    closest: Option<Prediction>,
}

impl Judged<'_> {
    fn error(&self) -> f64 {
        error(&self.prediction, self.row)
    }
}

fn closest_error(judged: &Judged<'_>) -> Option<f64> {
    judged.closest.as_ref().map(|p| error(p, judged.row))
}

fn error(prediction: &Prediction, row: &Measurement) -> f64 {
    prediction.time.as_us() / row.time.as_us() - 1.0
}

/// A percentage as a fraction; the `%` may be left out.
pub(crate) fn percent(flag: &str, text: &str) -> Result<f64, CliError> {
    let number = text.trim().trim_end_matches('%').trim();
    number.parse::<f64>().ok().filter(|p| p.is_finite() && *p >= 0.0).map(|p| p / 100.0).ok_or_else(|| {
        CliError::usage(format!("{flag}: `{text}` is not a percentage"), format!("write it as `{flag} 20%`"))
    })
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, CliError> {
    let max_error = args.max_error.as_deref().map(|t| percent("--max-error", t)).transpose()?;
    let min_busbw = args.min_busbw.as_deref().map(|t| percent("--min-busbw", t)).transpose()?;
    let default_launch = args
        .launch
        .as_deref()
        .map(|l| {
            l.parse().map_err(|e: collcast_sim::collective::UnknownName| CliError::Usage {
                message: e.to_string(),
                hint: None,
            })
        })
        .transpose()?;
    let read =
        read_paths(&args.measurements, &ReadOptions { allow_predicted: args.allow_predicted, keep_duplicates: false })?;

    let named = args.topology.clone().or_else(|| read.machine().map(str::to_owned));
    let name = named.ok_or_else(|| {
        CliError::usage(
            "the measurements do not say which machine they are from",
            "name it with `-t TOPOLOGY` (collcast topo list), or put `topology = \"...\"` in a .toml beside the file",
        )
    })?;
    let (nodes, gpus) = hosts_of_rows(&name, args, &read.measurements)?;
    let machine = MachineArgs { machine: Some(name), gpus, profile: args.profile.clone(), ..MachineArgs::default() };
    let mut topology = machine.load(nodes)?;
    let versions: BTreeSet<&String> = read.files.iter().filter_map(|f| f.nccl.as_ref()).collect();
    if let (1, Some(&version)) = (versions.len(), versions.first()) {
        topology.software.nccl = Some(version.clone());
    }
    let (profile, mut inputs) = machine.load_profile(&topology)?;
    inputs.extend(read.files.iter().filter(|f| f.rows > 0).map(|f| Input {
        name: "measurements".to_owned(),
        path: Some(f.path.display().to_string()),
        hash: f.hash.clone(),
    }));

    let repeated: usize = read.files.iter().map(|f| f.duplicates).sum();
    let unusable: usize = read.files.iter().map(|f| f.unusable).sum();
    let rows: Vec<&Measurement> = read.measurements.iter().collect();
    let envs: BTreeMap<String, &BTreeMap<String, String>> =
        read.files.iter().map(|f| (f.path.display().to_string(), &f.env)).collect();
    let (judged, skipped, anchors) = judge(&rows, &envs, &topology, &profile, default_launch, args.closest)?;
    let settings = Settings { launch: judged.first().map_or(Launch::Threads, |j| j.launch), ..Settings::default() };
    let extrapolated = judged.iter().filter(|j| j.prediction.extrapolated).count();

    let mut report = Report::new("validate", env!("CARGO_PKG_VERSION"));
    report.inputs = inputs;
    report.assumptions = assumptions(&topology, &profile, &settings, false);
    if let Some(line) = report.assumptions.first_mut()
        && let Some(at) = line.find("; launch")
    {
        line.truncate(at);
    }
    report.assumptions.push(format!(
        "{} rows from {} files ({repeated} more were second copies of these, {unusable} unusable: time rounded to 0 or no bytes); {anchors} set a constant of the profile and are left out",
        read.measurements.len(),
        read.files.iter().filter(|f| f.rows > 0).count(),
    ));
    for (reason, count) in &skipped {
        report.warnings.push(format!("{count} rows are not predicted: {reason}"));
    }
    let seen = profile.fitted_to(read.files.iter().filter(|f| f.rows > 0).map(|f| f.hash.as_str()));
    if seen > 0 {
        report.warnings.push(format!(
            "profile {} was fitted to {seen} of these files: their errors are no evidence for it; `collcast calibrate` prints those on rows held back",
            profile.name
        ));
    }
    if extrapolated > 0 {
        report.warnings.push(format!(
            "{extrapolated} predictions extrapolate: the profile is from another machine, launch mode or host count"
        ));
    }

    let groups = group(&judged);
    let overall: Vec<&Judged<'_>> = judged.iter().filter(|j| j.row.forced()).collect();
    let people = args.output.format == crate::output::Format::Table;
    report.tables.push(group_table(&groups, &overall, people));
    report.tables.push(files_table(&read.files));
    let slow = min_busbw.map_or_else(Vec::new, |least| slow_rows(&judged, least));
    if !slow.is_empty() || args.output.format == crate::output::Format::Json {
        report.tables.push(anomalies_table(&slow));
    }
    if args.rows || args.output.format != crate::output::Format::Table {
        report.tables.push(rows_table(&judged));
    }
    report.extra.insert("overall".to_owned(), Stats::of(&overall).json());
    let all: Vec<&Judged<'_>> = judged.iter().collect();
    report.extra.insert("overall_with_auto".to_owned(), Stats::of(&all).json());

    let worst = groups
        .iter()
        .filter(|(k, _)| k.forced)
        .map(|(k, rows)| (Stats::of(rows).median, k))
        .max_by(|a, b| a.0.total_cmp(&b.0));
    let beyond = max_error.zip(worst.as_ref()).is_some_and(|(most, (median, _))| *median > most);
    let failed = beyond || !slow.is_empty();
    report.verdict = Some(verdict(&overall, &all, worst.as_ref(), failed, &slow, max_error));
    args.output.print(&report, None)?;
    Ok(ExitCode::from(u8::from(failed)))
}

/// Rows that are predicted, the median of their errors, and a hash of the files.
pub(crate) fn median_error(
    measurements: &[PathBuf],
    topology: &Topology,
    profile: &Profile,
) -> Result<(usize, f64, String), CliError> {
    let read = read_paths(measurements, &ReadOptions::default())?;
    let rows: Vec<&Measurement> = read.measurements.iter().collect();
    let envs: BTreeMap<String, &BTreeMap<String, String>> =
        read.files.iter().map(|f| (f.path.display().to_string(), &f.env)).collect();
    let (judged, skipped, _) = judge(&rows, &envs, topology, profile, None, false)?;
    if judged.is_empty() {
        let reasons: Vec<&str> = skipped.keys().map(String::as_str).collect();
        return Err(CliError::usage(
            format!("no row of `{}` can be predicted: {}", measurements[0].display(), reasons.join("; ")),
            "name the machine that was measured, with as many hosts and GPUs",
        ));
    }
    let judged: Vec<&Judged<'_>> = judged.iter().collect();
    let hashes: Vec<&str> = read.files.iter().filter(|f| f.rows > 0).map(|f| f.hash.as_str()).collect();
    Ok((judged.len(), Stats::of(&judged).median, content_hash(hashes.join(" ").as_bytes())))
}

/// Hosts and GPUs of each, where no flag says: enough for all rows, at most those of the machine.
fn hosts_of_rows(name: &str, args: &Args, rows: &[Measurement]) -> Result<(Option<u32>, Option<u32>), CliError> {
    let spec = collcast_topologies::builtin::spec_any(name)?;
    let have = spec.host_count();
    let [group] = spec.groups.as_slice() else { return Ok((args.nodes, args.gpus)) };
    let most = rows.iter().filter_map(|r| r.hosts).max();
    let nodes = args.nodes.or(most.filter(|&n| n as usize > have));
    let each = rows.iter().filter_map(|r| Some(r.ranks.div_ceil(r.hosts?.max(1)))).max();
    let several = most.is_some_and(|n| n > 1);
    let gpus = args.gpus.or(each.filter(|&g| several && (g as usize) < group.host.gpus.len()));
    Ok((nodes, gpus))
}

/// What NCCL's own table takes to be slower than this many times its choice is not what ran.
const PLAUSIBLE: f64 = 2.0;

type Verdicts<'a> = (Vec<Judged<'a>>, BTreeMap<String, usize>, usize);

/// Predicts every row that the machine can hold.
fn judge<'a>(
    rows: &[&'a Measurement],
    envs: &BTreeMap<String, &BTreeMap<String, String>>,
    topology: &Topology,
    profile: &Profile,
    launch: Option<Launch>,
    closest: bool,
) -> Result<Verdicts<'a>, CliError> {
    let predictor = Predictor::new(topology, profile);
    let mut skipped: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = 0;
    let mut todo = Vec::new();
    for &row in rows {
        if profile.anchors.iter().any(|a| a.run == row.run && a.size_bytes == row.size.0) {
            anchors += 1;
        } else if let Some(reason) = not_predicted(row, topology) {
            *skipped.entry(reason).or_default() += 1;
        } else {
            todo.push(row);
        }
    }
    // An all-reduce in place and one out of place are the same schedule: one prediction for both.
    let twins: Vec<&[&Measurement]> = todo.chunk_by(|a, b| same_call(a, b)).collect();
    let results: Vec<Result<Vec<Judged<'a>>, (usize, collcast_sim::predict::PredictError)>> = twins
        .par_iter()
        .map(|&twins| {
            let row = twins[0];
            let question = question(row, envs.get(&row.origin.file).copied(), &predictor, launch);
            let Question { call, algorithm, protocol, settings } = &question;
            let (algorithm, protocol, launch) = (*algorithm, *protocol, settings.launch);
            let prediction =
                predictor.predict(call, algorithm, protocol, settings).map_err(|error| (twins.len(), error))?;
            let graphs = predictor.graph(row.ranks, settings);
            let model = predictor.model(&graphs, settings);
            let predicted_us = |a, p| model.predicted_us(call, a, p).map(f64::from);
            let nccl_us = predicted_us(prediction.algorithm, prediction.protocol);
            let plausible = |&(a, p): &(Algorithm, Protocol)| {
                let slow = predicted_us(a, p).zip(nccl_us).is_some_and(|(us, chosen)| us > PLAUSIBLE * chosen);
                (a, p) != (prediction.algorithm, prediction.protocol) && !slow
            };
            let others = if closest { predictor.candidates(call, algorithm, protocol, settings) } else { Vec::new() };
            let others: Vec<Prediction> = (others.into_iter().filter(plausible))
                .filter_map(|(a, p)| predictor.predict_one(call, a, p, settings, &mut Unobserved).ok())
                .chain(closest.then(|| prediction.clone()))
                .collect();
            let judged = |&row| {
                let nearest = others.iter().min_by(|a, b| error(a, row).abs().total_cmp(&error(b, row).abs()));
                Judged { row, launch, prediction: prediction.clone(), nccl_us, closest: nearest.cloned() }
            };
            Ok(twins.iter().map(judged).collect())
        })
        .collect();
    let mut judged = Vec::new();
    for result in results {
        match result {
            Ok(rows) => judged.extend(rows),
            Err((_, error)) if error.is_internal() => return Err(error.into()),
            Err((rows, error)) => *skipped.entry(error.to_string()).or_default() += rows,
        }
    }
    Ok((judged, skipped, anchors))
}

/// What a row asks the model.
pub(crate) struct Question {
    pub(crate) call: Call,
    pub(crate) algorithm: Choice<Algorithm>,
    pub(crate) protocol: Choice<Protocol>,
    pub(crate) settings: Settings,
}

/// What a row asks the model, under the variables of its file.
pub(crate) fn question(
    row: &Measurement,
    env: Option<&BTreeMap<String, String>>,
    predictor: &Predictor<'_>,
    launch: Option<Launch>,
) -> Question {
    let mut call = Call::of_size(row.collective, row.ranks, row.size, row.dtype.unwrap_or(DataType::Float32));
    call.op = row.op.unwrap_or(collcast_sim::collective::ReduceOp::Sum);
    call.root = Rank(row.root.unwrap_or(0).min(row.ranks - 1));
    // A pair's in-place row moves the same bytes between other buffers.
    call.in_place = row.in_place && !matches!(row.collective, Collective::AllToAll | Collective::SendRecv);
    let several = predictor.hosts(row.ranks) > 1;
    let launch = row.launch.or(launch).unwrap_or(if several { Launch::Processes } else { Launch::Threads });
    let version = row.settings.nccl.as_deref().and_then(|text| text.parse::<Version>().ok());
    let mut settings = Settings { launch, version, ..Settings::default() };
    (settings.nccl, settings.transport) = told(row, env, predictor.topology(), predictor.version(&settings));
    // What NCCL said it ran goes before what its cost table would pick.
    let ran = row.chosen.as_ref();
    let algorithm = row.settings.algorithm.or(ran.map(|c| c.algorithm)).map_or(Choice::Auto, Choice::Forced);
    let protocol = row.settings.protocol.or(ran.map(|c| c.protocol)).map_or(Choice::Auto, Choice::Forced);
    Question { call, algorithm, protocol, settings }
}

fn same_call(a: &Measurement, b: &Measurement) -> bool {
    let call = |m: &Measurement| {
        let (time, origin) = (SimDuration::ZERO, Origin::default());
        Measurement { in_place: false, time, origin, ..m.clone() }
    };
    a.collective == Collective::AllReduce && call(a) == call(b)
}

/// What NCCL was told when a row was measured: the machine's variables, those of the file, and
/// before both what the row itself says.
fn told(
    row: &Measurement,
    env: Option<&BTreeMap<String, String>>,
    topology: &Topology,
    version: Version,
) -> (NcclSettings, Transport) {
    let mut pairs = topology.software.env.clone();
    // A file can hold runs with several algorithms: rows carry theirs.
    pairs.extend(
        env.into_iter().flatten().filter(|(name, _)| *name != "NCCL_ALGO").map(|(n, v)| (n.clone(), v.clone())),
    );
    let mut settings = Environment::parse(&pairs, version).map(|e| e.settings).unwrap_or_default();
    if let Some(text) = &row.settings.nccl_algo {
        settings.algorithms = Selection::parse(text, version).map(|(algorithms, _)| algorithms).unwrap_or_default();
    }
    // Send and receive have channels of their own (NCCL_MAX_P2P_NCHANNELS).
    let pairs_only = collcast_sim::schedule::valid_algorithms(row.collective) == [Algorithm::Direct];
    let most = if pairs_only { &mut settings.max_p2p_channels } else { &mut settings.max_channels };
    *most = row.settings.channels.or(*most);
    settings.buffer_size = row.settings.buffer_size.or(settings.buffer_size);
    settings.threads = row.settings.threads.or(settings.threads);
    let moving = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let moving = moving.filter(|(name, _)| Transport::VARIABLES.contains(name));
    let mut transport = Transport::from_env(topology, moving).unwrap_or_default();
    if row.settings.peer_access != PeerAccess::On {
        transport.peer_access = row.settings.peer_access;
    }
    (settings, transport)
}

pub(crate) fn not_predicted(row: &Measurement, topology: &Topology) -> Option<String> {
    if row.ranks > topology.ranks() {
        return Some(format!(
            "they have {} ranks, `{}` has {} GPUs (--nodes adds hosts)",
            row.ranks,
            topology.name,
            topology.ranks()
        ));
    }
    if let Some(algorithm) = row.settings.algorithm
        && !collcast_sim::schedule::valid_algorithms(row.collective).contains(&algorithm)
    {
        return Some(format!("{algorithm} is not modelled for {} yet", row.collective));
    }
    if let Some(text) = &row.settings.nccl_algo
        && let Err(error) = Selection::<Algorithm>::parse(text, Version::NEWEST)
    {
        return Some(format!("NCCL_ALGO={text}: {error}"));
    }
    let on: std::collections::BTreeSet<_> = (0..row.ranks).map(|r| topology.host_of(Rank(r))).collect();
    let hosts = u32::try_from(on.len()).unwrap_or(u32::MAX);
    if row.hosts.is_some_and(|h| h != hosts) {
        let asked = row.hosts.unwrap_or(0);
        return Some(format!(
            "they ran on {asked} hosts; the first {} GPUs of `{}` are on {hosts}",
            row.ranks, topology.name
        ));
    }
    None
}

/// What makes rows comparable.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Key {
    forced: bool,
    launch: Launch,
    what: String,
    band: u8,
}

/// Ranges of sizes in which one thing bounds the time: launch and latency, caches and
/// protocols, links.
pub(crate) const BANDS: [&str; 3] = ["< 64 KiB", "64 KiB-16 MiB", "> 16 MiB"];

/// Index in [`BANDS`] of a size in bytes.
pub(crate) fn band(size: u64) -> u8 {
    match size {
        0..65_536 => 0,
        65_536..=16_777_216 => 1,
        _ => 2,
    }
}

fn group<'j, 'a>(judged: &'j [Judged<'a>]) -> BTreeMap<Key, Vec<&'j Judged<'a>>> {
    let mut groups: BTreeMap<Key, Vec<&Judged<'_>>> = BTreeMap::new();
    for j in judged {
        let forced = j.row.forced();
        let what = if forced {
            format!("{} {}", j.prediction.algorithm, j.prediction.protocol)
        } else {
            format!("{} as NCCL chose", j.row.collective)
        };
        groups.entry(Key { forced: !forced, launch: j.launch, what, band: band(j.row.size.0) }).or_default().push(j);
    }
    // Forced groups sort first; the flag then says what it means.
    groups.into_iter().map(|(k, v)| (Key { forced: !k.forced, ..k }, v)).collect()
}

/// Error figures of a set of rows.
#[derive(Clone, Copy, Debug, Default)]
struct Stats {
    count: usize,
    mean: f64,
    median: f64,
    p95: f64,
    bias: f64,
    coverage: f64,
    nccl_median: Option<f64>,
    closest_median: Option<f64>,
}

fn quantile(sorted: &[f64], q: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let at = (q * last as f64).round() as usize;
    sorted.get(at.min(last)).copied().unwrap_or(0.0)
}

impl Stats {
    fn of(rows: &[&Judged<'_>]) -> Self {
        let count = rows.len();
        if count == 0 {
            return Self::default();
        }
        let n = count as f64;
        let mut errors: Vec<f64> = rows.iter().map(|j| j.error().abs()).collect();
        errors.sort_by(f64::total_cmp);
        // Of all rows or of none: a median over some would be compared with one over all.
        let median_of_all = |of: fn(&Judged<'_>) -> Option<f64>| {
            let mut errors: Vec<f64> = rows.iter().filter_map(|j| of(j)).map(f64::abs).collect();
            errors.sort_by(f64::total_cmp);
            (errors.len() == count).then(|| quantile(&errors, 0.5))
        };
        let inside = rows.iter().filter(|j| (j.prediction.low..=j.prediction.high).contains(&j.row.time)).count();
        Self {
            count,
            mean: errors.iter().sum::<f64>() / n,
            median: quantile(&errors, 0.5),
            p95: quantile(&errors, 0.95),
            bias: rows.iter().map(|j| j.error()).sum::<f64>() / n,
            coverage: inside as f64 / n,
            nccl_median: median_of_all(|j| Some(j.nccl_us? / j.row.time.as_us() - 1.0)),
            closest_median: median_of_all(closest_error),
        }
    }

    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "count": self.count,
            "mean_abs_error": self.mean,
            "median_abs_error": self.median,
            "p95_abs_error": self.p95,
            "bias": self.bias,
            "coverage": self.coverage,
            "nccl_model": self.nccl_median.map(|m| serde_json::json!({ "median_abs_error": m })),
            "closest": self.closest_median.map(|m| serde_json::json!({ "median_abs_error": m })),
        })
    }
}

/// Errors by group: percentages for people, fractions for files.
fn group_table(groups: &BTreeMap<Key, Vec<&Judged<'_>>>, overall: &[&Judged<'_>], people: bool) -> Table {
    let (scale, digits) = if people { (100.0, 1) } else { (1.0, 4) };
    let columns = [
        Column::text("launch", "launch"),
        Column::text("group", "group"),
        Column::text("band", "size"),
        Column::number("count", "rows"),
        Column::number("median_abs_error", "median %"),
        Column::number("mean_abs_error", "mean %"),
        Column::number("p95_abs_error", "p95 %"),
        Column::number("bias", "bias %"),
        Column::number("coverage", "in interval %"),
        Column::number("nccl_median_abs_error", "NCCL's model %"),
        Column::number("closest_median_abs_error", "closest %"),
    ];
    let mut table = Table::new("groups", "error = predicted / measured - 1, by group", columns);
    let mut push = |launch: &str, what: &str, band: &str, rows: &[&Judged<'_>]| {
        let s = Stats::of(rows);
        let pc = |v: f64| Cell::float(v * scale, digits);
        table.push([
            launch.into(),
            what.into(),
            band.into(),
            s.count.into(),
            pc(s.median),
            pc(s.mean),
            pc(s.p95),
            pc(s.bias),
            Cell::float(s.coverage * scale, digits.saturating_sub(1)),
            s.nccl_median.map(pc).into(),
            s.closest_median.map(pc).into(),
        ]);
    };
    for (key, rows) in groups {
        push(key.launch.name(), &key.what, BANDS[usize::from(key.band)], rows);
    }
    push("all", "forced algorithm and protocol", "all", overall);
    table
}

fn files_table(files: &[collcast_hwbackend::read::FileReport]) -> Table {
    let columns = [Column::text("file", "file"), Column::number("rows", "rows"), Column::text("outcome", "outcome")];
    let mut table = Table::new("files", "files that gave no rows, or have lines that could not be read", columns);
    for file in files {
        let outcome = match &file.outcome {
            Outcome::Read if file.unreadable == 0 => continue,
            Outcome::Read => "read".to_owned(),
            Outcome::Metadata => "describes the data files of its stem".to_owned(),
            Outcome::NotUnderstood(reason) => format!("not understood: {reason}"),
            Outcome::Refused(error) => format!("refused: {error}"),
        };
        let notes: Vec<String> = match &file.outcome {
            Outcome::Read => file.warnings(),
            _ => Vec::new(),
        };
        let mut text = outcome;
        if let Some(first) = notes.first() {
            text += &format!("; {} notes, the first: {first}", notes.len());
        }
        table.push([file.path.display().to_string().into(), file.rows.into(), text.into()]);
    }
    table
}

fn slow_rows<'j, 'a>(judged: &'j [Judged<'a>], least: f64) -> Vec<&'j Judged<'a>> {
    judged.iter().filter(|j| j.prediction.time.as_us() / j.row.time.as_us() < least).collect()
}

fn anomalies_table(slow: &[&Judged<'_>]) -> Table {
    let columns = [
        Column::text("kind", "kind"),
        Column::text("severity", "severity"),
        Column::text("evidence", "evidence"),
        Column::text("suggestion", "suggestion"),
    ];
    let mut table = Table::new("anomalies", "", columns);
    for j in slow {
        table.push([
            "slower_than_expected".into(),
            "error".into(),
            format!(
                "{} {}: {} takes {:.2} us, expected {:.2} us",
                j.row.run,
                j.row.collective,
                j.row.size,
                j.row.time.as_us(),
                j.prediction.time.as_us()
            )
            .into(),
            format!("{}:{}", j.row.origin.file, j.row.origin.line).into(),
        ]);
    }
    table
}

fn rows_table(judged: &[Judged<'_>]) -> Table {
    let columns = [
        Column::text("run", "run"),
        Column::text("collective", "collective"),
        Column::number("ranks", "ranks"),
        Column::number("size_bytes", "size B"),
        Column::text("in_place", "in place"),
        Column::text("launch", "launch"),
        Column::text("forced", "forced"),
        Column::text("algorithm", "algorithm"),
        Column::text("protocol", "protocol"),
        Column::number("channels", "ch"),
        Column::number("measured_us", "measured us"),
        Column::number("predicted_us", "predicted us"),
        Column::number("error", "error"),
        Column::number("low_us", "low us"),
        Column::number("high_us", "high us"),
        Column::number("nccl_model_us", "NCCL's model us"),
        Column::text("closest_algorithm", "closest algorithm"),
        Column::text("closest_protocol", "closest protocol"),
        Column::number("closest_us", "closest us"),
        Column::number("closest_error", "closest error"),
        Column::text("bound", "bound by"),
        Column::text("file", "file"),
        Column::number("line", "line"),
    ];
    let mut table = Table::new("rows", "", columns);
    for j in judged {
        let p = &j.prediction;
        table.push([
            j.row.run.as_str().into(),
            j.row.collective.name().into(),
            j.row.ranks.into(),
            j.row.size.0.into(),
            j.row.in_place.into(),
            j.launch.name().into(),
            j.row.forced().into(),
            p.algorithm.name().into(),
            p.protocol.name().into(),
            p.plan.channels.into(),
            Cell::float(j.row.time.as_us(), 2),
            Cell::float(p.time.as_us(), 2),
            Cell::float(j.error(), 3),
            Cell::float(p.low.as_us(), 2),
            Cell::float(p.high.as_us(), 2),
            j.nccl_us.map(|us| Cell::float(us, 2)).into(),
            j.closest.as_ref().map(|c| Cell::from(c.algorithm.name())).into(),
            j.closest.as_ref().map(|c| Cell::from(c.protocol.name())).into(),
            j.closest.as_ref().map(|c| Cell::float(c.time.as_us(), 2)).into(),
            closest_error(j).map(|e| Cell::float(e, 3)).into(),
            p.bound_by().into(),
            j.row.origin.file.as_str().into(),
            j.row.origin.line.into(),
        ]);
    }
    table
}

fn verdict(
    overall: &[&Judged<'_>],
    all: &[&Judged<'_>],
    worst: Option<&(f64, &Key)>,
    failed: bool,
    slow: &[&Judged<'_>],
    max_error: Option<f64>,
) -> Verdict {
    let stats = Stats::of(if overall.is_empty() { all } else { overall });
    let kind = if overall.is_empty() { "rows where NCCL chose" } else { "rows with a forced algorithm" };
    let mut sentence = if stats.count == 0 {
        "no row could be predicted".to_owned()
    } else {
        format!("{} {kind}: median error {:.1}%, bias {:+.1}%", stats.count, stats.median * 100.0, stats.bias * 100.0)
    };
    if let Some((median, key)) = worst {
        sentence += &format!(
            "; the worst group is {} {} {} with {:.1}%",
            key.launch,
            key.what,
            BANDS[usize::from(key.band)],
            median * 100.0
        );
    }
    if !slow.is_empty() {
        sentence += &format!("; {} rows are slower than allowed", slow.len());
    }
    Verdict {
        status: if failed {
            Status::Failed
        } else if stats.count == 0 || stats.median > max_error.unwrap_or(0.2) {
            Status::Warning
        } else {
            Status::Ok
        },
        sentence,
        confidence: if stats.count >= 30 { "high" } else { "low: few rows" }.to_owned(),
        basis: "measured against predicted".to_owned(),
        next: (stats.median > 0.2)
            .then(|| "look at the rows with --rows; check the topology and the launch mode".to_owned()),
    }
}

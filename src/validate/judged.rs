//! Measured rows beside what is predicted for them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use collcast_hwbackend::read::{End, FileReport, ReadReport};

use collcast_sim::collective::{Algorithm, Collective, DataType, Launch, Protocol, ReduceOp};
use collcast_sim::doctor::{Question, Timed};
use collcast_sim::engine::{Unobserved, WORK_PER_SECOND};
use collcast_sim::ids::{HostId, Rank};
use collcast_sim::measurement::{self, Measurement, PeerAccess, Timing};
use collcast_sim::nccl::Transport;
use collcast_sim::nccl::plugin;
use collcast_sim::nccl::{Environment, NcclSettings, Plan, Selection, Version};
use collcast_sim::predict::{PredictError, Prediction, Predictor, Settings};
use collcast_sim::profile::Profile;
use collcast_sim::schedule::valid_algorithms;
use collcast_sim::topology::Topology;
use collcast_sim::units::Bytes;
use rayon::prelude::*;

use crate::confidence::{self, On};
use crate::error::Error;
use crate::query::Query;
use crate::watch::Watch;

/// A measured row with its prediction.
#[derive(Clone)]
pub(crate) struct Judged<'a> {
    /// The row.
    pub(crate) row: &'a Measurement,
    /// What it asks.
    pub(crate) question: Arc<Question>,
    /// What our model says.
    pub(crate) prediction: Arc<Prediction>,
    /// What NCCL's own cost table says of the same algorithm and protocol, in us.
    pub(crate) nccl_us: Option<f64>,
    /// Ends of the 90% interval of its time, in us.
    pub(crate) interval_us: (f64, f64),
    /// The closest of the algorithms and protocols that may have run.
    pub(crate) closest: Option<Arc<Prediction>>,
    /// How its run ended.
    pub(crate) end: End,
}

/// What a row says of its call, but for the size: rows alike ask the same of the model.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Asked<'a> {
    collective: Collective,
    ranks: u32,
    launch: Option<Launch>,
    timing: Option<Timing>,
    dtype: Option<DataType>,
    op: Option<ReduceOp>,
    root: Option<u32>,
    settings: &'a measurement::Settings,
}

impl<'a> Asked<'a> {
    pub(crate) fn of(row: &'a Measurement) -> Self {
        let Measurement { collective, ranks, launch, timing, dtype, op, root, ref settings, .. } = *row;
        Self { collective, ranks, launch, timing, dtype, op, root, settings }
    }
}

/// The same, wherever it ran: on like machines a call has one forecast.
#[derive(Clone, Copy)]
struct Anywhere<'a>(Asked<'a>);

impl<'a> Anywhere<'a> {
    fn said(&self) -> impl Eq + Hash + use<'a> {
        let Asked { collective, ranks, launch, timing, dtype, op, root, settings } = self.0;
        let measurement::Settings {
            algorithm,
            protocol,
            nccl_algo,
            channels,
            buffers,
            threads,
            peer_access,
            registered,
            nccl,
            host_names: _,
            gpus: _,
            nics: _,
        } = settings;
        let forced = (algorithm, protocol, nccl_algo, channels, buffers, threads, peer_access, registered, nccl);
        ((collective, ranks, launch, timing, dtype, op, root), forced)
    }
}

impl PartialEq for Anywhere<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.said() == other.said()
    }
}

impl Eq for Anywhere<'_> {}

impl Hash for Anywhere<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.said().hash(state);
    }
}

/// The variables of a row's file and run.
type Env<'a> = Option<&'a BTreeMap<String, String>>;

/// All that a prediction of a row depends on.
type Key<'a> = (Anywhere<'a>, Bytes, bool, Option<measurement::Choice>, Env<'a>);

/// An all-reduce in place and one out of place are the same schedule, but for registered buffers: one prediction for both.
fn key<'a>(row: &'a Measurement, env: Env<'a>) -> Key<'a> {
    let in_place = row.in_place && (row.collective != Collective::AllReduce || row.settings.registered);
    (Anywhere(Asked::of(row)), row.size, in_place, row.chosen, env)
}

impl Judged<'_> {
    pub(crate) fn launch(&self) -> Launch {
        self.question.settings.launch
    }

    /// Predicted over measured, less 1.
    pub(crate) fn error(&self) -> f64 {
        error(&self.prediction, self.row)
    }

    /// The same of the closest.
    pub(crate) fn closest_error(&self) -> Option<f64> {
        self.closest.as_ref().map(|closest| error(closest, self.row))
    }
}

fn error(prediction: &Prediction, row: &Measurement) -> f64 {
    prediction.time.as_us() / row.time.as_us() - 1.0
}

/// What NCCL's own table takes to be slower than this many times its choice is not what ran.
const PLAUSIBLE: f64 = 2.0;
/// Where NCCL's choice fits the rows as well as this, no other is looked at.
const FITS: f64 = 0.1;

/// Most calls that are not alike, inside one host and over several. The forecast of one takes 1 ms of a core inside
/// `h200x4`, and 7 to 13 ms over 2 hosts of `dgx-h100`: 20 s and 14 to 26 s of a core. Rows may be as many as are read.
const CALLS_MAX: [usize; 2] = [20_000, 4_000];
/// Most sizes of a run that are forecast: eight times as many as nccl-tests measures from 8 B to 16 GiB by factors of two.
/// They leave 9% between neighbours there, and bands of sizes are judged, never single ones.
const SIZES_MAX: usize = 256;
/// Work of the simulation for the forecasts of all rows: about 10 s of a core.
const WORK_MAX: u64 = 10 * WORK_PER_SECOND;
/// Calls that are forecast before work is counted again.
const AT_ONCE: usize = 128;
/// The fewest, where there are many runs that share [`CALLS_MAX`].
const SIZES_MIN: usize = 32;
/// Most sizes of a run at which the other algorithms and protocols are tried, which takes ten times as long as its forecast:
/// neighbouring sizes tell the same. The fewest, where there are many runs, and how many all of them share.
const TRIED: usize = 64;
const TRIED_MIN: usize = 8;
const TRIED_OF_ALL: usize = 512;

/// What came of rows.
pub(crate) struct Verdicts<'a> {
    /// Those that are predicted, in their order.
    pub(crate) rows: Vec<Judged<'a>>,
    /// Why others are not, and how many.
    pub(crate) skipped: BTreeMap<String, usize>,
    /// Rows that set a constant of the profile, which are left out.
    pub(crate) anchors: usize,
}

/// Rows of one call, each with its place among those that are predicted.
type Indexed<'a> = Result<Vec<(usize, Judged<'a>)>, PredictError>;

/// Predicts every row that the machine can hold.
pub(crate) fn judge<'a>(
    read: &'a ReadReport,
    (topology, profile): (&Topology, &Profile),
    launch: Option<Launch>,
    closest: bool,
    watch: &Watch,
) -> Result<Verdicts<'a>, Error> {
    let predictor = Predictor::new(topology, profile);
    let mut skipped: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = 0;
    let mut todo = Vec::new();
    let mut reasons = HashMap::new();
    for row in &read.measurements {
        if profile.anchors.iter().any(|a| a.run == row.run && a.size_bytes == row.size.0) {
            anchors += 1;
            continue;
        }
        match reasons.entry((Asked::of(row), row.hosts)).or_insert_with(|| not_predicted(row, topology)) {
            Some(reason) => *skipped.entry(reason.clone()).or_default() += 1,
            None => todo.push(row),
        }
    }
    let files = by_path(&read.files);
    let sizes = forecast_sizes(&todo, &files, &predictor);
    todo.retain(|row| match sizes.get(&run_of(row, &files)) {
        Some((most, sizes)) if !sizes.contains(&row.size) => {
            let reason = format!("of a run with more than {most} sizes, {most} are: evenly over their logarithm");
            *skipped.entry(reason).or_default() += 1;
            false
        }
        _ => true,
    });
    let calls = calls(&todo, &files);
    let over_hosts = calls.iter().filter(|call| predictor.hosts(todo[call.twins[0].0].ranks) > 1).count();
    for (count, most, place) in
        [(calls.len() - over_hosts, CALLS_MAX[0], "inside a host"), (over_hosts, CALLS_MAX[1], "over several hosts")]
    {
        if count > most {
            return Err(Error::usage(
                format!("the measurements are of {count} different calls {place}; at most {most} are predicted"),
                "read fewer files at a time",
            ));
        }
    }
    let forecasts = forecasts(&calls, &todo, &files, &|call| forecast(call, &todo, &predictor, launch), watch)?;
    let tried = if closest { tried(&calls, &forecasts, &todo) } else { BTreeSet::new() };
    let results: Vec<Indexed<'a>> = (calls.par_iter().zip(forecasts).enumerate())
        .map(|(index, (call, forecast))| {
            let Some(forecast) = forecast else { return Ok(Vec::new()) };
            Ok(beside(call, &todo, &predictor, forecast?, (closest, tried.contains(&index))))
        })
        .collect();
    let mut judged = Vec::with_capacity(todo.len());
    for (call, result) in calls.iter().zip(results) {
        match result {
            Ok(rows) if rows.is_empty() => {
                let reason = "the simulation's 10 s of a core are spent; sizes between these are forecast".to_owned();
                *skipped.entry(reason).or_default() += call.rows();
            }
            Ok(rows) => judged.extend(rows),
            Err(error) if error.is_internal() => return Err(error.into()),
            Err(error) => *skipped.entry(error.to_string()).or_default() += call.rows(),
        }
    }
    judged.sort_by_key(|(index, _)| *index);
    for (_, j) in &mut judged {
        j.end = files.get(&j.row.origin.file).map_or(End::Whole, |file| file.end_of(&j.row.run));
    }
    Ok(Verdicts { rows: judged.into_iter().map(|(_, judged)| judged).collect(), skipped, anchors })
}

/// Rows that one prediction is for.
struct Alike<'a> {
    env: Env<'a>,
    /// Neighbours of one run (in place and out of place) by where they begin and end.
    twins: Vec<(usize, usize)>,
}

impl Alike<'_> {
    fn rows(&self) -> usize {
        self.twins.iter().map(|(begin, end)| end - begin).sum()
    }
}

/// The rows by what they ask, in the order of the first of each.
fn calls<'a>(rows: &[&'a Measurement], files: &BTreeMap<String, &'a FileReport>) -> Vec<Alike<'a>> {
    let mut calls: Vec<Alike<'a>> = Vec::new();
    let mut known: HashMap<Key<'a>, usize> = HashMap::new();
    let mut last = None;
    for (index, &row) in rows.iter().enumerate() {
        let env = files.get(&row.origin.file).map(|file| file.env_of(&row.run));
        let key = key(row, env);
        let call = *known.entry(key).or_insert_with(|| {
            calls.push(Alike { env, twins: Vec::new() });
            calls.len() - 1
        });
        let twins = &mut calls[call].twins;
        match twins.last_mut() {
            Some((_, end)) if last == Some((call, row.run.as_str())) && row.collective == Collective::AllReduce => {
                *end = index + 1;
            }
            _ => twins.push((index, index + 1)),
        }
        last = Some((call, row.run.as_str()));
    }
    calls
}

/// The forecasts of calls until the work for them is spent, in parts so large that all cores have work: of each run its
/// ends first, then the middle between two that are there, so that what is left out lies between them.
fn forecasts<'a>(
    calls: &[Alike<'a>],
    rows: &[&'a Measurement],
    files: &BTreeMap<String, &'a FileReport>,
    forecast: &(dyn Fn(&Alike<'a>) -> Forecast + Sync),
    watch: &Watch,
) -> Result<Vec<Option<Forecast>>, Error> {
    let mut runs: HashMap<RunOf<'a>, Vec<(Bytes, usize)>> = HashMap::new();
    for (index, call) in calls.iter().enumerate() {
        let row = rows[call.twins[0].0];
        runs.entry(run_of(row, files)).or_default().push((row.size, index));
    }
    let mut order: Vec<(u32, usize)> = Vec::with_capacity(calls.len());
    for mut sizes in runs.into_values() {
        sizes.sort_unstable();
        let last = sizes.len() - 1;
        // Places with more powers of two in them come first.
        let turn = |place: usize| if place == last { 0 } else { u32::try_from(place).unwrap_or(0).reverse_bits() };
        order.extend(sizes.iter().enumerate().map(|(place, &(_, index))| (turn(place), index)));
    }
    order.sort_unstable();
    let mut forecasts: Vec<Option<Forecast>> = calls.iter().map(|_| None).collect();
    let parts = watch.parts(calls.len());
    let mut work = 0;
    for part in order.chunks(AT_ONCE) {
        if work >= WORK_MAX {
            break;
        }
        let made = part.par_iter().map(|&(_, index)| {
            let made = forecast(&calls[index]);
            parts.done().map(|()| (index, made))
        });
        for (index, made) in made.collect::<Result<Vec<(usize, Forecast)>, Error>>()? {
            work += made.as_ref().map_or(0, |(_, prediction)| prediction.work);
            forecasts[index] = Some(made);
        }
    }
    Ok(forecasts)
}

/// What a call asks, and its forecast.
type Forecast = Result<(Arc<Question>, Arc<Prediction>), PredictError>;

fn forecast(alike: &Alike<'_>, rows: &[&Measurement], predictor: &Predictor<'_>, launch: Option<Launch>) -> Forecast {
    let question = Arc::new(question(rows[alike.twins[0].0], alike.env, predictor, launch));
    let Question { call, algorithm, protocol, settings, .. } = &*question;
    let prediction = Arc::new(predictor.predict(call, *algorithm, *protocol, settings)?);
    Ok((question, prediction))
}

/// Calls for which others are tried, by place: of each run at most [`TRIED`] sizes, or its share of [`TRIED_OF_ALL`]; as many of them where it is the
/// furthest off as evenly over the logarithm of the size, its ends among these.
fn tried(calls: &[Alike<'_>], forecasts: &[Option<Forecast>], rows: &[&Measurement]) -> BTreeSet<usize> {
    let mut runs: HashMap<_, Vec<(u64, f64, usize)>> = HashMap::new();
    for (index, (call, forecast)) in calls.iter().zip(forecasts).enumerate() {
        let Some(Ok((_, prediction))) = forecast else { continue };
        let row = rows[call.twins[0].0];
        let off = (prediction.time.as_us() / row.time.as_us()).ln().abs();
        let run = (Asked::of(row), row.in_place, row.chosen, call.env, &row.origin.file, &row.run);
        runs.entry(run).or_default().push((row.size.0, off, index));
    }
    let most = (TRIED_OF_ALL / runs.len().max(1)).clamp(TRIED_MIN, TRIED);
    let mut tried = BTreeSet::new();
    for mut sizes in runs.into_values() {
        if sizes.len() > most {
            sizes.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.2.cmp(&b.2)));
            tried.extend(sizes.iter().take(most / 2).map(|s| s.2));
            sizes.sort_unstable_by_key(|s| (s.0, s.2));
            let bytes: Vec<u64> = sizes.iter().map(|s| s.0).collect();
            sizes = evenly(&bytes, most / 2).into_iter().map(|at| sizes[at]).collect();
        }
        tried.extend(sizes.into_iter().map(|s| s.2));
    }
    tried
}

/// A run, over all files that have it: what its rows ask, and under which variables.
type RunOf<'a> = (Anywhere<'a>, Env<'a>);

fn run_of<'a>(row: &'a Measurement, files: &BTreeMap<String, &'a FileReport>) -> RunOf<'a> {
    (Anywhere(Asked::of(row)), files.get(&row.origin.file).map(|file| file.env_of(&row.run)))
}

/// The sizes that are forecast, of each run that has more than are; how many a run of its kind has at most.
fn forecast_sizes<'a>(
    rows: &[&'a Measurement],
    files: &BTreeMap<String, &'a FileReport>,
    predictor: &Predictor<'_>,
) -> HashMap<RunOf<'a>, (usize, BTreeSet<Bytes>)> {
    let mut sizes: HashMap<RunOf<'a>, (usize, BTreeSet<Bytes>)> = HashMap::new();
    for &row in rows {
        sizes.entry(run_of(row, files)).or_default().1.insert(row.size);
    }
    let is_over_hosts = |run: &RunOf<'_>| predictor.hosts(run.0.0.ranks) > 1;
    let over_hosts = sizes.keys().filter(|run| is_over_hosts(run)).count();
    let runs = [sizes.len() - over_hosts, over_hosts];
    sizes.retain(|run, (most, sizes)| {
        let kind = usize::from(is_over_hosts(run));
        *most = (CALLS_MAX[kind] / runs[kind]).clamp(SIZES_MIN, SIZES_MAX);
        let all: Vec<u64> = sizes.iter().map(|size| size.0).collect();
        if all.len() > *most {
            *sizes = evenly(&all, *most).into_iter().map(|at| Bytes(all[at])).collect();
        }
        all.len() > *most
    });
    sizes
}

/// Places of at most `most` of some sizes, sorted, as evenly over their logarithm as they go; the first and the last among
/// them.
fn evenly(sizes: &[u64], most: usize) -> Vec<usize> {
    let octave = |size: u64| (size.max(1) as f64).log2();
    let (Some(&first), Some(&last)) = (sizes.first(), sizes.last()) else { return Vec::new() };
    let step = (octave(last) - octave(first)) / (most - 1) as f64;
    let mut kept: Vec<usize> = Vec::new();
    for place in 0..most {
        let wanted = octave(first) + step * place as f64;
        // Of both neighbours the closer one.
        let after = sizes.partition_point(|&size| octave(size) < wanted).min(sizes.len() - 1);
        let off = |at: usize| (octave(sizes[at]) - wanted).abs();
        kept.push(if after > 0 && off(after - 1) < off(after) { after - 1 } else { after });
    }
    kept.dedup();
    kept
}

/// The rows of a call, each with its index, and with the closest of the forecasts that are there; with those of others
/// where they are to be `tried`.
fn beside<'a>(
    alike: &Alike<'_>,
    rows: &[&'a Measurement],
    predictor: &Predictor<'_>,
    (question, prediction): (Arc<Question>, Arc<Prediction>),
    (closest, tried): (bool, bool),
) -> Vec<(usize, Judged<'a>)> {
    let Question { call, algorithm, protocol, settings, .. } = &*question;
    let (algorithm, protocol) = (*algorithm, *protocol);
    let graphs = predictor.graph(call.ranks, settings);
    let model = predictor.model(&graphs, settings);
    let on = On { topology: predictor.topology(), profile: predictor.profile(), settings };
    let interval_us = confidence::interval_us(on, call, &prediction);
    let predicted_us = |a, p| model.predicted_us(call, a, p).map(f64::from);
    let nccl_us = predicted_us(prediction.algorithm, prediction.protocol);
    let plausible = |&(a, p): &(Algorithm, Protocol)| {
        let slow = predicted_us(a, p).zip(nccl_us).is_some_and(|(us, chosen)| us > PLAUSIBLE * chosen);
        (a, p) != (prediction.algorithm, prediction.protocol)
            && !slow
            && (a != Algorithm::Direct || Plan::may_send(call, p, &settings.nccl))
    };
    let fits =
        |&(begin, end): &(usize, usize)| rows[begin..end].iter().all(|row| error(&prediction, row).abs() <= FITS);
    let others = if tried && !alike.twins.iter().all(fits) {
        predictor.candidates(call, algorithm, protocol, settings)
    } else {
        Vec::new()
    };
    let others: Vec<Arc<Prediction>> = (others.into_iter().filter(plausible))
        .filter_map(|(a, p)| predictor.predict_one(call, a, p, settings, &mut Unobserved).ok().map(Arc::new))
        .chain([Arc::clone(&prediction)])
        .collect();
    let nearest = |row: &Measurement, twins| {
        let fits = fits(twins);
        if !fits && !tried {
            return None;
        }
        let among = if fits { &others[others.len() - 1..] } else { &others };
        among.iter().min_by(|a, b| error(a, row).abs().total_cmp(&error(b, row).abs())).cloned()
    };
    let mut judged = Vec::new();
    for twins in &alike.twins {
        for (index, &row) in rows.iter().enumerate().take(twins.1).skip(twins.0) {
            let closest = closest.then(|| nearest(row, twins)).flatten();
            let (question, prediction) = (Arc::clone(&question), Arc::clone(&prediction));
            let end = End::Whole;
            judged.push((index, Judged { row, question, prediction, nccl_us, interval_us, closest, end }));
        }
    }
    judged
}

/// What a row asks the model, under the variables of its file: `launch` is the mode of rows that do not say theirs.
pub fn question(
    row: &Measurement,
    env: Option<&BTreeMap<String, String>>,
    predictor: &Predictor<'_>,
    launch: Option<Launch>,
) -> Question {
    let Query { call, algorithm, protocol, .. } = Query::of_measurement(row);
    let several = predictor.hosts(row.ranks) > 1;
    let launch = row.launch.or(launch).unwrap_or(if several { Launch::Processes } else { Launch::Threads });
    let version = row.settings.nccl.as_deref().and_then(|text| text.parse::<Version>().ok());
    let (registered, timing) = (row.settings.registered, row.timing.unwrap_or_default());
    let mut settings = Settings { launch, version, registered, timing, ..Settings::default() };
    (settings.nccl, settings.transport) = told(row, env, predictor.topology(), predictor.version(&settings));
    Question { call, together: 1, algorithm, protocol, settings, timed: Timed::Loop }
}

/// Hosts and GPUs of each, where `asked` does not say: enough for all rows, but for those on more hosts
/// than `at_most`; at most the GPUs of the machine `name`.
///
/// # Errors
/// A machine that cannot be read.
pub fn hosts_of_rows<'m>(
    name: &str,
    asked: (Option<u32>, Option<u32>),
    at_most: Option<u32>,
    rows: impl IntoIterator<Item = &'m Measurement>,
) -> Result<(Option<u32>, Option<u32>), Error> {
    let spec = collcast_topologies::builtin::spec_any(name)?;
    let have = spec.host_count();
    let [group] = spec.groups.as_slice() else { return Ok(asked) };
    let (mut most, mut each) = (None, None);
    for row in rows {
        most = most.max(row.hosts);
        each = each.max(row.hosts.map(|hosts| row.ranks.div_ceil(hosts.max(1))));
    }
    let several = most.is_some_and(|n| n > 1);
    let nodes = most.map(|n| n.min(at_most.unwrap_or(n))).filter(|&n| n as usize > have || at_most.is_some());
    let gpus = each.filter(|&g| several && (g as usize) < group.host.gpus.len());
    Ok((asked.0.or(nodes), asked.1.or(gpus)))
}

/// What NCCL was told when a row was measured: what the machine's plugin sets, the machine's variables, those of the file,
/// and before them what the row itself says.
fn told(
    row: &Measurement,
    env: Option<&BTreeMap<String, String>>,
    topology: &Topology,
    version: Version,
) -> (NcclSettings, Transport) {
    // A file can hold runs with several algorithms: rows carry theirs.
    let of_file = env.into_iter().flatten().filter(|(name, _)| *name != "NCCL_ALGO");
    let of_file: Vec<_> = of_file.map(|(name, value)| (name.clone(), value.clone())).collect();
    let mut pairs = plugin::environment(topology, version, &of_file);
    // A value that NCCL would not take leaves the other variables as they are.
    pairs.retain(|pair| refused(pair, topology, version).is_none());
    let mut settings = Environment::parse(&pairs, version).map(|e| e.settings).unwrap_or_default();
    if let Some(text) = &row.settings.nccl_algo {
        settings.algorithms = Selection::parse(text, version).map(|(algorithms, _)| algorithms).unwrap_or_default();
    }
    // Sends and receives have channels of their own, with a limit of their own. Collectives take more than NCCL's search finds
    // where they are told to: by CTAs as `bench` does it, which hold for NVLS too, where the variables do not say otherwise.
    let of_row = row.settings.channels;
    if valid_algorithms(row.collective) == [Algorithm::Direct] {
        (settings.min_p2p_channels, settings.max_p2p_channels) =
            (of_row.or(settings.min_p2p_channels), of_row.or(settings.max_p2p_channels));
    } else if of_row.is_some() && (settings.min_channels, settings.max_channels) != (of_row, of_row) {
        (settings.min_ctas, settings.max_ctas) = (of_row, of_row);
    }
    settings.buffers = row.settings.buffers.or(settings.buffers);
    settings.threads = row.settings.threads.or(settings.threads);
    let moving = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let moving = moving.filter(|(name, _)| Transport::VARIABLES.contains(name));
    let mut transport = Transport::from_env(topology, version, moving).unwrap_or_default();
    if row.settings.peer_access != PeerAccess::On {
        transport.peer_access = row.settings.peer_access;
    }
    (settings, transport)
}

/// Why NCCL would not take a variable's value.
fn refused(pair: &(String, String), topology: &Topology, version: Version) -> Option<String> {
    let (name, value) = (pair.0.as_str(), pair.1.as_str());
    let choice = Environment::parse(std::slice::from_ref(pair), version).err().map(|e| e.to_string());
    let moves = Transport::VARIABLES.contains(&name);
    choice
        .or_else(|| Transport::from_env(topology, version, moves.then_some((name, value))).err().map(|e| e.to_string()))
}

/// What the variables under which files were measured ask for and predictions leave aside, with the files.
pub fn left_aside(files: &[FileReport], topology: &Topology) -> Vec<String> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in files.iter().filter(|f| f.rows > 0) {
        let stated = file.nccl.as_deref().and_then(|text| text.parse().ok());
        let version = stated.or(topology.software.nccl).unwrap_or_default();
        // What NCCL_ALGO says is the rows' own; where it is wrong they are not predicted.
        let pairs = std::iter::once(&file.env).chain(file.run_env.values()).flatten();
        for (name, value) in pairs.filter(|(name, _)| *name != "NCCL_ALGO") {
            let pair = (name.clone(), value.clone());
            let environment = Environment::parse(std::slice::from_ref(&pair), version).unwrap_or_default();
            let not_modelled = environment.not_modelled.into_iter().map(|what| format!("not_modelled: {what}"));
            let refused = refused(&pair, topology, version);
            let refused = refused.map(|why| format!("{why}; predicted as if it were not set"));
            for line in not_modelled.chain(refused) {
                found.entry(line).or_default().insert(file.path.display().to_string());
            }
        }
    }
    let line = |(what, paths): (String, BTreeSet<String>)| match paths.first() {
        Some(first) if paths.len() == 1 => format!("{first}: {what}"),
        first => format!("{} and {} more: {what}", first.map_or("", String::as_str), paths.len() - 1),
    };
    found.into_iter().map(line).collect()
}

fn sorted(counts: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut counts: Vec<usize> = counts.collect();
    counts.sort_unstable();
    counts
}

/// Why a row has no forecast on a machine, where it has none.
pub fn not_predicted(row: &Measurement, topology: &Topology) -> Option<String> {
    if row.ranks > topology.ranks() {
        return Some(format!(
            "they have {} ranks, `{}` has {} GPUs (--nodes adds hosts)",
            row.ranks,
            topology.name,
            topology.ranks()
        ));
    }
    let mut used: BTreeMap<&str, usize> = BTreeMap::new();
    row.settings.gpus.iter().for_each(|(host, _)| *used.entry(host).or_default() += 1);
    let mut has: BTreeMap<HostId, usize> = BTreeMap::new();
    (0..row.ranks).for_each(|r| *has.entry(topology.host_of(Rank(r))).or_default() += 1);
    let [used, has] = [sorted(used.into_values()), sorted(has.into_values())];
    if used.first() != used.last() && used != has {
        return Some(format!(
            "their hosts have {} ranks, those of `{}` as many each: name a machine with such hosts (-t FILE.toml)",
            used.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and "),
            topology.name
        ));
    }
    if let Some(algorithm) = row.settings.algorithm
        && !valid_algorithms(row.collective).contains(&algorithm)
    {
        return Some(format!("{algorithm} is not modelled for {} yet", row.collective));
    }
    if let Some(text) = &row.settings.nccl_algo
        && let Err(error) = Selection::<Algorithm>::parse(text, Version::NEWEST)
    {
        return Some(format!("NCCL_ALGO={text}: {error}"));
    }
    let count = |of: fn(&Topology, Rank) -> HostId| {
        let on: BTreeSet<_> = (0..row.ranks).map(|r| of(topology, Rank(r))).collect();
        u32::try_from(on.len()).unwrap_or(u32::MAX)
    };
    // Sources that know only NCCL's nodes count an NVLink domain of several hosts as one.
    let (hosts, nodes) = (count(Topology::host_of), count(Topology::node_of));
    if row.hosts.is_some_and(|h| h != hosts && h != nodes) {
        let asked = row.hosts.unwrap_or(0);
        return Some(format!(
            "they ran on {asked} hosts; the first {} GPUs of `{}` are on {hosts}",
            row.ranks, topology.name
        ));
    }
    None
}

/// Refuses what no forecast is about: times of CPU threads, and forecasts of ours of which the rows say too little.
///
/// # Errors
/// The first such file.
pub fn can_be_asked(files: &[FileReport]) -> Result<(), Error> {
    let unsaid = files.iter().find_map(|file| Some((file, file.unsaid.as_ref()?)));
    if let Some((file, what)) = unsaid {
        return Err(Error::usage(
            format!("`{}` is a forecast whose rows do not say {what}", file.path.display()),
            "such files can be held beside each other: `collcast compare A B --allow-predicted`",
        ));
    }
    match files.iter().find(|file| file.on_cpu) {
        None => Ok(()),
        Some(file) => Err(Error::usage(
            format!(
                "`{}` was measured on CPU threads (`collcast bench --backend host`); forecasts are of GPUs",
                file.path.display()
            ),
            "measure with --backend cuda or nccl, or hold host runs beside each other: `validate --against` or `compare`",
        )),
    }
}

/// Refuses to hold times of CPU threads beside times of GPUs.
///
/// # Errors
/// The first file of each, where there are both.
pub fn one_kind<'f>(
    a: impl IntoIterator<Item = &'f FileReport>,
    b: impl IntoIterator<Item = &'f FileReport>,
) -> Result<(), Error> {
    let (on_cpu, others): (Vec<&FileReport>, Vec<&FileReport>) =
        a.into_iter().chain(b).filter(|file| file.rows > 0).partition(|file| file.on_cpu);
    match (on_cpu.first(), others.first()) {
        (Some(cpu), Some(gpu)) => Err(Error::usage(
            format!(
                "`{}` was measured on CPU threads (`collcast bench --backend host`), `{}` was not: their times do not compare",
                cpu.path.display(),
                gpu.path.display()
            ),
            "hold runs of CPU threads beside such runs, and runs of GPUs beside runs of GPUs",
        )),
        _ => Ok(()),
    }
}

/// Files by the path that rows name.
pub fn by_path(files: &[FileReport]) -> BTreeMap<String, &FileReport> {
    files.iter().map(|f| (f.path.display().to_string(), f)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use collcast_sim::measurement::Origin;
    use collcast_sim::units::SimDuration;

    fn row(index: u64, size: u64, in_place: bool, registered: bool) -> Measurement {
        Measurement {
            run: format!("run {}", index % 100),
            collective: Collective::AllReduce,
            ranks: 4,
            hosts: Some(1),
            launch: Some(Launch::Threads),
            timing: None,
            dtype: None,
            op: None,
            root: None,
            in_place,
            size: Bytes(size),
            time: SimDuration::from_us(10.0 + index as f64),
            settings: measurement::Settings { registered, ..measurement::Settings::default() },
            chosen: None,
            origin: Origin { file: "a.csv".to_owned(), line: index },
        }
    }

    /// Goal: a call is predicted once, however many rows ask for it, and rows that ask for others are not among them.
    #[test]
    fn rows_alike_are_one_call() {
        let count = |rows: &[Measurement]| {
            let rows: Vec<&Measurement> = rows.iter().collect();
            let calls = calls(&rows, &BTreeMap::new());
            assert_eq!(calls.iter().map(Alike::rows).sum::<usize>(), rows.len());
            calls.len()
        };
        let many = |registered| -> Vec<Measurement> {
            (0..4000).map(|i| row(i, 8 << (i / 2 % 5), i % 2 == 1, registered)).collect()
        };
        assert_eq!(count(&many(false)), 5);
        assert_eq!(count(&many(true)), 10);
        assert_eq!(count(&[many(false), many(true)].concat()), 15);
    }

    /// Goal: sizes are thinned evenly over their logarithm, with both ends, and few are all kept. Expected by hand:
    /// of 1, 2, 4 ... 1024 with as many as 6, every second; of many crowded at one end, that end does not get more.
    #[test]
    fn sizes_are_thinned_evenly() {
        let kept = |all: &[u64], most| evenly(all, most).into_iter().map(|at| all[at]).collect::<Vec<_>>();
        let powers: Vec<u64> = (0..=10).map(|p| 1 << p).collect();
        assert_eq!(kept(&powers, 6), [1, 4, 16, 64, 256, 1024]);
        assert_eq!(kept(&powers, 64), powers);
        let crowded: Vec<u64> = (1..=1000).chain([1 << 20]).collect();
        assert_eq!(kept(&crowded, 5), [1, 32, 1000, 1 << 20]);
    }

    /// Goal: channels that `bench` forces hold for NVLS too; those of `NCCL_MIN_NCHANNELS` and `NCCL_MAX_NCHANNELS` do not, as to
    /// NCCL.
    #[test]
    fn channels_of_a_row_are_those_of_its_blocks() -> Result<(), Error> {
        let site = crate::Site::load("dgx-h100")?;
        let mut row = Measurement { ranks: 8, ..row(0, 1 << 30, false, false) };
        row.settings.algorithm = Some(Algorithm::Nvls);
        row.settings.channels = Some(8);
        let told = BTreeMap::from(["NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"].map(|n| (n.to_owned(), "8".to_owned())));
        for (env, channels) in [(None, 8), (Some(&told), 16)] {
            let predictor = site.predictor();
            let Question { call, algorithm, protocol, settings, .. } = question(&row, env, &predictor, None);
            let decided = predictor.decide(&call, algorithm, protocol, &settings)?;
            assert_eq!((decided.algorithm, decided.channels), (Algorithm::Nvls, channels));
        }
        Ok(())
    }

    /// Goal: a count of NVLink domains in place of hosts, as NCCL counts nodes, is no other machine.
    #[test]
    fn nodes_are_hosts_or_domains() -> Result<(), Error> {
        let topology = crate::SiteSpec::new("gb200-nvl72").nodes(18).load()?.topology;
        for (hosts, other) in [(Some(18), false), (Some(1), false), (None, false), (Some(9), true)] {
            let row = Measurement { ranks: 72, hosts, ..row(0, 8, false, false) };
            assert_eq!(not_predicted(&row, &topology).is_some(), other, "{hosts:?}");
        }
        Ok(())
    }
}

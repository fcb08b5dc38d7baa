//! Runs beside others that are known to be good.

use std::collections::BTreeMap;

use collcast_hwbackend::read::{End, FileReport, ReadReport};
use collcast_sim::collective::{Algorithm, Collective, DataType, Launch, Protocol, ReduceOp};
use collcast_sim::measurement::Measurement;

use super::kind::Doubt;
use super::run::{Point, Run, how, used};
use crate::statistics::median;

/// How far good runs of like machines lie apart: twice what two runs of one machine do (`crate::noise`).
const LIKE_MACHINES: Doubt = Doubt { small: 0.060, middle: 0.042, large: 0.018 };

/// How a call ran, beside its ranks and size: times of another way are no measure of it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct How {
    hosts: Option<u32>,
    /// How kernels were started.
    pub(crate) launch: Option<Launch>,
    dtype: Option<DataType>,
    op: Option<ReduceOp>,
    root: Option<u32>,
    algorithm: Option<Algorithm>,
    protocol: Option<Protocol>,
    nccl_algo: Option<String>,
    channels: Option<u32>,
}

impl How {
    /// That of a row.
    pub(crate) fn of(row: &Measurement) -> Self {
        let settings = &row.settings;
        Self {
            hosts: row.hosts,
            launch: row.launch,
            dtype: row.dtype,
            op: row.op,
            root: row.root,
            algorithm: settings.algorithm,
            protocol: settings.protocol,
            nccl_algo: settings.nccl_algo.clone(),
            channels: settings.channels,
        }
    }

    /// Whether another may be the same: what is not said may be anything, and what is not forced is NCCL's choice.
    fn may_be(&self, other: &Self) -> bool {
        fn alike<T: PartialEq>(a: Option<T>, b: Option<T>) -> bool {
            a.zip(b).is_none_or(|(a, b)| a == b)
        }
        alike(self.hosts, other.hosts)
            && alike(self.launch, other.launch)
            && alike(self.dtype, other.dtype)
            && alike(self.op, other.op)
            && alike(self.root, other.root)
            && (self.algorithm, self.protocol, self.channels) == (other.algorithm, other.protocol, other.channels)
            && self.nccl_algo == other.nccl_algo
    }
}

/// Times in us by file, by the places of the GPUs of one host that ran it, and by how.
type OfFiles = BTreeMap<(String, Vec<String>, How), Vec<f64>>;

/// A run by file, name, collective and ranks.
type Key<'m> = (&'m str, &'m str, Collective, u32);

/// A row, and how it ran.
type Row<'m> = (&'m Measurement, How);

/// Rows with what each should take, in us.
type Expected<'m> = Vec<(&'m Measurement, f64)>;

/// What good runs took: their median by call and size.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Reference {
    /// Times in us of each file's runs, by call, size, and whether in place.
    times: BTreeMap<(Collective, u32), BTreeMap<(u64, bool), OfFiles>>,
    /// Whether the nearest count alone, where there are any: those that say the same of how they ran, and GPUs at the same
    /// places, since pairs of a host have ways that differ.
    nearest: bool,
}

impl Reference {
    /// That of some measurements; the median over files, where there are several.
    pub fn of(good: &ReadReport) -> Self {
        Self { nearest: true, ..Self::of_all(good) }
    }

    /// The same for measurements that are held against each other: other GPUs of the host are what each is held against.
    pub fn of_all(good: &ReadReport) -> Self {
        let mut times = Self::default();
        for row in &good.measurements {
            let sizes = times.times.entry((row.collective, row.ranks)).or_default();
            let files = sizes.entry((row.size.0, row.in_place)).or_default();
            files.entry((row.origin.file.clone(), places(row), How::of(row))).or_default().push(row.time.as_us());
        }
        times
    }

    /// What a row should take, in us, where some file has its call and size: one that may have run as it did, or `any`.
    fn expected(&self, row: &Measurement, how: &How, any: bool) -> Option<f64> {
        let sizes = self.times.get(&(row.collective, row.ranks))?;
        let mine = places(row);
        [row.in_place, !row.in_place].into_iter().find_map(|in_place| {
            let files = sizes.get(&(row.size.0, in_place))?;
            let mut counted: Vec<_> = files.iter().filter(|((.., of), _)| any || of.may_be(how)).collect();
            if self.nearest {
                counted = preferred(counted, |((.., of), _)| of == how);
                counted = preferred(counted, |((_, places, _), _)| *places == mine);
            }
            let times: Vec<f64> = counted.into_iter().map(|(_, times)| median(times.clone())).collect();
            (!times.is_empty()).then(|| median(times))
        })
    }
}

/// Those of which something is true, where there are any; all otherwise.
fn preferred<T>(all: Vec<T>, is: impl Fn(&T) -> bool) -> Vec<T> {
    if all.iter().any(&is) { all.into_iter().filter(is).collect() } else { all }
}

/// The places of the GPUs that ran a row, where it says so of one host: other hosts have the same.
pub(crate) fn places(row: &Measurement) -> Vec<String> {
    match &row.settings.host_names[..] {
        [_] => row.settings.gpus.iter().map(|(_, gpu)| gpu.clone()).collect(),
        _ => Vec::new(),
    }
}

/// Runs beside what good ones took.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Beside {
    /// Each by its counterparts.
    pub runs: Vec<Run>,
    /// Rows that have no counterpart, by file.
    pub alone: BTreeMap<String, usize>,
    /// Runs whose counterparts all ran another way: what they should take is known to a factor of two.
    pub unlike: usize,
}

/// Holds runs beside what good ones took that ran as they did, or beside any where there are no such.
pub fn against(measured: &ReadReport, good: &Reference) -> Beside {
    let mut runs: BTreeMap<Key<'_>, Vec<Row<'_>>> = BTreeMap::new();
    for row in &measured.measurements {
        let key = (row.origin.file.as_str(), row.run.as_str(), row.collective, row.ranks);
        runs.entry(key).or_default().push((row, How::of(row)));
    }
    let ends: BTreeMap<String, &FileReport> =
        measured.files.iter().map(|file| (file.path.display().to_string(), file)).collect();
    let mut beside = Beside::default();
    for ((file, name, collective, ranks), run) in runs {
        for all in of_one_way(run) {
            let expected = |any| -> Expected<'_> {
                all.iter().filter_map(|(row, how)| Some((*row, good.expected(row, how, any)?))).collect()
            };
            let like = expected(false);
            let unlike = like.is_empty();
            let rows = if unlike { expected(true) } else { like };
            if rows.len() < all.len() {
                *beside.alone.entry(file.to_owned()).or_default() += all.len() - rows.len();
            }
            let Some((first, _)) = rows.first() else { continue };
            beside.unlike += usize::from(unlike);
            beside.runs.push(Run {
                file: file.to_owned(),
                name: name.to_owned(),
                collective,
                ranks,
                hosts: first.hosts,
                how: how(first),
                used: used(&first.settings),
                end: ends.get(file).map_or(End::Whole, |report| report.end_of(name)),
                launch: first.launch.unwrap_or(Launch::Processes),
                kind: None,
                points: points(&rows),
                doubt: if unlike { Doubt::UNKNOWN } else { LIKE_MACHINES },
            });
        }
    }
    beside
}

/// The rows of a run by how they ran, where a size ran in several ways: a benchmark may force other channels at each size.
fn of_one_way(run: Vec<Row<'_>>) -> Vec<Vec<Row<'_>>> {
    let is_one_way = {
        let mut sizes: BTreeMap<u64, &How> = BTreeMap::new();
        run.iter().all(|(row, how)| *sizes.entry(row.size.0).or_insert(how) == how)
    };
    if is_one_way {
        return vec![run];
    }
    let mut ways: BTreeMap<How, Vec<Row<'_>>> = BTreeMap::new();
    for (row, how) in run {
        ways.entry(how.clone()).or_default().push((row, how));
    }
    ways.into_values().collect()
}

fn points(rows: &[(&Measurement, f64)]) -> Vec<Point> {
    let mut sizes: BTreeMap<u64, Vec<(&Measurement, f64)>> = BTreeMap::new();
    for &(row, expected) in rows {
        sizes.entry(row.size.0).or_default().push((row, expected));
    }
    let mut points: Vec<Point> = Vec::new();
    for (size_bytes, times) in sizes {
        let expected_us = times[0].1;
        points.push(Point {
            size_bytes,
            measured_us: times.iter().map(|(row, expected)| row.time.as_us() * expected_us / expected).collect(),
            in_place: times.iter().map(|(row, _)| row.in_place).collect(),
            expected_us,
            doubt: 0.0,
        });
    }
    points
}

//! Runs beside others that are known to be good.

use std::collections::BTreeMap;

use collcast_hwbackend::read::ReadReport;
use collcast_sim::collective::{Collective, Launch};
use collcast_sim::measurement::Measurement;

use super::kind::Doubt;
use super::run::{Point, Run, used};
use crate::statistics::median;

/// How far good runs of like machines lie apart: twice what two runs of one machine do (`crate::noise`).
const LIKE_MACHINES: Doubt = Doubt { small: 0.060, middle: 0.042, large: 0.018 };

/// Times in us by file, and by the places of the GPUs of one host that ran it.
type OfFiles = BTreeMap<(String, Vec<String>), Vec<f64>>;

/// A run by file, name, collective and ranks.
type Key<'m> = (&'m str, &'m str, Collective, u32);

/// Rows with what each should take, in us.
type Beside<'m> = Vec<(&'m Measurement, f64)>;

/// What good runs took: their median by call and size.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Reference {
    /// Times in us of each file's runs, by call, size, and whether in place.
    times: BTreeMap<(Collective, u32), BTreeMap<(u64, bool), OfFiles>>,
    /// Whether those of GPUs at the same places count alone, where there are any: pairs of a host have ways that differ.
    by_place: bool,
}

impl Reference {
    /// That of some measurements; the median over files, where there are several.
    pub fn of(good: &ReadReport) -> Self {
        Self { by_place: true, ..Self::of_all(good) }
    }

    /// The same for measurements that are held against each other: other GPUs of the host are what each is held against.
    pub fn of_all(good: &ReadReport) -> Self {
        let mut times = Self::default();
        for row in &good.measurements {
            let sizes = times.times.entry((row.collective, row.ranks)).or_default();
            let files = sizes.entry((row.size.0, row.in_place)).or_default();
            files.entry((row.origin.file.clone(), places(row))).or_default().push(row.time.as_us());
        }
        times
    }

    /// What a row should take, in us, where some file has its call and size.
    fn expected(&self, row: &Measurement) -> Option<f64> {
        let sizes = self.times.get(&(row.collective, row.ranks))?;
        let of = |in_place| sizes.get(&(row.size.0, in_place));
        let files = of(row.in_place).or_else(|| of(!row.in_place))?;
        let mine = places(row);
        let there = |at: &&(String, Vec<String>)| at.1 == mine;
        let by_place = self.by_place && files.keys().any(|at| there(&at));
        let counted = files.iter().filter(|(at, _)| !by_place || there(at));
        Some(median(counted.map(|(_, times)| median(times.clone())).collect()))
    }
}

/// The places of the GPUs that ran a row, where it says so of one host: other hosts have the same.
pub(crate) fn places(row: &Measurement) -> Vec<String> {
    match &row.settings.host_names[..] {
        [_] => row.settings.gpus.iter().map(|(_, gpu)| gpu.clone()).collect(),
        _ => Vec::new(),
    }
}

/// The runs beside what good ones took, and how many rows have no counterpart among these.
pub fn against(measured: &ReadReport, good: &Reference) -> (Vec<Run>, usize) {
    let mut runs: BTreeMap<Key<'_>, Beside<'_>> = BTreeMap::new();
    let mut alone = 0;
    for row in &measured.measurements {
        match good.expected(row) {
            Some(us) => {
                let run = runs.entry((&row.origin.file, &row.run, row.collective, row.ranks)).or_default();
                run.push((row, us));
            }
            None => alone += 1,
        }
    }
    let run = |((file, name, collective, ranks), rows): (Key<'_>, Beside<'_>)| Run {
        file: file.to_owned(),
        name: name.to_owned(),
        collective,
        ranks,
        hosts: rows[0].0.hosts,
        used: used(&rows[0].0.settings),
        launch: rows[0].0.launch.unwrap_or(Launch::Processes),
        kind: None,
        points: points(&rows),
        doubt: LIKE_MACHINES,
    };
    (runs.into_iter().map(run).collect(), alone)
}

fn points(rows: &[(&Measurement, f64)]) -> Vec<Point> {
    let mut sizes: BTreeMap<u64, Vec<(f64, f64)>> = BTreeMap::new();
    for (row, expected) in rows {
        sizes.entry(row.size.0).or_default().push((row.time.as_us(), *expected));
    }
    let mut points: Vec<Point> = Vec::new();
    for (size_bytes, times) in sizes {
        let expected_us = times[0].1;
        points.push(Point {
            size_bytes,
            measured_us: times.iter().map(|(us, expected)| us * expected_us / expected).collect(),
            expected_us,
            doubt: 0.0,
        });
    }
    points
}

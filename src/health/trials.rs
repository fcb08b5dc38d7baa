//! Runs as evidence of who is slow: how much longer than expected their large sizes took, and over which hosts.

use std::collections::{BTreeMap, BTreeSet};

use super::part::Part;
use super::run::{Point, Run};
use super::suspects::Trial;
use crate::noise;
use crate::statistics::median;

/// Share of runs of a kind that must have a size for all to be compared at it; runs without are left out.
const SHARED: f64 = 0.75;
/// Share of their sizes that are compared, the largest ones: where links and NICs show.
const LARGE: f64 = 1.0 / 3.0;
/// The band of large sizes in [`noise::known`].
const BAND: u8 = 2;

/// The runs that say what they used. Those of one collective over as many ranks are compared with each other.
pub fn trials(runs: &[Run]) -> Vec<Trial> {
    let mut kinds: BTreeMap<String, Vec<&Run>> = BTreeMap::new();
    for run in runs {
        kinds.entry(format!("{} over {} ranks", run.collective, run.ranks)).or_default().push(run);
    }
    kinds.iter().flat_map(|(kind, runs)| of_kind(kind, runs)).filter(|trial| !trial.members.is_empty()).collect()
}

fn of_kind(kind: &str, runs: &[&Run]) -> Vec<Trial> {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    runs.iter().flat_map(|run| &run.points).for_each(|p| *counts.entry(p.size_bytes).or_default() += 1);
    let shared: BTreeSet<u64> =
        counts.into_iter().filter(|(_, n)| *n as f64 >= SHARED * runs.len() as f64).map(|c| c.0).collect();
    let large = (shared.len() as f64 * LARGE).ceil() as usize;
    let sizes: BTreeSet<u64> = shared.into_iter().rev().take(large).collect();
    let trial = |run: &&Run| {
        let points: Vec<&Point> = run.points.iter().filter(|p| sizes.contains(&p.size_bytes)).collect();
        if points.is_empty() || points.len() < sizes.len() {
            return None;
        }
        // A disturbed repeat is the longer one.
        let least = |p: &&Point| p.measured_us.iter().copied().fold(f64::INFINITY, f64::min);
        let excess = median(points.iter().map(|p| (least(p) / p.expected_us).ln()).collect());
        let noise = noise::known(&[Some(run.launch)], BAND);
        Some(Trial {
            kind: kind.to_owned(),
            members: run.used.members(),
            excess,
            deviation: noise.offset.hypot(noise.row / (points.len() as f64).sqrt()),
            doubt: run.doubt.of(Part::Large),
        })
    };
    runs.iter().filter_map(trial).collect()
}

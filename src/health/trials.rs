//! Runs as evidence of who is slow: how much longer than expected their large sizes took, and over which hosts.

use std::collections::{BTreeMap, BTreeSet};

use collcast_hwbackend::read::End;

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

/// The runs that say what they used. Those of one collective over as many ranks are compared with each other. How long runs
/// took that failed is no evidence.
pub fn trials(runs: &[Run]) -> Vec<Trial> {
    compared(runs).into_iter().filter_map(|(_, trial)| trial).collect()
}

/// Each run, with what it is as evidence; none where it failed, says nothing of what it used, or lacks sizes of the rest.
pub fn compared(runs: &[Run]) -> Vec<(&Run, Option<Trial>)> {
    let mut kinds: BTreeMap<String, Vec<&Run>> = BTreeMap::new();
    let (failed, others): (Vec<&Run>, Vec<&Run>) = runs.iter().partition(|run| run.end == End::Failed);
    for run in others {
        kinds.entry(format!("{} over {} ranks", run.collective, run.ranks)).or_default().push(run);
    }
    let each = kinds.iter().flat_map(|(kind, runs)| of_kind(kind, runs));
    let each = each.map(|(run, trial)| (run, trial.filter(|trial| !trial.members.is_empty())));
    each.chain(failed.into_iter().map(|run| (run, None))).collect()
}

fn of_kind<'r>(kind: &str, runs: &[&'r Run]) -> Vec<(&'r Run, Option<Trial>)> {
    // Those that were cut lack sizes, unless all are.
    let whole: Vec<&&Run> = runs.iter().filter(|run| run.end == End::Whole).collect();
    let whole = if whole.is_empty() { runs.iter().collect() } else { whole };
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    whole.iter().flat_map(|run| &run.points).for_each(|p| *counts.entry(p.size_bytes).or_default() += 1);
    let shared: BTreeSet<u64> =
        counts.into_iter().filter(|(_, n)| *n as f64 >= SHARED * whole.len() as f64).map(|c| c.0).collect();
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
    runs.iter().map(|run| (*run, trial(run))).collect()
}

//! Of so many workers, how many should prefill and how many decode?

use std::cmp::Ordering;

use collcast_scenarios::serving::Policy;
use serde::Serialize;

use super::fleet::{Fleet, Group};
use super::outcome::Outcome;
use super::request::{MOST_STEPS, Request};
use super::run::{load, run};
use super::setup::Setup;
use crate::error::Error;
use crate::watch::Watch;

/// Workers that are split at most: each split is a run of its own.
const MOST: u32 = 64;

/// One fleet.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Candidate {
    /// Who serves.
    pub fleet: Fleet,
    /// What came of it, or why it cannot be.
    pub outcome: Result<Outcome, String>,
}

/// All fleets of so many workers: those that meet the objective first, then by goodput.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Split {
    /// The fleets.
    pub candidates: Vec<Candidate>,
}

/// Runs a load through every fleet of `all` workers: all of them for both, and each number of them for prefill.
///
/// # Errors
/// As of [`serve`](super::serve()), of all fleets; more workers than are split.
pub fn split(request: &Request, all: Group, watch: &Watch) -> Result<Split, Error> {
    if all.workers > MOST {
        return Err(Error::usage(format!("{} workers have too many splits", all.workers), format!("at most {MOST}")));
    }
    let setup = Setup::new(request, all.workers * all.gpus())?;
    let asked = load(request)?;
    let policy = Policy { steps: MOST_STEPS / u64::from(all.workers), ..request.policy };
    let request = &Request { policy, ..request.clone() };
    let of = |workers| Group { workers, ..all };
    let apart = (1..all.workers)
        .map(|prefill| Fleet::Disaggregated { prefill: of(prefill), decode: of(all.workers - prefill) });
    let mut candidates = Vec::new();
    let mut last = None;
    let parts = watch.parts(all.workers as usize);
    for fleet in std::iter::once(Fleet::Aggregated(all)).chain(apart) {
        let outcome = run(request, &setup, fleet, &asked);
        let outcome = outcome.map_err(|error| {
            let text = error.to_string();
            last = Some(error);
            text
        });
        candidates.push(Candidate { fleet, outcome });
        parts.done()?;
    }
    if let (true, Some(error)) = (candidates.iter().all(|candidate| candidate.outcome.is_err()), last) {
        return Err(error);
    }
    let key = |candidate: &Candidate| match &candidate.outcome {
        Ok(Outcome { summary, .. }) => [request.objective.missed(summary), -summary.goodput, summary.whole.p90],
        Err(_) => [f64::INFINITY; 3],
    };
    candidates.sort_by(|a, b| key(a).partial_cmp(&key(b)).unwrap_or(Ordering::Equal));
    Ok(Split { candidates })
}

//! Calls that did not end: who waits in them, and who never came.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use collcast_hwbackend::trace::{Group, Recorded, State, Trace};

use super::matched::named;
use super::outcome::Stuck;

/// Most ranks of a list that are kept.
const RANKS: usize = 1024;
/// Most calls that are told.
const MOST: usize = 32;

/// A call of a group on the ranks that have it.
#[derive(Default)]
struct Reached {
    names: BTreeSet<String>,
    waiting: BTreeSet<u32>,
}

/// The first call of each group that did not end on some rank. Later ones wait for it.
pub(super) fn stuck(traces: &[Trace], ranks: &[u32]) -> Vec<Stuck> {
    let mut open: BTreeMap<Arc<Group>, BTreeMap<u64, Reached>> = BTreeMap::new();
    // Of each group and rank, its last call.
    let mut newest: BTreeMap<(Arc<Group>, u32), u64> = BTreeMap::new();
    for (trace, &rank) in traces.iter().zip(ranks) {
        let Recorded::Calls(entries) = &trace.recorded else { continue };
        for entry in entries.iter().filter(|entry| !entry.pair) {
            let Some(call) = trace.calls.get(entry.call as usize) else { continue };
            let group = call.group.clone().unwrap_or_default();
            let last = newest.entry((Arc::clone(&group), rank)).or_default();
            *last = entry.sequence.max(*last);
            if entry.state != State::Completed {
                let reached = open.entry(group).or_default().entry(entry.sequence).or_default();
                reached.names.insert(call.name.clone());
                reached.waiting.insert(rank);
            }
        }
    }
    let given: BTreeSet<u32> = ranks.iter().copied().collect();
    let mut all = Vec::new();
    for (group, calls) in open {
        let Some((sequence, reached)) = calls.into_iter().next() else { continue };
        let (known, unknown): (Vec<u32>, Vec<u32>) = group.ranks.iter().partition(|rank| given.contains(rank));
        let behind = |rank: &u32| newest.get(&(Arc::clone(&group), *rank)).is_none_or(|&last| last < sequence);
        let missing: Vec<u32> = known.into_iter().filter(behind).take(RANKS).collect();
        let one_name = reached.names.len() == 1;
        // A call that all ranks have begun, and that agree, may only have been under way when the dump was written.
        if missing.is_empty() && unknown.is_empty() && one_name {
            continue;
        }
        all.push(Stuck {
            group: named(&group),
            sequence,
            names: reached.names.into_iter().collect(),
            waiting: reached.waiting.into_iter().take(RANKS).collect(),
            missing,
            unknown: unknown.into_iter().take(RANKS).collect(),
        });
    }
    all.truncate(MOST);
    all
}

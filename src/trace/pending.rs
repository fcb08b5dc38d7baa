//! Calls that did not end: who waits in them, who never came, and who calls something else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use collcast_hwbackend::trace::{Call, Entry, Group, Recorded, State, Trace};
use collcast_sim::collective::{Collective, DataType};
use collcast_sim::units::Bytes;

use super::matched::named;
use super::outcome::{Stuck, of_ranks};

/// Most ranks of a list that are kept.
const RANKS: usize = 1024;
/// Most calls that are told.
const MOST: usize = 32;
/// What PyTorch calls a batch of messages or calls. One of messages has the number of the last collective.
const BATCH: &str = "nccl:coalesced";

/// What a rank calls: name, and type and size where all ranks must give the same.
type What = (String, Option<DataType>, Option<Bytes>);

/// A call of a group on the ranks that have it.
#[derive(Default)]
struct Reached {
    /// What each rank calls, batches aside; several where calls are made as one.
    calls: BTreeMap<u32, BTreeSet<What>>,
    /// How far each rank came.
    states: BTreeMap<u32, State>,
    names: BTreeSet<String>,
    /// Whether no rank can end it before all have begun.
    of_all: bool,
}

/// The first call of each group that did not end on some rank, and messages that did not; first those that show a fault.
/// Later calls wait for it.
pub(super) fn stuck(traces: &[Trace], ranks: &[u32]) -> Vec<Stuck> {
    let given: BTreeSet<u32> = ranks.iter().copied().collect();
    let mut all = collectives(traces, ranks, &given);
    all.extend(messages(traces, ranks, &given));
    all.sort_by_key(|stuck| !stuck.failed());
    all.truncate(MOST);
    all
}

/// The entries of dumps, each with its rank, call and group.
fn entries<'t>(traces: &'t [Trace], ranks: &'t [u32]) -> impl Iterator<Item = (u32, &'t Entry, &'t Call, Arc<Group>)> {
    traces.iter().zip(ranks).flat_map(|(trace, &rank)| {
        let entries = match &trace.recorded {
            Recorded::Calls(entries) => entries.as_slice(),
            Recorded::Kernels(_) => &[],
        };
        entries.iter().filter_map(move |entry| {
            let call = trace.calls.get(entry.call as usize)?;
            Some((rank, entry, call, call.group.clone().unwrap_or_default()))
        })
    })
}

fn collectives(traces: &[Trace], ranks: &[u32], given: &BTreeSet<u32>) -> Vec<Stuck> {
    let mut first: BTreeMap<Arc<Group>, u64> = BTreeMap::new();
    // Of each group and rank, its last call.
    let mut newest: BTreeMap<(Arc<Group>, u32), u64> = BTreeMap::new();
    for (rank, entry, _, group) in entries(traces, ranks).filter(|(_, entry, ..)| !entry.pair) {
        let last = newest.entry((Arc::clone(&group), rank)).or_default();
        *last = entry.sequence.max(*last);
        if entry.state != State::Completed {
            let first = first.entry(group).or_insert(entry.sequence);
            *first = entry.sequence.min(*first);
        }
    }
    let mut open: BTreeMap<Arc<Group>, Reached> = BTreeMap::new();
    for (rank, entry, call, group) in entries(traces, ranks).filter(|(_, entry, ..)| !entry.pair) {
        if first.get(&group) == Some(&entry.sequence) {
            open.entry(group).or_default().add(rank, entry.state, call);
        }
    }
    let told = |(group, reached): (Arc<Group>, Reached)| {
        let sequence = first.get(&group).copied().unwrap_or(0);
        let (known, unknown): (Vec<u32>, Vec<u32>) = group.ranks.iter().partition(|rank| given.contains(rank));
        let behind = |rank: &u32| newest.get(&(Arc::clone(&group), *rank)).is_none_or(|&last| last < sequence);
        // Messages are of some ranks of the group.
        let of_messages = reached.calls.is_empty();
        let missing = known.into_iter().filter(|rank| !of_messages && behind(rank)).collect();
        reached.told(named(&group), sequence, missing, unknown)
    };
    let mut all: Vec<Stuck> = open.into_iter().map(told).collect();
    let crossed: Vec<Option<String>> = all
        .iter()
        .map(|stuck| {
            let other = all.iter().find(|other| stuck.awaits(other) && other.awaits(stuck))?;
            Some(format!("call {} of group {}", other.sequence, other.group))
        })
        .collect();
    for (stuck, crossed) in all.iter_mut().zip(crossed) {
        stuck.crossed = crossed;
    }
    all
}

impl Reached {
    fn add(&mut self, rank: u32, state: State, call: &Call) {
        let so_far = self.states.entry(rank).or_insert(state);
        *so_far = state.max(*so_far);
        self.names.insert(call.name.clone());
        if call.name == BATCH {
            return;
        }
        let all =
            matches!(call.collective, Some(Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter));
        let sized = all || matches!(call.collective, Some(Collective::Broadcast | Collective::Reduce));
        self.of_all |= all;
        let what = (call.name.clone(), call.dtype.filter(|_| sized), call.size().filter(|_| sized));
        self.calls.entry(rank).or_default().insert(what);
    }

    fn told(self, group: String, sequence: u64, missing: Vec<u32>, unknown: Vec<u32>) -> Stuck {
        let of = |wanted: &dyn Fn(State) -> bool| -> Vec<u32> {
            self.states.iter().filter(|(_, state)| wanted(**state)).map(|(rank, _)| *rank).collect()
        };
        let some = |wanted: State| self.states.values().any(|state| *state == wanted);
        let (ended, begun) = (some(State::Completed), some(State::Started));
        let not_begun = of(&|state| state == State::Scheduled && ended && self.of_all);
        let idle = of(&|state| state == State::Scheduled && begun);
        let mut who: BTreeMap<BTreeSet<What>, Vec<u32>> = BTreeMap::new();
        for (rank, calls) in self.calls {
            who.entry(calls).or_default().push(rank);
        }
        let agree = who.len() < 2;
        let on = |(calls, ranks): (BTreeSet<What>, Vec<u32>)| {
            let calls: Vec<String> = calls.into_iter().map(in_words).collect();
            let ranks = of_ranks(&ranks);
            format!("{} on {ranks}", calls.join(" and "))
        };
        let names: Vec<String> =
            if agree { self.names.into_iter().collect() } else { who.into_iter().take(MOST).map(on).collect() };
        let short = |ranks: Vec<u32>| ranks.into_iter().take(RANKS).collect();
        Stuck {
            group,
            sequence,
            names,
            agree,
            waiting: short(of(&|state| state != State::Completed)),
            not_begun: short(not_begun),
            idle: short(idle),
            crossed: None,
            missing: short(missing),
            unknown: short(unknown),
        }
    }
}

fn in_words((name, dtype, size): What) -> String {
    let of = dtype.map_or_else(String::new, |dtype| format!(" of {}", dtype.name()));
    let size = size.map_or_else(String::new, |size| format!(", {}", size.about()));
    format!("{name}{of}{size}")
}

/// Messages between two ranks whose kernel runs. One of a batch has no state of its own: the batch has.
fn messages(traces: &[Trace], ranks: &[u32], given: &BTreeSet<u32>) -> Vec<Stuck> {
    /// A way: from one rank of a group to another.
    type Way = (Arc<Group>, (u32, u32));
    let mut open: BTreeMap<Way, (u64, Reached)> = BTreeMap::new();
    // Messages of each way that a rank has, whatever came of them.
    let mut counts: BTreeMap<(Way, u32), usize> = BTreeMap::new();
    for (rank, entry, call, group) in entries(traces, ranks).filter(|(_, entry, ..)| entry.pair) {
        let Some(ends) = ends_of(&call.name) else { continue };
        let way = (group, ends);
        *counts.entry((way.clone(), rank)).or_default() += 1;
        if entry.state == State::Started {
            let (sequence, reached) = open.entry(way).or_insert((entry.sequence, Reached::default()));
            *sequence = entry.sequence.min(*sequence);
            reached.states.insert(rank, State::Started);
            reached.names.insert(call.name.clone());
        }
    }
    let stuck = |(way, (sequence, reached)): (Way, (u64, Reached))| {
        let (group, (from, to)) = &way;
        let count = |rank: u32| counts.get(&(way.clone(), rank)).copied().unwrap_or(0);
        let most = reached.states.keys().map(|rank| count(*rank)).max().unwrap_or(0);
        let ends = [from, to].into_iter().filter_map(|&end| group.ranks.get(end as usize).copied());
        let others: Vec<u32> = ends.filter(|rank| !reached.states.contains_key(rank)).collect();
        let (known, unknown): (Vec<u32>, Vec<u32>) = others.into_iter().partition(|rank| given.contains(rank));
        let missing = known.into_iter().filter(|rank| count(*rank) < most).collect();
        reached.told(named(group), sequence, missing, unknown)
    };
    open.into_iter().map(stuck).collect()
}

/// Whence and whither a message goes: `nccl:send 0->1` and `nccl:recv 1<-0` are of one.
fn ends_of(name: &str) -> Option<(u32, u32)> {
    let ends = name.rsplit(' ').next()?;
    let (from, to) = ends.split_once("->").or_else(|| ends.split_once("<-").map(|(to, from)| (from, to)))?;
    Some((from.parse().ok()?, to.parse().ok()?))
}

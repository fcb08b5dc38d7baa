//! The same call on several ranks: who came last, and what it took without waiting.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use collcast_hwbackend::trace::{Call, Entry, Group, State, Trace};
use collcast_sim::collective::{Collective, DataType};

use super::outcome::{CallRow, Outcome};
use super::timeline::Lane;
use crate::statistics::median;

/// Part of the calls of a row from which on it is always the same rank that comes last, and no accident.
const ALWAYS: f64 = 2.0 / 3.0;
/// Calls of a row from which on that is said.
const OFTEN: usize = 3;
/// Two times that differ by no more are the same, us: older traces have whole microseconds, and GPUs' clocks may tick as
/// slowly.
const RESOLUTION_US: f64 = 1.0;
/// Waiting, as a part of the time without it, from which on it is worth a word.
const WORTH: f64 = 0.05;

/// Which call it is: the same on all ranks of its group.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Key {
    group: Arc<Group>,
    /// The step, and the number within it; or that of the group.
    number: (u32, u64),
    /// Calls between two ranks are of one rank each.
    alone: Option<u32>,
}

/// A call on one rank.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Seen {
    rank: u32,
    key: Key,
    call: Call,
    time_us: f64,
    /// Time beside computation and exposed; none where nothing says.
    beside_us: Option<f64>,
    exposed_us: Option<f64>,
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds of a recording")]
fn us(ns: i64) -> f64 {
    ns as f64 / 1e3
}

impl Seen {
    /// Calls of a profiler's trace, numbered in each step by group. Sends and receives have numbers of their own: ranks of a
    /// pipeline make different numbers of them.
    pub(super) fn of_lane<'t>(trace: &'t Trace, rank: u32, lane: &'t Lane) -> impl Iterator<Item = Self> + 't {
        let mut numbers: BTreeMap<(u32, Arc<Group>, bool), u64> = BTreeMap::new();
        lane.spans.iter().filter_map(move |span| {
            let call = trace.calls.get(span.call? as usize)?;
            let group = call.group.clone().unwrap_or_default();
            let number = numbers.entry((span.step, Arc::clone(&group), alone(call))).or_default();
            *number += 1;
            let key = Key { group, number: (span.step, *number), alone: alone(call).then_some(rank) };
            let (beside_us, exposed_us) = (Some(us(span.beside)), Some(us(span.exposed)));
            Some(Self { rank, key, call: call.clone(), time_us: us(span.length), beside_us, exposed_us })
        })
    }

    /// Calls of a flight recorder's dump that ended and were timed.
    pub(super) fn of_entries<'t>(trace: &'t Trace, rank: u32, entries: &'t [Entry]) -> impl Iterator<Item = Self> + 't {
        entries.iter().filter(|entry| entry.state == State::Completed).filter_map(move |entry| {
            let call = trace.calls.get(entry.call as usize)?;
            let group = call.group.clone().unwrap_or_default();
            let key = Key { group, number: (0, entry.sequence), alone: (alone(call) || entry.pair).then_some(rank) };
            let time_us = entry.duration_ms? * 1e3;
            Some(Self { rank, key, call: call.clone(), time_us, beside_us: None, exposed_us: None })
        })
    }
}

/// Whether other ranks do something else in the same call.
fn alone(call: &Call) -> bool {
    call.collective == Some(Collective::SendRecv)
}

/// Calls that are alike.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Alike {
    group: String,
    ranks: u32,
    collective: String,
    dtype: Option<DataType>,
    size: Option<u64>,
}

/// All calls of one kind.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Kin {
    /// One of them.
    pub(super) call: Call,
    /// Times without waiting, us.
    times: Vec<f64>,
    by_rank: BTreeMap<u32, usize>,
    total_us: f64,
    beside_us: Option<f64>,
    exposed_us: Option<f64>,
    waited_us: f64,
    /// How often each rank came last.
    last: BTreeMap<u32, usize>,
    members: usize,
}

/// All calls, by kind.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Matched {
    kinds: Vec<(Alike, Kin)>,
    /// Of each rank, us that others waited for it and were exposed, calls that it was last in, and calls that it shares with others.
    late: BTreeMap<u32, (f64, usize, usize)>,
    /// Calls whose ranks do not agree on what is done.
    odd: BTreeSet<String>,
}

/// Finds the same calls.
pub(super) fn matched(seen: &[Seen]) -> Matched {
    let mut by_key: BTreeMap<&Key, Vec<&Seen>> = BTreeMap::new();
    for one in seen {
        by_key.entry(&one.key).or_default().push(one);
    }
    let mut matched = Matched::default();
    let mut kinds: BTreeMap<Alike, Kin> = BTreeMap::new();
    for (key, members) in by_key {
        let agree = members.iter().all(|other| other.call.name == members[0].call.name);
        if !agree {
            matched.odd.insert(named(&key.group));
        }
        // Where ranks do not agree, each has a call of its own.
        for members in members.chunks(if agree { members.len() } else { 1 }) {
            let call = &members[0].call;
            let alike = Alike {
                group: named(&key.group),
                ranks: key.group.size,
                collective: call.collective.map_or_else(|| call.name.clone(), |c| c.name().to_owned()),
                dtype: call.dtype,
                size: call.size().map(|size| size.0),
            };
            let kin = kinds.entry(alike).or_insert_with(|| Kin::new(call.clone()));
            kin.add(members);
            matched.count(members);
        }
    }
    matched.kinds = kinds.into_iter().collect();
    matched
}

/// What a group is for, else its name.
pub(super) fn named(group: &Group) -> String {
    let described = [&group.description, &group.name].into_iter().find(|name| !name.is_empty());
    described.map_or_else(|| "unnamed".to_owned(), |name| name.chars().take(40).collect())
}

/// The shortest time, and whose it is where another one waited for that rank.
fn shortest(members: &[&Seen]) -> (f64, Option<u32>) {
    let by_time = |a: &&&Seen, b: &&&Seen| a.time_us.total_cmp(&b.time_us);
    let ends = members.iter().min_by(by_time).zip(members.iter().max_by(by_time));
    ends.map_or((0.0, None), |(least, most)| {
        (least.time_us, (most.time_us - least.time_us > RESOLUTION_US).then_some(least.rank))
    })
}

impl Kin {
    fn new(call: Call) -> Self {
        Self {
            call,
            times: Vec::new(),
            by_rank: BTreeMap::new(),
            total_us: 0.0,
            beside_us: None,
            exposed_us: None,
            waited_us: 0.0,
            last: BTreeMap::new(),
            members: 0,
        }
    }

    fn add(&mut self, members: &[&Seen]) {
        let (least, last) = shortest(members);
        self.times.push(least);
        self.members = self.members.max(members.len());
        if let Some(last) = last {
            *self.last.entry(last).or_default() += 1;
        }
        for seen in members {
            self.call.split = self.call.split.max(seen.call.split);
            self.call.symmetric |= seen.call.symmetric;
            *self.by_rank.entry(seen.rank).or_default() += 1;
            self.total_us += seen.time_us;
            self.waited_us += seen.time_us - least;
            for (sum, part) in [(&mut self.beside_us, seen.beside_us), (&mut self.exposed_us, seen.exposed_us)] {
                if let Some(part) = part {
                    *sum.get_or_insert(0.0) += part;
                }
            }
        }
    }

    /// The part of its time beside computation; none where nothing says.
    pub(super) fn beside(&self) -> Option<f64> {
        self.beside_us.map(|beside| beside / self.total_us.max(f64::MIN_POSITIVE))
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of calls")]
    fn row(&self, alike: &Alike, steps: f64) -> CallRow {
        let ranks = self.by_rank.len().max(1) as f64;
        let a_step = |us: f64| us / 1e3 / ranks / steps;
        let time_us = (!self.times.is_empty()).then(|| median(self.times.clone()));
        let shared = self.members > 1;
        let often = self.last.iter().max_by_key(|(_, count)| **count);
        let always = often.filter(|(_, count)| {
            self.times.len() >= OFTEN
                && **count as f64 >= ALWAYS * self.times.len() as f64
                && self.waited_us > WORTH * (self.total_us - self.waited_us)
        });
        let busbw = |us: f64| {
            let (collective, bytes) = (self.call.collective?, alike.size?);
            Some(bytes as f64 / us.max(1e-9) / 1e3 * collective.bus_factor(alike.ranks.max(1)))
        };
        CallRow {
            group: alike.group.clone(),
            ranks: alike.ranks,
            collective: alike.collective.clone(),
            dtype: alike.dtype.map(DataType::name),
            size_bytes: alike.size,
            calls: self.by_rank.values().sum::<usize>() as f64 / ranks / steps,
            members: u32::try_from(self.members).unwrap_or(u32::MAX),
            busbw_gbps: time_us.filter(|_| alike.ranks > 1).and_then(busbw),
            time_us,
            exposed_ms: self.exposed_us.map(a_step),
            beside: self.beside(),
            waited_ms: shared.then(|| a_step(self.waited_us)),
            last_rank: always.map(|(rank, _)| *rank),
            expected: None,
            not_forecast: None,
        }
    }
}

impl Matched {
    fn count(&mut self, members: &[&Seen]) {
        if members.len() < 2 {
            return;
        }
        let (least, last) = shortest(members);
        let others = (members.len() - 1) as f64;
        // What is hidden behind computation costs nobody anything.
        let waited = |seen: &&Seen| (seen.time_us - least).min(seen.exposed_us.unwrap_or(f64::INFINITY)) / others;
        let waited: f64 = members.iter().map(waited).sum();
        for seen in members {
            let late = self.late.entry(seen.rank).or_default();
            late.2 += 1;
            if Some(seen.rank) == last {
                late.0 += waited;
                late.1 += 1;
            }
        }
    }

    /// Adds the rows of calls, and what ranks waited for each other.
    pub(super) fn add_to(&self, outcome: &mut Outcome) {
        let steps = outcome.ranks.iter().map(|row| row.steps).max().unwrap_or(1);
        outcome.calls = self.kinds.iter().map(|(alike, kin)| kin.row(alike, f64::from(steps))).collect();
        for row in &mut outcome.ranks {
            if let Some(&(waited, last, shared)) = self.late.get(&row.rank) {
                row.late_ms = Some(waited / 1e3 / f64::from(row.steps));
                row.last = Some(last as f64 / shared.max(1) as f64);
            }
        }
        if !self.odd.is_empty() {
            let groups: Vec<&str> = self.odd.iter().map(String::as_str).collect();
            outcome.warnings.push(format!(
                "ranks do different calls at the same place in {}: their times are not compared",
                groups.join(", ")
            ));
        }
    }

    /// The kinds of calls, in the order of the rows that [`Self::add_to`] made.
    pub(super) fn kinds(&self) -> impl Iterator<Item = &Kin> {
        self.kinds.iter().map(|(_, kin)| kin)
    }
}

#[cfg(test)]
mod tests {
    use collcast_hwbackend::trace::Split;

    use super::*;

    fn seen(rank: u32, number: u64, time_us: f64) -> Seen {
        let group =
            Arc::new(Group { name: "0".to_owned(), description: "dp".to_owned(), ranks: vec![0, 1, 2], size: 3 });
        let call = Call {
            name: "allreduce".to_owned(),
            collective: Some(Collective::AllReduce),
            group: Some(Arc::clone(&group)),
            dtype: Some(DataType::Float32),
            inputs: 1000,
            outputs: 1000,
            split: Split::Even,
            symmetric: false,
        };
        let key = Key { group, number: (0, number), alone: None };
        Seen { rank, key, call, time_us, beside_us: Some(0.0), exposed_us: Some(time_us) }
    }

    /// Goal: rank 2 is 50 us late in each of three calls of 100 us: it is named, and the others waited for it.
    #[test]
    fn the_late_rank_is_named() {
        let all: Vec<Seen> = (0..3).flat_map(|n| [seen(0, n, 150.0), seen(1, n, 150.0), seen(2, n, 100.0)]).collect();
        let matched = matched(&all);
        assert_eq!(matched.late[&2], (150.0, 3, 3));
        assert_eq!(matched.late[&0], (0.0, 0, 3));
        let (alike, kin) = &matched.kinds[0];
        let row = kin.row(alike, 1.0);
        assert_eq!((row.time_us, row.last_rank, row.calls, row.members), (Some(100.0), Some(2), 3.0, 3));
        // 2 x 3 x 50 us over three ranks.
        assert!((row.waited_ms.unwrap() - 0.1).abs() < 1e-12);
        assert!((row.busbw_gbps.unwrap() - 4000.0 / 100.0 / 1e3 * 4.0 / 3.0).abs() < 1e-9);
    }

    /// Goal: ranks whose times differ by no more than a clock's tick came together, and none was the last.
    #[test]
    fn ranks_that_tie_are_not_late() {
        let all: Vec<Seen> = (0..3).flat_map(|n| [seen(0, n, 100.0), seen(1, n, 101.0), seen(2, n, 100.0)]).collect();
        let matched = matched(&all);
        assert!(matched.late.values().all(|&late| late == (0.0, 0, 3)), "{:?}", matched.late);
        assert_eq!(matched.kinds[0].1.row(&matched.kinds[0].0, 1.0).last_rank, None);
    }
}

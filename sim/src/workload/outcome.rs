//! What came of a step: when what ran, what was exposed, and which way led to the end.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::graph::{Level, OpGraph, StreamKind, is_communication};
use super::lowered::{Lowered, Part};
use crate::engine::Outcome;
use crate::ids::{LinkId, Rank};
use crate::schedule::wiring::UNUSED;
use crate::units::{SimDuration, SimTime};

/// One operation as it ran.
#[derive(Clone, Debug, PartialEq)]
pub struct Activity {
    /// Index in the rank's program.
    pub op: usize,
    /// Its kernel is on the GPU, or its place on the stream has come.
    pub start: SimTime,
    /// Where communication moves its first byte: all ranks are there that it ends after.
    pub moves: SimTime,
    /// Its end.
    pub end: SimTime,
}

/// A part of the way that led to the end of the step.
#[derive(Clone, Debug, PartialEq)]
pub struct PathPart {
    /// The rank.
    pub rank: Rank,
    /// What the time went to: the operation's kind, a launch, a wait for places on the GPU.
    pub what: Arc<str>,
    /// The operation's name.
    pub label: Arc<str>,
    /// From.
    pub from: SimTime,
    /// To.
    pub to: SimTime,
    /// What bounds it, where it is communication.
    pub bound_by: Option<&'static str>,
}

/// What a rank did, and all that it stands for.
#[derive(Clone, Debug, PartialEq)]
pub struct RankResult {
    /// The rank.
    pub rank: Rank,
    /// How many it stands for.
    pub count: usize,
    /// Its program.
    pub program: usize,
    /// By operation.
    pub activities: Vec<Activity>,
    /// When it was done.
    pub end: SimTime,
    /// Time with any computation of the model, or framework, under way.
    pub compute: SimDuration,
    /// By kind of communication.
    pub communication: BTreeMap<Arc<str>, Calls>,
    /// By stream: time busy, waits for other ranks aside.
    pub busy: Vec<SimDuration>,
}

/// Calls of one kind of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Calls {
    /// How many.
    pub count: usize,
    /// Time in which they move bytes.
    pub busy: SimDuration,
    /// Of that, without any computation beside it.
    pub exposed: SimDuration,
    /// Time before, in which they wait for other ranks and nothing computes.
    pub waits: SimDuration,
}

/// What came of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// When the last rank was done.
    pub time: SimDuration,
    /// Ranks that were run, in rank order.
    pub ranks: Vec<RankResult>,
    /// The way that led to the end, from the start.
    pub path: Vec<PathPart>,
    /// How each kind of communication ran.
    pub how: BTreeMap<Arc<str>, String>,
    /// Whether every slice was simulated.
    pub slices: bool,
    /// Share of its capacity that was used of links where calls met: the first of those alike.
    pub links: Vec<(LinkId, f64)>,
    /// Share of links that each call of a rank uses when it runs alone, the busiest first, by rank and operation.
    pub link_shares: Vec<CallLinks>,
    /// Events handled.
    pub events: u64,
}

impl Step {
    /// The level at which it was simulated: what it is compared with is simulated at the same.
    pub fn level(&self) -> Level {
        if self.slices { Level::Slices } else { Level::Flows }
    }
}

/// Rank, operation and the links of a call.
pub type CallLinks = (usize, usize, Vec<(LinkId, f64)>);

/// Most links of all calls that are kept for pictures, some 16 MB; of each call the busiest, and some of each.
const KEPT_LINKS: usize = 1_000_000;
const FEWEST_LINKS: usize = 4;

pub(super) fn of(graph: &OpGraph, lowered: &Lowered<'_>, outcome: &Outcome) -> Step {
    let mut ranks: Vec<RankResult> = (lowered.lanes.iter())
        .map(|&(rank, count)| RankResult {
            rank,
            count,
            program: graph.ranks[rank.index()].program,
            activities: Vec::new(),
            end: SimTime(0),
            compute: SimDuration::ZERO,
            communication: BTreeMap::new(),
            busy: Vec::new(),
        })
        .collect();
    let mut how = BTreeMap::new();
    let mut link_shares = Vec::new();
    let last_to_come = last_to_come(lowered, outcome);
    let kept = (KEPT_LINKS / lowered.ops.len().max(1)).max(FEWEST_LINKS);
    for run in &lowered.ops {
        let rank = &mut ranks[run.lane];
        let op = &graph.programs[rank.program].ops[run.op];
        let (first, last) = (run.first as usize, run.last as usize);
        let start = outcome.task_starts[first];
        let end = outcome.task_ends[last];
        let came = last_to_come.get(&run.last).map_or(last, |&other| other as usize);
        let moves = if is_communication(op) { outcome.task_starts[came].max(start) } else { start };
        rank.activities.push(Activity { op: run.op, start, moves, end });
        rank.end = rank.end.max(end);
        if let Some(footprint) = &run.footprint {
            how.entry(Arc::clone(&op.kind)).or_insert_with(|| footprint.how.clone());
            let mut busiest = footprint.links.clone();
            busiest.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            busiest.truncate(kept);
            link_shares.push((run.lane, run.op, busiest));
        }
    }
    for rank in &mut ranks {
        let program = &graph.programs[rank.program];
        let spans = |wanted: &dyn Fn(usize) -> bool| {
            let chosen = rank.activities.iter().filter(|a| wanted(a.op));
            union(chosen.map(|a| (a.moves.0, a.end.0)).collect())
        };
        let on = |kind: StreamKind| move |op: usize| program.streams[program.ops[op].stream].kind == kind;
        let compute = spans(&on(StreamKind::Compute));
        rank.compute = length(&compute);
        rank.busy = (0..program.streams.len()).map(|s| length(&spans(&|op| program.ops[op].stream == s))).collect();
        let mut kinds: BTreeMap<Arc<str>, usize> = BTreeMap::new();
        for op in program.ops.iter().filter(|op| is_communication(op)) {
            *kinds.entry(Arc::clone(&op.kind)).or_default() += 1;
        }
        let communication = kinds
            .into_iter()
            .map(|(kind, count)| {
                let of_kind = |op: usize| is_communication(&program.ops[op]) && program.ops[op].kind == kind;
                let own = spans(&of_kind);
                let before = rank.activities.iter().filter(|a| of_kind(a.op)).map(|a| (a.start.0, a.moves.0));
                let waits = without(&without(&union(before.collect()), &own), &compute);
                let exposed = without(&own, &compute);
                let [busy, exposed, waits] = [own, exposed, waits].map(|spans| length(&spans));
                (kind, Calls { count, busy, exposed, waits })
            })
            .collect();
        rank.communication = communication;
    }
    let seconds = (outcome.end - SimTime(0)).as_us().max(1e-9) / 1e6;
    let mut links: Vec<(LinkId, f64)> = (lowered.links.iter())
        .map(|(&resource, &link)| {
            let used = outcome.load[resource as usize] as f64 / crate::engine::flows::WEIGHT_ONE as f64;
            (link, used / seconds / lowered.instance.resources[resource as usize] as f64)
        })
        .collect();
    links.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    Step {
        time: outcome.end - SimTime(0),
        path: path(graph, lowered, outcome, (&ranks, &last_to_come)),
        ranks,
        how,
        slices: lowered.slices,
        links,
        link_shares,
        events: outcome.events,
    }
}

/// Of each kernel of a call that runs as its schedule, the kernel of the call that began last of those that it can have
/// waited for: they began before it was over.
fn last_to_come(lowered: &Lowered<'_>, outcome: &Outcome) -> FxHashMap<u32, u32> {
    let start = |task: u32| outcome.task_starts[task as usize];
    let mut last = FxHashMap::default();
    for call in &lowered.calls {
        let mut in_order = call.clone();
        in_order.sort_by_key(|&task| (start(task), task));
        for &task in call {
            let before = in_order.partition_point(|&other| start(other) < outcome.task_ends[task as usize]);
            last.extend(
                in_order[..before].last().filter(|&&other| start(other) > start(task)).map(|&other| (task, other)),
            );
        }
    }
    last
}

/// Spans merged where they touch, in order.
fn union(mut spans: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    spans.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (from, to) in spans {
        match merged.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => merged.push((from, to)),
        }
    }
    merged
}

/// What of `a` is not in `b`; both merged and in order.
fn without(a: &[(u64, u64)], b: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut left = Vec::new();
    let mut next = 0;
    for &(mut from, to) in a {
        while next < b.len() && b[next].1 <= from {
            next += 1;
        }
        let mut at = next;
        while at < b.len() && b[at].0 < to {
            if b[at].0 > from {
                left.push((from, b[at].0));
            }
            from = from.max(b[at].1);
            at += 1;
        }
        if from < to {
            left.push((from, to));
        }
    }
    left
}

fn length(spans: &[(u64, u64)]) -> SimDuration {
    SimDuration(spans.iter().map(|(from, to)| to - from).sum())
}

/// Walks back from the last task to end along what let each start; from a call to the rank that came last.
fn path(
    graph: &OpGraph,
    lowered: &Lowered<'_>,
    outcome: &Outcome,
    (ranks, last_to_come): (&[RankResult], &FxHashMap<u32, u32>),
) -> Vec<PathPart> {
    let last = (0..).zip(&outcome.task_ends).max_by_key(|&(index, end)| (*end, std::cmp::Reverse(index)));
    let Some((mut task, _)) = last.map(|(index, end): (u32, _)| (index, end)) else {
        return Vec::new();
    };
    let mut parts: Vec<PathPart> = Vec::new();
    let mut until = outcome.end;
    while task != UNUSED {
        let index = task as usize;
        let (op_run, part) = lowered.tasks[index];
        let run = &lowered.ops[op_run];
        let rank = &ranks[run.lane];
        let op = &graph.programs[rank.program].ops[run.op];
        let came = last_to_come.get(&task).map_or(index, |&other| other as usize);
        let (start, end) = (outcome.task_starts[came], outcome.task_ends[index]);
        let mut add = |what: Arc<str>, from: SimTime, to: SimTime| {
            if from < to {
                match parts.last_mut() {
                    Some(later)
                        if later.what == what
                            && later.label == op.label
                            && later.rank == rank.rank
                            && later.from == to =>
                    {
                        later.from = from;
                    }
                    _ => parts.push(PathPart {
                        rank: rank.rank,
                        what,
                        label: Arc::clone(&op.label),
                        from,
                        to,
                        bound_by: run.footprint.as_ref().filter(|_| part == Part::Body).map(|f| f.bound_by),
                    }),
                }
            }
        };
        // Between the end of what let another start and that start: lags of events and launches.
        add("waits for events".into(), end, until.max(end));
        let what = if part == Part::Issue { "launch by the host".into() } else { Arc::clone(&op.kind) };
        add(what, start, end.min(until.max(start)));
        until = start;
        task = outcome.task_causes[came];
    }
    parts.reverse();
    parts
}

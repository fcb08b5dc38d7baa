//! A step as a schedule: what its ranks compute, and the messages of its calls.

use std::collections::BTreeMap;
use std::rc::Rc;

use collcast_sim::ids::Rank;
use collcast_sim::units::{PS_PER_NS, SimDuration};
use collcast_sim::workload::{Communicate, Op, OpGraph, What as Work};

use super::model::{Goal, GoalError, OPS_MAX, Operation, What};

impl Goal {
    /// The schedule of a step. `messages` gives what the members of a group send for a call, as a schedule of its own; operations
    /// without a way to say them, such as what calls and computations cost each other, are left out.
    ///
    /// Streams of a rank are CPUs, and the launching thread is one more. Computations take what they take alone.
    ///
    /// # Errors
    /// More operations than are read; a graph that names what is not there; what `messages` gives.
    pub fn of_step<E: From<GoalError>>(
        graph: &OpGraph,
        mut messages: impl FnMut(&Communicate, &[Rank]) -> Result<Rc<Self>, E>,
    ) -> Result<Self, E> {
        let mut tags = Tags::default();
        let mut goal = Self::default();
        let mut all = 0;
        for (rank, spec) in (0..).map(Rank).zip(&graph.ranks) {
            let lost = |what: &str| E::from(GoalError::Run(format!("rank {rank} names {what} that is not there")));
            let program = graph.programs.get(spec.program).ok_or_else(|| lost("a program"))?;
            let mut writer = Writer::new(program.streams.len());
            if spec.late > SimDuration::ZERO {
                writer.launch(spec.late);
            }
            for op in &program.ops {
                if op.stream >= program.streams.len() || op.after.iter().any(|&other| other >= writer.ends.len()) {
                    return Err(lost("a stream or an operation"));
                }
                let members = |slot: usize| {
                    let group = spec.groups.get(slot)?;
                    Some((*group, graph.groups.get(*group)?.as_slice()))
                };
                let before = writer.before(op);
                let end = match &op.what {
                    Work::Compute(compute) => {
                        let time = u128::from(compute.time.0) * u128::from(spec.pace_ppm) / 1_000_000;
                        writer.calc(op.stream, SimDuration(u64::try_from(time).unwrap_or(u64::MAX)), before)
                    }
                    Work::Copy { time, .. } => writer.calc(op.stream, *time, before),
                    Work::Host(time) => writer.calc(writer.host_cpu, *time, before),
                    Work::Collective(call) => {
                        let (group, ranks) = members(call.group).ok_or_else(|| lost("a group"))?;
                        let place = ranks.iter().position(|&other| other == rank).ok_or_else(|| lost("a group"))?;
                        let own = messages(call, ranks)?;
                        let base = tags.of_call(group, place, &own);
                        let operations = own.ranks.get(place).map_or(&[][..], Vec::as_slice);
                        writer.embed(op.stream, operations, ranks, base, &before)
                    }
                    Work::Send { group, bytes, .. } | Work::Recv { group, bytes, .. } => {
                        let sends = matches!(op.what, Work::Send { .. });
                        let (group, ranks) = members(*group).ok_or_else(|| lost("a group"))?;
                        let other = ranks.iter().find(|&&other| other != rank).filter(|_| ranks.len() == 2);
                        let other = other.ok_or_else(|| lost("the other end of a message"))?.0;
                        let (from, to) = if sends { (rank.0, other) } else { (other, rank.0) };
                        let (bytes, tag) = (bytes.0, tags.of_message(group, (from, to), sends));
                        writer.push(
                            op.stream,
                            match sends {
                                true => What::Send { bytes, to, tag },
                                false => What::Recv { bytes, from: Some(from), tag: Some(tag) },
                            },
                            before,
                        )
                    }
                };
                writer.ends.push(end);
                writer.last[op.stream] = Some(end);
                if matches!(op.what, Work::Host(_)) {
                    writer.host = Some(end);
                }
                if all + writer.operations.len() > OPS_MAX {
                    let what = format!(
                        "the schedule of the step has more than {OPS_MAX} operations, which is more than is read"
                    );
                    return Err(GoalError::Run(what).into());
                }
            }
            all += writer.operations.len();
            goal.ranks.push(writer.operations);
        }
        Ok(goal)
    }
}

/// Tags that no two messages between the same ranks share.
#[derive(Default)]
struct Tags {
    next: u32,
    /// How many calls of a group a member has made, and where the tags of each begin.
    calls: BTreeMap<(usize, usize), usize>,
    begins: BTreeMap<(usize, usize), u32>,
    /// Messages of a pair by group and end, and the tag of each.
    messages: BTreeMap<(usize, (u32, u32), bool), usize>,
    pairs: BTreeMap<(usize, (u32, u32), usize), u32>,
}

impl Tags {
    fn of_call(&mut self, group: usize, place: usize, own: &Goal) -> u32 {
        let number = self.calls.entry((group, place)).or_default();
        let key = (group, *number);
        *number += 1;
        let next = &mut self.next;
        *self.begins.entry(key).or_insert_with(|| {
            let tag = |operation: &Operation| match operation.what {
                What::Send { tag, .. } => tag + 1,
                What::Recv { tag, .. } => tag.map_or(0, |tag| tag + 1),
                What::Calc(_) => 0,
            };
            let used = own.ranks.iter().flatten().map(tag).max().unwrap_or(0);
            *next = next.saturating_add(used);
            *next - used
        })
    }

    fn of_message(&mut self, group: usize, pair: (u32, u32), sends: bool) -> u32 {
        let number = self.messages.entry((group, pair, sends)).or_default();
        let key = (group, pair, *number);
        *number += 1;
        let next = &mut self.next;
        *self.pairs.entry(key).or_insert_with(|| {
            *next = next.saturating_add(1);
            *next - 1
        })
    }
}

/// The operations of a rank.
struct Writer {
    operations: Vec<Operation>,
    /// The CPU of the launching thread.
    host_cpu: usize,
    /// Its last operation, and those of the streams.
    host: Option<u32>,
    last: Vec<Option<u32>>,
    /// By operation of the program: its end.
    ends: Vec<u32>,
    /// Picoseconds so far, by CPU: nanoseconds are cut from their sum.
    written: Vec<u64>,
}

impl Writer {
    fn new(streams: usize) -> Self {
        Self {
            operations: Vec::new(),
            host_cpu: streams,
            host: None,
            last: vec![None; streams],
            ends: Vec::new(),
            written: vec![0; streams + 1],
        }
    }

    /// What an operation waits for, once it is launched.
    fn before(&mut self, op: &Op) -> Vec<u32> {
        if op.issue > SimDuration::ZERO && !matches!(op.what, Work::Host(_)) {
            self.launch(op.issue);
        }
        let after = op.after.iter().map(|&other| self.ends[other]);
        let mut before: Vec<u32> = after.chain(self.host).chain(self.last[op.stream]).collect();
        before.sort_unstable();
        before.dedup();
        before
    }

    fn launch(&mut self, time: SimDuration) {
        let before = self.host.into_iter().collect();
        self.host = Some(self.calc(self.host_cpu, time, before));
    }

    fn calc(&mut self, cpu: usize, time: SimDuration, before: Vec<u32>) -> u32 {
        let begun = self.written[cpu];
        let ended = begun.saturating_add(time.0);
        self.written[cpu] = ended;
        self.push(cpu, What::Calc(ended / PS_PER_NS - begun / PS_PER_NS), before)
    }

    fn push(&mut self, cpu: usize, what: What, requires: Vec<u32>) -> u32 {
        self.operations.push(Operation { cpu: cpu as u32, requires, ..Operation::new(what) });
        self.operations.len() as u32 - 1
    }

    /// A call's messages, and its end once all of them are over.
    fn embed(&mut self, cpu: usize, own: &[Operation], ranks: &[Rank], tags: u32, before: &[u32]) -> u32 {
        let base = self.operations.len() as u32;
        let of_rank = |member: u32| ranks.get(member as usize).map_or(member, |rank| rank.0);
        let mut waited = vec![false; own.len()];
        for operation in own {
            operation.requires.iter().chain(&operation.irequires).for_each(|&other| waited[other as usize] = true);
            let what = match operation.what {
                What::Send { bytes, to, tag } => What::Send { bytes, to: of_rank(to), tag: tags + tag },
                What::Recv { bytes, from, tag } => {
                    What::Recv { bytes, from: from.map(of_rank), tag: tag.map(|tag| tags + tag) }
                }
                calc @ What::Calc(_) => calc,
            };
            let moved = |others: &[u32]| others.iter().map(|other| base + other).collect::<Vec<u32>>();
            let (mut requires, irequires) = (moved(&operation.requires), moved(&operation.irequires));
            if requires.is_empty() && irequires.is_empty() {
                requires.extend(before);
            }
            self.operations.push(Operation { what, cpu: cpu as u32, nic: 0, requires, irequires });
        }
        let mut ends: Vec<u32> =
            (base..).zip(&waited).filter(|(_, waited)| !**waited).map(|(place, _)| place).collect();
        if own.is_empty() {
            ends.extend(before);
        }
        self.push(cpu, What::Calc(0), ends)
    }
}

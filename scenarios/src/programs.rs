//! Steps that are written down operation by operation: communicators, blocks of operations, and what ranks run of them.
//!
//! `collcast plan --write-scenario` writes one, so that every strategy that a plan knows is a scenario to change and to run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use collcast_sim::collective::Collective;
use collcast_sim::ids::Rank;
use collcast_sim::units::{Bytes, SimDuration};
use collcast_sim::workload::{Compute, OpGraph, RankSpec};

use crate::emit::{CallSettings, Costs, MEMORY_WAVES, Slots, Writer};

/// Ranks that exchange data, of which there are several groups alike.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Communicator {
    /// Its name.
    pub name: String,
    /// Ranks of a group.
    pub size: u32,
    /// From one to the next.
    pub stride: u32,
    /// First rank of all groups, and the one after the last.
    pub ranks: (u32, u32),
    /// Groups that lie within each other: as many as the stride, or fewer.
    pub within: u32,
}

impl Communicator {
    fn block(&self) -> u32 {
        self.size.saturating_mul(self.stride).max(1)
    }

    /// The group of a rank, if it is in one.
    pub(crate) fn group_of(&self, rank: u32) -> Option<u32> {
        let place = rank.checked_sub(self.ranks.0).filter(|_| rank < self.ranks.1)?;
        let within = place % self.stride;
        (within < self.within).then_some(place / self.block() * self.within + within)
    }

    pub(crate) fn groups(&self) -> impl Iterator<Item = Vec<Rank>> + '_ {
        let blocks = (self.ranks.1 - self.ranks.0) / self.block();
        let within = move |block: u32| (0..self.within).map(move |i| self.ranks.0 + block * self.block() + i);
        (0..blocks)
            .flat_map(within)
            .map(|first| (0..self.size).map(|place| Rank(first + place * self.stride)).collect())
    }
}

/// What a step of a program does.
#[derive(Clone, PartialEq, Debug)]
pub enum Does {
    /// Kernels: what they take, how many there are, and the part of the memory's rate that they need.
    Kernels(SimDuration, u32, f64),
    /// A collective of a communicator, of nccl-tests' size.
    Call(Collective, usize, Bytes),
    /// A message to the other rank of a group of two.
    Send(usize, Bytes),
    /// The other end of one.
    Recv(usize, Bytes),
    /// A block, so many times.
    Block(usize, u32),
}

/// A step of a program, or of a block. Kernels run one after another. A call starts when those before it are done, or what it comes
/// `after`; kernels after it wait for it, unless it is `hidden`.
#[derive(Clone, PartialEq, Debug)]
pub struct Turn {
    /// Its name.
    pub name: String,
    /// What it does.
    pub does: Does,
    /// Kernels do not wait for the call.
    pub hidden: bool,
    /// A name by which later ones come after it.
    pub id: Option<String>,
    /// What it waits for.
    pub after: Vec<String>,
}

impl Turn {
    /// One that waits for what is before it.
    pub fn new(name: impl Into<String>, does: Does) -> Self {
        Self { name: name.into(), does, hidden: false, id: None, after: Vec::new() }
    }
}

/// What ranks do, by role.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Programs {
    /// Communicators.
    pub communicators: Vec<Communicator>,
    /// Turns that occur often, by name.
    pub blocks: Vec<(String, Vec<Turn>)>,
    /// First and last rank, and what all from one to the other do.
    pub programs: Vec<((u32, u32), Vec<Turn>)>,
}

/// A program that is being put together.
struct Building<'a> {
    writer: Writer<'a>,
    programs: &'a Programs,
    /// Which communicators it has, in the order of its groups.
    used: Vec<usize>,
    /// The last kernels.
    kernels: Option<usize>,
    /// Calls that the next ones wait for.
    waits: Vec<usize>,
    ids: BTreeMap<&'a str, usize>,
}

impl<'a> Building<'a> {
    fn slot(&mut self, communicator: usize) -> usize {
        let known = self.used.iter().position(|&used| used == communicator);
        known.unwrap_or_else(|| {
            self.used.push(communicator);
            self.used.len() - 1
        })
    }

    fn turn(&mut self, turn: &'a Turn) {
        let mut after: Vec<usize> = turn.after.iter().filter_map(|id| self.ids.get(id.as_str()).copied()).collect();
        let own = if after.is_empty() { self.kernels.into_iter().collect() } else { after.clone() };
        let last = match &turn.does {
            &Does::Kernels(time, kernels, memory) => {
                after.append(&mut self.waits);
                let memory_ppm = (memory * 1e6).round() as u32;
                // Calls start between waves, of which products of a layer have as many: 6 to 14 of 4,096 tokens of Llama 3 8B on
                // an H100, in tiles of 256 x 128.
                let compute = Compute { time, kernels, waves: MEMORY_WAVES, tiles: [0; 2], memory_ppm };
                self.kernels = Some(self.writer.compute(&turn.name, "compute", compute, &after));
                self.kernels
            }
            &Does::Call(collective, communicator, bytes) => {
                let name = &self.programs.communicators[communicator].name;
                let (slot, kind) = (self.slot(communicator), format!("{name} {collective}"));
                Some(self.writer.collective((&turn.name, &kind, name), slot, collective, bytes, &own))
            }
            Does::Send(communicator, bytes) | Does::Recv(communicator, bytes) => {
                let sends = matches!(turn.does, Does::Send(..));
                let (slot, name) = (self.slot(*communicator), &self.programs.communicators[*communicator].name);
                // Each way has a stream of its own.
                let stream = format!("{} {name}, {}", if sends { "send" } else { "receive" }, turn.name);
                Some(self.writer.message(&turn.name, sends, (slot, &stream), *bytes, &own))
            }
            &Does::Block(block, times) => {
                self.waits.append(&mut after);
                let turns = &self.programs.blocks[block].1;
                (0..times).for_each(|_| turns.iter().for_each(|turn| self.turn(turn)));
                self.kernels
            }
        };
        if !turn.hidden && !matches!(turn.does, Does::Kernels(..) | Does::Block(..)) {
            self.waits.extend(last);
        }
        if let (Some(id), Some(last)) = (&turn.id, last) {
            self.ids.insert(id, last);
        }
    }
}

impl Programs {
    /// Ranks in all.
    pub fn ranks(&self) -> u32 {
        self.programs.iter().map(|(ranks, _)| ranks.1.saturating_add(1)).max().unwrap_or(0)
    }

    /// Operations of all programs.
    pub fn operations(&self) -> u64 {
        let of = |turn: &Turn| match turn.does {
            Does::Block(block, times) => u64::from(times).saturating_mul(self.blocks[block].1.len() as u64),
            _ => 1,
        };
        self.programs.iter().flat_map(|(_, turns)| turns).map(of).fold(0, u64::saturating_add)
    }

    /// The graph of the step.
    pub fn graph(&self, calls: &CallSettings, costs: &Costs) -> OpGraph {
        let mut graph = OpGraph::default();
        let mut firsts = Vec::new();
        for communicator in &self.communicators {
            firsts.push(graph.groups.len());
            graph.groups.extend(communicator.groups());
        }
        let idle = RankSpec { program: 0, groups: Vec::new(), pace_ppm: 1_000_000, late: SimDuration::ZERO };
        graph.ranks = vec![idle; self.ranks() as usize];
        for ((first, last), turns) in &self.programs {
            let mut building = Building {
                writer: Writer::new(calls, costs, Slots::default()),
                programs: self,
                used: Vec::new(),
                kernels: None,
                waits: Vec::new(),
                ids: BTreeMap::new(),
            };
            turns.iter().for_each(|turn| building.turn(turn));
            let used = building.used;
            graph.programs.push(building.writer.finish());
            for rank in *first..=*last {
                let group = |of: &usize| Some(firsts[*of] + self.communicators[*of].group_of(rank)? as usize);
                let spec = &mut graph.ranks[rank as usize];
                (spec.program, spec.groups) = (graph.programs.len() - 1, used.iter().filter_map(group).collect());
            }
        }
        // What nobody makes a call on is no group of the step.
        let used: BTreeSet<usize> = graph.ranks.iter().flat_map(|rank| rank.groups.iter().copied()).collect();
        let number: BTreeMap<usize, usize> = used.iter().copied().zip(0..).collect();
        graph.groups = used.into_iter().map(|group| std::mem::take(&mut graph.groups[group])).collect();
        graph.ranks.iter_mut().flat_map(|rank| &mut rank.groups).for_each(|group| *group = number[group]);
        graph
    }

    /// As a scenario file has them.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for of in &self.communicators {
            let Communicator { name, size, stride, ranks: (first, end), within } = of;
            let _ = writeln!(
                text,
                "\n[[communicators]]\nname = {name:?}\nsize = {size}\nstride = {stride}\nranks = [{first}, {}]",
                end - 1
            );
            if within != stride {
                let _ = writeln!(text, "within = {within}");
            }
        }
        for (name, turns) in &self.blocks {
            let _ = writeln!(text, "\n[[blocks]]\nname = {name:?}\nturns = [");
            turns.iter().for_each(|turn| self.write(&mut text, turn));
            text.push_str("]\n");
        }
        for ((first, last), turns) in &self.programs {
            let _ = writeln!(text, "\n[[programs]]\nranks = [{first}, {last}]\nturns = [");
            turns.iter().for_each(|turn| self.write(&mut text, turn));
            text.push_str("]\n");
        }
        text
    }

    fn write(&self, text: &mut String, turn: &Turn) {
        let on = |of: &usize| &self.communicators[*of].name;
        let does = match &turn.does {
            Does::Kernels(time, kernels, memory) => {
                format!("time = \"{:.3} us\", kernels = {kernels}, memory = {memory:.3}", time.as_us())
            }
            Does::Call(collective, of, bytes) => {
                format!("call = \"{collective}\", on = {:?}, size = \"{} B\"", on(of), bytes.0)
            }
            Does::Send(of, bytes) => format!("send = \"{} B\", on = {:?}", bytes.0, on(of)),
            Does::Recv(of, bytes) => format!("receive = \"{} B\", on = {:?}", bytes.0, on(of)),
            Does::Block(block, times) => format!("block = {:?}, times = {times}", self.blocks[*block].0),
        };
        let hidden = if turn.hidden { ", hidden = true" } else { "" };
        let id = turn.id.as_ref().map_or_else(String::new, |id| format!(", id = {id:?}"));
        let after = if turn.after.is_empty() { String::new() } else { format!(", after = {:?}", turn.after) };
        let _ = writeln!(text, "  {{ name = {:?}, {does}{hidden}{id}{after} }},", turn.name);
    }
}

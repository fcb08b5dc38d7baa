//! As a step: forward over the layers, backward in reverse, updates.

use std::collections::HashMap;
use std::ops::Range;

use collcast_sim::collective::{Collective, DataType};
use collcast_sim::ids::Rank;
use collcast_sim::predict::Choice;
use collcast_sim::units::SimDuration;
use collcast_sim::workload::{Communicate, Compute, Op, OpGraph, Program, RankSpec, StreamKind, What};

use super::workload::{Call, Group, Pass, Workload};
use crate::emit::MEMORY_WAVES;

/// A step, and what of the file is taken otherwise than it says.
#[derive(Clone, Debug)]
pub struct Run {
    /// What all ranks do.
    pub graph: OpGraph,
    /// In words.
    pub notes: Vec<String>,
}

impl Group {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Tensor, "tensor-parallel"),
        (Self::Data, "data-parallel"),
        (Self::Expert, "expert-parallel"),
        (Self::ExpertData, "data-parallel of experts"),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(group, _)| *group == self).map_or("", |(_, name)| name)
    }
}

impl Workload {
    /// The step of all ranks. A call of the forward pass holds up the next layer; one of an input gradient runs beside its
    /// layer's weight gradient, and one of weights beside all that follows. Computations take the part `memory_ppm` of
    /// the memory's rate, in millionths.
    pub fn graph(&self, memory_ppm: u32) -> Run {
        let mut graph = OpGraph::default();
        let mut places: HashMap<Group, usize> = HashMap::new();
        let mut own: Vec<Group> = Vec::new();
        for (group, _) in Group::ALL {
            let used = self.calls().any(|call| call.group == group);
            if used && self.size(group) > 1 {
                places.insert(group, own.len());
                own.push(group);
            }
        }
        graph.programs.push(Writer::new(&places, memory_ppm).write(self));
        let mut numbers: HashMap<(Group, u32), usize> = HashMap::new();
        for rank in 0..self.gpus {
            let mut groups = Vec::new();
            for &group in &own {
                let number = *numbers.entry((group, self.first(group, rank))).or_insert_with(|| {
                    graph.groups.push(self.members(group, rank).into_iter().map(Rank).collect());
                    graph.groups.len() - 1
                });
                groups.push(number);
            }
            graph.ranks.push(RankSpec { program: 0, groups, pace_ppm: 1_000_000, late: SimDuration::ZERO });
        }
        let mut notes = self.notes.clone();
        let lonely = self.calls().filter(|call| self.size(call.group) < 2).count();
        if lonely > 0 {
            notes.push(format!("{lonely} calls are of one rank alone, and take no time"));
        }
        Run { graph, notes }
    }

    fn calls(&self) -> impl Iterator<Item = Call> {
        self.layers.iter().flat_map(|layer| [layer.forward, layer.input, layer.weight]).filter_map(|pass| pass.call)
    }

    /// Data parallel ranks.
    fn data(&self) -> u32 {
        self.gpus / (self.tensor * self.pipeline)
    }

    /// Ranks of a group.
    fn size(&self, group: Group) -> u32 {
        match group {
            Group::Tensor => self.tensor,
            Group::Data => self.data(),
            Group::Expert => self.expert,
            Group::ExpertData => self.data() / self.expert,
        }
    }

    /// Ranks from one of a group to the next: tensor parallel ranks are neighbours, expert parallel ones come next, then the
    /// other data parallel ones, then stages.
    fn stride(&self, group: Group) -> u32 {
        match group {
            Group::Tensor => 1,
            Group::Data | Group::Expert => self.tensor,
            Group::ExpertData => self.tensor * self.expert,
        }
    }

    /// The first of a rank's group.
    fn first(&self, group: Group, rank: u32) -> u32 {
        let stride = self.stride(group);
        rank - rank / stride % self.size(group) * stride
    }

    /// The group of a rank.
    fn members(&self, group: Group, rank: u32) -> Vec<u32> {
        let (first, stride) = (self.first(group, rank), self.stride(group));
        (0..self.size(group)).map(|place| first + place * stride).collect()
    }

    /// Layers that run again before the backward pass of one: from the last checkpoint on, without the layer itself, as in
    /// SimAI, unless it is that checkpoint.
    pub(super) fn again(&self, place: u32) -> Range<u32> {
        if self.initiates.binary_search(&place).is_err() {
            return place..place;
        }
        let before = self.checkpoints.partition_point(|checkpoint| *checkpoint <= place);
        let first = before.checked_sub(1).map_or(place, |last| self.checkpoints[last]);
        first..place.max(first + 1)
    }
}

struct Writer<'a> {
    program: Program,
    compute: usize,
    /// Stream of each group, and its place among the rank's groups.
    streams: HashMap<Group, usize>,
    places: &'a HashMap<Group, usize>,
    memory_ppm: u32,
    /// Calls that the next computation waits for.
    pending: Vec<usize>,
    /// Calls of weights, and the updates behind them.
    updates: Vec<(Option<usize>, u64)>,
}

impl<'a> Writer<'a> {
    fn new(places: &'a HashMap<Group, usize>, memory_ppm: u32) -> Self {
        let mut program = Program::default();
        let compute = program.stream("compute", StreamKind::Compute, false);
        let streams = HashMap::new();
        Self { program, compute, streams, places, memory_ppm, pending: Vec::new(), updates: Vec::new() }
    }

    fn write(mut self, workload: &Workload) -> Program {
        for layer in &workload.layers {
            self.forward(layer.forward);
        }
        for (place, layer) in (0_u32..).zip(&workload.layers).collect::<Vec<_>>().into_iter().rev() {
            for again in workload.again(place) {
                self.forward(workload.layers[again as usize].forward);
            }
            self.compute(layer.input.ns, "input gradient");
            let input = self.call(layer.input.call);
            self.compute(layer.weight.ns, "weight gradient");
            let weight = self.call(layer.weight.call);
            self.pending.extend(input);
            if layer.update_ns > 0 {
                self.updates.push((weight, layer.update_ns));
            }
        }
        for (call, ns) in std::mem::take(&mut self.updates) {
            self.pending.extend(call);
            self.compute(ns, "update");
        }
        self.program
    }

    fn forward(&mut self, pass: Pass) {
        self.compute(pass.ns, "forward");
        let call = self.call(pass.call);
        self.pending.extend(call);
    }

    fn push(&mut self, stream: usize, label: &str, kind: String, what: What, after: Vec<usize>) -> usize {
        let (label, kind) = (label.into(), kind.into());
        self.program.push(Op { label, kind, stream, what, after, issue: SimDuration::ZERO, framework: false })
    }

    fn compute(&mut self, ns: u64, label: &str) {
        let after = std::mem::take(&mut self.pending);
        let time = SimDuration(ns.saturating_mul(1000));
        // The kernels of a layer: blocks of a call may start between theirs.
        let (kernels, waves) = (1, MEMORY_WAVES);
        let what = Compute { time, kernels, waves, tiles: [0; 2], memory_ppm: self.memory_ppm };
        self.push(self.compute, label, label.to_owned(), What::Compute(what), after);
    }

    /// A call after the last computation.
    fn call(&mut self, call: Option<Call>) -> Option<usize> {
        let Call { collective, group, bytes } = call?;
        let &place = self.places.get(&group)?;
        let program = &mut self.program;
        let name = group.name();
        let stream =
            *self.streams.entry(group).or_insert_with(|| program.stream(name, StreamKind::Communication, true));
        let last = program.ops.iter().rposition(|op| op.stream == self.compute);
        let kind = format!("{collective} of {name}");
        let reduced = if bytes.0 % 2 == 0 { DataType::Bfloat16 } else { DataType::Uint8 };
        let what = What::Collective(Communicate {
            group: place,
            collective,
            bytes,
            dtype: if collective.reduces() { reduced } else { DataType::Uint8 },
            in_place: !matches!(collective, Collective::ReduceScatter | Collective::AllToAll),
            algorithm: Choice::Auto,
            protocol: Choice::Auto,
            channels: None,
        });
        Some(self.push(stream, name, kind, what, last.into_iter().collect()))
    }
}

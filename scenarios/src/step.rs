//! One training step: which rank does what, for a model, a layout and a strategy.

use collcast_sim::ids::Rank;
use collcast_sim::units::Bytes;
use collcast_sim::workload::{OpGraph, RankSpec};

use crate::ddp::{self, Buckets, Ddp};
use crate::emit::{CallSettings, Costs, Slots, Writer, suffix};
use crate::fsdp::{self, Fsdp};
use crate::model::{Layer, Model};
use crate::pipeline::{Pass, Schedule, passes};

/// How ranks share the work. Rank `t + tensor * (d + data * p)` is number `t` of its tensor group,
/// `d` of its data group, and in stage `p`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Ranks that split each operation.
    pub tensor: u32,
    /// Stages.
    pub pipeline: u32,
    /// Replicas.
    pub data: u32,
    /// Micro-batches of a step.
    pub micro_batches: u32,
    /// Order of passes.
    pub schedule: Schedule,
    /// Chunks of layers a stage has, for the interleaved schedule.
    pub chunks: u32,
}

impl Default for Layout {
    fn default() -> Self {
        Self { tensor: 1, pipeline: 1, data: 1, micro_batches: 1, schedule: Schedule::default(), chunks: 1 }
    }
}

impl Layout {
    /// Ranks in all.
    pub fn ranks(&self) -> u64 {
        u64::from(self.tensor) * u64::from(self.pipeline) * u64::from(self.data)
    }
}

/// How replicas agree on gradients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataParallel {
    /// Not at all: what the computation takes.
    None,
    /// One all-reduce when all gradients are there.
    AtEnd,
    /// Buckets during the backward pass.
    Ddp(Ddp),
    /// One GPU owns the model: a bad example.
    OneGpu,
    /// Sharded parameters, gradients and optimiser.
    Fsdp(Fsdp),
}

/// A rank that is not like the others.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Straggler {
    /// Which.
    pub rank: u32,
    /// Its computations take so many millionths of the time that they would take without it.
    pub pace_ppm: u64,
    /// Its host starts so late.
    pub late: collcast_sim::units::SimDuration,
}

impl Straggler {
    /// Whether others wait for it: it is slower, or starts late.
    pub fn lags(&self) -> bool {
        self.pace_ppm > 1_000_000 || self.late > collcast_sim::units::SimDuration::ZERO
    }
}

/// Builds the graph of a step.
///
/// `model` is what one rank of a tensor group computes; layers go to chunks in order, in equal
/// numbers as far as possible. Of the GPUs every other one is faster by the spread: neighbours in each group differ.
pub fn graph(
    model: &Model,
    layout: &Layout,
    data_parallel: DataParallel,
    calls: &CallSettings,
    costs: &Costs,
    (spread, stragglers): (f64, &[Straggler]),
) -> OpGraph {
    let mut graph = OpGraph::default();
    let (t, d, p) = (layout.tensor, layout.data, layout.pipeline);
    let rank = |tensor: u32, data: u32, stage: u32| Rank(tensor + t * (data + d * stage));
    for index in 0..t * d * p {
        let straggler = stragglers.iter().find(|s| s.rank == index);
        let fast = (index % t + index / t % d + index / (t * d)) % 2 == 1;
        let pace = 1e6 / if fast { 1.0 + spread } else { 1.0 };
        let slow = straggler.map_or(1.0, |s| s.pace_ppm as f64 / 1e6);
        graph.ranks.push(RankSpec {
            program: 0,
            groups: Vec::new(),
            pace_ppm: (pace * slow).round() as u64,
            late: straggler.map(|s| s.late).unwrap_or_default(),
        });
    }
    let mut slots = Slots::default();
    let join = |graph: &mut OpGraph, members: Vec<Rank>| {
        for r in &members {
            graph.ranks[r.index()].groups.push(graph.groups.len());
        }
        graph.groups.push(members);
    };
    let mut next = 0;
    let mut slot = |used: bool| {
        next += usize::from(used);
        used.then(|| next - 1)
    };
    slots.tensor = slot(t > 1);
    slots.data = slot(d > 1 && data_parallel != DataParallel::None);
    for stage in 0..p {
        for data in (0..d).filter(|_| slots.tensor.is_some()) {
            join(&mut graph, (0..t).map(|tensor| rank(tensor, data, stage)).collect());
        }
    }
    for stage in 0..p {
        for tensor in (0..t).filter(|_| slots.data.is_some()) {
            join(&mut graph, (0..d).map(|data| rank(tensor, data, stage)).collect());
        }
    }
    // Pairs of stages: each rank with its like in the next one; with chunks the last with the first.
    let pairs = if p == 1 { 0 } else { p - 1 + u32::from(layout.chunks > 1) };
    for stage in 0..pairs {
        for data in 0..d {
            for tensor in 0..t {
                join(&mut graph, vec![rank(tensor, data, stage), rank(tensor, data, (stage + 1) % p)]);
            }
        }
    }
    let first_pair = usize::from(slots.tensor.is_some()) + usize::from(slots.data.is_some());
    for stage in 0..p {
        let mut slots = slots;
        // In the order in which they were joined above.
        let mut place = first_pair;
        let mut pair = |used: bool| {
            place += usize::from(used);
            used.then(|| place - 1)
        };
        let wraps = p > 1 && layout.chunks > 1;
        slots.before = pair(stage > 0);
        slots.after = pair(stage + 1 < p);
        slots.around = pair(wraps && (stage == 0 || stage + 1 == p));
        for member in [0, 1] {
            // Only where one GPU owns the model do its ranks differ.
            if member == 1 && (data_parallel != DataParallel::OneGpu || d == 1) {
                continue;
            }
            let mut writer = Writer::new(calls, costs, slots);
            if let (DataParallel::Fsdp(how), 1) = (data_parallel, p) {
                fsdp::step(&mut writer, model, how);
            } else {
                stage_program(&mut writer, model, layout, stage, data_parallel);
            }
            graph.programs.push(writer.finish());
            for data in member..d {
                for tensor in 0..t {
                    graph.ranks[rank(tensor, data, stage).index()].program = graph.programs.len() - 1;
                }
            }
        }
    }
    graph
}

/// The layers of a chunk, numbered through all stages.
fn layers_of(model: &Model, chunk: u32, chunks: u32) -> &[Layer] {
    let at = |c: u32| model.layers.len() * c as usize / chunks.max(1) as usize;
    &model.layers[at(chunk)..at(chunk + 1)]
}

fn stage_program(writer: &mut Writer<'_>, model: &Model, layout: &Layout, stage: u32, data_parallel: DataParallel) {
    let stages = layout.pipeline;
    let all = stages * layout.chunks;
    let own = |pass: Pass| pass.chunk * stages + stage;
    let mut start = Vec::new();
    let parameters: u64 =
        (0..layout.chunks).flat_map(|c| layers_of(model, c * stages + stage, all)).map(Layer::parameters).sum();
    if data_parallel == DataParallel::OneGpu {
        start = ddp::broadcast_from_one(writer, Bytes(parameters * model.parameter_bytes));
    }
    let mut buckets = match data_parallel {
        DataParallel::Ddp(how) if writer.slots.data.is_some() => Some(Buckets::new(how)),
        _ => None,
    };
    let mut last: Option<usize> = None;
    // Output of a chunk: what its last layer hands on.
    let handed = |chunk: u32| layers_of(model, chunk, all).last().map_or(Bytes(0), |l| l.output);
    for pass in passes(layout.schedule, stage, stages, layout.micro_batches, layout.chunks) {
        let chunk = own(pass);
        let tail = suffix(pass.micro_batch, layout.micro_batches);
        let name = if pass.forward { "activations" } else { "gradients of activations" };
        let direction = if pass.forward { "forward" } else { "backward" };
        // Forward data comes from the chunk before and goes to the one after; backward the other way.
        let (from, to) =
            if pass.forward { (chunk.checked_sub(1), chunk + 1) } else { (Some(chunk + 1), chunk.wrapping_sub(1)) };
        let mut waits = std::mem::take(&mut start);
        if let Some(from) = from.filter(|&c| c < all && stages > 1) {
            let bytes = handed(from.min(chunk));
            let slot = neighbour(writer, pass.forward, stage, stages);
            if let Some(slot) = slot.0 {
                // Frameworks post it together with the send of the pass before, and wait for it.
                let stream = format!("recv {direction}");
                let label = format!("receive {name}{tail}");
                waits.push(writer.message(&label, false, (slot, &stream), bytes, last.as_slice()));
            }
        }
        let layers = layers_of(model, chunk, all);
        if pass.forward {
            for layer in layers {
                last = Some(writer.forward(layer, &tail, &waits));
                waits.clear();
            }
        } else {
            last = backward(writer, model, layers, pass, layout, &mut waits, &mut buckets).or(last);
        }
        if to < all && stages > 1 {
            let bytes = handed(chunk.min(to));
            if let Some(slot) = neighbour(writer, pass.forward, stage, stages).1 {
                let stream = format!("send {direction}");
                writer.message(&format!("send {name}{tail}"), true, (slot, &stream), bytes, last.as_slice());
            }
        }
    }
    let last = last.unwrap_or(0);
    match data_parallel {
        DataParallel::AtEnd => ddp::all_reduce_at_end(writer, Bytes(parameters * model.gradient_bytes), last),
        DataParallel::OneGpu => ddp::reduce_to_one(writer, Bytes(parameters * model.gradient_bytes), last),
        _ => {}
    }
    if let Some(buckets) = buckets {
        buckets.finish(writer, last);
    }
}

/// Groups that data of a pass comes from and goes to.
fn neighbour(writer: &Writer<'_>, forward: bool, stage: u32, stages: u32) -> (Option<usize>, Option<usize>) {
    let before = if stage > 0 { writer.slots.before } else { writer.slots.around };
    let after = if stage + 1 < stages { writer.slots.after } else { writer.slots.around };
    if forward { (before, after) } else { (after, before) }
}

/// The backward pass of a chunk. Gradients of all but the first micro-batch are added to those that
/// are there; those of the last are final.
fn backward(
    writer: &mut Writer<'_>,
    model: &Model,
    layers: &[Layer],
    pass: Pass,
    layout: &Layout,
    waits: &mut Vec<usize>,
    buckets: &mut Option<Buckets>,
) -> Option<usize> {
    let tail = suffix(pass.micro_batch, layout.micro_batches);
    let mut last = None;
    for layer in layers.iter().rev() {
        for operation in layer.operations.iter().rev() {
            let label = format!("{} {}{tail}", layer.name, operation.name);
            let mut done = writer.pass(&label, "backward", operation.backward, operation.sum_backward, waits);
            waits.clear();
            for elements in operation.parameters.iter().rev() {
                let bytes = elements * model.gradient_bytes;
                if pass.micro_batch > 0 {
                    done = writer.copy("add gradients", 3 * bytes, &[]);
                }
                if pass.micro_batch + 1 == layout.micro_batches
                    && let Some(buckets) = buckets
                {
                    buckets.gradient(writer, bytes, done);
                }
            }
            last = Some(done);
        }
    }
    last
}

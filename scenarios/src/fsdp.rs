//! Fully sharded data parallelism (ZeRO stage 3), as PyTorch's FSDP2 does it.
//!
//! Every layer is a unit. Forward, its parameters are gathered, copied out of the gathered buffer
//! and used; with `reshard` they are freed, and gathered again for the backward pass. Backward, its
//! gradients are copied into one buffer and reduce-scattered.
//!
//! Memory is bounded by events: the gather of a unit waits until an earlier unit has been copied
//! out, so that `prefetch` units are gathered ahead at most; the gradients of a unit are copied
//! once the reduce-scatter of the unit before is over. Gathers and reduce-scatters are of one
//! communicator, so they run one after another, in launch order.
//!
//! Source: PyTorch 2.11 `torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py`; Zhao et al.,
//! "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023.

use collcast_sim::collective::Collective;
use collcast_sim::units::Bytes;

use crate::emit::Writer;
use crate::model::{Layer, Model};

/// How FSDP shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fsdp {
    /// Units gathered ahead at most; 0 gathers when a unit is needed.
    pub prefetch: usize,
    /// Free parameters after the forward pass and gather them again.
    pub reshard: bool,
    /// Copies out of gathered buffers and into those that are reduce-scattered.
    pub copies: bool,
}

impl Default for Fsdp {
    fn default() -> Self {
        Self { prefetch: 1, reshard: true, copies: true }
    }
}

struct Step<'w, 'a> {
    writer: &'w mut Writer<'a>,
    how: Fsdp,
    group: usize,
    parameter_bytes: u64,
}

/// Writes a whole step.
pub fn step(writer: &mut Writer<'_>, model: &Model, how: Fsdp) {
    let Some(group) = writer.slots.data else {
        return compute_only(writer, model);
    };
    let mut step = Step { writer, how, group, parameter_bytes: model.parameter_bytes };
    let turn = step.forward(&model.layers.iter().collect::<Vec<_>>());
    step.backward(&model.layers.iter().rev().collect::<Vec<_>>(), turn, model.gradient_bytes);
}

fn compute_only(writer: &mut Writer<'_>, model: &Model) {
    for layer in &model.layers {
        writer.forward(layer, "", &[]);
    }
    for layer in model.layers.iter().rev() {
        for operation in layer.operations.iter().rev() {
            let label = format!("{} {}", layer.name, operation.name);
            writer.pass(&label, "backward", operation.backward, operation.sum_backward, &[]);
        }
    }
}

impl Step<'_, '_> {
    fn gather(&mut self, layer: &Layer, after: &[usize]) -> usize {
        let size = Bytes(layer.parameters() * self.parameter_bytes);
        let label = format!("gather {}", layer.name);
        let name = (label.as_str(), "fsdp all_gather", "all-gather");
        self.writer.collective(name, self.group, Collective::AllGather, size, after)
    }

    /// What the framework copies out of a gathered buffer: read and written once.
    fn copied_out(&mut self, layer: &Layer, gathered: usize) -> usize {
        let bytes = if self.how.copies { 2 * layer.parameters() * self.parameter_bytes } else { 0 };
        self.writer.pack(&format!("copy out {}", layer.name), bytes, &[gathered])
    }

    /// The forward pass; gives its last operation. Unit `i` is gathered once unit `i - 1 - prefetch`
    /// is copied out; without prefetch once unit `i - 1` is computed.
    fn forward(&mut self, layers: &[&Layer]) -> usize {
        let ahead = self.how.prefetch;
        let (mut gathers, mut copies): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
        let mut last = 0;
        for (index, layer) in layers.iter().enumerate() {
            while gathers.len() <= (index + ahead).min(layers.len() - 1) {
                let next = gathers.len();
                let waits = match (ahead, next.checked_sub(1 + ahead)) {
                    (0, Some(_)) => Some(last),
                    (_, before) => before.map(|unit| copies[unit]),
                };
                gathers.push(self.gather(layers[next], waits.as_slice()));
            }
            copies.push(self.copied_out(layer, gathers[index]));
            last = self.writer.forward(layer, "", &[copies[index]]);
        }
        last
    }

    /// The backward pass: gathers where parameters were freed, and a reduce-scatter a unit. The unit
    /// that was used last is not gathered again: frameworks keep it. Unit `i` is gathered once
    /// unit `i - prefetch` is copied out, which is then the one in use.
    fn backward(&mut self, layers: &[&Layer], turn: usize, gradient_bytes: u64) {
        let ahead = self.how.prefetch;
        let mut gathers: Vec<Option<usize>> = Vec::new();
        let mut copies: Vec<Option<usize>> = Vec::new();
        let mut last = turn;
        let mut scattered: Option<usize> = None;
        for (index, layer) in layers.iter().enumerate() {
            let launch =
                |step: &mut Self, gathers: &mut Vec<Option<usize>>, copies: &[Option<usize>], last, upto: usize| {
                    while gathers.len() <= upto.min(layers.len() - 1) {
                        let next = gathers.len();
                        let freed = step.how.reshard && next > 0;
                        let before = next.checked_sub(ahead).and_then(|unit| copies.get(unit).copied().flatten());
                        let waits = if ahead == 0 { last } else { before.unwrap_or(turn) };
                        gathers.push(freed.then(|| step.gather(layers[next], &[waits])));
                    }
                };
            launch(self, &mut gathers, &copies, last, index);
            let copied = gathers[index].map(|gathered| self.copied_out(layer, gathered));
            copies.push(copied);
            launch(self, &mut gathers, &copies, last, index + ahead);
            let mut waits: Vec<usize> = copied.into_iter().collect();
            for operation in layer.operations.iter().rev() {
                let label = format!("{} {}", layer.name, operation.name);
                last = self.writer.pass(&label, "backward", operation.backward, operation.sum_backward, &waits);
                waits.clear();
            }
            let elements = layer.parameters();
            let bytes = if self.how.copies { 2 * elements * gradient_bytes } else { 0 };
            let waits: Vec<usize> = std::iter::once(last).chain(scattered).collect();
            let copied = self.writer.pack(&format!("copy gradients of {}", layer.name), bytes, &waits);
            let label = format!("scatter {}", layer.name);
            let name = (label.as_str(), "fsdp reduce_scatter", "reduce-scatter");
            let size = Bytes(elements * gradient_bytes);
            scattered = Some(self.writer.collective(name, self.group, Collective::ReduceScatter, size, &[copied]));
        }
    }
}

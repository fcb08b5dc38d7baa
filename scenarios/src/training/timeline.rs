//! What a step does when, for those who draw it.

use super::kind::Kind;
use super::streams::{Call, Item, Ran, What};

/// What a stage does for some time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doing {
    /// A pass of a micro-batch through a chunk of layers, with the calls inside it.
    Pass {
        /// Forward, or else backward with what is computed again.
        forward: bool,
        /// The chunk of the stage.
        chunk: u32,
        /// The micro-batch.
        micro_batch: u32,
    },
    /// Gradients of weights that fill the bubble.
    Weights,
    /// Kernels between exchanges of replicas that share parameters: layers, and copies of what is exchanged.
    Kernels,
    /// A message to another stage.
    Message {
        /// Activations to the next one, or else gradients to the one before.
        forward: bool,
    },
    /// A call that gathers parameters for the first forward pass of a chunk.
    Parameters {
        /// The chunk.
        chunk: u32,
    },
    /// A call that sums gradients during the last backward pass.
    Gradients,
    /// A call of replicas that share parameters: it gathers them, or sums their gradients.
    Shared,
    /// A call that sums their shares of gradients over the replicas of these (HSDP).
    Replicas,
    /// The optimizer.
    Optimizer,
}

/// Something that a stage does, in seconds from the start of the step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Span {
    /// The stage.
    pub stage: usize,
    /// What it does.
    pub doing: Doing,
    /// When it begins.
    pub start: f64,
    /// When it ends.
    pub end: f64,
    /// The call that it is, and what of it no kernel hides, where it is one.
    pub call: Option<(Call, f64)>,
}

impl Span {
    /// Of a stage from some moment to another.
    pub(super) fn new(stage: usize, doing: Doing, (start, end): (f64, f64)) -> Self {
        Self { stage, doing, start, end, call: None }
    }
}

/// The stream of calls over replicas of shares; kernels are on 0, other calls of replicas on 1.
pub(super) const ALL_REDUCES: usize = 2;

/// Takes note of what a step does.
pub(crate) type Record<'r> = dyn FnMut(Span) + 'r;

/// Takes no note.
pub(crate) fn unseen(_: Span) {}

/// Takes note of a list that was run, from when on: of the calls of replicas as what they do, and of kernels that share
/// parameters.
pub(crate) fn ran(items: &[Item], ran: &Ran, (stage, calls, from): (usize, Doing, f64), record: &mut Record<'_>) {
    let mut free = [0.0_f64; ALL_REDUCES + 1];
    for ((item, &end), &exposed) in items.iter().zip(&ran.ends).zip(&ran.exposed) {
        // An item begins once its stream is free, and all are done that it waits for.
        let start = item.after.iter().map(|&before| ran.ends[before]).fold(free[item.stream], f64::max);
        free[item.stream] = end;
        let (doing, call) = match item.what {
            What::Call(call) if item.stream == ALL_REDUCES => (Doing::Replicas, Some((call, exposed))),
            What::Call(call) if call.kind == Kind::Data => (calls, Some((call, exposed))),
            What::Kernels if calls == Doing::Shared => (Doing::Kernels, None),
            _ => continue,
        };
        record(Span { call, ..Span::new(stage, doing, (from + start, from + end)) });
    }
}

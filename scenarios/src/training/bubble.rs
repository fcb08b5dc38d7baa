//! A pipeline in time: passes of micro-batches over stages, in the order of a schedule, with the messages between them.

use super::timeline::{Doing, Record, Span};
use crate::pipeline::{Pass, Schedule as Order, passes};

/// What the passes of one stage take, in seconds, by chunk.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct StageTimes {
    /// Forward passes.
    pub(crate) forward: Vec<f64>,
    /// Backward passes, without `weights`.
    pub(crate) backward: Vec<f64>,
    /// Gradients of weights that no other stage waits for; 0 where they are part of the backward pass.
    pub(crate) weights: Vec<f64>,
}

/// What a step does besides its passes, by stage.
pub(crate) trait Around {
    /// When the first forward pass of a chunk ends, from when it could start and what it takes alone.
    fn first(&self, stage: usize, chunk: usize, times: (f64, f64), record: &mut Record<'_>) -> f64;
}

/// A pipeline.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Pipeline {
    /// Order of passes.
    pub(crate) order: Order,
    /// Micro-batches.
    pub(crate) micro_batches: u32,
    /// By stage.
    pub(crate) stages: Vec<StageTimes>,
    /// Seconds of a message between two stages.
    pub(crate) message: f64,
    /// Whether a stage waits until its message has left, before its next pass.
    pub(crate) waits: bool,
}

/// How it went, in seconds.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct PipelineTimes {
    /// When each stage has done its last pass.
    pub(crate) ends: Vec<f64>,
    /// When each stage begins the last backward pass of its first chunk.
    pub(crate) last_begins: Vec<f64>,
    /// Time in passes, by stage.
    pub(crate) busy: Vec<f64>,
    /// Time in which a stage waits for messages to leave.
    pub(crate) sending: Vec<f64>,
}

impl Pipeline {
    /// Runs it.
    pub(crate) fn run(&self, around: &dyn Around, record: &mut Record<'_>) -> PipelineTimes {
        let stages = self.stages.len();
        let chunks = self.stages[0].forward.len();
        let all = stages * chunks;
        let micro_batches = self.micro_batches as usize;
        let order: Vec<Vec<Pass>> = (0..stages as u32)
            .map(|stage| passes(self.order, stage, stages as u32, self.micro_batches, chunks as u32))
            .collect();
        let place = |chunk: usize, micro_batch: u32| chunk * micro_batches + micro_batch as usize;
        // When the input of a pass is there: of forward passes by chunk through all stages, then of backward passes.
        let mut inputs = vec![vec![f64::NAN; all * micro_batches]; 2];
        inputs[0][..micro_batches].fill(0.0);
        let mut next = vec![0; stages];
        let mut free = vec![0.0_f64; stages];
        let mut pending = vec![0.0_f64; stages];
        let mut times = PipelineTimes {
            ends: vec![0.0; stages],
            last_begins: vec![0.0; stages],
            busy: vec![0.0; stages],
            sending: vec![0.0; stages],
        };
        let mut first = vec![vec![true; chunks]; stages];
        let mut todo: Vec<usize> = (0..stages).rev().collect();
        while let Some(stage) = todo.pop() {
            while let Some(&pass) = order[stage].get(next[stage]) {
                let (own, chunk) = (pass.chunk as usize, pass.chunk as usize * stages + stage);
                let input = inputs[usize::from(!pass.forward)][place(chunk, pass.micro_batch)];
                if input.is_nan() {
                    break;
                }
                next[stage] += 1;
                let of = &self.stages[stage];
                // Gradients of weights fill what is idle.
                let filled = pending[stage].min((input - free[stage]).max(0.0));
                pending[stage] -= filled;
                if filled > 0.0 {
                    record(Span { stage, doing: Doing::Weights, start: free[stage], end: free[stage] + filled });
                }
                free[stage] += filled;
                let start = free[stage].max(input);
                let alone = if pass.forward { of.forward[own] } else { of.backward[own] };
                let end = if pass.forward && std::mem::take(&mut first[stage][own]) {
                    around.first(stage, own, (start, alone), record)
                } else {
                    start + alone
                };
                let Pass { forward, chunk: own_chunk, micro_batch } = pass;
                record(Span { stage, doing: Doing::Pass { forward, chunk: own_chunk, micro_batch }, start, end });
                if !pass.forward {
                    pending[stage] += of.weights[own];
                    if own == 0 && pass.micro_batch + 1 == self.micro_batches {
                        times.last_begins[stage] = start;
                    }
                }
                times.busy[stage] += alone + if pass.forward { 0.0 } else { of.weights[own] };
                let to = if pass.forward { Some(chunk + 1).filter(|&c| c < all) } else { chunk.checked_sub(1) };
                // The last chunk turns around by itself.
                if pass.forward && to.is_none() {
                    inputs[1][place(chunk, pass.micro_batch)] = end;
                }
                let sends = to.is_some_and(|to| to % stages != stage);
                free[stage] = end;
                if let Some(to) = to {
                    let arrives = end + if sends { self.message } else { 0.0 };
                    if sends {
                        record(Span { stage, doing: Doing::Message { forward }, start: end, end: arrives });
                    }
                    inputs[usize::from(!pass.forward)][place(to, pass.micro_batch)] = arrives;
                    if sends && self.waits {
                        free[stage] = arrives;
                        times.sending[stage] += self.message;
                    }
                    if to % stages != stage {
                        todo.push(to % stages);
                    }
                }
                times.ends[stage] = free[stage];
            }
        }
        for stage in 0..stages {
            times.ends[stage] = free[stage] + pending[stage];
            if pending[stage] > 0.0 {
                record(Span { stage, doing: Doing::Weights, start: free[stage], end: times.ends[stage] });
            }
        }
        times
    }
}

#[cfg(test)]
mod tests {
    use super::super::timeline::unseen;
    use super::*;

    struct Nothing;
    impl Around for Nothing {
        fn first(&self, _: usize, _: usize, (start, alone): (f64, f64), _: &mut Record<'_>) -> f64 {
            start + alone
        }
    }

    fn step(order: Order, stages: usize, chunks: usize, micro_batches: u32, weights: f64) -> f64 {
        let each = |time: f64| vec![time / chunks as f64; chunks];
        let times = StageTimes { forward: each(1.0), backward: each(2.0 - weights), weights: each(weights) };
        let pipeline = Pipeline { order, micro_batches, stages: vec![times; stages], message: 0.0, waits: false };
        pipeline.run(&Nothing, &mut unseen).ends.into_iter().fold(0.0, f64::max)
    }

    /// Goal: the published lengths. Source: Narayanan et al., SC 2021, 2.2; Qi et al., "Zero bubble pipeline
    /// parallelism", ICLR 2024, table 2 (ZB-H1: `(p - 1)(F + B - W)`, B the input gradients).
    #[test]
    fn steps_are_as_long_as_published() {
        for (p, m) in [(1, 4), (4, 8), (8, 8), (8, 32)] {
            let (stages, batches) = (p as f64, f64::from(m));
            for order in [Order::Gpipe, Order::OneForwardOneBackward] {
                assert!((step(order, p, 1, m, 0.0) - (batches + stages - 1.0) * 3.0).abs() < 1e-9, "{order:?} {p} {m}");
            }
            for v in [2, 4] {
                let expected = (batches + (stages - 1.0) / v as f64) * 3.0;
                let got = step(Order::Interleaved, p, v, m, 0.0);
                assert!((got - expected).abs() < 1e-9, "{p} {v} {m}: {got} for {expected}");
            }
            let zero_bubble = step(Order::OneForwardOneBackward, p, 1, m, 1.0);
            assert!(zero_bubble <= batches * 3.0 + (stages - 1.0) + 1e-9, "{p} {m}: {zero_bubble}");
        }
    }

    /// Goal: a message that stages wait for is paid at each pass of the steady part; one that they do not, only while the
    /// pipeline fills and empties.
    #[test]
    fn messages_are_paid_where_stages_wait() {
        let times = StageTimes { forward: vec![1.0], backward: vec![2.0], weights: vec![0.0] };
        let of = |waits: bool| {
            let pipeline = Pipeline {
                order: Order::OneForwardOneBackward,
                micro_batches: 16,
                stages: vec![times.clone(); 4],
                message: 0.1,
                waits,
            };
            pipeline.run(&Nothing, &mut unseen).ends.into_iter().fold(0.0, f64::max)
        };
        let free = (16.0 + 3.0) * 3.0;
        let [beside, waited] = [of(false), of(true)];
        // Three messages there and three back at least; in 1F1B a stage then waits for its neighbour in each round.
        assert!(beside >= free + 6.0 * 0.1 - 1e-9 && beside < free + 16.0 * 2.0 * 0.1, "{beside}");
        assert!(waited > beside + 0.1 && waited < free + 19.0 * 4.0 * 0.1, "{waited} {beside}");
    }
}

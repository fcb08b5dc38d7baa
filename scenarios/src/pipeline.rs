//! Pipeline schedules: in which order a stage does the passes of its micro-batches.
//!
//! With `p` stages, `m` micro-batches and `v` chunks of layers a stage, forward and backward times
//! `f` and `b` of all chunks of a stage together and free messages, a step takes
//! `(m + p - 1)(f + b)` with GPipe and 1F1B, and `(m + (p - 1)/v)(f + b)` interleaved.
//!
//! Source: Huang et al., "GPipe", NeurIPS 2019; Narayanan et al., "Efficient large-scale language
//! model training on GPU clusters using Megatron-LM", SC 2021 (1F1B as in PipeDream-Flush, and
//! interleaved).

/// Which schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Schedule {
    /// All forward passes, then all backward passes.
    Gpipe,
    /// One forward, one backward, once the pipeline is full.
    #[default]
    OneForwardOneBackward,
    /// The same with several chunks of layers a stage.
    Interleaved,
}

/// A pass of one micro-batch through one chunk of a stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pass {
    /// Forward or backward.
    pub forward: bool,
    /// Micro-batch, from 0.
    pub micro_batch: u32,
    /// Chunk of the stage, from 0.
    pub chunk: u32,
}

/// The passes of a stage, in order.
///
/// `chunks` is 1 but for [`Schedule::Interleaved`], which needs `micro_batches` to be a multiple of
/// `stages`.
pub fn passes(schedule: Schedule, stage: u32, stages: u32, micro_batches: u32, chunks: u32) -> Vec<Pass> {
    let total = micro_batches * chunks;
    // The n-th forward pass: micro-batches go through all chunks in groups of `stages`.
    let pass = |n: u32, forward: bool| {
        let group = stages * chunks;
        let chunk = n % group / stages;
        let chunk = if forward { chunk } else { chunks - 1 - chunk };
        Pass { forward, micro_batch: n / group * stages + n % stages, chunk }
    };
    let plain = |n: u32, forward: bool| Pass { forward, micro_batch: n, chunk: 0 };
    let one =
        |n: u32, forward: bool| if schedule == Schedule::Interleaved { pass(n, forward) } else { plain(n, forward) };
    let warm_up = match schedule {
        Schedule::Gpipe => total,
        Schedule::OneForwardOneBackward => stages - 1 - stage,
        Schedule::Interleaved => (stages - 1 - stage) * 2 + (chunks - 1) * stages,
    }
    .min(total);
    let mut order: Vec<Pass> = (0..warm_up).map(|n| one(n, true)).collect();
    for n in 0..total - warm_up {
        order.push(one(warm_up + n, true));
        order.push(one(n, false));
    }
    order.extend((total - warm_up..total).map(|n| one(n, false)));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every pass once, forward before backward, and the last stage alternates from the start.
    #[test]
    fn every_pass_is_there_once_and_in_order() {
        for (schedule, chunks) in
            [(Schedule::Gpipe, 1), (Schedule::OneForwardOneBackward, 1), (Schedule::Interleaved, 3)]
        {
            for stage in 0..4 {
                let order = passes(schedule, stage, 4, 8, chunks);
                assert_eq!(order.len(), 2 * 8 * chunks as usize);
                for (place, pass) in order.iter().enumerate() {
                    assert_eq!(order.iter().filter(|p| *p == pass).count(), 1);
                    let twin = order.iter().position(|p| *p == Pass { forward: !pass.forward, ..*pass }).unwrap();
                    assert_eq!(pass.forward, place < twin);
                }
            }
        }
        let last = passes(Schedule::OneForwardOneBackward, 3, 4, 3, 1);
        assert_eq!(last.iter().map(|p| p.forward).collect::<Vec<_>>(), [true, false, true, false, true, false]);
    }
}

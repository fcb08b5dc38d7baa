//! Pipeline schedules: in which order a stage does the passes of its micro-batches.
//!
//! With `p` stages, `m` micro-batches and `v` chunks of layers a stage, forward and backward times
//! `f` and `b` of all chunks of a stage together and free messages, a step takes
//! `(m + p - 1)(f + b)` with GPipe and 1F1B, and `(m + (p - 1)/v)(f + b)` interleaved.
//!
//! DualPipe sends micro-batches in from both ends, so that each rank has two stages, and runs forward passes of one way
//! beside backward passes of the other.
//!
//! Source: Huang et al., "GPipe", NeurIPS 2019; Narayanan et al., "Efficient large-scale language
//! model training on GPU clusters using Megatron-LM", SC 2021 (1F1B as in PipeDream-Flush, and
//! interleaved); DeepSeek-AI, "DeepSeek-V3 technical report", 2024, section 3.2.1, and `dualpipe/dualpipe.py` of
//! deepseek-ai/DualPipe (its order).

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
    let warm_up = warm_up(schedule, stage, stages, micro_batches, chunks).min(total);
    let mut order: Vec<Pass> = (0..warm_up).map(|n| one(n, true)).collect();
    for n in 0..total - warm_up {
        order.push(one(warm_up + n, true));
        order.push(one(n, false));
    }
    order.extend((total - warm_up..total).map(|n| one(n, false)));
    order
}

/// Forward passes of a stage before its first backward pass has one beside it.
fn warm_up(schedule: Schedule, stage: u32, stages: u32, micro_batches: u32, chunks: u32) -> u32 {
    match schedule {
        Schedule::Gpipe => micro_batches * chunks,
        Schedule::OneForwardOneBackward => stages - 1 - stage,
        Schedule::Interleaved => (stages - 1 - stage) * 2 + (chunks - 1) * stages,
    }
}

/// What a stage does in order where forward passes run beside backward passes of other micro-batches. What runs beside the first
/// backward pass is of a later micro-batch, so that one more forward pass comes before both.
///
/// Source: Megatron-LM, `core/pipeline_parallel/schedules.py`, `get_pp_rank_microbatches`, and `combined_1f1b.py`.
pub fn pairs(schedule: Schedule, stage: u32, stages: u32, micro_batches: u32, chunks: u32) -> Vec<Turn> {
    let order = passes(schedule, stage, stages, micro_batches, chunks);
    let (forward, backward): (Vec<Pass>, Vec<Pass>) = order.into_iter().partition(|pass| pass.forward);
    let alone = (warm_up(schedule, stage, stages, micro_batches, chunks) as usize + 1).min(forward.len());
    let (before, beside) = forward.split_at(alone);
    let (with, after) = backward.split_at(beside.len());
    let one = |pass: &Pass| Turn::One(*pass);
    let both = beside.iter().zip(with).map(|(forward, backward)| Turn::Both(*forward, *backward));
    before.iter().map(one).chain(both).chain(after.iter().map(one)).collect()
}

/// What a rank of a pipeline does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// A pass; a backward pass with the gradients of weights, where these are not put off everywhere.
    One(Pass),
    /// A backward pass whose gradients of weights are put off.
    Split(Pass),
    /// A forward and a backward pass beside each other.
    Both(Pass, Pass),
    /// The oldest gradients of weights that were put off.
    Weights,
}

/// What a rank of DualPipe does, in order. A rank and its mirror image have the same two stages; chunk 0 is the one whose
/// micro-batches come from the nearer end, and each chunk has half of the micro-batches.
///
/// `ranks` is even, and so is `micro_batches`, at least twice as many.
pub fn dual_pipe(rank: u32, ranks: u32, micro_batches: u32) -> Vec<Turn> {
    let (half, from_end) = (ranks / 2, rank.min(ranks - 1 - rank));
    let inner = half - from_end - 1;
    let mut done = [[0_u32; 2]; 2];
    let mut pass = |forward: bool, chunk: u32| {
        let count = &mut done[usize::from(forward)][chunk as usize];
        *count += 1;
        Pass { forward, micro_batch: *count - 1, chunk }
    };
    let mut order = Vec::new();
    (0..2 * inner).for_each(|_| order.push(Turn::One(pass(true, 0))));
    for _ in 0..=from_end {
        order.extend([Turn::One(pass(true, 0)), Turn::One(pass(true, 1))]);
    }
    for _ in 0..inner {
        order.extend([Turn::Split(pass(false, 1)), Turn::Weights, Turn::One(pass(true, 1))]);
    }
    for round in 0..micro_batches / 2 + from_end + 1 - ranks {
        let (forward, backward) = (pass(true, 0), pass(false, 1));
        // In the middle nothing comes in time to run beside the first one.
        match inner == 0 && round == 0 {
            true => order.extend([Turn::One(forward), Turn::One(backward)]),
            false => order.push(Turn::Both(forward, backward)),
        }
        order.push(Turn::Both(pass(true, 1), pass(false, 0)));
    }
    for _ in 0..inner {
        order.extend([Turn::One(pass(false, 1)), Turn::Both(pass(true, 1), pass(false, 0))]);
    }
    // Of the last backward passes, the later half put gradients off.
    let last = 2 * (from_end + 1);
    for place in 0..last {
        let pass = pass(false, 1 - place % 2);
        order.push(if place < last - (from_end + 1) { Turn::One(pass) } else { Turn::Split(pass) });
    }
    for _ in 0..inner {
        order.extend([Turn::Weights, Turn::Split(pass(false, 0))]);
    }
    (0..=from_end).for_each(|_| order.push(Turn::Weights));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each rank of DualPipe runs half of the micro-batches through each of its stages, there before back, and puts
    /// off as many gradients as it computes later.
    #[test]
    fn dual_pipe_has_every_pass_once() {
        for (ranks, micro_batches) in [(2, 4), (4, 8), (8, 20), (16, 120)] {
            for rank in 0..ranks {
                let order = dual_pipe(rank, ranks, micro_batches);
                let passes: Vec<Pass> = order
                    .iter()
                    .flat_map(|turn| match *turn {
                        Turn::One(pass) | Turn::Split(pass) => vec![pass],
                        Turn::Both(forward, backward) => vec![forward, backward],
                        Turn::Weights => Vec::new(),
                    })
                    .collect();
                assert_eq!(passes.len(), 2 * micro_batches as usize, "{ranks} {rank}");
                for (place, pass) in passes.iter().enumerate() {
                    assert!(pass.micro_batch < micro_batches / 2 && pass.chunk < 2);
                    let twin = passes.iter().position(|p| *p == Pass { forward: !pass.forward, ..*pass }).unwrap();
                    assert_eq!(pass.forward, place < twin, "{ranks} {rank} {pass:?}");
                }
                let mut put_off = 0;
                for turn in &order {
                    put_off += match turn {
                        Turn::Split(_) => 1,
                        Turn::Weights => -1,
                        _ => 0,
                    };
                    assert!(put_off >= 0, "{ranks} {rank}");
                }
                assert_eq!(put_off, 0, "{ranks} {rank}");
            }
        }
    }

    /// Goal: pairs have every pass once, and none of a micro-batch with itself; one micro-batch has no pair, four have three.
    #[test]
    fn pairs_are_of_two_micro_batches() {
        for (schedule, stages, micro_batches, chunks) in [
            (Schedule::OneForwardOneBackward, 1, 1, 1),
            (Schedule::OneForwardOneBackward, 1, 4, 1),
            (Schedule::Interleaved, 4, 8, 3),
            (Schedule::Interleaved, 4, 4, 2),
        ] {
            for stage in 0..stages {
                let order = pairs(schedule, stage, stages, micro_batches, chunks);
                let both = order.iter().filter(|turn| matches!(turn, Turn::Both(..))).count() as u32;
                let warm_up = warm_up(schedule, stage, stages, micro_batches, chunks) + 1;
                assert_eq!(both, (micro_batches * chunks).saturating_sub(warm_up), "{stages} {stage}");
                assert_eq!(order.len() as u32, 2 * micro_batches * chunks - both);
                let same = |turn: &Turn| matches!(turn, Turn::Both(a, b) if a.micro_batch == b.micro_batch && a.chunk == b.chunk);
                assert!(!order.iter().any(same), "{stages} {stage}");
            }
        }
    }

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

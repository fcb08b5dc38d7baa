//! How many micro-batches a stage holds at once.
//!
//! Source: Narayanan et al., SC'21, sections 2.2 and 2.3; Korthikanti et al., section 4.2.3; Qi et al., ICLR 2024
//! (ZB-H1); deepseek-ai/DualPipe, README.

use crate::parallel::{Parallel, Schedule};

/// Micro-batches in flight at a stage, in units of all its layers: a chunk of an interleaved stage counts as its part of them.
/// `chunks` has the layers of each ([`Parallel::chunk_layers`]).
///
/// `paired`: a forward pass runs beside a backward pass of another micro-batch. One forward pass more comes before both, which without
/// pairs would come between them. Each layer of the backward pass is freed when it is done (Megatron-LM, `get_pp_rank_microbatches`
/// and `TransformerModelChunkSchedulePlan.run`), so that one layer more is held. With a whole pass more Qwen3 30B of 8 GB200
/// would need 197 GiB of 184, where it ran (`published.csv`).
pub fn in_flight(parallel: &Parallel, stage: u64, chunks: &[u64], paired: bool) -> f64 {
    let (p, v, m) = (u64::from(parallel.pipeline), chunks.len().max(1) as u64, parallel.micro_batches().max(1));
    let behind = p.saturating_sub(stage);
    let all: u64 = chunks.iter().sum::<u64>().max(1);
    let more = |alone: u64| if paired && m.saturating_mul(v) > alone { 1.0 / all as f64 } else { 0.0 };
    match parallel.schedule {
        Schedule::Gpipe => m as f64,
        Schedule::OneForwardOneBackward => m.min(behind) as f64 + more(behind),
        // ZB-H1 keeps a micro-batch until its weight gradients are made: each stage holds as many as the first of 1F1B.
        Schedule::ZeroBubble => m.min(p) as f64,
        Schedule::Interleaved if p == 1 => 1.0 + more(1),
        // Chunks that are run before the first backward pass, and one: `2 (p - r - 1) + (v - 1) p + 1`.
        // They go through the chunks in groups of as many micro-batches as there are stages.
        Schedule::Interleaved => {
            let passes = 2 * behind.saturating_sub(1) + (v - 1) * p + 1;
            let (rounds, rest) = (passes / (p * v), passes % (p * v));
            let held = |chunk: usize| (rounds * p + rest.saturating_sub(chunk as u64 * p).min(p)).min(m);
            let kept: u64 = chunks.iter().enumerate().map(|(chunk, layers)| held(chunk) * layers).sum();
            kept as f64 / all as f64 + more(passes)
        }
        Schedule::DualPipe => m.min(p + 1) as f64,
    }
}

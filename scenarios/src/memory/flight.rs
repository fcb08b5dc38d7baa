//! How many micro-batches a stage holds at once.
//!
//! Source: Narayanan et al., SC'21, sections 2.2 and 2.3; Korthikanti et al., section 4.2.3; sail-sg/zero-bubble and
//! deepseek-ai/DualPipe, README.

use crate::parallel::{Parallel, Schedule};

/// Micro-batches in flight at a stage, in units of all its layers: a chunk of an interleaved stage counts as its part.
pub fn in_flight(parallel: &Parallel, stage: u64) -> f64 {
    let (p, v, m) = (u64::from(parallel.pipeline), u64::from(parallel.virtual_stages), parallel.micro_batches().max(1));
    let behind = p.saturating_sub(stage);
    match parallel.schedule {
        Schedule::Gpipe => m as f64,
        // ZB-H1 moves weight gradients within the memory of one forward, one backward.
        Schedule::OneForwardOneBackward | Schedule::ZeroBubble => m.min(behind) as f64,
        Schedule::Interleaved if p == 1 => 1.0,
        // Chunks that are run before the first backward pass, and one: `2 (p - r - 1) + (v - 1) p + 1`.
        Schedule::Interleaved => (2 * behind.saturating_sub(1) + (v - 1) * p + 1).min(m * v) as f64 / v as f64,
        Schedule::DualPipe => m.min(p + 1) as f64,
    }
}

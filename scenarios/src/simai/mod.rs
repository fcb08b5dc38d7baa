//! SimAI's workloads as AICB writes them (a header, a line a layer), as a step of all ranks.
//!
//! # Source
//! The files of SimAI's `example/` and AICB's description of their columns; the order of a pass is that of the policy
//! HYBRID_TRANSFORMER_FWD_IN_BCKWD.

mod graph;
mod read;
#[cfg(test)]
mod tests;
mod workload;

pub use graph::Run;
pub use read::{looks_like, read};
pub use workload::{Call, GPUS_MAX, Group, LAYERS_MAX, Layer, Pass, SimaiError, Workload};

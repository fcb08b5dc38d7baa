//! Closed forms: NCCL's own cost model and choice, and bounds that no simulation may beat.

pub mod bounds;
pub mod nccl;

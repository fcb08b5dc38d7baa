//! A workload as values.

use collcast_sim::collective::Collective;
use collcast_sim::units::Bytes;
use thiserror::Error;

/// Most layers of a file.
pub const LAYERS_MAX: usize = 200_000;
/// Most operations that run again: as many as other formats may have in all.
pub(super) const OPS_MAX: usize = crate::goal::OPS_MAX;
/// Most GPUs of a job.
pub const GPUS_MAX: u32 = 200_000;

/// Who takes part in a call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Group {
    /// Tensor parallel.
    Tensor,
    /// Data parallel.
    Data,
    /// Ranks that share the experts of a layer.
    Expert,
    /// Ranks with the same experts.
    ExpertData,
}

/// A call of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// What.
    pub collective: Collective,
    /// Of whom.
    pub group: Group,
    /// The whole buffer, as nccl-tests counts it.
    pub bytes: Bytes,
}

/// A pass of a layer: it computes, then calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pass {
    /// Computation in ns.
    pub ns: u64,
    /// The call, if any.
    pub call: Option<Call>,
}

/// A line of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layer {
    /// Its name.
    pub name: String,
    /// Forward.
    pub forward: Pass,
    /// Gradient of the input.
    pub input: Pass,
    /// Gradient of the weights.
    pub weight: Pass,
    /// Update of the weights, in ns.
    pub update_ns: u64,
}

/// A workload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Workload {
    /// GPUs of the job.
    pub gpus: u32,
    /// Tensor parallel ranks.
    pub tensor: u32,
    /// Expert parallel ranks.
    pub expert: u32,
    /// Pipeline stages.
    pub pipeline: u32,
    /// Layers from which a forward pass can be done again, and those before whose backward pass it is; ascending.
    pub checkpoints: Vec<u32>,
    /// See `checkpoints`.
    pub initiates: Vec<u32>,
    /// Layers, in forward order.
    pub layers: Vec<Layer>,
    /// What was not used.
    pub notes: Vec<String>,
}

/// Why a workload cannot be read: what, where and the way out.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{file}:{line}: {reason}")]
pub struct SimaiError {
    /// The file.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// What is wrong, and the way out.
    pub reason: String,
}

//! Why a step has no time.

use collcast_sim::compute::Unsupported;
use collcast_sim::predict::PredictError;
use collcast_sim::transfer::TransferError;

use crate::parallel::Refused;

/// Most passes of micro-batches through chunks of stages, forward and backward: they take under a second and 100 MB.
pub const MOST_PASSES: u64 = 2_000_000;

/// Why there is no time.
#[derive(Debug, thiserror::Error)]
pub enum TrainingError {
    /// A layout that breaks a rule.
    #[error(transparent)]
    Layout(#[from] Refused),
    /// A precision that the GPU has not.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// A call that the machine cannot do.
    #[error(transparent)]
    Predict(#[from] PredictError),
    /// A copy that the machine cannot do.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// An order of passes, or copies, that a scenario's programs cannot say.
    #[error("a scenario cannot say {0}")]
    NotWritten(&'static str),
    /// More passes than are simulated.
    #[error("a step has {0} passes of micro-batches through stages; at most {MOST_PASSES} are simulated")]
    Passes(u64),
}

//! Why a step has no time.

use collcast_sim::compute::Unsupported;
use collcast_sim::predict::PredictError;

use crate::parallel::Refused;

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
    /// A schedule that is not simulated.
    #[error("the schedule {0} is not simulated")]
    Schedule(&'static str),
}

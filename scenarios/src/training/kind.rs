//! Whom a call of a step joins.

use crate::parallel::Axis;

/// What exposed time is counted by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Ranks that split products.
    Tensor,
    /// Ranks that split sequences.
    Context,
    /// Ranks that split experts.
    Expert,
    /// Replicas: gradients, and parameters that they share.
    Data,
    /// Messages between stages.
    Pipeline,
    /// Copies of kept tensors to host memory and back.
    Host,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Tensor, Self::Context, Self::Expert, Self::Data, Self::Pipeline, Self::Host];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tensor => "tensor",
            Self::Context => "context",
            Self::Expert => "expert",
            Self::Data => "data",
            Self::Pipeline => "pipeline",
            Self::Host => "host copies",
        }
    }

    pub(super) fn of(axis: Axis) -> Self {
        match axis {
            Axis::Tensor => Self::Tensor,
            Axis::Context => Self::Context,
            Axis::Expert | Axis::ExpertTensor => Self::Expert,
            Axis::Data | Axis::DataContext | Axis::ExpertData => Self::Data,
            Axis::Pipeline => Self::Pipeline,
        }
    }
}

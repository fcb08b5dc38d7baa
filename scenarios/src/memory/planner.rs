//! One stage of a layout, whose memory is counted.

use super::software::Software;
use crate::parallel::Parallel;
use crate::transformer::{LayerKind, Transformer};

/// One stage.
pub(super) struct Planner<'a> {
    pub(super) model: &'a Transformer,
    pub(super) parallel: &'a Parallel,
    pub(super) software: &'a Software,
    pub(super) stage: u64,
    /// Its layers. Chunks of an interleaved stage are taken as one piece, which only matters for dense first layers.
    pub(super) layers: std::ops::Range<u64>,
    /// Layers of each of its chunks.
    pub(super) chunks: Vec<u64>,
}

impl Planner<'_> {
    pub(super) fn last(&self) -> bool {
        self.stage + 1 == u64::from(self.parallel.pipeline)
    }

    /// Layers of each kind. Dense ones come first in a model.
    pub(super) fn kinds(&self) -> [(LayerKind, u64); 2] {
        let dense = self.model.dense_layers().clamp(self.layers.start, self.layers.end) - self.layers.start;
        [(LayerKind::Dense, dense), (LayerKind::Experts, self.layers.end - self.layers.start - dense)]
    }

    pub(super) fn residual(&self) -> f64 {
        if self.parallel.sequence_parallel { f64::from(self.parallel.tensor) } else { 1.0 }
    }

    pub(super) fn vocabulary(&self) -> f64 {
        if self.software.pads_vocabulary {
            self.model.padded_vocabulary(self.parallel.tensor.into()) as f64
        } else {
            self.model.vocabulary as f64
        }
    }
}

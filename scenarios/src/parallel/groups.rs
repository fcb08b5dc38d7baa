//! Which ranks form each group, in Megatron-LM's order `tp-cp-ep-dp-pp`.
//!
//! Source: Megatron-LM, `megatron/core/parallel_state.py`, `RankGenerator`: ranks of one tensor group are neighbours,
//! those of one pipeline are farthest apart. Expert groups divide the ranks of a stage anew.

use serde::Serialize;

use super::Parallel;

/// Kind of a group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Ranks that split each product.
    Tensor,
    /// Ranks that split a sequence.
    Context,
    /// Replicas.
    Data,
    /// Replicas and parts of sequences: ranks that reduce gradients of dense parameters.
    DataContext,
    /// Stages of one pipeline, in order.
    Pipeline,
    /// Ranks that split the experts.
    Expert,
    /// Ranks that split the products of an expert.
    ExpertTensor,
    /// Ranks with the same experts: those that reduce their gradients.
    ExpertData,
}

impl Axis {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Tensor,
        Self::Context,
        Self::Data,
        Self::DataContext,
        Self::Pipeline,
        Self::Expert,
        Self::ExpertTensor,
        Self::ExpertData,
    ];
}

impl Parallel {
    /// Ranks of a group, and how far apart they are. For layouts that are [checked](Parallel::check).
    pub fn spacing(&self, axis: Axis) -> (u64, u64) {
        let [t, c, d, p] = [self.tensor, self.context, self.data, self.pipeline].map(u64::from);
        let [e, etp] = [self.expert, self.expert_tensor].map(u64::from);
        let stage = t * c * d;
        match axis {
            Axis::Tensor => (t, 1),
            Axis::Context => (c, t),
            Axis::Data => (d, t * c),
            Axis::DataContext => (c * d, t),
            Axis::Pipeline => (p, stage),
            Axis::ExpertTensor => (etp, 1),
            Axis::Expert => (e, etp),
            Axis::ExpertData => ((stage / (e * etp).max(1)).max(1), e * etp),
        }
    }

    /// Ranks of a group. For layouts that are [checked](Parallel::check).
    pub fn group_size(&self, axis: Axis) -> u64 {
        self.spacing(axis).0
    }

    /// The group of a rank, in order. For layouts that are [checked](Parallel::check).
    pub fn group(&self, axis: Axis, rank: u64) -> Vec<u64> {
        let (size, stride) = self.spacing(axis);
        let block = size * stride;
        let first = rank / block * block + rank % stride;
        (0..size).map(|place| first + place * stride).collect()
    }

    /// All groups of a kind: each rank is in exactly one. For layouts that are [checked](Parallel::check).
    pub fn groups(&self, axis: Axis) -> impl Iterator<Item = Vec<u64>> + '_ {
        let (size, stride) = self.spacing(axis);
        let block = size * stride;
        (0..self.ranks() / block)
            .flat_map(move |outer| (0..stride).map(move |inner| outer * block + inner))
            .map(move |first| (0..size).map(|place| first + place * stride).collect())
    }

    /// Stage of a rank.
    pub fn stage(&self, rank: u64) -> u64 {
        rank / self.spacing(Axis::Pipeline).1
    }

    /// Ranks of the stages before and after a rank's, in its pipeline; none at its ends.
    pub fn neighbours(&self, rank: u64) -> (Option<u64>, Option<u64>) {
        let (_, stride) = self.spacing(Axis::Pipeline);
        let next = rank + stride;
        (rank.checked_sub(stride), (next < self.ranks()).then_some(next))
    }
}

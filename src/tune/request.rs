//! What is to be tuned.

use std::path::PathBuf;

use collcast_hwbackend::read::ReadOptions;
use collcast_sim::collective::{Collective, DataType, ReduceOp};
use collcast_sim::ids::Rank;

use super::communicator::Communicators;
use super::tuned::Tuned;
use crate::step::Collectives;
use crate::watch::Watch;

/// Sizes in bytes where none are named: powers of two from 8 B to 8 GiB.
pub(super) const ALL_SIZES: [u64; 31] = {
    let mut sizes = [8; 31];
    let mut at = 1;
    while at < 31 {
        sizes[at] = 2 * sizes[at - 1];
        at += 1;
    }
    sizes
};

/// What a measurement is worth: how the gains of several sizes count against each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Objective {
    /// Each size alike, by the part of its time that is saved: small ones count as much as large ones.
    #[default]
    Latency,
    /// By the time that is saved: large sizes count most.
    Bandwidth,
    /// By the time that is saved in a step, where each call is made as often as there.
    Step,
}

impl Objective {
    /// What a part of a call's time counts for.
    pub(super) fn weight(self, call: &Tuned) -> f64 {
        match self {
            Self::Latency => 1.0,
            Self::Bandwidth => call.default_candidate().belief.time_us,
            Self::Step => call.default_candidate().belief.time_us * call.in_step as f64,
        }
    }
}

/// What is to be tuned. By itself all-reduce of float32 over all ranks, from 8 B to 8 GiB.
#[derive(Clone, Debug)]
pub struct Request {
    /// Collectives that NCCL has a choice for.
    pub collectives: Vec<Collective>,
    /// Sizes in bytes, as nccl-tests counts them; those that were measured, or else all powers of two from 8 B to 8 GiB.
    pub sizes: Option<Vec<u64>>,
    /// Ranks, from the first GPU; all GPUs by default.
    pub ranks: Option<u32>,
    /// The communicators of a job, in place of one over all ranks.
    pub communicators: Option<Communicators>,
    /// The calls of a step, in place of collectives and sizes; the site is the step's.
    pub step: Option<Collectives>,
    /// How gains count against each other.
    pub objective: Objective,
    /// Element type.
    pub dtype: DataType,
    /// Reduction.
    pub op: ReduceOp,
    /// Root of broadcast and reduce.
    pub root: Rank,
    /// Input and output in one buffer.
    pub in_place: bool,
    /// Channels that each algorithm and protocol is tried with; none is NCCL's number.
    pub channels: Vec<Option<u32>>,
    /// Measured times of forced algorithms and protocols: files or folders.
    pub measurements: Vec<PathBuf>,
    /// How they are read.
    pub read: ReadOptions,
    /// The site's launch mode was asked for: where nothing was measured so, no other mode takes its place.
    pub this_launch: bool,
    /// Follows the forecasts.
    pub watch: Watch,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            collectives: vec![Collective::AllReduce],
            sizes: None,
            ranks: None,
            communicators: None,
            step: None,
            objective: Objective::default(),
            dtype: DataType::Float32,
            op: ReduceOp::Sum,
            root: Rank(0),
            in_place: false,
            channels: vec![None],
            measurements: Vec::new(),
            read: ReadOptions::default(),
            this_launch: false,
            watch: Watch::default(),
        }
    }
}

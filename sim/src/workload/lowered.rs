//! A graph of operations as the engine runs it.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::footprint::Footprint;
use crate::engine::Instance;
use crate::ids::{LinkId, Rank};

/// What a task is to its operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// The host launches it.
    Issue,
    /// It waits for its turn on the GPU.
    Start,
    /// It runs.
    Body,
}

/// An operation of a rank that is run.
#[derive(Clone, Debug)]
pub(super) struct OpRun {
    pub(super) lane: usize,
    pub(super) op: usize,
    /// First and last task on its stream, [`UNUSED`] until they are known.
    pub(super) first: u32,
    pub(super) last: u32,
    pub(super) footprint: Option<Arc<Footprint>>,
}

/// An instance with what its tasks stand for.
pub(super) struct Lowered<'a> {
    pub(super) instance: Instance<'a>,
    /// By task: operation, and what it is to it.
    pub(super) tasks: Vec<(usize, Part)>,
    pub(super) ops: Vec<OpRun>,
    /// Ranks that are run, each with the number it stands for.
    pub(super) lanes: Vec<(Rank, usize)>,
    /// By resource: the link that it is, the first of those that are used alike.
    pub(super) links: FxHashMap<u32, LinkId>,
    /// Of calls that run as their schedules, the kernels of all their ranks.
    pub(super) calls: Vec<Vec<u32>>,
    pub(super) slices: bool,
}

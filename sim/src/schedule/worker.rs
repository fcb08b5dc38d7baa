//! Workers, and what makes them.

use super::conn::Conn;
use super::program::Var;
use crate::ids::{ChannelId, Lane, Rank};

/// A worker's part: its program, parameters and connections.
#[derive(Clone, Debug)]
pub struct Worker {
    /// Index into [`Schedule::templates`](super::Schedule::templates).
    pub template: usize,
    /// Initial registers.
    pub parameters: Vec<(Var, i64)>,
    /// Connections behind the receive ports.
    pub recv: Vec<Conn>,
    /// Connections behind the send ports.
    pub send: Vec<Conn>,
    /// Lanes of the same rank that its instructions may wait for.
    pub tokens: Vec<(ChannelId, Lane)>,
    /// Threads of its block that move its data, or that of all lanes of its team.
    pub threads: u32,
    /// How many of those of a team belong to its other lanes: what they leave of the multiprocessor it may use, but it
    /// loads with its own threads alone.
    pub others: u32,
}

/// Makes the workers of a schedule on demand.
pub trait Generator: Send + Sync + std::fmt::Debug {
    /// The worker at a place, or `None` where nobody is needed. Costs no more than its ports.
    fn worker(&self, rank: Rank, channel: ChannelId, lane: Lane) -> Option<Worker>;

    /// The lane whose threads a lane uses: lanes with the same answer share them (and say the
    /// same number of threads), as when one group of warps serves several peers at once.
    fn team(&self, lane: Lane) -> Lane {
        lane
    }

    /// Messages between two ranks that go over the network as one.
    fn packed(&self, _src: Rank, _dst: Rank) -> u32 {
        1
    }

    /// Elements of scratch memory that a rank needs.
    fn scratch(&self, _rank: Rank) -> u64 {
        0
    }
}

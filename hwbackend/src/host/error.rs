//! Why the host executor stopped.

use collcast_sim::schedule::program::Buffer;
use collcast_sim::schedule::wiring::WiringError;
use thiserror::Error;

/// Most lanes, which are threads here.
pub const MAX_LANES: usize = 4096;

/// Why a run failed.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum HostError {
    /// A flaw of the schedule.
    #[error(transparent)]
    Wiring(#[from] WiringError),
    /// More lanes than threads are reasonable for.
    #[error("the schedule has {0} lanes; at most {MAX_LANES} run as threads")]
    TooManyLanes(usize),
    /// The inputs do not fit the call.
    #[error("rank {rank} has {given} input elements, the call needs {needed}")]
    WrongInput {
        /// The rank.
        rank: usize,
        /// Elements given.
        given: usize,
        /// Elements needed.
        needed: u64,
    },
    /// A wait that took too long.
    #[error("rank {rank}, channel {channel}, lane {lane} waited over {seconds} s for {what} rank {peer}")]
    Timeout {
        /// Who waited.
        rank: u32,
        /// On which channel.
        channel: u32,
        /// In which lane.
        lane: u32,
        /// For how long.
        seconds: u64,
        /// `data from`, `credit from` or `another lane of`.
        what: &'static str,
        /// Whom it waited for.
        peer: u32,
    },
    /// An instruction that reaches beyond a buffer: the schedule was not verified.
    #[error("rank {rank} reaches element {element} of its {buffer:?}, which is outside it")]
    OutOfBounds {
        /// The rank.
        rank: u32,
        /// The buffer.
        buffer: Buffer,
        /// The element.
        element: u64,
    },
    /// Another lane failed first.
    #[error("stopped because another lane failed")]
    Stopped,
}

//! Runs schedules over RDMA verbs, one process a rank: every connection of the schedule is one of reliable
//! queue pairs, its FIFO lies in registered host memory of the receiver.
//!
//! It knows records ([`crate::flat`]) and no algorithm. `lanes` pulls them, `wires` has slots and credits,
//! `device` is what is used of libibverbs, `numbers` knows elements, `probe` asks NICs what they do. All of it needs the feature `verbs`;
//! without it there is no way to open an executor but the error that says so.

#![allow(unsafe_code)] // Verbs are raw pointers.

#[cfg(not(feature = "verbs"))]
mod absent;
#[cfg(feature = "verbs")]
mod device;
#[cfg(feature = "verbs")]
mod lanes;
#[cfg(feature = "verbs")]
mod numbers;
#[cfg(feature = "verbs")]
mod probe;
#[cfg(feature = "verbs")]
mod run;
#[cfg(feature = "verbs")]
mod wires;

#[cfg(not(feature = "verbs"))]
pub use absent::Verbs;
#[cfg(feature = "verbs")]
pub use run::Verbs;

/// How to use NICs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Names of the NICs of this process, such as `mlx5_0`, which its queue pairs get in turn. Where none is
    /// named: one of those whose port is up, by the index of the process on its host.
    pub nics: Vec<String>,
    /// Queue pairs of a connection; its slices go over them in turn.
    pub qps: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { nics: Vec::new(), qps: 1 }
    }
}

/// What is measured of a NIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Half of a round trip of RDMA writes that the peer sees in its memory.
    LatencyWrite,
    /// The same of writes with immediate, which the peer sees by their completion.
    LatencyImmediate,
    /// The same of messages into posted receives.
    LatencySend,
    /// What a thread spends to post a write of 8 bytes.
    Post,
    /// What a thread spends to take a completion that is there.
    Completion,
    /// Time of one of many writes of 8 bytes.
    Rate,
    /// Time of one of many writes of a size.
    Bandwidth,
    /// The same while the peer does so too.
    BandwidthBoth,
}

impl Kind {
    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::LatencyWrite => "latency_write",
            Self::LatencyImmediate => "latency_write_imm",
            Self::LatencySend => "latency_send",
            Self::Post => "post",
            Self::Completion => "completion",
            Self::Rate => "message_rate",
            Self::Bandwidth => "bandwidth",
            Self::BandwidthBoth => "bandwidth_both",
        }
    }
}

/// What was measured between two ranks.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    /// What it is.
    pub kind: Kind,
    /// Who began.
    pub src: u32,
    /// With whom.
    pub dst: u32,
    /// The NIC of rank 0.
    pub nic: String,
    /// Queue pairs.
    pub qps: u32,
    /// Bytes of a message.
    pub bytes: u64,
    /// Time of one message of each batch, in microseconds.
    pub times_us: Vec<f64>,
}

//! What a probe finds out of NICs.

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
    /// As [`Self::Bandwidth`], where PCIe may reorder what is written (relaxed ordering).
    BandwidthRelaxed,
    /// As [`Self::LatencyWrite`], by a thread of another NUMA node than the NIC's.
    LatencyFar,
    /// Time of a thread to check so many bytes of LL's lines in host memory, which another thread has just written.
    Lines,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::LatencyWrite,
        Self::LatencyImmediate,
        Self::LatencySend,
        Self::Post,
        Self::Completion,
        Self::Rate,
        Self::Bandwidth,
        Self::BandwidthBoth,
        Self::BandwidthRelaxed,
        Self::LatencyFar,
        Self::Lines,
    ];

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
            Self::BandwidthRelaxed => "bandwidth_relaxed",
            Self::LatencyFar => "latency_write_far",
            Self::Lines => "lines",
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
    /// The NIC of rank 0; several that were used at once are joined by `+`.
    pub nic: String,
    /// Queue pairs.
    pub qps: u32,
    /// Bytes of a message.
    pub bytes: u64,
    /// Time of one message of each batch, in microseconds.
    pub times_us: Vec<f64>,
}

//! What every rank does: streams, operations in launch order, groups; and what a step cannot be.

use std::sync::Arc;

use thiserror::Error;

use crate::collective::{Algorithm, Collective, DataType, Protocol};
use crate::engine::{EngineError, mix};
use crate::ids::Rank;
use crate::predict::{Choice, PredictError};
use crate::units::{Bandwidth, Bytes, SimDuration};

/// Pieces of one computation at most.
pub(super) const MAX_PIECES: u32 = 512;

/// What a stream carries: how its operations count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum StreamKind {
    /// Kernels of the model.
    Compute,
    /// Communication kernels.
    Communication,
    /// A copy engine.
    Copy,
    /// The thread that launches everything.
    Host,
}

/// A stream of a rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stream {
    /// Its name in tables and timelines.
    pub name: Arc<str>,
    /// What it carries.
    pub kind: StreamKind,
    /// Its kernels go before those of others: between two waves of a running kernel.
    pub high_priority: bool,
}

/// A computation: kernels one after another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compute {
    /// What it takes alone.
    pub time: SimDuration,
    /// Kernels of equal length that it is made of; others may start in between.
    pub kernels: u32,
    /// Waves after each of which others may start; 1 for a kernel whose blocks stay (persistent).
    pub waves: u32,
    /// Tiles of its kernels in turn, each of which keeps an SM as long as the others: a product takes
    /// as many rounds as tiles need on the SMs that are free. 0 for kernels that spread evenly.
    pub tiles: [u32; 2],
    /// Part of the memory's rate that it needs to run at full speed, in millionths.
    pub memory_ppm: u32,
}

/// A collective over a group.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Communicate {
    /// Which of the rank's groups.
    pub group: usize,
    /// What.
    pub collective: Collective,
    /// nccl-tests' size.
    pub bytes: Bytes,
    /// Element type.
    pub dtype: DataType,
    /// Whether input and output share memory.
    pub in_place: bool,
    /// Which algorithm; `auto` is NCCL's choice.
    pub algorithm: Choice<Algorithm>,
    /// Which protocol.
    pub protocol: Choice<Protocol>,
    /// Channels; NCCL's number by default.
    pub channels: Option<u32>,
}

/// How a point-to-point message is moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub enum Mover {
    /// Blocks of a communication kernel.
    #[default]
    Blocks,
    /// Copy engines: no SM.
    CopyEngine,
}

/// What an operation does.
#[derive(Clone, PartialEq, Debug)]
pub enum What {
    /// Kernels.
    Compute(Compute),
    /// A collective: the n-th of a group is the n-th of all its ranks.
    Collective(Communicate),
    /// A message to the other rank of a group of two; it meets the n-th receive there.
    Send {
        /// Which of the rank's groups.
        group: usize,
        /// Size.
        bytes: Bytes,
        /// How.
        mover: Mover,
    },
    /// The other end of a send.
    Recv {
        /// Which of the rank's groups.
        group: usize,
        /// Size.
        bytes: Bytes,
        /// How.
        mover: Mover,
    },
    /// A copy inside the GPU's memory, by a copy engine.
    Copy {
        /// What it takes alone.
        time: SimDuration,
        /// Part of the memory's rate that it needs, in millionths.
        memory_ppm: u32,
    },
    /// The launching thread itself is busy, or waits for what it comes `after`.
    Host(SimDuration),
}

impl What {
    /// Whether two ranks mean the same call.
    pub(super) fn is_same_call(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Collective(a), Self::Collective(b)) => {
                (a.collective, a.bytes, a.dtype, a.in_place, a.algorithm, a.protocol, a.channels)
                    == (b.collective, b.bytes, b.dtype, b.in_place, b.algorithm, b.protocol, b.channels)
            }
            (
                Self::Send { bytes: a, mover: m, .. } | Self::Recv { bytes: a, mover: m, .. },
                Self::Send { bytes: b, mover: n, .. } | Self::Recv { bytes: b, mover: n, .. },
            ) => a == b && m == n,
            _ => false,
        }
    }

    /// The call in words.
    pub(super) fn call(&self) -> String {
        match self {
            Self::Collective(c) => format!("{} of {}", c.collective, c.bytes),
            Self::Send { bytes, .. } | Self::Recv { bytes, .. } => format!("a message of {bytes}"),
            _ => "no communication".to_owned(),
        }
    }
}

/// An operation on a stream.
#[derive(Clone, PartialEq, Debug)]
pub struct Op {
    /// Its name in timelines.
    pub label: Arc<str>,
    /// What it counts as in tables: `all_reduce of gradients`, `forward`.
    pub kind: Arc<str>,
    /// Which of the program's streams.
    pub stream: usize,
    /// What it does.
    pub what: What,
    /// Operations of the same program that it waits for, beside those before it on its stream.
    pub after: Vec<usize>,
    /// Time of the host thread to launch it.
    pub issue: SimDuration,
    /// Whether a framework adds it (copies into buckets, for example): no part of the model itself.
    pub framework: bool,
}

/// What the ranks of one role do, in the order in which the host launches it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Program {
    /// Streams.
    pub streams: Vec<Stream>,
    /// Operations; each waits for earlier ones only.
    pub ops: Vec<Op>,
}

impl Program {
    /// Adds a stream and gives its index.
    pub fn stream(&mut self, name: &str, kind: StreamKind, high_priority: bool) -> usize {
        self.streams.push(Stream { name: name.into(), kind, high_priority });
        self.streams.len() - 1
    }

    /// Adds an operation and gives its index.
    pub fn push(&mut self, op: Op) -> usize {
        self.ops.push(op);
        self.ops.len() - 1
    }
}

/// One rank of a step.
#[derive(Clone, PartialEq, Debug)]
pub struct RankSpec {
    /// Which program it runs.
    pub program: usize,
    /// Its groups, by the number that its program gives them.
    pub groups: Vec<usize>,
    /// How long its computations take, in millionths of what the program says.
    pub pace_ppm: u64,
    /// How late its host starts.
    pub late: SimDuration,
}

/// Random differences between operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Jitter {
    /// Standard deviation of a computation's time, in millionths of it.
    pub ppm: u32,
    /// Of the generator.
    pub seed: u64,
}

impl Jitter {
    /// By how much an operation of a rank takes longer.
    pub(super) fn factor(&self, rank: Rank, op: usize) -> f64 {
        let factor = 1.0 + f64::from(self.ppm) / 1e6 * self.normal(rank.0, op as u64);
        // The far tail of a normal distribution is no computation in no time.
        factor.max(0.1)
    }

    /// A draw from the standard normal distribution (Box and Muller, 1958).
    fn normal(&self, rank: u32, op: u64) -> f64 {
        let unit = |salt: u64| {
            let bits = mix(mix(mix(self.seed, u64::from(rank)), op), salt) >> 11;
            (bits as f64 + 0.5) / (1_u64 << 53) as f64
        };
        (-2.0 * unit(1).ln()).sqrt() * (std::f64::consts::TAU * unit(2)).cos()
    }
}

/// A step: what all ranks do.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct OpGraph {
    /// One for each role.
    pub programs: Vec<Program>,
    /// Ranks, in rank order.
    pub ranks: Vec<RankSpec>,
    /// Process groups.
    pub groups: Vec<Vec<Rank>>,
    /// Random differences, if any: every rank is then simulated by itself.
    pub jitter: Option<Jitter>,
}

/// What a GPU has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Device {
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Nominal rate of its memory.
    pub memory: Bandwidth,
    /// Blocks of NCCL's kernels that start together, in one of the GPU's clusters of SMs.
    pub cluster: u32,
}

impl Device {
    /// Groups of SMs that a cluster of blocks has to fit in: GPCs, 8 in Hopper (NVIDIA H100 white paper, 2022) and
    /// taken as many in others.
    const GPCS: u32 = 8;

    /// Blocks of a communication kernel that find a place on SMs that a product leaves idle, which are spread over
    /// all GPCs.
    pub fn room(&self, idle: u32) -> u32 {
        if self.cluster <= 1 { idle } else { idle / Self::GPCS / self.cluster * self.cluster * Self::GPCS }
    }
}

/// Which mechanisms of interference and cost are on; all, but for those who ask what one costs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Mechanisms {
    /// Computation and communication on one GPU slow and delay each other.
    pub interference: bool,
    /// The host needs time to launch, and streams to wait for each other.
    pub launch: bool,
    /// Operations that a framework adds.
    pub framework: bool,
    /// Communication at all.
    pub communication: bool,
}

impl Default for Mechanisms {
    fn default() -> Self {
        Self { interference: true, launch: true, framework: true, communication: true }
    }
}

/// At which level communication is simulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Level {
    /// Slices where that is little work, else flows.
    #[default]
    Auto,
    /// One flow a call.
    Flows,
    /// Every slice.
    Slices,
}

/// Why a step cannot be simulated.
#[derive(Debug, Error)]
pub enum WorkloadError {
    /// A call that cannot be predicted.
    #[error(transparent)]
    Predict(#[from] PredictError),
    /// A graph that contradicts itself.
    #[error("rank {rank}, operation {op} (`{label}`): {reason}")]
    Graph {
        /// The rank.
        rank: u32,
        /// Index of the operation.
        op: usize,
        /// Its name.
        label: String,
        /// What is wrong.
        reason: String,
    },
    /// Ranks of a group that do not do the same.
    #[error("group {group} ({ranks} ranks): {reason}")]
    Group {
        /// The group.
        group: usize,
        /// Its size.
        ranks: usize,
        /// What is wrong.
        reason: String,
    },
    /// Ranks that wait for each other: who waits in which call for whom.
    #[error("the step never ends, as ranks wait for each other: {0}")]
    Stuck(String),
    /// Times that sums of them cannot hold.
    #[error(
        "{0} over 5 hours (18,446 s), which no step does: look at the units of its times, and whether calls that wait hold \
         all SMs of a GPU that computes"
    )]
    TooLong(String),
    /// A run that asks for too much.
    #[error("the step cannot be simulated: {0}")]
    Engine(EngineError),
    /// More than is simulated.
    #[error("{what}: at most {limit} are simulated")]
    TooLarge {
        /// What there is.
        what: String,
        /// The limit.
        limit: u64,
    },
}

impl WorkloadError {
    /// Why the engine did not come to an end.
    pub(super) fn run(error: EngineError) -> Self {
        match error {
            EngineError::TooSlow => Self::TooLong("the step takes".to_owned()),
            EngineError::Stuck { .. } => Self::Stuck(error.to_string()),
            error => Self::Engine(error),
        }
    }
}

/// Tasks of an operation at most: its launch, and the pieces of its kernels or the start and body of a call.
pub(super) fn tasks_of(op: &Op) -> u64 {
    let What::Compute(compute) = op.what else { return 3 };
    let kernels = compute.kernels.clamp(1, MAX_PIECES);
    1 + u64::from(kernels * compute.waves.clamp(1, (MAX_PIECES / kernels).max(1)).max(2))
}

pub(super) fn is_communication(op: &Op) -> bool {
    matches!(op.what, What::Collective(_) | What::Send { .. } | What::Recv { .. })
}

//! The cut of one call, as NCCL's kernels are told it: who has which elements, in which chunks.

use serde::{Deserialize, Serialize};

use crate::call::Call;
use crate::collective::{Algorithm, Collective, Protocol};
use crate::units::Bytes;

/// Places in a FIFO, in steps: `NCCL_STEPS`.
pub const STEPS: u32 = 8;
/// Peers that a block of send and receive serves at a time (`NCCL_MAX_DEV_WORK_P2P_PER_BATCH`).
pub const PEER_BATCH: u32 = 8;

/// Batches of peers that channels of send and receive are dealt.
pub(crate) fn peer_batches(hosts: u32, ranks_per_host: u32) -> u32 {
    if hosts > 1 { hosts * ranks_per_host.div_ceil(PEER_BATCH) } else { ranks_per_host }
}

/// The batch of a round, in which each rank has one peer; rounds go host by host. Inside a host each is a batch by itself
/// (`ncclP2pChannelBaseForRound`).
pub(crate) fn peer_batch(round: u32, hosts: u32, ranks_per_host: u32) -> u32 {
    let (host, local) = (round / ranks_per_host, round % ranks_per_host);
    if hosts > 1 { host * ranks_per_host.div_ceil(PEER_BATCH) + local / PEER_BATCH } else { round }
}
/// A chunk of send and receive among GPUs that NVLink joins (`NCCL_P2P_NVL_CHUNKSIZE`).
pub const P2P_CHUNK_NVLINK: Bytes = Bytes(512 << 10);
/// Over PCIe or a network (`NCCL_P2P_PCI_CHUNKSIZE`, `NCCL_P2P_NET_CHUNKSIZE`).
pub const P2P_CHUNK: Bytes = Bytes(128 << 10);
/// Threads of a block that sends and receives (`NCCL_MAX_NTHREADS`).
pub const P2P_THREADS: u32 = 640;
/// Most heads of a host: `NCCL_MAX_NVLS_ARITY`.
pub const MAX_NVLS_HEADS: usize = 32;

/// Largest number of channels: NCCL's `MAXCHANNELS` since 2.26.
pub const MAX_CHANNELS: u32 = 64;

/// The part of the channels that a call has, alone or in a group, and how its elements are dealt to them: the last has
/// what is left.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Dealt {
    /// First channel: `channelLo` of a kernel's work.
    pub first: u32,
    /// Last channel: `channelHi`.
    pub last: u32,
    /// Elements of the first channel: `countLo`.
    pub low: u64,
    /// Elements of each between the first and the last: `countMid`.
    pub middle: u64,
}

impl Dealt {
    /// The most that a channel has of a call.
    pub fn most(&self, call: &Call) -> u64 {
        (self.first..=self.last)
            .map(|channel| self.range(channel, call.count))
            .map(|(from, to)| to - from)
            .max()
            .unwrap_or(0)
    }

    /// The elements `from..to` of a channel's part of `count` elements; empty ones before the first and after the last.
    pub fn range(&self, channel: u32, count: u64) -> (u64, u64) {
        let start = |channel: u32| match channel.checked_sub(self.first + 1) {
            None => 0,
            Some(before) => (self.low + u64::from(before) * self.middle).min(count),
        };
        match channel {
            c if c < self.first => (0, 0),
            c if c > self.last => (count, count),
            c if c == self.last => (start(c), count),
            c => (start(c), start(c + 1)),
        }
    }
}

/// How the elements of a call are dealt to its channels, by the version of NCCL.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Dealing {
    /// In equal parts of [`Plan::per_channel`], the last channel having what is left.
    Evenly,
    /// From 2.22 on, alone or in a group: by what each sends.
    ByTraffic(Dealt),
    /// Before 2.20: in loops over all channels.
    ByLoops {
        /// Elements that each channel has; the first have up to [`Plan::per_channel`], until all are dealt.
        each: u64,
    },
}

/// What kernels of old versions do otherwise; nothing from 2.22 on.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Old {
    /// Blocks fetch what they are to do from host memory, all but the first of a kernel: `load_coll` of 2.8. Later
    /// versions pass it with the launch.
    pub fetches_work: bool,
    /// Blocks of a tree reduce all their chunks before they broadcast the first: 2.8 and 2.9.
    pub in_turn: bool,
    /// Elements that chunks in the last loop of ring all-reduce are a multiple of; 0: as all others ([`Plan::grain`]).
    pub last_grain: u64,
}

/// The cut of one call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Algorithm.
    pub algorithm: Algorithm,
    /// Protocol.
    pub protocol: Protocol,
    /// Channels used: blocks of the kernel on each rank.
    pub channels: u32,
    /// Threads of a block that move data.
    pub threads: u32,
    /// Elements of one chunk (`chunkCount`).
    pub chunk: u64,
    /// Elements that chunks are aligned to: 16 bytes.
    pub grain: u64,
    /// Slices that a chunk is handed over in (`SlicePerChunk`).
    pub slices: u32,
    /// Slices that fit into a FIFO: `NCCL_STEPS` over the steps of a slice.
    pub fifo_slices: u32,
    /// Smallest slice of a chunk that has several, in elements.
    pub min_slice: u64,
    /// Elements of the largest part of a channel.
    pub per_channel: u64,
    /// How the elements are dealt to channels.
    pub dealing: Dealing,
    /// Senders store where the data is to stay, where peers can reach it. Otherwise they stage in the FIFO, and
    /// receivers copy.
    pub direct: bool,
    /// Channels that carry the message of one pair together, of send and receive: `p2pnChannelsPerPeer` at most; 1 of
    /// the others.
    pub channels_per_peer: u32,
    /// Peers that a block serves at a time, of send and receive; 1 of the others.
    pub peers_at_once: u32,
    /// Chunks that PAT packs into one step of a FIFO (`aggFactor`); 1 of the others.
    pub aggregate: u32,
    /// What an old version does otherwise.
    pub old: Old,
}

/// What `part` of `whole` equal parts of a count have, rounded up.
fn part_of(count: u64, part: u64, whole: u64) -> u64 {
    let of = (u128::from(count) * u128::from(part)).div_ceil(u128::from(whole.max(1)));
    u64::try_from(of).unwrap_or(u64::MAX)
}

impl Plan {
    /// The elements `from..to` of a channel's part of `count` elements.
    pub fn range(&self, channel: u32, count: u64) -> (u64, u64) {
        let each = match self.dealing {
            Dealing::ByTraffic(dealt) => return dealt.range(channel, count),
            Dealing::ByLoops { each } => each,
            Dealing::Evenly => 0,
        };
        let rest = count.saturating_sub(each * u64::from(self.channels));
        let start = |channel: u64| (each * channel + rest.min((self.per_channel - each) * channel)).min(count);
        let to = if channel + 1 == self.channels { count } else { start(u64::from(channel) + 1) };
        (start(u64::from(channel)), to)
    }

    /// The call and the cut by which so many ranks of it do what they do in all of it: each has as much of a ring's steps.
    pub(crate) fn of_ranks(&self, call: &Call, ranks: u32) -> (Call, Self) {
        let (part, all) = (u64::from(ranks), u64::from(call.ranks));
        let call = Call { ranks, ..call.clone() };
        if self.algorithm == Algorithm::Ring && call.collective == Collective::AllReduce && part < all {
            return (Call { count: part_of(call.count, part, all), ..call }, self.of_part(part, all));
        }
        (call, *self)
    }

    /// The same cut of `part` of `whole` equal parts of the elements; parts of channels are rounded up.
    #[must_use]
    fn of_part(&self, part: u64, whole: u64) -> Self {
        let scaled = |count| part_of(count, part, whole);
        let dealing = match self.dealing {
            Dealing::Evenly => Dealing::Evenly,
            Dealing::ByTraffic(dealt) => {
                Dealing::ByTraffic(Dealt { low: scaled(dealt.low), middle: scaled(dealt.middle), ..dealt })
            }
            Dealing::ByLoops { each } => Dealing::ByLoops { each: scaled(each) },
        };
        Self { per_channel: scaled(self.per_channel), dealing, ..*self }
    }

    /// Channels `from..to` that have a part.
    pub fn used(&self) -> (u32, u32) {
        match self.dealing {
            Dealing::ByTraffic(dealt) => (dealt.first, dealt.last + 1),
            _ => (0, self.channels),
        }
    }

    /// Blocks of its kernel.
    pub fn blocks(&self) -> u32 {
        self.used().1 - self.used().0
    }

    /// Elements that chunks in the last loop of ring all-reduce are a multiple of.
    pub fn last_grain(&self) -> u64 {
        self.old.last_grain.max(self.grain)
    }

    /// The same with chunks as short as one of all its slices is, for a proof.
    pub(crate) fn of_short_chunks(self) -> Self {
        Self { chunk: self.grain * 4 * u64::from(self.slices), min_slice: self.grain, ..self }
    }

    /// Elements of the slice `index` of a chunk of `span` elements.
    ///
    /// NCCL: slices are `ceil(span / (16 * slices)) * 16` elements, but not below the 32nd part
    /// of the largest; what is left goes to the later ones, which may be empty but are still
    /// handed over.
    pub fn slice_of(&self, span: u64, index: u32) -> (u64, u64) {
        if self.slices == 1 {
            return (0, span);
        }
        let size = (span.div_ceil(16 * u64::from(self.slices)) * 16).max(self.min_slice);
        let from = (size * u64::from(index)).min(span);
        (from, (from + size).min(span))
    }
}

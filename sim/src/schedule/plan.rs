//! How NCCL cuts one call: channels, threads, chunks, slices and FIFOs.
//!
//! Facts: NCCL 2.30 `src/enqueue.cc`, `src/include/collectives.h`, `src/include/device.h`,
//! restated; the number of cells was checked against the choices that NCCL 2.28.9 logged on
//! 2 and 4 H200 (see the tests).

use crate::collective::{Algorithm, Buffers, Collective, Protocol};
use crate::model::nccl::Version;
use crate::schedule::{Call, MAX_NVLS_HEADS};
use crate::units::Bytes;

/// Places in a FIFO, in steps: `NCCL_STEPS`.
pub const STEPS: u32 = 8;
/// Traffic below which a channel is not worth its while, in bytes.
const MIN_TRAFFIC_PER_CHANNEL: u64 = 16 << 10;
/// Threads of a block that sends and receives (`NCCL_MAX_NTHREADS`).
pub const P2P_THREADS: u32 = 640;

/// What a call may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Channels of the communicator. Ring, tree and CollNet chain use fewer for small calls; those of
    /// the others are what NCCL's model gives the call ([`crate::model::nccl::Model::call_channels`]).
    pub channels: u32,
    /// Threads of a block that move data, at most; `None` for NCCL's default of the protocol.
    pub threads: Option<u32>,
    /// Bytes that a thread must have to be worth its while; `None` for NCCL's default.
    pub threshold: Option<u64>,
    /// FIFOs.
    pub buffers: Buffers<Bytes>,
    /// Channels for send and receive in the communicator, and those to one peer at most.
    pub p2p_channels: (u32, u32),
    /// Whether some pairs talk over the network.
    pub network: bool,
    /// The number of channels is an order, not a maximum.
    pub exact_channels: bool,
    /// NCCL has registered the buffers with the peers.
    pub registered: bool,
    /// Hosts, or NVLink domains.
    pub hosts: u32,
    /// Ranks of a host, of the host with the fewest.
    pub ranks_per_host: u32,
    /// Version of NCCL whose rules cut.
    pub version: Version,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            channels: 24,
            threads: None,
            threshold: None,
            buffers: Buffers::NCCL,
            p2p_channels: (32, 32),
            network: false,
            exact_channels: false,
            registered: false,
            hosts: 1,
            ranks_per_host: 8,
            version: Version::NEWEST,
        }
    }
}

/// The cut of one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Algorithm.
    pub algorithm: Algorithm,
    /// Protocol.
    pub protocol: Protocol,
    /// Channels used.
    pub channels: u32,
    /// Threads of a block that move data.
    pub threads: u32,
    /// Elements of one chunk.
    pub chunk: u64,
    /// Elements that chunks are aligned to.
    pub grain: u64,
    /// Grains that the chunks of one loop of ring all-reduce are rounded up to.
    pub grid: u64,
    /// Slices that a chunk is handed over in.
    pub slices: u32,
    /// Slices that fit into a FIFO.
    pub fifo_slices: u32,
    /// Smallest slice of a chunk that has several, in elements.
    pub min_slice: u64,
    /// Elements of the part of each channel but the last ones.
    pub per_channel: u64,
    /// Elements of it that the last channels have as well, where only the last loop is dealt unevenly.
    pub even: u64,
    /// The channels that it has among other calls of a group, in place of all.
    pub dealt: Option<Dealt>,
    /// Senders store where the data is to stay, where peers can reach it. Otherwise they stage in the FIFO, and
    /// receivers copy.
    pub direct: bool,
    /// Channels that share the message of one pair (send/receive); 1 for the others.
    pub parts: u32,
    /// Chunks that fit one step of a FIFO together (PAT packs small ones); 1 for the others.
    pub aggregate: u32,
    /// Blocks fetch what they are to do from host memory: NCCL 2.8.4, all but the first of a kernel (`load_coll` in
    /// `src/collectives/device/common.h`). Later versions pass it with the launch.
    pub fetches: bool,
    /// Blocks of a tree reduce all their chunks before they broadcast the first.
    pub in_turn: bool,
}

impl Plan {
    /// Cuts a call the way NCCL does.
    pub fn new(call: &Call, algorithm: Algorithm, protocol: Protocol, limits: &Limits) -> Self {
        if algorithm == Algorithm::Direct {
            return Self::point_to_point(call, protocol, limits);
        }
        let element = call.dtype.size();
        let bytes = match call.collective {
            Collective::AllGather | Collective::ReduceScatter => call.count * element * u64::from(call.ranks),
            _ => call.count * element,
        };
        // NCCL 2.8 `src/collectives/device/all_reduce.h` splits the threads of LL128 alone; its `src/enqueue.cc` gives
        // trees the threads of rings, fewer where a call is small.
        let in_turn = algorithm == Algorithm::Tree && !limits.version.since(10);
        let default = default_threads(if in_turn { Algorithm::Ring } else { algorithm }, protocol);
        let full_threads = limits.threads.unwrap_or(default).clamp(32, 1024);
        // One rank copies, in one go.
        let most = if call.ranks == 1 { 1 } else { limits.channels.max(1) };
        let (mut channels, mut threads) = (u64::from(most), u64::from(full_threads));
        let in_network = limits.hosts > 1 && algorithm == Algorithm::Nvls
            || matches!(algorithm, Algorithm::CollnetDirect | Algorithm::CollnetChain);
        let nvls = matches!(algorithm, Algorithm::Nvls | Algorithm::NvlsTree);
        let threshold = limits.threshold.unwrap_or(match (algorithm, protocol) {
            (Algorithm::Ring, Protocol::Ll) => 8 * u64::from(call.ranks),
            (_, Protocol::Ll | Protocol::Ll128) => 8,
            (Algorithm::CollnetDirect | Algorithm::CollnetChain, _) => 512,
            (_, Protocol::Simple) => 64,
        });
        let fixed = limits.exact_channels || nvls || matches!(algorithm, Algorithm::CollnetDirect | Algorithm::Pat);
        if !fixed {
            channels = worthwhile(channels, bytes, threads * threshold);
        }
        // NCCL 2.28 `src/register/coll_reg.cc`; reduce and reduce-scatter have no result on the way, and in place the
        // result would be written over what is still to be read.
        let forwards = match call.collective {
            Collective::AllReduce => !call.in_place,
            Collective::AllGather | Collective::Broadcast => true,
            _ => false,
        };
        let ringed = matches!(algorithm, Algorithm::Ring | Algorithm::Tree) && protocol == Protocol::Simple;
        let direct = limits.registered && limits.hosts == 1 && ringed && forwards;
        if direct && (17..=24).contains(&channels) {
            channels = 16;
        }
        if in_turn || matches!(algorithm, Algorithm::Ring | Algorithm::CollnetChain | Algorithm::CollTree) {
            while bytes < channels * threads * threshold && threads % 128 == 0 {
                threads /= 2;
            }
        }
        let old = !limits.version.since(9);
        if !old {
            threads = threads.max(96.min(u64::from(full_threads)));
        }

        // The part of a rank is cut into cells of equal traffic, and channels get whole cells.
        let cell = cell_bytes(traffic_per_byte(call.collective, call.ranks, protocol)) / element.min(16);
        let cells = call.count.div_ceil(cell).max(1);
        let per_channel_cells = cells.div_ceil(channels);
        // What goes through the network's switches uses all its channels.
        let by_grid = !limits.version.since(20) && matches!(algorithm, Algorithm::Ring | Algorithm::Tree);
        let all = limits.exact_channels || in_network || by_grid;
        let channels = if all { channels } else { cells.div_ceil(per_channel_cells) };

        let (step_bytes, grain_bytes) = step(protocol, limits.buffers);
        let (chunk_steps, slice_steps) = match (algorithm, call.collective, protocol) {
            (
                Algorithm::Ring,
                Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter,
                Protocol::Simple,
            ) => (4, 2),
            _ => (1, 1),
        };
        let mut chunk_bytes = step_bytes * chunk_steps;
        if nvls || matches!(algorithm, Algorithm::CollnetDirect | Algorithm::CollnetChain) {
            chunk_bytes = in_switch_chunk(algorithm, bytes, channels, limits).min(chunk_bytes);
        }
        if algorithm == Algorithm::Tree && protocol == Protocol::Ll128 {
            let hosts = limits.hosts.max(1);
            let each = f64::from(call.ranks) / f64::from(hosts);
            let steps = f64::from(1 + hosts.ilog2()) + 0.1 * each;
            let per = |chunk: u64| bytes as f64 / (channels * chunk) as f64;
            for (loops, least) in [(64.0, 128 << 10), (16.0, 32 << 10)] {
                while per(chunk_bytes) < steps * loops / each && chunk_bytes > least {
                    chunk_bytes /= 2;
                }
            }
        }
        // As many chunks as fill the way through the tree; 2.21 has no such rule, 2.17 has.
        if algorithm == Algorithm::Tree && protocol == Protocol::Simple && !limits.version.since(18) {
            let depth =
                u64::from(call.ranks / limits.hosts.max(1)).saturating_sub(1) + u64::from(limits.hosts.max(1).ilog2());
            for (loops, least) in [(8, 128 << 10), (4, 64 << 10), (1, 32 << 10)] {
                while bytes / (channels * chunk_bytes) < depth * loops && chunk_bytes > least {
                    chunk_bytes /= 2;
                }
            }
        }
        match (algorithm, call.collective) {
            (Algorithm::Pat, collective) => {
                let loops = if collective == Collective::AllGather { 32 } else { 16 };
                while chunk_bytes * channels * loops > bytes && chunk_bytes > 64 << 10 {
                    chunk_bytes /= 2;
                }
            }
            // NCCL's rule for its own algorithm of two levels, CollNet direct.
            (Algorithm::CollTree, _) => {
                let hosts = u64::from(limits.hosts.max(1));
                let heads = u64::from(call.ranks).div_ceil(hosts);
                let depth = 1 + u64::from(hosts.ilog2());
                for (loops, least) in [(64, 128 << 10), (8, 64 << 10), (8, 32 << 10)] {
                    while bytes < depth * loops * channels * heads * chunk_bytes && chunk_bytes > least {
                        chunk_bytes /= 2;
                    }
                }
            }
            _ => {}
        }
        let grain = (grain_bytes / element).max(1);
        let chunk = (chunk_bytes / element / grain).max(1) * grain;
        let grain = (16 / element).max(1);
        let mut grid = 1;
        let (mut per_channel, mut even) = (per_channel_cells * cell, 0);
        if by_grid {
            let round = (grid_bytes(algorithm, protocol, call.collective, threads) / (grain * element)).max(1) * grain;
            let ring = algorithm == Algorithm::Ring;
            let chunks = if ring && call.collective == Collective::AllReduce { u64::from(call.ranks) } else { 1 };
            let (loops, rest) = (call.count / (channels * chunks * chunk), call.count % (channels * chunks * chunk));
            // Trees deal the last loop by whole chunks.
            let whole = !ring && loops > 0;
            let last = if whole { chunk } else { rest.div_ceil(channels * chunks).next_multiple_of(round).min(chunk) };
            // Simple gives a channel all its chunks of the last loop, the others one chunk to each channel in turn.
            let turn = if protocol == Protocol::Simple { chunks } else { 1 };
            let turns = rest.checked_div(channels * turn * last).unwrap_or(0);
            even = (loops * chunks * chunk) + turns * turn * last;
            per_channel = even + if call.count > channels * even { turn * last } else { 0 };
            grid = (last / grain).max(1);
        }
        let aggregate = if algorithm == Algorithm::Pat { aggregate(chunk, per_channel, call.ranks) } else { 1 };
        Self {
            algorithm,
            protocol,
            channels: u32::try_from(channels).unwrap_or(u32::MAX),
            threads: u32::try_from(threads).unwrap_or(u32::MAX),
            chunk,
            grain,
            grid,
            slices: u32::try_from(chunk_steps / slice_steps).unwrap_or(1),
            fifo_slices: STEPS / u32::try_from(slice_steps).unwrap_or(1) * aggregate,
            min_slice: (step_bytes * slice_steps / 32 / element).max(1),
            per_channel,
            even,
            dealt: None,
            direct,
            parts: 1,
            aggregate,
            fetches: old,
            in_turn: in_turn && protocol != Protocol::Ll128,
        }
    }

    /// Send and receive: NCCL's channels per peer (`src/enqueue.cc`, point-to-point part).
    fn point_to_point(call: &Call, protocol: Protocol, limits: &Limits) -> Self {
        let element = call.dtype.size();
        let largest = call.counts.as_ref().and_then(|c| c.iter().max().copied()).unwrap_or(call.count);
        let bytes = largest * element;
        let step_bytes = limits.buffers.simple.0 / u64::from(STEPS);
        let all = u64::from(limits.p2p_channels.0.max(1));
        let most = u64::from(limits.p2p_channels.1.max(1)).min(all);
        let mut channels = most;
        while channels * u64::from(call.ranks) > all && channels > 1 {
            channels /= 2;
        }
        let (min_part, max_part) = match protocol {
            // On 2 and 4 H200, LL of 128 KiB takes no longer than of 32 KiB: it has all channels.
            Protocol::Ll => (limits.buffers.ll.0 / u64::from(STEPS) / 8, step_bytes * 32),
            _ if limits.network => (step_bytes / 2, step_bytes),
            _ => (step_bytes / 8, step_bytes * 32),
        };
        channels = channels.min(bytes.div_ceil(min_part)).max(1);
        while bytes.div_ceil(channels) > max_part && channels <= most / 2 {
            channels *= 2;
        }
        // The FIFO's chunk: 512 KiB over NVLink, 128 KiB over the network (NCCL's P2P chunk).
        let chunk_bytes = match protocol {
            Protocol::Simple if limits.network => 128 << 10,
            Protocol::Simple => step_bytes,
            other => step(other, limits.buffers).0,
        };
        let full_threads = limits.threads.unwrap_or(default_threads(Algorithm::Direct, protocol)).clamp(32, 1024);
        let grain = (16 / element).max(1);
        // Peers are dealt to channels in rounds; a round takes `channels` of them.
        let rounds = if call.collective == Collective::SendRecv { 1 } else { u64::from(call.ranks) };
        let blocks = channels * rounds.min((all / channels).max(1));
        Self {
            algorithm: Algorithm::Direct,
            protocol,
            channels: u32::try_from(blocks).unwrap_or(u32::MAX),
            threads: full_threads,
            chunk: (chunk_bytes / element / grain).max(1) * grain,
            grain,
            grid: 1,
            slices: 1,
            fifo_slices: STEPS,
            min_slice: 1,
            per_channel: largest.div_ceil(channels).next_multiple_of(grain).max(grain),
            even: 0,
            dealt: None,
            direct: false,
            parts: u32::try_from(channels).unwrap_or(u32::MAX),
            aggregate: 1,
            fetches: false,
            in_turn: false,
        }
    }

    /// The plan of an imported schedule: a part of each chunk fills one step of a FIFO, in one slice.
    pub fn imported(call: &Call, protocol: Protocol, channels: u32, threads: Option<u32>, limits: &Limits) -> Self {
        let element = call.dtype.size();
        let (step_bytes, grain_bytes) = step(protocol, limits.buffers);
        let grain = (grain_bytes / element).max(1);
        Self {
            algorithm: Algorithm::Msccl,
            protocol,
            channels,
            threads: limits.threads.or(threads).unwrap_or(default_threads(Algorithm::Msccl, protocol)).clamp(32, 1024),
            chunk: (step_bytes / element / grain).max(1) * grain,
            grain: (16 / element).max(1),
            grid: 1,
            slices: 1,
            fifo_slices: STEPS,
            min_slice: 1,
            per_channel: call.count,
            even: 0,
            dealt: None,
            direct: false,
            parts: 1,
            aggregate: 1,
            fetches: false,
            in_turn: false,
        }
    }

    /// The protocol NCCL uses for a send of this size: LL up to 16 KiB for each channel that a pair
    /// may have (`NCCL_P2P_LL_THRESHOLD`).
    pub fn point_to_point_protocol(call: &Call, limits: &Limits) -> Protocol {
        let most = limits.p2p_channels.1.min(limits.p2p_channels.0).max(1);
        let largest = call.counts.as_ref().and_then(|c| c.iter().max().copied()).unwrap_or(call.count);
        if largest * call.dtype.size() <= u64::from(most) * (16 << 10) { Protocol::Ll } else { Protocol::Simple }
    }

    /// The elements `from..to` of a channel's part of `count` elements.
    pub fn range(&self, channel: u32, count: u64) -> (u64, u64) {
        if let Some(dealt) = self.dealt {
            return dealt.range(channel, count);
        }
        let rest = count.saturating_sub(self.even * u64::from(self.channels));
        let start =
            |channel: u64| (self.even * channel + rest.min((self.per_channel - self.even) * channel)).min(count);
        let to = if channel + 1 == self.channels { count } else { start(u64::from(channel) + 1) };
        (start(u64::from(channel)), to)
    }

    /// Channels `from..to` that have a part.
    pub fn used(&self) -> (u32, u32) {
        self.dealt.map_or((0, self.channels), |dealt| (dealt.first, dealt.last + 1))
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

/// The part of the channels that a call of a group has, and how its elements are dealt to them: the last has what is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dealt {
    /// First channel.
    pub first: u32,
    /// Last channel.
    pub last: u32,
    /// Elements of the first channel.
    pub low: u64,
    /// Elements of each between the first and the last.
    pub middle: u64,
}

impl Dealt {
    /// All the channels of a share, with equal parts.
    pub fn evenly(share: &Share) -> Self {
        let grain = (16 / share.element).max(1);
        let each = share.count.div_ceil(u64::from(share.most.max(1))).next_multiple_of(grain);
        Self { first: 0, last: share.most.max(1) - 1, low: each, middle: each }
    }

    /// The most that a channel has of a call.
    pub fn most(&self, call: &Call) -> u64 {
        (self.first..=self.last)
            .map(|channel| self.range(channel, call.count))
            .map(|(from, to)| to - from)
            .max()
            .unwrap_or(0)
    }

    fn range(&self, channel: u32, count: u64) -> (u64, u64) {
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

/// What one call of a group brings to the dealing of channels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Elements of a rank, and their size.
    pub count: u64,
    /// Bytes of one.
    pub element: u64,
    /// What NCCL counts per byte (see [`Share::new`]).
    traffic_per_byte: u64,
    /// Channels that its choice gives it.
    pub most: u32,
}

impl Share {
    /// The share of a call by its choice.
    pub fn new(call: &Call, protocol: Protocol, most: u32) -> Self {
        let traffic_per_byte = traffic_per_byte(call.collective, call.ranks, protocol);
        Self { count: call.count, element: call.dtype.size(), traffic_per_byte, most }
    }

    /// Bytes that it sends, by NCCL's count.
    pub fn traffic(&self) -> u64 {
        (self.count * self.element).saturating_mul(self.traffic_per_byte)
    }
}

/// Deals `channels` channels to the calls of a group, in this order: each has about the same traffic, and a channel has
/// the end of one call and the start of the next. Every call has elements. NCCL's `scheduleCollTasksToPlan` of about 2.24
/// to 2.28 (`src/enqueue.cc`), restated; 2.30 has 32 KiB as least traffic of a channel, here as in [`Plan::new`] 16 KiB.
pub fn deal(shares: &[Share], channels: u32) -> Vec<Dealt> {
    let all: u64 = shares.iter().map(|share| share.traffic().max(MIN_TRAFFIC_PER_CHANNEL)).sum();
    let wanted: u64 = shares.iter().map(|share| u64::from(share.most)).sum();
    let per_channel = (all / wanted.min(channels.into()).max(1)).max(MIN_TRAFFIC_PER_CHANNEL);
    let (mut channel, mut taken) = (0_u64, 0);
    let last_channel = u64::from(channels.max(1)) - 1;
    let mut out = Vec::new();
    for share in shares {
        let cell = cell_bytes(share.traffic_per_byte);
        let elements = (cell / share.element).max(1);
        let traffic = cell * share.traffic_per_byte;
        let cells = share.count.div_ceil(elements);
        let mut each = per_channel.div_ceil(traffic).min(cells).max(1);
        let vacant = if channel == last_channel { cells } else { per_channel.saturating_sub(taken).div_ceil(traffic) };
        let mut low = vacant.min(cells);
        let (mut middle, mut high) = ((cells - low) / each, (cells - low) % each);
        let used = u64::from(low > 0) + middle + u64::from(high > 0);
        if channel + used > last_channel + 1 {
            middle = (last_channel + 1).saturating_sub(channel + 2);
            each = (cells - low) / (middle + 1);
            high = each + (cells - low) % (middle + 1);
        }
        if high == 0 && middle > 0 {
            (high, middle) = (each, middle - 1);
        }
        if low == 0 {
            channel += 1;
            taken = 0;
            (low, middle, high) = if middle == 0 { (high, 0, 0) } else { (each, middle - 1, high) };
        }
        let last = channel + middle + u64::from(high > 0);
        let index = |channel: u64| u32::try_from(channel).unwrap_or(u32::MAX);
        out.push(Dealt { first: index(channel), last: index(last), low: low * elements, middle: each * elements });
        taken = match (high, middle) {
            (0, _) => taken + low * traffic,
            _ => high * traffic,
        };
        channel = last;
        if taken >= per_channel && channel < last_channel {
            (channel, taken) = (channel + 1, 0);
        }
    }
    out
}

/// What NCCL counts of a byte of a rank's part: how often it is sent, LL for four times.
fn traffic_per_byte(collective: Collective, ranks: u32, protocol: Protocol) -> u64 {
    let sent = match collective {
        Collective::AllReduce => 2,
        Collective::AllGather | Collective::ReduceScatter => u64::from(ranks),
        _ => 1,
    };
    sent * if protocol == Protocol::Ll { 4 } else { 1 }
}

/// Bytes of the cells that parts of channels are made of: a channel's least traffic.
fn cell_bytes(traffic_per_byte: u64) -> u64 {
    MIN_TRAFFIC_PER_CHANNEL.div_ceil(traffic_per_byte).next_multiple_of(16)
}

/// Channels of which each has enough to do: `per_channel` bytes.
pub(crate) fn worthwhile(most: u64, bytes: u64, per_channel: u64) -> u64 {
    most.min(bytes / per_channel.max(1)).max(1)
}

/// Bytes of a chunk of NVLS, NVLS tree and CollNet (`src/enqueue.cc`). NCCL also lowers that of
/// NVLS over several hosts where its own model says less than 150 GB/s, which is left out.
fn in_switch_chunk(algorithm: Algorithm, bytes: u64, channels: u64, limits: &Limits) -> u64 {
    let heads = u64::from(limits.ranks_per_host.max(1)).min(MAX_NVLS_HEADS as u64);
    // All channels times all heads, and the rule compares the whole message.
    let parts = channels * if algorithm == Algorithm::CollnetChain { 1 } else { heads };
    let below = |times: u64, chunk: u64| bytes < times * parts * chunk;
    const KIB: u64 = 1 << 10;
    let mut chunk = 128 * KIB;
    match algorithm {
        Algorithm::Nvls => {
            for (times, smaller) in [(64, 64 * KIB), (8, 32 * KIB), (2, 16 * KIB)] {
                if below(times, chunk) {
                    chunk = smaller;
                }
            }
        }
        Algorithm::NvlsTree => {
            if limits.hosts >= 4 {
                chunk = 64 * KIB;
            }
            for (times, smaller) in [(32, 256 * KIB), (16, 128 * KIB), (4, 64 * KIB), (1, 32 * KIB)] {
                if below(times, chunk) {
                    chunk = chunk.min(smaller);
                }
            }
        }
        _ => {
            let chain = algorithm == Algorithm::CollnetChain;
            let local = u64::from(limits.ranks_per_host);
            let depth = if chain { local } else { local.min(2) };
            chunk = if chain { 256 * KIB } else { 512 * KIB };
            for (times, least) in [(64, 128 * KIB), (8, 64 * KIB), (if chain { 1 } else { 8 }, 32 * KIB)] {
                while below(depth * times, chunk) && chunk > least {
                    chunk /= 2;
                }
            }
        }
    }
    chunk
}

/// Threads that move data when there is enough: NCCL 2.30 `src/graph/tuning.cc`. Tree and PAT
/// kernels always have 640, of which Simple keeps 128 for synchronisation and PAT for its plan;
/// NVLS and CollNet have 640. Of a block that both sends and receives 8 warps move what is sent
/// (`src/device/sendrecv.h`), half of what is said here.
fn default_threads(algorithm: Algorithm, protocol: Protocol) -> u32 {
    match (algorithm, protocol) {
        (_, Protocol::Ll128) | (Algorithm::Tree | Algorithm::CollTree, Protocol::Ll) => 640,
        (
            Algorithm::Ring
            | Algorithm::Tree
            | Algorithm::CollTree
            | Algorithm::Pat
            | Algorithm::Msccl
            | Algorithm::Direct,
            _,
        ) => 512,
        _ => 640,
    }
}

/// How many chunks PAT packs into one step of a FIFO: a power of two below half of the ranks,
/// as long as two of the whole channel's part would fit the chunk.
fn aggregate(chunk: u64, per_channel: u64, ranks: u32) -> u32 {
    let mut packed = 1;
    while chunk / (per_channel.max(1) * u64::from(packed)) >= 2 && packed < ranks / 2 {
        packed *= 2;
    }
    packed
}

/// Bytes that the chunks of a loop's last round are rounded up to where a loop goes over all channels: NCCL's
/// `src/collectives/device/all_reduce.h` at commit 033d799 (before 2.8), restated; 2.18.3 has the same factors, 2.20.3 has
/// parts of channels.
fn grid_bytes(algorithm: Algorithm, protocol: Protocol, collective: Collective, threads: u64) -> u64 {
    let one_way = matches!(collective, Collective::Broadcast | Collective::Reduce);
    match (protocol, algorithm) {
        (Protocol::Simple, Algorithm::Tree) => threads * 64,
        (Protocol::Ll | Protocol::Simple, _) => threads * 8,
        // A thread has 60 bytes of a wave of lines.
        (Protocol::Ll128, Algorithm::Tree) => threads * 60 / 8,
        (Protocol::Ll128, _) => threads * 60 / if one_way { 1 } else { 2 },
    }
}

/// Data bytes of one FIFO step and the grain of a chunk, in bytes.
fn step(protocol: Protocol, buffers: Buffers<Bytes>) -> (u64, u64) {
    let of = |buffer: Bytes| buffer.0 / u64::from(STEPS);
    let (data, grain) = match protocol {
        Protocol::Ll => (of(buffers.ll) / 2, 16),
        Protocol::Ll128 => (of(buffers.ll128) / 16 * 15, 1920),
        Protocol::Simple => (of(buffers.simple), 512),
    };
    (data.max(grain), grain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::DataType;
    use proptest::prelude::*;

    fn ll(ranks: u32, size: u64) -> u32 {
        let call = Call::of_size(Collective::AllReduce, ranks, Bytes(size), DataType::Float32);
        Plan::new(&call, Algorithm::Ring, Protocol::Ll, &Limits::default()).channels
    }

    /// Goal: the channel counts that NCCL 2.28.9 logged on 4 and on 2 H200 (NCCL_DEBUG_SUBSYS=TUNING,
    /// 2026-11-21), by value.
    #[test]
    fn channels_are_those_that_nccl_logged() {
        for (size, channels) in
            [(8, 1), (16_384, 1), (32_768, 2), (65_536, 4), (131_072, 8), (262_144, 16), (524_288, 24), (1 << 20, 24)]
        {
            assert_eq!(ll(4, size), channels, "4 ranks, {size} B");
        }
        for (size, channels) in [(8192, 1), (16_384, 2), (131_072, 16), (262_144, 22), (524_288, 24)] {
            assert_eq!(ll(2, size), channels, "2 ranks, {size} B");
        }
    }

    /// Goal: a quarter of a FIFO makes a quarter of a chunk, with each protocol.
    #[test]
    fn chunks_follow_the_buffer_of_their_protocol() {
        let call = Call::of_size(Collective::AllReduce, 4, Bytes(1 << 30), DataType::Float32);
        let whole = Buffers::NCCL;
        let quarter = |bytes: Bytes| Bytes(bytes.0 / 4);
        let smaller = Buffers { ll: quarter(whole.ll), ll128: quarter(whole.ll128), simple: quarter(whole.simple) };
        for protocol in [Protocol::Ll, Protocol::Ll128, Protocol::Simple] {
            let chunk = |buffers| {
                Plan::new(&call, Algorithm::Ring, protocol, &Limits { buffers, ..Limits::default() }).chunk as f64
            };
            let ratio = chunk(smaller) / chunk(whole);
            assert!((0.24..0.26).contains(&ratio), "{protocol}: {ratio}");
        }
    }

    /// Goal: the worked examples of NCCL's rule for 8 ranks, ring/Simple, 24 channels. At 1 MiB
    /// the rule allows 24 channels, of which whole cells (128, at most 6 a channel) fill 22.
    #[test]
    fn threads_and_channels_follow_the_size() {
        for (size, channels, threads) in [(1 << 10, 1, 96), (64 << 10, 2, 512), (256 << 10, 8, 512), (1 << 20, 22, 512)]
        {
            let call = Call::of_size(Collective::AllReduce, 8, Bytes(size), DataType::Float32);
            let plan = Plan::new(&call, Algorithm::Ring, Protocol::Simple, &Limits::default());
            assert_eq!((plan.channels, plan.threads), (channels, threads), "{size}");
        }
    }

    /// Goal: the chunks of NVLS and NVLS tree by NCCL's rule, worked by hand for 16 channels and
    /// 8 heads: each threshold at its size and just below it.
    #[test]
    fn chunks_of_nvls_follow_the_size() {
        let chunk = |algorithm, hosts, size: u64| {
            let call = Call::of_size(Collective::AllReduce, 8 * hosts, Bytes(size), DataType::Float32);
            let plan =
                Plan::new(&call, algorithm, Protocol::Simple, &Limits { channels: 16, hosts, ..Limits::default() });
            assert_eq!((plan.channels, plan.threads), (16, 640));
            (4 * plan.chunk) >> 10
        };
        for (size, kib) in [(1 << 30, 128), (64 << 20, 64), (8 << 20, 32), (1 << 20, 16)] {
            assert_eq!(chunk(Algorithm::Nvls, 1, size), kib);
            if kib > 16 {
                assert_eq!(chunk(Algorithm::Nvls, 1, size - 4), kib / 2);
            }
        }
        for (hosts, size, kib) in
            [(2, 64 << 20, 128), (2, (64 << 20) - 4, 64), (4, 1 << 30, 64), (4, (8 << 20) - 4, 32)]
        {
            assert_eq!(chunk(Algorithm::NvlsTree, hosts, size), kib);
        }
    }

    /// Goal: what NCCL 2.8.4 cuts otherwise, worked by hand from its `src/enqueue.cc`: chunks of tree/Simple on 8 hosts
    /// of 4 ranks (a depth of 6), threads of a small call, and channels that are all used.
    #[test]
    fn old_versions_cut_by_their_own_rules() {
        let plan = |version, algorithm, protocol, size| {
            let call = Call::of_size(Collective::AllReduce, 32, Bytes(size), DataType::Float32);
            Plan::new(&call, algorithm, protocol, &Limits { channels: 4, hosts: 8, version, ..Limits::default() })
        };
        let old = Version::new(2, 8, 4);
        for (version, size, kib) in [
            (old, 32 << 20, 128),
            (old, 8 << 20, 64),
            (old, 1 << 20, 32),
            (Version::new(2, 17, 1), 1 << 20, 32),
            (Version::NEWEST, 1 << 20, 512),
        ] {
            assert_eq!(
                (4 * plan(version, Algorithm::Tree, Protocol::Simple, size).chunk) >> 10,
                kib,
                "{version} {size}"
            );
        }
        let threads = |version, algorithm| plan(version, algorithm, Protocol::Ll, 1 << 10).threads;
        assert_eq!((threads(old, Algorithm::Ring), threads(Version::NEWEST, Algorithm::Ring)), (64, 96));
        assert_eq!((threads(old, Algorithm::Tree), threads(Version::NEWEST, Algorithm::Tree)), (128, 640));
        let in_turn = |version, protocol| plan(version, Algorithm::Tree, protocol, 1 << 20).in_turn;
        assert_eq!([Protocol::Ll, Protocol::Ll128, Protocol::Simple].map(|p| in_turn(old, p)), [true, false, true]);
        assert_eq!([Protocol::Ll, Protocol::Ll128, Protocol::Simple].map(|p| in_turn(Version::NEWEST, p)), [false; 3]);
        let channels = |version| {
            let call = Call::of_size(Collective::AllReduce, 8, Bytes(1 << 20), DataType::Float32);
            let plan = Plan::new(&call, Algorithm::Ring, Protocol::Simple, &Limits { version, ..Limits::default() });
            (plan.channels, plan.fetches)
        };
        assert_eq!((channels(old), channels(Version::NEWEST)), ((24, true), (22, false)));
    }

    /// Goal: before 2.20 a loop goes over all channels, and its last round is rounded up to what the threads move at once:
    /// the elements of each channel, worked by hand. What is missing in that round is missing in the last channels with
    /// Simple; LL and LL128 deal it chunk by chunk, so that all channels miss about as much.
    #[test]
    fn old_versions_deal_loops_over_channels() {
        let parts = |version, collective, algorithm, protocol, size: u64| {
            let call = Call::of_size(collective, 8, Bytes(size), DataType::Float32);
            let limits = Limits { channels: 8, exact_channels: true, version, ..Limits::default() };
            let plan = Plan::new(&call, algorithm, protocol, &limits);
            let parts = (0..plan.channels).map(|c| plan.range(c, call.count)).map(|(from, to)| 4 * (to - from));
            let parts: Vec<u64> = parts.collect();
            assert_eq!(parts.iter().sum::<u64>(), size, "{collective} {algorithm} {protocol}");
            (plan.grid * plan.grain * 4, parts)
        };
        let (old, all_reduce, ring) = (Version::new(2, 18, 5), Collective::AllReduce, Algorithm::Ring);
        // 16 KiB for each of 8 chunks are less than a round of 640 threads, 30 bytes each: there are 54 of 19,200 and a
        // rest, and channels have 6 or 7 of them.
        let (grid, of) = parts(old, all_reduce, ring, Protocol::Ll128, 1 << 20);
        assert_eq!((grid, of), (19_200, vec![134_400, 134_400, 134_400, 134_400, 134_400, 134_400, 126_976, 115_200]));
        // Two loops of 8 chunks of 32 KiB, and one and a half.
        let (_, of) = parts(old, all_reduce, Algorithm::Tree, Protocol::Ll, 35 << 14);
        assert_eq!(of.iter().map(|bytes| bytes >> 14).collect::<Vec<_>>(), [6, 5, 4, 4, 4, 4, 4, 4]);
        let even = parts(Version::new(2, 20, 3), all_reduce, ring, Protocol::Ll128, 1 << 20).1;
        assert!(even.iter().all(|&bytes| bytes == 1 << 17), "{even:?}");
        // A call of many loops: all channels have the whole ones, the first ones the last.
        let chunk = 4 << 20 >> 3 << 2;
        let (grid, of) = parts(old, all_reduce, ring, Protocol::Simple, 64 * (3 * chunk + 4096) - 4096);
        assert_eq!((grid, of[0] - of[7]), (4096, 4096));
        assert!(of[..7].iter().all(|&bytes| bytes == 8 * (3 * chunk + 4096)), "{of:?}");
        // A broadcast has one chunk a loop.
        let (grid, of) = parts(old, Collective::Broadcast, ring, Protocol::Ll128, 100_000);
        assert_eq!((grid, of[0], of[1], of[2], of[3]), (38_400, 38_400, 38_400, 23_200, 0));
    }

    /// Goal: a group of one call has the channels and parts of that call alone.
    #[test]
    fn a_group_of_one_is_dealt_like_a_call() {
        for (collective, protocol) in [
            (Collective::AllReduce, Protocol::Ll),
            (Collective::AllReduce, Protocol::Simple),
            (Collective::AllGather, Protocol::Ll128),
            (Collective::Broadcast, Protocol::Simple),
        ] {
            for size in [1 << 10, 96 << 10, 1 << 20, (5 << 20) + 52, 1 << 28] {
                let call = Call::of_size(collective, 8, Bytes(size), DataType::Float32);
                let limits = Limits::default();
                let plan = Plan::new(&call, Algorithm::Ring, protocol, &limits);
                let threads = u64::from(default_threads(Algorithm::Ring, protocol));
                let threshold = if protocol == Protocol::Ll128 { 8 } else { 64 };
                let most = worthwhile(u64::from(limits.channels), size, threads * threshold);
                let dealt = deal(&[Share::new(&call, protocol, most as u32)], limits.channels)[0];
                assert_eq!((dealt.first, dealt.last + 1), (0, plan.channels), "{collective} {protocol} {size}");
                let grouped = Plan { dealt: Some(dealt), ..plan };
                for channel in 0..plan.channels {
                    assert_eq!(
                        grouped.range(channel, call.count),
                        plan.range(channel, call.count),
                        "{collective} {protocol} {size} {channel}"
                    );
                }
            }
        }
    }

    /// Goal: NCCL's dealing worked by hand. Cells of all-reduce with LL have 2 KiB (16 KiB of traffic). 48 calls of
    /// 64 KiB on 24 channels: two on each. Three calls of 40, 24 and 16 KiB that may have 2, 1 and 1 channel: 20 KiB
    /// each; the first has two channels, the second the third and 4 KiB of the fourth, the last what is left there.
    #[test]
    fn channels_are_dealt_to_one_call_after_another() {
        let of = |sizes: &[(u64, u32)], channels| {
            let share = |&(size, most): &(u64, u32)| {
                Share::new(&Call::of_size(Collective::AllReduce, 8, Bytes(size), DataType::Float32), Protocol::Ll, most)
            };
            deal(&sizes.iter().map(share).collect::<Vec<_>>(), channels)
        };
        let even = of(&[(64 << 10, 24); 48], 24);
        for (index, dealt) in even.iter().enumerate() {
            assert_eq!(
                (dealt.first, dealt.last, 4 * dealt.low),
                (index as u32 / 2, index as u32 / 2, 64 << 10),
                "{index}"
            );
        }
        let apart = of(&[(40 << 10, 2), (24 << 10, 1), (16 << 10, 1)], 24);
        let parts: Vec<_> = apart.iter().map(|d| (d.first, d.last, d.low >> 8)).collect();
        assert_eq!(parts, [(0, 1, 20), (2, 3, 20), (3, 3, 16)]);
        // More than the channels can have: the last takes what is left.
        let crowded = of(&[(1 << 20, 4), (1 << 20, 4), (1 << 20, 4)], 2);
        assert!(crowded.iter().all(|d| d.last < 2), "{crowded:?}");
    }

    proptest! {
        /// Goal: whatever is grouped, calls have channels in order, none beyond the last, and all their elements.
        #[test]
        fn every_call_of_a_group_has_all_its_elements(
            calls in prop::collection::vec(
                (prop_oneof![32_u64..5000, 5000_u64..40_000_000], 1_u32..33, 0_usize..3, 0_usize..3),
                1..30,
            ),
            channels in 1_u32..33,
        ) {
            let collectives = [Collective::AllReduce, Collective::AllGather, Collective::Broadcast];
            let shares: Vec<Share> = (calls.iter())
                .map(|&(size, most, collective, protocol)| {
                    let call = Call::of_size(collectives[collective], 8, Bytes(size), DataType::Float32);
                    Share::new(&call, Protocol::ALL[protocol], most)
                })
                .collect();
            let mut before = 0;
            for (share, dealt) in shares.iter().zip(deal(&shares, channels)) {
                prop_assert!(before <= dealt.first && dealt.first <= dealt.last && dealt.last < channels, "{:?}", dealt);
                before = dealt.last;
                let mut at = 0;
                for channel in 0..channels {
                    let (from, to) = dealt.range(channel, share.count);
                    prop_assert!(from <= to && (from == at || from == to), "{:?} {} {}-{}", dealt, channel, from, to);
                    at = at.max(to);
                }
                prop_assert_eq!(at, share.count);
            }
        }
    }

    /// Goal: send and receive by NCCL's rule, worked by hand: (channels in all and to a peer, ranks, bytes
    /// to a peer) and the channels that share one message, and those used.
    #[test]
    fn a_peer_gets_no_more_than_its_channels() {
        for (channels, collective, ranks, bytes, parts, used) in [
            ((32, 8), Collective::SendRecv, 2, 1 << 30, 8, 8),
            ((32, 32), Collective::SendRecv, 2, 1 << 30, 32, 32),
            // 16 peers share 32 channels: 2 each, as long as a part stays within 16 MiB.
            ((32, 8), Collective::AllToAll, 16, 1 << 20, 2, 32),
            ((32, 8), Collective::AllToAll, 16, 1 << 26, 4, 32),
            ((32, 8), Collective::AllToAll, 16, 1 << 30, 8, 32),
            ((16, 2), Collective::AllToAll, 4, 64 << 10, 1, 4),
        ] {
            let parts_of_size = if collective == Collective::AllToAll { u64::from(ranks) } else { 1 };
            let call = Call::of_size(collective, ranks, Bytes(bytes * parts_of_size), DataType::Float32);
            let limits = Limits { p2p_channels: channels, ..Limits::default() };
            let plan = Plan::new(&call, Algorithm::Direct, Protocol::Simple, &limits);
            assert_eq!((plan.parts, plan.channels), (parts, used), "{channels:?} {ranks} {bytes}");
        }
    }

    /// Goal: registered buffers are stored into, by at most 16 of 24 channels, where the result is on its way and
    /// not written over what is to be read: NCCL's rule, by value.
    #[test]
    fn registered_buffers_take_fewer_channels() {
        use Collective::{AllGather, AllReduce, Broadcast, Reduce, ReduceScatter};
        let plan = |collective, algorithm, protocol, in_place, limits: &Limits| {
            let mut call = Call::of_size(collective, 4, Bytes(64 << 20), DataType::Float32);
            call.in_place = in_place;
            let plan = Plan::new(&call, algorithm, protocol, &Limits { registered: true, ..*limits });
            (plan.channels, plan.direct)
        };
        let (ring, simple, limits) = (Algorithm::Ring, Protocol::Simple, Limits::default());
        for (collective, in_place, direct) in [
            (AllReduce, false, true),
            (AllReduce, true, false),
            (AllGather, false, true),
            (AllGather, true, true),
            (Broadcast, false, true),
            (Reduce, false, false),
            (ReduceScatter, false, false),
        ] {
            let channels = if direct { 16 } else { 24 };
            assert_eq!(
                plan(collective, ring, simple, in_place, &limits),
                (channels, direct),
                "{collective} {in_place}"
            );
        }
        assert_eq!(plan(AllReduce, Algorithm::Tree, simple, false, &limits), (16, true));
        assert_eq!(plan(AllGather, ring, Protocol::Ll128, false, &limits), (24, false));
        assert_eq!(plan(AllGather, ring, simple, false, &Limits { hosts: 2, ..limits }), (24, false));
        assert_eq!(plan(AllGather, ring, simple, false, &Limits { channels: 32, ..limits }), (32, true));
        assert_eq!(plan(AllGather, ring, simple, false, &Limits { channels: 8, ..limits }), (8, true));
    }

    /// Goal: the ranges of all channels tile the buffer, the slices of a chunk tile the chunk.
    #[test]
    fn ranges_and_slices_tile() {
        for size in [0, 4, 12, 1000, 65_532, 10_000_004] {
            for ranks in [1, 2, 7] {
                let call = Call::of_size(Collective::AllReduce, ranks, Bytes(size), DataType::Float32);
                for protocol in [Protocol::Ll, Protocol::Ll128, Protocol::Simple] {
                    let plan = Plan::new(&call, Algorithm::Ring, protocol, &Limits::default());
                    let mut at = 0;
                    for channel in 0..plan.channels {
                        let (from, to) = plan.range(channel, call.count);
                        assert_eq!(from, at);
                        at = to;
                    }
                    assert_eq!(at, call.count);
                    for span in [0, 5, plan.chunk / 3, plan.chunk] {
                        let ends: Vec<_> = (0..plan.slices).map(|s| plan.slice_of(span, s)).collect();
                        assert_eq!(ends.iter().map(|(a, b)| b - a).sum::<u64>(), span);
                    }
                }
            }
        }
    }
}

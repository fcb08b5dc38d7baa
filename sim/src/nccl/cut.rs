//! How NCCL cuts one call: channels, threads, chunks, slices and FIFOs.
//!
//! Facts: NCCL 2.30 `src/enqueue.cc`, `src/include/collectives.h`, `src/include/device.h`,
//! restated; the number of cells was checked against the choices that NCCL 2.28.9 logged on
//! 2 and 4 H200 (see the tests).

use super::dealing::{Share, cell_bytes, deal};
use super::old;
use super::plan;
use super::plan::{Dealing, MAX_CHANNELS, MAX_NVLS_HEADS, Old, Plan, STEPS};
use super::rules::{Deals, Rules};
use super::settings::NcclSettings;
use super::version::Version;
use crate::call::Call;
use crate::collective::{Algorithm, Buffers, Collective, Protocol};
use crate::units::Bytes;

/// What a call may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Channels of the communicator. Ring, tree and CollNet chain use fewer for small calls; those of
    /// the others are what NCCL's model gives the call ([`Model::call_channels`](super::Model::call_channels)).
    pub channels: u32,
    /// Threads of a block that move data, at most; `None` for NCCL's default of the protocol.
    pub threads: Option<u32>,
    /// Bytes that a thread must have to be worth its while; `None` for NCCL's default.
    pub threshold: Option<u64>,
    /// FIFOs.
    pub buffers: Buffers<Bytes>,
    /// Channels for send and receive in the communicator, and those to one peer at most.
    pub p2p_channels: (u32, u32),
    /// Bytes of a chunk of send and receive with Simple (`p2pChunkSize` of a communicator, `src/init.cc`).
    pub p2p_chunk: Bytes,
    /// Most bytes that a channel sends by LL.
    pub p2p_ll_bytes: u64,
    /// Whether some pairs talk over the network.
    pub network: bool,
    /// The number of channels is an order, not a maximum.
    pub exact_channels: bool,
    /// Most bytes of a chunk of NVLS and of NVLS tree.
    pub nvls_chunks: (Bytes, Bytes),
    /// NCCL has registered the buffers with the peers.
    pub registered: bool,
    /// Hosts, or NVLink domains.
    pub hosts: u32,
    /// Ranks of a host, of the host with the fewest.
    pub ranks_per_host: u32,
    /// Heads of a host with NVLS tree; each of its ranks where `None`.
    pub heads: Option<u32>,
    /// Version of NCCL whose rules cut.
    pub version: Version,
    /// See [`Settings::spread`](crate::predict::Settings::spread).
    pub spread: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            channels: 24,
            threads: None,
            threshold: None,
            buffers: Buffers::NCCL,
            p2p_channels: (32, 32),
            p2p_chunk: plan::P2P_CHUNK_NVLINK,
            p2p_ll_bytes: LL_SENDS,
            network: false,
            nvls_chunks: (Bytes(128 << 10), Bytes(128 << 10)),
            exact_channels: false,
            registered: false,
            hosts: 1,
            ranks_per_host: 8,
            heads: None,
            version: Version::NEWEST,
            spread: false,
        }
    }
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
        let Blocks { channels, threads, direct } = Blocks::new(call, algorithm, protocol, bytes, limits);
        let (channels, per_channel, dealing) = parts(call, algorithm, protocol, (channels, threads), limits);
        let (step_bytes, grain_bytes) = step(protocol, limits.buffers);
        let (chunk_steps, slice_steps) = steps(algorithm, call.collective, protocol);
        let chunk_bytes = chunk(call, (algorithm, protocol), (bytes, channels), step_bytes * chunk_steps, limits);
        let grain = (grain_bytes / element).max(1);
        let chunk = (chunk_bytes / element / grain).max(1) * grain;
        let grain = (16 / element).max(1);
        let aggregate = if algorithm == Algorithm::Pat { aggregate(chunk, per_channel, call.ranks) } else { 1 };
        let mut plan = Self {
            algorithm,
            protocol,
            channels: u32::try_from(channels).unwrap_or(u32::MAX),
            threads: u32::try_from(threads).unwrap_or(u32::MAX),
            chunk,
            grain,
            slices: u32::try_from(chunk_steps / slice_steps).unwrap_or(1),
            fifo_slices: STEPS / u32::try_from(slice_steps).unwrap_or(1) * aggregate,
            min_slice: (step_bytes * slice_steps / 32 / element).max(1),
            per_channel,
            dealing,
            direct,
            channels_per_peer: 1,
            peers_at_once: 1,
            aggregate,
            old: Old::default(),
        };
        old::recut(call, &mut plan, heads(algorithm, limits), &Rules::of(limits.version));
        plan
    }

    /// Send and receive: NCCL's channels per peer (`src/enqueue.cc`, point-to-point part).
    fn point_to_point(call: &Call, protocol: Protocol, limits: &Limits) -> Self {
        let element = call.dtype.size();
        let largest = call.counts.as_ref().and_then(|c| c.iter().max().copied()).unwrap_or(call.count);
        let bytes = largest * element;
        let step_bytes = limits.p2p_chunk.0.min(step(Protocol::Simple, limits.buffers).0);
        let all = u64::from(limits.p2p_channels.0.max(1));
        let most = u64::from(limits.p2p_channels.1.max(1)).min(all);
        let mut channels = most;
        while channels * u64::from(call.ranks) > all && channels > 1 && !limits.spread {
            channels /= 2;
        }
        let version = limits.version;
        let (min_part, max_part) = match protocol {
            // On 2 and 4 H200 with 2.28.9, LL of 128 KiB takes no longer than of 32 KiB: it has all channels.
            Protocol::Ll if !version.since(29) => {
                let step = limits.buffers.ll.0 / u64::from(STEPS);
                (step / 8, step * 32)
            }
            _ if limits.network => (step_bytes / if version.since(22) { 2 } else { 8 }, step_bytes),
            _ => (step_bytes / 8, step_bytes * 32),
        };
        channels = channels.min(bytes.div_ceil(min_part.max(1))).max(1);
        while bytes.div_ceil(channels) > max_part && channels <= most / 2 {
            channels *= 2;
        }
        // Over a network, messages of few chunks are cut smaller.
        let chunk_bytes = match protocol {
            Protocol::Simple if limits.network && bytes < step_bytes => step_bytes / 4,
            Protocol::Simple if limits.network && bytes < 8 * step_bytes => step_bytes / 2,
            Protocol::Simple => step_bytes,
            other => step(other, limits.buffers).0,
        };
        let grain = (16 / element).max(1);
        // Peers are dealt to channels in batches, each of which takes `channels` of them.
        let hosts = limits.hosts.clamp(1, call.ranks.max(1));
        let rounds = match call.collective {
            Collective::SendRecv => 1,
            _ => u64::from(plan::peer_batches(hosts, call.ranks.div_ceil(hosts))),
        };
        let blocks = channels * rounds.min((all / channels).max(1));
        Self {
            algorithm: Algorithm::Direct,
            protocol,
            channels: u32::try_from(blocks).unwrap_or(u32::MAX),
            // `NCCL_NTHREADS` is not for them (`scheduleP2pTasksToPlan`, `src/enqueue.cc`).
            threads: default_threads(Algorithm::Direct, protocol),
            chunk: (chunk_bytes / element / grain).max(1) * grain,
            grain,
            slices: 1,
            fifo_slices: STEPS,
            min_slice: 1,
            per_channel: largest.div_ceil(channels).next_multiple_of(grain).max(grain),
            dealing: Dealing::Evenly,
            direct: false,
            channels_per_peer: u32::try_from(channels).unwrap_or(u32::MAX),
            peers_at_once: if limits.spread { u32::MAX } else { plan::PEER_BATCH },
            aggregate: 1,
            old: Old::default(),
        }
    }

    /// The plan of an imported schedule: a part of each chunk fills as many steps of a FIFO as MSCCL's interpreter takes
    /// for one.
    pub fn imported(call: &Call, protocol: Protocol, channels: u32, threads: Option<u32>, limits: &Limits) -> Self {
        let element = call.dtype.size();
        let (step_bytes, grain_bytes) = step(protocol, limits.buffers);
        let (chunk_steps, slice_steps) = steps(Algorithm::Msccl, call.collective, protocol);
        let grain = (grain_bytes / element).max(1);
        Self {
            algorithm: Algorithm::Msccl,
            protocol,
            channels,
            threads: limits.threads.or(threads).unwrap_or(default_threads(Algorithm::Msccl, protocol)).clamp(32, 1024),
            chunk: (step_bytes * chunk_steps / element / grain).max(1) * grain,
            grain: (16 / element).max(1),
            slices: u32::try_from(chunk_steps / slice_steps).unwrap_or(1),
            fifo_slices: STEPS / u32::try_from(slice_steps).unwrap_or(1),
            min_slice: (step_bytes * slice_steps / 32 / element).max(1),
            per_channel: call.count,
            dealing: Dealing::Evenly,
            direct: false,
            channels_per_peer: 1,
            peers_at_once: 1,
            aggregate: 1,
            old: Old::default(),
        }
    }

    /// The protocol NCCL uses for a send of this size: LL up to 16 KiB (`P2P_LL_THRESHOLD` in `addP2pToPlan`,
    /// `src/enqueue.cc`) for each channel that the message would have with Simple, before 2.29 for each that a pair may have,
    /// before 2.22 in all. The connection must have buffers for lines. Sends over a network have none (`NCCL_ALLOC_P2P_NET_LL_BUFFERS` is 0, `src/init.cc` and
    /// `src/transport/net.cc`). Where some pairs talk over one, all are taken to run Simple.
    pub fn point_to_point_protocol(call: &Call, limits: &Limits) -> Protocol {
        let channels = match limits.version {
            version if version.since(29) => Self::point_to_point(call, Protocol::Simple, limits).channels_per_peer,
            version if version.since(22) => limits.p2p_channels.1.min(limits.p2p_channels.0).max(1),
            _ => 1,
        };
        let short = largest_send(call) <= limits.p2p_ll_bytes.saturating_mul(channels.into());
        if short && !limits.network { Protocol::Ll } else { Protocol::Simple }
    }

    /// Whether NCCL may have sent by a protocol, whatever the channels of a pair: 1 at least, and all that there are.
    pub fn may_send(call: &Call, protocol: Protocol, settings: &NcclSettings) -> bool {
        let (bytes, most) = (largest_send(call), settings.p2p_ll_bytes.unwrap_or(LL_SENDS));
        if protocol == Protocol::Ll { bytes <= most.saturating_mul(MAX_CHANNELS.into()) } else { bytes > most }
    }
}

/// `NCCL_P2P_LL_THRESHOLD` where nobody sets it.
const LL_SENDS: u64 = 16 << 10;

/// Bytes that the largest send of a call carries.
fn largest_send(call: &Call) -> u64 {
    let largest = call.counts.as_ref().and_then(|counts| counts.iter().max().copied()).unwrap_or(call.count);
    largest * call.dtype.size()
}

/// The blocks of a call.
struct Blocks {
    /// Channels that it may use.
    channels: u64,
    /// Threads of each block.
    threads: u64,
    /// See [`Plan::direct`].
    direct: bool,
}

impl Blocks {
    /// As many channels, and then threads, as have enough to do.
    fn new(call: &Call, algorithm: Algorithm, protocol: Protocol, bytes: u64, limits: &Limits) -> Self {
        let rules = Rules::of(limits.version).cut;
        let as_ring = rules.tree_threads_of_ring && algorithm == Algorithm::Tree;
        let like = if as_ring { Algorithm::Ring } else { algorithm };
        let full_threads = u64::from(limits.threads.unwrap_or(default_threads(like, protocol)).clamp(32, 1024));
        // One rank copies, in one go.
        let most = if call.ranks == 1 { 1 } else { limits.channels.max(1) };
        let (mut channels, mut threads) = (u64::from(most), full_threads);
        let threshold = limits.threshold.unwrap_or(match (algorithm, protocol) {
            (Algorithm::Ring, Protocol::Ll) => 8 * u64::from(call.ranks),
            (_, Protocol::Ll | Protocol::Ll128) => 8,
            (Algorithm::CollnetDirect | Algorithm::CollnetChain, _) => 512,
            (_, Protocol::Simple) => 64,
        });
        let fixed = limits.exact_channels
            || is_nvls(algorithm)
            || matches!(algorithm, Algorithm::CollnetDirect | Algorithm::Pat);
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
        if as_ring || matches!(algorithm, Algorithm::Ring | Algorithm::CollnetChain | Algorithm::CollTree) {
            while bytes < channels * threads * threshold && threads % 128 == 0 {
                threads /= 2;
            }
        }
        threads = threads.max(rules.least_threads.min(full_threads));
        Self { channels, threads, direct }
    }
}

fn is_nvls(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::Nvls | Algorithm::NvlsTree)
}

/// Channels that a call uses, elements of the largest part of one, and how the others are dealt.
fn parts(
    call: &Call,
    algorithm: Algorithm,
    protocol: Protocol,
    (channels, threads): (u64, u64),
    limits: &Limits,
) -> (u64, u64, Dealing) {
    let (version, element) = (limits.version, call.dtype.size());
    let deals = Rules::of(version).dealing.deals;
    // All channels: those that are told, and what goes through the network's switches.
    let in_network = limits.hosts > 1 && algorithm == Algorithm::Nvls
        || matches!(algorithm, Algorithm::CollnetDirect | Algorithm::CollnetChain);
    let all = limits.exact_channels || in_network || deals == Deals::Loops;
    let aligned = deals == Deals::Aligned;
    if all || aligned || call.count == 0 || call.ranks == 1 {
        let cell =
            if aligned { old::alignment(protocol, threads) } else { cell_bytes(call, protocol, version) } / element;
        let cells = call.count.div_ceil(cell).max(1);
        let each = cells.div_ceil(channels);
        return (if all { channels } else { cells.div_ceil(each) }, each * cell, Dealing::Evenly);
    }
    let most = u32::try_from(channels).unwrap_or(u32::MAX);
    let dealt = deal(&[Share::new(call, protocol, most, version)], limits.channels, version)[0];
    (u64::from(dealt.last) + 1, dealt.most(call), Dealing::ByTraffic(dealt))
}

/// Bytes of a chunk, at most `most`.
fn chunk(
    call: &Call,
    (algorithm, protocol): (Algorithm, Protocol),
    (bytes, channels): (u64, u64),
    most: u64,
    limits: &Limits,
) -> u64 {
    let mut chunk = most;
    let hosts = limits.hosts.max(1);
    match (algorithm, protocol) {
        (Algorithm::Nvls | Algorithm::NvlsTree | Algorithm::CollnetDirect | Algorithm::CollnetChain, _) => {
            chunk = in_switch_chunk(algorithm, (bytes, channels), most, limits);
        }
        (Algorithm::Tree, Protocol::Ll128) => {
            let each = f64::from(call.ranks) / f64::from(hosts);
            let steps = f64::from(1 + hosts.ilog2()) + 0.1 * each;
            // In whole numbers, as NCCL divides.
            let per = |chunk: u64| (bytes / (channels * chunk)) as f64;
            for (loops, least) in [(64.0, 128 << 10), (16.0, 32 << 10)] {
                while per(chunk) < steps * loops / each && chunk > least {
                    chunk /= 2;
                }
            }
        }
        (Algorithm::Tree, Protocol::Simple) if Rules::of(limits.version).cut.tree_fills_depth => {
            chunk = old::tree_chunk(call, bytes, channels, most, hosts);
        }
        (Algorithm::Pat, _) => {
            let loops = if call.collective == Collective::AllGather { 32 } else { 16 };
            while chunk * channels * loops > bytes && chunk > 64 << 10 {
                chunk /= 2;
            }
        }
        // NCCL's rule for its own algorithm of two levels, CollNet direct.
        (Algorithm::CollTree, _) => {
            let hosts = u64::from(hosts);
            let heads = u64::from(call.ranks).div_ceil(hosts);
            let depth = 1 + u64::from(hosts.ilog2());
            for (loops, least) in [(64, 128 << 10), (8, 64 << 10), (8, 32 << 10)] {
                while bytes < depth * loops * channels * heads * chunk && chunk > least {
                    chunk /= 2;
                }
            }
        }
        _ => {}
    }
    chunk
}

/// Channels of which each has enough to do: `per_channel` bytes.
pub(super) fn worthwhile(most: u64, bytes: u64, per_channel: u64) -> u64 {
    most.min(bytes / per_channel.max(1)).max(1)
}

/// Ranks of a host that each answer for a slice of what switches reduce.
fn heads(algorithm: Algorithm, limits: &Limits) -> u64 {
    let known = limits.heads.filter(|_| algorithm == Algorithm::NvlsTree);
    u64::from(known.unwrap_or(limits.ranks_per_host).max(1)).min(MAX_NVLS_HEADS as u64)
}

/// Bytes of a chunk of NVLS, NVLS tree and CollNet, at most `most` (`src/enqueue.cc`). NCCL also lowers that of
/// NVLS over several hosts where its own model says less than 150 GB/s, which is left out.
fn in_switch_chunk(algorithm: Algorithm, (bytes, channels): (u64, u64), most: u64, limits: &Limits) -> u64 {
    let heads = heads(algorithm, limits);
    // All channels times all heads, and the rule compares the whole message.
    let parts = channels * if algorithm == Algorithm::CollnetChain { 1 } else { heads };
    let below = |times: u64, chunk: u64| bytes < times * parts * chunk;
    const KIB: u64 = 1 << 10;
    let mut chunk;
    match algorithm {
        Algorithm::Nvls => {
            chunk = limits.nvls_chunks.0.0.min(most);
            for (times, smaller) in [(64, 64 * KIB), (8, 32 * KIB), (2, 16 * KIB)] {
                if below(times, chunk) {
                    chunk = chunk.min(smaller);
                }
            }
        }
        Algorithm::NvlsTree => {
            chunk = limits.nvls_chunks.1.0.min(most);
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
            chunk = most.min(if chain { 256 * KIB } else { 512 * KIB });
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

/// Steps of a FIFO that a chunk takes, and those of a slice: `ALLREDUCE_CHUNKSTEPS` and the like of rings (`src/include/collectives.h`),
/// `MSCCL_CHUNKSTEPS` and `MSCCL_SLICESTEPS` of microsoft/msccl (`src/include/msccl.h`).
fn steps(algorithm: Algorithm, collective: Collective, protocol: Protocol) -> (u64, u64) {
    match (algorithm, collective, protocol) {
        (
            Algorithm::Ring,
            Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter,
            Protocol::Simple,
        )
        | (Algorithm::Msccl, _, Protocol::Simple) => (4, 2),
        _ => (1, 1),
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

    fn ll(ranks: u32, size: u64) -> u32 {
        let call = Call::of_size(Collective::AllReduce, ranks, Bytes(size), DataType::Float32);
        let limits = Limits { version: Version::new(2, 28, 9), ..Limits::default() };
        Plan::new(&call, Algorithm::Ring, Protocol::Ll, &limits).channels
    }

    /// Goal: the channel counts that NCCL 2.28.9 logged on 4 and on 2 H200 (NCCL_DEBUG_SUBSYS=TUNING,
    /// 2026-11-21), by value. Those of 512 KiB on 4 tell cells of 16 KiB of traffic from 32 KiB.
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
    /// the rule allows 24 channels, of which whole cells (64, at most 3 a channel) fill 22.
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
            let tree_chunk = Bytes(if hosts < 4 { 128 << 10 } else { 64 << 10 });
            let nvls_chunks = (Bytes(128 << 10), tree_chunk);
            let limits = Limits { channels: 16, hosts, nvls_chunks, ..Limits::default() };
            let plan = Plan::new(&call, algorithm, Protocol::Simple, &limits);
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
        // A step of the FIFO bounds what has no bound of its own.
        let call = |size| Call::of_size(Collective::AllReduce, 32, Bytes(size), DataType::Float32);
        let unbound = (Bytes(128 << 10), Bytes(u64::MAX));
        let limits = Limits { channels: 16, hosts: 4, nvls_chunks: unbound, ..Limits::default() };
        for (size, kib) in [(2 << 30, 512), ((2 << 30) - 4, 256), ((512 << 20) - 4, 128)] {
            let plan = Plan::new(&call(size), Algorithm::NvlsTree, Protocol::Simple, &limits);
            assert_eq!((4 * plan.chunk) >> 10, kib, "{size}");
        }
    }

    /// Goal: the parts of channels by version, worked by hand. 128 KiB of all-reduce with LL128 suffice for 24 channels
    /// (5 KiB each); cells have 16 KiB (32 KiB of traffic), 8 KiB, 16 B, or 480 B of each of 20 warps, which are also
    /// what the chunks of 2.21 are rounded up to. 64 KiB of tree/LL are enough for 12; 2.21 has the 512 threads of rings,
    /// 8 B each a unit, and 16. LL counts for four times from 2.26 on.
    #[test]
    fn versions_deal_by_their_own_rules() {
        let plan = |version, algorithm, protocol, size| {
            let call = Call::of_size(Collective::AllReduce, 8, Bytes(size), DataType::Float32);
            Plan::new(&call, algorithm, protocol, &Limits { version, ..Limits::default() })
        };
        for ((minor, patch), channels, bytes) in [
            ((30, 7), 8, 16 << 10),
            ((29, 2), 8, 16 << 10),
            ((28, 9), 16, 8 << 10),
            ((25, 1), 16, 8 << 10),
            ((22, 3), 24, 5472),
            ((21, 5), 14, 9600),
        ] {
            let plan = plan(Version::new(2, minor, patch), Algorithm::Ring, Protocol::Ll128, 128 << 10);
            assert_eq!((plan.channels, 4 * plan.per_channel), (channels, bytes), "2.{minor}");
            let rounded = 4 * plan.last_grain();
            assert_eq!(rounded, if minor == 21 { 9600 } else { 16 }, "2.{minor}");
        }
        // Four bytes beyond 24 cells: NCCL rounds the traffic of a channel down, to one cell.
        assert_eq!(plan(Version::new(2, 28, 9), Algorithm::Ring, Protocol::Ll128, 196_612).channels, 24);
        let tree = |minor| plan(Version::new(2, minor, 0), Algorithm::Tree, Protocol::Ll, 64 << 10).channels;
        assert_eq!([21, 22, 25, 26, 28, 29].map(tree), [16, 12, 8, 11, 11, 8]);
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
            assert_eq!((plan.channels_per_peer, plan.channels), (parts, used), "{channels:?} {ranks} {bytes}");
        }
    }

    /// Goal: over hosts a message to a peer is cut by chunks of 128 KiB, worked by hand: channels (64 to 128 KiB each, as many
    /// as there are), and KiB of a chunk (a quarter below 128 KiB, half below 1 MiB).
    #[test]
    fn sends_over_hosts_are_cut_smaller() {
        let plan = |kib: u64, buffer: u64| {
            let call = Call::of_size(Collective::SendRecv, 2, Bytes(kib << 10), DataType::Float32);
            let limits = Limits {
                network: true,
                hosts: 2,
                p2p_channels: (16, 4),
                p2p_chunk: plan::P2P_CHUNK,
                buffers: Buffers { simple: Bytes(buffer), ..Buffers::NCCL },
                ..Limits::default()
            };
            let plan = Plan::new(&call, Algorithm::Direct, Protocol::Simple, &limits);
            (plan.channels_per_peer, (plan.chunk * 4) >> 10)
        };
        for (kib, cut) in
            [(64, (1, 32)), (127, (2, 32)), (128, (2, 64)), (256, (4, 64)), (1023, (4, 64)), (1024, (4, 128))]
        {
            assert_eq!(plan(kib, 4 << 20), cut, "{kib} KiB");
            // Chunks of 128 KiB fit into smaller buffers.
            assert_eq!(plan(kib, 1 << 20), cut, "{kib} KiB");
        }
        assert_eq!(plan(1024, 256 << 10), (4, 32));
    }

    /// Goal: what goes by LL, by version: 16 KiB in all, for each channel of a peer, for each that Simple would use.
    #[test]
    fn short_sends_go_by_lines() {
        let longest = |version, network| {
            let limits = Limits { version, network, p2p_channels: (32, 8), ..Limits::default() };
            let lines = |kib: &u64| {
                let call = Call::of_size(Collective::SendRecv, 2, Bytes(kib << 10), DataType::Float32);
                Plan::point_to_point_protocol(&call, &limits) == Protocol::Ll
            };
            [1, 16, 17, 128, 129].into_iter().rfind(lines)
        };
        for (minor, kib) in [(17, 16), (22, 128), (28, 128), (29, 16), (30, 16)] {
            assert_eq!(longest(Version::new(2, minor, 0), false), Some(kib), "2.{minor}");
            assert_eq!(longest(Version::new(2, minor, 0), true), None, "2.{minor}");
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

    proptest::proptest! {
        /// Goal: whatever FIFOs a measurement claims, a cut has chunks, channels and slices.
        #[test]
        fn every_cut_has_chunks(
            bits in proptest::array::uniform3(0u32..24),
            (ranks, size) in (1u32..20, 0u64..1 << 34),
            network: bool,
        ) {
            let [ll, ll128, simple] = bits.map(|bits| Bytes((1 << bits) - 1));
            let buffers = Buffers { ll, ll128, simple };
            let limits = Limits { buffers, network, ..Limits::default() };
            for &collective in Collective::ALL {
                let call = Call::of_size(collective, ranks, Bytes(size), DataType::Float16);
                for &algorithm in crate::schedule::valid_algorithms(collective) {
                    for &protocol in crate::schedule::valid_protocols(algorithm) {
                        let plan = Plan::new(&call, algorithm, protocol, &limits);
                        proptest::prop_assert!(plan.chunk > 0 && plan.channels > 0 && plan.slices > 0, "{plan:?}");
                    }
                }
            }
        }
    }

    /// Goal: small sends run LL inside a host, and Simple where a network is in between.
    #[test]
    fn sends_over_a_network_have_no_lines() {
        let call = Call::of_size(Collective::SendRecv, 2, Bytes(1024), DataType::Float32);
        let protocol = |network| Plan::point_to_point_protocol(&call, &Limits { network, ..Limits::default() });
        assert_eq!([false, true].map(protocol), [Protocol::Ll, Protocol::Simple]);
        let lowered = Limits { p2p_ll_bytes: 0, ..Limits::default() };
        assert_eq!(Plan::point_to_point_protocol(&call, &lowered), Protocol::Simple);
    }
}

//! How NCCL before 2.22 cut a call, where that differs from [`super::plan`]: one place for its rules.

use super::Call;
use super::plan::{Dealing, Limits, default_threads};
use crate::collective::{Algorithm, Collective, Protocol};
use crate::nccl::Version;
use crate::nccl::rules::{Deals, Rules};

/// Whether blocks of a tree reduce all their chunks before they broadcast the first, with the threads of rings: NCCL
/// 2.8 `src/collectives/device/all_reduce.h` splits the threads of LL128 alone; its `src/enqueue.cc` gives trees the
/// threads of rings, fewer where a call is small.
pub(super) fn is_in_turn(algorithm: Algorithm, version: Version) -> bool {
    algorithm == Algorithm::Tree && Rules::of(version).cut.tree_in_turn
}

/// Threads of a block, at most.
pub(super) fn full_threads(algorithm: Algorithm, protocol: Protocol, limits: &Limits) -> u32 {
    let like = if is_in_turn(algorithm, limits.version) { Algorithm::Ring } else { algorithm };
    limits.threads.unwrap_or(default_threads(like, protocol)).clamp(32, 1024)
}

/// Whether calls use all channels.
pub(super) fn uses_all(version: Version) -> bool {
    Rules::of(version).dealing.deals == Deals::Loops
}

/// Whether parts are multiples of [`alignment`].
pub(super) fn aligns(version: Version) -> bool {
    Rules::of(version).dealing.deals == Deals::Aligned
}

/// Bytes that parts of channels, and the last chunks of ring all-reduce, are multiples of in 2.20 and 2.21: 8 of a
/// thread with LL, 480 of a warp with LL128 (`src/include/enqueue.h`, `computeCollAlignCount` of 2.21.5, restated).
pub(super) fn alignment(protocol: Protocol, threads: u64) -> u64 {
    match protocol {
        Protocol::Ll => threads * 8,
        Protocol::Ll128 => threads / 32 * 480,
        Protocol::Simple => 4096,
    }
}

/// Chunks of tree/Simple, in bytes: as many as fill the way through the tree. 2.17 has this rule, 2.21 has not.
pub(super) fn tree_chunk(call: &Call, bytes: u64, channels: u64, mut chunk: u64, limits: &Limits) -> u64 {
    let hosts = limits.hosts.max(1);
    let depth = u64::from(call.ranks / hosts).saturating_sub(1) + u64::from(hosts.ilog2());
    for (loops, least) in [(8, 128 << 10), (4, 64 << 10), (1, 32 << 10)] {
        while bytes / (channels * chunk) < depth * loops && chunk > least {
            chunk /= 2;
        }
    }
    chunk
}

/// What has chunks of so many elements, in grains, on so many channels, by so many threads.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    pub algorithm: Algorithm,
    pub protocol: Protocol,
    pub channels: u64,
    pub threads: u64,
    pub chunk: u64,
    pub grain: u64,
}

/// Elements of the largest part of a channel by the rule of `version`, `part` being the even one, and how the others
/// are dealt.
pub(super) fn deal(call: &Call, part: u64, cut: Cut, version: Version) -> (u64, Dealing) {
    if aligns(version) {
        let grid = (alignment(cut.protocol, cut.threads) / call.dtype.size() / cut.grain).max(1);
        return (part, Dealing::ByThreads { grid, even: 0 });
    }
    if uses_all(version) && matches!(cut.algorithm, Algorithm::Ring | Algorithm::Tree) {
        return by_loops(call, cut);
    }
    (part, Dealing::Evenly)
}

/// Before 2.20 rings and trees go over all channels loop by loop.
fn by_loops(call: &Call, Cut { algorithm, protocol, channels, threads, chunk, grain }: Cut) -> (u64, Dealing) {
    let element = call.dtype.size();
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
    let even = (loops * chunks * chunk) + turns * turn * last;
    let per_channel = even + if call.count > channels * even { turn * last } else { 0 };
    (per_channel, Dealing::ByThreads { grid: (last / grain).max(1), even })
}

/// Bytes that the chunks of a loop's last round are rounded up to where a loop goes over all channels: NCCL's
/// `src/collectives/device/all_reduce.h` at commit 033d799 (before 2.8), restated; 2.18.3 has the same factors.
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

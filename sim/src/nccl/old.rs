//! What only old versions of NCCL do: before 2.22, before 2.20 and before 2.19. One place, so that they can be let go.
//!
//! Who lets them go deletes this file, [`Old`](super::plan::Old) and [`Dealing::ByLoops`] of a plan, the fields of
//! [`Rules`] that are set here, and, in turn with each of them, what asks for it.
//!
//! Source: `src/graph/tuning.cc`, `src/enqueue.cc` and `src/collectives/device` of NCCL, restated: of the versions up to
//! 2.21.5 that [`Version::READ`](super::Version::READ) lists, and `src/enqueue.cc` of 2.19.1 and 2.19.3. Others have rules
//! between those: 2.9 to 2.12 the cost model of 2.8.4, 2.13 to 2.16 that of 2.17.1, 2.19 that of 2.20.3.

use super::plan::{Dealing, Plan};
use super::rules::{Costs, Cut, Deals, NetLatency, NvlsSpeed, Rules};
use super::tables::{COLLNET_CHAIN, COLLNET_DIRECT, LL, LL128, NETWORK, NVLINK, NVLS, NVLS_TREE, RING, SIMPLE, TREE};
use super::version::Version;
use crate::call::Call;
use crate::collective::{Algorithm, Collective, Protocol};

/// Cuts a call as the version of `rules` does, given how newer ones would.
pub(super) fn recut(call: &Call, plan: &mut Plan, heads: u64, rules: &Rules) {
    plan.old.fetches_work = rules.cut.fetches_work;
    // 2.8 `src/collectives/device/all_reduce.h` splits the threads of LL128 alone.
    plan.old.in_turn = rules.cut.tree_in_turn && plan.algorithm == Algorithm::Tree && plan.protocol != Protocol::Ll128;
    match rules.dealing.deals {
        Deals::Aligned => {
            let grains = alignment(plan.protocol, plan.threads.into()) / call.dtype.size() / plan.grain;
            plan.old.last_grain = grains.max(1) * plan.grain;
        }
        Deals::Loops if matches!(plan.algorithm, Algorithm::Ring | Algorithm::Tree) => deal_by_loops(call, plan),
        Deals::Loops if matches!(plan.algorithm, Algorithm::Nvls | Algorithm::NvlsTree) => {
            deal_whole_chunks(call, plan, heads);
        }
        Deals::Loops | Deals::Traffic => {}
    }
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

/// Before 2.20 rings and trees go over all channels loop by loop.
fn deal_by_loops(call: &Call, plan: &mut Plan) {
    let Plan { algorithm, protocol, chunk, grain, .. } = *plan;
    let (channels, threads, element) = (u64::from(plan.channels), u64::from(plan.threads), call.dtype.size());
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
    let each = (loops * chunks * chunk) + turns * turn * last;
    plan.per_channel = each + if call.count > channels * each { turn * last } else { 0 };
    plan.dealing = Dealing::ByLoops { each };
    plan.old.last_grain = (last / grain).max(1) * grain;
}

/// Before 2.20 a channel of NVLS has a whole chunk for each head before the next channel has any: `offset = gridOffset +
/// bid*nvls->nHeads*chunkSize` in `src/collectives/device/all_reduce.h` of 2.18. A rank's part has no heads.
fn deal_whole_chunks(call: &Call, plan: &mut Plan, heads: u64) {
    let turn = plan.chunk * if call.collective == Collective::AllReduce { heads } else { 1 };
    let each = call.count / (u64::from(plan.channels) * turn) * turn;
    plan.per_channel = each + if call.count > u64::from(plan.channels) * each { turn } else { 0 };
    plan.dealing = Dealing::ByLoops { each };
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

/// Chunks of tree/Simple, in bytes: as many as fill the way through the tree. 2.19.3 has this rule, 2.20 has not.
pub(super) fn tree_chunk(call: &Call, bytes: u64, channels: u64, mut chunk: u64, hosts: u32) -> u64 {
    let depth = u64::from(call.ranks / hosts).saturating_sub(1) + u64::from(hosts.ilog2());
    for (loops, least) in [(8, 128 << 10), (4, 64 << 10), (1, 32 << 10)] {
        while bytes / (channels * chunk) < depth * loops && chunk > least {
            chunk /= 2;
        }
    }
    chunk
}

/// The rules of a version before 2.19, given what later ones would do.
pub(super) fn amend(mut rules: Rules) -> Rules {
    let version = rules.version;
    costs_of_2_18(&mut rules.costs, version);
    if version.since(18) {
        return rules;
    }
    // It has one host.
    rules.nvls_gathers = 1;
    // NCCL's release notes.
    rules.algorithms[NVLS] = version.since(17);
    rules.cut = Cut {
        // 2.8 `src/collectives/device/all_reduce.h` splits the threads of LL128 alone.
        tree_in_turn: !version.since(10),
        least_threads: if version.since(9) { rules.cut.least_threads } else { 0 },
        // 2.8.4 `load_coll` in `src/collectives/device/common.h`; later versions pass it with the launch.
        fetches_work: !version.since(9),
        ..rules.cut
    };
    costs(&mut rules.costs);
    if !version.since(13) {
        costs_of_2_8(&mut rules.costs);
    }
    rules
}

/// The cost model of 2.18.1 and 2.18.3.
fn costs_of_2_18(costs: &mut Costs, version: Version) {
    for (a, kinds) in [
        (COLLNET_DIRECT, [8., 8., 10.7]),
        (COLLNET_CHAIN, [4.75, 8., 14.]),
        (NVLS, [0., 0., 18.]),
        (NVLS_TREE, [0., 0., 19.]),
    ] {
        for (kind, latency) in costs.step.iter_mut().zip(kinds) {
            kind[a][SIMPLE] = latency;
        }
    }
    (costs.base[NVLS][SIMPLE], costs.base[NVLS_TREE][SIMPLE]) = (23., 23.);
    costs.collnet_direct_serial = 0.5;
    if version >= Version::new(2, 18, 3) {
        costs.nvls = NvlsSpeed::AsRing(5.0 / 6.0);
        for (kind, latency) in costs.step.iter_mut().zip([4., 6., 14.]) {
            kind[TREE][SIMPLE] = latency;
        }
    } else {
        costs.nvls = NvlsSpeed::AsRing(0.75);
        costs.tree_max[2][2] = 33.;
        costs.tree_ll128_max[2] = [36.7; 3];
        costs.one_gpu_tree_share = 1.0;
    }
}

/// The cost model of 2.17, given that of 2.18.1.
fn costs(costs: &mut Costs) {
    costs.base[NVLS][SIMPLE] = 40.;
    costs.base[TREE] = [4.4, 4.4, 0.];
    costs.base[RING] = [3.6, 10., 8.4];
    costs.step[NVLINK][TREE][LL] = 0.52;
    costs.step[NVLINK][RING][LL] = 0.47;
    costs.step[NETWORK][RING][SIMPLE] = 9.6;
    for a in [COLLNET_DIRECT, COLLNET_CHAIN] {
        costs.base[a] = [4.4, 4.4, 0.];
        for (kind, latency) in costs.step.iter_mut().zip([8., 8., 10.7]) {
            kind[a][SIMPLE] = latency;
        }
    }
    costs.bus_max = [f32::INFINITY, 235., 370., 370.];
    costs.collnet_direct_hopper_share = 1.0;
    costs.collnet_chain_share = 0.75;
    costs.ll_step_over_hosts = 1.8;
    costs.net_latency = NetLatency::Replaces;
    costs.posts = false;
}

/// What the cost model of 2.8.4 has otherwise than that of 2.17.
fn costs_of_2_8(costs: &mut Costs) {
    costs.tree_max[1] = [24., 22.5, 16.];
    // Broadcast, reduce, all-gather, reduce-scatter, all-reduce.
    costs.ll128_max = Some([18.8, 12., 18.3, 15.2, 16.9]);
    costs.tree_ll128_share = 0.915;
    costs.net_latency = NetLatency::Unasked;
    costs.ring_counts_all_hosts = false;
    costs.tree_correction[LL128] = [
        1., 1., 1., 1., 1., 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.5, 0.6, 0.6, 0.7, 0.7, 0.8, 0.9, 0.9, 0.92, 0.92,
        1.,
    ];
    costs.plateau = (1 << 12, false);
    costs.plateau_ampere = 1.9;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::DataType;
    use crate::nccl::{Limits, Version};
    use crate::units::Bytes;

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
        let in_turn = |version, protocol| plan(version, Algorithm::Tree, protocol, 1 << 20).old.in_turn;
        assert_eq!([Protocol::Ll, Protocol::Ll128, Protocol::Simple].map(|p| in_turn(old, p)), [true, false, true]);
        assert_eq!([Protocol::Ll, Protocol::Ll128, Protocol::Simple].map(|p| in_turn(Version::NEWEST, p)), [false; 3]);
        let channels = |version| {
            let call = Call::of_size(Collective::AllReduce, 8, Bytes(1 << 20), DataType::Float32);
            let plan = Plan::new(&call, Algorithm::Ring, Protocol::Simple, &Limits { version, ..Limits::default() });
            (plan.channels, plan.old.fetches_work)
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
            (plan.last_grain() * 4, parts)
        };
        let (old, all_reduce, ring) = (Version::new(2, 18, 5), Collective::AllReduce, Algorithm::Ring);
        // 16 KiB for each of 8 chunks are less than a round of 640 threads, 30 bytes each: there are 54 of 19,200 and a
        // rest, and channels have 6 or 7 of them.
        let (grid, of) = parts(old, all_reduce, ring, Protocol::Ll128, 1 << 20);
        assert_eq!((grid, of), (19_200, vec![134_400, 134_400, 134_400, 134_400, 134_400, 134_400, 126_976, 115_200]));
        // Two loops of 8 chunks of 32 KiB, and one and a half.
        let (_, of) = parts(old, all_reduce, Algorithm::Tree, Protocol::Ll, 35 << 14);
        assert_eq!(of.iter().map(|bytes| bytes >> 14).collect::<Vec<_>>(), [6, 5, 4, 4, 4, 4, 4, 4]);
        // A chunk of 32 KiB for each of 8 heads, before the next channel has any.
        let (_, of) = parts(old, all_reduce, Algorithm::NvlsTree, Protocol::Simple, 1 << 20);
        assert_eq!(of.iter().map(|bytes| bytes >> 15).collect::<Vec<_>>(), [8, 8, 8, 8, 0, 0, 0, 0]);
        let even = parts(Version::new(2, 22, 3), all_reduce, ring, Protocol::Ll128, 1 << 20).1;
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
}

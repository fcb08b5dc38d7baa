//! What only versions before 2.18 do.
//!
//! Source: NCCL 2.17.1 and 2.8.4 `src/graph/tuning.cc`, `src/enqueue.cc`, `src/collectives/device`, restated. Nothing in
//! between was read: 2.9 to 2.12 have the cost model of 2.8.4, 2.13 to 2.16 that of 2.17.

use super::costs::{Costs, NetLatency};
use super::record::{Cut, Rules};
use crate::nccl::tables::{COLLNET_CHAIN, COLLNET_DIRECT, LL, LL128, NETWORK, NVLINK, NVLS, RING, SIMPLE, TREE};

/// The rules of a version before 2.18, given what later ones would do.
pub(super) fn amend(mut rules: Rules) -> Rules {
    let version = rules.version;
    // NCCL's release notes.
    rules.algorithms[NVLS] = version.since(17);
    rules.cut = Cut {
        // 2.8 `src/collectives/device/all_reduce.h` splits the threads of LL128 alone; its `src/enqueue.cc` gives trees the
        // threads of rings, fewer where a call is small.
        tree_in_turn: !version.since(10),
        // 2.21 has no such rule, 2.17 has.
        tree_fills_depth: true,
        least_threads: if version.since(9) { rules.cut.least_threads } else { 0 },
        // 2.8.4 `load_coll` in `src/collectives/device/common.h`; later versions pass it with the launch.
        fetches_work: !version.since(9),
    };
    costs(&mut rules.costs);
    if !version.since(13) {
        costs_of_2_8(&mut rules.costs);
    }
    rules
}

/// The cost model of 2.17.
fn costs(costs: &mut Costs) {
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
    costs.tree_max[2][2] = 33.;
    costs.tree_ll128_max[2] = [36.7; 3];
    costs.ring_ll_share = [1.0 / 4.0, 1.0 / 3.0];
    costs.one_gpu_tree_share = 1.0;
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

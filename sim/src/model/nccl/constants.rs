//! The constants of NCCL's cost model, by version.
//!
//! Source: NCCL 2.30.7 `src/graph/tuning.cc`; differences of earlier versions from the same
//! file of 2.8.4, 2.17 and 2.18 to 2.29 as far as known, each beside its constant. Latencies in
//! microseconds, bandwidths in GB/s, protocols in the order LL, LL128, Simple.

use super::graphs::{CpuVendor, Graphs};
use super::version::Version;
use crate::collective::Collective;

/// Algorithms of NCCL's tables.
pub(super) const TREE: usize = 0;
pub(super) const RING: usize = 1;
pub(super) const COLLNET_DIRECT: usize = 2;
pub(super) const COLLNET_CHAIN: usize = 3;
pub(super) const NVLS: usize = 4;
pub(super) const NVLS_TREE: usize = 5;
pub(super) const PAT: usize = 6;

/// Protocols of NCCL's tables.
pub(super) const LL: usize = 0;
pub(super) const LL128: usize = 1;
pub(super) const SIMPLE: usize = 2;

/// What joins two neighbours of a pattern.
pub(super) const NVLINK: usize = 0;
pub(super) const PCI: usize = 1;
pub(super) const NETWORK: usize = 2;

/// The constants that hold for one communicator.
#[derive(Clone, Debug)]
pub(super) struct Constants {
    /// Fixed overhead: `[algorithm][protocol]`.
    pub(super) base: [[f32; 3]; 7],
    /// Latency of a step: `[NVLink, PCI, network][algorithm][protocol]`.
    pub(super) step: [[[f32; 3]; 7]; 3],
    /// Most that LL carries, of the whole communicator.
    pub(super) ll_max: f64,
    /// Most that a channel of ring/LL128, tree/LL128 and tree carries.
    pub(super) ring_ll128_max: f64,
    pub(super) tree_ll128_max: f64,
    pub(super) tree_max: f64,
    /// Most that all channels carry together; infinite since 2.18.
    pub(super) bus_max: f32,
    /// Most that a channel of NVLS tree carries; infinite before 2.28.
    pub(super) nvls_tree_max: f64,
    /// Share of the graph's speed that NVLS reaches; `None` before 2.28, which have another rule.
    pub(super) nvls_efficiency: Option<f32>,
    /// Share of the graph's speed that PAT reaches.
    pub(super) pat_share: f64,
}

/// Rows by architecture: Volta, Ampere, Hopper, Blackwell; columns by hosts: 1, 2, more.
type ByMachine = [[f64; 3]; 4];

const LL_MAX: ByMachine = [[39., 39., 20.4], [87.7, 22.5, 19.], [141., 45., 35.], [282., 90., 70.]];
const RING_LL128: ByMachine = [[20.; 3], [20.; 3], [36.7; 3], [40.; 3]];
const TREE_LL128: ByMachine = [[20.; 3], [20.; 3], [36.7, 36.7, 29.], [55.6, 31.67, 20.]];
const TREE_ANY: ByMachine = [[26.5, 18.5, 10.], [24., 23.6, 17.8], [38.7, 41.4, 36.], [70., 42.8, 24.]];
/// No Hopper or newer uses it on one host.
const NVLS_TREE_ANY: ByMachine = [[26.5, 18.5, 10.], [24., 23.6, 17.8], [0., 57.7, 45.5], [0., 96., 80.]];
const NVLS_EFFICIENCY: [f32; 4] = [0., 0., 0.85, 0.74];

impl Constants {
    pub(super) fn new(version: Version, graphs: &Graphs) -> Self {
        let mut arch = match graphs.compute_capability.0 {
            0..80 => 0,
            80..90 => 1,
            90..100 => 2,
            _ => 3,
        };
        if !version.since(25) {
            arch = arch.min(2); // Blackwell has rows of its own since 2.25.
        }
        let scale = (graphs.hosts.max(1) as usize - 1).min(2);
        // On one host LL is bound by the GPU, across hosts by the CPU.
        let row = match (graphs.hosts, graphs.cpu_vendor) {
            (0 | 1, _) => arch,
            (_, None | Some(CpuVendor::Amd)) => 1,
            _ => 0,
        };
        let mut ll_max = LL_MAX;
        if !version.since(21) {
            ll_max[2] = [87.7, 22.5, 19.];
        }
        let (mut ring_ll128, mut tree_ll128, mut tree) = (RING_LL128, TREE_LL128, TREE_ANY);
        if !version.since(29) {
            ring_ll128[3] = [73.4; 3];
        }
        if !version.since(28) {
            // Twice the rows of Hopper.
            tree_ll128[3] = [73.4, 73.4, 58.];
            tree[3] = [77.4, 82.8, 72.];
        }
        let mut nvls_tree = NVLS_TREE_ANY;
        if !version.since(28) {
            nvls_tree = [[f64::INFINITY; 3]; 4];
        } else if !version.since(30) {
            nvls_tree[3][2] = 43.1;
        }

        let mut base = [[6.8, 14., 8.4], [6.6, 14., 8.4], [0.; 3], [0.; 3], [0.; 3], [0.; 3], [8.; 3]];
        let collnet_nvls =
            |direct, chain, nvls, tree| [[0., 0., direct], [0., 0., chain], [0., 0., nvls], [0., 0., tree]];
        let row_of = |tree: [f32; 3], ring: [f32; 3], rest: [[f32; 3]; 4], pat: f32| {
            [tree, ring, rest[0], rest[1], rest[2], rest[3], [0., 0., pat]]
        };
        let nvls_tree_step = if version.since(29) { 20.9 } else { 14. };
        let mut step = [
            row_of([0.6, 1.25, 4.], [0.6, 1.9, 3.4], collnet_nvls(3.7, 2.8, 25., 25.), 4.),
            row_of([1., 1.9, 4.], [1., 2.5, 5.7], collnet_nvls(3.7, 2.8, 0., 0.), 4.),
            row_of([5., 8.5, 14.], [2.7, 4., 14.], collnet_nvls(31., 30., 18., nvls_tree_step), 14.),
        ];
        if !version.since(23) {
            base[TREE][SIMPLE] = 0.;
            for kind in &mut step {
                kind[TREE][SIMPLE] = 28.;
            }
        }
        let mut bus_max = f32::INFINITY;
        if !version.since(18) {
            base[TREE] = [4.4, 4.4, 0.];
            base[RING] = [3.6, 10., 8.4];
            step[NVLINK][TREE][LL] = 0.52;
            step[NVLINK][RING][LL] = 0.47;
            step[NETWORK][RING][SIMPLE] = 9.6;
            for a in [COLLNET_DIRECT, COLLNET_CHAIN] {
                base[a] = [4.4, 4.4, 0.];
                for (kind, latency) in step.iter_mut().zip([8., 8., 10.7]) {
                    kind[a][SIMPLE] = latency;
                }
            }
            bus_max = [f32::INFINITY, 235., 370., 370.][arch];
            tree[2][2] = 33.;
            tree_ll128[2] = [36.7; 3];
        }
        if old(version) {
            tree[1] = [24., 22.5, 16.];
        }
        Self {
            base,
            step,
            ll_max: ll_max[row][scale],
            ring_ll128_max: ring_ll128[arch][scale],
            tree_ll128_max: tree_ll128[arch][scale],
            tree_max: tree[arch][scale],
            bus_max,
            nvls_tree_max: nvls_tree[arch][scale],
            nvls_efficiency: version.since(28).then_some(NVLS_EFFICIENCY[arch]),
            pat_share: if version.since(24) { 0.75 } else { 0.85 },
        }
    }
}

/// Whether the rules of 2.8.4 are nearer than those of 2.17, the next that are known.
pub(super) fn old(version: Version) -> bool {
    !version.since(13)
}

/// Most that a channel of LL128 carries, ring or tree, in 2.8.4.
pub(super) fn old_ll128_max(collective: Collective) -> f64 {
    match collective {
        Collective::Broadcast => 18.8,
        Collective::Reduce => 12.,
        Collective::AllGather => 18.3,
        Collective::ReduceScatter => 15.2,
        _ => 16.9,
    }
}

/// Correction of the bandwidth by size, per protocol; index `log2(bytes / 64)`.
pub(super) const TREE_CORRECTION: [[f32; 24]; 3] = [
    [1., 1., 1., 1., 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1., 1., 1., 1., 1.],
    [1., 1., 1., 1., 1., 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1., 1., 1.],
    [
        0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9,
        0.9, 0.9,
    ],
];

/// The row of LL128 in 2.8.4.
pub(super) const OLD_TREE_LL128_CORRECTION: [f32; 23] =
    [1., 1., 1., 1., 1., 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.5, 0.6, 0.6, 0.7, 0.7, 0.8, 0.9, 0.9, 0.92, 0.92];

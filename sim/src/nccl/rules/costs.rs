//! The constants and rules of NCCL's cost model by version.
//!
//! Source: NCCL 2.30.7 `src/graph/tuning.cc`; differences of earlier versions from the same
//! file of those that [`Version::READ`] lists, each beside its constant. Latencies in
//! microseconds, bandwidths in GB/s, protocols in the order LL, LL128, Simple.

use crate::nccl::tables::{SIMPLE, TREE};
use crate::nccl::version::Version;

/// Rows by architecture: Volta, Ampere, Hopper, Blackwell; columns by hosts: 1, 2, more.
pub(crate) type ByMachine = [[f64; 3]; 4];

/// The cost model of a version.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Costs {
    /// Fixed overhead: `[algorithm][protocol]`.
    pub(crate) base: [[f32; 3]; 7],
    /// Latency of a step: `[NVLink, PCI, network][algorithm][protocol]`.
    pub(crate) step: [[[f32; 3]; 7]; 3],
    /// Architectures that have rows of their own; later ones take the last.
    pub(crate) architectures: usize,
    /// Most that LL carries, of the whole communicator.
    pub(crate) ll_max: ByMachine,
    /// Most that a channel of ring/LL128 carries.
    pub(crate) ring_ll128_max: ByMachine,
    /// Most that a channel of tree/LL128 carries.
    pub(crate) tree_ll128_max: ByMachine,
    /// Most that a channel of ring/LL128 and tree/LL128 carries by collective, in the order of NCCL's functions, where
    /// the version knows it so.
    pub(crate) ll128_max: Option<[f64; 5]>,
    /// Most that a channel of a tree carries.
    pub(crate) tree_max: ByMachine,
    /// Most that a channel of NVLS tree carries; infinite before 2.28.
    pub(crate) nvls_tree_max: ByMachine,
    /// Most that all channels carry together, by architecture.
    pub(crate) bus_max: [f32; 4],
    /// How fast NVLS is taken to be.
    pub(crate) nvls: NvlsSpeed,
    /// Share of the graph's speed that PAT reaches.
    pub(crate) pat_share: f64,
    /// Share of the rings' speed that LL reaches: of all-reduce, reduce and what goes over several hosts; of the others.
    pub(crate) ring_ll_share: [f64; 2],
    /// Share of the rings' speed that LL128 reaches where hosts have one rank each.
    pub(crate) ring_ll128_share_alone: f64,
    /// Share of the trees' speed that LL128 reaches over several hosts.
    pub(crate) tree_ll128_share: f64,
    /// Share that trees keep whose hosts all attach to one GPU.
    pub(crate) one_gpu_tree_share: f64,
    /// Share that CollNet direct keeps from Hopper on.
    pub(crate) collnet_direct_hopper_share: f64,
    /// Latency of each further rank of a host with CollNet direct.
    pub(crate) collnet_direct_serial: f64,
    /// CollNet direct gathers and scatters as fast as its graph inside hosts, less by a share for ranks of a host: 0.95 of
    /// one, 0.85 of eight. Later versions also ask the network.
    pub(crate) collnet_gathers_inside: bool,
    /// Share that CollNet chain keeps.
    pub(crate) collnet_chain_share: f64,
    /// How much longer steps of LL inside hosts take where there are several.
    pub(crate) ll_step_over_hosts: f32,
    /// What the latency that a network reports does.
    pub(crate) net_latency: NetLatency,
    /// One rank a host exposes the whole latency of the network: the row of the tree.
    pub(crate) alone_as_tree: bool,
    /// The time in which a CPU posts a message bounds the steps of rings over several hosts.
    pub(crate) posts: bool,
    /// All-reduce's rings count a step over the network for each host, twice; otherwise for each but one.
    pub(crate) ring_counts_all_hosts: bool,
    /// Correction of the bandwidth of trees by size, by protocol; index `log2(bytes / 64)`.
    pub(crate) tree_correction: [[f32; 24]; 3],
    /// It also holds for NVLS tree from Blackwell on.
    pub(crate) corrects_nvls_tree: bool,
    /// Bytes of a rank from which rings of all-reduce over hosts are slow to start ("plateau effect"), and whether of
    /// each channel.
    pub(crate) plateau: (u64, bool),
    /// How much slower, from Ampere on; 1.9 before.
    pub(crate) plateau_ampere: f64,
}

/// How fast NVLS is taken to be.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum NvlsSpeed {
    /// As rings on its graph, of which NVLS keeps a share and NVLS tree 0.7; their latencies are fixed.
    AsRing(f64),
    /// As its graph, of which every collective keeps 5/6.
    Whole,
    /// As its graph, of which only all-reduce keeps 5/6.
    Graph,
    /// As its graph for all-reduce, less for what stays on its rank for gathering and scattering.
    Kept,
    /// A share of its graph's speed, by architecture.
    Efficiency([f32; 4]),
}

/// What the latency that a network reports does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NetLatency {
    /// It adds to the constant.
    Adds,
    /// It stands in place of the constant.
    Replaces,
    /// Nothing: the network is not asked.
    Unasked,
}

const LL_MAX: ByMachine = [[39., 39., 20.4], [87.7, 22.5, 19.], [141., 45., 35.], [282., 90., 70.]];
const RING_LL128: ByMachine = [[20.; 3], [20.; 3], [36.7; 3], [40.; 3]];
const TREE_LL128: ByMachine = [[20.; 3], [20.; 3], [36.7, 36.7, 29.], [55.6, 31.67, 20.]];
const TREE_ANY: ByMachine = [[26.5, 18.5, 10.], [24., 23.6, 17.8], [38.7, 41.4, 36.], [70., 42.8, 24.]];
/// No Hopper or newer uses it on one host.
const NVLS_TREE_ANY: ByMachine = [[26.5, 18.5, 10.], [24., 23.6, 17.8], [0., 57.7, 45.5], [0., 96., 80.]];
const NVLS_EFFICIENCY: [f32; 4] = [0., 0., 0.85, 0.74];

/// NCCL's `treeCorrectionFactor` (`src/graph/tuning.cc`), by protocol and power of two of the size.
const TREE_CORRECTION: [[f32; 24]; 3] = [
    [1., 1., 1., 1., 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1., 1., 1., 1., 1.],
    [1., 1., 1., 1., 1., 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1., 1., 1.],
    [
        0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9,
        0.9, 0.9,
    ],
];

impl Costs {
    /// Those of 2.18 and later.
    pub(super) fn of(version: Version) -> Self {
        let mut ll_max = LL_MAX;
        if !version.since(21) {
            ll_max[2] = [87.7, 22.5, 19.];
        }
        let (mut ring_ll128_max, mut tree_ll128_max, mut tree_max) = (RING_LL128, TREE_LL128, TREE_ANY);
        if !version.since(29) {
            ring_ll128_max[3] = [73.4; 3];
        } else if !version.since(30) {
            ring_ll128_max[3] = [34.5, 34.6, 34.5];
        }
        if !version.since(28) {
            // Twice the rows of Hopper.
            tree_ll128_max[3] = [73.4, 73.4, 58.];
            tree_max[3] = [77.4, 82.8, 72.];
        }
        let mut nvls_tree_max = NVLS_TREE_ANY;
        if !version.since(28) {
            nvls_tree_max = [[f64::INFINITY; 3]; 4];
        } else if !version.since(30) {
            nvls_tree_max[3][2] = if version.since(29) { 43.8 } else { 43.1 };
        }
        let (base, step) = latencies(version);
        Self {
            base,
            step,
            // Blackwell has rows of its own since 2.25.
            architectures: if version.since(25) { 4 } else { 3 },
            ll_max,
            ring_ll128_max,
            tree_ll128_max,
            ll128_max: None,
            tree_max,
            nvls_tree_max,
            bus_max: [f32::INFINITY; 4],
            nvls: match version {
                _ if version.since(28) => NvlsSpeed::Efficiency(NVLS_EFFICIENCY),
                _ if version.since(27) => NvlsSpeed::Kept,
                _ if version.since(23) => NvlsSpeed::Graph,
                _ => NvlsSpeed::Whole,
            },
            pat_share: if version.since(24) { 0.75 } else { 0.85 },
            ring_ll_share: if version.since(21) { [0.5; 2] } else { [1.0 / 4.0, 1.0 / 3.0] },
            ring_ll128_share_alone: if version.since(23) { 0.92 } else { 0.7 },
            tree_ll128_share: 120.0 / 128.0,
            one_gpu_tree_share: 0.85,
            collnet_direct_hopper_share: 0.85,
            collnet_direct_serial: 0.4,
            collnet_gathers_inside: !version.since(27),
            collnet_chain_share: 1.0,
            ll_step_over_hosts: 1.0,
            net_latency: NetLatency::Adds,
            alone_as_tree: version.since(23),
            posts: true,
            ring_counts_all_hosts: !version.since(23),
            tree_correction: TREE_CORRECTION,
            corrects_nvls_tree: version.since(29),
            plateau: (64, true),
            plateau_ampere: 1.4,
        }
    }
}

/// Fixed overheads and the latencies of steps.
fn latencies(version: Version) -> ([[f32; 3]; 7], [[[f32; 3]; 7]; 3]) {
    let mut base = [[6.8, 14., 8.4], [6.6, 14., 8.4], [0.; 3], [0.; 3], [0.; 3], [0.; 3], [8.; 3]];
    let collnet_nvls = |direct, chain, nvls, tree| [[0., 0., direct], [0., 0., chain], [0., 0., nvls], [0., 0., tree]];
    let row_of = |tree: [f32; 3], ring: [f32; 3], rest: [[f32; 3]; 4], pat: f32| {
        [tree, ring, rest[0], rest[1], rest[2], rest[3], [0., 0., pat]]
    };
    let nvls_tree_step = if version.since(29) { 20.9 } else { 14. };
    let nvls = if version.since(21) { 25. } else { 23. };
    let mut step = [
        row_of([0.6, 1.25, 4.], [0.6, 1.9, 3.4], collnet_nvls(3.7, 2.8, nvls, nvls), 4.),
        row_of([1., 1.9, 4.], [1., 2.5, 5.7], collnet_nvls(3.7, 2.8, 0., 0.), 4.),
        row_of([5., 8.5, 14.], [2.7, 4., 14.], collnet_nvls(31., 30., 18., nvls_tree_step), 14.),
    ];
    if !version.since(23) {
        base[TREE][SIMPLE] = 0.;
        for kind in &mut step {
            kind[TREE][SIMPLE] = 28.;
        }
    }
    (base, step)
}

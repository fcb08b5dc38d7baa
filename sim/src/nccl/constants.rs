//! The constants of NCCL's cost model that hold for one communicator.
//!
//! Source: NCCL 2.30.7 `src/graph/tuning.cc`. Bandwidths in GB/s.

use super::graphs::{CpuVendor, Graphs};
use super::rules::{Costs, NvlsSpeed};

/// The rows of a communicator in the tables of [`Costs`].
#[derive(Clone, Debug)]
pub(super) struct Constants {
    /// Most that LL carries, of the whole communicator.
    pub(super) ll_max: f64,
    /// Most that a channel of ring/LL128, tree/LL128 and tree carries.
    pub(super) ring_ll128_max: f64,
    pub(super) tree_ll128_max: f64,
    pub(super) tree_max: f64,
    /// Most that all channels carry together.
    pub(super) bus_max: f32,
    /// Most that a channel of NVLS tree carries.
    pub(super) nvls_tree_max: f64,
    /// Share of the graph's speed that NVLS reaches; `None` where another rule holds.
    pub(super) nvls_efficiency: Option<f32>,
}

impl Constants {
    pub(super) fn new(costs: &Costs, graphs: &Graphs) -> Self {
        let arch = match graphs.compute_capability.0 {
            0..80 => 0,
            80..90 => 1,
            90..100 => 2,
            _ => 3,
        };
        let arch = arch.min(costs.architectures - 1);
        let scale = (graphs.hosts.max(1) as usize - 1).min(2);
        // On one host LL is bound by the GPU, across hosts by the CPU.
        let row = match (graphs.hosts, graphs.cpu_vendor) {
            (0 | 1, _) => arch,
            (_, None | Some(CpuVendor::Amd)) => 1,
            _ => 0,
        };
        Self {
            ll_max: costs.ll_max[row][scale],
            ring_ll128_max: costs.ring_ll128_max[arch][scale],
            tree_ll128_max: costs.tree_ll128_max[arch][scale],
            tree_max: costs.tree_max[arch][scale],
            bus_max: costs.bus_max[arch],
            nvls_tree_max: costs.nvls_tree_max[arch][scale],
            nvls_efficiency: match costs.nvls {
                NvlsSpeed::Efficiency(shares) => Some(shares[arch]),
                NvlsSpeed::AsRing(_) | NvlsSpeed::Whole | NvlsSpeed::Graph | NvlsSpeed::Kept => None,
            },
        }
    }
}

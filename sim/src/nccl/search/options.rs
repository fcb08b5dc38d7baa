//! What the search of a machine's graphs depends on beside the machine.

use super::given::Given;
use crate::nccl::settings::NcclSettings;
use crate::nccl::transport::Transport;
use crate::topology::Topology;

/// What the search cannot see in a topology; graphs that are given.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether NVLink SHARP may be used (`NCCL_NVLS_ENABLE` and a driver that has it).
    pub multicast: bool,
    /// Whether the network reduces and its plugin is in use (`NCCL_COLLNET_ENABLE`).
    pub collnet: bool,
    /// How data is moved: it decides on paths and NICs, and on which GPUs form a node.
    pub transport: Transport,
    /// Graphs to take in place of the search (`NCCL_GRAPH_FILE`).
    pub given: Given,
}

impl Default for Options {
    fn default() -> Self {
        Self { multicast: true, collnet: false, transport: Transport::default(), given: Given::default() }
    }
}

impl Options {
    /// What settings make of a machine.
    pub fn new(topology: &Topology, settings: &NcclSettings, transport: Transport, given: Given) -> Self {
        Self {
            multicast: settings.nvls != Some(false) && !topology.software.multicast_off,
            collnet: settings.collnet && topology.sharp,
            transport,
            given,
        }
    }
}

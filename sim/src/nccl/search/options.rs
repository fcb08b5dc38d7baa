//! What the search of a machine's graphs depends on beside the machine.

use super::given::Given;
use crate::nccl::settings::NcclSettings;
use crate::nccl::transport::Transport;
use crate::nccl::version::Version;
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
    /// What channels of send and receive depend on; the search does not.
    pub sends: Sends,
}

/// What channels of send and receive depend on beside the machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Sends {
    /// NCCL's version.
    pub version: Version,
    /// The fewest and the most channels of the communicator (`NCCL_MIN_NCHANNELS`, `NCCL_MAX_CTAS` and so on).
    pub channels: (Option<u32>, Option<u32>),
    /// `NCCL_MIN_P2P_NCHANNELS`.
    pub least: Option<u32>,
    /// `NCCL_MAX_P2P_NCHANNELS`.
    pub most: Option<u32>,
    /// `NCCL_NCHANNELS_PER_NET_PEER`.
    pub per_peer: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        let (transport, given, sends) = Default::default();
        Self { multicast: true, collnet: false, transport, given, sends }
    }
}

impl Options {
    /// What settings of a version make of a machine.
    pub fn new(
        topology: &Topology,
        (settings, version): (&NcclSettings, Version),
        transport: Transport,
        given: Given,
    ) -> Self {
        let (least, most) = (settings.min_p2p_channels, settings.max_p2p_channels);
        Self {
            sends: Sends {
                version,
                channels: settings.channels(),
                least,
                most,
                per_peer: settings.channels_per_net_peer,
            },
            multicast: settings.nvls != Some(false) && !topology.software.multicast_off,
            collnet: settings.collnet && topology.sharp,
            transport,
            given,
        }
    }
}

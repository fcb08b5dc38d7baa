//! What NCCL's graph search finds on a machine: the facts that its cost model and its choice start from.
//!
//! Source: NCCL 2.30 `src/graph/search.cc`, `src/graph/connect.cc`, `src/include/graph.h`, restated.

use super::path::PathClass;
use crate::units::Bytes;

/// The shape that a graph search looks for, with NCCL's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// A chain inside hosts; the two child hosts of a host attach to two different GPUs.
    BalancedTree = 1,
    /// A chain inside hosts; parent and child hosts attach to two different GPUs.
    SplitTree = 2,
    /// A chain inside hosts; all other hosts attach to its first GPU.
    Tree = 3,
    /// A circle through all GPUs.
    Ring = 4,
    /// Every GPU to the NVSwitches, one head a channel.
    Nvls = 5,
    /// Every GPU to every head, heads to the network.
    CollnetDirect = 6,
}

/// One channel of a graph on one node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ChannelPath {
    /// Numbers of the NICs in the node by which it enters and leaves it.
    pub nics: Option<(u32, u32)>,
    /// Numbers of the GPUs inside the node, in the order in which the channel visits them;
    /// for [`Pattern::Nvls`] and [`Pattern::CollnetDirect`] the head first.
    pub gpus: Vec<u32>,
}

/// One of the graphs of a communicator, as all ranks agree on it.
#[derive(Clone, PartialEq, Debug)]
pub struct Graph {
    /// Shape found; for trees the largest number over all hosts.
    pub pattern: Pattern,
    /// Channels of the graph (the duplication inside the search included, that of the
    /// communicator not).
    pub channels: u32,
    /// Speed of one channel inside hosts, in GB/s.
    pub speed_intra: f64,
    /// Speed of one channel between hosts, in GB/s.
    pub speed_inter: f64,
    /// Latency that the network device reports, in microseconds.
    pub latency_inter: f64,
    /// Worst class of path between GPUs.
    pub type_intra: PathClass,
    /// Worst class of path between GPU and NIC.
    pub type_inter: PathClass,
    /// Whether all channels visit GPUs in the same order.
    pub same_channels: bool,
    /// Two channels exchange their NICs on alternate hosts.
    pub cross_nic: bool,
    /// `[node][channel]`: where the channels run.
    pub paths: Vec<Vec<ChannelPath>>,
}

impl Graph {
    /// `[node]`: the GPUs that head its channels, each once, with its NIC. Every node has as many as the one with the
    /// fewest, so that a dead NIC takes a head from all of them (NCCL 2.30 `src/graph/connect.cc`, `search.cc`, restated).
    pub fn heads(&self) -> Vec<Vec<(u32, u32)>> {
        let of_node = |paths: &Vec<ChannelPath>| {
            let mut heads: Vec<(u32, u32)> = Vec::new();
            for (&head, (nic, _)) in paths.iter().filter_map(|path| path.gpus.first().zip(path.nics)) {
                if !heads.iter().any(|&(known, _)| known == head) {
                    heads.push((head, nic));
                }
            }
            heads
        };
        let mut heads: Vec<Vec<(u32, u32)>> = self.paths.iter().map(of_node).collect();
        let fewest = heads.iter().map(Vec::len).min().unwrap_or(0);
        heads.iter_mut().for_each(|of_node| of_node.truncate(fewest));
        heads
    }
}

/// All graphs of a communicator and what else its cost model looks at.
#[derive(Clone, PartialEq, Debug)]
pub struct Graphs {
    /// Ranks.
    pub ranks: u32,
    /// Hosts; those of one NVLink domain count as one (NCCL: nodes).
    pub hosts: u32,
    /// Fewest and most ranks on one host.
    pub ranks_per_host: (u32, u32),
    /// Lowest and highest compute capability times ten.
    pub compute_capability: (u32, u32),
    /// CPU vendor of the hosts, as NCCL tells them apart; `None` when hosts differ.
    pub cpu_vendor: Option<CpuVendor>,
    /// Whether GPUs are joined by NVSwitch on every host.
    pub nvswitch: bool,
    /// Whether NVLink SHARP (multicast) can be used on every host.
    pub multicast: bool,
    /// Whether the network reduces (SHARP) and a plugin for it is there.
    pub collnet: bool,
    /// The ring graph.
    pub ring: Graph,
    /// The tree graph; PAT uses it too.
    pub tree: Graph,
    /// The graph of CollNet chain, where the network reduces.
    pub collnet_chain: Option<Graph>,
    /// The graph of CollNet direct, where the network reduces and hosts have NVSwitch.
    pub collnet_direct: Option<Graph>,
    /// The graph of NVLS and NVLS tree, where multicast is there.
    pub nvls: Option<Graph>,
    /// Channels of the communicator for ring, tree, PAT and CollNet chain.
    pub channels: u32,
    /// Channels of the communicator for NVLS and NVLS tree.
    pub nvls_channels: u32,
    /// Most bytes of a chunk of NVLS and of NVLS tree.
    pub nvls_chunks: (Bytes, Option<Bytes>),
    /// Channels of the communicator for send and receive, and those for one peer.
    pub p2p_channels: (u32, u32),
}

impl Graphs {
    /// Heads of each node with NVLS tree, where there is a graph for it.
    pub fn heads(&self) -> Option<u32> {
        let heads = self.nvls.as_ref()?.heads();
        u32::try_from(heads.first()?.len()).ok().filter(|&count| count > 0)
    }
}

/// CPU vendors that NCCL's constants tell apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CpuVendor {
    /// Intel.
    Intel,
    /// AMD.
    Amd,
    /// Arm (also Grace).
    Arm,
    /// Any other.
    Other,
}

impl CpuVendor {
    /// NCCL's vendor for the name that a CPU reports.
    pub(crate) fn of(name: &str) -> Self {
        let lower = name.to_ascii_lowercase();
        let has = |part: &str| lower.contains(part);
        if has("intel") {
            Self::Intel
        } else if has("amd") {
            Self::Amd
        } else if has("arm") || has("nvidia") || has("grace") {
            Self::Arm
        } else {
            Self::Other
        }
    }
}

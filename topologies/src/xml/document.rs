//! What documents of NCCL say, as values.

use collcast_sim::units::Bandwidth;
use serde::Serialize;

use crate::host::{CpuSpec, HostSpec, Parent, SwitchSpec};

/// A document of NCCL.
#[derive(Clone, PartialEq, Debug)]
pub enum Document {
    /// A whole machine: what `NCCL_TOPO_DUMP_FILE` writes.
    Machine(HostSpec),
    /// A PCIe tree without GPU facts: what clouds give to `NCCL_TOPO_FILE`.
    Template(TemplateSpec),
    /// Channels that NCCL chose: `NCCL_GRAPH_DUMP_FILE`.
    Graph(GraphSpec),
}

impl Document {
    /// `machine`, `template` or `graph`.
    pub fn class(&self) -> &'static str {
        match self {
            Self::Machine(_) => "machine",
            Self::Template(_) => "template",
            Self::Graph(_) => "graph",
        }
    }
}

/// A place for a PCIe device in a template.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TemplateDevice {
    /// PCI bus id.
    pub bus_id: String,
    /// What it hangs from.
    pub parent: Parent,
    /// Rate of its PCIe link; none where the file does not say.
    pub rate: Option<Bandwidth>,
}

/// A PCIe tree: where devices sit, not what they are.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TemplateSpec {
    /// The file, for messages.
    pub file: String,
    /// CPU sockets or NUMA nodes.
    pub cpus: Vec<CpuSpec>,
    /// Whether a CPU names its vendor or architecture, per CPU.
    pub cpu_named: Vec<bool>,
    /// PCIe switches, parents first.
    pub switches: Vec<SwitchSpec>,
    /// Devices of a display class: GPUs.
    pub gpus: Vec<TemplateDevice>,
    /// Devices of a network class.
    pub nics: Vec<TemplateDevice>,
    /// Devices of which the file says no class.
    pub unknown: Vec<TemplateDevice>,
    /// What was assumed because the file does not say.
    pub assumptions: Vec<String>,
}

/// The channels of a graph file.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct GraphSpec {
    /// One per algorithm family, in file order.
    pub graphs: Vec<Graph>,
}

/// One graph: NCCL's search result for a pattern.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Graph {
    /// 0 ring, 1 tree, 2 CollNet chain, 3 NVLS, 4 CollNet direct.
    pub id: u32,
    /// 1 balanced tree, 2 split tree, 3 tree, 4 ring, 5 NVLS, 6 CollNet direct.
    pub pattern: u32,
    /// Whether a channel may use one NIC in and another out.
    pub cross_nic: bool,
    /// Channels that NCCL counts; may be more than are listed.
    pub channel_count: u32,
    /// GB/s per channel within a host.
    pub speed_intra_gb_per_s: f64,
    /// GB/s per channel between hosts.
    pub speed_inter_gb_per_s: f64,
    /// Latency between hosts in microseconds.
    pub latency_inter_us: f64,
    /// Worst path class within a host, such as `NVL`.
    pub type_intra: String,
    /// Worst path class to the NIC, such as `PIX`.
    pub type_inter: String,
    /// Whether all channels are the same.
    pub same_channels: bool,
    /// The channels that are listed.
    pub channels: Vec<Channel>,
}

/// One channel of a graph.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Channel {
    /// NIC that it comes in through.
    pub net_in: Option<u64>,
    /// GPU device numbers in order.
    pub gpus: Vec<u64>,
    /// NIC that it leaves through.
    pub net_out: Option<u64>,
}

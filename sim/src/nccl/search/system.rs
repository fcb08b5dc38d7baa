//! One node of NCCL (a host, or the hosts of an NVLink domain) as it sees it: devices, links and its
//! own figures for them.
//!
//! Source: NCCL 2.30 `src/graph/topo.h`, `src/graph/topo.cc`, restated.

use rustc_hash::FxHashMap;

use super::node::Node;
use crate::ids::{HostId, Rank, VertexId};
use crate::nccl::aws;
use crate::nccl::devices::nic_devices;
use crate::nccl::graphs::CpuVendor;
use crate::nccl::nvlink;
use crate::nccl::transport::{Interface, Transport};
use crate::topology::{Host, LinkKind, Topology, VertexKind};

/// GB/s of a node to itself (`LOC_BW`).
pub(super) const LOC_BW: f32 = 5000.0;

/// What a node of a host is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum NodeKind {
    Gpu,
    Pci,
    NvSwitch,
    Cpu,
    /// The PCIe device of a NIC.
    Nic,
    /// The port of a NIC.
    Net,
}

/// What a link is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum LinkType {
    Nvlink,
    C2c,
    Pci,
    Sys,
    Net,
}

/// One direction of a link.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Link {
    pub(super) to: usize,
    pub(super) kind: LinkType,
    /// GB/s.
    pub(super) bw: f32,
    /// The other direction.
    pub(super) back: usize,
    /// Whether it leads to a GPU before Ampere.
    pub(super) to_old_gpu: bool,
}

/// A GPU that has a rank.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Gpu {
    pub(super) node: usize,
    /// Place among all GPUs of the node.
    pub(super) number: u32,
    /// Compute capability times ten.
    pub(super) capability: u32,
}

/// A network device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Net {
    pub(super) node: usize,
    /// Number of the (first) NIC in the node.
    pub(super) nic: u32,
    /// GB/s.
    pub(super) bw: f32,
    /// What the device reports, in microseconds.
    pub(super) latency: f32,
    pub(super) gdr: bool,
}

/// A node, with the GPUs that have ranks.
#[derive(Clone, Debug)]
pub(super) struct System {
    pub(super) kinds: Vec<NodeKind>,
    pub(super) links: Vec<Link>,
    /// Links that leave each node, fastest first.
    pub(super) links_of: Vec<Vec<usize>>,
    pub(super) gpus: Vec<Gpu>,
    pub(super) nets: Vec<Net>,
    pub(super) cpus: Vec<usize>,
    /// All NVSwitches as one.
    pub(super) nvswitch: Option<usize>,
    pub(super) vendor: CpuVendor,
    /// Whether there are ranks on other nodes.
    pub(super) inter: bool,
    pub(super) transport: Transport,
}

/// A GPU whose source does not say what it is counts as Hopper.
pub(super) fn capability_or_default(known: u32) -> u32 {
    if known == 0 { 90 } else { known }
}

impl System {
    /// A node of a communicator; `vertices` by host.
    pub(super) fn new(
        topology: &Topology,
        node: &Node,
        vertices: &[Vec<VertexId>],
        inter: bool,
        transport: Transport,
    ) -> Self {
        let mut system = Self {
            kinds: Vec::new(),
            links: Vec::new(),
            links_of: Vec::new(),
            gpus: Vec::new(),
            nets: Vec::new(),
            cpus: Vec::new(),
            nvswitch: None,
            vendor: CpuVendor::Other,
            inter,
            transport,
        };
        let mut node_of: FxHashMap<VertexId, usize> = FxHashMap::default();
        let mut hosts: Vec<HostId> = Vec::new();
        let mut devices: Vec<VertexId> = Vec::new();
        for &(number, rank) in &node.gpus {
            let vertex = topology.gpu_of(Rank(rank));
            let capability = topology.gpu(vertex).map_or(0, |g| g.compute_capability);
            let at = system.node(NodeKind::Gpu);
            node_of.insert(vertex, at);
            system.gpus.push(Gpu { node: at, number, capability: capability_or_default(capability) });
            let host = topology.host_of(Rank(rank));
            if hosts.last() != Some(&host) {
                hosts.push(host);
                devices.extend(&vertices[host.index()]);
            }
            // The switches of an NVLink domain are in no host.
            let switches = topology.links_from(vertex).map(|l| l.1).filter(|&v| topology.vertex(v).host.is_none());
            devices.extend(switches);
        }
        for vertex in devices {
            if node_of.contains_key(&vertex) {
                continue;
            }
            let at = match &topology.vertex(vertex).kind {
                VertexKind::PcieSwitch => system.node(NodeKind::Pci),
                VertexKind::NvSwitch => match system.nvswitch {
                    Some(known) => known,
                    None => {
                        let at = system.node(NodeKind::NvSwitch);
                        system.nvswitch = Some(at);
                        at
                    }
                },
                VertexKind::Cpu { vendor } => {
                    if system.cpus.is_empty() {
                        system.vendor = CpuVendor::of(vendor);
                    }
                    let at = system.node(NodeKind::Cpu);
                    system.cpus.push(at);
                    at
                }
                _ => continue,
            };
            node_of.insert(vertex, at);
        }
        for host in hosts {
            system.add_nets(topology, &topology.hosts()[host.index()], &mut node_of);
        }
        system.add_links(topology, &node_of);
        let bw: Vec<f32> = system.links.iter().map(|l| l.bw).collect();
        for links in &mut system.links_of {
            links.sort_by(|&a, &b| bw[b].total_cmp(&bw[a]));
        }
        system
    }

    /// Everything that the search depends on: nodes with one key have one result.
    pub(super) fn key(&self) -> Vec<u32> {
        let small = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let mut key = vec![self.vendor as u32, u32::from(self.inter), small(self.kinds.len()), small(self.gpus.len())];
        key.extend(self.kinds.iter().map(|&k| k as u32));
        key.extend(self.gpus.iter().flat_map(|g| [small(g.node), g.number, g.capability]));
        for net in &self.nets {
            key.extend([small(net.node), net.nic, net.bw.to_bits(), net.latency.to_bits(), u32::from(net.gdr)]);
        }
        for link in &self.links {
            key.extend([small(link.to), link.kind as u32, link.bw.to_bits()]);
        }
        key
    }

    fn node(&mut self, kind: NodeKind) -> usize {
        self.kinds.push(kind);
        self.links_of.push(Vec::new());
        self.kinds.len() - 1
    }

    /// One direction; several links of one kind between two nodes become one.
    fn connect(&mut self, from: usize, to: usize, kind: LinkType, bw: f32) {
        let known = self.links_of[from].iter().copied().find(|&l| self.links[l].to == to && self.links[l].kind == kind);
        if let Some(link) = known {
            self.links[link].bw += bw;
            return;
        }
        // The other direction is listed on its own: until then it carries nothing.
        let first = self.links.len();
        self.links.push(Link { to, kind, bw, back: first + 1, to_old_gpu: self.is_old_gpu(to) });
        self.links.push(Link { to: from, kind, bw: 0.0, back: first, to_old_gpu: self.is_old_gpu(from) });
        self.links_of[from].push(first);
        self.links_of[to].push(first + 1);
    }

    fn is_old_gpu(&self, node: usize) -> bool {
        self.gpus.iter().any(|g| g.node == node && g.capability < 80)
    }

    /// NICs whose port leads somewhere; NCCL skips ports that are down.
    fn add_nets(&mut self, topology: &Topology, host: &Host, node_of: &mut FxHashMap<VertexId, usize>) {
        let several = topology.hosts().len() > 1;
        let capability = self.gpus.iter().map(|g| g.capability).min().unwrap_or(0);
        let sockets = self.transport.interface != Interface::Data;
        let mut cards: FxHashMap<u32, usize> = FxHashMap::default();
        for device in nic_devices(topology, host, &self.transport) {
            let up = |v: VertexId| !several || topology.links_from(v).any(|(_, _, l)| l.kind.is_network());
            let nics = || device.iter().copied().filter(|&v| up(v)).filter_map(|v| topology.nic(v));
            let Some(first) = nics().next() else { continue };
            let known = first.card.and_then(|card| cards.get(&card).copied());
            let node = known.unwrap_or_else(|| self.node(NodeKind::Nic));
            // The ports of a card share its PCIe link, also as devices of their own; EFA NICs have one each.
            let links = match first.card {
                Some(card) => usize::from(cards.insert(card, node).is_none()),
                None => device.len(),
            };
            for &vertex in device.iter().filter(|&&v| up(v)).take(links) {
                node_of.insert(vertex, node);
            }
            let bw = nics().map(|n| n.rate.gb_per_s()).sum::<f64>() as f32;
            let port = self.node(NodeKind::Net);
            self.connect(node, port, LinkType::Net, bw);
            self.connect(port, node, LinkType::Net, bw);
            // Plugins of libfabric alone report one, and what they are told to.
            let libfabric = matches!(first.kind, LinkKind::Efa | LinkKind::Slingshot);
            let latency = match self.transport.net_latency.filter(|_| libfabric).or(first.latency) {
                _ if sockets => 0.0,
                Some(known) => known.as_us() as f32,
                None if first.kind == LinkKind::Efa => aws::latency_us(capability, first.rate.gb_per_s()),
                None => 0.0,
            };
            let gdr = first.gpudirect && !sockets;
            self.nets.push(Net { node: port, nic: host.first_nic + first.index, bw, latency, gdr });
        }
    }

    fn add_links(&mut self, topology: &Topology, node_of: &FxHashMap<VertexId, usize>) {
        let mut ordered: Vec<(&VertexId, &usize)> = node_of.iter().collect();
        ordered.sort();
        let port = |v: VertexId| topology.nic(v).map(|n| n.rate);
        for (&vertex, &from) in ordered {
            for (_, next, link) in topology.links_from(vertex) {
                let Some(&to) = node_of.get(&next) else { continue };
                let rate = link.rate.gb_per_s() as f32;
                let capability = |node| self.gpus.iter().find(|g: &&Gpu| g.node == node).map(|g| g.capability);
                let (kind, bw) = match link.kind {
                    LinkKind::Nvlink => {
                        let capability = capability(from).or_else(|| capability(to)).unwrap_or(90);
                        (LinkType::Nvlink, link.width as f32 * nvlink::counted(capability) as f32)
                    }
                    LinkKind::C2c => (LinkType::C2c, rate),
                    // A NIC of which no PCIe device is known has its own rate as its only limit.
                    LinkKind::Pcie if port(vertex) == Some(link.rate) || port(next) == Some(link.rate) => {
                        (LinkType::Pci, LOC_BW)
                    }
                    LinkKind::Pcie => (LinkType::Pci, rate),
                    LinkKind::CpuInterconnect => (LinkType::Sys, rate),
                    _ => continue,
                };
                self.connect(from, to, kind, bw);
            }
        }
    }
}

//! The machine as a checked graph: GPUs, switches, NICs and the links between them.
//!
//! A directed multigraph: every link is one direction with its nominal rate, parallel links
//! are separate edges or one edge with a `width`. Latencies and efficiencies are not here:
//! they are measured, and live in the [`crate::profile::Profile`].

use std::sync::Arc;

use petgraph::graph::{DiGraph, EdgeIndex, NodeIndex};
use petgraph::visit::EdgeRef;
use thiserror::Error;

use crate::ids::{HostId, LinkId, Rank, VertexId};
use crate::nccl::Version;
use crate::units::{Bandwidth, Bytes, SimDuration};

/// What carries bytes between two vertices.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkKind {
    /// NVLink, GPU to GPU or GPU to NVSwitch.
    Nvlink,
    /// NVLink chip-to-chip, GPU to CPU.
    C2c,
    /// PCI Express.
    Pcie,
    /// Between CPU sockets.
    CpuInterconnect,
    /// InfiniBand.
    Infiniband,
    /// RDMA over converged Ethernet.
    Roce,
    /// AWS Elastic Fabric Adapter.
    Efa,
    /// HPE Slingshot.
    Slingshot,
    /// Ethernet without RDMA: TCP sockets.
    Ethernet,
}

impl LinkKind {
    /// All kinds.
    pub const ALL: &'static [Self] = &[
        Self::Nvlink,
        Self::C2c,
        Self::Pcie,
        Self::CpuInterconnect,
        Self::Infiniband,
        Self::Roce,
        Self::Efa,
        Self::Slingshot,
        Self::Ethernet,
    ];

    /// Whether it leaves the host.
    pub fn is_network(self) -> bool {
        matches!(self, Self::Infiniband | Self::Roce | Self::Efa | Self::Slingshot | Self::Ethernet)
    }

    /// The name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nvlink => "nvlink",
            Self::C2c => "c2c",
            Self::Pcie => "pcie",
            Self::CpuInterconnect => "cpu_interconnect",
            Self::Infiniband => "infiniband",
            Self::Roce => "roce",
            Self::Efa => "efa",
            Self::Slingshot => "slingshot",
            Self::Ethernet => "ethernet",
        }
    }
}

/// One direction of a link, or of `width` equal links used as one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// What it is.
    pub kind: LinkKind,
    /// Nominal rate of all `width` together, one direction.
    pub rate: Bandwidth,
    /// How many physical links (NVLink) or lanes (PCIe) make it up.
    pub width: u32,
}

/// A GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gpu {
    /// Index inside its host, from 0.
    pub index: u32,
    /// Product, such as `H100-SXM5-80GB`; empty where the source does not say.
    pub model: String,
    /// Compute capability times ten: H100 is 90; 0 where the source does not say.
    pub compute_capability: u32,
    /// Nominal memory rate.
    pub memory_rate: Option<Bandwidth>,
    /// PCI bus id as the source writes it.
    pub bus_id: Option<String>,
}

impl Gpu {
    /// Its product family in the model's or a driver's name: `H200` of `H200-SXM5-141GB`, `RTX-6000D` of that; the whole name
    /// where it has no number. Empty where the source does not say.
    pub fn family(&self) -> String {
        family(&self.model)
    }

    /// Its L2 cache, by compute capability: the largest of products that share one. Unknown of other GPUs.
    ///
    /// # Source
    /// NVIDIA's white papers on V100, Turing, A100, GA102, Ada and H100; Chips and Cheese on B200 (2025).
    pub fn l2(&self) -> Option<Bytes> {
        let mb = match self.compute_capability {
            70 | 75 | 86 => 6,
            80 => 40,
            89 => 96,
            90 => 50,
            100 | 103 => 126,
            _ => return None,
        };
        Some(Bytes(mb * 1_000_000))
    }
}

/// [`Gpu::family`] of a name.
pub fn family(name: &str) -> String {
    let words: Vec<&str> = name.split([' ', '-', '_']).filter(|word| !word.is_empty()).collect();
    let has_digit = |word: &&str| word.bytes().any(|b| b.is_ascii_digit());
    let Some(last) = words.iter().position(has_digit) else { return name.to_owned() };
    let first = words[..last].iter().position(|word| *word == "RTX").unwrap_or(last);
    words[first..=last].join("-")
}

/// A network interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Nic {
    /// Index inside its host, from 0.
    pub index: u32,
    /// Device name, such as `mlx5_0`.
    pub name: String,
    /// Fabric it speaks.
    pub kind: LinkKind,
    /// Port rate, one direction.
    pub rate: Bandwidth,
    /// Whether it reads and writes GPU memory itself.
    pub gpudirect: bool,
    /// At which it reads and at which it writes GPU memory itself, where what is between them carries less than
    /// its links.
    pub gpudirect_rate: Option<Bandwidth>,
    /// Which rail of a rail-optimised fabric it is on.
    pub rail: Option<u32>,
    /// Which card of its host it is a port of, where a card has several.
    pub card: Option<u32>,
    /// For ssh and storage, not for collectives.
    pub management: bool,
    /// What it reports to NCCL as its latency, where that is known.
    pub latency: Option<SimDuration>,
}

/// What a vertex is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VertexKind {
    /// A GPU.
    Gpu(Gpu),
    /// An NVSwitch, or all NVSwitches of a host as one.
    NvSwitch,
    /// A PCIe switch or bridge.
    PcieSwitch,
    /// A CPU socket or NUMA node.
    Cpu {
        /// `GenuineIntel`, `AuthenticAMD`, ...; empty where unknown.
        vendor: String,
    },
    /// A NIC.
    Nic(Nic),
    /// A switch of the network: level 0 is nearest to the hosts.
    NetSwitch {
        /// Level above the hosts, from 0.
        level: u32,
    },
}

/// An element of the graph.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Vertex {
    /// Unique name, such as `host3/gpu0` or `leaf2`.
    pub name: String,
    /// What it is.
    pub kind: VertexKind,
    /// The host it is in; none for switches of the network.
    pub host: Option<HostId>,
}

/// Software that decides what NCCL does.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Software {
    /// NCCL version, such as `2.28.9`.
    pub nccl: Option<Version>,
    /// Network or tuner plugin, such as `aws-ofi-nccl`.
    pub plugin: Option<String>,
    /// Variables that it is run with, such as `NCCL_NVLS_ENABLE`.
    pub env: Vec<(String, String)>,
    /// The driver does not offer NVLink multicast, as in many virtual machines.
    pub multicast_off: bool,
}

/// A topology that cannot be simulated.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum TopologyError {
    /// There is nothing that could take part in a collective.
    #[error("the topology `{0}` has no GPU")]
    NoGpu(String),
    /// Two vertices with one name.
    #[error("the name `{0}` is used twice")]
    DuplicateName(String),
    /// A GPU that cannot reach another.
    #[error("`{from}` cannot reach `{to}`: no path of links between them")]
    Disconnected {
        /// The GPU that cannot send.
        from: String,
        /// The GPU it cannot reach.
        to: String,
    },
    /// More vertices than any cluster has.
    #[error("the topology has {0} vertices; at most {MAX_VERTICES} are supported")]
    TooLarge(usize),
    /// A rank on something else.
    #[error("`{0}` is not a GPU and cannot hold a rank")]
    NotAGpu(String),
    /// Two ranks on one GPU.
    #[error("two ranks are placed on `{0}`; each GPU holds one rank")]
    TwoRanks(String),
    /// A link to nowhere.
    #[error("a link joins `{0}` to itself")]
    SelfLink(String),
}

/// Bound on vertices: 100,000 GPUs with their NICs and switches; keeps hostile files harmless.
pub const MAX_VERTICES: usize = 1_000_000;

/// A checked machine: at least one GPU, every GPU reaches every other, every rate positive.
#[derive(Clone, Debug)]
pub struct Topology {
    /// Name of the machine.
    pub name: String,
    /// What was assumed because the source does not say; shown to the user.
    pub assumptions: Vec<String>,
    /// Software that the machine is known to run.
    pub software: Software,
    /// Name of the profile that fits this hardware.
    pub profile: Option<String>,
    /// Seed of the network's static hashing, which pins each flow to one of several equal ways;
    /// none where packets use all of them (adaptive routing, spraying).
    pub hash: Option<u64>,
    /// Whether the switches between hosts combine what goes through them (SHARP).
    pub sharp: bool,
    graph: Arc<DiGraph<Vertex, Link>>,
    /// By vertex: the links that leave it, in the order they were added.
    out: Arc<[Vec<LinkId>]>,
    gpus: Vec<NodeIndex>,
    hosts: Arc<[Host]>,
    /// By first host: the hosts of an NVLink domain.
    nodes: Arc<[Vec<HostId>]>,
}

/// A machine of the cluster.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// Name, such as `gpu017`.
    pub name: String,
    /// Its GPUs, in rank order.
    pub gpus: Vec<VertexId>,
    /// Its NICs that are up, without those for management.
    pub nics: Vec<VertexId>,
    /// Its NICs for management that are joined to a network.
    pub management: Vec<VertexId>,
    /// Its CPUs.
    pub cpus: Vec<VertexId>,
    /// First host of its NVLink domain: itself where NVLink does not leave the host.
    pub node: HostId,
    /// GPUs of the hosts before it in its NVLink domain.
    pub first_gpu: u32,
    /// Numbers that the NICs of the hosts before it take in its NVLink domain: added to the number
    /// of a NIC in its host, it makes that in the domain.
    pub first_nic: u32,
    /// Its drives and ports to object stores, where they are known.
    pub storage: Option<Storage>,
}

/// Where a host keeps bytes beside its memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Storage {
    /// NVMe drives that share its bytes evenly.
    pub drives: u32,
    /// Nominal rate at which one of them reads.
    pub read: Bandwidth,
    /// Nominal rate at which one of them writes.
    pub write: Bandwidth,
    /// Rate of the ports to object stores, one direction, where the host has some.
    pub network: Option<Bandwidth>,
}

/// Builds a [`Topology`].
#[derive(Clone, Debug, Default)]
pub struct TopologyBuilder {
    name: String,
    /// See [`Topology::assumptions`].
    pub assumptions: Vec<String>,
    /// See [`Topology::software`].
    pub software: Software,
    /// See [`Topology::profile`].
    pub profile: Option<String>,
    /// See [`Topology::hash`].
    pub hash: Option<u64>,
    /// See [`Topology::sharp`].
    pub sharp: bool,
    graph: DiGraph<Vertex, Link>,
    hosts: Vec<String>,
    storage: Vec<(HostId, Storage)>,
}

fn node(id: VertexId) -> NodeIndex {
    NodeIndex::new(id.index())
}

fn vertex_id(index: NodeIndex) -> VertexId {
    VertexId(u32::try_from(index.index()).unwrap_or(u32::MAX))
}

fn link_id(index: EdgeIndex) -> LinkId {
    LinkId(u32::try_from(index.index()).unwrap_or(u32::MAX))
}

/// By vertex: the links that leave it, in the order they were added.
fn links_out(graph: &DiGraph<Vertex, Link>) -> Vec<Vec<LinkId>> {
    let mut out = vec![Vec::new(); graph.node_count()];
    for edge in graph.edge_references() {
        out[edge.source().index()].push(link_id(edge.id()));
    }
    out
}

impl TopologyBuilder {
    /// Starts an empty machine.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Adds a host; ranks are numbered in the order of hosts, then of GPUs.
    pub fn host(&mut self, name: impl Into<String>) -> HostId {
        self.hosts.push(name.into());
        HostId(u32::try_from(self.hosts.len() - 1).unwrap_or(u32::MAX))
    }

    /// Says what storage a host has.
    pub fn store(&mut self, host: HostId, storage: Storage) {
        self.storage.push((host, storage));
    }

    /// Adds a vertex.
    pub fn vertex(&mut self, name: impl Into<String>, kind: VertexKind, host: Option<HostId>) -> VertexId {
        vertex_id(self.graph.add_node(Vertex { name: name.into(), kind, host }))
    }

    /// Adds one direction of a link.
    pub fn link(&mut self, from: VertexId, to: VertexId, link: Link) {
        self.graph.add_edge(node(from), node(to), link);
    }

    /// Adds both directions of a link.
    pub fn duplex(&mut self, a: VertexId, b: VertexId, link: Link) {
        self.link(a, b, link);
        self.link(b, a, link);
    }

    /// How many vertices there are so far.
    pub fn len(&self) -> usize {
        self.graph.node_count()
    }

    /// Whether nothing was added yet.
    pub fn is_empty(&self) -> bool {
        self.graph.node_count() == 0
    }

    /// Checks the whole.
    ///
    /// # Errors
    /// No GPU, a name twice, a self link, too many vertices, or a GPU that cannot reach another.
    pub fn build(self) -> Result<Topology, TopologyError> {
        let graph = self.graph;
        if graph.node_count() > MAX_VERTICES {
            return Err(TopologyError::TooLarge(graph.node_count()));
        }
        let mut names = std::collections::HashSet::new();
        for vertex in graph.node_weights() {
            if !names.insert(vertex.name.as_str()) {
                return Err(TopologyError::DuplicateName(vertex.name.clone()));
            }
        }
        if let Some(edge) = graph.edge_references().find(|e| e.source() == e.target()) {
            return Err(TopologyError::SelfLink(graph[edge.source()].name.clone()));
        }
        let mut hosts: Vec<Host> =
            (0..).zip(self.hosts).map(|(index, name)| Host { name, node: HostId(index), ..Host::default() }).collect();
        for (host, storage) in self.storage {
            if let Some(host) = hosts.get_mut(host.index()) {
                host.storage = Some(storage);
            }
        }
        let several = hosts.len() > 1;
        for index in graph.node_indices() {
            let vertex = &graph[index];
            let Some(host) = vertex.host.and_then(|h| hosts.get_mut(h.index())) else {
                continue;
            };
            match &vertex.kind {
                VertexKind::Gpu(_) => host.gpus.push(vertex_id(index)),
                VertexKind::Cpu { .. } => host.cpus.push(vertex_id(index)),
                VertexKind::Nic(nic) => {
                    // Among several hosts a port without a cable is down.
                    let up = graph.edges(index).any(|e| e.weight().kind.is_network());
                    match nic.management {
                        true if up => host.management.push(vertex_id(index)),
                        false if up || !several => host.nics.push(vertex_id(index)),
                        _ => {}
                    }
                }
                _ => {}
            }
        }
        // NVSwitches outside of any host join the hosts of an NVLink domain.
        for index in graph.node_indices().filter(|&i| graph[i].kind == VertexKind::NvSwitch && graph[i].host.is_none())
        {
            let members: Vec<HostId> = graph.neighbors_undirected(index).filter_map(|n| graph[n].host).collect();
            let Some(first) = members.iter().min().copied() else { continue };
            for member in members {
                if let Some(host) = hosts.get_mut(member.index()) {
                    host.node = first;
                }
            }
        }
        let gpu_index = |id: &VertexId| match &graph[node(*id)].kind {
            VertexKind::Gpu(gpu) => gpu.index,
            _ => u32::MAX,
        };
        for host in &mut hosts {
            host.gpus.sort_by_key(gpu_index);
        }
        let mut nodes: Vec<Vec<HostId>> = vec![Vec::new(); hosts.len()];
        let mut taken = vec![(0, 0); hosts.len()];
        for (index, host) in (0..).zip(&mut hosts) {
            nodes[host.node.index()].push(HostId(index));
            let (gpus, nics) = &mut taken[host.node.index()];
            (host.first_gpu, host.first_nic) = (*gpus, *nics);
            let numbers = host.nics.iter().chain(&host.management).filter_map(|&n| match &graph[node(n)].kind {
                VertexKind::Nic(nic) => Some(nic.index.saturating_add(1)),
                _ => None,
            });
            *gpus += u32::try_from(host.gpus.len()).unwrap_or(0);
            *nics = nics.saturating_add(numbers.max().unwrap_or(0));
        }
        let gpus: Vec<NodeIndex> = hosts.iter().flat_map(|h| &h.gpus).map(|&id| node(id)).collect();
        let topology = Topology {
            name: self.name,
            assumptions: self.assumptions,
            software: self.software,
            profile: self.profile,
            hash: self.hash,
            sharp: self.sharp,
            out: links_out(&graph).into(),
            graph: Arc::new(graph),
            gpus,
            hosts: hosts.into(),
            nodes: nodes.into(),
        };
        topology.check_connected()?;
        Ok(topology)
    }
}

impl TopologyBuilder {
    /// As [`Self::build`], with ranks on the GPUs that they have in `other`, from which it was edited.
    ///
    /// # Errors
    /// As [`Self::build`].
    pub fn build_like(self, other: &Topology) -> Result<Topology, TopologyError> {
        let built = self.build()?;
        if built.gpus == other.gpus {
            return Ok(built);
        }
        built.placed(&other.gpus.iter().map(|&gpu| vertex_id(gpu)).collect::<Vec<_>>())
    }
}

impl Topology {
    /// Every GPU must reach every other: two searches from rank 0, with and against the links.
    fn check_connected(&self) -> Result<(), TopologyError> {
        let Some(&first) = self.gpus.first() else {
            return Err(TopologyError::NoGpu(self.name.clone()));
        };
        for direction in [petgraph::Outgoing, petgraph::Incoming] {
            let mut seen = vec![false; self.graph.node_count()];
            let mut stack = vec![first];
            seen[first.index()] = true;
            while let Some(at) = stack.pop() {
                for next in self.graph.neighbors_directed(at, direction) {
                    if !std::mem::replace(&mut seen[next.index()], true) {
                        stack.push(next);
                    }
                }
            }
            if let Some(&lost) = self.gpus.iter().find(|g| !seen[g.index()]) {
                let (from, to) = if direction == petgraph::Outgoing { (first, lost) } else { (lost, first) };
                return Err(TopologyError::Disconnected {
                    from: self.graph[from].name.clone(),
                    to: self.graph[to].name.clone(),
                });
            }
        }
        Ok(())
    }

    /// The same machine with other GPUs behind its ranks: rank `i` runs on `gpus[i]`. GPUs that
    /// are not named take no part. Shares the machine, so it is cheap.
    ///
    /// # Errors
    /// No GPU, a vertex that is none, or one twice.
    pub fn placed(&self, gpus: &[VertexId]) -> Result<Self, TopologyError> {
        if gpus.is_empty() {
            return Err(TopologyError::NoGpu(self.name.clone()));
        }
        let mut seen = std::collections::HashSet::new();
        for &id in gpus {
            if self.gpu(id).is_none() {
                return Err(TopologyError::NotAGpu(self.vertex(id).name.clone()));
            }
            if !seen.insert(id) {
                return Err(TopologyError::TwoRanks(self.vertex(id).name.clone()));
            }
        }
        Ok(Self { gpus: gpus.iter().map(|&id| node(id)).collect(), ..self.clone() })
    }

    /// Whether it is the same machine, perhaps with other ranks.
    pub(crate) fn is_view_of(&self, whole: &Self) -> bool {
        Arc::ptr_eq(&self.graph, &whole.graph) && self.hash == whole.hash && self.sharp == whole.sharp
    }

    /// The machine of some hosts alone, joined by all switches, with ranks on the GPUs named; and, by link direction of that,
    /// which one of this machine it is.
    ///
    /// # Errors
    /// As [`Self::placed`]; GPUs that only other hosts join.
    pub(crate) fn of_hosts(&self, hosts: &[HostId], gpus: &[VertexId]) -> Result<(Self, Vec<LinkId>), TopologyError> {
        let mut builder = TopologyBuilder {
            assumptions: self.assumptions.clone(),
            software: self.software.clone(),
            profile: self.profile.clone(),
            hash: self.hash,
            sharp: self.sharp,
            ..TopologyBuilder::new(self.name.clone())
        };
        let mut number = vec![None; self.hosts.len()];
        for &host in hosts {
            let Host { name, storage, .. } = &self.hosts[host.index()];
            let new = builder.host(name.clone());
            number[host.index()] = Some(new);
            storage.iter().for_each(|&storage| builder.store(new, storage));
        }
        let mut known: Vec<Option<VertexId>> = Vec::with_capacity(self.graph.node_count());
        for Vertex { name, kind, host } in self.graph.node_weights() {
            let of = host.map(|host| number[host.index()]);
            known.push((of != Some(None)).then(|| builder.vertex(name.clone(), kind.clone(), of.flatten())));
        }
        let mut links = Vec::new();
        for (id, from, to, link) in self.links() {
            if let (Some(from), Some(to)) = (known[from.index()], known[to.index()]) {
                builder.link(from, to, link);
                links.push(id);
            }
        }
        let gpus: Vec<VertexId> = gpus.iter().filter_map(|gpu| known[gpu.index()]).collect();
        Ok((builder.build()?.placed(&gpus)?, links))
    }

    /// The same machine on the way to another one: `kind` gives what each vertex is to be, `link`
    /// each link direction between its ends, or none where it is cut. Vertices keep their ids.
    ///
    /// [`TopologyBuilder::build_like`] keeps the placement of ranks too.
    pub fn edited(
        &self,
        kind: impl Fn(&Vertex) -> VertexKind,
        link: impl Fn(&Vertex, &Vertex, Link) -> Option<Link>,
    ) -> TopologyBuilder {
        let mut graph = DiGraph::with_capacity(self.graph.node_count(), self.graph.edge_count());
        for vertex in self.graph.node_weights() {
            graph.add_node(Vertex { kind: kind(vertex), ..vertex.clone() });
        }
        for edge in self.graph.edge_references() {
            if let Some(link) = link(&self.graph[edge.source()], &self.graph[edge.target()], *edge.weight()) {
                graph.add_edge(edge.source(), edge.target(), link);
            }
        }
        TopologyBuilder {
            name: self.name.clone(),
            assumptions: self.assumptions.clone(),
            software: self.software.clone(),
            profile: self.profile.clone(),
            hash: self.hash,
            sharp: self.sharp,
            graph,
            hosts: self.hosts.iter().map(|h| h.name.clone()).collect(),
            storage: (0..).zip(self.hosts.iter()).filter_map(|(i, h)| Some((HostId(i), h.storage?))).collect(),
        }
    }

    /// The same machine with some links changed, and NICs at the rate of the fastest link out of them.
    #[must_use]
    pub fn with_links(&self, change: impl Fn(LinkId, Link) -> Link) -> Self {
        let mut graph = (*self.graph).clone();
        for edge in graph.edge_indices() {
            graph[edge] = change(link_id(edge), graph[edge]);
        }
        for index in graph.node_indices() {
            let wire = graph.edges(index).map(|e| *e.weight()).filter(|l| l.kind.is_network()).map(|l| l.rate).max();
            if let (VertexKind::Nic(nic), Some(rate)) = (&mut graph[index].kind, wire) {
                nic.rate = rate;
            }
        }
        Self { graph: Arc::new(graph), ..self.clone() }
    }

    /// Number of GPUs that ranks run on, which is the number of ranks it can hold.
    pub fn ranks(&self) -> u32 {
        u32::try_from(self.gpus.len()).unwrap_or(u32::MAX)
    }

    /// The hosts, in rank order.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The GPU of a rank.
    ///
    /// # Panics
    /// Where the machine has no such rank: see [`Self::ranks`].
    pub fn gpu_of(&self, rank: Rank) -> VertexId {
        vertex_id(self.gpus[rank.index()])
    }

    /// The host of a rank.
    ///
    /// # Panics
    /// Where the machine has no such rank.
    pub fn host_of(&self, rank: Rank) -> HostId {
        self.graph[self.gpus[rank.index()]].host.unwrap_or_default()
    }

    /// The first host of a rank's NVLink domain: what NCCL calls its node.
    ///
    /// # Panics
    /// Where the machine has no such rank.
    pub fn node_of(&self, rank: Rank) -> HostId {
        self.hosts.get(self.host_of(rank).index()).map_or(HostId(0), |h| h.node)
    }

    /// The hosts of an NVLink domain, given its first one.
    pub fn hosts_of_node(&self, node: HostId) -> impl Iterator<Item = &Host> {
        self.nodes.get(node.index()).into_iter().flatten().map(|h| &self.hosts[h.index()])
    }

    /// The number that a rank's GPU has among all of its NVLink domain.
    pub fn number_in_node(&self, rank: Rank) -> u32 {
        let (host, gpu) = (&self.hosts[self.host_of(rank).index()], self.gpu_of(rank));
        let place = host.gpus.iter().position(|&g| g == gpu).unwrap_or(0);
        host.first_gpu + u32::try_from(place).unwrap_or(0)
    }

    /// A vertex.
    pub fn vertex(&self, id: VertexId) -> &Vertex {
        &self.graph[node(id)]
    }

    /// A vertex by its name.
    pub fn find(&self, name: &str) -> Option<VertexId> {
        self.graph.node_indices().find(|&i| self.graph[i].name == name).map(vertex_id)
    }

    /// The GPU at a vertex, if it is one.
    pub fn gpu(&self, id: VertexId) -> Option<&Gpu> {
        match &self.vertex(id).kind {
            VertexKind::Gpu(gpu) => Some(gpu),
            _ => None,
        }
    }

    /// The NIC at a vertex, if it is one.
    pub fn nic(&self, id: VertexId) -> Option<&Nic> {
        match &self.vertex(id).kind {
            VertexKind::Nic(nic) => Some(nic),
            _ => None,
        }
    }

    /// All vertices.
    pub fn vertices(&self) -> impl Iterator<Item = (VertexId, &Vertex)> {
        self.graph.node_indices().map(|i| (vertex_id(i), &self.graph[i]))
    }

    /// All link directions: id, from, to, link.
    pub fn links(&self) -> impl Iterator<Item = (LinkId, VertexId, VertexId, Link)> {
        self.graph
            .edge_references()
            .map(|e| (link_id(e.id()), vertex_id(e.source()), vertex_id(e.target()), *e.weight()))
    }

    /// Number of link directions.
    pub fn link_count(&self) -> usize {
        self.graph.edge_count()
    }

    /// A link direction.
    pub fn link(&self, id: LinkId) -> Link {
        self.graph[EdgeIndex::new(id.index())]
    }

    /// Both ends of a link direction: from, to.
    pub fn ends(&self, id: LinkId) -> (VertexId, VertexId) {
        let (from, to) =
            self.graph.edge_endpoints(EdgeIndex::new(id.index())).unwrap_or((NodeIndex::new(0), NodeIndex::new(0)));
        (vertex_id(from), vertex_id(to))
    }

    /// The link whose rate bounds what goes over a link: of the PCIe links of ports of one card, which has one slot, that
    /// of its first port; of any other the link itself.
    pub fn carrier(&self, id: LinkId) -> LinkId {
        if self.link(id).kind != LinkKind::Pcie {
            return id;
        }
        let (from, to) = self.ends(id);
        let port = if self.nic(from).is_some() { from } else { to };
        let first = self.nic(port).and_then(|nic| nic.card).zip(self.vertex(port).host).and_then(|(card, host)| {
            self.hosts[host.index()]
                .nics
                .iter()
                .copied()
                .find(|&v| self.nic(v).is_some_and(|nic| nic.card == Some(card)))
        });
        let between = match first {
            Some(first) if port == from => self.link_between(first, to),
            Some(first) => self.link_between(from, first),
            None => None,
        };
        between.unwrap_or(id)
    }

    /// A link direction for people: `host0/gpu3 -> host0/nvswitch`.
    pub fn link_name(&self, id: LinkId) -> String {
        let (from, to) = self.ends(id);
        format!("{} -> {}", self.vertex(from).name, self.vertex(to).name)
    }

    /// Links that leave a vertex, in the order they were added: id, to, link.
    pub fn links_from(&self, id: VertexId) -> impl Iterator<Item = (LinkId, VertexId, Link)> {
        self.out[id.index()].iter().map(|&link| (link, self.ends(link).1, self.link(link)))
    }

    /// The first link that was added from one vertex to another; looked for where it ends: switches have many that leave.
    pub fn link_between(&self, from: VertexId, to: VertexId) -> Option<LinkId> {
        let arriving = self.graph.edges_directed(node(to), petgraph::Incoming);
        arriving.filter(|edge| edge.source() == node(from)).map(|edge| link_id(edge.id())).min()
    }

    /// The lowest compute capability of the machine; 0 where no GPU says.
    pub fn compute_capability(&self) -> u32 {
        self.gpus.iter().filter_map(|&g| self.gpu(vertex_id(g))).map(|g| g.compute_capability).min().unwrap_or(0)
    }

    /// Sum of the rates that leave (or enter) a vertex over links of a kind.
    pub fn total_rate(&self, id: VertexId, kind: LinkKind) -> u64 {
        self.links_from(id).filter(|(_, _, l)| l.kind == kind).map(|(_, _, l)| l.rate.get()).sum()
    }
}

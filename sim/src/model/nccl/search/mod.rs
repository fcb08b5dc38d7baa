//! NCCL's graph search: which channels it lays through a machine, and how fast it takes them to be.
//!
//! Each node (a host, or the hosts that NVLink joins) is searched on its own (`find.rs`) in NCCL's view
//! of it (`system.rs`, `paths.rs`); then all ranks agree on the worst and share out channels
//! (`connect.rs`). Nodes that are alike are searched once. Left out: joining NICs of several cards
//! (`NCCL_NET_MERGE_LEVEL` above `PORT`), flattening of Broadcom switches and GPUs shared by two ranks.

mod connect;
mod find;
mod paths;
mod system;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustc_hash::FxHashMap;

use super::graphs::{ChannelPath, Graph, Graphs, Pattern};
use super::settings::NcclSettings;
use crate::ids::{Rank, VertexId};
use crate::network::{CrossNic, Transport};
use crate::topology::Topology;
use connect::{Member, Searched};
use find::{Found, Wanted, find};
use paths::{Paths, class};
use system::System;

/// GPUs of a node up to which it is searched: NCCL keeps at most so many nodes (`NCCL_TOPO_MAX_NODES`).
const MOST_GPUS: usize = 576;
/// GPUs of a node from which the search, which is as deep as it has channels and GPUs, needs a stack of
/// its own.
const DEEP: usize = 16;
/// Room for [`find`]'s 2^14 steps at less than 4 KiB each.
const STACK: usize = 64 << 20;
/// Channels of ring and tree graphs: half of NCCL's `MAXCHANNELS`.
const MOST_CHANNELS: usize = 32;

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

/// Graphs of one node, each taken on every node in place of the search where it has channels.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Given {
    /// The ring graph; `paths` holds one node.
    pub ring: Option<Graph>,
    /// The tree graph.
    pub tree: Option<Graph>,
    /// The graph of CollNet chain.
    pub collnet_chain: Option<Graph>,
    /// The graph of CollNet direct.
    pub collnet_direct: Option<Graph>,
    /// The graph of NVLS.
    pub nvls: Option<Graph>,
}

impl Given {
    /// Checks that the first `ranks` GPUs of a machine have what the graphs name: each channel visits
    /// every GPU of a host once, and its NICs exist. What does not fit a host is searched for there.
    ///
    /// # Errors
    /// What is missing, in words.
    pub fn check(&self, topology: &Topology, ranks: u32) -> Result<(), String> {
        let ranks = (0..ranks.min(topology.ranks())).map(Rank);
        for node in nodes(topology, ranks, &Transport::default()) {
            let gpus: Vec<u32> = node.gpus.iter().map(|g| g.0).collect();
            let first = topology.node_of(Rank(node.ranks[0]));
            let numbers = |nics: &[VertexId], from: u32| -> Vec<u32> {
                nics.iter().filter_map(|&n| topology.nic(n)).map(|n| from + n.index).collect()
            };
            let nics: Vec<u32> =
                topology.hosts_of_node(first).flat_map(|host| numbers(&host.nics, host.first_nic)).collect();
            let graphs = [&self.ring, &self.tree, &self.collnet_chain, &self.collnet_direct, &self.nvls];
            for graph in graphs.into_iter().flatten() {
                let name = &topology.hosts()[first.index()].name;
                misfit(graph, &gpus, &nics).map_or(Ok(()), |what| Err(format!("host `{name}`: {what}")))?;
            }
        }
        Ok(())
    }
}

/// Why a graph cannot be that of a node with these GPUs and NICs.
fn misfit(graph: &Graph, gpus: &[u32], nics: &[u32]) -> Option<String> {
    let what = format!("{:?} graph", graph.pattern);
    let [paths] = graph.paths.as_slice() else { return Some(format!("the {what} is not that of one host")) };
    if paths.len() != graph.channels as usize || paths.len() > MOST_CHANNELS {
        return Some(format!("the {what} has {} channels; 1 to {MOST_CHANNELS} are possible", paths.len()));
    }
    for (channel, path) in paths.iter().enumerate() {
        let mut visited = path.gpus.clone();
        visited.sort_unstable();
        let whole = if graph.pattern == Pattern::Nvls { visited.len() == 1 } else { visited == gpus };
        if !whole || !visited.iter().all(|g| gpus.contains(g)) {
            return Some(format!(
                "channel {channel} of the {what} visits GPUs {:?}, but the GPUs with ranks are {gpus:?}",
                path.gpus
            ));
        }
        let (enter, leave) = path.nics.unwrap_or_default();
        if path.nics.is_some() && !(nics.contains(&enter) && nics.contains(&leave)) {
            return Some(format!("channel {channel} of the {what} uses NICs {enter} and {leave} of {}", nics.len()));
        }
    }
    None
}

/// The graphs that NCCL finds for the first `ranks` GPUs of a machine.
pub fn graphs(topology: &Topology, ranks: u32, options: &Options) -> Graphs {
    let ranks: Vec<Rank> = (0..ranks.min(topology.ranks())).map(Rank).collect();
    graphs_of(topology, &ranks, options, &Known::default())
}

/// What the search of a node depends on: NCCL's view of it, and the options.
type Asked = (Vec<u32>, String);

/// What was found, once it is.
type Place = Arc<OnceLock<Arc<Searched>>>;

/// Nodes that were searched, each once: views of one machine have nodes that are alike.
#[derive(Clone, Debug, Default)]
pub struct Known(Arc<Mutex<FxHashMap<Asked, Place>>>);

impl Known {
    /// How many nodes were searched.
    pub fn nodes(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn search(&self, system: &System, options: &Options, told: &str) -> Arc<Searched> {
        let asked = (system.key(), told.to_owned());
        // Others may look for other nodes meanwhile; who looks for this one waits.
        let place = Arc::clone(self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(asked).or_default());
        Arc::clone(place.get_or_init(|| Arc::new(search(system, options))))
    }
}

/// As [`graphs`] for some GPUs of a machine, given by their ranks in all of it, with what is `known` of their nodes.
/// Nodes come in the order of their first rank.
pub fn graphs_of(topology: &Topology, ranks: &[Rank], options: &Options, known: &Known) -> Graphs {
    let nodes = nodes(topology, ranks.iter().copied(), &options.transport);
    let mut vertices: Vec<Vec<VertexId>> = vec![Vec::new(); topology.hosts().len()];
    for (id, vertex) in topology.vertices() {
        if let Some(of) = vertex.host.and_then(|h| vertices.get_mut(h.index())) {
            of.push(id);
        }
    }
    let told = format!("{options:?}");
    let members = nodes
        .iter()
        .map(|node| {
            let system = System::new(topology, node, &vertices, nodes.len() > 1, options.transport);
            Member { gpus: node.gpus.len(), searched: known.search(&system, options, &told) }
        })
        .collect::<Vec<_>>();
    connect::agree(&members, options)
}

/// The ranks of a communicator that NCCL searches together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    /// In order.
    pub(crate) ranks: Vec<u32>,
    /// Number of each GPU in the node and its rank, by number: NCCL numbers GPUs by host and bus id.
    pub(crate) gpus: Vec<(u32, u32)>,
}

impl Node {
    /// The rank of the GPU with a number.
    pub(crate) fn rank(&self, number: u32) -> Option<u32> {
        self.gpus.binary_search_by_key(&number, |g| g.0).ok().map(|at| self.gpus[at].1)
    }
}

/// The nodes of a communicator in the order of their first rank ([`Transport::node_of`]).
pub(crate) fn nodes(topology: &Topology, ranks: impl Iterator<Item = Rank>, transport: &Transport) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    let mut index: FxHashMap<u32, usize> = FxHashMap::default();
    for rank in ranks {
        let of = transport.node_of(topology, rank);
        let at = *index.entry(of).or_insert_with(|| {
            nodes.push(Node::default());
            nodes.len() - 1
        });
        nodes[at].ranks.push(rank.0);
        nodes[at].gpus.push((topology.number_in_node(rank), rank.0));
    }
    for node in &mut nodes {
        node.ranks.sort_unstable();
        node.gpus.sort_unstable();
    }
    nodes
}

/// All graphs of one node.
fn search(system: &System, options: &Options) -> Searched {
    if system.gpus.len() <= DEEP {
        return search_here(system, options);
    }
    let deep = || search_here(system, options);
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, deep);
        thread.ok().and_then(|t| t.join().ok()).unwrap_or_else(|| Searched::in_order(system))
    })
}

fn search_here(system: &System, options: &Options) -> Searched {
    if system.gpus.len() > MOST_GPUS {
        return Searched::in_order(system);
    }
    let paths = Paths::new(system);
    let look = |pattern, min_channels, max_channels| {
        let found = find(system, &paths, Wanted { pattern, min_channels, max_channels });
        graph_of(system, &found)
    };
    let gpus: Vec<u32> = system.gpus.iter().map(|g| g.number).collect();
    let nics: Vec<u32> = system.nets.iter().map(|n| n.nic).collect();
    let of = |given: &Option<Graph>| given.clone().filter(|g| g.channels > 0 && misfit(g, &gpus, &nics).is_none());
    let given = &options.given;
    let ring = of(&given.ring).unwrap_or_else(|| look(Pattern::Ring, 1, MOST_CHANNELS));
    // Rings and trees share channels, so a tree must have as many.
    let same = ring.channels as usize;
    let tree = of(&given.tree).unwrap_or_else(|| look(Pattern::BalancedTree, same, same));
    let collnet = |graph: &Option<Graph>, pattern, min, max| {
        options.collnet.then(|| of(graph).unwrap_or_else(|| look(pattern, min, max)))
    };
    let collnet_chain = collnet(&given.collnet_chain, Pattern::Tree, same, same);
    let collnet_direct = collnet(&given.collnet_direct, Pattern::CollnetDirect, 1, MOST_CHANNELS);
    let nvls = options.multicast.then(|| of(&given.nvls).unwrap_or_else(|| look(Pattern::Nvls, 1, MOST_CHANNELS)));
    Searched::new(system, &paths, ring, tree, [collnet_chain, collnet_direct, nvls])
}

/// A found graph in the terms of others: GPUs and NICs by their numbers in the node.
fn graph_of(system: &System, found: &Found) -> Graph {
    let number = |g: u16| system.gpus[usize::from(g)].number;
    let nic = |n: usize| system.nets[n].nic;
    let paths = (0..found.channels)
        .map(|c| ChannelPath {
            nics: found.nets(c).filter(|_| system.inter).map(|(enter, leave)| (nic(enter), nic(leave))),
            gpus: found.gpus(c, system.gpus.len()).iter().map(|&g| number(g)).collect(),
        })
        .collect();
    Graph {
        pattern: found.pattern,
        channels: u32::try_from(found.channels).unwrap_or(0),
        speed_intra: decimal(found.bw_intra),
        speed_inter: decimal(found.bw_inter),
        latency_inter: decimal(found.latency),
        type_intra: class(found.type_intra),
        type_inter: class(found.type_inter),
        same_channels: found.same,
        cross_nic: found.cross_nic == CrossNic::Pairs,
        paths: vec![paths],
    }
}

/// The number that was meant: 17.5 and 0.12 as written, not their nearest 32-bit float.
fn decimal(bw: f32) -> f64 {
    (f64::from(bw) * 1e4).round() / 1e4
}

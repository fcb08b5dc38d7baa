//! NCCL's graph search: which channels it lays through a machine, and how fast it takes them to be.
//!
//! Each node (a host, or the hosts that NVLink joins) is searched on its own (`find.rs`, `channels.rs`) in
//! NCCL's view of it (`system.rs`, `paths.rs`); then all ranks agree on the worst and share out channels
//! (`connect.rs`). Nodes that are alike are searched once. Left out: joining NICs of several cards
//! (`NCCL_NET_MERGE_LEVEL` above `PORT`), flattening of Broadcom switches and GPUs shared by two ranks.

mod channels;
mod connect;
mod find;
mod given;
mod node;
mod options;
mod paths;
mod speeds;
mod system;

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::graphs::{ChannelPath, Graph, Graphs, Pattern};
use super::transport::{CrossNic, Transport};
use crate::ids::{Rank, VertexId};
use crate::measurement::PeerAccess;
use crate::memo::Memo;
use crate::topology::Topology;
use channels::Found;
use connect::{Member, Searched};
use find::{Wanted, find};
use given::{MOST_CHANNELS, misfit};
use node::gather;
use paths::{Paths, class, left_together};
use system::System;

pub use given::Given;
pub(crate) use node::Node;
pub use options::{Options, Sends};

/// GPUs of a node up to which it is searched: NCCL keeps at most so many nodes (`NCCL_TOPO_MAX_NODES`).
const MOST_GPUS: usize = 576;
/// GPUs of a node from which the search, which is as deep as it has channels and GPUs, needs a stack of
/// its own.
const DEEP: usize = 16;
/// Room for [`find`]'s 2^14 steps at less than 4 KiB each.
const STACK: usize = 64 << 20;
/// The graphs that NCCL finds for the first `ranks` GPUs of a machine.
pub fn graphs(topology: &Topology, ranks: u32, options: &Options) -> Graphs {
    let ranks: Vec<Rank> = (0..ranks.min(topology.ranks())).map(Rank).collect();
    graphs_of(topology, &ranks, options, &Known::default())
}

/// What the search of a node depends on: NCCL's view of it, and the options.
type Asked = (Vec<u32>, String);

/// Nodes that were searched, each once: views of one machine have nodes that are alike.
#[derive(Clone, Debug, Default)]
pub struct Known(Arc<Memo<Asked, Arc<Searched>>>);

/// Nodes of all machines that were searched in this process, at some 10 KB each.
static ALL: Memo<Asked, Arc<Searched>> = Memo::new(4096);

impl Known {
    /// How many nodes were searched.
    pub fn nodes(&self) -> usize {
        self.0.len()
    }

    fn search(&self, system: &System, options: &Options, told: &str) -> Arc<Searched> {
        let asked = (system.key(), told.to_owned());
        self.0.get(asked.clone(), || ALL.get(asked, || Arc::new(search(system, options))))
    }
}

/// As [`graphs`] for some GPUs of a machine, given by their ranks in all of it, with what is `known` of their nodes.
/// Nodes come in the order of their first rank.
pub fn graphs_of(topology: &Topology, ranks: &[Rank], options: &Options, known: &Known) -> Graphs {
    let nodes = nodes(topology, ranks.iter().copied(), &options.transport);
    let vertices = by_host(topology);
    let told = format!("{:?}", Options { sends: Sends::default(), ..options.clone() });
    let members = nodes
        .iter()
        .map(|node| {
            let system = System::new(topology, node, &vertices, nodes.len() > 1, options.transport);
            Member { gpus: node.gpus.len(), searched: known.search(&system, options, &told) }
        })
        .collect::<Vec<_>>();
    connect::agree(&members, options)
}

/// The nodes of a communicator in the order of their first rank. A host, or an NVLink domain, is several where GPUs
/// neither reach each other directly nor share host memory.
pub(crate) fn nodes(
    topology: &Topology,
    ranks: impl Iterator<Item = Rank> + Clone,
    transport: &Transport,
) -> Vec<Node> {
    let whole = gather(topology, ranks.clone(), |rank| transport.node_of(topology, rank));
    if transport.shm || transport.peer_access != PeerAccess::On {
        return whole;
    }
    let vertices = by_host(topology);
    let mut first: FxHashMap<u32, u32> = FxHashMap::default();
    for node in &whole {
        let together = left_together(&System::new(topology, node, &vertices, true, *transport));
        first.extend(node.gpus.iter().zip(together).map(|(&(_, rank), place)| (rank, node.gpus[place].1)));
    }
    gather(topology, ranks, |rank| first.get(&rank.0).copied().unwrap_or(rank.0))
}

/// The vertices of each host.
fn by_host(topology: &Topology) -> Vec<Vec<VertexId>> {
    let mut vertices: Vec<Vec<VertexId>> = vec![Vec::new(); topology.hosts().len()];
    for (id, vertex) in topology.vertices() {
        if let Some(of) = vertex.host.and_then(|h| vertices.get_mut(h.index())) {
            of.push(id);
        }
    }
    vertices
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

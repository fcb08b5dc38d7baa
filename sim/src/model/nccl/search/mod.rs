//! NCCL's graph search: which channels it lays through a machine, and how fast it takes them to be.
//!
//! Each host is searched on its own ([`find`]) in NCCL's view of it ([`system`], [`paths`]); then
//! all ranks agree on the worst and share out channels ([`connect`]). Hosts that are alike are
//! searched once. Left out: joining the NICs of one card (`NCCL_NET_MERGE_LEVEL`), flattening of
//! Broadcom switches, NVLink across hosts (MNNVL) and GPUs shared by two ranks.

mod connect;
mod find;
mod paths;
mod system;

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::graphs::{ChannelPath, Graph, Graphs, Pattern};
use crate::ids::{HostId, Rank, VertexId};
use crate::topology::Topology;
use connect::{Member, Searched};
use find::{Found, Wanted, find};
use paths::{Paths, class};
use system::System;

/// GPUs of a host up to which it is searched: NCCL keeps at most so many nodes (`NCCL_TOPO_MAX_NODES`).
const MOST_GPUS: usize = 576;
/// GPUs of a host from which the search, which is as deep as it has channels and GPUs, needs a stack of
/// its own.
const DEEP: usize = 16;
/// Room for [`find`]'s 2^14 steps at less than 4 KiB each.
const STACK: usize = 64 << 20;
/// Channels of ring and tree graphs: half of NCCL's `MAXCHANNELS`.
const MOST_CHANNELS: usize = 32;

/// What the search cannot see in a topology, and graphs that are given.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether NVLink SHARP may be used (`NCCL_NVLS_ENABLE` and a driver that has it).
    pub multicast: bool,
    /// Whether the network reduces and its plugin is in use (`NCCL_COLLNET_ENABLE`).
    pub collnet: bool,
    /// Graphs to take in place of the search (`NCCL_GRAPH_FILE`).
    pub given: Given,
}

impl Default for Options {
    fn default() -> Self {
        Self { multicast: true, collnet: false, given: Given::default() }
    }
}

/// Graphs of one host, each taken on every host in place of the search where it has channels.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Given {
    /// The ring graph; `paths` holds one host.
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
        let ranks: Vec<Rank> = (0..ranks.min(topology.ranks())).map(Rank).collect();
        for (host, gpus) in by_host(topology, &ranks) {
            let host = &topology.hosts()[host.index()];
            let nics: Vec<u32> = host.nics.iter().filter_map(|&n| topology.nic(n)).map(|n| n.index).collect();
            let graphs = [&self.ring, &self.tree, &self.collnet_chain, &self.collnet_direct, &self.nvls];
            for graph in graphs.into_iter().flatten() {
                misfit(graph, &gpus, &nics).map_or(Ok(()), |what| Err(format!("host `{}`: {what}", host.name)))?;
            }
        }
        Ok(())
    }
}

/// Why a graph cannot be that of a host with these GPUs and NICs.
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
    graphs_of(topology, &ranks, options)
}

/// The graphs that NCCL finds for some GPUs of a machine, given by their ranks in all of it. Hosts come
/// in the order of their first rank.
pub fn graphs_of(topology: &Topology, ranks: &[Rank], options: &Options) -> Graphs {
    let hosts = by_host(topology, ranks);
    let mut vertices: Vec<Vec<VertexId>> = vec![Vec::new(); topology.hosts().len()];
    for (id, vertex) in topology.vertices() {
        if let Some(of) = vertex.host.and_then(|h| vertices.get_mut(h.index())) {
            of.push(id);
        }
    }
    let mut known: FxHashMap<Vec<u32>, Arc<Searched>> = FxHashMap::default();
    let members = hosts
        .iter()
        .map(|(host, gpus)| {
            let at = host.index();
            let system = System::new(topology, &topology.hosts()[at], &vertices[at], gpus, hosts.len() > 1);
            let searched = known.entry(system.key()).or_insert_with(|| Arc::new(search(&system, options)));
            Member { gpus: gpus.len(), searched: Arc::clone(searched) }
        })
        .collect::<Vec<_>>();
    connect::agree(&members, options)
}

/// Hosts with the places of their GPUs, ascending: NCCL numbers the GPUs of a host by bus id.
fn by_host(topology: &Topology, ranks: &[Rank]) -> Vec<(HostId, Vec<u32>)> {
    let mut hosts: Vec<(HostId, Vec<u32>)> = Vec::new();
    let mut index: FxHashMap<HostId, usize> = FxHashMap::default();
    for &rank in ranks {
        let host = topology.host_of(rank);
        let gpus = &topology.hosts()[host.index()].gpus;
        let place = (0..).zip(gpus).find(|&(_, &g)| g == topology.gpu_of(rank)).map_or(0, |(i, _)| i);
        let at = *index.entry(host).or_insert_with(|| {
            hosts.push((host, Vec::new()));
            hosts.len() - 1
        });
        hosts[at].1.push(place);
    }
    for (_, gpus) in &mut hosts {
        gpus.sort_unstable();
    }
    hosts
}

/// All graphs of one host.
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

/// A found graph in the terms of others: GPUs and NICs by their numbers in the host.
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
        cross_nic: found.cross_nic != find::CrossNic::No,
        paths: vec![paths],
    }
}

/// The number that was meant: 17.5 and 0.12 as written, not their nearest 32-bit float.
fn decimal(bw: f32) -> f64 {
    (f64::from(bw) * 1e4).round() / 1e4
}

//! From schedule to machine: the order of ranks, routes between them, and laying a schedule on both.

mod lay;
mod route;
mod switches;
mod transport;

use std::sync::Arc;

use crate::ids::Rank;
use crate::model::nccl::graphs::{ChannelPath, Graph, Graphs, Pattern};
use crate::model::nccl::search;
use crate::schedule::{Chains, Order, Rail};
use crate::topology::Topology;

pub use lay::{Laid, LayError, ResourceName, lay, smallest_latency};
pub(crate) use route::nic_devices;
pub use route::{Hop, Leg, PathClass, Route, Router};
pub use switches::{check_multicast, check_sharp};
pub use transport::{Interface, Transport, TransportError};

/// In which order rings and trees visit the first `ranks` GPUs of a machine: as NCCL's search lays
/// its channels.
pub fn order(topology: &Topology, ranks: u32) -> Order {
    order_by(topology, &search::graphs(topology, ranks, &search::Options::default()))
}

/// In which order rings and trees visit the first GPUs of a machine, given the graphs of as many.
///
/// A ring leaves each host from the last GPU of its path to the first one of the next host. Which
/// channel takes which NIC is part of it.
pub fn order_by(topology: &Topology, graphs: &Graphs) -> Order {
    let hosts = ranks_by_host(topology, graphs.ranks);
    if graphs.ranks == 0 || hosts.len() != graphs.ring.paths.len() {
        return Order::of_rings(vec![(0..graphs.ranks).collect()], hosts);
    }
    let path = |graph: &Graph, channel: usize| -> Vec<Vec<u32>> {
        let of_host = |(ranks, paths): (&Vec<u32>, &Vec<ChannelPath>)| {
            paths[channel].gpus.iter().filter_map(|&g| ranks.get(g as usize).copied()).collect()
        };
        hosts.iter().zip(&graph.paths).map(of_host).collect()
    };
    let rails = |graph: &Graph| -> Vec<Arc<[Rail]>> {
        let rail = |channel: usize| {
            let of_host = |(ranks, paths): (&Vec<u32>, &Vec<ChannelPath>)| {
                let (enter, leave) = paths[channel].nics?;
                let first = *ranks.get(*paths[channel].gpus.first()? as usize)?;
                Some(Rail { first, enter, leave })
            };
            hosts.iter().zip(&graph.paths).map(of_host).collect::<Option<Arc<[Rail]>>>()
        };
        (0..graph.channels as usize).map(rail).collect::<Option<Vec<_>>>().unwrap_or_default()
    };
    let channels = |graph: &Graph| 0..graph.channels as usize;
    let mut rings: Vec<Arc<[u32]>> =
        channels(&graphs.ring).map(|c| path(&graphs.ring, c).into_iter().flatten().collect()).collect();
    if rings.windows(2).all(|w| w[0] == w[1]) {
        rings.truncate(1);
    }
    let children = match graphs.tree.pattern {
        Pattern::BalancedTree => [1, 0],
        Pattern::SplitTree => [1, 1],
        _ => [0, 0],
    };
    let mut ranks: Vec<_> = channels(&graphs.tree).map(|c| path(&graphs.tree, c)).collect();
    if ranks.windows(2).all(|w| w[0] == w[1]) {
        ranks.truncate(1);
    }
    let chains = Chains { ranks, children, rails: rails(&graphs.tree) };
    Order { rings, rails: rails(&graphs.ring), chains: Some(chains), hosts }
}

/// The first `ranks` ranks by their hosts.
fn ranks_by_host(topology: &Topology, ranks: u32) -> Vec<Vec<u32>> {
    let mut hosts: Vec<Vec<u32>> = Vec::new();
    let mut last = None;
    for rank in 0..ranks.min(topology.ranks()) {
        let host = topology.node_of(Rank(rank));
        if last != Some(host) {
            hosts.push(Vec::new());
            last = Some(host);
        }
        if let Some(members) = hosts.last_mut() {
            members.push(rank);
        }
    }
    hosts
}

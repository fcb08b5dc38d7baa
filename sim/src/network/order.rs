//! In which order rings and trees visit the GPUs of a machine.

use std::sync::Arc;

use crate::ids::Rank;
use crate::nccl::Transport;
use crate::nccl::graphs::{ChannelPath, Graph, Graphs, Pattern};
use crate::nccl::plan::MAX_NVLS_HEADS;
use crate::nccl::search::{self, Node};
use crate::schedule::{Chains, Head, Order, Rail};
use crate::topology::Topology;

/// In which order rings and trees visit the first `ranks` GPUs of a machine: as NCCL's search lays
/// its channels.
pub fn order(topology: &Topology, ranks: u32) -> Order {
    order_by(topology, &search::graphs(topology, ranks, &search::Options::default()), &Transport::default())
}

/// In which order rings and trees visit the first GPUs of a machine, given the graphs of as many that
/// were found with these transports.
///
/// A ring leaves each host (or NVLink domain) from the last GPU of its path to the first one of the
/// next. Which channel takes which NIC is part of it.
pub fn order_by(topology: &Topology, graphs: &Graphs, transport: &Transport) -> Order {
    let nodes = search::nodes(topology, (0..graphs.ranks.min(topology.ranks())).map(Rank), transport);
    let hosts: Vec<Vec<u32>> = nodes.iter().map(|n| n.ranks.clone()).collect();
    if graphs.ranks == 0 || nodes.len() != graphs.ring.paths.len() {
        return Order::of_rings(vec![(0..graphs.ranks).collect()], hosts);
    }
    let path = |graph: &Graph, channel: usize| -> Vec<Vec<u32>> {
        let of_node = |(node, paths): (&Node, &Vec<ChannelPath>)| {
            paths[channel].gpus.iter().filter_map(|&g| node.rank(g)).collect()
        };
        nodes.iter().zip(&graph.paths).map(of_node).collect()
    };
    let rails = |graph: &Graph| -> Vec<Arc<[Rail]>> {
        let rail = |channel: usize| {
            let of_node = |(node, paths): (&Node, &Vec<ChannelPath>)| {
                let (enter, leave) = paths[channel].nics?;
                Some(Rail { first: node.rank(*paths[channel].gpus.first()?)?, enter, leave })
            };
            nodes.iter().zip(&graph.paths).map(of_node).collect::<Option<Arc<[Rail]>>>()
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
    let of_a_tree = channels(&graphs.tree).len();
    let chains = Chains { ranks, of_a_tree, children, rails: rails(&graphs.tree) };
    let collnet = graphs.collnet_chain.as_ref().map(|graph| channels(graph).map(|c| path(graph, c)).collect());
    let heads = |graph: &Graph| {
        let of_node = |(node, heads): (&Node, Vec<(u32, u32)>)| -> Vec<Head> {
            heads.into_iter().filter_map(|(gpu, nic)| Some(Head { rank: node.rank(gpu)?, nic })).collect()
        };
        let heads: Vec<Vec<Head>> = nodes.iter().zip(graph.heads()).map(of_node).collect();
        let fewest = hosts.iter().map(Vec::len).min().unwrap_or(0).min(MAX_NVLS_HEADS);
        let first = |(heads, ranks): (&Vec<Head>, &Vec<u32>)| {
            heads.len() == fewest && heads.iter().zip(ranks).all(|(head, &rank)| head.rank == rank)
        };
        let none = heads.iter().any(Vec::is_empty);
        (!none && !heads.iter().zip(&hosts).all(first)).then_some(heads)
    };
    let nvls_tree = graphs.nvls.as_ref().and_then(heads);
    Order { rings, rails: rails(&graphs.ring), chains: Some(chains), collnet, nvls_tree, hosts }
}

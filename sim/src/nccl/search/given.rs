//! Graphs that are given in place of the search, and which nodes they fit.

use super::node::gather;
use crate::ids::{Rank, VertexId};
use crate::nccl::graphs::{Graph, Pattern};
use crate::topology::Topology;

/// Channels of ring and tree graphs: half of NCCL's `MAXCHANNELS`.
pub(super) const MOST_CHANNELS: usize = 32;

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
        for node in gather(topology, ranks, |rank| topology.node_of(rank).0) {
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
pub(super) fn misfit(graph: &Graph, gpus: &[u32], nics: &[u32]) -> Option<String> {
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

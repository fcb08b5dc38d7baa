//! Which ranks NCCL searches together.

use rustc_hash::FxHashMap;

use crate::ids::Rank;
use crate::topology::Topology;

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

/// The nodes of a communicator in the order of their first rank: ranks of which `of` is alike are on one.
pub(super) fn gather(topology: &Topology, ranks: impl Iterator<Item = Rank>, of: impl Fn(Rank) -> u32) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    let mut index: FxHashMap<u32, usize> = FxHashMap::default();
    for rank in ranks {
        let at = *index.entry(of(rank)).or_insert_with(|| {
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

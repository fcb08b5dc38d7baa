//! In which order patterns visit ranks, and by which NICs.

use std::sync::Arc;

use crate::collective::Algorithm;
use crate::ids::ChannelId;

/// By which NICs a channel enters and leaves a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rail {
    /// The rank next to the NIC by which it enters.
    pub first: u32,
    /// Number in the host or domain of the NIC of that rank.
    pub enter: u32,
    /// Number in the host or domain of the NIC of any other rank.
    pub leave: u32,
}

/// A rank that answers for a part of the data, and the number in the host or domain of its NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Head {
    /// The rank.
    pub rank: u32,
    /// By which it talks to the heads of other hosts.
    pub nic: u32,
}

/// How trees run inside hosts and join them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Chains {
    /// `[channel][host]`: the ranks of a host in the order of its chain; the first holds the parent
    /// host. Channels beyond the list reuse it from the start.
    pub ranks: Vec<Vec<Vec<u32>>>,
    /// Channels of the first tree; as many after them are of the second, and so on.
    pub of_a_tree: usize,
    /// Places in the chain to which the first and the second child host attach.
    pub children: [usize; 2],
    /// `[channel]`: NICs by host; empty where ranks take those next to them.
    pub rails: Vec<Arc<[Rail]>>,
}

/// In which order a pattern visits the ranks, and which ranks share a host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Order {
    /// Orders by channel, reused cyclically: a permutation of the ranks each.
    pub rings: Vec<Arc<[u32]>>,
    /// Ranks of each host, in order.
    pub hosts: Vec<Vec<u32>>,
    /// NICs of rings by channel and host; empty where ranks take those next to them.
    pub rails: Vec<Arc<[Rail]>>,
    /// Trees; `None`: chains as in the rings, with all other hosts at their heads.
    pub chains: Option<Chains>,
    /// `[channel][host]`: chains of CollNet chain, their heads first; `None`: as in the rings.
    pub collnet: Option<Vec<Vec<Vec<u32>>>>,
    /// `[host]`: heads of NVLS tree, those in the same place of each list together; `None`: the first ranks of each host,
    /// as many as the smallest has, by the NICs next to them.
    pub nvls_tree: Option<Vec<Vec<Head>>>,
}

impl Order {
    /// Rings without chosen NICs, and trees that follow them.
    pub fn of_rings(rings: Vec<Arc<[u32]>>, hosts: Vec<Vec<u32>>) -> Self {
        Self { rings, hosts, rails: Vec::new(), chains: None, collnet: None, nvls_tree: None }
    }

    /// All ranks on one host, visited by number.
    pub fn one_host(ranks: u32) -> Self {
        Self::of_rings(vec![(0..ranks).collect()], vec![(0..ranks).collect()])
    }

    /// `hosts` hosts of `per_host` ranks each, visited by number.
    pub fn grid(hosts: u32, per_host: u32) -> Self {
        let ranks: Vec<u32> = (0..hosts * per_host).collect();
        let hosts = ranks.chunks(per_host.max(1) as usize).map(<[u32]>::to_vec).collect();
        Self::of_rings(vec![ranks.into()], hosts)
    }

    /// The order of a channel.
    pub fn ring(&self, channel: ChannelId) -> &Arc<[u32]> {
        &self.rings[channel.index() % self.rings.len()]
    }

    /// The heads of an algorithm, where they are others than the first ranks of each host.
    pub(super) fn heads(&self, algorithm: Algorithm) -> Option<&Vec<Vec<Head>>> {
        self.nvls_tree.as_ref().filter(|_| algorithm == Algorithm::NvlsTree)
    }

    /// Place in [`Order::hosts`] of the host of each rank.
    pub fn host_of_ranks(&self, ranks: u32) -> Arc<[u32]> {
        let mut of = vec![0; ranks as usize];
        for (index, host) in (0..).zip(&self.hosts) {
            for &rank in host {
                if let Some(slot) = of.get_mut(rank as usize) {
                    *slot = index;
                }
            }
        }
        of.into()
    }
}

//! Where the NICs of many hosts send through one port.

use rustc_hash::{FxHashMap, FxHashSet};

use super::route::Route;
use crate::ids::{LinkId, VertexId};
use crate::topology::{LinkKind, Topology, VertexKind};

/// From so many times the rate of a port in NICs that send through it, all at once, incast is
/// taken to matter. The trees and rings of NCCL let at most 6 neighbours meet in one port; nothing but a warning
/// depends on it.
const INCAST: u64 = 8;

/// Counts which NICs send through which ports of switches.
#[derive(Default)]
pub(super) struct Incast {
    seen: FxHashSet<(LinkId, VertexId)>,
    offered: FxHashMap<LinkId, u64>,
}

impl Incast {
    /// A route through its NICs.
    pub(super) fn add_route(&mut self, topology: &Topology, route: &Route) {
        for (link, _) in route.links() {
            route.nics.iter().for_each(|&(nic, _)| self.add(topology, link, nic));
        }
    }

    /// A NIC sends through a link.
    pub(super) fn add(&mut self, topology: &Topology, id: LinkId, nic: VertexId) {
        let link = topology.link(id);
        let lossless = matches!(link.kind, LinkKind::Infiniband | LinkKind::Roce);
        if !lossless || !matches!(topology.vertex(topology.ends(id).0).kind, VertexKind::NetSwitch { .. }) {
            return;
        }
        if self.seen.insert((id, nic)) {
            *self.offered.entry(id).or_default() += topology.nic(nic).map_or(0, |n| n.rate.get());
        }
    }

    /// The port with the most, if that is much.
    pub(super) fn worst(&self, topology: &Topology) -> Option<LinkId> {
        let ports = self.offered.iter().map(|(&id, &sum)| (sum / topology.link(id).rate.get(), std::cmp::Reverse(id)));
        ports.max().filter(|p| p.0 >= INCAST).map(|p| p.1.0)
    }
}

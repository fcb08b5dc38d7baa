//! Hosts as they are built, and where everything of one is in another that is built alike.

use std::hash::{Hash, Hasher};

use crate::engine::{Mixer, mix};
use crate::ids::{LinkId, Rank, VertexId};
use crate::schedule::wiring::UNUSED;
use crate::topology::{Gpu, Nic, Topology, Vertex, VertexKind};

/// A thing of a machine: the host that it is of, [`UNUSED`] in the network, and its place there.
type Place = (u32, u32);

/// The hosts of a machine, thing by thing.
#[derive(Debug)]
pub(super) struct Hosts {
    /// By host: a hash of what it is and how it is joined to the network, wherever that is.
    pub(super) kinds: Vec<u64>,
    /// By host: the ranks of the communicator there, ascending.
    pub(super) ranks: Vec<Vec<Rank>>,
    of_rank: Vec<Place>,
    vertices: Vec<Vec<VertexId>>,
    of_vertex: Vec<Place>,
    links: Vec<Vec<LinkId>>,
    of_link: Vec<Place>,
}

/// Puts a thing into its host's list; its place.
fn put<T>(lists: &mut [Vec<T>], host: u32, thing: T) -> Place {
    let Some(list) = lists.get_mut(host as usize) else { return (UNUSED, UNUSED) };
    list.push(thing);
    (host, u32::try_from(list.len() - 1).unwrap_or(UNUSED))
}

/// A hash of what a vertex is, whatever it is called.
fn kind_of(kind: &VertexKind) -> u64 {
    let mut hasher = Mixer::default();
    std::mem::discriminant(kind).hash(&mut hasher);
    match kind {
        VertexKind::Gpu(gpu) => {
            let Gpu { index, model, compute_capability, memory_rate, bus_id: _ } = gpu;
            (index, model, compute_capability, memory_rate).hash(&mut hasher);
        }
        VertexKind::Nic(nic) => {
            let Nic { index, name: _, kind, rate, gpudirect, gpudirect_rate, rail, card, management, latency } = nic;
            (index, kind, rate, gpudirect, gpudirect_rate, rail, card, management, latency).hash(&mut hasher);
        }
        VertexKind::Cpu { vendor } => vendor.hash(&mut hasher),
        VertexKind::NetSwitch { level } => level.hash(&mut hasher),
        VertexKind::NvSwitch | VertexKind::PcieSwitch => {}
    }
    hasher.finish()
}

impl Hosts {
    /// Those of a machine and its first `ranks` ranks; `None` where NVLink joins hosts, or a cable
    /// does: then hosts are not apart.
    pub(super) fn of(topology: &Topology, ranks: u32) -> Option<Self> {
        let count = topology.hosts().len();
        let apart = (0..).zip(topology.hosts()).all(|(index, host)| host.node.0 == index);
        let network = |vertex: &Vertex| matches!(vertex.kind, VertexKind::NetSwitch { .. });
        if !apart || topology.vertices().any(|(_, vertex)| vertex.host.is_none() != network(vertex)) {
            return None;
        }
        let mut all = Self {
            kinds: vec![0; count],
            ranks: vec![Vec::new(); count],
            of_rank: Vec::with_capacity(ranks as usize),
            vertices: vec![Vec::new(); count],
            of_vertex: Vec::new(),
            links: vec![Vec::new(); count],
            of_link: vec![(UNUSED, UNUSED); topology.link_count()],
        };
        for (id, vertex) in topology.vertices() {
            let place = put(&mut all.vertices, vertex.host.map_or(UNUSED, |host| host.0), id);
            all.of_vertex.push(place);
            if let Some(kind) = all.kinds.get_mut(place.0 as usize) {
                *kind = mix(*kind, kind_of(&vertex.kind));
            }
        }
        for (id, from, to, link) in topology.links() {
            let (from, to) = (all.of_vertex[from.index()], all.of_vertex[to.index()]);
            let host = if from.0 == UNUSED { to.0 } else { from.0 };
            if to.0 != UNUSED && to.0 != host {
                return None;
            }
            all.of_link[id.index()] = put(&mut all.links, host, id);
            if let Some(kind) = all.kinds.get_mut(host as usize) {
                let mut hasher = Mixer::default();
                (from.1, to.1, link.kind, link.rate, link.width).hash(&mut hasher);
                *kind = mix(*kind, hasher.finish());
            }
        }
        for rank in (0..ranks).map(Rank) {
            let host = topology.host_of(rank).0;
            all.of_rank.push(put(&mut all.ranks, host, rank));
            let gpu = all.of_vertex[topology.gpu_of(rank).index()].1;
            all.kinds[host as usize] = mix(all.kinds[host as usize], gpu.into());
        }
        Some(all)
    }

    /// The host of a rank, and its place there.
    pub(super) fn of_rank(&self, rank: Rank) -> Place {
        self.of_rank[rank.index()]
    }

    /// The host of a vertex, and its place there.
    pub(super) fn of_vertex(&self, vertex: VertexId) -> Place {
        self.of_vertex[vertex.index()]
    }

    /// The host of a link, and its place there.
    pub(super) fn of_link(&self, link: LinkId) -> Place {
        self.of_link[link.index()]
    }

    /// The vertex at a place.
    pub(super) fn vertex(&self, (host, at): Place) -> VertexId {
        self.vertices[host as usize][at as usize]
    }

    /// The link at a place.
    pub(super) fn link(&self, (host, at): Place) -> LinkId {
        self.links[host as usize][at as usize]
    }

    /// The rank at a place.
    pub(super) fn rank(&self, (host, at): Place) -> Rank {
        self.ranks[host as usize][at as usize]
    }
}

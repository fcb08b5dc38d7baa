//! Routes: the way of a channel's data from one rank to another, inside a host and between hosts.

use rustc_hash::FxHashMap;

use crate::engine::flows::WEIGHT_ONE;
use crate::ids::{ChannelId, LinkId, Rank, VertexId};
use crate::profile::Reach;
use crate::topology::{Host, LinkKind, Topology, VertexKind};

/// NCCL's classes of paths inside a host, better first (`src/graph/topo.h`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum PathClass {
    /// The same device.
    Loc,
    /// NVLink, through NVSwitch or not.
    Nvl,
    /// NVLink through another GPU.
    Nvb,
    /// Chip-to-chip to the CPU.
    C2c,
    /// One PCIe switch.
    Pix,
    /// Several PCIe switches.
    Pxb,
    /// Chip-to-chip to the CPU, then PCIe.
    P2c,
    /// NVLink to another GPU, then PCIe to its NIC.
    Pxn,
    /// Through a CPU.
    Phb,
    /// Between CPU sockets.
    Sys,
}

impl PathClass {
    /// All classes, better first.
    pub const ALL: &'static [Self] =
        &[Self::Loc, Self::Nvl, Self::Nvb, Self::C2c, Self::Pix, Self::Pxb, Self::P2c, Self::Pxn, Self::Phb, Self::Sys];

    /// As NCCL prints it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loc => "LOC",
            Self::Nvl => "NVL",
            Self::Nvb => "NVB",
            Self::C2c => "C2C",
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::P2c => "P2C",
            Self::Pxn => "PXN",
            Self::Phb => "PHB",
            Self::Sys => "SYS",
        }
    }
}

/// The data NICs of a host as the devices that NCCL sees: the EFA NICs of one GPU act as one, as the
/// aws-ofi-nccl plugin makes them; any other NIC is a device of its own.
pub(crate) fn nic_devices(topology: &Topology, host: &Host) -> Vec<Vec<VertexId>> {
    let efa = |v: &VertexId| topology.nic(*v).is_some_and(|n| n.kind == LinkKind::Efa);
    let each = host.nics.iter().filter(|v| efa(v)).count() / host.gpus.len().max(1);
    let parent = |v: VertexId| topology.links_from(v).find(|(_, _, l)| l.kind == LinkKind::Pcie).map(|l| l.1);
    let mut devices: Vec<Vec<VertexId>> = Vec::new();
    for &nic in &host.nics {
        match devices.last_mut() {
            Some(last) if last.len() < each && efa(&nic) && efa(&last[0]) && parent(nic) == parent(last[0]) => {
                last.push(nic);
            }
            _ => devices.push(vec![nic]),
        }
    }
    devices
}

/// The device of a host that has the NIC with a number.
fn device(topology: &Topology, host: &Host, number: u32) -> Option<Vec<VertexId>> {
    let has = |device: &Vec<VertexId>| device.iter().any(|&v| topology.nic(v).is_some_and(|n| n.index == number));
    nic_devices(topology, host).into_iter().find(has)
}

/// A route through links, and what kind it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// Link directions, in order; striped routes repeat the parts in between for each NIC.
    pub links: Vec<LinkId>,
    /// Share of the bytes that each link carries, in parts of [`WEIGHT_ONE`].
    pub shares: Vec<u64>,
    /// Class of the worst part inside a host.
    pub class: PathClass,
    /// What sets its latency.
    pub reach: Reach,
}

/// The links of a route inside a host, and the class of the worst.
type InsideRoute = (Vec<LinkId>, PathClass);

/// Finds routes on one topology and remembers them.
#[derive(Debug)]
pub struct Router<'t> {
    topology: &'t Topology,
    /// Network part between two NICs.
    fabric: FxHashMap<(VertexId, VertexId), Option<Vec<LinkId>>>,
    /// Part inside a host.
    inside: FxHashMap<(VertexId, VertexId), Option<InsideRoute>>,
    /// NICs of each GPU, best class first.
    nics: FxHashMap<VertexId, Vec<VertexId>>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Label {
    class: PathClass,
    /// Larger is worse, so that labels compare in one direction.
    slowness: std::cmp::Reverse<u64>,
    hops: u32,
}

impl<'t> Router<'t> {
    /// Routes on a topology.
    pub fn new(topology: &'t Topology) -> Self {
        Self { topology, fabric: FxHashMap::default(), inside: FxHashMap::default(), nics: FxHashMap::default() }
    }

    /// The best way between two vertices of one host, by NCCL's order: class, then rate, then
    /// hops. Does not leave the host. `None` where there is none.
    pub fn inside(&mut self, from: VertexId, to: VertexId) -> Option<InsideRoute> {
        if let Some(known) = self.inside.get(&(from, to)) {
            return known.clone();
        }
        let found = self.search_inside(from, to);
        self.inside.insert((from, to), found.clone());
        found
    }

    fn search_inside(&self, from: VertexId, to: VertexId) -> Option<InsideRoute> {
        let topology = self.topology;
        let start = Label { class: PathClass::Loc, slowness: std::cmp::Reverse(u64::MAX), hops: 0 };
        let mut best: FxHashMap<VertexId, (Label, Option<(VertexId, LinkId)>)> = FxHashMap::default();
        best.insert(from, (start, None));
        let mut queue = std::collections::VecDeque::from([from]);
        // Labels only improve and every one is finite: the search ends. Bounded all the same.
        let mut budget = 64 * topology.links().count().max(64);
        while let Some(at) = queue.pop_front() {
            let (label, came) = best[&at];
            for (id, next, link) in topology.links_from(at) {
                budget -= 1;
                if budget == 0 {
                    return None;
                }
                if link.kind.is_network() || !self.may_pass(at, from, came.map(|(_, l)| l), next, to, link.kind) {
                    continue;
                }
                let class = self.extend(label.class, at, from, next, link.kind);
                let reached = Label {
                    class,
                    slowness: label.slowness.max(std::cmp::Reverse(link.rate.get())),
                    hops: label.hops + 1,
                };
                if best.get(&next).is_none_or(|(known, _)| reached < *known) {
                    best.insert(next, (reached, Some((at, id))));
                    queue.push_back(next);
                }
            }
        }
        let (label, _) = *best.get(&to)?;
        let mut links = Vec::new();
        let mut at = to;
        while let Some((previous, link)) = best[&at].1 {
            links.push(link);
            at = previous;
            if links.len() > best.len() {
                return None;
            }
        }
        links.reverse();
        Some((links, label.class))
    }

    /// GPUs are passed over NVLink only (to a GPU, or to a NIC behind it); NICs never.
    fn may_pass(
        &self,
        at: VertexId,
        from: VertexId,
        came: Option<LinkId>,
        next: VertexId,
        to: VertexId,
        kind: LinkKind,
    ) -> bool {
        if next != to && matches!(self.topology.vertex(next).kind, VertexKind::Nic(_)) {
            return false;
        }
        if at == from || self.topology.gpu(at).is_none() {
            return true;
        }
        let came_by_nvlink = came.is_some_and(|l| self.topology.link(l).kind == LinkKind::Nvlink);
        let to_nic = matches!(self.topology.vertex(to).kind, VertexKind::Nic(_));
        came_by_nvlink && (kind == LinkKind::Nvlink || (to_nic && kind == LinkKind::Pcie))
    }

    fn extend(&self, class: PathClass, at: VertexId, from: VertexId, next: VertexId, kind: LinkKind) -> PathClass {
        let through_gpu = at != from && self.topology.gpu(at).is_some();
        let step = match kind {
            LinkKind::Nvlink if through_gpu => PathClass::Nvb,
            LinkKind::Nvlink => PathClass::Nvl,
            LinkKind::C2c => PathClass::C2c,
            LinkKind::CpuInterconnect => PathClass::Sys,
            _ if through_gpu => PathClass::Pxn,
            _ => match (&self.topology.vertex(at).kind, &self.topology.vertex(next).kind) {
                (VertexKind::Cpu { .. }, _) | (_, VertexKind::Cpu { .. }) => PathClass::Phb,
                (VertexKind::PcieSwitch, VertexKind::PcieSwitch) => PathClass::Pxb,
                _ => PathClass::Pix,
            },
        };
        class.max(step)
    }

    /// The NICs a GPU would use, best class first and nearest number first.
    fn nics_of(&mut self, gpu: VertexId) -> Vec<VertexId> {
        if let Some(known) = self.nics.get(&gpu) {
            return known.clone();
        }
        let host = self.topology.vertex(gpu).host.unwrap_or_default();
        let mut ranked: Vec<(PathClass, VertexId)> = Vec::new();
        for nic in self.topology.hosts()[host.index()].nics.clone() {
            if let Some((_, class)) = self.inside(gpu, nic) {
                ranked.push((class, nic));
            }
        }
        ranked.sort();
        let best = ranked.first().map(|r| r.0);
        let nics: Vec<VertexId> = ranked.into_iter().filter(|r| Some(r.0) == best).map(|r| r.1).collect();
        self.nics.insert(gpu, nics.clone());
        nics
    }

    /// The way through the network from one NIC to another: fewest hops, then the order of
    /// links. `None` where there is none.
    fn fabric(&mut self, from: VertexId, to: VertexId) -> Option<Vec<LinkId>> {
        if let Some(known) = self.fabric.get(&(from, to)) {
            return known.clone();
        }
        let mut came: FxHashMap<VertexId, (VertexId, LinkId)> = FxHashMap::default();
        let mut queue = std::collections::VecDeque::from([from]);
        let mut found = None;
        while let Some(at) = queue.pop_front() {
            if at == to {
                let mut links = Vec::new();
                let mut back = to;
                while back != from {
                    let (previous, link) = came[&back];
                    links.push(link);
                    back = previous;
                }
                links.reverse();
                found = Some(links);
                break;
            }
            for (id, next, link) in self.topology.links_from(at) {
                let switch = matches!(self.topology.vertex(next).kind, VertexKind::NetSwitch { .. });
                if link.kind.is_network() && (switch || next == to) && next != from && !came.contains_key(&next) {
                    came.insert(next, (at, id));
                    queue.push_back(next);
                }
            }
        }
        self.fabric.insert((from, to), found.clone());
        found
    }

    /// The way of a channel's data from one rank to another; `None` where there is none.
    ///
    /// Between hosts it enters through the NIC nearest to the receiver and leaves through that
    /// of the same number on the sender's host (PXN where that is another GPU's). EFA devices
    /// of one GPU are used as one, each with an equal share, as the aws-ofi-nccl plugin does.
    pub fn route(&mut self, src: Rank, dst: Rank, channel: ChannelId) -> Option<Route> {
        self.route_by(src, dst, channel, None)
    }

    /// As [`Router::route`]; between hosts by the NICs (by their numbers) of sender and receiver where
    /// they are given and joined.
    pub fn route_by(&mut self, src: Rank, dst: Rank, channel: ChannelId, nics: Option<(u32, u32)>) -> Option<Route> {
        let route = self.find_route(src, dst, channel, nics);
        if route.is_none() && nics.is_some() { self.find_route(src, dst, channel, None) } else { route }
    }

    fn find_route(&mut self, src: Rank, dst: Rank, channel: ChannelId, nics: Option<(u32, u32)>) -> Option<Route> {
        let topology = self.topology;
        let (a, b) = (topology.gpu_of(src), topology.gpu_of(dst));
        if topology.host_of(src) == topology.host_of(dst) {
            let (links, class) = self.inside(a, b)?;
            let reach = if class <= PathClass::Nvb { Reach::Nvlink } else { Reach::Pcie };
            let shares = vec![WEIGHT_ONE; links.len()];
            return Some(Route { links, shares, class, reach });
        }
        let near_dst = self.nics_of(b);
        let near_src = self.nics_of(a);
        let first = *near_dst.get(channel.index() % near_dst.len().max(1))?;
        let host = |rank| &topology.hosts()[topology.host_of(rank).index()];
        let src_host = host(src);
        let sources = nics.and_then(|(leave, _)| device(topology, src_host, leave));
        let stripes: Vec<VertexId> = match nics.and_then(|(_, enter)| device(topology, host(dst), enter)) {
            Some(given) => given,
            None if topology.nic(first)?.kind == LinkKind::Efa => near_dst.clone(),
            None => vec![first],
        };
        let mut route = Route { links: vec![], shares: vec![], class: PathClass::Loc, reach: Reach::Network };
        let share = WEIGHT_ONE.div_ceil(stripes.len() as u64);
        for (index, &to) in stripes.iter().enumerate() {
            let number = topology.nic(to)?.index;
            let same = src_host.nics.iter().copied().find(|&n| topology.nic(n).is_some_and(|n| n.index == number));
            // Aligned with the receiver's rail if that stays off the CPUs, else the nearest.
            let aligned = same.filter(|&n| self.inside(a, n).is_some_and(|(_, class)| class <= PathClass::Pxn));
            let from = match &sources {
                Some(given) => given[index % given.len()],
                None => aligned.or_else(|| near_src.get((channel.index() + index) % near_src.len().max(1)).copied())?,
            };
            let (out, out_class) = self.inside(a, from)?;
            let (inward, in_class) = self.inside(to, b)?;
            let middle = self.fabric(from, to)?;
            if topology.nic(to)?.kind == LinkKind::Ethernet {
                route.reach = Reach::Tcp;
            }
            route.class = route.class.max(out_class).max(in_class);
            for link in out.into_iter().chain(middle).chain(inward) {
                match route.links.iter().position(|&l| l == link) {
                    Some(known) => route.shares[known] += share,
                    None => {
                        route.links.push(link);
                        route.shares.push(share);
                    }
                }
            }
        }
        Some(route)
    }
}

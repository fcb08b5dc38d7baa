//! Routes: the way of a channel's data from one rank to another, inside a host and between hosts.

use std::cmp::Ordering;

use rustc_hash::FxHashMap;

use super::ways::{Before, Ways, far_ways, links_before, near_ways};
use crate::engine::flows::WEIGHT_ONE;
use crate::engine::mix;
use crate::ids::{ChannelId, LinkId, Rank, VertexId};
use crate::measurement::PeerAccess;
use crate::nccl::devices::{nic_devices, share_out};
use crate::nccl::graphs::CpuVendor;
use crate::nccl::search::nodes;
use crate::nccl::{CrossNic, Interface, PathClass, Transport};
use crate::profile::Reach;
use crate::topology::{LinkKind, Nic, Topology, VertexKind};
use crate::units::Bandwidth;

/// Bytes of the packet with which a block asks for host memory over PCIe (header, sequence number, check sums), and of the
/// memory it asks for with one: Min et al., "EMOGI", VLDB 2021, sees GPUs ask for 128 at most.
const READ_REQUEST: (u64, u64) = (24, 128);

/// What bytes go through.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Hop {
    /// A link direction.
    Link(LinkId),
    /// The memory of a CPU.
    Memory(VertexId),
    /// What a NIC reads (`true`) or writes itself of GPU memory, at most at this rate.
    Direct(VertexId, bool, Bandwidth),
}

/// Whether a CPU is an Arm one: their memory has a rate of its own.
pub(crate) fn is_arm(topology: &Topology, cpu: VertexId) -> bool {
    matches!(&topology.vertex(cpu).kind, VertexKind::Cpu { vendor } if CpuVendor::of(vendor) == CpuVendor::Arm)
}

/// What bytes go through together, each with its share of them in parts of [`WEIGHT_ONE`].
pub type Leg = Vec<(Hop, u64)>;

/// The way of a channel's data from one rank to another, and what kind it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// What the sending block writes through into host memory, before a proxy takes over.
    pub store: Leg,
    /// What the transfer takes: by the sending block inside a host, by a proxy in the network.
    pub wire: Leg,
    /// What the receiving block reads through from host memory.
    pub load: Leg,
    /// Class of the worst part inside a host.
    pub class: PathClass,
    /// What sets its latency.
    pub reach: Reach,
    /// Whether data is staged in host memory: by the sender, at the receiver.
    pub staged: [bool; 2],
    /// Whether NCCL reads back what a NIC writes into the receiver's memory, before a block may see it.
    pub flushed: bool,
    /// Ports of the network through which it enters and leaves, by stripe.
    pub nics: Vec<(VertexId, VertexId)>,
    /// The rank whose proxy posts it, where that is another than the sender's (PXN).
    pub poster: Option<Rank>,
}

impl Route {
    /// All links, in order; striped routes repeat the parts in between for each NIC.
    pub fn links(&self) -> impl Iterator<Item = (LinkId, u64)> {
        self.store.iter().chain(&self.wire).chain(&self.load).filter_map(|&(hop, share)| match hop {
            Hop::Link(link) => Some((link, share)),
            Hop::Memory(_) | Hop::Direct(..) => None,
        })
    }
}

/// The links of a route inside a host, and the class of the worst.
type InsideRoute = (Vec<LinkId>, PathClass);

/// Ways between vertices of one topology, for one communicator with one transport: what routes are made of.
#[derive(Debug, Default)]
pub(super) struct Roads {
    /// Ways between two switches of the network.
    fabric: FxHashMap<(VertexId, VertexId), Option<Ways>>,
    /// Links between switches of the network, once they are asked for.
    before: Option<Before>,
    /// Part inside a host.
    inside: FxHashMap<(VertexId, VertexId), Option<InsideRoute>>,
    /// From a GPU to a NIC.
    out: FxHashMap<(VertexId, VertexId), Option<InsideRoute>>,
    /// Network devices of each GPU, in the order of channels.
    nics: FxHashMap<VertexId, Vec<Vec<VertexId>>>,
    /// The GPU that prefers a NIC.
    servers: FxHashMap<VertexId, Option<VertexId>>,
    /// The nearest CPU of each GPU.
    cpus: FxHashMap<VertexId, Option<VertexId>>,
}

impl Roads {
    /// How many ways there are.
    pub(super) fn count(&self) -> usize {
        self.fabric.len() + self.inside.len() + self.out.len()
    }
}

/// Finds routes on one topology and remembers what they are made of.
#[derive(Debug)]
pub struct Router<'t> {
    topology: &'t Topology,
    transport: Transport,
    /// The sender's proxy checks every line, and so has them in host memory.
    lines: bool,
    /// GPUs of the communicator, with their ranks: NCCL leaves all others out of its view of a machine.
    members: FxHashMap<VertexId, Rank>,
    /// The node of each rank where host memory is not shared, so that a host can have several.
    apart: FxHashMap<Rank, usize>,
    roads: Roads,
}

/// What the stripes of a route through the network, one for each NIC of the receiver's device, have in common.
struct Stripe {
    channel: ChannelId,
    /// Of the route's bytes, in parts of [`WEIGHT_ONE`].
    share: u64,
    /// Sockets carry it.
    tcp: bool,
    streams: u32,
    /// It ends on the host where it begins.
    loopback: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Label {
    class: PathClass,
    /// Larger is worse, so that labels compare in one direction.
    slowness: std::cmp::Reverse<u64>,
    hops: u32,
}

impl<'t> Router<'t> {
    /// Routes on a topology, as NCCL takes them without being told.
    pub fn new(topology: &'t Topology) -> Self {
        Self::with(topology, Transport::default())
    }

    /// Routes on a topology with other settings of NCCL, between all its ranks.
    pub fn with(topology: &'t Topology, transport: Transport) -> Self {
        let router = Self {
            topology,
            transport,
            lines: false,
            members: FxHashMap::default(),
            apart: FxHashMap::default(),
            roads: Roads::default(),
        };
        router.among(topology.ranks())
    }

    /// The same for a communicator of the first `ranks` GPUs.
    #[must_use]
    pub fn among(mut self, ranks: u32) -> Self {
        let topology = self.topology;
        let ranks = (0..ranks.min(topology.ranks())).map(Rank);
        self.members = ranks.clone().map(|rank| (topology.gpu_of(rank), rank)).collect();
        let nodes = if self.transport.shm { Vec::new() } else { nodes(topology, ranks, &self.transport) };
        self.apart.clear();
        for (at, node) in nodes.iter().enumerate() {
            self.apart.extend(node.ranks.iter().map(|&rank| (Rank(rank), at)));
        }
        self
    }

    /// The same for LL, whose lines a sender's proxy reads in host memory, GPUDirect or not (NCCL
    /// 2.30 `src/transport/net.cc`, where send buffers are mapped).
    #[must_use]
    pub fn with_lines(mut self, lines: bool) -> Self {
        self.lines = lines;
        self
    }

    /// The same with roads that were found before, on the same topology for the same communicator and transport.
    #[must_use]
    pub(super) fn with_roads(self, roads: Roads) -> Self {
        Self { roads, ..self }
    }

    /// All that it found.
    pub(super) fn into_roads(self) -> Roads {
        self.roads
    }

    /// The best way between two vertices of one host or NVLink domain, by NCCL's order: class,
    /// then rate, then hops. Enters no network, and passes GPUs from NVLink to NVLink only. `None`
    /// where there is none.
    pub fn inside(&mut self, from: VertexId, to: VertexId) -> Option<InsideRoute> {
        if let Some(known) = self.roads.inside.get(&(from, to)) {
            return known.clone();
        }
        // A NIC reaches a GPU the way that the GPU reaches it.
        let back = self.topology.nic(from).and_then(|_| self.topology.gpu(to)).and_then(|_| {
            let (links, class) = self.inside(to, from)?;
            let back: Option<Vec<LinkId>> = links.iter().rev().map(|&l| self.reverse(l)).collect();
            Some((back?, class))
        });
        let found = back.or_else(|| self.search_inside(from, to));
        self.roads.inside.insert((from, to), found.clone());
        found
    }

    /// The other direction of a link.
    fn reverse(&self, link: LinkId) -> Option<LinkId> {
        let (from, to) = self.topology.ends(link);
        let kind = self.topology.link(link).kind;
        self.topology.links_from(to).find(|&(_, next, l)| next == from && l.kind == kind).map(|(id, _, _)| id)
    }

    fn search_inside(&self, from: VertexId, to: VertexId) -> Option<InsideRoute> {
        let topology = self.topology;
        // One hop through NVSwitch is the best there is, and NVLink domains are large.
        let switch = topology
            .links_from(from)
            .find(|&(_, next, l)| l.kind == LinkKind::Nvlink && topology.vertex(next).kind == VertexKind::NvSwitch);
        if let Some((up, switch, _)) = switch
            && let Some(down) = topology.link_between(switch, to)
        {
            return Some((vec![up, down], PathClass::Nvl));
        }
        let near = [topology.vertex(from).host, topology.vertex(to).host];
        let start = Label { class: PathClass::Loc, slowness: std::cmp::Reverse(u64::MAX), hops: 0 };
        let mut best: FxHashMap<VertexId, (Label, Option<(VertexId, LinkId)>)> = FxHashMap::default();
        best.insert(from, (start, None));
        let mut queue = std::collections::VecDeque::from([from]);
        // Labels only improve and every one is finite: the search ends. Bounded all the same.
        let mut budget = 64 * topology.link_count().max(64);
        while let Some(at) = queue.pop_front() {
            let (label, came) = best[&at];
            for (id, next, link) in topology.links_from(at) {
                budget -= 1;
                if budget == 0 {
                    return None;
                }
                let host = topology.vertex(next).host;
                let elsewhere = host.is_some() && !near.contains(&host);
                if elsewhere
                    || link.kind.is_network()
                    || !self.may_pass(at, from, came.map(|(_, l)| l), next, to, link.kind)
                {
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

    /// GPUs are passed over NVLink only; NICs never.
    fn may_pass(
        &self,
        at: VertexId,
        from: VertexId,
        came: Option<LinkId>,
        next: VertexId,
        to: VertexId,
        kind: LinkKind,
    ) -> bool {
        if next != to && self.topology.nic(next).is_some() {
            return false;
        }
        let nvlink = |link: LinkId| self.topology.link(link).kind == LinkKind::Nvlink;
        at == from || self.topology.gpu(at).is_none() || came.is_some_and(nvlink) && kind == LinkKind::Nvlink
    }

    fn extend(&self, class: PathClass, at: VertexId, from: VertexId, next: VertexId, kind: LinkKind) -> PathClass {
        let through_gpu = at != from && self.topology.gpu(at).is_some();
        let step = match kind {
            LinkKind::Pcie if matches!(class, PathClass::C2c | PathClass::P2c) => PathClass::P2c,
            LinkKind::Nvlink if through_gpu => PathClass::Nvb,
            LinkKind::Nvlink => PathClass::Nvl,
            LinkKind::C2c => PathClass::C2c,
            LinkKind::CpuInterconnect => PathClass::Sys,
            _ => match (&self.topology.vertex(at).kind, &self.topology.vertex(next).kind) {
                (VertexKind::Cpu { .. }, _) | (_, VertexKind::Cpu { .. }) => PathClass::Phb,
                (VertexKind::PcieSwitch, VertexKind::PcieSwitch) => PathClass::Pxb,
                _ => PathClass::Pix,
            },
        };
        class.max(step)
    }

    /// The way by which a GPU sends through a NIC of its node: its own, or over NVLink through the GPU
    /// that the NIC serves first (PXN) where that is better. Data is received by [`Router::inside`].
    fn out(&mut self, gpu: VertexId, nic: VertexId) -> Option<InsideRoute> {
        if let Some(known) = self.roads.out.get(&(gpu, nic)) {
            return known.clone();
        }
        let found = self.relayed(gpu, nic);
        self.roads.out.insert((gpu, nic), found.clone());
        found
    }

    fn relayed(&mut self, gpu: VertexId, nic: VertexId) -> Option<InsideRoute> {
        let own = self.inside(gpu, nic);
        let Some(relay) = self.relay(gpu, nic) else { return own };
        let (mut first, rest) = (self.inside(gpu, relay)?.0, self.inside(relay, nic)?.0);
        if own.as_ref().is_some_and(|own| self.rate(&rest) <= self.rate(&own.0) && own.1 <= PathClass::Pxn) {
            return own;
        }
        first.extend(rest);
        Some((first, PathClass::Pxn))
    }

    /// The other GPU that could post to a NIC for one.
    fn relay(&mut self, gpu: VertexId, nic: VertexId) -> Option<VertexId> {
        if !self.transport.pxn || !self.topology.nic(nic).is_some_and(|n| n.gpudirect) {
            return None;
        }
        let relay = self.server(nic).filter(|&relay| relay != gpu)?;
        let (first, rest) = (self.inside(gpu, relay)?.1, self.inside(relay, nic)?.1);
        (first <= PathClass::Nvl && rest <= PathClass::P2c.min(self.transport.gdr_level)).then_some(relay)
    }

    /// The rank whose proxy posts what a GPU sends through a NIC, where that is not its own: of those whose way to the NIC
    /// leads through another GPU; of sends and receives, for which no NICs are `given`, also where its own way is as good
    /// (NCCL 2.30 `src/graph/paths.cc` and `topo.cc`: `ncclTopoGetIntermediateRank`, and `ncclTopoGetNetDev` with
    /// `NCCL_P2P_PXN_LEVEL=2`).
    fn poster(&mut self, (gpu, nic): (VertexId, VertexId), given: bool) -> Option<Rank> {
        let relay = self.relay(gpu, nic)?;
        let relays = !given || self.out(gpu, nic)?.1 == PathClass::Pxn;
        self.members.get(&relay).copied().filter(|_| relays)
    }

    /// Rate of the narrowest of some links.
    fn rate(&self, links: &[LinkId]) -> u64 {
        links.iter().map(|&l| self.topology.link(l).rate.get()).min().unwrap_or(u64::MAX)
    }

    /// The members of a host that are nearest to a NIC.
    fn nearest(&mut self, nic: VertexId) -> Vec<VertexId> {
        let Some(host) = self.topology.vertex(nic).host else { return Vec::new() };
        let gpus = &self.topology.hosts()[host.index()].gpus;
        let all = gpus.iter().copied().filter(|g| self.members.contains_key(g)).collect::<Vec<_>>();
        best(all.into_iter().filter_map(|gpu| {
            let (links, class) = self.inside(gpu, nic)?;
            Some(((std::cmp::Reverse(self.rate(&links)), class), gpu))
        }))
    }

    /// The GPU that prefers a NIC on the lowest channel.
    fn server(&mut self, nic: VertexId) -> Option<VertexId> {
        if let Some(known) = self.roads.servers.get(&nic) {
            return *known;
        }
        let near = self.nearest(nic);
        let place = |gpu| {
            let devices = self.shared_out(gpu, Self::inside);
            Some((devices.iter().position(|d| d.contains(&nic))?, gpu))
        };
        let found = near.into_iter().filter_map(place).min().map(|(_, gpu)| gpu);
        self.roads.servers.insert(nic, found);
        found
    }

    /// The network devices that a GPU prefers, in the order of channels.
    fn nics_of(&mut self, gpu: VertexId) -> Vec<Vec<VertexId>> {
        if let Some(known) = self.roads.nics.get(&gpu) {
            return known.clone();
        }
        let devices = self.shared_out(gpu, Self::out);
        self.roads.nics.insert(gpu, devices.clone());
        devices
    }

    /// The network devices of its host that are best for a GPU by some ways to them, shared with the
    /// GPUs that are as near.
    fn shared_out(
        &mut self,
        gpu: VertexId,
        way: fn(&mut Self, VertexId, VertexId) -> Option<InsideRoute>,
    ) -> Vec<Vec<VertexId>> {
        let host = &self.topology.hosts()[self.topology.vertex(gpu).host.unwrap_or_default().index()];
        let ways = nic_devices(self.topology, host, &self.transport).into_iter().filter_map(|device| {
            let (links, class) = way(self, gpu, *device.first()?)?;
            Some(((std::cmp::Reverse(self.rate(&links)), class), device))
        });
        let devices = best(ways.collect::<Vec<_>>().into_iter());
        let sharers = devices.first().map_or(0, |d| self.nearest(d[0]).len());
        let number = host.gpus.iter().position(|&g| g == gpu).unwrap_or(0);
        share_out(&devices, sharers, number, self.transport.nics_per_gpu)
    }

    /// The machine.
    pub(super) fn topology(&self) -> &'t Topology {
        self.topology
    }

    /// The NICs of its host that are best for a memory: those that a GPU prefers, all that are as near to a CPU.
    pub(super) fn nearest_nics(&mut self, memory: VertexId) -> Vec<VertexId> {
        if self.topology.gpu(memory).is_some() {
            return self.nics_of(memory).into_iter().flatten().collect();
        }
        let host = self.topology.vertex(memory).host.unwrap_or_default();
        let nics = self.topology.hosts()[host.index()].nics.clone();
        best(
            nics.into_iter()
                .filter_map(|nic| {
                    let (links, class) = self.inside(memory, nic)?;
                    Some(((class, std::cmp::Reverse(self.rate(&links))), nic))
                })
                .collect::<Vec<_>>()
                .into_iter(),
        )
    }

    /// The CPU nearest to a GPU: where its host buffers are.
    pub fn cpu_of(&mut self, gpu: VertexId) -> Option<VertexId> {
        if let Some(known) = self.roads.cpus.get(&gpu) {
            return *known;
        }
        let host = self.topology.vertex(gpu).host.unwrap_or_default();
        let cpus = self.topology.hosts()[host.index()].cpus.clone();
        let ranked = cpus.into_iter().filter_map(|cpu| Some((self.inside(gpu, cpu)?.1, cpu)));
        let found = ranked.min().map(|(_, cpu)| cpu);
        self.roads.cpus.insert(gpu, found);
        found
    }

    /// All shortest ways from one switch of the network to another.
    fn ways(&mut self, from: VertexId, to: VertexId) -> Option<&Ways> {
        let topology = self.topology;
        let before = self.roads.before.get_or_insert_with(|| links_before(topology));
        let find = || near_ways(topology, before, from, to).or_else(|| far_ways(topology, from, to));
        self.roads.fabric.entry((from, to)).or_insert_with(find).as_ref()
    }

    /// The way through the network from one NIC to another by the fewest hops, for the `share`
    /// of bytes of one flow (`key`). Packets use all equal ways, in proportion to their rates;
    /// with static hashing the flow is pinned to one. `None` where there is no way.
    pub(super) fn fabric(&mut self, from: VertexId, to: VertexId, share: u64, key: u64) -> Option<Leg> {
        let topology = self.topology;
        let out = topology.links_from(from).find(|(_, _, l)| l.kind.is_network());
        let (up, first, _) = out?;
        let mut leg = vec![(Hop::Link(up), share)];
        if first == to {
            return Some(leg);
        }
        let (_, last, _) = topology.links_from(to).find(|(_, _, l)| l.kind.is_network())?;
        let down = topology.link_between(last, to)?;
        let mut arriving: FxHashMap<VertexId, u64> = FxHashMap::from_iter([(first, share)]);
        for (at, links) in self.ways(first, last)? {
            let Some(share) = arriving.remove(at) else { continue };
            let pinned = topology.hash.map(|seed| mix(mix(seed, key), u64::from(at.0)) % links.len() as u64);
            let total: u64 = links.iter().map(|l| l.2).sum();
            for (index, &(link, next, rate)) in (0..).zip(links) {
                let part = match pinned {
                    Some(chosen) if chosen == index => share,
                    Some(_) => continue,
                    None => u64::try_from((u128::from(share) * u128::from(rate)).div_ceil(u128::from(total))).ok()?,
                };
                leg.push((Hop::Link(link), part));
                *arriving.entry(next).or_default() += part;
            }
        }
        leg.push((Hop::Link(down), share));
        Some(leg)
    }

    /// Bytes of a message through a socket that go with its header.
    pub(crate) fn socket_inline(&self) -> u32 {
        self.transport.socket_inline
    }

    /// Helper threads and sockets of each, by platform where not set: NCCL tells AWS by the PCI
    /// vendor of its NICs (2.30 `src/transport/net_socket.cc`), here by their EFA.
    pub(crate) fn sockets(&self, host: usize) -> (u32, u32) {
        let topology = self.topology;
        let aws = topology.hosts()[host].nics.iter().any(|&n| topology.nic(n).is_some_and(|n| n.kind == LinkKind::Efa));
        let (threads, each) = match (self.transport.socket_threads, self.transport.sockets_per_thread) {
            (None, None) if aws => (2, 8),
            (threads, each) => (threads.unwrap_or(0), each.unwrap_or(1)),
        };
        (threads, each.max(1))
    }

    /// The way of a channel's data from one rank to another; `None` where there is none.
    ///
    /// Inside a host or NVLink domain directly where peer access is on and the path is no worse
    /// than NCCL's level for it, else through host memory. Between hosts it enters through the
    /// NIC nearest to the receiver and leaves through that of the same number on the sender's
    /// host (PXN where that is another GPU's). The NICs of one device are used together, each
    /// with an equal share.
    pub fn route(&mut self, src: Rank, dst: Rank, channel: ChannelId) -> Option<Route> {
        self.route_by(src, dst, channel, None)
    }

    /// As [`Router::route`]; between hosts by the NICs of sender and receiver (by their numbers in the NVLink
    /// domain, [`crate::topology::Host::first_nic`]) where they are given and joined.
    pub fn route_by(&mut self, src: Rank, dst: Rank, channel: ChannelId, nics: Option<(u32, u32)>) -> Option<Route> {
        let route = self.find_route(src, dst, channel, nics);
        if route.is_none() && nics.is_some() { self.find_route(src, dst, channel, None) } else { route }
    }

    fn find_route(&mut self, src: Rank, dst: Rank, channel: ChannelId, nics: Option<(u32, u32)>) -> Option<Route> {
        if self.are_peers(src, dst) {
            let route = self.peers(self.topology.gpu_of(src), self.topology.gpu_of(dst));
            if route.is_some() || self.transport.shm {
                return route;
            }
        }
        self.network(src, dst, channel, nics)
    }

    /// Whether two ranks reach each other without the network: on one host unless its memory is not
    /// shared, in one NVLink domain where peer access is on.
    pub(crate) fn are_peers(&self, src: Rank, dst: Rank) -> bool {
        match (self.apart.get(&src), self.apart.get(&dst)) {
            (Some(src), Some(dst)) => src == dst,
            _ => self.transport.node_of(self.topology, src) == self.transport.node_of(self.topology, dst),
        }
    }

    /// The device that has the NIC with a number in the node of a rank.
    fn device(&self, rank: Rank, number: u32) -> Option<Vec<VertexId>> {
        let topology = self.topology;
        let host = topology.hosts_of_node(topology.node_of(rank)).filter(|h| h.first_nic <= number).last()?;
        let index = number - host.first_nic;
        let has = |device: &Vec<VertexId>| device.iter().any(|&v| topology.nic(v).is_some_and(|n| n.index == index));
        nic_devices(topology, host, &self.transport).into_iter().find(has)
    }

    /// Between GPUs of one host, or of one NVLink domain.
    fn peers(&mut self, a: VertexId, b: VertexId) -> Option<Route> {
        let direct = self.inside(a, b);
        let reach = |class| if class <= PathClass::Nvb { Reach::Nvlink } else { Reach::Pcie };
        let route = |wire, load, class, staged| Route {
            store: vec![],
            wire,
            load,
            class,
            reach: if staged { Reach::Pcie } else { reach(class) },
            staged: [staged; 2],
            flushed: false,
            nics: vec![],
            poster: None,
        };
        let whole = |links: Vec<LinkId>| links.into_iter().map(|l| (Hop::Link(l), WEIGHT_ONE)).collect::<Leg>();
        let level = self.transport.direct_beside(self.topology, b, |gpu| self.members.contains_key(gpu));
        if let Some((links, class)) = direct.as_ref().filter(|(_, class)| *class <= level) {
            return Some(route(whole(links.clone()), vec![], *class, false));
        }
        if !self.transport.shm {
            return None;
        }
        // The receiver's side holds the buffer (NCCL_SHM_LOCALITY=2): the sender writes there.
        let Some(cpu) = self.cpu_of(b) else {
            // A machine drawn without CPUs: what joins the GPUs is all there is.
            let (links, class) = direct.filter(|_| self.transport.peer_access == PeerAccess::On)?;
            return Some(route(whole(links), vec![], class, false));
        };
        let (out, out_class) = self.inside(a, cpu)?;
        let (inward, in_class) = self.inside(cpu, b)?;
        let memory = (Hop::Memory(cpu), WEIGHT_ONE);
        let mut wire = whole(out);
        wire.push(memory);
        let mut load = whole(inward);
        load.push(memory);
        Some(route(wire, load, out_class.max(in_class), true))
    }

    /// Between hosts, or between GPUs of a host through its NICs.
    fn network(&mut self, src: Rank, dst: Rank, channel: ChannelId, nics: Option<(u32, u32)>) -> Option<Route> {
        let topology = self.topology;
        let (a, b) = (topology.gpu_of(src), topology.gpu_of(dst));
        let (near_src, near_dst) = (self.nics_of(a), self.nics_of(b));
        let near = near_dst.get(channel.index() % near_dst.len().max(1))?;
        let (kind, gpudirect) = topology.nic(*near.first()?).map(|n| (n.kind, n.gpudirect))?;
        // Ethernet that reaches GPU memory has a transport of its own (GPUDirect-TCPX, TCPXO): no host
        // thread copies for it.
        let sockets = kind == LinkKind::Ethernet && !gpudirect;
        let tcp = sockets || self.transport.interface != Interface::Data;
        let sources = nics.and_then(|(leave, _)| self.device(src, leave));
        let stripes = nics.and_then(|(_, enter)| self.device(dst, enter)).unwrap_or_else(|| near.clone());
        let stripe = Stripe {
            channel,
            share: WEIGHT_ONE.div_ceil(stripes.len() as u64),
            tcp,
            streams: self.streams(src, tcp),
            loopback: topology.host_of(src) == topology.host_of(dst),
        };
        let reach = match kind {
            _ if tcp => Reach::Tcp,
            LinkKind::Efa => Reach::Efa,
            _ => Reach::Network,
        };
        let mut route = Route {
            store: vec![],
            wire: vec![],
            load: vec![],
            class: PathClass::Loc,
            reach,
            staged: [false; 2],
            flushed: false,
            nics: vec![],
            poster: None,
        };
        for (index, &to) in stripes.iter().enumerate() {
            let from = match &sources {
                Some(given) => given[index % given.len()],
                None => self.aligned(src, to).or_else(|| {
                    let near = near_src.get(channel.index() % near_src.len().max(1))?;
                    near.get(index % near.len().max(1)).copied()
                })?,
            };
            if index == 0 && !tcp {
                route.poster = self.poster((a, from), sources.is_some());
            }
            route.nics.push((from, to));
            let out = self.stripe_end(&stripe, &mut route, (a, from), true)?;
            let inward = self.stripe_end(&stripe, &mut route, (b, to), false)?;
            add(&mut route.wire, out);
            self.between(&stripe, &mut route, from, to)?;
            add(&mut route.wire, inward);
        }
        Some(route)
    }

    /// Streams of packets in which a rank sends, as far as a way depends on them: packets of all streams use all ways
    /// alike, only hashing tells them apart.
    fn streams(&self, src: Rank, tcp: bool) -> u32 {
        if self.topology.hash.is_none() {
            return 1;
        }
        let streams = if tcp {
            let (threads, each) = self.sockets(self.topology.host_of(src).index());
            threads.max(1) * each
        } else {
            self.transport.queue_pairs
        };
        streams.max(1)
    }

    /// The sender's NIC on the rail of a receiver's, to which PXN aligns it if that stays off the CPUs; `None`
    /// where the nearest is to be taken.
    fn aligned(&mut self, src: Rank, to: VertexId) -> Option<VertexId> {
        let topology = self.topology;
        let number = topology.nic(to)?.index;
        let usable = |n: &Nic| n.index == number && self.transport.nics.has(number);
        let host = &topology.hosts()[topology.host_of(src).index()];
        let same = host.nics.iter().copied().find(|&n| topology.nic(n).is_some_and(usable));
        let (pxn, aligns) = (self.transport.pxn, self.transport.cross_nic == CrossNic::Never);
        let gpu = topology.gpu_of(src);
        same.filter(|&n| aligns || pxn && self.out(gpu, n).is_some_and(|o| o.1 <= PathClass::Pxn))
    }

    /// What a stripe takes between a GPU and its NIC: the transfer's part of it. What a block takes, where data is
    /// staged in host memory, goes to the route.
    fn stripe_end(
        &mut self,
        stripe: &Stripe,
        route: &mut Route,
        (gpu, nic): (VertexId, VertexId),
        sends: bool,
    ) -> Option<Leg> {
        let topology = self.topology;
        let (tcp, share) = (stripe.tcp, stripe.share);
        let (links, class) = if sends { self.out(gpu, nic)? } else { self.inside(nic, gpu)? };
        route.class = route.class.max(class);
        let hops = |links: Vec<LinkId>| links.into_iter().map(move |l| (Hop::Link(l), share));
        // Whether the NIC reaches the GPU that relays was asked before it was taken for that.
        let near = class == PathClass::Pxn || class <= self.transport.gdr_level;
        let rdma = !tcp && topology.nic(nic)?.gpudirect && near;
        let direct = rdma && !(sends && self.lines);
        // NCCL 2.30 `src/graph/paths.cc`: on Ampere and before, or as it is told.
        let needs = || topology.gpu(gpu).is_some_and(|g| g.compute_capability < 90);
        route.flushed |= direct && !sends && self.transport.flush.unwrap_or_else(needs);
        let Some(cpu) = self.cpu_of(gpu).filter(|_| !direct) else {
            let rate = topology.nic(nic)?.gpudirect_rate.filter(|_| rdma);
            return Some(hops(links).chain(rate.map(|rate| (Hop::Direct(nic, sends, rate), share))).collect());
        };
        let (block, device, leg) = if sends {
            (self.inside(gpu, cpu)?.0, self.inside(cpu, nic)?.0, &mut route.store)
        } else {
            (self.inside(cpu, gpu)?.0, self.inside(nic, cpu)?.0, &mut route.load)
        };
        // The cited hop of LL over RDMA has the lines of its sender in host memory already.
        route.staged[usize::from(!sends)] |= tcp || !(sends && self.lines);
        let asks = |&l: &LinkId| Some((Hop::Link(self.reverse(l)?), share * READ_REQUEST.0 / READ_REQUEST.1));
        let asks: Leg = block.iter().filter(|_| !sends).filter_map(asks).collect();
        add(leg, hops(block).chain([(Hop::Memory(cpu), share)]).chain(asks));
        // A socket's copy reads and writes once more before the NIC does.
        let touches = if tcp { 3 } else { 1 };
        let mut end = vec![(Hop::Memory(cpu), touches * share)];
        // TCP between two addresses of one host never leaves its kernel.
        if !(tcp && stripe.loopback) {
            end.extend(hops(device));
        }
        Some(end)
    }

    /// What a stripe takes between its NICs, where they are of two hosts.
    fn between(&mut self, stripe: &Stripe, route: &mut Route, from: VertexId, to: VertexId) -> Option<()> {
        if stripe.loopback {
            return Some(());
        }
        let streams = u64::from(stripe.streams);
        let part = stripe.share.div_ceil(streams);
        for stream in 0..streams {
            let key = [u64::from(to.0), u64::from(stripe.channel.0), stream].into_iter().fold(u64::from(from.0), mix);
            let middle = self.fabric(from, to, part, key)?;
            add(&mut route.wire, middle);
        }
        Some(())
    }
}

/// What has the lowest key.
fn best<K: Ord, T>(all: impl Iterator<Item = (K, T)>) -> Vec<T> {
    let mut least: Option<K> = None;
    let mut found = Vec::new();
    for (key, one) in all {
        match least.as_ref().map(|known| key.cmp(known)) {
            Some(Ordering::Greater) => continue,
            Some(Ordering::Equal) => {}
            Some(Ordering::Less) | None => {
                least = Some(key);
                found.clear();
            }
        }
        found.push(one);
    }
    found
}

/// Adds hops to a leg; what is there already carries the sum.
pub(super) fn add(leg: &mut Leg, hops: impl IntoIterator<Item = (Hop, u64)>) {
    for (hop, share) in hops {
        match leg.iter_mut().find(|(known, _)| *known == hop) {
            Some((_, sum)) => *sum += share,
            None => leg.push((hop, share)),
        }
    }
}

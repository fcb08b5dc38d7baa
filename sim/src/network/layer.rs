//! The resources that a schedule takes of a machine: links, memories, proxies and blocks, each made when it is first used.

use std::collections::hash_map::Entry;

use rustc_hash::{FxHashMap, FxHashSet};

use super::alike::{Alike, Edges};
use super::incast::Incast;
use super::laid::{LayError, ResourceName};
use super::route::{Hop, Leg, Roads, Route, Router, is_arm};
use crate::collective::Protocol;
use crate::engine::flows::{Use, WEIGHT_ONE};
use crate::engine::{ConnSpec, ProxySpec, Section, Uses};
use crate::ids::{ChannelId, LinkId, Rank, VertexId};
use crate::profile::{Profile, Reach};
use crate::schedule::wiring::{UNUSED, Wiring};
use crate::topology::{LinkKind, Topology, VertexKind};
use crate::units::SimDuration;

/// Routes that are remembered while a schedule is laid: all of those that channels of rings and trees share, of which a
/// large machine has some 50,000. In an all-to-all each pair of ranks is asked for once, a million of them and more.
const REMEMBERED: usize = 1 << 16;

/// Bytes that EFA sends before the receiver has a place for them, and keeps for it (aws-ofi-nccl, default of
/// `OFI_NCCL_EAGER_MAX_SIZE`).
const EAGER: f64 = 8192.0;

/// Bytes on the wire per byte of payload (NCCL 2.30 `src/include/device.h`): a line of LL is 8 bytes of data and as many of
/// flags, one of LL128 15 words of data and one that is a flag.
pub(super) fn wire_format(protocol: Protocol) -> f64 {
    match protocol {
        Protocol::Ll => 2.0,
        Protocol::Ll128 => 16.0 / 15.0,
        Protocol::Simple => 1.0,
    }
}

/// A rank's links to an NVSwitch and back.
pub(super) type Ports = Vec<(LinkId, LinkId)>;

/// The resources of an instance, each made when it is first used.
#[derive(Clone, Debug, Default)]
pub(super) struct Resources {
    pub(super) rates: Vec<u64>,
    pub(super) names: Vec<ResourceName>,
    known: FxHashMap<ResourceName, u32>,
}

impl Resources {
    /// The number of one.
    pub(super) fn number(&mut self, name: ResourceName, rate: impl FnOnce() -> u64) -> u32 {
        *self.known.entry(name).or_insert_with(|| {
            self.rates.push(rate());
            self.names.push(name);
            u32::try_from(self.rates.len() - 1).unwrap_or(u32::MAX)
        })
    }

    /// Forgets those from a number on.
    fn forget_from(&mut self, first: usize) {
        for name in self.names.drain(first..) {
            self.known.remove(&name);
        }
        self.rates.truncate(first);
    }
}

/// Lays connections: which way each goes, and what it takes there.
pub(super) struct Layer<'m> {
    pub(super) topology: &'m Topology,
    pub(super) profile: &'m Profile,
    protocol: Protocol,
    router: Router<'m>,
    routes: FxHashMap<(Rank, Rank, ChannelId), Route>,
    incast: Incast,
    /// Who stores to several peers through one port of an NVSwitch.
    several: FxHashSet<Rank>,
    resources: Resources,
    /// See [`super::switches`].
    pub(super) ports: FxHashMap<Rank, Ports>,
}

impl<'m> Layer<'m> {
    pub(super) fn new(router: Router<'m>, profile: &'m Profile, protocol: Protocol) -> Self {
        Self {
            topology: router.topology(),
            profile,
            protocol,
            router,
            routes: FxHashMap::default(),
            incast: Incast::default(),
            several: FxHashSet::default(),
            resources: Resources::default(),
            ports: FxHashMap::default(),
        }
    }

    /// Notes who stores to several peers through one port: those who wait for one peer hold up others.
    pub(super) fn find_several(&mut self, wiring: &Wiring) -> Result<(), LayError> {
        let mut peers: FxHashMap<Rank, Rank> = FxHashMap::default();
        for wired in &wiring.conns {
            let Some((src, dst)) = wired.conn.ranks().filter(|&(src, dst)| self.router.are_peers(src, dst)) else {
                continue;
            };
            if *peers.entry(src).or_insert(dst) == dst || self.several.contains(&src) {
                continue;
            }
            let topology = self.topology;
            let first = self.route(src, dst, wired.conn.channel, None)?.links().next();
            let switch = |&(id, _): &(LinkId, u64)| topology.vertex(topology.ends(id).1).kind == VertexKind::NvSwitch;
            if first.filter(switch).is_some() {
                self.several.insert(src);
            }
        }
        Ok(())
    }

    pub(super) fn resource(&mut self, name: ResourceName, rate: impl FnOnce() -> u64) -> u32 {
        self.resources.number(name, rate)
    }

    /// What a connection between hosts that stands for `edges` takes for all of them of those who stand for its hosts, once
    /// it is laid where it is: the resources that it made there, all those from the `before`-th on, are forgotten.
    pub(super) fn for_all(&mut self, mut conn: ConnSpec, before: usize, alike: &Alike, edges: &Edges) -> ConnSpec {
        let laid: Vec<_> = (conn.uses.iter())
            .map(|(section, (used, weight))| {
                (section, self.resources.names[used as usize], self.resources.rates[used as usize], weight)
            })
            .collect();
        self.resources.forget_from(before);
        let mut over = edges.over.clone();
        conn.uses = Uses::default();
        for (section, name, rate, weight) in laid {
            let (name, times) = match name {
                ResourceName::Link(id) => match alike.link(id) {
                    one if alike.hosts.of_link(id).0 == UNUSED => {
                        let at = over.iter().position(|link| link.0 == one);
                        (ResourceName::Link(one), at.map_or(0, |at| over.swap_remove(at).1))
                    }
                    one => (ResourceName::Link(one), edges.of(alike, alike.hosts.of_link(id).0)),
                },
                ResourceName::Memory(at) => {
                    (ResourceName::Memory(alike.vertex(at)), edges.of(alike, alike.hosts.of_vertex(at).0))
                }
                ResourceName::Direct(at, reads) => {
                    (ResourceName::Direct(alike.vertex(at), reads), edges.of(alike, alike.hosts.of_vertex(at).0))
                }
                ResourceName::Proxy(rank) => {
                    (ResourceName::Proxy(alike.rank(rank)), edges.of(alike, alike.hosts.of_rank(rank).0))
                }
                ResourceName::Helpers(_) | ResourceName::Lane(..) | ResourceName::Own(..) => (name, 1),
            };
            if times > 0 {
                conn.uses.push(section, (self.resource(name, || rate), weight * times));
            }
        }
        conn.uses.shrink_to_fit();
        conn
    }

    /// How many resources there are so far.
    pub(super) fn resources(&self) -> usize {
        self.resources.names.len()
    }

    /// The resources, the port on which most flows converge, where they are many, and what routes are made of.
    pub(super) fn finish(self) -> (Resources, Option<LinkId>, Roads) {
        (self.resources, self.incast.worst(self.topology), self.router.into_roads())
    }

    /// Weight of a share of the payload: wire format over efficiency.
    fn weight(&self, share: u64, efficiency: f64) -> u64 {
        (wire_format(self.protocol) / efficiency * share as f64).ceil() as u64
    }

    /// Adds a leg to what a connection uses, with an efficiency by kind of link.
    pub(super) fn leg(&mut self, uses: &mut Uses, section: Section, leg: &Leg, efficiency: impl Fn(LinkKind) -> f64) {
        for &(hop, share) in leg {
            let used = match hop {
                Hop::Direct(nic, reads, rate) => {
                    (self.resource(ResourceName::Direct(nic, reads), || rate.get()), self.weight(share, 1.0))
                }
                Hop::Link(id) => {
                    let id = self.topology.carrier(id);
                    let link = self.topology.link(id);
                    let weight = self.weight(share, efficiency(link.kind));
                    (self.resource(ResourceName::Link(id), || link.rate.get()), weight)
                }
                Hop::Memory(cpu) => {
                    let rate = self.profile.host_memory(is_arm(self.topology, cpu)).get();
                    (self.resource(ResourceName::Memory(cpu), || rate), self.weight(share, 1.0))
                }
            };
            uses.push(section, used);
        }
    }

    pub(super) fn proxy(&mut self, rank: Rank) -> u32 {
        let rate = self.profile.proxy_thread().get();
        self.resource(ResourceName::Proxy(rank), || rate)
    }

    /// The way of a channel from one rank to another, by the NICs that are given for it.
    pub(super) fn route(
        &mut self,
        src: Rank,
        dst: Rank,
        channel: ChannelId,
        nics: Option<(u32, u32)>,
    ) -> Result<&Route, LayError> {
        if self.routes.len() >= REMEMBERED {
            self.routes.clear();
        }
        // Channels take different ways in the network only.
        let peers = self.router.are_peers(src, dst);
        match self.routes.entry((src, dst, if peers { ChannelId(0) } else { channel })) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(new) => {
                let route = self.router.route_by(src, dst, channel, nics).ok_or(LayError::NoRoute { src, dst })?;
                self.incast.add_route(self.topology, &route);
                Ok(new.insert(route))
            }
        }
    }

    /// Whether the CPUs of a rank's host are AMD's.
    fn has_amd(&self, rank: Rank) -> bool {
        let host = &self.topology.hosts()[self.topology.host_of(rank).index()];
        let amd = |kind: &VertexKind| matches!(kind, VertexKind::Cpu { vendor } if vendor.contains("AMD"));
        host.cpus.iter().any(|&cpu| amd(&self.topology.vertex(cpu).kind))
    }

    /// Whether the receiver reads what a sender has through EFA, as messages of libfabric's EFA provider do that lie in
    /// GPU memory (`prov/efa/docs/efa_rdm_protocol_v4.md`, long read): a packet says where they are, and another that they
    /// have been read. Below p5 aws-ofi-nccl sends such messages, from there on it writes (`platform_data_map`).
    fn reads(&self, route: &Route) -> bool {
        route.reach == Reach::Efa && route.staged == [false; 2] && self.topology.compute_capability() < 90
    }

    /// Work of the sender's proxy and of the receiver's on a message through EFA, by what each posts and is told of. Where
    /// aws-ofi-nccl writes, the receiver posts a word that it has a place (`src/nccl_ofi_rdma.cpp`), of which the sender
    /// is told; where the receiver reads, it is told of the message and posts the read, the word that it has read, and
    /// the flush.
    fn efa_work(&self, reads: bool) -> (SimDuration, SimDuration) {
        let (post, told) = (self.profile.proxy(), self.profile.receive());
        (post + told, told + if reads { post + post + post } else { post })
    }

    /// A connection from one rank to another, the `index`-th of all.
    pub(super) fn pair(
        &mut self,
        (src, dst): (Rank, Rank),
        channel: ChannelId,
        nics: Option<(u32, u32)>,
        index: u32,
    ) -> Result<ConnSpec, LayError> {
        let (profile, protocol) = (self.profile, self.protocol);
        let route = self.route(src, dst, channel, nics)?.clone();
        let network = matches!(route.reach, Reach::Network | Reach::Efa | Reach::Tcp);
        let reads = self.reads(&route);
        let several = self.several.contains(&src);
        let efficiency = |kind| {
            let turns = if several && kind == LinkKind::Nvlink { profile.turns(protocol) } else { 1.0 };
            profile.efficiency(kind) * turns
        };
        let mut uses = Uses::default();
        self.leg(&mut uses, Section::Store, &route.store, efficiency);
        let (mut post, mut inline, mut check, mut take) = ([0; 2], 0, 0, 0);
        if network {
            let (cost, taking) = match route.reach {
                Reach::Tcp => (profile.socket_message(), SimDuration::ZERO),
                Reach::Efa => self.efa_work(reads),
                _ => (profile.proxy(), profile.receive()),
            };
            let work = profile.proxy_thread().bytes_in(cost).0;
            post = [work; 2];
            if route.reach == Reach::Tcp {
                // NCCL's `src/transport/net_socket.cc`: a header goes first, and data after it, but for the little that
                // goes with the header.
                post[0] = work / 2;
                inline = (f64::from(self.router.socket_inline()) / wire_format(protocol)) as u64;
            }
            // NCCL's `src/transport/net.cc`: the thread that sends lines of LL reads them all before, from when it
            // knows how many there will be, which it is told before they are stored (`src/device/prims_ll.h`). What a
            // message through sockets costs is known as a whole.
            if protocol == Protocol::Ll && route.reach != Reach::Tcp {
                let lines = profile.lines(self.has_amd(src));
                let thread = u128::from(profile.proxy_thread().get()) * u128::from(2 * WEIGHT_ONE);
                check = u64::try_from(thread / u128::from(lines.get())).unwrap_or(u64::MAX);
            }
            uses.push(Section::Posting, (self.proxy(route.poster.unwrap_or(src)), WEIGHT_ONE));
            if route.reach == Reach::Tcp {
                uses.push(Section::Posting, (self.proxy(dst), WEIGHT_ONE));
            } else {
                uses.push(Section::Taking, (self.proxy(dst), WEIGHT_ONE));
                take = profile.proxy_thread().bytes_in(taking).0;
            }
        }
        self.leg(&mut uses, Section::Transfer, &route.wire, efficiency);
        if route.reach == Reach::Tcp {
            // Threads copy what goes through sockets: helpers of the connection, or the proxy's.
            let weight = self.weight(WEIGHT_ONE, 1.0);
            let (helpers, _) = self.router.sockets(self.topology.host_of(src).index());
            if helpers > 0 {
                let rate = profile.proxy_thread().times(u64::from(helpers)).get();
                uses.push(Section::Transfer, (self.resource(ResourceName::Helpers(index), || rate), weight));
            } else {
                [src, dst].iter().for_each(|&rank| uses.push(Section::Transfer, (self.proxy(rank), weight)));
            }
        }
        self.leg(&mut uses, Section::Load, &route.load, efficiency);
        // A thread that copies what it sends does nothing else meanwhile.
        let overlap = (network && route.reach != Reach::Tcp).then(|| {
            let alone = |&(resource, weight): &Use| {
                let rate = u128::from(self.resources.rates[resource as usize]) * u128::from(WEIGHT_ONE);
                u64::try_from(rate / u128::from(weight.max(1))).unwrap_or(u64::MAX)
            };
            let wire = uses.of(Section::Transfer).iter();
            [profile.proxy_thread().get(), wire.map(alone).min().unwrap_or(0)]
        });
        uses.shrink_to_fit();
        let mut latency = profile.latency(route.reach, protocol);
        let ethernet =
            |&(nic, _): &(VertexId, VertexId)| self.topology.nic(nic).is_some_and(|n| n.kind == LinkKind::Ethernet);
        if route.reach == Reach::Network && route.nics.iter().any(ethernet) {
            // GPUDirect-TCPX and TCPXO: no thread copies, and yet TCP carries it.
            latency += profile.tcp();
        }
        let [stores, sees] = route.staged;
        if network && stores {
            // A block's stores into host memory, with their fence, go over PCIe.
            latency += profile.latency(Reach::Pcie, protocol);
        }
        if sees {
            // A block asks host memory for flags again and again. The question that finds one comes half of its way there
            // and back after it, and the answer takes the other half.
            latency += profile.host_read();
        }
        let flushed = route.flushed && protocol == Protocol::Simple;
        let flush = if flushed { profile.flush(route.reach) } else { SimDuration::ZERO };
        let control = if network { profile.control(route.reach) } else { latency };
        // A receiver that reads has its place free when it asks, and says that it has read when it has.
        let (credit, ack, announce) = match reads {
            true => (SimDuration::ZERO, control + control, control),
            false => (control, control, SimDuration::ZERO),
        };
        Ok(ConnSpec {
            uses,
            latency,
            credit,
            streaming: protocol != Protocol::Simple && route.reach != Reach::Tcp,
            direct: !network && route.staged == [false; 2] && protocol == Protocol::Simple,
            depth: 0,
            proxy: network.then_some(ProxySpec { flush, ack }),
            post,
            inline,
            check,
            take,
            eager: if route.reach == Reach::Efa { (EAGER / wire_format(protocol)) as u64 } else { 0 },
            announce,
            overlap,
        })
    }
}

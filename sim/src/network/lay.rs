//! Lays a schedule on a machine: resources, weights and latencies for the engine.

use std::collections::hash_map::Entry;
use std::hash::{DefaultHasher, Hash, Hasher};

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::Transport;
use super::route::{Hop, Leg, Route, Router};
use super::switches::Ports;
use crate::collective::Protocol;
use crate::engine::flows::{Use, WEIGHT_ONE};
use crate::engine::{Access, ConnSpec, Instance, KernelSpec, ProxySpec, lane_of};
use crate::ids::{ChannelId, Lane, LinkId, Rank, VertexId};
use crate::profile::{Profile, Reach};
use crate::schedule::wiring::{Wiring, WiringError};
use crate::schedule::{Conn, End, Schedule};
use crate::topology::{LinkKind, Topology, VertexKind};
use crate::units::{SimDuration, SimTime};

/// What a resource of an instance is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ResourceName {
    /// A link direction.
    Link(LinkId),
    /// The memory of a CPU, or of a GPU that copies for itself alone.
    Memory(VertexId),
    /// What a NIC reads (`true`) or writes itself of GPU memory.
    Direct(VertexId, bool),
    /// The thread of a rank that drives all its connections over the network.
    Proxy(Rank),
    /// The helper threads of one connection over sockets.
    Helpers(u32),
    /// The warps of a rank, channel and lane, the first of those that share them.
    Lane(Rank, ChannelId, Lane),
    /// Those that a lane has for itself of warps that it shares.
    Own(Rank, ChannelId, Lane),
}

/// An instance with the names of its resources.
#[derive(Debug)]
pub struct Laid<'a> {
    /// For the engine.
    pub instance: Instance<'a>,
    /// By resource.
    pub names: Vec<ResourceName>,
    /// The schedule's workers and connections, in the instance's order.
    pub wiring: Wiring,
    /// A port of a lossless fabric on which so many flows converge that its congestion, which is
    /// not modelled, may matter.
    pub congested: Option<LinkId>,
}

impl Laid<'_> {
    /// A hash of all that decides how it runs: equal ones run alike, whatever their resources are called.
    pub(crate) fn identity(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let Instance { resources, conns, lanes, kernels, schedules, tasks: _ } = &self.instance;
        (resources, conns, kernels).hash(&mut hasher);
        for lane in lanes {
            (lane.job, lane.template, &lane.recv, &lane.send, &lane.tokens, lane.issue.0, lane.own).hash(&mut hasher);
            (lane.costs(), lane.element, lane.kernel, lane.multiplicity).hash(&mut hasher);
        }
        schedules.iter().for_each(|schedule| schedule.identity().hash(&mut hasher));
        hasher.finish()
    }

    /// Leaves blocks so much of their rate.
    pub(crate) fn slow_blocks(&mut self, kept: f64) {
        for (rate, name) in self.instance.resources.iter_mut().zip(&self.names) {
            if matches!(name, ResourceName::Lane(..) | ResourceName::Own(..)) {
                *rate = ((*rate as f64 * kept) as u64).max(1);
            }
        }
    }
}

/// From so many times the rate of a port in NICs that send through it, all at once, incast is
/// taken to matter. The trees and rings of NCCL let at most 6 neighbours meet in one port.
const INCAST: u64 = 8;

/// Routes that are remembered while a schedule is laid: all of those that channels of rings and trees share, of which a
/// large machine has some 50,000. In an all-to-all each pair of ranks is asked for once, a million of them and more.
const REMEMBERED: usize = 1 << 16;

/// Groups of channels that start one after the other, in calls inside one host. Channels in step would
/// all copy at once and all synchronise at once, with the link idle; the little that they start apart
/// grows, since who is early finds the link less busy, until they take turns. So many groups are within
/// 1% of every channel apart (4 H200, rings of 64 MiB to 4 GiB), and the channels of a group still fold.
/// Over several hosts all start at once, except where they fetch their work: the links inside hosts seldom
/// bound such calls, and a simulation with four times the lanes takes eight times as long.
const STARTS: u32 = 4;

/// Why a schedule could not be laid on a machine.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum LayError {
    /// A flaw of the schedule.
    #[error(transparent)]
    Wiring(#[from] WiringError),
    /// No route.
    #[error(
        "no route from rank {src} to rank {dst}: hosts need NICs that are up and joined by a fabric, GPUs without peer access a CPU"
    )]
    NoRoute {
        /// Sender.
        src: Rank,
        /// Receiver.
        dst: Rank,
    },
    /// No NVSwitch that reduces and multicasts.
    #[error("`{topology}` cannot reduce in NVSwitch: {reason}; use ring or tree")]
    NoMulticast {
        /// Name of the machine.
        topology: String,
        /// What it lacks.
        reason: String,
    },
    /// No network that reduces.
    #[error(
        "the network of `{0}` does not reduce (no SHARP): use ring or tree, or say `sharp = true` in its [fabric] if it does"
    )]
    NoSharp(String),
}

/// Bytes on the wire per byte of payload.
fn wire_format(protocol: Protocol) -> f64 {
    match protocol {
        Protocol::Ll => 2.0,
        Protocol::Ll128 => 16.0 / 15.0,
        Protocol::Simple => 1.0,
    }
}

/// Bytes of data in the lines that a thread takes at once; 0 where it goes by slices. With LL one of 8 bytes
/// (NCCL 2.30 `src/device/prims_ll.h`); with LL128 8 words of 8 bytes, of each 16 of which one is a flag
/// (`src/include/device.h`, `NCCL_LL128_SHMEM_ELEMS_PER_THREAD`).
fn thread_lines(protocol: Protocol) -> u64 {
    match protocol {
        Protocol::Ll => 8,
        Protocol::Ll128 => 60,
        Protocol::Simple => 0,
    }
}

/// Counts which NICs send through which ports of switches.
#[derive(Default)]
struct Incast {
    seen: FxHashSet<(LinkId, VertexId)>,
    offered: FxHashMap<LinkId, u64>,
}

impl Incast {
    fn add(&mut self, topology: &Topology, route: &Route) {
        for (id, _) in route.links() {
            let link = topology.link(id);
            let lossless = matches!(link.kind, LinkKind::Infiniband | LinkKind::Roce);
            if !lossless || !matches!(topology.vertex(topology.ends(id).0).kind, VertexKind::NetSwitch { .. }) {
                continue;
            }
            for &(nic, _) in &route.nics {
                if self.seen.insert((id, nic)) {
                    *self.offered.entry(id).or_default() += topology.nic(nic).map_or(0, |n| n.rate.get());
                }
            }
        }
    }

    /// The port with the most, if that is much.
    fn worst(&self, topology: &Topology) -> Option<LinkId> {
        let ports = self.offered.iter().map(|(&id, &sum)| (sum / topology.link(id).rate.get(), std::cmp::Reverse(id)));
        ports.max().filter(|p| p.0 >= INCAST).map(|p| p.1.0)
    }
}

/// The resources of an instance, each made when it is first used.
pub(super) struct Layer<'m> {
    pub(super) topology: &'m Topology,
    pub(super) profile: &'m Profile,
    protocol: Protocol,
    router: Router<'m>,
    routes: FxHashMap<(Rank, Rank, ChannelId), Route>,
    incast: Incast,
    /// Who stores to several peers through one port of an NVSwitch.
    several: FxHashSet<Rank>,
    rates: Vec<u64>,
    names: Vec<ResourceName>,
    known: FxHashMap<ResourceName, u32>,
    /// See [`super::switches`].
    pub(super) ports: FxHashMap<Rank, Ports>,
}

impl<'m> Layer<'m> {
    fn new(topology: &'m Topology, profile: &'m Profile, transport: &Transport, schedule: &Schedule) -> Self {
        let protocol = schedule.plan.protocol;
        let router = Router::with(topology, *transport).among(schedule.call.ranks);
        Self {
            topology,
            profile,
            protocol,
            router: router.with_lines(protocol == Protocol::Ll),
            routes: FxHashMap::default(),
            incast: Incast::default(),
            several: FxHashSet::default(),
            rates: Vec::new(),
            names: Vec::new(),
            known: FxHashMap::default(),
            ports: FxHashMap::default(),
        }
    }

    /// Notes who stores to several peers through one port: those who wait for one peer hold up others.
    fn find_several(&mut self, wiring: &Wiring) -> Result<(), LayError> {
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

    fn resource(&mut self, name: ResourceName, rate: impl FnOnce() -> u64) -> u32 {
        *self.known.entry(name).or_insert_with(|| {
            self.rates.push(rate());
            self.names.push(name);
            u32::try_from(self.rates.len() - 1).unwrap_or(u32::MAX)
        })
    }

    /// Weight of a share of the payload: wire format over efficiency.
    fn weight(&self, share: u64, efficiency: f64) -> u64 {
        (wire_format(self.protocol) / efficiency * share as f64).ceil() as u64
    }

    /// Adds a leg to what a connection uses, with an efficiency by kind of link.
    pub(super) fn leg(&mut self, uses: &mut SmallVec<[Use; 4]>, leg: &Leg, efficiency: impl Fn(LinkKind) -> f64) {
        for &(hop, share) in leg {
            uses.push(match hop {
                Hop::Direct(nic, reads, rate) => {
                    (self.resource(ResourceName::Direct(nic, reads), || rate.get()), self.weight(share, 1.0))
                }
                Hop::Link(id) => {
                    let link = self.topology.link(id);
                    let weight = self.weight(share, efficiency(link.kind));
                    (self.resource(ResourceName::Link(id), || link.rate.get()), weight)
                }
                Hop::Memory(cpu) => {
                    let rate = self.profile.host_memory().get();
                    (self.resource(ResourceName::Memory(cpu), || rate), self.weight(share, 1.0))
                }
            });
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
                self.incast.add(self.topology, &route);
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

    /// A connection from one rank to another, the `index`-th of all.
    fn pair(
        &mut self,
        (src, dst): (Rank, Rank),
        channel: ChannelId,
        nics: Option<(u32, u32)>,
        index: u32,
    ) -> Result<ConnSpec, LayError> {
        let (profile, protocol) = (self.profile, self.protocol);
        let route = self.route(src, dst, channel, nics)?.clone();
        let network = matches!(route.reach, Reach::Network | Reach::Efa | Reach::Tcp);
        let several = self.several.contains(&src);
        let efficiency = |kind| {
            let turns = if several && kind == LinkKind::Nvlink { profile.turns(protocol) } else { 1.0 };
            profile.efficiency(kind) * turns
        };
        let mut uses: SmallVec<[Use; 4]> = SmallVec::new();
        let mut parts = [0; 3];
        let end = |uses: &SmallVec<[Use; 4]>| u16::try_from(uses.len()).unwrap_or(u16::MAX);
        self.leg(&mut uses, &route.store, efficiency);
        parts[0] = end(&uses);
        let (mut post, mut check) = ([0; 2], 0);
        if network {
            let cost = if route.reach == Reach::Tcp { profile.socket_message() } else { profile.proxy() };
            let work = profile.proxy_thread().bytes_in(cost).0;
            // Through a socket an empty slice is a header alone, another one header and data.
            post = if route.reach == Reach::Tcp { [work / 2, work] } else { [work; 2] };
            // NCCL's `src/transport/net.cc`: the thread that sends lines of LL reads them all before, from when it
            // knows how many there will be, which it is told before they are stored (`src/device/prims_ll.h`). What a
            // message through sockets costs is known as a whole.
            if protocol == Protocol::Ll && route.reach != Reach::Tcp {
                let lines = profile.lines(self.has_amd(src));
                let thread = u128::from(profile.proxy_thread().get()) * u128::from(2 * WEIGHT_ONE);
                check = u64::try_from(thread / u128::from(lines.get())).unwrap_or(u64::MAX);
            }
            uses.push((self.proxy(src), WEIGHT_ONE));
            if route.reach == Reach::Tcp {
                uses.push((self.proxy(dst), WEIGHT_ONE));
            }
        }
        parts[1] = end(&uses);
        self.leg(&mut uses, &route.wire, efficiency);
        if route.reach == Reach::Tcp {
            // Threads copy what goes through sockets: helpers of the connection, or the proxy's.
            let weight = self.weight(WEIGHT_ONE, 1.0);
            let (helpers, _) = self.router.sockets(self.topology.host_of(src).index());
            if helpers > 0 {
                let rate = profile.proxy_thread().times(u64::from(helpers)).get();
                uses.push((self.resource(ResourceName::Helpers(index), || rate), weight));
            } else {
                uses.extend([src, dst].map(|rank| (self.proxy(rank), weight)));
            }
        }
        parts[2] = end(&uses);
        self.leg(&mut uses, &route.load, efficiency);
        // A thread that copies what it sends does nothing else meanwhile.
        let overlap = (network && route.reach != Reach::Tcp).then(|| {
            let alone = |&(resource, weight): &Use| {
                let rate = u128::from(self.rates[resource as usize]) * u128::from(WEIGHT_ONE);
                u64::try_from(rate / u128::from(weight.max(1))).unwrap_or(u64::MAX)
            };
            let wire = &uses[usize::from(parts[1])..usize::from(parts[2])];
            [profile.proxy_thread().get(), wire.iter().map(alone).min().unwrap_or(0)]
        });
        uses.shrink_to_fit();
        let mut latency = profile.latency(route.reach, protocol);
        if network {
            // A block's stores into host memory, with their fence, go over PCIe, as does its sight of a flag there.
            let [stores, sees] = route.staged;
            for (_, protocol) in [(stores, protocol), (sees, Protocol::Ll)].into_iter().filter(|end| end.0) {
                latency += profile.latency(Reach::Pcie, protocol);
            }
        }
        let flushed = route.flushed && protocol == Protocol::Simple;
        let flush = if flushed { profile.flush() } else { SimDuration::ZERO };
        let control = if network { profile.control(route.reach) } else { latency };
        Ok(ConnSpec {
            uses,
            parts,
            latency,
            credit: control,
            streaming: protocol != Protocol::Simple && route.reach != Reach::Tcp,
            direct: !network && route.staged == [false; 2] && protocol == Protocol::Simple,
            depth: 0,
            proxy: network.then_some(ProxySpec { flush, ack: control }),
            post,
            check,
            overlap,
        })
    }
}

/// Lays a schedule on the first ranks of a machine.
///
/// # Errors
/// A flaw of the schedule, two ranks without a route, or a switch that cannot combine.
pub fn lay<'a>(
    topology: &Topology,
    profile: &Profile,
    transport: &Transport,
    schedule: &'a Schedule,
) -> Result<Laid<'a>, LayError> {
    let wiring = Wiring::new(schedule)?;
    let protocol = schedule.plan.protocol;
    let kernels = vec![KernelSpec { rounds: 1, gap: SimDuration::ZERO }; schedule.call.ranks as usize];
    let mut instance = Instance { schedules: vec![schedule], kernels, ..Instance::default() };
    instance.conns.reserve_exact(wiring.conns.len());
    instance.lanes.reserve_exact(wiring.workers.len());
    let mut layer = Layer::new(topology, profile, transport, schedule);
    layer.find_several(&wiring)?;
    for (index, wired) in (0..).zip(&wiring.conns) {
        let channel = wired.conn.channel;
        let mut conn = match wired.conn.ranks() {
            Some((src, dst)) => {
                let nics = schedule.nics((src, dst), channel);
                let mut conn = layer.pair((src, dst), channel, nics, index)?;
                // A proxy works once for all that goes as one message.
                let packed = u64::from(schedule.packed(src, dst));
                conn.post = conn.post.map(|work| work.div_ceil(packed));
                conn
            }
            None => {
                let ranks = |workers: &[u32]| workers.iter().map(|&w| wiring.workers[w as usize].rank).collect();
                let (senders, receivers): (Vec<Rank>, Vec<Rank>) = (ranks(&wired.senders), ranks(&wired.receivers));
                layer.group(&senders, &receivers, wired.conn)?
            }
        };
        conn.direct &= schedule.plan.direct;
        conn.depth = schedule.plan.fifo_slices;
        instance.conns.push(conn);
    }
    let reduce_weight = (profile.reduce_weight(schedule.call.dtype) * WEIGHT_ONE as f64) as u64;
    let inside = (1..schedule.call.ranks).all(|rank| topology.host_of(Rank(rank)) == topology.host_of(Rank(0)));
    let fetches = schedule.plan.fetches;
    let used = schedule.plan.used();
    let together = match (fetches, inside) {
        (true, _) => 1,
        (false, true) => (used.1 - used.0).div_ceil(STARTS).max(1),
        (false, false) => used.1.max(1),
    };
    for worker in &wiring.workers {
        let rate = profile.block_rate(protocol);
        let mut lane = lane_of(worker, 0, schedule.element_size());
        let warps = ResourceName::Lane(worker.rank, worker.channel, worker.team);
        lane.issue = (layer.resource(warps, || rate.get()), WEIGHT_ONE);
        // What lanes that share a multiprocessor load waits with the threads of each alone.
        if worker.others > 0 {
            let own = ResourceName::Own(worker.rank, worker.channel, worker.lane);
            let threads = worker.threads.saturating_sub(worker.others).max(1);
            let longer = u64::from(worker.threads) * WEIGHT_ONE / u64::from(threads);
            lane.own = Some((layer.resource(own, || rate.get()), longer));
        }
        lane.kernel = worker.rank.0;
        // NCCL's `src/device/prims_simple.h`: a head loads once it has seen the counters, and fences what it
        // multicasts before it says so.
        let is_group = |end: End| matches!(end, End::Group(_));
        let through = |conns: &[u32], end: fn(&Conn) -> End| {
            let of_switch = |&&c: &&u32| instance.conns.get(c as usize).is_some_and(|c| c.proxy.is_none());
            conns.iter().filter(of_switch).filter(|&&c| is_group(end(&wiring.conns[c as usize].conn))).count() as u64
        };
        let trips = through(&worker.recv, |conn| conn.src) + through(&worker.send, |conn| conn.dst);
        lane.sync = profile.sync(protocol) + profile.latency_multimem().1.times(trips);
        lane.both = profile.both(protocol);
        lane.after = profile.after(protocol);
        lane.wave = u64::from(worker.threads) * thread_lines(protocol);
        lane.reduce_weight = reduce_weight;
        // Who lays data out for a switch to combine, or takes what it multicast, copies inside one memory.
        let one_of = |conns: &[u32], end: fn(&Conn) -> End| match conns {
            [conn] => wiring.conns.get(*conn as usize).is_some_and(|c| matches!(end(&c.conn), End::Group(_))),
            _ => false,
        };
        let lays_out = worker.recv.is_empty() && one_of(&worker.send, |conn| conn.src);
        let takes = worker.send.is_empty() && one_of(&worker.recv, |conn| conn.dst);
        let copies = protocol == Protocol::Simple && (lays_out || takes);
        // A thread has 8 loads of 16 bytes on their way with Simple from A100 on, but 4 with NCCL 2.8 (`COLL_UNROLL`).
        let capability = topology.gpu(topology.gpu_of(worker.rank)).map_or(0, |gpu| gpu.compute_capability);
        let fewer = fetches && protocol == Protocol::Simple && capability >= 80;
        let loading = if fewer { worker.threads.div_ceil(2) } else { worker.threads };
        lane.access = if copies { profile.copy(loading) } else { profile.access(protocol, loading) };
        let staged = |&conn: &u32| {
            let conn = instance.conns.get(conn as usize).filter(|c| c.proxy.is_some());
            conn.is_some_and(|c| usize::from(c.parts[2]) < c.uses.len())
        };
        if fetches && protocol == Protocol::Simple && worker.recv.iter().any(staged) {
            lane.access.fetch = lane.access.fetch.max(profile.fetch_from_host(rate, worker.threads));
        }
        let first = worker.channel.0 / together * together;
        // Nobody stores into a buffer of a peer before word that its kernel has begun.
        let conns = lane.recv.iter().chain(&lane.send).filter_map(|&conn| instance.conns.get(conn as usize));
        let word = conns.filter(|conn| conn.direct).map(|conn| conn.latency).max().unwrap_or_default();
        let begun = if fetches { profile.block_fetch(first) } else { profile.block_start(first) };
        lane.at = SimTime((begun + word).0);
        // NCCL leaves the copy of one rank to the driver (`src/enqueue.cc`), which memory alone bounds.
        let gpu = topology.gpu_of(worker.rank);
        if let Some(nominal) = topology.gpu(gpu).and_then(|g| g.memory_rate).filter(|_| schedule.call.ranks == 1) {
            let rate = profile.memory(nominal) as u64;
            lane.issue = (layer.resource(ResourceName::Memory(gpu), || rate), 2 * WEIGHT_ONE);
            lane.access = Access::EVEN;
            lane.own = None;
        }
        instance.lanes.push(lane);
    }
    let congested = layer.incast.worst(topology);
    let Layer { rates, names, .. } = layer;
    instance.resources = rates;
    Ok(Laid { instance, names, wiring, congested })
}

/// The smallest latency of any connection of an instance.
pub fn smallest_latency(instance: &Instance<'_>) -> SimDuration {
    instance.conns.iter().map(|c| c.latency).min().unwrap_or_default()
}

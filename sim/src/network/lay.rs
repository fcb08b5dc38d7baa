//! Lays a schedule on a machine: resources, weights and latencies for the engine.

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::Transport;
use super::route::{Hop, Leg, Route, Router};
use crate::collective::Protocol;
use crate::engine::flows::{Use, WEIGHT_ONE};
use crate::engine::{ConnSpec, Instance, KernelSpec, lane_of};
use crate::ids::{ChannelId, Lane, LinkId, Rank, VertexId};
use crate::measurement::PeerAccess;
use crate::profile::{Profile, Reach};
use crate::schedule::Schedule;
use crate::schedule::wiring::{Wiring, WiringError};
use crate::topology::{LinkKind, Topology, VertexKind};
use crate::units::SimDuration;

/// What a resource of an instance is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ResourceName {
    /// A link direction.
    Link(LinkId),
    /// The memory of a CPU.
    Memory(VertexId),
    /// The thread of a rank that drives all its connections over the network.
    Proxy(Rank),
    /// The helper threads of one connection over sockets.
    Helpers(u32),
    /// The warps of a rank, channel and lane.
    Lane(Rank, ChannelId, Lane),
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

/// From so many times the rate of a port in NICs that send through it, all at once, incast is
/// taken to matter. The trees and rings of NCCL let at most 6 neighbours meet in one port.
const INCAST: u64 = 8;

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
}

/// Bytes on the wire per byte of payload.
fn wire_format(protocol: Protocol) -> f64 {
    match protocol {
        Protocol::Ll => 2.0,
        Protocol::Ll128 => 16.0 / 15.0,
        Protocol::Simple => 1.0,
    }
}

/// The resources of an instance, each made when it is first used.
struct Resources<'m> {
    topology: &'m Topology,
    profile: &'m Profile,
    wire: f64,
    rates: Vec<u64>,
    names: Vec<ResourceName>,
    known: FxHashMap<ResourceName, u32>,
}

impl Resources<'_> {
    fn get(&mut self, name: ResourceName, rate: impl FnOnce() -> u64) -> u32 {
        *self.known.entry(name).or_insert_with(|| {
            self.rates.push(rate());
            self.names.push(name);
            u32::try_from(self.rates.len() - 1).unwrap_or(u32::MAX)
        })
    }

    /// Weight of a share of the payload: wire format over efficiency.
    fn weight(&self, share: u64, efficiency: f64) -> u64 {
        (self.wire / efficiency * share as f64).ceil() as u64
    }

    fn hop(&mut self, hop: Hop, share: u64) -> Use {
        match hop {
            Hop::Link(id) => {
                let link = self.topology.link(id);
                let weight = self.weight(share, self.profile.efficiency(link.kind));
                (self.get(ResourceName::Link(id), || link.rate.get()), weight)
            }
            Hop::Memory(cpu) => {
                let rate = self.profile.host_memory().get();
                (self.get(ResourceName::Memory(cpu), || rate), self.weight(share, 1.0))
            }
        }
    }

    fn leg(&mut self, uses: &mut SmallVec<[Use; 4]>, leg: &Leg) {
        uses.extend(leg.iter().map(|&(hop, share)| self.hop(hop, share)));
    }

    fn proxy(&mut self, rank: Rank) -> u32 {
        let rate = self.profile.proxy_thread().get();
        self.get(ResourceName::Proxy(rank), || rate)
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

/// Lays a schedule on the first ranks of a machine.
///
/// # Errors
/// A flaw of the schedule, or two ranks without a route.
pub fn lay<'a>(
    topology: &Topology,
    profile: &Profile,
    transport: &Transport,
    schedule: &'a Schedule,
) -> Result<Laid<'a>, LayError> {
    let wiring = Wiring::new(schedule)?;
    let protocol = schedule.plan.protocol;
    let wire = wire_format(protocol);
    let mut router = Router::with(topology, *transport);
    let kernels = vec![KernelSpec { rounds: 1, gap: SimDuration::ZERO }; schedule.call.ranks as usize];
    let mut instance = Instance { schedules: vec![schedule], kernels, ..Instance::default() };
    let mut resources =
        Resources { topology, profile, wire, rates: vec![], names: vec![], known: FxHashMap::default() };
    let mut routes: FxHashMap<(Rank, Rank, ChannelId), Route> = FxHashMap::default();
    let mut incast = Incast::default();
    for (index, wired) in (0..).zip(&wiring.conns) {
        let conn = wired.conn;
        // Channels take different ways in the network only.
        let peers =
            transport.peer_access != PeerAccess::Net && topology.host_of(conn.src) == topology.host_of(conn.dst);
        let key = (conn.src, conn.dst, if peers { ChannelId(0) } else { conn.channel });
        let nics = schedule.nic(conn.src, conn.channel).zip(schedule.nic(conn.dst, conn.channel));
        let route = match routes.get(&key) {
            Some(route) => route,
            None => {
                let route = router.route_by(conn.src, conn.dst, conn.channel, nics);
                let route = route.ok_or(LayError::NoRoute { src: conn.src, dst: conn.dst })?;
                incast.add(topology, &route);
                routes.entry(key).or_insert(route)
            }
        };
        let network = matches!(route.reach, Reach::Network | Reach::Tcp);
        let mut uses: SmallVec<[Use; 4]> = SmallVec::new();
        let mut parts = [0; 3];
        resources.leg(&mut uses, &route.store);
        parts[0] = u8::try_from(uses.len()).unwrap_or(u8::MAX);
        let mut post = [0; 2];
        if network {
            let cost = if route.reach == Reach::Tcp { profile.socket_message() } else { profile.proxy() };
            let work = profile.proxy_thread().bytes_in(cost).0;
            // Through a socket an empty slice is a header alone, another one header and data.
            post = if route.reach == Reach::Tcp { [work / 2, work] } else { [work; 2] };
            uses.push((resources.proxy(conn.src), WEIGHT_ONE));
            if route.reach == Reach::Tcp {
                uses.push((resources.proxy(conn.dst), WEIGHT_ONE));
            }
        }
        parts[1] = u8::try_from(uses.len()).unwrap_or(u8::MAX);
        resources.leg(&mut uses, &route.wire);
        if route.reach == Reach::Tcp {
            // Threads copy what goes through sockets: helpers of the connection, or the proxy's.
            let weight = resources.weight(WEIGHT_ONE, 1.0);
            let (helpers, _) = router.sockets(topology.host_of(conn.src).index());
            if helpers > 0 {
                let rate = profile.proxy_thread().times(u64::from(helpers)).get();
                uses.push((resources.get(ResourceName::Helpers(index), || rate), weight));
            } else {
                uses.extend([conn.src, conn.dst].map(|rank| (resources.proxy(rank), weight)));
            }
        }
        parts[2] = u8::try_from(uses.len()).unwrap_or(u8::MAX);
        resources.leg(&mut uses, &route.load);
        let mut latency = profile.latency(route.reach, protocol);
        if network {
            // A flag in host memory is seen over PCIe.
            latency += profile.latency(Reach::Pcie, Protocol::Ll).times(u64::from(route.staged));
        }
        instance.conns.push(ConnSpec {
            uses,
            parts,
            latency,
            streaming: protocol != Protocol::Simple && !network,
            direct: schedule.plan.direct && !network && route.staged == 0,
            depth: schedule.plan.fifo_slices,
            proxy: network.then_some(SimDuration::ZERO),
            post,
        });
    }
    let congested = incast.worst(topology);
    let Resources { rates, mut names, .. } = resources;
    instance.resources = rates;
    let reduce_weight = (profile.reduce_weight(schedule.call.dtype) * WEIGHT_ONE as f64) as u64;
    for worker in &wiring.workers {
        let rate = profile.lane_rate(protocol, worker.threads);
        instance.resources.push(rate.get());
        names.push(ResourceName::Lane(worker.rank, worker.channel, worker.lane));
        let mut lane = lane_of(worker, 0, schedule.element_size());
        lane.issue = (u32::try_from(instance.resources.len() - 1).unwrap_or(u32::MAX), WEIGHT_ONE);
        lane.kernel = worker.rank.0;
        lane.sync = profile.sync(protocol);
        lane.after = profile.after(protocol);
        // A thread of LL has one half-line of data in flight; the hop of LL128, which is cited
        // and not a bare ping-pong, includes its first lines.
        lane.wave = if protocol == Protocol::Ll { u64::from(worker.threads) * 8 } else { 0 };
        lane.reduce_weight = reduce_weight;
        instance.lanes.push(lane);
    }
    Ok(Laid { instance, names, wiring, congested })
}

/// The smallest latency of any connection of an instance.
pub fn smallest_latency(instance: &Instance<'_>) -> SimDuration {
    instance.conns.iter().map(|c| c.latency).min().unwrap_or_default()
}

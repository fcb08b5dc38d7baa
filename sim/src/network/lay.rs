//! Lays a schedule on a machine: resources, weights and latencies for the engine.

use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::route::{Route, Router};
use crate::collective::Protocol;
use crate::engine::flows::{Use, WEIGHT_ONE};
use crate::engine::{ConnSpec, Instance, lane_of};
use crate::ids::{ChannelId, Lane, LinkId, Rank, VertexId};
use crate::profile::{Profile, Reach};
use crate::schedule::wiring::{Wiring, WiringError};
use crate::schedule::{Conn, End, Schedule};
use crate::topology::{LinkKind, Topology, VertexKind};
use crate::units::SimDuration;

/// What a resource of an instance is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResourceName {
    /// A link direction.
    Link(LinkId),
    /// The warps of a rank, channel and lane, the first of those that share them.
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
}

/// Why a schedule could not be laid on a machine.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum LayError {
    /// A flaw of the schedule.
    #[error(transparent)]
    Wiring(#[from] WiringError),
    /// No route.
    #[error("no route from rank {src} to rank {dst}: hosts need NICs joined by a fabric")]
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

/// Units a link's resource gives per byte of payload: wire format over efficiency.
fn weight(efficiency: f64, protocol: Protocol, share: u64) -> u64 {
    let wire = match protocol {
        Protocol::Ll => 2.0,
        Protocol::Ll128 => 16.0 / 15.0,
        Protocol::Simple => 1.0,
    };
    (wire / efficiency * share as f64).ceil() as u64
}

/// Links with the share of the bytes that each carries, in parts of [`WEIGHT_ONE`].
type Shares = Vec<(LinkId, u64)>;

/// Lowest compute capability, times ten, whose NVSwitches reduce and multicast (Hopper, NVLink 4).
const MULTICAST_CAPABILITY: u32 = 90;

/// Checks that one NVSwitch fabric joins all of some ranks, and reduces and multicasts.
///
/// # Errors
/// [`LayError::NoMulticast`], saying what is missing.
pub fn check_multicast(topology: &Topology, ranks: &[Rank]) -> Result<(), LayError> {
    let lacks = |reason| Err(LayError::NoMulticast { topology: topology.name.clone(), reason });
    if topology.software.multicast_off {
        return lacks("its driver offers no NVLink multicast".to_owned());
    }
    let first = ranks.first().map(|&r| switches(topology, r)).unwrap_or_default();
    for &rank in ranks {
        let own = switches(topology, rank);
        if own.is_empty() {
            return lacks(format!("rank {rank} has no link to an NVSwitch"));
        }
        if own.iter().map(|s| s.0).ne(first.iter().map(|s| s.0)) {
            return lacks(format!("ranks {} and {rank} share no NVSwitch", ranks[0]));
        }
        // NCCL's files may not say; the graph search takes Hopper then, and so does this.
        let capability = topology.gpu(topology.gpu_of(rank)).map_or(0, |g| g.compute_capability);
        if (1..MULTICAST_CAPABILITY).contains(&capability) {
            return lacks(format!("rank {rank} has compute capability {capability}, multicast came with 90 (Hopper)"));
        }
    }
    Ok(())
}

/// Checks that the network combines what ranks of different hosts send.
///
/// # Errors
/// [`LayError::NoSharp`].
pub fn check_sharp(topology: &Topology) -> Result<(), LayError> {
    if topology.sharp { Ok(()) } else { Err(LayError::NoSharp(topology.name.clone())) }
}

/// The NVSwitches that a rank's GPU has a link to, with its links there and back.
fn switches(topology: &Topology, rank: Rank) -> Vec<(VertexId, LinkId, LinkId)> {
    let gpu = topology.gpu_of(rank);
    let back = |switch| topology.links_from(switch).find(|l| l.1 == gpu && l.2.kind == LinkKind::Nvlink);
    let mut found: Vec<_> = topology
        .links_from(gpu)
        .filter(|l| l.2.kind == LinkKind::Nvlink && matches!(topology.vertex(l.1).kind, VertexKind::NvSwitch))
        .filter_map(|(up, switch, _)| Some((switch, up, back(switch)?.0)))
        .collect();
    found.sort_unstable();
    found
}

/// Lays a schedule on the first ranks of a machine.
///
/// # Errors
/// A flaw of the schedule, two ranks without a route, or a switch that cannot combine.
pub fn lay<'a>(topology: &Topology, profile: &Profile, schedule: &'a Schedule) -> Result<Laid<'a>, LayError> {
    let wiring = Wiring::new(schedule)?;
    let protocol = schedule.plan.protocol;
    let distinct = u32::try_from(topology.hosts().iter().map(|h| h.nics.len()).max().unwrap_or(1).max(1)).unwrap_or(1);
    let mut layer = Layer {
        topology,
        profile,
        protocol,
        router: Router::new(topology),
        distinct,
        routes: FxHashMap::default(),
        link_resource: FxHashMap::default(),
        resources: Vec::new(),
        names: Vec::new(),
    };
    let mut instance = Instance { schedules: vec![schedule], ..Instance::default() };
    for wired in &wiring.conns {
        let mut conn = match wired.conn.ranks() {
            Some((src, dst)) => layer.pair(src, dst, wired.conn.channel)?,
            None => {
                let ranks = |workers: &[u32]| workers.iter().map(|&w| wiring.workers[w as usize].rank).collect();
                let (senders, receivers): (Vec<Rank>, Vec<Rank>) = (ranks(&wired.senders), ranks(&wired.receivers));
                layer.group(&senders, &receivers, wired.conn)?
            }
        };
        conn.direct = schedule.plan.direct && conn.proxy.is_none();
        conn.depth = schedule.plan.fifo_slices;
        instance.conns.push(conn);
    }
    let Layer { mut resources, mut names, .. } = layer;
    let reduce_weight = (profile.reduce_weight(schedule.call.dtype) * WEIGHT_ONE as f64) as u64;
    let mut teams: FxHashMap<(Rank, ChannelId, Lane), u32> = FxHashMap::default();
    for worker in &wiring.workers {
        let issue = *teams.entry((worker.rank, worker.channel, worker.team)).or_insert_with(|| {
            resources.push(profile.lane_rate(protocol, worker.threads).get());
            names.push(ResourceName::Lane(worker.rank, worker.channel, worker.lane));
            u32::try_from(resources.len() - 1).unwrap_or(u32::MAX)
        });
        let mut lane = lane_of(worker, 0, schedule.element_size());
        lane.issue = (issue, WEIGHT_ONE);
        lane.sync = profile.sync(protocol);
        lane.after = profile.after(protocol);
        // A thread of LL has one half-line of data in flight; the hop of LL128, which is cited
        // and not a bare ping-pong, includes its first lines.
        lane.wave = if protocol == Protocol::Ll { u64::from(worker.threads) * 8 } else { 0 };
        lane.reduce_weight = reduce_weight;
        instance.lanes.push(lane);
    }
    instance.resources = resources;
    Ok(Laid { instance, names, wiring })
}

/// Finds what connections use, and numbers the resources.
struct Layer<'t> {
    topology: &'t Topology,
    profile: &'t Profile,
    protocol: Protocol,
    router: Router<'t>,
    /// Channels after which routes repeat.
    distinct: u32,
    routes: FxHashMap<(Rank, Rank, u32), Route>,
    link_resource: FxHashMap<LinkId, u32>,
    resources: Vec<u64>,
    names: Vec<ResourceName>,
}

impl Layer<'_> {
    fn route(&mut self, src: Rank, dst: Rank, channel: ChannelId) -> Result<&Route, LayError> {
        match self.routes.entry((src, dst, channel.0 % self.distinct)) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(new) => {
                let route = self.router.route(src, dst, channel);
                Ok(new.insert(route.ok_or(LayError::NoRoute { src, dst })?))
            }
        }
    }

    /// The resources of links, with the efficiency of each for what goes over them.
    fn uses(&mut self, links: &[(LinkId, u64)], efficiency: impl Fn(LinkKind) -> f64) -> SmallVec<[Use; 4]> {
        let uses = links.iter().map(|&(id, share)| {
            let link = self.topology.link(id);
            let resource = *self.link_resource.entry(id).or_insert_with(|| {
                self.resources.push(link.rate.get());
                self.names.push(ResourceName::Link(id));
                u32::try_from(self.resources.len() - 1).unwrap_or(u32::MAX)
            });
            (resource, weight(efficiency(link.kind), self.protocol, share))
        });
        uses.collect()
    }

    fn pair(&mut self, src: Rank, dst: Rank, channel: ChannelId) -> Result<ConnSpec, LayError> {
        let (profile, protocol) = (self.profile, self.protocol);
        let route = self.route(src, dst, channel)?;
        let (links, reach) = (shares(route), route.reach);
        let network = matches!(reach, Reach::Network | Reach::Tcp);
        Ok(ConnSpec {
            uses: self.uses(&links, |kind| profile.efficiency(kind)),
            pull: false,
            latency: profile.latency(reach, protocol),
            streaming: protocol != Protocol::Simple && !network,
            direct: false,
            depth: 0,
            proxy: network.then(|| profile.proxy()),
        })
    }

    /// A connection with a group at an end: through the NVSwitch that joins all its ranks, or
    /// else through switches of the network.
    fn group(&mut self, senders: &[Rank], receivers: &[Rank], conn: Conn) -> Result<ConnSpec, LayError> {
        let (topology, profile) = (self.topology, self.profile);
        let host = topology.host_of(senders[0]);
        let members: Vec<Rank> = senders.iter().chain(receivers).copied().collect();
        let inside = check_multicast(topology, &members);
        // On one host nothing but its NVSwitch could do it, and that error says more.
        if inside.is_err() && members.iter().any(|&m| topology.host_of(m) != host) {
            check_sharp(topology)?;
            let links = self.network_links(senders, receivers, conn)?;
            return Ok(ConnSpec {
                uses: self.uses(&links, |kind| match kind.is_network() {
                    true => profile.efficiency_sharp(),
                    false => profile.efficiency(kind),
                }),
                pull: false,
                latency: profile.latency_sharp(),
                streaming: false,
                direct: false,
                depth: 0,
                proxy: Some(profile.proxy()),
            });
        }
        inside?;
        if !matches!((conn.src, conn.dst), (End::One(_), _) | (_, End::One(_))) {
            let reason = "it either reduces for one rank or multicasts from one".to_owned();
            return Err(LayError::NoMulticast { topology: topology.name.clone(), reason });
        }
        // Every member's links to the switch, or from it, once.
        let mut links = Shares::new();
        for (ranks, up) in [(senders, true), (receivers, false)] {
            for &rank in ranks {
                let ports = switches(topology, rank);
                let total: u64 = ports.iter().map(|p| topology.link(p.1).rate.get()).sum();
                for (_, to, from) in ports {
                    let id = if up { to } else { from };
                    let part = u128::from(WEIGHT_ONE) * u128::from(topology.link(to).rate.get());
                    links.push((id, u64::try_from(part.div_ceil(u128::from(total.max(1)))).unwrap_or(WEIGHT_ONE)));
                }
            }
        }
        Ok(ConnSpec {
            uses: self.uses(&links, |_| profile.efficiency_multimem()),
            // The one receiver of a reduction loads it; a multicast is stored by its one sender.
            pull: matches!(conn.dst, End::One(_)),
            latency: profile.latency_multimem(),
            streaming: false,
            direct: false,
            depth: 0,
            proxy: None,
        })
    }

    /// The links of a reduction or multicast in the network, each once: switches combine what
    /// goes up to the one receiver, and copy what comes down from the one sender. Between groups
    /// the switch beside the first receiver is the top of both trees.
    fn network_links(&mut self, senders: &[Rank], receivers: &[Rank], conn: Conn) -> Result<Shares, LayError> {
        let top = if matches!(conn.src, End::One(_)) { senders[0] } else { receivers[0] };
        let up = senders.iter().map(|&rank| (rank, top));
        let down = receivers.iter().map(|&rank| (top, rank));
        let host = |rank| self.topology.host_of(rank);
        let ways: Vec<(Rank, Rank)> = up.chain(down).filter(|&(a, b)| host(a) != host(b)).collect();
        let mut links: FxHashMap<LinkId, u64> = FxHashMap::default();
        for (from, to) in ways {
            for (link, share) in shares(self.route(from, to, conn.channel)?) {
                let known = links.entry(link).or_default();
                *known = share.max(*known);
            }
        }
        let mut links: Shares = links.into_iter().collect();
        links.sort_unstable();
        Ok(links)
    }
}

fn shares(route: &Route) -> Shares {
    route.links.iter().copied().zip(route.shares.iter().copied()).collect()
}

/// The smallest latency of any connection of an instance.
pub fn smallest_latency(instance: &Instance<'_>) -> SimDuration {
    instance.conns.iter().map(|c| c.latency).min().unwrap_or_default()
}

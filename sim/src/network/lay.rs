//! Lays a schedule on a machine: resources, weights and latencies for the engine.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::route::{Route, Router};
use crate::collective::Protocol;
use crate::engine::flows::{Use, WEIGHT_ONE};
use crate::engine::{ConnSpec, Instance, lane_of};
use crate::ids::{ChannelId, Lane, LinkId, Rank};
use crate::profile::{Profile, Reach};
use crate::schedule::Schedule;
use crate::schedule::wiring::{Wiring, WiringError};
use crate::topology::{LinkKind, Topology};
use crate::units::SimDuration;

/// What a resource of an instance is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResourceName {
    /// A link direction.
    Link(LinkId),
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
}

/// Units a link's resource gives per byte of payload: wire format over efficiency.
fn weight(profile: &Profile, kind: LinkKind, protocol: Protocol, share: u64) -> u64 {
    let wire = match protocol {
        Protocol::Ll => 2.0,
        Protocol::Ll128 => 16.0 / 15.0,
        Protocol::Simple => 1.0,
    };
    (wire / profile.efficiency(kind) * share as f64).ceil() as u64
}

/// Sender, receiver, channel up to the number of NICs, and the NICs where they are given.
type Pair = (Rank, Rank, u32, Option<(u32, u32)>);

/// Lays a schedule on the first ranks of a machine.
///
/// # Errors
/// A flaw of the schedule, or two ranks without a route.
pub fn lay<'a>(topology: &Topology, profile: &Profile, schedule: &'a Schedule) -> Result<Laid<'a>, LayError> {
    let wiring = Wiring::new(schedule)?;
    let protocol = schedule.plan.protocol;
    let mut router = Router::new(topology);
    let mut instance = Instance { schedules: vec![schedule], ..Instance::default() };
    let mut names = Vec::new();
    let mut link_resource: FxHashMap<LinkId, u32> = FxHashMap::default();
    let mut routes: FxHashMap<Pair, Route> = FxHashMap::default();
    let distinct = u32::try_from(topology.hosts().iter().map(|h| h.nics.len()).max().unwrap_or(1).max(1)).unwrap_or(1);
    for wired in &wiring.conns {
        let conn = wired.conn;
        let nics = schedule.nic(conn.src, conn.channel).zip(schedule.nic(conn.dst, conn.channel));
        let key = (conn.src, conn.dst, conn.channel.0 % distinct, nics);
        let route = match routes.get(&key) {
            Some(route) => route,
            None => {
                let route = router.route_by(conn.src, conn.dst, conn.channel, nics);
                let route = route.ok_or(LayError::NoRoute { src: conn.src, dst: conn.dst })?;
                routes.entry(key).or_insert(route)
            }
        };
        let uses: SmallVec<[Use; 4]> = (route.links.iter().zip(&route.shares))
            .map(|(&id, &share)| {
                let link = topology.link(id);
                let resource = *link_resource.entry(id).or_insert_with(|| {
                    instance.resources.push(link.rate.get());
                    names.push(ResourceName::Link(id));
                    u32::try_from(instance.resources.len() - 1).unwrap_or(u32::MAX)
                });
                (resource, weight(profile, link.kind, protocol, share))
            })
            .collect();
        let network = matches!(route.reach, Reach::Network | Reach::Tcp);
        instance.conns.push(ConnSpec {
            uses,
            latency: profile.latency(route.reach, protocol),
            streaming: protocol != Protocol::Simple && !network,
            direct: schedule.plan.direct && !network,
            depth: schedule.plan.fifo_slices,
            proxy: network.then(|| profile.proxy()),
        });
    }
    let reduce_weight = (profile.reduce_weight(schedule.call.dtype) * WEIGHT_ONE as f64) as u64;
    for worker in &wiring.workers {
        let rate = profile.lane_rate(protocol, worker.threads);
        instance.resources.push(rate.get());
        names.push(ResourceName::Lane(worker.rank, worker.channel, worker.lane));
        let mut lane = lane_of(worker, 0, schedule.element_size());
        lane.issue = (u32::try_from(instance.resources.len() - 1).unwrap_or(u32::MAX), WEIGHT_ONE);
        lane.sync = profile.sync(protocol);
        lane.after = profile.after(protocol);
        // A thread of LL has one half-line of data in flight; the hop of LL128, which is cited
        // and not a bare ping-pong, includes its first lines.
        lane.wave = if protocol == Protocol::Ll { u64::from(worker.threads) * 8 } else { 0 };
        lane.reduce_weight = reduce_weight;
        instance.lanes.push(lane);
    }
    Ok(Laid { instance, names, wiring })
}

/// The smallest latency of any connection of an instance.
pub fn smallest_latency(instance: &Instance<'_>) -> SimDuration {
    instance.conns.iter().map(|c| c.latency).min().unwrap_or_default()
}

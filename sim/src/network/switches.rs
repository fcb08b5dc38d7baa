//! Switches that reduce and multicast: which ranks they join, and what a group's data takes.

use rustc_hash::FxHashMap;

use super::laid::LayError;
use super::layer::{Layer, Ports};
use super::route::{Hop, Leg};
use crate::engine::flows::WEIGHT_ONE;
use crate::engine::{ConnSpec, ProxySpec, Section, Uses};
use crate::ids::{LinkId, Rank, VertexId};
use crate::profile::Reach;
use crate::schedule::{Conn, End};
use crate::topology::{Link, LinkKind, Topology, VertexKind};
use crate::units::SimDuration;

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
    let switches = |rank| joined(topology, rank).map(|l| l.1).collect::<Vec<_>>();
    let first = ranks.first().map(|&r| switches(r)).unwrap_or_default();
    for &rank in ranks {
        let own = switches(rank);
        if own.is_empty() {
            return lacks(format!("rank {rank} has no link to an NVSwitch"));
        }
        if own != first {
            return lacks(format!("ranks {} and {rank} share no NVSwitch", ranks[0]));
        }
        let capability = topology.gpu(topology.gpu_of(rank)).map_or(0, |g| g.compute_capability);
        if capability < MULTICAST_CAPABILITY {
            let own = if capability == 0 {
                "no known compute capability".to_owned()
            } else {
                format!("compute capability {capability}")
            };
            return lacks(format!("rank {rank} has {own}, multicast came with {MULTICAST_CAPABILITY} (Hopper)"));
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

/// The links of a rank's GPU to NVSwitches, by switch.
fn joined(topology: &Topology, rank: Rank) -> impl Iterator<Item = (LinkId, VertexId)> {
    let nvswitch = |&(_, to, link): &(LinkId, VertexId, Link)| {
        link.kind == LinkKind::Nvlink && matches!(topology.vertex(to).kind, VertexKind::NvSwitch)
    };
    let mut found: Vec<_> = topology.links_from(topology.gpu_of(rank)).filter(nvswitch).map(|l| (l.1, l.0)).collect();
    found.sort_unstable();
    found.into_iter().map(|(switch, up)| (up, switch))
}

/// The links of a rank to NVSwitches that lead back, with those.
fn ports(topology: &Topology, rank: Rank) -> Ports {
    let gpu = topology.gpu_of(rank);
    let back = |switch| topology.links_from(switch).find(|l| l.1 == gpu && l.2.kind == LinkKind::Nvlink);
    joined(topology, rank).filter_map(|(up, switch)| Some((up, back(switch)?.0))).collect()
}

impl Layer<'_> {
    /// A connection with a group at an end: through the NVSwitch that joins all its ranks, or
    /// else through switches of the network.
    pub(super) fn group(&mut self, senders: &[Rank], receivers: &[Rank], conn: Conn) -> Result<ConnSpec, LayError> {
        let (topology, profile) = (self.topology, self.profile);
        let host = topology.host_of(senders[0]);
        let members: Vec<Rank> = senders.iter().chain(receivers).copied().collect();
        let inside = check_multicast(topology, &members);
        // On one host nothing but its NVSwitch could do it, and that error says more.
        if inside.is_err() && members.iter().any(|&m| topology.host_of(m) != host) {
            check_sharp(topology)?;
            let links = self.network_links(senders, receivers, conn)?;
            // Every sender's proxy posts its part; the switches start when all have.
            let mut uses = Uses::default();
            senders.iter().for_each(|&rank| uses.push(Section::Posting, (self.proxy(rank), WEIGHT_ONE)));
            self.leg(&mut uses, Section::Transfer, &links, |kind| match kind.is_network() {
                true => profile.efficiency_sharp(),
                false => profile.efficiency(kind),
            });
            let work = profile.proxy_thread().bytes_in(profile.proxy()).0;
            let control = profile.control(Reach::Network);
            return Ok(ConnSpec {
                uses,
                latency: profile.latency_sharp(),
                credit: control,
                streaming: false,
                direct: false,
                depth: 0,
                proxy: Some(ProxySpec { flush: SimDuration::ZERO, ack: control }),
                post: [work; 2],
                inline: 0,
                check: 0,
                take: 0,
                eager: 0,
                announce: SimDuration::ZERO,
                overlap: None,
            });
        }
        inside?;
        if !matches!((conn.src, conn.dst), (End::One(_), _) | (_, End::One(_))) {
            let reason = "it either reduces for one rank or multicasts from one".to_owned();
            return Err(LayError::NoMulticast { topology: topology.name.clone(), reason });
        }
        // Every member's links to the switch, or from it, once.
        let mut links = Leg::new();
        for (ranks, up) in [(senders, true), (receivers, false)] {
            for &rank in ranks {
                let ports = self.ports.entry(rank).or_insert_with(|| ports(topology, rank));
                let total: u64 = ports.iter().map(|p| topology.link(p.0).rate.get()).sum();
                for &mut (to, from) in ports {
                    let id = if up { to } else { from };
                    let part = u128::from(WEIGHT_ONE) * u128::from(topology.link(to).rate.get());
                    links.push((
                        Hop::Link(id),
                        u64::try_from(part.div_ceil(u128::from(total.max(1)))).unwrap_or(WEIGHT_ONE),
                    ));
                }
            }
        }
        // The one receiver of a reduction loads it; a multicast is stored by its one sender.
        let section = if matches!(conn.dst, End::One(_)) { Section::Load } else { Section::Transfer };
        let mut uses = Uses::default();
        self.leg(&mut uses, section, &links, |_| profile.efficiency_multimem());
        Ok(ConnSpec {
            uses,
            latency: profile.latency_multimem().0,
            credit: profile.latency_multimem().0,
            streaming: false,
            direct: false,
            depth: 0,
            proxy: None,
            post: [0; 2],
            inline: 0,
            check: 0,
            take: 0,
            eager: 0,
            announce: SimDuration::ZERO,
            overlap: None,
        })
    }

    /// The links of a reduction or multicast in the network, each once: switches combine what
    /// goes up to the one receiver, and copy what comes down from the one sender. Between groups
    /// the switch beside the first receiver is the top of both trees.
    fn network_links(&mut self, senders: &[Rank], receivers: &[Rank], conn: Conn) -> Result<Leg, LayError> {
        let top = if matches!(conn.src, End::One(_)) { senders[0] } else { receivers[0] };
        let up = senders.iter().map(|&rank| (rank, top));
        let down = receivers.iter().map(|&rank| (top, rank));
        let host = |rank| self.topology.host_of(rank);
        let ways: Vec<(Rank, Rank)> = up.chain(down).filter(|&(a, b)| host(a) != host(b)).collect();
        let mut links: FxHashMap<Hop, u64> = FxHashMap::default();
        for (from, to) in ways {
            let route = self.route(from, to, conn.channel, None)?;
            for &(hop, share) in route.store.iter().chain(&route.wire).chain(&route.load) {
                let known = links.entry(hop).or_default();
                *known = share.max(*known);
            }
        }
        let mut links: Leg = links.into_iter().collect();
        links.sort_unstable();
        Ok(links)
    }
}

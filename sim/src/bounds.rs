//! Lower bounds on the time of a collective: what no schedule can beat on a machine.
//!
//! For any set of ranks, what its members must learn from outside has to enter it, and what
//! others need of it has to leave. The cuts checked are every rank, every host, every NVLink domain, what
//! switches up to a level join, and each half of the hosts. Links are checked by the bytes that really went over them.
//! Where nothing between some parts reduces, each of `n` parts but one gives the data of an
//! all-reduce away once and gets the result once: `2 (n - 1)` times its size over all their links.
//! Source: Chan, Heimlich, Purkayastha, van de Geijn, "Collective communication: theory,
//! practice, and experience", CCPE 19(13), 2007, section 3 (lower bounds).

use std::collections::{BTreeMap, BTreeSet};

use petgraph::unionfind::UnionFind;
use serde::{Deserialize, Serialize};

use crate::call::Call;
use crate::collective::Collective;
use crate::ids::{HostId, Rank, VertexId};
use crate::topology::{Host, LinkKind, Topology, VertexKind};
use crate::units::{PS_PER_S, SimDuration};

/// A cut that bounds the time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Bound {
    /// Time below which the collective cannot end.
    pub time: SimDuration,
    /// The cut, for messages.
    pub what: String,
}

/// What ranks of an exchange with a table of counts send and receive.
struct Exchanged<'a> {
    call: &'a Call,
    /// Bytes that each rank gets, and that it sends.
    of_rank: Vec<(u64, u64)>,
}

impl<'a> Exchanged<'a> {
    /// `None` of other calls.
    fn of(call: &'a Call) -> Option<Self> {
        let counts = call.counts.as_ref()?;
        let n = call.ranks as usize;
        let mut of_rank = vec![(0_u64, 0_u64); n];
        for (place, &count) in counts.iter().enumerate() {
            let bytes = count.saturating_mul(call.dtype.size());
            let (from, to) = (place / n, place % n);
            of_rank[to].0 = of_rank[to].0.saturating_add(bytes);
            of_rank[from].1 = of_rank[from].1.saturating_add(bytes);
        }
        Some(Self { call, of_rank })
    }

    /// Bytes that must enter and leave a set of ranks.
    fn crossing(&self, ranks: &[Rank]) -> (u64, u64) {
        let within = ranks.iter().flat_map(|&from| ranks.iter().map(move |&to| (from, to)));
        let within = within.map(|(from, to)| self.call.pair_count(from, to).saturating_mul(self.call.dtype.size()));
        let within = within.fold(0, u64::saturating_add);
        let all = ranks.iter().map(|rank| self.of_rank[rank.index()]);
        let (enter, leave) =
            all.fold((0_u64, 0_u64), |(e, l), (enter, leave)| (e.saturating_add(enter), l.saturating_add(leave)));
        (enter.saturating_sub(within), leave.saturating_sub(within))
    }
}

/// Bytes that must enter and leave a set of `inside` of the call's ranks, also where switches
/// reduce and multicast: what a set gives counts once, whoever needs it. `root_inside`: whether
/// the root is one of them.
fn crossing(call: &Call, inside: u64, root_inside: bool) -> (u64, u64) {
    let n = u64::from(call.ranks);
    let outside = n - inside.min(n);
    let part = call.count * call.dtype.size();
    if inside == 0 || outside == 0 {
        return (0, 0);
    }
    match call.collective {
        // A contiguous set of ranks has one neighbour on each side to send to and receive from.
        Collective::AllReduce | Collective::SendRecv => (part, part),
        Collective::AllGather => (outside * part, inside * part),
        Collective::ReduceScatter => (inside * part, outside * part),
        Collective::Broadcast => {
            if root_inside {
                (0, part)
            } else {
                (part, 0)
            }
        }
        Collective::Reduce => {
            if root_inside {
                (part, 0)
            } else {
                (0, part)
            }
        }
        Collective::Gather => {
            if root_inside {
                (outside * part, 0)
            } else {
                (0, inside * part)
            }
        }
        Collective::Scatter => {
            if root_inside {
                (0, outside * part)
            } else {
                (inside * part, 0)
            }
        }
        Collective::AllToAll => (inside * outside * part, inside * outside * part),
    }
}

fn time_over(bytes: u64, rate: u64) -> SimDuration {
    if rate == 0 {
        return SimDuration::ZERO;
    }
    let ps = u128::from(bytes) * PS_PER_S / u128::from(rate);
    SimDuration(u64::try_from(ps).unwrap_or(u64::MAX))
}

/// The strongest bound of all cuts; `in_switches`: whether switches may reduce and multicast.
pub fn bandwidth(topology: &Topology, call: &Call, in_switches: bool) -> Bound {
    let mut best = Bound { time: SimDuration::ZERO, what: "nothing to move".to_owned() };
    let mut consider = |time: SimDuration, what: &dyn Fn() -> String| {
        if time > best.time {
            best = Bound { time, what: what() };
        }
    };
    // Directions may differ in rate: what enters uses the links in, what leaves the links out.
    let mut rates = vec![Ports::default(); topology.vertices().count()];
    let mut network = rates.clone();
    let mut cables = rates.clone();
    let mut beside_nvlink = rates.clone();
    for (_, from, to, link) in topology.links() {
        let add = |rates: &mut Vec<Ports>| {
            rates[to.index()].enter = rates[to.index()].enter.saturating_add(link.rate.get());
            rates[from.index()].leave = rates[from.index()].leave.saturating_add(link.rate.get());
        };
        add(&mut rates);
        if link.kind.is_network() {
            add(&mut cables);
        }
        if link.kind != LinkKind::Nvlink {
            add(&mut beside_nvlink);
        }
        // What leaves a host: the network, and NVLink to the switches of a domain of hosts.
        if link.kind.is_network() || topology.vertex(from).host.is_none() || topology.vertex(to).host.is_none() {
            add(&mut network);
        }
    }
    let memory = topology.gpu(topology.gpu_of(Rank(0))).and_then(|gpu| gpu.memory_rate);
    if let Some(rate) = memory.filter(|_| call.ranks == 1 && !call.in_place) {
        consider(time_over(2 * call.count * call.dtype.size(), rate.get()), &|| "the memory of rank 0".to_owned());
    }
    let exchanged = Exchanged::of(call);
    let crosses = |ranks: &[Rank]| match &exchanged {
        Some(exchanged) => exchanged.crossing(ranks),
        None => crossing(call, ranks.len() as u64, ranks.contains(&call.root)),
    };
    let mut all = Ports::default();
    for r in 0..call.ranks {
        let ports = rates[topology.gpu_of(Rank(r)).index()];
        all = all.and(ports);
        consider(ports.time(crosses(&[Rank(r)])), &|| format!("the links of rank {r}"));
    }
    // Every part but one gives its data away once, and gets the result once.
    let reduced = |parts: u64| 2 * parts.saturating_sub(1) * call.count * call.dtype.size();
    let reduces = call.collective == Collective::AllReduce;
    if reduces && !in_switches {
        let total = reduced(u64::from(call.ranks));
        consider(all.time((total, total)), &|| "the links of all ranks together".to_owned());
    }
    let mut hosts: Vec<(Vec<Rank>, Ports)> = vec![(Vec::new(), Ports::default()); topology.hosts().len()];
    for r in 0..call.ranks {
        hosts[topology.host_of(Rank(r)).index()].0.push(Rank(r));
    }
    for (index, host) in topology.hosts().iter().enumerate() {
        let ends = host.nics.iter().chain(&host.gpus);
        hosts[index].1 = ends.map(|n| network[n.index()]).fold(Ports::default(), Ports::and);
        let (inside, ports) = &hosts[index];
        consider(ports.time(crosses(inside)), &|| format!("the NICs of host {}", host.name));
    }
    // What leaves a domain of NVLink goes over other links of its GPUs, and then through its NICs.
    let mut domains: BTreeMap<_, Vec<Rank>> = BTreeMap::new();
    (0..call.ranks).for_each(|r| domains.entry(topology.node_of(Rank(r))).or_default().push(Rank(r)));
    for inside in domains.values().filter(|_| domains.len() > 1) {
        let on: BTreeSet<_> = inside.iter().map(|&rank| topology.host_of(rank)).collect();
        let all = |of: fn(&Host) -> &[VertexId], rates: &[Ports]| {
            let ends = on.iter().flat_map(|host| of(&topology.hosts()[host.index()]));
            ends.map(|end| rates[end.index()]).fold(Ports::default(), Ports::and)
        };
        let crossing = crosses(inside);
        let first = &topology.hosts()[topology.host_of(inside[0]).index()].name;
        let domain = || if on.len() > 1 { format!("the NVLink domain of {first}") } else { format!("host {first}") };
        consider(all(|host| &host.nics, &cables).time(crossing), &|| format!("the NICs of {}", domain()));
        consider(all(|host| &host.gpus, &beside_nvlink).time(crossing), &|| {
            format!("the links of GPUs to PCIe or CPUs of {}", domain())
        });
    }
    for (inside, ports) in joined(topology, call.ranks) {
        consider(ports.time(crosses(&inside)), &|| {
            format!("the switches above {}", topology.hosts()[topology.host_of(inside[0]).index()].name)
        });
    }
    // NVSwitches reduce inside a domain of NVLink, and between domains only switches of the network that can.
    if reduces && !(in_switches && topology.sharp) {
        let used = topology.hosts().iter().zip(&hosts).filter(|(_, (ranks, _))| !ranks.is_empty());
        let ports = used.flat_map(|(host, _)| &host.nics).map(|n| cables[n.index()]).fold(Ports::default(), Ports::and);
        let total = reduced(domains.len() as u64);
        consider(ports.time((total, total)), &|| "the NICs of all hosts together".to_owned());
    }
    let used: Vec<_> = hosts.iter().filter(|h| !h.0.is_empty()).collect();
    if used.len() > 2 {
        let half = &used[..used.len() / 2];
        let inside: Vec<Rank> = half.iter().flat_map(|h| &h.0).copied().collect();
        let ports = half.iter().map(|h| h.1).fold(Ports::default(), Ports::and);
        consider(ports.time(crosses(&inside)), &|| "the NICs of half of the hosts".to_owned());
    }
    best
}

/// What switches up to some level join, with the links to those above: the ranks, where these are not all.
fn joined(topology: &Topology, ranks: u32) -> Vec<(Vec<Rank>, Ports)> {
    let level = |id: VertexId| match topology.vertex(id).kind {
        VertexKind::NetSwitch { level } => Some(level),
        _ => None,
    };
    // Places of hosts, and of switches after them.
    let hosts = topology.hosts().len();
    let place = |id: VertexId| topology.vertex(id).host.map_or(hosts + id.index(), HostId::index);
    let links: Vec<_> = topology.links().filter(|link| level(link.1).or(level(link.2)).is_some()).collect();
    let levels: BTreeSet<u32> = links.iter().filter_map(|link| level(link.1)).collect();
    let mut sets = UnionFind::<usize>::new(hosts + topology.vertices().count());
    // Hosts of a domain of NVLink have ways to each other beside the network.
    for (_, from, to, _) in topology.links().filter(|link| level(link.1).or(level(link.2)).is_none()) {
        sets.union(place(from), place(to));
    }
    let mut all = Vec::new();
    for (at, next) in levels.iter().zip(levels.iter().skip(1)) {
        let above = |id: VertexId| level(id).is_some_and(|level| level >= *next);
        for &(_, from, to, _) in links.iter().filter(|link| !above(link.1) && !above(link.2)) {
            if level(from).max(level(to)) == Some(*at) {
                sets.union(place(from), place(to));
            }
        }
        let mut of: BTreeMap<usize, (Vec<Rank>, Ports)> = BTreeMap::new();
        (0..ranks).map(Rank).for_each(|rank| {
            of.entry(sets.find(topology.host_of(rank).index())).or_default().0.push(rank);
        });
        for &(_, from, to, link) in &links {
            let rate = link.rate.get();
            let mut add = |inside, ports: Ports| {
                if let Some(set) = of.get_mut(&sets.find(place(inside))) {
                    set.1 = set.1.and(ports);
                }
            };
            match (above(from), above(to)) {
                (false, true) => add(from, Ports { enter: 0, leave: rate }),
                (true, false) => add(to, Ports { enter: rate, leave: 0 }),
                _ => {}
            }
        }
        all.extend(of.into_values().filter(|set| set.0.len() < ranks as usize));
    }
    all
}

/// Rates into and out of something, in bytes per second; 0 where nothing is known.
#[derive(Clone, Copy, Default)]
struct Ports {
    enter: u64,
    leave: u64,
}

impl Ports {
    fn and(self, other: Self) -> Self {
        Self { enter: self.enter.saturating_add(other.enter), leave: self.leave.saturating_add(other.leave) }
    }

    /// Time for what must enter and what must leave, both at once.
    fn time(self, (enter, leave): (u64, u64)) -> SimDuration {
        time_over(enter, self.enter).max(time_over(leave, self.leave))
    }
}

/// Whether every resource carried no more than its capacity allows in a time.
///
/// # Errors
/// The first resource that did: its index and how many units it carried.
pub fn check_loads(capacities: &[u64], loads: &[u128], time: SimDuration, one: u64) -> Result<(), (usize, u128)> {
    for (index, (&capacity, &load)) in capacities.iter().zip(loads).enumerate() {
        // One unit a flow may be lost to rounding up of ends; ends are rounded up, so none is.
        let most = u128::from(capacity) * u128::from(time.0 + 1) / PS_PER_S + 1;
        if load / u128::from(one) > most {
            return Err((index, load));
        }
    }
    Ok(())
}

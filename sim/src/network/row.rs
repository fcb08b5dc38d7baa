//! Hosts in a row, for a part of them to stand for all: which are not as most are, and how many fill a switch.

use rustc_hash::{FxHashMap, FxHashSet};

use super::hosts::Hosts;
use crate::engine::mix;
use crate::ids::{HostId, Rank, VertexId};
use crate::topology::{Topology, VertexKind};

/// Switches that news of a link travels past: from a spine over its leaves to their hosts.
const REACH: usize = 2;

/// Hosts in the order of ranks, as many ranks on each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Row {
    /// Ranks of a host.
    pub(crate) each: u32,
    /// Hosts.
    pub(crate) hosts: u32,
    /// Places of the first and the last host that is not built as most are, or reaches the network by other links.
    pub(crate) unlike: Option<(u32, u32)>,
    /// Most hosts below a switch that cannot pass on upwards all that comes from them; 1 where there is none.
    pub(crate) below: u32,
}

/// The hosts of the first `ranks` ranks as a row; `None` where ranks are not dealt to hosts in order, as many to each, or
/// where hosts share more than switches of a network.
pub(crate) fn row(topology: &Topology, ranks: u32) -> Option<Row> {
    let host_of = |rank: u32| topology.host_of(Rank(rank));
    let each = (0..ranks).take_while(|&rank| host_of(rank) == host_of(0)).count();
    let each = u32::try_from(each).ok().filter(|&each| each > 0 && ranks.is_multiple_of(each))?;
    let firsts: Vec<HostId> = (0..ranks).step_by(each as usize).map(host_of).collect();
    let in_order = (0..ranks).all(|rank| host_of(rank) == firsts[(rank / each) as usize]);
    if !in_order || firsts.iter().collect::<FxHashSet<_>>().len() != firsts.len() {
        return None;
    }
    let kinds = kinds(topology, &Hosts::of(topology, ranks)?);
    let mut count: FxHashMap<u64, u32> = FxHashMap::default();
    firsts.iter().for_each(|host| *count.entry(kinds[host.index()]).or_default() += 1);
    let (&most, _) = count.iter().max_by_key(|&(&kind, &count)| (count, kind))?;
    let mut unlike = (0..).zip(&firsts).filter(|(_, host)| kinds[host.index()] != most).map(|(place, _)| place);
    let unlike = unlike.next().map(|first| (first, unlike.last().unwrap_or(first)));
    let below = blocking(topology).into_iter().map(|switch| hosts_below(topology, switch)).max().unwrap_or(1);
    Some(Row { each, hosts: u32::try_from(firsts.len()).ok()?, unlike, below: u32::try_from(below).ok()? })
}

/// The first rank of the first host that is not built as most are, or reaches the network by other links.
pub fn first_unlike(topology: &Topology) -> Option<Rank> {
    let row = row(topology, topology.ranks())?;
    row.unlike.map(|(host, _)| Rank(host * row.each))
}

/// The level of a switch of the network.
fn level(topology: &Topology, vertex: VertexId) -> Option<u32> {
    match topology.vertex(vertex).kind {
        VertexKind::NetSwitch { level } => Some(level),
        _ => None,
    }
}

/// Switches whose links down have more together than those to others of their level and above.
fn blocking(topology: &Topology) -> Vec<VertexId> {
    let over = |switch: VertexId, of: u32| {
        let rate = |up: bool| {
            let links = topology
                .links_from(switch)
                .filter(move |link| level(topology, link.1).is_some_and(|to| to >= of) == up);
            links.map(|link| u128::from(link.2.rate.get())).sum::<u128>()
        };
        let (down, up) = (rate(false), rate(true));
        (0 < up && up < down).then_some(switch)
    };
    topology.vertices().filter_map(|(id, _)| over(id, level(topology, id)?)).collect()
}

/// Hosts that a switch leads down to.
fn hosts_below(topology: &Topology, switch: VertexId) -> usize {
    let (mut hosts, mut known, mut next) = (FxHashSet::default(), FxHashSet::default(), vec![switch]);
    while let Some(at) = next.pop() {
        for (_, to, _) in topology.links_from(at) {
            match (topology.vertex(to).host, level(topology, to)) {
                (Some(host), _) => drop(hosts.insert(host)),
                (None, to_level) if to_level < level(topology, at) && known.insert(to) => next.push(to),
                _ => {}
            }
        }
    }
    hosts.len()
}

/// By host: a hash of what it is, and of the links between the switches that it reaches, however many there are.
fn kinds(topology: &Topology, hosts: &Hosts) -> Vec<u64> {
    let switch = |id: VertexId| level(topology, id).is_some();
    let mut between = Vec::new();
    let mut ports = Vec::new();
    let mut known: FxHashMap<VertexId, u64> = FxHashMap::default();
    for (_, from, to, link) in topology.links() {
        match (switch(from), switch(to)) {
            (true, true) => {
                between.push((from, to, mix(link.rate.get(), link.kind as u64)));
                known.extend([(from, 0), (to, 0)]);
            }
            (false, true) => ports.push((from, to)),
            _ => {}
        }
    }
    for _ in 0..REACH {
        let mut news: FxHashMap<VertexId, Vec<u64>> = FxHashMap::default();
        for &(from, to, link) in &between {
            news.entry(from).or_default().push([0, link, known[&to]].into_iter().fold(0, mix));
            news.entry(to).or_default().push([1, link, known[&from]].into_iter().fold(0, mix));
        }
        for (switch, mut all) in news {
            all.sort_unstable();
            all.dedup();
            let known = known.entry(switch).or_default();
            *known = all.into_iter().fold(*known, mix);
        }
    }
    let mut kinds = hosts.kinds.clone();
    for (nic, switch) in ports {
        let (host, at) = hosts.of_vertex(nic);
        let kind = &mut kinds[host as usize];
        let reached = known.get(&switch).copied().unwrap_or_default();
        *kind = [u64::from(at), reached].into_iter().fold(*kind, mix);
    }
    kinds
}

//! Ways between switches of the network.

use rustc_hash::FxHashMap;

use crate::ids::{LinkId, VertexId};
use crate::topology::{Topology, VertexKind};

/// Equal ways from one switch to another: per switch on them, nearest first, the links that
/// lead on, where to and at which rate.
pub(super) type Ways = Vec<(VertexId, Vec<(LinkId, VertexId, u64)>)>;

/// By switch of the network: the links from other switches to it, where from and at which rate.
pub(super) type Before = FxHashMap<VertexId, Vec<(LinkId, VertexId, u64)>>;

fn is_switch(topology: &Topology, vertex: VertexId) -> bool {
    matches!(topology.vertex(vertex).kind, VertexKind::NetSwitch { .. })
}

pub(super) fn links_before(topology: &Topology) -> Before {
    let mut before = Before::default();
    for (id, from, to, link) in topology.links() {
        if link.kind.is_network() && is_switch(topology, from) && is_switch(topology, to) {
            before.entry(to).or_default().push((id, from, link.rate.get()));
        }
    }
    before
}

/// All shortest ways from one switch to another that is joined to it, or to one that it is joined to: found at both
/// ends, where a spine has thousands of links.
pub(super) fn near_ways(topology: &Topology, before: &Before, from: VertexId, to: VertexId) -> Option<Ways> {
    if from == to {
        return Some(Ways::new());
    }
    let links = |from| topology.links_from(from).filter(|l| l.2.kind.is_network() && is_switch(topology, l.1));
    let mut first: Vec<_> = links(from).map(|(id, next, link)| (id, next, link.rate.get())).collect();
    first.sort_unstable();
    if first.iter().any(|link| link.1 == to) {
        first.retain(|link| link.1 == to);
        return Some(vec![(from, first)]);
    }
    let mut second = Before::default();
    for &(id, at, rate) in before.get(&to)?.iter().filter(|last| first.iter().any(|link| link.1 == last.1)) {
        second.entry(at).or_default().push((id, to, rate));
    }
    first.retain(|link| second.contains_key(&link.1));
    second.values_mut().for_each(|links| links.sort_unstable());
    let mut second: Ways = second.into_iter().collect();
    second.sort_unstable_by_key(|(at, _)| *at);
    (!second.is_empty()).then(|| std::iter::once((from, first)).chain(second).collect())
}

/// All shortest ways from one switch to another, however far.
pub(super) fn far_ways(topology: &Topology, from: VertexId, to: VertexId) -> Option<Ways> {
    // Breadth first from the source, with every link that shortens the way kept.
    let mut seen: FxHashMap<VertexId, u32> = FxHashMap::from_iter([(from, 0)]);
    let mut came: FxHashMap<VertexId, Vec<(LinkId, VertexId, u64)>> = FxHashMap::default();
    let mut queue = std::collections::VecDeque::from([from]);
    while let Some(at) = queue.pop_front().filter(|&at| at != to) {
        let hops = seen[&at] + 1;
        for (id, next, link) in topology.links_from(at) {
            if !link.kind.is_network() || !is_switch(topology, next) {
                continue;
            }
            let known = *seen.entry(next).or_insert_with(|| {
                queue.push_back(next);
                hops
            });
            if known == hops {
                came.entry(next).or_default().push((id, at, link.rate.get()));
            }
        }
    }
    seen.get(&to)?;
    let mut on: FxHashMap<VertexId, Vec<(LinkId, VertexId, u64)>> = FxHashMap::default();
    let mut back = std::collections::VecDeque::from([to]);
    while let Some(at) = back.pop_front() {
        for &(id, before, rate) in came.get(&at).into_iter().flatten() {
            let list = on.entry(before).or_default();
            if list.is_empty() {
                back.push_back(before);
            }
            list.push((id, at, rate));
        }
    }
    let mut ways: Ways = on.into_iter().collect();
    ways.iter_mut().for_each(|(_, links)| links.sort_unstable());
    ways.sort_unstable_by_key(|(at, _)| (seen[at], *at));
    Some(ways)
}

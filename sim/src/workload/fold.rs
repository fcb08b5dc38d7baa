//! Ranks of the same role: which ranks do the same at the same time, so that one of each runs.
//!
//! Colour refinement over ranks and groups: a rank's colour is its program, pace and the colours
//! of its groups, and which end it is of those that messages go through; a group's colour is its place on hosts and the
//! colours of its members. Where nothing more can be told apart, members of a class are in the same situation at any time.

use rustc_hash::{FxHashMap, FxHasher};
use std::hash::{Hash, Hasher};

use super::graph::{OpGraph, What, WorkloadError};
use crate::ids::{Rank, VertexId};
use crate::topology::{Topology, VertexKind};

/// The classes of a graph's ranks and groups.
#[derive(Clone, Debug, Default)]
pub struct Classes {
    /// By rank.
    pub rank: Vec<usize>,
    /// By group.
    pub group: Vec<usize>,
    /// By class of ranks: the lowest member, and how many there are.
    pub ranks: Vec<(Rank, usize)>,
    /// By class of groups: the group that stands for it, one with most of the ranks above.
    pub groups: Vec<usize>,
    /// By group: its class where all ranks keep the same pace. Groups of one are at the same call at about the same time.
    pub like: Vec<usize>,
    /// By such a class: the group that stands for it.
    pub leaders: Vec<usize>,
}

fn hash(value: impl Hash) -> u64 {
    let mut hasher = FxHasher::default();
    value.hash(&mut hasher);
    hasher.finish()
}

/// What the hosts of ranks are like.
struct Hosts {
    /// By host: kinds and rates of all its links, its NICs, and the links that the switches next to it have to others.
    facts: Vec<u64>,
    /// By host: the first switch that it hangs on.
    switches: Vec<Option<VertexId>>,
}

impl Hosts {
    fn of(topology: &Topology) -> Self {
        let count = topology.hosts().len();
        let mut all = Self { facts: vec![0; count], switches: vec![None; count] };
        // Of each switch outside of hosts: its links to others.
        let mut above: FxHashMap<VertexId, u64> = FxHashMap::default();
        for (_, from, to, link) in topology.links() {
            let [own, other] = [from, to].map(|end| topology.vertex(end).host);
            if own.is_none() && other.is_none() {
                for (end, direction) in [(from, 0_u8), (to, 1)] {
                    let sum = above.entry(end).or_default();
                    *sum = sum.wrapping_add(hash((link.kind, link.rate.get(), link.width, direction)));
                }
            }
        }
        for (_, from, to, link) in topology.links() {
            for ((end, far), direction) in [((from, to), 0_u8), ((to, from), 1)] {
                let Some(host) = topology.vertex(end).host else { continue };
                let outside = topology.vertex(far).host.is_none();
                let next = outside.then(|| above.get(&far).copied().unwrap_or(0));
                let nic = topology.nic(end).map(|nic| (nic.rate.get(), nic.gpudirect));
                let fact = hash((link.kind, link.rate.get(), link.width, direction, next, nic));
                all.facts[host.index()] = all.facts[host.index()].wrapping_add(fact);
                if outside {
                    let first = &mut all.switches[host.index()];
                    *first = Some(first.map_or(far, |known| known.min(far)));
                }
            }
        }
        all
    }
}

/// Every rank and group by itself, beside those that are like it in a folded graph.
pub(super) fn unfolded(graph: &OpGraph, folded: &Classes) -> Classes {
    let rank = |index: usize| Rank(u32::try_from(index).unwrap_or(u32::MAX));
    Classes {
        rank: (0..graph.ranks.len()).collect(),
        group: (0..graph.groups.len()).collect(),
        ranks: (0..graph.ranks.len()).map(|r| (rank(r), 1)).collect(),
        groups: (0..graph.groups.len()).collect(),
        like: folded.like.clone(),
        leaders: folded.leaders.clone(),
    }
}

/// Folds a graph.
///
/// # Errors
/// A group with a rank twice, or with one that does not exist; a rank in a group that is not its own.
pub fn fold(graph: &OpGraph, topology: &Topology) -> Result<Classes, WorkloadError> {
    check(graph, topology)?;
    let like = Hosts::of(topology);
    // Where a group's ranks are: numbers of hosts, of the switches that those share, and of what their GPUs hang on in them, as
    // they first occur. Behind NVSwitches all GPUs of a host are alike.
    let shapes: Vec<u64> = (graph.groups.iter())
        .map(|group| {
            let (mut hosts, mut switches, mut parents) = (Vec::new(), Vec::new(), Vec::new());
            let places: Vec<_> = group
                .iter()
                .map(|&rank| {
                    let (host, gpu) = (topology.host_of(rank), topology.gpu_of(rank));
                    let vertex = |id| &topology.vertex(id).kind;
                    let next: Vec<_> =
                        topology.links_from(gpu).map(|(_, to, link)| (to, link.kind, link.rate)).collect();
                    let switched = next.iter().any(|n| matches!(vertex(n.0), VertexKind::NvSwitch));
                    let own = next.iter().map(|n| hash((n.1, n.2.get()))).fold(0, u64::wrapping_add);
                    let parent =
                        next.iter().find(|n| !matches!(vertex(n.0), VertexKind::NvSwitch | VertexKind::Gpu(_)));
                    let index = if switched { 0 } else { topology.gpu(gpu).map_or(0, |g| g.index) };
                    let parent = number_of(&mut parents, parent.map(|n| n.0));
                    let switch = number_of(&mut switches, like.switches[host.index()]);
                    (number_of(&mut hosts, host), switch, parent, index, own, like.facts[host.index()])
                })
                .collect();
            hash(places)
        })
        .collect();
    // By program: groups, in the order of its rank, that messages go through. Their ends differ, as each has its own way.
    let messages: Vec<Vec<usize>> = (graph.programs.iter())
        .map(|program| {
            let slot = |what: &What| match what {
                What::Send { group, .. } | What::Recv { group, .. } => Some(*group),
                _ => None,
            };
            let slots: std::collections::BTreeSet<usize> = program.ops.iter().filter_map(|op| slot(&op.what)).collect();
            slots.into_iter().collect()
        })
        .collect();
    let paces: Vec<u64> = (graph.ranks.iter().enumerate())
        .map(|(index, r)| hash((r.pace_ppm, r.late.0, graph.jitter.map(|_| index))))
        .collect();
    let classes = refine(graph, &shapes, &messages, &paces);
    if paces.iter().all(|pace| *pace == paces[0]) {
        return Ok(Classes { like: classes.group.clone(), leaders: classes.groups.clone(), ..classes });
    }
    let calm = refine(graph, &shapes, &messages, &vec![0; paces.len()]);
    Ok(Classes { like: calm.group, leaders: calm.groups, ..classes })
}

/// The classes of ranks and groups of such shapes, by programs and paces.
fn refine(graph: &OpGraph, shapes: &[u64], messages: &[Vec<usize>], paces: &[u64]) -> Classes {
    let mut rank: Vec<u64> = (graph.ranks.iter().zip(paces).enumerate())
        .map(|(index, (r, pace))| {
            let slots = messages.get(r.program).map_or(&[][..], Vec::as_slice);
            let end = |slot: &usize| {
                let group = graph.groups.get(*r.groups.get(*slot)?)?;
                group.iter().position(|member| member.index() == index)
            };
            let ends: Vec<Option<usize>> = slots.iter().map(end).collect();
            hash((r.program, pace, ends))
        })
        .collect();
    let mut group = Vec::new();
    let mut classes = 0;
    // News travels a group a round; a step's ranks are within few groups of each other, and each
    // round but the last tells more apart.
    for _ in 0..=graph.ranks.len() {
        group = (shapes.iter().zip(&graph.groups).enumerate())
            .map(|(index, (shape, members))| {
                let known_as = |r: &Rank| graph.ranks[r.index()].groups.iter().position(|&g| g == index);
                let members: Vec<_> = members.iter().map(|r| (rank[r.index()], known_as(r))).collect();
                hash((shape, members))
            })
            .collect();
        rank = (graph.ranks.iter().zip(&rank))
            .map(|(spec, own)| hash((own, spec.groups.iter().map(|&g| group[g]).collect::<Vec<_>>())))
            .collect();
        let mut distinct = rank.clone();
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.len() == classes {
            break;
        }
        classes = distinct.len();
    }
    let (rank, first) = number(&rank);
    let (group, _) = number(&group);
    let mut ranks: Vec<(Rank, usize)> =
        first.iter().map(|&f| (Rank(u32::try_from(f).unwrap_or(u32::MAX)), 0)).collect();
    for &class in &rank {
        ranks[class].1 += 1;
    }
    let mut best: FxHashMap<usize, (usize, usize)> = FxHashMap::default();
    for (index, &class) in group.iter().enumerate() {
        let stands = graph.groups[index].iter().filter(|r| ranks[rank[r.index()]].0 == **r).count();
        let known = best.entry(class).or_insert((index, stands));
        if stands > known.1 {
            *known = (index, stands);
        }
    }
    let groups = (0..best.len()).map(|class| best[&class].0).collect();
    Classes { rank, group, ranks, groups, ..Classes::default() }
}

/// The number of a value among those seen, which it joins.
fn number_of<T: PartialEq>(seen: &mut Vec<T>, value: T) -> usize {
    seen.iter().position(|s| *s == value).unwrap_or_else(|| {
        seen.push(value);
        seen.len() - 1
    })
}

fn number(colours: &[u64]) -> (Vec<usize>, Vec<usize>) {
    let mut known = FxHashMap::default();
    let mut first = Vec::new();
    let class = (colours.iter().enumerate())
        .map(|(index, colour)| {
            *known.entry(*colour).or_insert_with(|| {
                first.push(index);
                first.len() - 1
            })
        })
        .collect();
    (class, first)
}

fn check(graph: &OpGraph, topology: &Topology) -> Result<(), WorkloadError> {
    let ranks = graph.ranks.len();
    if ranks > topology.ranks() as usize {
        return Err(crate::predict::PredictError::TooFewGpus {
            ranks: u32::try_from(ranks).unwrap_or(u32::MAX),
            topology: topology.name.clone(),
            gpus: topology.ranks(),
        }
        .into());
    }
    for (index, group) in graph.groups.iter().enumerate() {
        let bad = |reason: String| WorkloadError::Group { group: index, ranks: group.len(), reason };
        let mut sorted = group.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() != group.len() {
            return Err(bad("a rank is in it twice".to_owned()));
        }
        for rank in group {
            match graph.ranks.get(rank.index()) {
                None => return Err(bad(format!("rank {rank} does not exist"))),
                Some(spec) if !spec.groups.contains(&index) => {
                    return Err(bad(format!("rank {rank} does not know of it")));
                }
                Some(_) => {}
            }
        }
    }
    for (index, spec) in graph.ranks.iter().enumerate() {
        let own = |&&g: &&usize| graph.groups.get(g).is_none_or(|group| !group.iter().any(|r| r.index() == index));
        if let Some(&group) = spec.groups.iter().find(own) {
            return Err(WorkloadError::Group { group, ranks: 0, reason: format!("rank {index} is not in it") });
        }
    }
    Ok(())
}

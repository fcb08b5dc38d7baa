//! What a call takes when it runs alone: simulated slice by slice once, then remembered.

use std::sync::{Arc, Mutex};

use rustc_hash::{FxHashMap, FxHashSet};

use super::fold::Classes;
use super::graph::{Communicate, Device, Mover, OpGraph, What, WorkloadError, is_communication, tasks_of};
use crate::call::Call;
use crate::collective::{Algorithm, Collective, DataType};
use crate::ids::{HostId, LinkId, Rank, VertexId};
use crate::network::{ResourceName, Router};
use crate::predict::{Choice, PredictError, Predictor, Settings};
use crate::schedule::Schedule;
use crate::topology::Topology;
use crate::units::{Bytes, SimDuration};

/// A call alone on the machine, with its siblings: calls of other groups of the same kind that
/// run at the same time on the same hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct Footprint {
    /// From the start of its kernel, everywhere, to the end.
    pub time: SimDuration,
    /// Thread blocks of its kernel: one a channel; 0 for a copy engine.
    pub blocks: u32,
    /// Share of its blocks' rate that it needs: what makes it as slow beside products as blocks are that keep as
    /// much as products leave them.
    pub block_share: f64,
    /// Share of each link direction's rate that it uses, protocol and efficiency included.
    pub links: Vec<(LinkId, f64)>,
    /// Bytes a second that each rank of the group sends.
    pub sent: Vec<f64>,
    /// What it ran as: `ring/simple, 16 channels`.
    pub how: String,
    /// What bounds it.
    pub bound_by: &'static str,
}

/// A call, whoever makes it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Asked {
    /// A collective, of group 0.
    Collective(Communicate),
    /// A message.
    Message(Bytes, Mover),
}

impl Asked {
    fn collective(c: &Communicate) -> Self {
        Self::Collective(Communicate { group: 0, ..c.clone() })
    }

    /// That of an operation, if it is one.
    pub(super) fn of(what: &What) -> Option<Self> {
        match what {
            What::Collective(c) => Some(Self::collective(c)),
            What::Send { bytes, mover, .. } | What::Recv { bytes, mover, .. } => Some(Self::Message(*bytes, *mover)),
            _ => None,
        }
    }
}

/// What a footprint is of: groups of ranks at once, the call, and whether the second rank sends.
type Of = (Vec<Vec<Rank>>, Asked, bool);

/// Simulates steps on one machine with one profile; remembers calls.
#[derive(Debug)]
pub struct Simulator<'a> {
    predictor: Predictor<'a>,
    /// Of the GPUs, all alike.
    pub device: Device,
    /// What NCCL is told.
    pub settings: Settings,
    known: Mutex<FxHashMap<Of, Arc<Footprint>>>,
}

/// Ranks of siblings that are simulated together at most: they fold, but have to be laid.
const MAX_TOGETHER: usize = 512;
/// Slices up to which a whole graph is simulated slice by slice.
const FEW_SLICES: u64 = 60_000;
/// Slice by slice each part of a computation takes from the lanes of all calls of its rank: so many parts times calls,
/// each part as if there were some calls more, are simulated so at most: 1.5 GB.
pub(super) const FEW_HELD: u64 = 6_000_000;

/// Whether the parts of all computations are few enough to be simulated beside slices.
pub(super) fn tasks_are_few(graph: &OpGraph) -> bool {
    let held: Vec<u64> = (graph.programs.iter())
        .map(|program| {
            let calls = program.ops.iter().filter(|op| is_communication(op)).count() as u64;
            program.ops.iter().map(tasks_of).sum::<u64>().saturating_mul(8 + calls)
        })
        .collect();
    let of = |program: usize| held.get(program).copied().unwrap_or(0);
    graph.ranks.iter().fold(0_u64, |sum, r| sum.saturating_add(of(r.program))) <= FEW_HELD
}

/// A group of ranks, and those of others that have a rank on one of its hosts: what runs at the same time on the same NICs.
/// Of many the first, so that all have at most 512 ranks, and all that share the group's first host.
pub fn siblings<'g>(
    topology: &Topology,
    group: &[Rank],
    others: impl IntoIterator<Item = &'g [Rank]>,
) -> Vec<Vec<Rank>> {
    let chosen = beside(topology, group, others.into_iter().map(|other| (other, other)));
    std::iter::once(group).chain(chosen).map(<[Rank]>::to_vec).collect()
}

/// Those of other groups, each with what it is called, that [`siblings`] takes.
fn beside<'g, T>(topology: &Topology, group: &[Rank], others: impl IntoIterator<Item = (T, &'g [Rank])>) -> Vec<T> {
    let on = |g: &[Rank]| -> std::collections::BTreeSet<u32> { g.iter().map(|&r| topology.host_of(r).0).collect() };
    let hosts = on(group);
    let mut all = Vec::new();
    let first = hosts.first();
    let mut ranks = group.len();
    for (name, other) in others {
        let theirs = on(other);
        ranks += if theirs.is_disjoint(&hosts) { 0 } else { other.len() };
        // Those share its NICs from end to end, as on all other hosts that they have in common.
        let beside = first.is_some_and(|first| theirs.contains(first));
        if beside || (ranks <= MAX_TOGETHER && !theirs.is_disjoint(&hosts)) {
            all.push(name);
        }
    }
    all
}

impl<'a> Simulator<'a> {
    /// Simulates on a machine, given what its GPUs have.
    pub fn new(predictor: Predictor<'a>, device: Device, settings: Settings) -> Self {
        Self { predictor, device, settings: Settings { cold: true, ..settings }, known: Mutex::default() }
    }

    /// The machine.
    pub fn topology(&self) -> &'a Topology {
        self.predictor.topology()
    }

    /// What predicts calls.
    pub fn predictor(&self) -> &Predictor<'a> {
        &self.predictor
    }

    /// The call of a collective over so many ranks.
    pub(super) fn call(ranks: usize, c: &Communicate) -> Call {
        let ranks = u32::try_from(ranks).unwrap_or(u32::MAX);
        Call { in_place: c.in_place, ..Call::of_size(c.collective, ranks, c.bytes, c.dtype) }
    }

    /// The call of one message from the first rank of two to the other, or back. One of no bytes is one empty slice,
    /// for which its receiver waits as for any other: it takes as long as a byte.
    ///
    /// Source: NCCL `src/device/sendrecv.h`, which sends before it asks whether anything is left.
    pub(super) fn message(bytes: Bytes, back: bool) -> Call {
        let size = bytes.0.max(1);
        let counts = if back { [0, 0, size, 0] } else { [0, size, 0, 0] };
        let mut call = Call::of_size(Collective::AllToAll, 2, bytes, DataType::Uint8);
        call.counts = Some(counts.into());
        call
    }

    /// A group and those like it that run on its hosts: first the one that stands for all, where it is among them.
    fn siblings(&self, graph: &OpGraph, classes: &Classes, group: usize) -> Vec<usize> {
        let like = classes.like[group];
        let alike = (graph.groups.iter().enumerate())
            .filter(|(index, _)| *index != group && classes.like[*index] == like)
            .map(|(index, other)| (index, other.as_slice()));
        let mut all = beside(self.topology(), &graph.groups[group], alike);
        all.push(group);
        all.sort_unstable_by_key(|&index| (index != classes.leaders[like], index));
        all
    }

    /// What a group's class has of a call that it and its siblings make at once: of the links at its GPUs all, of those of a
    /// host the share of its groups there.
    fn own(
        &self,
        graph: &OpGraph,
        classes: &Classes,
        (group, siblings): (usize, &[usize]),
        all: &Arc<Footprint>,
    ) -> Arc<Footprint> {
        let mine = |other: usize| classes.group[other] == classes.group[group];
        if group == siblings[0] && siblings.iter().all(|&other| mine(other)) {
            return Arc::clone(all);
        }
        let topology = self.topology();
        // Groups there, and how many of them are of this class.
        let mut gpus: FxHashMap<VertexId, (u32, u32)> = FxHashMap::default();
        let mut hosts: FxHashMap<HostId, (u32, u32)> = FxHashMap::default();
        let mut everywhere = (0, 0);
        for &other in siblings {
            let add = |known: &mut (u32, u32)| *known = (known.0 + 1, known.1 + u32::from(mine(other)));
            let members = &graph.groups[other];
            members.iter().for_each(|&rank| add(gpus.entry(topology.gpu_of(rank)).or_default()));
            let on: FxHashSet<HostId> = members.iter().map(|&rank| topology.host_of(rank)).collect();
            on.into_iter().for_each(|host| add(hosts.entry(host).or_default()));
            add(&mut everywhere);
        }
        let part = |link: LinkId| {
            let (from, to) = topology.ends(link);
            let gpu = gpus.get(&from).or_else(|| gpus.get(&to));
            let host = || [from, to].iter().find_map(|&end| hosts.get(&topology.vertex(end).host?));
            let (groups, mine) = gpu.or_else(host).copied().unwrap_or(everywhere);
            f64::from(mine) / f64::from(groups)
        };
        let links = all.links.iter().map(|&(link, share)| (link, share * part(link))).filter(|l| l.1 > 0.0).collect();
        let sent = graph.groups[group].iter().map(|&rank| self.leaves(rank, &all.links)).collect();
        Arc::new(Footprint { links, sent, ..Footprint::clone(all) })
    }

    /// A collective of a group alone with its siblings.
    ///
    /// # Errors
    /// A call that cannot be predicted.
    pub fn collective(
        &self,
        graph: &OpGraph,
        classes: &Classes,
        group: usize,
        c: &Communicate,
    ) -> Result<Arc<Footprint>, WorkloadError> {
        let siblings = self.siblings(graph, classes, group);
        let groups: Vec<Vec<Rank>> = siblings.iter().map(|&sibling| graph.groups[sibling].clone()).collect();
        let key = (groups.clone(), Asked::collective(c), false);
        let all = self.remember(key, || {
            let settings = Settings { channels: c.channels.or(self.settings.channels), ..self.settings };
            let call = |ranks: u32| Self::call(ranks as usize, c);
            self.alone(&groups, &call, (c.algorithm, c.protocol), &settings)
        })?;
        Ok(self.own(graph, classes, (group, &siblings), &all))
    }

    /// A message between the two ranks of a group alone with its siblings.
    ///
    /// # Errors
    /// No route between them.
    pub fn send(
        &self,
        graph: &OpGraph,
        classes: &Classes,
        group: usize,
        (bytes, back, mover): (Bytes, bool, Mover),
    ) -> Result<Arc<Footprint>, WorkloadError> {
        let siblings = self.siblings(graph, classes, group);
        let groups: Vec<Vec<Rank>> = siblings.iter().map(|&sibling| graph.groups[sibling].clone()).collect();
        let key = (groups.clone(), Asked::Message(bytes, mover), back);
        let all = self.remember(key, || {
            let call = |_| Self::message(bytes, back);
            let both = (Choice::Forced(Algorithm::Direct), Choice::Auto);
            let blocks = self.alone(&groups, &call, both, &self.settings)?;
            Ok(match mover {
                Mover::Blocks => blocks,
                Mover::CopyEngine => self.by_copy_engine(&groups, bytes, back, blocks),
            })
        })?;
        Ok(self.own(graph, classes, (group, &siblings), &all))
    }

    /// The schedule of a call for a group of ranks, and the machine as that group sees it.
    pub(super) fn schedule(
        &self,
        group: &[Rank],
        call: &Call,
        choice: (Choice<Algorithm>, Choice<crate::collective::Protocol>),
        channels: Option<u32>,
    ) -> Result<(Topology, Schedule), PredictError> {
        let gpus: Vec<_> = group.iter().map(|&rank| self.topology().gpu_of(rank)).collect();
        let view = self.topology().placed(&gpus)?;
        let settings = Settings { channels: channels.or(self.settings.channels), ..self.settings };
        let schedule = {
            let predictor = self.predictor.on(&view);
            let resolved = predictor.resolve(call, choice.0, choice.1, &settings)?;
            let settings = Settings { channels: settings.channels.or(resolved.channels), ..settings };
            predictor.schedule(call, resolved.algorithm, resolved.protocol, &settings)?
        };
        Ok((view, schedule))
    }

    fn remember(
        &self,
        key: Of,
        make: impl FnOnce() -> Result<Footprint, WorkloadError>,
    ) -> Result<Arc<Footprint>, WorkloadError> {
        let known = || self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(footprint) = known().get(&key) {
            return Ok(Arc::clone(footprint));
        }
        let made = Arc::new(make()?);
        known().insert(key, Arc::clone(&made));
        Ok(made)
    }

    fn alone(
        &self,
        groups: &[Vec<Rank>],
        call: &dyn Fn(u32) -> Call,
        choice: (Choice<Algorithm>, Choice<crate::collective::Protocol>),
        settings: &Settings,
    ) -> Result<Footprint, WorkloadError> {
        // What slower blocks cost a call takes a simulation: they wait for each other, and for links.
        let kept = self.predictor.profile().block_speed(self.predictor.profile().gemm_memory());
        let (prediction, uses, slower) = self.predictor.predict_groups(groups, call, choice, settings, Some(kept))?;
        let slower = slower.map_or(prediction.kernel, |s| s.kernel);
        // A kernel's start and end move nothing.
        let ends = self.predictor.profile().kernel(&prediction.plan).as_us();
        let busy = (1.0 - ends / prediction.kernel.as_us().max(1e-9)).max(0.0);
        let mut links: Vec<(LinkId, f64)> = Vec::new();
        for (name, share) in uses {
            if let ResourceName::Link(link) = name {
                links.push((link, share * busy));
            }
        }
        let sent = groups[0].iter().map(|&rank| self.leaves(rank, &links)).collect();
        Ok(Footprint {
            time: prediction.kernel,
            // A message has one round of all that a pair could have; blocks without data are not launched.
            blocks: if call(2).counts.is_some() { prediction.plan.channels_per_peer } else { prediction.plan.channels },
            block_share: (kept * slower.as_us() / prediction.kernel.as_us().max(1e-9)).min(1.0),
            links,
            sent,
            how: format!("{}/{}, {} channels", prediction.algorithm, prediction.protocol, prediction.plan.channels),
            bound_by: prediction.bound_by(),
        })
    }

    /// Bytes a second that leave a rank's GPU.
    fn leaves(&self, rank: Rank, links: &[(LinkId, f64)]) -> f64 {
        let topology = self.topology();
        let gpu = topology.gpu_of(rank);
        let own = links.iter().filter(|(link, _)| topology.ends(*link).0 == gpu);
        own.map(|&(link, share)| {
            let link = topology.link(link);
            link.rate.gb_per_s() * 1e9 * share * self.predictor.profile().efficiency(link.kind)
        })
        .sum()
    }

    /// The same message by copy engines, where both are peers: the links of blocks at a copy
    /// engine's rate. Elsewhere the network moves it, with the same time and no blocks.
    fn by_copy_engine(&self, groups: &[Vec<Rank>], bytes: Bytes, back: bool, blocks: Footprint) -> Footprint {
        let (from, to) = if back { (groups[0][1], groups[0][0]) } else { (groups[0][0], groups[0][1]) };
        let router = Router::with(self.topology(), self.settings.transport);
        let profile = self.predictor.profile();
        let mut footprint = Footprint { blocks: 0, block_share: 0.0, how: "copy engine".to_owned(), ..blocks };
        if router.are_peers(from, to) {
            let gpu = self.topology().gpu_of(from);
            let ratio = profile.copy_engine_over_blocks();
            let out = footprint.links.iter().filter(|(link, _)| self.topology().ends(*link).0 == gpu);
            let rate: f64 = out
                .map(|&(link, _)| {
                    let link = self.topology().link(link);
                    link.rate.gb_per_s() * 1e3 * profile.efficiency(link.kind) * ratio
                })
                .sum();
            let time = SimDuration::from_us(bytes.0 as f64 / rate.max(1.0)) + profile.copy_start();
            let faster = footprint.time.as_us() / time.as_us().max(1e-9);
            footprint.links.iter_mut().for_each(|l| l.1 = (l.1 * faster).min(1.0));
            footprint.sent.iter_mut().for_each(|s| *s *= faster);
            footprint.time = time;
        }
        footprint
    }

    /// Whether all traffic of a graph is few enough slices to be simulated one by one.
    pub(super) fn slices_are_few(&self, graph: &OpGraph) -> bool {
        // Each slice of 128 KiB, as those of NCCL's Simple, on each hop of a ring.
        let slices = |bytes: u64, ranks: u64| (bytes / 131_072 + ranks * 16) * ranks * 2;
        let mut total = 0_u64;
        for spec in &graph.ranks {
            for op in &graph.programs[spec.program].ops {
                total = total.saturating_add(match &op.what {
                    What::Collective(c) => {
                        let ranks = spec.groups.get(c.group).and_then(|&g| graph.groups.get(g)).map_or(1, Vec::len);
                        slices(c.bytes.0, ranks as u64) / ranks.max(1) as u64
                    }
                    What::Send { bytes, mover: Mover::Blocks, .. } => slices(bytes.0, 1),
                    // Copy engines and what the network moves by itself have no lanes.
                    What::Send { .. } => return false,
                    _ => 0,
                });
                if total > FEW_SLICES {
                    return false;
                }
            }
        }
        total > 0
    }
}

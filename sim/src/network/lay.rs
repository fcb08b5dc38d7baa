//! Lays a schedule on a machine: resources, weights and latencies for the engine.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::alike::Alike;
use super::ground::{Ground, Grounds, router};
use super::laid::{Laid, LayError, ResourceName};
use super::layer::{Resources, wire_format};
use super::place;
use crate::collective::{Algorithm, Protocol};
use crate::engine::flows::WEIGHT_ONE;
use crate::engine::{Access, ConnSpec, Instance, KernelSpec, LaneSpec, Section, lane_of};
use crate::ids::Rank;
use crate::nccl::Transport;
use crate::profile::Profile;
use crate::schedule::wiring::{UNUSED, Wired, Wiring};
use crate::schedule::{Conn, End, Schedule};
use crate::topology::{Gpu, Topology};
use crate::units::{SimDuration, SimTime};

/// Groups of channels that start one after the other, in calls inside one host. Channels in step would
/// all copy at once and all synchronise at once, with the link idle; the little that they start apart
/// grows, since who is early finds the link less busy, until they take turns. So many groups are within
/// 1% of every channel apart (4 H200, rings of 64 MiB to 4 GiB), and the channels of a group still fold.
/// Over several hosts all start at once, except where they fetch their work: the links inside hosts seldom
/// bound such calls, and a simulation with four times the lanes takes eight times as long.
const STARTS: u32 = 4;
/// How far the round trips of channels through switches lie apart, as a part of their mean: blocks on different
/// multiprocessors are not equally far from the links. With NVLS all ranks do the same at once, and channels alike would
/// fall in and out of step: at 0, all-reduces of 400 MiB to 1 GiB differed by up to 8% with no order in their sizes, and
/// some took less time than smaller ones. From 0.1 to 0.5 their mean is the same within 4%. Assumed, not measured. Over several
/// trays of an NVLink domain channels stay in step: two published runs of GB200 are 8.5% off so, and 9.2% apart.
const APART: f64 = 0.2;

/// What is received has a sixth of L2. What is loaded from memory and what is kept pass through it at the same rate. And L2 has
/// two halves, each of which caches what the multiprocessors beside it access (NVIDIA A100 white paper, 2020).
const FIFOS_SHARE: f64 = 6.0;

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
    lay_some(topology, profile, transport, schedule, None, None)
}

/// As [`lay`], with the connections of others that were laid on the same machine with the same profile.
///
/// # Errors
/// As [`lay`].
pub fn lay_known<'a>(
    topology: &Topology,
    profile: &Profile,
    transport: &Transport,
    schedule: &'a Schedule,
    grounds: &Grounds,
) -> Result<Laid<'a>, LayError> {
    lay_some(topology, profile, transport, schedule, None, Some(grounds))
}

/// Lays a schedule on one host of each kind of the first ranks of a machine, where hosts are alike: what is laid runs as
/// the whole does, each lane standing for all that are alike.
///
/// # Errors
/// As [`lay`].
pub fn lay_one_of_each<'a>(
    topology: &Topology,
    profile: &Profile,
    transport: &Transport,
    schedule: &'a Schedule,
) -> Result<Laid<'a>, LayError> {
    lay_some(topology, profile, transport, schedule, Alike::of(topology, transport, schedule).as_ref(), None)
}

fn lay_some<'a>(
    topology: &Topology,
    profile: &Profile,
    transport: &Transport,
    schedule: &'a Schedule,
    alike: Option<&Alike>,
    grounds: Option<&Grounds>,
) -> Result<Laid<'a>, LayError> {
    let ranks: Vec<Rank> =
        alike.map_or_else(|| (0..schedule.call.ranks).map(Rank).collect(), |all| all.ranks().collect());
    let stands_for = alike.map(|alike| |conn: &Conn| alike.conn(conn));
    let stands_for = stands_for.as_ref().map(|of| of as &dyn Fn(&Conn) -> Conn);
    let wiring = Wiring::of(schedule, ranks.iter().copied(), stands_for)?;
    let kernels = vec![KernelSpec { rounds: 1, gap: profile.kernel(&schedule.plan) }; ranks.len()];
    let ground = match grounds {
        Some(grounds) => grounds.of(topology, (profile, transport), schedule, &wiring)?,
        None => Arc::new(Ground::lay(router(topology, transport, schedule), profile, schedule, &wiring, alike)?.0),
    };
    let mut resources = ground.resources.clone();
    let lay = Lanes::new(topology, profile, schedule, &wiring, &ground.conns);
    let lanes = (wiring.workers.iter())
        .map(|worker| {
            let kernel = ranks.binary_search(&worker.rank).ok().and_then(|at| u32::try_from(at).ok());
            LaneSpec {
                kernel: kernel.unwrap_or(UNUSED),
                multiplicity: alike.map_or(1, |alike| alike.members(worker.rank)),
                ..lay.lane(&mut resources, worker)
            }
        })
        .collect();
    let instance = Instance {
        resources: resources.rates,
        conns: ground.conns.clone(),
        lanes,
        kernels,
        schedules: vec![schedule],
        tasks: Vec::new(),
    };
    let congested = alike.map_or(ground.congested, |alike| alike.congested);
    Ok(Laid { instance, names: resources.names, wiring, congested, folds: ground.folds.clone() })
}

/// Lays the lanes of a schedule whose connections are laid.
struct Lanes<'a> {
    topology: &'a Topology,
    profile: &'a Profile,
    schedule: &'a Schedule,
    wiring: &'a Wiring,
    conns: &'a [ConnSpec],
    /// By rank: FIFOs in its memory that it receives from.
    fifos: FxHashMap<Rank, u64>,
    reduce_weight: u64,
    /// Channels that start at once.
    together: u32,
    /// Whether all ranks are of one host.
    inside: bool,
}

impl<'a> Lanes<'a> {
    fn new(
        topology: &'a Topology,
        profile: &'a Profile,
        schedule: &'a Schedule,
        wiring: &'a Wiring,
        conns: &'a [ConnSpec],
    ) -> Self {
        let inside = (1..schedule.call.ranks).all(|rank| topology.host_of(Rank(rank)) == topology.host_of(Rank(0)));
        let used = schedule.plan.used();
        let together = match (schedule.plan.old.fetches_work, inside) {
            (true, _) => 1,
            (false, true) if schedule.plan.algorithm == Algorithm::Nvls => 1,
            (false, true) => schedule.plan.blocks().div_ceil(STARTS).max(1),
            (false, false) => used.1.max(1),
        };
        let mut fifos: FxHashMap<Rank, u64> = FxHashMap::default();
        for worker in &wiring.workers {
            // What lies in host memory is never in L2.
            let on_gpu = |conn: &ConnSpec| !conn.direct && conn.uses.of(Section::Load).is_empty();
            let in_fifo = |&&conn: &&u32| conns.get(conn as usize).is_some_and(on_gpu);
            *fifos.entry(worker.rank).or_default() += worker.recv.iter().filter(in_fifo).count() as u64;
        }
        let reduce_weight = (profile.reduce_weight(schedule.call.dtype) * WEIGHT_ONE as f64) as u64;
        Self { topology, profile, schedule, wiring, conns, fifos, reduce_weight, together, inside }
    }

    fn lane(&self, resources: &mut Resources, worker: &Wired) -> LaneSpec {
        let (profile, protocol) = (self.profile, self.schedule.plan.protocol);
        let mut lane = lane_of(worker, 0, self.schedule.element_size());
        self.take_threads(resources, worker, &mut lane);
        lane.sync = profile.sync(protocol) + self.through_switches(worker);
        lane.both = profile.both(protocol);
        lane.after = profile.after(protocol);
        lane.wave = u64::from(worker.threads) * thread_lines(protocol);
        lane.reduce_weight = self.reduce_weight;
        lane.access = self.access(worker);
        lane.share = self.share(worker);
        lane.at = self.begins(worker);
        if self.schedule.call.ranks == 1 {
            self.leave_to_driver(resources, worker, &mut lane);
        }
        lane
    }

    /// What a lane takes of its block.
    fn take_threads(&self, resources: &mut Resources, worker: &Wired, lane: &mut LaneSpec) {
        let rate = self.profile.block_rate(self.schedule.plan.protocol);
        let warps = ResourceName::Lane(worker.rank, worker.channel, worker.team);
        lane.issue = (resources.number(warps, || rate.get()), WEIGHT_ONE);
        // What lanes that share a multiprocessor load waits with the threads of each alone.
        if worker.others > 0 {
            let own = ResourceName::Own(worker.rank, worker.channel, worker.lane);
            let threads = worker.threads.saturating_sub(worker.others).max(1);
            let longer = u64::from(worker.threads) * WEIGHT_ONE / u64::from(threads);
            lane.own = Some((resources.number(own, || rate.get()), longer));
        }
    }

    /// What round trips through switches take in a step; see [`APART`].
    fn through_switches(&self, worker: &Wired) -> SimDuration {
        let trips = self.profile.latency_multimem().1.times(self.trips(worker));
        SimDuration((trips.0 as f64 * (1.0 + APART * self.off_the_middle(worker))).round() as u64)
    }

    /// How far the channels that start with a lane are from the middle of all, which lie from -0.5 to 0.5; 0 where all start
    /// at once.
    fn off_the_middle(&self, worker: &Wired) -> f64 {
        let (first, end) = self.schedule.plan.used();
        let last = end.saturating_sub(first + 1) / self.together;
        let group = worker.channel.0.saturating_sub(first) / self.together;
        if last == 0 { 0.0 } else { f64::from(group) / f64::from(last) - 0.5 }
    }

    /// Round trips through switches in a step. NCCL's `src/device/prims_simple.h`: a head loads once it has seen the
    /// counters, and fences what it multicasts before it says so.
    fn trips(&self, worker: &Wired) -> u64 {
        let is_group = |end: End| matches!(end, End::Group(_));
        let through = |conns: &[u32], end: fn(&Conn) -> End| {
            let of_switch = |&&c: &&u32| self.conns.get(c as usize).is_some_and(|c| c.proxy.is_none());
            let ends = conns.iter().filter(of_switch);
            ends.filter(|&&c| is_group(end(&self.wiring.conns[c as usize].conn))).count() as u64
        };
        through(&worker.recv, |conn| conn.src) + through(&worker.send, |conn| conn.dst)
    }

    /// How a lane reaches memory.
    fn access(&self, worker: &Wired) -> Access {
        let (profile, protocol) = (self.profile, self.schedule.plan.protocol);
        let old = self.schedule.plan.old.fetches_work && protocol == Protocol::Simple;
        // A thread has 8 loads of 16 bytes on their way with Simple from A100 on, but 4 with NCCL 2.8 (`COLL_UNROLL`).
        let gpu = self.topology.gpu(self.topology.gpu_of(worker.rank));
        let fewer = old && gpu.map_or(0, |gpu| gpu.compute_capability) >= 80;
        let loading = if fewer { worker.threads.div_ceil(2) } else { worker.threads };
        let copies = protocol == Protocol::Simple && self.is_switch_copy(worker);
        let mut access = if copies {
            profile.copy(loading)
        } else {
            profile.access(protocol, loading, self.missed(worker.rank), self.schedule.call.unaligned())
        };
        let in_host = |&conn: &u32| {
            self.conns.get(conn as usize).is_some_and(|conn: &ConnSpec| !conn.uses.of(Section::Load).is_empty())
        };
        if worker.recv.iter().any(in_host) {
            let each = match thread_lines(protocol) {
                0 if old => 64,
                0 => 128,
                lines => lines,
            };
            let host = profile.fetch_from_host(profile.block_rate(protocol), worker.threads, each);
            access.fetch = access.fetch.max(host);
        }
        access
    }

    /// Share of what a rank receives that L2 no longer holds when it is loaded: that of the FIFOs in use which a
    /// [`FIFOS_SHARE`]-th of it has no place for. Ranks of a ring keep pace, so that a chunk is on its way at a time,
    /// and so do those of MSCCL, whose blocks send and receive by turns; elsewhere whole FIFOs fill.
    fn missed(&self, rank: Rank) -> f64 {
        let (plan, element) = (&self.schedule.plan, self.schedule.element_size());
        let slice = plan.chunk / u64::from(plan.slices.max(1));
        let keep_pace = matches!(plan.algorithm, Algorithm::Ring | Algorithm::Msccl);
        let on_its_way = if keep_pace { plan.chunk } else { slice * u64::from(plan.fifo_slices) };
        let fifo = on_its_way.min(plan.per_channel) * element;
        let fifos = self.fifos.get(&rank).copied().unwrap_or(0);
        let on_wire = fifo as f64 * fifos as f64 * wire_format(plan.protocol);
        let l2 = self.topology.gpu(self.topology.gpu_of(rank)).and_then(Gpu::l2);
        l2.map_or(0.0, |l2| f64::max(0.0, 1.0 - l2.0 as f64 / FIFOS_SHARE / on_wire.max(1.0)))
    }

    /// Who lays data out for a switch to combine, or takes what it multicast, copies inside one memory.
    fn is_switch_copy(&self, worker: &Wired) -> bool {
        let one_of = |conns: &[u32], end: fn(&Conn) -> End| match conns {
            [conn] => self.wiring.conns.get(*conn as usize).is_some_and(|c| matches!(end(&c.conn), End::Group(_))),
            _ => false,
        };
        let lays_out = worker.recv.is_empty() && one_of(&worker.send, |conn| conn.src);
        let takes = worker.send.is_empty() && one_of(&worker.recv, |conn| conn.dst);
        lays_out || takes
    }

    /// What a lane gets of a full link. Over several hosts the links inside them seldom bound a call: see [`STARTS`].
    fn share(&self, worker: &Wired) -> u64 {
        let plan = &self.schedule.plan;
        let index = worker.channel.0.saturating_sub(plan.used().0);
        match self.topology.gpu(self.topology.gpu_of(worker.rank)) {
            Some(gpu) if self.inside => {
                // Two GPUs have nothing to do with each other in this: what is early on one is late on its neighbour.
                let group = self.off_the_middle(worker);
                let group = if worker.rank.0.is_multiple_of(2) { group } else { -group };
                place::share(gpu.compute_capability, index, plan.blocks(), group)
            }
            _ => WEIGHT_ONE,
        }
    }

    /// When a lane begins.
    fn begins(&self, worker: &Wired) -> SimTime {
        let first = worker.channel.0 / self.together * self.together;
        let fetches = self.schedule.plan.old.fetches_work;
        let begun = if fetches { self.profile.block_fetch(first) } else { self.profile.block_start(first) };
        SimTime(begun.0)
    }

    /// NCCL leaves the copy of one rank to the driver (`src/enqueue.cc`), which memory alone bounds.
    fn leave_to_driver(&self, resources: &mut Resources, worker: &Wired, lane: &mut LaneSpec) {
        let gpu = self.topology.gpu_of(worker.rank);
        if let Some(nominal) = self.topology.gpu(gpu).and_then(|g| g.memory_rate) {
            let rate = self.profile.memory(nominal) as u64;
            lane.issue = (resources.number(ResourceName::Memory(gpu), || rate), 2 * WEIGHT_ONE);
            lane.access = Access::EVEN;
            lane.own = None;
        }
    }
}

/// The smallest latency of any connection of an instance.
pub fn smallest_latency(instance: &Instance<'_>) -> SimDuration {
    instance.conns.iter().map(|c| c.latency).min().unwrap_or_default()
}

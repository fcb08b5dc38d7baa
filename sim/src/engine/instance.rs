//! What the engine runs, and what comes of it: connections, lanes, kernels, tasks.

use std::hash::Hash;
use std::sync::Arc;

use smallvec::SmallVec;

use super::flows::{Use, WEIGHT_ONE};
use super::uses::{Section, Uses};
use crate::schedule::Schedule;
use crate::schedule::program::{State, Step};
use crate::schedule::wiring::{Ends, Wired};
use crate::units::{Bandwidth, Bytes, SimDuration, SimTime};

/// A FIFO between lanes, as the hardware carries it. Its ends are all ports that list it: a slot
/// is there when every sender has posted it, and free when every receiver is done with it.
///
/// One flow carries a slice, so whoever starts it is one: the sender; the receiver of what several
/// senders have put into their own memory (all of `uses` is then [`Section::Load`]); with `proxy` the
/// connection, once all have posted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConnSpec {
    /// What a slice takes.
    pub uses: Uses,
    /// From the end of the flow to the receiver's knowledge of it.
    pub latency: SimDuration,
    /// From a receiver's end of a slice to the knowledge, at whoever starts the transfer, that its
    /// place is free.
    pub credit: SimDuration,
    /// The receiver may start with the sender's first wave of lines.
    pub streaming: bool,
    /// The sender stores where the data is to stay: the receiver only waits for it, or passes it on. So it waits for word
    /// that the receiver's kernel has begun, in each round.
    pub direct: bool,
    /// Slices that fit; with a proxy, as many at each of both ends.
    pub depth: u32,
    /// Who transfers, if not the sender's lane.
    pub proxy: Option<ProxySpec>,
    /// Units of a proxy's work before the transfer of a slice, in order: of one whose data goes with its header, and
    /// of a larger one.
    pub post: [u64; 2],
    /// Bytes of a slice that go with its header.
    pub inline: u64,
    /// Units of it for each byte of a slice, scaled by [`WEIGHT_ONE`], that may be done while the sender's lane
    /// writes the slice, and are done before the rest of the work.
    pub check: u64,
    /// Units of work of the receiver's proxy on a slice that has arrived, before the receiver knows of it.
    pub take: u64,
    /// Bytes up to which a slice is sent before the receiver has a place for it, and kept for it until then.
    pub eager: u64,
    /// From when a proxy is handed a larger slice until the receiver knows of it and may have it transferred.
    pub announce: SimDuration,
    /// Where equal connections share a proxy's thread and the links, and it works on one while others transfer:
    /// units of work and bytes of a transfer, a second, of one that is alone. `None` where all of the work is
    /// done before the transfer starts.
    pub overlap: Option<[u64; 2]>,
}

/// A thread that transfers the slices of a connection. There are two FIFOs then, one after the
/// other: a slice leaves the sender's once it is transferred, and is transferred once the receiver's
/// has a place for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProxySpec {
    /// What the receiver of data waits for beyond the latency of the connection.
    pub flush: SimDuration,
    /// From the end of a transfer to the block's knowledge that its place is free.
    pub ack: SimDuration,
}

impl ConnSpec {
    /// Units of a proxy's work on a slice that it has been handed.
    pub(super) fn work(&self, bytes: u64) -> u64 {
        self.post[usize::from(bytes > self.inline)]
    }

    /// Units of its work on a slice that a lane writes.
    pub(super) fn checks(&self, bytes: u64) -> u64 {
        let work = u128::from(bytes) * u128::from(self.check) / u128::from(WEIGHT_ONE);
        if self.uses.of(Section::Posting).is_empty() { 0 } else { u64::try_from(work).unwrap_or(u64::MAX) }
    }

    /// What the first of several equal slices adds where the work on one overlaps the transfer of others, as in any
    /// pipeline of two stages: the shorter of its two parts.
    pub(super) fn shorter(&self, bytes: u64) -> u64 {
        self.overlap.map_or(0, |[work, wire]| time_at(self.work(bytes), work).min(time_at(bytes, wire)))
    }

    /// From the end of a proxy's work on a slice to its first line at the receiver, whose proxy has nothing else to do.
    pub(super) fn first_line(&self) -> u64 {
        self.latency.0.saturating_add(self.overlap.map_or(0, |[work, _]| time_at(self.take, work)))
    }

    /// What costs it time beside its resources. Every field is named, so that a new one has its place here, or below
    /// where it costs nothing.
    pub fn costs(&self) -> impl Hash + Eq + use<> {
        let &Self {
            latency,
            credit,
            streaming,
            direct,
            depth,
            proxy,
            post,
            inline,
            check,
            take,
            eager,
            announce,
            overlap,
            uses: _,
        } = self;
        ([latency, credit, announce], streaming, direct, depth, proxy, post, inline, check, take, eager, overlap)
    }
}

fn time_at(units: u64, rate: u64) -> u64 {
    Bandwidth::new(rate).map_or(0, |rate| rate.time_for(Bytes(units)).0)
}

/// A lane: a worker with what it runs on.
#[derive(Clone, Debug)]
pub struct LaneSpec {
    /// Which of the instance's schedules it belongs to.
    pub job: u32,
    /// Template in that schedule.
    pub template: usize,
    /// Where its program starts.
    pub start: State,
    /// Receive connections by port; [`UNUSED`](crate::schedule::wiring::UNUSED) where none.
    pub recv: Ends,
    /// Send connections by port; [`UNUSED`](crate::schedule::wiring::UNUSED) where none.
    pub send: Ends,
    /// Lanes whose signals its instructions wait for; [`UNUSED`](crate::schedule::wiring::UNUSED) where none.
    pub tokens: Ends,
    /// Its warps' instruction rate: a resource in bytes per second, of a send from memory.
    pub issue: Use,
    /// Where it has a part of those warps for itself: a resource like theirs, and how many times as long its loads take
    /// where the others rest, scaled by [`WEIGHT_ONE`].
    pub own: Option<Use>,
    /// Lane occupied per slice with data that crosses a FIFO, before it moves.
    pub sync: SimDuration,
    /// Beside that, where a slice is kept as well as sent.
    pub both: SimDuration,
    /// Lane occupied after a slice that crossed a FIFO has left, before the next one.
    pub after: SimDuration,
    /// Bytes of the lines that its threads take at once, where they go by lines; 0 where not. What is loaded for a
    /// wave is asked for at once, own data of the first one while what is received is on its way, which is seen as it
    /// comes.
    pub wave: u64,
    /// Bytes of an element.
    pub element: u64,
    /// Extra instruction weight of combining, scaled by [`WEIGHT_ONE`].
    pub reduce_weight: u64,
    /// Instruction weights of accesses, scaled by [`WEIGHT_ONE`].
    pub access: Access,
    /// What it gets of a full link beside others, scaled by [`WEIGHT_ONE`]; not 0.
    pub share: u64,
    /// Which of the instance's kernels it is part of.
    pub kernel: u32,
    /// Lanes of one block of a kernel take turns: each starts once all of earlier turns are through.
    pub block: u32,
    /// See `block`.
    pub turn: u32,
    /// When it may start; in later rounds and where a task starts its kernel, after that start.
    pub at: SimTime,
    /// How many equal lanes it stands for.
    pub multiplicity: u64,
}

/// Instruction weights of what an instruction loads and stores, by where it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Access {
    /// Load from memory.
    pub load: u64,
    /// Load of what was received; more than of what is in memory where it waits in the host's.
    pub fetch: u64,
    /// Store to a peer.
    pub store: u64,
    /// Store to memory.
    pub keep: u64,
    /// Instructions of a load, where `load` and `fetch` are what warps wait while others issue; where not, one takes its
    /// turn after the other.
    pub beside: Option<u64>,
}

impl Access {
    /// All alike: a copy has weight 1.
    pub const EVEN: Self =
        Self { load: WEIGHT_ONE / 2, fetch: WEIGHT_ONE / 2, store: WEIGHT_ONE / 2, keep: WEIGHT_ONE / 2, beside: None };

    /// Of what warps wait and what they issue. Where they overlap, the longer counts, and more where both are alike: a
    /// warp whose loads are there may find others at work.
    fn together(&self, waits: u64, issues: u64) -> u64 {
        let square = |weight: u64| (weight as f64) * (weight as f64);
        if self.beside.is_none() { waits + issues } else { (square(waits) + square(issues)).sqrt() as u64 }
    }
}

impl LaneSpec {
    /// What costs it time beside its program, resources and neighbours. Every field is named, so that a new one has its
    /// place here, or above where it costs nothing.
    pub fn costs(&self) -> impl Hash + Eq + use<> {
        let &Self {
            job: _,
            template: _,
            start: _,
            recv: _,
            send: _,
            tokens: _,
            kernel: _,
            block: _,
            turn: _,
            issue,
            own,
            sync,
            both,
            after,
            wave,
            element,
            reduce_weight,
            access,
            share,
            at,
            multiplicity,
        } = self;
        let weights = (issue.1, own.map(|own| own.1), reduce_weight, access, share);
        (weights, [sync, both, after], [wave, element, multiplicity], at)
    }

    /// Its own synchronisation before a slice of a step that crosses a FIFO.
    pub fn before(&self, step: &Step) -> SimDuration {
        let both = step.dst.is_some() && !step.send.is_empty();
        if both { self.sync + self.both } else { self.sync }
    }

    /// Instruction weights of what a step waits for and issues, of each byte. What a thread loads for one line is on its
    /// way at once; slices load one thing after the other.
    pub(super) fn accesses(&self, step: &Step, conns: &[ConnSpec]) -> (u64, u64) {
        // What is only received where it is to stay is neither loaded nor stored once more.
        let direct = |(&port, of): (&usize, &[u32])| conns[of[port] as usize].direct;
        let ports = step.recv.iter().map(|port| (port, &self.recv[..]));
        let mut ports = ports.chain(step.send.iter().map(|port| (port, &self.send[..])));
        let placed = step.src.is_none() && !step.recv.is_empty() && ports.all(direct);
        let fetched = if placed && step.send.is_empty() { 0 } else { step.recv.len() as u64 };
        let own = u64::from(step.src.is_some()) + u64::from(step.accumulate);
        let Access { load, fetch, store, keep, beside } = self.access;
        let waits =
            if self.wave > 0 { (own.min(1) * load).max(fetched.min(1) * fetch) } else { own * load + fetched * fetch };
        let loads = (own + fetched) * beside.unwrap_or(0);
        (waits, loads + step.send.len() as u64 * store + u64::from(step.dst.is_some() && !placed) * keep)
    }

    /// What a slice of a step takes that this lane moves, `bytes` of it: in place of what `uses` had.
    pub(super) fn uses(&self, step: &Step, bytes: u64, conns: &[ConnSpec], uses: &mut Vec<Use>) {
        uses.clear();
        // A lane is bound by its accesses: a send, which loads from memory and stores to a peer, has weight 1.
        let (mut waits, issues) = self.accesses(step, conns);
        // Loads of lines take as long for a wave that is not full; those of the first are there.
        if self.wave > 0 && bytes > 0 {
            waits = (waits * ((bytes - 1) / self.wave * self.wave)).div_ceil(bytes);
        }
        let mut weight = self.issue.1 * self.access.together(waits, issues) / WEIGHT_ONE;
        if step.reduce {
            weight += self.issue.1 * self.reduce_weight / WEIGHT_ONE;
        }
        if weight > 0 {
            uses.push((self.issue.0, weight));
        }
        if let Some((own, longer)) = self.own.filter(|_| weight > 0) {
            let reduce = if step.reduce { self.reduce_weight } else { 0 };
            uses.push((own, self.access.together(waits * longer / WEIGHT_ONE, issues) + reduce));
        }
        for (index, &port) in step.recv.iter().enumerate() {
            let id = self.recv[port];
            if is_first(&step.recv[..index], &self.recv, id) {
                uses.extend(conns[id as usize].uses.of(Section::Load));
            }
        }
        for (index, &port) in step.send.iter().enumerate() {
            let id = self.send[port];
            let conn = &conns[id as usize];
            if is_first(&step.send[..index], &self.send, id) {
                uses.extend(conn.uses.of(Section::Store));
                if conn.proxy.is_none() {
                    uses.extend(conn.uses.of(Section::Transfer));
                }
            }
        }
    }
}

/// What warps take at a rate for some bytes of one weight, with nothing beside them.
pub(super) fn takes(rate: u64, bytes: u64, weight: u64) -> SimDuration {
    let units = bytes * weight / WEIGHT_ONE;
    Bandwidth::new(rate).map_or(SimDuration::ZERO, |rate| rate.time_for(Bytes(units)))
}

/// Whether none of some ports has a connection already. One that stands for several of a lane, folded, takes what all
/// of them take.
pub(super) fn is_first(ports: &[usize], conns: &[u32], id: u32) -> bool {
    ports.iter().all(|&port| conns[port] != id)
}

/// The lanes of one GPU that start and end together, again and again: calls back to back on a
/// stream. FIFOs go on from one round to the next, so a GPU that is done runs ahead of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelSpec {
    /// How often its lanes run their programs.
    pub rounds: u32,
    /// From the end of its last lane to the start of the next round.
    pub gap: SimDuration,
}

/// Everything one run simulates: several schedules and tasks at once.
#[derive(Clone, Debug, Default)]
pub struct Instance<'a> {
    /// Capacities, in units per second.
    pub resources: Vec<u64>,
    /// Connections.
    pub conns: Arc<Vec<ConnSpec>>,
    /// Lanes.
    pub lanes: Vec<LaneSpec>,
    /// Kernels; each has at least one lane.
    pub kernels: Vec<KernelSpec>,
    /// The schedules that lanes refer to.
    pub schedules: Vec<&'a Schedule>,
    /// What runs beside the schedules, and starts their kernels.
    pub tasks: Vec<TaskSpec>,
}

/// What came out of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// When the last lane or task ended.
    pub end: SimTime,
    /// When each schedule ended.
    pub job_ends: Vec<SimTime>,
    /// When each kernel ended its first round.
    pub first_ends: Vec<SimTime>,
    /// When each kernel ended its last round.
    pub last_ends: Vec<SimTime>,
    /// When each lane was through, in its last round.
    pub lane_ends: Vec<SimTime>,
    /// When each round was over everywhere.
    pub round_ends: Vec<SimTime>,
    /// When each task started and ended.
    pub task_starts: Vec<SimTime>,
    /// See `task_starts`.
    pub task_ends: Vec<SimTime>,
    /// The task whose end let each task start: the last that it waited for, or who was in its way;
    /// [`UNUSED`](crate::schedule::wiring::UNUSED) where none.
    pub task_causes: Vec<u32>,
    /// Slices posted by lanes to others, equal lanes counted each.
    pub messages: u64,
    /// Units that went over each resource.
    pub load: Vec<u128>,
    /// Events handled.
    pub events: u64,
    /// What it took to simulate: events, and flows and resources looked at to share links. See [`WORK_PER_SECOND`](super::WORK_PER_SECOND).
    pub work: u64,
    /// A sum over all slices of a hash of (time, program, size): equal for equal runs, however
    /// they were ordered, threaded or folded.
    pub trace_hash: u64,
}

/// What a task has to do with a gate. Gates are numbered from 0 and exist by being named. Waves of
/// a kernel come one after another, its first before the others and its last after them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Gate {
    /// Nothing.
    #[default]
    None,
    /// It is (a wave of) a kernel that fills the GPU.
    Occupies {
        /// The gate.
        gate: u32,
        /// Whether it is the first wave of its kernel: it starts after those who wait to enter.
        first: bool,
        /// Whether it is the last one: then all who wait may enter.
        last: bool,
        /// Places that it leaves free while it runs.
        room: u32,
    },
    /// It needs places that an occupant has, and waits until its wave or kernel is over, or leaves enough of them.
    Enters {
        /// The gate.
        gate: u32,
        /// How many places.
        needs: u32,
        /// Whether it enters between two waves, not only between two kernels.
        urgent: bool,
    },
}

/// Work beside the schedules.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct TaskSpec {
    /// What it uses per unit of work; nothing takes no time.
    pub uses: SmallVec<[Use; 4]>,
    /// Units of work.
    pub work: u64,
    /// How long it lasts before its work begins.
    pub lasts: SimDuration,
    /// Earliest start.
    pub at: SimTime,
    /// Tasks that must be over, each since so long.
    pub after: SmallVec<[(u32, SimDuration); 4]>,
    /// What must let it pass.
    pub gate: Gate,
    /// Units per second that it takes out of the capacity of resources from its start on.
    pub holds: SmallVec<[Use; 2]>,
    /// The task with whose end `holds` are given back, or not taken any more; its own by default.
    pub until: Option<u32>,
    /// Kernels that start once its work is done, and end before it does.
    pub kernels: SmallVec<[u32; 2]>,
}

/// The lane specification of a wired worker, its costs still to be filled in.
pub fn lane_of(worker: &Wired, job: u32, element: u64) -> LaneSpec {
    LaneSpec {
        job,
        template: worker.template,
        start: worker.start.clone(),
        recv: worker.recv.clone(),
        send: worker.send.clone(),
        tokens: worker.tokens.clone(),
        issue: (0, WEIGHT_ONE),
        own: None,
        sync: SimDuration::ZERO,
        both: SimDuration::ZERO,
        after: SimDuration::ZERO,
        wave: 0,
        element,
        reduce_weight: 0,
        access: Access::EVEN,
        share: WEIGHT_ONE,
        kernel: 0,
        block: 0,
        turn: 0,
        at: SimTime(0),
        multiplicity: 1,
    }
}

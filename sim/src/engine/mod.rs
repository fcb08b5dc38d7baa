//! The discrete-event engine: lanes that run programs, FIFOs between them, flows underneath.
//!
//! It knows lanes, connections, flows and resources, and nothing of what is computed. A lane
//! takes slice after slice from its program. A slice waits for the data it receives and for
//! credit on the FIFOs it sends to, costs a slot synchronisation, and is then one flow over
//! its warps and over all links of its route at once (cut-through). Arrival is the end of the
//! flow plus the latency of the route. Line-flagged protocols stream: a receiver starts with
//! the first wave of lines and cannot end before the last; their lanes may stay occupied a
//! while after each slice. Network connections hand each slice to a proxy, which does some work
//! on it (part of it while the lane writes it) and sends it, in order and by itself, from the sender's FIFO to the
//! receiver's; it works on one connection while others transfer. Where data is staged in host memory, the lanes at
//! both ends write and read it through links of their own. An instruction may also wait for
//! signals of other lanes, which are there as soon as they are given: lanes of one rank share its
//! caches.
//!
//! A connection may have several senders, whose slices a switch combines, and several
//! receivers, who all get the result: see [`ConnSpec`].
//!
//! Events at one instant are all applied before anything reacts, and reactions only add
//! facts that others read, so no result depends on an order within an instant.
//!
//! Credits and arrivals are lazy: a time per slot; an event only when a lane waits for it.

mod far;
pub mod flows;
mod fold;
mod instance;
mod leap;
mod mix;
mod observe;
mod proxy;
mod refine;
mod state;
mod steady;
mod tasks;
mod uses;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use smallvec::SmallVec;
use thiserror::Error;

use crate::schedule::wiring::{SliceCursor, UNUSED};
use crate::units::{SimDuration, SimTime};
use flows::{Flows, Use, WEIGHT_ONE};
use state::{ConnRun, End, Handed, KernelRun, LaneRun, Owner, Phase, Simulation, TurnRun, UNKNOWN, merge, wake_all};

pub use fold::{Folded, Folds, fold, fold_known};
pub use instance::{Access, ConnSpec, Gate, Instance, KernelSpec, LaneSpec, Outcome, ProxySpec, TaskSpec, lane_of};
use instance::{is_first, takes};
pub(crate) use mix::Mixer;
pub use mix::mix;
pub use observe::{Far, Observer, Teller, Unobserved};
use steady::Steady;
pub use uses::{Section, Uses};

/// [`Outcome::work`] that a core does in a second: 24 to 40 million were measured.
pub const WORK_PER_SECOND: u64 = 25_000_000;
/// Work of a run at most.
pub const MOST_WORK: u64 = 20 * WORK_PER_SECOND;

/// The longest simulated time, in ps: a tenth of what times hold, so that none saturates, nor a sum of a few.
pub const LONGEST: SimTime = SimTime(1_000_000_000_000_000_000);

/// A run that cannot end, which verified schedules never cause, or takes too long.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum EngineError {
    /// More than [`MOST_WORK`].
    #[error("it takes too many events to simulate, more than about 20 s of them; take fewer bytes or fewer ranks")]
    TooLong,
    /// More than [`LONGEST`].
    #[error("it takes more than 11 days (10^18 ps), the longest time that is simulated; {SLOW}, or take fewer bytes")]
    TooSlow,
    /// Rates are whole bytes a second.
    #[error("a link is so slow that a transfer gets less than one byte a second of it; {SLOW}")]
    Starved,
    /// Lanes or tasks that wait for ever.
    #[error("the simulation stopped at {at} with {waiting} lanes or tasks waiting for ever")]
    Stuck {
        /// When.
        at: SimDuration,
        /// How many.
        waiting: usize,
    },
    /// A program that names a port it does not have, or waits for a lane that does not exist.
    #[error("a program uses port {0}, which its worker does not have")]
    BadPort(usize),
}

/// The way out where links are slow.
const SLOW: &str = "look at the rates of the machine's links (`b` is bits and `B` bytes)";

impl EngineError {
    /// Whether it is the user's input that asks for too much, and not our bug.
    pub fn is_limit(&self) -> bool {
        matches!(self, Self::TooLong | Self::TooSlow | Self::Starved)
    }
}

/// Runs an instance to its end.
///
/// # Errors
/// [`EngineError`] if it cannot end: a flaw of the schedule, which the verifier reports better.
pub fn run<O: Observer>(instance: &Instance<'_>, observer: &mut O) -> Result<Outcome, EngineError> {
    Simulation::new(instance, observer).run()
}

/// Runs an instance to its end, leaving out the middle of long loops where the run has become steady; elsewhere as
/// [`run`].
///
/// Times, loads and messages are those of all rounds; events, work and the trace hash are those of the rounds that were
/// run.
///
/// # Errors
/// As [`run`].
pub fn run_steady(instance: &Instance<'_>) -> Result<Outcome, EngineError> {
    run_steady_told(instance, &mut Teller::default())
}

/// [`run_steady`], and says how far it is.
///
/// # Errors
/// As [`run`].
pub fn run_steady_told(instance: &Instance<'_>, teller: &mut Teller) -> Result<Outcome, EngineError> {
    let mut simulation = Simulation::new(instance, teller);
    simulation.steady = Steady::of(instance, simulation.kernels.iter().map(|kernel| kernel.first.len()).sum());
    simulation.run()
}

impl<'a, 'o, O: Observer> Simulation<'a, 'o, O> {
    fn new(instance: &'a Instance<'a>, observer: &'o mut O) -> Self {
        let mut conns: Vec<ConnRun> = instance
            .conns
            .iter()
            .map(|spec| ConnRun { depth: spec.depth.max(1).into(), wake_at: UNKNOWN, ..ConnRun::default() })
            .collect();
        let mut join = |lane: u32, conn: u32, sends: bool| {
            let Some(conn) = conns.get_mut(conn as usize) else {
                return UNUSED;
            };
            let ends = if sends { &mut conn.senders } else { &mut conn.receivers };
            ends.push(End { lane, count: 0, waits: false });
            u32::try_from(ends.len() - 1).unwrap_or(UNUSED)
        };
        let (turns, turn_of) = take_turns(instance);
        let mut lanes: Vec<LaneRun> = (0..)
            .zip(&instance.lanes)
            .map(|(index, lane)| LaneRun {
                recv: lane.recv.iter().map(|&c| join(index, c, false)).collect(),
                send: lane.send.iter().map(|&c| join(index, c, true)).collect(),
                cursor: SliceCursor::at(&lane.start),
                slice: None,
                phase: Phase::Ready,
                wake_at: lane.at.0,
                began: 0,
                synced: 0,
                occupied: lane.at.0,
                signals: 0,
                waiters: SmallVec::new(),
                turn: turn_of.get(index as usize).copied().unwrap_or(UNUSED),
            })
            .collect();
        let mut kernels: Vec<KernelRun> = instance
            .kernels
            .iter()
            .map(|_| KernelRun { first: Vec::new(), lanes: 0, running: 0, end: SimTime(0), round: 0, task: UNUSED })
            .collect();
        let later: BTreeSet<u32> = turns.iter().map(|turn| turn.next).filter(|&next| next != UNUSED).collect();
        for (index, (lane, run)) in (0..).zip(instance.lanes.iter().zip(&mut lanes)) {
            let kernel = &mut kernels[lane.kernel as usize];
            if later.contains(&run.turn) {
                run.wake_at = UNKNOWN;
            } else {
                kernel.first.push(index);
            }
            kernel.lanes += 1;
            kernel.running += 1;
        }
        let mut wakes = BinaryHeap::with_capacity(instance.lanes.len());
        let (tasks, gates) = tasks::prepare(&instance.tasks, &mut kernels);
        for &index in kernels.iter().filter(|kernel| kernel.task == UNUSED).flat_map(|kernel| &kernel.first) {
            let spec = &instance.lanes[index as usize];
            wakes.push(Reverse((spec.at.0, Owner::Lane(index).tag())));
            for &id in spec.recv.iter().filter(|&&id| id != UNUSED) {
                conns[id as usize].opens(spec.at.0.saturating_add(instance.conns[id as usize].latency.0));
            }
        }
        for (index, task) in (0..).zip(&instance.tasks).filter(|(_, task)| task.after.is_empty()) {
            wakes.push(Reverse((task.at.0, Owner::Task(index).tag())));
        }
        Self {
            instance,
            observer,
            now: 0,
            lanes,
            kernels,
            turns,
            conns,
            tasks,
            gates,
            ready_tasks: Vec::new(),
            flows: Flows::new(instance.resources.iter().copied()),
            uses: Vec::new(),
            wakes,
            ready: Vec::new(),
            steady: None,
            outcome: Outcome {
                load: vec![0; instance.resources.len()],
                job_ends: vec![SimTime(0); instance.schedules.len()],
                task_starts: vec![SimTime(0); instance.tasks.len()],
                task_ends: vec![SimTime(0); instance.tasks.len()],
                task_causes: vec![UNUSED; instance.tasks.len()],
                first_ends: vec![SimTime(0); instance.kernels.len()],
                last_ends: vec![SimTime(0); instance.kernels.len()],
                lane_ends: vec![SimTime(0); instance.lanes.len()],
                ..Outcome::default()
            },
            done: 0,
            said_next: far::SAID_EVERY,
        }
    }

    fn run(mut self) -> Result<Outcome, EngineError> {
        loop {
            let wake = self.wakes.peek().map(|Reverse(wake)| wake.0);
            let Some(time) = wake.into_iter().chain(self.flows.next().map(|end| end.0)).min() else { break };
            self.now = time;
            if self.steady.as_ref().map_or(time, |steady| steady.left_out.saturating_add(time)) >= LONGEST.0 {
                return Err(EngineError::TooSlow);
            }
            // All events of the instant, before any reaction.
            while let Some((_, flow)) = self.flows.next().filter(|end| end.0 == time) {
                self.outcome.events += 1;
                let owner = Owner::of(self.flows.end(flow));
                self.apply(owner, true);
            }
            while let Some(Reverse((_, tag))) = self.wakes.peek().copied().filter(|wake| wake.0.0 == time) {
                self.wakes.pop();
                self.outcome.events += 1;
                self.apply(Owner::of(tag), false);
            }
            while !self.ready_tasks.is_empty() || !self.ready.is_empty() {
                self.start_tasks();
                while let Some(lane) = self.ready.pop() {
                    self.react(lane)?;
                }
            }
            self.leap();
            self.flows.solve(time);
            self.outcome.work = self.outcome.events + self.flows.looked_at;
            if self.outcome.work >= self.said_next {
                self.say();
            }
            if self.outcome.work > MOST_WORK {
                return Err(EngineError::TooLong);
            }
        }
        if self.done < self.lanes.len() + self.tasks.len() {
            let waiting = self.lanes.len() + self.tasks.len() - self.done;
            return Err(EngineError::Stuck { at: SimTime(self.now) - SimTime(0), waiting });
        }
        if self.flows.starved {
            return Err(EngineError::Starved);
        }
        self.carry();
        Ok(self.outcome)
    }

    /// A flow of an owner ends (`finished`), or it wakes.
    fn apply(&mut self, owner: Owner, finished: bool) {
        match owner {
            Owner::Lane(lane) => {
                let run = &mut self.lanes[lane as usize];
                if finished {
                    run.phase = Phase::Tailing;
                    self.ready.push(lane);
                } else if run.wake_at == self.now {
                    run.wake_at = UNKNOWN;
                    self.ready.push(lane);
                }
            }
            Owner::Kernel(kernel) => self.start_round(kernel),
            Owner::Proxy(id) => {
                if finished {
                    self.conns[id as usize].carried = true;
                    self.deliver(id);
                } else if self.conns[id as usize].wake_at == self.now {
                    self.conns[id as usize].wake_at = UNKNOWN;
                } else {
                    return;
                }
                self.proxy(id);
            }
            Owner::Post(id) => {
                let conn = &mut self.conns[id as usize];
                conn.posting = false;
                conn.is_posted(self.now);
                self.stream(id);
                self.deliver(id);
                self.proxy(id);
            }
            Owner::Check(id) => {
                let conn = &mut self.conns[id as usize];
                conn.checking = false;
                conn.checked += 1;
                self.proxy(id);
            }
            Owner::Take(id) => self.took(id),
            Owner::Task(task) => self.task_event(task),
        }
    }

    fn start_flow(&mut self, bytes: u64, uses: &[Use], owner: Owner) {
        self.note_load(bytes, uses);
        self.flows.start(self.now, bytes, uses, owner.tag());
    }

    /// Starts a flow of a lane. With a share of `n` it counts as one of so many times fewer bytes, each of which takes so many
    /// times as much: then what is full leaves it `n` times the rate of others.
    fn start_lane(&mut self, lane: u32, mut bytes: u64, uses: &mut [Use]) {
        self.note_load(bytes, uses);
        let share = self.instance.lanes[lane as usize].share;
        if share != WEIGHT_ONE {
            let [one, share] = [WEIGHT_ONE, share].map(u128::from);
            uses.iter_mut().for_each(|(_, weight)| *weight = (u128::from(*weight) * share).div_ceil(one) as u64);
            bytes = (u128::from(bytes) * one).div_ceil(share) as u64;
        }
        self.flows.start(self.now, bytes, uses, Owner::Lane(lane).tag());
    }

    fn note_load(&mut self, bytes: u64, uses: &[Use]) {
        for &(resource, weight) in uses {
            self.outcome.load[resource as usize] += u128::from(bytes) * u128::from(weight);
        }
    }

    fn wake(&mut self, owner: Owner, at: u64) {
        let pending = match owner {
            Owner::Lane(lane) => Some(&mut self.lanes[lane as usize].wake_at),
            Owner::Proxy(id) => Some(&mut self.conns[id as usize].wake_at),
            _ => None,
        };
        if let Some(pending) = pending {
            if *pending <= at {
                return;
            }
            *pending = at;
        }
        self.wakes.push(Reverse((at, owner.tag())));
    }

    /// Moves a lane as far as it can go now.
    fn react(&mut self, lane: u32) -> Result<(), EngineError> {
        loop {
            match self.lanes[lane as usize].phase {
                Phase::Done | Phase::Flowing => return Ok(()),
                Phase::Ready => {
                    if !self.begin(lane)? {
                        return Ok(());
                    }
                }
                Phase::Syncing => {
                    let synced = self.lanes[lane as usize].synced;
                    if synced > self.now {
                        self.wake(Owner::Lane(lane), synced);
                        return Ok(());
                    }
                    self.lanes[lane as usize].phase = Phase::Flowing;
                    if self.transfer(lane) {
                        return Ok(());
                    }
                    self.lanes[lane as usize].phase = Phase::Tailing;
                }
                Phase::Tailing => {
                    if !self.complete(lane) {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Takes the next slice and starts it if data and credit are there; `false` when it waits.
    fn begin(&mut self, lane: u32) -> Result<bool, EngineError> {
        let instance = self.instance;
        let spec = &instance.lanes[lane as usize];
        let schedule = instance.schedules[spec.job as usize];
        let run = &mut self.lanes[lane as usize];
        if run.slice.is_none() {
            run.slice = run.cursor.next_timed(schedule, spec.template);
            if run.slice.is_none() {
                run.phase = Phase::Done;
                self.end_program(lane);
                return Ok(false);
            }
            if let Some(steady) = &mut self.steady {
                steady.note(lane, &run.cursor.state, self.now);
            }
        }
        if let Some((port, count)) = run.cursor.step.wait {
            let other = *spec.tokens.get(port).filter(|&&l| l != UNUSED).ok_or(EngineError::BadPort(port))?;
            let other = &mut self.lanes[other as usize];
            if other.signals < count {
                other.waiters.push(lane);
                return Ok(false);
            }
        }
        let run = &self.lanes[lane as usize];
        let step = &run.cursor.step;
        // The latest of all that must be there; what is not even known yet wakes us later.
        let mut at = run.occupied;
        let mut head = self.now;
        let mut unknown = false;
        for &port in &step.recv {
            let id = *spec.recv.get(port).filter(|&&c| c != UNUSED).ok_or(EngineError::BadPort(port))?;
            let conn = &mut self.conns[id as usize];
            let end = &mut conn.receivers[run.recv[port] as usize];
            if conn.produced <= end.count {
                end.waits = true;
                unknown = true;
            } else {
                let slice = end.count;
                head = head.max(conn.slot(slice).head);
            }
        }
        for &port in &step.send {
            let id = *spec.send.get(port).filter(|&&c| c != UNUSED).ok_or(EngineError::BadPort(port))?;
            let conn = &mut self.conns[id as usize];
            let end = run.send[port] as usize;
            let slice = conn.senders[end].count;
            let of = &instance.conns[id as usize];
            let mut free = if of.proxy.is_some() { conn.acked(slice) } else { conn.credit(slice) };
            if of.direct {
                let open = conn.is_open(self.kernels[spec.kernel as usize].round.into());
                free = free.zip(open).map(|(free, open)| free.max(open));
            }
            match free {
                Some(free) => at = at.max(free),
                None => {
                    conn.senders[end].waits = true;
                    unknown = true;
                }
            }
        }
        if unknown {
            return Ok(false);
        }
        // An empty slice is handed over without the barrier and the fence that data takes.
        let moves = run.slice.is_some_and(|span| span > 0);
        if moves && spec.wave > 0 && (step.src.is_some() || step.accumulate) {
            let rate = instance.resources[spec.issue.0 as usize];
            at = at.saturating_add(takes(rate, spec.wave, spec.access.load).0);
        }
        let at = at.max(head);
        if at > self.now {
            self.wake(Owner::Lane(lane), at);
            return Ok(false);
        }
        let crosses = moves && (!step.recv.is_empty() || !step.send.is_empty());
        let run = &mut self.lanes[lane as usize];
        run.began = self.now;
        run.phase = Phase::Syncing;
        for &port in &run.cursor.step.send {
            self.conns[spec.send[port] as usize].senders[run.send[port] as usize].count += 1;
        }
        let before = if crosses { spec.before(&run.cursor.step).0 } else { 0 };
        self.lanes[lane as usize].synced = self.now.saturating_add(before);
        Ok(true)
    }

    /// A lane is through: its turn and its kernel may be too, and start again.
    fn end_program(&mut self, lane: u32) {
        let now = SimTime(self.steady.as_ref().map_or(self.now, |steady| steady.time(lane, self.now)));
        if let Some(steady) = &mut self.steady {
            steady.ended(lane);
        }
        let spec = &self.instance.lanes[lane as usize];
        self.outcome.lane_ends[lane as usize] = now;
        if let Some(turn) = self.turns.get_mut(self.lanes[lane as usize].turn as usize) {
            turn.running -= 1;
            if turn.running == 0 {
                turn.running = turn.lanes.len();
                let next = turn.next as usize;
                if next < self.turns.len() {
                    let lanes = std::mem::take(&mut self.turns[next].lanes);
                    self.start_lanes(&lanes);
                    self.turns[next].lanes = lanes;
                }
            }
        }
        let kernel = &mut self.kernels[spec.kernel as usize];
        let facts = self.instance.kernels[spec.kernel as usize];
        if kernel.round + 1 == facts.rounds {
            let job = &mut self.outcome.job_ends[spec.job as usize];
            *job = (*job).max(now);
        }
        kernel.running -= 1;
        kernel.end = kernel.end.max(now);
        if kernel.running > 0 {
            return;
        }
        let now = kernel.end;
        if kernel.round == 0 {
            self.outcome.first_ends[spec.kernel as usize] = now;
        }
        self.outcome.last_ends[spec.kernel as usize] = now;
        let round = kernel.round as usize;
        if self.outcome.round_ends.len() <= round {
            self.outcome.round_ends.resize(round + 1, now);
        }
        self.outcome.round_ends[round] = self.outcome.round_ends[round].max(now);
        kernel.round += 1;
        if kernel.round < facts.rounds {
            self.steady.iter_mut().for_each(|steady| steady.pauses += 1);
            self.wake(Owner::Kernel(spec.kernel), self.now.saturating_add(facts.gap.0));
            return;
        }
        self.done += kernel.lanes;
        self.outcome.end = self.outcome.end.max(now);
        let task = kernel.task;
        if task != UNUSED {
            self.kernel_ended(task);
        }
    }

    fn start_round(&mut self, kernel: u32) {
        let run = &mut self.kernels[kernel as usize];
        run.running = run.lanes;
        if run.round > 0 {
            self.steady.iter_mut().for_each(|steady| steady.pauses -= 1);
        }
        self.start_kernel(kernel);
    }

    /// Starts the lanes of a kernel that wait for no others of it.
    fn start_kernel(&mut self, kernel: u32) {
        let first = std::mem::take(&mut self.kernels[kernel as usize].first);
        self.start_lanes(&first);
        self.kernels[kernel as usize].first = first;
    }

    fn start_lanes(&mut self, lanes: &[u32]) {
        self.steady.iter_mut().for_each(|steady| steady.running += lanes.len());
        for &lane in lanes {
            let run = &mut self.lanes[lane as usize];
            let spec = &self.instance.lanes[lane as usize];
            run.cursor = SliceCursor::at(&spec.start);
            run.occupied = run.occupied.max(self.now.saturating_add(spec.at.0));
            run.phase = Phase::Ready;
            run.wake_at = UNKNOWN;
            run.signals = 0;
            self.ready.push(lane);
            for &id in spec.recv.iter().filter(|&&id| id != UNUSED) {
                let (conn, of) = (&mut self.conns[id as usize], &self.instance.conns[id as usize]);
                conn.opens(self.now.saturating_add(spec.at.0).saturating_add(of.latency.0));
                if of.direct {
                    wake_all(&mut conn.senders, &mut self.ready);
                }
            }
        }
    }

    /// Starts the flow of a slice; `false` when there is nothing to move.
    fn transfer(&mut self, lane: u32) -> bool {
        let instance = self.instance;
        let spec = &instance.lanes[lane as usize];
        let run = &self.lanes[lane as usize];
        let bytes = run.slice.unwrap_or(0) * spec.element;
        let mut uses = std::mem::take(&mut self.uses);
        spec.uses(&run.cursor.step, bytes, &instance.conns, &mut uses);
        for index in 0..run.cursor.step.send.len() {
            let send = &self.lanes[lane as usize].cursor.step.send;
            let port = send[index];
            let id = spec.send[port];
            let conn = &instance.conns[id as usize];
            if conn.proxy.is_some() && conn.checks(bytes) > 0 && is_first(&send[..index], &spec.send, id) {
                let run = &mut self.conns[id as usize];
                run.checks += 1;
                run.unchecked.push_back(conn.checks(bytes));
                self.proxy(id);
            }
            if conn.proxy.is_none() && conn.streaming {
                let rate = instance.resources[spec.issue.0 as usize];
                let first = takes(rate, spec.wave.min(bytes), spec.access.store);
                let head = self.now.saturating_add(conn.latency.0).saturating_add(first.0);
                let conn = &mut self.conns[id as usize];
                let slice = conn.senders[self.lanes[lane as usize].send[port] as usize].count - 1;
                if conn.begins(slice, head) {
                    wake_all(&mut conn.receivers, &mut self.ready);
                }
            }
        }
        let moves = bytes > 0 && !uses.is_empty();
        if moves {
            self.start_lane(lane, bytes, &mut uses);
        }
        self.uses = uses;
        moves
    }

    /// Ends a slice once its last line has arrived; `false` when it has not.
    fn complete(&mut self, lane: u32) -> bool {
        let instance = self.instance;
        let spec = &instance.lanes[lane as usize];
        let mut at = self.now;
        let run = &self.lanes[lane as usize];
        for &port in &run.cursor.step.recv {
            let conn = &mut self.conns[spec.recv[port] as usize];
            let end = &mut conn.receivers[run.recv[port] as usize];
            if conn.ended <= end.count {
                end.waits = true;
                return false;
            }
            let slice = end.count;
            at = at.max(conn.slot(slice).tail);
        }
        if at > self.now {
            self.wake(Owner::Lane(lane), at);
            return false;
        }
        let run = &mut self.lanes[lane as usize];
        let crossed = !run.cursor.step.recv.is_empty() || !run.cursor.step.send.is_empty();
        run.occupied = self.now.saturating_add(if crossed { spec.after.0 } else { 0 });
        let span = run.slice.take().unwrap_or(0);
        run.phase = Phase::Ready;
        let bytes = span * spec.element;
        let (recvs, sends) = (run.cursor.step.recv.len(), run.cursor.step.send.len());
        let began = run.began;
        for index in 0..recvs {
            let port = self.lanes[lane as usize].cursor.step.recv[index];
            let id = spec.recv[port];
            let at = self.now.saturating_add(instance.conns[id as usize].credit.0);
            let conn = &mut self.conns[id as usize];
            let end = &mut conn.receivers[self.lanes[lane as usize].recv[port] as usize];
            end.count += 1;
            let slice = end.count - 1;
            if conn.frees(slice, at) {
                match instance.conns[id as usize].proxy {
                    Some(_) => {
                        self.hand_over(id);
                        self.proxy(id);
                    }
                    None => wake_all(&mut conn.senders, &mut self.ready),
                }
            }
        }
        for index in 0..sends {
            let port = self.lanes[lane as usize].cursor.step.send[index];
            let id = spec.send[port];
            let conn_spec = &instance.conns[id as usize];
            let there = self.now.saturating_add(conn_spec.latency.0);
            self.outcome.messages += spec.multiplicity;
            let conn = &mut self.conns[id as usize];
            let slice = conn.senders[self.lanes[lane as usize].send[port] as usize].count - 1;
            if conn_spec.proxy.is_some() {
                let ends = conn.senders.len();
                let slot = conn.slot(slice);
                if merge(&mut slot.bytes, &mut slot.heads, ends, bytes) {
                    let bytes = slot.bytes;
                    conn.queue.push_back(Handed { bytes, since: self.now, checks: conn.checks, posted: UNKNOWN });
                    self.proxy(id);
                }
                continue;
            }
            let begun = !conn_spec.streaming && conn.begins(slice, there);
            if conn.ends(slice, there) || begun {
                wake_all(&mut conn.receivers, &mut self.ready);
            }
            self.observer.message(id, bytes, SimTime(began), SimTime(there));
        }
        let run = &mut self.lanes[lane as usize];
        let op = run.cursor.step.op;
        if run.cursor.step.signal && run.cursor.at_last_slice(instance.schedules[spec.job as usize]) {
            run.signals += 1;
            self.ready.extend(run.waiters.drain(..));
        }
        self.observer.slice(lane, op, bytes, SimTime(began), SimTime(self.now));
        let event = mix(mix(self.now, (spec.template as u64) << 32 | op as u64), bytes);
        self.outcome.trace_hash = self.outcome.trace_hash.wrapping_add(event.wrapping_mul(spec.multiplicity));
        true
    }
}

/// The turns of blocks where any lane waits for another, and which of them each lane has.
fn take_turns(instance: &Instance<'_>) -> (Vec<TurnRun>, Vec<u32>) {
    if instance.lanes.iter().all(|lane| lane.turn == 0) {
        return (Vec::new(), Vec::new());
    }
    let mut of: BTreeMap<(u32, u32, u32), Vec<u32>> = BTreeMap::new();
    for (index, lane) in (0..).zip(&instance.lanes) {
        of.entry((lane.kernel, lane.block, lane.turn)).or_default().push(index);
    }
    let mut turn_of = vec![UNUSED; instance.lanes.len()];
    let mut turns: Vec<TurnRun> = Vec::with_capacity(of.len());
    let mut block_before = None;
    for (number, ((kernel, block, _), lanes)) in (0..).zip(of) {
        if let (true, Some(before)) = (block_before == Some((kernel, block)), turns.last_mut()) {
            before.next = number;
        }
        block_before = Some((kernel, block));
        lanes.iter().for_each(|&lane| turn_of[lane as usize] = number);
        turns.push(TurnRun { running: lanes.len(), lanes, next: UNUSED });
    }
    (turns, turn_of)
}

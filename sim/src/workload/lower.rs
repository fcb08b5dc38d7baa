//! From a graph of operations to an instance of the engine.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};

use super::fold::Classes;
use super::footprint::{Asked, Footprint, Simulator};
use super::graph::{
    Compute, MAX_PIECES, Mechanisms, Mover, Op, OpGraph, Program, What, WorkloadError, is_communication,
};
use super::lowered::{Lowered, OpRun, Part};
use crate::collective::Algorithm;
use crate::engine::flows::{Use, WEIGHT_ONE};
use crate::engine::{Gate, Instance, TaskSpec};
use crate::ids::{LinkId, Rank};
use crate::predict::Choice;
use crate::schedule::Schedule;
use crate::schedule::wiring::UNUSED;
use crate::topology::Topology;
use crate::units::SimDuration;

/// Capacity of what is shared, whatever it is: all of it.
pub(super) const WHOLE: u64 = 1_000_000_000_000_000;
/// Units of a flow a picosecond alone. Where flows meet in a resource all get the same units a
/// second: so those of calls are in proportion to what they use of their busiest link, which
/// shares links by bytes, and those of computations are all of it.
const FULL: u64 = 1_000;
/// What a rank does alone takes less: then no work overflows, and no sum of times.
pub(super) const LONGEST: SimDuration = SimDuration(u64::MAX / FULL);
/// Communicators of a rank that have blocks of their own, of which each computation takes a part; more share those of the last.
const MOST_BLOCKS: usize = 16;
/// Tasks of a step at most: a kilobyte each, with what they are made of.
pub(super) const MAX_TASKS: u64 = 1_500_000;

/// The resources of a rank.
pub(super) struct Own {
    sms: u32,
    /// By number of tiles: the SMs as whole rounds of them see them.
    rounds: Vec<(u32, u32)>,
    pub(super) memory: u32,
    pub(super) blocks: u32,
    streams: Vec<u32>,
}

/// A call that ranks meet in: class of groups, class of the sender or none, number.
type Meeting = (usize, Option<usize>, usize);
/// Resources of calls by class of groups and class of the sender.
type Kept = Vec<((usize, Option<usize>), u32)>;
/// What a rank counts its calls by: class of groups, class of the sender or none, whether it sends.
type Counted = (usize, Option<usize>, bool);

struct Met {
    /// The transfer's task.
    body: u32,
    footprint: Arc<Footprint>,
    what: What,
    /// Classes of ranks that have joined: of a message both ends, which may be of one class.
    joined: Vec<usize>,
    group: usize,
}

/// A rank whose operations are lowered in the order in which its host launches them.
struct Launched<'g> {
    rank: Rank,
    lane: usize,
    program: &'g Program,
    /// Its first operation among all.
    base: usize,
    /// By stream and by communicator: the last operation so far.
    last_on: Vec<Option<usize>>,
    last_of_group: FxHashMap<usize, usize>,
    /// Calls so far: what it sends and what it receives apart, as both ends of a message may be of one class.
    counts: FxHashMap<Counted, usize>,
    /// The host's last task.
    host: Option<u32>,
}

pub(super) struct Builder<'s, 'g> {
    simulator: &'s Simulator<'s>,
    graph: &'g OpGraph,
    classes: &'g Classes,
    mechanisms: Mechanisms,
    pub(super) resources: Vec<u64>,
    pub(super) own: Vec<Own>,
    pub(super) specs: Vec<TaskSpec>,
    pub(super) tasks: Vec<(usize, Part)>,
    pub(super) ops: Vec<OpRun>,
    met: FxHashMap<Meeting, Met>,
    /// In the order of first use: every result has to be the same every time.
    meetings: Vec<Meeting>,
    /// Footprints by class of groups and call.
    alone: FxHashMap<(usize, Option<usize>, Option<Asked>), Arc<Footprint>>,
    /// Calls as schedules, with the tasks of their ranks in the order of the group: for slices.
    pub(super) jobs: Option<Vec<Job>>,
}

/// A part of a computation's kernel.
#[derive(Clone, Copy)]
struct Piece {
    /// In ps, alone.
    length: u64,
    /// Tiles of its kernel.
    tiles: u32,
    /// Whether it begins or ends its kernel.
    first: bool,
    last: bool,
    /// SMs that it leaves to others.
    room: u32,
}

pub(super) struct Job {
    pub(super) view: Topology,
    pub(super) schedule: Schedule,
    pub(super) group: usize,
    pub(super) bodies: Vec<u32>,
}

/// Lowers a graph with one flow for each call.
pub(super) fn flows<'a>(
    simulator: &Simulator<'_>,
    graph: &OpGraph,
    classes: &Classes,
    mechanisms: Mechanisms,
) -> Result<Lowered<'a>, WorkloadError> {
    let mut builder = Builder::new(simulator, graph, classes, mechanisms);
    for lane in 0..classes.ranks.len() {
        builder.rank(lane)?;
    }
    builder.check_meetings()?;
    let links = builder.transfers();
    Ok(Lowered {
        instance: Instance { resources: builder.resources, tasks: builder.specs, ..Instance::default() },
        tasks: builder.tasks,
        ops: builder.ops,
        lanes: classes.ranks.clone(),
        links,
        calls: Vec::new(),
        slices: false,
    })
}

/// A weight: what a flow of `units` a picosecond takes of something whole when it runs alone and
/// uses `share` of it. Rounded down, so that nothing is slower alone than it is.
fn weight(share: f64, units: u64) -> u64 {
    (share.clamp(0.0, 1.0) * FULL as f64 / units as f64 * WEIGHT_ONE as f64) as u64
}

fn part_of_whole(share: f64) -> u64 {
    (share.clamp(0.0, 1.0) * WHOLE as f64) as u64
}

/// An operation of a rank that makes no sense.
fn bad(rank: Rank, op: usize, label: &str, reason: String) -> WorkloadError {
    WorkloadError::Graph { rank: rank.0, op, label: label.to_owned(), reason }
}

impl<'s, 'g> Builder<'s, 'g> {
    pub(super) fn new(
        simulator: &'s Simulator<'s>,
        graph: &'g OpGraph,
        classes: &'g Classes,
        mechanisms: Mechanisms,
    ) -> Self {
        Self {
            simulator,
            graph,
            classes,
            mechanisms,
            resources: Vec::new(),
            own: Vec::new(),
            specs: Vec::new(),
            tasks: Vec::new(),
            ops: Vec::new(),
            met: FxHashMap::default(),
            meetings: Vec::new(),
            alone: FxHashMap::default(),
            jobs: None,
        }
    }

    fn resource(&mut self, capacity: u64) -> u32 {
        self.resources.push(capacity);
        u32::try_from(self.resources.len() - 1).unwrap_or(UNUSED)
    }

    fn task(&mut self, op: usize, part: Part, spec: TaskSpec) -> u32 {
        self.specs.push(spec);
        self.tasks.push((op, part));
        u32::try_from(self.specs.len() - 1).unwrap_or(UNUSED)
    }

    /// Lowers the program of the rank that stands for a class.
    pub(super) fn rank(&mut self, lane: usize) -> Result<(), WorkloadError> {
        let graph = self.graph;
        let (rank, _) = self.classes.ranks[lane];
        let spec = &graph.ranks[rank.index()];
        let program = graph
            .programs
            .get(spec.program)
            .ok_or_else(|| bad(rank, 0, "", format!("there is no program {}", spec.program)))?;
        let own = self.own(program);
        self.own.push(own);
        let (base, first_task) = (self.ops.len(), self.specs.len());
        let mut launched = Launched {
            rank,
            lane,
            program,
            base,
            last_on: vec![None; program.streams.len()],
            last_of_group: FxHashMap::default(),
            counts: FxHashMap::default(),
            host: None,
        };
        if spec.late.0 > 0 {
            let late = TaskSpec { lasts: spec.late, ..TaskSpec::default() };
            launched.host = Some(self.task(base, Part::Issue, late));
        }
        for (index, op) in program.ops.iter().enumerate() {
            self.ops.push(OpRun { lane, op: index, first: UNUSED, last: UNUSED, footprint: None });
            self.launch(&mut launched, index, op)?;
            launched.last_on[op.stream] = Some(base + index);
        }
        let alone = self.specs[first_task..].iter().map(|t| SimDuration(t.work / FULL) + t.lasts);
        if alone.fold(SimDuration::ZERO, |sum, time| sum + time) >= LONGEST {
            return Err(WorkloadError::TooLong(format!("what rank {rank} does takes")));
        }
        Ok(())
    }

    /// Makes the resources of a rank with a program.
    fn own(&mut self, program: &Program) -> Own {
        let (sms, memory, blocks) = (self.resource(WHOLE), self.resource(WHOLE), self.resource(WHOLE));
        let streams = program.streams.iter().map(|_| self.resource(FULL * 1_000_000_000_000)).collect();
        let mut rounds: Vec<(u32, u32)> = Vec::new();
        for op in &program.ops {
            let What::Compute(Compute { tiles, .. }) = op.what else { continue };
            for tiles in tiles.into_iter().filter(|&t| t > 0) {
                if !rounds.iter().any(|r| r.0 == tiles) {
                    rounds.push((tiles, self.resource(WHOLE)));
                }
            }
        }
        Own { sms, rounds, memory, blocks, streams }
    }

    /// Lowers an operation after those of its rank that were launched before it.
    fn launch(&mut self, launched: &mut Launched<'_>, index: usize, op: &Op) -> Result<(), WorkloadError> {
        let (lane, place) = (launched.lane, launched.base + index);
        let stream = launched.program.streams.get(op.stream);
        let stream =
            stream.ok_or_else(|| bad(launched.rank, index, &op.label, format!("there is no stream {}", op.stream)))?;
        let mut after = self.awaited(launched, index, op)?;
        if let What::Host(time) = op.what {
            after.extend(launched.host.map(|h| (h, SimDuration::ZERO)));
            let lasts = if self.mechanisms.launch { time } else { SimDuration::ZERO };
            let task = self.task(place, Part::Body, TaskSpec { lasts, after, ..TaskSpec::default() });
            launched.host = Some(task);
            (self.ops[place].first, self.ops[place].last) = (task, task);
            return Ok(());
        }
        self.issue(launched, place, op);
        after.extend(launched.host.map(|h| (h, SimDuration::ZERO)));
        match &op.what {
            What::Compute(compute) => self.compute(lane, place, op, *compute, after),
            What::Copy { time, memory_ppm } => self.copy(lane, place, op, (*time, *memory_ppm), after),
            What::Collective(_) | What::Send { .. } | What::Recv { .. } => {
                let counts = &mut launched.counts;
                self.communicate(lane, place, op, stream.high_priority, after, counts).map_err(
                    |error| match error {
                        Lost::Group(reason) => bad(launched.rank, index, &op.label, reason),
                        Lost::Error(error) => error,
                    },
                )?;
            }
            What::Host(_) => {}
        }
        Ok(())
    }

    /// The tasks of its rank that an operation waits for, the host's aside, and how long it is until it sees their ends.
    fn awaited(
        &self,
        launched: &mut Launched<'_>,
        index: usize,
        op: &Op,
    ) -> Result<SmallVec<[(u32, SimDuration); 4]>, WorkloadError> {
        let base = launched.base;
        let mut after: SmallVec<[(u32, SimDuration); 4]> = SmallVec::new();
        if let Some(before) = launched.last_on[op.stream] {
            after.push((self.ops[before].last, SimDuration::ZERO));
        }
        for &other in &op.after {
            if other >= index {
                let reason = format!("it waits for operation {other}, which is launched later");
                return Err(bad(launched.rank, index, &op.label, reason));
            }
            let lag = self.lag(op, &launched.program.ops[other]);
            after.push((self.ops[base + other].last, lag));
        }
        if let What::Collective(c) = &op.what {
            // Kernels of one communicator run one after another.
            if let Some(before) = launched.last_of_group.insert(c.group, base + index) {
                after.push((self.ops[before].last, SimDuration::ZERO));
            }
        }
        Ok(after)
    }

    /// The host's work of launching an operation, where it takes any.
    fn issue(&mut self, launched: &mut Launched<'_>, place: usize, op: &Op) {
        let silent = !self.mechanisms.communication && is_communication(op);
        if op.issue.0 > 0 && self.mechanisms.launch && !silent && (self.mechanisms.framework || !op.framework) {
            let spec = TaskSpec {
                lasts: op.issue,
                after: launched.host.iter().map(|&h| (h, SimDuration::ZERO)).collect(),
                ..TaskSpec::default()
            };
            launched.host = Some(self.task(place, Part::Issue, spec));
        }
    }

    /// A copy that takes a time alone, and parts per million of the memory's rate.
    fn copy(
        &mut self,
        lane: usize,
        place: usize,
        op: &Op,
        (time, memory_ppm): (SimDuration, u32),
        after: SmallVec<[(u32, SimDuration); 4]>,
    ) {
        let own = &self.own[lane];
        let uses: SmallVec<[Use; 4]> =
            smallvec![(own.streams[op.stream], WEIGHT_ONE), (own.memory, weight(f64::from(memory_ppm) / 1e6, FULL))];
        let work = time.0.saturating_mul(FULL);
        let gone = work == 0 || op.framework && !self.mechanisms.framework;
        let uses = if gone { SmallVec::new() } else { uses };
        let task = self.task(place, Part::Body, TaskSpec { uses, work, after, ..TaskSpec::default() });
        (self.ops[place].first, self.ops[place].last) = (task, task);
    }

    /// What it takes a stream to see the end of another one's operation. Streams of computation
    /// alone are there to say what is independent, and wait for each other at once.
    fn lag(&self, op: &Op, other: &Op) -> SimDuration {
        let silent = !self.mechanisms.communication && (is_communication(op) || is_communication(other));
        if self.mechanisms.launch && !silent && is_communication(op) != is_communication(other) {
            self.simulator.predictor().profile().stream_event()
        } else {
            SimDuration::ZERO
        }
    }

    fn compute(
        &mut self,
        lane: usize,
        place: usize,
        op: &Op,
        compute: Compute,
        mut after: SmallVec<[(u32, SimDuration); 4]>,
    ) {
        let rank = self.classes.ranks[lane].0;
        let mut time = u128::from(compute.time.0) * u128::from(self.graph.ranks[rank.index()].pace_ppm) / 1_000_000;
        if let Some(jitter) = self.graph.jitter {
            time = (time as f64 * jitter.factor(rank, place)) as u128;
        }
        let gone = op.framework && !self.mechanisms.framework;
        let time = if gone { 0 } else { u64::try_from(time).unwrap_or(u64::MAX / FULL) };
        let interference = self.mechanisms.interference;
        let share = f64::from(compute.memory_ppm) / 1e6;
        let kept = self.simulator.predictor().profile().block_speed(share);
        let (sms, memory, blocks) = (self.own[lane].sms, self.own[lane].memory, self.own[lane].blocks);
        let stream = self.own[lane].streams[op.stream];
        let kernels = compute.kernels.clamp(1, MAX_PIECES);
        let all = self.simulator.device.sms.max(1);
        // Kernels in equal waves; products in two parts: the last round of tiles leaves SMs to others.
        let waves = compute.waves.clamp(1, (MAX_PIECES / kernels).max(1));
        let mut pieces: SmallVec<[Piece; 8]> = SmallVec::new();
        for kernel in 0..if interference && time > 0 { kernels } else { 1 } {
            let tiles = compute.tiles[kernel as usize % 2];
            let rounds = tiles.div_ceil(all);
            let room = self.simulator.device.room(rounds * all - tiles);
            let until = |part: u32, parts: u32| {
                let done = u64::from(kernel) * u64::from(parts) + u64::from(part);
                u128::from(time) * u128::from(done) / (u128::from(kernels) * u128::from(parts))
            };
            // A share may round to nothing: the first piece is the first that takes time, and so is the last.
            let piece = |from: u32, to: u32, parts: u32, room: u32| {
                let [begin, start, end, finish] = [0, from, to, parts].map(|part| until(part, parts));
                let length = u64::try_from(end - start).unwrap_or(0);
                Piece { length, tiles, first: start == begin, last: end == finish, room }
            };
            if !interference || time == 0 {
                pieces.push(Piece { length: time, tiles, first: true, last: true, room: 0 });
            } else if room > 0 && rounds > 1 {
                pieces.extend([piece(0, rounds - 1, rounds, 0), piece(rounds - 1, rounds, rounds, room)]);
            } else {
                pieces.extend((0..waves).map(|wave| piece(wave, wave + 1, waves, room)));
            }
        }
        for (index, &Piece { length, tiles, first, last, room }) in pieces.iter().enumerate() {
            let mut spec = TaskSpec { after: std::mem::take(&mut after), ..TaskSpec::default() };
            if length > 0 {
                spec.work = length.saturating_mul(FULL);
                // What its last round leaves idle is free for others.
                let busy = if tiles > 0 { f64::from(tiles) / f64::from(tiles.next_multiple_of(all)) } else { 1.0 };
                spec.uses.extend([(stream, WEIGHT_ONE), (sms, weight(busy, FULL))]);
                spec.uses
                    .extend(self.own[lane].rounds.iter().filter(|r| r.0 == tiles).map(|r| (r.1, weight(1.0, FULL))));
                if share > 0.0 {
                    spec.uses.push((memory, weight(share, FULL)));
                }
            }
            if interference && length > 0 {
                if share > 0.0 {
                    spec.holds.push((blocks, part_of_whole(1.0 - kept)));
                }
                let gate = u32::try_from(lane).unwrap_or(0);
                spec.gate = Gate::Occupies { gate, first, last, room };
            }
            let task = self.task(place, Part::Body, spec);
            if index == 0 {
                self.ops[place].first = task;
            }
            self.ops[place].last = task;
            after.push((task, SimDuration::ZERO));
        }
    }

    fn communicate(
        &mut self,
        lane: usize,
        place: usize,
        op: &Op,
        urgent: bool,
        after: SmallVec<[(u32, SimDuration); 4]>,
        counts: &mut FxHashMap<Counted, usize>,
    ) -> Result<(), Lost> {
        let rank = self.classes.ranks[lane].0;
        let groups = &self.graph.ranks[rank.index()].groups;
        let slot = match &op.what {
            What::Collective(c) => c.group,
            What::Send { group, .. } | What::Recv { group, .. } => *group,
            _ => 0,
        };
        let own_group = *groups.get(slot).ok_or_else(|| Lost::Group(format!("the rank has no group {slot}")))?;
        let class = self.classes.group[own_group];
        let members = &self.graph.groups[own_group];
        let sender = match &op.what {
            What::Collective(_) => None,
            send_or_recv => {
                let [a, b] = members[..] else {
                    return Err(Lost::Group(format!("messages need a group of two, this has {}", members.len())));
                };
                let other = if a == rank { b } else { a };
                let from = if matches!(send_or_recv, What::Send { .. }) { rank } else { other };
                Some(self.classes.rank[from.index()])
            }
        };
        if members.len() == 1 {
            let task = self.task(place, Part::Body, TaskSpec { after, ..TaskSpec::default() });
            (self.ops[place].first, self.ops[place].last) = (task, task);
            return Ok(());
        }
        let number = counts.entry((class, sender, matches!(op.what, What::Send { .. }))).or_default();
        let key = (class, sender, *number);
        *number += 1;
        let group = self.classes.groups[class];
        let back = sender.is_some_and(|s| s != self.classes.rank[self.graph.groups[group][0].index()]);
        if self.jobs.is_some() {
            return self.join_job(place, op, (group, back), urgent, after, key);
        }
        if !self.met.contains_key(&key) {
            let footprint = self.footprint(op, class, group, sender, back).map_err(Lost::Error)?;
            let body = self.task(place, Part::Body, TaskSpec::default());
            let met = Met { body, footprint, what: op.what.clone(), joined: Vec::new(), group };
            self.met.insert(key, met);
            self.meetings.push(key);
        }
        let met = self.met.get_mut(&key).ok_or_else(|| Lost::Group("lost".to_owned()))?;
        if !met.what.is_same_call(&op.what) {
            let reason = format!("it meets {} on other ranks of its group", met.what.call());
            return Err(Lost::Group(reason));
        }
        met.joined.push(lane);
        let (body, footprint) = (met.body, Arc::clone(&met.footprint));
        let mut start = TaskSpec { after, ..TaskSpec::default() };
        if self.mechanisms.interference && self.mechanisms.communication && footprint.blocks > 0 {
            start.gate = Gate::Enters { gate: u32::try_from(lane).unwrap_or(0), needs: footprint.blocks, urgent };
            start.holds = self.taken(lane, &footprint);
            start.until = Some(body);
        }
        let start = self.task(place, Part::Start, start);
        self.specs[body as usize].after.push((start, SimDuration::ZERO));
        let run = &mut self.ops[place];
        (run.first, run.last, run.footprint) = (start, body, Some(footprint));
        Ok(())
    }

    /// What a communication kernel, a block on an SM, takes from computations. Kernels that overlap take
    /// the sum: exact for what spreads evenly, too much for whole rounds.
    fn taken(&self, lane: usize, footprint: &Footprint) -> SmallVec<[Use; 2]> {
        let all = self.simulator.device.sms.max(1);
        let free = all.saturating_sub(footprint.blocks).max(1);
        let own = &self.own[lane];
        let linear = (own.sms, part_of_whole(f64::from(footprint.blocks) / f64::from(all)));
        let sent = footprint.sent.iter().copied().fold(0.0, f64::max);
        let profile = self.simulator.predictor().profile();
        let rounds = own.rounds.iter().map(|&(tiles, resource)| {
            // One round more than tiles need, measured with 2 to 32 SMs held (tests/data/h200x4/beside.json).
            let rounds = (tiles.div_ceil(all), tiles.div_ceil(free) + 1);
            (resource, part_of_whole(1.0 - profile.product_speed(rounds, sent)))
        });
        std::iter::once(linear).chain(rounds).collect()
    }

    fn footprint(
        &mut self,
        op: &Op,
        class: usize,
        group: usize,
        sender: Option<usize>,
        back: bool,
    ) -> Result<Arc<Footprint>, WorkloadError> {
        let call = Asked::of(&op.what);
        if let Some(known) = self.alone.get(&(class, sender, call.clone())) {
            return Ok(Arc::clone(known));
        }
        let footprint = match &op.what {
            What::Send { bytes, mover, .. } | What::Recv { bytes, mover, .. } => {
                self.simulator.send(self.graph, self.classes, group, (*bytes, back, *mover))?
            }
            What::Collective(c) => self.simulator.collective(self.graph, self.classes, group, c)?,
            _ => return Err(WorkloadError::Group { group, ranks: 0, reason: "no call".to_owned() }),
        };
        if footprint.time >= LONGEST {
            return Err(WorkloadError::TooLong(format!("{} alone takes", op.what.call())));
        }
        self.alone.insert((class, sender, call), Arc::clone(&footprint));
        Ok(footprint)
    }

    /// A rank joins a call that runs as its schedule: its kernel waits for its turn, starts, and its
    /// lanes run.
    fn join_job(
        &mut self,
        place: usize,
        op: &Op,
        (group, back): (usize, bool),
        urgent: bool,
        after: SmallVec<[(u32, SimDuration); 4]>,
        key: Meeting,
    ) -> Result<(), Lost> {
        let lane = self.ops[place].lane;
        let members = &self.graph.groups[group];
        if !self.met.contains_key(&key) {
            let call = match &op.what {
                What::Collective(c) => Simulator::call(members.len(), c),
                What::Send { bytes, mover: Mover::Blocks, .. } | What::Recv { bytes, mover: Mover::Blocks, .. } => {
                    Simulator::message(*bytes, back)
                }
                _ => return Err(Lost::Group("copy engines have no slices: simulate it as flows".to_owned())),
            };
            let (choice, channels) = match &op.what {
                What::Collective(c) => ((c.algorithm, c.protocol), c.channels),
                _ => ((Choice::Forced(Algorithm::Direct), Choice::Auto), None),
            };
            let (view, schedule) =
                self.simulator.schedule(members, &call, choice, channels).map_err(|e| Lost::Error(e.into()))?;
            let plan = schedule.plan;
            // Products lose power to what it sends alone, as beside a flow.
            let sent = match self.mechanisms.interference {
                true => self.footprint(op, key.0, group, key.1, back).map_err(Lost::Error)?.sent.clone(),
                false => Vec::new(),
            };
            let footprint = Arc::new(Footprint {
                time: SimDuration::ZERO,
                blocks: plan.channels,
                block_share: 0.0,
                links: Vec::new(),
                sent,
                how: format!("{}/{}, {} channels", plan.algorithm, plan.protocol, plan.channels),
                bound_by: "",
            });
            let jobs = self.jobs.get_or_insert_default();
            jobs.push(Job { view, schedule, group, bodies: vec![UNUSED; members.len()] });
            let body = u32::try_from(jobs.len() - 1).unwrap_or(UNUSED);
            self.met.insert(key, Met { body, footprint, what: op.what.clone(), joined: Vec::new(), group });
            self.meetings.push(key);
        }
        let met = self.met.get_mut(&key).ok_or_else(|| Lost::Group("lost".to_owned()))?;
        if !met.what.is_same_call(&op.what) {
            return Err(Lost::Group(format!("it meets {} on other ranks of its group", met.what.call())));
        }
        met.joined.push(lane);
        let (job, footprint) = (met.body as usize, Arc::clone(&met.footprint));
        let mut start = TaskSpec { after, ..TaskSpec::default() };
        if self.mechanisms.interference {
            start.gate = Gate::Enters { gate: u32::try_from(lane).unwrap_or(0), needs: footprint.blocks, urgent };
            start.holds = self.taken(lane, &footprint);
            // Its kernel is the next task.
            start.until = u32::try_from(self.specs.len() + 1).ok();
        }
        let start = self.task(place, Part::Start, start);
        let rank = self.classes.ranks[lane].0;
        let position = self.graph.groups[group].iter().position(|&r| r == rank).unwrap_or(0);
        let plan = self.jobs.as_ref().map(|jobs| jobs[job].schedule.plan);
        let body = TaskSpec {
            lasts: plan.map(|p| self.simulator.predictor().profile().kernel(&p)).unwrap_or_default(),
            after: smallvec![(start, SimDuration::ZERO)],
            ..TaskSpec::default()
        };
        let body = self.task(place, Part::Body, body);
        if let Some(jobs) = &mut self.jobs {
            jobs[job].bodies[position] = body;
        }
        let run = &mut self.ops[place];
        (run.first, run.last, run.footprint) = (start, body, Some(footprint));
        Ok(())
    }

    /// Every call has all its ranks.
    pub(super) fn check_meetings(&self) -> Result<(), WorkloadError> {
        for key in &self.meetings {
            let met = &self.met[key];
            let members = &self.graph.groups[met.group];
            let absent = members.iter().find(|r| !met.joined.contains(&self.classes.rank[r.index()]));
            let alone = key.1.is_some() && met.joined.len() < members.len();
            if let Some(missing) = absent.or(members.last().filter(|_| alone)) {
                return Err(WorkloadError::Group {
                    group: met.group,
                    ranks: members.len(),
                    reason: format!(
                        "rank {missing} does not take part in call {} of it, {}",
                        key.2 + 1,
                        met.what.call()
                    ),
                });
            }
        }
        Ok(())
    }

    /// Fills in the transfers: a flow over all links where calls can meet.
    fn transfers(&mut self) -> FxHashMap<u32, LinkId> {
        // Equal footprints of one class of groups are one kind of traffic.
        let mut kinds: FxHashMap<(usize, *const Footprint), usize> = FxHashMap::default();
        let mut footprints: Vec<Arc<Footprint>> = Vec::new();
        for key in &self.meetings {
            let footprint = &self.met[key].footprint;
            kinds.entry((key.0, Arc::as_ptr(footprint))).or_insert_with(|| {
                footprints.push(Arc::clone(footprint));
                footprints.len() - 1
            });
        }
        let mut on: std::collections::BTreeMap<LinkId, Vec<(usize, u64)>> = std::collections::BTreeMap::new();
        for (kind, footprint) in footprints.iter().enumerate() {
            for &(link, share) in &footprint.links {
                on.entry(link).or_default().push((kind, share.to_bits()));
            }
        }
        let mut uses: Vec<SmallVec<[Use; 4]>> = vec![SmallVec::new(); footprints.len()];
        let units: Vec<u64> = footprints.iter().map(|f| units_of(f)).collect();
        let mut known: FxHashMap<Vec<(usize, u64)>, u32> = FxHashMap::default();
        let mut links = FxHashMap::default();
        for (link, traffic) in on {
            // Where all traffic fits at full speed, nothing is shared.
            let together: f64 = traffic.iter().map(|&(_, share)| f64::from_bits(share)).sum();
            if traffic.len() < 2 || together <= 1.0 || known.contains_key(&traffic) {
                continue;
            }
            let resource = self.resource(WHOLE);
            links.insert(resource, link);
            for &(kind, share) in &traffic {
                uses[kind].push((resource, weight(f64::from_bits(share), units[kind])));
            }
            known.insert(traffic, resource);
        }
        let mut alone: FxHashMap<(usize, Option<usize>, usize), u32> = FxHashMap::default();
        // Calls that overlap have blocks of their own each, and those of one communicator do not overlap.
        let mut blocks: Vec<Kept> = vec![Vec::new(); self.own.len()];
        for key in self.meetings.clone() {
            let met = &self.met[&key];
            let (body, footprint, group) = (met.body as usize, Arc::clone(&met.footprint), met.group);
            if !self.mechanisms.communication {
                continue;
            }
            let kind = kinds[&(key.0, Arc::as_ptr(&footprint))];
            let joined = met.joined.clone();
            let cap = match alone.get(&(key.0, key.1, kind)) {
                Some(&cap) => cap,
                None => {
                    let cap = self.resource(units[kind] * 1_000_000_000_000);
                    alone.insert((key.0, key.1, kind), cap);
                    cap
                }
            };
            let mut flow: SmallVec<[Use; 4]> = smallvec![(cap, WEIGHT_ONE)];
            flow.extend_from_slice(&uses[kind]);
            if self.mechanisms.interference {
                for (&rank, &sent) in self.graph.groups[group].iter().zip(&footprint.sent) {
                    let lane = self.classes.rank[rank.index()];
                    // One member of each class is run.
                    if !joined.contains(&lane) || flow.iter().any(|u| u.0 == self.own[lane].memory) {
                        continue;
                    }
                    let of = (key.0, key.1);
                    let own = match blocks[lane].iter().find(|known| known.0 == of) {
                        Some(known) => known.1,
                        None => {
                            let own = match blocks[lane].get(MOST_BLOCKS - 1) {
                                Some(last) => last.1,
                                None if blocks[lane].is_empty() => self.own[lane].blocks,
                                None => self.resource(WHOLE),
                            };
                            blocks[lane].push((of, own));
                            own
                        }
                    };
                    let profile = self.simulator.predictor().profile();
                    let share = sent * profile.traffic_per_byte() / profile.memory(self.simulator.device.memory);
                    flow.push((own, weight(footprint.block_share, units[kind])));
                    flow.push((self.own[lane].memory, weight(share, units[kind])));
                }
                flow.retain(|u| u.1 > 0);
            }
            self.specs[body].uses = flow;
            self.specs[body].work = footprint.time.0.saturating_mul(units[kind]).max(1);
        }
        let of_own: FxHashMap<u32, usize> = self.own.iter().enumerate().map(|(lane, own)| (own.blocks, lane)).collect();
        for spec in &mut self.specs {
            let held = spec.holds.iter().find_map(|held| Some((*of_own.get(&held.0)?, held.1)));
            let Some((lane, amount)) = held else { continue };
            spec.holds.extend(blocks[lane].iter().take(MOST_BLOCKS).skip(1).map(|&(_, own)| (own, amount)));
        }
        links
    }
}

/// Why a call has no place.
enum Lost {
    Group(String),
    Error(WorkloadError),
}

fn units_of(footprint: &Footprint) -> u64 {
    let most = footprint.links.iter().map(|l| l.1).fold(0.0, f64::max);
    if footprint.links.is_empty() { FULL } else { ((most * FULL as f64).ceil() as u64).clamp(1, FULL) }
}

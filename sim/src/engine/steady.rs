//! Long calls and large rings: a pattern that repeats is simulated until it does, and the rest of its rounds is left out.
//!
//! A program's first loop does the same in every round. Once FIFOs are full and pipelines have formed, each round costs
//! what the slowest part of it does. A run notes when each lane begins its rounds. Where two windows of rounds take the
//! same time, all lanes leave out as many whole windows as there are, the clock goes on by what those take, and the run
//! goes on to its end. Blocks that are out of step beat: then a window is a mean over rounds, known better the longer it
//! is. Against full runs it is within 0.5% (a test says so), mostly far less.
//!
//! Inside of a round, the steps of a ring are alike too. There rounds are left out only where each lane takes the same
//! time for two windows, and all lanes that are joined the same: then what comes after is no other but for rounding, as
//! rates are integers. Full runs take as long, to the picosecond in a test, to 4 parts in 100 million elsewhere.

use super::flows::WEIGHT_ONE;
use super::observe::Observer;
use super::state::{LaneRun, Phase, Simulation, UNKNOWN};
use super::uses::Section;
use super::{Instance, SimTime};
use crate::schedule::program::{Level, State, Template};
use crate::units::PS_PER_S;

/// Rounds of the shortest window, by level: more than slices fit into a FIFO; and for a ring's steps as many as fit into
/// most of them, and GPUs into most hosts.
const WINDOWS: [usize; 2] = [12, 8];
/// Windows that a lane has begun before two of them are compared: the first fills FIFOs.
const SEEN: usize = 3;
/// Loops of so many times as many rounds are worth their while.
const WORTHWHILE: usize = 2;
/// Rounds that are always run at the end: the last may have less to do, and one is under way.
const KEPT: i64 = 4;
/// Largest part of a call's time that its length may be uncertain by, from how much two windows differ.
const UNCERTAIN: f64 = 2e-3;
/// The same where windows are taken to be equal. Blocks that beat more slowly than a window differ by more: then windows
/// of twice the length must say the same.
const EQUAL: f64 = 1e-6;

/// What a run knows of its rounds.
pub(super) struct Steady {
    tracks: [Track; 2],
    /// By lane: which part it is in. Connections and signals join lanes; parts only share links.
    part: Vec<u32>,
    /// Time of what was left out so far, in ps.
    pub(super) left_out: u64,
    /// By part, how much more time it has left out, as it leaves out whole windows of its own.
    ahead: Vec<i64>,
    /// Lanes that have begun and are not through.
    pub(super) running: usize,
    /// Kernels that wait for their next round.
    pub(super) pauses: usize,
}

/// Rounds of a level.
struct Track {
    level: Level,
    /// Rounds of the windows that are compared next; 0 where none are.
    window: usize,
    /// The longest cycle of lanes: what holds one up comes round to it again in as many rounds at most, so that one of
    /// the windows is as long.
    turn: usize,
    /// By lane: when it began each round, in ps.
    marks: Vec<Vec<u64>>,
    /// Lanes that have begun enough of them.
    reached: usize,
    /// The lane that asks whether all are steady: the first after whose note all had begun enough.
    asks: Option<u32>,
    due: bool,
    /// When the run ends by the windows before.
    before: Option<f64>,
}

/// A part's lanes over the last two windows.
#[derive(Clone, Default)]
struct Part {
    /// What the windows took the lane that is last, the earlier and the later, in ps: others wait for it in the end.
    took: Option<[u64; 2]>,
    /// Rounds that are left to the lane with the fewest, and to that which is last.
    left: [i64; 2],
}

impl Part {
    /// What both windows took.
    fn both(&self) -> u64 {
        self.took.map_or(0, |[one, other]| one + other)
    }
}

/// What the last windows say.
enum Found {
    /// Not all lanes are so far, or in the middle of the loop.
    NotYet,
    /// They differ; when the run ends if they are nearly alike.
    Unsteady(Option<f64>),
    /// What to leave out, by part, and what it takes the one that sets the time, in ps.
    Steady(Vec<Jump>, i64),
}

/// What a part leaves out.
#[derive(Clone, Copy, Default)]
struct Jump {
    rounds: i64,
    /// What they take, in ps.
    took: i64,
}

impl Steady {
    /// For an instance some of whose loops are long; with `running` lanes to begin with.
    pub(super) fn of(instance: &Instance<'_>, running: usize) -> Option<Self> {
        let most = |level| {
            let rounds = instance
                .lanes
                .iter()
                .map(|lane| template(instance, lane.job, lane.template).rounds(&lane.start, level));
            rounds.max().unwrap_or(0)
        };
        let window = |level: Level| {
            let window = WINDOWS[level as usize];
            let worthwhile = most(level) > (SEEN * window * WORTHWHILE) as i64;
            if worthwhile && instance.tasks.is_empty() { window } else { 0 }
        };
        let windows = Level::ALL.map(window);
        if windows == [0; 2] {
            return None;
        }
        let part = parts(instance);
        let mut sizes = vec![0; part.len()];
        part.iter().for_each(|&part| sizes[part as usize] += 1);
        let turn = sizes.into_iter().max().unwrap_or(0);
        let tracks = Level::ALL.map(|level| Track {
            level,
            window: windows[level as usize],
            turn,
            marks: vec![Vec::new(); instance.lanes.len()],
            reached: 0,
            asks: None,
            due: false,
            before: None,
        });
        let ahead = vec![0; part.len()];
        Some(Self { tracks, part, left_out: 0, ahead, running, pauses: 0 })
    }

    /// The time of a lane, with what was left out.
    pub(super) fn time(&self, lane: u32, now: u64) -> u64 {
        now.saturating_add(self.left_out).saturating_add_signed(self.ahead[self.part[lane as usize] as usize])
    }

    /// A lane begins a slice.
    pub(super) fn note(&mut self, lane: u32, state: &State, now: u64) {
        let (all, now) = (self.pauses == 0, self.time(lane, now));
        for track in self.tracks.iter_mut().filter(|track| track.window > 0) {
            track.note(lane, state.begun(track.level) as usize, now);
            track.due |= all && track.reached >= self.running && track.asks.is_none_or(|asks| asks == lane);
            if track.due {
                track.asks = Some(lane);
            }
        }
    }

    /// A lane is through.
    pub(super) fn ended(&mut self, lane: u32) {
        self.running -= 1;
        for track in self.tracks.iter_mut().filter(|track| track.window > 0) {
            track.forget(lane);
            track.asks = track.asks.filter(|&asks| asks != lane);
        }
    }
}

impl Track {
    /// Marks that are needed to compare windows.
    fn needed(&self) -> usize {
        SEEN * self.window + 1
    }

    fn note(&mut self, lane: u32, begun: usize, at: u64) {
        if begun == 1 {
            self.forget(lane);
        }
        let (needed, marks) = (self.needed(), &mut self.marks[lane as usize]);
        if begun > marks.len() {
            marks.push(at);
            self.reached += usize::from(marks.len() == needed);
        }
    }

    fn forget(&mut self, lane: u32) {
        let needed = self.needed();
        let marks = &mut self.marks[lane as usize];
        self.reached -= usize::from(marks.len() >= needed);
        marks.clear();
    }

    /// Compares longer windows next, where the rounds that are `left` have room for them.
    fn widen(&mut self, left: i64) {
        let next = 2 * self.window;
        self.window = if (self.window + 1..next).contains(&self.turn) { self.turn } else { next };
        self.asks = None;
        if left < self.needed() as i64 / 2 {
            (self.window, self.marks, self.reached) = (0, Vec::new(), 0);
            return;
        }
        let needed = self.needed();
        self.reached = self.marks.iter().filter(|marks| marks.len() >= needed).count();
    }
}

fn template<'i>(instance: &Instance<'i>, job: u32, template: usize) -> &'i Template {
    &instance.schedules[job as usize].templates[template]
}

/// By lane, one of the lanes that connections and signals join it to.
fn parts(instance: &Instance<'_>) -> Vec<u32> {
    let mut lanes: Vec<u32> = (0..).zip(&instance.lanes).map(|(index, _)| index).collect();
    let root = |lanes: &mut Vec<u32>, mut lane: u32| {
        while lanes[lane as usize] != lane {
            lanes[lane as usize] = lanes[lanes[lane as usize] as usize];
            lane = lanes[lane as usize];
        }
        lane
    };
    let mut end: Vec<Option<u32>> = vec![None; instance.conns.len()];
    for (index, lane) in (0..).zip(&instance.lanes) {
        let ends = lane.recv.iter().chain(&lane.send);
        let others = ends.filter_map(|&conn| Some(*end.get_mut(conn as usize)?.get_or_insert(index)));
        let others: Vec<u32> = others.chain(lane.tokens.iter().copied()).collect();
        for other in others.into_iter().filter(|&other| (other as usize) < instance.lanes.len()) {
            let (a, b) = (root(&mut lanes, index), root(&mut lanes, other));
            lanes[a as usize] = b;
        }
    }
    (0..).zip(&instance.lanes).map(|(lane, _)| root(&mut lanes, lane)).collect()
}

impl<O: Observer> Simulation<'_, '_, O> {
    /// Leaves out rounds where all lanes are steady.
    pub(super) fn leap(&mut self) {
        for level in Level::ALL {
            let Some(steady) = &mut self.steady else { return };
            if !std::mem::take(&mut steady.tracks[level as usize].due) {
                continue;
            }
            let (found, left) = self.found(level);
            let Some(steady) = &mut self.steady else { return };
            let track = &mut steady.tracks[level as usize];
            match found {
                Found::NotYet => {}
                Found::Unsteady(end) => {
                    track.before = end;
                    track.widen(left);
                }
                Found::Steady(jumps, time) => self.leave_out(level, &jumps, time),
            }
        }
    }

    /// Lanes whose turn has come and that are not through.
    fn under_way(&self) -> impl Iterator<Item = (usize, &LaneRun)> {
        let waits = |run: &LaneRun| run.cursor.is_at_start() && run.wake_at == UNKNOWN;
        self.lanes.iter().enumerate().filter(move |(_, run)| run.phase != Phase::Done && !waits(run))
    }

    /// What the last windows of all lanes say, and the fewest rounds that are left to one.
    fn found(&self, level: Level) -> (Found, i64) {
        let Some(steady) = &self.steady else { return (Found::NotYet, 0) };
        let track = &steady.tracks[level as usize];
        let window = track.window;
        let mut parts = vec![Part::default(); self.lanes.len()];
        let mut alike = true;
        for (lane, run) in self.under_way() {
            let (spec, marks) = (&self.instance.lanes[lane], &track.marks[lane]);
            let left = template(self.instance, spec.job, spec.template).rounds_left(&run.cursor.state, level);
            let (Some(left), true) = (left, marks.len() >= track.needed()) else { return (Found::NotYet, 0) };
            let [a, b, c] = [2, 1, 0].map(|windows| marks[marks.len() - 1 - windows * window]);
            let part = &mut parts[steady.part[lane] as usize];
            alike &= b - a == c - b && part.took.is_none_or(|took| took == [b - a, c - b]);
            let [fewest, most] = part.left;
            if part.took.is_none() || (left, c - a) >= (most, part.both()) {
                part.left[1] = left;
                part.took = Some([b - a, c - b]);
            }
            part.left[0] = if fewest == 0 { left } else { left.min(fewest) };
        }
        let size = window as i64;
        let rounds = |part: &Part| part.left[0] - KEPT;
        // What rounds of a part take, in ps.
        let take = |part: &Part, rounds: i64| part.both() as f64 * rounds as f64 / (2 * size) as f64;
        let all = || parts.iter().filter(|part| part.took.is_some());
        let left = all().map(|part| part.left[0]).min().unwrap_or(0);
        let least = all().min_by(|a, b| take(a, rounds(a)).total_cmp(&take(b, rounds(b))));
        let Some(first) = least else { return (Found::NotYet, 0) };
        let windows = rounds(first) / size;
        if windows < 1 || all().any(|part| part.both() == 0) {
            return (Found::Unsteady(None), left);
        }
        // Half the difference is what the mean of both windows may be off, for each window that is left out.
        let differ = |part: &Part| part.took.map_or(0, |[one, other]| one.abs_diff(other)) as f64;
        let off = all().map(|part| differ(part) * rounds(part) as f64 / (2 * size) as f64).fold(0.0, f64::max);
        let comes = all().map(|part| take(part, part.left[1])).fold(0.0, f64::max);
        let end = self.now.saturating_add(steady.left_out) as f64 + comes;
        let nearly = off <= UNCERTAIN * end;
        let same = track.before.is_some_and(|before| (before - end).abs() <= UNCERTAIN * end);
        let steady_now = match level {
            Level::First => off <= EQUAL * end || nearly && same,
            Level::Inside => alike,
        };
        if !steady_now {
            return (Found::Unsteady(nearly.then_some(end)), left);
        }
        let took = |part: &Part, windows: i64| i128::from(part.both()) * i128::from(windows) / 2;
        let took = |part: &Part, windows: i64| i64::try_from(took(part, windows)).unwrap_or(i64::MAX);
        let time = took(first, windows);
        // Each part leaves out the windows that come nearest to that.
        let jumps = parts.iter().zip(&steady.ahead).map(|(part, ahead)| {
            if part.took.is_none() {
                return Jump::default();
            }
            let windows = ((time - ahead) as f64 * 2.0 / part.both() as f64).round() as i64;
            let windows = windows.min(rounds(part) / size).max(0);
            Jump { rounds: windows * size, took: took(part, windows) }
        });
        (Found::Steady(jumps.collect(), time), left)
    }

    /// Leaves out rounds of each part.
    fn leave_out(&mut self, level: Level, jumps: &[Jump], time: i64) {
        let Some(steady) = &mut self.steady else { return };
        steady.left_out = steady.left_out.saturating_add_signed(time);
        for (ahead, jump) in steady.ahead.iter_mut().zip(jumps).filter(|(_, jump)| jump.rounds > 0) {
            *ahead += jump.took - time;
        }
        let part = steady.part.clone();
        steady.tracks[level as usize].before = None;
        // Rounds of the first loop hold those inside.
        let cut = match level {
            Level::First => &mut steady.tracks[..],
            Level::Inside => &mut steady.tracks[level as usize..],
        };
        for track in cut {
            track.marks.iter_mut().for_each(Vec::clear);
            (track.reached, track.asks, track.due) = (0, None, false);
        }
        let lanes: Vec<usize> = self.under_way().map(|(lane, _)| lane).collect();
        let mut given = vec![0; self.lanes.len()];
        for &lane in &lanes {
            let rounds = jumps[part[lane] as usize].rounds;
            self.count(lane, level, u64::try_from(rounds).unwrap_or(0));
            let (spec, run) = (&self.instance.lanes[lane], &mut self.lanes[lane]);
            let template = template(self.instance, spec.job, spec.template);
            given[lane] = template.leave_out(&mut run.cursor.state, level, rounds);
            run.signals += given[lane];
        }
        // Who waits counts from the first round.
        for &lane in &lanes {
            if let Some((port, count)) = &mut self.lanes[lane].cursor.step.wait {
                let other = self.instance.lanes[lane].tokens.get(*port);
                *count += other.and_then(|&other| given.get(other as usize)).copied().unwrap_or(0);
            }
        }
    }

    /// Adds what a lane carries in the round after the one at hand, so many times.
    fn count(&mut self, lane: usize, level: Level, times: u64) {
        let spec = &self.instance.lanes[lane];
        let (schedule, conns) = (self.instance.schedules[spec.job as usize], &self.instance.conns);
        let mut cursor = self.lanes[lane].cursor.clone();
        let before = cursor.state.begun(level);
        let load = &mut self.outcome.load;
        let mut add = |units: u64, uses: &[(u32, u64)]| {
            for &(resource, weight) in uses {
                load[resource as usize] += u128::from(units) * u128::from(weight) * u128::from(times);
            }
        };
        while let Some(slice) = cursor.next(schedule, spec.template) {
            match cursor.state.begun(level) - before {
                0 => continue,
                1 => {}
                _ => break,
            }
            let (step, bytes) = (&cursor.step, slice.span * spec.element);
            if bytes > 0 {
                add(bytes, &spec.uses(step, bytes, conns));
            }
            for (index, &port) in step.send.iter().enumerate() {
                let conn = &conns[spec.send[port] as usize];
                self.outcome.messages += spec.multiplicity * times;
                if conn.proxy.is_none() {
                    continue;
                }
                let posting = conn.uses.of(Section::Posting);
                if super::is_first(&step.send[..index], &spec.send, spec.send[port]) {
                    add(conn.checks(bytes), posting);
                }
                // Of several who send one slice together, the first stands for all.
                if self.lanes[lane].send[port] == 0 {
                    add(conn.work(bytes), posting);
                    add(bytes.max(1), conn.uses.of(Section::Transfer));
                }
            }
        }
    }

    /// Makes the outcome no shorter than its busiest resource needs: a window that was a little faster than the others
    /// must not be taken for the rate of a link.
    pub(super) fn carry(&mut self) {
        if self.steady.as_ref().is_none_or(|steady| steady.left_out == 0) {
            return;
        }
        let need = self.instance.resources.iter().zip(&self.outcome.load).map(|(&capacity, &load)| {
            (load / u128::from(WEIGHT_ONE)).saturating_mul(PS_PER_S).div_ceil(u128::from(capacity.max(1)))
        });
        let need = SimTime(need.max().map_or(0, |ps| u64::try_from(ps).unwrap_or(u64::MAX)));
        let outcome = &mut self.outcome;
        let ends = outcome.job_ends.iter_mut().chain(outcome.round_ends.last_mut());
        ends.filter(|end| **end == outcome.end).for_each(|end| *end = need.max(*end));
        outcome.end = need.max(outcome.end);
    }
}

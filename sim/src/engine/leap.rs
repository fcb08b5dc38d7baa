//! Long calls and large rings: a pattern that repeats is simulated until it does, and the rest of its rounds is left out.
//!
//! A program's first loop does the same in every round. Once FIFOs are full and pipelines have formed, each round costs
//! what the slowest part of it does. A run notes when each lane begins its rounds. Where two windows of rounds take the
//! same time, all lanes leave out the rest, the clock goes on by what that takes, and the run goes on to its end. Parts of
//! one rate leave out whole windows; of unlike ones each leaves out the rounds that come nearest to that time. Blocks that are out of step beat: then a window is a mean over rounds, known better the longer it
//! is. Against full runs it is within 0.5%, over a network within 1% (a test says so), mostly far less.
//!
//! Inside of a round, the steps of a ring are alike too. Rounds are left out where each lane takes the same time for two
//! windows, and all lanes that are joined the same: then what comes after is no other but for rounding, as rates are
//! integers. Full runs take as long, to the picosecond in a test, to 4 parts in 100 million elsewhere. Lanes that drift
//! apart by what they wait never do. They leave rounds out where windows of two lengths let the call end at one time:
//! within 0.03% of full runs.

use super::flows::WEIGHT_ONE;
use super::instance::{LaneSpec, Outcome, is_first};
use super::observe::Observer;
use super::state::{LaneRun, Phase, Simulation, UNKNOWN};
use super::steady::{WINDOWS, template};
use super::uses::Section;
use crate::schedule::program::Level;
use crate::units::{PS_PER_S, SimTime};

/// Rounds that are always run at the end: the last may have less to do, and one is under way.
pub(super) const KEPT: i64 = 4;
/// Largest part of a call's time that its length may be uncertain by, from how much two windows differ.
const UNCERTAIN: f64 = 2e-3;
/// The same where windows are taken to be equal. Blocks that beat more slowly than a window differ by more: then windows
/// of twice the length must say the same.
const EQUAL: f64 = 1e-6;

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
            // Of a few rounds, which are large, nothing but equality says that they repeat.
            Level::First if window < WINDOWS[level as usize] => alike,
            Level::First => off <= EQUAL * end || nearly && same,
            Level::Inside => alike || off <= EQUAL * end && same,
        };
        if !steady_now {
            return (Found::Unsteady(nearly.then_some(end)), left);
        }
        let took = |part: &Part, rounds: i64| {
            let ps = i128::from(part.both()) * i128::from(rounds) / i128::from(2 * size);
            i64::try_from(ps).unwrap_or(i64::MAX)
        };
        let time = took(first, windows * size);
        // Parts whose windows take the same leave out whole ones. Where one is faster than another, a window of the one is no
        // window of the other: each leaves out the rounds that come nearest to that time.
        let step = if all().all(|part| part.both() == first.both()) { size } else { 1 };
        let jumps = parts.iter().zip(&steady.ahead).map(|(part, ahead)| {
            if part.took.is_none() {
                return Jump::default();
            }
            let steps = ((time - ahead) as f64 * (2 * size / step) as f64 / part.both() as f64).round() as i64;
            let rounds = (steps * step).min(rounds(part) / step * step).max(0);
            Jump { rounds, took: took(part, rounds) }
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
        for lane in lanes {
            let rounds = jumps[part[lane] as usize].rounds;
            self.count(lane, level, u64::try_from(rounds).unwrap_or(0));
            let (spec, run) = (&self.instance.lanes[lane], &mut self.lanes[lane]);
            let of = |spec: &LaneSpec| template(self.instance, spec.job, spec.template);
            run.signals += of(spec).leave_out(&mut run.cursor.state, level, rounds);
            // Who waited may find now what it waits for, and counts from the first round.
            self.ready.extend(run.waiters.drain(..));
            if let Some((port, count)) = &mut run.cursor.step.wait {
                let other = spec.tokens.get(*port).and_then(|&other| self.instance.lanes.get(other as usize));
                *count += other.map_or(0, |other| of(other).signals_of(level, rounds));
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
        while let Some(span) = cursor.next_timed(schedule, spec.template) {
            match cursor.state.begun(level) - before {
                0 => continue,
                1 => {}
                _ => break,
            }
            let (step, bytes) = (&cursor.step, span * spec.element);
            if bytes > 0 {
                spec.uses(step, bytes, conns, &mut self.uses);
                add(bytes, &self.uses);
            }
            for (index, &port) in step.send.iter().enumerate() {
                let conn = &conns[spec.send[port] as usize];
                self.outcome.messages += spec.multiplicity * times;
                if conn.proxy.is_none() {
                    continue;
                }
                let posting = conn.uses.of(Section::Posting);
                if is_first(&step.send[..index], &spec.send, spec.send[port]) {
                    add(conn.checks(bytes), posting);
                }
                // Of several who send one slice together, the first stands for all.
                if self.lanes[lane].send[port] == 0 {
                    add(conn.work(bytes), posting);
                    add(bytes.max(1), conn.uses.of(Section::Transfer));
                    add(conn.take, conn.uses.of(Section::Taking));
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
        self.outcome.last_until(need);
    }
}

impl Outcome {
    /// Makes all that ended last end no earlier than `least`.
    fn last_until(&mut self, least: SimTime) {
        let end = self.end;
        let of_all = [&mut self.job_ends, &mut self.first_ends, &mut self.last_ends, &mut self.lane_ends];
        let ends = of_all.into_iter().flatten().chain(self.round_ends.last_mut()).chain([&mut self.end]);
        ends.filter(|other| **other == end).for_each(|other| *other = least.max(end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a run that is made longer is longer for the ranks and lanes that ended it, too.
    #[test]
    fn whatever_ends_a_run_is_carried_on() {
        let [first, end, least] = [1, 5, 7].map(SimTime);
        let of_two = |end: SimTime| vec![first, end];
        let outcome = |end: SimTime, first_ends: Vec<SimTime>| Outcome {
            end,
            job_ends: of_two(end),
            first_ends,
            last_ends: of_two(end),
            lane_ends: of_two(end),
            round_ends: of_two(end),
            ..Outcome::default()
        };
        for first_ends in [[first, end], [first, first]] {
            let mut run = outcome(end, first_ends.to_vec());
            run.last_until(first);
            assert_eq!(run, outcome(end, first_ends.to_vec()));
            run.last_until(least);
            let carried = first_ends.map(|other| if other == end { least } else { other });
            assert_eq!(run, outcome(least, carried.to_vec()));
        }
    }
}

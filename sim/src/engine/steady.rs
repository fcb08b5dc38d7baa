//! Long calls and large rings: a pattern that repeats is simulated until it does, and its length is added.
//!
//! A program's first loop does the same in every round, so a run of `n` rounds ends at
//! `a + b n` once the first rounds are over: FIFOs fill, pipelines form, then every round costs
//! what the slowest part of it does. Blocks that are out of step beat: then `b` is a mean over
//! rounds, known better the more there are. The last rounds, with what is left of a message, stay
//! as they are. Against full runs it is within 0.5% (a test says so), mostly far less.
//!
//! Inside of a round, the steps of a ring are alike too. There the middle is left out only where each lane takes the
//! same time for two windows, and all lanes that are joined the same: then what comes after is no other but for rounding,
//! as rates are integers. Full runs take as long, to the picosecond in a test, to 4 parts in 100 million elsewhere.

use rustc_hash::FxHashMap;

use super::flows::WEIGHT_ONE;
use super::{EngineError, Instance, LONGEST, LaneSpec, Outcome, Unobserved, run};
use crate::schedule::program::{State, Template};
use crate::units::{PS_PER_S, SimDuration, SimTime};

/// Rounds between two runs that are compared: more than slices fit into a FIFO.
const WINDOW: i64 = 12;
/// Runs of one, two and three windows are worth their while in calls of so many times as many rounds as the longest:
/// with those of all shorter windows before they come to four times as many.
const WORTHWHILE: i64 = 4;
/// Largest part of a call's time that its length may be uncertain by, from how much two windows differ.
const UNCERTAIN: f64 = 1e-3;
/// The same where windows are taken to be equal. Blocks that beat more slowly than a window differ by more: then windows
/// of twice the length must say the same.
const EQUAL: f64 = 1e-6;

/// Rounds of the shortest window of a ring's steps: as many as slices fit into most FIFOs, and GPUs into most hosts.
const STEPS: i64 = 8;

/// Loops of all lanes that repeat, and how to leave some of their rounds out.
struct Loops {
    /// Rounds of the shortest.
    fewest: i64,
    /// Rounds of the shortest window.
    window: i64,
    /// Lanes that connections join, each by one of them, where all are to be steady: what holds one up comes round to it
    /// again in as many rounds at most as there are, so that one of the windows is as long.
    joined: Option<Vec<usize>>,
    /// A lane's start without so many rounds of each.
    shortened: fn(&Template, &State, i64) -> State,
}

/// Runs an instance to its end, leaving out the middle of long loops where the run has become
/// steady; elsewhere as [`run`].
///
/// Times, loads and messages are those of all rounds; the trace hash is that of the rounds that
/// were run.
///
/// # Errors
/// As [`run`].
pub fn run_steady(instance: &Instance<'_>) -> Result<Outcome, EngineError> {
    if !instance.tasks.is_empty() {
        return run(instance, &mut Unobserved);
    }
    let (first, inside) = (first_loops(instance), loops_inside(instance));
    extend(instance, &first, &|instance| extend(instance, &inside, &|instance| run(instance, &mut Unobserved)))
}

/// The template of a lane.
fn template<'i>(instance: &'i Instance<'_>, lane: &LaneSpec) -> &'i Template {
    &instance.schedules[lane.job as usize].templates[lane.template]
}

/// The first loops of all programs.
fn first_loops(instance: &Instance<'_>) -> Loops {
    let rounds: Option<Vec<i64>> =
        instance.lanes.iter().map(|lane| template(instance, lane).rounds(&lane.start)).collect();
    // Lanes without work have no rounds; of the others the one with the fewest decides.
    let fewest = rounds.into_iter().flatten().filter(|&r| r > 0).min().unwrap_or(0);
    Loops { fewest, window: WINDOW, joined: None, shortened: Template::shortened }
}

/// The loops inside of those whose rounds are alike, where all lanes have the same: the steps of a ring.
fn loops_inside(instance: &Instance<'_>) -> Loops {
    let mut rounds = instance.lanes.iter().map(|lane| template(instance, lane).rounds_inside(&lane.start).0);
    let first = rounds.next().unwrap_or_default();
    let fewest = if rounds.all(|other| other == first) { first.into_iter().min().unwrap_or(0) } else { 0 };
    let joined = if fewest > 3 * STEPS * WORTHWHILE { joined(instance) } else { Vec::new() };
    Loops { fewest, window: STEPS, joined: Some(joined), shortened: Template::shortened_inside }
}

/// By lane: one of those that connections join it to.
fn joined(instance: &Instance<'_>) -> Vec<usize> {
    let mut lanes: Vec<usize> = (0..instance.lanes.len()).collect();
    let root = |lanes: &mut Vec<usize>, mut lane: usize| {
        while lanes[lane] != lane {
            lanes[lane] = lanes[lanes[lane]];
            lane = lanes[lane];
        }
        lane
    };
    let mut end: Vec<Option<usize>> = vec![None; instance.conns.len()];
    for (index, lane) in instance.lanes.iter().enumerate() {
        for &conn in lane.recv.iter().chain(&lane.send) {
            let Some(end) = end.get_mut(conn as usize) else { continue };
            let other = *end.get_or_insert(index);
            let (a, b) = (root(&mut lanes, index), root(&mut lanes, other));
            lanes[a] = b;
        }
    }
    (0..lanes.len()).map(|lane| root(&mut lanes, lane)).collect()
}

/// Runs an instance to its end, leaving out the middle of some loops where the run has become steady.
fn extend<'i>(
    instance: &Instance<'i>,
    loops: &Loops,
    run: &dyn Fn(&Instance<'i>) -> Result<Outcome, EngineError>,
) -> Result<Outcome, EngineError> {
    let &Loops { fewest, mut window, ref joined, .. } = loops;
    let turn = joined.as_ref().map(|joined| {
        let mut members = FxHashMap::default();
        joined.iter().for_each(|lane| *members.entry(lane).or_insert(0) += 1);
        members.into_values().max().unwrap_or(1)
    });
    let mut work = 0;
    let mut before: Option<SimTime> = None;
    while fewest > 3 * window * WORTHWHILE {
        let rest = fewest % window;
        let [one, two, three] = [1, 2, 3].map(|n| run(&without(instance, loops, fewest - rest - n * window)));
        let (one, two, three) = (one?, two?, three?);
        work += one.work + two.work + three.work;
        let more = u64::try_from((fewest - rest) / window - 3).unwrap_or(0);
        let differ = (three.end - two.end).0.abs_diff((two.end - one.end).0);
        let each = joined.as_ref().map(|joined| each_steady(instance, joined, [&one, &two, &three]));
        let long = extended(&one, three, more);
        // Half the difference is what the mean of both windows may be off, for each window that is added.
        let within = |off: u64, part: f64| off as f64 <= part * long.end.0 as f64;
        let (off, end) = (more.saturating_mul(differ) / 2, long.end);
        let same = before.is_some_and(|before| within(before.0.abs_diff(end.0), UNCERTAIN));
        if each.unwrap_or(within(off, EQUAL) || within(off, UNCERTAIN) && same) {
            let long = Outcome { work, ..carried(instance, long) };
            return if long.end < LONGEST { Ok(long) } else { Err(EngineError::TooSlow) };
        }
        before = within(off, UNCERTAIN).then_some(end);
        window = turn.filter(|turn| (window + 1..2 * window).contains(turn)).unwrap_or(2 * window);
    }
    run(instance).map(|outcome| Outcome { work: work + outcome.work, ..outcome })
}

/// Whether everything ends as much later in the third run than in the second as in that than in the first, with all
/// lanes that are joined alike: then nothing is on its way from one to another any more that would change this. What ends
/// with the last of several must grow as the one that grows most.
fn each_steady(instance: &Instance<'_>, joined: &[usize], runs: [&Outcome; 3]) -> bool {
    let grown = |of: fn(&Outcome) -> &[SimTime]| -> Option<Vec<SimDuration>> {
        let [one, two, three] = runs.map(of);
        let grown = one.iter().zip(two).zip(three).map(|((&one, &two), &three)| {
            let grown = two - one;
            (three - two == grown).then_some(grown)
        });
        grown.collect()
    };
    let (lanes, kernels) = (grown(|o| &o.lane_ends), grown(|o| &o.last_ends));
    let others = [grown(|o| &o.first_ends), grown(|o| &o.round_ends), grown(|o| &o.job_ends)];
    let (Some(lanes), Some(kernels), true) = (lanes, kernels, others.iter().all(Option::is_some)) else {
        return false;
    };
    let mut most = vec![SimDuration::ZERO; kernels.len()];
    for ((lane, &grown), &other) in instance.lanes.iter().zip(&lanes).zip(joined) {
        let most = &mut most[lane.kernel as usize];
        *most = grown.max(*most);
        // Lanes without work take no longer.
        if grown > SimDuration::ZERO && grown != lanes[other] {
            return false;
        }
    }
    let end = [runs[1].end - runs[0].end, runs[2].end - runs[1].end];
    most == kernels && end.into_iter().all(|grown| Some(grown) == most.iter().copied().max())
}

/// The instance with some loops shortened.
fn without<'a>(instance: &Instance<'a>, loops: &Loops, rounds: i64) -> Instance<'a> {
    let mut short = instance.clone();
    for lane in &mut short.lanes {
        lane.start = (loops.shortened)(template(instance, lane), &lane.start, rounds);
    }
    short
}

/// The later of two runs, longer by `more` halves of what it is longer than the earlier, two windows before it.
fn extended(earlier: &Outcome, mut later: Outcome, more: u64) -> Outcome {
    let time = |a: &SimTime, b: &mut SimTime| b.0 = b.0.saturating_add((b.0 - a.0.min(b.0)).saturating_mul(more) / 2);
    let times = |a: &[SimTime], b: &mut [SimTime]| a.iter().zip(b).for_each(|(a, b)| time(a, b));
    time(&earlier.end, &mut later.end);
    times(&earlier.job_ends, &mut later.job_ends);
    times(&earlier.first_ends, &mut later.first_ends);
    times(&earlier.last_ends, &mut later.last_ends);
    times(&earlier.lane_ends, &mut later.lane_ends);
    times(&earlier.round_ends, &mut later.round_ends);
    for (a, b) in earlier.load.iter().zip(&mut later.load) {
        *b += (*b - (*a).min(*b)) * u128::from(more) / 2;
    }
    later.messages += (later.messages - earlier.messages.min(later.messages)) * more / 2;
    later
}

/// The outcome, no shorter than its busiest resource needs: a window that was a little faster than the
/// others must not be taken for the rate of a link.
fn carried(instance: &Instance<'_>, mut outcome: Outcome) -> Outcome {
    let need = instance.resources.iter().zip(&outcome.load).map(|(&capacity, &load)| {
        (load / u128::from(WEIGHT_ONE)).saturating_mul(PS_PER_S).div_ceil(u128::from(capacity.max(1)))
    });
    let need = SimTime(need.max().map_or(0, |ps| u64::try_from(ps).unwrap_or(u64::MAX)));
    let ends = outcome.job_ends.iter_mut().chain(outcome.round_ends.last_mut());
    ends.filter(|end| **end == outcome.end).for_each(|end| *end = need.max(*end));
    outcome.end = need.max(outcome.end);
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: half of what a later run has more than an earlier one is added as often as asked.
    #[test]
    fn runs_are_extended_by_their_difference() {
        let outcome = |end, load| Outcome { end: SimTime(end), load: vec![load], messages: 7, ..Outcome::default() };
        let long = extended(&outcome(100, 5), outcome(130, 9), 8);
        assert_eq!((long.end, long.load[0], long.messages), (SimTime(250), 25, 7));
    }
}

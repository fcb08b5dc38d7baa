//! Long calls: a pattern that repeats is simulated until it does, and its length is added.
//!
//! A program's first loop does the same in every round, so a run of `n` rounds ends at
//! `a + b n` once the first rounds are over: FIFOs fill, pipelines form, then every round costs
//! what the slowest part of it does. Blocks that are out of step beat: then `b` is a mean over
//! rounds, known better the more there are. The last rounds, with what is left of a message, stay
//! as they are. Against full runs it is within 0.5% (a test says so), mostly far less.

use super::flows::WEIGHT_ONE;
use super::{EngineError, Instance, LONGEST, Outcome, Unobserved, run};
use crate::units::{PS_PER_S, SimTime};

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

/// Runs an instance to its end, leaving out the middle of long loops where the run has become
/// steady; elsewhere as [`run`].
///
/// Times, loads and messages are those of all rounds; the trace hash is that of the rounds that
/// were run.
///
/// # Errors
/// As [`run`].
pub fn run_steady(instance: &Instance<'_>) -> Result<Outcome, EngineError> {
    let rounds: Option<Vec<i64>> = (instance.lanes.iter())
        .map(|lane| instance.schedules[lane.job as usize].templates[lane.template].rounds(&lane.start))
        .collect();
    // Lanes without work have no rounds; of the others the one with the fewest decides.
    let fewest = rounds.into_iter().flatten().filter(|&r| r > 0).min().unwrap_or(0);
    let (mut window, mut work) = (WINDOW, 0);
    let mut before: Option<SimTime> = None;
    while instance.tasks.is_empty() && fewest > 3 * window * WORTHWHILE {
        let rest = fewest % window;
        let [one, two, three] = [1, 2, 3].map(|n| run(&without(instance, fewest - rest - n * window), &mut Unobserved));
        let (one, two, three) = (one?, two?, three?);
        work += one.work + two.work + three.work;
        let more = u64::try_from((fewest - rest) / window - 3).unwrap_or(0);
        let differ = (three.end - two.end).0.abs_diff((two.end - one.end).0);
        let long = extended(&one, three, more);
        // Half the difference is what the mean of both windows may be off, for each window that is added.
        let within = |off: u64, part: f64| off as f64 <= part * long.end.0 as f64;
        let (off, end) = (more * differ / 2, long.end);
        let same = before.is_some_and(|before| within(before.0.abs_diff(end.0), UNCERTAIN));
        if within(off, EQUAL) || within(off, UNCERTAIN) && same {
            let long = Outcome { work, ..carried(instance, long) };
            return if long.end < LONGEST { Ok(long) } else { Err(EngineError::TooSlow) };
        }
        before = within(off, UNCERTAIN).then_some(end);
        window *= 2;
    }
    run(instance, &mut Unobserved).map(|outcome| Outcome { work: work + outcome.work, ..outcome })
}

/// The instance with all first loops shortened.
fn without<'a>(instance: &Instance<'a>, rounds: i64) -> Instance<'a> {
    let mut short = instance.clone();
    for lane in &mut short.lanes {
        let template = &instance.schedules[lane.job as usize].templates[lane.template];
        lane.start = template.shortened(&lane.start, rounds);
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

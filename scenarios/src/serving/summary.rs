//! What users see of a run: percentiles of times, and how many requests met objectives.

use serde::Serialize;

use super::arrivals::Request;
use super::simulate::{Outcome, Served};

/// Percentiles of times, in seconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Percentiles {
    /// Mean.
    pub mean: f64,
    /// Half are shorter.
    pub p50: f64,
    /// 90% are.
    pub p90: f64,
    /// 99% are.
    pub p99: f64,
}

/// Which of so many times in order a part of them does not exceed.
pub fn place(count: usize, part: f64) -> usize {
    (count.saturating_sub(1) as f64 * part).round() as usize
}

impl Percentiles {
    /// Of some times; zeros for none.
    pub fn of(mut times: Vec<f64>) -> Self {
        if times.is_empty() {
            return Self::default();
        }
        times.sort_by(f64::total_cmp);
        let at = |part: f64| times[place(times.len(), part)];
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        Self { mean, p50: at(0.5), p90: at(0.9), p99: at(0.99) }
    }
}

/// Part of the requests that has to meet an objective: the level at which serving benchmarks report goodput (DistServe, OSDI
/// 2024).
pub const GOOD: f64 = 0.9;

/// What a request has to meet.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Objective {
    /// Seconds to its first token.
    pub ttft: f64,
    /// Mean seconds from one token to the next.
    pub tpot: f64,
    /// Parts of the requests that have to meet the first and the second, such as 0.99 for p99.
    pub parts: [f64; 2],
}

impl Objective {
    /// For [`GOOD`] of the requests.
    pub const fn new(ttft: f64, tpot: f64) -> Self {
        Self { ttft, tpot, parts: [GOOD; 2] }
    }

    /// Whether enough requests of a run met the time to the first token, and the time between tokens.
    pub fn held(&self, summary: &Summary) -> [bool; 2] {
        [0, 1].map(|which| summary.met_each[which] >= self.parts[which])
    }

    /// Part of the requests of a run that missed it; 0 where enough met it.
    pub fn missed(&self, summary: &Summary) -> f64 {
        if self.held(summary) == [true; 2] { 0.0 } else { 1.0 - summary.met }
    }
}

/// A run in numbers.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Summary {
    /// Requests.
    pub requests: usize,
    /// From the first arrival to the last token, in seconds; no less than the time over which requests were to arrive.
    pub seconds: f64,
    /// From arrival to the start of the prompt.
    pub queue: Percentiles,
    /// From the prompt's end to the first token at its decoder: wait for memory, and transfer.
    pub hand_off: Percentiles,
    /// To the first token.
    pub ttft: Percentiles,
    /// From one token to the next, the mean of a request; of those that have more than one.
    pub tpot: Percentiles,
    /// To the last token.
    pub whole: Percentiles,
    /// Tokens generated a second, in the steady state: those of the requests over the time in which they were to arrive, and no
    /// more than in the best quarter of it. Over all `seconds` where no such time was asked for.
    pub tokens_per_s: f64,
    /// Part of the requests that met the objective.
    pub met: f64,
    /// Part that met its time to the first token, and part that met its time between tokens.
    pub met_each: [f64; 2],
    /// Requests a second that did: over the time in which they were to arrive, or all `seconds` where no such time was asked for.
    pub goodput: f64,
}

/// Parts of the time of arrivals, and how many of them in a row are a quarter of it.
const PARTS: usize = 16;
const QUARTER: usize = PARTS / 4;

/// Tokens that were made a second in the best quarter of a window.
fn best_rate(requests: &[Request], outcome: &Outcome, window: f64) -> f64 {
    let each = window / PARTS as f64;
    let mut made = [0.0; PARTS];
    for (request, served) in requests.iter().zip(&outcome.served) {
        let (first, last) = (served.first as f64 * 1e-9 / each, served.last as f64 * 1e-9 / each);
        if let Some(made) = made.get_mut(first as usize) {
            *made += 1.0;
        }
        // The others come evenly until the last.
        let rate = (request.output - 1) as f64 / (last - first).max(1e-9);
        for (nth, made) in made.iter_mut().enumerate().skip(first as usize).take_while(|(nth, _)| (*nth as f64) < last)
        {
            *made += rate * (last.min(nth as f64 + 1.0) - first.max(nth as f64));
        }
    }
    made.windows(QUARTER).map(|made| made.iter().sum()).fold(0.0, f64::max) / (each * QUARTER as f64)
}

fn seconds(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 * 1e-9
}

/// Mean time from one token to the next.
fn tpot(request: &Request, served: &Served) -> Option<f64> {
    (request.output > 1).then(|| seconds(served.first, served.last) / (request.output - 1) as f64)
}

/// Counts a run of requests that were to arrive within `window` seconds; 0 where they say it themselves, as those of a trace.
pub fn summarise(requests: &[Request], outcome: &Outcome, objective: Objective, window: f64) -> Summary {
    let all = || requests.iter().zip(&outcome.served);
    let times = |of: fn(&Served) -> (u64, u64)| {
        Percentiles::of(
            outcome
                .served
                .iter()
                .map(|served| {
                    let (from, to) = of(served);
                    seconds(from, to)
                })
                .collect(),
        )
    };
    let met = |(request, served): (&Request, &Served)| {
        let tpot = tpot(request, served);
        [seconds(served.arrived, served.first) <= objective.ttft, tpot.is_none_or(|tpot| tpot <= objective.tpot)]
    };
    let (mut good, mut each) = (0.0, [0.0; 2]);
    for [ttft, tpot] in all().map(met) {
        good += f64::from(u8::from(ttft && tpot));
        each[0] += f64::from(u8::from(ttft));
        each[1] += f64::from(u8::from(tpot));
    }
    let count = requests.len().max(1) as f64;
    let first = outcome.served.iter().map(|served| served.arrived).min().unwrap_or(0);
    let last = outcome.served.iter().map(|served| served.last).max().unwrap_or(0);
    let lasted = seconds(first, last).max(window).max(1e-9);
    let tokens = requests.iter().map(|request| request.output as f64).sum::<f64>();
    Summary {
        requests: requests.len(),
        seconds: lasted,
        queue: times(|served| (served.arrived, served.begun)),
        hand_off: times(|served| (served.prefilled, served.first)),
        ttft: times(|served| (served.arrived, served.first)),
        tpot: Percentiles::of(all().filter_map(|(request, served)| tpot(request, served)).collect()),
        whole: times(|served| (served.arrived, served.last)),
        // A fleet that keeps up makes what is asked for, however long its last requests take.
        tokens_per_s: if window > 0.0 {
            (tokens / window).min(best_rate(requests, outcome, window))
        } else {
            tokens / lasted
        },
        met: good / count,
        met_each: each.map(|met| met / count),
        goodput: good / if window > 0.0 { window } else { lasted },
    }
}

//! A job from its start to its end, with failures drawn: Monte Carlo.
//!
//! Failures and stragglers come at exponential times and may strike at any moment, also in a save or a restart. A seed gives
//! the same result on every machine.

use std::collections::VecDeque;

use collcast_sim::engine::mix;
use serde::Serialize;

use super::error::{GoodputError, at_least, positive};
use super::formulas::Job;

/// Most events of all samples: some 5 s of a core.
const MAX_EVENTS: u64 = 400_000_000;
/// Most samples.
const MAX_SAMPLES: u32 = 1_000_000;
/// Most saves on their way to storage at once.
const MAX_PENDING: f64 = 10_000.0;

/// A job, all times in seconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct WholeRun {
    /// Failures, saves and restarts.
    pub job: Job,
    /// Work until the end, if nothing were lost.
    pub work: f64,
    /// Work between saves.
    pub interval: f64,
    /// Hosts that stand by; none given for as many as it takes.
    pub spares: Option<u32>,
    /// Until a host that failed stands by again.
    pub repair: f64,
    /// Share of the failures that take a host away.
    pub hardware: f64,
    /// Ranks that slow all others down.
    pub stragglers: Option<Stragglers>,
}

/// Ranks that slow all others down.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Stragglers {
    /// Mean time between two of them, in seconds.
    pub between: f64,
    /// How much longer work takes while there is one: 1.2 is a fifth.
    pub slowdown: f64,
    /// Until it is found and gone, in seconds.
    pub lasts: f64,
}

/// What became of all samples.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Outcome {
    /// Work divided by time, over all samples.
    pub goodput: f64,
    /// Seconds until the end: of 10, 50 and 90% of the samples at most.
    pub finish: [f64; 3],
    /// Failures of a sample, on average.
    pub failures: f64,
    /// Seconds of work that were done and lost, on average.
    pub lost: f64,
    /// Seconds in saves, on average.
    pub saving: f64,
    /// Seconds from failures to new steps, on average.
    pub down: f64,
    /// Seconds of those that waited for a host to be repaired, on average.
    pub waiting: f64,
    /// Seconds that stragglers cost, on average.
    pub slow: f64,
}

/// Draws `samples` runs of a job.
///
/// # Errors
/// Numbers without a meaning; a job of more events than are simulated, as one that never ends has.
pub fn simulate(run: &WholeRun, samples: u32, seed: u64) -> Result<Outcome, GoodputError> {
    within(MAX_EVENTS, run, samples, seed)
}

/// The same in at most so many events.
pub(super) fn within(most: u64, run: &WholeRun, samples: u32, seed: u64) -> Result<Outcome, GoodputError> {
    check(most, run, samples)?;
    let mut left = most;
    let mut ends = Vec::with_capacity(samples as usize);
    let mut sum = Sample::default();
    for number in 0..samples {
        let sample = Machine::new(run, mix(seed, u64::from(number))).end(&mut left).ok_or_else(|| too_long(most))?;
        ends.push(sample.time);
        sum.add(&sample);
    }
    ends.sort_by(f64::total_cmp);
    let quantile = |share: f64| ends[((share * f64::from(samples)).ceil() as usize).clamp(1, ends.len()) - 1];
    let mean = |total: f64| total / f64::from(samples);
    Ok(Outcome {
        goodput: run.work * f64::from(samples) / sum.time,
        finish: [0.1, 0.5, 0.9].map(quantile),
        failures: mean(sum.failures),
        lost: mean(sum.lost),
        saving: mean(sum.saving),
        down: mean(sum.down),
        waiting: mean(sum.waiting),
        slow: mean(sum.slow),
    })
}

fn too_long(limit: u64) -> GoodputError {
    let hint = "give a longer interval, or fewer failures and stragglers: the job may hardly proceed";
    GoodputError::TooLong { limit, hint }
}

fn check(most: u64, run: &WholeRun, samples: u32) -> Result<(), GoodputError> {
    run.job.check()?;
    positive("the work", run.work)?;
    positive("the interval", run.interval)?;
    at_least("the repair", run.repair, 0.0)?;
    if !(0.0..=1.0).contains(&run.hardware) {
        let expected = "a share from 0 to 1";
        return Err(GoodputError::Value { name: "the share of hardware", value: run.hardware, expected });
    }
    if samples == 0 || samples > MAX_SAMPLES {
        let expected = "1 to 1000000";
        return Err(GoodputError::Value { name: "the number of samples", value: f64::from(samples), expected });
    }
    if run.job.durable / run.interval > MAX_PENDING {
        let expected = "at most 10,000 intervals";
        return Err(GoodputError::Value { name: "the time until a save is durable", value: run.job.durable, expected });
    }
    if let Some(stragglers) = run.stragglers {
        positive("the time between stragglers", stragglers.between)?;
        at_least("the time that a straggler lasts", stragglers.lasts, 0.0)?;
        if run.work / stragglers.between > most as f64 {
            return Err(too_long(most));
        }
        if !(stragglers.slowdown.is_finite() && stragglers.slowdown >= 1.0) {
            let expected = "a finite number of at least 1";
            return Err(GoodputError::Value {
                name: "the slowdown by a straggler",
                value: stragglers.slowdown,
                expected,
            });
        }
    }
    Ok(())
}

/// One run's account, in seconds.
#[derive(Clone, Copy, Default)]
struct Sample {
    time: f64,
    failures: f64,
    lost: f64,
    saving: f64,
    down: f64,
    waiting: f64,
    slow: f64,
}

impl Sample {
    fn add(&mut self, other: &Self) {
        self.time += other.time;
        self.failures += other.failures;
        self.lost += other.lost;
        self.saving += other.saving;
        self.down += other.down;
        self.waiting += other.waiting;
        self.slow += other.slow;
    }
}

/// Independent draws from one seed.
struct Draws {
    seed: u64,
    count: u64,
}

impl Draws {
    /// Uniform in 0..1, neither end.
    fn uniform(&mut self) -> f64 {
        self.count += 1;
        ((mix(self.seed, self.count) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.uniform().ln()
    }
}

/// A job while it runs.
struct Machine<'a> {
    run: &'a WholeRun,
    draws: Draws,
    now: f64,
    /// Work that is done, of it what is in storage.
    done: f64,
    safe: f64,
    /// Saves on their way to storage: the work that they hold, and when they are there.
    pending: VecDeque<(f64, f64)>,
    failure: f64,
    straggler: f64,
    /// Until when a straggler slows the job.
    slow_until: f64,
    spares: u32,
    /// When hosts in repair stand by again, in that order.
    repairs: VecDeque<f64>,
    account: Sample,
}

impl<'a> Machine<'a> {
    fn new(run: &'a WholeRun, seed: u64) -> Self {
        let mut draws = Draws { seed, count: 0 };
        let failure = draws.exponential(run.job.mtbf);
        let straggler = run.stragglers.map_or(f64::INFINITY, |s| draws.exponential(s.between));
        Self {
            run,
            draws,
            now: 0.0,
            done: 0.0,
            safe: 0.0,
            pending: VecDeque::new(),
            failure,
            straggler,
            slow_until: 0.0,
            spares: run.spares.unwrap_or(0),
            repairs: VecDeque::new(),
            account: Sample::default(),
        }
    }

    /// Runs to the end, if `left` events are enough.
    fn end(mut self, left: &mut u64) -> Option<Sample> {
        let run = self.run;
        while self.done < run.work {
            *left = left.checked_sub(1)?;
            let from = self.done;
            let goal = (from + run.interval).min(run.work);
            if !self.work_until(goal, left) {
                self.fail(left);
                continue;
            }
            if self.done < run.work && !self.save() {
                self.fail(left);
            }
        }
        self.account.time = self.now;
        Some(self.account)
    }

    /// Works until so much is done; false where a failure comes first.
    fn work_until(&mut self, goal: f64, left: &mut u64) -> bool {
        loop {
            self.meet_stragglers(left);
            if *left == 0 {
                return false;
            }
            let slow = self.now < self.slow_until;
            let pace = match self.run.stragglers {
                Some(stragglers) if slow => stragglers.slowdown,
                _ => 1.0,
            };
            let finish = self.now + (goal - self.done) * pace;
            // The first of: the goal, a failure, a change of pace.
            let change = if slow { self.straggler.min(self.slow_until) } else { self.straggler };
            let until = finish.min(self.failure).min(change);
            let worked = (until - self.now) / pace;
            self.account.slow += until - self.now - worked;
            self.now = until;
            if finish <= until {
                self.done = goal;
                return true;
            }
            self.done += worked;
            if self.failure <= until {
                return false;
            }
            *left = left.saturating_sub(1);
        }
    }

    /// Takes note of stragglers that have come, also during a save or a restart, which none slows.
    fn meet_stragglers(&mut self, left: &mut u64) {
        let Some(stragglers) = self.run.stragglers else { return };
        while self.straggler <= self.now && *left > 0 {
            *left = left.saturating_sub(1);
            self.slow_until = self.slow_until.max(self.straggler + stragglers.lasts);
            self.straggler += self.draws.exponential(stragglers.between);
        }
    }

    /// Saves; false where a failure comes first.
    fn save(&mut self) -> bool {
        let end = self.now + self.run.job.stall;
        let until = end.min(self.failure);
        self.account.saving += until - self.now;
        self.now = until;
        if end > until {
            return false;
        }
        self.pending.push_back((self.done, end + self.run.job.durable));
        self.land();
        true
    }

    /// Takes note of saves that have reached storage.
    fn land(&mut self) {
        while self.pending.front().is_some_and(|save| save.1 <= self.now) {
            self.safe = self.pending.pop_front().map_or(self.safe, |save| save.0);
        }
    }

    /// A failure, and the way to the first new step, on which others may strike.
    fn fail(&mut self, left: &mut u64) {
        self.land();
        self.pending.clear();
        self.account.lost += self.done - self.safe;
        self.done = self.safe;
        loop {
            let start = self.now;
            self.account.failures += 1.0;
            *left = left.saturating_sub(1);
            self.replace();
            self.failure = self.now + self.draws.exponential(self.run.job.mtbf);
            let end = self.now + self.run.job.restart;
            self.now = end.min(self.failure);
            self.account.down += self.now - start;
            if end <= self.failure || *left == 0 {
                break;
            }
        }
    }

    /// Takes a spare, or waits for the first host that is repaired.
    fn replace(&mut self) {
        if self.run.spares.is_none() || self.draws.uniform() >= self.run.hardware {
            return;
        }
        self.repairs.push_back(self.now + self.run.repair);
        while self.repairs.front().is_some_and(|&back| back <= self.now) {
            self.repairs.pop_front();
            self.spares += 1;
        }
        if self.spares > 0 {
            self.spares -= 1;
        } else if let Some(back) = self.repairs.pop_front() {
            self.account.waiting += back - self.now;
            self.now = back;
        }
    }
}

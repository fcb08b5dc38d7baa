//! From what a run took to what a loop of operations shows: one law for a call, a group and a fit, and what no run
//! can be.

use std::ops::Add;

use super::busy::Busy;
use super::error::PredictError;
use super::predictor::Predictor;
use super::settings::Settings;
use crate::bounds::{Bound, check_loads};
use crate::collective::{Launch, Protocol};
use crate::domain::Beyond;
use crate::engine::flows::WEIGHT_ONE;
use crate::engine::{EngineError, Instance, MOST_WORK, Outcome, WORK_PER_SECOND};
use crate::network::{ResourceName, smallest_latency};
use crate::profile::{Profile, Spread};
use crate::units::{SimDuration, SimTime};

/// How operations follow each other in a loop: the launches are a queue that the GPU serves, and its steady rate is
/// that of the slower of both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pace<T> {
    /// Interval at which the host issues operations.
    pub issue: T,
    /// What the GPU takes from one kernel to the next.
    pub gap: T,
}

impl<T: Add<Output = T> + PartialOrd + Copy> Pace<T> {
    /// Time of one operation whose kernel takes `kernel`.
    pub(crate) fn time(self, kernel: T) -> T {
        let served = kernel + self.gap;
        if self.is_kept_by_host(kernel) { self.issue } else { served }
    }

    /// Whether the host is the slower of both.
    pub(crate) fn is_kept_by_host(self, kernel: T) -> bool {
        self.issue >= kernel + self.gap
    }
}

impl Pace<SimDuration> {
    /// That of a launch mode, with so many GPUs of one host and channels.
    pub(crate) fn new(profile: &Profile, launch: Launch, gpus: u32, channels: u32) -> Self {
        Self { issue: profile.issue_interval(launch, gpus, channels), gap: profile.gap(launch) }
    }

    /// In microseconds.
    pub(crate) fn as_us(self) -> Pace<f64> {
        Pace { issue: self.issue.as_us(), gap: self.gap.as_us() }
    }
}

/// What a loop of operations shows.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Timed {
    /// Time of one operation.
    pub time: SimDuration,
    /// Interval at which the host issues them.
    pub issue: SimDuration,
    /// Ends of the 90% interval of `time`.
    pub low: SimDuration,
    /// See `low`.
    pub high: SimDuration,
    /// What bounds it.
    pub bound: &'static str,
}

impl Predictor<'_> {
    /// What a loop of calls or groups over so many `ranks` and `channels` shows whose kernels take `kernel`; its interval
    /// is that of `protocol`, and wider for what is `beyond` the profile.
    pub(super) fn timed(
        &self,
        kernel: SimDuration,
        (ranks, channels): (u32, u32),
        (protocol, busy, beyond): (Protocol, Busy, &Beyond),
        settings: &Settings,
    ) -> Timed {
        let pace = Pace::new(self.profile, settings.launch, ranks.div_ceil(self.hosts(ranks)), channels);
        let no_event = settings.launch == Launch::Graph && settings.nccl.no_graph_events;
        let kernel = if no_event { SimDuration(kernel.0.saturating_sub(self.profile.event().0)) } else { kernel };
        let time = if settings.cold { self.profile.first_launch() + kernel } else { pace.time(kernel) };
        let bound = busy.bound(pace.issue >= time);
        let class = Spread::class(protocol, settings.launch, bound);
        let (low, high) = self.profile.interval(&class, !beyond.is_empty());
        let scale = |factor: f64| SimDuration::from_us(time.as_us() * factor);
        Timed { time, issue: pace.issue, low: scale(low), high: scale(high), bound }
    }
}

/// Checks a run against what cannot be: a resource that carried more than its capacity allows, an end before the
/// `bound` or before one hop of what moves anything. `name` says whose a resource is.
///
/// # Errors
/// [`PredictError::SelfCheck`] for `what`.
pub(super) fn check_possible(
    instance: &Instance<'_>,
    outcome: &Outcome,
    bound: &Bound,
    moves: bool,
    name: impl Fn(usize) -> ResourceName,
    what: impl FnOnce() -> String,
) -> Result<(), PredictError> {
    let run_time = outcome.end - SimTime(0);
    // Counts may leave every rank with what it keeps for itself: then nothing hops.
    let hop = if moves && outcome.messages > 0 { smallest_latency(instance) } else { SimDuration::ZERO };
    let violation = if let Err((resource, load)) = check_loads(&instance.resources, &outcome.load, run_time, WEIGHT_ONE)
    {
        format!(
            "{:?} carried {} units in {run_time}, more than its {} units/s allow",
            name(resource),
            load / u128::from(WEIGHT_ONE),
            instance.resources[resource]
        )
    } else if run_time < bound.time || run_time < hop {
        format!("{run_time} is below the bound of {} set by {} or of one hop, {hop}", bound.time, bound.what)
    } else {
        return Ok(());
    };
    Err(PredictError::SelfCheck { what: what(), violation })
}

/// The part of its time by which the first rank of a call is done before the last, from which on a loop of calls is simulated.
pub(super) const APART: f64 = 0.01;
/// Rounds simulated of a timed loop; from then on each takes as long as the last half of them on average (where a FIFO
/// holds several calls, they end in groups).
pub(super) const ROUNDS: u32 = 8;
/// Rounds of the loop of a long call, where the last two of them take the same time.
const FEW_ROUNDS: u32 = 3;
/// A long call: [`Outcome::work`] of about 50 ms. That of its loop is [`ROUNDS`] times as much.
const LONG: u64 = WORK_PER_SECOND / 20;
/// Two rounds take the same time if they differ by less than this part of it.
const SAME: u64 = 200;

/// How to run an instance.
pub(super) type Runner<'r> = dyn Fn(&Instance<'_>) -> Result<Outcome, EngineError> + 'r;

/// Time on the device of one kernel in a loop of them, given the `outcome` of one alone, `ends` being the start and end
/// of the kernel that ends last. Where some ranks are done before others, kernels back to back overlap: `rounds` of them are run, unless
/// one call alone is timed. Also by which part of the time of one the first rank is done before the last.
pub(super) fn kernel_time(
    instance: &Instance<'_>,
    outcome: &Outcome,
    ends: SimDuration,
    settings: &Settings,
    (rounds, run): (u32, &Runner<'_>),
) -> Result<(SimDuration, f64), EngineError> {
    let run_time = outcome.end - SimTime(0);
    let kernel = ends + run_time;
    let first = outcome.first_ends.iter().min().map_or(run_time, |&t| t - SimTime(0));
    let apart = (run_time.as_us() - first.as_us()) / kernel.as_us().max(1e-9);
    // A call that takes long to simulate is one of few in a row, and a loop of them would take too long.
    let too_long = outcome.work.saturating_mul(u64::from(FEW_ROUNDS.min(rounds))) > MOST_WORK;
    if apart <= APART || is_alone(settings) || too_long {
        return Ok((kernel, apart));
    }
    let mut instance = instance.clone();
    let mut repeated = |rounds: u32| {
        for kernel in &mut instance.kernels {
            kernel.rounds = rounds;
        }
        run(&instance)
    };
    let few = match outcome.work >= LONG && rounds > FEW_ROUNDS {
        true => Some(repeated(FEW_ROUNDS)?),
        false => None,
    };
    let more = outcome.work.saturating_mul(u64::from(rounds)) <= MOST_WORK;
    let (rounds, outcome) = match few {
        Some(few) if !more || is_steady(&few.round_ends) => (FEW_ROUNDS, few),
        _ => (rounds, repeated(rounds)?),
    };
    let half = rounds / 2;
    let round_ends = outcome.round_ends.iter().rev();
    let (Some(last), Some(before)) = (round_ends.clone().next(), round_ends.clone().nth(half as usize)) else {
        return Ok((kernel, apart));
    };
    let calls = u64::from(settings.timing.calls.max(rounds));
    // Of all calls, which take longer than times hold.
    let rest = u128::from(calls - u64::from(rounds)) * u128::from((*last - *before).0) / u128::from(half.max(1));
    // Folding keeps the order of ranks: the first kernel is that of rank 0.
    let end = outcome.last_ends.first().filter(|_| settings.timing.of_rank_0).unwrap_or(last);
    let each = (u128::from(end.0 + ends.0) + rest) / u128::from(calls);
    Ok((SimDuration(u64::try_from(each).unwrap_or(u64::MAX)), apart))
}

/// Whether one call alone is timed, and no loop of them.
pub(super) fn is_alone(settings: &Settings) -> bool {
    settings.cold || settings.timing.calls <= 1
}

/// Whether the last two rounds take the same time.
fn is_steady(ends: &[SimTime]) -> bool {
    let [.., first, second, third] = ends else { return false };
    let (one, other) = (second.0 - first.0, third.0 - second.0);
    one.abs_diff(other) <= other / SAME
}

/// The share of each resource's capacity that a run of `time` used.
#[expect(clippy::cast_precision_loss, reason = "an edge: for people")]
pub(super) fn utilisations(capacities: &[u64], loads: &[u128], time: SimDuration) -> Vec<f64> {
    let seconds = time.as_us().max(1e-9) / 1e6;
    (capacities.iter().zip(loads))
        .map(|(&capacity, &load)| load as f64 / WEIGHT_ONE as f64 / seconds / capacity as f64)
        .collect()
}

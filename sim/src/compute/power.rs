//! The clock under the limit of power.
//!
//! An operation takes the more energy the higher the voltage is that the clock needs, so that power grows faster than
//! speed. Where a mix of kernels would take more than the limit, the GPU lowers its clock until it does not. That takes
//! tens of milliseconds: a short run from an idle GPU still has the boost clock, a training step never.

use super::constants::Constant;
use super::gpu::{Clock, Compute};
use super::kernel::Kernel;
use super::work::Work;

/// Lowest clock, of the boost clock: below, the voltage falls no further and nothing is won (data sheets: 345 of 1980
/// MHz on Hopper, 210 of 1410 on Ampere).
const LOWEST: f64 = 0.15;
/// Halvings of the interval of clocks: to a hundred thousandth.
const HALVINGS: u32 = 17;

/// How long kernels have run when they are timed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Duty {
    /// Long enough for the clock to settle, as in training.
    Sustained,
    /// From an idle GPU: some seconds before, then some that are timed.
    Cold {
        /// Seconds before.
        warmup: f64,
        /// Seconds that are timed.
        timed: f64,
    },
}

impl Compute {
    /// Power in W that a mix of kernels, each so many times, takes at a clock.
    pub fn power(&self, mix: &[(Kernel, u64)], clock: Clock) -> f64 {
        self.watts(&self.works(mix), 1.0, clock.0)
    }

    /// The clock at which a mix of kernels, each so many times over and over, can run for ever.
    pub fn sustained(&self, mix: &[(Kernel, u64)]) -> Clock {
        self.sustained_for(mix, 1.0)
    }

    /// The same where the mix runs for a part of the time only, and the GPU waits for the rest.
    pub fn sustained_for(&self, mix: &[(Kernel, u64)], part: f64) -> Clock {
        self.settled(&self.works(mix), part)
    }

    /// The mean clock of a run of such a mix.
    pub fn mean_clock(&self, mix: &[(Kernel, u64)], run: Duty) -> Clock {
        self.mean_of(&self.works(mix), run)
    }

    fn works(&self, mix: &[(Kernel, u64)]) -> Vec<(Work, f64)> {
        mix.iter().map(|(kernel, times)| (self.work(kernel, false), *times as f64)).collect()
    }

    /// The same of kernels whose needs are known.
    pub(super) fn mean_of(&self, works: &[(Work, f64)], run: Duty) -> Clock {
        let settled = self.settled(works, 1.0);
        let Duty::Cold { warmup, timed } = run else { return settled };
        let settle = self.value(Constant::PowerSettle) * 1e-3;
        let (from, long) = (warmup / settle, timed / settle);
        // Mean over the timed part of what is left of the way from the boost clock to the settled one.
        let left = if long < 1e-6 { (-from).exp() } else { (-from).exp() * -(-long).exp_m1() / long };
        Clock(settled.0 + (1.0 - settled.0) * left)
    }

    fn settled(&self, works: &[(Work, f64)], part: f64) -> Clock {
        let limit = self.value(Constant::PowerLimit);
        let (mut low, mut high) = (LOWEST, 1.0);
        if self.watts(works, part, high) <= limit {
            return Clock::BOOST;
        }
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(low, high);
            if self.watts(works, part, middle) > limit { high = middle } else { low = middle }
        }
        Clock(low)
    }

    fn watts(&self, works: &[(Work, f64)], part: f64, clock: f64) -> f64 {
        let lower = clock.powf(self.value(Constant::PowerExponent));
        let (mut seconds, mut joules) = (0.0, 0.0);
        for (work, times) in works {
            seconds += times * work.seconds(clock);
            joules += times * (work.energy * lower + work.memory_energy);
        }
        let idle = self.value(Constant::PowerIdle);
        // Kernels beyond all numbers, or without time, are of no known power.
        let more = joules / seconds * part;
        if more.is_finite() { idle + more } else { idle }
    }
}

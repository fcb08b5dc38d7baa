//! Goodput and the best interval between checkpoints, in closed form. All times are seconds.

use serde::Serialize;

use super::error::{GoodputError, at_least, positive};

/// A job that fails, saves and restarts.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Job {
    /// Mean time between failures that stop it.
    pub mtbf: f64,
    /// How long a save stops the work.
    pub stall: f64,
    /// How long after that a save is durable: 0 where it blocks.
    pub durable: f64,
    /// From a failure to the first new step: detection, restart, load, communicators.
    pub restart: f64,
}

impl Job {
    /// Checks the times.
    ///
    /// # Errors
    /// A time between failures of zero or less, another time below zero, or any that is not finite.
    pub fn check(&self) -> Result<(), GoodputError> {
        positive("the time between failures", self.mtbf)?;
        at_least("the stall of a save", self.stall, 0.0)?;
        at_least("the time until a save is durable", self.durable, 0.0)?;
        at_least("the restart", self.restart, 0.0)
    }

    /// The interval of the highest [`Job::exact`] goodput, to double precision.
    ///
    /// The derivative is zero where `1 - x = e^(-(x + C/M))`, with `x` the interval in times between failures; the left
    /// side falls faster, so there is one such x in 0..1.
    pub fn optimal(&self) -> f64 {
        let save = self.stall / self.mtbf;
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..200 {
            let x = 0.5 * (low + high);
            // 1 - e^(-y) is -expm1(-y), exact also for a short save.
            if -f64::exp_m1(-(x + save)) > x {
                low = x;
            } else {
                high = x;
            }
        }
        0.5 * (low + high) * self.mtbf
    }

    /// Goodput with `interval` seconds of work between saves, failures exponential and at any time, also in a restart.
    ///
    /// `tau e^(-(R + D)/M) / (M (e^((tau + C)/M) - 1))`: between two failures X lies the number of saves that become
    /// durable, `floor((X - R - D) / (tau + C))`, and its mean is a geometric series.
    pub fn exact(&self, interval: f64) -> f64 {
        let cycle = interval + self.stall;
        if cycle <= 0.0 {
            return (-(self.restart + self.durable) / self.mtbf).exp();
        }
        let y = cycle / self.mtbf;
        interval / cycle * (y / y.exp_m1()) * (-(self.restart + self.durable) / self.mtbf).exp()
    }
}

/// How a checkpoint is written.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Saving {
    /// Bytes of the checkpoint, all ranks.
    pub bytes: f64,
    /// Bytes a second that storage takes from all of them.
    pub storage: f64,
    /// GPUs that each copy their part to the host first, and bytes a second of such a copy; none where saves block.
    pub host_copy: Option<(u64, f64)>,
    /// What all ranks wait for each other, in seconds.
    pub barrier: f64,
}

impl Saving {
    /// Seconds that a save stops the work, and seconds until it is durable after that.
    ///
    /// # Errors
    /// Rates of zero, negative numbers.
    pub fn times(&self) -> Result<(f64, f64), GoodputError> {
        at_least("the size of a checkpoint", self.bytes, 0.0)?;
        positive("the rate of storage", self.storage)?;
        at_least("the barrier of a save", self.barrier, 0.0)?;
        let write = self.bytes / self.storage;
        match self.host_copy {
            None => Ok((write + self.barrier, 0.0)),
            Some((gpus, rate)) => {
                positive("the GPUs that copy", gpus as f64)?;
                positive("the rate of a copy to the host", rate)?;
                Ok((self.bytes / gpus as f64 / rate + self.barrier, write))
            }
        }
    }
}

/// Spares that are enough with probability `quantile`: the quantile of a Poisson distribution, whose mean is the number of
/// failures during one repair.
///
/// # Errors
/// A mean that is negative or above a million, a quantile that is not between 0 and 1.
pub fn spares(mean: f64, quantile: f64) -> Result<u32, GoodputError> {
    const MOST: f64 = 1e6;
    at_least("the failures during a repair", mean, 0.0)?;
    if mean > MOST {
        return Err(GoodputError::Value {
            name: "the failures during a repair",
            value: mean,
            expected: "at most a million",
        });
    }
    if !(quantile > 0.0 && quantile < 1.0) {
        return Err(GoodputError::Value {
            name: "the quantile",
            value: quantile,
            expected: "a number between 0 and 1",
        });
    }
    // Terms in logarithms: e^(-mean) is no number of double precision above 745.
    let (mut term, mut sum, mut count) = (-mean, 0.0_f64, 0_u32);
    loop {
        sum += term.exp();
        if sum >= quantile || f64::from(count) > mean + 40.0 * mean.sqrt() + 100.0 {
            return Ok(count);
        }
        count += 1;
        term += mean.ln() - f64::from(count).ln();
    }
}

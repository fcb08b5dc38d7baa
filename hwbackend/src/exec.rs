//! Executors: those who run a call for real, check its result and time it.
//!
//! An executor gets a [`CallToRun`] and knows nothing of algorithms: what it runs is either the
//! schedule of the case, or a library's own way to do the call.

use std::time::Duration;

use collcast_sim::collective::{Launch, Protocol};
use collcast_sim::schedule::{Call, Schedule};
use thiserror::Error;

use crate::host::HostError;

/// One call to run.
#[derive(Clone, Copy, Debug)]
pub struct CallToRun<'a> {
    /// What is computed.
    pub call: &'a Call,
    /// How, for executors of schedules; those of libraries ignore it.
    pub schedule: Option<&'a Schedule>,
    /// How kernels are started.
    pub launch: Launch,
}

/// How long and how often to run.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Effort {
    /// Operations before the first that counts.
    pub warmup: u32,
    /// Operations of a batch, back to back; a batch gives one time per operation.
    pub iterations: u32,
    /// Batches.
    pub batches: u32,
    /// Time that the batches of one case may take together; fewer are run when they would take
    /// longer, but three at least.
    pub budget: Duration,
    /// Longest wait for a peer.
    pub patience: Duration,
}

impl Default for Effort {
    /// Enough operations a batch that the ranks' start some microseconds apart does not show,
    /// and enough batches for percentiles.
    fn default() -> Self {
        Self {
            warmup: 5,
            iterations: 100,
            batches: 21,
            budget: Duration::from_secs(2),
            patience: Duration::from_secs(2),
        }
    }
}

impl Effort {
    /// Longest wait for a GPU that starts: the host loads kernels and connects peers, which takes seconds.
    pub(crate) fn longest(&self) -> Duration {
        self.patience * 2 + Duration::from_secs(30)
    }

    /// As many operations that take about `one` as the budget holds: one to `most`.
    pub(crate) fn affords(&self, most: u32, one: Duration) -> u32 {
        let affordable = self.budget.as_secs_f64() / one.as_secs_f64().max(1e-9);
        affordable.clamp(1.0, f64::from(most.max(1))) as u32
    }

    /// Iterations and batches for an operation that takes about `one`, within the budget.
    #[must_use]
    pub fn fitted(&self, one: Duration) -> Self {
        let affordable = self.budget.as_secs_f64() / one.as_secs_f64().max(1e-9);
        let iterations = (affordable / f64::from(self.batches.max(1))).clamp(1.0, f64::from(self.iterations.max(1)));
        let batches = (affordable / iterations).clamp(3.0, f64::from(self.batches.max(3)));
        Self { iterations: iterations as u32, batches: batches as u32, ..*self }
    }
}

/// Times of one case whose result was right.
#[derive(Clone, PartialEq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Sample {
    /// Time of one operation in microseconds, of each batch: the slowest rank's.
    pub times_us: Vec<f64>,
    /// Elements compared with their exact values, over all ranks.
    pub checked: u64,
    /// The library's own prediction in microseconds, where it has one.
    pub predicted_us: Option<f64>,
}

impl Sample {
    /// The time that a share of the batches does not exceed (nearest rank), in microseconds.
    pub fn percentile(&self, percent: u32) -> f64 {
        let mut times = self.times_us.clone();
        times.sort_by(f64::total_cmp);
        let rank = (times.len() * percent as usize).div_ceil(100).max(1);
        times.get(rank - 1).copied().unwrap_or(f64::NAN)
    }

    /// The median, in microseconds.
    pub fn median_us(&self) -> f64 {
        self.percentile(50)
    }
}

/// Runs calls for real.
pub trait Executor {
    /// Runs, checks every element of every output, and times.
    ///
    /// # Errors
    /// See [`ExecError`]; a wrong element is one.
    fn run(&mut self, case: &CallToRun<'_>, effort: &Effort) -> Result<Sample, ExecError>;

    /// What it runs on: devices, driver, libraries; key and value, for people and files.
    fn facts(&self) -> Vec<(&'static str, String)>;

    /// Whether to stop, where one process of several wants to: all must stop before the same call.
    ///
    /// # Errors
    /// A process that is gone.
    fn stops(&mut self, stop: bool) -> Result<bool, ExecError> {
        Ok(stop)
    }
}

/// An element that is not what it must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// Whose output.
    pub rank: u32,
    /// Which element.
    pub element: u64,
    /// How many elements of this output are wrong.
    pub wrong: u64,
}

/// Why a run gave no time.
#[derive(Debug, Error)]
pub enum ExecError {
    /// Hardware or a library that is not there.
    #[error("{what}")]
    Missing {
        /// What.
        what: String,
        /// The way out.
        hint: String,
    },
    /// A case that this executor does not run.
    #[error("{what}")]
    Refused {
        /// What.
        what: String,
        /// The way out.
        hint: &'static str,
    },
    /// A wait of a device that took too long.
    #[error(
        "rank {rank}, channel {channel}, lane {lane} waited over {seconds} s for {what} rank {peer} in step {step}"
    )]
    Timeout {
        /// Who waited.
        rank: u32,
        /// On which channel.
        channel: u32,
        /// In which lane.
        lane: u32,
        /// In which record of its program, from 0.
        step: u32,
        /// For how long.
        seconds: u64,
        /// `data from`, `credit from` or `another lane of`.
        what: &'static str,
        /// Whom it waited for.
        peer: u32,
    },
    /// A connection with another rank that failed.
    #[error("rank {rank}, channel {channel}: the connection with rank {peer} failed: {what}")]
    Connection {
        /// Whose end.
        rank: u32,
        /// The rank at the other end.
        peer: u32,
        /// On which channel.
        channel: u32,
        /// Why.
        what: String,
    },
    /// A result that is not exact.
    #[error("wrong result: {} elements of the output of rank {} differ, the first is element {}", .0.wrong, .0.rank, .0.element)]
    Wrong(Mismatch),
    /// The host executor stopped.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A call of a library failed.
    #[error("{call} failed: {message}")]
    Library {
        /// Which call.
        call: &'static str,
        /// What the library says.
        message: String,
    },
    /// Processes that did not find or understand each other.
    #[error("{0}")]
    Rendezvous(String),
}

impl ExecError {
    /// A case that has no schedule to run.
    pub(crate) fn no_schedule() -> Self {
        Self::Refused {
            what: "this backend runs schedules, and the case has none".to_owned(),
            hint: "name an algorithm",
        }
    }
}

/// Bytes on the wire of a FIFO slot that holds `bytes` of data.
pub fn slot_bytes(protocol: Protocol, bytes: u64) -> u64 {
    match protocol {
        // Lines of 8 bytes of data and 8 of flags.
        Protocol::Ll => bytes.div_ceil(8) * 16,
        // Waves of four lines of 120 bytes of data and 8 of flag.
        Protocol::Ll128 => bytes.div_ceil(480) * 512,
        Protocol::Simple => bytes,
    }
    .next_multiple_of(512)
    .max(512)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: percentiles by hand.
    #[test]
    fn percentiles_are_nearest_ranks() {
        let sample = Sample { times_us: (1..=20).rev().map(f64::from).collect(), ..Sample::default() };
        assert_eq!((sample.percentile(5), sample.median_us(), sample.percentile(95)), (1.0, 10.0, 19.0));
    }

    /// Goal: a long operation is run seldom, a short one as often as asked.
    #[test]
    fn effort_fits_its_budget() {
        let effort = Effort::default();
        assert_eq!(effort.fitted(Duration::from_micros(10)), effort);
        let long = effort.fitted(Duration::from_millis(200));
        assert_eq!((long.iterations, long.batches), (1, 10));
        assert_eq!(effort.fitted(Duration::from_secs(9)).batches, 3);
        let warmup = [10, 500_000, 9_000_000].map(|us| effort.affords(effort.warmup, Duration::from_micros(us)));
        assert_eq!(warmup, [5, 4, 1]);
    }
}

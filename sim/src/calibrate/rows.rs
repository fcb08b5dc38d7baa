//! Measured rows, and what they are predicted to take.

use crate::call::Call;
use crate::collective::{Algorithm, Protocol};
use crate::predict::Settings;

/// One measured row, its choice resolved.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    /// Who measured it: runs of one source share their machine, stack and way of measuring.
    pub source: String,
    /// Its machine, by place among the topologies of a [`Study`](super::Study).
    pub machine: usize,
    /// Run that it belongs to: rows of one run are wrong together.
    pub run: String,
    /// The call.
    pub call: Call,
    /// Algorithm that ran.
    pub algorithm: Algorithm,
    /// Protocol that ran.
    pub protocol: Protocol,
    /// Settings, the launch mode among them.
    pub settings: Settings,
    /// Measured time of one operation, in us.
    pub time_us: f64,
    /// What NCCL's own model says, in us.
    pub nccl_us: Option<f64>,
}

/// What a sample is predicted to take.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Judged {
    /// Predicted time in us.
    pub predicted_us: f64,
    /// Logarithm of predicted over measured.
    pub residual: f64,
    /// See [`crate::predict::Prediction::bound_by`].
    pub bound: &'static str,
}

impl Judged {
    /// Predicted over measured, less 1.
    pub fn error(&self) -> f64 {
        self.residual.exp() - 1.0
    }
}

/// The mean of some values; 0 of none.
pub fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0_usize), |(s, n), v| (s + v, n + 1));
    if count == 0 { 0.0 } else { sum / count as f64 }
}

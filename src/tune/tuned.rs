//! A call with all that NCCL could do for it, and what to do.

use std::sync::Arc;

use collcast_sim::collective::{Algorithm, Collective, Launch, Protocol};
use collcast_sim::domain;
use collcast_sim::predict::Prediction;
use collcast_sim::schedule::Call;
use nalgebra::DMatrix;
use serde::Serialize;

use super::communicator::Communicator;

/// Algorithm and protocol.
pub type Pair = (Algorithm, Protocol);

/// What a comparison of two candidates rests on, the best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Measured times of both.
    Measured,
    /// Forecasts from constants that were measured.
    Predicted,
    /// Forecasts from cited constants.
    Cited,
    /// Forecasts beyond what the constants were measured with.
    Extrapolated,
}

impl Basis {
    /// That of predictions.
    pub(super) fn of<'o>(candidates: impl IntoIterator<Item = &'o Candidate>) -> Self {
        let basis = candidates.into_iter().map(|c| match c.prediction.beyond.basis() {
            domain::Basis::Predicted => Self::Predicted,
            domain::Basis::Cited => Self::Cited,
            domain::Basis::Extrapolated => Self::Extrapolated,
        });
        basis.max().unwrap_or(Self::Predicted)
    }

    /// The name in files and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Predicted => "predicted",
            Self::Cited => "cited",
            Self::Extrapolated => "extrapolated",
        }
    }
}

/// Measured times of one candidate.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Times {
    /// Their median, in microseconds.
    pub time_us: f64,
    /// How many there are.
    pub runs: usize,
    /// Standard deviation of the logarithm of one of them.
    pub deviation: f64,
}

/// What is known of a candidate from its forecast and all that was measured.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Belief {
    /// Likely time in microseconds.
    pub time_us: f64,
    /// Logarithm of the default's time over this one's.
    pub saved: f64,
    /// Standard deviation of that.
    pub doubt: f64,
}

/// Standard deviations that a gain must exceed its doubt by: 19 of 20 such gains are real.
pub(crate) const SURE: f64 = 1.645;

impl Belief {
    /// The time saved, as a fraction of the default's.
    pub fn gain(&self) -> f64 {
        1.0 - (-self.saved).exp()
    }

    /// The 90% interval of the time saved.
    pub fn interval(&self) -> (f64, f64) {
        let at = |saved: f64| -(-saved).exp_m1();
        (at(self.saved - SURE * self.doubt), at(self.saved + SURE * self.doubt))
    }

    /// Whether it is faster than the default beyond doubt.
    pub fn is_certain(&self) -> bool {
        self.saved > SURE * self.doubt
    }
}

/// One way to do a call.
#[derive(Clone, Debug, Serialize)]
pub struct Candidate {
    /// Algorithm and protocol.
    pub pair: Pair,
    /// Channels that are forced; NCCL's number otherwise.
    pub channels: Option<u32>,
    /// Channels before the bytes are dealt to them: what a table must say so that NCCL deals them as by itself.
    pub channels_most: u32,
    /// Predicted time in microseconds.
    pub predicted_us: f64,
    /// What was measured of it.
    pub measured: Option<Times>,
    /// What is known of it from both, and from what was measured of others.
    pub belief: Belief,
    /// The prediction with its interval.
    #[serde(skip)]
    pub prediction: Prediction,
}

impl Candidate {
    pub(super) fn new(
        (pair, channels): (Pair, Option<u32>),
        channels_most: u32,
        prediction: Prediction,
        measured: Option<Times>,
    ) -> Self {
        let predicted_us = prediction.time.as_us();
        Self { pair, channels, channels_most, predicted_us, measured, belief: Belief::default(), prediction }
    }
}

/// NCCL's own choice from a size on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Own {
    /// The first byte count that it holds for; 0 for the smallest.
    pub from: u64,
    /// Algorithm and protocol.
    pub pair: Pair,
    /// Channels before the bytes are dealt to them.
    pub channels: u32,
}

/// A better candidate for one call.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Advice {
    /// Index among the candidates of the call.
    pub candidate: usize,
    /// Saved time, as a fraction of what NCCL's choice takes.
    pub gain: f64,
    /// What that rests on.
    pub basis: Basis,
}

/// A call with all that NCCL could do for it, and what to do.
#[derive(Clone, Debug, Serialize)]
pub struct Tuned {
    /// Who calls.
    pub communicator: Communicator,
    /// What.
    pub collective: Collective,
    /// Size in bytes, as nccl-tests counts it.
    pub size_bytes: u64,
    /// The call.
    #[serde(skip)]
    pub call: Call,
    /// How its kernels are started.
    pub launch: Launch,
    /// What NCCL could do.
    pub candidates: Vec<Candidate>,
    /// Index of the candidate that NCCL takes by itself.
    pub default: usize,
    /// What NCCL takes by itself for all sizes of the collective, smallest first.
    #[serde(skip)]
    pub own: Arc<[Own]>,
    /// Not asked about: what is set for other sizes must not harm it.
    pub beyond: bool,
    /// How often a rank makes the call in the step that was asked about; 1 without one.
    pub in_step: u64,
    /// A better candidate, beyond doubt.
    pub advice: Option<Advice>,
    /// How what is not known of the candidates' times, as logarithms, varies together.
    #[serde(skip)]
    pub(super) covariance: DMatrix<f64>,
}

impl Tuned {
    /// Whether another call is of the same collective and communicator.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.collective == other.collective && self.communicator == other.communicator
    }

    /// Standard deviation of the logarithm of one candidate's time over another's.
    pub(super) fn doubt(&self, one: usize, other: usize) -> f64 {
        let of = |a: usize, b: usize| self.covariance[(a, b)];
        (of(one, one) + of(other, other) - 2.0 * of(one, other)).max(0.0).sqrt()
    }

    /// What NCCL takes by itself.
    pub fn default_candidate(&self) -> &Candidate {
        &self.candidates[self.default]
    }

    /// What is advised, or NCCL's own.
    pub fn taken(&self) -> &Candidate {
        &self.candidates[self.advice.as_ref().map_or(self.default, |advice| advice.candidate)]
    }

    /// Whether what is taken for another size is likely no slower here than NCCL's own choice.
    pub(super) fn bears(&self, other: &Candidate) -> bool {
        let same = |c: &&Candidate| (c.pair, c.channels) == (other.pair, other.channels);
        let known = self.candidates.iter().find(same).filter(|_| self.not_modelled().is_none());
        known.is_some_and(|candidate| self.gain(candidate) >= 0.0)
    }

    /// Whether measured times decide: a forecast does not overrule them.
    pub(crate) fn measured(&self) -> bool {
        self.default_candidate().measured.is_some() && self.timed() > 1
    }

    /// Candidates that were measured.
    pub(super) fn timed(&self) -> usize {
        self.candidates.iter().filter(|c| c.measured.is_some()).count()
    }

    /// NCCL's choice where it has no schedule here.
    pub fn not_modelled(&self) -> Option<Pair> {
        self.default_candidate().prediction.instead_of
    }

    /// Index of the candidate with the smallest time.
    pub(super) fn fastest(&self, time: impl Fn(&Candidate) -> Option<f64>) -> Option<usize> {
        let timed = self.candidates.iter().enumerate().filter_map(|(index, c)| Some((index, time(c)?)));
        timed.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(index, _)| index)
    }

    /// How a change from the default to a candidate would be judged.
    pub(super) fn basis(&self, candidate: &Candidate) -> Basis {
        let default = self.default_candidate();
        match (default.measured, candidate.measured) {
            (Some(_), Some(_)) => Basis::Measured,
            _ => Basis::of([default, candidate]),
        }
    }

    /// The time that a candidate saves, as a fraction of the default's: what is likely, and no more than was measured.
    pub(super) fn gain(&self, candidate: &Candidate) -> f64 {
        let measured = self.default_candidate().measured.zip(candidate.measured);
        let measured = measured.map(|(default, candidate)| 1.0 - candidate.time_us / default.time_us);
        measured.map_or(candidate.belief.gain(), |gain| gain.min(candidate.belief.gain()))
    }

    /// Whether what is advised rests on measured times, or gains more than the forecasts of both times are unsure by.
    pub(crate) fn is_clear(&self) -> bool {
        let (default, taken) = (self.default_candidate(), self.taken());
        let unsure = |c: &Candidate| c.prediction.high.as_us() / c.prediction.time.as_us();
        let saved = default.predicted_us / taken.predicted_us;
        default.measured.is_some() && taken.measured.is_some() || saved > unsure(default).max(unsure(taken))
    }

    /// Whether NCCL's choice was measured outside of what is forecast for it.
    pub(super) fn is_contradicted(&self) -> bool {
        let default = self.default_candidate();
        let interval = default.prediction.low.as_us()..=default.prediction.high.as_us();
        default.measured.is_some_and(|m| !interval.contains(&m.time_us))
    }
}

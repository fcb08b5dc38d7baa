//! What the doctor asks the model.

use crate::call::Call;
use crate::collective::{Algorithm, Protocol};
use crate::ids::Rank;
use crate::predict::{Choice, PredictError, Prediction, Predictor, Settings};
use crate::units::SimDuration;

/// What a measured time is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Timed {
    /// One call of a loop, as nccl-tests times it: the host's launches show.
    Loop,
    /// The kernel, as a profiler times it.
    Kernel,
}

/// What a measured row asks the model.
#[derive(Clone, PartialEq, Debug)]
pub struct Question {
    /// The call.
    pub call: Call,
    /// Communicators that do it at once, each of the next `call.ranks` ranks of the machine; 1 where it is alone.
    pub together: u32,
    /// Who chooses the algorithm.
    pub algorithm: Choice<Algorithm>,
    /// Who chooses the protocol.
    pub protocol: Choice<Protocol>,
    /// All else.
    pub settings: Settings,
    /// What its time is of.
    pub timed: Timed,
}

impl Question {
    /// What the model says.
    ///
    /// # Errors
    /// See [`PredictError`].
    pub fn predict(&self, predictor: &Predictor<'_>) -> Result<Prediction, PredictError> {
        if self.together <= 1 {
            return predictor.predict(&self.call, self.algorithm, self.protocol, &self.settings);
        }
        let ranks = self.call.ranks;
        let groups: Vec<Vec<Rank>> =
            (0..self.together).map(|group| (group * ranks..(group + 1) * ranks).map(Rank).collect()).collect();
        predictor.predict_split(&groups, &|_| self.call.clone(), (self.algorithm, self.protocol), &self.settings)
    }

    /// The time of a prediction that is comparable with its own.
    pub fn time_of(&self, prediction: &Prediction) -> SimDuration {
        match self.timed {
            Timed::Loop => prediction.time,
            Timed::Kernel => prediction.kernel,
        }
    }
}

//! One call from question to answer: chosen, proved, simulated, timed.

use super::error::PredictError;
use super::prediction::Prediction;
use super::predictor::Predictor;
use super::proof::{ProofKind, Proven};
use super::settings::{Choice, Settings};
use crate::call::Call;
use crate::collective::{Algorithm, Protocol};
use crate::engine::{Observer, Unobserved};
use crate::nccl::Plan;
use crate::schedule::msccl::Imported;
use crate::schedule::verify::verify;
use crate::schedule::{MAX_CHANNELS, Schedule, ScheduleError};

impl Predictor<'_> {
    /// Predicts a call; `auto` and `best` are resolved first.
    ///
    /// # Errors
    /// See [`PredictError`].
    pub fn predict(
        &self,
        call: &Call,
        algorithm: Choice<Algorithm>,
        protocol: Choice<Protocol>,
        settings: &Settings,
    ) -> Result<Prediction, PredictError> {
        self.check_ranks(call, settings)?;
        self.check_type(call, settings)?;
        // NCCL has no rule for the protocol of an algorithm that it does not have.
        let ours = algorithm == Choice::Forced(Algorithm::CollTree) && protocol == Choice::Auto;
        let protocol = if ours { Choice::Best } else { protocol };
        if algorithm == Choice::Best || protocol == Choice::Best {
            let mut best: Option<Prediction> = None;
            for (a, p) in self.candidates(call, algorithm, protocol, settings) {
                let prediction = self.predict_one(call, a, p, settings, &mut Unobserved)?;
                if best.as_ref().is_none_or(|b| prediction.time < b.time) {
                    best = Some(prediction);
                }
            }
            return best.ok_or(PredictError::NothingToChoose(call.collective));
        }
        let resolved = self.resolve(call, algorithm, protocol, settings)?;
        let settings = Settings { channels: settings.channels.or(resolved.channels), ..*settings };
        let prediction = self.predict_one(call, resolved.algorithm, resolved.protocol, &settings, &mut Unobserved)?;
        let (layer, instead_of, tuned_channels) = (resolved.layer, resolved.instead_of, resolved.channels);
        Ok(Prediction { layer, instead_of, tuned_channels, ..prediction })
    }

    /// The schedule of a call.
    ///
    /// # Errors
    /// A call without one.
    pub fn schedule(
        &self,
        call: &Call,
        algorithm: Algorithm,
        protocol: Protocol,
        settings: &Settings,
    ) -> Result<Schedule, PredictError> {
        self.check_ranks(call, settings)?;
        if let Some(channels) = settings.channels.filter(|c| !(1..=MAX_CHANNELS).contains(c)) {
            return Err(ScheduleError::Channels(channels).into());
        }
        self.check_machine(call, algorithm, settings)?;
        // Who forces an algorithm has on what it needs.
        let mut settings = *settings;
        let several = self.order(call.ranks, &settings).hosts.len() > 1;
        match algorithm {
            Algorithm::Nvls => {
                settings.nccl.nvls = Some(true);
                settings.nccl.collnet |= several;
            }
            Algorithm::NvlsTree => settings.nccl.nvls = Some(true),
            Algorithm::CollnetDirect | Algorithm::CollnetChain => settings.nccl.collnet = true,
            _ => {}
        }
        let plan = Plan::new(call, algorithm, protocol, &self.limits_of(call, algorithm, protocol, &settings));
        let ranks = call.ranks.min(self.topology.ranks());
        let (call, plan) = plan.of_ranks(call, ranks);
        Ok(Schedule::new(call, plan, &self.order(ranks, &settings))?)
    }

    /// Predicts a call with a given algorithm and protocol, watched by `observer`, which needs
    /// `settings.fold` off to see every lane.
    ///
    /// # Errors
    /// See [`PredictError`].
    pub fn predict_one<O: Observer>(
        &self,
        call: &Call,
        algorithm: Algorithm,
        protocol: Protocol,
        settings: &Settings,
        observer: &mut O,
    ) -> Result<Prediction, PredictError> {
        let proven = self.proven(call, algorithm, protocol, settings)?;
        let mut parts = Vec::new();
        match self.grow(&proven, settings, &mut parts) {
            Some(prediction) => Ok(prediction),
            // What is too large as a whole may be forecast from parts that are nearly as large.
            None => self.simulate(&proven, settings, observer).or_else(|error| {
                let large = error.is_too_large().then(|| self.grow_too_large(&proven, settings, &mut parts)).flatten();
                large.ok_or(error)
            }),
        }
    }

    /// The schedule of a call by an imported algorithm.
    ///
    /// # Errors
    /// A call that it is not for, or too few GPUs.
    pub fn imported_schedule(
        &self,
        imported: &Imported,
        call: &Call,
        settings: &Settings,
    ) -> Result<Schedule, PredictError> {
        self.check_ranks(call, settings)?;
        Ok(imported.schedule(call.clone(), &self.limits(call.ranks, settings))?)
    }

    /// Predicts a call by an imported algorithm; `observer` as in [`Self::predict_one`].
    ///
    /// # Errors
    /// See [`PredictError`]; an algorithm that is wrong is [`PredictError::Disproved`].
    pub fn predict_imported<O: Observer>(
        &self,
        imported: &Imported,
        call: &Call,
        settings: &Settings,
        observer: &mut O,
    ) -> Result<Prediction, PredictError> {
        let schedule = self.imported_schedule(imported, call, settings)?;
        let disproved =
            |error| PredictError::Disproved { name: imported.name.clone(), file: imported.file.clone(), error };
        // Three loops show what every loop does.
        let twin = imported.small_twin(&schedule);
        let proof = verify(twin.as_ref().unwrap_or(&schedule)).map_err(disproved)?;
        let proof = ProofKind::new(&schedule, twin.as_ref(), proof);
        self.simulate(&Proven { schedule, proof }, settings, observer)
    }
}

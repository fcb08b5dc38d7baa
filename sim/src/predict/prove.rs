//! Proves a schedule before it is simulated: itself where that is short, else its pattern, once.

use std::sync::{Arc, PoisonError};

use super::error::PredictError;
use super::predictor::Predictor;
use super::proof::{ProofKind, Proven, describe};
use super::settings::Settings;
use crate::call::Call;
use crate::collective::{Algorithm, Protocol};
use crate::schedule::verify::verify;
use crate::schedule::{Pattern, Schedule};

/// Slices up to which a schedule is proved itself.
const PROOF_SLICES: u64 = 4_000;

impl Predictor<'_> {
    /// The schedule of a call, proved.
    pub(crate) fn proven(
        &self,
        call: &Call,
        algorithm: Algorithm,
        protocol: Protocol,
        settings: &Settings,
    ) -> Result<Proven, PredictError> {
        let schedule = self.schedule(call, algorithm, protocol, settings)?;
        let proof = self.prove(&schedule)?;
        Ok(Proven { schedule, proof })
    }

    /// Proves a schedule, or its pattern; each pattern once.
    pub(super) fn prove(&self, schedule: &Schedule) -> Result<ProofKind, PredictError> {
        let unproved = |error| PredictError::Unproved { what: describe(schedule), error };
        let long = schedule.slices().is_some_and(|slices| slices > PROOF_SLICES);
        let pattern = if long { Pattern::of(schedule)? } else { None };
        let Some(pattern) = pattern else {
            return Ok(ProofKind::new(schedule, None, verify(schedule).map_err(unproved)?));
        };
        let twin = pattern.twin()?;
        let known =
            Arc::clone(self.proofs.0.lock().unwrap_or_else(PoisonError::into_inner).entry(pattern).or_default());
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        let proof = match *known {
            Some(proof) => proof,
            None => *known.insert(verify(&twin).map_err(unproved)?),
        };
        Ok(ProofKind::new(schedule, Some(&twin), proof))
    }
}

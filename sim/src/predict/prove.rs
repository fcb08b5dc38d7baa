//! Proves a schedule before it is simulated: itself where that is short, else its pattern, once.

use super::error::PredictError;
use super::predictor::Predictor;
use super::proof::{ProofKind, Proven, describe};
use super::settings::Settings;
use crate::call::Call;
use crate::collective::{Algorithm, Protocol};
use crate::memo::Memo;
use crate::schedule::verify::{Proof, VerifyError, verify};
use crate::schedule::{Pattern, Schedule};

/// Slices up to which a schedule is proved itself.
const PROOF_SLICES: u64 = 4_000;

/// Proofs of this process, at some 10 KB each: they know no machine.
static PROOFS: Memo<Pattern, Result<Proof, VerifyError>> = Memo::new(4096);

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

    /// Proves a schedule, or its pattern; each once.
    pub(super) fn prove(&self, schedule: &Schedule) -> Result<ProofKind, PredictError> {
        let unproved = |error| PredictError::Unproved { what: describe(schedule), error };
        let long = schedule.slices().is_some_and(|slices| slices > PROOF_SLICES);
        let pattern = if long { Pattern::of(schedule)? } else { Pattern::itself(schedule) };
        let Some(pattern) = pattern else {
            return Ok(ProofKind::new(schedule, None, verify(schedule).map_err(unproved)?));
        };
        let twin = if long { Some(pattern.twin()?) } else { None };
        let proof = PROOFS.get(pattern, || verify(twin.as_ref().unwrap_or(schedule))).map_err(unproved)?;
        Ok(ProofKind::new(schedule, twin.as_ref(), proof))
    }
}

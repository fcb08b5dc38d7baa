//! Proves a schedule before it is simulated: itself where that is short, else its pattern, once.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use rustc_hash::FxHashMap;

use super::error::PredictError;
use super::predictor::Predictor;
use super::proof::{ProofKind, Proven, describe};
use super::settings::Settings;
use crate::call::Call;
use crate::collective::{Algorithm, Protocol};
use crate::schedule::verify::{Proof, verify};
use crate::schedule::{Pattern, Schedule};

/// Slices up to which a schedule is proved itself.
const PROOF_SLICES: u64 = 4_000;

/// The proof of a pattern, where it is there; locked while someone proves it.
type Known = Arc<Mutex<Option<Proof>>>;
/// Proofs of this process: they know no machine.
static PROOFS: LazyLock<Mutex<FxHashMap<Pattern, Known>>> = LazyLock::new(Mutex::default);
/// How many of them are remembered, at some 10 KB each.
const MOST_PROOFS: usize = 4096;

/// Where the proof of a pattern is.
fn place(pattern: Pattern) -> Known {
    let mut proofs = PROOFS.lock().unwrap_or_else(PoisonError::into_inner);
    if proofs.len() >= MOST_PROOFS && !proofs.contains_key(&pattern) {
        return Known::default();
    }
    Arc::clone(proofs.entry(pattern).or_default())
}

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
        let known = place(pattern);
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        let proof = match *known {
            Some(proof) => proof,
            None => *known.insert(verify(twin.as_ref().unwrap_or(schedule)).map_err(unproved)?),
        };
        Ok(ProofKind::new(schedule, twin.as_ref(), proof))
    }
}

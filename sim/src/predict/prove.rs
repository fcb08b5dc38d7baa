//! Proves a schedule before it is simulated: itself where that is short, else its pattern, once.

use std::fmt;
use std::sync::{Arc, PoisonError};

use super::simulate::describe;
use super::{PredictError, Predictor, Settings};
use crate::collective::{Algorithm, Protocol};
use crate::schedule::verify::{Proof, verify};
use crate::schedule::{Call, Pattern, Schedule};
use crate::units::Bytes;

/// What was proved of a schedule, and so holds of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProofKind {
    /// This very schedule, all its slices.
    Proved {
        /// Whether races between lanes were searched too.
        races: bool,
    },
    /// Its pattern, on a smaller call: see [`Pattern`] for what that has in common with it.
    ProvedPattern {
        /// Ranks of the smaller call.
        ranks: u32,
        /// Those of the schedule.
        of: u32,
        /// Size of the smaller call.
        size: Bytes,
        /// Whether races between lanes were searched too.
        races: bool,
    },
}

impl ProofKind {
    /// That of a schedule, by a proof of its twin, or of itself.
    pub(super) fn new(schedule: &Schedule, twin: Option<&Schedule>, proof: Proof) -> Self {
        let (of, races) = (schedule.call.ranks, proof.races_checked);
        match twin.map(|twin| &twin.call) {
            Some(call) => Self::ProvedPattern { ranks: call.ranks, of, size: call.size(), races },
            None => Self::Proved { races },
        }
    }

    /// Of two schedules that run as one, what was proved of the one of which less was.
    #[must_use]
    pub(super) fn least(self, other: Self) -> Self {
        // How far a proof goes: itself, then many ranks, then large sizes.
        let reach = |proof| match proof {
            Self::Proved { races } => (races, u32::MAX, Bytes(u64::MAX)),
            Self::ProvedPattern { ranks, size, races, .. } => (races, ranks, size),
        };
        if reach(other) < reach(self) { other } else { self }
    }
}

impl fmt::Display for ProofKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let same = "same orders, roles and FIFO depth";
        let races = match *self {
            Self::Proved { races } => {
                f.write_str("proved at this size")?;
                races
            }
            Self::ProvedPattern { ranks, of, size, races } if ranks == of => {
                write!(f, "proved on its {ranks} ranks at {size} ({same})")?;
                races
            }
            Self::ProvedPattern { ranks, size, races, .. } => {
                write!(f, "proved on {ranks} ranks of the same pattern at {size} ({same})")?;
                races
            }
        };
        if races { Ok(()) } else { f.write_str(", but for races between lanes") }
    }
}

/// A schedule and how it was proved.
#[derive(Debug)]
pub(crate) struct Proven {
    pub(crate) schedule: Schedule,
    pub(crate) proof: ProofKind,
}

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
        let known = Arc::clone(self.proofs.lock().unwrap_or_else(PoisonError::into_inner).entry(pattern).or_default());
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        let proof = match *known {
            Some(proof) => proof,
            None => *known.insert(verify(&twin).map_err(unproved)?),
        };
        Ok(ProofKind::new(schedule, Some(&twin), proof))
    }
}

//! How a schedule was proved.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::schedule::Schedule;
use crate::schedule::verify::Proof;
use crate::units::Bytes;

/// What was proved of a schedule, and so holds of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ProofKind {
    /// This very schedule, all its slices.
    Proved {
        /// Whether races between lanes were searched too.
        races: bool,
    },
    /// Its pattern, on a smaller call: see [`crate::schedule::Pattern`] for what that has in common with it.
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

/// A schedule in a few words, for messages.
pub(super) fn describe(schedule: &Schedule) -> String {
    let (call, plan) = (&schedule.call, &schedule.plan);
    format!(
        "{} {}/{}, {} ranks, {} channels, {}",
        call.collective,
        plan.algorithm,
        plan.protocol,
        call.ranks,
        plan.channels,
        call.size()
    )
}

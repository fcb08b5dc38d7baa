//! Why a call has no schedule.

use thiserror::Error;

use super::valid::{MAX_CHANNELS, protocol_names};
use crate::call::CallError;
use crate::collective::{Algorithm, Collective, DataType, Protocol, ReduceOp};

/// A call that has no schedule.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum ScheduleError {
    /// A call without a meaning.
    #[error(transparent)]
    Call(#[from] CallError),
    /// No channels, or too many.
    #[error("a schedule needs 1 to {MAX_CHANNELS} channels, not {0}")]
    Channels(u32),
    /// An algorithm that does not do this collective, or not yet.
    #[error("{algorithm} does not do {collective} here; {collective} can use: {valid}")]
    Unsupported {
        /// The algorithm asked for.
        algorithm: Algorithm,
        /// The collective asked for.
        collective: Collective,
        /// What would work.
        valid: String,
    },
    /// Ranks or hosts that the algorithm is not made for.
    #[error("{algorithm} needs {needs}; here {have}")]
    Shape {
        /// The algorithm.
        algorithm: Algorithm,
        /// What it needs.
        needs: &'static str,
        /// What there is.
        have: String,
    },
    /// A reduction that switches do not do.
    #[error("{algorithm} cannot do {op} of {dtype}: {able}")]
    InSwitch {
        /// The algorithm.
        algorithm: Algorithm,
        /// The reduction.
        op: ReduceOp,
        /// The element type.
        dtype: DataType,
        /// What the switches can.
        able: &'static str,
    },
    /// A protocol that the algorithm has no kernel for.
    #[error("{algorithm} has no {protocol} kernel; it has {}", protocol_names(*algorithm))]
    NoKernel {
        /// The algorithm.
        algorithm: Algorithm,
        /// The protocol.
        protocol: Protocol,
    },
}

//! What the doctor asks the model.

use crate::call::Call;
use crate::collective::{Algorithm, Protocol};
use crate::predict::{Choice, Settings};

/// What a measured row asks the model.
#[derive(Clone, PartialEq, Debug)]
pub struct Question {
    /// The call.
    pub call: Call,
    /// Who chooses the algorithm.
    pub algorithm: Choice<Algorithm>,
    /// Who chooses the protocol.
    pub protocol: Choice<Protocol>,
    /// All else.
    pub settings: Settings,
}

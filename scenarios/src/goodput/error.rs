//! What is wrong with a question about goodput.

use thiserror::Error;

/// Why goodput cannot be said.
#[derive(Debug, Error, Clone, PartialEq)]
pub enum GoodputError {
    /// A number that has no meaning.
    #[error("{name} is {value}; expected {expected}")]
    Value {
        /// Which one.
        name: &'static str,
        /// What was given.
        value: f64,
        /// What it can be.
        expected: &'static str,
    },
    /// More events than are simulated.
    #[error("the simulation has more than {limit} events; {hint}")]
    TooLong {
        /// Most events.
        limit: u64,
        /// The way out.
        hint: &'static str,
    },
}

/// A number that is finite and not below `least`.
pub(super) fn at_least(name: &'static str, value: f64, least: f64) -> Result<(), GoodputError> {
    if value.is_finite() && value >= least {
        return Ok(());
    }
    Err(GoodputError::Value { name, value, expected: "a finite number, not negative" })
}

/// A number that is finite and above zero.
pub(super) fn positive(name: &'static str, value: f64) -> Result<(), GoodputError> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(GoodputError::Value { name, value, expected: "a finite number above zero" })
}

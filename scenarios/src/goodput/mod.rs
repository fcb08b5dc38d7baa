//! Failures, checkpoints and what is left of the time: the share of it that makes progress (goodput).
//!
//! [`Rates`] says how often what fails; [`Job`] has the formulas for one job; [`simulate`] draws failures, for what no
//! formula covers: spares, repairs, stragglers, and the spread of the finishing time.

mod error;
mod formulas;
mod rates;
mod simulate;

pub use error::GoodputError;
pub use formulas::{Job, Saving, spares};
pub use rates::{Component, Fleet, Per, Rates, Slow, names, text};
pub use simulate::{Outcome, Stragglers, WholeRun, simulate};

#[cfg(test)]
mod tests;

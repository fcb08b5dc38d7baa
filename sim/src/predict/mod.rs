//! One prediction from machine to time: choose, prove, simulate, time.
//!
//! [`Predictor::resolve`] says by which algorithm and protocol a call runs (`choose`), its schedule is proved
//! (`prove`), laid on the machine and run (`simulate`), and what the run took becomes the time that a loop of such calls
//! shows, with its interval (`time`). `call` is that way for one call, `group` for several in one kernel; over many hosts it
//! is forecast from fewer of them (`grow`).

mod busy;
mod call;
mod choose;
mod error;
mod group;
mod grow;
mod grown;
mod parts;
mod prediction;
mod predictor;
mod proof;
mod prove;
mod settings;
mod simulate;
mod time;

pub use choose::Resolved;
pub use error::PredictError;
pub use group::{GroupCall, GroupPrediction, MOST_CALLS};
pub use grown::Grown;
pub use prediction::{LinkUse, Prediction, Shares, Warning};
pub use predictor::Predictor;
pub use proof::ProofKind;
pub(crate) use proof::Proven;
pub use settings::{Choice, Settings, Whole};
pub(crate) use time::Pace;

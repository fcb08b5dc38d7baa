//! How long does a transfer between two memories take, and by which way?
//!
//! [`transfer()`] forecasts every way from the places of a [`Request`] to those at the other end: each by itself, and those
//! that are asked for together.

mod beside;
mod outcome;
mod places;
mod request;
mod run;

pub use beside::Beside;
pub use outcome::{Outcome, Row};
pub use places::places;
pub use request::Request;
pub(crate) use run::some_drives;
pub use run::transfer;

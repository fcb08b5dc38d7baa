//! How long do users wait for a model that is served by so many GPUs, and who should prefill and who decode?
//!
//! [`serve()`] runs the requests of a [`Request`] through workers of a [`Fleet`]. [`split()`] looks for the best fleet of so
//! many workers. [`break_even()`] says from which prompt on it pays to keep a cache in place of computing it again.

mod break_even;
mod fleet;
mod outcome;
mod request;
mod run;
mod setup;
mod split;

pub use break_even::{BreakEven, Length, Published, break_even};
pub use fleet::{Fleet, Group};
pub use outcome::{Outcome, Phase, WorkerRow};
pub use request::{Load, Request};
pub use run::serve;
pub use split::{Candidate, Split, split};

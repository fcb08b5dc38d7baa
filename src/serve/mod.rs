//! How long do users wait for a model that is served by so many GPUs, and who should prefill and who decode?
//!
//! [`serve()`] runs the requests of a [`Request`] through workers of a [`Fleet`]. [`split()`] looks for the best fleet of so
//! many workers, [`smallest()`] for the one with the fewest GPUs that meets an objective. [`compare()`] runs the same on several
//! machines. [`break_even()`] says from which prompt on it pays to keep a cache in place of computing it again.

mod alone;
mod bound;
mod break_even;
mod contention;
mod fleet;
mod hand_off;
mod machines;
mod outcome;
mod request;
mod run;
mod served;
mod setup;
mod smallest;
mod split;

pub use alone::Alone;
pub use break_even::{BreakEven, Length, Published, break_even};
pub use fleet::{Fleet, Group};
pub use machines::{Compared, Machines, Row, compare};
pub use outcome::{Outcome, Phase, WorkerRow};
pub use request::{Load, Request};
pub use run::serve;
pub use smallest::{Layout, Sized, Smallest, smallest};
pub use split::{Candidate, Split, split};

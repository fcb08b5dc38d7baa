//! Whether a machine gives the bus bandwidth that it should: bands of sizes against what is expected of them.
//!
//! What is expected is a forecast, or another run that is known to be good. Neighbouring sizes are judged together, and
//! never a single row: by their median, against what healthy machines of the kind were off by ([`Doubt`]), what known
//! noise leaves, and how far the run's own repeats lie apart.

mod expected;
mod judge;
mod kind;
mod part;
mod reach;
mod reference;
mod run;
pub mod suspects;
mod trials;

pub(crate) use expected::{OTHER_GPUS, counted, runs_of};
pub use judge::{Band, Gate, Health, Judged, Limits, Line, PLATEAU, TOO_FAST, judge};
pub use kind::{Doubt, Kind, Unseen};
pub use part::{Part, State};
pub use reach::{Reached, of_same, reached};
pub use reference::{Beside, Reference, against};
pub(crate) use reference::{How, places};
pub use run::{Point, Run};
pub(crate) use run::{Said, how as said};
pub use trials::{compared, trials};

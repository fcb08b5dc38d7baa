//! What NCCL itself predicts and picks: its cost table, its choice and who made it.
//!
//! Restated from NCCL 2.8 to 2.30. It is a baseline that our prediction must beat, and what
//! `auto` resolves through, in NCCL's order: environment ([`settings`]), tuner plugin
//! ([`tuner`]), cost table ([`cost`]). Everything starts from the graphs that NCCL's search finds
//! ([`graphs`]).
//!
//! Not modelled: kernels for symmetric memory, copy-engine collectives and the CTA policies that
//! lead to them; settings that ask for these are reported ([`settings::Environment`]).

pub mod aws;
pub mod choice;
mod constants;
pub mod cost;
pub mod graphs;
pub mod search;
pub mod selection;
pub mod settings;
pub mod tuner;
pub mod version;

pub use choice::{Candidate, Decision, Layer, NothingLeft, shared_choices};
pub use cost::{Cell, Cost, Model};
pub use graphs::Graphs;
pub use selection::{ALGORITHMS, FUNCTIONS, Selection, SelectionError};
pub use settings::{Environment, NcclSettings, is_read};
pub use tuner::{CsvTuner, Tuner};
pub use version::Version;

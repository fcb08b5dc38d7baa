//! What NCCL decides: channels and their NICs, transports, algorithm and protocol, and who decided.
//!
//! Restated from NCCL 2.8 to 2.30. Its cost model is a baseline that our prediction must beat, and
//! what `auto` resolves through, in NCCL's order: environment ([`settings`]), tuner plugin
//! ([`tuner`]), cost table ([`cost`]). Everything starts from the graphs that NCCL's search finds
//! ([`graphs`]).
//!
//! Not modelled: kernels for symmetric memory, copy-engine collectives and the CTA policies that
//! lead to them; settings that ask for these are reported ([`settings::Environment`]).

pub mod aws;
pub mod choice;
mod constants;
pub mod cost;
pub(crate) mod devices;
pub mod graphs;
mod path;
pub mod rules;
pub mod search;
pub mod selection;
pub mod settings;
mod tables;
mod transport;
mod transport_env;
pub mod tuner;
pub mod version;

pub use choice::{Candidate, Decision, Layer, NothingLeft, shared_choices};
pub use cost::{Cell, Cost, Model};
pub use graphs::Graphs;
pub use path::PathClass;
pub use rules::Rules;
pub use selection::{ALGORITHMS, FUNCTIONS, Selection, SelectionError};
pub use settings::{Environment, NcclSettings, is_read};
pub use transport::{CrossNic, Interface, NicSet, NicsPerGpu, Ports, Transport};
pub use transport_env::TransportError;
pub use tuner::{CsvTuner, Tuner};
pub use version::Version;

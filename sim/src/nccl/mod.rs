//! What NCCL decides: channels and their NICs, transports, algorithm and protocol, who decided, and how calls are cut.
//!
//! Restated from NCCL 2.8 to 2.30. Its cost model is a baseline that our prediction must beat, and
//! what `auto` resolves through, in NCCL's order: environment ([`settings`]), tuner plugin
//! ([`tuner`]), cost table ([`cost`]). Everything starts from the graphs that NCCL's search finds
//! ([`graphs`]). What is chosen it cuts to channels, chunks and threads ([`Plan`]), alone or with others of a group
//! ([`dealing`]); what only old versions do is in one file, `old`.
//!
//! Nothing here knows what a schedule or a network is: both ask it.
//!
//! Not modelled: kernels for symmetric memory, copy-engine collectives and the CTA policies that
//! lead to them; settings that ask for these are reported ([`settings::Environment`]).

pub mod aws;
pub mod choice;
mod constants;
pub mod cost;
mod cut;
pub mod dealing;
pub(crate) mod devices;
pub mod graphs;
pub mod nvlink;
mod old;
pub mod parameters;
mod path;
pub mod plan;
pub mod plugin;
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
pub use cut::Limits;
pub use graphs::Graphs;
pub use parameters::{Parameter, is_read};
pub use path::PathClass;
pub use plan::Plan;
pub use rules::Rules;
pub use selection::{ALGORITHMS, FUNCTIONS, Selection, SelectionError};
pub use settings::{Environment, NcclSettings};
pub use transport::{CrossNic, Interface, NicSet, NicsPerGpu, Ports, Transport};
pub use transport_env::TransportError;
pub use tuner::{CsvTuner, Tuner, TunerKind};
pub use version::{NotAVersion, Version};

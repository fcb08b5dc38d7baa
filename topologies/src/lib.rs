//! Machines as data: built-ins, importers, generators of fabrics.
//!
//! Every reader gives the same checked values, [`cluster::ClusterSpec`] made of
//! [`host::HostSpec`], and [`cluster::ClusterSpec::build`] draws the graph. Start with
//! [`builtin::load_any`]; a new machine is a file in `data/`.
//!
//! Readers are total: any bytes give a value or an error with its place, within bounded time
//! and memory. Only functions that take a path open files.

pub mod astra;
pub mod builtin;
pub mod catalogue;
pub mod cluster;
pub mod error;
pub mod exception;
pub mod export;
pub mod fabric;
pub mod file;
pub mod graph;
pub mod host;
pub mod hostlist;
pub mod import;
pub mod input;
pub mod listed;
pub mod log;
pub mod lstopo;
pub mod placement;
mod plan;
mod raw;
pub mod smi;
mod texts;
pub mod xml;

pub use builtin::{load, load_any};
pub use cluster::ClusterSpec;
pub use error::TopologiesError;
pub use import::{Imported, import_file};

/// A commented topology file to start from.
pub const TEMPLATE: &str = include_str!("../data/template.toml");

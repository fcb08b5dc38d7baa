//! Chakra execution traces (MLCommons), a file a rank: into an [`OpGraph`](collcast_sim::workload::OpGraph) and out of one.
//!
//! A file is length-delimited protobuf, `GlobalMetadata` and then `Node`s (`et_def.proto`). [`Reader`] takes computations by
//! their recorded time, collectives and messages by their sizes and groups, and dependencies; [`write()`] is the way back.

mod error;
mod names;
mod node;
mod order;
mod read;
#[cfg(test)]
mod tests;
mod wire;
mod write;

pub use error::ChakraError;
pub use read::{Reader, Recorded};
pub use write::write;

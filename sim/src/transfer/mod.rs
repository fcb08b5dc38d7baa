//! Transfers between two memories: caches of keys and values on their way from GPU to GPU, to host memory and to drives.
//!
//! [`ways`] lists by which back ends bytes can go from one [`Place`] to another, in the order in which NIXL prefers them. A
//! [`Way`] is one or several [`Stage`]s with buffers between them. [`run`] sends [`Load`]s by their ways: each piece of a
//! stage is a task of the engine, which shares links, host memory, drives and NICs among all that use them.

mod load;
mod place;
mod way;

pub use load::{Finished, Load, TransferError, run};
pub use place::Place;
pub use way::{Backend, Fleet, Stage, Used, Way, ways};

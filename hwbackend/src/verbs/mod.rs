//! Runs schedules over RDMA verbs, one process a rank: every connection of the schedule is one of reliable
//! queue pairs, its FIFO lies in registered host memory of the receiver.
//!
//! It knows records ([`crate::flat`]) and no algorithm. `lanes` pulls them, `wires` has slots and credits, `lines` small
//! slices. `device` and `pair` are what is used of libibverbs, `memory` what NICs reach, `reach` how they do of a GPU.
//! `numbers` knows elements, `probe` asks NICs what they do. All of it needs the feature `verbs`; without it there is no way
//! to open an executor but the error that says so.

#![allow(unsafe_code)] // Verbs are raw pointers.

#[cfg(not(feature = "verbs"))]
mod absent;
// What needs no NIC is tested in every build.
#[cfg(any(test, feature = "verbs"))]
#[cfg_attr(not(feature = "verbs"), allow(dead_code))]
mod acknowledgement;
#[cfg(any(test, feature = "verbs"))]
#[cfg_attr(not(feature = "verbs"), allow(dead_code))]
mod alone;
#[cfg(feature = "verbs")]
mod device;
#[cfg(feature = "verbs")]
mod lanes;
#[cfg(any(test, feature = "verbs"))]
#[cfg_attr(not(feature = "verbs"), allow(dead_code))]
mod lines;
mod measured;
#[cfg(feature = "verbs")]
mod memory;
#[cfg(any(test, feature = "verbs"))]
#[cfg_attr(not(feature = "verbs"), allow(dead_code))]
mod numbers;
mod options;
#[cfg(feature = "verbs")]
mod pair;
#[cfg(feature = "verbs")]
mod probe;
#[cfg(any(test, feature = "verbs"))]
#[cfg_attr(not(feature = "verbs"), allow(dead_code))]
mod reach;
#[cfg(feature = "verbs")]
mod run;
#[cfg(feature = "verbs")]
mod wires;

#[cfg(not(feature = "verbs"))]
pub use absent::Verbs;
pub use measured::{Kind, Measured};
pub use options::{Options, Place};
#[cfg(feature = "verbs")]
pub use run::Verbs;

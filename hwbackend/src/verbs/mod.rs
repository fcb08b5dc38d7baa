//! Runs schedules over RDMA verbs, one process a rank: every connection of the schedule is one of reliable
//! queue pairs, its FIFO lies in registered host memory of the receiver.
//!
//! It knows records ([`crate::flat`]) and no algorithm. `lanes` pulls them, `wires` has slots and credits, `lines` small
//! slices. `ibverbs` is libibverbs, found at run time, `device` and `pair` what is used of it, `memory` what NICs reach, `reach`
//! how they do of a GPU. `numbers` knows elements, `probe` asks NICs what they do.

#![allow(unsafe_code)] // Verbs are raw pointers.

mod acknowledgement;
mod alone;
mod device;
mod ibverbs;
mod lanes;
mod lines;
mod measured;
mod memory;
mod numbers;
mod options;
mod pair;
mod probe;
mod reach;
mod run;
mod wires;

pub use measured::{Kind, Measured};
pub use options::{Options, Place};
pub use run::Verbs;

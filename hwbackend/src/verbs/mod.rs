//! Runs schedules over RDMA verbs, one process a rank: every connection of the schedule is one of reliable
//! queue pairs, its FIFO lies in registered host memory of the receiver.
//!
//! It knows records ([`crate::flat`]) and no algorithm. `lanes` pulls them, `wires` has slots and credits,
//! `device` is what is used of libibverbs, `numbers` knows elements. All of it needs the feature `verbs`;
//! without it there is no way to open an executor but the error that says so.

#![allow(unsafe_code)] // Verbs are raw pointers.

#[cfg(not(feature = "verbs"))]
mod absent;
#[cfg(feature = "verbs")]
mod device;
#[cfg(feature = "verbs")]
mod lanes;
#[cfg(feature = "verbs")]
mod numbers;
#[cfg(feature = "verbs")]
mod run;
#[cfg(feature = "verbs")]
mod wires;

#[cfg(not(feature = "verbs"))]
pub use absent::Verbs;
#[cfg(feature = "verbs")]
pub use run::Verbs;

/// How to use NICs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Names of the NICs of this process, such as `mlx5_0`, which its queue pairs get in turn. Where none is
    /// named: one of those whose port is up, by the index of the process on its host.
    pub nics: Vec<String>,
    /// Queue pairs of a connection; its slices go over them in turn.
    pub qps: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { nics: Vec::new(), qps: 1 }
    }
}

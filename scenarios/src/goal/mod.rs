//! GOAL schedules in their text form and in LogGOPSim's binary one, as LogGOPSim and ATLAHS run them: into an
//! [`OpGraph`](collcast_sim::workload::OpGraph), and out of a program of messages or a step.
//!
//! A rank has sends, receives and calculations; `requires` says after whose end an operation may start, `irequires` after
//! whose start. Operations without either start at once. [`read()`] and [`write()`] are ways between text and [`Goal`], and
//! [`Goal::graph`] makes a workload of it.
//!
//! # Source
//! T. Hoefler, C. Siebert, A. Lumsdaine, "Group Operation Assembly Language", ICPP 2009, and the grammar that LogGOPSim's
//! converter reads.

mod binary;
mod graph;
mod model;
mod read;
mod step;
#[cfg(test)]
mod tests;
mod write;

pub use binary::{from_binary, is_binary, to_binary};
pub use graph::Run;
pub use model::{DEPENDENCIES_MAX, Goal, GoalError, OPS_MAX, Operation, RANKS_MAX, What};
pub use read::{looks_like, read};
pub use write::write;

//! How ranks share a transformer: sizes of the groups, micro-batches, and the rules that they have to follow.
//!
//! [`Parallel::parse`] reads `tp=4,pp=8,dp=2`; [`Parallel::check`] names each broken rule and the nearest layouts that
//! work; [`Axis`] says which ranks form each group.

mod check;
mod groups;
mod layout;
mod nearest;
mod parse;
mod recompute;
mod rules;

pub use check::Refused;
pub use groups::Axis;
pub use layout::{MAX_RANKS, Parallel, Schedule, Split};
pub use parse::ParallelError;
pub use recompute::{Module, Modules, Recompute};
pub use rules::Violation;

#[cfg(test)]
mod tests;

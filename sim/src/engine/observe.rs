//! Watching a run.

use crate::units::SimTime;

/// Watches a run. All methods do nothing by default.
pub trait Observer {
    /// A lane spent `from..to` on a slice of `bytes` of an instruction.
    fn slice(&mut self, _lane: u32, _instruction: usize, _bytes: u64, _from: SimTime, _to: SimTime) {}
    /// A slice of `bytes` left on a connection at `from` and was there at `to`.
    fn message(&mut self, _conn: u32, _bytes: u64, _from: SimTime, _to: SimTime) {}
}

/// Watches nothing.
#[derive(Debug, Default, Clone, Copy)]
pub struct Unobserved;
impl Observer for Unobserved {}

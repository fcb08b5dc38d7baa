//! Watching a run, and being told how far it is.

use std::fmt;
use std::sync::Arc;

use crate::units::SimTime;

/// Watches a run. All methods do nothing by default.
pub trait Observer {
    /// A lane spent `from..to` on a slice of `bytes` of an instruction.
    fn slice(&mut self, _lane: u32, _instruction: usize, _bytes: u64, _from: SimTime, _to: SimTime) {}
    /// A slice of `bytes` left on a connection at `from` and was there at `to`.
    fn message(&mut self, _conn: u32, _bytes: u64, _from: SimTime, _to: SimTime) {}
    /// Whether it wants to know how far the run is.
    fn asks(&self) -> bool {
        false
    }
    /// About this share of the run is done, 0 to 1.
    fn far(&mut self, _share: f64) {}
}

/// Watches nothing.
#[derive(Debug, Default, Clone, Copy)]
pub struct Unobserved;
impl Observer for Unobserved {}

/// How far a long simulation is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Far {
    /// A run begins, of what this says.
    Begins(&'static str),
    /// The estimated share of the run that is done, 0 to 1.
    Share(f64),
}

/// Is told how far runs are, from any thread; by itself nobody is.
#[derive(Clone, Default)]
pub struct Teller(Option<Arc<dyn Fn(Far) + Send + Sync>>);

impl Teller {
    /// Tells `told`.
    pub fn new(told: impl Fn(Far) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(told)))
    }

    /// A run begins.
    pub(crate) fn begins(&self, what: &'static str) -> Self {
        if let Some(told) = &self.0 {
            told(Far::Begins(what));
        }
        self.clone()
    }
}

impl fmt::Debug for Teller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Teller").field(&self.0.is_some()).finish()
    }
}

impl Observer for Teller {
    fn asks(&self) -> bool {
        self.0.is_some()
    }

    fn far(&mut self, share: f64) {
        if let Some(told) = &self.0 {
            told(Far::Share(share));
        }
    }
}

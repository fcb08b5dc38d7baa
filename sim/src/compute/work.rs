//! What a kernel asks of a GPU: time of its multiprocessors, time of its memory, energy.

/// A kernel's needs at the boost clock, all in seconds and joules.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Work {
    /// From the end of the kernel before to the first work, and the kernel's own end.
    pub(super) start: f64,
    /// Of multiprocessors, which goes with their clock.
    pub(super) cores: f64,
    /// Of memory, which does not.
    pub(super) memory: f64,
    /// How well the two overlap: 1 not at all, a large number fully.
    pub(super) overlap: f64,
    /// How far the clock of its multiprocessors follows the one that is set.
    pub(super) droop: Droop,
    /// Energy of multiprocessors.
    pub(super) energy: f64,
    /// Energy of memory.
    pub(super) memory_energy: f64,
}

impl Work {
    /// Seconds at a clock that is set, of the boost clock.
    pub(super) fn seconds(&self, clock: f64) -> f64 {
        self.start + together(self.cores / self.droop.clock(clock), self.memory, self.overlap)
    }
}

/// What the current of a kernel does to its clock: above `firm` it loses a part of what is set.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Droop {
    pub(super) firm: f64,
    pub(super) loses: f64,
}

impl Default for Droop {
    fn default() -> Self {
        Self { firm: 1.0, loses: 0.0 }
    }
}

impl Droop {
    fn clock(self, set: f64) -> f64 {
        set - (set - self.firm).max(0.0) * self.loses
    }
}

/// Time of two activities that overlap: their sum for 1, the longer one for a large number, in between their sum as a
/// p-norm. Both have phases in which the other waits.
pub(super) fn together(a: f64, b: f64, overlap: f64) -> f64 {
    let (less, more) = if a < b { (a, b) } else { (b, a) };
    if less <= 0.0 || !more.is_finite() {
        return more.max(0.0);
    }
    let ratio = less / more;
    more * if overlap == 1.0 { 1.0 + ratio } else { (1.0 + ratio.powf(overlap)).powf(1.0 / overlap) }
}

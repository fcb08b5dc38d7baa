//! What steps and transfers cost each other where they share links.

/// Transfers that a step may share links with: hand-offs, and caches from slower tiers.
pub const WAYS: usize = 2;
/// Hand-offs among them.
pub(super) const HAND_OFF: usize = 0;
/// Caches from slower tiers.
pub(super) const FETCH: usize = 1;
/// Part of its own rate that a transfer keeps at least, so that it ends.
const KEEPS: f64 = 1e-3;

/// What a step and a transfer that runs all along beside it cost each other.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Beside {
    /// Seconds that the step takes longer.
    pub longer: f64,
    /// Seconds of the transfer's own time that it does not get on in the step.
    pub lost: f64,
}

/// What a step, or an exchange of it, takes.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Taken {
    /// Seconds without a transfer beside it.
    pub seconds: f64,
    /// With one of each kind beside it.
    pub beside: [Beside; WAYS],
}

impl Taken {
    /// Without anything beside it.
    pub fn alone(seconds: f64) -> Self {
        Self { seconds, ..Self::default() }
    }

    /// So many of it, after what was taken before.
    pub(super) fn add(&mut self, other: Self, times: f64) {
        self.seconds += other.seconds * times;
        for (own, other) in self.beside.iter_mut().zip(other.beside) {
            own.longer += other.longer * times;
            own.lost += other.lost * times;
        }
    }

    /// How many times its own time a transfer takes beside such steps.
    pub(super) fn slows(&self, way: usize) -> f64 {
        let Beside { longer, lost } = self.beside[way];
        let all = self.seconds + longer;
        if all > 0.0 { 1.0 / (1.0 - lost / all).max(KEEPS) } else { 1.0 }
    }
}

/// The step that a worker is at, and the transfers of the worker, in ns.
#[derive(Clone, Debug, Default)]
pub(super) struct Sharing {
    step: Taken,
    begun: u64,
    until: u64,
    /// From when to when, by kind.
    transfers: [Vec<(u64, u64)>; WAYS],
}

impl Sharing {
    /// A step begins that ends then without transfers beside it: when it ends.
    pub(super) fn begin(&mut self, step: Taken, now: u64, end: u64) -> u64 {
        (self.step, self.begun) = (step, now);
        self.until = end;
        for way in 0..WAYS {
            self.transfers[way].retain(|transfer| transfer.1 > now);
            self.until += self.longer(way, end.saturating_sub(now), covered(&self.transfers[way], (now, end)));
        }
        self.until
    }

    /// When the step is through; transfers that came meanwhile made it longer.
    pub(super) fn until(&self) -> u64 {
        self.until
    }

    /// How many times its own time a transfer takes that begins now.
    pub(super) fn slows(&self, way: usize, now: u64) -> f64 {
        if self.until > now { self.step.slows(way) } else { 1.0 }
    }

    /// A transfer is on its way from one time to another: the step takes longer while it is.
    pub(super) fn fly(&mut self, way: usize, (from, to): (u64, u64), now: u64) {
        if to <= from {
            return;
        }
        let rest = (now, self.until.max(now));
        let before = covered(&self.transfers[way], rest);
        self.transfers[way].push((from, to));
        let more = covered(&self.transfers[way], rest) - before;
        self.until += self.longer(way, self.until.saturating_sub(self.begun), more);
    }

    /// ns that a step of `lasts` ns takes longer where a transfer covers so many of them.
    fn longer(&self, way: usize, lasts: u64, covered: u64) -> u64 {
        let all = self.step.beside[way].longer * 1e9;
        if lasts == 0 || covered == 0 { 0 } else { (all * covered as f64 / lasts as f64).round() as u64 }
    }
}

/// ns of a span in which some transfer is on its way.
fn covered(transfers: &[(u64, u64)], (from, to): (u64, u64)) -> u64 {
    let inside = transfers.iter().map(|&(a, b)| (a.max(from), b.min(to))).filter(|(a, b)| a < b);
    let mut inside: Vec<(u64, u64)> = inside.collect();
    inside.sort_unstable();
    let (mut sum, mut end) = (0, from);
    for (a, b) in inside {
        sum += b.max(end) - a.max(end);
        end = end.max(b);
    }
    sum
}

//! Watching a run, and saying how far it is.

use std::fmt;
use std::sync::Arc;

use super::leap::KEPT;
use super::state::{Phase, Simulation};
use super::steady::template;
use crate::schedule::program::{Level, State, Template};
use crate::units::SimTime;

/// Work after which a run says again how far it is: some 400 times in a second of a core.
pub(super) const SAID_EVERY: u64 = 1 << 16;
/// Lanes that are asked how far they are: those of a schedule do much the same.
const ASKED: usize = 32;

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

impl<O: Observer> Simulation<'_, '_, O> {
    /// Says how far the run is, to an observer who asks.
    pub(super) fn say(&mut self) {
        self.said_next = self.outcome.work + SAID_EVERY;
        if self.observer.asks() {
            let share = self.share();
            self.observer.far(share);
        }
    }

    /// The share of tasks that are over, where there are some; else of the rounds of a sample of lanes.
    fn share(&self) -> f64 {
        if !self.instance.tasks.is_empty() {
            return self.done as f64 / (self.lanes.len() + self.tasks.len()) as f64;
        }
        let apart = self.lanes.len().div_ceil(ASKED).max(1);
        let lanes = self.lanes.iter().zip(&self.instance.lanes).step_by(apart);
        let (shares, asked) = lanes.fold((0.0, 0_u32), |(sum, asked), (run, spec)| {
            let of_round = match run.phase {
                Phase::Done => 1.0,
                _ if run.cursor.is_at_start() => 0.0,
                _ => {
                    let template = template(self.instance, spec.job, spec.template);
                    let [first, inside] = Level::ALL.map(|level| self.rounds(template, &run.cursor.state, level));
                    let within = inside.0 / (inside.0 + inside.1).max(1.0);
                    ((first.0 - 1.0).max(0.0) + within) / (first.0.max(1.0) + first.1)
                }
            };
            let rounds = self.instance.kernels[spec.kernel as usize].rounds.max(1);
            let over = self.kernels[spec.kernel as usize].round;
            // A lane that is through with a round begins the next.
            let share = (f64::from(over) + if over < rounds { of_round } else { 0.0 }) / f64::from(rounds);
            (sum + share.clamp(0.0, 1.0), asked + 1)
        });
        shares / f64::from(asked.max(1))
    }

    /// Rounds of the loop of a level that a worker has begun, and those that are likely to be run after them: where rounds
    /// repeat, the others are left out.
    fn rounds(&self, template: &Template, state: &State, level: Level) -> (f64, f64) {
        let (begun, left) = (f64::from(state.begun(level)), template.rounds_left(state, level).unwrap_or(0) as f64);
        let track = self.steady.as_ref().map(|steady| &steady.tracks[level as usize]);
        let Some(compared) = track.filter(|track| track.window > 0).map(|track| track.needed() as f64) else {
            return (begun, left);
        };
        if state.leapt(level) {
            (begun + compared, left)
        } else {
            (begun, left.min((compared - begun).max(0.0) + KEPT as f64))
        }
    }
}

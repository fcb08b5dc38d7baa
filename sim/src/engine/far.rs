//! How far a run is.

use super::leap::KEPT;
use super::observe::Observer;
use super::state::{Phase, Simulation};
use super::steady::template;
use crate::schedule::program::{Level, State, Template};

/// Work after which a run says again how far it is: some 400 times in a second of a core.
pub(super) const SAID_EVERY: u64 = 1 << 16;
/// Lanes that are asked how far they are: those of a schedule do much the same.
const ASKED: usize = 32;

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

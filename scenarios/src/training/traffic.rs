//! The calls of a step: how many there are, of how many bytes, how NCCL runs them, and what of them no kernel hides.

use std::collections::HashMap;

use super::error::TrainingError;
use super::kind::Kind;
use super::streams::Call;
use super::timeline::{Doing, Record};
use super::units::{Known, Stage, Step, Training};

/// Calls of a step that are alike.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Traffic {
    /// One of them.
    pub call: Call,
    /// Calls of a step, on one rank.
    pub count: f64,
    /// Seconds of all of them that no kernel hides: of one kind as many as the step has. Those of the optimizer are in its time.
    pub exposed: f64,
    /// Whether the optimizer makes them.
    pub of_optimizer: bool,
}

/// Runs a step, and takes note of what it does.
pub(super) type Run<'r> = &'r dyn Fn(&mut Record<'_>) -> Result<Step, TrainingError>;

/// Calls of a step so far.
#[derive(Default)]
struct Ledger(Vec<Traffic>);

impl Ledger {
    /// Adds a call that a rank makes so many times.
    fn add(&mut self, call: &Call, (count, exposed): (f64, f64), of_optimizer: bool) {
        let exposed = count * exposed;
        let key = |call: &Call| (call.name, call.kind, call.shape, call.exchange, call.bytes);
        match self.0.iter_mut().find(|one| key(&one.call) == key(call) && one.of_optimizer == of_optimizer) {
            Some(one) => (one.count, one.exposed) = (one.count + count, one.exposed + exposed),
            None => self.0.push(Traffic { call: *call, count, exposed, of_optimizer }),
        }
    }

    /// Divides what a kind of calls has exposed in the step among them, by what each has where it runs; by their time where
    /// none has any.
    fn share(&mut self, kind: Kind, seconds: f64) {
        let of_kind = |one: &&mut Traffic| one.call.kind == kind && !one.of_optimizer;
        let time = |one: &Traffic| one.count * one.call.cost.seconds;
        let sums = self
            .0
            .iter_mut()
            .filter(of_kind)
            .fold([0.0; 2], |[exposed, all], one| [exposed + one.exposed, all + time(one)]);
        for one in self.0.iter_mut().filter(of_kind) {
            let part = if sums[0] > 0.0 { one.exposed / sums[0] } else { time(one) / sums[1].max(f64::MIN_POSITIVE) };
            one.exposed = seconds * part;
        }
    }
}

/// The calls of a rank of the busiest stage in a step, those first that have most exposed; `run` runs it.
pub(super) fn of(training: &Training<'_>, known: &Known, run: Run<'_>) -> Result<Vec<Traffic>, TrainingError> {
    let mut replicas: HashMap<usize, Ledger> = HashMap::new();
    let mut messages: HashMap<usize, f64> = HashMap::new();
    let step = run(&mut |span| match (span.call, span.doing) {
        (Some((call, exposed)), _) => replicas.entry(span.stage).or_default().add(&call, (1.0, exposed), false),
        (_, Doing::Message { .. }) => *messages.entry(span.stage).or_default() += 1.0,
        _ => {}
    })?;
    let timed = training.known(&known.passes, &|timer, pieces, weights| timer.pieces(pieces, weights), None)?;
    let mut timer = training.timer(timed.0);
    timer.pace *= training.slowest;
    let stage: &Stage = &training.stages(&timed.1)[step.busiest];
    let mut ledger = Ledger::default();
    let (parts, delays) = (training.parts(), training.delays());
    for unit in stage.units() {
        let Some(passes) = parts.of(unit.part) else { continue };
        let times = unit.count as f64 * training.through_each();
        for (pieces, weights) in
            [(&passes.forward, None), (&passes.recompute, None), (&passes.backward, delays.then_some(false))]
        {
            let listed = timer.listed(pieces, weights)?;
            let ran = listed.ran();
            ran.calls(&listed.items).for_each(|(call, exposed)| ledger.add(call, (times, exposed), false));
        }
    }
    let sent = messages.get(&step.busiest).copied().unwrap_or_default();
    for (call, times) in [(training.message(&timer)?, sent), (training.joins(&timer)?, sent)] {
        if let Some(call) = call.filter(|_| times > 0.0) {
            ledger.add(&call, (times, call.cost.seconds), false);
        }
    }
    let replicas = replicas.remove(&step.busiest).unwrap_or_default();
    replicas.0.iter().for_each(|one| ledger.add(&one.call, (one.count, one.exposed / one.count), false));
    for kind in Kind::ALL {
        ledger.share(kind, step.exposed.iter().find(|one| one.0 == kind).map_or(0.0, |one| one.1));
    }
    let listed = timer.listed(&training.optimizer(stage), None)?;
    let ran = listed.ran();
    ran.calls(&listed.items).for_each(|(call, exposed)| ledger.add(call, (1.0, exposed), true));
    ledger.0.sort_by(|a, b| b.exposed.total_cmp(&a.exposed));
    Ok(ledger.0)
}

//! How long a training step takes: a model by its shape, a layout, a framework and a machine.
//!
//! [`step`] puts together what the other modules know: the kernels and exchanges of a layer ([`crate::work`]), the time of
//! a kernel ([`collcast_sim::compute`]), that of an exchange on the machine ([`calls`]). Within a pass, kernels and calls
//! run beside each other and take from each other; passes of micro-batches run over the stages of the pipeline in the
//! order of their schedule; gradients and parameters that replicas share move beside the passes that allow it.

mod bubble;
pub mod calls;
mod data;
mod error;
mod kind;
mod pass;
mod spread;
mod streams;
mod timeline;
mod traffic;
mod units;
mod written;

use std::collections::HashMap;

use crate::parallel::{Parallel, Schedule};
use crate::pipeline;
use collcast_sim::compute::Clock;

use bubble::{Order, Pipeline, StageTimes};
use pass::Spent;
use timeline::Record;

pub use error::{MOST_PASSES, TrainingError};
pub use kind::Kind;
pub use streams::Call;
pub use timeline::{Doing, Span};
pub use traffic::Traffic;
pub use units::{Known, Step, Training};
use units::{Stage, Unit};
pub use written::written;

/// A time that no layout beats, in seconds: its kernels at the boost clock, the optimizer's too, and the stages before that each
/// one waits for, without calls.
///
/// # Errors
/// See [`TrainingError`].
pub fn bound(training: &Training<'_>, known: &Known) -> Result<f64, TrainingError> {
    let parallel = training.parallel;
    let layers =
        training.known(&known.kernels, &|timer, pieces, weights| timer.kernels(pieces, weights), Some(Clock::BOOST))?;
    let (mut before, mut most, mut optimizer) = (0.0_f64, 0.0_f64, 0.0_f64);
    let (delays, timer) = (training.delays(), training.timer(Clock::BOOST));
    for stage in training.stages(&layers.1) {
        optimizer = optimizer.max(timer.kernels(&training.optimizer(&stage), None)?.kernels);
        most = most.max(before + stage.spent().kernels * training.through_each());
        // Where micro-batches come from both ends, no stage waits for many before it.
        if parallel.copies() > 1 {
            continue;
        }
        let first = stage.chunks[0].iter();
        // Gradients that a stage puts off fill its wait for the stages before it.
        let back = |u: &Unit| if delays { 0.0 } else { u.recompute.kernels + u.backward.kernels };
        before += first.map(|u| u.count as f64 * (u.forward.kernels + back(u))).sum::<f64>();
    }
    Ok(most + optimizer)
}

/// Passes of micro-batches through chunks of stages, forward and backward.
pub fn passes(parallel: &Parallel) -> u64 {
    let chunks = u64::from(parallel.pipeline) * u64::from(parallel.virtual_stages);
    parallel.micro_batches().saturating_mul(2 * chunks)
}

/// How long a step takes.
///
/// # Errors
/// See [`TrainingError`].
pub fn step(training: &Training<'_>, known: &Known) -> Result<Step, TrainingError> {
    recorded(training, known, &mut timeline::unseen)
}

/// The same, and what each stage does when. A pipeline's passes have their calls inside; where replicas share parameters
/// without a pipeline, kernels and calls stand beside each other.
///
/// # Errors
/// See [`TrainingError`].
pub fn timeline(training: &Training<'_>, known: &Known) -> Result<(Step, Vec<Span>), TrainingError> {
    let mut spans = Vec::new();
    let step = recorded(training, known, &mut |span| spans.push(span))?;
    let stages = spans.iter().map(|span| span.stage + 1).max().unwrap_or(0);
    let (start, end) = (step.seconds - step.optimizer, step.seconds);
    spans.extend((0..stages).map(|stage| Span::new(stage, Doing::Optimizer, (start, end))));
    Ok((step, spans))
}

/// The calls of a rank of the busiest stage in a step, those first that have most exposed.
///
/// # Errors
/// See [`TrainingError`].
pub fn traffic(training: &Training<'_>, known: &Known) -> Result<Vec<Traffic>, TrainingError> {
    traffic::of(training, known, &|record| recorded(training, known, record))
}

fn recorded(training: &Training<'_>, known: &Known, record: &mut Record<'_>) -> Result<Step, TrainingError> {
    let Training { model, parallel, .. } = *training;
    let execution = &training.software.execution;
    parallel.check_paired(model, execution.overlaps_experts)?;
    if passes(parallel) > MOST_PASSES {
        return Err(TrainingError::Passes(passes(parallel)));
    }
    let by = if execution.pairs(parallel) { Order::Pairs } else { Order::By };
    let order = match parallel.schedule {
        Schedule::Gpipe => by(pipeline::Schedule::Gpipe),
        Schedule::OneForwardOneBackward | Schedule::ZeroBubble => by(pipeline::Schedule::OneForwardOneBackward),
        Schedule::Interleaved => by(pipeline::Schedule::Interleaved),
        Schedule::DualPipe => Order::DualPipe,
    };
    let timed = training.known(&known.passes, &|timer, pieces, weights| timer.pieces(pieces, weights), None)?;
    let (clock, layers) = (timed.0, &timed.1);
    let mut timer = training.timer(clock);
    let mut stages = training.stages_with_host(layers);
    let slow;
    let mut layers = layers;
    if training.slowest > 1.0 {
        timer.pace *= training.slowest;
        slow = training.layers(&training.parts(), &timer, &|timer, pieces, weights| timer.pieces(pieces, weights))?;
        layers = &slow;
        let seconds: Vec<f64> = stages.iter().map(|stage| stage.spent().seconds).collect();
        let busiest = (0..stages.len()).max_by(|&a, &b| seconds[a].total_cmp(&seconds[b])).unwrap_or(0);
        stages[busiest] = training.stages_with_host(layers).swap_remove(busiest);
    }
    if execution.by_units(parallel.zero) && parallel.pipeline == 1 {
        return data::sharded(training, layers, &timer, record);
    }
    let seconds = |stage: &Stage, of: fn(&Unit) -> f64| -> Vec<f64> {
        let chunk = |units: &Vec<Unit>| units.iter().map(|unit| of(unit) * unit.count as f64).sum();
        stage.chunks.iter().map(chunk).collect()
    };
    let parts = training.parts();
    let mut known = HashMap::new();
    let chunks = stages[0].chunks.len();
    let meet = if matches!(order, Order::By(_)) { 0 } else { chunks };
    // By stage, chunk and chunk: the forward pass of the former beside the backward pass of the latter.
    let mut both = |stage: &Stage| -> Result<Vec<Spent>, TrainingError> {
        let pairs = (0..meet).flat_map(|forward| (0..meet).map(move |backward| (forward, backward)));
        pairs.map(|pair| training.both(stage, pair, (&timer, &parts), &mut known)).collect()
    };
    let both: Vec<Vec<Spent>> = stages.iter().map(&mut both).collect::<Result<_, _>>()?;
    let times = |(stage, both): (&Stage, &Vec<Spent>)| StageTimes {
        forward: seconds(stage, |u| u.forward.seconds),
        backward: seconds(stage, |u| u.recompute.seconds + u.backward.seconds),
        weights: seconds(stage, |u| u.weights.seconds),
        both: both.iter().map(|spent| spent.seconds).collect(),
    };
    let pipeline = Pipeline {
        order,
        micro_batches: u32::try_from(parallel.micro_batches()).unwrap_or(u32::MAX),
        stages: stages.iter().zip(&both).map(times).collect(),
        message: training.message(&timer)?.map_or(0.0, |call| call.cost.seconds),
        joins: training.joins(&timer)?.map_or(0.0, |call| call.cost.seconds),
        // Megatron-LM waits for its messages, but for those of interleaved chunks since 2023 (`overlap_p2p_comm`). DualPipe
        // sends while the next passes run.
        waits: match order {
            Order::By(pipeline::Schedule::Interleaved) | Order::Pairs(pipeline::Schedule::Interleaved) => {
                !execution.overlaps_messages
            }
            Order::By(_) | Order::Pairs(_) => true,
            Order::DualPipe => false,
        },
    };
    let replicas = data::Replicas::new(training, &timer, &stages)?;
    let ran = pipeline.run(&replicas, record);
    let last = ran.busy.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(stage, _)| stage);
    let drained = ran.ends.iter().copied().fold(0.0, f64::max);
    let tail = |s: usize| replicas.tail(s, (&ran.last_begins[s], ran.ends[s], drained), record);
    let tails: Vec<(f64, f64)> = (0..stages.len()).map(tail).collect();
    let mut spent = Spent::default();
    let (all, beside) = (training.through_each(), &ran.beside[last]);
    for chunk in 0..chunks {
        // Of the passes through a chunk some ran beside others.
        let ahead: u32 = beside[chunk * chunks..][..chunks].iter().sum();
        let behind: u32 = beside[chunk..].iter().step_by(chunks).sum();
        spent.add(&stages[last].there(chunk), all - f64::from(ahead));
        spent.add(&stages[last].back(chunk), all - f64::from(behind));
    }
    both[last].iter().zip(beside).for_each(|(both, &times)| spent.add(both, times.into()));
    spent.exposed[Kind::Pipeline as usize] += ran.sending[last];
    let ((end, slowed), waits) = (tails[last], ran.gathering[last]);
    spent.slowed += ran.slowed[last] + slowed;
    // A sum costs what it goes on for after the stage's own kernels and after the passes of all stages.
    spent.exposed[Kind::Data as usize] += waits + (end - drained.max(ran.ends[last] + slowed)).max(0.0);
    spent.seconds = tails.iter().map(|tail| tail.0).fold(0.0, f64::max);
    let (of_calls, (low, high)) = (ran.slowed[last] + waits + spent.seconds - drained, replicas.interval(last));
    spent.variance[0] += (of_calls * (1.0 - low)).powi(2);
    spent.variance[1] += (of_calls * (high - 1.0)).powi(2);
    training.whole(&stages, (last, spent), &timer)
}

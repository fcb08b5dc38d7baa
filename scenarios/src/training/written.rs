//! A step of a plan as programs of operations, which a scenario file holds: the kernels and calls of its passes, in the order of
//! its schedule.

use std::collections::{BTreeSet, HashMap};

use collcast_sim::compute::Kernel;
use collcast_sim::units::{Bytes, SimDuration};

use super::data::{self, PassAt, Replicas};
use super::error::TrainingError;
use super::pass::Timer;
use super::streams::{Call, Item, What};
use super::units::{Known, Part, Parts, Stage, Training};
use crate::parallel::Schedule;
use crate::pipeline::{self, Pass};
use crate::programs::{Communicator, Does, Programs, Turn};
use crate::work::{Beside, Piece, Repeated};

/// What is written so far.
struct Writing<'w> {
    training: &'w Training<'w>,
    timer: &'w Timer<'w>,
    parts: &'w Parts,
    programs: Programs,
    /// Blocks by part and direction.
    blocks: HashMap<(Part, bool), usize>,
    /// Calls that have a name.
    named: usize,
}

/// Kernels in a row.
#[derive(Default)]
struct Row {
    seconds: f64,
    count: u32,
    /// Seconds of them, each times the part of the memory's rate that it needs.
    memory: f64,
    name: &'static str,
    /// Seconds of the last ones that are alike, and those times their part of the memory's rate.
    last: [f64; 2],
    /// The call that its first kernel waits for, by its name.
    after: Vec<String>,
}

impl Row {
    fn add(&mut self, of: &Repeated, seconds: f64, memory: f64) {
        self.name = if self.count == 0 { of.name } else { self.name };
        self.last = [seconds, seconds * memory];
        (self.seconds, self.memory) = (self.seconds + seconds, self.memory + seconds * memory);
        self.count += of.count;
    }

    /// Ends it, if it has begun.
    fn end(&mut self, turns: &mut Vec<Turn>) {
        if self.count > 0 && self.seconds > 0.0 {
            let Self { seconds, count, memory, name, after, .. } = std::mem::take(self);
            let time = SimDuration::from_us(seconds * 1e6);
            let does = Does::Kernels(time, count, (memory / seconds).clamp(0.001, 1.0));
            turns.push(Turn { after, ..Turn::new(name, does) });
        }
    }

    /// Ends it before the last part of its last kernels, which begin the next one.
    fn split(&mut self, part: f64, turns: &mut Vec<Turn>) {
        let rest = self.last.map(|of| of * part);
        (self.seconds, self.memory) = (self.seconds - rest[0], self.memory - rest[1]);
        let name = self.name;
        self.end(turns);
        *self = Self { seconds: rest[0], memory: rest[1], count: 1, name, last: rest, after: Vec::new() };
    }
}

impl Writing<'_> {
    /// The communicator of a call.
    fn communicator(&mut self, call: &Call) -> usize {
        let count = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let (size, stride, ranks) = (call.shape.size, call.shape.stride, self.training.parallel.ranks());
        let mut of = Communicator {
            name: call.kind.name().to_owned(),
            size: count(size),
            stride: count(stride),
            ranks: (0, count(ranks)),
            within: count(stride),
        };
        let all = &mut self.programs.communicators;
        if let Some(known) = all.iter().position(|known| Communicator { name: of.name.clone(), ..known.clone() } == of)
        {
            return known;
        }
        if all.iter().any(|known| known.name == of.name) {
            of.name = format!("{}, {size} ranks {stride} apart", of.name);
        }
        all.push(of);
        all.len() - 1
    }

    fn call(&mut self, call: &Call) -> Turn {
        let does = Does::Call(call.exchange.collective(), self.communicator(call), Bytes(call.bytes));
        Turn::new(call.name, does)
    }

    /// Pieces in order; kernels between two calls as one.
    fn turns(&mut self, pieces: &[Piece]) -> Result<Vec<Turn>, TrainingError> {
        let (mut turns, mut row) = (Vec::new(), Row::default());
        // The last call that kernels run beside, by its name.
        let mut beside: Option<String> = None;
        for piece in pieces {
            match piece {
                Piece::Kernel(of) => {
                    let seconds = self.timer.kernel(&of.kernel)? * f64::from(of.count);
                    let moves = matches!(of.kernel, Kernel::Memory(_) | Kernel::Optimizer(_));
                    row.add(of, seconds, if moves { 1.0 } else { self.training.calls.gemm_memory() });
                }
                Piece::Exchange(of) => {
                    let Some(call) = self.timer.exchange(of)? else { continue };
                    match of.beside {
                        Beside::Before => row.split(self.timer.after_first_piece(), &mut turns),
                        _ => row.end(&mut turns),
                    }
                    let mut turn = self.call(&call);
                    if of.beside != Beside::Nothing {
                        self.named += 1;
                        let name = format!("call {}", self.named);
                        turn = Turn { hidden: true, id: Some(name.clone()), ..turn };
                        beside = Some(name);
                    }
                    turns.push(turn);
                    if of.beside == Beside::Before {
                        row.end(&mut turns);
                        row.after.extend(beside.take());
                    }
                }
                Piece::Wait => {
                    row.end(&mut turns);
                    row.after.extend(beside.take());
                }
            }
        }
        // What no kernel of these waits for, the next ones do.
        if row.count == 0
            && let Some(call) = row.after.pop()
        {
            turns.iter_mut().filter(|turn| turn.id.as_ref() == Some(&call)).for_each(|turn| turn.hidden = false);
        }
        row.end(&mut turns);
        Ok(turns)
    }

    /// A pass through units in a row.
    fn pass(&mut self, part: Part, forward: bool, times: u64) -> Result<Turn, TrainingError> {
        let name = format!("{}, {}", part.name(), if forward { "forward" } else { "backward" });
        let block = match self.blocks.get(&(part, forward)) {
            Some(&block) => block,
            None => {
                let passes = self.parts.of(part);
                let pieces = match (passes, forward) {
                    (None, _) => Vec::new(),
                    (Some(passes), true) => passes.forward.clone(),
                    (Some(passes), false) => [&passes.recompute[..], &passes.backward].concat(),
                };
                let turns = self.turns(&pieces)?;
                self.programs.blocks.push((name.clone(), turns));
                self.blocks.insert((part, forward), self.programs.blocks.len() - 1);
                self.programs.blocks.len() - 1
            }
        };
        Ok(Turn::new(name, Does::Block(block, u32::try_from(times).unwrap_or(u32::MAX))))
    }

    /// The optimizer, after sums that have names.
    fn optimizer(&mut self, stage: &Stage, sums: &[String], turns: &mut Vec<Turn>) -> Result<(), TrainingError> {
        let mut own = self.turns(&self.training.optimizer(stage))?;
        if let Some(first) = own.first_mut() {
            first.after = sums.to_vec();
        }
        turns.append(&mut own);
        Ok(())
    }

    /// Replicas that exchange units one by one: each micro-batch has the items of the plan.
    fn by_units(&mut self, stage: &Stage, items: &[Item], passes: &[PassAt]) -> Result<Vec<Turn>, TrainingError> {
        let named: BTreeSet<usize> = items.iter().flat_map(|item| item.after.iter().copied()).collect();
        let (mut turns, mut sums) = (Vec::new(), Vec::new());
        for micro_batch in 0..self.training.parallel.micro_batches() {
            let id = |index: usize| format!("{micro_batch}.{index}");
            sums.clear();
            // By item: what comes after it waits for these. An item without a turn is no more than what it waits for.
            let mut ends: Vec<Vec<String>> = Vec::new();
            for (index, item) in items.iter().enumerate() {
                let after: BTreeSet<String> = item.after.iter().flat_map(|&before| ends[before].clone()).collect();
                let after: Vec<String> = after.into_iter().collect();
                let mut turn = match (&item.what, passes.iter().find(|pass| pass.0 == index)) {
                    (What::Call(call), _) => Turn { hidden: true, ..self.call(call) },
                    // It is part of the pass before.
                    (What::Network, _) => {
                        ends.push(ends.last().cloned().unwrap_or_default());
                        continue;
                    }
                    (_, Some(&(_, part, forward))) => self.pass(part, forward, 1)?,
                    _ if item.seconds > 0.0 => {
                        let time = SimDuration::from_us(item.seconds * 1e6);
                        Turn::new("copies of the framework", Does::Kernels(time, 1, 1.0))
                    }
                    _ => {
                        ends.push(after);
                        continue;
                    }
                };
                turn.after = after;
                ends.push(vec![id(index)]);
                turn.id = named.contains(&index).then(|| id(index));
                if matches!(item.what, What::Call(_)) {
                    turn.id = Some(id(index));
                    sums.push(id(index));
                }
                turns.push(turn);
            }
        }
        self.optimizer(stage, &sums, &mut turns)?;
        Ok(turns)
    }

    /// A stage of a pipeline, whose replicas exchange buckets around its passes.
    fn stage(
        &mut self,
        (index, stage): (u32, &Stage),
        replicas: &Replicas,
        order: pipeline::Schedule,
    ) -> Result<Vec<Turn>, TrainingError> {
        let parallel = self.training.parallel;
        let (stages, chunks) = (parallel.pipeline, parallel.virtual_stages);
        let micro_batches = u32::try_from(parallel.micro_batches()).unwrap_or(u32::MAX);
        let message = self.training.message(self.timer)?;
        let mut turns = Vec::new();
        for (chunk, buckets) in replicas.chunks(index as usize).iter().enumerate() {
            for (place, bucket) in buckets.iter().enumerate() {
                for call in &bucket.gather {
                    turns.push(Turn {
                        hidden: true,
                        id: Some(format!("parameters {chunk}.{place}")),
                        ..self.call(call)
                    });
                }
            }
        }
        let mut sums = Vec::new();
        for Pass { forward, micro_batch, chunk } in pipeline::passes(order, index, stages, micro_batches, chunks) {
            let own = chunk * stages + index;
            let (to, from) = if forward { (own + 1, own.wrapping_sub(1)) } else { (own.wrapping_sub(1), own + 1) };
            let name = if forward { "activations" } else { "gradients of activations" };
            let meets = |other: u32| other < stages * chunks && stages > 1;
            if let Some(call) = message.filter(|_| meets(from)) {
                let pair = self.pair(own, from);
                turns.push(Turn::new(name, Does::Recv(pair, Bytes(call.bytes))));
            }
            let buckets = replicas.chunks(index as usize)[chunk as usize].iter().enumerate();
            let buckets: Vec<_> = if forward { buckets.collect() } else { buckets.rev().collect() };
            for (place, bucket) in buckets {
                let first = turns.len();
                let units: Vec<(Part, u64)> =
                    if forward { bucket.units.clone() } else { bucket.units.iter().rev().copied().collect() };
                for (part, times) in units {
                    turns.push(self.pass(part, forward, times)?);
                }
                if forward && micro_batch == 0 && !bucket.gather.is_empty() {
                    turns[first].after.push(format!("parameters {chunk}.{place}"));
                }
                for (number, call) in
                    bucket.reduce.iter().enumerate().filter(|_| !forward && micro_batch + 1 == micro_batches)
                {
                    let id = format!("gradients {chunk}.{place}.{number}");
                    turns.push(Turn { hidden: true, id: Some(id.clone()), ..self.call(call) });
                    sums.push(id);
                }
            }
            if let Some(call) = message.filter(|_| meets(to)) {
                let pair = self.pair(own, to);
                turns.push(Turn { hidden: true, ..Turn::new(name, Does::Send(pair, Bytes(call.bytes))) });
            }
        }
        self.optimizer(stage, &sums, &mut turns)?;
        Ok(turns)
    }

    /// The communicator of the stages of two parts of the model that follow each other.
    fn pair(&mut self, one: u32, other: u32) -> usize {
        let stages = self.training.parallel.pipeline;
        let ranks = u32::try_from(self.training.parallel.ranks()).unwrap_or(u32::MAX) / stages;
        // From the last stage to the first one, where a stage has several chunks.
        let (low, high) = match one.max(other) % stages {
            0 => (0, stages - 1),
            high => (high - 1, high),
        };
        let (stride, from) = ((high - low) * ranks, low * ranks);
        let around = if one.max(other).is_multiple_of(stages) { ", around" } else { "" };
        let name = format!("stages {low} and {high}{around}");
        let of = Communicator { name, size: 2, stride, ranks: (from, from + 2 * stride), within: ranks };
        let all = &mut self.programs.communicators;
        all.iter().position(|known| *known == of).unwrap_or_else(|| {
            all.push(of);
            all.len() - 1
        })
    }
}

/// What each rank does in a step.
///
/// # Errors
/// See [`TrainingError`]; orders of passes that programs cannot say.
pub fn written(training: &Training<'_>, known: &Known) -> Result<Programs, TrainingError> {
    let Training { parallel, software, .. } = *training;
    let order = match parallel.schedule {
        Schedule::Gpipe => pipeline::Schedule::Gpipe,
        Schedule::OneForwardOneBackward => pipeline::Schedule::OneForwardOneBackward,
        Schedule::Interleaved => pipeline::Schedule::Interleaved,
        Schedule::ZeroBubble | Schedule::DualPipe => return Err(TrainingError::NotWritten(parallel.schedule.name())),
    };
    if software.execution.pairs(parallel) {
        return Err(TrainingError::NotWritten("passes beside each other"));
    }
    if parallel.offload > 0 {
        return Err(TrainingError::NotWritten("copies to host memory (offload)"));
    }
    let timed = training.known(&known.passes, &|timer, pieces, weights| timer.pieces(pieces, weights), None)?;
    let (timer, parts) = (training.timer(timed.0), training.parts());
    let mut writing = Writing {
        training,
        timer: &timer,
        parts: &parts,
        programs: Programs::default(),
        blocks: HashMap::new(),
        named: 0,
    };
    let stages = training.stages(&timed.1);
    let replicas = Replicas::new(training, &timer, &stages)?;
    let ranks = u32::try_from(parallel.ranks()).unwrap_or(u32::MAX) / parallel.pipeline;
    for (index, stage) in (0..).zip(&stages) {
        let turns = if software.execution.by_units(parallel.zero) && parallel.pipeline == 1 {
            let (items, passes) = data::items(training, stage, &timer)?;
            writing.by_units(stage, &items, &passes)?
        } else {
            writing.stage((index, stage), &replicas, order)?
        };
        writing.programs.programs.push(((index * ranks, (index + 1) * ranks - 1), turns));
    }
    Ok(writing.programs)
}

//! What a step is made of: passes of layers, embedding and head, timed once and dealt to stages.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use collcast_sim::collective::Collective;
use collcast_sim::compute::{Clock, Compute, Kernel};
use serde::Serialize;

use super::calls::{Calls, Exchange, Shape};
use super::error::TrainingError;
use super::kind::Kind;
use super::pass::{Spent, Timer};
use super::spread::slowest_of;
use super::streams::Call;
use crate::memory::{self, Software, States, of_layer};
use crate::parallel::{Axis, Parallel, Schedule, Split};
use crate::transformer::{LayerKind, Transformer};
use crate::work::{self, ExpertKernels, Passes, Piece, single};

/// What a step's time depends on.
#[derive(Clone, Copy, Debug)]
pub struct Training<'a> {
    /// The model.
    pub model: &'a Transformer,
    /// How ranks share it.
    pub parallel: &'a Parallel,
    /// What the framework keeps, and how it runs.
    pub software: &'a Software,
    /// One GPU.
    pub gpu: &'a Compute,
    /// What exchanges take between GPUs.
    pub calls: &'a Calls<'a>,
    /// What the time of its kernels may be off by, as a part of it: the half width of a 90% interval.
    pub kernels_off: f64,
    /// Whether times of calls are taken between powers of two, for comparing many layouts.
    pub rough: bool,
    /// How many times as long kernels of one GPU take, on the busiest stage; 1 where all are alike.
    pub slowest: f64,
}

/// A step, in seconds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Step {
    /// From its start to that of the next one.
    pub seconds: f64,
    /// Lower and upper end of an interval that holds 90% of steps, by what calls, kernels and the host may be off by.
    pub interval: (f64, f64),
    /// What calls alone may be off by: how much shorter and longer it may be.
    pub calls_off: [f64; 2],
    /// The stage whose kernels and calls are told, from 0: the one that is busy longest.
    pub busiest: usize,
    /// Its kernels.
    pub kernels: f64,
    /// Of these, what is computed a second time.
    pub recomputed: f64,
    /// What they take longer beside calls.
    pub slowed: f64,
    /// Waits for the host that issues kernels.
    pub issued: f64,
    /// Calls with no kernel beside them, on that stage. A sum of gradients beside the last passes of other stages is none: the
    /// stage would wait for these without it.
    pub exposed: Vec<(Kind, f64)>,
    /// Its time without work: the pipeline fills and empties, or waits for another stage.
    pub bubble: f64,
    /// The optimizer.
    pub optimizer: f64,
    /// Clock of the GPU's multiprocessors, of its boost clock.
    pub clock: f64,
}

/// What a call takes above an idle GPU, of what kernels at the limit take: an all-reduce that sends 306 GB/s has 153 W where
/// products have 575 W (H200 by NVML, `tests/data/h200x4/clock_duty.json`).
const CALL_POWER: f64 = 0.27;

/// How many times as long a host may take to issue a step as is forecast, or the other way about: layers of one model took
/// 1.2 to 1.4 times as long on one machine of two H200 as on another, and nine steps that wait for their host took 0.78 to
/// 1.43 times as long as forecast (`tests/data/training/steps_h200x2.csv`).
const HOSTS_DIFFER: f64 = 1.5;
/// Share of a step below which a difference of sums is none.
const ROUNDING: f64 = 1e-9;

/// Passes of what a rank runs for a micro-batch.
pub(super) struct Parts {
    layers: [Option<Passes>; 2],
    embedding: Passes,
    head: Passes,
    further: Option<Passes>,
}

/// Which of the parts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Part {
    Layer(LayerKind),
    Embedding,
    Head,
    Further,
}

impl Part {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Layer(LayerKind::Dense) => "layer",
            Self::Layer(LayerKind::Experts) => "layer with experts",
            Self::Embedding => "embedding",
            Self::Head => "head",
            Self::Further => "module of a further token",
        }
    }

    /// Bytes of a parameter where replicas gather it; norms of layers, of less than a thousandth, count as products do.
    pub(super) fn gathered(self, states: &States) -> f64 {
        match self {
            Self::Layer(_) | Self::Further => states.gathered_in_layers,
            Self::Embedding | Self::Head => states.gathered,
        }
    }

    /// Tensors of its parameters, to a few.
    fn tensors(self) -> u64 {
        match self {
            Self::Layer(_) | Self::Further => single::LAYER_TENSORS,
            // Its norm, and the product.
            Self::Head => 2,
            Self::Embedding => 1,
        }
    }
}

impl Parts {
    pub(super) fn of(&self, part: Part) -> Option<&Passes> {
        match part {
            Part::Layer(kind) => self.layers[usize::from(kind == LayerKind::Experts)].as_ref(),
            Part::Embedding => Some(&self.embedding),
            Part::Head => Some(&self.head),
            Part::Further => self.further.as_ref(),
        }
    }
}

/// One of them, timed; so many in a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unit {
    pub(super) part: Part,
    pub(crate) count: u64,
    pub(crate) forward: Spent,
    pub(crate) recompute: Spent,
    pub(crate) backward: Spent,
    pub(crate) weights: Spent,
    /// Parameters on one GPU before replicas share them, routed experts apart.
    pub(crate) parameters: [f64; 2],
}

impl Unit {
    fn passes(&self) -> [&Spent; 4] {
        [&self.forward, &self.recompute, &self.backward, &self.weights]
    }

    fn passes_mut(&mut self) -> [&mut Spent; 4] {
        [&mut self.forward, &mut self.recompute, &mut self.backward, &mut self.weights]
    }
}

/// All of them, timed once: dense layers, layers with experts, embedding, head, modules that predict further tokens.
pub(crate) struct Layers {
    layers: [Option<Unit>; 2],
    embedding: Unit,
    head: Unit,
    further: Option<Unit>,
}

/// The units of a stage, by chunk.
pub(crate) struct Stage {
    pub(crate) chunks: Vec<Vec<Unit>>,
}

impl Stage {
    pub(super) fn units(&self) -> impl Iterator<Item = &Unit> {
        self.chunks.iter().flatten()
    }

    /// Tensors of its parameters, to a few.
    fn tensors(&self) -> u64 {
        self.units().map(|unit| unit.count * unit.part.tensors()).sum()
    }

    /// Kernels that are computed a second time for a micro-batch.
    fn recomputed(&self) -> f64 {
        self.units().map(|unit| unit.recompute.kernels * unit.count as f64).sum()
    }

    /// The GPU waits for the host in each pass, or where that needs longer for all of them: a host that is sooner through with
    /// one is ahead in later ones.
    fn wait_for_host(&mut self, in_each: bool) {
        let Spent { seconds, host, .. } = self.spent();
        let behind = |unit: &Unit| unit.passes().map(Spent::behind).iter().sum::<f64>() * unit.count as f64;
        let behind: f64 = self.units().map(behind).sum();
        let part = if in_each { 1.0 } else { ((host - seconds) / behind).max(0.0) };
        let units = self.chunks.iter_mut().flatten();
        units.flat_map(Unit::passes_mut).for_each(|pass| pass.wait(part * pass.behind()));
    }

    /// What a micro-batch spends on it, once through all chunks.
    pub(super) fn spent(&self) -> Spent {
        let mut sum = Spent::default();
        for chunk in 0..self.chunks.len() {
            sum.add(&self.there(chunk), 1.0);
            sum.add(&self.back(chunk), 1.0);
        }
        sum
    }

    /// What a forward pass through a chunk spends.
    pub(super) fn there(&self, chunk: usize) -> Spent {
        let mut sum = Spent::default();
        self.chunks[chunk].iter().for_each(|unit| sum.add(&unit.forward, unit.count as f64));
        sum
    }

    /// What a backward pass through a chunk spends.
    pub(super) fn back(&self, chunk: usize) -> Spent {
        let mut sum = Spent::default();
        for unit in &self.chunks[chunk] {
            for pass in [&unit.recompute, &unit.backward, &unit.weights] {
                sum.add(pass, unit.count as f64);
            }
        }
        sum
    }
}

/// Of a layout, what the passes of its layers depend on, and whether the host waits in them; and the ranks of the job, of
/// which the slowest sets the pace.
type Key = (Parallel, bool, bool, u64);

/// Passes that are timed already: layouts that differ in replicas, stages and batches share them. For one model, framework
/// and machine.
#[derive(Default)]
pub struct Known {
    pub(super) kernels: Mutex<HashMap<Key, Arc<(Clock, Layers)>>>,
    pub(super) passes: Mutex<HashMap<Key, Arc<(Clock, Layers)>>>,
}

/// How pieces are timed.
type Times<'t> = &'t dyn Fn(&Timer<'_>, &[Piece], Option<bool>) -> Result<Spent, TrainingError>;

impl Training<'_> {
    pub(super) fn timer(&self, clock: Clock) -> Timer<'_> {
        Timer {
            gpu: self.gpu,
            pace: slowest_of(self.parallel.ranks()),
            clock,
            calls: self.calls,
            parallel: self.parallel,
            reserves: self.software.execution.reserves > 0,
            rough: self.rough,
        }
    }

    /// The passes of a micro-batch, timed once for all layouts that have them alike, at a clock or at the one that power leaves.
    pub(super) fn known(
        &self,
        known: &Mutex<HashMap<Key, Arc<(Clock, Layers)>>>,
        times: Times<'_>,
        clock: Option<Clock>,
    ) -> Result<Arc<(Clock, Layers)>, TrainingError> {
        let parallel = Parallel {
            pipeline: 1,
            virtual_stages: 1,
            data: 1,
            global_batch: self.parallel.micro_batches().min(2) * u64::from(self.parallel.micro_batch),
            shard: None,
            split: Split::Even,
            ..*self.parallel
        };
        let key = (
            Parallel { schedule: if self.delays() { Schedule::ZeroBubble } else { Schedule::Gpipe }, ..parallel },
            self.rough,
            self.host_waits(),
            self.parallel.ranks(),
        );
        let of = || known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(timed) = of().get(&key) {
            return Ok(Arc::clone(timed));
        }
        let parts = self.parts();
        let at = |clock: Clock| self.layers(&parts, &self.timer(clock), times);
        let timed = Arc::new(match clock {
            Some(clock) => (clock, at(clock)?),
            None => {
                let mix = self.mix(&parts);
                // While kernels wait for calls or for the host the GPU takes less, so that they have a higher clock.
                let busy = self.busy(&at(self.gpu.sustained(&mix))?);
                let clock = self.gpu.sustained_for(&mix, busy);
                (clock, at(clock)?)
            }
        });
        of().insert(key, Arc::clone(&timed));
        Ok(timed)
    }

    pub(super) fn delays(&self) -> bool {
        matches!(self.parallel.schedule, Schedule::ZeroBubble | Schedule::DualPipe)
    }

    /// Micro-batches that go through each chunk of a stage: half of them where they come from both ends.
    pub(super) fn through_each(&self) -> f64 {
        self.parallel.micro_batches() as f64 / self.parallel.copies() as f64
    }

    pub(super) fn parts(&self) -> Parts {
        let Self { model, parallel, software, .. } = *self;
        let layer = |kind: LayerKind, count: u64| (count > 0).then(|| work::layer(model, kind, parallel, software));
        let dense = model.dense_layers();
        let further = (model.predictions > 0).then(|| work::prediction(model, parallel, software));
        Parts {
            layers: [layer(LayerKind::Dense, dense), layer(LayerKind::Experts, model.layers - dense)],
            embedding: work::embedding(model, parallel, software),
            head: work::head(model, parallel, software),
            further,
        }
    }

    /// Of a micro-batch's passes, the part in which kernels run; calls that they wait for count by their power.
    fn busy(&self, layers: &Layers) -> f64 {
        let mut all = Spent::default();
        self.stages_with_host(layers).iter().for_each(|stage| all.add(&stage.spent(), 1.0));
        let exposed: f64 = all.exposed.iter().sum();
        let busy = (all.kernels + all.slowed + CALL_POWER * exposed) / all.seconds;
        if busy.is_finite() { busy.clamp(0.0, 1.0) } else { 1.0 }
    }

    /// All kernels of a micro-batch through the whole model.
    fn mix(&self, parts: &Parts) -> Vec<(Kernel, u64)> {
        let dense = self.model.dense_layers();
        let [first, second] = &parts.layers;
        let of = [
            (first.as_ref(), dense),
            (second.as_ref(), self.model.layers - dense),
            (Some(&parts.embedding), 1),
            (Some(&parts.head), 1),
            (parts.further.as_ref(), self.model.predictions),
        ];
        let mut mix: Vec<(Kernel, u64)> = Vec::new();
        for (passes, times) in of {
            for piece in passes.into_iter().flat_map(|p| p.forward.iter().chain(&p.recompute).chain(&p.backward)) {
                if let Piece::Kernel(run) = piece {
                    mix.push((run.kernel.clone(), u64::from(run.count) * times));
                }
            }
        }
        mix
    }

    pub(super) fn layers(&self, parts: &Parts, timer: &Timer<'_>, times: Times<'_>) -> Result<Layers, TrainingError> {
        let delays = self.delays();
        let unit = |part: Part, passes: &Passes, parameters: [f64; 2]| -> Result<Unit, TrainingError> {
            // Issued with the pass that they are put off from.
            let weights = if delays { times(timer, &passes.backward, Some(true))? } else { Spent::default() };
            let mut backward = times(timer, &passes.backward, delays.then_some(false))?;
            backward.add(&times(timer, &self.sums(parameters), None)?, 1.0);
            let pass = |pieces: &[Piece], host: f64| -> Result<Spent, TrainingError> {
                Ok(Spent { host, ..times(timer, pieces, None)? })
            };
            Ok(Unit {
                part,
                count: 1,
                forward: pass(&passes.forward, self.host(part, &passes.forward, false))?,
                recompute: pass(&passes.recompute, single::host(&passes.recompute, false, self.software, self.gpu))?,
                backward: Spent { host: self.host(part, &passes.backward, true), ..backward },
                weights,
                parameters,
            })
        };
        let of = |kind| of_layer(self.model, self.parallel, kind);
        let any = |part, parameters| parts.of(part).map(|passes| unit(part, passes, parameters)).transpose();
        let layer = |kind| any(Part::Layer(kind), of(kind));
        let vocabulary = if self.software.pads_vocabulary {
            self.model.padded_vocabulary(self.parallel.tensor.into())
        } else {
            self.model.vocabulary
        };
        let table = (vocabulary * self.model.hidden) as f64 / f64::from(self.parallel.tensor);
        let [dense, experts] = of(self.model.kind(self.model.layers - 1));
        let further =
            [dense + 2.0 * (self.model.hidden * self.model.hidden) as f64 / f64::from(self.parallel.tensor), experts];
        let layer = |kind| layer(kind)?.map(|unit| self.offloaded(kind, unit)).transpose();
        Ok(Layers {
            layers: [layer(LayerKind::Dense)?, layer(LayerKind::Experts)?],
            embedding: unit(Part::Embedding, &parts.embedding, [table, 0.0])?,
            head: unit(Part::Head, &parts.head, [table, 0.0])?,
            further: any(Part::Further, further)?,
        })
    }

    /// Seconds of the host for a pass through a unit.
    fn host(&self, part: Part, pieces: &[Piece], backward: bool) -> f64 {
        single::host(pieces, backward, self.software, self.gpu)
            + single::hooks(part.tensors(), backward, self.parallel, self.software, self.gpu)
    }

    /// Whether the host waits for the GPU in each pass: for messages of a pipeline (Megatron-LM, `batch_p2p_sync`), or for counts
    /// of tokens, to send them to other ranks or to issue each expert.
    pub(super) fn host_waits(&self) -> bool {
        let asks = self.parallel.expert > 1 || self.software.execution.expert_kernels != ExpertKernels::Operators;
        self.parallel.pipeline > 1 || (asks && self.model.dense_layers() < self.model.layers)
    }

    /// A layer beside copies of kept tensors to host memory, and back beside its backward pass, on all GPUs of a host at once.
    /// Those of the layers that are offloaded are spread evenly over the passes of all layers, which wait for their parts.
    ///
    /// Source: Transformer Engine, `cpu_offload.py`, `AsyncDoubleBufferGroupOffloadHandler`, `layer_window_map`.
    fn offloaded(&self, kind: LayerKind, unit: Unit) -> Result<Unit, TrainingError> {
        if self.parallel.offload == 0 {
            return Ok(unit);
        }
        let kept = memory::sum(&memory::layer(self.model, kind, self.parallel, self.software));
        let bytes = kept * self.parallel.tokens(self.model);
        let share = self.parallel.offload as f64 / self.model.layers as f64;
        let [there, back] = self.calls.host_copies(self.gpu, bytes as u64)?.map(|seconds| seconds * share);
        Ok(Unit { forward: unit.forward.after_copy(there), backward: unit.backward.after_copy(back), ..unit })
    }

    /// What adds a micro-batch's gradients to those before. Those that share parameters by units add up shares of them.
    fn sums(&self, parameters: [f64; 2]) -> Vec<Piece> {
        if self.parallel.micro_batches() > 1 && !self.software.execution.by_units(self.parallel.zero) {
            work::accumulate((parameters[0] + parameters[1]) as u64, false, self.software)
        } else {
            Vec::new()
        }
    }

    /// A forward pass through a chunk of a stage beside a backward pass through a chunk: layer by layer, the last layer
    /// of the backward pass first. What one of them has more runs alone. Of two layers the backward one begins: its first exchange is
    /// beside attention of the other, the other's first beside its experts (Megatron-LM, `TransformerLayerSchedulePlan.run`).
    pub(super) fn both(
        &self,
        stage: &Stage,
        (forward, backward): (usize, usize),
        (timer, parts): (&Timer<'_>, &Parts),
        known: &mut HashMap<(Part, Part), Spent>,
    ) -> Result<Spent, TrainingError> {
        fn each(units: &[Unit]) -> impl DoubleEndedIterator<Item = &Unit> {
            units.iter().flat_map(|unit| std::iter::repeat_n(unit, unit.count as usize))
        }
        let mut sum = Spent::default();
        let mut back = each(&stage.chunks[backward]).rev();
        for there in each(&stage.chunks[forward]) {
            let Some(back) = back.next() else {
                sum.add(&there.forward, 1.0);
                continue;
            };
            let key = (there.part, back.part);
            if !known.contains_key(&key)
                && let (Some(one), Some(other)) = (parts.of(there.part), parts.of(back.part))
            {
                let back_pieces = [&other.recompute[..], &other.backward, &self.sums(back.parameters)].concat();
                let host = self.host(there.part, &one.forward, false)
                    + single::host(&other.recompute, false, self.software, self.gpu)
                    + self.host(back.part, &other.backward, true);
                let mut spent = Spent { host, ..timer.both(&back_pieces, &one.forward)? };
                spent.wait(spent.behind());
                known.insert(key, spent);
            }
            if let Some(spent) = known.get(&key) {
                sum.add(spent, 1.0);
            }
        }
        for back in back {
            [&back.recompute, &back.backward, &back.weights].into_iter().for_each(|pass| sum.add(pass, 1.0));
        }
        Ok(sum)
    }

    /// What each stage has: layers in order, chunk after chunk through all stages. With DualPipe two chunks: those that
    /// micro-batches from the nearer and from the farther end go through.
    pub(crate) fn stages(&self, layers: &Layers) -> Vec<Stage> {
        let all = self.one_way(layers);
        if self.parallel.copies() == 1 {
            return all;
        }
        let count = all.len();
        let chunk = |stage: usize| all[stage].chunks[0].clone();
        let both = |stage: usize| {
            let (near, far) = (stage.min(count - 1 - stage), stage.max(count - 1 - stage));
            Stage { chunks: vec![chunk(near), chunk(far)] }
        };
        (0..count).map(both).collect()
    }

    /// The same, with what each pass waits for the host.
    pub(super) fn stages_with_host(&self, layers: &Layers) -> Vec<Stage> {
        let mut stages = self.stages(layers);
        stages.iter_mut().for_each(|stage| stage.wait_for_host(self.host_waits()));
        stages
    }

    fn one_way(&self, layers: &Layers) -> Vec<Stage> {
        let stages = self.parallel.chunk_layers(self.model);
        let chunks = self.parallel.virtual_stages as usize;
        let mut all: Vec<Stage> = stages.iter().map(|_| Stage { chunks: Vec::new() }).collect();
        let (mut next, dense) = (0, self.model.dense_layers());
        for chunk in 0..chunks {
            for (stage, counts) in stages.iter().enumerate() {
                let count = counts[chunk];
                let mut units = Vec::new();
                if chunk == 0 && stage == 0 {
                    units.push(layers.embedding);
                }
                let first = dense.clamp(next, next + count) - next;
                for (unit, count) in layers.layers.iter().zip([first, count - first]) {
                    units.extend(unit.filter(|_| count > 0).map(|unit| Unit { count, ..unit }));
                }
                next += count;
                if next == self.model.layers && chunk + 1 == chunks && stage + 1 == stages.len() {
                    // A tied head is the embedding where one stage has both, else a copy.
                    let parameters = if self.model.tied && stage == 0 { [0.0; 2] } else { layers.head.parameters };
                    units.push(Unit { parameters, ..layers.head });
                    units.extend(layers.further.map(|unit| Unit { count: self.model.predictions, ..unit }));
                }
                all[stage].chunks.push(units);
            }
        }
        all
    }

    /// The message between two stages.
    pub(super) fn message(&self, timer: &Timer<'_>) -> Result<Option<Call>, TrainingError> {
        let whole = timer.shape(Axis::Pipeline);
        let splits = self.parallel.sequence_parallel || self.software.execution.splits_messages;
        let split = if splits { f64::from(self.parallel.tensor) } else { 1.0 };
        let bytes = 2.0 * self.parallel.tokens(self.model) * self.model.hidden as f64 / split;
        let pair = Shape { size: whole.size.min(2), ..whole };
        Ok(timer.call(("activations and their gradients", Kind::Pipeline), pair, Exchange::Shift, bytes as u64)?)
    }

    /// The call in which tensor ranks gather the parts of a message that each of them received, where their layers need it whole.
    ///
    /// Source: Megatron-LM of 2022, `megatron/p2p_communication.py`, `gather_split_1d_tensor`.
    pub(super) fn joins(&self, timer: &Timer<'_>) -> Result<Option<Call>, TrainingError> {
        let parts = self.software.execution.splits_messages && !self.parallel.sequence_parallel;
        if !parts || self.parallel.pipeline < 2 {
            return Ok(None);
        }
        let bytes = 2.0 * self.parallel.tokens(self.model) * self.model.hidden as f64;
        let gather = Exchange::Collective(Collective::AllGather);
        Ok(timer.call(("parts of a message", Kind::Pipeline), timer.shape(Axis::Tensor), gather, bytes as u64)?)
    }

    /// What the optimizer does on a stage.
    pub(super) fn optimizer(&self, stage: &Stage) -> Vec<Piece> {
        let sum = |place: usize| stage.units().map(|unit| unit.parameters[place] * unit.count as f64).sum::<f64>();
        let shards = [self.parallel.dense_shards(), self.parallel.expert_shards()]
            .map(|n| if self.parallel.zero > 0 { n } else { 1 });
        // Two ranks that have the same parameters share the work on them as replicas do.
        let copies = if self.parallel.zero > 0 { self.parallel.copies() as f64 } else { 1.0 };
        let own = (sum(0) / shards[0] as f64 + sum(1) / shards[1] as f64) / copies;
        work::optimizer((own as u64, (sum(0) + sum(1)) as u64), stage.tensors(), self.parallel, self.software)
    }

    /// The step with its optimizer, given the busiest stage and what it spent before.
    pub(crate) fn whole(
        &self,
        stages: &[Stage],
        (busiest, spent): (usize, Spent),
        timer: &Timer<'_>,
    ) -> Result<Step, TrainingError> {
        let (mut optimizer, mut update) = (0.0_f64, 0.0_f64);
        for stage in stages {
            optimizer = optimizer.max(timer.pieces(&self.optimizer(stage), None)?.seconds);
            let tensors = stage.tensors();
            update = update.max(single::update(tensors, self.parallel, self.software, self.gpu));
        }
        // While the GPU updates its parameters, the host issues the next passes, which then wait the less for it: not where it
        // waits in a layer for how many tokens each expert has, and of a pipeline the first stage alone could. What has
        // waited in its passes is no shorter than its host.
        let runs_ahead = self.parallel.pipeline < 2 && self.model.experts.is_none();
        let ahead = if runs_ahead { spent.issued.min(optimizer).max(0.0) } else { 0.0 };
        let seconds = (spent.seconds + optimizer - ahead).max(spent.host + update);
        let no_rounding = |time: f64| if time > ROUNDING * seconds { time } else { 0.0 };
        let issued = no_rounding(spent.issued + seconds - spent.seconds - optimizer);
        let exposed: f64 = spent.exposed.iter().sum();
        let rest = no_rounding(seconds - optimizer - spent.kernels - spent.slowed - issued - exposed);
        let recomputed = stages[busiest].recomputed() * self.through_each();
        // While it waits for other stages these run passes like its own, whose kernels and calls are off by as much.
        let passes = spent.kernels + spent.slowed + issued + exposed;
        let with_others = 1.0 + if passes > 0.0 { rest / passes } else { 0.0 };
        let off = (spent.kernels * with_others * self.kernels_off).powi(2);
        let calls_off = spent.variance.map(|variance| variance.sqrt() * with_others);
        // Another host with the same GPUs issues as much in less time, or in more, where it sets the pace of all or of a pass.
        let host = spent.host + update;
        let paced = if host >= seconds { host } else { spent.paced };
        let faster = issued.min(paced * (1.0 - 1.0 / HOSTS_DIFFER));
        let slower = (host * HOSTS_DIFFER - seconds).max(paced * (HOSTS_DIFFER - 1.0));
        let interval = |variance: f64, host: f64| (variance + off + host.powi(2)).sqrt();
        let [low, high] = [interval(calls_off[0].powi(2), faster), interval(calls_off[1].powi(2), slower)];
        Ok(Step {
            seconds,
            interval: ((seconds - low).max(0.0), seconds + high),
            calls_off,
            busiest,
            kernels: spent.kernels,
            recomputed,
            slowed: spent.slowed,
            issued,
            exposed: Kind::ALL.into_iter().zip(spent.exposed).filter(|(_, time)| no_rounding(*time) > 0.0).collect(),
            bubble: rest,
            optimizer,
            clock: timer.clock.share(),
        })
    }
}

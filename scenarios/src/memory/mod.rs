//! Bytes that training needs on each GPU, by what holds them.
//!
//! [`plan`] takes a model, a layout and what a framework keeps ([`Framework::software`]), and gives each stage of the
//! pipeline its [`Stage`]; [`Memory::fits`] says whether a GPU is large enough, and by what.

mod flight;
mod kept;
mod local;
mod planner;
mod software;

use serde::Serialize;

use crate::parallel::{Axis, Parallel, Refused};
use crate::transformer::Transformer;

pub use flight::in_flight;
pub use kept::{Kept, layer};
pub use software::{Framework, Kernel, Loss, Selective, Software, States};

pub(crate) use kept::sum;
use local::Local;
pub(crate) use local::of_layer;
use planner::Planner;

/// CUDA's context. Source: NVIDIA aiconfigurator 095f58a51, `systems/*.yaml`: 0.5 GB; and cuBLAS's workspace of 32 MiB on
/// Hopper (cuBLAS, `cublasSetWorkspace`).
const CONTEXT: f64 = 0.5e9 + 33_554_432.0;
/// NCCL's buffers of a rank's first communicator, of 2 ranks and of more. Source: the same file, `nccl_mem`.
const NCCL_PAIR: f64 = 358.6e6;
const NCCL_MORE: f64 = 411.0e6;
/// Of every further communicator, which shares some of them: taken between 20 and 100 MB, as reported; not measured.
const NCCL_FURTHER: f64 = 60e6;

/// Bytes on a GPU of one stage at its fullest moment, by what holds them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Stage {
    /// Which stage, from 0.
    pub stage: u64,
    /// Its layers.
    pub layers: u64,
    /// Parameters that the GPU holds.
    pub parameters: u64,
    /// Bytes of them.
    pub weights: u64,
    /// Their gradients, as far as they are there at that moment.
    pub gradients: u64,
    /// Optimizer states.
    pub optimizer: u64,
    /// Parameters and gradients that are whole for a while (ZeRO-3, FSDP).
    pub gathered: u64,
    /// What layers keep for backward passes, all micro-batches in flight.
    pub activations: u64,
    /// What comes and goes at that moment: the loss, or one layer computed again.
    pub working: u64,
    /// Inputs and outputs of the stage that are kept beside.
    pub boundary: u64,
    /// Buffers of communicators.
    pub communicators: u64,
    /// CUDA's context and workspaces.
    pub context: u64,
    /// What the allocator holds and cannot use.
    pub fragmentation: u64,
    /// Of that, whole blocks, which it gives back before the GPU is full.
    #[serde(skip)]
    pub holes: u64,
}

impl Stage {
    /// Tensors: what PyTorch calls allocated.
    pub fn allocated(&self) -> u64 {
        self.parts()[..TENSORS].iter().fold(0, |sum, part| sum.saturating_add(part.1))
    }

    /// What the allocator holds: what PyTorch calls reserved.
    pub fn reserved(&self) -> u64 {
        self.allocated().saturating_add(self.fragmentation)
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.reserved().saturating_add(self.communicators + self.context)
    }

    /// Parts by name, in the order of the fields.
    pub fn parts(&self) -> [(&'static str, u64); 10] {
        [
            ("weights", self.weights),
            ("gradients", self.gradients),
            ("optimizer", self.optimizer),
            ("gathered", self.gathered),
            ("activations", self.activations),
            ("working", self.working),
            ("boundary", self.boundary),
            ("communicators", self.communicators),
            ("context", self.context),
            ("fragmentation", self.fragmentation),
        ]
    }
}

/// How many of [`Stage::parts`] are tensors: those before the communicators.
const TENSORS: usize = 7;

/// Memory of all stages.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Memory {
    /// By stage, from the first.
    pub stages: Vec<Stage>,
}

/// Whether a GPU is large enough.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fit {
    /// It is.
    Fits {
        /// Bytes that are left on the fullest stage.
        left: u64,
    },
    /// It is not.
    TooLarge {
        /// The fullest stage.
        stage: u64,
        /// Bytes that it lacks.
        lacks: u64,
        /// What takes most there.
        most: &'static str,
    },
}

impl Memory {
    /// The fullest stage.
    pub fn worst(&self) -> Stage {
        self.stages.iter().copied().max_by_key(Stage::total).unwrap_or_default()
    }

    /// On a GPU with `capacity` bytes, where the allocator gives blocks back that nothing uses before it is full.
    ///
    /// Source: PyTorch 2.11, `c10/cuda/CUDACachingAllocator.cpp`, `malloc`: it frees cached blocks and tries again.
    #[must_use]
    pub fn within(mut self, capacity: u64) -> Self {
        for stage in &mut self.stages {
            let given = stage.holes.min(stage.total().saturating_sub(capacity));
            stage.fragmentation -= given;
            stage.holes -= given;
        }
        self
    }

    /// Whether a GPU with `capacity` bytes is large enough for every stage as it is; see [`Self::within`].
    pub fn fits(&self, capacity: u64) -> Fit {
        let worst = self.worst();
        match capacity.checked_sub(worst.total()) {
            Some(left) => Fit::Fits { left },
            None => {
                let most = worst.parts().into_iter().max_by_key(|part| part.1).map_or("", |part| part.0);
                Fit::TooLarge { stage: worst.stage, lacks: worst.total() - capacity, most }
            }
        }
    }
}

/// Memory of each stage.
///
/// # Errors
/// A layout that the model does not allow.
pub fn plan(model: &Transformer, parallel: &Parallel, software: &Software) -> Result<Memory, Refused> {
    parallel.check_paired(model, software.execution.overlaps_experts)?;
    let mut first = 0;
    let stages = parallel.chunk_layers(model).into_iter().enumerate().map(|(stage, chunks)| {
        let layers = chunks.iter().sum::<u64>();
        let plan = Planner { model, parallel, software, stage: stage as u64, layers: first..first + layers, chunks };
        first += layers;
        plan.stage()
    });
    Ok(Memory { stages: stages.collect() })
}

/// What is there at one moment, besides what always is.
#[derive(Clone, Copy, Default)]
struct Moment {
    gradients: f64,
    activations: f64,
    working: f64,
    /// Free blocks that nothing fits in.
    holes: f64,
}

impl Moment {
    fn sum(&self) -> f64 {
        self.gradients + self.activations + self.working + self.holes
    }
}

impl Planner<'_> {
    fn stage(&self) -> Stage {
        let local = Local::of(self);
        let [weights, gradients, optimizer] = self.states(&local);
        let gathered = local.gathered(self);
        let boundary = self.boundary();
        let moments = self.moments(gradients);
        let fullest = moments.into_iter().max_by(|a, b| a.sum().total_cmp(&b.sum())).unwrap_or_default();
        let needed = moments.iter().map(|moment| moment.sum() - moment.holes).fold(0.0, f64::max);
        let moving = gathered + boundary + fullest.activations + fullest.working;
        let bytes = |value: f64| value.max(0.0).round() as u64;
        Stage {
            stage: self.stage,
            layers: self.layers.end - self.layers.start,
            parameters: bytes(local.total()),
            weights: bytes(weights),
            gradients: bytes(fullest.gradients),
            optimizer: bytes(optimizer),
            gathered: bytes(gathered),
            activations: bytes(fullest.activations),
            working: bytes(fullest.working),
            boundary: bytes(boundary),
            communicators: bytes(self.communicators()),
            context: bytes(CONTEXT),
            fragmentation: bytes(fullest.holes + self.software.fragmentation * moving),
            holes: bytes((fullest.sum() - needed).min(fullest.holes)),
        }
    }

    fn states(&self, local: &Local) -> [f64; 3] {
        let zero = self.parallel.zero;
        let copies = self.parallel.copies() as f64;
        // Replicas sum gradients once a step, and hold their own until then. Where they exchange unit by unit, those that are held
        // whole are in what is gathered.
        let by_units = self.software.execution.by_units(zero);
        let own = zero == 2 && self.parallel.micro_batches() > 1 && !by_units;
        let shares = |shards| {
            let [weight, gradient, optimizer] = self.software.states.shares(if by_units { 3 } else { zero }, shards);
            [weight, if own { self.software.states.gradient } else { gradient }, optimizer]
        };
        let [dense, experts] = [self.parallel.dense_shards(), self.parallel.expert_shards()].map(shares);
        let part = |place: usize| local.dense() * dense[place] + local.experts * experts[place];
        // Both ranks of a stage share its optimizer where replicas do.
        [part(0) * copies, part(1) * copies, if zero > 0 { part(2) } else { part(2) * copies }]
    }

    /// Bytes that all layers of the stage keep of one micro-batch on the GPU. Of those that keep theirs in host memory the last
    /// is still on its way when the last layer ends.
    fn micro_batch(&self) -> f64 {
        let of = |kind| sum(&layer(self.model, kind, self.parallel, self.software));
        let mut away = self.parallel.offload.saturating_sub(1);
        let mut layers = 0.0;
        for (kind, count) in self.kinds().into_iter().filter(|kind| kind.1 > 0) {
            let gone = away.min(count);
            away -= gone;
            layers += (count - gone) as f64 * of(kind);
        }
        let further = match self.model.predictions {
            further if further > 0 && self.last() => further as f64 * of(self.model.kind(self.model.layers - 1)),
            _ => 0.0,
        };
        (layers + further) * self.parallel.tokens(self.model)
    }

    fn in_flight(&self) -> f64 {
        in_flight(self.parallel, self.stage, &self.chunks, self.software.execution.pairs(self.parallel))
    }

    /// The most that layers keep at once, with the mask of the embedding's dropout on the first stage.
    fn activations(&self) -> f64 {
        let mask = self.stage == 0 && self.model.dropout && self.software.statistics;
        let mask =
            if mask { self.model.hidden as f64 / self.residual() * self.parallel.tokens(self.model) } else { 0.0 };
        (self.micro_batch() + mask) * self.in_flight()
    }

    fn working(&self) -> f64 {
        let of = |kind| kept::working(self.model, kind, self.parallel, self.software);
        let kinds = self.kinds().into_iter().filter(|kind| kind.1 > 0).map(|kind| kind.0);
        let further = (self.last() && self.model.predictions > 0).then(|| self.model.kind(self.model.layers - 1));
        kinds.chain(further).map(of).fold(0.0, f64::max) * self.parallel.tokens(self.model)
    }

    /// Whether gradients outlive a micro-batch.
    fn keeps_gradients(&self) -> bool {
        self.software.permanent_gradients || self.parallel.micro_batches() > 1 || self.parallel.zero > 1
    }

    /// Bytes of one gradient that is made beside the one that it is added to.
    fn added(&self, parameters: f64) -> f64 {
        let separate =
            !self.software.permanent_gradients && self.parallel.micro_batches() > 1 && self.parallel.zero < 3;
        if separate { parameters * self.software.states.gradient } else { 0.0 }
    }

    /// The three moments that can be the fullest.
    fn moments(&self, gradients: f64) -> [Moment; 3] {
        let (tokens, h) = (self.parallel.tokens(self.model), self.model.hidden as f64);
        let table = self.vocabulary() / f64::from(self.parallel.tensor) * h;
        let logits = table / h * (1 + self.model.predictions) as f64 * tokens;
        let kept = if self.keeps_gradients() { gradients } else { 0.0 };
        let activations = self.activations();
        // The first layer's backward pass ends: all gradients are there, and of its micro-batch this layer only.
        let others = (self.in_flight() - 1.0).max(0.0) * self.micro_batch();
        let layers = (self.layers.end - self.layers.start).max(1) as f64;
        let embedding = if self.stage == 0 { self.added(table) } else { 0.0 };
        let first = Moment {
            gradients,
            activations: others + self.micro_batch() / layers,
            working: self.working().max(embedding),
            holes: 0.0,
        };
        // The last layer's backward pass begins.
        let last = Moment { gradients: kept, activations, working: self.working(), holes: 0.0 };
        if !self.last() {
            return [first, last, last];
        }
        let [bytes, hole] = self.software.loss.bytes(self.parallel.tensor);
        // The last norm's input and output stay until the head's gradients are made.
        let output = if self.software.gathers_again { self.residual() } else { 1.0 };
        let norm = (2.0 * h / self.residual() + 2.0 * h / output) * tokens;
        let loss = Moment { gradients: kept, activations, working: bytes * logits + norm, holes: hole * logits };
        // The head's gradient is made from BF16 gradients of the logits.
        let own = if self.keeps_gradients() { kept } else { table * self.software.states.gradient };
        let head = Moment { gradients: own, activations, working: 2.0 * logits + norm + self.added(table), holes: 0.0 };
        let later = if head.sum() > last.sum() { head } else { last };
        [first, later, loss]
    }

    /// The output of a stage and a buffer for what it receives, for each micro-batch in flight.
    fn boundary(&self) -> f64 {
        if self.parallel.pipeline == 1 || !self.software.keeps_boundary {
            return 0.0;
        }
        let tensor = 2.0 * self.model.hidden as f64 / self.residual() * self.parallel.tokens(self.model);
        2.0 * tensor * self.in_flight()
    }

    fn communicators(&self) -> f64 {
        let groups = [Axis::Tensor, Axis::Context, Axis::DataContext, Axis::Pipeline, Axis::Expert, Axis::ExpertData];
        let with_experts = self.model.experts.is_some();
        let largest = |axis: &Axis| match axis {
            Axis::Expert | Axis::ExpertData if !with_experts => 1,
            axis => self.parallel.group_size(*axis),
        };
        let sizes: Vec<u64> = groups.iter().map(largest).filter(|&size| size > 1).collect();
        match sizes.iter().max() {
            None => 0.0,
            Some(2) => NCCL_PAIR + NCCL_FURTHER * (sizes.len() - 1) as f64,
            Some(_) => NCCL_MORE + NCCL_FURTHER * (sizes.len() - 1) as f64,
        }
    }
}

#[cfg(test)]
mod tests;

//! Time of one rank's work on one GPU, with the host that issues it.
//!
//! A host thread issues kernels into a queue; the GPU runs them one after another. Over many calls back to back the slower of
//! the two sets the pace: small layers wait for the host. Exchanges take no time here.

use collcast_sim::compute::{Clock, Compute, Constant, Kernel, Unsupported};
use collcast_sim::units::SimDuration;

use super::{Elements, ExpertKernels, Passes, Piece, Units};
use crate::memory::Software;
use crate::parallel::Parallel;
use crate::transformer::{LayerKind, Transformer};

/// Host work of a kernel in a forward pass and in a backward pass, in units of `issue.element`: with the modules and views
/// around it, and with automatic differentiation. Fitted to layers of eager PyTorch on two hosts: to the half of the rows of
/// `blocks.csv` whose name and sizes have an odd hash (FNV-1a); the other half comes out at a mean of 2.4%. With
/// [`ExpertKernels::Written`] each expert of a rank counts by itself: Transformer Engine's `GroupedLinear` loops over them in Python, casts, multiplies and keeps a parameter
/// for each, and Megatron-LM hooks each parameter's gradient.
const ISSUE: [f64; 2] = [2.05, 5.6];
/// The same of a kernel that an operator launches beside its first, in either pass. Source: 11 us each in a sort of 22 kernels,
/// where a kernel of an operator of its own took 18 to 20 (profile of experts on an H200, PyTorch 2.11, 2026-11-27).
const LAUNCH: f64 = 0.6;

/// Host work of hooks that shard parameters, in units of `issue.element`: so much and so much for each tensor, by pass. Read in
/// `host_h200x2.csv`: layers of few and of many tensors, sharded and not.
struct Hooks {
    unit: [f64; 2],
    tensor: [f64; 2],
    /// For each tensor in the norm of gradients and in the optimizer.
    update: f64,
}

/// FSDP2 gathers a unit and frees it in each pass, and sums its gradients in the backward one.
const SHARDED: Hooks = Hooks { unit: [110.0, 240.0], tensor: [8.0, 2.0], update: 6.0 };
/// DTensor splits each operator of layers that no compiler has traced.
const SPLIT: Hooks = Hooks { unit: [0.0; 2], tensor: [58.0, 74.0], update: 20.0 };

/// How long work takes, by who does it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Time {
    /// Of the GPU alone.
    pub gpu: SimDuration,
    /// Of the host that issues it.
    pub host: SimDuration,
}

impl Time {
    /// Of calls back to back: that of the slower one.
    pub fn total(&self) -> SimDuration {
        self.gpu.max(self.host)
    }
}

/// Forward pass of a layer, and forward and backward pass together.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Block {
    /// Without gradients.
    pub forward: Time,
    /// With what is computed again.
    pub both: Time,
}

/// Time of one layer, over and over.
///
/// # Errors
/// A precision that the GPU has not.
pub fn block(
    model: &Transformer,
    kind: LayerKind,
    parallel: &Parallel,
    software: &Software,
    gpu: &Compute,
) -> Result<Block, Unsupported> {
    let passes = super::layer(model, kind, parallel, software);
    let mut work = Work::new(software);
    work.add(&passes.forward, 1, 0);
    let forward = work.time(gpu)?;
    work.add(&passes.recompute, 1, 0);
    work.add(&passes.backward, 1, 1);
    Ok(Block { forward, both: work.time(gpu)? })
}

/// Time of a training step of a whole model on one GPU: all micro-batches, all layers, both ends, the optimizer.
///
/// # Errors
/// A precision that the GPU has not.
pub fn step(model: &Transformer, parallel: &Parallel, software: &Software, gpu: &Compute) -> Result<Time, Unsupported> {
    let count = parallel.micro_batches().max(1);
    let mut work = Work::new(software);
    let mut all = |passes: &Passes, layers: u64| {
        work.add(&passes.forward, count * layers, 0);
        work.add(&passes.recompute, count * layers, 0);
        work.add(&passes.backward, count * layers, 1);
    };
    let dense = model.dense_layers();
    for (kind, layers) in [(LayerKind::Dense, dense), (LayerKind::Experts, model.layers - dense)] {
        if layers > 0 {
            all(&super::layer(model, kind, parallel, software), layers);
        }
    }
    all(&super::embedding(model, parallel, software), 1);
    all(&super::head(model, parallel, software), 1);
    if model.predictions > 0 {
        all(&super::prediction(model, parallel, software), model.predictions);
    }
    let parameters = model.parameters().held();
    work.add(&super::accumulate(parameters, true, software), 1, 1);
    work.add(&super::accumulate(parameters, false, software), count - 1, 1);
    work.add(&super::optimizer((parameters, parameters), tensors(model), parallel, software), 1, 0);
    work.time(gpu)
}

/// Seconds of the host thread that issues the kernels of pieces, of a forward pass or of a backward one.
pub(crate) fn host(pieces: &[Piece], backward: bool, software: &Software, gpu: &Compute) -> f64 {
    let mut work = Work::new(software);
    work.add(pieces, 1, usize::from(backward));
    work.host(gpu) * 1e-6
}

/// Hooks that run in a step.
fn hooks_of(parallel: &Parallel, software: &Software) -> impl Iterator<Item = Hooks> {
    let execution = &software.execution;
    let sharded = execution.units == Units::Parameters && parallel.zero == 3;
    let split = execution.splits_second && execution.elements == Elements::Eager && parallel.tensor > 1;
    [sharded.then_some(SHARDED), split.then_some(SPLIT)].into_iter().flatten()
}

/// Seconds of the host thread for the hooks around a unit of so many tensors.
pub(crate) fn hooks(tensors: u64, backward: bool, parallel: &Parallel, software: &Software, gpu: &Compute) -> f64 {
    let pass = usize::from(backward);
    let of = |hooks: Hooks| hooks.unit[pass] + hooks.tensor[pass] * tensors as f64;
    hooks_of(parallel, software).map(of).sum::<f64>() * gpu[Constant::IssueElement].value * 1e-6
}

/// Seconds of the host thread to clip and update so many tensors that hooks have split.
pub(crate) fn update(tensors: u64, parallel: &Parallel, software: &Software, gpu: &Compute) -> f64 {
    let of = |hooks: Hooks| hooks.update * tensors as f64;
    hooks_of(parallel, software).map(of).sum::<f64>() * gpu[Constant::IssueElement].value * 1e-6
}

/// Tensors of a layer: four of attention, three of an MLP, two norms.
pub(crate) const LAYER_TENSORS: u64 = 9;

/// Tensors of a model's parameters, to a few.
fn tensors(model: &Transformer) -> u64 {
    (model.layers + model.predictions) * LAYER_TENSORS + 3
}

/// Kernels, each so many times in each of the passes.
struct Work {
    mix: Vec<(Kernel, u64)>,
    experts: ExpertKernels,
    /// Kernels of forward and of backward passes, and those that operators launch beside their first.
    issued: [u64; 2],
    inner: u64,
}

impl Work {
    fn new(software: &Software) -> Self {
        Self { mix: Vec::new(), experts: software.execution.expert_kernels, issued: [0; 2], inner: 0 }
    }

    fn add(&mut self, pieces: &[Piece], times: u64, pass: usize) {
        for piece in pieces {
            if let Piece::Kernel(run) = piece {
                let times = times * u64::from(run.count);
                let inner = u64::from(run.inner);
                self.issued[pass] += times * (launches(&run.kernel, self.experts) - inner);
                self.inner += times * inner;
                match self.mix.iter_mut().find(|(kernel, _)| *kernel == run.kernel) {
                    Some((_, count)) => *count += times,
                    None => self.mix.push((run.kernel.clone(), times)),
                }
            }
        }
    }

    fn host(&self, gpu: &Compute) -> f64 {
        let operators: f64 = (0..2).map(|pass| self.issued[pass] as f64 * ISSUE[pass]).sum();
        (operators + self.inner as f64 * LAUNCH) * gpu[Constant::IssueElement].value
    }

    fn time(&self, gpu: &Compute) -> Result<Time, Unsupported> {
        let clock: Clock = gpu.sustained(&self.mix);
        let mut us = 0.0;
        for (kernel, count) in &self.mix {
            us += gpu.time(kernel, clock)?.as_us() * *count as f64;
        }
        Ok(Time { gpu: SimDuration::from_us(us), host: SimDuration::from_us(self.host(gpu)) })
    }
}

/// Kernels that a piece launches.
fn launches(kernel: &Kernel, experts: ExpertKernels) -> u64 {
    match kernel {
        Kernel::Memory(memory) => memory.kernels.into(),
        Kernel::Product(product) if experts == ExpertKernels::Written => product.tokens.count(),
        Kernel::Product(_) | Kernel::Attention(_) | Kernel::Optimizer(_) | Kernel::HostCopy(_) => 1,
    }
}

//! Time of one rank's work on one GPU, with the host that issues it.
//!
//! A host thread issues kernels into a queue; the GPU runs them one after another. Over many calls back to back the slower of
//! the two sets the pace: small layers wait for the host. Exchanges take no time here.

use collcast_sim::compute::{Clock, Compute, Constant, Kernel, Unsupported};
use collcast_sim::units::SimDuration;

use super::{ExpertKernels, Passes, Piece};
use crate::memory::Software;
use crate::parallel::Parallel;
use crate::transformer::{LayerKind, Transformer};

/// Host work of a kernel in a forward pass and in a backward pass, in units of `issue.element`: with the modules and views
/// around it, and with automatic differentiation. Fitted to layers of eager PyTorch on two hosts: to the half of the rows of
/// `blocks.csv` whose name and sizes have an odd hash (FNV-1a); the other half comes out at a mean of 2.4%. With
/// [`ExpertKernels::Written`] each expert of a rank counts by itself: Transformer Engine's `GroupedLinear` loops over them in Python, casts, multiplies and keeps a parameter
/// for each, and Megatron-LM hooks each parameter's gradient.
const ISSUE: [f64; 2] = [2.05, 5.6];

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
    work.add(&super::optimizer(parameters, tensors(model), parallel, software), 1, 0);
    work.time(gpu)
}

/// Seconds of the host thread that issues the kernels of pieces, of a forward pass or of a backward one.
pub(crate) fn host(pieces: &[Piece], backward: bool, software: &Software, gpu: &Compute) -> f64 {
    let mut work = Work::new(software);
    work.add(pieces, 1, usize::from(backward));
    work.host(gpu) * 1e-6
}

/// Tensors of a model's parameters, to a few.
fn tensors(model: &Transformer) -> u64 {
    (model.layers + model.predictions) * 9 + 3
}

/// Kernels, each so many times in each of the passes.
struct Work {
    mix: Vec<(Kernel, u64)>,
    experts: ExpertKernels,
    /// Kernels of forward and of backward passes.
    issued: [u64; 2],
}

impl Work {
    fn new(software: &Software) -> Self {
        Self { mix: Vec::new(), experts: software.execution.expert_kernels, issued: [0; 2] }
    }

    fn add(&mut self, pieces: &[Piece], times: u64, pass: usize) {
        for piece in pieces {
            if let Piece::Kernel(run) = piece {
                let times = times * u64::from(run.count);
                self.issued[pass] += times * launches(&run.kernel, self.experts);
                match self.mix.iter_mut().find(|(kernel, _)| *kernel == run.kernel) {
                    Some((_, count)) => *count += times,
                    None => self.mix.push((run.kernel.clone(), times)),
                }
            }
        }
    }

    fn host(&self, gpu: &Compute) -> f64 {
        (0..2).map(|pass| self.issued[pass] as f64 * ISSUE[pass] * gpu[Constant::IssueElement].value).sum()
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

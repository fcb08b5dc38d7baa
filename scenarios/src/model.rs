//! A model as a list of layers, each a list of operations with their times.

use std::sync::Arc;

use collcast_sim::units::{Bytes, SimDuration};
use collcast_sim::workload::Compute;

/// A pass over one operation: kernels one after another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Work {
    /// What it takes alone.
    pub time: SimDuration,
    /// Kernels of equal length.
    pub kernels: u32,
    /// Waves of blocks of each.
    pub waves: u32,
    /// Tiles of each, in turn; 0 where they spread evenly.
    pub tiles: [u32; 2],
    /// Part of the memory's rate that it needs, in millionths.
    pub memory_ppm: u32,
}

impl Work {
    /// As the engine takes it, `times` as long.
    pub fn compute(self) -> Compute {
        let Self { time, kernels, waves, tiles, memory_ppm } = self;
        Compute { time, kernels, waves, tiles, memory_ppm }
    }
}

/// An operation of a layer, such as a matrix product.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operation {
    /// Its name.
    pub name: Arc<str>,
    /// Forward pass.
    pub forward: Work,
    /// Backward pass.
    pub backward: Work,
    /// Its tensors of parameters, in elements, in the order of their use.
    pub parameters: Vec<u64>,
    /// What tensor parallelism all-reduces after the forward pass; 0 for nothing.
    pub sum_forward: Bytes,
    /// The same after the backward pass.
    pub sum_backward: Bytes,
}

/// A layer: what FSDP gathers at once and a pipeline does not split.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layer {
    /// Its name, with its number.
    pub name: Arc<str>,
    /// Operations, in forward order.
    pub operations: Vec<Operation>,
    /// What it hands to the next layer, for one micro-batch.
    pub output: Bytes,
}

impl Layer {
    /// Elements of all its parameters.
    pub fn parameters(&self) -> u64 {
        self.operations.iter().flat_map(|o| &o.parameters).sum()
    }
}

/// A model on one rank: what one rank of a tensor-parallel group computes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Model {
    /// Layers, in forward order.
    pub layers: Vec<Layer>,
    /// Bytes of a parameter where it is gathered.
    pub parameter_bytes: u64,
    /// Bytes of a gradient where it is reduced.
    pub gradient_bytes: u64,
}

impl Model {
    /// Bytes of all parameters, as they are gathered.
    pub fn size(&self) -> Bytes {
        Bytes(self.layers.iter().map(Layer::parameters).sum::<u64>() * self.parameter_bytes)
    }

    /// Bytes of all gradients, as they are reduced.
    pub fn gradients(&self) -> Bytes {
        Bytes(self.layers.iter().map(Layer::parameters).sum::<u64>() * self.gradient_bytes)
    }
}

//! Workloads and what-ifs as data: builds operation graphs for the engine of `collcast-sim`.
//!
//! A scenario file ([`mod@file`]) names a machine, a model as a list of layers, a layout and a
//! strategy. [`step::graph`] turns it into an [`collcast_sim::workload::OpGraph`]; the strategies
//! ([`ddp`], [`fsdp`], [`pipeline`]) are programs that build graphs and know nothing of time.
//! [`study`] runs a scenario, takes its exposed time apart and asks what would help.
//!
//! For planning, [`transformer`] describes a model by its shape, and [`parallel`] how ranks share it. [`memory`] says what
//! each GPU holds, [`work`] what it runs, [`training`] how long a step takes, [`goodput`] what failures leave of the time.
//! [`serving`] runs requests through copies of a model.

pub mod builtin;
pub mod chakra;
pub mod ddp;
pub mod emit;
pub mod file;
pub mod fsdp;
pub mod goal;
pub mod goodput;
pub mod memory;
pub mod model;
pub mod parallel;
pub mod pipeline;
pub mod programs;
mod raw;
pub mod serving;
pub mod simai;
pub mod step;
pub mod study;
#[cfg(test)]
mod tests;
pub mod training;
pub mod transformer;
pub mod work;

use collcast_sim::ids::Rank;
use collcast_sim::topology::Topology;
use collcast_sim::workload::Device;
use collcast_topologies::catalogue;

/// What the GPUs of a machine have, by its own word or the catalogue's; none for a GPU that
/// neither knows.
pub fn device(topology: &Topology) -> Option<Device> {
    let gpu = topology.gpu(topology.gpu_of(Rank(0)))?;
    let product = catalogue::by_name(&gpu.model)?;
    let memory = gpu.memory_rate.unwrap_or(product.memory_rate());
    // NCCL's default from Hopper on: NCCL_CGA_CLUSTER_SIZE, `src/init.cc`.
    let cluster = if product.compute_capability >= 90 { 4 } else { 1 };
    Some(Device { sms: product.sms, memory, cluster })
}

//! Kernels that memory mostly bounds, and steps of optimisers.
//!
//! Their bytes go at the rate of memory, or of L2 where they fit and the call before used the same ones. Instructions of
//! element-wise kernels hide behind that; a normalisation first sums over a row and then goes over it again, so that they
//! add up, and so do an optimiser's square roots and divisions: measured on two GPUs that differ in memory alone, the part
//! that is not memory's is the same.

use super::constants::Constant;
use super::gpu::Compute;
use super::kernel::{Memory, MemoryKind, Optimizer};
use super::work::{Droop, Work};

/// Memory and instructions of an element-wise kernel overlap, as thousands of threads are at different places.
const HIDDEN: f64 = 8.0;
/// Those of a row's or parameter's parts that wait for each other do not.
const APART: f64 = 1.0;
/// J of a byte that threads load, work on and store, beside memory's own: products read theirs in bulk. By NVML's power while
/// kernels ran for 1.6 s (PyTorch 2.11, 2026-11-25; 4096 x 14336 elements of BF16), a product of elements takes 40 and 24 pJ
/// (H100 521 W at 2.93 TB/s, H200 597 W at 3.89 TB/s), SiLU 94 and 63 pJ (676 W at 2.91 TB/s; 699 W at 3.68 TB/s and 92% of
/// the clock). Layers have both; this is the most at which a copy on an H200 keeps its clock, as it does.
const HANDLED: f64 = 38e-12;
/// Part of L2 that a repeated call finds its bytes in.
const KEPT: f64 = 0.7;
/// Bytes of a row of which nothing is left in L1 when a block goes over it again: 256 KB of L1 on Hopper over 8 blocks of
/// 256 threads.
const ROW: f64 = 32768.0;
/// Tensors of one launch of a fused optimiser over parameters, gradients and two states, and elements of one: 320 blocks of
/// 65,536 (PyTorch `MultiTensorApply.cuh`, depth 4).
const TENSORS: u64 = 36;
const ELEMENTS: u64 = 320 * 65_536;

/// What a kernel bound by memory needs; `repeated`: the call before used the same bytes.
pub(super) fn work(gpu: &Compute, m: &Memory, repeated: bool) -> Work {
    let (instructions, sums) = match m.kind {
        MemoryKind::Copy | MemoryKind::Fill => (0.0, false),
        MemoryKind::Activation => (gpu.value(Constant::WorkActivation), false),
        MemoryKind::Norm => (gpu.value(Constant::WorkNorm), true),
        MemoryKind::LayerNorm => (gpu.value(Constant::WorkLayerNorm), true),
        MemoryKind::Softmax => (gpu.value(Constant::WorkSoftmax), true),
        MemoryKind::Scale | MemoryKind::Quantize => (gpu.value(Constant::WorkQuantize), true),
        MemoryKind::Widen => (gpu.value(Constant::WorkWiden), false),
        MemoryKind::Scatter => (gpu.value(Constant::WorkScatter), false),
        MemoryKind::Accumulate => (gpu.value(Constant::WorkAccumulate), false),
        MemoryKind::Multiply => (gpu.value(Constant::WorkMultiply), false),
        MemoryKind::Combine => (gpu.value(Constant::WorkCombine), false),
        MemoryKind::Spread => (gpu.value(Constant::WorkSpread), false),
    };
    let (reads, writes) = (m.reads as f64, m.writes as f64);
    let mut cores = instruction_time(gpu, instructions * m.rows as f64 * m.width as f64);
    if matches!(m.kind, MemoryKind::Norm | MemoryKind::LayerNorm) {
        // The second pass over a row finds a part of it in L1 and the rest in L2.
        let row = reads / m.rows.max(1) as f64;
        cores += reads * (row / ROW).min(1.0) / (gpu.value(Constant::MemoryL2) * 1e9);
    }
    if m.kind == MemoryKind::Fill {
        cores = writes / (gpu.value(Constant::MemoryStore) * gpu.value(Constant::Sms) * gpu.boost());
    }
    let bytes = reads + writes;
    let cached = repeated && bytes < KEPT * gpu.value(Constant::L2) * 1e6;
    let rate = match m.kind {
        _ if cached => gpu.value(Constant::MemoryL2) * 1e9,
        // What only writes never turns the memory's bus round, and reaches the nominal rate.
        MemoryKind::Fill => gpu.value(Constant::Memory) * 1e9,
        _ => gpu.memory_rate(),
    };
    let more = if m.kind == MemoryKind::Scale { gpu.value(Constant::KernelScale) } else { 0.0 };
    Work {
        start: (gpu.value(Constant::KernelStart) * f64::from(m.kernels.max(1)) + more) * 1e-6,
        cores,
        memory: bytes / rate,
        overlap: if sums { APART } else { HIDDEN },
        droop: Droop::default(),
        energy: bytes * HANDLED,
        memory_energy: bytes * gpu.value(Constant::EnergyByte) * 1e-12,
    }
}

/// What a step of an optimiser needs.
pub(super) fn step(gpu: &Compute, o: &Optimizer) -> Work {
    let elements = o.elements as f64;
    let bytes = elements * (f64::from(o.reads) + f64::from(o.writes));
    let launches = o.tensors.div_ceil(TENSORS).max(o.elements.div_ceil(ELEMENTS)).max(1) as f64;
    Work {
        start: gpu.value(Constant::KernelStart) * 1e-6 * launches,
        cores: instruction_time(gpu, elements * gpu.value(Constant::WorkOptimizer)),
        memory: bytes / gpu.memory_rate(),
        overlap: APART,
        droop: Droop::default(),
        energy: bytes * HANDLED,
        memory_energy: bytes * gpu.value(Constant::EnergyByte) * 1e-12,
    }
}

/// Seconds of so many instructions at the boost clock.
fn instruction_time(gpu: &Compute, instructions: f64) -> f64 {
    instructions / (gpu.value(Constant::Lanes) * gpu.value(Constant::Sms) * gpu.boost())
}

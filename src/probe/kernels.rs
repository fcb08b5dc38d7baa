//! Which kernels of one GPU are timed, as the tables that `validate --compute` and `calibrate --compute` read.

use std::time::Duration;

use collcast_hwbackend::cuda::{CHOOSES, Cuda, Element, Linear, LinearPass};
use collcast_hwbackend::exec::{Effort, ExecError, Sample};
use serde::Serialize;

use crate::error::Error;

/// Times of a kernel, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Times {
    /// The median.
    pub us: f64,
    /// The least.
    pub least_us: f64,
    /// The most.
    pub most_us: f64,
}

impl Times {
    pub(super) fn of(sample: &Sample) -> Self {
        Self { us: sample.median_us(), least_us: sample.percentile(0), most_us: sample.percentile(100) }
    }
}

/// A product of a layer.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct TimedProduct {
    /// Elements of the inputs: `bf16` or `fp8_e4m3`.
    pub dtype: &'static str,
    /// `forward`, `grad_input` or `grad_weight`.
    pub kind: &'static str,
    /// Tokens, outputs and inputs of the layer.
    pub shape: [u64; 3],
    /// Its times.
    pub times: Times,
}

/// One product from an idle GPU.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct TimedLong {
    /// Rows and columns of its matrices.
    pub size: u64,
    /// About how long it ran.
    pub seconds: f64,
    /// Time of one on average, in microseconds.
    pub us: f64,
}

/// A kernel that memory bounds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct TimedMemory {
    /// `device_copy_bytes` or `memset_bytes`.
    pub kernel: &'static str,
    /// Bytes copied or set.
    pub bytes: u64,
    /// Its times.
    pub times: Times,
}

/// Kernels of one GPU.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Kernels {
    /// Products of layers.
    pub products: Vec<TimedProduct>,
    /// One product over and over for some seconds, from an idle GPU.
    pub sustained: Vec<TimedLong>,
    /// Copies and fills.
    pub memory: Vec<TimedMemory>,
}

/// Each pass, by its name in tables.
const PASSES: [(LinearPass, &str); 3] =
    [(LinearPass::Forward, "forward"), (LinearPass::GradInput, "grad_input"), (LinearPass::GradWeight, "grad_weight")];

/// Outputs and inputs of layers of Llama 3 8B and 70B, alone and split over eight ranks, and of a small model.
const LAYERS: [(u64, u64); 10] = [
    (6144, 4096),
    (4096, 4096),
    (28_672, 4096),
    (4096, 14_336),
    (10_240, 8192),
    (8192, 8192),
    (7168, 8192),
    (8192, 3584),
    (2048, 2048),
    (5632, 2048),
];
const FEW_LAYERS: usize = 4;

/// Products that are timed: each takes longer than a host needs to issue it.
pub(super) fn products(quick: bool) -> Vec<(Linear, &'static str, &'static str)> {
    let tokens: &[u64] = if quick { &[4096] } else { &[2048, 8192] };
    let layers = if quick { &LAYERS[..FEW_LAYERS] } else { &LAYERS };
    let mut all = Vec::new();
    for &(outputs, inputs) in layers {
        for &tokens in tokens {
            let of = |element, pass| Linear { element, tokens, outputs, inputs, pass };
            all.extend(PASSES.iter().map(|&(pass, name)| (of(Element::Bf16, pass), "bf16", name)));
            all.push((of(Element::Fp8, LinearPass::Forward), "fp8_e4m3", "forward"));
        }
    }
    // A product of fewer operations takes less than 20 us on a Hopper GPU, about what a host needs to issue one.
    const LEAST: u64 = 10_000_000_000;
    all.retain(|(linear, ..)| linear.tokens * linear.outputs * linear.inputs >= LEAST);
    all
}

/// Seconds that one product runs from idle: those of the rows that profiles were fitted to.
const SECONDS: [f64; 3] = [0.02, 0.2, 2.0];
/// Rows and columns of its matrices.
const LONG: u64 = 8192;

/// Times kernels on the first GPU until `go_on` says no.
pub(super) fn time(cuda: &Cuda, quick: bool, go_on: &mut dyn FnMut() -> bool) -> Result<Kernels, Error> {
    let mut kernels = Kernels::default();
    let budget = Duration::from_millis(if quick { 60 } else { 200 });
    let effort = Effort { warmup: 5, iterations: 200, batches: 7, budget, ..Effort::default() };
    // Below, a host takes longer to issue one than the GPU to do it.
    let shifts: &[u32] = if quick { &[26, 28] } else { &[26, 27, 28, 29, 30] };
    for bytes in shifts.iter().map(|shift| 1_u64 << shift) {
        if !go_on() {
            return Ok(kernels);
        }
        let of = |kernel, sample: &Sample| TimedMemory { kernel, bytes, times: Times::of(sample) };
        kernels.memory.push(of("device_copy_bytes", &cuda.copies(&[(0, 0)], bytes, &effort)?));
        kernels.memory.push(of("memset_bytes", &cuda.fill(bytes, &effort)?));
    }
    // A GPU of before 2022 has no product of FP8.
    let mut lacks_fp8 = false;
    for (linear, dtype, kind) in products(quick) {
        if !go_on() {
            return Ok(kernels);
        }
        if linear.element == Element::Fp8 && lacks_fp8 {
            continue;
        }
        let sample = match cuda.product(linear, &effort) {
            Err(ExecError::Library { call: CHOOSES, .. }) if linear.element == Element::Fp8 => {
                lacks_fp8 = true;
                continue;
            }
            sample => sample?,
        };
        let shape = [linear.tokens, linear.outputs, linear.inputs];
        kernels.products.push(TimedProduct { dtype, kind, shape, times: Times::of(&sample) });
    }
    for seconds in SECONDS.iter().take(if quick { 2 } else { 3 }).copied() {
        if !go_on() {
            return Ok(kernels);
        }
        let us = cuda.product_from_idle(Linear::square(LONG), Duration::from_secs_f64(seconds))?;
        kernels.sustained.push(TimedLong { size: LONG, seconds, us });
    }
    Ok(kernels)
}

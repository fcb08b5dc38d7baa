//! Products: tiles of the result, in waves over the multiprocessors.
//!
//! A library cuts the result into tiles and has kernels for several shapes of them. Each multiprocessor computes a tile at a
//! time, so that a product takes whole waves of tiles. In its inner loop a tile takes slices of both operands from L2
//! and multiplies them: whichever is slower sets the pace, so that small tiles are slow. Where tiles are few, several
//! multiprocessors share the inner loop of one and add their sums. What L2 does not hold comes from memory.
//! The kernel taken is the fastest, as libraries choose theirs by measuring or by such a model.
//!
//! Sources: NVIDIA, "Matrix Multiplication Background User's Guide" (tiles, waves); CUTLASS, "Efficient GEMM in CUDA"
//! (hierarchy of tiles, split-K); Osama et al., "Stream-K", PPoPP 2023 (sharing the inner loop).

use super::constants::Constant;
use super::gpu::Compute;
use super::kernel::{Precision, Product, ProductPass, Tokens};
use super::work::{Work, together};

/// Rows and columns of tiles, as CUTLASS has kernels for.
const TILES: [(f64, f64); 11] = [
    (256.0, 256.0),
    (256.0, 128.0),
    (128.0, 256.0),
    (192.0, 128.0),
    (128.0, 192.0),
    (128.0, 128.0),
    (256.0, 64.0),
    (64.0, 256.0),
    (128.0, 64.0),
    (64.0, 128.0),
    (64.0, 64.0),
];
/// The same of kernels for blocks with scales, whose instructions take 128 rows of one operand and 8 to 256 of the other
/// (PTX, `tcgen05.mma` with block scales): two for any rows, then those for few. With few rows operands change places, so
/// that the 128 are of the weights, and of the tokens no more are multiplied than there are.
const SCALED: [(f64, f64); 6] =
    [(256.0, 256.0), (128.0, 256.0), (128.0, 128.0), (64.0, 128.0), (32.0, 128.0), (16.0, 128.0)];
/// Rows of such an instruction: with more of them operands stay in their places.
const FEW: f64 = 128.0;
/// The same of kernels that multiply groups.
const GROUPED: [(f64, f64); 1] = [(128.0, 256.0)];
/// Results of the tile that [`Constant::ProductTile`] is of.
const TILE: f64 = 128.0 * 256.0;
/// Multiprocessors that may share the inner loop of a tile: split-K of CUTLASS.
const SHARED: [f64; 7] = [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0];
/// Bytes of an operand's row that one turn of the inner loop takes: 128 B, the widest swizzle of shared memory (CUTLASS).
const TURN: f64 = 128.0;
/// Bytes of a partial sum: FP32.
const PARTIAL: f64 = 4.0;
/// How loads and tensor instructions of an inner loop overlap: pipelines of several stages hide nearly all of the faster.
const PIPELINED: f64 = 4.0;
/// How a wave's work overlaps with memory's: loads run ahead by some stages, not across tiles.
const AHEAD: f64 = 3.0;
/// Part of L2 that operands of a repeated call stay in: the rest is of results and of lines not evicted in order.
const KEPT: f64 = 0.7;
/// Part of L2 that one operand's slice may take before waves displace it: both operands are in it.
const HELD: f64 = 0.5;

/// Rows, columns, depth of a product, and how many such there are.
#[derive(Clone, Copy, Debug)]
struct Shape {
    rows: f64,
    columns: f64,
    depth: f64,
    count: f64,
}

/// Floating-point operations; a multiply-add is two.
pub(super) fn flops(product: &Product) -> f64 {
    shapes(product).iter().map(|s| 2.0 * s.count * s.rows * s.columns * s.depth).sum()
}

/// What a product needs; `repeated`: the same operands were used by the call before.
pub(super) fn work(gpu: &Compute, product: &Product, repeated: bool) -> Work {
    let shapes = shapes(product);
    let element = product.precision.bytes();
    let result = f64::from(product.result_bytes) * if product.accumulates { 2.0 } else { 1.0 };
    let mut operands = 0.0;
    let mut results = 0.0;
    for s in &shapes {
        operands += s.count * (s.rows + s.columns) * s.depth * element;
        results += s.count * s.rows * s.columns * result;
    }
    let l2 = gpu.value(Constant::L2) * 1e6;
    let cached = repeated && operands + results < KEPT * l2;
    let bench = Bench::new(gpu, product.precision);
    let mut best = Work { cores: f64::INFINITY, ..Work::default() };
    let mut least = f64::INFINITY;
    let (tiles, shares): (&[_], &[_]) = match product.tokens {
        Tokens::All(_) if product.precision == Precision::Fp4 => {
            let few = shapes.iter().all(|s| s.rows <= FEW);
            (&SCALED[..if few { SCALED.len() } else { 2 }], &SHARED[..1])
        }
        Tokens::All(_) => (&TILES, &SHARED),
        // Kernels of groups have one shape of tiles and do not share them out (PyTorch 2.8, `GroupMM.cu`).
        Tokens::Even { .. } | Tokens::Given(_) => (&GROUPED, &SHARED[..1]),
    };
    // Where no tile is small enough the smallest is taken.
    let results_of = |&(high, wide): &(f64, f64)| high * wide;
    let largest = gpu.value(Constant::Tile).max(tiles.iter().map(results_of).fold(f64::INFINITY, f64::min));
    for &tile in tiles.iter().filter(|tile| results_of(tile) <= largest) {
        for &share in shares {
            let WaveCost { cores, again, tiles } = bench.run(&shapes, tile, share);
            let taken = if operands > HELD * l2 { again.max(operands) } else { operands };
            let bytes = if cached { 0.0 } else { taken + results };
            let memory = bytes / bench.memory;
            let seconds = together(cores, memory, AHEAD);
            if seconds < least {
                least = seconds;
                best = Work { cores, memory, overlap: AHEAD, memory_energy: bytes, ..Work::default() };
            }
            // More shares only help where tiles leave multiprocessors idle.
            if tiles >= 2.0 * bench.sms {
                break;
            }
        }
    }
    if !best.cores.is_finite() {
        best.cores = f64::MAX;
    }
    let (_, energy) = gpu.tensor(product.precision);
    best.start = gpu.value(Constant::KernelStart) * 1e-6;
    best.droop = gpu.droop();
    best.energy = flops(product) * energy;
    best.memory_energy *= gpu.value(Constant::EnergyByte) * 1e-12;
    best
}

/// The products that a kernel computes, by which of them it sums over.
fn shapes(product: &Product) -> Vec<Shape> {
    let (outputs, inputs) = (product.outputs as f64, product.inputs as f64);
    let of = |(tokens, count): (f64, f64)| {
        let (rows, columns, depth) = match product.pass {
            ProductPass::Forward => (tokens, outputs, inputs),
            ProductPass::GradInput => (tokens, inputs, outputs),
            ProductPass::GradWeight => (outputs, inputs, tokens),
        };
        Shape { rows, columns, depth, count }
    };
    product.tokens.groups().into_iter().filter(|&(_, count)| count > 0.0).map(of).collect()
}

/// What a GPU brings to tiles of one precision.
struct Bench {
    sms: f64,
    /// FLOP/s of a multiprocessor.
    rate: f64,
    /// B/s that it takes from L2.
    feed: f64,
    /// Seconds beside the inner loop of a tile of [`TILE`] results.
    tile: f64,
    /// Seconds of a shared inner loop beside its bytes.
    split: f64,
    /// B/s of memory.
    memory: f64,
    element: f64,
}

/// Seconds of multiprocessors, bytes of operands that all waves take, and tiles.
struct WaveCost {
    cores: f64,
    again: f64,
    tiles: f64,
}

impl Bench {
    fn new(gpu: &Compute, precision: Precision) -> Self {
        Self {
            sms: gpu.value(Constant::Sms),
            rate: gpu.tensor(precision).0,
            feed: gpu.value(Constant::ProductFeed) * 1e9,
            tile: gpu.value(Constant::ProductTile) * 1e-6,
            split: gpu.value(Constant::ProductSplit) * 1e-6,
            memory: gpu.memory_rate(),
            element: precision.bytes(),
        }
    }

    fn run(&self, shapes: &[Shape], (high, wide): (f64, f64), share: f64) -> WaveCost {
        let slice = TURN / self.element;
        let turn = together(2.0 * high * wide * slice / self.rate, (high + wide) * TURN / self.feed, PIPELINED);
        let (mut tiles, mut turns, mut results, mut again) = (0.0, 0.0, 0.0, 0.0);
        for s in shapes {
            let (down, across) = ((s.rows / high).ceil(), (s.columns / wide).ceil());
            let count = s.count * down * across * share;
            tiles += count;
            turns += count * ((s.depth / slice).ceil() / share).ceil();
            results += s.count * s.rows * s.columns;
            // A wave is as square as the result allows, so that it takes few different slices.
            let tall = (self.sms * wide / high).sqrt().clamp(1.0, down.max(1.0));
            let broad = (self.sms / tall).min(across.max(1.0));
            let tall = (self.sms / broad).min(down.max(1.0));
            let waves = down * across / (tall * broad);
            again += s.count * waves * (tall * high + broad * wide) * s.depth * self.element;
        }
        let waves = (tiles / self.sms).ceil();
        let mean = if tiles > 0.0 { turns / tiles } else { 0.0 };
        let mut cores = waves * (mean * turn + self.tile * high * wide / TILE);
        if share > 1.0 {
            // Partial sums are written and read again, through L2.
            cores += self.split + 2.0 * share * PARTIAL * results / (self.feed * self.sms);
        }
        WaveCost { cores, again, tiles }
    }
}

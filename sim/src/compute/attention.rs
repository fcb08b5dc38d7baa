//! Fused attention: blocks of queries that walk along keys.
//!
//! A block of 128 queries (backward: of 128 keys) keeps to one multiprocessor and walks along all that it sees. For each
//! score it multiplies queries and keys, takes an exponential and multiplies by the values; backward there are five products
//! for two. FlashAttention-2 leaves most of the softmax between its products; kernels with warps for each part hide a
//! part of it. With a causal mask blocks differ: the last one sees all keys, so that it bounds the time of few heads.
//!
//! Where a sequence has one query (a decode), the heads that share keys are the rows of a block, and blocks share long keys.
//!
//! Sources: Dao, "FlashAttention-2", arXiv 2307.08691; Shah et al., "FlashAttention-3", arXiv 2407.08608.

use super::constants::Constant;
use super::gpu::Compute;
use super::kernel::{Attention, Backend, Pass, Precision};
use super::work::{Droop, Work};

/// Queries of a block, forward, and keys of one, backward: what all of these kernels take for heads of 64 to 192.
const BLOCK: f64 = 128.0;
/// Rows of a block in a decode: FlashAttention-2 takes 64 where blocks share keys (flash-attention 2.5,
/// `run_mha_fwd_splitkv_dispatch`), and so does FlashMLA: a warp group of Hopper multiplies 64 rows.
const FEW: f64 = 64.0;
/// Seconds in which FlashAttention-2 adds up the part of one block that shares keys, of at most [`PARTS`]: it takes them one
/// after another. 16 to 128 parts take 3 to 25 us longer than 4 (one H200, PyTorch 2.11, decodes with one head of keys,
/// `decode_attention.csv`, 2026-11-29).
const PART: f64 = 0.2e-6;
/// Most parts of the keys of a block (flash-attention 2.5, `num_splits_heuristic`).
const PARTS: f64 = 128.0;
/// Seconds from the start of a decode's block to its first keys, and from its last ones to its result: two ways to memory.
/// The shortest decodes take 6.8 to 8.6 us (as above), with two starts of 2.95 us.
const REACH: f64 = 1.4e-6;
/// How it overlaps with memory's work: operands are asked for several tiles ahead.
const AHEAD: f64 = 4.0;
/// Energy of an operation over that of a BF16 product, forward and backward: scores cost exponentials and more, and instructions
/// of FlashAttention-2 take operands from registers. Power by NVML while each ran for 1.3 s (one H100, PyTorch 2.11, cuDNN 9.19,
/// 2026-11-25; 4 x 32 heads of 128, 4096 tokens, causal and not): 650 to 700 W at 552 and 602 TFLOP/s of cuDNN's forward pass, 459
/// and 514 backward, 318 and 337, 270 and 291 of FlashAttention-2, at the clocks that it reported.
const CUDNN_ENERGY: [f64; 2] = [1.05, 1.25];
const FLASH2_ENERGY: [f64; 2] = [1.85, 2.1];
/// Time of FlashAttention of 2022, over that of FlashAttention-2: 2.0 to 2.45 forward and backward together on H100, with a mask, 1k
/// to 16k tokens (flash-attention, assets/flash2_h100_fwd_bwd_benchmark.png), about 2 on A100 (arXiv 2307.08691, abstract).
const FLASH1: f64 = 2.2;
/// Bytes of an element.
const ELEMENT: f64 = 2.0;

/// What of one backend and pass the constants say.
struct Kind {
    /// Tensor rate, of peak.
    rate: Constant,
    /// Softmax that is not hidden.
    softmax: Constant,
    /// Start and end of a block.
    block: Constant,
    /// What is left of the longest block at the end.
    tail: Constant,
}

fn kind(backend: Backend, pass: Pass) -> Kind {
    use Constant as C;
    let (rate, softmax, block) = match (backend, pass) {
        (Backend::Flash1 | Backend::Flash2, Pass::Forward) => (C::Flash2Forward, C::Flash2Softmax, C::Flash2Block),
        (Backend::Flash1 | Backend::Flash2, Pass::Backward) => {
            (C::Flash2Backward, C::Flash2SoftmaxBackward, C::Flash2BlockBackward)
        }
        (Backend::Flash3, Pass::Forward) => (C::Flash3Forward, C::FusedSoftmax, C::FusedBlock),
        (Backend::Flash3, Pass::Backward) => (C::Flash3Backward, C::FusedSoftmaxBackward, C::FusedBlockBackward),
        (Backend::Cudnn, Pass::Forward) => (C::CudnnForward, C::FusedSoftmax, C::FusedBlock),
        // Nobody trains with TensorRT-LLM's: it has no backward pass, and cuDNN's stands in.
        (Backend::Cudnn | Backend::TrtLlm, Pass::Backward) => {
            (C::CudnnBackward, C::FusedSoftmaxBackward, C::FusedBlockBackward)
        }
        (Backend::TrtLlm, Pass::Forward) => (C::TrtLlmForward, C::FusedSoftmax, C::TrtLlmBlock),
    };
    let tail = if pass == Pass::Forward { C::AttentionTail } else { C::AttentionTailBackward };
    Kind { rate, softmax, block, tail }
}

/// Blocks of a head, keys (backward: queries) that the longest walks along, and what all of a head do together.
fn walks(a: &Attention) -> (f64, f64, f64) {
    let blocks = |tokens: u64| (tokens as f64 / BLOCK).ceil();
    let (queries, keys) = (blocks(a.queries), blocks(a.keys));
    // With a mask the last query sees all keys, the first ones those that keys have more than queries, if any.
    let least = if a.causal { (keys - queries).max(0.0) + 1.0 } else { keys };
    // Scores are the same whichever way they are walked along.
    let all = queries * (keys + least.min(keys)) / 2.0 * BLOCK;
    match a.pass {
        Pass::Forward => (queries, keys * BLOCK, all),
        Pass::Backward => (keys, queries * BLOCK, all),
    }
}

/// Products of one score: `q k` and `p v`; backward two more of each width for the gradients, less one of values that
/// is shared: `q k`, `dk`, `dq` are as wide as keys, `dv`, `dp` as values.
fn widths(a: &Attention) -> f64 {
    let (keys, values) = (a.head_dim as f64, a.value_dim as f64);
    match a.pass {
        Pass::Forward => keys + values,
        Pass::Backward => 3.0 * keys + 2.0 * values,
    }
}

/// Whether each sequence has one query.
fn is_decode(a: &Attention) -> bool {
    a.queries == 1 && a.pass == Pass::Forward
}

/// Floating-point operations, of tiles that are not all masked; of a decode those of its queries, since rows without one
/// multiply zeros, which takes next to no power.
pub(super) fn flops(a: &Attention) -> f64 {
    if is_decode(a) {
        return 2.0 * widths(a) * a.heads as f64 * a.batch as f64 * a.keys as f64;
    }
    let (.., all) = walks(a);
    2.0 * widths(a) * BLOCK * all * a.batch as f64 * a.heads as f64
}

/// Seconds of one key and a block of so many rows at the boost clock.
fn step(gpu: &Compute, a: &Attention, rows: f64) -> f64 {
    let Kind { rate, softmax, .. } = kind(a.backend, a.pass);
    let peak = gpu.tensor_peak(Precision::Bf16).0;
    let exponentials = rows / (gpu.value(Constant::Exponentials) * gpu.boost());
    2.0 * widths(a) * rows / (peak * gpu.value(rate)) + exponentials * gpu.value(softmax)
}

/// What attention needs.
pub(super) fn work(gpu: &Compute, a: &Attention) -> Work {
    if is_decode(a) {
        return decode(gpu, a);
    }
    let Kind { block, tail, .. } = kind(a.backend, a.pass);
    let energy = gpu.tensor_peak(Precision::Bf16).1;
    let sms = gpu.value(Constant::Sms);
    let heads = a.batch as f64 * a.heads as f64;
    let (blocks, longest, all) = walks(a);
    let step = step(gpu, a, BLOCK);
    let block = gpu.value(block) * 1e-6;
    let splits = splits(a, sms);
    let alone = longest / splits * step + block;
    let cores = if heads * blocks <= sms {
        alone
    } else if a.causal {
        let shared = heads * (all * step + blocks * block) / sms;
        alone.max(shared + gpu.value(tail) * longest * step)
    } else {
        (heads * blocks / sms).ceil() * alone
    };
    let first = a.backend == Backend::Flash1;
    let cores = if first { cores * FLASH1 } else { cores };
    let flash = first || a.backend == Backend::Flash2;
    let [forward, backward] = if flash { FLASH2_ENERGY } else { CUDNN_ENERGY };
    let over = if a.pass == Pass::Forward { forward } else { backward };
    let bytes = bytes(a);
    // Another kernel adds up what blocks found that share queries.
    let kernels = if splits > 1.0 { 2.0 } else { 1.0 };
    let before = if a.backend == Backend::TrtLlm { gpu.value(Constant::KernelPrompt) } else { 0.0 };
    Work {
        start: (gpu.value(Constant::KernelStart) * kernels + before) * 1e-6,
        cores,
        memory: bytes / gpu.memory_rate(),
        overlap: AHEAD,
        // Those of Ampere, which FlashAttention-2 keeps to, are too slow for that.
        droop: if flash { Droop::default() } else { gpu.droop() },
        energy: flops(a) * energy * over,
        memory_energy: bytes * gpu.value(Constant::EnergyByte) * 1e-12,
    }
}

/// What attention of one query a sequence needs. FlashAttention-2 gives keys to whole blocks, and has blocks of few rows only
/// where these share keys; other kernels give each multiprocessor as many keys.
fn decode(gpu: &Compute, a: &Attention) -> Work {
    let sms = gpu.value(Constant::Sms);
    let flash = matches!(a.backend, Backend::Flash1 | Backend::Flash2);
    let shared = Attention { heads: a.kv_heads, queries: a.heads.div_ceil(a.kv_heads.max(1)), ..a.clone() };
    let blocks_of = |rows: f64| a.batch as f64 * a.kv_heads as f64 * (shared.queries as f64 / rows).ceil();
    let parts =
        if flash { splits(&shared, sms).min(PARTS) } else { (sms / blocks_of(FEW)).min(a.keys as f64 / FEW).max(1.0) };
    let rows = if flash && parts <= 1.0 { BLOCK } else { FEW };
    let turns = blocks_of(rows) * parts / sms;
    let turns = if flash { turns.ceil() } else { turns.max(1.0) };
    // Another kernel adds up what blocks found that share queries.
    let (kernels, sums) = match parts > 1.0 {
        true => (2.0, if flash { PART * parts } else { 0.0 }),
        false => (1.0, 0.0),
    };
    let (energy, over) = (gpu.tensor_peak(Precision::Bf16).1, if flash { FLASH2_ENERGY } else { CUDNN_ENERGY });
    let bytes = bytes(a);
    Work {
        start: gpu.value(Constant::KernelStart) * kernels * 1e-6 + sums + REACH,
        cores: turns * a.keys as f64 / parts * step(gpu, a, rows),
        memory: bytes / (gpu.memory_rate() * gpu.value(Constant::MemoryRead)),
        overlap: AHEAD,
        droop: Droop::default(),
        energy: flops(a) * energy * over[0],
        memory_energy: bytes * gpu.value(Constant::EnergyByte) * 1e-12,
    }
}

/// Blocks that share the keys of their queries: FlashAttention-2 forward does so where blocks of 64 queries would leave more
/// than a fifth of the places of two on each multiprocessor empty (flash-attention 2.5, `num_splits_heuristic`).
fn splits(a: &Attention, sms: f64) -> f64 {
    let places = 2.0 * sms;
    let blocks = a.batch as f64 * a.heads as f64 * (a.queries as f64 / FEW).ceil();
    if a.backend != Backend::Flash2 || a.pass != Pass::Forward || blocks >= 0.8 * places || blocks <= 0.0 {
        return 1.0;
    }
    (places / blocks).floor().min((a.keys as f64 / BLOCK).ceil()).max(1.0)
}

/// Operands and results once each; backward also their gradients, and the queries' in FP32 twice, since blocks add to them.
fn bytes(a: &Attention) -> f64 {
    let queries = a.queries as f64 * a.heads as f64;
    let keys = a.keys as f64 * a.kv_heads as f64;
    let (width, values) = (a.head_dim as f64, a.value_dim as f64);
    let of_key = if a.latent { width } else { width + values };
    let forward = ELEMENT * (queries * (width + values) + keys * of_key);
    let more = match a.pass {
        Pass::Forward => 0.0,
        Pass::Backward => forward + ELEMENT * queries * values + 2.0 * 4.0 * queries * width,
    };
    a.batch as f64 * (forward + more)
}

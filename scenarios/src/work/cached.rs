//! What a part of a prompt costs more behind tokens that are in the cache, where that has latents (MLA).

use collcast_sim::compute::{Kernel, MemoryKind};

use super::Piece;
use super::rank::{Linear, Rank, elements};
use crate::memory::Software;
use crate::parallel::Parallel;
use crate::transformer::{Attention, Transformer};

/// Kernels of one rank in one layer that `tokens` of a prompt need beside those of [`layer`](super::layer), behind `before`
/// others of it. Keys and values of those are made of their latents again, and what attention gives of old and new tokens is
/// merged. A cache of keys and values needs none.
///
/// Source: vLLM 37fa5c0940, `v1/attention/backends/mla/common.py`, `_compute_prefill_context`; behind long prefixes SGLang's
/// `_chunked_prefix_attn_mha` does the same.
pub fn cached(
    model: &Transformer,
    parallel: &Parallel,
    software: &Software,
    (tokens, before): (u64, u64),
) -> Vec<Kernel> {
    let Attention::Mla { heads, kv_lora, nope, rope, value, .. } = model.attention else { return Vec::new() };
    if before == 0 {
        return Vec::new();
    }
    let rank = Rank::new(model, parallel, software);
    let own = heads / rank.tensor;
    let over = |name, rows, width, reads| elements(name, MemoryKind::Copy, rows, width, reads, 2);
    let mut pieces = vec![over("latents of the cache", before, kv_lora + rope, 2)];
    let product = Linear::new(before, own * (nope + value), kv_lora);
    pieces.extend(rank.linear("keys and values of the cache", &product).forward);
    pieces.push(over("join of keys", before, own * (nope + rope), 2));
    pieces.push(over("merge of results", tokens, own * value, 4));
    let kernel = |piece| if let Piece::Kernel(run) = piece { Some(run.kernel) } else { None };
    pieces.into_iter().filter_map(kernel).collect()
}

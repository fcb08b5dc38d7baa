//! What follows the passes: gradients that are added up, parameters that are gathered, the optimizer's step.

use collcast_sim::collective::Collective;
use collcast_sim::compute::{Kernel, Memory, MemoryKind, Optimizer, Precision};

use super::rank::{exchange, kernel};
use super::{Beside, Call, Elements, Exchange, Piece, Units};
use crate::memory::Software;
use crate::parallel::{Axis, Parallel};
use crate::transformer::{LayerKind, Transformer};

/// Elements of one launch of a kernel over many tensors: 320 blocks of 65,536. Source: PyTorch, `MultiTensorApply.cuh`
/// (`depth_to_max_blocks`) and `ForeachUtils.h` (`kChunkSize`).
const LAUNCH: u64 = 320 * 65_536;
/// Bytes of the sum of squares of all gradients, and of each call about it.
const NORM: u64 = 4;

/// The optimizer's step over `parameters` that this rank updates, in `tensors` tensors: clipping, AdamW, the next step's
/// weights in 8 bits; and over `all` of its stage: these weights as products read them, gradients back to zero.
///
/// What is exchanged here is a number a call; gradients and parameters of replicas are not in it.
pub fn optimizer((parameters, all): (u64, u64), tensors: u64, parallel: &Parallel, software: &Software) -> Vec<Piece> {
    let states = &software.states;
    let mut pieces = Vec::new();
    let copy = |name, reads, writes| many(name, parameters, reads, writes);
    if software.execution.clips {
        pieces.push(copy("norm of gradients", states.gradient, 0.0));
        for axis in [Axis::Tensor, Axis::Pipeline, Axis::DataContext] {
            let shared = axis != Axis::DataContext || parallel.zero > 0;
            if shared && parallel.group_size(axis) > 1 {
                let call = Call::Collective(Collective::AllReduce);
                pieces.push(exchange("norm of gradients", axis, call, NORM, Beside::Nothing));
            }
        }
        pieces.push(copy("clipping", states.gradient, states.gradient));
    }
    // Gradient, both moments and the copy in 32 bits, or the weight itself, come in; all but the gradient go out.
    let (reads, writes) = if states.copies() {
        (states.gradient + states.optimizer, states.optimizer + states.weight)
    } else {
        (states.gradient + states.weight + states.optimizer, states.weight + states.optimizer)
    };
    let [reads, writes] = [reads, writes].map(|bytes| bytes.ceil() as u32);
    pieces.push(kernel("AdamW", Kernel::Optimizer(Optimizer { elements: parameters, reads, writes, tensors })));
    let execution = &software.execution;
    if execution.elements == Elements::Written && execution.precision != Precision::Bf16 {
        // Cast before they are gathered, a rank's own alone, and transposed after; else all of them after.
        if states.gathers_8_bits() && parallel.zero > 0 {
            pieces.push(over("weights in 8 bits", MemoryKind::Quantize, parameters, 2.0, 1.0));
            pieces.push(over("transposes of weights", MemoryKind::Copy, all, 1.0, 1.0));
        } else {
            pieces.push(over("weights in 8 bits", MemoryKind::Quantize, all, 2.0, 2.0));
        }
    }
    if software.permanent_gradients {
        // Those of all parameters: they are summed before ranks have their shares.
        pieces.push(over("gradients to zero", MemoryKind::Fill, all, 0.0, states.gradient));
    }
    pieces
}

/// The sum of the gradients of `layers` layers' norms over tensor ranks, once a step: with sequence parallelism each has
/// seen its part of the tokens only. None without it.
///
/// Source: Megatron-LM, `core/distributed/finalize_model_grads.py`, `_allreduce_non_tensor_model_parallel_grads`.
pub fn norms(model: &Transformer, layers: u64, parallel: &Parallel, software: &Software) -> Option<Exchange> {
    if parallel.tensor < 2 || !parallel.sequence_parallel {
        return None;
    }
    let parameters = layers.saturating_mul(model.layer_parameters(LayerKind::Dense).norms);
    Some(Exchange {
        name: "gradients of norms",
        axis: Axis::Tensor,
        call: Call::Collective(Collective::AllReduce),
        bytes: (parameters as f64 * software.states.gradient) as u64,

        beside: Beside::Nothing,
    })
}

/// What adds one micro-batch's gradients of `parameters` to those before, where no product does it; `first`: of a step.
///
/// Source: PyTorch, `torch/csrc/autograd/functions/accumulate_grad.h`, which takes the first gradient as it is.
pub fn accumulate(parameters: u64, first: bool, software: &Software) -> Vec<Piece> {
    let execution = &software.execution;
    if execution.accumulates_in_product || (first && !software.permanent_gradients) {
        return Vec::new();
    }
    let gradient = software.states.gradient;
    vec![over("sum of gradients", MemoryKind::Copy, parameters, 2.0 + gradient, gradient)]
}

/// Kernels beside the exchanges of one unit of `parameters` whose replicas share it (FSDP): before and after it is gathered, with
/// so many bytes of each parameter, and before and after its gradients are summed. Both are empty without that.
///
/// Source: PyTorch 2.11, `torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py`: `all_gather_copy_in`,
/// `split_with_sizes_copy`, `chunk_cat`; `torch/distributed/fsdp/_flat_param.py` and `_runtime_utils.py` for FSDP1.
pub fn unit((parameters, gathered): (u64, f64), parallel: &Parallel, software: &Software) -> [Vec<Piece>; 2] {
    let (shards, execution) = (parallel.dense_shards(), &software.execution);
    if !execution.by_units(parallel.zero) || shards < 2 {
        return [Vec::new(), Vec::new()];
    }
    let states = &software.states;
    let own = parameters / shards;
    let sum = || many("shard of gradients", own, states.reduced + states.gradient, states.gradient);
    let copy = |name, reads, writes| over(name, MemoryKind::Copy, parameters, reads, writes);
    let cast = || many("shard into a buffer", own, states.weight, gathered);
    let several = parallel.micro_batches() > 1;
    match execution.units {
        // Products read gathered buffers and add to those that are summed, without a copy (Megatron-LM, `custom_fsdp.md`).
        Units::InPlace => [Vec::new(), vec![sum()]],
        Units::Flat => {
            let reduce = if several { sum() } else { many("shard of gradients", own, states.reduced, states.gradient) };
            [vec![cast()], vec![copy("gradients of views", 2.0, 2.0), reduce]]
        }
        Units::Parameters => {
            let mut gather = vec![cast()];
            if states.weight > gathered {
                // Cast first, then copied to where the call finds it.
                gather.push(many("shard into a buffer", own, gathered, gathered));
            }
            gather.push(copy("parameters out of a buffer", gathered, gathered));
            let kind = if states.reduced > 2.0 { MemoryKind::Widen } else { MemoryKind::Copy };
            let mut reduce = vec![over("gradients into a buffer", kind, parameters, 2.0, states.reduced)];
            if several {
                reduce.push(sum());
            }
            [gather, reduce]
        }
    }
}

/// A kernel over many tensors at once (`torch._foreach_*`), in as many launches as it takes.
fn many(name: &'static str, count: u64, reads: f64, writes: f64) -> Piece {
    let [reads, writes] = [reads, writes].map(|bytes| (count as f64 * bytes).round() as u64);
    let kernels = u32::try_from(count.div_ceil(LAUNCH).max(1)).unwrap_or(u32::MAX);
    kernel(name, Kernel::Memory(Memory { kind: MemoryKind::Copy, reads, writes, rows: 1, width: count, kernels }))
}

fn over(name: &'static str, kind: MemoryKind, count: u64, reads: f64, writes: f64) -> Piece {
    let [reads, writes] = [reads, writes].map(|bytes| (count as f64 * bytes).round() as u64);
    kernel(name, Kernel::Memory(Memory { kind, reads, writes, rows: 1, width: count, kernels: 1 }))
}

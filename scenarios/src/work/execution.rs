//! How a training framework runs what a model asks for: which kernels it fuses, what it overlaps, what its host costs.

use collcast_sim::compute::{Backend, Precision};
use serde::Serialize;

use crate::parallel::{Parallel, Schedule};

/// Which element-wise operations share a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Elements {
    /// Each operator of eager PyTorch is a kernel; norms are one.
    Eager,
    /// A compiler joins neighbours (`torch.compile`).
    Compiled,
    /// Hand-written kernels for norms, rotations, activations and dropout (Transformer Engine, Apex, Megatron-LM).
    Written,
}

/// How scales of 8-bit operands are found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scaling {
    /// From earlier steps: nothing is read before the cast.
    Delayed,
    /// From the tensor itself: it is read once more before the cast.
    Current,
    /// For each block or row, in the cast.
    Blocks,
}

/// How ranks that split a sequence share keys and values.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ContextKind {
    /// Parts go round a ring (Megatron-LM's `p2p`).
    Ring,
    /// All parts are gathered before (Llama 3).
    AllGather,
    /// All parts are gathered beside the first of them, each part has a kernel, and results are merged in 32 bits; gradients
    /// go round (PyTorch).
    Merged,
    /// Ranks exchange tokens for heads (DeepSpeed Ulysses; Megatron-LM's `a2a`).
    Ulysses,
}

/// How replicas that share parameters (FSDP) keep those of a unit while it is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Units {
    /// Products read buffers that calls fill, and add to those that calls sum (Megatron-FSDP).
    InPlace,
    /// As one flat tensor: products read views of it, whose gradients are joined (FSDP1).
    Flat,
    /// Each parameter by itself, copied out of a buffer, its gradient into one (FSDP2).
    Parameters,
}

/// Blocks that send tokens to their experts, each to all ranks: multiprocessors of DeepEP's kernels (`Buffer.num_sms`).
pub const TOKEN_BLOCKS: u32 = 20;

/// How tokens go to the ranks of their experts, and their results back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Dispatch {
    /// A copy for each expert, by an all-to-all (Megatron-LM's `alltoall`).
    AllToAll,
    /// Once to every host that has experts of it, and there once to every rank (DeepEP, HybridEP).
    Deepep,
}

impl Dispatch {
    /// All of them, by name.
    pub const ALL: [(&'static str, Self); 2] = [("alltoall", Self::AllToAll), ("deepep", Self::Deepep)];
}

/// What puts experts' tokens in order and multiplies them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpertKernels {
    /// A kernel for each move of tokens; a product, its casts and a parameter for each expert (Megatron-LM, Transformer Engine).
    Written,
    /// The same moves; products of all experts are one kernel, with SwiGLU, its gradient and the casts of both to 8 bits inside
    /// (Transformer Engine's fused grouped MLP, Megatron-LM's `use_transformer_engine_op_fuser`).
    Fused,
    /// Operators of PyTorch: sorts, indices and batched products, in eager mode in compiled models too. Products are one kernel
    /// and one parameter for all experts (torchtitan).
    Operators,
}

/// How a framework runs a step.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Execution {
    /// Fusion of element-wise operations.
    pub elements: Elements,
    /// Implementation of fused attention.
    pub flash: Backend,
    /// Precision of linear layers' products; all others are in 16 bits.
    pub precision: Precision,
    /// How scales are found where that is 8 bits.
    pub scaling: Scaling,
    /// How ranks that split a sequence share keys and values.
    pub context: ContextKind,
    /// Whether exchanges of tensor ranks run beside products, in pieces (async TP, `tp_comm_overlap`).
    pub overlaps_tensor: bool,
    /// Whether tensor ranks split tokens as the second dimension, after sequences: calls about them need copies (PyTorch).
    pub splits_second: bool,
    /// Whether the sum of an input's gradient over tensor ranks goes beside the product of the weights' gradient.
    pub hides_gradients: bool,
    /// Whether recomputation ends with the last tensor that is kept, so that a layer's last product does not run again.
    pub stops_early: bool,
    /// Whether tensor ranks each send their part of a message between stages, which the receivers gather again
    /// (`scatter_gather_tensors_in_pipeline`).
    pub splits_messages: bool,
    /// Whether messages between stages of interleaved pipelines run beside passes (`overlap_p2p_comm`).
    pub overlaps_messages: bool,
    /// Whether forward passes run beside backward passes of other micro-batches, so that exchanges of experts' tokens in one
    /// have kernels of the other beside them (`overlap_moe_expert_parallel_comm`). DualPipe does so by its schedule.
    pub overlaps_experts: bool,
    /// How experts' tokens are exchanged.
    pub dispatch: Dispatch,
    /// Multiprocessors that no kernel takes but those of these exchanges, whether or not one runs; 0 where kernels take what is free.
    pub reserves: u32,
    /// What puts their tokens in order and multiplies them.
    pub expert_kernels: ExpertKernels,
    /// Tokens that a rank's experts have, over those that it sends: 1 where all ranks send as many and routing is even, more on the
    /// busiest rank, less where others send fewer.
    pub imbalance: f64,
    /// Whether products add gradients of weights into the ones of 32 bits themselves (`gradient_accumulation_fusion`).
    pub accumulates_in_product: bool,
    /// Whether gradients of biases come with the product of their weights' gradient, and those of queries, keys and values in the
    /// one tensor that it reads (Transformer Engine).
    pub joins_gradients: bool,
    /// Parameters of a bucket of gradients at least, where replicas share no parameters.
    pub bucket: f64,
    /// The same for each of those replicas; the larger counts.
    pub bucket_each: f64,
    /// Whether the first chunk of the first stage alone has buckets: the others sum a chunk's gradients at once.
    pub buckets_first: bool,
    /// How replicas that share parameters keep a unit.
    pub units: Units,
    /// Whether their backward pass gathers the next unit once the gradients of this one are summed (`BACKWARD_POST`), and not
    /// beside it. Both are calls of one communicator, so that nothing runs beside them then.
    pub gathers_after_sum: bool,
    /// Whether gradients are clipped by their norm.
    pub clips: bool,
}

impl Execution {
    /// Whether replicas with this `zero` exchange unit by unit: all of ZeRO-3, and PyTorch's FSDP where parameters stay gathered
    /// after the forward pass (`reshard_after_forward=False`, `SHARD_GRAD_OP`).
    pub fn by_units(&self, zero: u8) -> bool {
        zero == 3 || (zero == 2 && self.units != Units::InPlace)
    }

    /// Parameters of a bucket at least, in a chunk of a stage.
    pub fn bucket(&self, parallel: &Parallel, (stage, chunk): (usize, usize)) -> f64 {
        if self.buckets_first && (stage, chunk) != (0, 0) {
            return f64::INFINITY;
        }
        self.bucket.max(self.bucket_each * f64::from(parallel.data) * f64::from(parallel.context))
    }

    /// Whether passes of a layout are paired: those of a pipeline of chunks, or of ranks without a pipeline that run pass by pass.
    pub fn pairs(&self, parallel: &Parallel) -> bool {
        let order = match parallel.schedule {
            Schedule::OneForwardOneBackward => parallel.pipeline == 1,
            Schedule::Interleaved => true,
            Schedule::Gpipe | Schedule::ZeroBubble | Schedule::DualPipe => false,
        };
        self.overlaps_experts && order && !(self.by_units(parallel.zero) && parallel.pipeline == 1)
    }

    /// Eager PyTorch 2: FlashAttention-2 in BF16, even routing, nothing overlapped. Layers whose keys serve several queries
    /// (`enable_gqa`) take as long as with it, in 2.11 too: `blocks.csv`, `models.csv`.
    pub const EAGER: Self = Self {
        elements: Elements::Eager,
        flash: Backend::Flash2,
        precision: Precision::Bf16,
        scaling: Scaling::Current,
        context: ContextKind::Merged,
        overlaps_tensor: false,
        splits_second: true,
        hides_gradients: false,
        // PyTorch, `torch/utils/checkpoint.py`: `early_stop` of checkpoints without re-entry.
        stops_early: true,
        splits_messages: false,
        overlaps_messages: true,
        overlaps_experts: false,
        dispatch: Dispatch::AllToAll,
        reserves: 0,
        expert_kernels: ExpertKernels::Operators,
        imbalance: 1.0,
        accumulates_in_product: false,
        joins_gradients: false,
        bucket: 40e6,
        bucket_each: 0.0,
        buckets_first: false,
        units: Units::Parameters,
        gathers_after_sum: false,
        clips: false,
    };
    /// The same with compiled layers, of which a checkpoint around one runs all again.
    pub const COMPILED: Self = Self { elements: Elements::Compiled, stops_early: false, ..Self::EAGER };
    /// Megatron-LM with Transformer Engine, whose attention is cuDNN's. Source: Megatron-LM d98e8a64dd,
    /// `megatron/training/arguments.py`; Transformer Engine, `dot_product_attention/utils.py` (`get_attention_backend`).
    pub const MEGATRON: Self = Self {
        elements: Elements::Written,
        flash: Backend::Cudnn,
        scaling: Scaling::Delayed,
        context: ContextKind::Ring,
        splits_second: false,
        hides_gradients: true,
        stops_early: false,
        splits_messages: true,
        expert_kernels: ExpertKernels::Written,
        accumulates_in_product: true,
        joins_gradients: true,
        // `core/distributed/distributed_data_parallel.py`: `max(40000000, 1000000 * dp)`, and none with `disable_bucketing` or
        // beyond the first stage; `training.py` disables them for chunks after the first.
        bucket: 40e6,
        bucket_each: 1e6,
        buckets_first: true,
        units: Units::InPlace,
        clips: true,
        ..Self::EAGER
    };
}

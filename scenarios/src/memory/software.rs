//! What a training framework keeps, and when: the facts about it that memory depends on.

use collcast_sim::collective::nearest;
use collcast_sim::compute::{Backend, Precision};
use serde::Serialize;

use crate::parallel::{Module, Modules, Schedule};
use crate::transformer::{Attention, Transformer};
use crate::work::{Dispatch, Elements, Execution, Scaling, TOKEN_BLOCKS, Units};

/// Bytes of one parameter's states.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct States {
    /// The parameter, as products read it.
    pub weight: f64,
    /// Its gradient.
    pub gradient: f64,
    /// What the optimizer keeps: moments, and a copy in 32 bits where the weight has fewer.
    pub optimizer: f64,
    /// A parameter where replicas gather it from its shards.
    pub gathered: f64,
    /// The same of a layer's: products with these may be in 8 bits.
    pub gathered_in_layers: f64,
    /// The gradient, as replicas sum it.
    pub reduced: f64,
}

impl States {
    /// BF16 weights, gradients in 32 bits, Adam in 32 bits. Source: Megatron-LM, `docs/user-guide/features/dist_optimizer.md`.
    pub const BF16: Self = Self::of(2.0, 4.0, 12.0, 2.0);
    /// The same with gradients in BF16. Source: as above.
    pub const BF16_GRADIENTS: Self = Self::of(2.0, 2.0, 12.0, 2.0);
    /// Weights, gradients and Adam in 32 bits, gathered in BF16: mixed precision of PyTorch's FSDP. Source: PyTorch,
    /// `MixedPrecisionPolicy`.
    pub const FP32: Self = Self::of(4.0, 4.0, 8.0, 2.0);
    /// All in BF16, as a module in BF16 with `torch.optim.AdamW`.
    pub const BF16_ONLY: Self = Self::of(2.0, 2.0, 4.0, 2.0);
    /// FP8 weights, gradients and the copy in 32 bits, moments in BF16. Source: DeepSeek-V3 report, 3.3.2.
    pub const DEEPSEEK_V3: Self = Self::of(1.0, 4.0, 8.0, 1.0);

    const fn of(weight: f64, gradient: f64, optimizer: f64, gathered: f64) -> Self {
        Self { weight, gradient, optimizer, gathered, gathered_in_layers: gathered, reduced: gradient }
    }

    /// Whether weights of layers are cast to 8 bits before they are gathered, and not after.
    pub fn gathers_8_bits(&self) -> bool {
        self.gathered_in_layers < 2.0
    }

    /// Bytes a parameter and rank where `shards` ranks share what `zero` says.
    pub fn held(&self, zero: u8, shards: u64) -> f64 {
        let [weight, gradient, optimizer] = self.shares(zero, shards);
        weight + gradient + optimizer
    }

    /// Weight, gradient and optimizer, each by itself.
    pub(super) fn shares(&self, zero: u8, shards: u64) -> [f64; 3] {
        let n = shards.max(1) as f64;
        let share = |from: u8, bytes: f64| if zero >= from { bytes / n } else { bytes };
        [share(3, self.weight), share(2, self.gradient), share(1, self.optimizer)]
    }

    /// Whether the optimizer has a copy of the weight in more bits, which it updates instead.
    pub fn copies(&self) -> bool {
        // Two moments of at least 16 bits each, and what the weight itself has.
        self.weight < 4.0 && self.optimizer > 4.0
    }

    /// Bytes of a parameter in a checkpoint: weight and optimizer.
    pub fn checkpoint(&self) -> f64 {
        self.weight + self.optimizer
    }
}

/// How attention is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kernel {
    /// One kernel that keeps no scores (FlashAttention, cuDNN).
    Fused,
    /// Products and a softmax, which keep the scores.
    Unfused,
}

/// What selective recomputation keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Selective {
    /// All but what these modules make.
    Modules(Modules),
    /// Every second product's output and that of attention (torchtitan, `selective op`).
    EverySecondProduct {
        /// Whether outputs that no backward pass needs are kept too: eager PyTorch caches them, a compiler drops them.
        unused: bool,
    },
}

/// What the loss holds at its most, in bytes of each logit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// Logits in 32 bits, as the paper of 2022 counts them.
    Paper,
    /// PyTorch's cross-entropy of FP32 logits.
    Torch,
    /// Megatron-LM's: softmax and gradient in place, in 32 bits, beside BF16 logits.
    InPlace,
    /// One kernel: BF16 logits and their gradient.
    Fused,
}

impl Loss {
    /// Bytes a logit at the peak, and those of blocks that are free then but too small for any tensor of the loss.
    pub(super) fn bytes(self, tensor: u32) -> [f64; 2] {
        match self {
            // The result of log_softmax, the gradient of the loss with respect to it, that with respect to logits, all
            // FP32. Measured: 12.0 B a logit in `models.csv` and `models_compiled.csv`. The BF16 logits are gone by then.
            Self::Torch if tensor == 1 => [12.0, 2.0],
            // `_nll_loss_and_log_softmax_backward` of torch/distributed/tensor/parallel/loss.py: that result, the gradient,
            // its sum with exp(result), and the sum scaled.
            Self::Torch => [16.0, 2.0],
            // megatron/core/tensor_parallel/cross_entropy.py: FP32 softmax, in which the gradient is made, and BF16 logits.
            Self::InPlace => [6.0, 0.0],
            // One FP32 value (arXiv 2205.05198, 4.3); BF16 logits and gradient (flash-attention, `CrossEntropyLoss`).
            Self::Paper | Self::Fused => [4.0, 0.0],
        }
    }
}

/// What a framework keeps.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Software {
    /// Bytes of a parameter.
    pub states: States,
    /// Attention.
    pub attention: Kernel,
    /// Bytes of an element that a product keeps of its input: 2, or 1 where it is cast to FP8 before.
    pub input: f64,
    /// Bytes of an element that an activation function keeps of its input.
    pub inner: f64,
    /// Bytes of an element of attention's output, which the product after it and attention's own backward pass read.
    pub attended: f64,
    /// Whether results of experts are weighted by their scores before the last product, so that its outputs are not kept.
    pub scores_inside: bool,
    /// Whether statistics of norms and of attention count.
    pub statistics: bool,
    /// Whether one product makes queries, keys and values: values are a view of it then and keep all of it, unless attention copies
    /// them.
    pub fused_qkv: bool,
    /// Whether attention copies values that are a view of more, so that it keeps them alone.
    pub copies_values: bool,
    /// Whether keys and values are copied for each query head.
    pub repeats_kv: bool,
    /// Whether SiLU of the gate is computed again.
    pub recomputes_activation: bool,
    /// Whether a rank keeps its part of a product's input only, and gathers it again (sequence parallelism).
    pub gathers_again: bool,
    /// Selective recomputation.
    pub selective: Selective,
    /// Loss.
    pub loss: Loss,
    /// Whether the vocabulary is padded to a multiple of 128 a tensor rank.
    pub pads_vocabulary: bool,
    /// Whether gradients have memory during the forward pass of a step's first micro-batch.
    pub permanent_gradients: bool,
    /// Whether embedding and head stay gathered (FSDP); else one at a time.
    pub keeps_root: bool,
    /// Whether a stage keeps its outputs and buffers for what it receives.
    pub keeps_boundary: bool,
    /// What the allocator holds and cannot use, of all that comes and goes.
    pub fragmentation: f64,
    /// How it runs a step.
    pub execution: Execution,
}

impl Software {
    /// The same with linear layers in a precision. Transformer Engine keeps inputs of products as it casts them.
    #[must_use]
    pub fn with_precision(self, precision: Precision) -> Self {
        let input = if self.execution.elements == Elements::Written { precision.bytes() } else { self.input };
        Self { input, execution: Execution { precision, ..self.execution }, ..self }
    }

    /// Whether the output of a norm is a tensor of its own. Transformer Engine joins norms with the product after them, but for
    /// those whose output several modules read: before latents of attention, and before experts.
    pub(crate) fn norm_apart(&self, several: bool) -> bool {
        several || self.execution.elements != Elements::Written
    }

    /// Whether layers of a model have norms that can be computed again by themselves
    /// ([`Layernorm`](crate::parallel::Module::Layernorm)).
    pub fn has_norms_apart(&self, model: &Transformer) -> bool {
        self.norm_apart(matches!(model.attention, Attention::Mla { .. }) || model.experts.is_some())
    }
}

/// What the allocator cannot use: 2% to 10% by NVIDIA's planner. 7% is fitted to the reserved memory of six runs of
/// torchtitan (`tests/data/compute/totals.csv`).
const FRAGMENTATION: f64 = 0.07;
/// The same with segments that grow (`expandable_segments`): the least that NVIDIA's planner takes.
const LEAST_FRAGMENTATION: f64 = 0.02;

/// A framework by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Framework {
    /// Megatron-LM as its paper of 2022 counts it: 16 bits, unfused attention, no small buffers.
    MegatronPaper,
    /// Megatron-LM and NeMo with fused attention.
    Megatron,
    /// The same as Megatron-Bridge's recipes for performance set it up.
    MegatronBridge,
    /// Eager PyTorch, a module in BF16.
    Eager,
    /// The same with its layers compiled.
    Compiled,
    /// torchtitan.
    Torchtitan,
    /// torchtitan with its layers compiled.
    TorchtitanCompiled,
    /// torchtitan on PyTorch of 2024 and 2025, before 2.11: FlashAttention-2.
    #[serde(rename = "torchtitan-2024")]
    Torchtitan2024,
    /// The same with its layers compiled.
    #[serde(rename = "torchtitan-2024-compiled")]
    TorchtitanCompiled2024,
    /// llm-foundry on Composer.
    LlmFoundry,
    /// DeepSeek's own, as the report of DeepSeek-V3 tells it.
    HaiLlm,
}

impl Framework {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::MegatronPaper,
        Self::Megatron,
        Self::MegatronBridge,
        Self::Eager,
        Self::Compiled,
        Self::Torchtitan,
        Self::TorchtitanCompiled,
        Self::Torchtitan2024,
        Self::TorchtitanCompiled2024,
        Self::LlmFoundry,
        Self::HaiLlm,
    ];

    /// Its name, such as `torchtitan-compiled`.
    pub fn name(self) -> &'static str {
        match self {
            Self::MegatronPaper => "megatron-paper",
            Self::Megatron => "megatron",
            Self::MegatronBridge => "megatron-bridge",
            Self::Eager => "eager",
            Self::Compiled => "compiled",
            Self::Torchtitan => "torchtitan",
            Self::TorchtitanCompiled => "torchtitan-compiled",
            Self::Torchtitan2024 => "torchtitan-2024",
            Self::TorchtitanCompiled2024 => "torchtitan-2024-compiled",
            Self::LlmFoundry => "llm-foundry",
            Self::HaiLlm => "hai-llm",
        }
    }

    /// Whether replicas share parameters (FSDP) where nobody says otherwise.
    pub fn shards_parameters(self) -> bool {
        self.software().keeps_root || self == Self::LlmFoundry
    }

    /// What replicas may share (ZeRO): Megatron-LM's distributed optimizer and Megatron-FSDP (`--data-parallel-sharding-strategy`);
    /// PyTorch's DDP and FSDP, whose units stay gathered after the forward pass in stage 2 (`reshard_after_forward=False`,
    /// `SHARD_GRAD_OP`); eager PyTorch has `ZeroRedundancyOptimizer` too. DeepSeek's report names ZeRO-1 (3.2).
    pub fn zero_stages(self) -> &'static [u8] {
        match self {
            Self::HaiLlm => &[1],
            Self::MegatronPaper => &[0, 1],
            Self::Megatron | Self::MegatronBridge | Self::Eager | Self::Compiled => &[0, 1, 2, 3],
            Self::Torchtitan
            | Self::TorchtitanCompiled
            | Self::Torchtitan2024
            | Self::TorchtitanCompiled2024
            | Self::LlmFoundry => &[0, 2, 3],
        }
    }

    /// Whether replicas gather weights of layers in 8 bits for products in FP8, where nobody says otherwise. Recipes of
    /// Megatron-Bridge have `fp8_param_gather` (`training/mixed_precision.py`), which is off in Megatron-LM (`--fp8-param-gather`) and
    /// torchtitan (`enable_fsdp_float8_all_gather`). Their FP8 is MXFP8 on Blackwell: that is gathered in 16 bits into the buffer
    /// of gradients, and cast after (Megatron-LM, `param_and_grad_buffer.py`, `reuse_grad_buf_for_mxfp8_param_ag`).
    pub fn gathers_8_bits(self, blackwell: bool) -> bool {
        self == Self::MegatronBridge && !blackwell
    }

    /// The least that replicas share (ZeRO) where weights of layers can be gathered in 8 bits; none where the framework cannot:
    /// Megatron-LM asks for the distributed optimizer, torchao for FSDP2.
    pub fn least_zero_of_8_bits(self) -> Option<u8> {
        match self {
            Self::Megatron | Self::MegatronBridge | Self::HaiLlm => Some(1),
            Self::MegatronPaper | Self::LlmFoundry => None,
            Self::Eager
            | Self::Compiled
            | Self::Torchtitan
            | Self::TorchtitanCompiled
            | Self::Torchtitan2024
            | Self::TorchtitanCompiled2024 => Some(2),
        }
    }

    /// Orders of micro-batches that its pipelines have. Source: Megatron-LM, `core/pipeline_parallel/schedules.py`; PyTorch,
    /// `torch/distributed/pipelining/schedules.py`; the DeepSeek-V3 report, 3.2.1, which names what DualPipe was chosen from.
    pub fn schedules(self) -> &'static [Schedule] {
        use Schedule::{DualPipe, Gpipe, Interleaved, OneForwardOneBackward, ZeroBubble};
        match self {
            Self::Megatron | Self::MegatronBridge | Self::MegatronPaper => &[OneForwardOneBackward, Interleaved],
            Self::HaiLlm => &[OneForwardOneBackward, Interleaved, ZeroBubble, DualPipe],
            Self::LlmFoundry => &[OneForwardOneBackward],
            Self::Eager
            | Self::Compiled
            | Self::Torchtitan
            | Self::TorchtitanCompiled
            | Self::Torchtitan2024
            | Self::TorchtitanCompiled2024 => &[Gpipe, OneForwardOneBackward, Interleaved, ZeroBubble],
        }
    }

    /// By name.
    ///
    /// # Errors
    /// A name that is none, with the nearest.
    pub fn parse(name: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name);
        Self::ALL.into_iter().find(|framework| framework.name().eq_ignore_ascii_case(name)).ok_or_else(|| {
            let near = nearest(name, names()).map_or_else(String::new, |near| format!(", did you mean `{near}`?"));
            let shown: String = collcast_sim::text::one_line(name).chars().take(40).collect();
            format!("the framework `{shown}` is not known{near}; known: {}", names().join(", "))
        })
    }

    /// What it keeps by default; every field can be changed.
    pub fn software(self) -> Software {
        let eager = Software {
            states: States::BF16_ONLY,
            attention: Kernel::Fused,
            input: 2.0,
            inner: 2.0,
            attended: 2.0,
            scores_inside: false,
            statistics: true,
            fused_qkv: true,
            copies_values: false,
            repeats_kv: false,
            recomputes_activation: false,
            gathers_again: false,
            selective: Selective::Modules(Modules::of(&[Module::CoreAttn])),
            loss: Loss::Torch,
            pads_vocabulary: false,
            permanent_gradients: false,
            keeps_root: false,
            keeps_boundary: true,
            fragmentation: FRAGMENTATION,
            execution: Execution::EAGER,
        };
        let clipped = |execution| Execution { clips: true, ..execution };
        let megatron = Software {
            states: States::BF16,
            // Megatron-LM, `core/fusions/fused_bias_swiglu.py`, `weighted_bias_swiglu_impl`.
            scores_inside: true,
            // Transformer Engine, `dot_product_attention/utils.py`, `get_qkv_layout`: no layout has only some of them in one tensor.
            copies_values: true,
            recomputes_activation: true,
            gathers_again: true,
            loss: Loss::InPlace,
            pads_vocabulary: true,
            permanent_gradients: true,
            keeps_boundary: false,
            execution: Execution::MEGATRON,
            ..eager
        };
        let torchtitan = Software {
            states: States::FP32,
            fused_qkv: false,
            repeats_kv: true,
            selective: Selective::EverySecondProduct { unused: true },
            keeps_root: true,
            execution: clipped(Execution::EAGER),
            ..eager
        };
        // From 2.11 on, where keys are copied for each head: `check_prefer_cudnn_attention` of PyTorch's `sdp_utils.cpp` takes it on
        // Hopper and Blackwell with cuDNN above 9.15, which 2.11 is the first release to bring.
        let cudnn = |software: Software| Software {
            execution: Execution { flash: Backend::Cudnn, ..software.execution },
            ..software
        };
        match self {
            Self::Eager => eager,
            Self::Compiled => Software { recomputes_activation: true, execution: Execution::COMPILED, ..eager },
            Self::Megatron => megatron,
            // Megatron-Bridge, `scripts/performance/`: `grad_reduce_in_fp32 = False`, `PYTORCH_CUDA_ALLOC_CONF=expandable_segments`.
            Self::MegatronBridge => {
                Software { states: States::BF16_GRADIENTS, fragmentation: LEAST_FRAGMENTATION, ..megatron }
            }
            Self::MegatronPaper => {
                // Messages beside passes came in 2023 (Megatron-LM, `overlap_p2p_comm`). Its layers are its own, with biases that
                // are added in kernels over elements, and queries, keys and values split from one tensor.
                let execution = Execution { overlaps_messages: false, joins_gradients: false, ..megatron.execution };
                Software { attention: Kernel::Unfused, statistics: false, loss: Loss::Paper, execution, ..megatron }
            }
            Self::Torchtitan => cudnn(torchtitan),
            Self::Torchtitan2024 => torchtitan,
            Self::TorchtitanCompiled => cudnn(Self::TorchtitanCompiled2024.software()),
            Self::TorchtitanCompiled2024 => Software {
                recomputes_activation: true,
                selective: Selective::EverySecondProduct { unused: false },
                // The compiler sees the checkpoint and drops what nothing needs.
                execution: clipped(Execution { stops_early: true, ..Execution::COMPILED }),
                ..torchtitan
            },
            // DeepSeek-V3 report (arXiv 2412.19437), 3.2.2, 3.2.3 and 3.3: what is recomputed, 8-bit caches of inputs of products
            // and of SwiGLU, 12 bits of attention's output, scales for blocks, tokens sent beside passes and once to each host, by 20 of 132
            // multiprocessors, which are those that computation does not have.
            Self::HaiLlm => Software {
                states: States::DEEPSEEK_V3,
                inner: 1.0,
                attended: 1.5,
                selective: Selective::Modules(Modules::of(&[Module::MlaUpProj, Module::Layernorm, Module::MoeAct])),
                execution: Execution {
                    scaling: Scaling::Blocks,
                    dispatch: Dispatch::Deepep,
                    reserves: TOKEN_BLOCKS,
                    ..Execution::MEGATRON
                },
                ..megatron
            },
            Self::LlmFoundry => {
                // `attn_impl: triton` of v0.1 to v0.3: FlashAttention of 2022 (llm-foundry, `benchmarking/submit_benchmarks.py`).
                let execution = Execution {
                    flash: Backend::Flash1,
                    units: Units::Flat,
                    // Composer, `dist_strategy.py`: `BACKWARD_POST` unless a run says otherwise, and those of the benchmarks do not.
                    gathers_after_sum: true,
                    ..clipped(Execution::EAGER)
                };
                // Its benchmarks sum gradients in 16 bits: `mixed_precision: PURE`.
                let states = States { reduced: 2.0, ..States::FP32 };
                Software { states, loss: Loss::Fused, execution, ..eager }
            }
        }
    }
}

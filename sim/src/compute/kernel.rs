//! Kernels by their shape: what they multiply, read and write.

use serde::{Deserialize, Serialize};

/// How many bits an operand of a product has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// 16 bits: BF16 or FP16.
    Bf16,
    /// 8 bits: E4M3 or E5M2.
    Fp8,
    /// 4 bits with a scale of 8 bits for each 16 of them (NVFP4).
    Fp4,
}

impl Precision {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Bf16, Self::Fp8, Self::Fp4];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
            Self::Fp4 => "fp4",
        }
    }

    /// Bytes of an element, scales of blocks included.
    pub const fn bytes(self) -> f64 {
        match self {
            Self::Bf16 => 2.0,
            Self::Fp8 => 1.0,
            Self::Fp4 => 0.5625,
        }
    }
}

/// Which product of a linear layer, with `x` (tokens x inputs), `w` (inputs x outputs) and `y = x w`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProductPass {
    /// `y = x w`: sums over inputs.
    Forward,
    /// Gradient of the input, `dy w^T`: sums over outputs.
    GradInput,
    /// Gradient of the weights, `x^T dy`: sums over tokens.
    GradWeight,
}

/// Which tokens a product is of: all through one weight, or groups of them, each through a weight of its own, in one
/// kernel (experts).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Tokens {
    /// So many through one weight.
    All(u64),
    /// So many in all, shared evenly.
    Even {
        /// Tokens of all groups.
        total: u64,
        /// Groups, each with its weight.
        groups: u64,
    },
    /// So many of each group.
    Given(Vec<u64>),
}

impl Tokens {
    /// How many groups there are, each with its weight.
    pub fn count(&self) -> u64 {
        match self {
            Self::All(_) => 1,
            &Self::Even { groups, .. } => groups,
            Self::Given(groups) => groups.len() as u64,
        }
    }

    /// Sizes of groups, and how many there are of each.
    pub(super) fn groups(&self) -> Vec<(f64, f64)> {
        match self {
            &Self::All(tokens) => vec![(tokens as f64, 1.0)],
            &Self::Even { total, groups } => {
                let (each, more) = (total / groups.max(1), total % groups.max(1));
                vec![((each + 1) as f64, more as f64), (each as f64, (groups.max(1) - more) as f64)]
            }
            Self::Given(groups) => groups.iter().map(|&tokens| (tokens as f64, 1.0)).collect(),
        }
    }
}

/// A product of matrices, of a linear layer or of experts.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Product {
    /// Of its operands.
    pub precision: Precision,
    /// Which of the layer's products.
    pub pass: ProductPass,
    /// Rows of the layer's input.
    pub tokens: Tokens,
    /// Columns of the layer's output.
    pub outputs: u64,
    /// Columns of the layer's input.
    pub inputs: u64,
    /// Bytes of an element of the result: 2, or 4 for gradients in FP32.
    pub result_bytes: u8,
    /// Whether it is added to what is there, which is read too.
    pub accumulates: bool,
}

impl Product {
    /// `y = x w` of one weight in that precision, with results of 16 bits.
    pub fn forward(precision: Precision, tokens: u64, outputs: u64, inputs: u64) -> Self {
        Self {
            precision,
            pass: ProductPass::Forward,
            tokens: Tokens::All(tokens),
            outputs,
            inputs,
            result_bytes: 2,
            accumulates: false,
        }
    }

    /// The same layer's other product.
    #[must_use]
    pub fn of_pass(self, pass: ProductPass) -> Self {
        Self { pass, ..self }
    }
}

/// Which implementation of attention.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// FlashAttention of 2022.
    Flash1,
    /// FlashAttention-2, written for Ampere.
    Flash2,
    /// FlashAttention-3, written for Hopper.
    Flash3,
    /// cuDNN's, of 9 and later.
    Cudnn,
    /// TensorRT-LLM's for the tokens of a prompt.
    TrtLlm,
}

impl Backend {
    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Flash1 => "flash1",
            Self::Flash2 => "flash2",
            Self::Flash3 => "flash3",
            Self::Cudnn => "cudnn",
            Self::TrtLlm => "trtllm",
        }
    }
}

/// Direction of a pass through a layer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pass {
    /// From inputs to outputs.
    Forward,
    /// Gradients.
    Backward,
}

/// Attention of queries over keys and values, in one fused kernel of BF16.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Attention {
    /// Who wrote it.
    pub backend: Backend,
    /// Forward or backward.
    pub pass: Pass,
    /// Sequences.
    pub batch: u64,
    /// Heads of queries.
    pub heads: u64,
    /// Heads of keys and values.
    pub kv_heads: u64,
    /// Queries of a sequence.
    pub queries: u64,
    /// Keys of a sequence.
    pub keys: u64,
    /// Width of a head's queries and keys.
    pub head_dim: u64,
    /// Width of a head's values.
    pub value_dim: u64,
    /// Whether queries see only keys up to their own place; the last query sees all.
    pub causal: bool,
    /// Whether values are the first part of keys, which are read once: the latents of MLA.
    pub latent: bool,
}

/// What a kernel does with elements where no tensor core multiplies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryKind {
    /// Copies, sums and products of elements.
    Copy,
    /// Writes a value and reads nothing.
    Fill,
    /// An activation function of many instructions, such as GELU. Those of SiLU or ReLU hide as a copy's do.
    Activation,
    /// A normalisation by a row's sum of squares (RMSNorm).
    Norm,
    /// One by its mean and variance (LayerNorm), found in one pass by Welford's method.
    LayerNorm,
    /// A softmax over rows too long to stay in a multiprocessor.
    Softmax,
    /// Finds the scale of a whole tensor: its largest element.
    Scale,
    /// Stores in fewer bits.
    Quantize,
    /// 16 bits to 32, loaded one by one.
    Widen,
    /// Elements to places that an index tells, an address computed for each.
    Scatter,
    /// The same added to what is there, rows of one place by one block.
    Accumulate,
    /// `rows` times `width` multiply-adds of a product in 32 bits, which tensor cores do not run.
    Multiply,
    /// A sum of a few rows for each of `rows` tokens, with a weight each: batched products of 32 bits, `width` columns.
    Combine,
    /// The gradient of those rows, by kernels made for larger products: tiles of 32 rows and 64 columns, mostly empty.
    Spread,
}

/// A kernel, or several in a row, whose time is that of its bytes, or of instructions of its [`MemoryKind`] where these take longer.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Memory {
    /// What it does.
    pub kind: MemoryKind,
    /// Bytes that it reads.
    pub reads: u64,
    /// Bytes that it writes.
    pub writes: u64,
    /// Rows that are summed over, where any are; else any number of them.
    pub rows: u64,
    /// Elements of a row.
    pub width: u64,
    /// Kernels that share this work, one after another.
    pub kernels: u32,
}

/// A step of an optimiser over tensors, in one kernel for many tensors.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Optimizer {
    /// Parameters.
    pub elements: u64,
    /// Bytes read of a parameter: itself, gradient and states.
    pub reads: u32,
    /// Bytes written of it.
    pub writes: u32,
    /// Tensors that they are in.
    pub tensors: u64,
}

/// A copy between the memory of a host and that of its GPU.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HostCopy {
    /// Bytes.
    pub bytes: u64,
    /// From the GPU to the host, else from the host to the GPU.
    pub to_host: bool,
    /// Host memory is pinned: copy engines reach it. Pageable memory goes through buffers of the driver.
    pub pinned: bool,
}

/// One kernel of a GPU.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Kernel {
    /// A product of matrices.
    Product(Product),
    /// Fused attention.
    Attention(Attention),
    /// Bound by memory.
    Memory(Memory),
    /// A step of an optimiser.
    Optimizer(Optimizer),
    /// A copy between host and GPU.
    HostCopy(HostCopy),
}

//! All constants of the model of kernels: what a GPU is, and what its kernels reach of it.

use crate::profile::Role;
use crate::profile::declare::constants;

/// Of something nominal: a part, and not none of it, since rates divide by it.
const SHARE: [f64; 2] = [1e-2, 1.0];
/// How many times as fast what only reads is: not slower, and not twice as fast.
const FASTER: [f64; 2] = [1.0, 2.0];
/// Of a whole, a part of it.
const PART: [f64; 2] = [0.0, 1.0];
/// Times in us: below a tenth of a second.
const TIME: [f64; 2] = [0.0, 1e5];
/// Counts and rates of hardware: at least one, since times divide by them.
const COUNT: [f64; 2] = [1.0, 1e6];
/// How many times as fast a precision is; 0 where there is none.
const TIMES: [f64; 2] = [0.0, 64.0];
/// Power in W.
const WATT: [f64; 2] = [1.0, 1e5];
/// Times of the control of power, in ms: averages over at least some of its own steps.
const SETTLE: [f64; 2] = [10.0, 1000.0];
/// Energy in pJ.
const ENERGY: [f64; 2] = [1e-3, 1e3];
/// Instructions of an element.
const WORK: [f64; 2] = [0.0, 1e4];
/// Softmax beside products: from all hidden to many more instructions than its exponential.
const EXPOSED: [f64; 2] = [0.0, 20.0];
/// Of voltage with the clock, and what follows from it: from none to far beyond the square of both.
const EXPONENT: [f64; 2] = [0.1, 6.0];

// Variant, name in files, unit, bounds, role; then what it means.
constants! {
    /// A constant of the model of kernels.
    Constant;
    Sms "gpu.sms" "count" COUNT Hardware
        "streaming multiprocessors",
    Boost "gpu.clock" "MHz" COUNT Hardware
        "clock of the multiprocessors where no limit of power holds it back",
    Tensor "gpu.tensor" "FLOP/clock/SM" COUNT Hardware
        "what tensor cores do in BF16, without sparsity",
    TensorFp8 "gpu.tensor_fp8" "times BF16" TIMES Hardware
        "the same in FP8; 0 where they have none",
    TensorFp4 "gpu.tensor_fp4" "times BF16" TIMES Hardware
        "the same in FP4; 0 where they have none",
    Tile "gpu.tile" "results" COUNT Hardware
        "largest tile of a product that one multiprocessor, or a pair of them, keeps its sums of",
    Lanes "gpu.lanes" "per SM" COUNT Hardware
        "FP32 instructions that a multiprocessor starts in a clock",
    Exponentials "gpu.exponentials" "per clock and SM" COUNT Hardware
        "exponentials of the special function units",
    Memory "gpu.memory" "GB/s" COUNT Hardware
        "memory, reads and writes together",
    Capacity "gpu.capacity" "GB" COUNT Hardware
        "memory that a program can have, in 10^9 bytes",
    Peak "gpu.peak" "TFLOP/s" COUNT Hardware
        "what its data sheet gives for BF16 without sparsity: MFU in BF16 is a part of it, in FP8 and FP4 of so many times it",
    L2 "gpu.l2" "MB" COUNT Hardware
        "L2 cache",
    HostLink "gpu.host" "GB/s" COUNT Hardware
        "its link to host memory, one direction",
    PowerLimit "power.limit" "W" WATT Hardware
        "power at which the clock is lowered",
    PowerIdle "power.idle" "W" WATT Power
        "power that does not follow from work: idle units, leakage, memory's refresh",

    ProductBf16 "product.bf16" "of peak" SHARE Product
        "tensor rate of the inner loop of a BF16 product at the boost clock",
    ProductFp8 "product.fp8" "of peak" SHARE Product
        "the same in FP8",
    ProductFp4 "product.fp4" "of peak" SHARE Product
        "the same in FP4",
    ProductFeed "product.feed" "GB/s per SM" COUNT Product
        "operands that a multiprocessor takes from L2 at the boost clock",
    ProductTile "product.tile" "us" TIME Product
        "start and end of a tile of 128 x 256 results, beside its inner loop",
    ProductSplit "product.split" "us" TIME Product
        "what it costs to share one tile's inner loop out to several multiprocessors, beside bytes",

    MemoryShare "memory.share" "of nominal" SHARE GpuMemory
        "memory rate of kernels that only copy",
    MemoryRead "memory.read" "times memory.share" FASTER GpuMemory
        "memory rate of kernels that only read: its bus is not turned round",
    MemoryStore "memory.store" "B/clock/SM" COUNT GpuMemory
        "what multiprocessors write where they read nothing",
    MemoryL2 "memory.l2" "GB/s" COUNT GpuMemory
        "what L2 reads and writes together",
    WorkActivation "work.activation" "instructions/element" WORK Arithmetic
        "of GELU, beside loads and stores",
    WorkNorm "work.norm" "instructions/element" WORK Arithmetic
        "of an RMSNorm, whose sums its second part waits for",
    WorkLayerNorm "work.layer_norm" "instructions/element" WORK Arithmetic
        "of a LayerNorm, likewise",
    WorkSoftmax "work.softmax" "instructions/element" WORK Arithmetic
        "of a softmax over long rows, forward and backward together",
    WorkQuantize "work.quantize" "instructions/element" WORK Arithmetic
        "to store in fewer bits, or to find the largest of all",
    WorkOptimizer "work.optimizer" "instructions/element" WORK Arithmetic
        "of a step of Adam",
    WorkWiden "work.widen" "instructions/element" WORK Arithmetic
        "of 16 bits to 32 in eager PyTorch",
    WorkScatter "work.scatter" "instructions/element" WORK Arithmetic
        "of rows put in places that an index tells (index_put_)",
    WorkAccumulate "work.accumulate" "instructions/element" WORK Arithmetic
        "of rows added in places that an index tells",
    WorkMultiply "work.multiply" "instructions/product" WORK Arithmetic
        "of a multiply-add in 32 bits on cores that are no tensor cores",
    WorkCombine "work.combine" "instructions/column" WORK Arithmetic
        "of a token's sum of a few rows, by batched products in 32 bits",
    WorkSpread "work.spread" "instructions/column" WORK Arithmetic
        "of the gradient of these rows, likewise",

    Flash2Forward "attention.flash2.forward" "of peak" SHARE Attention
        "tensor rate of FlashAttention-2 while it multiplies",
    Flash2Backward "attention.flash2.backward" "of peak" SHARE Attention
        "the same, backward",
    Flash3Forward "attention.flash3.forward" "of peak" SHARE Attention
        "the same of FlashAttention-3, whose warps multiply while others take exponentials",
    Flash3Backward "attention.flash3.backward" "of peak" SHARE Attention
        "the same, backward",
    CudnnForward "attention.cudnn.forward" "of peak" SHARE Attention
        "the same of cuDNN's",
    CudnnBackward "attention.cudnn.backward" "of peak" SHARE Attention
        "the same, backward",
    TrtLlmForward "attention.trtllm.forward" "of peak" SHARE Attention
        "the same of TensorRT-LLM's for the tokens of a prompt",
    Flash2Softmax "softmax.flash2.forward" "of its exponentials" EXPOSED Attention
        "time of a score's softmax that FlashAttention-2 does not hide, forward",
    Flash2SoftmaxBackward "softmax.flash2.backward" "of its exponentials" EXPOSED Attention
        "the same, backward",
    FusedSoftmax "softmax.specialized.forward" "of its exponentials" EXPOSED Attention
        "the same of kernels with warps for each of their parts, forward",
    FusedSoftmaxBackward "softmax.specialized.backward" "of its exponentials" EXPOSED Attention
        "the same, backward",
    Flash2Block "block.flash2.forward" "us" TIME Attention
        "start and end of a block of queries of FlashAttention-2",
    Flash2BlockBackward "block.flash2.backward" "us" TIME Attention
        "the same, backward",
    FusedBlock "block.specialized.forward" "us" TIME Attention
        "the same of kernels with warps for each of their parts, forward",
    FusedBlockBackward "block.specialized.backward" "us" TIME Attention
        "the same, backward",
    TrtLlmBlock "block.trtllm.forward" "us" TIME Attention
        "the same of TensorRT-LLM's",

    AttentionTail "attention.tail.forward" "of a block" PART Attention
        "of the longest block, what a causal kernel takes after its work is shared out evenly, forward",
    AttentionTailBackward "attention.tail.backward" "of a block" PART Attention
        "the same, backward",

    CopyShare "copy.share" "of nominal" SHARE CopyEngine
        "what copies from and to pinned host memory get of the link to it",
    CopyStart "copy.start" "us" TIME CopyEngine
        "from the end of such a copy to the first byte of the next of its stream",
    PageableStart "pageable.start" "us" TIME CopyEngine
        "start of a copy from pageable host memory that the driver stages and the host thread waits for",
    PageableWrite "pageable.write" "GB/s" COUNT CopyEngine
        "what a host thread writes of pageable memory into the driver's buffers",
    PageableReturn "pageable.return" "us" TIME CopyEngine
        "start of a copy to pageable host memory: the host thread waits for the GPU before it reads the driver's buffers",
    PageableRead "pageable.read" "GB/s" COUNT CopyEngine
        "what a host thread reads out of the driver's buffers into pageable memory",

    KernelStart "kernel.start" "us" TIME Kernel
        "from the end of a kernel to the first work of the next of its stream, and its own end",
    KernelScale "kernel.scale" "us" TIME Kernel
        "of the small kernels that make one scale out of the largest elements of a tensor's parts",
    KernelPrompt "kernel.prompt" "us" TIME Kernel
        "of TensorRT-LLM's small kernels before attention over a prompt, beside what they move",
    EnergyBf16 "energy.bf16" "pJ/FLOP" ENERGY Power
        "of a BF16 product at the boost clock, with what feeds it",
    EnergyFp8 "energy.fp8" "pJ/FLOP" ENERGY Power
        "the same in FP8",
    EnergyFp4 "energy.fp4" "pJ/FLOP" ENERGY Power
        "the same in FP4",
    EnergyByte "energy.byte" "pJ/B" ENERGY Power
        "of a byte that memory reads or writes, with its way through L2",
    PowerExponent "power.exponent" "exponent" EXPONENT Power
        "how energy of an operation follows the clock, by the voltage that the clock needs",
    PowerFirm "power.firm" "of boost" SHARE Power
        "clock up to which tensor cores at work keep the clock that is set",
    PowerYield "power.yield" "of the clock above" PART Power
        "of what is set above that, what tensor cores at work lose: their current pulls the voltage down",
    PowerSettle "power.settle" "ms" SETTLE Power
        "time in which the clock goes most of the way to what the power limit allows",

    IssueElement "issue.element" "us" TIME Framework
        "work of the host thread of a framework for an operator of elements, one kernel",
    IssueNorm "issue.norm" "us" TIME Framework
        "the same for a normalisation, which returns its sums too",
    IssueProduct "issue.product" "us" TIME Framework
        "the same for a product",
    IssueScaled "issue.scaled_product" "us" TIME Framework
        "the same for a product with scales",
    IssueAttention "issue.attention" "us" TIME Framework
        "the same for attention",
    IssueCopy "issue.copy" "us" TIME Framework
        "the same for a copy between host and GPU",
    IssueBackward "issue.backward" "us" TIME Framework
        "the same for one call of automatic differentiation",
}

impl Constant {
    /// Whether fits find it: all but what a data sheet or a power meter says.
    pub fn is_fitted(self) -> bool {
        let metered = self.role() == Role::Power && self != Self::PowerSettle;
        self.role() != Role::Hardware && !metered
    }
}

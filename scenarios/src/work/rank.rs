//! One rank's part of a layer, and how its kernels are written down.

use collcast_sim::collective::Collective;
use collcast_sim::compute::{Kernel, Memory, MemoryKind, Precision, Product, ProductPass, Tokens};

use super::{Beside, Call, Elements, Exchange, Execution, ExpertKernels, Piece, Repeated, Scaling};
use crate::memory::Software;
use crate::parallel::{Axis, Module, Modules, Parallel};
use crate::transformer::{Activation, Biases, Transformer};

/// One operation, both ways; what a layer is a row of. The backward pass takes the row from its end.
#[derive(Clone, Default, Debug)]
pub(super) struct Operation {
    pub(super) forward: Vec<Piece>,
    pub(super) backward: Vec<Piece>,
    pub(super) role: Role,
    /// Modules that it belongs to.
    pub(super) modules: Modules,
}

impl Operation {
    /// The same as a part of a module.
    pub(super) fn of(self, module: Module) -> Self {
        Self { modules: self.modules.with(module), ..self }
    }
}

/// What recomputation asks of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Role {
    /// Cheap for what it keeps.
    #[default]
    Element,
    /// A product of a linear layer.
    Product,
    /// The core of attention.
    Core,
    /// A sum over ranks.
    Reduced,
    /// Nothing in the layer needs its result again.
    Output,
}

/// A model on one rank.
pub(super) struct Rank<'a> {
    pub(super) model: &'a Transformer,
    pub(super) parallel: &'a Parallel,
    pub(super) software: &'a Software,
    /// Ranks that split products.
    pub(super) tensor: u64,
    /// Tokens of a micro-batch that products see.
    pub(super) tokens: u64,
    /// Tokens that norms and residuals see: fewer with sequence parallelism.
    pub(super) local: u64,
    pub(super) hidden: u64,
}

impl<'a> Rank<'a> {
    pub(super) fn new(model: &'a Transformer, parallel: &'a Parallel, software: &'a Software) -> Self {
        let tensor = u64::from(parallel.tensor).max(1);
        let context = u64::from(parallel.context).max(1);
        let own = u64::from(parallel.micro_batch).saturating_mul(parallel.sequence(model) / context);
        // Steps of serving have any number of tokens. Engines pad them, so that tensor ranks have as many each (vLLM,
        // `sequence_parallel_chunk`).
        let local = if parallel.sequence_parallel { own.div_ceil(tensor) } else { own };
        let tokens = if parallel.sequence_parallel { times(&[local, tensor]) } else { own };
        Self { model, parallel, software, tensor, tokens, local, hidden: model.hidden }
    }

    pub(super) fn execution(&self) -> &Execution {
        &self.software.execution
    }

    /// Whether norms and residuals are split over tensor ranks.
    pub(super) fn splits_sequence(&self) -> bool {
        self.parallel.sequence_parallel && self.tensor > 1
    }

    /// Bytes of all tokens between layers, in 16 bits: what tensor ranks exchange.
    pub(super) fn activations(&self) -> u64 {
        times(&[2, self.tokens, self.hidden])
    }

    /// A product of a linear layer, with the casts of its operands in 8 bits; `cast` where its input comes in 16.
    pub(super) fn linear(&self, name: &'static str, of: &Linear) -> Operation {
        let execution = self.execution();
        let precision = if of.head { Precision::Bf16 } else { execution.precision };
        let product = Product { tokens: of.tokens.clone(), ..Product::forward(precision, 0, of.outputs, of.inputs) };
        let gradient = execution.accumulates_in_product;
        let weights = Product {
            result_bytes: if gradient { self.software.states.gradient as u8 } else { 2 },
            accumulates: gradient,
            ..product.clone().of_pass(ProductPass::GradWeight)
        };
        let rows = total(&of.tokens);
        // Each group has a tensor of its own, with its own scale.
        let groups = if self.fuses_experts() { 1 } else { of.tokens.count() };
        let tensors = u32::try_from(groups).unwrap_or(u32::MAX);
        let mut forward = Vec::new();
        let mut backward = Vec::new();
        if precision != Precision::Bf16 {
            if of.cast {
                forward.extend(self.cast("cast of an input", rows, of.inputs, tensors));
            }
            let come_cast = self.software.states.gathers_8_bits() && execution.by_units(self.parallel.zero);
            if execution.elements != Elements::Written && !come_cast {
                // Weights that stay in 16 bits are cast each time; Transformer Engine does so once a step.
                forward.extend(self.cast(
                    "cast of a weight",
                    of.outputs.saturating_mul(tensors.into()),
                    of.inputs,
                    tensors,
                ));
            }
            backward.extend(self.cast("cast of a gradient", rows, of.outputs, tensors));
        }
        forward.push(kernel(name, Kernel::Product(product.clone())));
        backward.push(kernel(name, Kernel::Product(product.of_pass(ProductPass::GradInput))));
        let mut weights =
            vec![Piece::Kernel(Repeated { name, kernel: Kernel::Product(weights), count: 1, inner: 0, weights: true })];
        if of.bias && !execution.joins_gradients {
            let bytes = times(&[2, rows, of.outputs]);
            let sum = Memory { kind: MemoryKind::Copy, reads: bytes, writes: 0, rows, width: of.outputs, kernels: 1 };
            let kernel = Kernel::Memory(sum);
            weights.push(Piece::Kernel(Repeated {
                name: "gradient of a bias",
                kernel,
                count: 1,
                inner: 0,
                weights: true,
            }));
        }
        backward.extend(weights);
        Operation { forward, backward, role: Role::Product, ..Operation::default() }
    }

    /// A tensor in 8 bits, and its transpose for the product over the other dimension, which Hopper's 8-bit instructions
    /// need (cuBLAS 12, "Narrow precisions": only the TN layout).
    fn cast(&self, name: &'static str, rows: u64, width: u64, tensors: u32) -> Vec<Piece> {
        let bytes = times(&[2, rows, width]);
        let pass = |kind, writes| Memory { kind, reads: bytes, writes, rows, width, kernels: tensors };
        let mut pieces = Vec::new();
        if self.execution().scaling == Scaling::Current {
            pieces.push(kernel(name, Kernel::Memory(pass(MemoryKind::Scale, 0))));
        }
        pieces.push(kernel(name, Kernel::Memory(pass(MemoryKind::Quantize, bytes))));
        pieces
    }

    /// A call to the tensor ranks about all tokens between layers.
    ///
    /// PyTorch's ranks split the second dimension, tokens, where calls know the first one only: what is gathered is copied
    /// together after the call, what is scattered apart before. Pieces beside products are in their place.
    ///
    /// Source: PyTorch 2.11, `torch/distributed/_functional_collectives.py`, `all_gather_tensor`, `reduce_scatter_tensor`.
    fn call(&self, name: &'static str, collective: Collective, in_pieces: bool) -> Vec<Piece> {
        let execution = self.execution();
        let call = |beside| exchange(name, Axis::Tensor, Call::Collective(collective), self.activations(), beside);
        let copy = || elements("tokens in order", MemoryKind::Copy, self.tokens, self.hidden, 2, 2);
        match collective {
            Collective::AllGather if in_pieces => vec![call(Beside::Next)],
            // The pieces that each rank sent are summed by the one that receives them.
            Collective::ReduceScatter if in_pieces => {
                vec![call(Beside::Before), elements("sum of pieces", MemoryKind::Copy, self.tokens, self.hidden, 2, 0)]
            }
            Collective::AllGather if execution.splits_second => vec![call(Beside::Nothing), copy()],
            Collective::ReduceScatter if execution.splits_second => vec![copy(), call(Beside::Nothing)],
            _ => vec![call(Beside::Nothing)],
        }
    }

    /// The same beside the kernels that follow.
    fn beside(&self, name: &'static str, collective: Collective) -> Piece {
        exchange(name, Axis::Tensor, Call::Collective(collective), self.activations(), Beside::Next)
    }

    /// Whether exchanges of tensor ranks go beside their products.
    fn overlaps(&self) -> bool {
        self.execution().overlaps_tensor && self.splits_sequence() && self.tokens.is_multiple_of(self.tensor)
    }

    /// A product whose exchange goes beside it runs in as many pieces as there are tensor ranks, each with the tokens of one: all
    /// but that of the weights' gradient.
    ///
    /// Source: PyTorch 2.11, `torch/distributed/_symmetric_memory/__init__.py`, `_pipelined_multi_all_gather_and_consume`;
    /// Transformer Engine, `comm_gemm_overlap.cpp`, `CommOverlapP2PBase`.
    fn in_pieces(&self, list: &mut [Piece]) {
        for piece in list {
            if let Piece::Kernel(Repeated { kernel: Kernel::Product(product), count, weights: false, .. }) = piece
                && let Tokens::All(tokens) = &mut product.tokens
            {
                *tokens /= self.tensor;
                *count = self.parallel.tensor;
            }
        }
    }

    /// The last piece of such a product needs all that is gathered beside it.
    fn await_gathered(list: &mut Vec<Piece>) {
        let in_pieces = |piece: &Piece| matches!(piece, Piece::Kernel(run) if run.count > 1 && !run.weights);
        if let Some(at) = list.iter().rposition(in_pieces)
            && let Piece::Kernel(run) = &mut list[at]
        {
            let last = Repeated { count: 1, ..run.clone() };
            run.count -= 1;
            list.splice(at + 1..at + 1, [Piece::Wait, Piece::Kernel(last)]);
        }
    }

    /// Products that tensor ranks split by outputs, of one input: with sequence parallelism they gather it before, and
    /// they sum its gradient after.
    ///
    /// Source: Megatron-LM, `core/tensor_parallel/layers.py`, `LinearWithGradAccumulationAndAsyncCommunication`.
    ///
    /// A compiler finds the sum of an input's gradient beside a product only where no other product adds to it, and nothing
    /// outside of layers (PyTorch 2.11, `torch/_inductor/fx_passes/micro_pipeline_tp.py`, `fuse_matmul_reduce_scatter`).
    pub(super) fn column_parallel(&self, name: &'static str, products: &[Linear]) -> Vec<Operation> {
        let execution = self.execution();
        let found = !execution.splits_second || products.iter().all(|of| !of.head);
        let gathers = self.overlaps() && found;
        let sums = gathers && (!execution.splits_second || products.len() == 1);
        let mut products: Vec<Operation> = products.iter().map(|of| self.linear(name, of)).collect();
        if self.tensor == 1 {
            return products;
        }
        for product in &mut products {
            if gathers {
                self.in_pieces(&mut product.forward);
            }
            if sums {
                self.in_pieces(&mut product.backward);
            }
        }
        if gathers && let Some(last) = products.last_mut() {
            Self::await_gathered(&mut last.forward);
        }
        let split = self.splits_sequence();
        let mut gather = Operation::default();
        if split {
            gather.forward.extend(self.call("gather of an input", Collective::AllGather, gathers));
        }
        let sum = if split { Collective::ReduceScatter } else { Collective::AllReduce };
        let mut reduce = self.call("gradient of an input", sum, sums);
        let of_weights = |piece: &Piece| matches!(piece, Piece::Kernel(run) if run.weights);
        if !execution.hides_gradients {
            match products.last_mut().filter(|_| sums) {
                // Right after the product that it goes beside.
                Some(product) => {
                    let at = product.backward.iter().position(of_weights).unwrap_or(product.backward.len());
                    product.backward.splice(at..at, reduce);
                }
                None => gather.backward.extend(reduce),
            }
            return std::iter::once(gather).chain(products).collect();
        }
        // The input comes again beside the product of its gradient, whose sum goes beside that of the weights' gradient.
        let mut one = Operation { role: Role::Product, ..gather };
        if split && self.software.gathers_again {
            one.backward.push(self.beside("gather of an input again", Collective::AllGather));
        }
        let mut weights = Vec::new();
        for product in products {
            one.forward.extend(product.forward);
            let (own, inputs): (Vec<_>, Vec<_>) = product.backward.into_iter().partition(of_weights);
            one.backward.extend(inputs);
            weights.extend(own);
        }
        reduce[0] = self.beside("gradient of an input", sum);
        let after = reduce.split_off(1);
        one.backward.push(Piece::Wait);
        one.backward.extend(reduce.into_iter().chain(weights).chain([Piece::Wait]).chain(after));
        vec![one]
    }

    /// A product that tensor ranks split by inputs, and the sum of their results; `last` where nothing keeps that.
    pub(super) fn row_parallel(&self, name: &'static str, of: &Linear, last: bool) -> Vec<Operation> {
        let overlaps = self.overlaps();
        let mut product = self.linear(name, of);
        if overlaps {
            self.in_pieces(&mut product.forward);
            self.in_pieces(&mut product.backward);
            Self::await_gathered(&mut product.backward);
        }
        if last {
            product.role = Role::Output;
        }
        if self.tensor == 1 {
            return vec![product];
        }
        let split = self.splits_sequence();
        let sum = if split { Collective::ReduceScatter } else { Collective::AllReduce };
        let gather = split.then(|| self.call("gather of a gradient", Collective::AllGather, overlaps));
        let reduce = Operation {
            forward: self.call("sum of a result", sum, overlaps),
            backward: gather.unwrap_or_default(),
            role: if last { Role::Output } else { Role::Reduced },
            ..Operation::default()
        };
        vec![product, reduce]
    }

    /// An MLP over all tokens, `width` columns in all; `last` where nothing keeps its result.
    pub(super) fn mlp(&self, width: u64, last: bool) -> Vec<Operation> {
        let (own, bias) = (width / self.tensor, self.model.biases == Biases::All);
        let product = |outputs| Linear { bias, cast: false, ..Linear::new(self.tokens, outputs, self.hidden) };
        let mut row = if self.gate_apart() {
            self.column_parallel("gate and up", &[product(own), product(own)])
        } else {
            let parts = if self.model.activation.gated() { 2 } else { 1 };
            self.column_parallel("gate and up", &[product(parts * own)])
        };
        row.push(self.activation(self.tokens, own));
        let down = Linear { bias, ..Linear::new(self.tokens, self.hidden, own) };
        row.extend(self.row_parallel("down", &down, last));
        row
    }

    /// Whether SwiGLU of experts and its casts are within their products ([`ExpertKernels::Fused`]), which are of 8 bits.
    pub(super) fn fuses_experts(&self) -> bool {
        let execution = self.execution();
        execution.expert_kernels == ExpertKernels::Fused
            && execution.precision == Precision::Fp8
            && self.model.activation == Activation::SwiGlu
    }

    /// Whether gate and up are products of their own: models written in PyTorch have three weights (Llama's `w1`, `w2`, `w3`),
    /// Megatron-LM two.
    pub(super) fn gate_apart(&self) -> bool {
        self.model.activation.gated() && self.execution().elements != Elements::Written
    }
}

/// A linear layer on one rank.
pub(super) struct Linear {
    pub(super) tokens: Tokens,
    pub(super) outputs: u64,
    pub(super) inputs: u64,
    /// Whether a bias is added.
    pub(super) bias: bool,
    /// Whether its input comes in 16 bits: norms and activations that Transformer Engine fuses with the cast give 8.
    pub(super) cast: bool,
    /// Whether it stays in 16 bits.
    pub(super) head: bool,
}

impl Linear {
    /// Of all tokens, without a bias.
    pub(super) fn new(tokens: u64, outputs: u64, inputs: u64) -> Self {
        Self { tokens: Tokens::All(tokens), outputs, inputs, bias: false, cast: true, head: false }
    }
}

fn total(tokens: &Tokens) -> u64 {
    match tokens {
        &Tokens::All(tokens) => tokens,
        &Tokens::Even { total, .. } => total,
        Tokens::Given(groups) => groups.iter().fold(0, |sum: u64, &tokens| sum.saturating_add(tokens)),
    }
}

/// A product of counts, or the largest number where it has no place: layouts that nobody checked may ask for that.
pub(super) fn times(counts: &[u64]) -> u64 {
    counts.iter().fold(1, |product: u64, &count| product.saturating_mul(count))
}

/// One kernel.
pub(super) fn kernel(name: &'static str, kernel: Kernel) -> Piece {
    operator(name, kernel, 0)
}

/// Kernels of one operator, so many of which it launches beside its first.
pub(super) fn operator(name: &'static str, kernel: Kernel, inner: u32) -> Piece {
    Piece::Kernel(Repeated { name, kernel, count: 1, inner, weights: false })
}

/// A kernel over elements, with bytes that it reads and writes of each.
pub(super) fn elements(name: &'static str, kind: MemoryKind, rows: u64, width: u64, reads: u64, writes: u64) -> Piece {
    let count = times(&[rows, width]);
    let (reads, writes) = (count.saturating_mul(reads), count.saturating_mul(writes));
    kernel(name, Kernel::Memory(Memory { kind, reads, writes, rows, width, kernels: 1 }))
}

/// Bytes of a token's number and place that one pass of a sort reads, and writes.
const KEY: u64 = 16;

/// A sort of so many numbers of tokens, each with its place.
pub(super) fn sort(name: &'static str, tokens: u64, passes: u64, kernels: u32) -> Piece {
    let keys = times(&[KEY, tokens, passes]);
    let kind = MemoryKind::Copy;
    let sort = Memory { kind, reads: keys, writes: keys, rows: tokens, width: 1, kernels };
    operator(name, Kernel::Memory(sort), kernels.saturating_sub(1))
}

/// One call.
pub(super) fn exchange(name: &'static str, axis: Axis, call: Call, bytes: u64, beside: Beside) -> Piece {
    Piece::Exchange(Exchange { name, axis, call, bytes, beside })
}

//! What lies before and after the layers: the embedding of tokens, the head and its loss.

use collcast_sim::collective::Collective;
use collcast_sim::compute::MemoryKind;

use super::rank::{Linear, Operation, Rank, Role, elements, exchange, sort, times};
use super::{Beside, Call, Piece};
use crate::memory::Loss;
use crate::parallel::Axis;

/// Kernels that sort the tokens of an embedding's gradient, so that rows of one token are added by one block. Source: PyTorch
/// 2.11, `aten/src/ATen/native/cuda/Embedding.cu` and CUB's radix sort of 32-bit keys; counted.
const SORT: u32 = 8;

impl Rank<'_> {
    /// Columns of the head, or rows of the embedding, of one rank.
    fn vocabulary(&self) -> u64 {
        let whole = if self.software.pads_vocabulary {
            self.model.padded_vocabulary(self.tensor)
        } else {
            self.model.vocabulary
        };
        whole / self.tensor
    }

    /// The embedding of a micro-batch's tokens. Each tensor rank has some rows of the table and zeros for other tokens.
    pub(super) fn embedding(&self) -> Vec<Operation> {
        let (tokens, width) = (self.tokens, self.hidden);
        let copy = |name, rows, reads, writes| elements(name, MemoryKind::Copy, rows, width, reads, writes);
        let mut table = Operation { forward: vec![copy("embedding", tokens, 2, 2)], ..Operation::default() };
        table.backward = vec![
            elements("gradient of the table", MemoryKind::Fill, self.vocabulary(), width, 0, 2),
            sort("sort of tokens", tokens, SORT.into(), SORT),
            copy("gradient of the table", tokens, 2, 2),
        ];
        if self.execution().accumulates_in_product {
            // No product makes this gradient, so that its sum with the main one is a kernel.
            table.backward.push(elements("gradient of the table", MemoryKind::Copy, self.vocabulary(), width, 6, 4));
        }
        table.backward.iter_mut().for_each(|piece| {
            if let Piece::Kernel(run) = piece {
                run.weights = true;
            }
        });
        let mut row = vec![table];
        if self.tensor > 1 {
            let split = self.splits_sequence();
            let sum = if split { Collective::ReduceScatter } else { Collective::AllReduce };
            let call = |name, collective| {
                exchange(name, Axis::Tensor, Call::Collective(collective), self.activations(), Beside::Nothing)
            };
            let gather = split.then(|| call("gradient of the embedding", Collective::AllGather));
            let forward = vec![call("sum of embeddings", sum)];
            row.push(Operation {
                forward,
                backward: gather.into_iter().collect(),
                role: Role::Reduced,
                ..Operation::default()
            });
        }
        if self.model.learned_positions > 0 {
            let positions = copy("embedding of positions", self.local, 4, 2);
            row.push(Operation { forward: vec![positions], ..Operation::default() });
        }
        if self.model.dropout {
            let [forward, backward] =
                [(2, 3), (3, 2)].map(|(reads, writes)| vec![copy("dropout", self.local, reads, writes)]);
            row.push(Operation { forward, backward, ..Operation::default() });
        }
        row
    }

    /// The last norm, logits and their loss.
    pub(super) fn head(&self) -> Vec<Operation> {
        let mut row = vec![self.norm("last norm", false, 1)];
        let logits = Linear { head: true, ..Linear::new(self.tokens, self.vocabulary(), self.hidden) };
        row.extend(self.column_parallel("logits", &[logits]));
        row.push(self.loss());
        row
    }

    /// Cross-entropy of each token's logits, of which every tensor rank has some. Bytes by what each framework's code reads
    /// and writes of a logit.
    fn loss(&self) -> Operation {
        let (rows, width) = (self.tokens, self.vocabulary());
        let of = |kind, reads, writes| elements("loss", kind, rows, width, reads, writes);
        let (copy, widen, softmax) = (MemoryKind::Copy, MemoryKind::Widen, MemoryKind::Softmax);
        let [mut forward, backward] = match self.software.loss {
            // torch/distributed/tensor/parallel/loss.py, whose kernels are not joined: to 32 bits, largest, difference,
            // exponentials, sum, difference; a one for each target, exponentials, sum with them, product, to 16 bits.
            Loss::Torch if self.tensor > 1 => [
                vec![
                    of(widen, 2, 4),
                    of(copy, 4, 0),
                    of(copy, 4, 4),
                    of(softmax, 4, 4),
                    of(copy, 4, 0),
                    of(copy, 4, 4),
                ],
                vec![of(MemoryKind::Fill, 0, 4), of(softmax, 4, 4), of(copy, 8, 4), of(copy, 4, 4), of(copy, 4, 2)],
            ],
            // To 32 bits, log-softmax; the gradient of its choice, that of log-softmax, to 16 bits.
            Loss::Torch => [
                vec![of(widen, 2, 4), of(softmax, 4, 4)],
                vec![of(MemoryKind::Fill, 0, 4), of(softmax, 8, 4), of(copy, 4, 2)],
            ],
            // megatron/core/fusions/fused_cross_entropy.py: to 32 bits with the largest, exponentials and their sum,
            // division; the product with the loss's gradient, in 16 bits.
            Loss::InPlace => {
                [vec![of(copy, 2, 4), of(softmax, 4, 4), of(copy, 4, 4)], vec![of(softmax, 4, 4), of(copy, 4, 2)]]
            }
            // megatron/core/tensor_parallel/cross_entropy.py: to 32 bits, largest, difference, exponentials, sum, division.
            Loss::Paper => [
                vec![of(copy, 2, 4), of(copy, 4, 0), of(copy, 4, 4), of(softmax, 4, 4), of(copy, 4, 0), of(copy, 4, 4)],
                vec![of(softmax, 4, 4), of(copy, 4, 2)],
            ],
            // flash-attention, `flash_attn/ops/triton/cross_entropy.py`.
            Loss::Fused => [vec![of(softmax, 2, 0)], vec![of(softmax, 2, 2)]],
        };
        if self.tensor > 1 {
            let bytes = times(&[4, rows]);
            let call = Call::Collective(Collective::AllReduce);
            let sums = ["largest logits", "logits of the targets", "sums of exponentials"];
            forward.extend(sums.map(|name| exchange(name, Axis::Tensor, call, bytes, Beside::Nothing)));
        }
        Operation { forward, backward, ..Operation::default() }
    }

    /// What a module that predicts further tokens has before its layer: norms of both inputs and the product that joins
    /// them. Source: DeepSeek-V3 report, 2.2; Megatron-LM, `core/transformer/multi_token_prediction.py`.
    pub(super) fn joined_inputs(&self) -> Vec<Operation> {
        let mut row = vec![self.norm("norm of an embedding", false, 1), self.norm("norm of a hidden state", false, 1)];
        let both = elements("inputs side by side", MemoryKind::Copy, self.local, 2 * self.hidden, 2, 2);
        row.push(Operation { forward: vec![both.clone()], backward: vec![both], ..Operation::default() });
        let product = Linear::new(self.tokens, self.hidden / self.tensor, 2 * self.hidden);
        row.extend(self.column_parallel("join of inputs", &[product]));
        if self.tensor > 1 {
            let call = |name, collective| {
                exchange(name, Axis::Tensor, Call::Collective(collective), self.activations(), Beside::Nothing)
            };
            let forward = vec![call("parts of joined inputs", Collective::AllGather)];
            let backward = vec![call("gradients of joined inputs", Collective::ReduceScatter)];
            row.push(Operation { forward, backward, ..Operation::default() });
        }
        row
    }
}

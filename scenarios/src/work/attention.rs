//! Attention of one rank: its products, rotation, and the core with what ranks of a sequence exchange.

use collcast_sim::collective::Collective;
use collcast_sim::compute::{self, Kernel, MemoryKind, Pass, Product, ProductPass, Tokens};

use super::rank::{Linear, Operation, Rank, Role, elements, exchange, kernel, times};
use super::{Beside, Call, ContextKind, Elements, Piece, Repeated};
use crate::memory;
use crate::parallel::{Axis, Module};
use crate::transformer::{Attention, Biases};

/// Heads of one rank and their widths.
#[derive(Clone, Copy)]
struct Heads {
    /// Of queries.
    heads: u64,
    /// Of keys and values, at least one.
    groups: u64,
    /// Width of a query or key.
    key: u64,
    /// Width of a value.
    value: u64,
}

impl Rank<'_> {
    /// All of attention between the norm before and the sum after.
    pub(super) fn attention(&self) -> Vec<Operation> {
        let mut row = Vec::new();
        let (heads, output) = match self.model.attention {
            Attention::Gqa { heads, kv_heads, head_dim, head_norm } => {
                let groups = (kv_heads / self.tensor).max(1);
                let of = Heads { heads: heads / self.tensor, groups, key: head_dim, value: head_dim };
                self.grouped(of, head_norm, &mut row);
                (of, self.model.biases == Biases::All)
            }
            Attention::Mla { heads, q_lora, kv_lora, nope, rope, value } => {
                let own = heads / self.tensor;
                let of = Heads { heads: own, groups: own, key: nope + rope, value };
                self.latent(of, [q_lora, kv_lora, nope, rope], &mut row);
                (of, false)
            }
        };
        self.core(heads, &mut row);
        let linear = Linear::new(self.tokens, self.hidden, heads.heads * heads.value);
        row.extend(self.row_parallel("output of attention", &Linear { bias: output, ..linear }, false));
        row
    }

    /// Products of queries, keys and values, norms of heads, rotation.
    fn grouped(&self, of: Heads, head_norm: bool, row: &mut Vec<Operation>) {
        let (queries, keys) = (of.heads * of.key, of.groups * of.key);
        let bias = self.model.biases != Biases::None;
        let product = |outputs| Linear { bias, cast: false, ..Linear::new(self.tokens, outputs, self.hidden) };
        if self.software.fused_qkv {
            row.extend(self.column_parallel("queries, keys and values", &[product(queries + 2 * keys)]));
            // Megatron-LM of 2022 adds this bias by itself; others come with the kernel after their product
            // (`LinearWithGradAccumulationAndAsyncCommunication`).
            if bias && self.execution().elements == Elements::Written && !self.execution().joins_gradients {
                let add = elements("bias", MemoryKind::Copy, self.tokens, queries + 2 * keys, 2, 2);
                row.push(Operation { forward: vec![add], ..Operation::default() });
            }
            row.push(self.join(self.tokens, queries + 2 * keys));
        } else {
            row.extend(
                self.column_parallel("queries, keys and values", &[product(queries), product(keys), product(keys)]),
            );
        }
        if head_norm {
            row.push(self.inner_norm("norm of heads", times(&[self.tokens, of.heads + of.groups]), of.key));
        }
        if self.model.rotary {
            row.push(self.rotation(self.tokens, queries + keys));
        }
    }

    /// Queries, keys and values from latents. Products that make latents are whole on each tensor rank.
    fn latent(&self, of: Heads, [q_lora, kv_lora, nope, rope]: [u64; 4], row: &mut Vec<Operation>) {
        let product = |name, outputs, inputs, cast| {
            self.linear(name, &Linear { cast, ..Linear::new(self.tokens, outputs, inputs) })
        };
        let down =
            |outputs| self.linear("latents", &Linear { cast: false, ..Linear::new(self.local, outputs, self.hidden) });
        if q_lora == 0 {
            let queries = [Linear::new(self.tokens, of.heads * of.key, self.hidden)];
            row.extend(self.column_parallel("queries", &queries).into_iter().map(|one| one.of(Module::MlaUpProj)));
        } else {
            row.push(down(q_lora));
        }
        row.push(down(kv_lora + rope));
        let start = row.len();
        for width in [q_lora, kv_lora].into_iter().filter(|&width| width > 0) {
            row.push(self.inner_norm("norm of latents", self.local, width));
        }
        if self.splits_sequence() {
            let bytes = times(&[2, self.tokens, q_lora + kv_lora + rope]);
            let call =
                |name, collective| exchange(name, Axis::Tensor, Call::Collective(collective), bytes, Beside::Nothing);
            row.push(Operation {
                forward: vec![call("gather of latents", Collective::AllGather)],
                backward: vec![call("gradients of latents", Collective::ReduceScatter)],
                ..Operation::default()
            });
        }
        if q_lora > 0 {
            row.push(product("queries", of.heads * of.key, q_lora, false));
        }
        row.push(product("keys and values", of.heads * (nope + of.value), kv_lora, false));
        if self.model.rotary {
            // Queries of each head, one key for all of them.
            row.push(self.rotation(self.tokens, of.heads * rope + rope));
        }
        // Rotated and other parts are joined to whole queries and keys.
        let width = 2 * of.heads * of.key;
        let join = vec![elements("join of heads", MemoryKind::Copy, self.tokens, width, 2, 2)];
        row.push(Operation { forward: join.clone(), backward: join, ..Operation::default() });
        let up = row.split_off(start);
        row.extend(up.into_iter().map(|one| one.of(Module::MlaUpProj)));
    }

    fn core(&self, of: Heads, row: &mut Vec<Operation>) {
        let context = u64::from(self.parallel.context).max(1);
        if self.software.attention == memory::Kernel::Unfused {
            row.extend(self.unfused(of));
        } else if context > 1 && self.execution().context == ContextKind::Ulysses {
            self.traded(of, row, context);
        } else {
            let passes = [Pass::Forward, Pass::Backward];
            let [forward, backward] = match self.execution().context {
                _ if context == 1 => passes.map(|pass| self.fused(of, pass, context)),
                ContextKind::Ring => passes.map(|pass| self.ring(of, pass, context)),
                ContextKind::Merged => return self.merged(of, row, context),
                ContextKind::AllGather | ContextKind::Ulysses => passes.map(|pass| self.gathered(of, pass, context)),
            };
            row.push(Operation { forward, backward, role: Role::Core, ..Operation::default() });
        }
    }

    fn attention_kernel(&self, of: Heads, pass: Pass, queries: u64, keys: u64, causal: bool, count: u32) -> Piece {
        let attention = compute::Attention {
            backend: self.execution().flash,
            pass,
            batch: u64::from(self.parallel.micro_batch),
            heads: of.heads,
            kv_heads: of.groups,
            queries,
            keys,
            head_dim: of.key,
            value_dim: of.value,
            causal,
            latent: false,
        };
        Piece::Kernel(Repeated {
            name: "attention",
            kernel: Kernel::Attention(attention),
            count,
            inner: 0,
            weights: false,
        })
    }

    /// Fused attention of the tokens of one rank, which has an early and a late part of each sequence.
    fn fused(&self, of: Heads, pass: Pass, context: u64) -> Vec<Piece> {
        let sequence = self.parallel.sequence(self.model);
        let (own, part) = (sequence / context, sequence / context / 2);
        match self.execution().context {
            _ if context == 1 => vec![self.attention_kernel(of, pass, own, own, true, 1)],
            // Its own keys, then those of each other rank: all queries see half of them, or half of the queries all.
            ContextKind::Ring | ContextKind::Merged => {
                let others = u32::try_from(context - 1).unwrap_or(u32::MAX);
                vec![
                    self.attention_kernel(of, pass, own, own, true, 1),
                    self.attention_kernel(of, pass, own, part, false, others),
                ]
            }
            // An early and a late part see as many keys together as the two in the middle.
            _ => {
                let middle = sequence / 2;
                vec![
                    self.attention_kernel(of, pass, part, middle, true, 1),
                    self.attention_kernel(of, pass, part, middle + part, true, 1),
                ]
            }
        }
    }

    /// Of one rank, in 16 bits. PyTorch copies keys and values for each head before it shares them.
    fn key_bytes(&self, of: Heads) -> u64 {
        let groups = if self.software.repeats_kv { of.heads } else { of.groups };
        times(&[2, self.tokens, groups, of.key + of.value])
    }

    /// Keys and values go round beside the kernels, each of which waits for its own. Backward their gradients follow a step later:
    /// beside the first kernel go keys and values alone, beside the last one gradients alone.
    ///
    /// Source: Transformer Engine, `context_parallel.py`, `AttnFuncWithCPAndKVP2P`.
    fn ring(&self, of: Heads, pass: Pass, context: u64) -> Vec<Piece> {
        let bytes = self.key_bytes(of);
        let send = |name, bytes| exchange(name, Axis::Context, Call::Ring, bytes, Beside::Next);
        let (first, both) = ("keys and values", "keys, values and gradients");
        let mut pieces = Vec::new();
        for (step, kernel) in self.fused(of, pass, context).into_iter().flat_map(one_by_one).enumerate() {
            let last = step as u64 + 1 == context;
            pieces.extend(match pass {
                Pass::Forward => (!last).then(|| send(first, bytes)),
                Pass::Backward if step == 0 => Some(send(first, bytes)),
                Pass::Backward if last => Some(send("gradients of keys and values", bytes)),
                Pass::Backward => Some(send(both, bytes.saturating_mul(2))),
            });
            pieces.extend([kernel, Piece::Wait]);
        }
        pieces
    }

    /// Keys and values of all ranks, again in the backward pass; their gradients are summed.
    fn gathered(&self, of: Heads, pass: Pass, context: u64) -> Vec<Piece> {
        let bytes = self.key_bytes(of).saturating_mul(context);
        let call =
            |name, collective| exchange(name, Axis::Context, Call::Collective(collective), bytes, Beside::Nothing);
        let mut pieces = vec![call("keys and values", Collective::AllGather)];
        pieces.extend(self.fused(of, pass, context));
        if pass == Pass::Backward {
            pieces.push(call("gradients of keys and values", Collective::ReduceScatter));
        }
        pieces
    }

    /// A kernel for each part of the keys, of which the first needs no other rank; what each gives is merged in 32 bits. Bytes
    /// are those of the rank whose parts are all whole, which the others wait for.
    ///
    /// Source: PyTorch 2.11, `torch/distributed/tensor/experimental/_context_parallel/_attention.py`,
    /// `_templated_ring_attention`, `_SDPAMerger`, `_templated_ring_attention_backward`; its kernels are not joined.
    fn merged(&self, of: Heads, row: &mut Vec<Operation>, context: u64) {
        let keys = self.key_bytes(of);
        let gathered = exchange(
            "keys and values",
            Axis::Context,
            Call::Collective(Collective::AllGather),
            keys.saturating_mul(context),
            Beside::Next,
        );
        let width = of.heads * of.value;
        let groups = if self.software.repeats_kv { of.heads } else { of.groups };
        let both = groups * (of.key + of.value);
        let over = |name, width, reads, writes| elements(name, MemoryKind::Copy, self.tokens, width, reads, writes);
        // Keys and values as the call takes them: each made contiguous, then one after the other.
        let laid = || [over("keys and values in order", both, 2, 2), over("keys and values in order", both, 2, 2)];
        let others = u32::try_from(context - 1).unwrap_or(u32::MAX);
        let repeated = |piece: Piece| match piece {
            Piece::Kernel(run) => Piece::Kernel(Repeated { count: others, ..run }),
            other => other,
        };
        let mut forward: Vec<Piece> = laid().into();
        forward.push(gathered.clone());
        let mut kernels = self.fused(of, Pass::Forward, context).into_iter();
        forward.extend(kernels.next());
        forward.push(Piece::Wait);
        forward.extend(kernels);
        forward.push(over("a part in 32 bits", width, 2, 4));
        // To 32 bits, difference, product with its weight, difference.
        let merge =
            [(2, 4), (8, 4), (4, 4), (8, 4)].map(|(reads, writes)| over("merge of a part", width, reads, writes));
        forward.extend(merge.map(repeated));
        forward.push(over("result in 16 bits", width, 4, 2));
        let queries = of.heads * of.key;
        let send = |beside| {
            exchange("gradients of keys and values", Axis::Context, Call::Ring, keys.saturating_mul(2), beside)
        };
        let mut backward: Vec<Piece> = laid().into();
        backward.push(elements("gradients to zero", MemoryKind::Fill, self.tokens, both + queries, 0, 4));
        backward.push(gathered);
        let mut kernels = self.fused(of, Pass::Backward, context).into_iter().flat_map(one_by_one);
        backward.extend(kernels.next());
        backward.push(over("sum of gradients", both + queries, 6, 4));
        backward.push(over("gradients in order", both, 4, 4));
        backward.push(Piece::Wait);
        // Each goes on beside the kernel of the next part, the last one beside none. To half of what has come the part's
        // own are added, and joined with the other half.
        for kernel in kernels {
            backward.extend([send(Beside::Next), kernel, Piece::Wait]);
            backward.push(over("sum of gradients", both / 2 + queries, 6, 4));
            backward.push(over("join of gradients", both, 4, 4));
            backward.push(over("gradients in order", both, 4, 4));
        }
        backward.push(send(Beside::Nothing));
        backward.push(over("gradients in 16 bits", both + queries, 4, 2));
        row.push(Operation { forward, backward, role: Role::Core, ..Operation::default() });
    }

    /// Ranks trade their tokens of all heads for all tokens of their heads.
    fn traded(&self, of: Heads, row: &mut Vec<Operation>, context: u64) {
        let call = |name, width| {
            let bytes = times(&[2, self.tokens, width]);
            exchange(name, Axis::Context, Call::Collective(Collective::AllToAll), bytes, Beside::Nothing)
        };
        let before = vec![
            call("queries", of.heads * of.key),
            call("keys", of.groups * of.key),
            call("values", of.groups * of.value),
        ];
        row.push(Operation { forward: before.clone(), backward: before, ..Operation::default() });
        let own = Heads { heads: (of.heads / context).max(1), groups: (of.groups / context).max(1), ..of };
        let sequence = self.parallel.sequence(self.model);
        let kernel = |pass| vec![self.attention_kernel(own, pass, sequence, sequence, true, 1)];
        row.push(Operation {
            forward: kernel(Pass::Forward),
            backward: kernel(Pass::Backward),
            role: Role::Core,
            ..Operation::default()
        });
        let after = vec![call("output of attention", of.heads * of.value)];
        row.push(Operation { forward: after.clone(), backward: after, ..Operation::default() });
    }

    /// Scores, softmax and their product with values, each a kernel (arXiv 2205.05198, figure 3).
    fn unfused(&self, of: Heads) -> [Operation; 3] {
        let sequence = self.parallel.sequence(self.model);
        let groups = times(&[self.parallel.micro_batch.into(), of.heads]);
        let own = sequence / u64::from(self.parallel.context).max(1);
        let tokens = Tokens::Even { total: groups.saturating_mul(own), groups };
        let product = |name, outputs, inputs| {
            let of = |pass| {
                let product = Product {
                    tokens: tokens.clone(),
                    ..Product::forward(compute::Precision::Bf16, 0, outputs, inputs)
                };
                kernel(name, Kernel::Product(product.of_pass(pass)))
            };
            let backward = vec![of(ProductPass::GradInput), of(ProductPass::GradWeight)];
            Operation { forward: vec![of(ProductPass::Forward)], backward, role: Role::Core, ..Operation::default() }
        };
        let rows = groups.saturating_mul(own);
        let over = |name, reads, writes| elements(name, MemoryKind::Copy, rows, sequence, reads, writes);
        let mut softmax = Operation { role: Role::Core, ..Operation::default() };
        // A row of scores stays in registers (Apex and Megatron-LM: `scaled_upper_triang_masked_softmax`).
        softmax.forward.push(over("softmax of scores", 2, 2));
        if self.execution().elements == Elements::Eager {
            softmax.forward.push(over("scale and mask", 2, 2));
            softmax.backward.push(over("scale and mask", 2, 2));
        }
        if self.model.dropout {
            softmax.forward.push(over("dropout of scores", 2, 3));
            softmax.backward.push(over("dropout of scores", 3, 2));
        }
        softmax.backward.push(over("softmax of scores", 4, 2));
        let mut values = product("values of scores", of.value, sequence);
        // Heads of a token next to each other again (Megatron-LM, `context_layer.permute(2, 0, 1, 3).contiguous()`).
        values.forward.push(elements("heads by token", MemoryKind::Copy, self.tokens, of.heads * of.value, 2, 2));
        [product("scores", sequence, of.key), softmax, values]
    }
}

/// The same kernels as pieces of one each.
fn one_by_one(piece: Piece) -> impl Iterator<Item = Piece> {
    let count = if let Piece::Kernel(run) = &piece { run.count } else { 1 };
    let one = match piece {
        Piece::Kernel(run) => Piece::Kernel(Repeated { count: 1, ..run }),
        other => other,
    };
    std::iter::repeat_n(one, count as usize)
}

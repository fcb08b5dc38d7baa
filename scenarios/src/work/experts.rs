//! Experts of one rank: routing, the way of tokens to their experts and back, grouped products.
//!
//! Source of written kernels: Megatron-LM d98e8a64dd, `core/transformer/moe/` (`token_dispatcher.py`, `experts.py`, `shared_experts.py`); the
//! DeepSeek-V3 report, 3.2 and 3.3, for 8-bit dispatch and for tokens that go once to every host.

use collcast_sim::collective::Collective;
use collcast_sim::compute::{Kernel, Memory, MemoryKind, Precision, ProductPass, Tokens};

use super::rank::{Linear, Operation, Rank, Role, elements, exchange, kernel, operator, sort, times};
use super::{Beside, Call, Dispatch, ExpertKernels, Piece, Repeated, Routing, Scaling};
use crate::parallel::{Axis, Module};
use crate::transformer::Experts;

/// Kernels that make of scores the tokens of each expert: softmax or sigmoid, top-k, scores of the chosen, two masks, a
/// histogram, sums of it, a sort. Counted in Megatron-LM's `topk_routing_with_score_function` and `_maybe_dtoh`; not measured.
const ROUTING: u32 = 8;
/// Those of torchtitan, forward and backward: softmax, bias, top-k, scores of the chosen, their sum and quotient, two counts of
/// the experts' tokens. Source: its profile, PyTorch 2.11, H200, 2026-11-27.
const CHOICE: [u32; 2] = [14, 12];
/// Passes of a sort of 64-bit keys, 8 bits each; its kernels, with a memset before each pass, and those of its results' places.
const PASSES: u64 = 8;
const SORT: u32 = 22;
/// That find the places of the rows of each own expert.
const PLACES: u32 = 20;
/// Before rows are added in places: these sorted by passes over 8 bits, of which two do.
const ADDED: u32 = 12;
/// Counts of tokens that ranks tell each other: 8 B each, two sums and two copies to the host.
const COUNTED: (u64, u32) = (8, 4);
/// Bytes of one score that they read and write together: about one read and write of 4 B each.
const SCORE: u64 = 4;

/// What brings tokens to their experts and results back, but for exchanges.
struct Moves {
    router: Operation,
    /// In the order of experts, before tokens are sent.
    by_expert: Vec<Operation>,
    /// In the order of the rank's own experts, once they are there.
    by_own_expert: Option<Operation>,
    /// Results in the order in which tokens came.
    by_rank: Option<Operation>,
    by_token: Operation,
}

/// Experts of a rank's own that have any of so many rows, each as likely with every one: few rows leave most without, and their
/// weights unread.
fn with_tokens(rows: u64, experts: u64) -> u64 {
    let share = 1.0 - (1.0 - 1.0 / experts as f64).powf(rows as f64);
    ((experts as f64 * share).round() as u64).max(1)
}

/// How tokens are routed.
fn routing(experts: &Experts) -> Routing {
    let [experts, groups, chosen] =
        [experts.top_k, experts.groups, experts.top_groups].map(|count| u32::try_from(count).unwrap_or(u32::MAX));
    Routing { experts, groups, chosen }
}

impl Rank<'_> {
    /// A layer's experts between the norm before and the sum after.
    pub(super) fn experts(&self, experts: &Experts) -> Vec<Operation> {
        let (split, parts) = (u64::from(self.parallel.expert_tensor).max(1), u64::from(self.parallel.expert).max(1));
        let sent = times(&[self.local, experts.top_k]);
        // Where all tensor ranks have all tokens, those that split experts gather none, and sum the results.
        let gathers = split > 1 && (self.parallel.sequence_parallel || self.tensor < 2);
        let sums = split > 1 && !gathers;
        let gathered = if gathers { sent.saturating_mul(split) } else { sent };
        let here = (gathered as f64 * self.execution().imbalance).round() as u64;
        let moves = match self.execution().expert_kernels {
            ExpertKernels::Written | ExpertKernels::Fused => self.written_moves(experts, sent, here, parts),
            ExpertKernels::Operators => self.operators_moves(experts, sent, here, parts),
        };
        let mut row = vec![moves.router];
        if experts.shared > 0 {
            let shared = self.mlp(experts.shared * experts.shared_width, true);
            row.extend(shared.into_iter().map(|operation| operation.of(Module::SharedExperts)));
            // Its result is added to that of the others.
            row.push(self.sum_of_shared());
        }
        row.extend(moves.by_expert);
        if parts > 1 {
            row.push(self.traded_tokens("dispatch", "gradients of dispatch", experts, true));
        }
        if gathers {
            row.push(self.shared_tokens(gathered, true));
        }
        row.extend(moves.by_own_expert);
        let tokens = Tokens::Even { total: here, groups: with_tokens(here, (experts.count / parts).max(1)) };
        row.extend(self.products(experts.width / split, here, &tokens));
        row.extend(moves.by_rank);
        if gathers {
            row.push(self.shared_tokens(gathered, false));
        }
        if parts > 1 {
            row.push(self.traded_tokens("combine", "gradients of combine", experts, false));
        }
        row.push(moves.by_token);
        if sums {
            row.push(self.summed_results());
        }
        row
    }

    /// The experts' products of `here` rows, and what is between them.
    fn products(&self, width: u64, here: u64, tokens: &Tokens) -> Vec<Operation> {
        let product = |outputs, inputs| Linear { tokens: tokens.clone(), ..Linear::new(0, outputs, inputs) };
        let activation = self.activation(here, width).of(Module::MoeAct);
        let down = self.linear("experts, down", &product(self.hidden, width));
        if self.gate_apart() {
            let gate = self.linear("experts, gate", &product(width, self.hidden));
            let mut up = self.linear("experts, up", &product(width, self.hidden));
            up.backward.push(elements("sum of gradients", MemoryKind::Copy, here, self.hidden, 4, 2));
            return vec![gate, up, activation, down];
        }
        if self.fuses_experts() {
            return self.fused_products(width, tokens);
        }
        let inner = if self.model.activation.gated() { 2 * width } else { width };
        vec![self.linear("experts, gate and up", &product(inner, self.hidden)), activation, down]
    }

    /// Those of [`ExpertKernels::Fused`]: SwiGLU is in the products beside it. Forward, each of two columns that belong together
    /// is written in 16 bits, for the backward pass, and what they give in 8 bits for either product that reads it. Backward,
    /// both are read, and their gradients written in 8 bits, twice again.
    ///
    /// Source: Transformer Engine, `pytorch/ops/fused/forward_grouped_mlp.py` and `backward_grouped_mlp.py`.
    fn fused_products(&self, width: u64, tokens: &Tokens) -> Vec<Operation> {
        let product = |outputs, inputs| Linear { tokens: tokens.clone(), ..Linear::new(0, outputs, inputs) };
        let with = |pieces: &mut Vec<Piece>, of: ProductPass, bytes: u8| {
            for piece in pieces {
                if let Piece::Kernel(Repeated { kernel: Kernel::Product(product), .. }) = piece
                    && product.pass == of
                {
                    product.result_bytes = bytes;
                }
            }
        };
        let mut up = self.linear("experts, gate and up", &product(2 * width, self.hidden));
        let mut down = self.linear("experts, down", &Linear { cast: false, ..product(self.hidden, width) });
        with(&mut up.forward, ProductPass::Forward, 3);
        with(&mut down.backward, ProductPass::GradInput, 8);
        // The gradient of both comes in 8 bits.
        up.backward.retain(|piece| !matches!(piece, Piece::Kernel(Repeated { kernel: Kernel::Memory(_), .. })));
        vec![up, down]
    }

    /// Those of [`ExpertKernels::Written`] and [`ExpertKernels::Fused`].
    fn written_moves(&self, experts: &Experts, sent: u64, here: u64, parts: u64) -> Moves {
        let among_own = |name| (parts > 1).then(|| self.moved(name, [here, here]));
        Moves {
            router: self.router(experts),
            by_expert: vec![self.moved("tokens by expert", [self.local, sent])],
            by_own_expert: among_own("tokens by own expert"),
            by_rank: among_own("results by rank"),
            by_token: self.moved("results by token", [sent, self.local]),
        }
    }

    /// Those of [`ExpertKernels::Operators`], which put tokens in order once more where all experts are here too.
    ///
    /// Source: torchtitan 0646ba46a5, `models/common/moe/moe.py` and `utils.py`.
    fn operators_moves(&self, experts: &Experts, sent: u64, here: u64, parts: u64) -> Moves {
        let mut by_expert = vec![self.sorted(sent)];
        by_expert.extend((parts > 1).then(|| self.counted(experts.count)));
        Moves {
            router: self.router_of_operators(experts),
            by_expert,
            by_own_expert: Some(self.picked("tokens by own expert", [here, here], PLACES)),
            by_rank: Some(self.put("results by rank", here)),
            by_token: self.combined(sent),
        }
    }

    /// Routing by operators of PyTorch: scores in 32 bits, by a product that no tensor core runs.
    fn router_of_operators(&self, experts: &Experts) -> Operation {
        let (rows, count) = (self.local, experts.count);
        let product = |weights| {
            let width = times(&[count, self.hidden]);
            let multiply = Memory { kind: MemoryKind::Multiply, reads: 0, writes: 0, rows, width, kernels: 1 };
            Piece::Kernel(Repeated { name: "router", kernel: Kernel::Memory(multiply), count: 1, inner: 0, weights })
        };
        let choice = |kernels| {
            let bytes = times(&[SCORE, rows, count]);
            let choice = Memory { kind: MemoryKind::Copy, reads: bytes, writes: bytes, rows, width: count, kernels };
            kernel("routing", Kernel::Memory(choice))
        };
        let of = |kind, reads, writes| elements("router", kind, rows, self.hidden, reads, writes);
        Operation {
            forward: vec![of(MemoryKind::Widen, 2, 4), product(false), choice(CHOICE[0])],
            backward: vec![choice(CHOICE[1]), product(false), of(MemoryKind::Copy, 4, 2), product(true)],
            role: Role::Product,
            ..Operation::default()
        }
    }

    /// Tokens, each once for each of its experts, by expert.
    fn sorted(&self, sent: u64) -> Operation {
        let mut sorted = self.picked("tokens by expert", [self.local, sent], 0);
        sorted.forward.insert(0, sort("sort of tokens", sent, PASSES, SORT));
        sorted
    }

    /// How many tokens each rank sends for each expert, which the host waits for.
    fn counted(&self, experts: u64) -> Operation {
        let (bytes, kernels) = (times(&[COUNTED.0, experts]), COUNTED.1);
        let counts = Memory { kind: MemoryKind::Copy, reads: bytes, writes: bytes, rows: 1, width: experts, kernels };
        let call = Call::Collective(Collective::AllToAll);
        Operation {
            forward: vec![
                exchange("counts of tokens", Axis::Expert, call, bytes, Beside::Nothing),
                kernel("counts of tokens", Kernel::Memory(counts)),
            ],
            ..Operation::default()
        }
    }

    /// `to` rows from places among `from`, which so many kernels find. Gradients of rows of one place are added.
    fn picked(&self, name: &'static str, [from, to]: [u64; 2], places: u32) -> Operation {
        let width = self.hidden;
        let [read, written] = [from, to].map(|rows| times(&[2, rows, width]));
        let gather =
            Memory { kind: MemoryKind::Copy, reads: read, writes: written, rows: to, width, kernels: places + 1 };
        let add = Memory {
            kind: MemoryKind::Accumulate,
            reads: written.saturating_add(read),
            writes: read,
            rows: to,
            width,
            kernels: ADDED + 1,
        };
        Operation {
            forward: vec![kernel(name, Kernel::Memory(gather))],
            backward: vec![
                elements(name, MemoryKind::Fill, from, width, 0, 2),
                operator(name, Kernel::Memory(add), ADDED),
            ],
            ..Operation::default()
        }
    }

    /// Rows to places of their own; their gradients from there.
    fn put(&self, name: &'static str, rows: u64) -> Operation {
        let of = |kind| vec![elements(name, kind, rows, self.hidden, 2, 2)];
        Operation { forward: of(MemoryKind::Scatter), backward: of(MemoryKind::Copy), ..Operation::default() }
    }

    /// Results in the order of tokens, and their sums by the tokens' scores, in 32 bits.
    fn combined(&self, sent: u64) -> Operation {
        let (name, width) = ("results by token", self.hidden);
        let of = |kind, rows, reads, writes| elements(name, kind, rows, width, reads, writes);
        let [rows, results] = [sent, self.local].map(|rows| times(&[4, rows, width]));
        let batched = |kind, reads, writes| {
            kernel(name, Kernel::Memory(Memory { kind, reads, writes, rows: self.local, width, kernels: 1 }))
        };
        let mut placed = self.put(name, sent);
        placed.forward.insert(0, of(MemoryKind::Fill, sent, 0, 2));
        placed.forward.extend([
            of(MemoryKind::Widen, sent, 2, 4),
            batched(MemoryKind::Combine, rows, results),
            of(MemoryKind::Copy, self.local, 4, 2),
        ]);
        let sums = [
            of(MemoryKind::Widen, self.local, 2, 4),
            batched(MemoryKind::Spread, results, rows),
            // Gradients of the scores.
            batched(MemoryKind::Copy, rows.saturating_add(results), 0),
            of(MemoryKind::Copy, sent, 4, 2),
        ];
        placed.backward.splice(0..0, sums);
        placed
    }

    fn router(&self, experts: &Experts) -> Operation {
        let mut router =
            self.linear("router", &Linear { head: true, ..Linear::new(self.local, experts.count, self.hidden) });
        let bytes = times(&[SCORE, self.local, experts.count]);
        let routing = Memory {
            kind: MemoryKind::Copy,
            reads: bytes,
            writes: bytes,
            rows: self.local,
            width: experts.count,
            kernels: ROUTING,
        };
        let routing = kernel("routing", Kernel::Memory(routing));
        router.forward.push(routing.clone());
        router.backward.insert(0, routing);
        router
    }

    fn sum_of_shared(&self) -> Operation {
        let sum = elements("sum with shared experts", MemoryKind::Copy, self.local, self.hidden, 4, 2);
        Operation { forward: vec![sum], ..Operation::default() }
    }

    /// Rows of one order to another: `from` rows to `to` of them; where they are fewer each is a sum.
    fn moved(&self, name: &'static str, [from, to]: [u64; 2]) -> Operation {
        let most = from.max(to);
        let pass = |read: u64, written: u64| {
            let [reads, writes] = [read, written].map(|rows| times(&[2, rows, self.hidden]));
            let memory = Memory { kind: MemoryKind::Copy, reads, writes, rows: most, width: self.hidden, kernels: 1 };
            vec![kernel(name, Kernel::Memory(memory))]
        };
        // A row that goes to several places is read for each.
        Operation { forward: pass(most, to), backward: pass(most, from), ..Operation::default() }
    }

    /// Tokens to the ranks of their experts, or back.
    fn traded_tokens(
        &self,
        forward: &'static str,
        backward: &'static str,
        experts: &Experts,
        there: bool,
    ) -> Operation {
        let execution = self.execution();
        let sent = times(&[self.local, experts.top_k]);
        let eight = there && execution.precision == Precision::Fp8 && execution.scaling == Scaling::Blocks;
        let call = |name, per_block: u64| {
            // Bytes of 128 elements: 16 bits each, or 8 and a scale of 32.
            let bytes = times(&[per_block, sent, self.hidden]) / 128;
            let call = match execution.dispatch {
                Dispatch::AllToAll => Call::Collective(Collective::AllToAll),
                Dispatch::Deepep => Call::Tokens(routing(experts)),
            };
            vec![exchange(name, Axis::Expert, call, bytes, Beside::Nothing)]
        };
        let forward = call(forward, if eight { 132 } else { 256 });
        Operation { forward, backward: call(backward, 256), ..Operation::default() }
    }

    /// Ranks that split each expert, and have all tokens, sum its results.
    fn summed_results(&self) -> Operation {
        let call = Call::Collective(Collective::AllReduce);
        let sum =
            || vec![exchange("results of split experts", Axis::Tensor, call, self.activations(), Beside::Nothing)];
        Operation { forward: sum(), backward: sum(), ..Operation::default() }
    }

    /// Ranks that split each expert gather its tokens, and sum its results.
    fn shared_tokens(&self, rows: u64, gathers: bool) -> Operation {
        let bytes = times(&[2, rows, self.hidden]);
        let call = |collective| -> Vec<Piece> {
            vec![exchange(
                "tokens of split experts",
                Axis::ExpertTensor,
                Call::Collective(collective),
                bytes,
                Beside::Nothing,
            )]
        };
        let (gather, sum) = (call(Collective::AllGather), call(Collective::ReduceScatter));
        let (forward, backward) = if gathers { (gather, sum) } else { (sum, gather) };
        Operation { forward, backward, ..Operation::default() }
    }
}

//! Experts of one rank: routing, the way of tokens to their experts and back, grouped products.
//!
//! Source: Megatron-LM d98e8a64dd, `core/transformer/moe/` (`token_dispatcher.py`, `experts.py`, `shared_experts.py`); the
//! DeepSeek-V3 report, 3.2 and 3.3, for 8-bit dispatch and for tokens that go once to every host.

use collcast_sim::collective::Collective;
use collcast_sim::compute::{Kernel, Memory, MemoryKind, Precision, Tokens};

use super::rank::{Linear, Operation, Rank, elements, exchange, kernel, times};
use super::{Call, Dispatch, Piece, Routing, Scaling};
use crate::parallel::{Axis, Module};
use crate::transformer::Experts;

/// Kernels that make of scores the tokens of each expert: softmax or sigmoid, top-k, scores of the chosen, two masks, a
/// histogram, sums of it, a sort. Counted in Megatron-LM's `topk_routing_with_score_function` and `_maybe_dtoh`; not measured.
const ROUTING: u32 = 8;
/// How tokens are routed.
fn routing(experts: &Experts) -> Routing {
    let [experts, groups, chosen] =
        [experts.top_k, experts.groups, experts.top_groups].map(|count| u32::try_from(count).unwrap_or(u32::MAX));
    Routing { experts, groups, chosen }
}

/// Bytes of one score that they read and write together: about one read and write of 4 B each.
const SCORE: u64 = 4;

impl Rank<'_> {
    /// A layer's experts between the norm before and the sum after.
    pub(super) fn experts(&self, experts: &Experts) -> Vec<Operation> {
        let mut row = vec![self.router(experts)];
        if experts.shared > 0 {
            let shared = self.mlp(experts.shared * experts.shared_width, true);
            row.extend(shared.into_iter().map(|operation| operation.of(Module::SharedExperts)));
            // Its result is added to that of the others.
            row.push(self.sum_of_shared());
        }
        let (split, parts) = (u64::from(self.parallel.expert_tensor).max(1), u64::from(self.parallel.expert).max(1));
        let sent = times(&[self.local, experts.top_k]);
        let busy = self.execution().imbalance.max(1.0);
        let here = ((sent.saturating_mul(split)) as f64 * busy).round() as u64;
        row.push(self.moved("tokens by expert", [self.local, sent]));
        if parts > 1 {
            row.push(self.traded_tokens("dispatch", "gradients of dispatch", experts, true));
        }
        if split > 1 {
            row.push(self.shared_tokens(sent.saturating_mul(split), true));
        }
        if parts > 1 {
            row.push(self.moved("tokens by own expert", [here, here]));
        }
        let own = (experts.count / parts).max(1);
        let width = experts.width / split;
        let inner = if self.model.activation.gated() { 2 * width } else { width };
        let tokens = Tokens::Even { total: here, groups: own };
        let product = |outputs, inputs| Linear { tokens: tokens.clone(), ..Linear::new(0, outputs, inputs) };
        row.push(self.linear("experts, gate and up", &product(inner, self.hidden)));
        row.push(self.activation(here, width).of(Module::MoeAct));
        row.push(self.linear("experts, down", &product(self.hidden, width)));
        if parts > 1 {
            row.push(self.moved("results by rank", [here, here]));
        }
        if split > 1 {
            row.push(self.shared_tokens(sent.saturating_mul(split), false));
        }
        if parts > 1 {
            row.push(self.traded_tokens("combine", "gradients of combine", experts, false));
        }
        row.push(self.moved("results by token", [sent, self.local]));
        row
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
            vec![exchange(name, Axis::Expert, call, bytes, execution.overlaps_experts)]
        };
        let forward = call(forward, if eight { 132 } else { 256 });
        Operation { forward, backward: call(backward, 256), ..Operation::default() }
    }

    /// Ranks that split each expert gather its tokens, and sum its results.
    fn shared_tokens(&self, rows: u64, gathers: bool) -> Operation {
        let bytes = times(&[2, rows, self.hidden]);
        let call = |collective| -> Vec<Piece> {
            vec![exchange("tokens of split experts", Axis::ExpertTensor, Call::Collective(collective), bytes, false)]
        };
        let (gather, sum) = (call(Collective::AllGather), call(Collective::ReduceScatter));
        let (forward, backward) = if gathers { (gather, sum) } else { (sum, gather) };
        Operation { forward, backward, ..Operation::default() }
    }
}

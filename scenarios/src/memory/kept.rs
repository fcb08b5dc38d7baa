//! What each operation of a layer keeps for its backward pass, tensor by tensor.
//!
//! Held by bytes that were measured (`blocks.csv`: eager and compiled, 1 to 8 tensor ranks) and by what Korthikanti et al.
//! (arXiv 2205.05198, section 4) count for GPT with dropout: the same lines give both.

use serde::Serialize;

use super::software::{Kernel, Selective, Software};
use crate::parallel::{Module, Modules, Parallel, Recompute};
use crate::transformer::{Attention, Experts, LayerKind, Norm, Transformer};
use crate::work::ExpertKernels;

/// A tensor that is kept for the backward pass.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Kept {
    /// What it is.
    pub what: &'static str,
    /// Bytes a token on one rank.
    pub bytes: f64,
    /// Modules that make it: it is not kept where one of them is computed again.
    pub modules: Modules,
}

/// Tensors of one layer that are kept from its forward to its backward pass.
pub fn layer(model: &Transformer, kind: LayerKind, parallel: &Parallel, software: &Software) -> Vec<Kept> {
    let lines = Lines::new(model, parallel, software);
    let without = |again: Modules| lines.all(kind).into_iter().filter(|kept| !kept.modules.meets(again)).collect();
    match (parallel.recompute, software.selective) {
        (Recompute::Full, _) => vec![lines.input()],
        (Recompute::Selective, Selective::EverySecondProduct { unused }) => lines.every_second(kind, unused),
        (Recompute::Selective, Selective::Modules(modules)) | (Recompute::Modules(modules), _) => without(modules),
        (Recompute::None, _) => lines.all(kind),
    }
}

/// Bytes a token that come and go while one layer's backward pass runs: what is computed again, and gradients in flight.
pub(super) fn working(model: &Transformer, kind: LayerKind, parallel: &Parallel, software: &Software) -> f64 {
    let lines = Lines::new(model, parallel, software);
    let again = match parallel.recompute {
        Recompute::None => 0.0,
        _ => (sum(&lines.all(kind)) - sum(&layer(model, kind, parallel, software))).max(0.0),
    };
    // Gradients of the residual and of what lies between the products of the MLP: gate, up and their product.
    let products = model.activation.products() as f64;
    let width = match (kind, model.experts) {
        (LayerKind::Experts, Some(e)) => (e.top_k * e.width + e.shared * e.shared_width) as f64,
        _ => model.width as f64,
    };
    again + 2.0 * lines.hidden / lines.residual + 2.0 * products * width / lines.tensor
}

/// Bytes a token, all lines.
pub(crate) fn sum(lines: &[Kept]) -> f64 {
    lines.iter().map(|kept| kept.bytes).sum()
}

struct Lines<'a> {
    model: &'a Transformer,
    software: &'a Software,
    hidden: f64,
    sequence: f64,
    /// Ranks that split products.
    tensor: f64,
    /// Ranks that split residuals and norms.
    residual: f64,
    /// Ranks that split the input of a product while it is kept.
    inputs: f64,
    expert_tensor: f64,
}

const fn kept(what: &'static str, bytes: f64) -> Kept {
    Kept { what, bytes, modules: Modules::NONE }
}

/// Lines from one on that a module makes.
fn of_module(module: Module, lines: &mut [Kept]) {
    lines.iter_mut().for_each(|kept| kept.modules = kept.modules.with(module));
}

impl<'a> Lines<'a> {
    fn new(model: &'a Transformer, parallel: &Parallel, software: &'a Software) -> Self {
        let tensor = f64::from(parallel.tensor);
        let residual = if parallel.sequence_parallel { tensor } else { 1.0 };
        Self {
            model,
            software,
            hidden: model.hidden as f64,
            sequence: parallel.sequence(model) as f64,
            tensor,
            residual,
            inputs: if software.gathers_again { residual } else { 1.0 },
            expert_tensor: f64::from(parallel.expert_tensor),
        }
    }

    /// The residual that a layer starts from: the input of its first norm.
    fn input(&self) -> Kept {
        kept("input of the layer", 2.0 * self.hidden / self.residual)
    }

    fn all(&self, kind: LayerKind) -> Vec<Kept> {
        let mut lines = vec![self.input()];
        let latent = matches!(self.model.attention, Attention::Mla { .. });
        let input = self.software.input;
        self.norm(self.software.norm_apart(latent), input, &mut lines);
        self.attention(&mut lines);
        self.dropout(&mut lines);
        lines.push(kept("residual after attention", 2.0 * self.hidden / self.residual));
        let experts = self.model.experts.filter(|_| kind == LayerKind::Experts);
        // A router reads the norm in 16 bits, and shared experts as other products do.
        let read = match experts {
            Some(experts) if input < 2.0 => 2.0 + if experts.shared > 0 { input } else { 0.0 },
            _ => input,
        };
        self.norm(self.software.norm_apart(experts.is_some()), read, &mut lines);
        let start = lines.len();
        if let Some(experts) = experts {
            self.experts(&experts, &mut lines);
            of_module(Module::Moe, &mut lines[start..]);
        } else {
            self.mlp(self.model.width as f64, &mut lines);
            of_module(Module::Mlp, &mut lines[start..]);
        }
        self.dropout(&mut lines);
        lines
    }

    /// A norm: its output, of so many bytes an element as the products after it read, and a scale (and a mean) of each token.
    /// `apart` where no product is joined with it.
    fn norm(&self, apart: bool, element: f64, lines: &mut Vec<Kept>) {
        let start = lines.len();
        lines.push(kept("output of a norm", element * self.hidden / self.inputs));
        if self.software.statistics {
            let numbers = if self.model.norm == Norm::Rms { 4.0 } else { 8.0 };
            lines.push(kept("statistics of a norm", numbers / self.residual));
        }
        if apart {
            of_module(Module::Layernorm, &mut lines[start..]);
        }
    }

    fn dropout(&self, lines: &mut Vec<Kept>) {
        if self.model.dropout {
            lines.push(kept("mask of dropout", self.hidden / self.residual));
        }
    }

    fn attention(&self, lines: &mut Vec<Kept>) {
        let t = self.tensor;
        let heads = self.model.attention.heads() as f64 / t;
        let output = match self.model.attention {
            Attention::Gqa { kv_heads, head_dim, .. } => {
                // Fewer heads of keys than ranks are copied to all of them.
                let (groups, d) = ((kv_heads as f64 / t).max(1.0), head_dim as f64);
                self.queries_keys_values(heads, groups, d, lines);
                heads * d
            }
            Attention::Mla { q_lora, kv_lora, nope, rope, value, .. } => {
                let [q, r, nope, rope, value] = [q_lora, kv_lora, nope, rope, value].map(|n| n as f64);
                lines.push(kept("latents", 2.0 * (q + r + rope)));
                let start = lines.len();
                lines.push(kept("outputs of latents' norms", self.software.input * (q + r)));
                // Values are a view of one product with keys; rotated queries are copied, and their product is not kept.
                let whole = if self.software.copies_values { value } else { nope + value };
                lines.push(kept("values", 2.0 * heads * whole));
                lines.push(kept("rotated queries and keys", 4.0 * heads * (nope + rope)));
                of_module(Module::MlaUpProj, &mut lines[start..]);
                heads * value
            }
        };
        self.core(heads, lines);
        lines.push(kept("output of attention", self.software.attended * output));
    }

    fn queries_keys_values(&self, heads: f64, groups: f64, d: f64, lines: &mut Vec<Kept>) {
        let rotary = self.model.rotary;
        let whole = self.software.fused_qkv && !self.software.copies_values;
        if whole || !rotary {
            lines.push(kept("queries, keys and values", 2.0 * d * (heads + 2.0 * groups)));
        }
        // What attention reads where it is not that product itself.
        let seen = if self.software.repeats_kv { heads } else { groups };
        if rotary {
            lines.push(kept("rotated queries and keys", 2.0 * d * (heads + seen)));
        }
        if !whole && rotary {
            lines.push(kept("values", 2.0 * d * seen));
        }
    }

    fn core(&self, heads: f64, lines: &mut Vec<Kept>) {
        let start = lines.len();
        match self.software.attention {
            Kernel::Fused if self.software.statistics => lines.push(kept("log-sum-exp of scores", 4.0 * heads)),
            Kernel::Fused => {}
            Kernel::Unfused => {
                let scores = heads * self.sequence;
                lines.push(kept("softmax of scores", 2.0 * scores));
                if self.model.dropout {
                    lines.push(kept("mask of scores", scores));
                    lines.push(kept("scores after dropout", 2.0 * scores));
                }
            }
        }
        of_module(Module::CoreAttn, &mut lines[start..]);
    }

    fn mlp(&self, width: f64, lines: &mut Vec<Kept>) {
        let width = width / self.tensor;
        let inner = self.software.inner;
        if self.model.activation.gated() {
            lines.push(kept("gate and up", 2.0 * inner * width));
            if !self.software.recomputes_activation {
                lines.push(kept("SiLU of the gate", 2.0 * width));
            }
        } else {
            lines.push(kept("input of the activation", inner * width));
        }
        lines.push(kept("input of the last product", self.software.input * width));
    }

    /// Routed experts: their tokens, evenly dealt, are `top_k` times those of the rank, gathered over the ranks that split
    /// an expert. Source: Megatron-LM, `core/transformer/moe/`; expert parallelism trades tokens and removes none. torchtitan
    /// keeps what its products in 32 bits read.
    fn experts(&self, experts: &Experts, lines: &mut Vec<Kept>) {
        let routed = experts.top_k as f64 / self.tensor;
        let gathered = routed * self.expert_tensor;
        let operators = self.software.execution.expert_kernels == ExpertKernels::Operators;
        lines.push(kept("scores of the router", 4.0 * experts.count as f64 / self.residual));
        if operators {
            lines.push(kept("tokens of the router in 32 bits", 4.0 * self.hidden / self.residual));
        }
        lines.push(kept("tokens of experts", self.software.input * self.hidden * gathered));
        let width = experts.width as f64 * routed;
        let gated = self.model.activation.gated();
        let parts = if gated { 2.0 } else { 1.0 };
        lines.push(kept("inner elements of experts", self.software.inner * parts * width));
        let start = lines.len();
        if gated && !self.software.recomputes_activation {
            lines.push(kept("SiLU of experts' gates", 2.0 * width));
        }
        lines.push(kept("inputs of experts' last product", self.software.input * width));
        of_module(Module::MoeAct, &mut lines[start..]);
        if !self.software.scores_inside {
            let bytes = if operators { 4.0 } else { 2.0 };
            lines.push(kept("outputs of experts", bytes * self.hidden * gathered));
        }
        if experts.shared > 0 {
            let start = lines.len();
            self.mlp((experts.shared * experts.shared_width) as f64, lines);
            of_module(Module::SharedExperts, &mut lines[start..]);
        }
    }

    /// torchtitan's list: of the products wq, wk, wv, wo, w1, w3, w2 the first, third, fifth and seventh, and attention.
    /// Source: torchtitan, `_apply_ac_to_transformer_block`.
    fn every_second(&self, kind: LayerKind, unused: bool) -> Vec<Kept> {
        let (heads, t) = (self.model.attention.heads() as f64 / self.tensor, self.tensor);
        let (queries, values) = match self.model.attention {
            Attention::Gqa { kv_heads, head_dim, .. } => {
                (heads * head_dim as f64, (kv_heads as f64 / t).max(1.0) * head_dim as f64)
            }
            Attention::Mla { nope, rope, value, .. } => (heads * (nope + rope) as f64, heads * value as f64),
        };
        let output = match self.model.attention {
            Attention::Gqa { .. } => queries,
            Attention::Mla { .. } => values,
        };
        let mut lines = vec![
            self.input(),
            kept("queries", 2.0 * queries),
            kept("values", 2.0 * values),
            kept("output of attention", 2.0 * output),
            kept("log-sum-exp of scores", 4.0 * heads),
        ];
        if kind == LayerKind::Dense {
            lines.push(kept("gate", 2.0 * self.model.width as f64 / t));
            if unused {
                lines.push(kept("output of the MLP", 2.0 * self.hidden));
            }
        }
        lines
    }
}

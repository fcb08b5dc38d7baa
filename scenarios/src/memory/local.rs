//! Parameters that one GPU holds.

use super::planner::Planner;
use crate::parallel::Parallel;
use crate::transformer::{Attention, LayerKind, Transformer};

/// Parameters of a stage on one GPU, before replicas share them.
pub(super) struct Local {
    /// Layers, without routed experts: products divided over tensor ranks, norms and routers whole.
    layers: f64,
    /// Embedding, positions, head and modules that predict further tokens.
    ends: f64,
    /// Routed experts.
    pub(super) experts: f64,
    /// The largest layer, with its experts.
    largest: f64,
    /// Embedding of tokens, if the stage has one, and head.
    units: [f64; 2],
}

impl Local {
    pub(super) fn of(plan: &Planner<'_>) -> Self {
        let (model, tensor) = (plan.model, f64::from(plan.parallel.tensor));
        let mut local = Self { layers: 0.0, ends: 0.0, experts: 0.0, largest: 0.0, units: [0.0; 2] };
        for (kind, count) in plan.kinds().into_iter().filter(|kind| kind.1 > 0) {
            let [dense, experts] = of_layer(model, plan.parallel, kind);
            local.layers += count as f64 * dense;
            local.experts += count as f64 * experts;
            local.largest = local.largest.max(dense + experts);
        }
        let table = plan.vocabulary() * model.hidden as f64 / tensor;
        if plan.stage == 0 {
            local.units[0] = table;
            local.ends += table + (model.learned_positions * model.hidden) as f64;
        }
        if plan.last() {
            // A tied head is the embedding where one stage has both, else a copy.
            if !(model.tied && plan.stage == 0) {
                local.units[1] = table;
                local.ends += table;
            }
            let h = model.hidden as f64;
            // Each has a layer like the model's last, which may be on another stage.
            let further = model.predictions as f64;
            let [dense, experts] = of_layer(model, plan.parallel, model.kind(model.layers - 1));
            local.ends += further * (dense + 2.0 * h * h / tensor + h) + h;
            local.experts += further * experts;
            if model.predictions > 0 && plan.stage > 0 {
                local.ends += table;
            }
        }
        local
    }

    /// All but routed experts.
    pub(super) fn dense(&self) -> f64 {
        self.layers + self.ends
    }

    pub(super) fn total(&self) -> f64 {
        self.dense() + self.experts
    }

    /// Bytes that replicas which share by units hold whole: this layer and the next with the gradient of one, embedding and head;
    /// all of the stage with ZeRO-2, and in a pipeline, where each micro-batch would gather it again.
    ///
    /// Source: PyTorch, `fully_shard` (`reshard_after_forward`, implicit prefetching); torchtitan's `parallelize_llama.py`.
    pub(super) fn gathered(&self, plan: &Planner<'_>) -> f64 {
        let states = plan.software.states;
        if !plan.software.execution.by_units(plan.parallel.zero)
            || plan.parallel.dense_shards().max(plan.parallel.expert_shards()) == 1
        {
            return 0.0;
        }
        let all = (self.layers + self.experts) * states.gathered_in_layers + self.ends * states.gathered;
        if plan.parallel.pipeline > 1 {
            return all + self.total() * states.gradient;
        }
        if plan.parallel.zero < 3 {
            return all + self.largest * states.gradient;
        }
        let [embedding, head] = self.units;
        let root = if plan.software.keeps_root { embedding + head } else { embedding.max(head) };
        self.largest * (2.0 * states.gathered_in_layers + states.gradient) + root * states.gathered
    }
}

/// Parameters of one layer on one GPU, before replicas share them: routed experts apart.
pub(crate) fn of_layer(model: &Transformer, parallel: &Parallel, kind: LayerKind) -> [f64; 2] {
    let tensor = f64::from(parallel.tensor);
    let of = model.layer_parameters(kind);
    let whole = (of.norms + of.router + of.gate_biases) as f64;
    let dense = attention(model, tensor) + (of.mlp + of.shared_experts) as f64 / tensor + whole;
    [dense, of.experts as f64 / (f64::from(parallel.expert) * f64::from(parallel.expert_tensor))]
}

/// Attention of one layer on one of `tensor` ranks: heads of keys and values are copied where ranks are more, and each has
/// the products that make latents whole (Megatron-LM, `multi_latent_attention.py`: `parallel_mode='duplicated'`).
fn attention(model: &Transformer, tensor: f64) -> f64 {
    let whole = model.layer_parameters(model.kind(0)).attention as f64;
    match model.attention {
        Attention::Gqa { kv_heads, head_dim, .. } if tensor > kv_heads as f64 => {
            let shared = (2 * model.hidden * kv_heads * head_dim) as f64;
            (whole - shared) / tensor + shared / kv_heads as f64
        }
        Attention::Mla { q_lora, kv_lora, rope, .. } => {
            let latents = (model.hidden * (q_lora + kv_lora + rope)) as f64;
            (whole - latents) / tensor + latents
        }
        Attention::Gqa { .. } => whole / tensor,
    }
}

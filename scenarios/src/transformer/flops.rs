//! What a token costs.

use serde::Serialize;

use super::{Attention, LayerKind, Transformer};

/// Which scores of attention are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mask {
    /// Those of earlier tokens: half of the square.
    Causal,
    /// The whole square, as publishers before 2024 counted.
    Full,
}

/// Floating-point operations of one token's forward pass, by part; a multiply-add is two. Only matrix products count.
///
/// The backward pass has twice as many in every part: the gradients of inputs and of weights.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize)]
pub struct Flops {
    /// Products that make queries, keys and values, and that of the output.
    pub projections: f64,
    /// Scores, and their products with values.
    pub core: f64,
    /// Dense MLPs.
    pub mlp: f64,
    /// Routed experts of the token.
    pub experts: f64,
    /// Shared experts.
    pub shared_experts: f64,
    /// Products that join the inputs of modules that predict further tokens.
    pub predictions: f64,
    /// Head, once for each token that is predicted.
    pub head: f64,
}

impl Flops {
    /// All parts of the forward pass.
    pub fn forward(&self) -> f64 {
        self.layers() + self.predictions + self.head
    }

    /// Parts of layers, which recomputation repeats.
    pub fn layers(&self) -> f64 {
        self.projections + self.core + self.mlp + self.experts + self.shared_experts
    }

    /// The backward pass.
    pub fn backward(&self) -> f64 {
        2.0 * self.forward()
    }

    /// Forward and backward pass: what "model FLOPs" of training mean.
    pub fn training(&self) -> f64 {
        self.forward() + self.backward()
    }
}

impl Transformer {
    /// Operations of one token's forward pass in a sequence of `sequence` tokens.
    ///
    /// Embedding, norms, rotations and routers are left out, as Megatron-LM leaves them out.
    ///
    /// # Source
    /// Megatron-LM, `megatron/training/training.py`, `num_floating_point_operations`.
    pub fn flops(&self, sequence: u64, mask: Mask) -> Flops {
        let count = |layers: u64, elements: f64| 2.0 * layers as f64 * elements;
        let (h, further) = (self.hidden as f64, self.predictions);
        let last = self.kind(self.layers - 1);
        let dense = self.dense_layers() + if last == LayerKind::Dense { further } else { 0 };
        let routed = self.layers + further - dense;
        let mlp = |width: u64| (self.activation.products() * self.hidden * width) as f64;
        let experts = self.experts;
        Flops {
            projections: count(self.layers + further, self.projection_elements()),
            core: count(self.layers + further, self.core_elements(sequence, mask)),
            mlp: count(dense, mlp(self.width)),
            experts: experts.map_or(0.0, |e| count(routed, e.top_k as f64 * mlp(e.width))),
            shared_experts: experts.map_or(0.0, |e| count(routed, e.shared as f64 * mlp(e.shared_width))),
            predictions: count(further, 2.0 * h * h),
            head: count(1 + further, self.vocabulary as f64 * h),
        }
    }

    /// Multiply-adds of one token in the products of one attention layer: their parameters, but for norms and biases.
    fn projection_elements(&self) -> f64 {
        let h = self.hidden as f64;
        match self.attention {
            Attention::Gqa { heads, kv_heads, head_dim, .. } => h * (head_dim * (2 * heads + 2 * kv_heads)) as f64,
            Attention::Mla { heads, q_lora, kv_lora, nope, rope, value } => {
                let (q, r, query) = (q_lora as f64, kv_lora as f64, (heads * (nope + rope)) as f64);
                let queries = if q_lora == 0 { h * query } else { q * (h + query) };
                queries + h * (r + rope as f64) + r * (heads * (nope + value)) as f64 + (heads * value) as f64 * h
            }
        }
    }

    fn core_elements(&self, sequence: u64, mask: Mask) -> f64 {
        let seen = sequence as f64 * if mask == Mask::Causal { 0.5 } else { 1.0 };
        let elements = match self.attention {
            Attention::Gqa { heads, head_dim, .. } => 2 * heads * head_dim,
            Attention::Mla { heads, nope, rope, value, .. } => heads * (nope + rope + value),
        };
        elements as f64 * seen
    }
}

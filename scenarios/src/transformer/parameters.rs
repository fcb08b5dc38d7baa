//! Exact counts of parameters, by part.

use serde::Serialize;

use super::{Attention, Biases, LayerKind, Norm, Transformer};

/// Parameters by part. All layers, unless they are of one layer ([`Transformer::layer_parameters`]).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Parameters {
    /// Of tokens.
    pub embedding: u64,
    /// Learned ones of positions.
    pub positions: u64,
    /// Products of attention, with biases and the norms of latents and heads.
    pub attention: u64,
    /// Dense MLPs.
    pub mlp: u64,
    /// Routed experts.
    pub experts: u64,
    /// Shared experts.
    pub shared_experts: u64,
    /// Routers.
    pub router: u64,
    /// Biases of routers, which only balance the load.
    pub gate_biases: u64,
    /// Norms of layers, and the last one.
    pub norms: u64,
    /// Head; 0 where it is the embedding.
    pub head: u64,
    /// Modules that predict further tokens. Published counts leave them out, and [`Parameters::total`] does.
    pub predictions: u64,
}

impl Parameters {
    /// All, as published: without the modules that predict further tokens.
    pub fn total(&self) -> u64 {
        self.embedding + self.positions + self.head + self.layers()
    }

    /// All that training holds.
    pub fn held(&self) -> u64 {
        self.total() + self.predictions
    }

    fn layers(&self) -> u64 {
        self.attention + self.mlp + self.experts + self.shared_experts + self.router + self.gate_biases + self.norms
    }

    fn add_layers(&mut self, of: &Self, count: u64) {
        self.attention += of.attention * count;
        self.mlp += of.mlp * count;
        self.experts += of.experts * count;
        self.shared_experts += of.shared_experts * count;
        self.router += of.router * count;
        self.gate_biases += of.gate_biases * count;
        self.norms += of.norms * count;
    }
}

impl Transformer {
    /// Parameters of the whole model.
    ///
    /// # Source
    /// The forms of Megatron-LM, `megatron/training/theoretical_memory_usage.py`, with biases and learned positions.
    pub fn parameters(&self) -> Parameters {
        let embedding = self.vocabulary * self.hidden;
        let mut all = Parameters {
            embedding,
            positions: self.learned_positions * self.hidden,
            head: if self.tied { 0 } else { embedding },
            norms: self.norm_parameters(self.hidden),
            ..Parameters::default()
        };
        let dense = self.dense_layers();
        all.add_layers(&self.layer_parameters(LayerKind::Dense), dense);
        if self.experts.is_some() {
            all.add_layers(&self.layer_parameters(LayerKind::Experts), self.layers - dense);
        }
        // DeepSeek-V3 report, 2.2: embedding and head are those of the model; two norms of the inputs, one before the head.
        let last = self.layer_parameters(self.kind(self.layers - 1));
        let module = last.layers() + 2 * self.hidden * self.hidden + 3 * self.norm_parameters(self.hidden);
        all.predictions = self.predictions * module;
        all
    }

    /// Parameters that one token uses: of the routed experts only its own, and no biases of routers.
    pub fn active_parameters(&self) -> u64 {
        let all = self.parameters();
        let experts = self.experts.map_or(0, |e| all.experts / e.count * e.top_k);
        all.total() - all.gate_biases - all.experts + experts
    }

    /// Parameters of one layer.
    pub fn layer_parameters(&self, kind: LayerKind) -> Parameters {
        let mut layer = Parameters {
            attention: self.attention_parameters(),
            norms: 2 * self.norm_parameters(self.hidden),
            ..Parameters::default()
        };
        match (kind, self.experts) {
            (LayerKind::Experts, Some(experts)) => {
                layer.experts = experts.count * self.mlp_parameters(experts.width);
                layer.shared_experts = experts.shared * self.mlp_parameters(experts.shared_width);
                layer.router = self.hidden * experts.count;
                layer.gate_biases = if experts.gate_biases { experts.count } else { 0 };
            }
            _ => layer.mlp = self.mlp_parameters(self.width),
        }
        layer
    }

    fn norm_parameters(&self, width: u64) -> u64 {
        match self.norm {
            Norm::Rms => width,
            Norm::Layer => 2 * width,
        }
    }

    fn attention_parameters(&self) -> u64 {
        let h = self.hidden;
        match self.attention {
            Attention::Gqa { heads, kv_heads, head_dim, head_norm } => {
                let qkv = head_dim * (heads + 2 * kv_heads);
                let biases = match self.biases {
                    Biases::None => 0,
                    Biases::Qkv => qkv,
                    Biases::All => qkv + h,
                };
                let norms = if head_norm { 2 * self.norm_parameters(head_dim) } else { 0 };
                h * qkv + heads * head_dim * h + biases + norms
            }
            Attention::Mla { heads, q_lora, kv_lora, nope, rope, value } => {
                let query = heads * (nope + rope);
                let queries = if q_lora == 0 { h * query } else { q_lora * (h + query) + self.norm_parameters(q_lora) };
                let keys_and_values =
                    h * (kv_lora + rope) + self.norm_parameters(kv_lora) + kv_lora * heads * (nope + value);
                queries + keys_and_values + heads * value * h
            }
        }
    }

    fn mlp_parameters(&self, width: u64) -> u64 {
        let inner = if self.activation.gated() { 2 * width } else { width };
        let biases = if self.biases == Biases::All { inner + self.hidden } else { 0 };
        self.activation.products() * self.hidden * width + biases
    }

    /// Vocabulary as Megatron-LM pads it: a multiple of 128 for each of `tensor` ranks (`--make-vocab-size-divisible-by`,
    /// 128 by default).
    pub fn padded_vocabulary(&self, tensor: u64) -> u64 {
        self.vocabulary.next_multiple_of(128 * tensor.max(1))
    }
}

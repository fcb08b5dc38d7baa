//! The shape of a transformer: what sizes make it.

use serde::Serialize;

/// Most parameters: a thousand times the largest model known, and small enough that no count overflows.
pub const MAX_PARAMETERS: f64 = 4e15;

/// A decoder-only transformer. All counts are of the whole model; 0 means that there is none of it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Transformer {
    /// Its name.
    pub name: String,
    /// Layers, without those of [`Transformer::predictions`].
    pub layers: u64,
    /// Elements of a token between layers.
    pub hidden: u64,
    /// Tokens of the vocabulary, not padded.
    pub vocabulary: u64,
    /// Tokens of the sequence that it was trained with.
    pub sequence: u64,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// Kind of its norms.
    pub norm: Norm,
    /// Which products add a bias.
    pub biases: Biases,
    /// Positions that have a learned embedding; 0 where positions are rotations or biases of scores.
    pub learned_positions: u64,
    /// Whether queries and keys are rotated by position (RoPE).
    pub rotary: bool,
    /// Whether it was trained with dropout.
    pub dropout: bool,
    /// Attention of each layer.
    pub attention: Attention,
    /// Width of a dense MLP.
    pub width: u64,
    /// What the MLP does between its products.
    pub activation: Activation,
    /// Experts, for layers that route tokens.
    pub experts: Option<Experts>,
    /// Modules that predict further tokens (MTP): a layer, a product of 2 hidden x hidden, and one more use of the head.
    pub predictions: u64,
}

/// Kind of the norms.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Norm {
    /// RMSNorm: a scale.
    Rms,
    /// LayerNorm: a scale and a bias.
    Layer,
}

/// Which products add a bias.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Biases {
    /// None.
    None,
    /// Those that make queries, keys and values (Qwen2).
    Qkv,
    /// All of them (GPT).
    All,
}

/// Attention of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Attention {
    /// Heads that share keys and values in groups; one group a head is multi-head attention.
    Gqa {
        /// Query heads.
        heads: u64,
        /// Key and value heads.
        kv_heads: u64,
        /// Elements of a head.
        head_dim: u64,
        /// Whether queries and keys have a norm of their own (Qwen3).
        head_norm: bool,
    },
    /// Keys and values made from a latent vector (DeepSeek).
    Mla {
        /// Heads.
        heads: u64,
        /// Latent of the queries; 0 where they are made directly.
        q_lora: u64,
        /// Latent of keys and values.
        kv_lora: u64,
        /// Elements of a query or key head that are not rotated.
        nope: u64,
        /// Elements that are; all heads share those of the key.
        rope: u64,
        /// Elements of a value head.
        value: u64,
    },
}

impl Attention {
    /// Query heads.
    pub fn heads(&self) -> u64 {
        match *self {
            Self::Gqa { heads, .. } | Self::Mla { heads, .. } => heads,
        }
    }

    /// Heads of keys and values.
    pub fn kv_heads(&self) -> u64 {
        match *self {
            Self::Gqa { kv_heads, .. } => kv_heads,
            Self::Mla { heads, .. } => heads,
        }
    }
}

/// What the MLP does between its products.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// SiLU of one product times another.
    SwiGlu,
    /// GELU of one product times another (Gemma).
    #[serde(rename = "geglu")]
    GeGlu,
    /// GELU.
    Gelu,
    /// Square of ReLU.
    SquaredRelu,
}

impl Activation {
    /// Whether a second product gates the first.
    pub fn gated(self) -> bool {
        matches!(self, Self::SwiGlu | Self::GeGlu)
    }

    /// Products of an MLP: 3 where gated, else 2.
    pub fn products(self) -> u64 {
        if self.gated() { 3 } else { 2 }
    }
}

/// Experts of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Experts {
    /// Experts that tokens are routed to.
    pub count: u64,
    /// Experts of one token.
    pub top_k: u64,
    /// Width of an expert.
    pub width: u64,
    /// Experts that all tokens use.
    pub shared: u64,
    /// Width of each of them.
    pub shared_width: u64,
    /// First layers with a dense MLP instead.
    pub dense_layers: u64,
    /// Whether the router has a bias for each expert, which balances their load.
    pub gate_biases: bool,
    /// Groups of as many experts each; 1 where there are none.
    pub groups: u64,
    /// Groups that have all experts of one token: DeepSeek-V3 so sends it to few hosts.
    pub top_groups: u64,
}

/// Kind of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerKind {
    /// With a dense MLP.
    Dense,
    /// With experts.
    Experts,
}

impl Transformer {
    /// That the model has fewer learned positions than something of so many tokens needs, where that is so.
    pub fn too_long(&self, tokens: u64, what: &str) -> Option<String> {
        let positions = self.learned_positions;
        let fewer = (1..tokens).contains(&positions);
        fewer.then(|| format!("the model has learned positions for {positions} tokens, fewer than {what} has"))
    }

    /// Kind of a layer, from 0. Modules that predict further tokens are like the last one.
    pub fn kind(&self, layer: u64) -> LayerKind {
        match self.experts {
            Some(experts) if layer >= experts.dense_layers => LayerKind::Experts,
            _ => LayerKind::Dense,
        }
    }

    /// Layers with a dense MLP.
    pub fn dense_layers(&self) -> u64 {
        self.experts.map_or(self.layers, |experts| experts.dense_layers.min(self.layers))
    }

    /// Bytes of one token in a cache of keys and values, all layers, at `element` bytes each.
    pub fn kv_bytes(&self, element: u64) -> u64 {
        let elements = match self.attention {
            Attention::Gqa { kv_heads, head_dim, .. } => 2 * kv_heads * head_dim,
            Attention::Mla { kv_lora, rope, .. } => kv_lora + rope,
        };
        self.layers * elements * element
    }

    /// Says what cannot be: the key and why. Every reader ends in it, so other code may rely on it.
    ///
    /// # Errors
    /// The key at fault and what is wrong with it.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let Self { layers, hidden, vocabulary, sequence, width, predictions, learned_positions, .. } = *self;
        let within = |key, value: u64, range: std::ops::RangeInclusive<u64>| {
            let (least, most) = (*range.start(), *range.end());
            if range.contains(&value) {
                return Ok(());
            }
            Err((key, format!("{key} is {value}; expected a whole number from {least} to {most}")))
        };
        within("layers", layers, 1..=10_000)?;
        within("hidden", hidden, 1..=1 << 20)?;
        within("vocabulary", vocabulary, 1..=1 << 24)?;
        within("sequence", sequence, 1..=1 << 30)?;
        within("learned_positions", learned_positions, 0..=1 << 30)?;
        within("predictions", predictions, 0..=16)?;
        match self.attention {
            Attention::Gqa { heads, kv_heads, head_dim, .. } => {
                within("heads", heads, 1..=1 << 14)?;
                within("kv_heads", kv_heads, 1..=heads)?;
                within("head_dim", head_dim, 1..=1 << 14)?;
                if heads % kv_heads != 0 {
                    return Err((
                        "kv_heads",
                        format!("{heads} heads cannot share {kv_heads} heads of keys and values evenly"),
                    ));
                }
            }
            Attention::Mla { heads, q_lora, kv_lora, nope, rope, value } => {
                within("heads", heads, 1..=1 << 14)?;
                within("q_lora", q_lora, 0..=1 << 20)?;
                within("kv_lora", kv_lora, 1..=1 << 20)?;
                within("nope", nope, 1..=1 << 14)?;
                within("rope", rope, 0..=1 << 14)?;
                within("value", value, 1..=1 << 14)?;
            }
        }
        let dense = self.experts.is_none_or(|experts| experts.dense_layers > 0);
        within("width", width, u64::from(dense)..=1 << 22)?;
        if let Some(experts) = self.experts {
            within("count", experts.count, 1..=1 << 14)?;
            within("top_k", experts.top_k, 1..=experts.count)?;
            within("width", experts.width, 1..=1 << 22)?;
            within("shared", experts.shared, 0..=1 << 10)?;
            within("shared_width", experts.shared_width, u64::from(experts.shared > 0)..=1 << 22)?;
            within("dense_layers", experts.dense_layers, 0..=layers)?;
            within("groups", experts.groups, 1..=experts.count)?;
            within("top_groups", experts.top_groups, 1..=experts.groups)?;
            let chosen = experts.count / experts.groups * experts.top_groups;
            if experts.count % experts.groups != 0 || experts.top_k > chosen {
                let [count, groups, top] = [experts.count, experts.groups, experts.top_groups];
                let message = format!(
                    "{top} of {groups} even groups of {count} experts cannot have {} of a token",
                    experts.top_k
                );
                return Err(("groups", message));
            }
        }
        let about = self.about_parameters();
        if about > MAX_PARAMETERS {
            return Err(("layers", format!("the model has about {about:.1e} parameters; at most 4e15 are read")));
        }
        Ok(())
    }

    /// Parameters to a few percent, in floating point: what [`Transformer::check`] can ask before counts are known to fit.
    fn about_parameters(&self) -> f64 {
        let f = |value: u64| value as f64;
        let attention = match self.attention {
            Attention::Gqa { heads, kv_heads, head_dim, .. } => {
                2.0 * f(self.hidden) * f(head_dim) * f(heads + kv_heads)
            }
            Attention::Mla { heads, q_lora, kv_lora, nope, rope, value } => {
                f(self.hidden + heads * (nope + rope)) * f(q_lora.max(1))
                    + f(self.hidden + heads * (nope + value)) * f(kv_lora + rope)
                    + f(self.hidden) * f(heads) * f(value + nope + rope)
            }
        };
        let mlp = 3.0 * f(self.hidden) * f(self.width);
        let experts = self
            .experts
            .map_or(0.0, |e| 3.0 * f(self.hidden) * (f(e.count) * f(e.width) + f(e.shared) * f(e.shared_width)));
        f(self.layers + self.predictions) * (attention + mlp + experts)
            + 2.0 * f(self.vocabulary + self.learned_positions) * f(self.hidden)
    }
}

//! Reads a model file, `collcast/model/1`: TOML to a checked [`Transformer`]. `scenarios/models/` holds files to start from.

use collcast_topologies::error::{Source, TopologiesError};
use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;

use super::{Activation, Attention, Biases, Experts, Norm, Transformer};

/// The schema that this module reads.
pub const SCHEMA: &str = "collcast/model/1";

/// A model as written.
#[derive(Deserialize, JsonSchema, Clone, Debug)]
#[serde(deny_unknown_fields)]
struct RawFile {
    /// `collcast/model/1`.
    #[schemars(with = "String")]
    schema: Spanned<String>,
    /// Name of the model.
    name: String,
    /// Layers.
    layers: u64,
    /// Elements of a token between layers.
    hidden: u64,
    /// Tokens of the vocabulary, not padded.
    vocabulary: u64,
    /// Tokens of the sequence that it was trained with.
    sequence: u64,
    /// Whether the head is the embedding; no by default.
    #[serde(default)]
    tied: bool,
    /// `rms` or `layer`.
    norm: RawNorm,
    /// `none` (default), `qkv` or `all`.
    #[serde(default)]
    biases: RawBiases,
    /// Positions with a learned embedding; none by default.
    #[serde(default)]
    learned_positions: u64,
    /// Whether queries and keys are rotated; yes where no positions are learned.
    rotary: Option<bool>,
    /// Whether it is trained with dropout; no by default.
    #[serde(default)]
    dropout: bool,
    /// Modules that predict further tokens; none by default.
    #[serde(default)]
    predictions: u64,
    /// Attention.
    #[schemars(with = "RawAttention")]
    attention: Spanned<RawAttention>,
    /// MLP.
    mlp: RawMlp,
    /// Experts.
    experts: Option<RawExperts>,
}

#[derive(Deserialize, JsonSchema, Clone, Copy, Debug)]
#[serde(rename_all = "snake_case")]
enum RawNorm {
    Rms,
    Layer,
}

#[derive(Deserialize, JsonSchema, Clone, Copy, Debug, Default)]
#[serde(rename_all = "snake_case")]
enum RawBiases {
    #[default]
    None,
    Qkv,
    All,
}

#[derive(Deserialize, JsonSchema, Clone, Copy, Debug)]
#[serde(rename_all = "snake_case")]
enum RawActivation {
    Swiglu,
    Geglu,
    Gelu,
    SquaredRelu,
}

#[derive(Deserialize, JsonSchema, Clone, Debug)]
#[serde(deny_unknown_fields)]
struct RawAttention {
    /// Query heads.
    heads: u64,
    /// Heads of keys and values; as many as query heads by default.
    kv_heads: Option<u64>,
    /// Elements of a head.
    head_dim: Option<u64>,
    /// Whether queries and keys have norms; no by default.
    #[serde(default)]
    head_norm: bool,
    /// MLA: latent of the queries; 0 or left out where they are made directly.
    q_lora: Option<u64>,
    /// MLA: latent of keys and values.
    kv_lora: Option<u64>,
    /// MLA: elements of a query or key head that are not rotated.
    nope: Option<u64>,
    /// MLA: elements that are.
    rope: Option<u64>,
    /// MLA: elements of a value head.
    value: Option<u64>,
}

#[derive(Deserialize, JsonSchema, Clone, Debug)]
#[serde(deny_unknown_fields)]
struct RawMlp {
    /// Width of dense layers; left out where every layer has experts.
    #[serde(default)]
    width: u64,
    /// `swiglu`, `geglu`, `gelu` or `squared_relu`.
    activation: RawActivation,
}

#[derive(Deserialize, JsonSchema, Clone, Debug)]
#[serde(deny_unknown_fields)]
struct RawExperts {
    /// Experts that tokens are routed to.
    count: u64,
    /// Experts of one token.
    top_k: u64,
    /// Width of an expert.
    width: u64,
    /// Experts that all tokens use; none by default.
    #[serde(default)]
    shared: u64,
    /// Width of each of them; that of a routed one by default.
    shared_width: Option<u64>,
    /// First layers with a dense MLP; none by default.
    #[serde(default)]
    dense_layers: u64,
    /// Whether routers have a bias for each expert; no by default.
    #[serde(default)]
    gate_biases: bool,
    /// Groups of as many experts each; one by default.
    #[serde(default = "one")]
    groups: u64,
    /// Groups that have all experts of one token; one by default.
    #[serde(default = "one")]
    top_groups: u64,
}

const fn one() -> u64 {
    1
}

/// The JSON schema of the model file.
pub fn json_schema() -> String {
    serde_json::to_string_pretty(&schemars::schema_for!(RawFile)).unwrap_or_default()
}

/// Reads a model.
///
/// # Errors
/// Any mistake, with its line and column.
pub fn read(text: &str, file: &str) -> Result<Transformer, TopologiesError> {
    let source = Source::new(file, text);
    let raw: RawFile = collcast_topologies::file::parse(source)?;
    if raw.schema.get_ref() != SCHEMA {
        let message = "the file is of another schema than that of models".to_owned();
        let label = format!("expected \"{SCHEMA}\"");
        return Err(TopologiesError::Schema(source.at(raw.schema.span(), message, label, "")));
    }
    let model = Transformer {
        name: raw.name,
        layers: raw.layers,
        hidden: raw.hidden,
        vocabulary: raw.vocabulary,
        sequence: raw.sequence,
        tied: raw.tied,
        norm: match raw.norm {
            RawNorm::Rms => Norm::Rms,
            RawNorm::Layer => Norm::Layer,
        },
        biases: match raw.biases {
            RawBiases::None => Biases::None,
            RawBiases::Qkv => Biases::Qkv,
            RawBiases::All => Biases::All,
        },
        learned_positions: raw.learned_positions,
        rotary: raw.rotary.unwrap_or(raw.learned_positions == 0),
        dropout: raw.dropout,
        attention: attention(source, &raw.attention)?,
        width: raw.mlp.width,
        activation: match raw.mlp.activation {
            RawActivation::Swiglu => Activation::SwiGlu,
            RawActivation::Geglu => Activation::GeGlu,
            RawActivation::Gelu => Activation::Gelu,
            RawActivation::SquaredRelu => Activation::SquaredRelu,
        },
        experts: raw.experts.map(|e| Experts {
            count: e.count,
            top_k: e.top_k,
            width: e.width,
            shared: e.shared,
            shared_width: e.shared_width.unwrap_or(if e.shared > 0 { e.width } else { 0 }),
            dense_layers: e.dense_layers,
            gate_biases: e.gate_biases,
            groups: e.groups,
            top_groups: e.top_groups,
        }),
        predictions: raw.predictions,
    };
    model.check().map_err(|(key, message)| {
        TopologiesError::Value(source.at(place(text, key), message, "", "scenarios/models/ has files to start from"))
    })?;
    Ok(model)
}

/// Where a key is set; the whole file has none of it where a default is at fault.
fn place(text: &str, key: &str) -> std::ops::Range<usize> {
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let sets = line.trim_start().strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('='));
        if sets {
            let line = line.trim_end();
            return start..start + line.len();
        }
        start += line.len();
    }
    0..0
}

fn attention(source: Source<'_>, raw: &Spanned<RawAttention>) -> Result<Attention, TopologiesError> {
    let table = raw.get_ref();
    let missing = |keys: &str| {
        let heading = raw.span().start..raw.span().start + 1;
        let message = format!("the attention has no {keys}");
        TopologiesError::Key(source.at(
            heading,
            message,
            "",
            "attention is heads, kv_heads and head_dim, or with kv_lora: nope, rope, value and q_lora",
        ))
    };
    match table.kv_lora {
        None if table.q_lora.or(table.nope).or(table.rope).or(table.value).is_some() => Err(missing("kv_lora")),
        None => Ok(Attention::Gqa {
            heads: table.heads,
            kv_heads: table.kv_heads.unwrap_or(table.heads),
            head_dim: table.head_dim.ok_or_else(|| missing("head_dim"))?,
            head_norm: table.head_norm,
        }),
        Some(_) if table.kv_heads.or(table.head_dim).is_some() || table.head_norm => {
            Err(missing("use for kv_heads, head_dim or head_norm beside kv_lora"))
        }
        Some(kv_lora) => Ok(Attention::Mla {
            heads: table.heads,
            q_lora: table.q_lora.unwrap_or(0),
            kv_lora,
            nope: table.nope.ok_or_else(|| missing("nope"))?,
            rope: table.rope.ok_or_else(|| missing("rope"))?,
            value: table.value.ok_or_else(|| missing("value"))?,
        }),
    }
}

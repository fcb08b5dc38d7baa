//! Reads the `config.json` of a model on Hugging Face.
//!
//! Keys are those of the library `transformers`, `src/transformers/models/*/configuration_*.py`. A `model_type` that is
//! not known is read as Llama's where the keys of Llama are there; what was assumed comes back as notes.

use collcast_topologies::error::{Source, TopologiesError};
use serde_json::{Map, Value};

use super::{Activation, Attention, Biases, Experts, Norm, Transformer};

/// Values of `model_type` that are read as they are.
pub const MODEL_TYPES: &[&str] =
    &["llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "deepseek_v3", "gpt2", "nemotron", "mpt"];

/// Reads a model, and says what was assumed.
///
/// # Errors
/// No JSON object, a key that is missing or of another type, a shape that cannot be.
pub fn read(text: &str, file: &str) -> Result<(Transformer, Vec<String>), TopologiesError> {
    let source = Source::new(file, text);
    let value: Value = serde_json::from_str(text).map_err(|error| {
        let start: usize = text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
        let at = start + error.column().saturating_sub(1);
        TopologiesError::Syntax(source.at(at..at + 1, format!("the file is not JSON: {error}"), "", HINT))
    })?;
    let Value::Object(keys) = value else {
        return Err(TopologiesError::Syntax(source.whole("the file is JSON, but no object of keys", HINT)));
    };
    let mut config = Config { source, keys: &keys, notes: Vec::new() };
    // Models that see keep their language model's keys in a table of their own.
    if let (Some(Value::Object(inner)), false) = (keys.get("text_config"), keys.contains_key("hidden_size")) {
        config.keys = inner;
        config.assume("only the language model is read, from `text_config`".to_owned());
    }
    let model = config.model()?;
    let notes = config.notes;
    model.check().map_err(|(_, message)| TopologiesError::Value(source.whole(message, HINT)))?;
    Ok((model, notes))
}

const HINT: &str = "the config.json of a model's repository has model_type, hidden_size, num_hidden_layers and more; a TOML \
                    of schema collcast/model/1 says the same by hand";

/// Keys of a file, and what was assumed while they were read.
struct Config<'a> {
    source: Source<'a>,
    keys: &'a Map<String, Value>,
    notes: Vec<String>,
}

impl Config<'_> {
    fn wrong(&self, key: &str, expected: &str) -> TopologiesError {
        let given = self.keys.get(key).map_or_else(String::new, |value| {
            let text: String = value.to_string().chars().take(60).collect();
            format!(" and not `{text}`")
        });
        let at = self.source.text.find(&format!("\"{key}\"")).unwrap_or(0);
        let message = format!("`{key}` is to be {expected}{given}");
        TopologiesError::Value(self.source.at(at..at + key.len() + 2, message, "", HINT))
    }

    /// A whole number; none where the key is missing or null.
    fn find(&self, key: &str) -> Result<Option<u64>, TopologiesError> {
        match self.keys.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_u64().map(Some).ok_or_else(|| self.wrong(key, "a whole number")),
        }
    }

    fn need(&self, key: &str) -> Result<u64, TopologiesError> {
        self.find(key)?.ok_or_else(|| {
            let message = format!("the key `{key}` is missing, which says the shape of the model");
            TopologiesError::Key(self.source.whole(message, HINT))
        })
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool, TopologiesError> {
        match self.keys.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| self.wrong(key, "true or false")),
        }
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.keys.get(key).and_then(Value::as_str)
    }

    fn assume(&mut self, what: String) {
        self.notes.push(what);
    }

    /// A number that files may leave out.
    fn or(&mut self, key: &str, default: u64) -> Result<u64, TopologiesError> {
        if let Some(value) = self.find(key)? {
            return Ok(value);
        }
        self.assume(format!("`{key}` is missing; {default} is assumed"));
        Ok(default)
    }

    fn model(&mut self) -> Result<Transformer, TopologiesError> {
        let kind = self.text("model_type").unwrap_or_default().to_owned();
        match kind.as_str() {
            "gpt2" => self.gpt2(),
            "mpt" => self.mpt(),
            known if MODEL_TYPES.contains(&known) => self.llama(known),
            unknown if self.keys.contains_key("hidden_size") && self.keys.contains_key("intermediate_size") => {
                let like = self.likeness();
                let shown: String = collcast_sim::text::one_line(unknown).chars().take(40).collect();
                self.assume(format!(
                    "model_type `{shown}` is not known; it is read as `{like}` by its keys, so parts that this lacks are missing"
                ));
                self.llama(like)
            }
            unknown => {
                let shown: String = unknown.chars().take(40).collect();
                let message = format!("model_type `{shown}` is not known, and the keys are not those of Llama");
                let hint =
                    format!("known: {}; a TOML of schema collcast/model/1 describes any other", MODEL_TYPES.join(", "));
                Err(TopologiesError::Value(self.source.whole(message, hint)))
            }
        }
    }

    /// The known kind that has the same keys.
    fn likeness(&self) -> &'static str {
        let has = |key| self.keys.contains_key(key);
        match () {
            () if has("kv_lora_rank") && has("n_routed_experts") => "deepseek_v3",
            () if has("num_experts") && has("moe_intermediate_size") => "qwen3_moe",
            () if has("num_local_experts") => "mixtral",
            () => "llama",
        }
    }

    fn name(&self, kind: &str) -> String {
        let name = self.text("_name_or_path").filter(|name| !name.is_empty()).unwrap_or(kind);
        collcast_sim::text::one_line(name).chars().take(80).collect()
    }

    /// Llama and its kin: Mistral, Mixtral, Qwen2 and 3, DeepSeek-V3, Nemotron.
    fn llama(&mut self, kind: &str) -> Result<Transformer, TopologiesError> {
        let (hidden, heads) = (self.need("hidden_size")?, self.need("num_attention_heads")?);
        let deepseek = kind == "deepseek_v3";
        let attention = if deepseek {
            Attention::Mla {
                heads,
                q_lora: self.find("q_lora_rank")?.unwrap_or(0),
                kv_lora: self.need("kv_lora_rank")?,
                nope: self.need("qk_nope_head_dim")?,
                rope: self.need("qk_rope_head_dim")?,
                value: self.need("v_head_dim")?,
            }
        } else {
            Attention::Gqa {
                heads,
                kv_heads: self.find("num_key_value_heads")?.unwrap_or(heads),
                head_dim: self.find("head_dim")?.unwrap_or(hidden / heads.max(1)),
                head_norm: kind.starts_with("qwen3"),
            }
        };
        let nemotron = kind == "nemotron";
        let activation = match self.text("hidden_act").unwrap_or(if nemotron { "relu2" } else { "silu" }) {
            "silu" | "swish" => Activation::SwiGlu,
            "relu2" => Activation::SquaredRelu,
            "gelu" | "gelu_new" | "gelu_pytorch_tanh" => Activation::Gelu,
            _ => return Err(self.wrong("hidden_act", "silu, relu2 or gelu")),
        };
        let attention_bias = self.flag("attention_bias", kind == "qwen2")?;
        let mlp_bias = self.flag("mlp_bias", false)?;
        if attention_bias != mlp_bias && kind != "qwen2" {
            self.assume(
                "biases of attention and of the MLP differ; those of queries, keys and values are counted".to_owned(),
            );
        }
        Ok(Transformer {
            name: self.name(kind),
            layers: self.need("num_hidden_layers")?,
            hidden,
            vocabulary: self.need("vocab_size")?,
            sequence: self.or("max_position_embeddings", 4096)?,
            tied: self.flag("tie_word_embeddings", false)?,
            norm: if nemotron { Norm::Layer } else { Norm::Rms },
            biases: match (attention_bias, mlp_bias) {
                (true, true) => Biases::All,
                (true, false) => Biases::Qkv,
                (false, _) => Biases::None,
            },
            learned_positions: 0,
            rotary: true,
            dropout: false,
            attention,
            width: self.need("intermediate_size")?,
            activation,
            experts: self.experts(kind)?,
            predictions: if deepseek { self.find("num_nextn_predict_layers")?.unwrap_or(0) } else { 0 },
        })
    }

    fn experts(&mut self, kind: &str) -> Result<Option<Experts>, TopologiesError> {
        let routed = |count, top_k, width| Experts {
            count,
            top_k,
            width,
            shared: 0,
            shared_width: 0,
            dense_layers: 0,
            gate_biases: false,
            groups: 1,
            top_groups: 1,
        };
        Ok(match kind {
            "mixtral" => Some(routed(
                self.need("num_local_experts")?,
                self.need("num_experts_per_tok")?,
                self.need("intermediate_size")?,
            )),
            "qwen3_moe" => Some(routed(
                self.need("num_experts")?,
                self.need("num_experts_per_tok")?,
                self.need("moe_intermediate_size")?,
            )),
            "deepseek_v3" => {
                let width = self.need("moe_intermediate_size")?;
                let shared = self.find("n_shared_experts")?.unwrap_or(0);
                Some(Experts {
                    shared,
                    shared_width: if shared > 0 { width } else { 0 },
                    dense_layers: self.find("first_k_dense_replace")?.unwrap_or(0),
                    gate_biases: self.text("topk_method") == Some("noaux_tc"),
                    groups: self.find("n_group")?.unwrap_or(1).max(1),
                    top_groups: self.find("topk_group")?.unwrap_or(1).max(1),
                    ..routed(self.need("n_routed_experts")?, self.need("num_experts_per_tok")?, width)
                })
            }
            _ => None,
        })
    }

    fn gpt2(&mut self) -> Result<Transformer, TopologiesError> {
        let (hidden, heads) = (self.need("n_embd")?, self.need("n_head")?);
        let positions = self.need("n_positions")?;
        Ok(Transformer {
            name: self.name("gpt2"),
            layers: self.need("n_layer")?,
            hidden,
            vocabulary: self.need("vocab_size")?,
            sequence: positions,
            tied: self.flag("tie_word_embeddings", true)?,
            norm: Norm::Layer,
            biases: Biases::All,
            learned_positions: positions,
            rotary: false,
            dropout: self.keys.get("resid_pdrop").and_then(Value::as_f64).unwrap_or(0.1) > 0.0,
            attention: Attention::Gqa { heads, kv_heads: heads, head_dim: hidden / heads.max(1), head_norm: false },
            width: self.find("n_inner")?.unwrap_or(hidden.saturating_mul(4)),
            activation: Activation::Gelu,
            experts: None,
            predictions: 0,
        })
    }

    fn mpt(&mut self) -> Result<Transformer, TopologiesError> {
        let (hidden, heads) = (self.need("d_model")?, self.need("n_heads")?);
        let sequence = self.need("max_seq_len")?;
        let alibi = self.keys.get("attn_config").and_then(|a| a.get("alibi")).and_then(Value::as_bool).unwrap_or(false);
        let biases = if self.flag("no_bias", false)? { Biases::None } else { Biases::All };
        if biases == Biases::None {
            self.assume("norms are counted with a bias, which MPT without biases lacks".to_owned());
        }
        Ok(Transformer {
            name: self.name("mpt"),
            layers: self.need("n_layers")?,
            hidden,
            vocabulary: self.need("vocab_size")?,
            sequence,
            tied: true,
            norm: Norm::Layer,
            biases,
            learned_positions: if alibi { 0 } else { sequence },
            rotary: false,
            dropout: false,
            attention: Attention::Gqa { heads, kv_heads: heads, head_dim: hidden / heads.max(1), head_norm: false },
            width: hidden.saturating_mul(self.or("expansion_ratio", 4)?),
            activation: Activation::Gelu,
            experts: None,
            predictions: 0,
        })
    }
}

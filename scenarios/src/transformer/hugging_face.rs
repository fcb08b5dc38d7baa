//! Reads the `config.json` of a model on Hugging Face.
//!
//! Keys are those of the library `transformers`, `src/transformers/models/*/configuration_*.py`. A `model_type` that is
//! not known is read as Llama's where the keys of Llama are there; what was assumed comes back as notes.

use collcast_topologies::error::{Source, TopologiesError};
use serde_json::{Map, Value};

use super::{Activation, Attention, Biases, Experts, Norm, Transformer};

/// Values of `model_type` that are read as they are.
pub const MODEL_TYPES: &[&str] = &[
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "gemma",
    "deepseek",
    "deepseek_v3",
    "llama4_text",
    "gpt2",
    "gpt_neox",
    "nemotron",
    "mpt",
];

/// How what is assumed of the length of sequences ends: it is nothing to whoever gives that length.
pub const OTHER_SEQUENCE: &str = "--seq says otherwise";

/// How what is said of a window begins that attention sees; see [`window_of`].
const WHOLE_SEQUENCE: &str = "attention is counted over the whole sequence, not in a window of";

/// The tokens of a window that a note says attention is not counted in: in sequences that are no longer there is no difference.
pub fn window_of(note: &str) -> Option<u64> {
    note.strip_prefix(WHOLE_SEQUENCE)?.split_whitespace().next()?.parse().ok()
}

/// Kinds of layers that have attention, in lists of them; the last two see a part of the tokens.
const ATTENTION: [&str; 4] = ["full_attention", "attention", "sliding_attention", "chunked_attention"];

/// Keys that say which layers have experts.
const MIXES: [&str; 9] = [
    "first_k_dense_replace",
    "num_dense_layers",
    "mlp_only_layers",
    "moe_layers",
    "decoder_sparse_step",
    "moe_layer_frequency",
    "interleave_moe_layer_step",
    "moe_layer_freq",
    "mlp_layer_types",
];

/// Keys of models some of whose layers have no attention (Nemotron-H, Zamba 2, Bamba, Kimi-Linear), or layers that differ
/// (Llama-Nemotron).
const OTHERS: [&str; 6] = [
    "hybrid_override_pattern",
    "hybrid_layer_ids",
    "attn_layer_indices",
    "full_attn_idxs",
    "linear_attn_config",
    "block_configs",
];

/// How keys of linear attention and of state spaces begin (Qwen3-Next, Falcon-H1).
const OTHER_PARTS: [&str; 3] = ["linear_num_", "mamba_", "ssm_"];

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
    // Models that see keep their language model's keys in a table of their own.
    let (inner, mut notes) = match keys.get("text_config") {
        Some(Value::Object(inner)) if !keys.contains_key("hidden_size") => {
            (inner, vec!["only the language model is read, from `text_config`".to_owned()])
        }
        _ => (&keys, Vec::new()),
    };
    let (filled, left_out) = with_defaults(inner);
    if !left_out.is_empty() {
        notes.push(format!("the file leaves out {}: they are those of `transformers`", left_out.join(", ")));
    }
    let mut config = Config { source, file: &keys, keys: &filled, notes, kind: String::new() };
    let mut model = config.model()?;
    if let Some(own) = own_name(file) {
        // Of a kind that is read as another one, that one.
        model.name = format!("{own} ({})", config.kind);
    }
    let notes = config.notes;
    model.check().map_err(|(_, message)| TopologiesError::Value(source.whole(message, HINT)))?;
    Ok((model, notes))
}

/// What a model is called by its file: by its folder, where the file has the name that all have.
fn own_name(file: &str) -> Option<String> {
    let path = std::path::Path::new(file);
    let stem = path.file_stem()?.to_str()?;
    let name = match stem {
        "config" => path.parent()?.file_name()?.to_str()?,
        _ => stem,
    };
    let name: String = collcast_sim::text::one_line(name).chars().take(60).collect();
    (!name.is_empty() && !name.starts_with('<')).then_some(name)
}

/// What files of Gemma leave out, since it is the default of their kind: `configuration_gemma.py`, `configuration_gemma2.py` and
/// `configuration_gemma3.py` of `transformers`.
const GEMMAS: [(&str, [(&str, u64); 8]); 3] = [
    ("gemma", gemma([256_000, 3072, 24_576, 28, 16, 16, 256, 8192])),
    ("gemma2", gemma([256_000, 2304, 9216, 26, 8, 4, 256, 8192])),
    ("gemma3_text", gemma([262_208, 2304, 9216, 26, 8, 4, 256, 131_072])),
];

const fn gemma(of: [u64; 8]) -> [(&'static str, u64); 8] {
    [
        ("vocab_size", of[0]),
        ("hidden_size", of[1]),
        ("intermediate_size", of[2]),
        ("num_hidden_layers", of[3]),
        ("num_attention_heads", of[4]),
        ("num_key_value_heads", of[5]),
        ("head_dim", of[6]),
        ("max_position_embeddings", of[7]),
    ]
}

/// Keys with those that their kind has a default of, and which these are.
fn with_defaults(keys: &Map<String, Value>) -> (Map<String, Value>, Vec<String>) {
    let kind = keys.get("model_type").and_then(Value::as_str);
    let defaults = GEMMAS.iter().filter(|known| Some(known.0) == kind).flat_map(|known| known.1);
    let (mut filled, mut left_out) = (keys.clone(), Vec::new());
    for (key, value) in defaults {
        if keys.get(key).is_none_or(Value::is_null) {
            filled.insert(key.to_owned(), value.into());
            left_out.push(format!("`{key}` ({value})"));
        }
    }
    (filled, left_out)
}

const HINT: &str = "the config.json of a model's repository has model_type, hidden_size, num_hidden_layers and more; a TOML \
                    of schema collcast/model/1 says the same by hand";

/// Keys of a file, and what was assumed while they were read.
struct Config<'a> {
    source: Source<'a>,
    /// All of the file.
    file: &'a Map<String, Value>,
    /// Those of the language model.
    keys: &'a Map<String, Value>,
    notes: Vec<String>,
    /// The kind that it is read as.
    kind: String,
}

impl Config<'_> {
    fn wrong(&self, key: &str, expected: &str) -> TopologiesError {
        let given = self.keys.get(key).map_or_else(String::new, |value| {
            let text: String = value.to_string().chars().take(60).collect();
            format!(" and not `{text}`")
        });
        self.at(key, format!("`{key}` is to be {expected}{given}"), HINT)
    }

    /// Says something of a key.
    fn at(&self, key: &str, message: String, hint: &str) -> TopologiesError {
        let at = self.source.text.find(&format!("\"{key}\"")).unwrap_or(0);
        TopologiesError::Value(self.source.at(at..at + key.len() + 2, message, "", hint))
    }

    /// Layers are not alike in a way that the form of a model does not have.
    fn mixed(&self, key: &str, what: &str) -> TopologiesError {
        const HINT: &str = "plans and memory are of models whose layers all have attention of one shape; a TOML of schema \
                            collcast/model/1 describes one that comes near";
        let shown: String = collcast_sim::text::one_line(key).chars().take(40).collect();
        self.at(key, format!("the layers are not alike (`{shown}`): {what}"), HINT)
    }

    /// A whole number; none where the key is missing or null.
    fn find(&self, key: &str) -> Result<Option<u64>, TopologiesError> {
        match self.keys.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_u64().map(Some).ok_or_else(|| self.wrong(key, "a whole number")),
        }
    }

    /// The first of several keys that has a whole number.
    fn any(&self, keys: &[&str]) -> Result<Option<u64>, TopologiesError> {
        keys.iter().try_fold(None, |found, key| Ok(found.or(self.find(key)?)))
    }

    /// A list; none where the key is missing or null.
    fn list(&self, key: &str) -> Result<Option<&Vec<Value>>, TopologiesError> {
        match self.keys.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_array().map(Some).ok_or_else(|| self.wrong(key, "a list")),
        }
    }

    /// A list of layers, from 0.
    fn indices(&self, key: &str) -> Result<Option<Vec<u64>>, TopologiesError> {
        let Some(list) = self.list(key)? else { return Ok(None) };
        let indices: Option<Vec<u64>> = list.iter().map(Value::as_u64).collect();
        indices.map(Some).ok_or_else(|| self.wrong(key, "a list of layers, from 0"))
    }

    fn need(&self, key: &str) -> Result<u64, TopologiesError> {
        self.find(key)?.ok_or_else(|| {
            let message = format!("the key `{key}` is missing, which says the shape of the model");
            TopologiesError::Key(self.source.whole(message, HINT))
        })
    }

    /// Yes or no; none where the key is missing or null, beside the language model's keys as well.
    fn flag(&self, key: &str) -> Result<Option<bool>, TopologiesError> {
        match self.keys.get(key).or_else(|| self.file.get(key)) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_bool().map(Some).ok_or_else(|| self.wrong(key, "true or false")),
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
        self.kind.clone_from(&kind);
        match kind.as_str() {
            "gpt2" => self.gpt2(),
            "mpt" => self.mpt(),
            known if MODEL_TYPES.contains(&known) => self.llama(known),
            unknown if self.keys.contains_key("hidden_size") && self.keys.contains_key("intermediate_size") => {
                let like = self.likeness(unknown)?;
                like.clone_into(&mut self.kind);
                let shown: String = collcast_sim::text::one_line(unknown).chars().take(40).collect();
                let shown = if shown.is_empty() {
                    "no model_type is given".to_owned()
                } else {
                    format!("model_type `{shown}` is not known")
                };
                self.assume(format!(
                    "{shown}; it is read as `{like}` by its keys, so parts that this lacks are missing"
                ));
                self.llama(like)
            }
            unknown => {
                let shown: String = unknown.chars().take(40).collect();
                Err(self.unknown(format!("model_type `{shown}` is not known, and the keys are not those of Llama")))
            }
        }
    }

    fn unknown(&self, message: String) -> TopologiesError {
        let known = MODEL_TYPES.join(", ");
        let hint = format!("known: {known}; a TOML of schema collcast/model/1 describes another transformer");
        TopologiesError::Value(self.source.whole(message, hint))
    }

    /// The known kind that has the same keys.
    ///
    /// # Errors
    /// Experts that no known kind has in this way: a model without them would be a fraction of it. Attention or experts
    /// in one layer of several (Jamba): a model with them in all would be a multiple of it.
    fn likeness(&self, kind: &str) -> Result<&'static str, TopologiesError> {
        let has = |key| self.keys.contains_key(key);
        // The first key of which `sought` holds, with a number.
        let find = |sought: fn(&str, u64) -> bool| {
            let found = self.keys.iter().find(|(key, value)| value.as_u64().is_some_and(|number| sought(key, number)));
            found.map(|(key, _)| key.chars().take(40).collect::<String>())
        };
        let some = |key: &str, number| {
            (key.ends_with("_layer_period") && number > 1)
                || (key.ends_with("_layer_offset") && number > 0)
                || (key.starts_with("moe_layer") && !MIXES.contains(&key) && number > 1)
        };
        if let Some(key) = find(some) {
            return Err(self.mixed(&key, "in a way that no known kind has"));
        }
        Ok(match () {
            () if kind.starts_with("gemma") => "gemma",
            // Files leave out what is the default of their kind.
            () if kind == "starcoder2" => "gpt_neox",
            () if has("kv_lora_rank") && has("n_routed_experts") => "deepseek_v3",
            () if has("n_routed_experts") && has("moe_intermediate_size") => "deepseek",
            () if has("num_experts") && has("shared_expert_intermediate_size") => "qwen2_moe",
            () if has("num_experts") && has("moe_intermediate_size") => "qwen3_moe",
            () if has("num_local_experts") && has("intermediate_size_mlp") => "llama4_text",
            () if has("num_local_experts") || has("num_experts") => "mixtral",
            () => match find(|key, number| key.contains("expert") && number > 1) {
                // LayerNorm and GELU come with an MLP without a gate (Starcoder 2, Phi).
                None if !has("rms_norm_eps")
                    && self.keys.keys().any(|key| key.starts_with("layer_norm_eps") || key == "norm_epsilon")
                    && self.text("hidden_act").is_some_and(|curve| curve.contains("gelu")) =>
                {
                    "gpt_neox"
                }
                None => "llama",
                Some(shown) => {
                    let message =
                        format!("the model has experts (`{shown}`), and in a way that no known kind has them");
                    return Err(self.unknown(message));
                }
            },
        })
    }

    fn name(&self, kind: &str) -> String {
        let name = self.text("_name_or_path").filter(|name| !name.is_empty()).unwrap_or(kind);
        collcast_sim::text::one_line(name).chars().take(80).collect()
    }

    /// Whether the head is the embedding.
    ///
    /// Saved files leave out `true`, the default of `transformers`, unless `false` is their kind's own. Of the known
    /// kinds of this make all but Gemma have that.
    fn tied(&mut self, kind: &str) -> Result<bool, TopologiesError> {
        match self.flag("tie_word_embeddings")? {
            Some(tied) => Ok(tied),
            None if kind == "gemma" => Ok(true),
            None => {
                let tied = self.text("model_type") != Some(kind);
                self.assume(format!("`tie_word_embeddings` is missing; {tied} is assumed"));
                Ok(tied)
            }
        }
    }

    /// Modules that predict further tokens.
    fn predictions(&mut self, kind: &str) -> Result<u64, TopologiesError> {
        let count = self.find("num_nextn_predict_layers")?.unwrap_or(0);
        if count > 0 && kind != "deepseek_v3" {
            self.assume("`num_nextn_predict_layers` are counted as modules of DeepSeek-V3's make".to_owned());
        }
        Ok(count)
    }

    /// Llama and its kin: Mistral, Mixtral, Qwen2 and 3, Gemma, DeepSeek-V3, GPT-NeoX, Nemotron.
    fn llama(&mut self, kind: &str) -> Result<Transformer, TopologiesError> {
        let (hidden, heads) = (self.need("hidden_size")?, self.need("num_attention_heads")?);
        let deepseek = kind == "deepseek_v3";
        let attention = if deepseek || self.find("kv_lora_rank")?.is_some_and(|rank| rank > 0) {
            Attention::Mla {
                heads,
                q_lora: self.find("q_lora_rank")?.unwrap_or(0),
                kv_lora: self.need("kv_lora_rank")?,
                nope: self.need("qk_nope_head_dim")?,
                rope: self.need("qk_rope_head_dim")?,
                // MiniCPM 3 leaves it out.
                value: if deepseek { self.need("v_head_dim")? } else { self.or("v_head_dim", hidden / heads.max(1))? },
            }
        } else {
            let head_dim = self.find("head_dim")?;
            if head_dim.is_none() && !hidden.is_multiple_of(heads.max(1)) {
                return Err(self.wrong("hidden_size", &format!("a multiple of num_attention_heads, {heads}")));
            }
            Attention::Gqa {
                heads,
                kv_heads: self.find("num_key_value_heads")?.unwrap_or(heads),
                head_dim: head_dim.unwrap_or(hidden / heads.max(1)),
                head_norm: kind.starts_with("qwen3"),
            }
        };
        self.check_attention(&attention)?;
        // GPT-NeoX and Nemotron are of GPT's make: LayerNorm, and an MLP without a gate.
        let (nemotron, neox) = (kind == "nemotron", kind == "gpt_neox");
        self.note_window();
        let qwen2 = kind.starts_with("qwen2");
        let attention_bias = self.flag("attention_bias")?.unwrap_or(qwen2 || neox);
        let mlp_bias = self.flag("mlp_bias")?.unwrap_or(neox);
        if mlp_bias && !attention_bias {
            self.assume("biases of the MLP alone are not counted".to_owned());
        } else if attention_bias && !mlp_bias && !qwen2 {
            self.assume("of the biases those of queries, keys and values are counted".to_owned());
        }
        Ok(Transformer {
            name: self.name(kind),
            layers: self.need("num_hidden_layers")?,
            hidden,
            vocabulary: self.need("vocab_size")?,
            sequence: self.window()?,
            tied: self.tied(kind)?,
            norm: if nemotron || neox { Norm::Layer } else { Norm::Rms },
            biases: match (attention_bias, mlp_bias) {
                (true, true) => Biases::All,
                (true, false) => Biases::Qkv,
                (false, _) => Biases::None,
            },
            learned_positions: 0,
            rotary: true,
            dropout: false,
            attention,
            width: match kind {
                "llama4_text" => self.need("intermediate_size_mlp")?,
                _ => self.need("intermediate_size")?,
            },
            activation: self.activation(
                match kind {
                    "nemotron" => "relu2",
                    "gemma" | "gpt_neox" => "gelu",
                    _ => "silu",
                },
                !nemotron && !neox,
            )?,
            experts: self.experts(kind)?,
            predictions: self.predictions(kind)?,
        })
    }

    /// What the MLP does; whether it has a gate is the kind's own, whatever curve is named.
    fn activation(&self, default: &str, gated: bool) -> Result<Activation, TopologiesError> {
        // Gemma has a key of its own beside the usual one, which it then passes over.
        let key = if self.text("hidden_activation").is_some() { "hidden_activation" } else { "hidden_act" };
        match self.text(key).unwrap_or(default) {
            "silu" | "swish" if gated => Ok(Activation::SwiGlu),
            "relu2" if !gated => Ok(Activation::SquaredRelu),
            gelu if gelu.contains("gelu") => Ok(if gated { Activation::GeGlu } else { Activation::Gelu }),
            _ => Err(self.wrong(key, if gated { "silu or gelu" } else { "relu2 or gelu" })),
        }
    }

    /// Tokens of a sequence in training: the file names its window alone, which later stages of training may have stretched.
    fn window(&mut self) -> Result<u64, TopologiesError> {
        let window = self.or("max_position_embeddings", 4096)?;
        if let Some(before) = self.window_before().filter(|&before| before > 0 && before < window) {
            self.assume(format!(
                "sequences of {before} tokens, as before the window was stretched to {window}; {OTHER_SEQUENCE}"
            ));
            return Ok(before);
        }
        self.assume(format!("sequences are as long as the whole window, {window} tokens; {OTHER_SEQUENCE}"));
        Ok(window)
    }

    /// The window before it was stretched. It stands beside the rotary base: in `rope_scaling`, since version 5 of `transformers` in
    /// `rope_parameters` or there in a table for each kind of layer, and of Phi-3 at the top level.
    fn window_before(&self) -> Option<u64> {
        let of = |keys: &Map<String, Value>| keys.get("original_max_position_embeddings")?.as_u64();
        let tables = || ["rope_scaling", "rope_parameters"].iter().filter_map(|key| self.keys.get(*key)?.as_object());
        let by_kind = tables().flat_map(|table| table.values()).filter_map(Value::as_object).filter_map(of);
        of(self.keys).or_else(|| tables().find_map(of)).or_else(|| by_kind.min())
    }

    /// Whether all layers have attention, of one shape. Windows are no other shape.
    ///
    /// # Errors
    /// Layers of linear attention, of a state space or of convolutions, and attention with other heads in some of them.
    fn check_attention(&self, attention: &Attention) -> Result<(), TopologiesError> {
        let lists = ["layer_types", "layers_block_type", "block_types", "_block_types"];
        for key in lists {
            let attends = |kind: &Value| matches!(kind.as_str(), Some(kind) if ATTENTION.contains(&kind));
            if let Some(other) = self.list(key)?.into_iter().flatten().find(|&kind| !attends(kind)) {
                let shown: String = other.to_string().chars().take(40).collect();
                return Err(self.mixed(key, &format!("some are {shown}, and only layers with attention are counted")));
            }
        }
        if self.list("attn_type_list")?.into_iter().flatten().any(|kind| kind.as_u64() != Some(1)) {
            return Err(self.mixed("attn_type_list", "where it has no 1 attention is linear, which is not counted"));
        }
        // A list of layers goes before what would make one.
        if lists.iter().all(|key| self.keys.get(*key).is_none_or(Value::is_null)) {
            if let Some(every) = self.find("full_attention_interval")?.filter(|&every| every > 1) {
                let what =
                    format!("one of {every} has full attention, and linear attention of the others is not counted");
                return Err(self.mixed("full_attention_interval", &what));
            }
            let other = |key: &str| OTHERS.contains(&key) || OTHER_PARTS.iter().any(|part| key.starts_with(part));
            if let Some((key, _)) = self.keys.iter().find(|(key, value)| other(key.as_str()) && !value.is_null()) {
                return Err(self.mixed(key, "it shapes layers that are no attention, which are not counted"));
            }
        }
        let Attention::Gqa { heads, kv_heads, head_dim, .. } = *attention else { return Ok(()) };
        for (key, usual) in [
            ("swa_num_attention_heads", heads),
            ("swa_num_key_value_heads", kv_heads),
            ("swa_head_dim", head_dim),
            ("num_global_key_value_heads", kv_heads),
            ("global_head_dim", head_dim),
        ] {
            if self.find(key)?.is_some_and(|other| other != usual) {
                return Err(self.mixed(key, &format!("some have other heads than the others, of which it is {usual}")));
            }
        }
        Ok(())
    }

    /// Says where attention sees fewer tokens than are counted.
    fn note_window(&mut self) {
        let is_bounded = |kind: &Value| matches!(kind.as_str(), Some("sliding_attention" | "chunked_attention"));
        let bounded = match self.keys.get("layer_types").and_then(Value::as_array) {
            Some(kinds) => kinds.iter().any(is_bounded),
            None => self.keys.get("use_sliding_window").and_then(Value::as_bool).unwrap_or(true),
        };
        let window = ["sliding_window", "attention_chunk_size"].iter().find_map(|key| self.keys.get(*key)?.as_u64());
        if let Some(window) = window.filter(|_| bounded) {
            self.assume(format!("{WHOLE_SEQUENCE} {window} tokens"));
        }
    }

    /// Layers without experts, by all keys that say so ([`MIXES`]), each as the kinds that have it read it.
    fn dense_layers(&mut self) -> Result<u64, TopologiesError> {
        let layers = self.need("num_hidden_layers")?;
        if layers > 10_000 {
            return Ok(0);
        }
        let first = self.any(&["first_k_dense_replace", "num_dense_layers"])?.unwrap_or(0);
        let listed = self.indices("mlp_only_layers")?.unwrap_or_default();
        let sparse = self.indices("moe_layers")?;
        // One layer of so many has experts: the last of them, or the first.
        let mut last = vec![self.any(&["decoder_sparse_step", "moe_layer_frequency"])?.unwrap_or(1).max(1)];
        if sparse.is_none() {
            last.push(self.find("interleave_moe_layer_step")?.unwrap_or(1).max(1));
        }
        let (each, every) = match self.keys.get("moe_layer_freq") {
            Some(Value::Array(_)) => (self.indices("moe_layer_freq")?.unwrap_or_default(), 1),
            _ => (Vec::new(), self.find("moe_layer_freq")?.unwrap_or(1).max(1)),
        };
        let kinds = self.list("mlp_layer_types")?.map_or(&[][..], Vec::as_slice);
        if kinds.iter().any(|kind| !matches!(kind.as_str(), Some("dense" | "sparse"))) {
            return Err(self.wrong("mlp_layer_types", "a list of \"dense\" and \"sparse\""));
        }
        let at = |layer: u64| usize::try_from(layer).unwrap_or(usize::MAX);
        let is_dense = |&layer: &u64| {
            layer < first
                || listed.contains(&layer)
                || sparse.as_ref().is_some_and(|sparse| !sparse.contains(&layer))
                || last.iter().any(|step| (layer + 1) % step != 0)
                || layer % every != 0
                || each.get(at(layer)) == Some(&0)
                || kinds.get(at(layer)).and_then(Value::as_str) == Some("dense")
        };
        let dense: Vec<u64> = (0..layers).filter(is_dense).collect();
        if dense.last().is_some_and(|&last| last >= dense.len() as u64) {
            self.assume(format!("{} dense layers stand before those with experts, not between them", dense.len()));
        }
        Ok(dense.len() as u64)
    }

    fn experts(&mut self, kind: &str) -> Result<Option<Experts>, TopologiesError> {
        let has = |key: &str| self.keys.get(key).is_some_and(|value| !value.is_null());
        let (count, width) = match kind {
            "llama4_text" => ("num_local_experts", "intermediate_size"),
            "mixtral" => (
                if has("num_experts") { "num_experts" } else { "num_local_experts" },
                if has("moe_intermediate_size") { "moe_intermediate_size" } else { "intermediate_size" },
            ),
            "qwen2_moe" | "qwen3_moe" => ("num_experts", "moe_intermediate_size"),
            "deepseek" | "deepseek_v3" => ("n_routed_experts", "moe_intermediate_size"),
            _ => return Ok(None),
        };
        // Arctic has a dense MLP beside its experts.
        if self.flag("parallel_attn_mlp_res")? == Some(true) {
            return Err(self.at("parallel_attn_mlp_res", "an MLP beside experts is not counted".to_owned(), HINT));
        }
        let width = self.need(width)?;
        let (shared, shared_width) = match self.any(&["n_shared_experts", "num_shared_experts"])? {
            _ if kind == "llama4_text" => (1, width),
            Some(0) => (0, 0),
            Some(shared) => (shared, self.find("moe_shared_expert_intermediate_size")?.unwrap_or(width)),
            None => {
                let width = self.any(&["shared_expert_intermediate_size", "shared_intermediate_size"])?.unwrap_or(0);
                (u64::from(width > 0), width)
            }
        };
        Ok(Some(Experts {
            count: self.need(count)?,
            top_k: self.need("num_experts_per_tok")?,
            width,
            shared,
            shared_width,
            dense_layers: self.dense_layers()?,
            gate_biases: self.text("topk_method") == Some("noaux_tc"),
            groups: self.find("n_group")?.unwrap_or(1).max(1),
            top_groups: self.find("topk_group")?.unwrap_or(1).max(1),
        }))
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
            tied: self.flag("tie_word_embeddings")?.unwrap_or(true),
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
        let of_attention = |key| self.keys.get("attn_config").and_then(|table| table.get(key));
        let alibi = of_attention("alibi").and_then(Value::as_bool).unwrap_or(false);
        let kv_heads = match of_attention("attn_type").and_then(Value::as_str) {
            Some("multiquery_attention") => 1,
            Some("grouped_query_attention") => of_attention("kv_n_heads")
                .and_then(Value::as_u64)
                .ok_or_else(|| self.wrong("kv_n_heads", "the heads of keys and values that groups of queries share"))?,
            _ => heads,
        };
        let biases = if self.flag("no_bias")?.unwrap_or(false) { Biases::None } else { Biases::All };
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
            attention: Attention::Gqa { heads, kv_heads, head_dim: hidden / heads.max(1), head_norm: false },
            width: hidden.saturating_mul(self.or("expansion_ratio", 4)?),
            activation: Activation::Gelu,
            experts: None,
            predictions: 0,
        })
    }
}

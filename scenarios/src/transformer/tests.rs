//! Goal: built-ins have the counts that their publishers print, and no file breaks a reader.

use super::*;
use collcast_topologies::error::TopologiesError;

fn model(name: &str) -> Transformer {
    let (model, notes) = load(name).unwrap();
    assert!(notes.is_empty(), "{name}: {notes:?}");
    model
}

/// Goal: parameters to the last one. Published figures: those of the models' papers, rounded; that of MPT is printed whole.
#[test]
fn parameters_are_exact() {
    for (name, total, active) in [
        ("llama3-1b", 1_498_482_688, 1_498_482_688),
        ("llama3-8b", 8_030_261_248, 8_030_261_248),
        ("Llama3-70B", 70_553_706_496, 70_553_706_496),
        ("llama3-405b", 405_853_388_800, 405_853_388_800),
        ("gpt3-175b", 174_615_846_912, 174_615_846_912),
        ("mixtral-8x7b", 46_702_792_704, 12_879_925_248),
        ("mixtral-8x22b", 140_630_071_296, 39_161_468_928),
        ("deepseek-v3", 671_026_419_200, 37_552_282_624),
        ("nemotron4-15b", 15_628_775_424, 15_628_775_424),
        ("nemotron4-340b", 341_029_195_776, 341_029_195_776),
        ("mpt-1b", 1_315_950_592, 1_315_950_592),
        ("mpt-3b", 2_651_837_440, 2_651_837_440),
        ("mpt-7b", 6_658_859_008, 6_658_859_008),
        ("mpt-13b", 12_853_954_560, 12_853_954_560),
        ("mpt-30b", 29_975_214_080, 29_975_214_080),
        ("mpt-70b", 64_862_437_376, 64_862_437_376),
    ] {
        let model = model(name);
        assert_eq!((model.parameters().total(), model.active_parameters()), (total, active), "{name}");
    }
    let mla = model("deepseek-v3").layer_parameters(LayerKind::Dense).attention;
    assert_eq!(mla, 187_107_328);
    for (name, total, active) in [("qwen3-8b", 8.2, 8.2), ("qwen3-30b-a3b", 30.5, 3.3)] {
        let model = model(name);
        let billions = |count: u64| (count as f64 / 1e8).round() / 10.0;
        let held = (billions(model.parameters().total()), billions(model.active_parameters()));
        assert!((held.0 - total).abs() < 1e-9 && (held.1 - active).abs() < 0.11, "{name}: {held:?}");
    }
    assert_eq!(model("llama3-8b").padded_vocabulary(8), 129_024);
}

/// Goal: operations of a token in training, to the digits that are printed. Three are also what NVIDIA divides by in the
/// rows of Megatron-Bridge (51.48, 448.8 and 2524 GFLOP); others follow from the formula by hand.
#[test]
fn operations_are_those_of_megatron() {
    for (name, sequence, causal, full) in [
        ("llama3-8b", 8192, "51.470", "57.913"),
        ("llama3-70b", 8192, "449.22", "481.43"),
        ("llama3-405b", 8192, "2523.96", "2625.42"),
        ("deepseek-v3", 4096, "259.99", ""),
        ("gpt3-175b", 2048, "1061.9", "1076.4"),
        ("mixtral-8x7b", 4096, "79.71", ""),
        ("mixtral-8x22b", 4096, "242.20", ""),
        ("nemotron4-15b", 4096, "89.16", "93.99"),
        ("nemotron4-340b", 4096, "2061.3", "2104.8"),
    ] {
        let model = model(name);
        for (mask, expected) in [(Mask::Causal, causal), (Mask::Full, full)] {
            let digits = expected.split('.').nth(1).map_or(0, str::len);
            let flops = model.flops(sequence, mask).training() / 1e9;
            assert!(expected.is_empty() || format!("{flops:.digits$}") == expected, "{name}: {flops}");
        }
    }
    let mut alone = model("deepseek-v3");
    alone.predictions = 0;
    assert_eq!(format!("{:.2}", alone.flops(4096, Mask::Causal).training() / 1e9), "249.81");
}

/// Goal: bytes of a token in the cache of keys and values, as published.
#[test]
fn the_cache_is_as_published() {
    for (name, bytes) in [
        ("llama3-8b", 131_072),
        ("llama3-70b", 327_680),
        ("llama3-405b", 516_096),
        ("mixtral-8x7b", 131_072),
        ("mixtral-8x22b", 229_376),
        ("nemotron4-15b", 131_072),
        ("nemotron4-340b", 589_824),
        ("gpt3-175b", 4_718_592),
        ("qwen3-8b", 147_456),
        ("deepseek-v3", 70_272),
    ] {
        assert_eq!(model(name).kv_bytes(2), bytes, "{name}");
    }
}

/// Goal: a config.json gives the same model as the built-in.
#[test]
fn hugging_face_files_are_read() {
    let llama = r#"{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
        "hidden_act": "silu", "rope_scaling": {"factor": 8.0}, "tie_word_embeddings": false}"#;
    let mixtral = r#"{"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8,
        "num_experts_per_tok": 2, "max_position_embeddings": 4096, "tie_word_embeddings": false}"#;
    let deepseek = r#"{"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432,
        "num_hidden_layers": 61, "num_attention_heads": 128, "vocab_size": 129280, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1,
        "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "topk_method": "noaux_tc",
        "n_group": 8, "topk_group": 4, "num_nextn_predict_layers": 1, "max_position_embeddings": 4096,
        "tie_word_embeddings": false}"#;
    let nemotron = r#"{"model_type": "nemotron", "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 32,
        "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "relu2", "vocab_size": 256000,
        "max_position_embeddings": 4096, "tie_word_embeddings": false}"#;
    let gpt = r#"{"model_type": "gpt2", "n_embd": 12288, "n_head": 96, "n_layer": 96, "n_positions": 2048,
        "vocab_size": 51200}"#;
    let mpt = r#"{"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "max_seq_len": 2048,
        "vocab_size": 50368, "expansion_ratio": 4, "no_bias": false}"#;
    for (text, name) in [
        (llama, "llama3-8b"),
        (mixtral, "mixtral-8x7b"),
        (deepseek, "deepseek-v3"),
        (nemotron, "nemotron4-15b"),
        (gpt, "gpt3-175b"),
        (mpt, "mpt-7b"),
    ] {
        let (mut read, notes) = read(text, "config.json").unwrap();
        let expected = model(name);
        read.name.clone_from(&expected.name);
        // The width of dense layers says nothing where all have experts.
        if expected.experts.is_some_and(|e| e.dense_layers == 0) {
            read.width = 0;
        }
        assert_eq!(read, expected, "{name}");
        // Files that name a window alone do not say how long sequences are.
        let window = !matches!(name, "gpt3-175b" | "mpt-7b");
        assert_eq!(notes.len(), usize::from(window), "{name}: {notes:?}");
        assert!(notes.iter().all(|note| note.ends_with(hugging_face::OTHER_SEQUENCE)), "{name}: {notes:?}");
    }
    // An unknown kind is read as a Llama, and says so; one of unknown keys is refused.
    let (_, notes) = read(&llama.replace("\"llama\"", "\"olmo9\""), "config.json").unwrap();
    assert!(notes[0].contains("`olmo9` is not known"), "{notes:?}");
    let kimi = format!("{{\"text_config\": {}}}", deepseek.replace("deepseek_v3", "kimi_k2"));
    let (read_as, notes) = read(&kimi, "config.json").unwrap();
    assert_eq!((read_as.parameters(), notes.len()), (model("deepseek-v3").parameters(), 3), "{notes:?}");
    // Models are called by their folder or file, with the kind that they are read as.
    for (file, name) in [("models/gpt-oss-120b/config.json", "gpt-oss-120b (mixtral)"), ("mine.json", "mine (mixtral)")]
    {
        let read_as = read(&mixtral.replace("\"mixtral\"", "\"gpt_oss\""), file);
        assert_eq!(read_as.ok().map(|(model, _)| model.name).as_deref(), Some(name));
    }
    let error = read(r#"{"model_type": "rwkv"}"#, "config.json").unwrap_err();
    assert!(error.render().contains("collcast/model/1"), "{}", error.render());
}

/// Goal: what a file leaves out is the default of its kind in `transformers`.
/// Method: published files of Gemma 3 27B (its language model has 27.0 B parameters) and Starcoder 2 15B, cut down to what differs
/// from these.
#[test]
fn files_leave_out_defaults() -> Result<(), TopologiesError> {
    let gemma = r#"{"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": 5376,
        "intermediate_size": 21504, "num_attention_heads": 32, "num_hidden_layers": 62, "num_key_value_heads": 16,
        "head_dim": 128, "sliding_window": 1024, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}}"#;
    let (model, notes) = read(gemma, "gemma-3-27b/config.json")?;
    let billions = model.parameters().held() as f64 / 1e9;
    assert!((26.9..27.1).contains(&billions), "{billions}");
    assert_eq!((model.vocabulary, model.activation, model.tied), (262_208, Activation::GeGlu, true));
    assert!(notes.iter().any(|note| note.contains("`vocab_size` (262208)")), "{notes:?}");
    assert!(notes.iter().any(|note| hugging_face::window_of(note) == Some(1024)), "{notes:?}");
    let starcoder = r#"{"model_type": "starcoder2", "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 40,
        "num_attention_heads": 48, "num_key_value_heads": 4, "vocab_size": 49152, "max_position_embeddings": 16384,
        "tie_word_embeddings": false}"#;
    let (model, _) = read(starcoder, "starcoder2-15b/config.json")?;
    let billions = model.parameters().held() as f64 / 1e9;
    assert!((15.5..16.1).contains(&billions) && model.activation == Activation::Gelu, "{billions}");
    Ok(())
}

/// Goal: a mistake is said with its place and the way out.
#[test]
fn mistakes_are_said_with_the_way_out() {
    let text = builtin::text("mixtral-8x7b").unwrap();
    for (from, to, message, place) in [
        ("kv_heads = 8", "kv_head = 8", "the key `kv_head` is not known here", ":12:1"),
        ("layers = 32", "layers = 0", "layers is 0; expected a whole number from 1 to 10000", ":4:1"),
        ("kv_heads = 8", "kv_heads = 7", "32 heads cannot share 7 heads", ":12:1"),
        ("top_k = 2", "top_k = 9", "top_k is 9; expected a whole number from 1 to 8", ":20:1"),
        ("model/1", "model/2", "another schema", ":2:10"),
        ("head_dim = 128", "kv_lora = 512", "kv_heads, head_dim or head_norm beside kv_lora", ":10:1"),
        ("hidden = 4096", "hidden = 1048576\n", "parameters; at most 4e15", ":4:1"),
    ] {
        let big = from.starts_with("hidden");
        let changed = text.replace(from, to);
        let changed = if big {
            let wide = changed.replace("width = 14336", "width = 4000000").replace("count = 8", "count = 16384");
            wide.replace("layers = 32", "layers = 10000")
        } else {
            changed
        };
        assert_ne!(changed, text, "{from}");
        let rendered = file::read(&changed, "m.toml").unwrap_err().render();
        assert!(rendered.contains(message) && rendered.contains(&format!("m.toml{place}")), "{rendered}");
    }
    let error = load("llama3-80b").unwrap_err().render();
    assert!(error.contains("did you mean `llama3-8b`?") || error.contains("did you mean `llama3-70b`?"), "{error}");
    let error = load("/nonexistent/config.json").unwrap_err().render();
    assert!(error.contains("cannot be read"), "{error}");
}

proptest::proptest! {
    /// Goal: no text stops the readers or overflows a count. Method: configs with any numbers under the real keys.
    #[test]
    fn no_config_breaks_the_reader(
        kind in proptest::sample::select(hugging_face::MODEL_TYPES),
        numbers in proptest::collection::vec(proptest::num::u64::ANY, 24),
        shift in 0_u32..64,
        latent in proptest::bool::ANY,
    ) {
        let keys = [
            "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
            "vocab_size", "max_position_embeddings", "num_local_experts", "num_experts", "num_experts_per_tok",
            "moe_intermediate_size", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
            "n_routed_experts", "n_shared_experts", "n_embd", "n_head", "n_layer", "n_positions", "d_model",
        ];
        let mut text = format!("{{\"model_type\": \"{kind}\"");
        for (key, number) in keys.iter().zip(&numbers).filter(|(key, _)| latent || **key != "kv_lora_rank") {
            text.push_str(&format!(", \"{key}\": {}", number >> shift));
        }
        text.push('}');
        if let Ok((model, _)) = read(&text, "config.json") {
            proptest::prop_assert!(model.parameters().held() > 0);
            proptest::prop_assert!(model.flops(model.sequence, Mask::Full).training().is_finite());
        }
    }
}

//! Goal: what a model's shape makes of its files, of a GPU's memory and of the kernels that run.

use collcast_scenarios::memory::{Framework, plan};
use collcast_scenarios::parallel::Parallel;
use collcast_scenarios::transformer::hugging_face;
use collcast_scenarios::transformer::{Activation, Attention, LayerKind, Transformer, load};
use collcast_scenarios::work::{Piece, Repeated, layer};
use collcast_sim::compute::{Kernel, Tokens};

/// A model, and what its reader says of it but that sequences fill its window.
fn read(text: &str, file: &str) -> Result<(Transformer, Vec<String>), collcast_topologies::error::TopologiesError> {
    let (model, mut notes) = hugging_face::read(text, file)?;
    notes.retain(|note| !note.starts_with("sequences are as long as the whole window"));
    Ok((model, notes))
}

/// Goal: what kinds leave unsaid, and keys that change the shape, are read as `transformers` reads them. Totals are those
/// of the models' cards, in billions.
#[test]
fn kinds_have_their_own_defaults() {
    let mlp = |text: &str| {
        let (model, notes) = read(text, "config.json").unwrap();
        ((model.parameters().total() as f64 / 1e7).round() / 100.0, model.activation, notes)
    };
    let llama = r#""hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192, "tie_word_embeddings": false"#;
    let of = |kind: &str, more: &str| mlp(&format!(r#"{{"model_type": "{kind}", {more}{llama}}}"#));
    assert_eq!(of("llama", r#""hidden_act": "gelu", "#), (8.03, Activation::GeGlu, vec![]));
    // One with LayerNorm and GELU has no gate: Starcoder 2 has 3.03 billion parameters by its paper.
    let starcoder = r#"{"model_type": "starcoder2", "hidden_size": 3072, "intermediate_size": 12288, "num_hidden_layers": 30,
        "num_attention_heads": 24, "num_key_value_heads": 2, "vocab_size": 49152, "max_position_embeddings": 16384,
        "hidden_act": "gelu_pytorch_tanh", "norm_epsilon": 1e-5}"#;
    let (starcoder2, notes) = read(starcoder, "config.json").unwrap();
    assert!(starcoder2.parameters().total() == 3_030_371_328 && notes[0].contains("read as `gpt_neox`"), "{notes:?}");
    // `transformers` ties heads by default: a kind that does so is saved without the key, others say `false`.
    assert!(starcoder2.tied && notes[1].contains("true is assumed"), "{notes:?}");
    let (untied, notes) = read(&starcoder.replace("starcoder2", "gpt_neox"), "config.json").unwrap();
    assert!(!untied.tied && notes[0].contains("false is assumed"), "{notes:?}");
    // A model that sees has the key beside the table of its language model.
    let seeing = format!("{{\"tie_word_embeddings\": false, \"text_config\": {starcoder}}}");
    assert!(!read(&seeing, "config.json").unwrap().0.tied);
    let window = of("mistral", r#""sliding_window": 4096, "#).2;
    assert!(window.len() == 1 && window[0].contains("window of 4096"), "{window:?}");
    assert!(of("qwen2", r#""sliding_window": 4096, "use_sliding_window": false, "#).2.is_empty());
    let gemma = r#"{"model_type": "gemma", "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256, "vocab_size": 256000,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu", "max_position_embeddings": 8192}"#;
    assert_eq!(mlp(gemma), (8.54, Activation::GeGlu, vec![]));
    let neox = r#"{"model_type": "gpt_neox", "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 44,
        "num_attention_heads": 64, "vocab_size": 50432, "hidden_act": "gelu_fast", "max_position_embeddings": 2048,
        "tie_word_embeddings": false}"#;
    assert_eq!(mlp(neox), (20.55, Activation::Gelu, vec![]));
    let qwen2 = r#"{"model_type": "qwen2_moe", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 151936, "num_experts": 64,
        "num_experts_per_tok": 8, "moe_intermediate_size": 2560, "shared_expert_intermediate_size": 20480,
        "max_position_embeddings": 32768, "tie_word_embeddings": false}"#;
    assert_eq!(mlp(qwen2), (57.41, Activation::SwiGlu, vec![]));
    let (sparse, notes) =
        read(&qwen2.replace("\"num_experts\"", "\"decoder_sparse_step\": 2, \"num_experts\""), "c").unwrap();
    assert_eq!((sparse.dense_layers(), notes.len()), (14, 1), "{notes:?}");
    let scout = r#"{"model_type": "llama4_text", "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 202048, "num_local_experts": 16, "num_experts_per_tok": 1, "max_position_embeddings": 10485760}"#;
    assert_eq!(mlp(scout).0, 107.77);
    let uneven = llama.replace("\"num_attention_heads\": 32", "\"num_attention_heads\": 33");
    let error = read(&format!("{{\"model_type\": \"llama\", {uneven}}}"), "config.json").unwrap_err().render();
    assert!(error.contains("a multiple of num_attention_heads, 33"), "{error}");
}

/// Goal: experts of kinds that are not known are those of a known one by their keys, or the file is refused; a window that
/// was stretched after training is not what is trained on. Totals are those of the models' cards: GLM-4.5 355B, OLMoE 6.9B.
#[test]
fn unknown_kinds_keep_their_experts() {
    let glm = r#"{"model_type": "glm4_moe", "hidden_size": 5120, "num_hidden_layers": 92, "num_attention_heads": 96,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288, "moe_intermediate_size": 1536,
        "n_routed_experts": 160, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
        "vocab_size": 151552, "max_position_embeddings": 131072, "num_nextn_predict_layers": 1,
        "tie_word_embeddings": false}"#;
    let (model, notes) = hugging_face::read(glm, "config.json").unwrap();
    assert!((model.parameters().total() as f64 / 1e9 - 355.0).abs() < 5.0, "{}", model.parameters().total());
    assert!(model.sequence == 131_072 && notes.iter().any(|note| note.contains("--seq")), "{notes:?}");
    // Its module for a further token is counted, and what it is taken for is said.
    assert!(model.predictions == 1 && notes.iter().any(|note| note.contains("num_nextn_predict_layers")), "{notes:?}");
    let olmoe = r#"{"model_type": "olmoe", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16,
        "num_key_value_heads": 16, "intermediate_size": 1024, "num_experts": 64, "num_experts_per_tok": 8,
        "vocab_size": 50304, "max_position_embeddings": 4096, "tie_word_embeddings": false}"#;
    let (model, _) = read(olmoe, "config.json").unwrap();
    assert!((model.parameters().total() as f64 / 1e9 - 6.9).abs() < 0.1, "{}", model.parameters().total());
    let other = olmoe.replace("num_experts\"", "moe_num_experts\"");
    let error = read(&other, "config.json").unwrap_err().render();
    assert!(error.contains("moe_num_experts") && error.contains("collcast/model/1"), "{error}");
    for period in ["expert_layer_period", "attn_layer_period"] {
        let jamba = |every: u64| olmoe.replace("\"num_experts\"", &format!("\"{period}\": {every}, \"num_experts\""));
        let error = read(&jamba(2), "config.json").unwrap_err().render();
        assert!(error.contains(period) && error.contains("collcast/model/1"), "{error}");
        assert_eq!(read(&jamba(1), "config.json").unwrap().0, model);
    }
    let stretched = r#"{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
        "rope_scaling": {"factor": 8.0, "original_max_position_embeddings": 8192}}"#;
    assert_eq!(read(stretched, "config.json").unwrap().0.sequence, 8192);
    let before = r#""rope_scaling": {"factor": 8.0, "original_max_position_embeddings": 8192}"#;
    for keys in [
        r#""rope_parameters": {"rope_type": "llama3", "original_max_position_embeddings": 8192}"#,
        r#""rope_parameters": {"full_attention": {"original_max_position_embeddings": 8192}, "sliding_attention": {}}"#,
        r#""original_max_position_embeddings": 8192, "rope_scaling": {"type": "longrope"}"#,
    ] {
        let elsewhere = stretched.replace(before, keys);
        assert!(elsewhere != stretched);
        assert_eq!(read(&elsewhere, "config.json").unwrap().0.sequence, 8192, "{keys}");
    }
}

/// Goal: keys that make some layers unlike others are read as `transformers` reads them, whatever the kind. Totals are those
/// of the models' cards, in billions: Llama 4 Scout and Maverick without what sees, gpt-oss-20b, DeepSeek-V2-Lite, Gemma 2.
#[test]
fn layers_with_experts_are_those_that_keys_name() {
    let maverick = |experts: u32, keys: &str| {
        format!(
            r#"{{"model_type": "llama4", "text_config": {{"model_type": "llama4_text", "hidden_size": 5120,
            "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_hidden_layers": 48, "num_attention_heads": 40,
            "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 202048, "num_local_experts": {experts},
            "num_experts_per_tok": 1, "attention_chunk_size": 8192, "tie_word_embeddings": false, {keys}
            "max_position_embeddings": 8192}}}}"#
        )
    };
    let odd: Vec<u32> = (0..48).filter(|layer| layer % 2 == 1).collect();
    let gpt_oss = |types: &str| {
        format!(
            r#"{{"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24,
            "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
            "num_local_experts": 32, "num_experts_per_tok": 4, "experts_per_token": 4, "attention_bias": true,
            "hidden_act": "silu", "sliding_window": 128, "layer_types": ["full_attention", {types}],
            "max_position_embeddings": 131072, "rope_scaling": {{"original_max_position_embeddings": 4096}},
            "rms_norm_eps": 1e-5, "tie_word_embeddings": false}}"#
        )
    };
    let lite = r#"{"model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "num_hidden_layers": 27,
        "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 102400, "q_lora_rank": null, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64, "n_shared_experts": 2,
        "num_experts_per_tok": 6, "moe_intermediate_size": 1408, "first_k_dense_replace": 1, "moe_layer_freq": 1,
        "topk_method": "greedy", "n_group": 1, "topk_group": 1, "max_position_embeddings": 4096,
        "tie_word_embeddings": false}"#;
    let gemma2 = r#"{"model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 256000, "sliding_window": 4096,
        "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 8192}"#;
    let total = |text: &str| {
        let (model, notes) = read(text, "config.json").unwrap();
        ((model.parameters().total() as f64 / 1e7).round() / 100.0, model.dense_layers(), notes.join("; "))
    };
    let every = r#""interleave_moe_layer_step": 2,"#;
    let listed = format!(r#""interleave_moe_layer_step": 1, "moe_layers": {odd:?},"#);
    for (text, billions, dense, note) in [
        (maverick(16, ""), 107.77, 0, "window of 8192"),
        (maverick(128, every), 400.71, 24, "24 dense layers stand before"),
        (maverick(128, &listed), 400.71, 24, "24 dense layers stand before"),
        (gpt_oss(r#""sliding_attention""#), 20.91, 0, "window of 128"),
        (lite.to_owned(), 15.71, 1, "deepseek_v2"),
        (gemma2.to_owned(), 2.61, 26, "window of 4096"),
    ] {
        let (found, layers, notes) = total(&text);
        assert_eq!((found, layers), (billions, dense), "{text}");
        assert!(notes.contains(note), "{text}: {notes}");
    }
    assert!(!total(&gpt_oss(r#""full_attention""#)).2.contains("window of"), "no layer has one");
    // The same layers by other keys of other kinds, and shared experts by either name.
    let same = total(lite);
    let types: Vec<&str> = (0..27).map(|layer| if layer == 0 { "dense" } else { "sparse" }).collect();
    let freq: Vec<u32> = (0..27).map(|layer| u32::from(layer > 0)).collect();
    for keys in [
        r#""num_dense_layers": 1"#.to_owned(),
        r#""mlp_only_layers": [0]"#.to_owned(),
        format!(r#""mlp_layer_types": {types:?}"#),
        format!(r#""moe_layer_freq": {freq:?}"#),
    ] {
        let other = lite.replace("\"first_k_dense_replace\": 1, \"moe_layer_freq\": 1", &keys);
        assert_eq!(total(&other.replace("n_shared_experts", "num_shared_experts")), same, "{keys}");
    }
    for (key, step, dense) in
        [("decoder_sparse_step", 2, 14), ("moe_layer_frequency", 3, 18), ("moe_layer_freq", 2, 13)]
    {
        let other = lite.replace("\"first_k_dense_replace\": 1, \"moe_layer_freq\": 1", &format!("\"{key}\": {step}"));
        assert_eq!(total(&other).1, dense, "{key}");
    }
}

/// Goal: layers without attention, or with another, are refused by the key that says so: no count of them would be right.
#[test]
fn layers_that_are_not_counted_are_refused() {
    // Qwen3-Next-80B-A3B, and others by what differs.
    let next = |keys: &str| {
        format!(
            r#"{{"model_type": "qwen3_next", "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 48,
            "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 151936, {keys}
            "decoder_sparse_step": 1, "mlp_only_layers": [], "num_experts": 512, "num_experts_per_tok": 10,
            "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "max_position_embeddings": 32768,
            "tie_word_embeddings": false}}"#
        )
    };
    for (keys, key) in [
        (r#""full_attention_interval": 4, "linear_num_value_heads": 32,"#, "full_attention_interval"),
        (r#""layer_types": ["linear_attention", "full_attention"],"#, "layer_types"),
        (r#""linear_num_value_heads": 32,"#, "linear_num_value_heads"),
        (r#""mamba_d_state": 128,"#, "mamba_d_state"),
        (r#""hybrid_override_pattern": "M-M*","#, "hybrid_override_pattern"),
        (r#""linear_attn_config": {"kda_layers": [1]},"#, "linear_attn_config"),
        (r#""attn_type_list": [0, 1],"#, "attn_type_list"),
        (r#""swa_num_key_value_heads": 4,"#, "swa_num_key_value_heads"),
        (r#""moe_layer_interval": 2,"#, "moe_layer_interval"),
        (r#""mlp_layer_types": ["dense", "hash"],"#, "mlp_layer_types"),
        (r#""moe_layers": 2,"#, "moe_layers"),
        (r#""parallel_attn_mlp_res": true,"#, "parallel_attn_mlp_res"),
    ] {
        let error = read(&next(keys), "config.json").unwrap_err().render();
        assert!(error.contains(&format!("`{key}`")) || error.contains(&format!("\"{key}\"")), "{key}: {error}");
        assert!(error.contains("collcast/model/1"), "{error}");
    }
    // What they do not use says nothing.
    for keys in [
        "",
        r#""full_attention_interval": 1, "moe_layer_interval": 1, "attn_type_list": [1, 1],"#,
        r#""full_attention_interval": 4, "linear_num_value_heads": 32, "layer_types": ["full_attention"],"#,
    ] {
        assert!(read(&next(keys), "config.json").is_ok(), "{keys}");
    }
}

/// Goal: latent attention is read in a kind without experts. The total is that of the model's weights, 4.07 billion.
#[test]
fn latent_attention_needs_no_experts() {
    let minicpm = r#"{"model_type": "minicpm3", "hidden_size": 2560, "intermediate_size": 6400, "num_hidden_layers": 62,
        "num_attention_heads": 40, "num_key_value_heads": 40, "q_lora_rank": 768, "kv_lora_rank": 256,
        "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "hidden_act": "silu", "rms_norm_eps": 1e-5, "vocab_size": 73448,
        "max_position_embeddings": 32768}"#;
    let (latent, notes) = read(minicpm, "config.json").unwrap();
    let mla = Attention::Mla { heads: 40, q_lora: 768, kv_lora: 256, nope: 64, rope: 32, value: 64 };
    assert_eq!(latent.attention, mla);
    assert!((latent.parameters().total() as f64 / 1e9 - 4.07).abs() < 0.01, "{}", latent.parameters().total());
    assert!(latent.tied && notes.len() == 3, "{notes:?}");
    let given = minicpm.replace("\"rms_norm_eps\"", "\"v_head_dim\": 64, \"rms_norm_eps\"");
    assert_eq!(read(&given, "config.json").unwrap().0, latent);
    let plain = minicpm.replace("\"kv_lora_rank\": 256", "\"kv_lora_rank\": null");
    assert_eq!(read(&plain, "config.json").unwrap().0.attention.kv_heads(), 40);
}

/// Goal: heads of MPT that share keys and values are those of its own table.
#[test]
fn mpt_has_its_own_keys_for_groups() {
    let file = |attention: &str| {
        format!(
            r#"{{"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "max_seq_len": 2048,
            "vocab_size": 50368, "expansion_ratio": 4, "attn_config": {{"alibi": true, {attention}}}}}"#
        )
    };
    for (attention, kv_heads) in [
        (r#""attn_type": "multihead_attention""#, 32),
        (r#""attn_type": "multiquery_attention""#, 1),
        (r#""attn_type": "grouped_query_attention", "kv_n_heads": 8"#, 8),
    ] {
        assert_eq!(read(&file(attention), "config.json").unwrap().0.attention.kv_heads(), kv_heads, "{attention}");
    }
    let error = read(&file(r#""attn_type": "grouped_query_attention""#), "config.json").unwrap_err().render();
    assert!(error.contains("`kv_n_heads` is to be"), "{error}");
}

/// Goal: gradients are shared where one backward pass makes and sums them; several micro-batches hold all of them.
#[test]
fn gradients_of_several_micro_batches_are_whole() {
    let model = load("llama3-8b").unwrap().0;
    let gradients = |layout: &str, framework: Framework| {
        plan(&model, &Parallel::parse(layout).unwrap(), &framework.software()).unwrap().worst().gradients
    };
    let megatron = |layout| gradients(layout, Framework::Megatron);
    assert_eq!(megatron("dp=8,zero=2,gbs=16"), megatron("dp=8,zero=1,gbs=16"));
    assert_eq!(megatron("dp=8,zero=2,gbs=8") * 8, megatron("dp=8,zero=1,gbs=8"));
    let flat = |layout| gradients(layout, Framework::LlmFoundry);
    assert_eq!(flat("dp=8,zero=2,gbs=16"), flat("dp=8,zero=2,gbs=8"));
}

/// Goal: weights of experts without a token are not read: one token of Qwen3 30B goes to 8 of 128, a thousand to all.
#[test]
fn few_tokens_leave_experts_alone() {
    let model = load("qwen3-30b-a3b").unwrap().0;
    let experts = |tokens: u64| {
        let parallel = Parallel { sequence: Some(tokens), ..Parallel::default() };
        let passes = layer(&model, LayerKind::Experts, &parallel, &Framework::Megatron.software());
        let groups = passes.forward.iter().find_map(|piece| match piece {
            Piece::Kernel(Repeated { kernel: Kernel::Product(product), .. }) => match product.tokens {
                Tokens::Even { groups, .. } => Some(groups),
                _ => None,
            },
            _ => None,
        });
        groups.unwrap()
    };
    // Of 16 tokens' 128 rows each misses an expert with a chance of 127/128.
    assert_eq!([1, 16, 1000].map(experts), [8, 81, 128]);
}

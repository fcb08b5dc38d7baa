//! Built-in scenarios: files to run and to start from.

/// Name and text of each.
const BUILTIN: &[(&str, &str)] = &[
    ("ten-and-twelve", include_str!("../data/ten-and-twelve.toml")),
    ("ddp-buckets", include_str!("../data/ddp-buckets.toml")),
    ("backward-100mb", include_str!("../data/backward-100mb.toml")),
    ("gpt-ddp", include_str!("../data/gpt-ddp.toml")),
    ("gpt-fsdp", include_str!("../data/gpt-fsdp.toml")),
    ("gpt-tensor", include_str!("../data/gpt-tensor.toml")),
    ("gpt-pipeline", include_str!("../data/gpt-pipeline.toml")),
    ("megatron-128", include_str!("../data/megatron-128.toml")),
    ("megatron-1024", include_str!("../data/megatron-1024.toml")),
];

/// Name and text of each scenario of serving and transfers.
const SERVING: &[(&str, &str)] = &[
    ("kv-1gb", include_str!("../data/serving/kv-1gb.toml")),
    ("offload-or-recompute", include_str!("../data/serving/offload-or-recompute.toml")),
    ("llama3-70b-2x8", include_str!("../data/serving/llama3-70b-2x8.toml")),
    ("deepseek-v3-ep", include_str!("../data/serving/deepseek-v3-ep.toml")),
    ("mooncake-qwen3-8b", include_str!("../data/serving/mooncake-qwen3-8b.toml")),
];

/// Name and text of each built-in scenario of serving and transfers.
pub fn serving() -> &'static [(&'static str, &'static str)] {
    SERVING
}

/// The text of a built-in scenario.
pub fn text(name: &str) -> Option<&'static str> {
    BUILTIN.iter().find(|(n, _)| *n == name).map(|(_, text)| *text)
}

/// Names of all of them.
pub fn names() -> impl Iterator<Item = &'static str> {
    BUILTIN.iter().map(|(name, _)| *name)
}

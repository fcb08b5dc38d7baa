//! Models that are known by name: files like any other, compiled in.

macro_rules! builtins {
    ($($name:literal),+ $(,)?) => {
        const BUILTIN: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../../models/", $name, ".toml")))),+
        ];
    };
}

builtins!(
    "llama3-1b",
    "llama3-8b",
    "llama3-70b",
    "llama3-405b",
    "gpt3-175b",
    "gpt-22b",
    "gpt-175b",
    "gpt-530b",
    "gpt-1t",
    "nemotron4-15b",
    "nemotron4-340b",
    "mixtral-8x7b",
    "mixtral-8x22b",
    "deepseek-v3",
    "qwen3-8b",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b",
    "mpt-1b",
    "mpt-3b",
    "mpt-7b",
    "mpt-13b",
    "mpt-30b",
    "mpt-70b",
);

/// The text of a built-in model, whatever the case of its name.
pub fn text(name: &str) -> Option<&'static str> {
    BUILTIN.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, text)| *text)
}

/// Names of all of them.
pub fn names() -> impl Iterator<Item = &'static str> {
    BUILTIN.iter().map(|(name, _)| *name)
}

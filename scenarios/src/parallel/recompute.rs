//! What the backward pass computes again, so that it need not be kept.

use std::fmt;

use serde::{Serialize, Serializer};

/// A part of a layer that is computed again by itself, by its name in Megatron-LM's `--recompute-modules`.
///
/// Source: Megatron-LM d98e8a64dd, `megatron/core/transformer/transformer_config.py`, `recompute_modules`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Module {
    /// Attention between its products: scores, softmax, product with values.
    CoreAttn,
    /// Queries, keys and values from the latents of MLA, with rotation.
    MlaUpProj,
    /// Norms whose output is a tensor of its own.
    Layernorm,
    /// The MLP of a layer without experts.
    Mlp,
    /// The activation function of routed experts.
    MoeAct,
    /// All experts of a layer, with the exchanges of their tokens.
    Moe,
    /// Shared experts.
    SharedExperts,
}

impl Module {
    /// All of them, by name.
    pub const ALL: [(&'static str, Self); 7] = [
        ("core_attn", Self::CoreAttn),
        ("mla_up_proj", Self::MlaUpProj),
        ("layernorm", Self::Layernorm),
        ("mlp", Self::Mlp),
        ("moe_act", Self::MoeAct),
        ("moe", Self::Moe),
        ("shared_experts", Self::SharedExperts),
    ];
}

/// A set of [`Module`]s.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Modules(u8);

impl Modules {
    /// None of them.
    pub const NONE: Self = Self(0);

    /// Those of a list.
    pub const fn of(list: &[Module]) -> Self {
        let (mut bits, mut at) = (0, 0);
        while at < list.len() {
            bits |= 1 << list[at] as u8;
            at += 1;
        }
        Self(bits)
    }

    /// These and one more.
    #[must_use]
    pub const fn with(self, module: Module) -> Self {
        Self(self.0 | 1 << module as u8)
    }

    /// Whether one of them is in both.
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether it has this one.
    pub const fn has(self, module: Module) -> bool {
        self.0 & 1 << module as u8 != 0
    }
}

/// Names in the order of [`Module::ALL`], joined by `+`.
impl fmt::Display for Modules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> =
            Module::ALL.into_iter().filter(|(_, one)| self.has(*one)).map(|(name, _)| name).collect();
        f.write_str(&names.join("+"))
    }
}

impl Serialize for Modules {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What the backward pass computes again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Recompute {
    /// Nothing.
    None,
    /// What is cheap for its bytes; the framework says what.
    Selective,
    /// These parts of every layer.
    Modules(Modules),
    /// Every layer, from its input.
    Full,
}

impl Recompute {
    /// What [`Self::parse`] takes.
    pub const EXPECTED: &'static str = "none, selective, full or modules joined by +: core_attn, mla_up_proj, layernorm, mlp, moe_act, moe, shared_experts";

    /// Reads `none`, `selective`, `full`, or modules such as `mla_up_proj+mlp`.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "none" => Some(Self::None),
            "selective" => Some(Self::Selective),
            "full" => Some(Self::Full),
            _ => text
                .split('+')
                .map(|name| Module::ALL.into_iter().find(|known| known.0 == name.trim()).map(|known| known.1))
                .try_fold(Modules::NONE, |set, module| module.map(|module| set.with(module)))
                .map(Self::Modules),
        }
    }
}

/// As [`Recompute::parse`] reads it.
impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Selective => f.write_str("selective"),
            Self::Full => f.write_str("full"),
            Self::Modules(modules) => modules.fmt(f),
        }
    }
}

impl Serialize for Recompute {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

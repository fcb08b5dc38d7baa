//! Whether a model can be laid out so, and what else can be where it cannot.

use std::fmt;

use thiserror::Error;

use super::nearest::layouts;
use super::{Parallel, Violation};
use crate::transformer::Transformer;

/// A layout that a model does not allow.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub struct Refused {
    /// All rules that it breaks.
    pub violations: Vec<Violation>,
    /// The nearest layouts of as many ranks that break none, those with the fewest changes first.
    pub nearest: Vec<Parallel>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let broken: Vec<&str> = self.violations.iter().map(|v| v.message.as_str()).collect();
        f.write_str(&broken.join("; "))?;
        let near: Vec<String> = self.nearest.iter().map(Parallel::to_string).collect();
        if near.is_empty() { Ok(()) } else { write!(f, "; these work: {}", near.join(" or ")) }
    }
}

impl Parallel {
    /// Whether a model can be laid out so.
    ///
    /// # Errors
    /// Every rule that is broken, with its numbers, and the nearest layouts that work.
    pub fn check(&self, model: &Transformer) -> Result<(), Refused> {
        self.check_paired(model, false)
    }

    /// The same; `paired` where forward passes run beside backward passes of other micro-batches (Megatron-LM's
    /// `overlap_moe_expert_parallel_comm`), which has rules of its own.
    ///
    /// # Errors
    /// As of [`Self::check`].
    pub fn check_paired(&self, model: &Transformer, paired: bool) -> Result<(), Refused> {
        let violations = self.violations(model, paired);
        if violations.is_empty() {
            return Ok(());
        }
        let nearest = layouts(self, (model, paired), &violations);
        Err(Refused { violations, nearest })
    }
}

//! What is wrong, why it matters, and the way out.

use serde::{Deserialize, Serialize};

use super::setting::Place;

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// A job fails, gives wrong sums, or does not do what the setting asks for.
    Error,
    /// It costs time, or will under conditions that are common.
    Warning,
    /// Worth knowing.
    Note,
}

impl Severity {
    /// Its name in files and on the terminal.
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

/// One finding.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Finding {
    /// Name of the rule.
    pub rule: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// Where.
    #[serde(flatten)]
    pub place: Place,
    /// What is wrong.
    pub what: String,
    /// Why it matters.
    pub why: String,
    /// What to do.
    pub way_out: String,
}

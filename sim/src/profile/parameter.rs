//! A value of a constant, and where it is from.

use serde::{Deserialize, Serialize};

/// Where a value comes from, the best evidence first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OriginKind {
    /// Measured on the machine the profile is for.
    Measured,
    /// Fitted to measurements of such machines, with all others at once.
    Fitted,
    /// One row of a benchmark sweep set it; that row is no evidence for the model any more.
    Anchor,
    /// From a publication, a data sheet or another program's source.
    Cited,
    /// An engineering estimate.
    Assumed,
}

impl OriginKind {
    /// Its name in files and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Fitted => "fitted",
            Self::Anchor => "anchor",
            Self::Cited => "cited",
            Self::Assumed => "assumed",
        }
    }
}

/// A constant's value and where it is from.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameter {
    /// The value, in the unit of its [`super::Constant`].
    pub value: f64,
    /// Kind of origin.
    pub origin: OriginKind,
    /// File, row, paper or data sheet.
    pub source: String,
    /// 90% interval of a fitted value.
    #[serde(default)]
    pub interval: Option<[f64; 2]>,
}

//! What was measured beside what is forecast.

use serde::Serialize;

/// A measured kernel beside its forecast. The error is predicted over measured, less 1.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct KernelRow {
    /// File, as it was named.
    pub file: String,
    /// Line in it, from 1.
    pub line: u64,
    /// What kind of kernel it is.
    pub group: String,
    /// Whether it is of the fifth of all shapes that no fit of ours sees.
    pub left_out: bool,
    /// Unit of both figures: `us` of a call, or `B`.
    pub unit: &'static str,
    /// What was measured.
    pub measured: f64,
    /// The forecast.
    pub predicted: f64,
    /// Its error.
    pub error: f64,
}

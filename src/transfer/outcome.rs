//! What came of a transfer.

use collcast_reports::model::Input;
use serde::Serialize;

/// One way.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// Its back ends, joined by `+`.
    pub path: String,
    /// Hops of the first pair's way, by stage.
    pub stages: usize,
    /// Seconds from the start until all receivers know that all of it is there.
    pub seconds: f64,
    /// Seconds of those after the prefill's end.
    pub exposed_s: f64,
    /// GB/s of all pairs together, over the whole time.
    pub gb_per_s: f64,
    /// What is used most.
    pub bound: String,
    /// Part of the time that it is busy.
    pub busy: f64,
    /// Where its rate is assumed: from what.
    pub assumed: Option<String>,
    /// With a collective beside: seconds without it, and how much longer the collective takes than alone, of its time.
    pub beside: Option<(f64, f64)>,
    /// Whether its contiguous pieces are copied, and a copy for each would take time that is not counted.
    pub pieces_left_out: bool,
    /// Whether NIXL takes it by itself.
    pub nixl: bool,
}

/// A transfer by each way, the fastest first; those whose pieces are not counted come last.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Outcome {
    /// The machine.
    pub machine: String,
    /// From where.
    pub from: String,
    /// To where.
    pub to: String,
    /// Bytes of all pairs.
    pub bytes: u64,
    /// Pairs of places.
    pub pairs: usize,
    /// Files that were read.
    pub inputs: Vec<Input>,
    /// What was assumed.
    pub notes: Vec<String>,
    /// The ways.
    pub rows: Vec<Row>,
}

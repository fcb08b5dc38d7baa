//! What users see, and what workers do.

use collcast_reports::model::Input;
use collcast_scenarios::serving::prefix::Reuse;
use collcast_scenarios::serving::summary::{Objective, Summary};
use serde::Serialize;

use super::alone::Alone;
use super::fleet::Fleet;

/// A kind of worker.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct WorkerRow {
    /// What it does.
    pub role: &'static str,
    /// How many there are.
    pub workers: u32,
    /// GPUs of each.
    pub gpus: u32,
    /// Part of the time in which they ran steps, the mean of all.
    pub busy: f64,
    /// Tokens that the cache of each holds.
    pub cache_tokens: u64,
    /// Most that was in use at one, of all.
    pub cache_peak: f64,
}

/// What one request waited for, in seconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Phase {
    /// Which request: that whose whole time is above so many percent of all.
    pub percentile: u32,
    /// It arrived at.
    pub at: f64,
    /// For its turn.
    pub queue: f64,
    /// Its prompt's steps.
    pub prefill: f64,
    /// For memory at its decoder, and its cache's way there.
    pub hand_off: f64,
    /// Its other tokens.
    pub decode: f64,
}

/// A run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Outcome {
    /// The model.
    pub model: String,
    /// The machine.
    pub machine: String,
    /// Who served.
    pub fleet: Fleet,
    /// What was asked for.
    pub objective: Objective,
    /// Files that were read.
    pub inputs: Vec<Input>,
    /// What was assumed.
    pub notes: Vec<String>,
    /// What of NCCL's settings has a surprising effect, or is left out.
    pub warnings: Vec<String>,
    /// In numbers.
    pub summary: Summary,
    /// What prefixes did, where prompts shared some: tokens.
    pub reuse: Option<Reuse>,
    /// Workers by kind.
    pub workers: Vec<WorkerRow>,
    /// Single requests.
    pub phases: Vec<Phase>,
    /// By which way caches go, where they do.
    pub path: Option<String>,
    /// What takes how long without other requests.
    pub alone: Alone,
}

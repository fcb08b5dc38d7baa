//! What to take in place of NCCL's choice.

use collcast_reports::model::{Input, Status};
use serde::Serialize;

use super::advice::{Range, Regret};
use super::tuned::{Advice, Tuned};
use super::variables::Variables;

/// Which machine settings are for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// Hosts.
    pub nodes: u32,
    /// Ranks of the calls.
    pub ranks: u32,
}

/// What to take in place of NCCL's choice.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Which machine the settings are for.
    pub machine: Machine,
    /// The calls, by collective and size: those asked about, and those of sizes below and above that settings hold for too.
    pub calls: Vec<Tuned>,
    /// What to take over which sizes.
    pub ranges: Vec<Range>,
    /// What is lost without it.
    pub regrets: Vec<Regret>,
    /// Variables that slow no size.
    pub variables: Variables,
    /// Table for NVIDIA's example tuner plugin (`NCCL_TUNER_CONFIG_FILE`).
    pub tuner_csv: String,
    /// The variables as a file.
    pub nccl_env: String,
    /// Files that it rests on.
    pub inputs: Vec<Input>,
    /// What was assumed.
    pub notes: Vec<String>,
    /// What to know before the settings are used.
    pub warnings: Vec<String>,
    /// How far to trust the forecasts.
    pub status: Status,
    /// The same in words.
    pub confidence: String,
    /// What they rest on: `predicted`, `cited` or `extrapolated`.
    pub basis: String,
}

impl Outcome {
    /// The calls that were asked about.
    pub fn asked(&self) -> impl Iterator<Item = &Tuned> {
        self.calls.iter().filter(|call| !call.beyond)
    }

    /// The calls for which a change is advised, with the change.
    pub fn changes(&self) -> impl Iterator<Item = (&Tuned, &Advice)> {
        self.calls.iter().filter_map(|call| Some((call, call.advice.as_ref()?)))
    }
}

//! Measured sizes of a call, beside what is expected of each.

use collcast_hwbackend::read::End;
use collcast_sim::collective::{Collective, Launch};
use collcast_sim::measurement::{Measurement, Settings};

use super::kind::{Doubt, Kind};
use super::suspects::Used;

/// One size of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Point {
    /// Size as nccl-tests counts it.
    pub size_bytes: u64,
    /// Times that were measured, in us: out of place, in place, and repeats.
    pub measured_us: Vec<f64>,
    /// Which of these had input and output in one buffer.
    pub in_place: Vec<bool>,
    /// The time to expect, in us.
    pub expected_us: f64,
    /// How far times of such rows lie from what is expected by the profile's own account, as a standard deviation of the
    /// logarithm; 0 where it says nothing of them.
    pub doubt: f64,
}

/// Measured sizes of one call, beside what is expected of each.
#[derive(Clone, PartialEq, Debug)]
pub struct Run {
    /// The file, as the user named it.
    pub file: String,
    /// The run's name.
    pub name: String,
    /// What was run.
    pub collective: Collective,
    /// Ranks.
    pub ranks: u32,
    /// Hosts, where that is known.
    pub hosts: Option<u32>,
    /// What its rows say of how they ran, by name.
    pub how: Vec<(&'static str, String)>,
    /// What it ran on, as far as its log names it.
    pub used: Used,
    /// How it ended: one that did not end well is no pass.
    pub end: End,
    /// How kernels were started.
    pub launch: Launch,
    /// What joins its ranks, where a forecast is expected.
    pub kind: Option<Kind>,
    /// Its sizes, ascending.
    pub points: Vec<Point>,
    /// How far healthy machines lie from what is expected.
    pub doubt: Doubt,
}

/// What runs of one name are told apart by.
pub(crate) type Said = Vec<(&'static str, String)>;

/// What a row says of how it ran, beside its call and size.
pub(crate) fn how(row: &Measurement) -> Said {
    let settings = &row.settings;
    let said = [
        ("launch", row.launch.map(|launch| launch.to_string())),
        ("algorithm", settings.nccl_algo.clone().or_else(|| settings.algorithm.map(|a| a.to_string()))),
        ("protocol", settings.protocol.map(|p| p.to_string())),
        ("channels", settings.channels.map(|count| count.to_string())),
        ("dtype", row.dtype.map(|dtype| dtype.to_string())),
        ("op", row.op.map(|op| op.to_string())),
        ("root", row.root.map(|root| root.to_string())),
    ];
    said.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// What a run with these settings used.
pub(super) fn used(settings: &Settings) -> Used {
    let names = |names: &[String]| names.iter().cloned().collect();
    Used {
        hosts: names(&settings.host_names),
        nics: names(&settings.nics),
        gpus: settings.gpus.iter().cloned().collect(),
    }
}

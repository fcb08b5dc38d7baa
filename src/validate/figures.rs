//! Rows as they are told, and error figures of groups of them.

use std::collections::BTreeMap;

use collcast_hwbackend::read::{self, FileReport};
use collcast_sim::collective::{Algorithm, Collective, Launch, Protocol};
use collcast_sim::measurement::{PeerAccess, Settings};
use collcast_sim::predict::Choice;
use serde::Serialize;

use super::judged::Judged;
use crate::bands::{BANDS, band};
use crate::query;
use crate::statistics::{self, median};

/// A measured row beside its forecast. Errors are predicted over measured, less 1.
#[derive(Clone, Debug, Serialize)]
pub struct JudgedRow {
    /// File, as the user named it.
    pub file: String,
    /// Line in it, from 1.
    pub line: u64,
    /// The run that it belongs to.
    pub run: String,
    /// What was run.
    pub collective: Collective,
    /// Ranks.
    pub ranks: u32,
    /// Hosts, where the file says.
    pub hosts: Option<u32>,
    /// Size, as nccl-tests counts it.
    pub size_bytes: u64,
    /// Whether input and output were one buffer.
    pub in_place: bool,
    /// How kernels were started, as the file says or by default.
    pub launch: Launch,
    /// Whether the user forced algorithm and protocol.
    pub forced: bool,
    /// The algorithm that ran, as forced, as NCCL said or as its cost table chooses.
    pub algorithm: Algorithm,
    /// The protocol, likewise.
    pub protocol: Protocol,
    /// Channels of the forecast.
    pub channels: u32,
    /// Measured time of one operation.
    pub measured_us: f64,
    /// The forecast.
    pub predicted_us: f64,
    /// Its error.
    pub error: f64,
    /// Lower end of its interval.
    pub low_us: f64,
    /// Upper end of its interval.
    pub high_us: f64,
    /// What NCCL's own cost table says of the same algorithm and protocol, where it does.
    pub nccl_model_us: Option<f64>,
    /// The closest forecast of those that may have run, where that was asked for.
    pub closest: Option<Closest>,
    /// What bounds the forecast.
    pub bound_by: &'static str,
    /// What the row says of its settings.
    #[serde(skip)]
    pub settings: Settings,
}

/// The forecast that is closest to a row.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Closest {
    /// Of this algorithm.
    pub algorithm: Algorithm,
    /// Of this protocol.
    pub protocol: Protocol,
    /// Its time.
    pub predicted_us: f64,
    /// Its error.
    pub error: f64,
}

impl JudgedRow {
    /// What its run asked NCCL for, in words.
    pub fn asked(&self) -> String {
        let Settings { algorithm, protocol, channels, buffers, .. } = self.settings;
        let mut asked = query::asked(
            algorithm.map_or(Choice::Auto, Choice::Forced),
            protocol.map_or(Choice::Auto, Choice::Forced),
            channels,
        );
        if let Some(threads) = self.settings.threads {
            asked.push_str(&format!(", {threads} threads"));
        }
        // A call uses the FIFOs of its protocol.
        let fifos = [(Protocol::Ll, buffers.ll), (Protocol::Ll128, buffers.ll128), (Protocol::Simple, buffers.simple)];
        for (of, size) in fifos {
            match (size, protocol) {
                (Some(size), Some(forced)) if forced == of => asked.push_str(&format!(", {size} FIFO")),
                (Some(size), None) => asked.push_str(&format!(", {size} FIFO of {of}")),
                _ => {}
            }
        }
        match self.settings.peer_access {
            PeerAccess::On => {}
            PeerAccess::Off => asked.push_str(", P2P off"),
            PeerAccess::Net => asked.push_str(", P2P over NIC"),
        }
        asked
    }
}

impl From<&Judged<'_>> for JudgedRow {
    fn from(judged: &Judged<'_>) -> Self {
        let (row, p) = (judged.row, &judged.prediction);
        let closest = judged.closest.as_ref().zip(judged.closest_error()).map(|(c, error)| Closest {
            algorithm: c.algorithm,
            protocol: c.protocol,
            predicted_us: c.time.as_us(),
            error,
        });
        Self {
            file: row.origin.file.clone(),
            line: row.origin.line,
            run: row.run.clone(),
            collective: row.collective,
            ranks: row.ranks,
            hosts: row.hosts,
            size_bytes: row.size.0,
            in_place: row.in_place,
            launch: judged.launch(),
            forced: row.forced(),
            algorithm: p.algorithm,
            protocol: p.protocol,
            channels: p.plan.channels,
            measured_us: row.time.as_us(),
            predicted_us: p.time.as_us(),
            error: judged.error(),
            low_us: judged.interval_us.0,
            high_us: judged.interval_us.1,
            nccl_model_us: judged.nccl_us,
            closest,
            bound_by: p.bound_by(),
            settings: row.settings.clone(),
        }
    }
}

/// Rows that are comparable, and how well they are forecast.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Group {
    /// How kernels were started.
    pub launch: Launch,
    /// Algorithm and protocol where they were forced, else the collective.
    pub group: String,
    /// Range of sizes: one of [`BANDS`].
    pub band: &'static str,
    /// Whether algorithm and protocol were forced.
    pub forced: bool,
    /// Its errors.
    #[serde(flatten)]
    pub stats: Stats,
}

/// The groups, those where NCCL chose first.
pub(super) fn groups(judged: &[Judged<'_>]) -> Vec<Group> {
    let mut groups: BTreeMap<(bool, Launch, String, u8), Vec<&Judged<'_>>> = BTreeMap::new();
    for j in judged {
        let forced = j.row.forced();
        let group = if forced {
            format!("{} {}", j.prediction.algorithm, j.prediction.protocol)
        } else {
            format!("{} as NCCL chose", j.row.collective)
        };
        groups.entry((forced, j.launch(), group, band(j.row.size.0))).or_default().push(j);
    }
    let group = |((forced, launch, group, band), rows): ((bool, Launch, String, u8), Vec<&Judged<'_>>)| Group {
        launch,
        group,
        band: BANDS[usize::from(band)],
        forced,
        stats: Stats::of(&rows),
    };
    groups.into_iter().map(group).collect()
}

/// Errors of a set of rows, as fractions, and how forecasts did beside them; zeros for none.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Stats {
    /// How far off the forecasts were.
    #[serde(flatten)]
    pub errors: statistics::Stats,
    /// Share of rows whose measured time lies in the interval of the forecast.
    pub coverage: f64,
    /// The same of NCCL's own cost table, where it has a time for all the rows.
    pub nccl_model: Option<Median>,
    /// The same of the closest forecasts, where they were asked for.
    pub closest: Option<Median>,
}

/// A median error.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Median {
    /// Median of the errors without their signs, as a fraction.
    pub median_abs_error: f64,
}

impl Stats {
    pub(super) fn of(rows: &[&Judged<'_>]) -> Self {
        let count = rows.len();
        if count == 0 {
            return Self::default();
        }
        // Of all rows or of none: a median over some would be compared with one over all.
        let median_of_all = |of: fn(&Judged<'_>) -> Option<f64>| {
            let errors: Vec<f64> = rows.iter().filter_map(|j| of(j)).map(f64::abs).collect();
            (errors.len() == count).then(|| Median { median_abs_error: median(errors) })
        };
        let inside = |j: &&&Judged<'_>| (j.interval_us.0..=j.interval_us.1).contains(&j.row.time.as_us());
        let inside = rows.iter().filter(inside).count();
        Self {
            errors: statistics::Stats::of(rows.iter().map(|j| j.error())),
            coverage: inside as f64 / count as f64,
            nccl_model: median_of_all(|j| Some(j.nccl_us? / j.row.time.as_us() - 1.0)),
            #[expect(clippy::redundant_closure_for_method_calls, reason = "the method alone is of one lifetime")]
            closest: median_of_all(|j| j.closest_error()),
        }
    }
}

/// A file, and what became of it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct File {
    /// The file, as named or met.
    pub path: String,
    /// Rows that it gave.
    pub rows: usize,
    /// What became of it.
    pub outcome: FileOutcome,
    /// What there is to tell of what was read, worst first.
    pub notes: Vec<String>,
}

/// Something of a file that nothing was held against.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Unjudged {
    /// The file, as named or met.
    pub file: String,
    /// What it is, and why.
    pub why: String,
}

/// What became of a file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FileOutcome {
    /// It gave measurements.
    Read,
    /// It describes the data files of its stem.
    Metadata,
    /// It holds no measurements, for the reason given.
    NotUnderstood(String),
    /// It holds measurements, but cannot be trusted or is broken.
    Refused(String),
}

impl From<&FileReport> for File {
    fn from(file: &FileReport) -> Self {
        let outcome = match &file.outcome {
            read::Outcome::Read => FileOutcome::Read,
            read::Outcome::Metadata => FileOutcome::Metadata,
            read::Outcome::NotUnderstood(reason) => FileOutcome::NotUnderstood(reason.clone()),
            read::Outcome::Refused(error) => FileOutcome::Refused(error.to_string()),
        };
        let told = outcome == FileOutcome::Read && !file.notes.is_empty();
        Self {
            path: file.path.display().to_string(),
            rows: file.rows,
            outcome,
            notes: if told { file.warnings() } else { Vec::new() },
        }
    }
}

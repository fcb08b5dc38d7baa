//! What logs say of their runs, and rows are not matched by: the version of NCCL, the GPUs, variables.

use std::collections::{BTreeMap, BTreeSet};

use collcast_hwbackend::read::{FileReport, ReadReport};
use collcast_sim::collective::Collective;
use collcast_sim::measurement::Measurement;
use serde::Serialize;

use super::sets::{Difference, NOT_SAID, Values, throughout};

/// Variables that settings of rows say, by which these are matched.
const MATCHED: [&str; 6] =
    ["NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE", "NCCL_NTHREADS"];
/// Ends of the names of variables that say a number of channels together: rows are matched by that.
const CHANNELS: [&str; 2] = ["_NCHANNELS", "_CTAS"];
/// Variables of logs, which change no call.
const OF_LOGS: &str = "NCCL_DEBUG";

/// What the GPUs of a run are called.
const GPU: &str = "GPU";

/// Something that one set has several values of, in rows of one collective.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Mixed {
    /// What logs say.
    pub setting: String,
    /// Values in A and in B.
    pub values: [BTreeSet<String>; 2],
}

/// A run of a collective, and what its log says.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Run<'a> {
    collective: Collective,
    version: Option<&'a str>,
    gpus: &'a BTreeSet<String>,
    env: &'a BTreeMap<String, String>,
    /// Rows are matched by its channels.
    has_channels: bool,
}

impl Run<'_> {
    fn variable(&self, name: &str) -> String {
        let otherwise = if self.env.is_empty() { NOT_SAID } else { "unset" };
        self.env.get(name).map_or(otherwise, String::as_str).to_owned()
    }

    fn is_unmatched(&self, name: &str) -> bool {
        let of_channels = self.has_channels && CHANNELS.iter().any(|end| name.ends_with(end));
        name.starts_with("NCCL_") && !name.starts_with(OF_LOGS) && !MATCHED.contains(&name) && !of_channels
    }
}

/// In what the logs of some runs differ throughout from those of others, where both say it. GPUs have names of several forms.
pub(crate) fn differences(sides: [&ReadReport; 2]) -> Vec<Difference> {
    let (mut differ, _) = said(sides.map(|read| (&read.files[..], &read.measurements[..])));
    let is_said = |value: &str| value != NOT_SAID;
    differ.retain(|one| one.setting != GPU && is_said(&one.a) && is_said(&one.b));
    differ
}

/// What differs throughout, and what is mixed.
pub(super) fn said(sides: [(&[FileReport], &[Measurement]); 2]) -> (Vec<Difference>, Vec<Mixed>) {
    let runs = sides.map(runs);
    let all = || runs.iter().flatten();
    let names = all().flat_map(|run| run.env.keys().filter(|name| run.is_unmatched(name)));
    let names: BTreeSet<&str> = names.map(String::as_str).collect();
    let gpus = |run: &Run<'_>| match run.gpus.len() {
        0 => NOT_SAID.to_owned(),
        _ => run.gpus.iter().map(String::as_str).collect::<Vec<_>>().join(" and "),
    };
    let mut told = vec![
        ("NCCL version", values(&runs, |run| run.version.unwrap_or(NOT_SAID).to_owned())),
        (GPU, values(&runs, gpus)),
    ];
    told.extend(names.into_iter().map(|name| (name, values(&runs, |run| run.variable(name)))));
    let mixed = told.iter().filter_map(|(setting, values)| {
        let mixed = values.values().find(|values| values.iter().any(|side| side.len() > 1))?;
        Some(Mixed { setting: (*setting).to_owned(), values: mixed.clone() })
    });
    (told.iter().flat_map(|(setting, values)| throughout(setting, values)).collect(), mixed.collect())
}

/// The runs of a set, those alike once.
fn runs<'a>((files, rows): (&'a [FileReport], &'a [Measurement])) -> BTreeSet<Run<'a>> {
    let files: BTreeMap<String, &'a FileReport> =
        files.iter().map(|file| (file.path.display().to_string(), file)).collect();
    let run = |row: &'a Measurement| {
        let file = files.get(&row.origin.file)?;
        Some(Run {
            collective: row.collective,
            version: row.settings.nccl.as_deref().or(file.nccl.as_deref()),
            gpus: &file.gpus,
            env: file.env_of(&row.run),
            has_channels: row.settings.channels.is_some(),
        })
    };
    rows.iter().filter_map(run).collect()
}

/// What each collective has in A and in B.
fn values(runs: &[BTreeSet<Run<'_>>; 2], value: impl Fn(&Run<'_>) -> String) -> Values {
    let mut values = Values::new();
    for (side, runs) in runs.iter().enumerate() {
        for run in runs {
            values.entry(run.collective).or_default()[side].insert(value(run));
        }
    }
    values
}

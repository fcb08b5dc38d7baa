//! How far forecasts are off from measured files, in one number.

use std::path::PathBuf;

use collcast_hwbackend::read::{FileReport, ReadOptions, read_paths};
use collcast_sim::profile::Profile;
use collcast_sim::topology::Topology;

use super::figures::Stats;
use super::given;
use super::judged::{Judged, can_be_asked, judge};
use crate::error::Error;
use crate::files::content_hash;
use crate::watch::Watch;

/// How forecasts hold against measurements.
#[derive(Clone, Debug)]
pub struct MedianError {
    /// Rows that are predicted.
    pub rows: usize,
    /// Median of their errors, as a fraction.
    pub error: f64,
    /// Hash of the files that gave rows.
    pub files: String,
    /// What is left out, by file and by reason.
    pub warnings: Vec<String>,
    /// The files whose values were wrong, or whose run failed.
    pub defects: Vec<String>,
}

/// Forecasts against measured files.
///
/// # Errors
/// Measurements that cannot be read, or of which no row can be predicted.
pub fn median_error(
    measurements: &[PathBuf],
    options: &ReadOptions,
    topology: &Topology,
    profile: &Profile,
) -> Result<MedianError, Error> {
    let read = read_paths(measurements, options)?;
    can_be_asked(&read.files)?;
    let judged = judge(&read, (topology, profile), None, false, &Watch::default())?;
    if judged.rows.is_empty() {
        let reasons: Vec<&str> = judged.skipped.keys().map(String::as_str).collect();
        return Err(Error::usage(
            format!("no row of `{}` can be predicted: {}", measurements[0].display(), reasons.join("; ")),
            "name the machine that was measured, with as many hosts and GPUs",
        ));
    }
    let rows: Vec<&Judged<'_>> = judged.rows.iter().collect();
    let hashes: Vec<&str> = given(&read).map(|f| f.hash.as_str()).collect();
    let skipped = judged.skipped.iter().map(|(reason, count)| format!("{count} rows are not predicted: {reason}"));
    let of_file = |file: &FileReport| {
        let notes = file.warnings();
        let first = notes.first()?;
        Some(if notes.len() == 1 { first.clone() } else { format!("{first}; {} more notes", notes.len() - 1) })
    };
    Ok(MedianError {
        rows: rows.len(),
        error: Stats::of(&rows).errors.median_abs_error,
        files: content_hash(hashes.join(" ").as_bytes()),
        warnings: read.files.iter().filter_map(of_file).chain(skipped).collect(),
        defects: read.files.iter().filter_map(FileReport::defect).collect(),
    })
}

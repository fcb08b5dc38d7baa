//! Measurements held against forecasts.

pub mod doctor;
pub mod judged;
pub mod tables;

use std::collections::BTreeMap;
use std::path::PathBuf;

use collcast_hwbackend::read::{FileReport, ReadOptions, read_paths};
use collcast_sim::measurement::Measurement;
use collcast_sim::profile::Profile;
use collcast_sim::topology::Topology;

use crate::error::Error;
use crate::files::content_hash;
use judged::{Judged, judge};
use tables::Stats;

/// Rows that are predicted, the median of their errors, and a hash of the files.
pub fn median_error(
    measurements: &[PathBuf],
    topology: &Topology,
    profile: &Profile,
) -> Result<(usize, f64, String), Error> {
    let read = read_paths(measurements, &ReadOptions::default())?;
    can_be_asked(&read.files)?;
    let rows: Vec<&Measurement> = read.measurements.iter().collect();
    let files = by_path(&read.files);
    let (judged, skipped, _) = judge(&rows, &files, topology, profile, None, false)?;
    if judged.is_empty() {
        let reasons: Vec<&str> = skipped.keys().map(String::as_str).collect();
        return Err(Error::usage(
            format!("no row of `{}` can be predicted: {}", measurements[0].display(), reasons.join("; ")),
            "name the machine that was measured, with as many hosts and GPUs",
        ));
    }
    let judged: Vec<&Judged<'_>> = judged.iter().collect();
    let hashes: Vec<&str> = read.files.iter().filter(|f| f.rows > 0).map(|f| f.hash.as_str()).collect();
    Ok((judged.len(), Stats::of(&judged).median, content_hash(hashes.join(" ").as_bytes())))
}

/// Refuses what no forecast is about: times of CPU threads, and forecasts of ours of which the rows say too little.
pub fn can_be_asked(files: &[FileReport]) -> Result<(), Error> {
    let unsaid = files.iter().find_map(|file| Some((file, file.unsaid.as_ref()?)));
    if let Some((file, what)) = unsaid {
        return Err(Error::usage(
            format!("`{}` is a forecast whose rows do not say {what}", file.path.display()),
            "such files can be held beside each other: `collcast compare A B --allow-predicted`",
        ));
    }
    match files.iter().find(|file| file.on_cpu) {
        None => Ok(()),
        Some(file) => Err(Error::usage(
            format!(
                "`{}` was measured on CPU threads (`collcast bench --backend host`); forecasts are of GPUs",
                file.path.display()
            ),
            "measure with --backend cuda or nccl, or hold host runs beside each other with `collcast compare`",
        )),
    }
}

/// Files by the path that rows name.
pub fn by_path(files: &[FileReport]) -> BTreeMap<String, &FileReport> {
    files.iter().map(|f| (f.path.display().to_string(), f)).collect()
}

//! Measured kernels beside the time that a GPU's profile gives them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use collcast_reports::model::Input;
use collcast_sim::compute::fit::Sample;
use serde::Serialize;

use super::layers::{self, Judged};
use super::load::{Loaded, gpu, left_aside, load, some};
use super::row::KernelRow;
use crate::error::Error;
use crate::statistics::Stats;

/// What to judge, and by what.
#[derive(Clone, PartialEq, Debug)]
pub struct Request {
    /// Tables of kernels: files or folders.
    pub measurements: Vec<PathBuf>,
    /// The GPU that they are of: a name or a file.
    pub gpu: String,
    /// Largest median error of a group that passes, as a fraction.
    pub max_error: Option<f64>,
}

/// Kernels of one kind.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Group {
    /// Their kind.
    pub group: String,
    /// Errors of all rows.
    #[serde(flatten)]
    pub stats: Stats,
    /// Errors of those whose shapes fits leave out.
    pub left_out: Stats,
    /// What 95% of the rows of the profile's own data are off by at most, of shapes that its fit left out; nothing where
    /// nobody knows.
    pub own_error: Option<f64>,
}

impl Group {
    /// Whether the median error is larger than nearly all of those on which the profile rests.
    pub fn beyond(&self) -> bool {
        self.own_error.is_some_and(|own| self.stats.median_abs_error > own)
    }
}

/// Measured kernels beside their forecasts.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Outcome {
    /// Files that were read, with hashes.
    pub inputs: Vec<Input>,
    /// Name of the GPU's profile.
    pub gpu: String,
    /// What it rests on, and what was not judged.
    pub notes: Vec<String>,
    /// What to know before using the figures.
    pub warnings: Vec<String>,
    /// The rows, in the order of files and lines.
    pub rows: Vec<KernelRow>,
    /// Their errors by kind.
    pub groups: Vec<Group>,
    /// Of all times.
    pub overall: Stats,
    /// Of those whose shapes fits leave out.
    pub overall_left_out: Stats,
    /// As it was asked for.
    pub max_error: Option<f64>,
    /// Whether the median error of a group is larger than that.
    pub failed: bool,
}

/// Holds measured kernels against a GPU's profile.
///
/// # Errors
/// An unknown GPU; a file that cannot be read or is no table of kernels; a precision that the GPU has not; no rows.
pub fn judge(request: &Request) -> Result<Outcome, Error> {
    let gpu = gpu(&request.gpu)?;
    let mut paths = request.measurements.clone();
    let judged = layers::judge(&mut paths, &gpu)?;
    let (tables, mut skipped) = load(&paths, &gpu)?;
    skipped.retain(|file| judged.iter().all(|table| table.file != *file));
    let mut rows: Vec<KernelRow> = judged.iter().flat_map(|table| table.rows.iter().cloned()).collect();
    if rows.is_empty() {
        some(&tables, &gpu)?;
    }
    for table in &tables {
        for (line, sample) in &table.read.samples {
            let predicted_us = sample.predicted_us(&gpu).map_err(|missing| {
                Error::usage(format!("{}:{line}: {missing}", table.file), "judge it by the GPU that it was measured on")
            })?;
            rows.push(row(&table.file, *line, sample, predicted_us));
        }
    }
    let groups = groups(&rows, &gpu);
    let worst = groups.iter().map(|group| group.stats.median_abs_error).fold(0.0, f64::max);
    Ok(Outcome {
        inputs: tables.iter().map(input).chain(judged.iter().map(of_layers)).collect(),
        notes: notes(&gpu, &tables, &judged, &skipped),
        warnings: warnings(&gpu, &tables),
        overall: Stats::of(rows.iter().filter(|row| row.unit == "us").map(|row| row.error)),
        overall_left_out: Stats::of(rows.iter().filter(|row| row.left_out).map(|row| row.error)),
        groups,
        rows,
        max_error: request.max_error,
        failed: request.max_error.is_some_and(|most| worst > most),
        gpu: gpu.name().to_owned(),
    })
}

fn row(file: &str, line: u64, sample: &Sample, predicted_us: f64) -> KernelRow {
    KernelRow {
        file: file.to_owned(),
        line,
        group: sample.group.clone(),
        left_out: sample.left_out(),
        unit: "us",
        measured: sample.us,
        predicted: predicted_us,
        error: predicted_us / sample.us - 1.0,
    }
}

/// Errors by kind, in the order of their names.
fn groups(rows: &[KernelRow], gpu: &collcast_sim::compute::Compute) -> Vec<Group> {
    let mut groups: BTreeMap<&str, Vec<&KernelRow>> = BTreeMap::new();
    rows.iter().for_each(|row| groups.entry(&row.group).or_default().push(row));
    let group = |(group, rows): (&str, Vec<&KernelRow>)| Group {
        group: group.to_owned(),
        stats: Stats::of(rows.iter().map(|row| row.error)),
        left_out: Stats::of(rows.iter().filter(|row| row.left_out).map(|row| row.error)),
        own_error: gpu.own_error(group),
    };
    groups.into_iter().map(group).collect()
}

/// A table as an input of a report.
pub(super) fn input(table: &Loaded) -> Input {
    Input { name: "measurements".to_owned(), path: Some(table.file.clone()), hash: format!("fnv1a64:{}", table.hash) }
}

fn of_layers(table: &Judged) -> Input {
    let hash = format!("fnv1a64:{}", table.hash);
    Input { name: "measurements".to_owned(), path: Some(table.file.clone()), hash }
}

fn notes(
    gpu: &collcast_sim::compute::Compute,
    tables: &[Loaded],
    judged: &[Judged],
    skipped: &[String],
) -> Vec<String> {
    let mut notes = vec![format!("profile {}: {}", gpu.name(), gpu.evidence())];
    notes.extend(left_aside(tables, skipped, ("judged", "kernels, layers or models")));
    for table in judged.iter().filter(|table| !table.eager.is_empty()) {
        let lines: Vec<String> = table.eager.iter().map(u64::to_string).collect();
        notes.push(format!(
            "{}: lines {} say compiled and keep the bytes of eager layers; they are judged as such",
            table.file,
            lines.join(" ")
        ));
    }
    notes
}

fn warnings(gpu: &collcast_sim::compute::Compute, tables: &[Loaded]) -> Vec<String> {
    let seen = tables.iter().filter(|t| gpu.data().iter().any(|d| d.hash == t.hash)).count();
    if seen == 0 {
        return Vec::new();
    }
    vec![format!("{} was fitted to {seen} of these files: `left out` has the rows that it has not seen", gpu.name())]
}

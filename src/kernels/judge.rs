//! Measured kernels beside the time that a GPU's profile gives them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use collcast_reports::model::Input;
use collcast_sim::compute::fit::Sample;
use collcast_sim::compute::{Compute, Constant, Kernel, Precision};
use serde::Serialize;

use super::layers::{self, Judged};
use super::load::{Loaded, gpu, left_aside, load, of_others, some};
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
            possible(sample, &gpu).map_err(|message| {
                Error::usage(
                    format!("{}:{line}: {message}", table.file),
                    "the column `us` has microseconds of one call: turn milliseconds or seconds into them, or name the GPU that \
                     it was measured on",
                )
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

/// How many times its peak no GPU reaches: profiles of other products of a kind, and clocks above the nominal one, are within it.
const BEYOND: f64 = 2.0;

/// Whether a GPU can multiply and move as much in the time that was measured.
fn possible(sample: &Sample, gpu: &Compute) -> Result<(), String> {
    let seconds = sample.us / 1e6;
    let products: f64 = sample.kernels.iter().map(|kernel| least_products(kernel, gpu)).sum();
    if products > BEYOND * seconds {
        let (times, name) = (products / seconds, gpu.name());
        return Err(format!("{} us: that is {times:.0} times the peak of the tensor cores of {name}", sample.us));
    }
    // What L2 holds need not come from memory.
    let cached = gpu[Constant::L2].value * 1e6;
    let bytes: f64 = sample.kernels.iter().map(|kernel| (bytes(kernel) - 2.0 * cached).max(0.0)).sum();
    let times = bytes / (gpu[Constant::Memory].value * 1e9) / seconds;
    match times > BEYOND {
        true => Err(format!("{} us: that is {times:.0} times the rate of the memory of {}", sample.us, gpu.name())),
        false => Ok(()),
    }
}

/// Seconds of products at the peak of the tensor cores.
fn least_products(kernel: &Kernel, gpu: &Compute) -> f64 {
    let precision = match kernel {
        Kernel::Product(product) => product.precision,
        Kernel::Attention(_) => Precision::Bf16,
        _ => return 0.0,
    };
    kernel.flops() / gpu.peak(precision)
}

/// Bytes that a kernel of memory reads and writes.
fn bytes(kernel: &Kernel) -> f64 {
    match kernel {
        Kernel::Memory(memory) => memory.reads as f64 + memory.writes as f64,
        Kernel::Optimizer(step) => step.elements as f64 * f64::from(step.reads + step.writes),
        _ => 0.0,
    }
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
fn groups(rows: &[KernelRow], gpu: &Compute) -> Vec<Group> {
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

fn notes(gpu: &Compute, tables: &[Loaded], judged: &[Judged], skipped: &[String]) -> Vec<String> {
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

fn warnings(gpu: &Compute, tables: &[Loaded]) -> Vec<String> {
    let seen = tables.iter().filter(|t| gpu.data().iter().any(|d| d.hash == t.hash)).count();
    let seen = (seen > 0).then(|| {
        format!("{} was fitted to {seen} of these files: `left out` has the rows that it has not seen", gpu.name())
    });
    of_others(tables, gpu).into_iter().chain(seen).collect()
}

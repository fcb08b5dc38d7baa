//! How good a fit is: its constants, and errors by group, on rows fitted to and on rows held back.

use std::collections::BTreeMap;

use collcast_sim::calibrate::{Crossed, Estimate, Fit, Judged, SIZE_BANDS, Sample, Split, Study, coverage, size_band};
use collcast_sim::collective::{Launch, Protocol};
use collcast_sim::profile::Profile;
use serde::Serialize;

use super::rows::Usable;
use crate::statistics::{mean, median, quantile};

/// A constant that was to be fitted.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Estimated {
    /// Its name in profiles.
    pub name: &'static str,
    /// The unit of its values.
    pub unit: &'static str,
    /// Fitted value.
    pub value: f64,
    /// Lower end of its 90% interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Value before.
    pub prior: f64,
    /// Whether the rows told it; where not, it is at its prior.
    pub identified: bool,
    /// Mean absolute error with this constant alone set back to its prior.
    pub error_at_prior: f64,
}

impl Estimated {
    pub(super) fn of(estimate: &Estimate) -> Self {
        let Estimate { constant, value, interval: (low, high), prior, identified, error_at_prior, .. } = *estimate;
        let (name, unit) = (constant.name(), constant.spec().unit);
        Self { name, unit, value, low, high, prior, identified, error_at_prior }
    }
}

/// Errors of some rows: predicted over measured, less 1.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Errors {
    /// Mean absolute error.
    pub mean_abs: f64,
    /// What 95% of the absolute errors do not exceed.
    pub p95_abs: f64,
    /// Mean error.
    pub bias: f64,
}

impl Errors {
    pub(super) fn of(judged: &[Judged], rows: &[usize]) -> Self {
        let mut errors: Vec<f64> = rows.iter().map(|&r| judged[r].error().abs()).collect();
        errors.sort_by(f64::total_cmp);
        Self {
            mean_abs: mean(errors.iter().copied()),
            p95_abs: quantile(&errors, 0.95),
            bias: mean(rows.iter().map(|&r| judged[r].error())),
        }
    }
}

/// Errors on rows that were held back.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct HeldOut {
    /// What was held back together, as [`Split::name`] has it.
    pub by: &'static str,
    /// The errors.
    pub errors: Errors,
}

/// Errors of rows that have something in common.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Group {
    /// Protocol; none for all.
    pub protocol: Option<Protocol>,
    /// Launch mode; none for all.
    pub launch: Option<Launch>,
    /// Range of sizes; none for all.
    pub sizes: Option<&'static str>,
    /// Rows.
    pub rows: usize,
    /// Errors of the fit to all rows.
    pub fitted: Errors,
    /// Errors on the same rows where they were held back.
    pub held_out: Option<Errors>,
    /// Share of the rows inside of their intervals, of those whose classes have enough others.
    pub coverage: Option<f64>,
    /// Median width of these intervals, as a share of the prediction.
    pub width: Option<f64>,
    /// Mean absolute error of NCCL's own model, where it has a time for all of the rows.
    pub nccl_mean_abs: Option<f64>,
}

/// The name of all protocols or launch modes in tables, by which they are sorted among the others.
pub(crate) const ALL: &str = "all";

/// What rows of a [`Group`] have in common: protocol, launch mode, range of sizes.
type Common = (Option<Protocol>, Option<Launch>, Option<usize>);

/// Errors by protocol, launch mode and size, of all protocols or launch modes too.
pub(super) fn groups(study: &Study<'_>, fit: &Fit, unseen: Option<&Crossed>, profile: &Profile) -> Vec<Group> {
    let samples = study.samples();
    let inside = unseen.map(|c| coverage(samples, &c.held, &c.fold, profile));
    let mut groups: BTreeMap<Common, Vec<usize>> = BTreeMap::new();
    for (r, sample) in samples.iter().enumerate() {
        let band = SIZE_BANDS.iter().position(|b| *b == size_band(sample.call.size().0)).unwrap_or(0);
        let (protocol, launch) = (Some(sample.protocol), Some(sample.settings.launch));
        for of in
            [(protocol, launch, Some(band)), (protocol, None, Some(band)), (None, launch, None), (None, None, None)]
        {
            groups.entry(of).or_default().push(r);
        }
    }
    let group = |((protocol, launch, band), rows): (Common, Vec<usize>)| {
        let (coverage, width) = inside.as_ref().and_then(|inside| covered(inside, &rows)).unzip();
        Group {
            protocol,
            launch,
            sizes: band.map(|band| SIZE_BANDS[band]),
            rows: rows.len(),
            fitted: Errors::of(&fit.judged, &rows),
            held_out: unseen.map(|c| Errors::of(&c.held, &rows)),
            coverage,
            width,
            nccl_mean_abs: nccl(samples, &rows),
        }
    };
    let mut groups: Vec<Group> = groups.into_iter().map(group).collect();
    groups.sort_by_key(|g| (g.protocol.map_or(ALL, Protocol::name), g.launch.map_or(ALL, Launch::name)));
    groups
}

/// Of rows whose classes have enough others: the share inside of their intervals, and the median width.
fn covered(inside: &[Option<(bool, f64)>], rows: &[usize]) -> Option<(f64, f64)> {
    let known: Vec<(bool, f64)> = rows.iter().filter_map(|&r| inside[r]).collect();
    let widths: Vec<f64> = known.iter().map(|c| c.1).collect();
    let share = mean(known.iter().map(|c| f64::from(u8::from(c.0))));
    (!known.is_empty()).then(|| (share, median(widths)))
}

fn nccl(samples: &[Sample], rows: &[usize]) -> Option<f64> {
    let error = |&r: &usize| Some((samples[r].nccl_us? / samples[r].time_us - 1.0).abs());
    let errors: Option<Vec<f64>> = rows.iter().map(error).collect();
    errors.map(|errors| mean(errors.into_iter()))
}

/// Errors of a fit without some rows, on these.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Part {
    /// The property that rows were held back by, as [`Split::name`] has it.
    pub by: &'static str,
    /// Its value.
    pub value: String,
    /// Rows.
    pub rows: usize,
    /// Mean absolute error of the fit to all rows.
    pub fitted_mean_abs: f64,
    /// That of the fit without them, on the others.
    pub others_mean_abs: f64,
    /// Errors of the fit without them.
    pub held_out: Errors,
}

/// By property, the errors of fits without each of its values, on these.
pub(super) fn splits(study: &Study<'_>, fit: &Fit, crossed: &BTreeMap<Split, Crossed>) -> Vec<Part> {
    let mut parts = Vec::new();
    for (split, crossed) in crossed.iter().filter(|(_, c)| !c.held.is_empty()) {
        let mut values: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (r, sample) in study.samples().iter().enumerate() {
            let value = match split {
                Split::Run => format!("group {}", crossed.fold[r] + 1),
                Split::Ranks => split.key(sample).trim_start_matches('0').to_owned(),
                _ => split.key(sample),
            };
            values.entry(value).or_default().push(r);
        }
        parts.extend(values.into_iter().map(|(value, rows)| Part {
            by: split.name(),
            value,
            rows: rows.len(),
            fitted_mean_abs: Errors::of(&fit.judged, &rows).mean_abs,
            others_mean_abs: crossed.trained[crossed.fold[rows[0]]],
            held_out: Errors::of(&crossed.held, &rows),
        }));
    }
    parts
}

/// A row with a large error.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Worst {
    /// Run of the benchmark.
    pub run: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Measured time in microseconds.
    pub measured_us: f64,
    /// Predicted time in microseconds.
    pub predicted_us: f64,
    /// Predicted over measured, less 1.
    pub error: f64,
    /// What bounds the prediction.
    pub bound: &'static str,
    /// File and line.
    pub place: String,
}

/// Rows that are shown with the largest errors.
const WORST: usize = 5;

pub(super) fn worst(usable: &Usable<'_>, judged: &[Judged]) -> Vec<Worst> {
    let mut order: Vec<usize> = (0..judged.len()).collect();
    order.sort_by(|&a, &b| judged[b].residual.abs().total_cmp(&judged[a].residual.abs()).then(a.cmp(&b)));
    let worst = |r: usize| {
        let ((row, sample), judged) = (&usable.rows[r], &judged[r]);
        Worst {
            run: row.run.clone(),
            size_bytes: row.size.0,
            measured_us: sample.time_us,
            predicted_us: judged.predicted_us,
            error: judged.error(),
            bound: judged.bound,
            place: format!("{}:{}", row.origin.file, row.origin.line),
        }
    };
    order.into_iter().take(WORST).map(worst).collect()
}

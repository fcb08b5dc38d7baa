//! The statistic: is B slower than A?
//!
//! Rows of one series (same collective, ranks and settings) are compared as ln(B/A). Single
//! rows have tails: even where nothing changed, some differ by 30%. Medians over neighbouring
//! sizes do not. Two scales are tested:
//!
//! - **band**: the median of all rows of a size band;
//! - **row**: the median of five neighbouring sizes around it, so that a change at three
//!   sizes or more is found. A row of three runs on both sides stands for itself, and so does a
//!   row above 16 MiB that takes 1.75 times as long: noise there is below 1%.
//!
//! The interval of a median over n rows is `+- z * sqrt(r * offset + k * 1.57 row / n)`, with the
//! variances of a single measurement, k = 1/repeats of A + 1/repeats of B, and r the same of the
//! runs that the repeats are from. `1.57` is pi/2, the price of a median over a mean. The variances are those of [`crate::noise`], updated by the
//! repeats that there are. z is such that all intervals of a report hold together: with
//! nothing changed, a report says `slower` with a probability below 1% for all bands and 1%
//! for all rows together (Bonferroni), however many it has.
//!
//! A verdict reads off the interval: `slower` where all of it lies above 1 and it reaches the
//! tolerance, `no change` where all of it is within the tolerance, else `cannot tell`.

use std::collections::BTreeMap;

use collcast_sim::units::Bytes;
use serde::Serialize;

use super::sets::{Curve, Pair, Run, Sample, Series};
use crate::bands::{BANDS, band};
use crate::noise::{Noise, TAIL, known};
use crate::statistics::{median, robust_deviation, upper_quantile};

/// Chance that a report is wrong about anything, where nothing changed: half for the bands,
/// half for the rows; on one side.
pub const FAMILY_ERROR: f64 = 0.02;
/// Sizes of which a row's verdict takes the median.
const NEIGHBOURS: usize = 5;
/// Rows, or runs of each, below which noise that is not normal could pass for a change.
const ENOUGH: usize = 3;
/// Change of each of several large sizes from which on they agree: two at once that are off by half are no disturbance. Our
/// estimate.
const AGREED: f64 = 1.5;
/// The band of sizes above 16 MiB.
const LARGE: u8 = 2;
/// Repeats that the known noise counts for beside the user's own: with six runs of the same
/// thing, the user's own machine has the larger say.
const PRIOR: f64 = 4.0;

/// What is said of a row or a band, worst first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// B takes longer, by the tolerance or more.
    Slower,
    /// B takes less time, by the tolerance or more.
    Faster,
    /// Noise may hide a change beyond the tolerance.
    CannotTell,
    /// No change beyond the tolerance.
    Same,
}

impl Change {
    /// The word in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Slower => "slower",
            Self::Faster => "faster",
            Self::CannotTell => "cannot tell",
            Self::Same => "no change",
        }
    }
}

/// What is between the times of two sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Between {
    /// The noise of measurements.
    Measured,
    /// None: both are forecasts.
    Forecasts,
    /// Nothing at all: they are the same rows of the same files.
    Same,
}

/// Ratio of times, B over A, with its interval.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Ratio {
    /// The best guess.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl Ratio {
    fn new(log: f64, half_width: f64) -> Self {
        Self { value: log.exp(), low: (log - half_width).exp(), high: (log + half_width).exp() }
    }

    fn change(self, tolerance: f64) -> Change {
        let limit = 1.0 + tolerance;
        // A change of just the tolerance must not hang on the last digit.
        let reaches = |slowdown: f64| slowdown >= limit * (1.0 - 1e-9);
        match self {
            r if r.low == 1.0 && r.high == 1.0 => Change::Same,
            r if r.low > 1.0 && reaches(r.high) => Change::Slower,
            r if r.high < 1.0 && reaches(1.0 / r.low) => Change::Faster,
            r if !reaches(r.high) && !reaches(1.0 / r.low) => Change::Same,
            _ => Change::CannotTell,
        }
    }
}

/// A row that both sets have.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct SizePair {
    /// Size as nccl-tests counts it.
    pub size_bytes: u64,
    /// Times that A and B have, one or more each.
    pub repeats: [usize; 2],
    /// Median times of A and of B.
    pub time_us: [f64; 2],
    /// Median of B over median of A.
    pub ratio: f64,
    /// The same over the neighbouring sizes.
    pub near: Ratio,
    /// What is said of it.
    pub change: Change,
}

/// The rows of one series in one size band.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Band {
    /// What the rows are of.
    pub series: Series,
    /// Index in [`BANDS`].
    pub band: u8,
    /// By size.
    pub rows: Vec<SizePair>,
    /// Median over its rows.
    pub ratio: Ratio,
    /// What is said of it.
    pub change: Change,
    /// First and last size in bytes of the rows that are slower (or faster) than the band as a whole would say.
    pub at: Option<(u64, u64)>,
}

impl Band {
    /// Its range of sizes, in words.
    pub fn sizes(&self) -> &'static str {
        BANDS[usize::from(self.band)]
    }

    /// The ratio that the verdict reads off: where only some rows changed, that of the worst.
    pub fn decisive(&self) -> Ratio {
        let changed = self.rows.iter().filter(|row| self.at.is_some() && row.change == self.change);
        let worst = changed.max_by(|a, b| a.near.value.ln().abs().total_cmp(&b.near.value.ln().abs()));
        worst.map_or(self.ratio, |row| row.near)
    }

    /// `1.050 (1.020 to 1.080)`, and where only some rows changed, at which sizes.
    pub fn finding(&self) -> String {
        let r = self.decisive();
        let at = self.at.map_or_else(String::new, |(from, to)| format!("at {} to {} ", Bytes(from), Bytes(to)));
        format!("{at}{:.3} ({:.3} to {:.3})", r.value, r.low, r.high)
    }
}

/// Judges each size band of each curve.
///
/// - `tolerance`: the fraction of time that may be lost.
/// - `between`: whether the times have noise.
pub(super) fn judge(curves: &[Curve], tolerance: f64, between: Between) -> Vec<Band> {
    let exact = between != Between::Measured;
    let split: Vec<(&Curve, &[Pair])> = curves
        .iter()
        .flat_map(|curve| curve.pairs.chunk_by(|a, b| band(a.size) == band(b.size)).map(move |pairs| (curve, pairs)))
        .collect();
    let rows: usize = split.iter().map(|(_, pairs)| pairs.len()).sum();
    let z = |tests: usize| upper_quantile(FAMILY_ERROR / 2.0 / tests.max(1) as f64);
    let (z_band, z_row) = (z(split.len()), z(rows));
    split
        .into_iter()
        .map(|(curve, pairs)| {
            let band = band(pairs[0].size);
            let noise = if exact { Noise { offset: 0.0, row: 0.0 } } else { known(&curve.launches, band) };
            let variance = match between {
                Between::Same => Variance { offset: 0.0, row: 0.0 },
                _ => Variance::of(pairs, noise),
            };
            let test = Test { pairs, variance, tolerance, exact };
            test.band(&curve.series, band, z_band, z_row)
        })
        .collect()
}

/// Variances of the logarithm of a single measurement.
#[derive(Clone, Copy, Debug)]
struct Variance {
    offset: f64,
    row: f64,
}

impl Variance {
    /// Known noise, updated by how far the repeats lie apart.
    fn of(pairs: &[Pair], noise: Noise) -> Self {
        let (mut squares, mut offset_freedom, mut row_freedom) = (0.0, 0.0, 0.0);
        let mut residuals: Vec<f64> = Vec::new();
        for side in 0..2 {
            // Of each run, how far its rows lie from the mean of all runs.
            let mut runs: BTreeMap<&Run, Vec<(f64, f64)>> = BTreeMap::new();
            let mut freedom = 0.0;
            for samples in pairs.iter().map(|pair| &pair.samples[side]).filter(|samples| samples.len() > 1) {
                let count = samples.len() as f64;
                let mean = samples.iter().map(|s| s.log).sum::<f64>() / count;
                freedom += count - 1.0;
                for sample in samples {
                    let unbiased = (count / (count - 1.0)).sqrt();
                    runs.entry(&sample.run).or_default().push((sample.log - mean, unbiased));
                }
            }
            if runs.is_empty() {
                continue;
            }
            let offsets = runs.len() as f64 - 1.0;
            for rows in runs.values() {
                let offset = median(rows.iter().map(|r| r.0).collect());
                squares += offset * offset;
                residuals.extend(rows.iter().map(|(log, unbiased)| (log - offset) * unbiased));
            }
            offset_freedom += offsets;
            row_freedom += (freedom - offsets).max(0.0);
        }
        // The known noise is that of a difference of two.
        let prior = |deviation: f64| PRIOR * deviation * deviation / 2.0;
        Self {
            offset: (prior(noise.offset) + squares) / (PRIOR + offset_freedom),
            row: (prior(noise.row) + row_freedom * robust_deviation(residuals).powi(2)) / (PRIOR + row_freedom),
        }
    }
}

/// One size band of one curve.
struct Test<'a> {
    pairs: &'a [Pair],
    variance: Variance,
    tolerance: f64,
    exact: bool,
}

impl Test<'_> {
    fn band(&self, series: &Series, band: u8, z_band: f64, z_row: f64) -> Band {
        let count = self.pairs.len();
        let mut variance = self.variance;
        if count >= NEIGHBOURS && !self.exact {
            // Rows that disagree more than noise explains make the median less certain.
            let scatter = robust_deviation(self.pairs.iter().map(log_ratio).collect());
            variance.row = variance.row.max(scatter * scatter / shares(self.pairs));
        }
        let ratio = self.ratio(self.pairs, variance, z_band);
        let enough = self.exact || count >= ENOUGH || self.pairs.iter().all(repeated) || self.agree(band);
        let mut change = match ratio.change(self.tolerance) {
            Change::Slower | Change::Faster if !enough && ratio.low < TAIL && ratio.high > 1.0 / TAIL => {
                Change::CannotTell
            }
            change => change,
        };
        let rows: Vec<SizePair> = (0..count).map(|index| self.row(index, ratio, change, z_row)).collect();
        let mut at = None;
        for local in [Change::Slower, Change::Faster] {
            let sizes: Vec<u64> = rows.iter().filter(|r| r.change == local).map(|r| r.size_bytes).collect();
            if let (true, Some(first), Some(last)) = (change > local, sizes.first(), sizes.last()) {
                change = local;
                at = Some((*first, *last));
            }
        }
        Band { series: series.clone(), band, rows, ratio, change, at }
    }

    /// Whether several large sizes changed alike, and by more than any of them is off by itself: a disturbance lasts for one.
    fn agree(&self, band: u8) -> bool {
        let logs: Vec<f64> = self.pairs.iter().map(log_ratio).collect();
        let beyond = |sign: f64| logs.iter().all(|log| sign * log > AGREED.ln());
        band == LARGE && logs.len() > 1 && (beyond(1.0) || beyond(-1.0))
    }

    fn row(&self, index: usize, band: Ratio, change: Change, z: f64) -> SizePair {
        let count = self.pairs.len();
        let pair = &self.pairs[index];
        let ratio = log_ratio(pair).exp();
        let far = crate::bands::band(pair.size) == LARGE && ratio.max(1.0 / ratio) >= TAIL;
        let alone = self.exact || repeated(pair) || far;
        let (near, change) = if !alone && count < NEIGHBOURS {
            (band, change)
        } else {
            let window = if alone { 1 } else { NEIGHBOURS };
            let first = index.saturating_sub(window / 2).min(count - window);
            let near = self.ratio(&self.pairs[first..first + window], self.variance, z);
            (near, near.change(self.tolerance))
        };
        // One row far out of line among good neighbours: a single measurement cannot say.
        let apart = ratio.max(1.0 / ratio) > 1.0 + self.tolerance && !(near.low..=near.high).contains(&ratio);
        let change = if change == Change::Same && apart { Change::CannotTell } else { change };
        SizePair {
            size_bytes: pair.size,
            repeats: pair.samples.each_ref().map(Vec::len),
            time_us: pair.samples.each_ref().map(|samples| median_log(samples).exp()),
            ratio,
            near,
            change,
        }
    }

    fn ratio(&self, pairs: &[Pair], variance: Variance, z: f64) -> Ratio {
        let count = pairs.len() as f64;
        // The median of two is their mean.
        let price = if pairs.len() > 2 { std::f64::consts::FRAC_PI_2 } else { 1.0 };
        let of_runs = pairs.iter().flat_map(|pair| pair.runs).map(|runs| 1.0 / runs as f64).sum::<f64>() / count;
        let squared = variance.offset * of_runs + price * variance.row / count * shares(pairs);
        Ratio::new(median(pairs.iter().map(log_ratio).collect()), z * squared.sqrt())
    }
}

/// ln of the median of B over the median of A.
fn log_ratio(pair: &Pair) -> f64 {
    median_log(&pair.samples[1]) - median_log(&pair.samples[0])
}

/// ln of the median time in us.
fn median_log(samples: &[Sample]) -> f64 {
    median(samples.iter().map(|s| s.log).collect())
}

/// 1/repeats of A + 1/repeats of B, in the mean over rows.
fn shares(pairs: &[Pair]) -> f64 {
    let of = |pair: &Pair| pair.samples.iter().map(|samples| 1.0 / samples.len() as f64).sum::<f64>();
    pairs.iter().map(of).sum::<f64>() / pairs.len() as f64
}

fn repeated(pair: &Pair) -> bool {
    pair.runs.iter().all(|&runs| runs >= ENOUGH)
}

//! What is known of the times of all candidates: forecasts, corrected by what was measured of them and of their like.
//!
//! The logarithm of measured over forecast is a Gaussian process over candidates and sizes. A forecast is as unsure as its
//! interval says. Errors of two forecasts go together the more, the closer their sizes, and the more for one algorithm and
//! protocol. A measured time adds noise of its own.

use nalgebra::{Cholesky, DMatrix, DVector, Dyn};

use collcast_sim::predict::Prediction;

use super::tuned::{Belief, Candidate, Tuned};
use crate::statistics::{INTERVAL, mean};

/// Octaves of size, and of channels, over which errors of forecasts part: to 1/e. Protocols and bounds change over a factor
/// of about 8.
const OCTAVES: f64 = 3.0;
/// Share of the variance of a forecast that is the same at all sizes: a machine or an algorithm that is slower than thought.
const FLAT: f64 = 0.5;
/// Share of the variance of a forecast that all candidates of a call have in common: the launch, the links. Origin: errors of
/// forced algorithms and protocols at one size in `tests/data/h200x4/nccl.csv`, out of place, from 1 KiB up: 0.22 of their
/// variance is common with the fitted profile, 0.13 with `prior`.
const COMMON: f64 = 0.2;
/// Least standard deviation of a forecast's logarithm: the best fits err by 2% on their own rows.
const LEAST: f64 = 0.02;
/// Measured points that a call's candidates are judged with, the nearest in size: they bound time and memory. The advice of
/// recorded searches (`tests/regret.rs`) is the same with 256.
const NEAREST: usize = 128;
/// Standard deviations beyond which a measured time counts less, as one that went wrong.
const OUTLIER: f64 = 3.0;
/// Standard deviations within which two times agree, and beyond which the one between them went wrong.
const AGREE: f64 = 2.0;
const WRONG: f64 = 4.0;
/// What went wrong is as far off too, as a logarithm. Origin: of the 1,500 forced times of all-reduce and all-gather in
/// `tests/data/h200x4/nccl.csv` one lies so far from its neighbours.
const FAR: f64 = 0.3;
/// Times of a choice whose median stands where one of them went wrong.
const MEDIAN: usize = 3;

/// A candidate at a size.
#[derive(Clone, Copy)]
struct Point<'t> {
    candidate: &'t Candidate,
    octave: f64,
    /// Standard deviation of the forecast's logarithm.
    deviation: f64,
}

impl<'t> Point<'t> {
    fn new(call: &Tuned, candidate: &'t Candidate) -> Self {
        let octave = (call.size_bytes.max(1) as f64).log2();
        Self { candidate, octave, deviation: deviation(&candidate.prediction) }
    }

    /// How the errors of two forecasts vary together.
    fn covariance(&self, other: &Self) -> f64 {
        let channels = |point: &Self| point.candidate.prediction.plan.channels;
        let together = together(self.candidate.pair == other.candidate.pair, [self, other].map(channels));
        self.deviation * other.deviation * sizes_together(self.octave - other.octave) * together
    }
}

/// How the errors of two forecasts of one size go together: the more, the closer their channels, where they do the call
/// alike.
pub(crate) fn together(alike: bool, channels: [u32; 2]) -> f64 {
    let [a, b] = channels.map(|channels| f64::from(channels.max(1)).log2());
    COMMON + (1.0 - COMMON) * if alike { near(a - b) } else { 0.0 }
}

/// Standard deviation of a forecast's logarithm, as its interval says.
pub(super) fn deviation(prediction: &Prediction) -> f64 {
    deviation_of(prediction.time.as_us(), prediction.high.as_us())
}

/// The same of a time and the upper end of its 90% interval.
pub(crate) fn deviation_of(time_us: f64, high_us: f64) -> f64 {
    (2.0 * (high_us / time_us).ln() / INTERVAL).max(LEAST)
}

fn near(octaves: f64) -> f64 {
    (-octaves.abs() / OCTAVES).exp()
}

/// How the errors of forecasts at two sizes go together: 1 at one size.
pub(super) fn sizes_together(octaves: f64) -> f64 {
    FLAT + (1.0 - FLAT) * near(octaves)
}

/// A measured time: its logarithm over the forecast, and the variance of its noise.
struct Seen<'t> {
    point: Point<'t>,
    ratio: f64,
    noise: f64,
    runs: usize,
}

impl Seen<'_> {
    /// Whether it is far from the times of its choice at the next smaller and larger size, which agree.
    fn is_wrong(&self, all: &[Self]) -> bool {
        let choice = |of: &Self| (of.point.candidate.pair, of.point.candidate.channels);
        let apart = |other: &&Self| other.point.octave - self.point.octave;
        let like = || all.iter().filter(|other| choice(other) == choice(self));
        let nearest = |a: &&Self, b: &&Self| apart(a).abs().total_cmp(&apart(b).abs());
        let below = like().filter(|other| apart(other) < 0.0).min_by(nearest);
        let above = like().filter(|other| apart(other) > 0.0).min_by(nearest);
        let Some((below, above)) = below.zip(above).filter(|_| self.runs < MEDIAN) else { return false };
        // A sum of the three logarithms, and its standard deviation.
        let sum = |weights: [f64; 3]| {
            let of: Vec<(&Self, f64)> = [below, self, above].into_iter().zip(weights).collect();
            let noise: f64 = of.iter().map(|(seen, weight)| weight.powi(2) * seen.noise).sum();
            let pairs = of.iter().flat_map(|a| of.iter().map(move |b| a.1 * b.1 * a.0.point.covariance(&b.0.point)));
            let off: f64 = of.iter().map(|(seen, weight)| weight * seen.ratio).sum();
            (off.abs(), (noise + pairs.sum::<f64>()).max(0.0).sqrt())
        };
        let ((between, sure), (off, doubt)) = (sum([1.0, 0.0, -1.0]), sum([-0.5, 1.0, -0.5]));
        between <= AGREE * sure && off > (WRONG * doubt).max(FAR)
    }
}

/// Says of each candidate of calls of one collective what it saves, and how unsure that is.
pub(super) fn judge(calls: &mut [Tuned]) {
    let known: Vec<(DVector<f64>, DMatrix<f64>)> = {
        let seen: Vec<Seen<'_>> = calls.iter().flat_map(seen_of).collect();
        let seen: Vec<&Seen<'_>> = seen.iter().filter(|one| !one.is_wrong(&seen)).collect();
        // Few points are near to all calls.
        let of_all = (seen.len() <= NEAREST).then(|| Fitted::of(&seen));
        let of_call = |call: &Tuned| {
            let points: Vec<Point<'_>> = call.candidates.iter().map(|candidate| Point::new(call, candidate)).collect();
            match &of_all {
                Some(fitted) => corrected(&points, fitted.as_ref()),
                None => corrected(&points, Fitted::of(&nearest(call, &seen)).as_ref()),
            }
        };
        calls.iter().map(of_call).collect()
    };
    for (call, (shift, covariance)) in calls.iter_mut().zip(known) {
        call.covariance = covariance;
        let time_us = |index: usize| call.candidates[index].predicted_us * shift[index].exp();
        let default_us = time_us(call.default);
        let belief = |index: usize| {
            let (time_us, doubt) = (time_us(index), call.doubt(index, call.default));
            Belief { time_us, saved: (default_us / time_us).ln(), doubt }
        };
        let beliefs: Vec<Belief> = (0..call.candidates.len()).map(belief).collect();
        for (candidate, belief) in call.candidates.iter_mut().zip(beliefs) {
            candidate.belief = belief;
        }
    }
}

fn seen_of(call: &Tuned) -> impl Iterator<Item = Seen<'_>> {
    call.candidates.iter().filter_map(|candidate| {
        let times = candidate.measured?;
        let ratio = (times.time_us / candidate.predicted_us).ln();
        let noise = times.deviation.powi(2) / times.runs as f64;
        Some(Seen { point: Point::new(call, candidate), ratio, noise, runs: times.runs })
    })
}

/// Measured times that do not count, as they went wrong.
pub(super) fn wrong(calls: &[Tuned]) -> Vec<(&Tuned, &Candidate)> {
    let mut wrong = Vec::new();
    for of in calls.chunk_by(Tuned::is_like) {
        let all: Vec<Seen<'_>> = of.iter().flat_map(seen_of).collect();
        let each = of.iter().flat_map(|call| seen_of(call).map(move |seen| (call, seen)));
        wrong.extend(each.filter(|(_, seen)| seen.is_wrong(&all)).map(|(call, seen)| (call, seen.point.candidate)));
    }
    wrong
}

/// What was seen nearest to a call's size.
fn nearest<'s, 't>(call: &Tuned, seen: &[&'s Seen<'t>]) -> Vec<&'s Seen<'t>> {
    let octave = Point::new(call, &call.candidates[call.default]).octave;
    let mut near = seen.to_vec();
    near.sort_by(|a, b| (a.point.octave - octave).abs().total_cmp(&(b.point.octave - octave).abs()));
    near.truncate(NEAREST);
    near
}

/// What was seen, with the weights that correct forecasts.
struct Fitted<'t> {
    places: Vec<Point<'t>>,
    factor: Cholesky<f64, Dyn>,
    weights: DVector<f64>,
    /// By how much forecasts vary more than they say.
    wider: f64,
}

impl<'t> Fitted<'t> {
    /// Outliers count less, and so do forecasts where measured times lie further from them than they say.
    fn of(seen: &[&Seen<'t>]) -> Option<Self> {
        let places: Vec<Point<'t>> = seen.iter().map(|seen| seen.point).collect();
        let ratios = DVector::from_iterator(seen.len(), seen.iter().map(|seen| seen.ratio));
        let mut noise: Vec<f64> = seen.iter().map(|seen| seen.noise).collect();
        let own = between(&places, &places);
        let factored = |wider: f64, noise: &[f64]| {
            (&own * wider + DMatrix::from_diagonal(&DVector::from_column_slice(noise))).cholesky()
        };
        let wider = |factor: &Cholesky<f64, Dyn>| (ratios.dot(&factor.solve(&ratios)) / seen.len() as f64).max(1.0);
        let first = factored(1.0, &noise).filter(|_| !seen.is_empty())?;
        let first = factored(wider(&first), &noise)?;
        for (noise, (off, variance)) in noise.iter_mut().zip(apart(&first, &first.solve(&ratios))) {
            *noise *= (off.powi(2) / (OUTLIER.powi(2) * variance)).max(1.0);
        }
        let wider = wider(&factored(1.0, &noise)?);
        let factor = factored(wider, &noise)?;
        let weights = factor.solve(&ratios);
        Some(Self { places, factor, weights, wider })
    }
}

/// How far each point is off what all others say of it, and the variance of that.
fn apart(factor: &Cholesky<f64, Dyn>, weights: &DVector<f64>) -> Vec<(f64, f64)> {
    // The diagonal of the inverse, by the inverse of the factor.
    let n = weights.len();
    let inverse = factor.l_dirty().solve_lower_triangular(&DMatrix::identity(n, n));
    let variance = |index: usize| inverse.as_ref().map_or(0.0, |inverse| 1.0 / inverse.column(index).norm_squared());
    weights.iter().enumerate().map(|(index, weight)| (weight * variance(index), variance(index))).collect()
}

fn between(a: &[Point<'_>], b: &[Point<'_>]) -> DMatrix<f64> {
    DMatrix::from_fn(a.len(), b.len(), |i, j| a[i].covariance(&b[j]))
}

/// Mean and covariance of the points' log ratios, given what was seen.
fn corrected(points: &[Point<'_>], fitted: Option<&Fitted<'_>>) -> (DVector<f64>, DMatrix<f64>) {
    let own = between(points, points);
    let Some(Fitted { places, factor, weights, wider }) = fitted else {
        return (DVector::zeros(points.len()), own);
    };
    let across = between(points, places) * *wider;
    (&across * weights, own * *wider - &across * factor.solve(&across.transpose()))
}

/// How far measured times are off what the forecasts and all other times say of them: the number of times, and the mean
/// of their absolute errors.
pub(super) fn held_back(calls: &[Tuned]) -> (usize, f64) {
    let mut errors = Vec::new();
    for of in calls.chunk_by(Tuned::is_like) {
        let seen: Vec<Seen<'_>> = of.iter().flat_map(seen_of).collect();
        let seen: Vec<&Seen<'_>> = seen.iter().collect();
        for near in seen.chunks(NEAREST) {
            let fitted = Fitted::of(near);
            let off = fitted.iter().flat_map(|fitted| apart(&fitted.factor, &fitted.weights));
            errors.extend(off.map(|(off, _)| off.exp_m1().abs()));
        }
    }
    (errors.len(), mean(errors.iter().copied()))
}

//! How far measurements are from predictions, by what bounds them: the intervals of predictions.

use std::collections::BTreeMap;
use std::f64::consts::PI;

use super::rows::{Judged, Sample, mean};
use crate::profile::{Profile, Spread};

/// Rows below which a class of its own says too little: a 5th percentile needs 20.
const ENOUGH: usize = 20;
/// Share of unseen rows inside an interval, and the normal distribution's quantile of its upper end.
const INSIDE: f64 = 0.9;
const NORMAL: f64 = 1.6449;

/// Intervals that hold 90% of measured over predicted time, from residuals of rows that the fit had
/// not seen, by what bounds them ([`Spread::class`]).
///
/// They reach as far down as up: on which side of a prediction a class lies is itself something that
/// runs differ in, and a fit to other runs errs the other way. What a class has shown is wider for a
/// row to come of a run to come, as rows of one run are wrong together and are worth less than their
/// number.
pub fn spreads(samples: &[Sample], held: &[Judged], rows: &[usize]) -> Vec<Spread> {
    let mut classes: BTreeMap<String, BTreeMap<&str, Vec<f64>>> = BTreeMap::new();
    for &r in rows {
        let class = Spread::class(samples[r].protocol, samples[r].settings.launch, held[r].bound);
        let runs = classes.entry(class).or_default();
        runs.entry(samples[r].run.as_str()).or_default().push(held[r].residual);
    }
    let told = |(class, runs): (String, BTreeMap<&str, Vec<f64>>)| {
        let runs: Vec<Vec<f64>> = runs.into_values().collect();
        let wider = unseen(worth(&runs));
        let mut off: Vec<f64> = runs.iter().flatten().map(|residual| residual.abs()).collect();
        off.sort_by(f64::total_cmp);
        (off.len() >= ENOUGH).then(|| {
            let half = wider * interpolated(&off, INSIDE);
            Spread { class, low: (-half).exp(), high: half.exp(), rows: off.len() }
        })
    };
    classes.into_iter().filter_map(told).collect()
}

/// How much wider than among themselves values to come are spread, where there were so many
/// independent ones: Student's quantile over the normal one, and the mean's own uncertainty; from two degrees up.
fn unseen(count: f64) -> f64 {
    student((count - 1.0).max(2.0)) / NORMAL * (1.0 + 1.0 / count.max(1.0)).sqrt()
}

/// Student's quantile of the upper end of what is [`INSIDE`]: without limit where no degree of freedom is left. From
/// two up as in Abramowitz and Stegun, "Handbook of Mathematical Functions", 1964, 26.7.5.
pub(super) fn student(freedom: f64) -> f64 {
    if freedom < 2.0 {
        return if freedom < 1.0 { f64::INFINITY } else { (PI * INSIDE / 2.0).tan() };
    }
    let z = NORMAL;
    let terms = [
        (z.powi(3) + z) / 4.0,
        (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0,
        (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0,
    ];
    z + terms.into_iter().rev().fold(0.0, |sum, term| (sum + term) / freedom)
}

/// How many independent values groups of related ones are worth: their number over the design effect
/// `1 + (m - 1) rho` (Kish, "Survey Sampling", 1965), with the correlation inside groups by analysis of
/// variance and `m` its mean size of a group.
pub(super) fn worth(groups: &[Vec<f64>]) -> f64 {
    let count = groups.iter().map(Vec::len).sum::<usize>() as f64;
    let between = groups.len().saturating_sub(1) as f64;
    let within = count - groups.len() as f64;
    if between == 0.0 || within == 0.0 {
        return if between == 0.0 { 1.0 } else { count };
    }
    let all = mean(groups.iter().flatten().copied());
    let (mut apart, mut inside) = (0.0, 0.0);
    for group in groups {
        let own = mean(group.iter().copied());
        apart += group.len() as f64 * (own - all).powi(2);
        inside += group.iter().map(|v| (v - own).powi(2)).sum::<f64>();
    }
    let (apart, inside) = (apart / between, inside / within);
    let squares: f64 = groups.iter().map(|g| (g.len() as f64).powi(2)).sum();
    let size = (count - squares / count) / between;
    let total = apart + (size - 1.0) * inside;
    let alike = if total > 0.0 { ((apart - inside) / total).max(0.0) } else { 0.0 };
    count / (1.0 + (size - 1.0).max(0.0) * alike)
}

/// The quantile of sorted values, between neighbours in proportion.
pub(super) fn interpolated(sorted: &[f64], q: f64) -> f64 {
    let place = q * (sorted.len() - 1) as f64;
    let (low, share) = (place.floor() as usize, place.fract());
    let high = (low + 1).min(sorted.len() - 1);
    sorted[low] * (1.0 - share) + sorted[high] * share
}

/// How often measurements were inside their intervals.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Coverage {
    /// Rows.
    pub rows: usize,
    /// Share of them inside.
    pub inside: f64,
    /// Median width of the interval, of the prediction.
    pub width: f64,
}

/// Coverage of intervals that the other folds set: by sample, whether it is inside and how wide the
/// interval is; `None` where no class has enough rows. What is outside the domain of the other folds is
/// extrapolated: its interval is that of `profile` there.
pub fn coverage(samples: &[Sample], held: &[Judged], fold: &[usize], profile: &Profile) -> Vec<Option<(bool, f64)>> {
    let folds = fold.iter().max().map_or(0, |m| m + 1);
    let mut out = vec![None; held.len()];
    for f in 0..folds {
        let others: Vec<usize> = (0..held.len()).filter(|&r| fold[r] != f).collect();
        let of = |r: usize| (samples[r].algorithm, samples[r].protocol, &samples[r].call);
        let mut domain = profile.clone();
        domain.set_domain(others.iter().map(|&r| of(r)));
        let set = spreads(samples, held, &others);
        for r in (0..held.len()).filter(|&r| fold[r] == f) {
            let class = Spread::class(samples[r].protocol, samples[r].settings.launch, held[r].bound);
            let known = || set.iter().find(|s| s.class == class).map(|s| (s.low, s.high));
            let (algorithm, protocol, call) = of(r);
            let seen = domain.beyond(algorithm, protocol, call).is_empty();
            let interval = if seen { known() } else { Some(profile.interval("", true)) };
            out[r] = interval.map(|(low, high)| ((low..=high).contains(&(-held[r].residual).exp()), high - low));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: values that are alike inside a group are worth one each group, unrelated ones their
    /// number. Expected by hand: copies have correlation 1; groups with one mean have none.
    #[test]
    fn copies_are_worth_their_groups() {
        let copies = [vec![1.0; 8], vec![2.0; 8], vec![4.0; 8]];
        assert!((worth(&copies) - 3.0).abs() < 1e-9, "{}", worth(&copies));
        let unrelated = vec![vec![-1.0, 0.0, 1.0]; 5];
        assert!((worth(&unrelated) - 15.0).abs() < 1e-9, "{}", worth(&unrelated));
        assert!((worth(&[vec![1.0, 2.0]]) - 1.0).abs() < 1e-9);
    }

    /// Goal: Student's quantiles of a table (6.314 with 1 degree, 2.132 with 4, 1.697 with 30); none without a degree.
    #[test]
    fn few_values_leave_more_open() {
        assert!(student(0.0).is_infinite() && (student(1.0) - 6.314).abs() < 1e-3, "{}", student(1.0));
        for (count, quantile) in [(5.0_f64, 2.132), (31.0, 1.697)] {
            let expected = quantile / NORMAL * (1.0 + 1.0 / count).sqrt();
            assert!((unseen(count) / expected - 1.0).abs() < 2e-3, "{} for {expected}", unseen(count));
        }
    }
}

//! How far measurements are from predictions, by what bounds them: the intervals of predictions.

use std::collections::BTreeMap;

use super::{Judged, Sample};
use crate::profile::Spread;

/// Rows below which a class of its own says too little: a 5th percentile needs 20.
const ENOUGH: usize = 20;

/// The middle 90% of measured over predicted time, from residuals of rows that the fit had not
/// seen, by what bounds them ([`Spread::class`]).
pub fn spreads(samples: &[Sample], held: &[Judged], rows: &[usize]) -> Vec<Spread> {
    let mut classes: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for &r in rows {
        let class = Spread::class(samples[r].protocol, samples[r].settings.launch, held[r].bound);
        classes.entry(class).or_default().push(-held[r].residual);
    }
    let told = |(class, mut of): (String, Vec<f64>)| {
        of.sort_by(f64::total_cmp);
        (of.len() >= ENOUGH).then(|| Spread {
            class,
            low: quantile(&of, 0.05).exp(),
            high: quantile(&of, 0.95).exp(),
            rows: of.len(),
        })
    };
    classes.into_iter().filter_map(told).collect()
}

/// The quantile of sorted values, between neighbours in proportion.
fn quantile(sorted: &[f64], q: f64) -> f64 {
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
/// interval is; `None` where no class has enough rows.
pub fn coverage(samples: &[Sample], held: &[Judged], fold: &[usize]) -> Vec<Option<(bool, f64)>> {
    let folds = fold.iter().max().map_or(0, |m| m + 1);
    let mut out = vec![None; held.len()];
    for f in 0..folds {
        let others: Vec<usize> = (0..held.len()).filter(|&r| fold[r] != f).collect();
        let set = spreads(samples, held, &others);
        for r in (0..held.len()).filter(|&r| fold[r] == f) {
            let class = Spread::class(samples[r].protocol, samples[r].settings.launch, held[r].bound);
            out[r] = set.iter().find(|s| s.class == class).map(|s| {
                let ratio = (-held[r].residual).exp();
                ((s.low..=s.high).contains(&ratio), s.high - s.low)
            });
        }
    }
    out
}

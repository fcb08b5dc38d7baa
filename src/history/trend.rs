//! Since when runs are slower: where a series of levels changed.

use crate::statistics::{median, robust_deviation, upper_quantile};

/// Chance that a series in which nothing changed is split, over all its places.
const FALSE_ALARM: f64 = 0.01;
/// Runs before a change at least: as many as a verdict beside the past needs.
pub const FEWEST: usize = 3;

/// Where a series of logarithms changed, in the order of dates: the place of the first run after it, and the medians
/// before and after.
///
/// Of all splits it is the one with the least sum of distances from the two medians, which is the likeliest where errors
/// are Laplace's, whose tails are those of runs. It counts where the medians lie further apart than the noise of both
/// leaves, with a chance of 1% where nothing changed. `noise` is the least standard deviation of a single run.
pub(super) fn change(levels: &[f64], noise: f64) -> Option<(usize, f64, f64)> {
    let split = |at: usize| {
        let (before, after) = levels.split_at(at);
        let (b, a) = (median(before.to_vec()), median(after.to_vec()));
        let apart = before.iter().map(|y| (y - b).abs()).chain(after.iter().map(|y| (y - a).abs()));
        (at, b, a, apart.sum::<f64>())
    };
    let places = FEWEST..levels.len();
    let tests = places.len().max(1) as f64;
    let (at, before, after, _) = places.map(split).min_by(|x, y| x.3.total_cmp(&y.3))?;
    let within = levels.iter().enumerate().map(|(i, y)| y - if i < at { before } else { after });
    let deviation = robust_deviation(within.collect()).max(noise);
    // A median costs pi/2 of the variance of a mean; that of one run is the run.
    let of = |runs: usize| if runs > 2 { std::f64::consts::FRAC_PI_2 } else { 1.0 } / runs as f64;
    let standard = deviation * (of(at) + of(levels.len() - at)).sqrt();
    ((after - before).abs() > upper_quantile(FALSE_ALARM / 2.0 / tests) * standard).then_some((at, before, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a step is found at its place, one run far out among good ones is no step, and noise is none.
    /// Expected by hand: of 10 runs at 0 and 3 at -0.15 the split is at the 11th.
    #[test]
    fn steps_are_found_and_noise_is_not() {
        let wave = |i: usize| 0.004 * ((i * 7 % 5) as f64 - 2.0);
        let series = |step: f64| -> Vec<f64> { (0..13).map(|i| wave(i) + if i >= 10 { step } else { 0.0 }).collect() };
        assert_eq!(change(&series(-0.15), 0.01).map(|c| c.0), Some(10));
        assert_eq!(change(&series(0.0), 0.01), None);
        let mut out = series(0.0);
        out[5] = -0.3;
        assert_eq!(change(&out, 0.01), None);
        let last: Vec<f64> = series(0.0)[..10].iter().copied().chain([-0.15]).collect();
        assert_eq!(change(&last, 0.01).map(|c| c.0), Some(10));
        assert_eq!(change(&[0.0, -0.2, -0.2], 0.01), None);
    }
}

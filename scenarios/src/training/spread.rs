//! GPUs of one kind are not equally fast, and a job waits for its slowest.

/// Standard deviation of the time that kernels take, over GPUs of one kind. Two pairs of H200 differed by 0.7% and by 3%
/// (`docs/model/step.md`): 1.85% on average, which is 1.13 deviations of two. The largest product of the GPUs of one host
/// differs by 5% (stas00/ml-engineering 744d01e, MAMF): 2.85 deviations of eight. Five clusters have 8% between the ends of
/// their GPUs (Sinha et al., SC 2022, arXiv 2208.11035): 5.4 deviations between the whiskers of a box plot.
const SPREAD: f64 = 0.016;

/// How many times as long kernels take on the slowest of so many GPUs as on a mean one: the expected largest of so many normal
/// values (Blom 1958), the quantile by Abramowitz and Stegun, 26.2.23, to 0.0005.
pub(super) fn slowest_of(gpus: u64) -> f64 {
    if gpus < 2 {
        return 1.0;
    }
    let n = gpus as f64;
    let t = (-2.0 * (0.625 / (n + 0.25)).ln()).sqrt();
    let quantile =
        t - (2.515_517 + t * (0.802_853 + t * 0.010_328)) / (1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308)));
    1.0 + SPREAD * quantile
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the expected largest of normal values. Source: Harter 1961, table 1: 0.564, 1.424, 2.249 of 2, 8 and 50.
    #[test]
    fn the_slowest_is_the_largest_of_normal_values() {
        for (gpus, expected) in [(2, 0.564), (8, 1.424), (50, 2.249)] {
            let got = (slowest_of(gpus) - 1.0) / SPREAD;
            assert!((got - expected).abs() < 0.03, "{gpus}: {got}");
        }
        assert!(slowest_of(1) == 1.0 && slowest_of(512) > slowest_of(128));
    }
}

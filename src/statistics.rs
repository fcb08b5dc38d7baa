//! Means, medians and quantiles.

pub use collcast_sim::calibrate::mean;

/// Standard deviations that a 90% interval is wide.
pub const INTERVAL: f64 = 3.29;

/// The mean of the logarithms of some values, as a value; 1 of none.
pub fn geometric_mean(values: impl Iterator<Item = f64>) -> f64 {
    mean(values.map(f64::ln)).exp()
}

/// The median; the mean of the middle two of an even number. Zero for none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match (values.get(half), values.len() % 2) {
        (None, _) => 0.0,
        (Some(middle), 1) => *middle,
        (Some(middle), _) => f64::midpoint(*middle, values[half - 1]),
    }
}

/// Of sorted values the one nearest to the quantile `q`, 0 <= q <= 1: the upper one of two that are as near. Zero for none.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let at = (q * last as f64).round() as usize;
    sorted.get(at.min(last)).copied().unwrap_or(0.0)
}

/// Standard deviation that a normal variable of this median absolute deviation has.
pub fn robust_deviation(values: Vec<f64>) -> f64 {
    let centre = median(values.clone());
    1.4826 * median(values.into_iter().map(|v| (v - centre).abs()).collect())
}

/// The z that a standard normal variable exceeds with probability `p`, 0 < p <= 0.5.
///
/// # Source
/// Abramowitz and Stegun, Handbook of Mathematical Functions, 26.2.23; error below 4.5e-4.
pub fn upper_quantile(p: f64) -> f64 {
    let t = (-2.0 * p.clamp(1e-300, 0.5).ln()).sqrt();
    let above = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let below = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    t - above / below
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the quantiles are those of printed tables.
    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (p, z) in [(0.5, 0.0), (0.158_655, 1.0), (0.025, 1.959_964), (0.005, 2.575_829), (1e-4, 3.719_016)] {
            assert!((upper_quantile(p) - z).abs() < 5e-4, "{p}: {}", upper_quantile(p));
        }
    }

    /// Goal: medians of odd, even and empty lists; outliers do not widen the deviation.
    #[test]
    fn medians_ignore_what_is_far_out() {
        assert_eq!(median(vec![]), 0.0);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(robust_deviation(vec![-1.0, 0.0, 1.0, 0.0, 1e9]), 1.4826);
    }

    /// Goal: quantiles are values of the list, also at its ends and of lists of one and none.
    #[test]
    fn quantiles_are_values_of_the_list() {
        let four = [1.0, 2.0, 3.0, 4.0];
        for (q, value) in [(0.0, 1.0), (0.5, 3.0), (0.95, 4.0), (1.0, 4.0)] {
            assert_eq!(quantile(&four, q), value, "{q}");
        }
        assert_eq!((quantile(&[7.0], 0.95), quantile(&[], 0.5)), (7.0, 0.0));
    }

    /// Goal: a factor and its inverse cancel.
    #[test]
    fn geometric_means_are_of_factors() {
        assert!((geometric_mean([0.25, 4.0, 8.0].into_iter()) - 2.0).abs() < 1e-12);
        assert_eq!(geometric_mean(std::iter::empty()), 1.0);
    }
}

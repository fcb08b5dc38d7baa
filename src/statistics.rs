//! Means, medians and quantiles.

pub use collcast_sim::calibrate::mean;
use serde::Serialize;

/// Errors of a set of rows, as fractions; zeros for none.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Stats {
    /// Rows.
    pub count: usize,
    /// Mean of the errors without their signs.
    pub mean_abs_error: f64,
    /// Median of the same.
    pub median_abs_error: f64,
    /// What 95% of the same do not exceed.
    pub p95_abs_error: f64,
    /// Mean of the errors with their signs.
    pub bias: f64,
}

impl Stats {
    /// Of some errors.
    pub fn of(errors: impl Iterator<Item = f64>) -> Self {
        let errors: Vec<f64> = errors.collect();
        if errors.is_empty() {
            return Self::default();
        }
        let mut sizes: Vec<f64> = errors.iter().map(|e| e.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        Self {
            count: errors.len(),
            mean_abs_error: mean(sizes.iter().copied()),
            p95_abs_error: quantile(&sizes, 0.95),
            median_abs_error: median(sizes),
            bias: mean(errors.iter().copied()),
        }
    }
}

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

/// Standard deviations of a normal variable that its median absolute deviation is one part of.
pub const NORMAL: f64 = 1.4826;

/// Standard deviation that a normal variable of this median absolute deviation has.
pub fn robust_deviation(values: Vec<f64>) -> f64 {
    let centre = median(values.clone());
    NORMAL * median(values.into_iter().map(|v| (v - centre).abs()).collect())
}

/// Variance of the median of `count` normal values, as a part of theirs: 1 of one, pi / (2 count) of many.
///
/// # Source
/// The asymptote with the term that makes it 1 of one; T. Hojo, "Distribution of the median, quartiles and interquartile
/// distance in samples from a normal population", Biometrika 23 (1931), has 0.449 of three and 0.287 of five: 2% more.
pub fn variance_of_median(count: usize) -> f64 {
    std::f64::consts::PI / (2.0 * count as f64 - 2.0 + std::f64::consts::PI)
}

/// The t that Student's variable of so many degrees of freedom exceeds with probability `p`, 0 < p <= 0.5.
///
/// # Source
/// D. L. Wallace, "Bounds on normal approximations to Student's and the chi-square distributions", Annals of Mathematical
/// Statistics 30 (1959): 3% too large for 4 degrees at p = 0.001, less for more.
pub fn student_quantile(p: f64, freedom: f64) -> f64 {
    let z = upper_quantile(p);
    if freedom.is_infinite() {
        return z;
    }
    let z = z * (8.0 * freedom + 3.0) / (8.0 * freedom + 1.0);
    (freedom * (z * z / freedom).exp_m1()).sqrt()
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

    /// Goal: those of Student's variable are never below the tables, and near them; of many degrees they are the normal ones.
    #[test]
    fn student_quantiles_are_those_of_the_tables() {
        for (p, freedom, t) in [(0.005, 4.0, 4.604), (0.001, 4.0, 7.173), (0.01, 10.0, 2.764), (1e-4, 30.0, 4.234)] {
            let ours = student_quantile(p, freedom);
            assert!((t * 0.999..t * 1.04).contains(&ours), "{p} {freedom}: {ours}");
        }
        assert!((student_quantile(0.01, 1e6) - upper_quantile(0.01)).abs() < 1e-3);
        assert_eq!(student_quantile(0.01, f64::INFINITY), upper_quantile(0.01));
    }

    /// Goal: the median of few values varies as much as tables have it.
    #[test]
    fn medians_of_few_vary_as_tables_have_it() {
        for (count, variance) in [(1, 1.0), (3, 0.4487), (5, 0.2868), (7, 0.2104)] {
            let ours = variance_of_median(count);
            assert!((ours / variance - 1.0).abs() < 0.025, "{count}: {ours}");
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

    /// Goal: errors by hand; the median of an even number is the middle of two, not the worse one.
    #[test]
    fn the_median_error_lies_between_the_middle_two() {
        let stats = Stats::of([0.01, -0.03, 0.05, -0.11].into_iter());
        assert_eq!((stats.count, stats.median_abs_error, stats.p95_abs_error), (4, 0.04, 0.11));
        assert!((stats.mean_abs_error - 0.05).abs() < 1e-12 && (stats.bias + 0.02).abs() < 1e-12, "{stats:?}");
        assert_eq!(Stats::of(std::iter::empty()), Stats::default());
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

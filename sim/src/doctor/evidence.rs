//! How well a curve of times explains another one, as a log-likelihood.
//!
//! The logarithm of measured over predicted is taken as a Gaussian process over the logarithm of
//! the size: an error of the model that all sizes share, one that drifts slowly with the size, what
//! the profile's constants may be off by, and noise of its own at every size. Single sizes may be outliers, at a price. Marginal likelihoods of
//! such models compare whole curves and need no penalty for parameters beyond their priors.
//! Source: Rasmussen and Williams, "Gaussian processes for machine learning", 2006, sections 2.2,
//! 2.3 and 5.4.2 (leave-one-out residuals).

/// Draws of the profile's constants that show how a curve may move with them: twice as many tell no more
/// of planted faults.
pub(super) const DRAWS: usize = 8;

/// One size of a curve.
#[derive(Clone, Copy, Debug)]
pub(super) struct Residual {
    /// Logarithm to base 2 of the size.
    pub(super) octave: f64,
    /// Natural logarithm of measured over predicted.
    pub(super) log_ratio: f64,
    /// Standard deviation of what the model may be wrong by, in natural logarithms.
    pub(super) model: f64,
    /// What each draw of the constants makes it longer, in natural logarithms.
    pub(super) constants: [f64; DRAWS],
    /// Standard deviation of the noise of this size alone.
    pub(super) noise: f64,
}

/// Octaves over which errors of the model stay alike: protocols and algorithms are each fastest over
/// four to eight of them.
const DRIFT_OCTAVES: f64 = 3.0;
/// Price of taking a size for an outlier: one size in 30 is one.
const OUTLIER_LOG_PRIOR: f64 = -3.4;
/// Standard deviation of an outlier: a factor of e.
const OUTLIER_NOISE: f64 = 1.0;
/// A size is tried as an outlier where the others predict it this many standard deviations away.
const OUTLIER_Z: f64 = 4.0;

/// Log-likelihood of residuals, and which of them are outliers.
pub(super) fn log_likelihood(residuals: &[Residual]) -> (f64, Vec<usize>) {
    let mut residuals = residuals.to_vec();
    let mut outliers = Vec::new();
    let (mut best, mut z) = gaussian(&residuals);
    // More than one size in five is no outlier but the rule; one may always be.
    for _ in 0..residuals.len().div_ceil(5) {
        let Some((worst, _)) = z
            .iter()
            .enumerate()
            .filter(|(i, z)| **z > OUTLIER_Z && !outliers.contains(i))
            .max_by(|a, b| a.1.total_cmp(b.1))
        else {
            break;
        };
        let before = std::mem::replace(&mut residuals[worst].noise, OUTLIER_NOISE);
        let (value, next) = gaussian(&residuals);
        if value + OUTLIER_LOG_PRIOR <= best {
            residuals[worst].noise = before;
            break;
        }
        outliers.push(worst);
        (best, z) = (value + OUTLIER_LOG_PRIOR, next);
    }
    (best, outliers)
}

/// Log-density of the residuals, and how far each is from what the others say, in standard deviations.
fn gaussian(residuals: &[Residual]) -> (f64, Vec<f64>) {
    let n = residuals.len();
    let mut lower = vec![vec![0.0; n]; n];
    for (i, a) in residuals.iter().enumerate() {
        for (j, b) in residuals.iter().enumerate().take(i + 1) {
            let apart = (a.octave - b.octave) / DRIFT_OCTAVES;
            // Half of the variance is shared by all sizes, half drifts.
            let shared = a.model * b.model * (0.5 + 0.5 * (-0.5 * apart * apart).exp());
            let constants = a.constants.iter().zip(&b.constants).map(|(a, b)| a * b).sum::<f64>() / DRAWS as f64;
            lower[i][j] = shared + constants + if i == j { a.noise * a.noise } else { 0.0 };
        }
    }
    factorise(&mut lower);
    let values: Vec<f64> = residuals.iter().map(|r| r.log_ratio).collect();
    let white = forward(&lower, &values);
    let log_determinant: f64 = (0..n).map(|i| lower[i][i].ln()).sum();
    let squares: f64 = white.iter().map(|w| w * w).sum();
    let density = -0.5 * squares - log_determinant - 0.5 * n as f64 * std::f64::consts::TAU.ln();
    let weighted = backward(&lower, &white);
    let distance = |i: usize| {
        let mut unit = vec![0.0; n];
        unit[i] = 1.0;
        let column = forward(&lower, &unit);
        let precision: f64 = column.iter().map(|c| c * c).sum();
        weighted[i].abs() / precision.sqrt()
    };
    (density, (0..n).map(distance).collect())
}

/// Cholesky factor of a positive definite matrix given by its lower half, in place.
pub(super) fn factorise(matrix: &mut [Vec<f64>]) {
    for i in 0..matrix.len() {
        for j in 0..=i {
            let sum: f64 = (0..j).map(|k| matrix[i][k] * matrix[j][k]).sum();
            let rest = matrix[i][j] - sum;
            matrix[i][j] = if i == j { rest.max(1e-12).sqrt() } else { rest / matrix[j][j] };
        }
    }
}

/// Solves with a lower factor.
pub(super) fn forward(lower: &[Vec<f64>], right: &[f64]) -> Vec<f64> {
    let mut out = vec![0.0; right.len()];
    for i in 0..right.len() {
        let sum: f64 = (0..i).map(|k| lower[i][k] * out[k]).sum();
        out[i] = (right[i] - sum) / lower[i][i];
    }
    out
}

/// Solves with the transpose of a lower factor.
pub(super) fn backward(lower: &[Vec<f64>], right: &[f64]) -> Vec<f64> {
    let n = right.len();
    let mut out = vec![0.0; n];
    for i in (0..n).rev() {
        let sum: f64 = (i + 1..n).map(|k| lower[k][i] * out[k]).sum();
        out[i] = (right[i] - sum) / lower[i][i];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn residuals(log_ratios: &[f64]) -> Vec<Residual> {
        (0..)
            .zip(log_ratios)
            .map(|(i, &log_ratio)| Residual {
                octave: f64::from(i),
                log_ratio,
                model: 0.2,
                constants: [0.0; DRAWS],
                noise: 0.05,
            })
            .collect()
    }

    /// Goal: with one size it is the density of a normal distribution, by hand.
    #[test]
    fn one_size_is_a_normal_density() {
        let (density, outliers) = log_likelihood(&residuals(&[0.1]));
        let variance: f64 = 0.2 * 0.2 + 0.05 * 0.05;
        let expected = -0.5 * (0.01 / variance) - 0.5 * (std::f64::consts::TAU * variance).ln();
        assert!((density - expected).abs() < 1e-12, "{density} {expected}");
        assert!(outliers.is_empty());
    }

    /// Goal: what the constants may do costs less than the same of another shape.
    #[test]
    fn the_shape_of_the_constants_is_cheap() {
        let bent: Vec<f64> = (0..10).map(|i| if i % 3 == 0 { 0.4 } else { 0.0 }).collect();
        let mut with = residuals(&bent);
        let (before, _) = log_likelihood(&with);
        with.iter_mut().zip(&bent).for_each(|(r, b)| r.constants = [*b; DRAWS]);
        let (after, _) = log_likelihood(&with);
        assert!(after > before + 5.0, "{before} {after}");
    }

    /// Goal: a spike costs its price and no more; a plateau of as much is no outlier.
    #[test]
    fn a_spike_is_an_outlier_and_a_plateau_is_not() {
        let mut ratios = vec![0.0; 12];
        let (flat, _) = log_likelihood(&residuals(&ratios));
        ratios[6] = 2.0;
        let (spiked, outliers) = log_likelihood(&residuals(&ratios));
        assert_eq!(outliers, [6]);
        assert!((-10.0..-3.4).contains(&(spiked - flat)), "{spiked} {flat}");
        for ratio in &mut ratios[4..9] {
            *ratio = 2.0;
        }
        let (plateau, _) = log_likelihood(&residuals(&ratios));
        assert!(plateau < spiked - 20.0, "{plateau}");
    }
}

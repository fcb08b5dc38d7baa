//! Robust least squares with bounds.
//!
//! Levenberg's and Marquardt's method on Huber's loss: residuals beyond a few times the usual one
//! count by their size and no more by its square, so that a row that went wrong does not bend the
//! fit. A pull to the start keeps what the data cannot tell apart where it was.
//!
//! Sources: Marquardt, SIAM J. Appl. Math. 11(2), 1963; Huber, Ann. Math. Statist. 35(1), 1964;
//! bounds by projection as in Kanzow, Yamashita and Fukushima, J. Comput. Appl. Math. 172(2), 2004.

use nalgebra::{Cholesky, DMatrix, DVector};

/// What is to be made small: residuals of some unknowns, and how they change with them.
pub trait Problem {
    /// Why it cannot be evaluated.
    type Error;

    /// Residuals, in the same order each time.
    ///
    /// # Errors
    /// An evaluation that fails ends the search.
    fn residuals(&self, x: &[f64]) -> Result<Vec<f64>, Self::Error>;

    /// Derivatives of the residuals, `residuals x unknowns`; `at` are the residuals there.
    ///
    /// # Errors
    /// As of the residuals.
    fn jacobian(&self, x: &[f64], at: &[f64]) -> Result<DMatrix<f64>, Self::Error>;
}

/// How to search.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Options {
    /// Residual up to which the loss is quadratic.
    pub huber: f64,
    /// Pull to the start: the loss of one unit away from it is that of so large a residual.
    pub pull: f64,
    /// Steps at most.
    pub steps: usize,
    /// A step shorter than this in every unknown is the last.
    pub tolerance: f64,
    /// So is one that lowers the loss by a smaller part, or would by what the derivatives promise.
    pub flat: f64,
    /// Derivatives stay those of the start: steps correct them, and where that leads no further down the search ends.
    pub fixed: bool,
    /// Mean size of the residuals at which the search ends before it stands still.
    pub enough: f64,
}

/// Where a search ended.
#[derive(Clone, PartialEq, Debug)]
pub struct Solution {
    /// The unknowns.
    pub x: Vec<f64>,
    /// Residuals there.
    pub residuals: Vec<f64>,
    /// The last derivatives used.
    pub jacobian: DMatrix<f64>,
    /// Loss there.
    pub loss: f64,
    /// Steps taken.
    pub steps: usize,
}

impl Solution {
    /// Mean of its residuals, without sign.
    pub fn error(&self) -> f64 {
        size(&self.residuals)
    }
}

fn size(residuals: &[f64]) -> f64 {
    residuals.iter().map(|r| r.abs()).sum::<f64>() / residuals.len().max(1) as f64
}

/// Huber's weight of a residual: 1 inside, falling as its inverse outside.
pub fn huber_weight(residual: f64, huber: f64) -> f64 {
    if residual.abs() <= huber { 1.0 } else { huber / residual.abs() }
}

fn loss(residuals: &[f64], x: &[f64], start: &[f64], options: &Options) -> f64 {
    let h = options.huber;
    let data: f64 = residuals.iter().map(|r| if r.abs() <= h { r * r / 2.0 } else { h * (r.abs() - h / 2.0) }).sum();
    let pulled: f64 = x.iter().zip(start).map(|(x, s)| (options.pull * (x - s)).powi(2) / 2.0).sum();
    data + pulled
}

/// Marquardt's damping to begin with, of the diagonal.
const DAMPING: f64 = 1e-3;
/// Tries at a shorter step, with derivatives that were taken anew.
const TRIES: usize = 12;
/// The same with those that were corrected: new ones may help more than yet a shorter step.
const TRIES_CORRECTED: usize = 4;

/// Minimises Huber's loss between bounds, from `start`, or from `from` with the pull to `start`.
///
/// Derivatives are dear: between places where they are taken anew, each step corrects them by what it
/// found, until it leads no further down.
///
/// # Errors
/// The first that the problem reports.
pub fn minimise<P: Problem>(
    problem: &P,
    start: &[f64],
    from: &[f64],
    bounds: &[(f64, f64)],
    options: &Options,
) -> Result<Solution, P::Error> {
    let n = start.len();
    let mut x: Vec<f64> = from.iter().zip(bounds).map(|(&v, &(low, high))| v.clamp(low, high)).collect();
    let mut residuals = problem.residuals(&x)?;
    let mut best = loss(&residuals, &x, start, options);
    let mut damping = DAMPING;
    let mut jacobian = problem.jacobian(&x, &residuals)?;
    // Whether the derivatives are those of this place.
    let mut fresh = !options.fixed;
    let mut steps = 0;
    while steps < options.steps && size(&residuals) > options.enough {
        let (normal, gradient) = normal(&jacobian, &residuals, &x, start, options);
        // What stands at a bound and is drawn outside stays there.
        let free: Vec<usize> = (0..n)
            .filter(|&i| !(x[i] <= bounds[i].0 && gradient[i] > 0.0 || x[i] >= bounds[i].1 && gradient[i] < 0.0))
            .collect();
        let (from, before) = ((x.clone(), residuals.clone()), best);
        let mut longest: f64 = 0.0;
        for _ in 0..if fresh { TRIES } else { TRIES_CORRECTED } {
            let mut system = normal.select_rows(&free).select_columns(&free);
            system.set_diagonal(&(system.diagonal() * (1.0 + damping)));
            let Some(definite) = Cholesky::new(system) else {
                damping *= 10.0;
                continue;
            };
            let downhill = -gradient.select_rows(&free);
            let step = definite.solve(&downhill);
            // What the derivatives promise at most.
            if step.dot(&downhill) / 2.0 <= options.flat * best {
                break;
            }
            let mut next = x.clone();
            for (&i, s) in free.iter().zip(step.iter()) {
                next[i] = (x[i] + s.clamp(-1.0, 1.0)).clamp(bounds[i].0, bounds[i].1);
            }
            let step = DVector::from_iterator(n, next.iter().zip(&x).map(|(a, b)| a - b));
            longest = step.amax();
            // What they promise of a step that was cut short; it may be less than nothing.
            if gradient.dot(&step) + (&normal * &step).dot(&step) / 2.0 >= 0.0 {
                damping *= 4.0;
                continue;
            }
            let there = problem.residuals(&next)?;
            let lower = loss(&there, &next, start, options);
            if lower < best {
                (x, residuals, best) = (next, there, lower);
                damping = (damping / 5.0).max(1e-9);
                break;
            }
            damping *= 4.0;
            if longest < options.tolerance {
                break;
            }
        }
        steps += 1;
        let fell = before - best;
        let still = fell <= options.flat * before || longest < options.tolerance;
        if still && (fresh || options.fixed) {
            break;
        }
        fresh = still;
        if still {
            (jacobian, damping) = (problem.jacobian(&x, &residuals)?, DAMPING);
        } else {
            correct(&mut jacobian, (&from.0, &x), (&from.1, &residuals));
        }
    }
    if !fresh {
        jacobian = problem.jacobian(&x, &residuals)?;
    }
    Ok(Solution { x, residuals, jacobian, loss: best, steps })
}

/// Corrects derivatives so that they give the residuals at both ends of a step, changing them as little as
/// can be: Broyden's secant, Math. Comp. 19(92), 1965, row by row over what is not 0 there, as Schubert's,
/// Math. Comp. 24(109), 1970, for what a residual does not depend on.
fn correct(jacobian: &mut DMatrix<f64>, (from, to): (&[f64], &[f64]), (before, after): (&[f64], &[f64])) {
    let step: Vec<f64> = to.iter().zip(from).map(|(t, f)| t - f).collect();
    for (mut row, (after, before)) in jacobian.row_iter_mut().zip(after.iter().zip(before)) {
        let told: f64 = row.iter().zip(&step).map(|(d, s)| d * s).sum();
        let length: f64 = row.iter().zip(&step).map(|(d, s)| if *d == 0.0 { 0.0 } else { s * s }).sum();
        if length > 0.0 {
            let missed = (after - before - told) / length;
            row.iter_mut().zip(&step).filter(|(d, _)| **d != 0.0).for_each(|(d, s)| *d += missed * s);
        }
    }
}

/// Gauss' matrix and gradient of the loss, weighted as Huber does.
fn normal(
    jacobian: &DMatrix<f64>,
    residuals: &[f64],
    x: &[f64],
    start: &[f64],
    options: &Options,
) -> (DMatrix<f64>, DVector<f64>) {
    let weights = residuals.iter().map(|r| huber_weight(*r, options.huber));
    let mut weighted = jacobian.clone();
    for (mut row, weight) in weighted.row_iter_mut().zip(weights) {
        row *= weight;
    }
    let pull = options.pull * options.pull;
    let away = DVector::from_iterator(x.len(), x.iter().zip(start).map(|(x, s)| pull * (x - s)));
    let normal = jacobian.tr_mul(&weighted) + DMatrix::from_diagonal_element(x.len(), x.len(), pull);
    let gradient = weighted.tr_mul(&DVector::from_column_slice(residuals)) + away;
    (normal, gradient)
}

/// Covariance of the unknowns, with residuals of one cluster taken as one observation: rows of one
/// run are wrong together. `A^-1 (sum over clusters of g g^T) A^-1`, Liang and Zeger, Biometrika
/// 73(1), 1986; never below what independent residuals give.
pub fn covariance(solution: &Solution, clusters: &[usize], start: &[f64], options: &Options) -> Option<DMatrix<f64>> {
    let n = solution.x.len();
    let (normal, _) = normal(&solution.jacobian, &solution.residuals, &solution.x, start, options);
    let bread = Cholesky::new(normal)?.inverse();
    let count = clusters.iter().max().map_or(0, |m| m + 1);
    let mut sums = DMatrix::zeros(count, n);
    let mut squares = 0.0;
    for (i, (residual, &cluster)) in solution.residuals.iter().zip(clusters).enumerate() {
        let score = huber_weight(*residual, options.huber) * residual;
        squares += score * residual;
        let mut sum = sums.row_mut(cluster);
        sum += solution.jacobian.row(i) * score;
    }
    let freedom = solution.residuals.len().saturating_sub(n).max(1) as f64;
    let variance = squares / freedom;
    let few = count as f64 / (count.saturating_sub(1)).max(1) as f64;
    let mut covariance = &bread * (sums.tr_mul(&sums) * few) * &bread;
    let alone = bread.diagonal() * variance;
    covariance.set_diagonal(&covariance.diagonal().sup(&alone));
    Some(covariance)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rosenbrock's valley as residuals: the minimum is at (1, 1).
    struct Valley;

    impl Problem for Valley {
        type Error = std::convert::Infallible;

        fn residuals(&self, x: &[f64]) -> Result<Vec<f64>, Self::Error> {
            Ok(vec![10.0 * (x[1] - x[0] * x[0]), 1.0 - x[0]])
        }

        fn jacobian(&self, x: &[f64], _: &[f64]) -> Result<DMatrix<f64>, Self::Error> {
            Ok(DMatrix::from_row_slice(2, 2, &[-20.0 * x[0], 10.0, -1.0, 0.0]))
        }
    }

    const OPTIONS: Options =
        Options { huber: 1e9, pull: 0.0, steps: 200, tolerance: 1e-10, flat: 0.0, fixed: false, enough: 0.0 };

    /// Goal: the minimum is found, inside bounds and on them: with x at most 0.5 the best of the
    /// valley is (0.5, 0.25), by hand.
    #[test]
    fn a_curved_valley_is_followed_to_its_end() {
        for (bound, expected) in [(2.0, [1.0, 1.0]), (0.5, [0.5, 0.25])] {
            let start = [-1.2, 1.0];
            let Ok(found) = minimise(&Valley, &start, &start, &[(-2.0, bound), (-2.0, 2.0)], &OPTIONS);
            for (x, e) in found.x.iter().zip(expected) {
                assert!((x - e).abs() < 1e-6, "{:?}", found.x);
            }
        }
    }

    /// Goal: corrected derivatives give what the step found, and stay 0 where they were. By hand: a step of (1, 2)
    /// was told to change the first residual by 3 and changed it by 8, which is 1 and 2 more; the second depends on
    /// one unknown alone and changed by 6.
    #[test]
    fn derivatives_are_corrected_by_what_a_step_found() {
        let mut jacobian = DMatrix::from_row_slice(2, 2, &[1.0, 1.0, 0.0, 5.0]);
        correct(&mut jacobian, (&[0.0, 0.0], &[1.0, 2.0]), (&[0.0, 1.0], &[8.0, 7.0]));
        assert_eq!(jacobian, DMatrix::from_row_slice(2, 2, &[2.0, 3.0, 0.0, 3.0]));
    }

    /// A line through points, the last of which is far off.
    struct Line(Vec<f64>);

    impl Problem for Line {
        type Error = std::convert::Infallible;

        fn residuals(&self, x: &[f64]) -> Result<Vec<f64>, Self::Error> {
            Ok(self.0.iter().enumerate().map(|(i, y)| x[0] + x[1] * i as f64 - y).collect())
        }

        fn jacobian(&self, _: &[f64], at: &[f64]) -> Result<DMatrix<f64>, Self::Error> {
            Ok(DMatrix::from_fn(at.len(), 2, |i, column| if column == 0 { 1.0 } else { i as f64 }))
        }
    }

    /// Goal: one wild point does not bend the line, and what no point tells stays at its start.
    #[test]
    fn a_wild_point_counts_little_and_the_unseen_stays() {
        let mut points: Vec<f64> = (0..20).map(|i| 2.0 + 0.5 * f64::from(i)).collect();
        points[19] += 100.0;
        let start = [0.0, 0.0];
        let options = Options { huber: 0.1, ..OPTIONS };
        let Ok(found) = minimise(&Line(points), &start, &start, &[(-9.0, 9.0); 2], &options);
        assert!((found.x[0] - 2.0).abs() < 0.02 && (found.x[1] - 0.5).abs() < 0.01, "{:?}", found.x);
        let options = Options { pull: 1e-3, ..OPTIONS };
        let Ok(found) = minimise(&Line(vec![3.0]), &[0.0, 0.7], &[0.0, 0.7], &[(-9.0, 9.0); 2], &options);
        assert!((found.x[0] - 3.0).abs() < 1e-3 && (found.x[1] - 0.7).abs() < 1e-9, "{:?}", found.x);
    }

    /// Goal: intervals of correlated rows are those of the clusters: ten copies of each point tell
    /// no more than the points. Expected: the variance of a mean of 4 values, by hand.
    #[test]
    fn copies_of_a_row_add_no_certainty() {
        struct Mean(Vec<f64>);
        impl Problem for Mean {
            type Error = std::convert::Infallible;
            fn residuals(&self, x: &[f64]) -> Result<Vec<f64>, Self::Error> {
                Ok(self.0.iter().map(|y| x[0] - y).collect())
            }
            fn jacobian(&self, _: &[f64], at: &[f64]) -> Result<DMatrix<f64>, Self::Error> {
                Ok(DMatrix::from_element(at.len(), 1, 1.0))
            }
        }
        let values: Vec<f64> = [1.0, 2.0, 4.0, 5.0].into_iter().flat_map(|v| [v; 10]).collect();
        let clusters: Vec<usize> = (0..40).map(|i| i / 10).collect();
        let Ok(found) = minimise(&Mean(values), &[0.0], &[0.0], &[(-9.0, 9.0)], &OPTIONS);
        let covariance = covariance(&found, &clusters, &[0.0], &OPTIONS).unwrap();
        // Squares about the mean of 3 sum to 10; over 3 degrees and 4 values.
        assert!((covariance[0] - 10.0 / 3.0 / 4.0).abs() < 1e-6, "{covariance:?}");
    }
}

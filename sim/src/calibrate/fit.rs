//! The fit itself: a search over all parameters, of which those that the rows do not tell are then given up.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use nalgebra::{DMatrix, DVector};
use rayon::prelude::*;

use super::solve::{Options, Problem, Solution, covariance, minimise};
use super::spread::{interpolated, student, worth};
use super::{CalibrateError, Estimate, Fit, MOST_FITTED, Simulated, Study, mean, predictors};
use crate::predict::{PredictError, Predictor};
use crate::profile::{Parameter, Profile};

/// Beyond this a residual counts by its size alone: what repeats of one noisy call differ by.
const HUBER: f64 = 0.05;
/// Priors are taken to be within half of the truth: their standard deviation in logarithm.
const PRIOR: f64 = 0.4;
/// A parameter e times its prior costs as much as one residual of so much, where it is asked what the rows alone tell:
/// little enough to decide nothing.
const HINT: f64 = 0.02;
/// A normal distribution's standard deviation over the median of its absolute value.
const OVER_MEDIAN: f64 = 1.4826;
/// Standard deviation, in logarithm, from which a parameter is not identified: its 90% interval
/// leaves more than a factor of three open.
const IDENTIFIED: f64 = 0.35;
/// A parameter that is not told apart from others is given up only where the others can stand in for
/// it: where the mean error without it is at most so many times that with it.
const MISSED: f64 = 1.03;
/// A row whose residual moves by less, in logarithm, does not move: the rounding of a run.
const UNMOVED: f64 = 1e-5;
/// Relative step of a derivative: far above the rounding of a run and the beats of blocks that are not in step.
const STEP: f64 = 0.05;

/// What was found.
pub(super) struct Found {
    /// The parameters that the rows tell.
    free: Vec<usize>,
    /// Those that were given up.
    unknown: BTreeSet<usize>,
    solution: Solution,
}

impl Study<'_> {
    /// Fits the parameters that `may` move to the samples `rows`.
    ///
    /// # Errors
    /// A simulation that fails, or nothing to fit.
    pub fn fit(&self, rows: &[usize], may: &dyn Fn(&str) -> bool) -> Result<Fit, CalibrateError> {
        self.told(rows, &self.find(rows, may)?)
    }

    /// What the samples `rows` tell of the parameters that `may` move.
    pub(super) fn find(&self, rows: &[usize], may: &dyn Fn(&str) -> bool) -> Result<Found, CalibrateError> {
        let mut free: Vec<usize> = (0..self.constants.len()).filter(|&i| may(self.constants[i].name())).collect();
        free.retain(|&i| rows.iter().any(|&r| self.enters(r, i)));
        free.truncate(MOST_FITTED);
        if free.is_empty() {
            return Err(CalibrateError::NothingToFit);
        }
        let mut unknown = BTreeSet::new();
        let mut needed = BTreeSet::new();
        let search = |free: &[usize], from: &[f64], frozen: Option<&DMatrix<f64>>, pull: f64, enough: f64| {
            let options = Options { fixed: frozen.is_some(), enough, ..options(pull) };
            self.search(&Rows { study: self, rows, free, frozen }, free, from, &options)
        };
        let from: Vec<f64> = free.iter().map(|&i| self.start[i]).collect();
        let alone = search(&free, &from, None, HINT, 0.0)?;
        let pull = self.pull(rows, &alone.residuals);
        let mut solution = search(&free, &alone.x, Some(&alone.jacobian), pull, 0.0)?;
        // Whether the derivatives are those of a fit with more parameters.
        let mut stale = false;
        // Parameters that are given up at once, at most.
        let mut most = free.len();
        loop {
            // More unknowns than kernels can tell: some are given up whatever it costs.
            let crowded = free.len().saturating_sub(self.kernels(rows));
            let (kept, told) = self.sparse(rows, (&free, &needed), &solution, pull, (most, crowded));
            if kept.len() == free.len() {
                if stale {
                    let from = solution.x.clone();
                    (solution, stale) = (search(&free, &from, None, pull, 0.0)?, false);
                    continue;
                }
                let Some(idle) = self.idle(rows, &free, &solution)? else {
                    return Ok(Found { free, unknown, solution });
                };
                let mut from = solution.x.clone();
                from.remove(idle);
                unknown.insert(free.remove(idle));
                solution = search(&free, &from, None, pull, 0.0)?;
                continue;
            }
            let fewer: Vec<usize> = kept.iter().map(|&at| free[at]).collect();
            let given_up: Vec<usize> = free.iter().copied().filter(|i| !fewer.contains(i)).collect();
            let from: Vec<f64> = kept.iter().map(|&at| solution.x[at]).collect();
            // Each of several may be missed by as much as one.
            let most_error = if given_up.len() > 1 { told.max(solution.error()) } else { solution.error() };
            let enough = if crowded > 0 { 0.0 } else { MISSED * most_error };
            let without = search(&fewer, &from, Some(&solution.jacobian.select_columns(&kept)), pull, enough)?;
            if crowded > 0 || without.error() <= enough {
                stale = true;
                unknown.extend(given_up);
                (free, solution, most) = (fewer, without, 2 * most);
            } else if let [one] = given_up[..] {
                needed.insert(one);
            } else {
                most = given_up.len() / 2;
            }
        }
    }

    /// What is left of the unknowns `free`, by place, once those that the rows do not tell are given up one after the
    /// other, `most` of them or, where there are so many too many, `crowded`: as the derivatives of a fit have it,
    /// nothing being simulated. With the mean error that they promise. What is left may be told once another stands
    /// still; one that others cannot stand in for by the derivatives is given up by itself, to be tried.
    fn sparse(
        &self,
        rows: &[usize],
        (free, needed): (&[usize], &BTreeSet<usize>),
        fit: &Solution,
        pull: f64,
        (most, crowded): (usize, usize),
    ) -> (Vec<usize>, f64) {
        let mut kept: Vec<usize> = (0..free.len()).collect();
        let mut near = fit.clone();
        let mut doubtful = Vec::new();
        let most = if crowded > 0 { most.min(crowded) } else { most };
        while kept.len() > 1 && free.len() - kept.len() < most {
            let of: Vec<usize> = kept.iter().map(|&at| free[at]).collect();
            let covariance = self.covariance(rows, &of, &near);
            let variance = |at: usize| covariance.as_ref().map_or(0.0, |c| c[(at, at)]);
            let open = |at: &usize| {
                let untold = !needed.contains(&of[*at]) && variance(*at).max(0.0).sqrt() > IDENTIFIED;
                crowded > 0 || untold && !doubtful.contains(&kept[*at])
            };
            let worst = (0..kept.len()).filter(open).max_by(|&a, &b| variance(a).total_cmp(&variance(b)));
            let Some(worst) = worst else { break };
            let without = self.linear(&of, &near, worst, pull);
            if crowded == 0 && without.error() > MISSED * near.error() {
                doubtful.push(kept[worst]);
            } else {
                kept.remove(worst);
                near = without;
            }
        }
        if let Some(&first) = doubtful.first().filter(|_| kept.len() == free.len()) {
            kept.remove(first);
        }
        (kept, near.error())
    }

    /// The place of an unknown of the host's pace that goes back to its prior without moving a row: on the way here it bounded
    /// some, and does no more. Of other unknowns derivatives say what rows tell.
    fn idle(&self, rows: &[usize], free: &[usize], fit: &Solution) -> Result<Option<usize>, PredictError> {
        if free.len() < 2 {
            return Ok(None);
        }
        let problem = Rows { study: self, rows, free, frozen: None };
        let of_pace = |i: usize| self.cases.iter().all(|case| !case.depends.contains(&i));
        for (at, &i) in free.iter().enumerate().filter(|&(_, &i)| of_pace(i)) {
            let mut back = fit.x.clone();
            back[at] = self.start[i];
            let moved = problem.residuals(&back)?;
            if moved.iter().zip(&fit.residuals).all(|(there, here)| (there - here).abs() < UNMOVED) {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// A fit without one of its unknowns, as its derivatives have it.
    fn linear(&self, free: &[usize], fit: &Solution, without: usize, pull: f64) -> Solution {
        let mut fewer = free.to_vec();
        let back = self.start[fewer.remove(without)] - fit.x[without];
        let mut x = fit.x.clone();
        x.remove(without);
        let mut residuals = fit.residuals.clone();
        residuals.iter_mut().zip(fit.jacobian.column(without).iter()).for_each(|(r, slope)| *r += slope * back);
        let line = Line { x: &x, residuals, jacobian: fit.jacobian.clone().remove_column(without) };
        let Ok(solution) = self.search(&line, &fewer, &x, &options(pull));
        solution
    }

    /// Kernels of some rows.
    fn kernels(&self, rows: &[usize]) -> usize {
        rows.iter().map(|&r| self.of[r]).collect::<BTreeSet<_>>().len()
    }

    /// What the rows alone tell of the unknowns of a fit.
    fn covariance(&self, rows: &[usize], free: &[usize], fit: &Solution) -> Option<DMatrix<f64>> {
        let start: Vec<f64> = free.iter().map(|&i| self.start[i]).collect();
        covariance(fit, &self.clusters(rows), &start, &options(HINT))
    }

    /// The pull to priors that are worth as much against rows as their spread says: a residual's over theirs, with
    /// rows of one run, which are wrong together, for as few as they are worth.
    fn pull(&self, rows: &[usize], residuals: &[f64]) -> f64 {
        let mut runs: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        for (cluster, &residual) in self.clusters(rows).into_iter().zip(residuals) {
            runs.entry(cluster).or_default().push(residual);
        }
        let alike = residuals.len() as f64 / worth(&runs.into_values().collect::<Vec<_>>());
        let mut off: Vec<f64> = residuals.iter().map(|r| r.abs()).collect();
        off.sort_by(f64::total_cmp);
        (OVER_MEDIAN * interpolated(&off, 0.5) * alike.sqrt() / PRIOR).max(HINT)
    }

    fn search<P: Problem>(
        &self,
        problem: &P,
        free: &[usize],
        from: &[f64],
        options: &Options,
    ) -> Result<Solution, P::Error> {
        let bounds: Vec<(f64, f64)> = free.iter().map(|&i| self.bounds[i]).collect();
        let start: Vec<f64> = free.iter().map(|&i| self.start[i]).collect();
        minimise(problem, &start, from, &bounds, options)
    }

    fn told(&self, rows: &[usize], found: &Found) -> Result<Fit, CalibrateError> {
        let Found { free, unknown, solution } = found;
        let covariance = self.covariance(rows, free, solution);
        let x = self.all_of(found);
        let mut profile = self.profile(&x);
        let here = self.simulate(&profile, &(0..self.cases.len()).collect::<Vec<_>>())?;
        let judged = self.judge(&x)?;
        let mut estimates = Vec::new();
        for (at, &i) in free.iter().enumerate() {
            let deviation = covariance.as_ref().map_or(0.0, |c| c[(at, at)].max(0.0).sqrt());
            let half = student(self.runs(rows, i) as f64 - 1.0) * deviation;
            let (low, high) = self.bounds[i];
            let interval = ((x[i] - half).max(low).exp(), (x[i] + half).min(high).exp());
            let mut back = x.clone();
            back[i] = self.start[i];
            let errors = self.judge_near(&here, &back)?;
            estimates.push(Estimate {
                constant: self.constants[i],
                value: x[i].exp(),
                interval,
                prior: self.start[i].exp(),
                identified: true,
                at_bound: x[i] <= low || x[i] >= high,
                error_at_prior: mean(rows.iter().map(|&r| errors[r].error().abs())),
            });
            let fitted = Parameter { interval: Some(interval.into()), ..profile[self.constants[i]].clone() };
            profile.parameters.insert(self.constants[i], fitted);
        }
        let error = mean(rows.iter().map(|&r| judged[r].error().abs()));
        estimates.extend(unknown.iter().map(|&i| Estimate {
            constant: self.constants[i],
            value: self.start[i].exp(),
            interval: (self.bounds[i].0.exp(), self.bounds[i].1.exp()),
            prior: self.start[i].exp(),
            identified: false,
            at_bound: false,
            error_at_prior: error,
        }));
        Ok(Fit { profile, estimates, judged, steps: solution.steps })
    }

    /// The unknowns that were found, with the others at their prior.
    pub(super) fn all_of(&self, found: &Found) -> Vec<f64> {
        self.all(&found.free, &found.solution.x)
    }

    /// Runs of the rows that a parameter enters.
    fn runs(&self, rows: &[usize], parameter: usize) -> usize {
        let of = rows.iter().filter(|&&r| self.enters(r, parameter));
        of.map(|&r| self.samples[r].run.as_str()).collect::<BTreeSet<_>>().len()
    }
}

/// Some samples under some unknowns.
struct Rows<'s, 'a> {
    study: &'s Study<'a>,
    rows: &'s [usize],
    free: &'s [usize],
    /// Derivatives that are taken as they are.
    frozen: Option<&'s DMatrix<f64>>,
}

impl Rows<'_, '_> {
    fn needed(&self) -> Vec<usize> {
        self.rows.iter().map(|&r| self.study.of[r]).collect::<BTreeSet<_>>().into_iter().collect()
    }
}

impl Problem for Rows<'_, '_> {
    type Error = PredictError;

    fn residuals(&self, x: &[f64]) -> Result<Vec<f64>, PredictError> {
        let needed = self.needed();
        let profile = self.study.profile(&self.study.all(self.free, x));
        let simulated = self.study.simulate(&profile, &needed)?;
        let at = |r: usize| simulated[needed.binary_search(&self.study.of[r]).unwrap_or(0)];
        Ok(self.rows.iter().map(|&r| self.study.judged(r, &profile, at(r)).residual).collect())
    }

    fn jacobian(&self, x: &[f64], at: &[f64]) -> Result<DMatrix<f64>, PredictError> {
        if let Some(frozen) = self.frozen {
            return Ok(frozen.clone());
        }
        let study = self.study;
        let all = study.all(self.free, x);
        let moved: Vec<Profile> = (self.free.iter())
            .map(|&i| {
                let mut to = all.clone();
                // Away from the bound, where there is one.
                to[i] += if to[i] + STEP > study.bounds[i].1 { -STEP } else { STEP };
                study.profile(&to)
            })
            .collect();
        let predictors: Vec<Vec<Predictor<'_>>> = moved.iter().map(|p| predictors(study.machines, p)).collect();
        let needed = self.needed();
        let likes: BTreeSet<usize> = needed.iter().map(|&case| study.cases[case].like).collect();
        let jobs: Vec<(usize, usize)> = (likes.iter())
            .flat_map(|&case| {
                let entering = move |&column: &usize| study.cases[case].depends.contains(&self.free[column]);
                (0..self.free.len()).filter(entering).map(move |column| (case, column))
            })
            .collect();
        let results: Vec<Simulated> = (jobs.par_iter())
            .map(|&(case, column)| study.simulate_one(&predictors[column], &moved[column], case))
            .collect::<Result<_, _>>()?;
        let times: BTreeMap<(usize, usize), Simulated> = jobs.into_iter().zip(results).collect();
        let known: Vec<usize> = likes.into_iter().chain(needed).collect::<BTreeSet<_>>().into_iter().collect();
        let still = study.profile(&all);
        let now: BTreeMap<usize, Simulated> = known.iter().copied().zip(study.simulate(&still, &known)?).collect();
        let mut jacobian = DMatrix::zeros(self.rows.len(), self.free.len());
        for (row, &r) in self.rows.iter().enumerate() {
            let case = study.of[r];
            let (here, like) = (now[&case], study.cases[case].like);
            for (column, &i) in self.free.iter().enumerate() {
                if !study.enters(r, i) {
                    continue;
                }
                let there = times.get(&(like, column)).map_or(here, |&there| here.moved(now[&like], there));
                let residual = study.judged(r, &moved[column], there).residual;
                let step = if all[i] + STEP > study.bounds[i].1 { -STEP } else { STEP };
                jacobian[(row, column)] = (residual - at[row]) / step;
            }
        }
        Ok(jacobian)
    }
}

/// Residuals that go straight with the unknowns.
struct Line<'s> {
    x: &'s [f64],
    residuals: Vec<f64>,
    jacobian: DMatrix<f64>,
}

impl Problem for Line<'_> {
    type Error = Infallible;

    fn residuals(&self, x: &[f64]) -> Result<Vec<f64>, Infallible> {
        let moved = DVector::from_iterator(x.len(), x.iter().zip(self.x).map(|(to, from)| to - from));
        let changed = &self.jacobian * moved;
        Ok(self.residuals.iter().zip(changed.iter()).map(|(r, c)| r + c).collect())
    }

    fn jacobian(&self, _: &[f64], _: &[f64]) -> Result<DMatrix<f64>, Infallible> {
        Ok(self.jacobian.clone())
    }
}

fn options(pull: f64) -> Options {
    Options { huber: HUBER, pull, steps: 30, tolerance: 5e-3, flat: 1e-3, fixed: false, enough: 0.0 }
}

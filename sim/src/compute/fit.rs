//! Finds constants from measured times.
//!
//! Unknowns are logarithms of constants, residuals those of predicted over measured time, robust against rows that went
//! wrong ([`solve`](crate::calibrate::solve)). Rows of each kind count alike in all, however many there are.

use std::collections::BTreeMap;
use std::convert::Infallible;

use nalgebra::DMatrix;
use rayon::prelude::*;

use super::constants::Constant;
use super::copy::waits;
use super::gpu::{Clock, Compute, Unsupported};
use super::kernel::Kernel;
use super::power::Duty;
use super::work::Work;
use crate::calibrate::solve::{Options, Problem, minimise};

/// Beyond this a residual counts by its size alone: what repeats of one shape differ by at other temperatures.
const HUBER: f64 = 0.05;
/// A constant e times its start costs as much as one residual of so much: it decides only what no row tells.
const HINT: f64 = 0.05;
/// Relative step of a derivative: far above rounding, below the distance of tile shapes.
const STEP: f64 = 0.01;
/// Least logarithm of a constant that may be 0.
const LEAST: f64 = 1e-4;
/// Most times that rows of a rare kind count for those of the common one.
const MOST_WEIGHT: f64 = 6.0;
/// Of shapes, one in so many is left out of fits.
const LEFT_OUT: u64 = 5;

/// How a row was timed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Timing {
    /// Calls back to back, one shape after another, until the clock had settled.
    Settled,
    /// From an idle GPU: so many calls, then so many that are timed.
    Calls {
        /// Before.
        warmup: u32,
        /// Timed.
        timed: u32,
    },
    /// From an idle GPU, calls for so many seconds.
    Seconds(f64),
}

/// What a framework's host thread does for one call; short kernels wait for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Issue {
    /// Nothing that counts: a graph or a compiled program issues it.
    Free,
    /// So many operators of elements.
    Elements(u32),
    /// A normalisation.
    Norm,
    /// A product.
    Product,
    /// A product with scales.
    Scaled,
    /// Attention.
    Attention,
    /// A copy between host and GPU.
    Copy,
    /// A backward pass by automatic differentiation.
    Backward,
}

/// A measured time.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    /// Kind of row: all of one name count alike in a fit and are told apart in tables.
    pub group: String,
    /// Hash of its sizes: rows of the same sizes are left out of fits together.
    pub shape: u64,
    /// Kernels that one call runs.
    pub kernels: Vec<Kernel>,
    /// How it was timed.
    pub timing: Timing,
    /// Who issued it.
    pub issue: Issue,
    /// Time of a call in us.
    pub us: f64,
}

impl Sample {
    /// Whether it is of the fifth of all shapes that fits leave out.
    pub fn left_out(&self) -> bool {
        self.shape.is_multiple_of(LEFT_OUT)
    }

    /// What a GPU takes for it, in us.
    ///
    /// # Errors
    /// A precision that the GPU has not.
    pub fn predicted_us(&self, gpu: &Compute) -> Result<f64, Unsupported> {
        self.kernels.iter().try_for_each(|kernel| gpu.check(kernel))?;
        Ok(self.us_on(gpu))
    }

    fn us_on(&self, gpu: &Compute) -> f64 {
        let works: Vec<(Work, f64)> = self.kernels.iter().map(|kernel| (gpu.work(kernel, true), 1.0)).collect();
        let seconds = |clock: Clock| works.iter().map(|(work, _)| work.seconds(clock.share())).sum::<f64>();
        let run = match self.timing {
            Timing::Settled => Duty::Sustained,
            Timing::Calls { warmup, timed } => {
                let call = seconds(Clock::BOOST);
                Duty::Cold { warmup: call * f64::from(warmup), timed: call * f64::from(timed) }
            }
            Timing::Seconds(timed) => Duty::Cold { warmup: 0.0, timed },
        };
        let (run, issue) = (seconds(gpu.mean_of(&works, run)) * 1e6, issue_us(gpu, self.issue));
        // A host thread that waits for its copy issues the next one only then; else the longer of both counts.
        let waits = self.kernels.iter().any(|kernel| matches!(kernel, Kernel::HostCopy(copy) if waits(*copy)));
        if waits { run + issue } else { run.max(issue) }
    }
}

fn issue_us(gpu: &Compute, issue: Issue) -> f64 {
    match issue {
        Issue::Free => 0.0,
        Issue::Elements(operators) => f64::from(operators) * gpu.value(Constant::IssueElement),
        Issue::Norm => gpu.value(Constant::IssueNorm),
        Issue::Product => gpu.value(Constant::IssueProduct),
        Issue::Scaled => gpu.value(Constant::IssueScaled),
        Issue::Attention => gpu.value(Constant::IssueAttention),
        Issue::Copy => gpu.value(Constant::IssueCopy),
        Issue::Backward => gpu.value(Constant::IssueBackward),
    }
}

/// A fit.
#[derive(Clone, PartialEq, Debug)]
pub struct Fit {
    /// With the constants that were found.
    pub gpu: Compute,
    /// Which those are: of the ones that may move, those that some row depends on.
    pub fitted: Vec<Constant>,
}

/// Fits the constants that `may` move to samples, from those of `start`.
///
/// # Errors
/// A precision that the GPU has not.
pub fn fit(start: &Compute, samples: &[Sample], may: &dyn Fn(Constant) -> bool) -> Result<Fit, Unsupported> {
    samples.iter().flat_map(|s| &s.kernels).try_for_each(|kernel| start.check(kernel))?;
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    samples.iter().for_each(|s| *counts.entry(&s.group).or_default() += 1);
    let most = counts.values().copied().max().unwrap_or(1) as f64;
    let weight = |s: &Sample| (most / counts[s.group.as_str()] as f64).sqrt().min(MOST_WEIGHT);
    let weights: Vec<f64> = samples.iter().map(weight).collect();
    let free: Vec<Constant> = Constant::ALL.iter().copied().filter(|&c| c.is_fitted() && may(c)).collect();
    let mut fitting = Fitting { start, samples, weights: &weights, free };
    let x = fitting.from();
    let Ok(at) = fitting.residuals(&x);
    let Ok(jacobian) = fitting.jacobian(&x, &at);
    let told: Vec<usize> = (0..x.len()).filter(|&i| jacobian.column(i).amax() > 0.0).collect();
    fitting.free = told.iter().map(|&i| fitting.free[i]).collect();
    let x = fitting.from();
    let bounds: Vec<(f64, f64)> = fitting.free.iter().map(|&constant| bounds(constant)).collect();
    let options =
        Options { huber: HUBER, pull: HINT, steps: 60, tolerance: 1e-4, flat: 1e-5, fixed: false, enough: 0.0 };
    let Ok(found) = minimise(&fitting, &x, &x, &bounds, &options);
    Ok(Fit { gpu: fitting.at(&found.x), fitted: fitting.free })
}

/// Least and largest logarithm of a constant.
fn bounds(constant: Constant) -> (f64, f64) {
    let [low, high] = constant.spec().bounds;
    (low.max(LEAST).ln(), high.ln())
}

/// Whether a value of the constant of this name is as far as a fit may go. A cost found to be none is at no bound.
pub fn is_at_bound(name: &str, value: f64) -> bool {
    let [low, high] = Constant::named(name).map_or([f64::NEG_INFINITY, f64::INFINITY], |c| c.spec().bounds);
    let near = 1.0 + 1e-9;
    value >= high / near || low > 0.0 && value <= low * near
}

struct Fitting<'a> {
    start: &'a Compute,
    samples: &'a [Sample],
    weights: &'a [f64],
    free: Vec<Constant>,
}

impl Fitting<'_> {
    fn from(&self) -> Vec<f64> {
        self.free.iter().map(|&c| self.start.value(c).max(LEAST).ln()).collect()
    }

    fn at(&self, x: &[f64]) -> Compute {
        let mut gpu = self.start.clone();
        self.free.iter().zip(x).for_each(|(&constant, x)| gpu.set(constant, x.exp()));
        gpu
    }
}

impl Problem for Fitting<'_> {
    type Error = Infallible;

    fn residuals(&self, x: &[f64]) -> Result<Vec<f64>, Infallible> {
        let gpu = self.at(x);
        let residual = |(s, w): (&Sample, &f64)| w * (s.us_on(&gpu) / s.us).ln();
        Ok(self.samples.par_iter().zip(self.weights).map(residual).collect())
    }

    fn jacobian(&self, x: &[f64], at: &[f64]) -> Result<DMatrix<f64>, Infallible> {
        let column = |i: usize| {
            // Inwards at the upper bound, beyond which nothing changes.
            let step = if x[i] + STEP > bounds(self.free[i]).1 { -STEP } else { STEP };
            let mut moved = x.to_vec();
            moved[i] += step;
            let Ok(there) = self.residuals(&moved);
            there.iter().zip(at).map(|(there, here)| (there - here) / step).collect::<Vec<f64>>()
        };
        let columns: Vec<f64> = (0..x.len()).flat_map(column).collect();
        Ok(DMatrix::from_vec(at.len(), x.len(), columns))
    }
}

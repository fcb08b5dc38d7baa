//! Whether measured times are what a machine should give, and if not, which cause fits best.
//!
//! Each cause is a change of the machine, its settings or its constants ([`Fault`]). Under each the
//! sizes of a run are simulated again, and the curves compete for the measured one: by their
//! likelihood under the model's own uncertainty (`evidence.rs`), a cause being the mean over the ways
//! in which it may show, alone or beside a host that issues calls too slowly. A cause is found where it clearly beats a healthy machine, any cause that
//! gives another curve, and a curve of no known cause; else the answer is that it is unknown.

mod evidence;
mod fault;
mod hosts;
mod question;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::call::Call;
use crate::collective::{Algorithm, Protocol};
use crate::ids::Rank;
use crate::nccl::Interface;
use crate::predict::{Choice, PredictError, Prediction, Predictor};
use crate::profile::Profile;
use crate::topology::{LinkKind, Topology, VertexKind};
use crate::units::{Bytes, SimDuration};

use evidence::{DRAWS, Residual, log_likelihood};
pub use fault::{Cause, Changed, Fault, Part, with_rate, with_slow};
pub use hosts::where_scaling_breaks;
pub use question::{Question, Timed};

/// One size of a run.
#[derive(Clone, Debug)]
pub struct Point {
    /// What was run.
    pub question: Question,
    /// The measured time of one operation.
    pub measured: SimDuration,
    /// What a healthy machine would give.
    pub expected: Prediction,
}

/// One run: a collective over sizes, each once, smallest first.
#[derive(Clone, Debug)]
pub struct Case {
    points: Vec<Point>,
    /// Belief in health before the sizes are looked at.
    health: f64,
    /// Of each size, what draws of the constants make it longer, in natural logarithms.
    constants: Vec<[f64; DRAWS]>,
}

/// A cause with what speaks for it.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidate {
    /// The way of showing that fits best.
    pub fault: Fault,
    /// The pace of the host beside it, a call every so many us, where that shows.
    pub floor: Option<u32>,
    /// Share of belief among all causes, 0 to 1.
    pub belief: f64,
    /// The same where the model is wrong by all of its interval.
    pub cautious: f64,
    /// Its times of the sizes, in us; those of a healthy machine where it says nothing of them.
    pub curve: Vec<f64>,
    /// Median of what is left: measured over its curve, less 1, without sign.
    pub misfit: f64,
    /// The same of the sizes beyond the interval of their forecast; of all where none is.
    pub misfit_beyond: f64,
}

/// How it stands with a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finding {
    /// As it should be, as far as the model can tell.
    Healthy,
    /// One cause fits clearly best: the first candidate.
    Found,
    /// Slow, and none does.
    Unknown,
}

/// The outcome for a run.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// How it stands.
    pub finding: Finding,
    /// Causes, the likeliest first.
    pub ranked: Vec<Candidate>,
    /// Causes whose curve is that of the first one at every size measured.
    pub alike: Vec<Cause>,
    /// Sizes that took longer than the interval of the prediction allows.
    pub beyond: usize,
    /// Whether the constants are cited, or measured on something else.
    pub unmeasured: bool,
    /// Index of the size with the largest measured over expected.
    pub worst: usize,
    /// Sizes that fit no smooth curve.
    pub outliers: Vec<usize>,
}

impl Diagnosis {
    /// Whether something is broken, by more than the model may be wrong.
    pub fn is_error(&self) -> bool {
        let first = &self.ranked[0];
        // Where the host's pace helps the fault, that pace alone is what it has to beat as well.
        let without = |c: &&Candidate| match c.fault.cause() {
            Cause::Healthy => true,
            cause => cause == Cause::LaunchBound && first.floor.is_some(),
        };
        let unexplained = self.ranked.iter().filter(without).map(|c| c.misfit).fold(1.0, f64::min);
        // What NCCL chooses may differ from our table for reasons that no row tells.
        let trusted = !self.unmeasured || !first.fault.cause().is_choice();
        let fits = first.misfit < MISFIT_MAX && first.misfit < unexplained / 2.0;
        // Broken it is also where another defect may be the one.
        let sound = |cause: Cause| !cause.is_defect() || cause.is_choice();
        let others =
            self.ranked[1..].iter().filter(|c| sound(c.fault.cause()) && !self.alike.contains(&c.fault.cause()));
        let alike = self.ranked[1..].iter().filter(|c| self.alike.contains(&c.fault.cause()));
        let together = first.cautious + alike.map(|c| c.cautious).sum::<f64>();
        let certain = together > ODDS_OVER_OTHERS * others.map(|c| c.cautious).fold(0.0, f64::max);
        self.finding == Finding::Found
            && first.fault.cause().is_defect()
            && trusted
            && fits
            && certain
            && self.beyond >= BEYOND_MIN
    }
}

/// Odds at which a cause is taken over a healthy machine: one false alarm in 20.
const ODDS_OVER_HEALTHY: f64 = 20.0;
/// Odds at which it is taken over another one: "substantial" by Jeffreys, "Theory of probability".
const ODDS_OVER_OTHERS: f64 = 3.2;
/// Sizes at which curves are compared before anything is simulated, whose cost grows with their cube: one for each power
/// of two.
const COMPARED: usize = 64;
/// Belief in health before anything is measured; what is left is shared equally by all causes.
const HEALTHY_PRIOR: f64 = 0.5;
/// The same where bus bandwidth says that a run is slow: as often as a healthy machine is called slow (2 of 114 runs).
const HEALTHY_PRIOR_SLOW: f64 = 0.02;
/// Sizes beyond the interval that make an error: fewer may be outliers.
const BEYOND_MIN: usize = 3;
/// Standard deviations by which neighbouring sizes must be slow for causes to be simulated: a fault of a
/// quarter shows as one where constants are from elsewhere.
const SLOW: f64 = 0.5;
/// What may be left in the median beside the curve of a cause that is an error.
const MISFIT_MAX: f64 = 0.35;
/// Curves that differ by less at every size (natural logarithm) are alike: the noise of three
/// repeats.
const ALIKE: f64 = 0.1;
/// Standard deviation of the logarithm of a curve that nobody knows: factors of three.
const UNKNOWN_MODEL: f64 = 1.1;
/// Scatter that is called noise, in percent.
const SCATTERS: [u32; 3] = [20, 35, 60];
/// Shares of the interval that the model may be wrong by beside its constants, all as likely; all of it first.
const MODEL_SHARES: [f64; 3] = [1.0, 0.5, 0.25];
/// Standard deviation of the logarithm of a curve where nothing but the host's pace sets it: half a step
/// between the launch floors that are tried.
const FLOOR_MODEL: f64 = 0.05;
/// What a cold size takes longer, as a logarithm with its standard deviation: twice to twenty times.
const COLD: (f64, f64) = (1.8, 1.0);

/// Paces of a host in us that are tried: steps of 1.1 from what a process of a fast host needs to eight GPUs on a slow
/// thread.
fn floors() -> impl Iterator<Item = u32> {
    (9..14).chain(std::iter::successors(Some(14_u32), |us| Some((us * 11).div_ceil(10)))).take_while(|&us| us <= 160)
}
/// Belief that the pace of the host shows in a run that a fault slows down, as likely as not; the paces tried share it.
const PACED: f64 = 0.5;
/// How far from the shortest measured time that pace is looked for: two of these steps.
const PACE: std::ops::RangeInclusive<f64> = 0.8..=1.25;

/// The largest difference of two curves, as a logarithm.
fn apart(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a / b).ln().abs()).fold(0.0, f64::max)
}

/// A fault as it may show: alone, or where the host's pace holds up its shortest calls.
struct Way {
    fault: Fault,
    floor: Option<u32>,
    curve: Vec<f64>,
    /// Share of the belief in the fault.
    share: f64,
    likelihood: Likelihood,
}

impl Way {
    fn score(&self) -> f64 {
        self.likelihood.mean + self.share.ln()
    }
}

/// Natural logarithms of how likely a run is.
struct Likelihood {
    mean: f64,
    /// Where the model is wrong by all of its interval.
    cautious: f64,
    /// Sizes that fit no smooth curve.
    outliers: Vec<usize>,
}

impl Case {
    /// A run of these sizes; none without any.
    pub fn new(mut points: Vec<Point>) -> Option<Self> {
        points.retain(|p| p.measured.0 > 0 && p.expected.time.0 > 0);
        points.sort_by_key(|p| p.question.call.size());
        let constants = vec![[0.0; DRAWS]; points.len()];
        (!points.is_empty()).then_some(Self { points, health: HEALTHY_PRIOR, constants })
    }

    /// The same run, of which bus bandwidth says that it is slow: it is asked why, and hardly whether.
    #[must_use]
    pub fn known_slow(self) -> Self {
        Self { health: HEALTHY_PRIOR_SLOW, ..self }
    }

    /// Its sizes.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// At most `most` of its sizes, evenly spread, the last one kept.
    #[must_use]
    pub fn thinned(&self, most: usize) -> Self {
        let n = self.points.len();
        let keep = |i: usize| n <= most || ((n - 1 - i) * most).div_ceil(n) != ((n - i) * most).div_ceil(n);
        self.only(&(0..n).filter(|&i| keep(i)).collect::<Vec<_>>())
    }

    fn only(&self, sizes: &[usize]) -> Self {
        let points = sizes.iter().map(|&i| self.points[i].clone()).collect();
        Self { points, health: self.health, constants: sizes.iter().map(|&i| self.constants[i]).collect() }
    }

    /// Whether anything calls for simulating causes: neighbouring sizes that are slow, or a curve that
    /// a healthy machine does not explain best of what needs no simulation.
    pub fn is_suspect(&self) -> bool {
        let healthy = self.curve_of(Fault::Healthy);
        let slow: Vec<f64> =
            self.residuals(&healthy).iter().map(|r| r.log_ratio / (r.model.powi(2) + r.noise.powi(2)).sqrt()).collect();
        let run = slow.len().min(BEYOND_MIN);
        let steady = slow.windows(run).any(|w| w.iter().all(|&z| z > SLOW));
        let few = self.thinned(COMPARED);
        let score = |fault: Fault| few.log_likelihood(fault, None, &few.curve_of(fault)).mean;
        let floor = score(Fault::Healthy);
        let known = [Fault::Unknown, Fault::Cold(1), Fault::Cold(2)].into_iter().chain(SCATTERS.map(Fault::Noise));
        steady || known.into_iter().any(|f| score(f) > floor)
    }

    /// What may be wrong, given what the run would show. Those that are simulated need
    /// [`Examination::simulate`].
    fn hypotheses(&self, topology: &Topology) -> Vec<Fault> {
        let mut faults = vec![Fault::Healthy, Fault::Unknown];
        faults.extend(SCATTERS.map(Fault::Noise));
        let question = &self.points[0].question;
        let ranks = question.call.ranks;
        let on: std::collections::BTreeSet<_> =
            (0..ranks.min(topology.ranks())).map(|r| topology.host_of(Rank(r))).collect();
        let nodes: std::collections::BTreeSet<_> =
            (0..ranks.min(topology.ranks())).map(|r| topology.node_of(Rank(r))).collect();
        let host = on.first().map(|h| &topology.hosts()[h.index()]);
        let nics: Vec<_> = host.into_iter().flat_map(|h| &h.nics).filter_map(|&n| topology.nic(n)).collect();
        let transport = &question.settings.transport;
        if nodes.len() > 1 {
            let rdma = nics.iter().any(|n| n.kind != LinkKind::Ethernet);
            if transport.interface == Interface::Data && rdma {
                faults.extend([None, Some(0)].map(Fault::TcpFallback));
            }
            if nics.iter().any(|n| n.gpudirect) {
                faults.push(Fault::GpudirectOff);
            }
            faults.extend([1, 10, 25, 50, 100].map(Fault::OnePort));
            let count = u32::try_from(nics.len()).unwrap_or(u32::MAX);
            // Half of them and fewer, or all but one: a rail that is lost.
            let mut used: Vec<u32> = [count / 8, count / 4, count / 2, 1, count.saturating_sub(1)].into();
            used.retain(|&u| u > 0 && u < count);
            used.sort_unstable();
            used.dedup();
            faults.extend(used.into_iter().map(Fault::NicsUsed));
            faults.extend([50, 25].map(|p| Fault::Slow(Part::Nic, p)));
            let stacked = topology.vertices().any(|(_, v)| matches!(v.kind, VertexKind::NetSwitch { level: 1.. }));
            if stacked {
                faults.extend([50, 25, 12].map(|p| Fault::Slow(Part::Fabric, p)));
            }
        }
        if ranks as usize > on.len() {
            faults.push(Fault::PeerAccessOff);
            faults.extend([75, 50, 25].map(|p| Fault::Slow(Part::Nvlink, p)));
        }
        faults.extend([50, 25].map(|p| Fault::Slow(Part::Pcie, p)));
        faults.extend([150, 225, 350].map(Fault::SlowGpu));
        let channels = self.points.iter().map(|p| p.expected.plan.channels).max().unwrap_or(1);
        faults.extend([1, 2, 4, 8].into_iter().filter(|&c| c < channels).map(Fault::Channels));
        let free = |of: fn(&Point) -> bool| self.points.iter().any(of);
        if free(|p| p.question.algorithm == Choice::Auto) {
            faults.extend([Algorithm::Ring, Algorithm::Tree].map(Fault::Algorithm));
            if free(|p| matches!(p.expected.algorithm, Algorithm::Nvls | Algorithm::NvlsTree)) {
                faults.push(Fault::NvlsOff);
            }
            if free(|p| p.question.settings.nccl.collnet) {
                faults.push(Fault::SharpOff);
            }
        }
        if free(|p| p.question.protocol == Choice::Auto) {
            faults.extend([Protocol::Ll, Protocol::Ll128, Protocol::Simple].map(Fault::Protocol));
        }
        // A kernel's own time has nothing of the host, nor of a first call.
        if question.timed == Timed::Kernel {
            return faults;
        }
        faults.extend(floors().map(Fault::LaunchFloor));
        faults.extend((1..=4).filter(|&c| c * 3 <= self.points.len()).map(|c| Fault::Cold(c as u32)));
        faults
    }

    /// The times in us under a fault that needs no simulation.
    fn curve_of(&self, fault: Fault) -> Vec<f64> {
        let expected = self.points.iter().map(|p| p.expected.time.as_us());
        match fault {
            Fault::LaunchFloor(us) => expected.map(|t| t.max(f64::from(us))).collect(),
            _ => expected.collect(),
        }
    }

    fn residuals(&self, curve: &[f64]) -> Vec<Residual> {
        let residual = |(index, &time): (usize, &f64)| {
            let point = &self.points[index];
            let p = &point.expected;
            // 90% of a normal distribution are within 1.645 standard deviations. The interval is that
            // of all sizes; where the bytes over the links take most of the time, half of it is true.
            let wide = (p.high.as_us() / p.time.as_us()).max(1.02).ln() / 1.645;
            let bytes = (p.bound.time.as_us() / p.time.as_us() / LINKS_FULL).min(1.0);
            Residual {
                octave: self.octave(index),
                log_ratio: (point.measured.as_us() / time).ln(),
                model: wide * (LATENCY_WIDTH + (LINKS_WIDTH - LATENCY_WIDTH) * bytes),
                constants: self.constants[index],
                noise: 0.04 + 0.06 * (1.0 - bytes),
            }
        };
        curve.iter().enumerate().map(residual).collect()
    }

    fn octave(&self, size: usize) -> f64 {
        (self.points[size].question.call.size().0.max(1) as f64).log2()
    }

    /// Takes over the times in us of some sizes under a draw of the constants; between them its logarithm
    /// goes straight.
    fn set_constants(&mut self, draw: usize, sizes: &[usize], times: &[f64]) {
        let healthy = self.curve_of(Fault::Healthy);
        let known: Vec<(f64, f64)> =
            sizes.iter().zip(times).map(|(&i, time)| (self.octave(i), (time / healthy[i]).ln())).collect();
        for size in 0..self.points.len() {
            let at = self.octave(size);
            let between = known.windows(2).find(|w| at <= w[1].0);
            self.constants[size][draw] = between.map_or(known[0].1, |w| {
                let along = (at - w[0].0) / (w[1].0 - w[0].0).max(f64::MIN_POSITIVE);
                w[0].1 + (w[1].1 - w[0].1) * along
            });
        }
    }

    /// A fault with these times, and what it makes of the run where the host's pace shows beside it.
    fn ways(&self, fault: Fault, curve: &[f64]) -> Vec<Way> {
        let paced = |curve: &[f64], us: u32| curve.iter().map(|t| t.max(f64::from(us))).collect::<Vec<f64>>();
        let shortest = self.points.iter().map(|p| p.measured.as_us()).fold(f64::INFINITY, f64::min);
        let healthy = self.curve_of(Fault::Healthy);
        let shows = |us: &u32| {
            let with = paced(curve, *us);
            with != curve && apart(&with, &paced(&healthy, *us)) >= ALIKE
        };
        let paces = fault.is_simulated() && self.points[0].question.timed == Timed::Loop;
        let near = floors().filter(|&us| paces && PACE.contains(&(f64::from(us) / shortest)));
        let beside: Vec<u32> = near.filter(shows).collect();
        let way = |floor: Option<u32>, share: f64| {
            let curve = floor.map_or_else(|| curve.to_vec(), |us| paced(curve, us));
            Way { fault, floor, share, likelihood: self.log_likelihood(fault, floor, &curve), curve }
        };
        let alone = way(None, if beside.is_empty() { 1.0 } else { 1.0 - PACED });
        let each = PACED / floors().count() as f64;
        [alone].into_iter().chain(beside.into_iter().map(|us| way(Some(us), each))).collect()
    }

    /// How well a fault with these times explains the run: a mean over how much of the interval the model
    /// is wrong by beside its constants.
    fn log_likelihood(&self, fault: Fault, floor: Option<u32>, curve: &[f64]) -> Likelihood {
        let floor = if let Fault::LaunchFloor(us) = fault { Some(us) } else { floor };
        let residuals = self.residuals(curve);
        let judged = |index: usize, share: f64| {
            let residual = Residual { model: residuals[index].model * share, ..residuals[index] };
            let none = [0.0; DRAWS];
            match fault {
                Fault::Unknown => Residual { model: UNKNOWN_MODEL, constants: none, ..residual },
                Fault::Noise(percent) => Residual { noise: f64::from(percent) / 100.0, ..residual },
                _ if floor.is_some_and(|us| curve[index] <= f64::from(us)) => {
                    Residual { model: FLOOR_MODEL, constants: none, ..residual }
                }
                Fault::Cold(first) if index < first as usize => {
                    Residual { log_ratio: residual.log_ratio - COLD.0, noise: COLD.1, ..residual }
                }
                _ => residual,
            }
        };
        let under = |share| log_likelihood(&(0..residuals.len()).map(|i| judged(i, share)).collect::<Vec<_>>());
        let each = MODEL_SHARES.map(under);
        let best = each.iter().map(|e| e.0).fold(f64::NEG_INFINITY, f64::max);
        let mean = best + (each.iter().map(|e| (e.0 - best).exp()).sum::<f64>() / each.len() as f64).ln();
        let cautious = each[0].0;
        let outliers = each.into_iter().find(|e| e.0 >= best).map(|e| e.1).unwrap_or_default();
        Likelihood { mean, cautious, outliers }
    }

    /// Ranks faults by their curves, which must be one a hypothesis.
    pub fn diagnose(&self, curves: &[(Fault, Vec<f64>)]) -> Diagnosis {
        let healthy = self.curve_of(Fault::Healthy);
        let mut scored: Vec<Way> = Vec::new();
        let between = fault::between(curves, &healthy);
        for (fault, curve) in curves.iter().map(|c| (&c.0, &c.1)).chain(between.iter().map(|b| (&b.fault, &b.curve))) {
            // A fault that would not show cannot be found, nor excluded.
            let silent =
                (fault.is_simulated() || matches!(fault, Fault::LaunchFloor(_))) && apart(curve, &healthy) < ALIKE;
            if !silent {
                scored.extend(self.ways(*fault, curve));
            }
        }
        let mut causes: Vec<Cause> = scored.iter().map(|way| way.fault.cause()).collect();
        causes.sort_unstable();
        causes.dedup();
        let ill = causes.len().saturating_sub(1).max(1) as f64;
        let mut ranked: Vec<Candidate> = Vec::new();
        for cause in causes {
            let ways: Vec<_> = scored.iter().filter(|way| way.fault.cause() == cause).collect();
            let Some(best) = ways.iter().max_by(|a, b| a.score().total_cmp(&b.score())) else { continue };
            let faults = ways.iter().filter(|way| way.floor.is_none()).count().max(1) as f64;
            let prior = if cause == Cause::Healthy { self.health } else { (1.0 - self.health) / ill };
            let weight = |of: fn(&Likelihood) -> f64| {
                let top = scored.iter().map(|way| of(&way.likelihood)).fold(f64::NEG_INFINITY, f64::max);
                prior * ways.iter().map(|way| way.share * (of(&way.likelihood) - top).exp()).sum::<f64>() / faults
            };
            let left = |keep: &dyn Fn(&Point) -> bool| {
                let kept = self.points.iter().zip(&best.curve).filter(|(p, _)| keep(p));
                let mut left: Vec<f64> = kept.map(|(p, t)| (p.measured.as_us() / t - 1.0).abs()).collect();
                left.sort_by(f64::total_cmp);
                left.get(left.len() / 2).copied()
            };
            let misfit = left(&|_| true).unwrap_or_default();
            let misfit_beyond = left(&|p| p.measured > p.expected.high).unwrap_or(misfit);
            let (belief, cautious) = (weight(|l| l.mean), weight(|l| l.cautious));
            let (fault, floor, curve) = (best.fault, best.floor, best.curve.clone());
            ranked.push(Candidate { fault, floor, belief, cautious, curve, misfit, misfit_beyond });
        }
        let (all, all_cautious) = ranked.iter().fold((0.0, 0.0), |sum, c| (sum.0 + c.belief, sum.1 + c.cautious));
        for candidate in &mut ranked {
            candidate.belief /= f64::max(all, f64::MIN_POSITIVE);
            candidate.cautious /= f64::max(all_cautious, f64::MIN_POSITIVE);
        }
        ranked.sort_by(|a, b| b.belief.total_cmp(&a.belief).then(a.fault.cause().cmp(&b.fault.cause())));
        self.conclude(ranked, &healthy, &scored)
    }

    fn conclude(&self, ranked: Vec<Candidate>, healthy: &[f64], scored: &[Way]) -> Diagnosis {
        let belief = |cause: Cause| ranked.iter().find(|c| c.fault.cause() == cause).map_or(0.0, |c| c.belief);
        let first = &ranked[0];
        let simulated = |c: &Candidate| c.fault.is_simulated() || matches!(c.fault, Fault::LaunchFloor(_));
        // Of some severity, which need not be the one that fits best.
        let reaches = |cause: Cause| {
            let mut ways = scored.iter().filter(|way| way.fault.cause() == cause);
            ways.any(|way| apart(&way.curve, &first.curve) < ALIKE)
        };
        let kin = |c: &Candidate| c.fault.cause().is_sockets() && first.fault.cause().is_sockets();
        let is_alike = |c: &&Candidate| simulated(first) && simulated(c) && (kin(c) || reaches(c.fault.cause()));
        let alike: Vec<Cause> = ranked[1..].iter().filter(is_alike).map(|c| c.fault.cause()).collect();
        // Causes that no size tells apart share the belief in what they do.
        let together = first.belief + ranked[1..].iter().filter(is_alike).map(|c| c.belief).sum::<f64>();
        let rival = ranked[1..].iter().filter(|c| !is_alike(c)).map(|c| c.belief).fold(0.0, f64::max);
        let beyond = self.points.iter().filter(|p| p.measured > p.expected.high).count();
        let ratio = |i: &usize| self.points[*i].measured.as_us() / healthy[*i];
        let worst = (0..self.points.len()).max_by(|a, b| ratio(a).total_cmp(&ratio(b))).unwrap_or(0);
        // A fault that leaves more beside the host's pace than that pace alone says nothing.
        let misfit = |cause: Cause| ranked.iter().find(|c| c.fault.cause() == cause).map(|c| c.misfit);
        let paced = first.floor.is_some() && misfit(Cause::LaunchBound).is_some_and(|misfit| misfit <= first.misfit);
        // Nor does one that leaves as much at slow sizes as no fault does.
        let healthy_beyond = ranked.iter().find(|c| c.fault.cause() == Cause::Healthy).map(|c| c.misfit_beyond);
        let explains = healthy_beyond.is_none_or(|healthy| first.misfit_beyond < healthy);
        let ill = first.belief > ODDS_OVER_HEALTHY * belief(Cause::Healthy);
        let finding = match first.fault.cause() {
            Cause::Unknown if ill => Finding::Unknown,
            Cause::Healthy | Cause::Unknown => Finding::Healthy,
            _ if ill && !paced && explains && together > ODDS_OVER_OTHERS * rival => Finding::Found,
            _ if ill || beyond >= BEYOND_MIN => Finding::Unknown,
            _ => Finding::Healthy,
        };
        let outliers = self.log_likelihood(first.fault, first.floor, &first.curve).outliers;
        let unmeasured = self.points.iter().any(|p| p.expected.beyond.unmeasured());
        Diagnosis { finding, alike, beyond, unmeasured, worst, outliers, ranked }
    }
}

/// What stands for a run while causes are tried: itself, or the same on fewer hosts.
#[derive(Clone, Debug)]
pub struct Examination {
    case: Case,
    topology: Topology,
    questions: Vec<Question>,
    /// Times in us of the questions on the healthy machine.
    healthy: Vec<f64>,
    /// The first size from which on a healthy machine's time grows with the bytes alone.
    full: usize,
    work: Arc<AtomicU64>,
}

/// Hosts on which causes are simulated: one fault in many hosts shows as in a few, and what a cause
/// makes of few hosts, beside these hosts healthy, is taken for what it makes of all.
const HOSTS_MAX: u32 = 4;
/// Of the best rate, what a size reaches from which on larger ones take longer by their bytes alone: what a cause makes of
/// it, it makes of them, to a third of what tells two curves apart.
const FULL: f64 = 0.97;
/// Sizes at which every fault is tried; those that are not far behind the best are simulated in full.
const PROBES: usize = 4;
/// How much less likely than the best a fault may be at these sizes, as a logarithm.
const PROMISING: f64 = 7.0;

/// Bytes near others, at most an eighth off, that channels share evenly: their equal lanes are simulated once. What a cause
/// makes of the one it makes of the other.
fn rounded(bytes: u64) -> u64 {
    const ANY: u64 = 1 << 20;
    let digit = 1 << bytes.max(ANY).ilog2().saturating_sub(2);
    if bytes < ANY { bytes } else { bytes.saturating_add(digit / 2) / digit * digit }
}

impl Examination {
    /// Prepares a run.
    ///
    /// # Errors
    /// A prediction on fewer hosts that cannot be made.
    pub fn new(mut case: Case, topology: &Topology, profile: &Profile) -> Result<Self, PredictError> {
        // Intervals that a calibration found hold for the machine as it was calibrated; a faulty one is not.
        for Point { expected, .. } in &mut case.points {
            let (low, high) = profile.interval("", !expected.beyond.is_empty());
            let scaled = |factor: f64| SimDuration::from_us(expected.time.as_us() * factor);
            (expected.low, expected.high) = (scaled(low), scaled(high));
        }
        let questions: Vec<Question> = case.points.iter().map(|p| p.question.clone()).collect();
        let ranks = questions[0].call.ranks;
        let hosts = Predictor::new(topology, profile).hosts(ranks);
        let few = hosts <= HOSTS_MAX || !ranks.is_multiple_of(hosts);
        let fewer = if few { ranks } else { ranks / hosts * HOSTS_MAX };
        let topology = if few {
            topology.clone()
        } else {
            let of_group = |group: u32| (group * ranks..group * ranks + fewer).map(|r| topology.gpu_of(Rank(r)));
            let gpus: Vec<_> = (0..questions[0].together.max(1)).flat_map(of_group).collect();
            topology.placed(&gpus)?
        };
        let stands_for = |q: &Question| {
            let mut q = q.clone();
            // One call alone stands for a loop of them, which takes eight times as long to simulate.
            if q.call.collective.rooted() {
                q.settings.timing.calls = 1;
            }
            // As many bytes in each step of a ring.
            let size = q.call.size().0 / u64::from(ranks) * u64::from(fewer);
            let size = rounded(if few { q.call.size().0 } else { size.max(q.call.dtype.size()) });
            if q.call.counts.is_none() && (fewer, size) != (q.call.ranks, q.call.size().0) {
                let call = Call::of_size(q.call.collective, fewer, Bytes(size), q.call.dtype);
                let root = Rank(q.call.root.0.min(fewer - 1));
                q.call = Call { op: q.call.op, in_place: q.call.in_place, root, ..call };
            }
            q
        };
        let smaller: Vec<Question> = questions.iter().map(stands_for).collect();
        let predictor = Predictor::new(&topology, profile);
        let times = questions.iter().zip(&smaller).zip(case.curve_of(Fault::Healthy));
        let time = |((q, smaller), expected): ((&Question, &Question), f64)| match few && q == smaller {
            true => Ok(expected),
            false => smaller.predict(&predictor).map(|prediction| smaller.time_of(&prediction).as_us()),
        };
        let healthy = times.map(time).collect::<Result<Vec<f64>, PredictError>>()?;
        Ok(Self::of(case, topology, smaller, healthy))
    }

    fn of(case: Case, topology: Topology, questions: Vec<Question>, healthy: Vec<f64>) -> Self {
        let rates: Vec<f64> = questions.iter().zip(&healthy).map(|(q, t)| q.call.size().0 as f64 / t).collect();
        let best = rates.iter().copied().fold(0.0, f64::max);
        let runs_as = |i: usize| (case.points[i].expected.algorithm, case.points[i].expected.protocol);
        let last = rates.len() - 1;
        let is_full = |i: &usize| rates[*i] >= FULL * best && runs_as(*i) == runs_as(last);
        // With all above it: a dip between two protocols is none of their bytes.
        let full = (0..=last).rev().take_while(is_full).last().unwrap_or(last);
        Self { full, case, topology, questions, healthy, work: Arc::default() }
    }

    /// What its simulations took so far, as [`engine::WORK_PER_SECOND`](crate::engine::WORK_PER_SECOND) counts it.
    pub fn work(&self) -> u64 {
        self.work.load(Ordering::Relaxed)
    }

    /// The run.
    pub fn case(&self) -> &Case {
        &self.case
    }

    /// Sizes at which every fault is tried first.
    fn probes(&self) -> Vec<usize> {
        let n = self.questions.len();
        let mut probes: Vec<usize> = (0..PROBES).map(|i| i * (n - 1) / (PROBES - 1)).collect();
        probes.dedup();
        probes
    }

    /// The times in us of some sizes under a fault; none where it changes nothing or cannot be.
    ///
    /// # Errors
    /// An internal error of a prediction.
    pub fn simulate(&self, fault: Fault, sizes: &[usize], profile: &Profile) -> Result<Option<Vec<f64>>, PredictError> {
        let expected = self.case.curve_of(fault);
        if !fault.is_simulated() {
            return Ok(Some(sizes.iter().map(|&i| expected[i]).collect()));
        }
        // Those that are full take what the first of them takes longer.
        let mut simulated: Vec<usize> = sizes.iter().map(|&i| i.min(self.full)).collect();
        simulated.dedup();
        let questions: Vec<Question> = simulated.iter().map(|&i| self.questions[i].clone()).collect();
        let Ok(Some(changed)) = fault.applied(&self.topology, profile, &questions) else {
            return Ok(None);
        };
        let longer = |times: Vec<f64>| {
            let each: Vec<f64> = simulated.iter().zip(times).map(|(&i, t)| t / self.healthy[i]).collect();
            let of = |i: usize| simulated.iter().position(|&s| s == i.min(self.full)).map_or(1.0, |at| each[at]);
            sizes.iter().map(|&i| expected[i] * of(i)).collect()
        };
        let (times, work) = curve(&changed)?;
        self.work.fetch_add(work, Ordering::Relaxed);
        Ok(times.map(longer))
    }

    /// The faults that are worth a full simulation, by their times at the probes.
    fn promising(rough: &Case, tried: &[(Fault, Vec<f64>)]) -> Vec<Fault> {
        let score = |fault: Fault, curve: &[f64]| {
            rough.ways(fault, curve).iter().map(Way::score).fold(f64::NEG_INFINITY, f64::max)
        };
        let mut scores: Vec<f64> = tried.iter().map(|(fault, curve)| score(*fault, curve)).collect();
        for between in fault::between(tried, &rough.curve_of(Fault::Healthy)) {
            let value = score(between.fault, &between.curve);
            between.of.iter().for_each(|&i| scores[i] = scores[i].max(value));
        }
        // Beside others that are simulated: few sizes do not tell a fault from an unknown curve.
        let simulated = tried.iter().zip(&scores).filter(|(t, _)| t.0.is_simulated());
        let best = simulated.map(|(_, s)| *s).fold(f64::NEG_INFINITY, f64::max);
        let kept = |(t, s): &(&(Fault, Vec<f64>), &f64)| !t.0.is_simulated() || best - **s < PROMISING;
        tried.iter().zip(&scores).filter(kept).map(|(t, _)| t.0).collect()
    }

    /// Times that [`Self::diagnose`] asks for at most: one a fault and size.
    pub fn most_times(&self) -> usize {
        let (probes, faults) = (self.probes().len(), self.case.hypotheses(&self.topology).len());
        (DRAWS + faults) * probes + faults * (self.questions.len() - probes)
    }

    /// All of it. `simulate` gives the curves of faults at some sizes as [`Self::simulate`] does, one after
    /// the other or all at once, and leaves out those that cannot be simulated.
    pub fn diagnose(&self, mut simulate: impl FnMut(&[Fault], &[usize]) -> Vec<(Fault, Vec<f64>)>) -> Diagnosis {
        let probes = self.probes();
        let mut case = self.case.clone();
        let draws: Vec<Fault> = (0..DRAWS as u32).map(Fault::Constants).collect();
        for (draw, (_, curve)) in simulate(&draws, &probes).iter().enumerate() {
            case.set_constants(draw, &probes, curve);
        }
        let tried = simulate(&self.case.hypotheses(&self.topology), &probes);
        let others: Vec<usize> = (0..self.questions.len()).filter(|i| !probes.contains(i)).collect();
        if others.is_empty() {
            return case.diagnose(&tried);
        }
        let rest = simulate(&Self::promising(&case.only(&probes), &tried), &others);
        let whole = |(fault, rest): (Fault, Vec<f64>)| {
            let first = &tried.iter().find(|t| t.0 == fault)?.1;
            let mut curve: Vec<(usize, f64)> = probes.iter().copied().zip(first.iter().copied()).collect();
            curve.extend(others.iter().copied().zip(rest));
            curve.sort_by_key(|c| c.0);
            Some((fault, curve.into_iter().map(|c| c.1).collect()))
        };
        let curves: Vec<_> = rest.into_iter().filter_map(whole).collect();
        case.diagnose(&curves)
    }
}

/// Share of the bound on bandwidth that a call of large size reaches: ring over NVSwitch gets 0.64 of
/// it at 64 MiB, NVLS and trees over networks more.
const LINKS_FULL: f64 = 0.6;
/// Of the interval's width, what sizes bound by links need: on published runs from 128 MiB on the
/// median error is 8%, of an interval of 60%.
const LINKS_WIDTH: f64 = 0.6;
/// The same where latencies, protocols and choices decide: 22% in the median below 1 MiB, 42% where
/// choices cross, both with long tails.
const LATENCY_WIDTH: f64 = 1.4;

/// Times in us of the questions that a fault leaves, none where a call cannot be done any more; and the work
/// that it took to simulate them.
///
/// # Errors
/// An internal error of a prediction.
pub fn curve(changed: &Changed) -> Result<(Option<Vec<f64>>, u64), PredictError> {
    let predictor = Predictor::new(&changed.topology, &changed.profile);
    let mut times = Vec::with_capacity(changed.questions.len());
    let mut work = 0;
    for q in &changed.questions {
        match q.predict(&predictor) {
            Ok(prediction) => {
                times.push(q.time_of(&prediction).as_us());
                work += prediction.work;
            }
            Err(error) if error.is_internal() => return Err(error),
            Err(_) => return Ok((None, work)),
        }
    }
    Ok((Some(times), work))
}

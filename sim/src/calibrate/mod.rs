//! Fits a profile to measurements, over the simulator itself.
//!
//! Unknowns are the logarithms of a profile's parameters, between physical bounds; a residual is
//! the logarithm of predicted over measured time. Rows that differ in launch alone share one
//! simulated kernel, and a derivative is taken by simulating again, for the parameters that enter
//! what is simulated only: a call of LL costs nothing when a latency of Simple moves. A call of many chunks is taken
//! to change as a shorter one of its kind does.
//!
//! Parameters are held to their priors with the weight of both: rows that scatter by 5% and err together by run move
//! a prior less than rows that repeat to 1%. What is told is asked of the rows alone.
//!
//! [`Study::fit`] is the way in; [`Study::cross`] and [`Study::apart`] say how such a fit does on rows
//! it has not seen, [`spreads`] turns that into the intervals of predictions. Samples may come from
//! several machines of one kind, which share the profile and have each its own topology.

mod fit;
mod rows;
pub mod solve;
mod spread;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::call::Call;
use crate::collective::{Algorithm, Collective, Launch, Protocol};
use crate::engine::{Instance, LaneSpec, Unobserved};
use crate::nccl::Transport;
use crate::nccl::plan::{Dealing, Plan};
use crate::network::lay;
use crate::predict::{Pace, PredictError, Predictor, Proven, Settings};
use crate::profile::{Constant, OriginKind, Parameter, Profile, Role};
use crate::schedule::Schedule;
use crate::topology::Topology;
use crate::units::SimDuration;
pub use rows::{Judged, Sample, mean};
pub use spread::{Coverage, coverage, spreads};

/// Most parameters that may be fitted to one machine kind.
pub const MOST_FITTED: usize = 40;
/// Chunks of a channel from which longer calls of a kind change with a parameter as this one does, in proportion.
const LONG: u64 = 64;
/// How far from its prior a parameter may go, as a factor.
const REACH: f64 = 20.0;
/// The same of instruction weights, which compare parts of one code.
const WEIGHT_REACH: f64 = 1.5;
/// The same of latencies of links: a step of lines over a network takes 2.7 to 8.5 us by NCCL's own costs of all machines
/// (2.30 `src/graph/tuning.cc`, LL of rings to LL128 of trees). What rows ask beyond that is another mechanism.
const LATENCY_REACH: f64 = 4.0;

/// A simulated kernel that samples share.
#[derive(Debug)]
struct SharedKernel {
    machine: usize,
    proven: Proven,
    settings: Settings,
    /// Which parameters enter, by place in [`Study::constants`].
    depends: Vec<usize>,
    /// The case that tells how this one changes with a parameter: itself, or a shorter one where it is long.
    like: usize,
}

/// What samples share that share a kernel: machine, call, algorithm, protocol, and settings but for the launch.
type Kernel = (usize, Call, Algorithm, Protocol, Settings);

/// What cases share that the same parameters enter: machine, collective, algorithm, protocol, ranks, transport.
type Kind = (usize, Collective, Algorithm, Protocol, u32, Transport);

/// What cases share that change alike: machine, call and cut but for sizes, settings.
type Like = (usize, Call, Plan, Settings);

/// What one simulation of a case says.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Simulated {
    kernel_us: f64,
    bound: &'static str,
}

impl Simulated {
    /// What it becomes where another, like it, goes from one to the other.
    fn moved(self, from: Self, to: Self) -> Self {
        Self { kernel_us: self.kernel_us * to.kernel_us / from.kernel_us, bound: to.bound }
    }
}

/// By which property rows are held back together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Split {
    /// Who measured.
    Source,
    /// Run of the benchmark.
    Run,
    /// Collective.
    Collective,
    /// Algorithm.
    Algorithm,
    /// Protocol.
    Protocol,
    /// Number of ranks.
    Ranks,
    /// Channels that were forced, if any.
    Channels,
    /// Range of sizes.
    Size,
}

impl Split {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Source,
        Self::Run,
        Self::Collective,
        Self::Algorithm,
        Self::Protocol,
        Self::Ranks,
        Self::Channels,
        Self::Size,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Run => "run",
            Self::Collective => "collective",
            Self::Algorithm => "algorithm",
            Self::Protocol => "protocol",
            Self::Ranks => "ranks",
            Self::Channels => "channels",
            Self::Size => "size",
        }
    }

    /// What a sample has there.
    pub fn key(self, sample: &Sample) -> String {
        match self {
            Self::Source => sample.source.clone(),
            Self::Run => sample.run.clone(),
            Self::Collective => sample.call.collective.to_string(),
            Self::Algorithm => sample.algorithm.to_string(),
            Self::Protocol => sample.protocol.to_string(),
            Self::Ranks => format!("{:05}", sample.call.ranks),
            Self::Channels => {
                let forced = sample.settings.channels.or(sample.settings.nccl.channels().1);
                forced.map_or_else(|| "NCCL's".to_owned(), |c| format!("{c:02}"))
            }
            Self::Size => size_band(sample.call.size().0).to_owned(),
        }
    }
}

/// Ranges of sizes that errors are told by.
pub const SIZE_BANDS: [&str; 4] = ["< 64 KiB", "64 KiB-1 MiB", "1-16 MiB", "> 16 MiB"];

/// Sizes below this many bytes are the first of [`SIZE_BANDS`].
pub const SMALL_BELOW: u64 = 64 << 10;
/// Sizes above this many bytes are the last of [`SIZE_BANDS`].
pub const LARGE_ABOVE: u64 = 16 << 20;

/// Of [`SIZE_BANDS`], the one of a size in bytes.
pub fn size_band(size: u64) -> &'static str {
    match size {
        0..SMALL_BELOW => SIZE_BANDS[0],
        SMALL_BELOW..1_048_576 => SIZE_BANDS[1],
        1_048_576..=LARGE_ABOVE => SIZE_BANDS[2],
        _ => SIZE_BANDS[3],
    }
}

/// A fitted parameter.
#[derive(Clone, PartialEq, Debug)]
pub struct Estimate {
    /// The constant.
    pub constant: Constant,
    /// Fitted value.
    pub value: f64,
    /// 90% interval; all that it may be where one run alone tells it, since nothing says what runs differ by.
    pub interval: (f64, f64),
    /// Value before.
    pub prior: f64,
    /// Whether data told it; where not, it is at its prior.
    pub identified: bool,
    /// Whether it ended at a bound.
    pub at_bound: bool,
    /// Mean absolute error with this parameter alone set back to its prior.
    pub error_at_prior: f64,
}

/// A fit and how it went.
#[derive(Clone, PartialEq, Debug)]
pub struct Fit {
    /// The profile.
    pub profile: Profile,
    /// Its parameters.
    pub estimates: Vec<Estimate>,
    /// Every sample with what is predicted.
    pub judged: Vec<Judged>,
    /// Steps taken.
    pub steps: usize,
}

/// Why there is no fit.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// A simulation failed.
    #[error(transparent)]
    Predict(#[from] PredictError),
    /// No rows.
    #[error("there is no row to fit to")]
    NoRows,
    /// Nothing may move.
    #[error("none of the parameters asked for enters any of these rows")]
    NothingToFit,
}

/// Samples of machines of one kind, ready to be predicted under any parameters.
#[derive(Debug)]
pub struct Study<'a> {
    machines: &'a [Topology],
    /// What is known before.
    prior: &'a Profile,
    samples: Vec<Sample>,
    /// By sample, which case it is.
    of: Vec<usize>,
    cases: Vec<SharedKernel>,
    /// Parameters that enter any case or launch.
    constants: Vec<Constant>,
    start: Vec<f64>,
    bounds: Vec<(f64, f64)>,
    /// What was simulated, by case and hash of the values that enter it.
    known: Mutex<FxHashMap<(usize, u64), Simulated>>,
}

impl<'a> Study<'a> {
    /// Takes in samples of `machines`: proves their schedules, and finds which parameters enter which.
    ///
    /// # Errors
    /// A sample that cannot be predicted, or none.
    pub fn new(machines: &'a [Topology], prior: &'a Profile, samples: Vec<Sample>) -> Result<Self, CalibrateError> {
        if samples.is_empty() {
            return Err(CalibrateError::NoRows);
        }
        let predictors = predictors(machines, prior);
        let kernel = |sample: &'_ Sample| -> Kernel {
            let Sample { machine, call, algorithm, protocol, settings, .. } = sample;
            (*machine, call.clone(), *algorithm, *protocol, Settings { launch: Launch::Graph, ..*settings })
        };
        let (of, firsts) = numbered(samples.iter().map(kernel));
        let mut cases: Vec<SharedKernel> = (firsts.par_iter())
            .map(|&index| {
                let Sample { machine, call, algorithm, protocol, settings, .. } = &samples[index];
                let settings = Settings { launch: Launch::Graph, ..*settings };
                let proven = predictors[*machine].proven(call, *algorithm, *protocol, &settings)?;
                Ok(SharedKernel { machine: *machine, proven, settings, depends: Vec::new(), like: 0 })
            })
            .collect::<Result<_, PredictError>>()?;

        // What is laid tells which parameters enter, of any size of a kind: `kernel.block` not where one channel does.
        let kind = |case: &SharedKernel| -> Kind {
            let Schedule { call, plan, .. } = &case.proven.schedule;
            (case.machine, call.collective, plan.algorithm, plan.protocol, call.ranks, case.settings.transport)
        };
        let (kind_of, kinds) = numbered(cases.iter().map(kind));
        let positive = |constant: &Constant| prior[*constant].value > 0.0;
        let all: Vec<Constant> = Constant::ALL.iter().copied().filter(positive).collect();
        let entering: Vec<Vec<Constant>> = (0..kinds.len())
            .into_par_iter()
            .map(|kind| {
                let members = cases.iter().zip(&kind_of).filter(|(_, of)| **of == kind);
                entering(machines, prior, &all, members.map(|(case, _)| case))
            })
            .collect::<Result<_, PredictError>>()?;
        let launches: BTreeSet<Constant> = samples.iter().flat_map(|s| launch_constants(s.settings.launch)).collect();
        let entered =
            |constant: &Constant| launches.contains(constant) || entering.iter().any(|e| e.contains(constant));
        let constants: Vec<Constant> = all.into_iter().filter(entered).collect();
        for (case, kind) in cases.iter_mut().zip(kind_of) {
            case.depends = (0..constants.len()).filter(|&i| entering[kind].contains(&constants[i])).collect();
        }
        for (case, like) in likes(&cases).into_iter().enumerate() {
            cases[case].like = like;
        }
        let start: Vec<f64> = constants.iter().map(|&constant| prior[constant].value.ln()).collect();
        let limit = |(constant, &x): (&Constant, &f64)| {
            let spec = constant.spec();
            let reach = match spec.role {
                Role::Access => WEIGHT_REACH,
                Role::LinkLatency => LATENCY_REACH,
                _ => REACH,
            };
            let [least, most] = spec.bounds.map(f64::ln);
            ((x - reach.ln()).max(least), (x + reach.ln()).min(most))
        };
        let bounds = constants.iter().zip(&start).map(limit).collect();
        Ok(Self { machines, prior, samples, of, cases, constants, start, bounds, known: Mutex::default() })
    }

    /// The samples, in the order given.
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// Kernels that are simulated for them.
    pub fn cases(&self) -> usize {
        self.cases.len()
    }

    /// Constants that enter any of them.
    pub fn constants(&self) -> &[Constant] {
        &self.constants
    }

    /// How fits of what `may` move without some of the rows do on these: by sample, what the fit that has not seen it
    /// predicts, and the mean absolute error of that fit on what it has seen. Samples with the same
    /// key of `split` are held back together, in `folds` groups, or one by one.
    ///
    /// Every fold starts at the prior and finds for itself what its rows tell. Where they tell nothing it stays there.
    ///
    /// # Errors
    /// A simulation that fails.
    pub fn cross(
        &self,
        split: Split,
        folds: Option<usize>,
        may: &dyn Fn(&str) -> bool,
    ) -> Result<Crossed, CalibrateError> {
        self.crossed(split, folds, |seen, _| {
            let x = match self.find(seen, may) {
                Err(CalibrateError::NothingToFit) => self.start.clone(),
                found => self.all_of(&found?),
            };
            Ok(self.judge(&x)?)
        })
    }

    /// The same one by one, with every fit, and the key of `split` that it has not seen.
    ///
    /// # Errors
    /// A simulation that fails, or rows that tell nothing without one of the keys.
    pub fn apart(
        &self,
        split: Split,
        may: &dyn Fn(&str) -> bool,
    ) -> Result<(Crossed, Vec<(String, Fit)>), CalibrateError> {
        let mut fits = Vec::new();
        let crossed = self.crossed(split, None, |seen, without| {
            let fit = self.fit(seen, may)?;
            let judged = fit.judged.clone();
            fits.push((without.to_owned(), fit));
            Ok(judged)
        })?;
        Ok((crossed, fits))
    }

    /// Holds back fold by fold; `judge` predicts all samples from those it is given, and is told a key
    /// of the others.
    fn crossed(
        &self,
        split: Split,
        folds: Option<usize>,
        mut judge: impl FnMut(&[usize], &str) -> Result<Vec<Judged>, CalibrateError>,
    ) -> Result<Crossed, CalibrateError> {
        let keys: BTreeSet<String> = self.samples.iter().map(|s| split.key(s)).collect();
        let folds = folds.unwrap_or(keys.len()).clamp(1, keys.len());
        let place: BTreeMap<&String, usize> = keys.iter().enumerate().map(|(i, key)| (key, i % folds)).collect();
        let fold: Vec<usize> = self.samples.iter().map(|s| place[&split.key(s)]).collect();
        let mut crossed = Crossed { fold: fold.clone(), held: Vec::new(), trained: vec![0.0; folds] };
        if folds < 2 {
            return Ok(crossed);
        }
        let mut held = vec![None; self.samples.len()];
        for ((f, trained), key) in crossed.trained.iter_mut().enumerate().zip(&keys) {
            let seen: Vec<usize> = (0..fold.len()).filter(|&r| fold[r] != f).collect();
            let judged = judge(&seen, key)?;
            *trained = mean(seen.iter().map(|&r| judged[r].error().abs()));
            for r in (0..fold.len()).filter(|&r| fold[r] == f) {
                held[r] = Some(judged[r]);
            }
        }
        crossed.held = held.into_iter().flatten().collect();
        Ok(crossed)
    }

    /// Predictions of all samples with a profile's values.
    ///
    /// # Errors
    /// A simulation that fails.
    pub fn judge_with(&self, profile: &Profile) -> Result<Vec<Judged>, CalibrateError> {
        let x: Vec<f64> = self.constants.iter().map(|&constant| profile[constant].value.max(1e-12).ln()).collect();
        Ok(self.judge(&x)?)
    }

    fn judge(&self, x: &[f64]) -> Result<Vec<Judged>, PredictError> {
        let all: Vec<usize> = (0..self.cases.len()).collect();
        let profile = self.profile(x);
        let simulated = self.simulate(&profile, &all)?;
        Ok((0..self.samples.len()).map(|r| self.judged(r, &profile, simulated[self.of[r]])).collect())
    }

    /// The same, given what all cases take under other unknowns: long ones are not simulated again but scaled.
    fn judge_near(&self, here: &[Simulated], x: &[f64]) -> Result<Vec<Judged>, PredictError> {
        let profile = self.profile(x);
        let likes: Vec<usize> =
            (self.cases.iter().map(|case| case.like)).collect::<BTreeSet<_>>().into_iter().collect();
        let there: BTreeMap<usize, Simulated> = likes.iter().copied().zip(self.simulate(&profile, &likes)?).collect();
        let of = |case: usize| here[case].moved(here[self.cases[case].like], there[&self.cases[case].like]);
        Ok((0..self.samples.len()).map(|r| self.judged(r, &profile, of(self.of[r]))).collect())
    }

    fn judged(&self, row: usize, profile: &Profile, simulated: Simulated) -> Judged {
        let (pace, kernel_us) = (self.pace(row, profile).as_us(), simulated.kernel_us);
        let predicted_us = pace.time(kernel_us);
        let bound = if pace.is_kept_by_host(kernel_us) { "launch rate" } else { simulated.bound };
        Judged { predicted_us, residual: (predicted_us / self.samples[row].time_us).ln(), bound }
    }

    fn pace(&self, row: usize, profile: &Profile) -> Pace<SimDuration> {
        let sample = &self.samples[row];
        let predictor = Predictor::new(&self.machines[sample.machine], profile);
        let each = sample.call.ranks.div_ceil(predictor.hosts(sample.call.ranks));
        let channels = self.cases[self.of[row]].proven.schedule.plan.blocks();
        Pace::new(profile, sample.settings.launch, each, channels)
    }

    /// Kernel times of some cases.
    fn simulate(&self, profile: &Profile, cases: &[usize]) -> Result<Vec<Simulated>, PredictError> {
        let predictors = predictors(self.machines, profile);
        cases.par_iter().map(|&c| self.simulate_one(&predictors, profile, c)).collect()
    }

    fn simulate_one(
        &self,
        predictors: &[Predictor<'_>],
        profile: &Profile,
        case: usize,
    ) -> Result<Simulated, PredictError> {
        let mut hasher = DefaultHasher::new();
        let of = &self.cases[case];
        of.depends.iter().for_each(|&i| profile[self.constants[i]].value.to_bits().hash(&mut hasher));
        let key = (case, hasher.finish());
        if let Some(&known) = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(known);
        }
        let prediction = predictors[of.machine].simulate(&of.proven, &of.settings, &mut Unobserved)?;
        let simulated = Simulated { kernel_us: prediction.kernel.as_us(), bound: prediction.bound_by() };
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(key, simulated);
        Ok(simulated)
    }

    /// Whether a parameter enters a sample.
    fn enters(&self, row: usize, parameter: usize) -> bool {
        self.cases[self.of[row]].depends.contains(&parameter)
            || launch_constants(self.samples[row].settings.launch).contains(&self.constants[parameter])
    }

    /// All unknowns, those that are not free at their prior.
    fn all(&self, free: &[usize], x: &[f64]) -> Vec<f64> {
        let mut all = self.start.clone();
        for (&i, &value) in free.iter().zip(x) {
            all[i] = value;
        }
        all
    }

    fn profile(&self, x: &[f64]) -> Profile {
        let mut profile = self.prior.clone();
        for ((&constant, x), start) in self.constants.iter().zip(x).zip(&self.start) {
            if x != start {
                set(&mut profile, constant, x.exp());
            }
        }
        profile
    }

    /// By row, the number of its run.
    fn clusters(&self, rows: &[usize]) -> Vec<usize> {
        numbered(rows.iter().map(|&r| self.samples[r].run.as_str())).0
    }
}

/// Numbers keys in the order in which they come: the number of each, and the place of the first with each number.
fn numbered<K: Eq + Hash>(keys: impl Iterator<Item = K>) -> (Vec<usize>, Vec<usize>) {
    let mut numbers: FxHashMap<K, usize> = FxHashMap::default();
    let mut firsts = Vec::new();
    let number = |(place, key): (usize, K)| {
        *numbers.entry(key).or_insert_with(|| {
            firsts.push(place);
            firsts.len() - 1
        })
    };
    let of = keys.enumerate().map(number).collect();
    (of, firsts)
}

/// Of some constants, those that enter any of some cases.
fn entering<'c>(
    machines: &[Topology],
    prior: &Profile,
    all: &[Constant],
    cases: impl Iterator<Item = &'c SharedKernel>,
) -> Result<Vec<Constant>, PredictError> {
    let (mut enter, mut others) = (Vec::new(), all.to_vec());
    for case in cases {
        let topology = &machines[case.machine];
        let before = costs(topology, prior, case)?;
        let enters = |constants: &[Constant]| -> Result<bool, PredictError> {
            let mut moved = prior.clone();
            // Each by another factor: none makes up for another.
            for (place, &constant) in constants.iter().enumerate() {
                set(&mut moved, constant, prior[constant].value * (0.7 - 0.001 * place as f64));
            }
            Ok(costs(topology, &moved, case)? != before)
        };
        // All at once first: most cases are as those before.
        if enters(&others)? {
            let mut left = Vec::new();
            for constant in others {
                let which = if enters(&[constant])? { &mut enter } else { &mut left };
                which.push(constant);
            }
            others = left;
        }
    }
    Ok(enter)
}

/// By case, which one tells how it changes with a parameter: of calls that differ in their size alone, those of many
/// chunks do as the shortest of them.
fn likes(cases: &[SharedKernel]) -> Vec<usize> {
    let mut shortest: FxHashMap<Like, (u64, usize)> = FxHashMap::default();
    let kind = |case: &SharedKernel| -> Option<Like> {
        let Schedule { call, plan, .. } = &case.proven.schedule;
        let long = plan.per_channel >= LONG * plan.chunk.max(1) && call.counts.is_none();
        let plan = Plan { per_channel: 0, dealing: Dealing::Evenly, ..*plan };
        let call = Call { count: 0, ..call.clone() };
        long.then_some((case.machine, call, plan, case.settings))
    };
    let kinds: Vec<Option<Like>> = cases.iter().map(kind).collect();
    for (index, key) in kinds.iter().enumerate() {
        let Some(key) = key else { continue };
        let this = (cases[index].proven.schedule.call.count, index);
        shortest.entry(key.clone()).and_modify(|best| *best = this.min(*best)).or_insert(this);
    }
    let of = |(index, key): (usize, Option<Like>)| key.map_or(index, |key| shortest[&key].1);
    kinds.into_iter().enumerate().map(of).collect()
}

/// What cross-validation found.
#[derive(Clone, PartialEq, Debug)]
pub struct Crossed {
    /// By sample, the fold that held it back.
    pub fold: Vec<usize>,
    /// By sample, what the fit without it predicts; empty where there is only one fold.
    pub held: Vec<Judged>,
    /// By fold, the mean absolute error on what it was fitted to.
    pub trained: Vec<f64>,
}

/// A predictor for each of some machines.
fn predictors<'a>(machines: &'a [Topology], profile: &'a Profile) -> Vec<Predictor<'a>> {
    machines.iter().map(|topology| Predictor::new(topology, profile)).collect()
}

/// What a launch mode alone depends on.
fn launch_constants(launch: Launch) -> Vec<Constant> {
    let by_host = (launch != Launch::Graph).then_some([Constant::LaunchChannel, Constant::LaunchGap]);
    by_host.into_iter().flatten().chain([Profile::launch_parameter(launch)]).collect()
}

fn set(profile: &mut Profile, constant: Constant, value: f64) {
    let fitted = Parameter { value, origin: OriginKind::Fitted, source: String::new(), interval: None };
    profile.parameters.insert(constant, fitted);
}

/// Everything of a laid case that costs time.
fn costs(topology: &Topology, profile: &Profile, case: &SharedKernel) -> Result<impl PartialEq + use<>, PredictError> {
    let schedule = &case.proven.schedule;
    let laid = lay(topology, profile, &case.settings.transport, schedule)?;
    let Instance { resources, conns, lanes, .. } = laid.instance;
    let lanes: Vec<_> = lanes.iter().map(LaneSpec::costs).collect();
    Ok((resources, conns, lanes, profile.kernel(&schedule.plan).0))
}

//! Which values for a whole process are worth a measurement, and whether they help all calls together.
//!
//! A trial is a set of values. Of each call it has a forecast with and without them, by the choice that is advised for the
//! call. How unsure their ratio is follows from the forecast's own interval, and goes together at sizes that are near.
//! Trials that may gain are measured in set-ups of their own, in turns with set-ups without the values.

use std::collections::BTreeMap;

use collcast_sim::predict::{PredictError, Prediction, Settings};
use collcast_sim::schedule::Call;
use nalgebra::{DMatrix, DVector};
use rayon::prelude::*;

use super::communicator::Spot;
use super::options::Clock;
use super::posterior::{deviation, sizes_together};
use super::process::{Finding, Least, Process, ProcessSetting, ProcessVariable, Tried, words};
use super::request::Objective;
use super::search::{Forced, ROUNDS, SPACING, Stopwatch, WORTH, expected};
use super::tuned::{SURE, Tuned};
use super::variables::TOLERANCE;
use crate::error::Error;
use crate::statistics::median;
use crate::watch::Watch;

/// How unsure the ratio of two forecasts is that differ by a factor of 2 to 4 in threads or FIFOs, as a part of how unsure
/// the less sure one is. Origin: `tests/data/h200x4_bench`, `nccl_buffers_1m`, `nccl_buffers_16m` and `nccl_nthreads_*` against runs with
/// NCCL's values: the root mean square error of such ratios is 0.35 to 1.1 of that of the forecasts, 0.8 in the median of six
/// files with the fitted profile and with `prior`.
const RATIO: f64 = 0.8;
/// Octaves between the sizes that a trial is first looked at with: those between are told by their neighbours.
const SCREEN: f64 = 3.0;
/// Bytes beyond which no size is looked at so where a smaller one is: what a call does there it does longer, and a forecast
/// takes seconds.
const SCREEN_MOST: u64 = 1 << 30;
/// Rounds after which a trial ends that slowed a call in each of them, and by how much it did, as a logarithm.
const SLOWER: (usize, f64) = (3, 2.0 * TOLERANCE);

/// A communicator, with what is known of its calls.
pub(super) struct Work<'s> {
    pub(super) clock: Clock<'s>,
    pub(super) calls: Vec<Tuned>,
    /// Where its ranks are.
    pub(super) spot: Spot,
    /// Whether it is measured.
    pub(super) here: bool,
}

/// A call under the values of a trial.
struct Effect {
    /// Places of communicator and call.
    at: (usize, usize),
    octave: f64,
    /// What the call counts; nothing where it only must not be slowed.
    weight: f64,
    /// Logarithm of the forecast without the values over that with them.
    saved: f64,
    /// Standard deviation of that before anything was measured; 0 where NCCL cuts the call alike.
    doubt: f64,
    /// Standard deviation of the logarithm of one measured time.
    noise: f64,
    /// Logarithms of the times without and with the values, of the round that all trials begin with at some sizes.
    first: Option<(f64, f64)>,
    /// The same of rounds of all calls.
    rounds: Vec<(f64, f64)>,
}

impl Effect {
    /// What was measured to be saved, each time.
    fn measured(&self) -> impl Iterator<Item = f64> {
        self.first.iter().chain(&self.rounds).map(|(without, with)| without - with)
    }

    /// What is known to be saved: measured, else forecast.
    fn known(&self) -> f64 {
        let of_all: Vec<f64> = self.rounds.iter().map(|(without, with)| without - with).collect();
        match self.first {
            _ if !of_all.is_empty() => median(of_all),
            Some((without, with)) => without - with,
            None => self.saved,
        }
    }

    /// Adds what is known of the call under the values that these go beside. What was measured is in no doubt.
    fn add(&mut self, base: Option<&Trial>) {
        let of_call = |base: &&Self| base.at == self.at;
        if let Some(base) = base.and_then(|base| base.effects.iter().find(of_call)) {
            self.saved += base.known();
            self.doubt = self.doubt.hypot(if base.measured().next().is_some() { 0.0 } else { base.doubt });
        }
    }

    /// Whether each of several rounds was slower with the values.
    fn is_slowed(&self) -> bool {
        self.measured().count() >= SLOWER.0 && self.measured().all(|saved| saved < -SLOWER.1)
    }
}

/// Values for a process, with what is known of them.
struct Trial {
    settings: Vec<ProcessSetting>,
    effects: Vec<Effect>,
    explored: bool,
    /// It cannot be run.
    closed: bool,
    /// What five rounds have shown.
    judged: Option<Tried>,
}

impl Trial {
    /// Logarithm of the time saved over all calls, and how unsure that is.
    fn belief(&self) -> (f64, f64) {
        belief(&self.effects)
    }

    /// Calls that are compared.
    fn counted(&self) -> impl Iterator<Item = &Effect> {
        self.effects.iter().filter(|effect| effect.weight > 0.0)
    }

    fn is_measured(&self) -> bool {
        self.counted().any(|effect| effect.measured().next().is_some())
    }

    /// What the rounds of all calls show; nothing before there are five.
    fn judge(&self, works: &[Work<'_>]) -> Option<Tried> {
        let rounds = self.counted().map(|effect| effect.rounds.len()).min().unwrap_or(0);
        if rounds < ROUNDS {
            return None;
        }
        let all: f64 = self.counted().map(|effect| effect.weight).sum();
        // Of all calls, round by round: without the values, and with them.
        let total = |side: &dyn Fn(&(f64, f64)) -> f64| -> Vec<f64> {
            let round = |at: usize| self.counted().map(|e| e.weight / all * side(&e.rounds[at])).sum();
            (0..rounds).map(round).collect()
        };
        let (without, with) = (total(&|times| times.0), total(&|times| times.1));
        let saved = median(without.iter().zip(&with).map(|(without, with)| without - with).collect());
        let spread = (range(&without), range(&with));
        let slows = |effect: &&Effect| {
            let own: Vec<f64> = effect.rounds.iter().map(|times| times.0).collect();
            effect.known() < -range(&own).max(TOLERANCE)
        };
        let finding = match () {
            () if self.counted().any(|effect| slows(&effect)) => Finding::Slows,
            () if saved > spread.0.max(spread.1).max(WORTH) => Finding::Change,
            () => Finding::Keep,
        };
        Some(Tried { finding, gain: fraction(saved), doubt: None, spread: Some(spread), rounds, ..self.tried(works) })
    }

    /// What is known of it so far.
    fn tried(&self, works: &[Work<'_>]) -> Tried {
        let (saved, doubt) = self.belief();
        let least = self.counted().min_by(|a, b| a.known().total_cmp(&b.known()));
        let least = least.map(|effect| {
            let call = &works[effect.at.0].calls[effect.at.1];
            Least { collective: call.collective, size_bytes: call.size_bytes, gain: fraction(effect.known()) }
        });
        Tried {
            settings: self.settings.clone(),
            finding: if self.counted().any(Effect::is_slowed) { Finding::Slows } else { Finding::Keep },
            gain: fraction(saved),
            doubt: Some(doubt),
            spread: None,
            rounds: self.counted().map(|effect| effect.rounds.len()).min().unwrap_or(0),
            calls: self.counted().count(),
            least,
        }
    }
}

/// A saved logarithm as a part of the time.
fn fraction(saved: f64) -> f64 {
    -(-saved).exp_m1()
}

fn range(values: &[f64]) -> f64 {
    let (low, high) = values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), &v| (l.min(v), h.max(v)));
    high - low
}

/// What the effects save together, and how unsure that is: a Gaussian process over sizes, corrected by what was measured.
fn belief(effects: &[Effect]) -> (f64, f64) {
    let of: Vec<&Effect> = effects.iter().filter(|effect| effect.weight > 0.0).collect();
    let all: f64 = of.iter().map(|effect| effect.weight).sum();
    let share = DVector::from_iterator(of.len(), of.iter().map(|effect| effect.weight / all));
    let between = |a: &Effect, b: &Effect| a.doubt * b.doubt * sizes_together(a.octave - b.octave);
    let own = DMatrix::from_fn(of.len(), of.len(), |i, j| between(of[i], of[j]));
    let forecast: f64 = of.iter().zip(share.iter()).map(|(effect, share)| share * effect.saved).sum();
    let together = &own * &share;
    let variance = share.dot(&together);
    let seen: Vec<usize> =
        (0..of.len()).filter(|&at| of[at].doubt > 0.0 && of[at].measured().next().is_some()).collect();
    let noise = |effect: &Effect| 2.0 * effect.noise.powi(2) / effect.measured().count() as f64;
    let known = DMatrix::from_fn(seen.len(), seen.len(), |i, j| {
        own[(seen[i], seen[j])] + if i == j { noise(of[seen[i]]) } else { 0.0 }
    });
    let off = seen.iter().map(|&at| median(of[at].measured().collect()) - of[at].saved);
    let off = DVector::from_iterator(seen.len(), off);
    let across = DVector::from_iterator(seen.len(), seen.iter().map(|&at| together[at]));
    match known.cholesky().filter(|_| !seen.is_empty()) {
        Some(factor) => {
            let weights = factor.solve(&across);
            (forecast + weights.dot(&off), (variance - weights.dot(&across)).max(0.0).sqrt())
        }
        None => (forecast, variance.max(0.0).sqrt()),
    }
}

/// The forecasts of a call under some values and under others, by the choice that is advised; none where NCCL cuts it alike.
fn apart(
    clock: &Clock<'_>,
    call: &Tuned,
    [some, others]: [&[ProcessSetting]; 2],
) -> Result<Option<[Prediction; 2]>, PredictError> {
    let taken = call.taken();
    let under = |told: &[ProcessSetting]| {
        let mut settings = Settings { channels: taken.channels, ..clock.settings };
        told.iter().for_each(|setting| setting.put(&mut settings.nccl));
        settings
    };
    let told_nothing = some.is_empty();
    let (some, others) = (under(some), under(others));
    let cut = |settings| clock.cut(&call.call, taken.pair, settings);
    if cut(&some)? == cut(&others)? {
        return Ok(None);
    }
    let forecast = |settings| clock.forecast(&call.call, Some(taken.pair), settings);
    let known = told_nothing.then(|| taken.prediction.clone());
    Ok(Some([known.map_or_else(|| forecast(&some), Ok)?, forecast(&others)?]))
}

/// Whether values are expected to save enough to be measured.
fn may_gain((saved, doubt): (f64, f64)) -> bool {
    expected(saved, doubt) > WORTH
}

/// The choice that is advised for a call.
fn advised(call: &Tuned) -> Forced {
    call.advice.as_ref().map(|_| (call.taken().pair, call.taken().channels))
}

/// All trials of some communicators.
pub(super) struct Trials<'w, 's> {
    works: &'w [Work<'s>],
    objective: Objective,
    /// Only communicators that are measured count; else all do.
    measured: bool,
    trials: Vec<Trial>,
    times: usize,
}

impl<'w, 's> Trials<'w, 's> {
    pub(super) fn new(works: &'w [Work<'s>], objective: Objective, measured: bool) -> Self {
        Self { works, objective, measured, trials: Vec::new(), times: 0 }
    }

    /// What forecasts alone say: values that gain beyond doubt and slow nothing.
    ///
    /// # Errors
    /// What has no forecast; [`Error::Cancelled`].
    pub(super) fn forecast(mut self, watch: &Watch) -> Result<Process, Error> {
        let mut best: Option<Trial> = None;
        loop {
            self.open(best.as_ref(), &|(saved, doubt)| saved > SURE * doubt && saved > WORTH, watch)?;
            match self.trials.drain(..).max_by(|a, b| a.belief().0.total_cmp(&b.belief().0)) {
                Some(better) => best = Some(better),
                None => break,
            }
        }
        let tried = best.map(|trial| Tried { finding: Finding::Change, ..trial.tried(self.works) });
        Ok(Process { tried: tried.into_iter().collect(), times: 0 })
    }

    /// Adds the trials of one value more than another has, as far as what is forecast of that value is worth it.
    fn open(
        &mut self,
        base: Option<&Trial>,
        is_worth: &dyn Fn((f64, f64)) -> bool,
        watch: &Watch,
    ) -> Result<(), Error> {
        let Some(first) = self.works.first() else { return Ok(()) };
        // Where NCCL's choice has no forecast, forecasts cannot say that it is not slowed.
        let unknown = |work: &Work<'_>| work.calls.iter().any(|call| call.not_modelled().is_some());
        if !self.measured && self.works.iter().any(unknown) {
            return Ok(());
        }
        let beside = base.map_or(&[][..], |base| &base.settings);
        let more: Vec<ProcessSetting> = ProcessVariable::open(&first.clock.settings.nccl, beside).collect();
        for setting in more {
            if watch.stopped() {
                // What was measured stays.
                return if self.measured { Ok(()) } else { Err(Error::Cancelled) };
            }
            let settings: Vec<ProcessSetting> = beside.iter().copied().chain([setting]).collect();
            let known = |some| match self.effects(&settings, beside, some) {
                // A call that cannot be forecast under them, as one that takes too long, says nothing for them.
                Err(error) if !error.is_internal() => Ok(None),
                effects => effects.map(|effects| Some(effects).filter(|effects| is_worth(belief(effects)))),
            };
            // What goes beside other values is forecast at all sizes: it may help few.
            if base.is_none() && known(true)?.is_none() {
                continue;
            }
            let Some(mut effects) = known(false)? else { continue };
            effects.iter_mut().for_each(|effect| effect.add(base));
            // A measurement may show that a call which seems slower is not; forecasts alone must show none.
            let doubt = if self.measured { SURE } else { 0.0 };
            let harmless = |effect: &Effect| effect.saved > -TOLERANCE - doubt * effect.doubt;
            if effects.iter().all(harmless) {
                self.trials.push(Trial { settings, effects, explored: false, closed: false, judged: None });
            }
        }
        Ok(())
    }

    /// What values do to calls that have some of them already; to some of the calls, or all.
    fn effects(
        &self,
        settings: &[ProcessSetting],
        beside: &[ProcessSetting],
        some: bool,
    ) -> Result<Vec<Effect>, PredictError> {
        let mut calls: Vec<(usize, usize)> = Vec::new();
        for (w, work) in self.works.iter().enumerate() {
            let mut last: Option<&Tuned> = None;
            for (c, call) in work.calls.iter().enumerate() {
                let far = |other: &Tuned| {
                    !call.is_like(other) || call.size_bytes <= SCREEN_MOST && octave(call) - octave(other) >= SCREEN
                };
                let modelled = call.not_modelled().is_none();
                if !some || modelled && !call.beyond && last.is_none_or(far) {
                    last = Some(call);
                    calls.push((w, c));
                }
            }
        }
        calls.par_iter().map(|&at| self.effect(at, settings, beside)).collect()
    }

    fn effect(
        &self,
        at: (usize, usize),
        settings: &[ProcessSetting],
        beside: &[ProcessSetting],
    ) -> Result<Effect, PredictError> {
        let work = &self.works[at.0];
        let call = &work.calls[at.1];
        let counts = !call.beyond && (work.here || !self.measured);
        let forecast = match call.not_modelled() {
            None => apart(&work.clock, call, [beside, settings])?,
            // A measurement alone says what values do to it.
            Some(_) => None,
        };
        let (saved, doubt) = match forecast {
            None => (0.0, 0.0),
            Some([before, with]) => {
                let doubt = RATIO * deviation(&before).max(deviation(&with));
                ((before.time.as_us() / with.time.as_us()).ln(), doubt)
            }
        };
        let weight = if counts { self.objective.weight(call) } else { 0.0 };
        let noise = work.clock.measured.scatter(call.size_bytes);
        Ok(Effect { at, octave: octave(call), weight, saved, doubt, noise, first: None, rounds: Vec::new() })
    }

    /// Whether a value may gain, by NCCL's own choices.
    ///
    /// # Errors
    /// A fault of a forecast.
    pub(super) fn promises(mut self, watch: &Watch) -> Result<bool, Error> {
        self.open(None, &may_gain, watch)?;
        Ok(!self.trials.is_empty())
    }

    /// Measures until nothing is worth it, or the budget is spent; what ended it early.
    ///
    /// # Errors
    /// What has no forecast; [`Error::Cancelled`] while forecasts are made.
    pub(super) fn run(
        &mut self,
        stopwatch: &mut dyn Stopwatch,
        spent: &dyn Fn(usize) -> bool,
        watch: &Watch,
    ) -> Result<Option<Error>, Error> {
        if spent(self.times) || watch.stopped() {
            return Ok(None);
        }
        self.open(None, &may_gain, watch)?;
        while !watch.stopped() && !spent(self.times) {
            let Some(next) = self.next() else { break };
            if let Err(error) = self.round(next, stopwatch) {
                return Ok(Some(error));
            }
            let settings = self.trials[next].settings.clone();
            let _ = watch.stage(&format!("{} times: {}", self.times, words(&settings)));
            let judged = self.trials[next].judge(self.works);
            let is_best = judged.as_ref().is_some_and(|t| t.finding == Finding::Change && t.gain > self.gain());
            self.trials[next].judged = judged;
            if is_best {
                let base = self.trials.swap_remove(next);
                self.open(Some(&base), &may_gain, watch)?;
                self.trials.push(base);
            }
        }
        Ok(None)
    }

    /// The best gain that was found, as a part of the time.
    fn gain(&self) -> f64 {
        let judged = self.trials.iter().filter_map(|trial| trial.judged.as_ref());
        judged.filter(|t| t.finding == Finding::Change).map(|t| t.gain).fold(0.0, f64::max)
    }

    /// Whether a trial may still gain, and how much, as a logarithm.
    fn worth(&self, trial: &Trial) -> Option<f64> {
        if trial.closed || trial.judged.is_some() || trial.counted().any(Effect::is_slowed) {
            return None;
        }
        let (saved, doubt) = trial.belief();
        // A trial that was measured is worth more rounds for as long as it leads.
        let ahead = saved + (-self.gain()).ln_1p();
        Some(expected(ahead, doubt).max(if trial.is_measured() { ahead } else { 0.0 })).filter(|worth| *worth > WORTH)
    }

    /// The trial that is expected to gain most.
    fn next(&self) -> Option<usize> {
        let worth = self.trials.iter().enumerate().filter_map(|(at, trial)| Some((self.worth(trial)?, at)));
        worth.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, at)| at)
    }

    /// One round: at some sizes at first, of all calls then.
    fn round(&mut self, at: usize, stopwatch: &mut dyn Stopwatch) -> Result<(), Error> {
        let trial = &self.trials[at];
        let (explored, turn) = (trial.explored, trial.effects.iter().map(|e| e.rounds.len()).max().unwrap_or(0));
        let which = if explored { (0..trial.effects.len()).collect() } else { self.spaced(trial) };
        let mut groups: BTreeMap<(usize, Forced), Vec<usize>> = BTreeMap::new();
        for index in which {
            let effect = &trial.effects[index];
            if effect.weight > 0.0 {
                let call = &self.works[effect.at.0].calls[effect.at.1];
                groups.entry((effect.at.0, advised(call))).or_default().push(index);
            }
        }
        let settings = trial.settings.clone();
        for ((work, choice), indices) in groups {
            let works = self.works;
            let call = |index: &usize| &works[work].calls[self.trials[at].effects[*index].at.1].call;
            let calls: Vec<&Call> = indices.iter().map(call).collect();
            let mut both = [Vec::new(), Vec::new()];
            stopwatch.turn_to(&works[work].spot);
            // Whoever is first meets a colder GPU.
            for with in [turn % 2, 1 - turn % 2] {
                let told = if with == 1 { settings.as_slice() } else { &[] };
                both[with] = stopwatch.measure_with(told, choice, &calls)?;
                self.times += both[with].len();
            }
            let [without, with] = both;
            let trial = &mut self.trials[at];
            trial.closed |= without.len() < calls.len() || with.len() < calls.len();
            for ((index, without), with) in indices.into_iter().zip(without).zip(with) {
                let (effect, times) = (&mut trial.effects[index], (without.ln(), with.ln()));
                match explored {
                    true => effect.rounds.push(times),
                    false => effect.first = Some(times),
                }
            }
        }
        self.trials[at].explored = true;
        Ok(())
    }

    /// Effects that count and are forecast to be there, far enough apart.
    fn spaced(&self, trial: &Trial) -> Vec<usize> {
        let mut taken: Vec<usize> = Vec::new();
        let call = |effect: &Effect| &self.works[effect.at.0].calls[effect.at.1];
        for (index, effect) in trial.effects.iter().enumerate().filter(|(_, e)| e.weight > 0.0 && e.doubt > 0.0) {
            let last = taken.last().map(|&last| &trial.effects[last]);
            let near = |last: &Effect| {
                last.at.0 == effect.at.0
                    && call(last).is_like(call(effect))
                    && (effect.octave - last.octave).abs() < SPACING
            };
            if !last.is_some_and(near) {
                taken.push(index);
            }
        }
        taken
    }

    /// What was measured of all of them, the best first.
    pub(super) fn outcome(self) -> Process {
        let best = self.gain();
        let tried = self.trials.iter().filter(|trial| trial.is_measured()).map(|trial| {
            let unsettled = trial.judged.is_none() && self.worth(trial).is_some();
            match trial.judged.clone() {
                Some(judged) if judged.finding == Finding::Change && judged.gain < best => {
                    Tried { finding: Finding::Keep, ..judged }
                }
                Some(judged) => judged,
                None if unsettled => Tried { finding: Finding::Unsettled, ..trial.tried(self.works) },
                None => trial.tried(self.works),
            }
        });
        let mut tried: Vec<Tried> = tried.collect();
        tried.sort_by(|a, b| b.gain.total_cmp(&a.gain));
        Process { tried, times: self.times }
    }
}

fn octave(call: &Tuned) -> f64 {
    (call.size_bytes.max(1) as f64).log2()
}

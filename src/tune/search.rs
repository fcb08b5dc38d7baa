//! Which candidate to measure next: the one that is expected to gain most, beside what NCCL takes by itself.
//!
//! Each round measures one choice at some sizes, and NCCL's own at the same ones just before, so that clocks and
//! temperature change both alike. What was measured corrects the forecasts of its like (`posterior`), and the next round is
//! picked anew, until nothing is worth a measurement. Each change that is then advised is repeated.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use collcast_sim::collective::Launch;
use collcast_sim::nccl::Version;
use collcast_sim::predict::Settings;
use collcast_sim::schedule::Call;
use collcast_tuner::host::Host;

use super::advice::{advise, posteriors};
use super::communicator::Spot;
use super::measured::Measured;
use super::process::ProcessSetting;
use super::request::Objective;
use super::tuned::{Candidate, Pair, Tuned};
use crate::error::Error;
use crate::watch::Watch;

/// An algorithm with a protocol, and channels that are forced.
pub(super) type Way = (Pair, Option<u32>);

/// An algorithm and protocol, with channels where these are forced; none leaves all to NCCL.
pub type Forced = Option<Way>;

/// Who measures calls for real.
pub trait Stopwatch {
    /// The version of NCCL that runs the calls, where that is known.
    fn nccl(&self) -> Option<Version> {
        None
    }

    /// The GPU that has run calls, as its driver names it, where that is known.
    fn gpu(&self) -> Option<&str> {
        None
    }

    /// The kind of host that runs calls, as our tuner plugin knows it again; unknown where that says nothing.
    fn host(&self) -> Host {
        Host::default()
    }

    /// Times of the calls under one choice, in microseconds, in their order. Those at the end that cannot be run so are
    /// left out.
    ///
    /// # Errors
    /// What ends the search: hardware that is not there, a wrong result.
    fn measure(&mut self, choice: Forced, calls: &[&Call]) -> Result<Vec<f64>, Error>;

    /// Whether it can start processes with values of their own: [`Stopwatch::measure_with`].
    fn has_settings(&self) -> bool {
        false
    }

    /// The same in processes that are started with values of their own, of none too: then as others without them.
    ///
    /// # Errors
    /// As of [`Stopwatch::measure`].
    fn measure_with(
        &mut self,
        settings: &[ProcessSetting],
        choice: Forced,
        calls: &[&Call],
    ) -> Result<Vec<f64>, Error> {
        match settings {
            [] => self.measure(choice, calls),
            _ => Ok(Vec::new()),
        }
    }

    /// Takes the ranks of a communicator for what is measured next. Whether this host has its GPUs; without them nothing
    /// changes.
    fn turn_to(&mut self, spot: &Spot) -> bool {
        spot.first
    }
}

/// How much a search may measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Time in all; a round that has begun ends.
    pub time: Duration,
    /// Measured times in all.
    pub times: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { time: Duration::from_secs(300), times: usize::MAX }
    }
}

/// Times of a change and of NCCL's own choice before the change counts.
pub(super) const ROUNDS: usize = 5;
/// Expected gain, as a logarithm, that is worth a measurement: two runs of one thing differ by as much.
pub(super) const WORTH: f64 = 0.005;
/// Octaves between the sizes of one round: those between are told by their neighbours.
pub(super) const SPACING: f64 = 2.0;

/// One time.
#[derive(Clone, Debug)]
struct Row {
    call: Call,
    choice: Forced,
    time_us: f64,
}

/// What a search has measured.
pub(super) struct Search<'s> {
    pub(super) calls: &'s mut [Tuned],
    pub(super) measured: &'s mut Measured,
    pub(super) launch: Launch,
    /// Settings of the machine: channels of NCCL's own choice.
    pub(super) own: Option<u32>,
    /// How the gains of several sizes count.
    pub(super) objective: Objective,
    /// The version of NCCL that is measured; none of other back ends.
    nccl: Option<Version>,
    /// The communicator's name, where several are measured.
    pub(super) name: Option<String>,
    rows: Vec<Row>,
    /// Calls and candidates that cannot be run.
    closed: BTreeSet<(usize, usize)>,
    /// How a search that an error ended was ended.
    pub(super) failure: Option<Error>,
}

impl<'s> Search<'s> {
    pub(super) fn new(
        calls: &'s mut [Tuned],
        measured: &'s mut Measured,
        settings: &Settings,
        nccl: Option<Version>,
    ) -> Self {
        let (launch, own) = (settings.launch, settings.channels);
        let objective = Objective::default();
        let name = None;
        Self {
            calls,
            measured,
            launch,
            own,
            objective,
            nccl,
            name,
            rows: Vec::new(),
            closed: BTreeSet::new(),
            failure: None,
        }
    }

    /// Measures until nothing is worth it, the budget is spent, or somebody stops it: what was measured stays. In the second
    /// half of the budget changes are repeated before anything new is tried. Beyond the budget they are repeated for as long
    /// as `most` lasts.
    pub(super) fn run(&mut self, stopwatch: &mut dyn Stopwatch, budget: Budget, most: Budget, watch: &Watch) {
        let started = Instant::now();
        loop {
            advise(self.calls);
            let spent = |budget: Budget, part: u32| {
                started.elapsed() >= budget.time / part || self.rows.len() >= budget.times / part as usize
            };
            if watch.stopped() || spent(most, 1) {
                return;
            }
            let next = match (spent(budget, 1), spent(budget, 2)) {
                (true, _) => self.confirm(),
                (_, true) => self.confirm().or_else(|| self.explore()),
                _ => self.explore().or_else(|| self.confirm()),
            };
            let Some((choice, calls)) = next else { return };
            if let Err(error) = self.round(stopwatch, choice, &calls) {
                self.failure = Some(error);
                return;
            }
            // That it is to stop is seen above.
            let _ = watch.stage(&format!(
                "{} times, {:.0} s: {}",
                self.rows.len(),
                started.elapsed().as_secs_f64(),
                words(Some(choice))
            ));
        }
    }

    /// The choice whose measurement is expected to gain most over all collectives and sizes, and the calls to measure it at:
    /// starting NCCL anew for a choice takes seconds, and a call milliseconds.
    fn explore(&self) -> Option<(Way, Vec<usize>)> {
        let mut best: Option<(f64, Way, Vec<usize>)> = None;
        let choices: BTreeSet<Way> =
            self.open().flat_map(|(_, call)| call.candidates.iter().map(|c| (c.pair, c.channels))).collect();
        for choice in choices {
            let mut worth: Vec<(f64, usize)> = (self.open())
                .filter_map(|(index, call)| Some((self.objective.weight(call) * self.worth(index, choice)?, index)))
                .collect();
            worth.sort_by(|a, b| b.0.total_cmp(&a.0));
            let total: f64 = worth.iter().map(|w| w.0).sum();
            if total > best.as_ref().map_or(0.0, |best| best.0) {
                best = Some((total, choice, self.spaced(worth.into_iter().map(|w| w.1))));
            }
        }
        best.map(|(_, choice, calls)| (choice, calls))
    }

    /// Calls in their order whose sizes are far enough apart, of each collective.
    fn spaced(&self, calls: impl Iterator<Item = usize>) -> Vec<usize> {
        let octave = |index: usize| (self.calls[index].size_bytes.max(1) as f64).log2();
        let apart = |one: usize, other: usize| {
            self.calls[one].collective != self.calls[other].collective || (octave(one) - octave(other)).abs() >= SPACING
        };
        let mut taken: Vec<usize> = Vec::new();
        for index in calls {
            if taken.iter().all(|&other| apart(other, index)) {
                taken.push(index);
            }
        }
        taken.sort_unstable();
        taken
    }

    /// The calls that were asked about and are modelled.
    fn open(&self) -> impl Iterator<Item = (usize, &Tuned)> {
        self.calls.iter().enumerate().filter(|(_, call)| !call.beyond && call.not_modelled().is_none())
    }

    /// What measurements are expected to gain, over all calls: of each the choice that is worth most.
    pub(super) fn promise(&self) -> f64 {
        let of = |(index, call): (usize, &Tuned)| {
            let worth = call.candidates.iter().filter_map(|c| self.worth(index, (c.pair, c.channels)));
            self.objective.weight(call) * worth.fold(0.0, f64::max)
        };
        self.open().map(of).sum()
    }

    /// What a choice is expected to save at a call over the best that is known, as a logarithm, where that is worth it.
    fn worth(&self, index: usize, (pair, channels): Way) -> Option<f64> {
        let call = &self.calls[index];
        let place = call.candidates.iter().position(|c| c.pair == pair && c.channels == channels)?;
        let candidate = &call.candidates[place];
        let known = |(at, c): &(usize, &Candidate)| *at == call.default || c.measured.is_some();
        let (best, incumbent) = (call.candidates.iter().enumerate().filter(known))
            .min_by(|a, b| a.1.belief.time_us.total_cmp(&b.1.belief.time_us))?;
        let done = candidate.measured.is_some_and(|times| times.runs >= ROUNDS);
        let belief = &candidate.belief;
        if place == call.default || done || self.closed.contains(&(index, place)) {
            return None;
        }
        // The best so far is worth another time for as long as its lead is in doubt.
        let worth = match place == best {
            true if belief.is_certain() => return None,
            true => belief.saved,
            false => expected(belief.saved - incumbent.belief.saved, call.doubt(place, best)),
        };
        (worth > WORTH).then_some(worth)
    }

    /// Takes back what is advised and was not measured often enough; how many changes these are. One time in a process that
    /// the host was slow to start may be three times as long as the next.
    pub(super) fn settle(&mut self) -> usize {
        let mut dropped = 0;
        for call in self.calls.iter_mut().filter(|call| !call.beyond && call.advice.is_some()) {
            if few(call.taken()) || few(call.default_candidate()) {
                call.advice = None;
                dropped += 1;
            }
        }
        dropped
    }

    /// The changes of one choice that are advised and were not measured often enough: those that gain most together, since
    /// the budget may end before the others.
    fn confirm(&self) -> Option<(Way, Vec<usize>)> {
        let mut doubtful: BTreeMap<Way, (f64, Vec<usize>)> = BTreeMap::new();
        for (index, call) in self.open() {
            let Some(advice) = &call.advice else { continue };
            let (place, taken) = (advice.candidate, call.taken());
            let open = !self.closed.contains(&(index, place)) && !self.closed.contains(&(index, call.default));
            if open && (few(taken) || few(call.default_candidate())) {
                let of = doubtful.entry((taken.pair, taken.channels)).or_default();
                of.0 += self.objective.weight(call) * advice.gain;
                of.1.push(index);
            }
        }
        let most = doubtful.into_iter().max_by(|a, b| a.1.0.total_cmp(&b.1.0));
        most.map(|(choice, (_, calls))| (choice, calls))
    }

    /// Measures NCCL's own choice, where it was measured no more often, and then another.
    fn round(&mut self, stopwatch: &mut dyn Stopwatch, choice: Way, calls: &[usize]) -> Result<(), Error> {
        let runs = |c: &Candidate| c.measured.map_or(0, |times| times.runs);
        let place = |call: &Tuned| call.candidates.iter().position(|c| (c.pair, c.channels) == choice);
        let behind = |&&index: &&usize| {
            let call = &self.calls[index];
            let other = place(call).map_or(0, |place| runs(&call.candidates[place]));
            runs(call.default_candidate()) <= other
        };
        let before: Vec<usize> = calls.iter().filter(behind).copied().collect();
        self.measure(stopwatch, None, &before)?;
        self.measure(stopwatch, Some(choice), calls)
    }

    fn measure(&mut self, stopwatch: &mut dyn Stopwatch, choice: Forced, calls: &[usize]) -> Result<(), Error> {
        if calls.is_empty() {
            return Ok(());
        }
        let of: Vec<&Call> = calls.iter().map(|&index| &self.calls[index].call).collect();
        let times = stopwatch.measure(choice, &of)?;
        for (&index, time_us) in calls.iter().zip(&times) {
            let call = self.calls[index].call.clone();
            let channels = choice.map_or(self.own, |(_, channels)| channels);
            self.measured.add(&call, choice.map(|c| c.0), channels, *time_us);
            self.rows.push(Row { call, choice, time_us: *time_us });
        }
        // The first that could not be run ends its collective; those of others are tried again.
        let left = &calls[times.len().min(calls.len())..];
        let ended = left.first().map(|&index| self.calls[index].collective);
        for &index in left.iter().filter(|&&index| Some(self.calls[index].collective) == ended) {
            let call = &self.calls[index];
            let place = choice.map_or(Some(call.default), |choice| {
                call.candidates.iter().position(|c| (c.pair, c.channels) == choice)
            });
            self.closed.extend(place.map(|place| (index, place)));
        }
        self.measured.judge_noise(self.launch);
        for call in self.calls.iter_mut().filter(|call| !call.beyond) {
            for (place, candidate) in call.candidates.iter_mut().enumerate() {
                let default = place == call.default;
                candidate.measured = self.measured.times(&call.call, candidate.pair, candidate.channels, default);
            }
        }
        posteriors(self.calls);
        Ok(())
    }

    /// What was measured, as a file that `tune --measurements` reads.
    pub(super) fn csv(&self) -> Option<String> {
        let mut out =
            "run,collective,algorithm,protocol,ranks,launch,channels,dtype,in_place,nccl_version,size_bytes,time_us\n"
                .to_owned();
        let run = self.name.as_ref().map_or_else(|| RUN.to_owned(), |name| run_of(name));
        let nccl = self.nccl.map_or_else(String::new, |version| version.to_string());
        for Row { call, choice, time_us } in &self.rows {
            let (algorithm, protocol) = choice.map_or(("", ""), |(pair, _)| (pair.0.name(), pair.1.name()));
            let channels = choice.map_or(self.own, |c| c.1).map_or_else(String::new, |channels| channels.to_string());
            let _ = writeln!(
                out,
                "{run},{},{algorithm},{protocol},{},{},{channels},{},{},{nccl},{},{time_us}",
                call.collective,
                call.ranks,
                self.launch,
                call.dtype.name(),
                u8::from(call.in_place),
                call.size().0,
            );
        }
        (!self.rows.is_empty()).then_some(out)
    }

    pub(super) fn times(&self) -> usize {
        self.rows.len()
    }
}

/// Name of the runs of a search.
const RUN: &str = "search";

/// The same of a communicator's, which `--measurements` gives to it alone.
pub(super) fn run_of(communicator: &str) -> String {
    format!("{RUN}:{communicator}")
}

/// The communicator of a run, where a search of several measured it.
pub(super) fn communicator_of(run: &str) -> Option<&str> {
    run.strip_prefix(RUN)?.strip_prefix(':')
}

/// Whether a candidate was not measured often enough for a change to count.
fn few(candidate: &Candidate) -> bool {
    candidate.measured.is_none_or(|times| times.runs < ROUNDS)
}

/// A choice in words.
pub(super) fn words(choice: Forced) -> String {
    choice.map_or_else(
        || "NCCL's own choice".to_owned(),
        |((algorithm, protocol), channels)| {
            let channels = channels.map_or_else(String::new, |channels| format!(" over {channels} channels"));
            format!("{algorithm}/{protocol}{channels}")
        },
    )
}

/// The expected value of what a normal variable is above nought.
pub(super) fn expected(mean: f64, deviation: f64) -> f64 {
    if deviation <= 0.0 {
        return mean.max(0.0);
    }
    let u = mean / deviation;
    let density = (-u * u / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    deviation * density + mean * normal(u)
}

/// The distribution function of a standard normal variable, to 1e-7 (Abramowitz and Stegun 26.2.17).
fn normal(u: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * u.abs());
    let series = [1.330_274_429, -1.821_255_978, 1.781_477_937, -0.356_563_782, 0.319_381_530];
    let tail = series.iter().fold(0.0, |sum, factor| (sum + factor) * t) * (-u * u / 2.0).exp()
        / (2.0 * std::f64::consts::PI).sqrt();
    if u < 0.0 { tail } else { 1.0 - tail }
}

#[cfg(test)]
mod tests {
    use collcast_sim::collective::{Algorithm, Collective, Protocol};

    use super::*;
    use crate::site::Site;
    use crate::tune::tuned::{Advice, Basis, Times};
    use crate::tune::{Request, tune};

    /// Goal: what a size counts for: as much as any other, its time, or its time in a step.
    #[test]
    fn the_objective_weighs_sizes() {
        let site = Site::load("h200x4").unwrap();
        let request = Request { sizes: Some(vec![1 << 10, 1 << 28]), ..Request::default() };
        let mut calls = tune(&site, &request).unwrap().calls;
        calls.iter_mut().filter(|call| call.size_bytes == 1 << 10).for_each(|call| call.in_step = 1_000_000);
        let mut measured = Measured::default();
        let mut search = Search::new(&mut calls, &mut measured, site.settings(), None);
        let mut small = |objective| {
            search.objective = objective;
            let of = |bytes| search.calls.iter().find(|c| c.size_bytes == bytes).map(|c| objective.weight(c)).unwrap();
            of(1 << 10) / of(1 << 28)
        };
        assert_eq!(small(Objective::Latency), 1.0);
        assert!(small(Objective::Bandwidth) < 0.1, "{}", small(Objective::Bandwidth));
        let (step, bandwidth) = (small(Objective::Step), small(Objective::Bandwidth));
        assert!((step / bandwidth / 1e6 - 1.0).abs() < 1e-9, "{step} {bandwidth}");
    }

    /// Goal: where the budget may end, the change that gains most is repeated first, whatever its size.
    #[test]
    fn the_largest_gain_is_confirmed_first() {
        let site = Site::load("h200x4").unwrap();
        let request = Request { sizes: Some(vec![1 << 10, 1 << 22, 1 << 28]), ..Request::default() };
        let mut calls = tune(&site, &request).unwrap().calls;
        let asked = calls.iter_mut().filter(|call| !call.beyond);
        for (call, gain) in asked.zip([0.02, 0.3, 0.05]) {
            let other = (0..call.candidates.len()).rfind(|&place| place != call.default).unwrap();
            call.advice = Some(Advice { candidate: other, gain, basis: Basis::Measured });
            call.candidates[other].channels = Some(u32::try_from(call.size_bytes >> 10).unwrap());
        }
        let mut measured = Measured::default();
        let search = Search::new(&mut calls, &mut measured, site.settings(), None);
        let (choice, confirmed) = search.confirm().unwrap();
        let sizes: Vec<u64> = confirmed.iter().map(|&index| search.calls[index].size_bytes).collect();
        assert_eq!((choice.1, sizes), (Some(1 << 12), vec![1 << 22]));
    }

    /// Goal: one start of NCCL measures a choice for all collectives that it may help.
    #[test]
    fn a_choice_is_measured_for_all_collectives_together() {
        let site = Site::load("h200x4").unwrap();
        let collectives = vec![Collective::AllGather, Collective::ReduceScatter];
        let request = Request { collectives, sizes: Some(vec![1 << 22]), ..Request::default() };
        let mut calls = tune(&site, &request).unwrap().calls;
        let pair = (Algorithm::Ring, Protocol::Ll128);
        for call in calls.iter_mut().filter(|call| !call.beyond) {
            let candidate = call.candidates.iter().position(|c| c.pair == pair).unwrap();
            call.advice = Some(Advice { candidate, gain: 0.2, basis: Basis::Measured });
        }
        let mut measured = Measured::default();
        let search = Search::new(&mut calls, &mut measured, site.settings(), None);
        let (choice, confirmed) = search.confirm().unwrap();
        let of: BTreeSet<Collective> = confirmed.iter().map(|&index| search.calls[index].collective).collect();
        assert_eq!((choice.0, of.len(), confirmed.len()), (pair, 2, 2));
        assert_eq!(search.spaced(confirmed.iter().copied()), confirmed, "sizes of two collectives are never too near");
    }

    /// Goal: what a choice may gain over the best known is as unsure as those two are apart, not as it and NCCL's choice are.
    #[test]
    fn a_choice_is_held_against_the_best_known() -> Result<(), crate::Error> {
        let lacks = || crate::Error::Internal("the candidates lack one".to_owned());
        let site = Site::load("h200x4")?;
        let channels = vec![None, Some(16)];
        let request = Request { sizes: Some(vec![1 << 22]), channels, ..Request::default() };
        let mut calls = tune(&site, &request)?.calls;
        let pair = (Algorithm::Ring, Protocol::Simple);
        let index = calls.iter().position(|call| !call.beyond).ok_or_else(lacks)?;
        let call = &mut calls[index];
        let place = |of| call.candidates.iter().position(|c| (c.pair, c.channels) == (pair, of)).ok_or_else(lacks);
        let (best, other) = (place(None)?, place(Some(16))?);
        assert_ne!(call.default, best);
        let time_us = 0.9 * call.default_candidate().predicted_us;
        call.candidates[best].measured = Some(Times { time_us, runs: 5, deviation: 0.01 });
        posteriors(&mut calls);
        let mut measured = Measured::default();
        let search = Search::new(&mut calls, &mut measured, site.settings(), None);
        let call = &search.calls[index];
        let [ahead, behind] = [other, best].map(|place| call.candidates[place].belief);
        let doubt = call.doubt(other, best);
        assert!(doubt > 0.0 && doubt < 0.9 * ahead.doubt, "{doubt} {ahead:?}");
        let worth = expected(ahead.saved - behind.saved, doubt);
        assert_eq!(search.worth(index, (pair, Some(16))), Some(worth).filter(|worth| *worth > WORTH));
        assert!(worth > WORTH, "{worth}");
        Ok(())
    }

    /// Goal: expected gains by hand: half of the mean absolute deviation where nothing is ahead, the lead itself where it is
    /// sure, next to nothing far behind.
    #[test]
    fn expected_gains_by_hand() {
        assert!((expected(0.0, 0.1) - 0.039_894).abs() < 1e-6);
        assert!((expected(0.3, 0.01) - 0.3).abs() < 1e-9 && expected(0.3, 0.0) == 0.3);
        assert!(expected(-0.3, 0.05) < 1e-9);
        assert!((normal(1.645) - 0.95).abs() < 1e-4 && (normal(-1.645) - 0.05).abs() < 1e-4);
    }
}

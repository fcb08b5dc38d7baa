//! Who is measured with which part of the budget: communicators whose GPUs are on this host, one after another, and then
//! values for the whole process.

use std::time::Instant;

use collcast_sim::nccl::Version;

use super::advice::{advise, posteriors};
use super::outcome::Ended;
use super::process::Process;
use super::request::Request;
use super::search::{Budget, Search, Stopwatch};
use super::trials::{Trials, Work};
use crate::error::Error;

/// The part of the budget that is kept for values of a whole process where one may gain: a round of them is a few set-ups,
/// and five make a finding.
const KEPT: f64 = 0.25;

/// What measurements gave.
#[derive(Default)]
pub(super) struct Measuring {
    pub(super) csv: Option<String>,
    pub(super) times: usize,
    pub(super) ended: Option<Ended>,
    /// Changes that were not repeated often enough to count.
    pub(super) unsettled: usize,
    pub(super) process: Process,
    pub(super) notes: Vec<String>,
}

impl Measuring {
    /// Advises on all calls, with measurements where GPUs are here.
    ///
    /// # Errors
    /// What keeps the first measurement from being taken; what has no forecast; [`Error::Cancelled`].
    pub(super) fn of(
        works: &mut [Work<'_>],
        request: &Request,
        installed: Option<Version>,
        stopwatch: &mut dyn Stopwatch,
        budget: Budget,
    ) -> Result<Self, Error> {
        let mut out = Self::default();
        for work in works.iter_mut() {
            work.here = stopwatch.turn_to(&work.spot);
        }
        if works.iter().all(|work| !work.here) {
            let fits = |work: &&mut Work<'_>| work.spot.first;
            // Whoever runs calls says what is missing.
            works.iter_mut().find(fits).ok_or_else(nobody)?.here = true;
        }
        works.iter_mut().for_each(|work| posteriors(&mut work.calls));
        let tries = stopwatch.has_settings();
        let promising = tries && Trials::new(works, request.objective, true).promises(&request.watch)?;
        let started = Instant::now();
        let for_calls = part(budget, if promising { 1.0 - KEPT } else { 1.0 });
        let several = works.len() > 1;
        let mut promises = Vec::new();
        for work in works.iter_mut() {
            promises.push(if work.here { out.search(work, request, installed, several).promise() } else { 0.0 });
        }
        for (at, work) in works.iter_mut().enumerate() {
            if !work.here || out.ended.is_some() {
                if !work.here {
                    let whose = work.clock.group.communicator.to_string();
                    out.notes.push(format!("{whose} is not on the GPUs of this host: forecasts alone tune it"));
                }
                advise(&mut work.calls);
                continue;
            }
            let [left, most] = [for_calls, budget].map(|of| Budget {
                time: of.time.saturating_sub(started.elapsed()),
                times: of.times.saturating_sub(out.times),
            });
            let share = share(&promises[at..]);
            stopwatch.turn_to(&work.spot);
            let mut search = out.search(work, request, installed, several);
            // A change that was measured is worth more than a value that may gain.
            search.run(stopwatch, part(left, share), part(most, share), &request.watch);
            out.add(search)?;
        }
        if out.ended.is_none() && tries {
            let times = out.times;
            let mut trials = Trials::new(works, request.objective, true);
            let spent = |own: usize| started.elapsed() >= budget.time || times.saturating_add(own) >= budget.times;
            let failure = trials.run(stopwatch, &spent, &request.watch)?;
            out.process = trials.outcome();
            out.ended = match failure {
                Some(error) if out.times + out.process.times == 0 => return Err(error),
                failure => failure.as_ref().map(Ended::by),
            };
        }
        Ok(out)
    }

    fn search<'w>(
        &self,
        work: &'w mut Work<'_>,
        request: &Request,
        installed: Option<Version>,
        several: bool,
    ) -> Search<'w> {
        let name = work.clock.group.communicator.name.clone().filter(|_| several);
        let mut search = Search::new(&mut work.calls, &mut work.clock.measured, &work.clock.settings, installed);
        (search.objective, search.name) = (request.objective, name);
        search
    }

    /// Adds what the search for one communicator gave.
    fn add(&mut self, mut search: Search<'_>) -> Result<(), Error> {
        let first = self.times == 0;
        self.ended = match search.failure.take() {
            Some(error) if first && search.times() == 0 => return Err(error),
            failure => failure.as_ref().map(Ended::by),
        };
        self.unsettled += search.settle();
        self.times += search.times();
        if let Some(csv) = search.csv() {
            // One header for all.
            let rows = if first { csv.as_str() } else { csv.split_once('\n').map_or("", |(_, rows)| rows) };
            self.csv.get_or_insert_default().push_str(rows);
        }
        Ok(())
    }
}

fn nobody() -> Error {
    Error::usage(
        "no communicator is on the GPUs of this host alone, so none can be measured here",
        "leave out --measure: forecasts tune it; or name the communicators whose ranks are on one host",
    )
}

/// A part of a budget.
fn part(budget: Budget, part: f64) -> Budget {
    Budget { time: budget.time.mul_f64(part), times: (budget.times as f64 * part) as usize }
}

/// The share of the first of several in what is left: half of it as much as any other's, half by what its measurements are
/// expected to gain.
fn share(promises: &[f64]) -> f64 {
    let all: f64 = promises.iter().sum();
    let wanted = promises.iter().filter(|promise| **promise > 0.0).count();
    match promises.first() {
        Some(first) if *first > 0.0 && wanted > 1 => 0.5 / wanted as f64 + 0.5 * first / all,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: shares of what is left, by hand: alike where gains are, all of it for the last, and for who promises nothing.
    #[test]
    fn shares_by_hand() {
        assert_eq!(share(&[2.0, 2.0]), 0.5);
        assert_eq!(share(&[3.0, 1.0]), 0.625);
        assert_eq!(share(&[3.0, 1.0, 0.0]), 0.625);
        assert_eq!((share(&[1.0]), share(&[0.0, 1.0]), share(&[0.0])), (1.0, 1.0, 1.0));
        let budget = Budget { times: usize::MAX, ..Budget::default() };
        assert_eq!(part(budget, 1.0), budget);
    }
}

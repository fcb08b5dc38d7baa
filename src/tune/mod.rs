//! Where NCCL's own choice leaves time, what to take in its place, and as which setting.
//!
//! Every algorithm and protocol that NCCL may use is timed (`options`), and measured times of forced ones correct the
//! forecasts (`posterior`). A change is advised only where its gain exceeds what is not known of both (`advice`). What is advised
//! becomes lines for a tuner plugin, and variables where these slow no size (`variables`). `install` loads our own plugin.
//!
//! ```
//! use collcast::tune::{Request, tune};
//! let site = collcast::Site::load("h200x4")?;
//! let outcome = tune(&site, &Request { sizes: Some(vec![1 << 20]), ..Request::default() })?;
//! assert!(outcome.tuner_csv.contains("allreduce,"));
//! # Ok::<(), collcast::Error>(())
//! ```

mod advice;
pub mod install;
mod live;
mod measured;
mod options;
mod outcome;
mod posterior;
mod request;
mod search;
mod tuned;
mod variables;
mod write;

use collcast_hwbackend::read::{FileReport, cut_runs, read_paths};
use collcast_reports::model::Input;
use collcast_sim::nccl::FUNCTIONS;
use collcast_sim::predict::{Prediction, Settings};
use collcast_sim::schedule::Call;
use collcast_sim::units::Bytes;

pub use advice::{Loss, Range, Regret};
pub use live::Live;
pub use outcome::{Ended, Machine, Outcome};
pub use request::Request;
pub use search::{Budget, Forced, Stopwatch};
pub use tuned::{Advice, Basis, Belief, Candidate, Pair, Times, Tuned};
pub use variables::{Effect, Lists, Variables};
pub use write::write;

use crate::confidence::{Grounds, On, Trust};
use crate::error::Error;
use crate::query::UNMEASURED_SWITCHES;
use crate::site::{Site, assumptions};
use crate::validate::judged::can_be_asked;
use measured::Measured;
use options::{Asked, Clock};
use search::Search;

/// Times what NCCL could do, and says where another choice is worth it.
///
/// # Errors
/// A collective without a choice, no sizes, measurements that cannot be read or are of other calls, a call that has no
/// forecast, [`Error::Cancelled`].
pub fn tune(site: &Site, request: &Request) -> Result<Outcome, Error> {
    tune_with(site, request, None)
}

/// The same, with measurements taken where they are expected to gain most. An error or a stop ends them; what was measured
/// until there counts, and is in the outcome.
///
/// # Errors
/// See [`tune`]; what keeps the first measurement from being taken.
pub fn tune_measuring(
    site: &Site,
    request: &Request,
    stopwatch: &mut dyn Stopwatch,
    budget: Budget,
) -> Result<Outcome, Error> {
    tune_with(site, request, Some((stopwatch, budget)))
}

fn tune_with(site: &Site, request: &Request, measure: Option<(&mut dyn Stopwatch, Budget)>) -> Result<Outcome, Error> {
    if let Some(collective) = request.collectives.iter().find(|c| !FUNCTIONS.iter().any(|(_, known)| known == *c)) {
        return Err(Error::usage(
            format!("NCCL has nothing to choose for {collective}: it is sends and receives"),
            format!("tunable are {}", FUNCTIONS.map(|(_, c)| c.name()).join(", ")),
        ));
    }
    let topology = &site.topology;
    let ranks = request.ranks.unwrap_or(topology.ranks());
    site.check_graphs(ranks)?;
    let read = Read::of(site, request, ranks)?;
    // What is measured decides whose rules hold, unless the user does.
    let installed = measure.as_ref().and_then(|(stopwatch, _)| stopwatch.nccl());
    let measured = installed.or(read.measured.nccl).filter(|_| site.spec.nccl.is_none());
    let settings = Settings {
        launch: read.measured.launch.unwrap_or(site.settings().launch),
        version: measured.map(|version| version.covered().0).or(site.settings().version),
        ..*site.settings()
    };
    let asked = asked(request, ranks, &read.measured.sizes())?;
    let mut clock = Clock { predictor: site.predictor(), settings, measured: read.measured };
    let mut calls = clock.time(asked, &request.watch)?;
    let mut searched = Searched::default();
    if let Some((stopwatch, budget)) = measure {
        let mut search = Search::new(&mut calls, &mut clock.measured, &settings, installed);
        search.run(stopwatch, budget, &request.watch);
        let ended = match search.failure.take() {
            Some(error) if search.times() == 0 => return Err(error),
            failure => failure.map(|error| Ended { why: error.to_string(), code: error.code() }),
        };
        let unsettled = search.settle();
        searched = Searched { csv: search.csv(), times: search.times(), ended, unsettled };
    } else {
        advice::advise(&mut calls);
    }

    let machine = Machine::of(site, ranks, (clock.predictor.version(&settings), measured.is_some()));
    let variables = variables::find(&calls, &clock.predictor, &settings)?;
    let on = On { topology, profile: &site.profile, settings: &settings };
    let of_call = |call: &Tuned| {
        let of = |p: &Prediction| Grounds::of(on, (call.collective, ranks), p.into());
        call.candidates.iter().map(|c| of(&c.prediction)).collect::<Grounds>()
    };
    let grounds: Grounds = calls.iter().map(of_call).collect();
    let mut notes = assumptions(topology, &site.profile, &settings, &grounds.beyond);
    notes.extend(site.why.clone());
    notes.extend(site.told.notes.iter().cloned());
    notes.extend(measured.map(|version| format!("NCCL {version} was measured: its rules hold")));
    notes.extend(clock.measured.note());
    if grounds.beyond.switches() {
        notes.push(UNMEASURED_SWITCHES.to_owned());
    }
    let unsettled = (searched.unsettled > 0).then(|| {
        let count = searched.unsettled;
        format!("{count} changes are left out: the search ended before they were measured five times; a longer --budget settles them")
    });
    let Trust { status, confidence, basis } = grounds.trust();
    let ended = searched.ended.as_ref().map(|ended| format!("the search ended early: {}", ended.why));
    Ok(Outcome {
        ranges: advice::ranges(&calls),
        regrets: advice::regrets(&calls),
        tuner_csv: write::tuner_csv(&calls, &machine),
        nccl_env: write::nccl_env(&variables, &machine),
        inputs: site.sources.iter().cloned().chain(read.inputs).collect(),
        notes,
        warnings: read
            .defects
            .into_iter()
            .chain(site.told.warnings.iter().cloned())
            .chain(doubts(&calls))
            .chain(ended)
            .chain(unsettled)
            .collect(),
        refused: refused(&calls),
        ended: searched.ended,
        times: searched.times,
        measured_csv: searched.csv,
        machine,
        calls,
        variables,
        status,
        confidence,
        basis,
    })
}

/// What a search gave.
#[derive(Default)]
struct Searched {
    csv: Option<String>,
    times: usize,
    ended: Option<Ended>,
    /// Changes that were not repeated often enough to count.
    unsettled: usize,
}

/// What was measured, and in which files.
#[derive(Default)]
struct Read {
    measured: Measured,
    inputs: Vec<Input>,
    defects: Vec<String>,
}

impl Read {
    fn of(site: &Site, request: &Request, ranks: u32) -> Result<Self, Error> {
        if request.measurements.is_empty() {
            return Ok(Self::default());
        }
        let read = read_paths(&request.measurements, &request.read)?;
        can_be_asked(&read.files)?;
        let input = |file: &FileReport| Input {
            name: "measurements".to_owned(),
            path: Some(file.path.display().to_string()),
            hash: file.hash.clone(),
        };
        Ok(Self {
            inputs: read.files.iter().filter(|file| file.rows > 0).map(input).collect(),
            defects: read.files.iter().filter_map(FileReport::defect).chain(cut_runs(&read.files)).collect(),
            measured: Measured::of(&read.measurements, ranks, site.settings().launch, request.this_launch)?,
        })
    }
}

/// Most calls with channels: a slip in the sizes must not run for ever.
const MAX_POINTS: usize = 100_000;

/// The calls asked about, and those of sizes below and above all of these.
fn asked(request: &Request, ranks: u32, measured: &[u64]) -> Result<Vec<Asked>, Error> {
    let all: Vec<u64> = (3..=33).map(|power| 1 << power).collect();
    let free = if measured.is_empty() { &all } else { measured };
    let mut asked = calls(request, ranks, request.sizes.as_deref().unwrap_or(free), false)?;
    if asked.is_empty() {
        return Err(Error::usage("there is no size or collective to tune", "name one, or leave both out"));
    }
    let outside = |other: &Asked| {
        let sizes: Vec<Bytes> = (asked.iter())
            .filter(|a| a.call.collective == other.call.collective)
            .map(|asked| asked.call.size())
            .collect();
        let size = other.call.size();
        sizes.iter().all(|&s| size < s) || sizes.iter().all(|&s| size > s)
    };
    let others: Vec<Asked> = calls(request, ranks, &all, true)?.into_iter().filter(outside).collect();
    asked.extend(others);
    Ok(asked)
}

/// The calls of some sizes, each with the channels to try.
fn calls(request: &Request, ranks: u32, sizes: &[u64], beyond: bool) -> Result<Vec<Asked>, Error> {
    let Request { collectives, channels, .. } = request;
    let count = [collectives.len(), channels.len(), sizes.len()].into_iter().fold(1, usize::saturating_mul);
    if count > MAX_POINTS {
        return Err(Error::usage(
            format!("the sweep has {count} points; at most {MAX_POINTS} are run"),
            "take fewer sizes or algorithms",
        ));
    }
    let mut calls: Vec<Asked> = Vec::new();
    for &collective in collectives {
        for &forced in channels {
            for &size in sizes {
                let (op, root, in_place) = (request.op, request.root, request.in_place);
                let call = Call::of_size(collective, ranks, Bytes(size), request.dtype).aligned();
                let call = Call { op, root, in_place, ..call };
                match calls.iter_mut().find(|asked| asked.call == call) {
                    Some(asked) => asked.channels.push(forced),
                    None => calls.push(Asked { call, channels: vec![forced], beyond }),
                }
            }
        }
    }
    Ok(calls)
}

/// Mean error on times held back one by one beyond which measurements and machine do not belong together: another size or
/// algorithm is off by more.
const WORST: f64 = 0.25;
/// Times from which on they are judged.
const ENOUGH: usize = 4;

/// Why the settings are not to be used, with the way out.
fn refused(calls: &[Tuned]) -> Option<String> {
    let (times, error) = posterior::held_back(calls);
    (times >= ENOUGH && error > WORST).then(|| {
        format!(
            "{times} measured times, each held back, are {:.0}% off what the others and the forecasts say, and at most {:.0}% \
             is usable; check their sizes, units and machine with `collcast validate`",
            100.0 * error,
            100.0 * WORST,
        )
    })
}

/// Where there is no advice, or less reason to trust it.
fn doubts(calls: &[Tuned]) -> Vec<String> {
    let asked: Vec<&Tuned> = calls.iter().filter(|call| !call.beyond).collect();
    let count = |what: &dyn Fn(&Tuned) -> bool| asked.iter().filter(|call| what(call)).count();
    let mut doubts = Vec::new();
    let not_modelled = count(&|call| call.not_modelled().is_some());
    if not_modelled > 0 {
        doubts.push(format!(
            "not_modelled: at {not_modelled} of {} sizes NCCL picks what has no schedule here; nothing is advised there",
            asked.len()
        ));
    }
    let contradicted = count(&Tuned::is_contradicted);
    if contradicted > count(&|call| call.default_candidate().measured.is_some()) / 2 {
        doubts.push(format!(
            "at {contradicted} of {} sizes NCCL's choice took other than the forecast's interval; `collcast validate` says whether machine or model is at fault",
            asked.len()
        ));
    }
    doubts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the library's answer has the times of every candidate as data, and the sizes around those asked about.
    #[test]
    fn an_outcome_is_data() {
        let site = Site::load("h200x4").unwrap();
        let outcome = tune(&site, &Request { sizes: Some(vec![4096, 1 << 20]), ..Request::default() }).unwrap();
        assert_eq!(outcome.asked().map(|call| call.size_bytes).collect::<Vec<_>>(), [4096, 1 << 20]);
        let json = serde_json::to_value(&outcome).unwrap();
        for call in json["calls"].as_array().unwrap() {
            let size = call["size_bytes"].as_u64().unwrap();
            assert_eq!(call["beyond"], !(4096..=1 << 20).contains(&size), "{call}");
            let candidates = call["candidates"].as_array().unwrap();
            assert!(
                candidates.len() > 1 && candidates.iter().all(|c| c["predicted_us"].as_f64() > Some(0.0)),
                "{call}"
            );
        }
    }

    /// Goal: a watch ends it, and nothing is tuned without a size.
    #[test]
    fn it_stops_and_refuses() {
        let site = Site::load("h200x4").unwrap();
        let request = Request::default();
        request.watch.stop();
        assert!(matches!(tune(&site, &request), Err(Error::Cancelled)));
        let none = tune(&site, &Request { sizes: Some(Vec::new()), ..Request::default() });
        assert!(matches!(none, Err(Error::Usage { .. })), "{none:?}");
    }
}

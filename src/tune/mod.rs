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
mod communicator;
pub mod install;
mod jobs;
mod live;
mod measured;
mod measuring;
mod options;
mod outcome;
mod posterior;
mod process;
mod request;
mod search;
mod told;
mod trials;
mod tuned;
mod variables;
mod write;

use std::cell::RefCell;
use std::collections::HashMap;

use collcast_hwbackend::read::{FileReport, ReadReport, cut_runs, read_paths};
use collcast_reports::model::Input;
use collcast_sim::collective::Launch;
use collcast_sim::measurement::Measurement;
use collcast_sim::nccl::{FUNCTIONS, Version};
use collcast_sim::predict::{PredictError, Prediction, Predictor, Settings};
use collcast_sim::profile::Profile;
use collcast_sim::topology::Topology;
use collcast_sim::units::Bytes;

pub use advice::{Loss, Range, Regret};
pub use communicator::{Communicator, Communicators, Spot};
pub use live::Live;
pub use outcome::{Ended, Machine, Outcome, StepGain};
pub(crate) use posterior::{deviation_of, together};
pub use process::{Finding, Least, Process, ProcessSetting, ProcessVariable, Tried};
pub use request::{Objective, Request};
pub use search::{Budget, Forced, Stopwatch};
pub(crate) use tuned::SURE;
pub use tuned::{Advice, Basis, Belief, Candidate, Own, Pair, Times, Tuned};
pub use variables::{Effect, Lists, Variables};
pub use write::write;

use crate::confidence::{Grounds, On, Trust};
use crate::error::Error;
use crate::files::named_hash;
use crate::query::UNMEASURED_SWITCHES;
use crate::site::{Site, assumptions};
use crate::validate::judged::{Asked, can_be_asked, not_predicted};
use crate::validate::other_gpus;
use jobs::{Job, asked, jobs};
use measured::Measured;
use measuring::Measuring;
use options::{Clock, Timed};
use search::communicator_of;
use told::Otherwise;
use trials::{Trials, Work};

/// What jobs with CUDA graphs may gain besides, which no table holds (`tests/data/h200x2_graphs`).
const EVENTS: &str = "NCCL_GRAPH_MIXING_SUPPORT=0 saves another 1.25 us for each call in a CUDA graph (measured on 2 H200). Set it only where no \
    other call of the communicator runs beside one of a graph";

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

fn tune_with(
    site: &Site,
    request: &Request,
    mut measure: Option<(&mut dyn Stopwatch, Budget)>,
) -> Result<Outcome, Error> {
    has_choices(request)?;
    let (mut jobs, mut notes) = jobs(site, request)?;
    let ranks = jobs.iter().map(|job| job.group.communicator.ranks).max().unwrap_or_default();
    site.check_graphs(ranks)?;
    let views = jobs.iter().map(|job| job.group.view(&site.topology)).collect::<Result<Vec<_>, PredictError>>()?;
    let files = measurements(request)?;
    let as_measured = match &files {
        // A step, and processes that are started here, are told what the site is.
        Some(files) if request.step.is_none() && measure.is_none() => {
            let of_ranks = |row: &&Measurement| jobs.iter().any(|job| job.group.communicator.ranks == row.ranks);
            Otherwise::than(site, files).adopted(site, files.measurements.iter().filter(of_ranks))?
        }
        _ => None,
    };
    let (site, told_so) = match &as_measured {
        Some((site, note)) => (site, Some(note.clone())),
        None => (site, None),
    };
    let read = match &files {
        Some(files) => Read::of(site, request, files, &jobs, &views)?,
        None => Read { measured: jobs.iter().map(|_| Measured::default()).collect(), ..Read::default() },
    };
    // What is measured decides whose rules hold, unless the user does.
    let installed = measure.as_ref().and_then(|(stopwatch, _)| stopwatch.nccl());
    let told = |of: &dyn Fn(&Measured) -> Option<Version>| read.measured.iter().find_map(of);
    let measured = installed.or_else(|| told(&|m| m.nccl)).filter(|_| site.spec.nccl.is_none());
    let settings = settings_of(site, &read.measured, measured);
    let in_place = read.measured.iter().find_map(|measured| measured.in_place);
    let request = &Request { in_place: in_place.unwrap_or(request.in_place), ..request.clone() };
    notes.extend(read.measured.iter().find_map(Measured::note));
    notes.extend(told_so);
    let versions = read.measured.iter().find_map(Measured::mixed);

    for (job, measured) in jobs.iter_mut().zip(&read.measured).filter(|_| request.step.is_none()) {
        job.asked = asked(request, job.group.communicator.ranks, &measured.sizes())?;
    }
    let whole = site.predictor();
    let own: Vec<Option<Predictor<'_>>> = views.iter().map(|view| view.as_ref().map(|view| whole.on(view))).collect();
    let (mut works, mut too_large) = (Vec::with_capacity(jobs.len()), Vec::new());
    // They would hold for all communicators.
    let lists = jobs.len() == 1;
    for ((job, own), measured) in jobs.into_iter().zip(&own).zip(read.measured) {
        let (predictor, spot) = (own.as_ref().unwrap_or(&whole), job.group.spot(&site.topology));
        let measures = measure.is_some();
        let clock = Clock { whole: &whole, predictor, group: job.group, settings, measured, measures, lists };
        let Timed { calls, warning } = clock.time(job.asked, &request.watch)?;
        too_large.extend(warning);
        works.push(Work { clock, calls, spot, here: false });
    }
    let searched = match &mut measure {
        Some((stopwatch, budget)) => Measuring::of(&mut works, request, installed, *stopwatch, *budget)?,
        None => {
            works.iter_mut().for_each(|work| advice::advise(&mut work.calls));
            let process = Trials::new(&works, request.objective, false).forecast(&request.watch)?;
            Measuring { process, ..Measuring::default() }
        }
    };
    let mut variables = match works.as_slice() {
        [alone] => variables::find(&alone.calls, alone.clock.predictor, &settings)?,
        _ => Variables::none("they would hold for all communicators; use the tuner table"),
    };
    let grounds = rests_on(&works, &site.profile, &settings);
    let mut calls: Vec<Tuned> = works.into_iter().flat_map(|work| work.calls).collect();

    let mut machine = Machine::of(site, ranks, whole.version(&settings));
    let gpu = measure.as_ref().and_then(|(stopwatch, _)| stopwatch.gpu());
    let another = gpu.and_then(|gpu| machine.measured_on(gpu));
    if let Some((stopwatch, _)) = &measure {
        machine.measured_at(&stopwatch.host());
    }
    let mut said = assumptions(&site.communicator(), &site.profile, &settings, grounds.basis);
    said.extend(site.why.clone());
    said.extend(site.told.notes.iter().cloned());
    said.extend((settings.launch == Launch::Graph && !settings.nccl.no_graph_events).then(|| EVENTS.to_owned()));
    said.extend(measured.map(|version| format!("NCCL {version} was measured: its rules hold")));
    said.extend(notes);
    let open = left_open(&searched);
    said.extend(searched.notes);
    if grounds.beyond.switches() {
        said.push(UNMEASURED_SWITCHES.to_owned());
    }
    let other_gpus = !read.foreign.is_empty();
    let Trust { status, confidence, basis } = grounds.trust();
    // A simulated call takes the lines of buffers that are not registered.
    let gain = |step| StepGain::of(step, &write::tuner_csv(&calls, &machine, false));
    let mut step = request.step.as_ref().map(gain).transpose()?;
    let (mut in_vain, mut process) = (false, searched.process);
    if let Some(of) = step.as_mut().filter(|of| of.saved() <= 0.0 && calls.iter().any(|call| call.advice.is_some())) {
        in_vain = true;
        of.tuned_ms = of.default_ms;
        variables = Variables::none("the step takes no less time with them");
        // These were judged beside the changes.
        process = Process::default();
        calls.iter_mut().for_each(|call| call.advice = None);
    }
    let tuner_csv = write::tuner_csv(&calls, &machine, settings.registered);
    Ok(Outcome {
        ranges: advice::ranges(&calls),
        regrets: advice::regrets(&calls),
        step,
        in_vain,
        tuner_csv,
        nccl_env: write::nccl_env(&variables, &process, &machine),
        inputs: site.sources.iter().cloned().chain(read.inputs).collect(),
        notes: said,
        warnings: read
            .defects
            .into_iter()
            .chain(site.told.warnings.iter().cloned())
            .chain(versions)
            .chain(too_large)
            .chain(doubts(&calls))
            .chain(another)
            .chain(read.foreign)
            .chain(open)
            .collect(),
        refused: refused(&calls),
        contradicted: is_contradicted(&calls),
        other_gpus,
        ended: searched.ended,
        times: searched.times,
        measured_csv: searched.csv,
        machine,
        calls,
        variables,
        process,
        status,
        confidence,
        basis,
    })
}

/// Refuses collectives that NCCL has no choice for.
fn has_choices(request: &Request) -> Result<(), Error> {
    match request.collectives.iter().find(|c| !FUNCTIONS.iter().any(|(_, known)| known == *c)) {
        None => Ok(()),
        Some(collective) => Err(Error::usage(
            format!("NCCL has nothing to choose for {collective}: it is sends and receives"),
            format!("tunable are {}", FUNCTIONS.map(|(_, c)| c.name()).join(", ")),
        )),
    }
}

/// What calls are forecast with: as they were measured, where they were.
fn settings_of(site: &Site, measured: &[Measured], version: Option<Version>) -> Settings {
    let launch = measured.iter().find_map(|measured| measured.launch);
    let registered = measured.iter().find_map(|measured| measured.registered);
    Settings {
        launch: launch.unwrap_or(site.settings().launch),
        registered: registered.unwrap_or(site.settings().registered),
        version: version.map(|version| version.covered().0).or(site.settings().version),
        ..*site.settings()
    }
}

/// What the forecasts of all candidates rest on.
fn rests_on(works: &[Work<'_>], profile: &Profile, settings: &Settings) -> Grounds {
    let of_work = |work: &Work<'_>| -> Grounds {
        let on = On { topology: work.clock.predictor.topology(), profile, settings };
        let of_call = |call: &Tuned| -> Grounds {
            let (collective, ranks) = (call.collective, call.communicator.ranks);
            let asked = (collective, ranks, Bytes(call.size_bytes));
            let of = |p: &Prediction| Grounds::of(on, (collective, ranks), p.into()).beside_published(on, asked, p);
            call.candidates.iter().map(|candidate| of(&candidate.prediction)).collect()
        };
        work.calls.iter().map(of_call).collect()
    };
    works.iter().map(of_work).collect()
}

/// What a search left undecided.
fn left_open(searched: &Measuring) -> Vec<String> {
    let ended = searched.ended.as_ref().map(|ended| format!("the search ended early: {}", ended.why));
    let unsettled = (searched.unsettled > 0).then(|| {
        let count = searched.unsettled;
        format!("{count} changes are left out: the search ended before they were measured five times; a longer --budget settles them")
    });
    let open = searched.process.tried.iter().filter(|tried| tried.finding == Finding::Unsettled).count();
    let open = (open > 0).then(|| {
        format!("{open} values for the whole process are left out: they were not measured five times; a longer --budget settles them")
    });
    [ended, unsettled, open].into_iter().flatten().collect()
}

/// The measurements that are named.
fn measurements(request: &Request) -> Result<Option<ReadReport>, Error> {
    if request.measurements.is_empty() {
        return Ok(None);
    }
    let read = read_paths(&request.measurements, &request.read)?;
    can_be_asked(&read.files)?;
    Ok(Some(read))
}

/// What was measured, and in which files.
#[derive(Default)]
struct Read {
    /// By communicator.
    measured: Vec<Measured>,
    inputs: Vec<Input>,
    defects: Vec<String>,
    /// Files of other GPUs than the machine has.
    foreign: Vec<String>,
}

impl Read {
    /// `views` are the machines of the jobs, where they are not the site's.
    fn of(
        site: &Site,
        request: &Request,
        read: &ReadReport,
        jobs: &[Job],
        views: &[Option<Topology>],
    ) -> Result<Self, Error> {
        let otherwise = Otherwise::than(site, read);
        let input = |file: &FileReport| Input {
            name: "measurements".to_owned(),
            path: Some(file.path.display().to_string()),
            hash: named_hash(&file.hash),
        };
        let of = |(job, view): (&Job, &Option<Topology>)| {
            // Runs are of the first ranks, but for those of a search that names the communicator.
            let (name, first) = (job.group.communicator.name.as_deref(), job.group.is_first());
            let is_its = |run: &str| communicator_of(run).map_or(first, |of| name.is_none_or(|name| name == of));
            let rows: Vec<Measurement> = read.measurements.iter().filter(|row| is_its(&row.run)).cloned().collect();
            let ranks = Some(job.group.communicator.ranks).filter(|_| first || !rows.is_empty())?;
            let topology = view.as_ref().unwrap_or(&site.topology);
            let known = RefCell::new(HashMap::new());
            let elsewhere = |row| -> Option<String> {
                let mut known = known.borrow_mut();
                let place = known
                    .entry((Asked::of(row), row.hosts))
                    .or_insert_with(|| not_predicted(row, topology).map(|why| format!("have no forecast here: {why}")));
                otherwise.why(row).or_else(|| place.clone())
            };
            Some(Measured::of(&rows, ranks, site.settings(), request, &elsewhere))
        };
        let each: Vec<Option<Result<Measured, Error>>> = jobs.iter().zip(views).map(of).collect();
        let some = each.iter().flatten().any(Result::is_ok);
        let measured = |of: Option<Result<Measured, Error>>| match of {
            Some(Err(error)) if !some => Err(error),
            Some(Ok(measured)) => Ok(measured),
            _ => Ok(Measured::default()),
        };
        Ok(Self {
            inputs: read.files.iter().filter(|file| file.rows > 0).map(input).collect(),
            defects: read.files.iter().filter_map(FileReport::defect).chain(cut_runs(&read.files)).collect(),
            foreign: read.files.iter().filter_map(|file| other_gpus(file, &site.topology)).collect(),
            measured: each.into_iter().map(measured).collect::<Result<_, _>>()?,
        })
    }
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

/// Whether most measured times of NCCL's choice are outside of what is forecast for it.
fn is_contradicted(calls: &[Tuned]) -> bool {
    let count = |what: &dyn Fn(&Tuned) -> bool| calls.iter().filter(|call| !call.beyond && what(call)).count();
    count(&Tuned::is_contradicted) > count(&|call| call.default_candidate().measured.is_some()) / 2
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
    if is_contradicted(calls) {
        doubts.push(format!(
            "at {contradicted} of {} sizes NCCL's choice took other than the forecast's interval; `collcast validate` says whether machine or model is at fault",
            asked.len()
        ));
    }
    let wrong = posterior::wrong(calls);
    if let Some((call, candidate)) = wrong.first() {
        let ((algorithm, protocol), size) = (candidate.pair, Bytes(call.size_bytes).about());
        doubts.push(format!(
            "{} measured times do not count: they are far from those of the same choice at the sizes around them, such as {} \
             {algorithm}/{protocol} at {size}; measure them again",
            wrong.len(),
            call.collective,
        ));
    }
    doubts
}

#[cfg(test)]
mod tests {
    use super::*;
    use collcast_reports::model::Status;

    /// Goal: the library's answer has the times of every candidate as data, and the sizes around those asked about.
    #[test]
    fn an_outcome_is_data() {
        let site = Site::load("h200x4").unwrap();
        let outcome = tune(&site, &Request { sizes: Some(vec![4096, 1 << 20]), ..Request::default() }).unwrap();
        assert_eq!(outcome.asked().map(|call| call.size_bytes).collect::<Vec<_>>(), [4096, 1 << 20]);
        let json = serde_json::to_value(&outcome).unwrap();
        for call in json["calls"].as_array().unwrap() {
            let size = call["size_bytes"].as_u64().unwrap();
            assert_eq!(call["beyond"], ![4096, 1 << 20].contains(&size), "{call}");
            let candidates = call["candidates"].as_array().unwrap();
            assert!(
                candidates.len() > 1 && candidates.iter().all(|c| c["predicted_us"].as_f64() > Some(0.0)),
                "{call}"
            );
        }
    }

    /// Goal: the verdict is no surer than the measured times it rests on, says when refused settings were written, and names a
    /// measurement as the next step where forecasts alone promise less than they are unsure by.
    #[test]
    fn a_verdict_says_what_keeps_it_from_being_sure() -> Result<(), Error> {
        let lacks = |what: &str| Error::Internal(format!("no {what}"));
        let site = Site::load("h200x4")?;
        let outcome = tune(&site, &Request { sizes: Some(vec![1 << 20]), ..Request::default() })?;
        let verdict = |outcome: &Outcome, written: bool| -> Result<_, Error> {
            let written = written.then_some(std::path::Path::new("tuned"));
            let show = crate::views::tune::Show { written, ..Default::default() };
            outcome.report(show).verdict.ok_or_else(|| lacks("verdict"))
        };
        for (other_gpus, contradicted) in [(true, false), (false, true)] {
            let said = verdict(&Outcome { other_gpus, contradicted, ..outcome.clone() }, false)?;
            assert!(said.status == Status::Warning && said.confidence.starts_with("low: "), "{said:?}");
        }
        let refused = Outcome { refused: Some("why".to_owned()), ..outcome.clone() };
        assert_eq!(verdict(&refused, false)?.status, Status::Failed);
        let written = verdict(&refused, true)?;
        assert!(written.status == Status::Warning && written.sentence.contains("are written"), "{written:?}");
        let mut changed = outcome;
        let call = changed.calls.iter_mut().find(|call| !call.beyond).ok_or_else(|| lacks("call"))?;
        let candidate = (0..call.candidates.len()).find(|at| *at != call.default).ok_or_else(|| lacks("candidate"))?;
        call.advice = Some(Advice { candidate, gain: 0.01, basis: Basis::Cited });
        for (faster, measure) in [(1.0, true), (100.0, false)] {
            let call = changed.calls.iter_mut().find(|call| !call.beyond).ok_or_else(|| lacks("call"))?;
            call.candidates[candidate].predicted_us = call.default_candidate().predicted_us / faster;
            let next = verdict(&changed, true)?.next.unwrap_or_default();
            assert_eq!(next.contains("--measure"), measure, "{next}");
        }
        Ok(())
    }

    /// Goal: rows of other hosts and of another root are none of the call, and say so.
    #[test]
    fn rows_of_other_places_are_refused() -> Result<(), Error> {
        let file = tempfile::Builder::new().suffix(".csv").tempfile().map_err(|e| Error::Internal(e.to_string()))?;
        let rows = "collective,ranks,hosts,root,size_bytes,time_us\nbroadcast,4,4,0,1024,9\nbroadcast,4,1,2,1024,9\n";
        crate::files::write(file.path(), rows.as_bytes())?;
        let request = Request {
            collectives: vec![collcast_sim::collective::Collective::Broadcast],
            measurements: vec![file.path().to_owned()],
            ..Request::default()
        };
        let refused = tune(&Site::load("h200x4")?, &request).map(|_| String::new()).unwrap_or_else(|e| e.render());
        assert!(refused.contains("have root 2 (--root)") && refused.contains("they ran on 4 hosts"), "{refused}");
        Ok(())
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
        for ranks in [0, 1] {
            let few = tune(&site, &Request { ranks: Some(ranks), ..Request::default() });
            assert!(matches!(few, Err(Error::Usage { .. })), "{few:?}");
        }
    }
}

//! From measurements to a profile, with intervals and errors on rows held back.
//!
//! `rows` says which machine each file is of and which rows can be fitted to; `figures` tells errors by group; `standing`
//! says whether a fit is fit for use;
//! `provenance` says what a profile was fitted to, and writes it. The fit itself is [`collcast_sim::calibrate`].

mod figures;
mod provenance;
mod request;
mod rows;
mod standing;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use collcast_hwbackend::read::{FileReport, ReadReport, cut_runs, read_paths};
use collcast_reports::model::Input;
use collcast_sim::calibrate::{CalibrateError, Crossed, Fit, Judged, Split, Study, spreads};
use collcast_sim::profile::{Constant, Profile};
use collcast_sim::topology::Topology;
use serde::Serialize;

pub(crate) use figures::ALL;
pub use figures::{Errors, Estimated, Group, HeldOut, Part, Worst};

use crate::error::Error;
use crate::files::named_hash;
use crate::profiles::{Folders, layered};
use crate::validate::judged::can_be_asked;
use crate::validate::judged::left_aside;
use crate::validate::{other_gpus, unread};
use provenance::About;
pub use request::Request;
use rows::{Machines, Usable, error};
pub use standing::Standing;
pub(crate) use standing::WORST;

/// A fitted profile.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct FittedProfile {
    /// The profile, with the values below it.
    #[serde(skip)]
    pub profile: Profile,
    /// The same as a file, with its provenance: command, files with hashes, domain.
    pub toml: String,
}

impl FittedProfile {
    fn new(profile: Profile, fit: &Fit) -> Self {
        Self { toml: provenance::profile_text(&profile, fit), profile }
    }
}

/// A profile and how good it is.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The profile.
    pub fitted: FittedProfile,
    /// Profiles fitted without each source, where asked for.
    pub without: BTreeMap<String, FittedProfile>,
    /// Constants that were fitted, or could have been.
    pub constants: Vec<Estimated>,
    /// Rows fitted to.
    pub rows: usize,
    /// Errors on rows fitted to.
    pub errors: Errors,
    /// Errors on rows held back by who measured, or else by run, where either was done.
    pub held_out: Option<HeldOut>,
    /// Whether it is fit for use.
    pub standing: Standing,
    /// Errors by protocol, launch mode and range of sizes.
    pub groups: Vec<Group>,
    /// Errors of fits without each value of a property, on these.
    pub splits: Vec<Part>,
    /// The rows with the largest errors.
    pub worst: Vec<Worst>,
    /// Files that it rests on.
    pub inputs: Vec<Input>,
    /// What was assumed.
    pub notes: Vec<String>,
    /// What to know before the profile is used.
    pub warnings: Vec<String>,
}

/// Fits a profile to measurements.
///
/// # Errors
/// Measurements, machine or profile that cannot be read, no row that can be used, no constant that the rows tell of,
/// [`Error::Cancelled`].
pub fn calibrate(request: &Request) -> Result<Outcome, Error> {
    let started = Instant::now();
    let seconds = || started.elapsed().as_secs_f64();
    check_names(request)?;
    let read = read_paths(&request.measurements, &request.read)?;
    can_be_asked(&read.files)?;
    let machines = Machines::of(&read, request.topology.as_deref())?;
    let folders = Folders::of(request.topology.as_deref(), &request.profile_folders);
    let (prior, mut inputs) = layered(&request.profiles, &folders)?;
    let usable = Usable::of(&read, &machines, &prior, request)?;
    inputs.extend(read.files.iter().filter(|f| f.rows > 0).map(|f| Input {
        name: "measurements".to_owned(),
        path: Some(f.path.display().to_string()),
        hash: named_hash(&f.hash),
    }));

    let study = Study::new(&machines.topologies, &prior, usable.samples()).map_err(error)?;
    let runs: BTreeSet<&String> = study.samples().iter().map(|s| &s.run).collect();
    request.watch.stage(&format!(
        "{} rows of {} runs, {} kernels, {} parameters enter",
        study.samples().len(),
        runs.len(),
        study.cases(),
        study.constants().len()
    ))?;
    let all: Vec<usize> = (0..study.samples().len()).collect();
    let apart = request.splits.iter().filter(|&&split| split != Split::Source || !request.without_sources);
    let parts = request.watch.parts(1 + usize::from(request.without_sources) + apart.clone().count());
    let mut misleading = BTreeSet::new();
    let may = |name: &str| may_move(request, name);
    let mut apart_from = None;
    if request.without_sources {
        let (judged, fits) = study.apart(Split::Source, &may).map_err(error)?;
        misleading = mislead(&study, &prior, &judged, &fits)?;
        apart_from = Some((judged, fits));
        parts.done()?;
        request.watch.stage(&format!("fitted without each source, {:.1} s", seconds()))?;
    }
    let may = |name: &str| may(name) && !misleading.iter().any(|constant: &Constant| constant.name() == name);
    if !misleading.is_empty() {
        apart_from = Some(study.apart(Split::Source, &may).map_err(|why| left_none(why, &misleading))?);
    }
    let fit = study.fit(&all, &may).map_err(error)?;
    parts.done()?;
    request.watch.stage(&format!("fitted in {} steps, {:.1} s", fit.steps, seconds()))?;
    let about = About { request, usable: &usable, machines: &machines };
    let mut crossed = BTreeMap::new();
    let mut without = BTreeMap::new();
    if let Some((judged, fits)) = apart_from {
        for (source, fit) in fits {
            let rows: Vec<usize> = all.iter().copied().filter(|&r| study.samples()[r].source != source).collect();
            let profile = about.describe(&fit, &format!("{} without {source}", request.name), &rows);
            without.insert(source, FittedProfile::new(profile, &fit));
        }
        crossed.insert(Split::Source, judged);
    }
    for &split in apart {
        let folds = (split == Split::Run).then_some(request.folds);
        crossed.insert(split, study.cross(split, folds, &may).map_err(error)?);
        parts.done()?;
        request.watch.stage(&format!("held back by {}, {:.1} s", split.name(), seconds()))?;
    }
    // Who measured tells more apart than runs of one machine do.
    let held = |split: Split| Some((split, crossed.get(&split).filter(|c| !c.held.is_empty())?));
    let unseen = held(Split::Source)
        .or_else(|| held(Split::Run))
        .or_else(|| request.splits.iter().find_map(|&split| held(split)));
    let mut profile = about.describe(&fit, &request.name, &all);
    if let Some((_, crossed)) = unseen {
        profile.spreads = spreads(study.samples(), &crossed.held, &all);
    }
    let blind = Errors::of(&study.judge_with(&prior).map_err(error)?, &all);
    let errors = Errors::of(&fit.judged, &all);
    let held_out = unseen.map(|(by, crossed)| HeldOut { by: by.name(), errors: Errors::of(&crossed.held, &all) });
    Ok(Outcome {
        standing: Standing::of(
            held_out.map(|held| held.by),
            &held_out.map_or(errors, |held| held.errors),
            &blind,
            !request.splits.is_empty(),
        ),
        constants: fit.estimates.iter().map(Estimated::of).collect(),
        rows: all.len(),
        errors,
        held_out,
        groups: figures::groups(&study, &fit, unseen.map(|u| u.1), &profile),
        splits: figures::splits(&study, &fit, &crossed),
        worst: figures::worst(&usable, unseen.map_or(&fit.judged, |u| &u.1.held)),
        inputs,
        notes: notes(request, &machines, &usable, &misleading),
        warnings: warnings(&read, &machines, &usable, &fit),
        fitted: FittedProfile::new(profile, &fit),
        without,
    })
}

const MISLEADS: &str = "with it, fits without a source err more on that source's rows, on average over sources";

/// Constants that make rows of sources worse which a fit has not seen: with the prior's value in place of the fitted one,
/// the fits without each source err less on its rows, on average over sources.
fn mislead(
    study: &Study<'_>,
    prior: &Profile,
    seen_apart: &Crossed,
    fits: &[(String, Fit)],
) -> Result<BTreeSet<Constant>, Error> {
    let mean_abs = |judged: &[Judged], source: &String| {
        let rows = study.samples().iter().enumerate().filter(|(_, sample)| sample.source == *source);
        Errors::of(judged, &rows.map(|(row, _)| row).collect::<Vec<_>>()).mean_abs
    };
    let estimates = fits.iter().flat_map(|(_, fit)| &fit.estimates).filter(|estimate| estimate.identified);
    let mut found = BTreeSet::new();
    for constant in estimates.map(|estimate| estimate.constant).collect::<BTreeSet<_>>() {
        let mut gained = 0.0;
        for (source, fit) in fits {
            let mut profile = fit.profile.clone();
            profile.parameters.insert(constant, prior[constant].clone());
            let set_back = study.judge_with(&profile).map_err(error)?;
            gained += mean_abs(&set_back, source) - mean_abs(&seen_apart.held, source);
        }
        if gained < 0.0 {
            found.insert(constant);
        }
    }
    Ok(found)
}

/// Why there is no fit once constants that mislead are left where they were.
fn left_none(why: CalibrateError, misleading: &BTreeSet<Constant>) -> Error {
    match why {
        CalibrateError::NothingToFit => Error::usage(
            format!("{}: {MISLEADS}; no other constant may move", names(misleading)),
            "keep the profile that it started from, or leave out --held-out",
        ),
        other => error(other),
    }
}

fn names(constants: &BTreeSet<Constant>) -> String {
    constants.iter().map(|constant| format!("`{}`", constant.name())).collect::<Vec<_>>().join(", ")
}

/// Refuses names that no constant begins with.
fn check_names(request: &Request) -> Result<(), Error> {
    let fit = request.fit.iter().map(|name| ("--fit", name));
    for (flag, name) in fit.chain(request.keep.iter().map(|name| ("--keep", name))) {
        if !Constant::ALL.iter().any(|c| c.name().starts_with(name.as_str())) {
            let hint = Constant::near(name).map_or_else(
                || "`collcast profile show prior --all` lists them".to_owned(),
                |near| format!("did you mean `{near}`?"),
            );
            return Err(Error::usage(format!("{flag}: there is no parameter `{name}`"), hint));
        }
    }
    Ok(())
}

fn may_move(request: &Request, name: &str) -> bool {
    // A whole name is that one alone: `kernel.ll` is not `kernel.ll128`.
    let is_meant = |asked: &String| match Constant::named(asked) {
        Some(constant) => constant.name() == name,
        None => name.starts_with(asked.as_str()),
    };
    let any = |names: &[String]| names.iter().any(is_meant);
    (request.fit.is_empty() || any(&request.fit)) && !any(&request.keep)
}

fn notes(request: &Request, machines: &Machines, usable: &Usable<'_>, misleading: &BTreeSet<Constant>) -> Vec<String> {
    let of = |t: &Topology| format!("topology {}: {} GPUs", t.name, t.ranks());
    let mut notes: Vec<String> = machines.topologies.iter().map(of).collect();
    let (rows, min, small) = (usable.rows.len(), request.min_size.0, usable.small);
    notes.push(format!("starts from profile {}", request.profiles.join(" + ")));
    notes.push(format!("{rows} rows from {min} B up, {small} left out as smaller"));
    notes.extend((!misleading.is_empty()).then(|| format!("{} stays at its prior: {MISLEADS}", names(misleading))));
    notes
}

fn warnings(read: &ReadReport, machines: &Machines, usable: &Usable<'_>, fit: &Fit) -> Vec<String> {
    let mut warnings: Vec<String> =
        read.files.iter().filter_map(FileReport::defect).chain(cut_runs(&read.files)).collect();
    warnings.extend(read.files.iter().filter_map(unread));
    warnings.extend(usable.skipped.iter().map(|(why, n)| format!("{n} rows are not predicted: {why}")));
    warnings.extend(machines.topologies.first().into_iter().flat_map(|t| left_aside(&read.files, t)));
    let of = |file: &FileReport| machines.files.get(&file.path.display().to_string());
    warnings.extend(read.files.iter().filter_map(|f| other_gpus(f, &machines.topologies[of(f)?.machine])));
    warnings.extend(fit.estimates.iter().filter(|e| e.at_bound).map(|e| {
        format!("`{}` ended at a bound, {:.4}: a mechanism may be missing, or the topology wrong", e.constant, e.value)
    }));
    warnings
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::watch::Watch;

    fn request(watch: Watch) -> Request {
        Request {
            measurements: vec!["tests/data/h200x4_bench/nccl_lines_4.csv".into()],
            fit: vec!["kernel.ll128".to_owned()],
            watch,
            ..Request::default()
        }
    }

    /// Goal: the library's answer is the profile, its file and its errors as data; stages are told as they are done.
    #[test]
    fn an_outcome_is_data() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&told);
        let watch = Watch::default().on_stage(move |line| lines.lock().unwrap().push(line.to_owned()));
        let outcome = calibrate(&request(watch)).unwrap();
        let read = collcast_sim::profile::Layer::parse(&outcome.fitted.toml, "fitted.toml").unwrap();
        let (written, fitted) = (&read.parameters[&Constant::KernelLl128], &outcome.constants[0]);
        assert!((written.value - fitted.value).abs() < 1e-4 && outcome.constants.len() == 1, "{fitted:?}");
        let json = serde_json::to_value(&outcome).unwrap();
        assert_eq!(json["held_out"]["by"], "run");
        assert_eq!(json["rows"].as_u64().unwrap(), read.data[0].rows as u64);
        let told = told.lock().unwrap();
        let stages = [" enter", "fitted in ", "held back by run"];
        assert!(told.len() == stages.len() && told.iter().zip(stages).all(|(line, s)| line.contains(s)), "{told:?}");
    }

    /// Goal: a whole name means one constant, a beginning all that have it, of what is fitted and of what is kept.
    #[test]
    fn a_whole_name_is_one_constant() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        for (fit, keep, moving, still) in [
            (&["kernel.ll"][..], &[][..], "kernel.ll", "kernel.ll128"),
            (&["kernel.l"], &[], "kernel.ll128", "kernel.simple"),
            (&[], &["kernel.ll"], "kernel.ll128", "kernel.ll"),
            (&[], &["kernel."], "latency.nvlink.ll", "kernel.ll128"),
        ] {
            let request = Request { fit: names(fit), keep: names(keep), ..Request::default() };
            assert!(may_move(&request, moving) && !may_move(&request, still), "{fit:?} {keep:?}");
        }
    }

    /// Goal: a watch ends it.
    #[test]
    fn it_stops() {
        let watch = Watch::default();
        watch.stop();
        assert!(matches!(calibrate(&request(watch)), Err(Error::Cancelled)));
    }
}

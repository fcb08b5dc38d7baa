//! Measurements held against forecasts, by group and as a whole; and, where they are not as expected, why.

mod figures;
pub mod judged;
mod median;
mod past;
pub mod plots;
pub(crate) mod said;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use collcast_hwbackend::read::{self, End, FileKind, FileReport, ReadOptions, ReadReport, cut_runs, read_paths};
use collcast_reports::model::Input;
use collcast_sim::collective::{Collective, Launch};
use collcast_sim::domain::Basis;
use collcast_sim::ids::Rank;
use collcast_sim::measurement::Measurement;
use collcast_sim::predict::Settings;
use collcast_sim::profile::Profile;
use collcast_sim::topology::{Topology, family};
use collcast_topologies::catalogue;
use jiff::Timestamp;
use serde::Serialize;

use crate::compare::{Difference, differences};
use crate::confidence::{Grounds, On, Said};
use crate::diagnose::{Anomaly, Causes, examine, members};
use crate::error::Error;
use crate::files::named_hash;
use crate::health::{self, Beside, Doubt, Gate, Health, Reference, Run, State};
use crate::next::{self, Next};
use crate::profiles::Taken;
use crate::site::{self, SiteSpec, assumptions};
use crate::values::plural;
use crate::watch::Watch;
pub use figures::{Closest, File, FileOutcome, Group, JudgedRow, Median, Stats, Unjudged};
use judged::{Asked, Judged, Verdicts, can_be_asked, hosts_of_rows, judge, left_aside, one_kind};
pub use median::{MedianError, median_error};
pub(crate) use past::FIRST;
pub use past::History;
use past::{Present, not_recorded};
use said::said;

/// What is held against forecasts, and how.
#[derive(Clone, Debug)]
pub struct Request {
    /// Files and folders: nccl-tests logs (text and JSON) and CSV.
    pub measurements: Vec<PathBuf>,
    /// Where they were measured: the machine that the files name where none is given, with as many hosts and GPUs as the
    /// rows need, and its profiles. What NCCL was told is for the rows and files to say, but for the launch mode of rows
    /// that do not.
    pub site: SiteSpec,
    /// It fails where the median error of a group is larger, as a fraction: of those forced, where there are any.
    pub max_error: Option<f64>,
    /// What lets the machine through.
    pub gate: Gate,
    /// Measurements that are known to be good, to be expected in place of a forecast: the median of several files.
    pub against: Vec<PathBuf>,
    /// A folder of past runs. A run is judged by the median of the first 8 earlier ones of its hosts, where there are enough, and then
    /// recorded there.
    pub history: Option<PathBuf>,
    /// When files were measured that do not say it; the time of their last change where none is given.
    pub now: Option<Timestamp>,
    /// Whether to name the algorithm and protocol whose forecast is closest to each row.
    pub closest: bool,
    /// Whether to look for the cause of what is slow.
    pub doctor: bool,
    /// To say which sets of hosts to run next.
    pub next: Option<next::Request>,
    /// How measurements are read.
    pub read: ReadOptions,
    /// Follows it and may stop it.
    pub watch: Watch,
}

impl Request {
    /// Measurements of the machine that their files name, with a look for the cause of what is slow.
    pub fn new(measurements: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        Self {
            measurements: measurements.into_iter().map(Into::into).collect(),
            site: SiteSpec::default(),
            max_error: None,
            gate: Gate::default(),
            against: Vec::new(),
            history: None,
            now: None,
            closest: false,
            doctor: true,
            next: None,
            read: ReadOptions::default(),
            watch: Watch::default(),
        }
    }
}

/// Measurements beside their forecasts.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Profiles and measurements that were read, with hashes.
    pub inputs: Vec<Input>,
    /// The machine, its profile, what is assumed, and what was read.
    pub notes: Vec<String>,
    /// What to know before using the figures.
    pub warnings: Vec<String>,
    /// The rows that are forecast, in the order of files and lines.
    pub rows: Vec<JudgedRow>,
    /// Their errors by group: those where NCCL chose first.
    pub groups: Vec<Group>,
    /// Errors of the rows where algorithm and protocol were forced.
    pub overall: Stats,
    /// Errors of all rows, those where NCCL chose among them.
    pub overall_with_auto: Stats,
    /// The group with the largest median error: of those forced, where there are any.
    pub worst: Option<Group>,
    /// What became of each file.
    pub files: Vec<File>,
    /// What of the files nothing was held against.
    pub unjudged: Vec<Unjudged>,
    /// Whether the machine gives the bus bandwidth that it should.
    pub health: Health,
    /// The runs that it was judged by.
    #[serde(skip)]
    pub runs: Vec<Run>,
    /// What the bus bandwidth to expect rests on.
    pub expected: Expected,
    /// Whether files are of other GPUs than what is expected is of.
    pub other_gpus: bool,
    /// Which ones, in words.
    #[serde(skip)]
    pub which_gpus: Option<String>,
    /// What the past says of each run, where there is a history.
    pub history: Option<Vec<History>>,
    /// Whether CPU threads were measured, and no GPUs.
    #[serde(skip)]
    pub on_cpu: bool,
    /// Whether runs are judged by the past of their own hosts: all, or those that no forecast is held against.
    pub by_past: bool,
    /// What is not as it should be, beside times.
    pub anomalies: Vec<Anomaly>,
    /// Which sets of hosts to run next, where it was asked for.
    pub next: Option<Next>,
    /// The causes of each run that was looked into; none where nobody was to look.
    pub causes: Option<Vec<Causes>>,
    /// As it was asked for.
    pub max_error: Option<f64>,
    /// As it was asked for.
    #[serde(flatten)]
    pub gate: Gate,
    /// Whether the profile was fitted to files that are judged.
    pub seen: bool,
    /// Forecasts that extrapolate.
    pub extrapolated: usize,
    /// What all of them rest on.
    #[serde(skip)]
    pub grounds: Grounds,
    /// In what logs of the runs differ from those of the runs that they are held against: NCCL's version and variables, GPUs.
    pub differences: Vec<Difference>,
    /// Whether the machine is slow, a gate is not passed, or an anomaly is an error.
    pub failed: bool,
}

impl Outcome {
    fn fails(&self) -> bool {
        let median = |worst: &Group| worst.stats.errors.median_abs_error;
        let off = self.max_error.zip(self.worst.as_ref()).is_some_and(|(most, worst)| median(worst) > most);
        // A gate that nothing was held against is not passed.
        let nothing = self.max_error.is_some() && self.rows.is_empty()
            || self.gate != Gate::default() && self.health.runs.is_empty();
        let in_part = self.gate.require_pass && !self.unjudged.is_empty();
        off || in_part || nothing || self.gate.holds_back(self.health.state) || self.anomalies.iter().any(|a| a.error)
    }
}

/// What the bus bandwidth to expect rests on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "by")]
pub enum Expected {
    /// Forecasts with a profile.
    Forecast {
        /// Its name.
        profile: String,
        /// Whether measurements of such calls on such machines are behind it.
        measured: bool,
    },
    /// Other measurements.
    Runs {
        /// Files that gave rows.
        files: usize,
    },
}

/// Holds measurements against forecasts.
///
/// # Errors
/// Measurements, a machine or a profile that cannot be read; a machine that neither the request nor the files name; rows that
/// no forecast is about; too many different calls.
pub fn validate(request: &Request) -> Result<Outcome, Error> {
    let read = read_paths(&request.measurements, &ReadOptions { keep_failed: true, ..request.read.clone() })?;
    let mut outcome = beside_expected(request, &read)?;
    outcome.failed = outcome.fails();
    if let Some(asked) = &request.next {
        // Where nothing else says what to expect of them, runs are held against each other.
        let own = if outcome.runs.is_empty() { beside_each_other(&read) } else { Vec::new() };
        let runs = if own.is_empty() { &outcome.runs } else { &own };
        let gpus = asked.gpus.or(request.site.gpus);
        let of_rows: HashSet<(&str, &str)> = runs.iter().map(|run| (run.file.as_str(), run.name.as_str())).collect();
        let failed: Vec<Vec<String>> = (read.files.iter())
            .flat_map(|file| file.broken.iter().map(move |broken| (file.path.display().to_string(), broken)))
            .filter(|(path, broken)| {
                broken.end == End::Failed && !of_rows.contains(&(path.as_str(), broken.run.as_str()))
            })
            .map(|(_, broken)| broken.hosts.clone())
            .collect();
        outcome.next = Some(next::next(runs, &failed, &next::Request { gpus, ..asked.clone() })?);
    }
    Ok(outcome)
}

fn beside_expected(request: &Request, read: &ReadReport) -> Result<Outcome, Error> {
    // All of them failed before their first row.
    if read.measurements.is_empty() {
        let mut outcome = beside_runs(request, read, Vec::new());
        outcome.notes.extend(request.history.as_ref().and_then(|_| not_recorded(read)));
        return Ok(outcome);
    }
    let Some(folder) = &request.history else {
        return match request.against[..] {
            [] if request.next.is_some() && is_nameless(request, read) => {
                let mut outcome = beside_runs(request, read, beside_each_other(read));
                outcome.notes.push("no machine is named: runs are held against the median of their like".to_owned());
                Ok(outcome)
            }
            [] => beside_forecasts(request, read),
            _ => beside_good_runs(request, read),
        };
    };
    let present = Present::read(folder, read, request.now)?;
    let mut outcome = if request.against.is_empty() {
        beside_past(request, read, &present)?
    } else {
        beside_good_runs(request, read)?
    };
    outcome.warnings.extend(present.past.warnings.iter().cloned());
    outcome.notes.extend(match request.against.is_empty() {
        true => present.too_little(),
        false => Some("the runs of --against judge; the history shows how hosts changed, and records".to_owned()),
    });
    outcome.history = Some(present.of_runs(&outcome.health));
    outcome.notes.push(present.record(folder, read, (&outcome.health, &outcome.unjudged))?);
    outcome.notes.extend(not_recorded(read));
    Ok(outcome)
}

/// Whether neither who asks nor the files name a machine, so that there is no forecast.
fn is_nameless(request: &Request, read: &ReadReport) -> bool {
    request.site.topology.is_none() && read.machine().is_none()
}

/// Runs beside the past of their own hosts, and beside forecasts where that is too short.
fn beside_past(request: &Request, read: &ReadReport, present: &Present) -> Result<Outcome, Error> {
    let Beside { runs, .. } = present.runs();
    if runs.is_empty() {
        // The first runs of a history are recorded without a forecast too.
        let nameless = is_nameless(request, read);
        return if nameless { Ok(beside_runs(request, read, runs)) } else { beside_forecasts(request, read) };
    }
    let mut past = beside_runs(request, read, runs);
    past.by_past = true;
    past.differences = differences([&present.held_against(), read]);
    let rest = present.rest(read);
    let new = rest.measurements.len();
    if new > 0 && !is_nameless(request, &rest) {
        past.notes.push(format!("{new} rows have too few earlier runs to be judged by: forecasts judge them"));
        return Ok(with_forecasts(past, beside_forecasts(request, &rest)?));
    }
    if !request.site.profiles.is_empty() {
        past.notes.push("no forecast is made: --profile takes no part".to_owned());
    }
    if new > 0 {
        past.warnings.push(format!("{new} rows have too few earlier runs to be judged by"));
    }
    for row in present.first_rows() {
        let (file, collective, ranks) = (row.origin.file.clone(), row.collective, row.ranks);
        let size = row.size;
        let why = format!("{file}: {collective} of {size} over {ranks} ranks has too few earlier runs to be judged by");
        let unjudged = Unjudged { file, why };
        if !past.unjudged.contains(&unjudged) {
            past.unjudged.push(unjudged);
        }
        past.health.runs.push(health::Judged::untold(row));
        past.health.state = past.health.state.max(State::Unsure);
    }
    Ok(past)
}

/// Runs beside their past, and the others of the same call beside forecasts: all of them are judged together.
fn with_forecasts(past: Outcome, forecasts: Outcome) -> Outcome {
    fn joined<T: PartialEq>(mut all: Vec<T>, more: Vec<T>) -> Vec<T> {
        for one in more {
            if !all.contains(&one) {
                all.push(one);
            }
        }
        all
    }
    let runs = [past.runs, forecasts.runs].concat();
    let mut anomalies = joined(past.anomalies, forecasts.anomalies);
    anomalies.sort_by_key(|a| !a.error);
    Outcome {
        inputs: joined(forecasts.inputs, past.inputs),
        notes: joined(forecasts.notes, past.notes),
        warnings: joined(past.warnings, forecasts.warnings),
        unjudged: joined(past.unjudged, forecasts.unjudged),
        files: past.files,
        health: health::judge(&runs, past.gate.limits()),
        runs,
        by_past: true,
        anomalies,
        differences: past.differences,
        ..forecasts
    }
}

/// Runs beside the median of all that have their call and size: what all of them lack does not show.
fn beside_each_other(read: &ReadReport) -> Vec<Run> {
    let mut runs = health::against(read, &Reference::of_all(read)).runs;
    runs.iter_mut().for_each(|run| run.doubt = Doubt::UNKNOWN);
    runs
}

fn beside_forecasts(request: &Request, read: &ReadReport) -> Result<Outcome, Error> {
    can_be_asked(&read.files)?;
    let site = measured_site(&request.site, read)?;
    let topology = machine(&site, read)?;
    let told: Vec<_> = request.read.env.clone().into_iter().collect();
    site::told(&topology, None, &told)?;
    let Taken { profile, sources: mut inputs, why } = request.site.profile_for(&topology)?;
    inputs.extend(self::inputs("measurements", read));
    let judged = judge(read, (&topology, &profile), request.site.launch, request.closest, &request.watch)?;
    let (extrapolated, grounds) = reach(&judged.rows, &topology, &profile);
    let mut notes = notes(read, &judged, &topology, &profile);
    notes.extend(why);
    let calls: BTreeSet<(Collective, u32)> = judged.rows.iter().map(|j| (j.row.collective, j.row.ranks)).collect();
    notes.extend(calls.into_iter().filter_map(|(collective, ranks)| health::reached(&topology, collective, ranks)));
    let mut warnings = warnings(read, &judged, &topology, &profile);
    let untried = judged.rows.iter().filter(|j| request.closest && j.closest.is_none()).count();
    if untried > 0 {
        warnings.push(format!(
            "--closest: at {untried} of {} rows no other algorithm was tried: of many sizes some stand for all",
            judged.rows.len()
        ));
    }
    if extrapolated > 0 {
        let all = judged.rows.len();
        warnings.push(format!("{extrapolated} of {all} predictions extrapolate: {}", grounds.beyond));
    }
    let foreign: BTreeMap<String, String> =
        read.files.iter().filter_map(|f| Some((f.path.display().to_string(), other_gpus(f, &topology)?))).collect();
    warnings.extend(foreign.values().next().cloned());
    let mut anomalies: Vec<Anomaly> = read.files.iter().filter_map(defective).collect();
    let mut runs = health::runs_of(&judged.rows, &topology, &profile);
    // Nobody knows how far forecasts of one GPU are off for another.
    runs.iter_mut().filter(|run| foreign.contains_key(&run.file)).for_each(|run| run.doubt = Doubt::UNKNOWN);
    let health = health::judge(&runs, request.gate.limits());
    let mut causes = None;
    if request.doctor {
        request.watch.stage("looking for the cause")?;
        let named = site.topology.as_deref().unwrap_or(&topology.name);
        let said = said(&health, &read.files, (&topology, named));
        // What other GPUs take has its cause in these.
        let own = |j: &&Judged<'_>| !foreign.contains_key(&j.row.origin.file);
        let rows: Vec<Judged<'_>> = judged.rows.iter().filter(own).cloned().collect();
        let found = examine((&rows, &said), &topology, &profile, &health, &request.watch);
        warnings.extend(found.warnings);
        anomalies.extend(found.anomalies);
        causes = Some(found.causes);
    }
    let mut unjudged = lacking(read);
    unjudged.extend(left_out(read, &judged.rows));

    let groups = figures::groups(&judged.rows);
    // Without forced runs those where NCCL chose are what there is to judge.
    let any_forced = groups.iter().any(|g| g.forced);
    let median = |group: &Group| group.stats.errors.median_abs_error;
    let of_kind = groups.iter().filter(|g| g.forced == any_forced);
    let worst = of_kind.max_by(|a, b| median(a).total_cmp(&median(b))).cloned();
    let forced: Vec<&Judged<'_>> = judged.rows.iter().filter(|j| j.row.forced()).collect();
    let all: Vec<&Judged<'_>> = judged.rows.iter().collect();
    Ok(Outcome {
        inputs,
        notes,
        warnings,
        rows: judged.rows.iter().map(JudgedRow::from).collect(),
        overall: Stats::of(&forced),
        overall_with_auto: Stats::of(&all),
        groups,
        worst,
        files: read.files.iter().map(File::from).collect(),
        unjudged,
        failed: false,
        health,
        runs,
        expected: Expected::Forecast { profile: profile.name.clone(), measured: grounds.beyond.is_empty() },
        other_gpus: !foreign.is_empty(),
        which_gpus: foreign.into_values().next().map(|said| said.trim_end_matches(NAME_IT).to_owned()),
        seen: seen(read, &profile) > 0,
        history: None,
        on_cpu: false,
        by_past: false,
        anomalies,
        next: None,
        causes,
        max_error: request.max_error,
        differences: Vec::new(),
        gate: request.gate,
        extrapolated,
        grounds,
    })
}

/// Measurements beside others that are known to be good: no forecast takes part.
fn beside_good_runs(request: &Request, read: &ReadReport) -> Result<Outcome, Error> {
    let good = read_paths(&request.against, &ReadOptions { keep_duplicates: true, ..request.read.clone() })?;
    one_kind(&read.files, &good.files)?;
    let Beside { mut runs, alone, unlike } = health::against(read, &Reference::of(&good));
    if runs.is_empty() {
        let named: Vec<String> = request.against.iter().map(|path| format!("`{}`", path.display())).collect();
        return Err(Error::usage(
            format!("the good runs have none of the calls and sizes that were measured: {}", named.join(", ")),
            "measure the same collectives, ranks and sizes on machines known to be good",
        ));
    }
    let (here, there) = (gpus(read), gpus(&good));
    let other_gpus = !here.is_empty() && !there.is_empty() && products(&here, &there) != products(&there, &here);
    if other_gpus {
        runs.iter_mut().for_each(|run| run.doubt = Doubt::UNKNOWN);
    }
    let mut outcome = beside_runs(request, read, runs);
    outcome.warnings.extend(good.files.iter().filter_map(FileReport::defect));
    outcome.warnings.extend(cut_runs(&good.files).into_iter().chain(good.files.iter().filter_map(unread)));
    let rows: usize = alone.values().sum();
    if rows > 0 {
        let text = format!("{rows} rows have no counterpart among the good runs: they are not judged");
        outcome.warnings.push(text);
    }
    outcome.unjudged.extend(alone.into_iter().map(|(file, rows)| {
        let why = format!("{file}: {rows} rows have no counterpart among the good runs");
        Unjudged { file, why }
    }));
    if unlike > 0 {
        outcome.warnings.push(format!(
            "{} held against good runs that ran another way (hosts, launch mode, data type, operation, root, or what was forced), as no others have its \
             ranks and sizes: what to expect is known to a factor of two",
            plural(unlike, "run is", "runs are")
        ));
    }
    let said = || format!("the good runs are of {}, those judged of {}", listed(&there), listed(&here));
    outcome.which_gpus = other_gpus.then(said);
    outcome.warnings.extend(outcome.which_gpus.clone());
    outcome.differences = differences([&good, read]);
    outcome.inputs.extend(inputs("good runs", &good));
    outcome.notes =
        vec![format!("{}, beside good runs: {}; the median of several files", rows_from(read), rows_from(&good))];
    outcome.files.extend(good.files.iter().map(File::from));
    outcome.expected = Expected::Runs { files: given(&good).count() };
    outcome.other_gpus = other_gpus;
    Ok(outcome)
}

/// Runs beside what others took: no forecast takes part.
fn beside_runs(request: &Request, read: &ReadReport, runs: Vec<Run>) -> Outcome {
    let mut anomalies: Vec<Anomaly> = read.files.iter().filter_map(defective).collect();
    let on_cpu = read.files.iter().any(|file| file.on_cpu && file.rows > 0);
    // Threads are no GPUs: those of one run say nothing of each other.
    let sets: BTreeSet<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    if request.doctor && (sets.len() > 1 || !on_cpu) {
        anomalies.extend(members(&runs));
        anomalies.sort_by_key(|a| !a.error);
    }
    let health = health::judge(&runs, request.gate.limits());
    Outcome {
        inputs: inputs("measurements", read),
        notes: vec![rows_from(read)],
        warnings: cut_runs(&read.files).into_iter().chain(read.files.iter().filter_map(unread)).collect(),
        rows: Vec::new(),
        groups: Vec::new(),
        overall: Stats::default(),
        overall_with_auto: Stats::default(),
        worst: None,
        files: read.files.iter().map(File::from).collect(),
        unjudged: lacking(read),
        failed: false,
        health,
        runs,
        expected: Expected::Runs { files: 0 },
        other_gpus: false,
        which_gpus: None,
        seen: false,
        history: None,
        on_cpu,
        by_past: false,
        anomalies,
        next: None,
        causes: None,
        max_error: request.max_error,
        differences: Vec::new(),
        gate: request.gate,
        extrapolated: 0,
        grounds: Grounds::default(),
    }
}

/// The files that gave rows, as inputs of a report.
fn inputs(role: &str, read: &ReadReport) -> Vec<Input> {
    let input = |f: &FileReport| Input {
        name: role.to_owned(),
        path: Some(f.path.display().to_string()),
        hash: named_hash(&f.hash),
    };
    given(read).map(input).collect()
}

/// `63 rows from 1 file`.
fn rows_from(read: &ReadReport) -> String {
    let files = plural(given(read).count(), "file", "files");
    format!("{} from {files}", plural(read.measurements.len(), "row", "rows"))
}

fn listed(names: &BTreeSet<&str>) -> String {
    names.iter().copied().collect::<Vec<_>>().join(" and ")
}

/// The GPUs that logs name.
fn gpus(read: &ReadReport) -> BTreeSet<&str> {
    read.files.iter().flat_map(|file| &file.gpus).map(String::as_str).collect()
}

/// The same names as products, or as families where one of these or of those others is no known product.
fn products(names: &BTreeSet<&str>, others: &BTreeSet<&str>) -> BTreeSet<String> {
    let known = names.union(others).all(|name| catalogue::by_name(name).is_some());
    let product = |name: &&str| catalogue::by_name(name).filter(|_| known).map(|product| product.name.to_owned());
    names.iter().map(|name| product(name).unwrap_or_else(|| family(name))).collect()
}

/// Where it was measured, as large as the rows need.
fn measured_site(site: &SiteSpec, read: &ReadReport) -> Result<SiteSpec, Error> {
    let named = site.topology.clone().or_else(|| read.machine().map(str::to_owned));
    let name = named.ok_or_else(|| {
        Error::usage(
            "the measurements do not say which machine they are from",
            "name it with `-t TOPOLOGY` (collcast topo list), or put `topology = \"...\"` in a .toml beside the file",
        )
    })?;
    let at_most = read.files.iter().filter_map(|f| f.hosts_at_most).min();
    let (nodes, gpus) = hosts_of_rows(&name, (site.nodes, site.gpus), at_most, &read.measurements)?;
    // A placement counts the GPUs of whole hosts.
    let gpus = if site.placement.is_some() { site.gpus } else { gpus };
    Ok(SiteSpec { topology: Some(name), nodes, gpus, ..site.clone() })
}

/// The machine that was measured, with the NCCL version that all rows agree on which say one.
fn machine(site: &SiteSpec, read: &ReadReport) -> Result<Topology, Error> {
    let mut topology = site.topology()?;
    if let [(Some(version), _)] | [(None, _), (Some(version), _)] = &versions(read)[..] {
        topology.software.nccl = version.parse().ok().or(topology.software.nccl);
    }
    Ok(topology)
}

/// The NCCL versions that rows say, with their numbers of rows: first those that say none.
fn versions(read: &ReadReport) -> Vec<(Option<&str>, usize)> {
    let mut versions: BTreeMap<Option<&str>, usize> = BTreeMap::new();
    for row in &read.measurements {
        *versions.entry(row.settings.nccl.as_deref()).or_default() += 1;
    }
    versions.into_iter().collect()
}

/// What is said where rows are of several NCCL versions.
fn several_versions(read: &ReadReport) -> Option<String> {
    let versions = versions(read);
    let count = |(version, rows): &(Option<&str>, usize)| match version {
        Some(version) => format!("{version} ({rows} rows)"),
        None => format!("not said ({rows} rows, forecast with the machine's)"),
    };
    let text: Vec<String> = versions.iter().map(count).collect();
    let said = versions.iter().filter(|(version, _)| version.is_some()).count();
    (said > 1).then(|| format!("NCCL versions: {}; each row is forecast with its own", text.join(", ")))
}

/// The files that gave rows.
fn given(read: &ReadReport) -> impl Iterator<Item = &FileReport> {
    read.files.iter().filter(|f| f.rows > 0)
}

/// How many forecasts extrapolate, and what all of them rest on.
fn reach(judged: &[Judged<'_>], topology: &Topology, profile: &Profile) -> (usize, Grounds) {
    let grounds = |j: &Judged<'_>| {
        let on = On { topology, profile, settings: &j.question.settings };
        let (collective, ranks) = (j.row.collective, j.row.ranks);
        let grounds = Grounds::of(on, (collective, ranks), Said::from(&*j.prediction));
        if j.row.forced() {
            return grounds;
        }
        grounds.beside_published(on, (collective, ranks, j.row.size), &j.prediction)
    };
    let each: Vec<Grounds> = judged.iter().map(grounds).collect();
    (each.iter().filter(|of| of.basis == Basis::Extrapolated).count(), each.into_iter().collect())
}

/// The machine, its profile, what is assumed, and what was read.
fn notes(read: &ReadReport, judged: &Verdicts<'_>, topology: &Topology, profile: &Profile) -> Vec<String> {
    let settings = Settings {
        launch: judged.rows.first().map_or(Launch::Threads, Judged::launch),
        version: topology.software.nccl,
        ..Settings::default()
    };
    let mut notes = assumptions(topology, profile, &settings, Basis::Predicted);
    // Rows have launch modes of their own, and may have versions.
    let several = several_versions(read);
    let apart = if several.is_some() { "; NCCL " } else { "; launch" };
    if let Some(line) = notes.first_mut()
        && let Some(at) = line.find(apart)
    {
        line.truncate(at);
    }
    notes.extend(several);
    let repeated: usize = read.files.iter().map(|f| f.duplicates).sum();
    let unusable: usize = read.files.iter().map(|f| f.unusable).sum();
    let files = given(read).count();
    let mut note = format!("{} rows from {}", read.measurements.len(), plural(files, "file", "files"));
    for (count, what) in [
        (repeated, "more were second copies of these"),
        (unusable, "were unusable: time rounded to 0 or no bytes"),
        (judged.anchors, "set a constant of the profile and are left out"),
    ] {
        if count > 0 {
            note += &format!("; {count} {what}");
        }
    }
    notes.push(note);
    notes
}

/// What of the measurements no forecast is about, or makes it no evidence.
fn warnings(read: &ReadReport, judged: &Verdicts<'_>, topology: &Topology, profile: &Profile) -> Vec<String> {
    let skipped = |(reason, count)| format!("{count} rows are not predicted: {reason}");
    let mut warnings: Vec<String> = judged.skipped.iter().map(skipped).collect();
    warnings.extend(cut_runs(&read.files));
    warnings.extend(read.files.iter().filter_map(unread));
    warnings.extend(left_aside(&read.files, topology));
    let counted = health::counted(&judged.rows);
    let forced = judged.rows.iter().filter(|j| !counted(j)).count();
    if forced > 0 {
        warnings.push(format!(
            "{forced} rows whose algorithm and protocol were forced are not judged: NCCL chose in other runs of their call"
        ));
    }
    let seen = seen(read, profile);
    if seen > 0 {
        warnings.push(format!(
            "profile {} was fitted to {seen} of these files: their errors are no evidence for it; `collcast calibrate` prints those on rows held back",
            profile.name
        ));
    }
    warnings
}

/// Files of measurements that were not read, or whose runs were cut.
fn lacking(read: &ReadReport) -> Vec<Unjudged> {
    let why = |file: &FileReport| match file.outcome {
        read::Outcome::Read => file.cut(),
        _ => unread(file),
    };
    let one = |file: &FileReport| Some(Unjudged { file: file.path.display().to_string(), why: why(file)? });
    read.files.iter().filter_map(one).collect()
}

/// Runs of which no row is judged, by file.
fn left_out(read: &ReadReport, judged: &[Judged<'_>]) -> Vec<Unjudged> {
    fn run(row: &Measurement) -> (&str, &str, Asked<'_>) {
        (&row.origin.file, &row.run, Asked::of(row))
    }
    let counted = health::counted(judged);
    let told: HashSet<_> = judged.iter().filter(|j| counted(j)).map(|j| run(j.row)).collect();
    let mut untold: BTreeMap<&str, usize> = BTreeMap::new();
    for row in read.measurements.iter().filter(|row| !told.contains(&run(row))) {
        *untold.entry(&row.origin.file).or_default() += 1;
    }
    let one = |(file, rows): (&str, usize)| Unjudged {
        file: file.to_owned(),
        why: format!("{file}: {} not judged", plural(rows, "row is", "rows are")),
    };
    untold.into_iter().map(one).collect()
}

/// A file of measurements that was not read, or of which lines were left out, with how many.
pub(crate) fn unread(file: &FileReport) -> Option<String> {
    match &file.outcome {
        _ if matches!(file.kind, FileKind::Metadata | FileKind::Other) => None,
        read::Outcome::Read if file.unreadable == 0 => None,
        read::Outcome::Read => Some(format!(
            "{}: {} left out as unreadable, {} read; `collcast validate --format json` names each",
            file.path.display(),
            plural(file.unreadable, "line", "lines"),
            plural(file.rows, "row was", "rows were"),
        )),
        _ => file.warnings().into_iter().next(),
    }
}

/// Files that the profile was fitted to.
fn seen(read: &ReadReport, profile: &Profile) -> usize {
    profile.fitted_to(given(read).map(|f| f.hash.as_str()))
}

/// Says where the rank lines of a log name other GPUs than the machine has.
pub(crate) fn other_gpus(file: &FileReport, topology: &Topology) -> Option<String> {
    gpus_of_another(&file.path, &file.gpus.iter().map(String::as_str).collect(), topology)
}

/// Says where a file is of other GPUs than the machine has.
pub(crate) fn gpus_of_another(file: &Path, gpus: &BTreeSet<&str>, topology: &Topology) -> Option<String> {
    let models: BTreeSet<&str> = (0..topology.ranks())
        .filter_map(|r| Some(topology.gpu(topology.gpu_of(Rank(r)))?.model.as_str()))
        .filter(|model| !model.is_empty())
        .collect();
    let has: BTreeSet<String> = models.iter().map(|model| family(model)).collect();
    // PCIe and SXM of a family differ, too.
    let other = |name: &&str| match catalogue::by_name(name) {
        _ if has.is_empty() => false,
        Some(product) if models.iter().all(|model| catalogue::by_name(model).is_some()) => {
            !models.contains(product.name)
        }
        _ => !has.contains(&family(name)),
    };
    gpus.iter().any(other).then(|| {
        format!("{} is of {}, `{}` has {}{NAME_IT}", file.display(), listed(gpus), topology.name, listed(&models))
    })
}

/// What to do there.
const NAME_IT: &str = ": name the machine that was measured with -t";

/// What an anomaly of such a file is called.
pub const RUN_FAILED: &str = "run_failed";

/// A file whose run failed, or gave wrong results: its times are no evidence.
fn defective(file: &FileReport) -> Option<Anomaly> {
    Some(Anomaly::new(
        RUN_FAILED,
        true,
        file.defect()?,
        "find what corrupts the data or stops the run (NCCL_DEBUG=INFO, ECC and link errors of nvidia-smi -q) and measure again".to_owned(),
    ))
}

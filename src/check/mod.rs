//! Did NCCL's choices or our forecasts move since they were accepted, and why?
//!
//! A [`Suite`] names machines and calls; a [`Baseline`] holds what was predicted for them when it was last accepted, and
//! from which inputs. What differs today is a [`Finding`] with its cause: where several inputs changed, they are put back
//! one at a time.

mod baseline;
mod changed;
mod finding;
mod judge;
mod picked;
mod suite;
mod today;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use collcast_reports::model::Input;
use collcast_sim::collective::Collective;
use collcast_sim::predict::Prediction;
use rayon::prelude::*;
use serde::Serialize;

use crate::confidence::Grounds;
use crate::error::Error;
use crate::shard::{self, Parts, Shard};
use crate::validate::{MedianError, median_error};
use crate::values::few;
use crate::watch::Watch;
pub(crate) use baseline::digits;
pub use baseline::{Baseline, Constants, Counts, Entries, Entry, Measured, Recorded, baseline_of};
pub use changed::{Changed, InputChange, Moved};
pub(crate) use finding::signed;
pub use finding::{Cause, Finding, Kind, Versions, What};
use judge::{Judged, judge};
pub use picked::Picked;
pub use suite::{MachineSpec, MeasuredSpec, Suite, Tolerance, json_schema};
use today::{Machine, Timed};

/// What is held against what.
///
/// ```
/// use collcast::SiteSpec;
/// use collcast::check::{Baseline, MachineSpec, Request, Suite, check};
/// let machine = MachineSpec { range: vec![1 << 20], ..MachineSpec::new("ours", SiteSpec::new("h200x4")) };
/// let suite = Suite { machines: vec![machine], ..Suite::default() };
/// let accepted = check(&Request::new(suite.clone(), Baseline::default()))?.today;
/// assert!(check(&Request::new(suite, accepted))?.findings.is_empty());
/// # Ok::<(), collcast::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Request {
    /// Machines and calls.
    pub suite: Suite,
    /// What was accepted; [`Baseline::default`] where nothing was: then all is new.
    pub baseline: Baseline,
    /// Changes that do not matter.
    pub tolerance: Tolerance,
    /// Whatever is reported fails.
    pub strict: bool,
    /// Told of each machine that is predicted.
    pub watch: Watch,
}

impl Request {
    /// A suite against a baseline, with the suite's tolerances.
    pub fn new(suite: Suite, baseline: Baseline) -> Self {
        let (tolerance, strict) = (suite.tolerance, suite.strict);
        Self { suite, baseline, tolerance, strict, watch: Watch::default() }
    }

    /// The same, with something that follows it.
    #[must_use]
    pub fn watched(self, watch: &Watch) -> Self {
        Self { watch: watch.clone(), ..self }
    }

    /// A suite file against the baseline beside it.
    ///
    /// # Errors
    /// As of [`Suite::read`] and [`Baseline::read_for`].
    pub fn read(suite: impl AsRef<Path>) -> Result<Self, Error> {
        let suite = suite.as_ref();
        Ok(Self::new(Suite::read(suite)?, Baseline::read_for(suite, &baseline_of(suite))?))
    }
}

/// What is asked of a machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Asked {
    /// Name of the machine.
    pub machine: String,
    /// Versions of NCCL, ascending.
    pub versions: Vec<String>,
    /// What is called.
    pub collectives: Vec<Collective>,
}

/// What a call of a suite takes, if NCCL does it, with the places of its machine and of the call there.
pub type Worked = (usize, usize, Option<Prediction>);

/// What became of a suite.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The file of the suite.
    pub suite: Option<Input>,
    /// The file of the baseline.
    pub baseline: Option<Input>,
    /// The profiles that were read.
    pub sources: Vec<Input>,
    /// What the baseline holds.
    pub accepted: Counts,
    /// Version of the program that wrote it.
    pub accepted_by: String,
    /// Changes that do not matter.
    pub tolerance: Tolerance,
    /// Whatever is reported fails.
    pub strict: bool,
    /// Machines, in the order of the suite.
    pub asked: Vec<Asked>,
    /// Names of the measurements that forecasts are held against.
    pub measured: Vec<String>,
    /// Inputs that are not what they were.
    pub changed: Vec<Changed>,
    /// Differences, the worst first.
    pub findings: Vec<Finding>,
    /// Entries and sets of measurements that the baseline has too.
    pub compared: usize,
    /// Entries with calls that NCCL refuses.
    pub refused: usize,
    /// What is predicted today: the next baseline, if that is accepted.
    pub today: Baseline,
    /// What forecasts leave out of the variables, calls that NCCL refuses, and what measurements leave out.
    pub warnings: Vec<String>,
    /// What the predictions of the machines that findings are about rest on.
    #[serde(skip)]
    pub grounds: Grounds,
}

impl Outcome {
    /// Whether something fails.
    pub fn failed(&self) -> bool {
        self.findings.iter().any(|f| f.failed)
    }

    /// The text of the next baseline file.
    pub fn next_baseline(&self) -> String {
        let names: Vec<&str> = self.asked.iter().map(|asked| asked.machine.as_str()).collect();
        self.today.render(&names)
    }
}

/// Predicts a suite and holds that against a baseline.
///
/// # Errors
/// A machine, profile, variable or measured file that cannot be read, a call that has no forecast, or that somebody wants
/// it to stop.
pub fn check(request: &Request) -> Result<Outcome, Error> {
    check_with(request, |_| Ok(Vec::new()))
}

/// Predicts a shard of a suite: a hash of what that depends on, and what calls take, each with the places of its machine and
/// among the calls there.
///
/// # Errors
/// As of [`check`].
pub fn part(request: &Request, shard: Shard) -> Result<(String, Vec<Worked>), Error> {
    let machines = loaded(&request.suite)?;
    let parts = request.watch.parts(machines.len());
    let worked: Vec<Vec<Worked>> = (machines.par_iter().enumerate())
        .map(|(index, machine)| {
            let calls = machine.part(|place| shard.has(index + place))?;
            parts.done()?;
            Ok(calls.into_iter().map(|(place, timed)| (index, place, timed)).collect())
        })
        .collect::<Result<_, Error>>()?;
    Ok((question(request, &machines), worked.into_iter().flatten().collect()))
}

/// [`check`], where parts say what calls take: see [`part`].
///
/// # Errors
/// As of [`check`]; parts of another suite.
pub fn merged(request: &Request, parts: &Parts) -> Result<Outcome, Error> {
    check_with(request, |machines| parts.answers(&question(request, machines)))
}

/// A hash of what is asked of machines. Their sites are without variables: what NCCL makes of these, and of the tables that
/// they name, is beside them.
fn question(request: &Request, machines: &[Machine<'_>]) -> String {
    let told: Vec<_> = machines.iter().map(|machine| &machine.versions).collect();
    shard::question(machines.iter().map(|machine| &machine.site), &(&request.suite.machines, told))
}

/// The machines of a suite that can be checked.
fn loaded(suite: &Suite) -> Result<Vec<Machine<'_>>, Error> {
    sound(suite)?;
    suite.machines.par_iter().map(Machine::load).collect()
}

fn check_with(
    request: &Request,
    known: impl FnOnce(&[Machine<'_>]) -> Result<Vec<Worked>, Error>,
) -> Result<Outcome, Error> {
    let Request { suite, baseline, tolerance, strict, .. } = request;
    let machines = loaded(suite)?;
    let mut of_machine: Vec<BTreeMap<usize, Timed>> = vec![BTreeMap::new(); machines.len()];
    for (machine, place, timed) in known(&machines)? {
        of_machine.get_mut(machine).into_iter().for_each(|calls| drop(calls.insert(place, timed.clone())));
    }
    let parts = request.watch.parts(machines.len());
    let (recorded, grounds): (Vec<Recorded>, Vec<Grounds>) = (machines.par_iter().zip(of_machine))
        .map(|(machine, known)| {
            let (nccl, grounds) = machine.entries(known)?;
            parts.done()?;
            Ok((Recorded { nccl, ..machine.recorded()? }, grounds))
        })
        .collect::<Result<Vec<_>, Error>>()?
        .into_iter()
        .unzip();
    let mut today = accepted_today(&machines, &recorded);
    let mut warnings = together(&machines);
    let refused: Vec<String> = machines.iter().zip(&recorded).flat_map(|(m, recorded)| refusals(m, recorded)).collect();
    warnings.extend_from_slice(&refused);
    for spec in &suite.measured {
        let machine = &machines[spec.machine];
        let held = median_error(&spec.files, &spec.read, &machine.as_written(), &machine.site.profile)?;
        if let Some(defect) = held.defects.first() {
            return Err(Error::usage(
                format!("measured {}: {defect}: such a run is no measure of forecasts", spec.name),
                "measure again, or take the file out of the suite",
            ));
        }
        warnings.extend(held.warnings.iter().map(|warning| format!("measured {}: {warning}", spec.name)));
        let MedianError { rows, error, files, .. } = held;
        today.measured.insert(spec.name.clone(), Measured { files, rows, median_error_percent: digits(error * 100.0) });
    }
    let judged: Vec<Judged> = (machines.par_iter().zip(&recorded))
        .map(|(machine, recorded)| judge(machine, recorded, baseline, *tolerance))
        .collect::<Result<_, Error>>()?;
    let Judged { changed, findings, compared } = whole(request, judged, &today);
    let about = |machine: &Machine<'_>| {
        let measured = || suite.measured.iter().filter(|m| suite.machines[m.machine].name == machine.spec.name);
        findings.iter().any(|f| match f.is_of_measurements() {
            true => measured().any(|m| m.name == f.machine),
            false => f.machine == machine.spec.name,
        })
    };
    // Where nothing moved, what nothing moved in counts.
    let silent = findings.is_empty();
    let grounds: Grounds =
        machines.iter().zip(grounds).filter(|(m, _)| silent || about(m)).map(|(_, grounds)| grounds).collect();
    let mut seen = BTreeSet::new();
    let sources = machines.iter().flat_map(|m| &m.site.sources);
    Ok(Outcome {
        suite: suite.source.clone(),
        baseline: baseline.source.clone(),
        sources: sources.filter(|i| seen.insert((&i.path, &i.hash))).cloned().collect(),
        accepted: baseline.counts(),
        accepted_by: baseline.tool.clone(),
        tolerance: *tolerance,
        strict: *strict,
        asked: machines.iter().map(asked).collect(),
        measured: suite.measured.iter().map(|spec| spec.name.clone()).collect(),
        changed,
        findings,
        compared,
        refused: refused.len(),
        today,
        warnings,
        grounds,
    })
}

/// Refuses suites, made by hand, that no file could be read as.
fn sound(suite: &Suite) -> Result<(), Error> {
    let machine = twice(suite.machines.iter().map(|m| m.name.as_str()));
    let measured = twice(suite.measured.iter().map(|m| m.name.as_str()));
    let wrong = if let Some(name) = machine.or(measured) {
        format!("`{name}` is there twice")
    } else if let Some(lost) = suite.measured.iter().find(|m| m.machine >= suite.machines.len()) {
        format!("the measurements `{}` are of no machine of the suite", lost.name)
    } else if let Some(empty) = suite.measured.iter().find(|m| m.files.is_empty()) {
        format!("the measurements `{}` have no files", empty.name)
    } else if let Some(empty) = suite.machines.iter().find(|m| m.range.is_empty()) {
        format!("the machine `{}` has no range of sizes", empty.name)
    } else {
        return Ok(());
    };
    Err(Error::usage(wrong, "machines and measurements have names of their own, machines a range, measurements files"))
}

/// The first name that is there already.
fn twice<'n>(mut names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let mut seen = BTreeSet::new();
    names.find(|name| !seen.insert(*name))
}

/// The warnings of machines, each once, with those that it is of in front.
fn together(machines: &[Machine<'_>]) -> Vec<String> {
    let mut of: Vec<(&str, Vec<&str>)> = Vec::new();
    for machine in machines {
        for warning in &machine.warnings {
            match of.iter_mut().find(|(known, _)| known == warning) {
                Some((_, names)) => names.push(&machine.spec.name),
                None => of.push((warning, vec![&machine.spec.name])),
            }
        }
    }
    of.into_iter().map(|(warning, names)| format!("{}: {warning}", few(&names))).collect()
}

/// The calls of a machine that NCCL refuses, a line for each entry.
fn refusals(machine: &Machine<'_>, recorded: &Recorded) -> Vec<String> {
    let entries = recorded.nccl.iter().flat_map(|(version, entries)| entries.iter().map(move |e| (version, e)));
    let of_entry = |(version, (collective, entry)): (&String, (&Collective, &Entry))| {
        let sizes = entry.refused(&machine.spec.sizes);
        let line = || {
            format!(
                "{}: NCCL {version} refuses {collective} at {}, so that it has no times there; see NCCL_ALGO and NCCL_PROTO",
                machine.spec.name,
                sizes.join(", ")
            )
        };
        (!sizes.is_empty()).then(line)
    };
    entries.filter_map(of_entry).collect()
}

fn asked(machine: &Machine<'_>) -> Asked {
    Asked {
        machine: machine.spec.name.clone(),
        versions: machine.versions.iter().map(|(version, _)| version.to_string()).collect(),
        collectives: machine.spec.collectives.clone(),
    }
}

/// The baseline of machines as they are predicted today.
fn accepted_today(machines: &[Machine<'_>], recorded: &[Recorded]) -> Baseline {
    let mut baseline = Baseline::default();
    for (machine, recorded) in machines.iter().zip(recorded) {
        let (mut recorded, constants) = (recorded.clone(), machine.constants());
        // Two profiles may have one name.
        if baseline.profiles.get(&recorded.profile).is_some_and(|other| *other != constants) {
            recorded.profile = format!("{} of {}", recorded.profile, machine.spec.name);
        }
        baseline.profiles.insert(recorded.profile.clone(), constants);
        baseline.machines.insert(machine.spec.name.clone(), recorded);
    }
    baseline
}

/// What was found of all machines and measurements, the worst first. What is guarded no more fails, and where nothing
/// could be compared, all of it.
fn whole(request: &Request, machines: Vec<Judged>, today: &Baseline) -> Judged {
    let mut all = Judged::default();
    for machine in machines {
        all.changed.extend(machine.changed);
        all.findings.extend(machine.findings);
        all.compared += machine.compared;
    }
    let names: BTreeSet<&str> = request.suite.machines.iter().map(|m| m.name.as_str()).collect();
    let gone = request.baseline.machines.keys().filter(|name| !names.contains(name.as_str()));
    all.findings.extend(gone.map(|name| Finding::new(name, What::REMOVED)));
    of_measurements(request, today, &mut all);
    let is_given = request.baseline.source.is_some() || !request.baseline.machines.is_empty();
    for finding in &mut all.findings {
        finding.failed |= request.strict || finding.kind() == Kind::Removed || (is_given && all.compared == 0);
    }
    all.findings.sort_by(|a, b| {
        let size = |f: &Finding| f.change().map_or(0.0, f64::abs);
        (!a.failed, a.kind()).cmp(&(!b.failed, b.kind())).then(size(b).total_cmp(&size(a)))
    });
    all
}

/// Holds errors against measurements beside those of the baseline.
fn of_measurements(request: &Request, today: &Baseline, all: &mut Judged) {
    let Request { suite, baseline, tolerance, .. } = request;
    for spec in &suite.measured {
        let after = &today.measured[&spec.name];
        let before = baseline.measured.get(&spec.name);
        let what = What::Error { before: before.cloned(), after: after.clone(), limit: spec.max_error };
        let mut finding = Finding::new(&spec.name, what);
        let beyond = finding.is_beyond_limit();
        finding.failed = beyond;
        let (Some(before), Some(growth)) = (before, finding.change()) else {
            let new = What::Rows { before: None, after: Some(after.clone()) };
            all.findings.push(if beyond { finding } else { Finding::new(&spec.name, new) });
            continue;
        };
        all.compared += 1;
        let (moved, fewer) = (beyond || growth.abs() > tolerance.error, after.rows < before.rows);
        if !moved && !fewer {
            continue;
        }
        let machine = &suite.machines[spec.machine];
        let of_machine = all.changed.iter().filter(|c| c.machine == machine.name && is_asked_of_rows(machine, &c.what));
        let of_machine = of_machine.map(|c| c.what.cause());
        finding.causes = of_machine.collect::<BTreeSet<_>>().into_iter().collect();
        if before.files != after.files {
            let what = InputChange::Measurements { before: before.rows, after: after.rows };
            all.changed.push(Changed { machine: spec.name.clone(), what });
            finding.causes.push(Cause::Measurements);
        }
        if fewer {
            let what = What::Rows { before: Some(before.clone()), after: Some(after.clone()) };
            all.findings.push(Finding { what, failed: false, ..finding.clone() });
        }
        finding.failed |= growth > tolerance.error;
        all.findings.extend(moved.then_some(finding));
    }
    let gone = baseline.measured.iter().filter(|(name, _)| !today.measured.contains_key(*name));
    let rows = |before: &Measured| What::Rows { before: Some(before.clone()), after: None };
    all.findings.extend(gone.map(|(name, before)| Finding::new(name, rows(before))));
}

/// Whether forecasts of measured rows depend on an input. Rows say how they were run: of a suite's variables, versions and
/// launch mode they take nothing, of the machine's own file what it says.
fn is_asked_of_rows(machine: &MachineSpec, change: &InputChange) -> bool {
    match change {
        InputChange::Version(_) => machine.nccl.is_empty(),
        InputChange::Settings(moved) => {
            let own =
                |m: &Moved<String>| m.name != "launch" && machine.site.env.iter().all(|(name, _)| *name != m.name);
            moved.iter().any(|m| m.after.is_some() && own(m))
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::SiteSpec;
    use collcast_hwbackend::read::ReadOptions;

    fn suite(name: &str) -> Suite {
        let machine = MachineSpec {
            sizes: vec![1 << 20],
            range: vec![1 << 20, 2 << 20],
            ..MachineSpec::new(name, SiteSpec::new("h200x4"))
        };
        Suite { machines: vec![machine], ..Suite::default() }
    }

    /// Goal: without files: all is new to an empty baseline, nothing to the one of today, and a variable is the cause of
    /// what it moves.
    #[test]
    fn a_suite_of_values_is_held_against_a_baseline_of_values() {
        let first = check(&Request::new(suite("ours"), Baseline::default())).unwrap();
        assert_eq!(first.findings.iter().map(Finding::kind).collect::<Vec<_>>(), [Kind::New]);
        assert!(!first.failed() && first.accepted.entries == 0 && first.today.counts().entries == 1);
        let mut strict = Request::new(suite("ours"), first.today.clone());
        strict.strict = true;
        assert!(check(&strict).unwrap().findings.is_empty());
        let mut told = suite("ours");
        told.machines[0].site.env.push(("NCCL_MAX_NCHANNELS".to_owned(), "2".to_owned()));
        let outcome = check(&Request::new(told, first.today)).unwrap();
        assert!(outcome.failed());
        assert!(outcome.findings.iter().all(|f| f.causes == [Cause::Settings]), "{:?}", outcome.findings);
        let json = serde_json::to_value(&outcome).unwrap();
        let choice = &json["findings"][0]["what"]["choice"];
        assert_eq!((&choice["from_bytes"], &choice["after"]["runs"]["channels"]), (&(1 << 20).into(), &2.into()));
        assert_eq!(json["today"]["machines"]["ours"]["env"][1], "NCCL_NVLS_ENABLE=0", "{json}");
    }

    /// Goal: what no file could say is refused, and no panic.
    #[test]
    fn suites_that_make_no_sense_are_refused() {
        let measured = |machine, files| MeasuredSpec {
            name: "m".to_owned(),
            machine,
            files,
            read: ReadOptions::default(),
            max_error: None,
        };
        let mut twice = suite("one");
        twice.machines.extend(suite("one").machines);
        let elsewhere = Suite { measured: vec![measured(1, vec!["x.log".into()])], ..suite("one") };
        let nothing = Suite { measured: vec![measured(0, Vec::new())], ..suite("one") };
        let mut nowhere = suite("one");
        nowhere.machines[0].range.clear();
        let mut cold = suite("one");
        cold.machines[0].site.cold = true;
        for (suite, expected) in [
            (twice, "`one` is there twice"),
            (elsewhere, "no machine"),
            (nothing, "no files"),
            (nowhere, "no range"),
            (cold, "cold calls"),
        ] {
            let error = check(&Request::new(suite, Baseline::default())).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}

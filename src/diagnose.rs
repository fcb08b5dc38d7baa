//! What is wrong, if anything: each run that is not as expected against every known cause.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};

use collcast_hwbackend::read::ReadReport;
use collcast_sim::collective::{Collective, Launch};
use collcast_sim::doctor::{Case, Cause, Diagnosis, Examination, Fault, Finding, Point, where_scaling_breaks};
use collcast_sim::engine::WORK_PER_SECOND;
use collcast_sim::ids::Rank;
use collcast_sim::profile::Profile;
use collcast_sim::topology::Topology;
use collcast_sim::units::{Bytes, SimDuration};
use rayon::prelude::*;
use serde::Serialize;

use crate::error::Error;
use crate::health::suspects::{KNOWN, Member, Suspect, infer};
use crate::health::{self, Health, Limits, Part, State};
use crate::site::Site;
use crate::validate::judged::{Asked, Judged, can_be_asked, judge};
use crate::validate::said::Said;
use crate::values::few;
use crate::watch::Watch;

/// Something that is not as it should be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Anomaly {
    /// Its name in files, such as `slow_nic`.
    pub kind: &'static str,
    /// Whether it is an error; a warning otherwise.
    pub error: bool,
    /// What shows it; several things have `; ` between them.
    pub evidence: String,
    /// What to run next.
    pub suggestion: String,
    /// The calls that show it, of those that were looked into one by one.
    #[serde(skip)]
    pub of: Vec<(Collective, u32)>,
    /// Causes that are about as likely and that its sizes cannot tell from it.
    #[serde(skip)]
    pub alike: Vec<&'static str>,
}

impl Anomaly {
    /// One that is not of calls that were looked into one by one.
    pub(crate) fn new(kind: &'static str, error: bool, evidence: String, suggestion: String) -> Self {
        Self { kind, error, evidence, suggestion, of: Vec::new(), alike: Vec::new() }
    }
}

/// A cause that was held against a run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Candidate {
    /// Its name in files: that of a [`Cause`].
    pub kind: &'static str,
    /// In words, with the value that fits best.
    pub detail: String,
    /// The pace of the host beside it, a call every so many us, where that shows.
    pub launch_every_us: Option<u32>,
    /// Share of belief among all causes, 0 to 1.
    pub belief: f64,
    /// Median of measured over its times, less 1, without sign.
    pub median_abs_error: f64,
}

/// The causes of a run that was looked into.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Causes {
    /// The run.
    pub run: String,
    /// Its ranks.
    pub ranks: u32,
    /// The likeliest five, the likeliest first.
    pub causes: Vec<Candidate>,
    /// Causes that these sizes cannot tell from the first, by name.
    pub alike: Vec<&'static str>,
    /// Sizes that took longer than the interval of their forecast allows.
    pub sizes_beyond: usize,
}

/// What was found.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Outcome {
    /// What is not as it should be, errors first.
    pub anomalies: Vec<Anomaly>,
    /// The causes of each run that was looked into, the slowest first.
    pub causes: Vec<Causes>,
    /// Causes that could not be tried.
    pub warnings: Vec<String>,
}

/// Which cause fits measurements of a site that are not as it should give them. Rows that do not say how kernels were
/// started count as started the way the site does; [`crate::validate::validate`] does the same for files, and says more.
///
/// # Errors
/// Rows that no forecast is about, or too many different calls.
pub fn diagnose(site: &Site, measured: &ReadReport, watch: &Watch) -> Result<Outcome, Error> {
    can_be_asked(&measured.files)?;
    let launch = Some(site.settings().launch);
    let judged = judge(measured, (&site.topology, &site.profile), launch, false, watch)?;
    let runs = health::runs_of(&judged.rows, &site.topology, &site.profile);
    let health = health::judge(&runs, Limits::default());
    Ok(examine((&judged.rows, &BTreeMap::new()), &site.topology, &site.profile, &health, watch))
}

/// Times of one collective over sizes, and the machine whose first ranks they are of.
#[derive(Clone, Debug)]
pub(crate) struct Run<'t> {
    /// What evidence calls it.
    pub(crate) name: String,
    /// What it is called among [`Causes`].
    pub(crate) run: String,
    pub(crate) ranks: u32,
    /// What bus bandwidth says of it.
    pub(crate) state: State,
    pub(crate) case: Case,
    /// What NCCL said in its log.
    pub(crate) said: Option<&'t Said>,
    pub(crate) topology: Cow<'t, Topology>,
}

/// A run by what makes its rows comparable.
struct RunRows<'j, 'a> {
    rows: Vec<&'j Judged<'a>>,
    run: Run<'j>,
    /// What repeats of a size differ by, or those in place from those out of place.
    disturbed: Option<Anomaly>,
}

/// Runs looked into, the slowest first: more would not change what to do next.
const RUNS_MAX: usize = 6;
/// Work of the simulation before a further run is looked into: about 10 s of a core. Six usual runs take less.
const WORK_MAX: u64 = 10 * WORK_PER_SECOND;
/// Sizes from which on causes are told apart: each makes another curve, and two points are a line.
const TOLD_APART: usize = 3;
/// Sizes simulated under each cause.
const SIZES: usize = 13;
/// The same of a run whose sizes take long to simulate.
const SIZES_MIN: usize = 5;
/// Times that an examination asks for curves: of other constants, of all faults at few sizes, of some at the others.
const ASKED: usize = 3;
/// What all causes of a run take to simulate, in times of its forecasts: 0.5 (reduce) to 14 (all-reduce) were seen over 64
/// ranks of `dgx-h100`.
const CAUSES: u64 = 5;

/// Looks into every run that is not as expected, and says first what is found in the slowest. What it finds is an error
/// where a run is slow by its `state`: how slow it is counts, and not whether its cause has a name. Where that cannot
/// tell, a cause that is certain is an error. `said` is what NCCL said of slow runs, by file.
pub(crate) fn examine(
    (judged, said): (&[Judged<'_>], &BTreeMap<String, Said>),
    topology: &Topology,
    profile: &Profile,
    health: &Health,
    watch: &Watch,
) -> Outcome {
    let rows = runs((judged, said), (topology, profile), health);
    let mut outcome = look_into(rows.iter().map(|r| &r.run), profile, watch);
    let slowest = health.decisive().map(|(run, _)| (run.collective, run.ranks));
    outcome.anomalies.sort_by_key(|a| !slowest.is_some_and(|call| a.of.contains(&call)));
    let members = members(&health::runs_of(judged, topology, profile));
    // Runs without the part that is slow are as they should be: no setting of theirs is wrong.
    if members.iter().any(|a| a.error) {
        outcome.anomalies.iter_mut().for_each(|a| a.error = false);
    }
    let a_part_is_slow = !members.is_empty();
    outcome.anomalies.splice(0..0, members);
    outcome.anomalies.extend(scaling(&rows).into_iter().filter(|_| !a_part_is_slow));
    outcome.anomalies.extend(rows.iter().filter_map(|run| run.disturbed.clone()));
    let mut outcome = outcome.concluded(health.state, rows.iter().map(|r| &r.run));
    if health.is_slow_at_small_calls_alone() {
        let unknown = outcome.anomalies.iter_mut().filter(|a| a.kind == Cause::Unknown.name());
        unknown.for_each(|a| NEXT_OF_SMALL.clone_into(&mut a.suggestion));
    }
    outcome
}

/// The same of runs that are slow, each for itself.
pub(crate) fn examine_runs(runs: &[Run<'_>], profile: &Profile, watch: &Watch) -> Outcome {
    look_into(runs.iter(), profile, watch).concluded(State::Slow, runs.iter())
}

impl Outcome {
    /// With a word where a slow machine shows nothing, and errors first.
    fn concluded<'r>(mut self, state: State, runs: impl Iterator<Item = &'r Run<'r>>) -> Self {
        if state == State::Slow && self.anomalies.is_empty() {
            let candidates = self.causes.iter().flat_map(|run| &run.causes);
            let likely: Vec<String> = candidates
                .filter(|c| c.belief >= CANDIDATE && NO_CAUSE.iter().all(|none| c.kind != none.name()))
                .map(|c| format!("{} {:.0}% ({})", c.kind, c.belief * 100.0, c.detail))
                .take(3)
                .collect();
            let faults = match &*likely.join(", ") {
                _ if self.causes.is_empty() => "no cause was tried".to_owned(),
                "" => "no fault that the doctor knows makes these sizes as slow and leaves the others as they are"
                    .to_owned(),
                likely => format!("no cause is clearly likelier than the others: {likely}"),
            };
            let runs: Vec<&Run<'_>> = runs.collect();
            let anomaly = match runs.iter().find_map(|run| run.sockets()) {
                Some(said) => {
                    Anomaly::new(Cause::TcpFallback.name(), true, format!("{said}; {faults}"), next_of_sockets())
                }
                None => Anomaly::new(Cause::Unknown.name(), true, faults, next_of_unknown(&runs)),
            };
            self.anomalies.push(anomaly);
        }
        self.anomalies.sort_by_key(|a| !a.error);
        self
    }
}

impl Run<'_> {
    fn is_in_one_host(&self) -> bool {
        let host = |rank| self.topology.host_of(Rank(rank));
        (1..self.ranks.min(self.topology.ranks())).all(|rank| host(rank) == host(0))
    }

    /// Whether large sizes of it wait for the threads of hosts that send and receive, and not for NICs.
    fn is_bound_by_proxies(&self) -> bool {
        let points = self.case.points();
        points[points.len() / 2..].iter().any(|point| point.expected.bound_by() == "proxy threads")
    }

    /// Whether each GPU has a process of its own.
    fn is_of_processes(&self) -> bool {
        self.case.points().iter().all(|point| point.question.settings.launch == Launch::Processes)
    }

    /// NCCL's words by which its data goes over TCP, in place of RDMA.
    fn sockets(&self) -> Option<&str> {
        self.said?.sockets.as_deref().filter(|_| !self.is_in_one_host())
    }
}

/// What to run next where a log says that data goes over TCP: nothing is left to confirm.
fn next_of_sockets() -> String {
    let next = Cause::TcpFallback.next();
    next.split_once("; then ").map_or(next, |(_, then)| then).to_owned()
}

/// What to run next where processes launch too slowly that drive one GPU each.
const NEXT_OF_PROCESSES: &str = "run with CUDA graphs (-G 1), and look at the host's clock governor and CPU affinity";
/// What to run next where small calls of one host alone are slow.
pub(crate) const NEXT_OF_SMALL: &str = "large calls are as expected, so links are: run small ones in CUDA graphs (`collcast bench --backend nccl --launch \
     graph`); where they are as expected there, the host starts kernels slowly: its clock, NUMA binding, virtualisation";

/// What to run next where no cause is known: a log is not asked for where there is one.
fn next_of_unknown(runs: &[&Run<'_>]) -> String {
    let log = runs.iter().find_map(|run| run.said).map_or(Cause::Unknown.next(), |said| said.lint.as_str());
    let next = if runs.iter().all(|run| run.is_in_one_host()) {
        "measure pairs of its GPUs (`collcast bench --backend nccl --pairs`)"
    } else {
        "run halves of the hosts, and one host alone"
    };
    let rings = if runs.iter().any(|run| run.is_bound_by_proxies()) { OTHER_COLLECTIVE } else { "" };
    format!("{log}; {rings}{next}")
}

/// What tells NICs from the rest where proxy threads bound the run: NVLS trees take as long with a NIC less.
const OTHER_COLLECTIVE: &str =
    "run reduce_scatter_perf or sendrecv_perf over the same hosts, which show NICs that proxy threads hide here; ";

/// Belief from which on a cause is worth a word.
const CANDIDATE: f64 = 0.01;
/// Times the median error of another candidate beyond which the likeliest is not named first.
const FAR_WORSE: f64 = 3.0;
/// What is no cause that could be looked for.
const NO_CAUSE: [Cause; 2] = [Cause::Healthy, Cause::Unknown];

fn look_into<'r>(runs: impl Iterator<Item = &'r Run<'r>>, profile: &Profile, watch: &Watch) -> Outcome {
    // What is slow by its bus bandwidth is looked into, however mildly its times show it.
    let mut suspects: Vec<&Run<'_>> = runs.filter(|r| r.state == State::Slow || r.case.is_suspect()).collect();
    suspects.sort_by(|a, b| excess(b).total_cmp(&excess(a)));
    let mut left_out = suspects.len().saturating_sub(RUNS_MAX);
    suspects.truncate(RUNS_MAX);
    let mut found = Vec::new();
    let mut failed = BTreeSet::new();
    let mut work = 0;
    let all = suspects.len();
    for (index, run) in suspects.into_iter().enumerate() {
        if work >= WORK_MAX {
            left_out += 1;
            continue;
        }
        let mut case = run.case.thinned(SIZES);
        if run.state == State::Slow {
            case = case.known_slow();
        }
        if case.points().iter().map(|p| p.expected.work).sum::<u64>() * CAUSES > WORK_MAX {
            case = case.thinned(SIZES_MIN);
        }
        let examination = match Examination::new(case, &run.topology, profile) {
            Ok(examination) => examination,
            Err(error) => {
                failed.insert(format!("{}: no cause could be tried: {error}", run.name));
                continue;
            }
        };
        let (watch, most) = (watch.one_of(index, all), examination.most_times());
        let (mut asked, done) = (0, AtomicUsize::new(0));
        // A cause that cannot be simulated is left out, and said.
        let curves = |faults: &[Fault], sizes: &[usize]| -> Vec<(Fault, Vec<f64>)> {
            asked += 1;
            if asked == ASKED {
                // What no fault promises is left out.
                done.store(most.saturating_sub(faults.len() * sizes.len()), Ordering::Relaxed);
            }
            let tried = faults.par_iter().map(|&fault| {
                let curve = examination.simulate(fault, sizes, profile);
                let times = done.fetch_add(sizes.len(), Ordering::Relaxed) + sizes.len();
                watch.share(times as f64 / most.max(1) as f64);
                (fault, curve)
            });
            let tried: Vec<_> = tried.collect();
            let kept = |(fault, curve): (Fault, Result<Option<Vec<f64>>, _>)| match curve {
                Ok(curve) => Some((fault, curve?)),
                Err(error) => {
                    failed.insert(format!("{fault} could not be simulated: {error}"));
                    None
                }
            };
            tried.into_iter().filter_map(kept).collect()
        };
        let diagnosis = examination.diagnose(curves);
        work += examination.work();
        found.push((run, examination.case().clone(), diagnosis));
    }
    let causes = found.iter().map(|(run, _, d)| causes_of(run, d)).collect();
    Outcome { anomalies: by_cause(&found, left_out), causes, warnings: failed.into_iter().collect() }
}

/// Rows by run, repeats of a size as their median.
fn runs<'j, 'a>(
    (judged, said): (&'j [Judged<'a>], &'j BTreeMap<String, Said>),
    (topology, profile): (&'j Topology, &Profile),
    health: &Health,
) -> Vec<RunRows<'j, 'a>> {
    let mut alike: HashMap<(&str, &str, Asked<'_>), Vec<usize>> = HashMap::new();
    for (index, j) in judged.iter().enumerate() {
        alike.entry((&j.row.origin.file, &j.row.run, Asked::of(j.row))).or_default().push(index);
    }
    // Asked otherwise in launch or timing alone, rows may come to the same settings.
    let mut groups: HashMap<_, Vec<usize>> = HashMap::new();
    for rows in alike.into_values() {
        let (r, settings) = (judged[rows[0]].row, &judged[rows[0]].question.settings);
        let call = (r.collective, r.ranks, r.dtype, r.op, r.root);
        groups.entry((&r.origin.file, &r.run, call, &r.settings, settings)).or_default().extend(rows);
    }
    let mut groups: Vec<Vec<usize>> = groups.into_values().collect();
    groups.iter_mut().for_each(|rows| rows.sort_unstable());
    groups.sort_by_key(|rows| {
        let r = judged[rows[0]].row;
        (&r.origin.file, &r.run, r.collective.name(), r.ranks, rows[0])
    });
    let run = |rows: Vec<usize>| {
        let rows: Vec<&'j Judged<'a>> = rows.into_iter().map(|index| &judged[index]).collect();
        let mut sizes: BTreeMap<u64, Vec<&Judged<'_>>> = BTreeMap::new();
        for &j in &rows {
            sizes.entry(j.row.size.0).or_default().push(j);
        }
        // The lower of two: a disturbed repeat is the longer one.
        let typical = |mut same: Vec<&'j Judged<'a>>| {
            same.sort_by_key(|j| j.row.time);
            same[(same.len() - 1) / 2]
        };
        let typical: Vec<&Judged<'a>> = sizes.into_values().map(typical).collect();
        let point = |j: &&Judged<'_>| Point {
            question: (*j.question).clone(),
            measured: j.row.time,
            expected: (*j.prediction).clone(),
        };
        let case = Case::new(typical.iter().map(point).collect())?;
        let r = rows[0].row;
        let name = format!("{} ({}, {} ranks)", r.run, r.collective, r.ranks);
        let is_of = |run: &&health::Judged| {
            (&run.file, &run.run, run.collective, run.ranks) == (&r.origin.file, &r.run, r.collective, r.ranks)
        };
        let judged = || health.runs.iter().filter(is_of);
        let mut state = judged().map(|run| run.state).max().unwrap_or(health.state);
        let mut disturbed = in_place(&name, &rows).or_else(|| judged().find_map(|run| unsteady(&name, run)));
        if let Some(disturbed) = disturbed.as_mut().filter(|_| state == State::Slow) {
            // Faults are looked for in typical times: where these are as they should be, it is the others that are slow.
            let of: Vec<Judged<'a>> = typical.into_iter().cloned().collect();
            let typical = health::judge(&health::runs_of(&of, topology, profile), Limits::default()).state;
            disturbed.error = typical != State::Slow;
            state = typical;
        }
        let (run, said, topology) = (r.run.clone(), said.get(&r.origin.file), Cow::Borrowed(topology));
        let said = said.filter(|_| state == State::Slow);
        Some(RunRows { rows, run: Run { name, run, ranks: r.ranks, state, case, said, topology }, disturbed })
    };
    groups.into_iter().filter_map(run).collect()
}

/// Median of the logarithm of measured over expected, of the half of the sizes that shows it most.
fn excess(run: &Run<'_>) -> f64 {
    let mut logs: Vec<f64> =
        run.case.points().iter().map(|p| (p.measured.as_us() / p.expected.time.as_us()).ln()).collect();
    logs.sort_by(f64::total_cmp);
    logs[logs.len() * 3 / 4]
}

/// The same at the larger ones of some sizes, where links and NICs show; none where it lacks one of these.
fn excess_of_large(run: &Run<'_>, sizes: &BTreeSet<u64>) -> Option<f64> {
    let size = |p: &&Point| p.question.call.size().0;
    let points: Vec<&Point> = run.case.points().iter().filter(|p| sizes.contains(&size(p))).collect();
    if points.is_empty() || points.len() < sizes.len() {
        return None;
    }
    let mut logs: Vec<f64> =
        points[points.len() * 2 / 3..].iter().map(|p| (p.measured.as_us() / p.expected.time.as_us()).ln()).collect();
    logs.sort_by(f64::total_cmp);
    Some(logs[logs.len() / 2])
}

/// Share of runs that must have a size for all to be compared at it; the others are left out.
const SHARED: f64 = 0.75;

/// Sizes at which runs can be compared: a forecast is off by other factors at other sizes.
fn shared_sizes<'r>(runs: impl Iterator<Item = &'r RunRows<'r, 'r>>) -> BTreeSet<u64> {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    let mut all = 0;
    for run in runs {
        all += 1;
        for point in run.run.case.points() {
            *counts.entry(point.question.call.size().0).or_default() += 1;
        }
    }
    counts.into_iter().filter(|(_, n)| *n as f64 >= SHARED * f64::from(all)).map(|(size, _)| size).collect()
}

/// One anomaly a cause, over the runs that show it.
fn by_cause(found: &[(&Run<'_>, Case, Diagnosis)], left_out: usize) -> Vec<Anomaly> {
    let mut causes: BTreeMap<Cause, Vec<&(&Run<'_>, Case, Diagnosis)>> = BTreeMap::new();
    let (faster, found): (Vec<_>, Vec<_>) =
        found.iter().partition(|(run, _, d)| finding(run, d) == Finding::Unknown && excess(run) < 0.0);
    for one in found {
        let cause = match finding(one.0, &one.2) {
            Finding::Healthy => continue,
            // Where nothing is known to be slow, nothing is to be looked for.
            Finding::Unknown if one.0.state == State::Unsure => continue,
            _ => {
                fitting(one.0, &one.2).or_else(|| one.0.sockets().map(|_| Cause::TcpFallback)).unwrap_or(Cause::Unknown)
            }
        };
        causes.entry(cause).or_default().push(one);
    }
    let anomaly = |(cause, runs): (Cause, Vec<&(&Run<'_>, Case, Diagnosis)>)| {
        let mut evidence: Vec<String> = runs.iter().take(3).map(|(run, case, d)| evidence(run, case, d)).collect();
        let more = runs.len().saturating_sub(3);
        if more > 0 {
            evidence.push(format!("and {more} more runs of the same"));
        }
        if left_out > 0 {
            evidence.push(format!("{left_out} more runs were not looked into"));
        }
        let mut suggestion = match cause {
            Cause::Unknown => next_of_unknown(&runs.iter().map(|r| r.0).collect::<Vec<_>>()),
            Cause::TcpFallback if runs.iter().any(|r| r.0.sockets().is_some()) => next_of_sockets(),
            Cause::LaunchBound if runs.iter().all(|r| r.0.is_of_processes()) => NEXT_OF_PROCESSES.to_owned(),
            known => known.next().to_owned(),
        };
        let ranked = &runs[0].2.ranked;
        if cause == Cause::Unknown
            && let Some(likely) = candidates(&runs[0].2).next()
            && candidates(&runs[0].2).all(|other| !is_far_worse(likely, other))
        {
            let likely = likely.fault.cause();
            suggestion += &format!("; first of all for {likely}: {}", likely.next());
        }
        // What these sizes cannot tell from it is looked for as well, where it is about as likely.
        let near = |c: &&collcast_sim::doctor::Candidate| c.belief >= ranked[0].belief / 2.0;
        let alike = ranked.iter().skip(1).filter(near).map(|c| c.fault.cause()).filter(|c| runs[0].2.alike.contains(c));
        let fits = fitting(runs[0].0, &runs[0].2).is_some();
        let alike: Vec<Cause> = if fits { alike.collect() } else { Vec::new() };
        for other in &alike {
            suggestion += &format!("; for {other}: {}", other.next());
        }
        let is_error = |(run, _, d): &&(&Run<'_>, Case, Diagnosis)| match run.state {
            State::Slow => true,
            State::Unsure => d.is_error(),
            State::Pass => false,
        };
        let error = runs.iter().any(is_error);
        let call = |run: &Run<'_>| (run.case.points()[0].question.call.collective, run.ranks);
        let of = runs.iter().map(|r| call(r.0)).collect();
        Anomaly {
            kind: cause.name(),
            error,
            evidence: evidence.join("; "),
            suggestion,
            of,
            alike: alike.iter().map(|c| c.name()).collect(),
        }
    };
    let too_fast = faster.first().map(|(run, ..)| {
        Anomaly::new(
            "faster_than_expected",
            false,
            format!(
                "{}: {:.2} times the expected time or less at most sizes; no fault makes a run faster",
                run.name,
                excess(run).exp()
            ),
            "check --topology, --profile, and that the log says its NCCL version, variables and ranks".to_owned(),
        )
    });
    causes.into_iter().map(anomaly).chain(too_fast).collect()
}

/// How it stands with a run, where a cause has a name only if sizes tell it from others.
fn finding(run: &Run<'_>, d: &Diagnosis) -> Finding {
    match d.finding {
        Finding::Found if run.case.points().len() < TOLD_APART => Finding::Unknown,
        finding => finding,
    }
}

/// The cause whose curve fits a run, where one does: what its log says comes first.
fn fitting(run: &Run<'_>, d: &Diagnosis) -> Option<Cause> {
    let cause = d.ranked[0].fault.cause();
    let found = finding(run, d) == Finding::Found && candidates(d).all(|other| !is_far_worse(&d.ranked[0], other));
    (found && (cause.is_sockets() || run.sockets().is_none())).then_some(cause)
}

/// Faults that may be the cause.
fn candidates(d: &Diagnosis) -> impl Iterator<Item = &collcast_sim::doctor::Candidate> {
    d.ranked.iter().filter(|c| c.belief >= CANDIDATE && !NO_CAUSE.contains(&c.fault.cause()))
}

/// Whether a candidate fits slow sizes so much worse than another that it is not the first thing to look at.
fn is_far_worse(one: &collcast_sim::doctor::Candidate, other: &collcast_sim::doctor::Candidate) -> bool {
    one.misfit_beyond > FAR_WORSE * other.misfit_beyond
}

fn evidence(run: &Run<'_>, case: &Case, d: &Diagnosis) -> String {
    let first = &d.ranked[0];
    let worst = &case.points()[d.worst];
    let mut text = format!(
        "{}{}: {:.1} times the expected time at {}, {} of {} sizes beyond the interval",
        run.sockets().map_or_else(String::new, |said| format!("{said}; ")),
        run.name,
        worst.measured.as_us() / worst.expected.time.as_us(),
        worst.question.call.size().about(),
        d.beyond,
        case.points().len(),
    );
    let misfit = |cause: Cause| d.ranked.iter().find(|c| c.fault.cause() == cause).map_or(0.0, |c| c.misfit_beyond);
    let healthy = misfit(Cause::Healthy) * 100.0;
    let named = fitting(run, d).is_some();
    if named {
        let beside = first.floor.map_or_else(String::new, |us| format!(", beside a launch every {us} us"));
        text += &format!(
            "; the forecast with {}{beside} is {:.0}% off at these sizes in the median, and {healthy:.0}% off without a fault",
            first.fault,
            first.misfit_beyond * 100.0
        );
        if !d.alike.is_empty() {
            let names: Vec<&str> = d.alike.iter().map(|c| c.name()).collect();
            text += &format!("; these sizes cannot tell it from {}", names.join(", "));
        }
    }
    let others: Vec<String> = (d.ranked.iter().skip(usize::from(named)))
        .filter(|c| !matches!(c.fault, Fault::Healthy | Fault::Unknown) && c.belief >= CANDIDATE)
        .take(3)
        .map(|c| {
            format!("{} {:.0}% likely ({}, {:.0}% off)", c.fault.cause(), c.belief * 100.0, c.fault, c.misfit * 100.0)
        })
        .collect();
    if !others.is_empty() {
        text += &format!("; candidates: {}", others.join(", "));
    }
    let sizes = run.case.points().len();
    if !named && sizes < TOLD_APART {
        let are = if sizes == 1 { "1 size is too little" } else { "2 sizes are too little" };
        text += &format!("; {are} to tell causes apart, {TOLD_APART} or more may do");
    }
    text
}

fn causes_of(run: &Run<'_>, d: &Diagnosis) -> Causes {
    let candidate = |c: &collcast_sim::doctor::Candidate| Candidate {
        kind: c.fault.cause().name(),
        detail: c.fault.to_string(),
        launch_every_us: c.floor,
        belief: c.belief,
        median_abs_error: c.misfit,
    };
    Causes {
        run: run.run.clone(),
        ranks: run.ranks,
        causes: d.ranked.iter().take(5).map(candidate).collect(),
        alike: d.alike.iter().map(|c| c.name()).collect(),
        sizes_beyond: d.beyond,
    }
}

/// What a run is called whose calls in place take other times than those out of place.
pub(crate) const HALVES_DIFFER: &str = "halves_differ";
/// How much longer than the other half of a run one must take to be told, at most of its sizes: in place LL is up to 30%
/// faster where it runs from the L2 cache.
const HALVES: f64 = 1.5;

/// A run of which repeats of a size lie too far apart.
fn unsteady(name: &str, run: &health::Judged) -> Option<Anomaly> {
    let band = run.bands.iter().find(|band| band.is_unsteady_alone())?;
    let steady = Health::steady(band.part) * 100.0;
    let evidence = format!(
        "{name}: repeats of a size lie {:.0}% apart, where steady runs lie below {steady:.0}%",
        band.scatter * 100.0
    );
    Some(Anomaly::new(Cause::Noise.name(), false, evidence, Cause::Noise.next().to_owned()))
}

/// A run whose calls in place take other times than those out of place, at most sizes or at most of the largest third of them:
/// the doctor looks at the faster ones.
fn in_place(name: &str, rows: &[&Judged<'_>]) -> Option<Anomaly> {
    let mut sizes: BTreeMap<u64, [Option<f64>; 2]> = BTreeMap::new();
    for j in rows {
        let half = &mut sizes.entry(j.row.size.0).or_default()[usize::from(j.row.in_place)];
        let time = j.row.time.as_us();
        *half = Some(half.map_or(time, |other| other.min(time)));
    }
    let both = |(&size, [out, within]): (&u64, &[Option<f64>; 2])| Some((size, (*within)? / (*out)?));
    let ratios: Vec<(u64, f64)> = sizes.iter().filter_map(both).collect();
    let differ = |part: &[(u64, f64)]| {
        let mut sorted: Vec<f64> = part.iter().map(|(_, ratio)| *ratio).collect();
        sorted.sort_by(f64::total_cmp);
        let median = sorted.get(sorted.len() / 2)?;
        let differs = sorted.len() >= TOLD_APART && !(1.0 / HALVES..=HALVES).contains(median);
        differs.then_some((*median, sorted.len(), part[0].0))
    };
    differ(&ratios).or_else(|| differ(&ratios[ratios.len() * 2 / 3..])).map(|(median, count, from)| {
        let (slow, fast, times) = if median > 1.0 {
            ("in place", "out of place", median)
        } else {
            ("out of place", "in place", 1.0 / median)
        };
        Anomaly::new(
            HALVES_DIFFER,
            false,
            format!(
                "{name}: {slow} takes {times:.1} times as long as {fast}, median of {count} sizes from {} on",
                Bytes(from)
            ),
            "measure both again: another job, or memory registered for one of them only (NCCL_DEBUG_SUBSYS=REG)"
                .to_owned(),
        )
    })
}

/// Chance from which on a suspect is named.
const NAMED: f64 = 0.5;

/// Hosts and their parts that are slow, by runs over different sets of them. What is known is an error where it takes more
/// than healthy machines may lack.
pub(crate) fn members(runs: &[health::Run]) -> Vec<Anomaly> {
    let trials = health::trials(runs);
    let belief = infer(&trials, &BTreeSet::new());
    // What is in every run is told from what they share by no run yet.
    let apart = |s: &&Suspect| s.chance >= NAMED && s.runs_without > 0;
    let named: Vec<&Suspect> = belief.suspects.iter().filter(apart).collect();
    let Some(first) = named.first() else { return Vec::new() };
    let told = |s: &&Suspect| {
        format!(
            "{}: {:.2} times as long ({} runs with it, {} without; {:.0}% certain)",
            s.name,
            s.times,
            s.runs_with,
            s.runs_without,
            s.chance * 100.0
        )
    };
    let list: Vec<String> = named.iter().take(8).map(told).collect();
    let names: Vec<&str> = named.iter().map(|s| s.name.as_str()).collect();
    let beyond = |s: &&&Suspect| s.chance >= KNOWN && s.times * Limits::default().of_part(Part::Large, 0.0) > 1.0;
    let kind = match &first.members[0] {
        Member::Host { .. } | Member::Network { .. } => "slow_host",
        Member::Nic { .. } | Member::Rail { .. } => "slow_nic",
        Member::Gpu { .. } => "slow_gpu",
        Member::Link { .. } | Member::GpuLink { .. } => "slow_link",
    };
    vec![Anomaly::new(
        kind,
        named.iter().any(|s| beyond(&s)),
        format!("{} runs over different sets: {}", trials.len(), list.join("; ")),
        format!(
            "leave out {} and run again; on {}: `nvidia-smi nvlink -s`, `ibstat`, `nvidia-smi -q -d CLOCK,PERFORMANCE`, `dmesg | grep -iE 'xid|mlx5|AER'`",
            few(&names),
            if names.len() == 1 { "it" } else { "each" }
        ),
    )]
}

/// What scaling must lose at a step, beyond what is expected, to be told: a factor of 1.3.
const BREAK: f64 = 0.26;

/// Where runs of a collective over several numbers of hosts fall behind what they should.
fn scaling(runs: &[RunRows<'_, '_>]) -> Vec<Anomaly> {
    let mut by_collective: BTreeMap<String, BTreeMap<u32, Vec<&RunRows<'_, '_>>>> = BTreeMap::new();
    for run in runs {
        let row = run.rows[0].row;
        if let Some(hosts) = row.hosts {
            by_collective.entry(row.collective.to_string()).or_default().entry(hosts).or_default().push(run);
        }
    }
    by_collective.values().filter_map(scaling_of).collect()
}

fn scaling_of(by_hosts: &BTreeMap<u32, Vec<&RunRows<'_, '_>>>) -> Option<Anomaly> {
    let sizes = shared_sizes(by_hosts.values().flatten().copied());
    let size = *sizes.last()?;
    let (mut hosts, mut excess, mut list) = (Vec::new(), Vec::new(), Vec::new());
    for (&count, runs) in by_hosts {
        let of_runs = runs.iter().filter_map(|run| excess_of_large(&run.run, &sizes));
        let (least, most) = of_runs.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, m), x| (l.min(x), m.max(x)));
        // Where runs of as many hosts differ so much, it is hosts that differ.
        if most - least > BREAK {
            return None;
        }
        let run = runs[0];
        let row = run.rows[0].row;
        let point = run.run.case.points().iter().find(|p| p.question.call.size().0 == size);
        let Some((point, more)) = point.zip(excess_of_large(&run.run, &sizes)) else { continue };
        let busbw = |t: SimDuration| size as f64 / t.as_us() / 1e3 * row.collective.bus_factor(row.ranks);
        let (measured, expected) = (busbw(point.measured), busbw(point.expected.time));
        hosts.push(count);
        excess.push(more);
        list.push(format!("{count}: {measured:.1} of {expected:.1} GB/s at {}", Bytes(size)));
    }
    let at = where_scaling_breaks(&excess, BREAK)?;
    Some(Anomaly::new(
        "scaling_breaks",
        false,
        format!(
            "from {} hosts on, runs take {:.2} times as long beside the forecast as before; bus bandwidth by hosts: {}",
            hosts[at],
            (excess[at] - excess[..at].iter().copied().fold(f64::INFINITY, f64::min)).exp(),
            list.join(", ")
        ),
        format!("run {} hosts under one switch, then under two; {}", hosts[at], Cause::FabricOversubscribed.next()),
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

    use super::*;
    use crate::site::SiteSpec;
    use crate::validate::{Request, validate};
    use collcast_hwbackend::read::{ReadOptions, read_paths};
    use collcast_sim::call::Call;
    use collcast_sim::collective::DataType;
    use collcast_sim::doctor::{Question, Timed};
    use collcast_sim::predict::Choice;

    /// Goal: a fault is found in measurements alike, whether a program read them or `validate` does.
    /// Method: two GPUs whose launches are slow, measured.
    #[test]
    fn programs_and_files_are_told_the_same() {
        let path = "tests/data/doctor/p2p_disable_0_2.csv";
        let read = read_paths(&[path.into()], &ReadOptions::default()).unwrap();
        let found = diagnose(&Site::load("h200x4").unwrap(), &read, &Watch::default()).unwrap();
        assert_eq!(found.anomalies[0].kind, Cause::LaunchBound.name());
        assert_eq!(found.causes[0].causes[0].kind, found.anomalies[0].kind);
        let judged = validate(&Request::new([path])).unwrap();
        assert_eq!((judged.anomalies, judged.causes), (found.anomalies, Some(found.causes)));
        assert_eq!(judged.rows.len(), read.measurements.len());
    }

    /// Goal: a run of which no cause can be tried is said to be one. Method: all-to-all with a table of counts over eight hosts,
    /// for which four cannot stand.
    #[test]
    fn runs_without_a_cause_that_can_be_tried_are_named() -> Result<(), Box<dyn std::error::Error>> {
        let spec = SiteSpec { nodes: Some(8), gpus: Some(1), ..SiteSpec::new("dgx-h100") };
        let site = spec.load()?;
        let point = |size: u64| -> Result<Point, Error> {
            let call = Call::of_size(Collective::AllToAll, 8, Bytes(size), DataType::Float32);
            let call = Call { counts: Some(vec![call.count; 64].into()), ..call };
            let (algorithm, protocol, settings) = (Choice::Auto, Choice::Auto, *site.settings());
            let question = Question { call, together: 1, algorithm, protocol, settings, timed: Timed::Loop };
            let expected = question.predict(&site.predictor())?;
            Ok(Point { question, measured: SimDuration::from_us(3.0 * expected.time.as_us()), expected })
        };
        let points = [1 << 20, 1 << 24, 1 << 28].into_iter().map(point).collect::<Result<Vec<_>, _>>()?;
        let (name, run) = ("slow (all_to_all, 8 ranks)".to_owned(), "slow".to_owned());
        let (topology, case) = (Cow::Borrowed(&site.topology), Case::new(points).ok_or("no case")?);
        let run = Run { name, run, ranks: 8, state: State::Slow, case, said: None, topology };
        let found = examine_runs(&[run], &site.profile, &Watch::default());
        assert_eq!(found.anomalies[0].evidence, "no cause was tried");
        assert!(
            found.warnings[0].starts_with("slow (all_to_all, 8 ranks): no cause could be tried: "),
            "{:?}",
            found.warnings
        );
        Ok(())
    }
}

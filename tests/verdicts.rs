//! How often the verdict of `validate` is right: healthy runs that others published or that were measured, each as it
//! is and made sick in many ways, and the broken runs that there are.
//!
//! No profile that judges a run was fitted to it or to another of its publisher, and what healthy machines are off by
//! comes from the other publishers' runs alone.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use collcast::SiteSpec;
use collcast::health::{self, Doubt, Health, Kind, Limits, Part, Run, State};
use collcast::validate::{Request, validate};
use rayon::prelude::*;
use serde::Deserialize;

const PUBLISHED: &str = "tests/data/published";

/// Families whose profiles are further off on other publishers' runs than the machine's own: never taken by themselves.
const NOT_TAKEN: [&str; 2] = ["a100-efa-published", "hopper-efa-published"];

#[derive(Deserialize)]
struct Known {
    sick: BTreeMap<String, String>,
    untold: BTreeMap<String, String>,
    large_only: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Families {
    families: BTreeMap<String, Family>,
    left_out: BTreeMap<String, LeftOut>,
}

#[derive(Deserialize)]
struct Family {
    cases: Vec<String>,
}

#[derive(Deserialize)]
struct LeftOut {
    family: String,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Truth {
    Healthy,
    Sick,
}

/// A file, or one run of a file of many.
struct Case {
    name: String,
    publisher: String,
    profile: String,
    truth: Truth,
    large_only: bool,
    runs: Vec<Run>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn read<T: for<'d> Deserialize<'d>>(path: &str) -> T {
    toml::from_str(&std::fs::read_to_string(root().join(path)).unwrap()).unwrap()
}

/// Who measured a published run; the source where the file does not say.
fn publisher(case: &str) -> String {
    let file: BTreeMap<String, toml::Value> = read(&format!("{PUBLISHED}/{case}.toml"));
    let text = |key: &str| file.get(key).and_then(toml::Value::as_str).map(str::to_owned);
    text("publisher").unwrap_or_else(|| text("source").unwrap().split('/').next().unwrap().to_owned())
}

/// The profile of a published run: that of its family without its publisher, or the machine's own.
fn unseen(case: &str, publisher: &str, families: &Families) -> Option<String> {
    let seen = families
        .families
        .iter()
        .find(|(name, f)| !NOT_TAKEN.contains(&name.as_str()) && f.cases.iter().any(|c| c == case));
    let family = seen.map(|(name, _)| name.as_str()).or_else(|| Some(families.left_out.get(case)?.family.as_str()))?;
    let file = publisher.to_lowercase().replace(' ', "-");
    let held_out = format!("{PUBLISHED}/held_out/{family}/{file}.toml");
    let whole = format!("sim/profiles/{family}.toml");
    Some(if root().join(&held_out).is_file() { held_out } else { whole })
}

fn runs(file: &str, profiles: Vec<String>) -> Vec<Run> {
    let profiles = profiles.into_iter().map(|p| root().join(p).display().to_string()).collect();
    let request = Request {
        site: SiteSpec { profiles, ..SiteSpec::default() },
        doctor: false,
        ..Request::new([root().join(file)])
    };
    validate(&request).unwrap_or_else(|e| panic!("{file}: {e}")).runs
}

fn published() -> Vec<Case> {
    let (known, families): (Known, Families) =
        (read("tests/data/verdicts.toml"), read(&format!("{PUBLISHED}/families.toml")));
    let mut names: Vec<String> = std::fs::read_dir(root().join(PUBLISHED))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "csv"))
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    names.sort();
    for name in known.sick.keys().chain(known.untold.keys()).chain(known.large_only.keys()) {
        assert!(names.contains(name), "{name}");
    }
    let case = |name: &String| {
        let publisher = publisher(name);
        let profile = unseen(name, &publisher, &families);
        let truth = match () {
            () if known.sick.contains_key(name) => Truth::Sick,
            () => Truth::Healthy,
        };
        Case {
            runs: runs(&format!("{PUBLISHED}/{name}.csv"), profile.iter().cloned().collect()),
            name: name.clone(),
            profile: if profile.is_some() { "fitted to others' runs" } else { "the machine's" }.to_owned(),
            publisher,
            truth,
            large_only: known.large_only.contains_key(name),
        }
    };
    names.retain(|name| !known.untold.contains_key(name));
    names.par_iter().map(case).collect()
}

/// Runs measured on 2, 3 and 4 H200 that the built-in profile was not fitted to: each a case.
fn measured() -> Vec<Case> {
    let folder = "tests/data/h200x4_bench";
    let fitted = collcast::sim::profile::Profile::builtin("h200-nvswitch").unwrap();
    let fitted: BTreeSet<String> = fitted.data.iter().map(|d| d.file.clone()).collect();
    let mut files: Vec<String> = std::fs::read_dir(root().join(folder))
        .unwrap()
        .map(|entry| format!("{folder}/{}", entry.unwrap().file_name().to_string_lossy()))
        .filter(|file| file.ends_with(".csv") && !fitted.contains(file))
        .collect();
    files.sort();
    let of = |file: &String| -> Vec<Case> {
        let case = |run: Run| Case {
            name: format!("{file} {} {} {}", run.name, run.collective, run.launch),
            publisher: "ours".to_owned(),
            profile: "fitted to other runs".to_owned(),
            truth: Truth::Healthy,
            large_only: false,
            runs: vec![run],
        };
        runs(file, Vec::new())
            .into_iter()
            .filter(|run| run.points.len() >= 8 && run.points.last().is_some_and(|p| p.size_bytes >= 64 << 20))
            .map(case)
            .collect()
    };
    files.par_iter().flat_map(of).collect()
}

/// What a kind's healthy bands were off by, by publisher: logarithms of measured over expected.
type Residuals = BTreeMap<(Kind, Part), BTreeMap<String, Vec<f64>>>;

fn residuals(cases: &[Case]) -> Residuals {
    let mut residuals = Residuals::new();
    for case in cases.iter().filter(|c| c.truth == Truth::Healthy) {
        // Nothing is slow: bands are told whole.
        let judged = health::judge(&case.runs, Limits::of(1e-9));
        for (run, band) in judged.runs.iter().flat_map(|run| run.bands.iter().map(move |band| (run, band))) {
            if band.part == Part::Large || !case.large_only {
                let by = residuals.entry((run.kind.unwrap(), band.part)).or_default();
                by.entry(case.publisher.clone()).or_default().push(-band.share.ln());
            }
        }
    }
    residuals
}

/// Student's t over the normal quantile, 95% one-sided, by degrees of freedom from 1: few publishers leave more open.
const FEW: [f64; 12] = [3.84, 1.78, 1.43, 1.30, 1.22, 1.18, 1.15, 1.13, 1.11, 1.10, 1.09, 1.08];

/// The root mean square over the publishers but one, each with the same weight.
fn doubt(residuals: &Residuals, kind: Kind, part: Part, but: Option<&str>) -> f64 {
    let squares = |v: &Vec<f64>| v.iter().map(|r| r * r).sum::<f64>() / v.len() as f64;
    let of = |part| -> Vec<f64> {
        let publishers = residuals.get(&(kind, part)).into_iter().flatten();
        publishers.filter(|(name, _)| Some(name.as_str()) != but).map(|(_, v)| squares(v)).collect()
    };
    let all = of(part);
    if all.is_empty() {
        return 0.69;
    }
    (all.iter().sum::<f64>() / all.len() as f64).sqrt() * FEW[(all.len() - 1).min(FEW.len() - 1)]
}

fn doubts(residuals: &Residuals, kind: Kind, but: Option<&str>) -> Doubt {
    let of = |part| (doubt(residuals, kind, part, but) * 1000.0).round() / 1000.0;
    Doubt { small: of(Part::Small), middle: of(Part::Middle), large: of(Part::Large) }
}

/// The runs of a case as an outsider's: the doubt comes from others.
fn outside(case: &Case, residuals: &Residuals) -> Vec<Run> {
    let run = |run: &Run| {
        let kind = run.kind.unwrap();
        let known = kind.unseen().unwrap_or_else(|| panic!("{kind:?} is not in unseen.toml")).doubt;
        let others = doubts(residuals, kind, Some(&case.publisher));
        let scaled = |part| others.of(part) * run.doubt.of(part) / known.of(part);
        Run {
            doubt: Doubt { small: scaled(Part::Small), middle: scaled(Part::Middle), large: scaled(Part::Large) },
            ..run.clone()
        }
    };
    case.runs.iter().map(run).collect()
}

/// Standard normal numbers that are the same each time.
struct Draws(u64);

impl Draws {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

/// A way to be sick, and by how much the times it touches grow at least.
struct Sickness {
    name: &'static str,
    group: &'static str,
    /// The runs that have it; none where it would not show in these.
    of: Box<dyn Fn(&[Run]) -> Option<Vec<Run>> + Sync>,
}

/// Every run with times changed; none where no size of any is touched.
fn changed(runs: &[Run], change: impl Fn(&Run, usize, &mut Vec<f64>) -> bool) -> Option<Vec<Run>> {
    let (mut runs, mut touched) = (runs.to_vec(), 0);
    for run in &mut runs {
        for at in 0..run.points.len() {
            let mut times = run.points[at].measured_us.clone();
            touched += usize::from(change(run, at, &mut times));
            run.points[at].measured_us = times;
        }
    }
    (touched >= 2).then_some(runs)
}

fn scaled(times: &mut [f64], factor: f64) -> bool {
    times.iter_mut().for_each(|us| *us *= factor);
    true
}

fn sicknesses() -> Vec<Sickness> {
    let mut all = Vec::new();
    for (from, name) in [(64 << 10, "from 64 KiB"), (2 << 20, "from 2 MiB"), (64 << 20, "from 64 MiB")] {
        for (factor, group) in
            [(1.10, "by 10%"), (1.15, "by 15%"), (1.25, "by 25%"), (1.45, "by 45%"), (2.0, "by 100%")]
        {
            let of = move |runs: &[Run]| {
                changed(runs, |run, at, times| run.points[at].size_bytes >= from && scaled(times, factor))
            };
            all.push(Sickness { name, group, of: Box::new(of) });
        }
    }
    // What links or NICs bound takes longer by their share.
    let bound = |factor: f64, across: bool| {
        move |runs: &[Run]| {
            changed(runs, |run, at, times| {
                (!across || run.kind != Some(Kind::Nvlink)) && 2 * at > run.points.len() && scaled(times, factor)
            })
        }
    };
    all.push(Sickness { name: "one rail of 8 lost", group: "by 15%", of: Box::new(bound(8.0 / 7.0, true)) });
    all.push(Sickness { name: "half of the NICs", group: "by 100%", of: Box::new(bound(2.0, true)) });
    all.push(Sickness { name: "one slow host", group: "by 25%", of: Box::new(bound(1.25, false)) });
    let latency = |runs: &[Run]| {
        changed(runs, |run, _, times| {
            let least = run.points[0].measured_us.iter().copied().fold(f64::INFINITY, f64::min);
            times.iter_mut().for_each(|us| *us += least);
            run.points[0].size_bytes <= 1024
        })
    };
    all.push(Sickness { name: "latency doubled", group: "latency", of: Box::new(latency) });
    let noisy = |runs: &[Run]| {
        changed(runs, |run, at, times| {
            let mut draws = Draws(run.points[at].size_bytes ^ u64::from(run.ranks) << 40);
            times.iter_mut().for_each(|us| *us *= (0.25 * draws.normal().abs()).exp());
            times.len() > 1
        })
    };
    all.push(Sickness { name: "noisy by 25%", group: "noisy", of: Box::new(noisy) });
    all
}

#[derive(Default, Clone, Copy, Debug)]
struct Tally {
    slow: usize,
    pass: usize,
    unsure: usize,
}

impl Tally {
    fn add(&mut self, health: &Health) {
        match health.state {
            State::Slow => self.slow += 1,
            State::Pass => self.pass += 1,
            State::Unsure => self.unsure += 1,
        }
    }

    fn all(self) -> usize {
        self.slow + self.pass + self.unsure
    }
}

/// The file of what healthy machines are off by, as the published runs have it today.
fn unseen_file(residuals: &Residuals) -> String {
    let mut text = String::from(
        "# How far healthy runs that others published lie from forecasts by profiles that had not seen their publisher: the\n\
         # root mean square over publishers of ln(measured / expected), for the median of a band, and wider where there are\n\
         # few. `COLLCAST_UPDATE=1 cargo test --test verdicts` writes it anew.\n",
    );
    let kinds: BTreeSet<Kind> = residuals.keys().map(|(kind, _)| *kind).collect();
    for kind in kinds {
        let large = residuals.get(&(kind, Part::Large));
        let runs: usize = large.into_iter().flat_map(BTreeMap::values).map(Vec::len).sum();
        let publishers = large.map_or(0, BTreeMap::len);
        let Doubt { small, middle, large } = doubts(residuals, kind, None);
        let kind = serde_json::to_value(kind).unwrap();
        writeln!(
            text,
            "\n[[kinds]]\nkind = {kind}\nruns = {runs}\npublishers = {publishers}\n\
             doubt = {{ small = {small}, middle = {middle}, large = {large} }}"
        )
        .unwrap();
    }
    text
}

/// Kinds of which several publishers' runs are known, and no one stands apart: these a verdict is for.
const KNOWN_KINDS: [Kind; 2] = [Kind::Nvlink, Kind::Rdma];

/// Goal: a machine that is slow by a quarter is found, one by 15% in nine of ten cases in which anything is said, and no
/// healthy one is called slow, by others' runs alone; what is known of healthy machines is what the data say.
#[test]
fn verdicts_are_right() {
    let published = published();
    let residuals = residuals(&published);
    let (path, text) = (root().join("src/health/unseen.toml"), unseen_file(&residuals));
    if std::env::var_os("COLLCAST_UPDATE").is_some() {
        std::fs::write(&path, text).unwrap();
        return;
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), text, "COLLCAST_UPDATE=1 cargo test --test verdicts writes it");
    let cases: Vec<Case> = published.into_iter().chain(measured()).collect();
    let mut table: BTreeMap<(bool, Kind, String, &str), Tally> = BTreeMap::new();
    for case in &cases {
        let runs = outside(case, &residuals);
        let kind = runs.iter().map(|r| r.kind.unwrap()).max().unwrap();
        let mut add = |group: &'static str, what: &str, runs: &[Run]| {
            let health = health::judge(runs, Limits::default());
            let key = (KNOWN_KINDS.contains(&kind), kind, case.profile.clone(), group);
            table.entry(key).or_default().add(&health);
            let wrong = if group == HEALTHY { State::Slow } else { State::Pass };
            if health.state == wrong {
                println!("{:?} where it is {group} {what}: {} ({kind:?})", health.state, case.name);
            }
        };
        match case.truth {
            Truth::Sick => add("broken", "", &runs),
            Truth::Healthy => {
                add(HEALTHY, "", &runs);
                for sickness in sicknesses() {
                    if let Some(sick) = (sickness.of)(&runs) {
                        add(sickness.group, sickness.name, &sick);
                    }
                }
            }
        }
    }
    println!("| what joins the ranks | profile | run | runs | slow | pass | unsure |\n|---|---|---|---|---|---|---|");
    for ((_, kind, profile, group), t) in &table {
        println!("| {} | {profile} | {group} | {} | {} | {} | {} |", kind.name(), t.all(), t.slow, t.pass, t.unsure);
    }
    let of = |groups: &[&str], known: bool| {
        let rows = table.iter().filter(|((k, .., group), _)| (*k || !known) && groups.contains(group));
        rows.fold(Tally::default(), |sum, (_, t)| Tally {
            slow: sum.slow + t.slow,
            pass: sum.pass + t.pass,
            unsure: sum.unsure + t.unsure,
        })
    };
    for (what, known) in [("all", false), ("known kinds", true)] {
        for groups in
            [&[HEALTHY][..], &["by 10%"], &["by 15%"], &["by 25%", "by 45%", "by 100%"], &["latency"], &["noisy"]]
        {
            let t = of(groups, known);
            println!("{what}, {}: {} slow, {} pass, {} unsure of {}", groups[0], t.slow, t.pass, t.unsure, t.all());
        }
    }
    let share = |part: usize, of: usize| part as f64 / of.max(1) as f64;
    let healthy = of(&[HEALTHY], false);
    assert!(healthy.all() >= 40 && share(healthy.slow, healthy.all()) <= 0.02, "{healthy:?}");
    let sick = of(&["by 25%", "by 45%", "by 100%", "broken"], false);
    assert!(sick.all() >= 200 && share(sick.slow, sick.slow + sick.pass) >= 0.98, "{sick:?}");
    let sick = of(&["by 15%"], false);
    assert!(share(sick.slow, sick.slow + sick.pass) >= 0.90, "{sick:?}");
    let known = of(&["by 25%", "by 45%", "by 100%"], true);
    assert!(share(known.slow, known.all()) >= 0.98, "{known:?}");
}

const HEALTHY: &str = "healthy";

//! What differs from the baseline, whether it matters, and what caused it.

use std::collections::BTreeMap;
use std::fmt;

use collcast_sim::collective::Collective;
use collcast_sim::model::nccl::{Version, settings};
use collcast_sim::predict::Predictor;
use collcast_sim::profile::{Constant, Profile};

use super::baseline::{Baseline, Entry, Recorded, digits, size_name, span};
use super::suite::Tolerance;
use super::today::{Machine, Picked, Run, Setup, pick, time, time_as, time_now};
use crate::error::CliError;

/// What a forecast depends on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Cause {
    Topology,
    Profile,
    Version,
    Settings,
    Model,
    /// The measured files.
    Measurements,
}

impl Cause {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Topology => "topology",
            Self::Profile => "profile",
            Self::Version => "NCCL version",
            Self::Settings => "settings",
            Self::Model => "our model",
            Self::Measurements => "measurements",
        }
    }
}

/// One difference from the baseline.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Finding {
    pub(crate) kind: Kind,
    pub(crate) machine: String,
    /// `2.26.2`, or `2.26.2 -> 2.28.9`.
    pub(crate) nccl: String,
    pub(crate) collective: String,
    /// `64KiB`, or a range.
    pub(crate) size: String,
    pub(crate) before: String,
    pub(crate) after: String,
    /// Time after over time before, less 1. For a choice: its predicted loss, where that is known.
    /// For measurements: points of median error.
    pub(crate) change: Option<f64>,
    /// One is the cause, several may be; none where no recorded input changed.
    pub(crate) causes: Vec<Cause>,
    pub(crate) failed: bool,
}

/// Kinds of differences, worst first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Kind {
    Choice,
    Slower,
    Error,
    Faster,
    /// A time beyond tolerance, by our own doing and with the same choice.
    ModelMoved,
    New,
    Removed,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Choice => "choice changed",
            Self::Slower => "slower",
            Self::Error => "error changed",
            Self::Faster => "faster",
            Self::ModelMoved => "model moved, choice same",
            Self::New => "new",
            Self::Removed => "removed",
        }
    }
}

/// A signed percentage.
pub(crate) fn signed(fraction: f64) -> String {
    format!("{:+.1}%", fraction * 100.0)
}

impl fmt::Display for Finding {
    /// `slower at 64KiB: 20.1 us -> 22.4 us (+11.4%), caused by profile`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        if !self.size.is_empty() {
            write!(f, " at {}", self.size)?;
        }
        match self.kind {
            Kind::New | Kind::Removed => return Ok(()),
            _ => write!(f, ": {} -> {}", self.before, self.after)?,
        }
        match (self.kind, self.change) {
            (Kind::Choice, Some(loss)) => write!(f, " ({} in time)", signed(loss))?,
            (Kind::Choice, None) => f.write_str(" (loss not known)")?,
            (Kind::Slower | Kind::Faster | Kind::ModelMoved, Some(change)) => write!(f, " ({})", signed(change))?,
            _ => {}
        }
        match self.causes.len() {
            1 => write!(f, ", caused by {}", self.cause()),
            _ => write!(f, ", {}", self.cause()),
        }
    }
}

impl Finding {
    /// `profile`, or `several changed: topology, profile`.
    pub(crate) fn cause(&self) -> String {
        match self.causes.as_slice() {
            [] => "cause not known: no recorded input changed".to_owned(),
            [one] => one.name().to_owned(),
            several => {
                let names: Vec<&str> = several.iter().map(|c| c.name()).collect();
                format!("several changed: {}", names.join(", "))
            }
        }
    }
}

/// An input of a machine that is not what it was.
#[derive(Clone, Debug)]
pub(crate) struct Changed {
    pub(crate) machine: String,
    pub(crate) cause: Cause,
    pub(crate) what: String,
}

/// What came of one machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Judged {
    pub(crate) changed: Vec<Changed>,
    pub(crate) findings: Vec<Finding>,
}

/// Everything about a machine and its counterpart in the baseline.
struct Pair<'a, 's> {
    machine: &'a Machine<'s>,
    today: &'a Recorded,
    old: &'a Recorded,
    tolerance: Tolerance,
    /// The inputs that changed, the version aside.
    changed: Vec<Cause>,
    old_profile: Option<Profile>,
    old_run: Option<Run>,
}

/// Holds one machine of today against the baseline; none of that name is new.
pub(crate) fn judge(
    machine: &Machine<'_>,
    today: &Recorded,
    baseline: &Baseline,
    tolerance: Tolerance,
) -> Result<Judged, CliError> {
    let name = &machine.spec.name;
    let whole = |kind, nccl: &str| Finding {
        kind,
        machine: name.clone(),
        nccl: nccl.to_owned(),
        collective: String::new(),
        size: String::new(),
        before: String::new(),
        after: String::new(),
        change: None,
        causes: Vec::new(),
        failed: false,
    };
    let mut judged = Judged::default();
    let Some(old) = baseline.machines.get(name) else {
        judged.findings.push(whole(Kind::New, ""));
        return Ok(judged);
    };
    let constants = machine.constants();
    let old_constants = baseline.profiles.get(&old.profile);
    let mut note = |cause: Cause, what: String| judged.changed.push(Changed { machine: name.clone(), cause, what });
    if old.topology != today.topology {
        note(Cause::Topology, links_changed(old, today));
    }
    // Another constant may be new, and what it replaced is not known: then nothing is put back.
    let mut old_profile = None;
    match old_constants {
        Some(old_constants) if old_constants.hash == constants.hash => {}
        None => note(Cause::Profile, "not in the baseline".to_owned()),
        Some(old_constants) => {
            note(Cause::Profile, constants_changed(&old_constants.values, &constants.values));
            if old_constants.values.keys().eq(constants.values.keys()) {
                let mut profile = machine.profile.clone();
                for &constant in Constant::ALL {
                    profile.parameters.set(constant, old_constants.values[constant.name()]);
                }
                old_profile = Some(profile);
            }
        }
    }
    let mut old_run = None;
    if old.settings != today.settings {
        note(Cause::Settings, settings_changed(old, today));
        // With the same variables, a file that one of them names has changed.
        if (&old.env, &old.launch) != (&today.env, &today.launch) {
            let env = old.env.iter().filter_map(|text| settings::pair(text).ok()).collect();
            old_run = Some(Run { launch: old.launch.clone(), env });
        }
    }
    if baseline.model != collcast_sim::MODEL {
        note(Cause::Model, format!("{} -> {}", baseline.model, collcast_sim::MODEL));
    }
    let changed = judged.changed.iter().map(|c| c.cause).collect();
    let pair = Pair { machine, today, old, tolerance, changed, old_profile, old_run };

    for (before, after) in versions(old, today) {
        let (Some(before), Some(after)) = (before, after) else {
            let (kind, version) = match (before, after) {
                (Some(before), _) => (Kind::Removed, before),
                (_, after) => (Kind::New, after.unwrap_or_default()),
            };
            judged.findings.push(whole(kind, version));
            continue;
        };
        if before != after {
            let what = format!("{before} -> {after}");
            judged.changed.push(Changed { machine: name.clone(), cause: Cause::Version, what });
        }
        judged.findings.extend(pair.of_version(before, after)?);
    }
    Ok(judged)
}

/// Versions that answer to each other: the same one, else in order those that went and came.
fn versions<'a>(old: &'a Recorded, today: &'a Recorded) -> Vec<(Option<&'a str>, Option<&'a str>)> {
    let order = |versions: &mut Vec<&'a str>| versions.sort_by_key(|v| v.parse::<Version>().unwrap_or_default());
    let missing = |from: &'a Recorded, of: &Recorded| -> Vec<&'a str> {
        let mut versions: Vec<&str> =
            from.nccl.keys().filter(|v| !of.nccl.contains_key(*v)).map(String::as_str).collect();
        order(&mut versions);
        versions
    };
    let (gone, came) = (missing(old, today), missing(today, old));
    let mut same: Vec<&str> = today.nccl.keys().filter(|v| old.nccl.contains_key(*v)).map(String::as_str).collect();
    order(&mut same);
    let mut out: Vec<_> = same.into_iter().map(|v| (Some(v), Some(v))).collect();
    for index in 0..gone.len().max(came.len()) {
        out.push((gone.get(index).copied(), came.get(index).copied()));
    }
    out
}

/// Which inputs are as they were.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Back {
    profile: bool,
    version: bool,
    settings: bool,
}

impl Back {
    fn of(causes: &[Cause]) -> Self {
        let has = |cause| causes.contains(&cause);
        Self { profile: has(Cause::Profile), version: has(Cause::Version), settings: has(Cause::Settings) }
    }
}

/// The machine with some inputs put back, each made when it is first asked for.
struct Lab<'p, 'a, 's> {
    pair: &'p Pair<'a, 's>,
    versions: (Version, Version),
    made: BTreeMap<Back, (Predictor<'p>, Setup)>,
}

impl<'p> Lab<'p, '_, '_> {
    fn with(&mut self, back: Back) -> Result<&(Predictor<'p>, Setup), CliError> {
        if !self.made.contains_key(&back) {
            let pair = self.pair;
            let profile = pair.old_profile.as_ref().filter(|_| back.profile).unwrap_or(&pair.machine.profile);
            let run = pair.old_run.as_ref().filter(|_| back.settings).unwrap_or(&pair.machine.settings);
            let version = if back.version { self.versions.0 } else { self.versions.1 };
            let setup = pair.machine.setup(version, run)?;
            let predictor = Predictor::new(&pair.machine.topology, profile).with_tuner(setup.tuner.clone());
            self.made.insert(back, (predictor, setup));
        }
        Ok(&self.made[&back])
    }

    fn pick(&mut self, back: Back, collective: Collective, size: u64) -> Result<Picked, CliError> {
        let call = self.pair.machine.call(collective, size);
        let (predictor, setup) = self.with(back)?;
        Ok(pick(predictor, &setup.settings, &call)?)
    }

    fn time(&mut self, back: Back, collective: Collective, size: u64) -> Result<Option<f64>, CliError> {
        let call = self.pair.machine.call(collective, size);
        let (predictor, setup) = self.with(back)?;
        Ok(time(predictor, &setup.settings, &call)?)
    }
}

impl<'a, 's> Pair<'a, 's> {
    fn of_version(&self, before: &str, after: &str) -> Result<Vec<Finding>, CliError> {
        let (old, today) = (&self.old.nccl[before], &self.today.nccl[after]);
        let parse = |text: &str| text.parse::<Version>().unwrap_or_default();
        let mut lab = Lab { pair: self, versions: (parse(before), parse(after)), made: BTreeMap::new() };
        let mut changed = self.changed.clone();
        if before != after {
            changed.push(Cause::Version);
        }
        changed.sort();
        let shown = if before == after { after.to_owned() } else { format!("{before} -> {after}") };
        let blank = |kind, collective: &str| Finding {
            kind,
            machine: self.machine.spec.name.clone(),
            nccl: shown.clone(),
            collective: collective.to_owned(),
            size: String::new(),
            before: String::new(),
            after: String::new(),
            change: None,
            causes: Vec::new(),
            failed: false,
        };
        let mut findings: Vec<Finding> =
            old.keys().filter(|name| !today.contains_key(*name)).map(|name| blank(Kind::Removed, name)).collect();
        for &collective in &self.machine.spec.collectives {
            let name = collective.name();
            let Some(entry) = today.get(name) else { continue };
            let Some(old) = old.get(name) else {
                findings.push(blank(Kind::New, name));
                continue;
            };
            self.choices(&mut lab, collective, (old, entry), &changed, &blank, &mut findings)?;
            self.times(&mut lab, collective, (old, entry), &changed, &blank, &mut findings)?;
        }
        Ok(findings)
    }

    fn choices(
        &self,
        lab: &mut Lab<'_, 'a, 's>,
        collective: Collective,
        (old, today): (&Entry, &Entry),
        changed: &[Cause],
        blank: &dyn Fn(Kind, &str) -> Finding,
        findings: &mut Vec<Finding>,
    ) -> Result<(), CliError> {
        let at = |size: &u64| Some((*size, old.choice(*size)?, today.choice(*size)?));
        let sizes: Vec<(u64, &str, &str)> = self.machine.spec.range.iter().filter_map(at).collect();
        for run in sizes.chunk_by(|a, b| (a.1, a.2) == (b.1, b.2)).filter(|run| run[0].1 != run[0].2) {
            let (first, middle, last) = (run[0].0, run[run.len() / 2].0, run[run.len() - 1].0);
            let (Ok(before), Ok(after)) = (run[0].1.parse::<Picked>(), run[0].2.parse::<Picked>()) else { continue };
            let mut loss: Option<f64> = None;
            for size in [first, middle, last] {
                let call = self.machine.call(collective, size);
                let (predictor, setup) = lab.with(Back::default())?;
                let was = time_as(predictor, &setup.settings, &call, before, after);
                if let (Some(was), Some(now)) = (was, time_now(predictor, &setup.settings, &call)) {
                    loss = Some(loss.unwrap_or(f64::MIN).max(now / was - 1.0));
                }
            }
            // Restored is what makes the same choice again at both ends; of no effect, what leaves it.
            let causes = attribute(changed, self, |back| {
                let picked = [lab.pick(back, collective, first)?, lab.pick(back, collective, last)?];
                Ok(if picked == [before; 2] {
                    Effect::Restores
                } else if picked == [after; 2] {
                    Effect::Nothing
                } else {
                    Effect::Part
                })
            })?;
            findings.push(Finding {
                size: span(first, last),
                before: before.to_string(),
                after: after.to_string(),
                change: loss,
                failed: after == Picked::Fails || loss.is_some_and(|loss| loss > self.tolerance.choice),
                causes,
                ..blank(Kind::Choice, collective.name())
            });
        }
        Ok(())
    }

    fn times(
        &self,
        lab: &mut Lab<'_, 'a, 's>,
        collective: Collective,
        (old, today): (&Entry, &Entry),
        changed: &[Cause],
        blank: &dyn Fn(Kind, &str) -> Finding,
        findings: &mut Vec<Finding>,
    ) -> Result<(), CliError> {
        let (before, after) = (old.times(), today.times());
        for (sizes, others, kind) in [(&after, &before, Kind::New), (&before, &after, Kind::Removed)] {
            let alone: Vec<String> = sizes.keys().filter(|s| !others.contains_key(s)).map(|&s| size_name(s)).collect();
            if !alone.is_empty() {
                findings.push(Finding { size: alone.join(", "), ..blank(kind, collective.name()) });
            }
        }
        for (&size, &now) in &after {
            let Some(&was) = before.get(&size) else { continue };
            let change = now / was - 1.0;
            if change.abs() <= self.tolerance.time {
                continue;
            }
            let tolerance = self.tolerance.time;
            let causes = attribute(changed, self, |back| {
                let Some(time) = lab.time(back, collective, size)?.map(digits) else { return Ok(Effect::Part) };
                Ok(if (time / was - 1.0).abs() <= tolerance {
                    Effect::Restores
                } else if (time / now).ln().abs() < 0.5 * (was / now).ln().abs() {
                    Effect::Nothing
                } else {
                    Effect::Part
                })
            })?;
            let same_choice = old.choice(size) == today.choice(size);
            let kind = match change > 0.0 {
                _ if same_choice && causes == [Cause::Model] => Kind::ModelMoved,
                true => Kind::Slower,
                false => Kind::Faster,
            };
            findings.push(Finding {
                size: size_name(size),
                before: format!("{was} us"),
                after: format!("{now} us"),
                change: Some(change),
                failed: kind == Kind::Slower,
                causes,
                ..blank(kind, collective.name())
            });
        }
        Ok(())
    }
}

/// What putting inputs back does to a finding.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    Restores,
    Nothing,
    Part,
}

/// The inputs that caused a finding: the one whose return undoes it; those that cannot be put
/// back, where the return of all others does nothing; else all that may have.
fn attribute(
    changed: &[Cause],
    pair: &Pair<'_, '_>,
    mut effect: impl FnMut(Back) -> Result<Effect, CliError>,
) -> Result<Vec<Cause>, CliError> {
    if changed.len() <= 1 {
        return Ok(changed.to_vec());
    }
    let (can, cannot): (Vec<Cause>, Vec<Cause>) = changed.iter().partition(|cause| match cause {
        Cause::Profile => pair.old_profile.is_some(),
        Cause::Settings => pair.old_run.is_some(),
        Cause::Version => true,
        Cause::Topology | Cause::Model | Cause::Measurements => false,
    });
    // An old setting may be none for a new version: then its return says nothing.
    let mut effect = |back| match effect(back) {
        Err(error) if error.code() != 4 => Ok(Effect::Part),
        effect => effect,
    };
    let mut alone = Vec::new();
    for &cause in &can {
        if effect(Back::of(&[cause]))? == Effect::Restores {
            alone.push(cause);
        }
    }
    if alone.len() == 1 || can.is_empty() {
        return Ok(if can.is_empty() { cannot } else { alone });
    }
    Ok(match effect(Back::of(&can))? {
        Effect::Nothing if !cannot.is_empty() => cannot,
        Effect::Restores => can,
        _ => changed.to_vec(),
    })
}

fn links_changed(old: &Recorded, today: &Recorded) -> String {
    let less = |a: &[String], b: &[String]| a.iter().filter(|l| !b.contains(l)).cloned().collect::<Vec<_>>().join(", ");
    let (gone, came) = (less(&old.links, &today.links), less(&today.links, &old.links));
    match (gone.is_empty(), came.is_empty()) {
        (true, true) => "the same links, other devices or places".to_owned(),
        (true, false) => format!("new: {came}"),
        (false, true) => format!("gone: {gone}"),
        (false, false) => format!("{gone} -> {came}"),
    }
}

/// Constants that are named in one line.
const CONSTANTS_SHOWN: usize = 4;

fn constants_changed(old: &BTreeMap<String, f64>, today: &BTreeMap<String, f64>) -> String {
    let mut names: Vec<&String> = old.keys().chain(today.keys()).collect();
    names.sort();
    names.dedup();
    names.retain(|name| old.get(*name) != today.get(*name));
    let value =
        |values: &BTreeMap<String, f64>, name| values.get(name).map_or_else(|| "none".to_owned(), f64::to_string);
    let shown: Vec<String> = (names.iter().take(CONSTANTS_SHOWN))
        .map(|&name| format!("{name} {} -> {}", value(old, name), value(today, name)))
        .collect();
    let more = names.len().saturating_sub(CONSTANTS_SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", shown.join(", "))
}

fn settings_changed(old: &Recorded, today: &Recorded) -> String {
    let pairs = |recorded: &Recorded| -> BTreeMap<String, String> {
        recorded.env.iter().filter_map(|text| settings::pair(text).ok()).collect()
    };
    let (before, after) = (pairs(old), pairs(today));
    let mut out = Vec::new();
    if old.launch != today.launch {
        out.push(format!("launch {} -> {}", old.launch, today.launch));
    }
    let mut names: Vec<&String> = before.keys().chain(after.keys()).collect();
    names.sort();
    names.dedup();
    for name in names {
        let value = |of: &BTreeMap<String, String>| of.get(name).cloned().unwrap_or_else(|| "unset".to_owned());
        if before.get(name) != after.get(name) {
            out.push(format!("{name} {} -> {}", value(&before), value(&after)));
        }
    }
    if out.is_empty() { "a file that a variable names".to_owned() } else { out.join(", ") }
}

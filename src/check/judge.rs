//! What differs from the baseline, whether it matters, and what caused it.

use std::collections::BTreeMap;

use collcast_sim::collective::Collective;
use collcast_sim::nccl::{Version, settings};
use collcast_sim::predict::Predictor;
use collcast_sim::profile::{Constant, Profile};

use super::baseline::{Baseline, Constants, Entry, Recorded, digits};
use super::changed::{Changed, InputChange};
use super::finding::{Cause, Finding, Versions, What};
use super::suite::Tolerance;
use super::today::{Machine, Picked, Setup, pick, time, time_as, time_now};
use crate::error::Error;
use crate::site::Told;

/// What came of one machine.
#[derive(Clone, Debug, Default)]
pub(super) struct Judged {
    pub(super) changed: Vec<Changed>,
    pub(super) findings: Vec<Finding>,
}

/// Holds one machine of today against the baseline; none of that name is new.
pub(super) fn judge(
    machine: &Machine<'_>,
    today: &Recorded,
    baseline: &Baseline,
    tolerance: Tolerance,
) -> Result<Judged, Error> {
    let name = &machine.spec.name;
    let mut judged = Judged::default();
    let Some(old) = baseline.machines.get(name) else {
        judged.findings.push(Finding::new(name, What::NEW));
        return Ok(judged);
    };
    let before = Before::of(machine, today, old, baseline);
    for (old_version, version) in versions(old, today) {
        let of_one = |version, what| Finding { nccl: Some(Versions::one(version)), ..Finding::new(name, what) };
        let nccl = match (old_version, version) {
            (Some(before), Some(after)) => Versions { before: before.to_owned(), after: after.to_owned() },
            (Some(before), None) => {
                judged.findings.push(of_one(before, What::REMOVED));
                continue;
            }
            (None, after) => {
                judged.findings.push(of_one(after.unwrap_or_default(), What::NEW));
                continue;
            }
        };
        let mut changed: Vec<Cause> = before.changed.iter().map(|c| c.what.cause()).collect();
        if nccl.before != nccl.after {
            judged.changed.push(Changed { machine: name.clone(), what: InputChange::Version(nccl.clone()) });
            changed.push(Cause::Version);
        }
        changed.sort();
        let entries = (&old.nccl[&nccl.before], &today.nccl[&nccl.after]);
        judged.findings.extend(Pair { machine, before: &before, tolerance, nccl, changed }.findings(entries)?);
    }
    judged.changed.extend(before.changed);
    Ok(judged)
}

/// What a machine was when the baseline was written, as far as that is another one today.
struct Before {
    /// The inputs that changed, the version aside.
    changed: Vec<Changed>,
    /// The profile; none where it is the same, or cannot be put back.
    profile: Option<Profile>,
    /// The settings; none where they are the same, or cannot be put back.
    run: Option<Setup>,
}

impl Before {
    fn of(machine: &Machine<'_>, today: &Recorded, old: &Recorded, baseline: &Baseline) -> Self {
        let mut before = Self { changed: Vec::new(), profile: None, run: None };
        let mut note = |what| before.changed.push(Changed { machine: machine.spec.name.clone(), what });
        if old.topology != today.topology {
            note(InputChange::links(old, today));
        }
        let constants = machine.constants();
        match baseline.profiles.get(&old.profile) {
            Some(old) if old.hash == constants.hash => {}
            None => note(InputChange::NewProfile),
            Some(old) => {
                note(InputChange::constants(&old.values, &constants.values));
                before.profile = with_constants(&machine.site.profile, old, &constants);
            }
        }
        if old.settings != today.settings {
            note(InputChange::settings(old, today));
            // With the same variables, a file that one of them names has changed.
            if (&old.env, &old.launch) != (&today.env, &today.launch) {
                let env = old.env.iter().filter_map(|text| settings::pair(text).ok()).collect();
                before.run = old.launch.parse().ok().map(|launch| Setup { launch, env });
            }
        }
        if baseline.model != collcast_sim::MODEL {
            note(InputChange::Model { before: baseline.model.clone(), after: collcast_sim::MODEL.to_owned() });
        }
        before
    }
}

/// A profile with old constants. Another constant may be new, and what it replaced is not known: then nothing is put back.
fn with_constants(profile: &Profile, old: &Constants, today: &Constants) -> Option<Profile> {
    if !old.values.keys().eq(today.values.keys()) {
        return None;
    }
    let mut profile = profile.clone();
    for &constant in Constant::ALL {
        profile.parameters.set(constant, old.values[constant.name()]);
    }
    Some(profile)
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

/// A machine and its counterpart in the baseline, with versions of NCCL that answer to each other.
struct Pair<'a, 's> {
    machine: &'a Machine<'s>,
    before: &'a Before,
    tolerance: Tolerance,
    nccl: Versions,
    /// The inputs that changed, worst first.
    changed: Vec<Cause>,
}

/// The machine with some inputs put back, each made when it is first asked for.
struct Lab<'p, 'a, 's> {
    pair: &'p Pair<'a, 's>,
    made: BTreeMap<Back, (Predictor<'p>, Told)>,
}

impl<'p> Lab<'p, '_, '_> {
    fn with(&mut self, back: Back) -> Result<&(Predictor<'p>, Told), Error> {
        if !self.made.contains_key(&back) {
            let Pair { machine, before, nccl, .. } = self.pair;
            let profile = before.profile.as_ref().filter(|_| back.profile).unwrap_or(&machine.site.profile);
            let run = before.run.as_ref().filter(|_| back.settings).unwrap_or(&machine.run);
            let version = if back.version { &nccl.before } else { &nccl.after };
            let told = machine.told(version.parse::<Version>().unwrap_or_default(), run)?;
            self.made.insert(back, (machine.predictor(profile, &told), told));
        }
        Ok(&self.made[&back])
    }

    fn pick(&mut self, back: Back, collective: Collective, size: u64) -> Result<Picked, Error> {
        let call = self.pair.machine.call(collective, size);
        let (predictor, told) = self.with(back)?;
        Ok(pick(predictor, &told.settings, &call)?)
    }

    fn time(&mut self, back: Back, collective: Collective, size: u64) -> Result<Option<f64>, Error> {
        let call = self.pair.machine.call(collective, size);
        let (predictor, told) = self.with(back)?;
        Ok(time(predictor, &told.settings, &call)?)
    }

    /// The largest predicted loss at some sizes of what NCCL picks today, over what it picked before.
    fn loss(&mut self, collective: Collective, sizes: [u64; 3], picked: [Picked; 2]) -> Result<Option<f64>, Error> {
        let [before, after] = picked;
        let machine = self.pair.machine;
        let (predictor, told) = self.with(Back::default())?;
        let of_size = |size| {
            let call = machine.call(collective, size);
            let was = time_as(predictor, &told.settings, &call, before, after)?;
            Some(time_now(predictor, &told.settings, &call)? / was - 1.0)
        };
        Ok(sizes.into_iter().filter_map(of_size).reduce(f64::max))
    }
}

impl<'a, 's> Pair<'a, 's> {
    /// What differs in the entries of these versions.
    fn findings(
        &self,
        (old, today): (&BTreeMap<Collective, Entry>, &BTreeMap<Collective, Entry>),
    ) -> Result<Vec<Finding>, Error> {
        let mut lab = Lab { pair: self, made: BTreeMap::new() };
        let gone = old.keys().filter(|collective| !today.contains_key(collective));
        let mut findings: Vec<Finding> = gone.map(|&collective| self.finding(collective, What::REMOVED)).collect();
        for &collective in &self.machine.spec.collectives {
            match (old.get(&collective), today.get(&collective)) {
                (_, None) => {}
                (None, Some(_)) => findings.push(self.finding(collective, What::NEW)),
                (Some(old), Some(today)) => {
                    findings.extend(self.choices(&mut lab, collective, (old, today))?);
                    findings.extend(self.only_in_one(collective, (old, today)));
                    findings.extend(self.times(&mut lab, collective, (old, today))?);
                }
            }
        }
        Ok(findings)
    }

    fn finding(&self, collective: Collective, what: What) -> Finding {
        let (nccl, collective) = (Some(self.nccl.clone()), Some(collective));
        Finding { nccl, collective, ..Finding::new(&self.machine.spec.name, what) }
    }

    /// Ranges of sizes over which NCCL chooses something else.
    fn choices(
        &self,
        lab: &mut Lab<'_, 'a, 's>,
        collective: Collective,
        (old, today): (&Entry, &Entry),
    ) -> Result<Vec<Finding>, Error> {
        let mut findings = Vec::new();
        let at = |size: &u64| Some((*size, old.choice(*size)?, today.choice(*size)?));
        let sizes: Vec<(u64, &str, &str)> = self.machine.spec.range.iter().filter_map(at).collect();
        for run in sizes.chunk_by(|a, b| (a.1, a.2) == (b.1, b.2)).filter(|run| run[0].1 != run[0].2) {
            let (first, middle, last) = (run[0].0, run[run.len() / 2].0, run[run.len() - 1].0);
            let (Ok(before), Ok(after)) = (run[0].1.parse::<Picked>(), run[0].2.parse::<Picked>()) else { continue };
            let loss = lab.loss(collective, [first, middle, last], [before, after])?;
            // Restored is what makes the same choice again at both ends; of no effect, what leaves it.
            let causes = attribute(&self.changed, self.before, |back| {
                let picked = [lab.pick(back, collective, first)?, lab.pick(back, collective, last)?];
                Ok(if picked == [before; 2] {
                    Effect::Restores
                } else if picked == [after; 2] {
                    Effect::Nothing
                } else {
                    Effect::Part
                })
            })?;
            let what = What::Choice { from_bytes: first, to_bytes: last, before, after, loss };
            findings.push(Finding {
                failed: after == Picked::Fails || loss.is_some_and(|loss| loss > self.tolerance.choice),
                causes,
                ..self.finding(collective, what)
            });
        }
        Ok(findings)
    }

    /// Sizes whose times only one of both has.
    fn only_in_one(&self, collective: Collective, (old, today): (&Entry, &Entry)) -> Vec<Finding> {
        let (before, after) = (old.times(), today.times());
        let missing = |from: &BTreeMap<u64, f64>, of: &BTreeMap<u64, f64>| -> Vec<u64> {
            from.keys().filter(|size| !of.contains_key(size)).copied().collect()
        };
        let (new, removed) = (missing(&after, &before), missing(&before, &after));
        let mut findings = Vec::new();
        if !new.is_empty() {
            findings.push(self.finding(collective, What::New { sizes_bytes: new }));
        }
        if !removed.is_empty() {
            findings.push(self.finding(collective, What::Removed { sizes_bytes: removed }));
        }
        findings
    }

    /// Times beyond tolerance.
    fn times(
        &self,
        lab: &mut Lab<'_, 'a, 's>,
        collective: Collective,
        (old, today): (&Entry, &Entry),
    ) -> Result<Vec<Finding>, Error> {
        let (before, tolerance) = (old.times(), self.tolerance.time);
        let mut findings = Vec::new();
        for (size, now) in today.times() {
            let Some(&was) = before.get(&size) else { continue };
            if (now / was - 1.0).abs() <= tolerance {
                continue;
            }
            let causes = attribute(&self.changed, self.before, |back| {
                let Some(time) = lab.time(back, collective, size)?.map(digits) else { return Ok(Effect::Part) };
                Ok(if (time / was - 1.0).abs() <= tolerance {
                    Effect::Restores
                } else if (time / now).ln().abs() < 0.5 * (was / now).ln().abs() {
                    Effect::Nothing
                } else {
                    Effect::Part
                })
            })?;
            let model_only = old.choice(size) == today.choice(size) && causes == [Cause::Model];
            let what = What::Time { size_bytes: size, before_us: was, after_us: now, model_only };
            let failed = now > was && !model_only;
            findings.push(Finding { causes, failed, ..self.finding(collective, what) });
        }
        Ok(findings)
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
    before: &Before,
    mut effect: impl FnMut(Back) -> Result<Effect, Error>,
) -> Result<Vec<Cause>, Error> {
    if changed.len() <= 1 {
        return Ok(changed.to_vec());
    }
    let (can, cannot): (Vec<Cause>, Vec<Cause>) = changed.iter().partition(|cause| match cause {
        Cause::Profile => before.profile.is_some(),
        Cause::Settings => before.run.is_some(),
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

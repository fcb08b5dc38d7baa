//! What differs from the baseline, whether it matters, and what caused it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use collcast_sim::collective::Collective;
use collcast_sim::nccl::{Version, settings};
use collcast_sim::predict::Predictor;
use collcast_sim::profile::{Constant, Profile};
use rayon::prelude::*;

use super::baseline::{Baseline, Constants, Entries, Entry, Recorded, digits};
use super::changed::{Changed, InputChange};
use super::finding::{Cause, Finding, Versions, What};
use super::picked::Picked;
use super::suite::Tolerance;
use super::today::{Machine, Setup, pick, time, time_as, time_now};
use crate::error::Error;
use crate::site::Told;

/// What came of one machine.
#[derive(Clone, Debug, Default)]
pub(super) struct Judged {
    pub(super) changed: Vec<Changed>,
    pub(super) findings: Vec<Finding>,
    /// Entries that both have, and sets of measurements.
    pub(super) compared: usize,
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
    for (old_version, version) in versions(&old.nccl, &today.nccl) {
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
            if today.nccl.contains_key(&nccl.before) {
                judged.findings.push(of_one(&nccl.after, What::NEW));
            }
        }
        changed.sort();
        let entries = (&old.nccl[&nccl.before], &today.nccl[&nccl.after]);
        judged.compared += entries.0.keys().filter(|collective| entries.1.contains_key(collective)).count();
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
    /// Whether what caused something can be put back.
    fn can_be_back(&self, cause: Cause) -> bool {
        match cause {
            Cause::Profile => self.profile.is_some(),
            Cause::Settings => self.run.is_some(),
            Cause::Version => true,
            Cause::Topology | Cause::Model | Cause::Measurements => false,
        }
    }

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

/// Versions that answer to each other: the same one; of one that came, the nearest older one, else the nearest newer.
/// What went stands alone where no other answers to it.
fn versions<'a>(old: &'a Entries, today: &'a Entries) -> Vec<(Option<&'a str>, Option<&'a str>)> {
    let ascending = |entries: &'a Entries| {
        let parsed = entries.keys().map(|name| (name.parse::<Version>().unwrap_or_default(), name.as_str()));
        parsed.collect::<BTreeSet<_>>()
    };
    let before = ascending(old);
    let counterpart = |version: Version, name| {
        let nearest = || before.iter().rfind(|(other, _)| *other < version).or(before.first());
        if old.contains_key(name) { Some(name) } else { nearest().map(|(_, name)| *name) }
    };
    let mut out: Vec<_> =
        ascending(today).into_iter().map(|(version, name)| (counterpart(version, name), Some(name))).collect();
    let gone = before.iter().filter(|(_, name)| out.iter().all(|(answered, _)| answered != &Some(*name)));
    let gone: Vec<_> = gone.map(|(_, name)| (Some(*name), None)).collect();
    out.extend(gone);
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

    /// The largest predicted loss at some sizes of what NCCL picks today, over what it picked before; none where no size has
    /// both times.
    fn loss(&mut self, collective: Collective, sizes: &[u64], before: Picked) -> Result<Option<f64>, Error> {
        let machine = self.pair.machine;
        let (predictor, told) = self.with(Back::default())?;
        let of_size = |&size: &u64| {
            let call = machine.call(collective, size);
            let was = time_as(predictor, &told.settings, &call, before)?;
            Some(time_now(predictor, &told.settings, &call)? / was - 1.0)
        };
        Ok(sizes.par_iter().filter_map(of_size).reduce_with(f64::max))
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
            let sizes: Vec<u64> = run.iter().map(|(size, ..)| *size).collect();
            let (first, last) = (sizes[0], sizes[sizes.len() - 1]);
            let (Ok(before), Ok(after)) = (run[0].1.parse::<Picked>(), run[0].2.parse::<Picked>()) else { continue };
            let predicted = lab.loss(collective, &sizes, before)?;
            let loss = predicted.or_else(|| growth((old, today), first..=last));
            // A loss that nobody knows may be any.
            let loses = before != Picked::Fails && loss.is_none_or(|loss| loss > self.tolerance.choice);
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
                failed: after == Picked::Fails || loses,
                causes,
                ..self.finding(collective, what)
            });
        }
        Ok(findings)
    }

    /// Sizes whose choices or times only one of both has.
    fn only_in_one(&self, collective: Collective, (old, today): (&Entry, &Entry)) -> Vec<Finding> {
        let new = |sizes_bytes, choices| What::New { sizes_bytes, choices };
        let removed = |sizes_bytes, choices| What::Removed { sizes_bytes, choices };
        let mut all: Vec<What> = today.choices_beyond(old).into_iter().map(|ends| new(ends.into(), true)).collect();
        all.extend(old.choices_beyond(today).into_iter().map(|ends| removed(ends.into(), true)));
        let times = [new(today.times_beyond(old), false), removed(old.times_beyond(today), false)];
        all.extend(times.into_iter().filter(|what| *what != What::NEW && *what != What::REMOVED));
        all.into_iter().map(|what| self.finding(collective, what)).collect()
    }

    /// Where our own model changed too: the inputs that make a call slower beyond tolerance by themselves, and its time
    /// with these put back. One input goes before several.
    fn at_fault(
        &self,
        lab: &mut Lab<'_, 'a, 's>,
        (collective, size): (Collective, u64),
        now: f64,
    ) -> Result<Option<(Vec<Cause>, f64)>, Error> {
        if !self.changed.contains(&Cause::Model) {
            return Ok(None);
        }
        // Our own profiles are fitted anew with our model.
        let is_ours = Profile::builtin_text(&self.machine.site.profile.name).is_some();
        let can = |cause: &Cause| self.before.can_be_back(*cause) && !(is_ours && *cause == Cause::Profile);
        let can: Vec<Cause> = self.changed.iter().copied().filter(can).collect();
        let mut worst: Option<(Vec<Cause>, f64)> = None;
        let together = (can.len() > 1).then(|| can.clone());
        for causes in can.iter().map(|&cause| vec![cause]).chain(together) {
            if causes.len() > 1 && worst.is_some() {
                break;
            }
            let was = match lab.time(Back::of(&causes), collective, size) {
                Err(error) if error.code() == 4 => return Err(error),
                Ok(Some(was)) => digits(was),
                _ => continue,
            };
            if now / was - 1.0 > self.tolerance.time && worst.as_ref().is_none_or(|(_, least)| was < *least) {
                worst = Some((causes, was));
            }
        }
        Ok(worst)
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
            if let Some((causes, before_us)) = self.at_fault(lab, (collective, size), now)? {
                let what = What::Time { size_bytes: size, before_us, after_us: now, model_only: false };
                findings.push(Finding { causes, failed: true, ..self.finding(collective, what) });
                continue;
            }
            if (now / was - 1.0).abs() <= tolerance {
                continue;
            }
            let causes = attribute(&self.changed, self.before, |back| {
                let Some(time) = lab.time(back, collective, size)?.map(digits) else { return Ok(Effect::Part) };
                Ok(if (time / was - 1.0).abs() <= tolerance {
                    Effect::Restores
                } else if (time / now - 1.0).abs() <= tolerance {
                    Effect::Nothing
                } else {
                    Effect::Part
                })
            })?;
            // Where a choice is not known, nobody knows that it is the same.
            let same = old.choice(size).is_some_and(|choice| today.choice(size) == Some(choice));
            let model_only = same && causes == [Cause::Model];
            let what = What::Time { size_bytes: size, before_us: was, after_us: now, model_only };
            let failed = now > was && !model_only;
            findings.push(Finding { causes, failed, ..self.finding(collective, what) });
        }
        Ok(findings)
    }
}

/// The largest growth of a time that both have, over a range of sizes.
fn growth((old, today): (&Entry, &Entry), sizes: RangeInclusive<u64>) -> Option<f64> {
    let before = old.times();
    let of_size = |(size, now): (&u64, &f64)| Some(now / before.get(size)? - 1.0);
    today.times().range(sizes).filter_map(of_size).reduce(f64::max)
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
    let (can, cannot): (Vec<Cause>, Vec<Cause>) = changed.iter().partition(|&&cause| before.can_be_back(cause));
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

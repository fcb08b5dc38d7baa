//! Who is sick, by Bayes: every answer of no, one, two or more sick members is held against all runs at once.
//!
//! Answers of one are all tried; those of more are found by adding to the best ones of one less. Members that are in the
//! same runs are one class: nothing measured tells them apart.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::member::Member;
use crate::statistics::median;

/// A run over some members.
#[derive(Clone, PartialEq, Debug)]
pub struct Trial {
    /// Runs of one kind share what their forecasts are off by: the same collective over as many ranks.
    pub kind: String,
    /// What may have made it slow.
    pub members: BTreeSet<Member>,
    /// ln(measured / expected time) of its large sizes.
    pub excess: f64,
    /// Standard deviation of that by noise, as far as the run itself tells.
    pub deviation: f64,
    /// Standard deviation of what runs of the kind share.
    pub doubt: f64,
}

/// Members that are in the same runs.
#[derive(Clone, PartialEq, Debug)]
pub struct Class {
    /// The members, the likeliest first.
    pub members: Vec<Member>,
    /// Indices of the runs that they are in.
    pub trials: Vec<usize>,
}

/// An answer to who is sick.
#[derive(Clone, PartialEq, Debug)]
pub struct Answer {
    /// Indices of the classes of which one member each is sick; nobody is where there are none.
    pub classes: Vec<usize>,
    /// Its chance, 0 to 1.
    pub chance: f64,
}

/// A class that may be sick.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Suspect {
    /// In words: members that no run tells apart have ` or ` between them; parts of those named are left out.
    pub name: String,
    /// All of its members, the likeliest first.
    pub members: Vec<Member>,
    /// Chance that it is sick, 0 to 1.
    pub chance: f64,
    /// How many times as long it makes a run take.
    pub times: f64,
    /// Runs with it.
    pub runs_with: usize,
    /// Runs without it.
    pub runs_without: usize,
}

/// What runs tell of who is sick.
#[derive(Clone, PartialEq, Debug)]
pub struct Belief {
    /// All classes.
    pub classes: Vec<Class>,
    /// Answers, the likeliest first.
    pub answers: Vec<Answer>,
    /// Classes that may be sick, the likeliest first.
    pub suspects: Vec<Suspect>,
    /// Standard deviation of the logarithm of a run's time, as the runs have it.
    pub deviation: f64,
    /// Runs that it rests on.
    pub runs: usize,
}

/// How far runs of like machines lie apart where nobody is sick, at least: standard deviation of ln(time) at large sizes, twice
/// what two runs of one machine differ by (`crate::noise`).
pub const HOSTS_DIFFER: f64 = 0.018;
/// Chance that all hosts are off what is expected together, by a setting or the fabric, and by how much: 4 of 58 published
/// runs are broken as a whole (`tests/data/verdicts.toml`), by factors of two and more.
const FLEET: (f64, f64) = (0.07, 0.69);
/// What noise may be times as large, with the chance of each before anything is measured: fabrics that others use too
/// have more than the quiet machines of `crate::noise`.
const NOISE: [(f64, f64); 3] = [(1.0, 0.8), (2.0, 0.15), (4.0, 0.05)];
/// Share of runs that are odd: 2% of the rows of published logs are far out (`crate::noise`).
const ODD: f64 = 0.02;
/// How far off odd runs are, as a range of ln(time): from a third to three times.
const ODD_RANGE: f64 = 2.2;
/// Least and largest slowness that is looked for, as ln(time): 7%, the least that stands out of [`HOSTS_DIFFER`] in a run
/// or two, and three times as long.
const SLOWNESS: (f64, f64) = (0.07, 1.1);
/// Steps between these, all as likely.
const STEPS: usize = 11;
/// Chance that all sick members are as slow as each other, as with one cause: as likely as not.
const ONE_CAUSE: f64 = 0.5;
/// By what share of itself slowness varies from run to run, as a standard deviation: a tenth, as clocks of a hot GPU do, and
/// half a step.
const VARIES: f64 = 0.13;
/// Answers that are added to, of each number of sick members.
const BEAM: usize = 48;
/// Of those at most so many that differ by slowness alone.
const ALIKE: usize = 3;
/// Most sick members of an answer: where there are more, it is no longer about the one that is broken.
const SICK_MAX: usize = 6;
/// Logarithm of the odds from which on an answer is not worth keeping: one in 160,000.
const HOPELESS: f64 = 12.0;
/// The same of an answer that is added to, beside the best one of as many: one in 1,100.
const FAINT: f64 = 7.0;
/// Least chance with which a suspect is listed.
const LISTED: f64 = 0.01;
/// Points at which what runs share is tried, of each kind of run.
const OFFSETS: (usize, usize) = (160, 24);

/// Weighs all answers. `fleet`: members that could be sick though no run used them yet.
pub fn infer(trials: &[Trial], fleet: &BTreeSet<Member>) -> Belief {
    let classes = classes(trials, fleet);
    let mut found: BTreeMap<Vec<usize>, f64> = BTreeMap::new();
    let mut slowness: BTreeMap<usize, (f64, f64)> = BTreeMap::new();
    let mut noise = (0.0, 0.0);
    let mut searched: Vec<(f64, Vec<State>, Model<'_>)> = Vec::new();
    let mut best: Option<State> = None;
    for (scale, chance) in NOISE {
        let model = Model::new(trials, &classes, scale);
        let healthy = model.healthy(chance.ln());
        // Where neither nobody nor the best so far explains the runs with this noise, others will not.
        let again = best.as_ref().map(|state| model.with(&healthy, &state.picks));
        let hopeless = |best: &State| again.iter().chain([&healthy]).all(|s| s.score < best.score - HOPELESS);
        if best.as_ref().is_some_and(hopeless) {
            continue;
        }
        let states = model.search(healthy);
        let found = states.iter().max_by(|a, b| a.score.total_cmp(&b.score));
        best = best.into_iter().chain(found.cloned()).max_by(|a, b| a.score.total_cmp(&b.score));
        searched.push((scale, states, model));
    }
    let best = best.map_or(0.0, |state| state.score);
    for (scale, states, model) in &searched {
        for state in states.iter().filter(|s| s.score > best - HOPELESS) {
            let weight = (state.score - best).exp();
            let mut of: Vec<usize> = state.picks.iter().map(|p| p.0).collect();
            of.sort_unstable();
            for &class in &of {
                let known = slowness.entry(class).or_insert((f64::NEG_INFINITY, 0.0));
                if state.score > known.0 {
                    *known = (state.score, model.slowness(state, class));
                }
            }
            *found.entry(of).or_default() += weight;
            noise = (noise.0 + weight, noise.1 + weight * scale * HOSTS_DIFFER);
        }
    }
    let all: f64 = found.values().sum();
    let mut answers: Vec<Answer> =
        found.into_iter().map(|(classes, weight)| Answer { classes, chance: weight / all }).collect();
    answers.sort_by(|a, b| b.chance.total_cmp(&a.chance).then_with(|| a.classes.cmp(&b.classes)));
    let suspect = |(class, (_, slower)): (usize, (f64, f64))| {
        let chance: f64 = answers.iter().filter(|a| a.classes.contains(&class)).map(|a| a.chance).sum();
        let Class { members, trials: with } = &classes[class];
        Suspect {
            name: name(members),
            members: members.clone(),
            chance,
            times: slower.exp(),
            runs_with: with.len(),
            runs_without: trials.len() - with.len(),
        }
    };
    let mut suspects: Vec<Suspect> =
        slowness.into_iter().map(suspect).filter(|s| s.chance >= LISTED && s.runs_with > 0).collect();
    suspects.sort_by(|a, b| b.chance.total_cmp(&a.chance).then_with(|| a.members.cmp(&b.members)));
    Belief { classes, answers, suspects, deviation: noise.1 / noise.0, runs: trials.len() }
}

/// Members by the runs that they are in. Those in every run of their kind are as slow as what these runs share, which competes
/// with them: a run over all hosts takes as long as its slowest.
fn classes(trials: &[Trial], fleet: &BTreeSet<Member>) -> Vec<Class> {
    let mut of: BTreeMap<&Member, Vec<usize>> = fleet.iter().map(|m| (m, Vec::new())).collect();
    for (index, trial) in trials.iter().enumerate() {
        for member in &trial.members {
            of.entry(member).or_default().push(index);
        }
    }
    let mut columns: BTreeMap<Vec<usize>, Vec<Member>> = BTreeMap::new();
    for (member, column) in of {
        columns.entry(column).or_default().push(member.clone());
    }
    let class = |(trials, mut members): (Vec<usize>, Vec<Member>)| {
        members.sort_by(|a, b| b.prior().total_cmp(&a.prior()).then_with(|| a.cmp(b)));
        Class { members, trials }
    };
    columns.into_iter().map(class).collect()
}

/// The members of a class in words, without those that are parts of others.
fn name(members: &[Member]) -> String {
    let whole = members.iter().filter(|m| !members.iter().any(|other| m.is_part_of(other)));
    let names: Vec<String> = whole.map(ToString::to_string).collect();
    names.join(" or ")
}

/// An answer with a slowness for each sick class.
#[derive(Clone)]
struct State {
    /// Classes with the step of their slowness, from 1.
    picks: Vec<(usize, usize)>,
    /// The largest step of each run's classes, 0 where none of them is sick.
    top: Vec<usize>,
    /// Logarithm of the probability of all runs, at each offset.
    log_likelihood: Vec<f64>,
    /// What was believed before, as a logarithm.
    belief: f64,
    /// Both, over all offsets.
    score: f64,
}

/// Runs of one kind.
struct Kind {
    /// Where its offsets stand among those of all kinds.
    at: std::ops::Range<usize>,
    /// What its runs may share, as ln(time).
    offsets: Vec<f64>,
    /// Logarithm of the probability of each before anything is measured.
    before: Vec<f64>,
}

/// All runs, with one noise.
struct Model<'a> {
    trials: &'a [Trial],
    classes: &'a [Class],
    kinds: Vec<Kind>,
    /// The kind of each run.
    kind_of: Vec<usize>,
    /// Logarithm of the probability of each run: by step of slowness, then by offset of its kind.
    tables: Vec<Vec<f64>>,
    /// Logarithm of the odds that a class is sick, at each step.
    odds: Vec<f64>,
    /// The step before the first of each class. What is in every run of its kinds is as slow as these are, and what they share takes
    /// what the steps leave: to vary as well would count against it in each of them.
    base: Vec<usize>,
    /// By how much a class at a step betters the answer that nobody is sick, at most.
    alone: Vec<Vec<f64>>,
}

/// Slowness at a step, from 1; none at 0. Steps beyond [`STEPS`] are the same once more, of what does not vary from run to run.
fn step(index: usize) -> f64 {
    let (least, most) = SLOWNESS;
    if index == 0 { 0.0 } else { least * (most / least).powf((level(index) - 1) as f64 / (STEPS - 1) as f64) }
}

/// A step among those that are as slow or slower.
fn level(index: usize) -> usize {
    if index > STEPS { index - STEPS } else { index }
}

/// The slower of two steps, the first where they are as slow.
fn slower(was: usize, slow: usize) -> usize {
    if level(slow) > level(was) { slow } else { was }
}

/// Logarithm of the density of what noise leaves of a run: normal, or odd. The likelier of the two counts.
fn density(residual: f64, deviation: f64) -> f64 {
    let z = residual / deviation;
    let normal = -0.5 * z * z - (deviation * (2.0 * std::f64::consts::PI).sqrt()).ln();
    ((1.0 - ODD).ln() + normal).max((ODD / ODD_RANGE).ln())
}

/// Logarithm of how much likelier a slowness is beside that of others, than where it is the only one.
fn as_slow(picks: &[(usize, usize)], slow: usize) -> f64 {
    match picks.iter().any(|p| level(p.1) == level(slow)) {
        _ if picks.is_empty() => 0.0,
        true => (ONE_CAUSE * STEPS as f64 + (1.0 - ONE_CAUSE)).ln(),
        false => (1.0 - ONE_CAUSE).ln(),
    }
}

fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

fn log_sum(values: &[f64]) -> f64 {
    let most = largest(values);
    most + values.iter().map(|v| (v - most).exp()).sum::<f64>().ln()
}

impl<'a> Model<'a> {
    fn new(trials: &'a [Trial], classes: &'a [Class], scale: f64) -> Self {
        let mut of: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (index, trial) in trials.iter().enumerate() {
            of.entry(&trial.kind).or_default().push(index);
        }
        let noise = |trial: &Trial| scale * trial.deviation.max(HOSTS_DIFFER);
        let (mut kinds, mut kind_of): (Vec<Kind>, _) = (Vec::new(), vec![0; trials.len()]);
        for indices in of.values() {
            indices.iter().for_each(|&i| kind_of[i] = kinds.len());
            let runs: Vec<(f64, f64)> = indices.iter().map(|&i| (trials[i].excess, noise(&trials[i]))).collect();
            let doubt = indices.iter().map(|&i| trials[i].doubt).fold(HOSTS_DIFFER, f64::max);
            let (offsets, wide) = offsets(&runs, doubt);
            let from = kinds.last().map_or(0, |kind| kind.at.end);
            let before = offsets.iter().map(|&o| shared(o, doubt) + wide.ln()).collect();
            kinds.push(Kind { at: from..from + offsets.len(), offsets, before });
        }
        let in_all = |class: &Class| {
            let with = |kind: &Vec<usize>| kind.iter().filter(|index| class.trials.contains(index)).count();
            !class.trials.is_empty() && of.values().all(|kind| [0, kind.len()].contains(&with(kind)))
        };
        let base: Vec<usize> = classes.iter().map(|class| if in_all(class) { STEPS } else { 0 }).collect();
        let steps = if base.contains(&STEPS) { 2 * STEPS } else { STEPS };
        let table = |(index, trial): (usize, &Trial)| -> Vec<f64> {
            let offsets = &kinds[kind_of[index]].offsets;
            let deviation = |at: usize| if at > STEPS { noise(trial) } else { noise(trial).hypot(VARIES * step(at)) };
            let row = |at| offsets.iter().map(move |o| density(trial.excess - o - step(at), deviation(at)));
            (0..=steps).flat_map(row).collect()
        };
        let tables = trials.iter().enumerate().map(table).collect();
        let odds = |class: &Class| {
            let of = |m: &Member| m.prior() / (1.0 - m.prior());
            (class.members.iter().map(of).sum::<f64>() / STEPS as f64).ln()
        };
        let odds = classes.iter().map(odds).collect();
        let mut model = Self { trials, classes, kind_of, tables, odds, base, alone: Vec::new(), kinds };
        let healthy = vec![0; trials.len()];
        let alone = |class: usize| {
            let at_most = |slow| {
                let mut change = vec![0.0; model.offsets()];
                model.add(&mut change, &healthy, class, slow);
                model.kinds.iter().map(|kind| largest(&change[kind.at.clone()])).sum()
            };
            (0..=STEPS).map(|at| at_most(model.base[class] + at)).collect()
        };
        model.alone = (0..classes.len()).map(alone).collect();
        model
    }

    /// Offsets of all kinds.
    fn offsets(&self) -> usize {
        self.kinds.last().map_or(0, |kind| kind.at.end)
    }

    /// Adds what a class at a step changes, where runs have these steps already.
    fn add(&self, log_likelihood: &mut [f64], top: &[usize], class: usize, slow: usize) {
        for &index in &self.classes[class].trials {
            let was = top[index];
            if level(slow) > level(was) {
                let at = self.kinds[self.kind_of[index]].at.clone();
                let change = self.row(index, slow).iter().zip(self.row(index, was));
                log_likelihood[at].iter_mut().zip(change).for_each(|(sum, (now, was))| *sum += now - was);
            }
        }
    }

    /// That nobody is sick. `chance`: the logarithm of that of this noise.
    fn healthy(&self, chance: f64) -> State {
        let mut log_likelihood: Vec<f64> = self.kinds.iter().flat_map(|kind| kind.before.iter().copied()).collect();
        for (index, &kind) in self.kind_of.iter().enumerate() {
            let at = self.kinds[kind].at.clone();
            log_likelihood[at].iter_mut().zip(self.row(index, 0)).for_each(|(sum, one)| *sum += one);
        }
        let score = chance + self.total(&log_likelihood);
        State { picks: Vec::new(), top: vec![0; self.trials.len()], log_likelihood, belief: chance, score }
    }

    /// That these classes are sick too.
    fn with(&self, state: &State, picks: &[(usize, usize)]) -> State {
        let mut state = state.clone();
        for &(class, slow) in picks {
            self.add(&mut state.log_likelihood, &state.top, class, slow);
            self.classes[class].trials.iter().for_each(|&i| state.top[i] = slower(state.top[i], slow));
            state.belief += self.odds[class] + as_slow(&state.picks, slow);
            state.picks.push((class, slow));
        }
        state.score = state.belief + self.total(&state.log_likelihood);
        state
    }

    /// Answers with their slowness, of no sick member first.
    fn search(&self, first: State) -> Vec<State> {
        let mut best = first.score;
        let (mut all, mut beam) = (vec![first.clone()], vec![first]);
        for _ in 0..SICK_MAX {
            let mut next: BTreeMap<Vec<(usize, usize)>, State> = BTreeMap::new();
            for state in &beam {
                self.extend(state, &mut best, &mut next);
            }
            let mut next: Vec<State> = next.into_iter().map(|(picks, state)| State { picks, ..state }).collect();
            next.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| a.picks.cmp(&b.picks)));
            next.retain(|state| state.score > best - HOPELESS);
            let bright = next.first().map_or(0.0, |state| state.score) - FAINT;
            let mut of: BTreeMap<Vec<usize>, usize> = BTreeMap::new();
            beam = (next.iter().take_while(|state| state.score > bright))
                .filter(|state| {
                    let count = of.entry(state.picks.iter().map(|p| p.0).collect()).or_default();
                    *count += 1;
                    *count <= ALIKE
                })
                .take(BEAM)
                .cloned()
                .collect();
            if next.is_empty() {
                break;
            }
            all.extend(next);
        }
        all
    }

    /// Adds each class at each step to an answer, where that is not hopeless.
    fn extend(&self, state: &State, best: &mut f64, next: &mut BTreeMap<Vec<(usize, usize)>, State>) {
        let mut log_likelihood = state.log_likelihood.clone();
        for class in (0..self.classes.len()).filter(|class| !state.picks.iter().any(|p| p.0 == *class)) {
            let apart = self.classes[class].trials.iter().all(|&i| state.top[i] == 0);
            for at in 1..=STEPS {
                let slow = self.base[class] + at;
                let odds = self.odds[class] + as_slow(&state.picks, slow);
                let belief = state.belief + odds;
                if apart && state.score + odds + self.alone[class][at] < *best - HOPELESS {
                    continue;
                }
                log_likelihood.clone_from(&state.log_likelihood);
                self.add(&mut log_likelihood, &state.top, class, slow);
                if belief + self.at_most(&log_likelihood) < *best - HOPELESS {
                    continue;
                }
                let score = belief + self.total(&log_likelihood);
                *best = best.max(score);
                let mut picks = state.picks.clone();
                picks.push((class, slow));
                picks.sort_unstable();
                let log_likelihood = log_likelihood.clone();
                next.entry(picks).or_insert_with_key(|_| {
                    let mut top = state.top.clone();
                    self.classes[class].trials.iter().for_each(|&i| top[i] = slower(top[i], slow));
                    State { picks: Vec::new(), top, log_likelihood, belief, score }
                });
            }
        }
    }

    fn row(&self, trial: usize, step: usize) -> &[f64] {
        let wide = self.kinds[self.kind_of[trial]].offsets.len();
        &self.tables[trial][step * wide..(step + 1) * wide]
    }

    /// More than [`Self::total`] can be.
    fn at_most(&self, log_likelihood: &[f64]) -> f64 {
        let of = |kind: &Kind| largest(&log_likelihood[kind.at.clone()]) + (kind.offsets.len() as f64).ln();
        self.kinds.iter().map(of).sum()
    }

    /// Logarithm of the probability of all runs, over all offsets.
    fn total(&self, log_likelihood: &[f64]) -> f64 {
        self.kinds.iter().map(|kind| log_sum(&log_likelihood[kind.at.clone()])).sum()
    }

    /// What a class makes runs take longer, as ln(time): the median of those in which it is the slowest, or its step.
    fn slowness(&self, state: &State, class: usize) -> f64 {
        let slow = state.picks.iter().find(|p| p.0 == class).map_or(0, |p| p.1);
        let offset = |kind: &Kind| {
            let at = &state.log_likelihood[kind.at.clone()];
            let best = (0..at.len()).max_by(|&a, &b| at[a].total_cmp(&at[b])).unwrap_or(0);
            kind.offsets[best]
        };
        let runs = self.classes[class].trials.iter().filter(|&&i| state.top[i] == slow);
        let left: Vec<f64> = runs.map(|&i| self.trials[i].excess - offset(&self.kinds[self.kind_of[i]])).collect();
        if left.is_empty() { step(slow) } else { median(left) }
    }
}

/// Logarithm of the chance density of what runs of a kind share, but for a constant.
fn shared(offset: f64, doubt: f64) -> f64 {
    let normal = |deviation: f64| (-0.5 * (offset / deviation).powi(2)).exp() / deviation;
    ((1.0 - FLEET.0) * normal(doubt) + FLEET.0 * normal(FLEET.1)).max(f64::MIN_POSITIVE).ln()
}

/// What runs of a kind may share: points of even distance wherever some answer could have it so. `runs`: the excess of each
/// with its deviation. Gives their distance too.
fn offsets(runs: &[(f64, f64)], doubt: f64) -> (Vec<f64>, f64) {
    let deviation = median(runs.iter().map(|r| r.1).collect());
    let least = runs.iter().map(|r| r.0).fold(f64::INFINITY, f64::min);
    let most = runs.iter().map(|r| r.0).fold(f64::NEG_INFINITY, f64::max);
    // All of them may be slow, as far as what is expected of them leaves that.
    let from = (least - 3.0 * deviation).min((-3.0 * doubt).max(least - SLOWNESS.1));
    let to = (most + deviation).max(from + deviation);
    let count = (((to - from) / deviation).ceil() as usize).clamp(1, OFFSETS.0);
    let wide = (to - from) / count as f64;
    // The best that any answer can make of a run.
    let bound = |offset: f64| -> f64 {
        let of = |&(excess, deviation): &(f64, f64)| {
            let left: f64 = excess - offset;
            let healthy = density(left, deviation);
            if left < SLOWNESS.0 / 2.0 { healthy } else { healthy.max(density(0.0, deviation.hypot(VARIES * left))) }
        };
        runs.iter().map(of).sum::<f64>() + shared(offset, doubt)
    };
    let coarse: Vec<f64> = (0..count).map(|i| from + (i as f64 + 0.5) * wide).collect();
    let bounds: Vec<f64> = coarse.iter().map(|&offset| bound(offset)).collect();
    let best = bounds.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let kept: Vec<f64> = coarse.into_iter().zip(bounds).filter(|(_, b)| *b > best - HOPELESS).map(|(o, _)| o).collect();
    // As fine as so many runs tell it, within the points that there may be.
    let fine = (runs.len() as f64).sqrt().ceil() as usize;
    let parts = fine.min(OFFSETS.1 / kept.len()).max(1);
    let of = |&o: &f64| (0..parts).map(move |i| o + wide * ((i as f64 + 0.5) / parts as f64 - 0.5)).collect::<Vec<_>>();
    (kept.iter().flat_map(of).collect(), wide / parts as f64)
}

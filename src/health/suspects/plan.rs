//! Which sets of hosts to run next.
//!
//! A round is some disjoint sets of hosts, each of which runs once. Answers to "who is sick" differ by the sets that they make
//! slow: the entropy of that is what the round tells, in bits. Of many ways to cut the hosts into sets the one that
//! tells most is taken.

use std::collections::{BTreeMap, BTreeSet};

use collcast_sim::hash::fnv1a;
use serde::Serialize;

use super::infer::Belief;
use super::member::Member;

/// What a round costs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pace {
    /// Its sets run at the same time: as much as one run.
    #[default]
    Together,
    /// One after the other, where they would share a fabric: as many runs as it has sets.
    OneByOne,
}

/// Sets of hosts to run next.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Round {
    /// Names of the hosts of each set; no host is in two.
    pub sets: Vec<Vec<String>>,
    /// What their times are expected to tell, in bits: 1 halves the answers that are left.
    pub bits: f64,
}

/// What to do next.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "do")]
pub enum Plan {
    /// Run these sets.
    Run(Round),
    /// Nothing: who is sick is known.
    Known {
        /// Chance that it is so, 0 to 1.
        chance: f64,
    },
    /// Nothing: no sets of these hosts tell the answers apart that are left.
    Alike,
}

/// Chance from which on an answer is known: one wrong in 100, the quantile that confidence in published runs is told by.
pub const KNOWN: f64 = 0.99;
/// Least that a round must tell, in bits.
const BITS_MIN: f64 = 0.01;
/// Share of the most that a round can tell at which fewer hosts count for more than that.
const NEARLY: f64 = 0.95;
/// Answers that plans are made by, the likeliest first: they hold nearly all of the chance.
const ANSWERS: usize = 1024;
/// Share of suspicion that the suspects have who are run beside hosts that are trusted.
const SUSPICION: f64 = 0.999;
/// Sets of which the first round has at least as many, where they run one by one: two sick hosts leave sets that show
/// what is healthy.
const SETS_FIRST: usize = 4;
/// Chance of being sick up to which a host fills up sets: less than one in ten of what it was at first.
const TRUSTED: f64 = 0.001;
/// Orders of hosts that are as suspect as each other which are tried.
const SHUFFLES: u64 = 2;

/// Which sets a sick member makes slow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Effect {
    /// All that have the host.
    Host(usize),
    /// All that have the host and others.
    Network(usize),
    /// That of just the two hosts.
    Link(usize, usize),
}

/// Sets of indices of hosts.
type Sets = Vec<Vec<usize>>;

/// The round that tells most. `known`: numbers of hosts for which runs show what a healthy set takes. Where that is not known,
/// sets that are all slow look as if none were.
pub fn next_round(belief: &Belief, hosts: &[String], known: &BTreeSet<usize>, pace: Pace) -> Plan {
    let answers = Answers::new(belief, hosts);
    let chance = answers.surest();
    if chance >= KNOWN {
        return Plan::Known { chance };
    }
    let candidates: Vec<(Sets, f64)> = (candidates(&answers, hosts, known, (pace, belief.runs)).into_iter())
        .map(|sets| {
            let bits = answers.bits(&sets, known);
            (sets, bits)
        })
        .collect();
    let cost = |sets: &Sets| if pace == Pace::OneByOne { sets.len() as f64 } else { 1.0 };
    let most = candidates.iter().map(|(sets, bits)| bits / cost(sets)).fold(0.0, f64::max);
    let used = |sets: &Sets| sets.iter().map(Vec::len).sum::<usize>();
    let good = candidates.iter().filter(|(sets, bits)| *bits >= BITS_MIN && bits / cost(sets) >= NEARLY * most);
    let best = good.min_by(|a, b| used(&a.0).cmp(&used(&b.0)).then(b.1.total_cmp(&a.1)));
    let Some((sets, bits)) = best else { return Plan::Alike };
    let names = |set: &Vec<usize>| {
        let mut set = set.clone();
        set.sort_unstable();
        set.iter().map(|&host| hosts[host].clone()).collect()
    };
    let mut sets: Vec<Vec<String>> = sets.iter().map(names).collect();
    let place = |set: &Vec<String>| hosts.iter().position(|host| Some(host) == set.first());
    sets.sort_by_key(place);
    Plan::Run(Round { sets, bits: *bits })
}

/// Answers as plans see them: by the hosts and links that are sick.
struct Answers {
    /// Sick ones, and the chance of that.
    all: Vec<(Vec<Effect>, f64)>,
    /// Of each, the number of the set of hosts and links that are sick, whatever of a host it is.
    which: Vec<usize>,
    /// Chance that a host or its network is sick.
    suspicion: Vec<f64>,
    /// Links that may be sick, the likeliest first.
    links: Vec<(usize, usize)>,
}

impl Answers {
    fn new(belief: &Belief, hosts: &[String]) -> Self {
        let places: BTreeMap<&String, usize> = hosts.iter().enumerate().map(|(i, host)| (host, i)).collect();
        let effect = |member: &Member| {
            let at: Option<Vec<usize>> = member.hosts().iter().map(|host| places.get(host).copied()).collect();
            match (member, &at?[..]) {
                (Member::Host { .. } | Member::Gpu { .. }, &[host]) => Some(Effect::Host(host)),
                (Member::Network { .. } | Member::Nic { .. }, &[host]) => Some(Effect::Network(host)),
                (Member::Link { .. }, &[a, b]) => Some(Effect::Link(a.min(b), a.max(b))),
                _ => None,
            }
        };
        // What each class may be, with its share.
        let classes: Vec<Vec<(Option<Effect>, f64)>> = (belief.classes.iter())
            .map(|class| {
                let mut of: BTreeMap<Option<Effect>, f64> = BTreeMap::new();
                class.members.iter().for_each(|m| *of.entry(effect(m)).or_default() += m.prior());
                let all: f64 = of.values().sum();
                of.into_iter().map(|(effect, share)| (effect, share / all)).collect()
            })
            .collect();
        let mut all: BTreeMap<Vec<Effect>, f64> = BTreeMap::new();
        for answer in &belief.answers {
            let mut of: Vec<(Vec<Effect>, f64)> = vec![(Vec::new(), answer.chance)];
            for &class in &answer.classes {
                let more = |(sick, chance): &(Vec<Effect>, f64)| {
                    let one = |(effect, share): &(Option<Effect>, f64)| {
                        (sick.iter().copied().chain(*effect).collect(), chance * share)
                    };
                    classes[class].iter().map(one).collect::<Vec<_>>()
                };
                of = of.iter().flat_map(more).collect();
                of.sort_by(|a, b| b.1.total_cmp(&a.1));
                of.truncate(ANSWERS);
            }
            for (mut sick, chance) in of {
                sick.sort_unstable();
                *all.entry(sick).or_default() += chance;
            }
        }
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        all.truncate(ANSWERS);
        let mut suspicion = vec![0.0; hosts.len()];
        let mut links: BTreeMap<(usize, usize), f64> = BTreeMap::new();
        for (sick, chance) in &all {
            let mut seen: BTreeSet<usize> = BTreeSet::new();
            for effect in sick {
                match *effect {
                    Effect::Host(host) | Effect::Network(host) => {
                        seen.insert(host);
                    }
                    Effect::Link(a, b) => *links.entry((a, b)).or_default() += chance,
                }
            }
            seen.iter().for_each(|&host| suspicion[host] += chance);
        }
        let mut links: Vec<_> = links.into_iter().collect();
        links.sort_by(|a, b| b.1.total_cmp(&a.1));
        let place = |effect: &Effect| match *effect {
            Effect::Host(host) | Effect::Network(host) => (host, host),
            Effect::Link(a, b) => (a, b),
        };
        let mut sets: BTreeMap<BTreeSet<(usize, usize)>, usize> = BTreeMap::new();
        let mut which = Vec::new();
        for (sick, _) in &all {
            let next = sets.len();
            which.push(*sets.entry(sick.iter().map(place).collect()).or_insert(next));
        }
        Self { all, which, suspicion, links: links.into_iter().map(|l| l.0).collect() }
    }

    /// Chance of the likeliest set of sick hosts and links.
    fn surest(&self) -> f64 {
        let mut chances = vec![0.0; self.all.len()];
        self.all.iter().zip(&self.which).for_each(|((_, chance), &which)| chances[which] += chance);
        chances.into_iter().fold(0.0, f64::max)
    }

    /// What a round tells of which hosts and links are sick, in bits: the entropy of which sets are slow, less what of it
    /// is about parts of hosts.
    fn bits(&self, sets: &Sets, known: &BTreeSet<usize>) -> f64 {
        let mut set_of = vec![usize::MAX; self.suspicion.len()];
        let mut of_size: BTreeMap<usize, usize> = BTreeMap::new();
        for (index, set) in sets.iter().enumerate() {
            set.iter().for_each(|&host| set_of[host] = index);
            *of_size.entry(set.len()).or_default() += 1;
        }
        let slow = |effect: &Effect| match *effect {
            Effect::Host(host) => Some(set_of[host]),
            Effect::Network(host) => Some(set_of[host]).filter(|&set| sets.get(set).is_some_and(|s| s.len() > 1)),
            Effect::Link(a, b) => {
                Some(set_of[a]).filter(|&set| set == set_of[b] && sets.get(set).is_some_and(|s| s.len() == 2))
            }
        };
        let mut outcomes: BTreeMap<Vec<usize>, BTreeMap<usize, f64>> = BTreeMap::new();
        for ((sick, chance), &answer) in self.all.iter().zip(&self.which) {
            let mut which: Vec<usize> = sick.iter().filter_map(slow).filter(|&set| set < sets.len()).collect();
            which.sort_unstable();
            which.dedup();
            for (size, count) in &of_size {
                if !known.contains(size) && which.iter().filter(|&&set| sets[set].len() == *size).count() == *count {
                    which.retain(|&set| sets[set].len() != *size);
                }
            }
            *outcomes.entry(which).or_default().entry(answer).or_default() += chance;
        }
        let all: f64 = self.all.iter().map(|a| a.1).sum();
        let of_outcomes = entropy(outcomes.values().map(|of| of.values().sum::<f64>() / all));
        let of_both = entropy(outcomes.values().flat_map(BTreeMap::values).map(|chance| chance / all));
        let mut answers = vec![0.0; self.all.len()];
        self.all.iter().zip(&self.which).for_each(|((_, chance), &which)| answers[which] += chance / all);
        of_outcomes + entropy(answers.into_iter()) - of_both
    }
}

/// Entropy of some chances, in bits.
fn entropy(chances: impl Iterator<Item = f64>) -> f64 {
    chances.filter(|p| *p > 0.0).map(|p| -p * p.log2()).sum()
}

/// Ways to cut the hosts into sets. Orders without meaning are others in each round: hosts that are always together would
/// never be told apart.
fn candidates(answers: &Answers, hosts: &[String], known: &BTreeSet<usize>, (pace, runs): (Pace, usize)) -> Vec<Sets> {
    let count = hosts.len();
    let fewest = if pace == Pace::OneByOne { SETS_FIRST } else { 2 };
    let mut all = Vec::new();
    for shuffle in 0..SHUFFLES {
        // The most suspect first; of those alike in an order that has no meaning.
        let mut order: Vec<usize> = (0..count).collect();
        let key = |host: usize| fnv1a(format!("{runs} {shuffle} {}", hosts[host]).as_bytes());
        order.sort_by(|&a, &b| answers.suspicion[b].total_cmp(&answers.suspicion[a]).then(key(a).cmp(&key(b))));
        let sizes =
            std::iter::successors(Some(1), |size| Some(size * 2)).take_while(|size| size * fewest <= count.max(4));
        for size in sizes {
            let sets = count / size;
            // The least suspect stay out where they do not come out even.
            let used = &order[..sets * size];
            all.push((0..sets).map(|set| used.iter().skip(set).step_by(sets).copied().collect()).collect());
        }
        all.extend(beside_trusted(answers, &order, &[], known));
        all.extend(beside_trusted(answers, &order, &answers.links, known));
        if pace == Pace::OneByOne {
            let half = |&size: &usize| vec![half_of_suspicion(answers, &order, key, size)];
            all.extend(known.iter().filter(|&&size| size < count).map(half));
        }
    }
    all
}

/// Each suspect beside a host that is trusted, after the pairs of hosts whose links are suspect.
fn beside_trusted(
    answers: &Answers,
    order: &[usize],
    links: &[(usize, usize)],
    known: &BTreeSet<usize>,
) -> Option<Sets> {
    let mut sets: Sets = Vec::new();
    let mut free: BTreeSet<usize> = order.iter().copied().collect();
    for &(a, b) in links {
        if free.contains(&a) && free.contains(&b) {
            sets.push(vec![a, b]);
            [a, b].iter().for_each(|host| _ = free.remove(host));
        }
    }
    let all: f64 = answers.suspicion.iter().sum();
    let mut seen = 0.0;
    let mut suspects = Vec::new();
    for &host in order {
        if seen >= SUSPICION * all {
            break;
        }
        seen += answers.suspicion[host];
        suspects.extend(free.contains(&host).then_some(host));
    }
    let trusted: Vec<usize> =
        order.iter().rev().copied().filter(|host| free.contains(host) && !suspects.contains(host)).collect();
    let mut trusted = trusted.into_iter();
    sets.extend(suspects.iter().zip(&mut trusted).map(|(&suspect, trusted)| vec![suspect, trusted]));
    // What a healthy pair takes has to be known.
    if let (false, Some(a), Some(b)) = (known.contains(&2), trusted.next(), trusted.next()) {
        sets.push(vec![a, b]);
    }
    (!sets.is_empty()).then_some(sets)
}

/// A set of that size with half of what is suspected, filled up with hosts that hardly are.
fn half_of_suspicion(answers: &Answers, order: &[usize], key: impl Fn(usize) -> u64, size: usize) -> Vec<usize> {
    let all: f64 = answers.suspicion.iter().sum();
    let (mut set, mut seen) = (Vec::new(), 0.0);
    for &host in order {
        if set.len() < size && seen + answers.suspicion[host] <= 0.5 * all {
            set.push(host);
            seen += answers.suspicion[host];
        }
    }
    if set.is_empty() {
        set.extend(order.first());
    }
    let mut rest: Vec<usize> = order.iter().copied().filter(|host| !set.contains(host)).collect();
    rest.sort_by_key(|&host| (answers.suspicion[host] > TRUSTED, key(host)));
    set.extend(rest.into_iter().take(size - set.len()));
    set
}

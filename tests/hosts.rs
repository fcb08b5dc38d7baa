//! Whether the sick hosts of a fleet are found, and in how many rounds of runs.
//!
//! A fleet is played: each run takes as long as its slowest host lets it. Its noise is not that of the inference: a pace for each
//! run, times of its own for each size with long tails, hosts that differ for good, and runs that something disturbed.

use std::collections::BTreeSet;

use collcast::health::suspects::{Belief, Member, Pace, Plan, Trial, Used, infer, next_round};

use crate::common::all;
use crate::random::Random;
use rayon::prelude::*;

/// Student's t of 3 degrees of freedom, which has a standard deviation of 1.7 and long tails.
fn tailed(random: &mut Random) -> f64 {
    let squares: f64 = (0..3).map(|_| random.normal().powi(2)).sum();
    random.normal() / (squares / 3.0).sqrt()
}

/// Scatter of a run at large sizes, which all of its sizes share, and of each size: `collcast::noise`.
const RUN: f64 = 0.009;
const SIZE: f64 = 0.005;
/// How far good hosts of a fleet lie apart for good.
const HOST: f64 = 0.005;
/// Share of runs that are disturbed: as many as the rows of published logs that are far out.
const DISTURBED: f64 = 0.02;

struct Fleet {
    hosts: Vec<String>,
    /// ln(time) of each host's own.
    slower: Vec<f64>,
    /// What all runs are off by beside their forecast, by the logarithm of the number of hosts.
    offsets: Vec<f64>,
    random: Random,
}

impl Fleet {
    fn new(count: usize, sick: &[f64], seed: u64) -> (Self, BTreeSet<String>) {
        let mut random = Random::new(seed);
        let hosts: Vec<String> = (1..=count).map(|i| format!("gpu{i:02}")).collect();
        let mut slower: Vec<f64> = (0..count).map(|_| HOST * random.normal()).collect();
        let mut names = BTreeSet::new();
        for times in sick {
            let host = loop {
                let host = (random.uniform() * count as f64) as usize;
                if names.insert(hosts[host].clone()) {
                    break host;
                }
            };
            slower[host] += times.ln();
        }
        let offsets = (0..8).map(|_| 0.15 * random.normal()).collect();
        (Self { hosts, slower, offsets, random }, names)
    }

    fn run(&mut self, set: &[String]) -> Trial {
        let random = &mut self.random;
        let slowest = (set.iter())
            .map(|name| self.slower[self.hosts.iter().position(|host| host == name).unwrap()])
            .fold(f64::NEG_INFINITY, f64::max);
        let pace = RUN * random.normal();
        let disturbed = if random.uniform() < DISTURBED { 0.1 + 0.4 * random.uniform() } else { 0.0 };
        // Slowness is not the same at all sizes.
        let mut sizes: Vec<f64> = (0..3)
            .map(|size| slowest * (1.0 - 0.05 * f64::from(size)) + SIZE * tailed(random) + pace + disturbed)
            .collect();
        sizes.sort_by(f64::total_cmp);
        let used = Used { hosts: set.iter().cloned().collect(), ..Used::default() };
        Trial {
            kind: format!("all_reduce {}", set.len() * 8),
            members: used.members(),
            excess: self.offsets[set.len().ilog2() as usize] + sizes[1],
            deviation: RUN.hypot(SIZE),
            doubt: 0.2,
        }
    }
}

struct Search {
    /// Whether nothing was left to run.
    ended: bool,
    named: BTreeSet<String>,
    rounds: usize,
    runs: usize,
}

/// Members that hosts have before anything is run.
fn members(hosts: &[String]) -> BTreeSet<Member> {
    let of = |host: &String| [Member::Host { host: host.clone() }, Member::Network { host: host.clone() }];
    hosts.iter().flat_map(of).collect()
}

/// Hosts that are named as sick.
fn named(belief: &Belief) -> BTreeSet<String> {
    let sure = belief.suspects.iter().filter(|s| s.chance >= 0.9);
    sure.map(|s| s.name.trim_start_matches("host ").to_owned()).collect()
}

/// Plans, runs and infers until there is nothing to run, for at most so many rounds.
fn search(fleet: &mut Fleet, pace: Pace, most: usize) -> Search {
    let mut trials: Vec<Trial> = Vec::new();
    let mut sizes = BTreeSet::new();
    let hosts = fleet.hosts.clone();
    let members = members(&hosts);
    let mut rounds = 0;
    loop {
        let belief = infer(&trials, &members);
        match next_round(&belief, &hosts, &sizes, pace) {
            Plan::Run(round) if rounds < most => {
                rounds += 1;
                let used: BTreeSet<&String> = round.sets.iter().flatten().collect();
                assert_eq!(used.len(), round.sets.iter().map(Vec::len).sum::<usize>(), "no host is in two sets");
                assert!(used.iter().all(|host| hosts.contains(host)));
                trials.extend(round.sets.iter().map(|set| fleet.run(set)));
                sizes.extend(round.sets.iter().map(Vec::len));
            }
            plan => {
                let ended = !matches!(plan, Plan::Run(_));
                return Search { ended, named: named(&belief), rounds, runs: trials.len() };
            }
        }
    }
}

/// Draws of each fleet.
const DRAWS: u64 = 40;

/// Goal: of 64 hosts the sick ones are named, all of them and no others, in at least 95 of 100 fleets and at most 10 rounds;
/// where runs would share a fabric, in at most 40 runs one after the other, nearly always.
#[test]
fn sick_hosts_of_a_fleet_are_found() {
    let cases: [(&str, &[f64]); 7] = [
        ("none", &[]),
        ("one by 20%", &[1.2]),
        ("two by 20%", &[1.2, 1.2]),
        ("one by 15%", &[1.15]),
        ("two by 15%", &[1.15, 1.15]),
        ("one by 50%", &[1.5]),
        ("two by 20% and 50%", &[1.2, 1.5]),
    ];
    let draws = if all("sick_hosts_of_a_fleet_are_found", "half of the fleets") { DRAWS } else { DRAWS / 2 };
    println!("64 hosts, {draws} fleets each: named right; rounds in the median and at most; runs alike");
    for (pace, most) in [(Pace::Together, 10), (Pace::OneByOne, 40)] {
        for (case, sick) in cases {
            // One by one takes ten times the time of inference.
            let draws = if pace == Pace::Together { draws } else { draws / 4 };
            let searches = (1..=draws).into_par_iter().map(|seed| {
                let (mut fleet, truth) = Fleet::new(64, sick, seed);
                let found = search(&mut fleet, pace, most);
                (u64::from(found.named == truth && found.ended), (found.rounds, found.runs))
            });
            let (right, (mut rounds, mut runs)): (Vec<u64>, (Vec<_>, Vec<_>)) = searches.unzip();
            let right: u64 = right.iter().sum();
            rounds.sort_unstable();
            runs.sort_unstable();
            let [rounds, runs] = [rounds, runs].map(|of| (of[of.len() / 2], of[of.len() - 1]));
            println!("{pace:?} {case}: {right} of {draws}; {rounds:?} rounds, {runs:?} runs");
            let share = if pace == Pace::Together { 0.95 } else { 0.85 };
            assert!(right as f64 >= share * draws as f64, "{pace:?} {case}: {right} of {draws}");
        }
    }
}

fn pair(a: &str, b: &str, excess: f64) -> Trial {
    let used = Used { hosts: [a.to_owned(), b.to_owned()].into(), ..Used::default() };
    Trial { kind: "all_reduce 16".to_owned(), members: used.members(), excess, deviation: 0.01, doubt: 0.2 }
}

/// Goal: names mean nothing: of runs of renamed hosts the same are suspect, as much.
#[test]
fn names_mean_nothing() {
    let runs = [("a", "b", 0.0), ("c", "d", 0.21), ("a", "c", 0.01), ("b", "d", 0.19), ("e", "f", -0.01)];
    let of = |name: fn(&str) -> &str| {
        let trials: Vec<Trial> = runs.iter().map(|(a, b, excess)| pair(name(a), name(b), *excess)).collect();
        let belief = infer(&trials, &BTreeSet::new());
        (belief.suspects[0].name.clone(), belief.suspects[0].chance, belief.suspects[0].times)
    };
    let renamed = of(|name| match name {
        "a" => "d",
        "d" => "x",
        name => name,
    });
    let first = of(|name| name);
    assert_eq!((first.0.as_str(), renamed.0.as_str()), ("host d", "host x"));
    assert!((first.1 - renamed.1).abs() < 1e-9 && (first.2 - renamed.2).abs() < 1e-9);
    assert!(first.1 > 0.9 && (1.15..1.3).contains(&first.2), "{first:?}");
}

/// Goal: more runs that are as they should be make no host suspect, one odd run names nobody, and hosts that no run tells
/// apart are named together.
#[test]
fn evidence_counts_for_what_it_is() {
    let mut trials = vec![pair("a", "b", 0.2), pair("c", "d", 0.0), pair("e", "f", 0.01), pair("g", "h", -0.01)];
    let belief = infer(&trials, &BTreeSet::new());
    assert_eq!(belief.suspects[0].name, "host a or host b");
    assert!(belief.suspects[0].chance < 0.95, "{:?}", belief.suspects[0]);
    trials.push(pair("a", "c", 0.0));
    trials.push(pair("b", "d", 0.01));
    assert!(infer(&trials, &BTreeSet::new()).suspects.iter().all(|s| s.chance < 0.5), "one odd run");
    trials.extend([pair("b", "e", 0.2), pair("b", "g", 0.21), pair("b", "h", 0.2)]);
    for more in 0..4 {
        let belief = infer(&trials, &BTreeSet::new());
        assert!(belief.suspects[0].name == "host b" && belief.suspects[0].chance > 0.9, "{more}: {belief:?}");
        assert!(belief.suspects[1..].iter().all(|s| s.chance < 0.1), "{more}: {belief:?}");
        trials.push(pair("a", ["c", "d", "e", "f"][more], 0.0));
    }
}

/// Goal: what is in every run is told from what all runs share by no run, so that neither is certain, and a run that would tell is next.
/// Method: one run over eight hosts that takes twice as long, and six pairs that all have one host.
#[test]
fn what_is_in_every_run_may_be_slow() {
    let names: Vec<String> = ["a", "b", "c", "d", "e", "f", "g", "h"].map(str::to_owned).to_vec();
    let used = Used { hosts: names.iter().cloned().collect(), ..Used::default() };
    let whole = |excess| Trial { members: used.members(), excess, ..pair("a", "b", 0.0) };
    let star: Vec<Trial> = names[1..7].iter().map(|name| pair("a", name, 0.6)).collect();
    for (trials, suspects) in [(vec![whole(0.7)], 8), (star, 1)] {
        let belief = infer(&trials, &BTreeSet::new());
        let first = &belief.suspects[0];
        let hosts: BTreeSet<&str> = first.members.iter().flat_map(Member::hosts).map(String::as_str).collect();
        assert!(hosts.len() == suspects && first.runs_without == 0, "{first:?}");
        assert!((0.1..0.9).contains(&first.chance), "{first:?}");
        let plan = next_round(&belief, &names[..7], &BTreeSet::from([2]), Pace::Together);
        assert!(matches!(&plan, Plan::Run(round) if round.bits > 0.5), "{plan:?}");
    }
    // A run that is as it should be says that nobody is.
    let belief = infer(&[whole(0.0)], &BTreeSet::new());
    assert!(belief.suspects.iter().all(|suspect| suspect.chance < 0.2), "{:?}", belief.suspects);
}

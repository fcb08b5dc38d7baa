//! What runs tell of some hosts, and which sets of these to run next.

use std::collections::{BTreeMap, BTreeSet};

use collcast_hwbackend::read::End;
use serde::Serialize;

use super::failing::{Failing, HostSet, failing};
use crate::error::Error;
use crate::health::suspects::{Belief, Member, Pace, Plan, Suspect, Trial, infer, next_round};
use crate::health::{self, Run};

/// GPUs of a host where nobody says: those of DGX and HGX machines from V100 to B200.
pub const GPUS: u32 = 8;
/// Rounds after which it is usually known who is slow, and most of them. Origin: median and most of the fleets of 64 hosts
/// in `tests/hosts.rs` that have one or two slow hosts.
pub const USUAL_ROUNDS: (usize, usize) = (2, 6);
/// Runs one after the other until it is usually known, of one slow host and of two. Origin: the same fleets, medians.
pub const USUAL_RUNS: (usize, usize) = (9, 21);
/// Fewest hosts of which sets run at the same time: of three, no pair has another one beside it.
const FEWEST: usize = 4;
/// Fewest hosts whose sets tell them apart.
const APART: usize = 3;
/// Chance from which on a host is named as slow: what is likelier than not.
const NAMED: f64 = 0.5;

/// What is asked.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Request {
    /// Names of the hosts; those that runs name where there are none.
    pub hosts: Vec<String>,
    /// Whether sets run at the same time.
    pub pace: Pace,
    /// GPUs of each host; what runs say where none is given, or else [`GPUS`].
    pub gpus: Option<u32>,
}

/// What is known of some hosts, and what to run next.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Next {
    /// Names of the hosts, as they were given.
    pub hosts: Vec<String>,
    /// GPUs of each.
    pub gpus: u32,
    /// Whether nobody said how many, so that [`GPUS`] is assumed.
    pub gpus_assumed: bool,
    /// Runs that it rests on.
    pub runs: usize,
    /// Runs that are left out: they name no host, or others too, or lack the sizes of the rest.
    pub left_out: usize,
    /// Runs that failed, which are no evidence of who is slow.
    pub failed: usize,
    /// Hosts that these have in common.
    pub failing: Vec<Failing>,
    /// Those of them whose runs all failed: the others are planned without them.
    pub broken: Vec<String>,
    /// Members of the hosts that may be slow, the likeliest first.
    pub suspects: Vec<Suspect>,
    /// Hosts that are slow by half or more, in words, with the chance of each.
    pub named: Vec<(String, f64)>,
    /// The sets to run, or that nothing is to run.
    pub plan: Plan,
    /// Whether the sets run one after the other.
    #[serde(skip)]
    pub one_by_one: bool,
}

/// A host's name up to the first dot, as nccl-tests prints it.
pub fn short(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// What runs tell of the hosts, and the sets to run next. `without_rows`: the hosts of each run that failed and gave no row.
///
/// # Errors
/// Fewer than two hosts.
pub fn next(runs: &[Run], without_rows: &[Vec<String>], request: &Request) -> Result<Next, Error> {
    let runs: Vec<Run> = runs.iter().map(with_short_names).collect();
    let without_rows: Vec<HostSet> =
        without_rows.iter().map(|set| set.iter().map(|host| short(host).to_owned()).collect()).collect();
    let hosts = match &request.hosts[..] {
        [] => {
            let used = runs.iter().map(|run| &run.used.hosts).chain(&without_rows);
            used.flatten().cloned().collect::<BTreeSet<_>>().into_iter().collect()
        }
        hosts => hosts.to_vec(),
    };
    if hosts.len() < 2 {
        return Err(Error::usage(
            format!("--next-runs: the logs name {} hosts, and sets of hosts are made of 2 or more", hosts.len()),
            "name the hosts with --host-names node[01-64], `a,b,c`, or @FILE",
        ));
    }
    if request.gpus == Some(0) {
        return Err(Error::usage("--next-runs: --gpus 0 leaves no GPU of a host to run on", "give --gpus 1 or more"));
    }
    let names: Vec<String> = hosts.iter().map(|host| short(host).to_owned()).collect();
    let is_of_these = |used: &HostSet| !used.is_empty() && used.iter().all(|host| names.contains(host));
    let ours: Vec<Run> = runs.iter().filter(|run| is_of_these(&run.used.hosts)).cloned().collect();
    let said = ours.iter().filter_map(|run| run.ranks.checked_div(u32::try_from(run.used.hosts.len()).ok()?)).max();
    let gpus = request.gpus.or(said).unwrap_or(GPUS).max(1);
    let (mut trials, mut whole, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for (run, trial) in health::compared(&ours) {
        match trial {
            Some(trial) => {
                whole.push(run.used.hosts.clone());
                trials.push(trial);
            }
            // A run that was cut before sizes of the rest did not end well either.
            None if run.end != End::Whole => failed.push(run.used.hosts.clone()),
            None => {}
        }
    }
    let left_out = runs.len() - trials.len() - failed.len();
    failed.extend(without_rows.into_iter().filter(is_of_these));
    let failing = failing(&failed, &whole);
    let broken: BTreeSet<&String> = failing.iter().filter(|f| f.is_sure(&failed)).flat_map(|f| &f.hosts).collect();
    let names: Vec<String> = names.into_iter().filter(|name| !broken.contains(name)).collect();
    let fleet: BTreeSet<Member> = names
        .iter()
        .flat_map(|host| [Member::Host { host: host.clone() }, Member::Network { host: host.clone() }])
        .collect();
    let mut belief = infer(&trials, &fleet);
    let known = sizes_run(&trials, gpus);
    // Sets that failed are not run again as they were.
    belief.runs += failed.len();
    // Of few hosts no pair has another one to run beside it.
    let pace = if names.len() < FEWEST { Pace::OneByOne } else { request.pace };
    let plan = match next_round(&belief, &names, &known, pace) {
        // Of two, a set of one has none beside it that it shares a network with.
        Plan::Run(_) if names.len() < APART => Plan::Alike,
        Plan::Run(mut round) => {
            let full: BTreeMap<&str, &String> = hosts.iter().map(|host| (short(host), host)).collect();
            let whole = |name: &mut String| {
                if let Some(host) = full.get(name.as_str()) {
                    name.clone_from(host);
                }
            };
            round.sets.iter_mut().flatten().for_each(whole);
            Plan::Run(round)
        }
        other => other,
    };
    let named = named(&belief);
    Ok(Next {
        gpus,
        gpus_assumed: request.gpus.is_none() && said.is_none(),
        runs: trials.len(),
        left_out,
        failed: failed.len(),
        broken: broken.into_iter().cloned().collect(),
        failing,
        suspects: if trials.is_empty() { Vec::new() } else { belief.suspects },
        named: if trials.is_empty() { Vec::new() } else { named },
        plan,
        one_by_one: pace == Pace::OneByOne,
        hosts,
    })
}

/// The run with names as nccl-tests cuts them.
fn with_short_names(run: &Run) -> Run {
    let mut run = run.clone();
    run.used.hosts = run.used.hosts.iter().map(|host| short(host).to_owned()).collect();
    run.used.gpus = run.used.gpus.into_iter().map(|(host, gpu)| (short(&host).to_owned(), gpu)).collect();
    run
}

/// Numbers of hosts for which there are runs of the kind that scripts have: an all-reduce over all GPUs.
fn sizes_run(trials: &[Trial], gpus: u32) -> BTreeSet<usize> {
    let hosts = |trial: &Trial| trial.members.iter().filter(|m| matches!(m, Member::Host { .. })).count();
    let of_scripts =
        |trial: &&Trial| trial.kind == format!("all_reduce over {} ranks", hosts(trial) as u64 * u64::from(gpus));
    trials.iter().filter(of_scripts).map(hosts).collect()
}

/// Hosts that are likelier slow than not, whatever of them it is.
fn named(belief: &Belief) -> Vec<(String, f64)> {
    let mut by_host: BTreeMap<Vec<String>, Vec<&Suspect>> = BTreeMap::new();
    for suspect in &belief.suspects {
        let hosts: BTreeSet<&String> = suspect.members.iter().flat_map(Member::hosts).collect();
        by_host.entry(hosts.into_iter().cloned().collect()).or_default().push(suspect);
    }
    let mut named: Vec<(String, f64)> = Vec::new();
    for of in by_host.values() {
        let chance = of.iter().map(|s| s.chance).sum::<f64>().min(1.0);
        if chance >= NAMED {
            let words: Vec<&str> = of.iter().map(|s| s.name.as_str()).collect();
            named.push((words.join(" or "), chance));
        }
    }
    named.sort_by(|a, b| b.1.total_cmp(&a.1));
    named
}

//! Runs that failed, by host: how long they took is no evidence, and which hosts they have in common may be.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

/// Hosts of a run.
pub(super) type HostSet = BTreeSet<String>;

/// Hosts whose runs fail.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Failing {
    /// The hosts; several are in the same runs that failed.
    pub hosts: Vec<String>,
    /// Runs with each of them that failed.
    pub failed: usize,
    /// All runs with each of them.
    pub runs: usize,
}

impl Failing {
    /// Whether it is one host whose runs all failed: others too, or it was alone.
    pub(super) fn is_sure(&self, failed: &[HostSet]) -> bool {
        let [host] = &self.hosts[..] else { return false };
        self.failed == self.runs && (self.failed > 1 || failed.iter().any(|set| set.len() == 1 && set.contains(host)))
    }

    /// `3 of 3 runs with node003 failed`.
    pub fn told(&self) -> String {
        let (Self { failed, runs, .. }, hosts) = (self, self.hosts.join(" or "));
        match runs {
            1 => format!("the run with {hosts} failed"),
            _ => format!("{failed} of {runs} runs with {hosts} failed"),
        }
    }
}

/// The fewest hosts that the runs which failed have in common, those of most of them first. A host counts where no run with it
/// ended well, or where several failed and these are the most.
pub(super) fn failing(failed: &[HostSet], whole: &[HostSet]) -> Vec<Failing> {
    let count = |sets: &[HostSet]| {
        let mut of: BTreeMap<String, usize> = BTreeMap::new();
        sets.iter().flatten().for_each(|host| *of.entry(host.clone()).or_default() += 1);
        of
    };
    let (bad, good) = (count(failed), count(whole));
    let share = |host: &String| bad[host] as f64 / (bad[host] + good.get(host).copied().unwrap_or(0)) as f64;
    let counts = |host: &String| share(host) == 1.0 || bad[host] > 1 && share(host) > 0.5;
    let mut left: Vec<&HostSet> = failed.iter().collect();
    let mut found = Vec::new();
    loop {
        let now = |host: &String| left.iter().map(|set| set.contains(host)).collect::<Vec<bool>>();
        let of = |host: &String| now(host).into_iter().filter(|is| *is).count();
        let likelier =
            |a: &&String, b: &&String| share(a).total_cmp(&share(b)).then(of(a).cmp(&of(b))).then_with(|| b.cmp(a));
        let hosts: BTreeSet<&String> = left.iter().copied().flatten().filter(|host| counts(host)).collect();
        let Some(first) = hosts.iter().copied().max_by(likelier) else { return found };
        let alike = |host: &&&String| now(host) == now(first) && share(host) == share(first);
        found.push(Failing {
            hosts: hosts.iter().filter(alike).map(|host| (*host).clone()).collect(),
            failed: bad[first],
            runs: bad[first] + good.get(first).copied().unwrap_or(0),
        });
        let first = first.clone();
        left.retain(|set| !set.contains(&first));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sets(all: &[&[&str]]) -> Vec<HostSet> {
        all.iter().map(|set| set.iter().map(|host| (*host).to_owned()).collect()).collect()
    }

    /// Goal: the host that runs which failed have in common is named, what one run cannot tell apart is named together, and a
    /// host that completed as many runs is not.
    /// Expected by hand: c is in all three that failed; of a pair nobody knows which; a failed with c alone.
    #[test]
    fn what_failed_runs_share_is_named() {
        let told = |failed: &[&[&str]], whole: &[&[&str]]| -> Vec<String> {
            failing(&sets(failed), &sets(whole)).iter().map(Failing::told).collect()
        };
        let good: &[&[&str]] = &[&["a", "b"], &["a", "d"], &["b", "d"]];
        assert_eq!(told(&[&["a", "c"], &["b", "c"], &["c", "d"]], good), ["3 of 3 runs with c failed"]);
        assert_eq!(told(&[&["c", "e"]], good), ["the run with c or e failed"]);
        assert_eq!(
            told(&[&["a", "c"], &["b", "c"], &["f", "g"]], good),
            ["2 of 2 runs with c failed", "the run with f or g failed"]
        );
        assert_eq!(told(&[&["a", "b"]], good), Vec::<String>::new());
        assert_eq!(
            told(&[&["a", "c"], &["b", "c"]], &[&["c", "d"]]),
            ["the run with a failed", "the run with b failed"]
        );
        assert_eq!(
            told(&[&["a", "c"], &["b", "c"]], &[&["a", "d"], &["b", "d"], &["c", "d"]]),
            ["2 of 3 runs with c failed"]
        );
        assert!(told(&[], good).is_empty());
    }
}

//! Built-in profiles that others' runs are fitted to, and the machines that they are nearest to.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use collcast_sim::ids::Rank;
use collcast_sim::profile::Profile;
use collcast_sim::topology::{Topology, VertexKind, family};
use serde::Deserialize;

use crate::health::{Doubt, Part};

/// A profile that others' runs are fitted to, and what joins the ranks of these.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// Its name.
    pub name: String,
    /// Kinds of network of the machines; none where NVLink alone joins them.
    pub networks: Vec<String>,
    /// Families of GPUs of the runs that it was unseen on.
    pub gpus: Vec<String>,
    /// How far bands of sizes of unseen runs are off: the root mean square over publishers of ln(measured / expected).
    pub unseen: Doubt,
    /// The same by the machines' own profiles.
    pub own: Doubt,
    /// Runs behind it.
    pub runs: usize,
    /// Publishers of these.
    pub publishers: usize,
}

#[derive(Deserialize, Default)]
struct File {
    profiles: Vec<Published>,
}

/// What is known of them. `COLLCAST_UPDATE=1 cargo test --test program verdicts` writes it anew.
// A test reads the file: it is whole.
static FILE: LazyLock<File> = LazyLock::new(|| toml::from_str(include_str!("published.toml")).unwrap_or_default());

/// Odds below which evidence is "not worth more than a bare mention": Kass and Raftery, "Bayes Factors", JASA 90, 1995.
const ODDS_LEAST: f64 = 3.0;

/// Kinds of network that join the hosts of a machine.
pub(crate) fn networks(topology: &Topology) -> BTreeSet<String> {
    let nics = topology.vertices().filter_map(|(_, v)| match &v.kind {
        VertexKind::Nic(nic) if !nic.management => Some(nic.kind.name().to_owned()),
        _ => None,
    });
    nics.collect()
}

/// Families of the GPUs of a machine, such as `H100`.
pub(crate) fn families(topology: &Topology) -> BTreeSet<String> {
    let gpus = (0..topology.ranks()).filter_map(|r| topology.gpu(topology.gpu_of(Rank(r))));
    let models: BTreeSet<&str> = gpus.map(|gpu| gpu.model.as_str()).filter(|model| !model.is_empty()).collect();
    models.into_iter().map(family).collect()
}

/// The profile that forecasts are best made with of calls of all ranks of a machine, where its own is not: one that is fitted
/// to runs of such machines, and nearer to those of publishers that it had not seen. One of a network is for several hosts: inside one,
/// NVLS of healthy H100 is 2% off by cited constants and 4% by those that fit two hosts.
pub fn published_for(topology: &Topology) -> Option<&'static Published> {
    let nodes: BTreeSet<_> = (0..topology.ranks()).map(|r| topology.node_of(Rank(r))).collect();
    let (networks, gpus) = (networks(topology), families(topology));
    let fits = |published: &&Published| {
        let Ok(profile) = Profile::builtin(&published.name) else { return false };
        let of_network = nodes.len() > 1 && networks.iter().all(|n| published.networks.contains(n));
        let joined = published.networks.is_empty() || of_network;
        // What joins all ranks inside one NVLink domain has the same rate however few they are.
        let as_large =
            published.networks.is_empty() || profile.ranks.is_none_or(|[fewest, _]| topology.ranks() >= fewest);
        published.nearer()
            && as_large
            && !gpus.is_empty()
            && gpus.iter().all(|gpu| published.gpus.contains(gpu))
            && joined
    };
    FILE.profiles.iter().find(fits)
}

/// Whether a profile of this name is fitted to others' runs.
pub fn fitted_to_published(name: &str) -> bool {
    all().iter().any(|published| published.name == name)
}

/// All of them.
pub(super) fn all() -> &'static [Published] {
    &FILE.profiles
}

impl Published {
    /// Whether it is surely nearer to unseen runs than the machines' own: over all sizes by more than chance, and no farther
    /// at large ones, by which machines are judged.
    pub fn nearer(&self) -> bool {
        self.odds() >= ODDS_LEAST && self.unseen.large <= self.own.large
    }

    /// How many times as likely the unseen runs are under it as under the machines' own, where the errors of publishers are
    /// normal and as wide as they were: the likelihood of `p` errors of standard deviation `s` goes as `s^-p`.
    fn odds(&self) -> f64 {
        let times = |part: Part| self.own.of(part) / self.unseen.of(part);
        Part::ALL.into_iter().map(times).product::<f64>().powf(self.publishers as f64)
    }

    /// Why it is taken.
    pub(super) fn why(&self) -> String {
        let percent = |doubt: f64| format!("{:.0}%", doubt.exp_m1() * 100.0);
        format!(
            "profile {} is taken for such machines: {} runs of {} publishers that it had not seen were {} off at large sizes and {} at small ones, without it {} and {} (root mean square over publishers)",
            self.name,
            self.runs,
            self.publishers,
            percent(self.unseen.large),
            percent(self.unseen.small),
            percent(self.own.large),
            percent(self.own.small),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a profile needs more than chance to be taken: 5% against 6% of two publishers is none, of many it is.
    #[test]
    fn a_margin_is_needed() {
        let of = |unseen: f64, own: f64, publishers: usize| Published {
            name: String::new(),
            networks: Vec::new(),
            gpus: Vec::new(),
            unseen: Doubt { small: 0.3, middle: 0.1, large: unseen },
            own: Doubt { small: 0.3, middle: 0.1, large: own },
            runs: publishers,
            publishers,
        };
        assert!(!of(0.048, 0.056, 2).nearer());
        assert!(of(0.048, 0.056, 8).nearer());
        assert!(of(0.03, 0.06, 2).nearer());
        assert!(!of(0.06, 0.05, 20).nearer());
    }
}

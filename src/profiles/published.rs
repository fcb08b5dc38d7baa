//! Built-in profiles that others' runs are fitted to, and the machines that they are nearest to.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use collcast_sim::ids::Rank;
use collcast_sim::profile::Profile;
use collcast_sim::topology::{Topology, VertexKind};
use serde::Deserialize;

/// A profile that others' runs are fitted to, and what joins the ranks of these.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// Its name.
    pub name: String,
    /// Kinds of network of the machines; none where NVLink alone joins them.
    pub networks: Vec<String>,
    /// How far large sizes of unseen runs are off: the root mean square over publishers of ln(measured / expected).
    pub large: f64,
    /// The same by the machines' own profiles.
    pub own: f64,
    /// Runs behind it.
    pub runs: usize,
    /// Publishers of these.
    pub publishers: usize,
}

#[derive(Deserialize, Default)]
struct File {
    profiles: Vec<Published>,
}

/// What is known of them. `COLLCAST_UPDATE=1 cargo test --test verdicts` writes it anew.
// A test reads the file: it is whole.
static FILE: LazyLock<File> = LazyLock::new(|| toml::from_str(include_str!("published.toml")).unwrap_or_default());

/// The profile by which runs on a machine are best judged, where that is not its own: one that is fitted to runs of such
/// machines, and nearer to those of publishers that it had not seen.
pub fn published_for(topology: &Topology) -> Option<&'static Published> {
    let hosts: BTreeSet<_> = (0..topology.ranks()).map(|r| topology.node_of(Rank(r))).collect();
    let own = topology.profile.as_deref().and_then(|name| Profile::builtin(name).ok());
    if hosts.len() < 2 && own.is_some_and(|own| !own.is_cited()) {
        return None;
    }
    let networks: BTreeSet<&str> = (topology.vertices())
        .filter_map(|(_, v)| match &v.kind {
            VertexKind::Nic(nic) if !nic.management => Some(nic.kind.name()),
            _ => None,
        })
        .collect();
    let gpus: BTreeSet<&str> = (0..topology.ranks())
        .filter_map(|r| topology.gpu(topology.gpu_of(Rank(r))).map(|gpu| gpu.model.as_str()))
        .collect();
    let fits = |published: &&Published| {
        let Ok(profile) = Profile::builtin(&published.name) else { return false };
        let known = |gpu: &&str| profile.gpus.iter().any(|family| gpu.split('-').next() == Some(family));
        let joined =
            published.networks.is_empty() || networks.iter().all(|n| published.networks.iter().any(|p| p == n));
        let as_large = profile.ranks.is_none_or(|[fewest, _]| topology.ranks() >= fewest);
        published.large < published.own && as_large && !gpus.is_empty() && gpus.iter().all(known) && joined
    };
    FILE.profiles.iter().find(fits)
}

/// All of them.
pub(super) fn all() -> &'static [Published] {
    &FILE.profiles
}

impl Published {
    /// Why it is taken, where the machine's `own` is not.
    pub(super) fn why(&self, own: &str) -> String {
        format!(
            "profile {} is taken for such machines: it was {:.0}% off at large sizes on {} runs of {} publishers that it had not seen, `{own}` {:.0}%",
            self.name,
            self.large * 100.0,
            self.runs,
            self.publishers,
            self.own * 100.0,
        )
    }
}

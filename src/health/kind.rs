//! How far healthy machines lie from their forecast, by what joins the ranks: errors on published runs that the profile
//! had not seen.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use collcast_sim::collective::Collective;
use collcast_sim::domain::{Beyond, Reason};
use collcast_sim::ids::{HostId, Rank};
use collcast_sim::nccl::Interface;
use collcast_sim::predict::Settings;
use collcast_sim::topology::{LinkKind, Topology, VertexKind};
use serde::{Deserialize, Serialize};

use super::part::Part;

/// What joins the ranks of a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// NVLink inside one host.
    Nvlink,
    /// NVLink over several hosts.
    NvlinkHosts,
    /// InfiniBand or RoCE with GPUDirect, between hosts whose GPUs have NVLink.
    Rdma,
    /// EFA with GPUDirect, between such hosts.
    Efa,
    /// Slingshot with GPUDirect, between such hosts.
    Slingshot,
    /// One of these three, and every rank sends to every other.
    Exchange,
    /// Any of these with NCCL before 2.18, whose kernels and defaults are modelled more loosely.
    Old,
    /// Anything else: PCIe alone, staging in host memory, TCP.
    Other,
}

impl Kind {
    /// What it is, for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nvlink => "NVLink inside one host",
            Self::NvlinkHosts => "NVLink over several hosts",
            Self::Rdma => "InfiniBand or RoCE between hosts with NVLink",
            Self::Efa => "EFA between hosts with NVLink",
            Self::Slingshot => "Slingshot between hosts with NVLink",
            Self::Exchange => "an exchange of all with all between hosts",
            Self::Old => "NCCL before 2.18",
            Self::Other => "PCIe, staging in host memory or TCP",
        }
    }

    /// That of a call over the first ranks of a machine.
    pub fn of(topology: &Topology, (collective, ranks): (Collective, u32), settings: &Settings) -> Self {
        let version = settings.version.or(topology.software.nccl).unwrap_or_default();
        let tcp = settings.transport.interface != Interface::Data;
        let distinct = |of: &dyn Fn(Rank) -> HostId| {
            (0..ranks.min(topology.ranks())).map(|r| of(Rank(r))).collect::<BTreeSet<_>>().len()
        };
        let nvlink = topology.links().any(|(.., link)| link.kind == LinkKind::Nvlink);
        let (nodes, hosts) = (distinct(&|r| topology.node_of(r)), distinct(&|r| topology.host_of(r)));
        match () {
            () if !nvlink => Self::Other,
            () if !version.since(18) => Self::Old,
            () if hosts < 2 => Self::Nvlink,
            () if nodes < 2 => Self::NvlinkHosts,
            () if tcp => Self::Other,
            () => Self::of_network(topology, collective),
        }
    }

    /// That of a call between hosts whose GPUs have NVLink.
    fn of_network(topology: &Topology, collective: Collective) -> Self {
        let nics = topology.vertices().filter_map(|(_, v)| match &v.kind {
            VertexKind::Nic(nic) if !nic.management => Some(nic),
            _ => None,
        });
        let (mut direct, mut kinds) = (true, BTreeSet::new());
        for nic in nics {
            direct &= nic.gpudirect;
            kinds.insert(nic.kind.name());
        }
        let only = |kind: LinkKind| kinds.len() == 1 && kinds.contains(kind.name());
        match () {
            () if !direct || kinds.is_empty() || only(LinkKind::Ethernet) => Self::Other,
            () if matches!(collective, Collective::AllToAll | Collective::Gather | Collective::Scatter) => {
                Self::Exchange
            }
            () if only(LinkKind::Efa) => Self::Efa,
            () if only(LinkKind::Slingshot) => Self::Slingshot,
            () => Self::Rdma,
        }
    }
}

/// Standard deviations of the logarithm of measured over expected time that healthy runs have among each other, for the
/// median of a band of sizes.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Doubt {
    /// Of small sizes.
    pub small: f64,
    /// Of those in the middle.
    pub middle: f64,
    /// Of large sizes.
    pub large: f64,
}

impl Doubt {
    /// That of what nobody published runs of: a factor of two.
    pub const UNKNOWN: Self = Self { small: 0.69, middle: 0.69, large: 0.69 };

    /// That of a part.
    pub fn of(&self, part: Part) -> f64 {
        match part {
            Part::Small => self.small,
            Part::Middle => self.middle,
            Part::Large => self.large,
        }
    }

    /// The same, so many times as large.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self { small: self.small * factor, middle: self.middle * factor, large: self.large * factor }
    }
}

/// What unseen runs of a kind showed.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unseen {
    /// The kind.
    pub kind: Kind,
    /// Runs with large sizes behind it.
    pub runs: usize,
    /// Publishers of these.
    pub publishers: usize,
    /// The fewest ranks and the most.
    pub ranks: [u32; 2],
    /// Algorithms with their protocols, as NCCL was forecast to choose them.
    pub choices: Vec<String>,
    /// How far they were off.
    pub doubt: Doubt,
}

impl Unseen {
    /// Whether these runs are as far from what a profile was measured on as a forecast over so many ranks is.
    pub fn covers(&self, ranks: u32, beyond: &Beyond) -> bool {
        let known = (self.ranks[0]..=self.ranks[1]).contains(&ranks);
        let mut reasons = beyond.reasons();
        known
            && reasons.all(|reason| match reason {
                Reason::Ranks { .. } | Reason::Launch(_) | Reason::Switches => true,
                Reason::Choice(algorithm, protocol) => self.choices.contains(&format!("{algorithm}/{protocol}")),
                Reason::Cited(_) | Reason::Gpu { .. } | Reason::Hosts => false,
            })
    }
}

#[derive(Deserialize, Default)]
struct File {
    #[serde(default)]
    kinds: Vec<Unseen>,
}

/// What is known of kinds. `COLLCAST_UPDATE=1 cargo test --test program verdicts` writes it anew.
// A test reads the file: it is whole.
static FILE: LazyLock<File> = LazyLock::new(|| toml::from_str(include_str!("unseen.toml")).unwrap_or_default());

impl Kind {
    /// What unseen runs of the kind showed.
    pub fn unseen(self) -> Option<&'static Unseen> {
        FILE.kinds.iter().find(|unseen| unseen.kind == self)
    }
}

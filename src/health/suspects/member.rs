//! What may be sick: hosts and their parts.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

/// Something whose slowness makes every run that uses it slow.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Member {
    /// A host: what every run on it uses.
    Host {
        /// Its name.
        host: String,
    },
    /// What a host needs to reach others: NICs, their PCIe links, cables.
    Network {
        /// Its name.
        host: String,
    },
    /// A GPU of a host.
    Gpu {
        /// The host's name.
        host: String,
        /// Its place on the PCIe bus, or its number, as the log has it.
        gpu: String,
    },
    /// A NIC of a host.
    Nic {
        /// The host's name.
        host: String,
        /// Its name, such as `mlx5_0`.
        nic: String,
    },
    /// NICs of one name in all hosts, with the switches behind them.
    Rail {
        /// Their name.
        nic: String,
    },
    /// The way between two GPUs of a host.
    GpuLink {
        /// The host's name.
        host: String,
        /// Their places or numbers, sorted.
        gpus: [String; 2],
    },
    /// The way between two hosts.
    Link {
        /// Their names, sorted.
        hosts: [String; 2],
    },
}

/// What a run used, as its log says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Used {
    /// Names of hosts.
    pub hosts: BTreeSet<String>,
    /// NICs that `NCCL_IB_HCA` names.
    pub nics: BTreeSet<String>,
    /// GPUs: their host and place.
    pub gpus: BTreeSet<(String, String)>,
}

/// Chance that a host is slow inside before anything is measured. Operators of 24,000 A100 found 1% to 2% of their hosts to be
/// bad ones (Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning Research Clusters", 2024, arXiv
/// 2410.21680, on lemon nodes); it is as likely as not that the network of a host is what is bad.
const HOST: f64 = 0.0075;
/// The same of its NICs and cables together.
const NETWORK: f64 = 0.0075;
/// The same of one GPU, or one NIC, apart from the other seven: an eighth of [`HOST`].
const PART: f64 = HOST / 8.0;
/// The same of the way between two hosts that are both well: a host has as many as there are hosts, and all of them
/// together are as likely as one part in a fleet of some tens. The 28 ways between 8 GPUs are together as likely to be slow
/// as three of these GPUs.
const LINK: f64 = 1e-4;

impl Member {
    /// Chance that it is slow before anything is measured.
    pub fn prior(&self) -> f64 {
        match self {
            Self::Host { .. } => HOST,
            Self::Network { .. } => NETWORK,
            Self::Gpu { .. } | Self::Nic { .. } | Self::Rail { .. } => PART,
            Self::Link { .. } | Self::GpuLink { .. } => LINK,
        }
    }

    /// The hosts that it belongs to.
    pub fn hosts(&self) -> &[String] {
        match self {
            Self::Host { host }
            | Self::Network { host }
            | Self::Gpu { host, .. }
            | Self::Nic { host, .. }
            | Self::GpuLink { host, .. } => std::slice::from_ref(host),
            Self::Rail { .. } => &[],
            Self::Link { hosts } => hosts,
        }
    }

    /// Whether it is a part of another one, so that naming that one is enough.
    pub fn is_part_of(&self, other: &Self) -> bool {
        match other {
            Self::Host { host } => self != other && self.hosts().contains(host),
            Self::Network { host } => {
                matches!(self, Self::Nic { .. } | Self::Link { .. }) && self.hosts().contains(host)
            }
            Self::Rail { nic: rail } => matches!(self, Self::Nic { nic, .. } if nic == rail),
            _ => false,
        }
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host { host } => write!(f, "host {host}"),
            Self::Network { host } => write!(f, "network of host {host}"),
            Self::Gpu { host, gpu } => write!(f, "GPU {gpu} of host {host}"),
            Self::Nic { host, nic } => write!(f, "NIC {nic} of host {host}"),
            Self::Rail { nic } => write!(f, "NIC {nic}"),
            Self::GpuLink { host, gpus: [a, b] } => write!(f, "link between GPUs {a} and {b} of host {host}"),
            Self::Link { hosts: [a, b] } => write!(f, "link between hosts {a} and {b}"),
        }
    }
}

impl Used {
    /// The members that may have made the run slow. Several hosts use their networks. Which ways between
    /// hosts were used is known of two alone, and so of GPUs inside one host.
    pub fn members(&self) -> BTreeSet<Member> {
        let mut members: BTreeSet<Member> = self.hosts.iter().map(|h| Member::Host { host: h.clone() }).collect();
        members.extend(self.gpus.iter().map(|(host, gpu)| Member::Gpu { host: host.clone(), gpu: gpu.clone() }));
        if self.hosts.len() == 1 {
            if let [(host, a), (_, b)] = self.gpus.iter().collect::<Vec<_>>()[..] {
                members.insert(Member::GpuLink { host: host.clone(), gpus: [a.clone(), b.clone()] });
            }
            return members;
        }
        members.extend(self.hosts.iter().map(|h| Member::Network { host: h.clone() }));
        for nic in &self.nics {
            members.insert(Member::Rail { nic: nic.clone() });
            members.extend(self.hosts.iter().map(|h| Member::Nic { host: h.clone(), nic: nic.clone() }));
        }
        if let [a, b] = self.hosts.iter().collect::<Vec<_>>()[..] {
            members.insert(Member::Link { hosts: [a.clone(), b.clone()] });
        }
        members
    }
}

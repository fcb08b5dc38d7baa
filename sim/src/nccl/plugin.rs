//! Network plugins: what only they reach, what they set before NCCL reads its variables, and what keeps them from it.

use super::aws;
use super::rules::Rules;
use super::version::Version;
use crate::topology::{LinkKind, Nic, Topology};

/// Google's plugin of GPUDirect-TCPXO (FasTrak), by its name in topology files.
pub const TCPXO: &str = "gpudirect-tcpxo";

/// The library of a network's plugin where nothing names another (NCCL's `src/plugin/net.cc`).
pub const LIBRARY: &str = "libnccl-net.so";

/// Whether a NIC carries data by more than NCCL's sockets: RDMA, or Ethernet that places data in GPU memory, which only a
/// plugin does (GPUDirect-TCPX and TCPXO).
pub(crate) fn is_beyond_sockets(nic: &Nic) -> bool {
    nic.kind != LinkKind::Ethernet || nic.gpudirect
}

/// Whether NCCL reaches the NICs of a machine through a plugin only: EFA, Slingshot, and Ethernet that places data in GPU
/// memory.
pub fn needs_plugin(topology: &Topology) -> bool {
    let verbs = |nic: &Nic| matches!(nic.kind, LinkKind::Infiniband | LinkKind::Roce);
    let mut nics = topology.hosts().iter().flat_map(|host| &host.nics).filter_map(|&n| topology.nic(n)).peekable();
    nics.peek().is_some() && nics.all(|nic| is_beyond_sockets(nic) && !verbs(nic))
}

/// Whether a machine has NICs of EFA.
pub fn has_efa(topology: &Topology) -> bool {
    topology.hosts().iter().flat_map(|host| &host.nics).any(|&n| topology.nic(n).is_some_and(is_efa))
}

fn is_efa(nic: &Nic) -> bool {
    nic.kind == LinkKind::Efa
}

/// Whether `FI_PROVIDER` keeps libfabric from EFA. It is a list of names, or of all others behind `^`; empty is none.
pub fn without_efa(provider: &str) -> bool {
    let (list, others) = provider.strip_prefix('^').map_or((provider, false), |rest| (rest, true));
    let named = list.split([',', ';']).any(|name| name.trim().eq_ignore_ascii_case("efa"));
    !provider.trim().is_empty() && named == others
}

/// The variables that NCCL of a version finds on a machine where it is told some: what its plugin sets and that version
/// reads, then what the machine says, then those. Of a name given twice the last counts.
pub fn environment(topology: &Topology, version: Version, told: &[(String, String)]) -> Vec<(String, String)> {
    let own = || topology.software.env.iter().chain(told).cloned();
    let named = own().rfind(|(name, _)| name == "NCCL_NET_PLUGIN");
    let loaded = named.is_none_or(|(_, value)| !value.eq_ignore_ascii_case("none"));
    let unread = Rules::of(version).unread;
    let set = aws::settings(topology, version).filter(|(name, _)| loaded && !unread.contains(name));
    set.map(|(name, value)| (name.to_owned(), value.to_owned())).chain(own()).collect()
}

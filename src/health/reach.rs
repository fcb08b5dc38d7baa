//! What machines of a kind reached in published runs.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use collcast_sim::collective::Collective;
use collcast_sim::ids::{HostId, Rank};
use collcast_sim::topology::Topology;
use collcast_sim::units::Bytes;
use serde::{Deserialize, Serialize};

use crate::profiles::{families, networks};

/// The highest bus bandwidth of one published run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reached {
    /// Who published it.
    pub publisher: String,
    /// Where.
    pub source: String,
    /// Families of its GPUs, such as `H100`.
    pub gpus: BTreeSet<String>,
    /// Kinds of network between its hosts; none inside one host.
    pub networks: BTreeSet<String>,
    /// Rate of all NICs of a host for data, in GB/s and one direction; 0 inside one host.
    #[serde(default)]
    pub nics_gbps: f64,
    /// Hosts.
    pub hosts: u32,
    /// Ranks.
    pub ranks: u32,
    /// What was run.
    pub collective: Collective,
    /// The size with the highest bus bandwidth.
    pub size_bytes: u64,
    /// That bus bandwidth, in GB/s.
    pub busbw_gbps: f64,
}

#[derive(Deserialize, Default)]
struct File {
    #[serde(default)]
    runs: Vec<Reached>,
}

/// The published runs. `COLLCAST_UPDATE=1 cargo test --test program verdicts` writes it anew.
// A test reads the file: it is whole.
static FILE: LazyLock<File> = LazyLock::new(|| toml::from_str(include_str!("reach.toml")).unwrap_or_default());

/// How many times as many hosts a run may have had, or a machine may have, for the one to say something of the other.
const NEAR: u32 = 4;
/// What rates of one nominal rate differ by where sources round them.
const NEAR_RATE: f64 = 0.01;
/// Runs that a note names.
const NAMED: usize = 3;

/// What the first ranks of a machine are, as published runs are told apart.
struct Machine {
    gpus: BTreeSet<String>,
    networks: BTreeSet<String>,
    nics_gbps: f64,
    hosts: u32,
}

impl Machine {
    fn of(topology: &Topology, ranks: u32) -> Self {
        let hosts: BTreeSet<HostId> = (0..ranks.min(topology.ranks())).map(|r| topology.host_of(Rank(r))).collect();
        let nodes: BTreeSet<_> = (0..ranks.min(topology.ranks())).map(|r| topology.node_of(Rank(r))).collect();
        let several = nodes.len() > 1;
        let first = hosts.first().map(|host| topology.hosts()[host.index()].nics.as_slice()).unwrap_or_default();
        let nics_gbps = first.iter().filter_map(|&nic| topology.nic(nic)).map(|nic| nic.rate.gb_per_s()).sum();
        Self {
            gpus: families(topology),
            networks: if several { networks(topology) } else { BTreeSet::new() },
            nics_gbps: if several { nics_gbps } else { 0.0 },
            hosts: u32::try_from(hosts.len()).unwrap_or(u32::MAX),
        }
    }
}

impl Reached {
    /// A run on a machine.
    pub fn new(
        (publisher, source): (String, String),
        topology: &Topology,
        (collective, ranks): (Collective, u32),
        (size_bytes, busbw_gbps): (u64, f64),
    ) -> Self {
        let Machine { gpus, networks, nics_gbps, hosts } = Machine::of(topology, ranks);
        Self { publisher, source, gpus, networks, nics_gbps, hosts, ranks, collective, size_bytes, busbw_gbps }
    }

    fn is_like(&self, machine: &Machine, collective: Collective, ranks: u32) -> bool {
        self.collective == collective
            && self.gpus == machine.gpus
            && self.networks == machine.networks
            && (self.nics_gbps - machine.nics_gbps).abs() <= NEAR_RATE * machine.nics_gbps
            && self.ranks * machine.hosts == ranks * self.hosts
            && (self.hosts == machine.hosts || self.hosts.min(machine.hosts) > 1)
            && self.hosts.max(machine.hosts) <= NEAR * self.hosts.min(machine.hosts)
    }
}

/// Runs that others published of a call on the very machine, as many hosts of it.
pub fn of_same(topology: &Topology, collective: Collective, ranks: u32) -> Vec<&'static Reached> {
    let mut runs: Vec<&Reached> =
        FILE.runs.iter().filter(|run| run.collective == collective && run.ranks == ranks).collect();
    if !runs.is_empty() {
        let machine = Machine::of(topology, ranks);
        runs.retain(|run| run.hosts == machine.hosts && run.is_like(&machine, collective, ranks));
    }
    runs
}

/// What a note says of runs that others published of a call on such a machine, over as many hosts or the nearest number.
pub fn reached(topology: &Topology, collective: Collective, ranks: u32) -> Option<String> {
    let machine = Machine::of(topology, ranks);
    let mut like: Vec<&Reached> = FILE.runs.iter().filter(|run| run.is_like(&machine, collective, ranks)).collect();
    let nearest = like.iter().map(|run| run.hosts.abs_diff(machine.hosts)).min()?;
    like.retain(|run| run.hosts.abs_diff(machine.hosts) == nearest);
    like.sort_by(|a, b| b.busbw_gbps.total_cmp(&a.busbw_gbps));
    let named = like.iter().take(NAMED).map(|run| {
        format!("{:.0} GB/s at {} by {} ({})", run.busbw_gbps, Bytes(run.size_bytes), run.publisher, run.source)
    });
    let more = match like.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!("; {more} more down to {:.0}", like.last()?.busbw_gbps),
    };
    let over = like.first()?.ranks;
    let gpus = machine.gpus.into_iter().collect::<Vec<_>>().join(" and ");
    let networks = machine.networks.into_iter().collect::<Vec<_>>().join(" and ");
    let network = if networks.is_empty() { String::new() } else { format!(" over {networks}") };
    Some(format!(
        "published {collective} runs of {over} {gpus}{network} reached {}{more}",
        named.collect::<Vec<_>>().join(", ")
    ))
}

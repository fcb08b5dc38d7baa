//! NICs that are not as the others: dead, slower than their peers, or faster than the PCIe link that they hang from.

use std::collections::BTreeMap;

use collcast_sim::ids::VertexId;
use collcast_sim::topology::{LinkKind, Nic, Topology};
use collcast_sim::units::Bandwidth;

use crate::machine::rate_text;

/// How much faster than its PCIe link a NIC is before it is worth a word. NCCL's figures for PCIe leave out what packets
/// cost, so that a port of 50 GB/s hangs from a link of 48 GB/s by design.
const WORTH_A_WORD: f64 = 1.1;

/// A NIC of a host: its number there, from 0, management ones not counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Port {
    /// The host, by place.
    pub host: usize,
    /// The NIC.
    pub nic: u32,
    vertex: VertexId,
}

/// A port that runs at less than its peers do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slow {
    /// The port.
    pub port: Port,
    /// Its rate.
    pub rate: Bandwidth,
    /// The highest rate of its peers: NICs of one kind, on hosts with as many of them and the same GPUs.
    pub usual: Bandwidth,
}

/// The NICs that carry collectives, dead ones too, which no host lists.
fn ports(topology: &Topology) -> Vec<(Port, &Nic)> {
    let mut counts = vec![0; topology.hosts().len()];
    let mut ports = Vec::new();
    for (vertex, of) in topology.vertices() {
        let (Some(host), Some(nic)) = (of.host, topology.nic(vertex).filter(|nic| !nic.management)) else { continue };
        let number = &mut counts[host.index()];
        ports.push((Port { host: host.index(), nic: *number, vertex }, nic));
        *number += 1;
    }
    ports
}

fn is_up(topology: &Topology, port: Port) -> bool {
    topology.links_from(port.vertex).any(|(_, _, link)| link.kind.is_network())
}

/// The NICs without a cable, on a machine of several hosts with a network.
pub fn down(topology: &Topology) -> Vec<Port> {
    let (up, down): (Vec<Port>, Vec<Port>) =
        ports(topology).into_iter().map(|(port, _)| port).partition(|&port| is_up(topology, port));
    if up.is_empty() { up } else { down }
}

/// The ports that are slower than their peers.
pub fn slow(topology: &Topology) -> Vec<Slow> {
    let ports = ports(topology);
    let mut counts = vec![0_u32; topology.hosts().len()];
    ports.iter().for_each(|(port, _)| counts[port.host] += 1);
    let peers = |port: Port, nic: &Nic| {
        let host = &topology.hosts()[port.host];
        let gpu = host.gpus.first().and_then(|&gpu| topology.gpu(gpu)).map_or("", |gpu| gpu.model.as_str());
        (gpu, host.gpus.len(), counts[port.host], nic.kind)
    };
    let mut usual: BTreeMap<_, Bandwidth> = BTreeMap::new();
    for &(port, nic) in &ports {
        let most = usual.entry(peers(port, nic)).or_insert(nic.rate);
        *most = nic.rate.max(*most);
    }
    ports
        .iter()
        .filter(|(port, _)| is_up(topology, *port))
        .map(|&(port, nic)| Slow { port, rate: nic.rate, usual: usual[&peers(port, nic)] })
        .filter(|slow| slow.rate < slow.usual)
        .collect()
}

/// Names of some ports: `h3/nic2`, `h3/nic2 and 5 others`.
pub fn names(topology: &Topology, ports: &[Port]) -> String {
    let first = ports.first().map_or("", |port| topology.vertex(port.vertex).name.as_str());
    match ports.len() {
        0 | 1 => first.to_owned(),
        2 => format!("{first} and {}", topology.vertex(ports[1].vertex).name),
        n => format!("{first} and {} others", n - 1),
    }
}

/// What a user should know of the NICs before believing a forecast.
pub fn warnings(topology: &Topology) -> Vec<String> {
    let by_rates = |all: Vec<(Port, [Bandwidth; 2])>| {
        let mut alike: BTreeMap<[Bandwidth; 2], Vec<Port>> = BTreeMap::new();
        all.into_iter().for_each(|(port, rates)| alike.entry(rates).or_default().push(port));
        let told = |(rates, ports): ([Bandwidth; 2], Vec<Port>)| {
            (names(topology, &ports), rates.map(|rate| rate_text(rate.get())))
        };
        alike.into_iter().map(told).collect::<Vec<_>>()
    };
    let held = ports(topology).into_iter().filter_map(|(port, nic)| {
        let pcie = topology.links_from(port.vertex).filter(|(_, _, link)| link.kind == LinkKind::Pcie);
        let rate = pcie.map(|(_, _, link)| link.rate).max()?;
        (nic.rate.gb_per_s() > WORTH_A_WORD * rate.gb_per_s()).then_some((port, [nic.rate, rate]))
    });
    let held = by_rates(held.collect())
        .into_iter()
        .map(|(names, [nic, pcie])| format!("{names}: the PCIe link of {pcie} holds the NIC of {nic} back"));
    let slower = by_rates(slow(topology).into_iter().map(|slow| (slow.port, [slow.rate, slow.usual])).collect());
    let slower = slower.into_iter().map(|(names, [rate, usual])| {
        format!(
            "{names}: {rate} where peers run at {usual}; channels that NCCL lays through a slow port set the pace of the call"
        )
    });
    held.chain(slower).collect()
}

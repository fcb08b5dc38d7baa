//! Small machines built by hand, for the tests of the engine.

#![allow(dead_code, reason = "every test file uses some of it")]

pub(crate) mod naive;

use std::io::Write as _;

use collcast_sim::collective::{Algorithm, Collective};
use collcast_sim::ids::{HostId, Rank};
use collcast_sim::profile::Profile;
use collcast_sim::topology::{Gpu, Link, LinkKind, Nic, Topology, TopologyBuilder, VertexKind};
use collcast_sim::units::Bandwidth;

/// Which cases of a long test run: all with `COLLCAST_ALL_TESTS=1`, else one in some.
pub(crate) struct Sample {
    every: usize,
    seen: usize,
}

impl Sample {
    /// One in `every` cases, which is said.
    pub(crate) fn new(test: &str, every: usize) -> Self {
        if std::env::var_os("COLLCAST_ALL_TESTS").is_some() {
            return Self { every: 1, seen: 0 };
        }
        // Past what captures the output of tests that pass.
        let _ = writeln!(
            std::io::stderr(),
            "skipped: {test}: all but one in {every} cases; COLLCAST_ALL_TESTS=1 runs them"
        );
        Self { every, seen: 0 }
    }

    /// Whether the next case runs.
    pub(crate) fn takes(&mut self) -> bool {
        self.seen += 1;
        self.seen % self.every == 1 % self.every
    }

    /// What a number of all cases comes to.
    pub(crate) fn of(&self, all: usize) -> usize {
        all / self.every
    }
}

fn link(kind: LinkKind, gb_per_s: f64, width: u32) -> Link {
    Link { kind, rate: Bandwidth::from_gb_per_s(gb_per_s), width }
}

fn gpu(index: u32) -> VertexKind {
    VertexKind::Gpu(Gpu { index, model: "H200".to_owned(), compute_capability: 90, memory_rate: None, bus_id: None })
}

fn nic(index: u32) -> VertexKind {
    VertexKind::Nic(Nic {
        index,
        name: format!("mlx5_{index}"),
        kind: LinkKind::Infiniband,
        rate: Bandwidth::from_gb_per_s(50.0),
        gpudirect: true,
        gpudirect_rate: None,
        rail: Some(index),
        card: None,
        management: false,
        latency: None,
    })
}

/// One host: `gpus` GPUs on one NVSwitch, each at `gb_per_s` per direction.
pub(crate) fn nvswitch_box(gpus: u32, gb_per_s: f64) -> Topology {
    let mut builder = TopologyBuilder::new(format!("box of {gpus}"));
    let host = builder.host("host0");
    let switch = builder.vertex("host0/nvswitch", VertexKind::NvSwitch, Some(host));
    for index in 0..gpus {
        let id = builder.vertex(format!("host0/gpu{index}"), gpu(index), Some(host));
        builder.duplex(id, switch, link(LinkKind::Nvlink, gb_per_s, 18));
    }
    builder.build().unwrap()
}

/// One host: `gpus` GPUs at `gb_per_s` on two PCIe switches below one CPU.
pub(crate) fn pcie_box(gpus: u32, gb_per_s: f64) -> Topology {
    let mut builder = TopologyBuilder::new(format!("PCIe box of {gpus}"));
    let host = builder.host("host0");
    let cpu = builder.vertex("host0/cpu", VertexKind::Cpu { vendor: "GenuineIntel".to_owned() }, Some(host));
    let switches = [0, 1].map(|s| {
        let switch = builder.vertex(format!("host0/switch{s}"), VertexKind::PcieSwitch, Some(host));
        builder.duplex(switch, cpu, link(LinkKind::Pcie, gb_per_s, 16));
        switch
    });
    for index in 0..gpus {
        let id = builder.vertex(format!("host0/gpu{index}"), gpu(index), Some(host));
        let switch = switches[usize::from(2 * index >= gpus.max(2))];
        builder.duplex(id, switch, link(LinkKind::Pcie, gb_per_s, 16));
    }
    builder.build().unwrap()
}

/// `hosts` hosts of `gpus` GPUs on an NVSwitch (450 GB/s) and `nics` InfiniBand ports (50 GB/s),
/// one leaf switch a rail and one spine over them, which reduce (SHARP).
pub(crate) fn cluster(hosts: u32, gpus: u32, nics: u32) -> Topology {
    let mut builder = TopologyBuilder::new(format!("{hosts} hosts of {gpus}"));
    builder.sharp = true;
    let spine = builder.vertex("spine", VertexKind::NetSwitch { level: 1 }, None);
    let leaves: Vec<_> = (0..nics)
        .map(|rail| {
            let leaf = builder.vertex(format!("leaf{rail}"), VertexKind::NetSwitch { level: 0 }, None);
            builder.duplex(leaf, spine, link(LinkKind::Infiniband, 50.0 * f64::from(hosts), 1));
            leaf
        })
        .collect();
    for h in 0..hosts {
        let host = builder.host(format!("host{h}"));
        let name = |what: &str| format!("host{h}/{what}");
        let switch = builder.vertex(name("nvswitch"), VertexKind::NvSwitch, Some(host));
        let cpu = builder.vertex(name("cpu"), VertexKind::Cpu { vendor: "GenuineIntel".to_owned() }, Some(host));
        let ids: Vec<_> =
            (0..gpus).map(|index| builder.vertex(name(&format!("gpu{index}")), gpu(index), Some(host))).collect();
        let bridges: Vec<_> = (0..nics)
            .map(|index| {
                let bridge = builder.vertex(name(&format!("switch{index}")), VertexKind::PcieSwitch, Some(host));
                builder.duplex(bridge, cpu, link(LinkKind::Pcie, 48.0, 16));
                let nic = builder.vertex(name(&format!("nic{index}")), nic(index), Some(host));
                builder.duplex(bridge, nic, link(LinkKind::Pcie, 63.0, 16));
                builder.duplex(nic, leaves[index as usize], link(LinkKind::Infiniband, 50.0, 1));
                bridge
            })
            .collect();
        for (index, &id) in ids.iter().enumerate() {
            builder.duplex(id, switch, link(LinkKind::Nvlink, 450.0, 18));
            builder.duplex(id, bridges[index * nics as usize / gpus as usize], link(LinkKind::Pcie, 63.0, 16));
        }
    }
    builder.build().unwrap()
}

/// Units of hosts under leaves, one a rail, that several spines join.
pub(crate) fn fat_tree((units, hosts, gpus, spines): (u32, u32, u32, u32)) -> Topology {
    let mut builder = TopologyBuilder::new(format!("{units} units of {hosts} hosts of {gpus}, {spines} spines"));
    let net = |gb_per_s| link(LinkKind::Infiniband, gb_per_s, 4);
    let switch = |builder: &mut TopologyBuilder, name: String, level| {
        builder.vertex(name, VertexKind::NetSwitch { level }, None)
    };
    let top: Vec<_> = (0..spines).map(|spine| switch(&mut builder, format!("spine{spine}"), 1)).collect();
    for unit in 0..units {
        let leaves: Vec<_> = (0..gpus).map(|rail| switch(&mut builder, format!("leaf{unit}.{rail}"), 0)).collect();
        for &leaf in &leaves {
            top.iter().for_each(|&spine| builder.duplex(leaf, spine, net(100.0)));
        }
        for index in unit * hosts..(unit + 1) * hosts {
            let host = builder.host(format!("host{index}"));
            let nvswitch = builder.vertex(format!("host{index}/nvswitch"), VertexKind::NvSwitch, Some(host));
            let cpu = VertexKind::Cpu { vendor: "GenuineIntel".to_owned() };
            let cpu = builder.vertex(format!("host{index}/cpu"), cpu, Some(host));
            for (rail, &leaf) in (0..).zip(&leaves) {
                let id = builder.vertex(format!("host{index}/gpu{rail}"), gpu(rail), Some(host));
                builder.duplex(id, nvswitch, link(LinkKind::Nvlink, 450.0, 18));
                builder.duplex(id, cpu, link(LinkKind::Pcie, 32.0, 16));
                let nic = builder.vertex(format!("host{index}/nic{rail}"), nic(rail), Some(host));
                builder.duplex(nic, cpu, link(LinkKind::Pcie, 32.0, 16));
                builder.duplex(nic, leaf, net(50.0));
            }
        }
    }
    builder.build().unwrap()
}

/// The same machine with some links changed: `change` gets the number of a link direction.
pub(crate) fn with_links(topology: &Topology, change: impl Fn(u32, Link) -> Link) -> Topology {
    let mut builder = TopologyBuilder::new(topology.name.clone());
    builder.sharp = topology.sharp;
    let hosts: Vec<HostId> = topology.hosts().iter().map(|h| builder.host(h.name.clone())).collect();
    for (_, vertex) in topology.vertices() {
        builder.vertex(vertex.name.clone(), vertex.kind.clone(), vertex.host.map(|h| hosts[h.index()]));
    }
    for (id, from, to, link) in topology.links() {
        builder.link(from, to, change(id.0, link));
    }
    builder.build().unwrap()
}

/// Whether an algorithm is made for the first `ranks` ranks of a machine: some need a switch
/// that reduces, several hosts, or several ranks on a host.
pub(crate) fn fits(topology: &Topology, ranks: u32, collective: Collective, algorithm: Algorithm) -> bool {
    let mut hosts = vec![0; topology.hosts().len()];
    (0..ranks).for_each(|r| hosts[topology.host_of(Rank(r)).index()] += 1);
    hosts.retain(|&h| h > 0);
    let nvswitch = topology.vertices().any(|(_, v)| v.kind == VertexKind::NvSwitch);
    let (fewest, most) = (hosts.iter().copied().min().unwrap_or(0), hosts.iter().copied().max().unwrap_or(0));
    let alike = hosts.windows(2).all(|w| w[0] == w[1]);
    let alike = alike || collective == Collective::AllReduce;
    let across = hosts.len() > 1 && most <= 8 && topology.sharp;
    match algorithm {
        Algorithm::Nvls => nvswitch && fewest > 1 && alike && (hosts.len() == 1 || topology.sharp),
        Algorithm::NvlsTree => nvswitch && fewest > 1 && hosts.len() > 1,
        Algorithm::CollnetDirect => across && alike,
        Algorithm::CollnetChain => across,
        _ => true,
    }
}

/// A link at `percent` of its rate.
pub(crate) fn at_percent(link: Link, percent: u64) -> Link {
    Link { rate: Bandwidth::new((link.rate.get() * percent / 100).max(1)).unwrap(), ..link }
}

/// The cited values, which know every kind of link.
pub(crate) fn prior() -> Profile {
    Profile::builtin("prior").unwrap()
}

//! Pictures and descriptions of machines, against golden files.

use crate::golden::check_golden;
use collcast_reports::{describe, draw, json, terminal};
use collcast_sim::ids::{HostId, VertexId};
use collcast_sim::topology::{Gpu, Link, LinkKind, Nic, Topology, TopologyBuilder, VertexKind};
use collcast_sim::units::Bandwidth;

fn link(kind: LinkKind, width: u32, gb_per_s: f64) -> Link {
    Link { kind, rate: Bandwidth::from_gb_per_s(gb_per_s), width }
}

fn gpu(b: &mut TopologyBuilder, host: HostId, name: &str, index: u32, model: &str) -> VertexId {
    let kind = VertexKind::Gpu(Gpu {
        index,
        model: model.to_owned(),
        compute_capability: 90,
        memory_rate: Some(Bandwidth::from_gb_per_s(3350.0)),
        bus_id: None,
    });
    b.vertex(format!("{name}/gpu{index}"), kind, Some(host))
}

fn nic(b: &mut TopologyBuilder, host: HostId, name: &str, index: u32, rail: bool) -> VertexId {
    let kind = VertexKind::Nic(Nic {
        index,
        name: format!("mlx5_{index}"),
        kind: LinkKind::Infiniband,
        rate: Bandwidth::from_gb_per_s(50.0),
        gpudirect: true,
        gpudirect_rate: None,
        rail: rail.then_some(index),
        card: None,
        management: false,
        latency: None,
    });
    b.vertex(format!("{name}/nic{index}"), kind, Some(host))
}

/// 8 GPUs on NVSwitch; 4 PCIe switches with 2 GPUs and 2 NICs each; 2 CPUs; returns the NICs.
fn nvswitch_host(b: &mut TopologyBuilder, name: &str) -> Vec<VertexId> {
    let host = b.host(name);
    let nvswitch = b.vertex(format!("{name}/nvs"), VertexKind::NvSwitch, Some(host));
    let mut nics = Vec::new();
    let mut cpus = Vec::new();
    for socket in 0..2u32 {
        let vendor = "GenuineIntel".to_owned();
        let cpu = b.vertex(format!("{name}/cpu{socket}"), VertexKind::Cpu { vendor }, Some(host));
        cpus.push(cpu);
        for at in 2 * socket..2 * socket + 2 {
            let switch = b.vertex(format!("{name}/sw{at}"), VertexKind::PcieSwitch, Some(host));
            b.duplex(switch, cpu, link(LinkKind::Pcie, 16, 63.0));
            for index in 2 * at..2 * at + 2 {
                let gpu = gpu(b, host, name, index, "H100-SXM5-80GB");
                b.duplex(gpu, nvswitch, link(LinkKind::Nvlink, 18, 450.0));
                b.duplex(gpu, switch, link(LinkKind::Pcie, 16, 63.0));
                let nic = nic(b, host, name, index, true);
                b.duplex(nic, switch, link(LinkKind::Pcie, 16, 63.0));
                nics.push(nic);
            }
        }
    }
    b.duplex(cpus[0], cpus[1], link(LinkKind::CpuInterconnect, 3, 62.4));
    nics
}

fn one_host() -> Topology {
    let mut b = TopologyBuilder::new("one-host");
    b.assumptions.push("fabric: none, a single host".to_owned());
    b.profile = Some("dgx-h100".to_owned());
    nvswitch_host(&mut b, "gpu001");
    b.build().expect("a valid machine")
}

/// Hosts under 8 rail leaves with `up` links of 50 GB/s each to one spine.
fn rail_cluster(hosts: usize, up: u32) -> Topology {
    let mut b = TopologyBuilder::new(format!("rails-{hosts}"));
    b.software.nccl = "2.28.9".parse().ok();
    let port = link(LinkKind::Infiniband, 1, 50.0);
    let nics: Vec<Vec<VertexId>> = (1..=hosts).map(|h| nvswitch_host(&mut b, &format!("gpu{h:03}"))).collect();
    let spine = b.vertex("spine0", VertexKind::NetSwitch { level: 1 }, None);
    for rail in 0..8usize {
        let leaf = b.vertex(format!("leaf{rail}"), VertexKind::NetSwitch { level: 0 }, None);
        for host in &nics {
            b.duplex(host[rail], leaf, port);
        }
        let uplink = link(LinkKind::Infiniband, up, 50.0 * f64::from(up));
        b.duplex(leaf, spine, uplink);
    }
    b.build().expect("a valid machine")
}

/// 4 GPUs on one PCIe switch or straight on the CPU, one NIC that is slow.
fn pcie_box() -> Topology {
    let mut b = TopologyBuilder::new("pcie-box");
    let host = b.host("box");
    let vendor = "AuthenticAMD".to_owned();
    let cpu = b.vertex("box/cpu0", VertexKind::Cpu { vendor }, Some(host));
    let switch = b.vertex("box/sw0", VertexKind::PcieSwitch, Some(host));
    b.duplex(switch, cpu, link(LinkKind::Pcie, 16, 31.5));
    let gpus: Vec<VertexId> = (0..4).map(|i| gpu(&mut b, host, "box", i, "L40S")).collect();
    for (index, &gpu) in gpus.iter().enumerate() {
        let up = if index < 2 { switch } else { cpu };
        b.duplex(gpu, up, link(LinkKind::Pcie, 16, 31.5));
    }
    let nic = nic(&mut b, host, "box", 0, false);
    b.duplex(nic, cpu, link(LinkKind::Pcie, 8, 15.75));
    b.build().expect("a valid machine")
}

/// 18 hosts of a rack: 4 GPUs on two CPUs by C2C, NVSwitches between the hosts.
fn rack() -> Topology {
    trays(18)
}

/// So many of its hosts.
fn trays(hosts: u32) -> Topology {
    let mut b = TopologyBuilder::new("nvl72");
    let port = link(LinkKind::Infiniband, 1, 50.0);
    let nvswitches: Vec<VertexId> = (0..9).map(|i| b.vertex(format!("nvs{i}"), VertexKind::NvSwitch, None)).collect();
    let leaf = b.vertex("leaf0", VertexKind::NetSwitch { level: 0 }, None);
    for h in 0..hosts {
        let name = format!("tray{h:02}");
        let host = b.host(&name);
        for socket in 0..2u32 {
            let vendor = "NVIDIA Grace".to_owned();
            let cpu = b.vertex(format!("{name}/cpu{socket}"), VertexKind::Cpu { vendor }, Some(host));
            for index in 2 * socket..2 * socket + 2 {
                let gpu = gpu(&mut b, host, &name, index, "GB200");
                b.duplex(gpu, cpu, link(LinkKind::C2c, 1, 450.0));
                for &nvswitch in &nvswitches {
                    b.duplex(gpu, nvswitch, link(LinkKind::Nvlink, 2, 100.0));
                }
                let nic = nic(&mut b, host, &name, index, true);
                b.duplex(nic, cpu, link(LinkKind::Pcie, 16, 126.0));
                b.duplex(nic, leaf, port);
            }
        }
    }
    b.build().expect("a valid machine")
}

/// Two GPUs joined by a bridge, in a workstation with names that no format may trip over.
fn awkward() -> Topology {
    let mut b = TopologyBuilder::new("a \"quoted\" <name> & 'more'\nline \\ two");
    b.assumptions.push("<script>alert(1)</script>\nsecond".to_owned());
    let host = b.host("h<o>&\"st\"\n");
    let gpus: Vec<VertexId> =
        (0..2).map(|i| gpu(&mut b, host, "<g&\"\u{1b}>", i, "A \"big\" <GPU> & more\n")).collect();
    b.duplex(gpus[0], gpus[1], link(LinkKind::Nvlink, 4, 56.25));
    b.build().expect("a valid machine")
}

/// 8 GPUs with 4 NICs each behind one switch, as clouds build them; spine groups that are
/// joined level by level, as in a dragonfly.
fn many_nics() -> Topology {
    let mut b = TopologyBuilder::new("many-nics");
    let leaves: Vec<VertexId> =
        (0..24).map(|i| b.vertex(format!("group{i}"), VertexKind::NetSwitch { level: 0 }, None)).collect();
    for (i, &a) in leaves.iter().enumerate() {
        for &c in &leaves[i + 1..] {
            b.duplex(a, c, link(LinkKind::Efa, 2, 25.0));
        }
    }
    for (h, &leaf) in leaves.iter().take(2).enumerate() {
        let name = format!("h{h}");
        let host = b.host(&name);
        let nvswitch = b.vertex(format!("{name}/nvs"), VertexKind::NvSwitch, Some(host));
        for socket in 0..2u32 {
            let vendor = String::new();
            let cpu = b.vertex(format!("{name}/cpu{socket}"), VertexKind::Cpu { vendor }, Some(host));
            let bridge = b.vertex(format!("{name}/bridge{socket}"), VertexKind::PcieSwitch, Some(host));
            b.duplex(bridge, cpu, link(LinkKind::Pcie, 16, 63.0));
            for index in 4 * socket..4 * socket + 4 {
                let name_switch = format!("{name}/sw{index}");
                let switch = b.vertex(name_switch, VertexKind::PcieSwitch, Some(host));
                b.duplex(switch, bridge, link(LinkKind::Pcie, 16, 63.0));
                let gpu = gpu(&mut b, host, &name, index, "H100-SXM5-80GB");
                b.duplex(gpu, switch, link(LinkKind::Pcie, 16, 63.0));
                b.duplex(gpu, nvswitch, link(LinkKind::Nvlink, 18, 450.0));
                for n in 4 * index..4 * index + 4 {
                    let kind = VertexKind::Nic(Nic {
                        index: n,
                        name: format!("efa{n}"),
                        kind: LinkKind::Efa,
                        rate: Bandwidth::from_gb_per_s(12.5),
                        gpudirect: true,
                        gpudirect_rate: None,
                        rail: None,
                        card: None,
                        management: false,
                        latency: None,
                    });
                    let nic = b.vertex(format!("{name}/efa{n}"), kind, Some(host));
                    b.duplex(nic, switch, link(LinkKind::Pcie, 16, 63.0));
                    b.duplex(nic, leaf, link(LinkKind::Efa, 1, 12.5));
                }
            }
            if socket == 0 {
                let kind = VertexKind::Nic(Nic {
                    index: 99,
                    name: "ens32".to_owned(),
                    kind: LinkKind::Ethernet,
                    rate: Bandwidth::from_gb_per_s(12.5),
                    gpudirect: false,
                    gpudirect_rate: None,
                    rail: None,
                    card: None,
                    management: true,
                    latency: None,
                });
                let nic = b.vertex(format!("{name}/ens32"), kind, Some(host));
                b.duplex(nic, cpu, link(LinkKind::Pcie, 8, 15.75));
            }
        }
    }
    b.build().expect("a valid machine")
}

/// 32 GPUs in one host, NVLink between neighbours, 4 sockets in a full mesh.
fn mesh() -> Topology {
    let mut b = TopologyBuilder::new("mesh");
    let host = b.host("big");
    let cpus: Vec<VertexId> = (0..4)
        .map(|i| {
            let vendor = "AuthenticAMD".to_owned();
            b.vertex(format!("big/cpu{i}"), VertexKind::Cpu { vendor }, Some(host))
        })
        .collect();
    for (i, &a) in cpus.iter().enumerate() {
        for &c in &cpus[i + 1..] {
            b.duplex(a, c, link(LinkKind::CpuInterconnect, 1, 64.0));
        }
    }
    let gpus: Vec<VertexId> = (0..32).map(|i| gpu(&mut b, host, "big", i, "V100")).collect();
    for (i, &a) in gpus.iter().enumerate() {
        b.duplex(a, cpus[i / 4 % 4], link(LinkKind::Pcie, 16, 15.75));
        for (j, &c) in gpus.iter().enumerate().skip(i + 1) {
            if j / 8 == i / 8 && (j - i) % 2 == 1 {
                b.duplex(a, c, link(LinkKind::Nvlink, 2, 50.0));
            }
        }
    }
    b.build().expect("a valid machine")
}

fn machines() -> Vec<(&'static str, Topology)> {
    vec![
        ("one-host", one_host()),
        ("rails-4", rail_cluster(4, 4)),
        ("rails-35", rail_cluster(35, 18)),
        ("pcie-box", pcie_box()),
        ("nvl72", rack()),
        ("many-nics", many_nics()),
        ("mesh", mesh()),
        ("awkward", awkward()),
    ]
}

#[test]
fn pictures_are_as_reviewed() {
    for (name, topology) in machines() {
        check_golden(&format!("{name}.svg"), &draw::svg(&topology));
        check_golden(&format!("{name}.dot"), &draw::dot(&topology));
    }
}

/// Goal: every picture is XML, its words are those of the machine, and no name makes an
/// element or leaves the picture.
#[test]
fn pictures_are_well_formed_whatever_the_names_are() {
    for (name, topology) in machines() {
        let svg = draw::svg(&topology);
        let document = roxmltree::Document::parse(&svg).unwrap_or_else(|e| panic!("{name}: {e}"));
        let width: i64 = document.root_element().attribute("width").unwrap().parse().unwrap();
        let elements = document.descendants().filter(roxmltree::Node::is_element);
        for element in elements {
            let tag = element.tag_name().name();
            let known = ["svg", "title", "style", "rect", "line", "path", "text"];
            assert!(known.contains(&tag), "{name}: {tag}");
            if let Some(x) = element.attribute("x") {
                let x: i64 = x.parse().unwrap();
                assert!((0..width).contains(&x), "{name}: {x}");
            }
        }
    }
    let svg = draw::svg(&awkward());
    let document = roxmltree::Document::parse(&svg).unwrap();
    let has = |tag: &str, text: &str| {
        let mut all = document.descendants();
        all.any(|n| n.has_tag_name(("http://www.w3.org/2000/svg", tag)) && n.text() == Some(text))
    };
    assert!(has("title", "a \"quoted\" <name> & 'more' line \\ two"));
    assert!(has("text", "h<o>&\"st\""));
}

/// Goal: NVSwitches outside of the hosts are shared where several hosts are on them, and no name is cut.
#[test]
fn a_host_alone_shares_nothing() {
    let (one, two) = (draw::svg(&trays(1)), draw::svg(&trays(2)));
    assert!(!one.contains("shared") && !one.contains('\u{2026}') && one.contains(">9 NVSwitches<"), "{one}");
    assert!(two.contains("shared with other hosts") && two.contains("NVLink domain of 2 hosts"), "{two}");
}

#[test]
fn descriptions_are_as_reviewed() {
    for (name, topology) in machines() {
        let report = describe::describe(&topology);
        let text = terminal::render(&report, terminal::Screen::plain(Some(80)))
            + &terminal::notes(&report, terminal::Screen::default());
        check_golden(&format!("{name}.txt"), &text);
        let parsed: serde_json::Value = serde_json::from_str(&json::render(&report)).unwrap();
        assert_eq!(parsed["schema"], "collcast/topology/1");
        assert_eq!(parsed["machine"]["gpus"], topology.ranks());
        assert_eq!(parsed["machine"]["name"], topology.name);
    }
}

/// Goal: the bisection is the minimum cut, wherever the machine is thin.
#[test]
fn bisections_are_minimum_cuts() {
    let gb = |x: u64| x * 1_000_000_000;
    let full = describe::bisection(&rail_cluster(4, 4));
    assert_eq!(full.network, Some(gb(2 * 8 * 50)));
    assert_eq!(full.oversubscription(), Some(1.0));
    // Rails never leave their leaf, so a thin spine takes nothing away.
    let thin = describe::bisection(&rail_cluster(4, 1));
    assert_eq!(thin.network, full.network);
    let single = describe::bisection(&one_host());
    assert_eq!(single.nvlink, Some(gb(4 * 450)));
    assert_eq!((single.network, single.other), (None, None));
    let rack = describe::bisection(&rack());
    assert_eq!(rack.nvlink, Some(gb(36 * 900)));
    assert_eq!(rack.network, Some(gb(36 * 50)));
    // Two GPUs share one uplink of a PCIe switch.
    assert_eq!(describe::bisection(&pcie_box()).other, Some(31_500_000_000));

    let mut b = TopologyBuilder::new("two-leaves");
    let port = link(LinkKind::Roce, 1, 50.0);
    let leaves: Vec<VertexId> =
        (0..2).map(|i| b.vertex(format!("leaf{i}"), VertexKind::NetSwitch { level: 0 }, None)).collect();
    b.duplex(leaves[0], leaves[1], link(LinkKind::Roce, 2, 100.0));
    for h in 0..4 {
        for nic in nvswitch_host(&mut b, &format!("h{h}")) {
            b.duplex(nic, leaves[h / 2], port);
        }
    }
    let thin = describe::bisection(&b.build().unwrap());
    assert_eq!(thin.network, Some(gb(100)));
    assert_eq!(thin.oversubscription(), Some(8.0));
}

/// Goal: pictures of large machines stay small and are made at once.
#[test]
fn large_machines_are_cut() {
    let svg = draw::svg(&rail_cluster(256, 32));
    assert!(svg.len() < 100_000, "{}", svg.len());
    assert!(svg.contains("... 249 more"));
}

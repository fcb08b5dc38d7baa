//! Fabrics, faults and mixed hosts from files to the ways that data takes.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

use collcast_sim::collective::{Algorithm, Collective, DataType, Protocol};
use collcast_sim::ids::{ChannelId, Rank};
use collcast_sim::model::nccl::Version;
use collcast_sim::network::{PathClass, Route, Router, Transport};
use collcast_sim::predict::{Choice, Predictor, Settings};
use collcast_sim::profile::Profile;
use collcast_sim::schedule::Call;
use collcast_sim::topology::Topology;
use collcast_sim::units::Bytes;
use collcast_topologies::file;

fn build(text: &str) -> Topology {
    let text = format!("schema = \"collcast/topology/1\"\n{text}");
    let mut none = |_: &str| Err(std::io::Error::other("no other file"));
    file::read(&text, "test.toml", &mut none).unwrap().build().unwrap()
}

fn route(topology: &Topology, env: &[(&'static str, &'static str)], from: u32, to: u32, channel: u32) -> Route {
    let transport = Transport::from_env(topology, Version::NEWEST, env.iter().copied()).unwrap();
    Router::with(topology, transport).route(Rank(from), Rank(to), ChannelId(channel)).unwrap()
}

/// Names of what lies on a route.
fn along(topology: &Topology, route: &Route) -> String {
    let ends = route.links().map(|(l, _)| topology.vertex(topology.ends(l).1).name.clone());
    ends.collect::<Vec<_>>().join(" ")
}

fn time_us(topology: &Topology, channels: u32) -> f64 {
    let profile = Profile::builtin("prior").unwrap();
    let call = Call::of_size(Collective::AllReduce, topology.ranks(), Bytes(256 << 20), DataType::Float32);
    let settings = Settings { channels: Some(channels), ..Settings::default() };
    let (algorithm, protocol) = (Choice::Forced(Algorithm::Ring), Choice::Forced(Protocol::Simple));
    Predictor::new(topology, &profile).predict(&call, algorithm, protocol, &settings).unwrap().time.as_us()
}

/// Goal: an NVL72 rack is one NVLink domain; a second rack is reached through NICs.
#[test]
fn nvl72_is_one_domain() {
    let text = r#"
[[hosts]]
count = 36
gpus = { count = 4, kind = "GB200", compute_capability = 100 }
nvlink = { kind = "nvswitch", links_per_gpu = 18, rate_per_link = "50 GB/s", domain = 18 }
pcie = { generation = 5, lanes = 16, switches_per_socket = 0, sockets = 2, interconnect = "40 GB/s", cpu = "GenuineIntel" }
nics = { kind = "infiniband", count = 4, rate = "400 Gb/s", gpudirect = true }
fabric = { kind = "single-switch" }
"#
    .replace("fabric = { kind = \"single-switch\" }", "[fabric]\nkind = \"single-switch\"");
    let topology = build(&text);
    for (to, way) in [(1, "nvlink0 host0/gpu1"), (71, "nvlink0 host17/gpu3")] {
        let route = route(&topology, &[], 0, to, 0);
        assert_eq!((along(&topology, &route).as_str(), route.class), (way, PathClass::Nvl));
    }
    assert!(along(&topology, &route(&topology, &[], 0, 72, 0)).contains(" switch "));
    assert_eq!(topology.node_of(Rank(71)).0, 0);
    assert_eq!(topology.node_of(Rank(72)).0, 18);
    // One rack needs no NIC at all.
    let rack: String = text.lines().filter(|l| !l.starts_with("nics")).collect::<Vec<_>>().join("\n");
    let rack = build(rack.replace("36", "18").split("[fabric]").next().unwrap());
    assert_eq!(rack.ranks(), 72);
    assert!(time_us(&rack, 8) > 0.0);
}

/// Goal: hashing draws every cable, so that flows can collide; adaptive fabrics bundle them.
#[test]
fn hashing_sees_cables() {
    let text = |routing: &str| {
        format!(
            "[[hosts]]\ncount = 4\nlike = \"dgx-h100\"\n[fabric]\nkind = \"fat-tree\"\nhosts_per_unit = 2\n\
             leaf = {{ rate = \"400 Gb/s\", down = 16, up = 8 }}\nspine = {{ count = 4, ports = 4 }}\nrouting = {routing}"
        )
    };
    let hashed = build(&text("{ hash = 7 }"));
    assert_eq!(hashed.hash, Some(7));
    let leaf = hashed.find("leaf0").unwrap();
    let up = hashed.links_from(leaf).filter(|(_, to, _)| hashed.vertex(*to).name.starts_with("spine"));
    assert_eq!(up.map(|(_, _, l)| l.width).collect::<Vec<_>>(), [1; 8], "4 spines, 2 cables each");
    let cables: std::collections::BTreeSet<String> =
        (0..64).map(|channel| along(&hashed, &route(&hashed, &[], 0, 16, channel * 8))).collect();
    assert!(cables.len() > 1, "channels hash apart: {cables:?}");
    let adaptive = build(&text("\"adaptive\""));
    assert_eq!(adaptive.hash, None);
    assert!(time_us(&hashed, 8) > time_us(&adaptive, 8), "collisions cost");
}

/// Goal: the management network carries data only where NCCL is sent there.
#[test]
fn the_wrong_nic_can_be_chosen() {
    let topology =
        build("[[hosts]]\ncount = 2\nlike = \"dgx-h100\"\n[hosts.management]\nname = \"ens32\"\nrate = \"10 Gb/s\"");
    let by = |env: &[_]| along(&topology, &route(&topology, env, 0, 8, 0));
    let named = ("NCCL_SOCKET_IFNAME", "ens");
    assert!(!by(&[]).contains("management"), "{}", by(&[]));
    // With RDMA the name decides about the bootstrap only.
    assert!(!by(&[named]).contains("management"));
    assert!(!by(&[("NCCL_IB_DISABLE", "1")]).contains("management"));
    assert!(by(&[("NCCL_IB_DISABLE", "1"), named]).contains("management"), "{}", by(&[named]));
}

/// Goal: hosts of different kinds and counts work together, at the pace of the slowest port.
#[test]
fn hosts_may_differ() {
    let mixed = |rate: &str| {
        build(&format!(
            "[[hosts]]\ncount = 2\nlike = \"dgx-h100\"\n\
             [[hosts]]\nnames = \"b[0-1]\"\nlike = \"dgx-h200\"\ngpus = {{ count = 4, kind = \"H200-SXM5-141GB\" }}\n\
             [fabric]\nkind = \"rail-optimised\"\n[[exceptions]]\nhost = \"b1\"\nnic = 0\nrate = \"{rate}\""
        ))
    };
    let whole = mixed("400 Gb/s");
    assert_eq!(whole.ranks(), 24);
    for (from, to) in [(7, 8), (15, 16), (19, 20), (23, 0)] {
        assert_eq!(route(&whole, &[], from, to, 0).staged, 0);
    }
    let slow = mixed("20 Gb/s");
    assert!(time_us(&slow, 8) > 2.0 * time_us(&whole, 8), "one port of 2.5 GB/s sets the pace");
}

//! Holds the ways that data takes, and what they cost, against computations by hand.

use crate::common::{at_percent, cluster, nvswitch_box, pcie_box, prior, with_links};
use collcast_sim::collective::{Algorithm, Collective, DataType, Protocol};
use collcast_sim::engine::flows::WEIGHT_ONE;
use collcast_sim::ids::{ChannelId, Rank};
use collcast_sim::measurement::PeerAccess;
use collcast_sim::nccl::Version;
use collcast_sim::nccl::search::{Options, Sends, graphs};
use collcast_sim::nccl::{CrossNic, Interface, NcclSettings, NicsPerGpu, PathClass, Ports, Transport};
use collcast_sim::network::{Hop, Leg, Route, Router};
use collcast_sim::predict::{Choice, Prediction, Predictor, Settings, Warning};
use collcast_sim::profile::{Constant, Layer, Reach};
use collcast_sim::schedule::Call;
use collcast_sim::topology::{Gpu, Link, LinkKind, Nic, Topology, TopologyBuilder, VertexKind};
use collcast_sim::units::{Bandwidth, Bytes};

fn link(kind: LinkKind, gb_per_s: f64) -> Link {
    Link { kind, rate: Bandwidth::from_gb_per_s(gb_per_s), width: 1 }
}

/// `hosts` hosts of one GPU and one InfiniBand port at 10 GB/s behind a CPU, the even ones on
/// leaf 0 and the odd ones on leaf 1, two spines above with one cable to each leaf.
fn two_spines(hosts: u32, gpudirect: bool, hash: Option<u64>) -> Topology {
    spines_and_nics(hosts, 90, gpudirect, None, hash)
}

fn spines_and_nics(
    hosts: u32,
    compute_capability: u32,
    gpudirect: bool,
    gpudirect_rate: Option<Bandwidth>,
    hash: Option<u64>,
) -> Topology {
    let mut builder = TopologyBuilder::new("two spines");
    builder.hash = hash;
    let leaves = [0, 1].map(|l| builder.vertex(format!("leaf{l}"), VertexKind::NetSwitch { level: 0 }, None));
    for spine in 0..2 {
        let spine = builder.vertex(format!("spine{spine}"), VertexKind::NetSwitch { level: 1 }, None);
        leaves.iter().for_each(|&leaf| builder.duplex(leaf, spine, link(LinkKind::Infiniband, 10.0)));
    }
    for h in 0..hosts {
        let host = builder.host(format!("h{h}"));
        let gpu = Gpu { index: 0, model: "GPU".to_owned(), compute_capability, memory_rate: None, bus_id: None };
        let nic = Nic {
            index: 0,
            name: "mlx5_0".to_owned(),
            kind: LinkKind::Infiniband,
            rate: Bandwidth::from_gb_per_s(10.0),
            gpudirect,
            gpudirect_rate,
            rail: None,
            card: None,
            management: false,
            latency: None,
        };
        let gpu = builder.vertex(format!("h{h}/gpu"), VertexKind::Gpu(gpu), Some(host));
        let bridge = builder.vertex(format!("h{h}/bridge"), VertexKind::PcieSwitch, Some(host));
        let cpu = builder.vertex(format!("h{h}/cpu"), VertexKind::Cpu { vendor: String::new() }, Some(host));
        let nic = builder.vertex(format!("h{h}/nic"), VertexKind::Nic(nic), Some(host));
        for (a, b) in [(gpu, bridge), (nic, bridge), (bridge, cpu)] {
            builder.duplex(a, b, link(LinkKind::Pcie, 40.0));
        }
        builder.duplex(nic, leaves[h as usize % 2], link(LinkKind::Infiniband, 10.0));
    }
    builder.build().unwrap()
}

fn predict(topology: &Topology, collective: Collective, size: u64, transport: Transport, channels: u32) -> Prediction {
    let profile = prior();
    let algorithm = if collective == Collective::AllReduce { Algorithm::Ring } else { Algorithm::Direct };
    let call = Call::of_size(collective, topology.ranks(), Bytes(size), DataType::Float32);
    let settings = Settings { transport, channels: Some(channels), ..Settings::default() };
    let predictor = Predictor::new(topology, &profile);
    let (algorithm, protocol) = (Choice::Forced(algorithm), Choice::Forced(Protocol::Simple));
    let folded = predictor.predict(&call, algorithm, protocol, &settings).unwrap();
    let unfolded = predictor.predict(&call, algorithm, protocol, &Settings { fold: false, ..settings }).unwrap();
    assert_eq!((folded.time, folded.trace_hash), (unfolded.time, unfolded.trace_hash), "folding must change nothing");
    folded
}

/// Hops by name, with shares in percent.
fn names(topology: &Topology, leg: &Leg) -> Vec<(String, u64)> {
    let name = |v| topology.vertex(v).name.as_str();
    leg.iter()
        .map(|&(hop, share)| {
            let text = match hop {
                Hop::Link(l) => format!("{}>{}", name(topology.ends(l).0), name(topology.ends(l).1)),
                Hop::Memory(cpu) => format!("memory of {}", name(cpu)),
                Hop::Direct(nic, reads, _) => format!("{} {}", name(nic), if reads { "reads" } else { "writes" }),
            };
            (text, share * 100 / WEIGHT_ONE)
        })
        .collect()
}

fn route(topology: &Topology, transport: Transport, from: u32, to: u32, channel: u32) -> Route {
    Router::with(topology, transport).route(Rank(from), Rank(to), ChannelId(channel)).unwrap()
}

/// Goal: adaptive packets use all equal ways alike; a hashed flow uses one, the same every time.
#[test]
fn equal_ways_are_shared_or_hashed() {
    let spread = two_spines(2, true, None);
    let way = route(&spread, Transport::default(), 0, 1, 0);
    let expected: [(&str, u64); 10] = [
        ("h0/gpu>h0/bridge", 100),
        ("h0/bridge>h0/nic", 100),
        ("h0/nic>leaf0", 100),
        ("leaf0>spine0", 50),
        ("leaf0>spine1", 50),
        ("spine0>leaf1", 50),
        ("spine1>leaf1", 50),
        ("leaf1>h1/nic", 100),
        ("h1/nic>h1/bridge", 100),
        ("h1/bridge>h1/gpu", 100),
    ];
    assert_eq!(names(&spread, &way.wire), expected.map(|(n, s)| (n.to_owned(), s)));
    assert!(way.store.is_empty() && way.load.is_empty());
    let mut used = [0; 2];
    for seed in 0..64 {
        let hashed = two_spines(2, true, Some(seed));
        let way = names(&hashed, &route(&hashed, Transport::default(), 0, 1, 0).wire);
        assert_eq!(way.len(), 8, "{way:?}");
        assert!(way.iter().all(|(_, share)| *share == 100));
        used[usize::from(way.iter().any(|(n, _)| n == "leaf0>spine1"))] += 1;
    }
    assert!(used.iter().all(|&n| n >= 16), "64 seeds fall on both spines: {used:?}");
}

/// Goal: two flows that hash onto one cable get half of it each; spread ones lose nothing.
/// Method: rank n sends to n + 1, so ranks 0 and 2 cross from leaf 0 to leaf 1, each with the
/// rate of one cable.
#[test]
fn colliding_flows_get_half() {
    let mut times = std::collections::BTreeMap::new();
    for seed in 0..16 {
        let topology = two_spines(4, true, Some(seed));
        let spine = |a, b| {
            let way = names(&topology, &route(&topology, Transport::default(), a, b, 0).wire);
            way.iter().any(|(n, _)| n.ends_with(">spine0"))
        };
        let collides = spine(0, 1) == spine(2, 3) || spine(1, 2) == spine(3, 0);
        let time = predict(&topology, Collective::SendRecv, 64 << 20, Transport::default(), 1).time.as_us();
        times.entry(collides).or_insert_with(Vec::new).push(time);
    }
    let spread = predict(&two_spines(4, true, None), Collective::SendRecv, 64 << 20, Transport::default(), 1);
    let (apart, together) = (&times[&false], &times[&true]);
    assert!(apart.iter().all(|t| (t / spread.time.as_us() - 1.0).abs() < 1e-3), "{apart:?} {}", spread.time);
    assert!(together.iter().all(|t| (t / apart[0] - 2.0).abs() < 0.02), "{together:?} {apart:?}");
    // 64 MiB at 96% of 10 GB/s is 6.99 ms; the FIFO's latencies hide behind it.
    assert!((apart[0] / 6990.0 - 1.0).abs() < 0.02, "{apart:?}");
}

/// Goal: without GPUDirect every byte goes to host memory and back over the same PCIe links.
#[test]
fn without_gpudirect_data_is_staged() {
    let topology = two_spines(2, false, None);
    let way = route(&topology, Transport::default(), 0, 1, 0);
    let list = |leg: &Leg| names(&topology, leg).into_iter().map(|n| n.0).collect::<Vec<_>>();
    assert_eq!(list(&way.store), ["h0/gpu>h0/bridge", "h0/bridge>h0/cpu", "memory of h0/cpu"]);
    assert_eq!(list(&way.wire)[..4], ["memory of h0/cpu", "h0/cpu>h0/bridge", "h0/bridge>h0/nic", "h0/nic>leaf0"]);
    // The block that reads it sends requests the other way: 24 bytes for each 128.
    let asks = ["h1/bridge>h1/cpu", "h1/gpu>h1/bridge"];
    assert_eq!(list(&way.load), [&["h1/cpu>h1/bridge", "h1/bridge>h1/gpu", "memory of h1/cpu"][..], &asks].concat());
    assert!(way.load[3..].iter().all(|&(_, weight)| weight == WEIGHT_ONE * 24 / 128));
    assert_eq!(way.staged, [true; 2]);
    // The setting does the same as a NIC that cannot: the path is PIX.
    let able = two_spines(2, true, None);
    let level = Transport { gdr_level: PathClass::Nvl, ..Transport::default() };
    assert_eq!(route(&able, level, 0, 1, 0).staged, [true; 2]);
    // Latency shows with small messages, and PCIe is no limit at four times the port's rate.
    let time = |t: &Topology, size| predict(t, Collective::SendRecv, size, Transport::default(), 1).kernel.as_us();
    assert!(time(&topology, 1024) >= time(&able, 1024) + 2.0);
    assert!(time(&topology, 64 << 20) < 1.02 * time(&able, 64 << 20));
}

/// Goal: where NICs reach GPU memory slower than their ports carry, that is the rate of what they read and write
/// there, and not of what they read in host memory.
#[test]
fn gpudirect_may_be_slower_than_its_links() {
    let topology = spines_and_nics(2, 90, true, Some(Bandwidth::from_gb_per_s(4.0)), None);
    let simple = route(&topology, Transport::default(), 0, 1, 0);
    let lines = Router::new(&topology).with_lines(true).route(Rank(0), Rank(1), ChannelId(0)).unwrap();
    let direct = |leg: &Leg| -> Vec<String> {
        names(&topology, leg)
            .into_iter()
            .map(|n| n.0)
            .filter(|n| n.ends_with("reads") || n.ends_with("writes"))
            .collect()
    };
    assert_eq!(direct(&simple.wire), ["h0/nic reads", "h1/nic writes"]);
    assert_eq!(direct(&lines.wire), ["h1/nic writes"]);
    let time = predict(&topology, Collective::SendRecv, 64 << 20, Transport::default(), 1).kernel.as_us();
    // 64 MiB at 4 GB/s.
    assert!((time / 16_777.0 - 1.0).abs() < 0.02, "{time}");
}

/// Goal: what a NIC has written into GPU memory is read back before a block may use it, on GPUs before Hopper or as NCCL
/// is told, and nothing else is: neither what host memory staged, nor an empty slice.
#[test]
fn gpus_before_hopper_are_flushed() {
    let [a100, h100, staged] =
        [(80, true), (90, true), (80, false)].map(|(sm, direct)| spines_and_nics(2, sm, direct, None, None));
    let time = |topology: &Topology, size, variables: &[(&'static str, &'static str)]| {
        let transport = Transport::from_env(topology, Version::NEWEST, variables.iter().copied()).unwrap();
        predict(topology, Collective::SendRecv, size, transport, 1).kernel.as_us()
    };
    let (flush, force, never) =
        (prior().flush(Reach::Network).as_us(), ("NCCL_NET_FORCE_FLUSH", "1"), ("NCCL_GDR_FLUSH_DISABLE", "1"));
    for (topology, size, variables, flushes) in [
        (&a100, 1024, &[][..], 1.0),
        (&a100, 1024, &[never], 0.0),
        (&a100, 0, &[], 0.0),
        (&h100, 1024, &[], 0.0),
        (&h100, 1024, &[force], 1.0),
        (&h100, 1024, &[force, never], 0.0),
    ] {
        let over = time(topology, size, variables) - time(&h100, size, &[]);
        assert!((over - flushes * flush).abs() < 1e-3, "{size} B {variables:?}: {over} us over none");
    }
    assert!((time(&staged, 1024, &[force]) - time(&staged, 1024, &[])).abs() < 1e-9);
}

/// Goal: lines of LL leave through host memory, GPUDirect or not, and arrive in the GPU's.
#[test]
fn lines_leave_through_host_memory() {
    let topology = two_spines(2, true, None);
    let way = Router::new(&topology).with_lines(true).route(Rank(0), Rank(1), ChannelId(0)).unwrap();
    let list = |leg: &Leg| names(&topology, leg).into_iter().map(|n| n.0).collect::<Vec<_>>();
    assert_eq!(list(&way.store), ["h0/gpu>h0/bridge", "h0/bridge>h0/cpu", "memory of h0/cpu"]);
    assert_eq!(list(&way.wire)[..4], ["memory of h0/cpu", "h0/cpu>h0/bridge", "h0/bridge>h0/nic", "h0/nic>leaf0"]);
    assert_eq!(list(&way.wire)[list(&way.wire).len() - 1], "h1/bridge>h1/gpu");
    assert_eq!((way.load.len(), way.staged), (0, [false; 2]));
}

/// Goal: without peer access both PCIe links and the host's memory carry every byte.
/// Method: two GPUs that send to each other: below one switch directly each link carries one
/// stream; through host memory the switch's link to the CPU carries both, so half the rate.
#[test]
fn without_peer_access_through_host_memory() {
    let topology = pcie_box(4, 12.0);
    let off = Transport { peer_access: PeerAccess::Off, ..Transport::default() };
    let direct = route(&topology, Transport::default(), 0, 1, 0);
    assert_eq!((direct.class, direct.staged), (PathClass::Pix, [false; 2]));
    let staged = route(&topology, off, 0, 1, 0);
    let list = |leg: &Leg| names(&topology, leg).into_iter().map(|n| n.0).collect::<Vec<_>>();
    assert_eq!(list(&staged.wire), ["host0/gpu0>host0/switch0", "host0/switch0>host0/cpu", "memory of host0/cpu"]);
    assert_eq!(list(&staged.load), ["host0/cpu>host0/switch0", "host0/switch0>host0/gpu1", "memory of host0/cpu"]);
    // Through the CPU peers are beyond NCCL's level, unless it is raised.
    assert_eq!(route(&topology, Transport::default(), 0, 3, 0).staged, [true; 2]);
    let sys = Transport { p2p_level: Some(PathClass::Sys), ..Transport::default() };
    assert_eq!(route(&topology, sys, 0, 3, 0).staged, [false; 2]);

    let two = two_below_one_switch();
    let time = |t| predict(&two, Collective::SendRecv, 64 << 20, t, 2).time.as_us();
    let ratio = time(off) / time(Transport::default());
    assert!((ratio - 2.0).abs() < 0.05, "{ratio}");
}

/// Two GPUs at 12 GB/s below one PCIe switch.
fn two_below_one_switch() -> Topology {
    let mut builder = TopologyBuilder::new("pair");
    let host = builder.host("host0");
    let cpu = builder.vertex("cpu", VertexKind::Cpu { vendor: String::new() }, Some(host));
    let switch = builder.vertex("switch", VertexKind::PcieSwitch, Some(host));
    builder.duplex(switch, cpu, link(LinkKind::Pcie, 12.0));
    for index in 0..2 {
        let gpu = Gpu { index, model: "A40".to_owned(), compute_capability: 86, memory_rate: None, bus_id: None };
        let gpu = builder.vertex(format!("gpu{index}"), VertexKind::Gpu(gpu), Some(host));
        builder.duplex(gpu, switch, link(LinkKind::Pcie, 12.0));
    }
    builder.build().unwrap()
}

/// Goal: a fall from RDMA to sockets costs an order of magnitude, by the threads that copy.
/// Method: two hosts of one GPU that send to each other in messages of 128 KiB. With RDMA at the
/// port's 48 GB/s. Over sockets one thread does both directions: two copies of 17.5 us at 7.5 GB/s
/// and two messages of 8.8 us. With helper threads that copy, its messages remain.
#[test]
fn sockets_are_bound_by_their_threads() {
    let topology = cluster(2, 1, 1);
    let sockets = Transport { interface: Interface::Sockets, ..Transport::default() };
    let run = |t, channels| predict(&topology, Collective::SendRecv, 256 << 20, t, channels);
    let (copies, messages) = (2.0 * 131_072.0 / 7.5e3, 2.0 * 8.8);
    let tcp = run(sockets, 4);
    let ratio = tcp.time.as_us() / run(Transport::default(), 4).time.as_us();
    let expected = (copies + messages) / (131_072.0 / 48e3);
    assert!((ratio / expected - 1.0).abs() < 0.05, "{ratio} {expected}");
    assert_eq!(tcp.bound_by(), "proxy threads");
    let helpers = Transport { socket_threads: Some(2), ..sockets };
    let ratio = tcp.time.as_us() / run(helpers, 4).time.as_us();
    let expected = (copies + messages) / messages;
    assert!((ratio / expected - 1.0).abs() < 0.05, "{ratio} {expected}");
}

/// Goal: what goes with a message's header spares the second half of its work, up to the bytes that NCCL sends so.
/// Method: as above; each rank sends one message and receives one, so two halves of 8.8 us are spared.
#[test]
fn small_messages_go_with_their_header() {
    let topology = cluster(2, 1, 1);
    let us = |bytes, inline| {
        let sockets = Transport { interface: Interface::Sockets, socket_inline: inline, ..Transport::default() };
        predict(&topology, Collective::SendRecv, bytes, sockets, 1).time.as_us()
    };
    let by_default = Transport::default().socket_inline;
    assert!((us(132, by_default) - us(128, by_default) - 8.8).abs() < 0.2);
    assert!((us(132, 0) - us(128, 0)).abs() < 0.2 && us(132, 0) == us(132, by_default));
}

/// Goal: a lost port costs what its neighbours must carry for it.
/// Method: channels are laid over the seven ports that are left; one of them carries a seventh of
/// all channels, rounded up, in place of an eighth: 2 for 1, or 3 for 2.
#[test]
fn a_lost_port_is_carried_by_others() {
    // Ports slow enough that they, and not the blocks, bound every channel.
    let slow = |_, l: Link| if l.kind.is_network() { at_percent(l, 10) } else { l };
    let whole = with_links(&cluster(2, 8, 8), slow);
    let mut builder = TopologyBuilder::new("without a port");
    let hosts: Vec<_> = whole.hosts().iter().map(|h| builder.host(h.name.clone())).collect();
    for (_, v) in whole.vertices() {
        builder.vertex(v.name.clone(), v.kind.clone(), v.host.map(|h| hosts[h.index()]));
    }
    let lost = whole.find("host1/nic3").unwrap();
    for (_, from, to, link) in whole.links() {
        if !(link.kind.is_network() && (from == lost || to == lost)) {
            builder.link(from, to, link);
        }
    }
    let broken = builder.build().unwrap();
    assert_eq!(broken.hosts()[1].nics.len(), 7);
    for (channels, expected) in [(8, 2.0), (16, 1.5)] {
        let time = |t| predict(t, Collective::AllReduce, 1 << 30, Transport::default(), channels).time.as_us();
        let ratio = time(&broken) / time(&whole);
        assert!((ratio / expected - 1.0).abs() < 0.05, "{channels} channels: {ratio}");
    }
}

/// Goal: GPUs of one NVLink domain use NVLink only, across hosts too; beyond it the network.
#[test]
fn nvlink_domains_span_hosts() {
    let mut builder = TopologyBuilder::new("two domains of two hosts");
    let leaf = builder.vertex("leaf", VertexKind::NetSwitch { level: 0 }, None);
    for h in 0..4_u32 {
        if h % 2 == 0 {
            builder.vertex(format!("nvlink{}", h / 2), VertexKind::NvSwitch, None);
        }
        let host = builder.host(format!("h{h}"));
        let cpu = builder.vertex(format!("h{h}/cpu"), VertexKind::Cpu { vendor: String::new() }, Some(host));
        let nic = Nic {
            index: 0,
            name: "mlx5_0".to_owned(),
            kind: LinkKind::Infiniband,
            rate: Bandwidth::from_gb_per_s(50.0),
            gpudirect: true,
            gpudirect_rate: None,
            rail: None,
            card: None,
            management: false,
            latency: None,
        };
        let nic = builder.vertex(format!("h{h}/nic"), VertexKind::Nic(nic), Some(host));
        builder.duplex(nic, cpu, link(LinkKind::Pcie, 50.0));
        builder.duplex(nic, leaf, link(LinkKind::Infiniband, 50.0));
        for index in 0..2 {
            let gpu =
                Gpu { index, model: "GB200".to_owned(), compute_capability: 100, memory_rate: None, bus_id: None };
            let gpu = builder.vertex(format!("h{h}/gpu{index}"), VertexKind::Gpu(gpu), Some(host));
            builder.duplex(gpu, cpu, link(LinkKind::C2c, 450.0));
            let switch = collcast_sim::ids::VertexId(if h < 2 { 1 } else { 1 + 1 + 2 * 4 });
            builder.duplex(gpu, switch, link(LinkKind::Nvlink, 900.0));
        }
    }
    let topology = builder.build().unwrap();
    let nodes: Vec<u32> = (0..8).map(|r| topology.node_of(Rank(r)).0).collect();
    assert_eq!(nodes, [0, 0, 0, 0, 2, 2, 2, 2]);
    let near = route(&topology, Transport::default(), 0, 3, 0);
    let list = |leg: &Leg| names(&topology, leg).into_iter().map(|n| n.0).collect::<Vec<_>>();
    assert_eq!(list(&near.wire), ["h0/gpu0>nvlink0", "nvlink0>h1/gpu1"]);
    assert_eq!(near.class, PathClass::Nvl);
    // Chip-to-chip, then PCIe: near enough for GPUDirect.
    let far = route(&topology, Transport::default(), 3, 4, 0);
    assert_eq!((far.class, far.staged), (PathClass::P2c, [false; 2]));
    let without_c2c = Transport { gdr_level: PathClass::Pxb, ..Transport::default() };
    assert_eq!(route(&topology, without_c2c, 3, 4, 0).staged, [true; 2]);
    let off = Transport { peer_access: PeerAccess::Off, ..Transport::default() };
    assert!(!route(&topology, off, 0, 3, 0).nics.is_empty());
    predict(&topology, Collective::AllReduce, 1 << 20, Transport::default(), 4);
}

/// Goal: a prediction says where many senders meet in one port, and only there.
#[test]
fn incast_is_warned_of() {
    let topology = two_spines(12, true, None);
    let warned = predict(&topology, Collective::AllToAll, 1 << 20, Transport::default(), 1).warnings;
    assert!(
        matches!(warned.as_slice(), [Warning::CongestionNotModelled(port)] if port.starts_with("leaf")),
        "{warned:?}"
    );
    assert!(predict(&topology, Collective::AllReduce, 1 << 20, Transport::default(), 1).warnings.is_empty());
}

/// Goal: NCCL's environment means what NCCL takes it for; mistakes are named.
#[test]
fn the_environment_chooses() {
    let topology = two_spines(2, true, None);
    let of =
        |pairs: &[(&'static str, &'static str)]| Transport::from_env(&topology, Version::NEWEST, pairs.iter().copied());
    let no_p2p = ("NCCL_P2P_DISABLE", "1");
    let no_shm = ("NCCL_SHM_DISABLE", "1");
    for (pairs, access, shm) in [
        (&[no_p2p][..], PeerAccess::Off, true),
        (&[no_shm, no_p2p], PeerAccess::Off, false),
        (&[no_shm, ("NCCL_P2P_LEVEL", "LOC")], PeerAccess::Off, false),
        (&[no_shm], PeerAccess::On, false),
    ] {
        let got = of(pairs).unwrap();
        assert_eq!((got.peer_access, got.shm), (access, shm), "{pairs:?}");
    }
    let no_c2c = ("NCCL_NET_GDR_C2C", "0");
    for (pairs, level) in [
        (&[no_c2c][..], PathClass::Pxb),
        (&[no_c2c, ("NCCL_NET_GDR_LEVEL", "PHB")], PathClass::Phb),
        (&[("NCCL_NET_GDR_C2C", "1")], Transport::default().gdr_level),
    ] {
        assert_eq!(of(pairs).unwrap().gdr_level, level, "{pairs:?}");
    }
    assert_eq!(of(&[("NCCL_IB_DISABLE", "1")]).unwrap().interface, Interface::Sockets);
    assert_eq!(of(&[("NCCL_IB_DISABLE", "1"), ("NCCL_IB_DISABLE", "0")]).unwrap().interface, Interface::Data);
    for (name, value, expected) in [("NCCL_SHM", "1", "known here"), ("NCCL_NET_MERGE_LEVEL", "PIX", "not modelled")] {
        let error = of(&[(name, value)]).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(expected), "{error}");
    }
}

/// Goal: values that NCCL takes for others, or passes over, are no errors and mean what they mean to it.
#[test]
fn odd_values_are_read_as_nccl_reads_them() {
    let topology = two_spines(2, true, None);
    let of = |name, value| Transport::from_env(&topology, Version::NEWEST, [(name, value)]).unwrap();
    let plain = Transport::default();
    for (name, value) in [
        ("NCCL_P2P_DISABLE", "true"),
        ("NCCL_P2P_DISABLE", "2"),
        ("NCCL_IB_DISABLE", "yes"),
        ("NCCL_P2P_LEVEL", "nvl"),
        ("NCCL_NETDEVS_POLICY", "max"),
        ("NCCL_MNNVL_ENABLE", "3"),
        ("NCCL_PXN_DISABLE", "-1"),
        ("NCCL_SOCKET_INLINE", "128B"),
    ] {
        assert_eq!(of(name, value), plain, "{name}={value}");
    }
    let most = Transport { nics_per_gpu: NicsPerGpu::Most(2), ..plain };
    assert_eq!(of("NCCL_NETDEVS_POLICY", "max:2"), most);
    assert_eq!(of("NCCL_CROSS_NIC", "3"), Transport { cross_nic: CrossNic::Never, ..plain });
    assert_eq!(of("NCCL_SOCKET_NTHREADS", "17"), Transport { socket_threads: Some(16), ..plain });
    assert_eq!(of("NCCL_P2P_LEVEL", "3"), Transport { p2p_level: Some(PathClass::Phb), ..plain });
}

/// Goal: from which version, and with which settings, the ports of a card are one device.
#[test]
fn ports_of_a_card_merge_by_version_and_setting() {
    let topology = two_spines(2, true, None);
    let of = |minor, pairs: &[(&'static str, &'static str)]| {
        Transport::from_env(&topology, Version::new(2, minor, 5), pairs.iter().copied()).unwrap().ports
    };
    assert_eq!([19, 20, 23, 24].map(|v| of(v, &[])), [Ports::Apart, Ports::AllOrNone, Ports::AllOrNone, Ports::Merged]);
    assert_eq!([20, 28].map(|v| of(v, &[("NCCL_IB_MERGE_NICS", "0")])), [Ports::Apart; 2]);
    assert_eq!(of(28, &[("NCCL_NET_MERGE_LEVEL", "LOC")]), Ports::Apart);
    assert_eq!(of(28, &[("NCCL_NET_MERGE_LEVEL", "PORT")]), Ports::Merged);
    // 2.23 knows no such variable.
    assert_eq!(of(23, &[("NCCL_NET_MERGE_LEVEL", "LOC")]), Ports::AllOrNone);
}

/// Goal: `NCCL_NTHREADS` is for collectives; sends and receives have their own threads.
#[test]
fn threads_of_sends_are_nccls_own() {
    let topology = nvswitch_box(8, 450.0);
    let us = |threads: Option<u32>| {
        let call = Call::of_size(Collective::AllToAll, 8, Bytes(1 << 28), DataType::Float32);
        let nccl = NcclSettings { threads, ..NcclSettings::default() };
        let settings = Settings { nccl, ..Settings::default() };
        let predicted = Predictor::new(&topology, &prior()).predict(&call, Choice::Auto, Choice::Auto, &settings);
        predicted.unwrap().time.as_us()
    };
    assert_eq!(us(Some(64)), us(None));
}

/// Goal: the proxy of who receives from many works for each of them, one after the other.
/// Method: what a gather to one of 16 hosts takes more where receiving costs 10 us more; and a scatter from it, which costs each
/// of them once.
#[test]
fn a_proxy_works_on_all_that_arrives() {
    let topology = cluster(16, 1, 1);
    let us = |collective, receive: f64| {
        let text = format!(
            "schema = \"collcast/profile/1\"\nname = \"t\"\nevidence = \"none\"\nuncertainty = 0.3\n[parameters]\n\
             \"network.receive\" = {{ value = {receive:?}, origin = \"assumed\", source = \"a test\" }}\n"
        );
        let profile = prior().layered(Layer::parse(&text, "t.toml").unwrap());
        let call = Call::of_size(collective, 16, Bytes(16 << 10), DataType::Float32);
        let (direct, simple) = (Choice::Forced(Algorithm::Direct), Choice::Forced(Protocol::Simple));
        let settings = Settings { channels: Some(1), ..Settings::default() };
        Predictor::new(&topology, &profile).predict(&call, direct, simple, &settings).unwrap().time.as_us()
    };
    let more = |collective| (us(collective, 20.0) - us(collective, 10.0)) / 10.0;
    let (gather, scatter) = (more(Collective::Gather), more(Collective::Scatter));
    assert!((gather / 15.0 - 1.0).abs() < 0.05, "{gather}");
    assert!((0.0..=1.0).contains(&scatter), "{scatter}");
}

/// Goal: what a GPU sends through another's NIC is posted by that one's proxy, and sends by that of the GPU that is first at
/// a NIC which several share; without PXN, and before NCCL 2.12 which has none, by the sender's own.
/// Method: 2 hosts of 4 GPUs, a NIC for each, or for each two. The root of a scatter over 2 hosts of 8 sends to 8 others.
#[test]
fn pxn_posts_by_the_proxy_beside_the_nic() {
    let (own, shared) = (cluster(2, 4, 4), cluster(2, 4, 2));
    let posters = |topology: &Topology, transport| -> Vec<Option<u32>> {
        let pairs = [(0, 4), (0, 6), (1, 4), (6, 3)];
        pairs.map(|(from, to)| route(topology, transport, from, to, 0).poster.map(|rank| rank.0)).to_vec()
    };
    let at = |version| Transport::from_env(&own, version, []).unwrap();
    assert_eq!(posters(&own, at(Version::new(2, 12, 0))), [None, Some(2), Some(0), Some(7)]);
    assert_eq!(posters(&shared, Transport::default()), [None, Some(2), Some(0), None]);
    assert_eq!(posters(&own, at(Version::new(2, 11, 0))), [None; 4]);

    let topology = cluster(2, 8, 8);
    let us = |pxn, proxy: f64| {
        let text = format!(
            "schema = \"collcast/profile/1\"\nname = \"t\"\nevidence = \"none\"\nuncertainty = 0.3\n[parameters]\n\
             \"network.proxy\" = {{ value = {proxy:?}, origin = \"assumed\", source = \"a test\" }}\n"
        );
        let profile = prior().layered(Layer::parse(&text, "t.toml").unwrap());
        let call = Call::of_size(Collective::Scatter, 16, Bytes(16 << 10), DataType::Float32);
        let (direct, simple) = (Choice::Forced(Algorithm::Direct), Choice::Forced(Protocol::Simple));
        let transport = Transport { pxn, ..Transport::default() };
        let settings = Settings { channels: Some(1), transport, ..Settings::default() };
        Predictor::new(&topology, &profile).predict(&call, direct, simple, &settings).unwrap().time.as_us()
    };
    let more = |pxn| (us(pxn, 40.0) - us(pxn, 20.0)) / 20.0;
    let (with, without) = (more(true), more(false));
    assert!((with - 1.0).abs() < 0.1 && (without / 8.0 - 1.0).abs() < 0.1, "{with} {without}");
}

/// Goal: with LL the sender's proxy reads every line, flags included, before it sends, which bounds calls
/// whose network would carry more.
/// Method: two hosts of one GPU, whose all-reduce sends the buffer once each way in lines of twice its bytes.
#[test]
fn a_proxy_checks_every_line() {
    let faster = |_, link: Link| Link { rate: link.rate.times(10), ..link };
    let topology = with_links(&two_spines(2, true, None), faster);
    let call = Call::of_size(Collective::AllReduce, 2, Bytes(64 << 20), DataType::Float32);
    let settings = Settings { channels: Some(8), ..Settings::default() };
    let (ring, ll) = (Choice::Forced(Algorithm::Ring), Choice::Forced(Protocol::Ll));
    let time = |lines: f64| {
        let text = format!(
            "schema = \"collcast/profile/1\"\nname = \"t\"\nevidence = \"none\"\nuncertainty = 0.3\n[parameters]\n\
             \"proxy.lines\" = {{ value = {lines:?}, origin = \"assumed\", source = \"a test\" }}\n"
        );
        let profile = prior().layered(Layer::parse(&text, "t.toml").unwrap());
        Predictor::new(&topology, &profile).predict(&call, ring, ll, &settings).unwrap().time.as_us()
    };
    let more = time(2.5) - time(5.0);
    let expected = 2.0 * f64::from(64 << 20) * (1.0 / 2.5e3 - 1.0 / 5e3);
    assert!((more / expected - 1.0).abs() < 0.05, "{more} against {expected}");
}

/// Goal: who sends to several peers through one port gets less of it, who sends to one all of it.
/// Method: four GPUs whose links bind; in a tree two of them send up and down, in a ring each to the next.
#[test]
fn sending_to_several_peers_costs_a_link() {
    let topology = nvswitch_box(4, 20.0);
    let time = |algorithm, turns: f64| {
        let mut profile = prior();
        profile.parameters.set(Constant::TurnsSimple, turns);
        let call = Call::of_size(Collective::AllReduce, 4, Bytes(64 << 20), DataType::Float32);
        let settings = Settings { channels: Some(8), ..Settings::default() };
        let (algorithm, protocol) = (Choice::Forced(algorithm), Choice::Forced(Protocol::Simple));
        Predictor::new(&topology, &profile).predict(&call, algorithm, protocol, &settings).unwrap().time.as_us()
    };
    assert_eq!(time(Algorithm::Ring, 0.8), time(Algorithm::Ring, 1.0));
    let ratio = time(Algorithm::Tree, 0.8) / time(Algorithm::Tree, 1.0);
    assert!((ratio - 1.25).abs() < 0.02, "{ratio}");
}

/// Goal: a host takes longer to issue a call for each of its channels, for every GPU that a thread serves, and a graph
/// takes nothing.
#[test]
fn channels_are_issued_one_by_one() {
    use collcast_sim::collective::Launch;
    let profile = prior();
    let each = profile[Constant::LaunchChannel].value;
    let interval = |launch, channels| profile.issue_interval(launch, 4, channels).as_us();
    for (launch, times) in
        [(Launch::SingleThread, 4.0), (Launch::Threads, 1.0), (Launch::Processes, 1.0), (Launch::Graph, 0.0)]
    {
        let more = interval(launch, 24) - interval(launch, 4);
        assert!((more - 20.0 * each * times).abs() < 1e-6, "{launch}: {more}");
    }
    // A small call on many channels is kept by the thread that launches it.
    let topology = nvswitch_box(4, 400.0);
    let call = Call::of_size(Collective::AllToAll, 4, Bytes(1 << 20), DataType::Float32);
    let settings = Settings { launch: Launch::SingleThread, ..Settings::default() };
    let predicted = Predictor::new(&topology, &profile).predict(&call, Choice::Auto, Choice::Auto, &settings).unwrap();
    assert_eq!(predicted.time, profile.issue_interval(Launch::SingleThread, 4, predicted.plan.blocks()));
}

/// Goal: a block that reads host memory waits PCIe there and back for what its threads have on their way: 8 bytes of data
/// each with LL, 60 with LL128, 128 with Simple, where instructions of other warps overlap it.
/// Method: a broadcast without peer access on a machine whose links are no limit; a read takes long.
#[test]
fn reads_of_host_memory_take_a_round_trip_a_wave() {
    let topology = pcie_box(2, 1e4);
    let time = |protocol, read: f64| {
        let mut profile = prior();
        profile.parameters.set(Constant::LatencyPcieRead, read);
        profile.parameters.set(Constant::HostMemory, 1e4);
        let call = Call::of_size(Collective::Broadcast, 2, Bytes(64 << 20), DataType::Float32);
        let transport = Transport { peer_access: PeerAccess::Off, ..Transport::default() };
        let settings = Settings { channels: Some(1), transport, ..Settings::default() };
        let (ring, protocol) = (Choice::Forced(Algorithm::Ring), Choice::Forced(protocol));
        Predictor::new(&topology, &profile).predict(&call, ring, protocol, &settings).unwrap()
    };
    for (protocol, threads, each) in [(Protocol::Ll, 512, 8), (Protocol::Ll128, 640, 60), (Protocol::Simple, 512, 128)]
    {
        let (slow, slower) = (time(protocol, 200.0), time(protocol, 400.0));
        let slice = (4 * slow.plan.chunk).div_ceil(u64::from(slow.plan.slices)) as f64;
        // The first wave of lines of a slice is read until a flag is seen.
        let wave = f64::from(threads * each);
        let all = if protocol == Protocol::Simple { slice / wave } else { (slice / wave).ceil() - 1.0 };
        let reads = (slower.kernel.as_us() - slow.kernel.as_us()) / 200.0;
        let more = reads / (all * f64::from(64 << 20) / slice);
        assert!((more - 1.0).abs() < 0.05, "{protocol}: {more} of the reads");
    }
}

/// Goal: what was received loads longer by the part of a ring's chunks that a sixth of the L2 cache has no place for.
/// Method: a broadcast whose receiver is bound by what it fetches. A chunk of LL128 is 120 words of 8 bytes of 640 threads:
/// 0.61 MB a channel on H100, whose L2 has 50 MB.
#[test]
fn what_left_the_cache_loads_longer() {
    let topology = nvswitch_box(2, 400.0);
    let time = |channels: u32, missed: f64| {
        let mut profile = prior();
        profile.parameters.set(Constant::FetchLl128, 4.0);
        profile.parameters.set(Constant::FetchMissed, missed);
        let call = Call::of_size(Collective::Broadcast, 2, Bytes(1 << 30), DataType::Float32);
        let settings = Settings { channels: Some(channels), ..Settings::default() };
        let (ring, lines) = (Choice::Forced(Algorithm::Ring), Choice::Forced(Protocol::Ll128));
        Predictor::new(&topology, &profile).predict(&call, ring, lines, &settings).unwrap().time.as_us()
    };
    assert_eq!(time(13, 0.0), time(13, 1.0), "13 channels of 0.61 MB are less than 8.3 MB");
    for channels in [16, 24, 32] {
        let chunks = f64::from(channels) * 0.6144;
        let (ratio, missed) = (time(channels, 1.0) / time(channels, 0.0), 1.0 - 50.0 / 6.0 / chunks);
        // What is kept as well takes a twentieth of the receiver's time.
        assert!((ratio / (1.0 + 0.95 * missed) - 1.0).abs() < 0.02, "{channels}: {ratio} with {missed} missed");
    }
}

/// Goal: the share of parts that begin inside a line of memory is that of counting them.
#[test]
fn parts_off_lines_are_counted() {
    for ranks in 1..40 {
        for count in [0, 1, 3, 4, 8, 12, 16, 20, 31, 32, 33, 64, 1_000, 1_024, 262_148] {
            let mut call = Call::of_size(Collective::AllGather, ranks, Bytes(0), DataType::Float32);
            call.count = count;
            let inside = (0..u64::from(ranks)).filter(|rank| (rank * count * 4) % 128 != 0).count();
            let share = inside as f64 / f64::from(ranks);
            assert!((call.unaligned() - share).abs() < 1e-12, "{count} on {ranks}: {} {share}", call.unaligned());
            call.collective = Collective::ReduceScatter;
            assert_eq!(call.unaligned(), 0.0);
        }
    }
}

/// Goal: channels of send and receive, all and to one peer, are powers of two by the version's rule, 64 at most.
#[test]
fn channels_of_sends_follow_version_and_bounds() {
    let of = |hosts: u32, version: &str, least: Option<u32>| {
        let sends = Sends { version: version.parse().unwrap(), least, ..Sends::default() };
        let topology = cluster(hosts, 8, 8);
        graphs(&topology, topology.ranks(), &Options { multicast: false, sends, ..Options::default() }).p2p_channels
    };
    for (version, per_peer) in [("2.9.9", 1), ("2.18.3", 2), ("2.28.9", 2)] {
        assert_eq!(of(2, version, None).1, per_peer, "{version}");
    }
    // Batches of eight peers would outnumber the channels.
    assert_eq!((of(2, "2.28.9", None).0, of(16, "2.28.9", None).1), (of(16, "2.28.9", None).0, 1));
    // Bounds of all channels are bounds of these.
    let bounded = |pair: (Option<u32>, Option<u32>)| {
        let sends = Sends { channels: pair, ..Sends::default() };
        let topology = cluster(2, 8, 8);
        graphs(&topology, topology.ranks(), &Options { multicast: false, sends, ..Options::default() }).p2p_channels.0
    };
    assert_eq!([(None, Some(4)), (Some(32), None), (None, Some(3))].map(bounded), [4, 32, 4]);
    for (told, given) in [(33, 64), (64, 64), (65, 64), (u32::MAX, 64)] {
        for version in ["2.8.4", "2.28.9", "2.30.4"] {
            assert_eq!(of(2, version, Some(told)).0, given, "{version} {told}");
        }
    }
}

//! Fabrics, faults and mixed hosts from files to the ways that data takes.

use collcast_sim::collective::{Algorithm, Collective, DataType, Protocol};
use collcast_sim::ids::{ChannelId, Rank};
use collcast_sim::nccl::Version;
use collcast_sim::nccl::plugin;
use collcast_sim::nccl::search::{Options, graphs};
use collcast_sim::nccl::{Interface, NicSet, PathClass, Transport};
use collcast_sim::network::{Route, Router, order_by};
use collcast_sim::predict::{Choice, Predictor, Settings};
use collcast_sim::profile::Profile;
use collcast_sim::schedule::Call;
use collcast_sim::topology::{Topology, VertexKind};
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

/// Goal: an over-subscription that leaves cannot have is told, with what they have.
#[test]
fn an_oversubscription_that_is_not_met_is_told() {
    let told = |fabric: &str| {
        let machine = format!("name = \"x\"\n[[hosts]]\ncount = 8\nlike = \"dgx-h100\"\n[fabric]\n{fabric}\n");
        build(&machine).assumptions.join("; ")
    };
    let rails = told("kind = \"rail-optimised\"\nhosts_per_unit = 2\noversubscription = 8");
    assert!(rails.contains("cannot be over-subscribed 8.00 : 1, and are 2.00 : 1"), "{rails}");
    let one = told("kind = \"fat-tree\"\noversubscription = 4");
    assert!(one.contains("over-subscription has no effect"), "{one}");
    let met = told("kind = \"fat-tree\"\nhosts_per_unit = 2\noversubscription = 4");
    assert!(!met.contains("over-subscri"), "{met}");
}

fn time_us(topology: &Topology, channels: u32) -> f64 {
    time_by(topology, Algorithm::Ring, channels)
}

fn time_by(topology: &Topology, algorithm: Algorithm, channels: u32) -> f64 {
    let profile = Profile::builtin("prior").unwrap();
    let call = Call::of_size(Collective::AllReduce, topology.ranks(), Bytes(256 << 20), DataType::Float32);
    let settings = Settings { channels: Some(channels), ..Settings::default() };
    let (algorithm, protocol) = (Choice::Forced(algorithm), Choice::Forced(Protocol::Simple));
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

/// Goal: an NVLink domain is filled by hosts in order, whatever [[hosts]] tables they are in; a table of other hosts, or one that
/// says so, begins another, and who joins one is told.
#[test]
fn domains_go_on_over_tables() {
    let drawn = |tables: &[&str]| {
        let tables: Vec<String> = tables.iter().map(|table| format!("[[hosts]]\n{table}\n")).collect();
        let topology = build(&format!("name = \"racks\"\n{}", tables.concat()));
        let domains = topology.vertices().filter(|(_, vertex)| vertex.kind == VertexKind::NvSwitch).count();
        (domains, topology.assumptions.join("; ").contains("from host10 on join the NVLink domain"))
    };
    let (ten, other) = ("like = \"gb200-nvl72\"\ncount = 10", "like = \"dgx-b200\"");
    let own = &format!("{ten}\nnew_domain = true");
    let smaller = "like = \"gb200-nvl72\"\nnvlink = { kind = \"nvswitch\", links_per_gpu = 18, rate_per_link = \"50 GB/s\", domain = 9 }";
    for (tables, domains, told) in [
        (&[ten, ten][..], 2, true),
        (&[ten, own], 2, false),
        (&[ten, ten, ten, ten], 3, true),
        (&[ten, own, ten, own], 4, false),
        (&[ten, smaller], 2, false),
        (&[ten, other, ten], 3, false),
    ] {
        assert_eq!(drawn(tables), (domains, told), "{tables:?}");
    }
    let mut none = |_: &str| Err(std::io::Error::other("no other file"));
    let text = format!("schema = \"collcast/topology/1\"\n[[hosts]]\n{other}\nnew_domain = true\n");
    assert!(file::read(&text, "test.toml", &mut none).unwrap_err().render().contains("these hosts are in none"));
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
    // A list of beginnings; whole names behind `=`; and all others behind `^`, the data NICs' among them.
    for (list, management) in [
        ("eth0,ens32", true),
        ("=eth0,ens32", true),
        ("=ens", false),
        ("eth0", false),
        ("^docker,lo", false),
        ("^ens32", false),
    ] {
        let way = by(&[("NCCL_IB_DISABLE", "1"), ("NCCL_SOCKET_IFNAME", list)]);
        assert_eq!(way.contains("management"), management, "{list}: {way}");
    }
}

/// Goal: two GPUs below AMD CPUs reach each other directly, unless a level says otherwise or other GPUs take part.
#[test]
fn two_gpus_below_amd_are_peers() {
    let pair = collcast_topologies::load("r7525-a100", Some(1), None).unwrap();
    let way = |env: &[_]| route(&pair, env, 0, 1, 0);
    assert_eq!((way(&[]).class, way(&[]).staged), (PathClass::Sys, [false; 2]));
    assert_eq!(way(&[("NCCL_P2P_LEVEL", "PXB")]).staged, [true; 2]);
    let four = collcast_topologies::load("workstation", Some(1), None).unwrap();
    let of = |ranks| Router::new(&four).among(ranks).route(Rank(0), Rank(1), ChannelId(0)).unwrap().staged;
    assert_eq!([2, 4].map(of), [[false; 2], [true; 2]]);
}

/// Goal: where host memory is not shared, GPUs that do not reach each other directly go through their NICs.
#[test]
fn without_host_memory_far_peers_take_the_network() {
    let boxed = collcast_topologies::load("pcie-box", Some(1), None).unwrap();
    let by_nics =
        |level, to| !route(&boxed, &[("NCCL_SHM_DISABLE", "1"), ("NCCL_P2P_LEVEL", level)], 0, to, 0).nics.is_empty();
    for (level, near, far) in [("PXB", false, true), ("SYS", false, false), ("LOC", true, true)] {
        assert_eq!((by_nics(level, 1), by_nics(level, 4)), (near, far), "{level}");
    }
    let call = Call::of_size(Collective::AllReduce, 8, Bytes(64 << 20), DataType::Float32);
    let time = |shm| {
        let settings = Settings { transport: Transport { shm, ..Transport::default() }, ..Settings::default() };
        let profile = Profile::builtin("prior").unwrap();
        Predictor::new(&boxed, &profile).predict(&call, Choice::Auto, Choice::Auto, &settings).unwrap().time
    };
    assert_ne!(time(true), time(false));
}

/// Goal: a GPU that relays (PXN) is asked whether its NIC reaches it, not the GPU that sends.
#[test]
fn levels_of_gpudirect_hold_for_the_gpu_that_relays() {
    let machine = collcast_topologies::load("dgx-h100", Some(2), None).unwrap();
    let way = |level| route(&machine, &[("NCCL_NET_GDR_LEVEL", level)], 0, 9, 0);
    for level in ["PHB", "PXB", "PIX"] {
        assert_eq!((way(level).class, way(level).staged), (PathClass::Pxn, [false; 2]), "{level}");
    }
    assert_eq!(way("NVL").staged, [true; 2]);
}

/// Goal: NICs that NCCL reaches by a plugin alone are not used without it; on InfiniBand its own verbs do.
#[test]
fn some_nics_need_a_plugin() {
    let by = |machine: &str, pair| {
        let topology = collcast_topologies::load_any(machine, Some(2), None).unwrap();
        Transport::from_env(&topology, Version::NEWEST, [pair]).map(|transport| transport.interface)
    };
    assert_eq!(by("aws-p5", ("NCCL_NET_PLUGIN", "none")), Ok(Interface::Sockets));
    assert_eq!(by("aws-p5", ("NCCL_NET_PLUGIN", "ofi")), Ok(Interface::Data));
    assert!(by("aws-p5", ("NCCL_NET", "IB")).unwrap_err().to_string().contains("EFA"));
    assert_eq!(by("dgx-h100", ("NCCL_NET_PLUGIN", "none")), Ok(Interface::Data));
    assert_eq!(by("dgx-h100", ("NCCL_NET", "IB")), Ok(Interface::Data));
    // It says nothing to a plugin.
    assert_eq!(by("aws-p5", ("NCCL_IB_DISABLE", "1")), Ok(Interface::Data));
    assert_eq!(by("dgx-h100", ("NCCL_IB_DISABLE", "1")), Ok(Interface::Sockets));
    // TCPX and TCPXO have interfaces of their own: NCCL's are for set-up.
    for machine in ["gcp-a3", "gcp-a3-mega"] {
        assert_eq!(by(machine, ("NCCL_SOCKET_IFNAME", "eth0")), Ok(Interface::Data), "{machine}");
        assert_eq!(by(machine, ("NCCL_IB_DISABLE", "1")), Ok(Interface::Data), "{machine}");
        assert_eq!(by(machine, ("NCCL_NET", "Socket")), Ok(Interface::Sockets), "{machine}");
    }
    // Libfabric without EFA has TCP alone.
    for (machine, provider, interface) in [
        ("aws-p5", "tcp", Interface::Sockets),
        ("aws-p5", "^efa", Interface::Sockets),
        ("aws-p5", "efa", Interface::Data),
        ("aws-p5", "^tcp", Interface::Data),
        ("aws-p5", "", Interface::Data),
        ("dgx-h100", "tcp", Interface::Data),
    ] {
        assert_eq!(by(machine, ("FI_PROVIDER", provider)), Ok(interface), "{machine} {provider}");
    }
}

/// Goal: what a plugin sets by itself gives way to the machine's variables, these to the user's; without it, or with one as old
/// as NCCL before 2.26, none is set.
#[test]
fn plugins_set_what_nobody_else_does() {
    let of = |version, machine: &str, told: &[(&str, &str)], wanted: &str| {
        let topology = collcast_topologies::load_any(machine, Some(2), None).unwrap();
        let told: Vec<_> = told.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let all = plugin::environment(&topology, version, &told);
        all.into_iter().rfind(|(name, _)| name == wanted).map(|(_, value)| value)
    };
    let value = |machine: &str, told: &[(&str, &str)], wanted: &str| of(Version::NEWEST, machine, told, wanted);
    let eight = Some("8388608".to_owned());
    for machine in ["aws-p4d", "aws-p4de", "aws-p5", "aws-p5e", "aws-p5en", "aws-p6-b200", "aws-p6-b300"] {
        for (version, expected) in [("2.30.7", &eight), ("2.26.2", &eight), ("2.25.1", &None)] {
            let version = version.parse().unwrap();
            assert_eq!(&of(version, machine, &[], "NCCL_BUFFSIZE"), expected, "{machine} {version}");
        }
        let own = [("NCCL_BUFFSIZE", "4194304")];
        assert_eq!(value(machine, &own, "NCCL_BUFFSIZE"), Some("4194304".to_owned()), "{machine}");
        assert_eq!(value(machine, &[("NCCL_NET_PLUGIN", "none")], "NCCL_BUFFSIZE"), None, "{machine}");
        let chunk = value(machine, &[], "NCCL_NVLS_CHUNKSIZE");
        assert_eq!(chunk.is_some(), !machine.contains("p4"), "{machine}");
    }
    for (machine, simple) in [("aws-p4d", true), ("aws-g4dn", true), ("aws-p5", false), ("dgx-h100", false)] {
        assert_eq!(value(machine, &[], "NCCL_PROTO").as_deref(), simple.then_some("Simple"), "{machine}");
    }
    assert_eq!(value("aws-g4dn", &[], "NCCL_BUFFSIZE"), None);
}

/// Goal: the latency that a topology file says of its NICs is what NCCL is told, before the plugin's own.
#[test]
fn files_say_the_latency_of_nics() {
    let latency = |said: &str| {
        let machine = build(&format!(
            "[[hosts]]\ncount = 2\nlike = \"aws-p5\"\n[hosts.nics]\nkind = \"efa\"\ncount = 32\nrate = \"100 Gb/s\"\n\
             per_gpu = 4\ngpudirect = true\n{said}\n[fabric]\nkind = \"single-switch\""
        ));
        graphs(&machine, 16, &Options::default()).ring.latency_inter
    };
    assert_eq!((latency(""), latency("latency = \"20 us\""), latency("latency = \"0 us\"")), (75.0, 20.0, 0.0));
}

/// Goal: hosts of different kinds and counts work together. The search lays no ring through a slow port, and makes no GPU
/// beside it a head of an NVLS tree.
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
        assert_eq!(route(&whole, &[], from, to, 0).staged, [false; 2]);
    }
    let slow = mixed("20 Gb/s");
    let ratio = |algorithm| time_by(&slow, algorithm, 8) / time_by(&whole, algorithm, 8);
    for algorithm in [Algorithm::NvlsTree, Algorithm::Ring] {
        let ratio = ratio(algorithm);
        assert!((1.0..2.0).contains(&ratio), "{algorithm} avoids 2.5 GB/s: {ratio}");
    }
}

/// Goal: a cluster below one unit of a rail-optimised fabric has spines too: a lost NIC, or hosts without PXN, send
/// from one rail to another. One of eight NICs costs about an eighth of the rate.
#[test]
fn a_lost_nic_costs_its_share() {
    let cluster = |state: &str| {
        build(&format!(
            "[[hosts]]\ncount = 3\nnames = \"h[0-2]\"\nlike = \"dgx-h100\"\n\
             [fabric]\nkind = \"rail-optimised\"\nhosts_per_unit = 32\n{state}"
        ))
    };
    let whole = cluster("");
    let lost = cluster("[[exceptions]]\nhost = \"h1\"\nnic = 3\nstate = \"down\"");
    let time = |topology| {
        let profile = Profile::builtin("prior").unwrap();
        let call = Call::of_size(Collective::AllReduce, 24, Bytes(1 << 30), DataType::Float32);
        let ring = Choice::Forced(Algorithm::Ring);
        let simple = Choice::Forced(Protocol::Simple);
        Predictor::new(topology, &profile).predict(&call, ring, simple, &Settings::default()).unwrap().time.as_us()
    };
    let ratio = time(&lost) / time(&whole);
    assert!((1.02..1.35).contains(&ratio), "{ratio}");
    for env in [&[][..], &[("NCCL_PXN_DISABLE", "1")]] {
        // GPU 3 of the second host sends and receives through other NICs.
        for (from, to) in [(11, 3), (3, 11), (11, 19)] {
            assert!(!along(&lost, &route(&lost, env, from, to, 0)).contains("h1/nic3"));
        }
    }
}

/// Goal: a dead NIC takes a head of NVLS from every host, as in NCCL (`ncclTopoPostset`), so that each NIC that is left has
/// an equal share, and no number of dead NICs is faster than a smaller one.
#[test]
fn a_lost_nic_is_no_head() {
    let cluster = |dead: &[u32]| {
        let down = |nic: &u32| format!("[[exceptions]]\nhost = \"h1\"\nnic = {nic}\nstate = \"down\"\n");
        let down: String = dead.iter().map(down).collect();
        build(&format!("[[hosts]]\ncount = 3\nnames = \"h[0-2]\"\nlike = \"dgx-h100\"\n{down}"))
    };
    let heads = |topology: &Topology| {
        let graphs = graphs(topology, 24, &Options::default());
        let heads = order_by(topology, &graphs, &Transport::default()).nvls_tree?;
        Some(heads.iter().map(|of| of.iter().map(|head| head.rank).collect()).collect::<Vec<Vec<u32>>>())
    };
    assert_eq!(heads(&cluster(&[])), None, "all ranks, in order");
    let expected = vec![(0..7).collect(), vec![8, 9, 11, 12, 13, 14, 15], (16..23).collect::<Vec<u32>>()];
    assert_eq!(heads(&cluster(&[2])), Some(expected));
    let times = [&[][..], &[2], &[2, 3], &[2, 3, 5]].map(|dead| time_by(&cluster(dead), Algorithm::NvlsTree, 16));
    assert!(times.windows(2).all(|two| two[0] < two[1]), "{times:?}");
    let share = times[2] / times[0];
    assert!(share < 1.4, "6 NICs for 8, and none has two shares: {share}");
}

/// Goal: a cable above a leaf that is slow or down takes its share from the leaf; with hashing it is a cable of its own.
#[test]
fn uplinks_may_be_slow_or_down() {
    let rates = |routing: &str, odd: &str| {
        let topology = build(&format!(
            "[[hosts]]\ncount = 4\nlike = \"dgx-h100\"\n[fabric]\nkind = \"fat-tree\"\nhosts_per_unit = 2\n\
             leaf = {{ rate = \"400 Gb/s\", down = 16, up = 4 }}\nrouting = {routing}\n{odd}"
        ));
        let leaf = topology.find("leaf1").unwrap();
        let up = topology.links_from(leaf).filter(|(_, to, _)| topology.vertex(*to).name.starts_with("spine"));
        up.map(|(_, _, link)| link.rate.gb_per_s()).collect::<Vec<_>>()
    };
    let (adaptive, hashed) = ("\"adaptive\"", "{ hash = 7 }");
    let odd = "[[exceptions]]\nswitch = \"leaf1\"\nuplink = 1\nstate = \"down\"\n\
               [[exceptions]]\nswitch = \"leaf1\"\nuplink = 3\nrate = \"200 Gb/s\"\n";
    assert_eq!((rates(adaptive, ""), rates(adaptive, odd)), (vec![200.0], vec![125.0]));
    let mut cables = rates(hashed, odd);
    cables.sort_by(f64::total_cmp);
    assert_eq!(cables, [25.0, 50.0, 50.0]);
    // A listed switch by its own name; one that fewer hosts leave out is no mistake.
    let listed = build(
        "[[hosts]]\nnames = \"h[0-1]\"\nlike = \"dgx-h100\"\n[fabric]\nkind = \"listed\"\n[[fabric.switches]]\nname = \"a\"\n\
         ports = [{ hosts = \"h0\" }]\nuplinks = 4\n[[fabric.switches]]\nname = \"b\"\nports = [{ hosts = \"h1\" }]\nuplinks = 4\n\
         [[fabric.switches]]\nname = \"top\"\nswitches = \"a,b\"\n\
         [[exceptions]]\nswitch = \"b\"\nuplink = 0\nstate = \"down\"\n",
    );
    let rate =
        |from, to| listed.link(listed.link_between(listed.find(from).unwrap(), listed.find(to).unwrap()).unwrap()).rate;
    assert_eq!((rate("a", "top").gb_per_s(), rate("b", "top").gb_per_s()), (200.0, 150.0));
}

/// Goal: a switch that is down takes the NICs below it along, a spine its share of each leaf; hosts that are cut off are named.
#[test]
fn switches_may_be_down() {
    let read = |fabric: &str, odd: &str| {
        let text = format!(
            "schema = \"collcast/topology/1\"\n[[hosts]]\ncount = 4\nlike = \"dgx-h100\"\n[fabric]\n{fabric}\n{odd}"
        );
        file::read(&text, "t.toml", &mut |_| Err(std::io::Error::other("no files here"))).unwrap().build()
    };
    let down = |switch: &str| format!("[[exceptions]]\nswitch = \"{switch}\"\nstate = \"down\"\n");
    let rates = |topology: &Topology, leaf: &str| {
        let up = topology.links_from(topology.find(leaf).unwrap());
        let up = up.filter(|(_, to, _)| topology.vertex(*to).name.starts_with("spine"));
        up.map(|(_, _, link)| link.rate.gb_per_s()).collect::<Vec<_>>()
    };
    // A dead leaf of a rail is the same machine as one without these NICs.
    let rails = "kind = \"rail-optimised\"\nhosts_per_unit = 2\nspine = { count = 2, ports = 32 }";
    let dead = read(rails, &down("leaf1-rail3")).unwrap();
    let nics = ["host2", "host3"].map(|host| format!("[[exceptions]]\nhost = \"{host}\"\nnic = 3\nstate = \"down\"\n"));
    assert_eq!(format!("{dead:?}"), format!("{:?}", read(rails, &nics.concat()).unwrap()));
    assert!(dead.find("leaf1-rail3").is_none() && dead.find("leaf0-rail3").is_some());
    // Spines: of the four cables of a leaf every fourth, or every second.
    let tree = |spines: u32, routing: &str| {
        format!(
            "kind = \"fat-tree\"\nhosts_per_unit = 2\nleaf = {{ rate = \"400 Gb/s\", down = 16, up = 4 }}\n\
             spine = {{ count = {spines}, ports = 16 }}\nrouting = {routing}"
        )
    };
    for (spines, rate) in [(4, 150.0), (2, 100.0), (8, 150.0)] {
        let topology = read(&tree(spines, "\"adaptive\""), &down("spine1")).unwrap();
        assert_eq!(["leaf0", "leaf1"].map(|leaf| rates(&topology, leaf)), [[rate], [rate]], "{spines}");
        let hashed = read(&tree(spines, "{ hash = 7 }"), &down("spine1")).unwrap();
        assert_eq!(rates(&hashed, "leaf0").len() as f64 * 50.0, rate, "{spines}");
    }
    // A dragonfly+ loses its share between units too.
    let units = "kind = \"dragonfly+\"\nhosts_per_unit = 2\nleaf = { rate = \"400 Gb/s\", down = 16, up = 16 }\n\
                 spine = { count = 4, ports = 8 }";
    let between = |topology: &Topology| {
        let [a, b] = ["spine-unit0", "spine-unit1"].map(|name| topology.find(name).unwrap());
        topology.link(topology.link_between(a, b).unwrap()).rate.gb_per_s()
    };
    let lame = read(units, &down("spine-unit10")).unwrap();
    assert_eq!((between(&read(units, "").unwrap()), between(&lame)), (800.0, 600.0));
    assert_eq!(["leaf0", "leaf1"].map(|leaf| rates(&lame, leaf)), [[800.0], [600.0]]);
    // What is cut off is named.
    let listed = "kind = \"listed\"\n[[fabric.switches]]\nname = \"a\"\nports = [{ hosts = \"host[0-1]\" }]\n\
                  [[fabric.switches]]\nname = \"b\"\nports = [{ hosts = \"host[2-3]\" }]\n\
                  [[fabric.switches]]\nname = \"top\"\nswitches = \"a,b\"";
    for (fabric, switch, hosts) in [
        (tree(4, "\"adaptive\"").as_str(), "leaf1", "host[2-3]"),
        ("kind = \"single-switch\"", "switch", "host[0-3]"),
        (listed, "b", "host[2-3]"),
        (listed, "top", "host[0-3]"),
    ] {
        let error = read(fabric, &down(switch)).unwrap_err().to_string();
        assert!(error.contains(&format!("the switch `{switch}` is down, and cuts off {hosts}")), "{error}");
    }
}

/// Goal: of ports down, ports up and over-subscription any two give the third.
#[test]
fn two_of_three_say_how_a_leaf_is_made() {
    let made = |leaf: &str, ratio: &str| {
        let topology = build(&format!(
            "[[hosts]]\ncount = 4\nlike = \"dgx-h100\"\n[fabric]\nkind = \"fat-tree\"\nhosts_per_unit = 2\nleaf = {{ {leaf} }}\n{ratio}"
        ));
        let leaf = topology.find("leaf0").unwrap();
        topology.links_from(leaf).find(|(_, to, _)| topology.vertex(*to).name == "spine").unwrap().2.width
    };
    assert_eq!(made("down = 16, up = 8", ""), 8);
    assert_eq!(made("down = 16", "oversubscription = 2"), 8);
    assert_eq!(made("up = 8", "oversubscription = 2"), 8);
    assert_eq!(made("down = 16, up = 8", "oversubscription = 2"), 8);
}

/// Goal: GPUs relay (PXN) only for NICs that they serve first, and only those with ranks. On a DGX A100 two
/// GPUs and two NICs share each PCIe switch, and each GPU has its own NIC.
#[test]
fn relays_are_nccls() {
    let topology = collcast_topologies::load("dgx-a100", Some(2), None).unwrap();
    // To GPU 1 of the other host, which takes the second NIC of its switch: relayed by the GPU with that NIC.
    let way = |topology: &Topology, from, to| along(topology, &route(topology, &[], from, to, 0));
    let nics: std::collections::BTreeSet<String> = (8..16)
        .map(|to| way(&topology, 4, to).split(' ').find(|v| v.contains("/nic")).unwrap_or_default().to_owned())
        .collect();
    assert_eq!(nics.len(), 8, "each peer has its rail: {nics:?}");
    let two = collcast_topologies::placement::place(&topology, "0,15").unwrap();
    assert!(!way(&two, 0, 1).contains("host0/gpu7"), "{}", way(&two, 0, 1));
}

/// Goal: the chains of CollNet have their heads at all NICs, so that each NIC carries the message's share once.
#[test]
fn chains_use_all_nics() {
    let topology = collcast_topologies::load("dgx-h100", Some(2), None).unwrap();
    let graphs = graphs(&topology, 16, &Options { collnet: true, ..Options::default() });
    let chains = order_by(&topology, &graphs, &Transport::default()).collnet.unwrap();
    let heads: std::collections::BTreeSet<u32> = chains.iter().map(|hosts| hosts[0][0]).collect();
    assert_eq!(heads.len(), 8, "{heads:?}");
}

/// Goal: NICs are those that `NCCL_IB_HCA` selects, by name where the topology has names.
#[test]
fn hcas_are_selected() {
    let text = "[[hosts]]\ncount = 2\nlike = \"dgx-h100\"\n[hosts.nics]\nkind = \"infiniband\"\ncount = 8\n\
                names = \"mlx5_[0,3-6,9-11]\"\nrate = \"400 Gb/s\"\nper_gpu = 1\n";
    let machine = build(text);
    let used = |env: &[(&'static str, &'static str)]| -> Vec<usize> {
        let transport = Transport::from_env(&machine, Version::NEWEST, env.iter().copied()).unwrap();
        let found = graphs(&machine, 16, &Options { transport, ..Options::default() });
        let nics = found.ring.paths[0].iter().flat_map(|c| <[u32; 2]>::from(c.nics.unwrap()));
        let mut nics: Vec<usize> = nics.map(|n| n as usize).collect();
        nics.sort_unstable();
        nics.dedup();
        nics
    };
    assert_eq!(used(&[]), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(used(&[("NCCL_IB_HCA", "=mlx5_0,mlx5_3:1")]), [0, 1]);
    assert_eq!(used(&[("NCCL_IB_HCA", "mlx5_1")]), [6, 7], "beginnings of names: mlx5_10 and mlx5_11");
    assert_eq!(used(&[("NCCL_IB_HCA", "^=mlx5_9,mlx5_10,mlx5_11")]), [0, 1, 2, 3, 4]);
    assert_eq!(used(&[("NCCL_IB_HCA", "")]), [0, 1, 2, 3, 4, 5, 6, 7]);
    // Each is the one port of its device.
    assert_eq!(used(&[("NCCL_IB_HCA", "^mlx5_0:2")]), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(used(&[("NCCL_IB_HCA", "^mlx5_0:1")]), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(used(&[("NCCL_IB_HCA", "=mlx5_0:2,mlx5_3:1:0")]), [1]);
    // Source: `matchIfList` of NCCL's `src/misc/utils.cc` takes all by an empty list, and `^` turns that round.
    let none = Transport::from_env(&machine, Version::NEWEST, [("NCCL_IB_HCA", "^")]).unwrap();
    assert_eq!(none.interface, Interface::Sockets);
    let sends = along(&machine, &route(&machine, &[("NCCL_IB_HCA", "=mlx5_0")], 5, 13, 0));
    assert!(sends.contains("host0/nic0") && sends.contains("host1/nic0"), "{sends}");
    // None of them is as without RDMA; names that a machine does not have are not guessed.
    let none = Transport::from_env(&machine, Version::NEWEST, [("NCCL_IB_HCA", "ibp")]).unwrap();
    assert_eq!(none.interface, Interface::Sockets);
    let plain = collcast_topologies::load("dgx-h100", Some(2), None).unwrap();
    assert!(NicSet::of_hcas(&plain, "mlx5_0").unwrap_err().contains("have no names"));
    for (value, listed) in [
        ("mlx5_0", Some(1)),
        ("=mlx5_0,mlx5_3:1,mlx5_0", Some(2)),
        ("mlx5_0:1,mlx5_0:2", Some(2)),
        ("ibp24s0,rocep27s0f1,mlx5_ib2", Some(3)),
        ("mlx5", None),
        ("=mlx5", None),
        ("mlx5_0,mlx5_ib", None),
        ("^mlx5_0", None),
        ("", None),
    ] {
        assert_eq!(NicSet::listed(value), listed, "{value}");
    }
}

/// Goal: the other settings of NICs and NVLink domains do what they do in NCCL.
#[test]
fn nic_policies_and_domains() {
    let oci = collcast_topologies::load("oci-h100", Some(2), None).unwrap();
    let nics = |env: &[(&'static str, &'static str)]| -> std::collections::BTreeSet<String> {
        let enters = |channel| route(&oci, env, 0, 8, channel).nics[0].1;
        (0..16).map(|channel| oci.vertex(enters(channel)).name.clone()).collect()
    };
    // Two ports hang from the switch of each GPU.
    let apart = ("NCCL_IB_MERGE_NICS", "0");
    assert_eq!(nics(&[apart]).len(), 2);
    assert_eq!(nics(&[apart, ("NCCL_NETDEVS_POLICY", "MAX:1")]).len(), 1);
    let cross = |value| {
        let transport = Transport::from_env(&oci, Version::NEWEST, [("NCCL_CROSS_NIC", value)]).unwrap();
        let found = graphs(&oci, 16, &Options { transport, ..Options::default() }).ring;
        (found.cross_nic, found.paths[0].iter().filter(|c| c.nics.is_some_and(|(a, b)| a != b)).count())
    };
    assert_eq!(cross("0"), (false, 0));
    assert!(cross("1").1 > 0 && !cross("1").0);
    let rack = collcast_topologies::load("gb200-nvl72", Some(2), None).unwrap();
    let to_next = |env: &[_]| along(&rack, &route(&rack, env, 0, rack.ranks() / 2, 0));
    assert!(!to_next(&[]).contains("nic"), "{}", to_next(&[]));
    assert!(to_next(&[("NCCL_MNNVL_ENABLE", "0")]).contains("nic"));
    // NVLink across hosts needs cuMem, whatever is asked for; -2 is automatic.
    for (value, off) in [("0", true), ("-1", true), ("1", false), ("-2", false), ("", false)] {
        let env = [("NCCL_CUMEM_ENABLE", value), ("NCCL_MNNVL_ENABLE", "1")];
        assert_eq!(to_next(&env).contains("nic"), off, "{value}");
    }
}

/// Goal: what runs on the hosts of `like` runs on its copies, whichever way it is written; what the file says itself comes first.
#[test]
fn software_is_that_of_the_like_machine() {
    let own = "[software]\nnccl = \"2.30.7\"\nenv = { NCCL_PROTO = \"LL\" }\n";
    let [short, long, own] = [
        "like = \"gcp-a3\"\ncount = 2\n".to_owned(),
        "[[hosts]]\nlike = \"gcp-a3\"\ncount = 2\n".to_owned(),
        format!("like = \"gcp-a3\"\ncount = 2\n{own}"),
    ]
    .map(|text| build(&text).software);
    assert!(short == long && !short.env.is_empty(), "{short:?} {long:?}");
    let value = |name: &str| {
        own.env.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).collect::<Vec<_>>()
    };
    assert_eq!((value("NCCL_ALGO"), value("NCCL_PROTO")), (vec!["Ring,Tree"], vec!["LL"]));
    assert!(own.nccl.is_some() && own.plugin == short.plugin);
}

/// Goal: exceptions of the file that `like` names are its own hosts', and it is said that others do not have them.
#[test]
fn exceptions_of_the_like_machine_are_left_out_and_named() {
    let mine = "schema = \"collcast/topology/1\"\nlike = \"dgx-h100\"\ncount = 2\n[[exceptions]]\nhost = \"host1\"\nnic = 0\n\
                state = \"down\"\n";
    for text in ["like = \"mine.toml\"\ncount = 2\n", "[[hosts]]\ncount = 2\nlike = \"mine.toml\"\n"] {
        let mut load = |_: &str| Ok(mine.as_bytes().to_vec());
        let spec = file::read(&format!("schema = \"collcast/topology/1\"\n{text}"), "test.toml", &mut load).unwrap();
        assert!(spec.exceptions.is_empty(), "{:?}", spec.exceptions);
        let said = |note: &String| note.starts_with("exceptions: those of the file `mine.toml`");
        assert!(spec.assumptions.iter().any(said), "{:?}", spec.assumptions);
    }
}

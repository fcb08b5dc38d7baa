//! NCCL's graph search against what NCCL itself wrote and logged, and over all machines here.

use collcast_sim::collective::{Algorithm, Collective, DataType, Protocol};
use collcast_sim::ids::{ChannelId, Lane, Rank};
use collcast_sim::nccl::graphs::{Graph, Graphs, Pattern};
use collcast_sim::nccl::search::{Given, Known, Options, Sends, graphs, graphs_of};
use collcast_sim::nccl::settings::pair;
use collcast_sim::nccl::{Environment, NcclSettings, Version};
use collcast_sim::nccl::{Limits, Plan};
use collcast_sim::nccl::{PathClass, Transport};
use collcast_sim::network::{ResourceName, Router, lay, order_by};
use collcast_sim::predict::{Choice, Predictor, Settings};
use collcast_sim::profile::Profile;
use collcast_sim::schedule::verify::verify;
use collcast_sim::schedule::{Call, Schedule};
use collcast_sim::topology::Topology;
use collcast_sim::units::Bytes;
use collcast_topologies::cluster::ClusterSpec;
use collcast_topologies::file;
use collcast_topologies::placement::place;
use collcast_topologies::xml::{self, Document};
use collcast_topologies::{graph, import_file, load};

fn path(name: &str) -> String {
    format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn fixture(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn cluster(name: &str) -> ClusterSpec {
    ClusterSpec::single(name, name, xml::read_machine(&fixture(name), name).unwrap())
}

fn search(topology: &Topology) -> Graphs {
    graphs(topology, topology.ranks(), &Options::default())
}

fn without_multicast() -> Options {
    Options { multicast: false, ..Options::default() }
}

/// Pattern, channels, speeds inside and between hosts.
fn facts(graph: &Graph) -> (Pattern, u32, f64, f64) {
    (graph.pattern, graph.channels, graph.speed_intra, graph.speed_inter)
}

/// Every channel of rings and trees visits every GPU of each host once.
fn check_whole(what: &str, graphs: &Graphs, per_host: &[u32]) {
    for graph in [&graphs.ring, &graphs.tree] {
        assert!(graph.channels >= 1 && graph.channels <= 32, "{what}");
        assert_eq!(graph.paths.len(), per_host.len(), "{what}");
        for (paths, &gpus) in graph.paths.iter().zip(per_host) {
            assert_eq!(paths.len(), graph.channels as usize, "{what}");
            for path in paths {
                let mut visited = path.gpus.clone();
                visited.sort_unstable();
                assert_eq!(visited, (0..gpus).collect::<Vec<_>>(), "{what}");
                assert_eq!(path.nics.is_some(), per_host.len() > 1, "{what}");
            }
        }
    }
    assert!(graphs.channels >= graphs.ring.channels && graphs.channels <= 64, "{what}");
}

/// Goal: what NCCL 2.28.9 dumped on a measured machine is found from its topology alone, byte for byte.
#[test]
fn measured_graphs_are_found() {
    for (topology, dumped) in
        [("h200x4-nccl-topo-2gpu.xml", "h200x4-nccl-graph-2gpu.xml"), ("h200x4-nccl-topo.xml", "h200x4-nccl-graph.xml")]
    {
        let machine = cluster(topology).build().unwrap();
        let found = graphs(&machine, machine.ranks(), &without_multicast());
        assert_eq!(graph::xml(&found, 0), fixture(dumped), "{topology}");
        // The log of the same runs: 24 coll channels, 32 p2p channels, 32 p2p channels per peer.
        assert_eq!((found.channels, found.p2p_channels, found.nvls_channels), (24, (32, 32), 0));
    }
}

/// Goal: four hosts of one H200 over sockets, as NCCL 2.28.9 logged them: ring `nChannels 1, bw 1.2/1.2,
/// type LOC/PHB, sameChannels 1`; tree pattern 3, `bw 2.4/1.2, type LOC/PHB`; 2 coll channels.
#[test]
fn one_gpu_a_host_over_sockets() {
    let machine = cluster("h200x4-nccl-topo.xml").with_gpus(1).unwrap().with_nodes(4).unwrap().build().unwrap();
    let found = search(&machine);
    assert_eq!(facts(&found.ring), (Pattern::Ring, 1, 1.2, 1.2));
    assert_eq!(facts(&found.tree), (Pattern::Tree, 1, 2.4, 1.2));
    for graph in [&found.ring, &found.tree] {
        assert_eq!((graph.type_intra, graph.type_inter), (PathClass::Loc, PathClass::Phb));
        assert!(graph.same_channels && !graph.cross_nic);
    }
    assert_eq!((found.channels, found.nvls.is_some()), (2, false));
}

/// Goal: one and several DGX H100 as NCCL's public logs show them.
#[test]
fn dgx_h100() {
    let one = search(&load("dgx-h100", Some(1), None).unwrap());
    assert_eq!(facts(&one.ring), (Pattern::Ring, 12, 30.0, 30.0));
    assert_eq!(facts(&one.tree), (Pattern::BalancedTree, 12, 30.0, 30.0));
    assert_eq!(facts(one.nvls.as_ref().unwrap()), (Pattern::Nvls, 8, 40.0, 60.0));
    assert_eq!((one.channels, one.nvls_channels), (24, 16));
    for hosts in [2, 4] {
        let many = search(&load("dgx-h100", Some(hosts), None).unwrap());
        assert_eq!(facts(&many.ring), (Pattern::Ring, 8, 48.0, 48.0));
        assert_eq!(facts(&many.tree), (Pattern::Tree, 8, 48.0, 48.0));
        assert_eq!(facts(many.nvls.as_ref().unwrap()), (Pattern::Nvls, 8, 40.0, 48.0));
        assert_eq!((many.channels, many.nvls_channels), (16, 16));
        // `Channel 00/16 : 0 7 6 5 4 3 2 1 9 10 11 12 13 14 15 8`, as such clusters log it.
        let ring = |host: usize| many.ring.paths[host][0].gpus.clone();
        assert_eq!((ring(0), ring(1)), (vec![0, 7, 6, 5, 4, 3, 2, 1], vec![1, 2, 3, 4, 5, 6, 7, 0]));
        assert!(many.ring.cross_nic);
    }
}

fn draw(hosts: &str) -> Topology {
    let text = format!("schema = \"collcast/topology/1\"\nname = \"t\"\n[[hosts]]\n{hosts}");
    let spec = file::read(&text, "t.toml", &mut |_| Err(std::io::Error::other("no files here")));
    spec.unwrap_or_else(|e| panic!("{}", e.render())).build().unwrap()
}

/// Goal: two p4d.24xlarge get the channels that aws-samples/aws-efa-eks (README.md) shows in a log of NCCL 2.9.9:
/// `8 coll channels, 8 p2p channels, 1 p2p channels per peer`.
#[test]
fn p4d() {
    let machine = draw(
        "count = 2\n\
        gpus = { count = 8, kind = \"A100-SXM4-40GB\", compute_capability = 80, memory_rate = \"1.555 TB/s\" }\n\
        nvlink = { kind = \"nvswitch\", links_per_gpu = 12, rate_per_link = \"25 GB/s\" }\n\
        pcie = { generation = 4, lanes = 16, switches_per_socket = 2, sockets = 2, interconnect = \"10 GB/s\", \
        cpu = \"GenuineIntel\" }\n\
        [hosts.nics]\nkind = \"efa\"\ncount = 4\nrate = \"100 Gb/s\"\ngpu = [0, 2, 4, 6]\ngpudirect = true\n\
        [fabric]\nkind = \"single-switch\"\nrouting = \"spray\"\n",
    );
    let sends = Sends { version: Version::new(2, 9, 9), ..Sends::default() };
    let found = graphs(&machine, machine.ranks(), &Options { sends, ..Options::default() });
    assert_eq!((found.ring.channels, found.ring.speed_inter), (4, 12.0));
    assert_eq!((found.channels, found.p2p_channels, found.ring.latency_inter), (8, (8, 1), 75.0));
}

/// Goal: channels to a peer over the network follow the version (`src/graph/paths.cc` of 2.12.12, 2.28.3 and 2.29.2): two, then
/// fewer among many ranks, then by the NIC's rate. Settings have the last word.
#[test]
fn sends_have_the_channels_of_their_version() {
    let per_peer = |machine: &str, hosts: u32, sends: Sends| {
        let machine = load(machine, Some(hosts), None).unwrap();
        graphs(&machine, machine.ranks(), &Options { sends, ..Options::default() }).p2p_channels
    };
    let of = |minor: u16, hosts: u32| {
        per_peer("dgx-h100", hosts, Sends { version: Version::new(2, minor, 3), ..Sends::default() })
    };
    for (minor, expected) in [(8, [1, 1, 1, 1]), (12, [2, 2, 2, 2]), (28, [2, 2, 1, 1]), (29, [4, 4, 2, 1])] {
        assert_eq!([2, 4, 8, 16].map(|hosts| of(minor, hosts)), expected.map(|per_peer| (16, per_peer)), "2.{minor}");
    }
    // A GPU without a PCIe switch counts the NICs that fill its link to the CPU: two of 200 Gb/s of PCIe 5.
    let two = "count = 16\n\
        gpus = { count = 8, kind = \"H100-SXM5-80GB\", compute_capability = 90, memory_rate = \"3.35 TB/s\" }\n\
        nvlink = { kind = \"nvswitch\", links_per_gpu = 18, rate_per_link = \"25 GB/s\" }\n\
        pcie = { generation = 5, lanes = 16, switches_per_socket = 0, sockets = 8, interconnect = \"10 GB/s\", \
        cpu = \"GenuineIntel\" }\n\
        [hosts.nics]\nkind = \"infiniband\"\ncount = 16\nrate = \"200 Gb/s\"\nper_gpu = 2\ngpudirect = true\n\
        [fabric]\nkind = \"single-switch\"\n";
    let two = draw(two);
    let sends = Sends { version: Version::new(2, 28, 3), ..Sends::default() };
    let found = graphs(&two, two.ranks(), &Options { sends, ..Options::default() });
    assert_eq!(found.p2p_channels.1, 2, "{found:?}");
    let set = Sends { per_peer: Some(8), least: Some(32), ..Sends::default() };
    assert_eq!(per_peer("dgx-h100", 8, set), (32, 8));
    let set = Sends { most: Some(2), ..Sends::default() };
    assert_eq!(per_peer("dgx-h100", 2, set), (2, 1));
}

/// Goal: a NIC that hangs from a CPU is reached through it, where one behind the GPUs' switch is not.
#[test]
fn nics_of_a_socket() {
    for (nics, class) in [("socket = [0, 1]", PathClass::Phb), ("gpu = [0, 2]", PathClass::Pix)] {
        let found = search(&draw(&format!(
            "count = 2\n\
            gpus = {{ count = 4, kind = \"V100-SXM2-16GB\", compute_capability = 70, memory_rate = \"900 GB/s\" }}\n\
            nvlink = {{ kind = \"mesh\", links_per_gpu = 6, rate_per_link = \"25 GB/s\" }}\n\
            pcie = {{ generation = 3, lanes = 16, switches_per_socket = 1, sockets = 2, interconnect = \"10 GB/s\", \
            cpu = \"GenuineIntel\" }}\n\
            [hosts.nics]\nkind = \"infiniband\"\ncount = 2\nrate = \"100 Gb/s\"\n{nics}\ngpudirect = true\n\
            [fabric]\nkind = \"single-switch\"\nrouting = \"adaptive\"\n"
        )));
        assert_eq!((found.channels, found.ring.type_inter), (4, class), "{nics}");
    }
}

/// Goal: with half the NICs a Hopper host takes 8 channels of 24 GB/s.
#[test]
fn four_nics() {
    let found = search(&draw(
        "count = 4\n\
        gpus = { count = 8, kind = \"H100-SXM5-80GB\", compute_capability = 90, memory_rate = \"3.35 TB/s\" }\n\
        nvlink = { kind = \"nvswitch\", links_per_gpu = 18, rate_per_link = \"25 GB/s\" }\n\
        pcie = { generation = 5, lanes = 16, switches_per_socket = 2, sockets = 2, interconnect = \"22 GB/s\", \
        cpu = \"GenuineIntel\" }\n\
        [hosts.nics]\nkind = \"infiniband\"\ncount = 4\nrate = \"400 Gb/s\"\ngpu = [0, 2, 4, 6]\ngpudirect = true\n\
        [fabric]\nkind = \"single-switch\"\nrouting = \"adaptive\"\n",
    ));
    assert_eq!((found.ring.channels, found.ring.speed_inter, found.channels), (8, 24.0, 16));
}

/// Goal: the two ports of a card are one device with the rate of both, which has the graphs of a machine with
/// as many NICs of that rate, and sends half of every message through each; before NCCL 2.20, or when told
/// not to, every port is a device.
#[test]
fn ports_of_a_card_are_one_device() {
    let machine = load("oci-h100", Some(2), None).unwrap();
    let of = |minor, env: &[(&'static str, &'static str)]| {
        let transport = Transport::from_env(&machine, Version::new(2, minor, 5), env.iter().copied()).unwrap();
        let found = graphs(&machine, machine.ranks(), &Options { transport, ..Options::default() });
        let route = Router::with(&machine, transport).route(Rank(0), Rank(8), ChannelId(0)).unwrap();
        let index = |v| machine.nic(v).unwrap().index;
        (found, route.nics.iter().map(|&(from, to)| (index(from), index(to))).collect::<Vec<_>>())
    };
    let plain = search(&load("dgx-h100", Some(2), None).unwrap());
    for minor in [20, 23, 24, 30] {
        let (merged, nics) = of(minor, &[]);
        assert_eq!(facts(&merged.ring), facts(&plain.ring));
        assert_eq!(facts(&merged.tree), facts(&plain.tree));
        assert_eq!(facts(merged.nvls.as_ref().unwrap()), facts(plain.nvls.as_ref().unwrap()));
        // Channels name a device by its first port.
        assert!(merged.ring.paths[0].iter().all(|p| p.nics.is_some_and(|(a, b)| a % 2 == 0 && b % 2 == 0)));
        assert_eq!(nics, [(0, 0), (1, 1)]);
    }
    for (minor, env) in [(19, &[][..]), (28, &[("NCCL_IB_MERGE_NICS", "0")][..])] {
        let (apart, nics) = of(minor, env);
        assert_eq!(facts(&apart.ring), (Pattern::Ring, 16, 24.0, 24.0));
        assert_eq!(nics, [(0, 0)]);
    }
}

/// Goal: a graph file is taken in place of the search, and what does not fit is refused in words.
#[test]
fn graph_files_replace_the_search() {
    let machine = cluster("azure-ncv4-topo.xml").build().unwrap();
    let read = |name: &str| match xml::read(&fixture(name), name).unwrap() {
        Document::Graph(spec) => graph::given(&spec, name).unwrap(),
        other => panic!("{name} is a {}", other.class()),
    };
    let given = read("azure-ncv4-graph.xml");
    given.check(&machine, 4).unwrap();
    // The file is tuned by hand: the search finds its speed and types, but only one such ring, since
    // both would share the one PCIe link of each GPU.
    let found = search(&machine);
    let tuned = given.ring.clone().unwrap();
    assert_eq!(facts(&found.ring), (Pattern::Ring, 1, 12.0, 12.0));
    assert_eq!((found.ring.type_intra, found.ring.type_inter), (tuned.type_intra, tuned.type_inter));
    let options = Options { given, ..Options::default() };
    let taken = graphs(&machine, 4, &options);
    assert_eq!(facts(&taken.ring), (Pattern::Ring, 2, 12.0, 12.0));
    assert_eq!(facts(&taken.tree), (Pattern::BalancedTree, 2, 12.0, 12.0));
    assert_eq!(taken.ring.paths, [tuned.paths[0].clone()]);
    assert_eq!(taken.channels, 4);

    let larger = load("dgx-h100", Some(1), None).unwrap();
    let refused = options.given.check(&larger, 8).unwrap_err();
    assert!(refused.contains("visits GPUs [0, 1, 2, 3]"), "{refused}");
    assert_eq!(graphs(&larger, 8, &options).ring, search(&larger).ring);
    for dumped in ["h200x4-nccl-graph.xml", "h200x4-nccl-graph-2gpu.xml"] {
        let given: Given = read(dumped);
        let both = Graphs { ring: given.ring.unwrap(), tree: given.tree.unwrap(), ..without_nvls(&found) };
        assert_eq!(graph::xml(&both, 0), fixture(dumped), "what is read is written back");
    }
}

fn without_nvls(graphs: &Graphs) -> Graphs {
    Graphs { nvls: None, ..graphs.clone() }
}

/// Goal: every machine and every template of the collection gives channels through all GPUs, alone and
/// as a cluster.
#[test]
fn every_machine_has_graphs() {
    let mut specs: Vec<(String, ClusterSpec)> = collcast_topologies::builtin::names()
        .into_iter()
        .map(|n| (n.to_owned(), collcast_topologies::builtin::spec(n).unwrap()))
        .collect();
    for (name, onto) in [
        ("aws-g5.48xl-topo.xml", "pcie-box"),
        ("aws-p4d-24xl-topo.xml", "dgx-a100"),
        ("aws-p5.48xl-topo.xml", "aws-p5"),
        ("azure-ndv2-topo.xml", "dgx-a100"),
        ("azure-ndv4-topo.xml", "dgx-a100"),
        ("azure-ndv5-topo.xml", "dgx-h100"),
        ("oci-b4-topo-flattened.xml", "dgx-a100"),
        ("oci-gpu4-topo-flattened.xml", "dgx-a100"),
        ("oci-h100-topology.xml", "dgx-h100"),
        ("azure-ncv4-topo.xml", ""),
        ("h200x4-nccl-topo.xml", ""),
        ("h200x4-nccl-topo-2gpu.xml", ""),
    ] {
        let text = match xml::read(&fixture(name), name).unwrap() {
            Document::Template(_) => import_file(path(name).as_ref(), Some(onto)).unwrap().text,
            _ => fixture(name),
        };
        specs.push((name.to_owned(), ClusterSpec::single(name, name, xml::read_machine(&text, name).unwrap())));
    }
    for (name, spec) in specs {
        for hosts in [1, 2, 3] {
            let machine = spec.clone().with_nodes(hosts).unwrap().build().unwrap();
            let mut by_node = std::collections::BTreeMap::new();
            for host in machine.hosts() {
                *by_node.entry(host.node).or_insert(0) += u32::try_from(host.gpus.len()).unwrap();
            }
            let gpus: Vec<u32> = by_node.into_values().collect();
            let found = search(&machine);
            check_whole(&format!("{name} x {hosts}"), &found, &gpus);
            println!(
                "{name} x {hosts}: ring {:?} {}/{} tree {:?} nvls {:?} C {}",
                facts(&found.ring),
                found.ring.type_intra.name(),
                found.ring.type_inter.name(),
                facts(&found.tree),
                found.nvls.as_ref().map(facts),
                found.channels
            );
        }
    }
}

/// Goal: GPUs that share no PCIe switch and no NVLink send through their CPUs; two below AMD do not.
#[test]
fn without_peer_access() {
    let machine = cluster("azure-ncv4-topo.xml").build().unwrap();
    assert_eq!(search(&machine).ring.type_intra, PathClass::Sys);
    let boxes = load("pcie-box", Some(1), None).unwrap();
    let found = search(&boxes);
    assert!(found.ring.type_intra >= PathClass::Phb && !found.nvswitch && found.nvls.is_none(), "{found:?}");
    assert_eq!(found.p2p_channels.1, 2);
}

/// Goal: hosts that are not alike agree on the worst of both, and each keeps its own paths.
#[test]
fn unequal_hosts_agree_on_the_worst() {
    let machine = load("dgx-h100", Some(2), None).unwrap();
    let found = graphs(&machine, 12, &Options::default());
    assert_eq!((found.ranks_per_host, found.hosts), ((4, 8), 2));
    check_whole("8 and 4 GPUs", &found, &[8, 4]);
    let alone = |gpus: u32| search(&load("dgx-h100", Some(2), Some(gpus)).unwrap()).ring;
    assert_eq!(found.ring.channels, alone(8).channels.min(alone(4).channels));
    let ranks: Vec<Rank> = [9, 1, 3, 11].map(Rank).to_vec();
    let some = graphs_of(&machine, &ranks, &Options::default(), &Known::default());
    assert_eq!((some.ranks, some.hosts), (4, 2));
    for paths in &some.ring.paths {
        let mut gpus = paths[0].gpus.clone();
        gpus.sort_unstable();
        assert_eq!(gpus, [1, 3]);
    }
}

/// Goal: a large uniform cluster has the graphs of a small one.
#[test]
fn alike_hosts_have_alike_graphs() {
    let (small, large) = (load("ib-rail", Some(4), None).unwrap(), load("ib-rail", Some(512), None).unwrap());
    let (few, many) = (search(&small), search(&large));
    assert_eq!((many.ranks, many.hosts, many.channels), (4096, 512, few.channels));
    assert_eq!(many.ring.paths[..4], few.ring.paths[..]);
    assert_eq!(many.ring.paths[510..], few.ring.paths[2..]);
}

fn schedule(machine: &Topology, found: &Graphs, algorithm: Algorithm) -> Schedule {
    let call = Call::of_size(Collective::AllReduce, found.ranks, Bytes(4 << 20), DataType::Float32);
    let limits = Limits { channels: found.channels, exact_channels: true, network: true, ..Limits::default() };
    let plan = Plan::new(&call, algorithm, Protocol::Simple, &limits);
    Schedule::new(call, plan, &order_by(machine, found, &Transport::default())).unwrap()
}

/// Goal: between hosts (or NVLink domains, whose hosts use no NIC among them) each channel's data goes
/// by the NICs of its graph and by no other.
#[test]
fn channels_use_their_nics() {
    let profile = Profile::builtin("prior").unwrap();
    for (machine, hosts, nodes) in [("dgx-h100", 4, 4), ("aws-p5", 4, 4), ("gb200-nvl72", 36, 2)] {
        let machine = load(machine, Some(hosts), None).unwrap();
        let found = search(&machine);
        for (algorithm, graph) in [(Algorithm::Ring, &found.ring), (Algorithm::Tree, &found.tree)] {
            let schedule = schedule(&machine, &found, algorithm);
            let laid = lay(&machine, &profile, &collcast_sim::nccl::Transport::default(), &schedule).unwrap();
            let mut crossing = 0;
            for (wired, spec) in laid.wiring.conns.iter().zip(laid.instance.conns.iter()) {
                let conn = wired.conn;
                let (src, dst) = conn.ranks().unwrap();
                let node = |rank: Rank| machine.node_of(rank);
                let mut nics = std::collections::BTreeSet::new();
                for (_, used) in spec.uses.iter() {
                    let ResourceName::Link(link) = laid.names[used.0 as usize] else { continue };
                    for end in [machine.ends(link).0, machine.ends(link).1] {
                        if let Some(nic) = machine.nic(end) {
                            let host = &machine.hosts()[machine.vertex(end).host.unwrap().index()];
                            nics.insert((host.node, host.first_nic + nic.index));
                        }
                    }
                }
                if node(src) == node(dst) {
                    assert!(nics.is_empty(), "{conn:?}: {nics:?}");
                    continue;
                }
                crossing += 1;
                let channel = conn.channel.index() % graph.channels as usize;
                let of = |rank: Rank| {
                    let path = &graph.paths[node(rank).index() * nodes / machine.hosts().len()][channel];
                    let (enter, leave) = path.nics.unwrap();
                    (node(rank), if path.gpus[0] == machine.number_in_node(rank) { enter } else { leave })
                };
                let wanted = [of(src), of(dst)];
                assert!(wanted.iter().all(|n| nics.contains(n)), "{conn:?}: {nics:?} {wanted:?}");
                // EFA devices of one GPU are used together; else one NIC at each end.
                let bundle = if machine.name == "aws-p5" { 4 } else { 1 };
                assert_eq!(nics.len(), 2 * bundle, "{conn:?}: {nics:?}");
            }
            assert!(crossing > 0);
        }
    }
}

/// Goal: in a balanced tree the two child hosts of a host attach to its first two GPUs, in the plain
/// one to the first; both are proved to reduce.
#[test]
fn child_hosts_attach_as_the_pattern_says() {
    for (machine, pattern, places) in
        [("dgx-a100", Pattern::BalancedTree, vec![0, 1]), ("dgx-h100", Pattern::Tree, vec![0])]
    {
        let machine = load(machine, Some(8), None).unwrap();
        let found = search(&machine);
        assert_eq!(found.tree.pattern, pattern);
        let schedule = schedule(&machine, &found, Algorithm::Tree);
        verify(&schedule).unwrap();
        // Host 4 has two child hosts in the first tree.
        let chain = &found.tree.paths[4][0].gpus;
        let mut holders: Vec<usize> = (32..40)
            .filter_map(|rank| {
                let worker = schedule.worker(Rank(rank), ChannelId(0), Lane(0))?;
                let below =
                    worker.recv.iter().any(|c| machine.host_of(c.ranks().unwrap().0) != machine.host_of(Rank(rank)));
                below.then(|| chain.iter().position(|&g| g == rank - 32).unwrap())
            })
            .collect();
        holders.sort_unstable();
        assert_eq!(holders, places, "{}", machine.name);
    }
}

/// Goal: channels and chunks of NVLS on Blackwell follow the NICs since 2.29, as `ncclNvlsTuning` says: two hosts of DGX
/// B200 (400 Gb/s near their GPUs), four, two and four whose NICs have 800 Gb/s, and those of 2.28, where nothing does. 0 is
/// where those of NVLS tree have no bound of their own.
#[test]
fn nvls_of_blackwell_follows_its_nics() {
    for (name, hosts, minor, channels, kib) in [
        ("dgx-b200", 2, 28, 32, (128, 0)),
        ("dgx-b200", 4, 28, 32, (128, 64)),
        ("dgx-b200", 2, 29, 32, (128, 64)),
        ("dgx-b200", 4, 29, 24, (128, 64)),
        ("gb300-nvl72", 36, 29, 32, (128, 64)),
        ("dgx-b200", 1, 29, 24, (128, 0)),
        ("dgx-h100", 2, 29, 16, (128, 0)),
        ("dgx-h100", 4, 29, 16, (128, 64)),
        ("dgx-h100", 4, 20, 16, (128, 64)),
        ("dgx-h100", 4, 18, 16, (128, 0)),
    ] {
        let machine = load(name, Some(hosts), None).unwrap();
        let sends = Sends { version: Version::new(2, minor, 0), ..Sends::default() };
        let found = graphs(&machine, machine.ranks(), &Options { sends, ..Options::default() });
        let (chunk, tree_chunk) = found.nvls_chunks;
        let tree_chunk = tree_chunk.map_or(0, |bytes| bytes.0 >> 10);
        assert_eq!((found.nvls_channels, (chunk.0 >> 10, tree_chunk)), (channels, kib), "{name} x {hosts} 2.{minor}");
    }
}

/// Goal: bounds of the chunks of NVLS and NVLS tree by version and variables, worked by hand from `src/enqueue.cc` of 2.19.1,
/// 2.19.3, 2.20 and 2.21.5 (KiB; 0 is none but a step of the FIFO). Four hosts and more have 64 KiB since 2.19.3; 2.20 brought
/// `NCCL_NVLSTREE_MAX_CHUNKSIZE`; since 2.21 those of NVLS bound NVLS tree too, and `NCCL_NVLS_CHUNKSIZE` sets them.
#[test]
fn chunks_of_nvls_follow_the_version() {
    let profile = Profile::builtin("prior").unwrap();
    let set = ["NCCL_NVLSTREE_MAX_CHUNKSIZE=524288", "NCCL_NVLS_CHUNKSIZE=262144"];
    for (version, hosts, pairs, kib) in [
        ((2, 18, 3), 4, &[][..], (128, 0)),
        ((2, 19, 1), 4, &[], (128, 0)),
        ((2, 19, 3), 4, &[], (128, 64)),
        ((2, 19, 3), 3, &[], (128, 0)),
        ((2, 19, 3), 4, &set, (128, 64)),
        ((2, 20, 3), 4, &[], (128, 64)),
        ((2, 20, 3), 2, &[], (128, 0)),
        ((2, 20, 3), 4, &set, (128, 512)),
        ((2, 21, 5), 2, &[], (128, 128)),
        ((2, 21, 5), 4, &[], (128, 64)),
        ((2, 21, 5), 4, &set[..1], (128, 128)),
        ((2, 21, 5), 2, &set[1..], (256, 256)),
        ((2, 30, 7), 4, &set, (256, 256)),
    ] {
        let machine = load("dgx-h100", Some(hosts), None).unwrap();
        let version = Version::new(version.0, version.1, version.2);
        let pairs: Vec<_> = pairs.iter().map(|text| pair(text).unwrap()).collect();
        let nccl = Environment::parse(&pairs, version).unwrap().settings;
        let settings = Settings { version: Some(version), nccl, ..Settings::default() };
        let limits = Predictor::new(&machine, &profile).limits(machine.ranks(), &settings);
        let (chunk, tree) = limits.nvls_chunks;
        let tree = if tree.0 == u64::MAX { 0 } else { tree.0 >> 10 };
        assert_eq!((chunk.0 >> 10, tree), kib, "{version} on {hosts} hosts, {pairs:?}");
    }
}

/// Goal: the hosts of an NVLink domain are one node of NCCL: all GPUs and NICs of a rack in one graph,
/// no NIC inside it; of two racks every NIC is used, each by a number of its own.
#[test]
fn a_domain_is_one_node() {
    for (name, nics) in [("gb200-nvl72", 72), ("gb300-nvl72", 72), ("oci-gb200", 144)] {
        let rack = search(&load(name, Some(18), None).unwrap());
        assert_eq!((rack.hosts, rack.ranks_per_host, rack.nvswitch), (1, (72, 72), true), "{name}");
        check_whole(name, &rack, &[72]);
        assert_eq!((rack.ring.type_intra, rack.channels, rack.nvls_channels), (PathClass::Nvl, 32, 24), "{name}");
        // NVLS has at most 32 heads; each of 72 GPUs carries one share, a head two: 33 shares of 18 x 40.1.
        assert_eq!(facts(rack.nvls.as_ref().unwrap()), (Pattern::Nvls, 32, 20.0, 40.0), "{name}");
        let two = search(&load(name, Some(36), None).unwrap());
        assert_eq!((two.hosts, two.ranks_per_host), (2, (72, 72)), "{name}");
        check_whole(name, &two, &[72, 72]);
        let used: std::collections::BTreeSet<u32> =
            two.ring.paths[1].iter().flat_map(|p| [p.nics.unwrap().0, p.nics.unwrap().1]).collect();
        assert!(
            used.len() as u32 >= two.ring.channels.min(nics) / 2 && used.last().unwrap() < &nics,
            "{name}: {used:?}"
        );
        // What a rack lacks it does not search: 2 hosts of it are a small domain.
        let few = search(&load(name, Some(2), None).unwrap());
        assert_eq!((few.hosts, few.ranks_per_host), (1, (8, 8)), "{name}");
    }
    let machine = load("oci-gb200", Some(36), None).unwrap();
    let of_host = |h: usize| (machine.hosts()[h].node.0, machine.hosts()[h].first_gpu, machine.hosts()[h].first_nic);
    assert_eq!(
        [of_host(0), of_host(17), of_host(18), of_host(35)],
        [(0, 0, 0), (0, 68, 136), (18, 0, 0), (18, 68, 136)]
    );
}

/// Goal: where ranks are placed in turn, each node has the ranks that are on it, and its channels run
/// through the same GPUs and NICs as when ranks are placed host by host.
#[test]
fn placement_changes_ranks_and_not_channels() {
    for (name, hosts, nodes) in [("dgx-h100", 2, 2), ("gb200-nvl72", 36, 2)] {
        let plain = load(name, Some(hosts), None).unwrap();
        let cyclic = place(&plain, "cyclic").unwrap();
        assert_ne!(plain.gpu_of(Rank(1)), cyclic.gpu_of(Rank(1)));
        let (before, after) = (search(&plain), search(&cyclic));
        assert_eq!((&before.ring, &before.tree), (&after.ring, &after.tree), "{name}");
        let orders =
            [order_by(&plain, &before, &Transport::default()), order_by(&cyclic, &after, &Transport::default())];
        let per_node = plain.ranks() as usize / nodes;
        for (machine, order) in [&plain, &cyclic].into_iter().zip(&orders) {
            assert_eq!(order.hosts.iter().map(Vec::len).collect::<Vec<_>>(), vec![per_node; nodes], "{name}");
            for members in &order.hosts {
                assert!(members.is_sorted(), "{name}");
                let node = machine.node_of(Rank(members[0]));
                assert!(members.iter().all(|&r| machine.node_of(Rank(r)) == node), "{name}");
            }
        }
        let gpus =
            |machine: &Topology, ranks: &[u32]| ranks.iter().map(|&r| machine.gpu_of(Rank(r))).collect::<Vec<_>>();
        assert_eq!(orders[0].rings.len(), orders[1].rings.len());
        for (a, b) in orders[0].rings.iter().zip(&orders[1].rings) {
            assert_eq!(gpus(&plain, a), gpus(&cyclic, b), "{name}");
        }
        for (a, b) in orders[0].rails.iter().flat_map(|r| r.iter()).zip(orders[1].rails.iter().flat_map(|r| r.iter())) {
            assert_eq!(
                (a.enter, a.leave, plain.gpu_of(Rank(a.first))),
                (b.enter, b.leave, cyclic.gpu_of(Rank(b.first)))
            );
        }
    }
    // The same rings take the same time.
    let plain = load("dgx-h100", Some(2), None).unwrap();
    let cyclic = place(&plain, "cyclic").unwrap();
    let profile = Profile::builtin("prior").unwrap();
    let call = Call::of_size(Collective::AllReduce, 16, Bytes(64 << 20), DataType::Float32);
    let [a, b] = [&plain, &cyclic].map(|machine| {
        let (ring, simple) = (Choice::Forced(Algorithm::Ring), Choice::Forced(Protocol::Simple));
        Predictor::new(machine, &profile).predict(&call, ring, simple, &Settings::default()).unwrap().time
    });
    assert_eq!(a, b);
}

/// Goal: the latency that a topology file says of a device is the graphs', and stays in what is written of the machine;
/// EFA's own is told by platform only where the file says none.
#[test]
fn files_say_what_devices_report() {
    let text = fixture("oci-h100-topology.xml").replace("latency=\"0.000000\"", "latency=\"50\"");
    let efa = text.replace("name=\"mlx5_", "name=\"rdmap");
    let silent = efa.replace(" latency=\"50\"", "");
    for (text, expected) in [(&text, 50.0), (&efa, 50.0), (&silent, 75.0)] {
        let host = xml::read_machine(text, "said.xml").unwrap();
        let written = xml::read_machine(&collcast_topologies::export::xml(&host), "written.xml").unwrap();
        for host in [host, written] {
            let machine = ClusterSpec::single("said", "said.xml", host).with_nodes(2).unwrap().build().unwrap();
            let found = search(&machine);
            assert_eq!(found.ring.latency_inter, expected);
            assert!(graph::xml(&found, 0).contains(&format!("latencyinter=\"{expected}\"")));
        }
    }
}

/// Goal: the search follows what NCCL is told: multicast, CollNet and how data is moved.
#[test]
fn the_search_follows_settings() {
    let profile = Profile::builtin("prior").unwrap();
    let found = |name: &str, hosts: u32, env: &[(&str, &str)]| {
        let machine = load(name, Some(hosts), None).unwrap();
        let pairs: Vec<_> = env.iter().map(|&(n, v)| (n.to_owned(), v.to_owned())).collect();
        let nccl = Environment::parse(&pairs, Version::default()).unwrap().settings;
        let moves = env.iter().copied().filter(|(n, _)| Transport::VARIABLES.contains(n));
        let transport = Transport::from_env(&machine, Version::default(), moves).unwrap();
        let settings = Settings { nccl, transport, ..Settings::default() };
        let graphs = Predictor::new(&machine, &profile).graph(machine.ranks(), &settings);
        (*graphs).clone()
    };
    let plain = found("dgx-h100", 2, &[]);
    assert!(plain.nvls.is_some() && plain.collnet_direct.is_none() && !plain.collnet);
    assert!(found("dgx-h100", 2, &[("NCCL_NVLS_ENABLE", "0")]).nvls.is_none());
    let collnet = found("dgx-h100", 2, &[("NCCL_COLLNET_ENABLE", "1")]);
    assert!(collnet.collnet && collnet.collnet_direct.is_some() && collnet.collnet_chain.is_some());
    assert!(!found("aws-p5", 2, &[("NCCL_COLLNET_ENABLE", "1")]).collnet, "no SHARP");
    // Without peer access GPUs send through their CPUs; without shared memory too each is a node.
    let off = found("dgx-h100", 1, &[("NCCL_P2P_DISABLE", "1")]);
    assert_eq!((off.hosts, off.ring.type_intra >= PathClass::Phb), (1, true));
    assert!(off.ring.speed_intra * f64::from(off.ring.channels) < 100.0, "{:?}", facts(&off.ring));
    let net = found("dgx-h100", 1, &[("NCCL_P2P_DISABLE", "1"), ("NCCL_SHM_DISABLE", "1")]);
    assert_eq!((net.hosts, net.ranks_per_host), (8, (1, 1)));
    // Without shared memory alone, GPUs that reach each other are a node: all of an NVSwitch, those below a PCIe switch.
    let no_shm = ("NCCL_SHM_DISABLE", "1");
    assert_eq!(found("dgx-h100", 1, &[no_shm]).hosts, 1);
    let below = found("pcie-box", 1, &[no_shm]);
    assert_eq!((below.hosts, below.ranks_per_host), (2, (4, 4)));
    for (paths, gpus) in below.ring.paths.iter().zip([[0, 1, 2, 3], [4, 5, 6, 7]]) {
        for path in paths {
            let mut visited = path.gpus.clone();
            visited.sort_unstable();
            assert_eq!(visited, gpus);
        }
    }
    assert_eq!(found("pcie-box", 1, &[no_shm, ("NCCL_P2P_LEVEL", "SYS")]).hosts, 1);
    assert_eq!(found("pcie-box", 1, &[no_shm, ("NCCL_P2P_LEVEL", "LOC")]).hosts, 8);
    // An NVLink domain is one only while peers reach each other.
    let trays = found("gb200-nvl72", 18, &[("NCCL_P2P_DISABLE", "1")]);
    assert_eq!((trays.hosts, trays.ranks_per_host), (18, (4, 4)));
    // Sockets read host memory, report no latency, and do not bundle the NICs of a GPU.
    let (efa, tcp) = (found("aws-p5", 2, &[]), found("aws-p5", 2, &[("NCCL_NET", "Socket")]));
    assert_eq!((efa.ring.latency_inter, tcp.ring.latency_inter), (75.0, 0.0));
    // The plugin reports what it is told to, a fraction too; it says nothing of InfiniBand.
    for (machine, told, latency) in [
        ("aws-p5", "20", 20.0),
        ("aws-p5", "12.5", 12.5),
        ("aws-p5", "0", 0.0),
        ("aws-g4dn", "", 75.0),
        ("dgx-h100", "20", 0.0),
    ] {
        let set = found(machine, 2, &[("OFI_NCCL_NET_LATENCY", told)]);
        assert_eq!(set.ring.latency_inter, latency, "{machine} {told}");
    }
    assert!(efa.ring.type_inter < PathClass::Phb && tcp.ring.type_inter >= PathClass::Phb);
    let nics = |graphs: &Graphs| -> std::collections::BTreeSet<u32> {
        graphs.ring.paths[0].iter().map(|p| p.nics.unwrap().0).collect()
    };
    assert!(nics(&efa).iter().all(|n| n % 4 == 0) && nics(&tcp).iter().any(|n| n % 4 != 0), "{:?}", nics(&tcp));
    let near = found("dgx-h100", 2, &[("NCCL_NET_GDR_LEVEL", "LOC")]);
    assert!(near.ring.type_inter >= PathClass::Phb, "{:?}", near.ring.type_inter);
}

/// Goal: a plan has the channels that NCCL's model gives the call, and no algorithm lowers them twice.
#[test]
fn plans_have_the_channels_of_the_model() {
    let profile = Profile::builtin("prior").unwrap();
    let settings = Settings { nccl: NcclSettings { collnet: true, ..NcclSettings::default() }, ..Settings::default() };
    for (name, hosts, gpus, algorithms) in [
        ("dgx-h100", 1, None, &[Algorithm::Nvls, Algorithm::Ring, Algorithm::Tree][..]),
        (
            "dgx-h100",
            4,
            None,
            &[
                Algorithm::Nvls,
                Algorithm::NvlsTree,
                Algorithm::CollnetDirect,
                Algorithm::CollnetChain,
                Algorithm::Ring,
                Algorithm::Tree,
            ],
        ),
        ("dgx-h100", 4, Some(1), &[Algorithm::Pat]),
        ("gb200-nvl72", 18, None, &[Algorithm::Nvls]),
    ] {
        let machine = load(name, Some(hosts), gpus).unwrap();
        let predictor = Predictor::new(&machine, &profile);
        let graphs = predictor.graph(machine.ranks(), &settings);
        let model = predictor.model(&graphs, &settings);
        for &algorithm in algorithms {
            let collective = if algorithm == Algorithm::Pat { Collective::AllGather } else { Collective::AllReduce };
            for size in [4 << 10, 1 << 20, 16 << 20, 1 << 30] {
                let call = Call::of_size(collective, machine.ranks(), Bytes(size), DataType::Float32);
                let plan = predictor.schedule(&call, algorithm, Protocol::Simple, &settings).unwrap().plan;
                let most = model.call_channels(algorithm, Protocol::Simple, size);
                assert!(plan.channels <= most, "{name} {algorithm} {size}: {} of {most}", plan.channels);
                if size >= 16 << 20 {
                    assert_eq!(plan.channels, most, "{name} x {hosts} {algorithm} {size}");
                }
            }
        }
    }
}

//! NCCL's graph search against what NCCL itself wrote and logged, and over all machines here.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

use collcast_sim::collective::{Algorithm, Collective, DataType, Protocol};
use collcast_sim::ids::{ChannelId, Lane, Rank};
use collcast_sim::model::nccl::graphs::{Graph, Graphs, Pattern};
use collcast_sim::model::nccl::search::{Given, Options, graphs, graphs_of};
use collcast_sim::network::{PathClass, ResourceName, lay, order_by};
use collcast_sim::profile::Profile;
use collcast_sim::schedule::plan::{Limits, Plan};
use collcast_sim::schedule::verify::verify;
use collcast_sim::schedule::{Call, Schedule};
use collcast_sim::topology::Topology;
use collcast_sim::units::Bytes;
use collcast_topologies::cluster::ClusterSpec;
use collcast_topologies::file;
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

/// Goal: two p4d.24xlarge get the 8 channels that aws-samples/aws-efa-eks (README.md) shows in a log:
/// `8 coll channels, 8 p2p channels`.
#[test]
fn p4d() {
    let found = search(&draw(
        "count = 2\n\
        gpus = { count = 8, kind = \"A100-SXM4-40GB\", compute_capability = 80, memory_rate = \"1.555 TB/s\" }\n\
        nvlink = { kind = \"nvswitch\", links_per_gpu = 12, rate_per_link = \"25 GB/s\" }\n\
        pcie = { generation = 4, lanes = 16, switches_per_socket = 2, sockets = 2, interconnect = \"10 GB/s\", \
        cpu = \"GenuineIntel\" }\n\
        [hosts.nics]\nkind = \"efa\"\ncount = 4\nrate = \"100 Gb/s\"\ngpu = [0, 2, 4, 6]\ngpudirect = true\n\
        [fabric]\nkind = \"single-switch\"\nrouting = \"spray\"\n",
    ));
    assert_eq!((found.ring.channels, found.ring.speed_inter), (4, 12.0));
    assert_eq!((found.channels, found.p2p_channels.0, found.ring.latency_inter), (8, 8, 75.0));
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
            Document::Template(_) => import_file(path(name).as_ref(), Some(onto)).unwrap().xml,
            _ => fixture(name),
        };
        specs.push((name.to_owned(), ClusterSpec::single(name, name, xml::read_machine(&text, name).unwrap())));
    }
    for (name, spec) in specs {
        for hosts in [1, 2, 3] {
            let machine = spec.clone().with_nodes(hosts).unwrap().build().unwrap();
            let gpus: Vec<u32> = machine.hosts().iter().map(|h| u32::try_from(h.gpus.len()).unwrap()).collect();
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
    let some = graphs_of(&machine, &ranks, &Options::default());
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
    Schedule::new(call, plan, &order_by(machine, found)).unwrap()
}

/// Goal: between hosts each channel's data goes by the NICs of its graph and by no other.
#[test]
fn channels_use_their_nics() {
    let profile = Profile::builtin("prior").unwrap();
    for machine in ["dgx-h100", "aws-p5"] {
        let machine = load(machine, Some(4), None).unwrap();
        let found = search(&machine);
        for (algorithm, graph) in [(Algorithm::Ring, &found.ring), (Algorithm::Tree, &found.tree)] {
            let schedule = schedule(&machine, &found, algorithm);
            let laid = lay(&machine, &profile, &collcast_sim::network::Transport::default(), &schedule).unwrap();
            let mut crossing = 0;
            for (wired, spec) in laid.wiring.conns.iter().zip(&laid.instance.conns) {
                let conn = wired.conn;
                let (src, dst) = conn.ranks().unwrap();
                let host = |rank: Rank| machine.host_of(rank).index();
                if host(src) == host(dst) {
                    continue;
                }
                crossing += 1;
                let mut nics = std::collections::BTreeSet::new();
                for used in &spec.uses {
                    let ResourceName::Link(link) = laid.names[used.0 as usize] else { continue };
                    for end in [machine.ends(link).0, machine.ends(link).1] {
                        if let Some(nic) = machine.nic(end) {
                            nics.insert((machine.vertex(end).host.unwrap().index(), nic.index));
                        }
                    }
                }
                let channel = conn.channel.index() % graph.channels as usize;
                let of = |rank: Rank, other: bool| {
                    let path = &graph.paths[host(rank)][channel];
                    let first = machine.hosts()[host(rank)].gpus[path.gpus[0] as usize] == machine.gpu_of(rank);
                    let (enter, leave) = path.nics.unwrap();
                    (host(rank), if first && !other { enter } else { leave })
                };
                let wanted = [of(src, false), of(dst, false)];
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

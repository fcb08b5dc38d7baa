//! Goal: NCCL's cost table and choices on measured machines come out as NCCL printed them.
//! Method: its graphs are given (its own dumps, or the line it printed of them); tables and choices
//! are compared with its log.

use collcast_sim::collective::{Algorithm, Collective, DataType, Protocol};
use collcast_sim::ids::{ChannelId, Lane, Rank};
use collcast_sim::nccl::PathClass;
use collcast_sim::nccl::graphs::{CpuVendor, Graph, Graphs, Pattern};
use collcast_sim::nccl::{ALGORITHMS, Cell, Model, NcclSettings, Version};
use collcast_sim::nccl::{Limits, Plan};
use collcast_sim::network::order;
use collcast_sim::schedule::{Call, End, Schedule};
use collcast_sim::units::Bytes;
use collcast_topologies::xml::{self, Document};

/// The version that wrote the logs.
const VERSION: Version = Version::new(2, 28, 9);

fn data(name: &str) -> String {
    let path = format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn pattern(number: u32) -> Pattern {
    use Pattern::{BalancedTree, CollnetDirect, Nvls, Ring, SplitTree, Tree};
    [BalancedTree, SplitTree, Tree, Ring, Nvls, CollnetDirect][number as usize - 1]
}

fn class(name: &str) -> PathClass {
    match name {
        "NVL" => PathClass::Nvl,
        "PIX" => PathClass::Pix,
        other => panic!("{other}"),
    }
}

/// One host of H200 and the graphs of NCCL's own dump; NVLS was off (`NCCL_NVLS_ENABLE=0`).
fn one_host(file: &str, ranks: u32) -> Graphs {
    let Document::Graph(spec) = xml::read(&data(file), file).unwrap() else { panic!("{file} is no graph file") };
    let graph = |id: u32| {
        let g = spec.graphs.iter().find(|g| g.id == id).unwrap();
        Graph {
            pattern: pattern(g.pattern),
            channels: g.channel_count,
            speed_intra: g.speed_intra_gb_per_s,
            speed_inter: g.speed_inter_gb_per_s,
            latency_inter: g.latency_inter_us,
            type_intra: class(&g.type_intra),
            type_inter: class(&g.type_inter),
            same_channels: g.same_channels,
            cross_nic: g.cross_nic,
            paths: Vec::new(),
        }
    };
    assert_eq!(spec.graphs.iter().find(|g| g.id == 3).unwrap().channel_count, 0, "NVLS was off");
    let (ring, tree) = (graph(0), graph(1));
    Graphs {
        ranks,
        hosts: 1,
        ranks_per_host: (ranks, ranks),
        compute_capability: (90, 90),
        cpu_vendor: Some(CpuVendor::Intel),
        nvswitch: true,
        multicast: false,
        collnet: false,
        // Doubled once more for the communicator: `24 coll channels`.
        channels: ring.channels * 2,
        ring,
        tree,
        collnet_chain: None,
        collnet_direct: None,
        nvls: None,
        nvls_channels: 0,
        nvls_chunks: Default::default(),
        p2p_channels: (32, 32),
    }
}

/// Four hosts of one H200 over TCP, as the log says: `Pattern 4, crossNic 0, nChannels 1,
/// bw 1.200000/1.200000, type LOC/PHB, sameChannels 1`, the tree `Pattern 3 ... bw
/// 2.400000/1.200000`, and `2 coll channels`.
fn four_hosts() -> Graphs {
    let graph = |pattern, speed_intra| Graph {
        pattern,
        channels: 1,
        speed_intra,
        speed_inter: 1.2,
        latency_inter: 0.0,
        type_intra: PathClass::Loc,
        type_inter: PathClass::Phb,
        same_channels: true,
        cross_nic: false,
        paths: Vec::new(),
    };
    Graphs {
        ranks: 4,
        hosts: 4,
        ranks_per_host: (1, 1),
        ring: graph(Pattern::Ring, 1.2),
        tree: graph(Pattern::Tree, 2.4),
        channels: 2,
        ..one_host("nccl/graph_2gpu.xml", 2)
    }
}

fn runs() -> [(&'static str, Graphs); 3] {
    [
        ("2gpu", one_host("nccl/graph_2gpu.xml", 2)),
        ("4gpu", one_host("h200x4/nccl_graph_4gpu.xml", 4)),
        ("4node_sockets", four_hosts()),
    ]
}

/// Goal: the book names the versions whose rules were read, and no other.
#[test]
fn the_book_names_the_versions_that_were_read() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/model/choice.md")).unwrap();
    let (_, rest) = page.split_once("They were read in the source of ").unwrap();
    let (list, _) = rest.split_once(" were checked").unwrap();
    let words = list.split(|c: char| !c.is_ascii_digit() && c != '.').map(|word| word.trim_end_matches('.'));
    let mut named: Vec<Version> = words.filter_map(|word| word.parse().ok()).collect();
    named.sort_unstable();
    assert_eq!(named, Version::READ);
}

/// Goal: every cell that NCCL printed, to its digits. Where it printed a bandwidth of 0 the pair is
/// closed here, and its latency means nothing to NCCL: these 0-cells are compared as closed only.
/// (A bandwidth below 0.05 is printed as 0.0 too: none of the open pairs is that slow.)
#[test]
fn every_cell_is_what_nccl_printed() {
    for (name, graphs) in runs() {
        let model = Model::new(&graphs, VERSION, NcclSettings::default());
        let mut compared = (0, 0);
        let mut block = 0;
        for line in data(&format!("nccl/table_{name}.txt")).lines().filter(|line| !line.starts_with('#')) {
            let (head, cells) = line.split_once('|').unwrap();
            let Ok(collective) = head.trim().parse::<Collective>() else {
                block += usize::from(head.trim() == "Algorithm");
                if head.trim() == "Max NThreads" {
                    for (index, printed) in cells.split('|').filter(|c| !c.trim().is_empty()).enumerate() {
                        let algorithm = ALGORITHMS[(block - 1) * 3 + index / 3];
                        let threads = model.max_threads(algorithm, Protocol::ALL[index % 3]);
                        let printed: u32 = printed.trim().parse().unwrap();
                        // 0 where there is no such kernel.
                        assert!(printed == 0 || printed == threads, "{name} {algorithm}: {threads} {printed}");
                    }
                }
                continue;
            };
            let table = model.table(&Call::of_size(collective, graphs.ranks, Bytes(1 << 20), DataType::Float32));
            for (index, printed) in cells.split('|').filter(|c| c.contains('/')).enumerate() {
                let (a, p) = ((block - 1) * 3 + index / 3, index % 3);
                match table[a][p] {
                    Cell::On(cost) => {
                        let got = format!("{:.1}/{:6.1}", cost.latency_us, cost.bandwidth_gb_per_s);
                        compared.0 += 1;
                        assert_eq!(got, printed.trim(), "{name} {collective} {}/{p}", ALGORITHMS[a]);
                    }
                    Cell::Off(_) | Cell::NoKernel => {
                        compared.1 += 1;
                        assert!(
                            printed.trim().ends_with(" 0.0"),
                            "{name} {collective} {}/{p}: {printed}",
                            ALGORITHMS[a]
                        );
                    }
                }
            }
        }
        // Five collectives of ring, tree for one; over TCP no LL128, but PAT for two collectives.
        let open = if name == "4node_sockets" { 5 * 2 + 2 + 2 } else { 5 * 3 + 3 };
        assert_eq!(compared, (open, 5 * 21 - open), "{name}");
    }
}

/// Goal: all choices that NCCL logged: algorithm, protocol and number of channels.
#[test]
fn every_choice_is_what_nccl_logged() {
    let mut choices = 0;
    for (name, graphs) in runs() {
        let model = Model::new(&graphs, VERSION, NcclSettings::default());
        for line in data(&format!("nccl/choice_{name}.txt")).lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let collective: Collective = words[0].trim_end_matches(':').parse().unwrap();
            let algorithm: Algorithm = words[5].parse().unwrap();
            let protocol: Protocol = words[7].parse().unwrap();
            let last = line.rsplit_once("..").unwrap().1.trim_end_matches('}');
            let channels = last.parse::<u32>().unwrap() + 1;
            // NCCL logs the bytes of one rank.
            let bytes: u64 = words[1].parse().unwrap();
            let total = if collective.size_is_total() { bytes * u64::from(graphs.ranks) } else { bytes };
            let call = Call::of_size(collective, graphs.ranks, Bytes(total), DataType::Float32);
            let decision = model.decide(None, &call).unwrap();
            assert_eq!((decision.algorithm, decision.protocol), (algorithm, protocol), "{name}: {line}");
            let limits = Limits {
                channels: decision.channels,
                threads: Some(model.max_threads(algorithm, protocol)),
                network: graphs.hosts > 1,
                version: VERSION,
                ..Limits::default()
            };
            assert_eq!(Plan::new(&call, algorithm, protocol, &limits).channels, channels, "{name}: {line}");
            choices += 1;
        }
    }
    assert_eq!(choices, 24 + 24 + 28);
}

/// Goal: each channel has the tree that NCCL logged (`Trees [c] child/child/child->rank->parent`), however many a call
/// uses: on 2 GPUs chains that run both ways, on four hosts the second tree on the second channel.
#[test]
fn every_channel_has_the_tree_that_nccl_logged() {
    let parents = |machine: &str, ranks, rank, channels| {
        let machine = collcast_topologies::load_any(machine, None, None).unwrap();
        let call = Call::of_size(Collective::AllReduce, ranks, Bytes(1 << 30), DataType::Float32);
        let hosts = if machine.hosts().len() > 1 { ranks } else { 1 };
        let limits = Limits { channels, exact_channels: true, hosts, ..Limits::default() };
        let plan = Plan::new(&call, Algorithm::Tree, Protocol::Simple, &limits);
        let schedule = Schedule::new(call, plan, &order(&machine, ranks)).unwrap();
        // Who has a parent takes the result from it in a lane of its own.
        let parent = |channel| match schedule.worker(Rank(rank), ChannelId(channel), Lane(1))?.recv[0].src {
            End::One(Rank(parent)) => Some(parent),
            End::Group(_) => None,
        };
        (0..channels).map(parent).collect::<Vec<_>>()
    };
    let logged = [[None; 6], [Some(1); 6], [None; 6], [Some(1); 6]].concat();
    for channels in [24, 22, 8] {
        assert_eq!(parents("h200x2", 2, 0, channels), logged[..channels as usize], "{channels}");
    }
    let loopback = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/h200-loopback.toml");
    assert_eq!(parents(loopback, 4, 0, 2), [None, Some(1)]);
}

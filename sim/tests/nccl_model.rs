//! Goal: the restated cost model and choice of NCCL give NCCL's own numbers.

use std::sync::Arc;

use collcast_sim::collective::{Algorithm, Collective, DataType, Protocol, ReduceOp};
use collcast_sim::nccl::PathClass;
use collcast_sim::nccl::aws::Platform;
use collcast_sim::nccl::cost::place;
use collcast_sim::nccl::graphs::{CpuVendor, Graph, Graphs, Pattern};
use collcast_sim::nccl::settings::{Environment, pair};
use collcast_sim::nccl::{Candidate, Cell, CsvTuner, Layer, Model, NcclSettings, Tuner, Version, shared_choices};
use collcast_sim::schedule::Call;
use collcast_sim::units::Bytes;

fn graph(pattern: Pattern, channels: u32, intra: f64, inter: f64) -> Graph {
    Graph {
        pattern,
        channels,
        speed_intra: intra,
        speed_inter: inter,
        latency_inter: 0.0,
        type_intra: PathClass::Nvl,
        type_inter: PathClass::Pix,
        same_channels: true,
        cross_nic: false,
        paths: Vec::new(),
    }
}

/// Hopper GPUs behind an NVSwitch, with an Intel CPU.
fn hopper(hosts: u32, per_host: u32, ring: Graph, tree: Graph, nvls: Option<Graph>, channels: u32) -> Graphs {
    Graphs {
        ranks: hosts * per_host,
        hosts,
        ranks_per_host: (per_host, per_host),
        compute_capability: (90, 90),
        cpu_vendor: Some(CpuVendor::Intel),
        nvswitch: true,
        multicast: nvls.is_some(),
        collnet: false,
        ring,
        tree,
        collnet_chain: None,
        collnet_direct: None,
        nvls,
        channels,
        nvls_channels: 16,
        nvls_chunks: (Bytes(128 << 10), None),
        p2p_channels: (32, 32),
    }
}

/// The machines a, b and c of `data/nccl/golden.csv`.
fn machine(name: &str) -> Graphs {
    use Pattern::{BalancedTree, Nvls, Ring, Tree};
    match name {
        "a" => {
            let nvls = graph(Nvls, 8, 40., 60.);
            hopper(1, 8, graph(Ring, 12, 30., 30.), graph(BalancedTree, 12, 30., 30.), Some(nvls), 24)
        }
        "b" => {
            let nvls = graph(Nvls, 8, 40., 48.);
            hopper(16, 8, graph(Ring, 8, 48., 48.), graph(Tree, 8, 48., 48.), Some(nvls), 16)
        }
        _ => {
            let alone = |pattern| Graph { type_intra: PathClass::Loc, ..graph(pattern, 2, 24., 24.) };
            hopper(16, 1, alone(Ring), alone(Tree), None, 4)
        }
    }
}

fn call(collective: Collective, graphs: &Graphs, bytes: u64) -> Call {
    Call::of_size(collective, graphs.ranks, Bytes(bytes), DataType::Float32)
}

fn settings(pairs: &[&str], version: Version) -> NcclSettings {
    let pairs: Vec<_> = pairs.iter().map(|text| pair(text).unwrap()).collect();
    Environment::parse(&pairs, version).unwrap().settings
}

fn default_model(graphs: &Graphs) -> Model<'_> {
    Model::new(graphs, Version::NEWEST, NcclSettings::default())
}

fn choice(model: &Model<'_>, tuner: Option<&Tuner>, call: &Call) -> String {
    let decision = model.decide(tuner, call).unwrap();
    format!("{}/{} by {}", decision.algorithm, decision.protocol, decision.layer)
}

/// Goal: latency, bandwidth and time of every open pair, and every choice, on three machines.
/// Method: by value, to the digits of the table and the precision of a 32-bit float.
#[test]
fn costs_and_choices_are_those_of_the_golden_tables() {
    const SIZES: [u64; 6] = [1 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30];
    let (mut costs, mut choices) = (0, 0);
    for line in include_str!("data/nccl/golden.csv").lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(',').collect();
        let graphs = machine(fields[1]);
        let model = default_model(&graphs);
        let collective: Collective = fields[2].parse().unwrap();
        let algorithm: Algorithm = fields[3].parse().unwrap();
        let protocol: Protocol = fields[4].parse().unwrap();
        if fields[0] == "choice" {
            let decision = model.decide(None, &call(collective, &graphs, fields[5].parse().unwrap())).unwrap();
            assert_eq!((decision.algorithm, decision.protocol), (algorithm, protocol), "{line}");
            assert_eq!(decision.layer, Layer::Table);
            choices += 1;
            continue;
        }
        let near = |got: f32, text: &str, digit: f64| {
            let expected: f64 = text.parse().unwrap();
            let error = (f64::from(got) - expected).abs();
            assert!(error <= digit / 2.0 + 4e-7 * expected, "{line}: {got} is not {text}");
        };
        let (a, p) = place(algorithm, protocol).unwrap();
        for (bytes, expected) in SIZES.into_iter().zip(&fields[7..]) {
            let call = call(collective, &graphs, bytes);
            let Cell::On(cost) = model.table(&call)[a][p] else { panic!("{line} is closed") };
            near(cost.latency_us, fields[5], 1e-3);
            near(cost.bandwidth_gb_per_s, fields[6], 1e-4);
            near(model.time_us(cost, &call, (a, p), bytes, 1), expected, 1e-3);
        }
        costs += 1;
    }
    assert_eq!((costs, choices), (51, 84));
}

/// Goal: the times that NCCL 2.22 printed on 3 hosts of 8 H100 (NVIDIA/nccl issue 1453), to the
/// last bit of its floats.
#[test]
fn times_of_an_issue_come_out_exactly() {
    let graphs = hopper(3, 8, graph(Pattern::Ring, 4, 48., 48.), graph(Pattern::Tree, 4, 48., 48.), None, 16);
    let model = Model::new(&graphs, Version::new(2, 22, 3), NcclSettings::default());
    for (bytes, printed) in [(512 << 20, 5_679.147_949), (1 << 30, 11_038.536_133), (8 << 30, 86_069.968_750)] {
        let call = call(Collective::AllReduce, &graphs, bytes);
        let got = model.predicted_us(&call, Algorithm::Ring, Protocol::Simple).unwrap();
        assert_eq!(format!("{got:.6}"), format!("{printed:.6}"));
    }
}

/// Goal: the constants that differ between versions, each by value.
#[test]
fn versions_differ_where_nccl_does() {
    let (a, b, c) = (machine("a"), machine("b"), machine("c"));
    let mut blackwell = machine("a");
    blackwell.compute_capability = (100, 100);
    let cost = |graphs: &Graphs, minor: u16, collective, algorithm, protocol| {
        let model = Model::new(graphs, Version::new(2, minor, 1), NcclSettings::default());
        let (a, p) = place(algorithm, protocol).unwrap();
        match model.table(&call(collective, graphs, 1 << 20))[a][p] {
            Cell::On(cost) => Some((cost.latency_us, cost.bandwidth_gb_per_s)),
            _ => None,
        }
    };
    use Algorithm::{Nvls, NvlsTree, Pat, Ring, Tree};
    use Collective::{AllGather, AllReduce};
    use Protocol::{Ll, Ll128, Simple};
    let near = |got: Option<(f32, f32)>, latency: f32, bandwidth: f32| {
        let (l, b) = got.unwrap();
        assert!((l - latency).abs() < 1e-3 && (b - bandwidth).abs() < 1e-3, "{l} {b}: not {latency} {bandwidth}");
    };
    // LL on Hopper: 87.7 until 2.20, 141 since 2.21, each over the bus.
    near(cost(&a, 20, AllReduce, Ring, Ll), 15.0, 87.7 * 8.0 / 14.0);
    near(cost(&a, 21, AllReduce, Ring, Ll), 15.0, 141.0 * 8.0 / 14.0);
    // Tree/Simple: no base and 28 us a step until 2.22.
    near(cost(&a, 22, AllReduce, Tree, Simple), 14.0 * 28.0, 165.6);
    near(cost(&a, 23, AllReduce, Tree, Simple), 64.4, 165.6);
    // Ring between hosts: 2N steps until 2.22.
    near(cost(&b, 22, AllReduce, Ring, Simple), 8.4 + 222.0 * 3.4 + 32.0 * 14.0, 193.5118);
    near(cost(&b, 23, AllReduce, Ring, Simple), 1190.0, 193.5118);
    // Ring/LL128 with one rank a host: a share of 0.7 until 2.22.
    near(cost(&c, 22, AllGather, Ring, Ll128), 74.0, 48.0 * 0.7 * 16.0 / 15.0);
    near(cost(&c, 23, AllGather, Ring, Ll128), 141.5, 47.104);
    // PAT: since 2.23, 0.85 of the speed there.
    assert_eq!(cost(&c, 22, AllGather, Pat, Simple), None);
    near(cost(&c, 23, AllGather, Pat, Simple), 68.8, 48.0 * 0.85);
    near(cost(&c, 24, AllGather, Pat, Simple), 68.8, 36.0);
    // NVLS: five sixths of the smaller speed until 2.27; NVLS tree halves the network.
    near(cost(&a, 27, AllReduce, Nvls, Simple), 25.0, 8.0 * 40.0 * 5.0 / 6.0);
    near(cost(&a, 28, AllReduce, Nvls, Simple), 25.0, 272.0);
    near(cost(&a, 27, AllGather, Nvls, Simple), 25.0, 8.0 * 35.0);
    near(cost(&b, 27, AllReduce, NvlsTree, Simple), 25.0 + 8.0 * 14.0, 8.0 * 24.0 * 5.0 / 6.0);
    // NVLS tree: 14 us a step on the network until 2.28, 20.9 since 2.29.
    near(cost(&b, 28, AllReduce, NvlsTree, Simple), 25.0 + 8.0 * 14.0, 183.4331);
    near(cost(&b, 29, AllReduce, NvlsTree, Simple), 192.2, 183.4331);
    // Blackwell: rows of its own since 2.25, other caps since 2.28 and 2.29.
    near(cost(&blackwell, 24, AllReduce, Ring, Ll), 15.0, 141.0 * 8.0 / 14.0);
    near(cost(&blackwell, 25, AllReduce, Ring, Ll), 15.0, 180.0 * 8.0 / 14.0);
    near(cost(&blackwell, 28, AllReduce, Nvls, Simple), 25.0, 2.0 * 40.0 * 0.74 * 7.0 / 8.0 * 8.0 * 8.0 / 14.0);
}

/// Goal: what 2.18 to 2.26 have otherwise, worked by hand from `src/graph/tuning.cc` of 2.18.1, 2.18.3, 2.20.3, 2.21.5,
/// 2.22.3, 2.23.4, 2.25.1 and 2.26.2.
#[test]
fn versions_of_2_18_to_2_26_have_costs_of_their_own() {
    let (a, b, c) = (machine("a"), machine("b"), machine("c"));
    let ampere = hopper(1, 8, graph(Pattern::Ring, 12, 20., 20.), graph(Pattern::BalancedTree, 12, 20., 20.), None, 24);
    // Four hosts of eight ranks and eight heads on a network that reduces.
    let mut sharp = Graphs { hosts: 4, ranks: 32, collnet: true, ..machine("b") };
    sharp.collnet_direct = Some(graph(Pattern::CollnetDirect, 8, 40., 48.));
    let cost = |graphs: &Graphs, version: (u16, u16), collective, algorithm, protocol| {
        let version = Version::new(2, version.0, version.1);
        let model = Model::new(graphs, version, settings(&["NCCL_COLLNET_ENABLE=1"], version));
        let (a, p) = place(algorithm, protocol).unwrap();
        match model.table(&call(collective, graphs, 1 << 20))[a][p] {
            Cell::On(cost) => (cost.latency_us, cost.bandwidth_gb_per_s),
            _ => (0., 0.),
        }
    };
    use Algorithm::{CollnetDirect, Nvls, NvlsTree, Ring, Tree};
    use Collective::{AllGather, AllReduce};
    use Protocol::{Ll, Ll128, Simple};
    for (graphs, version, (collective, algorithm, protocol), (latency, bandwidth)) in [
        // One rank a host: 30 steps, 32 of them counted as between hosts; the row of rings until 2.22.
        (&c, (22, 3), (AllReduce, Ring, Ll), (6.6 - 2. * 1.0 + 32. * 2.7, 20.4 * 16. / 30.)),
        (&c, (22, 3), (AllReduce, Ring, Ll128), (14. - 2. * 2.5 + 32. * 4., 48. * 0.7 * 16. / 30.)),
        (&c, (21, 5), (AllReduce, Ring, Simple), (8.4 - 2. * 5.7 + 32. * 14., 48. * 16. / 30.)),
        // 30 between, by the row of trees.
        (&c, (23, 4), (AllReduce, Ring, Ll), (6.6 + 30. * 5., 20.4 * 16. / 30.)),
        (&c, (25, 1), (AllReduce, Ring, Ll128), (14. + 30. * 8.5, 48. * 0.92 * 16. / 30.)),
        // Ring/LL: a quarter or a third of 240 GB/s until 2.20, then half.
        (&ampere, (20, 3), (AllReduce, Ring, Ll), (15., 60. * 8. / 14.)),
        (&ampere, (20, 5), (AllGather, Ring, Ll), (10.8, 80. * 8. / 7.)),
        (&ampere, (21, 5), (AllReduce, Ring, Ll), (15., 120. * 8. / 14.)),
        // NVLS: 23 us until 2.20, and 5/6 for gathering until 2.22.
        (&a, (20, 3), (AllReduce, Nvls, Simple), (23., 320. * 5. / 6.)),
        (&a, (21, 5), (AllReduce, Nvls, Simple), (25., 320. * 5. / 6.)),
        (&a, (20, 3), (AllGather, Nvls, Simple), (23., 320. * 5. / 6.)),
        (&a, (22, 3), (AllGather, Nvls, Simple), (25., 320. * 5. / 6.)),
        (&a, (23, 4), (AllGather, Nvls, Simple), (25., 320.)),
        (&b, (20, 3), (AllReduce, NvlsTree, Simple), (23. + 8. * 14., 8. * 24. * 5. / 6.)),
        // CollNet gathers since 2.20: of 8 ranks a host 0.85, until 2.26; 2.27 asks the network, which has more.
        (&sharp, (19, 3), (AllGather, CollnetDirect, Simple), (0., 0.)),
        (&sharp, (20, 3), (AllGather, CollnetDirect, Simple), (2. * (3.7 + 7. * 0.4) + 31., 320. * 0.85)),
        (&sharp, (26, 2), (AllGather, CollnetDirect, Simple), (2. * (3.7 + 7. * 0.4) + 31., 320. * 0.85)),
        (&sharp, (27, 3), (AllGather, CollnetDirect, Simple), (2. * (3.7 + 7. * 0.4) + 31., 320.)),
        // NVLS gathers over several hosts from 2.27 on, too: the network's 0.9 of 48 is more than 7/8 of 40.
        (&sharp, (26, 2), (AllGather, Nvls, Simple), (0., 0.)),
        (&sharp, (27, 3), (AllGather, Nvls, Simple), (25. + 18., 8. * 35.)),
        // 2.18: NVLS has a fixed latency and a share of its patch, and is for all-reduce only.
        (&a, (18, 1), (AllReduce, Nvls, Simple), (23., 320. * 0.75)),
        (&a, (18, 3), (AllReduce, Nvls, Simple), (23., 320. * 5. / 6.)),
        (&a, (18, 3), (AllGather, Nvls, Simple), (0., 0.)),
        (&b, (18, 3), (AllReduce, NvlsTree, Simple), (23. + 30. * 19., 384. * 0.7 * 16. / 30.)),
        (&sharp, (18, 3), (AllReduce, Nvls, Simple), (23. + 18., 384. * 5. / 6.)),
        (&sharp, (18, 3), (AllReduce, CollnetDirect, Simple), (2. * (8. + 7. * 0.5) + 10.7, 320. * 0.85 / 2.)),
        (&a, (18, 1), (AllReduce, Tree, Simple), (14. * 28., 360. * 0.92 / 2.)),
        (&a, (18, 3), (AllReduce, Tree, Simple), (14. * 4., 360. * 0.92 / 2.)),
        (&b, (18, 1), (AllReduce, Tree, Simple), (8. * 28. + 14. * 28., 8. * 33. / 2.)),
        (&b, (18, 3), (AllReduce, Tree, Simple), (8. * 14. + 14. * 4., 8. * 36. * 0.85 / 2.)),
    ] {
        let (l, w) = cost(graphs, version, collective, algorithm, protocol);
        let what = format!("{version:?} {collective} {algorithm}/{protocol}: {l} {w}, not {latency} {bandwidth}");
        assert!((f64::from(l) - latency).abs() < 1e-3 && (f64::from(w) - bandwidth).abs() < 1e-3, "{what}");
    }
}

/// Goal: 2.8.4 scales the steps of LL inside hosts by 1.8 over several, has base latencies of its own and
/// no latency that the network reports; 2.17 takes what is reported in place of its constant.
/// Method: worked by hand for 2 hosts of 4 Volta, ring and tree of 4 channels of 12 GB/s.
#[test]
fn versions_before_2_18_have_rules_of_their_own() {
    let reporting = |pattern| Graph { latency_inter: 75., ..graph(pattern, 4, 12., 12.) };
    let ring = reporting(Pattern::Ring);
    let graphs = Graphs {
        compute_capability: (70, 70),
        nvswitch: false,
        ..hopper(2, 4, ring, reporting(Pattern::BalancedTree), None, 4)
    };
    let all_reduce = call(Collective::AllReduce, &graphs, 8);
    for (minor, algorithm, protocol, latency, bandwidth) in [
        // 12 steps of 0.47 * 1.8 inside, 2 of 2.7 between; a quarter of 48 GB/s, 8/14 of it a call's.
        (8, Algorithm::Ring, Protocol::Ll, 3.6 + 12. * 0.846 + 2. * 2.7, 48. / 4. * 8. / 14.),
        (8, Algorithm::Tree, Protocol::Ll, 4.4 + 2. * (3. * 0.936 + 5.), 48. * 0.92 / 3.8 / 2.),
        (8, Algorithm::Ring, Protocol::Simple, 8.4 + 12. * 3.4 + 2. * 9.6, 48. * 8. / 14.),
        // 2 steps a host counted as between, each as long as reported.
        (17, Algorithm::Ring, Protocol::Ll, 3.6 + 10. * 0.846 + 4. * 75., 48. / 4. * 8. / 14.),
    ] {
        let model = Model::new(&graphs, Version::new(2, minor, 4), NcclSettings::default());
        let (a, p) = place(algorithm, protocol).unwrap();
        let Cell::On(cost) = model.table(&all_reduce)[a][p] else { panic!("2.{minor} {algorithm} {protocol}: off") };
        let near = |found: f32, expected: f64| (f64::from(found) / expected - 1.0).abs() < 1e-5;
        assert!(near(cost.latency_us, latency), "2.{minor} {algorithm} {protocol}: {} {latency}", cost.latency_us);
        let found = cost.bandwidth_gb_per_s;
        assert!(near(found, bandwidth), "2.{minor} {algorithm} {protocol}: {found} {bandwidth}");
    }
}

/// Goal: what closes a pair, by rule.
#[test]
fn pairs_are_closed_by_rule() {
    let (a, b, c) = (machine("a"), machine("b"), machine("c"));
    let closed = |graphs: &Graphs, pairs: &[&str], call: &Call, algorithm, protocol| {
        let model = Model::new(graphs, Version::NEWEST, settings(pairs, Version::NEWEST));
        let (a, p) = place(algorithm, protocol).unwrap();
        match model.table(call)[a][p] {
            Cell::NoKernel => "no kernel",
            Cell::Off(why) => why,
            Cell::On(_) => "",
        }
    };
    use Algorithm::{CollnetChain, CollnetDirect, Nvls, NvlsTree, Pat, Ring, Tree};
    use Collective::{AllGather, AllReduce, Broadcast, ReduceScatter};
    use Protocol::{Ll, Ll128, Simple};
    let reduce = call(AllReduce, &a, 1 << 20);
    let gather = call(AllGather, &a, 1 << 20);
    assert_eq!(closed(&a, &[], &reduce, Nvls, Simple), "");
    assert_eq!(closed(&a, &[], &reduce, Nvls, Ll), "no kernel");
    assert_eq!(closed(&a, &[], &call(Broadcast, &a, 1), Tree, Ll), "no kernel");
    assert_eq!(closed(&a, &["NCCL_NVLS_ENABLE=0"], &reduce, Nvls, Simple), "NCCL_NVLS_ENABLE is 0");
    assert!(closed(&a, &[], &reduce, NvlsTree, Simple).contains("several hosts"));
    assert!(closed(&b, &[], &call(AllReduce, &b, 1 << 20), Nvls, Simple).contains("CollNet"));
    assert_eq!(closed(&b, &[], &call(AllReduce, &b, 1 << 20), NvlsTree, Simple), "");
    let max = Call { op: ReduceOp::Max, ..reduce.clone() };
    assert!(closed(&a, &[], &max, Nvls, Simple).contains("only sums"));
    let max_half = Call { dtype: DataType::Float16, ..max };
    assert_eq!(closed(&a, &[], &max_half, Nvls, Simple), "");
    // A network sums what ranks have scaled; NVSwitch does not average.
    let mean = Call { op: ReduceOp::Avg, ..reduce.clone() };
    assert!(closed(&a, &[], &mean, Nvls, Simple).contains("NVSwitch does sum"));
    let mut sharp = machine("b");
    (sharp.collnet, sharp.collnet_chain) = (true, Some(sharp.tree.clone()));
    let by_network = |op| {
        closed(
            &sharp,
            &["NCCL_COLLNET_ENABLE=1"],
            &Call { op, ..call(AllReduce, &sharp, 1 << 20) },
            CollnetChain,
            Simple,
        )
    };
    assert_eq!([ReduceOp::Sum, ReduceOp::Avg].map(by_network), ["", ""]);
    assert!(by_network(ReduceOp::Prod).contains("switches do sum"));
    let average = Call { op: ReduceOp::Avg, ..call(ReduceScatter, &c, 1 << 20) };
    assert!(closed(&c, &[], &average, Pat, Simple).contains("average"));
    assert_eq!(closed(&c, &["NCCL_PAT_ENABLE=0"], &call(AllGather, &c, 1), Pat, Simple), "NCCL_PAT_ENABLE is 0");
    assert!(closed(&a, &[], &gather, Pat, Simple).contains("one rank a host"));
    assert_eq!(closed(&a, &["NCCL_PAT_ENABLE=1"], &gather, Pat, Simple), "");
    assert!(closed(&a, &[], &reduce, CollnetDirect, Simple).contains("NCCL_COLLNET_ENABLE"));
    assert!(closed(&a, &["NCCL_COLLNET_ENABLE=1"], &reduce, CollnetDirect, Simple).contains("network"));
    // LL128: not without NVLink, not far from the NIC; naming it skips the checks.
    let mut pcie = machine("a");
    pcie.ring.type_intra = PathClass::Phb;
    assert!(closed(&pcie, &[], &reduce, Ring, Ll128).contains("NVLink"));
    assert_eq!(closed(&pcie, &["NCCL_PROTO=LL128"], &reduce, Ring, Ll128), "");
    assert_eq!(closed(&pcie, &["NCCL_PROTO=^LL"], &reduce, Ring, Ll128), "");
    assert_eq!(closed(&pcie, &["NCCL_PROTO=^LL"], &reduce, Ring, Ll), "NCCL_PROTO excludes it");
    let mut far = machine("b");
    far.ring.type_inter = PathClass::Pxn;
    let far_call = call(AllReduce, &far, 1 << 20);
    assert_eq!(closed(&far, &[], &far_call, Ring, Ll128), "");
    assert!(closed(&far, &["NCCL_LL128_C2C=0"], &far_call, Ring, Ll128).contains("NIC"));
    far.ring.type_inter = PathClass::Phb;
    assert!(closed(&far, &[], &far_call, Ring, Ll128).contains("NIC"));
}

/// Goal: NCCL adds 8-bit floats of more than eight ranks in no ring where it has anything else, and in no switch.
#[test]
fn rings_are_the_last_resort_for_8_bit_floats() {
    let chosen = |name: &str, collective, dtype| {
        let graphs = machine(name);
        let call = Call::of_size(collective, graphs.ranks, Bytes(1 << 30), dtype);
        choice(&default_model(&graphs), None, &call)
    };
    let (reduce, gather) = (Collective::AllReduce, Collective::AllGather);
    for dtype in [DataType::Float8E4m3, DataType::Float8E5m2] {
        assert_eq!(chosen("c", reduce, dtype), "tree/simple by cost table");
        assert_eq!(chosen("c", gather, dtype), "ring/simple by cost table");
        assert_eq!(chosen("a", reduce, dtype), "ring/simple by cost table", "eight ranks, and no NVLS");
    }
    assert_eq!(chosen("c", reduce, DataType::Float16), "ring/simple by cost table");
    assert_eq!(chosen("a", reduce, DataType::Float16), "nvls/simple by cost table");
    let graphs = machine("c");
    let call = |dtype| Call::of_size(reduce, graphs.ranks, Bytes(1 << 20), dtype);
    let of_ring = |dtype| {
        let decision = default_model(&graphs).decide(None, &call(dtype)).unwrap();
        let is_ring = |c: &&Candidate| (c.algorithm, c.protocol) == (Algorithm::Ring, Protocol::Simple);
        decision.candidates.iter().find(is_ring).unwrap().time_us.unwrap()
    };
    assert_eq!(of_ring(DataType::Float8E4m3), 1024.0 * of_ring(DataType::Int8));
}

/// Goal: what `NCCL_ALGO` leaves, by version: an error since 2.24, ring before; from 2.19 to 2.21 ring
/// with every protocol. An empty list leaves nothing before 2.24, and everything since.
#[test]
fn algorithms_that_leave_nothing_fail_or_fall_back() {
    let graphs = machine("a");
    let small = call(Collective::Broadcast, &graphs, 1024);
    let model = |minor: u16, pairs: &[&str]| {
        let version = Version::new(2, minor, 0);
        Model::new(&graphs, version, settings(pairs, version))
    };
    let pairs = ["NCCL_ALGO=Tree", "NCCL_PROTO=Simple"];
    let nothing = model(24, &pairs).decide(None, &small).unwrap_err();
    assert!(nothing.candidates.iter().all(|c| c.time_us.is_none()));
    assert_eq!(choice(&model(23, &pairs), None, &small), "ring/simple by environment");
    for minor in 19..=21 {
        assert_eq!(choice(&model(minor, &pairs), None, &small), "ring/ll by cost table", "2.{minor}");
    }
    for minor in [17, 18] {
        assert_eq!(choice(&model(minor, &pairs), None, &small), "ring/simple by environment", "2.{minor}");
    }
    let reduce = call(Collective::AllReduce, &graphs, 1 << 30);
    for minor in [18, 21, 23] {
        let decided = choice(&model(minor, &["NCCL_ALGO="]), None, &reduce);
        assert!(
            ["ring/simple by cost table", "tree/simple by cost table"].contains(&decided.as_str()),
            "2.{minor}: {decided}"
        );
        let by_protocol = model(minor, &["NCCL_PROTO="]).decide(None, &small);
        assert_eq!(by_protocol.is_ok_and(|decided| decided.algorithm == Algorithm::Ring), minor == 21, "2.{minor}");
    }
    for name in ["NCCL_ALGO=", "NCCL_PROTO="] {
        assert_eq!(choice(&model(30, &[name]), None, &reduce), choice(&model(30, &[]), None, &reduce), "{name}");
    }
    assert_eq!(choice(&model(30, &pairs), None, &reduce), "tree/simple by environment");
    assert_eq!(choice(&model(30, &["NCCL_ALGO=ring,tree"]), None, &reduce), "ring/simple by cost table");
    assert_eq!(choice(&model(30, &["NCCL_ALGO=allreduce:^nvls,ring"]), None, &reduce), "tree/simple by cost table");
    // Sections are no syntax of 2.23: the name is passed over, and nothing is left but ring.
    assert_eq!(choice(&model(23, &["NCCL_ALGO=allreduce:tree"]), None, &reduce), "ring/simple by cost table");
}

/// Goal: channels follow bounds, thresholds and size.
#[test]
fn channels_follow_bounds_and_size() {
    // Blocks of NVLS have no other bound than those of all blocks.
    let of_nvls = |pairs: &[&str]| {
        let graphs = machine("a");
        let model = Model::new(&graphs, Version::NEWEST, settings(pairs, Version::NEWEST));
        model.call_channels(Algorithm::Nvls, Protocol::Simple, 1 << 30)
    };
    let all: [&[&str]; 4] = [&[], &["NCCL_MAX_CTAS=4"], &["NCCL_MIN_CTAS=32"], &["NCCL_MAX_NCHANNELS=4"]];
    assert_eq!(all.map(of_nvls), [16, 4, 32, 16]);
    let graphs = machine("a");
    let channels = |pairs: &[&str], algorithm, protocol, bytes| {
        Model::new(&graphs, Version::NEWEST, settings(pairs, Version::NEWEST)).call_channels(algorithm, protocol, bytes)
    };
    use Algorithm::{Nvls, Pat, Ring};
    use Protocol::{Ll, Simple};
    // The worked example of 8 ranks and 24 channels.
    for (bytes, expected) in [(1 << 10, 1), (64 << 10, 2), (256 << 10, 8), (1 << 20, 24)] {
        assert_eq!(channels(&[], Ring, Simple, bytes), expected, "{bytes}");
    }
    assert_eq!(channels(&[], Ring, Ll, 64 << 10), 2);
    assert_eq!(channels(&["NCCL_MAX_NCHANNELS=8"], Ring, Simple, 1 << 30), 8);
    assert_eq!(channels(&["NCCL_MAX_CTAS=4", "NCCL_MAX_NCHANNELS=8"], Ring, Simple, 1 << 30), 4);
    assert_eq!(channels(&["NCCL_MIN_NCHANNELS=40"], Ring, Simple, 1 << 30), 40);
    assert_eq!(channels(&["NCCL_MIN_CTAS=100"], Ring, Simple, 1 << 30), 64);
    assert_eq!(channels(&["NCCL_THREAD_THRESHOLDS=-2 -2 -2 -2 -2 1"], Ring, Simple, 12 << 10), 24);
    assert_eq!(channels(&[], Nvls, Simple, 8), 16);
    assert_eq!(channels(&["NCCL_NVLS_NCHANNELS=20"], Nvls, Simple, 8), 20);
    assert_eq!(channels(&[], Pat, Simple, 8), 24);
}

/// Goal: calls of a group share a choice within a factor of four, and pay latency by rounds of
/// channels.
#[test]
fn calls_of_a_group_share_a_choice() {
    let graphs = machine("a");
    let calls: Vec<Call> = [
        (Collective::AllReduce, 4096),
        (Collective::AllGather, 4096),
        (Collective::AllReduce, 1024),
        (Collective::AllReduce, 4092),
        (Collective::AllReduce, 1 << 20),
    ]
    .into_iter()
    .map(|(collective, bytes)| call(collective, &graphs, bytes))
    .collect();
    let mut shared = shared_choices(&calls);
    shared.sort();
    assert_eq!(shared, [vec![0], vec![1], vec![2, 3], vec![4]]);

    // 48 calls of 64 KiB on 24 channels: two rounds for ring, one batch for NVLS.
    let model = default_model(&graphs);
    let small = call(Collective::AllReduce, &graphs, 64 << 10);
    let decision = model.decide_group(None, &small, 48 * (64 << 10), 48).unwrap();
    let time = |algorithm, protocol| {
        let wanted = |c: &&collcast_sim::nccl::Candidate| (c.algorithm, c.protocol) == (algorithm, protocol);
        decision.candidates.iter().find(wanted).unwrap().time_us.unwrap()
    };
    let bytes = 48.0 * 65_536.0;
    assert!((time(Algorithm::Ring, Protocol::Ll) - (2.0 * 15.0 + bytes / (1000.0 * 80.571_43))).abs() < 1e-3);
    assert!((time(Algorithm::Nvls, Protocol::Simple) - (25.0 + bytes / 272_000.0)).abs() < 1e-3);
}

/// Goal: environment before tuner before table; what turns the tuner off does.
#[test]
fn layers_decide_in_order() {
    let graphs = machine("b");
    let region = Tuner::Region(Platform::P5);
    let small = call(Collective::AllReduce, &graphs, 1 << 20);
    let large = call(Collective::AllReduce, &graphs, 4 << 30);
    let model = |version: Version, pairs: &[&str]| Model::new(&graphs, version, settings(pairs, version));
    let newest = |pairs: &[&str]| model(Version::NEWEST, pairs);
    assert_eq!(choice(&newest(&[]), Some(&region), &small), "tree/ll128 by aws-ofi-nccl region tuner");
    assert_eq!(choice(&newest(&[]), Some(&region), &large), "nvls_tree/simple by aws-ofi-nccl region tuner");
    assert_eq!(choice(&newest(&[]), None, &call(Collective::AllReduce, &graphs, 64 << 10)), "tree/ll by cost table");
    let env = ["NCCL_ALGO=allreduce:ring", "NCCL_PROTO=Simple"];
    assert_eq!(choice(&newest(&env), Some(&region), &small), "ring/simple by environment");
    // A region whose cell is closed is passed over: here no other holds the point, at 6 GiB ring's.
    let larger = call(Collective::AllReduce, &graphs, 6 << 30);
    assert!(choice(&newest(&["NCCL_NVLS_ENABLE=0"]), Some(&region), &larger).starts_with("ring/simple by aws"));
    assert_eq!(choice(&newest(&["NCCL_NVLS_ENABLE=0"]), Some(&region), &large), "ring/simple by cost table");
    for off in ["NCCL_TUNER_PLUGIN=none", "OFI_NCCL_TUNER_TYPE=INTERNAL", "OFI_NCCL_FORCE_NUM_RAILS=2"] {
        assert_eq!(choice(&newest(&[off]), Some(&region), &small), choice(&newest(&[]), None, &small), "{off}");
    }
    // The oldest interface stands back for NCCL_ALGO; before 2.21.5 there is none.
    let algo = ["NCCL_ALGO=ring,tree,nvlstree"];
    assert!(choice(&newest(&algo), Some(&region), &small).ends_with("region tuner"));
    assert!(choice(&model(Version::new(2, 21, 5), &algo), Some(&region), &small).ends_with("cost table"));
    assert!(choice(&model(Version::new(2, 21, 5), &[]), Some(&region), &small).ends_with("region tuner"));
    assert!(choice(&model(Version::new(2, 20, 5), &[]), Some(&region), &small).ends_with("cost table"));

    let csv = Tuner::Csv(Arc::new(CsvTuner::parse("allreduce,0,2097152,ring,ll128,-1,-1,-1\n")));
    let tuned = newest(&[]).decide(Some(&csv), &small).unwrap();
    assert_eq!((tuned.algorithm, tuned.protocol, tuned.channels), (Algorithm::Ring, Protocol::Ll128, 1));
    assert!(tuned.why.contains("line 1"), "{}", tuned.why);
    let unmatched = newest(&[]).decide(Some(&csv), &large).unwrap();
    assert_eq!((unmatched.layer, unmatched.channels), (Layer::Table, 1));
}

/// Goal: a line for registered buffers is for these alone, and for none where NCCL does not say which they are.
#[test]
fn lines_for_registered_buffers_hold_for_them() {
    let graphs = machine("b");
    let small = call(Collective::AllReduce, &graphs, 1 << 20);
    let csv = Tuner::Csv(Arc::new(CsvTuner::parse(
        "allreduce,0,2097152,ring,ll128,4,-1,-1,-1,1\nallreduce,0,2097152,tree,simple,4,-1,-1,-1,0\n",
    )));
    for (minor, registered, pair) in [
        (30, true, (Algorithm::Ring, Protocol::Ll128)),
        (30, false, (Algorithm::Tree, Protocol::Simple)),
        (23, true, (Algorithm::Tree, Protocol::Simple)),
    ] {
        let model = Model::new(&graphs, Version::new(2, minor, 4), NcclSettings::default());
        let tuned = model.with_registered(registered).decide(Some(&csv), &small).unwrap();
        assert_eq!((tuned.algorithm, tuned.protocol), pair, "2.{minor}, registered: {registered}");
    }
}

//! Traces of others, of ours and of nobody.

use std::path::Path;
use std::sync::Arc;

use collcast_sim::collective::{Algorithm, Collective, DataType, Launch, Protocol};
use collcast_sim::ids::Rank;
use collcast_sim::predict::{Choice, Predictor, Settings};
use collcast_sim::profile::Profile;
use collcast_sim::units::{Bytes, SimDuration};
use collcast_sim::workload::{
    Communicate, Compute, Level, Mechanisms, Mover, Op, OpGraph, Program, RankSpec, Simulator, StreamKind, What,
};
use proptest::prelude::*;
use prost::Message as _;
use serde_json::Value as Json;

use super::wire::{Attribute, GlobalMetadata, Node, Texts, Value, node_type};
use super::{ChakraError, Reader, Recorded, names, write};

const MEMORY: u32 = 300_000;

fn read(files: &[Vec<u8>]) -> Result<Recorded, ChakraError> {
    let mut reader = Reader::new(u32::try_from(files.len()).unwrap(), MEMORY);
    for (rank, file) in files.iter().enumerate() {
        reader.add(&format!("t.{rank}.et"), &file[..])?;
    }
    reader.finish()
}

fn written(graph: &OpGraph) -> Vec<Vec<u8>> {
    (0..graph.ranks.len()).map(|rank| write(graph, Rank(u32::try_from(rank).unwrap())).unwrap()).collect()
}

/// A file of nodes.
fn file(nodes: &[Node]) -> Vec<u8> {
    let head = GlobalMetadata { version: "0.0.4".to_owned(), attr: Vec::new() };
    let mut bytes = head.encode_length_delimited_to_vec();
    for node in nodes {
        bytes.extend(node.encode_length_delimited_to_vec());
    }
    bytes
}

fn node(id: u64, kind: i32, data_deps: &[u64], attributes: &[(&str, Value)]) -> Node {
    let attr = attributes.iter().map(|(name, value)| Attribute::new(name, value.clone())).collect();
    Node {
        id,
        name: format!("n{id}"),
        kind,
        data_deps: data_deps.to_vec(),
        duration_micros: 10,
        attr,
        ..Node::default()
    }
}

fn collective(id: u64, deps: &[u64], group: &str, bytes: i64) -> Node {
    let attributes = [
        ("comm_type", Value::Int64(0)),
        ("comm_size", Value::Int64(bytes)),
        ("pg_name", Value::Text(group.to_owned())),
        ("involved_dim", Value::Bools(super::wire::Bools { values: vec![true, false] })),
    ];
    node(id, node_type::COMM_COLL, deps, &attributes)
}

/// Streams of a rank, and its operations with the ranks that each is shared with.
type RankDoes = (Vec<collcast_sim::workload::Stream>, Vec<(Op, Vec<Rank>)>);

/// What every rank of a graph does, groups by their ranks: what a round trip has to keep.
fn by_rank(graph: &OpGraph) -> Vec<RankDoes> {
    let of = |spec: &RankSpec| {
        let program = &graph.programs[spec.program];
        let op = |op: &Op| {
            let mut op = op.clone();
            let mut ranks = Vec::new();
            match &mut op.what {
                What::Compute(compute) => {
                    compute.time = SimDuration(compute.time.0 * spec.pace_ppm / 1_000_000);
                }
                What::Collective(Communicate { group, .. }) | What::Send { group, .. } | What::Recv { group, .. } => {
                    ranks.clone_from(&graph.groups[spec.groups[*group]]);
                    *group = 0;
                }
                _ => {}
            }
            (op, ranks)
        };
        (program.streams.clone(), program.ops.iter().map(op).collect())
    };
    graph.ranks.iter().map(of).collect()
}

prop_compose! {
    fn compute()(time in 0_u64..1 << 40, kernels in 1_u32..9, waves in 1_u32..9, tiles in any::<[u16; 2]>(), memory in 0_u32..1_000_001)
        -> What {
        What::Compute(Compute {
            time: SimDuration(time), kernels, waves, tiles: tiles.map(u32::from), memory_ppm: memory,
        })
    }
}

fn choice<T: std::fmt::Debug + Copy + 'static>(all: &'static [T]) -> impl Strategy<Value = Choice<T>> {
    prop_oneof![Just(Choice::Auto), Just(Choice::Best), prop::sample::select(all).prop_map(Choice::Forced)]
}

prop_compose! {
    fn call()(
        which in 0..super::names::COLLECTIVES.len(), bytes in 1_u64..1 << 40, dtype in prop::sample::select(DataType::ALL),
        in_place in any::<bool>(), algorithm in choice(Algorithm::ALL), protocol in choice(Protocol::ALL),
        channels in prop::option::of(1_u32..33),
    ) -> What {
        let collective = super::names::COLLECTIVES[which];
        What::Collective(Communicate {
            group: 0, collective, bytes: Bytes(bytes), dtype, in_place, algorithm, protocol, channels,
        })
    }
}

fn what() -> impl Strategy<Value = What> {
    let message = (any::<bool>(), 1_u64..1 << 40, any::<bool>()).prop_map(|(send, bytes, engine)| {
        let mover = if engine { Mover::CopyEngine } else { Mover::Blocks };
        let (group, bytes) = (1, Bytes(bytes));
        if send { What::Send { group, bytes, mover } } else { What::Recv { group, bytes, mover } }
    });
    let copy = (0_u64..1 << 40, 0_u32..1_000_001)
        .prop_map(|(time, memory_ppm)| What::Copy { time: SimDuration(time), memory_ppm });
    prop_oneof![compute(), call(), message, copy, (0_u64..1 << 40).prop_map(|t| What::Host(SimDuration(t)))]
}

prop_compose! {
    /// Two ranks of one program; the first is slower. It need not be a step that ends: only what is written counts.
    fn graph()(
        ops in prop::collection::vec((what(), prop::collection::vec(any::<prop::sample::Index>(), 0..3), 0_u64..1 << 30, any::<bool>()), 1..30),
        pace in 500_000_u64..2_000_000,
    ) -> OpGraph {
        let mut program = Program::default();
        for (name, kind) in [("compute", StreamKind::Compute), ("calls", StreamKind::Communication),
            ("copies", StreamKind::Copy), ("host", StreamKind::Host)] {
            program.stream(name, kind, kind == StreamKind::Communication);
        }
        let calls = [
            What::Collective(Communicate {
                group: 0, collective: Collective::AllReduce, bytes: Bytes(4096), dtype: DataType::Float32,
                in_place: true, algorithm: Choice::Auto, protocol: Choice::Auto, channels: None,
            }),
            What::Send { group: 1, bytes: Bytes(64), mover: Mover::Blocks },
        ];
        // A group that only one rank calls is refused, and groups are in the order of their first use.
        let first = calls.into_iter().map(|what| (what, Vec::new(), 0, false));
        for (what, after, issue, framework) in first.chain(ops) {
            let stream = match what {
                What::Compute(_) => 0,
                What::Copy { .. } => 2,
                What::Host(_) => 3,
                _ => 1,
            };
            let on_host = stream == 3;
            // All wait for the host's operations before them anyway.
            let mut waits: Vec<usize> = (after.iter().filter(|_| !program.ops.is_empty()).map(|a| a.index(program.ops.len())))
                .filter(|&a| !matches!(program.ops[a].what, What::Host(_)))
                .collect();
            waits.dedup();
            program.push(Op {
                label: Arc::from(format!("op {}", program.ops.len())), kind: "kind".into(), stream, what, after: waits,
                issue: if on_host { SimDuration::ZERO } else { SimDuration(issue) }, framework,
            });
        }
        let rank = |pace_ppm| RankSpec { program: 0, groups: vec![0, 1], pace_ppm, late: SimDuration::ZERO };
        let groups = vec![vec![Rank(1), Rank(0)], vec![Rank(0), Rank(1)]];
        OpGraph { programs: vec![program], ranks: vec![rank(pace), rank(1_000_000)], groups, jitter: None }
    }
}

proptest! {
    /// Goal: what is written is read as it was, to the picosecond.
    #[test]
    fn round_trip(graph in graph()) {
        let back = read(&written(&graph)).unwrap();
        prop_assert_eq!(by_rank(&back.graph), by_rank(&graph));
        prop_assert!(back.warnings.is_empty(), "{:?}", back.warnings);
    }

    /// Goal: a file that is cut or has wrong bytes is an error or a trace, and no panic.
    #[test]
    fn damage_is_an_error_or_a_trace(
        graph in graph(), cut in any::<prop::sample::Index>(), flips in prop::collection::vec((any::<prop::sample::Index>(), 1_u8..), 0..8),
    ) {
        let mut files = written(&graph);
        let file = &mut files[0];
        for (at, bits) in flips {
            let at = at.index(file.len());
            file[at] ^= bits;
        }
        let cut = cut.index(file.len()) + 1;
        file.truncate(cut);
        if let Ok(read) = read(&files) {
            prop_assert_eq!(read.graph.ranks.len(), 2);
        }
    }

    /// Goal: the same of bytes that are no trace at all.
    #[test]
    fn noise_is_an_error_or_a_trace(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = read(&[bytes]);
    }
}

/// Goal: a trace that another program wrote: no streams, groups by name, an attribute and a node type without use.
#[test]
fn traces_of_others() {
    let of = |rank: u64| {
        let mut listed = node(0, node_type::METADATA, &[], &[]);
        let list = format!(r#"["[{{\"pg_name\": \"7\", \"ranks\": [{}, {}]}}]"]"#, rank / 2 * 2, rank / 2 * 2 + 1);
        listed.inputs = Some(Texts { values: list });
        file(&[
            listed,
            node(3, node_type::COMP, &[99], &[("num_ops", Value::Uint64(5))]),
            // Out of order, and behind a node of an unknown type.
            collective(5, &[4], "7", 1 << 20),
            node(4, 42, &[3], &[]),
            collective(6, &[5], "0", 1 << 20),
            collective(8, &[6], "", 0),
            node(9, node_type::COMP, &[8, 5], &[("is_cpu_op", Value::Bool(true))]),
        ])
    };
    let read = read(&[of(0), of(1), of(2), of(3)]).unwrap();
    let ranks = |group: &[u32]| group.iter().map(|&rank| Rank(rank)).collect::<Vec<_>>();
    assert_eq!(read.graph.groups, [ranks(&[0, 1, 2, 3]), ranks(&[0, 1]), ranks(&[2, 3])]);
    assert_eq!(read.graph.programs.len(), 1, "all ranks do the same");
    let program = &read.graph.programs[0];
    let labels: Vec<&str> = program.ops.iter().map(|op| &*op.label).collect();
    assert_eq!(labels, ["n3", "n5", "n6", "n9"]);
    let after: Vec<&[usize]> = program.ops.iter().map(|op| &op.after[..]).collect();
    assert_eq!(after, [&[][..], &[0], &[1], &[2, 1]]);
    assert_eq!(&*program.ops[1].kind, "all_reduce of group 7");
    let What::Compute(compute) = program.ops[0].what else { panic!("{:?}", program.ops[0]) };
    assert_eq!((compute.time, compute.memory_ppm), (SimDuration(10_000_000), MEMORY));
    let [warning] = &read.warnings[..] else { panic!("{:?}", read.warnings) };
    for part in [
        "node type 42 (4 nodes)",
        "`involved_dim`, where it leaves dimensions out (12",
        "collectives of no bytes, which NCCL leaves out (4",
        "not in the file (4",
    ] {
        assert!(warning.contains(part), "{part}: {warning}");
    }
}

/// Goal: an all-gather of another program has the bytes that each rank gives, as in ASTRA-sim, in groups that are listed or not;
/// our own says both, and files of ours from before say the whole.
#[test]
fn all_gathers_have_what_a_rank_gives() {
    let gather = |group: &str, more: &[(&str, Value)]| {
        let mut node = collective(5, &[], group, 1000);
        node.attr[0] = Attribute::new("comm_type", Value::Int64(2));
        node.attr.extend(more.iter().map(|(name, value)| Attribute::new(name, value.clone())));
        file(&[node])
    };
    let bytes = |files: &[Vec<u8>]| -> Option<Vec<u64>> {
        let graph = read(files).ok()?.graph;
        let of = |spec: &RankSpec| match &graph.programs[spec.program].ops[0].what {
            What::Collective(call) => Some(call.bytes.0),
            _ => None,
        };
        graph.ranks.iter().map(of).collect()
    };
    assert_eq!(bytes(&[gather("0", &[]), gather("0", &[])]), Some(vec![2000; 2]));
    // Two of one group and three of another, which no file lists, in one program but for the groups' names.
    let apart = ["3", "3", "4", "4", "4"].map(|group| {
        let mut node = Node::decode_length_delimited(&gather(group, &[])[file(&[]).len()..]).unwrap_or_default();
        node.attr.push(Attribute::new(names::KIND, Value::Text("gathers".to_owned())));
        node.attr.push(Attribute::new(names::STREAM, Value::Int64(7)));
        file(&[node])
    });
    assert_eq!(bytes(&apart), Some(vec![2000, 2000, 3000, 3000, 3000]));
    let old = ("collcast.dtype", Value::Text("bfloat16".to_owned()));
    assert_eq!(bytes(&[gather("0", std::slice::from_ref(&old)), gather("0", &[old])]), Some(vec![1000; 2]));
    let mut program = Program::default();
    let stream = program.stream("calls", StreamKind::Communication, true);
    let call = Communicate {
        group: 0,
        collective: Collective::AllGather,
        bytes: Bytes(1001),
        dtype: DataType::Uint8,
        in_place: true,
        algorithm: Choice::Auto,
        protocol: Choice::Auto,
        channels: None,
    };
    program.push(Op {
        label: "gather".into(),
        kind: "kind".into(),
        stream,
        what: What::Collective(call),
        after: Vec::new(),
        issue: SimDuration::ZERO,
        framework: false,
    });
    let rank = || RankSpec { program: 0, groups: vec![0], pace_ppm: 1_000_000, late: SimDuration::ZERO };
    let graph = OpGraph {
        programs: vec![program],
        ranks: vec![rank(), rank()],
        groups: vec![vec![Rank(0), Rank(1)]],
        jitter: None,
    };
    let files = written(&graph);
    assert_eq!(bytes(&files), Some(vec![1001; 2]));
    // Others read 501 of each rank.
    assert_eq!(bytes(&files.iter().map(|file| without_ours(file)).collect::<Vec<_>>()), Some(vec![1002; 2]));
}

/// Goal: a group has the ranks that are listed for it, also where the list is behind the nodes that name it, and where another
/// entry of it does not fit.
#[test]
fn groups_are_listed_anywhere() -> Result<(), ChakraError> {
    let file = |rank: u64, late: bool| {
        let mut listed = node(0, node_type::METADATA, &[], &[]);
        let of = rank / 2 * 2;
        let list = format!(r#"[{{"pg_name": "7", "ranks": [{of}, {}]}}, {{"pg_name": "8", "ranks": null}}]"#, of + 1);
        listed.inputs = Some(Texts { values: list });
        let call = collective(5, &[], "7", 1 << 20);
        file(&if late { [call, listed] } else { [listed, call] })
    };
    for late in [false, true] {
        let read = read(&[0, 1, 2, 3].map(|rank| file(rank, late)))?;
        assert_eq!(read.graph.groups, [vec![Rank(0), Rank(1)], vec![Rank(2), Rank(3)]], "{late}");
        assert!(read.warnings[0].contains("without a name and ranks (4 nodes)"), "{:?}", read.warnings);
    }
    Ok(())
}

/// Goal: what contradicts itself is refused, with the node and the reason.
#[test]
fn contradictions_are_refused() {
    let comp = |id, deps: &[u64]| node(id, node_type::COMP, deps, &[]);
    let send =
        |to: i64| node(1, node_type::COMM_SEND, &[], &[("comm_dst", Value::Int64(to)), ("comm_size", Value::Int64(8))]);
    let cases: [(Vec<Vec<u8>>, &str); 10] = [
        (vec![file(&[comp(1, &[2]), comp(2, &[1])])], "waits for itself"),
        (vec![file(&[comp(1, &[]), comp(1, &[])])], "has the id 1 too"),
        (vec![file(&[node(1, node_type::COMM_COLL, &[], &[])])], "no `comm_type`"),
        (vec![file(&[collective(1, &[], "0", -1)])], "`comm_size` is -1"),
        (vec![file(&[send(0)])], "`comm_dst` is 0"),
        (vec![file(&[send(1)]), file(&[])], "rank 1 is in it and makes no call there; rank 0 does, `"),
        (
            vec![file(&[collective(1, &[], "", 8)]), file(&[])],
            "group `all ranks`: rank 1 is in it and makes no call there; rank 0 does, `",
        ),
        (vec![file(&[collective(1, &[], "5", 8)]), file(&[])], "rank 0 alone names it"),
        (vec![Vec::new()], "the file is empty"),
        (vec![vec![0xff; 12]], "its length is no number"),
    ];
    for (files, reason) in cases {
        let error = read(&files).unwrap_err().to_string();
        assert!(error.contains(reason), "{reason}: {error}");
    }
}

/// Goal: a small file that unpacks to a large one is read all the same, or refused, within bounds.
#[test]
fn compressed_files_are_read() {
    let plain = file(&[node(1, node_type::COMP, &[], &[])]);
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut packer, &plain).unwrap();
    let read = read(&[packer.finish().unwrap()]).unwrap();
    assert_eq!(read.graph.programs[0].ops.len(), 1);
}

/// The step of a graph on 4 H200 as they were measured, in ms.
fn step(simulator: &Simulator<'_>, graph: &OpGraph) -> f64 {
    simulator.run(graph, Mechanisms::default(), Level::Flows).unwrap().time.as_us() / 1e3
}

/// A file without attributes of ours: what a program would write that knows Chakra alone.
fn without_ours(file: &[u8]) -> Vec<u8> {
    let mut left = file;
    let mut head = GlobalMetadata::decode_length_delimited(&mut left).unwrap();
    head.attr.retain(|a| !a.name.starts_with("collcast."));
    let mut bytes = head.encode_length_delimited_to_vec();
    while !left.is_empty() {
        let mut node = Node::decode_length_delimited(&mut left).unwrap();
        node.attr.retain(|a| !a.name.starts_with("collcast."));
        bytes.extend(node.encode_length_delimited_to_vec());
    }
    bytes
}

/// A measured step of `tests/data/h200x4`, in ms: the first row of a kind with a value, on 4 GPUs.
fn measured(file: &str, kind: &str, key: &str, value: &Json, time: &str) -> f64 {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/h200x4").join(file);
    let rows: Vec<Json> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let one = |row: &&Json| {
        let four = row.get("gpus").is_none_or(|gpus| gpus == 4);
        row["kind"] == kind && &row[key] == value && four && row["schedule"] != "gpipe"
    };
    rows.iter().find(one).unwrap()[time].as_f64().unwrap()
}

/// Goal: a trace of a step that was measured forecasts the scenario's own step, and the measured one within 10%.
#[test]
fn measured_steps_through_traces() {
    let topology = collcast_topologies::load_any("h200x4", None, None).unwrap();
    let profile = Profile::builtin(topology.profile.as_deref().unwrap()).unwrap();
    let device = crate::device(&topology).unwrap();
    let version = topology.software.nccl;
    let mut settings = Settings { launch: Launch::Processes, version, ..Settings::default() };
    settings.nccl.nvls = Some(false);
    let simulator = Simulator::new(Predictor::new(&topology, &profile), device, settings);
    let steps = "training_steps.json";
    for (name, measured) in [
        ("ddp-buckets", measured("ddp_bucket_overlap.json", "ddp", "bucket_cap_mb", &25.into(), "iter_ms")),
        ("gpt-ddp", measured(steps, "ddp_gpt", "bucket_cap_mb", &25.into(), "iter_ms")),
        ("gpt-fsdp", measured(steps, "fsdp2", "reshard_after_forward", &true.into(), "iter_ms")),
        ("gpt-tensor", measured(steps, "tp", "comm", &true.into(), "fwd_bwd_ms")),
        ("gpt-pipeline", measured(steps, "pp", "micro_batches", &8.into(), "iter_ms")),
    ] {
        let text = crate::builtin::text(name).unwrap();
        let graph = crate::file::read(text, name).unwrap().graph(&profile, device);
        let files = written(&graph);
        let scenario = step(&simulator, &graph);
        let trace = step(&simulator, &read(&files).unwrap().graph);
        let bare: Vec<Vec<u8>> = files.iter().map(|file| without_ours(file)).collect();
        let plain = step(&simulator, &read(&bare).unwrap().graph);
        println!(
            "{name}: measured {measured:.2} ms, scenario {scenario:.2}, trace {trace:.2}, Chakra's names alone {plain:.2}"
        );
        assert!((trace / scenario - 1.0).abs() < 1e-9, "{name}: {trace} of a trace, {scenario} of the scenario");
        assert!((trace / measured - 1.0).abs() < 0.1, "{name}: {trace} of a trace, measured {measured}");
        // It does not say how kernels use the GPU, and so less of what they and calls do to each other.
        assert!((plain / scenario - 1.0).abs() < 0.1, "{name}: {plain} of a plain trace, {scenario} of the scenario");
    }
    assert!(names::STREAMS.starts_with("collcast."), "it is left out of plain traces");
}

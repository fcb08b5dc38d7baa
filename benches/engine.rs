//! Benchmarks of the engine: messages per second of an unfolded ring, the solver of rates,
//! programs, and folding.
//!
//! Targets on one core of a current server: a million messages a second unfolded.

use std::hint::black_box;
use std::time::Duration;

use collcast_sim::collective::{Algorithm, Collective, DataType, Protocol};
use collcast_sim::engine::flows::{Flows, Use, WEIGHT_ONE};
use collcast_sim::engine::{Unobserved, fold, run};
use collcast_sim::nccl::Transport;
use collcast_sim::nccl::{Limits, Plan};
use collcast_sim::network::{lay, order};
use collcast_sim::profile::Profile;
use collcast_sim::schedule::wiring::{SliceCursor, Wiring};
use collcast_sim::schedule::{Call, Order, Schedule};
use collcast_sim::topology::{Gpu, Link, LinkKind, Topology, TopologyBuilder, VertexKind};
use collcast_sim::units::{Bandwidth, Bytes};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// GPUs on one switch.
fn switched(gpus: u32) -> Topology {
    let mut builder = TopologyBuilder::new("switched");
    let host = builder.host("host0");
    let switch = builder.vertex("switch", VertexKind::NvSwitch, Some(host));
    let link = Link { kind: LinkKind::Nvlink, rate: Bandwidth::from_gb_per_s(450.0), width: 18 };
    for index in 0..gpus {
        let gpu = Gpu { index, model: "H200".to_owned(), compute_capability: 90, memory_rate: None, bus_id: None };
        let id = builder.vertex(format!("gpu{index}"), VertexKind::Gpu(gpu), Some(host));
        builder.duplex(id, switch, link);
    }
    builder.build().expect("a star is connected")
}

/// Large under `cargo bench`, small under `cargo test`.
fn sized(large: u32, small: u32) -> u32 {
    if std::env::args().any(|a| a == "--bench") { large } else { small }
}

fn ring(topology: &Topology, protocol: Protocol, channels: u32, bytes: u64) -> Schedule {
    let ranks = topology.ranks();
    let call = Call::of_size(Collective::AllReduce, ranks, Bytes(bytes), DataType::Float32);
    let limits = Limits { channels, exact_channels: true, ..Limits::default() };
    let plan = Plan::new(&call, Algorithm::Ring, protocol, &limits);
    Schedule::new(call, plan, &order(topology, ranks)).expect("a ring of any size")
}

/// Messages per second of the engine, every lane simulated: ring all-reduce over 512 ranks.
fn engine_ring(bench: &mut Criterion) {
    let mut group = bench.benchmark_group("engine_ring_512");
    group.sample_size(10).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(5));
    let topology = switched(sized(512, 8));
    let profile = Profile::builtin("prior").expect("built in");
    for (name, protocol, channels) in
        [("ll", Protocol::Ll, 1), ("simple", Protocol::Simple, 1), ("simple_2_channels", Protocol::Simple, 2)]
    {
        let schedule = ring(&topology, protocol, channels, 4 << 20);
        let laid = lay(&topology, &profile, &Transport::default(), &schedule).expect("one switch joins all");
        let outcome = run(&laid.instance, &mut Unobserved).expect("rings end");
        group.throughput(Throughput::Elements(outcome.messages));
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter(|| {
                let again = run(&laid.instance, &mut Unobserved).expect("rings end");
                // Guards against speeding up the answer.
                assert_eq!(again.trace_hash, outcome.trace_hash);
            });
        });
    }
    group.finish();
}

/// Rates set per second: one component in which all flows contend, and many small ones.
fn max_min(bench: &mut Criterion) {
    let mut group = bench.benchmark_group("max_min");
    group.sample_size(20).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(2));
    let cases: [(&str, Vec<Vec<Use>>, usize); 2] = [
        // 24 channels on 8 GPUs: a block each, and the links of the sender and of the receiver.
        (
            "contended_24x8",
            (0..192_u32)
                .map(|i| {
                    let (gpu, to) = (i % 8, (i + 1 + i / 64) % 8);
                    vec![(16 + i, WEIGHT_ONE), (gpu, WEIGHT_ONE * 5 / 4), (8 + to, WEIGHT_ONE * 5 / 4)]
                })
                .collect(),
            16 + 192,
        ),
        (
            "independent_512",
            (0..512).map(|i| vec![(3 * i, WEIGHT_ONE), (3 * i + 1, WEIGHT_ONE), (3 * i + 2, WEIGHT_ONE)]).collect(),
            3 * 512,
        ),
    ];
    for (name, flows, resources) in cases {
        group.throughput(Throughput::Elements(flows.len() as u64));
        group.bench_function(name, |b| {
            b.iter(|| {
                let mut solver = Flows::new((0..resources).map(|r| 450_000_000_000 - r as u64 % 7 * 1_000_000_000));
                for uses in &flows {
                    solver.start(0, 1 << 20, uses, 0);
                }
                solver.solve(0);
                black_box(solver.next())
            });
        });
    }
    group.finish();
}

/// Slices per second pulled out of programs: what every consumer of a schedule pays first.
fn programs(bench: &mut Criterion) {
    let mut group = bench.benchmark_group("programs");
    group.sample_size(20).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(2));
    for algorithm in [Algorithm::Ring, Algorithm::Tree] {
        let call = Call::of_size(Collective::AllReduce, 64, Bytes(u64::from(sized(64, 1)) << 20), DataType::Float32);
        let plan = Plan::new(&call, algorithm, Protocol::Simple, &Limits::default());
        let schedule = Schedule::new(call, plan, &Order::one_host(64)).expect("a valid call");
        let wiring = Wiring::new(&schedule).expect("generators wire both ends");
        let pull = || {
            let mut slices = 0_u64;
            for worker in &wiring.workers {
                let mut cursor = SliceCursor::new(worker);
                while let Some(slice) = cursor.next(&schedule, worker.template) {
                    slices += 1;
                    black_box(slice);
                }
            }
            slices
        };
        group.throughput(Throughput::Elements(pull()));
        group.bench_function(algorithm.name(), |b| b.iter(pull));
    }
    group.finish();
}

/// Lanes folded per second: 128 ranks on 32 channels, all alike.
fn folding(bench: &mut Criterion) {
    let mut group = bench.benchmark_group("fold");
    group.sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(2));
    let topology = switched(sized(128, 8));
    let profile = Profile::builtin("prior").expect("built in");
    let schedule = ring(&topology, Protocol::Simple, 32, 64 << 20);
    let laid = lay(&topology, &profile, &Transport::default(), &schedule).expect("one switch joins all");
    group.throughput(Throughput::Elements(laid.instance.lanes.len() as u64));
    group.bench_function("4096_lanes", |b| b.iter(|| fold(&laid.instance).instance.lanes.len()));
    group.finish();
}

criterion_group!(benches, engine_ring, max_min, programs, folding);
criterion_main!(benches);

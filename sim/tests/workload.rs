//! Goal: graphs of operations run as a GPU and its host would, on ideal links by hand calculation.

use crate::common::{nvswitch_box, prior};
use collcast_sim::collective::{Collective, DataType};
use collcast_sim::engine::flows::WEIGHT_ONE;
use collcast_sim::engine::{Gate, Instance, Outcome, TaskSpec, Unobserved, run};
use collcast_sim::ids::Rank;
use collcast_sim::predict::{Choice, Predictor, Settings};
use collcast_sim::units::{Bandwidth, Bytes, SimDuration, SimTime};
use collcast_sim::workload::{
    Communicate, Compute, Device, Level, Mechanisms, Mover, Op, OpGraph, Program, RankSpec, Simulator, StreamKind, What,
};
use proptest::prelude::*;

fn outcome(resources: &[u64], tasks: Vec<TaskSpec>) -> Outcome {
    run(&Instance { resources: resources.to_vec(), tasks, ..Instance::default() }, &mut Unobserved).unwrap()
}

fn lasts(ps: u64, after: &[u32]) -> TaskSpec {
    TaskSpec {
        lasts: SimDuration(ps),
        after: after.iter().map(|&t| (t, SimDuration::ZERO)).collect(),
        ..TaskSpec::default()
    }
}

fn ends(outcome: &Outcome) -> Vec<u64> {
    outcome.task_ends.iter().map(|t| t.0).collect()
}

/// Goal: tasks start when all they wait for is over, each lag included, and say who let them.
#[test]
fn tasks_follow_each_other() {
    let mut last = lasts(5, &[0, 1]);
    last.after[0].1 = SimDuration(100);
    let done = outcome(&[], vec![lasts(10, &[]), lasts(40, &[0]), last, lasts(0, &[2])]);
    assert_eq!(ends(&done), [10, 50, 115, 115]);
    assert_eq!(done.task_causes, [u32::MAX, 0, 0, 2]);
    assert_eq!(done.end, SimTime(115));
}

/// Goal: what a task holds is missing to others from its start to the end of the task it names.
#[test]
fn holds_take_capacity_for_their_time() {
    let flow = TaskSpec { uses: [(0, WEIGHT_ONE)].as_slice().into(), work: 1000, ..TaskSpec::default() };
    let holder = TaskSpec { holds: [(0, 750)].as_slice().into(), until: Some(2), ..lasts(0, &[]) };
    // 1000 units a second: 250 of them for 2 s, then all for the other half.
    let second = 1_000_000_000_000;
    let done = outcome(&[1000], vec![flow, holder, lasts(2 * second, &[1])]);
    assert_eq!(done.task_ends[0].0, 2 * second + second / 2);
}

/// Goal: who enters waits for the kernel that is running, an urgent one for its wave only, and either one until a
/// wave leaves enough room; the next kernel waits for nobody who is in.
#[test]
fn gates_open_between_kernels_and_waves() {
    let occupies = |after: &[u32], first, last, room| TaskSpec {
        gate: Gate::Occupies { gate: 0, first, last, room },
        ..lasts(10, after)
    };
    let enters =
        |at, urgent| TaskSpec { gate: Gate::Enters { gate: 0, needs: 4, urgent }, at: SimTime(at), ..lasts(7, &[]) };
    let cases = [
        (3, true, 0, 10),
        (3, false, 0, 20),
        (12, true, 0, 20),
        (0, false, 0, 0),
        (25, true, 0, 30),
        // The second wave leaves room for three or four.
        (3, false, 3, 20),
        (3, false, 4, 10),
        (12, false, 4, 12),
    ];
    for (at, urgent, room, starts) in cases {
        let tasks = vec![
            occupies(&[], true, false, 0),
            occupies(&[0], false, true, room),
            occupies(&[1], true, true, 0),
            enters(at, urgent),
        ];
        let done = outcome(&[], tasks);
        assert_eq!(done.task_starts[3].0, starts, "at {at}, urgent {urgent}, room {room}");
        assert_eq!(done.end.0, (starts + 7).max(30), "the kernels go on beside it");
    }
}

/// A step of two ranks that both do this, each on a stream of its own, in groups of both.
fn both_do(groups: usize, what: &[What]) -> OpGraph {
    let mut program = Program::default();
    for what in what {
        let kind = if matches!(what, What::Compute(_)) { StreamKind::Compute } else { StreamKind::Communication };
        let stream = program.stream("own", kind, false);
        let (label, kind, what) = ("op".into(), "op".into(), what.clone());
        let (after, issue) = (Vec::new(), SimDuration::ZERO);
        program.push(Op { label, kind, stream, what, after, issue, framework: false });
    }
    let rank = RankSpec { program: 0, groups: (0..groups).collect(), pace_ppm: 1_000_000, late: SimDuration::ZERO };
    let groups = vec![vec![Rank(0), Rank(1)]; groups];
    OpGraph { programs: vec![program], ranks: vec![rank.clone(), rank], groups, jitter: None }
}

fn call(group: usize, kib: u64) -> What {
    What::Collective(Communicate {
        group,
        collective: Collective::AllReduce,
        bytes: Bytes(kib << 10),
        dtype: DataType::Float32,
        in_place: false,
        algorithm: Choice::Auto,
        protocol: Choice::Auto,
        channels: None,
    })
}

/// Goal: ranks that wait for each other are named, with the calls that they are in, at both levels.
#[test]
fn who_waits_for_whom_is_told() {
    let (topology, profile) = (nvswitch_box(RANKS, 450.0), prior());
    let device = Device { sms: 132, memory: Bandwidth::from_gb_per_s(3350.0), cluster: 1 };
    let simulator = Simulator::new(Predictor::new(&topology, &profile), device, Settings::default());
    let mut graph = both_do(2, &[call(0, 4), call(1, 8)]);
    graph.programs[0].ops.iter_mut().for_each(|op| op.stream = 0);
    let mut other = graph.programs[0].clone();
    other.ops.swap(0, 1);
    graph.programs.push(other);
    graph.ranks[1].program = 1;
    for level in [Level::Flows, Level::Slices] {
        let error = simulator.run(&graph, Mechanisms::default(), level).unwrap_err().to_string();
        let [first, second] = [("4 KiB", 0, 1), ("8 KiB", 1, 0)].map(|(size, rank, other)| {
            format!("rank {rank} is in `op` (all_reduce of {size}) and waits for rank {other}")
        });
        assert_eq!(error, format!("the step never ends, as ranks wait for each other: {first}; {second}"));
    }
}

/// Goal: what goes at once over links with room takes as long as alone, whatever is at the other end: messages both ways
/// between two ranks that do the same, and calls of several communicators. One call alone takes the same with all its
/// slices. Computations that share a GPU are slower with no call beside them, which is no interference.
#[test]
fn what_shares_no_link_goes_at_once() {
    let (topology, profile) = (nvswitch_box(RANKS, 450.0), prior());
    let device = Device { sms: 132, memory: Bandwidth::from_gb_per_s(3350.0), cluster: 1 };
    let simulator = Simulator::new(Predictor::new(&topology, &profile), device, Settings::default());
    let time = |graph: &OpGraph, mechanisms, level| simulator.run(graph, mechanisms, level).unwrap().time.as_us();
    let flows = |graph: &OpGraph| time(graph, Mechanisms::default(), Level::Flows);
    let (bytes, mover) = (Bytes(1 << 26), Mover::Blocks);
    let mut one_way = both_do(1, &[What::Send { group: 0, bytes, mover }]);
    let both_ways = both_do(1, &[What::Send { group: 0, bytes, mover }, What::Recv { group: 0, bytes, mover }]);
    one_way.programs.extend(both_do(1, &[What::Recv { group: 0, bytes, mover }]).programs);
    one_way.ranks[1].program = 1;
    let alone = flows(&one_way);
    // Channels that are early on one GPU are late on the other, and the last one ends a call.
    assert!((flows(&both_ways) / alone - 1.0).abs() < 5e-3, "{} and {alone}", flows(&both_ways));

    let three: Vec<What> = (0..3).map(|group| call(group, 4)).collect();
    let (one, three) = (flows(&both_do(1, &[call(0, 4)])), flows(&both_do(3, &three)));
    assert!((three / one - 1.0).abs() < 1e-6, "{three} and {one}");
    for kib in [64, 65_536] {
        let graph = both_do(1, &[call(0, kib)]);
        let [flow, slices] = [Level::Flows, Level::Slices].map(|level| time(&graph, Mechanisms::default(), level));
        assert!((slices / flow - 1.0).abs() < 2e-3, "{kib} KiB: {slices} and {flow}");
    }

    let compute =
        Compute { time: SimDuration(1_000_000_000), kernels: 1, waves: 1, tiles: [132, 0], memory_ppm: 500_000 };
    let shared = both_do(0, &[What::Compute(compute), What::Compute(compute)]);
    let calm = Mechanisms { interference: false, ..Mechanisms::default() };
    assert_eq!((flows(&shared), time(&shared, calm, Level::Flows)), (2000.0, 2000.0));

    // A message that nobody takes is told, though its two ranks are alike.
    let untaken = both_do(1, &[What::Send { group: 0, bytes, mover }]);
    let error = simulator.run(&untaken, calm, Level::Flows).unwrap_err().to_string();
    assert!(error.contains("does not take part in call 1"), "{error}");
}

/// An operation as it is drawn: kind, time in ns or size, dependencies, time to launch in ns.
type Drawn = (u8, u64, Vec<u32>, u64);

const RANKS: u32 = 4;

/// All ranks do the same on a stream that computes and two that call collectives of all ranks;
/// `keep` says which operations are there, and dependencies go through those that are not.
fn graph(drawn: &[Drawn], paces: [u64; RANKS as usize], keep: impl Fn(u8) -> bool) -> OpGraph {
    let mut program = Program::default();
    let compute = program.stream("compute", StreamKind::Compute, false);
    let calls = ["a", "b"].map(|name| program.stream(name, StreamKind::Communication, true));
    // By drawn operation what waiting for it means, and the same for the last of each stream.
    let mut stands_for: Vec<Vec<usize>> = Vec::new();
    let mut last = [const { Vec::new() }; 4];
    for (index, (kind, size, before, issue)) in (0_u32..).zip(drawn) {
        let stream = if *kind < 2 { calls[usize::from(*kind)] } else { compute };
        let mut after: Vec<usize> =
            before.iter().filter(|_| index > 0).flat_map(|b| stands_for[(b % index) as usize].clone()).collect();
        after.extend(&last[stream]);
        if *kind < 2 {
            after.extend(&last[3]); // One communicator: one call after the other.
        }
        after.sort_unstable();
        after.dedup();
        let what = if *kind < 2 {
            What::Collective(Communicate {
                group: 0,
                collective: Collective::AllReduce,
                bytes: Bytes(size * 256),
                dtype: DataType::Float32,
                in_place: false,
                algorithm: Choice::Auto,
                protocol: Choice::Auto,
                channels: None,
            })
        } else {
            let time = SimDuration(size * 1000);
            What::Compute(Compute {
                time,
                kernels: 1 + u32::from(kind % 3),
                waves: 2,
                tiles: [500, 0],
                memory_ppm: 500_000,
            })
        };
        let result = if keep(*kind) {
            let issue = SimDuration(issue * 1000);
            let (label, kind) = ("op".into(), "op".into());
            vec![program.push(Op { label, kind, stream, what, after, issue, framework: false })]
        } else {
            after
        };
        last[stream].clone_from(&result);
        if *kind < 2 {
            last[3].clone_from(&result);
        }
        stands_for.push(result);
    }
    let rank = |pace_ppm| RankSpec { program: 0, groups: vec![0], pace_ppm, late: SimDuration::ZERO };
    let groups = vec![(0..RANKS).map(Rank).collect()];
    OpGraph { programs: vec![program], ranks: paces.map(rank).to_vec(), groups, jitter: None }
}

fn step_time(graph: &OpGraph, mechanisms: Mechanisms) -> SimDuration {
    let (topology, profile) = (nvswitch_box(RANKS, 450.0), prior());
    let device = Device { sms: 132, memory: Bandwidth::from_gb_per_s(3350.0), cluster: 1 };
    let simulator = Simulator::new(Predictor::new(&topology, &profile), device, Settings::default());
    simulator.run(graph, mechanisms, Level::Flows).unwrap().time
}

fn drawn(most: usize) -> impl Strategy<Value = Vec<Drawn>> {
    prop::collection::vec((0_u8..6, 0_u64..400_000, prop::collection::vec(any::<u32>(), 0..3), 0_u64..20_000), 1..most)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Goal: a step without communication is the same step with all of it taken out of the graph,
    /// to the picosecond; with free launches it is the sum of its computations.
    #[test]
    fn no_communication_leaves_computation(drawn in drawn(24), launch in any::<bool>(), interference in any::<bool>()) {
        let equal = [1_000_000; RANKS as usize];
        let quiet = Mechanisms { communication: false, launch, interference, ..Mechanisms::default() };
        let silent = step_time(&graph(&drawn, equal, |_| true), quiet);
        let alone = graph(&drawn, equal, |kind| kind >= 2);
        let with = Mechanisms { communication: true, ..quiet };
        prop_assert_eq!(silent, step_time(&alone, with));
        if !launch {
            let sum = drawn.iter().filter(|op| op.0 >= 2).map(|op| op.1 * 1000).sum();
            prop_assert_eq!(silent, SimDuration(sum));
        }
    }

    /// Goal: where operations share nothing, one more dependency never makes a step shorter.
    /// Method: one communicator, whose calls never meet, and no interference; ranks at any pace.
    #[test]
    fn one_more_dependency_never_shortens_a_step(
        drawn in drawn(16),
        paces in prop::array::uniform4(800_000_u64..1_300_000),
        extra in (any::<u32>(), any::<u32>()),
    ) {
        prop_assume!(drawn.len() > 1);
        let calm = Mechanisms { interference: false, ..Mechanisms::default() };
        let before = step_time(&graph(&drawn, paces, |_| true), calm);
        let mut more = drawn;
        let later = 1 + extra.0 as usize % (more.len() - 1);
        more[later].2.push(extra.1);
        prop_assert!(step_time(&graph(&more, paces, |_| true), calm) >= before);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Goal: the event loop gives the longest way through any graph where nothing is shared, and
    /// so one more dependency never makes it shorter.
    #[test]
    fn a_graph_without_sharing_takes_its_longest_way(
        tasks in prop::collection::vec((0_u64..1000, prop::collection::vec((any::<u32>(), 0_u64..50), 0..4)), 1..40),
        extra in (any::<u32>(), any::<u32>()),
    ) {
        let n = u32::try_from(tasks.len()).unwrap();
        let mut specs: Vec<TaskSpec> = (0..).zip(&tasks).map(|(index, (length, before))| TaskSpec {
            lasts: SimDuration(*length),
            after: before.iter().filter(|_| index > 0).map(|&(b, lag)| (b % index.max(1), SimDuration(lag))).collect(),
            ..TaskSpec::default()
        }).collect();
        let longest = |specs: &[TaskSpec]| {
            let mut ends: Vec<u64> = Vec::new();
            for spec in specs {
                let start = spec.after.iter().map(|&(b, lag)| ends[b as usize] + lag.0).max().unwrap_or(0);
                ends.push(start + spec.lasts.0);
            }
            ends
        };
        let before = outcome(&[], specs.clone());
        prop_assert_eq!(ends(&before), longest(&specs));
        if n > 1 {
            let later = 1 + extra.0 % (n - 1);
            specs[later as usize].after.push((extra.1 % later, SimDuration::ZERO));
            let after = outcome(&[], specs.clone());
            prop_assert_eq!(ends(&after), longest(&specs));
            prop_assert!(after.end >= before.end);
        }
    }
}

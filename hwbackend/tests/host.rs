//! Goal: the host executor runs the very schedules that are simulated, with exact results.
//! Method: values whose sums are exact; every element of every rank is compared.

use std::time::Duration;

use collcast_hwbackend::host::{HostError, run};
use collcast_sim::collective::{Algorithm, Collective, DataType, Protocol};
use collcast_sim::ids::Rank;
use collcast_sim::nccl::{Limits, Plan};
use collcast_sim::schedule::msccl::{Imported, export, one_loop};
use collcast_sim::schedule::verify::verify;
use collcast_sim::schedule::{Call, Order, Schedule, check_fits, valid_algorithms};
use proptest::prelude::*;

const PATIENCE: Duration = Duration::from_secs(20);

fn schedule(
    collective: Collective,
    algorithm: Algorithm,
    protocol: Protocol,
    ranks: u32,
    count: u64,
    in_place: bool,
) -> Schedule {
    schedule_on(&Order::one_host(ranks), collective, algorithm, protocol, count, in_place)
}

fn schedule_on(
    order: &Order,
    collective: Collective,
    algorithm: Algorithm,
    protocol: Protocol,
    count: u64,
    in_place: bool,
) -> Schedule {
    let ranks = order.rings[0].len() as u32;
    let mut call = Call::of_size(collective, ranks, Default::default(), DataType::Float32);
    call.count = count;
    call.root = Rank(ranks / 2);
    call.in_place = in_place;
    schedule_of(call, algorithm, protocol, order)
}

/// Small chunks, two channels.
fn schedule_of(call: Call, algorithm: Algorithm, protocol: Protocol, order: &Order) -> Schedule {
    let count = call.count;
    let limits = Limits { channels: 2, p2p_channels: (4, 4), exact_channels: true, ..Limits::default() };
    let mut plan = Plan::new(&call, algorithm, protocol, &limits);
    plan.chunk = plan.grain * 8;
    plan.min_slice = plan.grain;
    plan.per_channel = if algorithm == Algorithm::Direct {
        count.div_ceil(u64::from(plan.channels_per_peer)).max(1)
    } else {
        count.div_ceil(2).max(1)
    };
    Schedule::new(call, plan, order).unwrap()
}

fn input(rank: u32, length: u64) -> Vec<i64> {
    (0..length).map(|e| i64::from(rank) * 1_000_003 + e.cast_signed() * 7 + 1).collect()
}

/// What a rank must hold, straight from the definition of the collective.
fn expected(call: &Call, rank: u32, inputs: &[Vec<i64>]) -> Option<Vec<i64>> {
    let n = call.ranks as usize;
    let count = call.count as usize;
    let sum = |e: usize| inputs.iter().map(|i| i[e]).sum::<i64>();
    let r = rank as usize;
    Some(match call.collective {
        Collective::AllReduce => (0..count).map(sum).collect(),
        Collective::Reduce if Rank(rank) == call.root => (0..count).map(sum).collect(),
        Collective::ReduceScatter => (0..count).map(|e| sum(r * count + e)).collect(),
        Collective::AllGather => inputs.concat(),
        Collective::Broadcast => inputs[call.root.index()].clone(),
        Collective::AllToAll => (0..n).flat_map(|from| inputs[from][r * count..(r + 1) * count].to_vec()).collect(),
        Collective::SendRecv => inputs[(r + n - 1) % n].clone(),
        Collective::Gather if Rank(rank) == call.root => inputs.concat(),
        Collective::Scatter => inputs[call.root.index()][r * count..(r + 1) * count].to_vec(),
        _ => return None,
    })
}

#[test]
fn results_are_exact_for_one_to_nine_ranks() {
    for &collective in Collective::ALL {
        for &algorithm in valid_algorithms(collective) {
            for ranks in 1..=9 {
                // On one host NVLS needs a second rank; these others need a second host.
                let hosts =
                    matches!(algorithm, Algorithm::NvlsTree | Algorithm::CollnetDirect | Algorithm::CollnetChain);
                if hosts || (algorithm == Algorithm::Nvls && ranks == 1) {
                    continue;
                }
                for (count, in_place) in [(0, false), (1, false), (101, false), (1000, true)] {
                    let schedule = schedule(
                        collective,
                        algorithm,
                        Protocol::Simple,
                        ranks,
                        count,
                        in_place && collective.in_place(),
                    );
                    check_exact(&schedule, &format!("{collective} {algorithm} {ranks} ranks, {count} elements"));
                }
            }
        }
    }
}

/// Goal: what switches combine is exact too, across hosts.
#[test]
fn results_through_switches_are_exact() {
    for collective in [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter] {
        for &algorithm in valid_algorithms(collective) {
            for (hosts, per_host) in [(2, 1), (2, 2), (3, 1), (3, 3), (4, 2), (2, 5)] {
                let nvls = matches!(algorithm, Algorithm::Nvls | Algorithm::NvlsTree);
                let pairs =
                    matches!(algorithm, Algorithm::Ring | Algorithm::Tree | Algorithm::Pat | Algorithm::CollTree);
                if pairs || (nvls && per_host == 1) {
                    continue;
                }
                for (count, in_place) in [(1, false), (101, true), (1000, false)] {
                    let order = Order::grid(hosts, per_host);
                    let schedule = schedule_on(&order, collective, algorithm, Protocol::Simple, count, in_place);
                    let what = format!("{collective} {algorithm} {hosts} hosts of {per_host}, {count} elements");
                    check_exact(&schedule, &what);
                }
            }
        }
    }
}

/// Runs a schedule and compares every element of every rank.
fn check_exact(schedule: &Schedule, what: &str) {
    let call = &schedule.call;
    let inputs: Vec<_> = (0..call.ranks).map(|r| input(r, call.input_len(Rank(r)))).collect();
    let outputs = run(schedule, &inputs, PATIENCE).unwrap_or_else(|e| panic!("{what}: {e}"));
    for rank in 0..call.ranks {
        if let Some(expected) = expected(call, rank, &inputs) {
            assert_eq!(outputs[rank as usize], expected, "{what}, rank {rank}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, max_shrink_iters: 50, failure_persistence: None, ..ProptestConfig::default() })]

    /// Goal: exact results on any hosts, and of the same schedule written as MSCCL XML and read back.
    #[test]
    fn results_are_exact_on_any_hosts(
        collective in prop::sample::select(Collective::ALL),
        pick in any::<prop::sample::Index>(),
        ranks in 2_u32..=16,
        per_host in 1_usize..=8,
        count in 0_u64..600,
        in_place in any::<bool>(),
    ) {
        let algorithm = *pick.get(valid_algorithms(collective));
        let hosts: Vec<Vec<u32>> =
            (0..ranks).collect::<Vec<_>>().chunks(per_host).map(<[u32]>::to_vec).collect();
        let order = Order::of_rings(vec![(0..ranks).collect()], hosts);
        let call = Call::of_size(collective, ranks, Default::default(), DataType::Float32);
        let call = Call { count, root: Rank(ranks / 3), in_place: in_place && collective.in_place(), ..call };
        prop_assume!(check_fits(&call, algorithm, &order).is_ok());
        let schedule = schedule_of(call.clone(), algorithm, Protocol::Simple, &order);
        let what = format!("{collective} {algorithm} {ranks} ranks, {per_host} a host, {count} elements, {}", call.in_place);
        check_exact(&schedule, &what);
        let switches = schedule.workers().any(|(.., w)| w.recv.iter().chain(&w.send).any(|c| c.ranks().is_none()));
        if collective != Collective::SendRecv && !switches {
            let small = one_loop(&call, &schedule.plan, &order).unwrap();
            let imported = Imported::parse(&export(&small, "ours").unwrap(), "ours.xml").unwrap();
            let call = Call { count: small.call.count * (1 + count % 5), ..small.call.clone() };
            let schedule = imported.schedule(call, &Limits::default()).unwrap();
            // PAT sends more chunks before it receives than MSCCL's FIFOs hold.
            if algorithm != Algorithm::Pat || verify(&schedule).is_ok() {
                check_exact(&schedule, &format!("imported {what}"));
            }
        }
    }
}

/// Goal: the textbook vectors of each collective over four ranks, by value.
#[test]
fn the_textbook_vectors_come_out() {
    let check = |collective, algorithm, inputs: [&[i64]; 4], outputs: [&[i64]; 4], count| {
        let schedule = schedule(collective, algorithm, Protocol::Simple, 4, count, false);
        let inputs: Vec<Vec<i64>> = inputs.iter().map(|i| i.to_vec()).collect();
        assert_eq!(run(&schedule, &inputs, PATIENCE).unwrap(), outputs.map(<[i64]>::to_vec), "{collective}");
    };
    for algorithm in [Algorithm::Ring, Algorithm::Tree, Algorithm::CollTree] {
        let sums: &[i64] = &[22, 26, 30];
        check(Collective::AllReduce, algorithm, [&[1, 2, 3], &[4, 5, 6], &[7, 8, 9], &[10, 11, 12]], [sums; 4], 3);
    }
    let all: &[i64] = &[1, 2, 3, 4, 5, 6, 7, 8];
    for algorithm in [Algorithm::Ring, Algorithm::Pat] {
        check(Collective::AllGather, algorithm, [&[1, 2], &[3, 4], &[5, 6], &[7, 8]], [all; 4], 2);
    }
    let rows: Vec<Vec<i64>> = (0..4).map(|r| (1..=8).map(|e| r * 8 + e).collect()).collect();
    let inputs = [rows[0].as_slice(), &rows[1], &rows[2], &rows[3]];
    for algorithm in [Algorithm::Ring, Algorithm::Pat] {
        check(Collective::ReduceScatter, algorithm, inputs, [&[52, 56], &[60, 64], &[68, 72], &[76, 80]], 2);
    }
    let root: &[i64] = &[1, 2, 3, 4];
    check(Collective::Broadcast, Algorithm::Ring, [&[0; 4], &[0; 4], root, &[0; 4]], [root; 4], 4);
}

/// Goal: a schedule that deadlocks ends in an error that names the peer, not in a hang.
#[test]
fn a_deadlock_ends_in_an_error_that_names_the_peer() {
    let mut schedule = schedule(Collective::AllReduce, Algorithm::Ring, Protocol::Simple, 4, 64, false);
    schedule.plan.fifo_slices = 1;
    let inputs: Vec<_> = (0..4).map(|r| input(r, 64)).collect();
    let error = run(&schedule, &inputs, Duration::from_millis(300)).unwrap_err();
    assert!(matches!(error, HostError::Timeout { what: "credit from", .. }), "{error}");
}

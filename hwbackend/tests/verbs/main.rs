//! Goal: schedules over RDMA verbs give exact results, and what breaks is named within a bounded time, with nothing left.
//! Method: one thread a rank, each with an executor of its own, over the RDMA devices of this host: those of the guest of
//! `tests/verbs/guest.sh`, which runs this. On a host that has none, each test says `skipped`.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

mod faults;
mod imported;
mod processes;
#[allow(dead_code)] // Other tests use more of it.
#[path = "../../../tests/common/random.rs"]
mod random;

use std::io::Write as _;
use std::net::TcpListener;
use std::time::Duration;

use collcast_hwbackend::check::parts;
use collcast_hwbackend::exec::{CallToRun, Effort, ExecError, Executor, Sample};
use collcast_hwbackend::flat::Flat;
use collcast_hwbackend::rendezvous::World;
use collcast_hwbackend::verbs::{Options, Verbs};
use collcast_sim::collective::{Algorithm, Collective, DataType, Launch, Protocol, ReduceOp};
use collcast_sim::ids::Rank;
use collcast_sim::nccl::{Limits, Plan};
use collcast_sim::schedule::{Call, Order, Schedule, valid_algorithms};
use collcast_sim::units::Bytes;
use imported::random_schedules;
use processes::{Process, Task, Work};

/// One batch or three of one operation: results are the point here, and times are not.
const EFFORT: Effort = Effort {
    warmup: 1,
    iterations: 2,
    batches: 3,
    budget: Duration::from_millis(1),
    patience: Duration::from_secs(10),
};

/// Whether this host has RDMA devices; where the guest says that it must, it must.
fn can_run() -> bool {
    match Verbs::find(&Options::default(), 0) {
        Ok(()) => true,
        Err(error) => {
            assert!(std::env::var_os("COLLCAST_VERBS").is_none(), "{error}");
            // Past what captures the output of tests that pass.
            let _ = writeln!(std::io::stderr(), "skipped: {error}");
            false
        }
    }
}

/// A port that is free.
fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The executor of a rank of a job on this host; ranks take the NICs in turn.
fn open(rank: u32, ranks: u32, qps: u32, port: u16) -> Verbs {
    let address = "127.0.0.1".to_owned();
    let world = World { rank, size: ranks, local: rank, address, port, launcher: "a test", job: 0 };
    Verbs::open(&world, &Options { qps, ..Options::default() }, Duration::from_secs(10)).unwrap()
}

/// What each rank of a job says, each a thread with its own executor.
fn job<T: Send>(ranks: u32, qps: u32, work: impl Fn(&mut Verbs, u32) -> T + Sync) -> Vec<T> {
    let port = port();
    let rank = |rank| work(&mut open(rank, ranks, qps, port), rank);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks).map(|r| scope.spawn(move || rank(r))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn run(verbs: &mut Verbs, schedule: &Schedule, effort: &Effort) -> Result<Sample, ExecError> {
    verbs.run(&CallToRun { call: &schedule.call, schedule: Some(schedule), launch: Launch::Processes }, effort)
}

/// Runs schedules one after another as a rank of them; every element of every output was compared.
fn check_rank(verbs: &mut Verbs, rank: u32, schedules: &[Schedule]) {
    for schedule in schedules {
        let call = &schedule.call;
        let elements = (0..call.ranks).flat_map(|rank| parts(call, Rank(rank))).map(|part| part.count).sum::<u64>();
        let sample = run(verbs, schedule, &EFFORT).unwrap_or_else(|e| panic!("rank {rank}, {call:?}: {e}"));
        assert_eq!(sample.checked, elements, "{call:?}");
    }
}

/// The same by threads, one a rank.
fn check_exact(ranks: u32, qps: u32, schedules: &[Schedule]) {
    job(ranks, qps, |verbs, rank| check_rank(verbs, rank, schedules));
}

/// A schedule in small chunks, so that FIFOs are filled several times.
fn small(call: &Call, algorithm: Algorithm, protocol: Protocol, order: &Order) -> Option<Schedule> {
    in_chunks(call, algorithm, protocol, order, 8)
}

/// The same in chunks of so many grains.
fn in_chunks(call: &Call, algorithm: Algorithm, protocol: Protocol, order: &Order, grains: u64) -> Option<Schedule> {
    let limits = Limits { channels: 2, exact_channels: true, ..Limits::default() };
    let mut plan = Plan::new(call, algorithm, protocol, &limits);
    (plan.chunk, plan.min_slice) = (plan.grain * grains, plan.grain);
    if algorithm == Algorithm::Direct {
        plan.per_channel = call.count.div_ceil(u64::from(plan.channels_per_peer)).max(1);
    }
    let schedule = Schedule::new(call.clone(), plan, order).ok()?;
    // What needs switches that combine is no schedule of NICs alone.
    Flat::new(&schedule).is_ok().then_some(schedule)
}

/// Goal: every collective by every algorithm is exact over 2, 3 and 4 ranks, of odd sizes and none, in place too, in
/// every type, with one and several queue pairs.
#[test]
fn every_algorithm_is_exact() {
    if !can_run() {
        return;
    }
    let types = [DataType::Float32, DataType::Int32, DataType::Float16, DataType::Bfloat16];
    let mut ran = 0;
    for ranks in [2, 3, 4] {
        let mut schedules = Vec::new();
        for &collective in Collective::ALL {
            for &algorithm in valid_algorithms(collective) {
                for (at, count) in [0, 1, 777].into_iter().enumerate() {
                    let dtype = types[(schedules.len() + at) % types.len()];
                    let mut call = Call::of_size(collective, ranks, Bytes(0), dtype);
                    call.count = count;
                    call.op = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min][at];
                    call.root = Rank(ranks - 1);
                    call.in_place = at == 2 && collective.in_place();
                    let protocol = [Protocol::Simple, Protocol::Ll][at % 2];
                    schedules.extend(small(&call, algorithm, protocol, &Order::grid(ranks, 1)));
                }
            }
        }
        assert!(schedules.len() > 30, "{}", schedules.len());
        ran += schedules.len();
        check_exact(ranks, if ranks == 3 { 3 } else { 1 }, &schedules);
    }
    println!("{ran} schedules were exact");
}

/// Goal: slices that go as lines of LL and larger ones take turns on a connection, many more than are under way at once,
/// over one queue pair and several.
#[test]
fn small_and_large_slices_take_turns() {
    let of = |collective: Collective, grains: u64| {
        let mut call = Call::of_size(collective, 2, Bytes(0), DataType::Float32);
        call.count = 4 * 997 + grains;
        in_chunks(&call, Algorithm::Ring, Protocol::Ll, &Order::grid(2, 1), grains).unwrap()
    };
    let all = |collective| (1..=9).map(move |grains| of(collective, grains));
    let schedules: Vec<Schedule> = all(Collective::Broadcast).chain(all(Collective::AllReduce)).collect();
    let flat: Vec<Flat> = schedules.iter().map(|schedule| Flat::new(schedule).unwrap()).collect();
    let bytes = || flat.iter().flat_map(|flat| &flat.lanes[0].records).map(|record| record.bytes);
    let small = bytes().filter(|&bytes| bytes <= 32).count();
    assert!(small > 300 && bytes().count() > small + 300, "{small} of {}", bytes().count());
    if can_run() {
        [1, 3].into_iter().for_each(|qps| check_exact(2, qps, &schedules));
    }
}

/// Random algorithms of each number of ranks.
const IMPORTED: usize = 20;

fn imported_of(ranks: u32) -> Vec<Schedule> {
    random_schedules(7 + u64::from(ranks), ranks, IMPORTED)
}

/// Goal: 60 random imported algorithms are exact between processes, one a rank.
#[test]
fn random_algorithms_are_exact() {
    // That they are proved needs no device.
    let proved: usize = [2, 3, 4].map(|ranks| imported_of(ranks).len()).into_iter().sum();
    assert_eq!(proved, 3 * IMPORTED);
    if !can_run() {
        return;
    }
    for ranks in [2, 3, 4] {
        let port = port();
        let task = |rank| Task { rank, ranks, qps: 1 + ranks % 2, port, work: Work::Imported };
        let all: Vec<Process> = (0..ranks).map(|rank| Process::start(&task(rank))).collect();
        for (rank, process) in all.into_iter().enumerate() {
            let (well, said) = process.end();
            assert!(well, "rank {rank} of {ranks}: {said}");
        }
    }
    println!("{proved} algorithms were exact");
}

/// Goal: a result that is not what the call asks for is noticed at every rank: elements are compared for real. So are
/// ranks that run different schedules.
#[test]
fn wrong_results_and_schedules_are_noticed() {
    if !can_run() {
        return;
    }
    let broadcast = |root| {
        let mut call = Call::of_size(Collective::Broadcast, 2, Bytes(0), DataType::Float32);
        (call.count, call.root) = (1000, Rank(root));
        small(&call, Algorithm::Ring, Protocol::Simple, &Order::grid(2, 1)).unwrap()
    };
    // The steps of one root, for a call with the other.
    let (mut wrong, other) = (broadcast(0), broadcast(1));
    wrong.call.root = Rank(1);
    let said = job(2, 1, |verbs, _| run(verbs, &wrong, &EFFORT).unwrap_err().to_string());
    assert!(said.iter().all(|said| said.contains("wrong result")), "{said:?}");
    let said =
        job(2, 1, |verbs, rank| run(verbs, if rank == 0 { &wrong } else { &other }, &EFFORT).unwrap_err().to_string());
    assert!(said.iter().all(|said| said.contains("start all with the same arguments")), "{said:?}");
}

/// Goal: a probe measures every pair and direction, each time in its batches.
#[test]
fn a_probe_measures_every_pair() {
    if !can_run() {
        return;
    }
    let rows = job(3, 1, |verbs, _| verbs.probe(true, 3, Duration::from_secs(10), &mut |_| ()).unwrap());
    let rows = &rows[0];
    for (src, dst) in [(0, 1), (1, 0), (0, 2), (2, 0)] {
        let times: Vec<_> = rows.iter().filter(|row| (row.src, row.dst) == (src, dst)).collect();
        // Three latencies of two sizes, post, completion, rate, two bandwidths, two relaxed ones, and two of both ways.
        assert_eq!(times.len(), 6 + 3 + 2 + 2 + if src == 0 { 2 } else { 0 }, "{src} to {dst}");
        assert!(
            times.iter().all(|row| row.times_us.len() == 3 && row.times_us.iter().all(|&us| us > 0.0)),
            "{times:?}"
        );
    }
    for row in rows {
        println!("{} {} {} {} {:?}", row.kind.name(), row.src, row.bytes, row.qps, row.times_us);
    }
}

//! Goal: schedules over RDMA verbs give exact results, and what breaks is named within a bounded time, with nothing left.
//! Method: one thread a rank, each with an executor of its own, over the RDMA devices of this host: those of the guest of
//! `tests/verbs/guest.sh`, which runs this. On a host that has none, each test says `skipped`.

#![cfg(feature = "verbs")]
#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

#[allow(dead_code)] // Other tests use more of it.
#[path = "../../tests/common/random.rs"]
mod random;

use std::fmt::Write as _;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use collcast_hwbackend::check::parts;
use collcast_hwbackend::exec::{CallToRun, Effort, ExecError, Executor, Sample};
use collcast_hwbackend::flat::Flat;
use collcast_hwbackend::rendezvous::World;
use collcast_hwbackend::verbs::{Options, Verbs};
use collcast_sim::collective::{Algorithm, Collective, DataType, Launch, Protocol, ReduceOp};
use collcast_sim::ids::Rank;
use collcast_sim::nccl::{Limits, Plan};
use collcast_sim::schedule::msccl::Imported;
use collcast_sim::schedule::verify::verify;
use collcast_sim::schedule::{Call, Order, Schedule, valid_algorithms};
use collcast_sim::units::Bytes;
use random::Random;

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
            println!("skipped: {error}");
            false
        }
    }
}

/// What each rank of a job says, each a thread with its own executor; ranks take the NICs in turn.
fn job<T: Send>(ranks: u32, qps: u32, work: impl Fn(&mut Verbs, u32) -> T + Sync) -> Vec<T> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let rank = |rank| {
        let address = "127.0.0.1".to_owned();
        let world = World { rank, size: ranks, local: rank, address, port, launcher: "a test" };
        let options = Options { qps, ..Options::default() };
        work(&mut Verbs::open(&world, &options, Duration::from_secs(10)).unwrap(), rank)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks).map(|r| scope.spawn(move || rank(r))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn run(verbs: &mut Verbs, schedule: &Schedule, effort: &Effort) -> Result<Sample, ExecError> {
    verbs.run(&CallToRun { call: &schedule.call, schedule: Some(schedule), launch: Launch::Processes }, effort)
}

/// Runs schedules of so many ranks, one after another; every element of every output was compared.
fn check_exact(ranks: u32, qps: u32, schedules: &[Schedule]) {
    job(ranks, qps, |verbs, rank| {
        for schedule in schedules {
            let call = &schedule.call;
            let elements = (0..ranks).flat_map(|rank| parts(call, Rank(rank))).map(|part| part.count).sum::<u64>();
            let sample = run(verbs, schedule, &EFFORT).unwrap_or_else(|e| panic!("rank {rank}, {call:?}: {e}"));
            assert_eq!(sample.checked, elements, "{call:?}");
        }
    });
}

/// A schedule in small chunks, so that FIFOs are filled several times.
fn small(call: &Call, algorithm: Algorithm, protocol: Protocol, order: &Order) -> Option<Schedule> {
    let limits = Limits { channels: 2, exact_channels: true, ..Limits::default() };
    let mut plan = Plan::new(call, algorithm, protocol, &limits);
    (plan.chunk, plan.min_slice) = (plan.grain * 8, plan.grain);
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
                    let pairs = matches!(collective, Collective::AllToAll | Collective::SendRecv);
                    call.in_place = at == 2 && !pairs;
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

/// A thread block of an algorithm: whom it sends to, whom it receives from, its channel, its steps.
type Block = (i64, i64, usize, Vec<String>);

/// A random algorithm over so many ranks: each chunk goes its own way, along random trees, on random channels.
fn random_algorithm(random: &mut Random, ranks: usize, reduce: bool) -> String {
    let mut below = |most: usize| (random.uniform() * most as f64) as usize;
    let chunks = ranks * (1 + below(2));
    let channels = 1 + below(3);
    // By rank.
    let mut blocks: Vec<Vec<Block>> = vec![Vec::new(); ranks];
    // The last step that touched a chunk at a rank.
    let mut last = vec![vec![(-1_i64, -1_i64); chunks]; ranks];
    let buffer = if reduce { 'i' } else { 'o' };
    let mut step = |rank: usize, ends: (i64, i64), channel: usize, kind: &str, chunk: usize| {
        let found = blocks[rank].iter().position(|b| (b.0, b.1, b.2) == (ends.0, ends.1, channel));
        let block = found.unwrap_or_else(|| {
            blocks[rank].push((ends.0, ends.1, channel, Vec::new()));
            blocks[rank].len() - 1
        });
        let steps = &mut blocks[rank][block].3;
        let number = steps.len();
        let (from, at) = if kind == "cpy" { ('i', chunk % (chunks / ranks)) } else { (buffer, chunk) };
        let depends = last[rank][chunk];
        let depends = if depends.0 == block as i64 { (-1, -1) } else { depends };
        steps.push(format!(
            r#"<step s="{number}" type="{kind}" srcbuf="{from}" srcoff="{at}" dstbuf="{buffer}" dstoff="{chunk}" cnt="1" depid="{}" deps="{}" hasdep="1"/>"#,
            depends.0, depends.1
        ));
        last[rank][chunk] = (block as i64, number as i64);
    };
    for chunk in 0..chunks {
        let root = chunk / (chunks / ranks);
        if !reduce {
            step(root, (-1, -1), 0, "cpy", chunk);
        }
        let channel = below(channels);
        // A random tree: each rank hangs on one that is in it already.
        let mut order: Vec<usize> = (0..ranks).filter(|&r| r != root).collect();
        (1..order.len()).rev().for_each(|i| order.swap(i, below(i + 1)));
        let mut inside = vec![root];
        let mut edges = Vec::new();
        for rank in order {
            edges.push((inside[below(inside.len())], rank));
            inside.push(rank);
        }
        if reduce {
            for &(parent, child) in edges.iter().rev() {
                step(child, (parent as i64, -1), channel, "s", chunk);
                step(parent, (-1, child as i64), channel, "rrc", chunk);
            }
        }
        for &(parent, child) in &edges {
            step(parent, (child as i64, -1), channel, "s", chunk);
            step(child, (-1, parent as i64), channel, "r", chunk);
        }
    }
    let (name, input) = if reduce { ("allreduce", chunks) } else { ("allgather", chunks / ranks) };
    let mut text = format!(
        r#"<algo name="random" proto="Simple" nchannels="{channels}" ngpus="{ranks}" coll="{name}" nchunksperloop="{chunks}" inplace="{}">"#,
        u8::from(reduce)
    );
    for (rank, blocks) in blocks.iter().enumerate() {
        let output = if reduce { 0 } else { chunks };
        write!(text, r#"<gpu id="{rank}" i_chunks="{input}" o_chunks="{output}" s_chunks="0">"#).unwrap();
        for (id, (send, recv, channel, steps)) in blocks.iter().enumerate() {
            let steps = steps.concat();
            write!(text, r#"<tb id="{id}" send="{send}" recv="{recv}" chan="{channel}">{steps}</tb>"#).unwrap();
        }
        text += "</gpu>";
    }
    text + "</algo>"
}

/// Random algorithms of so many ranks, proved.
fn random_schedules(seed: u64, ranks: u32, count: usize) -> Vec<Schedule> {
    let mut random = Random::new(seed);
    let schedule = |at: usize| {
        let reduce = at % 2 == 1;
        let text = random_algorithm(&mut random, ranks as usize, reduce);
        let imported = Imported::parse(&text, "random.xml").unwrap_or_else(|e| panic!("{e}\n{text}"));
        let collective = if reduce { Collective::AllReduce } else { Collective::AllGather };
        let mut call = Call::of_size(collective, ranks, Bytes(0), DataType::Float32);
        call.count = u64::from(2 * ranks) * (1 + (random.uniform() * 3000.0) as u64);
        call.in_place = reduce;
        let schedule = imported.schedule(call, &Limits::default()).unwrap();
        verify(&schedule).unwrap_or_else(|e| panic!("{e}\n{text}"));
        schedule
    };
    (0..count).map(schedule).collect()
}

/// Goal: 60 random imported algorithms are exact.
#[test]
fn random_algorithms_are_exact() {
    // That they are proved needs no device.
    let all: Vec<_> = [2, 3, 4].map(|ranks| (ranks, random_schedules(7 + u64::from(ranks), ranks, 20))).into();
    if !can_run() {
        return;
    }
    for (ranks, schedules) in &all {
        check_exact(*ranks, 1 + ranks % 2, schedules);
    }
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

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Kilobytes that are pinned for NICs.
fn pinned() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Goal: whatever breaks at whatever time ends in an error that names the peer, at every rank, in bounded time, and
/// leaves no descriptor and no registered memory; a run after it is exact.
/// Method: at random a queue pair is put into error at a random time of a random rank, or a rank leaves.
#[test]
fn faults_end_in_errors_that_name_the_peer() {
    if !can_run() {
        return;
    }
    let count = std::env::var("COLLCAST_VERBS_FAULTS").map_or(12, |text| text.parse().unwrap());
    let mut random = Random::new(31);
    let effort = Effort { patience: Duration::from_secs(1), ..EFFORT };
    let quiet = (descriptors(), pinned());
    for fault in 0..count {
        let ranks = 2 + (random.uniform() * 3.0) as u32;
        let victim = (random.uniform() * f64::from(ranks)) as u32;
        let leaves = random.uniform() < 0.3;
        let after = (random.uniform() * 4.0) as u32;
        let qps = 1 + (random.uniform() * 2.0) as u32;
        let schedule = &random_schedules(100 + fault, ranks, 2)[(fault % 2) as usize];
        let begin = Instant::now();
        let said = job(ranks, qps, |verbs, rank| {
            if rank == victim && leaves {
                return None;
            }
            verbs.fail_after((rank == victim).then_some(after));
            Some(run(verbs, schedule, &effort).unwrap_err().to_string())
        });
        let time = begin.elapsed();
        // Once the victim's patience is over, then everyone's; meeting and connecting come first.
        assert!(time < Duration::from_secs(20), "fault {fault}: {time:?}");
        for said in said.iter().flatten() {
            let named = if leaves {
                said.contains(&format!("rank {victim} is gone")) || said.contains("rank 0 is gone")
            } else {
                said.contains("the connection with rank") && said.contains("rxe")
            };
            assert!(named, "fault {fault}, victim {victim} of {ranks}, leaves: {leaves}: {said:?}");
        }
        if fault % 10 == 0 {
            check_exact(ranks, qps, std::slice::from_ref(schedule));
        }
        assert_eq!((descriptors(), pinned()), quiet, "fault {fault}");
    }
    println!("{count} faults ended in errors");
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
        // Three latencies of two sizes, post, completion, rate, two bandwidths, and two of both ways.
        assert_eq!(times.len(), 6 + 3 + 2 + if src == 0 { 2 } else { 0 }, "{src} to {dst}");
        assert!(
            times.iter().all(|row| row.times_us.len() == 3 && row.times_us.iter().all(|&us| us > 0.0)),
            "{times:?}"
        );
    }
    for row in rows {
        println!("{} {} {} {} {:?}", row.kind.name(), row.src, row.bytes, row.qps, row.times_us);
    }
}

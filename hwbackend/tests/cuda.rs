//! Goal: the CUDA executor runs any verified schedule exactly, and ends a broken one in an
//! error that names who waited for whom. Without a device: `skipped`.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::common::{Dice, random_all_reduce};
use collcast_hwbackend::cuda::{Cuda, gpus};
use collcast_hwbackend::exec::{CallToRun, Effort, ExecError, Executor};
use collcast_hwbackend::host::Host;
use collcast_sim::collective::{Collective, DataType, Launch, Protocol};
use collcast_sim::ids::Rank;
use collcast_sim::nccl::{Limits, Plan};
use collcast_sim::schedule::msccl::{Imported, export, one_loop};
use collcast_sim::schedule::verify::verify;
use collcast_sim::schedule::{Call, Order, Schedule, valid_algorithms, valid_protocols};
use collcast_sim::units::Bytes;

const PROTOCOLS: [Protocol; 3] = [Protocol::Ll, Protocol::Ll128, Protocol::Simple];

/// The GPUs, for one test at a time: kernels of two would wait for each other's places, and the
/// watchdog would call that a fault.
fn gpus_alone() -> (MutexGuard<'static, ()>, Option<Cuda>) {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // Past what captures the output of tests that pass.
    let cuda = Cuda::open().map_err(|error| writeln!(std::io::stderr(), "skipped: {error}")).ok();
    (guard, cuda)
}

fn quick() -> Effort {
    Effort { warmup: 1, iterations: 3, batches: 3, budget: Duration::from_millis(5), patience: Duration::from_secs(1) }
}

/// Goal: every algorithm that needs no switch, with each of its protocols, on one host and on several
/// played by this one, at odd and even sizes, in place and out; and each as an imported schedule, which
/// has scratch memory, tokens and more lanes than a block.
#[test]
fn every_algorithm_is_exact_on_gpus() {
    let (_guard, Some(mut cuda)) = gpus_alone() else {
        return;
    };
    // Those of 2 GPUs share them where there are no 4.
    let (ran, imported) = every_algorithm(&mut cuda, &[(1, 4), (2, 2), (1, 3)], 300_001);
    println!("{ran} schedules and {imported} imported ones exact");
}

/// Goal: the same on the host, with what switches combine on top.
#[test]
fn every_algorithm_is_exact_on_the_host() {
    let (ran, imported) = every_algorithm(&mut Host, &[(2, 2), (1, 3)], 1_001);
    println!("{ran} schedules and {imported} imported ones exact");
}

/// With up to `largest` elements: numbers of schedules that ran, and of imported ones.
fn every_algorithm(executor: &mut dyn Executor, shapes: &[(u32, u32)], largest: u64) -> (usize, usize) {
    let (mut ran, mut imported, mut refused) = (0, 0, BTreeSet::new());
    for &(hosts, per_host) in shapes {
        let (order, ranks) = (Order::grid(hosts, per_host), hosts * per_host);
        // All sizes in the first shape.
        let sizes: &[(u64, bool)] =
            if ran == 0 { &[(12_345, true), (1, false), (largest, false)] } else { &[(12_345, true)] };
        for &collective in Collective::ALL {
            for &algorithm in valid_algorithms(collective) {
                for &protocol in valid_protocols(algorithm) {
                    for &(count, in_place) in sizes {
                        let mut call = Call::of_size(collective, ranks, Bytes(0), DataType::Float32);
                        (call.count, call.in_place, call.root) =
                            (count, in_place && collective.in_place(), Rank(ranks - 1));
                        let limits = Limits {
                            channels: 2,
                            p2p_channels: (4, 2),
                            hosts,
                            ranks_per_host: per_host,
                            ..Limits::default()
                        };
                        let plan = Plan::new(&call, algorithm, protocol, &limits);
                        let Ok(schedule) = Schedule::new(call.clone(), plan, &order) else { continue };
                        let mut run = |schedule: &Schedule, what: &str| {
                            let case = CallToRun {
                                call: &schedule.call,
                                schedule: Some(schedule),
                                launch: Launch::SingleThread,
                            };
                            match executor.run(&case, &quick()) {
                                Ok(_) => true,
                                Err(ExecError::Refused { what, .. }) if what.contains("a group at an end") => {
                                    refused.insert(algorithm.name());
                                    false
                                }
                                Err(e) => {
                                    panic!("{collective} {algorithm}/{protocol} {hosts}x{per_host}, {count}{what}: {e}")
                                }
                            }
                        };
                        if !run(&schedule, "") {
                            continue;
                        }
                        ran += 1;
                        if collective != Collective::SendRecv && count > 1 && protocol != Protocol::Ll128 {
                            let small = one_loop(&call, &plan, &order).unwrap();
                            let Ok(text) = export(&small, "ours") else { continue }; // Switches have no XML.
                            let parsed = Imported::parse(&text, "ours.xml").unwrap();
                            let call = Call { count: small.call.count * 3, ..small.call.clone() };
                            let schedule = parsed.schedule(call, &Limits::default()).unwrap();
                            imported += usize::from(run(&schedule, " imported"));
                        }
                    }
                }
            }
        }
    }
    assert!(ran > 40 && imported > 20 && refused.iter().all(|a| a.contains("nvls") || a.contains("collnet")));
    (ran, imported)
}

/// Goal: 210 random schedules, each proved first, are exact on the GPUs of this machine; where
/// there are fewer than ranks, ranks share them.
#[test]
fn random_schedules_are_exact_on_gpus() {
    let (_guard, Some(mut cuda)) = gpus_alone() else {
        return;
    };
    let most = gpus().unwrap().max(4);
    // Each case is compiled anew, which takes most of the time; fewer for a quick look.
    let seeds = std::env::var("COLLCAST_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(70);
    for seed in 1..=seeds {
        for protocol in PROTOCOLS {
            let mut dice = Dice(seed * 0x9e37_79b9);
            let ranks = 2 + dice.below(u64::from(most) - 1) as u32;
            let schedule = random_all_reduce(&mut dice, ranks, protocol, false);
            verify(&schedule).unwrap();
            let case = CallToRun { call: &schedule.call, schedule: Some(&schedule), launch: Launch::Threads };
            let sample = cuda.run(&case, &quick()).unwrap_or_else(|e| panic!("seed {seed}, {protocol}: {e}"));
            assert_eq!(sample.checked, u64::from(ranks) * schedule.call.count);
        }
    }
}

/// Goal: a rank that does not take part is named, and the GPUs work on.
#[test]
fn a_broken_schedule_ends_in_an_error_and_leaves_gpus_usable() {
    let (_guard, Some(mut cuda)) = gpus_alone() else {
        return;
    };
    for (seed, protocol) in (11..).zip(PROTOCOLS) {
        for broken in [true, false] {
            let schedule = random_all_reduce(&mut Dice(seed), 4, protocol, broken);
            assert_eq!(verify(&schedule).is_err(), broken);
            let case = CallToRun { call: &schedule.call, schedule: Some(&schedule), launch: Launch::SingleThread };
            let result = cuda.run(&case, &quick());
            match result {
                Err(ExecError::Timeout { rank, peer, what, .. }) if broken => {
                    assert!(rank != peer || what == "another lane of", "{what}");
                }
                Ok(_) if !broken => {}
                other => panic!("{protocol}, broken {broken}: {other:?}"),
            }
        }
    }
}

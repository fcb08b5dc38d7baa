//! Goal: the CUDA executor runs any verified schedule exactly, and ends a broken one in an
//! error that names who waited for whom. Without a device: `skipped`.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

mod common;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use collcast_hwbackend::cuda::{Cuda, gpus};
use collcast_hwbackend::exec::{Case, Effort, ExecError, Executor};
use collcast_sim::collective::{Launch, Protocol};
use collcast_sim::schedule::verify::verify;
use common::{Dice, random_all_reduce};

const PROTOCOLS: [Protocol; 3] = [Protocol::Ll, Protocol::Ll128, Protocol::Simple];

/// The GPUs, for one test at a time: kernels of two would wait for each other's places, and the
/// watchdog would call that a fault.
fn gpus_alone() -> (MutexGuard<'static, ()>, Option<Cuda>) {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cuda = Cuda::open().map_err(|error| println!("skipped: {error}")).ok();
    (guard, cuda)
}

fn quick() -> Effort {
    Effort { warmup: 1, iterations: 3, batches: 3, budget: Duration::from_millis(5), patience: Duration::from_secs(1) }
}

/// Goal: 210 random schedules, each proved first, are exact on the GPUs of this machine; where
/// there are fewer than ranks, ranks share them.
#[test]
fn random_schedules_are_exact_on_gpus() {
    let (_guard, Some(mut cuda)) = gpus_alone() else {
        return;
    };
    let most = gpus().unwrap().max(4);
    for seed in 1..=70 {
        for protocol in PROTOCOLS {
            let mut dice = Dice(seed * 0x9e37_79b9);
            let ranks = 2 + dice.below(u64::from(most) - 1) as u32;
            let schedule = random_all_reduce(&mut dice, ranks, protocol, false);
            verify(&schedule).unwrap();
            let case = Case { call: &schedule.call, schedule: Some(&schedule), launch: Launch::Threads };
            let sample = cuda.run(&case, &quick()).unwrap_or_else(|e| panic!("seed {seed}, {protocol}: {e}"));
            assert_eq!(sample.checked, u64::from(ranks) * schedule.call.count);
        }
    }
}

/// Goal: a rank that does not take part is named within five seconds, and the GPUs work on.
#[test]
fn a_broken_schedule_ends_in_an_error_and_leaves_gpus_usable() {
    let (_guard, Some(mut cuda)) = gpus_alone() else {
        return;
    };
    for (seed, protocol) in (11..).zip(PROTOCOLS) {
        for broken in [true, false] {
            let schedule = random_all_reduce(&mut Dice(seed), 4, protocol, broken);
            assert_eq!(verify(&schedule).is_err(), broken);
            let case = Case { call: &schedule.call, schedule: Some(&schedule), launch: Launch::SingleThread };
            let begin = Instant::now();
            let result = cuda.run(&case, &quick());
            assert!(begin.elapsed() < Duration::from_secs(5), "{protocol}: {:?}", begin.elapsed());
            match result {
                Err(ExecError::Timeout { rank, peer, .. }) if broken => assert_ne!(rank, peer),
                Ok(_) if !broken => {}
                other => panic!("{protocol}, broken {broken}: {other:?}"),
            }
        }
    }
}

//! Goal: real processes find each other by a launcher's environment and exchange messages.
//! Method: this test starts itself again, once per rank.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use collcast_hwbackend::exec::{Case, Effort, Executor};
use collcast_hwbackend::host::Host;
use collcast_hwbackend::rendezvous::{Group, World};
use collcast_sim::collective::{Algorithm, Collective, DataType, Launch, Protocol};
use collcast_sim::schedule::plan::{Limits, Plan};
use collcast_sim::schedule::{Call, Order, Schedule};
use collcast_sim::units::Bytes;

const PATIENCE: Duration = Duration::from_secs(60);

/// One rank: joins, runs a checked call on the host backend, exchanges what it found.
#[test]
fn one_rank() {
    let Some(world) = World::from_env(&|name| std::env::var(name).ok()).unwrap() else {
        return; // Started by cargo, not by the test below.
    };
    let mut group = Group::join(&world, PATIENCE).unwrap();
    let id = group.broadcast(if world.rank == 0 { b"the id".to_vec() } else { vec![] }).unwrap();
    assert_eq!(id, b"the id");

    let call = Call::of_size(Collective::AllReduce, 4, Bytes(4096), DataType::Float32);
    let plan = Plan::new(&call, Algorithm::Ring, Protocol::Simple, &Limits { channels: 2, ..Limits::default() });
    let schedule = Schedule::new(call.clone(), plan, &Order::one_host(4)).unwrap();
    let effort = Effort { batches: 3, budget: Duration::from_millis(10), ..Effort::default() };
    let sample =
        Host.run(&Case { call: &call, schedule: Some(&schedule), launch: Launch::Processes }, &effort).unwrap();
    assert_eq!((sample.times_us.len(), sample.checked), (3, 4 * 1024));

    group.barrier().unwrap();
    let said = group.gather(format!("rank {}: {} exact", world.rank, sample.checked).as_bytes()).unwrap();
    let expected: Vec<Vec<u8>> = (0..world.size).map(|r| format!("rank {r}: 4096 exact").into_bytes()).collect();
    assert_eq!(said, (world.rank == 0).then_some(expected));
}

#[test]
fn processes_find_each_other() {
    for size in [1_u16, 2, 4] {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let processes: Vec<_> = (0..size)
            .map(|rank| {
                let mut command = Command::new(std::env::current_exe().unwrap());
                command.args(["--exact", "one_rank"]).stdout(Stdio::null());
                command.envs([("RANK", rank.to_string()), ("LOCAL_RANK", rank.to_string())]);
                command.envs([("WORLD_SIZE", size.to_string()), ("COLLCAST_PORT", port.to_string())]);
                command.env("MASTER_ADDR", "127.0.0.1").spawn().unwrap()
            })
            .collect();
        for (rank, mut process) in processes.into_iter().enumerate() {
            assert!(process.wait().unwrap().success(), "rank {rank} of {size}");
        }
    }
}

//! Goal: real processes find each other by a launcher's environment and exchange messages.
//! Method: this test starts itself again, once per rank.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use collcast_hwbackend::exec::{CallToRun, Effort, Executor};
use collcast_hwbackend::host::Host;
use collcast_hwbackend::rendezvous::{Group, World};
use collcast_sim::collective::{Algorithm, Collective, DataType, Launch, Protocol};
use collcast_sim::nccl::{Limits, Plan};
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
        Host.run(&CallToRun { call: &call, schedule: Some(&schedule), launch: Launch::Processes }, &effort).unwrap();
    assert_eq!((sample.times_us.len(), sample.checked), (3, 4 * 1024));

    group.barrier().unwrap();
    let said = group.gather(format!("rank {}: {} exact", world.rank, sample.checked).as_bytes()).unwrap();
    let expected: Vec<Vec<u8>> = (0..world.size).map(|r| format!("rank {r}: 4096 exact").into_bytes()).collect();
    assert_eq!(said, (world.rank == 0).then_some(expected));
}

/// The environment of a launcher: names of rank, size and local rank, and what else it sets.
type Launcher = ([&'static str; 3], &'static [(&'static str, &'static str)]);

/// Goal: 1, 2 and 4 processes find each other under each launcher's environment.
#[test]
fn processes_find_each_other() {
    let torchrun: Launcher = (["RANK", "WORLD_SIZE", "LOCAL_RANK"], &[("MASTER_ADDR", "127.0.0.1")]);
    let mpirun: Launcher = (
        ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"],
        &[("MASTER_ADDR", "localhost")],
    );
    let srun: Launcher = (["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"], &[("SLURM_STEP_NODELIST", "localhost")]);
    let mpiexec: Launcher = (["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"], &[("MPI_LOCALNRANKS", "2")]);
    for (launcher, size) in
        [(torchrun, 1_u16), (torchrun, 2), (torchrun, 4), (mpirun, 2), (mpirun, 4), (srun, 2), (srun, 4), (mpiexec, 2)]
    {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let processes: Vec<_> = (0..size)
            .map(|rank| {
                let mut command = Command::new(std::env::current_exe().unwrap());
                command.args(["--exact", "one_rank"]).stdout(Stdio::null());
                let ([rank_name, size_name, local_name], others) = launcher;
                let rank = rank.to_string();
                command.envs([(rank_name, &rank), (size_name, &size.to_string()), (local_name, &rank)]);
                command.envs(others.iter().copied()).env("COLLCAST_PORT", port.to_string()).spawn().unwrap()
            })
            .collect();
        for (rank, mut process) in processes.into_iter().enumerate() {
            assert!(process.wait().unwrap().success(), "rank {rank} of {size} under {launcher:?}");
        }
    }
}

/// Goal: those who are none of us hold nobody up: connections that say nothing, or something else, and a process of another
/// job. A name that resolves to several addresses is reached by IPv4, and by IPv6 where there is any.
#[test]
fn strangers_are_sent_away() {
    for address in ["127.0.0.1", "0.0.0.0", "::1"] {
        let Ok(listener) = TcpListener::bind((address, 0)) else { continue }; // There is no IPv6.
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        // Rank 0 is told another name: it listens on all addresses, but on the loopback's.
        let at = |rank, job| {
            let heard = if rank == 0 && address == "0.0.0.0" { "a-host" } else { address };
            World { rank, size: 2, local: rank, address: heard.to_owned(), port, launcher: "a test", job }
        };
        let zero = at(0, 7);
        let zero = std::thread::spawn(move || Group::join(&zero, PATIENCE).map(|mut group| group.barrier()));
        let stranger = || loop {
            match TcpStream::connect((address, port)) {
                Ok(stream) => break stream,
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        // Each is waited for 2 s: one after the other they would outlast the patience of the ranks.
        let silent: Vec<_> = (0..60).map(|_| stranger()).collect();
        stranger().write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut other = Group::join(&at(1, 8), PATIENCE).unwrap();
        assert!(other.barrier().unwrap_err().to_string().contains("rank 0 is gone"));
        let mut one = Group::join(&at(1, 7), PATIENCE).unwrap();
        one.barrier().unwrap();
        zero.join().unwrap().unwrap().unwrap();
        drop(silent);
    }
}

/// Goal: the wait for others ends in time also while connections keep coming.
#[test]
fn the_wait_ends_in_time_whoever_calls() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = "127.0.0.1".to_owned();
    let world = World { rank: 0, size: 2, local: 0, address, port, launcher: "a test", job: 0 };
    let zero = std::thread::spawn(move || Group::join(&world, Duration::from_millis(500)));
    let mut silent = Vec::new();
    // One each 20 ms, for 16 times as long as it waits.
    for _ in 0..400 {
        if zero.is_finished() {
            break;
        }
        silent.extend(TcpStream::connect(("127.0.0.1", port)));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(zero.is_finished(), "it waits as long as there are calls");
    assert!(zero.join().unwrap().unwrap_err().to_string().contains("rank 1 of 2"));
}

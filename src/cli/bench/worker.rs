//! Runs NCCL in processes of their own: it reads its settings once, from the environment.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use collcast_hwbackend::exec::Effort;
use collcast_hwbackend::nccl::job::{Answer, Job, environment};
use collcast_hwbackend::rendezvous::World;
use collcast_sim::collective::Launch;
use collcast_sim::schedule::Call;

use super::{Measured, Planned, Row, describe, progress};
use collcast::Error as CliError;

/// The command that [`measure`] starts; hidden from help.
pub(crate) const COMMAND: &str = "bench-worker";

/// Does the job on standard input.
pub(crate) fn run() -> Result<ExitCode, CliError> {
    let mut text = String::new();
    let read = std::io::stdin().read_to_string(&mut text);
    read.map_err(|source| CliError::File { what: "read", path: "stdin".into(), source })?;
    let job: Job = serde_json::from_str(&text).map_err(|e| {
        CliError::usage(format!("this is not a job: {e}"), "use `collcast bench`, which starts this command")
    })?;
    match job.work(&mut std::io::stdout()) {
        Ok(true) => Ok(ExitCode::SUCCESS),
        Ok(false) => Ok(ExitCode::FAILURE),
        Err(_) => Err(CliError::BrokenPipe),
    }
}

/// Measures all points; those with the same forced settings share their processes.
pub(super) fn measure(
    planned: &[Planned],
    launch: Launch,
    effort: &Effort,
    told: &[(String, String)],
    world: Option<&World>,
    stop: &AtomicBool,
) -> Measured {
    let mut groups: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (index, plan) in planned.iter().enumerate() {
        groups.entry((plan.algorithm, plan.protocol, plan.channels)).or_default().push(index);
    }
    let mut measured = Measured::default();
    let bar = progress(planned.len());
    for ((algorithm, protocol, channels), indices) in groups {
        let calls: Vec<&Call> = indices.iter().map(|&i| &planned[i].point.call).collect();
        let job = Job::new(&calls, launch, effort);
        let forced = environment(algorithm, protocol, channels);
        let forced = forced.into_iter().map(|(name, value)| (name.to_owned(), value));
        let settings: Vec<(String, String)> = told.iter().cloned().chain(forced).collect();
        let processes = match (launch, world) {
            (Launch::Processes, None) => calls.first().map_or(1, |call| call.ranks),
            _ => 1,
        };
        let mut waiting = indices.iter();
        let done =
            processes_of(&job, &settings, (processes, world.map_or(0, |w| w.rank)), stop, &mut |answer| match answer {
                Answer::Facts(facts) => measured.facts = facts,
                Answer::Sample(sample) => {
                    if let Some(&planned) = waiting.next() {
                        measured.rows.push(Row { planned, sample, schedule: None });
                        bar.inc(1);
                    }
                }
                Answer::Error { .. } => {}
            });
        let next = waiting.next().map_or_else(String::new, |&i| describe(&planned[i]));
        match done {
            _ if stop.load(Ordering::Relaxed) => {
                measured.interrupted = true;
                break;
            }
            Ok(()) if next.is_empty() || world.is_some_and(|w| w.rank != 0) => {}
            Ok(()) => {
                measured.error = Some(CliError::Exec {
                    code: 1,
                    message: format!("{next}: NCCL's process ended without an answer"),
                    hint: Some("run again with NCCL_DEBUG=WARN".to_owned()),
                });
                break;
            }
            Err(error) => {
                measured.error = Some(error.at(&next));
                break;
            }
        }
    }
    bar.finish_and_clear();
    measured.rows.sort_by_key(|row| row.planned);
    measured
}

/// Starts the processes of a job, passes on the answers of the first, and ends them all.
fn processes_of(
    job: &Job,
    settings: &[(String, String)],
    (count, first): (u32, u32),
    stop: &AtomicBool,
    answer: &mut dyn FnMut(Answer),
) -> Result<(), CliError> {
    let file = |what, path: &std::path::Path| {
        let path = path.to_owned();
        move |source| CliError::File { what, path, source }
    };
    let program = std::env::current_exe().map_err(file("find", "this program".as_ref()))?;
    // Free now; should another program take it before rank 0 does, the job ends in an error.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).map(|a| a.port());
    let port = port.map_err(file("find a free port on", "127.0.0.1".as_ref()))?;
    let mut children = Children(Vec::new());
    let (send, receive) = mpsc::channel();
    for rank in 0..count {
        let mut command = Command::new(&program);
        let settings = settings.iter().map(|(name, value)| (name, of_rank(value, first + rank)));
        command.arg(COMMAND).envs(settings).stdin(Stdio::piped()).stdout(Stdio::piped());
        if count > 1 {
            command.envs([("RANK", rank.to_string()), ("LOCAL_RANK", rank.to_string())]);
            command.envs([("WORLD_SIZE", count.to_string()), ("COLLCAST_PORT", port.to_string())]);
            command.env("MASTER_ADDR", "127.0.0.1");
        }
        let mut child = command.spawn().map_err(file("start", &program))?;
        if let Some(mut input) = child.stdin.take() {
            // A child that is gone already says why by its end.
            let _ = serde_json::to_writer(&mut input, job).map(|()| input.flush());
        }
        if let Some(output) = child.stdout.take() {
            let send = send.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    match Answer::parse(&line) {
                        Some(answer) => drop(send.send((rank, answer))),
                        None => say!("{line}"), // NCCL's own words.
                    }
                }
            });
        }
        children.0.push(child);
    }
    drop(send);
    loop {
        match receive.recv_timeout(Duration::from_millis(200)) {
            Ok((_, Answer::Error { code, message, hint })) => return Err(CliError::Exec { code, message, hint }),
            Ok((0, words)) => answer(words),
            Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(()),
            Ok(_) | Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
    }
}

/// The value of a variable for one rank.
fn of_rank(value: &str, rank: u32) -> String {
    value.replace("{rank}", &rank.to_string())
}

/// Starts this command again with what NCCL reads from its environment, once, before it starts.
pub(super) fn with_environment(args: &super::Args) -> Result<ExitCode, CliError> {
    let file = |source| CliError::File { what: "start", path: "this program".into(), source };
    let settings = super::environment(args)?;
    let mut command = Command::new(std::env::current_exe().map_err(file)?);
    command.args(std::env::args_os().skip(1)).envs(settings.iter().map(|(name, value)| (name, of_rank(value, 0))));
    // Ctrl-C reaches both; the other keeps its rows and says how it ended.
    let _ = ctrlc::set_handler(|| {});
    let status = command.status().map_err(file)?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Processes that end when their owner is done with them.
struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // One that has ended by itself has nothing left to end.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

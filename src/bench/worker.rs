//! Runs NCCL in processes of their own: it reads its settings once, from the environment.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use collcast_hwbackend::nccl::job::{Answer, Job, environment, longest};
use collcast_sim::collective::Launch;
use collcast_sim::schedule::Call;

use super::outcome::{MeasuredCall, Outcome};
use super::request::Request;
use super::sets::Visible;
use crate::error::Error;
use crate::watch::Watch;

/// The argument with which [`super::bench`] starts a program that is to call [`work`].
pub const COMMAND: &str = "bench-worker";

/// The variable by which a process that this program starts knows who it works for.
pub const PARENT: &str = "COLLCAST_PARENT";

/// Most processes that are started on one host: each has the machine's model and its FIFOs in memory.
const MOST: u32 = 256;

/// Refuses more processes than one host is given.
///
/// # Errors
/// More than 256.
pub fn not_too_many(processes: u32) -> Result<(), Error> {
    if processes <= MOST {
        return Ok(());
    }
    Err(Error::usage(
        format!("{processes} processes are more than are started on one host ({MOST})"),
        "take fewer --nodes, --gpus or --ranks, or start the command under torchrun, mpirun or srun",
    ))
}

/// How long answers of a process that has ended may still be on their way.
const GRACE: Duration = Duration::from_secs(2);

/// Does the job that `input` holds, with NCCL's settings in the environment of this process, and answers line by line:
/// the other end of [`super::bench`] with [`super::Backend::Nccl`]. Whether all went well; what did not is in the answer.
///
/// # Errors
/// No job, or nobody to answer to.
pub fn work(input: &mut dyn Read, output: &mut dyn Write) -> Result<bool, Error> {
    let mut text = String::new();
    let read = input.read_to_string(&mut text);
    read.map_err(|source| Error::File { what: "read", path: "stdin".into(), source })?;
    let job: Job = serde_json::from_str(&text).map_err(|e| {
        Error::usage(format!("this is not a job: {e}"), "use `collcast bench`, which starts this command")
    })?;
    job.work(output).map_err(|_| Error::BrokenPipe)
}

/// Measures all calls; those with the same forced settings on the same GPUs share their processes, which see these
/// alone.
pub(super) fn measure(request: &Request, visible: Option<&Visible>, outcome: &mut Outcome) {
    let (planned, launch) = (&outcome.planned, outcome.launch);
    let mut groups: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (index, plan) in planned.iter().enumerate() {
        groups.entry((&plan.set, plan.algorithm, plan.protocol, plan.channels)).or_default().push(index);
    }
    let (world, watch) = (request.world.as_ref(), &request.watch);
    let first = world.map_or(0, |w| w.rank);
    let parts = watch.parts(planned.len());
    outcome.interrupted = watch.stopped();
    for ((set, algorithm, protocol, channels), indices) in groups {
        let calls: Vec<&Call> = indices.iter().map(|&i| &planned[i].query.call).collect();
        let job = Job::new(&calls, launch, &request.effort);
        let forced = environment(algorithm, protocol, channels);
        let forced = forced.into_iter().map(|(name, value)| (name.to_owned(), value));
        let shown = visible.zip(set.as_ref()).map(|(visible, set)| visible.variables(set));
        let settings = outcome.environment.iter().cloned().chain(forced).chain(shown.into_iter().flatten());
        let settings: Vec<(String, String)> = settings.collect();
        let job_of_ours = launch == Launch::Processes && world.is_none();
        let count = if job_of_ours { calls.first().map_or(1, |call| call.ranks) } else { 1 };
        if let Err(error) = not_too_many(count) {
            outcome.failure = Some(error.into());
            break;
        }
        let (program, longest) = (request.worker.as_deref(), longest(&request.effort));
        let processes = Processes { program, settings: &settings, count, first, job_of_ours, longest };
        let mut waiting = indices.iter();
        let done = processes.run(&job, watch, &mut |answer| match answer {
            Answer::Facts(facts) => outcome.facts = facts,
            Answer::Sample(sample) => {
                if let Some(&index) = waiting.next() {
                    outcome.rows.push(MeasuredCall::new(index, &planned[index], launch, sample, None));
                    // That it is to stop is seen by who waits for the answers.
                    let _ = parts.done();
                }
            }
            Answer::Goes | Answer::Error { .. } => {}
        });
        let next = waiting.next().map(|&i| planned[i].words());
        outcome.interrupted = watch.stopped();
        if outcome.interrupted {
            break;
        }
        let failure = match done {
            Ok(()) => next.filter(|_| first == 0).map(|next| Error::Exec {
                code: 1,
                message: format!("{next}: NCCL's process ended without an answer"),
                hint: Some("run again with NCCL_DEBUG=WARN".to_owned()),
            }),
            Err(error) => Some(error.at(next.as_deref().unwrap_or_default())),
        };
        outcome.failure = failure.map(Into::into);
        if outcome.failure.is_some() {
            break;
        }
    }
    outcome.rows.sort_by_key(|row| row.planned);
}

/// The processes of a job.
struct Processes<'a> {
    /// What they run; this program, where none is named.
    program: Option<&'a Path>,
    /// What they are given.
    settings: &'a [(String, String)],
    /// How many are started here.
    count: u32,
    /// Rank of the first.
    first: u32,
    /// Whether they are all ranks of a job, and not each started by a launcher, or one process with all GPUs.
    job_of_ours: bool,
    /// Longest time from one answer to the next.
    longest: Duration,
}

impl Processes<'_> {
    /// Starts them, passes on the answers of the first, and ends them all.
    fn run(&self, job: &Job, watch: &Watch, answer: &mut dyn FnMut(Answer)) -> Result<(), Error> {
        let program = match self.program {
            Some(program) => program.to_owned(),
            None => std::env::current_exe().map_err(file("find", "this program".as_ref()))?,
        };
        // Free now; should another program take it before rank 0 does, the job ends in an error.
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).map(|a| a.port());
        let port = port.map_err(file("find a free port on", "127.0.0.1".as_ref()))?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let name = format!("collcast-{}-{since}", std::process::id());
        let mut children = Children(Vec::new());
        let (send, receive) = mpsc::channel();
        for rank in 0..self.count {
            let mut child = self.command(&program, rank, port, &name).spawn().map_err(file("start", &program))?;
            if let Some(mut input) = child.stdin.take() {
                // A child that is gone already says why by its end.
                let _ = serde_json::to_writer(&mut input, job).map(|()| input.flush());
            }
            if let Some(output) = child.stdout.take() {
                let (send, watch) = (send.clone(), watch.clone());
                std::thread::spawn(move || {
                    for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                        let line = String::from_utf8_lossy(&line);
                        match Answer::parse(&line) {
                            Some(answer) => drop(send.send((rank, answer))),
                            None => drop(watch.stage(&line)), // NCCL's own words.
                        }
                    }
                });
            }
            children.0.push(child);
        }
        drop(send);
        let (mut heard, mut failed) = (Instant::now(), None);
        loop {
            match receive.recv_timeout(Duration::from_millis(200)) {
                Ok((_, Answer::Error { code, message, hint })) => return Err(Error::Exec { code, message, hint }),
                Ok((rank, words)) => {
                    heard = Instant::now();
                    if rank == 0 {
                        answer(words);
                    }
                }
                // All have closed their output, and so are about to end.
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    let closed = Instant::now();
                    while closed.elapsed() < GRACE && children.running() {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    return children.failed(self.first).map_or(Ok(()), Err);
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
            if watch.stopped() {
                return Ok(());
            }
            if failed.is_none() {
                failed = children.failed(self.first).map(|error| (error, Instant::now()));
            }
            // Why it ended may be on its way, in words of its own.
            if let Some((error, _)) = failed.take_if(|(_, since)| since.elapsed() > GRACE) {
                return Err(error);
            }
            if heard.elapsed() > self.longest {
                return Err(Error::Exec {
                    code: 1,
                    message: format!("NCCL's processes gave no answer for {} s", self.longest.as_secs()),
                    hint: Some("run again with NCCL_DEBUG=WARN; a GPU or a link may hang".to_owned()),
                });
            }
        }
    }

    fn command(&self, program: &Path, rank: u32, port: u16, name: &str) -> Command {
        let mut command = Command::new(program);
        let settings = self.settings.iter().map(|(name, value)| (name, of_rank(value, self.first + rank)));
        command
            .arg(COMMAND)
            .envs(settings)
            .env(PARENT, std::process::id().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if self.job_of_ours {
            command.envs([("RANK", rank.to_string()), ("LOCAL_RANK", rank.to_string())]);
            command.envs([("WORLD_SIZE", self.count.to_string()), ("COLLCAST_PORT", port.to_string())]);
            command.env("MASTER_ADDR", "127.0.0.1").env("TORCHELASTIC_RUN_ID", name);
        }
        command
    }
}

fn file(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { what, path, source }
}

/// The value of a variable for one rank: `{rank}` in it is the rank.
pub fn of_rank(value: &str, rank: u32) -> String {
    value.replace("{rank}", &rank.to_string())
}

/// Processes that end when their owner is done with them.
#[derive(Debug)]
pub struct Children(pub Vec<Child>);

impl Children {
    fn running(&mut self) -> bool {
        self.0.iter_mut().any(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// The first that has ended in failure; ranks count from `first`.
    fn failed(&mut self, first: u32) -> Option<Error> {
        let (rank, status) = (first..).zip(&mut self.0).find_map(|(rank, child)| {
            let status = child.try_wait().ok().flatten()?;
            (!status.success()).then_some((rank, status))
        })?;
        let message = format!("NCCL's process of rank {rank} ended with {status}");
        Some(Error::Exec { code: 1, message, hint: Some("run again with NCCL_DEBUG=WARN".to_owned()) })
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // One that has ended by itself has nothing left to end.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

    use super::*;
    use crate::bench::{Backend, Failure, Set, Sets, bench};
    use crate::{Query, SiteSpec};
    use collcast_sim::collective::Collective;
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::{Arc, Mutex};

    /// What a run of two all-reduces by two processes gives, with `script` in place of a program that has NCCL; and
    /// the lines that are none of its answers, sorted.
    fn check_run(script: &str) -> (Outcome, Vec<String>) {
        check_run_on(script, Vec::new())
    }

    /// The same on sets of GPUs.
    fn check_run_on(script: &str, sets: Vec<Set>) -> (Outcome, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("worker.sh");
        std::fs::write(&program, format!("#!/bin/sh\n[ \"$1\" = {COMMAND} ] || exit 9\njob=$(cat)\n{script}")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let site = SiteSpec::new("h200x4").launch(Launch::Processes).load().unwrap();
        let query = |size| {
            let mut query = Query::new(&site, Collective::AllReduce, collcast_sim::units::Bytes(size));
            query.call.ranks = 2;
            query
        };
        let lines = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&lines);
        let request = Request {
            env: vec![("NCCL_HOSTID".to_owned(), "h{rank}".to_owned())],
            worker: Some(program),
            sets,
            watch: Watch::default().on_stage(move |line| told.lock().unwrap().push(line.to_owned())),
            ..Request::new(Backend::Nccl, vec![query(8), query(1024)])
        };
        let outcome = bench(&site, &request).unwrap();
        let mut lines = lines.lock().unwrap().clone();
        lines.sort();
        (outcome, lines)
    }

    /// Goal: every process gets the job and the variables of its rank, the answers of rank 0 become rows, and what NCCL
    /// prints is passed on.
    #[test]
    fn the_first_process_answers() {
        let (outcome, lines) = check_run(
            r##"[ -n "$TORCHELASTIC_RUN_ID" ] || exit 4
echo "$NCCL_HOSTID $NCCL_NVLS_ENABLE $RANK/$WORLD_SIZE $(echo "$job" | grep -o all_reduce | wc -l | tr -d ' ')"
[ "$RANK" = 0 ] || exit 0
echo '#collcast {"Facts":[["gpu","none"]]}'
echo '#collcast {"Sample":{"times_us":[2.0,1.0,3.0],"checked":4,"predicted_us":null}}'
echo '#collcast {"Sample":{"times_us":[4.0],"checked":512,"predicted_us":3.5}}'
"##,
        );
        assert_eq!(lines, ["h0 0 0/2 2", "h1 0 1/2 2"]);
        assert_eq!((outcome.failure, outcome.interrupted), (None, false));
        assert_eq!(outcome.facts, [("gpu".to_owned(), "none".to_owned())]);
        let rows: Vec<_> = outcome.rows.iter().map(|r| (r.size_bytes, r.time_us, r.checked, r.nccl_model_us)).collect();
        assert_eq!(rows, [(8, 2.0, 4, None), (1024, 4.0, 512, Some(3.5))]);
    }

    /// Goal: each set of GPUs has processes of its own, which see these GPUs alone; rows name them, set by set.
    #[test]
    fn processes_of_a_set_see_its_gpus() {
        let (outcome, lines) = check_run_on(
            r##"echo "$CUDA_VISIBLE_DEVICES $RANK/$WORLD_SIZE"
[ "$RANK" = 0 ] || exit 0
echo '#collcast {"Sample":{"times_us":[2.0],"checked":4,"predicted_us":null}}'
echo '#collcast {"Sample":{"times_us":[4.0],"checked":512,"predicted_us":null}}'
"##,
            Sets::Pairs.of(3, 1).unwrap(),
        );
        let seen: Vec<&str> = lines.iter().map(|line| line.rsplit_once(' ').unwrap().1).collect();
        assert_eq!(seen, ["0/2", "1/2", "0/2", "1/2", "0/2", "1/2"]);
        assert_eq!(lines.iter().collect::<std::collections::BTreeSet<_>>().len(), 6, "{lines:?}");
        assert_eq!((outcome.failure, outcome.points), (None, 6));
        let rows: Vec<_> = outcome.rows.iter().map(|r| (r.set.clone().unwrap().gpus, r.size_bytes)).collect();
        let pairs = [[0, 1], [0, 2], [1, 2]].into_iter().flat_map(|pair| [(pair.to_vec(), 8), (pair.to_vec(), 1024)]);
        assert_eq!(rows, pairs.collect::<Vec<_>>());
        assert!(outcome.rows.iter().all(|row| row.gpus.len() == 2 && row.gpus[0].contains(':')));
    }

    /// Goal: a process that ends early is told with the call that it ended in, and earlier rows are kept.
    #[test]
    fn a_process_that_ends_early_is_told() {
        let sample =
            r##"[ "$RANK" = 0 ] && echo '#collcast {"Sample":{"times_us":[2.0],"checked":4,"predicted_us":null}}'"##;
        let (silent, _) = check_run(sample);
        let failure = silent.failure.unwrap();
        let told = "all_reduce auto/auto, 2 ranks, 1 KiB: NCCL's process of rank 1 ended with exit status: 1";
        assert_eq!((failure.code, failure.message.as_str(), silent.rows.len()), (1, told, 1));
        // The others wait for it.
        let (killed, _) = check_run(r##"[ "$RANK" = 1 ] && kill -9 $$; exec sleep 60"##);
        let message = killed.failure.unwrap().message;
        assert!(message.contains("of rank 1 ended with signal: 9"), "{message}");
        let error = r##"[ "$RANK" = 1 ] || exec sleep 60
echo '#collcast {"Error":{"code":3,"message":"no NCCL","hint":"install it"}}'"##;
        let (missing, _) = check_run(error);
        let message = "all_reduce auto/auto, 2 ranks, 8 B: no NCCL".to_owned();
        assert_eq!(missing.failure, Some(Failure { code: 3, message, hint: Some("install it".to_owned()) }));
    }

    /// Goal: processes that say nothing more end in an error; each answer gives them time anew. One rank is a job too.
    #[test]
    fn processes_that_hang_are_ended() {
        let run = |script: &str| {
            let dir = tempfile::tempdir().unwrap();
            let program = dir.path().join("worker.sh");
            std::fs::write(&program, format!("#!/bin/sh\ncat >/dev/null\n{script}")).unwrap();
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
            let job = Job::new(&[], Launch::Processes, &collcast_hwbackend::exec::Effort::default());
            let longest = Duration::from_secs(2);
            let (count, first, job_of_ours) = (1, 0, true);
            let processes = Processes { program: Some(&program), settings: &[], count, first, job_of_ours, longest };
            let lines = Arc::new(Mutex::new(String::new()));
            let told = Arc::clone(&lines);
            let watch = Watch::default().on_stage(move |line| told.lock().unwrap().push_str(line));
            let begin = Instant::now();
            let done = processes.run(&job, &watch, &mut |_| {}).map_err(|error| error.to_string());
            let lines = lines.lock().unwrap().clone();
            (done, lines, begin.elapsed())
        };
        let (done, lines, time) = run("echo $RANK of $WORLD_SIZE; exec sleep 60");
        assert_eq!(lines, "0 of 1");
        assert!(done.unwrap_err().contains("gave no answer for 2 s") && time < Duration::from_secs(30));
        let goes = r##"for i in 1 2 3; do sleep 0.9; echo '#collcast "Goes"'; done"##;
        assert_eq!(run(goes).0, Ok(()));
    }
}

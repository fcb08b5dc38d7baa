//! What breaks while schedules run: queue pairs, ranks, processes, links, memory.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use collcast_hwbackend::exec::{Effort, ExecError, Executor};
use collcast_hwbackend::verbs::Verbs;
use collcast_sim::schedule::Schedule;
use rustix::process::{Resource, Signal, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use serde::{Deserialize, Serialize};

use crate::imported::random_schedules;
use crate::processes::{Process, Task, Work};
use crate::random::Random;
use crate::{EFFORT, can_run, check_exact, open, port, run};

/// The guest's cable: cut, mended, made to lose packets.
const CABLE: &str = "/bin/cable";
/// Longest time from the fault until all ranks have ended: patience of a NIC, then of its peers, of meeting and leaving.
const BOUND: Duration = Duration::from_secs(30);

/// What breaks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) enum Fault {
    /// A queue pair is put into error.
    Pair,
    /// A rank leaves before the run.
    Leaves,
    /// A process is killed.
    Killed,
    /// A process is stopped for longer than its peers wait, and goes on then.
    Stopped,
    /// The cable's end is taken down.
    Down,
    /// The cable loses everything, so that completions time out.
    Silent,
    /// The cable loses some packets and delays all: results are exact.
    Lossy,
    /// A rank may not lock memory.
    Unlocked,
}

impl Fault {
    /// How often each is drawn, of 100.
    const WEIGHTS: [(Self, u32); 8] = [
        (Self::Pair, 30),
        (Self::Leaves, 12),
        (Self::Killed, 16),
        (Self::Stopped, 8),
        (Self::Down, 8),
        (Self::Silent, 8),
        (Self::Lossy, 10),
        (Self::Unlocked, 8),
    ];

    fn draw(random: &mut Random) -> Self {
        let mut left = random.uniform() * 100.0;
        let found = Self::WEIGHTS.into_iter().find(|(_, weight)| {
            left -= f64::from(*weight);
            left < 0.0
        });
        found.map_or(Self::Pair, |(fault, _)| fault)
    }

    /// Whether it takes the guest's cable.
    fn of_cable(self) -> bool {
        matches!(self, Self::Down | Self::Silent | Self::Lossy)
    }

    /// Whether the victim is a process of its own.
    fn of_process(self) -> bool {
        matches!(self, Self::Killed | Self::Stopped)
    }
}

/// One run that something breaks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Trial {
    fault: Fault,
    seed: u64,
    ranks: u32,
    victim: u32,
    qps: u32,
    /// Runs after which a queue pair fails.
    after: u32,
    /// Milliseconds until anything else breaks.
    delay: u64,
    /// Of [`Fault::Lossy`]: thousandths of all packets that are lost, and milliseconds of delay.
    loss: (u32, u32),
}

impl Trial {
    fn draw(random: &mut Random, seed: u64, cable: bool) -> Self {
        let fault = std::iter::repeat_with(|| Fault::draw(random)).find(|f| cable || !f.of_cable()).unwrap();
        let ranks = 2 + (random.uniform() * 3.0) as u32;
        Self {
            fault,
            seed,
            ranks,
            victim: (random.uniform() * f64::from(ranks)) as u32,
            qps: 1 + (random.uniform() * 2.0) as u32,
            after: (random.uniform() * 4.0) as u32,
            delay: (random.uniform() * 400.0) as u64,
            loss: ((random.uniform() * 10.0) as u32, (random.uniform() * 3.0) as u32),
        }
    }

    fn schedule(&self) -> Schedule {
        random_schedules(self.seed, self.ranks, 2).swap_remove((self.seed % 2) as usize)
    }

    fn effort(&self) -> Effort {
        let patience = Duration::from_secs(if self.fault == Fault::Lossy { 10 } else { 1 });
        Effort { patience, ..EFFORT }
    }

    /// Whether an error says what happened.
    fn named(&self, said: &str) -> bool {
        let victim = self.victim;
        let connection = |said: &str| said.contains("the connection with rank") && said.contains("rxe");
        match self.fault {
            Fault::Leaves | Fault::Killed => {
                said.contains(&format!("rank {victim} is gone")) || said.contains("rank 0 is gone")
            }
            Fault::Pair => connection(said),
            // The NIC gives up about when those do that wait for it.
            Fault::Down | Fault::Silent => connection(said) || said.contains(" from rank "),
            // Whom nobody waits for is not missed; ranks that ended are.
            Fault::Stopped => said.contains("rank "),
            Fault::Unlocked => said.contains("cannot be registered with rxe"),
            Fault::Lossy => false,
        }
    }

    /// Whether a rank may end well.
    fn may_pass(&self) -> bool {
        matches!(self.fault, Fault::Lossy | Fault::Stopped)
    }
}

/// Runs a trial's schedule over and over, until something breaks or `over` says so at any rank.
pub(crate) fn long_run(verbs: &mut Verbs, trial: &Trial, over: &dyn Fn() -> bool) -> Result<(), ExecError> {
    let (schedule, effort) = (trial.schedule(), trial.effort());
    while !verbs.stops(over())? {
        run(verbs, &schedule, &effort)?;
    }
    Ok(())
}

/// What the trial's victim does; nothing where it leaves.
fn suffer(verbs: &mut Verbs, trial: &Trial, over: &dyn Fn() -> bool) -> Option<Result<(), ExecError>> {
    match trial.fault {
        Fault::Leaves => return None,
        Fault::Pair => verbs.fail_after(Some(trial.after)),
        Fault::Unlocked => {
            let mut all = capabilities(None).unwrap();
            all.effective -= CapabilitySet::IPC_LOCK;
            // Of this thread alone.
            set_capabilities(None, all).unwrap();
        }
        _ => {}
    }
    Some(long_run(verbs, trial, over))
}

/// Changes the guest's cable.
fn cable(words: &str) {
    let status = Command::new(CABLE).args(words.split(' ')).status().unwrap();
    assert!(status.success(), "cable {words}: {status}");
}

/// Breaks what the trial says, once all have met; `over` ends those runs that nothing ends.
fn act(trial: &Trial, victim: Option<&Process>, over: &AtomicBool) {
    let wait = |ms: u64| std::thread::sleep(Duration::from_millis(ms));
    wait(trial.delay);
    match trial.fault {
        Fault::Killed => victim.unwrap().signal(Signal::KILL),
        Fault::Stopped => {
            victim.unwrap().signal(Signal::STOP);
            wait(1500);
            victim.unwrap().signal(Signal::CONT);
            over.store(true, Ordering::Relaxed);
        }
        Fault::Down => cable("cut"),
        Fault::Silent => cable("lose 100 0"),
        Fault::Lossy => {
            cable(&format!("lose {:.1} {}", f64::from(trial.loss.0) / 10.0, trial.loss.1));
            wait(500);
            over.store(true, Ordering::Relaxed);
        }
        Fault::Pair | Fault::Leaves | Fault::Unlocked => {}
    }
}

/// What each rank that is left says: nothing where it ended well.
fn attempt(trial: &Trial) -> Vec<Option<String>> {
    let (over, met, port) = (AtomicBool::new(false), AtomicU32::new(0), port());
    let limit = getrlimit(Resource::Memlock);
    if trial.fault == Fault::Unlocked {
        setrlimit(Resource::Memlock, rustix::process::Rlimit { current: Some(0), maximum: limit.maximum }).unwrap();
    }
    let process = trial.fault.of_process().then(|| {
        let work = Work::Breaks(trial.clone());
        Process::start(&Task { rank: trial.victim, ranks: trial.ranks, qps: trial.qps, port, work })
    });
    let threads = (0..trial.ranks).filter(|&r| process.is_none() || r != trial.victim);
    let rank = |rank: u32| {
        let verbs = &mut open(rank, trial.ranks, trial.qps, port);
        met.fetch_add(1, Ordering::Relaxed);
        let over = || over.load(Ordering::Relaxed);
        let ended =
            if rank == trial.victim { suffer(verbs, trial, &over) } else { Some(long_run(verbs, trial, &over)) };
        ended.map(|ended| ended.err().map(|error| error.to_string()))
    };
    let said = std::thread::scope(|scope| {
        let threads: Vec<_> = threads.map(|r| scope.spawn(move || rank(r))).collect();
        while (met.load(Ordering::Relaxed) as usize) < threads.len() {
            // A rank that could not open says so when it is joined.
            if threads.iter().any(std::thread::ScopedJoinHandle::is_finished) {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        act(trial, process.as_ref(), &over);
        threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
    });
    if trial.fault.of_cable() {
        cable("mend");
    }
    setrlimit(Resource::Memlock, limit).unwrap();
    if let Some(process) = process {
        let (well, said) = process.end();
        assert!(well || trial.fault == Fault::Killed, "{trial:?}: {said}");
    }
    said
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

/// All that the kernel has of RDMA on this host: queue pairs, completion queues, domains, regions. Of others too, so that
/// killed processes count.
fn resources() -> String {
    let told = Command::new("rdma").args(["resource", "show"]).output();
    told.map_or_else(|_| "unknown".to_owned(), |told| String::from_utf8_lossy(&told.stdout).into_owned())
}

/// Goal: whatever breaks at whatever time ends in an error that names the peer or the NIC, at every rank, in bounded time,
/// and leaves no descriptor, no pinned page and nothing in the kernel; what NICs make good for is exact; a run after it is exact.
/// Method: faults drawn at random, at random times, of random ranks. Ranks are threads of this process, which goes on
/// through all of them; those that are killed or stopped are processes. Links break in the guest alone.
#[test]
fn faults_end_in_errors_that_name_the_peer() {
    if !can_run() {
        return;
    }
    let number = |name: &str, otherwise: u64| std::env::var(name).map_or(otherwise, |text| text.parse().unwrap());
    let (count, seed) = (number("COLLCAST_VERBS_FAULTS", 24), number("COLLCAST_VERBS_SEED", 31));
    let in_guest = Path::new(CABLE).exists();
    if !in_guest {
        let _ = writeln!(std::io::stderr(), "skipped: this is not the guest, so no link is broken");
    }
    let mut random = Random::new(seed);
    let quiet = (descriptors(), pinned(), resources());
    let mut done: BTreeMap<Fault, (u32, u32, Duration)> = BTreeMap::new();
    for at in 0..count {
        let trial = Trial::draw(&mut random, 1000 * seed + at, in_guest);
        let begin = Instant::now();
        let said = attempt(&trial);
        let time = begin.elapsed();
        assert!(time < BOUND, "{at}: {trial:?}: {time:?}");
        for said in &said {
            let right = said.as_ref().map_or(trial.may_pass(), |said| trial.named(said));
            assert!(right, "{at}: {trial:?}: {said:?}");
        }
        let failed = said.iter().any(Option::is_some);
        let (times, errors, longest) = done.entry(trial.fault).or_default();
        (*times, *errors, *longest) = (*times + 1, *errors + u32::from(failed), time.max(*longest));
        if at % 10 == 0 {
            check_exact(trial.ranks, trial.qps, &[trial.schedule()]);
        }
        assert_eq!((descriptors(), pinned(), resources()), quiet, "{at}: {trial:?}");
        if at % 50 == 49 {
            println!("after {} faults: {done:?}", at + 1);
        }
    }
    for (fault, (times, errors, longest)) in &done {
        println!("{fault:?}: {times} times, {errors} ended in errors, after {:.1} s at most", longest.as_secs_f64());
    }
    println!("{count} faults: no hang, no wrong result, nothing left");
}

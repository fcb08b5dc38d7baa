//! Ranks that are processes of their own: this test's program once more, with a task in its environment.

use std::fs::File;
use std::io::{Read, Seek};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::faults::{Trial, long_run};

/// Where a process finds its task.
const TASK: &str = "COLLCAST_VERBS_TASK";

/// What a process does.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum Work {
    /// All random algorithms of so many ranks, each exact.
    Imported,
    /// A run that goes on until something breaks.
    Breaks(Trial),
}

/// A rank's place, and its work.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    pub(crate) qps: u32,
    pub(crate) port: u16,
    pub(crate) work: Work,
}

/// Of such a process: does its task. In the test's own process there is none.
#[test]
fn a_rank_of_its_own() {
    let Ok(task) = std::env::var(TASK) else { return };
    let task: Task = serde_json::from_str(&task).unwrap();
    let mut verbs = crate::open(task.rank, task.ranks, task.qps, task.port);
    match &task.work {
        Work::Imported => crate::check_rank(&mut verbs, task.rank, &crate::imported_of(task.ranks)),
        Work::Breaks(trial) => {
            let ended = long_run(&mut verbs, trial, &|| false);
            assert!(!ended.as_ref().is_err_and(|e| e.to_string().contains("wrong result")), "{ended:?}");
        }
    }
}

/// A rank that runs; killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    said: File,
}

impl Process {
    pub(crate) fn start(task: &Task) -> Self {
        let said = tempfile::tempfile().unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "processes::a_rank_of_its_own", "--nocapture"])
            .env(TASK, serde_json::to_string(task).unwrap())
            .stdin(Stdio::null())
            .stdout(said.try_clone().unwrap())
            .stderr(said.try_clone().unwrap())
            .spawn()
            .unwrap();
        Self { child, said }
    }

    /// Sends a signal to it.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits for its end: whether that was well, and all that it said.
    pub(crate) fn end(mut self) -> (bool, String) {
        let status = self.child.wait().unwrap();
        let mut text = String::new();
        self.said.rewind().unwrap();
        self.said.read_to_string(&mut text).unwrap();
        (status.success(), text)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended is killed in vain.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

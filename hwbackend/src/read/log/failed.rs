//! Lines by which a run says that it failed: of nccl-tests, of launchers, of the kernel and of PyTorch.

/// Words that end no run that went well. Of nccl-tests (`common.h`), whose last is what callers of a call that failed print;
/// Open MPI and PRRTE; Hydra; LSF and PBS; `kubectl exec`; the kernel; torchrun.
const WORDS: [&str; 28] = [
    "Test NCCL failure",
    "Test CUDA failure",
    "Test timeout",
    "Test failure",
    "noticed that process rank",
    "detected that one or more processes exited with non-zero status",
    "returned a non-zero exit code",
    "MPI_ABORT was invoked on rank",
    "*** Process received signal ***",
    "has lost communication with a remote daemon",
    "daemon has unexpectedly failed",
    "There are not enough slots available",
    "BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
    "EXIT STRING: ",
    "TERM_RUNLIMIT: job killed",
    "TERM_MEMLIMIT: job killed",
    "PBS: job killed",
    "command terminated with exit code",
    "OOMKilled",
    "oom_kill event",
    "oom-kill:",
    "Out of memory: Killed process",
    "ChildFailedError",
    "SignalException: Process",
    "failed (exitcode: ",
    "terminate called after throwing",
    "(core dumped)",
    "srun: Job step aborted",
];
/// How a shell names the end of a program by a signal, alone on a line or after its number.
const SIGNALS: [&str; 5] = ["Killed", "Terminated", "Aborted", "Segmentation fault", "Bus error"];
/// Who begins lines of Slurm about errors; some of these are about windows, folders and plug-ins.
const SLURM: [&str; 2] = ["srun: error: ", "slurmstepd: error: "];
/// What those say that are of the end of a task or step.
const ENDS: [&str; 16] = [
    "Killed",
    "killed",
    "Exited with exit code",
    "CANCELLED",
    "Terminated",
    "Aborted",
    "Segmentation fault",
    "Bus error",
    "Out Of Memory",
    "oom",
    "Floating point exception",
    "Illegal instruction",
    "Node failure",
    "Unable to create step",
    "execve",
    "Timed out waiting for job step",
];

/// Whether a line says that its run failed.
pub(super) fn says_so(line: &str) -> bool {
    let of_slurm = || {
        let said = SLURM.iter().find_map(|who| Some(line.split_once(who)?.1));
        said.is_some_and(|said| ENDS.iter().any(|end| said.contains(end)))
    };
    // `Killed`, and bash's `run.sh: line 3:  4711 Killed      ./all_reduce_perf`.
    let of_shell = || {
        let (before, said) = line.rsplit_once(": ").map_or(("", line), |(before, rest)| (before, rest.trim_start()));
        let said = said.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start();
        let after = SIGNALS.iter().find_map(|signal| said.strip_prefix(signal));
        let is_of_line = before.contains("line ");
        after.is_some_and(|rest| rest.is_empty() && before.is_empty() || is_of_line && rest.starts_with(' '))
    };
    WORDS.iter().any(|words| line.contains(words)) || of_slurm() || of_shell()
}

#[cfg(test)]
mod tests {
    use super::says_so;

    /// Goal: what launchers and kernels print of runs that failed is known, and what they print of others is not taken for it.
    #[test]
    fn failures_are_told_from_other_lines() {
        for line in [
            "node00: Test timeout common.cu:592",
            "slurmstepd: error: *** STEP 123.0 ON node00 CANCELLED AT 2026-11-28T03:30:00 DUE TO TIME LIMIT ***",
            "srun: error: node00: tasks 0-7: Killed",
            "srun: error: node00: task 3: Exited with exit code 1",
            "srun: error: node[01-02]: tasks 0-15: Segmentation fault (core dumped)",
            "slurmstepd: error: Detected 1 oom_kill event in StepId=123.0. Some of the step tasks have been OOM Killed.",
            "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
            "mpirun noticed that process rank 3 with PID 0 on node node00 exited on signal 11 (Segmentation fault).",
            "prterun detected that one or more processes exited with non-zero status, thus causing the job to be terminated.",
            "[node00:1000] *** Process received signal ***",
            "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
            "Killed",
            "Segmentation fault (core dumped)",
            "run.sh: line 3:  4711 Killed                  ./build/all_reduce_perf -b 8 -e 8G",
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
            "E1128 03:30:00 torch/distributed/elastic/api.py:874] failed (exitcode: -9) local_rank: 0 (pid: 4711)",
            "command terminated with exit code 137",
        ] {
            assert!(says_so(line), "{line}");
        }
        for line in [
            "srun: error: ioctl(TIOCGWINSZ): Inappropriate ioctl for device",
            "srun: error: Not using a pseudo-terminal, disregarding --pty option",
            "slurmstepd: error: couldn't chdir to `/home/x': No such file or directory: going to /tmp instead",
            "srun: job 123 queued and waiting for resources",
            "Collective test concluded: all_reduce_perf",
            "Out of bounds values : 0 OK",
            "Killed by signal 1 is what a hung run says",
            "node: Terminated runs are in the other folder",
            "",
        ] {
            assert!(!says_so(line), "{line}");
        }
    }
}

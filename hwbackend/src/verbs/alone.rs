//! What a probe asks of the thread itself: how fast it checks lines of LL, and where it runs.

use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::measured::{Kind, Measured};

/// Bytes of lines that are checked at once: a slice of LL of NCCL's default buffers.
const LINES: usize = 64 << 10;
/// Slices of a batch.
const SLICES: u32 = 16;

/// How long this thread takes to check the flags of a slice of LL that another thread has just written, as NCCL's proxy
/// does before it sends what a GPU wrote. It is of rank 0 alone: no NIC takes part.
pub(super) fn lines(batches: u32) -> Measured {
    // A line is two words, each with data in its lower half and the flag in its upper one.
    let words: Vec<AtomicU64> = (0..LINES / 8).map(|_| AtomicU64::new(0)).collect();
    let (wanted, written) = (AtomicU32::new(0), AtomicU32::new(0));
    let slices = batches * SLICES;
    let await_flag = |place: &AtomicU32, flag: u32| {
        while place.load(Ordering::Acquire) != flag {
            std::thread::yield_now();
        }
    };
    let times = std::thread::scope(|scope| {
        scope.spawn(|| {
            for flag in 1..=slices {
                await_flag(&wanted, flag);
                words.iter().for_each(|word| word.store(u64::from(flag) << 32 | 7, Ordering::Relaxed));
                written.store(flag, Ordering::Release);
            }
        });
        let check = |flag: u32| {
            wanted.store(flag, Ordering::Release);
            await_flag(&written, flag);
            let begin = Instant::now();
            let seen = words.iter().filter(|word| word.load(Ordering::Relaxed) >> 32 == u64::from(flag)).count();
            let time = begin.elapsed();
            assert_eq!(seen, words.len(), "lines that were written are seen");
            time
        };
        let batch = |batch: u32| (1..=SLICES).map(|slice| check(batch * SLICES + slice)).sum::<Duration>();
        (0..batches).map(|b| batch(b).as_secs_f64() * 1e6 / f64::from(SLICES)).collect()
    });
    let (kind, bytes) = (Kind::Lines, LINES as u64);
    Measured { kind, src: 0, dst: 0, nic: "host".to_owned(), qps: 0, bytes, times_us: times }
}

/// This thread on another NUMA node than a NIC's, until dropped.
pub(super) struct Far(CpuSet);

impl Far {
    /// Moves this thread away from a NIC; `None` where the host has no other node, or the NIC is on none.
    pub(super) fn from(nic: &str) -> Option<Self> {
        let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u32>().ok();
        let near = number(&format!("/sys/class/infiniband/{nic}/device/numa_node"))?;
        let nodes = (0..).map(|node| format!("/sys/devices/system/node/node{node}"));
        let far = (0..).zip(nodes).take_while(|(_, path)| Path::new(path).exists()).find_map(|(node, path)| {
            let cpus = std::fs::read_to_string(format!("{path}/cpulist")).ok()?;
            (node != near).then(|| cpus_of(&cpus)).filter(|cpus| !cpus.is_empty())
        })?;
        let before = sched_getaffinity(None).ok()?;
        let mut set = CpuSet::new();
        far.into_iter().filter(|&cpu| cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(cpu));
        sched_setaffinity(None, &set).ok().map(|()| Self(before))
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        // Where it cannot go back, it stays where it is: times that follow are then those of a far thread.
        let _ = sched_setaffinity(None, &self.0);
    }
}

/// CPUs of a list such as `0-3,8`.
fn cpus_of(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<usize>().ok()?..=last.trim().parse::<usize>().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: lists of CPUs are read as the kernel writes them; times of lines are of each batch.
    #[test]
    fn a_thread_alone() {
        assert_eq!(cpus_of("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert!(cpus_of("\n").is_empty());
        let row = lines(3);
        assert!(row.times_us.len() == 3 && row.times_us.iter().all(|&us| us > 0.0), "{row:?}");
        assert!(Far::from("no such NIC").is_none());
    }
}

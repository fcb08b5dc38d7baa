//! The executor: connects the processes for a schedule, runs it, checks it, and times it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::device::{Nic, Order};
use super::lanes::{Buffers, Lanes};
use super::memory::Memory;
use super::numbers::Arithmetic;
use super::options::{Options, Place};
use super::reach::Way;
use super::wires::{End, Wires};
use crate::check;
use crate::cuda::driver::{self, Device};
use crate::exec::{CallToRun, Effort, ExecError, Executor, Sample};
use crate::flat::Flat;
use crate::rendezvous::{Group, World};
use collcast_sim::ids::Rank;
use collcast_sim::schedule::Schedule;

/// How long processes wait for each other between two steps: the fill and check of a large call lie there.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a process without NICs looks for the others, to tell them.
const FAREWELL: Duration = Duration::from_secs(20);

/// The executor of schedules over RDMA verbs, as one process of a job has it.
#[derive(Debug)]
pub struct Verbs {
    group: Group,
    nics: Vec<Arc<Nic>>,
    /// The GPU whose memory is measured, and how NICs reach it.
    gpu: Option<(Arc<Device>, Way)>,
    qps: u32,
    launcher: &'static str,
    /// Fails a queue pair after so many runs; for tests of what then happens.
    fault: Option<u32>,
}

/// What a process tells all others before a schedule runs.
#[derive(Serialize, Deserialize)]
struct Told {
    schedule: u64,
    ends: Vec<End>,
}

impl Verbs {
    /// Looks for the NICs that the process with this index on its host would use.
    ///
    /// # Errors
    /// No library, no NIC, one that is down.
    pub fn find(options: &Options, local: u32) -> Result<(), ExecError> {
        devices(options, local).map(|_| ())
    }

    /// Opens the NICs and meets the other processes, which may take `patience` to come.
    ///
    /// # Errors
    /// No library, no NIC, one that is down; at any process. Processes that do not come.
    pub fn open(world: &World, options: &Options, patience: Duration) -> Result<Self, ExecError> {
        let found = devices(options, world.local);
        let longest = if found.is_ok() { patience.max(PATIENCE) } else { FAREWELL };
        let mut group = match (Group::join(world, longest), &found) {
            (Ok(group), _) => group,
            // Nobody is there to be told.
            (Err(_), Err(_)) => return found.and_then(|_| Err(ExecError::no_schedule())),
            (Err(error), Ok(_)) => return Err(error),
        };
        // Our own error says best what to do.
        let all = group.agreed(found.as_ref().map(|_| 0).map_err(copy));
        let ((nics, gpu), _) = (found?, all?);
        Ok(Self { group, nics, gpu, qps: options.qps.max(1), launcher: world.launcher, fault: None })
    }

    /// Puts a queue pair of this process into error after so many runs of each schedule, as a NIC does that gave
    /// up. For tests of what then happens.
    #[doc(hidden)]
    pub fn fail_after(&mut self, runs: Option<u32>) {
        self.fault = runs;
    }

    /// Its NICs, the GPU whose memory they are to reach, and the processes.
    pub(super) fn parts(&mut self) -> (&[Arc<Nic>], Option<&Arc<Device>>, &mut Group) {
        (&self.nics, self.gpu.as_ref().map(|(gpu, _)| gpu), &mut self.group)
    }

    /// Connects all processes for a schedule.
    fn connect(&mut self, schedule: &Schedule, flat: &Flat, patience: Duration) -> Result<Wires, ExecError> {
        let wires = Wires::new(flat, self.group.rank, &self.nics, self.qps);
        let all = self.group.agreed(wires.as_ref().map(|_| 0).map_err(copy));
        let (mut wires, _) = (wires?, all?);
        let told = Told { schedule: schedule.identity(), ends: wires.ends() };
        let bytes = |told: &[Told]| serde_json::to_vec(told).map_err(|e| ExecError::Rendezvous(e.to_string()));
        let read = |bytes: &[u8]| -> Result<Vec<Told>, ExecError> {
            serde_json::from_slice(bytes).map_err(|e| ExecError::Rendezvous(format!("another process: {e}")))
        };
        let schedule = told.schedule;
        let gathered = self.group.gather(&bytes(&[told])?)?;
        let all = match gathered {
            Some(all) => {
                let all: Vec<Vec<Told>> = all.iter().map(|b| read(b)).collect::<Result<_, _>>()?;
                self.group.broadcast(bytes(&all.into_iter().flatten().collect::<Vec<_>>())?)?
            }
            None => self.group.broadcast(Vec::new())?,
        };
        let all = read(&all)?;
        let connected = match all.iter().zip(0_u32..).find(|(told, _)| told.schedule != schedule) {
            Some((told, rank)) => Err(ExecError::Rendezvous(format!(
                "rank {rank} has the schedule {:016x}, rank {} has {schedule:016x}: start all with the same arguments",
                told.schedule, self.group.rank
            ))),
            None => {
                let ends: Vec<End> = all.into_iter().flat_map(|told| told.ends).collect();
                wires.connect(&ends, patience)
            }
        };
        // Nobody sends before all can receive.
        self.group.agreed(connected.map(|()| 0))?;
        Ok(wires)
    }
}

/// A call that is connected.
struct Case<'a> {
    schedule: &'a Schedule,
    with: Arithmetic,
    wires: &'a mut Wires,
    lanes: Lanes<'a>,
    buffers: Buffers,
    fault: Option<u32>,
    runs: u32,
}

impl Case<'_> {
    fn once(&mut self) -> Result<(), ExecError> {
        if self.fault == Some(self.runs) {
            self.wires.fail(self.runs as usize)?;
        }
        self.runs += 1;
        self.lanes.run(self.wires, &mut self.buffers)
    }

    /// Runs from fresh buffers, and compares every element; how many there are, over all ranks.
    fn checked(&mut self, group: &mut Group) -> Result<u64, ExecError> {
        self.buffers.fill(self.schedule, &self.with);
        let right = self.once().and_then(|()| self.buffers.check(self.schedule, &self.with));
        self.settle(group, right)
    }

    /// The sum of what all ranks say. Where one failed, all look once more at their NICs: who has sent all that it had
    /// to may not know yet that it did not arrive.
    fn settle(&mut self, group: &mut Group, mine: Result<u64, ExecError>) -> Result<u64, ExecError> {
        let well = mine.is_ok();
        let first = match group.agreed(mine) {
            Ok(sum) => return Ok(sum),
            Err(first) => first,
        };
        let late = if well { self.wires.poll().map(|_| 0) } else { Ok(0) };
        match group.agreed(late) {
            Err(late) if !first.to_string().contains(&late.to_string()) => {
                Err(ExecError::Rendezvous(format!("{late}; {first}")))
            }
            _ => Err(first),
        }
    }

    /// Runs so often back to back, all ranks from the same time on: microseconds of one operation. Where there are
    /// several, one more goes before that is not timed: ranks do not hear at the same moment that all are there. What is
    /// in the buffers does not matter: an operation in place combines its own result.
    fn batch(&mut self, group: &mut Group, operations: u32) -> Result<f64, ExecError> {
        group.agreed(Ok(0))?;
        let first = if operations > 1 { self.once() } else { Ok(()) };
        let begin = Instant::now();
        let done = first.and_then(|()| (0..operations).try_for_each(|_| self.once()));
        let time = begin.elapsed();
        self.settle(group, done.map(|()| 0))?;
        Ok(time.as_secs_f64() * 1e6 / f64::from(operations.max(1)))
    }
}

fn nics(options: &Options, local: u32) -> Result<Vec<Arc<Nic>>, ExecError> {
    let mut nics = Nic::open(&options.nics)?;
    if options.nics.is_empty() {
        nics = vec![nics.swap_remove(local as usize % nics.len())];
    }
    Ok(nics)
}

/// What a process uses: its NICs, and the GPU whose memory they reach, where that is asked for.
type Devices = (Vec<Arc<Nic>>, Option<(Arc<Device>, Way)>);

fn devices(options: &Options, local: u32) -> Result<Devices, ExecError> {
    let nics = nics(options, local)?;
    if options.memory == Place::Host {
        return Ok((nics, None));
    }
    let mut gpus = driver::open()?;
    let gpu = gpus.swap_remove(local as usize % gpus.len());
    // What cannot be registered is said before anything runs.
    let (_, way) = Memory::of_gpu(1, &nics, Order::Strict, &gpu)?;
    Ok((nics, Some((gpu, way))))
}

/// The same error, for the others.
fn copy(error: &ExecError) -> ExecError {
    ExecError::Rendezvous(error.to_string())
}

impl Executor for Verbs {
    fn run(&mut self, case: &CallToRun<'_>, effort: &Effort) -> Result<Sample, ExecError> {
        let schedule = case.schedule.ok_or_else(ExecError::no_schedule)?;
        if self.gpu.is_some() {
            let what = "schedules over RDMA verbs run in memory of the host".to_owned();
            return Err(ExecError::Refused { what, hint: "leave the GPU out" });
        }
        let call = &schedule.call;
        if call.ranks != self.group.size {
            let what = format!("the call has {} ranks, the job {} processes", call.ranks, self.group.size);
            return Err(ExecError::Refused { what, hint: "start one process for each rank" });
        }
        let (with, range) = (Arithmetic::of(call.dtype, call.op)?, check::range(call)?);
        let flat = Flat::new(schedule)?;
        let mut wires = self.connect(schedule, &flat, effort.patience)?;
        let rank = self.group.rank;
        let lanes = Lanes::new(&flat, rank, with, effort.patience);
        let buffers = Buffers::new(schedule, Rank(rank), range);
        let mut case = Case { schedule, with, wires: &mut wires, lanes, buffers, fault: self.fault, runs: 0 };
        let group = &mut self.group;

        let begin = Instant::now();
        let elements = case.checked(group)?;
        let one = group.slowest(&[begin.elapsed().as_secs_f64()])?[0];
        let warmup = Effort { iterations: effort.warmup, ..*effort }.fitted(Duration::from_secs_f64(one)).iterations;
        let warm = if effort.warmup > 0 { case.batch(group, warmup)? / 1e6 } else { one };
        let warm = group.slowest(&[warm])?[0];
        let effort = effort.fitted(Duration::from_secs_f64(warm));
        let times = (0..effort.batches).map(|_| case.batch(group, effort.iterations)).collect::<Result<Vec<_>, _>>()?;
        let times_us = group.slowest(&times)?;
        case.checked(group)?;
        Ok(Sample { times_us, checked: elements, predicted_us: None })
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let nics: Vec<String> = self.nics.iter().map(|nic| nic.words()).collect();
        let memory = self.gpu.as_ref().map_or_else(
            || "host memory; no GPU is involved".to_owned(),
            |(gpu, way)| format!("memory of GPU {} ({}) by {}", gpu.ordinal, gpu.name, way.name()),
        );
        let (size, nics, qps) = (self.group.size, nics.join(", "), self.qps);
        vec![
            ("host", format!("{size} processes over {nics}, {qps} queue pairs a connection, {memory}")),
            ("launcher", self.launcher.to_owned()),
        ]
    }

    fn stops(&mut self, stop: bool) -> Result<bool, ExecError> {
        self.group.agreed(Ok(u64::from(stop))).map(|all| all > 0)
    }
}

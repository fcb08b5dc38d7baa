//! Runs any schedule through grouped `ncclSend` and `ncclRecv`, with a small kernel that combines what
//! has arrived: NCCL's transports under our schedules. Made to be right, not fast.

#![allow(unsafe_code)] // Kernel arguments are passed by address.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use collcast_sim::collective::Launch;
use collcast_sim::ids::Rank;
use collcast_sim::schedule::Schedule;

use super::api::{Api, Place as Where, RawComm};
use super::waves::{Message, Place, Waves};
use super::{Nccl, idle};
use crate::cuda::buffers::{Checker, RankBuffers, macros};
use crate::cuda::driver::{Kernel, Memory, Stream, compile};
use crate::cuda::timing::{Operation, Timer};
use crate::exec::{CallToRun, Effort, ExecError, Executor, Sample};

/// `MAX_ENDS` of `combine.cu`: those of a record, and its local source and destination.
const MAX_ENDS: usize = 26;
/// Blocks for each combination, and their threads.
const GRID: (u32, u32) = (16, 512);
/// Most waves, each a launch and a group: minutes of host time.
const MAX_WAVES: usize = 1 << 20;

/// `Combine` of `combine.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Combine {
    from: [u64; MAX_ENDS],
    to: [u64; MAX_ENDS],
    bytes: u64,
    sources: u32,
    targets: u32,
}

/// The executor of schedules through NCCL's send and receive.
#[derive(Debug)]
pub struct NcclP2p(Nccl);

impl NcclP2p {
    /// Finds driver, GPUs, compiler and NCCL.
    ///
    /// # Errors
    /// As [`Nccl::open`].
    pub fn open() -> Result<Self, ExecError> {
        Nccl::open(None).map(Self)
    }
}

impl Executor for NcclP2p {
    fn run(&mut self, case: &CallToRun<'_>, effort: &Effort) -> Result<Sample, ExecError> {
        let schedule = case.schedule.ok_or_else(ExecError::no_schedule)?;
        if matches!(case.launch, Launch::Processes | Launch::Threads) {
            return Err(ExecError::Refused {
                what: format!("launch {} is not one of the send/receive executor", case.launch),
                hint: "use --launch single_thread or graph",
            });
        }
        let waves = Waves::new(schedule)?;
        if waves.waves.len() > MAX_WAVES {
            return Err(ExecError::Refused {
                what: format!("the schedule has {} rounds of messages; at most {MAX_WAVES} are run", waves.waves.len()),
                hint: "take a smaller size, or more channels",
            });
        }
        self.0.connect(schedule.call.ranks)?;
        let work = Work::new(&self.0, schedule, &waves, effort.longest())?;
        let timer = Timer::new(&work, case.launch, work.patience)?;
        let sample = measured(&work, &timer, effort);
        if sample.is_err() && !idle(&work.streams) {
            // To free what a kernel uses would wait for its end.
            self.0.stuck = true;
            std::mem::forget(timer);
            std::mem::forget(work);
        }
        sample
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        self.0.facts()
    }
}

fn measured(work: &Work, timer: &Timer<'_>, effort: &Effort) -> Result<Sample, ExecError> {
    work.fill()?;
    work.once()?;
    let checked = work.check()?;
    let times_us = timer.run(effort, &mut || Ok(()), &mut Ok)?;
    if !work.ranks.iter().all(|rank| rank.buffers.repeats()) {
        work.fill()?;
        work.once()?;
    }
    work.check()?;
    Ok(Sample { times_us, checked, predicted_us: None })
}

struct WorkRank {
    buffers: RankBuffers,
    checker: Checker,
    kernel: Kernel,
    comm: RawComm,
    /// Address of the first combination of each wave, and their number.
    combinations: Vec<(u64, u32)>,
    /// By message of each wave: whether it leaves here, its place and its peer.
    messages: Vec<Vec<(bool, u64, Message)>>,
    _memory: Vec<Memory>,
}

struct Work {
    api: Arc<Api>,
    waves: usize,
    ranks: Vec<WorkRank>,
    streams: Vec<Stream>,
    /// Longest wait for one operation.
    patience: Duration,
}

// SAFETY: a communicator is used by one thread at a time, as NCCL asks.
unsafe impl Sync for Work {}

impl Work {
    fn new(nccl: &Nccl, schedule: &Schedule, waves: &Waves, patience: Duration) -> Result<Self, ExecError> {
        let call = &schedule.call;
        let devices = &nccl.devices[..call.ranks as usize];
        let slots = u64::from(waves.slot) * u64::from(waves.depth);
        // The GPUs of a host are alike.
        let source = concat!(include_str!("../cuda/element.cu"), include_str!("../cuda/combine.cu"));
        let arch = devices.first().map_or(0, |d| d.arch);
        let code = compile(source, arch, &macros(call)?)?;
        let mut ranks = Vec::new();
        for ((rank, device), &comm) in (0..).zip(devices).zip(&nccl.comms) {
            let kernel = Kernel::load(device, &code, &[c"combine_all"])?.pop();
            let kernel =
                kernel.ok_or(ExecError::Library { call: "cuModuleGetFunction", message: "no function".to_owned() })?;
            let buffers = RankBuffers::new(device, call, Rank(rank))?;
            let scratch = Memory::new(device, schedule.scratch_len(Rank(rank)) * call.dtype.size())?;
            // Slots of its connections: those that leave, then those that arrive.
            let mut offsets = vec![[0_u64; 2]; waves.ends.len()];
            let mut bytes = 0;
            for (offset, &(src, dst)) in offsets.iter_mut().zip(&waves.ends) {
                for (at, end) in offset.iter_mut().zip([src, dst]) {
                    if end == rank {
                        *at = bytes;
                        bytes += slots;
                    }
                }
            }
            let fifo = Memory::new(device, bytes)?;
            let bases = buffers.bases();
            let slot = |conn: u32, arrived: usize, slot: u32| {
                fifo.address + offsets[conn as usize][arrived] + u64::from(slot) * u64::from(waves.slot)
            };
            let address = |place: &Place| match *place {
                Place::Buffer(2, at) => scratch.address + at,
                Place::Buffer(buffer, at) => bases[buffer.min(1)] + at,
                Place::Leaving(conn, at) => slot(conn, 0, at),
                Place::Arrived(conn, at) => slot(conn, 1, at),
            };
            let mut all: Vec<Combine> = Vec::new();
            let (mut combinations, mut messages) = (Vec::new(), Vec::new());
            for wave in &waves.waves {
                let first = all.len();
                for combination in wave.combinations.iter().filter(|c| c.rank == rank) {
                    let mut op = Combine {
                        from: [0; MAX_ENDS],
                        to: [0; MAX_ENDS],
                        bytes: u64::from(combination.bytes),
                        sources: combination.from.len() as u32,
                        targets: combination.to.len() as u32,
                    };
                    op.from.iter_mut().zip(&combination.from).for_each(|(a, place)| *a = address(place));
                    op.to.iter_mut().zip(&combination.to).for_each(|(a, place)| *a = address(place));
                    all.push(op);
                }
                combinations.push((first as u64, (all.len() - first) as u32));
                let mine = wave.messages.iter().flat_map(|&m| {
                    let leaves = (m.src == rank).then(|| (true, slot(m.conn, 0, m.slot), m));
                    let arrives = (m.dst == rank).then(|| (false, slot(m.conn, 1, m.slot), m));
                    leaves.into_iter().chain(arrives)
                });
                messages.push(mine.collect());
            }
            let operations = Memory::of(device, &all)?;
            for (at, _) in &mut combinations {
                *at = operations.address + *at * size_of::<Combine>() as u64;
            }
            let checker = Checker::new(device, call)?;
            let _memory = vec![scratch, fifo, operations];
            ranks.push(WorkRank { buffers, checker, kernel, comm, combinations, messages, _memory });
        }
        let streams = devices.iter().map(Stream::new).collect::<Result<_, _>>()?;
        Ok(Self { api: Arc::clone(&nccl.api), waves: waves.waves.len(), ranks, streams, patience })
    }

    fn each(&self, act: impl Fn(&WorkRank, &Stream) -> Result<(), ExecError>) -> Result<(), ExecError> {
        self.ranks.iter().zip(&self.streams).try_for_each(|(rank, stream)| act(rank, stream))
    }

    fn fill(&self) -> Result<(), ExecError> {
        self.each(|rank, stream| rank.buffers.fill(&rank.checker, stream))
    }

    fn check(&self) -> Result<u64, ExecError> {
        self.ranks.iter().zip(&self.streams).map(|(rank, stream)| rank.buffers.check(&rank.checker, stream)).sum()
    }

    fn once(&self) -> Result<(), ExecError> {
        let enqueued = self.enqueue_all();
        let waited: Vec<_> = self.streams.iter().map(|s| s.wait(self.patience)).collect();
        enqueued?;
        waited.into_iter().collect()
    }

    fn combine(&self, local: usize, wave: usize) -> Result<(), ExecError> {
        let (rank, stream) = (&self.ranks[local], &self.streams[local]);
        let (mut at, count) = rank.combinations[wave];
        if count == 0 {
            return Ok(());
        }
        stream.device.enter()?;
        let mut arguments = [(&raw mut at).cast::<c_void>()];
        // SAFETY: the address of `count` combinations, whose memory lives in `self`.
        unsafe { stream.launch_grid(&rank.kernel, (GRID.0, count), GRID.1, 0, &mut arguments) }
    }

    fn exchange(&self, local: usize, wave: usize) -> Result<(), ExecError> {
        /// `ncclUint8`.
        const BYTES: i32 = 1;
        let (rank, stream) = (&self.ranks[local], &self.streams[local]);
        let at = Where { input: 0, output: 0, comm: rank.comm, stream: stream.raw.cast() };
        rank.messages[wave].iter().try_for_each(|&(leaves, place, message)| {
            let count = u64::from(message.bytes);
            if leaves {
                self.api.send(at, place, count, BYTES, message.dst)
            } else {
                self.api.recv(at, place, count, BYTES, message.src)
            }
        })
    }
}

impl Operation for Work {
    fn streams(&self) -> &[Stream] {
        &self.streams
    }

    fn enqueue(&self, local: usize) -> Result<(), ExecError> {
        (0..self.waves).try_for_each(|wave| {
            self.combine(local, wave)?;
            self.api.group(|| self.exchange(local, wave))
        })
    }

    fn enqueue_all(&self) -> Result<(), ExecError> {
        let locals = || 0..self.ranks.len();
        (0..self.waves).try_for_each(|wave| {
            locals().try_for_each(|local| self.combine(local, wave))?;
            if self.ranks.iter().all(|rank| rank.messages[wave].is_empty()) {
                return Ok(());
            }
            self.api.group(|| locals().try_for_each(|local| self.exchange(local, wave)))
        })
    }

    fn blank(&self) -> Result<(), ExecError> {
        self.each(|rank, stream| rank.buffers.blank(&rank.checker, stream))
    }

    fn outcome(&self) -> Result<(), ExecError> {
        Ok(())
    }
}

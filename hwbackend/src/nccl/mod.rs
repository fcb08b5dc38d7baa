//! Runs calls through NCCL's own collectives (and schedules through its send and receive: [`p2p`]): several GPUs of one process, or one GPU of each
//! of several processes.
//!
//! NCCL reads its settings once, from the environment; so each set of forced algorithm,
//! protocol and channels runs in a process of its own ([`job`]). NVLS is switched off there
//! unless the user asks for it.

#![allow(unsafe_code)] // Communicators and streams are raw pointers.

mod api;
pub mod job;
pub mod p2p;
mod waves;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use collcast_sim::collective::{Collective, Launch};
use collcast_sim::ids::Rank;
use collcast_sim::schedule::Call;
use serde::{Deserialize, Serialize};

use api::{Api, Place, RawComm, UniqueId};
pub use api::{data_type, reduction};

use crate::cuda::buffers::{Checker, RankBuffers};
use crate::cuda::driver::{Device, Stream, open, open_compiler};
use crate::cuda::facts::device_facts;
use crate::cuda::timing::{Operation, Timer};
use crate::exec::{CallToRun, Effort, ExecError, Executor, Sample};
use crate::rendezvous::{Group, World};

/// The executor of calls through NCCL.
#[derive(Debug)]
pub struct Nccl {
    api: Arc<Api>,
    devices: Vec<Arc<Device>>,
    /// The processes of the job, when there is one rank in each.
    job: Option<(World, Group)>,
    /// Communicators of the ranks of this process; they stay until the process ends.
    comms: Vec<RawComm>,
    /// Ranks that they belong to.
    ranks: u32,
    /// Whether a kernel waits for ever for a peer.
    stuck: bool,
}

impl Drop for Nccl {
    fn drop(&mut self) {
        // Kernels that wait would keep the process from ending.
        if self.stuck {
            self.api.abort(&self.comms);
        }
    }
}

/// Version of the library, such as `2.28.9`, where it is there.
pub fn version() -> Option<String> {
    library().ok()
}

/// Version of the library.
///
/// # Errors
/// Where it was looked for.
pub fn library() -> Result<String, ExecError> {
    Api::open().map(|api| api.version())
}

impl Nccl {
    /// Finds driver, GPUs, compiler (for the check of results) and NCCL.
    ///
    /// # Errors
    /// What is missing; an environment that leaves NVLS to NCCL.
    pub fn open(mut job: Option<(World, Group)>) -> Result<Self, ExecError> {
        if std::env::var_os("NCCL_NVLS_ENABLE").is_none() {
            return Err(ExecError::Refused {
                what: "NCCL_NVLS_ENABLE is not set".to_owned(),
                hint: "set it to 0 before the program starts, or to 1 to use NVLink multicast",
            });
        }
        let found = open().and_then(|devices| open_compiler().and_then(|_| Ok((Api::open()?, devices))));
        // Who goes on alone would wait for the others for ever. Our own error says best what to do.
        let all = agreed(&mut job.as_mut().map(|(_, group)| group), found.as_ref().map(|_| 0).map_err(copy));
        let ((api, devices), _) = (found?, all?);
        Ok(Self { api: Arc::new(api), devices, job, comms: Vec::new(), ranks: 0, stuck: false })
    }

    /// Connects the ranks of a call, once.
    fn connect(&mut self, ranks: u32) -> Result<(), ExecError> {
        if self.ranks == ranks {
            return Ok(());
        }
        match &mut self.job {
            Some((world, group)) => {
                if world.size != ranks {
                    return Err(ExecError::Rendezvous(format!("the call has {ranks} ranks, the job {}", world.size)));
                }
                let place = place(world, self.devices.len());
                let seat = Seat {
                    place,
                    gpus: self.devices.len(),
                    // One kernel of Linux is one host; containers share it.
                    host: std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
                    pci: self.devices.get(place).map(|device| device.pci.clone()).unwrap_or_default(),
                };
                let shares = std::env::var_os("NCCL_HOSTID").is_some();
                if let Some(what) = unseated(&seats(group, &seat)?, shares) {
                    return Err(missing(what));
                }
                let device = &self.devices[place];
                group.agreed(device.enter().map(|()| 0))?;
                let id = match group.rank {
                    0 => self.api.unique_id()?.0.to_vec(),
                    _ => Vec::new(),
                };
                let id = <[u8; 128]>::try_from(group.broadcast(id)?);
                let id = UniqueId(id.map_err(|_| ExecError::Rendezvous("rank 0 sent no NCCL id".to_owned()))?);
                self.comms = vec![self.api.join(id, world.size, world.rank)?];
            }
            None => {
                let ordinals: Vec<i32> = self.devices.iter().take(ranks as usize).map(|d| d.ordinal).collect();
                if ordinals.len() < ranks as usize {
                    return Err(missing(format!("{ranks} ranks, but {} GPUs", self.devices.len())));
                }
                self.comms = self.api.init_all(&ordinals)?;
            }
        }
        self.ranks = ranks;
        Ok(())
    }
}

fn missing(what: String) -> ExecError {
    ExecError::Missing {
        what,
        hint: "NCCL wants a GPU for each rank of a host; take fewer --ranks, or play each as a host of its own: \
               --launch processes --env NCCL_HOSTID=h{rank}"
            .to_owned(),
    }
}

/// The same error, for the others.
fn copy(error: &ExecError) -> ExecError {
    ExecError::Rendezvous(error.to_string())
}

/// The GPU of a process: the only one that it sees, as launchers show one to each, or that of its place on the host. NCCL takes
/// one twice only from processes that it believes to be on different hosts.
fn place(world: &World, gpus: usize) -> usize {
    let local = world.local as usize;
    if gpus == 1 || std::env::var_os("NCCL_HOSTID").is_some() { local % gpus.max(1) } else { local }
}

/// The GPU that a process takes, as all are told.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Seat {
    place: usize,
    /// How many the process sees.
    gpus: usize,
    /// The host, where it has a name.
    host: String,
    pci: String,
}

/// The seats of all processes, by rank.
fn seats(group: &mut Group, mine: &Seat) -> Result<Vec<Seat>, ExecError> {
    let odd = |e: serde_json::Error| ExecError::Rendezvous(format!("another process: {e}"));
    let said = group.gather(&serde_json::to_vec(mine).map_err(odd)?)?;
    let all = match said {
        Some(all) => {
            let all = all.iter().map(|one| serde_json::from_slice(one)).collect::<Result<Vec<Seat>, _>>();
            serde_json::to_vec(&all.map_err(odd)?).map_err(odd)?
        }
        None => Vec::new(),
    };
    serde_json::from_slice(&group.broadcast(all)?).map_err(odd)
}

/// Why not every process has a GPU of its own, the same at each; some may share one where NCCL believes them to be on
/// different hosts.
fn unseated(seats: &[Seat], shares: bool) -> Option<String> {
    let mut taken = BTreeMap::new();
    for (rank, seat) in seats.iter().enumerate() {
        if seat.place >= seat.gpus {
            return Some(format!("process {rank} wants GPU {}, of {}", seat.place, seat.gpus));
        }
        let before = taken.insert((&seat.host, &seat.pci), rank).filter(|_| !shares && !seat.host.is_empty());
        if let Some(before) = before {
            return Some(format!("processes {before} and {rank} have the same GPU, {}", seat.pci));
        }
    }
    None
}

impl Executor for Nccl {
    fn run(&mut self, case: &CallToRun<'_>, effort: &Effort) -> Result<Sample, ExecError> {
        let call = case.call;
        if (case.launch == Launch::Processes) != self.job.is_some() {
            return Err(ExecError::Refused {
                what: format!("launch {} does not fit the way this process was started", case.launch),
                hint: "--launch processes runs one process for each GPU",
            });
        }
        self.connect(call.ranks)?;
        let (first, devices) = match &self.job {
            Some((world, _)) => {
                let place = place(world, self.devices.len());
                (world.rank, &self.devices[place..=place])
            }
            None => (0, &self.devices[..call.ranks as usize]),
        };
        let mut ranks = Vec::new();
        for ((rank, device), &comm) in (first..).zip(devices).zip(&self.comms) {
            let buffers = RankBuffers::rotating(device, call, Rank(rank))?;
            ranks.push(NcclRank { checker: Checker::new(device, call)?, buffers, comm });
        }
        let streams = devices.iter().map(Stream::new).collect::<Result<_, _>>()?;
        let patience = effort.longest();
        let work = NcclCall { api: Arc::clone(&self.api), call: call.clone(), ranks, streams, patience };
        let timer = Timer::new(&work, case.launch, patience)?;
        let sample = measured(&work, &timer, &mut self.job.as_mut().map(|(_, group)| group), effort);
        if sample.is_err() && !idle(&work.streams) {
            // NCCL's own words say more than that a kernel waits.
            let known = self.comms.iter().find_map(|&comm| self.api.background(comm));
            // To free what a kernel uses would wait for its end.
            self.stuck = true;
            std::mem::forget(timer);
            std::mem::forget(work);
            return known.map_or(sample, Err);
        }
        sample
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        device_facts(&self.devices).into_iter().chain([("nccl_version", self.api.version())]).collect()
    }
}

/// Whether nothing runs in any of the streams.
fn idle(streams: &[Stream]) -> bool {
    streams.iter().all(|stream| stream.wait(Duration::ZERO).is_ok())
}

/// Runs a call, checks it and times it; `group` are the other processes, where there are any.
fn measured(
    work: &NcclCall,
    timer: &Timer<'_>,
    group: &mut Option<&mut Group>,
    effort: &Effort,
) -> Result<Sample, ExecError> {
    work.fill()?;
    work.once()?;
    let checked = agreed(group, work.check())?;
    let meet_group = std::cell::RefCell::new(group.as_deref_mut());
    let mut meet = || meet_group.borrow_mut().as_mut().map_or(Ok(()), |g| g.barrier());
    let mut agree = |value: f64| match meet_group.borrow_mut().as_mut() {
        Some(group) => Ok(group.slowest(&[value])?[0]),
        None => Ok(value),
    };
    let times = timer.run(effort, &mut meet, &mut agree)?;
    let times_us = match group {
        Some(group) => group.slowest(&times)?,
        None => times,
    };
    if !work.ranks.iter().all(|rank| rank.buffers.repeats()) {
        work.fill()?;
        work.once()?;
    }
    agreed(group, work.check())?;
    // NCCL has a model of collectives alone: sends of a simulated group stay queued and run with
    // the next one (2.28.9). In several processes it is not worth the messages.
    let modelled = group.is_none() && !work.call.collective.point_to_point();
    let predicted_us = if modelled { work.api.simulate(|| work.enqueue_each())? } else { None };
    Ok(Sample { times_us, checked, predicted_us })
}

/// The sum of what all processes checked; an error of any is an error of all.
fn agreed(group: &mut Option<&mut Group>, mine: Result<u64, ExecError>) -> Result<u64, ExecError> {
    match group {
        Some(group) => group.agreed(mine),
        None => mine,
    }
}

#[derive(Debug)]
struct NcclRank {
    buffers: RankBuffers,
    checker: Checker,
    comm: RawComm,
}

struct NcclCall {
    api: Arc<Api>,
    call: Call,
    ranks: Vec<NcclRank>,
    streams: Vec<Stream>,
    /// Longest wait for one operation.
    patience: Duration,
}

// SAFETY: a communicator is used by one thread at a time, as NCCL asks.
unsafe impl Sync for NcclCall {}

impl NcclCall {
    fn pairs(&self) -> impl Iterator<Item = (&NcclRank, &Stream)> {
        self.ranks.iter().zip(&self.streams)
    }

    fn fill(&self) -> Result<(), ExecError> {
        self.pairs().try_for_each(|(rank, stream)| rank.buffers.fill(&rank.checker, stream))
    }

    fn check(&self) -> Result<u64, ExecError> {
        self.pairs().map(|(rank, stream)| rank.buffers.check(&rank.checker, stream)).sum()
    }

    fn once(&self) -> Result<(), ExecError> {
        self.enqueue_all()?;
        self.streams.iter().try_for_each(|s| s.wait(self.patience))
    }

    fn enqueue_each(&self) -> Result<(), ExecError> {
        (0..self.ranks.len()).try_for_each(|local| self.enqueue(local))
    }
}

impl Operation for NcclCall {
    fn streams(&self) -> &[Stream] {
        &self.streams
    }

    fn enqueue(&self, local: usize) -> Result<(), ExecError> {
        let (rank, call, api) = (&self.ranks[local], &self.call, &self.api);
        let (place, turn) = (rank.buffers.addresses(), rank.buffers.turn());
        let (input, output) = (place[0] + turn[0], place[1] + turn[1]);
        let at = Place { input, output, comm: rank.comm, stream: self.streams[local].raw.cast() };
        let (dtype, op, element) = (data_type(call.dtype), reduction(call.op), call.dtype.size());
        let me = rank.buffers.rank;
        match call.collective {
            Collective::AllReduce => api.all_reduce(at, call.count, dtype, op),
            Collective::ReduceScatter => api.reduce_scatter(at, call.count, dtype, op),
            Collective::AllGather => api.all_gather(at, call.count, dtype),
            Collective::Broadcast => api.broadcast(at, call.count, dtype, call.root.0),
            Collective::Reduce => api.reduce(at, call.count, dtype, op, call.root.0),
            Collective::SendRecv => api.group(|| {
                let (next, previous) = ((me.0 + 1) % call.ranks, (me.0 + call.ranks - 1) % call.ranks);
                api.send(at, input, call.count, dtype, next)?;
                api.recv(at, output, call.count, dtype, previous)
            }),
            Collective::AllToAll => api.group(|| {
                (0..call.ranks).map(Rank).try_for_each(|peer| {
                    let (from, to) = (call.send_offset(me, peer), call.recv_offset(peer, me));
                    api.send(at, input + from * element, call.pair_count(me, peer), dtype, peer.0)?;
                    api.recv(at, output + to * element, call.pair_count(peer, me), dtype, peer.0)
                })
            }),
            // As nccl-tests writes them: the root sends to itself too.
            Collective::Gather => api.group(|| {
                api.send(at, input, call.count, dtype, call.root.0)?;
                (0..call.ranks).filter(|_| me == call.root).try_for_each(|peer| {
                    api.recv(at, output + u64::from(peer) * call.count * element, call.count, dtype, peer)
                })
            }),
            Collective::Scatter => api.group(|| {
                (0..call.ranks).filter(|_| me == call.root).try_for_each(|peer| {
                    api.send(at, input + u64::from(peer) * call.count * element, call.count, dtype, peer)
                })?;
                api.recv(at, output, call.count, dtype, call.root.0)
            }),
        }
    }

    fn enqueue_all(&self) -> Result<(), ExecError> {
        if self.ranks.len() == 1 {
            self.streams[0].device.enter()?;
            return self.enqueue(0);
        }
        self.api.group(|| self.enqueue_each())
    }

    fn blank(&self) -> Result<(), ExecError> {
        self.pairs().try_for_each(|(rank, stream)| rank.buffers.blank(&rank.checker, stream))
    }

    fn outcome(&self) -> Result<(), ExecError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a process that sees one GPU takes it; two that have the same one, or one that has none, are named at all.
    #[test]
    fn each_process_has_a_gpu_of_its_own() {
        let address = "127.0.0.1".to_owned();
        let world = World { rank: 3, size: 4, local: 3, address, port: 1, launcher: "a test", job: 0 };
        assert_eq!((place(&world, 1), place(&world, 4), place(&world, 2)), (0, 3, 3));
        let seat =
            |place, gpus, pci: &str, host: &str| Seat { place, gpus, host: host.to_owned(), pci: pci.to_owned() };
        let apart = [seat(0, 1, "01", "a"), seat(0, 1, "02", "a"), seat(0, 1, "01", "b"), seat(1, 2, "02", "b")];
        assert_eq!(unseated(&apart, false), None);
        let twice = [seat(0, 1, "01", "a"), seat(0, 1, "02", "a"), seat(0, 1, "01", "a")];
        assert_eq!(unseated(&twice, false).as_deref(), Some("processes 0 and 2 have the same GPU, 01"));
        assert_eq!(unseated(&twice, true), None);
        let few = [seat(0, 2, "01", "a"), seat(1, 2, "02", "a"), seat(2, 2, "", "a")];
        assert_eq!(unseated(&few, false).as_deref(), Some("process 2 wants GPU 2, of 2"));
    }
}

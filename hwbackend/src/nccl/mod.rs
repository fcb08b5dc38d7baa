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

use std::sync::Arc;
use std::time::Duration;

use collcast_sim::collective::{Collective, Launch};
use collcast_sim::ids::Rank;
use collcast_sim::schedule::Call;

use api::{Api, Place, RawComm, UniqueId, data_type, reduction};

use crate::cuda::buffers::{Checker, RankBuffers};
use crate::cuda::driver::{Device, Stream, open, open_compiler};
use crate::cuda::facts::device_facts;
use crate::cuda::timing::{Operation, Timer};
use crate::exec::{CallToRun, Effort, ExecError, Executor, Sample};
use crate::rendezvous::{Group, World};

/// Longest wait for a batch of NCCL's: what waits for a peer that is gone waits for ever.
const PATIENCE: Duration = Duration::from_secs(90);

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
    pub fn open(job: Option<(World, Group)>) -> Result<Self, ExecError> {
        if std::env::var_os("NCCL_NVLS_ENABLE").is_none() {
            return Err(ExecError::Refused {
                what: "NCCL_NVLS_ENABLE is not set".to_owned(),
                hint: "set it to 0 before the program starts, or to 1 to use NVLink multicast",
            });
        }
        let devices = open()?;
        open_compiler()?;
        Ok(Self { api: Arc::new(Api::open()?), devices, job, comms: Vec::new(), ranks: 0 })
    }

    /// Connects the ranks of a call, once.
    fn connect(&mut self, ranks: u32) -> Result<(), ExecError> {
        if self.ranks == ranks {
            return Ok(());
        }
        let missing = |what: String| ExecError::Missing {
            what,
            hint: "NCCL wants a GPU for each rank of a host; take fewer --ranks, or play each as a host of its own: \
                   --launch processes --env NCCL_HOSTID=h{rank}"
                .to_owned(),
        };
        match &mut self.job {
            Some((world, group)) => {
                if world.size != ranks {
                    return Err(ExecError::Rendezvous(format!("the call has {ranks} ranks, the job {}", world.size)));
                }
                let place = place(world, &self.devices);
                let device = self.devices.get(place).ok_or_else(|| {
                    missing(format!("process {} wants GPU {place}, of {}", world.rank, self.devices.len()))
                })?;
                let id = match group.rank {
                    0 => self.api.unique_id()?.0.to_vec(),
                    _ => Vec::new(),
                };
                let id = <[u8; 128]>::try_from(group.broadcast(id)?);
                let id = UniqueId(id.map_err(|_| ExecError::Rendezvous("rank 0 sent no NCCL id".to_owned()))?);
                device.enter()?;
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

/// The GPU of a process. NCCL takes one twice only from processes that it believes to be on different hosts.
fn place(world: &World, devices: &[Arc<Device>]) -> usize {
    let local = world.local as usize;
    if std::env::var_os("NCCL_HOSTID").is_some() { local % devices.len().max(1) } else { local }
}

impl Executor for Nccl {
    fn run(&mut self, case: &CallToRun<'_>, effort: &Effort) -> Result<Sample, ExecError> {
        let call = case.call;
        if matches!(call.collective, Collective::Gather | Collective::Scatter) {
            return Err(ExecError::Refused {
                what: format!("{} has no call in NCCL", call.collective),
                hint: "use all_to_all",
            });
        }
        if (case.launch == Launch::Processes) != self.job.is_some() {
            return Err(ExecError::Refused {
                what: format!("launch {} does not fit the way this process was started", case.launch),
                hint: "--launch processes runs one process for each GPU",
            });
        }
        self.connect(call.ranks)?;
        let (first, devices) = match &self.job {
            Some((world, _)) => {
                let place = place(world, &self.devices);
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
        let work = NcclCall { api: Arc::clone(&self.api), call: call.clone(), ranks, streams };
        let group = &mut self.job.as_mut().map(|(_, group)| group);

        work.fill()?;
        work.once()?;
        let checked = agreed(group, work.check())?;
        let timer = Timer::new(&work, case.launch, PATIENCE)?;
        let meet_group = std::cell::RefCell::new(group.as_deref_mut());
        let mut meet = || meet_group.borrow_mut().as_mut().map_or(Ok(()), |g| g.barrier());
        let mut agree = |value: f64| match meet_group.borrow_mut().as_mut() {
            Some(group) => Ok(group.slowest(&[value])?[0]),
            None => Ok(value),
        };
        let times = timer.run(effort, &mut meet, &mut agree)?;
        let group = &mut self.job.as_mut().map(|(_, group)| group);
        let times_us = match group {
            Some(group) => group.slowest(&times)?,
            None => times,
        };
        if !call.in_place {
            work.poison()?;
            work.once()?;
            agreed(group, work.check())?;
        }
        // NCCL has a model of collectives alone: sends of a simulated group stay queued and run with
        // the next one (2.28.9). In several processes it is not worth the messages.
        let modelled = self.job.is_none() && !matches!(call.collective, Collective::SendRecv | Collective::AllToAll);
        let predicted_us = if modelled { work.api.simulate(|| work.enqueue_each())? } else { None };
        Ok(Sample { times_us, checked, predicted_us })
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        device_facts(&self.devices).into_iter().chain([("nccl_version", self.api.version())]).collect()
    }
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

    fn poison(&self) -> Result<(), ExecError> {
        self.ranks.iter().try_for_each(|rank| rank.buffers.poison())
    }

    fn check(&self) -> Result<u64, ExecError> {
        self.pairs().map(|(rank, stream)| rank.buffers.check(&rank.checker, stream)).sum()
    }

    fn once(&self) -> Result<(), ExecError> {
        self.enqueue_all()?;
        self.streams.iter().try_for_each(|s| s.wait(PATIENCE))
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
            Collective::Gather | Collective::Scatter => {
                Err(ExecError::Library { call: "enqueue", message: "no such call in NCCL".to_owned() })
            }
        }
    }

    fn enqueue_all(&self) -> Result<(), ExecError> {
        if self.ranks.len() == 1 {
            self.streams[0].device.enter()?;
            return self.enqueue(0);
        }
        self.api.group(|| self.enqueue_each())
    }

    fn outcome(&self) -> Result<(), ExecError> {
        Ok(())
    }
}

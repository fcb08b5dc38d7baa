//! Sends bytes by their ways, on the engine.

use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};
use thiserror::Error;

use super::way::{Stage, Used, Way};
use crate::engine::flows::{Use, WEIGHT_ONE};
use crate::engine::{EngineError, Instance, TaskSpec, Unobserved, run as run_engine};
use crate::network::{Hop, is_arm};
use crate::profile::Constant;
use crate::schedule::wiring::UNUSED;
use crate::topology::Topology;
use crate::units::{PS_PER_S, SimDuration, SimTime};

/// Bytes of a buffer between two stages: UCX's fragment of a rendezvous through host memory (`UCX_RNDV_FRAG_SIZE`, 4 MiB
/// of CUDA memory).
const BUFFER: u64 = 4 << 20;
/// Buffers between two stages that one transfer has: one is filled while the other is emptied, and one more on each side
/// is on its way.
const BUFFERS: usize = 4;
/// Pieces of one transfer at most; buffers grow beyond that.
const MOST_PIECES: u64 = 2048;
/// Pieces of all transfers at most: some hundred bytes each.
const MOST_TASKS: u64 = 500_000;

/// Bytes on their way.
#[derive(Clone, PartialEq, Debug)]
pub struct Load {
    /// By which way.
    pub way: Way,
    /// How many.
    pub bytes: u64,
    /// Bytes of a contiguous piece, each with a descriptor of its own.
    pub block: u64,
    /// Whether memory at both ends is registered first, as where buffers are new; else that is done already.
    pub register: bool,
    /// When each of equal parts of them is there to be sent; one part at the start where it is empty.
    pub ready: Vec<SimTime>,
}

/// When a load was through.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Finished {
    /// When the receivers of each load know that all of it is there, in the order of loads.
    pub ends: Vec<SimTime>,
    /// What was used most, with the part of the time until the last end that it was busy.
    pub busiest: Option<(Used, f64)>,
}

/// Why transfers cannot be simulated.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum TransferError {
    /// The engine's limits.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Too many pieces.
    #[error("the transfers have {0} pieces, at most {MOST_TASKS} are simulated; take fewer of them, or fewer layers")]
    TooMany(u64),
}

#[derive(Default)]
struct Builder {
    resources: Vec<u64>,
    names: Vec<Used>,
    known: FxHashMap<Used, u32>,
    tasks: Vec<TaskSpec>,
}

/// Sends loads, all from time 0.
///
/// # Errors
/// More pieces than are simulated, or times that the engine does not hold.
pub fn run(loads: &[Load], descriptor: SimDuration) -> Result<Finished, TransferError> {
    let all: u64 = loads.iter().map(|load| pieces(load).len() as u64 * load.way.stages.len() as u64 + 3).sum();
    if all > MOST_TASKS {
        return Err(TransferError::TooMany(all));
    }
    let mut builder = Builder::default();
    let last: Vec<u32> = loads.iter().map(|load| builder.load(load, descriptor)).collect();
    let instance = Instance { resources: builder.resources, tasks: builder.tasks, ..Instance::default() };
    let outcome = run_engine(&instance, &mut Unobserved)?;
    let ends: Vec<SimTime> = last.iter().map(|&task| outcome.task_ends[task as usize]).collect();
    let end = ends.iter().map(|end| end.0).max().unwrap_or(0);
    let busy = |index: usize| {
        let most = instance.resources[index] as f64 * end as f64 / PS_PER_S as f64 * WEIGHT_ONE as f64;
        outcome.load[index] as f64 / most.max(1.0)
    };
    let busiest = (0..builder.names.len()).map(|i| (builder.names[i], busy(i))).max_by(|a, b| a.1.total_cmp(&b.1));
    Ok(Finished { ends, busiest })
}

/// Pieces of a load, each with its bytes and when it is there to be sent.
fn pieces(load: &Load) -> Vec<(u64, SimTime)> {
    let start = [SimTime(0)];
    let ready: &[SimTime] = if load.ready.is_empty() { &start } else { &load.ready };
    let parts = ready.len() as u64;
    // A way of one stage needs no buffers: its parts go as they are.
    let most = if load.way.stages.len() > 1 { BUFFER.max(load.bytes.div_ceil(MOST_PIECES)) } else { u64::MAX };
    let mut pieces = Vec::new();
    for (index, &at) in (0..).zip(ready) {
        let up_to = |i: u64| (u128::from(load.bytes) * u128::from(i) / u128::from(parts)) as u64;
        let mut left = up_to(index + 1) - up_to(index);
        while left > 0 {
            let bytes = left.min(most);
            pieces.push((bytes, at));
            left -= bytes;
        }
    }
    pieces
}

impl Builder {
    fn resource(&mut self, used: Used, capacity: u64) -> u32 {
        *self.known.entry(used).or_insert_with(|| {
            self.resources.push(capacity);
            self.names.push(used);
            u32::try_from(self.resources.len() - 1).unwrap_or(UNUSED)
        })
    }

    fn task(&mut self, spec: TaskSpec) -> u32 {
        self.tasks.push(spec);
        u32::try_from(self.tasks.len() - 1).unwrap_or(UNUSED)
    }

    /// What a byte of a stage uses.
    fn uses(&mut self, stage: &Stage, load: &Load, descriptor: SimDuration) -> SmallVec<[Use; 4]> {
        let mut uses: SmallVec<[Use; 4]> =
            stage.uses.iter().map(|&(used, rate, weight)| (self.resource(used, rate.get()), weight)).collect();
        for &(nic, share) in &stage.posts {
            // In ps of work for a byte.
            let weight = (descriptor.0 as f64 / load.block.max(1) as f64 * share as f64).ceil() as u64;
            if weight > 0 {
                uses.push((self.resource(Used::Posts(nic), PS_PER_S as u64), weight));
            }
        }
        if let Some((part, each, host)) = stage.requests {
            // Each transfer has its own.
            self.known.remove(&Used::Requests(host));
            // The first request carries a whole part where there are several, and none ends before it.
            let at_once = (load.bytes as f64 / part as f64).max(1.0);
            let capacity = (each.get() as f64 * at_once) as u64;
            uses.push((self.resource(Used::Requests(host), capacity.max(1)), WEIGHT_ONE));
        }
        uses
    }

    /// The tasks of a load; gives the one with whose end all of it is there.
    fn load(&mut self, load: &Load, descriptor: SimDuration) -> u32 {
        let stages = &load.way.stages;
        let uses: Vec<SmallVec<[Use; 4]>> = stages.iter().map(|stage| self.uses(stage, load, descriptor)).collect();
        let hosts = load.way.registers.iter().filter(|_| load.register);
        let known: SmallVec<[Use; 4]> =
            hosts.map(|&(host, rate)| (self.resource(Used::Registration(host), rate.get()), WEIGHT_ONE)).collect();
        let work = if load.register && !load.way.registers.is_empty() { load.bytes } else { 0 };
        let registered = self.task(TaskSpec { uses: known, work, ..TaskSpec::default() });
        let after = smallvec![(registered, SimDuration::ZERO)];
        let request = self.task(TaskSpec { lasts: load.way.request, after, ..TaskSpec::default() });
        // By piece, then stage.
        let mut sent: Vec<Vec<u32>> = Vec::new();
        for (bytes, at) in pieces(load) {
            let mut row: Vec<u32> = Vec::new();
            for (index, stage) in stages.iter().enumerate() {
                let mut after: SmallVec<[(u32, SimDuration); 4]> = smallvec![];
                match index.checked_sub(1) {
                    Some(before) => after.push((row[before], stages[before].latency)),
                    None => after.push((request, SimDuration::ZERO)),
                }
                if let Some(previous) = sent.last() {
                    after.push((previous[index], SimDuration::ZERO));
                }
                // Its buffer is free again once the next stage has read it.
                // Requests to an object store each have one.
                let bounded = index + 1 < stages.len() && stage.requests.is_none();
                let freed = sent.len().checked_sub(BUFFERS).filter(|_| bounded);
                if let Some(freed) = freed {
                    after.push((sent[freed][index + 1], SimDuration::ZERO));
                }
                let spec = TaskSpec {
                    uses: uses[index].clone(),
                    work: bytes,
                    lasts: stage.start,
                    at: if index == 0 { at } else { SimTime(0) },
                    after,
                    ..TaskSpec::default()
                };
                row.push(self.task(spec));
            }
            sent.push(row);
        }
        let end = sent.last().and_then(|row| row.last()).copied().unwrap_or(request);
        let latency = stages.last().map_or(SimDuration::ZERO, |stage| stage.latency);
        let after = smallvec![(end, latency + load.way.notify)];
        self.task(TaskSpec { after, ..TaskSpec::default() })
    }
}

impl Used {
    /// The constant of a profile that is its rate, where that is not of the machine's file.
    pub fn constant(self, topology: &Topology) -> Option<Constant> {
        match self {
            Self::Hop(Hop::Memory(cpu)) if is_arm(topology, cpu) => Some(Constant::HostMemoryArm),
            Self::Hop(Hop::Memory(_)) => Some(Constant::HostMemory),
            Self::Posts(_) => Some(Constant::TransferDescriptor),
            Self::Thread(_) => Some(Constant::TcpThread),
            Self::FileThread(_) => Some(Constant::FileThread),
            Self::Registration(_) => Some(Constant::TransferRegister),
            Self::Requests(_) => Some(Constant::StoreRequest),
            Self::Hop(_) | Self::Drives(_) | Self::StorePorts(_) => None,
        }
    }

    /// Its name on a machine.
    pub fn name(self, topology: &Topology) -> String {
        match self {
            Self::Hop(Hop::Link(link)) => topology.link_name(link),
            Self::Hop(Hop::Memory(cpu)) => format!("memory of {}", topology.vertex(cpu).name),
            Self::Hop(Hop::Direct(nic, reads, _)) => {
                format!("{} {} GPU memory", topology.vertex(nic).name, if reads { "reads" } else { "writes" })
            }
            Self::Drives(host) => format!("drives of {}", topology.hosts()[host.index()].name),
            Self::Posts(nic) => format!("descriptors of {}", topology.vertex(nic).name),
            Self::Thread(host) => format!("thread for sockets of {}", topology.hosts()[host.index()].name),
            Self::FileThread(host) => format!("thread for files of {}", topology.hosts()[host.index()].name),
            Self::StorePorts(host) => format!("storage ports of {}", topology.hosts()[host.index()].name),
            Self::Registration(host) => format!("registration of memory of {}", topology.hosts()[host.index()].name),
            Self::Requests(host) => format!("requests to the object store of {}", topology.hosts()[host.index()].name),
        }
    }
}

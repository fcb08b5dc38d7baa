//! Runs schedules on GPUs: one interpreter kernel over peer memory, one block a channel, one
//! group of warps a lane; where the lanes of a channel are too many for a block, each has a block
//! of its own. All GPUs are driven by this process.
//!
//! The kernel (`interpret.cu`) is compiled at run time for the device found and for one
//! protocol, element type and reduction. It knows records ([`crate::flat`]) and no algorithm.
//! Data waits in FIFOs of the receiver's memory; where there are fewer GPUs than ranks, several
//! ranks share a GPU.

#![allow(unsafe_code)] // Kernel arguments are passed by address.

pub(crate) mod buffers;
mod copies;
mod cublaslt;
pub(crate) mod driver;
pub(crate) mod facts;
mod host_copies;
mod kernels;
pub mod overlap;
pub(crate) mod timing;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use collcast_sim::collective::{Algorithm, Launch, Protocol};
use collcast_sim::ids::Rank;
use collcast_sim::schedule::Schedule;

pub use host_copies::{Copies, FILE, HostCopy};

pub use cublaslt::{CHOOSES, Element, Linear, LinearPass};

use buffers::{Checker, RankBuffers, macros};
use driver::{Device, Kernel, Memory, Pinned, Stream, compile, open, open_compiler};
use facts::device_facts;
use timing::{Operation, Timer};

use crate::exec::{CallToRun, Effort, ExecError, Executor, Sample, slot_bytes};
use crate::flat::{Flat, FlatLane, Record};
use crate::nvml::Nvml;
use crate::probe::{Seen, cpus};

/// `MAX_LANES` of `interpret.cu`: hardware has 16 barriers a block, a lane uses two.
const MAX_LANES: usize = 7;
/// Most threads of a block.
const THREADS_MAX: u32 = 1024;
/// `sizeof(Lane)` and `sizeof(Live)` there: shared memory of a lane, and of each of its ports.
const LANE_SHARED: u32 = 3696;
const PORT_SHARED: u32 = 56;
/// Shared memory that every GPU gives a block unasked (CUDA programming guide, 48 KiB).
const SHARED_MAX: u32 = 48 << 10;
/// Ranks of one GPU: their kernels must run at once, each in a queue of the driver of its own, which keeps 8 to 32 apart
/// (`CUDA_DEVICE_MAX_CONNECTIONS`, CUDA programming guide).
const MAX_SHARING: u32 = 8;
/// Bytes from one counter to the next: each has a cache line of its own. `SIGNAL_STRIDE` there.
const COUNTER: u64 = 128;
/// Blocks of a cluster, where the GPU has clusters (compute capability 9.0). Blocks side by side
/// use the links better than blocks spread over the GPU: ring/Simple of 256 MiB over 24 channels
/// of 4 H200 ran at 345 GB/s with clusters of 4 and at 304 GB/s without (2026-11-21).
const CLUSTER: u32 = 4;
/// Sizes of block that the kernel is compiled for; its registers go by them.
const BLOCK_SIZES: [u32; 6] = [288, 416, 544, 640, 768, 1024];

/// `Port` of `interpret.cu`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct DevicePort {
    fifo: u64,
    wait: u64,
    post: u64,
    step: u64,
    peer: u32,
    grows: u32,
}

/// `Report` of `interpret.cu`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
struct Report {
    set: u32,
    block: u32,
    lane: u32,
    record: u32,
    peer: u32,
    what: u32,
}

/// `Args` of `interpret.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    buffers: [u64; 3],
    records: u64,
    counts: u64,
    ports: u64,
    signals: u64,
    report: u64,
    stop: u64,
    patience_ns: u64,
    slot_bytes: u64,
    depth: u32,
    record_stride: u32,
    port_stride: u32,
    lanes: u32,
    lane_threads: [u32; MAX_LANES + 1],
}

/// The executor of schedules on GPUs.
#[derive(Debug)]
pub struct Cuda {
    devices: Vec<Arc<Device>>,
    compiler: String,
    /// Machine code by architecture and options; loaded by device.
    code: BTreeMap<(i32, Vec<String>), Vec<u8>>,
    kernels: BTreeMap<(i32, Vec<String>), Arc<Kernel>>,
    checkers: BTreeMap<(i32, Vec<String>), Arc<Checker>>,
}

impl Cuda {
    /// Finds driver, compiler and GPUs, and lets every GPU reach all others.
    ///
    /// # Errors
    /// What is missing.
    pub fn open() -> Result<Self, ExecError> {
        let devices = open()?;
        let compiler = open_compiler()?;
        Ok(Self { devices, compiler, code: BTreeMap::new(), kernels: BTreeMap::new(), checkers: BTreeMap::new() })
    }

    fn kernel(&mut self, device: &Device, options: Vec<String>) -> Result<Arc<Kernel>, ExecError> {
        let key = (device.ordinal, options);
        if let Some(kernel) = self.kernels.get(&key) {
            return Ok(Arc::clone(kernel));
        }
        let built = (device.arch, key.1.clone());
        if !self.code.contains_key(&built) {
            let code = compile(concat!(include_str!("element.cu"), include_str!("interpret.cu")), device.arch, &key.1)?;
            self.code.insert(built.clone(), code);
        }
        let kernel = Kernel::load(device, &self.code[&built], &[c"interpret"])?.into_iter().next().map(Arc::new);
        let kernel =
            kernel.ok_or(ExecError::Library { call: "cuModuleGetFunction", message: "no function".to_owned() })?;
        self.kernels.insert(key, Arc::clone(&kernel));
        Ok(kernel)
    }

    fn checker(&mut self, device: &Device, schedule: &Schedule) -> Result<Arc<Checker>, ExecError> {
        let key = (device.ordinal, macros(&schedule.call)?.to_vec());
        if let Some(checker) = self.checkers.get(&key) {
            return Ok(Arc::clone(checker));
        }
        let checker = Arc::new(Checker::new(device, &schedule.call)?);
        self.checkers.insert(key, Arc::clone(&checker));
        Ok(checker)
    }
}

impl Executor for Cuda {
    fn run(&mut self, case: &CallToRun<'_>, effort: &Effort) -> Result<Sample, ExecError> {
        let schedule = case.schedule.ok_or_else(ExecError::no_schedule)?;
        if case.launch == Launch::Processes {
            return Err(ExecError::Refused {
                what: "the CUDA backend drives all GPUs from one process".to_owned(),
                hint: "use --launch threads, single_thread or graph, or --backend nccl",
            });
        }
        let loaded = Loaded::new(self, schedule, effort.patience)?;
        loaded.fill()?;
        // A first run for the result alone, before anything is timed.
        loaded.once()?;
        let checked = loaded.check()?;
        // Every wait of a kernel is bounded, so a batch is; the rest is for queues behind it.
        let timer = Timer::new(&loaded, case.launch, effort.longest())?;
        let times_us = timer.run(effort, &mut || Ok(()), &mut Ok)?;
        if !loaded.repeats() {
            loaded.fill()?;
            loaded.once()?;
        }
        loaded.check()?;
        Ok(Sample { times_us, checked, predicted_us: None })
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        device_facts(&self.devices).into_iter().chain([("nvrtc", self.compiler.clone())]).collect()
    }
}

impl Cuda {
    /// The host as driver and NVML see it. GPUs reach each other from here on, where they can.
    pub fn seen(&self) -> Seen {
        let pairs = || self.devices.iter().flat_map(|a| self.devices.iter().map(move |b| (a, b)));
        let nvml = Nvml::open();
        let ask = |device: &Arc<Device>| nvml.as_ref().and_then(|n| n.links(&device.pci));
        let links: Option<Vec<_>> = self.devices.iter().map(ask).collect();
        let first = self.devices.first();
        Seen {
            gpus: self.devices.len() as u32,
            name: first.map(|d| d.name.clone()).unwrap_or_default(),
            arch: first.map_or(0, |d| d.arch),
            memory_gbps: first.map_or(0.0, |d| d.memory_gbps()),
            links: links.and_then(|l| l.into_iter().min_by_key(|l| l.count)),
            peers: pairs().filter(|(a, b)| a.ordinal != b.ordinal).all(|(a, b)| a.reach(b).is_ok()),
            pcie: first.zip(nvml.as_ref()).and_then(|(device, nvml)| nvml.pcie(&device.pci)),
            multicast: first.is_some_and(|d| d.multicast()),
            nccl: crate::nccl::version(),
            cpu: cpus(),
        }
    }
}

/// What the GPUs of this host are, and their driver, as keys and values.
///
/// # Errors
/// No driver, or no GPU.
pub fn facts() -> Result<Vec<(&'static str, String)>, ExecError> {
    Ok(device_facts(&open()?))
}

/// Version of the run-time compiler.
///
/// # Errors
/// Where it was looked for.
pub fn compiler() -> Result<String, ExecError> {
    open_compiler()
}

/// Looks for the library of matrix products.
///
/// # Errors
/// Where it was looked for.
pub fn products() -> Result<(), ExecError> {
    cublaslt::open().map(|_| ())
}

/// The number of GPUs that the driver shows.
///
/// # Errors
/// No driver, or no GPU.
pub fn gpus() -> Result<u32, ExecError> {
    driver::count().map(i32::unsigned_abs)
}

/// A schedule on its GPUs, ready to run again and again.
struct Loaded {
    ranks: Vec<LoadedRank>,
    streams: Vec<Stream>,
    patience: Duration,
    blocks: u32,
    threads: u32,
    shared: u32,
}

struct LoadedRank {
    kernel: Arc<Kernel>,
    /// Channel and lane of each place.
    places: Vec<(u32, u32)>,
    checker: Arc<Checker>,
    args: Args,
    buffers: RankBuffers,
    report: Pinned<Report>,
    /// What `args` points to.
    _memory: Vec<Memory>,
}

// SAFETY: raw addresses of memory that lives as long as `self`; kernels alone write there.
unsafe impl Sync for LoadedRank {}

impl Loaded {
    fn new(cuda: &mut Cuda, schedule: &Schedule, patience: Duration) -> Result<Self, ExecError> {
        let call = &schedule.call;
        let flat = Flat::new(schedule)?;
        let plain = schedule.plan.protocol == Protocol::Simple;
        let layout = Layout::new(&flat, schedule, plain)?;
        let (lanes, blocks, lane_threads) = (layout.lanes, layout.blocks, layout.lane_threads);
        let threads: u32 = lane_threads.iter().sum();
        let bound = BLOCK_SIZES.into_iter().find(|&b| b >= threads).unwrap_or(1024);
        let port_stride = layout.port_stride;
        let shared = layout.shared();

        let device_of = |rank: u32| Arc::clone(&cuda.devices[rank as usize % cuda.devices.len()]);
        let devices: Vec<Arc<Device>> = (0..call.ranks).map(device_of).collect();
        refuse_crowd(call.ranks.div_ceil(cuda.devices.len() as u32), blocks, &devices[0])?;
        reach_each_other(&cuda.devices[..cuda.devices.len().min(call.ranks as usize)])?;

        let fifos = Fifos::new(&flat, &devices, slot_bytes(schedule.plan.protocol, u64::from(flat.largest)))?;
        let options = options(schedule, bound, cluster_of(blocks, &devices))?;
        let record_stride = flat.lanes.iter().map(|l| l.records.len()).max().unwrap_or(0).max(1);
        let mut ranks = Vec::new();
        for (rank, device) in (0..call.ranks).zip(&devices) {
            let signals = Memory::new(device, u64::from(blocks * lanes) * COUNTER)?;
            signals.set(0)?;
            let program = Program::new(Rank(rank), &flat, &layout, &fifos, record_stride, signals.address);
            let scratch = Memory::new(device, schedule.scratch_len(Rank(rank)) * call.dtype.size())?;
            let memory = vec![
                Memory::of(device, &program.records)?,
                Memory::of(device, &program.counts)?,
                Memory::of(device, &program.ports)?,
                Memory::of(device, &[0_u32])?,
                signals,
                scratch,
            ];
            let buffers = RankBuffers::rotating(device, call, Rank(rank))?;
            let [input, output] = buffers.bases();
            let report = Pinned::<Report>::new(device)?;
            let args = Args {
                buffers: [input, output, memory[5].address],
                records: memory[0].address,
                counts: memory[1].address,
                ports: memory[2].address,
                signals: memory[4].address,
                report: report.address(),
                stop: memory[3].address,
                patience_ns: u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX),
                slot_bytes: fifos.slot,
                depth: flat.depth,
                record_stride: record_stride as u32,
                port_stride,
                lanes,
                lane_threads,
            };
            ranks.push(LoadedRank {
                kernel: cuda.kernel(device, options.clone())?,
                checker: cuda.checker(device, schedule)?,
                places: program.places,
                args,
                buffers,
                report,
                _memory: memory,
            });
        }
        // The FIFOs live as long as the first rank.
        if let Some(first) = ranks.first_mut() {
            first._memory.extend(fifos.memory);
        }
        let streams = devices.iter().map(Stream::new).collect::<Result<_, _>>()?;
        Ok(Self { ranks, streams, patience, blocks, threads, shared })
    }

    fn each(&self, act: impl Fn(&LoadedRank, &Stream) -> Result<(), ExecError>) -> Result<(), ExecError> {
        self.ranks.iter().zip(&self.streams).try_for_each(|(rank, stream)| act(rank, stream))
    }

    fn fill(&self) -> Result<(), ExecError> {
        self.each(|rank, stream| rank.buffers.fill(&rank.checker, stream))
    }

    fn repeats(&self) -> bool {
        self.ranks.iter().all(|rank| rank.buffers.repeats())
    }

    fn check(&self) -> Result<u64, ExecError> {
        let checked =
            self.ranks.iter().zip(&self.streams).map(|(rank, stream)| rank.buffers.check(&rank.checker, stream));
        checked.sum()
    }

    fn once(&self) -> Result<(), ExecError> {
        let enqueued = self.enqueue_all();
        let patience = self.patience * 2 + Duration::from_secs(30);
        let waited: Vec<_> = self.streams.iter().map(|s| s.wait(patience)).collect();
        enqueued?;
        self.outcome()?;
        waited.into_iter().collect()
    }
}

impl Operation for Loaded {
    fn streams(&self) -> &[Stream] {
        &self.streams
    }

    fn enqueue(&self, local: usize) -> Result<(), ExecError> {
        let rank = &self.ranks[local];
        let mut args = rank.args;
        for (buffer, turn) in args.buffers.iter_mut().zip(rank.buffers.turn()) {
            *buffer += turn;
        }
        let mut arguments = [(&raw mut args).cast::<c_void>()];
        // SAFETY: `Args` is the kernel's one parameter; its memory lives in `self`, which waits
        // for its streams before it goes.
        unsafe { self.streams[local].launch(&rank.kernel, self.blocks, self.threads, self.shared, &mut arguments) }
    }

    fn blank(&self) -> Result<(), ExecError> {
        self.each(|rank, stream| rank.buffers.blank(&rank.checker, stream))
    }

    fn outcome(&self) -> Result<(), ExecError> {
        for rank in &self.ranks {
            let report = rank.report.read();
            if report.set != 0 {
                let place = report.block as usize * rank.args.lanes as usize + report.lane as usize;
                let (channel, lane) = rank.places.get(place).copied().unwrap_or_default();
                return Err(ExecError::Timeout {
                    rank: rank.buffers.rank.0,
                    channel,
                    lane,
                    step: report.record,
                    seconds: self.patience.as_secs(),
                    what: ["data from", "credit from", "another lane of"][report.what.min(2) as usize],
                    peer: report.peer,
                });
            }
        }
        Ok(())
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        for stream in &self.streams {
            let _ = stream.wait(self.patience * 2 + Duration::from_secs(30));
        }
    }
}

/// Refuses more ranks of a GPU than can run at once.
fn refuse_crowd(sharing: u32, blocks: u32, device: &Device) -> Result<(), ExecError> {
    if sharing > MAX_SHARING {
        return Err(ExecError::Refused {
            what: format!("{sharing} ranks would share a GPU; at most {MAX_SHARING} do"),
            hint: "take fewer ranks, or --backend host",
        });
    }
    if sharing * blocks > device.multiprocessors {
        return Err(ExecError::Refused {
            what: format!(
                "{sharing} ranks a GPU with {blocks} blocks each need {} multiprocessors at once; it has {}",
                sharing * blocks,
                device.multiprocessors
            ),
            hint: "take fewer ranks or --channels",
        });
    }
    Ok(())
}

/// Lets each of the devices write to the memory of all others.
fn reach_each_other(devices: &[Arc<Device>]) -> Result<(), ExecError> {
    for a in devices {
        for b in devices.iter().filter(|b| b.ordinal != a.ordinal) {
            a.reach(b)?;
        }
    }
    Ok(())
}

/// Blocks of a cluster. A grid is a whole number of clusters.
fn cluster_of(blocks: u32, devices: &[Arc<Device>]) -> u32 {
    let clusters = devices.iter().all(|d| d.arch >= 90);
    if clusters { (1..=CLUSTER).rev().find(|c| blocks.is_multiple_of(*c)).unwrap_or(1) } else { 1 }
}

/// What the kernel of a schedule is compiled with; `threads` is the most that a block has.
fn options(schedule: &Schedule, threads: u32, cluster: u32) -> Result<Vec<String>, ExecError> {
    let protocol = match schedule.plan.protocol {
        Protocol::Ll => 0,
        Protocol::Ll128 => 1,
        Protocol::Simple => 2,
    };
    let own = [format!("-DPROTOCOL={protocol}"), format!("-DTHREADS={threads}"), format!("-DCLUSTER={cluster}")];
    Ok(own.into_iter().chain(macros(&schedule.call)?).collect())
}

/// What the kernel of one rank reads, by place: a block and a lane of it.
struct Program {
    /// `record_stride` of each place, of which `counts` are in use.
    records: Vec<Record>,
    counts: Vec<u32>,
    /// `port_stride` of each place.
    ports: Vec<DevicePort>,
    /// Channel and lane.
    places: Vec<(u32, u32)>,
}

impl Program {
    /// `signals` is the address of the counters by which lanes of the rank wait for each other.
    fn new(rank: Rank, flat: &Flat, layout: &Layout, fifos: &Fifos, record_stride: usize, signals: u64) -> Self {
        let (places, port_stride) = ((layout.blocks * layout.lanes) as usize, layout.port_stride as usize);
        let mut program = Self {
            records: vec![Record::default(); places * record_stride],
            counts: vec![0; places],
            ports: vec![DevicePort::default(); places * port_stride],
            places: vec![(0, 0); places],
        };
        for (lane, &place) in flat.lanes.iter().zip(&layout.places).filter(|(l, _)| l.rank == rank.0) {
            program.records[place * record_stride..][..lane.records.len()].copy_from_slice(&lane.records);
            program.counts[place] = lane.records.len() as u32;
            program.places[place] = (lane.channel, lane.lane);
            let ports = &mut program.ports[place * port_stride..];
            fifos.wire(lane, ports);
            for (&told, port) in lane.tokens.iter().zip(&mut ports[lane.ports.len()..]) {
                if let Some(&place) = layout.places.get(told as usize) {
                    let wait = signals + place as u64 * COUNTER;
                    let grows = flat.lanes[told as usize].signals;
                    *port = DevicePort { wait, grows, peer: rank.0, ..DevicePort::default() };
                }
            }
        }
        program
    }
}

/// Which lanes share a block.
struct Layout {
    /// Blocks of a rank, and lanes of a block.
    blocks: u32,
    lanes: u32,
    lane_threads: [u32; MAX_LANES + 1],
    /// Ports and tokens that a lane has at most.
    port_stride: u32,
    /// By lane of the schedule: its block times `lanes` plus its place there.
    places: Vec<usize>,
}

impl Layout {
    /// The lanes of a channel share a block where they fit into one, as in NCCL. Those of sends are up to 16, which share the
    /// threads of a block: they share as few blocks as have barriers for them.
    fn new(flat: &Flat, schedule: &Schedule, plain: bool) -> Result<Self, ExecError> {
        // Plain slots have a warp that tells peers while the others go on.
        let threads = |lane: &FlatLane| lane.threads.max(32).next_multiple_of(32) + if plain { 32 } else { 0 };
        let ports = flat.lanes.iter().map(|l| l.ports.len() + l.tokens.len()).max().unwrap_or(0).max(1) as u32;
        let mut lane_threads = [0; MAX_LANES + 1];
        let all = schedule.lanes.max(1);
        let sends = schedule.plan.algorithm == Algorithm::Direct;
        let parts = if sends { all.div_ceil(MAX_LANES as u32) } else { 1 };
        let lanes = all.div_ceil(parts);
        let place = |l: &FlatLane| ((l.channel * parts + l.lane / lanes) * lanes + l.lane % lanes) as usize;
        let places = flat.lanes.iter().map(place).collect();
        let mut shared =
            Self { blocks: schedule.plan.channels * parts, lanes, lane_threads, port_stride: ports, places };
        if lanes as usize <= MAX_LANES {
            // A warp moves data in any case.
            let used: BTreeSet<u32> = flat.lanes.iter().map(|lane| lane.lane % lanes).collect();
            let room = (THREADS_MAX / used.len().max(1) as u32 / 32 * 32).max(if plain { 64 } else { 32 });
            for lane in &flat.lanes {
                let most = &mut shared.lane_threads[(lane.lane % lanes) as usize];
                let own = if sends { threads(lane).min(room) } else { threads(lane) };
                *most = own.max(*most);
            }
            if shared.fits() {
                return Ok(shared);
            }
        }
        let mut blocks: BTreeMap<u32, u32> = BTreeMap::new();
        let mut places = Vec::new();
        for lane in &flat.lanes {
            let next = blocks.entry(lane.rank).or_default();
            places.push(*next as usize);
            *next += 1;
            lane_threads[0] = threads(lane).max(lane_threads[0]);
        }
        let blocks = blocks.into_values().max().unwrap_or(0).max(1);
        let apart = Self { blocks, lanes: 1, lane_threads, port_stride: ports, places };
        if apart.fits() {
            return Ok(apart);
        }
        Err(ExecError::Refused {
            what: format!(
                "a lane has {} threads and {} connections, more than a block can hold",
                apart.lane_threads[0], apart.port_stride
            ),
            hint: "--backend host runs it",
        })
    }

    fn shared(&self) -> u32 {
        self.lanes * (LANE_SHARED + self.port_stride * PORT_SHARED)
    }

    fn fits(&self) -> bool {
        self.lane_threads.iter().sum::<u32>() <= THREADS_MAX && self.shared() <= SHARED_MAX
    }
}

/// The FIFOs of all connections: slots and the counter of what has arrived at the receiver, the
/// counter of what is free at the sender.
struct Fifos {
    memory: Vec<Memory>,
    /// By connection: address of the slots, of the receiver's and of the sender's counter.
    places: Vec<[u64; 3]>,
    slot: u64,
}

impl Fifos {
    fn new(flat: &Flat, devices: &[Arc<Device>], slot: u64) -> Result<Self, ExecError> {
        let mut ends = vec![[0_u32; 2]; flat.conns]; // Receiver, sender.
        for lane in &flat.lanes {
            for port in lane.ports.iter().filter(|p| (p.conn as usize) < flat.conns) {
                ends[port.conn as usize][usize::from(port.sends)] = lane.rank;
            }
        }
        let fifo = slot * u64::from(flat.depth);
        let mut sizes = vec![0_u64; devices.len()];
        let mut place = |rank: u32, bytes: u64| {
            let at = sizes[rank as usize];
            sizes[rank as usize] += bytes;
            at
        };
        let offsets: Vec<[u64; 3]> = ends
            .iter()
            .map(|&[receiver, sender]| [place(receiver, fifo), place(receiver, COUNTER), place(sender, COUNTER)])
            .collect();
        let memory =
            devices.iter().zip(&sizes).map(|(d, &bytes)| Memory::new(d, bytes)).collect::<Result<Vec<_>, _>>()?;
        memory.iter().try_for_each(|m| m.set(0))?;
        let base = |rank: u32| memory[rank as usize].address;
        let places = ends
            .iter()
            .zip(&offsets)
            .map(|(&[receiver, sender], o)| [base(receiver) + o[0], base(receiver) + o[1], base(sender) + o[2]])
            .collect();
        Ok(Self { memory, places, slot })
    }

    fn wire(&self, lane: &FlatLane, ports: &mut [DevicePort]) {
        for (port, device) in lane.ports.iter().zip(ports) {
            if let Some(&[fifo, arrived, free]) = self.places.get(port.conn as usize) {
                let (wait, post) = if port.sends { (free, arrived) } else { (arrived, free) };
                *device = DevicePort { fifo, wait, post, peer: port.peer, ..DevicePort::default() };
            }
        }
    }
}

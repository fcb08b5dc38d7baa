//! By which back ends bytes can go from one place to another, and what each stage of a way takes.

use std::num::NonZeroU32;

use super::place::Place;
use crate::collective::Protocol;
use crate::compute::Compute;
use crate::engine::flows::WEIGHT_ONE;
use crate::ids::{HostId, VertexId};
use crate::nccl::{Interface, PathClass, Transport};
use crate::network::{Across, Hop, Leg, Router, is_arm};
use crate::profile::{Profile, Reach};
use crate::topology::{LinkKind, Storage, Topology, VertexKind};
use crate::units::{Bandwidth, SimDuration};

/// PCIe's rate behind its line code over that which topologies have, NCCL's: 63 of 48 GB/s for PCIe 5.0 x16, and the same
/// of 3.0, 4.0 and fewer lanes.
const PCIE_OVER_NCCL: f64 = 63.0 / 48.0;
/// How often sockets touch host memory for a byte at each end: its copy reads and writes it, the NIC reads or writes it.
const SOCKET_TOUCHES: u64 = 3;
/// How often reads of files through the page cache touch host memory: the drive writes it, the copy to the buffer reads and
/// writes it.
const FILE_TOUCHES: u64 = 3;

/// Bytes of a request to an object store: the AWS CLI's `multipart_chunksize`, 8 MiB.
const PART: u64 = 8 << 20;
/// Drives of hosts whose topology does not say: DGX A100 with 320 GB has four.
const DRIVES: u32 = 4;
/// How often a copy between page cache and a buffer touches host memory: it reads and writes it.
const CACHED_TOUCHES: u64 = 2;

/// Who moves bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Backend {
    /// Copy engines over NVLink (UCX `cuda_ipc`).
    Nvlink,
    /// Copy engines over PCIe, without host memory (UCX `cuda_ipc` where GPUs are peers).
    Pcie,
    /// Copy engines between GPU and pinned host memory (UCX `cuda_copy`).
    Copy,
    /// Copies into and out of pinned host memory.
    Staged,
    /// RDMA that reads and writes GPU memory itself (UCX `rc` with GPUDirect).
    Rdma,
    /// RDMA between buffers in host memory, and copies at the ends in GPU memory.
    RdmaStaged,
    /// TCP between buffers in host memory.
    Tcp,
    /// Drives that read and write GPU memory themselves (GPUDirect Storage).
    Gds,
    /// Files through the page cache.
    Posix,
    /// Parallel requests to an object store (S3).
    Object,
}

impl Backend {
    /// All, in the order in which NIXL prefers them for what they can do: UCX for memory, as UCX ranks its transports, and
    /// GDS before POSIX for files.
    pub const ALL: [Self; 10] = [
        Self::Nvlink,
        Self::Pcie,
        Self::Copy,
        Self::Rdma,
        Self::Staged,
        Self::RdmaStaged,
        Self::Tcp,
        Self::Gds,
        Self::Posix,
        Self::Object,
    ];

    /// Its name in flags and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nvlink => "nvlink",
            Self::Pcie => "pcie",
            Self::Copy => "copy",
            Self::Staged => "staged",
            Self::Rdma => "rdma",
            Self::RdmaStaged => "rdma-staged",
            Self::Tcp => "tcp",
            Self::Gds => "gds",
            Self::Posix => "posix",
            Self::Object => "object",
        }
    }

    /// The one of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|backend| backend.name() == name)
    }

    /// Whether it goes from host to host.
    pub fn is_network(self) -> bool {
        matches!(self, Self::Rdma | Self::RdmaStaged | Self::Tcp)
    }
}

/// What a stage uses, beside the hops of topologies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Used {
    /// A hop.
    Hop(Hop),
    /// The drives of a host.
    Drives(HostId),
    /// Who posts pieces to a NIC: in ps of work a second.
    Posts(VertexId),
    /// The thread of a host that copies into or out of sockets.
    Thread(HostId),
    /// The thread of a host that copies between page cache and buffers.
    FileThread(HostId),
    /// The ports of a host to object stores.
    StorePorts(HostId),
    /// Requests of one transfer to an object store.
    Requests(HostId),
    /// The thread of a host that registers memory with NICs.
    Registration(HostId),
}

/// A part of a way, from one memory to the next.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Stage {
    /// What it uses, with the capacity of each and units of it for a byte, in parts of [`WEIGHT_ONE`].
    pub uses: Vec<(Used, Bandwidth, u64)>,
    /// NICs that bytes are posted to, each with its share of them in parts of [`WEIGHT_ONE`]: work on each contiguous
    /// piece comes on top.
    pub posts: Vec<(VertexId, u64)>,
    /// Requests that run side by side: bytes of each at most, what one carries, and whose they are.
    pub requests: Option<(u64, Bandwidth, HostId)>,
    /// Before each of its pieces.
    pub start: SimDuration,
    /// From the end of a piece to the sight of it by the next stage.
    pub latency: SimDuration,
    /// From the last byte to the receiver's knowledge that all are there, over a network.
    pub notify: SimDuration,
}

/// A way from one place to another.
#[derive(Clone, PartialEq, Debug)]
pub struct Way {
    /// Who moves bytes.
    pub backend: Backend,
    /// Its stages, one after another.
    pub stages: Vec<Stage>,
    /// Before its first byte, once.
    pub request: SimDuration,
    /// From the last byte to the receiver's knowledge that all are there.
    pub notify: SimDuration,
    /// Hosts whose memory NICs have to know, and at what rate it is registered; none of ways without NICs.
    pub registers: Vec<(HostId, Bandwidth)>,
}

/// A machine on which transfers run.
#[derive(Debug)]
pub struct Fleet<'m> {
    topology: &'m Topology,
    profile: &'m Profile,
    /// Its GPUs' kernels, of which copies are some.
    gpu: &'m Compute,
    /// NVMe drives of each host, where others than the topology's are asked for.
    drives: Option<NonZeroU32>,
    router: Router<'m>,
}

impl<'m> Fleet<'m> {
    /// A machine; `drives` are those of each host, in place of the topology's.
    pub fn new(topology: &'m Topology, profile: &'m Profile, gpu: &'m Compute, drives: Option<NonZeroU32>) -> Self {
        // UCX sends through the NICs that are near; PXN is NCCL's.
        let transport = Transport { pxn: false, interface: Interface::Data, ..Transport::default() };
        Self { topology, profile, gpu, drives, router: Router::with(topology, transport) }
    }

    /// What is known of its links.
    pub fn profile(&self) -> &'m Profile {
        self.profile
    }

    /// The machine.
    pub fn topology(&self) -> &'m Topology {
        self.topology
    }

    /// Of an object store none.
    fn host(&self, place: Place) -> Option<HostId> {
        match place {
            Place::Gpu(rank) => Some(self.topology.host_of(rank)),
            Place::Host(host) | Place::Disk(host) | Place::Cached(host) => Some(host),
            Place::Store => None,
        }
    }

    /// The storage of a host: the topology's, else drives of the profile. What was measured of a drive counts before data sheets.
    pub fn storage(&self, host: HostId) -> Storage {
        let known = self.topology.hosts().get(host.index()).and_then(|host| host.storage);
        let (read, write) = self.profile.drive(known.map(|storage| (storage.read, storage.write)));
        let (drives, network) = known.map_or((DRIVES, None), |storage| (storage.drives, storage.network));
        Storage { drives: self.drives.map_or(drives, NonZeroU32::get), read, write, network }
    }

    /// The vertex of a place's memory; of drives and stores, of the host memory beside them. `other`: the place at the
    /// other end.
    fn memory(&mut self, place: Place, other: Place) -> Option<VertexId> {
        let host = match place {
            Place::Gpu(rank) => return Some(self.topology.gpu_of(rank)),
            Place::Host(host) | Place::Disk(host) | Place::Cached(host) => host,
            Place::Store => self.host(other)?,
        };
        match other {
            Place::Gpu(rank) if self.topology.host_of(rank) == host => self.router.cpu_of(self.topology.gpu_of(rank)),
            _ => self.topology.hosts().get(host.index())?.cpus.first().copied(),
        }
    }

    /// The CPU beside a memory.
    fn cpu(&mut self, memory: VertexId) -> Option<VertexId> {
        if self.topology.gpu(memory).is_some() { self.router.cpu_of(memory) } else { Some(memory) }
    }

    /// What a leg takes, with an efficiency by kind of link.
    fn uses(&self, leg: &Leg, efficiency: impl Fn(LinkKind) -> f64) -> Vec<(Used, Bandwidth, u64)> {
        let used = |&(hop, share): &(Hop, u64)| {
            let (hop, rate, of_rate) = match hop {
                Hop::Link(id) => {
                    let id = self.topology.carrier(id);
                    let link = self.topology.link(id);
                    (Hop::Link(id), link.rate, efficiency(link.kind))
                }
                Hop::Memory(cpu) => (hop, self.host_memory(cpu), 1.0),
                Hop::Direct(.., rate) => (hop, rate, 1.0),
            };
            (Used::Hop(hop), rate, (share as f64 / of_rate).ceil() as u64)
        };
        leg.iter().map(used).collect()
    }

    /// A stage of copy engines between two memories of one host or NVLink domain.
    fn copies(&mut self, from: VertexId, to: VertexId) -> Option<(Stage, PathClass)> {
        let (leg, class) = self.router.within(from, to)?;
        let (nvlink, start) = (self.profile.copy_engine(), self.profile.copy_start());
        let (pcie, start_to_host) = self.gpu.host_copies();
        let uses = self.uses(&leg, |kind| match kind {
            LinkKind::Nvlink => nvlink,
            LinkKind::Pcie => pcie * PCIE_OVER_NCCL,
            kind => self.profile.efficiency(kind),
        });
        let peers = self.topology.gpu(from).is_some() && self.topology.gpu(to).is_some();
        let start = if peers { start } else { start_to_host };
        Some((Stage { uses, start, ..Stage::default() }, class))
    }

    /// A stage through the network between two memories.
    fn wire(&mut self, across: &Across, tcp: bool) -> Stage {
        let reach = match across.kind {
            _ if tcp => Reach::Tcp,
            LinkKind::Efa => Reach::Efa,
            _ => Reach::Network,
        };
        let mut uses = self.uses(&across.leg, |kind| self.profile.efficiency(kind));
        let share = WEIGHT_ONE.div_ceil(across.nics.len().max(1) as u64);
        let mut posts = Vec::new();
        if tcp {
            uses.iter_mut()
                .filter(|used| matches!(used.0, Used::Hop(Hop::Memory(_))))
                .for_each(|used| used.2 *= SOCKET_TOUCHES);
            let ends = across.nics.iter().flat_map(|&(leave, enter)| [leave, enter]);
            let mut hosts: Vec<HostId> = ends.filter_map(|nic| self.topology.vertex(nic).host).collect();
            hosts.sort_unstable();
            hosts.dedup();
            uses.extend(hosts.into_iter().map(|host| (Used::Thread(host), self.profile.proxy_thread(), WEIGHT_ONE)));
        } else {
            posts.extend(across.nics.iter().map(|&(leave, _)| (leave, share)));
        }
        let (latency, notify) = (self.profile.latency(reach, Protocol::Simple), self.profile.control(reach));
        Stage { uses, posts, latency, notify, ..Stage::default() }
    }

    /// A stage between the drives of a host and a memory of it.
    fn drive(&mut self, host: HostId, cpu: VertexId, memory: VertexId, reads: bool) -> Option<Stage> {
        let storage = self.storage(host);
        let (read, write) = [storage.read, storage.write].map(|rate| rate.times(u64::from(storage.drives))).into();
        // Reads and writes share the drives' time.
        let weight =
            if reads { WEIGHT_ONE } else { (WEIGHT_ONE as f64 * read.get() as f64 / write.get() as f64) as u64 };
        let mut uses = vec![(Used::Drives(host), read, weight)];
        if cpu == memory {
            uses.push(self.touches(cpu, FILE_TOUCHES));
            uses.push((Used::FileThread(host), self.profile.file_thread(), WEIGHT_ONE));
        } else {
            let (from, to) = if reads { (cpu, memory) } else { (memory, cpu) };
            let (leg, _) = self.router.within(from, to)?;
            // Drives hang on the CPU's root ports: what they move by themselves passes no memory of the host.
            let links: Leg = leg.into_iter().filter(|(hop, _)| matches!(hop, Hop::Link(_))).collect();
            uses.extend(self.uses(&links, |kind| self.profile.efficiency(kind)));
        }
        // Drives have many requests in hand: each piece arrives later by as much, and no later than that one after another.
        Some(Stage { uses, latency: self.profile.drive_latency(), ..Stage::default() })
    }

    /// So many reads and writes of a socket's memory for each byte.
    fn touches(&self, cpu: VertexId, times: u64) -> (Used, Bandwidth, u64) {
        (Used::Hop(Hop::Memory(cpu)), self.host_memory(cpu), times * WEIGHT_ONE)
    }

    fn host_memory(&self, cpu: VertexId) -> Bandwidth {
        self.profile.host_memory(is_arm(self.topology, cpu))
    }

    /// A stage between files in the page cache and a buffer beside it.
    fn cached(&self, host: HostId, cpu: VertexId) -> Stage {
        let thread = (Used::FileThread(host), self.profile.file_thread(), WEIGHT_ONE);
        Stage { uses: vec![self.touches(cpu, CACHED_TOUCHES), thread], ..Stage::default() }
    }

    /// A stage between an object store and a buffer of a host, which has ports to it.
    fn store(&self, host: HostId, cpu: VertexId) -> Option<Stage> {
        let (request, latency) = self.profile.store();
        let ports = (Used::StorePorts(host), self.storage(host).network?, WEIGHT_ONE);
        let requests = Some((PART, request, host));
        Some(Stage { uses: vec![ports, self.touches(cpu, SOCKET_TOUCHES)], requests, latency, ..Stage::default() })
    }
}

/// The ways from one place to another, in the order of [`Backend::ALL`]; none where no link leads there.
pub fn ways(fleet: &mut Fleet<'_>, from: Place, to: Place) -> Vec<Way> {
    Backend::ALL.into_iter().filter_map(|backend| way(fleet, backend, from, to)).collect()
}

fn way(fleet: &mut Fleet<'_>, backend: Backend, from: Place, to: Place) -> Option<Way> {
    if from == to {
        return None;
    }
    let stages = match (from, to) {
        (Place::Disk(_) | Place::Cached(_) | Place::Store, Place::Disk(_) | Place::Cached(_) | Place::Store) => None,
        (Place::Disk(_) | Place::Cached(_) | Place::Store, _) => stored(fleet, backend, (from, to), true),
        (_, Place::Disk(_) | Place::Cached(_) | Place::Store) => stored(fleet, backend, (to, from), false),
        _ => {
            let (a, b) = (fleet.memory(from, to)?, fleet.memory(to, from)?);
            if backend.is_network() { remote(fleet, backend, (from, a), (to, b)) } else { local(fleet, backend, a, b) }
        }
    }?;
    let network = backend.is_network();
    let (profile, zero) = (fleet.profile, SimDuration::ZERO);
    let mut hosts: Vec<HostId> = [from, to].into_iter().filter_map(|place| fleet.host(place)).collect();
    hosts.dedup();
    hosts.retain(|_| network && backend != Backend::Tcp);
    let notify = stages.iter().map(|stage| stage.notify).max().unwrap_or(zero);
    Some(Way {
        registers: hosts.into_iter().map(|host| (host, profile.registration())).collect(),
        backend,
        stages,
        request: if network { profile.transfer_request() } else { zero },
        notify,
    })
}

/// Inside a host or NVLink domain.
fn local(fleet: &mut Fleet<'_>, backend: Backend, a: VertexId, b: VertexId) -> Option<Vec<Stage>> {
    let both = [a, b].iter().all(|&v| fleet.topology.gpu(v).is_some());
    let one = [a, b].iter().any(|&v| fleet.topology.gpu(v).is_some());
    let same = fleet.topology.vertex(a).host == fleet.topology.vertex(b).host;
    match backend {
        Backend::Nvlink if both => {
            let (stage, class) = fleet.copies(a, b)?;
            (class <= PathClass::Nvb).then(|| vec![stage])
        }
        Backend::Pcie if both && same => {
            let (stage, class) = fleet.copies(a, b)?;
            (class > PathClass::Nvb && class <= PathClass::Phb).then(|| vec![stage])
        }
        Backend::Copy if one && !both && same => Some(vec![fleet.copies(a, b)?.0]),
        Backend::Staged if both && same => {
            let cpu = fleet.cpu(b)?;
            Some(vec![fleet.copies(a, cpu)?.0, fleet.copies(cpu, b)?.0])
        }
        _ => None,
    }
}

/// Between hosts.
fn remote(
    fleet: &mut Fleet<'_>,
    backend: Backend,
    (from, a): (Place, VertexId),
    (to, b): (Place, VertexId),
) -> Option<Vec<Stage>> {
    if fleet.host(from) == fleet.host(to) {
        return None;
    }
    let gpus = [a, b].iter().any(|&v| fleet.topology.gpu(v).is_some());
    let has_rdma = |across: &Across| across.kind != LinkKind::Ethernet;
    if backend == Backend::Rdma {
        let across = fleet.router.across(a, b).filter(|across| has_rdma(across) && across.gpudirect)?;
        return Some(vec![fleet.wire(&across, false)]);
    }
    if backend == Backend::RdmaStaged && !gpus {
        return None;
    }
    let (near, far) = (fleet.cpu(a)?, fleet.cpu(b)?);
    let tcp = backend == Backend::Tcp;
    let across = fleet.router.across(near, far).filter(|across| tcp || has_rdma(across))?;
    let mut stages = Vec::new();
    if near != a {
        stages.push(fleet.copies(a, near)?.0);
    }
    stages.push(fleet.wire(&across, tcp));
    if far != b {
        stages.push(fleet.copies(far, b)?.0);
    }
    Some(stages)
}

/// Between what is stored (drives, page cache, an object store) and a memory of the same host; `reads` from there.
fn stored(fleet: &mut Fleet<'_>, backend: Backend, (store, place): (Place, Place), reads: bool) -> Option<Vec<Stage>> {
    let host = fleet.host(place)?;
    if fleet.host(store).is_some_and(|other| other != host) {
        return None;
    }
    let (memory, cpu) = (fleet.memory(place, store)?, fleet.memory(store, place)?);
    let is_gpu = !matches!(fleet.topology.vertex(memory).kind, VertexKind::Cpu { .. });
    let stage = match (backend, store) {
        (Backend::Gds, Place::Disk(_)) if is_gpu => return Some(vec![fleet.drive(host, cpu, memory, reads)?]),
        (Backend::Posix, Place::Disk(_)) => fleet.drive(host, cpu, cpu, reads)?,
        (Backend::Posix, Place::Cached(_)) => fleet.cached(host, cpu),
        (Backend::Object, Place::Store) => fleet.store(host, cpu)?,
        _ => return None,
    };
    if !is_gpu {
        return Some(vec![stage]);
    }
    let (from, to) = if reads { (cpu, memory) } else { (memory, cpu) };
    let copy = fleet.copies(from, to)?.0;
    Some(if reads { vec![stage, copy] } else { vec![copy, stage] })
}

//! Paths inside a node: who reaches what, how fast and by which kind of link.
//!
//! Source: NCCL 2.30 `src/graph/paths.cc`, `src/graph/topo.cc`, restated.

use smallvec::SmallVec;

use super::system::{LOC_BW, LinkType, NodeKind, System};
use crate::nccl::devices::share_out;
use crate::nccl::path::PathClass;
use crate::nccl::transport::Transport;

/// NCCL's numbers of path types; a lower one is better.
pub(super) mod kind {
    pub(in super::super) const LOC: u8 = 0;
    pub(in super::super) const NVL: u8 = 1;
    pub(in super::super) const NVB: u8 = 2;
    pub(in super::super) const C2C: u8 = 3;
    pub(in super::super) const PIX: u8 = 4;
    pub(in super::super) const PXB: u8 = 5;
    pub(in super::super) const P2C: u8 = 6;
    pub(in super::super) const PXN: u8 = 7;
    pub(in super::super) const PHB: u8 = 8;
    pub(in super::super) const SYS: u8 = 9;
    /// No path.
    pub(in super::super) const DIS: u8 = 11;
}

/// The class of a path type; no path counts as the worst.
pub(super) fn class(kind: u8) -> PathClass {
    match kind {
        kind::LOC => PathClass::Loc,
        kind::NVL => PathClass::Nvl,
        kind::NVB => PathClass::Nvb,
        kind::C2C => PathClass::C2c,
        kind::PIX => PathClass::Pix,
        kind::PXB => PathClass::Pxb,
        kind::P2C => PathClass::P2c,
        kind::PXN => PathClass::Pxn,
        kind::PHB => PathClass::Phb,
        _ => PathClass::Sys,
    }
}

/// The path type of a class.
fn kind_of(class: PathClass) -> u8 {
    (0..kind::DIS).find(|&k| self::class(k) == class).unwrap_or(kind::SYS)
}

/// Channels up to which NIC choices are followed.
pub(super) const MAX_CHANNELS: usize = crate::nccl::plan::MAX_CHANNELS as usize;

/// A way from a node to a target; no links and [`kind::DIS`] where there is none.
#[derive(Clone, Debug)]
pub(super) struct Path {
    pub(super) links: SmallVec<[u32; 6]>,
    pub(super) bw: f32,
    pub(super) kind: u8,
}

impl Path {
    fn none() -> Self {
        Self { links: SmallVec::new(), bw: 0.0, kind: kind::DIS }
    }
}

/// A kind of target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Gpu(usize),
    Net(usize),
    NvSwitch,
}

/// All paths of a node, `[target][node]`: from the node to the target.
#[derive(Clone, Debug)]
pub(super) struct Paths {
    gpu: Vec<Vec<Path>>,
    net: Vec<Vec<Path>>,
    cpu: Vec<Vec<Path>>,
    nvswitch: Vec<Path>,
    /// `[net][gpu]`: the GPU that relays (PXN).
    relay: Vec<Vec<Option<usize>>>,
    /// GPU that a network device would serve first.
    pub(super) net_gpu: Vec<Option<usize>>,
}

impl Paths {
    /// Finds all paths and corrects them for what NCCL does not use.
    pub(super) fn new(system: &System) -> Self {
        let to = |node: usize| shortest(system, node);
        let mut paths = Self {
            gpu: system.gpus.iter().map(|g| to(g.node)).collect(),
            net: system.nets.iter().map(|n| to(n.node)).collect(),
            cpu: system.cpus.iter().map(|&c| to(c)).collect(),
            nvswitch: system.nvswitch.map(to).unwrap_or_default(),
            relay: vec![vec![None; system.gpus.len()]; system.nets.len()],
            net_gpu: Vec::new(),
        };
        paths.avoid_far_peer_access(system);
        paths.take_c2c_nics(system);
        paths.choose_nic_access(system);
        paths.net_gpu = (0..system.nets.len()).map(|n| paths.local_gpu(system, n)).collect();
        paths
    }

    /// The path between two ends.
    pub(super) fn between(&self, system: &System, from: End, to: End) -> Option<&Path> {
        let node = match from {
            End::Gpu(g) => system.gpus[g].node,
            End::Net(n) => system.nets[n].node,
            End::NvSwitch => system.nvswitch?,
        };
        match to {
            End::Gpu(g) => self.gpu[g].get(node),
            End::Net(n) => self.net[n].get(node),
            End::NvSwitch => self.nvswitch.get(node),
        }
    }

    pub(super) fn gpu_to_gpu(&self, system: &System, from: usize, to: usize) -> &Path {
        &self.gpu[to][system.gpus[from].node]
    }

    pub(super) fn gpu_to_net(&self, system: &System, from: usize, to: usize) -> &Path {
        &self.net[to][system.gpus[from].node]
    }

    pub(super) fn net_to_gpu(&self, system: &System, from: usize, to: usize) -> &Path {
        &self.gpu[to][system.nets[from].node]
    }

    /// The CPU nearest to a GPU.
    pub(super) fn local_cpu(&self, system: &System, gpu: usize) -> Option<usize> {
        let node = system.gpus[gpu].node;
        (0..system.cpus.len())
            .filter(|&c| !self.cpu[c][node].links.is_empty())
            .min_by_key(|&c| self.cpu[c][node].links.len())
    }

    /// GB/s from a GPU to its CPU.
    pub(super) fn cpu_bw(&self, system: &System, gpu: usize) -> f32 {
        self.local_cpu(system, gpu).map_or(0.0, |c| self.cpu[c][system.gpus[gpu].node].bw)
    }

    /// GPUs that are further apart than [`Transport::direct_up_to`] do not use peer access: their bytes go through
    /// the CPU next to the receiver.
    fn avoid_far_peer_access(&mut self, system: &System) {
        let level = direct_up_to(system);
        for to in 0..system.gpus.len() {
            for from in 0..system.gpus.len() {
                if self.gpu_to_gpu(system, from, to).kind > level
                    && let Some(cpu) = self.local_cpu(system, to)
                {
                    let node = system.gpus[from].node;
                    self.gpu[to][node] = join(&self.cpu[cpu][node], &self.gpu[to][system.cpus[cpu]]);
                }
            }
        }
    }

    /// A GPU joined to its CPU by chip-to-chip links reaches the NICs of that CPU well (P2C).
    fn take_c2c_nics(&mut self, system: &System) {
        for gpu in 0..system.gpus.len() {
            let node = system.gpus[gpu].node;
            let Some(cpu) = self.local_cpu(system, gpu) else { continue };
            for net in self.local_nets(system, gpu) {
                let net_node = system.nets[net].node;
                if merge(self.cpu[cpu][node].kind, self.cpu[cpu][net_node].kind) == kind::P2C {
                    for path in [&mut self.net[net][node], &mut self.gpu[gpu][net_node]] {
                        path.kind = path.kind.min(kind::P2C);
                    }
                }
            }
        }
    }

    /// A NIC is reached through another GPU (PXN) where that is better, and through the CPU where it
    /// cannot read GPU memory itself.
    fn choose_nic_access(&mut self, system: &System) {
        for net in 0..system.nets.len() {
            let net_node = system.nets[net].node;
            let near = self.local_gpu(system, net);
            for gpu in 0..system.gpus.len() {
                let node = system.gpus[gpu].node;
                if let Some(peer) = near.filter(|&p| p != gpu && system.transport.pxn) {
                    let (theirs, ours) = (self.gpu_to_net(system, peer, net), self.gpu_to_net(system, gpu, net));
                    // Towards the NIC only: data is received locally and sent remotely.
                    if theirs.kind <= kind::P2C
                        && self.gdr(system, peer, net, true)
                        && self.gpu_to_gpu(system, peer, gpu).kind <= kind::NVL
                        && (theirs.bw > ours.bw || ours.kind > kind::PXN)
                    {
                        let relayed = join(self.gpu_to_gpu(system, gpu, peer), theirs);
                        self.net[net][node] = Path { kind: kind::PXN, ..relayed };
                        self.relay[net][gpu] = Some(peer);
                    }
                }
                if self.gpu_to_net(system, gpu, net).kind < kind::PHB
                    && !self.gdr(system, gpu, net, false)
                    && let Some(cpu) = self.local_cpu(system, gpu)
                {
                    let cpu_node = system.cpus[cpu];
                    self.gpu[gpu][net_node] = join(&self.cpu[cpu][net_node], &self.gpu[gpu][cpu_node]);
                    self.net[net][node] = join(&self.cpu[cpu][node], &self.net[net][cpu_node]);
                    self.relay[net][gpu] = None;
                }
            }
        }
    }

    /// Whether a NIC reads (`sends`) or writes the memory of a GPU itself.
    fn gdr(&self, system: &System, gpu: usize, net: usize, sends: bool) -> bool {
        if !system.nets[net].gdr {
            return false;
        }
        // Before Ampere reads disturb other PCIe flows, so they need NVLink beside them.
        if sends && system.gpus[gpu].capability < 80 && system.gpus.len() > 1 {
            let nvlink = |p: usize| p != gpu && self.gpu_to_gpu(system, gpu, p).kind == kind::NVL;
            if !(0..system.gpus.len()).any(nvlink) {
                return false;
            }
        }
        let by = self.relay[net][gpu].unwrap_or(gpu);
        let level = match system.transport.gdr_level {
            set if set != Transport::default().gdr_level => kind_of(set),
            _ => kind::P2C,
        };
        self.gpu_to_net(system, by, net).kind <= level
    }

    /// NICs that are best for a GPU: highest bandwidth, then best type.
    pub(super) fn local_nets(&self, system: &System, gpu: usize) -> Vec<usize> {
        best((0..system.nets.len()).map(|n| self.gpu_to_net(system, gpu, n)))
    }

    /// GPUs that are best for a NIC.
    pub(super) fn local_gpus(&self, system: &System, net: usize) -> Vec<usize> {
        best((0..system.gpus.len()).map(|g| self.net_to_gpu(system, net, g)))
    }

    /// The NICs that a GPU prefers, in the order of channels: GPUs that are equally near to several NICs
    /// share them out.
    pub(super) fn preferred_nets(&self, system: &System, gpu: usize) -> Vec<usize> {
        let nets = self.local_nets(system, gpu);
        let Some(&first) = nets.first() else { return nets };
        let sharers = self.local_gpus(system, first).len();
        share_out(&nets, sharers, system.gpus[gpu].number as usize, system.transport.nics_per_gpu)
    }

    /// The GPU that prefers a NIC on the lowest channel.
    fn local_gpu(&self, system: &System, net: usize) -> Option<usize> {
        self.local_gpus(system, net)
            .into_iter()
            .filter_map(|g| Some((self.preferred_nets(system, g).iter().position(|&n| n == net)?, g)))
            .min()
            .map(|(_, g)| g)
    }

    /// Best and worst type between GPUs, or from GPUs to NICs.
    pub(super) fn range(&self, system: &System, to_nets: bool) -> (u8, u8) {
        let targets = if to_nets { system.nets.len() } else { system.gpus.len() };
        let mut range = (kind::SYS, kind::LOC);
        for from in 0..system.gpus.len() {
            for to in (0..targets).filter(|&t| to_nets || t != from) {
                let path = if to_nets { self.gpu_to_net(system, from, to) } else { self.gpu_to_gpu(system, from, to) };
                range = (range.0.min(path.kind), range.1.max(path.kind));
            }
        }
        range
    }
}

/// Worst type of path over which GPUs reach each other directly.
fn direct_up_to(system: &System) -> u8 {
    kind_of(system.transport.direct_up_to(system.vendor, system.gpus.len()))
}

/// For each GPU, the place of the first GPU of those that it is left with where host memory is not shared: NCCL
/// takes GPUs apart that do not reach each other directly (`ncclTopoTrimSystem`).
pub(super) fn left_together(system: &System) -> Vec<usize> {
    let level = direct_up_to(system);
    let mut first: Vec<usize> = Vec::new();
    for (place, gpu) in system.gpus.iter().enumerate() {
        let paths = shortest(system, gpu.node);
        let near = first.iter().zip(&system.gpus).filter(|(_, other)| paths[other.node].kind <= level);
        first.push(near.map(|(&first, _)| first).min().unwrap_or(place));
    }
    first
}

/// Places of the paths with the highest bandwidth and, among those, the best type.
fn best<'a>(paths: impl Iterator<Item = &'a Path>) -> Vec<usize> {
    let mut found = Vec::new();
    let (mut bw, mut kind) = (0.0, kind::DIS);
    for (index, path) in paths.enumerate() {
        if path.bw > bw || (path.bw == bw && path.kind < kind) {
            (bw, kind) = (path.bw, path.kind);
            found.clear();
        }
        if path.bw == bw && path.kind == kind && kind < kind::DIS {
            found.push(index);
        }
    }
    found
}

fn merge(a: u8, b: u8) -> u8 {
    if a.max(b) == kind::PHB && a.min(b) == kind::C2C { kind::P2C } else { a.max(b) }
}

/// Two paths one after the other; none where either is none.
fn join(first: &Path, second: &Path) -> Path {
    if first.kind == kind::DIS || second.kind == kind::DIS {
        return Path::none();
    }
    let links = first.links.iter().chain(&second.links).copied().collect();
    Path { links, bw: first.bw.min(second.bw), kind: merge(first.kind, second.kind) }
}

/// Paths from every node to one: fewest hops, then the highest bandwidth.
fn shortest(system: &System, target: usize) -> Vec<Path> {
    let mut paths = vec![Path::none(); system.kinds.len()];
    paths[target] = Path { links: SmallVec::new(), bw: LOC_BW, kind: kind::LOC };
    let mut layer = vec![target];
    while !layer.is_empty() {
        let mut next = Vec::new();
        for &node in &layer {
            for &l in &system.links_of[node] {
                let link = system.links[l];
                let far = link.to;
                let known = &paths[node];
                // A GPU is passed only over NVLink to one other GPU.
                let relays =
                    link.kind == LinkType::Nvlink && system.kinds[far] == NodeKind::Gpu && known.links.len() <= 1;
                if node != target && system.kinds[node] == NodeKind::Gpu && !relays {
                    continue;
                }
                let bw = known.bw.min(link.bw);
                let old = &paths[far];
                if !((old.bw == 0.0 || old.links.len() > known.links.len()) && old.bw < bw) {
                    continue;
                }
                let mut links: SmallVec<[u32; 6]> = SmallVec::new();
                links.push(u32::try_from(link.back).unwrap_or(u32::MAX));
                links.extend_from_slice(&known.links);
                let step = step_kind(system, node, link.kind, far, known, links.len());
                let kind = known.kind.max(step);
                paths[far] = Path { links, bw, kind };
                if !next.contains(&far) {
                    next.push(far);
                }
            }
        }
        layer = next;
    }
    paths
}

fn step_kind(system: &System, node: usize, link: LinkType, far: usize, known: &Path, hops: usize) -> u8 {
    let (near, far) = (system.kinds[node], system.kinds[far]);
    match link {
        LinkType::Nvlink if near == NodeKind::Gpu && known.kind == kind::NVL && hops > 1 => kind::NVB,
        LinkType::Nvlink => kind::NVL,
        LinkType::C2c => kind::C2C,
        LinkType::Pci if near == NodeKind::Cpu || far == NodeKind::Cpu => kind::PHB,
        LinkType::Pci if near == NodeKind::Pci && far == NodeKind::Pci => kind::PXB,
        LinkType::Pci => kind::PIX,
        LinkType::Sys => kind::SYS,
        LinkType::Net => kind::LOC,
    }
}

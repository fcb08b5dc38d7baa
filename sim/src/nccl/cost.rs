//! Latency, bandwidth and time that NCCL assigns to each algorithm and protocol.
//!
//! Computed in 32-bit floats where NCCL does, so that the results are its own to the last
//! printed digit.
//!
//! Source: NCCL 2.30.7 `src/graph/tuning.cc`, `src/enqueue.cc`, restated.

use super::constants::Constants;
use super::cut::worthwhile;
use super::graphs::{CpuVendor, Graph, Graphs, Pattern};
use super::path::PathClass;
use super::rules::{NetLatency, NvlsSpeed, Rules};
use super::selection::{ALGORITHMS, function_index};
use super::settings::NcclSettings;
use super::tables::{
    COLLNET_CHAIN, COLLNET_DIRECT, LL, LL128, NETWORK, NVLINK, NVLS, NVLS_TREE, PAT, PCI, RING, SIMPLE, TREE,
};
use super::version::Version;
use crate::call::Call;
use crate::collective::{Algorithm, Collective, DataType, Protocol, ReduceOp};

/// Kernel work items that one launch of NCCL batches (`NCCL_MAX_DEV_WORK_BATCH_COLLS`).
const BATCH: u32 = 8;
/// Speed of a PCIe 3.0 x16 link in NCCL's count, in GB/s (`PCI_BW`).
const PCI_SPEED: f64 = 12.0;

/// Latency and bandwidth of one algorithm and protocol.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cost {
    /// Latency of one call, in microseconds.
    pub latency_us: f32,
    /// Bytes of the call over time, before corrections by size, in GB/s.
    pub bandwidth_gb_per_s: f32,
}

/// An entry of the cost table.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Cell {
    /// NCCL has no such kernel.
    NoKernel,
    /// Not for this communicator, call or setting: why.
    Off(&'static str),
    /// Open to choice.
    On(Cost),
}

/// `[algorithm][protocol]` in NCCL's order.
pub type CostTable = [[Cell; 3]; 7];

/// The place of a pair in a [`CostTable`].
pub fn place(algorithm: Algorithm, protocol: Protocol) -> Option<(usize, usize)> {
    let a = ALGORITHMS.iter().position(|&known| known == algorithm)?;
    Some((a, Protocol::ALL.iter().position(|&known| known == protocol)?))
}

/// NCCL's cost model on one communicator.
#[derive(Clone, Debug)]
pub struct Model<'a> {
    pub(super) graphs: &'a Graphs,
    pub(super) rules: Rules,
    pub(super) settings: NcclSettings,
    /// Whether NCCL calls the buffers of its calls registered when it asks a tuner.
    pub(super) registered: bool,
    constants: Constants,
}

impl<'a> Model<'a> {
    /// The model of a version ([`Version::covered`]) with settings.
    pub fn new(graphs: &'a Graphs, version: Version, settings: NcclSettings) -> Self {
        let rules = Rules::of(version);
        Self { graphs, rules, settings, registered: false, constants: Constants::new(&rules.costs, graphs) }
    }

    /// The same for calls whose buffers NCCL calls registered, or not, when it asks a tuner.
    #[must_use]
    pub fn with_registered(self, registered: bool) -> Self {
        Self { registered, ..self }
    }

    /// Channels of the communicator for ring, tree, PAT and CollNet chain, within the bounds
    /// that the settings put.
    pub fn channels(&self) -> u32 {
        let set = &self.settings;
        let limit = self.rules.max_channels;
        let (least, most) = set.channels();
        self.graphs.channels.min(most.unwrap_or(limit).min(limit)).max(least.unwrap_or(1).min(limit)).max(1)
    }

    fn graph(&self, a: usize) -> Option<&'a Graph> {
        match a {
            TREE | PAT => Some(&self.graphs.tree),
            RING => Some(&self.graphs.ring),
            COLLNET_DIRECT => self.graphs.collnet_direct.as_ref(),
            COLLNET_CHAIN => self.graphs.collnet_chain.as_ref(),
            _ => self.graphs.nvls.as_ref(),
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "as NCCL does")]
    fn ranks_per_host(&self) -> f32 {
        (f64::from(self.graphs.ranks) / f64::from(self.graphs.hosts.max(1))) as f32
    }

    /// The table of one call.
    pub fn table(&self, call: &Call) -> CostTable {
        std::array::from_fn(|a| std::array::from_fn(|p| self.cell(call, a, p)))
    }

    fn cell(&self, call: &Call, a: usize, p: usize) -> Cell {
        if !has_kernel(call.collective, a, p) || !self.rules.algorithms[a] {
            return Cell::NoKernel;
        }
        if let Some(why) = self.off(call, a, p) {
            return Cell::Off(why);
        }
        let Some(graph) = self.graph(a) else {
            return Cell::Off("there is no graph for it on this machine");
        };
        let bandwidth = self.bandwidth(call.collective, graph, a, p);
        if bandwidth > 0.0 {
            Cell::On(Cost { latency_us: self.latency(call.collective, graph, a, p), bandwidth_gb_per_s: bandwidth })
        } else {
            Cell::Off("its bandwidth is zero on this machine")
        }
    }

    /// Why NCCL does not consider a pair that it has a kernel for.
    fn off(&self, call: &Call, a: usize, p: usize) -> Option<&'static str> {
        let (graphs, set) = (self.graphs, &self.settings);
        let (least_cc, most_cc) = graphs.compute_capability;
        if set.algorithms.allows(call.collective, ALGORITHMS[a]) == Some(false) {
            return Some("NCCL_ALGO excludes it");
        }
        match set.protocols.allows(call.collective, Protocol::ALL[p]) {
            Some(false) => return Some("NCCL_PROTO excludes it"),
            None if p == LL128 => {
                if let Some(why) = self.ll128_off(a) {
                    return Some(why);
                }
            }
            Some(true) | None => {}
        }
        let several = graphs.hosts > 1;
        let reduction = call.collective.reduces().then_some((call.op, call.dtype));
        match a {
            NVLS_TREE if !several => return Some("it is for several hosts"),
            COLLNET_DIRECT | COLLNET_CHAIN => {
                if !set.collnet {
                    return Some("NCCL_COLLNET_ENABLE is not 1");
                }
                if !graphs.collnet {
                    return Some("the network does not reduce");
                }
                if graphs.hosts < set.collnet_hosts.unwrap_or(2) {
                    return Some("fewer hosts than NCCL_COLLNET_NODE_THRESHOLD");
                }
                if graphs.ranks_per_host.1 > 8 {
                    return Some("it takes at most 8 ranks a host");
                }
                if a == COLLNET_DIRECT && !graphs.nvswitch {
                    return Some("it needs NVSwitch");
                }
            }
            PAT => match set.pat {
                _ if least_cc < 60 => return Some("it needs compute capability 6.0"),
                Some(false) => return Some("NCCL_PAT_ENABLE is 0"),
                None if graphs.hosts != graphs.ranks => return Some("it is for one rank a host"),
                Some(true) | None => {}
            },
            _ => {}
        }
        if a == PAT && reduction.is_some_and(|(op, _)| op == ReduceOp::Avg) {
            return Some("it does not average");
        }
        if matches!(a, NVLS | NVLS_TREE) {
            if set.nvls == Some(false) {
                return Some("NCCL_NVLS_ENABLE is 0");
            }
            if graphs.ranks_per_host.0 < self.rules.nvls_ranks {
                return Some(match self.rules.nvls_ranks {
                    2 => "it needs two ranks on each host",
                    _ => "this version needs three ranks on each host for it",
                });
            }
            if !graphs.multicast || !graphs.nvswitch || least_cc.min(most_cc) < 90 {
                return Some("the GPUs share no NVSwitch with multicast");
            }
            if graphs.nvls.as_ref().is_none_or(|g| g.channels < 2) {
                return Some("its graph has less than two channels");
            }
            if call.collective != Collective::AllReduce && graphs.ranks_per_host.1 > 32 {
                return Some("it takes at most 32 ranks a host");
            }
            if a == NVLS && several && (!set.collnet || !graphs.collnet) {
                return Some("across hosts it needs CollNet (NCCL_COLLNET_ENABLE and a network that reduces)");
            }
        }
        if gathers(call.collective) {
            if a == NVLS && graphs.hosts > self.rules.nvls_gathers {
                return Some(match self.rules.nvls_gathers {
                    0 => "this version has NVLS for all-reduce only",
                    _ => "this version gathers and scatters with NVLS on one host only",
                });
            }
            if a == COLLNET_DIRECT && !self.rules.collnet_gathers {
                return Some("this version has CollNet for all-reduce only");
            }
        }
        let in_switches = matches!(a, NVLS | NVLS_TREE | COLLNET_DIRECT | COLLNET_CHAIN);
        if let Some((op, dtype)) = reduction.filter(|_| in_switches)
            && let Some(why) = not_in_switches(matches!(a, NVLS | NVLS_TREE), op, dtype)
        {
            return Some(why);
        }
        // Gathering and scattering through the network wants a NIC for each rank.
        let heads = graphs.collnet_direct.as_ref().map_or(0, |g| g.channels);
        if matches!(a, NVLS | COLLNET_DIRECT)
            && several
            && call.collective != Collective::AllReduce
            && graphs.ranks_per_host.1 > heads
        {
            return Some("it needs a NIC for each rank of a host");
        }
        None
    }

    /// Why LL128 is not safe by NCCL's automatic rule: its 128-byte stores must arrive whole.
    fn ll128_off(&self, a: usize) -> Option<&'static str> {
        let graph = self.graph(a)?;
        let (least_cc, most_cc) = self.graphs.compute_capability;
        let worst = if least_cc >= 90 && !self.settings.no_ll128_c2c { PathClass::Pxn } else { PathClass::Pxb };
        if graph.type_inter > worst {
            return Some("LL128 is not safe on the path to the NIC");
        }
        if graph.type_intra > PathClass::Nvb {
            return Some("LL128 is not safe without NVLink between GPUs");
        }
        if least_cc != most_cc && !(self.rules.ll128_on_mixed_gpus && least_cc >= 90) {
            return Some("LL128 is off for GPUs of different kinds");
        }
        if least_cc < 70 {
            return Some("LL128 needs compute capability 7.0");
        }
        if self.rules.ll128_kinds.is_some_and(|kinds| !kinds.contains(&least_cc)) {
            return Some("LL128 is off for GPUs of this compute capability in this version");
        }
        // NCCL's exception for two ranks under CUDA 11.8 is left out: no CUDA version is known here.
        None
    }

    /// In the order and the precision of NCCL.
    #[expect(clippy::cast_possible_truncation, reason = "as NCCL does")]
    fn bandwidth(&self, collective: Collective, graph: &Graph, a: usize, p: usize) -> f32 {
        let (graphs, costs, constants) = (self.graphs, &self.rules.costs, &self.constants);
        let (n, hosts) = (graphs.ranks, graphs.hosts);
        let per_host = self.ranks_per_host();
        let channels = f64::from(graph.channels);
        let (intra, inter) = (graph.speed_intra as f32, graph.speed_inter as f32);
        let all_reduce = collective == Collective::AllReduce;
        let gathers = gathers(collective);
        let collnet = matches!(a, COLLNET_DIRECT | COLLNET_CHAIN);
        let as_ring = match costs.nvls {
            NvlsSpeed::AsRing(share) => Some(share),
            _ => None,
        };
        let speed = match (a, constants.nvls_efficiency) {
            (NVLS | NVLS_TREE, Some(efficiency)) => {
                let channels = graph.channels as f32;
                let inside = intra * efficiency * (channels - 1.0) / channels;
                let inside = if all_reduce { inside * 2.0 } else { inside * (per_host - 1.0) / per_host };
                let between = if a == NVLS_TREE && hosts <= 2 { inter * 2.0 } else { inter };
                let most = if a == NVLS_TREE { constants.nvls_tree_max as f32 } else { f32::INFINITY };
                inside.min(between).min(most)
            }
            (NVLS | NVLS_TREE, None) if as_ring.is_some() => {
                if hosts <= 2 {
                    intra
                } else {
                    inter
                }
            }
            (NVLS, None) if all_reduce || costs.nvls != NvlsSpeed::Kept => intra.min(inter),
            (NVLS, None) => (intra * (per_host - 1.0) / per_host).min(inter * 0.9),
            (NVLS_TREE, None) => intra.min(if hosts <= 2 { inter } else { inter / 2.0 }),
            _ if hosts <= 2 || collnet => intra,
            _ => inter,
        };
        let mut bus = (graph.channels as f32 * speed).min(constants.bus_max);
        let ll128_max = |max: f64| match (costs.ll128_max, function_index(collective)) {
            (Some(by_collective), Some(index)) => by_collective[index],
            _ => max,
        };
        match (a, p) {
            (RING, LL) => {
                let first = hosts > 1 || matches!(collective, Collective::AllReduce | Collective::Reduce);
                let share = costs.ring_ll_share[usize::from(!first)];
                bus = constants.ll_max.min(f64::from(bus) * share) as f32;
            }
            (RING, LL128) => {
                let share = if per_host < 2.0 { costs.ring_ll128_share_alone } else { 0.92 };
                bus = (f64::from(bus) * share).min(channels * ll128_max(constants.ring_ll128_max)) as f32;
            }
            (TREE, _) => {
                bus = (f64::from(bus) * 0.92).min(channels * constants.tree_max) as f32;
                if p == LL {
                    bus = (f64::from(bus) / 3.8).min(constants.ll_max) as f32;
                } else if p == LL128 {
                    let share = if hosts == 1 { 7.0 / 9.0 } else { costs.tree_ll128_share };
                    bus = (f64::from(bus) * share).min(channels * ll128_max(constants.tree_ll128_max)) as f32;
                }
                if graph.pattern == Pattern::Tree {
                    bus = (f64::from(bus) * costs.one_gpu_tree_share) as f32;
                }
            }
            (PAT, _) => bus = (f64::from(bus) * costs.pat_share) as f32,
            (COLLNET_DIRECT, _) if gathers && costs.collnet_gathers_inside => {
                let many = (per_host - 1.0) / 7.0;
                bus = (f64::from(per_host * intra) * (f64::from(many) * 0.85 + f64::from(1.0 - many) * 0.95)) as f32;
            }
            (COLLNET_DIRECT, _) if gathers => bus = per_host * intra.min(inter * 0.9),
            (COLLNET_DIRECT, _) => {
                let mut factor = (f64::from(per_host) / channels) as f32;
                factor -= (factor - 1.0) / 2.0;
                bus /= factor;
                if graphs.compute_capability.0 >= 90 {
                    bus = (f64::from(bus) * costs.collnet_direct_hopper_share) as f32;
                }
            }
            (COLLNET_CHAIN, _) => bus = (f64::from(bus) * costs.collnet_chain_share) as f32,
            _ => {}
        }
        if gathers && a != RING && !(a == NVLS && costs.nvls == NvlsSpeed::Whole) {
            return bus;
        }
        let ratio = match a {
            NVLS_TREE if as_ring.is_some() => 0.7 * f64::from(hosts) / f64::from(2 * hosts.saturating_sub(1)),
            NVLS | NVLS_TREE if constants.nvls_efficiency.is_none() => as_ring.unwrap_or(5.0 / 6.0),
            RING | NVLS | NVLS_TREE => f64::from(n) / f64::from(steps(collective, n)),
            _ => 0.5,
        };
        bus * ratio as f32
    }

    #[expect(clippy::cast_possible_truncation, reason = "as NCCL does")]
    fn latency(&self, collective: Collective, graph: &Graph, a: usize, p: usize) -> f32 {
        let (graphs, costs) = (self.graphs, &self.rules.costs);
        let (n, hosts) = (graphs.ranks, graphs.hosts.max(1));
        let inside = if graph.type_intra == PathClass::Nvl { NVLINK } else { PCI };
        let mut intra = costs.step[inside][a][p];
        if hosts > 1 && p == LL {
            intra *= costs.ll_step_over_hosts;
        }
        let reported = graph.latency_inter as f32;
        let inter = match costs.net_latency {
            NetLatency::Adds => {
                let row = if costs.alone_as_tree && graphs.ranks == hosts { TREE } else { a };
                // Simple also flushes.
                costs.step[NETWORK][row][p] + reported * if p == SIMPLE { 2.0 } else { 1.0 }
            }
            NetLatency::Replaces if reported > 0.0 => reported,
            NetLatency::Replaces | NetLatency::Unasked => costs.step[NETWORK][a][p],
        };
        let base = costs.base[a][p];
        let neighbours = (n / hosts).saturating_sub(1);
        let depth = hosts.ilog2() as f32;
        match a {
            RING if matches!(collective, Collective::Broadcast | Collective::Reduce) => {
                let kind = if hosts == 1 { inside } else { NETWORK };
                if graph.same_channels {
                    base + costs.step[kind][RING][p]
                } else {
                    let row = if p == SIMPLE { TREE } else { RING };
                    base + n as f32 * costs.step[kind][row][p]
                }
            }
            RING => {
                let steps = steps(collective, n);
                let between = match collective {
                    _ if hosts == 1 => 0,
                    Collective::AllReduce if costs.ring_counts_all_hosts => 2 * hosts,
                    Collective::AllReduce => 2 * (hosts - 1),
                    _ => hosts - 1,
                };
                let posting = match hosts {
                    2.. if costs.posts => self.net_overhead_us() * if p == SIMPLE { 3.0 } else { 1.0 },
                    _ => 0.0,
                };
                let rest = f64::from(steps) - f64::from(between);
                base + (rest as f32 * intra.max(posting) + between as f32 * inter)
            }
            TREE => base + 2.0 * (neighbours as f32 * intra + depth * inter),
            COLLNET_DIRECT => {
                let serial = f64::from(neighbours) * costs.collnet_direct_serial;
                let inside = f64::from(neighbours.min(1) as f32 * intra);
                (f64::from(base) + (2.0 * (inside + serial) + f64::from(inter))) as f32
            }
            COLLNET_CHAIN => base + ((2 * neighbours) as f32 * intra + inter),
            NVLS | NVLS_TREE if matches!(costs.nvls, NvlsSpeed::AsRing(_)) => {
                let steps = if a == NVLS { u32::from(hosts > 1) } else { 2 * (hosts - 1) };
                base + steps as f32 * costs.step[NETWORK][a][p]
            }
            NVLS if hosts == 1 => intra,
            NVLS => intra + inter,
            NVLS_TREE => base + (intra + 2.0 * depth * inter),
            _ => (f64::from(base) + f64::from(depth) * (f64::from(inter) / 3.5) + f64::from(n) * 2.8) as f32,
        }
    }

    /// What the CPU takes to post a message to the network, in microseconds.
    fn net_overhead_us(&self) -> f32 {
        match (self.settings.net_overhead_ns, self.graphs.cpu_vendor) {
            (Some(ns), _) => ns as f32 * 0.001,
            (None, Some(CpuVendor::Amd)) => 2.0,
            (None, _) => 1.0,
        }
    }

    /// NCCL's time of `calls` in one group that share a choice and move `bytes` together, in
    /// microseconds. One call: its own bytes and 1.
    #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "as NCCL does")]
    pub fn time_us(&self, cost: Cost, call: &Call, pair: (usize, usize), bytes: u64, calls: u32) -> f32 {
        let (a, p) = pair;
        let (graphs, costs) = (self.graphs, &self.rules.costs);
        let (mut latency, mut bandwidth) = (cost.latency_us, cost.bandwidth_gb_per_s);
        let all_reduce = call.collective == Collective::AllReduce;
        let x86 = matches!(graphs.cpu_vendor, Some(CpuVendor::Intel | CpuVendor::Amd));
        let corrected = match a {
            TREE => 23,
            NVLS_TREE if costs.corrects_nvls_tree && graphs.compute_capability.0 >= 100 && x86 => 24,
            _ => 0,
        };
        if all_reduce && bytes >= 64 {
            let index = (bytes >> 6).ilog2() as usize;
            if index < corrected {
                bandwidth *= costs.tree_correction[p][index];
            }
        }
        let (share, by_channel) = costs.plateau;
        let share = if by_channel { share * u64::from(self.channels()) } else { share };
        if (a, p) == (RING, SIMPLE) && all_reduce && graphs.hosts > 1 && bytes >= share * u64::from(graphs.ranks) {
            let factor = if graphs.compute_capability.0 < 80 { 1.9 } else { costs.plateau_ampere };
            latency = (f64::from(latency) * factor) as f32;
        }
        let pipelined = calls.div_ceil(self.channels()).max(1);
        let count = if a == RING { pipelined } else { pipelined.div_ceil(BATCH) };
        let time = latency * count as f32 + bytes as f32 / (1000.0 * bandwidth);
        // A ring adds one rank after the other: too many for 8-bit floats, so that it is the last resort.
        let adds_up = call.collective.reduces() && graphs.ranks > 8;
        let float8 = matches!(call.dtype, DataType::Float8E4m3 | DataType::Float8E5m2);
        if a == RING && adds_up && float8 { time * 1024.0 } else { time }
    }

    /// Threads of a block that NCCL has by default or by setting; 0 for PAT, whose kernel has
    /// its own number.
    pub fn max_threads(&self, algorithm: Algorithm, protocol: Protocol) -> u32 {
        let ring = &self.graphs.ring;
        let slow = ring.speed_intra * f64::from(ring.channels) <= PCI_SPEED;
        match (algorithm, protocol) {
            (Algorithm::Pat, _) => 0,
            (Algorithm::Ring | Algorithm::Tree, Protocol::Ll128) => self.settings.ll128_threads.unwrap_or(640),
            (Algorithm::Ring, Protocol::Simple) => self.settings.threads.unwrap_or(if slow { 256 } else { 512 }),
            (Algorithm::Ring | Algorithm::Tree, _) => self.settings.threads.unwrap_or(512),
            _ => 640,
        }
    }

    /// Bytes that a thread must have to be worth its while.
    pub fn threshold(&self, algorithm: Algorithm, protocol: Protocol) -> u64 {
        let row = match algorithm {
            Algorithm::Tree => Some(0),
            Algorithm::Ring => Some(1),
            _ => None,
        };
        let p = Protocol::ALL.iter().position(|&known| known == protocol).unwrap_or(SIMPLE);
        if let Some(threshold) = row.and_then(|row| self.settings.thresholds[row][p]) {
            return threshold;
        }
        match (algorithm, protocol) {
            (Algorithm::Ring, Protocol::Ll) => 8 * u64::from(self.graphs.ranks),
            (_, Protocol::Ll | Protocol::Ll128) => 8,
            (Algorithm::CollnetDirect | Algorithm::CollnetChain, Protocol::Simple) => 512,
            (_, Protocol::Simple) => 64,
        }
    }

    /// Channels that NCCL gives a call of `bytes`, before it deals the bytes to them.
    pub fn call_channels(&self, algorithm: Algorithm, protocol: Protocol, bytes: u64) -> u32 {
        let threads = u64::from(self.max_threads(algorithm, protocol));
        let mut threshold = self.threshold(algorithm, protocol);
        let mut channels = self.channels();
        match algorithm {
            Algorithm::Nvls | Algorithm::NvlsTree => {
                let set = &self.settings;
                let own = set.nvls_channels.unwrap_or(self.graphs.nvls_channels);
                let own = own.min(set.max_ctas.unwrap_or(own)).max(set.min_ctas.unwrap_or(1)).max(1);
                if algorithm == Algorithm::Nvls && self.graphs.hosts > 1 { own.min(channels) } else { own }
            }
            Algorithm::CollnetDirect => {
                let heads = self.graphs.collnet_direct.as_ref().map_or(1, |g| u64::from(g.channels.max(1)));
                for switch in [16, 8, 4, 2, 1] {
                    let small =
                        |channels: u32, threshold: u64| bytes < u64::from(channels) * threads * heads * threshold;
                    while channels > switch && small(channels, threshold) {
                        // Channels at one and a half of the mark are as good with smaller shares.
                        if 2 * channels == 3 * switch {
                            threshold /= 2;
                        }
                        channels -= 1;
                    }
                    if !small(channels, threshold) {
                        break;
                    }
                }
                channels
            }
            // Its kernel has a number of threads of its own, so NCCL knows none here.
            Algorithm::Pat => channels,
            _ => u32::try_from(worthwhile(u64::from(channels), bytes, threads * threshold)).unwrap_or(channels),
        }
    }
}

/// Steps of a ring; of the others NCCL takes the same for the ratio of bus to call.
fn steps(collective: Collective, n: u32) -> u32 {
    match collective {
        Collective::AllReduce => 2 * n.saturating_sub(1),
        Collective::AllGather | Collective::ReduceScatter => n.saturating_sub(1),
        _ => n,
    }
}

fn gathers(collective: Collective) -> bool {
    matches!(collective, Collective::AllGather | Collective::ReduceScatter)
}

/// Whether NCCL has a kernel (`src/device/generate.py`).
fn has_kernel(collective: Collective, a: usize, p: usize) -> bool {
    let algorithms: &[usize] = match collective {
        Collective::AllReduce => &[TREE, RING, COLLNET_DIRECT, COLLNET_CHAIN, NVLS, NVLS_TREE],
        Collective::AllGather | Collective::ReduceScatter => &[RING, COLLNET_DIRECT, NVLS, PAT],
        Collective::Broadcast | Collective::Reduce => &[RING],
        _ => &[],
    };
    algorithms.contains(&a) && (p == SIMPLE || matches!(a, TREE | RING))
}

/// Why switches do not combine values of a type by an operation: NVSwitch (`ncclNvlsSupported`), or those of a network,
/// which NCCL asks for the sum where it averages (`ncclGetCollNetSupport`, `src/enqueue.cc`).
pub(crate) fn not_in_switches(nvswitch: bool, op: ReduceOp, dtype: DataType) -> Option<&'static str> {
    match (op, dtype) {
        (ReduceOp::Prod, _) => Some("switches do sum, min and max"),
        (ReduceOp::Avg, _) if nvswitch => Some("NVSwitch does sum, min and max"),
        (_, DataType::Float8E4m3 | DataType::Float8E5m2) => Some("switches have no 8-bit floats"),
        (_, DataType::Int8 | DataType::Uint8) if nvswitch => Some("NVSwitch has no 8-bit integers"),
        (ReduceOp::Min | ReduceOp::Max, DataType::Float32 | DataType::Float64) if nvswitch => {
            Some("NVSwitch only sums 32-bit and 64-bit floats")
        }
        _ => None,
    }
}

//! One search: lays channel after channel through the GPUs and NICs of a node.
//!
//! A channel takes its speed from every link on the way and gives it back when the search turns round.
//! Steps are counted and bounded, so what is found depends on the order of trying; the order is NCCL's.
//!
//! Source: NCCL 2.30 `src/graph/search.cc`, restated. Sums are in 32-bit floats, rounded to MB/s as
//! NCCL does it.

use smallvec::SmallVec;

use super::paths::{End, Path, Paths, kind};
use super::system::{LinkType, System};
use crate::nccl::graphs::{CpuVendor, Pattern};
use crate::nccl::transport::CrossNic;

/// Steps of one search (`NCCL_SEARCH_TIMEOUT`).
const STEPS: i32 = 1 << 14;
/// Steps of one search where all channels are the same (`NCCL_SEARCH_TIMEOUT_SAMECHANNELS`).
const STEPS_SAME: i32 = 1 << 8;
/// Steps of the first try in the order of numbers.
const STEPS_BY_NUMBER: i32 = 1 << 10;

/// A graph of one host.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) pattern: Pattern,
    pub(super) cross_nic: CrossNic,
    pub(super) min_channels: usize,
    pub(super) max_channels: usize,
    pub(super) channels: usize,
    pub(super) bw_intra: f32,
    pub(super) bw_inter: f32,
    pub(super) latency: f32,
    pub(super) type_intra: u8,
    pub(super) type_inter: u8,
    pub(super) same: bool,
    pub(super) hops: i32,
    /// `[channel * gpus + step]`: indices into [`System::gpus`].
    pub(super) intra: Vec<u16>,
    /// `[channel]`: indices into [`System::nets`], by which it enters and leaves.
    pub(super) inter: Vec<(Option<u16>, Option<u16>)>,
}

impl Found {
    /// The GPUs of a channel in order; only the head for NVLS.
    pub(super) fn gpus(&self, channel: usize, gpus: usize) -> &[u16] {
        let all = &self.intra[channel * gpus..(channel + 1) * gpus];
        if self.pattern == Pattern::Nvls { &all[..1] } else { all }
    }

    /// The NICs by which a channel enters and leaves.
    pub(super) fn nets(&self, channel: usize) -> Option<(usize, usize)> {
        let (enter, leave) = self.inter[channel];
        Some((usize::from(enter?), usize::from(leave?)))
    }

    fn is_tree(&self) -> bool {
        matches!(self.pattern, Pattern::BalancedTree | Pattern::SplitTree | Pattern::Tree)
    }

    /// Channels that are fast enough for two become two.
    pub(super) fn duplicate(&mut self, capability: u32, gpus: usize) {
        if self.channels == 0
            || self.pattern == Pattern::Nvls
            || self.bw_intra < 25.0
            || (capability > 80 && self.bw_intra < 50.0 && self.channels > 4)
        {
            return;
        }
        let doubled = (2 * self.channels).min(self.max_channels);
        let extra = doubled - self.channels;
        self.intra.copy_within(..extra * gpus, self.channels * gpus);
        self.inter.copy_within(..extra, self.channels);
        let share = doubled.div_ceil(self.channels) as f32;
        self.bw_intra /= share;
        self.bw_inter /= share;
        self.channels = doubled;
    }
}

pub(super) fn small(n: usize) -> u16 {
    u16::try_from(n).unwrap_or(u16::MAX)
}

/// Where the next GPU of a channel comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Force {
    No,
    /// The order of numbers.
    Number,
    /// The order of the channel before.
    Replay,
}

/// Where a channel goes to the network or back to its first GPU, by step; `None` when done or never.
#[derive(Clone, Copy, Debug)]
struct Turns {
    net: Option<usize>,
    first: Option<usize>,
}

pub(super) struct Search<'s> {
    pub(super) system: &'s System,
    pub(super) paths: &'s Paths,
    /// What is left of each link, and of each network device.
    link_bw: Vec<f32>,
    net_bw: Vec<f32>,
    /// GPUs at which a channel from each network device may start, nearest first.
    starts: Vec<Vec<usize>>,
    /// Bit set of the channels that have visited a GPU.
    used: Vec<u64>,
    /// NICs to try with the type from which on each is allowed: for the start, and for each GPU.
    nets: Vec<(usize, Option<u8>)>,
    nets_of: Vec<Vec<(usize, Option<u8>)>>,
    pub(super) now: Found,
    pub(super) best: Found,
    /// Steps left; -1 when the best that was asked for is found.
    pub(super) steps: i32,
}

impl<'s> Search<'s> {
    pub(super) fn new(system: &'s System, paths: &'s Paths, found: Found) -> Self {
        let all: Vec<usize> = (0..system.gpus.len()).collect();
        Self {
            system,
            paths,
            link_bw: system.links.iter().map(|l| l.bw).collect(),
            net_bw: system.nets.iter().map(|n| n.bw).collect(),
            starts: (0..system.nets.len())
                .map(|n| {
                    let near = paths.net_gpu[n];
                    let others = paths.local_gpus(system, n).into_iter().filter(|&g| Some(g) != near);
                    near.into_iter().chain(others).collect()
                })
                .collect(),
            used: vec![0; system.gpus.len()],
            nets: net_order(system, paths, &all),
            nets_of: all.iter().map(|&g| net_order(system, paths, &[g])).collect(),
            now: found.clone(),
            best: found,
            steps: 0,
        }
    }

    /// One search with the conditions of `now`; `best` is replaced by what is better.
    pub(super) fn run(&mut self, left: &mut i64) {
        self.steps = if self.now.same { STEPS_SAME } else { STEPS };
        *left -= i64::from(self.steps);
        self.now.channels = 0;
        self.next_channel();
    }

    fn turns(&self) -> Turns {
        let last = self.system.gpus.len() - 1;
        let ring = self.now.pattern == Pattern::Ring;
        if !self.system.inter {
            return Turns { net: None, first: ring.then_some(last) };
        }
        let net = match self.now.pattern {
            Pattern::Ring => last,
            Pattern::SplitTree => 1,
            _ => 0,
        };
        Turns { net: Some(net), first: None }
    }

    fn next_channel(&mut self) {
        let turns = self.turns();
        if self.system.inter {
            self.start_at_nets(turns);
            return;
        }
        let channel = self.now.channels;
        if self.now.pattern == Pattern::Nvls {
            if channel < self.system.gpus.len() {
                self.try_gpu(None, channel, 0, turns, Force::No);
            }
            return;
        }
        if channel == 0 {
            self.try_gpu(None, 0, 0, turns, Force::Number);
        } else {
            let first = self.replayed(0);
            self.try_gpu(None, first, 0, turns, Force::Replay);
        }
        if !self.now.same || channel == 0 {
            for gpu in 0..self.system.gpus.len() {
                self.try_gpu(None, gpu, 0, turns, Force::No);
            }
        }
    }

    /// The GPU at a step of the channel before.
    fn replayed(&self, step: usize) -> usize {
        usize::from(self.now.intra[(self.now.channels - 1) * self.system.gpus.len() + step])
    }

    /// Starts a channel at each network device in turn.
    fn start_at_nets(&mut self, turns: Turns) {
        // NICs are counted in whole GB/s.
        let bw = self.now.bw_inter.trunc();
        let heads_only = matches!(self.now.pattern, Pattern::Nvls | Pattern::CollnetDirect);
        let count = allowed(&self.nets, self.now.type_inter).count();
        let channel = self.now.channels;
        for i in 0..count {
            let net = self.nets[(channel + i) % count].0;
            if self.net_bw[net] < bw {
                continue;
            }
            let crossing = self.now.pattern == Pattern::Ring && self.now.cross_nic == CrossNic::Pairs;
            if crossing && channel % 2 == 1 && self.now.inter[channel - 1].1 != Some(small(net)) {
                continue;
            }
            self.now.inter[channel].0 = Some(small(net));
            self.now.latency = self.system.nets[net].latency;
            self.net_bw[net] -= bw;
            let mut found_head = false;
            if heads_only {
                // Only pairs of NIC and head are looked for, each head once.
                if channel < count
                    && let Some(gpu) = self.paths.net_gpu[net]
                    && !(0..channel).any(|c| self.now.gpus(c, self.system.gpus.len())[0] == small(gpu))
                {
                    self.try_gpu(Some(End::Net(net)), gpu, 0, turns, Force::No);
                    found_head = true;
                }
            } else if channel > 0 && self.now.same {
                let first = self.replayed(0);
                self.try_gpu(Some(End::Net(net)), first, 0, turns, Force::Replay);
            } else {
                if channel == 0 && self.system.nvswitch.is_none() {
                    // The order of numbers sets a reference, with steps of its own.
                    let steps = std::mem::replace(&mut self.steps, STEPS_BY_NUMBER);
                    self.try_gpu(Some(End::Net(net)), 0, 0, turns, Force::Number);
                    if self.steps != -1 {
                        self.steps = steps;
                    }
                }
                for at in 0..self.starts[net].len() {
                    let gpu = self.starts[net][at];
                    self.try_gpu(Some(End::Net(net)), gpu, 0, turns, Force::No);
                }
            }
            self.net_bw[net] += bw;
            if found_head {
                break;
            }
        }
    }

    fn try_gpu(&mut self, from: Option<End>, gpu: usize, step: usize, turns: Turns, force: Force) {
        let flag = 1_u64 << self.now.channels;
        if self.follow(from, End::Gpu(gpu), 1.0) {
            self.used[gpu] ^= flag;
            self.at_gpu(gpu, step, turns, force);
            self.used[gpu] ^= flag;
            self.follow(from, End::Gpu(gpu), -1.0);
        }
    }

    fn at_gpu(&mut self, gpu: usize, step: usize, turns: Turns, force: Force) {
        if self.steps <= 0 {
            return;
        }
        self.steps -= 1;
        let (gpus, channel) = (self.system.gpus.len(), self.now.channels);
        self.now.intra[channel * gpus + step] = small(gpu);
        if turns.net == Some(step) {
            self.leave_host(gpu, step, turns, force);
        } else if self.now.pattern == Pattern::Nvls {
            self.try_nvls(gpu);
        } else if self.now.pattern == Pattern::CollnetDirect {
            self.try_direct(gpu);
        } else if step < gpus - 1 {
            let next: SmallVec<[usize; 8]> = match force {
                Force::Number => SmallVec::from_elem(step + 1, 1),
                Force::Replay => SmallVec::from_elem(self.replayed(step + 1), 1),
                Force::No => self.next_gpus(gpu, turns.net.map(|n| n == step + 1)),
            };
            for to in next {
                self.try_gpu(Some(End::Gpu(gpu)), to, step + 1, turns, force);
            }
        } else if turns.first == Some(step) {
            let first = usize::from(self.now.intra[channel * gpus]);
            if self.follow(Some(End::Gpu(gpu)), End::Gpu(first), 1.0) {
                self.complete();
                self.follow(Some(End::Gpu(gpu)), End::Gpu(first), -1.0);
            }
        } else {
            self.complete();
        }
    }

    /// A channel is complete: keeps what is better, then goes on to the next.
    fn complete(&mut self) {
        if self.steps <= 0 {
            return;
        }
        self.steps -= 1;
        self.now.channels += 1;
        if self.better() {
            self.best.clone_from(&self.now);
            if self.now.channels == self.now.max_channels {
                self.steps = -1;
            }
        }
        if self.now.channels < self.now.max_channels {
            self.next_channel();
        }
        self.now.channels -= 1;
    }

    fn better(&self) -> bool {
        let (now, best) = (&self.now, &self.best);
        if now.channels < now.min_channels {
            return false;
        }
        let of = |found: &Found, bw: f32| found.channels as f32 * bw;
        if now.pattern == Pattern::Nvls {
            return (now.channels > best.channels && now.channels <= self.system.gpus.len())
                || of(now, now.bw_inter) > of(best, best.bw_inter);
        }
        let (ours, theirs) = (of(now, now.bw_intra), of(best, best.bw_intra));
        ours > theirs
            || (ours == theirs
                && now.pattern == best.pattern
                && now.cross_nic == best.cross_nic
                && now.hops < best.hops)
    }

    /// From a GPU to the network, and on.
    fn leave_host(&mut self, gpu: usize, step: usize, turns: Turns, force: Force) {
        let channel = self.now.channels;
        let balanced = self.now.pattern == Pattern::BalancedTree;
        // A balanced tree takes half of its speed from each of its first two GPUs.
        let net_turn = (balanced && step == 0).then_some(1);
        let factor = if balanced { 0.5 } else { 1.0 };
        let nets: SmallVec<[usize; 8]> = allowed(&self.nets_of[gpu], self.now.type_inter).collect();
        for net in nets {
            if !self.may_leave_by(net, step) {
                continue;
            }
            let bw = self.now.bw_inter;
            self.now.bw_inter = bw * factor;
            let reached = self.follow(Some(End::Gpu(gpu)), End::Net(net), 1.0);
            self.now.bw_inter = bw;
            if reached {
                self.now.inter[channel].1 = Some(small(net));
                self.at_gpu(gpu, step, Turns { net: net_turn, ..turns }, force);
                self.now.bw_inter = bw * factor;
                self.follow(Some(End::Gpu(gpu)), End::Net(net), -1.0);
                self.now.bw_inter = bw;
            }
        }
    }

    fn may_leave_by(&self, net: usize, step: usize) -> bool {
        let (now, channel) = (&self.now, self.now.channels);
        let net = Some(small(net));
        let start = now.inter[channel].0;
        let pairs = now.cross_nic == CrossNic::Pairs;
        let same = match now.pattern {
            Pattern::Tree => net == start,
            Pattern::Ring if pairs => channel.is_multiple_of(2) || net == now.inter[channel - 1].0,
            _ => now.cross_nic != CrossNic::Never || net == start,
        };
        let same_for_both = now.pattern != Pattern::BalancedTree || step == 0 || net == now.inter[channel].1;
        same && same_for_both
    }

    /// Every GPU reads from and writes to the NVSwitches; the head twice as much.
    fn try_nvls(&mut self, head: usize) {
        let gpus = self.system.gpus.len();
        let twice = |g: usize| if g == head { 2.0 } else { 1.0 };
        let switch = Some(End::NvSwitch);
        let down = (0..gpus).take_while(|&g| self.follow(switch, End::Gpu(g), twice(g))).count();
        if down == gpus {
            let up = (0..gpus).take_while(|&g| self.follow(Some(End::Gpu(g)), End::NvSwitch, twice(g))).count();
            if up == gpus {
                self.complete();
            }
            for g in (0..up).rev() {
                self.follow(Some(End::Gpu(g)), End::NvSwitch, -twice(g));
            }
        }
        for g in (0..down).rev() {
            self.follow(switch, End::Gpu(g), -twice(g));
        }
    }

    /// The head exchanges its slice with every GPU of the host.
    fn try_direct(&mut self, head: usize) {
        let gpus = self.system.gpus.len();
        let part = 1.0 / (gpus - 1).max(1) as f32;
        let end = |g: usize| End::Gpu(g);
        let out = (0..gpus).take_while(|&g| self.follow(Some(end(head)), end(g), part)).count();
        if out == gpus {
            let back = (0..gpus).take_while(|&g| self.follow(Some(end(g)), end(head), part)).count();
            if back == gpus {
                let at = self.now.channels * gpus + 1;
                for (slot, other) in self.now.intra[at..].iter_mut().zip((0..gpus).filter(|&g| g != head)) {
                    *slot = small(other);
                }
                self.complete();
            }
            for g in (0..back).rev() {
                self.follow(Some(end(g)), end(head), -part);
            }
        }
        for g in (0..out).rev() {
            self.follow(Some(end(head)), end(g), -part);
        }
    }

    /// The GPUs to try after one, best first; with NVSwitch only neighbours by number. `to_net`: whether
    /// the one looked for is next to the NIC, where the channel still has to go there.
    fn next_gpus(&self, gpu: usize, to_net: Option<bool>) -> SmallVec<[usize; 8]> {
        let (system, paths, channel) = (self.system, self.paths, self.now.channels);
        let gpus = system.gpus.len();
        let flag = 1_u64 << channel;
        let free = |g: usize| self.used[g] & flag == 0 && !paths.gpu_to_gpu(system, gpu, g).links.is_empty();
        if system.nvswitch.is_some() {
            let (before, after) = ((gpu + gpus - 1) % gpus, (gpu + 1) % gpus);
            let wanted: &[usize] = match self.now.pattern {
                _ if before == after => &[after],
                Pattern::Ring => &[before, after],
                Pattern::SplitTree | Pattern::BalancedTree => &[after, before],
                _ => &[after],
            };
            return wanted.iter().copied().filter(|&g| free(g)).collect();
        }
        let net = to_net.and_then(|_| self.now.inter[channel].0).map(usize::from);
        let whole = |bw: f32| std::cmp::Reverse(bw as i32);
        let mut scores: SmallVec<[_; 8]> = (1..gpus)
            .map(|i| (i, (gpu + i) % gpus))
            .filter(|&(_, g)| free(g))
            .map(|(i, g)| {
                let path = paths.gpu_to_gpu(system, gpu, g);
                let inter = net.map(|n| {
                    let path = paths.net_to_gpu(system, n, g);
                    (whole(path.bw), whole(self.pci_bw(g)), path.links.len())
                });
                (inter, (whole(path.bw), path.links.len()), i, g)
            })
            .collect();
        scores.sort_unstable();
        let alike = scores.windows(2).all(|w| w[0].1 == w[1].1);
        let mut next: SmallVec<[usize; 8]> = scores.into_iter().map(|s| s.3).collect();
        if to_net == Some(false) && alike {
            next.reverse();
        }
        next
    }

    /// What is left of a GPU's PCIe link, the narrower direction; -1 without one.
    fn pci_bw(&self, gpu: usize) -> f32 {
        let links = &self.system.links_of[self.system.gpus[gpu].node];
        let pci = links.iter().find(|&&l| self.system.links[l].kind == LinkType::Pci);
        pci.map_or(-1.0, |&l| self.link_bw[l].min(self.link_bw[self.system.links[l].back]))
    }

    /// Takes the speed of a channel times `share` from every link of a path; a negative share gives it
    /// back. `false`, and nothing taken, where the path is too bad or too full.
    fn follow(&mut self, from: Option<End>, to: End, share: f32) -> bool {
        let Some(from) = from else { return true };
        let inside = !matches!(from, End::Net(_)) && !matches!(to, End::Net(_));
        let (bw, limit) =
            if inside { (self.now.bw_intra, self.now.type_intra) } else { (self.now.bw_inter, self.now.type_inter) };
        let Some(path) = self.paths.between(self.system, from, to) else { return false };
        if path.kind >= kind::DIS {
            return false;
        }
        if share == 1.0 {
            let back = || self.paths.between(self.system, to, from).is_none_or(|p| p.kind > limit);
            if path.kind > limit || (self.now.is_tree() && back()) {
                return false;
            }
        }
        let from_gpu = matches!(from, End::Gpu(_));
        let taken = self.take(path, from_gpu, path.links.len(), bw * share);
        if taken < path.links.len() {
            self.take(path, from_gpu, taken, -bw * share);
            return false;
        }
        self.now.hops = (self.now.hops as f32 + share * path.links.len() as f32) as i32;
        true
    }

    /// Takes `bw` from the first `most` links of a path; how many had so much.
    fn take(&mut self, path: &Path, from_gpu: bool, most: usize, bw: f32) -> usize {
        let system = self.system;
        // Peer access through an Intel CPU costs more (`INTEL_P2P_OVERHEAD`).
        let through_intel = path.kind == kind::PHB && from_gpu && system.vendor == CpuVendor::Intel;
        let pci_bw = if through_intel { bw * 6.0 / 5.0 } else { bw };
        for (index, &l) in path.links[..most].iter().enumerate() {
            let link = &system.links[l as usize];
            let forward = if link.kind == LinkType::Pci { pci_bw } else { bw };
            // GPUs before Ampere answer what they receive from elsewhere.
            let backward = if !from_gpu && link.to_old_gpu { forward / 8.0 } else { 0.0 };
            let (there, back) = (l as usize, link.back);
            if self.link_bw[there] < forward || (backward != 0.0 && self.link_bw[back] < backward) {
                return index;
            }
            self.link_bw[there] = rounded(self.link_bw[there] - forward);
            if backward != 0.0 {
                self.link_bw[back] = rounded(self.link_bw[back] - backward);
            }
        }
        most
    }
}

/// To MB/s, half up; what is left of a link is never negative.
fn rounded(bw: f32) -> f32 {
    (f64::from(bw * 1000.0) + 0.5) as i64 as f32 / 1000.0
}

/// NICs in the order in which they are tried: those that the GPUs prefer, then all others by type.
fn net_order(system: &System, paths: &Paths, gpus: &[usize]) -> Vec<(usize, Option<u8>)> {
    let mut order: Vec<(usize, Option<u8>)> = Vec::new();
    let add = |order: &mut Vec<(usize, Option<u8>)>, net, from| {
        if !order.iter().any(|&(known, _)| known == net) {
            order.push((net, from));
        }
    };
    for &gpu in gpus {
        for net in paths.preferred_nets(system, gpu) {
            add(&mut order, net, None);
        }
    }
    for kind in 0..kind::DIS {
        for &gpu in gpus {
            for net in (0..system.nets.len()).filter(|&n| paths.gpu_to_net(system, gpu, n).kind == kind) {
                add(&mut order, net, Some(kind));
            }
        }
    }
    order
}

/// The NICs of an order that a type allows.
fn allowed(order: &[(usize, Option<u8>)], most: u8) -> impl Iterator<Item = usize> {
    order.iter().take_while(move |(_, from)| from.is_none_or(|f| f <= most)).map(|&(net, _)| net)
}

//! The graph of one node: as many channels as fit, as fast as fits.
//!
//! Searches (`channels.rs`) follow each other under conditions that are relaxed one by one, until one finds
//! channels; then the same number of them is made faster.
//!
//! Source: NCCL 2.30 `src/graph/search.cc`, restated.

use super::channels::{Found, Search, small};
use super::paths::{MAX_CHANNELS, Paths, kind};
use super::speeds::{ladder, most};
use super::system::System;
use crate::nccl::graphs::{CpuVendor, Pattern};
use crate::nccl::plan::MAX_NVLS_HEADS;
use crate::nccl::transport::CrossNic;

/// Steps of all searches for one graph together (`NCCL_SEARCH_GLOBAL_TIMEOUT`).
const TOTAL_STEPS: i64 = 1 << 19;
/// Most heads of CollNet direct (`NCCL_MAX_DIRECT_ARITY` + 1).
const MOST_DIRECT: usize = 8;

/// What to look for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) pattern: Pattern,
    pub(super) min_channels: usize,
    pub(super) max_channels: usize,
}

/// Two groups of GPUs, each joined by NVLink, without NVLink between them.
fn split_nvlink(system: &System, paths: &Paths) -> bool {
    let gpus = system.gpus.len();
    let mut domain: Vec<usize> = (0..gpus).collect();
    for g in 0..gpus {
        for p in g + 1..gpus {
            if paths.gpu_to_gpu(system, g, p).kind == kind::NVL {
                domain[p] = domain[g];
            }
        }
    }
    (0..gpus).filter(|d| domain.iter().filter(|e| *e == d).count() > 1).count() == 2
}

/// Finds a graph; no channels where the pattern does not apply.
pub(super) fn find(system: &System, paths: &Paths, wanted: Wanted) -> Found {
    let limits = Limits::new(system, paths, wanted.pattern);
    let mut found = limits.strictest(system, wanted);
    if wanted.pattern == Pattern::Nvls && (system.nvswitch.is_none() || limits.capability < 90) {
        return found;
    }
    fit_pattern(system, paths, &mut found);
    let mut passes = Passes::new(Search::new(system, paths, found), limits);
    passes.relax();
    passes.quicken();
    let mut found = passes.search.best;
    if found.channels == 0 && found.pattern != Pattern::Nvls && found.pattern != Pattern::CollnetDirect {
        in_order(system, paths, &mut found);
    }
    found
}

/// The pattern and the channels that are looked for on this node in place of those that were wanted.
fn fit_pattern(system: &System, paths: &Paths, found: &mut Found) {
    let gpus = system.gpus.len();
    match found.pattern {
        Pattern::Nvls => found.max_channels = gpus.min(MAX_NVLS_HEADS),
        Pattern::CollnetDirect => found.max_channels = gpus.min(MOST_DIRECT),
        _ => {}
    }
    if gpus == 1 && found.pattern != Pattern::Ring {
        found.pattern = Pattern::Tree;
    }
    if !system.inter && found.pattern == Pattern::Nvls {
        found.min_channels = found.max_channels;
    }
    // Trees do better there, and they need two channels.
    if found.pattern == Pattern::Ring && found.max_channels >= 2 && split_nvlink(system, paths) {
        found.min_channels = found.min_channels.max(2);
    }
}

/// Between which bounds the conditions of a search are relaxed.
struct Limits {
    /// The least of the GPUs.
    capability: u32,
    /// Types of paths between GPUs and to NICs, best and worst.
    min_intra: u8,
    max_intra: u8,
    min_inter: u8,
    max_inter: u8,
    /// Whether all channels are the same at first.
    same: bool,
    /// By which NICs a channel leaves at first, and whether pairs of channels may swap theirs.
    crossing: CrossNic,
    pairs: bool,
}

impl Limits {
    fn new(system: &System, paths: &Paths, pattern: Pattern) -> Self {
        let capability = system.gpus.iter().map(|g| g.capability).min().unwrap_or(0);
        let (min_intra, mut max_intra) =
            if system.gpus.len() > 1 { paths.range(system, false) } else { (kind::LOC, kind::SYS) };
        let (mut min_inter, mut max_inter) = (kind::PIX, kind::SYS);
        if system.inter {
            (min_inter, max_inter) = paths.range(system, true);
            max_intra = max_inter;
        }
        // Balanced trees before Hopper may have to come back through a CPU.
        if capability < 90 {
            max_inter = kind::SYS;
        }
        let chosen = system.nets.len() > 1 && matches!(pattern, Pattern::Ring | Pattern::BalancedTree);
        let always = chosen && system.transport.cross_nic == CrossNic::Always;
        Self {
            capability,
            min_intra: min_intra.min(kind::SYS),
            max_intra,
            min_inter: min_inter.min(kind::SYS),
            max_inter,
            same: pattern != Pattern::Nvls,
            crossing: if always { CrossNic::Always } else { CrossNic::Never },
            pairs: chosen && system.transport.cross_nic == CrossNic::Pairs,
        }
    }

    /// Nothing found, under the strictest conditions.
    fn strictest(&self, system: &System, wanted: Wanted) -> Found {
        Found {
            pattern: wanted.pattern,
            cross_nic: self.crossing,
            min_channels: wanted.min_channels,
            max_channels: wanted.max_channels.min(MAX_CHANNELS),
            channels: 0,
            bw_intra: 0.0,
            bw_inter: 0.0,
            latency: 0.0,
            type_intra: self.min_intra,
            type_inter: self.min_inter,
            same: self.same,
            hops: 0,
            intra: vec![0; system.gpus.len() * MAX_CHANNELS],
            inter: vec![(None, None); MAX_CHANNELS],
        }
    }
}

/// The two passes of searches for one graph.
struct Passes<'s> {
    search: Search<'s>,
    limits: Limits,
    /// Speeds to try, highest first, and which of them is tried.
    ladder: &'static [f32],
    speed: usize,
    /// The highest speed of a GPU.
    total_bw: f32,
    /// Steps left to all searches.
    left: i64,
}

impl<'s> Passes<'s> {
    fn new(search: Search<'s>, limits: Limits) -> Self {
        let (system, now) = (search.system, &search.now);
        let ladder = ladder(system.inter, limits.capability);
        let (max_bw, total_bw) = most(system, search.paths);
        // A pattern that does not come back to where it started leaves one link of each GPU over.
        let gpus = system.gpus.len();
        let over = if gpus > 1 && now.pattern != Pattern::Ring { gpus as f32 / (gpus - 1) as f32 } else { 1.0 };
        let fits = |&s: &f32| s <= max_bw && s * now.min_channels as f32 <= total_bw * over;
        let speed = ladder.iter().position(fits).unwrap_or(ladder.len() - 1);
        let mut passes = Self { search, limits, ladder, speed, total_bw, left: TOTAL_STEPS };
        passes.set_speed(speed);
        passes
    }

    fn set_speed(&mut self, speed: usize) {
        self.speed = speed;
        (self.search.now.bw_intra, self.search.now.bw_inter) = (self.ladder[speed], self.ladder[speed]);
    }

    /// First pass: relaxes one condition after the other until there is a solution.
    fn relax(&mut self) {
        loop {
            self.search.run(&mut self.left);
            let best = &self.search.best;
            let enough = best.channels as f32 * best.bw_inter >= self.total_bw;
            if self.search.steps == -1 || enough || !self.relax_next() {
                break;
            }
        }
    }

    /// Relaxes the next condition, and sets those before it back; `false` where none or no time is left.
    fn relax_next(&mut self) -> bool {
        let (system, limits) = (self.search.system, &self.limits);
        let (now, best) = (&mut self.search.now, &self.search.best);
        if now.same && !(system.vendor == CpuVendor::Amd && now.type_intra == kind::SYS) {
            now.same = false;
            return true;
        }
        now.same = limits.same;
        self.left += i64::from(self.search.steps);
        if self.left < 0 && best.channels > 0 {
            return false;
        }
        if limits.capability >= 90 && now.pattern == Pattern::BalancedTree {
            now.pattern = Pattern::Tree;
            return true;
        }
        now.pattern = best.pattern;
        let worst = if system.inter { now.type_inter } else { limits.max_intra };
        if now.type_intra < worst && (best.channels == 0 || now.type_intra < best.type_intra) {
            now.type_intra += 1;
            if now.type_intra < kind::DIS {
                return true;
            }
        }
        now.type_intra = limits.min_intra;
        if system.inter
            && now.type_inter < limits.max_inter
            && (best.channels == 0 || now.type_inter < best.type_inter || now.type_inter < kind::PXN)
        {
            now.type_inter += 1;
            if now.type_inter < kind::DIS {
                return true;
            }
        }
        now.type_inter = limits.min_inter;
        let relaxes = matches!(best.pattern, Pattern::Ring | Pattern::BalancedTree);
        if limits.pairs && now.cross_nic == CrossNic::Never && relaxes {
            now.cross_nic = CrossNic::Pairs;
            return true;
        }
        now.cross_nic = limits.crossing;
        let Some(slower) = self.ladder.get(self.speed + 1) else { return false };
        let worth = best.channels == 0 || f64::from(slower / best.bw_inter) > 0.49;
        if worth {
            self.set_speed(self.speed + 1);
        }
        worth
    }

    /// Second pass: the same number of channels, faster.
    fn quicken(&mut self) {
        self.search.best.duplicate(self.limits.capability, self.search.system.gpus.len());
        let best = &self.search.best;
        let speed = self.ladder.iter().position(|&s| s <= best.bw_inter).unwrap_or(self.ladder.len() - 1);
        self.search.now = best.clone();
        self.search.now.min_channels = best.channels;
        self.set_speed(speed);
        self.search.steps = -1;
        while self.search.steps != 0 && self.speed > 0 {
            let (now, best) = (&mut self.search.now, &self.search.best);
            let faster = self.ladder[self.speed - 1];
            if best.pattern == Pattern::Ring {
                (now.bw_intra, now.bw_inter) = (faster, faster);
            } else if best.pattern == Pattern::Nvls
                && now.bw_inter == best.bw_inter
                && now.bw_inter < now.bw_intra * 2.0
            {
                (now.min_channels, now.max_channels) = (best.channels, best.channels);
                now.bw_inter = faster;
            } else if now.bw_intra == best.bw_intra && now.bw_intra < now.bw_inter * 2.0 {
                now.bw_intra = faster;
            } else {
                break;
            }
            self.speed -= 1;
            self.search.run(&mut self.left);
        }
    }
}

/// What NCCL falls back on: one slow channel in the order of numbers.
fn in_order(system: &System, paths: &Paths, found: &mut Found) {
    let gpus = system.gpus.len();
    for (index, at) in found.intra[..gpus].iter_mut().enumerate() {
        *at = small(index);
    }
    let first = |gpu| paths.preferred_nets(system, gpu).first().map(|&n| small(n));
    found.inter[0] = (first(0), first(gpus.saturating_sub(1)));
    let reached = found.inter[0].0.is_some() && found.inter[0].1.is_some();
    found.channels = 1;
    found.bw_intra = 0.1;
    found.type_intra = kind::SYS;
    found.bw_inter = if reached { 0.1 } else { 0.0 };
    found.type_inter = if reached { kind::SYS } else { kind::DIS };
}

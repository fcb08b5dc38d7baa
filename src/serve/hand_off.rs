//! How long caches are on their way: from worker to worker, and from slower tiers.

use std::collections::HashMap;

use collcast_sim::ids::{HostId, Rank};
use collcast_sim::transfer::{Fleet as Links, Load, Place, TransferError, Used, Way, run, ways};
use collcast_sim::units::SimDuration;

use super::fleet::{Fleet, Group, Laid};
use super::setup::{ELEMENT, Setup};
use crate::error::Error;

/// Lengths of caches are rounded up to a part of themselves of so many for transfers.
const PARTS: u64 = 32;

/// The way of caches between two workers: each rank of the decoder gets its part once, in pieces from as many ranks as have
/// them.
#[derive(Clone)]
pub(super) struct HandOff {
    ways: Vec<Way>,
    /// Bytes of a token and of a contiguous piece of each pair.
    token: u64,
    block: u64,
    /// Layers of each pair.
    layers: u64,
    descriptor: SimDuration,
    known: HashMap<u64, f64>,
    pub(super) failed: Option<TransferError>,
}

impl HandOff {
    /// Its ways, and bytes of a contiguous piece.
    pub(super) fn ways(&self) -> (Vec<Way>, u64) {
        (self.ways.clone(), self.block)
    }

    /// The back end of all pairs.
    pub(super) fn path(&self) -> Option<&'static str> {
        self.ways.first().map(|way| way.backend.name())
    }

    /// Of a cache of so many tokens.
    pub(super) fn seconds(&mut self, tokens: u64) -> f64 {
        let tokens = tokens.next_multiple_of((tokens / PARTS).max(1));
        self.of_bytes(tokens * self.token)
    }

    /// Of the last layer of it, which the prefill does not hide.
    pub(super) fn last_layer(&mut self, tokens: u64) -> f64 {
        let tokens = tokens.next_multiple_of((tokens / PARTS).max(1));
        self.of_bytes((tokens * self.token).div_ceil(self.layers))
    }

    /// Of so many bytes of each pair.
    fn of_bytes(&mut self, bytes: u64) -> f64 {
        if let Some(&known) = self.known.get(&bytes) {
            return known;
        }
        let seconds = sent(&self.ways, (bytes, self.block), self.descriptor).unwrap_or_else(|error| {
            self.failed.get_or_insert(error);
            0.0
        });
        self.known.insert(bytes, seconds);
        seconds
    }
}

/// Seconds until as many bytes by each way, in contiguous blocks, are all there.
pub(super) fn sent(ways: &[Way], (bytes, block): (u64, u64), descriptor: SimDuration) -> Result<f64, TransferError> {
    let of = |way: &Way| Load { way: way.clone(), bytes, block, register: false, ready: Vec::new() };
    let done = run(&ways.iter().map(of).collect::<Vec<Load>>(), descriptor)?;
    Ok(done.ends.iter().map(|end| SimDuration(end.0).as_us() * 1e-6).fold(0.0, f64::max))
}

/// The ways of caches from host memory, or drives, to the first replica of a worker with such stages, where hosts have them.
pub(super) fn tier_ways(setup: &Setup, group: Group, stages: &[u32]) -> Vec<Option<HandOff>> {
    let topology = &setup.site.topology;
    let mut links = Links::new(topology, &setup.site.profile, &setup.gpu, None);
    let ranks: Vec<u32> = stages.iter().flat_map(|&first| first..first + group.tensor).collect();
    let from: [fn(HostId) -> Place; 2] = [Place::Host, Place::Disk];
    from.map(|from| {
        let way = |&rank: &u32| {
            let rank = Rank(rank);
            ways(&mut links, from(topology.host_of(rank)), Place::Gpu(rank)).into_iter().next()
        };
        let ways = ranks.iter().map(way).collect::<Option<Vec<Way>>>()?;
        Some(HandOff {
            ways,
            token: setup.cache_bytes(group.tensor).div_ceil(u64::from(group.pipeline)),
            block: setup.block_bytes(group.tensor, 1),
            layers: setup.model.layers,
            descriptor: setup.site.profile.transfer_descriptor(),
            known: HashMap::new(),
            failed: None,
        })
    })
    .into()
}

/// The ways of caches between each worker that prefills and each decoder. Pairs whose ways are alike share their times.
pub(super) struct HandOffs<'s> {
    setup: &'s Setup,
    links: Links<'s>,
    /// Those that prefill, and those that decode.
    groups: [Group; 2],
    /// Tokens of a block of the cache.
    block: u64,
    /// By worker of a simulation: the first GPU of each stage of its pipeline.
    stages: Vec<Vec<u32>>,
    /// By pair: which of `known`.
    by_pair: HashMap<(usize, usize), usize>,
    by_shape: HashMap<Vec<u64>, usize>,
    known: Vec<HandOff>,
    /// Two workers that no way joins.
    failed: Option<Error>,
}

impl<'s> HandOffs<'s> {
    /// Of a fleet; none of one whose workers do both.
    ///
    /// # Errors
    /// No way between the first worker of each kind.
    pub(super) fn new(setup: &'s Setup, (fleet, laid): (&Fleet, &Laid), block: u64) -> Result<Option<Self>, Error> {
        let &Fleet::Disaggregated { prefill, decode } = fleet else { return Ok(None) };
        let links = Links::new(&setup.site.topology, &setup.site.profile, &setup.gpu, None);
        let workers = laid.groups.iter().flatten();
        let stages = workers.flat_map(|stages| std::iter::repeat_n(stages.clone(), stages.len())).collect();
        let (by_pair, by_shape, known) = Default::default();
        let mut all =
            Self { setup, links, groups: [prefill, decode], block, stages, by_pair, by_shape, known, failed: None };
        all.find(0, (prefill.workers * prefill.pipeline) as usize)?;
        Ok(Some(all))
    }

    /// The ways of the first pair, and bytes of a contiguous piece.
    pub(super) fn first(&self) -> Option<(Vec<Way>, u64)> {
        self.known.first().map(HandOff::ways)
    }

    /// The back end of the first pair.
    pub(super) fn path(&self) -> Option<&'static str> {
        self.known.first().and_then(HandOff::path)
    }

    /// Of two workers.
    pub(super) fn between(&mut self, from: usize, to: usize, seconds: impl Fn(&mut HandOff) -> f64) -> f64 {
        match self.find(from, to) {
            Ok(known) => seconds(&mut self.known[known]),
            Err(error) => {
                self.failed.get_or_insert(error);
                0.0
            }
        }
    }

    /// What no way or no simulation was found for.
    pub(super) fn failed(self) -> Result<(), Error> {
        let of_ways = self.known.into_iter().find_map(|known| known.failed);
        let of_ways = of_ways.map(|error| Error::usage(error.to_string(), "take shorter prompts"));
        self.failed.or(of_ways).map_or(Ok(()), Err)
    }

    /// Which way caches of a pair go.
    fn find(&mut self, from: usize, to: usize) -> Result<usize, Error> {
        if let Some(&known) = self.by_pair.get(&(from, to)) {
            return Ok(known);
        }
        let [prefill, decode] = self.groups;
        let stages = prefill.pipeline.max(decode.pipeline);
        // Pieces of a cache, of which each rank has its part of them.
        let [sent, got] = [prefill, decode].map(|group| self.setup.cache_parts(group.tensor) as u32);
        let pieces = lcm(sent, got);
        let ranks = |to: u32| {
            let part = to * got / decode.tensor;
            (0..pieces / got).map(move |piece| {
                let piece = part * (pieces / got) + piece;
                // Ranks with copies of a piece take turns.
                let copies = prefill.tensor / sent;
                (piece * sent / pieces * copies + to % copies, to)
            })
        };
        let pairs: Vec<(u32, u32)> = (0..decode.tensor).flat_map(ranks).collect();
        let mut found = Vec::new();
        for (stage, &(sender, receiver)) in (0..stages).flat_map(|stage| pairs.iter().map(move |pair| (stage, pair))) {
            // The rank that has a stage's layers, of one replica.
            let rank = |worker: usize, group: Group, rank: u32| {
                let first = self.stages[worker][(stage * group.pipeline / stages) as usize];
                Place::Gpu(Rank(first + rank))
            };
            let (from, to) = (rank(from, prefill, sender), rank(to, decode, receiver));
            let way = ways(&mut self.links, from, to).into_iter().next().ok_or_else(|| {
                Error::usage(format!("no way leads from {from} to {to}"), "hosts need NICs that are joined by a fabric")
            })?;
            found.push(way);
        }
        let shape = shape(&found);
        let next = self.known.len();
        let known = *self.by_shape.entry(shape).or_insert(next);
        if known == next {
            let setup = self.setup;
            self.known.push(HandOff {
                ways: found,
                token: setup.model.kv_bytes(ELEMENT).div_ceil(u64::from(pieces * stages)),
                layers: setup.model.layers.div_ceil(u64::from(stages)),
                block: setup.block_bytes(pieces, self.block),
                descriptor: setup.site.profile.transfer_descriptor(),
                known: HashMap::new(),
                failed: None,
            });
        }
        self.by_pair.insert((from, to), known);
        Ok(known)
    }
}

/// The least common multiple of two counts.
fn lcm(a: u32, b: u32) -> u32 {
    (1..=b).map(|times| a * times).find(|multiple| multiple.is_multiple_of(b)).unwrap_or(a)
}

/// What makes two lists of ways take the same time: all of them but the names of what they use.
fn shape(ways: &[Way]) -> Vec<u64> {
    let mut names: HashMap<Used, u64> = HashMap::new();
    let mut shape = Vec::new();
    let mut name = |used: Used| {
        let next = names.len() as u64;
        *names.entry(used).or_insert(next)
    };
    for way in ways {
        shape.extend([way.backend as u64, way.request.0, way.notify.0, way.stages.len() as u64]);
        for stage in &way.stages {
            shape.extend([stage.start.0, stage.latency.0, stage.uses.len() as u64, stage.posts.len() as u64]);
            for &(used, rate, weight) in &stage.uses {
                shape.extend([name(used), rate.get(), weight]);
            }
            for &(nic, share) in &stage.posts {
                shape.extend([name(Used::Posts(nic)), share]);
            }
        }
    }
    shape
}

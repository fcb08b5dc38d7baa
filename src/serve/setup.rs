//! A model on the GPUs of a machine: what fits, what steps take, how long a cache is on its way.

use std::cell::RefCell;
use std::collections::HashMap;

use collcast_scenarios::device;
use collcast_scenarios::serving::{Batch, Machine, Role, Steps, Worker};
use collcast_scenarios::training::calls::{Calls, Exchange, Shape};
use collcast_scenarios::transformer::{self, Attention, Transformer};
use collcast_sim::compute::{Compute, Precision};
use collcast_sim::ids::{HostId, Rank};
use collcast_sim::predict::PredictError;
use collcast_sim::topology::Topology;
use collcast_sim::transfer::{Fleet as Links, Load, Place, TransferError, Way, run, ways};
use collcast_sim::units::SimDuration;

use super::fleet::{Fleet, Group};
use super::request::Request;
use crate::error::Error;
use crate::kernels::gpu_of;
use crate::site::{Site, SiteSpec};

/// Of a GPU's memory what weights and cache may fill: vLLM's `gpu_memory_utilization`.
const FILLED: f64 = 0.9;
/// Hosts that are simulated at most.
const MOST_HOSTS: u32 = 512;
/// Bytes of an element of the cache: BF16.
const ELEMENT: u64 = 2;
/// Lengths of caches are rounded up to a part of themselves of so many for transfers.
const PARTS: u64 = 32;

/// What a request names, read and checked.
pub(super) struct Setup {
    pub(super) model: Transformer,
    pub(super) site: Site,
    pub(super) gpu: Compute,
    pub(super) notes: Vec<String>,
}

/// The machine with as many hosts as so many GPUs need.
fn site(spec: &SiteSpec, gpus: u32) -> Result<Site, Error> {
    let one = SiteSpec { nodes: Some(1), ..spec.clone() }.topology()?;
    let hosts = gpus.div_ceil(one.ranks().max(1)).max(1);
    if hosts > MOST_HOSTS {
        let message = format!("{gpus} GPUs are {hosts} hosts of `{}`", one.name);
        return Err(Error::usage(message, format!("at most {MOST_HOSTS} are simulated: ask for fewer workers")));
    }
    SiteSpec { nodes: Some(hosts), ..spec.clone() }.load()
}

impl Setup {
    pub(super) fn new(request: &Request, gpus: u32) -> Result<Self, Error> {
        let (model, notes) = transformer::load(&request.model)?;
        let site = site(&request.site, gpus)?;
        let gpu = gpu_of(&site.topology, request.gpu.as_deref())?;
        Ok(Self { model, site, gpu, notes })
    }

    /// What collectives of tensor ranks take.
    pub(super) fn calls(&self) -> Result<Calls<'_>, Error> {
        let device = device(&self.site.topology).ok_or_else(|| {
            let message = format!("nothing is known of the GPUs of `{}`", self.site.topology.name);
            Error::usage(message, "give their kind in the topology file, such as kind = \"H100-SXM5-80GB\"")
        })?;
        Ok(Calls::new(self.site.predictor(), device, *self.site.settings()))
    }

    /// GPUs that tensor ranks reach over NVLink.
    fn check(&self, group: Group) -> Result<(), Error> {
        let topology = &self.site.topology;
        let host = topology.ranks() / u32::try_from(topology.hosts().len()).unwrap_or(1).max(1);
        let heads = self.model.attention.heads();
        if group.tensor > host && topology.node_of(Rank(0)) != topology.node_of(Rank(group.tensor - 1)) {
            let message = format!("{} GPUs that split products span hosts of {host}", group.tensor);
            return Err(Error::usage(
                message,
                format!(
                    "split products over {host} or fewer, such as 1x{}:pp{}",
                    group.tensor,
                    group.tensor.div_ceil(host)
                ),
            ));
        }
        if group.replicas > 1 {
            let Some(experts) = self.model.experts else {
                let message = format!("`{}` has no experts to split", self.model.name);
                return Err(Error::usage(message, "leave ep out: workers without experts share nothing"));
            };
            if !experts.count.is_multiple_of(u64::from(group.stage())) {
                let message = format!("{} experts are not shared evenly by {} GPUs", experts.count, group.stage());
                return Err(Error::usage(message, "take a number of GPUs that divides them"));
            }
        }
        if u64::from(group.pipeline) > self.model.layers {
            let message = format!("{} layers have no {} stages", self.model.layers, group.pipeline);
            return Err(Error::usage(message, "take fewer stages"));
        }
        if !heads.is_multiple_of(u64::from(group.tensor)) {
            let message = format!("{heads} heads are not shared evenly by {} GPUs", group.tensor);
            return Err(Error::usage(message, "take a number of GPUs that divides them"));
        }
        Ok(())
    }

    /// Bytes of a token's cache on one of `tensor` ranks: heads are shared, a latent is not, and neither is one head.
    pub(super) fn cache_bytes(&self, tensor: u32) -> u64 {
        let whole = self.model.kv_bytes(ELEMENT);
        match self.model.attention {
            Attention::Gqa { kv_heads, .. } => whole / u64::from(tensor).min(kv_heads),
            Attention::Mla { .. } => whole,
        }
    }

    /// Bytes of one contiguous piece of a cache on one of `tensor` ranks: keys, or values, of a layer and block.
    pub(super) fn block_bytes(&self, tensor: u32, tokens: u64) -> u64 {
        match self.model.attention {
            Attention::Gqa { kv_heads, head_dim, .. } => {
                tokens * head_dim * (kv_heads / u64::from(tensor)).max(1) * ELEMENT
            }
            Attention::Mla { kv_lora, rope, .. } => tokens * (kv_lora + rope) * ELEMENT,
        }
    }

    /// Blocks of cache beside the weights on a worker.
    pub(super) fn blocks(&self, group: Group, request: &Request) -> Result<u64, Error> {
        self.check(group)?;
        let parallel = group.parallel();
        let all = self.model.parameters();
        let experts = all.experts as f64 / f64::from(parallel.expert * parallel.expert_tensor);
        let parameters = (all.total() - all.experts) as f64 / f64::from(group.tensor) + experts;
        let weights = parameters * request.precision.bytes() / f64::from(group.pipeline);
        let left = self.gpu.capacity() as f64 * FILLED - weights;
        let blocks = left / (self.cache_bytes(group.tensor) * request.policy.block) as f64 * f64::from(group.pipeline);
        let blocks = blocks * f64::from(group.replicas);
        if blocks < 1.0 {
            let message = format!(
                "weights of `{}` take {:.0} GB of each of {} GPUs, which have {:.0} GB",
                self.model.name,
                weights * 1e-9,
                group.gpus(),
                self.gpu.capacity() as f64 * 1e-9
            );
            return Err(Error::usage(message, "take more GPUs a worker, or --precision fp8"));
        }
        Ok(blocks as u64)
    }

    pub(super) fn workers(&self, fleet: &Fleet, request: &Request) -> Result<Vec<Worker>, Error> {
        let mut workers = Vec::new();
        let mut pipe = 0;
        for (role, group) in fleet.groups() {
            // As many micro-batches as stages keep all of them busy.
            let (stages, replicas) = (group.pipeline, u64::from(group.replicas));
            let blocks = self.blocks(group, request)? / u64::from(stages);
            let tiers = self.tiers(group, request).map(|blocks| blocks / u64::from(stages));
            for _ in 0..group.workers {
                let worker = Worker { role, blocks, tiers, stages, pipe, replicas };
                workers.extend(std::iter::repeat_n(worker, stages as usize));
                pipe += 1;
            }
        }
        Ok(workers)
    }

    /// Blocks of host memory and of drives that a worker has for caches: those of its part of the hosts.
    fn tiers(&self, group: Group, request: &Request) -> [u64; 2] {
        let topology = &self.site.topology;
        let host = f64::from(topology.ranks()) / topology.hosts().len().max(1) as f64;
        let hosts = f64::from(group.gpus()) / host;
        let token = self.model.kv_bytes(ELEMENT) * request.policy.block;
        [request.host_cache, request.drive_cache].map(|bytes| (bytes as f64 * hosts / token as f64) as u64)
    }
}

/// What an exchange of a worker's ranks takes; the first that a machine cannot do is kept.
pub(super) struct Exchanges<'c> {
    calls: &'c Calls<'c>,
    pub(super) failed: RefCell<Option<PredictError>>,
}

impl<'c> Exchanges<'c> {
    pub(super) fn new(calls: &'c Calls<'c>) -> Self {
        Self { calls, failed: RefCell::default() }
    }

    pub(super) fn seconds(&self, shape: Shape, exchange: Exchange, bytes: u64) -> f64 {
        match self.calls.rough(shape, exchange, bytes) {
            Ok(cost) => cost.map_or(0.0, |cost| cost.seconds),
            Err(error) => {
                self.failed.borrow_mut().get_or_insert(error);
                0.0
            }
        }
    }
}

/// The way of caches between two workers: one pair of GPUs for each rank of the larger.
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
    /// Between the first worker of each kind.
    pub(super) fn new(setup: &Setup, prefill: Group, decode: Group, block: u64) -> Result<Self, Error> {
        let topology: &Topology = &setup.site.topology;
        let mut links = Links::new(topology, &setup.site.profile, &setup.gpu, None);
        let first = prefill.workers * prefill.gpus();
        let (pairs, stages) = (prefill.tensor.max(decode.tensor), prefill.pipeline.max(decode.pipeline));
        let mut found = Vec::new();
        for (stage, pair) in (0..stages).flat_map(|stage| (0..pairs).map(move |pair| (stage, pair))) {
            // The rank that has a stage's layers and a pair's heads, of one replica.
            let rank = |group: Group| stage * group.pipeline / stages * group.stage() + pair % group.tensor;
            let from = Place::Gpu(Rank(rank(prefill)));
            let to = Place::Gpu(Rank(first + rank(decode)));
            let way = ways(&mut links, from, to).into_iter().next().ok_or_else(|| {
                Error::usage(format!("no way leads from {from} to {to}"), "hosts need NICs that are joined by a fabric")
            })?;
            found.push(way);
        }
        Ok(Self {
            ways: found,
            token: setup.cache_bytes(pairs).div_ceil(u64::from(stages)),
            layers: setup.model.layers.div_ceil(u64::from(stages)),
            block: setup.block_bytes(pairs, block),
            descriptor: setup.site.profile.transfer_descriptor(),
            known: HashMap::new(),
            failed: None,
        })
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

/// The ways of caches from host memory, or drives, to a worker's first replica; of groups whose hosts have them.
pub(super) fn tier_ways(setup: &Setup, group: Group) -> Vec<Option<HandOff>> {
    let topology = &setup.site.topology;
    let mut links = Links::new(topology, &setup.site.profile, &setup.gpu, None);
    let ranks: Vec<u32> =
        (0..group.pipeline).flat_map(|stage| (0..group.tensor).map(move |rank| stage * group.stage() + rank)).collect();
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

/// Workers of a fleet as a simulation asks them.
pub(super) struct Served<'a> {
    /// By group: up to which worker, and what its steps take.
    pub(super) steps: Vec<(usize, Steps<'a>)>,
    /// By group: the ways from host memory and from drives.
    pub(super) tiers: Vec<Vec<Option<HandOff>>>,
    pub(super) hand_off: Option<HandOff>,
}

impl Machine for Served<'_> {
    fn step(&mut self, worker: usize, batch: &Batch<'_>) -> f64 {
        let group = self.steps.iter_mut().find(|(end, _)| worker < *end);
        group.map_or(0.0, |(_, steps)| steps.seconds(batch))
    }

    fn hand_off(&mut self, tokens: u64) -> f64 {
        self.hand_off.as_mut().map_or(0.0, |hand_off| hand_off.seconds(tokens))
    }

    fn last_layer(&mut self, tokens: u64) -> f64 {
        self.hand_off.as_mut().map_or(0.0, |hand_off| hand_off.last_layer(tokens))
    }

    fn fetch(&mut self, worker: usize, tier: usize, tokens: u64) -> f64 {
        let group = self.steps.iter().position(|(end, _)| worker < *end);
        let tiers = group.and_then(|group| self.tiers.get_mut(group));
        let way = tiers.and_then(|tiers| tiers.get_mut(tier.checked_sub(1)?)?.as_mut());
        way.map_or(f64::INFINITY, |way| way.seconds(tokens))
    }
}

/// Steps of a model on workers of so many GPUs.
pub(super) fn steps<'a>(
    setup: &'a Setup,
    group: Group,
    precision: Precision,
    exchange: &'a dyn Fn(Shape, Exchange, u64) -> f64,
) -> Result<Steps<'a>, Error> {
    Steps::new(&setup.model, &setup.gpu, (group.parallel(), u64::from(group.replicas)), precision, exchange)
        .map_err(|missing| Error::usage(missing.to_string(), "take --precision bf16, or another machine"))
}

/// What a role is called.
pub(super) fn role_name(role: Role) -> &'static str {
    match role {
        Role::Prefill => "prefill",
        Role::Decode => "decode",
        Role::Both => "both",
    }
}

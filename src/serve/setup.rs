//! A model on the GPUs of a machine: what fits, what steps take, how long a cache is on its way.

use std::cell::RefCell;
use std::collections::HashMap;

use collcast_scenarios::serving::{Role, Steps, Taken, Worker};
use collcast_scenarios::training::calls::{Calls, Exchange, Shape};
use collcast_scenarios::transformer::hugging_face::OTHER_SEQUENCE;
use collcast_scenarios::transformer::{self, Attention, Transformer};
use collcast_sim::compute::{Compute, Precision};
use collcast_sim::ids::{HostId, Rank};
use collcast_sim::predict::PredictError;

use super::fleet::{Fleet, Group, Laid};
use super::request::Request;
use crate::error::Error;
use crate::kernels::gpu_of;
use crate::site::{Site, SiteSpec, made_of};
use crate::vary::{Key, crossed};

/// Of a GPU's memory what weights and cache may fill: vLLM's `gpu_memory_utilization`.
const FILLED: f64 = 0.9;
/// Hosts that are simulated at most.
const MOST_HOSTS: u32 = 512;
/// Bytes of an element of the cache: BF16.
pub(super) const ELEMENT: u64 = 2;

/// What a request names, read and checked.
pub(super) struct Setup {
    pub(super) model: Transformer,
    pub(super) site: Site,
    pub(super) gpu: Compute,
    pub(super) notes: Vec<String>,
}

/// The machine with as many hosts as so many GPUs need.
fn site(spec: &SiteSpec, gpus: u32) -> Result<Site, Error> {
    let one = SiteSpec { nodes: Some(1), down: Vec::new(), ..spec.clone() }.topology()?;
    let hosts = gpus.div_ceil(one.ranks().max(1)).max(1);
    if hosts > MOST_HOSTS {
        let message = format!("{gpus} GPUs are {hosts} hosts of `{}`", one.name);
        return Err(Error::usage(message, format!("at most {MOST_HOSTS} are simulated: ask for fewer GPUs")));
    }
    let site = SiteSpec { nodes: Some(hosts), ..spec.clone() }.load()?;
    if site.topology.ranks() < gpus {
        let message = format!("{hosts} hosts of `{}` have {} GPUs, not {gpus}", one.name, site.topology.ranks());
        return Err(Error::usage(message, "ask for fewer GPUs, or give a machine with larger hosts first"));
    }
    Ok(site)
}

/// Whether calls inside one of several hosts would take another profile if that host were alone.
fn other_profile(site: &Site) -> Option<String> {
    let spec = SiteSpec { nodes: Some(1), down: Vec::new(), ..site.spec.clone() };
    let one = (site.topology.hosts().len() > 1).then(|| spec.topology().ok()).flatten()?;
    let alone = spec.profile_for(&one).ok()?.profile.name;
    (alone != site.profile.name).then(|| {
        format!(
            "calls inside a host take the profile of several hosts; a worker alone on one host takes `{alone}`, and has other \
             times"
        )
    })
}

impl Setup {
    pub(super) fn new(request: &Request, gpus: u32) -> Result<Self, Error> {
        let (model, mut notes) = transformer::load(&request.model)?;
        // Requests have lengths of their own.
        notes.retain(|note| !note.ends_with(OTHER_SEQUENCE));
        let mut site = site(&request.site, gpus)?;
        for change in crossed(&request.vary, 1, Key::of)? {
            for (key, to) in change.settings {
                key.set(&mut site, &to)
                    .map_err(|why| Error::usage(format!("{}: {why}", change.name), "vary something else"))?;
            }
        }
        let gpu = gpu_of(&site.topology, request.gpu.as_deref())?;
        notes.extend(other_profile(&site));
        Ok(Self { model, site, gpu, notes })
    }

    /// What an answer rests on: the rules of calls, the model's file, profiles of GPU and links.
    pub(super) fn rests_on(&self) -> Vec<String> {
        let Self { site, gpu, .. } = self;
        let mut notes: Vec<String> = site.rules().chain(self.notes.iter().cloned()).collect();
        notes.push(format!("profile {}: {}", gpu.name(), gpu.evidence()));
        notes.push(format!("profile {}: {}", site.profile.name, made_of(&site.profile.evidence)));
        notes
    }

    /// GPUs that tensor ranks reach over NVLink.
    pub(super) fn check(&self, group: Group) -> Result<(), Error> {
        let topology = &self.site.topology;
        let host = topology.ranks() / u32::try_from(topology.hosts().len()).unwrap_or(1).max(1);
        let heads = self.model.attention.heads();
        if group.tensor > host && topology.node_of(Rank(0)) != topology.node_of(Rank(group.tensor - 1)) {
            let message = format!("{} GPUs that split products span hosts of {host}", group.tensor);
            let gpus = group.tensor;
            let fits = |stages: &u32| {
                let tensor = gpus / stages;
                gpus.is_multiple_of(*stages) && tensor <= host && heads.is_multiple_of(u64::from(tensor))
            };
            let most = u32::try_from(self.model.layers).unwrap_or(gpus).min(gpus);
            let such =
                (2..=most).find(fits).map_or_else(String::new, |stages| format!(", such as 1x{gpus}:pp{stages}"));
            return Err(Error::usage(message, format!("split products over {host} or fewer{such}")));
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

    /// Parts of a cache on `tensor` ranks: heads are shared, a latent is not, and neither is one head. Ranks beyond that have
    /// copies.
    pub(super) fn cache_parts(&self, tensor: u32) -> u64 {
        match self.model.attention {
            Attention::Gqa { kv_heads, .. } => u64::from(tensor).min(kv_heads),
            Attention::Mla { .. } => 1,
        }
    }

    /// Bytes of a token's cache on one of `tensor` ranks.
    pub(super) fn cache_bytes(&self, tensor: u32) -> u64 {
        self.model.kv_bytes(ELEMENT) / self.cache_parts(tensor)
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

    /// The next precision of fewer bits that the GPU has.
    pub(super) fn lower(&self, precision: Precision) -> Option<Precision> {
        Precision::ALL.into_iter().find(|other| other.bytes() < precision.bytes()).filter(|&p| self.gpu.supports(p))
    }

    /// Bytes of a GPU that weights and cache may fill.
    fn room(&self) -> f64 {
        self.gpu.capacity() as f64 * FILLED
    }

    /// Bytes of the weights on each GPU of a worker.
    fn weights(&self, group: Group, precision: Precision) -> f64 {
        let parallel = group.parallel();
        let all = self.model.parameters();
        // Embedding, head, norms and routers stay in BF16.
        let whole = all.total() - all.attention - all.mlp - all.shared_experts - all.experts;
        let reduced = precision.bytes();
        let shared = whole as f64 * Precision::Bf16.bytes() + (all.total() - whole - all.experts) as f64 * reduced;
        let experts = all.experts as f64 * reduced / f64::from(parallel.expert * parallel.expert_tensor);
        (shared / f64::from(group.tensor) + experts) / f64::from(group.pipeline)
    }

    /// Blocks of cache beside the weights on a worker.
    pub(super) fn blocks(&self, group: Group, request: &Request) -> Result<u64, Error> {
        self.check(group)?;
        let weights = self.weights(group, request.precision);
        let blocks = (self.room() - weights) / (self.cache_bytes(group.tensor) * request.policy.block) as f64
            * f64::from(group.pipeline);
        let blocks = blocks * f64::from(group.replicas);
        if blocks < 1.0 {
            let message = format!(
                "weights of `{}` take {:.1} GB of each of {} GPUs, and {:.1} GB of it can be filled",
                self.model.name,
                weights * 1e-9,
                group.gpus(),
                self.room() * 1e-9
            );
            let fewer = self.lower(request.precision).filter(|&lower| self.weights(group, lower) < self.room());
            let fewer = fewer.map_or_else(String::new, |lower| format!(", or --precision {}", lower.name()));
            return Err(Error::usage(message, format!("take more GPUs a worker{fewer}")));
        }
        Ok(blocks as u64)
    }

    pub(super) fn workers(&self, (fleet, laid): (&Fleet, &Laid), request: &Request) -> Result<Vec<Worker>, Error> {
        let mut workers = Vec::new();
        let mut pipe = 0;
        let host = |gpu: u32| self.site.topology.host_of(Rank(gpu));
        let gpus = |firsts: &[u32], group: Group| -> Vec<HostId> {
            firsts.iter().flat_map(|&first| first..first + group.stage()).map(host).collect()
        };
        let groups = || fleet.groups().into_iter().zip(&laid.groups);
        // By host: GPUs of workers that keep caches.
        let mut keeping: HashMap<HostId, f64> = HashMap::new();
        for ((_, group), placed) in groups().filter(|((role, _), _)| *role != Role::Decode) {
            placed
                .iter()
                .flat_map(|firsts| gpus(firsts, group))
                .for_each(|host| *keeping.entry(host).or_default() += 1.0);
        }
        for ((role, group), placed) in groups() {
            // As many micro-batches as stages keep all of them busy.
            let (stages, replicas) = (group.pipeline, u64::from(group.replicas));
            let blocks = self.blocks(group, request)?;
            for firsts in placed {
                let hosts: f64 = match role {
                    Role::Decode => 0.0,
                    _ => gpus(firsts, group).iter().map(|host| 1.0 / keeping.get(host).copied().unwrap_or(1.0)).sum(),
                };
                let tiers = self.tiers(hosts, request);
                let worker = Worker { role, blocks, tiers, stages, pipe, replicas };
                workers.extend(std::iter::repeat_n(worker, stages as usize));
                pipe += 1;
            }
        }
        Ok(workers)
    }

    /// Blocks of host memory and of drives that a worker has for caches: those of so many hosts.
    fn tiers(&self, hosts: f64, request: &Request) -> [u64; 2] {
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

    /// Without transfers beside it.
    pub(super) fn taken(&self, shape: Shape, exchange: Exchange, bytes: u64) -> Taken {
        Taken::alone(self.seconds(shape, exchange, bytes))
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

/// Steps of a model on workers of so many GPUs.
pub(super) fn steps<'a>(
    setup: &'a Setup,
    group: Group,
    precision: Precision,
    exchange: &'a dyn Fn(Shape, Exchange, u64) -> Taken,
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

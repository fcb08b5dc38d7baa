//! Compute a cache again, or keep it somewhere and fetch it: from which prompt on does that pay?

use collcast_reports::model::Input;
use collcast_scenarios::serving::Batch;
use collcast_scenarios::training::calls::{Exchange, Shape};
use collcast_sim::compute::Precision;
use collcast_sim::ids::{HostId, Rank};
use collcast_sim::transfer::{Fleet as Links, Place, Way, ways};
use collcast_sim::units::Bytes;
use serde::Serialize;

use super::fleet::Group;
use super::hand_off::sent;
use super::request::Request;
use super::setup::{Exchanges, Setup, steps};
use crate::error::Error;
use crate::transfer::some_drives;

/// Tokens of the shortest prompt, and how often it doubles: to 128k.
const LENGTHS: (u64, u32) = (128, 11);

/// A length of prompt, all times in seconds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Length {
    /// Its tokens.
    pub tokens: u64,
    /// Bytes of its cache.
    pub bytes: u64,
    /// To compute it again, on an idle worker.
    pub recompute: f64,
    /// To fetch it, by place.
    pub fetch: Vec<f64>,
}

/// A published time to have a cache.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Published {
    /// What was measured.
    pub what: String,
    /// Tokens of the prompt.
    pub tokens: u64,
    /// Milliseconds.
    pub time_ms: f64,
    /// Who measured, on what.
    pub source: String,
}

/// Published times of a model, if there are some.
fn published(model: &str) -> Vec<Published> {
    let lines = include_str!("published.csv").lines().filter(|line| !line.starts_with('#')).skip(1);
    let one = |line: &str| {
        let mut cells = line.splitn(5, ',');
        let of = cells.next()?;
        let what = cells.next()?.to_owned();
        let (tokens, time_ms) = (cells.next()?.parse().ok()?, cells.next()?.parse().ok()?);
        (of == model).then(|| Published { what, tokens, time_ms, source: cells.next().unwrap_or_default().to_owned() })
    };
    lines.filter_map(one).collect()
}

/// Prompts from short to long.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct BreakEven {
    /// The model.
    pub model: String,
    /// The machine.
    pub machine: String,
    /// GPUs of the worker.
    pub tensor: u32,
    /// Files that were read.
    pub inputs: Vec<Input>,
    /// What was assumed.
    pub notes: Vec<String>,
    /// What of NCCL's settings has a surprising effect, or is left out.
    pub warnings: Vec<String>,
    /// Where caches may be, with the way from there.
    pub tiers: Vec<(&'static str, &'static str)>,
    /// The prompts.
    pub lengths: Vec<Length>,
    /// Published times of the model, on machines of their own.
    pub published: Vec<Published>,
}

impl BreakEven {
    /// Tokens from which on a tier is faster than to compute again; none where it never is.
    pub fn from(&self, tier: usize) -> Option<u64> {
        let slower = self.lengths.iter().rposition(|length| length.fetch[tier] >= length.recompute);
        self.lengths.get(slower.map_or(0, |at| at + 1)).map(|length| length.tokens)
    }
}

/// Times prompts from 128 to 128k tokens, as far as the worker's memory holds their caches: computed on an idle worker, and
/// fetched from each tier.
///
/// # Errors
/// As of [`serve`](super::serve()); a worker without room for the shortest prompt.
pub fn break_even(request: &Request, group: Group, drives: Option<u32>) -> Result<BreakEven, Error> {
    let tensor = group.tensor;
    let drives = some_drives(drives)?;
    let one = Setup::new(request, tensor)?;
    let blocks = one.blocks(group, request).map_err(|error| match error {
        // There are no stages here, which a worker of `serve` may have.
        Error::Usage { message, .. } if one.model.attention.heads().is_multiple_of(tensor.into()) => {
            let most = (1..=tensor).rev().map(|tensor| Group::new(1, tensor)).find(|group| one.check(*group).is_ok());
            let large = most.is_none_or(|group| one.blocks(group, request).is_err());
            let fits = |&precision: &Precision| {
                let request = Request { precision, ..request.clone() };
                (1..=tensor).map(|tensor| Group::new(1, tensor)).any(|group| one.blocks(group, &request).is_ok())
            };
            let lower = one.lower(request.precision).filter(|lower| large && fits(lower));
            let precision = lower.map_or_else(String::new, |lower| format!("--precision {}, ", lower.name()));
            let hint = format!("take {precision}another --tensor, or a machine with more GPUs in an NVLink domain");
            Error::usage(message, hint)
        }
        other => other,
    })?;
    let room = blocks * request.policy.block;
    if room < LENGTHS.0 {
        let message = format!("a worker of {tensor} GPUs has room for a cache of {room} tokens beside its weights");
        return Err(Error::usage(
            message,
            format!("take another --tensor: prompts have {} tokens and more", LENGTHS.0),
        ));
    }
    // A second worker, on other hosts.
    let second = one.site.topology.ranks();
    let setup = Setup::new(request, second + tensor)?;
    let calls = setup.site.calls()?;
    let exchanges = Exchanges::new(&calls);
    let exchange = |shape: Shape, exchange: Exchange, bytes: u64| exchanges.taken(shape, exchange, bytes);
    let mut steps = steps(&setup, group, request.precision, &exchange)?;
    let mut links = Links::new(&setup.site.topology, &setup.site.profile, &setup.gpu, drives);
    let places = |rank: u32| {
        let host = setup.site.topology.host_of(Rank(rank));
        [Place::Host(host), Place::Disk(host), Place::Gpu(Rank(second + rank))]
    };
    let mut tiers = Vec::new();
    let mut routes: Vec<Vec<Way>> = Vec::new();
    for (tier, name) in ["host memory", "drives", "another host's GPUs"].into_iter().enumerate() {
        let way = |rank| ways(&mut links, places(rank)[tier], Place::Gpu(Rank(rank))).into_iter().next();
        let Some(found) = (0..tensor).map(way).collect::<Option<Vec<Way>>>() else { continue };
        tiers.extend(found.first().map(|way| (name, way.backend.name())));
        routes.push(found);
    }
    let mut lengths = Vec::new();
    let all = (0..LENGTHS.1).map(|doubled| LENGTHS.0 << doubled);
    for tokens in all.clone().take_while(|&tokens| tokens <= room) {
        let token = setup.cache_bytes(tensor);
        let block = setup.block_bytes(tensor, request.policy.block);
        let mut fetch = Vec::new();
        for ways in &routes {
            let seconds = sent(ways, (tokens * token, block), setup.site.profile.transfer_descriptor());
            fetch.push(seconds.map_err(|e| Error::usage(e.to_string(), "take another model"))?);
        }
        let mut recompute = 0.0;
        let mut done = 0;
        while done < tokens {
            let chunk = request.policy.chunk.min(tokens - done);
            recompute += steps.seconds(&Batch { prompts: &[(chunk, done)], decodes: 0, context: 0 });
            done += chunk;
        }
        lengths.push(Length { tokens, bytes: tokens * setup.model.kv_bytes(2), recompute, fetch });
    }
    if let Some(error) = exchanges.failed.take() {
        return Err(error.into());
    }
    let drives = links.storage(HostId(0)).drives;
    let mut notes = setup.rests_on();
    notes.push(format!(
        "the worker is idle; hosts have {drives} NVMe drives; a cache lies in blocks of {}, and all of it is fetched at \
         once, by NIXL's choice",
        Bytes(setup.block_bytes(tensor, request.policy.block)).human()
    ));
    if lengths.len() < all.count() {
        notes.push(format!("longer prompts are left out: the worker has room for a cache of {room} tokens"));
    }
    Ok(BreakEven {
        model: setup.model.name.clone(),
        machine: setup.site.topology.name.clone(),
        tensor,
        inputs: setup.site.sources.clone(),
        notes,
        warnings: setup.site.told.warnings.clone(),
        tiers,
        lengths,
        published: published(&setup.model.name),
    })
}

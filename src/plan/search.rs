//! Which layouts there are, and in which order they are worth a look.

use collcast_scenarios::parallel::{Module, Modules, Parallel, Recompute, Schedule, Split};
use collcast_scenarios::training::{MOST_PASSES, passes};
use collcast_scenarios::transformer::{Attention, Transformer};

use super::request::Request;

/// Stages of a pipeline at most, and chunks of a stage: published layouts have up to 64 and 24.
const MOST_STAGES: u64 = 64;
const MOST_CHUNKS: u64 = 24;
/// Chunks of a stage up to which layers may be split unevenly; more are tried where they have as many layers each.
const UNEVEN_CHUNKS: u64 = 8;
/// Sequences of a micro-batch that are tried.
const MICRO_BATCHES: [u32; 5] = [1, 2, 4, 8, 16];
/// Ranks that split a sequence at most, and the tokens that each keeps at least: a part of less is all overhead.
const MOST_CONTEXT: u64 = 64;
const LEAST_TOKENS: u64 = 2048;
/// Layouts that are looked at before the search gives up: each takes microseconds to check.
const MOST_LAYOUTS: usize = 2_000_000;

/// Numbers that divide another one, up to a limit.
fn divisors(of: u64, most: u64) -> impl Iterator<Item = u64> {
    (1..=most.min(of)).filter(move |d| of.is_multiple_of(*d))
}

/// Powers of two up to a limit.
fn powers(most: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(1_u64), |p| p.checked_mul(2)).take_while(move |p| *p <= most)
}

/// Every layout of a request's GPUs that the model allows, where NVLink joins all tensor ranks of a group: `domain`
/// GPUs at most. A rack of 72 GPUs is taken to hold whole groups, as schedulers place jobs on 64 of them.
pub(super) fn layouts(model: &Transformer, request: &Request, base: &Parallel, domain: u64) -> Vec<Parallel> {
    let heads = model.attention.heads();
    let sharded = base.zero == 3;
    let experts = model.experts.map_or(1, |e| e.count);
    let sequence = base.sequence(model);
    let mut all = Vec::new();
    for tensor in powers(domain).filter(|t| heads.is_multiple_of(*t) && request.gpus.is_multiple_of(*t)) {
        let rest = request.gpus / tensor;
        for context in
            powers(MOST_CONTEXT).filter(|c| rest.is_multiple_of(*c) && sequence / c >= LEAST_TOKENS.min(sequence))
        {
            let rest = rest / context;
            let stages = if sharded { 1 } else { MOST_STAGES.min(model.layers) };
            for pipeline in divisors(rest, stages) {
                let data = rest / pipeline;
                for expert in powers(experts)
                    .filter(|e| experts.is_multiple_of(*e) && (data * context * tensor).is_multiple_of(*e))
                {
                    let sizes =
                        [tensor, context, pipeline, data, expert].map(|size| u32::try_from(size).unwrap_or(u32::MAX));
                    variants(model, request, base, sizes, &mut all);
                    if all.len() >= MOST_LAYOUTS {
                        return all;
                    }
                }
            }
        }
    }
    all
}

fn variants(model: &Transformer, request: &Request, base: &Parallel, sizes: [u32; 5], all: &mut Vec<Parallel>) {
    let [tensor, context, pipeline, data, expert] = sizes;
    let micro: Vec<u32> = request.micro_batch.map_or_else(|| MICRO_BATCHES.to_vec(), |fixed| vec![fixed]);
    let recomputes = request.recompute.map_or_else(|| recomputes(model), |r| vec![r]);
    for &micro_batch in &micro {
        if !base.global_batch.is_multiple_of(u64::from(micro_batch) * u64::from(data)) {
            continue;
        }
        for chunks in chunks(model.layers, u64::from(pipeline)) {
            for &recompute in &recomputes {
                let mut parallel = Parallel {
                    tensor,
                    context,
                    pipeline,
                    data,
                    expert,
                    expert_tensor: 1,
                    micro_batch,
                    virtual_stages: chunks,
                    schedule: if chunks > 1 { Schedule::Interleaved } else { base.schedule },
                    sequence_parallel: tensor > 1,
                    recompute,
                    ..*base
                };
                parallel.split = Split::of(model, &parallel);
                if parallel.is_allowed(model) && passes(&parallel) <= MOST_PASSES {
                    all.push(parallel);
                }
            }
        }
    }
}

/// Chunks of a stage.
fn chunks(layers: u64, pipeline: u64) -> impl Iterator<Item = u32> {
    let most = if pipeline > 1 { MOST_CHUNKS } else { 1 };
    let of = (1..=most).filter(move |&n| n <= UNEVEN_CHUNKS || layers.is_multiple_of(pipeline * n));
    of.filter_map(|n| u32::try_from(n).ok())
}

/// What is worth computing again: nothing, what the framework takes for selective, all; and of latents and experts what is cheap
/// for its bytes, as recipes of Megatron-Bridge have it.
fn recomputes(model: &Transformer) -> Vec<Recompute> {
    let latents = matches!(model.attention, Attention::Mla { .. });
    let cheap = model.experts.map_or(Modules::NONE, |_| Modules::of(&[Module::Layernorm, Module::MoeAct]));
    let cheap = if latents { cheap.with(Module::MlaUpProj) } else { cheap };
    let mut all = vec![Recompute::None, Recompute::Selective, Recompute::Full];
    all.extend((cheap != Modules::NONE).then_some(Recompute::Modules(cheap)));
    all
}

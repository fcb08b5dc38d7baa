//! Which layouts there are, and in which order they are worth a look.

use collcast_scenarios::memory::{self, Software};
use collcast_scenarios::parallel::{Module, Modules, Parallel, Recompute, Schedule, Split};
use collcast_scenarios::training::{MOST_PASSES, passes};
use collcast_scenarios::transformer::{Attention, LayerKind, Transformer};

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
/// GPUs that share parameters where there are replicas of the shares, besides those of a host and of an NVLink domain.
const SHARES: [u64; 3] = [64, 128, 256];
/// Part of what a layer keeps below which computing something else again is no other choice: it takes time for nothing.
const ALIKE: f64 = 0.01;

/// GPUs of a host, and of those that NVLink joins.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) host: u64,
    pub(super) domain: u64,
}

/// What a search does not try.
pub(super) fn left_out(request: &Request) -> String {
    let zeros = zeros(request);
    let pipelines = zeros.contains(&3).then_some("pp with zero=3");
    let others = (zeros.len() < 4).then(|| {
        let searched: Vec<String> = zeros.iter().map(u8::to_string).collect();
        format!("zero other than {}", searched.join(", "))
    });
    let others = pipelines.map(str::to_owned).into_iter().chain(others);
    let others: String = others.map(|other| format!("{other}, ")).collect();
    let schedules = if request.beside_by_schedule() { "schedules other than dualpipe" } else { "schedule=gpipe" };
    format!(
        "not searched, and taken by --layout: {schedules}, offload, {others}etp other than 1 and tp, and sizes of tp, cp and ep that are no power of two"
    )
}

/// What replicas may share: what is asked for, or all that the framework has.
fn zeros(request: &Request) -> Vec<u8> {
    request.zero.map_or_else(|| request.framework.zero_stages().to_vec(), |zero| vec![zero])
}

/// Numbers that divide another one, up to a limit.
fn divisors(of: u64, most: u64) -> impl Iterator<Item = u64> {
    (1..=most.min(of)).filter(move |d| of.is_multiple_of(*d))
}

/// Powers of two up to a limit.
fn powers(most: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(1_u64), |p| p.checked_mul(2)).take_while(move |p| *p <= most)
}

/// Every layout of a request's GPUs that the model allows, where NVLink joins all tensor ranks of a group. A rack of 72 GPUs is
/// taken to hold whole groups, as schedulers place jobs on 64 of them. Experts are whole, or split over the tensor ranks.
pub(super) fn layouts(
    run: (&Transformer, &Software),
    request: &Request,
    base: &Parallel,
    place: Place,
) -> Vec<Parallel> {
    let model = run.0;
    let heads = model.attention.heads();
    let zeros = zeros(request);
    let only_sharded = zeros == [3];
    let experts = model.experts.map_or(1, |e| e.count);
    let sequence = base.sequence(model);
    let mut all = Vec::new();
    for tensor in powers(place.domain).filter(|t| heads.is_multiple_of(*t) && request.gpus.is_multiple_of(*t)) {
        let rest = request.gpus / tensor;
        let splits = if model.experts.is_some() && tensor > 1 { vec![1, tensor] } else { vec![1] };
        for context in
            powers(MOST_CONTEXT).filter(|c| rest.is_multiple_of(*c) && sequence / c >= LEAST_TOKENS.min(sequence))
        {
            let rest = rest / context;
            let stages = if only_sharded { 1 } else { MOST_STAGES.min(model.layers) };
            for pipeline in divisors(rest, stages) {
                let data = rest / pipeline;
                let ranks = data * context * tensor;
                for expert in powers(experts).filter(|e| experts.is_multiple_of(*e) && ranks.is_multiple_of(*e)) {
                    for &split in &splits {
                        let sizes = [tensor, context, pipeline, data, expert, split]
                            .map(|size| u32::try_from(size).unwrap_or(u32::MAX));
                        // One rank shares nothing with itself: the framework's own stage, or the least that a pipeline takes.
                        let alone = data * context == 1 && request.zero.is_none();
                        let own = if base.zero == 3 && pipeline > 1 { zeros[0] } else { base.zero };
                        let alone = alone.then_some(own);
                        for zero in zeros.iter().copied().filter(|&zero| alone.is_none_or(|only| zero == only)) {
                            if zero < 3 || pipeline == 1 {
                                variants(run, request, &Parallel { zero, ..*base }, (sizes, place), &mut all);
                            }
                        }
                        if all.len() >= MOST_LAYOUTS {
                            return all;
                        }
                    }
                }
            }
        }
    }
    all
}

fn variants(
    (model, software): (&Transformer, &Software),
    request: &Request,
    base: &Parallel,
    ([tensor, context, pipeline, data, expert, expert_tensor], place): ([u32; 6], Place),
    all: &mut Vec<Parallel>,
) {
    let sizes =
        Parallel { tensor, context, pipeline, data, expert, expert_tensor, sequence_parallel: tensor > 1, ..*base };
    let paired = software.execution.overlaps_experts;
    let micro: Vec<u32> = request.micro_batch.map_or_else(|| MICRO_BATCHES.to_vec(), |fixed| vec![fixed]);
    let micro = micro.into_iter().filter(|&size| base.global_batch.is_multiple_of(u64::from(size) * u64::from(data)));
    let micro: Vec<u32> = micro.collect();
    if micro.is_empty() {
        return;
    }
    let recomputes = request.recompute.map_or_else(|| recomputes(model, &sizes, software), |r| vec![r]);
    let shards = shards(&sizes, place);
    for &micro_batch in &micro {
        for virtual_stages in chunks(model.layers, u64::from(pipeline)) {
            for schedule in schedules(request, pipeline, virtual_stages) {
                for &recompute in &recomputes {
                    for &shard in &shards {
                        let mut parallel =
                            Parallel { micro_batch, virtual_stages, schedule, recompute, shard, ..sizes };
                        parallel.split = Split::of(model, &parallel);
                        if parallel.is_allowed(model, paired) && passes(&parallel) <= MOST_PASSES {
                            all.push(parallel);
                        }
                    }
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

/// Orders of micro-batches that a framework has for so many stages and chunks; GPipe takes as long as 1F1B, and more memory.
fn schedules(request: &Request, pipeline: u32, chunks: u32) -> impl Iterator<Item = Schedule> {
    let only_dual = request.beside_by_schedule();
    let of = move |schedule: &Schedule| match schedule {
        other if only_dual && *other != Schedule::DualPipe => false,
        Schedule::Gpipe => false,
        Schedule::OneForwardOneBackward => chunks == 1,
        Schedule::Interleaved => chunks > 1,
        Schedule::ZeroBubble | Schedule::DualPipe => chunks == 1 && pipeline > 1,
    };
    request.framework.schedules().iter().copied().filter(of)
}

/// Ranks that share parameters, where replicas of the shares are kept: those of a host, of an NVLink domain, and some more.
fn shards(sizes: &Parallel, place: Place) -> Vec<Option<u32>> {
    let replicas = u64::from(sizes.data) * u64::from(sizes.context);
    let groups = [place.host, place.domain].into_iter().chain(SHARES).filter(|_| sizes.zero == 3);
    let mut shards: Vec<u64> = groups.map(|gpus| gpus / u64::from(sizes.tensor)).collect();
    shards.retain(|&shard| shard > 1 && shard < replicas && replicas.is_multiple_of(shard));
    shards.sort_unstable();
    shards.dedup();
    std::iter::once(None).chain(shards.into_iter().map(|shard| u32::try_from(shard).ok())).collect()
}

/// What is worth computing again: nothing, what the framework takes for selective, all; and of latents and experts what is cheap
/// for its bytes, as recipes of Megatron-Bridge have it. Of choices that keep as much the first.
fn recomputes(model: &Transformer, sizes: &Parallel, software: &Software) -> Vec<Recompute> {
    let latents = matches!(model.attention, Attention::Mla { .. });
    let cheap = model.experts.map_or(Modules::NONE, |_| Modules::of(&[Module::Layernorm, Module::MoeAct]));
    let cheap = if latents { cheap.with(Module::MlaUpProj) } else { cheap };
    let mut all = vec![Recompute::None, Recompute::Selective];
    all.extend((cheap != Modules::NONE).then_some(Recompute::Modules(cheap)));
    all.push(Recompute::Full);
    let dense = model.dense_layers();
    let kept = |recompute: Recompute| -> f64 {
        let of = |(kind, count): (LayerKind, u64)| -> f64 {
            let layout = Parallel { recompute, ..*sizes };
            let bytes = |kind| memory::layer(model, kind, &layout, software).iter().map(|kept| kept.bytes).sum::<f64>();
            if count > 0 { count as f64 * bytes(kind) } else { 0.0 }
        };
        [(LayerKind::Dense, dense), (LayerKind::Experts, model.layers - dense)].into_iter().map(of).sum()
    };
    let mut found: Vec<(Recompute, f64)> = Vec::new();
    for recompute in all {
        let bytes = kept(recompute);
        if !found.iter().any(|other| (bytes / other.1 - 1.0).abs() < ALIKE) {
            found.push((recompute, bytes));
        }
    }
    found.into_iter().map(|one| one.0).collect()
}

//! What a step of a model takes on the GPUs of one worker.
//!
//! Ranks split products (tensor), experts (expert) and layers (pipeline). Replicas of attention have requests of their own,
//! and wait for each other where experts are split over all of them.
//!
//! Products, norms and exchanges see all tokens of a step alike, and are those of a layer's forward pass in planning
//! ([`crate::work`]); each prompt has attention of its own, running requests share a kernel. Times are kept by tokens, by
//! prompt and by running requests with their mean context, so that a long run asks for each once.

use collcast_sim::compute::{self, Backend, Clock, Compute, Kernel, Memory, Pass, Precision, Product, Unsupported};
use rustc_hash::FxHashMap;

use super::beside::Taken;
use super::simulate::Batch;
use crate::memory::{Framework, Software};
use crate::parallel::{Axis, Parallel};
use crate::training::calls::{Exchange, Shape};
use crate::transformer::{Attention, LayerKind, Transformer};
use crate::work::{self, Call, Execution, Piece, Repeated};

/// Counts are rounded up to a part of themselves of so many: 3%, far within what attention is off by.
const PARTS: u64 = 32;
/// Tokens of a page of the cache: contexts are whole pages.
const PAGE: u64 = 16;
/// Tokens up to which each count is its own: tiles of products are 64 and 128 high.
const EXACT: u64 = 64;

/// Heads of one rank.
#[derive(Clone, Copy)]
struct Heads {
    queries: u64,
    groups: u64,
    key: u64,
    value: u64,
}

/// Times of steps of a model on one worker, whose ranks split products among them.
pub struct Steps<'a> {
    model: &'a Transformer,
    gpu: &'a Compute,
    parallel: Parallel,
    software: Software,
    /// Replicas of attention.
    replicas: u64,
    exchange: &'a dyn Fn(Shape, Exchange, u64) -> Taken,
    /// By tokens of the busiest replica, of a mean one, and those whose logits are wanted: all but attention.
    shared: FxHashMap<(u64, u64, u64), (Taken, Clock)>,
    /// By tokens of a prompt, and of it so far.
    prompts: FxHashMap<(u64, u64), f64>,
    /// By requests, and tokens of the mean cache.
    decodes: FxHashMap<(u64, u64), f64>,
}

impl<'a> Steps<'a> {
    /// Of a model on workers of `parallel` ranks, whose attention has `replicas`; `exchange` says what an exchange of so
    /// many bytes takes in a group of a shape.
    ///
    /// # Errors
    /// A precision that the GPU has not.
    pub fn new(
        model: &'a Transformer,
        gpu: &'a Compute,
        (parallel, replicas): (Parallel, u64),
        precision: Precision,
        exchange: &'a dyn Fn(Shape, Exchange, u64) -> Taken,
    ) -> Result<Self, Unsupported> {
        gpu.time(&Kernel::Product(Product::forward(precision, 1, 1, 1)), Clock::BOOST)?;
        // Kernels written by hand, as in training by Megatron-LM; engines for serving have FlashAttention-3.
        let of = Framework::Megatron.software();
        let software = Software { execution: Execution { precision, flash: Backend::Flash3, ..of.execution }, ..of };
        let (shared, prompts, decodes) = Default::default();
        Ok(Self { model, gpu, parallel, software, replicas: replicas.max(1), exchange, shared, prompts, decodes })
    }

    /// Seconds of a step without transfers beside it.
    pub fn seconds(&mut self, batch: &Batch<'_>) -> f64 {
        self.taken(batch).seconds
    }

    /// What a step takes.
    pub fn taken(&mut self, batch: &Batch<'_>) -> Taken {
        let prompts: u64 = batch.prompts.iter().map(|prompt| prompt.0).sum();
        // The replica with the most to do: a prompt is one's, running requests are dealt evenly.
        let (all, longest) = (self.replicas, batch.prompts.iter().map(|prompt| prompt.0).max().unwrap_or(0));
        let decodes = batch.decodes.div_ceil(all);
        let wanted = (batch.prompts.len() as u64).div_ceil(all) + decodes;
        // Experts have the tokens of all replicas.
        let mean = (prompts + batch.decodes).div_ceil(all);
        let (mut taken, clock) = self.shared((prompts.div_ceil(all)).max(longest) + decodes, mean, wanted);
        let (mut attention, mut most) = (0.0, 0.0_f64);
        for &(tokens, before) in batch.prompts {
            let own = self.prompt(tokens, before + tokens, clock);
            (attention, most) = (attention + own, most.max(own));
        }
        taken.seconds += most.max(attention / all as f64);
        if decodes > 0 {
            taken.seconds += self.decode(decodes, batch.context.div_ceil(batch.decodes), clock);
        }
        taken
    }

    /// Of embedding, all layers without attention and the logits of some tokens; and the clock that they leave. `mean`
    /// tokens a replica go to experts.
    fn shared(&mut self, tokens: u64, mean: u64, wanted: u64) -> (Taken, Clock) {
        let key = (rounded(tokens, EXACT), rounded(mean, EXACT), rounded(wanted, EXACT));
        let (tokens, mean, wanted) = key;
        if let Some(&known) = self.shared.get(&key) {
            return known;
        }
        let parallel = Parallel { sequence: Some(tokens), ..self.parallel };
        let mut software = self.software;
        software.execution.imbalance = mean as f64 / tokens.max(1) as f64;
        let dense = self.model.dense_layers();
        let mut pieces: Vec<(Piece, u64)> = Vec::new();
        for (kind, layers) in [(LayerKind::Dense, dense), (LayerKind::Experts, self.model.layers - dense)] {
            if layers > 0 {
                let forward = work::layer(self.model, kind, &parallel, &software).forward;
                pieces.extend(forward.into_iter().map(|piece| (piece, layers)));
            }
        }
        pieces.extend(work::embedding(self.model, &parallel, &self.software).forward.into_iter().map(|p| (p, 1)));
        let mut mix = vec![(self.head(wanted), 1)];
        let mut taken = Taken::default();
        for (piece, times) in pieces {
            match piece {
                Piece::Kernel(run) if matches!(run.kernel, Kernel::Attention(_)) => {}
                // Engines store the inputs of all experts in fewer bits by one kernel (vLLM `fused_moe`), Transformer Engine
                // by one each.
                Piece::Kernel(Repeated { kernel: Kernel::Memory(memory), count, .. }) => {
                    mix.push((Kernel::Memory(Memory { kernels: 1, ..memory }), times * u64::from(count)));
                }
                Piece::Kernel(run) => mix.push((run.kernel, times * u64::from(run.count))),
                Piece::Exchange(call) => {
                    let tensor = Shape::new(u64::from(self.parallel.tensor), 1);
                    let shape = match call.axis {
                        Axis::Expert => {
                            Shape::new(u64::from(self.parallel.expert), u64::from(self.parallel.expert_tensor))
                        }
                        _ => tensor,
                    };
                    let of = match call.call {
                        Call::Collective(collective) => {
                            (self.exchange)(shape, Exchange::Collective(collective), call.bytes)
                        }
                        Call::Tokens(routing) => (self.exchange)(shape, Exchange::Tokens(routing), call.bytes),
                        Call::Ring => Taken::default(),
                    };
                    taken.add(of, times as f64);
                }
                Piece::Wait => {}
            }
        }
        // From stage to stage: what each tensor rank has of the tokens.
        let stages = u64::from(self.parallel.pipeline.max(1));
        if stages > 1 {
            let tensor = u64::from(self.parallel.tensor);
            let shape = Shape::new(2, tensor * self.replicas);
            let bytes = 2 * tokens * self.model.hidden / tensor;
            taken.add((self.exchange)(shape, Exchange::Shift, bytes), (stages - 1) as f64);
        }
        let clock = self.gpu.sustained(&mix);
        taken.seconds += mix.iter().map(|(kernel, times)| self.time(kernel, clock) * *times as f64).sum::<f64>();
        self.shared.insert(key, (taken, clock));
        (taken, clock)
    }

    /// The product that makes the logits of so many tokens.
    fn head(&self, tokens: u64) -> Kernel {
        let outputs = self.model.vocabulary / u64::from(self.parallel.tensor);
        Kernel::Product(Product::forward(Precision::Bf16, tokens, outputs, self.model.hidden))
    }

    /// Of attention of a prompt's tokens, the last of so many, with what it takes to have keys and values of those before.
    fn prompt(&mut self, tokens: u64, keys: u64, clock: Clock) -> f64 {
        let key = (rounded(tokens, EXACT), rounded(keys, PAGE));
        if let Some(&known) = self.prompts.get(&key) {
            return known;
        }
        let heads = self.heads();
        let whole = key.1.max(key.0);
        let attention = compute::Attention {
            backend: Backend::Flash3,
            pass: Pass::Forward,
            batch: 1,
            heads: heads.queries,
            kv_heads: heads.groups,
            queries: key.0,
            keys: whole,
            head_dim: heads.key,
            value_dim: heads.value,
            causal: true,
            latent: false,
        };
        let again = work::cached(self.model, &self.parallel, &self.software, (key.0, whole - key.0));
        let kernels = again.into_iter().chain([Kernel::Attention(attention)]);
        let seconds = kernels.map(|kernel| self.layers(&kernel, clock)).sum();
        self.prompts.insert(key, seconds);
        seconds
    }

    /// Of attention of requests, each with one query of every head over its cache, whose kernel reads caches as cuDNN's does:
    /// FlashAttention-3, FlashInfer and FlashMLA claim as much. Of a latent (MLA) all heads share it, and products to and from
    /// it are in the layer's.
    fn decode(&mut self, requests: u64, context: u64, clock: Clock) -> f64 {
        let key = (requests, rounded(context.next_multiple_of(PAGE), PAGE));
        if let Some(&known) = self.decodes.get(&key) {
            return known;
        }
        let (heads, latent) = match self.model.attention {
            Attention::Gqa { .. } => (self.heads(), false),
            Attention::Mla { kv_lora, rope, .. } => {
                (Heads { groups: 1, key: kv_lora + rope, value: kv_lora, ..self.heads() }, true)
            }
        };
        let attention = compute::Attention {
            backend: Backend::Flash3,
            pass: Pass::Forward,
            batch: requests,
            heads: heads.queries,
            kv_heads: heads.groups,
            queries: 1,
            keys: key.1,
            head_dim: heads.key,
            value_dim: heads.value,
            causal: false,
            latent,
        };
        let seconds = self.layers(&Kernel::Attention(attention), clock);
        self.decodes.insert(key, seconds);
        seconds
    }

    fn layers(&self, kernel: &Kernel, clock: Clock) -> f64 {
        self.time(kernel, clock) * self.model.layers as f64
    }

    fn heads(&self) -> Heads {
        let tensor = u64::from(self.parallel.tensor);
        match self.model.attention {
            Attention::Gqa { heads, kv_heads, head_dim, .. } => Heads {
                queries: (heads / tensor).max(1),
                groups: (kv_heads / tensor).max(1),
                key: head_dim,
                value: head_dim,
            },
            Attention::Mla { heads, nope, rope, value, .. } => {
                let own = (heads / tensor).max(1);
                Heads { queries: own, groups: own, key: nope + rope, value }
            }
        }
    }

    /// Of a kernel in a precision that the GPU has.
    fn time(&self, kernel: &Kernel, clock: Clock) -> f64 {
        self.gpu.time(kernel, clock).map_or(0.0, |time| time.as_us() * 1e-6)
    }
}

/// Rounded up to a part of itself, or to a multiple of `exact` beyond it.
fn rounded(count: u64, exact: u64) -> u64 {
    let step = (count / PARTS).checked_ilog2().map_or(1, |log| 1 << log);
    if count <= exact { count } else { count.next_multiple_of(step) }
}

//! Requests through workers, event by event.
//!
//! Prompts wait in one queue, or each at the worker that a router chose. A worker that prefills takes from it at the start of a step, as far as its budget of tokens and
//! its memory go, and works on them chunk by chunk; a worker that does both first gives each running request its next token.
//! Between workers, a decoder reserves memory before the transfer runs, and each replica of a worker sends or receives one cache at a
//! time. Memory is reserved for a whole request, so that none is ever put off (TensorRT-LLM's `GUARANTEED_NO_EVICT`). Prompts
//! that share a prefix share its blocks, and take it from slower tiers where that is faster than to compute it.
//!
//! A step costs the same work however many requests it runs: their ends are known in steps, their context as a sum.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rustc_hash::FxHashMap;
use thiserror::Error;

use super::arrivals::Request;
use super::beside::{FETCH, HAND_OFF, Sharing, Taken};
use super::prefix::{Part, Reuse, TIERS, Tiers};

/// What a worker does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Prompts only: caches go to decoders.
    Prefill,
    /// Tokens after the first.
    Decode,
    /// Both, in the same steps.
    Both,
}

/// A copy of the model with its GPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Worker {
    /// What it does.
    pub role: Role,
    /// Blocks of its cache, which all workers of its `pipe` share.
    pub blocks: u64,
    /// Blocks of host memory and of drives, for parts of prompts that no running request uses; shared alike.
    pub tiers: [u64; 2],
    /// Stages of its pipeline. Workers of the same `pipe` are micro-batches that take turns in its stages.
    pub stages: u32,
    /// Which pipeline.
    pub pipe: usize,
    /// Replicas of attention (data parallelism): each has a step's tokens and requests of its own.
    pub replicas: u64,
}

impl Worker {
    /// Whose cache has so many blocks, without slower tiers or stages; the only one of its `pipe`.
    pub fn new(role: Role, blocks: u64, pipe: usize) -> Self {
        Self { role, blocks, tiers: [0; 2], stages: 1, pipe, replicas: 1 }
    }
}

/// How requests get to workers that prefill.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Route {
    /// They wait in one queue, for whoever can take them first.
    #[default]
    Queue,
    /// Each goes, when it arrives, to the worker that has the least to do with it: blocks that it would have to compute, those
    /// of prompts that wait there included, and blocks that are in use (Dynamo's KV router, both weighed alike). It waits there.
    Prefix,
}

/// How workers make up a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Tokens of a step of a replica at most, those of running requests first (vLLM `max_num_batched_tokens`).
    pub chunk: u64,
    /// Prompts that a worker has begun at most (vLLM `max_num_partial_prefills` and what fits beside them).
    pub prompts: usize,
    /// Requests of a replica at most, in all micro-batches of its pipeline (vLLM `max_num_seqs`).
    pub running: u64,
    /// Tokens of a block of the cache.
    pub block: u64,
    /// Which worker that prefills gets a request.
    pub route: Route,
    /// Whether layers of a cache go to the decoder while the prompt is computed: it reserves memory at the prompt's start.
    pub by_layers: bool,
    /// Steps of all workers that are simulated at most.
    pub steps: u64,
}

/// What a step computes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Batch<'b> {
    /// Tokens of each prompt, and tokens of it before them.
    pub prompts: &'b [(u64, u64)],
    /// Requests that get their next token.
    pub decodes: u64,
    /// Tokens of their caches, summed.
    pub context: u64,
}

/// What takes how long.
pub trait Machine {
    /// What a step of a worker with this number takes.
    fn step(&mut self, worker: usize, batch: &Batch<'_>) -> Taken;
    /// Seconds of the way of a cache of so many tokens from a prefill worker to a decoder.
    fn hand_off(&mut self, from: usize, to: usize, tokens: u64) -> f64;
    /// Seconds of the way of the last layer of it.
    fn last_layer(&mut self, from: usize, to: usize, tokens: u64) -> f64 {
        self.hand_off(from, to, tokens)
    }
    /// Seconds of the way of so many tokens from a slower tier of a worker to its GPUs: 1 host memory, 2 drives.
    fn fetch(&mut self, _worker: usize, _tier: usize, _tokens: u64) -> f64 {
        f64::INFINITY
    }
}

/// When what of a request was done, in ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Served {
    /// It arrived.
    pub arrived: u64,
    /// Its prompt was begun.
    pub begun: u64,
    /// Its prompt was through.
    pub prefilled: u64,
    /// Its first token was there, at the worker that goes on with it.
    pub first: u64,
    /// Its last token was.
    pub last: u64,
}

/// What came of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// By request, in the order of arrival.
    pub served: Vec<Served>,
    /// By worker: ns in which it ran a step.
    pub busy: Vec<u64>,
    /// By pipeline: most blocks that were in use.
    pub peak: Vec<u64>,
    /// By pipeline: blocks in use at the end.
    pub left: Vec<u64>,
    /// Steps of all workers.
    pub steps: u64,
    /// What prefixes did.
    pub reuse: Reuse,
}

/// Why a run cannot be simulated.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum ServingError {
    /// A request that no memory holds.
    #[error("a request of {tokens} tokens needs {needs} blocks of cache, and a worker has {blocks}")]
    TooLong {
        /// Its tokens.
        tokens: u64,
        /// Blocks for them.
        needs: u64,
        /// Blocks of the smallest worker.
        blocks: u64,
    },
    /// Nobody to do it.
    #[error("no worker prefills, or none decodes")]
    NoWorker,
    /// Too much to simulate.
    #[error("the run has more than {0} steps, the most that are simulated")]
    TooMany(u64),
}

/// A worker at work.
#[derive(Default)]
struct Running {
    /// Prompts that it has begun, with their tokens done.
    prompts: VecDeque<(usize, u64)>,
    /// Tokens of each of these in the step at work.
    chunks: Vec<(u64, u64)>,
    /// Requests that join the next step.
    joining: Vec<usize>,
    decodes: u64,
    context: u64,
    /// Steps of it so far, and the one after which each running request ends.
    step: u64,
    ends: BinaryHeap<Reverse<(u64, usize)>>,
    works: bool,
    /// Requests that it has memory for.
    held: u64,
    /// When the link of each replica is free, and those of its slower tiers.
    links: Vec<u64>,
    fetches: [u64; TIERS],
    /// Prompts that wait for parts of slower tiers.
    fetching: usize,
    sharing: Sharing,
    /// Of requests that were sent here and wait: tokens to be computed, and parts that will be there, by how many of them.
    queued: u64,
    promised: FxHashMap<u64, u32>,
}

impl Running {
    fn new(worker: &Worker) -> Self {
        Self { links: vec![0; worker.replicas.max(1) as usize], ..Self::default() }
    }

    /// The link that is free first.
    fn link(&mut self) -> Option<&mut u64> {
        self.links.iter_mut().min()
    }
}

/// A pipeline: its stages, and the memory that its workers share.
struct Pipe {
    /// When each stage is free.
    free: Vec<u64>,
    /// Blocks in use.
    used: u64,
    /// Requests that have some.
    held: u64,
    /// Parts of prompts that it keeps.
    tiers: Tiers,
}

/// What a request has of its prefill worker's memory.
#[derive(Clone, Default)]
struct Held {
    /// Parts that it uses, each once.
    parts: Vec<u64>,
    /// Blocks of its own.
    own: u64,
    /// Tokens of its prompt that need no computing.
    hit: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    StepEnds(usize),
    HandedOff(usize),
    Fetched(usize),
}

struct Run<'r, M> {
    requests: &'r [Request],
    workers: &'r [Worker],
    policy: Policy,
    machine: &'r mut M,
    now: u64,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    running: Vec<Running>,
    pipes: Vec<Pipe>,
    /// By request: what it has of prefixes.
    held: Vec<Held>,
    /// By request: tokens to be computed, as its router reckoned.
    queued: Vec<u64>,
    /// By request: whether a decoder reserved memory at its start.
    reserved: Vec<bool>,
    /// By queue: requests that wait. One queue, or one for each worker.
    waiting: Vec<VecDeque<usize>>,
    /// Prefilled requests that wait for a decoder's memory.
    ready: VecDeque<usize>,
    /// By request: who prefills it, who decodes it.
    at: Vec<(usize, usize)>,
    outcome: Outcome,
}

/// Runs requests, in the order of their arrival, through workers until all are served.
///
/// # Errors
/// A request that no worker's memory holds, a missing role, or too many steps.
pub fn simulate<M: Machine>(
    requests: &[Request],
    workers: &[Worker],
    policy: Policy,
    machine: &mut M,
) -> Result<Outcome, ServingError> {
    let of = |roles: [Role; 2]| workers.iter().filter(move |w| roles.contains(&w.role)).map(|w| w.blocks);
    let (prefills, decodes) = (of([Role::Prefill, Role::Both]), of([Role::Decode, Role::Both]));
    let (Some(first), Some(second)) = (prefills.min(), decodes.min()) else { return Err(ServingError::NoWorker) };
    let blocks = first.min(second);
    let tokens = requests.iter().map(|r| r.input.saturating_add(r.output)).max().unwrap_or(0);
    let needs = tokens.div_ceil(policy.block);
    if needs > blocks {
        return Err(ServingError::TooLong { tokens, needs, blocks });
    }
    let pipes = pipes(workers);
    let run = Run {
        requests,
        workers,
        policy,
        machine,
        now: 0,
        events: BinaryHeap::new(),
        running: workers.iter().map(Running::new).collect(),
        held: vec![Held::default(); requests.len()],
        queued: vec![0; requests.len()],
        reserved: vec![false; requests.len()],
        waiting: vec![VecDeque::new(); if policy.route == Route::Queue { 1 } else { workers.len() }],
        ready: VecDeque::new(),
        at: vec![(0, 0); requests.len()],
        outcome: Outcome {
            served: vec![Served::default(); requests.len()],
            busy: vec![0; workers.len()],
            peak: vec![0; pipes.len()],
            ..Outcome::default()
        },
        pipes,
    };
    run.run()
}

/// Each pipeline, all of it free.
fn pipes(workers: &[Worker]) -> Vec<Pipe> {
    let count = workers.iter().map(|worker| worker.pipe + 1).max().unwrap_or(0);
    let of = |pipe| workers.iter().find(|worker| worker.pipe == pipe);
    let new = |worker: Option<&Worker>| Pipe {
        free: vec![0; worker.map_or(1, |worker| worker.stages.max(1)) as usize],
        used: 0,
        held: 0,
        tiers: Tiers::new(worker.map_or([0; 2], |worker| worker.tiers)),
    };
    (0..count).map(|pipe| new(of(pipe))).collect()
}

fn ns(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

impl<M: Machine> Run<'_, M> {
    fn run(mut self) -> Result<Outcome, ServingError> {
        let requests = self.requests;
        let mut arrivals = (0..).zip(requests).peekable();
        loop {
            let event = self.events.peek().map(|Reverse(event)| event.0);
            let arrival = arrivals.peek().map(|(_, request)| ns(request.at));
            let Some(now) = event.into_iter().chain(arrival).min() else { break };
            self.now = now;
            if arrival == Some(now) {
                if let Some((index, _)) = arrivals.next() {
                    self.outcome.served[index].arrived = now;
                    let queue = self.route(index);
                    self.waiting[queue].push_back(index);
                    self.wake();
                }
                continue;
            }
            match self.events.pop() {
                Some(Reverse((_, Event::StepEnds(worker)))) => match self.running[worker].sharing.until() {
                    until if until > now => self.events.push(Reverse((until, Event::StepEnds(worker)))),
                    _ => self.end_step(worker),
                },
                Some(Reverse((_, Event::HandedOff(request)))) => self.arrive(request),
                Some(Reverse((_, Event::Fetched(request)))) => self.fetched(request),
                None => {}
            }
            if self.outcome.steps > self.policy.steps {
                return Err(ServingError::TooMany(self.policy.steps));
            }
        }
        self.outcome.left = self.pipes.iter().map(|pipe| pipe.used).collect();
        let reuse = &mut self.outcome.reuse;
        for Pipe { tiers, .. } in &self.pipes {
            reuse.dropped += tiers.dropped * self.policy.block;
            reuse.written.iter_mut().zip(tiers.written).for_each(|(all, own)| *all += own * self.policy.block);
        }
        Ok(self.outcome)
    }

    fn blocks(&self, tokens: u64) -> u64 {
        tokens.div_ceil(self.policy.block)
    }

    /// The pipeline of a worker.
    fn pipe(&mut self, worker: usize) -> &mut Pipe {
        &mut self.pipes[self.workers[worker].pipe]
    }

    /// Parts of prompts that a worker's pipeline keeps.
    fn tiers(&self, worker: usize) -> &Tiers {
        &self.pipes[self.workers[worker].pipe].tiers
    }

    /// How free a worker is: blocks that nobody uses, then how few requests it has itself, then its number.
    fn free(&self, worker: usize) -> (u64, Reverse<(u64, usize)>) {
        let &Worker { blocks, pipe, .. } = &self.workers[worker];
        (blocks - self.pipes[pipe].used, Reverse((self.running[worker].held, worker)))
    }

    /// Tokens that a request takes of a worker's memory.
    fn tokens(&self, worker: usize, request: usize) -> u64 {
        let &Request { input, output, .. } = &self.requests[request];
        if self.workers[worker].role == Role::Prefill { input } else { input + output }
    }

    fn fits(&self, worker: usize, request: usize) -> bool {
        let &Worker { blocks, pipe, replicas, .. } = &self.workers[worker];
        let needs = self.blocks(self.tokens(worker, request)).saturating_sub(self.shared(worker, request));
        let Pipe { used, held, .. } = self.pipes[pipe];
        held < self.policy.running.saturating_mul(replicas) && used + needs <= blocks
    }

    /// Blocks of a request's first parts that running requests of a worker use already.
    fn shared(&self, worker: usize, request: usize) -> u64 {
        if self.workers[worker].role == Role::Decode {
            return 0;
        }
        let mut parts = self.requests[request].parts();
        let used = |part: &Part| self.tiers(worker).find(part.key) == Some((0, true));
        std::iter::from_fn(|| parts.next().filter(used)).map(|part| part.tokens / self.policy.block).sum()
    }

    /// Adds a request's blocks to those in use of a worker, and puts parts off that nobody uses where they do not fit beside.
    fn use_blocks(&mut self, worker: usize, more: u64) {
        let &Worker { blocks, pipe, .. } = &self.workers[worker];
        self.running[worker].held += 1;
        let own = &mut self.pipes[pipe];
        own.held += 1;
        own.used += more;
        own.tiers.shrink(blocks.saturating_sub(own.used));
        self.outcome.peak[pipe] = self.outcome.peak[pipe].max(own.used);
    }

    /// Takes memory for a whole request on a worker that prefills: parts of its prompt that are kept there, by tier as long
    /// as to fetch them is faster than to compute them, and blocks of its own for the rest. Gives when the parts are there.
    fn hold(&mut self, worker: usize, request: usize) -> u64 {
        let needs = self.blocks(self.tokens(worker, request));
        let (parts, ready) = self.worth(worker, request);
        let hit: u64 = parts.iter().map(|part| part.tokens).sum();
        let blocks: u64 = parts.iter().map(|part| part.tokens / self.policy.block).sum();
        let own = needs - blocks;
        let added: u64 = parts.iter().map(|part| self.pipe(worker).tiers.take(part.key)).sum();
        self.use_blocks(worker, own + added);
        let input = self.requests[request].input;
        self.outcome.reuse.computed += input - hit;
        // The last token's own output is wanted: it is always computed.
        let hit = hit.min(input - 1);
        self.held[request] = Held { parts: parts.iter().map(|part| part.key).collect(), own, hit };
        ready
    }

    /// The parts of a prompt that a worker takes from its tiers, and when they are there.
    fn worth(&mut self, worker: usize, request: usize) -> (Vec<Part>, u64) {
        let requests = self.requests;
        let found: Vec<(Part, usize)> = (requests[request].parts())
            .map_while(|part| self.tiers(worker).find(part.key).map(|(tier, _)| (part, tier)))
            .collect();
        let (mut parts, mut ready, mut before) = (Vec::new(), self.now, 0);
        let mut rest = &found[..];
        while let Some(&(_, tier)) = rest.first() {
            let run = rest.iter().take_while(|(_, other)| *other == tier).count();
            let tokens: u64 = rest[..run].iter().map(|(part, _)| part.tokens).sum();
            if tier > 0 {
                let start = self.now.max(self.running[worker].fetches[tier]);
                let slows = self.running[worker].sharing.slows(FETCH, self.now);
                let end = start.saturating_add(ns(self.machine.fetch(worker, tier, tokens) * slows));
                let batch = Batch { prompts: &[(tokens, before)], decodes: 0, context: 0 };
                if end - self.now >= ns(self.machine.step(worker, &batch).seconds) {
                    self.outcome.reuse.recomputed += rest.iter().map(|(part, _)| part.tokens).sum::<u64>();
                    break;
                }
                self.running[worker].fetches[tier] = end;
                self.running[worker].sharing.fly(FETCH, (start, end), self.now);
                ready = ready.max(end);
            }
            self.outcome.reuse.hits[tier] += tokens;
            parts.extend(rest[..run].iter().map(|(part, _)| *part));
            before += tokens;
            rest = &rest[run..];
        }
        (parts, ready)
    }

    /// Takes memory of a decoder for a whole request.
    fn reserve(&mut self, decoder: usize, request: usize) {
        let needs = self.blocks(self.tokens(decoder, request));
        self.use_blocks(decoder, needs);
    }

    /// Gives the memory of a request back; what is kept of its prompt stays, until its room is wanted.
    fn release(&mut self, worker: usize, request: usize) {
        let freed = if self.workers[worker].role == Role::Decode {
            self.blocks(self.tokens(worker, request))
        } else {
            let held = std::mem::take(&mut self.held[request]);
            // The first part last: it is the one to keep longest.
            held.own + held.parts.iter().rev().map(|&key| self.pipe(worker).tiers.leave(key)).sum::<u64>()
        };
        self.running[worker].held -= 1;
        let pipe = self.pipe(worker);
        pipe.used -= freed;
        pipe.held -= 1;
    }

    /// Keeps the parts of a prompt that was computed, for requests to come.
    fn keep(&mut self, worker: usize, request: usize) {
        let requests = self.requests;
        for part in requests[request].parts() {
            let blocks = part.tokens / self.policy.block;
            let own = self.held[request].own;
            if blocks > 0 && blocks <= own && self.pipe(worker).tiers.insert(part.key, blocks) {
                let held = &mut self.held[request];
                held.own -= blocks;
                held.parts.push(part.key);
            }
        }
    }

    /// Tokens of a prompt's first parts that a worker has, or will have of requests that wait there.
    fn known(&self, worker: usize, request: usize) -> u64 {
        let (tiers, promised) = (self.tiers(worker), &self.running[worker].promised);
        let kept = |part: &Part| tiers.find(part.key).is_some() || promised.contains_key(&part.key);
        let mut parts = self.requests[request].parts();
        std::iter::from_fn(|| parts.next().filter(kept)).map(|part| part.tokens).sum()
    }

    /// The queue that a worker takes from.
    fn queue(&self, worker: usize) -> usize {
        if self.policy.route == Route::Queue { 0 } else { worker }
    }

    /// The queue in which a request waits that arrives now.
    fn route(&mut self, request: usize) -> usize {
        if self.policy.route == Route::Queue {
            return 0;
        }
        let input = self.requests[request].input;
        let cost = |w: &usize| {
            let running = &self.running[*w];
            let begun = running.prompts.iter().map(|&(begun, done)| self.requests[begun].input - done).sum::<u64>();
            let tokens = input - self.known(*w, request).min(input) + running.queued + begun;
            (self.blocks(tokens) + self.pipes[self.workers[*w].pipe].used, *w)
        };
        let prefills = (0..self.workers.len()).filter(|&w| self.workers[w].role != Role::Decode);
        let worker = prefills.min_by_key(cost).unwrap_or(0);
        let tokens = input - self.known(worker, request).min(input);
        let running = &mut self.running[worker];
        running.queued += tokens;
        for part in self.requests[request].parts() {
            *running.promised.entry(part.key).or_default() += 1;
        }
        self.queued[request] = tokens;
        worker
    }

    /// A request that waited at a worker is begun.
    fn begun(&mut self, worker: usize, request: usize) {
        if self.policy.route == Route::Queue {
            return;
        }
        let running = &mut self.running[worker];
        running.queued -= std::mem::take(&mut self.queued[request]);
        for part in self.requests[request].parts() {
            if let Some(count) = running.promised.get_mut(&part.key) {
                *count -= 1;
                if *count == 0 {
                    running.promised.remove(&part.key);
                }
            }
        }
    }

    /// Lets an idle worker that prefills begin: the one that knows most of the prompt, then the one with the most free memory.
    fn wake(&mut self) {
        for queue in 0..self.waiting.len() {
            let Some(&request) = self.waiting[queue].front() else { continue };
            let can = |w: &usize| self.workers[*w].role != Role::Decode && self.fits(*w, request);
            let idle = |w: &usize| self.queue(*w) == queue && !self.running[*w].works && can(w);
            let free = |w: &usize| (self.known(*w, request), self.free(*w));
            if let Some(worker) = (0..self.workers.len()).filter(idle).max_by_key(free) {
                self.start_step(worker);
            }
        }
    }

    fn start_step(&mut self, worker: usize) {
        for request in std::mem::take(&mut self.running[worker].joining) {
            let &Request { input, output, .. } = &self.requests[request];
            let running = &mut self.running[worker];
            running.decodes += 1;
            running.context += input + 1;
            running.ends.push(Reverse((running.step + output - 1, request)));
        }
        let most = self.policy.chunk.saturating_mul(self.workers[worker].replicas);
        let mut left = most.saturating_sub(self.running[worker].decodes);
        let mut chunks = std::mem::take(&mut self.running[worker].chunks);
        chunks.clear();
        while left > 0 {
            let next = chunks.len();
            if next == self.running[worker].prompts.len() {
                if self.take(worker) {
                    // What it took may be on its way first.
                    continue;
                }
                break;
            }
            let (request, done) = self.running[worker].prompts[next];
            // A prompt is one replica's.
            let tokens = left.min(self.policy.chunk).min(self.requests[request].input - done);
            chunks.push((tokens, done));
            left -= tokens;
        }
        let running = &mut self.running[worker];
        running.chunks = chunks;
        running.works = running.decodes > 0 || !running.chunks.is_empty();
        if running.works {
            let batch = Batch { prompts: &running.chunks, decodes: running.decodes, context: running.context };
            let taken = self.machine.step(worker, &batch);
            let end = self.through(worker, ns(taken.seconds).max(1));
            let end = self.running[worker].sharing.begin(taken, self.now, end);
            self.outcome.steps += 1;
            self.events.push(Reverse((end, Event::StepEnds(worker))));
        }
    }

    /// When a step that begins now is through all stages of its pipeline, each of which does one at a time.
    fn through(&mut self, worker: usize, lasts: u64) -> u64 {
        let stages = &mut self.pipes[self.workers[worker].pipe].free;
        let count = stages.len() as u64;
        self.outcome.busy[worker] += lasts / count;
        let mut end = self.now;
        for (nth, free) in (0..).zip(stages) {
            end = end.max(*free) + lasts * (nth + 1) / count - lasts * nth / count;
            *free = end;
        }
        end
    }

    /// Takes a prompt from the queue, if there is one and it fits.
    fn take(&mut self, worker: usize) -> bool {
        let running = &self.running[worker];
        let begun = running.prompts.len() + running.fetching >= self.policy.prompts;
        let queue = self.queue(worker);
        let Some(&request) = self.waiting[queue].front() else { return false };
        if begun || self.workers[worker].role == Role::Decode || !self.fits(worker, request) {
            return false;
        }
        self.waiting[queue].pop_front();
        self.at[request].0 = worker;
        self.begun(worker, request);
        let ready = self.hold(worker, request);
        self.outcome.served[request].begun = self.now;
        if self.policy.by_layers && self.workers[worker].role == Role::Prefill && self.ready.is_empty() {
            self.reserved[request] = self.decoder(request).is_some();
        }
        if ready > self.now {
            self.running[worker].fetching += 1;
            self.events.push(Reverse((ready, Event::Fetched(request))));
        } else {
            self.running[worker].prompts.push_back((request, self.held[request].hit));
        }
        true
    }

    /// Parts of a prompt are there from a slower tier.
    fn fetched(&mut self, request: usize) {
        let worker = self.at[request].0;
        self.running[worker].fetching -= 1;
        self.running[worker].prompts.push_back((request, self.held[request].hit));
        if !self.running[worker].works {
            self.start_step(worker);
        }
    }

    fn end_step(&mut self, worker: usize) {
        let running = &mut self.running[worker];
        running.step += 1;
        running.context += running.decodes;
        let mut freed = false;
        while let Some(&Reverse((step, request))) = self.running[worker].ends.peek() {
            if step > self.running[worker].step {
                break;
            }
            let running = &mut self.running[worker];
            running.ends.pop();
            running.decodes -= 1;
            running.context -= self.requests[request].input + self.requests[request].output;
            self.outcome.served[request].last = self.now;
            self.release(worker, request);
            freed = true;
        }
        let chunks = std::mem::take(&mut self.running[worker].chunks);
        for (index, &(tokens, _)) in chunks.iter().enumerate() {
            self.running[worker].prompts[index].1 += tokens;
        }
        self.running[worker].chunks = chunks;
        // Each replica ends its own prompts, whatever others are still at.
        let (requests, mut through) = (self.requests, Vec::new());
        self.running[worker].prompts.retain(|&(request, done)| {
            let ends = done >= requests[request].input;
            through.extend(ends.then_some(request));
            !ends
        });
        for request in through {
            self.prefilled(worker, request);
        }
        if freed {
            self.place();
        }
        self.start_step(worker);
        // Other micro-batches may wait for memory that this one had.
        if self.workers[worker].stages > 1 {
            self.wake();
        }
    }

    /// A prompt is through: the worker that did it goes on with it, or it waits for a decoder.
    fn prefilled(&mut self, worker: usize, request: usize) {
        self.outcome.served[request].prefilled = self.now;
        self.keep(worker, request);
        if self.workers[worker].role == Role::Both {
            self.at[request].1 = worker;
            self.go_on(request);
        } else if self.reserved[request] {
            self.hand_off(request, self.outcome.served[request].begun);
        } else {
            self.ready.push_back(request);
            self.place();
        }
    }

    /// The first token of a request is there: its decoder makes the others.
    fn go_on(&mut self, request: usize) {
        let worker = self.at[request].1;
        self.outcome.served[request].first = self.now;
        if self.requests[request].output <= 1 {
            self.outcome.served[request].last = self.now;
            self.release(worker, request);
        } else {
            self.running[worker].joining.push(request);
        }
    }

    /// Gives prefilled requests to decoders that have memory for them.
    fn place(&mut self) {
        while let Some(&request) = self.ready.front() {
            if self.decoder(request).is_none() {
                break;
            }
            self.ready.pop_front();
            self.hand_off(request, self.now);
        }
    }

    /// Reserves memory of a decoder for a request, the one with the most of it.
    fn decoder(&mut self, request: usize) -> Option<usize> {
        let fits = |w: &usize| self.workers[*w].role == Role::Decode && self.fits(*w, request);
        let decoder = (0..self.workers.len()).filter(fits).max_by_key(|w| self.free(*w))?;
        self.reserve(decoder, request);
        self.at[request].1 = decoder;
        Some(decoder)
    }

    /// Sends the cache of a prompt that is through now; its layers go from `since` on, the last one after the prompt's end.
    fn hand_off(&mut self, request: usize, since: u64) {
        let (sender, decoder) = self.at[request];
        let tokens = self.requests[request].input;
        let free = [sender, decoder].map(|worker| self.running[worker].link().map_or(0, |link| *link));
        let start = since.max(free[0]).max(free[1]);
        let slows = [sender, decoder].map(|worker| self.running[worker].sharing.slows(HAND_OFF, self.now));
        let mut end = start + ns(self.machine.hand_off(sender, decoder, tokens) * slows[0].max(slows[1]));
        if since < self.now {
            end = end.max(self.now + ns(self.machine.last_layer(sender, decoder, tokens)));
        }
        for worker in [sender, decoder] {
            self.running[worker].link().into_iter().for_each(|link| *link = end);
            self.running[worker].sharing.fly(HAND_OFF, (start.max(self.now), end), self.now);
        }
        self.events.push(Reverse((end, Event::HandedOff(request))));
    }

    /// A cache is at its decoder.
    fn arrive(&mut self, request: usize) {
        let (sender, decoder) = self.at[request];
        self.release(sender, request);
        self.go_on(request);
        if !self.running[decoder].works {
            self.start_step(decoder);
        }
        if self.requests[request].output <= 1 {
            self.place();
        }
        self.wake();
    }
}

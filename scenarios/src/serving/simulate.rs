//! Requests through workers, event by event.
//!
//! Prompts wait in one queue. A worker that prefills takes from it at the start of a step, as far as its budget of tokens and
//! its memory go, and works on them chunk by chunk; a worker that does both first gives each running request its next token.
//! Between workers, a decoder reserves memory before the transfer runs, and each worker sends or receives one cache at a
//! time. Memory is reserved for a whole request, so that none is ever put off (TensorRT-LLM's `GUARANTEED_NO_EVICT`).
//!
//! A step costs the same work however many requests it runs: their ends are known in steps, their context as a sum.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use thiserror::Error;

use super::arrivals::Request;

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
    /// Blocks of its cache.
    pub blocks: u64,
}

/// How workers make up a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Tokens of a step at most, those of running requests first (vLLM `max_num_batched_tokens`).
    pub chunk: u64,
    /// Prompts that a worker has begun at most (vLLM `max_num_partial_prefills` and what fits beside them).
    pub prompts: usize,
    /// Requests of a worker at most (vLLM `max_num_seqs`).
    pub running: u64,
    /// Tokens of a block of the cache.
    pub block: u64,
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
    /// Seconds of a step of a worker with this number.
    fn step(&mut self, worker: usize, batch: &Batch<'_>) -> f64;
    /// Seconds of the way of a cache of so many tokens from a prefill worker to a decoder.
    fn hand_off(&mut self, tokens: u64) -> f64;
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
    /// By worker: most blocks that were in use.
    pub peak: Vec<u64>,
    /// By worker: blocks in use at the end.
    pub left: Vec<u64>,
    /// Steps of all workers.
    pub steps: u64,
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
    used: u64,
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
    /// When its link is free.
    link: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    StepEnds(usize),
    HandedOff(usize),
}

struct Run<'r, M> {
    requests: &'r [Request],
    workers: &'r [Worker],
    policy: Policy,
    machine: &'r mut M,
    now: u64,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    running: Vec<Running>,
    waiting: VecDeque<usize>,
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
    let run = Run {
        requests,
        workers,
        policy,
        machine,
        now: 0,
        events: BinaryHeap::new(),
        running: workers.iter().map(|_| Running::default()).collect(),
        waiting: VecDeque::new(),
        ready: VecDeque::new(),
        at: vec![(0, 0); requests.len()],
        outcome: Outcome {
            served: vec![Served::default(); requests.len()],
            busy: vec![0; workers.len()],
            peak: vec![0; workers.len()],
            ..Outcome::default()
        },
    };
    run.run()
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
                    self.waiting.push_back(index);
                    self.wake();
                }
                continue;
            }
            match self.events.pop() {
                Some(Reverse((_, Event::StepEnds(worker)))) => self.end_step(worker),
                Some(Reverse((_, Event::HandedOff(request)))) => self.arrive(request),
                None => {}
            }
            if self.outcome.steps > self.policy.steps {
                return Err(ServingError::TooMany(self.policy.steps));
            }
        }
        self.outcome.left = self.running.iter().map(|worker| worker.used).collect();
        Ok(self.outcome)
    }

    fn blocks(&self, tokens: u64) -> u64 {
        tokens.div_ceil(self.policy.block)
    }

    /// Tokens that a request takes of a worker's memory.
    fn tokens(&self, worker: usize, request: usize) -> u64 {
        let Request { input, output, .. } = self.requests[request];
        if self.workers[worker].role == Role::Prefill { input } else { input + output }
    }

    fn fits(&self, worker: usize, request: usize) -> bool {
        let running = &self.running[worker];
        let needs = self.blocks(self.tokens(worker, request));
        running.held < self.policy.running && running.used + needs <= self.workers[worker].blocks
    }

    fn hold(&mut self, worker: usize, request: usize) {
        let needs = self.blocks(self.tokens(worker, request));
        let running = &mut self.running[worker];
        running.used += needs;
        running.held += 1;
        self.outcome.peak[worker] = self.outcome.peak[worker].max(running.used);
    }

    fn release(&mut self, worker: usize, request: usize) {
        let needs = self.blocks(self.tokens(worker, request));
        let running = &mut self.running[worker];
        running.used -= needs;
        running.held -= 1;
    }

    /// Lets an idle worker that prefills begin, the one with the most free memory.
    fn wake(&mut self) {
        let Some(&request) = self.waiting.front() else { return };
        let can = |w: &usize| self.workers[*w].role != Role::Decode && self.fits(*w, request);
        let idle = |w: &usize| !self.running[*w].works && can(w);
        let free = |w: &usize| (self.workers[*w].blocks - self.running[*w].used, Reverse(*w));
        if let Some(worker) = (0..self.workers.len()).filter(idle).max_by_key(free) {
            self.start_step(worker);
        }
    }

    fn start_step(&mut self, worker: usize) {
        for request in std::mem::take(&mut self.running[worker].joining) {
            let Request { input, output, .. } = self.requests[request];
            let running = &mut self.running[worker];
            running.decodes += 1;
            running.context += input + 1;
            running.ends.push(Reverse((running.step + output - 1, request)));
        }
        let mut left = self.policy.chunk.saturating_sub(self.running[worker].decodes);
        let mut chunks = std::mem::take(&mut self.running[worker].chunks);
        chunks.clear();
        while left > 0 {
            let next = chunks.len();
            if next == self.running[worker].prompts.len() && !self.take(worker) {
                break;
            }
            let (request, done) = self.running[worker].prompts[next];
            let tokens = left.min(self.requests[request].input - done);
            chunks.push((tokens, done));
            left -= tokens;
        }
        let running = &mut self.running[worker];
        running.chunks = chunks;
        running.works = running.decodes > 0 || !running.chunks.is_empty();
        if running.works {
            let batch = Batch { prompts: &running.chunks, decodes: running.decodes, context: running.context };
            let lasts = ns(self.machine.step(worker, &batch)).max(1);
            self.outcome.busy[worker] += lasts;
            self.outcome.steps += 1;
            self.events.push(Reverse((self.now + lasts, Event::StepEnds(worker))));
        }
    }

    /// Takes a prompt from the queue, if there is one and it fits.
    fn take(&mut self, worker: usize) -> bool {
        let begun = self.running[worker].prompts.len() >= self.policy.prompts;
        let Some(&request) = self.waiting.front() else { return false };
        if begun || self.workers[worker].role == Role::Decode || !self.fits(worker, request) {
            return false;
        }
        self.waiting.pop_front();
        self.hold(worker, request);
        self.at[request].0 = worker;
        self.outcome.served[request].begun = self.now;
        self.running[worker].prompts.push_back((request, 0));
        true
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
        while let Some(&(request, done)) = self.running[worker].prompts.front() {
            if done < self.requests[request].input {
                break;
            }
            self.running[worker].prompts.pop_front();
            self.prefilled(worker, request);
        }
        if freed {
            self.place();
        }
        self.start_step(worker);
    }

    /// A prompt is through: the worker that did it goes on with it, or it waits for a decoder.
    fn prefilled(&mut self, worker: usize, request: usize) {
        self.outcome.served[request].prefilled = self.now;
        if self.workers[worker].role == Role::Both {
            self.at[request].1 = worker;
            self.go_on(request);
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

    /// Gives prefilled requests to decoders that have memory for them, the one with the most of it first.
    fn place(&mut self) {
        while let Some(&request) = self.ready.front() {
            let fits = |w: &usize| self.workers[*w].role == Role::Decode && self.fits(*w, request);
            let free = |w: &usize| (self.workers[*w].blocks - self.running[*w].used, Reverse(*w));
            let Some(decoder) = (0..self.workers.len()).filter(fits).max_by_key(free) else { break };
            self.ready.pop_front();
            self.hold(decoder, request);
            let sender = self.at[request].0;
            self.at[request].1 = decoder;
            let start = self.now.max(self.running[sender].link).max(self.running[decoder].link);
            let end = start + ns(self.machine.hand_off(self.requests[request].input));
            (self.running[sender].link, self.running[decoder].link) = (end, end);
            self.events.push(Reverse((end, Event::HandedOff(request))));
        }
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

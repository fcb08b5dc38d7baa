//! Queues against closed forms, and what no run may do.

use std::collections::HashMap;

use proptest::prelude::*;

use super::arrivals::{Prefixes, Request, exponential, mooncake, poisson, share, trace};
use super::beside::{Beside, Taken, WAYS};
use super::prefix::{Part, Tiers};
use super::simulate::{Batch, Machine, Outcome, Policy, Role, Route, ServingError, Worker, simulate};
use super::summary::{Objective, summarise};

/// Seconds of a token of a prompt, of a step, of a token's way.
struct Linear {
    token: f64,
    step: f64,
    way: f64,
    /// From host memory and from drives.
    fetch: [f64; 2],
    /// What steps and transfers cost each other, in parts of a step.
    beside: Beside,
}

/// Steps and transfers that share nothing.
const NONE: Beside = Beside { longer: 0.0, lost: 0.0 };
/// Layers of a cache.
const LAYERS: f64 = 50.0;

impl Machine for Linear {
    fn step(&mut self, _: usize, batch: &Batch<'_>) -> Taken {
        let prompts: u64 = batch.prompts.iter().map(|prompt| prompt.0).sum();
        let seconds = self.step + prompts as f64 * self.token + batch.context as f64 * 1e-9;
        let beside = Beside { longer: self.beside.longer * seconds, lost: self.beside.lost * seconds };
        Taken { seconds, beside: [beside; WAYS] }
    }

    fn hand_off(&mut self, _: usize, _: usize, tokens: u64) -> f64 {
        tokens as f64 * self.way
    }

    fn last_layer(&mut self, _: usize, _: usize, tokens: u64) -> f64 {
        tokens as f64 * self.way / LAYERS
    }

    fn fetch(&mut self, _: usize, tier: usize, tokens: u64) -> f64 {
        tokens as f64 * self.fetch[tier - 1]
    }
}

const ALONE: Policy = Policy {
    chunk: u64::MAX,
    prompts: 1,
    running: u64::MAX,
    block: 16,
    route: Route::Queue,
    by_layers: false,
    steps: u64::MAX,
};

fn workers(role: Role, count: usize) -> Vec<Worker> {
    workers_of(role, count, 1 << 40)
}

fn workers_of(role: Role, count: usize, blocks: u64) -> Vec<Worker> {
    (0..count).map(|pipe| Worker::new(role, blocks, pipe)).collect()
}

/// Mean wait of requests of one output token, whose prompts take `token` seconds a token.
fn mean_wait(requests: &[Request], servers: usize, token: f64) -> f64 {
    let mut machine = Linear { token, step: 0.0, way: 0.0, fetch: [0.0; 2], beside: NONE };
    let outcome = simulate(requests, &workers(Role::Both, servers), ALONE, &mut machine).unwrap();
    let waits = outcome.served.iter().map(|s| (s.begun - s.arrived) as f64 * 1e-9);
    waits.sum::<f64>() / requests.len() as f64
}

/// Goal: prompts of one length at one worker wait as in M/D/1: rho s / 2 (1 - rho).
#[test]
fn a_worker_of_equal_prompts_is_an_m_d_1_queue() {
    for rho in [0.3, 0.6, 0.8] {
        let requests = poisson(rho * 10.0, 1.8e5 / rho / 1.0, (1000, 1), 7);
        let expected = rho * 0.1 / (2.0 * (1.0 - rho));
        let found = mean_wait(&requests, 1, 1e-4);
        assert!((found / expected - 1.0).abs() < 0.01, "{rho}: {found} {expected}, {} requests", requests.len());
    }
}

/// Goal: prompts of exponential length at c workers wait as in M/M/c: Erlang's C formula.
#[test]
fn workers_of_exponential_prompts_are_an_m_m_c_queue() {
    for (servers, rho) in [(1, 0.5), (4, 0.7), (8, 0.8)] {
        let load = servers as f64 * rho;
        let mut requests = poisson(10.0 * load, 1.9e6 / 10.0 / load, (1, 1), 11);
        for (index, request) in (0..).zip(&mut requests) {
            request.input = ((exponential(11, 1, index) * 1e6).ceil() as u64).max(1);
        }
        let (mut term, mut sum) = (1.0, 0.0);
        for k in 0..servers {
            sum += term;
            term *= load / f64::from(k + 1);
        }
        let waits = term / (1.0 - rho) / (sum + term / (1.0 - rho));
        let expected = waits * 0.1 / (f64::from(servers) * (1.0 - rho));
        let found = mean_wait(&requests, servers as usize, 1e-7);
        assert!((found / expected - 1.0).abs() < 0.01, "{servers} {rho}: {found} {expected}");
    }
}

/// Goal: a request alone takes its prompt's steps, its way and a step a token, each once.
#[test]
fn a_request_alone_takes_the_sum_of_its_parts() {
    let requests = [Request { at: 1.0, input: 1000, output: 11, prefix: None }];
    let mut machine = Linear { token: 1e-3, step: 0.5, way: 1e-4, fetch: [0.0; 2], beside: NONE };
    let policy =
        Policy { chunk: 400, prompts: 8, running: 8, block: 16, route: Route::Queue, by_layers: false, steps: 100 };
    let both = simulate(&requests, &workers(Role::Both, 1), policy, &mut machine).unwrap().served[0];
    // Three chunks, then ten steps of contexts 1001 to 1010.
    assert_eq!(both.first - both.arrived, 2_500_000_000);
    assert_eq!(both.last - both.first, 5_000_000_000 + (1001..=1010).sum::<u64>());
    let apart = [Worker::new(Role::Prefill, 1 << 40, 0), Worker::new(Role::Decode, 1 << 40, 1)];
    let apart = simulate(&requests, &apart, policy, &mut machine).unwrap().served[0];
    assert_eq!(apart.first - apart.prefilled, 100_000_000);
    assert_eq!(apart.last - apart.first, both.last - both.first);
}

/// Goal: each replica ends its own prompts: a short one is through after its step, while another replica is still at a long one
/// that came before.
#[test]
fn a_replica_waits_for_no_prompt_of_another() {
    let of = |at: f64, input: u64| Request { at, input, output: 3, prefix: None };
    let requests = [of(0.0, 1000), of(0.5, 100)];
    let replicated = |role, pipe| Worker { replicas: 2, ..Worker::new(role, 1 << 40, pipe) };
    let policy = Policy { chunk: 100, prompts: 8, ..ALONE };
    for fleet in [vec![replicated(Role::Both, 0)], vec![replicated(Role::Prefill, 0), replicated(Role::Decode, 1)]] {
        let mut machine = Linear { token: 0.0, step: 1.0, way: 0.0, fetch: [0.0; 2], beside: NONE };
        let served = simulate(&requests, &fleet, policy, &mut machine).unwrap().served;
        // Steps end at whole seconds, but for what contexts take.
        let ends: Vec<u64> = served.iter().map(|served| served.prefilled / 1_000_000_000).collect();
        assert_eq!(ends, [10, 2]);
        assert_eq!(served[1].last / 1_000_000_000, 4);
    }
}

/// Goal: a hand-off and the steps of its decoder cost each other what they share: the step at work and those that begin
/// meanwhile take longer by the part that the transfer covers, and the transfer by what it loses in them.
#[test]
fn steps_and_transfers_slow_each_other() {
    // A decodes in steps of 1 s from 1.1 s on; the cache of B comes from 2.0 s on.
    let of = |at: f64, output: u64| Request { at, input: 1000, output, prefix: None };
    let requests = [of(0.0, 4), of(1.0, 2)];
    let fleet = [Worker::new(Role::Prefill, 1 << 40, 0), Worker::new(Role::Decode, 1 << 40, 1)];
    let policy = Policy { steps: 100, ..ALONE };
    let run = |beside: Beside| {
        // Contexts are free: a step is one second.
        struct Apart(Linear);
        impl Machine for Apart {
            fn step(&mut self, worker: usize, batch: &Batch<'_>) -> Taken {
                // What they share is at the decoder.
                let batch = Batch { context: 0, ..*batch };
                let taken = self.0.step(worker, &batch);
                if worker == 0 { Taken::alone(1.0) } else { taken }
            }
            fn hand_off(&mut self, _: usize, _: usize, tokens: u64) -> f64 {
                tokens as f64 * self.0.way
            }
        }
        let machine = Linear { token: 0.0, step: 1.0, way: 1e-4, fetch: [0.0; 2], beside };
        simulate(&requests, &fleet, policy, &mut Apart(machine)).unwrap().served
    };
    let alone = run(NONE);
    assert_eq!([alone[0].first, alone[1].first, alone[0].last], [1_100_000_000, 2_100_000_000, 4_100_000_000]);
    // Twice as long while a transfer runs, which gets on at a quarter of its rate: lost 1.5 s of 2 s. It begins at 2.0 s
    // and takes 0.4 s, of which 0.1 s make A's first step 0.1 s longer, and that in turn is 0.1 s more of the transfer.
    let shared = run(Beside { longer: 1.0, lost: 1.5 });
    assert_eq!(shared[1].first, 2_400_000_000);
    let first_step = 2_100_000_000 + 100_000_000;
    // The second covers what is left of the transfer, 0.2 s of it.
    let second_step = first_step + 1_000_000_000 + 200_000_000;
    assert_eq!(shared[0].last, second_step + 1_000_000_000);
}

/// Goal: a router sends prompts that share a prefix to the worker that has it, unless that has too much to do. Prefixes that
/// one worker has no room for are dealt: more tokens come from memory than with one queue, and no worker is left idle.
#[test]
fn a_router_prefers_who_knows_the_prefix() {
    let mut requests = poisson(20.0, 200.0, (1000, 20), 5);
    share(&mut requests, Prefixes { count: 40, tokens: 900, skew: 0.0 }, 5);
    let fleet = workers_of(Role::Both, 4, 1000);
    let run = |route| {
        let policy =
            Policy { chunk: 1000, prompts: 8, running: 64, block: 16, route, by_layers: false, steps: u64::MAX };
        let mut machine = Linear { token: 4e-4, step: 1e-3, way: 0.0, fetch: [0.0; 2], beside: NONE };
        simulate(&requests, &fleet, policy, &mut machine).unwrap()
    };
    let (queue, prefix) = (run(Route::Queue), run(Route::Prefix));
    assert!(prefix.reuse.hits[0] as f64 > 1.3 * queue.reuse.hits[0] as f64, "{:?} {:?}", prefix.reuse, queue.reuse);
    let busy = |outcome: &Outcome| outcome.busy.iter().map(|&busy| busy as f64).fold(f64::INFINITY, f64::min);
    let most = prefix.busy.iter().max().copied().unwrap_or(0) as f64;
    assert!(busy(&prefix) > 0.4 * most, "{:?}", prefix.busy);
}

/// Goal: layers that go beside a prefill leave the last one to wait for where the way is faster than the prompt, and the way's
/// whole time from the prompt's start on where it is slower.
#[test]
fn layers_go_beside_the_prefill() {
    let requests = [Request { at: 0.0, input: 1000, output: 2, prefix: None }];
    let fleet = [Worker::new(Role::Prefill, 100, 0), Worker::new(Role::Decode, 100, 1)];
    let policy =
        Policy { chunk: 250, prompts: 1, running: 8, block: 16, route: Route::Queue, by_layers: true, steps: 100 };
    // Four steps of 0.25 s.
    for (way, waits) in [(0.5e-3, 0.5 / LAYERS), (3e-3, 2.0)] {
        let mut machine = Linear { token: 1e-3, step: 0.0, way, fetch: [0.0; 2], beside: NONE };
        let served = simulate(&requests, &fleet, policy, &mut machine).unwrap().served[0];
        assert_eq!(served.prefilled, 1_000_000_000);
        assert_eq!(served.first - served.prefilled, (waits * 1e9_f64).round() as u64);
    }
}

/// Goal: micro-batches take turns in the stages of a pipeline: each step takes as long as without stages, and as many of them
/// run at once as there are stages.
#[test]
fn stages_of_a_pipeline_work_on_several_steps_at_once() {
    let requests: Vec<Request> = (0..4).map(|_| Request { at: 0.0, input: 100, output: 1, prefix: None }).collect();
    let ends = |stages: u32| {
        let worker = Worker { stages, ..Worker::new(Role::Both, 1 << 40, 0) };
        let mut machine = Linear { token: 1e-2, step: 0.0, way: 0.0, fetch: [0.0; 2], beside: NONE };
        let outcome = simulate(&requests, &vec![worker; stages as usize], ALONE, &mut machine).unwrap();
        let mut ends: Vec<u64> = outcome.served.iter().map(|served| served.last / 1_000_000).collect();
        ends.sort_unstable();
        (ends, outcome.busy.iter().sum::<u64>())
    };
    assert_eq!(ends(1), (vec![1000, 2000, 3000, 4000], 4_000_000_000));
    assert_eq!(ends(4), (vec![1000, 1250, 1500, 1750], 1_000_000_000));
}

/// Goal: micro-batches share the memory of their pipeline: one request may have all of it, another waits until it is free, and a
/// limit of requests counts those of all micro-batches.
#[test]
fn micro_batches_share_the_memory_of_their_pipeline() -> Result<(), ServingError> {
    let requests = [0.0, 1.0].map(|at| Request { at, input: 1500, output: 1, prefix: None });
    let worker = |blocks| vec![Worker { stages: 4, ..Worker::new(Role::Both, blocks, 0) }; 4];
    let run = |blocks: u64, policy: Policy| {
        let mut machine = Linear { token: 1e-2, step: 0.0, way: 0.0, fetch: [0.0; 2], beside: NONE };
        let outcome = simulate(&requests, &worker(blocks), policy, &mut machine)?;
        let begun = outcome.served.iter().map(|served| served.begun / 1_000_000);
        Ok::<_, ServingError>((begun.collect::<Vec<u64>>(), outcome.peak))
    };
    for route in [Route::Queue, Route::Prefix] {
        let policy = Policy { route, ..ALONE };
        assert_eq!(run(100, policy)?, (vec![0, 15_000], vec![94]));
        assert_eq!(run(200, policy)?, (vec![0, 1000], vec![188]));
        assert_eq!(run(200, Policy { running: 1, ..policy })?.0, [0, 15_000]);
    }
    Ok(())
}

/// Goal: tokens a second are those that were asked for where workers keep up, however long the last request takes, and what the
/// workers make where they do not.
/// Method: every step takes 0.1 s, so that a request of 21 tokens takes 2.1 s; five a second arrive.
#[test]
fn tokens_a_second_are_those_of_the_steady_state() -> Result<(), ServingError> {
    let made = |running: u64, seconds: f64| {
        let requests = poisson(5.0, seconds, (100, 21), 1);
        let mut machine = Linear { token: 0.0, step: 0.1, way: 0.0, fetch: [0.0; 2], beside: NONE };
        let policy = Policy { running, ..ALONE };
        let outcome = simulate(&requests, &workers(Role::Both, 1), policy, &mut machine)?;
        let summary = summarise(&requests, &outcome, Objective::new(1.0, 1.0), seconds);
        Ok::<_, ServingError>((summary.tokens_per_s * seconds, 21.0 * requests.len() as f64, summary.tokens_per_s))
    };
    for seconds in [20.0, 200.0] {
        let (made, asked, _) = made(1000, seconds)?;
        assert!((made / asked - 1.0).abs() < 1e-9, "{made} {asked}");
    }
    // One at a time: 21 tokens in 21 steps.
    let (_, _, rate) = made(1, 20.0)?;
    assert!((rate / 10.0 - 1.0).abs() < 0.1, "{rate}");
    Ok(())
}

/// Goal: a prefix is computed once and then taken from GPU memory; where that has no room, from host memory if that is faster
/// than to compute it, else it is computed again.
#[test]
fn prefixes_are_computed_once_and_fetched_where_that_pays() {
    let of = |at: f64, key: u64| {
        let parts = [Part { key, tokens: 480 }];
        Request { at, input: 500, output: 1, prefix: Some(parts.into()) }
    };
    let policy =
        Policy { chunk: 1000, prompts: 1, running: 8, block: 16, route: Route::Queue, by_layers: false, steps: 100 };
    let run = |blocks: u64, host: u64, fetch: f64| {
        // A, A again, B, then A once more.
        let requests = [of(0.0, 1), of(10.0, 1), of(20.0, 2), of(30.0, 1)];
        let worker = Worker { tiers: [host, 0], ..Worker::new(Role::Both, blocks, 0) };
        let mut machine = Linear { token: 1e-3, step: 0.0, way: 0.0, fetch: [fetch, 0.0], beside: NONE };
        let outcome = simulate(&requests, &[worker], policy, &mut machine).unwrap();
        let times: Vec<u64> = outcome.served.iter().map(|s| (s.first - s.arrived) / 1_000_000).collect();
        (times, outcome.reuse)
    };
    let (times, reuse) = run(1000, 0, 0.0);
    assert_eq!((times, reuse.hits), (vec![500, 20, 500, 20], [960, 0, 0]));
    // Room for one request at a time: B takes A's.
    let (times, reuse) = run(32, 0, 0.0);
    assert_eq!((times, reuse.hits, reuse.dropped), (vec![500, 20, 500, 500], [480, 0, 0], 960));
    let (times, reuse) = run(32, 100, 1e-4);
    assert_eq!((times, reuse.hits, reuse.written), (vec![500, 20, 500, 68], [480, 480, 0], [0, 960, 0]));
    let (times, reuse) = run(32, 100, 2e-3);
    assert_eq!((times, reuse.hits, reuse.recomputed), (vec![500, 20, 500, 500], [480, 0, 0], 480));
}

/// Goal: Mooncake's traces are read: pages of 512 tokens, the last one as long as the prompt; slips are named by their line.
#[test]
fn traces_of_mooncake_are_read() {
    let line = r#"{"timestamp": 27482, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 2353]}"#;
    let read = mooncake(&format!("{line}\n")).unwrap();
    assert_eq!((read[0].at, read[0].input, read[0].output), (27.482, 1100, 52));
    assert_eq!(read[0].parts().map(|part| part.tokens).collect::<Vec<_>>(), [512, 512, 76]);
    for (text, line) in [
        ("{}", 1),
        (&format!("{line}\n{}", line.replace("1100", "1000")), 2),
        (&line.replace("27482", "-1"), 1),
        (&line.replace("1100", "0"), 1),
    ] {
        assert_eq!(mooncake(text).unwrap_err().line, line, "{text}");
    }
}

/// Goal: traces are read with or without names, in the order of arrival, and slips are named by their line.
#[test]
fn traces_are_read_and_slips_named() {
    let read = trace("seconds,input,output\n2,10,3\n# a comment\n0.5, 7, 1\n").unwrap();
    assert_eq!(read[0], Request { at: 0.5, input: 7, output: 1, prefix: None });
    assert_eq!(read.len(), 2);
    // In the order that names say.
    let named = trace("input_tokens,output_tokens,arrival_s\n10,3,2\n7,1,0.5\n");
    assert_eq!(named.ok().as_ref(), Some(&read));
    for name in ["timestamp_ms", "Timestamp(ms)", "arrivalMs", "ms"] {
        let in_ms = trace(&format!("{name},input,output\n2000,10,3\n500,7,1\n"));
        assert_eq!(in_ms.ok().as_ref(), Some(&read), "{name}");
    }
    for name in ["a", "request_id", "time_us", "time (us)", "arrival_usec", "arrivalMicros", "items", "duration_ms"] {
        let names = format!("{name},prompt_tokens,output_tokens");
        assert_eq!(trace(&format!("{names}\n2,10,3\n")).unwrap_err().line, 1, "{names}");
    }
    for (text, line) in [("1,2\n", 1), ("1,2,3\nx,2,3\n", 2), ("1,0,3\n", 1), ("-1,2,3\n", 1), ("1,2,nan\n", 1)] {
        assert_eq!(trace(text).unwrap_err().line, line, "{text}");
    }
}

/// Goal: drawn prefixes are as often as asked for, and what is left of a prompt is its own.
#[test]
fn prefixes_are_drawn_by_their_skew() {
    let mut requests = poisson(100.0, 100.0, (1000, 1), 3);
    share(&mut requests, Prefixes { count: 4, tokens: 600, skew: 1.0 }, 3);
    let mut counts: HashMap<u64, f64> = HashMap::new();
    for request in &requests {
        let parts: Vec<Part> = request.parts().collect();
        assert_eq!(parts.iter().map(|part| part.tokens).collect::<Vec<_>>(), [600, 400]);
        *counts.entry(parts[0].key).or_default() += 1.0 / requests.len() as f64;
    }
    let mut found: Vec<f64> = counts.into_values().collect();
    found.sort_by(|a, b| b.total_cmp(a));
    // 1, 1/2, 1/3, 1/4 of 25/12.
    for (found, expected) in found.iter().zip([0.48, 0.24, 0.16, 0.12]) {
        assert!((found - expected).abs() < 0.02, "{found} {expected}");
    }
}

fn layout() -> impl Strategy<Value = Vec<Worker>> {
    let counts = (0..3_usize, 0..3_usize, 0..3_usize);
    let some = counts.prop_filter("someone for each", |(p, d, b)| *b > 0 || (*p > 0 && *d > 0));
    // Without a decoder nobody takes what prefill workers make.
    let whole = some.prop_filter("no prefill worker alone", |(p, d, _)| (*p > 0) == (*d > 0));
    (whole, 20..200_u64, [0..60_u64, 0..60_u64], 1..4_u32, 1..3_u64).prop_map(
        |((p, d, b), blocks, tiers, stages, replicas)| {
            let roles = [(Role::Prefill, p), (Role::Decode, d), (Role::Both, b)];
            let each = roles.into_iter().flat_map(|(role, count)| std::iter::repeat_n(role, count));
            let of = |(pipe, role)| {
                let worker = Worker { tiers, stages, replicas, ..Worker::new(role, blocks, pipe) };
                std::iter::repeat_n(worker, stages as usize)
            };
            each.enumerate().flat_map(of).collect()
        },
    )
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    // Parts of 16 to 60 tokens, few enough that requests share some.
    let parts = prop::collection::vec((0..3_u64, 16..60_u64), 0..4);
    let request = (0.0..20.0, 1..200_u64, 1..100_u64, parts).prop_map(|(at, input, output, drawn)| {
        let (mut left, mut chain, mut parts) = (input, 0, Vec::new());
        for (key, tokens) in drawn {
            chain = chain * 1000 + key * 100 + tokens;
            if tokens > left {
                break;
            }
            left -= tokens;
            parts.push(Part { key: chain, tokens });
        }
        Request { at, input, output, prefix: (!parts.is_empty()).then(|| parts.into()) }
    });
    prop::collection::vec(request, 0..60).prop_map(|mut all| {
        all.sort_by(|a, b| a.at.total_cmp(&b.at));
        all
    })
}

proptest! {
    /// Goal: every request is served, its times in order; memory is never more than there is, and all free at the end; each
    /// token of a prompt is computed or comes from a tier; the same again gives the same.
    #[test]
    fn no_request_is_lost_and_no_memory(
        workers in layout(), requests in requests(), chunk in 1..500_u64, prompts in 1..5_usize, running in 1..20_u64,
        by_layers in any::<bool>(), fetch in [0.0..2e-4, 0.0..2e-4], by_prefix in any::<bool>(), longer in 0.0..2.0,
        lost in 0.0..2.0,
    ) {
        let route = if by_prefix { Route::Prefix } else { Route::Queue };
        let policy =
            Policy { chunk: chunk.max(running), prompts, running, block: 16, route, by_layers, steps: 1_000_000 };
        let mut machine = Linear { token: 1e-4, step: 0.01, way: 1e-5, fetch, beside: Beside { longer, lost } };
        let outcome = simulate(&requests, &workers, policy, &mut machine).unwrap();
        prop_assert_eq!(outcome.served.len(), requests.len());
        for served in &outcome.served {
            prop_assert!(served.arrived <= served.begun && served.begun < served.prefilled);
            prop_assert!(served.prefilled <= served.first && served.first <= served.last);
        }
        for worker in &workers {
            prop_assert!(outcome.peak[worker.pipe] <= worker.blocks);
            prop_assert_eq!(outcome.left[worker.pipe], 0);
        }
        let reuse = outcome.reuse;
        let prompts: u64 = requests.iter().map(|request| request.input).sum();
        prop_assert_eq!(reuse.hits.iter().sum::<u64>() + reuse.computed, prompts);
        prop_assert!(reuse.recomputed <= reuse.computed);
        prop_assert_eq!(simulate(&requests, &workers, policy, &mut machine).unwrap(), outcome);
    }

    /// Goal: tiers hold no more than they can, and no block is lost: what went in is in use, in a tier, or counted as gone.
    #[test]
    fn tiers_keep_count(steps in prop::collection::vec((0..20_u64, 1..9_u64, 0..40_u64), 1..200), sizes in [0..30_u64, 0..30_u64]) {
        let mut tiers = Tiers::new(sizes);
        let (mut used, mut made) = (Vec::new(), 0);
        for (key, blocks, most) in steps {
            if tiers.find(key).is_some() {
                tiers.take(key);
                used.push(key);
            } else if tiers.insert(key, blocks) {
                made += blocks;
                used.push(key);
            }
            if used.len() > 3 {
                tiers.leave(used.remove(0));
            }
            tiers.shrink(most);
            let [gpu, host, drives] = tiers.load();
            prop_assert!(gpu <= most && host <= sizes[0] && drives <= sizes[1]);
        }
        for key in used.drain(..) {
            tiers.leave(key);
        }
        prop_assert_eq!(tiers.load().iter().sum::<u64>() + tiers.dropped, made);
    }
}

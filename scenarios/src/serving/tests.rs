//! Queues against closed forms, and what no run may do.

use proptest::prelude::*;

use super::arrivals::{Request, exponential, poisson, trace};
use super::simulate::{Batch, Machine, Policy, Role, Worker, simulate};

/// Seconds of a token of a prompt, of a step, of a token's way.
struct Linear {
    token: f64,
    step: f64,
    way: f64,
}

impl Machine for Linear {
    fn step(&mut self, _: usize, batch: &Batch<'_>) -> f64 {
        let prompts: u64 = batch.prompts.iter().map(|prompt| prompt.0).sum();
        self.step + prompts as f64 * self.token + batch.context as f64 * 1e-9
    }

    fn hand_off(&mut self, tokens: u64) -> f64 {
        tokens as f64 * self.way
    }
}

const ALONE: Policy = Policy { chunk: u64::MAX, prompts: 1, running: u64::MAX, block: 16, steps: u64::MAX };

fn workers(role: Role, count: usize) -> Vec<Worker> {
    vec![Worker { role, blocks: 1 << 40 }; count]
}

/// Mean wait of requests of one output token, whose prompts take `token` seconds a token.
fn mean_wait(requests: &[Request], servers: usize, token: f64) -> f64 {
    let mut machine = Linear { token, step: 0.0, way: 0.0 };
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
    let requests = [Request { at: 1.0, input: 1000, output: 11 }];
    let mut machine = Linear { token: 1e-3, step: 0.5, way: 1e-4 };
    let policy = Policy { chunk: 400, prompts: 8, running: 8, block: 16, steps: 100 };
    let both = simulate(&requests, &workers(Role::Both, 1), policy, &mut machine).unwrap().served[0];
    // Three chunks, then ten steps of contexts 1001 to 1010.
    assert_eq!(both.first - both.arrived, 2_500_000_000);
    assert_eq!(both.last - both.first, 5_000_000_000 + (1001..=1010).sum::<u64>());
    let apart = [workers(Role::Prefill, 1), workers(Role::Decode, 1)].concat();
    let apart = simulate(&requests, &apart, policy, &mut machine).unwrap().served[0];
    assert_eq!(apart.first - apart.prefilled, 100_000_000);
    assert_eq!(apart.last - apart.first, both.last - both.first);
}

/// Goal: traces are read with or without names, in the order of arrival, and slips are named by their line.
#[test]
fn traces_are_read_and_slips_named() {
    let read = trace("seconds,input,output\n2,10,3\n# a comment\n0.5, 7, 1\n").unwrap();
    assert_eq!(read[0], Request { at: 0.5, input: 7, output: 1 });
    assert_eq!(read.len(), 2);
    for (text, line) in [("1,2\n", 1), ("1,2,3\nx,2,3\n", 2), ("1,0,3\n", 1), ("-1,2,3\n", 1), ("1,2,nan\n", 1)] {
        assert_eq!(trace(text).unwrap_err().line, line, "{text}");
    }
}

fn layout() -> impl Strategy<Value = Vec<Worker>> {
    let counts = (0..3_usize, 0..3_usize, 0..3_usize);
    let some = counts.prop_filter("someone for each", |(p, d, b)| *b > 0 || (*p > 0 && *d > 0));
    // Without a decoder nobody takes what prefill workers make.
    let whole = some.prop_filter("no prefill worker alone", |(p, d, _)| (*p > 0) == (*d > 0));
    (whole, 20..200_u64).prop_map(|((p, d, b), blocks)| {
        let of = |role, count| vec![Worker { role, blocks }; count];
        [of(Role::Prefill, p), of(Role::Decode, d), of(Role::Both, b)].concat()
    })
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let request = (0.0..20.0, 1..200_u64, 1..100_u64).prop_map(|(at, input, output)| Request { at, input, output });
    prop::collection::vec(request, 0..60).prop_map(|mut all| {
        all.sort_by(|a, b| a.at.total_cmp(&b.at));
        all
    })
}

proptest! {
    /// Goal: every request is served, its times in order; memory is never more than there is, and all free at the end; the
    /// same again gives the same.
    #[test]
    fn no_request_is_lost_and_no_memory(
        workers in layout(), requests in requests(), chunk in 1..500_u64, prompts in 1..5_usize, running in 1..20_u64,
    ) {
        let policy = Policy { chunk: chunk.max(running), prompts, running, block: 16, steps: 1_000_000 };
        let mut machine = Linear { token: 1e-4, step: 0.01, way: 1e-5 };
        let outcome = simulate(&requests, &workers, policy, &mut machine).unwrap();
        prop_assert_eq!(outcome.served.len(), requests.len());
        for served in &outcome.served {
            prop_assert!(served.arrived <= served.begun && served.begun < served.prefilled);
            prop_assert!(served.prefilled <= served.first && served.first <= served.last);
        }
        for (index, worker) in workers.iter().enumerate() {
            prop_assert!(outcome.peak[index] <= worker.blocks);
            prop_assert_eq!(outcome.left[index], 0);
        }
        prop_assert_eq!(simulate(&requests, &workers, policy, &mut machine).unwrap(), outcome);
    }
}

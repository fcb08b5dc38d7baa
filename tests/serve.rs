//! Goal: serving a model follows from what its kernels, exchanges and transfers take, for whole commands.
//! Method: loads on built-in machines against bounds that hold for any engine, published arithmetic of a cache, and what
//! users give that makes no sense.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

mod common;

use collcast::Watch;
use collcast::serve::{Fleet, Group, Load, Outcome, Request, break_even, serve, split};
use common::collcast;

const EIGHT: Group = Group { workers: 1, tensor: 8 };

fn at(rate: f64, seconds: f64) -> Load {
    Load::Poisson { rate, seconds, input: 2048, output: 256, seed: 1 }
}

fn run(fleet: Fleet, load: Load) -> Outcome {
    serve(&Request { fleet, load, ..Request::new("llama3-70b", "dgx-h100") }).unwrap()
}

/// Goal: steps take no less than memory and tensor cores allow, and not much more: of Llama 3 70B on 8 H100 a token reads
/// 141 GB of weights at 3.35 TB/s each, a prompt of 2,048 tokens multiplies by 139 GFLOP a token at 989 TFLOP/s each.
#[test]
fn a_lone_request_is_near_the_bounds_of_its_gpus() {
    let outcome = run(Fleet::Aggregated(EIGHT), at(0.01, 2000.0));
    let (token, prompt) = (141.1e9 / 8.0 / 3.352e12, 2048.0 * 139e9 / 8.0 / 989.4e12);
    let (tpot, ttft) = (outcome.summary.tpot.p50, outcome.summary.ttft.p50);
    assert!(tpot > token && tpot < 2.5 * token, "{tpot} {token}");
    assert!(ttft > prompt && ttft < 3.5 * prompt, "{ttft} {prompt}");
    assert_eq!(outcome.summary.met, 1.0);
}

/// Goal: decoders that no prompt disturbs are steadier; a prefill worker beyond its capacity lets the queue grow.
#[test]
fn fleets_do_what_their_workers_can() {
    let apart = Fleet::Disaggregated { prefill: EIGHT, decode: EIGHT };
    let (both, apart) =
        (run(Fleet::Aggregated(Group { workers: 2, tensor: 8 }), at(6.0, 300.0)), run(apart, at(6.0, 300.0)));
    assert!(apart.summary.tpot.p99 < both.summary.tpot.p99);
    assert!(apart.summary.ttft.p50 > both.summary.ttft.p50 && apart.summary.hand_off.p50 > 0.0);
    assert_eq!(apart.path.as_deref(), Some("rdma"));
    let busy = |rate: f64| run(Fleet::Disaggregated { prefill: EIGHT, decode: EIGHT }, at(rate, 300.0));
    let (under, over) = (busy(8.0), busy(14.0));
    assert!(under.summary.queue.p99 < 5.0 && over.summary.queue.p99 > 30.0, "{:?}", over.summary);
    assert!(over.workers[0].busy > 0.98);
}

/// Goal: the split that is called best is the best of all, and is what `serve` says of it; the same seed gives the same.
#[test]
fn the_best_split_is_on_top() {
    let request = Request { load: at(16.0, 60.0), ..Request::new("llama3-70b", "dgx-h100") };
    let found = split(&request, Group { workers: 4, tensor: 8 }, &Watch::default()).unwrap();
    assert_eq!(found.candidates.len(), 4);
    let goodput: Vec<f64> =
        found.candidates.iter().map(|c| c.outcome.as_ref().map_or(-1.0, |o| o.summary.goodput)).collect();
    assert!(goodput.is_sorted_by(|a, b| a >= b), "{goodput:?}");
    let best = &found.candidates[0];
    let again = serve(&Request { fleet: best.fleet, ..request }).unwrap();
    assert_eq!(again.summary, best.outcome.as_ref().unwrap().summary);
}

/// Goal: an hour of 100 requests a second over 64 GPUs is simulated whole, in as many steps as its workers have time for.
#[test]
fn an_hour_of_a_large_fleet_is_simulated() {
    let load = Load::Poisson { rate: 100.0, seconds: 3600.0, input: 2048, output: 256, seed: 3 };
    let outcome = run(Fleet::Aggregated(Group { workers: 8, tensor: 8 }), load);
    assert!((outcome.summary.requests as f64 / 360_000.0 - 1.0).abs() < 0.01);
    assert!(outcome.summary.whole.p50 > 0.0);
}

/// Goal: the published arithmetic of a cache: 32k tokens of Llama 3 70B are 10.74 GB, 1.34 GB a GPU, 27 ms from host memory
/// over PCIe 5; to compute them again takes more than a second.
#[test]
fn a_cache_from_host_memory_beats_computing_it_again() {
    let request = Request::new("llama3-70b", "dgx-h100");
    let found = break_even(&request, EIGHT, 4).unwrap();
    let long = found.lengths.iter().find(|length| length.tokens == 32768).unwrap();
    assert_eq!(long.bytes, 10_737_418_240);
    assert!((long.fetch[0] / 0.027 - 1.0).abs() < 0.05, "{long:?}");
    assert!((1.24..2.0).contains(&long.recompute), "{long:?}");
    assert_eq!(found.from(0), Some(128));
    let slow = break_even(&request, EIGHT, 1).unwrap();
    assert!(slow.lengths.last().unwrap().fetch[1] > 3.9 * found.lengths.last().unwrap().fetch[1]);
}

/// Goal: what makes no sense is refused with the way out, and exit code 2.
#[test]
fn slips_are_refused() {
    for (args, says) in [
        ("llama3-70b --aggregated 1x1", "take 141 GB of each of 1 GPUs"),
        ("llama3-70b --aggregated 1x3", "64 heads are not shared evenly by 3 GPUs"),
        ("llama3-70b --aggregated 1x16", "span hosts of 8"),
        ("llama3-70b --aggregated 8", "workers look like 4x8"),
        ("llama3-70b --prefill 1x8", "--decode"),
        ("llama3-70b --rate 0", "more than 0"),
        ("llama3-70b --rate 1e9", "at most"),
        ("llama3-70b --input 4000000", "blocks of cache"),
        ("llama3-70b --objective fast", "ttft=1s,tpot=50ms"),
        ("llama3-70b --chunk 0", "1 or more"),
        ("llama3-70b --precision fp4", "no tensor cores"),
        ("llama3-70b --trace Cargo.toml", "Cargo.toml: line 1"),
        ("llama3-70b --split 100x8", "at most 64"),
    ] {
        let args: Vec<&str> = std::iter::once("serve").chain(args.split(' ')).collect();
        let (code, _, text) = collcast(&args);
        assert_eq!(code, 2, "{args:?}: {text}");
        assert!(text.contains(says), "{args:?}: {text}");
    }
}

//! Goal: serving a model follows from what its kernels, exchanges and transfers take, for whole commands.
//! Method: loads on built-in machines against bounds that hold for any engine, published arithmetic of a cache, and what
//! users give that makes no sense.

use crate::common::collcast;
use collcast::serve::{Fleet, Group, Load, Machines, Outcome, Request, break_even, compare, serve, smallest, split};
use collcast::site::SiteSpec;
use collcast::{Watch, transfer};
use collcast_reports::figure::Drawing;
use collcast_scenarios::serving::arrivals::Prefixes;
use collcast_scenarios::serving::summary::Objective;
use collcast_scenarios::serving::{Policy, Route};
use collcast_sim::compute::Precision;

const EIGHT: Group = Group::new(1, 8);

fn at(rate: f64, seconds: f64) -> Load {
    Load::Poisson { rate, seconds, input: 2048, output: 256, prefixes: None, seed: 1 }
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

/// Goal: the parts of the request at a percentile add up to that percentile, whatever the number of requests.
#[test]
fn parts_of_a_percentile_add_up() {
    for seconds in [2.0, 5.0, 10.0, 20.0, 30.0] {
        let outcome = run(Fleet::Aggregated(EIGHT), at(4.0, seconds));
        let whole = &outcome.summary.whole;
        for (phase, whole) in outcome.phases.iter().zip([whole.p50, whole.p90, whole.p99]) {
            let sum = phase.queue + phase.prefill + phase.hand_off + phase.decode;
            assert!((sum - whole).abs() < 1e-6, "p{} of {seconds} s: {sum} {whole}", phase.percentile);
        }
    }
}

/// Goal: ranks that split experts share their work: a prompt takes less on more GPUs, by tensor ranks and by experts apart.
/// Method: Qwen3 30B has 3.3 billion active parameters: 2,048 tokens multiply by 13.5 TFLOP. Nine tenths of those of Mixtral are
/// experts', which one prompt on one replica of eight leaves to all.
#[test]
fn experts_are_shared_by_the_ranks_that_split_them() {
    let first = |model, group| {
        let load = Load::Poisson { rate: 0.02, seconds: 1000.0, input: 2048, output: 32, prefixes: None, seed: 1 };
        let request = Request { fleet: Fleet::Aggregated(group), load, ..Request::new(model, "dgx-h200") };
        serve(&request).unwrap().summary.ttft.p50
    };
    let [one, two, four, eight] = [1, 2, 4, 8].map(|gpus| first("qwen3-30b-a3b", Group::new(1, gpus)));
    assert!(two < one && four < two && eight < 1.1 * four, "{one} {two} {four} {eight}");
    assert!(eight > 13.5e12 / 8.0 / 989.4e12, "{eight}");
    let one = first("mixtral-8x7b", Group::new(1, 1));
    let apart = first("mixtral-8x7b", Group { replicas: 8, ..Group::new(1, 1) });
    assert!(apart < 0.5 * one, "{apart} {one}");
}

/// Goal: decoders that no prompt disturbs are steadier; a prefill worker beyond its capacity lets the queue grow.
#[test]
fn fleets_do_what_their_workers_can() {
    let apart = Fleet::Disaggregated { prefill: EIGHT, decode: EIGHT };
    let (both, apart) = (run(Fleet::Aggregated(Group::new(2, 8)), at(6.0, 300.0)), run(apart, at(6.0, 300.0)));
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
    let found = split(&request, Group::new(4, 8), &Watch::default()).unwrap();
    assert_eq!(found.candidates.len(), 4);
    let goodput: Vec<f64> =
        found.candidates.iter().map(|c| c.outcome.as_ref().map_or(-1.0, |o| o.summary.goodput)).collect();
    assert!(goodput.is_sorted_by(|a, b| a >= b), "{goodput:?}");
    let best = &found.candidates[0];
    let again = serve(&Request { fleet: best.fleet, ..request }).unwrap();
    assert_eq!(again.summary, best.outcome.as_ref().unwrap().summary);
}

/// Goal: no fleet that is smaller than the one found meets the objective, where all of them are run; and where none of
/// the size that is allowed does, the answer is no.
#[test]
fn the_smallest_fleet_is_the_smallest() {
    let objective = Objective { parts: [0.99, 0.9], ..Objective::new(0.1, 0.008) };
    let request = Request { load: at(10.0, 60.0), objective, ..Request::new("llama3-8b", "dgx-h100") };
    let found = smallest(&request, 8, &Watch::default()).unwrap();
    let best = &found.fleets[0];
    assert!(best.meets && !found.cut && found.fleets.len() > 5);
    let gpus = best.candidate.fleet.gpus();
    assert!((2..=8).contains(&gpus), "{}", best.candidate.fleet);
    let groups = |most: u32| {
        let of = move |tensor: u32| (1..=most / tensor).map(move |workers| Group::new(workers, tensor));
        [1, 2, 4, 8].into_iter().filter(move |&tensor| tensor <= most).flat_map(of)
    };
    let mut smaller: Vec<(Fleet, u64)> =
        groups(gpus - 1).flat_map(|group| [8192, 2048, 512].map(|chunk| (Fleet::Aggregated(group), chunk))).collect();
    for prefill in groups(gpus - 1) {
        let pairs = groups(gpus - 1).map(|decode| Fleet::Disaggregated { prefill, decode });
        let pairs = pairs.filter(|fleet| fleet.gpus() < gpus);
        smaller.extend(pairs.flat_map(|fleet| [8192, 2048, 512].map(|chunk| (fleet, chunk))));
    }
    assert!(smaller.len() > 10);
    for (fleet, chunk) in smaller {
        let policy = Policy { chunk, ..request.policy };
        let run = serve(&Request { fleet, policy, ..request.clone() }).unwrap();
        assert_ne!(objective.held(&run.summary), [true; 2], "{fleet}, {chunk}");
    }
    // What it says of a fleet is what the fleet alone says.
    let policy = Policy { chunk: best.chunk, ..request.policy };
    let again = serve(&Request { fleet: best.candidate.fleet, policy, ..request }).unwrap();
    assert_eq!(again.summary, best.candidate.outcome.as_ref().unwrap().summary);
    let (code, text, notes) = collcast(&["serve", "llama3-70b", "--smallest", "8", "--rate", "16"]);
    assert_eq!(code, 1, "{text}{notes}");
    assert!(notes.contains("no fleet of at most 8 GPUs meets"), "{text}{notes}");
}

/// Goal: workers that only prefill are tried with smaller steps too, where fewer of them then meet the objective.
#[test]
fn smaller_steps_make_smaller_fleets() {
    let request = Request { load: at(10.0, 120.0), ..Request::new("llama3-70b", "dgx-h100") };
    let fleet = Fleet::Disaggregated { prefill: Group::new(3, 2), decode: Group::new(1, 4) };
    let [whole, cut] = [8192, 2048].map(|chunk| {
        let policy = Policy { chunk, ..request.policy };
        let run = serve(&Request { fleet, policy, ..request.clone() }).unwrap();
        request.objective.held(&run.summary)
    });
    assert!(whole != [true; 2] && cut == [true; 2], "{whole:?} {cut:?}");
    let found = smallest(&request, 64, &Watch::default()).unwrap();
    assert!(found.fleets[0].meets && found.fleets[0].candidate.fleet.gpus() <= fleet.gpus(), "{:?}", found.fleets[0]);
    // Of many layouts too few are left out for the other kind of fleet to be found.
    let request = Request {
        load: at(10.0, 60.0),
        precision: Precision::Fp8,
        objective: Objective::new(2.0, 0.03),
        ..Request::new("deepseek-v3", "dgx-h200")
    };
    let found = smallest(&request, 64, &Watch::default()).unwrap();
    let kinds = [false, true].map(|apart| {
        let of_kind = |fleet: &Fleet| matches!(fleet, Fleet::Disaggregated { .. }) == apart;
        found.fleets.iter().any(|sized| sized.meets && of_kind(&sized.candidate.fleet))
    });
    assert!(kinds == [true; 2] && !found.cut, "{kinds:?} of {}", found.fleets.len());
}

/// Goal: what is advised where an objective is missed helps: a smaller step where one prompt alone would meet it, and where one
/// alone does not, options that make it faster, without those that are set.
#[test]
fn advice_helps() {
    let advice = |request: &Request| {
        let outcome = serve(request).unwrap();
        let next = outcome.report().verdict.unwrap().next.unwrap();
        (outcome, next)
    };
    let fleet = Fleet::Disaggregated { prefill: Group::new(2, 4), decode: Group::new(1, 4) };
    let objective = Objective { parts: [0.99, 0.9], ..Objective::new(1.0, 0.05) };
    let request = Request { fleet, load: at(10.0, 120.0), objective, ..Request::new("llama3-70b", "dgx-h100") };
    let (outcome, next) = advice(&request);
    assert!(outcome.alone.seconds[0] < 0.5 && next.starts_with("prompts wait for others in their step"), "{next}");
    let policy = Policy { chunk: 2048, ..request.policy };
    let smaller = serve(&Request { policy, ..request.clone() }).unwrap();
    assert!(smaller.summary.met_each[0] > outcome.summary.met_each[0]);

    // A token alone takes longer than is asked for: no step and no number of requests changes that.
    let request = Request {
        load: at(4.0, 60.0),
        objective: Objective::new(f64::INFINITY, 0.005),
        ..Request::new("llama3-70b", "dgx-h100")
    };
    let (outcome, next) = advice(&request);
    let token = outcome.alone.seconds[1];
    assert!((0.005..0.02).contains(&token) && next.starts_with("a token alone takes"), "{next}");
    assert!(next.contains("--precision fp8") && !next.contains("--chunk") && !next.contains("--running"), "{next}");
    let (outcome, next) = advice(&Request { precision: Precision::Fp8, ..request });
    assert!(outcome.alone.seconds[1] < token && !next.contains("fp8") && !next.contains("fp4"), "{next}");

    // Replicas over more GPUs make no prompt faster; tensor ranks do.
    let request = Request {
        fleet: Fleet::Aggregated("1x32:ep32".parse().unwrap()),
        load: at(1.0, 60.0),
        precision: Precision::Fp8,
        objective: Objective::new(0.02, f64::INFINITY),
        ..Request::new("deepseek-v3", "dgx-h200")
    };
    let (outcome, next) = advice(&request);
    assert!(next.starts_with("a prompt of 2048 tokens alone takes") && !next.contains("fp8"), "{next}");
    for option in outcome.alone.faster.iter().flatten() {
        let group: Group = option.strip_prefix("workers such as ").unwrap().parse().unwrap();
        let other = serve(&Request { fleet: Fleet::Aggregated(group), ..request.clone() }).unwrap();
        assert!(other.alone.seconds[0] < 0.9 * outcome.alone.seconds[0], "{option}");
    }
}

/// Goal: in fewer bits embedding, head and norms keep their two bytes, as the step's time has the head.
#[test]
fn embedding_and_head_stay_in_sixteen_bits() {
    let cache = |precision| {
        let fleet = Fleet::Aggregated(Group::new(1, 1));
        let request = Request { fleet, precision, load: at(0.1, 60.0), ..Request::new("llama3-8b", "dgx-h100") };
        serve(&request).unwrap().workers[0].cache_tokens as f64
    };
    // All but two tables of 128,256 x 4,096 and 65 norms; a token's cache has 131,072 bytes.
    let saved = 8_030_261_248.0 - 2.0 * 128_256.0 * 4096.0 - 65.0 * 4096.0;
    let found = (cache(Precision::Fp8) - cache(Precision::Bf16)) * 131_072.0;
    assert!((found / saved - 1.0).abs() < 1e-3, "{found} {saved}");
}

/// Goal: the price of one machine is told as such, beside what it serves.
#[test]
fn one_machine_has_a_cost_and_no_rank() {
    let (code, text, notes) =
        collcast(&["serve", "llama3-70b", "--aggregated", "1x8", "--rate", "2", "--duration", "60s", "--price", "2.5"]);
    assert_eq!(code, 0, "{text}{notes}");
    assert!(notes.contains("for 1M generated tokens") && notes.contains("goodput"), "{notes}");
    assert!(!notes.contains("compared") && !notes.contains("lowest cost"), "{notes}");
    // The smallest is told with the steps that it was found with.
    let load = ["--rate", "3", "--duration", "60s", "--price", "2"];
    let (code, text, notes) = collcast(&[&["serve", "llama3-70b", "--smallest", "16"][..], &load].concat());
    assert!(code == 0 && notes.contains("1x4 aggregated with --chunk 512 on dgx-h100"), "{text}{notes}");
}

/// Goal: 492 of 497 requests are not the 99% that were asked for, and do not read so.
#[test]
fn parts_of_requests_are_rounded_down() {
    let slo = ["--rate", "4", "--duration", "120s", "--slo", "ttft=400ms@p99,tpot=50ms"];
    let (_, text, notes) = collcast(&[&["serve", "llama3-70b", "--aggregated", "1x8"][..], &slo].concat());
    assert!(notes.contains("warning: 98.9% of 497 requests met TTFT"), "{text}{notes}");
}

/// Goal: of machines none is best that does not meet the objective: where none does, that is said with what would help, and where
/// one does, it wins over one that is cheaper. Those that are alike as printed are said to be.
#[test]
fn machines_that_miss_the_objective_do_not_win() {
    let told = |more: &[&str]| {
        let base = ["serve", "llama3-70b", "--aggregated", "1x8", "--rate", "2", "--duration", "30s"];
        let (code, text, notes) = collcast(&[&base[..], more].concat());
        assert_eq!(code, 0, "{text}{notes}");
        text + &notes
    };
    let none = told(&["--vary", "nvlink.rate=x0.5", "--slo", "ttft=1ms,tpot=1ms"]);
    assert!(
        none.contains("warning: none of 2 machines meets TTFT 1 ms and TPOT 1 ms; dgx-h100 comes nearest"),
        "{none}"
    );
    assert!(
        none.contains("0.0% meet TTFT, not 90%; 0.0% meet TPOT, not 90%") && none.contains("Next: a prompt"),
        "{none}"
    );
    // The cheaper machine makes tokens too slowly.
    let dear =
        told(&["--on", "dgx-a100", "--on", "dgx-h100", "--price", "dgx-a100=1,dgx-h100=9", "--slo", "tpot=20ms"]);
    assert!(
        dear.contains("ok: dgx-h100 serves at the lowest cost") && dear.contains("one of which misses TPOT 20 ms"),
        "{dear}"
    );
    // What one host does without the network is the same with any.
    let alike = told(&["--vary", "latency.nvlink.ll=x1"]);
    assert!(alike.contains("`dgx-h100` and `dgx-h100, latency.nvlink.ll=x1` tie: each has the lowest TTFT"), "{alike}");
    // A change of the network is no slip where there is none.
    let alone = told(&["--vary", "nics=4"]);
    assert!(alone.contains("the job is on one host, and nothing crosses the network"), "{alone}");
}

/// Goal: a split that too few requests are content with is not called best because more tokens came in time: percentiles count.
#[test]
fn splits_are_ranked_by_the_objective_given() {
    let objective = Objective { parts: [0.5, 0.99], ..Objective::new(1.0, 0.015) };
    let request = Request { load: at(10.0, 60.0), objective, ..Request::new("llama3-70b", "dgx-h100") };
    let found = split(&request, Group::new(4, 8), &Watch::default()).unwrap();
    let missed: Vec<f64> =
        found.candidates.iter().map(|c| objective.missed(&c.outcome.as_ref().unwrap().summary)).collect();
    assert!(missed.is_sorted() && missed[0] == 0.0 && missed[3] > 0.0, "{missed:?}");
    let text = format!("{:?}", found.report().tables);
    assert!(text.contains("meet TPOT, not 99%"), "{text}");
}

/// Goal: a prompt whose cache the worker cannot hold is left out of the break-even, which says so, and what it rests on.
#[test]
fn a_break_even_ends_where_memory_does() {
    let found = break_even(&Request::new("llama3-70b", "dgx-h100"), Group::new(1, 2), None).unwrap();
    // 90% of 85 GB less half of 141 GB of weights are 6 GB, at 164 KB a token.
    assert_eq!(found.lengths.last().unwrap().tokens, 32768);
    let notes = found.notes.join("\n");
    assert!(notes.contains("longer prompts are left out") && notes.contains("rules of NCCL"), "{notes}");
    assert!(
        notes.contains("profile hopper-ib-published") && notes.contains("worker alone on one host takes `prior`"),
        "{notes}"
    );
}

/// Goal: hand-offs wait for the all-to-alls of experts on the same NICs, and for nothing where tensor ranks have NVLink; a
/// transfer alone takes what it takes alone.
#[test]
fn hand_offs_share_nics_with_experts() {
    let waits = |model: &str, machine: &str, precision, group: &str, rate: f64| {
        let of = || group.parse().unwrap();
        let fleet = Fleet::Disaggregated { prefill: of(), decode: of() };
        let load = Load::Poisson { rate, seconds: 200.0, input: 2048, output: 256, prefixes: None, seed: 1 };
        serve(&Request { fleet, load, precision, ..Request::new(model, machine) }).unwrap().summary
    };
    let experts = |rate| waits("deepseek-v3", "gcp-a3-mega", Precision::Fp8, "1x32:ep32", rate);
    let (idle, busy) = (experts(0.02), experts(6.0));
    let ratio = busy.hand_off.p50 / idle.hand_off.p50;
    assert!((1.1..3.0).contains(&ratio), "{ratio}");
    assert!(busy.tpot.p50 > idle.tpot.p50);
    let tensor = |rate| waits("llama3-70b", "dgx-h100", Precision::Bf16, "1x8", rate).hand_off.p50;
    assert_eq!(tensor(0.02), tensor(4.0));
}

/// Goal: fewer NICs and a NIC that is down make caches wait, as far as they pass them: those that the host of it sends, and
/// no others. A decoder's lost NIC costs nothing here: senders post the pieces, which are the bound.
#[test]
fn caches_wait_for_nics_that_are_gone() {
    let fleet = Fleet::Disaggregated { prefill: Group::new(2, 8), decode: EIGHT };
    let request = Request { fleet, load: at(6.0, 100.0), ..Request::new("llama3-70b", "dgx-h100") };
    let machines =
        Machines { vary: vec!["nics=4,1".to_owned()], down: vec![(0, 0), (1, 7), (2, 7)], ..Machines::default() };
    let found = compare(&request, &machines, &Watch::default()).unwrap();
    let of = |row: usize| found.rows[row].outcome.as_ref().unwrap().summary;
    let waits = [0, 1, 2, 3, 4, 5].map(|row| of(row).hand_off.mean);
    let [plain, half, one, first, second, receiver] = waits;
    assert_eq!(of(0), serve(&request).unwrap().summary);
    // Pieces of descriptors bound them: a NIC for two GPUs takes twice as long, one for eight eight times.
    assert!(half > 1.7 * plain && one > 6.0 * plain, "{waits:?}");
    let of_both = (first - plain) + (second - plain);
    assert!(first > 1.1 * plain && second > 1.1 * plain && (of_both / (half - plain) - 1.0).abs() < 0.1, "{waits:?}");
    assert!((receiver / plain - 1.0).abs() < 0.01, "{waits:?}");
    assert_eq!(found.rows[5].name, "dgx-h100, NIC 7 of host 2 down");
    // As many tokens at twice the price cost twice as much.
    let machines = Machines {
        others: vec!["dgx-h200".to_owned()],
        price: Some("dgx-h100=2,dgx-h200=4".to_owned()),
        ..Machines::default()
    };
    let found = compare(&request, &machines, &Watch::default()).unwrap();
    let cost = |row: usize| found.rows[row].cost().unwrap();
    let tokens = |row: usize| found.rows[row].outcome.as_ref().unwrap().summary.tokens_per_s;
    assert!((cost(1) * tokens(1) / (2.0 * cost(0) * tokens(0)) - 1.0).abs() < 1e-9);
    assert!((cost(0) - 2.0 * 24.0 / (tokens(0) * 3600.0) * 1e6).abs() < 1e-6);
    // What is assumed of one machine has its name, of both none.
    let assumed = found.report().assumptions;
    for note in ["dgx-h100: profile h100: ", "dgx-h200: profile h200: ", "steps take their kernels and exchanges alone"]
    {
        assert_eq!(assumed.iter().filter(|said| said.starts_with(note)).count(), 1, "{note}: {assumed:?}");
    }
}

/// Goal: an hour of 100 requests a second over 64 GPUs is simulated whole, in as many steps as its workers have time for.
#[test]
fn an_hour_of_a_large_fleet_is_simulated() {
    let load = Load::Poisson { rate: 100.0, seconds: 3600.0, input: 2048, output: 256, prefixes: None, seed: 3 };
    let outcome = run(Fleet::Aggregated(Group::new(8, 8)), load);
    assert!((outcome.summary.requests as f64 / 360_000.0 - 1.0).abs() < 0.01);
    assert!(outcome.summary.whole.p50 > 0.0);
}

/// Goal: the published arithmetic of a cache: 32k tokens of Llama 3 70B are 10.74 GB, 1.34 GB a GPU, 27 ms from host memory
/// over PCIe 5; to compute them again takes more than a second.
#[test]
fn a_cache_from_host_memory_beats_computing_it_again() {
    let request = Request::new("llama3-70b", "dgx-h100");
    let found = break_even(&request, EIGHT, Some(4)).unwrap();
    let long = found.lengths.iter().find(|length| length.tokens == 32768).unwrap();
    assert_eq!(long.bytes, 10_737_418_240);
    assert!((long.fetch[0] / 0.027 - 1.0).abs() < 0.05, "{long:?}");
    assert!((1.24..2.0).contains(&long.recompute), "{long:?}");
    assert_eq!(found.from(0), Some(128));
    let slow = break_even(&request, EIGHT, Some(1)).unwrap();
    assert!(slow.lengths.last().unwrap().fetch[1] > 3.9 * found.lengths.last().unwrap().fetch[1]);
}

/// Goal: prompts that share a prefix are computed less and wait less; what GPUs have no room for comes from host memory.
#[test]
fn prefixes_save_time() {
    let load = |prefixes| Load::Poisson { rate: 6.0, seconds: 120.0, input: 8192, output: 64, prefixes, seed: 1 };
    let few = Some(Prefixes { count: 20, tokens: 7168, skew: 0.0 });
    let (alone, shared) = (run(Fleet::Aggregated(EIGHT), load(None)), run(Fleet::Aggregated(EIGHT), load(few)));
    assert!(shared.summary.ttft.p50 < alone.summary.ttft.p50 / 2.0, "{:?}", shared.summary);
    let reuse = shared.reuse.unwrap();
    assert!(alone.reuse.is_none() && reuse.hits[0] > reuse.computed);
    // 2,000 prefixes of 2.3 GB are more than GPUs hold, and less than 8 TB.
    let many = Some(Prefixes { count: 2000, tokens: 7168, skew: 0.0 });
    let long = |host_cache| {
        let load = Load::Poisson { rate: 3.0, seconds: 1800.0, input: 8192, output: 64, prefixes: many, seed: 1 };
        let fleet = Fleet::Aggregated(EIGHT);
        serve(&Request { fleet, load, host_cache, ..Request::new("llama3-70b", "dgx-h100") }).unwrap()
    };
    let (without, with) = (long(0), long(8 << 40));
    let of = |outcome: &Outcome| outcome.reuse.unwrap();
    assert!(of(&with).hits[1] > 5 * of(&without).hits[0], "{:?} {:?}", of(&with), of(&without));
    assert!(with.summary.ttft.mean < without.summary.ttft.mean, "{:?} {:?}", with.summary, without.summary);
}

/// Goal: a router that counts prefixes lets workers compute less than one queue does, where none has room for all of them.
#[test]
fn a_router_saves_prefill() {
    let prefixes = Some(Prefixes { count: 300, tokens: 7168, skew: 0.0 });
    let load = Load::Poisson { rate: 12.0, seconds: 300.0, input: 8192, output: 64, prefixes, seed: 1 };
    let of = |route| {
        let base = Request::new("llama3-70b", "dgx-h100");
        let policy = Policy { route, ..base.policy };
        serve(&Request { fleet: Fleet::Aggregated(Group::new(4, 8)), load: load.clone(), policy, ..base }).unwrap()
    };
    let (queue, prefix) = (of(Route::Queue), of(Route::Prefix));
    let computed = |outcome: &Outcome| outcome.reuse.unwrap().computed as f64;
    assert!(computed(&prefix) < 0.85 * computed(&queue), "{:?} {:?}", prefix.reuse, queue.reuse);
    assert!(prefix.summary.ttft.mean < queue.summary.ttft.mean);
}

/// Goal: layers that go beside the prefill save most of the way of a cache.
#[test]
fn layers_beside_the_prefill_hide_the_hand_off() {
    let fleet = Fleet::Disaggregated { prefill: EIGHT, decode: EIGHT };
    let request = Request { fleet, load: at(1.0, 100.0), ..Request::new("llama3-70b", "dgx-h100") };
    let whole = serve(&request).unwrap();
    let layers = serve(&Request { policy: Policy { by_layers: true, ..request.policy }, ..request }).unwrap();
    let (whole, layers) = (whole.summary.hand_off.p50, layers.summary.hand_off.p50);
    assert!(layers > 0.0 && layers < whole / 5.0, "{layers} {whole}");
}

/// Goal: each rank of a decoder gets its part of a cache once, however many ranks of the prefill have copies of it: latents of
/// DeepSeek-V3 on eight ranks, and heads of Qwen3 30B, of which there are four for eight ranks.
/// Method: by hand at 45.5 GB/s a GPU, 32,768 tokens of 70,272 bytes and 8,192 of 98,304.
#[test]
fn copies_of_a_cache_are_sent_once() {
    let hand_off = |model: &str, fleet: [&str; 2], precision, input| {
        let [prefill, decode] = fleet.map(|group| group.parse().unwrap());
        let fleet = Fleet::Disaggregated { prefill, decode };
        let load = Load::Poisson { rate: 0.1, seconds: 20.0, input, output: 16, prefixes: None, seed: 1 };
        serve(&Request { fleet, load, precision, ..Request::new(model, "dgx-h200") }).unwrap().summary.hand_off.p50
    };
    let latents = hand_off("deepseek-v3", ["1x8", "1x8:ep8"], Precision::Fp8, 32_768);
    assert!((latents / (32_768.0 * 70_272.0 / 45.5e9) - 1.0).abs() < 0.05, "{latents}");
    // One GPU receives all of it, from four ranks that differ.
    let heads = hand_off("qwen3-30b-a3b", ["1x8", "1x1"], Precision::Bf16, 8192);
    assert!((heads / (8192.0 * 98_304.0 / 45.5e9) - 1.0).abs() < 0.1, "{heads}");
}

/// Goal: a bound of the smallest fleet is below what a fleet can: steps are full of parts of prompts.
#[test]
fn bounds_rule_no_fleet_out_that_is_enough() {
    let load = Load::Poisson { rate: 175.0, seconds: 60.0, input: 140, output: 1, prefixes: None, seed: 1 };
    let request = Request::new("llama3-8b", "dgx-h100");
    let policy = Policy { chunk: 256, ..request.policy };
    let found = smallest(&Request { load, policy, ..request }, 1, &Watch::default()).unwrap();
    assert!(found.fleets.first().is_some_and(|sized| sized.meets), "{:?}", found.layouts);
}

/// Goal: a cost is that of the steady state, however long the time of arrivals: of two requests a second of 1,024 tokens on 8 GPUs
/// at 2 an hour it is 2.17; a fleet that does not keep up is said not to.
#[test]
fn a_cost_is_that_of_the_steady_state() {
    let request = |seconds, rate| {
        let load = Load::Poisson { rate, seconds, input: 2048, output: 1024, prefixes: None, seed: 1 };
        Request { load, ..Request::new("llama3-70b", "dgx-h100") }
    };
    let machines = Machines {
        others: vec!["dgx-b200".to_owned()],
        price: Some("dgx-h100=2.0,dgx-b200=2.05".to_owned()),
        ..Machines::default()
    };
    for seconds in [60.0, 300.0] {
        let found = compare(&request(seconds, 2.0), &machines, &Watch::default()).unwrap();
        let cost = |row: usize| found.rows[row].cost().unwrap();
        assert!((cost(1) / cost(0) - 1.025).abs() < 1e-9, "{} {}", cost(0), cost(1));
        let verdict = found.report().verdict.unwrap().sentence;
        assert!(verdict.starts_with("dgx-h100 serves at the lowest cost"), "{verdict}");
    }
    let falls_behind = |rate| {
        let ran = serve(&request(60.0, rate)).unwrap();
        ran.notes.iter().any(|note| note.contains("it is overloaded, or a longer --duration tells more"))
    };
    assert_eq!([2.0, 40.0].map(falls_behind), [false, true]);
}

/// Goal: prompts that share a prefix have tokens of their own, which no cache saves: the bounds and the advice count them.
/// A full decoder is named before the queue that it makes, and a full cache before workers that would not help.
#[test]
fn advice_names_what_is_short() {
    let next = |model: &str, fleet: &str, more: &[&str]| {
        let workers: Vec<&str> = fleet.split(' ').collect();
        let (code, text, notes) = collcast(&[&["serve", model][..], &workers, more].concat());
        assert_eq!(code, 0, "{text}{notes}");
        notes.split("Next: ").nth(1).unwrap_or_default().to_owned()
    };
    let prefixes = ["--rate", "0.2", "--duration", "60s", "--prefixes", "20,1024", "--input", "8192"];
    let own = next("llama3-70b", "--aggregated 1x2", &[&prefixes[..], &["--slo", "ttft=500ms"]].concat());
    assert!(!own.contains("a prompt of 1 tokens") && own.contains("tokens alone takes"), "{own}");
    let decoders = ["--running", "4", "--rate", "3", "--duration", "60s"];
    let decoders = next("llama3-8b", "--prefill 2x1 --decode 1x1", &decoders);
    assert!(decoders.contains("more workers that decode"), "{decoders}");
    let full = ["--rate", "1", "--duration", "120s", "--input", "4096", "--output-tokens", "1000"];
    let full = next("llama3-70b", "--aggregated 1x2", &full);
    assert!(full.starts_with("requests wait for memory: workers such as 1x4, or --precision fp8"), "{full}");
    let queue = next("llama3-8b", "--aggregated 1x1", &["--rate", "4", "--duration", "60s", "--slo", "ttft=60ms@p99"]);
    assert!(queue.contains("more workers") && !queue.contains("that prefill") && !queue.contains("--chunk"), "{queue}");
}

/// Goal: memory of a host is that of the workers on it that take prompts: one alone has all of it.
#[test]
fn a_worker_alone_has_the_memory_of_its_host() {
    let computed = |fleet: &str, host_cache| {
        let prefixes = Some(Prefixes { count: 1000, tokens: 1536, skew: 0.0 });
        let load = Load::Poisson { rate: 15.0, seconds: 60.0, input: 2048, output: 16, prefixes, seed: 1 };
        let fleet = Fleet::Aggregated(fleet.parse().unwrap());
        serve(&Request { fleet, load, host_cache, ..Request::new("llama3-8b", "dgx-h100") }).unwrap().reuse
    };
    // 1,000 prefixes of 1,536 tokens and 900 prompts of 512 have 262 GB.
    assert_eq!(computed("1x1", 300 << 30), computed("1x1", 3000 << 30));
    assert_ne!(computed("2x1", 50 << 30), computed("2x1", 3000 << 30));
}

/// Goal: stages hold a model that one host cannot, and a token takes no less than all weights once; experts over 32 GPUs
/// leave each more room for caches than experts over 8 do.
#[test]
fn workers_span_hosts() {
    let model = |name: &str, precision, fleet: &str| {
        let load = Load::Poisson { rate: 0.2, seconds: 100.0, input: 2048, output: 64, prefixes: None, seed: 1 };
        let fleet = Fleet::Aggregated(fleet.parse().unwrap());
        serve(&Request { fleet, load, precision, ..Request::new(name, "dgx-h200") })
    };
    let stages = model("llama3-405b", Precision::Bf16, "1x16:pp2").unwrap();
    let weights = 405.9e9 * 2.0 / 8.0 / 4.8e12;
    // One request may have the memory of all stages.
    let load = Load::Poisson { rate: 0.01, seconds: 300.0, input: 130_000, output: 10, prefixes: None, seed: 1 };
    let fleet = Fleet::Aggregated("1x4:pp4".parse().unwrap());
    let long = serve(&Request { fleet, load, ..Request::new("llama3-70b", "dgx-h100") }).unwrap();
    assert!(long.workers[0].cache_peak > 0.25, "{:?}", long.workers);
    let tpot = stages.summary.tpot.p50;
    assert!(tpot > weights && tpot < 2.0 * weights, "{tpot} {weights}");
    let one = model("llama3-405b", Precision::Bf16, "1x8").unwrap();
    // Twice the memory less the weights once.
    assert!(stages.workers[0].cache_tokens > 4 * one.workers[0].cache_tokens);
    let experts = |fleet: &str| model("deepseek-v3", Precision::Fp8, fleet).unwrap();
    let (few, many) = (experts("1x8:ep8"), experts("1x32:ep32"));
    assert!(many.workers[0].cache_tokens > 4 * few.workers[0].cache_tokens);
    assert_eq!(many.fleet.to_string(), "1x32:tp1,ep32 aggregated");
}

/// Goal: a worker that fits into a host is not laid over two, so that its cache comes over the network from another host,
/// as `transfer` says, whoever is the smaller.
#[test]
fn workers_that_fit_into_a_host_are_not_laid_over_two() {
    let hand_off = |fleet: [&str; 2], machine: &str| {
        let [prefill, decode] = fleet.map(|group| group.parse().unwrap());
        let load = Load::Poisson { rate: 0.02, seconds: 100.0, input: 32768, output: 16, prefixes: None, seed: 1 };
        let fleet = Fleet::Disaggregated { prefill, decode };
        let ran = serve(&Request { fleet, load, ..Request::new("llama3-8b", machine) }).unwrap();
        (ran.summary.hand_off.p50, ran.path.unwrap())
    };
    let bytes = 32768 * 32 * 2 * 8 * 128 * 2;
    // Of a block of 16 tokens, each decoder takes one head.
    let (site, block) = (SiteSpec::new("dgx-h100"), Some(16 * 128 * 2));
    let request = transfer::Request { site, block, ..transfer::Request::new("gpu:0", "gpu:8", bytes) };
    let alone = transfer::transfer(&request).unwrap();
    let alone = alone.rows.iter().find(|row| row.path == "rdma").unwrap().seconds;
    let (apart, by) = hand_off(["1x1", "1x8"], "dgx-h100");
    assert_eq!(by, "rdma");
    // One NIC sends all of these pieces, as it does alone.
    assert!((apart / alone - 1.0).abs() < 0.05, "{apart} {alone}");
    // In one host, or in one domain of NVLink, it stays there.
    assert_eq!(hand_off(["1x1", "1x4"], "dgx-h100").1, "nvlink");
    assert_eq!(hand_off(["1x4", "1x16"], "gb200-nvl72").1, "nvlink");
    // The stages of a worker that no host holds begin with one.
    assert_eq!(hand_off(["1x1", "1x16:pp2"], "dgx-h100").1, "rdma");
}

/// Goal: goodput has the rate that was offered: not that of the moment that hardly any request took, nor less for the end of
/// the last ones.
#[test]
fn goodput_is_over_the_time_of_arrivals() {
    let load = Load::Poisson { rate: 0.002, seconds: 600.0, input: 2048, output: 256, prefixes: None, seed: 1 };
    let ran = run(Fleet::Aggregated(Group::new(1, 8)), load).summary;
    assert!(ran.seconds >= 600.0 && ran.goodput <= ran.requests as f64 / 600.0, "{ran:?}");
    let short = run(Fleet::Aggregated(EIGHT), at(4.0, 10.0)).summary;
    assert!(
        short.seconds > 11.0 && (short.goodput * 10.0 - short.met * short.requests as f64).abs() < 1e-6,
        "{short:?}"
    );
}

/// Goal: each scenario runs by its name, and names what it is of; the break-even of a model with published times draws them.
#[test]
fn scenarios_run_by_name() {
    for (name, _) in collcast_scenarios::builtin::serving() {
        let (code, text, notes) = collcast(&["serve", name]);
        assert_eq!(code, 0, "{name}: {notes}");
        assert!(
            text.len() > 100 && notes.contains("ok:") | notes.contains("warning:") | text.contains("ok:"),
            "{name}: {text}{notes}"
        );
    }
    let found = break_even(&Request::new("qwen3-8b", "h800-roce"), EIGHT, None).unwrap();
    let mut report = found.report();
    collcast::views::figures::add(&mut report);
    let Some(Drawing::Plane(plane)) = report.figures.first().map(|figure| &figure.drawing) else { panic!("no figure") };
    assert_eq!(plane.series.iter().map(|series| series.points.len()).max(), Some(9));
    assert!(plane.series.iter().filter(|series| series.line.len() == found.lengths.len()).count() >= 3);
}

/// Goal: Mooncake's trace format is read, and pages that requests share are not computed twice.
#[test]
fn traces_of_mooncake_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.jsonl");
    let line = |at: u64, last: u64| {
        format!(r#"{{"timestamp": {at}, "input_length": 2000, "output_length": 8, "hash_ids": [1, 2, 3, {last}]}}"#)
    };
    std::fs::write(&path, [line(0, 4), line(9000, 5)].join("\n")).unwrap();
    let reuse = run(Fleet::Aggregated(EIGHT), Load::Trace(path)).reuse.unwrap();
    assert_eq!((reuse.hits, reuse.computed), ([1536, 0, 0], 2000 + 464));
}

/// Goal: without a GPU copies are refused with exit code 3, drives alone are measured, and every byte is compared.
#[test]
fn copies_are_measured_and_compared() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (folder, out) = (folder.path().to_str().unwrap(), folder.path().join("copies.csv"));
    let out = out.to_str().unwrap();
    let profile = format!("{folder}/drives.toml");
    let bench = ["bench", "--backend", "transfer", "--folder", folder, "-s", "64K,8M", "--quick", "-o", out];
    let (code, _, text) = collcast(&[&bench[..], &["--drives-only", "--profile-out", &profile]].concat());
    assert_eq!(code, 0, "{text}");
    let table = std::fs::read_to_string(out).unwrap();
    for line in table.lines().skip_while(|line| !line.starts_with("file_")) {
        let cells: Vec<&str> = line.split(',').collect();
        assert_eq!(cells[2], cells[9], "{line}");
    }
    assert!(table.contains("file_read,cached,8388608"), "{table}");
    // What it wrote layers over a profile, and a forecast takes it.
    let (code, text, notes) = collcast(&[
        "transfer",
        "--profile",
        "prior",
        "--profile",
        &profile,
        "--from",
        "cache:0",
        "--to",
        "gpu:0",
        "-s",
        "1G",
    ]);
    assert_eq!(code, 0, "{notes}");
    assert!(text.contains("posix"), "{text}");
    if !std::path::Path::new("/dev/nvidiactl").exists() {
        let (code, _, text) = collcast(&bench);
        assert_eq!(code, 3, "{text}");
        let (code, _, text) = collcast(&["bench", "--backend", "transfer", "--protocol", "ll"]);
        assert_eq!(code, 2, "{text}");
    }
}

/// Goal: a built-in scenario takes other workers, and other requests, in place of its own; a trace of Mooncake is read whatever it
/// is named. Method: its JSON Lines have no prefix that two requests share.
#[test]
fn scenarios_take_other_workers_and_requests() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let line = |at: u64| format!(r#"{{"timestamp": {at}, "input_length": 2000, "output_length": 8}}"#);
    std::fs::write(&path, [line(0), line(900)].join("\n")).unwrap();
    let (code, out, err) = collcast(&["serve", "llama3-70b-2x8", "--aggregated", "2x8", "--duration", "10s"]);
    assert!(code == 0 && out.contains("by 2x8 aggregated on dgx-h100"), "{out}{err}");
    let (code, out, err) = collcast(&["serve", "llama3-70b-2x8", "--trace", path.to_str().unwrap()]);
    assert!(code == 0 && err.contains("of 2 requests"), "{out}{err}");
    let (code, _, err) = collcast(&["serve", "llama3-8b", "--trace", path.to_str().unwrap(), "--host-cache", "1T"]);
    assert!(code == 2 && err.contains("no two prompts share one"), "{err}");
    // Requests have lengths of their own, whatever window a file of Hugging Face names.
    let config = folder.path().join("config.json");
    let text = r#"{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192}"#;
    std::fs::write(&config, text).unwrap();
    let (code, out, err) = collcast(&["serve", config.to_str().unwrap(), "--duration", "5s"]);
    assert!(code == 0 && !out.contains("--seq"), "{out}{err}");
    // More than GPT-3's 2,048 positions.
    let (code, out, err) = collcast(&["serve", "gpt3-175b", "--input", "4096", "--duration", "10s"]);
    assert!(code == 0 && (out + &err).contains("the model has learned positions for 2048 tokens"), "{err}");
}

/// Goal: what makes no sense is refused with the way out, and exit code 2.
#[test]
fn slips_are_refused() {
    for (args, says) in [
        ("llama3-70b --aggregated 1x1", "take 141.1 GB of each of 1 GPUs"),
        ("llama3-70b --aggregated 1x3", "64 heads are not shared evenly by 3 GPUs"),
        ("llama3-70b --aggregated 1x16", "span hosts of 8"),
        ("llama3-70b --aggregated 1x16:pp3", "are not tp x pp"),
        ("llama3-70b --aggregated 1x16:ep16", "has no experts"),
        ("deepseek-v3 --aggregated 1x32:ep16", "experts on all of a stage"),
        ("deepseek-v3 --aggregated 1x24:ep24", "experts are not shared evenly"),
        ("llama3-70b --aggregated 1x8:xx2", "workers look like 4x8"),
        ("llama3-70b --prefixes 10,4096", "less than a prompt"),
        ("llama3-70b --prefixes ten", "write it as 100,1024"),
        ("llama3-70b --host-cache big", "--host-cache"),
        ("llama3-70b --aggregated 8", "workers look like 4x8"),
        ("llama3-70b --prefill 1x8", "--decode"),
        ("llama3-70b --rate 0", "more than 0"),
        ("llama3-70b --rate 1e9", "at most"),
        ("llama3-70b --input 4000000", "blocks of cache"),
        ("llama3-70b --slo fast", "ttft=1s,tpot=50ms"),
        ("llama3-70b --slo ttft=1ms,ttft=2s", "ttft is there twice"),
        ("llama3-70b --chunk 0", "1 or more"),
        ("llama3-70b --precision fp4", "no tensor cores"),
        ("llama3-70b --trace Cargo.toml", "Cargo.toml: line 1"),
        ("llama3-70b --try-splits 100x8", "at most 64"),
        ("llama3-70b --smallest 0", "give 1 to 2048"),
        ("llama3-70b --smallest 1", "take 141.1 GB of each of 1 GPUs"),
        ("llama3-70b --try-splits 2x8 --down 0:0", "--try-splits is of one machine"),
        ("llama3-70b --try-splits 2x8 --price abc", "at one price"),
        ("llama3-70b --hand-off layers", "no worker hands a cache off"),
        ("llama3-70b --host-cache 1T", "no two prompts share a prefix"),
        ("llama3-70b --slo ttft=1s@99", "ttft=1s@p99"),
        ("llama3-70b --aggregated 2x8 --down 0", "write it as 0:3"),
        ("llama3-70b --aggregated 2x8 --down 2:0", "there are 2 hosts, from 0 on"),
        ("llama3-70b --aggregated 2x8 --down 0:9", "which has 8 NICs"),
        ("llama3-70b --aggregated 2x8 --vary nics=9", "a host has 8 NICs"),
        ("llama3-70b --aggregated 2x8 --vary nic=9", "did you mean `nics`?"),
        ("llama3-70b --aggregated 2x8 --price dgx-b200=2", "there is no price of `dgx-h100`"),
        ("llama3-70b --price dgx-h100=2,foo=3", "`foo` is none of the machines"),
        ("llama3-70b --price dgx-h100=3,dgx-h100=4", "`dgx-h100` has two prices"),
        ("llama3-70b --aggregated 1x8:pp2,pp4", "pp is there twice"),
        ("llama3-70b --aggregated 1x9", "such as 1x9:pp9"),
        ("llama3-70b --aggregated 1x12", "such as 1x12:pp3"),
        ("llama3-405b --on dgx-a100 --aggregated 1x8", "take more GPUs a worker\n"),
        ("llama3-405b --aggregated 1x4", "take more GPUs a worker\n"),
        ("llama3-405b --aggregated 1x8", "take more GPUs a worker, or --precision fp8"),
    ] {
        let args: Vec<&str> = std::iter::once("serve").chain(args.split(' ')).collect();
        let (code, _, text) = collcast(&args);
        assert_eq!(code, 2, "{args:?}: {text}");
        assert!(text.contains(says), "{args:?}: {text}");
    }
}

/// Goal: a verdict says the objectives that were given.
#[test]
fn objectives_are_said_as_they_are() {
    let args =
        ["serve", "llama3-8b", "--aggregated", "1x1", "--duration", "20s", "--slo", "ttft=1s@p99.9,tpot=7.5ms@p50"];
    let (_, _, err) = collcast(&args);
    assert!(err.contains(" met TTFT 1000 ms at p99.9 and TPOT 7.5 ms at p50"), "{err}");
}

/// Goal: a time over which requests arrive is in seconds where it has no unit, as elsewhere; what is no time is refused.
#[test]
fn a_bare_duration_is_in_seconds() {
    let of = |duration: &str| {
        let (code, out, err) =
            collcast(&["serve", "llama3-8b", "--rate", "1", "--duration", duration, "--format", "json"]);
        assert_eq!(code, 0, "{err}");
        serde_json::from_str::<serde_json::Value>(&out).unwrap()["rows"].clone()
    };
    assert_eq!(of("30"), of("30s"));
    let (code, _, err) = collcast(&["serve", "llama3-8b", "--duration", "soon"]);
    assert!(
        code == 2 && err.contains("--duration: `soon` is no time") && err.contains("a bare number is seconds"),
        "{err}"
    );
}

/// Goal: NCCL's settings act on the calls of steps, and the answer says them: tokens that ring and Simple sum over 8 ranks take
/// longer. What NCCL would not start with is refused.
#[test]
fn settings_of_nccl_act_on_steps() {
    let run = |more: &[&str]| {
        let (code, out, err) =
            collcast(&[&["serve", "llama3-70b", "--duration", "20s", "--format", "json"], more].concat());
        assert_eq!(code, 0, "{err}");
        serde_json::from_str::<serde_json::Value>(&out).unwrap()
    };
    let tpot = |answer: &serde_json::Value| answer["summary"]["tpot"]["p50"].as_f64().unwrap();
    let told = |answer: &serde_json::Value| answer["assumptions"].to_string();
    let ring = ["--env", "NCCL_ALGO=Ring", "--env", "NCCL_PROTO=Simple"];
    let (plain, slow) = (run(&[]), run(&ring));
    assert!(tpot(&slow) > 1.3 * tpot(&plain) && told(&slow).contains("NCCL_ALGO=Ring NCCL_PROTO=Simple"), "{slow}");
    assert!(told(&run(&["--nccl", "2.18.3"])).contains("rules of NCCL 2.18.3"));
    // Machines are compared with them, too.
    let compared = run(&[&ring[..], &["--vary", "nvlink.rate=x0.5"]].concat());
    assert!(told(&compared).contains("NCCL_ALGO=Ring"), "{compared}");
    assert_eq!(compared["rows"][0]["tpot_p50_ms"].as_f64().unwrap(), tpot(&slow) * 1e3);
    let (code, _, err) = collcast(&["serve", "llama3-70b", "--env", "NCCL_ALGO=Rings"]);
    assert!(code == 2 && err.contains("would not start"), "{err}");
}

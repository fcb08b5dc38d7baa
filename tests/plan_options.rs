//! Goal: `collcast plan` sets machines, counts of GPUs and ways to run a job beside each other, and says what tells them apart.
//! Method: small searches, each held against the same plan asked for by itself.

use collcast::plan::{Options, Request, Upkeep, Whole, compare, plan};
use collcast::{SiteSpec, Watch};
use collcast_scenarios::memory::Framework;
use collcast_scenarios::training::Kind;
use collcast_sim::compute::Precision;
use serde_json::Value;

use crate::common::collcast;

fn request(machine: &str, gpus: u64) -> Request {
    Request {
        global_batch: Some(64),
        most: 1,
        site: SiteSpec::new(machine),
        tokens: Some(1e12),
        price: Some(if machine == "dgx-h100" { 2.5 } else { 4.0 }),
        ..Request::new("llama3-8b", machine, gpus)
    }
}

fn options(requests: &[Request]) -> Options {
    compare(requests, &Watch::default()).unwrap()
}

/// Goal: what does not fit is neither the fastest nor the cheapest, nor on the front, whatever it takes.
#[test]
fn what_does_not_fit_is_not_picked() {
    let laid = |layout: &str| Request { layout: Some(layout.to_owned()), ..request("dgx-h100", 16) };
    let options = options(&[laid("mbs=4"), laid("tp=4")]);
    let [large, fitting] = options.options.as_slice() else { panic!("two options") };
    assert!(!large.fits() && fitting.fits() && large.time().unwrap()[1] < fitting.time().unwrap()[1]);
    assert_eq!((options.fastest.best, options.cheapest.best), (1, 1));
    assert!(!large.on_front && fitting.on_front);
    assert_eq!(large.plan.as_ref().unwrap().looked_at, (1, 0, 1));
}

/// Goal: no call is exposed for longer than it lasts: kernels that it slows are a part of their own, and the parts are the step.
#[test]
fn calls_are_exposed_no_longer_than_they_last() {
    for (layout, zero) in [("mbs=1", 0), ("mbs=1", 1), ("mbs=1", 2), ("pp=4,mbs=1", 1), ("pp=2,vpp=2,mbs=1", 0)] {
        let request = Request { layout: Some(layout.to_owned()), zero: Some(zero), ..request("dgx-h100", 8) };
        let plan = plan(&request, &Watch::default()).unwrap();
        let of_data = plan.calls.iter().filter(|one| one.call.kind == Kind::Data && !one.of_optimizer);
        for one in of_data {
            let all = one.count * one.call.cost.seconds;
            assert!(one.exposed <= all * (1.0 + 1e-9), "{layout} {zero}: {} of {all}: {one:?}", one.exposed);
        }
        let step = &plan.layouts[0].step;
        assert!(layout.contains("pp") || step.slowed > 0.0 && step.bubble == 0.0, "{layout} {zero}: {step:?}");
        let parts = [step.kernels, step.slowed, step.issued, step.bubble, step.optimizer];
        let parts = parts.iter().chain(step.exposed.iter().map(|(_, seconds)| seconds)).sum::<f64>();
        assert!((parts / step.seconds - 1.0).abs() < 1e-6, "{layout} {zero}: {parts}, {step:?}");
    }
}

/// Goal: of a sum of gradients the part is exposed that goes on when all stages are through with their passes. Method: a fast network,
/// where the drain of the pipeline hides all of the last stage's sum, and a slow one, where it does not.
#[test]
fn the_drain_of_a_pipeline_hides_sums() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("step.json");
    let timeline = file.to_str().unwrap();
    for (machine, hidden) in [("dgx-h100", true), ("kestrel-h100", false)] {
        let batch = ["plan", "llama3-70b", "--gpus", "256", "--layout", "tp=4,pp=4", "--global-batch", "64"];
        let (_, out, err) =
            collcast(&[&batch[..], &["--on", machine, "--timeline", timeline, "--format", "json"]].concat());
        let json: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{err}"));
        let drawn: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let stage = &json["layouts"][0]["busiest_stage"];
        let end = |of: &dyn Fn(&Value) -> bool| {
            let spans = drawn["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X" && of(event));
            spans.map(|span| span["ts"].as_f64().unwrap() + span["dur"].as_f64().unwrap()).fold(0.0, f64::max) / 1e6
        };
        let drained = end(&|span| span["name"].as_str().unwrap().starts_with("backward"));
        let summed = end(&|span| span["name"] == "sum of gradients" && span["pid"] == *stage);
        let exposed = json["layouts"][0]["exposed_s"]["data"].as_f64().unwrap_or(0.0);
        assert_ne!(*stage, 0, "the first stage drains last");
        assert_eq!((exposed == 0.0, summed < drained), (hidden, hidden), "{machine}: {exposed}, {summed} {drained}");
        assert!((exposed - (summed - drained).max(0.0)).abs() < 1e-5, "{machine}: {exposed}, {summed} {drained}");
    }
}

/// Goal: an option is what the plan by itself is; efficiency, front and picks follow from the options.
#[test]
fn options_are_plans_beside_each_other() {
    let requests: Vec<Request> =
        ["dgx-h100", "dgx-b200"].iter().flat_map(|machine| [8, 16, 32].map(|gpus| request(machine, gpus))).collect();
    let options = options(&requests);
    let days = |index: usize| options.options[index].time().unwrap()[1];
    let cost = |index: usize| options.options[index].spent().unwrap()[1];
    for (index, (request, option)) in requests.iter().zip(&options.options).enumerate() {
        let alone = plan(request, &Watch::default()).unwrap();
        let own = option.plan.as_ref().unwrap();
        assert_eq!(
            (&own.layouts[0].text, own.layouts[0].step.seconds),
            (&alone.layouts[0].text, alone.layouts[0].step.seconds)
        );
        let few = options.options[index / 3 * 3].plan.as_ref().unwrap();
        let efficiency = own.layouts[0].tokens_per_s_per_gpu / few.layouts[0].tokens_per_s_per_gpu;
        assert_eq!(option.efficiency, Some(efficiency));
        assert!((cost(index) / alone.whole.unwrap().cost.unwrap() - 1.0).abs() < 1e-9);
        let beaten = (0..6).any(|other| days(other) < days(index) && cost(other) < cost(index));
        assert_eq!(option.on_front, !beaten, "{}", option.name);
    }
    assert!((0..6).all(|index| days(options.fastest.best) <= days(index)));
    assert!((0..6).all(|index| cost(options.cheapest.best) <= cost(index)));
    for (pick, of) in [(&options.fastest, &days as &dyn Fn(usize) -> f64), (&options.cheapest, &cost)] {
        let (next, times) = pick.next.unwrap();
        assert!(!pick.unsure.contains(&next) && (times - of(next) / of(pick.best)).abs() < 1e-12);
    }
    // Twice the GPUs of a kind are told apart by time.
    assert!(options.fastest.unsure.is_empty(), "{:?}", options.fastest);
}

/// Goal: a rack of 72 GPUs has a plan by itself: the batch that nobody gave is one that replicas share evenly.
#[test]
fn a_batch_that_nobody_gave_is_shared_by_replicas() {
    for (gpus, batch) in [(72, 576), (64, 512), (24, 768)] {
        let request = Request { global_batch: None, micro_batch: Some(1), ..request("gb200-nvl72", gpus) };
        let best = plan(&request, &Watch::default()).unwrap().layouts.remove(0).layout;
        assert_eq!(best.global_batch, batch);
        assert_eq!(batch % u64::from(best.data), 0);
    }
}

/// Goal: steps of other batches are not held against each other, and a count that is no faster than a smaller one is told so.
#[test]
fn odd_counts_are_told_apart() {
    let of = |gpus| Request { global_batch: None, micro_batch: Some(1), zero: Some(1), ..request("dgx-h100", gpus) };
    let all = |requests: &[Request]| options(requests);
    let odd = all(&[of(24), of(32)]);
    assert!(odd.options[1].efficiency.is_none() && odd.scales.is_empty());
    let sentence = odd.report().verdict.unwrap().sentence;
    assert!(sentence.contains("tokens a step differ"), "{sentence}");
    let [fast, slow] = [64, 72].map(|gpus| Request { model: "llama3-70b".to_owned(), ..of(gpus) });
    let options = all(&[fast, slow]);
    let steps: Vec<f64> = options.options.iter().map(|option| option.time().unwrap()[1]).collect();
    assert_eq!((options.idle.as_slice(), steps[1] > steps[0]), ([(1, 0)].as_slice(), true));
    let sentence = options.report().verdict.unwrap().sentence;
    assert!(sentence.contains("72 GPUs of dgx-h100 are no faster than 64: leave 8 GPUs idle"), "{sentence}");
}

/// Goal: a variation has its cost, by the price of its own machine.
#[test]
fn variations_have_their_cost() {
    let request = Request {
        layout: Some("tp=2".to_owned()),
        price: Some(2.5),
        prices: Some("dgx-h100=2.5,dgx-b200=4".to_owned()),
        vary: vec!["on=dgx-b200".to_owned(), "gpus=16".to_owned()],
        ..request("dgx-h100", 8)
    };
    let outcome = plan(&request, &Watch::default()).unwrap();
    for variation in &outcome.variations {
        let price = if variation.change.contains("b200") { 4.0 } else { 2.5 };
        let whole = variation.whole.unwrap();
        assert!((whole.cost.unwrap() / whole.gpu_hours - price).abs() < 1e-9, "{}", variation.change);
    }
    // Days of a table are those that the run has under their own name.
    let whole = &outcome.report().extra["whole"];
    assert_eq!(whole["mean_days"].as_f64(), Some(outcome.whole.unwrap().mean_days()));
    assert!(whole["mean_days"].as_f64() > whole["days"].as_f64(), "{whole}");
    let unpriced = Request { prices: Some("dgx-h100=2.5".to_owned()), vary: vec!["on=dgx-b200".to_owned()], ..request };
    assert!(
        plan(&unpriced, &Watch::default()).is_err_and(|error| error.to_string().contains("no price of `dgx-b200`"))
    );
}

/// Goal: a count on which nothing fits is a row, and an error where all are so; questions that cannot be compared are refused.
#[test]
fn what_has_no_plan_is_told_beside_the_others() {
    let args = ["plan", "llama3-70b", "--gpus", "8,12,64", "--layout", "tp=8,pp=2", "--format", "json"];
    let (code, out, err) = collcast(&args);
    assert_eq!(code, 0, "{err}");
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["schema"], "collcast/plan/1");
    let options = json["options"].as_array().unwrap();
    assert!(options[0]["refused"].as_str().unwrap().contains("ranks"), "{options:?}");
    assert!(options[1]["refused"].as_str().unwrap().contains("no whole number of hosts"));
    assert_eq!((options[2]["gpus"].as_u64(), options[2]["layouts"][0]["layout"]["data"].as_u64()), (Some(64), Some(4)));
    assert_eq!(json["comparison"].as_array().unwrap().len(), 3);
    let refused = |args: &[&str], parts: &[&str]| {
        let (code, _, err) = collcast(&[&["plan", "llama3-405b"], args].concat());
        assert!(code == 2 && parts.iter().all(|part| err.contains(part)), "{args:?}: {parts:?} in {err}");
    };
    refused(&["--gpus", "8,16"], &["does not fit on 8 GPUs", "it fits on "]);
    refused(&["--gpus", "16..8"], &["the range `16..8` is empty"]);
    refused(&["--gpus", "8..1e3"], &["`1e3` is no count"]);
    assert_eq!(json["verdict"]["status"], "warning", "{}", json["verdict"]);
    // Where nobody gave the batch that breaks a rule, the refusal says what it was taken to be.
    let layout = ["--gpus", "4096", "--layout", "tp=1"];
    let assumed = "8192 tokens are assumed: give --global-batch or --seq)";
    refused(&layout, &["does not divide the global batch of", assumed]);
    let (_, _, err) = collcast(&[&["plan", "llama3-405b", "--global-batch", "64"], &layout[..]].concat());
    assert!(err.contains("does not divide the global batch of 64") && !err.contains("assumed"), "{err}");
    // The same machine and count twice is one option.
    let twice = ["plan", "llama3-8b", "--gpus", "16,16", "--layout", "tp=2,offload=0"];
    let (code, out, err) = collcast(&twice);
    assert!(code == 0 && err.contains("note: 1 of 2 options are there before: shown once"), "{err}");
    assert!(!out.contains("Pareto front"), "{out}");
    refused(
        &[
            "--gpus",
            "1..18446744073709551615:2",
            "--on",
            "dgx-h100",
            "--on",
            "dgx-a100",
            "--on",
            "dgx-h200",
            "--on",
            "dgx-b200",
        ],
        &["are 256 options", "at most 200"],
    );
    refused(&[], &["how many GPUs", "--gpus"]);
    refused(&["--gpus", "8", "--on", "dgx-h10"], &["dgx-h10", "did you mean"]);
    refused(&["--gpus", "8", "--price", "2"], &["needs --tokens"]);
    refused(
        &["--gpus", "8,16", "--tokens", "1T", "--on", "dgx-h100", "--on", "dgx-b200", "--price", "dgx-h100=2"],
        &["no price of `dgx-b200`"],
    );
}

/// The run of one layout on 256 GPUs with what is done about its failures.
fn whole(upkeep: Upkeep) -> Whole {
    let layout = Some("tp=8,pp=4".to_owned());
    let request = Request { upkeep, layout, global_batch: Some(256), ..request("dgx-h100", 256) };
    let request = Request { model: "llama3-70b".to_owned(), tokens: Some(15e12), ..request };
    plan(&request, &Watch::default()).unwrap().whole.unwrap()
}

/// Goal: each thing that is said of failures moves the run the way it should; what is not said is as it was.
#[test]
fn failures_of_ones_own() {
    let usual = whole(Upkeep::default());
    let named = Upkeep { failures: Some("llama3-405b".to_owned()), restart: Some(600.0), ..Upkeep::default() };
    assert_eq!(whole(named), usual);
    let goodput = |whole: &Whole| whole.failures.goodput;
    let spares = |spares| {
        let failures = Some("bloom".to_owned());
        whole(Upkeep { failures, spares: Some(spares), repair: Some(48.0 * 3600.0), ..Upkeep::default() })
    };
    let (none, some) = (spares(0), spares(20));
    assert!(none.failures.waiting > 0.1 && some.failures.waiting < 1e-3, "{none:?} {some:?}");
    assert!(goodput(&none) + 0.1 < goodput(&some) && none.finish_days[1] > 1.1 * some.finish_days[1]);
    // So many are enough 99% of the time: with them hardly anything waits, with a third of them much does.
    let enough = none.failures.spares_enough.unwrap();
    assert!((2..20).contains(&enough), "{enough}");
    assert!(spares(enough).failures.waiting < 0.01 && spares(enough / 3).failures.waiting > 0.01);
    let slow = [
        Upkeep { failures_times: 2.0, ..Upkeep::default() },
        Upkeep { restart: Some(7200.0), ..Upkeep::default() },
        Upkeep { storage: Some(1e9), ..Upkeep::default() },
        Upkeep { checkpoint_every: Some(86_400.0), ..Upkeep::default() },
        Upkeep { checkpoint_every: Some(45.0), ..Upkeep::default() },
        Upkeep { blocking: true, ..Upkeep::default() },
    ];
    for upkeep in slow {
        let run = whole(upkeep.clone());
        assert!(goodput(&run) < goodput(&usual) - 1e-4, "{upkeep:?}: {run:?}");
        let shares = [run.failures.lost, run.failures.saving, run.failures.down, run.failures.waiting];
        assert!((goodput(&run) + shares.iter().sum::<f64>() - 1.0).abs() < 1e-3, "{run:?}");
    }
    // A rank in a while that makes steps a quarter longer for 2 of 20 hours costs some 2% of the time, and nothing fails.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("slow.toml");
    let slow =
        "[stragglers]\nper = \"gpu\"\ncount = 1\nunits = 256\nhours = 20\nslowdown = 1.25\nhours_until_found = 2";
    let text = format!("schema = \"collcast/failures/1\"\nname = \"slow\"\nhardware = 1.0\ncomponents = []\n{slow}\n");
    std::fs::write(&file, text).unwrap();
    let slow = whole(Upkeep { failures: Some(file.display().to_string()), ..Upkeep::default() });
    let failures = slow.failures;
    assert!((0.017..0.021).contains(&failures.slow) && usual.failures.slow == 0.0, "{failures:?}");
    assert!((failures.goodput + failures.slow - 1.0).abs() < 1e-3 && slow.mean_days() > slow.days, "{failures:?}");
    // Storage takes one checkpoint at a time: 920 GiB at 100 MB/s are 2.7 hours.
    let slow = whole(Upkeep { storage: Some(1e8), ..Upkeep::default() }).failures;
    assert!(slow.interval_s + slow.stall_s >= slow.durable_s - 1e-6 && slow.durable_s > 9000.0, "{slow:?}");
    // Hosts that stand by are paid for.
    let held = |whole: &Whole| whole.gpu_hours / whole.mean_days() / 24.0;
    assert!((held(&spares(20)) - 416.0).abs() < 1e-6 && (held(&usual) - 256.0).abs() < 1e-6);
    // Waits that few runs have are paid for, too.
    assert!(none.mean_days() > 1.1 * some.mean_days() && some.mean_days() > some.days);
}

/// Goal: what cannot be is refused, with what could.
#[test]
fn checkpoints_that_storage_cannot_take_are_refused() {
    let run = |more: &[&str]| {
        let base = ["plan", "llama3-8b", "--layout", "tp=4", "--tokens", "1T", "--global-batch", "64", "--gpus", "64"];
        collcast(&[&base, more].concat())
    };
    let (code, _, err) = run(&["--storage", "1GB/s", "--checkpoint-every", "1min"]);
    assert!(code == 2 && err.contains("cannot be taken every 1.0 min") && err.contains("at least"), "{code} {err}");
    let (code, _, err) = run(&["--storage", "1kB/s"]);
    assert!(code == 2 && err.contains("hardly proceed") && err.contains("a save every "), "{code} {err}");
    assert!(err.contains(" days, a failure every ") && err.contains("give --storage"), "{err}");
    // What is short is told in seconds, and a restart is no fault of checkpoints.
    let (code, _, err) = run(&["--checkpoint-every", "1s"]);
    assert!(code == 2 && err.contains("cannot be taken every 1.0 s"), "{code} {err}");
    let large = ["plan", "llama3-8b", "--layout", "tp=4", "--tokens", "1T", "--global-batch", "256", "--gpus", "1024"];
    let (code, _, err) = collcast(&[&large[..], &["--restart", "1000h"]].concat());
    let says = ["hardly proceed: a restart takes 41.7 days, a failure every 49.5 h", "give a shorter --restart"];
    assert!(code == 2 && says.iter().all(|part| err.contains(part)), "{code} {err}");
}

/// Goal: what costs nothing is the cheapest, and what costs more is told by its cost and not by times of nothing.
#[test]
fn what_is_free_is_the_cheapest() {
    let flags = ["plan", "llama3-8b", "--on", "dgx-h100", "--on", "dgx-b200", "--gpus", "64", "--tokens", "1T"];
    let more = ["--price", "dgx-h100=0,dgx-b200=4", "--layout", "tp=2", "--global-batch", "256"];
    let (code, _, err) = collcast(&[&flags[..], &more].concat());
    assert!(
        code == 0 && err.contains("cheapest is 64 GPUs of dgx-h100 (0, 0 to 0); 64 GPUs of dgx-b200 costs "),
        "{err}"
    );
    assert!(!err.contains("inf"), "{err}");
}

/// Goal: a part of a step that is not there is 0, and not -0.
#[test]
fn what_is_not_there_is_nought() {
    let flags = ["plan", "llama3-8b", "--gpus", "1", "--layout", "tp=1", "--global-batch", "4", "--format", "json"];
    let (_, out, err) = collcast(&flags);
    assert!(out.contains("\"exposed_percent\": 0.0") && !out.contains("-0.0"), "{out}{err}");
}

/// Goal: a file of rates counts the machine's own hosts and NICs; what is not said is told as assumed, and no more.
#[test]
fn rates_of_a_file_are_of_the_machine() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("plan-options");
    std::fs::create_dir_all(&folder).unwrap();
    let rates = |name: &str, components: &str| {
        let path = folder.join(name);
        let text = format!("schema = \"collcast/failures/1\"\nname = \"own\"\nhardware = 1.0\n{components}");
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let hosts =
        rates("hosts.toml", "[[components]]\nname = \"host\"\nper = \"host\"\nfailures = 1\nunits = 1\nhours = 1000");
    let base = ["plan", "llama3-8b", "--layout", "tp=4", "--tokens", "1T", "--global-batch", "64", "--gpus", "64"];
    let run = |more: &[&str]| {
        let (code, out, err) = collcast(&[&base, more, &["--format", "json"]].concat());
        assert_eq!(code, 0, "{err}");
        serde_json::from_str::<Value>(&out).unwrap()
    };
    let hours = |json: &Value| json["whole"]["failures"]["mtbf_s"].as_f64().unwrap() / 3600.0;
    let eight = run(&["--failures", &hosts]);
    let four = run(&["--failures", &hosts, "--on", "gb200-nvl72"]);
    assert!((hours(&eight) - 1000.0 / 8.0).abs() < 1e-9 && (hours(&four) - 1000.0 / 16.0).abs() < 1e-9);
    let never = run(&["--failures", &rates("never.toml", "components = []")]);
    assert_eq!(never["whole"]["failures"]["failures"], 0.0);
    let assumed = |json: &Value| json["assumptions"].to_string();
    assert!(assumed(&run(&[])).contains("a restart takes 10 minutes") && assumed(&run(&[])).contains("Llama 3 405B"));
    let all = ["--failures", "rsc-1", "--spares", "4", "--repair", "2d", "--restart", "5min", "--storage", "50GB/s"];
    let told = assumed(&run(&[&all[..], &["--blocking-checkpoints", "--checkpoint-every", "20"]].concat()));
    assert!(!told.contains("restart") && !told.contains("storage") && !told.contains("spare"), "{told}");
    let refused = |more: &[&str], parts: &[&str]| {
        let (code, _, err) = collcast(&[&base, more].concat());
        assert!(code == 2 && parts.iter().all(|part| err.contains(part)), "{more:?}: {parts:?} in {err}");
    };
    refused(&["--failures", "rsc-3"], &["rsc-3", "did you mean `rsc-1`?"]);
    refused(&["--spares", "4"], &["--spares needs --repair"]);
    refused(&["--restart", "soon"], &["--restart: `soon`", "10min"]);
    refused(&["--storage", "2"], &["--storage: `2`", "GB/s"]);
    refused(&["--checkpoint-every", "0"], &["a time above 0"]);
    refused(&["--restart", "900d"], &["--restart: `900d`", "106 days"]);
}

/// Goal: DualPipe hides what experts exchange behind the other way's kernels, within the kernels' own time, at the price of
/// a second copy of the weights.
#[test]
fn dual_pipe_hides_exchanges() {
    let of = |schedule: &str| {
        let layout = Some(format!("pp=8,ep=16,dp=16,mbs=1,zero=1,schedule={schedule}"));
        let request =
            Request { layout, global_batch: Some(512), price: None, tokens: None, ..request("dgx-h100", 128) };
        let request = Request { model: "deepseek-v3".to_owned(), ..request };
        let layout = plan(&request, &Watch::default()).unwrap().layouts.swap_remove(0);
        let exposed = layout.step.exposed.iter().filter(|(kind, _)| *kind == Kind::Expert).map(|(_, seconds)| seconds);
        (exposed.sum::<f64>(), layout.memory.weights as f64, layout.step)
    };
    let [(exposed, weights, plain), (less, twice, dual)] = ["zb", "dualpipe"].map(of);
    assert!(exposed > 0.05 * plain.seconds && less < 0.5 * exposed, "{plain:?} {dual:?}");
    assert!(dual.seconds < plain.seconds && dual.seconds > dual.kernels, "{plain:?} {dual:?}");
    // Of kernels each rank has what the mean of two stages has.
    assert!((0.8..1.2).contains(&(dual.kernels / plain.kernels)), "{plain:?} {dual:?}");
    assert!((twice / weights - 2.0).abs() < 0.2, "{weights} {twice}");
}

/// Goal: with hai-llm passes run beside each other in DualPipe alone: another schedule is refused, and a search tries none.
#[test]
fn only_dual_pipe_has_passes_beside_each_other_in_hai_llm() {
    let of = |layout: Option<&str>, overlap_experts: bool| {
        let (framework, precision) = (Framework::HaiLlm, Precision::Fp8);
        let of = Request::new("deepseek-v3", "dgx-h100", 256);
        let software = Request { framework, precision, overlap_experts, ..of };
        plan(&Request { layout: layout.map(str::to_owned), most: 3, ..software }, &Watch::default())
    };
    let refused = of(Some("pp=16,ep=16"), true).unwrap_err().render();
    assert!(refused.contains("in DualPipe alone") && refused.contains("add schedule=dualpipe"), "{refused}");
    let [with, without] = [true, false].map(|given| of(Some("pp=16,ep=16,schedule=dualpipe"), given).unwrap());
    assert_eq!(with.layouts[0].step.seconds, without.layouts[0].step.seconds);
    let found = of(None, true).unwrap();
    assert!(found.layouts.iter().all(|layout| layout.text.contains("schedule=dualpipe")), "{:?}", found.layouts);
    assert!(found.notes.iter().any(|note| note.contains("schedules other than dualpipe")), "{:?}", found.notes);
}

/// A layout over two hosts, whose calls take a part of the step.
fn two_hosts() -> Request {
    let layout = Some("tp=4,pp=2,mbs=1".to_owned());
    Request { layout, global_batch: Some(16), price: None, ..request("dgx-h100", 16) }
}

/// Goal: each sensitivity moves the step or the run the way it should, and by no more than it can; the largest comes first.
#[test]
fn sensitivities_move_the_right_way() {
    let asked = Request { sensitivities: true, ..two_hosts() };
    let outcome = plan(&asked, &Watch::default()).unwrap();
    let step = outcome.layouts[0].step.seconds;
    let of = |change: &str| {
        let found = outcome.sensitivities.iter().find(|s| s.change == change).unwrap_or_else(|| panic!("{change}"));
        (found.layout.step.seconds / step - 1.0, found.effect)
    };
    // What halves or loses something costs, at most as much as if all of the step were of it.
    // Calls hide the latency here, and what overlaps with what moves the step by a few millionths.
    for (change, least, most) in [
        ("NIC rate x0.5", 0.0, 1.0),
        ("one rail lost", 0.0, 1.0),
        ("NVLink rate x0.5", 0.0, 1.0),
        ("network latency x2", -1e-4, 1.0),
        ("power limit -100 W", 0.0, 0.5),
        ("one GPU at 90% of its speed", 0.0, 1.0 / 9.0),
    ] {
        let (step, days) = of(change);
        assert!(step > least && step < most, "{change}: {step}");
        assert!((days - step).abs() < 0.02, "{change}: {days} {step}");
    }
    assert!(of("one GPU at 90% of its speed").0 > 0.05);
    for (change, most) in
        [("memory rate x1.1", 0.1), ("tensor-core rate x1.1", 0.1), ("network rate x2: NICs, PCIe and switches", 0.5)]
    {
        let (step, _) = of(change);
        assert!(step < 0.0 && step > -most, "{change}: {step}");
    }
    let (step, days) = of("failure rate x2");
    assert!(step == 0.0 && days > 0.0);
    let effects: Vec<f64> = outcome.sensitivities.iter().map(|s| s.effect.abs()).collect();
    assert!(effects.is_sorted_by(|a, b| a >= b) && effects.len() == 16, "{effects:?}");
    // On one host there is no network to change, and that is said.
    let one = Request { layout: Some("tp=4".to_owned()), gpus: 8, ..asked };
    let one = plan(&one, &Watch::default()).unwrap();
    let said = |what: &str| one.notes.iter().any(|note| note.starts_with("not varied") && note.contains(what));
    assert!(
        said("NIC rate x0.5") && said("one rail lost") && said("network latency x2") && one.sensitivities.len() == 11
    );
}

/// Goal: a variation is the plan with that value, and a constant at its own value changes nothing.
#[test]
fn variations_are_plans_with_another_value() {
    let step = |request: &Request| plan(request, &Watch::default()).unwrap().layouts[0].step.seconds;
    let varied = |vary: &[&str]| -> Vec<f64> {
        let request = Request { vary: vary.iter().map(|&v| v.to_owned()).collect(), ..two_hosts() };
        let outcome = plan(&request, &Watch::default()).unwrap();
        outcome.variations.iter().map(|v| v.layout.step.seconds).collect()
    };
    let base = two_hosts();
    let usual = step(&base);
    let fp8 = step(&Request { precision: collcast_sim::compute::Precision::Fp8, ..base.clone() });
    let short = step(&Request { sequence: Some(4096), ..base.clone() });
    assert_eq!(varied(&["precision=bf16,fp8"]), [usual, fp8]);
    assert_eq!(varied(&["seq=8192,4096"]), [usual, short]);
    assert_eq!(varied(&["gpu=h200"]), [step(&Request { gpu: Some("h200".to_owned()), ..base.clone() })]);
    let profile = Request { site: SiteSpec::new("dgx-h100").profile("hopper-ib-published"), ..base.clone() };
    assert_eq!(varied(&["profile=hopper-ib-published"]), [step(&profile)]);
    assert_eq!(varied(&["gpu.memory=3352,x1", "nic.rate=400Gb/s", "latency.network.simple=4.7"]), [usual, usual]);
    let grid = varied(&["nic.rate=200Gb/s,100Gb/s", "nvlink.rate=x0.5,x0.25"]);
    assert!(
        grid.len() == 4 && grid[0] < grid[1] && grid[0] < grid[2] && grid[3] > grid[2] && grid[0] > usual,
        "{grid:?}"
    );
    // Machine, count and layout: replicas are what the GPUs allow.
    let on = Request { site: SiteSpec::new("dgx-b200"), ..base.clone() };
    assert_eq!(varied(&["on=dgx-h100,dgx-b200"]), [usual, step(&on)]);
    let four = Request { gpus: 32, ..base.clone() };
    assert_eq!(varied(&["gpus=16,x2"]), [usual, step(&four)]);
    assert_eq!(varied(&["gpus=32", "on=dgx-b200"]), [step(&Request { gpus: 32, ..on })]);
    let laid = |layout: &str| step(&Request { layout: Some(layout.to_owned()), ..base.clone() });
    let [one, pipeline] = [laid("tp=1,pp=2,mbs=1"), laid("tp=2,pp=4,vpp=2,mbs=1")];
    assert_eq!(varied(&["tp=1"]), [one]);
    assert_eq!(varied(&["tp=2", "pp=4", "vpp=2"]), [pipeline]);
    let refused = |vary: &str, parts: &[&str]| {
        let request = Request { vary: vec![vary.to_owned()], ..two_hosts() };
        let error = plan(&request, &Watch::default()).unwrap_err().render();
        assert!(parts.iter().all(|part| error.contains(part)), "{vary}: {parts:?} in {error}");
    };
    refused("gpu.memry=1", &["gpu.memry", "did you mean `gpu.memory`?", "nic.rate"]);
    refused("gpu.memory", &["has no value", "--vary KEY=A,B"]);
    refused("gpu.memory=0", &["it would be", "1 to 1000000"]);
    refused("nic.rate=400", &["nic.rate=400", "GB/s"]);
    refused("nics=9", &["8 NICs", "9"]);
    refused("precision=fp9", &["precision=fp9", "known: bf16"]);
    refused("zero=x2", &["values of its own"]);
    refused("tp=x2", &["values of its own"]);
    refused("tp=none", &["tp is `none`", "a whole number from 1"]);
    refused("tp=3", &["has", "ranks", "16 GPUs"]);
    refused("gpus=20", &["16 ranks", "20 GPUs"]);
    refused("on=nowhere", &["nowhere"]);
    refused("micro-batch=3", &["does not divide the global batch", "these work"]);
    refused(&format!("gpu.memory={}", vec!["x1"; 300].join(",")), &["300 variations", "at most 200"]);
}

/// Goal: a file asks what flags ask, flags win over it, and its mistakes have their place.
#[test]
fn a_request_may_be_a_file() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("plan-request");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("options.toml");
    let file = path.display().to_string();
    let ask = |text: &str, more: &[&str]| {
        std::fs::write(&path, text).unwrap();
        collcast(&[&["plan", &file], more].concat())
    };
    let json = |(code, out, err): (i32, String, String)| -> Value {
        assert_eq!(code, 0, "{err}");
        serde_json::from_str(&out).unwrap()
    };
    let head = "schema = \"collcast/plan-request/1\"\nmodel = \"llama3-8b\"\nlayout = \"tp=4\"\nglobal_batch = 64\ngpus = 16\n";
    let flags = ["plan", "llama3-8b", "--layout", "tp=4", "--global-batch", "64", "--gpus", "16", "--format", "json"];
    assert_eq!(json(ask(head, &["--format", "json"])), json(collcast(&flags)));
    let options =
        "[[options]]\nname = \"short\"\nseq = 4096\n[[options]]\nname = \"both\"\non = [\"dgx-h100\", \"dgx-h200\"]\n";
    let several = json(ask(&format!("{head}{options}"), &["--format", "json"]));
    let step = |json: &Value| json["layouts"][0]["step_time_s"].as_f64().unwrap();
    let names: Vec<&str> = several["options"].as_array().unwrap().iter().map(|o| o["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["short", "both: 16 dgx-h100", "both: 16 dgx-h200"]);
    let short = json(collcast(&[&flags[..], &["--seq", "4096"]].concat()));
    assert_eq!(step(&several["options"][0]), step(&short));
    assert_eq!(step(&several["options"][1]), step(&json(collcast(&flags))));
    let over = json(ask(&format!("{head}{options}"), &["--format", "json", "--seq", "2048", "--gpus", "8"]));
    let tokens = |index: usize| over["options"][index]["tokens_per_step"].as_f64();
    assert!(tokens(0) == Some(64.0 * 2048.0) && tokens(1) == tokens(0) && over["options"][2]["gpus"] == 8);
    // A model beside the file is found from anywhere.
    let model = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/models/llama3-8b.toml");
    std::fs::copy(model, folder.join("own.toml")).unwrap();
    assert_eq!(
        step(&json(ask(&head.replace("llama3-8b", "own.toml"), &["--format", "json"]))),
        step(&json(collcast(&flags)))
    );
    let refused = |text: &str, parts: &[&str]| {
        let (code, _, err) = ask(text, &[]);
        assert!(code == 2 && parts.iter().all(|part| err.contains(part)), "{text}: {parts:?} in {err}");
    };
    refused(&format!("{head}globl_batch = 3"), &["`globl_batch`", "did you mean `global_batch`?", "options.toml:6"]);
    refused(&format!("{head}[[options]]\nprecison = \"fp8\""), &["did you mean `precision`?", "options.toml:7"]);
    refused(&format!("{head}tokens = \"many\""), &["tokens is `many`", "15T", "options.toml:6:10"]);
    refused(&head.replace("request/1", "request/2"), &["another schema", "collcast/plan-request/1"]);
    refused(&head.replace("gpus = 16\n", ""), &["how many GPUs"]);
    refused(&head.replace("model = \"llama3-8b\"\n", ""), &["no model is named"]);
    refused(&format!("{head}{}", "[[options]]\n".repeat(300)), &["options; at most 200"]);
    refused(&format!("{head}[options"), &["cannot be read as TOML"]);
    let named =
        |second: &str| format!("{head}tokens = \"1T\"\n[[options]]\nname = \"a\"\nprice = 2\n[[options]]\n{second}");
    refused(&named("name = \"a\"\nprice = 3"), &["two options are called `a`", "options.toml:11"]);
    refused(&named("name = \"b\""), &["there is no price of option `b`", "give each option a `price`"]);
}

/// Goal: a timeline is the step that the plan forecasts: it ends when the step does, each pass is in it once, none overlaps.
#[test]
fn a_timeline_ends_with_its_step() {
    for (layout, replicas, messages) in [
        ("tp=2,pp=4,vpp=2,dp=2", true, true),
        ("tp=2,pp=4,dp=2,schedule=zb", true, true),
        ("tp=1,zero=3", true, false),
        ("tp=1,zero=3,hsdp=8", true, false),
        ("tp=8,pp=1,dp=2,zero=0", true, false),
    ] {
        let request = Request { layout: Some(layout.to_owned()), tokens: None, price: None, ..request("dgx-h100", 16) };
        let outcome = plan(&request, &Watch::default()).unwrap();
        let text = collcast::plan::timeline(&request, &outcome).unwrap();
        let trace: Value = serde_json::from_slice(&text).unwrap();
        let best = &outcome.layouts[0];
        let mut tracks = std::collections::BTreeMap::<(u64, u64), Vec<(f64, f64)>>::new();
        let mut names = std::collections::BTreeSet::new();
        let mut passes = 0;
        for event in trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X") {
            let [start, long] = ["ts", "dur"].map(|key| event[key].as_f64().unwrap());
            let [stage, track] = ["pid", "tid"].map(|key| event[key].as_u64().unwrap());
            tracks.entry((stage, track)).or_default().push((start, start + long));
            let name = event["name"].as_str().unwrap();
            passes += u64::from(name.starts_with("forward") || name.starts_with("backward"));
            assert!(!name.contains("ward") || names.insert((stage, name.to_owned())), "{layout}: {name} twice");
        }
        let end = tracks.values().flatten().map(|span| span.1).fold(0.0, f64::max);
        assert!((end / (best.step.seconds * 1e6) - 1.0).abs() < 1e-6, "{layout}: {end} {}", best.step.seconds);
        let expected = collcast::scenarios::training::passes(&best.layout);
        assert_eq!(passes, if best.layout.zero == 3 { 0 } else { expected }, "{layout}");
        for (of, spans) in &mut tracks {
            spans.sort_by(|a, b| a.0.total_cmp(&b.0));
            let overlaps = spans.windows(2).any(|two| two[1].0 < two[0].1 - 1e-3);
            assert!(!overlaps, "{layout}: {of:?}");
        }
        assert_eq!(tracks.keys().any(|(_, track)| *track == 1), messages, "{layout}");
        assert_eq!(tracks.keys().any(|(_, track)| *track >= 3), replicas, "{layout}");
    }
    let (code, _, err) = collcast(&["plan", "llama3-8b", "--gpus", "8,16", "--timeline", "never.json"]);
    assert!(code == 2 && err.contains("--timeline is of one machine and count"), "{err}");
}

/// Goal: HSDP sums shares over their replicas beside gathers and scatters, each once its own are scattered, and in order.
/// Method: `all_reduce_stream` of PyTorch's `_fsdp_param_group.py`; a sum begins where a scatter or the sum before it ends.
#[test]
fn shares_are_summed_over_replicas_beside_other_calls() {
    let layout = Some("tp=1,zero=3,hsdp=8".to_owned());
    let request = Request { layout, tokens: None, price: None, ..request("dgx-h100", 16) };
    let outcome = plan(&request, &Watch::default()).unwrap();
    let trace: Value = serde_json::from_slice(&collcast::plan::timeline(&request, &outcome).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let track = |name: &str| -> Vec<(f64, f64)> {
        let named = events.iter().find(|event| event["ph"] == "M" && event["args"]["name"] == name).unwrap();
        let own = events.iter().filter(|event| event["ph"] == "X" && event["tid"] == named["tid"]);
        let at = |event: &Value, key: &str| event[key].as_f64().unwrap();
        own.map(|event| (at(event, "ts"), at(event, "ts") + at(event, "dur"))).collect()
    };
    let (shared, sums) = (track("replicas"), track("all-reduces of shares over replicas"));
    // 32 layers, embedding and head, of each micro-batch.
    assert!(!sums.is_empty() && sums.len().is_multiple_of(34), "{}", sums.len());
    let mut before = 0.0;
    for sum in &sums {
        let begins = |end: f64| (sum.0 - end).abs() < 0.01;
        assert!(begins(before) || shared.iter().any(|call| begins(call.1)), "{sum:?}");
        before = sum.1;
    }
    let beside = sums.iter().filter(|sum| shared.iter().any(|call| call.0 < sum.1 && sum.0 < call.1)).count();
    assert!(beside > sums.len() / 2, "{beside} of {}", sums.len());
}

/// Goal: where faster links make a step longer, the changed choice of NCCL is named, and warned of.
#[test]
fn a_choice_that_makes_a_step_longer_is_named() {
    let args = ["plan", "llama3-8b", "--on", "dgx-h100", "--gpus", "64", "--layout", "tp=1,hsdp=8", "--zero", "3"];
    let more = ["--seq", "2048", "--global-batch", "64", "--vary", "pcie.rate=x2", "--format", "json"];
    let (code, out, err) = collcast(&[&args[..], &more].concat());
    assert_eq!(code, 0, "{err}");
    let changed = &serde_json::from_str::<Value>(&out).unwrap()["variations"][1];
    let choice = changed["choice"].as_str().unwrap_or_default();
    assert!(choice.contains("all_reduce of 8 ranks ring -> tree"), "{changed}");
    let longer = changed["step_percent"].as_f64().unwrap() > 0.5;
    assert_eq!(longer, err.contains("pcie.rate=x2: links are faster, and it takes "), "{changed} {err}");
}

/// Goal: a slower NIC makes no step faster, and the ring of sixteen context ranks is the shift that it is: K and V of 8 MiB
/// a hop hide under attention at the NIC's own rate.
#[test]
fn rings_of_many_context_ranks_follow_their_nics() {
    let layout = "cp=16,tp=4";
    let args = ["plan", "llama3-8b", "--on", "dgx-h100", "--gpus", "64", "--layout", layout, "--seq", "131072"];
    let vary = ["--global-batch", "16", "--micro-batch", "1", "--vary", "nic.rate=x0.25,x0.5,x0.75,x1,x2"];
    let (code, out, err) = crate::common::collcast(&[&args[..], &vary, &["--format", "json"]].concat());
    assert_eq!(code, 0, "{err}");
    let result: Value = serde_json::from_str(&out).unwrap();
    let steps = result["variations"].as_array().unwrap().iter().map(|v| v["step_s"].as_f64().unwrap());
    let steps: Vec<f64> = steps.skip(1).collect();
    assert!(steps.len() == 5 && steps.is_sorted_by(|a, b| a >= b), "{steps:?}");
    let context = result["layouts"][0]["exposed_s"]["context"].as_f64().unwrap_or(0.0);
    assert!(context < 0.02 * steps[3], "{context} {steps:?}");
}

/// Goal: kernels may be those of another GPU; the memory is that of the machine's own.
#[test]
fn memory_is_that_of_the_machine() {
    for (machine, gpu, gib) in [("aws-g4dn", "a100", 15.84), ("dgx-h100", "h200", 79.2), ("dgx-h200", "h100", 139.8)] {
        let args = ["plan", "llama3-1b", "--on", machine, "--gpus", "1", "--gpu", gpu, "--layout", "mbs=1"];
        let (code, out, err) = collcast(&args);
        // 22 GB of states do not fit on a T4.
        let fits = i32::from(machine == "aws-g4dn");
        assert!(code == fits && out.contains(&format!("GiB of {gib:.1}")), "{machine} {gpu}: {out} {err}");
    }
}

/// Goal: counts of a range are held against each other with the batch of the largest, and the cost of an option has its
/// spare hosts.
#[test]
fn options_are_of_one_batch_and_pay_what_they_hold() {
    let run = |gpus: &str, more: &[&str]| -> Value {
        let args = ["plan", "llama3-8b", "--on", "dgx-h100", "--gpus", gpus, "--tokens", "2T", "--price", "2"];
        let layout = ["--layout", "tp=2", "--micro-batch", "1", "--format", "json"];
        let (code, out, err) = crate::common::collcast(&[&args[..], &layout, more].concat());
        assert_eq!(code, 0, "{err}");
        serde_json::from_str(&out).unwrap()
    };
    let options = run("2048,4096", &[]);
    let rows = options["options"].as_array().unwrap();
    assert_eq!(rows[0]["tokens_per_step"], rows[1]["tokens_per_step"], "{options}");
    assert!(rows[1]["efficiency"].as_f64().unwrap() < 1.0, "{options}");
    let spare = run("64,128", &["--spares", "8", "--repair", "24h"]);
    for row in spare["options"].as_array().unwrap() {
        let [hours, cost, days] = ["gpu_hours", "cost", "days"].map(|key| row["whole"][key].as_f64().unwrap());
        let held = row["gpus"].as_f64().unwrap() + 64.0;
        assert!((cost / hours / 2.0 - 1.0).abs() < 1e-9 && hours >= days * 24.0 * held, "{row}");
    }
    let told = spare["verdict"]["sentence"].as_str().unwrap();
    let cheapest = spare["options"].as_array().unwrap().iter().map(|row| row["whole"]["cost"].as_f64().unwrap());
    let least = cheapest.fold(f64::INFINITY, f64::min);
    assert!(
        told.contains(&format!("({:.0}K", least / 1e3)) || told.contains(&format!("({:.1}K", least / 1e3)),
        "{told} {least}"
    );
}

/// Goal: NCCL's settings act on a plan's calls as they do on `simulate`, from flags and from a file, and the last of a name counts.
#[test]
fn settings_of_nccl_act_on_calls() {
    let flags = ["plan", "llama3-8b", "--gpus", "16", "--layout", "tp=2", "--global-batch", "16", "--format", "json"];
    let json = |more: &[&str]| -> Value {
        let (code, out, err) = collcast(&[&flags[..], more].concat());
        assert_eq!(code, 0, "{err}");
        serde_json::from_str(&out).unwrap()
    };
    let of = |plan: &Value, traffic: &str, key: &str| -> Value {
        let calls = plan["calls"].as_array().unwrap();
        calls.iter().find(|call| call["traffic"] == traffic).unwrap()[key].clone()
    };
    let told =
        json(&["--env", "NCCL_ALGO=Tree", "--env", "NCCL_ALGO=Ring", "--env", "NCCL_MAX_CTAS=4", "--nccl", "2.26.2"]);
    let said = told["assumptions"].as_array().unwrap();
    assert!(said.contains(&"NCCL's environment: NCCL_ALGO=Ring NCCL_MAX_CTAS=4".into()), "{said:?}");
    assert!(said.contains(&"calls follow the rules of NCCL 2.26.2".into()), "{said:?}");
    let gradients = of(&told, "data: gradients", "channels");
    assert!(gradients.as_u64() <= Some(4) && of(&json(&[]), "data: gradients", "channels").as_u64() > Some(4));
    // The same call by itself.
    let size = of(&told, "tensor: sum of a result", "size_bytes").to_string();
    let env = ["--env", "NCCL_ALGO=Ring", "--env", "NCCL_MAX_CTAS=4", "--nccl", "2.26.2", "--dtype", "bfloat16"];
    let one =
        ["sweep", "dgx-h100", "--nodes", "2", "-c", "reduce_scatter", "--split", "/2", "-s", &size, "--format", "json"];
    let (code, out, err) = collcast(&[&one[..], &env].concat());
    assert_eq!(code, 0, "{err}");
    let alone: Value = serde_json::from_str(&out).unwrap();
    for key in ["algorithm", "protocol", "channels"] {
        assert_eq!(of(&told, "tensor: sum of a result", key), alone["rows"][0][key], "{key}");
    }
    let varied = json(&["--vary", "env=NCCL_MAX_CTAS=2", "--vary", "nccl=2.26.2"]);
    assert!(varied["variations"][1]["step_percent"].as_f64() > Some(0.0), "{}", varied["variations"]);
    let (code, _, err) = collcast(&[&flags[..], &["--env", "NCCL_ALGO"]].concat());
    assert!(code == 2 && err.contains("NAME=VALUE"), "{err}");
}

/// Goal: the calls of a step are all of them: what is exposed adds up by kind, and bytes and counts are those by hand.
/// Method: Megatron-LM with all that ranks can share.
#[test]
fn calls_add_up_to_the_step() {
    let one = |model: &str, layout: &str| {
        let layout = Some(layout.to_owned());
        plan(&Request { layout, global_batch: Some(32), ..Request::new(model, "dgx-h100", 16) }, &Watch::default())
            .unwrap()
    };
    for (model, layout) in [
        ("llama3-8b", "tp=2,pp=2,cp=2"),
        ("llama3-8b", "tp=2,zero=3,hsdp=4"),
        ("llama3-8b", "pp=4,vpp=2,zero=0"),
        ("mixtral-8x7b", "tp=2,pp=2,ep=4"),
    ] {
        let outcome = one(model, layout);
        let step = &outcome.layouts[0].step;
        for kind in Kind::ALL {
            let calls = outcome.calls.iter().filter(|one| one.call.kind == kind && !one.of_optimizer);
            let sum: f64 = calls.map(|one| one.exposed).sum();
            let exposed = step.exposed.iter().find(|one| one.0 == kind).map_or(0.0, |one| one.1);
            assert!((sum - exposed).abs() <= 1e-9 * step.seconds, "{layout} {kind:?}: {sum} of {exposed}");
        }
    }
    let outcome = one("llama3-8b", "tp=2,pp=2");
    let of = |name: &'static str| outcome.calls.iter().filter(move |one| one.call.name == name);
    // Two of four calls of a layer each way gather an input, 16 layers, 8 micro-batches; the head has one more.
    let head = u64::from(outcome.layouts[0].step.busiest == 1);
    let gathers: f64 = of("gather of an input").map(|one| one.count).sum();
    assert_eq!(gathers as u64, (2 * 16 + head) * 8);
    assert!(of("gather of an input").all(|one| one.call.bytes == 2 * 8192 * 4096 && one.call.shape.size == 2));
    // A message each way, of half of the tokens.
    let messages: Vec<_> = of("activations and their gradients").collect();
    assert!(messages.len() == 1 && messages[0].count == 8.0 && messages[0].call.bytes == 8192 * 4096, "{messages:?}");
    // Gradients have 4 bytes, parameters 2, once a step.
    let bytes = |name: &'static str| of(name).map(|one| one.call.bytes as f64 * one.count).sum::<f64>();
    assert!((bytes("gradients") / bytes("parameters") - 2.0).abs() < 1e-6);
    let parameters = outcome.model.parameters().total() as f64;
    assert!((bytes("parameters") / (parameters / 2.0) - 1.0).abs() < 0.01, "{}", bytes("parameters"));
}

/// Goal: weights of layers are gathered in 8 bits where that is asked for, or is the framework's own; what it cannot do is refused.
#[test]
fn weights_may_be_gathered_in_fp8() {
    let with = |framework: &str, machine: &str, gather: Option<&str>, layout: &str| {
        let mut request = Request {
            global_batch: Some(16),
            layout: Some(layout.to_owned()),
            ..Request::new("llama3-8b", machine, 16)
        };
        let fields = [("framework", Some(framework)), ("precision", Some("fp8")), ("param-gather", gather)];
        for (name, value) in fields.into_iter().filter_map(|(name, value)| Some((name, value?))) {
            collcast::plan::fields::set(&mut request, name, value).unwrap();
        }
        plan(&request, &Watch::default())
    };
    let gathered = |outcome: &collcast::plan::Outcome| -> f64 {
        let calls = outcome.calls.iter().filter(|one| one.call.name == "parameters");
        calls.map(|one| one.call.bytes as f64 * one.count).sum()
    };
    let of = |framework: &str, machine: &str, gather: Option<&str>| with(framework, machine, gather, "tp=2").unwrap();
    for (framework, machine, eight) in
        [("megatron", "dgx-h100", false), ("megatron-bridge", "dgx-h100", true), ("megatron-bridge", "dgx-b200", false)]
    {
        let [usual, sixteen, fp8] = [None, Some("bf16"), Some("fp8")].map(|gather| of(framework, machine, gather));
        // Embedding and head stay in 16 bits: 1.05 of 8.03 billion parameters.
        let part = gathered(&fp8) / gathered(&sixteen);
        assert!((part - 0.565).abs() < 0.005, "{framework}: {part}");
        assert_eq!(gathered(&usual), gathered(if eight { &fp8 } else { &sixteen }), "{framework} on {machine}");
    }
    // PyTorch casts weights at each use, unless they come so.
    let [sixteen, fp8] = ["bf16", "fp8"]
        .map(|gather| with("torchtitan-compiled", "dgx-h100", Some(gather), "zero=3").unwrap().layouts.remove(0));
    assert!(fp8.step.kernels < 0.97 * sixteen.step.kernels && fp8.memory.gathered < sixteen.memory.gathered);
    let refused =
        |framework: &str, layout: &str| with(framework, "dgx-h100", Some("fp8"), layout).unwrap_err().to_string();
    assert!(refused("llm-foundry", "zero=3").contains("gathers no weights in FP8"));
    let (code, _, err) = collcast(&["plan", "llama3-8b", "--gpus", "8", "--param-gather", "fp8"]);
    assert!(code == 2 && err.contains("--precision is bf16"), "{err}");
}

/// Goal: a search over what replicas share finds what a search of each stage finds.
#[test]
fn stages_of_zero_are_searched() {
    for framework in ["megatron", "torchtitan-compiled"] {
        let best = |zero: Option<u8>| {
            let mut request = Request { most: 1, global_batch: Some(64), ..Request::new("llama3-8b", "dgx-h100", 16) };
            collcast::plan::fields::set(&mut request, "framework", framework).unwrap();
            request.zero = zero;
            plan(&request, &Watch::default()).ok().map(|mut plan| plan.layouts.remove(0))
        };
        let all = best(None).unwrap();
        let each =
            (0..=3).filter_map(|zero| best(Some(zero))).filter(|one| framework == "megatron" || one.layout.zero != 1);
        let fastest = each.map(|one| one.step.seconds).fold(f64::INFINITY, f64::min);
        assert!((all.step.seconds / fastest - 1.0).abs() < 1e-9, "{framework}: {} for {fastest}", all.text);
    }
    // Without replicas there is nothing to share, and stages are searched all the same.
    let args =
        ["plan", "llama3-8b", "--gpus", "16", "--framework", "torchtitan", "--micro-batch", "1", "--top", "1000"];
    let (_, out, err) = collcast(&args);
    assert!(out.contains("tp=8,pp=2,mbs=1"), "{out}{err}");
    let (_, out, _) =
        collcast(&["plan", "llama3-8b", "--gpus", "8", "--framework", "torchtitan", "--layout", "zero=1"]);
    assert!(out.contains("torchtitan has no ZeRO 1"), "{out}");
    let eight = ["plan", "llama3-8b", "--gpus", "8", "--framework", "torchtitan", "--precision", "fp8"];
    let (code, _, err) = collcast(&[&eight[..], &["--param-gather", "fp8", "--layout", "zero=0"]].concat());
    assert!(code == 2 && err.contains("takes --zero 2 or more"), "{err}");
}

/// Goal: a sequence counts alike wherever it is given.
#[test]
fn a_layout_may_have_the_sequence() {
    let step = |args: &[&str]| {
        let (_, out, err) = collcast(&[&["plan", "llama3-8b", "--gpus", "64", "--format", "json"], args].concat());
        let plan: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{err}"));
        (plan["layouts"][0]["step_time_s"].as_f64(), err.contains("a step has 32 sequences of 131072 tokens"))
    };
    let [flag, layout] =
        [&["--layout", "tp=8,cp=4", "--seq", "131072"][..], &["--layout", "tp=8,cp=4,seq=131072"]].map(step);
    assert!(flag == layout && flag.0.is_some(), "{flag:?} {layout:?}");
}

/// Goal: a plan's step is a scenario that `simulate` runs in about the same time, whatever ranks share.
/// Method: the engine runs all ranks, operation by operation, where the plan has one stage and shares between streams.
#[test]
fn a_plan_is_a_scenario() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("plan-scenario");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("step.toml").display().to_string();
    for (model, layout, framework) in [
        ("llama3-8b", "tp=2,pp=2", "megatron"),
        ("llama3-8b", "tp=2,pp=2,vpp=4,cp=2", "megatron"),
        ("llama3-8b", "zero=0", "megatron"),
        ("llama3-8b", "zero=3,hsdp=8", "torchtitan-compiled"),
        ("mixtral-8x7b", "tp=2,pp=2,ep=4", "megatron"),
    ] {
        let flags =
            ["plan", model, "--gpus", "16", "--layout", layout, "--global-batch", "32", "--framework", framework];
        let (_, out, err) = collcast(&[&flags[..], &["--write-scenario", &path, "--format", "json"]].concat());
        let planned: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{err}"));
        let (code, out, err) = collcast(&["simulate", &path, "--format", "json"]);
        assert_eq!(code, 0, "{layout}: {err}");
        let simulated: Value = serde_json::from_str(&out).unwrap();
        let step = planned["layouts"][0]["step_time_s"].as_f64().unwrap() * 1e3;
        let ran = simulated["rows"][0]["step_ms"].as_f64().unwrap();
        assert!((ran / step - 1.0).abs() < 0.08, "{layout}: {ran} ms for {step} planned");
    }
    for (layout, says) in [("pp=2,schedule=zb", "a scenario cannot say"), ("offload=16", "copies to host memory")] {
        let (code, _, err) =
            collcast(&["plan", "llama3-8b", "--gpus", "16", "--layout", layout, "--write-scenario", &path]);
        assert!(code == 2 && err.contains(says), "{layout}: {err}");
    }
    // Hosts are slower than small kernels of many experts, which a scenario does not say.
    let waits = ["plan", "qwen3-30b-a3b", "--gpus", "16", "--layout", "ep=1", "--global-batch", "16"];
    let other = folder.join("waits.toml").display().to_string();
    let (_, _, err) = collcast(&[&waits[..], &["--write-scenario", &other]].concat());
    assert!(err.contains("warning: scenario: it leaves out ") && err.contains("GPUs wait for the host"), "{err}");
    let text = std::fs::read_to_string(&path).unwrap();
    for (from, to, says) in [
        ("on = \"tensor\"", "on = \"tnsor\"", "did you mean `tensor`?"),
        ("[[programs]]\nranks = [0,", "[[programs]]\nranks = [1,", "rank 0 is the next"),
        ("after = [\"", "after = [\"no ", "has the id `no "),
        ("call = \"all_gather\", on", "send = \"8 B\", call = \"all_gather\", on", "several things"),
    ] {
        std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
        let (code, _, err) = collcast(&["simulate", &path]);
        assert!(code == 2 && err.contains(says), "{says}: {err}");
    }
}

/// Goal: a slow host costs a job as much on whichever host it is, though groups of later stages are like those of the first.
#[test]
fn a_slow_host_counts_wherever_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let step = |slow: Option<u32>| {
        let mut text = "schema = \"collcast/topology/1\"\nlike = \"dgx-h100\"\ncount = 4\n".to_owned();
        for nic in slow.iter().flat_map(|_| 0..8) {
            let host = slow.unwrap_or(0);
            text += &format!("[[exceptions]]\nhost = \"host{host}\"\nnic = {nic}\nrate = \"25 Gb/s\"\n");
        }
        let path = folder.path().join("slow.toml");
        std::fs::write(&path, text).unwrap();
        let on = ["plan", "llama3-8b", "--on", path.to_str().unwrap(), "--gpus", "32", "--format", "json"];
        let (_, out, err) = collcast(&[&on[..], &["--layout", "tp=8,pp=2", "--global-batch", "64"]].concat());
        let plan: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{err}"));
        plan["layouts"][0]["step_time_s"].as_f64().unwrap()
    };
    let healthy = step(None);
    for host in [0, 3] {
        let slow = step(Some(host));
        assert!(slow > 1.15 * healthy, "{healthy} s, and {slow} s with a slow host {host}");
    }
}

//! Goal: `collcast plan` says how fast published training runs are that nothing was fitted to, and refuses what cannot be.
//! Method: `tests/data/training/published.csv` holds runs with a full layout; the outcome is `docs/accuracy/training.md`, which
//! must be current: `COLLCAST_UPDATE=1` writes it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use collcast::Watch;
use collcast::plan::{Request, plan};
use collcast::scenarios::memory::Framework;
use collcast::scenarios::parallel::Recompute;
use collcast::scenarios::training::{Kind, Step};
use collcast::scenarios::transformer::{Mask, load};
use collcast::scenarios::work::Dispatch;
use collcast_sim::compute::Precision;
use rayon::prelude::*;
use serde::Deserialize;
use serde_json::Value;

use crate::common::{all, collcast};

const PAGE: &str = "docs/accuracy/training.md";

#[derive(Deserialize)]
struct Run {
    model: String,
    machine: String,
    gpu: Option<String>,
    gpus: u64,
    framework: String,
    layout: String,
    precision: String,
    /// How tokens go to their experts: `deepep`, `overlap`, both or neither.
    experts: String,
    tokens_per_s_per_gpu: f64,
    source: String,
}

impl Run {
    /// Runs on OCI by the profile of an A100 with 80 GB had such GPUs; those of the built-in machine have 40.
    fn on(&self) -> String {
        match (&*self.machine, &self.gpu) {
            ("oci-a100", Some(_)) => {
                concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/training/oci-a100-80gb.toml").to_owned()
            }
            (name, _) => name.to_owned(),
        }
    }

    fn request(&self) -> Request {
        Request {
            gpu: self.gpu.clone(),
            layout: Some(self.layout.clone()),
            framework: Framework::parse(&self.framework).unwrap(),
            precision: Precision::ALL.into_iter().find(|p| p.name() == self.precision).unwrap(),
            overlap_tensor: self.source.contains("async TP"),
            overlap_experts: self.experts.contains("overlap"),
            fuse_experts: self.experts.contains("fused"),
            dispatch: self.experts.contains("deepep").then_some(Dispatch::Deepep),
            ..Request::new(self.model.clone(), self.on(), self.gpus)
        }
    }
}

fn runs() -> Vec<Run> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/training/published.csv");
    csv::Reader::from_path(path).unwrap().deserialize().collect::<Result<_, _>>().unwrap()
}

/// A step of PyTorch on two GPUs, measured by us; the clock and the memory of some.
#[derive(Deserialize)]
struct Measured {
    name: String,
    model: String,
    framework: String,
    layout: String,
    step_s: f64,
    /// By the profiler, where there was one.
    kernels_s: Option<f64>,
    exposed_s: Option<f64>,
    clock_mhz: Option<f64>,
    reserved_gib: Option<f64>,
}

/// Boost clock of an H100 and an H200, which forecasts are in shares of.
const BOOST_MHZ: f64 = 1980.0;

/// Steps measured by us beside their forecasts, with what they are made of. Errors of those that split no layer, and of those
/// with experts whose GPU sets the pace.
fn steps(page: &mut String) -> [Vec<f64>; 2] {
    page.push_str("\n## Steps measured by us\n\n");
    page.push_str(include_str!("data/training/steps.md"));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/training");
    let (mut errors, mut within): (Vec<(&str, f64)>, Vec<bool>) = Default::default();
    for (machine, of) in [("dgx-h100", "steps_h100x2.csv"), ("dgx-h200", "steps_h200x2.csv")] {
        writeln!(page, "\n| forecast / measured, two GPUs of {machine} | step, ms | error | kernels, ms | exposed, ms | clock, MHz | memory, GiB |\n|---|---|---|---|---|---|---|").unwrap();
        for row in csv::Reader::from_path(folder.join(of)).unwrap().into_deserialize() {
            let row: Measured = row.unwrap();
            let request = Request {
                layout: Some(row.layout.clone()),
                framework: Framework::parse(&row.framework).unwrap(),
                ..Request::new(folder.join(format!("{}.toml", row.model)).display().to_string(), machine.to_owned(), 2)
            };
            let outcome = plan(&request, &Watch::default()).unwrap();
            let (step, memory) = (&outcome.layouts[0].step, &outcome.layouts[0].memory);
            // It ran.
            assert!(outcome.layouts[0].fits, "{}", row.name);
            let error = row.step_s / step.seconds - 1.0;
            let busy = row.kernels_s.zip(row.exposed_s).map(|(kernels, exposed)| (kernels + exposed) / row.step_s);
            let kind = match (row.layout.as_str(), &outcome.model.experts) {
                (layout, _) if layout.contains("tp=") || layout.contains("cp=") => SPLIT,
                // The GPU has nothing to do, and waits for the host.
                _ if busy.map_or(step.issued > 0.0, |busy| busy < 0.8) => HOST,
                (_, None) => WHOLE,
                _ => EXPERTS,
            };
            errors.push((kind, error));
            let (low, high) = step.interval;
            within.extend((kind == HOST).then_some(low <= row.step_s && row.step_s <= high));
            let kernels = 1e3 * (step.kernels + step.slowed + step.optimizer);
            let exposed = 1e3 * step.exposed.iter().map(|(_, seconds)| seconds).sum::<f64>();
            let or_none = |value: Option<f64>, digits: usize| value.map_or("-".to_owned(), |v| format!("{v:.digits$}"));
            writeln!(
                page,
                "| {} | {:.0} / {:.0} | {:+.1}% | {kernels:.0} / {} | {exposed:.0} / {} | {:.0} / {} | {:.1} / {} |",
                row.name,
                1e3 * step.seconds,
                1e3 * row.step_s,
                100.0 * error,
                or_none(row.kernels_s.map(|s| 1e3 * s), 0),
                or_none(row.exposed_s.map(|s| 1e3 * s), 0),
                step.clock * BOOST_MHZ,
                or_none(row.clock_mhz, 0),
                memory.total() as f64 / f64::from(1 << 30),
                or_none(row.reserved_gib, 1)
            )
            .unwrap();
        }
    }
    assert!(within.iter().filter(|within| !**within).count() <= 1 && within.len() >= 8, "{within:?}");
    page.push_str("\n| steps | rows | mean of the error's size | worst | mean |\n|---|---|---|---|---|\n");
    let of = |kind: &str| errors.iter().filter(|e| e.0 == kind).map(|e| e.1).collect::<Vec<f64>>();
    [WHOLE, SPLIT, EXPERTS, HOST].into_iter().for_each(|kind| row(page, kind, &of(kind)));
    [of(WHOLE), of(EXPERTS)]
}

/// Kinds of steps measured by us.
const WHOLE: &str = "replicas only";
const SPLIT: &str = "layers or sequences split";
const EXPERTS: &str = "with experts";
const HOST: &str = "where the host sets the pace";

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn row(page: &mut String, what: &str, errors: &[f64]) {
    let absolute: Vec<f64> = errors.iter().map(|e| e.abs()).collect();
    let worst = absolute.iter().copied().fold(0.0, f64::max);
    let [mean_abs, worst, signed] = [mean(&absolute), worst, mean(errors)].map(|v| 100.0 * v);
    writeln!(page, "| {what} | {} | {mean_abs:.1}% | {worst:.1}% | {signed:+.1}% |", errors.len()).unwrap();
}

/// Goal: the page of errors and README's figures are today's; dense models are on average within 6%, by Megatron-Bridge on H100 within 11% each, and those with
/// experts on average within 18.5%; our own steps are within 9%, with experts within 10%.
#[test]
fn published_runs_are_forecast() {
    let runs = runs();
    let (errors, large): (Vec<f64>, Vec<Option<String>>) = (runs.par_iter())
        .map(|run| {
            let outcome =
                plan(&run.request(), &Watch::default()).unwrap_or_else(|e| panic!("{} {}: {e}", run.model, run.layout));
            let layout = &outcome.layouts[0];
            let beyond = outcome.confidence.contains("this is one of");
            assert!(!beyond, "{} {}: {}", run.model, run.layout, outcome.confidence);
            // A plan leaves some of the GPU free; these runs need not have.
            let lacks = layout.memory.total() as f64 / outcome.capacity.0 as f64 - 1.0;
            let large = (lacks > 0.0)
                .then(|| format!("{} {} {}: {:.0}% too large", run.model, run.machine, layout.text, 100.0 * lacks));
            (layout.tokens_per_s_per_gpu / run.tokens_per_s_per_gpu - 1.0, large)
        })
        .unzip();
    let large: Vec<String> = large.into_iter().flatten().collect();
    assert!(large.is_empty(), "these ran, and are called too large: {large:#?}");
    let mut page = include_str!("data/training/page.md").to_owned();
    let mut kinds: BTreeMap<(String, &str), Vec<f64>> = BTreeMap::new();
    let (mut dense, mut experts) = (Vec::new(), Vec::new());
    for (run, error) in runs.iter().zip(&errors) {
        let gpu = run.gpu.as_deref().filter(|gpu| *gpu == "h100-500w").unwrap_or(&run.machine);
        let has_experts = run.layout.contains("ep=");
        let framework = if has_experts { format!("{} with experts", run.framework) } else { run.framework.clone() };
        kinds.entry((framework, gpu)).or_default().push(*error);
        if has_experts { &mut experts } else { &mut dense }.push(*error);
    }
    page.push_str("\n| framework, machine | runs | mean of the error's size | worst | mean |\n|---|---|---|---|---|\n");
    for ((framework, machine), errors) in &kinds {
        row(&mut page, &format!("{framework}, {machine}"), errors);
    }
    row(&mut page, "all dense", &dense);
    row(&mut page, "all with experts", &experts);
    let [measured, of_experts] = steps(&mut page);
    page.push_str("\n## By run\n\n| model | machine | GPUs | framework | layout | precision | tokens/s/GPU | error |\n|---|---|---|---|---|---|---|---|\n");
    for (run, error) in runs.iter().zip(&errors) {
        let Run { model, machine, gpus, framework, precision, tokens_per_s_per_gpu, .. } = run;
        let layout = [run.layout.as_str(), run.experts.as_str()].join(" ");
        let layout = layout.trim_end();
        let machine = run.gpu.as_ref().map_or_else(|| machine.clone(), |gpu| format!("{machine} with {gpu}"));
        writeln!(page, "| {model} | {machine} | {gpus} | {framework} | {layout} | {precision} | {tokens_per_s_per_gpu} | {:+.1}% |", 100.0 * error).unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    if std::env::var_os("COLLCAST_UPDATE").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    assert!(
        std::fs::read_to_string(path).unwrap() == page,
        "{PAGE} is not current: COLLCAST_UPDATE=1 cargo test --test program plan"
    );
    let sizes = |errors: &[f64]| errors.iter().map(|e| e.abs()).collect::<Vec<f64>>();
    let readme = include_str!("../README.md").split_whitespace().collect::<Vec<_>>().join(" ");
    for figures in [
        format!(
            "{} published runs of dense models by four frameworks are {:.1}% off on average and {:.1}% too fast",
            dense.len(),
            100.0 * mean(&sizes(&dense)),
            100.0 * mean(&dense)
        ),
        format!("{} runs of models with experts are {:.0}% off", experts.len(), 100.0 * mean(&sizes(&experts))),
    ] {
        assert!(readme.contains(&figures), "README.md does not say: {figures}");
    }
    let kind = |framework: &str, machine| &kinds[&(framework.to_owned(), machine)];
    let off = |framework, machine| mean(&sizes(kind(framework, machine)));
    assert!(mean(&sizes(&dense)) < 0.06 && mean(&dense).abs() < 0.03);
    assert!(
        off("megatron-bridge", "dgx-h100") < 0.04 && kind("megatron-bridge", "dgx-h100").iter().all(|e| e.abs() < 0.11)
    );
    // NCCL's channels to a peer are those of its source, which makes sends between stages faster than runs of 2022 say.
    assert!(off("megatron-paper", "dgx-a100") < 0.055);
    assert!(kind("megatron-paper", "dgx-a100").iter().all(|e| e.abs() < 0.093));
    assert!(off("llm-foundry", "dgx-h100") < 0.07 && off("llm-foundry", "oci-a100") < 0.06);
    assert!(off("torchtitan-2024-compiled", "h100-500w") < 0.09);
    // With the stages that Megatron-Bridge has, runs of DeepSeek-V3 on B200 are forecast 13 to 52% too fast. Even stages hid that.
    assert!(mean(&sizes(&experts)) < 0.2);
    assert!(measured.iter().all(|e| e.abs() < 0.09), "{measured:?}");
    assert!(of_experts.iter().all(|e| e.abs() < 0.1) && mean(&sizes(&of_experts)) < 0.06, "{of_experts:?}");
}

/// Goal: the search gives what simulating every layout that fits gives, with every schedule and every way to share parameters.
/// Method: small models on few GPUs, their best layouts beside all of them, each given by itself.
#[test]
fn the_search_cuts_no_winner_off() {
    let usual = Request { global_batch: Some(32), ..Request::new("llama3-8b", "dgx-h100", 16) };
    let shared = Request { framework: Framework::TorchtitanCompiled, ..usual.clone() };
    let shared = Request { gpus: 32, ..shared };
    let schedules = Request { micro_batch: Some(1), gpus: 32, ..Request::new("mixtral-8x7b", "dgx-h100", 32) };
    let schedules = Request { global_batch: Some(64), recompute: Some(Recompute::Selective), ..schedules };
    let schedules = Request { framework: Framework::HaiLlm, precision: Precision::Fp8, ..schedules };
    for (few, has) in [(usual, "pp="), (shared, "hsdp="), (schedules, "schedule=dualpipe")] {
        let few = Request { most: 5, ..few };
        let all = Request { most: 100_000, ..few.clone() };
        let (all, few) = (plan(&all, &Watch::default()).unwrap(), plan(&few, &Watch::default()).unwrap());
        assert_eq!(all.looked_at.1, all.looked_at.2, "all that fit are simulated");
        assert!(all.layouts.iter().any(|layout| layout.text.contains(has)), "{has}");
        assert!(few.looked_at.2 <= all.looked_at.2, "{:?}", few.looked_at);
        let texts = |o: &collcast::plan::Outcome| o.layouts.iter().take(5).map(|l| l.text.clone()).collect::<Vec<_>>();
        // Between powers of two calls are interpolated while layouts are compared: near ties may change places.
        for layout in &few.layouts {
            let best = &all.layouts[0].step.seconds;
            assert!(texts(&all).contains(&layout.text) || layout.step.seconds < best * 1.05, "{}", layout.text);
        }
        assert_eq!(few.layouts[0].text, all.layouts[0].text);
    }
}

/// Goal: a bound is one: no layout that is simulated takes less time, whatever its schedule.
/// Method: zero bubble fills the wait for other stages with gradients of weights, which a bound may not count twice.
#[test]
fn searches_find_what_is_given() {
    let base = Request { framework: Framework::HaiLlm, precision: Precision::Fp8, most: 1, ..Request::new("", "", 0) };
    let on = |gpus: u64| Request { gpus, site: collcast::SiteSpec::new("dgx-h100"), ..base.clone() };
    let deepseek = Request { model: "deepseek-v3".to_owned(), global_batch: Some(1024), ..on(512) };
    let deepseek = Request { micro_batch: Some(1), recompute: Some(Recompute::Selective), ..deepseek };
    let llama = Request { model: "llama3-70b".to_owned(), global_batch: Some(512), ..on(256) };
    let llama = Request { framework: Framework::TorchtitanCompiled, precision: Precision::Bf16, ..llama };
    let llama = Request { micro_batch: Some(1), recompute: Some(Recompute::Full), ..llama };
    let small = Request { model: "mixtral-8x7b".to_owned(), global_batch: Some(128), micro_batch: Some(1), ..on(32) };
    let mut cases = vec![
        (small, ["pp=2,ep=8,schedule=dualpipe", "pp=2,ep=8,schedule=zb", "pp=2,ep=8"]),
        (llama, ["hsdp=64", "hsdp=8", "tp=1"]),
    ];
    if all("searches_find_what_is_given", "a search for DeepSeek-V3") {
        cases.push((deepseek, ["pp=16,ep=32,schedule=dualpipe", "pp=16,ep=32,schedule=zb", "pp=16,ep=32"]));
    }
    for (request, layouts) in cases {
        let outcome = plan(&request, &Watch::default()).unwrap();
        let (found, usable) = (&outcome.layouts[0], outcome.capacity.1);
        for layout in layouts {
            let given = Request { layout: Some(layout.to_owned()), ..request.clone() };
            let given = plan(&given, &Watch::default()).unwrap().layouts.remove(0);
            let no_faster = given.step.seconds >= 0.995 * found.step.seconds;
            // A search leaves some memory free.
            let fits = given.memory.total() <= usable;
            assert!(no_faster || !fits, "{} {} {}", given.text, found.text, given.step.seconds);
        }
    }
}

/// Goal: passes beside each other hide exchanges where there is another micro-batch, and only there: none of one, at most three of
/// four.
#[test]
fn one_micro_batch_hides_nothing() {
    let of = |batch: u64, overlap_experts: bool| {
        let layout = Some("ep=32,mbs=1".to_owned());
        let request =
            Request { layout, overlap_experts, global_batch: Some(batch), ..Request::new("", "dgx-h100", 256) };
        let request = Request { model: "qwen3-30b-a3b".to_owned(), ..request };
        plan(&request, &Watch::default()).unwrap().layouts.remove(0).step
    };
    assert_eq!(of(256, true).seconds, of(256, false).seconds);
    let [plain, four] = [false, true].map(|overlaps| of(1024, overlaps));
    let exposed = |step: &Step| step.exposed.iter().filter(|e| e.0 == Kind::Expert).map(|e| e.1).sum::<f64>();
    let (before, after) = (exposed(&plain), exposed(&four));
    assert!(four.seconds < plain.seconds && after < before, "{plain:?} {four:?}");
    assert!(after > 0.249 * before, "{before} {after}");
    // With many of them nearly all rounds are pairs.
    let [plain, many] = [false, true].map(|overlaps| of(8192, overlaps));
    assert!(plain.seconds / many.seconds > of(1024, false).seconds / four.seconds, "{plain:?} {many:?}");
}

/// Goal: while a stage waits for others, these run kernels that are off by as much: a step that is bubble for the most part is
/// no surer than one without. Counts beyond published runs are said to be.
#[test]
fn bubbles_are_as_unsure_as_passes() {
    let of = |batch: u64| {
        let layout = Some("tp=8,pp=16".to_owned());
        let request = Request { layout, global_batch: Some(batch), ..Request::new("llama3-70b", "dgx-h100", 128) };
        let step = plan(&request, &Watch::default()).unwrap().layouts.remove(0).step;
        ((step.interval.1 - step.interval.0) / 2.0 / step.seconds, step.bubble / step.seconds)
    };
    let [(few, bubble), (many, little)] = [8, 2048].map(of);
    assert!(bubble > 0.5 && little < 0.05, "{bubble} {little}");
    assert!((few / many - 1.0).abs() < 0.1, "{few} {many}");
    let mut most: BTreeMap<(String, bool), u64> = BTreeMap::new();
    for run in runs() {
        let known = most.entry((run.framework.clone(), run.layout.contains("ep="))).or_default();
        *known = run.gpus.max(*known);
    }
    for ((framework, experts), gpus) in most {
        let layout = if experts { "pp=4,vpp=4,ep=8" } else { "tp=8" };
        let request = Request { layout: Some(layout.to_owned()), ..Request::new("", "dgx-h100", 2 * gpus) };
        let model = if experts { "deepseek-v3" } else { "llama3-8b" };
        let precision = if framework == "hai-llm" { Precision::Fp8 } else { Precision::Bf16 };
        let request = Request { model: model.to_owned(), precision, ..request };
        let request = Request { framework: Framework::parse(&framework).unwrap(), ..request };
        let confidence = plan(&request, &Watch::default()).unwrap().confidence;
        // One limit for all kinds of one framework's releases.
        let largest = !matches!(framework.as_str(), "torchtitan-2024");
        assert!(!largest || confidence.contains(&format!("at most {gpus} GPUs")), "{framework}: {confidence}");
    }
}

/// Goal: what does not fit is told the nearest count that does, and that sharing parameters does.
#[test]
fn what_does_not_fit_says_where_it_does() {
    for (model, gpus, fits) in [("llama3-405b", 104, 112), ("deepseek-v3", 144, 168)] {
        let (code, _, err) = collcast(&["plan", model, "--gpus", &gpus.to_string(), "--zero", "1"]);
        let hint = format!("it fits on {fits} GPUs of this kind");
        assert!(code == 2 && err.contains(&hint), "{err}");
        let request = |gpus: u64, zero| Request { zero, most: 1, ..Request::new(model, "dgx-h100", gpus) };
        assert!(plan(&request(fits, Some(1)), &Watch::default()).unwrap().layouts[0].fits);
        let shared = plan(&request(gpus, Some(3)), &Watch::default()).is_ok_and(|outcome| outcome.layouts[0].fits);
        assert_eq!(shared, err.contains(&format!("--zero 3, with which it fits on {gpus} GPUs")), "{err}");
    }
}

/// Goal: the fewest GPUs may be part of a host.
#[test]
fn part_of_a_host_may_be_enough() {
    let (code, _, err) = collcast(&["plan", "llama3-8b", "--gpus", "1"]);
    assert!(code == 2 && err.contains("it fits on 2 GPUs of this kind"), "{err}");
    let two = Request { most: 1, ..Request::new("llama3-8b", "dgx-h100", 2) };
    assert!(plan(&two, &Watch::default()).unwrap().layouts[0].fits);
}

/// Goal: more GPUs take no call faster than their NICs carry it: sums of gradients take what one NIC of 50 GB/s a rank needs where
/// each byte goes out once. In weak scaling a step is shorter on more GPUs by no more than NCCL's change from rings to trees brings,
/// 18%.
#[test]
fn weak_scaling_keeps_the_line_rate() {
    let exposed = |gpus: u64, zero: u8| {
        let request = Request {
            layout: Some("tp=8".to_owned()),
            micro_batch: Some(1),
            global_batch: Some(gpus / 8),
            zero: Some(zero),
            ..Request::new("llama3-70b", "dgx-h100", gpus)
        };
        let outcome = plan(&request, &Watch::default()).unwrap();
        let (model, step) = (&outcome.model, &outcome.layouts[0].step);
        let hidden = step.kernels;
        let data: f64 = step.exposed.iter().filter(|part| part.0.name() == "data").map(|part| part.1).sum();
        // Gradients in 32 bits of an eighth of the model, which go out once where switches reduce.
        let least = model.parameters().total() as f64 / 8.0 * 4.0 / 50e9;
        assert!(data + hidden > least, "{gpus} GPUs, ZeRO-{zero}: {data} s for {least}");
        step.seconds
    };
    for zero in [0, 1] {
        let steps = [1024, 6144, 16_384].map(|gpus| exposed(gpus, zero));
        assert!(steps.windows(2).all(|two| two[1] > 0.82 * two[0]), "ZeRO-{zero}: {steps:?}");
    }
}

/// Goal: what a stage has whose kernels are told, how large the model is, and what was read in a file are said.
#[test]
fn what_was_read_is_said() {
    let run = |args: &[&str]| {
        let (_, out, err) = collcast(&[&["plan"], args].concat());
        out + &err
    };
    let out = run(&["llama3-70b", "--gpus", "64", "--layout", "tp=8,pp=2,first=30", "--global-batch", "64"]);
    assert!(
        out.contains("`llama3-70b` (70.55 B parameters, 449 GFLOP a token in sequences of 8192) on 64 GPUs"),
        "{out}"
    );
    assert!(out.contains("kernels of the busiest stage (stage 1 of 0 to 1: 50 layers, head)"), "{out}");
    let out =
        run(&["llama3-8b", "--gpus", "1", "--layout", "recompute=full", "--tokens", "1M", "--framework", "eager"]);
    assert!(out.contains("on 1 GPU of dgx-h100") && !out.contains("1 GPUs"), "{out}");
    let out = run(&["llama3-8b", "--gpus", "8", "--seq", "8191", "--global-batch", "64"]);
    assert!(out.contains("8191 tokens are no multiple of 8: --seq 8192 allows more layouts"), "{out}");
    // Machines that help lists are those that a plan takes.
    let help = run(&["--help"]);
    let listed =
        help.split("whose GPUs have a profile: ").nth(1).and_then(|rest| rest.split(". Others").next()).unwrap();
    let mut listed: Vec<&str> = listed.split_whitespace().collect();
    let known = |name: &&str| {
        let site = collcast::SiteSpec { nodes: Some(1), ..collcast::SiteSpec::new(*name) };
        site.load().is_ok_and(|site| collcast::kernels::gpu_of(&site.topology, None).is_ok())
    };
    let mut planned: Vec<&str> = collcast::topologies::builtin::names().into_iter().filter(known).collect();
    listed.sort_unstable();
    planned.sort_unstable();
    assert_eq!(listed, planned);
}

/// Goal: no two layouts of a ranking keep the same and compute the same again.
#[test]
fn rankings_have_no_layout_twice() {
    let hai = Request {
        framework: Framework::HaiLlm,
        precision: Precision::Fp8,
        micro_batch: Some(1),
        global_batch: Some(128),
        ..Request::new("deepseek-v3", "dgx-h100", 128)
    };
    let dense = Request { micro_batch: Some(1), ..Request::new("llama3-70b", "dgx-h100", 64) };
    for request in [hai, dense] {
        let layouts = plan(&request, &Watch::default()).unwrap().layouts;
        let steps: Vec<f64> = layouts.iter().map(|layout| layout.step.seconds).collect();
        assert!(steps.windows(2).all(|two| two[0] < two[1]), "{steps:?}");
        // cuDNN keeps no scores: computing attention again spares next to nothing.
        let spares = request.framework == Framework::HaiLlm;
        assert!(spares || layouts.iter().all(|layout| layout.layout.recompute != Recompute::Selective));
    }
}

/// Goal: what was asked for and is not as it seems is said: a schedule that a framework has not, memory of another GPU, a value that
/// is refused, a layout that does not fit.
#[test]
fn what_is_not_as_asked_is_said() {
    // What was assumed, then the tables and the verdict.
    let run = |args: &[&str]| {
        let (code, out, err) = collcast(&[&["plan", "llama3-8b", "--gpus", "16"], args].concat());
        (code, out + &err)
    };
    let pipeline = ["--layout", "tp=2,pp=4,schedule=dualpipe", "--global-batch", "64"];
    let (code, out) = run(&pipeline);
    assert!(code == 0 && out.contains("megatron has no schedule dualpipe"), "{out}");
    let (code, out) = run(&["--layout", "tp=2", "--vary", "schedule=zb-h1,dualpipe", "--vary", "pp=1,2"]);
    assert!(code == 0 && out.contains("megatron has no schedule zb"), "{out}");
    let refused = out.lines().find(|line| line.contains("a step takes")).unwrap();
    assert!(refused.starts_with("warning") && refused.contains("not varied: schedule=dualpipe, pp=1"), "{out}");
    let (_, out) = run(&["--layout", "tp=2", "--gpu", "b200"]);
    assert!(out.contains("the memory is that of dgx-h100, 79.2 GiB a GPU and not "), "{out}");
    let (code, out) = run(&["--layout", "mbs=4", "--tokens", "1T", "--price", "2"]);
    assert!(code == 1 && out.contains("does not fit"), "{code} {out}");
    let (_, out) = run(&["--layout", "tp=2", "--vary", "bucket=40M,80e6"]);
    assert!(out.contains("bucket=40M") && !out.contains("not varied"), "{out}");
    let (code, out) = run(&["--layout", "tp=2", "--tokens", "1T", "--price", "-2"]);
    assert!(code == 2 && out.contains("expected a number from 0 on") && !out.contains("-- -2"), "{out}");
    // The peak that MFU is of is said once.
    let (_, out) = run(&["--layout", "tp=2", "--precision", "fp8"]);
    assert!(out.matches("MFU and HFU are parts of 1979 TFLOP/s a GPU, its dense peak in fp8").count() == 1, "{out}");
    assert!(out.contains("TFLOP/s/GPU") && out.contains("HFU %"), "{out}");
    // The length of sequences is no assumption where it is given.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    let config = r#"{"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960}"#;
    std::fs::write(&path, config).unwrap();
    let path = path.display().to_string();
    let said = |more: &[&str]| {
        let (_, out, err) = collcast(&[&["plan", &path, "--gpus", "8", "--layout", "tp=8"], more].concat());
        let said = out + &err;
        assert!(said.contains("a step takes"), "{said}");
        said.contains("--seq says otherwise")
    };
    assert!(said(&[]) && !said(&["--seq", "4096"]));
}

/// Goal: the layouts that a search shows are the best in full detail, in their order, though it compares them roughly.
/// Method: the ten that it shows beside the first ten of a hundred that are all simulated in detail.
#[test]
fn the_ten_best_are_the_best_in_detail() {
    for (model, gpus, batch) in [("llama3-8b", 16, 32), ("llama3-8b", 32, 128), ("mixtral-8x7b", 64, 256)] {
        let ten = Request { global_batch: Some(batch), ..Request::new(model, "dgx-h100", gpus) };
        let many = Request { most: 100, ..ten.clone() };
        let [ten, many] = [ten, many].map(|request| plan(&request, &Watch::default()).unwrap().layouts);
        let texts = |layouts: &[collcast::plan::Layout]| -> Vec<String> {
            layouts.iter().take(10).map(|layout| layout.text.clone()).collect()
        };
        assert_eq!(texts(&ten), texts(&many), "{model} on {gpus}");
    }
}

/// Goal: the JSON is the contract, and its parts add up to the step.
#[test]
fn json_holds_the_contract() {
    let args = [
        "plan",
        "llama3-8b",
        "--on",
        "dgx-h100",
        "--gpus",
        "8",
        "--layout",
        "tp=2",
        "--tokens",
        "1T",
        "--format",
        "json",
    ];
    let (code, out, err) = collcast(&args);
    assert_eq!(code, 0, "{err}");
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["schema"], "collcast/plan/1");
    let layout = &json["layouts"][0];
    let number = |key: &str| layout[key].as_f64().unwrap_or_else(|| panic!("{key}"));
    let exposed: f64 = layout["exposed_s"].as_object().unwrap().values().map(|v| v.as_f64().unwrap()).sum();
    let sum = number("kernels_s")
        + number("slowed_s")
        + number("issued_s")
        + exposed
        + number("bubble_s")
        + number("optimizer_s");
    assert!((sum / number("step_time_s") - 1.0).abs() < 1e-6, "{sum}");
    assert!(number("low_s") < number("step_time_s") && number("step_time_s") < number("high_s"));
    assert!(number("mfu") > 0.2 && number("mfu") < 0.8 && layout["fits"] == true);
    assert_eq!((layout["layout"]["tensor"].as_u64(), layout["layout"]["data"].as_u64()), (Some(2), Some(4)));
    assert!(json["goodput"].as_f64().unwrap() > 0.9);
}

/// Goal: gradients of all chunks are summed, and no earlier than they are there: over one slow port a step takes as long with
/// interleaved stages as with plain ones, and putting off gradients of weights hides none of their sums.
#[test]
fn gradients_of_all_chunks_are_summed() {
    let step = |machine: &str, layout: &str| {
        let args = ["plan", "llama3-70b", "--on", machine, "--gpus", "256", "--global-batch", "64", "--layout", layout];
        let (code, out, err) = collcast(&[&args[..], &["--format", "json"]].concat());
        assert_eq!(code, 0, "{err}");
        let json: Value = serde_json::from_str(&out).unwrap();
        let layout = &json["layouts"][0];
        (layout["step_time_s"].as_f64().unwrap(), layout["exposed_s"]["data"].as_f64().unwrap())
    };
    // 8.8e9 parameters of 4 bytes, four ranks to a port of 1.25 GB/s: 113 s of sums alone.
    let [plain, chunks] = ["tp=4,pp=2", "tp=4,pp=2,vpp=20"].map(|layout| step("h200x4", layout).0);
    assert!(chunks > 113.0 && (chunks / plain - 1.0).abs() < 0.05, "{chunks} {plain}");
    let [plain, off] = ["tp=4,pp=4", "tp=4,pp=4,schedule=zb"].map(|layout| step("kestrel-h100", layout).1);
    assert!(plain > 0.5 && off > 0.8 * plain, "{off} {plain}");
}

/// Goal: a search takes tensor ranks from all GPUs that NVLink joins, on a rack more than those of a tray.
#[test]
fn a_rack_is_one_domain() {
    let request =
        |gpus: u64| Request { global_batch: Some(gpus), most: 1, ..Request::new("llama3-405b", "gb200-nvl72", gpus) };
    let best = |request: &Request| plan(request, &Watch::default()).unwrap().layouts.remove(0);
    // No layout of four tensor ranks fits on 48, unless replicas share parameters.
    assert!(best(&Request { zero: Some(1), ..request(48) }).layout.tensor > 4);
    let found = best(&request(64));
    let given = best(&Request { layout: Some("tp=8,pp=8".to_owned()), ..request(64) });
    assert!(given.fits && found.step.seconds < 1.01 * given.step.seconds, "{} {}", found.text, given.text);
}

/// Goal: a head that is the embedding is updated once where one stage has both, and is a copy where two have.
#[test]
fn tied_heads_are_updated_once() {
    let tied = include_str!("../scenarios/models/mpt-1b.toml");
    let untied = tied.replace("tied = true", "tied = false");
    assert_ne!(tied, untied);
    let folder = tempfile::tempdir().unwrap();
    let of = |text: &str, layout: &str| {
        let path = folder.path().join("model.toml");
        std::fs::write(&path, text).unwrap();
        let layout = Some(layout.to_owned());
        let request = Request { layout, ..Request::new(path.display().to_string(), "dgx-h100", 8) };
        plan(&request, &Watch::default()).unwrap().layouts.remove(0).step.optimizer
    };
    // The table has 7% of the parameters.
    assert!(of(tied, "dp=8") < 0.97 * of(&untied, "dp=8"));
    assert_eq!(of(tied, "pp=2"), of(&untied, "pp=2"));
}

/// Goal: of the busiest stage's kernels no more run again than it has; HFU has the arithmetic of all stages that runs again.
/// Method: the first three layers of DeepSeek-V3 alone have the MLP that is computed again; other stages are busier.
#[test]
fn kernels_run_again_on_the_stage_that_has_them() {
    let layout = Some("pp=8,ep=64,recompute=mlp".to_owned());
    let (framework, precision) = (Framework::MegatronBridge, Precision::Fp8);
    let request = Request { layout, framework, precision, ..Request::new("deepseek-v3", "dgx-h100", 512) };
    let found = plan(&request, &Watch::default()).unwrap().layouts.remove(0);
    assert_eq!(found.step.recomputed, 0.0);
    assert!(found.hfu > found.mfu && found.hfu < 1.01 * found.mfu, "{} {}", found.hfu, found.mfu);
    // The host is ahead of the GPU, and no rest of a sum says that it is not.
    let request = Request { layout: Some("tp=4,pp=4".to_owned()), ..Request::new("llama3-70b", "dgx-h100", 64) };
    let step = plan(&request, &Watch::default()).unwrap().layouts.remove(0).step;
    assert_eq!((step.issued, step.recomputed), (0.0, 0.0));
    // Attention computed again is a forward pass of it, three of which are its part of the model's FLOPs; an activation is no
    // arithmetic.
    let more = |model: &str, layout: &str| {
        let layout = Some(layout.to_owned());
        let found =
            plan(&Request { layout, sequence: Some(2048), ..Request::new(model, "dgx-h100", 64) }, &Watch::default());
        let found = found.unwrap().layouts.remove(0);
        found.hfu / found.mfu - 1.0
    };
    let model = load("llama3-8b").unwrap().0;
    let flops = model.flops(2048, Mask::Causal).training();
    let forward = 4.0 * 32.0 * 128.0 * 32.0 * 2048.0 / 2.0;
    let selective = more("llama3-8b", "tp=8,pp=4,recompute=selective");
    assert!((selective - forward / flops).abs() < 1e-3 * selective && (selective - 0.0115).abs() < 1e-3, "{selective}");
    assert_eq!(more("llama3-8b", "tp=8,pp=4"), 0.0);
    assert_eq!(more("mixtral-8x7b", "tp=4,pp=2,recompute=moe_act"), 0.0);
    // All layers again: a third more but for the head.
    let full = more("llama3-8b", "tp=8,pp=4,recompute=full");
    assert!(full > 0.27 && full < 0.3334, "{full}");
}

/// Goal: what cannot be planned is refused, with what breaks and the way out.
#[test]
fn impossible_plans_say_why() {
    let refused = |args: &[&str], parts: &[&str]| {
        let (code, _, err) = collcast(&[&["plan"], args].concat());
        assert_eq!(code, 2, "{args:?}: {err}");
        for part in parts {
            assert!(err.contains(part), "{args:?}: {part} in {err}");
        }
    };
    refused(&["llama3-70", "--gpus", "8"], &["llama3-70", "did you mean"]);
    refused(&["llama3-8b", "--gpus", "12"], &["12 GPUs are no whole number of hosts of 8"]);
    refused(&["llama3-8b", "--gpus", "64..100"], &["doubling 64 does not reach 100", "64,100"]);
    let twice = ["llama3-8b", "--gpus", "8", "--layout", "GBS=64", "--global-batch", "32"];
    refused(&twice, &["--global-batch and `gbs` of --layout say different things"]);
    refused(&["llama3-8b", "--gpus", "8", "--layout", "tp=3"], &["ranks", "8 GPUs", "whose product divides"]);
    refused(&["llama3-8b", "--gpus", "8", "--layout", "tp=8,pp=3"], &["24 ranks"]);
    refused(&["llama3-8b", "--gpus", "16", "--layout", "tp=4,pp=4,vpp=3"], &["32 layers", "these work: "]);
    refused(&["llama3-405b", "--gpus", "8"], &["does not fit on 8 GPUs", "it fits on "]);
    refused(&["llama3-8b", "--gpus", "8", "--on", "abci-v100"], &["no profile says how fast", "--gpu"]);
    refused(&["llama3-8b", "--gpus", "8", "--seq", "0"], &["--seq is 0"]);
    refused(&["llama3-8b", "--gpus", "0"], &["0 GPUs"]);
    refused(&["llama3-8b", "--gpus", "8", "--layout", "tp=4294967295,pp=4294967295,cp=4294967295"], &["ranks"]);
    refused(&["llama3-8b", "--gpus", "18446744073709551608"], &["no layout", "change --gpus"]);
    // What is named works on as many GPUs.
    let shared = ["llama3-70b", "--gpus", "64", "--layout", "tp=8,pp=8,hsdp=2"];
    refused(&shared, &["the 1 ranks of dp x cp", "these work: tp=8,pp=8,mbs=1,", "hsdp=1"]);
    let spread = ["llama3-405b", "--gpus", "1024", "--layout", "tp=8,pp=16,vpp=3", "--global-batch", "1024"];
    refused(&spread, &["the 126 layers", "these work: tp=8,pp=16,vpp=4,dp=8,", "tp=8,pp=16,vpp=2,dp=8,"]);
    refused(&["llama3-8b", "--gpus", "64", "--layout", "zero=3,hsdp=48"], &["these work: ", "hsdp=64"]);
    refused(&["llama3-8b", "--gpus", "8", "--layout", "offload=3,recompute=full"], &["these work: ", "offload=3"]);
    // Nothing would be computed again.
    for (recompute, says) in
        [("layernorm", "as one with the product after them"), ("moe_act", "the model has no experts")]
    {
        refused(&["llama3-8b", "--gpus", "8", "--recompute", recompute], &[says, "leave it out"]);
    }
    refused(&["llama3-8b", "--gpus", "8", "--layout", "tp=8,recompute=layernorm"], &["as one with the product"]);
    let endless = ["llama3-8b", "--gpus", "8", "--layout", "tp=8", "--global-batch", "1000000000000"];
    refused(&endless, &["passes of micro-batches", "raise dp"]);
    refused(&["llama3-8b", "--gpus", "8", "--layout", "tp=8,schedule=dualpipe"], &["dualpipe"]);
    // What one rank has no part in.
    for schedule in ["gpipe", "zb", "interleaved"] {
        let layout = format!("tp=8,schedule={schedule}");
        refused(&["llama3-8b", "--gpus", "8", "--layout", &layout], &[schedule, "pp of --layout is 1"]);
    }
    let alone = ["llama3-8b", "--gpus", "8", "--layout", "dp=8", "--overlap-tensor"];
    refused(&alone, &["--overlap-tensor has no meaning here", "give tp=2 or more"]);
    let alone = ["mixtral-8x7b", "--gpus", "64", "--layout", "tp=8", "--dispatch", "deepep"];
    refused(&alone, &["--dispatch has no meaning here", "give ep=2 or more"]);
    for other in
        ["--on dgx-b200", "--on dgx-b200 --precision fp8 --framework torchtitan", "--on dgx-h100 --precision fp8"]
    {
        let fused = ["qwen3-30b-a3b", "--gpus", "8", "--fuse-experts"].into_iter().chain(other.split(' '));
        refused(&fused.collect::<Vec<&str>>(), &["--fuse-experts", "SwiGLU in FP8 on Blackwell"]);
    }
    refused(&["llama3-8b", "--gpus", "8", "--fuse-experts"], &["--fuse-experts is of models with experts"]);
    refused(&["llama3-8b", "--gpus", "8", "--precision", "fp9"], &["fp9", "known: bf16"]);
}

/// Goal: weak scaling of the published runs of 2023 from 128 to 512 GPUs loses some per cent, as they did: within 3.5 points of
/// theirs, which are 5%, 4%, 3% and 8%.
#[test]
fn weak_scaling_loses_about_what_it_did() {
    for (model, layout, sequences) in [
        ("mpt-70b", "mbs=8,recompute=full", 8),
        ("mpt-30b", "mbs=8,recompute=full", 8),
        ("mpt-13b", "mbs=16,recompute=full", 16),
        ("mpt-7b", "mbs=6", 6),
    ] {
        let of = |gpus: u64| {
            let request = Request {
                layout: Some(format!("zero=3,{layout},gbs={}", sequences * gpus)),
                framework: Framework::LlmFoundry,
                ..Request::new(model, "dgx-h100", gpus)
            };
            plan(&request, &Watch::default()).unwrap().layouts[0].tokens_per_s_per_gpu
        };
        let runs = runs();
        let published = |gpus: u64| {
            let is = |run: &&Run| run.model == model && run.machine == "dgx-h100" && run.gpus == gpus;
            runs.iter().find(is).unwrap().tokens_per_s_per_gpu
        };
        let [ours, theirs] = [of(512) / of(128), published(512) / published(128)];
        assert!(ours < 0.995 && (ours - theirs).abs() < 0.035, "{model}: {ours} {theirs}");
    }
}

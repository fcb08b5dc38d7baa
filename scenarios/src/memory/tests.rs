//! Goal: bytes are those that were measured and published. Data: `tests/data/compute/` (its origin: `tests/data/SOURCES.md`).

use super::*;
use crate::parallel::{Recompute, Schedule, Split};
use crate::tests::{Row, llama, rows};
use crate::transformer::{Attention, LayerKind, load};

/// Bytes.
const GIB: f64 = (1_u64 << 30) as f64;

/// Goal: what one layer keeps, to the byte but for the allocator's rounding: eager and compiled, 1 to 8 tensor ranks.
/// Method: blocks.csv gives heads and width of one rank, so the layer is that of the whole model split over `tp`.
#[test]
fn layers_keep_what_was_measured() {
    let mut worst: f64 = 0.0;
    for (machine, fallen_back) in [("h200x1", 3), ("h100x1", 0)] {
        let mut fallen = 0;
        let rows = rows(&format!("{machine}/blocks.csv"));
        for row in &rows {
            let t = row.number("tp");
            let mut model = llama(row, 1, 1, 1);
            let heads = row.number("heads");
            let head_dim = row.number("hidden") / (heads * t);
            model.attention =
                Attention::Gqa { heads: heads * t, kv_heads: row.number("kv_heads") * t, head_dim, head_norm: false };
            model.width *= t;
            let parallel = Parallel { tensor: row.size("tp"), ..Parallel::default() };
            assert_eq!(local_layer(&model, &parallel), row.number("parameters"), "{}", row.text("name"));

            let saved = row.number("saved_bytes") as f64;
            // On the H200 three layers ran eager after the first two shapes were compiled: they kept to the byte what the
            // eager row keeps, and took its time. On the H100 all were compiled.
            let eager = rows.iter().any(|other| {
                let same = ["name", "tp", "seq", "micro_batch", "saved_bytes"];
                other.number("compiled") == 0 && same.iter().all(|key| other.text(key) == row.text(key))
            });
            fallen += u64::from(eager) * row.number("compiled");
            let framework = if eager { Framework::Eager } else { Framework::Compiled };
            let lines = layer(&model, LayerKind::Dense, &parallel, &framework.software());
            let kept = kept::sum(&lines) * row.number("micro_batch") as f64 * row.number("seq") as f64;
            let error = (kept / saved - 1.0).abs();
            assert!(error <= 0.03, "{machine} {} tp {t}: {kept} for {saved}", row.text("name"));
            worst = worst.max(error);
        }
        assert_eq!(fallen, fallen_back, "{machine}");
    }
    // 2 MiB of a block that was not split, in 106 MB; all others are within 0.01%.
    assert!(worst < 0.021, "{worst}");
}

fn local_layer(model: &Transformer, parallel: &Parallel) -> u64 {
    let software = Framework::Eager.software();
    let plan = Planner { model, parallel, software: &software, stage: 1, layers: 0..1, chunks: vec![1] };
    Local::of(&plan).total() as u64
}

/// Goal: the peak of whole models, and what they hold before: within 5% on average and 10% at worst of PyTorch's own count.
#[test]
fn models_peak_where_they_did() {
    let mut errors = Vec::new();
    for machine in ["h200x1", "h100x1"] {
        for (file, framework) in [("models", Framework::Eager), ("models_compiled", Framework::Compiled)] {
            for row in rows(&format!("{machine}/{file}.csv")) {
                let model = llama(&row, row.number("layers"), row.number("vocab"), 1);
                assert_eq!(model.parameters().total(), row.number("parameters"));
                let recompute = if row.number("recompute") == 1 { Recompute::Full } else { Recompute::None };
                let parallel = Parallel {
                    micro_batch: row.size("micro_batch"),
                    global_batch: row.number("micro_batch") * row.number("accumulate"),
                    recompute,
                    ..Parallel::default()
                };
                let stage = plan(&model, &parallel, &framework.software()).unwrap().worst();
                let (allocated, peak) = (stage.allocated() as f64, row.number("peak_bytes") as f64);
                let (held, found) = ((stage.weights + stage.optimizer) as f64, row.number("static_bytes") as f64);
                // Two compiled rows of each machine were taken before the layers had optimizer states: 4 B for each of
                // their parameters are missing in what was held and in the peak.
                let layers = model.layers * 2 * 2 * model.layer_parameters(LayerKind::Dense).attention;
                let missing = if held - found > layers as f64 {
                    4.0 * (model.layers * local_layer(&model, &parallel)) as f64
                } else {
                    0.0
                };
                let held_error = ((held - missing) / found - 1.0).abs();
                // The rest are tables of rotations of each layer (4 B x head x sequence) and, in the first run of a process,
                // 72 MB of workspaces.
                assert!(held_error < 0.015, "{machine} {file}: holds {held}, found {found}");
                let error = ((allocated - missing) / peak - 1.0).abs();
                assert!(error <= 0.1, "{machine} {file} {}: {allocated} for {peak}", row.text("name"));
                errors.push((error, missing > 0.0));
            }
        }
    }
    assert_eq!(errors.iter().filter(|error| error.1).count(), 4);
    let mean = errors.iter().map(|error| error.0).sum::<f64>() / errors.len() as f64;
    let worst = errors.iter().map(|error| error.0).fold(0.0, f64::max);
    println!("peaks: mean {:.3}%, worst {:.3}% of {}", mean * 100.0, worst * 100.0, errors.len());
    assert!(mean < 0.005 && worst < 0.01, "{mean} {worst}");
}

/// Goal: the twelve values of Korthikanti et al. (arXiv 2205.05198, figure 1), exactly.
#[test]
fn the_paper_of_megatron_is_reproduced() {
    let paper = Framework::MegatronPaper.software();
    for (name, pipeline, chunks, micro_batch, global_batch, states, none, lean) in [
        ("gpt-22b", 1, 1, 4, 4, 45.5625, 59.25, 9.5625),
        ("gpt-175b", 8, 3, 1, 64, 45.5625, 66.84375, 12.3515625),
        ("gpt-530b", 35, 3, 1, 280, 31.640625, 114.0234375, 23.076171875),
        ("gpt-1t", 64, 1, 1, 512, 32.958984375, 131.25, 26.5625),
    ] {
        let model = load(name).unwrap().0;
        let layout = Parallel {
            tensor: 8,
            pipeline,
            virtual_stages: chunks,
            schedule: if chunks > 1 { Schedule::Interleaved } else { Schedule::OneForwardOneBackward },
            micro_batch,
            global_batch,
            ..Parallel::default()
        };
        // The paper counts 12 h^2 parameters a layer, and FP16 with gradients in 32 bits: 18 B.
        let counted = (12 * model.hidden * model.hidden * model.layers) as f64 / f64::from(8 * pipeline);
        assert_eq!(counted * States::BF16.held(0, 1) / GIB, states, "{name}");
        let activations =
            |parallel: Parallel| plan(&model, &parallel, &paper).unwrap().stages[0].activations as f64 / GIB;
        assert_eq!(activations(layout), none, "{name}");
        let lean_layout = Parallel { sequence_parallel: true, recompute: Recompute::Selective, ..layout };
        assert_eq!(activations(lean_layout), lean, "{name}");
    }
    // Figure 7, relative to no recomputation, for 175B: sequence parallel, selective, both, full.
    let model = load("gpt-175b").unwrap().0;
    let layer = |sequence_parallel, recompute| {
        let parallel = Parallel { tensor: 8, sequence_parallel, recompute, ..Parallel::default() };
        kept::sum(&kept::layer(&model, LayerKind::Dense, &parallel, &paper))
    };
    let whole = layer(false, Recompute::None);
    for (sequence_parallel, recompute, percent) in [
        (true, Recompute::None, "61.96"),
        (false, Recompute::Selective, "56.52"),
        (true, Recompute::Selective, "18.48"),
        (false, Recompute::Full, "8.70"),
    ] {
        assert_eq!(format!("{:.2}", layer(sequence_parallel, recompute) / whole * 100.0), percent);
    }
}

/// Goal: bytes of states of every row of Megatron-LM's table, and of a checkpoint as NVIDIA's recipes print it.
#[test]
fn states_are_those_of_the_tables() {
    let n = 8.0;
    for (states, replicated, shared) in [
        (States::BF16, 18.0, [6.0 + 12.0 / n, 2.0 + 16.0 / n, 18.0 / n]),
        (States::BF16_GRADIENTS, 16.0, [4.0 + 12.0 / n, 2.0 + 14.0 / n, 16.0 / n]),
        (States::FP32, 16.0, [8.0 + 8.0 / n, 4.0 + 12.0 / n, 16.0 / n]),
        (States::DEEPSEEK_V3, 13.0, [5.0 + 8.0 / n, 1.0 + 12.0 / n, 13.0 / n]),
    ] {
        assert_eq!(states.held(0, 8), replicated);
        assert_eq!([1, 2, 3].map(|zero| states.held(zero, 8)), shared);
    }
    for (name, gib) in [("llama3-8b", 105.0), ("llama3-70b", 920.0), ("nemotron4-15b", 204.0)] {
        let bytes = load(name).unwrap().0.parameters().total() as f64 * States::BF16.checkpoint() / GIB;
        assert_eq!(bytes.round(), gib, "{name}");
    }
}

/// Goal: what stages hold is the model, once: gradients of FSDP in a pipeline, modules of a last stage that has no layer, the
/// optimizer of two stages of DualPipe.
#[test]
fn nothing_is_held_twice_or_forgotten() -> Result<(), Box<dyn std::error::Error>> {
    let of = |model: &str, framework: Framework, layout: &str| -> Result<Vec<Stage>, Box<dyn std::error::Error>> {
        let (model, parallel) = (load(model)?.0, Parallel::parse(layout)?);
        let split = Split::of(&model, &parallel);
        Ok(plan(&model, &Parallel { split, ..parallel }, &framework.software())?.stages)
    };
    // Both keep the stage whole between micro-batches.
    let whole = |zero: u8| -> Result<u64, Box<dyn std::error::Error>> {
        let layout = format!("tp=8,pp=6,dp=8,gbs=256,sp=on,zero={zero}");
        let stage = &of("llama3-405b", Framework::TorchtitanCompiled, &layout)?[0];
        Ok(stage.gradients + stage.gathered)
    };
    assert_eq!(whole(2)?, whole(3)?);
    // The last of 32 stages has a copy of the embedding for its module, and no layer.
    let held = |layout: &str| of("deepseek-v3", Framework::Megatron, layout);
    let (one, many) = (held("gbs=32")?, held("pp=32,gbs=32")?);
    assert_eq!(many[31].layers, 0);
    let model = load("deepseek-v3")?.0;
    let embedding = model.vocabulary * model.hidden;
    assert_eq!(many.iter().map(|stage| stage.parameters).sum::<u64>(), one[0].parameters + embedding);
    assert!(many[31].working > 0);
    let optimizer =
        |zero: u8| of("llama3-8b", Framework::Megatron, &format!("pp=4,gbs=8,schedule=dualpipe,zero={zero}"));
    assert_eq!(optimizer(0)?[1].optimizer, 2 * optimizer(1)?[1].optimizer);
    Ok(())
}

fn layout(row: &Row) -> Parallel {
    let vpp = if row.0.contains_key("vpp") { row.size("vpp") } else { 1 };
    let one = |key: &str| if row.0.contains_key(key) { row.size(key) } else { 1 };
    Parallel {
        tensor: row.size("tp"),
        pipeline: row.size("pp"),
        virtual_stages: vpp,
        data: row.size("dp"),
        context: one("cp"),
        expert: one("ep"),
        micro_batch: row.size("micro_batch"),
        global_batch: row.number("global_batch"),
        sequence: Some(row.number("seq")),
        sequence_parallel: row.size("tp") > 1,
        zero: row.0.get("zero").map_or(3, |zero| zero.parse().unwrap()),
        recompute: match row.text("recompute") {
            "none" => Recompute::None,
            "selective" => Recompute::Selective,
            // Where a publisher does not say, the leanest.
            _ => Recompute::Full,
        },
        schedule: if vpp > 1 { Schedule::Interleaved } else { Schedule::OneForwardOneBackward },
        split: match row.0.get("first").filter(|first| !first.is_empty()) {
            Some(_) => Split::Ends { first: Some(row.number("first")), last: Some(row.number("last")) },
            None => Split::Spread,
        },
        ..Parallel::default()
    }
}

/// Goal: what torchtitan's own runs reserved, within 8%. The share of fragmentation is fitted to these rows.
#[test]
fn reserved_memory_is_that_of_torchtitan() {
    for row in rows("totals.csv") {
        let model = load(row.text("model")).unwrap().0;
        let software = Framework::parse(row.text("framework")).unwrap().software();
        let worst = plan(&model, &layout(&row), &software).unwrap().worst();
        let (gib, measured) = (worst.reserved() as f64 / GIB, row.text("reserved_gib").parse::<f64>().unwrap());
        println!("{} {:.1} for {measured}: {:+.1}%", row.text("model"), gib, (gib / measured - 1.0) * 100.0);
        assert!((gib / measured - 1.0).abs() <= 0.08, "{}: {gib} for {measured}: {worst:?}", row.text("model"));
    }
}

/// Bytes that CUDA reports, or data sheets where we measured none.
fn capacity(gpu: &str) -> u64 {
    match gpu {
        "h100_80gb" | "DGX-H100" => 85_017_493_504,   // Measured: h100x1.
        "H200" => 150_109_880_320,                    // Measured: h200x1.
        "H100 (96GB HBM2e, 500 W)" => 96_000_000_000, // By its name; what CUDA reports is not published.
        "a100_80gb" => 84_987_740_160,                // 79.15 GiB, as PyTorch prints for this GPU.
        "a100_40gb" => 42_297_786_368,                // 39.39 GiB, the same.
        "DGX-B200" => 180_000_000_000,                // NVIDIA DGX B200 data sheet: 1440 GB for 8.
        "DGX-GB200" => 186_000_000_000,               // NVIDIA GB200 NVL72 data sheet: 13.4 TB for 72.
        "DGX-B300" | "DGX-GB300" => 279_000_000_000,  // NVIDIA GB300 NVL72 data sheet: 20 TB for 72.
        _ => panic!("{gpu}"),
    }
}

/// Goal: no run that somebody published is called too large for its GPU.
#[test]
fn published_runs_fit_their_gpus() {
    let mut wrong = Vec::new();
    let all = rows("layouts.csv");
    for row in &all {
        let mut model = load(row.text("model")).unwrap().0;
        if model.learned_positions > 0 {
            model.learned_positions = row.number("seq");
        }
        let parallel = layout(row);
        let software = Framework::parse(row.text("framework")).unwrap().software();
        let memory = match plan(&model, &parallel, &software) {
            Ok(memory) => memory,
            Err(error) => {
                wrong.push(format!("{} {parallel}: {error}", row.text("model")));
                continue;
            }
        };
        if let Fit::TooLarge { lacks, most, .. } = memory.fits(capacity(row.text("gpu"))) {
            wrong.push(format!(
                "{} {} {parallel} seq {} on {}: lacks {:.1} GB, most {most} {:?}",
                row.text("model"),
                row.text("framework"),
                row.text("seq"),
                row.text("gpu"),
                lacks as f64 / 1e9,
                memory.worst()
            ));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), all.len(), wrong.join("\n"));
    assert!(all.len() > 150);
}

/// Goal: what cannot fit is called too large, by what takes most.
#[test]
fn what_cannot_fit_is_called_too_large() {
    for (name, layout, framework, most) in [
        // 8 billion parameters with 18 B each.
        ("llama3-8b", "dp=8", Framework::Megatron, "optimizer"),
        // The publisher recomputes every layer of this run; without that, layers keep 275 GB.
        ("mpt-7b", "dp=8,zero=3,mbs=8,gbs=128,seq=8192", Framework::LlmFoundry, "activations"),
        ("llama3-405b", "tp=8,pp=2,gbs=8,sp=on,recompute=full", Framework::Megatron, "optimizer"),
        ("llama3-405b", "tp=8,dp=64,zero=2,gbs=64,sp=on,recompute=full", Framework::Megatron, "weights"),
        // Its logits alone: 12 B x 131,072 x 128,256 tokens.
        ("llama3-8b", "dp=8,zero=3,seq=131072,gbs=8,recompute=full", Framework::Torchtitan, "working"),
    ] {
        let memory = plan(&load(name).unwrap().0, &Parallel::parse(layout).unwrap(), &framework.software()).unwrap();
        let Fit::TooLarge { most: named, lacks, .. } = memory.fits(capacity("h100_80gb")) else {
            panic!("{name} {layout}: {:?}", memory.worst());
        };
        assert!(named == most && lacks > 0, "{name} {layout}: {named}, {:?}", memory.worst());
    }
    let small = plan(&load("llama3-1b").unwrap().0, &Parallel::default(), &Framework::Eager.software()).unwrap();
    assert!(matches!(small.fits(capacity("h100_80gb")), Fit::Fits { left } if left > 20_000_000_000));
}

/// Goal: schedules hold what their authors say, in units of a stage's layers for one micro-batch.
#[test]
fn schedules_hold_what_their_authors_say() {
    let of = |schedule, chunks, micro_batches, stage| {
        let parallel = Parallel {
            pipeline: 4,
            virtual_stages: chunks,
            global_batch: micro_batches,
            schedule,
            ..Parallel::default()
        };
        in_flight(&parallel, stage, &vec![8 / u64::from(chunks); chunks as usize], false)
    };
    assert_eq!([0, 3].map(|stage| of(Schedule::Gpipe, 1, 16, stage)), [16.0, 16.0]);
    assert_eq!([0, 3].map(|stage| of(Schedule::OneForwardOneBackward, 1, 16, stage)), [4.0, 1.0]);
    assert_eq!(of(Schedule::OneForwardOneBackward, 1, 2, 0), 2.0);
    assert_eq!([(16, 0), (16, 3), (2, 3)].map(|(m, stage)| of(Schedule::ZeroBubble, 1, m, stage)), [4.0, 4.0, 2.0]);
    // 1 + (p - 1) / (p v) of all layers.
    assert_eq!(of(Schedule::Interleaved, 2, 16, 0), 4.0 * (1.0 + 3.0 / 8.0));
    assert_eq!(of(Schedule::DualPipe, 1, 16, 2), 5.0);
    // Llama 3 405B on 16 stages of 4 chunks: 31 micro-batches in the first chunk, which has the embedding and one layer, and 16
    // in each other one of two layers.
    let parallel = Parallel::parse("pp=16,vpp=4,gbs=384").unwrap();
    let parallel = Parallel { split: Split::Spread, ..parallel };
    let chunks = parallel.chunk_layers(&load("llama3-405b").unwrap().0);
    assert_eq!((&chunks[0], &chunks[1], &chunks[15]), (&vec![1, 2, 2, 2], &vec![2; 4], &vec![2, 2, 2, 1]));
    assert_eq!(in_flight(&parallel, 0, &chunks[0], false), (31.0 + 3.0 * 32.0) / 7.0);
    // Where passes are paired a layer more is held, if there are enough micro-batches for a pair.
    let paired = |layout: &str, stage, chunks: &[u64]| {
        let parallel = Parallel::parse(layout).ok()?;
        Some([false, true].map(|paired| in_flight(&parallel, stage, chunks, paired)))
    };
    assert_eq!(paired("gbs=1", 0, &[48]), Some([1.0, 1.0]));
    assert_eq!(paired("gbs=2", 0, &[48]), Some([1.0, 1.0 + 1.0 / 48.0]));
    assert_eq!(paired("pp=4,vpp=4,gbs=32", 0, &[4, 4, 4, 4]), Some([19.0 / 4.0, 19.0 / 4.0 + 1.0 / 16.0]));
}

proptest::proptest! {
    /// Goal: no layout stops the plan, and bytes behave: computing again never keeps more, sharing never holds more.
    #[test]
    fn plans_behave(
        name in proptest::sample::select(crate::transformer::builtin::names().collect::<Vec<_>>()),
        framework in proptest::sample::select(&Framework::ALL[..]),
        [t, c, p, b, e] in proptest::array::uniform5(0_u32..5),
        sequence in 1_u64..1 << 40,
    ) {
        let model = load(name).unwrap().0;
        let [tensor, context, pipeline, micro_batch, expert] = [t, c, p, b, e].map(|power| 1 << power);
        let expert = if model.experts.is_some() { expert } else { 1 };
        let layout = Parallel {
            tensor, context, pipeline, micro_batch, expert, data: 16, global_batch: 16 * u64::from(micro_batch * pipeline),
            sequence: Some(sequence * 512), sequence_parallel: true, split: Split::Spread, ..Parallel::default()
        };
        let software = framework.software();
        let worst = |layout| plan(&model, &layout, &software).map(|memory| memory.worst());
        if let Ok(none) = worst(layout) {
            let full = worst(Parallel { recompute: Recompute::Full, ..layout }).unwrap();
            proptest::prop_assert!(full.activations <= none.activations);
            let shared = worst(Parallel { zero: 1, ..layout }).unwrap();
            proptest::prop_assert!(shared.optimizer < none.optimizer && shared.total() <= none.total());
            proptest::prop_assert!(none.parts().iter().all(|part| part.1 <= none.total()));
        }
    }
}

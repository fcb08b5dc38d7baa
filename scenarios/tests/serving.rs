//! Goal: steps of serving that were measured on one H200 (tests/data/compute/serving_h200.csv): all layers of a model, without
//! exchanges. Nothing was fitted to them.

use std::cell::RefCell;
use std::path::Path;

use collcast_scenarios::memory::Framework;
use collcast_scenarios::parallel::Parallel;
use collcast_scenarios::serving::{Batch, Steps, Taken};
use collcast_scenarios::training::calls::{Exchange, Shape};
use collcast_scenarios::transformer::{self, Attention, Transformer};
use collcast_scenarios::work;
use collcast_sim::compute::{self, Backend, Clock, Compute, Kernel, Pass, Precision};

/// What attention of decodes takes with FlashAttention-2, which was measured, less what it takes in a forecast.
fn flash2(gpu: &Compute, model: &Transformer, tensor: u64, (requests, context): (u64, u64)) -> f64 {
    let Attention::Gqa { heads, kv_heads, head_dim, .. } = model.attention else { return 0.0 };
    let of = |backend| compute::Attention {
        backend,
        pass: Pass::Forward,
        batch: requests,
        heads: heads / tensor,
        kv_heads: kv_heads / tensor,
        queries: 1,
        keys: context,
        head_dim,
        value_dim: head_dim,
        causal: false,
        latent: false,
    };
    let us = |backend| gpu.time(&Kernel::Attention(of(backend)), Clock::BOOST).unwrap().as_us();
    (us(Backend::Flash2) - us(Backend::Flash3)) * 1e-6 * model.layers as f64
}

/// Goal: decodes and prefills take what was measured.
#[test]
fn steps_take_what_was_measured() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("tests/data/compute/serving_h200.csv");
    let text = std::fs::read_to_string(path).unwrap();
    let gpu = Compute::builtin("h200").unwrap();
    let mut errors: Vec<(String, f64)> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')).skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        let [name, phase, batch, tokens, context, ms, ..] = cells[..] else { panic!("{line}") };
        let (name, tensor) = match name.rsplit_once("-tp") {
            Some((name, tensor)) => (name, tensor.parse().unwrap()),
            None => (name, 1),
        };
        let [batch, tokens, context]: [u64; 3] = [batch, tokens, context].map(|cell| cell.parse().unwrap());
        let model = transformer::load(name).unwrap().0;
        let parallel = Parallel { tensor, ..Parallel::default() };
        let alone = |_, _, _| Taken::default();
        let mut steps = Steps::new(&model, &gpu, (parallel, 1), Precision::Bf16, &alone).unwrap();
        let forecast = match phase {
            "decode" => {
                let step = Batch { prompts: &[], decodes: batch, context: batch * context };
                steps.seconds(&step) + flash2(&gpu, &model, tensor.into(), (batch, context))
            }
            _ => steps.seconds(&Batch { prompts: &[(tokens, 0)], decodes: 0, context: 0 }),
        };
        let error = forecast * 1e3 / ms.parse::<f64>().unwrap() - 1.0;
        println!("{line}: {:.3} ms, {:+.1}%", forecast * 1e3, error * 100.0);
        errors.push((phase.to_owned(), error));
    }
    for (phase, mean, worst) in [("decode", 0.03, 0.11), ("prefill", 0.08, 0.15)] {
        let of: Vec<f64> = errors.iter().filter(|e| e.0 == phase).map(|e| e.1.abs()).collect();
        let (average, most) = (of.iter().sum::<f64>() / of.len() as f64, of.iter().copied().fold(0.0, f64::max));
        println!("{phase}: {} steps, mean {:.1}%, worst {:.1}%", of.len(), average * 100.0, most * 100.0);
        assert!(of.len() >= 12 && average <= mean && most <= worst, "{phase}: mean {average:.3}, worst {most:.3}");
    }
}

/// Goal: a token that tensor ranks share out has the calls of as many tokens as there are ranks: 58 layers of DeepSeek-V3
/// dispatch and combine. None of its calls and kernels is of nothing.
#[test]
fn tokens_are_padded_to_tensor_ranks() {
    let (gpu, model) = (Compute::builtin("h100").unwrap(), transformer::load("deepseek-v3").unwrap().0);
    let parallel = Parallel { tensor: 8, expert: 32, sequence_parallel: true, ..Parallel::default() };
    let of = |decodes: u64| {
        let asked: RefCell<Vec<(Shape, Exchange, u64)>> = RefCell::default();
        let exchange = |shape: Shape, exchange: Exchange, bytes: u64| {
            asked.borrow_mut().push((shape, exchange, bytes));
            Taken::alone(if shape.size == 32 { 1.0 } else { 0.0 })
        };
        let mut steps = Steps::new(&model, &gpu, (parallel, 4), Precision::Fp8, &exchange).unwrap();
        let seconds = steps.seconds(&Batch { prompts: &[], decodes, context: 100 * decodes });
        (seconds, asked.take())
    };
    // Of four replicas each has one token, or eight.
    let ((one, calls), (eight, same)) = (of(4), of(32));
    assert!(calls == same && calls.iter().all(|call| call.2 > 0), "{calls:?}");
    assert_eq!(one.floor(), 116.0);
    // The rest, but for attention of eight requests.
    assert!(eight - one < 0.05 * (one - 116.0), "{one} {eight}");
}

/// Goal: where the cache has latents, each part of a prompt makes keys and values of all tokens before it again: 33.5 MFLOP a
/// token and layer of DeepSeek-V3. Caches of keys and values have them.
#[test]
fn parts_of_prompts_make_keys_of_latents_again() {
    let software = Framework::Megatron.software();
    let of = |name: &str, tensor, behind| {
        let parallel = Parallel { tensor, ..Parallel::default() };
        work::cached(&transformer::load(name).unwrap().0, &parallel, &software, behind)
    };
    let flops = |kernels: &[Kernel]| {
        kernels.iter().filter(|kernel| matches!(kernel, Kernel::Product(_))).map(Kernel::flops).sum::<f64>()
    };
    let again = of("deepseek-v3", 1, (64, 7168));
    assert_eq!(flops(&again), 7168.0 * 2.0 * 512.0 * 128.0 * (128.0 + 128.0));
    assert_eq!(flops(&of("deepseek-v3", 8, (64, 7168))) * 8.0, flops(&again));
    assert!(of("deepseek-v3", 1, (64, 0)).is_empty() && of("llama3-70b", 1, (64, 7168)).is_empty());
    // Steps have them, in each layer.
    let (gpu, model) = (Compute::builtin("h200").unwrap(), transformer::load("deepseek-v3").unwrap().0);
    let alone = |_, _, _| Taken::default();
    let mut steps = Steps::new(&model, &gpu, (Parallel::default(), 1), Precision::Bf16, &alone).unwrap();
    let mut seconds = |before| steps.seconds(&Batch { prompts: &[(64, before)], decodes: 0, context: 0 });
    let attention = |keys| {
        Kernel::Attention(compute::Attention {
            backend: Backend::Flash3,
            pass: Pass::Forward,
            batch: 1,
            heads: 128,
            kv_heads: 128,
            queries: 64,
            keys,
            head_dim: 192,
            value_dim: 128,
            causal: true,
            latent: false,
        })
    };
    let us = |kernel: &Kernel| gpu.time(kernel, Clock::BOOST).unwrap().as_us();
    let layer = us(&attention(64 + 7168)) - us(&attention(64)) + again.iter().map(us).sum::<f64>();
    let (more, expected) = (seconds(7168) - seconds(0), layer * 1e-6 * model.layers as f64);
    assert!((0.97..1.3).contains(&(more / expected)), "{more} {expected}");
}

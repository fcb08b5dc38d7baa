use proptest::prelude::*;

use super::fit::{Issue, Sample, Timing, fit};
use super::*;
use crate::profile::OriginKind;

fn gpu(name: &str) -> Compute {
    Compute::builtin(name).unwrap()
}

fn product(tokens: u64, outputs: u64, inputs: u64) -> Kernel {
    Kernel::Product(Product::forward(Precision::Bf16, tokens, outputs, inputs))
}

fn attention(backend: Backend, pass: Pass, heads: u64, keys: u64) -> Kernel {
    let (batch, head_dim, value_dim) = (1, 128, 128);
    let causal = true;
    Kernel::Attention(Attention {
        backend,
        pass,
        batch,
        heads,
        kv_heads: heads,
        queries: keys,
        keys,
        head_dim,
        value_dim,
        causal,
        latent: false,
    })
}

fn us(gpu: &Compute, kernel: &Kernel) -> f64 {
    gpu.time(kernel, Clock::BOOST).unwrap().as_us()
}

/// Least time by the data sheet: tensor cores at their peak, operands and results once through memory.
fn bound_us(gpu: &Compute, p: &Product) -> f64 {
    let flops = Kernel::Product(p.clone()).flops();
    let peak = gpu[Constant::Tensor].value * gpu.times(p.precision) * gpu[Constant::Sms].value * gpu.boost();
    let tokens: f64 = p.tokens.groups().iter().map(|(tokens, count)| tokens * count).sum();
    let groups: f64 = p.tokens.groups().iter().map(|(_, count)| count).sum();
    let (n, k) = (p.outputs as f64, p.inputs as f64);
    let layer = [tokens * k, groups * n * k, tokens * n];
    let result = match p.pass {
        ProductPass::Forward => 2,
        ProductPass::GradInput => 0,
        ProductPass::GradWeight => 1,
    };
    let size = |i: usize| if i == result { f64::from(p.result_bytes) } else { p.precision.bytes() };
    let bytes: f64 = layer.iter().enumerate().map(|(i, elements)| elements * size(i)).sum();
    (flops / peak).max(bytes / (gpu[Constant::Memory].value * 1e9)) * 1e6
}

fn any_product() -> impl Strategy<Value = Product> {
    let pass = prop_oneof![Just(ProductPass::Forward), Just(ProductPass::GradInput), Just(ProductPass::GradWeight)];
    let precision = prop_oneof![Just(Precision::Bf16), Just(Precision::Fp8), Just(Precision::Fp4)];
    (pass, precision, 1_u64..40_000, 1_u64..40_000, 1_u64..40_000, 1_u64..20, any::<bool>()).prop_map(
        |(pass, precision, total, outputs, inputs, groups, accumulates)| {
            let tokens = if groups > 10 { Tokens::Even { total, groups } } else { Tokens::All(total) };
            Product { precision, pass, tokens, outputs, inputs, result_bytes: 4, accumulates }
        },
    )
}

proptest! {
    /// Goal: no product beats the data sheet: tensor cores at their peak, every matrix once through memory.
    #[test]
    fn products_respect_the_data_sheet(p in any_product()) {
        let b200 = gpu("b200");
        let (time, bound) = (us(&b200, &Kernel::Product(p.clone())), bound_us(&b200, &p));
        prop_assert!(time > bound, "{p:?}: {time} us, bound {bound} us");
    }

    /// Goal: more work takes no less time: twice any size, or once more of the other kernels; up to what another shape of
    /// tiles wins.
    #[test]
    fn time_grows_with_work(p in any_product(), more in 0_usize..3) {
        let b200 = gpu("b200");
        let mut twice = p.clone();
        match more {
            0 => twice.outputs *= 2,
            1 => twice.inputs *= 2,
            _ => twice.tokens = match twice.tokens {
                Tokens::Even { total, groups } => Tokens::Even { total: 2 * total, groups },
                Tokens::All(tokens) => Tokens::All(2 * tokens),
                Tokens::Given(_) => unreachable!(),
            },
        }
        let (less, more) = (us(&b200, &Kernel::Product(p.clone())), us(&b200, &Kernel::Product(twice)));
        prop_assert!(more > 0.98 * less, "{p:?}: {less} us, twice {more} us");
    }

    /// Goal: no shape panics or takes no time, up to the largest numbers.
    #[test]
    fn no_shape_breaks_it(
        a in any::<u64>(), b in any::<u64>(), c in any::<u64>(), d in any::<u64>(), causal in any::<bool>(), small in any::<u8>(),
    ) {
        let gpu = gpu("h100");
        let numbers = [a, b, c, d, u64::from(small), 0, u64::MAX];
        for (i, &x) in numbers.iter().enumerate() {
            let at = |j: usize| numbers[(i + j) % numbers.len()];
            let given = Tokens::Given(vec![x, at(1), at(2)]);
            for tokens in [Tokens::All(x), Tokens::Even { total: x, groups: at(3) }, given] {
                let p = Product {
                    tokens, result_bytes: small, accumulates: causal,
                    ..Product::forward(Precision::Fp8, 0, at(1), at(2))
                };
                prop_assert!(us(&gpu, &Kernel::Product(p)) > 0.0);
            }
            for (backend, pass) in [(Backend::Flash2, Pass::Forward), (Backend::Cudnn, Pass::Backward)] {
                let a = Attention {
                    backend, pass, batch: x, heads: at(1), kv_heads: at(2), queries: at(3), keys: at(4), head_dim: at(5),
                    value_dim: at(6), causal, latent: causal,
                };
                prop_assert!(us(&gpu, &Kernel::Attention(a)) > 0.0);
            }
            let kind = if causal { MemoryKind::Norm } else { MemoryKind::Fill };
            let m = Memory { kind, reads: x, writes: at(1), rows: at(2), width: at(3), kernels: u32::MAX };
            prop_assert!(us(&gpu, &Kernel::Memory(m)) > 0.0);
            let o = Optimizer { elements: x, reads: u32::MAX, writes: 1, tensors: at(1) };
            let mix = [(Kernel::Optimizer(o), x), (attention(Backend::Cudnn, Pass::Forward, at(1), at(2)), at(3))];
            let clock = gpu.sustained(&mix);
            prop_assert!(clock.share() > 0.0 && clock <= Clock::BOOST);
        }
    }
}

/// Goal: a product takes whole waves. By hand: on 132 multiprocessors 12 x 11 tiles of 256 x 128 are one wave and 12 x 22 are
/// two; 12 x 12 are two as well, so that they take nearly as long as these.
#[test]
fn tiles_come_in_waves() {
    let h100 = gpu("h100");
    let of = |columns: u64| us(&h100, &product(12 * 256, columns * 128, 8192));
    let (one, more, two) = (of(11), of(12), of(22));
    assert!((1.85..2.1).contains(&(two / one)), "{one} {two}");
    assert!(more / one > 1.15 && more < two, "{one} {more} {two}");
}

/// Goal: few tiles share their inner loops: 4 of them over a long depth take less than they would on 4 multiprocessors.
#[test]
fn few_tiles_are_shared_out() {
    let h100 = gpu("h100");
    let kernel = product(256, 256, 65536);
    let alone = kernel.flops() / (4.0 * h100.tensor(Precision::Bf16).0) * 1e6;
    assert!(us(&h100, &kernel) < alone / 4.0);
}

/// Goal: few rows are bound by the weights' way through memory, and a repeated call finds small ones in L2.
#[test]
fn few_rows_wait_for_memory() {
    let h200 = gpu("h200");
    let layer = product(1, 8192, 8192);
    let (cold, moved) = (us(&h200, &layer), 2.0 * 8192.0 * 8192.0 / h200.memory_rate() * 1e6);
    assert!((1.0..1.35).contains(&(cold / moved)), "{cold} {moved}");
    let small = product(1, 4096, 1024);
    let repeated = h200.time_repeated(&small, Clock::BOOST).unwrap().as_us();
    assert!(repeated < us(&h200, &small));
}

/// Goal: a decode's product is bound by the bytes of its weights in every precision: fewer bits take less, and FP4 on B200 no
/// more than 1.5 times what its bytes do.
#[test]
fn fewer_bits_make_few_rows_faster() {
    let b200 = gpu("b200");
    let time = |precision: Precision, tokens: u64, outputs: u64, inputs: u64| {
        us(&b200, &Kernel::Product(Product::forward(precision, tokens, outputs, inputs)))
    };
    // Products of Llama 3 70B on one GPU and on eight.
    for (outputs, inputs) in [(8192, 8192), (8192, 28672), (57344, 8192), (1280, 8192), (7168, 8192), (8192, 3584)] {
        for tokens in [1, 16, 64, 128] {
            let [bf16, fp8, fp4] =
                [Precision::Bf16, Precision::Fp8, Precision::Fp4].map(|p| time(p, tokens, outputs, inputs));
            assert!(fp4 < fp8 && fp8 < bf16, "{outputs} {inputs} {tokens}: {fp4} {fp8} {bf16}");
        }
    }
    let bytes = 57344.0 * 8192.0 * Precision::Fp4.bytes() / b200.memory_rate() * 1e6;
    let taken = time(Precision::Fp4, 1, 57344, 8192);
    assert!((1.0..1.5).contains(&(taken / bytes)), "{taken} {bytes}");
}

/// Goal: kernels read the caches of many decodes at the rate of memory, one cache by all multiprocessors; latents once.
#[test]
fn many_decodes_read_at_the_rate_of_memory() {
    let h200 = gpu("h200");
    let of = |backend, batch, latent| Attention {
        backend,
        pass: Pass::Forward,
        batch,
        heads: 64,
        kv_heads: 8,
        queries: 1,
        keys: 4096,
        head_dim: 128,
        value_dim: 128,
        causal: false,
        latent,
    };
    let time = |attention| us(&h200, &Kernel::Attention(attention));
    let rate = |a: Attention, widths: f64| (a.batch * 8 * 4096) as f64 * widths * 128.0 * 2.0 / time(a) * 1e6;
    let read = h200.memory_rate() * h200.value(Constant::MemoryRead);
    for (batch, least) in [(4, 0.65), (256, 0.97)] {
        let reached = rate(of(Backend::Cudnn, batch, false), 2.0) / read;
        assert!((least..1.0).contains(&reached), "{batch}: {reached}");
    }
    // Blocks of FlashAttention-2 that do not share keys have twice the rows, most of them empty.
    let [shared, whole] = [16, 256].map(|batch| rate(of(Backend::Flash2, batch, false), 2.0) / read);
    assert!(shared > 0.75 && (0.5..0.6).contains(&whole), "{shared} {whole}");
    assert!(time(of(Backend::Cudnn, 256, true)) < 0.6 * time(of(Backend::Cudnn, 256, false)));
}

/// Goal: a causal mask halves the work of many blocks, and not the longest one of few. Backward is five products for two.
#[test]
fn attention_counts_what_it_sees() {
    let h100 = gpu("h100");
    let full = |heads, keys| match attention(Backend::Cudnn, Pass::Forward, heads, keys) {
        Kernel::Attention(a) => us(&h100, &Kernel::Attention(Attention { causal: false, ..a })),
        _ => unreachable!(),
    };
    let causal = |heads, keys| us(&h100, &attention(Backend::Cudnn, Pass::Forward, heads, keys));
    let many = causal(128, 8192) / full(128, 8192);
    assert!((0.49..0.55).contains(&many), "{many}");
    assert!((causal(2, 8192) / full(2, 8192) - 1.0).abs() < 0.01);
    let (forward, backward) =
        [Pass::Forward, Pass::Backward].map(|p| attention(Backend::Cudnn, p, 8, 4096).flops()).into();
    assert!((backward / forward - 2.5).abs() < 1e-9);
    // The last 2048 of 8192 tokens: 2048 x 7168 scores and half a tile a block, whichever way.
    for pass in [Pass::Forward, Pass::Backward] {
        let Kernel::Attention(a) = attention(Backend::Cudnn, pass, 1, 8192) else { unreachable!() };
        let products = if pass == Pass::Forward { 2.0 } else { 5.0 };
        let told = attention::flops(&Attention { queries: 2048, ..a }) / (2.0 * 128.0 * products);
        assert!((told / (2048.0 * (7168.0 + 64.0)) - 1.0).abs() < 1e-9, "{told}");
    }
    // 4 x 128 x 8192^2 / 2 a head, and the half of its diagonal's tiles that is masked.
    let exact: f64 = 4.0 * 128.0 * 8192.0 * 8192.0 / 2.0;
    let told = attention(Backend::Cudnn, Pass::Forward, 1, 8192).flops();
    assert!((told / exact - (1.0 + 128.0 / 8192.0)).abs() < 1e-9);
}

/// Goal: fewer heads of keys and values move fewer bytes and multiply as much.
#[test]
fn grouped_queries_share_keys() {
    let h100 = gpu("h100");
    let Kernel::Attention(all) = attention(Backend::Cudnn, Pass::Forward, 64, 4096) else { unreachable!() };
    let few = Attention { kv_heads: 8, ..all.clone() };
    let (all, few) = (attention::work(&h100, &all), attention::work(&h100, &few));
    assert!(few.memory < 0.6 * all.memory && (few.cores - all.cores).abs() < 1e-12);
}

/// Goal: the limit of power lowers the clock of large products, not that of small ones or of copies, and what a mix may take
/// is what it takes at its clock.
#[test]
fn power_limits_the_clock() {
    let h200 = gpu("h200");
    let large = [(product(8192, 8192, 8192), 1)];
    let clock = h200.sustained(&large);
    assert!((0.6..0.95).contains(&clock.share()), "{clock:?}");
    assert!((h200.power(&large, clock) - 700.0).abs() < 1.0);
    let copy = Memory { kind: MemoryKind::Copy, reads: 1 << 28, writes: 1 << 28, rows: 1, width: 1 << 27, kernels: 1 };
    let copies = [(Kernel::Memory(copy.clone()), 1)];
    assert_eq!(h200.sustained(&copies), Clock::BOOST);
    let mixed = [(product(8192, 8192, 8192), 1), (Kernel::Memory(copy), 4)];
    assert!(h200.sustained(&mixed) > clock);
    let cold = h200.mean_clock(&large, Duty::Cold { warmup: 0.0, timed: 0.001 });
    let warm = h200.mean_clock(&large, Duty::Cold { warmup: 0.0, timed: 100.0 });
    assert!(cold.share() > 0.99 && (warm.share() - clock.share()).abs() < 0.001, "{cold:?} {warm:?}");
}

/// Goal: large products need the energy that power meters read: 1.01, 1.41 and 1.27 TFLOP/J of products of 4096^3 and more
/// that run for a second (NVIDIA aiconfigurator 095f58a51, vllm 0.22.0 and trtllm 1.3.0rc17). No fit has seen these.
#[test]
fn energy_is_that_of_power_meters() {
    for (name, measured) in [("h200", 1.01), ("b200", 1.41), ("gb200", 1.27)] {
        let gpu = gpu(name);
        for size in [4096, 8192] {
            let mix = [(product(size, size, size), 1)];
            let clock = gpu.sustained(&mix);
            let seconds = gpu.time(&mix[0].0, clock).unwrap().as_us() / 1e6;
            let told = mix[0].0.flops() / seconds / gpu.power(&mix, clock) / 1e12;
            assert!((told / measured - 1.0).abs() < 0.12, "{name}, {size}: {told:.3} TFLOP/J, measured {measured}");
        }
    }
}

/// Goal: a precision that a GPU has not is refused with the place to say otherwise.
#[test]
fn a_precision_that_is_missing_is_refused() {
    let fp8 = Kernel::Product(Product::forward(Precision::Fp8, 128, 128, 128));
    let error = gpu("a100").time(&fp8, Clock::BOOST).unwrap_err().to_string();
    assert!(error.contains("a100") && error.contains("gpu.tensor_fp8"), "{error}");
    assert!(gpu("h100").supports(Precision::Fp8) && !gpu("h100").supports(Precision::Fp4));
}

/// Goal: constants that made samples are found again, whatever other rows say, and the same way twice.
#[test]
fn a_fit_finds_what_made_its_samples() {
    let truth = {
        let mut gpu = gpu("h100");
        gpu.set(Constant::ProductBf16, 0.6);
        gpu.set(Constant::KernelStart, 5.0);
        gpu
    };
    let mut samples: Vec<Sample> = Vec::new();
    for (i, (tokens, width)) in [(256, 512), (1024, 1024), (2048, 4096), (4096, 8192), (512, 8192), (8192, 8192)]
        .into_iter()
        .cycle()
        .take(24)
        .enumerate()
    {
        let kernels = vec![product(tokens + 128 * i as u64, width, 4096)];
        let timing = Timing::Calls { warmup: 3, timed: 30 };
        let mut sample = Sample { group: "p".into(), shape: i as u64, kernels, timing, issue: Issue::Free, us: 1.0 };
        sample.us = sample.predicted_us(&truth).unwrap();
        samples.push(sample);
    }
    samples[7].us *= 5.0;
    let may = |c: Constant| matches!(c, Constant::ProductBf16 | Constant::KernelStart | Constant::WorkNorm);
    let found = fit(&gpu("h100"), &samples, &may).unwrap();
    assert_eq!(found.fitted, [Constant::ProductBf16, Constant::KernelStart], "what no row tells is left alone");
    let value = |c: Constant| found.gpu[c].value;
    assert!((value(Constant::ProductBf16) / 0.6 - 1.0).abs() < 0.02, "{}", value(Constant::ProductBf16));
    assert!((value(Constant::KernelStart) / 5.0 - 1.0).abs() < 0.05, "{}", value(Constant::KernelStart));
    assert_eq!(fit(&gpu("h100"), &samples, &may).unwrap(), found);
    let at_bound = {
        let mut gpu = gpu("h100");
        gpu.set(Constant::ProductBf16, 1.0);
        gpu
    };
    let again = fit(&at_bound, &samples, &may).unwrap().gpu[Constant::ProductBf16].value;
    assert!((again / 0.6 - 1.0).abs() < 0.02, "{again}");
}

/// Goal: every constant of every GPU has a value within its bounds and an origin; at most 26 are fitted to one.
#[test]
fn every_profile_is_whole() {
    for name in Compute::builtin_names() {
        let gpu = Compute::builtin(&name.to_uppercase()).unwrap();
        for &constant in Constant::ALL {
            let [least, most] = constant.spec().bounds;
            let parameter = &gpu[constant];
            assert!((least..=most).contains(&parameter.value) && parameter.source.len() > 5, "{name}: {constant}");
            let has_to = constant.role() == crate::profile::Role::Hardware;
            assert!(!has_to || parameter.origin == OriginKind::Cited, "{name}: {constant}");
        }
        let rows = |c: &&Constant| gpu[**c].source == "the rows above";
        assert!(Constant::ALL.iter().filter(rows).count() <= 26, "{name}");
    }
}

/// Goal: what is written is read back, and mistakes are named.
#[test]
fn profiles_are_written_and_read() {
    let mut own = gpu("h200");
    own.set(Constant::ProductBf16, 0.5);
    let text = own.file("h200", "mine", &[Constant::ProductBf16], &[], "here").unwrap();
    let read = Compute::parse(&text, "mine.toml").unwrap();
    assert_eq!((read.name(), read[Constant::ProductBf16].value), ("mine", 0.5));
    assert_eq!(read[Constant::ProductBf16].origin, OriginKind::Fitted);
    assert_eq!(read[Constant::ProductFp8], own[Constant::ProductFp8]);
    for (from, to, expected) in [
        ("collcast/compute/1", "collcast/profile/1", "expected `collcast/compute/1`"),
        ("product.bf16", "product.bf61", "did you mean `product.bf16`?"),
        ("value = 0.5", "value = 1.5", "of peak, expected 0.01 to 1"),
        ("over = \"h200\"", "over = \"h20\"", "did you mean"),
    ] {
        assert!(text.contains(from), "{text}");
        let error = Compute::parse(&text.replacen(from, to, 1), "mine.toml").unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let alone = text.replace("over = \"h200\"\n", "");
    assert!(matches!(Compute::parse(&alone, "x"), Err(crate::profile::ProfileError::Missing { .. })));
}

/// Goal: no constant without effect: each is used in code beside its declaration.
#[test]
fn every_constant_is_used() {
    let code = [
        include_str!("gpu.rs"),
        include_str!("product.rs"),
        include_str!("attention.rs"),
        include_str!("memory.rs"),
        include_str!("copy.rs"),
        include_str!("power.rs"),
        include_str!("fit.rs"),
    ]
    .concat();
    for constant in Constant::ALL {
        let used = |prefix: &str| code.contains(&format!("{prefix}::{constant:?}"));
        assert!(used("Constant") || used("C"), "`{constant}` is not used");
    }
}

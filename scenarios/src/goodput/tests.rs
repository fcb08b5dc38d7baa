//! Goal: formulas give the values that were worked out by hand, and drawn failures agree with them.

use super::simulate::within;
use super::*;

fn job(mtbf: f64, stall: f64, restart: f64) -> Job {
    Job { mtbf, stall, durable: 0.0, restart }
}

fn run(job: Job, interval: f64, work: f64) -> WholeRun {
    WholeRun { job, work, interval, spares: None, repair: 0.0, hardware: 1.0, stragglers: None }
}

/// Goal: the exact formula to the printed digits; Monte Carlo within 0.3 points of it, and of draws by another program.
/// Columns: times, interval, goodput.
#[test]
fn formulas_and_draws_agree() {
    for (mtbf, stall, restart, interval, exact, drawn) in [
        (11_135.0, 30.0, 600.0, 817.4, 0.87966, 0.881),
        (11_135.0, 60.0, 600.0, 1155.9, 0.85250, 0.854),
        (11_135.0, 0.5, 300.0, 105.5, 0.96422, 0.964),
        (103_846.0, 300.0, 1800.0, 7893.5, 0.90997, 0.911),
        (1391.9, 30.0, 600.0, 289.0, 0.52381, 0.526),
    ] {
        let job = job(mtbf, stall, restart);
        assert!((job.exact(interval) - exact).abs() < 1e-4, "{}", job.exact(interval));
        let outcome = simulate(&run(job, interval, 3e7 * exact), 16, 1).unwrap();
        assert!((outcome.goodput - drawn).abs() < 0.003, "{}", outcome.goodput);
        assert!((outcome.goodput - exact).abs() < 0.003, "{}", outcome.goodput);
        let [early, middle, late] = outcome.finish;
        assert!(early <= middle && middle <= late && (late / early) < 1.1);
    }
}

/// Daly's interval. Source: "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006.
fn daly(job: &Job) -> f64 {
    let ratio = job.stall / (2.0 * job.mtbf);
    (2.0 * job.stall * job.mtbf).sqrt() * (1.0 + ratio.sqrt() / 3.0 + ratio / 9.0) - job.stall
}

/// Goal: the best interval is the best one, and Daly's where a save is short.
#[test]
fn the_optimal_interval_is_optimal() {
    for (mtbf, stall) in [(11_135.0, 30.0), (1391.9, 30.0), (100.0, 300.0), (1e7, 1e-3)] {
        let job = job(mtbf, stall, 600.0);
        let (best, interval) = (job.exact(job.optimal()), job.optimal());
        for other in [interval * 0.9, interval * 1.1, daly(&job)] {
            assert!(best >= job.exact(other) - 1e-12, "{interval}: {other}");
        }
        assert!(stall > 0.1 * mtbf || (interval / daly(&job) - 1.0).abs() < 1e-3, "{interval} {}", daly(&job));
    }
    // What "over 90%" at 16,384 GPUs takes.
    let at = |restart| job(11_135.0, 30.0, restart).exact(job(11_135.0, 30.0, restart).optimal());
    assert!(at(345.0) > 0.9 && at(347.0) < 0.9, "{} {}", at(345.0), at(347.0));
    let free = job(1000.0, 0.0, 0.0);
    assert!(free.optimal() < 1e-9 && (free.exact(free.optimal()) - 1.0).abs() < 1e-9);
}

/// Goal: an asynchronous save costs what its way to storage adds, by the formula and by draws.
#[test]
fn saves_that_are_late_cost_work() {
    let late = Job { durable: 300.0, ..job(11_135.0, 2.0, 300.0) };
    let exact = late.exact(200.0);
    let drawn = simulate(&run(late, 200.0, 1e7), 32, 7).unwrap().goodput;
    assert!((drawn - exact).abs() < 0.003 && exact < job(11_135.0, 2.0, 300.0).exact(200.0) - 0.02, "{drawn} {exact}");
    // Llama 3 405B over 16,384 GPUs: 347 MB a GPU at 50 GB/s, and 5.68 TB at 2 TB/s.
    let saving = Saving { bytes: 14.0 * 405.853e9, storage: 2e12, host_copy: Some((16_384, 50e9)), barrier: 0.0 };
    let (stall, durable) = saving.times().unwrap();
    assert!((stall - 0.00694).abs() < 1e-5 && (durable - 2.841).abs() < 1e-3, "{stall} {durable}");
    assert_eq!(Saving { host_copy: None, bytes: 2.3e12, storage: 2.3e12 / 40.0, ..saving }.times(), Ok((40.0, 0.0)));
}

/// Goal: times between failures as published: Llama 3's 3.09 h at 16,384 GPUs, and the two projections of RSC-1.
#[test]
fn published_rates_give_published_times() {
    let hours = |name: &str, gpus| Rates::load(name).unwrap().mtbf(&Fleet::of_eight(gpus)) / 3600.0;
    for (gpus, expected) in
        [(1024, 49.49), (2048, 24.745), (8192, 6.1862), (16_384, 3.0931), (32_768, 1.54654), (131_072, 0.38664)]
    {
        let found = hours("llama3-405b", gpus);
        assert!((found / expected - 1.0).abs() < 1e-4, "{gpus}: {found}");
    }
    assert!((hours("rsc-1", 16_384) - 1.803).abs() < 1e-3 && (hours("RSC-1", 131_072) - 0.2254).abs() < 1e-4);
    assert!((hours("bloom", 384) - 168.0).abs() < 1e-9);
    let rates = Rates::load("llama3-405b").unwrap();
    let largest = rates.by_component(&Fleet::of_eight(16_384)).into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
    assert!(largest.0 == "GPU" && (largest.1 * 1296.0 - 148.0).abs() < 1e-9);
}

/// Goal: spares, repairs and stragglers cost what they must.
#[test]
fn spares_and_stragglers_cost_what_they_must() {
    let base = run(job(10_000.0, 10.0, 300.0), 400.0, 1e6);
    let drawn = |run: &WholeRun| simulate(run, 64, 3).unwrap();
    let plenty = drawn(&base);
    assert_eq!(plenty, drawn(&base), "the same seed gives the same result");
    assert_ne!(plenty, simulate(&base, 64, 4).unwrap());
    // A repair takes two times between failures: one spare is short, twelve are not.
    let with = |spares| drawn(&WholeRun { spares: Some(spares), repair: 20_000.0, ..base });
    let (short, enough) = (with(1), with(12));
    assert!(short.waiting > 100_000.0 && enough.waiting < 100.0 && enough.goodput > short.goodput + 0.1, "{short:?}");
    let software = drawn(&WholeRun { spares: Some(0), repair: 1e9, hardware: 0.0, ..base });
    assert_eq!(software.waiting, 0.0);
    // A straggler of a quarter for 1,000 s each 10,000 s costs a fifth of a tenth of the time, a little less where two overlap or the
    // job is down.
    let stragglers = Some(Stragglers { between: 10_000.0, slowdown: 1.25, lasts: 1000.0 });
    let slow = drawn(&WholeRun { stragglers, ..base });
    let share = slow.slow / slow.finish[1];
    assert!((0.016..0.020).contains(&share), "{share}");
    for (mean, quantile, expected) in [(0.0, 0.99, 0), (1.0, 0.99, 4), (1.0, 0.9, 2), (1000.0, 0.5, 1000)] {
        assert_eq!(spares(mean, quantile), Ok(expected));
    }
}

/// Goal: stragglers of a file come with the units that they were counted among: 4 in 1,000 GPUs and 100 hours are one an hour of
/// 25,000 GPUs. What makes no sense is named with its place. Files without them, all built-in ones, have none.
#[test]
fn stragglers_are_read_and_scaled() -> Result<(), Box<dyn std::error::Error>> {
    let bloom = text("bloom").ok_or("no rates of BLOOM")?;
    let file = |slow: &str| format!("{bloom}\n[stragglers]\n{slow}");
    let good = "per = \"gpu\"\ncount = 4\nunits = 1000\nhours = 100\nslowdown = 1.25\nhours_until_found = 2\n";
    let of = |slow: &str| Rates::read(&file(slow), "f.toml").map(|rates| rates.stragglers(&Fleet::of_eight(25_000)));
    assert_eq!(of(good)?, Some(Stragglers { between: 3600.0, slowdown: 1.25, lasts: 7200.0 }));
    assert_eq!(of(&good.replace("count = 4", "count = 0"))?, None);
    assert!(names().all(|name| Rates::load(name).is_ok_and(|rates| rates.stragglers.is_none())));
    for (from, to, message) in [
        ("slowdown = 1.25", "slowdown = 0.8", "expected 1 or more"),
        ("units = 1000", "units = 0", "units is 0"),
        ("count = 4", "count = -1", "count is -1"),
        ("hours_until_found = 2", "hours_until_found = nan", "hours_until_found is NaN"),
        ("slowdown = 1.25\n", "", "slowdown"),
    ] {
        let error = of(&good.replace(from, to)).err().ok_or(message)?.render();
        assert!(error.contains(message) && error.contains("f.toml:"), "{error}");
    }
    // More of them than are simulated: the run ends all the same.
    let stragglers = Some(Stragglers { between: 1e-12, slowdown: 1.0, lasts: 0.0 });
    let many = WholeRun { stragglers, ..run(job(10_000.0, 10.0, 300.0), 400.0, 1e6) };
    assert!(matches!(simulate(&many, 10, 1), Err(GoodputError::TooLong { .. })));
    Ok(())
}

/// Goal: bad input is refused with the way out, and ends.
#[test]
fn bad_input_is_refused() {
    let good = run(job(10_000.0, 10.0, 300.0), 400.0, 1e6);
    for bad in [
        WholeRun { work: f64::NAN, ..good },
        WholeRun { interval: 0.0, ..good },
        WholeRun { job: job(0.0, 10.0, 300.0), ..good },
        WholeRun { job: job(1e4, -1.0, 300.0), ..good },
        WholeRun { hardware: 1.5, ..good },
        WholeRun { stragglers: Some(Stragglers { between: 1e3, slowdown: 0.5, lasts: 1.0 }), ..good },
        WholeRun { job: Job { durable: 1e9, ..good.job }, ..good },
    ] {
        assert!(matches!(simulate(&bad, 10, 1), Err(GoodputError::Value { .. })), "{bad:?}");
    }
    assert!(matches!(simulate(&good, 0, 1), Err(GoodputError::Value { .. })));
    // Each restart takes forty times the time between failures: it never ends.
    let hopeless = WholeRun { job: job(10.0, 1.0, 400.0), ..good };
    assert!(matches!(within(1_000_000, &hopeless, 10, 1), Err(GoodputError::TooLong { limit: 1_000_000, .. })));
    assert!(spares(1e9, 0.5).is_err() && spares(1.0, 1.0).is_err() && spares(-1.0, 0.5).is_err());
    let error = Rates::load("llama3-45b").unwrap_err().render();
    assert!(error.contains("did you mean `llama3-405b`?"), "{error}");
    let text = text("bloom").unwrap();
    for (from, to, message) in [
        ("units = 384", "units = 0", "units is 0"),
        ("hardware = 1.0", "hardware = 1.5", "a share is at most 1"),
        ("per = \"gpu\"", "per = \"rack\"", "rack"),
        ("hours = 168", "hours = inf", "hours is inf"),
        ("failures/1", "failures/2", "another schema"),
    ] {
        let error = Rates::read(&text.replace(from, to), "f.toml").unwrap_err().render();
        assert!(error.contains(message) && error.contains("f.toml:"), "{error}");
    }
}

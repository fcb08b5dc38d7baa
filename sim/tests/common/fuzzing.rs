//! How the fuzz tests of several crates draw their values.

use std::time::Instant;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseResult, TestRng, TestRunner};

/// Runs a property on `cases` values, the same each time; with `COLLCAST_FUZZ_SECONDS` on others for that long.
pub(crate) fn fuzz<S: Strategy>(cases: u32, values: &S, property: impl Fn(S::Value) -> TestCaseResult) {
    // A value that fails is made simpler for 20 s: some take long.
    let config = Config { cases, failure_persistence: None, max_shrink_time: 20_000, ..Config::default() };
    let started = Instant::now();
    let seconds = std::env::var("COLLCAST_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    TestRunner::new(config.clone()).run(values, &property).unwrap();
    for round in 1_u64.. {
        if seconds.is_none_or(|seconds| started.elapsed().as_secs() >= seconds) {
            return;
        }
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&round.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
        let run = TestRunner::new_with_rng(config.clone(), rng).run(values, &property);
        run.unwrap_or_else(|error| panic!("in round {round}: {error}"));
    }
}

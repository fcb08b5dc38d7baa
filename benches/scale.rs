//! Forecasts of large machines, from the machine's file to the answer: `cargo bench --bench scale`. `docs/scale.md` has
//! what they took, and how that grows with ranks.

use std::time::Duration;

use collcast::forecast::{Request, forecast};
use collcast::sim::collective::{Algorithm, Collective};
use collcast::sim::predict::Choice;
use collcast::sim::units::Bytes;
use collcast::{Query, SiteSpec};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

/// Hosts: many under `cargo bench`, few under `cargo test`.
fn hosts() -> Vec<u32> {
    if std::env::args().any(|a| a == "--bench") { vec![64, 512, 2048, 8192, 16384] } else { vec![2] }
}

/// One call on DGX H100 hosts, read, drawn, searched, proved, simulated.
fn large(bench: &mut Criterion) {
    for (collective, algorithm, most) in [
        (Collective::AllReduce, Algorithm::Ring, 16384),
        (Collective::AllReduce, Algorithm::Tree, 16384),
        (Collective::AllReduce, Algorithm::NvlsTree, 16384),
        (Collective::AllGather, Algorithm::Pat, 8192),
    ] {
        let mut group = bench.benchmark_group(format!("{collective} {algorithm}, 64 KiB, GPUs"));
        group.sample_size(10).warm_up_time(Duration::from_millis(1)).measurement_time(Duration::from_secs(5));
        for hosts in hosts().into_iter().filter(|&hosts| hosts <= most) {
            group.bench_function(BenchmarkId::from_parameter(8 * hosts), |b| {
                b.iter(|| {
                    let site = SiteSpec::new("dgx-h100").nodes(hosts).load().expect("built in");
                    let query = Query::new(&site, collective, Bytes(64 << 10));
                    let queries = vec![Query { algorithm: Choice::Forced(algorithm), ..query }];
                    let request = Request { queries, ..Request::default() };
                    forecast(&site, &request).expect("a call that is simulated").rows.len()
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, large);
criterion_main!(benches);

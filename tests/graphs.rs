//! Goal: what `NCCL_GRAPH_MIXING_SUPPORT=0` saves in CUDA graphs is what was measured, and without NCCL's events all callers
//! take the same time.
//! Method: calls of `bench` and of PyTorch on 2 H200, with the events and without (`tests/data/h200x2_graphs`).

use std::collections::BTreeMap;

use crate::common::collcast;

/// Who calls, whether with events, collective, size and calls a graph.
type Key = (String, bool, String, u64, u32);

fn fields(file: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(format!("tests/data/h200x2_graphs/{file}")).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#')).skip(1);
    lines.map(|line| line.split(',').map(str::to_owned).collect()).collect()
}

fn measured() -> BTreeMap<Key, f64> {
    let key = |f: &[String]| (f[0].clone(), f[1] == "1", f[2].clone(), f[3].parse().unwrap(), f[4].parse().unwrap());
    fields("calls.csv").iter().map(|f| (key(f), f[5].parse().unwrap())).collect()
}

/// Forecast of a call in us, by whether NCCL records events.
fn forecast(collective: &str, size: u64, events: bool) -> f64 {
    let (size, mixing) = (size.to_string(), format!("NCCL_GRAPH_MIXING_SUPPORT={}", u8::from(events)));
    let args = ["simulate", "h200x4", "--gpus", "2", "-c", collective, "-s", &size, "--in-place", "--launch", "graph"];
    let told = ["--env", &mixing, "--env", "NCCL_NVLS_ENABLE=0", "--nccl", "2.28.3", "--format", "json", "-q"];
    let (code, out, err) = collcast(&[&args[..], &told].concat());
    assert_eq!(code, 0, "{err}");
    let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
    answer["rows"][0]["time_us"].as_f64().unwrap()
}

/// Goal: between other kernels an all-reduce takes as much less as is forecast.
#[test]
fn events_cost_what_they_were_measured_to() {
    for size in [8192, 524_288] {
        let call = |events: &str| {
            let rows = fields("between.csv");
            let rows = rows.iter().filter(|f| f[0] == events && f[2] == size.to_string());
            let took: Vec<f64> = rows.map(|f| f[5].parse::<f64>().unwrap() - f[4].parse::<f64>().unwrap()).collect();
            took.iter().sum::<f64>() / took.len() as f64
        };
        let (saved, told) =
            (call("1") - call("0"), forecast("all_reduce", size, true) - forecast("all_reduce", size, false));
        println!("{size} B: {saved:.2} us, forecast {told:.2}");
        assert!((saved - told).abs() < 0.1, "{size}: {saved} {told}");
    }
}

/// Goal: without events `bench` and PyTorch agree, and forecasts with both; with them no call is faster.
#[test]
fn without_events_all_callers_take_the_same() {
    let times = measured();
    let (mut off, mut apart) = (Vec::new(), Vec::new());
    for ((by, events, collective, size, calls), time) in &times {
        let of = |by: &str, events| times[&(by.to_owned(), events, collective.clone(), *size, *calls)];
        if *calls != 20 || *events {
            continue;
        }
        assert!(*time < of(by, true), "{by} {collective} {size}");
        off.push((forecast(collective, *size, false) / time - 1.0).abs());
        if by == "bench" {
            apart.push((of("pytorch", false) / time - 1.0).abs());
        }
    }
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
    println!("forecasts {:.1}% off, callers {:.1}% apart", 100.0 * mean(&off), 100.0 * mean(&apart));
    assert!(off.len() == 36 && mean(&off) < 0.04, "{}", mean(&off));
    assert!(mean(&apart) < 0.015, "{}", mean(&apart));
}

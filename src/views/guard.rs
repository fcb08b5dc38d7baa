//! What a guard found, as a text file that Prometheus' node exporter collects.

use std::fmt::Write as _;

use crate::health::{Judged, State};
use crate::validate::Outcome;

/// The labels that tell a run from the others: of several over other GPUs, their name too.
fn of_run(run: &Judged) -> String {
    let (collective, ranks) = (run.collective, run.ranks);
    // A text of Prometheus' format escapes these.
    let name = run.run.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("collective=\"{collective}\",ranks=\"{ranks}\",run=\"{name}\"")
}

/// The metrics of a host that was looked at `now`, in seconds since 1970; none of a run that failed. Units are those that
/// Prometheus' documentation asks for: bytes per second, ratios from 0 on.
pub fn prometheus(outcome: Option<&Outcome>, now: i64) -> String {
    let mut text = String::new();
    let mut metric = |name: &str, help: &str, values: &[(String, f64)]| {
        let _ = writeln!(text, "# HELP collcast_{name} {help}\n# TYPE collcast_{name} gauge");
        for (labels, value) in values {
            let _ = writeln!(text, "collcast_{name}{labels} {value}");
        }
    };
    let none = String::new;
    let ok = outcome.is_some_and(|outcome| !outcome.failed);
    metric(
        "ok",
        "1 where the run ended, its results were exact and no band of sizes is slow.",
        &[(none(), f64::from(ok))],
    );
    metric("last_run_timestamp_seconds", "When the run ended.", &[(none(), now as f64)]);
    let Some(outcome) = outcome else { return text };
    let state = match outcome.health.state {
        State::Pass => 0.0,
        State::Unsure => 1.0,
        State::Slow => 2.0,
    };
    metric("state", "0 healthy, 1 cannot tell, 2 slow.", &[(none(), state)]);
    let bands = outcome.health.runs.iter().flat_map(|run| run.bands.iter().map(move |band| (run, band)));
    let bands: Vec<(String, f64)> = bands
        .map(|(run, band)| {
            let part = band.part.name();
            (format!("{{{},sizes=\"{part}\"}}", of_run(run)), band.share)
        })
        .collect();
    metric("busbw_expected_ratio", "Bus bandwidth measured over expected, by band of sizes.", &bands);
    let lines = outcome.health.runs.iter().flat_map(|run| run.lines.iter().map(move |line| (run, line)));
    let lines: Vec<(String, f64)> = lines
        .map(|(run, line)| (format!("{{{},size_bytes=\"{}\"}}", of_run(run), line.size_bytes), line.busbw_gbps * 1e9))
        .collect();
    metric("busbw_bytes_per_second", "Bus bandwidth as nccl-tests counts it.", &lines);
    text
}

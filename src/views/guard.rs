//! What a guard found, as a text file that Prometheus' node exporter collects.

use std::fmt::Write as _;

use crate::health::{Judged, State};
use crate::validate::Outcome;

/// A label, with what a text of Prometheus' format escapes.
fn label(name: &str, value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{name}=\"{value}\"")
}

/// The labels that tell a run from the others: of several over other GPUs, their name too, and of several of one name what
/// they do not have in common, since Prometheus refuses all of a file that has a series twice.
fn of_run(run: &Judged, all: &[Judged]) -> String {
    let name = |run: &Judged| (run.collective, run.ranks, run.run.clone());
    let alike: Vec<&Judged> = all.iter().filter(|other| name(other) == name(run)).collect();
    let apart = run.how.iter().filter(|said| !alike.iter().all(|other| other.how.contains(said)));
    let own =
        [label("collective", run.collective.name()), label("ranks", &run.ranks.to_string()), label("run", &run.run)];
    own.into_iter().chain(apart.map(|(name, value)| label(name, value))).collect::<Vec<_>>().join(",")
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
        "0 where the run failed, a result was wrong or a band of sizes is slow; collcast_state says whether it was judged.",
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
    let runs = &outcome.health.runs;
    let bands = runs.iter().flat_map(|run| run.bands.iter().map(move |band| (run, band)));
    let bands: Vec<(String, f64)> = bands
        .map(|(run, band)| {
            let part = band.part.name();
            (format!("{{{},sizes=\"{part}\"}}", of_run(run, runs)), band.share)
        })
        .collect();
    metric("busbw_expected_ratio", "Bus bandwidth measured over expected, by band of sizes.", &bands);
    let lines = runs.iter().flat_map(|run| run.lines.iter().map(move |line| (run, line)));
    let lines: Vec<(String, f64)> = lines
        .map(|(run, line)| {
            (format!("{{{},size_bytes=\"{}\"}}", of_run(run, runs), line.size_bytes), line.busbw_gbps * 1e9)
        })
        .collect();
    metric("busbw_bytes_per_second", "Bus bandwidth as nccl-tests counts it.", &lines);
    text
}

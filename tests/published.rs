//! Goal: predictions are held against runs that other people published, nothing fitted to them.
//! Method: each `tests/data/published/*.toml` with a `.csv` beside it is a case: machine, versions
//! and settings, each said by its source or assumed before any prediction was looked at. The
//! program judges every row; the outcome is `docs/accuracy/published.md`, which must be current.
//!
//! Keys of a case, beside those of any `.toml` next to measurements (`collcast validate`):
//! - `transport`: `rdma`, `tcp` or `nvlink`: what carries the bytes between hosts, or inside the one;
//! - `choice`: `known` where no other algorithm can have run, else `assumed`;
//! - `stated`: facts of the six of [`FACTS`] that the source gives, or a vendor for a machine that
//!   the source names; `[assumed]` gives each of the others with its reason;
//! - `hosts_at_most`: rows on more hosts are not predicted, since they take minutes each;
//! - `note`: the mechanism behind an error above 30%.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rayon::prelude::*;
use serde::Deserialize;
use serde_json::Value;

/// What an accuracy figure depends on. Launch shows at small sizes only.
const FACTS: [&str; 6] = ["gpu", "hosts", "network", "nccl_version", "configuration", "launch"];
const SMALL: std::ops::Range<u64> = 8..1 << 20;
const LARGE: std::ops::RangeInclusive<u64> = 1 << 20..=u64::MAX;

/// The keys of a case file that the program itself does not read.
#[derive(Deserialize)]
struct Case {
    title: String,
    source: String,
    topology: String,
    transport: Transport,
    nccl_version: String,
    launch: String,
    choice: Known,
    stated: Vec<String>,
    #[serde(default)]
    assumed: BTreeMap<String, String>,
    hosts_at_most: Option<u32>,
    note: Option<String>,
    #[serde(flatten)]
    _read_by_the_program: BTreeMap<String, toml::Value>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Transport {
    Rdma,
    Tcp,
    Nvlink,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Known {
    Known,
    Assumed,
}

/// One row as judged: errors are predicted / measured - 1.
struct Row {
    size: u64,
    auto: f64,
    closest: f64,
}

struct Judged {
    name: String,
    case: Case,
    rows: Vec<Row>,
    /// Rows without a prediction, with the reason.
    missing: Vec<String>,
    /// What the doctor calls an error.
    errors: Vec<String>,
}

/// Published runs of which the doctor says that something is broken, what, and why that is no false alarm.
const BROKEN: [(&str, &str, &str); 0] = [];

impl Case {
    fn all_stated(&self) -> bool {
        FACTS[..5].iter().all(|f| self.stated.iter().any(|s| s == f))
    }
}

impl Judged {
    fn errors(&self, sizes: impl std::ops::RangeBounds<u64>, of: fn(&Row) -> f64) -> Vec<f64> {
        self.rows.iter().filter(|r| sizes.contains(&r.size)).map(of).collect()
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/published")
}

/// Case files, by name.
fn cases() -> Vec<(String, Case)> {
    let mut cases = Vec::new();
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "csv") {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            let text = std::fs::read_to_string(path.with_extension("toml")).unwrap();
            cases.push((name.clone(), toml::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}"))));
        }
    }
    cases.sort_by(|a, b| a.0.cmp(&b.0));
    cases
}

fn judge(name: &str, case: Case) -> Judged {
    let mut command = Command::new(env!("CARGO_BIN_EXE_collcast"));
    command.args(["validate", &format!("tests/data/published/{name}.csv"), "--closest", "--format", "json"]);
    command.args(case.hosts_at_most.iter().flat_map(|n| ["--nodes".to_owned(), n.to_string()]));
    let out = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    let problem = String::from_utf8_lossy(&out.stderr);
    assert!(matches!(out.status.code(), Some(0 | 1)), "{name}: {problem}");
    let result: Value = serde_json::from_slice(&out.stdout).unwrap();
    let rows = result["rows"].as_array().unwrap();
    let row = |r: &Value| Row {
        size: r["size_bytes"].as_u64().unwrap(),
        auto: r["error"].as_f64().unwrap(),
        closest: r["closest_error"].as_f64().unwrap(),
    };
    let missing = result["warnings"].as_array().unwrap().iter().filter_map(Value::as_str);
    let missing = missing.filter(|w| w.contains("not predicted")).map(str::to_owned).collect();
    let errors = result["anomalies"].as_array().unwrap().iter().filter(|a| a["severity"] == "error");
    let errors = errors.map(|a| a["kind"].as_str().unwrap().to_owned()).collect();
    Judged { errors, name: name.to_owned(), case, rows: rows.iter().map(row).collect(), missing }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

fn median_abs(errors: &[f64]) -> Option<f64> {
    median(errors.iter().map(|e| e.abs()).collect())
}

fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |v| format!("{:.0}%", v * 100.0))
}

fn render(judged: &[Judged]) -> String {
    let mut text = String::from(
        "# Predictions against published runs\n\n\
         Generated by `COLLCAST_UPDATE=1 cargo test --test published`; `tests/published.rs` says what the columns\n\
         rest on, `tests/data/published/` holds every case. Nothing is fitted to these runs.\n\n\
         Error is predicted / measured - 1; `median` is that of its absolute value over the rows of a case, `bias` the\n\
         median of its sign and size. `auto` is what we take NCCL to choose, `closest` the algorithm and protocol whose\n\
         prediction is nearest to each row, where `auto` is off by more than 10%: what is left when the choice is not to\n\
         blame.\n\n",
    );
    overall(&mut text, judged);
    text.push_str(
        "\n## By case\n\n\
         | case | machine | rows | 8 B-1 MiB auto | closest | from 1 MiB auto | closest | bias | choice | assumed |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    for j in judged {
        let assumed: Vec<&str> = j.case.assumed.keys().map(String::as_str).collect();
        let of = |errors: Vec<f64>| percent(median_abs(&errors));
        let bias = median(j.rows.iter().map(|r| r.auto).collect()).map(|b| format!("{:+.0}%", b * 100.0));
        writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            j.name,
            j.case.topology.trim_end_matches(".toml"),
            j.rows.len(),
            of(j.errors(SMALL, |r| r.auto)),
            of(j.errors(SMALL, |r| r.closest)),
            of(j.errors(LARGE, |r| r.auto)),
            of(j.errors(LARGE, |r| r.closest)),
            bias.unwrap_or_else(|| "-".to_owned()),
            if j.case.choice == Known::Known { "known" } else { "assumed" },
            if assumed.is_empty() { "nothing".to_owned() } else { assumed.join(", ") },
        )
        .unwrap();
    }
    text.push_str("\n## Notes by case\n\nWhat was assumed and why, rows without a prediction, and the mechanism behind errors above 30%.\n");
    for j in judged {
        let case = &j.case;
        write!(
            text,
            "\n### {}\n{}. Source: {}. NCCL {}, launch {}.\n",
            j.name, case.title, case.source, case.nccl_version, case.launch
        )
        .unwrap();
        for (fact, reason) in &case.assumed {
            writeln!(text, "- assumed {fact}: {reason}").unwrap();
        }
        for reason in &j.missing {
            writeln!(text, "- {reason}").unwrap();
        }
        if let Some(note) = &case.note {
            writeln!(text, "- {note}").unwrap();
        }
    }
    text
}

/// The figures over all cases, each with the goal that it is held against.
fn overall(text: &mut String, judged: &[Judged]) {
    text.push_str("| over | rows or cases | auto | closest | goal |\n|---|---|---|---|---|\n");
    let mut line = |what: &str, pick: &dyn Fn(&Judged) -> bool, by_case: bool, small: bool, goal: &str| {
        let chosen: Vec<&Judged> = judged.iter().filter(|j| pick(j)).collect();
        let figure = |of: fn(&Row) -> f64| {
            let by_case_errors = chosen.iter().map(|j| if small { j.errors(SMALL, of) } else { j.errors(LARGE, of) });
            let values: Vec<f64> = if by_case {
                by_case_errors.filter_map(|errors| median_abs(&errors)).collect()
            } else {
                by_case_errors.flatten().collect()
            };
            (values.len(), percent(median_abs(&values)))
        };
        let ((count, auto), (_, closest)) = (figure(|r| r.auto), figure(|r| r.closest));
        writeln!(text, "| {what} | {count} | {auto} | {closest} | {goal} |").unwrap();
    };
    let fast = |j: &Judged| j.case.transport != Transport::Tcp;
    let tcp = |j: &Judged| j.case.transport == Transport::Tcp;
    line(
        "rows from 1 MiB of cases whose facts are stated, RDMA and NVLink",
        &|j| fast(j) && j.case.all_stated(),
        false,
        false,
        "15%",
    );
    line("rows from 1 MiB of the other cases, RDMA and NVLink", &|j| fast(j) && !j.case.all_stated(), false, false, "");
    line("medians by case from 1 MiB, RDMA and NVLink", &fast, true, false, "15%");
    line("rows from 8 B to 1 MiB, RDMA and NVLink", &fast, false, true, "25%");
    line("rows from 1 MiB, TCP", &tcp, false, false, "");
    line("rows from 8 B to 1 MiB, TCP", &tcp, false, true, "");
}

/// Goal: every case says each fact once, with a reason where it is assumed.
#[test]
fn every_case_says_what_is_stated_and_what_is_assumed() {
    let cases = cases();
    assert_eq!(cases.len(), 46);
    for (name, case) in cases {
        for fact in FACTS {
            let stated = case.stated.iter().filter(|s| *s == fact).count();
            let reasons = usize::from(case.assumed.get(fact).is_some_and(|r| r.len() > 10));
            assert_eq!(stated + reasons, 1, "{name}: {fact}");
        }
        let given = case.stated.len() + case.assumed.len();
        assert_eq!(given, FACTS.len(), "{name}: a fact that is none of {FACTS:?}");
    }
}

#[test]
fn the_table_of_published_runs_is_current() {
    let judged: Vec<Judged> = cases().into_par_iter().map(|(name, case)| judge(&name, case)).collect();
    // The doctor calls nothing broken but what is.
    let called: Vec<(&str, &str)> =
        judged.iter().flat_map(|j| j.errors.iter().map(|e| (j.name.as_str(), e.as_str()))).collect();
    assert_eq!(called, BROKEN.map(|(name, kind, _)| (name, kind)));
    let text = render(&judged);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/accuracy/published.md");
    if std::env::var_os("COLLCAST_UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &text).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let stale = text.lines().zip(committed.lines()).find(|(new, old)| new != old);
    assert!(
        text == committed,
        "docs/accuracy/published.md is stale; review what moved and run with COLLCAST_UPDATE=1. First difference: {stale:?}"
    );
}

//! The cases of a report as JUnit XML, for the test views of GitLab, Jenkins and others.
//!
//! Only what all of them read is written: `testsuites`, `testsuite`, `testcase` with
//! `failure`, `skipped` or `system-out`. Names stay the same from run to run, so that a history builds up.
//! A report without cases is one case: its verdict.

use std::fmt::Write as _;

use collcast_sim::text::is_shown;

use crate::model::{CaseOutcome, Report, Status, TestCase};

/// The whole file.
pub fn render(report: &Report) -> String {
    let suite = format!("collcast {}", report.kind);
    let verdict = of_verdict(report);
    let cases = if report.cases.is_empty() { &verdict } else { &report.cases };
    let count = |test: fn(&CaseOutcome) -> bool| cases.iter().filter(|c| test(&c.outcome)).count();
    let failures = count(|o| matches!(o, CaseOutcome::Failed { .. }));
    let skipped = count(|o| matches!(o, CaseOutcome::Skipped(_)));
    let (name, tests) = (escaped(&suite), cases.len());
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let _ = writeln!(out, "<testsuites name=\"{name}\" tests=\"{tests}\" failures=\"{failures}\" errors=\"0\">");
    let _ = writeln!(
        out,
        "  <testsuite name=\"{name}\" tests=\"{tests}\" failures=\"{failures}\" errors=\"0\" skipped=\"{skipped}\">"
    );
    for case in cases {
        let class = format!("collcast.{}.{}", report.kind, case.group.replace('.', "_"));
        let _ = write!(out, "    <testcase classname=\"{}\" name=\"{}\"", escaped(&class), escaped(&case.name));
        let _ = match &case.outcome {
            CaseOutcome::Passed => writeln!(out, "/>"),
            CaseOutcome::Noted(finding) => {
                writeln!(out, ">\n      <system-out>{}</system-out>\n    </testcase>", escaped(finding))
            }
            CaseOutcome::Skipped(reason) => {
                writeln!(out, ">\n      <skipped message=\"{}\"/>\n    </testcase>", escaped(reason))
            }
            CaseOutcome::Failed { kind, message, details } => writeln!(
                out,
                ">\n      <failure message=\"{}\" type=\"{}\">{}</failure>\n    </testcase>",
                escaped(message),
                escaped(kind),
                escaped(details)
            ),
        };
    }
    let notes: Vec<&str> = report.assumptions.iter().chain(&report.warnings).map(String::as_str).collect();
    if !notes.is_empty() {
        let _ = writeln!(out, "    <system-out>{}</system-out>", escaped(&notes.join("\n")));
    }
    out.push_str("  </testsuite>\n</testsuites>\n");
    out
}

fn of_verdict(report: &Report) -> Vec<TestCase> {
    let case = |verdict: &crate::model::Verdict| TestCase {
        group: "verdict".to_owned(),
        name: "verdict".to_owned(),
        outcome: match verdict.status {
            Status::Failed => CaseOutcome::Failed {
                kind: "failed".to_owned(),
                message: verdict.sentence.clone(),
                details: verdict.next.clone().unwrap_or_default(),
            },
            Status::Ok | Status::Warning => CaseOutcome::Passed,
        },
        place: None,
    };
    report.verdict.iter().map(case).collect()
}

/// Text as XML 1.0 may carry it: no control character but a newline.
fn escaped(text: &str) -> String {
    let drawn: String = text.chars().map(|c| if c == '\n' || is_shown(c) { c } else { ' ' }).collect();
    quick_xml::escape::escape(drawn).into_owned()
}

//! The cases of a report as workflow commands of GitHub Actions: failures and notes become
//! annotations.

use std::fmt::Write as _;

use collcast_sim::text::one_line;

use crate::model::{CaseOutcome, Report, Status};
use crate::terminal;

/// Most annotations of a level written: GitHub shows 10 errors and 10 warnings of a step and
/// drops the others in silence.
const SHOWN_MAX: usize = 10;

/// One `::error` for each failed case, one `::warning` for each noted, and the verdict last.
pub fn render(report: &Report) -> String {
    let mut out = String::new();
    for level in ["error", "warning"] {
        let of_level = report.cases.iter().filter_map(|case| match &case.outcome {
            CaseOutcome::Failed { message, .. } if level == "error" => Some((case, message)),
            CaseOutcome::Noted(finding) if level == "warning" => Some((case, finding)),
            _ => None,
        });
        // The verdict takes one of the ten.
        for (case, message) in of_level.take(SHOWN_MAX - 1) {
            let title = property(&case.name);
            let place = case.place.as_ref();
            let place = place.map(|(file, line)| format!("file={},line={line},", property(file))).unwrap_or_default();
            let _ = writeln!(out, "::{level} {place}title={title}::{}", data(message));
        }
    }
    if let Some(verdict) = &report.verdict {
        let level = match verdict.status {
            Status::Ok => "notice",
            Status::Warning => "warning",
            Status::Failed => "error",
        };
        let title = property(&format!("collcast {}", report.kind));
        let _ = writeln!(out, "::{level} title={title}::{}", data(&terminal::verdict_line(verdict)));
    }
    out
}

/// Text after the second `::`.
fn data(text: &str) -> String {
    one_line(text).replace('%', "%25")
}

/// Text of a property, which also ends at a colon or comma.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

//! What works here as a table.

use collcast_reports::model::{CaseOutcome, Column, Report, Status, Table, TestCase, Verdict};

use super::VERSION;
use crate::self_test::{Missing, Outcome, Part};
use crate::values::plural;

impl Outcome {
    /// A row a part, and a verdict on what is needed.
    pub fn report(&self) -> Report {
        let mut report = Report::new("self-test", VERSION);
        report.assumptions.push(format!("Collcast {VERSION}, model {}", collcast_sim::MODEL));
        if self.fixed {
            report.warnings.push(
                "this program is linked statically and loads no library: for GPUs, NCCL and NICs take the wheel, the Debian \
                 package or `cargo install`"
                    .to_owned(),
            );
        }
        let columns = [
            Column::text("part", "part"),
            Column::text("state", "state"),
            Column::text("found", "found"),
            Column::text("serves", "for"),
            Column::text("hint", "way out"),
        ];
        let mut table = Table::new("rows", "", columns);
        for part in &self.parts {
            let (found, hint) = match &part.found {
                Ok(found) => (found, None),
                Err(Missing { what, hint }) => (what, hint.as_deref()),
            };
            table.push([part.name.into(), state(part).into(), found.as_str().into(), part.serves.into(), hint.into()]);
        }
        report.tables.push(table);
        report.cases = self.parts.iter().map(case).collect();
        report.verdict = Some(self.verdict());
        report
    }

    fn verdict(&self) -> Verdict {
        let missing: Vec<&str> =
            self.parts.iter().filter(|part| !part.needed && part.found.is_err()).map(|part| part.name).collect();
        let sentence = match (self.works(), missing.len()) {
            (false, _) => "forecasts do not work here: please report it".to_owned(),
            (true, 0) => "all works here".to_owned(),
            (true, count) => format!(
                "forecasts work here, which need no GPU, no CUDA and no Python; {} not here: {}",
                plural(count, "part is", "parts are"),
                missing.join(", ")
            ),
        };
        Verdict {
            status: if self.works() { Status::Ok } else { Status::Failed },
            sentence,
            confidence: "high: each was tried".to_owned(),
            basis: "measured".to_owned(),
            next: None,
        }
    }
}

fn state(part: &Part) -> &'static str {
    match (&part.found, part.needed) {
        (Ok(_), _) => "ok",
        (Err(_), true) => "failed",
        (Err(_), false) => "missing",
    }
}

fn case(part: &Part) -> TestCase {
    let outcome = match (&part.found, part.needed) {
        (Ok(_), _) => CaseOutcome::Passed,
        (Err(missing), false) => CaseOutcome::Skipped(missing.what.clone()),
        (Err(missing), true) => CaseOutcome::Failed {
            kind: "failed".to_owned(),
            message: missing.what.clone(),
            details: missing.hint.clone().unwrap_or_default(),
        },
    };
    TestCase { group: "self-test".to_owned(), name: part.name.to_owned(), outcome, place: None }
}

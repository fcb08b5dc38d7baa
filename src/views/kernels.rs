//! Measured kernels beside their forecasts, and a profile fitted to them, as tables and verdict.

use std::path::Path;

use collcast_reports::model::{Cell, Column, Report, Status, Table, Verdict};
use collcast_sim::compute::fit::is_at_bound;
use collcast_sim::domain::Basis;

use crate::confidence::Level;
use crate::kernels::{Fitted, Group, Of, Outcome, Stats};

impl Outcome {
    /// As tables and a verdict; `rows` to have each row too.
    pub fn report(&self, rows: bool) -> Report {
        let mut report = Report::new("validate", super::VERSION);
        report.inputs.clone_from(&self.inputs);
        report.assumptions.clone_from(&self.notes);
        report.warnings.clone_from(&self.warnings);
        report.tables.push(self.group_table());
        if rows {
            report.tables.push(self.rows_table());
        }
        for (name, stats) in [("overall", &self.overall), ("overall_left_out", &self.overall_left_out)] {
            report.extra.insert(name.to_owned(), serde_json::to_value(stats).unwrap_or_default());
        }
        report.extra.insert("compute".to_owned(), self.gpu.clone().into());
        report.verdict = Some(self.verdict());
        report
    }

    fn group_table(&self) -> Table {
        let columns = [
            Column::text("group", "kernels"),
            Column::number("count", "rows"),
            Column::fraction("median_abs_error", "median"),
            Column::fraction("mean_abs_error", "mean"),
            Column::fraction("p95_abs_error", "p95"),
            Column::fraction("bias", "bias"),
            Column::number("left_out_count", "left out rows"),
            Column::fraction("left_out_median_abs_error", "median"),
        ];
        let mut table = Table::new("groups", "error = predicted / measured - 1, by kind of kernel", columns);
        let float = |value: f64| Cell::float(value, 3);
        let mut push = |group: &str, all: &Stats, out: &Stats| {
            table.push([
                group.into(),
                all.count.into(),
                float(all.median_abs_error),
                float(all.mean_abs_error),
                float(all.p95_abs_error),
                float(all.bias),
                out.count.into(),
                if out.count > 0 { float(out.median_abs_error) } else { Cell::Missing },
            ]);
        };
        for group in &self.groups {
            push(&group.group, &group.stats, &group.left_out);
        }
        push("all", &self.overall, &self.overall_left_out);
        table
    }

    fn rows_table(&self) -> Table {
        let columns = [
            Column::text("file", "file"),
            Column::number("line", "line"),
            Column::text("group", "kernels"),
            Column::text("left_out", "left out"),
            Column::text("unit", "unit"),
            Column::number("measured", "measured"),
            Column::number("predicted", "predicted"),
            Column::number("error", "error"),
        ];
        let mut table = Table::new("rows", "rows", columns);
        for row in &self.rows {
            table.push([
                row.file.as_str().into(),
                row.line.into(),
                row.group.as_str().into(),
                row.left_out.into(),
                row.unit.into(),
                Cell::float(row.measured, 2),
                Cell::float(row.predicted, 2),
                Cell::float(row.error, 3),
            ]);
        }
        table
    }

    fn verdict(&self) -> Verdict {
        let worst = self.groups.iter().max_by(|a, b| a.stats.median_abs_error.total_cmp(&b.stats.median_abs_error));
        let worst = worst
            .map(|g| format!("; the worst kind, {}, {:.1}%", g.group, g.stats.median_abs_error * 100.0))
            .unwrap_or_default();
        let limit = self.max_error.filter(|_| self.failed);
        let limit = limit.map(|most| format!(", more than {:.1}%", most * 100.0)).unwrap_or_default();
        let median = self.overall.median_abs_error * 100.0;
        // The kind that is furthest beyond what the profile's own data were off by.
        let over = |g: &&Group| g.stats.median_abs_error / g.own_error.unwrap_or(f64::INFINITY);
        let beyond = self.groups.iter().filter(|g| g.beyond()).max_by(|a, b| over(a).total_cmp(&over(b)));
        let own = beyond.map_or_else(String::new, |g| {
            let own = g.own_error.unwrap_or_default() * 100.0;
            let median = g.stats.median_abs_error * 100.0;
            format!("; {} is {median:.1}% off, beyond {own:.1}% of the profile's own data", g.group)
        });
        Verdict {
            status: match (self.failed, beyond.is_some()) {
                (true, _) => Status::Failed,
                (false, true) => Status::Warning,
                (false, false) => Status::Ok,
            },
            sentence: format!("{} times are {median:.1}% off in the median{worst}{limit}{own}", self.overall.count),
            confidence: confidence(&self.overall_left_out, LEFT_OUT),
            basis: "measured against predicted".to_owned(),
            next: (self.failed || beyond.is_some())
                .then(|| format!("collcast calibrate FILES --compute {} -o mine.toml", self.gpu)),
        }
    }
}

/// Rows of kernels by which fits are judged.
const LEFT_OUT: &str = "left out shapes";
/// Rows that have one in twenty: of fewer nobody knows what 95% are within.
const ONE_IN_TWENTY: usize = 20;

/// How sure forecasts are: by rows that fits leave out.
fn confidence(unseen: &Stats, left_out: &str) -> String {
    if unseen.count == 0 {
        return format!("{}: no row is of {left_out}", Level::Low);
    }
    let level = Level::of(unseen.p95_abs_error, Basis::Predicted);
    let level = if unseen.count < ONE_IN_TWENTY { level.min(Level::Medium) } else { level };
    let plural = if unseen.count == 1 { "" } else { "s" };
    let within = unseen.p95_abs_error * 100.0;
    format!("{level}: of {} row{plural} of {left_out}, 95% are at most {within:.0}% off", unseen.count)
}

impl Fitted {
    /// The report of a fit; `written` is where the profile was written.
    pub fn report(&self, written: Option<&Path>) -> Report {
        let mut report = Report::new("calibrate", super::VERSION);
        report.inputs.clone_from(&self.inputs);
        report.assumptions.clone_from(&self.notes);
        report.warnings.clone_from(&self.warnings);
        let bounded = self.constants.iter().filter(|c| self.of == Of::Kernels && is_at_bound(c.name, c.value));
        report.warnings.extend(bounded.map(|c| {
            format!(
                "`{}` ended at a bound, {:.4}: a mechanism may be missing, or the rows are of another GPU",
                c.name, c.value
            )
        }));
        let columns = [
            Column::text("parameter", "parameter"),
            Column::text("unit", "unit"),
            Column::number("value", "value"),
            Column::number("prior", "before"),
        ];
        let mut table = Table::new("parameters", "constants that were fitted", columns);
        for c in &self.constants {
            table.push([c.name.into(), c.unit.into(), Cell::float(c.value, 4), Cell::float(c.prior, 4)]);
        }
        report.tables.push(table);
        report.tables.push(self.error_table());
        let percent = |stats: &Stats| format!("{:.1}%", stats.median_abs_error * 100.0);
        let left_out = if self.of == Of::Network { "the other direction" } else { LEFT_OUT };
        report.verdict = Some(Verdict {
            status: if self.refused().is_some() { Status::Failed } else { Status::Ok },
            sentence: self.refused().unwrap_or_else(|| match self.left_out.count {
                0 => format!(
                    "{} constants, fitted to {} rows, of which none could be left out: they are {} off in the median",
                    self.constants.len(),
                    self.trained.count,
                    percent(&self.trained)
                ),
                _ => format!(
                    "{} constants, fitted to {} rows; {} rows of {} are {} off in the median, before {}",
                    self.constants.len(),
                    self.trained.count,
                    self.left_out.count,
                    left_out,
                    percent(&self.left_out),
                    percent(&self.left_out_before)
                ),
            }),
            confidence: confidence(&self.left_out, left_out),
            basis: "measured against predicted".to_owned(),
            next: Some(match written {
                Some(path) if self.of == Of::Links => {
                    format!(
                        "collcast transfer --from gpu:0 --to gpu:1 -s 1G --profile prior --profile {}",
                        path.display()
                    )
                }
                Some(path) if self.of == Of::Network => {
                    format!("collcast validate RUNS -t MACHINE --profile prior --profile {}", path.display())
                }
                Some(path) => format!("collcast validate OTHER_FILES --compute {}", path.display()),
                None if self.refused().is_some() => "--force writes it all the same".to_owned(),
                None => "add -o mine.toml to write the profile".to_owned(),
            }),
        });
        report
    }

    fn error_table(&self) -> Table {
        let columns = [
            Column::text("rows", "rows"),
            Column::number("count", "count"),
            Column::fraction("median_abs_error", "median"),
            Column::fraction("mean_abs_error", "mean"),
            Column::fraction("p95_abs_error", "p95"),
        ];
        let mut table = Table::new("errors", "error = predicted / measured - 1", columns);
        let parts =
            [("fitted to", &self.trained), ("left out", &self.left_out), ("left out, before", &self.left_out_before)];
        for (name, stats) in parts {
            let float = |value: f64| if stats.count > 0 { Cell::float(value, 3) } else { Cell::Missing };
            table.push([
                name.into(),
                stats.count.into(),
                float(stats.median_abs_error),
                float(stats.mean_abs_error),
                float(stats.p95_abs_error),
            ]);
        }
        table
    }
}

//! Measurements beside forecasts: errors by group, files, what is not as it should be, rows, and the verdict.

use collcast_reports::model::{Cell, Column, Report, Status, Table, Verdict};
use collcast_sim::collective::{Algorithm, Protocol};

use crate::diagnose::Anomaly;
use crate::query::trust;
use crate::validate::{Closest, File, FileOutcome, Group, Outcome, Row, SLOWER, Stats};

/// What a report shows, beside what every one does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shown {
    /// Words and percentages for people; fractions for programs otherwise.
    pub for_people: bool,
    /// Every row too.
    pub rows: bool,
    /// The table of what is not as it should be also where it is empty.
    pub no_anomalies: bool,
}

/// Errors from which on the verdict is a warning, where no gate says otherwise: forecasts of a machine that was not
/// measured are usually nearer.
const DOUBTFUL: f64 = 0.2;
/// Rows below which a median is no strong evidence.
const FEW: usize = 30;

impl Outcome {
    /// As tables and a verdict.
    pub fn report(&self, shown: Shown) -> Report {
        let mut report = Report::new("validate", super::VERSION);
        report.inputs.clone_from(&self.inputs);
        report.assumptions.clone_from(&self.notes);
        report.warnings.clone_from(&self.warnings);
        report.tables.push(group_table(&self.groups, &self.overall, shown.for_people));
        report.tables.push(files_table(&self.files));
        if !self.anomalies.is_empty() || shown.no_anomalies {
            report.tables.push(anomalies_table(&self.anomalies, shown.for_people));
        }
        if shown.rows {
            report.tables.push(rows_table(&self.rows));
        }
        let json = |value| serde_json::to_value(value).unwrap_or_default();
        report.extra.insert("overall".to_owned(), json(self.overall));
        report.extra.insert("overall_with_auto".to_owned(), json(self.overall_with_auto));
        if let Some(causes) = &self.causes {
            report.extra.insert("causes".to_owned(), serde_json::to_value(causes).unwrap_or_default());
        }
        report.verdict = Some(verdict(self));
        report
    }
}

/// Errors by group: percentages for people, fractions for files.
fn group_table(groups: &[Group], overall: &Stats, people: bool) -> Table {
    let (scale, digits) = if people { (100.0, 1) } else { (1.0, 4) };
    let columns = [
        Column::text("launch", "launch"),
        Column::text("group", "group"),
        Column::text("band", "size"),
        Column::number("count", "rows"),
        Column::number("median_abs_error", "median %"),
        Column::number("mean_abs_error", "mean %"),
        Column::number("p95_abs_error", "p95 %"),
        Column::number("bias", "bias %"),
        Column::number("coverage", "in interval %"),
        Column::number("nccl_median_abs_error", "NCCL's model %"),
        Column::number("closest_median_abs_error", "closest %"),
    ];
    let mut table = Table::new("groups", "error = predicted / measured - 1, by group", columns);
    let mut push = |launch: &str, what: &str, band: &str, s: &Stats| {
        let pc = |v: f64| Cell::float(v * scale, digits);
        table.push([
            launch.into(),
            what.into(),
            band.into(),
            s.count.into(),
            pc(s.median_abs_error),
            pc(s.mean_abs_error),
            pc(s.p95_abs_error),
            pc(s.bias),
            Cell::float(s.coverage * scale, digits.saturating_sub(1)),
            s.nccl_model.map(|m| pc(m.median_abs_error)).into(),
            s.closest.map(|m| pc(m.median_abs_error)).into(),
        ]);
    };
    for group in groups {
        push(group.launch.name(), &group.group, group.band, &group.stats);
    }
    push("all", "forced algorithm and protocol", "all", overall);
    table
}

fn files_table(files: &[File]) -> Table {
    let columns = [Column::text("file", "file"), Column::number("rows", "rows"), Column::text("outcome", "outcome")];
    let mut table = Table::new("files", "files that gave no rows, or of which there is something to tell", columns);
    for file in files {
        let mut text = match &file.outcome {
            FileOutcome::Read if file.notes.is_empty() => continue,
            FileOutcome::Read => "read".to_owned(),
            FileOutcome::Metadata => "describes the data files of its stem".to_owned(),
            FileOutcome::NotUnderstood(reason) => format!("not understood: {reason}"),
            FileOutcome::Refused(error) => format!("refused: {error}"),
        };
        if let Some(first) = file.notes.first() {
            text += &match file.notes.len() {
                1 => format!("; {first}"),
                more => format!("; {more} notes, the first: {first}"),
            };
        }
        table.push([file.path.as_str().into(), file.rows.into(), text.into()]);
    }
    table
}

/// The table `anomalies`: a row each for files, for people a line each of its evidence and what to
/// run next.
fn anomalies_table(anomalies: &[Anomaly], people: bool) -> Table {
    let title = "what is not as it should be";
    let severity = |a: &Anomaly| if a.error { "error" } else { "warning" };
    let (kind, level) = (Column::text("kind", "kind"), Column::text("severity", "severity"));
    if !people {
        let columns = [kind, level, Column::text("evidence", "evidence"), Column::text("suggestion", "suggestion")];
        let mut table = Table::new("anomalies", title, columns);
        for a in anomalies {
            table.push([a.kind.into(), severity(a).into(), a.evidence.as_str().into(), a.suggestion.as_str().into()]);
        }
        return table;
    }
    let mut table =
        Table::new("anomalies", title, [kind, level, Column::text("evidence", "evidence, and what to run next")]);
    for a in anomalies {
        let next = format!("next: {}", a.suggestion);
        let lines = a.evidence.split("; ").chain(next.split("; "));
        for (index, line) in lines.enumerate() {
            let (kind, severity) = if index == 0 { (a.kind, severity(a)) } else { ("", "") };
            table.push([kind.into(), severity.into(), line.into()]);
        }
    }
    table
}

fn rows_table(rows: &[Row]) -> Table {
    let columns = [
        Column::text("run", "run"),
        Column::text("collective", "collective"),
        Column::number("ranks", "ranks"),
        Column::number("size_bytes", "size B"),
        Column::text("in_place", "in place"),
        Column::text("launch", "launch"),
        Column::text("forced", "forced"),
        Column::text("algorithm", "algorithm"),
        Column::text("protocol", "protocol"),
        Column::number("channels", "ch"),
        Column::number("measured_us", "measured us"),
        Column::number("predicted_us", "predicted us"),
        Column::number("error", "error"),
        Column::number("low_us", "low us"),
        Column::number("high_us", "high us"),
        Column::number("nccl_model_us", "NCCL's model us"),
        Column::text("closest_algorithm", "closest algorithm"),
        Column::text("closest_protocol", "closest protocol"),
        Column::number("closest_us", "closest us"),
        Column::number("closest_error", "closest error"),
        Column::text("bound", "bound by"),
        Column::text("file", "file"),
        Column::number("line", "line"),
    ];
    let mut table = Table::new("rows", "", columns);
    for row in rows {
        let closest = |cell: fn(&Closest) -> Cell| row.closest.as_ref().map(cell).into();
        table.push([
            row.run.as_str().into(),
            row.collective.name().into(),
            row.ranks.into(),
            row.size_bytes.into(),
            row.in_place.into(),
            row.launch.name().into(),
            row.forced.into(),
            row.algorithm.name().into(),
            row.protocol.name().into(),
            row.channels.into(),
            Cell::float(row.measured_us, 2),
            Cell::float(row.predicted_us, 2),
            Cell::float(row.error, 3),
            Cell::float(row.low_us, 2),
            Cell::float(row.high_us, 2),
            row.nccl_model_us.map(|us| Cell::float(us, 2)).into(),
            closest(|c| Algorithm::name(c.algorithm).into()),
            closest(|c| Protocol::name(c.protocol).into()),
            closest(|c| Cell::float(c.predicted_us, 2)),
            closest(|c| Cell::float(c.error, 3)),
            row.bound_by.into(),
            row.file.as_str().into(),
            row.line.into(),
        ]);
    }
    table
}

/// A percentage as it was given: without digits that only floats have.
fn digits(percent: f64) -> f64 {
    (percent * 1e6).round() / 1e6
}

fn verdict(outcome: &Outcome) -> Verdict {
    let stats = if outcome.overall.count == 0 { &outcome.overall_with_auto } else { &outcome.overall };
    let found = outcome.anomalies.iter().find(|a| a.kind != SLOWER);
    let doubtful = stats.median_abs_error > outcome.max_error.unwrap_or(DOUBTFUL);
    Verdict {
        status: if outcome.failed {
            Status::Failed
        } else if found.is_some() || stats.count == 0 || doubtful {
            Status::Warning
        } else {
            Status::Ok
        },
        sentence: sentence(outcome, stats, found),
        confidence: confidence(outcome, stats),
        basis: "measured against predicted".to_owned(),
        next: found.map(|a| a.suggestion.clone()).or_else(|| {
            (stats.median_abs_error > DOUBTFUL)
                .then(|| "look at the rows with --rows; check the topology and the launch mode".to_owned())
        }),
    }
}

fn sentence(outcome: &Outcome, stats: &Stats, found: Option<&Anomaly>) -> String {
    let kind = if outcome.overall.count == 0 { "rows where NCCL chose" } else { "rows with a forced algorithm" };
    let mut sentence = if stats.count == 0 {
        "no row could be predicted".to_owned()
    } else {
        let (median, bias) = (stats.median_abs_error * 100.0, stats.bias * 100.0);
        format!("{} {kind}: median error {median:.1}%, bias {bias:+.1}%", stats.count)
    };
    if let Some(Group { launch, group, band, stats, .. }) = &outcome.worst {
        let median = stats.median_abs_error;
        sentence += &format!("; the worst group is {launch} {group} {band} with {:.1}%", median * 100.0);
        if let Some(most) = outcome.max_error.filter(|most| median > *most) {
            sentence += &format!(", more than the {}% of --max-error", digits(most * 100.0));
        }
    }
    let slow = outcome.anomalies.iter().filter(|a| a.kind == SLOWER).count();
    if slow > 0 {
        let least = digits(outcome.min_busbw.unwrap_or(0.0) * 100.0);
        sentence += &format!("; {slow} rows reach less than the {least}% of expected bus bandwidth of --min-busbw");
    }
    if let Some(found) = found {
        sentence += &format!("; found {}", found.kind);
    }
    sentence
}

fn confidence(outcome: &Outcome, stats: &Stats) -> String {
    let (extrapolated, all) = (outcome.extrapolated, outcome.rows.len());
    if stats.count < FEW {
        "low: few rows".to_owned()
    } else if 2 * extrapolated > all {
        trust(&outcome.beyond).1
    } else if extrapolated > 0 {
        format!("medium: {extrapolated} of {all} predictions extrapolate")
    } else {
        "high".to_owned()
    }
}

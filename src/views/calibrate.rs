//! A fitted profile and how good it is, as tables and verdict.

use std::path::Path;

use collcast_reports::model::{Cell, Column, Report, Status, Table, Verdict};
use collcast_sim::collective::{Launch, Protocol};
use collcast_sim::domain::Basis;

use crate::calibrate::{ALL, Errors, Estimated, Outcome, Part, Worst};
use crate::confidence::Level;

impl Outcome {
    /// The report of an outcome. `written` is where the profile was written.
    pub fn report(&self, for_people: bool, written: Option<&Path>) -> Report {
        let outcome = self;
        let mut report = Report::new("calibrate", super::VERSION);
        report.inputs.clone_from(&outcome.inputs);
        report.assumptions.clone_from(&outcome.notes);
        report.warnings.clone_from(&outcome.warnings);
        report.tables.push(parameter_table(&outcome.constants));
        report.tables.push(error_table(outcome, for_people));
        if !for_people || !outcome.splits.is_empty() {
            report.tables.push(split_table(&outcome.splits));
        }
        report.tables.push(worst_table(&outcome.worst, outcome.held_out.is_some()));
        report.verdict = Some(verdict(outcome, written));
        report
    }
}

fn share(value: f64) -> Cell {
    Cell::float(value, 3)
}

/// High over low end of an interval beyond which rows tell a parameter's size hardly: `IDENTIFIED` of the fit, at both ends.
const WIDE: f64 = 3.2;

fn parameter_table(constants: &[Estimated]) -> Table {
    let columns = [
        Column::text("parameter", "parameter"),
        Column::text("unit", "unit"),
        Column::number("value", "value"),
        Column::number("low", "low"),
        Column::number("high", "high"),
        Column::number("prior", "prior"),
        Column::text("identified", "identified"),
        Column::fraction("error_at_prior", "error at prior"),
    ];
    let mut table = Table::new("parameters", "parameters, with 90% intervals", columns);
    for c in constants {
        table.push([
            c.name.into(),
            c.unit.into(),
            Cell::float(c.value, 4),
            Cell::float(c.low, 4),
            Cell::float(c.high, 4),
            Cell::float(c.prior, 4),
            match c.identified {
                true if c.high > WIDE * c.low => "loosely: needed beside others",
                true => "yes",
                false => "no: at its prior",
            }
            .into(),
            share(c.error_at_prior),
        ]);
    }
    table
}

/// Errors on rows that were fitted to and on the same rows held back.
fn error_table(outcome: &Outcome, for_people: bool) -> Table {
    let columns = [
        Column::text("protocol", "protocol"),
        Column::text("launch", "launch"),
        Column::text("band", "size"),
        Column::number("count", "rows"),
        Column::fraction("train_mean_abs_error", "fitted"),
        Column::fraction("mean_abs_error", "held out"),
        Column::fraction("p95_abs_error", "p95"),
        Column::fraction("bias", "bias"),
        Column::fraction("coverage", "in interval"),
        Column::fraction("width", "width"),
        Column::fraction("nccl_mean_abs_error", "NCCL's model"),
    ];
    let held_out = outcome.held_out.map_or_else(String::new, |held| format!("; held out by {}", held.by));
    let mut table = Table::new("errors", format!("error = predicted / measured - 1{held_out}"), columns);
    // With one launch mode its groups are those of all.
    let mut launches = outcome.groups.iter().filter_map(|g| g.launch);
    let first = launches.next();
    let once = for_people && launches.all(|launch| Some(launch) == first);
    for g in outcome.groups.iter().filter(|g| !once || g.launch.is_none()) {
        table.push([
            g.protocol.map_or(ALL, Protocol::name).into(),
            g.launch.map_or(ALL, Launch::name).into(),
            g.sizes.unwrap_or(ALL).into(),
            g.rows.into(),
            share(g.fitted.mean_abs),
            g.held_out.map(|held| share(held.mean_abs)).into(),
            g.held_out.map(|held| share(held.p95_abs)).into(),
            g.held_out.map(|held| share(held.bias)).into(),
            g.coverage.map(share).into(),
            g.width.map(share).into(),
            g.nccl_mean_abs.map(share).into(),
        ]);
    }
    table
}

fn split_table(parts: &[Part]) -> Table {
    let columns = [
        Column::text("split", "held back by"),
        Column::text("value", "value"),
        Column::number("count", "rows"),
        Column::fraction("fitted_mean_abs_error", "fitted with it"),
        Column::fraction("train_mean_abs_error", "on the others"),
        Column::fraction("mean_abs_error", "held out"),
        Column::fraction("p95_abs_error", "p95"),
        Column::fraction("bias", "bias"),
    ];
    let mut table = Table::new("splits", "fits without some rows, judged on these (errors)", columns);
    for p in parts {
        table.push([
            p.by.into(),
            p.value.as_str().into(),
            p.rows.into(),
            share(p.fitted_mean_abs),
            share(p.others_mean_abs),
            share(p.held_out.mean_abs),
            share(p.held_out.p95_abs),
            share(p.held_out.bias),
        ]);
    }
    table
}

fn worst_table(worst: &[Worst], held_out: bool) -> Table {
    let columns = [
        Column::text("run", "run"),
        Column::number("size_bytes", "size"),
        Column::number("measured_us", "measured us"),
        Column::number("predicted_us", "predicted us"),
        Column::number("error", "error"),
        Column::text("bound", "bound by"),
        Column::text("place", "place"),
    ];
    let title = if held_out { "the worst rows, held out" } else { "the worst rows" };
    let mut table = Table::new("worst", title, columns);
    for w in worst {
        table.push([
            w.run.as_str().into(),
            w.size_bytes.into(),
            Cell::float(w.measured_us, 2),
            Cell::float(w.predicted_us, 2),
            Cell::float(w.error, 3),
            w.bound.into(),
            w.place.as_str().into(),
        ]);
    }
    table
}

/// Rows from which on a fit that does as well on rows held back is trusted.
const MANY: usize = 200;
/// How many times its error may grow on rows held back.
const WORSE: f64 = 2.0;

fn verdict(outcome: &Outcome, written: Option<&Path>) -> Verdict {
    let known = outcome.constants.iter().filter(|c| c.identified).count();
    let held = outcome.held_out.map(|held| held.errors);
    let out = held.map_or_else(String::new, |h| {
        format!(", {:.1}% on rows held back (bias {:+.1}%)", h.mean_abs * 100.0, h.bias * 100.0)
    });
    let unknown = outcome.constants.len() - known;
    let loose = outcome.constants.iter().filter(|c| c.identified && c.high > WIDE * c.low).count();
    let loose = if loose > 0 { format!(", {loose} of them loosely") } else { String::new() };
    let at_prior = if unknown > 0 { format!("; {unknown} stay at their prior") } else { String::new() };
    let over = held.is_some_and(|h| h.mean_abs > WORSE * outcome.errors.mean_abs);
    if let Some(why) = &outcome.standing.refused {
        return Verdict {
            status: Status::Failed,
            sentence: format!("no profile to use from {} rows: {why}", outcome.rows),
            confidence: format!("none: {}", outcome.standing.judged_on()),
            basis: "fitted over the simulator".to_owned(),
            next: Some(match written {
                Some(path) => format!("{} was written all the same, by --force", path.display()),
                None => "--force writes it all the same".to_owned(),
            }),
        };
    }
    Verdict {
        status: if over { Status::Warning } else { Status::Ok },
        sentence: format!(
            "{known} parameters fitted to {} rows{loose}, mean error {:.1}%{out}{at_prior}",
            outcome.rows,
            outcome.errors.mean_abs * 100.0
        ),
        confidence: confidence(outcome.rows, held, over),
        basis: "fitted over the simulator".to_owned(),
        next: written.map(|path| format!("collcast validate OTHER_MEASUREMENTS --profile {}", path.display())),
    }
}

/// How sure forecasts of a fit are: by the errors on rows held back, where it does as well on them as on its own.
fn confidence(rows: usize, held: Option<Errors>, over: bool) -> String {
    let Some(Errors { p95_abs, .. }) = held else {
        return format!("{}: no rows were held back to judge it", Level::Low);
    };
    let low = match rows {
        _ if over => Some(format!("errors on rows held back are more than {WORSE} times those on its own")),
        ..MANY => Some(format!("{rows} rows are few: {MANY} or more tell")),
        _ => None,
    };
    if let Some(why) = low {
        return format!("{}: {why}", Level::Low);
    }
    let level = Level::of(p95_abs, Basis::Predicted);
    format!("{level}: 95% of the rows held back are at most {:.0}% off", p95_abs * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a fit that is as far off on rows held back as on its own is called no surer than these errors are.
    #[test]
    fn confidence_follows_errors_on_rows_held_back() {
        let held = |p95_abs: f64| Some(Errors { mean_abs: p95_abs / 2.0, p95_abs, bias: 0.0 });
        for (rows, held, expected) in [
            (MANY, held(0.15), "high: 95% of the rows held back are at most 15% off"),
            (MANY, held(0.25), "medium: "),
            (MANY, held(0.42), "low: 95% of the rows held back are at most 42% off"),
            (MANY - 1, held(0.01), "low: 199 rows are few"),
            (MANY, None, "low: no rows were held back"),
        ] {
            let said = confidence(rows, held, false);
            assert!(said.starts_with(expected), "{rows} {held:?}: {said}");
        }
        assert!(confidence(MANY, held(0.01), true).starts_with("low: errors on rows held back are more than 2 times"));
    }
}

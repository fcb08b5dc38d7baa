//! A report for people: assumptions first, then aligned tables.
//!
//! Data goes to stdout ([`render`]); warnings and the closing verdict line to stderr
//! ([`notes`]). No colour is used or needed.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Table as Grid, TableStyle};

use collcast_sim::text::one_line;

use crate::model::{Align, Cell, Report, Table, Verdict};

/// Columns apart under one rule: nothing between the numbers and the eye, and a row splits on
/// whitespace in awk.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('-').junction('-'));

/// The assumptions and the tables.
///
/// - `width`: columns of the terminal. Text columns wrap to fit; numbers never do, and stick
///   out where even that is too little. None for a pipe: every row is one line.
pub fn render(report: &Report, width: Option<u16>) -> String {
    let mut out = String::new();
    if report.predicted {
        out.push_str("# predicted, not measured\n");
    }
    for line in &report.assumptions {
        let _ = writeln!(out, "# {}", one_line(line));
    }
    for table in &report.tables {
        if !out.is_empty() {
            out.push('\n');
        }
        if !table.title.is_empty() {
            let _ = writeln!(out, "{}", one_line(&table.title));
        }
        out.push_str(&grid(table, width));
    }
    out
}

/// The warnings and the verdict line.
pub fn notes(report: &Report) -> String {
    let mut out = String::new();
    for warning in &report.warnings {
        let _ = writeln!(out, "warning: {}", one_line(warning));
    }
    if let Some(verdict) = &report.verdict {
        out.push_str(&verdict_line(verdict));
        out.push('\n');
    }
    out
}

/// The closing line: `ok: ... (confidence: high; basis: measured). Next: ...`.
pub fn verdict_line(verdict: &Verdict) -> String {
    let mut facts = Vec::new();
    if !verdict.confidence.is_empty() {
        facts.push(format!("confidence: {}", verdict.confidence));
    }
    if !verdict.basis.is_empty() {
        facts.push(format!("basis: {}", verdict.basis));
    }
    let mut line = format!("{}: {}", verdict.status.name(), verdict.sentence.trim_end_matches('.'));
    if !facts.is_empty() {
        let _ = write!(line, " ({})", facts.join("; "));
    }
    line.push('.');
    if let Some(next) = &verdict.next {
        let _ = write!(line, " Next: {next}");
    }
    one_line(&line)
}

fn grid(table: &Table, width: Option<u16>) -> String {
    if table.rows.is_empty() {
        return "(no rows)\n".to_owned();
    }
    let mut grid = Grid::new();
    grid.load_style(STYLE).force_no_tty();
    match width {
        Some(width) => grid.set_content_arrangement(ContentArrangement::Dynamic).set_width(width),
        None => grid.set_content_arrangement(ContentArrangement::Disabled),
    };
    grid.set_header(table.columns.iter().map(|c| one_line(&c.heading)));
    for row in &table.rows {
        grid.add_row(table.cells(row).map(|(_, cell)| match cell {
            Cell::Text(text) => one_line(text),
            other => other.display(),
        }));
    }
    let last = table.columns.len().saturating_sub(1);
    for (index, column) in table.columns.iter().enumerate() {
        let Some(drawn) = grid.column_mut(index) else {
            continue;
        };
        drawn.set_padding((0, if index == last { 0 } else { 2 }));
        if column.align == Align::Right {
            drawn.set_cell_alignment(CellAlignment::Right);
            drawn.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    let mut text = grid.trim_fmt();
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Column, Status};

    fn sample() -> Report {
        let mut report = Report::new("sweep", "0.1.0");
        let mut table = Table::new(
            "rows",
            "",
            [Column::number("size_bytes", "size"), Column::text("note", "note"), Column::number("time_us", "time")],
        );
        table.push([8u64.into(), "a long remark that has to wrap somewhere".into(), Cell::float(1.25, 2)]);
        table.push([1_073_741_824u64.into(), Cell::Missing, Cell::float(f64::NAN, 2)]);
        report.tables.push(table);
        report
    }

    /// Goal: a narrow terminal wraps words and never a number.
    #[test]
    fn narrow_terminals_wrap_text_and_keep_numbers_whole() {
        let narrow = render(&sample(), Some(40));
        assert!(narrow.lines().all(|l| l.chars().count() <= 40), "{narrow}");
        assert!(narrow.contains("1073741824"), "{narrow}");
        assert_eq!(render(&sample(), None).lines().count(), 4);
    }

    /// Goal: no name from a file reaches the terminal as a control sequence.
    #[test]
    fn control_characters_are_not_passed_on() {
        let mut report = sample();
        report.assumptions.push("evil \u{1b}[31m\nname".to_owned());
        report.tables[0].push([Cell::Missing, "\u{1b}]0;x\u{7}".into()]);
        assert!(!render(&report, None).contains('\u{1b}'));
        assert!(render(&report, None).starts_with("# evil \\u{1b}[31m name\n"));
    }

    /// Goal: the verdict stays on one line and ends in one full stop.
    #[test]
    fn the_verdict_is_one_line() {
        let verdict = Verdict {
            status: Status::Warning,
            sentence: "two of 20 sizes are slow.".to_owned(),
            confidence: "medium".to_owned(),
            basis: "predicted".to_owned(),
            next: Some("collcast validate run.log".to_owned()),
        };
        assert_eq!(
            verdict_line(&verdict),
            "warning: two of 20 sizes are slow (confidence: medium; basis: predicted). \
             Next: collcast validate run.log"
        );
    }
}

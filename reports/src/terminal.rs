//! A report for people: assumptions first, then aligned tables.
//!
//! Data goes to stdout ([`render`]); warnings and the closing verdict line to stderr
//! ([`notes`]). No colour is used or needed.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Table as Grid, TableStyle, Width};

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
    let parts = parts(table, width.map_or(usize::MAX, usize::from));
    parts.iter().map(|columns| drawn(table, columns, width)).collect::<Vec<_>>().join("\n")
}

/// Columns apart.
const GAP: usize = 2;

/// What a column may not be narrower than: numbers are whole, and so are words.
fn least(table: &Table, column: usize) -> usize {
    let word = |text: &str| text.split(' ').map(|word| word.chars().count()).max().unwrap_or(0);
    let cells = table.rows.iter().filter_map(|row| row.get(column)).map(|cell| match cell {
        Cell::Text(text) => word(&one_line(text)),
        other => table.columns[column].shown(other).chars().count(),
    });
    cells.chain([word(&one_line(&table.columns[column].heading))]).max().unwrap_or(0)
}

/// The columns side by side, or as many as fit over the next ones, each part with the first.
fn parts(table: &Table, width: usize) -> Vec<Vec<usize>> {
    let mut parts: Vec<Vec<usize>> = vec![Vec::new()];
    let mut used = 0;
    for column in 0..table.columns.len() {
        let least = least(table, column);
        if used + least > width && parts[parts.len() - 1].len() > 1 {
            parts.push(vec![0]);
            used = self::least(table, 0) + GAP + 1;
        }
        let last = parts.len() - 1;
        parts[last].push(column);
        used += least + GAP + 1; // The rule has a junction between columns.
    }
    parts
}

/// Some columns of a table; text wraps at spaces where it is wide.
fn drawn(table: &Table, columns: &[usize], width: Option<u16>) -> String {
    let mut grid = Grid::new();
    grid.load_style(STYLE).force_no_tty();
    match width {
        Some(width) => grid.set_content_arrangement(ContentArrangement::Dynamic).set_width(width),
        None => grid.set_content_arrangement(ContentArrangement::Disabled),
    };
    grid.set_header(columns.iter().map(|&c| one_line(&table.columns[c].heading)));
    for row in &table.rows {
        let cells: Vec<String> = (table.cells(row))
            .map(|(column, cell)| match cell {
                Cell::Text(text) => one_line(text),
                other => column.shown(other),
            })
            .collect();
        grid.add_row(columns.iter().map(|&c| cells.get(c).cloned().unwrap_or_default()));
    }
    for (index, &column) in columns.iter().enumerate() {
        let Some(drawn) = grid.column_mut(index) else {
            continue;
        };
        let gap = if index + 1 == columns.len() { 0 } else { GAP };
        drawn.set_padding((0, u16::try_from(gap).unwrap_or(0)));
        let least = u16::try_from(least(table, column) + gap).unwrap_or(u16::MAX);
        drawn.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(least)));
        if table.columns[column].align == Align::Right {
            drawn.set_cell_alignment(CellAlignment::Right);
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
        assert!(narrow.contains("1 GiB"), "{narrow}");
        assert_eq!(render(&sample(), None).lines().count(), 4);
    }

    /// Goal: at any width every word and number of a wide table is whole, and no line is wider unless one word is.
    #[test]
    fn no_word_is_broken_at_any_width() {
        let columns = (0..12).map(|i| match i % 3 {
            0 => Column::text("key", "collective name"),
            1 => Column::number("n", "busbw GB/s"),
            _ => Column::text("t", "instead of"),
        });
        let mut table = Table::new("rows", "", columns);
        table.push((0..12).map(|i| match i % 3 {
            0 => "reduce_scatter by ring/ll128".into(),
            1 => 1_073_741_824_u64.into(),
            _ => Cell::Missing,
        }));
        let mut report = Report::new("sweep", "0.1.0");
        report.tables.push(table);
        for width in [34, 40, 60, 80, 100, 200] {
            let text = render(&report, Some(width));
            let found = |word: &str| text.split_whitespace().filter(|w| *w == word).count();
            for word in ["reduce_scatter", "ring/ll128", "1073741824", "collective", "instead", "GB/s"] {
                assert!(found(word) >= 4, "{width}: {word} is broken:\n{text}");
            }
            assert!(text.lines().all(|l| l.chars().count() <= usize::from(width)), "{width}:\n{text}");
        }
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

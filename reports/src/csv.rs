//! A table as CSV (RFC 4180 with LF line ends), for spreadsheets and data frames.
//!
//! Comment lines that start with `#` come before the header: what was assumed, and
//! [`PREDICTED`] for forecasts. Numbers keep all their digits (the shortest text that reads
//! back to the same value), so that a small rate does not become 0.00.

use ::csv::QuoteStyle;
use collcast_sim::text::{no_commands, one_line};

use crate::model::{Cell, Report, Table};

/// The mark that keeps a forecast from being read as a measurement.
pub const PREDICTED: &str = "# collcast: predicted, not measured";

/// The first table of a report; comments alone where it has none.
pub fn render(report: &Report) -> String {
    let mut out = preamble(report);
    if let Some(table) = report.tables.first() {
        out.push_str(&body(table));
    }
    out
}

fn preamble(report: &Report) -> String {
    let mut out = String::new();
    if report.predicted {
        out.push_str(PREDICTED);
        out.push('\n');
    }
    for line in &report.assumptions {
        out.push_str("# ");
        out.push_str(&one_line(line));
        out.push('\n');
    }
    out
}

fn body(table: &Table) -> String {
    if table.columns.is_empty() {
        return String::new();
    }
    let keys = table.columns.iter().map(|column| column.key.to_string()).collect();
    let mut out = lines(QuoteStyle::Necessary, std::iter::once(keys));
    for alike in table.rows.chunk_by(|a, b| is_command(a) == is_command(b)) {
        // Quotes are in front of what a log would take for a command.
        let style = if is_command(&alike[0]) { QuoteStyle::Always } else { QuoteStyle::Necessary };
        out += &lines(style, alike.iter().map(|row| table.cells(row).map(|(_, cell)| text(cell)).collect()));
    }
    out
}

fn lines(style: QuoteStyle, rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut writer = ::csv::WriterBuilder::new()
        .comment(Some(b'#')) // Quotes a first cell that would read as a comment.
        .quote_style(style)
        .from_writer(Vec::new());
    let written = { rows }.try_for_each(|row| writer.write_record(row));
    // Writing to memory, with one cell for each column, has no way to fail.
    assert!(written.is_ok(), "memory takes every line: {written:?}");
    String::from_utf8(writer.into_inner().unwrap_or_default()).unwrap_or_default()
}

/// Whether a row would begin like a command to GitHub Actions.
fn is_command(row: &[Cell]) -> bool {
    matches!(row.first(), Some(Cell::Text(text)) if text.trim_start().starts_with("::"))
}

fn text(cell: &Cell) -> String {
    match cell {
        // Quotes are before its first line alone.
        Cell::Text(text) if text.contains('\n') => no_commands(text),
        Cell::Text(text) => text.clone(),
        Cell::Int(value) => value.to_string(),
        Cell::Float { value, .. } if value.is_finite() => value.to_string(),
        Cell::Float { .. } | Cell::Missing => String::new(),
        Cell::Bool(value) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Column;

    /// Goal: whatever is in a cell, a reader gets it back, in its place.
    #[test]
    fn awkward_cells_are_read_back() {
        let names = ["a,b", "say \"hi\"", "two\nlines", "# not a comment", "", "plain"];
        let mut table = Table::new("rows", "", [Column::text("name", "name"), Column::number("x", "x")]);
        for name in names {
            table.push([name.into(), Cell::float(0.1 + 0.2, 2)]);
        }
        let mut report = Report::new("test", "0");
        report.predicted = true;
        report.assumptions.push("line\nbreak".to_owned());
        report.tables.push(table);
        let text = render(&report);
        assert!(text.starts_with("# collcast: predicted, not measured\n# line break\nname,x\n"));
        let mut reader = ::csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(text.as_bytes());
        let rows: Vec<_> = reader.records().map(Result::unwrap).collect();
        assert_eq!(rows.len(), names.len());
        for (row, name) in rows.iter().zip(names) {
            assert_eq!(&row[0], name);
            assert_eq!(row[1].parse(), Ok(0.1 + 0.2));
        }
    }
}

//! A table as CSV (RFC 4180 with LF line ends), for spreadsheets and data frames.
//!
//! Comment lines that start with `#` come before the header: what was assumed, and
//! [`PREDICTED`] for forecasts. Numbers keep all their digits (the shortest text that reads
//! back to the same value), so that a small rate does not become 0.00.

use collcast_sim::text::one_line;

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

/// The table named `name`; none where the report has no such table.
pub fn render_table(report: &Report, name: &str) -> Option<String> {
    report.table(name).map(|table| preamble(report) + &body(table))
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
    let mut writer = ::csv::WriterBuilder::new()
        .comment(Some(b'#')) // Quotes a first cell that would read as a comment.
        .from_writer(Vec::new());
    let mut written = writer.write_record(table.columns.iter().map(|c| c.key.as_bytes()));
    for row in &table.rows {
        written = written.and_then(|()| writer.write_record(table.cells(row).map(|(_, c)| text(c))));
    }
    // Writing to memory, with one cell for each column, has no way to fail.
    debug_assert!(written.is_ok(), "{written:?}");
    let bytes = writer.into_inner().unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_default()
}

fn text(cell: &Cell) -> String {
    match cell {
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
        assert_eq!(render_table(&report, "none"), None);
    }
}

//! What outcomes look like: tables, cases and a verdict, for the writers of [`collcast_reports`]. No result is
//! computed here.

pub mod check;
pub mod compare;

use collcast_reports::model::Report;

/// Version of the program, as reports name it.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Leaves one table of a report: CSV holds no more.
pub fn only(report: &mut Report, table: &str) {
    report.tables.retain(|t| t.name == table);
}

/// Cuts a table to its first rows, as a screen shows, and says how many more there are. `rows` is what they are called.
pub fn shorten(report: &mut Report, table: &str, most: usize, rows: &str) {
    for table in report.tables.iter_mut().filter(|t| t.name == table && t.rows.len() > most) {
        let more = table.rows.len() - most;
        report.warnings.push(format!("{more} more {rows} are not shown; --format csv, json or markdown has them"));
        table.rows.truncate(most);
    }
}

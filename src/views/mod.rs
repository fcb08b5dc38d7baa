//! Answers as reports: tables, notes and one verdict, which every format of [`collcast_reports`] writes.
//!
//! A view rounds and names; it computes no result.

pub mod bench;
pub mod calibrate;
pub mod check;
pub mod compare;
pub mod copies;
pub mod figures;
pub mod forecast;
pub mod guard;
mod health;
pub mod kernels;
pub mod lint;
pub mod next;
pub mod options;
pub mod plan;
pub mod probe;
pub mod profile;
pub mod schema;
pub mod self_test;
pub mod serve;
pub mod step;
pub mod topo;
pub mod trace;
pub mod transfer;
pub mod tune;
pub mod validate;

use collcast_reports::model::{Cell, Column, Report, Table};

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

/// Takes columns that have no value in any row out of some tables, as people read them; files keep all keys.
pub fn without_empty(report: &mut Report, tables: &[&str]) {
    for table in report.tables.iter_mut().filter(|t| tables.contains(&t.name.as_str())) {
        let filled = |index: usize| table.rows.iter().any(|row| row.get(index).is_some_and(|c| *c != Cell::Missing));
        let empty = table.columns.iter().enumerate().filter(|(index, _)| !filled(*index));
        let empty: Vec<String> = empty.map(|(_, column)| column.key.clone().into_owned()).collect();
        hide(table, &empty.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

/// Takes columns out of a table.
pub(crate) fn hide(table: &mut Table, hidden: &[&str]) {
    let keep: Vec<bool> = table.columns.iter().map(|c| !hidden.contains(&&*c.key)).collect();
    let mut kept = keep.iter();
    table.columns.retain(|_| *kept.next().unwrap_or(&true));
    for row in &mut table.rows {
        let mut kept = keep.iter();
        row.retain(|_| *kept.next().unwrap_or(&true));
    }
}

/// Columns that say what a forecast was asked for, beside algorithm, protocol and channels.
pub(crate) fn asked_columns() -> [Column; 7] {
    [
        Column::text("launch", "launch"),
        Column::text("registered", "registered"),
        Column::text("in_place", "in place"),
        Column::text("dtype", "type"),
        Column::text("op", "op"),
        Column::number("root", "root"),
        Column::text("nccl_version", "NCCL"),
    ]
}

/// The cells of [`asked_columns`].
pub(crate) fn asked_cells(asked: &crate::forecast::Asked) -> [Cell; 7] {
    [
        asked.launch.name().into(),
        asked.registered.into(),
        asked.in_place.into(),
        asked.dtype.name().into(),
        asked.op.map(|op| Cell::from(op.name())).into(),
        asked.root.into(),
        asked.nccl_version.as_str().into(),
    ]
}

//! Rows of reports, read by the keys of their columns.

use std::collections::BTreeMap;

use collcast_reports::model::{Cell, Report, Table};

/// A row of a table, read by the keys of its columns.
#[derive(Clone, Copy)]
pub(super) struct Row<'r> {
    table: &'r Table,
    cells: &'r [Cell],
}

/// The rows of a table of a report.
pub(super) fn rows<'r>(report: &'r Report, table: &str) -> impl Iterator<Item = Row<'r>> + Clone {
    let table = report.table(table);
    table.into_iter().flat_map(|table| table.rows.iter().map(move |cells| Row { table, cells }))
}

impl<'r> Row<'r> {
    fn cell(self, key: &str) -> Option<&'r Cell> {
        self.cells.get(self.table.columns.iter().position(|column| column.key == key)?)
    }

    /// A number; none where the cell has none.
    pub(super) fn number(self, key: &str) -> Option<f64> {
        match self.cell(key)? {
            Cell::Int(value) => Some(*value as f64),
            Cell::Float { value, .. } => Some(*value).filter(|value| value.is_finite()),
            Cell::Text(_) | Cell::Bool(_) | Cell::Missing => None,
        }
    }

    /// A share in percent: files have it as a fraction, tables for people as its heading says.
    pub(super) fn percent(self, key: &str) -> Option<f64> {
        let heading = self.table.columns.iter().find(|column| column.key == key).map(|column| column.heading.as_str());
        Some(self.number(key)? * if heading?.ends_with('%') { 1.0 } else { 100.0 })
    }

    /// Words; empty where there are none.
    pub(super) fn text(self, key: &str) -> &'r str {
        match self.cell(key) {
            Some(Cell::Text(text)) => text,
            _ => "",
        }
    }

    /// A cell as it is shown; empty where there is none.
    pub(super) fn shown(self, key: &str) -> String {
        self.cell(key).filter(|cell| **cell != Cell::Missing).map_or_else(String::new, Cell::display)
    }

    pub(super) fn is(self, key: &str) -> bool {
        matches!(self.cell(key), Some(Cell::Bool(true)))
    }
}

/// Things in groups, in the order in which groups first appear.
pub(super) fn grouped<K: Ord + Clone, T>(things: impl IntoIterator<Item = (K, T)>) -> Vec<(K, Vec<T>)> {
    let mut places: BTreeMap<K, usize> = BTreeMap::new();
    let mut groups: Vec<(K, Vec<T>)> = Vec::new();
    for (key, thing) in things {
        let place = *places.entry(key.clone()).or_insert_with(|| {
            groups.push((key, Vec::new()));
            groups.len() - 1
        });
        groups[place].1.push(thing);
    }
    groups
}

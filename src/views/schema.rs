//! The schemas as a table.

use collcast_reports::model::{Column, Report, Table};
use serde_json::Value;

use super::VERSION;
use crate::schema::{Of, Schema};

/// A row a schema.
pub fn list_report(all: &[Schema]) -> Report {
    let mut report = Report::new("schemas", VERSION);
    let columns = [
        Column::text("name", "name"),
        Column::text("of", "of"),
        Column::text("schema", "key `schema`"),
        Column::text("title", "what it describes"),
    ];
    let mut table = Table::new("rows", "", columns);
    for schema in all {
        let text: Value = serde_json::from_str(&schema.text).unwrap_or_default();
        let of = match schema.of {
            Of::Answer => "answer",
            Of::File => "file",
        };
        let key = text["properties"]["schema"]["const"].as_str().map(str::to_owned);
        table.push([schema.name.into(), of.into(), key.into(), schema.title.as_str().into()]);
    }
    report.tables.push(table);
    report
}

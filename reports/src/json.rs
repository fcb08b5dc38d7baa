//! A report as JSON, schema `collcast/<kind>/1`.
//!
//! Keys stand in a fixed order and every row of a table on a line of its own: a result diffs
//! well under version control. Floats are the shortest text that reads back to the same
//! value; what JSON has no number for (NaN, infinity) is `null`.

use serde_json::Value;

use crate::model::{Cell, Report, Table};

/// The whole report.
pub fn render(report: &Report) -> String {
    let mut fields: Vec<(String, String)> = vec![
        field("schema", string(&format!("collcast/{}/1", report.kind))),
        field("version", string(&report.version)),
        field("predicted", report.predicted.to_string()),
        field(
            "inputs",
            lines(report.inputs.iter().map(|input| {
                object([
                    ("name", string(&input.name)),
                    ("path", input.path.as_deref().map_or_else(null, string)),
                    ("hash", string(&input.hash)),
                ])
            })),
        ),
        field("assumptions", lines(report.assumptions.iter().map(|l| string(l)))),
        field("warnings", lines(report.warnings.iter().map(|l| string(l)))),
        field("verdict", verdict(report)),
    ];
    for table in &report.tables {
        add(&mut fields, &table.name, rows(table));
    }
    let mut extra: Vec<_> = report.extra.iter().collect();
    extra.sort_by_key(|(key, _)| key.as_str());
    for (key, value) in extra {
        add(&mut fields, key, value.to_string());
    }
    let fields: Vec<String> = fields.iter().map(|(key, value)| format!("  {}: {value}", string(key))).collect();
    // Within strings alone; as they are, a CI system takes them for commands (`##[error]`).
    format!("{{\n{}\n}}\n", fields.join(",\n")).replace("##", "\\u0023#")
}

/// A key appears once: what came first stays.
fn add(fields: &mut Vec<(String, String)>, key: &str, value: String) {
    if fields.iter().all(|(known, _)| known != key) {
        fields.push(field(key, value));
    }
}

fn field(key: &str, value: String) -> (String, String) {
    (key.to_owned(), value)
}

fn verdict(report: &Report) -> String {
    report.verdict.as_ref().map_or_else(null, |verdict| {
        object([
            ("status", string(verdict.status.name())),
            ("sentence", string(&verdict.sentence)),
            ("confidence", string(&verdict.confidence)),
            ("basis", string(&verdict.basis)),
            ("next", verdict.next.as_deref().map_or_else(null, string)),
        ])
    })
}

fn rows(table: &Table) -> String {
    lines(table.rows.iter().map(|row| object(table.cells(row).map(|(column, cell)| (&*column.key, value(cell))))))
}

fn value(cell: &Cell) -> String {
    match cell {
        Cell::Text(text) => string(text),
        Cell::Int(value) => value.to_string(),
        Cell::Float { value, .. } => Value::from(*value).to_string(),
        Cell::Bool(value) => value.to_string(),
        Cell::Missing => null(),
    }
}

fn null() -> String {
    "null".to_owned()
}

pub(crate) fn string(text: &str) -> String {
    Value::from(text).to_string()
}

fn object<'a>(fields: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let fields: Vec<String> = fields.into_iter().map(|(key, value)| format!("{}: {value}", string(key))).collect();
    format!("{{{}}}", fields.join(", "))
}

fn lines(items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.map(|item| format!("    {item}")).collect();
    if items.is_empty() { "[]".to_owned() } else { format!("[\n{}\n  ]", items.join(",\n")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Column;

    /// Goal: numbers survive, what is no number is null, no key is there twice.
    #[test]
    fn values_are_read_back() {
        let mut report = Report::new("test", "0");
        let mut table = Table::new("rows", "", [Column::number("x", "x")]);
        for value in [0.1 + 0.2, 1e300, -0.5, f64::NAN, f64::INFINITY] {
            table.push([Cell::float(value, 2)]);
        }
        table.push([u64::MAX.into()]);
        table.push([]);
        report.tables.push(table);
        report.extra.insert("rows".to_owned(), Value::from(1));
        report.extra.insert("version".to_owned(), Value::from(1));
        report.extra.insert("overall".to_owned(), Value::from("x"));
        let text = render(&report);
        assert_eq!(text.matches("\"rows\":").count(), 1);
        assert_eq!(text.matches("\"version\":").count(), 1);
        let parsed: Value = serde_json::from_str(&text).unwrap();
        let rows = &parsed["rows"];
        assert_eq!(rows[0]["x"].as_f64(), Some(0.1 + 0.2));
        assert_eq!(rows[1]["x"].as_f64(), Some(1e300));
        assert!(rows[3]["x"].is_null() && rows[4]["x"].is_null() && rows[6]["x"].is_null());
        assert_eq!(rows[5]["x"].as_u64(), Some(u64::MAX));
        assert_eq!(parsed["overall"], "x");
        assert!(parsed["verdict"].is_null());
    }
}

//! A result of a command, read back from its JSON: what [`crate::json`] wrote, with keys for headings.

use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::model::{Align, Cell, Column, Input, Report, Status, Table, Verdict};

/// Kinds of result that are read back.
const KINDS: [&str; 13] = [
    "sweep",
    "simulate",
    "validate",
    "compare",
    "tune",
    "check",
    "plan",
    "bench",
    "calibrate",
    "lint",
    "trace",
    "serve",
    "transfer",
];

/// Columns of a table at most; the widest that a command writes has 26.
const COLUMNS_MAX: usize = 200;

/// Why a text is no result.
#[derive(Debug)]
pub enum NoResult {
    /// No JSON.
    Syntax(serde_json::Error),
    /// JSON of another kind: what its schema is.
    Schema(Option<String>),
}

impl fmt::Display for NoResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(error) => write!(f, "no JSON: {error}"),
            Self::Schema(Some(schema)) => {
                write!(f, "its schema is `{schema}`; read are results of {} in version 1", KINDS.join(", "))
            }
            Self::Schema(None) => f.write_str("it has no key `schema`"),
        }
    }
}

impl std::error::Error for NoResult {}

/// The report that a text in JSON holds.
///
/// # Errors
/// [`NoResult`].
pub fn read(text: &str) -> Result<Report, NoResult> {
    let Pairs(parts): Pairs<Part> = serde_json::from_str(text).map_err(NoResult::Syntax)?;
    let order: Vec<(String, Vec<String>)> = parts.iter().map(|(key, part)| (key.clone(), part.keys())).collect();
    let mut all: Map<String, Value> = parts.into_iter().map(|(key, part)| (key, part.value())).collect();
    let schema = all.remove("schema").and_then(|schema| Some(schema.as_str()?.to_owned()));
    let of = |kind: &&str| schema.as_deref() == Some(&format!("collcast/{kind}/1"));
    let Some(kind) = KINDS.into_iter().find(of) else { return Err(NoResult::Schema(schema)) };
    let mut take = |key: &str| all.remove(key).unwrap_or_default();
    let mut report = Report::new(kind, words(&take("version")));
    report.predicted = take("predicted").as_bool().unwrap_or(false);
    report.inputs = items(&take("inputs"))
        .map(|input| Input {
            name: words(&input["name"]),
            path: input["path"].as_str().map(str::to_owned),
            hash: words(&input["hash"]),
        })
        .collect();
    report.assumptions = lines(&take("assumptions"));
    report.warnings = lines(&take("warnings"));
    report.verdict = verdict(&take("verdict"));
    for (key, columns) in order {
        let Some(value) = all.remove(&key) else { continue };
        match table(&key, &value, &columns) {
            Some(table) => report.tables.push(table),
            None => {
                report.extra.insert(key, value);
            }
        }
    }
    Ok(report)
}

/// An object with its keys in the order of the text, which is that of a table's columns.
struct Pairs<V>(Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Pairs<V> {
    fn deserialize<D: Deserializer<'de>>(text: D) -> Result<Self, D::Error> {
        text.deserialize_map(InOrder(PhantomData))
    }
}

/// Reads [`Pairs`].
struct InOrder<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for InOrder<V> {
    type Value = Pairs<V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<V>, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(Pairs(pairs))
    }
}

/// A part of a result.
#[derive(Deserialize)]
#[serde(untagged)]
enum Part {
    Rows(Vec<Pairs<Value>>),
    Other(Value),
}

impl Part {
    /// The keys of all rows, in the order in which they come.
    fn keys(&self) -> Vec<String> {
        let Self::Rows(rows) = self else { return Vec::new() };
        let (mut keys, mut known) = (Vec::new(), BTreeSet::new());
        for (key, _) in rows.iter().flat_map(|row| &row.0) {
            if known.insert(key) {
                keys.push(key.clone());
            }
        }
        keys
    }

    fn value(self) -> Value {
        match self {
            Self::Rows(rows) => rows.into_iter().map(|row| row.0.into_iter().collect::<Map<_, _>>()).collect(),
            Self::Other(value) => value,
        }
    }
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn words(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn lines(value: &Value) -> Vec<String> {
    items(value).map(words).collect()
}

fn verdict(value: &Value) -> Option<Verdict> {
    let status = value["status"].as_str()?;
    Some(Verdict {
        status: [Status::Ok, Status::Warning, Status::Failed].into_iter().find(|known| known.name() == status)?,
        sentence: words(&value["sentence"]),
        confidence: words(&value["confidence"]),
        basis: words(&value["basis"]),
        next: value["next"].as_str().map(str::to_owned),
    })
}

/// Rows of one shape; none where a value is something else.
fn table(name: &str, value: &Value, keys: &[String]) -> Option<Table> {
    let rows: Vec<&Map<String, Value>> = value.as_array()?.iter().map(Value::as_object).collect::<Option<_>>()?;
    let plain = |value: &Value| !value.is_array() && !value.is_object();
    if rows.is_empty() || keys.len() > COLUMNS_MAX || !rows.iter().all(|row| row.values().all(plain)) {
        return None;
    }
    let column = |key: &String| {
        let number = rows.iter().any(|row| row.get(key).is_some_and(Value::is_number));
        Column { align: if number { Align::Right } else { Align::Left }, ..Column::text(key.clone(), heading(key)) }
    };
    let mut table = Table::new(name, "", keys.iter().map(column));
    for row in rows {
        table.push(keys.iter().map(|key| row.get(key).map_or(Cell::Missing, cell)));
    }
    Some(table)
}

/// A key in words, with its unit as people write it.
fn heading(key: &str) -> String {
    let words = key.replace('_', " ");
    let units = [(" gbps", " GB/s"), (" pct", " %"), (" gib", " GiB")];
    let unit = units.into_iter().find_map(|(own, unit)| Some(words.strip_suffix(own)?.to_owned() + unit));
    unit.unwrap_or(words)
}

fn cell(value: &Value) -> Cell {
    match value {
        Value::Bool(value) => (*value).into(),
        Value::Number(number) => match (number.as_i128(), number.as_f64()) {
            (Some(value), _) => Cell::Int(value),
            (None, Some(value)) => Cell::float(value, digits(value)),
            (None, None) => Cell::Missing,
        },
        Value::String(text) => text.as_str().into(),
        Value::Null | Value::Array(_) | Value::Object(_) => Cell::Missing,
    }
}

/// Digits behind the point with which a number has three or more that count.
fn digits(value: f64) -> usize {
    match value.abs() {
        large if large >= 100.0 => 1,
        middle if middle >= 1.0 => 2,
        small if small > 0.0 => (2.0 - small.log10().floor()).clamp(4.0, 9.0) as usize,
        _ => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    /// Goal: what one writer wrote, this reads: writing it again gives the same text.
    #[test]
    fn json_is_read_back() {
        let mut report = Report::new("sweep", "0.2.0");
        report.predicted = true;
        report.inputs.push(Input { name: "topology".to_owned(), path: None, hash: "fnv1a:1".to_owned() });
        report.warnings.push("careful".to_owned());
        let mut rows = Table::new("rows", "", [Column::text("name", "n"), Column::number("time_us", "time")]);
        rows.push(["a".into(), Cell::float(1.5, 2)]);
        rows.push([Cell::Missing, 3_u32.into()]);
        report.tables.push(rows);
        let mut earlier = Table::new("a_table", "", [Column::number("z_gbps", ""), Column::number("a_us", "")]);
        earlier.push([1_u32.into(), 2_u32.into()]);
        report.tables.push(earlier);
        report.extra.insert("z".to_owned(), serde_json::json!({"nested": [1, 2]}));
        report.verdict = Some(Verdict {
            status: Status::Warning,
            sentence: "s".to_owned(),
            confidence: "c".to_owned(),
            basis: "b".to_owned(),
            next: None,
        });
        let text = json::render(&report);
        let back = read(&text).unwrap();
        assert_eq!(json::render(&back), text);
        let headings: Vec<&str> = back.tables[1].columns.iter().map(|column| column.heading.as_str()).collect();
        assert_eq!((back.tables[1].name.as_str(), headings), ("a_table", vec!["z GB/s", "a us"]));
    }

    /// Goal: of a small number three digits are shown.
    #[test]
    fn small_numbers_have_digits() {
        let shown = |value: f64| cell(&value.into()).display();
        assert_eq!([0.0123, 0.000_345, 1.2e-6].map(shown), ["0.0123", "0.000345", "0.00000120"]);
        assert_eq!([123.45, 1.234, 0.5, 0.0].map(shown), ["123.5", "1.23", "0.5000", "0.0000"]);
    }

    /// Goal: what is no result is refused, with what it is.
    #[test]
    fn what_is_no_result_is_refused() {
        for (text, why) in [
            ("x", "no JSON"),
            ("[]", "no JSON"),
            ("{}", "no key `schema`"),
            (r#"{"schema": "collcast/topologies/1"}"#, "`collcast/topologies/1`"),
            (r#"{"schema": "collcast/sweep/2"}"#, "`collcast/sweep/2`"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}

//! Reports as values that Python can pickle, and back.

use collcast::Error;
use collcast::reports::model::{
    Align, Bar, CaseOutcome, Cell, Column, Input, Report, Status, Table, TestCase, Verdict,
};
use collcast::schema;
use pyo3::prelude::*;

/// A cell; none where it is missing. Of a number with a fraction, how many digits are shown comes with it.
#[derive(FromPyObject, IntoPyObject)]
pub(crate) enum Kept {
    Bool(bool),
    Int(i128),
    Float(f64, usize),
    Text(String),
}

/// Key, heading, whether it stands on the right, what its bars are of (nothing, the largest, a hundred), and whether people
/// read it in percent.
type KeptColumn = (String, String, bool, u8, bool);
/// Name, title, columns, rows, and whether it is a detail.
type KeptTable = (String, String, Vec<KeptColumn>, Vec<Vec<Option<Kept>>>, bool);
/// Group, name, place, and the outcome: its kind in a word, then what it says.
type KeptCase = (String, String, Option<(String, u64)>, Vec<String>);
/// Status, sentence, confidence, basis, and what to do next.
type KeptVerdict = (String, String, String, String, Option<String>);
/// Name, path and hash.
type KeptInput = (String, Option<String>, String);
/// Kind, version, whether it is predicted, inputs, assumptions, warnings, tables, cases, verdict, lead, other values in
/// JSON, and the command.
pub(crate) type KeptReport = (
    String,
    String,
    bool,
    Vec<KeptInput>,
    Vec<String>,
    Vec<String>,
    Vec<KeptTable>,
    Vec<KeptCase>,
    Option<KeptVerdict>,
    String,
    String,
    Option<String>,
);

/// Bars of columns, by number.
const BARS: [Bar; 3] = [Bar::None, Bar::OfLargest, Bar::OfHundred];

/// A report as values; its pictures are made of its tables again.
pub(crate) fn keep(report: &Report) -> KeptReport {
    let Report { version, predicted, assumptions, warnings, lead, command, .. } = report.clone();
    let inputs = report.inputs.iter().map(|i| (i.name.clone(), i.path.clone(), i.hash.clone())).collect();
    let verdict = report.verdict.clone();
    let verdict = verdict.map(|v| (v.status.name().to_owned(), v.sentence, v.confidence, v.basis, v.next));
    let cases = report.cases.iter().map(|c| (c.group.clone(), c.name.clone(), c.place.clone(), outcome(&c.outcome)));
    let (tables, cases) = (report.tables.iter().map(table).collect(), cases.collect());
    let extra = serde_json::Value::from(report.extra.clone()).to_string();
    let kind = report.kind.to_owned();
    (kind, version, predicted, inputs, assumptions, warnings, tables, cases, verdict, lead, extra, command)
}

fn table(table: &Table) -> KeptTable {
    let bar = |column: &Column| BARS.iter().position(|bar| *bar == column.bar).unwrap_or_default() as u8;
    let column = |c: &Column| (c.key.to_string(), c.heading.clone(), c.align == Align::Right, bar(c), c.percent);
    let rows = table.rows.iter().map(|row| row.iter().map(cell).collect()).collect();
    (table.name.clone(), table.title.clone(), table.columns.iter().map(column).collect(), rows, table.detail)
}

fn cell(cell: &Cell) -> Option<Kept> {
    Some(match cell {
        Cell::Text(text) => Kept::Text(text.clone()),
        Cell::Int(value) => Kept::Int(*value),
        Cell::Float { value, digits } => Kept::Float(*value, *digits),
        Cell::Bool(value) => Kept::Bool(*value),
        Cell::Missing => return None,
    })
}

fn outcome(outcome: &CaseOutcome) -> Vec<String> {
    let words: &[&str] = match outcome {
        CaseOutcome::Passed => &["passed"],
        CaseOutcome::Noted(finding) => &["noted", finding],
        CaseOutcome::Failed { kind, message, details } => &["failed", kind, message, details],
        CaseOutcome::Skipped(why) => &["skipped", why],
    };
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// The report of values.
pub(crate) fn restore(kept: KeptReport) -> Result<Report, Error> {
    let (kind, version, predicted, inputs, assumptions, warnings, tables, cases, verdict, lead, extra, command) = kept;
    let broken = || Error::usage("this is no report of collcast", "unpickle with the version that pickled");
    let statuses = [Status::Ok, Status::Warning, Status::Failed];
    let verdict = verdict.map(|(status, sentence, confidence, basis, next)| {
        let status = statuses.into_iter().find(|known| known.name() == status).ok_or_else(broken)?;
        Ok::<_, Error>(Verdict { status, sentence, confidence, basis, next })
    });
    let cases = cases.into_iter().map(|(group, name, place, words)| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let outcome = match words[..] {
            ["passed"] => CaseOutcome::Passed,
            ["noted", finding] => CaseOutcome::Noted(finding.to_owned()),
            ["failed", kind, message, details] => {
                let (kind, message, details) = (kind.to_owned(), message.to_owned(), details.to_owned());
                CaseOutcome::Failed { kind, message, details }
            }
            ["skipped", why] => CaseOutcome::Skipped(why.to_owned()),
            _ => return Err(broken()),
        };
        Ok(TestCase { group, name, outcome, place })
    });
    Ok(Report {
        kind: schema::all().into_iter().map(|known| known.name).find(|known| **known == kind).ok_or_else(broken)?,
        version,
        predicted,
        inputs: inputs.into_iter().map(|(name, path, hash)| Input { name, path, hash }).collect(),
        assumptions,
        warnings,
        tables: tables.into_iter().map(restored).collect(),
        cases: cases.collect::<Result<_, Error>>()?,
        verdict: verdict.transpose()?,
        lead,
        extra: serde_json::from_str(&extra).map_err(|_| broken())?,
        command,
        ..Report::default()
    })
}

fn restored((name, title, columns, rows, detail): KeptTable) -> Table {
    let column = |(key, heading, right, bar, percent): KeptColumn| Column {
        key: key.into(),
        heading,
        align: if right { Align::Right } else { Align::Left },
        bar: BARS.get(usize::from(bar)).copied().unwrap_or_default(),
        percent,
    };
    let cell = |kept: Option<Kept>| match kept {
        None => Cell::Missing,
        Some(Kept::Bool(value)) => Cell::Bool(value),
        Some(Kept::Int(value)) => Cell::Int(value),
        Some(Kept::Float(value, digits)) => Cell::float(value, digits),
        Some(Kept::Text(text)) => Cell::Text(text),
    };
    let rows = rows.into_iter().map(|row| row.into_iter().map(cell).collect()).collect();
    Table { name, title, columns: columns.into_iter().map(column).collect(), rows, detail }
}

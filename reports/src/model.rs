//! What every writer writes: a [`Report`] of tables, facts and one verdict.

use std::borrow::Cow;

use collcast_sim::text::one_line;
use collcast_sim::units::Bytes;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::figure::Figure;

/// The outcome of one command.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Report {
    /// Kind of result; the schema is `collcast/<kind>/1`.
    pub kind: &'static str,
    /// Version of the program.
    pub version: String,
    /// Whether the numbers are forecasts. Every format then says so, and refuses to be taken
    /// for a measurement later.
    pub predicted: bool,
    /// Files that the result depends on.
    pub inputs: Vec<Input>,
    /// What was assumed; the first lines of every output.
    pub assumptions: Vec<String>,
    /// What the reader must know before using the numbers.
    pub warnings: Vec<String>,
    /// The numbers.
    pub tables: Vec<Table>,
    /// What was checked one by one, for JUnit and annotations; JSON has it in tables.
    pub cases: Vec<TestCase>,
    /// Pictures of the numbers, for formats that can draw.
    pub figures: Vec<Figure>,
    /// The closing line.
    pub verdict: Option<Verdict>,
    /// What a page begins with in place of the verdict's first statement: the same for someone who decides and does not
    /// know the field's terms; empty for none.
    pub lead: String,
    /// Values of the contract that are not tables; written to JSON only. A key that the
    /// report itself or a table uses is dropped in favour of those.
    pub extra: Map<String, Value>,
    /// The command that makes it again, where one is known.
    pub command: Option<String>,
    /// The file that it was read from; none where it was made just now.
    pub source: Option<String>,
}

/// A file that a result depends on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Input {
    /// Its role, such as `topology`.
    pub name: String,
    /// Where it was read; of what is built in its name, as in `prior (built-in)`.
    pub path: Option<String>,
    /// Hash of its content, with the name of the function in front.
    pub hash: String,
}

/// One thing that was checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TestCase {
    /// What it belongs to, such as a collective.
    pub group: String,
    /// Its name, the same from run to run: CI systems track it by that.
    pub name: String,
    /// What came of it.
    pub outcome: CaseOutcome,
    /// The line of a file that it is about: of a name, from 1; none where it is about no file.
    pub place: Option<(String, u64)>,
}

/// What came of a [`TestCase`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CaseOutcome {
    /// As it should be.
    Passed,
    /// No failure, and worth a look: the finding in one line.
    Noted(String),
    /// Not as it should be.
    Failed {
        /// Kind of failure in one word, such as `slower`.
        kind: String,
        /// The finding in one line.
        message: String,
        /// The evidence, in lines.
        details: String,
    },
    /// Could not be told, for the reason given.
    Skipped(String),
}

/// Rows under named columns.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Table {
    /// Key in JSON, such as `rows`.
    pub name: String,
    /// Heading on the terminal; empty for none.
    pub title: String,
    /// Columns, in order.
    pub columns: Vec<Column>,
    /// Rows. A row shorter than the columns is filled with [`Cell::Missing`]; what is longer
    /// is not shown.
    pub rows: Vec<Vec<Cell>>,
    /// Evidence behind another table: folded away where a format can fold.
    pub detail: bool,
}

/// A range of sizes up to so many bytes has no end.
const END: i128 = 1 << 62;

/// A column of a [`Table`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    /// Key in JSON and header in CSV, with its unit last: `time_us`.
    pub key: Cow<'static, str>,
    /// Heading on the terminal.
    pub heading: String,
    /// Side the cells stand on.
    pub align: Align,
    /// Lengths beside its numbers on a screen with room: of those that are compared down the column.
    pub bar: Bar,
    /// Whether its numbers are fractions, which people read as percent and programs as they are.
    pub percent: bool,
}

/// Lengths beside the numbers of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Bar {
    /// None.
    #[default]
    None,
    /// Of the largest number.
    OfLargest,
    /// Of a hundred, as of percent of a whole.
    OfHundred,
}

/// Side that the cells of a column stand on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// A value in a table.
#[derive(Clone, PartialEq, Debug)]
pub enum Cell {
    /// Words.
    Text(String),
    /// A count or a size.
    Int(i128),
    /// A number with a fraction.
    Float {
        /// The value. The terminal rounds it; CSV and JSON keep all of it.
        value: f64,
        /// Digits after the point on the terminal.
        digits: usize,
    },
    /// Yes or no.
    Bool(bool),
    /// Not known or not applicable, which is never the same as zero.
    Missing,
}

/// One line that says what the numbers mean.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// Good, doubtful or bad.
    pub status: Status,
    /// The finding, as a sentence.
    pub sentence: String,
    /// How sure we are: `high`, `medium`, `low`, with a reason where there is room.
    pub confidence: String,
    /// What it rests on: `measured`, `predicted`, `extrapolated`, or more words.
    pub basis: String,
    /// What to do next, such as a command; none where nothing is left to do.
    pub next: Option<String>,
}

impl Verdict {
    /// How sure it is and what it rests on, in words for people, without what is not said.
    pub(crate) fn facts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [("confidence", &*self.confidence), ("basis", basis_in_words(&self.basis))]
            .into_iter()
            .filter(|(_, words)| !words.is_empty())
    }
}

/// A basis in words for people; files have its name.
pub fn basis_in_words(name: &str) -> &str {
    match name {
        "predicted" => "measured constants",
        "cited" => "cited constants",
        other => other,
    }
}

/// How a command ended, as far as its finding goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// As it should be.
    Ok,
    /// Usable with care.
    Warning,
    /// A comparison or check failed.
    Failed,
}

impl Status {
    /// The name in files and on the terminal.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Failed => "failed",
        }
    }
}

impl Report {
    /// An empty report of a kind.
    pub fn new(kind: &'static str, version: impl Into<String>) -> Self {
        Self { kind, version: version.into(), ..Self::default() }
    }

    /// The table with a name.
    pub fn table(&self, name: &str) -> Option<&Table> {
        self.tables.iter().find(|t| t.name == name)
    }
}

impl Table {
    /// A table without rows.
    pub fn new(name: impl Into<String>, title: impl Into<String>, columns: impl IntoIterator<Item = Column>) -> Self {
        Self { name: name.into(), title: title.into(), columns: columns.into_iter().collect(), ..Self::default() }
    }

    /// Adds a row.
    pub fn push(&mut self, row: impl IntoIterator<Item = Cell>) {
        self.rows.push(row.into_iter().collect());
    }

    /// The cells of a row, exactly one for each column.
    pub(crate) fn cells<'a>(&'a self, row: &'a [Cell]) -> impl Iterator<Item = (&'a Column, &'a Cell)> {
        let padded = row.iter().chain(std::iter::repeat(&Cell::Missing));
        self.columns.iter().zip(padded)
    }
}

impl Column {
    /// A column of words.
    pub fn text(key: impl Into<Cow<'static, str>>, heading: impl Into<String>) -> Self {
        Self { key: key.into(), heading: heading.into(), align: Align::Left, bar: Bar::None, percent: false }
    }

    /// A column of numbers.
    pub fn number(key: impl Into<Cow<'static, str>>, heading: impl Into<String>) -> Self {
        Self { align: Align::Right, ..Self::text(key, heading) }
    }

    /// A column of fractions, which people read as percent.
    pub fn fraction(key: impl Into<Cow<'static, str>>, heading: impl Into<String>) -> Self {
        Self { percent: true, ..Self::number(key, heading) }
    }

    /// The same, with lengths beside its numbers.
    #[must_use]
    pub fn barred(self, bar: Bar) -> Self {
        Self { bar, ..self }
    }

    /// Whether it counts bytes of messages.
    pub(crate) fn is_size(&self) -> bool {
        self.key == "bytes" || self.key.ends_with("_bytes")
    }

    /// The heading as people read it, on one line, with the unit of fractions.
    pub(crate) fn headed(&self) -> String {
        let heading = one_line(&self.heading);
        if self.percent { format!("{heading} %") } else { heading }
    }

    /// A cell of it as people read it: sizes in binary units, fractions in percent.
    pub(crate) fn shown(&self, cell: &Cell) -> String {
        match cell {
            Cell::Float { value, digits } if self.percent => {
                Cell::float(100.0 * value, digits.saturating_sub(2)).display()
            }
            Cell::Int(value) if self.key == "size_max_bytes" && *value >= END => "end".to_owned(),
            Cell::Int(value) if self.is_size() => {
                u64::try_from(*value).map_or_else(|_| value.to_string(), |bytes| Bytes(bytes).about())
            }
            other => other.display(),
        }
    }
}

impl Cell {
    /// A number shown with `digits` after the point. The sum of no numbers is -0.0, which nobody has a use for.
    pub fn float(value: f64, digits: usize) -> Self {
        Self::Float { value: value + 0.0, digits }
    }

    /// As shown to people: floats rounded, what is missing as `-`.
    pub fn display(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Int(value) => value.to_string(),
            Self::Float { value, digits } if value.is_finite() => format!("{value:.digits$}"),
            Self::Float { .. } | Self::Missing => "-".to_owned(),
            Self::Bool(true) => "yes".to_owned(),
            Self::Bool(false) => "no".to_owned(),
        }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<bool> for Cell {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

macro_rules! cell_from_integers {
    ($($type:ty),+) => {
        $(impl From<$type> for Cell {
            fn from(value: $type) -> Self {
                Self::Int(i128::from(value))
            }
        })+
    };
}
cell_from_integers!(u8, u16, u32, u64, i32, i64);

impl From<usize> for Cell {
    fn from(value: usize) -> Self {
        Self::Int(value as i128)
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Missing, Into::into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: of fractions heading and numbers are in percent for people, together, and the number itself stays.
    #[test]
    fn fractions_are_percent_for_people() {
        let (own, cell) = (Column::fraction("bias", "bias"), Cell::float(-0.0521, 3));
        assert_eq!((own.headed(), own.shown(&cell)), ("bias %".to_owned(), "-5.2".to_owned()));
        let mut table = Table::new("rows", "", [own]);
        table.push([cell]);
        let report = Report { tables: vec![table], ..Report::default() };
        assert!(crate::csv::render(&report).contains("bias\n-0.0521\n"), "{}", crate::csv::render(&report));
        for text in [crate::markdown::render(&report), crate::html::render(std::slice::from_ref(&report))] {
            assert!(text.contains("bias %") && text.contains("-5.2") && !text.contains("-0.05"), "{text}");
        }
    }

    /// Goal: a range of sizes has no end where nothing limits it, and the size of a call is always one.
    #[test]
    fn only_ranges_have_no_end() {
        let shown = |key: &'static str| Column::number(key, "size").shown(&Cell::Int(1 << 62));
        assert_eq!([shown("size_max_bytes"), shown("size_bytes")], ["end".to_owned(), Bytes(1 << 62).about()]);
        assert_eq!(Column::number("size_max_bytes", "to").shown(&Cell::Int(1 << 20)), "1 MiB");
    }
}

//! What became slower between two sets of measurements or results.
//!
//! Rows are matched by collective, ranks, size and every setting that both sets name; medians over neighbouring sizes
//! decide, with intervals that hold together.

mod judge;
mod sets;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use collcast_hwbackend::read::{FileReport, ReadOptions};
use serde::Serialize;

use crate::error::Error;
use crate::validate::judged::one_kind;
pub use judge::{Band, Between, Change, FAMILY_ERROR, Ratio, SizePair};
pub use sets::{Alone, Condition, Difference, Rerouted, Series, Set, Side};

/// What two sets are called, in this order.
pub const NAMES: [&str; 2] = ["A", "B"];

/// The slowdown that does not matter where none is named.
const TOLERANCE: f64 = 0.05;

/// Which sets are compared, and how.
///
/// ```
/// use collcast::compare::{Change, Request, Set, compare};
/// let log = |name| Set::new(format!("tests/data/h200x4/{name}.log"));
/// let outcome = compare(&Request::new(log("all_reduce_Ring_Simple"), log("all_reduce_Ring_Simple")))?;
/// assert_eq!(outcome.change(), Change::Same);
/// # Ok::<(), collcast::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Request {
    /// A: before, and B: after.
    pub sets: [Set; 2],
    /// Slowdown that does not matter, as a fraction.
    pub tolerance: f64,
    /// How measurements are read.
    pub read: ReadOptions,
}

impl Request {
    /// Two sets of measurements, with a tolerance of 5%.
    pub fn new(a: Set, b: Set) -> Self {
        Self { sets: [a, b], tolerance: TOLERANCE, read: ReadOptions::default() }
    }
}

/// What is said of two sets.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// A and B.
    pub sides: [Side; 2],
    /// What is between their times.
    pub between: Between,
    /// Slowdown that does not matter, as a fraction.
    pub tolerance: f64,
    /// Bands of sizes of each series that both have.
    pub bands: Vec<Band>,
    /// Settings in which A and B differ throughout: what is compared.
    pub differences: Vec<Difference>,
    /// Rows of A and of B without a partner.
    pub unmatched: [Vec<Alone>; 2],
    /// Where NCCL said that it ran something else.
    pub rerouted: Vec<Rerouted>,
    /// Rows beyond the first of each point, of A and of B.
    pub repeats: [usize; 2],
    /// What is wrong with runs of B as with none of A: values that were wrong, runs that failed or were cut.
    pub defects: Vec<Defect>,
}

/// What is wrong with a file of B.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Defect {
    /// The file.
    pub file: String,
    /// What is wrong, with its place.
    pub what: String,
}

/// Holds two sets of measurements beside each other.
///
/// # Errors
/// Measurements that cannot be read, conditions that no row meets, sets that have no row in common.
pub fn compare(request: &Request) -> Result<Outcome, Error> {
    let [a, b] = &request.sets;
    let sides = [Side::read(NAMES[0], a, &request.read)?, Side::read(NAMES[1], b, &request.read)?];
    one_kind(&sides[0].files, &sides[1].files)?;
    let matched = sets::matched(sides.each_ref().map(|side| side.measurements.as_slice()));
    if matched.curves.is_empty() {
        return Err(nothing_in_common(&matched.alone));
    }
    let between = match (sides[0].is_same(&sides[1]), sides.iter().all(|side| side.predicted)) {
        (_, true) => Between::Forecasts,
        (true, false) => Between::Same,
        (false, false) => Between::Measured,
    };
    Ok(Outcome {
        bands: judge::judge(&matched.curves, request.tolerance, between),
        between,
        tolerance: request.tolerance,
        differences: matched.differs,
        unmatched: matched.alone,
        rerouted: matched.choices,
        repeats: matched.repeats,
        defects: defects(&sides),
        sides,
    })
}

/// Failures and wrong values of B where A has none, and cut runs where A has none of these.
fn defects([a, b]: &[Side; 2]) -> Vec<Defect> {
    let new = |what: fn(&FileReport) -> Option<String>| {
        let known = a.files.iter().any(|file| what(file).is_some());
        let of = move |file: &FileReport| Some(Defect { file: file.path.display().to_string(), what: what(file)? });
        b.files.iter().filter(move |_| !known).filter_map(of)
    };
    let mut defects: Vec<Defect> = new(FileReport::defect).chain(new(FileReport::cut)).collect();
    // One word a file: a run that failed was cut as well.
    let mut told = BTreeSet::new();
    defects.retain(|defect| told.insert(defect.file.clone()));
    defects
}

fn nothing_in_common(alone: &[Vec<Alone>; 2]) -> Error {
    let [a, b] = alone.each_ref().map(|alone| match alone.split_first() {
        None => "no rows".to_owned(),
        Some((first, others)) => {
            let more = if others.is_empty() { String::new() } else { format!(" and {} more series", others.len()) };
            format!("{} ({} rows, {}){more}", first.series, first.rows, first.sizes())
        }
    });
    Error::usage(
        format!("no row of A has a partner in B: A has {a}; B has {b}"),
        "rows are matched by collective, ranks, size and settings; choose parts that answer to each other with --where, --where-a, --where-b",
    )
}

impl Outcome {
    /// The change of the whole: the worst that was found.
    pub fn change(&self) -> Change {
        self.bands.iter().map(|b| b.change).min().unwrap_or(Change::CannotTell)
    }

    /// Whether B is slower, or fails where A does not.
    pub fn failed(&self) -> bool {
        self.change() == Change::Slower || !self.defects.is_empty()
    }

    /// Bands of which that is said.
    pub fn count(&self, change: Change) -> usize {
        self.bands.iter().filter(|b| b.change == change).count()
    }

    /// Of the bands of which that is said, the one with the largest change.
    pub fn most(&self, change: Change) -> Option<&Band> {
        let size = |b: &Band| b.rows.iter().map(|r| r.near.value.ln().abs()).fold(0.0, f64::max);
        self.bands.iter().filter(|b| b.change == change).max_by(|a, b| size(a).total_cmp(&size(b)))
    }

    /// What a slowdown must exceed to be told from noise everywhere, as a fraction, where that is more than the tolerance; else
    /// 0. A change that was seen at too few sizes is not told either.
    pub fn unseen(&self) -> f64 {
        let unclear = self.bands.iter().filter(|b| b.change == Change::CannotTell);
        unclear.map(|b| (b.ratio.high / b.ratio.value).max(b.ratio.high) - 1.0).fold(0.0, f64::max)
    }
}

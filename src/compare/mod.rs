//! What became slower between two sets of measurements or results.
//!
//! Rows are matched by collective, ranks, size and settings; medians over neighbouring sizes decide, with intervals that
//! hold together.

mod judge;
mod said;
mod sets;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use collcast_hwbackend::read::{FileKind, FileReport, Outcome as ReadOutcome, ReadError, ReadOptions};
use collcast_sim::collective::Collective;
use collcast_sim::measurement::Measurement;
use serde::Serialize;

use crate::bands::{BANDS, band};
use crate::error::Error;
use crate::validate::judged::one_kind;
use crate::values::few;
pub use judge::{AGREEING, Band, Between, Change, FAMILY_ERROR, HostBand, Ratio, SizePair};
pub use said::Mixed;
pub(crate) use said::differences;
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
    /// The version of NCCL, GPUs and variables that differ throughout: rows are not matched by these.
    pub said: Vec<Difference>,
    /// Those of them that one set has several of.
    pub mixed: Vec<Mixed>,
    /// Rows of A and of B without a partner.
    pub unmatched: [Vec<Alone>; 2],
    /// Where NCCL said that it ran something else.
    pub rerouted: Vec<Rerouted>,
    /// Rows beyond the first of each point, of A and of B.
    pub repeats: [usize; 2],
    /// What is wrong with files of B: values that were wrong, runs that failed, and those that were cut, of calls of which
    /// a smaller share was in A.
    pub defects: Vec<Defect>,
    /// Files of A and of B that are wrong, failed or were cut.
    pub defective: [usize; 2],
    /// Hosts that both have, and that are named on both sides: the bands of each.
    pub hosts: Vec<HostBand>,
    /// Hosts that A has and B lacks, where B has others of A.
    pub absent: Vec<String>,
    /// Calls that A has and B lacks, whole or at all sizes of a range, on all hosts or on some that both have.
    pub lost: Vec<String>,
    /// Files of B that were not read.
    pub unread: Vec<String>,
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
    let defective = |side: &Side| side.files.iter().filter(|f| failure(f).or(f.cut()).is_some()).count();
    let (said, mixed) = said::said(sides.each_ref().map(|side| (&side.files[..], &side.measurements[..])));
    let (bands, hosts) = judge::judge(&matched, request.tolerance, between);
    Ok(Outcome {
        bands,
        hosts,
        defective: sides.each_ref().map(defective),
        between,
        tolerance: request.tolerance,
        differences: matched.differs,
        said,
        mixed,
        unmatched: matched.alone,
        rerouted: matched.choices,
        repeats: matched.repeats,
        defects: defects(&sides, between),
        absent: absent(&sides),
        lost: lost(&sides),
        unread: sides[1].files.iter().filter(|f| is_missing(f)).map(|f| f.path.display().to_string()).collect(),
        sides,
    })
}

/// Failures and wrong values of B, and runs of it that were cut, of calls of which fewer were in A. The same files have
/// nothing new. Where all rows are those of A, so are files that A has too.
fn defects([a, b]: &[Side; 2], between: Between) -> Vec<Defect> {
    let known: BTreeSet<&str> = match between {
        Between::Same => a.files.iter().map(|file| file.hash.as_str()).collect(),
        Between::Measured | Between::Forecasts => BTreeSet::new(),
    };
    let files = || b.files.iter().filter(|file| !known.contains(file.hash.as_str()));
    let defect =
        |file: &FileReport, what: Option<String>| Some(Defect { file: file.path.display().to_string(), what: what? });
    // Of each call, its files and how many of these were cut.
    let shares = |side: &Side| {
        let mut shares: BTreeMap<(Collective, u32), [usize; 2]> = BTreeMap::new();
        let calls = calls_of(side);
        for file in &side.files {
            for &call in calls.get(&file.path.display().to_string()).into_iter().flatten() {
                let [all, cut] = shares.entry(call).or_default();
                *all += 1;
                *cut += usize::from(file.cut().is_some());
            }
        }
        shares
    };
    let (before, now) = (shares(a), shares(b));
    let is_new = |call: &(Collective, u32)| {
        let ([all_a, cut_a], [all_b, cut_b]) = (before.get(call).copied().unwrap_or([1, 0]), now[call]);
        cut_b * all_a > cut_a * all_b
    };
    let calls = calls_of(b);
    let cut = |file: &FileReport| {
        let is_new = calls.get(&file.path.display().to_string()).is_none_or(|calls| calls.iter().any(is_new));
        defect(file, file.cut().filter(|_| is_new))
    };
    let failed = files().filter_map(|file| defect(file, failure(file)));
    let mut defects: Vec<Defect> = failed.chain(files().filter_map(cut)).collect();
    // One word a file: a run that failed was cut as well.
    let mut told = BTreeSet::new();
    defects.retain(|defect| told.insert(defect.file.clone()));
    defects
}

/// How the run of a file failed, or that its values are wrong. One that failed before its first line leaves an empty file.
fn failure(file: &FileReport) -> Option<String> {
    let empty =
        file.kind != FileKind::Other && matches!(file.outcome, ReadOutcome::Refused(ReadError::EmptyFile { .. }));
    let of_empty = || format!("{}: it is empty: the run failed before its first line", file.path.display());
    file.defect().or_else(|| empty.then(of_empty))
}

/// Whether nothing of a file of measurements was read, and nothing else is said of it.
fn is_missing(file: &FileReport) -> bool {
    file.kind != FileKind::Other && sets::is_unread(file) && failure(file).is_none()
}

/// Sets of hosts that ran in A alone, where some ran in both.
fn absent(sides: &[Side; 2]) -> Vec<String> {
    let [a, b] = sides.each_ref().map(|side| -> BTreeSet<&[String]> {
        side.measurements.iter().map(|row| &row.settings.host_names[..]).filter(|names| !names.is_empty()).collect()
    });
    match a.is_disjoint(&b) {
        true => Vec::new(),
        false => a.difference(&b).map(|names| names.join(",")).collect(),
    }
}

/// Calls that ran in A alone, whole or at all sizes of a range: on all hosts, or on some that ran others in both.
fn lost(sides: &[Side; 2]) -> Vec<String> {
    let of_all = lacking(sides, |_| &[]);
    let mut lost: BTreeMap<String, Vec<String>> = of_all.into_iter().map(|(_, what)| (what, Vec::new())).collect();
    let of_all: BTreeSet<String> = lost.keys().cloned().collect();
    for (hosts, what) in lacking(sides, |row| &row.settings.host_names) {
        if !hosts.is_empty() && !of_all.contains(&what) {
            lost.entry(what).or_default().push(hosts.join(","));
        }
    }
    let named = |(what, hosts): (String, Vec<String>)| match hosts.is_empty() {
        true => what,
        false => format!("{what} on {}", few(&hosts)),
    };
    lost.into_iter().map(named).collect()
}

/// What B lacks of the calls of each set of hosts that both have; of what `hosts` says as their set.
fn lacking<'a>(sides: &'a [Side; 2], hosts: impl Fn(&'a Measurement) -> &'a [String]) -> Vec<(&'a [String], String)> {
    type Calls = BTreeMap<(Collective, u32), BTreeSet<u8>>;
    let [a, b] = sides.each_ref().map(|side| {
        let mut of: BTreeMap<&[String], Calls> = BTreeMap::new();
        for row in &side.measurements {
            let calls = of.entry(hosts(row)).or_default();
            calls.entry((row.collective, row.ranks)).or_default().insert(band(row.size.0));
        }
        of
    });
    let mut lacking = Vec::new();
    for (hosts, calls) in a {
        let Some(others) = b.get(hosts) else { continue };
        for ((collective, ranks), sizes) in calls {
            let call = format!("{collective} over {ranks} ranks");
            let has = others.get(&(collective, ranks));
            let gone = |band: &&u8| has.is_some_and(|has| !has.contains(band));
            let gone: Vec<&str> = sizes.iter().filter(gone).map(|&band| BANDS[usize::from(band)]).collect();
            match has {
                None => lacking.push((hosts, call)),
                Some(_) if gone.is_empty() => {}
                Some(_) => lacking.push((hosts, format!("{call} at sizes {}", gone.join(" and ")))),
            }
        }
    }
    lacking
}

/// The calls of each file that has rows.
fn calls_of(side: &Side) -> BTreeMap<String, BTreeSet<(Collective, u32)>> {
    let mut calls: BTreeMap<String, BTreeSet<(Collective, u32)>> = BTreeMap::new();
    for row in &side.measurements {
        calls.entry(row.origin.file.clone()).or_default().insert((row.collective, row.ranks));
    }
    calls
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
    /// The change of the whole: the worst that was found, of all hosts together or of one that is slower.
    pub fn change(&self) -> Change {
        let slower = self.slower_hosts().next().map(|(_, band)| band.change);
        self.bands.iter().map(|b| b.change).chain(slower).min().unwrap_or(Change::CannotTell)
    }

    /// Hosts that are slower, each with its slowest band, the slowest host first.
    pub fn slower_hosts(&self) -> impl Iterator<Item = (&str, &HostBand)> {
        let mut worst: BTreeMap<&str, &HostBand> = BTreeMap::new();
        for band in self.hosts.iter().filter(|band| band.change == Change::Slower) {
            let known = worst.entry(&band.hosts).or_insert(band);
            if band.ratio.value > known.ratio.value {
                *known = band;
            }
        }
        let mut worst: Vec<(&str, &HostBand)> = worst.into_iter().collect();
        worst.sort_by(|a, b| b.1.ratio.value.total_cmp(&a.1.ratio.value));
        worst.into_iter()
    }

    /// Whether B is slower, or its runs failed.
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
        let most = |b: &Band| {
            let apart = b.apart().map(|row| row.ratio).fold(1.0, f64::max);
            (b.ratio.high / b.ratio.value).max(b.ratio.high).max(apart) - 1.0
        };
        unclear.map(most).fold(0.0, f64::max)
    }
}

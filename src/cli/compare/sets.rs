//! Two sets of rows: which belong to each, and which answers to which.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use collcast_hwbackend::read::{FileReport, Outcome, ReadError, ReadOptions, read_paths};
use collcast_sim::collective::{Algorithm, Collective, DataType, Launch, Protocol, ReduceOp, nearest};
use collcast_sim::measurement::{Measurement, PeerAccess};
use collcast_sim::units::{Bytes, parse_size};

use collcast::Error as CliError;

/// What a source did not say.
const NOT_SAID: &str = "not said";

type Read = fn(&Measurement) -> String;

fn said(value: Option<impl Display>, otherwise: &str) -> String {
    value.map_or_else(|| otherwise.to_owned(), |v| v.to_string())
}

/// Settings that rows are matched by, named as in measurement files.
pub(super) const SETTINGS: [(&str, Read); 14] = [
    ("nodes", |m| said(m.hosts, NOT_SAID)),
    ("launch", |m| said(m.launch, NOT_SAID)),
    ("algorithm", |m| m.settings.nccl_algo.clone().unwrap_or_else(|| said(m.settings.algorithm, "auto"))),
    ("protocol", |m| said(m.settings.protocol, "auto")),
    ("channels", |m| said(m.settings.channels, "auto")),
    ("buffsize", |m| said(m.settings.buffers.simple.map(|b| b.0), "auto")),
    ("ll_buffsize", |m| said(m.settings.buffers.ll.map(|b| b.0), "auto")),
    ("ll128_buffsize", |m| said(m.settings.buffers.ll128.map(|b| b.0), "auto")),
    ("nthreads", |m| said(m.settings.threads, "auto")),
    ("p2p", |m| {
        match m.settings.peer_access {
            PeerAccess::On => "on",
            PeerAccess::Off => "off",
            PeerAccess::Net => "net",
        }
        .to_owned()
    }),
    ("dtype", |m| said(m.dtype, NOT_SAID)),
    ("op", |m| said(m.op, NOT_SAID)),
    ("root", |m| said(m.root, NOT_SAID)),
    ("in_place", |m| if m.in_place { "yes" } else { "no" }.to_owned()),
];

/// What else a set can be narrowed by.
const OTHERS: [(&str, Read); 4] = [
    ("run", |m| m.run.clone()),
    ("collective", |m| m.collective.to_string()),
    ("ranks", |m| m.ranks.to_string()),
    ("nccl_version", |m| said(m.settings.nccl.as_ref(), NOT_SAID)),
];

/// A condition on rows: `KEY=VALUE[,VALUE]`, or `size=FROM:TO`.
#[derive(Clone, Debug)]
pub(super) enum Condition {
    Size { text: String, from: Bytes, to: Bytes },
    Field { key: &'static str, read: Read, values: Vec<String> },
}

impl Display for Condition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Size { text, .. } => write!(f, "size={text}"),
            Self::Field { key, values, .. } => write!(f, "{key}={}", values.join(",")),
        }
    }
}

impl Condition {
    pub(super) fn parse(flag: &str, text: &str) -> Result<Self, CliError> {
        let fields = || SETTINGS.iter().chain(&OTHERS);
        let (key, values) = text.split_once('=').ok_or_else(|| {
            CliError::usage(
                format!("{flag}: `{text}` is not KEY=VALUE"),
                format!("write it as `{flag} in_place=1` or `{flag} run=before`"),
            )
        })?;
        let (key, values) = (key.trim(), values.trim());
        if key == "size" || key == "size_bytes" {
            let (from, to) = values.split_once(':').unwrap_or((values, values));
            let size = |text: &str| {
                parse_size(text).map_err(|e| {
                    CliError::usage(
                        format!("{flag}: {e}"),
                        format!("write it as `{flag} size=1M:4G`, both ends included"),
                    )
                })
            };
            return Ok(Self::Size { text: values.to_owned(), from: size(from)?, to: size(to)? });
        }
        let known = fields().map(|f| f.0).chain(["size"]);
        let Some((key, read)) = fields().find(|f| f.0 == key) else {
            let guess = nearest(key, known.clone()).map(|k| format!(", did you mean `{k}`?")).unwrap_or_default();
            return Err(CliError::usage(
                format!("{flag}: rows have no `{key}`{guess}"),
                format!("known keys: {}", known.collect::<Vec<_>>().join(" ")),
            ));
        };
        let values: Result<Vec<String>, CliError> =
            values.split(',').map(|value| canonical(flag, key, value.trim())).collect();
        Ok(Self::Field { key, read: *read, values: values? })
    }

    fn holds(&self, row: &Measurement) -> bool {
        match self {
            Self::Size { from, to, .. } => (*from..=*to).contains(&row.size),
            Self::Field { read, values, .. } => values.contains(&read(row)),
        }
    }

    /// What the rows have instead.
    fn present(&self, rows: &[Measurement]) -> String {
        const SHOWN: usize = 8;
        match self {
            Self::Size { .. } => {
                let sizes = rows.iter().map(|r| r.size);
                match (sizes.clone().min(), sizes.max()) {
                    (Some(least), Some(most)) => format!("sizes from {least} to {most}"),
                    _ => "no rows".to_owned(),
                }
            }
            Self::Field { key, read, .. } => {
                let values: BTreeSet<String> = rows.iter().map(read).collect();
                let more = if values.len() > SHOWN { ", ..." } else { "" };
                let shown: Vec<String> = values.into_iter().take(SHOWN).collect();
                format!("{key}: {}{more}", shown.join(", "))
            }
        }
    }
}

/// A value as rows have it.
fn canonical(flag: &str, key: &str, value: &str) -> Result<String, CliError> {
    fn name<T: FromStr<Err: Display> + Display>(flag: &str, value: &str) -> Result<String, CliError> {
        let parsed = value.parse::<T>().map_err(|e| CliError::Usage { message: format!("{flag}: {e}"), hint: None })?;
        Ok(parsed.to_string())
    }
    match key {
        "algorithm" | "protocol" if value.eq_ignore_ascii_case("auto") => Ok("auto".to_owned()),
        _ if value == NOT_SAID => Ok(value.to_owned()),
        "collective" => name::<Collective>(flag, value),
        "algorithm" => name::<Algorithm>(flag, value),
        "protocol" => name::<Protocol>(flag, value),
        "launch" => name::<Launch>(flag, value),
        "dtype" => name::<DataType>(flag, value),
        "op" => name::<ReduceOp>(flag, value),
        "buffsize" | "ll_buffsize" | "ll128_buffsize" => match parse_size(value) {
            Ok(size) => Ok(size.0.to_string()),
            Err(e) => Err(CliError::Usage { message: format!("{flag}: {e}"), hint: None }),
        },
        "in_place" => match value.to_lowercase().as_str() {
            "1" | "true" | "yes" => Ok("yes".to_owned()),
            "0" | "false" | "no" => Ok("no".to_owned()),
            _ => {
                Err(CliError::usage(format!("{flag}: in_place is 0 or 1, not `{value}`"), format!("{flag} in_place=1")))
            }
        },
        _ => Ok(value.to_owned()),
    }
}

/// One of the two sets.
#[derive(Debug)]
pub(super) struct Side {
    /// Path and conditions, for people.
    pub(super) label: String,
    pub(super) rows: Vec<Measurement>,
    pub(super) files: Vec<FileReport>,
    /// Whether forecasts are among the rows.
    pub(super) predicted: bool,
}

impl Side {
    pub(super) fn read(
        name: &str,
        path: &Path,
        conditions: &[Condition],
        allow_predicted: bool,
    ) -> Result<Self, CliError> {
        let paths: [PathBuf; 1] = [path.to_owned()];
        let read = |allow_predicted| read_paths(&paths, &ReadOptions { allow_predicted, keep_duplicates: false });
        let is_forecast = |file: &FileReport| matches!(file.outcome, Outcome::Refused(ReadError::Predicted { .. }));
        let (report, predicted) = match read(false) {
            Ok(report) if allow_predicted && report.files.iter().any(is_forecast) => (read(true)?, true),
            Err(_) if allow_predicted => (read(true)?, true),
            other => (other?, false),
        };
        let mut rows = report.measurements;
        for condition in conditions {
            let kept: Vec<Measurement> = rows.iter().filter(|r| condition.holds(r)).cloned().collect();
            if kept.is_empty() {
                return Err(CliError::usage(
                    format!("{name}: no row of `{}` has {condition}", path.display()),
                    format!("they have {}", condition.present(&rows)),
                ));
            }
            rows = kept;
        }
        let conditions: String = conditions.iter().map(|c| format!(" where {c}")).collect();
        let label = format!("{}{conditions}", path.display());
        Ok(Self { label, rows, files: report.files, predicted })
    }
}

impl Side {
    /// Whether both are the same rows of files with the same content.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let content = |side: &Self| -> BTreeSet<String> {
            side.files.iter().filter(|f| f.rows > 0).map(|f| f.hash.clone()).collect()
        };
        let place = |m: &Measurement| (m.origin.line, m.in_place, m.size, m.time);
        content(self) == content(other)
            && self.rows.iter().map(place).eq(other.rows.iter().map(place))
            && self.rows.iter().zip(&other.rows).all(|(a, b)| a.settings == b.settings)
    }
}

/// File, and name in it.
pub(super) type Run = (usize, String);

/// A time, with the run that it belongs to.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Sample {
    pub(super) run: Run,
    pub(super) log: f64,
}

/// A point that both sets have.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Pair {
    /// In bytes.
    pub(super) size: u64,
    /// Times of A and of B, at least one each.
    pub(super) samples: [Vec<Sample>; 2],
    /// Number of runs that these are from: rows alike within one share its offset.
    pub(super) runs: [usize; 2],
}

/// What a row is, but for its size.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Series {
    pub(super) collective: Collective,
    pub(super) ranks: u32,
    /// One for each of [`SETTINGS`]; empty where A and B differ throughout.
    pub(super) settings: Vec<String>,
}

impl Series {
    pub(super) fn setting(&self, key: &str) -> &str {
        SETTINGS.iter().position(|s| s.0 == key).and_then(|at| self.settings.get(at)).map_or("", String::as_str)
    }
}

impl Display for Series {
    /// `all_reduce, 4 ranks, threads, ring/ll, in place`: what is usual or not said is left out.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut parts = vec![self.collective.to_string(), format!("{} ranks", self.ranks)];
        let (algorithm, protocol) = (self.setting("algorithm"), self.setting("protocol"));
        for (key, _) in SETTINGS {
            let value = self.setting(key);
            let text = match key {
                _ if value.is_empty() || value == NOT_SAID => continue,
                "algorithm" if protocol.is_empty() || algorithm == protocol => value.to_owned(),
                "algorithm" => format!("{algorithm}/{protocol}"),
                "protocol" if algorithm.is_empty() => value.to_owned(),
                "in_place" => if value == "yes" { "in place" } else { "out of place" }.to_owned(),
                "launch" => value.to_owned(),
                "nodes" if value != "1" => format!("{value} hosts"),
                "channels" if value != "auto" => format!("{value} channels"),
                "nthreads" if value != "auto" => format!("{value} threads a block"),
                "buffsize" if value != "auto" => format!("buffer {value}"),
                "ll_buffsize" if value != "auto" => format!("buffer of LL {value}"),
                "ll128_buffsize" if value != "auto" => format!("buffer of LL128 {value}"),
                "p2p" if value != "on" => format!("p2p {value}"),
                "dtype" if value != "float32" => value.to_owned(),
                "op" if value != "sum" => value.to_owned(),
                "root" if value != "0" => format!("root {value}"),
                _ => continue,
            };
            parts.push(text);
        }
        f.write_str(&parts.join(", "))
    }
}

/// The points of one series that both sets have, by size.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Curve {
    pub(super) series: Series,
    /// Launch modes of both sides.
    pub(super) launches: Vec<Option<Launch>>,
    pub(super) pairs: Vec<Pair>,
}

/// What both sets have, and what only one has.
#[derive(Debug, Default)]
pub(super) struct Matched {
    pub(super) curves: Vec<Curve>,
    /// Settings in which the sets differ throughout, in words.
    pub(super) differs: Vec<String>,
    /// Of A and of B: series, sizes and rows without a partner.
    pub(super) alone: [Vec<(String, String, usize)>; 2],
    /// Points at which NCCL said that it ran something else than before.
    pub(super) choices: Vec<String>,
    /// Rows beyond the first of each point, of A and of B.
    pub(super) repeats: [usize; 2],
}

/// Matches rows by collective, ranks, size and all settings.
///
/// A setting that has one value throughout A and another throughout B (for a collective) is
/// what is being compared, or is said by one source only: rows are not matched by it.
pub(super) fn matched(sides: [&[Measurement]; 2]) -> Matched {
    let mut out = Matched::default();
    let freed = freed(sides, &mut out.differs);
    /// Samples of one set at one point, and the runs that gave them.
    #[derive(Default)]
    struct Samples<'a> {
        rows: Vec<(Sample, &'a Measurement)>,
        runs: BTreeSet<(usize, &'a str)>,
    }
    let mut points: BTreeMap<Series, BTreeMap<u64, [Samples<'_>; 2]>> = BTreeMap::new();
    for (side, rows) in sides.into_iter().enumerate() {
        let mut files: BTreeMap<&str, usize> = BTreeMap::new();
        for row in rows {
            let setting = |(index, (_, read)): (usize, &(&str, Read))| {
                if freed.contains(&(row.collective, index)) { String::new() } else { read(row) }
            };
            let settings = SETTINGS.iter().enumerate().map(setting).collect();
            let series = Series { collective: row.collective, ranks: row.ranks, settings };
            let count = files.len();
            let file = *files.entry(&row.origin.file).or_insert(count);
            let samples = &mut points.entry(series).or_default().entry(row.size.0).or_default()[side];
            samples.runs.insert((file, &row.run));
            samples.rows.push((Sample { run: (file, row.run.clone()), log: row.time.as_us().ln() }, row));
        }
    }
    for (series, sizes) in points {
        let mut alone: [Vec<(u64, usize)>; 2] = Default::default();
        let mut curve = Curve { series, launches: Vec::new(), pairs: Vec::new() };
        let mut changed = Vec::new();
        for (size, samples) in sizes {
            match samples.each_ref().map(|s| s.rows.len()) {
                [0, count] => alone[1].push((size, count)),
                [count, 0] => alone[0].push((size, count)),
                counts => {
                    let first = samples.each_ref().map(|s| s.rows[0].1);
                    curve.launches.extend(first.map(|m| m.launch));
                    if let [Some(a), Some(b)] = first.map(|m| m.chosen)
                        && (a.algorithm, a.protocol) != (b.algorithm, b.protocol)
                    {
                        changed.push(format!(
                            "{} {}/{} -> {}/{}",
                            Bytes(size),
                            a.algorithm,
                            a.protocol,
                            b.algorithm,
                            b.protocol
                        ));
                    }
                    for (side, count) in counts.into_iter().enumerate() {
                        out.repeats[side] += count - 1;
                    }
                    let runs = samples.each_ref().map(|s| s.runs.len());
                    let samples = samples.map(|s| s.rows.into_iter().map(|s| s.0).collect());
                    curve.pairs.push(Pair { size, samples, runs });
                }
            }
        }
        for (side, alone) in alone.into_iter().enumerate() {
            if let (Some(first), Some(last)) = (alone.first(), alone.last()) {
                let sizes = format!("{} to {}", Bytes(first.0), Bytes(last.0));
                let rows = alone.iter().map(|a| a.1).sum();
                out.alone[side].push((curve.series.to_string(), sizes, rows));
            }
        }
        if !changed.is_empty() {
            out.choices.push(format!("{}: {}", curve.series, changed.join(", ")));
        }
        curve.launches.sort();
        curve.launches.dedup();
        if !curve.pairs.is_empty() {
            out.curves.push(curve);
        }
    }
    out
}

/// Settings, by collective, that rows are not matched by.
fn freed(sides: [&[Measurement]; 2], differs: &mut Vec<String>) -> BTreeSet<(Collective, usize)> {
    let mut freed = BTreeSet::new();
    for (index, (key, read)) in SETTINGS.iter().enumerate() {
        let mut values: BTreeMap<Collective, [BTreeSet<String>; 2]> = BTreeMap::new();
        for (side, rows) in sides.into_iter().enumerate() {
            for row in rows {
                values.entry(row.collective).or_default()[side].insert(read(row));
            }
        }
        let mut changes: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        let collectives = values.len();
        for (collective, [a, b]) in values {
            if let (1, 1, Some(a), Some(b)) = (a.len(), b.len(), a.first(), b.first())
                && a != b
            {
                freed.insert((collective, index));
                changes.entry(format!("{key}: {a} -> {b}")).or_default().push(collective.name());
            }
        }
        for (change, names) in changes {
            let which = if names.len() == collectives { String::new() } else { format!(" ({})", names.join(", ")) };
            differs.push(change + &which);
        }
    }
    freed
}

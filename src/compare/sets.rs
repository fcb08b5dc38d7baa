//! Two sets of rows: which belong to each, and which answers to which.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use collcast_hwbackend::read::{FileReport, Outcome, ReadError, ReadOptions, read_paths};
use collcast_sim::collective::{Algorithm, Collective, DataType, Launch, Protocol, ReduceOp, nearest};
use collcast_sim::measurement::{Measurement, PeerAccess};
use collcast_sim::units::{Bytes, parse_size};

use collcast_reports::model::Input;
use serde::{Serialize, Serializer};

use crate::error::Error;
use crate::files::named_hash;

/// What a source did not say.
pub(super) const NOT_SAID: &str = "not said";

type Read = fn(&Measurement) -> String;

fn said(value: Option<impl Display>, otherwise: &str) -> String {
    value.map_or_else(|| otherwise.to_owned(), |v| v.to_string())
}

/// Settings that rows are matched by, named as in measurement files.
const SETTINGS: [(&str, Read); 14] = [
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
pub struct Condition(Rule);

#[derive(Clone, Debug)]
enum Rule {
    Size { text: String, from: Bytes, to: Bytes },
    Field { key: &'static str, read: Read, values: Vec<String> },
}

impl Display for Condition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Rule::Size { text, .. } => write!(f, "size={text}"),
            Rule::Field { key, values, .. } => write!(f, "{key}={}", values.join(",")),
        }
    }
}

impl Condition {
    /// Reads one. `flag` is what named it, for messages, such as `--where`.
    ///
    /// # Errors
    /// A key that rows do not have, or a value that it cannot have.
    pub fn parse(flag: &str, text: &str) -> Result<Self, Error> {
        let fields = || SETTINGS.iter().chain(&OTHERS);
        let (key, values) = text.split_once('=').ok_or_else(|| {
            Error::usage(
                format!("{flag}: `{text}` is not KEY=VALUE"),
                format!("write it as `{flag} in_place=1` or `{flag} run=before`"),
            )
        })?;
        let (key, values) = (key.trim(), values.trim());
        if key == "size" || key == "size_bytes" {
            let (from, to) = values.split_once(':').unwrap_or((values, values));
            let size = |text: &str| {
                parse_size(text).map_err(|e| {
                    Error::usage(format!("{flag}: {e}"), format!("write it as `{flag} size=1M:4G`, both ends included"))
                })
            };
            return Ok(Self(Rule::Size { text: values.to_owned(), from: size(from)?, to: size(to)? }));
        }
        let known = fields().map(|f| f.0).chain(["size"]);
        let Some((key, read)) = fields().find(|f| f.0 == key) else {
            let guess = nearest(key, known.clone()).map(|k| format!(", did you mean `{k}`?")).unwrap_or_default();
            return Err(Error::usage(
                format!("{flag}: rows have no `{key}`{guess}"),
                format!("known keys: {}", known.collect::<Vec<_>>().join(" ")),
            ));
        };
        let values: Result<Vec<String>, Error> =
            values.split(',').map(|value| canonical(flag, key, value.trim())).collect();
        Ok(Self(Rule::Field { key, read: *read, values: values? }))
    }

    fn holds(&self, row: &Measurement) -> bool {
        match &self.0 {
            Rule::Size { from, to, .. } => (*from..=*to).contains(&row.size),
            Rule::Field { read, values, .. } => values.contains(&read(row)),
        }
    }

    /// What the rows have instead.
    fn present(&self, rows: &[Measurement]) -> String {
        const SHOWN: usize = 8;
        match &self.0 {
            Rule::Size { .. } => {
                let sizes = rows.iter().map(|r| r.size);
                match (sizes.clone().min(), sizes.max()) {
                    (Some(least), Some(most)) => format!("sizes from {least} to {most}"),
                    _ => "no rows".to_owned(),
                }
            }
            Rule::Field { key, read, .. } => {
                let values: BTreeSet<String> = rows.iter().map(read).collect();
                let more = if values.len() > SHOWN { ", ..." } else { "" };
                let shown: Vec<String> = values.into_iter().take(SHOWN).collect();
                format!("{key}: {}{more}", shown.join(", "))
            }
        }
    }
}

/// A value as rows have it.
fn canonical(flag: &str, key: &str, value: &str) -> Result<String, Error> {
    fn name<T: FromStr<Err: Display> + Display>(flag: &str, value: &str) -> Result<String, Error> {
        let parsed = value.parse::<T>().map_err(|e| Error::Usage { message: format!("{flag}: {e}"), hint: None })?;
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
            Err(e) => Err(Error::Usage { message: format!("{flag}: {e}"), hint: None }),
        },
        "in_place" => match value.to_lowercase().as_str() {
            "1" | "true" | "yes" => Ok("yes".to_owned()),
            "0" | "false" | "no" => Ok("no".to_owned()),
            _ => Err(Error::usage(format!("{flag}: in_place is 0 or 1, not `{value}`"), format!("{flag} in_place=1"))),
        },
        _ => Ok(value.to_owned()),
    }
}

/// Measurements, and which of their rows.
#[derive(Clone, Debug)]
pub struct Set {
    /// nccl-tests log, JSON, CSV or a folder of them.
    pub path: PathBuf,
    /// All of them hold of a row.
    pub conditions: Vec<Condition>,
}

impl Set {
    /// All rows of a file or folder.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), conditions: Vec::new() }
    }
}

/// One of the two sets, as it is compared.
#[derive(Clone, Debug, Serialize)]
pub struct Side {
    /// Path and conditions, for people.
    pub label: String,
    /// Rows that the conditions leave.
    pub rows: usize,
    /// Rows of its files that repeat a table of theirs, and count once.
    pub copies: usize,
    /// The files that rows are from.
    pub inputs: Vec<Input>,
    /// What is wrong with its files.
    pub warnings: Vec<String>,
    /// Whether forecasts are among the rows.
    pub predicted: bool,
    #[serde(skip)]
    pub(super) files: Vec<FileReport>,
    #[serde(skip)]
    pub(super) measurements: Vec<Measurement>,
}

impl Side {
    /// Reads a set. `name` is A or B.
    pub(super) fn read(name: &str, set: &Set, options: &ReadOptions) -> Result<Self, Error> {
        let paths: [PathBuf; 1] = [set.path.clone()];
        let path = set.path.display();
        let allow_predicted = options.allow_predicted;
        let read = |allow_predicted| read_paths(&paths, &ReadOptions { allow_predicted, ..options.clone() });
        let is_forecast = |file: &FileReport| matches!(file.outcome, Outcome::Refused(ReadError::Predicted { .. }));
        let (report, predicted) = match read(false) {
            Ok(report) if allow_predicted && report.files.iter().any(is_forecast) => (read(true)?, true),
            Err(_) if allow_predicted => (read(true)?, true),
            other => (other?, false),
        };
        let mut rows = report.measurements;
        for condition in &set.conditions {
            let kept: Vec<Measurement> = rows.iter().filter(|r| condition.holds(r)).cloned().collect();
            if kept.is_empty() {
                return Err(Error::usage(
                    format!("{name}: no row of `{path}` has {condition}"),
                    format!("they have {}", condition.present(&rows)),
                ));
            }
            rows = kept;
        }
        let conditions: String = set.conditions.iter().map(|c| format!(" where {c}")).collect();
        let input = |f: &FileReport| Input {
            name: name.to_owned(),
            path: Some(f.path.display().to_string()),
            hash: named_hash(&f.hash),
        };
        Ok(Self {
            label: format!("{path}{conditions}"),
            rows: rows.len(),
            copies: report.files.iter().map(|f| f.duplicates).sum(),
            inputs: report.files.iter().filter(|f| f.rows > 0).map(input).collect(),
            warnings: report.files.iter().filter_map(trouble).collect(),
            predicted,
            files: report.files,
            measurements: rows,
        })
    }
}

/// Whether a file of measurements was not read.
pub(super) fn is_unread(file: &FileReport) -> bool {
    !matches!(file.outcome, Outcome::Read | Outcome::Metadata)
}

/// What is worst about a file of which something was not read, is wrong or was cut.
fn trouble(file: &FileReport) -> Option<String> {
    let trouble = is_unread(file) || file.unreadable > 0 || !file.defects.is_empty() || !file.unfinished.is_empty();
    file.warnings().into_iter().next().filter(|_| trouble)
}

impl Side {
    /// Whether both are the same rows of files with the same content.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let content = |side: &Self| -> BTreeSet<String> { side.inputs.iter().map(|i| i.hash.clone()).collect() };
        let (a, b) = (&self.measurements, &other.measurements);
        let place = |m: &Measurement| (m.origin.line, m.in_place, m.size, m.time);
        content(self) == content(other)
            && a.iter().map(place).eq(b.iter().map(place))
            && a.iter().zip(b).all(|(a, b)| a.settings == b.settings)
    }
}

/// File, and name in it.
pub(super) type Run = (usize, String);

/// A time, with the run that it belongs to.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Sample {
    pub(super) run: Run,
    pub(super) log: f64,
    /// Index of its hosts among [`Matched::hosts`]; none where the log names none.
    pub(super) hosts: Option<usize>,
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
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Series {
    /// What is called.
    pub collective: Collective,
    /// Over how many.
    pub ranks: u32,
    /// One for each of `SETTINGS`.
    #[serde(serialize_with = "by_name")]
    settings: Vec<String>,
}

impl Series {
    /// What settings are called, in the order of [`Series::settings`].
    pub fn keys() -> impl Iterator<Item = &'static str> {
        SETTINGS.iter().map(|s| s.0)
    }

    /// Values of the settings that rows are matched by; empty where A and B differ throughout.
    pub fn settings(&self) -> impl Iterator<Item = &str> {
        self.settings.iter().map(String::as_str)
    }

    /// One of these; empty also where there is no such setting.
    pub fn setting(&self, key: &str) -> &str {
        Self::keys().zip(self.settings()).find(|(name, _)| *name == key).map_or("", |(_, value)| value)
    }
}

/// Settings by their names, those that both sets have throughout.
fn by_name<S: Serializer>(settings: &[String], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(Series::keys().zip(settings).filter(|(_, value)| !value.is_empty()))
}

impl Display for Series {
    /// `all_reduce, 4 ranks, threads, ring/ll, in place`: what is usual or not said is left out.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut parts = vec![self.collective.to_string(), format!("{} ranks", self.ranks)];
        let (algorithm, protocol) = (self.setting("algorithm"), self.setting("protocol"));
        for key in Self::keys() {
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

/// Something that has one value throughout A and another throughout B.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Difference {
    /// Its name.
    pub setting: String,
    /// Its value in A.
    pub a: String,
    /// Its value in B.
    pub b: String,
    /// The collectives of which that holds; none where it holds of all.
    pub collectives: Vec<Collective>,
}

impl Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} -> {}", self.setting, self.a, self.b)?;
        let names: Vec<&str> = self.collectives.iter().map(|c| c.name()).collect();
        if names.is_empty() { Ok(()) } else { write!(f, " ({})", names.join(", ")) }
    }
}

/// Rows of one series without a partner in the other set.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Alone {
    /// What the rows are of.
    pub series: Series,
    /// The smallest size.
    pub from_bytes: u64,
    /// The largest size.
    pub to_bytes: u64,
    /// How many there are.
    pub rows: usize,
}

impl Alone {
    /// `8 B to 64 KiB`.
    pub fn sizes(&self) -> String {
        format!("{} to {}", Bytes(self.from_bytes), Bytes(self.to_bytes))
    }
}

/// What NCCL said that it ran, in A and in B, where that is not the same.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Rerouted {
    /// What was called.
    pub series: Series,
    /// At which sizes, and the pairs of A and of B.
    pub at: Vec<(u64, [(Algorithm, Protocol); 2])>,
}

impl Display for Rerouted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: ", self.series)?;
        for (index, (size, [a, b])) in self.at.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{} {}/{} -> {}/{}", Bytes(*size), a.0, a.1, b.0, b.1)?;
        }
        Ok(())
    }
}

/// What both sets have, and what only one has.
#[derive(Debug, Default)]
pub(super) struct Matched {
    pub(super) curves: Vec<Curve>,
    /// Settings in which the sets differ throughout.
    pub(super) differs: Vec<Difference>,
    /// Of A and of B: rows without a partner.
    pub(super) alone: [Vec<Alone>; 2],
    /// Points at which NCCL said that it ran something else than before.
    pub(super) choices: Vec<Rerouted>,
    /// Rows beyond the first of each point, of A and of B.
    pub(super) repeats: [usize; 2],
    /// Names of hosts, of each set of them that ran rows.
    pub(super) hosts: Vec<String>,
}

impl Curve {
    /// The points of each set of hosts by itself that both sides have.
    pub(super) fn by_hosts(&self) -> BTreeMap<usize, Self> {
        let mut curves: BTreeMap<usize, Self> = BTreeMap::new();
        for pair in &self.pairs {
            let mut of: BTreeMap<usize, [Vec<Sample>; 2]> = BTreeMap::new();
            for (side, samples) in pair.samples.iter().enumerate() {
                for sample in samples {
                    if let Some(hosts) = sample.hosts {
                        of.entry(hosts).or_default()[side].push(sample.clone());
                    }
                }
            }
            for (hosts, samples) in of {
                let runs = samples.each_ref().map(|s| s.iter().map(|s| &s.run).collect::<BTreeSet<_>>().len());
                if runs.iter().all(|&runs| runs > 0) {
                    let empty =
                        || Self { series: self.series.clone(), launches: self.launches.clone(), pairs: Vec::new() };
                    curves.entry(hosts).or_insert_with(empty).pairs.push(Pair { size: pair.size, samples, runs });
                }
            }
        }
        curves
    }
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
    let mut hosts: BTreeMap<&[String], usize> = BTreeMap::new();
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
            let (count, names) = (hosts.len(), &*row.settings.host_names);
            let hosts = (!names.is_empty()).then(|| *hosts.entry(names).or_insert(count));
            samples.rows.push((Sample { run: (file, row.run.clone()), log: row.time.as_us().ln(), hosts }, row));
        }
    }
    let mut hosts: Vec<(usize, String)> = hosts.into_iter().map(|(names, index)| (index, names.join(","))).collect();
    hosts.sort_unstable();
    out.hosts = hosts.into_iter().map(|(_, names)| names).collect();
    for (series, sizes) in points {
        let mut alone: [Vec<(u64, usize)>; 2] = Default::default();
        let mut curve = Curve { series, launches: Vec::new(), pairs: Vec::new() };
        let mut rerouted = Vec::new();
        for (size, samples) in sizes {
            match samples.each_ref().map(|s| s.rows.len()) {
                [0, count] => alone[1].push((size, count)),
                [count, 0] => alone[0].push((size, count)),
                counts => {
                    let first = samples.each_ref().map(|s| s.rows[0].1);
                    curve.launches.extend(first.map(|m| m.launch));
                    if let [Some(a), Some(b)] = first.map(|m| m.chosen.map(|c| (c.algorithm, c.protocol)))
                        && a != b
                    {
                        rerouted.push((size, [a, b]));
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
                out.alone[side].push(Alone {
                    series: curve.series.clone(),
                    from_bytes: first.0,
                    to_bytes: last.0,
                    rows: alone.iter().map(|a| a.1).sum(),
                });
            }
        }
        if !rerouted.is_empty() {
            out.choices.push(Rerouted { series: curve.series.clone(), at: rerouted });
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
fn freed(sides: [&[Measurement]; 2], differs: &mut Vec<Difference>) -> BTreeSet<(Collective, usize)> {
    let mut freed = BTreeSet::new();
    for (index, (key, read)) in SETTINGS.iter().enumerate() {
        let mut values = Values::new();
        for (side, rows) in sides.into_iter().enumerate() {
            for row in rows {
                values.entry(row.collective).or_default()[side].insert(read(row));
            }
        }
        for difference in throughout(key, &values) {
            let of: Vec<Collective> = match difference.collectives.is_empty() {
                true => values.keys().copied().collect(),
                false => difference.collectives.clone(),
            };
            freed.extend(of.into_iter().map(|collective| (collective, index)));
            differs.push(difference);
        }
    }
    freed
}

/// What each collective has in A and in B.
pub(super) type Values = BTreeMap<Collective, [BTreeSet<String>; 2]>;

/// Where collectives have one value throughout A and another throughout B.
pub(super) fn throughout(setting: &str, values: &Values) -> Vec<Difference> {
    let mut changes: BTreeMap<[&String; 2], Vec<Collective>> = BTreeMap::new();
    for (&collective, [a, b]) in values {
        if let (1, 1, Some(a), Some(b)) = (a.len(), b.len(), a.first(), b.first())
            && a != b
        {
            changes.entry([a, b]).or_default().push(collective);
        }
    }
    let difference = |([a, b], collectives): ([&String; 2], Vec<Collective>)| Difference {
        setting: setting.to_owned(),
        a: a.clone(),
        b: b.clone(),
        collectives: if collectives.len() == values.len() { Vec::new() } else { collectives },
    };
    changes.into_iter().map(difference).collect()
}

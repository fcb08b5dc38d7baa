//! The baseline of a suite: what was predicted when it was last accepted, and from which inputs.
//!
//! Small TOML that diffs well: sizes in words, ranges of sizes with one choice in one line,
//! times of three digits. Settings and constants are in it by value, so that a later run can
//! put one of them back and see whether that explains a change.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use collcast_reports::model::Input;
use collcast_sim::collective::Collective;
use collcast_sim::units::{Bytes, parse_size};
use collcast_topologies::error::Source;
use collcast_topologies::file::parse;
use serde::{Deserialize, Serialize};

use super::picked::{FAILS, Picked};
use crate::error::Error;
use crate::files::{content_hash, quoted, read_text};
use crate::values::plural;

/// The schema that this module reads and writes.
const SCHEMA: &str = "collcast/baseline/1";

/// What was predicted, and from what.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Baseline {
    /// `collcast/baseline/1`.
    pub schema: String,
    /// Version of the program.
    pub tool: String,
    /// [`collcast_sim::MODEL`].
    pub model: String,
    /// By the name that machines use.
    #[serde(default)]
    pub profiles: BTreeMap<String, Constants>,
    /// By name.
    #[serde(default)]
    pub machines: BTreeMap<String, Recorded>,
    /// Errors against measurements, by name.
    #[serde(default)]
    pub measured: BTreeMap<String, Measured>,
    /// The file that it is from.
    #[serde(skip)]
    pub source: Option<Input>,
}

/// A profile.
#[derive(Clone, PartialEq, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Constants {
    /// Hash of the values.
    pub hash: String,
    /// By name.
    pub values: BTreeMap<String, f64>,
}

/// What a suite asks of a machine: by version of NCCL and collective.
pub type Entries = BTreeMap<String, BTreeMap<Collective, Entry>>;

/// A machine.
#[derive(Clone, PartialEq, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    /// Hash of all that NCCL and the simulation see of it.
    pub topology: String,
    /// Kinds, rates and numbers of its links, for people.
    pub links: Vec<String>,
    /// Name of its profile in the baseline.
    pub profile: String,
    /// How kernels are started.
    pub launch: String,
    /// Variables as `NAME=VALUE`.
    pub env: Vec<String>,
    /// Hash of launch mode, variables and what these name.
    pub settings: String,
    /// By version, then by collective; in the file, versions with the same entry stand together.
    #[serde(default)]
    pub nccl: Entries,
}

/// One collective on one machine with one version of NCCL.
#[derive(Clone, PartialEq, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// `8..64KiB tree/ll 4ch`, ascending.
    pub choices: Vec<String>,
    /// By size.
    pub times_us: BTreeMap<String, f64>,
}

/// Error against measurements.
#[derive(Clone, PartialEq, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Hash of the files.
    pub files: String,
    /// Rows that are predicted.
    pub rows: usize,
    /// Median of their errors.
    pub median_error_percent: f64,
}

/// How much a baseline holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Counts {
    /// Machines.
    pub machines: usize,
    /// Versions of NCCL.
    pub versions: usize,
    /// Collectives on machines with versions.
    pub entries: usize,
}

impl fmt::Display for Counts {
    /// `15 machines, 3 versions of NCCL, 200 entries in all`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {} of NCCL, {} in all",
            plural(self.machines, "machine", "machines"),
            plural(self.versions, "version", "versions"),
            plural(self.entries, "entry", "entries")
        )
    }
}

impl Constants {
    pub(super) fn new(values: BTreeMap<String, f64>) -> Self {
        let text: String = values.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
        Self { hash: content_hash(text.as_bytes()), values }
    }
}

impl Recorded {
    /// The entries of a collective, each with the versions that have it.
    fn alike(&self, collective: Collective) -> Vec<(Vec<&str>, &Entry)> {
        let mut out: Vec<(Vec<&str>, &Entry)> = Vec::new();
        for (version, entry) in self.nccl.iter().filter_map(|(v, entries)| Some((v, entries.get(&collective)?))) {
            match out.iter_mut().find(|(_, other)| *other == entry) {
                Some((versions, _)) => versions.push(version),
                None => out.push((vec![version], entry)),
            }
        }
        out
    }

    /// Gives each version its own entries.
    fn spread(&mut self) {
        for (versions, entries) in std::mem::take(&mut self.nccl) {
            for version in versions.split(AND) {
                self.nccl.entry(version.to_owned()).or_default().extend(entries.clone());
            }
        }
    }
}

/// Between versions that have one entry.
const AND: &str = ", ";

impl Entry {
    /// Choices at sizes of a grid, in ranges; times at sizes.
    pub(super) fn new(choices: &[(u64, String)], times: &[(u64, f64)]) -> Self {
        let ranges = choices.chunk_by(|a, b| a.1 == b.1).map(|run| {
            let (first, last) = (&run[0], &run[run.len() - 1]);
            format!("{} {}", span(first.0, last.0), first.1)
        });
        Self {
            choices: ranges.collect(),
            times_us: times.iter().map(|&(size, us)| (size_name(size), digits(us))).collect(),
        }
    }

    /// The choice at a size; none between two ranges and outside of all.
    pub(super) fn choice(&self, size: u64) -> Option<&str> {
        self.choices.iter().find_map(|line| {
            let (from, to, choice) = range(line)?;
            (from..=to).contains(&size).then_some(choice)
        })
    }

    /// Ranges of sizes, by first and last, whose choice another entry lacks.
    pub(super) fn choices_beyond(&self, other: &Self) -> Vec<[u64; 2]> {
        let ends = self.choices.iter().filter_map(|line| range(line)).flat_map(|(from, to, _)| [from, to]);
        let lacked: Vec<(u64, bool)> = ends.map(|size| (size, other.choice(size).is_none())).collect();
        let runs = lacked.chunk_by(|a, b| a.1 == b.1).filter(|run| run[0].1);
        runs.map(|run| [run[0].0, run[run.len() - 1].0]).collect()
    }

    /// Sizes whose time another entry lacks.
    pub(super) fn times_beyond(&self, other: &Self) -> Vec<u64> {
        let others = other.times();
        self.times().into_keys().filter(|size| !others.contains_key(size)).collect()
    }

    /// Sizes at which NCCL refuses the call: of its choices, and those of these that have no time.
    pub(super) fn refused(&self, sizes: &[u64]) -> Vec<String> {
        let times = self.times();
        let ranges = self.choices.iter().filter_map(|line| range(line)).filter(|(_, _, choice)| *choice == FAILS);
        let others = sizes.iter().filter(|size| !times.contains_key(size) && self.choice(**size) != Some(FAILS));
        ranges.map(|(from, to, _)| span(from, to)).chain(others.map(|&size| size_name(size))).collect()
    }

    /// Sizes and times, ascending.
    pub(super) fn times(&self) -> BTreeMap<u64, f64> {
        self.times_us.iter().filter_map(|(size, &us)| Some((parse_size(size).ok()?.0, us))).collect()
    }
}

/// `8..64KiB tree/ll 4ch`, or `8 tree/ll 4ch`.
fn range(line: &str) -> Option<(u64, u64, &str)> {
    let (sizes, choice) = line.split_once(' ')?;
    let (from, to) = sizes.split_once("..").unwrap_or((sizes, sizes));
    Some((parse_size(from).ok()?.0, parse_size(to).ok()?.0, choice))
}

/// A size as one word: `64KiB`, `8`.
pub(super) fn size_name(size: u64) -> String {
    Bytes(size).human().trim_end_matches(" B").replace(' ', "")
}

/// Sizes as one word: `8..64KiB`.
pub(super) fn span(from: u64, to: u64) -> String {
    if from == to { size_name(from) } else { format!("{}..{}", size_name(from), size_name(to)) }
}

/// A value with three digits.
pub(crate) fn digits(value: f64) -> f64 {
    format!("{value:.2e}").parse().unwrap_or(value)
}

/// The baseline of a suite, by itself: beside it, with `.baseline.toml` in place of `.toml`.
pub fn baseline_of(suite: &Path) -> PathBuf {
    suite.with_extension("baseline.toml")
}

impl Default for Baseline {
    /// Nothing is accepted yet.
    fn default() -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            tool: env!("CARGO_PKG_VERSION").to_owned(),
            model: collcast_sim::MODEL.to_owned(),
            profiles: BTreeMap::new(),
            machines: BTreeMap::new(),
            measured: BTreeMap::new(),
            source: None,
        }
    }
}

impl Baseline {
    /// How much it holds.
    pub fn counts(&self) -> Counts {
        let versions: BTreeSet<&String> = self.machines.values().flat_map(|m| m.nccl.keys()).collect();
        Counts {
            machines: self.machines.len(),
            versions: versions.len(),
            entries: self.machines.values().flat_map(|m| m.nccl.values()).map(BTreeMap::len).sum(),
        }
    }

    /// What it holds and the next one does not, each in words.
    pub fn lost(&self, next: &Self) -> Vec<String> {
        let mut lost = Vec::new();
        for (name, machine) in &self.machines {
            let Some(now) = next.machines.get(name) else {
                lost.push(format!("machine {name}"));
                continue;
            };
            for (version, entries) in &machine.nccl {
                let Some(now) = now.nccl.get(version) else {
                    lost.push(format!("{name}, NCCL {version}"));
                    continue;
                };
                for (collective, entry) in entries {
                    let place = format!("{name}, NCCL {version}, {collective}");
                    let Some(now) = now.get(collective) else {
                        lost.push(place);
                        continue;
                    };
                    let times = entry.times_beyond(now).into_iter().map(|size| format!("time at {}", size_name(size)));
                    let choices = entry.choices_beyond(now).into_iter();
                    let choices = choices.map(|[from, to]| format!("choices at {}", span(from, to)));
                    lost.extend(choices.chain(times).map(|what| format!("{place}: {what}")));
                }
            }
        }
        for (name, measured) in &self.measured {
            match next.measured.get(name).map(|now| now.rows) {
                None => lost.push(format!("measurements {name}")),
                Some(now) if now < measured.rows => {
                    lost.push(format!("measurements {name}: {} of {} rows", measured.rows - now, measured.rows));
                }
                Some(_) => {}
            }
        }
        lost
    }

    /// Reads the baseline of a suite.
    ///
    /// # Errors
    /// As of [`Baseline::read`]; that there is none, with how to write it.
    pub fn read_for(suite: &Path, path: &Path) -> Result<Self, Error> {
        if path.exists() {
            return Self::read(path);
        }
        let word = |path: &Path| quoted(&path.display().to_string());
        let named = if path == baseline_of(suite) { String::new() } else { format!(" --baseline {}", word(path)) };
        Err(Error::usage(
            format!("the suite has no baseline: there is no file `{}`", path.display()),
            format!("write it with `collcast check {}{named} --update`, and commit it", word(suite)),
        ))
    }

    /// Reads a baseline.
    ///
    /// # Errors
    /// A file that cannot be read, or what is wrong in it, with its place.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let text = read_text("read the baseline", path)?;
        let file = path.display().to_string();
        let source = Source::new(&file, &text);
        let mut baseline: Self = parse(source)?;
        baseline.machines.values_mut().for_each(Recorded::spread);
        let again = "write it anew with --update, and review what changes";
        if baseline.schema != SCHEMA {
            let message = format!("the schema is `{}`, expected `{SCHEMA}`", baseline.schema);
            return Err(source.whole(message, again).into());
        }
        let bad = |what: &str| {
            let at = text.find(what).map_or(0..0, |start| start..start + what.len());
            Error::from(source.at(at, format!("`{what}` cannot be read"), "such as \"8..64KiB tree/ll 4ch\"", again))
        };
        let is_choice = |line: &str| range(line).is_some_and(|(_, _, choice)| choice.parse::<Picked>().is_ok());
        for entry in baseline.machines.values().flat_map(|m| m.nccl.values()).flat_map(BTreeMap::values) {
            if entry.choices.is_empty() {
                return Err(source.whole("an entry has no `choices`", again).into());
            }
            if let Some(line) = entry.choices.iter().find(|line| !is_choice(line)) {
                return Err(bad(line));
            }
            let wrong = |(size, us): &(&String, &f64)| parse_size(size).is_err() || !(us.is_finite() && **us > 0.0);
            if let Some((size, _)) = entry.times_us.iter().find(wrong) {
                return Err(bad(size));
            }
        }
        for (name, Measured { median_error_percent: error, .. }) in &baseline.measured {
            if !(error.is_finite() && *error >= 0.0) {
                let message = format!("the median error of the measurements `{name}` is {error}%");
                return Err(source.whole(message, again).into());
            }
        }
        let hash = content_hash(text.as_bytes());
        baseline.source = Some(Input { name: "baseline".to_owned(), path: Some(file.clone()), hash });
        Ok(baseline)
    }

    /// The text of the file, with these machines in this order.
    pub fn render(&self, machines: &[&str]) -> String {
        // Strings of JSON are those of TOML, but that TOML wants one more character escaped.
        let quoted = |text: &str| serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f");
        let list = |items: &[String]| items.iter().map(|item| quoted(item)).collect::<Vec<_>>().join(", ");
        let mut out =
            String::from("# Written by `collcast check --update`: review its changes as you would review code.\n");
        let _ = writeln!(
            out,
            "schema = {}\ntool = {}\nmodel = {}",
            quoted(&self.schema),
            quoted(&self.tool),
            quoted(&self.model)
        );
        for (name, constants) in &self.profiles {
            let name = quoted(name);
            let _ = writeln!(out, "\n[profiles.{name}]\nhash = {}", quoted(&constants.hash));
            let _ = writeln!(out, "[profiles.{name}.values]");
            for (name, value) in &constants.values {
                let _ = writeln!(out, "{} = {value:?}", quoted(name));
            }
        }
        for (name, machine) in machines.iter().filter_map(|name| Some((name, self.machines.get(*name)?))) {
            let name = quoted(name);
            let _ = writeln!(out, "\n[machines.{name}]\ntopology = {}", quoted(&machine.topology));
            let _ = writeln!(out, "links = [{}]", list(&machine.links));
            let _ = writeln!(out, "profile = {}\nlaunch = {}", quoted(&machine.profile), quoted(&machine.launch));
            let _ = writeln!(out, "env = [{}]\nsettings = {}", list(&machine.env), quoted(&machine.settings));
            let collectives = machine.nccl.values().flat_map(BTreeMap::keys);
            let by_name: BTreeMap<&str, Collective> = collectives.map(|&c| (c.name(), c)).collect();
            for (_, collective) in by_name {
                for (versions, entry) in machine.alike(collective) {
                    let versions = quoted(&versions.join(AND));
                    let _ = writeln!(out, "[machines.{name}.nccl.{versions}.{collective}]\nchoices = [");
                    for line in &entry.choices {
                        let _ = writeln!(out, "  {},", quoted(line));
                    }
                    let times: Vec<String> =
                        entry.times().iter().map(|(&size, us)| format!("{} = {us:?}", size_name(size))).collect();
                    let _ = writeln!(out, "]\ntimes_us = {{ {} }}", times.join(", "));
                }
            }
        }
        for (name, measured) in &self.measured {
            let _ = writeln!(
                out,
                "\n[measured.{}]\nfiles = {}\nrows = {}\nmedian_error_percent = {:?}",
                quoted(name),
                quoted(&measured.files),
                measured.rows,
                measured.median_error_percent
            );
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is written is read back, and neighbours with one choice are one line.
    #[test]
    fn a_baseline_reads_back() {
        let choices: Vec<(u64, String)> = [(8, "tree/ll 4ch"), (16, "tree/ll 4ch"), (1 << 20, "ring/simple 8ch")]
            .map(|(size, text)| (size, text.to_owned()))
            .into();
        let entry = Entry::new(&choices, &[(8, 1.23456), (1000, 98_765.0)]);
        assert_eq!(entry.choices, ["8..16 tree/ll 4ch", "1MiB ring/simple 8ch"]);
        assert_eq!(entry.times(), BTreeMap::from([(8, 1.23), (1000, 98_800.0)]));
        let at = [8, 16, 32, 1 << 20].map(|size| entry.choice(size));
        assert_eq!(at, [Some("tree/ll 4ch"), Some("tree/ll 4ch"), None, Some("ring/simple 8ch")]);

        let mut baseline = Baseline::default();
        let constants =
            Constants::new(BTreeMap::from([("latency.nvlink.ll".to_owned(), 0.7), ("sync.simple".to_owned(), 2.0)]));
        baseline.profiles.insert("odd \"name\"\n\u{7f}".to_owned(), constants);
        let of = |entry: &Entry| BTreeMap::from([(Collective::AllReduce, entry.clone())]);
        let versions = [("2.26.2", &entry), ("2.28.9", &entry), ("2.30.7", &Entry::new(&choices, &[]))];
        let nccl = versions.map(|(version, entry)| (version.to_owned(), of(entry))).into();
        let machine = Recorded { env: vec!["NCCL_ALGO=Ring".to_owned()], nccl, ..Recorded::default() };
        baseline.machines.insert("a b".to_owned(), machine);
        baseline
            .measured
            .insert("x.log".to_owned(), Measured { rows: 3, median_error_percent: 4.0, ..Measured::default() });
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("b.toml");
        std::fs::write(&path, baseline.render(&["a b"])).unwrap();
        assert_eq!(baseline.render(&["a b"]).matches("all_reduce").count(), 2, "versions alike are written once");
        assert_eq!(Baseline { source: None, ..Baseline::read(&path).unwrap() }, baseline);
        std::fs::write(&path, baseline.render(&["a b"]).replace("all_reduce", "all_produce")).unwrap();
        let error = Baseline::read(&path).unwrap_err().to_string();
        assert!(error.contains("all_produce") && error.contains("all_reduce"), "{error}");
    }
}

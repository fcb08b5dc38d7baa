//! Past runs in a folder: what was measured, when, on which hosts, and what was said of it.
//!
//! A recorded run is the log itself, named by its date, verdict and content:
//! `FOLDER/HOSTS/2026-11-03T14-25-30Z_healthy_1a2b3c4d5e6f7a8b.log`. So every command that reads logs reads it, `ls` and
//! `grep` do too, and what later versions learn to read of logs they learn of the past as well. A `.toml` beside it has what
//! the log does not say. A file is written whole or not at all under a name of its own: writers do not disturb each other,
//! and a run that is recorded twice is there once.

mod date;
mod trend;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use collcast_hwbackend::read::{
    End, FileKind, FileReport, ReadError, ReadOptions, ReadReport, read_paths, without_secrets,
};
use collcast_sim::collective::Collective;
use collcast_sim::hash::fnv1a;
use collcast_sim::measurement::Measurement;
use collcast_sim::topology::family;
use collcast_topologies::catalogue::by_name;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::error::Error;
use crate::files::{make_folder, write};
use crate::health::{How, places};
use crate::noise;
use crate::statistics::median;
pub use trend::FEWEST;

/// How dates stand in names of files: without colons, which some disks do not take.
const DATE: &str = "%Y-%m-%dT%H-%M-%SZ";

/// What was said of a recorded run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Healthy,
    /// Nothing could be said.
    Unsure,
    /// Slow: no reference for later runs.
    Slow,
    /// Wrong results, or a run that stopped: no reference either.
    Failed,
}

impl Verdict {
    /// The word in the file's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Unsure => "unsure",
            Self::Slow => "slow",
            Self::Failed => "failed",
        }
    }

    fn of_name(name: &str) -> Option<Self> {
        [Self::Healthy, Self::Unsure, Self::Slow, Self::Failed].into_iter().find(|v| v.name() == name)
    }

    fn counts(self) -> bool {
        matches!(self, Self::Healthy | Self::Unsure)
    }
}

/// What was called: calls that are alike take the same time on like machines.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Call {
    /// What was run.
    pub collective: Collective,
    /// Ranks.
    pub ranks: u32,
    how: How,
    /// The products of its GPUs.
    gpus: String,
    /// Places of the GPUs of one host that ran it, where the row says: times of other pairs are not its past.
    places: Vec<String>,
}

impl Call {
    /// That of a row, on GPUs of a file.
    fn of(row: &Measurement, gpus: &str) -> Self {
        Self {
            collective: row.collective,
            ranks: row.ranks,
            how: How::of(row),
            gpus: gpus.to_owned(),
            places: places(row),
        }
    }
}

/// The products of a file's GPUs, by whichever of their names it calls them.
fn gpus_of(file: &FileReport) -> String {
    let product = |name: &String| by_name(name).map_or_else(|| family(name), |product| product.name.to_owned());
    match file.on_cpu {
        true => "CPU threads".to_owned(),
        false => file.gpus.iter().map(product).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", "),
    }
}

/// One call of a recorded file, or of one that is judged.
#[derive(Clone, Debug)]
pub struct Entry {
    /// When it was measured.
    pub date: Timestamp,
    /// What was said of it.
    pub verdict: Verdict,
    /// How the run ended.
    pub end: End,
    /// Its hosts, sorted; none where the file does not say.
    pub hosts: Vec<String>,
    /// What was called.
    pub call: Call,
    /// Hash of the content.
    pub hash: String,
    /// What was measured.
    pub rows: Vec<Measurement>,
}

impl Entry {
    /// Whether later runs are held against it: it is neither slow nor failed, and was not cut.
    pub fn counts(&self) -> bool {
        self.verdict.counts() && self.end == End::Whole
    }
}

/// The past runs of a folder.
#[derive(Clone, Debug, Default)]
pub struct Past {
    /// Those of the calls asked about: of each set of hosts by date.
    entries: BTreeMap<Call, BTreeMap<Vec<String>, Vec<Entry>>>,
    /// What of the folder could not be read.
    pub warnings: Vec<String>,
    /// The files of these.
    pub files: Vec<FileReport>,
    /// Of each content that is there, what was said of it and where it is.
    recorded: BTreeMap<String, (Verdict, PathBuf)>,
}

impl Past {
    /// Reads the runs of a folder that are of these calls. A folder that is not there is one without runs.
    ///
    /// # Errors
    /// A folder that cannot be read, or is a file.
    pub fn read(folder: &Path, calls: &BTreeSet<Call>) -> Result<Self, Error> {
        let mut past = Self::default();
        let failed = |source| Error::File { what: "read the history", path: folder.to_owned(), source };
        let listed = match fs::read_dir(folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(past),
            listed => listed.map_err(failed)?,
        };
        let mut places = listed.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        places.sort();
        let hidden = |place: &Path| place.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        for place in places.iter().filter(|place| !hidden(place)) {
            if !place.is_dir() {
                past.warnings.push(format!("{}: no folder of a host's runs; left out", place.display()));
                continue;
            }
            let options = ReadOptions { keep_duplicates: true, ..ReadOptions::default() };
            match read_paths(std::slice::from_ref(place), &options) {
                Ok(read) => past.take(&read, calls),
                Err(ReadError::EmptyFolder { .. }) => {}
                Err(error) => past.warnings.push(format!("{}: left out: {error}", place.display())),
            }
        }
        let sets = past.entries.values_mut().flat_map(BTreeMap::values_mut);
        for entries in sets {
            // Two writers may have recorded one content at the same time: it counts once, by what is better known of it.
            entries
                .sort_by(|a, b| (&a.hash, a.verdict == Verdict::Unsure).cmp(&(&b.hash, b.verdict == Verdict::Unsure)));
            entries.dedup_by(|later, first| later.hash == first.hash);
            entries.sort_by(|a, b| (a.date, &a.hash).cmp(&(b.date, &b.hash)));
        }
        Ok(past)
    }

    fn take(&mut self, read: &ReadReport, calls: &BTreeSet<Call>) {
        let rows = by_file(read);
        for file in read.files.iter().filter(|file| file.kind != FileKind::Metadata) {
            let Some((date, verdict, hash)) = named(&file.path) else {
                self.warnings.push(format!(
                    "{}: no name of a recorded run; left out (`collcast validate` with --history records it)",
                    file.path.display()
                ));
                continue;
            };
            let known = self.recorded.entry(hash.clone()).or_insert((verdict, file.path.clone()));
            if known.0 == Verdict::Unsure {
                *known = (verdict, file.path.clone());
            }
            if file.rows == 0 {
                self.warnings.extend(file.warnings().into_iter().take(1));
            }
            let before = self.files.len();
            for entry in entries(&rows, file, (date, verdict, &hash)) {
                if calls.contains(&entry.call) {
                    let sets = self.entries.entry(entry.call.clone()).or_default();
                    sets.entry(entry.hosts.clone()).or_default().push(entry);
                    self.files.truncate(before);
                    self.files.push(file.clone());
                }
            }
        }
    }

    /// Earlier runs of the same hosts and call, with whatever verdict, by date.
    pub fn own<'p>(&'p self, of: &'p Entry) -> impl Iterator<Item = &'p Entry> {
        let own = self.entries.get(&of.call).and_then(|sets| sets.get(&of.hosts)).into_iter().flatten();
        own.filter(|entry| entry.hash != of.hash && entry.date <= of.date)
    }

    /// How the runs of the same hosts changed up to the one that is judged, at sizes of a band.
    pub fn trend(&self, judged: &Entry, sizes: (u64, u64)) -> Option<Trend> {
        let in_band = |entry: &&Entry| entry.rows.iter().any(|row| (sizes.0..=sizes.1).contains(&row.size.0));
        let own: Vec<&Entry> = self.own(judged).filter(in_band).collect();
        let levels: Vec<_> = levels(&own, &[judged], sizes).into_iter().map(|(date, level)| (date, level, 1)).collect();
        let all: Vec<&Entry> = own.iter().copied().chain([judged]).collect();
        Trend::of(&all, &levels)
    }

    /// How all hosts changed that ran a call up to those that are judged, where they are several sets: a level a night, which
    /// is the median over the hosts of that night, each beside its own past.
    pub fn fleet(&self, judged: &[&Entry], sizes: (u64, u64)) -> Option<Trend> {
        let last = judged.iter().max_by_key(|entry| entry.date)?;
        let mut own: BTreeMap<&[String], (Vec<&Entry>, Vec<&Entry>)> = BTreeMap::new();
        for entry in judged {
            own.entry(entry.hosts.as_slice()).or_default().1.push(entry);
        }
        let hashes: BTreeSet<&str> = judged.iter().map(|entry| entry.hash.as_str()).collect();
        for (hosts, entries) in self.entries.get(&last.call).into_iter().flatten() {
            let before = entries.iter().filter(|e| e.date <= last.date && !hashes.contains(e.hash.as_str()));
            own.entry(hosts.as_slice()).or_default().0.extend(before);
        }
        if own.len() < 2 {
            return None;
        }
        let mut each: Vec<(Timestamp, f64)> =
            own.values().flat_map(|(past, judged)| levels(past, judged, sizes)).collect();
        each.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let mut nights: Vec<(Timestamp, Vec<f64>)> = Vec::new();
        for (date, level) in each {
            match nights.last_mut() {
                Some((begin, levels)) if date.duration_since(*begin) < NIGHT => levels.push(level),
                _ => nights.push((date, vec![level])),
            }
        }
        let mut all: Vec<&Entry> = own.values().flat_map(|(past, judged)| past.iter().chain(judged).copied()).collect();
        all.sort_by_key(|entry| entry.date);
        let level = |(date, levels): (Timestamp, Vec<f64>)| {
            let runs = levels.len();
            (date, median(levels), runs)
        };
        Trend::of(&all, &nights.into_iter().map(level).collect::<Vec<_>>())
    }
}

/// Longest that the runs of all hosts take, one after the other, for them to count as one night's.
const NIGHT: SignedDuration = SignedDuration::from_hours(12);

/// Levels of some runs of the same hosts: ln of their bus bandwidth over the median of the earlier ones that count.
fn levels(past: &[&Entry], judged: &[&Entry], (from, to): (u64, u64)) -> Vec<(Timestamp, f64)> {
    let mut times: BTreeMap<(u64, bool), Vec<f64>> = BTreeMap::new();
    let in_band = |row: &&Measurement| (from..=to).contains(&row.size.0);
    for row in past.iter().filter(|entry| entry.counts()).flat_map(|entry| entry.rows.iter().filter(in_band)) {
        times.entry((row.size.0, row.in_place)).or_default().push(row.time.as_us());
    }
    let usual: BTreeMap<(u64, bool), f64> = times.into_iter().map(|(at, times)| (at, median(times))).collect();
    let level = |entry: &&Entry| {
        let share = |row: &Measurement| Some((usual.get(&(row.size.0, row.in_place))? / row.time.as_us()).ln());
        let logs: Vec<f64> = entry.rows.iter().filter_map(share).collect();
        (!logs.is_empty()).then(|| (entry.date, median(logs)))
    };
    past.iter().chain(judged).filter_map(level).collect()
}

/// The rows of each file.
pub fn by_file(read: &ReadReport) -> BTreeMap<&str, Vec<&Measurement>> {
    let mut files: BTreeMap<&str, Vec<&Measurement>> = BTreeMap::new();
    for row in &read.measurements {
        files.entry(&row.origin.file).or_default().push(row);
    }
    files
}

/// The calls of a file, each with its rows.
pub fn entries(
    rows: &BTreeMap<&str, Vec<&Measurement>>,
    file: &FileReport,
    (date, verdict, hash): (Timestamp, Verdict, &str),
) -> Vec<Entry> {
    let path = file.path.display().to_string();
    let gpus = gpus_of(file);
    let mut entries: Vec<Entry> = Vec::new();
    for row in rows.get(path.as_str()).into_iter().flatten().copied() {
        let (call, hosts, end) = (Call::of(row, &gpus), row.settings.host_names.to_vec(), file.end_of(&row.run));
        match entries.iter_mut().find(|entry| entry.call == call && entry.hosts == hosts) {
            Some(entry) => {
                entry.end = entry.end.max(end);
                entry.rows.push(row.clone());
            }
            None => {
                let (hash, rows) = (hash.to_owned(), vec![row.clone()]);
                entries.push(Entry { date, verdict, end, hosts, call, hash, rows });
            }
        }
    }
    entries
}

/// How the runs of some hosts changed over time.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Trend {
    /// The hosts, where they are one set that files name.
    pub hosts: Vec<String>,
    /// Sets of hosts that ran it.
    pub host_sets: usize,
    /// What was run.
    pub collective: Collective,
    /// Ranks.
    pub ranks: u32,
    /// Runs, the one that is judged among them.
    pub runs: usize,
    /// Those that later ones are held against: neither slow nor failed, and before the one that is judged.
    pub healthy: usize,
    /// The day of the first one.
    pub since: String,
    /// Bus bandwidth of the last one, or of the median host of the last night, over the median of the healthy ones.
    pub share: f64,
    /// When it changed, where it did.
    pub changed: Option<Changed>,
}

/// A change of the bus bandwidth.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Changed {
    /// The day of the first run after it.
    pub since: String,
    /// Runs from then on.
    pub runs: usize,
    /// Median bus bandwidth after it over that before it.
    pub share: f64,
}

impl Trend {
    /// That of runs by date, of which the last is judged, and of their levels by date, each with the runs that it is of.
    fn of(entries: &[&Entry], levels: &[(Timestamp, f64, usize)]) -> Option<Self> {
        let (first, last) = (entries.first()?, entries.last()?);
        let noise = noise::known(&[last.call.how.launch], 2).offset;
        let logs: Vec<f64> = levels.iter().map(|level| level.1).collect();
        let sets: BTreeSet<&Vec<String>> = entries.iter().map(|e| &e.hosts).collect();
        let runs_from = |at: usize| levels[at..].iter().map(|level| level.2).sum();
        Some(Self {
            hosts: if sets.len() == 1 { last.hosts.clone() } else { Vec::new() },
            host_sets: sets.len(),
            collective: last.call.collective,
            ranks: last.call.ranks,
            runs: runs_from(0),
            healthy: entries[..entries.len() - 1].iter().filter(|e| e.counts()).count(),
            since: day(first.date),
            share: logs.last()?.exp(),
            changed: trend::change(&logs, noise).map(|(at, before, after)| Changed {
                since: day(levels[at].0),
                runs: runs_from(at),
                share: (after - before).exp(),
            }),
        })
    }
}

/// A day, as people write it.
fn day(date: Timestamp) -> String {
    date.strftime("%F").to_string()
}

/// What the name of a recorded run says.
fn named(path: &Path) -> Option<(Timestamp, Verdict, String)> {
    let stem = path.file_stem()?.to_str()?;
    let [date, verdict, hash] = stem.split('_').collect::<Vec<_>>()[..] else { return None };
    let (day, time) = date.split_once('T')?;
    let date = format!("{day}T{}", time.replace('-', ":")).parse().ok()?;
    // A copy that was not finished has another ending.
    let is_hash = hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    Some((date, Verdict::of_name(verdict).filter(|_| is_hash)?, hash.to_owned()))
}

/// A file that is to be judged: what of it is kept, with its hash and date.
#[derive(Clone, Debug)]
pub struct Kept {
    /// When it was measured: by its own lines, else by the `.toml` beside it, by `now`, or when it was last written.
    pub date: Timestamp,
    /// That its lines have a date, and not of which zone.
    pub warning: Option<String>,
    /// Hash of the content.
    pub hash: String,
    bytes: Vec<u8>,
    beside: toml::Table,
}

impl Kept {
    /// That of a file that was read. `now` is the date of files that do not say theirs.
    ///
    /// # Errors
    /// A file that is gone.
    pub fn of(file: &FileReport, now: Option<Timestamp>) -> Result<Self, Error> {
        let failed = |source| Error::File { what: "read", path: file.path.clone(), source };
        let bytes = fs::read(&file.path).map_err(failed)?;
        let text = String::from_utf8_lossy(&bytes);
        // Whole environments are in JSON of nccl-tests, and hold secrets.
        let bytes = without_secrets(&text).map_or_else(|| bytes.clone(), String::into_bytes);
        let beside = fs::read_to_string(file.path.with_extension("toml")).unwrap_or_default();
        let beside: toml::Table = beside.parse().unwrap_or_default();
        // A text, or a date of TOML's own.
        let of_toml = || date::of_day(beside.get("date")?.to_string().trim_matches('"'));
        let written = || Timestamp::try_from(fs::metadata(&file.path).ok()?.modified().ok()?).ok();
        let (said, unknown) = match date::of_text(&text) {
            Some(Err(zone)) => (None, Some(zone)),
            said => (said.and_then(Result::ok), None),
        };
        let certain = said.or_else(of_toml);
        let date = certain.or(now).or_else(written);
        let date = date.unwrap_or_else(|| Timestamp::try_from(SystemTime::now()).unwrap_or_default());
        let warning = unknown.filter(|_| certain.is_none()).map(|zone| {
            format!(
                "{}: its date is in `{zone}`, which several zones are called, or none that is known. It counts as a run of {}. \
                 Say `date` in the .toml beside it, or print dates with `date -u`",
                file.path.display(),
                date.strftime("%F %R UTC"),
            )
        });
        Ok(Self { date, warning, hash: format!("{:016x}", fnv1a(&bytes)), bytes, beside })
    }

    /// Records it in a folder, unless it is there. Where nothing could be said of it then, and something can be now, it gets
    /// the name of that.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn record(
        &self,
        folder: &Path,
        past: &Past,
        file: &FileReport,
        read: &ReadReport,
        verdict: Verdict,
    ) -> Result<Option<PathBuf>, Error> {
        if let Some((said, recorded)) = past.recorded.get(&self.hash) {
            return match *said == Verdict::Unsure && verdict != Verdict::Unsure {
                true => renamed(recorded, said.name(), verdict.name()),
                false => Ok(None),
            };
        }
        let path = file.path.display().to_string();
        let rows: Vec<&Measurement> = read.measurements.iter().filter(|row| row.origin.file == path).collect();
        let hosts: BTreeSet<&String> = rows.iter().flat_map(|row| row.settings.host_names.iter()).collect();
        let folder = folder.join(folder_of(&hosts));
        make_folder(&folder)?;
        let name = format!("{}_{}_{}", self.date.strftime(DATE), verdict.name(), self.hash);
        let extension = file.path.extension().map_or("log".into(), |e| e.to_string_lossy());
        let mut beside = self.beside.clone();
        beside.insert("recorded_from".to_owned(), path.into());
        // The name of the file said it, or who asked.
        let collectives: BTreeSet<Collective> = rows.iter().map(|row| row.collective).collect();
        if let (1, Some(one)) = (collectives.len(), collectives.first()) {
            beside.insert("collective".to_owned(), one.name().into());
        }
        if let Some(machine) = &file.machine {
            let at = fs::canonicalize(machine).map_or_else(|_| machine.clone(), |at| at.display().to_string());
            beside.insert("topology".to_owned(), at.into());
        }
        // What describes a run is there before the run is.
        write(&folder.join(format!("{name}.toml")), beside.to_string().as_bytes())?;
        let recorded = folder.join(format!("{name}.{extension}"));
        write(&recorded, &self.bytes)?;
        Ok(Some(recorded))
    }
}

/// Gives a recorded run, and the `.toml` beside it, the name of another verdict; none where another writer did.
fn renamed(recorded: &Path, before: &str, after: &str) -> Result<Option<PathBuf>, Error> {
    let name = recorded.file_name().map(|name| name.to_string_lossy().replacen(before, after, 1));
    let new = recorded.with_file_name(name.unwrap_or_default());
    let rename = |from: &Path, to: &Path| match fs::rename(from, to) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(Error::File { what: "rename", path: from.to_owned(), source }),
        Ok(()) => Ok(true),
    };
    rename(&recorded.with_extension("toml"), &new.with_extension("toml"))?;
    Ok(rename(recorded, &new)?.then_some(new))
}

/// Hosts whose names a folder is made of; more are counted.
const NAMED: usize = 4;

/// The folder of some hosts: their names, or the first with a hash of all.
fn folder_of(hosts: &BTreeSet<&String>) -> String {
    let plain = |name: &str| -> String {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
        name.chars().take(60).map(|c| if is_plain(c) { c } else { '-' }).collect()
    };
    let names: Vec<&str> = hosts.iter().map(|name| name.as_str()).collect();
    let text = match names.len() {
        0 => return "unnamed".to_owned(),
        1..=NAMED => names.iter().map(|name| plain(name)).collect::<Vec<_>>().join("+"),
        more => format!("{}+{}-{:08x}", plain(names[0]), more - 1, fnv1a(names.join(",").as_bytes()) >> 32),
    };
    text.strip_prefix('.').map_or(text.clone(), |rest| format!("-{rest}"))
}

//! Measurements from the files people have: nccl-tests text and JSON, records of NCCL's profiler plugins, CSV, folders of
//! them.
//!
//! [`read_paths`] is the way in. A file that the user names must be usable, or it is an error
//! that says why. A file met in a folder is either read, or named in its [`FileReport`] with
//! the reason; lines are too, by number. Nothing is dropped in silence, and no input can
//! cause a panic or unbounded memory.
//!
//! A `.toml` of the same stem beside a data file says what the file cannot: `topology` (a
//! built-in, or a topology file, looked for beside it first), `nccl_version`, `[env]`, and where needed `ranks`, `nodes`, `gpus_per_node`, `collective`,
//! `launch`, `calls` of the timed loop and `timed = "rank 0"`. What the data file itself says wins, but for `ranks`, `nodes` and `calls`.
//! `publisher` says who measured, where several files are of one; rows on more than `hosts_at_most` hosts are not asked for.

mod alike;
mod bus;
mod error;
mod inspector;
mod json;
mod log;
mod parsed;
mod profiler;
mod program;
mod settings;
mod sidecar;
mod table;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use collcast_sim::collective::Collective;
use collcast_sim::hash::fnv1a;
use collcast_sim::measurement::Measurement;
use collcast_topologies::input;

use alike::Profile;
pub use error::ReadError;
pub use json::without_secrets;
pub use log::plain_line;
pub use parsed::{Broken, ENVIRONMENT, End, Note, ROWS_MAX, ReadOptions, UNSAID};
use parsed::{Input, Parsed};
use sidecar::Sidecar;

/// Largest file that is read.
pub const FILE_BYTES_MAX: u64 = 256 << 20;
/// Largest JSON file that is read; a parsed one takes up to 75 times its size.
pub const JSON_BYTES_MAX: u64 = 32 << 20;
/// Largest `.toml` that is read.
const TOML_BYTES_MAX: u64 = 1 << 20;
/// Most files looked at in one folder.
pub const FILES_MAX: usize = 10_000;
/// Deepest folder that is entered, counted from the one that was named.
const DEPTH_MAX: usize = 16;
/// Everything that was read, and what became of each file.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ReadReport {
    /// The rows, in the order of files and lines.
    pub measurements: Vec<Measurement>,
    /// One entry for each file that was named or met, in the order of reading.
    pub files: Vec<FileReport>,
}

impl ReadReport {
    /// The topology that the files name, where all that name one agree.
    pub fn machine(&self) -> Option<&str> {
        let named: BTreeSet<&str> = self
            .files
            .iter()
            .filter(|file| file.outcome == Outcome::Read)
            .filter_map(|file| file.machine.as_deref())
            .collect();
        match named.len() {
            1 => named.first().copied(),
            _ => None,
        }
    }
}

/// What kind of file it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FileKind {
    /// Text, as nccl-tests prints it.
    Log,
    /// JSON, as nccl-tests `-J`, NCCL's profiler plugins or Collcast write it.
    Json,
    /// CSV with a header.
    Csv,
    /// TOML beside a data file.
    Metadata,
    /// Anything else.
    Other,
}

/// What became of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It gave measurements.
    Read,
    /// It describes the data files of its stem.
    Metadata,
    /// It holds no measurements, for the reason given.
    NotUnderstood(String),
    /// It holds measurements, but cannot be trusted or is broken.
    Refused(ReadError),
}

/// What became of one file, and what there is to know about it.
#[derive(Clone, PartialEq, Debug)]
pub struct FileReport {
    /// The file, as named or met.
    pub path: PathBuf,
    /// What it is.
    pub kind: FileKind,
    /// Measurements it gave, the duplicates not counted.
    pub rows: usize,
    /// Measurements that an earlier file, or this one, had already given.
    pub duplicates: usize,
    /// What became of it.
    pub outcome: Outcome,
    /// Rows whose time is rounded to 0.00, absent, or of zero bytes.
    pub unusable: usize,
    /// Lines that could not be read; each has a note.
    pub unreadable: usize,
    /// Lines of text around the tables.
    pub other_lines: usize,
    /// Of each run that lacks nccl-tests' last words (`Out of bounds values`), its last line; at most 200.
    pub unfinished: Vec<u64>,
    /// Results that were wrong and tests that failed, by its own words; at most 200.
    pub defects: Vec<Note>,
    /// Of a log, the runs that did not end well; at most 200.
    pub broken: Vec<Broken>,
    /// What else there is to tell, at most 200 notes.
    pub notes: Vec<Note>,
    /// Notes beyond those.
    pub notes_left_out: usize,
    /// FNV-1a of the content, 64 bits, as 16 hex digits; empty where it was not read.
    pub hash: String,
    /// The topology that the `.toml` beside it names.
    pub machine: Option<String>,
    /// Who measured, by the same.
    pub publisher: Option<String>,
    /// Rows on more hosts are not to be predicted, by the same.
    pub hosts_at_most: Option<u32>,
    /// NCCL version.
    pub nccl: Option<String>,
    /// Variables of NCCL and the network under which it ran; [`FileReport::env_of`] tells runs apart.
    pub env: BTreeMap<String, String>,
    /// The same by run, where the file is a log of several.
    pub run_env: BTreeMap<String, BTreeMap<String, String>>,
    /// GPUs as its rank lines name them, such as `NVIDIA H200`.
    pub gpus: BTreeSet<String>,
    /// Measured on CPU threads, by `collcast bench --backend host`: no times of GPUs.
    pub on_cpu: bool,
    /// What a forecast of ours asked for that its rows do not say.
    pub unsaid: Option<String>,
}

impl FileReport {
    fn new(path: &Path, kind: FileKind, outcome: Outcome) -> Self {
        Self {
            path: path.to_owned(),
            kind,
            rows: 0,
            duplicates: 0,
            outcome,
            unusable: 0,
            unreadable: 0,
            other_lines: 0,
            unfinished: Vec::new(),
            defects: Vec::new(),
            broken: Vec::new(),
            notes: Vec::new(),
            notes_left_out: 0,
            hash: String::new(),
            machine: None,
            publisher: None,
            hosts_at_most: None,
            nccl: None,
            env: BTreeMap::new(),
            run_env: BTreeMap::new(),
            gpus: BTreeSet::new(),
            on_cpu: false,
            unsaid: None,
        }
    }

    /// Variables of NCCL and the network under which one of its runs ran.
    pub fn env_of(&self, run: &str) -> &BTreeMap<String, String> {
        self.run_env.get(run).unwrap_or(&self.env)
    }

    /// How one of its runs ended.
    pub fn end_of(&self, run: &str) -> End {
        match self.broken.iter().filter(|broken| broken.run == run).map(|broken| broken.end).max() {
            Some(end) => end,
            // What is no log is of one run.
            None if self.broken.is_empty() && !self.defects.is_empty() => End::Failed,
            None if self.broken.is_empty() && !self.unfinished.is_empty() => End::Cut,
            None => End::Whole,
        }
    }

    fn placed(&self, note: &Note) -> String {
        let line = note.line.map_or_else(String::new, |line| format!(":{line}"));
        format!("{}{line}: {}", self.path.display(), note.text)
    }

    /// The first of its defects, and how many more there are.
    pub fn defect(&self) -> Option<String> {
        let more = self.defects.len().saturating_sub(1);
        let more = if more > 0 { format!(" ({more} more such lines)") } else { String::new() };
        self.defects.first().map(|first| self.placed(first) + &more)
    }

    /// Whether runs of it were cut, or are pasted in part.
    pub fn cut(&self) -> Option<String> {
        let line = self.unfinished.first()?;
        let more = self.unfinished.len() - 1;
        let more = if more > 0 { format!(" ({more} more such runs)") } else { String::new() };
        Some(format!(
            "{}:{line}: no `Out of bounds values` after the rows, with which nccl-tests ends: the run was stopped or the \
             file cut, so rows may be missing, and results wrong{more}",
            self.path.display()
        ))
    }

    /// What a user should be told of this file, each with its place, worst first.
    pub fn warnings(&self) -> Vec<String> {
        let place = self.path.display();
        let mut lines = Vec::new();
        match &self.outcome {
            Outcome::Read | Outcome::Metadata => {}
            Outcome::NotUnderstood(reason) => lines.push(format!("{place}: not read: {reason}")),
            Outcome::Refused(error) => lines.push(format!("{place}: refused: {error}")),
        }
        lines.extend(self.defect());
        lines.extend(self.cut());
        lines.extend(self.notes.iter().map(|note| self.placed(note)));
        if self.notes_left_out > 0 {
            lines.push(format!("{place}: and {} more notes", self.notes_left_out));
        }
        if self.unusable > 0 {
            lines.push(format!("{place}: {} rows unusable (0.00, absent, or zero bytes)", self.unusable));
        }
        if self.duplicates > 0 {
            lines.push(format!(
                "{place}: {} rows are also in an earlier file, or once more in this one, and count once",
                self.duplicates
            ));
        }
        lines
    }
}

/// The first of the runs that were cut, and in how many more files there are such.
pub fn cut_runs(files: &[FileReport]) -> Option<String> {
    let mut cut = files.iter().filter_map(FileReport::cut);
    let first = cut.next()?;
    Some(match cut.count() {
        0 => first,
        more => format!("{first}; so in {more} more files"),
    })
}

/// Reads files and folders.
///
/// Folders are read with all below them, sorted by name, up to 16 levels and
/// [`FILES_MAX`] files; links to folders are not followed.
///
/// # Errors
/// A named file that cannot be used, or a named folder that gives no measurement. The text of
/// [`ReadError`] says what, where and a way out.
pub fn read_paths(paths: &[PathBuf], options: &ReadOptions) -> Result<ReadReport, ReadError> {
    if paths.is_empty() {
        return Err(ReadError::NoPaths);
    }
    let mut collector = Collector {
        options: options.clone(),
        report: ReadReport::default(),
        spans: Vec::new(),
        seen: BTreeSet::new(),
        profiled: BTreeMap::new(),
    };
    for path in paths {
        let metadata = fs::metadata(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => ReadError::Missing { path: path.clone() },
            _ => unreadable(path, &error),
        })?;
        if metadata.is_dir() {
            collector.folder(path)?;
        } else {
            collector.named_file(path)?;
        }
    }
    collector.finish()
}

struct Collector {
    options: ReadOptions,
    report: ReadReport,
    /// Of each file report, where its measurements begin and end.
    spans: Vec<(usize, usize)>,
    seen: BTreeSet<PathBuf>,
    /// Calls by communicator whose rows come when all ranks are read, with the report of the first file of each.
    profiled: BTreeMap<u64, (usize, Profile)>,
}

impl Collector {
    fn named_file(&mut self, path: &Path) -> Result<(), ReadError> {
        if !self.is_new(path) {
            return Ok(());
        }
        let is_toml = extension(path) == "toml";
        if is_toml && !siblings_of(path).is_empty() {
            self.push(metadata_report(path, Outcome::Metadata), Vec::new());
            return Ok(());
        }
        let (mut report, parsed) = read_file(path, &self.options, self.rows_left())?;
        if parsed.rows.is_empty() && parsed.profiles.is_empty() && !self.keeps(&parsed) {
            return Err(ReadError::NotUnderstood { path: path.to_owned(), reason: parsed.reason() });
        }
        report.take(&parsed);
        self.take(report, parsed);
        Ok(())
    }

    /// Whether a file without rows tells of a run that failed, and that is asked for.
    fn keeps(&self, parsed: &Parsed) -> bool {
        self.options.keep_failed && parsed.ended_early()
    }

    fn folder(&mut self, folder: &Path) -> Result<(), ReadError> {
        let mut files = Vec::new();
        let mut skipped = Vec::new();
        list(folder, folder, 0, &mut files, &mut skipped)?;
        // Scripts beside the logs that they make, and what they print, are worth no word, but where there is nothing else.
        let is_aside = |path: &PathBuf| extension(path) == "sh" || path.ends_with("round.out");
        let (scripts, mut files): (Vec<_>, Vec<_>) = files.into_iter().partition(is_aside);
        if files.is_empty() {
            files = scripts;
        }
        if files.is_empty() && skipped.is_empty() {
            return Err(ReadError::EmptyFolder { path: folder.to_owned() });
        }
        for (path, reason) in skipped {
            let outcome = Outcome::NotUnderstood(reason);
            self.push(FileReport::new(&path, FileKind::Other, outcome), Vec::new());
        }
        let first = self.report.files.len();
        let before = (self.report.measurements.len(), self.profiled.len());
        let stems: BTreeSet<PathBuf> =
            files.iter().filter(|path| is_data(path)).map(|path| path.with_extension("")).collect();
        let mut known = false;
        for path in &files {
            if !self.is_new(path) {
                known = true;
                continue;
            }
            if extension(path) == "toml" {
                let outcome = if stems.contains(&path.with_extension("")) {
                    Outcome::Metadata
                } else {
                    Outcome::NotUnderstood("no data file of this stem beside it".to_owned())
                };
                self.push(metadata_report(path, outcome), Vec::new());
                continue;
            }
            match read_file(path, &self.options, self.rows_left()) {
                Ok((mut report, parsed)) => {
                    known |= self.keeps(&parsed);
                    report.take(&parsed);
                    self.take(report, parsed);
                }
                Err(error @ ReadError::TooManyRows { .. }) => return Err(error),
                Err(error) => {
                    let outcome = match error {
                        ReadError::MissingColumn { missing, found, .. } => {
                            Outcome::NotUnderstood(format!("CSV without {}; it has {found}", missing.join(" and ")))
                        }
                        ReadError::Binary { .. } => Outcome::NotUnderstood("binary, not text".to_owned()),
                        error => Outcome::Refused(error),
                    };
                    let report = FileReport::new(path, kind_by_name(path), outcome);
                    self.push(report, Vec::new());
                }
            }
        }
        if (self.report.measurements.len(), self.profiled.len()) == before && !known {
            let reasons = self.report.files[first..]
                .iter()
                .filter_map(|file| match &file.outcome {
                    Outcome::NotUnderstood(reason) => Some((file.path.clone(), reason.clone())),
                    Outcome::Refused(error) => Some((file.path.clone(), error.to_string())),
                    Outcome::Read | Outcome::Metadata => None,
                })
                .collect();
            return Err(ReadError::NothingRead { path: folder.to_owned(), reasons });
        }
        Ok(())
    }

    /// Whether the file was not read before; the same one may be named twice.
    fn is_new(&mut self, path: &Path) -> bool {
        let identity = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        self.seen.insert(identity)
    }

    fn rows_left(&self) -> usize {
        ROWS_MAX - self.report.measurements.len().min(ROWS_MAX)
    }

    fn take(&mut self, report: FileReport, parsed: Parsed) {
        let file = self.report.files.len();
        for (communicator, profile) in parsed.profiles {
            match self.profiled.entry(communicator) {
                Entry::Vacant(free) => {
                    free.insert((file, profile));
                }
                Entry::Occupied(mut known) => known.get_mut().1.extend(profile),
            }
        }
        self.push(report, parsed.rows);
    }

    fn push(&mut self, mut report: FileReport, rows: Vec<Measurement>) {
        report.rows = rows.len();
        let begin = self.report.measurements.len();
        self.report.measurements.extend(rows);
        self.spans.push((begin, self.report.measurements.len()));
        self.report.files.push(report);
    }

    fn finish(mut self) -> Result<ReadReport, ReadError> {
        if !self.options.keep_duplicates {
            self.merge_duplicates();
        }
        let mut unsized_calls = None;
        for (file, profile) in std::mem::take(&mut self.profiled).into_values() {
            let left = self.rows_left();
            let report = &mut self.report.files[file];
            let note = |text: String| Note { line: None, text: sidecar::message(text) };
            match profile.finish() {
                Ok((rows, _)) if rows.len() > left => {
                    return Err(ReadError::TooManyRows { path: report.path.clone(), limit: ROWS_MAX });
                }
                Ok((rows, notes)) => {
                    report.notes.extend(notes.into_iter().map(note));
                    report.rows += rows.len();
                    self.report.measurements.extend(rows);
                }
                Err(reason) => {
                    let path = report.path.clone();
                    report.notes.push(note(reason.clone()));
                    unsized_calls.get_or_insert(ReadError::NotUnderstood { path, reason });
                }
            }
        }
        match unsized_calls {
            Some(error) if self.report.measurements.is_empty() => Err(error),
            _ => Ok(self.report),
        }
    }

    /// A log and the CSV made from it hold the same rows; these count once. What only the
    /// later file says is kept.
    fn merge_duplicates(&mut self) {
        let rows = &mut self.report.measurements;
        let mut earlier: HashMap<RowKey, Vec<usize>> = HashMap::new();
        let mut dropped = vec![false; rows.len()];
        for (file, &(begin, end)) in self.spans.iter().enumerate() {
            let mut runs: BTreeMap<String, Vec<usize>> = BTreeMap::new();
            let copies = copies_within(&rows[begin..end]);
            self.report.files[file].duplicates += copies.len();
            self.report.files[file].rows -= copies.len();
            copies.into_iter().for_each(|at| dropped[begin + at] = true);
            for index in (begin..end).filter(|&index| !dropped[index]) {
                runs.entry(base_run(&rows[index].run).to_owned()).or_default().push(index);
            }
            let mut fresh = Vec::new();
            for indices in runs.into_values() {
                let mut pairs = Vec::new();
                for &index in &indices {
                    if let Some(twin) = earlier.get_mut(&row_key(&rows[index])).and_then(Vec::pop) {
                        pairs.push((twin, index));
                    }
                }
                // A chance agreement of single times is not a copy.
                let is_copy = pairs.len() * 10 >= indices.len() * 9;
                for &(twin, index) in &pairs {
                    if is_copy {
                        let later = rows[index].clone();
                        rows[twin].complete(later);
                        dropped[index] = true;
                    } else {
                        earlier.entry(row_key(&rows[twin])).or_default().push(twin);
                    }
                }
                if is_copy {
                    self.report.files[file].duplicates += pairs.len();
                    self.report.files[file].rows -= pairs.len();
                    fresh.extend(indices.into_iter().filter(|&index| !dropped[index]));
                } else {
                    fresh.extend(indices);
                }
            }
            for index in fresh.into_iter().rev() {
                earlier.entry(row_key(&rows[index])).or_default().push(index);
            }
        }
        let mut keep = dropped.iter().map(|dropped| !dropped);
        rows.retain(|_| keep.next().unwrap_or(true));
    }
}

fn metadata_report(path: &Path, outcome: Outcome) -> FileReport {
    let mut report = FileReport::new(path, FileKind::Metadata, outcome);
    report.hash = load(path).map_or(String::new(), |bytes| format!("{:016x}", fnv1a(&bytes)));
    report
}

type RowKey = (String, Collective, u32, u64, bool, u64);

fn row_key(row: &Measurement) -> RowKey {
    (base_run(&row.run).to_owned(), row.collective, row.ranks, row.size.0, row.in_place, row.time.0)
}

/// Rows of a file that are the table of a run once more: in its order, to the last digit, and whole. Single times agree by
/// chance, and so do repeats of one size.
fn copies_within(rows: &[Measurement]) -> Vec<usize> {
    let mut runs: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, row) in rows.iter().enumerate() {
        runs.entry(&row.run).or_default().push(at);
    }
    let key = |at: usize| {
        let (row, settings) = (&rows[at], &rows[at].settings);
        let forced = (settings.algorithm, settings.protocol, settings.channels, settings.registered);
        (row.collective, row.ranks, row.size, row.in_place, row.time, forced)
    };
    let copies = |places: Vec<usize>| {
        let all = places.len();
        let repeats = |table: &usize| {
            all.is_multiple_of(*table)
                && (*table..all).all(|at| key(places[at]) == key(places[at - table]))
                && places[..*table].iter().map(|&at| key(at)).collect::<HashSet<_>>().len() >= COPIED
        };
        let table = (COPIED..=all / 2).find(repeats).unwrap_or(all);
        places.into_iter().skip(table)
    };
    runs.into_values().flat_map(copies).collect()
}

/// Rows of a table from which on a repetition is no chance.
const COPIED: usize = 4;

/// The run without the number that tells several of one file apart.
fn base_run(run: &str) -> &str {
    run.split('#').next().unwrap_or(run)
}

impl FileReport {
    fn take(&mut self, parsed: &Parsed) {
        self.unusable = parsed.unusable;
        self.unreadable = parsed.unreadable;
        self.other_lines = parsed.other_lines;
        self.unfinished.clone_from(&parsed.unfinished);
        self.defects.clone_from(&parsed.defects);
        self.broken.clone_from(&parsed.broken);
        self.notes.clone_from(&parsed.notes);
        self.notes_left_out = parsed.notes_left_out;
        self.nccl.clone_from(&parsed.nccl);
        self.env.clone_from(&parsed.env);
        self.run_env.clone_from(&parsed.run_env);
        self.gpus.clone_from(&parsed.gpus);
        self.on_cpu = parsed.on_cpu;
        self.unsaid.clone_from(&parsed.unsaid);
        self.outcome = if parsed.rows.is_empty() && parsed.profiles.is_empty() {
            Outcome::NotUnderstood(parsed.reason.clone().unwrap_or_else(|| "it has no rows".to_owned()))
        } else {
            Outcome::Read
        };
    }
}

fn read_file(path: &Path, options: &ReadOptions, rows_left: usize) -> Result<(FileReport, Parsed), ReadError> {
    let bytes = load(path)?;
    if bytes.is_empty() {
        return Err(ReadError::EmptyFile { path: path.to_owned() });
    }
    let sidecar_path = path.with_extension("toml");
    let mut sidecar = match load(&sidecar_path) {
        Ok(bytes) if sidecar_path != path => sidecar::parse(&sidecar_path, &String::from_utf8_lossy(&bytes))?,
        Err(error @ (ReadError::FileTooLarge { .. } | ReadError::Unreadable { .. })) => {
            return Err(error);
        }
        _ => Sidecar::default(),
    };
    sidecar.nccl = sidecar.nccl.or_else(|| options.nccl.clone());
    sidecar.env = options.env.clone().into_iter().chain(sidecar.env).collect();
    let mut report = FileReport::new(path, FileKind::Other, Outcome::Read);
    report.hash = format!("{:016x}", fnv1a(&bytes));
    report.machine.clone_from(&sidecar.topology);
    report.publisher.clone_from(&sidecar.publisher);
    report.hosts_at_most = sidecar.hosts_at_most;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let (kind, parsed) = parse(path, &stem, &bytes, &sidecar, options, rows_left)?;
    report.kind = kind;
    Ok((report, parsed))
}

/// Reads the content of one file. `path` and `stem` serve messages and names only.
fn parse(
    path: &Path,
    stem: &str,
    bytes: &[u8],
    sidecar: &Sidecar,
    options: &ReadOptions,
    rows_left: usize,
) -> Result<(FileKind, Parsed), ReadError> {
    let text = input::lossy(bytes);
    if let Some(offset) = text.bytes().position(|byte| byte == 0) {
        return Err(ReadError::Binary { path: path.to_owned(), offset });
    }
    let input = Input { path, text: &text, stem, sidecar, options, rows_left };
    let inspected = inspector::is(&text);
    let profiled = profiler::is(&text);
    let kind = if inspected || profiled { FileKind::Json } else { kind_of(path, &text) };
    if kind == FileKind::Json && !inspected && !profiled && text.len() as u64 > JSON_BYTES_MAX {
        return Err(ReadError::FileTooLarge { path: path.to_owned(), bytes: text.len() as u64, limit: JSON_BYTES_MAX });
    }
    let mut parsed = match kind {
        _ if inspected => inspector::parse(&input)?,
        _ if profiled => profiler::parse(&input),
        FileKind::Json => json::parse(&input)?,
        FileKind::Csv => table::parse(&input)?,
        FileKind::Log => log::parse(&input)?,
        FileKind::Metadata | FileKind::Other => Parsed { reason: Some(foreign(path, &text)), ..Parsed::default() },
    };
    if input::decoded(bytes).is_err() {
        parsed.note(None, "some bytes are not UTF-8; replaced".to_owned());
    }
    parsed.on_cpu |= sidecar.on_cpu;
    parsed.gpus.extend(sidecar.gpu.clone());
    for text in &sidecar.notes {
        parsed.note(None, format!("in the .toml beside it: {text}"));
    }
    Ok((kind, parsed))
}

fn kind_by_name(path: &Path) -> FileKind {
    match extension(path).as_str() {
        "csv" | "tsv" => FileKind::Csv,
        "json" => FileKind::Json,
        "toml" => FileKind::Metadata,
        "xml" | "svg" | "html" | "md" | "jsonl" => FileKind::Other,
        _ => FileKind::Log,
    }
}

/// By name, or by content where the name says nothing.
fn kind_of(path: &Path, text: &str) -> FileKind {
    let by_name = kind_by_name(path);
    if by_name != FileKind::Log {
        return by_name;
    }
    let start = text.trim_start();
    if start.starts_with('{') {
        return if log::is_of_docker(start) { FileKind::Log } else { FileKind::Json };
    }
    if start.starts_with("<?xml") || start.starts_with("<system") || start.starts_with("<graphs") {
        return FileKind::Other;
    }
    let header = text.lines().find(|line| !line.trim().is_empty() && !line.starts_with('#'));
    match header {
        Some(line) if table::looks_like_header(line) => FileKind::Csv,
        _ => FileKind::Log,
    }
}

fn foreign(path: &Path, text: &str) -> String {
    let head: String = text.chars().take(4096).collect();
    if head.contains("<system") {
        "NCCL topology XML, not measurements; `collcast topo import` reads it".to_owned()
    } else if head.contains("<graphs") {
        "NCCL graph XML, not measurements".to_owned()
    } else if extension(path) == "toml" {
        "TOML without a data file of its stem beside it".to_owned()
    } else {
        format!("a .{} file; expected text, JSON or CSV", sidecar::shortened(&extension(path)))
    }
}

fn extension(path: &Path) -> String {
    path.extension().unwrap_or_default().to_string_lossy().to_lowercase()
}

fn is_data(path: &Path) -> bool {
    !matches!(kind_by_name(path), FileKind::Metadata | FileKind::Other)
}

/// The data files that a `.toml` describes.
fn siblings_of(path: &Path) -> Vec<PathBuf> {
    ["log", "txt", "csv", "json", "out"]
        .iter()
        .map(|extension| path.with_extension(extension))
        .filter(|path| path.is_file())
        .collect()
}

fn unreadable(path: &Path, error: &std::io::Error) -> ReadError {
    ReadError::Unreadable { path: path.to_owned(), message: error.to_string() }
}

/// The bytes of a regular file, within the limit.
fn load(path: &Path) -> Result<Vec<u8>, ReadError> {
    let metadata = fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => ReadError::Missing { path: path.to_owned() },
        _ => unreadable(path, &error),
    })?;
    if !metadata.is_file() {
        return Err(ReadError::NotAFile { path: path.to_owned() });
    }
    let limit = match extension(path).as_str() {
        "json" => JSON_BYTES_MAX,
        "toml" => TOML_BYTES_MAX,
        _ => FILE_BYTES_MAX,
    };
    let too_large = |bytes| ReadError::FileTooLarge { path: path.to_owned(), bytes, limit };
    if metadata.len() > limit {
        return Err(too_large(metadata.len()));
    }
    let mut bytes = Vec::new();
    fs::File::open(path)
        .and_then(|file| file.take(limit + 1).read_to_end(&mut bytes))
        .map_err(|error| unreadable(path, &error))?;
    if bytes.len() as u64 > limit {
        return Err(too_large(bytes.len() as u64)); // It grew while it was read.
    }
    Ok(bytes)
}

/// All files below `folder`, sorted; what is passed over goes to `skipped` with its reason.
fn list(
    root: &Path,
    folder: &Path,
    depth: usize,
    files: &mut Vec<PathBuf>,
    skipped: &mut Vec<(PathBuf, String)>,
) -> Result<(), ReadError> {
    let mut entries: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder).map_err(|error| unreadable(folder, &error))? {
        entries.push(entry.map_err(|error| unreadable(folder, &error))?.path());
        if entries.len() + files.len() + skipped.len() > FILES_MAX {
            return Err(ReadError::TooManyFiles { path: root.to_owned(), limit: FILES_MAX });
        }
    }
    entries.sort();
    for path in entries {
        let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        let is_link = path.is_symlink();
        let mut skip = |reason: &str| skipped.push((path.clone(), reason.to_owned()));
        match fs::metadata(&path) {
            _ if hidden => skip("hidden"),
            Ok(metadata) if metadata.is_dir() && is_link => skip("a link to a folder"),
            Ok(metadata) if metadata.is_dir() && depth >= DEPTH_MAX => skip("too deep a folder"),
            Ok(metadata) if metadata.is_dir() => list(root, &path, depth + 1, files, skipped)?,
            Ok(metadata) if metadata.is_file() => files.push(path),
            Ok(_) => skip("not a regular file"),
            Err(error) => skip(&format!("cannot be read: {error}")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;

//! Runs beside the past of their own hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use collcast_hwbackend::read::{FileReport, ReadReport};
use collcast_sim::collective::Collective;
use collcast_sim::measurement::Measurement;
use jiff::Timestamp;
use serde::Serialize;

use super::figures::Unjudged;
use crate::error::Error;
use crate::health::{Band, Beside, Health, Judged, Part, Reference, Run, Said, State, against, said};
use crate::history::{Call, Entry, FEWEST, Kept, Past, Trend, Verdict, by_file, entries};
use crate::values::{few, plural};

/// Runs of a past that later ones are held against. Of eight runs whose noise is 2% the median is off by less than 1%.
pub(crate) const FIRST: usize = 8;

/// What the past says of a run that is judged.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct History {
    /// The file, as the user named it.
    pub file: String,
    /// The run's name.
    pub run: String,
    /// What else it says of how it ran.
    #[serde(skip)]
    pub(crate) how: Said,
    /// How its own hosts changed; of the first run of a call that others ran too, then how all hosts did.
    pub trends: Vec<Trend>,
}

/// Rows of the earlier runs that a call is held against, by size and whether in place: of each the runs that have it.
type Good<'p> = BTreeMap<(u64, bool), Vec<Vec<&'p Measurement>>>;

/// How many earlier runs have the size of a row; in place or not, whichever more have.
fn count(good: &Good<'_>, row: &Measurement) -> usize {
    [true, false].into_iter().filter_map(|in_place| good.get(&(row.size.0, in_place))).map(Vec::len).max().unwrap_or(0)
}

/// What is judged, beside what a folder has of it.
pub(super) struct Present {
    pub(super) past: Past,
    kept: Vec<(FileReport, Kept)>,
    entries: Vec<Entry>,
}

impl Present {
    /// Reads the past of what was measured.
    pub(super) fn read(folder: &Path, read: &ReadReport, now: Option<Timestamp>) -> Result<Self, Error> {
        let mut present = Self { past: Past::default(), kept: Vec::new(), entries: Vec::new() };
        let rows = by_file(read);
        for file in read.files.iter().filter(|file| file.rows > 0) {
            let kept = Kept::of(file, now)?;
            let calls = entries(&rows, file, (kept.date, Verdict::Unsure, &kept.hash));
            present.entries.extend(calls.iter().flat_map(|call| by_run(call, file)));
            present.kept.push((file.clone(), kept));
        }
        let calls: BTreeSet<_> = present.entries.iter().map(|entry| entry.call.clone()).collect();
        present.past = Past::read(folder, &calls)?;
        present.past.warnings.extend(present.kept.iter().filter_map(|(_, kept)| kept.warning.clone()));
        Ok(present)
    }

    /// What a call is held against: at each size the first runs that were recorded with it, as a host that slows down a little
    /// from run to run would take a median of all with it.
    fn good<'p>(&'p self, entry: &'p Entry) -> Good<'p> {
        let mut good = Good::new();
        for past in self.past.own(entry).filter(|past| past.counts()) {
            let mut sizes: BTreeMap<_, Vec<_>> = BTreeMap::new();
            past.rows.iter().for_each(|row| sizes.entry((row.size.0, row.in_place)).or_default().push(row));
            for (size, rows) in sizes {
                let runs = good.entry(size).or_default();
                if runs.len() < FIRST {
                    runs.push(rows);
                }
            }
        }
        good
    }

    /// The rows of which there is enough of a past, beside its median.
    pub(super) fn runs(&self) -> Beside {
        let report = |measurements| ReadReport { measurements, files: Vec::new() };
        let mut all = Beside::default();
        for entry in &self.entries {
            let good = self.good(entry);
            let judged = entry.rows.iter().filter(|row| count(&good, row) >= FEWEST).cloned().collect();
            let enough = good.into_values().filter(|runs| runs.len() >= FEWEST);
            let good = Reference::of(&report(enough.flatten().flatten().cloned().collect()));
            let beside = against(&report(judged), &good);
            all.runs.extend(beside.runs.into_iter().map(|run| Run { end: entry.end, ..run }));
        }
        all
    }

    /// The rows that runs are held against, with their files.
    pub(super) fn held_against(&self) -> ReadReport {
        let good = self.entries.iter().flat_map(|entry| self.good(entry).into_values());
        let rows = good.filter(|runs| runs.len() >= FEWEST).flatten().flatten();
        ReadReport { measurements: rows.cloned().collect(), files: self.past.files.clone() }
    }

    /// What has too little of a past, with the files that have such rows.
    pub(super) fn rest(&self, read: &ReadReport) -> ReadReport {
        let measurements: Vec<Measurement> = self.too_new().flat_map(|(_, rows)| rows.into_iter().cloned()).collect();
        let of: BTreeSet<&str> = measurements.iter().map(|row| row.origin.file.as_str()).collect();
        let has_rows = |file: &&FileReport| of.contains(file.path.display().to_string().as_str());
        let files = read.files.iter().filter(has_rows).cloned().collect();
        ReadReport { measurements, files }
    }

    /// The first row of each call that has too little of a past.
    pub(super) fn first_rows(&self) -> impl Iterator<Item = &Measurement> {
        self.too_new().filter_map(|(_, rows)| rows.into_iter().next())
    }

    /// Rows that too few earlier runs have, by call.
    fn too_new(&self) -> impl Iterator<Item = (&Entry, Vec<&Measurement>)> {
        self.entries.iter().map(|entry| {
            let good = self.good(entry);
            (entry, entry.rows.iter().filter(|row| count(&good, row) < FEWEST).collect())
        })
    }

    /// Says how little past there is, of the call and size that have the least.
    pub(super) fn too_little(&self) -> Option<String> {
        let new = self.too_new().flat_map(|(entry, rows)| {
            let good = self.good(entry);
            let size = rows.len() < entry.rows.len();
            rows.into_iter().map(|row| (count(&good, row), entry, size.then_some(row.size))).collect::<Vec<_>>()
        });
        new.min_by_key(|(count, ..)| *count).map(|(count, Entry { hosts, call, .. }, size)| {
            let hosts = if hosts.is_empty() { "hosts without names".to_owned() } else { hosts.join(", ") };
            let size = size.map_or(String::new(), |size| format!(" of {size}"));
            format!(
                "the history has {count} earlier runs of {}{size} over {} ranks on {hosts}; {FEWEST} are needed to judge by them",
                call.collective, call.ranks
            )
        })
    }

    /// What the past says of each run, and of all hosts beside the first of each call.
    pub(super) fn of_runs(&self, health: &Health) -> Vec<History> {
        let mut places: BTreeMap<(&str, &str, Collective, u32, Said), usize> = BTreeMap::new();
        for (place, entry) in self.entries.iter().enumerate() {
            for row in &entry.rows {
                places.entry((&row.origin.file, &row.run, row.collective, row.ranks, said(row))).or_insert(place);
            }
        }
        let entry_of = |judged: &Judged| {
            let key = (&*judged.file, &*judged.run, judged.collective, judged.ranks, judged.how.clone());
            places.get(&key).map(|&place| &self.entries[place])
        };
        // The sizes that all hosts are compared at: large ones, where there are any.
        let mut large: BTreeMap<&Call, (u64, u64)> = BTreeMap::new();
        for judged in &health.runs {
            let band = judged.bands.iter().find(|band| band.part == Part::Large).or(judged.bands.last());
            if let Some((entry, band)) = entry_of(judged).zip(band) {
                let sizes = large.entry(&entry.call).or_insert(sizes_of(band));
                *sizes = (sizes.0.min(band.from_bytes), sizes.1.max(band.to_bytes));
            }
        }
        let mut histories = Vec::new();
        for judged in &health.runs {
            let Some((entry, band)) = entry_of(judged).zip(judged.decisive()) else { continue };
            let mut trends: Vec<Trend> = self.past.trend(entry, sizes_of(band)).into_iter().collect();
            if let Some(sizes) = large.remove(&entry.call) {
                let all: Vec<&Entry> = self.entries.iter().filter(|other| other.call == entry.call).collect();
                trends.extend(self.past.fleet(&all, sizes));
            }
            let Judged { file, run, how, .. } = judged;
            histories.push(History { file: file.clone(), run: run.clone(), how: how.clone(), trends });
        }
        histories
    }

    /// Records what was judged, each file with the worst that was said of it. Says what was recorded.
    pub(super) fn record(
        &self,
        folder: &Path,
        read: &ReadReport,
        (health, unjudged): (&Health, &[Unjudged]),
    ) -> Result<String, Error> {
        let mut recorded = 0;
        for (file, kept) in &self.kept {
            let path = file.path.display().to_string();
            let worst = health.runs.iter().filter(|run| run.file == path).map(|run| run.state).max();
            let verdict = match worst {
                _ if file.defect().is_some() => Verdict::Failed,
                Some(State::Pass) if unjudged.iter().any(|of| of.file == path) => Verdict::Unsure,
                Some(State::Slow) => Verdict::Slow,
                Some(State::Pass) => Verdict::Healthy,
                Some(State::Unsure) | None => Verdict::Unsure,
            };
            recorded += usize::from(kept.record(folder, &self.past, file, read, verdict)?.is_some());
        }
        let known = self.kept.len() - recorded;
        let known = if known > 0 { format!(", {} there already", plural(known, "was", "were")) } else { String::new() };
        let files = plural(recorded, "file is", "files are");
        Ok(format!("{files} recorded in {}{known}", folder.display()))
    }
}

/// The runs of a call of a file, each by itself.
fn by_run(call: &Entry, file: &FileReport) -> Vec<Entry> {
    let mut runs: BTreeMap<&str, Vec<Measurement>> = BTreeMap::new();
    for row in &call.rows {
        runs.entry(&row.run).or_default().push(row.clone());
    }
    runs.into_iter().map(|(run, rows)| Entry { end: file.end_of(run), rows, ..call.clone() }).collect()
}

/// Says which files are not recorded: those without a row.
pub(super) fn not_recorded(read: &ReadReport) -> Option<String> {
    let lacks = |file: &&FileReport| file.rows == 0 && (file.defect().is_some() || file.cut().is_some());
    let names: Vec<String> = read.files.iter().filter(lacks).map(|file| file.path.display().to_string()).collect();
    let are = if names.len() == 1 { "is" } else { "are" };
    (!names.is_empty()).then(|| format!("{} {are} not recorded: no row was measured", few(&names)))
}

/// The smallest and the largest size of a band.
fn sizes_of(band: &Band) -> (u64, u64) {
    (band.from_bytes, band.to_bytes)
}

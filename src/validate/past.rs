//! Runs beside the past of their own hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use collcast_hwbackend::read::{FileReport, ReadReport};
use collcast_sim::collective::Collective;
use collcast_sim::measurement::Measurement;
use jiff::Timestamp;
use serde::Serialize;

use crate::error::Error;
use crate::health::{Band, Beside, Health, Judged, Part, Reference, Run, State, against};
use crate::history::{Call, Entry, FEWEST, Kept, Past, Trend, Verdict, by_file, entries};
use crate::values::plural;

/// Runs of a past that later ones are held against. Of eight runs whose noise is 2% the median is off by less than 1%.
const FIRST: usize = 8;

/// What the past says of a run that is judged.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct History {
    /// The file, as the user named it.
    pub file: String,
    /// The run's name.
    pub run: String,
    /// How its own hosts changed; of the first run of a call that others ran too, then how all hosts did.
    pub trends: Vec<Trend>,
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
            present.entries.extend(entries(&rows, file, (kept.date, Verdict::Unsure, &kept.hash)));
            present.kept.push((file.clone(), kept));
        }
        let calls: BTreeSet<_> = present.entries.iter().map(|entry| entry.call.clone()).collect();
        present.past = Past::read(folder, &calls)?;
        Ok(present)
    }

    /// Earlier runs that a call is held against: the first that were recorded, as a host that slows down a little from run to
    /// run would take a median of all with it.
    fn healthy<'p>(&'p self, entry: &'p Entry) -> Vec<&'p Entry> {
        self.past.own(entry).filter(|past| past.counts()).take(FIRST).collect()
    }

    /// The runs of which there is enough of a past, beside its median.
    pub(super) fn runs(&self) -> Beside {
        let rows = |entries: &[&Entry]| ReadReport {
            measurements: entries.iter().flat_map(|entry| entry.rows.iter().cloned()).collect(),
            files: Vec::new(),
        };
        let mut all = Beside::default();
        for entry in &self.entries {
            let healthy = self.healthy(entry);
            if healthy.len() < FEWEST {
                continue;
            }
            let beside = against(&rows(&[entry]), &Reference::of(&rows(&healthy)));
            all.runs.extend(beside.runs.into_iter().map(|run| Run { end: entry.end, ..run }));
            for (file, rows) in beside.alone {
                *all.alone.entry(file).or_default() += rows;
            }
        }
        all
    }

    /// What has too little of a past, with the files that have such rows.
    pub(super) fn rest(&self, read: &ReadReport) -> ReadReport {
        let measurements: Vec<Measurement> = self.too_new().flat_map(|entry| entry.rows.iter().cloned()).collect();
        let of: BTreeSet<&str> = measurements.iter().map(|row| row.origin.file.as_str()).collect();
        let has_rows = |file: &&FileReport| of.contains(file.path.display().to_string().as_str());
        let files = read.files.iter().filter(has_rows).cloned().collect();
        ReadReport { measurements, files }
    }

    /// The first row of each call that has too little of a past.
    pub(super) fn first_rows(&self) -> impl Iterator<Item = &Measurement> {
        self.too_new().filter_map(|entry| entry.rows.first())
    }

    fn too_new(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| self.healthy(entry).len() < FEWEST)
    }

    /// Says how little past there is, of the call that has the least.
    pub(super) fn too_little(&self) -> Option<String> {
        let least = self.entries.iter().map(|entry| (self.healthy(entry).len(), entry)).min_by_key(|(count, _)| *count);
        least.filter(|(count, _)| *count < FEWEST).map(|(count, Entry { hosts, call, .. })| {
            let hosts = if hosts.is_empty() { "hosts without names".to_owned() } else { hosts.join(", ") };
            format!(
                "the history has {count} earlier runs of {} over {} ranks on {hosts}; {FEWEST} are needed to judge by them",
                call.collective, call.ranks
            )
        })
    }

    /// What the past says of each run, and of all hosts beside the first of each call.
    pub(super) fn of_runs(&self, health: &Health) -> Vec<History> {
        let mut places: BTreeMap<(&str, &str, Collective, u32), usize> = BTreeMap::new();
        for (place, entry) in self.entries.iter().enumerate() {
            for row in &entry.rows {
                places.entry((&row.origin.file, &row.run, row.collective, row.ranks)).or_insert(place);
            }
        }
        let entry_of = |judged: &Judged| {
            let key = (judged.file.as_str(), judged.run.as_str(), judged.collective, judged.ranks);
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
            histories.push(History { file: judged.file.clone(), run: judged.run.clone(), trends });
        }
        histories
    }

    /// Records what was judged, each file with the worst that was said of it. Says what was recorded.
    pub(super) fn record(&self, folder: &Path, read: &ReadReport, health: &Health) -> Result<String, Error> {
        let mut recorded = 0;
        for (file, kept) in &self.kept {
            let path = file.path.display().to_string();
            let worst = health.runs.iter().filter(|run| run.file == path).map(|run| run.state).max();
            let verdict = match worst {
                _ if file.defect().is_some() => Verdict::Failed,
                // A run of the file may have no rows that are judged.
                Some(State::Pass) if file.cut().is_some() => Verdict::Unsure,
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

/// The smallest and the largest size of a band.
fn sizes_of(band: &Band) -> (u64, u64) {
    (band.from_bytes, band.to_bytes)
}

//! Copies between memories for real: GPU and host, two GPUs, files and a GPU; every byte is compared, and they are timed.

use std::path::PathBuf;

use collcast_hwbackend::cuda::{Copies, FILE, HostCopy};
use collcast_hwbackend::exec::{Effort, ExecError, Sample};
use collcast_hwbackend::storage::{ALIGN, Access, FileCase, PatternFile};
use collcast_sim::profile::{Constant, OriginKind, Parameter};
use serde::Serialize;

use super::layer::layer_text;
use super::sidecar::date;
use crate::error::Error;
use crate::watch::Watch;

/// Bytes of a file at most: what a drive and a page cache are told by.
const MOST_FILE: u64 = 4 << 30;
/// Bytes of a read or a copy in chunks: UCX's fragments through host memory (`UCX_RNDV_FRAG_SIZE`).
const CHUNK: u64 = 4 << 20;
/// Threads that read or write at once: a drive is busy with few.
const THREADS: [u32; 2] = [1, 8];

/// Which copies.
#[derive(Clone, Debug)]
pub struct TransferRequest {
    /// Bytes of a copy.
    pub sizes: Vec<u64>,
    /// Folder for the file that is read, on the drives in question; removed in the end.
    pub folder: PathBuf,
    /// How often.
    pub effort: Effort,
    /// Whether a machine without GPUs is asked for its drives alone.
    pub drives_only: bool,
    /// Who is told, and who may stop it.
    pub watch: Watch,
}

/// What one copy took.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Copied {
    /// `host_to_device`, `device_to_host`, `both_ways`, `peer`, `file_read`, `file_write` or `file_to_device`.
    pub way: &'static str,
    /// `pinned`, `pageable`, `device`, or how a file is reached.
    pub memory: &'static str,
    /// Bytes, of one direction.
    pub bytes: u64,
    /// Bytes of a request.
    pub chunk: u64,
    /// Threads or streams at once.
    pub parallel: u32,
    /// Median, least and most time in microseconds.
    pub us: [f64; 3],
    /// Bytes that were compared.
    pub checked: u64,
}

impl Copied {
    /// GB/s, both directions together.
    pub fn gb_per_s(&self) -> f64 {
        let ways = if self.way == "both_ways" { 2.0 } else { 1.0 };
        self.bytes as f64 * ways / self.us[0] * 1e-3
    }
}

/// What was measured.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TransferOutcome {
    /// GPUs and driver, or the host.
    pub on: String,
    /// The copies.
    pub rows: Vec<Copied>,
    /// What could not be run, and why.
    pub skipped: Vec<String>,
}

/// Runs copies.
///
/// # Errors
/// No GPU where they are wanted, a folder that takes no file, bytes that come out wrong.
pub fn transfer(request: &TransferRequest) -> Result<TransferOutcome, Error> {
    let copies = if request.drives_only { None } else { Some(Copies::open()?) };
    let mut outcome = TransferOutcome {
        on: copies.as_ref().map_or_else(|| "this host".to_owned(), Copies::name),
        rows: Vec::new(),
        skipped: Vec::new(),
    };
    let largest = request.sizes.iter().copied().filter(|&bytes| bytes <= MOST_FILE).max().unwrap_or(0);
    let folder = || request.folder.display().to_string();
    let made = PatternFile::new(&request.folder, largest).map_err(|error| {
        Error::usage(format!("no file can be made in {}: {error}", folder()), "name another --folder")
    })?;
    request.watch.stage(&format!("copies on {}, files in {}", outcome.on, folder()))?;
    let parts = request.watch.parts(request.sizes.len());
    for &bytes in &request.sizes {
        if let Some(copies) = &copies {
            gpu(copies, bytes, &request.effort, &mut outcome)?;
        }
        if (ALIGN..=MOST_FILE).contains(&bytes) {
            // Reads and writes are of whole pages.
            let bytes = bytes.next_multiple_of(ALIGN);
            files(&made, bytes, &request.effort, &mut outcome);
            if let Some(copies) = &copies {
                file_to_gpu(copies, &made, bytes, &request.effort, &mut outcome)?;
            }
        } else {
            outcome.skip(format!("a file of {bytes} bytes: files are from {ALIGN} to {MOST_FILE} bytes"));
        }
        parts.done()?;
    }
    if outcome.rows.is_empty() {
        let why = outcome.skipped.join("; ");
        return Err(Error::usage(format!("nothing was measured: {why}"), "name other sizes, such as -s 4K:1G:16"));
    }
    Ok(outcome)
}

fn row(way: &'static str, memory: &'static str, (bytes, chunk, parallel): (u64, u64, u32), sample: &Sample) -> Copied {
    let us = [sample.median_us(), sample.percentile(0), sample.percentile(100)];
    Copied { way, memory, bytes, chunk: chunk.min(bytes), parallel, us, checked: sample.checked }
}

impl TransferOutcome {
    fn skip(&mut self, why: String) {
        if !self.skipped.contains(&why) {
            self.skipped.push(why);
        }
    }
}

/// Copies of the first GPU with host memory, and with the second GPU.
fn gpu(copies: &Copies, bytes: u64, effort: &Effort, outcome: &mut TransferOutcome) -> Result<(), ExecError> {
    for (memory, pinned) in [("pinned", true), ("pageable", false)] {
        for (way, to_host, both) in
            [("host_to_device", false, false), ("device_to_host", true, false), ("both_ways", false, true)]
        {
            for chunk in std::iter::once(bytes).chain((bytes > CHUNK).then_some(CHUNK)) {
                // Pageable copies make the host wait: neither chunks nor directions run side by side.
                if !pinned && (both || chunk < bytes) {
                    continue;
                }
                let sample = copies.host(&HostCopy { pinned, to_host, both, bytes, chunk }, effort)?;
                let streams = if both { 2 } else { 1 };
                outcome.rows.push(row(way, memory, (bytes, chunk, streams), &sample));
            }
        }
    }
    if copies.gpus() < 2 {
        outcome.skip("copies between GPUs: there is one GPU".to_owned());
        return Ok(());
    }
    match copies.peer(bytes, effort) {
        Ok(sample) => outcome.rows.push(row("peer", "device", (bytes, bytes, 1), &sample)),
        Err(ExecError::Missing { what, .. }) => outcome.skip(format!("copies between GPUs: {what}")),
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Reads and writes of the file's first bytes.
fn files(file: &PatternFile, bytes: u64, effort: &Effort, outcome: &mut TransferOutcome) {
    for access in Access::ALL {
        let way = if access == Access::Write { "file_write" } else { "file_read" };
        for threads in THREADS {
            if threads > 1 && bytes < CHUNK * u64::from(threads) {
                continue;
            }
            match file.time(&FileCase { access, bytes, chunk: CHUNK, threads }, effort) {
                Ok(sample) => outcome.rows.push(row(way, access.name(), (bytes, CHUNK, threads), &sample)),
                Err(error) => outcome.skip(format!("{way} {}: {error}", access.name())),
            }
        }
    }
}

/// The file's first bytes to the GPU, read and copied at once.
fn file_to_gpu(
    copies: &Copies,
    file: &PatternFile,
    bytes: u64,
    effort: &Effort,
    outcome: &mut TransferOutcome,
) -> Result<(), ExecError> {
    for (memory, direct) in [("direct", true), ("buffered", false)] {
        if direct && file.open(true).is_err() {
            outcome.skip("file_to_device direct: the file system has no direct access".to_owned());
            continue;
        }
        match copies.file(file, direct, (bytes, CHUNK), effort) {
            Ok(sample) => outcome.rows.push(row("file_to_device", memory, (bytes, CHUNK, 1), &sample)),
            // Not every driver lets drives write to pinned memory.
            Err(ExecError::Library { call: FILE, message }) => {
                outcome.skip(format!("file_to_device {memory}: {message}"));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl TransferOutcome {
    /// Constants that follow: rates of the largest rows, latencies of the smallest.
    pub fn constants(&self) -> Vec<(Constant, Parameter)> {
        let of = |way: &'static str, memory: &'static str| {
            self.rows.iter().filter(move |row| row.way == way && row.memory == memory)
        };
        let best = |way: &'static str, memory: &'static str, parallel: Option<u32>| {
            let rows = of(way, memory).filter(|row| parallel.is_none_or(|count| row.parallel == count));
            rows.max_by(|a, b| a.gb_per_s().total_cmp(&b.gb_per_s()))
        };
        let rate = |row: &Copied| {
            let [middle, least, most] = row.us.map(|us| row.bytes as f64 / us * 1e-3);
            (middle, [most, least], format!("{} {} of {} bytes", row.way, row.memory, row.bytes))
        };
        let mut found = Vec::new();
        let mut add = |constant, (value, interval, source): (f64, [f64; 2], String)| {
            let [low, high] = interval;
            let interval = Some([low.min(value), high.max(value)]);
            found.push((constant, Parameter { value, origin: OriginKind::Measured, source, interval }));
        };
        if let Some(row) = best("file_read", "direct", None) {
            add(Constant::DriveRate, rate(row));
        }
        if let Some(row) = best("file_write", "direct_write", None) {
            add(Constant::DriveWrite, rate(row));
        }
        if let Some(row) = best("file_read", "cached", Some(1)) {
            add(Constant::FileThread, rate(row));
        }
        if let Some(row) = of("file_read", "direct").filter(|row| row.parallel == 1).min_by_key(|row| row.bytes) {
            let [middle, least, most] = row.us;
            add(Constant::DriveLatency, (middle, [least, most], format!("a direct read of {} bytes", row.bytes)));
        }
        if let Some(row) = of("peer", "device").min_by_key(|row| row.bytes) {
            let [middle, least, most] = row.us;
            add(
                Constant::CopyEngineStart,
                (middle, [least, most], format!("a copy between GPUs of {} bytes", row.bytes)),
            );
        }
        found
    }

    /// These constants as a profile that layers over another; nothing where too little was measured.
    pub fn profile(&self) -> Option<String> {
        layer_text(("bench --backend transfer", "transfer"), &format!("{}, {}", self.on, date()), &self.constants())
    }
}

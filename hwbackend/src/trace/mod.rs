//! What a training step did, from files that PyTorch writes: traces of its profiler (Kineto, the format of Chrome's
//! tracing) and dumps of its flight recorder in JSON.
//!
//! [`read_paths`] is the way in. A file is read as a stream, compressed by gzip or not: what is kept of it are its kernels,
//! copies, launches and calls, and none of it without a bound. A file that is neither is an error that says why.

mod call;
mod error;
mod head;
mod kineto;
mod loose;
mod recorder;
mod stream;

use std::fs;
use std::path::{Path, PathBuf};

pub use call::{Call, Group, Split, framework_collective};
pub use error::TraceError;
pub use head::{BYTES_MAX, EVENTS_MAX, FILES_MAX};
pub use kineto::{Activity, Kernels};
pub use recorder::{Entry, State};
pub use stream::Recorded;

/// One file: what one rank did.
#[derive(Clone, PartialEq, Debug)]
pub struct Trace {
    /// The file.
    pub path: PathBuf,
    /// FNV-1a of its first 64 KiB and its length: 16 hex digits.
    pub hash: String,
    /// The rank, by the file's own word, else by its name (`rank3`, `trace_3.json`); none where neither says.
    pub rank: Option<u32>,
    /// Ranks of the job, by the file's own word.
    pub world: Option<u32>,
    /// NCCL version, such as `2.28.9`.
    pub nccl: Option<String>,
    /// The GPU as its driver names it.
    pub gpu: Option<String>,
    /// Distinct calls: activities and entries have indices into them.
    pub calls: Vec<Call>,
    /// What was recorded.
    pub recorded: Recorded,
    /// What could not be used, and why.
    pub notes: Vec<String>,
}

/// Reads files, and those in folders that end in `.json` or `.json.gz`; `told` is how many are read, and of how many.
///
/// # Errors
/// A file that is no trace, or one larger than is read: what, where and the way out.
pub fn read_paths(paths: &[PathBuf], told: &dyn Fn(usize, usize)) -> Result<Vec<Trace>, TraceError> {
    let mut files = Vec::new();
    for path in paths {
        let metadata = fs::metadata(path).map_err(|source| TraceError::File { path: path.clone(), source })?;
        if metadata.is_dir() {
            let before = files.len();
            list(path, &mut files)?;
            if files.len() == before {
                return Err(TraceError::EmptyFolder { path: path.clone() });
            }
        } else {
            files.push(path.clone());
        }
    }
    if files.len() > FILES_MAX {
        return Err(TraceError::TooManyFiles { files: files.len() });
    }
    let all = files.len();
    (1..).zip(&files).map(|(done, path)| read(path).inspect(|_| told(done, all))).collect()
}

/// The traces in a folder, by name.
fn list(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), TraceError> {
    let failed = |source| TraceError::File { path: folder.to_owned(), source };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        if path.is_file() && (name.ends_with(".json") || name.ends_with(".json.gz")) {
            found.push(path);
        }
    }
    found.sort();
    files.extend(found);
    Ok(())
}

/// Reads one file.
///
/// # Errors
/// As of [`read_paths`].
pub fn read(path: &Path) -> Result<Trace, TraceError> {
    let (reader, hash) = stream::open(path)?;
    let (head, recorded) = stream::parse(reader).map_err(|source| TraceError::of(path, &source))?;
    let recorded = recorded.ok_or_else(|| TraceError::NeitherKind { path: path.to_owned() })?;
    Ok(Trace {
        path: path.to_owned(),
        hash,
        rank: head.rank.or_else(|| rank_of_name(path)),
        world: head.world,
        nccl: head.nccl,
        gpu: head.gpu,
        calls: head.calls,
        recorded,
        notes: head.notes,
    })
}

/// The rank that a name says: the number behind `rank`, else the last one of the stem. Names that PyTorch makes by itself,
/// `host_PID.TIME.pt.trace.json`, say none.
fn rank_of_name(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_string_lossy().to_lowercase();
    let stem = name.strip_suffix(".gz").unwrap_or(&name);
    let stem = stem.strip_suffix(".json").unwrap_or(stem);
    let numbers = |text: &str| -> Vec<u32> {
        text.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
    };
    match stem.rsplit_once("rank") {
        Some((_, behind)) => numbers(behind).first().copied(),
        None if stem.ends_with(".pt.trace") => None,
        None => numbers(stem).last().copied(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_ranks() {
        for (name, rank) in [
            ("a/trace_3.json.gz", Some(3)),
            ("rank12_step5.json", Some(12)),
            ("nccl_trace_rank_7.json", Some(7)),
            ("host1_700.1732.pt.trace.json", None),
            ("trace.json", None),
        ] {
            assert_eq!(rank_of_name(Path::new(name)), rank, "{name}");
        }
    }
}

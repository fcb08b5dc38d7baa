//! Why a trace cannot be read.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::head::{BYTES_MAX, FILES_MAX};

/// What a file is in place of JSON, when its first byte says so.
pub(super) const PICKLE: &str = "a Python pickle";

/// Why a trace cannot be read: what, where and the way out.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The system refuses.
    #[error("cannot read `{path}`: {source}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A folder without traces.
    #[error("`{path}` has no file that ends in .json or .json.gz: name the traces, one for each rank", path = path.display())]
    EmptyFolder {
        /// The folder.
        path: PathBuf,
    },
    /// More files than are read.
    #[error("{files} files: at most {FILES_MAX} are read; take some of the ranks")]
    TooManyFiles {
        /// Files named.
        files: usize,
    },
    /// A flight recorder's dump as PyTorch writes it by itself.
    #[error(
        "`{path}` is {PICKLE}, as PyTorch's flight recorder writes it. Turn it into JSON where you trust the file: \
         python3 -c 'import json,pickle,sys; json.dump(pickle.load(open(sys.argv[1],\"rb\")),open(sys.argv[2],\"w\"))' \
         {path} OUT.json",
        path = path.display()
    )]
    Pickle {
        /// The file.
        path: PathBuf,
    },
    /// Neither JSON nor another text that is read.
    #[error(
        "`{path}` begins as no trace does. Traces of PyTorch's profiler and dumps of its flight recorder are JSON. A GOAL \
         schedule begins with `num_ranks`, a SimAI workload with its policy, such as HYBRID_TRANSFORMER. Chakra's traces end \
         in .et",
        path = path.display()
    )]
    NoTrace {
        /// The file.
        path: PathBuf,
    },
    /// Wrong JSON, or cut.
    #[error(
        "`{path}`: {reason}. A trace is what `prof.export_chrome_trace()` writes (.json or .json.gz), or a dump of the \
         flight recorder as JSON; a file that ends early was cut while it was written or copied",
        path = path.display()
    )]
    Broken {
        /// The file.
        path: PathBuf,
        /// What is wrong, with line and column.
        reason: String,
    },
    /// Longer than is read.
    #[error(
        "`{path}` has more than {} GiB of text: record fewer steps, or no stacks and shapes (with_stack=False, \
         record_shapes=False)",
        BYTES_MAX >> 30,
        path = path.display()
    )]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// JSON, but neither kind.
    #[error(
        "`{path}` is JSON without `traceEvents` (a PyTorch profiler's trace) and without `entries` (a flight recorder's \
         dump)",
        path = path.display()
    )]
    NeitherKind {
        /// The file.
        path: PathBuf,
    },
}

impl TraceError {
    /// What a parser says of a file.
    pub(super) fn of(path: &Path, error: &serde_json::Error) -> Self {
        let path = path.to_owned();
        if error.io_error_kind() == Some(io::ErrorKind::FileTooLarge) {
            return Self::TooLong { path };
        }
        let text: String = error.to_string().chars().take(300).collect();
        Self::Broken { path, reason: text }
    }
}

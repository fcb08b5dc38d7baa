//! What can be wrong with measurement files, in words a user can act on.

use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why measurements could not be read. The text says what, where and a way out.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum ReadError {
    /// Nothing was named.
    #[error("no measurements named\nhint: give a file or a folder of nccl-tests logs, JSON or CSV")]
    NoPaths,
    /// A path that is not there.
    #[error("`{path}` does not exist\nhint: check the path, or the folder the command runs in")]
    Missing {
        /// The path, as named.
        path: PathBuf,
    },
    /// The system refused.
    #[error("`{path}` cannot be read: {message}")]
    Unreadable {
        /// The path, as named.
        path: PathBuf,
        /// What the system said.
        message: String,
    },
    /// A pipe, socket or device.
    #[error("`{path}` is not a regular file or folder\nhint: write it to a file first")]
    NotAFile {
        /// The path, as named.
        path: PathBuf,
    },
    /// A folder with no file in it.
    #[error("folder `{path}` is empty; expected *.log, *.txt, *.json or *.csv")]
    EmptyFolder {
        /// The folder.
        path: PathBuf,
    },
    /// Files, but no measurement in any of them.
    #[error(
        "no measurements in `{path}`: none of its {} files could be used{}\nhint: expected nccl-tests output (text or -J), or CSV with collective, ranks, size_bytes and time_us",
        reasons.len(), listed(reasons)
    )]
    NothingRead {
        /// The folder.
        path: PathBuf,
        /// Each file and why it gave nothing.
        reasons: Vec<(PathBuf, String)>,
    },
    /// A file of no bytes.
    #[error("`{path}` is empty\nhint: the benchmark may have failed before its first row")]
    EmptyFile {
        /// The file.
        path: PathBuf,
    },
    /// Not text.
    #[error(
        "`{path}` is binary (a zero byte at offset {offset}); expected text\nhint: decompress it, or save it as UTF-8"
    )]
    Binary {
        /// The file.
        path: PathBuf,
        /// Where the first zero byte is.
        offset: usize,
    },
    /// Beyond what is read.
    #[error("`{path}` has {bytes} bytes; at most {limit} are read\nhint: split it by run")]
    FileTooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The most that is read.
        limit: u64,
    },
    /// A folder too large.
    #[error("`{path}` holds more than {limit} files\nhint: name the folder of one campaign")]
    TooManyFiles {
        /// The folder.
        path: PathBuf,
        /// The most that is looked at.
        limit: usize,
    },
    /// More rows than are kept.
    #[error("more than {limit} measurements; the limit was reached in `{path}`\nhint: read fewer files at a time")]
    TooManyRows {
        /// The file where it happened.
        path: PathBuf,
        /// The most that is kept.
        limit: usize,
    },
    /// Neither form is recognised, or something that is needed is nowhere said.
    #[error("`{path}` holds no measurements that can be used: {reason}")]
    NotUnderstood {
        /// The file.
        path: PathBuf,
        /// What is lacking.
        reason: String,
    },
    /// CSV without what is needed.
    #[error("CSV without {}\n  --> {}:{line}\n  expected a header with collective, ranks, size_bytes and one of time_us, algbw_gbps, busbw_gbps; it has: {found}{}", missing.join(" and "), path.display(), hint_line(hint.as_deref()))]
    MissingColumn {
        /// The file.
        path: PathBuf,
        /// Line of the header.
        line: u64,
        /// What is missing.
        missing: Vec<String>,
        /// The columns it has.
        found: String,
        /// A column that may have been meant.
        hint: Option<String>,
    },
    /// A column twice.
    #[error("column `{column}` appears twice\n  --> {}:{line}\nhint: remove or rename one of them", path.display())]
    DuplicateColumn {
        /// The file.
        path: PathBuf,
        /// Line of the header.
        line: u64,
        /// The column.
        column: String,
    },
    /// A row that does not fit the header.
    #[error("row {message}\n  --> {}:{line}\nhint: quote cells that contain the separator", path.display())]
    BadRow {
        /// The file.
        path: PathBuf,
        /// The line.
        line: u64,
        /// What is wrong.
        message: String,
    },
    /// A value that cannot be meant.
    #[error("`{given}` in `{column}`: {problem}\n  --> {}:{line}\n  expected {expected}", path.display())]
    BadValue {
        /// The file.
        path: PathBuf,
        /// The line, from 1; for JSON that of the result.
        line: u64,
        /// Column or key.
        column: String,
        /// What is there.
        given: String,
        /// What is wrong with it.
        problem: String,
        /// What would be right.
        expected: &'static str,
    },
    /// Ranks that are not hosts times GPUs.
    #[error("{ranks} ranks are not {nodes} nodes times {gpus_per_node} GPUs\n  --> {}:{line}\nhint: leave out `nodes` or `gpus_per_node` where hosts differ", path.display())]
    RanksMismatch {
        /// The file.
        path: PathBuf,
        /// The line.
        line: u64,
        /// As given.
        ranks: u32,
        /// As given.
        nodes: u32,
        /// As given.
        gpus_per_node: u32,
    },
    /// Our own forecast, offered as a measurement.
    #[error("a prediction, not a measurement\n  --> {}:{line}\nhint: `validate`, `calibrate` and `compare` read it with --allow-predicted", path.display())]
    Predicted {
        /// The file.
        path: PathBuf,
        /// The line that says so.
        line: u64,
    },
    /// A file that is not the JSON or TOML it should be.
    #[error("not valid {format}: {message}\n  --> {}:{line}:{column}\nhint: a run that was killed leaves its file cut off", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// `JSON` or `TOML`.
        format: &'static str,
        /// The line, from 1.
        line: u64,
        /// The column, from 1.
        column: u64,
        /// What the parser said.
        message: String,
    },
}

impl ReadError {
    /// The file or folder it is about.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::NoPaths => None,
            Self::Missing { path }
            | Self::Unreadable { path, .. }
            | Self::NotAFile { path }
            | Self::EmptyFolder { path }
            | Self::NothingRead { path, .. }
            | Self::EmptyFile { path }
            | Self::Binary { path, .. }
            | Self::FileTooLarge { path, .. }
            | Self::TooManyFiles { path, .. }
            | Self::TooManyRows { path, .. }
            | Self::NotUnderstood { path, .. }
            | Self::MissingColumn { path, .. }
            | Self::DuplicateColumn { path, .. }
            | Self::BadRow { path, .. }
            | Self::BadValue { path, .. }
            | Self::RanksMismatch { path, .. }
            | Self::Predicted { path, .. }
            | Self::Syntax { path, .. } => Some(path),
        }
    }
}

fn hint_line(hint: Option<&str>) -> String {
    hint.map(|hint| format!("\nhint: {hint}")).unwrap_or_default()
}

fn listed(reasons: &[(PathBuf, String)]) -> String {
    const SHOWN: usize = 5;
    let mut text = String::new();
    for (path, reason) in reasons.iter().take(SHOWN) {
        let first = reason.lines().next().unwrap_or_default();
        text.push_str(&format!("\n  {}: {first}", path.display()));
    }
    if reasons.len() > SHOWN {
        text.push_str(&format!("\n  and {} more", reasons.len() - SHOWN));
    }
    text
}

//! How tables of layers and models are told apart, and where tables are found.

use std::path::{Path, PathBuf};

use crate::error::Error;

/// Columns of a table of layers: one rank's part of a Llama layer; `heads`, `kv_heads` and `ffn` are of that rank.
pub(super) const LAYERS: &[&str] = &[
    "tp",
    "hidden",
    "heads",
    "kv_heads",
    "ffn",
    "seq",
    "micro_batch",
    "compiled",
    "fwd_us",
    "fwd_bwd_us",
    "saved_bytes",
];
/// Columns of a table of models: whole steps in BF16, with AdamW states in BF16.
pub(super) const MODELS: &[&str] = &[
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "ffn",
    "vocab",
    "seq",
    "micro_batch",
    "accumulate",
    "recompute",
    "step_us",
    "peak_bytes",
    "static_bytes",
];

/// Headers of these tables, for messages.
pub(super) fn headers() -> [String; 2] {
    [LAYERS.join(","), MODELS.join(",")]
}

/// Tables in a folder, by their names.
///
/// # Errors
/// A folder that cannot be read.
pub(super) fn tables_in(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |source| Error::File { what: "read the folder", path: folder.to_owned(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("csv")) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

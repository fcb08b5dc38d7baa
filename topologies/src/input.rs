//! Opens the files that users name, so that none hangs the program or fills its memory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Error, ErrorKind, Read as _, Result};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Longest file that is read, in bytes: 64 MiB, far above any real one.
pub const MAX_FILE_BYTES: u64 = 64 << 20;

/// What was read from pipes: they give it once, and several parts of a program may ask for it.
static PIPES: Mutex<BTreeMap<PathBuf, Vec<u8>>> = Mutex::new(BTreeMap::new());

/// Reads a whole file: a regular one, or one that the shell has opened (`/dev/stdin`, `<(command)`). A
/// device may have no end, and a pipe nobody who writes to it.
///
/// # Errors
/// As the system's; other kinds of files; more than [`MAX_FILE_BYTES`].
pub fn read(path: &Path) -> Result<Vec<u8>> {
    let kind = fs::metadata(path)?.file_type();
    if kind.is_dir() {
        return Err(Error::new(ErrorKind::IsADirectory, "it is a folder"));
    }
    if kind.is_file() {
        return bounded(path);
    }
    if !opened_by_the_shell(path) {
        return Err(Error::other("it is a device or a pipe; give a regular file, /dev/stdin or <(command)"));
    }
    let mut pipes = PIPES.lock().unwrap_or_else(PoisonError::into_inner);
    if !pipes.contains_key(path) {
        pipes.insert(path.to_owned(), bounded(path)?);
    }
    Ok(pipes[path].clone())
}

/// Opens a regular file of any length, to be read as a stream. A pipe would keep whoever opens it until somebody writes.
///
/// # Errors
/// As the system's; other kinds of files.
pub fn open(path: &Path) -> Result<File> {
    if !fs::metadata(path)?.is_file() {
        return Err(Error::other("it is a folder, a device or a pipe; give a regular file"));
    }
    File::open(path)
}

fn bounded(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(Error::new(ErrorKind::FileTooLarge, "it has more than 64 MiB, the most that is read"));
    }
    Ok(bytes)
}

/// [`read`], as text.
///
/// # Errors
/// As [`read`]; bytes that are not UTF-8.
pub fn read_text(path: &Path) -> Result<String> {
    String::from_utf8(read(path)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::new(ErrorKind::InvalidData, format!("it is not UTF-8 text: byte {at} is not part of a character"))
    })
}

fn opened_by_the_shell(path: &Path) -> bool {
    // `/dev/fd` is a link to `/proc/self/fd`.
    let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
    path == Path::new("/dev/stdin") || folder.is_some_and(|folder| folder.starts_with("/proc"))
}

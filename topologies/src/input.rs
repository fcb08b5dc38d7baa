//! Opens the files that users name, so that none hangs the program or fills its memory.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Error, ErrorKind, Read as _, Result};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Whether a name is that of a topology file rather than of a built-in.
pub(crate) fn is_topology_file(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|ending| ending.eq_ignore_ascii_case("toml"))
}

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

/// [`read`], as text, without the byte-order mark that spreadsheets begin files with.
///
/// # Errors
/// As [`read`]; bytes that are neither UTF-8 nor UTF-16 with a byte-order mark.
pub fn read_text(path: &Path) -> Result<String> {
    match decoded(&read(path)?) {
        Ok(text) => Ok(text.into_owned()),
        Err(at) => {
            let why = format!("it is not UTF-8 text: byte {at} is not part of a character");
            Err(Error::new(ErrorKind::InvalidData, why))
        }
    }
}

/// The text in the bytes of a file: of UTF-8, and of UTF-16, which Windows' shells write, where a byte-order mark says so.
/// The mark is left out. What is no character in UTF-16 is replaced.
///
/// # Errors
/// The first byte that is not UTF-8.
pub fn decoded(bytes: &[u8]) -> std::result::Result<Cow<'_, str>, usize> {
    let (unit, rest): (fn([u8; 2]) -> u16, _) = match bytes {
        [0xff, 0xfe, rest @ ..] => (u16::from_le_bytes, rest),
        [0xfe, 0xff, rest @ ..] => (u16::from_be_bytes, rest),
        _ => {
            let plain = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
            let mark = bytes.len() - plain.len();
            return std::str::from_utf8(plain).map(Cow::Borrowed).map_err(|error| mark + error.valid_up_to());
        }
    };
    let units = rest.as_chunks().0.iter().map(|&pair| unit(pair));
    let letters = char::decode_utf16(units).map(|one| one.unwrap_or(char::REPLACEMENT_CHARACTER));
    Ok(Cow::Owned(letters.collect()))
}

/// [`decoded`], with what is no character replaced in UTF-8 too.
pub fn lossy(bytes: &[u8]) -> Cow<'_, str> {
    decoded(bytes).unwrap_or_else(|_| String::from_utf8_lossy(bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)))
}

fn opened_by_the_shell(path: &Path) -> bool {
    // `/dev/fd` is a link to `/proc/self/fd`.
    let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
    path == Path::new("/dev/stdin") || folder.is_some_and(|folder| folder.starts_with("/proc"))
}

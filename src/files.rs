//! Files that users name: read within bounds, written whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use collcast_reports::model::Input;
use collcast_sim::hash::fnv1a;
use collcast_topologies::input;

use crate::error::Error;

/// Most links from one name to the next that are followed, as Linux does.
const LINKS_MAX: usize = 40;
/// What the names of files end in that are not yet whole.
const PART: &str = ".part";

/// Writes to a file. A regular file is replaced by a whole one, or stays as it was; what is none (a device, a pipe) is
/// written to. Links are followed.
///
/// # Errors
/// What the system says, with the name of the file.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let (target, open) = followed(path);
    let written = match fs::metadata(&target) {
        Ok(old) if open || !(old.is_file() || old.is_dir()) => {
            File::options().append(true).open(&target).and_then(|mut there| there.write_all(bytes))
        }
        Ok(old) => replace(&target, bytes, Some(old.permissions())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => replace(&target, bytes, None),
        Err(error) => Err(error),
    };
    written.map_err(|source| failed(path, source))
}

/// Makes a folder, and those that it lies in, where it is not there yet.
///
/// # Errors
/// What the system says, with the name of the folder.
pub fn make_folder(path: &Path) -> Result<(), Error> {
    fs::create_dir_all(path).map_err(|source| Error::File { what: "make the folder", path: path.to_owned(), source })
}

/// Whether a file of that name is one that others can lie beside: regular, or not there yet.
pub fn is_regular(path: &Path) -> bool {
    let (target, open) = followed(path);
    !open && fs::metadata(target).map_or(true, |there| there.is_file())
}

/// The text of a file that a user named; `what` for messages, such as `read the profile`.
///
/// # Errors
/// What the system says, or that the file is larger than any that is read.
pub fn read_text(what: &'static str, path: impl AsRef<Path>) -> Result<String, Error> {
    let path = path.as_ref();
    input::read_text(path).map_err(|source| Error::File { what, path: path.to_owned(), source })
}

/// The bytes of a file that a user named.
///
/// # Errors
/// As of [`read_text`].
pub fn read_bytes(what: &'static str, path: &Path) -> Result<Vec<u8>, Error> {
    input::read(path).map_err(|source| Error::File { what, path: path.to_owned(), source })
}

/// An error of writing to `path`.
pub fn failed(path: &Path, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::BrokenPipe => Error::BrokenPipe,
        _ => Error::File { what: "write", path: path.to_owned(), source },
    }
}

/// Where the links of a name lead, also when nothing is there yet; and whether that is a file that this
/// program has open (`/dev/stdout`, `/dev/fd/63`), whose name may be none.
fn followed(path: &Path) -> (PathBuf, bool) {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        if path.parent().and_then(|folder| folder.canonicalize().ok()).is_some_and(|f| f.starts_with("/proc")) {
            return (path, true);
        }
        match fs::read_link(&path) {
            Ok(to) => path = path.with_file_name(to),
            Err(_) => break,
        }
    }
    (path, false)
}

/// Tries of a write whose temporary file another writer took for one left over, between its making and its lock.
const TRIES: usize = 5;

/// A temporary file beside the target takes its place once all of it is on the disk.
fn replace(target: &Path, bytes: &[u8], permissions: Option<fs::Permissions>) -> io::Result<()> {
    for _ in 1..TRIES {
        match replace_once(target, bytes, permissions.clone()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            done => return done,
        }
    }
    replace_once(target, bytes, permissions)
}

fn replace_once(target: &Path, bytes: &[u8], permissions: Option<fs::Permissions>) -> io::Result<()> {
    let folder = target.parent().filter(|folder| *folder != Path::new("")).unwrap_or_else(|| Path::new("."));
    let name = target.file_name().ok_or(io::ErrorKind::IsADirectory)?.to_string_lossy();
    let prefix = format!(".{}.", name.chars().take(60).collect::<String>());
    sweep(folder, &prefix);
    let mut part = (tempfile::Builder::new().prefix(&prefix).suffix(PART))
        .make_in(folder, |path| File::options().write(true).create_new(true).open(path))?;
    // Says to others that it is not left over; where a disk has no locks they leave it alone as well.
    let _ = part.as_file().try_lock();
    if let Some(permissions) = permissions {
        part.as_file().set_permissions(permissions)?;
    }
    part.write_all(bytes)?;
    part.as_file().sync_all()?;
    part.persist(target)?;
    // The name is safe too once the folder is on the disk, which not every disk can be asked for.
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
    Ok(())
}

/// Removes what writers of the same file left that were killed: nobody holds its lock.
fn sweep(folder: &Path, prefix: &str) {
    let left = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with(prefix) && name.ends_with(PART) && entry.file_type().is_ok_and(|kind| kind.is_file())
    };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten().filter(left) {
        let path = entry.path();
        if File::open(&path).is_ok_and(|file| file.try_lock().is_ok()) {
            let _ = fs::remove_file(path);
        }
    }
}

/// A file that an answer rests on, and as what.
///
/// # Errors
/// A file that cannot be read.
pub(crate) fn input_of(role: &str, path: &Path) -> Result<Input, Error> {
    let bytes = read_bytes("read", path)?;
    Ok(Input { name: role.to_owned(), path: Some(path.display().to_string()), hash: content_hash(&bytes) })
}

/// A hash of content that is the same on every machine: FNV-1a of 64 bits, with its name in front.
pub fn content_hash(bytes: &[u8]) -> String {
    named_hash(&format!("{:016x}", fnv1a(bytes)))
}

/// Such a hash of which readers of measurements say the number alone.
pub(crate) fn named_hash(number: &str) -> String {
    format!("fnv1a64:{number}")
}

/// A word as a shell reads it back.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-,@:=+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

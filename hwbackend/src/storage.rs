//! Times reads and writes of files: by the page cache and around it (`O_DIRECT`), by one thread or several.
//!
//! The file has a pattern that says of every byte where it is; what is read is compared with it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rustix::fs::{Advice, OFlags, fadvise};

use crate::exec::{Effort, Sample};

/// Where direct reads begin and end: a page, which is a multiple of every drive's sectors.
pub const ALIGN: u64 = 4096;

/// How a file is read or written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// Around the page cache, from the drive.
    Direct,
    /// Through the page cache, from the drive.
    Buffered,
    /// From the page cache, which holds all of it.
    Cached,
    /// Written around the page cache, and flushed.
    Write,
}

impl Access {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Direct, Self::Buffered, Self::Cached, Self::Write];

    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Buffered => "buffered",
            Self::Cached => "cached",
            Self::Write => "direct_write",
        }
    }
}

/// One way to read a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileCase {
    /// How.
    pub access: Access,
    /// Bytes, from the start of the file.
    pub bytes: u64,
    /// Bytes of a request; a multiple of [`ALIGN`].
    pub chunk: u64,
    /// Threads that take chunks in turn.
    pub threads: u32,
}

/// A file of a pattern, removed in the end.
#[derive(Debug)]
pub struct PatternFile {
    path: PathBuf,
    bytes: u64,
}

/// The pattern's word that begins at a byte, a multiple of 8.
fn word(at: u64) -> [u8; 8] {
    /// Of Fibonacci hashing: 2^64 over the golden ratio.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    (at / 8 + 1).wrapping_mul(SPREAD).to_le_bytes()
}

/// Writes the pattern from a byte on, a multiple of 8.
pub fn fill(buffer: &mut [u8], from: u64) {
    for (at, part) in (from..).step_by(8).zip(buffer.chunks_mut(8)) {
        part.copy_from_slice(&word(at)[..part.len()]);
    }
}

/// How many bytes are as the pattern has them from a byte on, a multiple of 8, before the first that is not.
pub fn right(buffer: &[u8], from: u64) -> u64 {
    let mut good = 0;
    for (at, part) in (from..).step_by(8).zip(buffer.chunks(8)) {
        if part != &word(at)[..part.len()] {
            break;
        }
        good += part.len() as u64;
    }
    good
}

/// A buffer that begins at a page.
struct Aligned {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl Aligned {
    fn new(bytes: u64) -> Self {
        let memory = vec![0; (bytes + ALIGN) as usize];
        let start = memory.as_ptr().align_offset(ALIGN as usize);
        Self { memory, start, bytes: bytes as usize }
    }

    fn all(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.bytes]
    }
}

impl PatternFile {
    /// Makes one in a folder; `bytes` are rounded up to pages.
    ///
    /// # Errors
    /// What the system says: no such folder, no room.
    pub fn new(folder: &Path, bytes: u64) -> io::Result<Self> {
        const PIECE: u64 = 1 << 22;
        let path = folder.join(format!(".collcast-bench-{}", std::process::id()));
        let file = Self { path, bytes: bytes.next_multiple_of(ALIGN) };
        let out = OpenOptions::new().write(true).create_new(true).open(&file.path)?;
        let mut buffer = Aligned::new(PIECE);
        let mut at = 0;
        while at < file.bytes {
            let part = &mut buffer.all()[..PIECE.min(file.bytes - at) as usize];
            fill(part, at);
            out.write_all_at(part, at)?;
            at += part.len() as u64;
        }
        out.sync_all()?;
        Ok(file)
    }

    /// Opens it to read, around the page cache or through it.
    ///
    /// # Errors
    /// What the system says; a file system without direct access refuses it.
    pub fn open(&self, direct: bool) -> io::Result<File> {
        let flags = if direct { OFlags::DIRECT.bits() } else { 0 };
        OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(&self.path)
    }

    /// Lets the page cache forget it.
    ///
    /// # Errors
    /// What the system says.
    pub fn forget(&self) -> io::Result<()> {
        let file = File::open(&self.path)?;
        file.sync_all()?;
        Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
    }

    /// Times one way to read or write it; the first time is not counted, and each byte of it is compared.
    ///
    /// # Errors
    /// What the system says; bytes that are not those of the pattern.
    pub fn time(&self, case: &FileCase, effort: &Effort) -> io::Result<Sample> {
        let bytes = case.bytes.min(self.bytes).next_multiple_of(ALIGN);
        let case = FileCase { bytes, chunk: case.chunk.min(bytes).next_multiple_of(ALIGN), ..*case };
        let write = case.access == Access::Write;
        let file = if write {
            OpenOptions::new().write(true).custom_flags(OFlags::DIRECT.bits().cast_signed()).open(&self.path)?
        } else {
            self.open(case.access == Access::Direct)?
        };
        let mut checked = self.pass(&file, &case, true)?;
        if write {
            self.forget()?;
            let read = FileCase { access: Access::Buffered, ..case };
            checked = self.pass(&self.open(false)?, &read, true)?;
        }
        let (mut times_us, start) = (Vec::new(), Instant::now());
        while times_us.len() < effort.batches as usize && (times_us.len() < 3 || start.elapsed() < effort.budget) {
            if case.access == Access::Buffered {
                self.forget()?;
            }
            let from = Instant::now();
            self.pass(&file, &case, false)?;
            times_us.push(from.elapsed().as_secs_f64() * 1e6);
        }
        Ok(Sample { times_us, checked, ..Sample::default() })
    }

    /// All chunks once; gives the bytes that were compared.
    fn pass(&self, file: &File, case: &FileCase, compare: bool) -> io::Result<u64> {
        let next = AtomicU64::new(0);
        let work = || -> io::Result<u64> {
            let (mut buffer, mut compared) = (Aligned::new(case.chunk), 0);
            loop {
                let at = next.fetch_add(case.chunk, Ordering::Relaxed);
                if at >= case.bytes {
                    return Ok(compared);
                }
                let part = &mut buffer.all()[..case.chunk.min(case.bytes - at) as usize];
                if case.access == Access::Write {
                    fill(part, at);
                    file.write_all_at(part, at)?;
                    continue;
                }
                file.read_exact_at(part, at)?;
                if compare {
                    let good = right(part, at);
                    if good < part.len() as u64 {
                        return Err(io::Error::other(format!("byte {} of the file is wrong", at + good)));
                    }
                    compared += good;
                }
            }
        };
        let parts = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..case.threads.max(1)).map(|_| scope.spawn(work)).collect();
            let ended = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
            ended.map(|end| end.unwrap_or_else(|_| Err(io::Error::other("a thread ended early")))).collect::<Vec<_>>()
        });
        let compared = parts.into_iter().sum::<io::Result<u64>>()?;
        if case.access == Access::Write {
            file.sync_data()?;
        }
        Ok(compared)
    }
}

impl Drop for PatternFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Goal: what is read is compared byte by byte, each access covers all bytes, and the file is gone in the end.
    #[test]
    #[allow(clippy::unwrap_used)]
    fn files_are_read_whole_and_compared() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = PatternFile::new(folder.path(), 300_000).unwrap();
        let effort = Effort { batches: 3, budget: Duration::ZERO, ..Effort::default() };
        for access in Access::ALL {
            let case = FileCase { access, bytes: 300_000, chunk: 65_536, threads: 3 };
            match file.time(&case, &effort) {
                Ok(sample) => assert_eq!((sample.checked, sample.times_us.len()), (303_104, 3), "{access:?}"),
                // A file system without direct access.
                Err(error) => assert!(access != Access::Buffered && access != Access::Cached, "{access:?}: {error}"),
            }
        }
        let bent = OpenOptions::new().write(true).open(&file.path).unwrap();
        bent.write_all_at(&[0xaa; 2], 70_001).unwrap();
        let case = FileCase { access: Access::Cached, bytes: 300_000, chunk: 65_536, threads: 2 };
        let error = file.time(&case, &effort).unwrap_err().to_string();
        assert!(error.contains("of the file is wrong"), "{error}");
        let path = file.path.clone();
        drop(file);
        assert!(!path.exists());
    }
}

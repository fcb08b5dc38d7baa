//! Times reads and writes of files: by the page cache and around it (`O_DIRECT`), by one thread or several.
//!
//! The file has a pattern that says of every byte where it is; what is read is compared with it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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
    /// Each page is written to, so that none is missing when it is first used; the pattern has no such bytes.
    fn new(bytes: u64) -> Self {
        let memory = vec![u8::MAX; (bytes + ALIGN) as usize];
        let start = memory.as_ptr().align_offset(ALIGN as usize);
        Self { memory, start, bytes: bytes as usize }
    }

    fn all(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.bytes]
    }
}

/// A name that no other file has, also not that of a process with the same number in another container.
fn name() -> String {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!(".collcast-bench-{}-{since}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed))
}

/// What threads do with their chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    /// Reads them.
    Read,
    /// Reads them and compares each byte.
    Compare,
    /// Writes what is in the buffer, which is made before.
    Write,
    /// Writes the pattern.
    Fill,
}

impl PatternFile {
    /// Makes one in a folder; `bytes` are rounded up to pages.
    ///
    /// # Errors
    /// What the system says: no such folder, no room.
    pub fn new(folder: &Path, bytes: u64) -> io::Result<Self> {
        const PIECE: u64 = 1 << 22;
        let path = folder.join(name());
        let out = OpenOptions::new().write(true).create_new(true).open(&path)?;
        // From here on it is ours to remove.
        let file = Self { path, bytes: bytes.next_multiple_of(ALIGN) };
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
        if case.access != Access::Write {
            let file = self.open(case.access == Access::Direct)?;
            let (checked, _) = pass(&file, &case, Work::Compare)?;
            return Ok(Sample {
                times_us: self.times(&file, &case, Work::Read, effort)?,
                checked,
                ..Sample::default()
            });
        }
        let direct = OFlags::DIRECT.bits().cast_signed();
        let file = OpenOptions::new().write(true).custom_flags(direct).open(&self.path)?;
        let timed = pass(&file, &case, Work::Write).and_then(|_| self.times(&file, &case, Work::Write, effort));
        // Whatever happened, the file has its pattern again: others read it.
        pass(&file, &case, Work::Fill)?;
        self.forget()?;
        let (checked, _) = pass(&self.open(false)?, &case, Work::Compare)?;
        Ok(Sample { times_us: timed?, checked, ..Sample::default() })
    }

    /// Microseconds of all chunks, as often as the effort allows.
    fn times(&self, file: &File, case: &FileCase, work: Work, effort: &Effort) -> io::Result<Vec<f64>> {
        let (mut times_us, start) = (Vec::new(), Instant::now());
        while times_us.len() < effort.batches as usize && (times_us.len() < 3 || start.elapsed() < effort.budget) {
            if case.access == Access::Buffered {
                self.forget()?;
            }
            times_us.push(pass(file, case, work)?.1.as_secs_f64() * 1e6);
        }
        Ok(times_us)
    }
}

/// All chunks once: the bytes that were compared, and the time from when all threads have their buffers to the end of the last,
/// which flushes what was written.
fn pass(file: &File, case: &FileCase, work: Work) -> io::Result<(u64, Duration)> {
    let count = case.threads.max(1);
    let (next, left, ready) = (AtomicU64::new(0), AtomicU32::new(count), Barrier::new(count as usize));
    let thread = || -> io::Result<(u64, Instant, Instant)> {
        let mut buffer = Aligned::new(case.chunk);
        if work == Work::Write {
            fill(buffer.all(), 0);
        }
        ready.wait();
        let (begin, mut compared) = (Instant::now(), 0);
        loop {
            let at = next.fetch_add(case.chunk, Ordering::Relaxed);
            if at >= case.bytes {
                break;
            }
            let part = &mut buffer.all()[..case.chunk.min(case.bytes - at) as usize];
            match work {
                Work::Read => file.read_exact_at(part, at)?,
                Work::Compare => {
                    file.read_exact_at(part, at)?;
                    let good = right(part, at);
                    if good < part.len() as u64 {
                        return Err(io::Error::other(format!("byte {} of the file is wrong", at + good)));
                    }
                    compared += good;
                }
                Work::Write => file.write_all_at(part, at)?,
                Work::Fill => {
                    fill(part, at);
                    file.write_all_at(part, at)?;
                }
            }
        }
        if matches!(work, Work::Write | Work::Fill) && left.fetch_sub(1, Ordering::AcqRel) == 1 {
            file.sync_data()?;
        }
        // Before the buffer goes.
        Ok((compared, begin, Instant::now()))
    };
    let ends = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(thread)).collect();
        let ended = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
        ended.map(|end| end.unwrap_or_else(|_| Err(io::Error::other("a thread ended early")))).collect::<Vec<_>>()
    });
    let ends = ends.into_iter().collect::<io::Result<Vec<_>>>()?;
    let (begin, end) = (ends.iter().map(|end| end.1).min(), ends.iter().map(|end| end.2).max());
    let time = end.zip(begin).map_or(Duration::ZERO, |(end, begin)| end - begin);
    Ok((ends.iter().map(|end| end.0).sum(), time))
}

impl Drop for PatternFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
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

    /// Goal: two files of one process are two, also where the second cannot be made, and each goes with its owner.
    #[test]
    fn files_of_others_are_left_alone() -> io::Result<()> {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR"))?;
        let first = PatternFile::new(folder.path(), 4096)?;
        let second = PatternFile::new(folder.path(), 8192)?;
        assert!(first.path != second.path && second.path.exists());
        drop(second);
        assert!(first.path.exists());
        Ok(())
    }
}

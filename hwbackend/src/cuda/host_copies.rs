//! Copies between a GPU and host memory, between two GPUs, and from a file to a GPU: whole or in chunks, one way or both.
//!
//! Copies are issued one after the other by a host thread, and timed by its clock from the first to the end of the last.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use super::driver::{Device, HostBuffer, Memory, Stream, driver_version, open};
use crate::exec::{Effort, ExecError, Sample};
use crate::storage::{PatternFile, fill, right};

/// Copies of a batch: enough that the host's wait for the last does not show.
const BATCH: u32 = 50;
/// Of large ones fewer: a batch has so many bytes at most, beyond one copy.
const BATCH_BYTES: u64 = 8 << 30;
/// Buffers between a file and a GPU: one is filled while the other is copied.
const BUFFERS: usize = 2;

/// What [`ExecError::Library`] calls a read of a file that failed.
pub const FILE: &str = "a read of the file";

/// Copies between a GPU and host memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostCopy {
    /// Whether host memory is pinned.
    pub pinned: bool,
    /// Whether bytes go to host memory.
    pub to_host: bool,
    /// Whether as many go the other way at once, by another stream.
    pub both: bool,
    /// Bytes of one direction.
    pub bytes: u64,
    /// Bytes of one copy; as many as it takes follow each other.
    pub chunk: u64,
}

/// GPUs that copy. It needs the driver and no compiler.
#[derive(Debug)]
pub struct Copies {
    devices: Vec<Arc<Device>>,
}

fn chunks(bytes: u64, chunk: u64) -> impl Iterator<Item = Range<u64>> {
    let chunk = chunk.clamp(1, bytes.max(1));
    (0..bytes.div_ceil(chunk)).map(move |i| i * chunk..((i + 1) * chunk).min(bytes))
}

fn wrong(what: &str, good: u64) -> ExecError {
    ExecError::Library { call: "a copy", message: format!("byte {good} {what} is wrong") }
}

fn of_file(error: &io::Error) -> ExecError {
    ExecError::Library { call: FILE, message: error.to_string() }
}

impl Copies {
    /// Finds driver and GPUs.
    ///
    /// # Errors
    /// What is missing.
    pub fn open() -> Result<Self, ExecError> {
        Ok(Self { devices: open()? })
    }

    /// GPUs that are there.
    pub fn gpus(&self) -> usize {
        self.devices.len()
    }

    /// The first GPU and the driver, in words.
    pub fn name(&self) -> String {
        let gpu = self.devices.first().map_or("no GPU", |device| &device.name);
        format!("{} x {gpu}, CUDA driver {}", self.devices.len(), driver_version())
    }

    fn device(&self, gpu: usize) -> Result<&Arc<Device>, ExecError> {
        let what = || format!("GPU {gpu} is not one of the {} that are there", self.devices.len());
        self.devices.get(gpu).ok_or_else(|| ExecError::Refused { what: what(), hint: "count GPUs from 0" })
    }

    /// Time of one copy between the first GPU and host memory; every byte is compared once.
    ///
    /// # Errors
    /// Too little memory, bytes that differ, or what the driver says.
    pub fn host(&self, copy: &HostCopy, effort: &Effort) -> Result<Sample, ExecError> {
        let device = self.device(0)?;
        let mut there = HostBuffer::new(device, copy.bytes, copy.pinned)?;
        let mut back = HostBuffer::new(device, copy.bytes, copy.pinned)?;
        let (inward, outward) = (Memory::new(device, copy.bytes)?, Memory::new(device, copy.bytes)?);
        // What a run before left there has the same pattern.
        inward.set(0)?;
        let (up, down) = (Stream::new(device)?, Stream::new(device)?);
        fill(there.bytes_mut(), 0);
        // What goes to host memory has the pattern too.
        up.to_device(&outward, &there, 0..copy.bytes)?;
        up.wait(effort.patience + Duration::from_secs(30))?;
        let mut once = || -> Result<(), ExecError> {
            for range in chunks(copy.bytes, copy.chunk) {
                if !copy.to_host || copy.both {
                    up.to_device(&inward, &there, range.clone())?;
                }
                if copy.to_host || copy.both {
                    down.to_host(&mut back, &outward, range)?;
                }
            }
            Ok(())
        };
        let sample = timed(copy.bytes, effort, &mut once, &[&up, &down])?;
        let mut checked = 0;
        if copy.to_host || copy.both {
            checked += right(back.bytes(), 0);
        }
        if !copy.to_host || copy.both {
            back.bytes_mut().fill(0);
            down.to_host(&mut back, &inward, 0..copy.bytes)?;
            down.wait(effort.patience + Duration::from_secs(30))?;
            checked += right(back.bytes(), 0);
        }
        let expected = if copy.both { 2 * copy.bytes } else { copy.bytes };
        if checked < expected { Err(wrong("of a copy", checked)) } else { Ok(Sample { checked, ..sample }) }
    }

    /// Time of one copy from the first GPU to the second; every byte is compared once.
    ///
    /// # Errors
    /// Fewer than two GPUs, ones that do not reach each other, bytes that differ, or what the driver says.
    pub fn peer(&self, bytes: u64, effort: &Effort) -> Result<Sample, ExecError> {
        let (first, second) = (self.device(0)?, self.device(1)?);
        first.reach(second)?;
        second.reach(first)?;
        let mut buffer = HostBuffer::new(first, bytes, true)?;
        fill(buffer.bytes_mut(), 0);
        let (from, to) = (Memory::new(first, bytes)?, Memory::new(second, bytes)?);
        to.set(0)?;
        let (stream, other) = (Stream::new(first)?, Stream::new(second)?);
        let patience = effort.patience + Duration::from_secs(30);
        first.enter()?;
        stream.to_device(&from, &buffer, 0..bytes)?;
        stream.wait(patience)?;
        let sample = timed(bytes, effort, &mut || stream.copy(&to, &from, bytes), &[&stream])?;
        buffer.bytes_mut().fill(0);
        second.enter()?;
        other.to_host(&mut buffer, &to, 0..bytes)?;
        other.wait(patience)?;
        let checked = right(buffer.bytes(), 0);
        if checked < bytes { Err(wrong("of a copy between GPUs", checked)) } else { Ok(Sample { checked, ..sample }) }
    }

    /// Time of the way of a file's first bytes to the first GPU, through pinned memory: a thread reads chunks while those before
    /// are copied. Every byte is compared once.
    ///
    /// # Errors
    /// A file that cannot be read, too little memory, bytes that differ, or what the driver says.
    pub fn file(
        &self,
        file: &PatternFile,
        direct: bool,
        (bytes, chunk): (u64, u64),
        effort: &Effort,
    ) -> Result<Sample, ExecError> {
        let device = self.device(0)?;
        let opened = file.open(direct).map_err(|error| of_file(&error))?;
        let memory = Memory::new(device, bytes)?;
        memory.set(0)?;
        let stream = Stream::new(device)?;
        let patience = effort.patience + Duration::from_secs(30);
        let mut pool: Vec<HostBuffer> =
            (0..BUFFERS).map(|_| HostBuffer::new(device, bytes, true)).collect::<Result<_, _>>()?;
        let (mut times_us, start) = (Vec::new(), Instant::now());
        // The first is not counted.
        while times_us.len() <= effort.batches as usize && (times_us.len() < 4 || start.elapsed() < effort.budget) {
            file.forget().map_err(|error| of_file(&error))?;
            let from = Instant::now();
            pool = std::thread::scope(|scope| -> Result<Vec<HostBuffer>, ExecError> {
                // Buffers that are filled go one way, those that are free the other.
                let (filled, ready) = sync_channel::<io::Result<(HostBuffer, Range<u64>)>>(BUFFERS);
                let (freed, free) = sync_channel::<HostBuffer>(BUFFERS);
                for buffer in pool.drain(..) {
                    let _ = freed.send(buffer);
                }
                let opened = &opened;
                let reader = scope.spawn(move || {
                    for range in chunks(bytes, chunk) {
                        let Ok(mut buffer) = free.recv() else { break };
                        let part = &mut buffer.bytes_mut()[range.start as usize..range.end as usize];
                        let read = opened.read_exact_at(part, range.start).map(|()| (buffer, range));
                        if filled.send(read).is_err() {
                            break;
                        }
                    }
                    free
                });
                for read in ready {
                    let (buffer, range) = read.map_err(|error| of_file(&error))?;
                    stream.to_device(&memory, &buffer, range)?;
                    stream.wait(patience)?;
                    let _ = freed.send(buffer);
                }
                // They are kept: to free pinned memory takes long.
                let ended = reader.join();
                ended
                    .map(|free| free.try_iter().collect())
                    .map_err(|_| of_file(&io::Error::other("its thread ended early")))
            })?;
            times_us.push(from.elapsed().as_secs_f64() * 1e6);
        }
        times_us.remove(0);
        let mut back = HostBuffer::new(device, bytes, true)?;
        stream.to_host(&mut back, &memory, 0..bytes)?;
        stream.wait(patience)?;
        let checked = right(back.bytes(), 0);
        if checked < bytes {
            return Err(wrong("of a file on the GPU", checked));
        }
        Ok(Sample { times_us, checked, ..Sample::default() })
    }
}

/// Batches of copies, each until its streams are done.
fn timed(
    bytes: u64,
    effort: &Effort,
    once: &mut dyn FnMut() -> Result<(), ExecError>,
    streams: &[&Stream],
) -> Result<Sample, ExecError> {
    let patience = effort.patience + Duration::from_secs(30);
    let count = u64::from(BATCH).min((BATCH_BYTES / bytes.max(1)).max(1)) as u32;
    let mut batch = |count: u32| -> Result<f64, ExecError> {
        let from = Instant::now();
        for _ in 0..count {
            once()?;
        }
        for stream in streams {
            stream.wait(patience)?;
        }
        Ok(from.elapsed().as_secs_f64() * 1e6 / f64::from(count))
    };
    batch(effort.warmup.clamp(1, count))?;
    let (mut times_us, start) = (Vec::new(), Instant::now());
    while times_us.len() < effort.batches as usize && (times_us.len() < 3 || start.elapsed() < effort.budget) {
        times_us.push(batch(count)?);
    }
    Ok(Sample { times_us, ..Sample::default() })
}

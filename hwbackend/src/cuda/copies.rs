//! Copies between GPUs by their copy engines, several at once.

use std::time::Duration;

use collcast_sim::collective::Launch;

use super::Cuda;
use super::driver::{Memory, Stream};
use super::timing::{Operation, Timer};
use crate::exec::{Effort, ExecError, Sample};

/// A stream, a source and a target for each pair.
struct Copies {
    bytes: u64,
    memory: Vec<[Memory; 2]>,
    streams: Vec<Stream>,
}

impl Operation for Copies {
    fn streams(&self) -> &[Stream] {
        &self.streams
    }

    fn enqueue(&self, local: usize) -> Result<(), ExecError> {
        let [from, to] = &self.memory[local];
        self.streams[local].copy(to, from, self.bytes)
    }

    fn outcome(&self) -> Result<(), ExecError> {
        Ok(())
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        for stream in &self.streams {
            let _ = stream.wait(Duration::from_secs(30));
        }
    }
}

impl Cuda {
    /// Time of one copy of `bytes` from the first GPU of each pair to the second, all pairs at once and
    /// each back to back: that of the slowest pair.
    ///
    /// # Errors
    /// GPUs that do not reach each other, or too little memory.
    pub fn copies(&self, pairs: &[(u32, u32)], bytes: u64, effort: &Effort) -> Result<Sample, ExecError> {
        let device = |gpu: u32| {
            let there = || format!("GPU {gpu} is not one of the {} that are there", self.devices.len());
            self.devices
                .get(gpu as usize)
                .ok_or_else(|| ExecError::Refused { what: there(), hint: "count GPUs from 0" })
        };
        let mut copies = Copies { bytes, memory: Vec::new(), streams: Vec::new() };
        for &(src, dst) in pairs {
            let (from, to) = (device(src)?, device(dst)?);
            if src != dst {
                from.reach(to)?;
                to.reach(from)?;
            }
            copies.memory.push([Memory::new(from, bytes)?, Memory::new(to, bytes)?]);
            copies.streams.push(Stream::new(from)?);
        }
        let timer = Timer::new(&copies, Launch::SingleThread, effort.patience + Duration::from_secs(30))?;
        let times_us = timer.run(effort, &mut || Ok(()), &mut Ok)?;
        Ok(Sample { times_us, ..Sample::default() })
    }
}

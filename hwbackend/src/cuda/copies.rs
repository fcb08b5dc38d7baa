//! Copies between GPUs by their copy engines, several at once.

use std::time::Duration;

use collcast_sim::collective::Launch;

use super::Cuda;
use super::driver::{Memory, Stream};
use super::timing::{Repeated, Timer};
use crate::exec::{Effort, ExecError, Sample};

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
        let (mut memory, mut streams) = (Vec::new(), Vec::new());
        for &(src, dst) in pairs {
            let (from, to) = (device(src)?, device(dst)?);
            if src != dst {
                from.reach(to)?;
                to.reach(from)?;
            }
            memory.push([Memory::new(from, bytes)?, Memory::new(to, bytes)?]);
            streams.push(Stream::new(from)?);
        }
        let copies = Repeated {
            streams,
            enqueue: |stream: &Stream, local: usize| {
                let [from, to]: &[Memory; 2] = &memory[local];
                stream.copy(to, from, bytes)
            },
        };
        let timer = Timer::new(&copies, Launch::SingleThread, effort.patience + Duration::from_secs(30))?;
        let times_us = timer.run(effort, &mut || Ok(()), &mut Ok)?;
        Ok(Sample { times_us, ..Sample::default() })
    }
}

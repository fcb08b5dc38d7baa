//! Kernels of one GPU: products of layers, copies and fills of its memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use collcast_sim::collective::Launch;

use super::Cuda;
use super::cublaslt::{Linear, Product};
use super::driver::{Device, Event, Memory, Stream};
use super::timing::{Operation, Repeated, Timer};
use crate::exec::{Effort, ExecError, Sample};

/// Longest wait for what runs for some seconds at most.
const PATIENCE: Duration = Duration::from_secs(30);
/// Rest of the GPU before a run from idle: power and clock are then what they are on an idle GPU.
const REST: Duration = Duration::from_secs(2);

/// How long a kernel runs until power and clock have settled: some time constants of the 136 ms of an H100's profile.
const SETTLES: Duration = Duration::from_millis(800);

/// Runs until the clock has settled, and then for what counts.
fn settled(operation: &dyn Operation, effort: &Effort) -> Result<Sample, ExecError> {
    let timer = Timer::new(operation, Launch::SingleThread, PATIENCE)?;
    let before = Effort { iterations: u32::MAX, batches: 3, budget: SETTLES, ..*effort };
    timer.run(&before, &mut || Ok(()), &mut Ok)?;
    let times_us = timer.run(effort, &mut || Ok(()), &mut Ok)?;
    Ok(Sample { times_us, ..Sample::default() })
}

impl Cuda {
    /// Times of one product of random matrices on the first GPU, back to back, with the clock settled.
    ///
    /// # Errors
    /// No cuBLASLt, too little memory, or elements that the GPU has no product of.
    pub fn product(&self, linear: Linear, effort: &Effort) -> Result<Sample, ExecError> {
        let device = self.first()?;
        let product = Product::new(device, linear)?;
        let enqueue = |stream: &Stream, _: usize| product.enqueue(stream);
        settled(&Repeated { streams: vec![Stream::new(device)?], enqueue }, effort)
    }

    /// Microseconds of one product on average, from an idle GPU, over about so many seconds.
    ///
    /// # Errors
    /// As of [`product`](Self::product).
    pub fn product_from_idle(&self, linear: Linear, seconds: Duration) -> Result<f64, ExecError> {
        let device = self.first()?;
        let product = Product::new(device, linear)?;
        let enqueue = |stream: &Stream, _: usize| product.enqueue(stream);
        let products = Repeated { streams: vec![Stream::new(device)?], enqueue };
        let timer = Timer::new(&products, Launch::SingleThread, PATIENCE)?;
        let few = Effort { warmup: 1, iterations: 3, batches: 3, ..Effort::default() };
        let one = timer.run(&few, &mut || Ok(()), &mut Ok)?.into_iter().fold(f64::INFINITY, f64::min);
        let stream = &products.streams[0];
        let (start, stop) = (Event::new(&stream.device)?, Event::new(&stream.device)?);
        std::thread::sleep(REST);
        let count = (seconds.as_secs_f64() * 1e6 / one.max(1.0)).clamp(1.0, 1e6) as u32;
        stream.device.enter()?;
        stream.record(&start)?;
        let begun = Instant::now();
        let mut ran = 0;
        // Slower than expected, it still ends.
        while ran < count && begun.elapsed() < PATIENCE / 2 {
            products.enqueue(0)?;
            ran += 1;
        }
        stream.record(&stop)?;
        stream.wait(PATIENCE)?;
        Ok(stop.since_us(&start)? / f64::from(ran.max(1)))
    }

    /// Times of one fill of so many bytes of the first GPU's memory, back to back.
    ///
    /// # Errors
    /// Too little memory.
    pub fn fill(&self, bytes: u64, effort: &Effort) -> Result<Sample, ExecError> {
        let device = self.first()?;
        let memory = Memory::new(device, bytes)?;
        let enqueue = |stream: &Stream, _: usize| stream.fill(&memory, bytes);
        settled(&Repeated { streams: vec![Stream::new(device)?], enqueue }, effort)
    }

    fn first(&self) -> Result<&Arc<Device>, ExecError> {
        let none = || ExecError::Missing { what: "there is no GPU".to_owned(), hint: "see `nvidia-smi`".to_owned() };
        self.devices.first().ok_or_else(none)
    }
}

//! Kernels of one GPU: products of layers, copies and fills of its memory.

use std::time::{Duration, Instant};

use collcast_sim::collective::Launch;

use super::Cuda;
use super::cublaslt::{Linear, Product};
use super::driver::{Event, Memory, Stream};
use super::timing::{Operation, Timer};
use crate::exec::{Effort, ExecError, Sample};

/// Longest wait for what runs for some seconds at most.
const PATIENCE: Duration = Duration::from_secs(30);
/// Rest of the GPU before a run from idle: power and clock are then what they are on an idle GPU.
const REST: Duration = Duration::from_secs(2);

/// One product, over and over.
struct Products {
    product: Product,
    streams: [Stream; 1],
}

impl Operation for Products {
    fn streams(&self) -> &[Stream] {
        &self.streams
    }

    fn enqueue(&self, local: usize) -> Result<(), ExecError> {
        self.product.enqueue(&self.streams[local])
    }

    fn outcome(&self) -> Result<(), ExecError> {
        Ok(())
    }
}

/// One fill, over and over.
struct Fills {
    memory: Memory,
    streams: [Stream; 1],
}

impl Operation for Fills {
    fn streams(&self) -> &[Stream] {
        &self.streams
    }

    fn enqueue(&self, local: usize) -> Result<(), ExecError> {
        self.streams[local].fill(&self.memory, self.memory.bytes)
    }

    fn outcome(&self) -> Result<(), ExecError> {
        Ok(())
    }
}

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
        settled(&self.products(linear)?, effort)
    }

    /// Microseconds of one product on average, from an idle GPU, over about so many seconds.
    ///
    /// # Errors
    /// As of [`product`](Self::product).
    pub fn product_from_idle(&self, linear: Linear, seconds: Duration) -> Result<f64, ExecError> {
        let products = self.products(linear)?;
        let timer = Timer::new(&products, Launch::SingleThread, PATIENCE)?;
        let few = Effort { warmup: 1, iterations: 3, batches: 3, ..Effort::default() };
        let one = timer.run(&few, &mut || Ok(()), &mut Ok)?.into_iter().fold(f64::INFINITY, f64::min);
        let [stream] = &products.streams;
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
        let fills = Fills { memory: Memory::new(device, bytes)?, streams: [Stream::new(device)?] };
        settled(&fills, effort)
    }

    fn products(&self, linear: Linear) -> Result<Products, ExecError> {
        let device = self.first()?;
        Ok(Products { product: Product::new(device, linear)?, streams: [Stream::new(device)?] })
    }

    fn first(&self) -> Result<&std::sync::Arc<super::driver::Device>, ExecError> {
        let none = || ExecError::Missing { what: "there is no GPU".to_owned(), hint: "see `nvidia-smi`".to_owned() };
        self.devices.first().ok_or_else(none)
    }
}

//! A collective beside computation: how much each takes from the other.

use std::time::Duration;

use collcast_sim::schedule::Schedule;

use super::cublaslt::{Linear, Product};
use super::driver::{Event, Stream};
use super::timing::Operation;
use super::{Cuda, Loaded};
use crate::exec::ExecError;

/// How long each side runs alone: long beside what it takes to start both.
const SIDE: Duration = Duration::from_millis(20);

/// Microseconds of one product and of one collective.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Overlap {
    /// Product alone.
    pub product_us: f64,
    /// Collective alone.
    pub collective_us: f64,
    /// Product while the collective runs.
    pub product_beside_us: f64,
    /// Collective while the product runs.
    pub collective_beside_us: f64,
}

struct Timed<'a> {
    stream: &'a Stream,
    start: Event,
    stop: Event,
}

impl<'a> Timed<'a> {
    fn new(stream: &'a Stream) -> Result<Self, ExecError> {
        Ok(Self { stream, start: Event::new(&stream.device)?, stop: Event::new(&stream.device)? })
    }
}

impl Cuda {
    /// Runs a schedule and products of bfloat16 matrices of `size` rows and columns, alone and
    /// together, on the GPUs of its ranks.
    ///
    /// # Errors
    /// As [`Executor::run`](crate::exec::Executor::run); no cuBLASLt.
    pub fn overlap(&mut self, schedule: &Schedule, size: u64, patience: Duration) -> Result<Overlap, ExecError> {
        let devices: Vec<_> = self.devices.iter().take(schedule.call.ranks as usize).cloned().collect();
        let loaded = Loaded::new(self, schedule, patience)?;
        loaded.fill()?;
        loaded.once()?;
        let products = devices.iter().map(|d| Product::new(d, Linear::square(size))).collect::<Result<Vec<_>, _>>()?;
        let streams = devices.iter().map(Stream::new).collect::<Result<Vec<_>, _>>()?;
        let both = [
            streams.iter().map(Timed::new).collect::<Result<Vec<_>, _>>()?,
            loaded.streams().iter().map(Timed::new).collect::<Result<Vec<_>, _>>()?,
        ];
        // Counts of products and collectives in; times of one of each at the slowest GPU out.
        let run = |counts: [u32; 2]| -> Result<[f64; 2], ExecError> {
            let begin =
                |timed: &Timed<'_>| timed.stream.device.enter().and_then(|()| timed.stream.record(&timed.start));
            let end = |timed: &Timed<'_>| timed.stream.device.enter().and_then(|()| timed.stream.record(&timed.stop));
            both.iter().flatten().try_for_each(begin)?;
            let enqueued = (0..counts[0].max(counts[1])).try_for_each(|round| -> Result<(), ExecError> {
                // Both spread evenly, so that they are under way together.
                let due = |count: u32| {
                    let most = u64::from(counts[0].max(counts[1]));
                    let at = |r: u32| u64::from(r) * u64::from(count) / most;
                    at(round + 1) > at(round)
                };
                if due(counts[1]) {
                    loaded.enqueue_all()?;
                }
                if due(counts[0]) {
                    for (product, stream) in products.iter().zip(&streams) {
                        stream.device.enter()?;
                        product.enqueue(stream)?;
                    }
                }
                Ok(())
            });
            both.iter().flatten().try_for_each(end)?;
            let waits = both.iter().flatten().map(|t| t.stream.wait(patience * 2 + Duration::from_secs(30)));
            let waited: Vec<_> = waits.collect();
            enqueued?;
            loaded.outcome()?;
            waited.into_iter().collect::<Result<(), _>>()?;
            let mut times = [0.0_f64; 2];
            for ((time, side), count) in times.iter_mut().zip(&both).zip(counts) {
                for timed in side {
                    timed.stream.device.enter()?;
                    *time = time.max(timed.stop.since_us(&timed.start)? / f64::from(count.max(1)));
                }
            }
            Ok(times)
        };
        // The library loads its kernels on their first call, while nothing else is under way.
        run([2, 0])?;
        run([0, 2])?;
        let [product_us, _] = run([4, 0])?;
        let [_, collective_us] = run([0, 4])?;
        let count = |us: f64| (SIDE.as_secs_f64() * 1e6 / us.max(1.0)).clamp(2.0, 1000.0) as u32;
        let counts = [count(product_us), count(collective_us)];
        let [product_us, _] = run([counts[0], 0])?;
        let [_, collective_us] = run([0, counts[1]])?;
        let [product_beside_us, collective_beside_us] = run(counts)?;
        Ok(Overlap { product_us, collective_us, product_beside_us, collective_beside_us })
    }
}

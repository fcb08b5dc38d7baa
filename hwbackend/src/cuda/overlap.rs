//! A collective beside computation: how much each takes from the other.

use std::time::Duration;

use collcast_sim::schedule::Schedule;

use super::cublaslt::{Linear, Product};
use super::driver::{Event, Stream};
use super::timing::Operation;
use super::{Cuda, Loaded};
use crate::exec::ExecError;

/// How long the measured side runs by its time alone: long beside what it takes to start both.
const SIDE: Duration = Duration::from_millis(20);
/// How much more work, by times alone, the other side has than the measured one, so that it is under way all the while. More
/// where it ended first: operations beside others take up to a few times as long as alone.
const BESIDE: [u32; 3] = [3, 9, 27];

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

/// The sides, by their places.
const PRODUCT: usize = 0;
const COLLECTIVE: usize = 1;

/// A stream of a side, with events around what is measured of it.
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
        let enqueue = |side: usize| -> Result<(), ExecError> {
            if side == COLLECTIVE {
                return loaded.enqueue_all();
            }
            products.iter().zip(&streams).try_for_each(|(product, stream)| {
                stream.device.enter()?;
                product.enqueue(stream)
            })
        };
        // Times so many operations of one side, with so many of the other from before them until after them: microseconds of one
        // at the slowest GPU, and whether the other side was under way until the end.
        let run = |side: usize, count: u32, others: u32| -> Result<(f64, bool), ExecError> {
            let other = 1 - side;
            let mark = |side: usize, event: for<'t> fn(&'t Timed<'_>) -> &'t Event| {
                let mut timed = both[side].iter();
                timed.try_for_each(|t| t.stream.device.enter().and_then(|()| t.stream.record(event(t))))
            };
            let enqueued = || -> Result<(), ExecError> {
                let part = others / 3;
                (0..part).try_for_each(|_| enqueue(other))?;
                // As in a batch, the first is not timed: the host reaches one GPU after another.
                enqueue(side)?;
                mark(side, |t| &t.start)?;
                for round in 0..count {
                    enqueue(side)?;
                    // A third of the others spread evenly, so that neither side waits for the host.
                    let due = |round: u32| u64::from(round) * u64::from(part) / u64::from(count.max(1));
                    (due(round)..due(round + 1)).try_for_each(|_| enqueue(other))?;
                }
                mark(side, |t| &t.stop)?;
                (2 * part..others).try_for_each(|_| enqueue(other))?;
                mark(other, |t| &t.stop)
            };
            let enqueued = enqueued();
            let waits = both.iter().flatten().map(|t| t.stream.wait(patience * 2 + Duration::from_secs(30)));
            let waited: Vec<_> = waits.collect();
            enqueued?;
            loaded.outcome()?;
            waited.into_iter().collect::<Result<(), _>>()?;
            let (mut slowest, mut covered) = (0.0_f64, true);
            for (timed, beside) in both[side].iter().zip(&both[other]) {
                timed.stream.device.enter()?;
                slowest = slowest.max(timed.stop.since_us(&timed.start)? / f64::from(count.max(1)));
                covered &= beside.stop.since_us(&timed.stop)? > 0.0;
            }
            Ok((slowest, covered))
        };
        // The library loads its kernels on their first call, while nothing else is under way.
        run(PRODUCT, 2, 0)?;
        run(COLLECTIVE, 2, 0)?;
        let count = |us: f64| (SIDE.as_secs_f64() * 1e6 / us.max(1.0)).clamp(2.0, 1000.0) as u32;
        let counts = [count(run(PRODUCT, 4, 0)?.0), count(run(COLLECTIVE, 4, 0)?.0)];
        let alone = |side: usize| run(side, counts[side], 0).map(|(time, _)| time);
        let us = [alone(PRODUCT)?, alone(COLLECTIVE)?];
        // As much as the measured side has, its first operation included.
        let as_much = |side: usize| (f64::from(counts[side] + 1) * us[side] / us[1 - side].max(1.0)).ceil() as u32;
        let beside = |side: usize| -> Result<f64, ExecError> {
            for times in BESIDE {
                if let (time, true) = run(side, counts[side], as_much(side).saturating_mul(times))? {
                    return Ok(time);
                }
            }
            let (what, most) = (["product", "collective"][side], BESIDE[BESIDE.len() - 1]);
            let message = format!("a {what} beside the other side outlasts {most} times the work of that side");
            Err(ExecError::Library { call: "a run of both sides", message })
        };
        Ok(Overlap {
            product_us: us[PRODUCT],
            collective_us: us[COLLECTIVE],
            product_beside_us: beside(PRODUCT)?,
            collective_beside_us: beside(COLLECTIVE)?,
        })
    }
}

//! Runs a schedule on the CPU: one thread a lane, real bounded FIFOs, real buffers.
//!
//! It knows instructions and nothing of rings or trees. A receiver holds its FIFO slot until
//! its instruction has been sent on, as GPU kernels do; every wait is bounded and ends in an
//! error that names who waited for whom.

mod error;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::check;
use crate::exec::{CallToRun, Effort, ExecError, Executor, Mismatch, Sample};
use crate::fifo::{Counter, Fifo, Until};
use collcast_sim::collective::{DataType, ReduceOp};
use collcast_sim::ids::Rank;
use collcast_sim::schedule::Schedule;
use collcast_sim::schedule::program::Buffer;
use collcast_sim::schedule::wiring::{SliceCursor, Wired, Wiring, end_of};

pub use error::{HostError, MAX_LANES};

/// Most elements of the buffers of all ranks together: 8 bytes each, with copies on the way.
const MAX_ELEMENTS: u64 = 1 << 28;

/// The executor of schedules on CPU threads: needs no GPU, and says nothing of one's speed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Host;

impl Executor for Host {
    fn run(&mut self, case: &CallToRun<'_>, effort: &Effort) -> Result<Sample, ExecError> {
        let schedule = case.schedule.ok_or_else(ExecError::no_schedule)?;
        let call = &schedule.call;
        let elements: u64 = (0..call.ranks).map(Rank).map(|r| call.input_len(r) + call.output_len(r)).sum();
        if elements > MAX_ELEMENTS {
            return Err(ExecError::Refused {
                what: format!(
                    "{elements} elements in all buffers are more than the host backend takes ({MAX_ELEMENTS})"
                ),
                hint: "take a smaller --size or fewer --ranks",
            });
        }
        let range = check::range(call)?;
        match call.dtype {
            DataType::Float32 => bench::<f32>(schedule, range, effort, |v| v as f32),
            // Whole numbers this small are the same in every type.
            _ => bench::<i64>(schedule, range, effort, i64::from),
        }
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        vec![("host", format!("threads on {threads} CPU cores; no GPU is involved"))]
    }
}

/// Runs until the effort is spent; every run is checked.
fn bench<T: Element + PartialEq>(
    schedule: &Schedule,
    range: u32,
    effort: &Effort,
    element: impl Fn(u32) -> T,
) -> Result<Sample, ExecError> {
    let call = &schedule.call;
    let inputs: Vec<Vec<T>> = (0..call.ranks)
        .map(|rank| (0..call.input_len(Rank(rank))).map(|e| element(check::value(rank, e, range))).collect())
        .collect();
    // Patience is for one wait; a run on few cores is slower than any GPU, and waits in line.
    let patience = effort.patience.max(Duration::from_secs(60));
    let once = || -> Result<(f64, u64), ExecError> {
        let (outputs, time) = timed(schedule, &inputs, patience)?;
        let mut checked = 0;
        for (rank, output) in (0..).zip(&outputs) {
            let mut wrong = Vec::new();
            for part in check::parts(call, Rank(rank)) {
                let right =
                    |i: u64| output[(part.at + i) as usize] == element(check::expected(&part, i, call.op, range));
                wrong.extend((0..part.count).filter(|&i| !right(i)).map(|i| part.at + i));
                checked += part.count;
            }
            if let Some(&element) = wrong.first() {
                return Err(ExecError::Wrong(Mismatch { rank, element, wrong: wrong.len() as u64 }));
            }
        }
        Ok((time.as_secs_f64() * 1e6, checked))
    };
    let begin = Instant::now();
    let (_, checked) = once()?;
    let one = begin.elapsed();
    let effort = Effort { iterations: 1, ..*effort }.fitted(one);
    let times_us = (0..effort.batches).map(|_| once().map(|(time, _)| time)).collect::<Result<_, _>>()?;
    Ok(Sample { times_us, checked, predicted_us: None })
}

/// A value that can be moved and combined.
pub trait Element: Copy + Send + Sync {
    /// As bits, for a shared buffer.
    fn to_bits(self) -> u64;
    /// Back from bits.
    fn from_bits(bits: u64) -> Self;
    /// Both combined. Averages are sums here; the caller divides.
    fn combine(self, other: Self, op: ReduceOp) -> Self;
}

macro_rules! element {
    ($type:ty, $add:expr, $mul:expr, $to:expr, $from:expr) => {
        impl Element for $type {
            fn to_bits(self) -> u64 {
                $to(self)
            }
            fn from_bits(bits: u64) -> Self {
                $from(bits)
            }
            fn combine(self, other: Self, op: ReduceOp) -> Self {
                match op {
                    ReduceOp::Sum | ReduceOp::Avg => $add(self, other),
                    ReduceOp::Prod => $mul(self, other),
                    ReduceOp::Min => self.min(other),
                    ReduceOp::Max => self.max(other),
                }
            }
        }
    };
}
element!(i64, i64::wrapping_add, i64::wrapping_mul, i64::cast_unsigned, u64::cast_signed);
element!(f32, |a, b| a + b, |a, b| a * b, |v: f32| u64::from(v.to_bits()), |b| f32::from_bits(b as u32));

/// Memory of a rank: input and output, which are one when in place, and scratch.
struct Memory {
    parts: [Vec<AtomicU64>; 3],
}

/// Runs a schedule on real inputs, `[rank][element]`, and returns the outputs alike.
///
/// In place, the result is read from where the collective leaves it. Outputs that the
/// collective does not define hold zeros.
///
/// # Errors
/// Wrong inputs, too many lanes, or a wait beyond `patience`.
pub fn run<T: Element>(schedule: &Schedule, inputs: &[Vec<T>], patience: Duration) -> Result<Vec<Vec<T>>, HostError> {
    timed(schedule, inputs, patience).map(|(outputs, _)| outputs)
}

/// The same, with the time from when all lanes are there to when all are done.
fn timed<T: Element>(
    schedule: &Schedule,
    inputs: &[Vec<T>],
    patience: Duration,
) -> Result<(Vec<Vec<T>>, Duration), HostError> {
    let call = &schedule.call;
    let wiring = Wiring::new(schedule)?;
    if wiring.workers.len() > MAX_LANES {
        return Err(HostError::TooManyLanes(wiring.workers.len()));
    }
    for rank in 0..call.ranks {
        let (given, needed) = (inputs.get(rank as usize).map_or(0, Vec::len), call.input_len(Rank(rank)));
        if given as u64 != needed {
            return Err(HostError::WrongInput { rank: rank as usize, given, needed });
        }
    }
    let zeros = |n: u64| (0..n).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
    let memory: Vec<Memory> = (0..call.ranks)
        .map(Rank)
        .map(|rank| {
            let (input, output) = (call.input_len(rank), call.output_len(rank));
            let parts =
                if call.in_place { [zeros(input.max(output)), zeros(0)] } else { [zeros(input), zeros(output)] };
            let [first, second] = parts;
            let parts = [first, second, zeros(schedule.scratch_len(rank))];
            let from = if call.in_place { call.in_place_offset(rank, Buffer::Input) as usize } else { 0 };
            for (slot, value) in parts[0][from..].iter().zip(&inputs[rank.index()]) {
                slot.store(value.to_bits(), Ordering::Relaxed);
            }
            Memory { parts }
        })
        .collect();
    let depth = schedule.plan.fifo_slices;
    let fifos = wiring.conns.iter().map(|c| Fifo::new(c.senders.len(), c.receivers.len(), depth)).collect::<Vec<_>>();
    let signals: Vec<Counter> = wiring.workers.iter().map(|_| Counter::new()).collect();
    let stop = AtomicBool::new(false);
    let deadline = Instant::now() + patience;
    let gate = Mutex::new(());
    let (results, time): (Vec<Result<(), HostError>>, Duration) = std::thread::scope(|scope| {
        let closed = gate.lock();
        let threads: Vec<_> = wiring
            .workers
            .iter()
            .zip(0..)
            .map(|(worker, index)| {
                let (wiring, memory, fifos, signals, stop, gate) = (&wiring, &memory, &fifos, &signals, &stop, &gate);
                let lane = move || {
                    drop(gate.lock());
                    let until = Until { deadline, stop };
                    let lane = LaneThread { schedule, wiring, memory, fifos, signals, until, patience };
                    let result = lane.run::<T>(worker, index);
                    if result.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    result
                };
                // Lanes are many and need little.
                std::thread::Builder::new().stack_size(128 << 10).spawn_scoped(scope, lane)
            })
            .collect();
        if threads.iter().any(Result::is_err) {
            stop.store(true, Ordering::Relaxed);
        }
        let begin = Instant::now();
        drop(closed);
        let results = threads
            .into_iter()
            .map(|t| t.map_or(Err(HostError::Stopped), |t| t.join().unwrap_or(Err(HostError::Stopped))))
            .collect();
        (results, begin.elapsed())
    });
    // The first real failure explains the others.
    let mut errors: Vec<HostError> = results.into_iter().filter_map(Result::err).collect();
    errors.sort_by_key(|e| matches!(e, HostError::Stopped));
    if let Some(error) = errors.into_iter().next() {
        return Err(error);
    }
    let outputs = (0..call.ranks).map(Rank).map(|rank| {
        let memory = &memory[rank.index()];
        let length = call.output_len(rank) as usize;
        let (part, from) = if call.in_place {
            (&memory.parts[0], call.in_place_offset(rank, Buffer::Output) as usize)
        } else {
            (&memory.parts[1], 0)
        };
        part[from..from + length].iter().map(|v| T::from_bits(v.load(Ordering::Relaxed))).collect()
    });
    Ok((outputs.collect(), time))
}

struct LaneThread<'a> {
    schedule: &'a Schedule,
    wiring: &'a Wiring,
    memory: &'a [Memory],
    fifos: &'a [Fifo],
    signals: &'a [Counter],
    until: Until<'a>,
    patience: Duration,
}

impl LaneThread<'_> {
    /// The memory behind a slice of a buffer; nothing for an empty slice, wherever it points.
    fn place(&self, rank: Rank, buffer: Buffer, offset: u64, count: u64) -> Result<&[AtomicU64], HostError> {
        let call = &self.schedule.call;
        let parts = &self.memory[rank.index()].parts;
        let (part, at) = if buffer == Buffer::Scratch {
            (&parts[2], offset)
        } else if call.in_place {
            (&parts[0], call.in_place_offset(rank, buffer) + offset)
        } else {
            (&parts[usize::from(buffer == Buffer::Output)], offset)
        };
        if count == 0 {
            return Ok(&[]);
        }
        let range = at as usize..(at + count) as usize;
        part.get(range).ok_or(HostError::OutOfBounds { rank: rank.0, buffer, element: offset + count - 1 })
    }

    fn timeout(&self, worker: &Wired, what: &'static str, peer: Rank) -> HostError {
        if self.until.stop.load(Ordering::Relaxed) {
            return HostError::Stopped;
        }
        HostError::Timeout {
            rank: worker.rank.0,
            channel: worker.channel.0,
            lane: worker.lane.0,
            seconds: self.patience.as_secs(),
            what,
            peer: peer.0,
        }
    }

    /// Another worker of a connection, for messages: the first of a group.
    fn peer(&self, ends: &[u32]) -> Rank {
        ends.first().map_or(Rank(0), |&w| self.wiring.workers[w as usize].rank)
    }

    fn run<T: Element>(&self, worker: &Wired, index: u32) -> Result<(), HostError> {
        let mut cursor = SliceCursor::new(worker);
        let op = self.schedule.call.op;
        while let Some(slice) = cursor.next(self.schedule, worker.template) {
            let step = &cursor.step;
            if let Some((port, count)) = step.wait {
                let told = worker.tokens.get(port).and_then(|&l| self.signals.get(l as usize));
                if !told.is_some_and(|lane| lane.wait(count, self.until)) {
                    return Err(self.timeout(worker, "another lane of", worker.rank));
                }
            }
            let mut data: Option<Vec<T>> = None;
            for &port in &step.recv {
                let conn = worker.recv[port] as usize;
                let ends = &self.wiring.conns[conn];
                let receiver = end_of(&ends.receivers, index);
                let arrived = self.fifos[conn]
                    .front(receiver, self.until)
                    .ok_or_else(|| self.timeout(worker, "data from", self.peer(&ends.senders)))?;
                let arrived = arrived.into_iter().map(T::from_bits);
                data = Some(match data {
                    None => arrived.collect(),
                    Some(sum) => sum.into_iter().zip(arrived).map(|(a, b)| a.combine(b, op)).collect(),
                });
            }
            let operands = step.src.into_iter().chain(step.dst.filter(|_| step.accumulate));
            for (buffer, offset) in operands {
                let memory = self.place(worker.rank, buffer, offset + slice.from, slice.count)?;
                let local = memory.iter().map(|v| T::from_bits(v.load(Ordering::Relaxed)));
                data = Some(match data {
                    None => local.collect(),
                    Some(sum) => sum.into_iter().zip(local).map(|(a, b)| a.combine(b, op)).collect(),
                });
            }
            let data = data.unwrap_or_default();
            if let Some((buffer, offset)) = step.dst {
                let memory = self.place(worker.rank, buffer, offset + slice.from, slice.count)?;
                for (slot, value) in memory.iter().zip(&data) {
                    slot.store(value.to_bits(), Ordering::Relaxed);
                }
            }
            for &port in &step.send {
                let conn = worker.send[port] as usize;
                let ends = &self.wiring.conns[conn];
                let sender = end_of(&ends.senders, index);
                let bits = data.iter().map(|v| v.to_bits()).collect::<Vec<u64>>();
                let add = |a: u64, b: u64| T::from_bits(a).combine(T::from_bits(b), op).to_bits();
                self.fifos[conn]
                    .post(sender, bits, &add, self.until)
                    .ok_or_else(|| self.timeout(worker, "credit from", self.peer(&ends.receivers)))?;
            }
            for &port in &step.recv {
                let conn = worker.recv[port] as usize;
                let receiver = end_of(&self.wiring.conns[conn].receivers, index);
                self.fifos[conn].free(receiver);
            }
            if step.signal && cursor.at_last_slice(self.schedule) {
                self.signals[index as usize].signal();
            }
        }
        Ok(())
    }
}

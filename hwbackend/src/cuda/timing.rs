//! Times operations with device events, in each launch mode. Shared by the executors that put
//! work into CUDA streams.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use collcast_sim::collective::Launch;

use super::driver::{Event, Graph, Pinned, Stream};
use crate::exec::{Effort, ExecError};

/// An operation that every rank of this process takes part in.
pub(crate) trait Operation: Sync {
    /// The streams of the ranks of this process.
    fn streams(&self) -> &[Stream];

    /// Puts one operation of one rank into its stream, whose context is current.
    fn enqueue(&self, local: usize) -> Result<(), ExecError>;

    /// Puts one operation of all ranks of this process into their streams, from one thread.
    fn enqueue_all(&self) -> Result<(), ExecError> {
        self.streams().iter().enumerate().try_for_each(|(local, stream)| {
            stream.device.enter()?;
            self.enqueue(local)
        })
    }

    /// Clears what the next operations are to write, so that it can be compared; where nothing is compared, nothing.
    fn blank(&self) -> Result<(), ExecError> {
        Ok(())
    }

    /// What devices reported, once their streams are done.
    fn outcome(&self) -> Result<(), ExecError>;
}

/// The same work in each of some streams, over and over; nothing outlives what it works on.
pub(crate) struct Repeated<F> {
    pub(crate) streams: Vec<Stream>,
    /// Puts one operation into the stream with this index.
    pub(crate) enqueue: F,
}

impl<F: Fn(&Stream, usize) -> Result<(), ExecError> + Sync> Operation for Repeated<F> {
    fn streams(&self) -> &[Stream] {
        &self.streams
    }

    fn enqueue(&self, local: usize) -> Result<(), ExecError> {
        (self.enqueue)(&self.streams[local], local)
    }

    fn outcome(&self) -> Result<(), ExecError> {
        Ok(())
    }
}

impl<F> Drop for Repeated<F> {
    fn drop(&mut self) {
        for stream in &self.streams {
            let _ = stream.wait(Duration::from_secs(30));
        }
    }
}

/// Runs batches of one operation. The first of a batch is not timed: the host reaches one GPU after
/// another, and an operation that all take part in lets all go on together.
pub(crate) struct Timer<'a> {
    operation: &'a dyn Operation,
    launch: Launch,
    /// Longest wait for a batch, beyond twice the time that its operations took before.
    patience: Duration,
    events: Vec<(Event, Event)>,
    /// What graphs wait for; none without streams.
    gate: Option<Pinned<u32>>,
}

impl<'a> Timer<'a> {
    pub(crate) fn new(operation: &'a dyn Operation, launch: Launch, patience: Duration) -> Result<Self, ExecError> {
        let event = |stream: &Stream| Ok((Event::new(&stream.device)?, Event::new(&stream.device)?));
        let events = operation.streams().iter().map(event).collect::<Result<_, ExecError>>()?;
        let gate = operation.streams().first().map(|first| Pinned::new(&first.device)).transpose()?;
        Ok(Self { operation, launch, patience, events, gate })
    }

    /// Microseconds of one operation at the slowest local rank, of each batch. `meet` returns
    /// when all processes have called it; `agree` takes the largest value of all processes.
    pub(crate) fn run(
        &self,
        effort: &Effort,
        meet: &mut dyn FnMut() -> Result<(), ExecError>,
        agree: &mut dyn FnMut(f64) -> Result<f64, ExecError>,
    ) -> Result<Vec<f64>, ExecError> {
        let time = |us: f64| Duration::from_secs_f64(us * 1e-6);
        meet()?;
        // How many more warm up goes by the first.
        let first = time(agree(self.batch(1, None, Duration::ZERO)?)?);
        let warmup = effort.affords(effort.warmup, first);
        if warmup > 1 {
            self.batch(warmup - 1, None, first)?;
        }
        meet()?;
        let one = time(agree(self.batch(effort.affords(3, first), None, first)?)?);
        let effort = effort.fitted(one);
        let graphs = match self.launch {
            Launch::Graph => Some(self.capture(effort.iterations)?),
            _ => None,
        };
        let batch = || self.batch(effort.iterations, graphs.as_deref(), one);
        // The first replay uploads the graph.
        let uploaded = if graphs.is_some() { batch().map(|_| ()) } else { Ok(()) };
        let mut times = |index: u32| {
            // What the last batch leaves is compared.
            if index + 1 == effort.batches {
                self.operation.blank()?;
            }
            meet()?;
            batch()
        };
        let times = uploaded.and_then(|()| (0..effort.batches).map(&mut times).collect::<Result<Vec<_>, _>>());
        if times.is_err() {
            // It may still run, and to free it would wait for its end.
            std::mem::forget(graphs);
        }
        times
    }

    /// A batch of all ranks as graphs, one a rank, with its events.
    fn capture(&self, iterations: u32) -> Result<Vec<Graph>, ExecError> {
        let streams = self.operation.streams();
        streams.iter().try_for_each(Stream::begin_capture)?;
        let enqueued = self.one_by_one(iterations, Stream::record_in_graph);
        let graphs = streams.iter().map(Stream::end_capture).collect::<Vec<_>>();
        enqueued?;
        graphs.into_iter().collect()
    }

    /// A batch of all ranks from this thread.
    fn one_by_one(
        &self,
        iterations: u32,
        record: impl Fn(&Stream, &Event) -> Result<(), ExecError>,
    ) -> Result<(), ExecError> {
        let pairs = || self.operation.streams().iter().zip(&self.events);
        let mark = |stream: &Stream, event: &Event| stream.device.enter().and_then(|()| record(stream, event));
        self.operation.enqueue_all()?;
        pairs().try_for_each(|(stream, (start, _))| mark(stream, start))?;
        (0..iterations).try_for_each(|_| self.operation.enqueue_all())?;
        pairs().try_for_each(|(stream, (_, stop))| mark(stream, stop))
    }

    /// Runs so many operations, which should take about `one` each, after one that is not timed: microseconds of one.
    fn batch(&self, iterations: u32, graphs: Option<&[Graph]>, one: Duration) -> Result<f64, ExecError> {
        let streams = self.operation.streams();
        match graphs {
            Some(graphs) => self.together(graphs)?,
            None if matches!(self.launch, Launch::SingleThread | Launch::Graph) || streams.len() == 1 => {
                self.one_by_one(iterations, Stream::record)?;
            }
            None => self.threads(iterations)?,
        }
        // All streams are waited for, whatever one of them says: nothing may outlive its memory.
        let patience = self.patience + one.saturating_mul(iterations.saturating_add(1)).saturating_mul(2);
        let waited: Vec<_> = streams.iter().map(|stream| stream.wait(patience)).collect();
        self.operation.outcome()?;
        waited.into_iter().collect::<Result<(), _>>()?;
        let mut slowest = 0.0_f64;
        for (stream, (start, stop)) in streams.iter().zip(&self.events) {
            stream.device.enter()?;
            slowest = slowest.max(stop.since_us(start)?);
        }
        Ok(slowest / f64::from(iterations))
    }

    /// All graphs, held back until each is in its stream. A rank that only sends would else be through its first
    /// operation, and its events would time how much later the others began.
    fn together(&self, graphs: &[Graph]) -> Result<(), ExecError> {
        let streams = self.operation.streams();
        let Some(gate) = &self.gate else { return Ok(()) };
        gate.write(0);
        let queued = streams.iter().zip(graphs).try_for_each(|(stream, graph)| {
            stream.device.enter()?;
            stream.hold(gate)?;
            stream.replay(graph)
        });
        // Whatever happened: nobody waits for ever.
        gate.write(1);
        queued
    }

    /// A thread a rank; they start together.
    fn threads(&self, iterations: u32) -> Result<(), ExecError> {
        let streams = self.operation.streams();
        let ready = AtomicUsize::new(0);
        let work = |local: usize| {
            let (stream, (start, stop)) = (&streams[local], &self.events[local]);
            let entered = stream.device.enter();
            ready.fetch_add(1, Ordering::AcqRel);
            while ready.load(Ordering::Acquire) < streams.len() {
                std::thread::yield_now();
            }
            entered?;
            self.operation.enqueue(local)?;
            stream.record(start)?;
            (0..iterations).try_for_each(|_| self.operation.enqueue(local))?;
            stream.record(stop)
        };
        std::thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> = (1..streams.len()).map(|local| scope.spawn(move || work(local))).collect();
            let first = work(0);
            let rest = threads.into_iter().map(|t| {
                t.join().unwrap_or(Err(ExecError::Library { call: "launch", message: "a thread panicked".to_owned() }))
            });
            std::iter::once(first).chain(rest).collect()
        })
    }
}

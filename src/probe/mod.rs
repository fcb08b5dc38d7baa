//! What a machine with GPUs is and can do: its topology, times of schedules on its GPUs, copies, ping-pongs, contention, and
//! computation beside communication; kernels of one GPU.

mod kernels;
mod network;

use std::path::PathBuf;
use std::time::Duration;

use collcast_hwbackend::cuda::Cuda;
use collcast_hwbackend::exec::{CallToRun, Effort, Executor};
use collcast_hwbackend::probe::{patterns, ping_pong};
use collcast_sim::collective::{Algorithm, Collective, DataType, Launch, Protocol};
use collcast_sim::predict::{Predictor, Settings};
use collcast_sim::profile::Profile;
use collcast_sim::schedule::{Call, Schedule};
use collcast_sim::topology::Topology;
use collcast_sim::units::Bytes;
use serde::Serialize;

use crate::bench::{Failure, MeasuredCall, Planned, clocks_after, date, facts, sidecar};
use crate::error::Error;
use crate::files::{make_folder, write};
use crate::query::Query;
use crate::watch::Watch;
pub use kernels::{Kernels, TimedLong, TimedMemory, TimedProduct, Times};
pub use network::{NetworkOutcome, NetworkRequest, network};

/// What is to be found out.
#[derive(Clone, Debug)]
pub struct Request {
    /// Folder for what is found: `topology.toml` is written there at once. Made where it is not there.
    pub folder: PathBuf,
    /// Fewer sizes and channels: well below a minute.
    pub quick: bool,
    /// Kernels of the first GPU alone.
    pub compute: bool,
    /// Longest wait of a device for a peer.
    pub patience: Duration,
    /// Follows it and may stop it: the outcome then has what was found until there.
    pub watch: Watch,
}

impl Request {
    /// Everything, into a folder.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            quick: false,
            compute: false,
            patience: Duration::from_secs(2),
            watch: Watch::default(),
        }
    }
}

/// A measurement that is not of a collective.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Spot {
    /// What was measured: see [`SPOTS`].
    pub kind: String,
    /// From which GPU.
    pub src: Option<u32>,
    /// To which GPU.
    pub dst: Option<u32>,
    /// Bytes of one of them.
    pub size_bytes: u64,
    /// Channels.
    pub channels: Option<u32>,
    /// Protocol.
    pub protocol: Option<Protocol>,
    /// Its time.
    pub time_us: f64,
    /// Its rate, of all pairs together.
    pub gbps: Option<f64>,
}

/// What the columns of `probe.csv` mean, for its first lines.
pub const SPOTS: [&str; 7] = [
    "copy: one copy by a copy engine from GPU src to dst (the same GPU: within its memory), back to back; bytes, us of one, gbps",
    "copies_*: copies of many pairs at once; us of the slowest pair, gbps of all pairs together",
    "ping_pong: one way of a message between two GPUs through the kernel's FIFO, start and end of the kernel taken out",
    "product: one matrix product of bfloat16, bytes of one matrix, on every GPU, alone",
    "all_reduce: one all-reduce of bytes, ring/simple over channels, alone",
    "product_beside, all_reduce_beside: the same while the other runs",
    "us is the median of the slowest GPU; gbps counts 1e9 bytes a second",
];

impl Spot {
    fn of(kind: impl Into<String>, size_bytes: u64, time_us: f64) -> Self {
        Self { kind: kind.into(), size_bytes, time_us, ..Self::default() }
    }
}

fn gbps(bytes: u64, us: f64) -> f64 {
    bytes as f64 / us / 1e3
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The folder for it.
    pub folder: PathBuf,
    /// The file of the machine as the driver sees it, which is there already.
    pub topology: PathBuf,
    /// Whether the GPUs reach each other's memory; only the topology is found out where they do not.
    pub peers: bool,
    /// What is no collective.
    pub spots: Vec<Spot>,
    /// Collectives: schedules on the GPUs, every result checked.
    pub rows: Vec<MeasuredCall>,
    /// Kernels of the first GPU.
    pub kernels: Kernels,
    /// What it ran on: devices, driver, libraries; key and value.
    pub facts: Vec<(String, String)>,
    /// Whether it was stopped before the end.
    pub interrupted: bool,
    /// What ended it before its end.
    pub failure: Option<Failure>,
}

impl Outcome {
    /// The TOML beside the times of collectives, for what they cannot say themselves; `source` says how it was made.
    pub fn sidecar(&self, source: &str) -> String {
        let title = "collcast probe: our own schedules on the GPUs of one host, every result checked";
        sidecar(title, source, Some(&self.topology.to_string_lossy()), &self.facts, Launch::Graph).to_string()
    }
}

/// Finds out what this host's GPUs are and can do.
///
/// # Errors
/// No GPU or driver, a folder that cannot be written to. What goes wrong once it measures is part of the outcome.
pub fn probe(request: &Request) -> Result<Outcome, Error> {
    let mut cuda = Cuda::open()?;
    let seen = cuda.seen();
    make_folder(&request.folder)?;
    let file = request.folder.join("topology.toml");
    write(&file, seen.toml("probed", &date()).as_bytes())?;
    let topology = collcast_topologies::load_any(&file.to_string_lossy(), None, None)?;
    let mut outcome = Outcome {
        folder: request.folder.clone(),
        topology: file,
        peers: seen.peers || seen.gpus <= 1,
        spots: Vec::new(),
        rows: Vec::new(),
        kernels: Kernels::default(),
        facts: facts(&cuda),
        interrupted: false,
        failure: None,
    };
    let mut probe = Probe::new(request);
    let mut failure = None;
    if outcome.peers && !request.compute {
        failure = probe.all(&mut cuda, &topology).err();
    }
    if failure.is_none() {
        failure = probe.kernels(&cuda).err();
    }
    outcome.failure = failure.map(Into::into);
    outcome.facts.extend(clocks_after(&cuda));
    (outcome.spots, outcome.rows, outcome.interrupted) = (probe.spots, probe.rows, probe.interrupted);
    outcome.kernels = probe.kernels;
    Ok(outcome)
}

/// What a part may cost.
fn effort(request: &Request) -> Effort {
    Effort {
        warmup: 2,
        iterations: 20,
        batches: 7,
        budget: Duration::from_millis(if request.quick { 30 } else { 60 }),
        patience: request.patience,
    }
}

/// All that was found so far.
struct Probe<'a> {
    request: &'a Request,
    spots: Vec<Spot>,
    planned: Vec<Planned>,
    rows: Vec<MeasuredCall>,
    kernels: Kernels,
    interrupted: bool,
}

impl<'a> Probe<'a> {
    fn new(request: &'a Request) -> Self {
        Self {
            request,
            spots: Vec::new(),
            planned: Vec::new(),
            rows: Vec::new(),
            kernels: Kernels::default(),
            interrupted: false,
        }
    }

    /// Says what comes next. That it is to stop is seen before the next measurement.
    fn tell(&self, what: &str) {
        let _ = self.request.watch.stage(what);
    }

    fn stopped(&mut self) -> bool {
        self.interrupted |= self.request.watch.stopped();
        self.interrupted
    }

    fn all(&mut self, cuda: &mut Cuda, topology: &Topology) -> Result<(), Error> {
        let gpus = topology.ranks();
        self.tell("copies");
        self.copies(cuda, gpus)?;
        if gpus > 1 {
            self.tell("ping-pongs");
            self.ping_pongs(cuda)?;
            self.tell("collectives");
            self.collectives(cuda, topology)?;
            self.tell("contention");
            self.contention(cuda, gpus)?;
            self.tell("computation beside communication");
            self.overlap(cuda, topology)?;
        }
        Ok(())
    }

    /// Without cuBLASLt the rest is worth keeping.
    fn kernels(&mut self, cuda: &Cuda) -> Result<(), Error> {
        self.tell("kernels of one GPU");
        let request = self.request;
        let found = kernels::time(cuda, request.quick, &mut || !request.watch.stopped());
        self.interrupted |= request.watch.stopped();
        match found {
            Err(error) if error.code() == 3 && !request.compute => self.tell(&format!("left out: {error}")),
            found => self.kernels = found?,
        }
        Ok(())
    }

    fn copies(&mut self, cuda: &Cuda, gpus: u32) -> Result<(), Error> {
        let shifts: Vec<u32> = if self.request.quick { vec![2, 12, 20, 28] } else { (2..=28).step_by(2).collect() };
        let one = |pair: (u32, u32)| shifts.iter().map(move |&shift| (pair, 1_u64 << shift)).collect::<Vec<_>>();
        let mut wanted = one((0, 0));
        if gpus > 1 {
            wanted.extend(one((0, 1)));
        }
        let others =
            (0..gpus).flat_map(|a| (0..gpus).map(move |b| (a, b))).filter(|&(a, b)| a != b && (a, b) != (0, 1));
        wanted.extend(others.map(|pair| (pair, 1 << 26)));
        for ((src, dst), bytes) in wanted {
            if self.stopped() {
                break;
            }
            let us = cuda.copies(&[(src, dst)], bytes, &effort(self.request))?.median_us();
            let spot = Spot::of("copy", bytes, us);
            self.spots.push(Spot { src: Some(src), dst: Some(dst), gbps: Some(gbps(bytes, us)), ..spot });
        }
        Ok(())
    }

    fn contention(&mut self, cuda: &Cuda, gpus: u32) -> Result<(), Error> {
        for (name, pairs) in patterns(gpus) {
            if self.stopped() {
                break;
            }
            let bytes = 1 << 27;
            let us = cuda.copies(&pairs, bytes, &effort(self.request))?.median_us();
            let spot = Spot::of(format!("copies_{name}"), bytes, us);
            self.spots.push(Spot { gbps: Some(gbps(bytes * pairs.len() as u64, us)), ..spot });
        }
        Ok(())
    }

    /// The difference of many and few rounds: without what a kernel costs by itself.
    fn ping_pongs(&mut self, executor: &mut dyn Executor) -> Result<(), Error> {
        const ROUNDS: [u32; 2] = [16, 80];
        let sizes: &[u64] = if self.request.quick { &[8, 4096] } else { &[8, 128, 1024, 8192, 65_536] };
        for protocol in [Protocol::Ll, Protocol::Ll128, Protocol::Simple] {
            for &bytes in sizes {
                if self.stopped() {
                    return Ok(());
                }
                let mut times = [0.0; 2];
                for (time, rounds) in times.iter_mut().zip(ROUNDS) {
                    let schedule = ping_pong(protocol, bytes, rounds);
                    let case =
                        CallToRun { call: &schedule.call, schedule: Some(&schedule), launch: Launch::SingleThread };
                    *time = executor.run(&case, &effort(self.request))?.median_us();
                }
                let us = (times[1] - times[0]) / f64::from(2 * (ROUNDS[1] - ROUNDS[0]));
                let spot = Spot::of("ping_pong", bytes, us);
                self.spots.push(Spot { src: Some(0), dst: Some(1), protocol: Some(protocol), ..spot });
            }
        }
        Ok(())
    }

    fn collectives(&mut self, executor: &mut dyn Executor, topology: &Topology) -> Result<(), Error> {
        self.planned = wanted(topology.ranks(), self.request.quick);
        let parts = self.request.watch.parts(self.planned.len());
        for index in 0..self.planned.len() {
            if self.stopped() {
                break;
            }
            let plan = &self.planned[index];
            let Some(schedule) = schedule_of(topology, plan)? else { continue };
            let case = CallToRun { call: &plan.query.call, schedule: Some(&schedule), launch: Launch::Graph };
            let sample = executor.run(&case, &effort(self.request)).map_err(|e| Error::from(e).at(&plan.words()))?;
            self.rows.push(MeasuredCall::new(index, plan, Launch::Graph, sample, Some(schedule.identity())));
            // That it is to stop is seen before the next one: none is lost.
            let _ = parts.done();
        }
        Ok(())
    }

    fn overlap(&mut self, cuda: &mut Cuda, topology: &Topology) -> Result<(), Error> {
        const BYTES: u64 = 256 << 20;
        let channels: &[u32] = if self.request.quick { &[1, 8, 24] } else { &[1, 2, 4, 8, 16, 24, 32] };
        let size = if self.request.quick { 4096 } else { 8192 };
        for &channels in channels {
            if self.stopped() {
                break;
            }
            let wanted =
                plan((Collective::AllReduce, topology.ranks(), BYTES), Algorithm::Ring, Protocol::Simple, channels);
            let Some(schedule) = schedule_of(topology, &wanted)? else { continue };
            let patience = effort(self.request).patience;
            let found = match cuda.overlap(&schedule, size, patience).map_err(Error::from) {
                // The rest is worth keeping without it.
                Err(error) if error.code() == 3 => {
                    self.tell(&format!("left out: {error}"));
                    break;
                }
                other => other?,
            };
            let matrix = size * size * 2;
            for (kind, bytes, us) in [
                ("product", matrix, found.product_us),
                ("all_reduce", BYTES, found.collective_us),
                ("product_beside", matrix, found.product_beside_us),
                ("all_reduce_beside", BYTES, found.collective_beside_us),
            ] {
                self.spots.push(Spot { channels: Some(channels), ..Spot::of(kind, bytes, us) });
            }
        }
        Ok(())
    }
}

fn plan(
    (collective, ranks, bytes): (Collective, u32, u64),
    algorithm: Algorithm,
    protocol: Protocol,
    channels: u32,
) -> Planned {
    let call = Call::of_size(collective, ranks, Bytes(bytes), DataType::Float32);
    let query = Query::of(call).forced(algorithm, protocol).channels(channels);
    Planned { algorithm: Some(algorithm), protocol: Some(protocol), channels: Some(channels), ..Planned::new(query) }
}

/// The schedule that a prediction for this machine is made of.
fn schedule_of(topology: &Topology, plan: &Planned) -> Result<Option<Schedule>, Error> {
    let (Some(algorithm), Some(protocol)) = (plan.algorithm, plan.protocol) else { return Ok(None) };
    let profile = Profile::builtin("prior")?;
    let settings = Settings { launch: Launch::Graph, channels: plan.channels, ..Settings::default() };
    let predictor = Predictor::new(topology, &profile);
    Ok(Some(predictor.schedule(&plan.query.call, algorithm, protocol, &settings)?))
}

/// The collectives that are timed: what a lane costs shows with few channels, what a link carries
/// with many, what a step costs with small sizes.
fn wanted(gpus: u32, quick: bool) -> Vec<Planned> {
    use Algorithm::{Pat, Ring, Tree};
    use Collective::{AllGather, AllReduce, Broadcast};
    use Protocol::{Ll, Ll128, Simple};
    let power = |from: u32, to: u32, step: usize| (from..=to).step_by(step).map(|s| 1_u64 << s).collect::<Vec<_>>();
    let channels: &[u32] = if quick { &[1, 4, 8, 16, 24] } else { &[1, 2, 4, 8, 12, 16, 20, 24] };
    let mut all = Vec::new();
    let mut add = |collective, ranks, algorithm, protocol, channels: &[u32], sizes: Vec<u64>| {
        for &channels in channels {
            all.extend(sizes.iter().map(|&size| plan((collective, ranks, size), algorithm, protocol, channels)));
        }
    };
    // One way between two GPUs: what blocks move.
    add(Broadcast, 2, Ring, Simple, channels, vec![1 << 26]);
    let mut ranks = vec![gpus];
    if gpus > 2 && !quick {
        ranks.push(2);
    }
    for ranks in ranks {
        add(AllReduce, ranks, Ring, Simple, channels, if quick { power(20, 28, 4) } else { power(12, 28, 2) });
        add(AllReduce, ranks, Ring, Ll, &[1, 8], if quick { power(3, 17, 7) } else { power(3, 20, 2) });
        add(AllReduce, ranks, Ring, Ll128, &[1, 8], if quick { power(10, 24, 7) } else { power(8, 26, 2) });
        add(AllReduce, ranks, Tree, Simple, &[1, 8], if quick { power(20, 26, 6) } else { power(14, 28, 2) });
        if !quick {
            add(AllReduce, ranks, Tree, Ll, &[1, 8], power(3, 20, 3));
            add(AllReduce, ranks, Tree, Ll128, &[1, 8], power(8, 26, 3));
            add(AllGather, ranks, Ring, Simple, &[1, 8, 24], power(14, 28, 2));
            add(AllGather, ranks, Pat, Simple, &[1, 8], power(14, 26, 3));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

    use super::*;
    use collcast_hwbackend::host::Host;
    use collcast_hwbackend::read::{ReadOptions, read_paths};
    use collcast_reports::csv;

    /// Goal: what is written is what others read: collectives as measurements, the rest not; and
    /// every schedule on the list can be made for the machine, with results that are exact.
    /// Method: the host executor in place of GPUs, on the list's smallest calls.
    #[test]
    fn files_are_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let request = Request { quick: true, ..Request::new(dir.path()) };
        let topology = collcast_topologies::load_any("h200x4", None, None).unwrap();
        for quick in [true, false] {
            for plan in wanted(4, quick) {
                assert!(schedule_of(&topology, &plan).unwrap().is_some(), "{}", plan.words());
            }
        }
        let mut probe = Probe::new(&request);
        probe.ping_pongs(&mut Host).unwrap();
        assert_eq!(probe.spots.len(), 6);
        for (index, plan) in wanted(4, true).iter().enumerate().filter(|(_, p)| p.query.call.size().0 <= 4096) {
            let schedule = schedule_of(&topology, plan).unwrap().unwrap();
            let case = CallToRun { call: &plan.query.call, schedule: Some(&schedule), launch: Launch::Graph };
            let sample = Host.run(&case, &effort(&request)).unwrap();
            probe.rows.push(MeasuredCall::new(index, plan, Launch::Graph, sample, Some(schedule.identity())));
        }
        assert!(probe.rows.len() >= 4);
        let outcome = Outcome {
            folder: dir.path().to_owned(),
            topology: dir.path().join("topology.toml"),
            peers: true,
            spots: probe.spots,
            rows: probe.rows,
            kernels: Kernels::default(),
            facts: vec![("gpu".to_owned(), "none".to_owned())],
            interrupted: false,
            failure: None,
        };
        let write = |name: &str, text: String| std::fs::write(dir.path().join(name), text).unwrap();
        write("probe.csv", csv::render(&outcome.spots_report()));
        write("collectives.csv", csv::render(&outcome.rows_report()));
        write("collectives.toml", outcome.sidecar("collcast probe"));
        let read = read_paths(&[dir.path().to_owned()], &ReadOptions::default()).unwrap();
        assert_eq!(read.measurements.len(), outcome.rows.len());
        assert!(read.measurements.iter().all(|m| m.forced() && m.launch == Some(Launch::Graph)));
    }

    /// Goal: kernels are written as tables that a GPU's profile is judged by and fitted to, every row of them.
    #[test]
    fn kernels_are_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let times = Times { us: 5000.0, least_us: 4900.0, most_us: 5100.0 };
        let wanted = kernels::products(false);
        let product = |&(linear, dtype, kind): &(collcast_hwbackend::cuda::Linear, _, _)| TimedProduct {
            dtype,
            kind,
            shape: [linear.tokens, linear.outputs, linear.inputs],
            times,
        };
        let found = Kernels {
            products: wanted.iter().map(product).collect(),
            sustained: vec![TimedLong { size: 8192, seconds: 0.2, us: 1600.0 }],
            memory: vec![
                TimedMemory { kernel: "device_copy_bytes", bytes: 1 << 28, times },
                TimedMemory { kernel: "memset_bytes", bytes: 1 << 28, times },
            ],
        };
        assert!(wanted.len() >= 64 && kernels::products(true).len() >= 16);
        let outcome = Outcome {
            folder: dir.path().to_owned(),
            topology: dir.path().join("topology.toml"),
            peers: true,
            spots: Vec::new(),
            rows: Vec::new(),
            kernels: found,
            facts: Vec::new(),
            interrupted: false,
            failure: None,
        };
        for (name, report) in outcome.kernel_reports() {
            std::fs::write(dir.path().join(name), csv::render(&report)).unwrap();
        }
        let measurements = vec![dir.path().to_owned()];
        let request = crate::kernels::Request { measurements, gpu: "h100".to_owned(), max_error: None };
        let judged = crate::kernels::judge(&request).unwrap();
        assert_eq!(judged.rows.len(), wanted.len() + 3);
    }

    /// Goal: an interrupt ends every part before its next point, and is told.
    #[test]
    fn an_interrupt_ends_it() {
        let request = Request::new("probe");
        let topology = collcast_topologies::load_any("h200x4", None, None).unwrap();
        request.watch.stop();
        let mut probe = Probe::new(&request);
        probe.ping_pongs(&mut Host).unwrap();
        probe.collectives(&mut Host, &topology).unwrap();
        assert!(probe.interrupted && probe.spots.is_empty() && probe.rows.is_empty());
    }
}

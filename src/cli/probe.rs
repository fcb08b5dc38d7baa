//! `collcast probe`: what a machine with GPUs is and can do, as files that `calibrate` takes.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use collcast_hwbackend::cuda::Cuda;
use collcast_hwbackend::exec::{Case, Effort, Executor};
use collcast_hwbackend::probe::{patterns, ping_pong};
use collcast_reports::model::{Cell, Column, Report, Status, Table, Verdict};
use collcast_reports::{csv, terminal};
use collcast_sim::collective::{Algorithm, Collective, DataType, Launch, Protocol};
use collcast_sim::predict::{Predictor, Settings};
use collcast_sim::profile::Profile;
use collcast_sim::schedule::{Call, Schedule};
use collcast_sim::topology::Topology;
use collcast_sim::units::Bytes;

use crate::bench::{Measured, Planned, Row, date, describe, progress, seconds, sidecar, table};
use crate::output::tell;
use crate::output::write;
use crate::selectors::Point;
use collcast::{Error as CliError, Query};

#[derive(clap::Args, Debug)]
#[command(after_help = "Writes DIR/topology.toml (the machine as the driver sees it), DIR/collectives.csv (times of \
schedules on its GPUs, every result checked) and DIR/probe.csv (copies, ping-pongs, contention, computation beside \
communication). Then: collcast calibrate DIR -t DIR/topology.toml")]
pub(crate) struct Args {
    /// Folder for what is found; made where it is not there
    #[arg(short, long, value_name = "DIR", default_value = "probe")]
    output: PathBuf,
    /// Fewer sizes and channels: well below a minute
    #[arg(long)]
    quick: bool,
    /// Seconds that a device may wait for a peer
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = seconds)]
    watchdog: f64,
}

/// A measurement that is not of a collective.
#[derive(Clone, Default)]
struct Spot {
    kind: String,
    src: Option<u32>,
    dst: Option<u32>,
    bytes: u64,
    channels: Option<u32>,
    protocol: Option<Protocol>,
    us: f64,
    gbps: Option<f64>,
}

/// What the columns of `probe.csv` mean, for its first lines.
const SPOTS: [&str; 7] = [
    "copy: one copy by a copy engine from GPU src to dst (the same GPU: within its memory), back to back; bytes, us of one, gbps",
    "copies_*: copies of many pairs at once; us of the slowest pair, gbps of all pairs together",
    "ping_pong: one way of a message between two GPUs through the kernel's FIFO, start and end of the kernel taken out",
    "product: one matrix product of bfloat16, bytes of one matrix, on every GPU, alone",
    "all_reduce: one all-reduce of bytes, ring/simple over channels, alone",
    "product_beside, all_reduce_beside: the same while the other runs",
    "us is the median of the slowest GPU; gbps counts 1e9 bytes a second",
];

impl Spot {
    fn of(kind: impl Into<String>, bytes: u64, us: f64) -> Self {
        Self { kind: kind.into(), bytes, us, ..Self::default() }
    }
}

#[expect(clippy::cast_precision_loss, reason = "an edge")]
fn gbps(bytes: u64, us: f64) -> Option<f64> {
    Some(bytes as f64 / us / 1e3)
}

/// All that was found so far.
struct Probe<'a> {
    args: &'a Args,
    spots: Vec<Spot>,
    planned: Vec<Planned>,
    measured: Measured,
    stop: Arc<AtomicBool>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, CliError> {
    let mut cuda = Cuda::open()?;
    let seen = cuda.seen();
    let stop = Arc::new(AtomicBool::new(false));
    let handler = Arc::clone(&stop);
    // A second Ctrl-C while the first is being honoured changes nothing; what was found is kept.
    let _ = ctrlc::set_handler(move || handler.store(true, Ordering::Relaxed));
    std::fs::create_dir_all(&args.output).map_err(|source| CliError::File {
        what: "make the folder",
        path: args.output.clone(),
        source,
    })?;
    let file = args.output.join("topology.toml");
    write(Some(&file), seen.toml("probed", &date()).as_bytes())?;
    let topology = collcast_topologies::load_any(&file.to_string_lossy(), None, None)?;
    if !seen.peers && seen.gpus > 1 {
        say!("note: the GPUs do not reach each other's memory, so only the topology is written");
        return Ok(ExitCode::SUCCESS);
    }
    let facts = cuda.facts().into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let measured = Measured { facts, ..Measured::default() };
    let mut probe = Probe { args, spots: Vec::new(), planned: Vec::new(), measured, stop };
    let found = probe.all(&mut cuda, &topology);
    let after = cuda.facts().into_iter().filter(|(key, _)| *key == "clocks_mhz");
    probe.measured.facts.extend(after.map(|(_, value)| ("clocks_mhz_after".to_owned(), value)));
    probe.write(&file)?;
    let printed = probe.print(&file);
    found.and(printed)?;
    Ok(if probe.measured.interrupted { ExitCode::from(130) } else { ExitCode::SUCCESS })
}

/// What a part may cost.
fn effort(args: &Args) -> Effort {
    Effort {
        warmup: 2,
        iterations: 20,
        batches: 7,
        budget: Duration::from_millis(if args.quick { 30 } else { 60 }),
        patience: Duration::from_secs_f64(args.watchdog),
    }
}

impl Probe<'_> {
    fn stopped(&mut self) -> bool {
        self.measured.interrupted |= self.stop.load(Ordering::Relaxed);
        self.measured.interrupted
    }

    fn all(&mut self, cuda: &mut Cuda, topology: &Topology) -> Result<(), CliError> {
        let gpus = topology.ranks();
        say!("note: copies");
        self.copies(cuda, gpus)?;
        if gpus > 1 {
            say!("note: ping-pongs");
            self.ping_pongs(cuda)?;
            say!("note: collectives");
            self.collectives(cuda, topology)?;
            say!("note: contention");
            self.contention(cuda, gpus)?;
            say!("note: computation beside communication");
            self.overlap(cuda, topology)?;
        }
        Ok(())
    }

    fn copies(&mut self, cuda: &Cuda, gpus: u32) -> Result<(), CliError> {
        let shifts: Vec<u32> = if self.args.quick { vec![2, 12, 20, 28] } else { (2..=28).step_by(2).collect() };
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
            let us = cuda.copies(&[(src, dst)], bytes, &effort(self.args))?.median_us();
            let spot = Spot::of("copy", bytes, us);
            self.spots.push(Spot { src: Some(src), dst: Some(dst), gbps: gbps(bytes, us), ..spot });
        }
        Ok(())
    }

    fn contention(&mut self, cuda: &Cuda, gpus: u32) -> Result<(), CliError> {
        for (name, pairs) in patterns(gpus) {
            if self.stopped() {
                break;
            }
            let bytes = 1 << 27;
            let us = cuda.copies(&pairs, bytes, &effort(self.args))?.median_us();
            let spot = Spot::of(format!("copies_{name}"), bytes, us);
            self.spots.push(Spot { gbps: gbps(bytes * pairs.len() as u64, us), ..spot });
        }
        Ok(())
    }

    /// The difference of many and few rounds: without what a kernel costs by itself.
    fn ping_pongs(&mut self, executor: &mut dyn Executor) -> Result<(), CliError> {
        const ROUNDS: [u32; 2] = [16, 80];
        let sizes: &[u64] = if self.args.quick { &[8, 4096] } else { &[8, 128, 1024, 8192, 65_536] };
        for protocol in [Protocol::Ll, Protocol::Ll128, Protocol::Simple] {
            for &bytes in sizes {
                if self.stopped() {
                    return Ok(());
                }
                let mut times = [0.0; 2];
                for (time, rounds) in times.iter_mut().zip(ROUNDS) {
                    let schedule = ping_pong(protocol, bytes, rounds);
                    let case = Case { call: &schedule.call, schedule: Some(&schedule), launch: Launch::SingleThread };
                    *time = executor.run(&case, &effort(self.args))?.median_us();
                }
                let us = (times[1] - times[0]) / f64::from(2 * (ROUNDS[1] - ROUNDS[0]));
                let spot = Spot::of("ping_pong", bytes, us);
                self.spots.push(Spot { src: Some(0), dst: Some(1), protocol: Some(protocol), ..spot });
            }
        }
        Ok(())
    }

    fn collectives(&mut self, executor: &mut dyn Executor, topology: &Topology) -> Result<(), CliError> {
        self.planned = wanted(topology.ranks(), self.args.quick);
        let bar = progress(self.planned.len());
        for index in 0..self.planned.len() {
            if self.stopped() {
                break;
            }
            let plan = &self.planned[index];
            let Some(schedule) = schedule_of(topology, plan)? else { continue };
            let case = Case { call: &plan.point.call, schedule: Some(&schedule), launch: Launch::Graph };
            let sample = executor.run(&case, &effort(self.args)).map_err(|e| CliError::from(e).at(&describe(plan)))?;
            self.measured.rows.push(Row { planned: index, sample, schedule: Some(schedule.identity()) });
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(())
    }

    fn overlap(&mut self, cuda: &mut Cuda, topology: &Topology) -> Result<(), CliError> {
        const BYTES: u64 = 256 << 20;
        let channels: &[u32] = if self.args.quick { &[1, 8, 24] } else { &[1, 2, 4, 8, 16, 24, 32] };
        let size = if self.args.quick { 4096 } else { 8192 };
        for &channels in channels {
            if self.stopped() {
                break;
            }
            let wanted =
                plan((Collective::AllReduce, topology.ranks(), BYTES), Algorithm::Ring, Protocol::Simple, channels);
            let Some(schedule) = schedule_of(topology, &wanted)? else { continue };
            let patience = effort(self.args).patience;
            let found = match cuda.overlap(&schedule, size, patience).map_err(CliError::from) {
                // The rest is worth keeping without it.
                Err(error) if error.code() == 3 => {
                    say!("note: left out: {error}");
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

    fn rows(&self) -> Table {
        table("cuda", &self.planned, &self.measured, Launch::Graph)
    }

    fn spots(&self) -> Table {
        let columns = [
            Column::text("kind", "kind"),
            Column::number("src", "src"),
            Column::number("dst", "dst"),
            Column::number("bytes", "bytes"),
            Column::number("channels", "ch"),
            Column::text("protocol", "protocol"),
            Column::number("us", "us"),
            Column::number("gbps", "GB/s"),
        ];
        let mut table = Table::new("spots", "what is no collective", columns);
        for spot in &self.spots {
            table.push([
                spot.kind.as_str().into(),
                spot.src.into(),
                spot.dst.into(),
                spot.bytes.into(),
                spot.channels.into(),
                spot.protocol.map(Protocol::name).into(),
                Cell::float(spot.us, 3),
                spot.gbps.map_or(Cell::Missing, |v| Cell::float(v, 2)),
            ]);
        }
        table
    }

    fn report(&self, assumptions: Vec<String>, tables: Vec<Table>) -> Report {
        let mut report = Report::new("probe", env!("CARGO_PKG_VERSION"));
        let gpu = self.measured.facts.iter().find(|(key, _)| key == "gpu").map(|(_, value)| value.as_str());
        report.assumptions.push(format!("measured on {}", gpu.unwrap_or("unknown hardware")));
        report.assumptions.extend(assumptions);
        report.tables = tables;
        report
    }

    fn write(&self, topology: &Path) -> Result<(), CliError> {
        let folder = &self.args.output;
        let spots = self.report(SPOTS.map(str::to_owned).to_vec(), vec![self.spots()]);
        write(Some(&folder.join("probe.csv")), csv::render(&spots).as_bytes())?;
        if self.measured.rows.is_empty() {
            return Ok(());
        }
        let rows = self.report(Vec::new(), vec![self.rows()]);
        write(Some(&folder.join("collectives.csv")), csv::render(&rows).as_bytes())?;
        let name = topology.to_string_lossy();
        let beside = sidecar(
            "collcast probe: our own schedules on the GPUs of one host, every result checked",
            Some(&name),
            &self.measured.facts,
            Launch::Graph,
        );
        write(Some(&folder.join("collectives.toml")), beside.to_string().as_bytes())
    }

    fn print(&self, topology: &Path) -> Result<(), CliError> {
        let mut report = self.report(Vec::new(), vec![self.spots(), self.rows()]);
        let folder = self.args.output.display();
        report.verdict = Some(Verdict {
            status: if self.measured.interrupted { Status::Warning } else { Status::Ok },
            sentence: format!(
                "{} times of collectives and {} others are in {folder}{}",
                self.measured.rows.len(),
                self.spots.len(),
                if self.measured.interrupted { ", interrupted before the end" } else { "" }
            ),
            confidence: "high: every result of a collective was compared".to_owned(),
            basis: "measured".to_owned(),
            next: Some(format!("fit a profile: `collcast calibrate {folder} -t {}`", topology.display())),
        });
        write(None, terminal::render(&report, None).as_bytes())?;
        tell(&terminal::notes(&report));
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
    let point = Point { nodes: 1, query: Query::of(call).forced(algorithm, protocol).channels(channels) };
    Planned { point, algorithm: Some(algorithm), protocol: Some(protocol), channels: Some(channels) }
}

/// The schedule that a prediction for this machine is made of.
fn schedule_of(topology: &Topology, plan: &Planned) -> Result<Option<Schedule>, CliError> {
    let (Some(algorithm), Some(protocol)) = (plan.algorithm, plan.protocol) else { return Ok(None) };
    let profile = Profile::builtin("prior")?;
    let settings = Settings { launch: Launch::Graph, channels: plan.channels, ..Settings::default() };
    let predictor = Predictor::new(topology, &profile);
    Ok(Some(predictor.schedule(&plan.point.call, algorithm, protocol, &settings)?))
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

    /// Goal: what is written is what others read: collectives as measurements, the rest not; and
    /// every schedule on the list can be made for the machine, with results that are exact.
    /// Method: the host executor in place of GPUs, on the list's smallest calls.
    #[test]
    fn files_are_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let args = Args { output: dir.path().to_owned(), quick: true, watchdog: 2.0 };
        let topology = collcast_topologies::load_any("h200x4", None, None).unwrap();
        for quick in [true, false] {
            for plan in wanted(4, quick) {
                assert!(schedule_of(&topology, &plan).unwrap().is_some(), "{}", describe(&plan));
            }
        }
        let stop = Arc::new(AtomicBool::new(false));
        let measured = Measured { facts: vec![("gpu".to_owned(), "none".to_owned())], ..Measured::default() };
        let mut probe = Probe { args: &args, spots: vec![], planned: vec![], measured, stop };
        probe.ping_pongs(&mut Host).unwrap();
        assert_eq!(probe.spots.len(), 6);
        probe.planned = wanted(4, true).into_iter().filter(|p| p.point.call.size().0 <= 4096).collect();
        for index in 0..probe.planned.len() {
            let plan = &probe.planned[index];
            let schedule = schedule_of(&topology, plan).unwrap().unwrap();
            let case = Case { call: &plan.point.call, schedule: Some(&schedule), launch: Launch::Graph };
            let sample = Host.run(&case, &effort(&args)).unwrap();
            probe.measured.rows.push(Row { planned: index, sample, schedule: Some(schedule.identity()) });
        }
        assert!(probe.planned.len() >= 4);
        probe.write(&dir.path().join("topology.toml")).unwrap();
        let read = read_paths(&[dir.path().to_owned()], &ReadOptions::default()).unwrap();
        assert_eq!(read.measurements.len(), probe.planned.len());
        assert!(read.measurements.iter().all(|m| m.forced() && m.launch == Some(Launch::Graph)));
    }

    /// Goal: an interrupt ends every part before its next point, and is told.
    #[test]
    fn an_interrupt_ends_it() {
        let dir = tempfile::tempdir().unwrap();
        let args = Args { output: dir.path().to_owned(), quick: false, watchdog: 2.0 };
        let topology = collcast_topologies::load_any("h200x4", None, None).unwrap();
        let stop = Arc::new(AtomicBool::new(true));
        let mut probe = Probe { args: &args, spots: vec![], planned: vec![], measured: Measured::default(), stop };
        probe.ping_pongs(&mut Host).unwrap();
        probe.collectives(&mut Host, &topology).unwrap();
        assert!(probe.measured.interrupted && probe.spots.is_empty() && probe.measured.rows.is_empty());
    }
}

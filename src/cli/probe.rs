//! `collcast probe`: what a machine with GPUs is and can do, as files that `calibrate` takes.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use collcast::Error;
use collcast::probe::{NetworkRequest, Outcome, Request, network, probe};
use collcast_hwbackend::rendezvous::World;
use collcast_hwbackend::verbs::{Options, Place, Verbs};
use collcast_reports::csv;
use collcast_reports::model::Report;

use super::bench::{VerbsArgs, source};
use super::call::Code;
use super::launch;
use super::output::{FormatArgs, write};
use super::progress::told;
use super::selectors::{Named, span};

/// What is probed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Probed {
    /// The GPUs of this host
    Cuda,
    /// The NICs between processes, over RDMA verbs
    Verbs,
}

#[derive(clap::Args, Debug)]
#[command(after_help = "Writes DIR/topology.toml (the machine as the driver sees it), DIR/collectives.csv (times of \
schedules on its GPUs, every result checked) and DIR/probe.csv (copies, ping-pongs, contention, computation beside \
communication), and of the first GPU DIR/products.csv, DIR/sustained.csv and DIR/memory.csv. Then: collcast calibrate DIR \
-t DIR/topology.toml, and collcast calibrate DIR --compute H100

With --backend verbs it writes DIR/verbs.csv (latencies, costs, rates of the NICs between rank 0 and each other rank) and \
DIR/network.toml, a profile with the constants of the network that follow from them. It starts two processes here, or \
takes its place under torchrun, mpirun or srun.")]
pub(crate) struct Args {
    /// Write there: the folder for what is found; made where it is not there
    #[arg(short, long, value_name = "DIR", default_value = "probe")]
    output: PathBuf,
    /// What is probed
    #[arg(long, value_enum, default_value = "cuda")]
    backend: Probed,
    #[command(flatten)]
    verbs: VerbsArgs,
    /// Memory that the NICs read and write for verbs
    #[arg(long, value_enum, default_value = "host")]
    memory: Memory,
    /// Processes that are started here for verbs, of which the first is measured with each other
    #[arg(long, alias = "ranks", value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=64))]
    processes: u32,
    /// Take less time: fewer sizes and channels, well below a minute
    #[arg(long)]
    quick: bool,
    /// Kernels of the first GPU alone, no collectives: products, copies, the clock under load
    #[arg(long, alias = "compute")]
    kernels_only: bool,
    /// Time that a device may wait for a peer
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = span)]
    watchdog: Duration,
    #[command(flatten)]
    format: FormatArgs,
}

/// Where memory lies, as the command line names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Memory {
    /// On the host
    Host,
    /// On a GPU, which the NICs must reach (GPUDirect RDMA): by dma-buf, else by peer memory
    Gpu,
}

impl Memory {
    fn place(self) -> Place {
        match self {
            Self::Host => Place::Host,
            Self::Gpu => Place::Gpu,
        }
    }
}

/// Batches of a measurement over verbs, and of a quick one.
const BATCHES: (u32, u32) = (21, 7);

pub(crate) fn run(args: &Args, given: &Named) -> Result<Code, Error> {
    if args.backend == Probed::Verbs {
        given.without(&["--kernels-only"], "it is of GPUs", "leave it out, or leave --backend out")?;
        return probe_network(args);
    }
    given.without(
        &["--nics", "--qps", "--memory", "--processes"],
        "it is of RDMA verbs",
        "leave it out, or add --backend verbs",
    )?;
    let (progress, watch) = told("measuring", "note: ");
    let patience = args.watchdog;
    let outcome = probe(&Request {
        quick: args.quick,
        compute: args.kernels_only,
        patience,
        watch,
        ..Request::new(&args.output)
    })?;
    drop(progress);
    if !outcome.peers {
        say!("note: the GPUs do not reach each other's memory, so collectives are left out");
    }
    save(&outcome)?;
    let printed = args.format.print(&outcome.report());
    match outcome.failure {
        Some(failure) => Err(failure.into()),
        None => printed.map(|()| if outcome.interrupted { Code::from(130) } else { Code::SUCCESS }),
    }
}

/// Measures the NICs: as one process of a job, or as those that it starts.
fn probe_network(args: &Args) -> Result<Code, Error> {
    let world = World::from_env(&|name| std::env::var(name).ok())?;
    let rank = world.as_ref().map_or(0, |world| world.rank);
    let verbs = Options { memory: args.memory.place(), ..args.verbs.options(rank) };
    let Some(world) = world else {
        Verbs::find(&verbs, 0)?;
        return launch::processes(args.processes);
    };
    let (progress, watch) = told("measuring", "note: ");
    let (folder, patience) = (args.output.clone(), args.watchdog);
    let batches = if args.quick { BATCHES.1 } else { BATCHES.0 };
    let outcome = network(&NetworkRequest { folder, quick: args.quick, batches, patience, world, verbs, watch })?;
    drop(progress);
    if rank > 0 {
        return Ok(Code::SUCCESS);
    }
    let file = |name: &str, text: &str| write(Some(&outcome.folder.join(name)), text.as_bytes());
    let report: Report = outcome.report();
    file("verbs.csv", &csv::render(&outcome.rows_report()))?;
    if let Some(profile) = outcome.profile() {
        file("network.toml", &profile)?;
    }
    args.format.print(&report)?;
    Ok(Code::SUCCESS)
}

/// Writes what was found beside the topology.
fn save(outcome: &Outcome) -> Result<(), Error> {
    let file = |name: &str, text: String| write(Some(&outcome.folder.join(name)), text.as_bytes());
    for (name, table) in outcome.kernel_reports() {
        file(name, csv::render(&table))?;
    }
    if !outcome.spots.is_empty() {
        file("probe.csv", csv::render(&outcome.spots_report()))?;
    }
    if outcome.rows.is_empty() {
        return Ok(());
    }
    file("collectives.csv", csv::render(&outcome.rows_report()))?;
    file("collectives.toml", outcome.sidecar(&source()))
}

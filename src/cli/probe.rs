//! `collcast probe`: what a machine with GPUs is and can do, as files that `calibrate` takes.

use std::path::PathBuf;
use std::time::Duration;

use collcast::Error;
use collcast::probe::{Outcome, Request, probe};
use collcast_reports::{csv, terminal};

use super::bench::{seconds, source, watched};
use super::call::Code;
use super::output::{tell, write};

#[derive(clap::Args, Debug)]
#[command(after_help = "Writes DIR/topology.toml (the machine as the driver sees it), DIR/collectives.csv (times of \
schedules on its GPUs, every result checked) and DIR/probe.csv (copies, ping-pongs, contention, computation beside \
communication), and of the first GPU DIR/products.csv, DIR/sustained.csv and DIR/memory.csv. Then: collcast calibrate DIR \
-t DIR/topology.toml, and collcast calibrate DIR --compute H100")]
pub(crate) struct Args {
    /// Folder for what is found; made where it is not there
    #[arg(short, long, value_name = "DIR", default_value = "probe")]
    output: PathBuf,
    /// Fewer sizes and channels: well below a minute
    #[arg(long)]
    quick: bool,
    /// Kernels of the first GPU alone, no collectives: products, copies, the clock under load
    #[arg(long)]
    compute: bool,
    /// Seconds that a device may wait for a peer
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = seconds)]
    watchdog: f64,
}

pub(crate) fn run(args: &Args) -> Result<Code, Error> {
    let (bar, watch) = watched("note: ");
    let patience = Duration::from_secs_f64(args.watchdog);
    let outcome =
        probe(&Request { quick: args.quick, compute: args.compute, patience, watch, ..Request::new(&args.output) })?;
    bar.finish_and_clear();
    if !outcome.peers {
        say!("note: the GPUs do not reach each other's memory, so collectives are left out");
    }
    save(&outcome)?;
    let report = outcome.report();
    let printed = write(None, terminal::render(&report, None).as_bytes());
    if printed.is_ok() {
        tell(&terminal::notes(&report));
    }
    match outcome.failure {
        Some(failure) => Err(failure.into()),
        None => printed.map(|()| if outcome.interrupted { Code::from(130) } else { Code::SUCCESS }),
    }
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

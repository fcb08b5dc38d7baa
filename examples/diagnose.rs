//! Which fault fits measurements that are not what the machine should give.
//!
//! `cargo run --release --example diagnose [MEASUREMENTS] [TOPOLOGY]`

use collcast::diagnose::diagnose;
use collcast::hwbackend::read::{ReadOptions, read_paths};
use collcast::{Error, Site, Watch};

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    // Four H200 that ran with peer-to-peer access switched off.
    let file = args.next().unwrap_or_else(|| "tests/data/doctor/p2p_disable_1_4.csv".to_owned());
    let site = Site::load(&args.next().unwrap_or_else(|| "h200x4".to_owned()))?;
    let measured = read_paths(&[file.into()], &ReadOptions::default())?;
    let outcome = diagnose(&site, &measured, &Watch::default())?;
    for found in &outcome.anomalies {
        println!("{} ({}): {}", found.kind, if found.error { "error" } else { "warning" }, found.evidence);
        println!("  next: {}", found.suggestion);
    }
    for run in &outcome.causes {
        println!("{}, {} ranks: {} sizes took longer than they may", run.run, run.ranks, run.sizes_beyond);
    }
    Ok(())
}

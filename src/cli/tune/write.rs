//! The files: a table for NVIDIA's example tuner, an environment file, the report.

use std::fmt::Write as _;
use std::path::Path;

use collcast_reports::model::Report;
use collcast_reports::{json, markdown};
use collcast_sim::collective::Collective;

use super::advice::{Advice, Run, runs, taken};
use super::options::Site;
use crate::output::write;
use collcast::Error as CliError;

/// First words of every file.
pub(super) const PREDICTED: &str =
    "Written by `collcast tune`; check it with `collcast compare` on runs before and after.";

/// Which machine the settings are for.
pub(super) struct Machine<'a> {
    pub(super) name: &'a str,
    pub(super) hosts: u32,
    pub(super) ranks: u32,
}

/// The plugin's name of a collective.
fn collective(collective: Collective) -> String {
    collective.name().replace('_', "")
}

/// Lines for NVIDIA's example tuner. The plugin takes one channel where no line matches or a line
/// says -1, so every size has a line and every line its channels: what is not changed is NCCL's
/// own choice, written out. Collectives that were not looked at would get one channel: the
/// caller's list should hold all that the job uses.
pub(super) fn tuner_csv(sites: &[Site], advice: &[Option<Advice>], machine: &Machine<'_>) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "# NCCL tuner table for {}. {PREDICTED}", machine.name);
    let _ = writeln!(out, "# A collective without a line runs on one channel: tune all that are used (-c all).");
    let _ = writeln!(
        out,
        "# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"
    );
    let key = |site: &Site, advice: Option<&Advice>| {
        let option = taken(site, advice);
        (option.prediction.instead_of.unwrap_or(option.pair), option.prediction.plan.channels)
    };
    for Run { from, to, members } in runs(sites, advice, key) {
        let (site, last) = members[members.len() - 1];
        let ((algorithm, protocol), channels) = key(site, last);
        let _ = writeln!(
            out,
            "{},{from},{to},{},{},{channels},{},{},-1,-1",
            collective(site.call.collective),
            algorithm.name(),
            protocol.name(),
            machine.hosts,
            machine.ranks,
        );
    }
    out
}

/// Writes all files, each whole or not at all.
pub(super) fn folder(folder: &Path, report: &Report, csv: &str, env: &str) -> Result<(), CliError> {
    std::fs::create_dir_all(folder).map_err(|source| CliError::File {
        what: "make the folder",
        path: folder.to_owned(),
        source,
    })?;
    let files = [
        ("tuner.csv", csv.to_owned()),
        ("nccl.env", env.to_owned()),
        ("tune.json", json::render(report)),
        ("tune.md", markdown::render(report)),
    ];
    for (name, text) in files {
        write(Some(&folder.join(name)), text.as_bytes())?;
    }
    Ok(())
}

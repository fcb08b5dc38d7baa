//! Which machine each file is of, and which of its rows can be fitted to.

use std::collections::BTreeMap;

use collcast_hwbackend::read::{FileReport, ReadReport};
use collcast_sim::calibrate::{CalibrateError, Sample};
use collcast_sim::collective::{Collective, Launch};
use collcast_sim::doctor::Question;
use collcast_sim::measurement::Measurement;
use collcast_sim::predict::{Predictor, Settings};
use collcast_sim::profile::{DataFile, Profile};
use collcast_sim::topology::Topology;
use rayon::prelude::*;

use super::request::Request;
use crate::error::Error;
use crate::site::SiteSpec;
use crate::validate::judged::{hosts_of_rows, not_predicted, question};

/// The machines that measurements are from, and which one each file is of.
pub(super) struct Machines {
    pub(super) topologies: Vec<Topology>,
    pub(super) files: BTreeMap<String, MachineOf>,
}

/// What files of one machine share: its name, the NCCL version, the most hosts to look at.
type Kind<'f> = (&'f str, Option<&'f str>, Option<u32>);

/// What is known of the rows of one file.
pub(super) struct MachineOf {
    pub(super) machine: usize,
    pub(super) data: DataFile,
    pub(super) nccl: Option<String>,
    source: String,
    report: FileReport,
}

impl Machines {
    /// Of all files the one that is asked for, else of each what the `.toml` beside it names.
    pub(super) fn of(read: &ReadReport, asked: Option<&str>) -> Result<Self, Error> {
        let mut rows: BTreeMap<&str, Vec<&Measurement>> = BTreeMap::new();
        for row in &read.measurements {
            rows.entry(row.origin.file.as_str()).or_default().push(row);
        }
        let mut kinds: BTreeMap<Kind<'_>, Vec<&FileReport>> = BTreeMap::new();
        for file in read.files.iter().filter(|f| f.rows > 0) {
            let machine = asked.or(file.machine.as_deref()).ok_or_else(|| {
                Error::usage(
                    format!("{}: the measurements do not say which machine they are from", file.path.display()),
                    "name it with `-t TOPOLOGY` (collcast topo list), or put `topology = \"...\"` in a .toml beside the file",
                )
            })?;
            kinds.entry((machine, file.nccl.as_deref(), file.hosts_at_most)).or_default().push(file);
        }
        let mut machines = Self { topologies: Vec::new(), files: BTreeMap::new() };
        for ((name, nccl, at_most), files) in kinds {
            let path = |file: &FileReport| file.path.display().to_string();
            let of = files.iter().filter_map(|f| rows.get(path(f).as_str())).flatten().copied();
            let (nodes, gpus) = hosts_of_rows(name, (None, None), at_most, of)?;
            let mut topology = SiteSpec { nodes, gpus, ..SiteSpec::new(name) }.topology()?;
            topology.software.nccl = nccl.and_then(|text| text.parse().ok()).or(topology.software.nccl);
            for file in files {
                let of = MachineOf {
                    machine: machines.topologies.len(),
                    data: DataFile { file: path(file), hash: file.hash.clone(), rows: 0 },
                    nccl: file.nccl.clone(),
                    source: file.publisher.clone().unwrap_or_else(|| path(file)),
                    report: file.clone(),
                };
                machines.files.insert(path(file), of);
            }
            machines.topologies.push(topology);
        }
        if machines.topologies.is_empty() {
            return Err(error(CalibrateError::NoRows));
        }
        Ok(machines)
    }
}

/// Rows that can be fitted to, and what became of the others.
pub(super) struct Usable<'r> {
    pub(super) rows: Vec<(&'r Measurement, Sample)>,
    /// Others by why they are not predicted.
    pub(super) skipped: BTreeMap<String, usize>,
    /// Others that are too small.
    pub(super) small: usize,
}

impl<'r> Usable<'r> {
    pub(super) fn of(
        read: &'r ReadReport,
        machines: &Machines,
        prior: &Profile,
        request: &Request,
    ) -> Result<Self, Error> {
        let predictors: Vec<Predictor<'_>> = machines.topologies.iter().map(|t| Predictor::new(t, prior)).collect();
        let min_size = request.min_size;
        let (small, large): (Vec<_>, Vec<_>) = read.measurements.iter().partition(|row| row.size < min_size);
        let results: Vec<Result<(&Measurement, Sample), String>> = (large.par_iter())
            .map(|&row| {
                let of = machines.files.get(&row.origin.file).ok_or("their file names no machine")?;
                Ok((row, sample(row, of, &predictors[of.machine], request.launch)?))
            })
            .collect();
        let mut usable = Self { rows: Vec::new(), skipped: BTreeMap::new(), small: small.len() };
        for result in results {
            match result {
                Ok(row) => usable.rows.push(row),
                Err(reason) => *usable.skipped.entry(reason).or_default() += 1,
            }
        }
        // One order, whatever that of the files: sums and what is found then are the same to the last digit.
        usable
            .rows
            .sort_by(|(a, x), (b, y)| (&x.run, a.size, a.in_place, a.time).cmp(&(&y.run, b.size, b.in_place, b.time)));
        if usable.rows.is_empty() {
            let reasons: Vec<String> = usable.skipped.iter().map(|(reason, n)| format!("{n}: {reason}")).collect();
            let most = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) };
            return Err(Error::usage(
                format!("no row of the measurements can be used{most}"),
                format!(
                    "rows need {} B or more (--min-size) and at most {} ranks; `collcast validate` lists what was read",
                    min_size.0,
                    machines.topologies.iter().map(Topology::ranks).max().unwrap_or(0)
                ),
            ));
        }
        Ok(usable)
    }

    pub(super) fn samples(&self) -> Vec<Sample> {
        self.rows.iter().map(|(_, sample)| sample.clone()).collect()
    }
}

/// What is to be fitted to a row; or why it is not predicted.
fn sample(
    row: &Measurement,
    of: &MachineOf,
    predictor: &Predictor<'_>,
    launch: Option<Launch>,
) -> Result<Sample, String> {
    if let Some(reason) = not_predicted(row, predictor.topology()) {
        return Err(reason);
    }
    let Question { mut call, algorithm, protocol, settings, .. } =
        question(row, Some(of.report.env_of(&row.run)), predictor, launch);
    // An all-reduce in place and one out of place are the same schedule, but for registered buffers.
    call.in_place &= call.collective != Collective::AllReduce || settings.registered;
    let resolved = predictor.resolve(&call, algorithm, protocol, &settings).map_err(|e| e.to_string())?;
    if let Some((algorithm, protocol)) = resolved.instead_of {
        return Err(format!("NCCL picks {algorithm}/{protocol}, which is not modelled"));
    }
    let (algorithm, protocol) = (resolved.algorithm, resolved.protocol);
    let graphs = predictor.graph(row.ranks, &settings);
    let nccl_us = predictor.model(&graphs, &settings).predicted_us(&call, algorithm, protocol).map(f64::from);
    let settings = Settings { channels: settings.channels.or(resolved.channels), ..settings };
    // A name of a run means one thing in one file; our own files have many curves in one run.
    let set = &row.settings;
    let forced = (row.collective, row.ranks, set.algorithm, set.protocol, set.channels);
    let run = format!("{}:{} {forced:?}", row.origin.file, row.run);
    let (source, machine, time_us) = (of.source.clone(), of.machine, row.time.as_us());
    Ok(Sample { source, machine, run, call, algorithm, protocol, settings, time_us, nccl_us })
}

/// Why there is no fit, with the way out.
pub(super) fn error(error: CalibrateError) -> Error {
    match error {
        CalibrateError::Predict(error) => error.into(),
        CalibrateError::NoRows => Error::usage(
            "no row of the measurements can be used",
            "they need a size of --min-size or more, a time, and as many ranks as the machine has GPUs or fewer",
        ),
        CalibrateError::NothingToFit => Error::usage(error.to_string(), "leave out --fit and --keep"),
    }
}

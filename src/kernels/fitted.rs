//! A profile of one's own GPU from measured kernels.

use std::collections::BTreeMap;
use std::path::PathBuf;

use collcast_reports::model::Input;
use collcast_sim::compute::fit::{self, Sample};
use collcast_sim::compute::{Compute, Constant};
use collcast_sim::profile::DataFile;
use serde::Serialize;

use super::judge::input;
use super::load::{Loaded, gpu, left_aside, load, of_others, some};
use crate::calibrate::WORST;
use crate::error::Error;
use crate::statistics::Stats;

/// What to fit to, and from where.
#[derive(Clone, PartialEq, Debug)]
pub struct FitRequest {
    /// Tables of kernels: files or folders.
    pub measurements: Vec<PathBuf>,
    /// The GPU that they are of, by a name that the program knows: what is not fitted is its.
    pub gpu: String,
    /// Name of the profile.
    pub name: String,
}

/// One constant that was fitted.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Estimate {
    /// Its name.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// What was found.
    pub value: f64,
    /// What it was before.
    pub prior: f64,
}

/// What a profile is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Of {
    /// Kernels of a GPU.
    Kernels,
    /// Links of a machine.
    Links,
    /// The network between hosts.
    Network,
}

/// A profile that was fitted.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Fitted {
    /// What it is of.
    pub of: Of,
    /// Files that were read, with hashes.
    pub inputs: Vec<Input>,
    /// What of them was left aside.
    pub notes: Vec<String>,
    /// Files of another GPU.
    pub warnings: Vec<String>,
    /// Constants that were fitted, by their place in the model.
    pub constants: Vec<Estimate>,
    /// Errors on rows that were fitted to.
    pub trained: Stats,
    /// Errors on the rows that were left out: a fifth of all shapes, of a network one direction.
    pub left_out: Stats,
    /// The same before the fit.
    pub left_out_before: Stats,
    /// The profile as a file.
    pub toml: String,
}

impl Fitted {
    /// Why it is not to be used: judged by the rows left out, or by all where none could be.
    pub fn refused(&self) -> Option<String> {
        let (judged, rows) = match self.left_out.count {
            0 => (&self.trained, "the rows fitted to"),
            _ => (&self.left_out, "the rows left out"),
        };
        let percent = |share: f64| format!("{:.1}%", share * 100.0);
        let off = format!("no profile to use: {rows} are {} off in the median", percent(judged.median_abs_error));
        if judged.median_abs_error > WORST {
            return Some(format!("{off}, and at most {:.0}% is a fit; check their units and GPU", WORST * 100.0));
        }
        // To a tenth of a percent, as is shown. Where the row in the middle is one that nothing fitted touches, the mean tells.
        let errors = |stats: &Stats| [stats.median_abs_error, stats.mean_abs_error].map(|error| (error * 1e3).round());
        let is_no_better = self.left_out.count > 0 && errors(&self.left_out) >= errors(&self.left_out_before);
        is_no_better.then(|| {
            format!(
                "{off}, no better than {} of the profile that it started from; keep that one, or measure more sizes",
                percent(self.left_out_before.median_abs_error)
            )
        })
    }
}

/// Fits a GPU's constants to measured kernels, a fifth of all shapes left out.
///
/// # Errors
/// As of [`judge`](super::judge()); a GPU from a file, since what is not fitted has to be found again.
pub fn fit(request: &FitRequest) -> Result<Fitted, Error> {
    let start = gpu(&request.gpu)?;
    let below = Compute::builtin(&request.gpu)?.name().to_owned();
    let (tables, skipped) = load(&request.measurements, &start)?;
    some(&tables, &start)?;
    let all: Vec<Sample> = tables.iter().flat_map(Loaded::samples).cloned().collect();
    let (out, train): (Vec<Sample>, Vec<Sample>) = all.into_iter().partition(Sample::left_out);
    let missing = |e: collcast_sim::compute::Unsupported| Error::Usage { message: e.to_string(), hint: None };
    let found = fit::fit(&start, &train, &|_| true).map_err(missing)?;
    let errors = |gpu: &Compute, samples: &[Sample]| -> Result<Stats, Error> {
        let error = |s: &Sample| Ok(s.predicted_us(gpu).map_err(missing)? / s.us - 1.0);
        Ok(Stats::of(samples.iter().map(error).collect::<Result<Vec<f64>, Error>>()?.into_iter()))
    };
    let estimate = |&constant: &Constant| Estimate {
        name: constant.name(),
        unit: constant.spec().unit,
        value: found.gpu[constant].value,
        prior: start[constant].value,
    };
    let (trained, left_out) = (errors(&found.gpu, &train)?, errors(&found.gpu, &out)?);
    let evidence = format!(
        "collcast calibrate --compute {below}: {} rows, {:.1}% off in the median; {} rows of left out shapes, {:.1}%",
        trained.count,
        trained.median_abs_error * 100.0,
        left_out.count,
        left_out.median_abs_error * 100.0
    );
    let data: Vec<DataFile> = tables.iter().map(data_file).collect();
    let mut own: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for sample in &out {
        let error = sample.predicted_us(&found.gpu).map_err(missing)? / sample.us - 1.0;
        own.entry(sample.group.clone()).or_default().push(error);
    }
    let own = own.into_iter().map(|(group, errors)| (group, Stats::of(errors.into_iter()).p95_abs_error)).collect();
    let told = found.gpu.clone().with_errors(own);
    Ok(Fitted {
        of: Of::Kernels,
        inputs: tables.iter().map(input).collect(),
        notes: left_aside(&tables, &skipped, ("fitted to", "kernels")),
        warnings: of_others(&tables, &start),
        constants: found.fitted.iter().map(estimate).collect(),
        trained,
        left_out,
        left_out_before: errors(&start, &out)?,
        toml: told.file(&below, &request.name, &found.fitted, &data, &evidence)?,
    })
}

fn data_file(table: &Loaded) -> DataFile {
    let rows = table.samples().filter(|sample| !sample.left_out()).count();
    DataFile { file: table.file.clone(), hash: table.hash.clone(), rows }
}

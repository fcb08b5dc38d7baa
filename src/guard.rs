//! Is this host fit for a job? A short run, held beside what is expected of it.
//!
//! The rows are judged as `validate` judges a file of them.

use std::path::PathBuf;

use collcast_reports::csv;

use crate::bench;
use crate::error::Error;
use crate::files::write;
use crate::health::Gate;
use crate::site::SiteSpec;
use crate::validate::{self, validate};

/// What a run is held beside.
#[derive(Clone, Debug)]
pub enum Expected {
    /// Forecasts for a machine.
    Machine(Box<SiteSpec>),
    /// Runs that are known to be good: files or folders.
    Runs(Vec<PathBuf>),
}

/// Judges a run that was just measured. `gate` says what lets it through.
///
/// # Errors
/// A run without rows; what is expected cannot be read, or is of other calls.
pub fn guard(run: &bench::Outcome, expected: &Expected, gate: Gate) -> Result<validate::Outcome, Error> {
    let failed = |source| Error::File { what: "make a folder in", path: std::env::temp_dir(), source };
    let folder = tempfile::Builder::new().prefix("collcast").tempdir().map_err(failed)?;
    let rows = folder.path().join("this-host.csv");
    write(&rows, csv::render(&run.report()).as_bytes())?;
    let machine = match expected {
        Expected::Machine(site) => site.topology.as_deref(),
        Expected::Runs(_) => None,
    };
    write(&rows.with_extension("toml"), run.sidecar("collcast bench", machine, std::iter::empty()).as_bytes())?;
    let (site, against) = match expected {
        Expected::Machine(site) => ((**site).clone(), Vec::new()),
        Expected::Runs(files) => (SiteSpec::default(), files.clone()),
    };
    // Which GPU is slow, where runs over sets of them say so.
    let doctor = run.rows.iter().any(|row| row.set.is_some());
    let file = rows.display().to_string();
    let mut judged = validate(&validate::Request { site, against, gate, doctor, ..validate::Request::new([rows]) })?;
    // The file is gone when this is read; its runs have names.
    judged.health.runs.iter_mut().for_each(|run| run.file.clone_from(&run.run));
    for part in &mut judged.unjudged {
        for text in [&mut part.file, &mut part.why] {
            *text = text.replace(&file, "this run");
        }
    }
    Ok(judged)
}

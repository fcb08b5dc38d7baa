//! Which layout trains a model fastest on so many GPUs, how fast, whether it fits, and when the run is done.
//!
//! [`plan`] simulates one layout, or searches. Layouts that the model allows are checked for memory, and ordered by a time
//! that they cannot beat: kernels and the pipeline's bubble, without any call. They are simulated in that order until none
//! that is left can be among the best. [`compare`] does so for several machines and counts of GPUs.

pub mod fields;
pub mod file;
mod options;
mod outcome;
mod planning;
mod request;
mod run;
mod search;
mod timeline;
mod vary;

use crate::error::Error;
use crate::watch::Watch;
pub use options::{Choice, Options, Pick, Sites, compare, merged, part};
pub(crate) use options::{each_once, told};
pub use outcome::{Goodput, Layout, Outcome, Variation, Whole, of_gpus};
use planning::Planning;
pub use request::{Request, Upkeep};
pub use timeline::{left_out, scenario, timeline};

/// Plans.
///
/// # Errors
/// A model, machine or layout that cannot be read or does not go together; nothing that fits.
pub fn plan(request: &Request, watch: &Watch) -> Result<Outcome, Error> {
    let site = planning::spec(request)?.load()?;
    let planning = Planning::new(request, &site)?;
    let calls = site.calls()?;
    let changes = vary::asked(request)?;
    let outcome = planning.plan(request, &site, &calls, watch)?;
    vary::varied(request, (&site, &calls), outcome, &changes)
}

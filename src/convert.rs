//! An algorithm as MSCCL XML, or its messages as a GOAL schedule.

mod goal;

use collcast_sim::nccl::Plan;
use collcast_sim::network::order;
use collcast_sim::predict::{PredictError, Prediction};
use collcast_sim::schedule::msccl::{Imported, export, one_loop};
use collcast_sim::schedule::verify::verify;
use collcast_sim::schedule::{Order, Schedule};

use crate::error::Error;
use crate::query::Query;
use crate::site::Site;

/// What an algorithm is written as.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Target {
    /// MSCCL XML.
    #[default]
    Msccl,
    /// Its messages as a GOAL schedule.
    Goal,
}

/// An algorithm, proved and written.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The file.
    pub text: String,
    /// What is not as it was asked for.
    pub note: Option<String>,
}

/// Writes the algorithm, protocol and channels that a call would use, once through its loop of chunks.
///
/// # Errors
/// A call that has no schedule; a schedule that MSCCL XML cannot hold.
pub fn convert(site: &Site, query: &Query, target: Target) -> Result<Outcome, Error> {
    let outcome = msccl(site, query)?;
    match target {
        Target::Msccl => Ok(outcome),
        Target::Goal => {
            let imported = Imported::parse(&outcome.text, "")?;
            Ok(Outcome { text: goal::of(&imported, query.call.size())?, note: outcome.note })
        }
    }
}

fn msccl(site: &Site, query: &Query) -> Result<Outcome, Error> {
    site.check_graphs(query.call.ranks)?;
    let predictor = site.predictor();
    let settings = query.settings(site.settings());
    let prediction = query.predict(&predictor, &settings)?;
    match &query.schedule {
        Some(imported) => {
            let schedule = predictor.imported_schedule(imported, &query.call, &settings)?;
            Ok(Outcome { text: written(&schedule, &imported.name)?, note: None })
        }
        None => generated(query, &prediction, &order(&site.topology, query.call.ranks)),
    }
}

/// The algorithm of a prediction, on as many of its channels as cut the call's buffer into equal chunks.
fn generated(query: &Query, prediction: &Prediction, order: &Order) -> Result<Outcome, Error> {
    let Prediction { algorithm, protocol, plan, .. } = prediction;
    let name = format!("collcast {} {algorithm} {protocol}", query.call.collective);
    let (wanted, size) = (plan.channels, query.call.size());
    let of_channels = |channels| {
        let schedule = one_loop(&query.call, &Plan { channels, ..*plan }, order).map_err(PredictError::from)?;
        written(&schedule, &name)
    };
    let least = if query.channels.is_some() { wanted } else { 1 };
    for channels in (least..=wanted).rev() {
        let xml = of_channels(channels)?;
        if Imported::parse(&xml, "")?.check(&query.call).is_ok() {
            let note =
                format!("note: {channels} channels, not {wanted}, whose chunks cannot all be equal parts of {size}");
            return Ok(Outcome { text: xml, note: (channels < wanted).then_some(note) });
        }
    }
    let note = format!(
        "warning: the file is not for {size}: its elements are no multiple of the chunks of {wanted} channels; leave out \
         --channels, or use it for sizes that are"
    );
    Ok(Outcome { text: of_channels(wanted)?, note: Some(note) })
}

/// A proved schedule as a file.
fn written(schedule: &Schedule, name: &str) -> Result<String, Error> {
    verify(schedule).map_err(|error| PredictError::Unproved { what: name.to_owned(), error })?;
    Ok(export(schedule, name)?)
}

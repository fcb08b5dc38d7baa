//! An algorithm as MSCCL XML, as an execution plan of MSCCL++, or its messages as a GOAL schedule.

mod goal;

use std::collections::BTreeSet;

use collcast_scenarios::goal::{self as format, Goal};
use collcast_sim::collective::{Algorithm, Protocol, ReduceOp};
use collcast_sim::ids::Rank;
use collcast_sim::nccl::Plan;
use collcast_sim::network::order;
use collcast_sim::predict::{PredictError, Prediction};
use collcast_sim::schedule::msccl::{ExportError, Imported, export, one_loop, rewrite};
use collcast_sim::schedule::verify::verify;
use collcast_sim::schedule::{Call, Order, Schedule};

use crate::error::Error;
use crate::query::Query;
use crate::site::Site;

/// What an algorithm is written as.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Target {
    /// MSCCL XML.
    #[default]
    Msccl,
    /// An execution plan of MSCCL++, in JSON.
    Mscclpp,
    /// Its messages as a GOAL schedule, in text.
    Goal,
    /// The same in LogGOPSim's binary form.
    GoalBinary,
}

/// An algorithm, proved and written.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The file.
    pub bytes: Vec<u8>,
    /// What is not as it was asked for.
    pub note: Option<String>,
}

/// Writes the algorithm, protocol and channels that a call would use, once through its loop of chunks. An algorithm that was
/// read keeps its own chunks and limits, whatever the call's size; its messages are those of the size.
///
/// # Errors
/// A call that has no schedule; a schedule that the format cannot hold.
pub fn convert(site: &Site, query: &Query, target: Target) -> Result<Outcome, Error> {
    let algorithm = matches!(target, Target::Msccl | Target::Mscclpp);
    let Written { text, note, blocks } = match &query.schedule {
        Some(imported) if algorithm => rewritten(site, query, imported)?,
        _ => msccl(site, query)?,
    };
    let notes = note.into_iter().chain(blocks.filter(|_| algorithm));
    let note = notes.reduce(|one, other| format!("{one}\n{other}"));
    let bytes = match target {
        Target::Msccl => text.into_bytes(),
        Target::Mscclpp => {
            check_plan(site, query)?;
            let plan = Imported::parse(&text, "")?.plan()?;
            let json = serde_json::to_string_pretty(&plan).map_err(|e| Error::usage(e.to_string(), "leave it out"))?;
            (json + "\n").into_bytes()
        }
        Target::Goal | Target::GoalBinary => {
            let (imported, size) = (Imported::parse(&text, "")?, query.call.size());
            let goal = goal::of(&imported, size)?;
            match target {
                Target::Goal => format::write(&goal, &goal::comment(&imported, size)).into_bytes(),
                _ => format::to_binary(&goal).map_err(|e| Error::usage(e.to_string(), "name it with --target goal"))?,
            }
        }
    };
    Ok(Outcome { bytes, note })
}

/// The messages of a call over the ranks of a site, on one channel: all of them do alike. What switches do between ranks has
/// no messages; such a call is taken as a ring, and `as_ring` says so.
pub(crate) fn messages(site: &Site, query: &Query) -> Result<(Goal, bool), Error> {
    let size = query.call.size();
    let of = |query: &Query| goal::of(&Imported::parse(&msccl(site, query)?.text, "")?, size);
    let one = query.clone().channels(1);
    match of(&one) {
        Err(Error::Export(ExportError::Switches(_))) => Ok((of(&one.forced(Algorithm::Ring, Protocol::Simple))?, true)),
        other => Ok((other?, false)),
    }
}

/// What a plan cannot say of a call.
fn check_plan(site: &Site, query: &Query) -> Result<(), Error> {
    let call = &query.call;
    let nodes: BTreeSet<_> = (0..call.ranks).map(|rank| site.topology.node_of(Rank(rank))).collect();
    if nodes.len() > 1 {
        return Err(Error::usage(
            format!(
                "{} ranks are on {} hosts: a plan between hosts needs port channels, which are not written",
                call.ranks,
                nodes.len()
            ),
            "take the ranks of one host or NVLink domain, with --nodes 1 or --ranks; MSCCL XML has the others",
        ));
    }
    if call.collective.reduces() && call.op != ReduceOp::Sum {
        return Err(Error::usage(format!("MSCCL++'s executor adds, and has no {}", call.op.name()), "leave --op out"));
    }
    Ok(())
}

/// MSCCL XML.
struct Written {
    text: String,
    note: Option<String>,
    /// That the file has more thread blocks than the call.
    blocks: Option<String>,
}

fn msccl(site: &Site, query: &Query) -> Result<Written, Error> {
    site.check_graphs(query.call.ranks)?;
    let predictor = site.predictor();
    let settings = query.settings(site.settings());
    let prediction = query.predict(&predictor, &settings)?;
    match &query.schedule {
        Some(imported) => {
            let schedule = predictor.imported_schedule(imported, &query.call, &settings)?;
            Ok(Written { text: written(&schedule, &imported.name)?, note: None, blocks: None })
        }
        None => generated(query, &prediction, &order(&site.topology, query.call.ranks)),
    }
}

/// An algorithm that was read, as it was: proved by the call, and written at an element a chunk, which has each step once.
fn rewritten(site: &Site, query: &Query, imported: &Imported) -> Result<Written, Error> {
    site.check_graphs(query.call.ranks)?;
    let predictor = site.predictor();
    let settings = query.settings(site.settings());
    query.predict(&predictor, &settings)?;
    let parts = if imported.collective.size_is_total() { u64::from(imported.ranks) } else { 1 };
    let call = Call { count: imported.chunks / parts, ..query.call.clone() };
    let mut of_any_size = imported.clone();
    (of_any_size.min_bytes, of_any_size.max_bytes) = (None, None);
    let schedule = predictor.imported_schedule(&of_any_size, &call, &settings)?;
    Ok(Written { text: rewrite(&schedule, imported)?, note: None, blocks: None })
}

/// The algorithm of a prediction, on as many of its channels as cut the call's buffer into equal chunks.
fn generated(query: &Query, prediction: &Prediction, order: &Order) -> Result<Written, Error> {
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
        let imported = Imported::parse(&xml, "")?;
        if imported.check(&query.call).is_ok() {
            let note =
                format!("note: {channels} channels, not {wanted}, whose chunks cannot all be equal parts of {size}");
            let blocks = more_blocks(&imported, channels);
            return Ok(Written { text: xml, note: (channels < wanted).then_some(note), blocks });
        }
    }
    let note = format!(
        "warning: the file is not for {size}: its elements are no multiple of the chunks of {wanted} channels; leave out \
         --channels, or use it for sizes that are"
    );
    let text = of_channels(wanted)?;
    let blocks = more_blocks(&Imported::parse(&text, "")?, wanted);
    Ok(Written { text, note: Some(note), blocks })
}

/// That an algorithm has more thread blocks than a call, which has one a channel.
fn more_blocks(imported: &Imported, channels: u32) -> Option<String> {
    let blocks = imported.gpus.iter().map(|gpu| gpu.blocks.len()).max().unwrap_or(0);
    (blocks > channels as usize).then(|| {
        format!(
            "note: up to {blocks} thread blocks a GPU, and not the {channels} of the call: MSCCL has one for each pair of \
             peers, so the file takes less time than the call"
        )
    })
}

/// A proved schedule as a file.
fn written(schedule: &Schedule, name: &str) -> Result<String, Error> {
    verify(schedule).map_err(|error| PredictError::Unproved { what: name.to_owned(), error })?;
    Ok(export(schedule, name)?)
}

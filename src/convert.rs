//! An algorithm as MSCCL XML, as an execution plan of MSCCL++, or its messages as a GOAL schedule.

mod goal;

use std::collections::BTreeSet;

use collcast_scenarios::goal::{self as format, Goal};
use collcast_sim::collective::{Algorithm, Protocol, ReduceOp};
use collcast_sim::engine::Unobserved;
use collcast_sim::ids::Rank;
use collcast_sim::nccl::Plan;
use collcast_sim::network::order;
use collcast_sim::predict::{PredictError, Prediction};
use collcast_sim::schedule::msccl::{ExportError, Imported, export, one_loop, rewrite};
use collcast_sim::schedule::verify::{VerifyError, verify};
use collcast_sim::schedule::{Call, Order, Schedule};
use collcast_sim::units::SimDuration;

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
    let Written { text, note, ours } = match &query.schedule {
        Some(imported) if algorithm => rewritten(site, query, imported)?,
        _ => msccl(site, query)?,
    };
    let other = match (&ours, target) {
        (Some(ours), Target::Msccl) => {
            let time = ours.time(site, query)?;
            ours.note(time)
        }
        (Some(ours), Target::Mscclpp) => ours.note(None),
        _ => None,
    };
    let notes = note.into_iter().chain(other);
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
    /// Of an algorithm of our own: what it became.
    ours: Option<Ours>,
}

/// The algorithm of a call, and the same as a file.
struct Ours {
    file: Imported,
    call: Prediction,
}

impl Ours {
    /// How long MSCCL takes for the file, which is proved as MSCCL runs it; none where the file is not for the call.
    fn time(&self, site: &Site, query: &Query) -> Result<Option<SimDuration>, Error> {
        let fits = self.file.check(&query.call).is_ok();
        let call = if fits { query.call.clone() } else { smallest(&self.file, &query.call) };
        let settings = query.settings(site.settings());
        match site.predictor().predict_imported(&self.file, &call, &settings, &mut Unobserved) {
            Ok(prediction) => Ok(fits.then_some(prediction.time)),
            Err(PredictError::Disproved { error: VerifyError::Deadlock { .. }, .. }) => Err(Error::usage(
                format!(
                    "MSCCL would wait for ever in `{}`: ranks send more chunks before they receive than MSCCL's FIFOs hold, \
                     two of Simple",
                    self.file.name
                ),
                "take --algorithm ring, or --target goal or mscclpp, which need no FIFOs",
            )),
            Err(PredictError::Disproved { name, error, .. }) => {
                Err(PredictError::Unproved { what: name, error }.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// That the file has more thread blocks than the call, which has one a channel, and takes another `time`.
    fn note(&self, time: Option<SimDuration>) -> Option<String> {
        let channels = self.call.plan.channels.min(self.file.channels);
        let blocks = self.file.gpus.iter().map(|gpu| gpu.blocks.len()).max().unwrap_or(0);
        let blocks = (blocks > channels as usize).then(|| {
            format!(
                "up to {blocks} thread blocks a GPU, and not the {channels} of the call: MSCCL has one for each pair of peers"
            )
        });
        let call = self.call.time.as_us();
        let time = time.map(SimDuration::as_us).filter(|time| (time / call - 1.0).abs() > SAME).map(|time| {
            let more = if time < call { "less" } else { "more" };
            format!("by forecast the file takes {more} time than the call, {time:.2} us and not {call:.2} us")
        });
        let parts: Vec<String> = blocks.into_iter().chain(time).collect();
        (!parts.is_empty()).then(|| format!("note: {}", parts.join("; ")))
    }
}

/// Times that differ by less are not told apart.
const SAME: f64 = 0.01;

/// The call of an element a chunk, in which a file does each of its steps once.
fn smallest(file: &Imported, call: &Call) -> Call {
    let parts = if file.collective.size_is_total() { u64::from(file.ranks) } else { 1 };
    Call { count: file.chunks / parts, ..call.clone() }
}

fn msccl(site: &Site, query: &Query) -> Result<Written, Error> {
    site.check_graphs(query.call.ranks)?;
    let predictor = site.predictor();
    let settings = query.settings(site.settings());
    let prediction = query.predict(&predictor, &settings)?;
    match &query.schedule {
        Some(imported) => {
            let schedule = predictor.imported_schedule(imported, &query.call, &settings)?;
            Ok(Written { text: written(&schedule, &imported.name)?, note: None, ours: None })
        }
        None => generated(query, prediction, &order(&site.topology, query.call.ranks)),
    }
}

/// An algorithm that was read, as it was: proved by the call, and written at an element a chunk, which has each step once.
fn rewritten(site: &Site, query: &Query, imported: &Imported) -> Result<Written, Error> {
    site.check_graphs(query.call.ranks)?;
    let predictor = site.predictor();
    let settings = query.settings(site.settings());
    query.predict(&predictor, &settings)?;
    let call = smallest(imported, &query.call);
    let mut of_any_size = imported.clone();
    (of_any_size.min_bytes, of_any_size.max_bytes) = (None, None);
    let schedule = predictor.imported_schedule(&of_any_size, &call, &settings)?;
    Ok(Written { text: rewrite(&schedule, imported)?, note: None, ours: None })
}

/// The algorithm of a prediction, on as many of its channels as cut the call's buffer into equal chunks.
fn generated(query: &Query, call: Prediction, order: &Order) -> Result<Written, Error> {
    let Prediction { algorithm, protocol, plan, .. } = &call;
    let name = format!("collcast {} {algorithm} {protocol}", query.call.collective);
    let (wanted, size) = (plan.channels, query.call.size());
    let of_channels = |channels| -> Result<(String, Imported), Error> {
        let schedule = one_loop(&query.call, &Plan { channels, ..*plan }, order).map_err(PredictError::from)?;
        let text = written(&schedule, &name)?;
        let file = Imported::parse(&text, "")?;
        Ok((text, file))
    };
    let least = if query.channels.is_some() { wanted } else { 1 };
    for channels in (least..=wanted).rev() {
        let (text, file) = of_channels(channels)?;
        if file.check(&query.call).is_ok() {
            let note =
                format!("note: {channels} channels, not {wanted}, whose chunks cannot all be equal parts of {size}");
            return Ok(Written { text, note: (channels < wanted).then_some(note), ours: Some(Ours { file, call }) });
        }
    }
    let note = format!(
        "warning: the file is not for {size}: its elements are no multiple of the chunks of {wanted} channels; leave out \
         --channels, or use it for sizes that are"
    );
    let (text, file) = of_channels(wanted)?;
    Ok(Written { text, note: Some(note), ours: Some(Ours { file, call }) })
}

/// A proved schedule as a file.
fn written(schedule: &Schedule, name: &str) -> Result<String, Error> {
    verify(schedule).map_err(|error| PredictError::Unproved { what: name.to_owned(), error })?;
    Ok(export(schedule, name)?)
}

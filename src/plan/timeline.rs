//! The step of a plan for ui.perfetto.dev: a process a stage, tracks for passes, messages and calls of replicas.

use std::collections::BTreeSet;

use collcast_reports::perfetto::{TraceEvent, TraceWriter};
use collcast_scenarios::training::{Doing, Span};
use collcast_sim::units::{SimDuration, SimTime};

use super::outcome::{Outcome, of_gpus};
use super::planning::{Planning, spec};
use super::request::Request;
use crate::error::Error;

/// Most events of a timeline: what viewers still open, some 300 MB.
const MOST: usize = 2_000_000;

/// The timeline of a plan's best layout, as Perfetto's JSON.
///
/// # Errors
/// A machine that is no longer there, a step of more events than a viewer takes.
pub fn timeline(request: &Request, outcome: &Outcome) -> Result<Vec<u8>, Error> {
    let Some(best) = outcome.layouts.first() else {
        return Err(Error::usage("the plan has no layout to draw", "draw one that has"));
    };
    let site = spec(request)?.load()?;
    let planning = Planning::new(request, &site)?;
    let spans = planning.spans(&best.layout, &site.calls()?)?;
    if spans.len() > MOST {
        return Err(Error::usage(
            format!("the timeline would hold {} events; at most {MOST} are written", spans.len()),
            "draw a smaller --global-batch: the pattern is the same",
        ));
    }
    write(&spans).map_err(|source| crate::files::failed("timeline".as_ref(), source))
}

/// The step of a plan's best layout as a scenario that `simulate` reads.
///
/// # Errors
/// A machine that is no longer there, an order of passes that a scenario cannot say.
pub fn scenario(request: &Request, outcome: &Outcome) -> Result<String, Error> {
    let Some(best) = outcome.layouts.first() else {
        return Err(Error::usage("the plan has no layout to write", "write one that has"));
    };
    let site = spec(request)?.load()?;
    let planning = Planning::new(request, &site)?;
    let calls = site.calls()?;
    let programs = planning.written(&best.layout, &calls)?;
    let (machine, model) = (request.machine(), &outcome.model.name);
    let list = |names: &[String]| names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    Ok(format!(
        "# A step as `collcast plan` forecasts it: {:.6} s with its bubble, exposed calls and optimizer. Kernels have its times, by their\n\
         # shapes on this kind of GPU. The time of hosts to issue them is left out: GPUs wait {:.6} s for it.\n\
         schema = \"collcast/scenario/1\"\nname = {:?}\ndescription = {:?}\n\n\
         [machine]\ntopology = {machine:?}\nnodes = {}\nprofile = [{}]\n{}",
        best.step.seconds,
        best.step.issued,
        format!("{model} {}", best.text),
        format!("{model} on {} of {machine}, {}", of_gpus(outcome.gpus), best.text),
        outcome.gpus.div_ceil(calls.host()),
        list(&request.site.profiles),
        programs.text()
    ))
}

/// What [`scenario`] leaves out, where it is enough to matter.
pub fn left_out(outcome: &Outcome) -> Option<String> {
    /// Part of a step from which on it is said.
    const WORTH: f64 = 0.02;
    let step = &outcome.layouts.first()?.step;
    (step.issued > WORTH * step.seconds).then(|| {
        format!(
            "it leaves out {:.3} s of the step ({:.0}%) in which GPUs wait for the host that issues kernels",
            step.issued,
            100.0 * step.issued / step.seconds
        )
    })
}

/// The track of what a stage does, and what it is called.
fn shown(doing: Doing) -> (u64, String) {
    match doing {
        Doing::Pass { forward, chunk, micro_batch } => {
            (0, format!("{} {micro_batch}, chunk {chunk}", if forward { "forward" } else { "backward" }))
        }
        Doing::Weights => (0, "gradients of weights".to_owned()),
        Doing::Kernels => (0, "kernels".to_owned()),
        Doing::Optimizer => (0, "optimizer".to_owned()),
        Doing::Message { forward } => {
            (if forward { 1 } else { 2 }, format!("message to the {} stage", if forward { "next" } else { "previous" }))
        }
        Doing::Gradients => (3, "sum of gradients".to_owned()),
        Doing::Shared => (3, "parameters or gradients".to_owned()),
        Doing::Replicas => (4, "gradients of replicas".to_owned()),
        Doing::Parameters { chunk } => (TRACKS.len() as u64 + u64::from(chunk), format!("parameters of chunk {chunk}")),
    }
}

/// Names of the first tracks; those after them are of the parameters of a chunk each.
const TRACKS: [&str; 5] = [
    "passes",
    "activations to the next stage",
    "gradients to the previous stage",
    "replicas",
    "all-reduces of shares over replicas",
];

fn write(spans: &[Span]) -> std::io::Result<Vec<u8>> {
    let mut trace = TraceWriter::new(Vec::new())?;
    let process = |stage: usize| u32::try_from(stage).unwrap_or(u32::MAX);
    let tracks: BTreeSet<(usize, u64)> = spans.iter().map(|span| (span.stage, shown(span.doing).0)).collect();
    for (stage, track) in tracks {
        if track == 0 {
            trace.process_name(process(stage), &format!("stage {stage}"))?;
        }
        let of_chunk = || format!("parameters of chunk {}", track - TRACKS.len() as u64);
        let name = TRACKS.get(track as usize).map_or_else(of_chunk, |name| (*name).to_owned());
        trace.thread_name(process(stage), track, &name)?;
    }
    let at = |seconds: f64| SimTime::default() + SimDuration::from_us(seconds * 1e6);
    for span in spans {
        let (thread, name) = shown(span.doing);
        let (start, end) = (at(span.start), at(span.end));
        trace.event(&TraceEvent {
            category: TRACKS.get(thread as usize).map_or("replicas", |track| *track).to_owned(),
            process: process(span.stage),
            duration: end - start,
            args: Vec::new(),
            name,
            thread,
            start,
        })?;
    }
    trace.finish()
}

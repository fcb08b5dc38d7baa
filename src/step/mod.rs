//! One training step: how long it takes, what of its communication is exposed, by what, and what would help.

mod advice;
mod loaded;
mod outcome;
mod request;
mod timeline;
mod variants;

use std::collections::BTreeMap;

use collcast_scenarios::study::{self, Breakdown};
use collcast_sim::units::SimDuration;
use collcast_sim::workload::{Level, Mechanisms, OpGraph, Simulator, Step};

use crate::confidence::Grounds;
use crate::error::Error;
use crate::site::assumptions;
pub use advice::Change;
use loaded::{Loaded, failed, ms};
pub use outcome::{Communication, Detail, Disturbed, Outcome, PathPart, Stream, Variant};
pub use request::Request;
pub use timeline::timeline;

/// Ranks that an answer shows, the first of their roles.
const SHOWN_RANKS: usize = 8;
/// Links that an answer shows.
const SHOWN_LINKS: usize = 8;

/// Simulates a training step, or each variant of it.
///
/// # Errors
/// A scenario or machine that cannot be read, a layout that does not fit, a call that cannot be forecast.
pub fn step(request: &Request) -> Result<Outcome, Error> {
    let variants = variants::variants(request)?;
    let Some(((label, text), others)) = variants.split_first() else {
        return Err(Error::usage("there is nothing to simulate", "give a scenario"));
    };
    let loaded = Loaded::new(text, label, request)?;
    let simulator = loaded.simulator();
    let (graph, step, parts, row) = simulated(label, &loaded, &simulator, request.level)?;
    let (mut rows, mut grounds) = (vec![row], vec![loaded.grounds()]);
    for (label, text) in others {
        let loaded = Loaded::new(text, label, request)?;
        rows.push(simulated(label, &loaded, &loaded.simulator(), request.level)?.3);
        grounds.push(loaded.grounds());
    }
    let grounds: Grounds = grounds.into_iter().collect();
    let mut notes = assumptions(&loaded.topology, &loaded.site.profile, &loaded.settings, &grounds.beyond);
    notes.extend(loaded.site.why.clone());
    notes.insert(0, format!("scenario {}: {}", loaded.scenario.name, loaded.scenario.description));
    notes.push(format!(
        "communication as {}; ranks of the same role once: {} -> {}",
        if step.slices { "slices, all at once" } else { "flows, each call simulated alone first" },
        graph.ranks.len(),
        step.ranks.len()
    ));
    notes.extend(loaded.site.told.notes.iter().cloned());
    let detail = match variants.len() {
        1 => Some(detail(&loaded, &simulator, (&graph, &step), request, &mut notes)?),
        _ => None,
    };
    drop(simulator);
    Ok(Outcome {
        scenario: loaded.scenario.name.clone(),
        variants: rows,
        detail,
        inputs: loaded.site.sources.clone(),
        notes,
        warnings: loaded.site.told.warnings.clone(),
        grounds,
        topology: loaded.topology,
        graph,
        step,
        parts,
    })
}

/// Simulates a variant.
fn simulated(
    label: &str,
    loaded: &Loaded,
    simulator: &Simulator<'_>,
    level: Level,
) -> Result<(OpGraph, Step, Breakdown, Variant), Error> {
    let graph = loaded.graph();
    let step = simulator.run(&graph, Mechanisms::default(), level).map_err(failed)?;
    let parts = study::breakdown(simulator, &graph, &step).map_err(failed)?;
    let signed = |picoseconds: study::Signed| picoseconds as f64 / 1e9;
    let variant = Variant {
        label: label.to_owned(),
        ranks: loaded.scenario.layout.ranks(),
        step_ms: ms(parts.step),
        compute_ms: ms(parts.compute),
        exposed_ms: ms(parts.step) - ms(parts.compute),
        interference_ms: signed(parts.interference),
        launch_ms: signed(parts.launch),
        framework_ms: signed(parts.framework),
        unhidden_ms: signed(parts.unhidden),
        bubble_ms: ms(parts.compute) - ms(parts.busiest),
        events: step.events,
    };
    Ok((graph, step, parts, variant))
}

fn detail(
    loaded: &Loaded,
    simulator: &Simulator<'_>,
    (graph, step): (&OpGraph, &Step),
    request: &Request,
    notes: &mut Vec<String>,
) -> Result<Detail, Error> {
    let advice = if loaded.scenario.layout.data <= advice::MOST_RANKS {
        Some(advice::advice(request, loaded, simulator)?)
    } else {
        notes.push(format!(
            "what would help is not tried with more than {} ranks in a communicator (it takes minutes); \
             try changes with --vary, such as --vary communication.channels=8,16",
            advice::MOST_RANKS
        ));
        None
    };
    let links = step.links.iter().take(SHOWN_LINKS);
    Ok(Detail {
        communication: communication(step),
        streams: streams(graph, step),
        path: path(step),
        links: links.map(|(link, share)| (loaded.topology.link_name(*link), *share)).collect(),
        disturbed: disturbed(loaded, simulator, graph)?,
        advice,
    })
}

fn communication(step: &Step) -> Vec<Communication> {
    let mut all = Vec::new();
    for rank in step.ranks.iter().take(SHOWN_RANKS) {
        all.extend(rank.communication.iter().map(|(kind, (calls, busy, exposed))| Communication {
            rank: rank.rank.0,
            like: rank.count,
            kind: kind.to_string(),
            calls: *calls,
            busy_ms: ms(*busy),
            exposed_ms: ms(*exposed),
            how: step.how.get(kind).cloned().unwrap_or_default(),
        }));
    }
    all
}

fn streams(graph: &OpGraph, step: &Step) -> Vec<Stream> {
    let mut streams = Vec::new();
    for rank in step.ranks.iter().take(SHOWN_RANKS) {
        for (stream, busy) in graph.programs[rank.program].streams.iter().zip(&rank.busy) {
            let busy_ms = ms(*busy);
            let idle_ms = ms(step.time) - busy_ms;
            streams.push(Stream { rank: rank.rank.0, stream: stream.name.to_string(), busy_ms, idle_ms });
        }
    }
    streams
}

/// The critical path, added up by what its time went to, the longest first.
fn path(step: &Step) -> Vec<PathPart> {
    let mut sums: BTreeMap<(&str, &str), (u64, f64)> = BTreeMap::new();
    for part in &step.path {
        let sum = sums.entry((&part.what, part.bound_by.unwrap_or(""))).or_default();
        *sum = (sum.0 + 1, sum.1 + ms(part.to - part.from));
    }
    let part = |((what, bound_by), (parts, time_ms)): ((&str, &str), (u64, f64))| PathPart {
        what: what.to_owned(),
        bound_by: bound_by.to_owned(),
        parts,
        time_ms,
    };
    let mut all: Vec<PathPart> = sums.into_iter().map(part).collect();
    all.sort_by(|a, b| b.time_ms.total_cmp(&a.time_ms));
    all
}

/// What stragglers and jitter cost: the step with and without.
fn disturbed(loaded: &Loaded, simulator: &Simulator<'_>, graph: &OpGraph) -> Result<Vec<Disturbed>, Error> {
    let scenario = &loaded.scenario;
    if scenario.stragglers.is_empty() && scenario.jitter.is_none() {
        return Ok(Vec::new());
    }
    let mut even = graph.clone();
    for rank in &mut even.ranks {
        (rank.pace_ppm, rank.late) = (1_000_000, SimDuration::ZERO);
    }
    let mut cases = vec![("as it is", graph), ("without stragglers", &even)];
    if scenario.stragglers.is_empty() {
        cases.pop();
    }
    let mut all = Vec::new();
    for (name, graph) in cases {
        let step = simulator.run(graph, Mechanisms::default(), Level::Flows).map_err(failed)?;
        all.push(Disturbed { case: name.to_owned(), step_ms: ms(step.time), range_ms: None, seeds: None });
        if let Some((jitter, seeds)) = scenario.jitter {
            let spread = study::spread(simulator, graph, jitter, seeds).map_err(failed)?;
            let [low, median, high] = spread.quantiles();
            all.push(Disturbed {
                case: format!("{name}, with jitter (median)"),
                step_ms: ms(median),
                range_ms: Some((ms(low), ms(high))),
                seeds: Some((jitter.seed, jitter.seed + u64::from(seeds) - 1)),
            });
        }
    }
    Ok(all)
}

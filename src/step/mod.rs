//! One training step: how long it takes, what of its communication is exposed, by what, and what would help.

mod advice;
mod loaded;
mod outcome;
mod recorded;
mod request;
mod timeline;
mod variants;

use std::collections::BTreeMap;

use collcast_scenarios::study::{self, Breakdown};
use collcast_sim::units::SimDuration;
use collcast_sim::workload::{Level, Mechanisms, OpGraph, Simulator, Step};

use crate::error::Error;
use crate::site::assumptions;
pub use advice::Change;
use loaded::{Loaded, Machine, failed, ms};
pub use outcome::{Communication, Detail, Disturbed, Outcome, PathPart, Stream, Variant};
pub use recorded::{is_recorded, recorded, write_recorded};
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
    let mut first = of_graph(label, loaded.graph(), &loaded.machine, request.level)?;
    for (label, text) in others {
        let loaded = Loaded::new(text, label, request)?;
        let other = of_graph(label, loaded.graph(), &loaded.machine, request.level)?;
        first.variants.extend(other.variants);
        first.grounds = [first.grounds, other.grounds].into_iter().collect();
    }
    let scenario = &loaded.scenario;
    first.scenario.clone_from(&scenario.name);
    first.notes.insert(0, format!("scenario {}: {}", scenario.name, scenario.description));
    match (&mut first.detail, variants.len()) {
        (Some(detail), 1) => {
            let simulator = loaded.machine.simulator();
            detail.disturbed = disturbed(&loaded, &simulator, &first.graph)?;
            if scenario.layout.data <= advice::MOST_RANKS {
                detail.advice = Some(advice::advice(request, &loaded, &simulator)?);
            } else {
                first.notes.push(format!(
                    "what would help is not tried with more than {} ranks in a communicator (it takes minutes); \
                     try changes with --vary, such as --vary communication.channels=8,16",
                    advice::MOST_RANKS
                ));
            }
        }
        _ => first.detail = None,
    }
    Ok(first)
}

/// Simulates what all ranks do, on a machine.
fn of_graph(label: &str, graph: OpGraph, machine: &Machine, level: Level) -> Result<Outcome, Error> {
    let simulator = machine.simulator();
    let step = simulator.run(&graph, Mechanisms::default(), level).map_err(failed)?;
    let parts = study::breakdown(&simulator, &graph, &step).map_err(failed)?;
    let grounds = machine.grounds();
    let mut notes = assumptions(&machine.topology, &machine.site.profile, &machine.settings, &grounds.beyond);
    notes.extend(machine.site.why.clone());
    notes.push(format!(
        "communication as {}; ranks of the same role once: {} -> {}",
        if step.slices { "slices, all at once" } else { "flows, each call simulated alone first" },
        graph.ranks.len(),
        step.ranks.len()
    ));
    notes.extend(machine.site.told.notes.iter().cloned());
    let links = step.links.iter().take(SHOWN_LINKS);
    let detail = Detail {
        communication: communication(&step),
        streams: streams(&graph, &step),
        path: path(&step),
        links: links.map(|(link, share)| (machine.topology.link_name(*link), *share)).collect(),
        ..Detail::default()
    };
    Ok(Outcome {
        scenario: String::new(),
        variants: vec![variant(label, &graph, &step, &parts)],
        detail: Some(detail),
        inputs: machine.site.sources.clone(),
        notes,
        warnings: machine.site.told.warnings.clone(),
        grounds,
        topology: machine.topology.clone(),
        graph,
        step,
        parts,
    })
}

fn variant(label: &str, graph: &OpGraph, step: &Step, parts: &Breakdown) -> Variant {
    let signed = |picoseconds: study::Signed| picoseconds as f64 / 1e9;
    Variant {
        label: label.to_owned(),
        ranks: graph.ranks.len() as u64,
        step_ms: ms(parts.step),
        compute_ms: ms(parts.compute),
        exposed_ms: ms(parts.step) - ms(parts.compute),
        interference_ms: signed(parts.interference),
        launch_ms: signed(parts.launch),
        framework_ms: signed(parts.framework),
        unhidden_ms: signed(parts.unhidden),
        bubble_ms: ms(parts.compute) - ms(parts.busiest),
        events: step.events,
    }
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

//! What all ranks do, simulated, with the tables of the answer.

use std::collections::BTreeMap;

use collcast_scenarios::study::{self, Breakdown};
use collcast_sim::units::SimDuration;
use collcast_sim::workload::fold::fold;
use collcast_sim::workload::{Level, Mechanisms, OpGraph, Simulator, Step, What, WorkloadError};

use super::choices::{Choices, choices};
use super::loaded::{Machine, failed, ms};
use super::outcome::{Communication, Detail, LinkUse, Outcome, PathPart, Stream, Variant};
use crate::error::Error;
use crate::site::assumptions;

/// Ranks that an answer shows, the first of their roles.
const SHOWN_RANKS: usize = 8;
/// Links that an answer shows.
const SHOWN_LINKS: usize = 8;

/// Simulates what all ranks do, on a machine.
pub(super) fn of_graph(label: &str, graph: OpGraph, machine: &Machine, level: Level) -> Result<Outcome, Error> {
    simulated(label, (graph, None), machine, (level, Mechanisms::default()))
}

/// [`of_graph`] with some mechanisms off, and of a step with stragglers that without them.
pub(super) fn simulated(
    label: &str,
    (graph, even): (OpGraph, Option<&OpGraph>),
    machine: &Machine,
    (level, on): (Level, Mechanisms),
) -> Result<Outcome, Error> {
    let simulator = machine.telling_simulator(1 + study::runs(even.is_some()));
    let step = simulator.run(&graph, on, level).map_err(failed)?;
    let parts = study::breakdown(&simulator, (&graph, even), &step).map_err(failed)?;
    let link_use = link_use(&simulator, &graph, &step).map_err(failed)?;
    let choices = choices(&simulator, &graph, &step).map_err(failed)?;
    let grounds = machine.grounds(graph.ranks.len());
    let mut notes = assumptions(&machine.topology, &machine.site.profile, &machine.settings, grounds.basis);
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
        not_in_files: Vec::new(),
        variants: vec![variant(label, &graph, &step, &parts, choices)],
        same_work: true,
        same_gpus: true,
        detail: Some(detail),
        inputs: machine.site.sources.clone(),
        notes,
        warnings: machine.site.told.warnings.clone(),
        grounds,
        topology: machine.topology.clone(),
        site: machine.as_calls_see_it(),
        graph,
        step,
        link_use,
        parts,
    })
}

/// What calls take of links: a call that something slows moves the same bytes in more time than alone.
fn link_use(simulator: &Simulator<'_>, graph: &OpGraph, step: &Step) -> Result<Vec<LinkUse>, WorkloadError> {
    if step.link_shares.is_empty() {
        return Ok(Vec::new());
    }
    let classes = fold(graph, simulator.topology())?;
    // What an operation of a rank takes alone; the simulator knows it from the run.
    let alone = |lane: usize, op: usize| -> Result<SimDuration, WorkloadError> {
        let rank = step.ranks[lane].rank;
        let of = |slot: usize| {
            let own = graph.ranks[rank.index()].groups[slot];
            (own, classes.groups[classes.group[own]])
        };
        let time = match &graph.programs[step.ranks[lane].program].ops[op].what {
            What::Collective(c) => simulator.collective(graph, &classes, of(c.group).1, c)?.time,
            what @ (What::Send { group, bytes, mover } | What::Recv { group, bytes, mover }) => {
                let (own, group) = of(*group);
                let sends = matches!(what, What::Send { .. });
                let sender = graph.groups[own].iter().copied().find(|&member| (member == rank) == sends);
                let class = |of| classes.rank.get(of);
                let first = graph.groups[group].first().and_then(|r| class(r.index()));
                let back = sender.is_some_and(|sender| class(sender.index()) != first);
                simulator.send(graph, &classes, group, (*bytes, back, *mover))?.time
            }
            _ => SimDuration::ZERO,
        };
        Ok(time)
    };
    let mut all = Vec::new();
    for (lane, op, shares) in &step.link_shares {
        let Some(activity) = step.ranks[*lane].activities.iter().find(|a| a.op == *op) else { continue };
        let (from, to) = (activity.moves, activity.end);
        if from < to {
            let slower = alone(*lane, *op)?.as_us() / (to - from).as_us();
            all.push(LinkUse { from, to, links: shares.iter().map(|&(link, share)| (link, share * slower)).collect() });
        }
    }
    Ok(all)
}

fn variant(label: &str, graph: &OpGraph, step: &Step, parts: &Breakdown, choices: Choices) -> Variant {
    let signed = |picoseconds: study::Signed| picoseconds as f64 / 1e9;
    Variant {
        label: label.to_owned(),
        ranks: graph.ranks.len() as u64,
        micro_batches: 1,
        step_ms: ms(parts.step),
        compute_ms: ms(parts.compute),
        exposed_ms: ms(parts.step) - ms(parts.compute),
        interference_ms: signed(parts.interference),
        launch_ms: signed(parts.launch),
        framework_ms: signed(parts.framework),
        unhidden_ms: signed(parts.unhidden),
        bubble_ms: ms(parts.compute) - ms(parts.busiest) - signed(parts.stragglers),
        straggler_ms: signed(parts.stragglers),
        jitter: None,
        choices,
        events: step.events,
    }
}

fn communication(step: &Step) -> Vec<Communication> {
    let mut all = Vec::new();
    for rank in step.ranks.iter().take(SHOWN_RANKS) {
        all.extend(rank.communication.iter().map(|(kind, calls)| Communication {
            rank: rank.rank.0,
            like: rank.count,
            kind: kind.to_string(),
            calls: calls.count,
            busy_ms: ms(calls.busy),
            exposed_ms: ms(calls.exposed),
            waits_ms: ms(calls.waits),
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

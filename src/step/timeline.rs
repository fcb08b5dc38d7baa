//! A timeline of a step for ui.perfetto.dev: streams of every rank that was run, and the use of links.

use std::collections::{BTreeMap, BTreeSet};

use collcast_reports::perfetto::{Counter, TraceEvent, TraceWriter};
use collcast_sim::ids::LinkId;
use collcast_sim::topology::Topology;
use collcast_sim::units::SimTime;
use collcast_sim::workload::{OpGraph, Step};

use super::outcome::{LinkUse, Outcome};
use crate::error::Error;

/// Most links of one call that a timeline shows: the busiest.
const SHOWN_LINKS: usize = 4;

/// The timeline of a step, as Perfetto's JSON.
///
/// # Errors
/// None, while memory lasts.
pub fn timeline(outcome: &Outcome) -> Result<Vec<u8>, Error> {
    write(&outcome.topology, &outcome.graph, &outcome.step, &outcome.link_use)
        .map_err(|source| crate::files::failed("timeline".as_ref(), source))
}

/// Streams of every rank that was run, and how much of their busiest links calls use.
fn write(topology: &Topology, graph: &OpGraph, step: &Step, calls: &[LinkUse]) -> std::io::Result<Vec<u8>> {
    let mut trace = TraceWriter::new(Vec::new())?;
    let links = u32::try_from(step.ranks.len()).unwrap_or(u32::MAX);
    for (process, rank) in (0..).zip(&step.ranks) {
        trace.process_name(process, &format!("rank {} (and {} like it)", rank.rank, rank.count - 1))?;
        let program = &graph.programs[rank.program];
        for (thread, stream) in (0..).zip(&program.streams) {
            trace.thread_name(process, thread, &stream.name)?;
        }
        for activity in &rank.activities {
            let op = &program.ops[activity.op];
            if activity.end == activity.start {
                continue;
            }
            let waits = activity.moves - activity.start;
            let mut args = vec![("kind".to_owned(), op.kind.to_string())];
            if waits.0 > 0 {
                args.push(("waits for other ranks".to_owned(), waits.to_string()));
            }
            trace.event(&TraceEvent {
                name: op.label.to_string(),
                category: op.kind.to_string(),
                process,
                thread: op.stream as u64,
                start: activity.start,
                duration: activity.end - activity.start,
                args,
            })?;
        }
    }
    trace.process_name(links, "links: % used by the calls under way")?;
    let mut steps: BTreeMap<LinkId, BTreeMap<SimTime, i64>> = BTreeMap::new();
    let mut seen: BTreeSet<(LinkId, SimTime, SimTime)> = BTreeSet::new();
    for call in calls {
        for &(link, share) in call.links.iter().take(SHOWN_LINKS) {
            // Both ends of a call name it.
            if seen.insert((link, call.from, call.to)) {
                let percent = (share * 100.0).round() as i64;
                let steps = steps.entry(link).or_default();
                *steps.entry(call.from).or_default() += percent;
                *steps.entry(call.to).or_default() -= percent;
            }
        }
    }
    for (link, steps) in steps {
        let mut used = 0;
        for (time, change) in steps {
            used += change;
            let values = vec![("used".to_owned(), u64::try_from(used).unwrap_or(0))];
            trace.counter(&Counter { name: topology.link_name(link), process: links, time, values })?;
        }
    }
    trace.finish()
}

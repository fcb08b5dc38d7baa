//! A graph of operations with the slices of all its calls.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::fold::Classes;
use super::footprint::Simulator;
use super::graph::{Mechanisms, OpGraph, WorkloadError};
use super::lower::{Builder, WHOLE};
use super::lowered::Lowered;
use super::outcome::Step;
use crate::engine::flows::WEIGHT_ONE;
use crate::engine::{Section, run};
use crate::network::{join, lay};
use crate::predict::PredictError;
use crate::schedule::wiring::UNUSED;

/// Runs a graph with every slice: the lanes of all calls and the tasks in one instance.
pub(super) fn slices(
    simulator: &Simulator<'_>,
    graph: &OpGraph,
    folded: &Classes,
    mechanisms: Mechanisms,
) -> Result<Step, WorkloadError> {
    let classes = super::fold::unfolded(graph, folded);
    let mut builder = Builder::new(simulator, graph, &classes, mechanisms);
    builder.jobs = Some(Vec::new());
    for lane in 0..classes.ranks.len() {
        builder.rank(lane)?;
    }
    builder.check_meetings()?;
    let jobs = builder.jobs.take().unwrap_or_default();
    let profile = simulator.predictor().profile();
    let laid = (jobs.iter())
        .map(|job| lay(&job.view, profile, &simulator.settings.transport, &job.schedule))
        .collect::<Result<Vec<_>, _>>()
        .map_err(PredictError::from)?;
    // Kernels of all jobs, one after another: which task starts each, and on which rank.
    let mut starts: Vec<(u32, usize)> = Vec::new();
    for job in &jobs {
        for (&rank, &body) in graph.groups[job.group].iter().zip(&job.bodies) {
            starts.push((body, rank.index()));
        }
    }
    let mut instance = join(laid, false).instance;
    let base = u32::try_from(instance.resources.len()).unwrap_or(UNUSED);
    for spec in &mut builder.specs {
        spec.uses.iter_mut().chain(&mut spec.holds).for_each(|used| used.0 += base);
    }
    for (kernel, &(body, _)) in (0..).zip(&starts) {
        builder.specs[body as usize].kernels.push(kernel);
    }
    if mechanisms.interference {
        // What a computation takes from blocks it takes from each lane of its rank, and what lanes
        // send takes memory.
        let mut lanes_of: Vec<Vec<(u32, u64)>> = vec![Vec::new(); graph.ranks.len()];
        let per_byte = profile.traffic_per_byte() / profile.memory(simulator.device.memory);
        let weight = (per_byte * WHOLE as f64 * WEIGHT_ONE as f64) as u64;
        let conns = Arc::make_mut(&mut instance.conns);
        let mut senders: Vec<SmallVec<[u32; 1]>> = vec![SmallVec::new(); conns.len()];
        for lane in &instance.lanes {
            let rank = starts[lane.kernel as usize].1;
            let rate = instance.resources[lane.issue.0 as usize];
            if !lanes_of[rank].contains(&(lane.issue.0, rate)) {
                lanes_of[rank].push((lane.issue.0, rate));
            }
            for &conn in lane.send.iter().filter(|&&c| c != UNUSED) {
                let (senders, memory) = (&mut senders[conn as usize], builder.own[rank].memory + base);
                if !senders.contains(&memory) {
                    senders.push(memory);
                }
            }
        }
        for (conn, senders) in conns.iter_mut().zip(senders) {
            // One flow has the bytes of all its senders: that of the receiver where it loads them, as through NVLS.
            let loads = conn.uses.iter().next().is_some_and(|(first, _)| first == Section::Load);
            let section = if loads { Section::Load } else { Section::Transfer };
            senders.into_iter().for_each(|memory| conn.uses.push(section, (memory, weight)));
        }
        let blocks: FxHashMap<u32, usize> =
            builder.own.iter().enumerate().map(|(rank, own)| (own.blocks + base, rank)).collect();
        for spec in &mut builder.specs {
            let Some(at) = spec.holds.iter().position(|held| blocks.contains_key(&held.0)) else { continue };
            let (resource, held) = spec.holds.remove(at);
            let share = held as f64 / WHOLE as f64;
            let lanes = &lanes_of[blocks[&resource]];
            spec.holds.extend(lanes.iter().map(|&(lane, rate)| (lane, (rate as f64 * share) as u64)));
        }
    }
    instance.resources.extend(builder.resources);
    instance.tasks = builder.specs;
    let lowered = Lowered {
        instance,
        tasks: builder.tasks,
        ops: builder.ops,
        lanes: classes.ranks.clone(),
        links: FxHashMap::default(),
        calls: jobs.iter().map(|job| job.bodies.clone()).collect(),
        slices: true,
    };
    let outcome = run(&lowered.instance, &mut simulator.predictor().teller().clone()).map_err(WorkloadError::run)?;
    Ok(super::outcome::of(graph, &lowered, &outcome))
}

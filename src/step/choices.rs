//! What NCCL chooses for a step's calls.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use collcast_sim::predict::Choice;
use collcast_sim::workload::{OpGraph, Simulator, Step, What, WorkloadError, fold::fold};

/// Algorithms and protocols that NCCL chooses, by kind of call.
pub(super) type Choices = BTreeMap<String, BTreeSet<String>>;

/// What NCCL chooses for the calls of a step that leave it the algorithm; the simulator knows them from the run.
pub(super) fn choices(simulator: &Simulator<'_>, graph: &OpGraph, step: &Step) -> Result<Choices, WorkloadError> {
    let classes = fold(graph, simulator.topology())?;
    let (mut all, mut seen) = (Choices::new(), HashSet::new());
    for &(rank, _) in &classes.ranks {
        let spec = &graph.ranks[rank.index()];
        for op in &graph.programs[spec.program].ops {
            let What::Collective(c) = &op.what else { continue };
            let group = classes.groups[classes.group[spec.groups[c.group]]];
            if c.algorithm != Choice::Auto || !seen.insert((group, c, &op.kind)) {
                continue;
            }
            let how = match step.slices {
                // Of each kind the first call.
                true => step.how.get(&op.kind).cloned().unwrap_or_default(),
                false => simulator.collective(graph, &classes, group, c)?.how.clone(),
            };
            let choice = how.split(',').next().unwrap_or_default().to_owned();
            all.entry(op.kind.to_string()).or_default().insert(choice);
        }
    }
    Ok(all)
}

/// Which choices are others than before, such as `data-parallel all_reduce ring/simple -> tree/simple`; empty where none is.
pub(super) fn changed(before: &Choices, now: &Choices) -> String {
    let listed = |all: &BTreeSet<String>| all.iter().map(String::as_str).collect::<Vec<_>>().join(" and ");
    let other = now.iter().filter_map(|(kind, choice)| {
        let before = before.get(kind).filter(|before| *before != choice)?;
        Some(format!("{kind} {} -> {}", listed(before), listed(choice)))
    });
    other.collect::<Vec<_>>().join("; ")
}

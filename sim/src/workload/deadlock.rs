//! Which ranks wait for each other where a step never ends.

use super::graph::{OpGraph, WorkloadError};
use super::lowered::{Lowered, Part};

/// Waits that are named at most.
const NAMED: usize = 4;

/// Who waits in which call for whom, going on from rank to rank until one has been named.
pub(super) fn found(graph: &OpGraph, lowered: &Lowered<'_>) -> WorkloadError {
    let ended = ended(lowered);
    // Calls that some of their ranks have come to: a rank that is in it, the call, and one that is not there yet.
    let rank = |lane: usize| lowered.lanes[lane].0;
    let of = |task: u32| &lowered.ops[lowered.tasks[task as usize].0];
    let calls: Vec<(usize, u32, usize)> = (0..)
        .zip(&lowered.tasks)
        .filter(|&(task, &(_, part))| part == Part::Body && !ended[task as usize])
        .filter_map(|(body, _)| {
            let starts: Vec<u32> = lowered.instance.tasks[body as usize].after.iter().map(|after| after.0).collect();
            let starts = || starts.iter().filter(|&&task| lowered.tasks[task as usize].1 == Part::Start);
            let there = starts().find(|&&task| ended[task as usize])?;
            let missing = starts().find(|&&task| !ended[task as usize])?;
            Some((of(*there).lane, *there, of(*missing).lane))
        })
        .collect();
    let mut told: Vec<String> = Vec::new();
    let mut next = calls.first();
    let mut seen = Vec::new();
    while let Some(&(lane, start, other)) = next.filter(|call| !seen.contains(&call.0) && told.len() < NAMED) {
        seen.push(lane);
        let program = graph.ranks[rank(lane).index()].program;
        let op = &graph.programs[program].ops[of(start).op];
        let (here, call, missing) = (rank(lane), op.what.call(), rank(other));
        told.push(format!("rank {here} is in `{}` ({call}) and waits for rank {missing}", op.label));
        next = calls.iter().find(|call| call.0 == other);
    }
    WorkloadError::Stuck(if told.is_empty() { "kernels hold what others wait for".to_owned() } else { told.join("; ") })
}

/// By task: whether all that it waits for can end, gates aside.
fn ended(lowered: &Lowered<'_>) -> Vec<bool> {
    let tasks = &lowered.instance.tasks;
    let mut missing: Vec<usize> = tasks.iter().map(|task| task.after.len()).collect();
    let mut next = vec![Vec::new(); tasks.len()];
    for (index, task) in tasks.iter().enumerate() {
        task.after.iter().for_each(|before| next[before.0 as usize].push(index));
    }
    let mut ready: Vec<usize> = (0..tasks.len()).filter(|&task| missing[task] == 0).collect();
    let mut ended = vec![false; tasks.len()];
    while let Some(task) = ready.pop() {
        ended[task] = true;
        for &other in &next[task] {
            missing[other] -= 1;
            if missing[other] == 0 {
                ready.push(other);
            }
        }
    }
    ended
}

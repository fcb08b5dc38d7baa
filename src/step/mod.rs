//! One training step: how long it takes, what of its communication is exposed, by what, and what would help.

mod advice;
mod collectives;
mod goal;
mod loaded;
mod outcome;
mod pictures;
mod profiled;
mod recorded;
mod request;
mod simulated;
mod timeline;
mod variants;

use collcast_scenarios::study;
use collcast_sim::units::SimDuration;
use collcast_sim::workload::{Level, Mechanisms, OpGraph};

use crate::error::Error;
pub use advice::Change;
pub use collectives::{Collectives, Role};
pub use goal::{Written, write_goal};
use loaded::{Loaded, failed, ms};
pub use outcome::{Communication, Detail, Disturbed, LinkUse, Outcome, PathPart, Stream, Variant};
pub use pictures::pictures;
pub use profiled::profiled;
pub use recorded::{is_recorded, recorded, write_recorded};
pub use request::Request;
use simulated::of_graph;
pub use timeline::timeline;

/// Simulates a training step, or each variant of it.
///
/// # Errors
/// A scenario or machine that cannot be read, a layout that does not fit, a call that cannot be forecast.
pub fn step(request: &Request) -> Result<Outcome, Error> {
    let variants = variants::variants(request)?;
    let Some(((label, text), others)) = variants.split_first() else {
        return Err(Error::usage("there is nothing to simulate", "give a scenario"));
    };
    let follow = |index| request.watch.one_of(index, variants.len());
    let loaded = Loaded::new(text, label, request)?.followed(follow(0));
    let scenario = &loaded.scenario;
    let mut first = of_scenario(label, &loaded, request.level)?;
    let parts = request.watch.parts(variants.len());
    for (index, (label, text)) in (1..).zip(others) {
        parts.done()?;
        let loaded = Loaded::new(text, label, request)?.followed(follow(index));
        let other = of_scenario(label, &loaded, request.level)?;
        first.same_work &= loaded.scenario.same_work(scenario);
        for warning in other.warnings {
            if !first.warnings.contains(&warning) {
                first.warnings.push(warning);
            }
        }
        first.variants.extend(other.variants);
        first.grounds = [first.grounds, other.grounds].into_iter().collect();
    }
    first.scenario.clone_from(&scenario.name);
    first.notes.insert(0, format!("scenario {}: {}", scenario.name, scenario.description));
    match (&mut first.detail, variants.len()) {
        (Some(detail), 1) => {
            detail.disturbed = disturbed(&loaded, &first.graph, request.level)?;
            if scenario.layout.data <= advice::MOST_RANKS {
                request.watch.stage("trying what would help")?;
                let simulator = loaded.machine.simulator();
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

/// Simulates one variant.
fn of_scenario(label: &str, loaded: &Loaded, level: Level) -> Result<Outcome, Error> {
    let mut outcome = of_graph(label, loaded.graph(), &loaded.machine, level)?;
    outcome.warnings.extend(loaded.scenario.warnings());
    let layout = loaded.scenario.layout;
    for variant in &mut outcome.variants {
        variant.micro_batches = u64::from(layout.micro_batches) * u64::from(layout.data);
    }
    Ok(outcome)
}

/// What stragglers and jitter cost: the step with and without.
fn disturbed(loaded: &Loaded, graph: &OpGraph, level: Level) -> Result<Vec<Disturbed>, Error> {
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
    let seeds = scenario.jitter.map_or(0, |(_, seeds)| seeds as usize);
    loaded.machine.watch.stage("simulating stragglers and jitter")?;
    let simulator = loaded.machine.telling_simulator(cases.len() * (1 + seeds));
    let mut all = Vec::new();
    for (name, graph) in cases {
        let step = simulator.run(graph, Mechanisms::default(), level).map_err(failed)?;
        all.push(Disturbed { case: name.to_owned(), step_ms: ms(step.time), range_ms: None, seeds: None });
        if let Some((jitter, seeds)) = scenario.jitter {
            let spread = study::spread(&simulator, graph, (jitter, seeds), level).map_err(failed)?;
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

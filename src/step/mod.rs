//! One training step: how long it takes, what its communication costs, by what, and what would help.

mod advice;
mod choices;
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

use std::collections::BTreeSet;

use collcast_scenarios::study;
use collcast_sim::collective::Launch;
use collcast_sim::topology::Topology;
use collcast_sim::workload::{Level, Mechanisms, OpGraph, Simulator};

use crate::error::Error;
pub use advice::Change;
pub use collectives::{Collectives, Role};
pub use goal::{Written, write_goal};
use loaded::{Loaded, failed, gpus, is_of_others, ms};
pub use outcome::{Communication, Detail, Disturbed, Jittered, LinkUse, Outcome, PathPart, Stream, Variant};
pub use pictures::pictures;
pub use profiled::profiled;
pub use recorded::{is_recorded, recorded, write_recorded};
pub use request::Request;
use simulated::simulated;
pub use timeline::timeline;

/// Simulates a training step, or each variant of it.
///
/// # Errors
/// A scenario or machine that cannot be read, a layout that does not fit, a call that cannot be forecast; of several variants
/// only where none is possible.
pub fn step(request: &Request) -> Result<Outcome, Error> {
    let variants = variants::variants(request)?;
    let own = if variants.len() > 1 || !request.vary.is_empty() { gpus_of(request) } else { BTreeSet::new() };
    let level = level_of_all(&variants, request);
    let parts = request.watch.parts(variants.len());
    let (mut first, mut refused): (Option<(Loaded, Outcome)>, Vec<Error>) = (None, Vec::new());
    let mut impossible = Vec::new();
    for (index, (label, text)) in variants.iter().enumerate() {
        let ran = Loaded::new(text, label, request).and_then(|loaded| {
            let loaded = loaded.followed(request.watch.one_of(index, variants.len()));
            let mut outcome = of_scenario(label, &loaded, level)?;
            if variants.len() > 1 {
                let seeds = loaded.scenario.jitter.map_or(0, |(_, seeds)| seeds as usize);
                let simulator = loaded.machine.telling_simulator(seeds);
                outcome.variants[0].jitter = jittered(&loaded, &simulator, &outcome.graph, outcome.step.level())?;
            }
            if let Some(warning) = moved(&own, &loaded.machine.topology) {
                outcome.warnings.push(warning);
                outcome.same_gpus = false;
                outcome.grounds = outcome.grounds.moved();
            }
            Ok((loaded, outcome))
        });
        parts.done()?;
        match (ran, &mut first) {
            // Our own faults, and whoever stops us, are no answer.
            (Err(error), _) if error.code() != 2 || variants.len() == 1 => return Err(error),
            (Err(error), _) => {
                impossible.push(format!("not possible: {label}: {error}"));
                refused.push(error);
            }
            (Ok(ran), None) => first = Some(ran),
            (Ok((loaded, other)), Some((of_first, first))) => {
                first.join(other, loaded.scenario.same_work(&of_first.scenario));
            }
        }
    }
    let Some((loaded, mut first)) = first else {
        return Err(refused
            .into_iter()
            .next()
            .unwrap_or_else(|| Error::usage("there is nothing to simulate", "give a scenario")));
    };
    first.warnings.extend(impossible);
    let scenario = &loaded.scenario;
    first.scenario.clone_from(&scenario.name);
    first.notes.insert(0, format!("scenario {}: {}", scenario.name, scenario.description));
    first.notes.extend(launches(&loaded));
    match (&mut first.detail, variants.len()) {
        (Some(detail), 1) => {
            let level = first.step.level();
            detail.disturbed = disturbed(&loaded, &first.graph, level)?;
            if scenario.largest_group() <= advice::MOST_RANKS {
                request.watch.stage("trying what would help")?;
                let simulator = loaded.machine.simulator();
                let now = advice::Now { step_ms: first.variants[0].step_ms, choices: &first.variants[0].choices };
                let (advice, warnings) = advice::advice(request, &loaded, &simulator, (&now, &first.graph, level))?;
                detail.advice = Some(advice);
                first.warnings.extend(warnings);
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
    let choices: Vec<String> =
        first.variants.iter().skip(1).filter_map(|other| first.variants[0].chooses_otherwise(other)).collect();
    first.notes.extend(choices);
    Ok(first)
}

/// The level of all variants: what two levels differ by is none of what is varied.
fn level_of_all(variants: &[(String, String)], request: &Request) -> Level {
    let needs_flows = |(label, text): &(String, String)| {
        let loaded = Loaded::new(text, label, request);
        loaded.is_ok_and(|l| l.machine.simulator().level(&l.graph(), request.level) == Level::Flows)
    };
    if variants.len() > 1 && variants.iter().any(needs_flows) { Level::Flows } else { request.level }
}

/// What is said of a step that is a CUDA graph.
fn launches(loaded: &Loaded) -> Option<String> {
    (loaded.machine.settings.launch == Launch::Graph)
        .then(|| "the whole step is one CUDA graph, calls too: the host launches nothing in it".to_owned())
}

/// Kinds of GPU of the machine that the scenario itself names, for which its layers have their times.
fn gpus_of(request: &Request) -> BTreeSet<String> {
    let loaded = Loaded::new(&request.text, "", request);
    loaded.map_or_else(|_| BTreeSet::new(), |loaded| gpus(&loaded.machine.topology))
}

/// Warns of a machine with other GPUs than those that times of computation are of.
fn moved(own: &BTreeSet<String>, topology: &Topology) -> Option<String> {
    let names = own.iter().map(String::as_str).collect();
    is_of_others(&names, topology).then(|| {
        let listed = |names: BTreeSet<String>| names.into_iter().collect::<Vec<_>>().join(", ");
        format!(
            "{} has {}, and layers take what the scenario says for {}: only calls are those of this machine; vary times of \
             layers too, or use `collcast plan`, which knows kernels of each GPU",
            topology.name,
            listed(gpus(topology)),
            listed(own.clone()),
        )
    })
}

/// Simulates one variant.
fn of_scenario(label: &str, loaded: &Loaded, level: Level) -> Result<Outcome, Error> {
    let even = loaded.even().map(|(graph, _)| graph);
    let on = (level, Mechanisms::default());
    let mut outcome = simulated(label, (loaded.graph(), even.as_ref()), &loaded.machine, on)?;
    let of_machine =
        [("slow links", !loaded.scenario.slow_links.is_empty()), ("jitter", loaded.scenario.jitter.is_some())];
    outcome.not_in_files.extend(of_machine.into_iter().filter(|(_, has)| *has).map(|(what, _)| what));
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
    let even = loaded.even();
    let mut cases = vec![("as it is", graph, &loaded.machine)];
    cases.extend(even.as_ref().map(|(even, machine)| ("without stragglers", even, machine)));
    let seeds = scenario.jitter.map_or(0, |(_, seeds)| seeds as usize);
    let mut all = Vec::new();
    for (name, graph, machine) in cases {
        machine.watch.stage(&format!("simulating the step {name}"))?;
        let simulator = machine.telling_simulator(1 + seeds);
        let step = simulator.run(graph, Mechanisms::default(), level).map_err(failed)?;
        all.push(Disturbed { case: name.to_owned(), step_ms: ms(step.time), range_ms: None, seeds: None });
        if let Some(Jittered { median_ms, range_ms, seeds }) = jittered(loaded, &simulator, graph, level)? {
            all.push(Disturbed {
                case: format!("{name}, with jitter (median)"),
                step_ms: median_ms,
                range_ms: Some(range_ms),
                seeds: Some(seeds),
            });
        }
    }
    Ok(all)
}

/// The step over seeds of the scenario's jitter, if it has some.
fn jittered(
    loaded: &Loaded,
    simulator: &Simulator<'_>,
    graph: &OpGraph,
    level: Level,
) -> Result<Option<Jittered>, Error> {
    let Some(jitter) = loaded.scenario.jitter else { return Ok(None) };
    let spread = study::spread(simulator, graph, jitter, level).map_err(failed)?;
    let [low, median, high] = spread.quantiles().map(ms);
    let first = jitter.0.seed;
    let seeds = (first, spread.times.last().map_or(first, |last| last.0));
    Ok(Some(Jittered { median_ms: median, range_ms: (low, high), seeds }))
}

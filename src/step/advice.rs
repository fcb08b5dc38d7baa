//! What would help a step: the step again, with one thing changed.

use collcast_scenarios::file::{self, Scenario};
use collcast_scenarios::step::DataParallel;
use collcast_sim::workload::{Level, Mechanisms, OpGraph, Simulator, WorkloadError};
use rayon::prelude::*;
use serde::Serialize;

use super::choices::{Choices, changed, choices};
use super::loaded::{Loaded, Machine, failed, ms};
use super::request::Request;
use crate::error::Error;
use crate::kernels;
use crate::vary::{NETWORK_TWICE, To};

/// Ranks of a communicator up to which advice is asked for: it simulates the step some 15 times.
pub(super) const MOST_RANKS: u32 = 128;

/// A change, and the step with it.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// What is changed.
    pub what: String,
    /// The setting of the scenario, the best that was tried; empty for changes of the machine.
    pub setting: String,
    /// The step with it.
    pub step_ms: f64,
    /// GiB that the strategy's buffers hold more on a GPU, or less; none where a change is none of it.
    pub memory_gib: Option<f64>,
    /// What NCCL chooses otherwise then; empty where nothing.
    pub choice: String,
}

/// Times as long that a step takes at least for which a faster part is said to be worse: above rounding.
const LONGER: f64 = 1.005;
/// Ranks that are named at most.
const SHOWN: usize = 8;

/// The step as it is.
pub(super) struct Now<'a> {
    pub(super) step_ms: f64,
    pub(super) choices: &'a Choices,
}

/// Something to change: what it is, the key of the scenario, and values to try.
type Trial = (&'static str, &'static str, &'static [&'static str]);

/// What to try for a scenario.
fn trials(loaded: &Loaded) -> Vec<Trial> {
    let mut trials: Vec<Trial> = vec![
        ("channels", "communication.channels", &["4", "8", "16", "32"]),
        ("algorithm", "communication.algorithm", &["ring", "tree", "nvls"]),
    ];
    match loaded.scenario.data_parallel {
        DataParallel::Ddp(_) if loaded.scenario.layout.data > 1 => {
            trials.push(("bucket size", "data_parallel.bucket", &["5 MiB", "25 MiB", "100 MiB", "400 MiB"]));
            let view = "gradients stay in buckets (gradient_as_bucket_view)";
            trials.push((view, "data_parallel.bucket_view", &["true"]));
        }
        DataParallel::AtEnd | DataParallel::OneGpu => trials.push(("strategy", "data_parallel.kind", &["ddp"])),
        DataParallel::Fsdp(_) => {
            trials.push(("prefetch", "data_parallel.prefetch", &["0", "1", "2"]));
            trials.push(("keep parameters after the forward pass", "data_parallel.reshard", &["false"]));
        }
        _ => {}
    }
    if loaded.scenario.layout.pipeline > 1 {
        trials.push(("sends by copy engines (no SM)", "communication.send", &["copy_engine"]));
    }
    trials
}

/// Changes and the step with each, the shortest first; and what to know of them.
pub(super) fn advice(
    request: &Request,
    loaded: &Loaded,
    simulator: &Simulator<'_>,
    (now, graph, level): (&Now<'_>, &OpGraph, Level),
) -> Result<(Vec<Change>, Vec<String>), Error> {
    let trials = trials(loaded);
    let all: Vec<(usize, &str)> =
        trials.iter().enumerate().flat_map(|(at, trial)| trial.2.iter().map(move |&value| (at, value))).collect();
    let machines = machines(&loaded.machine);
    let even = loaded.even();
    let parts = request.watch.parts(all.len() + machines.len() + usize::from(even.is_some()));
    let room = kernels::gpu_of(&loaded.machine.topology, None).ok().map(|gpu| gpu.capacity());
    let (held, memory) = (held(loaded, &loaded.scenario), |bytes: i64| bytes as f64 / f64::from(1 << 30));
    let run = |simulator: &Simulator<'_>, graph: &OpGraph| -> Result<(f64, Choices), WorkloadError> {
        let step = simulator.run(graph, Mechanisms::default(), level)?;
        Ok((ms(step.time), choices(simulator, graph, &step)?))
    };
    // What the machine cannot do is no advice.
    let tried = |&(at, value): &(usize, &str)| {
        if request.watch.stopped() {
            return None;
        }
        let changed = file::with_value(&request.text, trials[at].1, value).ok()?;
        let scenario = file::read(&changed, &request.name).ok()?;
        let more = held_more(loaded, &scenario, held);
        let ran = run(simulator, &loaded.graph_of(&scenario));
        parts.done().ok()?;
        Some((ran.ok()?, more))
    };
    let results: Vec<Option<((f64, Choices), i64)>> = all.par_iter().map(tried).collect();
    if request.watch.stopped() {
        return Err(Error::Cancelled);
    }
    let (mut changes, mut notes) = (Vec::new(), Vec::new());
    if level == Level::Slices && loaded.scenario.layout.pipeline > 1 {
        notes.push("sends by copy engines cannot be tried slice by slice: --level flows tries them".to_owned());
    }
    for (at, (what, key, _)) in trials.iter().enumerate() {
        let of_trial = all.iter().zip(&results).filter(|((of, _), _)| *of == at);
        let mut best: Option<Change> = None;
        for ((_, value), result) in of_trial {
            let Some(((step_ms, choices), more)) = result else { continue };
            let setting = format!("{key}={value}");
            if let Some(room) = room.filter(|&room| *more > i64::try_from(room).unwrap_or(i64::MAX)) {
                let [more, room] = [*more, room as i64].map(memory);
                notes.push(format!("{setting} is no advice: it keeps {more:.1} GiB more on a GPU of {room:.1} GiB"));
            } else if best.as_ref().is_none_or(|best| *step_ms < best.step_ms) {
                let memory_gib = key.starts_with("data_parallel.").then(|| memory(*more));
                let choice = changed(now.choices, choices);
                best = Some(Change { what: (*what).to_owned(), setting, step_ms: *step_ms, memory_gib, choice });
            }
        }
        changes.extend(best);
    }
    for (what, machine) in machines {
        let (step_ms, choices) = run(&machine.simulator(), graph).map_err(failed)?;
        let choice = changed(now.choices, &choices);
        if step_ms > now.step_ms * LONGER {
            let why = match choice.as_str() {
                "" => " (NCCL chooses the same)".to_owned(),
                choice => format!(", as NCCL chooses otherwise: {choice}"),
            };
            notes.push(format!("{what}: a step would take longer, {step_ms:.3} ms and not {:.3}{why}", now.step_ms));
        }
        changes.push(Change { what: what.to_owned(), setting: String::new(), step_ms, memory_gib: None, choice });
        parts.done()?;
    }
    if let Some((even, machine)) = even {
        let (step_ms, choices) = run(&machine.simulator(), &even).map_err(failed)?;
        let ranks: Vec<String> = loaded.scenario.stragglers().iter().take(SHOWN).map(ToString::to_string).collect();
        let links = if loaded.scenario.slow_links.is_empty() { "" } else { ", with links of full rate" };
        let setting = format!("rank {} at the pace of the others{links}", ranks.join(", "));
        let choice = changed(now.choices, &choices);
        changes.push(Change { what: "no stragglers".to_owned(), setting, step_ms, memory_gib: None, choice });
        parts.done()?;
    }
    changes.sort_by(|a, b| a.step_ms.total_cmp(&b.step_ms));
    Ok((changes, notes))
}

/// Machines that would be faster in one thing.
fn machines(machine: &Machine) -> Vec<(&'static str, Machine)> {
    let twice = |what, settings: &[(&str, To)]| machine.changed(settings).map(|machine| (what, machine));
    let nvlink = twice("NVLink twice as fast", &[("nvlink.rate", To::Times(2.0))]);
    if machine.topology.hosts().len() > 1 {
        let network = twice("network twice as fast: NICs, PCIe and switches", NETWORK_TWICE);
        return network.into_iter().chain(nvlink).collect();
    }
    nvlink.or_else(|| twice("PCIe twice as fast", &[("pcie.rate", To::Times(2.0))])).into_iter().collect()
}

/// Bytes that a strategy's buffers hold on a GPU at once: parameters that are gathered, gradients in buckets.
fn held(loaded: &Loaded, scenario: &Scenario) -> u64 {
    let model = scenario.model(&loaded.machine.site.profile, loaded.machine.device);
    let layout = scenario.layout;
    match scenario.data_parallel {
        DataParallel::Fsdp(how) if layout.pipeline == 1 && how.reshard => {
            let units: Vec<u64> = model.layers.iter().map(|layer| layer.parameters() * model.parameter_bytes).collect();
            let at_once = (1 + how.prefetch).min(units.len().max(1));
            units.windows(at_once).map(|units| units.iter().sum()).max().unwrap_or(0)
        }
        DataParallel::Fsdp(_) if layout.pipeline == 1 => model.size().0,
        // Of any size, all of them together hold all gradients.
        DataParallel::Ddp(how) if how.copies && !how.view => model.gradients().0 / u64::from(layout.pipeline),
        _ => 0,
    }
}

/// What another strategy holds more.
fn held_more(loaded: &Loaded, scenario: &Scenario, now: u64) -> i64 {
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    signed(held(loaded, scenario)) - signed(now)
}

//! What would help a step: the step again, with one thing changed.

use collcast_scenarios::file;
use collcast_scenarios::step::DataParallel;
use collcast_sim::predict::Predictor;
use collcast_sim::workload::{Mechanisms, Simulator};
use rayon::prelude::*;
use serde::Serialize;

use super::loaded::{Loaded, failed, ms, scale};
use super::request::Request;
use crate::error::Error;

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

/// Changes and the step with each, the shortest first.
pub(super) fn advice(request: &Request, loaded: &Loaded, simulator: &Simulator<'_>) -> Result<Vec<Change>, Error> {
    let trials = trials(loaded);
    let all: Vec<(usize, &str)> =
        trials.iter().enumerate().flat_map(|(at, trial)| trial.2.iter().map(move |&value| (at, value))).collect();
    let topology = &loaded.machine.topology;
    let several = topology.hosts().len() > 1;
    let machines = [("network twice as fast", true), ("links inside hosts twice as fast", false)];
    let machines = machines.into_iter().filter(|(_, network)| several || !network);
    let parts = request.watch.parts(all.len() + machines.clone().count());
    // What the machine cannot do is no advice.
    let time_of = |&(at, value): &(usize, &str)| {
        if request.watch.stopped() {
            return None;
        }
        let changed = file::with_value(&request.text, trials[at].1, value).ok()?;
        let graph =
            file::read(&changed, &request.name).ok()?.graph(&loaded.machine.site.profile, loaded.machine.device);
        let step = simulator.run(&graph, Mechanisms::default(), request.level);
        parts.done().ok()?;
        Some(ms(step.ok()?.time))
    };
    let times: Vec<Option<f64>> = all.par_iter().map(time_of).collect();
    if request.watch.stopped() {
        return Err(Error::Cancelled);
    }
    let mut changes: Vec<Change> = Vec::new();
    for (at, (what, key, _)) in trials.iter().enumerate() {
        let tried = all.iter().zip(&times).filter(|((of, _), _)| *of == at);
        let best = tried.filter_map(|((_, value), time)| time.map(|time| (time, value)));
        if let Some((step_ms, value)) = best.min_by(|a, b| a.0.total_cmp(&b.0)) {
            changes.push(Change { what: (*what).to_owned(), setting: format!("{key}={value}"), step_ms });
        }
    }
    for (what, network) in machines {
        let faster = topology.with_links(|_, l| if l.kind.is_network() == network { scale(l, 2.0) } else { l });
        let simulator = Simulator::new(
            Predictor::new(&faster, &loaded.machine.site.profile),
            loaded.machine.device,
            loaded.machine.settings,
        );
        let time = simulator.run(&loaded.graph(), Mechanisms::default(), request.level).map_err(failed)?.time;
        changes.push(Change { what: what.to_owned(), setting: String::new(), step_ms: ms(time) });
        parts.done()?;
    }
    changes.sort_by(|a, b| a.step_ms.total_cmp(&b.step_ms));
    Ok(changes)
}

//! Calls run for real: every element of every result is compared with its exact value, and they are timed.

mod layer;
mod outcome;
mod request;
mod sets;
mod sidecar;
mod transfer;
mod worker;

use collcast_hwbackend::cuda::{Cuda, gpus};
use collcast_hwbackend::exec::{CallToRun, Effort, Executor};
use collcast_hwbackend::host::Host;
use collcast_hwbackend::nccl::p2p::NcclP2p;
use collcast_hwbackend::verbs::Verbs;
use collcast_sim::collective::{Algorithm, Collective, Launch, Protocol};
use collcast_sim::nccl::NcclSettings;
use collcast_sim::predict::{Choice, PredictError, Predictor, Settings};
use collcast_sim::schedule::{ScheduleError, check_supported, valid_protocols};
use collcast_sim::topology::Topology;

use crate::error::Error;
use crate::query::Query;
use crate::site::Site;
use crate::watch::Watch;
pub(crate) use layer::layer_text;
pub use outcome::{Failure, MeasuredCall, Outcome, Planned};
pub use request::{Backend, Request};
use sets::Visible;
pub use sets::{Set, Sets};
pub(crate) use sidecar::{date, sidecar};
pub use transfer::{Copied, TransferOutcome, TransferRequest, transfer};
pub use worker::{COMMAND, Children, PARENT, not_too_many, of_rank, work};

/// Runs calls. The launch mode is that of the site; `auto` and channels are planned as forecasts of it are.
///
/// # Errors
/// Hardware or a library that is not there, a call that cannot be planned, variables that contradict each other. What goes
/// wrong once calls run is part of the outcome.
pub fn bench(site: &Site, request: &Request) -> Result<Outcome, Error> {
    let launch = site.settings().launch;
    if request.world.is_some() && launch != Launch::Processes {
        return Err(Error::usage(
            format!("--launch {launch} under a launcher of processes"),
            "leave --launch out, or start the command once, without torchrun, mpirun or srun",
        ));
    }
    let visible = (!request.sets.is_empty()).then(Visible::here);
    if visible.is_some() && (request.world.is_some() || !matches!(request.backend, Backend::Host | Backend::Nccl)) {
        return Err(Error::usage(
            "sets of GPUs run by the back ends nccl and host alone, and are started here",
            "use --backend nccl, and start the command once, without torchrun, mpirun or srun",
        ));
    }
    let predictor = site.predictor();
    let planned = over_sets(plan(site, &predictor, request)?, request, visible.as_ref());
    let mut outcome = Outcome {
        backend: request.backend,
        launch,
        points: planned.len(),
        planned,
        rows: Vec::new(),
        facts: Vec::new(),
        environment: Vec::new(),
        interrupted: false,
        failure: None,
    };
    let settings = |query: &Query| settings(query, request, site.settings());
    let watch = &request.watch;
    match request.backend {
        Backend::Host => schedules(&mut Host, &predictor, &settings, &request.effort, watch, &mut outcome)?,
        Backend::Cuda => schedules(&mut Cuda::open()?, &predictor, &settings, &request.effort, watch, &mut outcome)?,
        Backend::NcclP2p => {
            schedules(&mut NcclP2p::open()?, &predictor, &settings, &request.effort, watch, &mut outcome)?;
        }
        Backend::Nccl => {
            outcome.environment = environment(request.env.clone(), request.nvls)?;
            worker::measure(request, visible.as_ref(), &mut outcome);
        }
        Backend::Verbs => {
            let world = request.world.as_ref().ok_or_else(|| {
                Error::usage(
                    "the back end verbs runs one process a rank, and this one is not told which it is",
                    "start it under torchrun, mpirun or srun, or set RANK, WORLD_SIZE, LOCAL_RANK and MASTER_ADDR",
                )
            })?;
            let mut executor = Verbs::open(world, &request.verbs, request.effort.patience)?;
            schedules(&mut executor, &predictor, &settings, &request.effort, watch, &mut outcome)?;
        }
    }
    Ok(outcome)
}

/// What makes NCCL take each process for a host of its own, so that several share a GPU.
const HOST_EACH: &str = "--launch processes --env NCCL_HOSTID=h{rank}";

/// Whether NCCL takes each process for a host of its own.
pub fn plays_hosts(launch: Option<&str>, env: &[(String, String)]) -> bool {
    let own = |(name, value): &(String, String)| name == "NCCL_HOSTID" && value.contains("{rank}");
    launch == Some(Launch::Processes.name()) && env.iter().any(own)
}

/// What to know of the times where so many ranks share the GPUs of this host.
pub fn crowded(ranks: u32) -> Option<String> {
    let gpus = gpus().ok().filter(|&gpus| gpus > 0 && gpus < ranks)?;
    Some(format!(
        "{ranks} ranks share {gpus} {}: results are checked as ever, times are not those of {ranks} GPUs or of a network",
        if gpus == 1 { "GPU" } else { "GPUs" },
    ))
}

/// The ranks that run where none are asked for: one a GPU of this host. Fewer than a machine has that was asked for
/// (`named`) are no run of it.
///
/// # Errors
/// No driver, or fewer GPUs than that machine has.
pub fn ranks_here(topology: &Topology, named: bool) -> Result<u32, Error> {
    ranks_of(gpus()?, topology, named)
}

fn ranks_of(gpus: u32, topology: &Topology, named: bool) -> Result<u32, Error> {
    let wanted = topology.ranks();
    if named && gpus < wanted {
        return Err(Error::usage(
            format!("`{}` as asked for has {wanted} GPUs, and this host has {gpus}", topology.name),
            format!(
                "--ranks {gpus} runs the calls on those that are here; to play {wanted} ranks on them add --ranks {wanted} \
                 to --backend cuda, or {HOST_EACH} to --backend nccl"
            ),
        ));
    }
    Ok(gpus.min(wanted))
}

/// What NCCL's processes are given beyond the settings of a call: variables, and NVLS on or off.
///
/// # Errors
/// A variable that lets NCCL use NVLS where it may not, or keeps it from what it was asked to use.
pub fn environment(mut pairs: Vec<(String, String)>, nvls: bool) -> Result<Vec<(String, String)>, Error> {
    if !nvls && pairs.iter().any(|(name, value)| name == "NCCL_NVLS_ENABLE" && value != "0") {
        return Err(Error::usage("--env NCCL_NVLS_ENABLE without --nvls", "add --nvls to let NCCL use multicast"));
    }
    if nvls && pairs.iter().any(|(name, value)| name == "NCCL_NVLS_ENABLE" && value == "0") {
        return Err(Error::usage("--env NCCL_NVLS_ENABLE=0 beside --nvls", "leave one of them out"));
    }
    pairs.retain(|(name, _)| name != "NCCL_NVLS_ENABLE");
    pairs.push(("NCCL_NVLS_ENABLE".to_owned(), u8::from(nvls).to_string()));
    Ok(pairs)
}

/// The calls, with `auto` resolved where schedules are run: NCCL resolves its own.
fn plan(site: &Site, predictor: &Predictor<'_>, request: &Request) -> Result<Vec<Planned>, Error> {
    let by_nccl = request.backend == Backend::Nccl;
    let one = |query: &Query| -> Result<Planned, Error> {
        let query = query.clone();
        if by_nccl && query.algorithm != Choice::Best && query.protocol != Choice::Best {
            let (algorithm, protocol) = (forced(query.algorithm), forced(query.protocol));
            by_nccl_itself(query.call.collective, algorithm, protocol)?;
            return Ok(Planned { algorithm, protocol, ..Planned::new(query) });
        }
        site.check_graphs(query.call.ranks)?;
        // A prediction proves the schedule, which is what makes it fit to run.
        let predicted = query.predict(predictor, &settings(&query, request, site.settings()))?;
        Ok(Planned {
            algorithm: Some(predicted.algorithm),
            protocol: Some(predicted.protocol),
            channels: if by_nccl { query.channels } else { Some(predicted.plan.channels) },
            ..Planned::new(query)
        })
    };
    request.queries.iter().take_while(|_| !request.watch.stopped()).map(one).collect()
}

/// Refuses what NCCL would leave aside, and time a choice of its own under the name of what was asked for.
fn by_nccl_itself(
    collective: Collective,
    algorithm: Option<Algorithm>,
    protocol: Option<Protocol>,
) -> Result<(), Error> {
    if let Some(algorithm) = algorithm {
        check_supported(collective, algorithm).map_err(PredictError::from)?;
        if let Some(protocol) = protocol.filter(|protocol| !valid_protocols(algorithm).contains(protocol)) {
            return Err(PredictError::from(ScheduleError::NoKernel { algorithm, protocol }).into());
        }
        if algorithm == Algorithm::CollTree {
            return Err(Error::usage("NCCL has no coll_tree", "use --backend cuda or host, which run our schedules"));
        }
    }
    if let Some(protocol) = protocol.filter(|_| collective.point_to_point()) {
        return Err(Error::usage(
            format!("NCCL takes no protocol for {collective}: it sends {protocol} or another by size"),
            "leave --protocol out; --env NCCL_P2P_LL_THRESHOLD=BYTES says up to which size it sends LL",
        ));
    }
    Ok(())
}

/// The calls once for each set of GPUs, where there are sets.
fn over_sets(planned: Vec<Planned>, request: &Request, visible: Option<&Visible>) -> Vec<Planned> {
    let Some(visible) = visible else { return planned };
    let on = |set: &Set| {
        let (set, gpus) = (set.clone(), visible.names(set));
        planned.iter().map(move |plan| Planned { set: Some(set.clone()), gpus: gpus.clone(), ..plan.clone() })
    };
    request.sets.iter().flat_map(on).collect()
}

fn forced<T>(choice: Choice<T>) -> Option<T> {
    match choice {
        Choice::Forced(one) => Some(one),
        _ => None,
    }
}

/// Settings of plan and schedule. Without NVLS, unless NCCL may use it: our backends have none.
fn settings(query: &Query, request: &Request, told: &Settings) -> Settings {
    let nvls = Some(request.nvls && request.backend == Backend::Nccl);
    query.settings(&Settings { nccl: NcclSettings { nvls, ..told.nccl }, ..*told })
}

/// Runs schedules, one call after another.
fn schedules(
    executor: &mut dyn Executor,
    predictor: &Predictor<'_>,
    settings: &dyn Fn(&Query) -> Settings,
    effort: &Effort,
    watch: &Watch,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    outcome.facts = facts(executor);
    let parts = watch.parts(outcome.planned.len());
    outcome.interrupted = watch.stopped();
    for (index, plan) in outcome.planned.iter().enumerate() {
        if executor.stops(watch.stopped())? {
            outcome.interrupted = true;
            break;
        }
        let (Some(algorithm), Some(protocol)) = (plan.algorithm, plan.protocol) else {
            continue;
        };
        let (call, settings) = (&plan.query.call, settings(&plan.query));
        let schedule = match &plan.query.schedule {
            Some(imported) => predictor.imported_schedule(imported, call, &settings)?,
            None => predictor.schedule(call, algorithm, protocol, &settings)?,
        };
        let case = CallToRun { call, schedule: Some(&schedule), launch: outcome.launch };
        match executor.run(&case, effort) {
            Ok(sample) => {
                outcome.rows.push(MeasuredCall::new(index, plan, outcome.launch, sample, Some(schedule.identity())));
            }
            Err(error) => {
                outcome.failure = Some(Error::from(error).at(&plan.words()).into());
                break;
            }
        }
        // That it is to stop is seen before the next call: none is lost.
        let _ = parts.done();
    }
    outcome.facts.extend(clocks_after(executor));
    Ok(())
}

/// What an executor runs on.
pub(crate) fn facts(executor: &dyn Executor) -> Vec<(String, String)> {
    executor.facts().into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// The clocks after a run, for the facts beside those before it.
pub(crate) fn clocks_after(executor: &dyn Executor) -> impl Iterator<Item = (String, String)> {
    let after = executor.facts().into_iter().filter(|(key, _)| *key == "clocks_mhz");
    after.map(|(_, value)| ("clocks_mhz_after".to_owned(), value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use collcast_sim::collective::Collective;

    /// Goal: a machine that was asked for runs whole or not at all; without one the GPUs that are here run.
    #[test]
    fn fewer_gpus_than_asked_for_are_refused() {
        let topology = collcast_topologies::load_any("dgx-h100", None, None).unwrap();
        let refused = ranks_of(4, &topology, true).unwrap_err();
        assert!(refused.code() == 2 && refused.render().contains("has 8 GPUs, and this host has 4"));
        assert!(refused.render().contains("--ranks 4") && refused.render().contains("--ranks 8 to --backend cuda"));
        let env = |value: &str| vec![("NCCL_HOSTID".to_owned(), value.to_owned())];
        assert!(plays_hosts(Some("processes"), &env("h{rank}")));
        assert!(!plays_hosts(Some("processes"), &env("h0")) && !plays_hosts(None, &env("h{rank}")));
        assert_eq!(ranks_of(4, &topology, false).unwrap(), 4);
        assert_eq!(ranks_of(16, &topology, true).unwrap(), 8);
    }

    /// Goal: whoever stops a run keeps its rows.
    /// Method: on CPU threads, stopped by the first row.
    #[test]
    fn a_run_that_is_stopped_keeps_its_rows() {
        let site = Site::load("h200x4").unwrap();
        let query = |size| Query::new(&site, Collective::AllReduce, collcast_sim::units::Bytes(size));
        let mut request = Request::new(Backend::Host, vec![query(8), query(16), query(32)]);
        request.effort = Effort { iterations: 1, batches: 3, ..Effort::default() };
        let flag = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let stop = std::sync::Arc::clone(&flag);
        request.watch = Watch::default().until(flag).on_progress(move |done, all| {
            assert_eq!((done, all), (1, 3));
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let outcome = bench(&site, &request).unwrap();
        assert!(outcome.interrupted && outcome.failure.is_none());
        assert_eq!((outcome.rows.len(), outcome.points), (1, 3));
        assert!(outcome.rows[0].checked > 0 && outcome.rows[0].schedule_hash.is_some());
    }
}

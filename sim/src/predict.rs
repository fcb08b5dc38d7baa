//! One prediction from machine to time: plan, schedule, proof, simulation, self-checks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use thiserror::Error;

use crate::collective::{Algorithm, Launch, Protocol};
use crate::engine::flows::WEIGHT_ONE;
use crate::engine::{EngineError, Observer, Unobserved, fold, run};
use crate::ids::{LinkId, Rank};
use crate::model::{bounds, nccl};
use crate::network::{LayError, ResourceName, lay, order};
use crate::profile::Profile;
use crate::schedule::msccl::{Imported, MscclError};
use crate::schedule::plan::{Limits, Plan};
use crate::schedule::verify::{VerifyError, verify};
use crate::schedule::{
    Call, MAX_CHANNELS, Order, Schedule, ScheduleError, check_supported, valid_algorithms, valid_protocols,
};
use crate::topology::{LinkKind, Topology};
use crate::units::{Bytes, SimDuration};

/// Who decides on algorithm or protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Choice<T> {
    /// NCCL, by its cost table.
    Auto,
    /// We, by predicting all and taking the fastest.
    Best,
    /// The user.
    Forced(T),
}

/// Settings of a prediction beyond the call.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Settings {
    /// How kernels are started.
    pub launch: Launch,
    /// One first call in place of a steady loop.
    pub cold: bool,
    /// Channels, exactly; NCCL's number otherwise.
    pub channels: Option<u32>,
    /// Upper bound of channels (`NCCL_MAX_NCHANNELS`).
    pub max_channels: Option<u32>,
    /// Threads of a block (`NCCL_NTHREADS`).
    pub threads: Option<u32>,
    /// `NCCL_BUFFSIZE`.
    pub buffer_size: Option<Bytes>,
    /// Fold symmetric lanes; off only to check that folding changes nothing.
    pub fold: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            launch: Launch::Threads,
            cold: false,
            channels: None,
            max_channels: None,
            threads: None,
            buffer_size: None,
            fold: true,
        }
    }
}

/// How a schedule was proved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProofKind {
    /// At its real size.
    Proved,
    /// Its pattern at a smaller size, or with fewer ranks.
    Sampled,
}

/// How busy a link was.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LinkUse {
    /// The link direction; of all that are equal, the first.
    pub link: LinkId,
    /// Share of its capacity used over the run, protocol overhead and efficiency included.
    pub utilisation: f64,
}

/// A prediction.
#[derive(Clone, PartialEq, Debug)]
pub struct Prediction {
    /// Algorithm that was simulated.
    pub algorithm: Algorithm,
    /// Protocol that was simulated.
    pub protocol: Protocol,
    /// The cut of the call.
    pub plan: Plan,
    /// Time of one operation as nccl-tests would show it.
    pub time: SimDuration,
    /// Time on the device: start and end of the kernel, and the simulated run.
    pub kernel: SimDuration,
    /// Interval at which the host issues operations.
    pub issue: SimDuration,
    /// Lower end of the 90% interval.
    pub low: SimDuration,
    /// Upper end of the 90% interval.
    pub high: SimDuration,
    /// Whether the profile was made elsewhere.
    pub extrapolated: bool,
    /// Slices sent between lanes.
    pub messages: u64,
    /// Events handled.
    pub events: u64,
    /// Lanes before and after folding.
    pub folded: (usize, usize),
    /// How the schedule was proved.
    pub proof: ProofKind,
    /// The time below which nothing can be, and why.
    pub bound: bounds::Bound,
    /// The busiest links, busiest first, at most four.
    pub busiest: Vec<LinkUse>,
    /// Share of the busiest lane's instruction rate used.
    pub lane_utilisation: f64,
    /// See [`crate::engine::Outcome::trace_hash`].
    pub trace_hash: u64,
}

impl Prediction {
    /// Algorithm bandwidth in GB/s: nccl-tests' size over time.
    #[expect(clippy::cast_precision_loss, reason = "an edge")]
    pub fn algbw_gb_per_s(&self, size: Bytes) -> f64 {
        size.0 as f64 / self.time.as_us().max(1e-9) / 1e3
    }

    /// What bounds the run: `launch rate` of the host, `links`, `block rate` (instructions of
    /// thread blocks: more channels would help), or `latency` of steps and kernel.
    pub fn bound_by(&self) -> &'static str {
        let link = self.busiest.first().map_or(0.0, |l| l.utilisation);
        if self.issue >= self.kernel {
            "launch rate"
        } else if link >= 0.7 && link >= self.lane_utilisation {
            "links"
        } else if self.lane_utilisation >= 0.7 {
            "block rate"
        } else {
            "latency"
        }
    }
}

/// Why there is no prediction.
#[derive(Debug, Error)]
pub enum PredictError {
    /// The call has no schedule.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// More ranks than GPUs.
    #[error("the call has {ranks} ranks but `{topology}` has {gpus} GPUs")]
    TooFewGpus {
        /// Ranks of the call.
        ranks: u32,
        /// Name of the machine.
        topology: String,
        /// GPUs of the machine.
        gpus: u32,
    },
    /// NCCL would have nothing to choose from.
    #[error("nothing that is modelled can do {0} with these algorithms and protocols")]
    NothingToChoose(crate::collective::Collective),
    /// No route between two ranks.
    #[error(transparent)]
    Lay(#[from] LayError),
    /// An imported schedule does not fit the call.
    #[error(transparent)]
    Misfit(#[from] MscclError),
    /// An imported schedule is wrong.
    #[error("`{name}` of {file} does not do what it says: {error}")]
    Disproved {
        /// Its name.
        name: String,
        /// Its file.
        file: String,
        /// The flaw.
        error: VerifyError,
    },
    /// A generator's schedule is wrong: our bug.
    #[error("the schedule of {what} is wrong: {error}")]
    Unproved {
        /// Which schedule.
        what: String,
        /// The flaw.
        error: VerifyError,
    },
    /// The engine stopped: our bug.
    #[error("{what}: {error}")]
    Engine {
        /// Which schedule.
        what: String,
        /// What happened.
        error: EngineError,
    },
    /// A result that physics forbids: our bug.
    #[error("self-check violated for {what}: {violation}")]
    SelfCheck {
        /// Which schedule.
        what: String,
        /// What is impossible about it.
        violation: String,
    },
}

impl PredictError {
    /// Whether it is our bug and not the user's input.
    pub fn is_internal(&self) -> bool {
        matches!(self, Self::Unproved { .. } | Self::Engine { .. } | Self::SelfCheck { .. })
    }
}

/// Predicts calls on one machine with one profile; shares proofs and routes between calls.
#[derive(Debug)]
pub struct Predictor<'a> {
    topology: &'a Topology,
    profile: &'a Profile,
    /// The graph that NCCL finds, by number of ranks.
    graphs: Mutex<BTreeMap<u32, Arc<nccl::Graph>>>,
    /// Patterns that are proved.
    proofs: Mutex<BTreeSet<String>>,
}

/// Ranks up to which a sampled proof uses the real number.
const PROOF_RANKS: u32 = 64;
/// Slices up to which the real call is proved.
const PROOF_SLICES: u64 = 4_000;

impl<'a> Predictor<'a> {
    /// Predicts on a machine with a profile.
    pub fn new(topology: &'a Topology, profile: &'a Profile) -> Self {
        Self { topology, profile, graphs: Mutex::default(), proofs: Mutex::default() }
    }

    /// The machine.
    pub fn topology(&self) -> &'a Topology {
        self.topology
    }

    /// The graph that NCCL finds for the first `ranks` GPUs.
    pub fn graph(&self, ranks: u32) -> Arc<nccl::Graph> {
        let mut graphs = self.graphs.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Arc::clone(graphs.entry(ranks).or_insert_with(|| Arc::new(nccl::graph(self.topology, ranks))))
    }

    /// What NCCL's cut of a call may use.
    pub fn limits(&self, ranks: u32, settings: &Settings) -> Limits {
        let graph = self.graph(ranks);
        let defaults = Limits::default();
        let most = settings.max_channels.unwrap_or(u32::MAX);
        let links: u32 = self
            .topology
            .links_from(self.topology.gpu_of(Rank(0)))
            .filter(|l| l.2.kind == LinkKind::Nvlink)
            .map(|l| l.2.width)
            .sum();
        // NCCL: twice the NVLinks to a peer, or 2 over PCIe, up to a power of two; 32 at most.
        let p2p = (2 * links).max(2).next_power_of_two().min(32);
        Limits {
            channels: settings.channels.unwrap_or(graph.comm_channels.min(most)).max(1),
            exact_channels: settings.channels.is_some(),
            threads: settings.threads,
            buffer_size: settings.buffer_size.unwrap_or(defaults.buffer_size),
            p2p_channels: settings.channels.unwrap_or(p2p.min(most)).max(1),
            network: graph.hosts > 1,
            hosts: graph.hosts,
        }
    }

    /// All pairs of algorithm and protocol that a choice leaves.
    pub fn candidates(
        &self,
        call: &Call,
        algorithm: Choice<Algorithm>,
        protocol: Choice<Protocol>,
    ) -> Vec<(Algorithm, Protocol)> {
        let algorithms: Vec<Algorithm> = match algorithm {
            Choice::Forced(a) => vec![a],
            // NCCL has no CollTree, so nobody could take such advice.
            _ => valid_algorithms(call.collective).iter().copied().filter(|&a| a != Algorithm::CollTree).collect(),
        };
        let graph = self.graph(call.ranks);
        algorithms
            .into_iter()
            .flat_map(|a| valid_protocols(a).iter().map(move |&p| (a, p)))
            .filter(|&(_, p)| match protocol {
                Choice::Forced(q) => p == q,
                _ => nccl::enabled(&graph, p),
            })
            .collect()
    }

    fn check_ranks(&self, call: &Call) -> Result<(), PredictError> {
        if call.ranks == 0 {
            return Err(ScheduleError::Ranks(0).into());
        }
        if call.ranks > self.topology.ranks() {
            return Err(PredictError::TooFewGpus {
                ranks: call.ranks,
                topology: self.topology.name.clone(),
                gpus: self.topology.ranks(),
            });
        }
        Ok(())
    }

    /// Resolves `auto` as NCCL does; forced parts stay.
    ///
    /// # Errors
    /// Nothing to choose from.
    pub fn resolve(
        &self,
        call: &Call,
        algorithm: Choice<Algorithm>,
        protocol: Choice<Protocol>,
        settings: &Settings,
    ) -> Result<(Algorithm, Protocol), PredictError> {
        if let (Choice::Forced(a), Choice::Forced(p)) = (algorithm, protocol) {
            return Ok((a, p));
        }
        if let Choice::Forced(a) = algorithm {
            check_supported(call.collective, a)?;
            if let ([only], Choice::Auto) = (valid_protocols(a), protocol) {
                return Ok((a, *only));
            }
        }
        if valid_algorithms(call.collective) == [Algorithm::Direct] {
            let protocol = match protocol {
                Choice::Forced(p) => p,
                _ => Plan::point_to_point_protocol(call, &self.limits(call.ranks, settings)),
            };
            return Ok((Algorithm::Direct, protocol));
        }
        let algorithms = match algorithm {
            Choice::Forced(a) => vec![a],
            _ => vec![],
        };
        let protocols = match protocol {
            Choice::Forced(p) => vec![p],
            _ => vec![],
        };
        if call.ranks == 1 {
            return Ok((Algorithm::Ring, protocols.first().copied().unwrap_or(Protocol::Simple)));
        }
        nccl::choose(&self.graph(call.ranks), call, &algorithms, &protocols)
            .ok_or(PredictError::NothingToChoose(call.collective))
    }

    /// Predicts a call; `auto` and `best` are resolved first.
    ///
    /// # Errors
    /// See [`PredictError`].
    pub fn predict(
        &self,
        call: &Call,
        algorithm: Choice<Algorithm>,
        protocol: Choice<Protocol>,
        settings: &Settings,
    ) -> Result<Prediction, PredictError> {
        self.check_ranks(call)?;
        // NCCL has no rule for the protocol of an algorithm that it does not have.
        let ours = algorithm == Choice::Forced(Algorithm::CollTree) && protocol == Choice::Auto;
        let protocol = if ours { Choice::Best } else { protocol };
        if algorithm == Choice::Best || protocol == Choice::Best {
            let mut best: Option<Prediction> = None;
            for (a, p) in self.candidates(call, algorithm, protocol) {
                let prediction = self.predict_one(call, a, p, settings, &mut Unobserved)?;
                if best.as_ref().is_none_or(|b| prediction.time < b.time) {
                    best = Some(prediction);
                }
            }
            return best.ok_or(PredictError::NothingToChoose(call.collective));
        }
        let (a, p) = self.resolve(call, algorithm, protocol, settings)?;
        self.predict_one(call, a, p, settings, &mut Unobserved)
    }

    /// The schedule of a call.
    ///
    /// # Errors
    /// A call without one.
    pub fn schedule(
        &self,
        call: &Call,
        algorithm: Algorithm,
        protocol: Protocol,
        settings: &Settings,
    ) -> Result<Schedule, PredictError> {
        self.check_ranks(call)?;
        if let Some(channels) = settings.channels.filter(|c| !(1..=MAX_CHANNELS).contains(c)) {
            return Err(ScheduleError::Channels(channels).into());
        }
        let plan = Plan::new(call, algorithm, protocol, &self.limits(call.ranks, settings));
        Ok(Schedule::new(call.clone(), plan, &order(self.topology, call.ranks))?)
    }

    /// Predicts a call with a given algorithm and protocol, watched by `observer`, which needs
    /// `settings.fold` off to see every lane.
    ///
    /// # Errors
    /// See [`PredictError`].
    pub fn predict_one<O: Observer>(
        &self,
        call: &Call,
        algorithm: Algorithm,
        protocol: Protocol,
        settings: &Settings,
        observer: &mut O,
    ) -> Result<Prediction, PredictError> {
        let schedule = self.schedule(call, algorithm, protocol, settings)?;
        let proof = self.prove(&schedule, &describe(&schedule))?;
        self.simulate(&schedule, proof, settings, observer)
    }

    /// The schedule of a call by an imported algorithm.
    ///
    /// # Errors
    /// A call that it is not for, or too few GPUs.
    pub fn imported_schedule(
        &self,
        imported: &Imported,
        call: &Call,
        settings: &Settings,
    ) -> Result<Schedule, PredictError> {
        self.check_ranks(call)?;
        Ok(imported.schedule(call.clone(), &self.limits(call.ranks, settings))?)
    }

    /// Predicts a call by an imported algorithm; `observer` as in [`Self::predict_one`].
    ///
    /// # Errors
    /// See [`PredictError`]; an algorithm that is wrong is [`PredictError::Disproved`].
    pub fn predict_imported<O: Observer>(
        &self,
        imported: &Imported,
        call: &Call,
        settings: &Settings,
        observer: &mut O,
    ) -> Result<Prediction, PredictError> {
        let schedule = self.imported_schedule(imported, call, settings)?;
        let disproved =
            |error| PredictError::Disproved { name: imported.name.clone(), file: imported.file.clone(), error };
        // Three loops show what every loop does.
        let twin = imported.small_twin(&schedule);
        let proof = if twin.is_some() { ProofKind::Sampled } else { ProofKind::Proved };
        verify(twin.as_ref().unwrap_or(&schedule)).map_err(disproved)?;
        self.simulate(&schedule, proof, settings, observer)
    }

    /// Runs a schedule that is proved, and checks the result against what cannot be.
    fn simulate<O: Observer>(
        &self,
        schedule: &Schedule,
        proof: ProofKind,
        settings: &Settings,
        observer: &mut O,
    ) -> Result<Prediction, PredictError> {
        let (call, what) = (&schedule.call, describe(schedule));
        let (algorithm, protocol) = (schedule.plan.algorithm, schedule.plan.protocol);
        let laid = lay(self.topology, self.profile, schedule)?;
        let folded = settings.fold.then(|| fold(&laid.instance));
        let instance = folded.as_ref().map_or(&laid.instance, |f| &f.instance);
        let outcome = run(instance, observer).map_err(|error| PredictError::Engine { what: what.clone(), error })?;
        let run_time = outcome.end - crate::units::SimTime(0);

        let mut firsts = vec![0; instance.resources.len()];
        for index in (0..laid.names.len()).rev() {
            firsts[folded.as_ref().map_or(index, |f| f.resource[index] as usize)] = index;
        }
        let name_of = |resource: usize| laid.names[firsts[resource]];
        if let Err((resource, load)) = bounds::check_loads(&instance.resources, &outcome.load, run_time, WEIGHT_ONE) {
            let violation = format!(
                "{:?} carried {} units in {run_time}, more than its {} units/s allow",
                name_of(resource),
                load / u128::from(WEIGHT_ONE),
                instance.resources[resource]
            );
            return Err(PredictError::SelfCheck { what, violation });
        }
        let bound = bounds::bandwidth(self.topology, call);
        // Counts may leave every rank with what it keeps for itself: then nothing hops.
        let hop = if outcome.messages > 0 && call.size().0 > 0 {
            crate::network::smallest_latency(instance)
        } else {
            SimDuration::ZERO
        };
        if run_time < bound.time || run_time < hop {
            let violation =
                format!("{run_time} is below the bound of {} set by {} or of one hop, {hop}", bound.time, bound.what);
            return Err(PredictError::SelfCheck { what, violation });
        }

        let kernel = self.profile.kernel(protocol) + run_time;
        let hosts = self.graph(call.ranks).hosts.max(1);
        let issue = self.profile.issue_interval(settings.launch, call.ranks.div_ceil(hosts));
        // A queue of launches served by the GPU: its steady rate is that of the slower of both.
        let time = if settings.cold { self.profile.first_launch() + kernel } else { kernel.max(issue) };
        let extrapolated = self.extrapolated(call.ranks, settings.launch);
        let width = self.profile.uncertainty * if extrapolated { 1.5 } else { 1.0 };
        let scale = |factor: f64| SimDuration::from_us(time.as_us() * factor);
        let mut uses: Vec<(f64, usize)> = utilisations(&instance.resources, &outcome.load, run_time);
        uses.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut busiest = Vec::new();
        let mut lane_utilisation: f64 = 0.0;
        for (utilisation, resource) in uses {
            match name_of(resource) {
                ResourceName::Link(link) if busiest.len() < 4 => busiest.push(LinkUse { link, utilisation }),
                ResourceName::Lane(..) => lane_utilisation = lane_utilisation.max(utilisation),
                ResourceName::Link(_) => {}
            }
        }
        Ok(Prediction {
            algorithm,
            protocol,
            plan: schedule.plan,
            time,
            kernel,
            issue,
            low: scale(1.0 / (1.0 + width)),
            high: scale(1.0 + width),
            extrapolated,
            messages: outcome.messages,
            events: outcome.events,
            folded: (laid.instance.lanes.len(), instance.lanes.len()),
            proof,
            bound,
            busiest,
            lane_utilisation,
            trace_hash: outcome.trace_hash,
        })
    }

    /// Whether the profile's evidence is from other hardware, launch modes or host counts.
    pub fn extrapolated(&self, ranks: u32, launch: Launch) -> bool {
        let known = |model: &str| self.profile.gpus.iter().any(|g| model.contains(g.as_str()));
        let model = self.topology.gpu(self.topology.gpu_of(Rank(0))).map(|g| g.model.as_str()).unwrap_or_default();
        (!model.is_empty() && !known(model))
            || !self.profile.launches.contains(&launch)
            || (self.graph(ranks).hosts > 1 && !self.profile.across_hosts)
    }

    /// Proves a schedule, or a smaller one of the same pattern; each pattern once.
    fn prove(&self, schedule: &Schedule, what: &str) -> Result<ProofKind, PredictError> {
        let unproved = |error| PredictError::Unproved { what: what.to_owned(), error };
        let call = &schedule.call;
        let plan = &schedule.plan;
        let per_loop = plan.chunk.max(1) * u64::from(call.ranks);
        let slices = (call.count / per_loop + 1) * u64::from(call.ranks).pow(2) * 2 * u64::from(plan.slices);
        let slices = slices.saturating_mul(u64::from(plan.channels));
        if slices <= PROOF_SLICES {
            return verify(schedule).map(|_| ProofKind::Proved).map_err(unproved);
        }
        let key = format!(
            "{} {} {} {} {} {} {} {}",
            call.collective,
            plan.algorithm,
            call.ranks,
            call.in_place,
            call.root,
            plan.slices,
            plan.fifo_slices,
            plan.aggregate
        );
        // A count matrix is a pattern of its own; what is missing in it stays missing.
        let known = self.proofs.lock().unwrap_or_else(std::sync::PoisonError::into_inner).contains(&key);
        if known && call.counts.is_none() {
            return Ok(ProofKind::Sampled);
        }
        let ranks = call.ranks.min(PROOF_RANKS);
        let mut small = Call { ranks, counts: None, ..call.clone() };
        small.root.0 = small.root.0.min(ranks - 1);
        let mut plan = *plan;
        // Two channels (both trees), two loops and a bit, the real number of slices a chunk.
        plan.channels = plan.channels.min(2 * plan.parts.max(1));
        plan.chunk = plan.grain * 4 * u64::from(plan.slices);
        plan.min_slice = plan.grain;
        plan.per_channel = plan.chunk * u64::from(ranks) * 2 + plan.grain;
        let sharers = if plan.algorithm == Algorithm::Direct { plan.parts } else { plan.channels };
        small.count = plan.per_channel * u64::from(sharers) - 1;
        if ranks == call.ranks {
            small.counts = call.counts.as_ref().map(|counts| counts.iter().map(|&c| c.min(small.count)).collect());
        }
        let order = if ranks == call.ranks { order(self.topology, ranks) } else { Order::one_host(ranks) };
        let twin = Schedule::new(small, plan, &order)?;
        verify(&twin).map_err(unproved)?;
        self.proofs.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(key);
        Ok(ProofKind::Sampled)
    }
}

/// A schedule in a few words, for messages.
fn describe(schedule: &Schedule) -> String {
    let (call, plan) = (&schedule.call, &schedule.plan);
    format!(
        "{} {}/{}, {} ranks, {} channels, {}",
        call.collective,
        plan.algorithm,
        plan.protocol,
        call.ranks,
        plan.channels,
        call.size()
    )
}

#[expect(clippy::cast_precision_loss, reason = "an edge: for people")]
fn utilisations(capacities: &[u64], loads: &[u128], time: SimDuration) -> Vec<(f64, usize)> {
    let seconds = time.as_us().max(1e-9) / 1e6;
    (capacities.iter().zip(loads).enumerate())
        .map(|(index, (&capacity, &load))| (load as f64 / WEIGHT_ONE as f64 / seconds / capacity as f64, index))
        .collect()
}

//! One prediction from machine to time: choose, prove, simulate, time.
//!
//! [`Predictor::resolve`] says by which algorithm and protocol a call runs (`choose`), its schedule is proved
//! (`prove`), laid on the machine and run (`simulate`), and what the run took becomes the time that a loop of such calls
//! shows, with its interval (`time`). A `group` of calls goes the same way.

mod choose;
mod group;
mod prove;
mod simulate;
mod time;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxHashMap;
use thiserror::Error;

use crate::collective::{Algorithm, Launch, Protocol};
use crate::domain::{Beyond, Reason};
use crate::engine::{EngineError, Observer, Unobserved};
use crate::ids::Rank;
use crate::measurement::Timing;
use crate::nccl::Transport;
use crate::nccl::search::{self, Given, Options};
use crate::nccl::{Graphs, NcclSettings, Tuner, Version};
use crate::network::{LayError, order_by};
use crate::profile::Profile;
use crate::schedule::msccl::{Imported, MscclError};
use crate::schedule::plan::Plan;
use crate::schedule::verify::{Proof, VerifyError, verify};
use crate::schedule::{Call, MAX_CHANNELS, Order, Pattern, Schedule, ScheduleError};
use crate::topology::{Topology, TopologyError};

pub use choose::Resolved;
pub use group::{GroupCall, GroupPrediction, MOST_CALLS};
pub use prove::ProofKind;
pub(crate) use prove::Proven;
pub use simulate::{LinkUse, Prediction, Shares, Warning};
pub(crate) use time::Pace;

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
    /// The loop, where some ranks are done before others.
    pub timing: Timing,
    /// Channels, exactly; NCCL's number otherwise.
    pub channels: Option<u32>,
    /// NCCL version; that of the machine, or the newest known, otherwise.
    pub version: Option<Version>,
    /// What NCCL's environment says.
    pub nccl: NcclSettings,
    /// How NCCL is told to move data.
    pub transport: Transport,
    /// NCCL has registered the buffers with the peers, who store right into them where it saves a copy: memory of
    /// `ncclMemAlloc` in a CUDA graph (`NCCL_GRAPH_REGISTER`), or of `ncclCommRegister`.
    pub registered: bool,
    /// Fold symmetric lanes; off only to check that folding changes nothing.
    pub fold: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            launch: Launch::Threads,
            cold: false,
            timing: Timing::default(),
            channels: None,
            version: None,
            nccl: NcclSettings::default(),
            transport: Transport::default(),
            registered: false,
            fold: true,
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
    /// Nothing that is modelled.
    #[error("nothing that is modelled can do {0} with these algorithms and protocols")]
    NothingToChoose(crate::collective::Collective),
    /// NCCL would fail the call.
    #[error("NCCL {version} would fail {collective}: {reasons}")]
    NothingLeft {
        /// The version.
        version: Version,
        /// The collective.
        collective: crate::collective::Collective,
        /// Why each pair is closed.
        reasons: String,
    },
    /// Ranks that cannot be placed.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// No route between two ranks.
    #[error(transparent)]
    Lay(#[from] LayError),
    /// Calls that are no group, or none that is modelled.
    #[error("these calls cannot be forecast as one group: {0}")]
    NoGroup(String),
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
    /// The engine stopped: our bug, unless the run was too long.
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
        match self {
            Self::Engine { error, .. } => !error.is_limit(),
            Self::Unproved { .. } | Self::SelfCheck { .. } => true,
            _ => false,
        }
    }
}

/// Predicts calls on one machine with one profile; shares proofs and routes between calls.
#[derive(Debug)]
pub struct Predictor<'a> {
    topology: &'a Topology,
    profile: &'a Profile,
    /// The tuner plugin that NCCL asks before its table.
    tuner: Option<Tuner>,
    /// Graphs in place of NCCL's search.
    given: Given,
    /// Nodes that were searched, of this machine and of views of it.
    nodes: search::Known,
    /// What NCCL finds, by what it depends on.
    found: Mutex<FxHashMap<Asked, Found>>,
    /// Patterns and their proofs; each locked while someone proves it.
    proofs: Mutex<FxHashMap<Pattern, Arc<Mutex<Option<Proof>>>>>,
    /// Calls of groups together, by what decides how they run.
    together: Mutex<FxHashMap<(u64, String), Together>>,
}

/// A prediction of groups together, the shares of its resources in their order, and that with slower blocks.
type Together = (Prediction, Vec<f64>, Option<Prediction>);

/// What NCCL's search depends on: ranks, multicast, reduction in the network, transport.
type Asked = (u32, bool, bool, Transport);

/// The graphs that NCCL finds, and in which order its channels visit ranks.
type Found = (Arc<Graphs>, Arc<Order>);

impl<'a> Predictor<'a> {
    /// Predicts on a machine with a profile; the tuner plugin is that of the machine.
    pub fn new(topology: &'a Topology, profile: &'a Profile) -> Self {
        let tuner = Tuner::of(topology);
        let given = Given::default();
        let nodes = search::Known::default();
        let (found, proofs, together) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { topology, profile, tuner, given, nodes, found, proofs, together }
    }

    /// Predicts on a view of the machine, with what is known of its nodes.
    pub fn on<'v>(&self, view: &'v Topology) -> Predictor<'v>
    where
        'a: 'v,
    {
        Predictor { nodes: self.nodes.clone(), ..Predictor::new(view, self.profile).with_tuner(self.tuner.clone()) }
    }

    /// How many nodes NCCL's search was run on, for this predictor and those on views of its machine.
    pub fn searches(&self) -> usize {
        self.nodes.nodes()
    }

    /// With another tuner plugin, if there is one.
    #[must_use]
    pub fn with_tuner(self, tuner: Option<Tuner>) -> Self {
        Self { tuner: tuner.or(self.tuner), ..self }
    }

    /// The machine.
    pub fn topology(&self) -> &'a Topology {
        self.topology
    }

    /// Its profile.
    pub fn profile(&self) -> &'a Profile {
        self.profile
    }

    /// With graphs that are given (`NCCL_GRAPH_FILE`).
    #[must_use]
    pub fn with_graphs(self, given: Given) -> Self {
        Self { given, found: Mutex::default(), ..self }
    }

    /// The graphs that NCCL finds for the first `ranks` GPUs.
    pub fn graph(&self, ranks: u32, settings: &Settings) -> Arc<Graphs> {
        self.found(ranks, settings).0
    }

    /// In which order NCCL's channels visit the first `ranks` GPUs.
    fn order(&self, ranks: u32, settings: &Settings) -> Arc<Order> {
        self.found(ranks, settings).1
    }

    fn found(&self, ranks: u32, settings: &Settings) -> Found {
        let options = Options::new(self.topology, &settings.nccl, settings.transport, Given::default());
        let asked = (ranks, options.multicast, options.collnet, options.transport);
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let search = || {
            let all: Vec<Rank> = (0..ranks.min(self.topology.ranks())).map(Rank).collect();
            let options = Options { given: self.given.clone(), ..options };
            let graphs = search::graphs_of(self.topology, &all, &options, &self.nodes);
            let order = order_by(self.topology, &graphs, &settings.transport);
            (Arc::new(graphs), Arc::new(order))
        };
        found.entry(asked).or_insert_with(search).clone()
    }

    /// The version of NCCL whose rules hold: the user's, the machine's, or the newest known.
    pub fn version(&self, settings: &Settings) -> Version {
        let stated = || self.topology.software.nccl.as_deref().and_then(|text| text.parse().ok());
        settings.version.or_else(stated).unwrap_or_default().covered().0
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
            for (a, p) in self.candidates(call, algorithm, protocol, settings) {
                let prediction = self.predict_one(call, a, p, settings, &mut Unobserved)?;
                if best.as_ref().is_none_or(|b| prediction.time < b.time) {
                    best = Some(prediction);
                }
            }
            return best.ok_or(PredictError::NothingToChoose(call.collective));
        }
        let resolved = self.resolve(call, algorithm, protocol, settings)?;
        let settings = Settings { channels: settings.channels.or(resolved.channels), ..*settings };
        let prediction = self.predict_one(call, resolved.algorithm, resolved.protocol, &settings, &mut Unobserved)?;
        let (layer, instead_of, tuned_channels) = (resolved.layer, resolved.instead_of, resolved.channels);
        Ok(Prediction { layer, instead_of, tuned_channels, ..prediction })
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
        self.check_machine(call, algorithm, settings)?;
        // Who forces an algorithm has on what it needs.
        let mut settings = *settings;
        let several = self.order(call.ranks, &settings).hosts.len() > 1;
        match algorithm {
            Algorithm::Nvls => {
                settings.nccl.nvls = Some(true);
                settings.nccl.collnet |= several;
            }
            Algorithm::NvlsTree => settings.nccl.nvls = Some(true),
            Algorithm::CollnetDirect | Algorithm::CollnetChain => settings.nccl.collnet = true,
            _ => {}
        }
        let plan = Plan::new(call, algorithm, protocol, &self.limits_of(call, algorithm, protocol, &settings));
        Ok(Schedule::new(call.clone(), plan, &self.order(call.ranks, &settings))?)
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
        self.simulate(&self.proven(call, algorithm, protocol, settings)?, settings, observer)
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
        let proof = verify(twin.as_ref().unwrap_or(&schedule)).map_err(disproved)?;
        let proof = ProofKind::new(&schedule, twin.as_ref(), proof);
        self.simulate(&Proven { schedule, proof }, settings, observer)
    }

    /// How such calls go beyond the hardware, launch modes and host counts of the profile's evidence.
    pub fn beyond(&self, ranks: u32, launch: Launch) -> Beyond {
        let mut beyond = Beyond::default();
        if self.profile.is_cited() {
            beyond.insert(Reason::Cited(self.profile.name.clone()));
            return beyond;
        }
        let known = |model: &str| self.profile.gpus.iter().any(|g| model.contains(g.as_str()));
        let model = self.topology.gpu(self.topology.gpu_of(Rank(0))).map(|g| g.model.as_str()).unwrap_or_default();
        if !model.is_empty() && !known(model) {
            let seen =
                if self.profile.gpus.is_empty() { "GPUs it does not name" } else { &self.profile.gpus.join(" and ") };
            beyond.insert(Reason::Gpu { seen: seen.to_owned(), here: model.to_owned() });
        }
        if !self.profile.launches.contains(&launch) {
            beyond.insert(Reason::Launch(launch));
        }
        if self.hosts(ranks) > 1 && !self.profile.across_hosts {
            beyond.insert(Reason::Hosts);
        }
        beyond
    }

    /// Hosts that the first `ranks` GPUs are on; 1 at least.
    pub fn hosts(&self, ranks: u32) -> u32 {
        let hosts: BTreeSet<_> =
            (0..ranks.min(self.topology.ranks())).map(|r| self.topology.host_of(Rank(r))).collect();
        u32::try_from(hosts.len()).unwrap_or(u32::MAX).max(1)
    }
}

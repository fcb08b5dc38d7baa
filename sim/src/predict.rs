//! One prediction from machine to time: plan, schedule, proof, simulation, self-checks.

mod group;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;
use thiserror::Error;

use crate::collective::{Algorithm, Collective, Launch, Protocol};
use crate::domain::{Beyond, Reason};
use crate::engine::flows::WEIGHT_ONE;
use crate::engine::{EngineError, Instance, Observer, Outcome, Unobserved, fold, run, run_steady};
use crate::ids::{LinkId, Rank};
use crate::measurement::Timing;
use crate::model::bounds;
use crate::model::nccl::cost::place;
use crate::model::nccl::search::{self, Given, Options};
use crate::model::nccl::{Cell, Decision, Graphs, Layer, Model, NcclSettings, NothingLeft, Selection, Tuner, Version};
use crate::network::{Laid, LayError, ResourceName, Transport, check_multicast, check_sharp, join, lay, order_by};
use crate::profile::{Profile, Spread};
use crate::schedule::msccl::{Imported, MscclError};
use crate::schedule::plan::{Limits, Plan};
use crate::schedule::verify::{VerifyError, verify};
use crate::schedule::{
    Call, MAX_CHANNELS, Order, Schedule, ScheduleError, check_fits, check_supported, valid_algorithms, valid_protocols,
};
use crate::topology::{Topology, TopologyError};
use crate::units::{Bytes, SimDuration, SimTime};

pub use group::{GroupCall, GroupPrediction, MOST_CALLS};

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

/// What a choice came down to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resolved {
    /// Algorithm to simulate.
    pub algorithm: Algorithm,
    /// Protocol to simulate.
    pub protocol: Protocol,
    /// Channels that a tuner asks for.
    pub channels: Option<u32>,
    /// Which layer of NCCL's choice decided; none where the user did.
    pub layer: Option<Layer>,
    /// What NCCL picks where that has no schedule here.
    pub instead_of: Option<(Algorithm, Protocol)>,
}

/// What a prediction leaves out where it may matter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Warning {
    /// Many NICs send through one port of a lossless fabric at once: real switches pause, and
    /// times may be longer. Names the port.
    CongestionNotModelled(String),
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::CongestionNotModelled(port) => write!(
                f,
                "congestion_not_modelled: many NICs send through the port {port} of a lossless fabric at once; pauses and unfairness of real switches may make it slower"
            ),
        }
    }
}

/// A prediction.
#[derive(Clone, PartialEq, Debug)]
pub struct Prediction {
    /// Algorithm that was simulated.
    pub algorithm: Algorithm,
    /// Protocol that was simulated.
    pub protocol: Protocol,
    /// Which layer of NCCL's choice decided; none where the user or we did.
    pub layer: Option<Layer>,
    /// What NCCL picks where that has no schedule here: the prediction is of its next choice.
    pub instead_of: Option<(Algorithm, Protocol)>,
    /// Channels that a tuner asked for, before the bytes are dealt to them.
    pub tuned_channels: Option<u32>,
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
    /// How it goes beyond what the profile was made with.
    pub beyond: Beyond,
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
    /// Share of the busiest host thread or host memory used.
    pub host_utilisation: f64,
    /// What is left out where it may matter.
    pub warnings: Vec<Warning>,
    /// See [`crate::engine::Outcome::trace_hash`].
    pub trace_hash: u64,
    /// See [`Schedule::identity`].
    pub schedule_hash: u64,
}

impl Prediction {
    /// Algorithm bandwidth in GB/s: nccl-tests' size over time.
    #[expect(clippy::cast_precision_loss, reason = "an edge")]
    pub fn algbw_gb_per_s(&self, size: Bytes) -> f64 {
        size.0 as f64 / self.time.as_us().max(1e-9) / 1e3
    }

    /// What bounds the run: `launch rate` of the host, `links`, `block rate` (instructions of
    /// thread blocks: more channels would help), `host` (threads that copy for sockets, memory
    /// that data is staged in), or `latency` of steps and kernel.
    pub fn bound_by(&self) -> &'static str {
        let link = self.busiest.first().map_or(0.0, |l| l.utilisation);
        bound_by(self.issue >= self.time, link, self.lane_utilisation, self.host_utilisation)
    }
}

/// What bounds a run, by how busy the busiest link, lane and host thread are: see [`Prediction::bound_by`].
fn bound_by(by_launches: bool, link: f64, lane: f64, host: f64) -> &'static str {
    if by_launches {
        "launch rate"
    } else if host >= 0.7 && host >= link {
        "host"
    } else if link >= 0.7 && link >= lane {
        "links"
    } else if lane >= 0.7 {
        "block rate"
    } else {
        "latency"
    }
}

/// A schedule and how it was proved.
#[derive(Debug)]
pub(crate) struct Proven {
    pub(crate) schedule: Schedule,
    pub(crate) proof: ProofKind,
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
    /// Patterns, and whether they are proved; locked while someone proves it.
    proofs: Mutex<BTreeMap<String, Arc<Mutex<bool>>>>,
    /// Calls of groups together, by what decides how they run.
    together: Mutex<FxHashMap<(u64, String), Together>>,
}

/// A prediction of groups together, the shares of its resources in their order, and that with slower blocks.
type Together = (Prediction, Vec<f64>, Option<Prediction>);

/// The share of each resource's capacity that a run used.
pub type Shares = Vec<(ResourceName, f64)>;

/// What NCCL's search depends on: ranks, multicast, reduction in the network, transport.
type Asked = (u32, bool, bool, Transport);

/// The graphs that NCCL finds, and in which order its channels visit ranks.
type Found = (Arc<Graphs>, Arc<Order>);

/// Ranks up to which a sampled proof uses the real number.
const PROOF_RANKS: u32 = 64;
/// Slices up to which the real call is proved.
const PROOF_SLICES: u64 = 4_000;

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
        let mut found = self.found.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
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

    /// NCCL's cost model on some graphs.
    pub fn model<'g>(&self, graphs: &'g Graphs, settings: &Settings) -> Model<'g> {
        Model::new(graphs, self.version(settings), settings.nccl)
    }

    /// What NCCL's cut of a call may use, whatever algorithm and protocol.
    pub fn limits(&self, ranks: u32, settings: &Settings) -> Limits {
        let graphs = self.graph(ranks, settings);
        let nccl = &settings.nccl;
        let (all, per_peer) = graphs.p2p_channels;
        let all = all.min(nccl.max_p2p_channels.unwrap_or(u32::MAX)).max(nccl.min_p2p_channels.unwrap_or(1)).max(1);
        Limits {
            channels: settings.channels.unwrap_or_else(|| self.model(&graphs, settings).channels()).max(1),
            exact_channels: settings.channels.is_some(),
            registered: settings.registered,
            threads: None,
            threshold: None,
            buffers: nccl.buffers.resolved(),
            p2p_channels: settings.channels.map_or((all, per_peer.min(all)), |told| (told.max(1), told.max(1))),
            network: graphs.hosts > 1,
            hosts: graphs.hosts,
            ranks_per_host: graphs.ranks_per_host.0,
            version: self.version(settings),
        }
    }

    /// What NCCL's cut of a call may use with one algorithm and protocol.
    fn limits_of(&self, call: &Call, algorithm: Algorithm, protocol: Protocol, settings: &Settings) -> Limits {
        let limits = self.limits(call.ranks, settings);
        let graphs = self.graph(call.ranks, settings);
        let model = self.model(&graphs, settings);
        match algorithm {
            Algorithm::Ring | Algorithm::Tree => Limits {
                // Tree kernels always start with all threads.
                threads: (algorithm == Algorithm::Ring).then(|| model.max_threads(algorithm, protocol)),
                threshold: Some(model.threshold(algorithm, protocol)),
                ..limits
            },
            Algorithm::Direct => Limits { threads: settings.nccl.threads, ..limits },
            _ => {
                let own = || model.call_channels(algorithm, protocol, call.size().0);
                Limits { channels: settings.channels.unwrap_or_else(own), ..limits }
            }
        }
    }

    /// Whether the machine can do an algorithm on a call: shape, reduction, switches.
    fn check_machine(&self, call: &Call, algorithm: Algorithm, settings: &Settings) -> Result<(), PredictError> {
        let order = self.order(call.ranks, settings);
        check_fits(call, algorithm, &order)?;
        if matches!(algorithm, Algorithm::Nvls | Algorithm::NvlsTree) {
            for host in &order.hosts {
                check_multicast(self.topology, &host.iter().map(|&r| Rank(r)).collect::<Vec<_>>())?;
            }
        }
        let network = match algorithm {
            Algorithm::Nvls => order.hosts.len() > 1,
            _ => matches!(algorithm, Algorithm::CollnetDirect | Algorithm::CollnetChain),
        };
        if network {
            check_sharp(self.topology)?;
        }
        Ok(())
    }

    /// All modelled pairs of algorithm and protocol that a choice leaves.
    pub fn candidates(
        &self,
        call: &Call,
        algorithm: Choice<Algorithm>,
        protocol: Choice<Protocol>,
        settings: &Settings,
    ) -> Vec<(Algorithm, Protocol)> {
        let graphs = self.graph(call.ranks, settings);
        let table = self.model(&graphs, settings).table(call);
        // LL128 is left out where it is not safe; what NCCL has no table for is free.
        let unsafe_here =
            |a, p| p == Protocol::Ll128 && place(a, p).is_some_and(|(a, p)| !matches!(table[a][p], Cell::On(_)));
        valid_algorithms(call.collective)
            .iter()
            // NCCL has no CollTree, so nobody could take such advice.
            .filter(|&&a| {
                algorithm == Choice::Forced(a) || a != Algorithm::CollTree && self.check_machine(call, a, settings).is_ok()
            })
            .flat_map(|&a| valid_protocols(a).iter().map(move |&p| (a, p)))
            .filter(|&(a, p)| match algorithm {
                Choice::Forced(forced) => a == forced,
                _ if settings.nccl.nvls == Some(false) && matches!(a, Algorithm::Nvls | Algorithm::NvlsTree) => false,
                _ => settings.nccl.algorithms.allows(call.collective, a) != Some(false),
            } && match protocol {
                Choice::Forced(forced) => p == forced,
                _ => settings.nccl.protocols.allows(call.collective, p) != Some(false) && !unsafe_here(a, p),
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

    /// NCCL's choice for a call; what the user forces is a setting of NCCL.
    ///
    /// # Errors
    /// Settings that NCCL would fail with.
    pub fn decide(
        &self,
        call: &Call,
        algorithm: Choice<Algorithm>,
        protocol: Choice<Protocol>,
        settings: &Settings,
    ) -> Result<Decision, PredictError> {
        self.decide_among(call, 1, algorithm, protocol, settings)
    }

    /// The same in a group of `calls` calls, `call` having the bytes of all that share its choice.
    fn decide_among(
        &self,
        call: &Call,
        calls: u32,
        algorithm: Choice<Algorithm>,
        protocol: Choice<Protocol>,
        settings: &Settings,
    ) -> Result<Decision, PredictError> {
        let mut settings = *settings;
        if let Choice::Forced(a) = algorithm {
            settings.nccl.algorithms = Selection::only(a);
        }
        if let Choice::Forced(p) = protocol {
            settings.nccl.protocols = Selection::only(p);
        }
        if valid_algorithms(call.collective) == [Algorithm::Direct] {
            let limits = self.limits(call.ranks, &settings);
            return Ok(Decision {
                algorithm: Algorithm::Direct,
                protocol: match protocol {
                    Choice::Forced(p) => p,
                    _ => Plan::point_to_point_protocol(call, &limits),
                },
                channels: limits.p2p_channels.0,
                tuned_channels: false,
                layer: Layer::Rule,
                candidates: Vec::new(),
                why: "send and receive: LL for small messages, else Simple".to_owned(),
            });
        }
        let graphs = self.graph(call.ranks, &settings);
        let model = self.model(&graphs, &settings);
        model.decide_group(self.tuner.as_ref(), call, call.size().0, calls).map_err(|NothingLeft { candidates }| {
            if candidates.is_empty() {
                return PredictError::NothingToChoose(call.collective);
            }
            let reasons: BTreeSet<&str> = (candidates.iter())
                .filter_map(|c| if let Cell::Off(why) = c.cell { Some(why) } else { None })
                .collect();
            let reasons = reasons.into_iter().collect::<Vec<_>>().join("; ");
            PredictError::NothingLeft { version: self.version(&settings), collective: call.collective, reasons }
        })
    }

    /// Resolves `auto` as NCCL does; forced parts stay. Where NCCL picks what has no schedule
    /// here, the pair that NCCL would take next, and [`Resolved::instead_of`] says so.
    ///
    /// # Errors
    /// Nothing to choose from.
    pub fn resolve(
        &self,
        call: &Call,
        algorithm: Choice<Algorithm>,
        protocol: Choice<Protocol>,
        settings: &Settings,
    ) -> Result<Resolved, PredictError> {
        if let (Choice::Forced(algorithm), Choice::Forced(protocol)) = (algorithm, protocol) {
            return Ok(Resolved { algorithm, protocol, channels: None, layer: None, instead_of: None });
        }
        if let Choice::Forced(a) = algorithm {
            check_supported(call.collective, a)?;
            // An algorithm with one protocol needs no table, and may be one that NCCL has not.
            if let [only] = valid_protocols(a) {
                return Ok(Resolved { algorithm: a, protocol: *only, channels: None, layer: None, instead_of: None });
            }
        }
        let decision = self.decide(call, algorithm, protocol, settings)?;
        let protocol = match protocol {
            Choice::Forced(forced) => forced, // NCCL's copy of one rank has none.
            _ => decision.protocol,
        };
        let picked = (decision.algorithm, protocol);
        let layer = Some(decision.layer);
        if check_supported(call.collective, picked.0).is_ok() {
            let channels = decision.tuned_channels.then_some(decision.channels);
            return Ok(Resolved { algorithm: picked.0, protocol: picked.1, channels, layer, instead_of: None });
        }
        let modelled = (decision.candidates.iter())
            .filter(|c| check_supported(call.collective, c.algorithm).is_ok())
            .filter_map(|c| Some((c.time_us?, (c.algorithm, c.protocol))))
            .min_by(|a, b| a.0.total_cmp(&b.0));
        let (_, (algorithm, protocol)) = modelled.ok_or_else(|| {
            // Names what has no schedule, and what has.
            check_supported(call.collective, picked.0)
                .err()
                .map_or(PredictError::NothingToChoose(call.collective), Into::into)
        })?;
        Ok(Resolved { algorithm, protocol, channels: None, layer, instead_of: Some(picked) })
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

    /// The schedule of a call, proved.
    pub(crate) fn proven(
        &self,
        call: &Call,
        algorithm: Algorithm,
        protocol: Protocol,
        settings: &Settings,
    ) -> Result<Proven, PredictError> {
        let schedule = self.schedule(call, algorithm, protocol, settings)?;
        let proof = self.prove(&schedule, settings)?;
        Ok(Proven { schedule, proof })
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
        self.simulate(&Proven { schedule, proof }, settings, observer)
    }

    /// Lays a schedule that is proved, and runs it.
    pub(crate) fn simulate<O: Observer>(
        &self,
        Proven { schedule, proof }: &Proven,
        settings: &Settings,
        observer: &mut O,
    ) -> Result<Prediction, PredictError> {
        let _turn = turn([schedule]);
        let laid = lay(self.topology, self.profile, &settings.transport, schedule)?;
        Ok(self.evaluate(schedule, *proof, &laid, settings, observer)?.0)
    }

    /// Predicts the same call of several communicators at once, on links that they share: the
    /// ranks of a machine in groups, `call` being given the ranks of one. The time is that of the
    /// slowest group; plan, bound and choice are those of the first.
    ///
    /// # Errors
    /// See [`PredictError`].
    pub fn predict_split(
        &self,
        groups: &[Vec<Rank>],
        call: &dyn Fn(u32) -> Call,
        (algorithm, protocol): (Choice<Algorithm>, Choice<Protocol>),
        settings: &Settings,
    ) -> Result<Prediction, PredictError> {
        Ok(self.predict_groups(groups, call, (algorithm, protocol), settings, None)?.0)
    }

    /// As [`Self::predict_split`], with the share of each resource's capacity that was used over
    /// the simulated run, and, given a part of their rate that blocks keep beside something else,
    /// the prediction for such blocks.
    ///
    /// # Errors
    /// See [`PredictError`].
    pub fn predict_groups(
        &self,
        groups: &[Vec<Rank>],
        call: &dyn Fn(u32) -> Call,
        (algorithm, protocol): (Choice<Algorithm>, Choice<Protocol>),
        settings: &Settings,
        kept: Option<f64>,
    ) -> Result<(Prediction, Shares, Option<Prediction>), PredictError> {
        let views: Vec<Topology> = (groups.iter())
            .map(|group| {
                let gpus: Vec<_> = group.iter().map(|&rank| self.topology.gpu_of(rank)).collect();
                self.topology.placed(&gpus)
            })
            .collect::<Result<_, _>>()?;
        let predictors: Vec<Predictor<'_>> = views.iter().map(|view| self.on(view)).collect();
        let mut first = None;
        let mut schedules = Vec::new();
        for predictor in &predictors {
            let call = call(predictor.topology.ranks());
            predictor.check_ranks(&call)?;
            let resolved = if algorithm == Choice::Best || protocol == Choice::Best {
                let alone = predictor.predict(&call, algorithm, protocol, settings)?;
                Resolved {
                    algorithm: alone.algorithm,
                    protocol: alone.protocol,
                    channels: None,
                    layer: alone.layer,
                    instead_of: alone.instead_of,
                }
            } else {
                predictor.resolve(&call, algorithm, protocol, settings)?
            };
            let settings = Settings { channels: settings.channels.or(resolved.channels), ..*settings };
            schedules.push(predictor.schedule(&call, resolved.algorithm, resolved.protocol, &settings)?);
            first.get_or_insert(resolved);
        }
        let (Some(first), Some(schedule)) = (first, schedules.first()) else {
            return Err(ScheduleError::Ranks(0).into());
        };
        let proof = predictors[0].prove(schedule, settings)?;
        let _turn = turn(&schedules);
        let laid = (views.iter().zip(&schedules))
            .map(|(view, schedule)| lay(view, self.profile, &settings.transport, schedule))
            .collect::<Result<Vec<_>, _>>()?;
        let mut laid = join(laid, false);
        // Groups on hosts that are alike run alike: once.
        let key = (laid.identity(), format!("{:?} {settings:?} {kept:?}", schedule.plan));
        let known = self.together.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        let (together, shares, slower) = match known {
            Some(known) => known,
            None => {
                let evaluate = |laid: &_| predictors[0].evaluate(schedule, proof, laid, settings, &mut Unobserved);
                let (together, uses) = evaluate(&laid)?;
                let slower = match kept {
                    Some(kept) => {
                        laid.slow_blocks(kept);
                        Some(evaluate(&laid)?.0)
                    }
                    None => None,
                };
                let made = (together, uses.iter().map(|u| u.1).collect::<Vec<_>>(), slower);
                self.together.lock().unwrap_or_else(PoisonError::into_inner).insert(key, made.clone());
                made
            }
        };
        let uses = laid.names.iter().copied().zip(shares).collect();
        Ok((Prediction { layer: first.layer, instead_of: first.instead_of, ..together }, uses, slower))
    }

    /// Runs what was laid, and checks the result against what cannot be. Also gives the share of
    /// each resource's capacity that was used.
    fn evaluate<O: Observer>(
        &self,
        schedule: &Schedule,
        proof: ProofKind,
        laid: &Laid<'_>,
        settings: &Settings,
        observer: &mut O,
    ) -> Result<(Prediction, Shares), PredictError> {
        let (call, what) = (&schedule.call, describe(schedule));
        let (algorithm, protocol) = (schedule.plan.algorithm, schedule.plan.protocol);
        let folded = settings.fold.then(|| fold(&laid.instance));
        let instance = folded.as_ref().map_or(&laid.instance, |f| &f.instance);
        // Who watches wants to see every round.
        let outcome = if settings.fold { run_steady(instance) } else { run(instance, observer) };
        let outcome = outcome.map_err(|error| PredictError::Engine { what: what.clone(), error })?;
        let run_time = outcome.end - SimTime(0);

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
        let groups: Vec<_> =
            laid.wiring.conns.iter().zip(&laid.instance.conns).filter(|(w, _)| w.conn.ranks().is_none()).collect();
        let bound = bounds::bandwidth(self.topology, call, !groups.is_empty());
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

        let ends = self.profile.kernel(&schedule.plan);
        let kernel = kernel_time(instance, &outcome, ends, settings, (ROUNDS, &run_steady))
            .map_err(|error| PredictError::Engine { what: what.clone(), error })?
            .max(bound.time);
        let (time, issue) = self.time(kernel, call.ranks, settings);
        let mut beyond: Beyond =
            [self.beyond(call.ranks, settings.launch), self.profile.beyond(algorithm, protocol, call)]
                .into_iter()
                .collect();
        // Those with a proxy go through the network.
        let (nvswitch, sharp) = self.profile.switches_measured();
        if groups.iter().any(|(_, c)| if c.proxy.is_some() { !sharp } else { !nvswitch }) {
            beyond.insert(Reason::Switches);
        }
        let scale = |factor: f64| SimDuration::from_us(time.as_us() * factor);
        let mut uses: Vec<(f64, usize)> = utilisations(&instance.resources, &outcome.load, run_time);
        let place = |index: usize| folded.as_ref().map_or(index, |f| f.resource[index] as usize);
        let shares = laid.names.iter().enumerate().map(|(index, &name)| (name, uses[place(index)].0)).collect();
        uses.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut busiest = Vec::new();
        let (mut lane_utilisation, mut host_utilisation): (f64, f64) = (0.0, 0.0);
        for (utilisation, resource) in uses {
            match name_of(resource) {
                ResourceName::Link(link) if busiest.len() < 4 => busiest.push(LinkUse { link, utilisation }),
                ResourceName::Lane(..) | ResourceName::Own(..) => lane_utilisation = lane_utilisation.max(utilisation),
                ResourceName::Memory(at) if self.topology.gpu(at).is_some() => {
                    lane_utilisation = lane_utilisation.max(utilisation);
                }
                ResourceName::Link(_) => {}
                ResourceName::Memory(_)
                | ResourceName::Direct(..)
                | ResourceName::Proxy(_)
                | ResourceName::Helpers(_) => {
                    host_utilisation = host_utilisation.max(utilisation);
                }
            }
        }
        let warnings = laid.congested.map(|link| self.congestion(link)).into_iter().collect();
        let mut prediction = Prediction {
            algorithm,
            protocol,
            layer: None,
            tuned_channels: None,
            instead_of: None,
            plan: schedule.plan,
            time,
            kernel,
            issue,
            low: time,
            high: time,
            beyond,
            messages: outcome.messages,
            events: outcome.events,
            folded: (laid.instance.lanes.len(), instance.lanes.len()),
            proof,
            bound,
            busiest,
            lane_utilisation,
            host_utilisation,
            warnings,
            trace_hash: outcome.trace_hash,
            schedule_hash: schedule.identity(),
        };
        let class = Spread::class(protocol, settings.launch, prediction.bound_by());
        let (low, high) = self.profile.interval(&class, !prediction.beyond.is_empty());
        (prediction.low, prediction.high) = (scale(low), scale(high));
        Ok((prediction, shares))
    }

    /// Time of a call or group whose kernels take `kernel`, and the interval at which the host starts them: the
    /// launches are a queue that the GPU serves, and its steady rate is that of the slower of both.
    fn time(&self, kernel: SimDuration, ranks: u32, settings: &Settings) -> (SimDuration, SimDuration) {
        let issue = self.profile.issue_interval(settings.launch, ranks.div_ceil(self.hosts(ranks)));
        let served = kernel + self.profile.gap(settings.launch);
        (if settings.cold { self.profile.first_launch() + kernel } else { served.max(issue) }, issue)
    }

    /// What is left out where many NICs send through a link.
    fn congestion(&self, link: LinkId) -> Warning {
        let (from, to) = self.topology.ends(link);
        let port = format!("{} > {}", self.topology.vertex(from).name, self.topology.vertex(to).name);
        Warning::CongestionNotModelled(port)
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

    /// Proves a schedule, or a smaller one of the same pattern; each pattern once.
    fn prove(&self, schedule: &Schedule, settings: &Settings) -> Result<ProofKind, PredictError> {
        let unproved = |error| PredictError::Unproved { what: describe(schedule), error };
        let call = &schedule.call;
        let plan = &schedule.plan;
        let per_loop = plan.chunk.max(1) * u64::from(call.ranks);
        let count = call.counts.as_ref().map_or(call.count, |counts| counts.iter().copied().max().unwrap_or(0));
        let slices = (count / per_loop + 1) * u64::from(call.ranks).pow(2) * 2 * u64::from(plan.slices);
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
        let pattern = Arc::clone(self.proofs.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default());
        let mut known = pattern.lock().unwrap_or_else(PoisonError::into_inner);
        if *known && call.counts.is_none() {
            return Ok(ProofKind::Sampled);
        }
        // Fewer ranks stand on fewer hosts, and on fewer of each.
        let order = self.order(call.ranks, settings);
        let (ranks, order) = if call.ranks > PROOF_RANKS {
            let fewest = self.graph(call.ranks, settings).ranks_per_host.0;
            let per_host = (PROOF_RANKS / 8).min(fewest).max(1);
            let hosts = u32::try_from(order.hosts.len()).unwrap_or(u32::MAX).min(PROOF_RANKS / per_host);
            if hosts == 1 {
                (PROOF_RANKS, Arc::new(Order::one_host(PROOF_RANKS)))
            } else {
                (hosts * per_host, Arc::new(Order::grid(hosts, per_host)))
            }
        } else {
            // Of channels that are left the second is to be of the second tree.
            let mut order = (*order).clone();
            order.chains.iter_mut().for_each(|chains| chains.of_a_tree = 1);
            (call.ranks, Arc::new(order))
        };
        let mut small = Call { ranks, counts: None, ..call.clone() };
        small.root.0 = small.root.0.min(ranks - 1);
        let mut plan = *plan;
        // Two channels (both trees), two loops and a bit, the real number of slices a chunk.
        plan.channels = plan.channels.min(2 * plan.parts.max(1));
        plan.chunk = plan.grain * 4 * u64::from(plan.slices);
        plan.min_slice = plan.grain;
        (plan.grid, plan.dealt) = (plan.grid.min(3), None);
        let one_a_loop = matches!(plan.algorithm, Algorithm::Ring | Algorithm::Pat | Algorithm::Direct)
            && call.collective != Collective::AllReduce;
        let chunks = if one_a_loop { 1 } else { u64::from(ranks) };
        (plan.per_channel, plan.even) = (plan.chunk * chunks * 2 + plan.grain, 0);
        let sharers = if plan.algorithm == Algorithm::Direct { plan.parts } else { plan.channels };
        small.count = plan.per_channel * u64::from(sharers) - 1;
        if ranks == call.ranks {
            small.counts = call.counts.as_ref().map(|counts| counts.iter().map(|&c| c.min(small.count)).collect());
        }
        let twin = Schedule::new(small, plan, &order)?;
        verify(&twin).map_err(unproved)?;
        *known = true;
        Ok(ProofKind::Sampled)
    }
}

/// Rounds simulated of a timed loop; from then on each takes as long as the last half of them on average (where a FIFO
/// holds several calls, they end in groups).
const ROUNDS: u32 = 8;

/// How to run an instance.
type Runner = dyn Fn(&Instance<'_>) -> Result<Outcome, EngineError>;

/// Time on the device of one kernel in a loop of them, given the `outcome` of one alone, `ends` being the start and end
/// of a kernel. Where some ranks are done before others, kernels back to back overlap: `rounds` of them are run.
fn kernel_time(
    instance: &Instance<'_>,
    outcome: &Outcome,
    ends: SimDuration,
    settings: &Settings,
    (rounds, run): (u32, &Runner),
) -> Result<SimDuration, EngineError> {
    let run_time = outcome.end - SimTime(0);
    let kernel = ends + run_time;
    let first = outcome.first_ends.iter().min().map_or(run_time, |&t| t - SimTime(0));
    if settings.cold || first.as_us() >= run_time.as_us() - 0.01 * kernel.as_us() {
        return Ok(kernel);
    }
    let mut instance = instance.clone();
    for kernel in &mut instance.kernels {
        (kernel.rounds, kernel.gap) = (rounds, ends);
    }
    let outcome = run(&instance)?;
    let half = rounds / 2;
    let round_ends = outcome.round_ends.iter().rev();
    let (Some(last), Some(before)) = (round_ends.clone().next(), round_ends.clone().nth(half as usize)) else {
        return Ok(kernel);
    };
    let calls = u64::from(settings.timing.calls.max(rounds));
    // Of all calls, which take longer than times hold.
    let rest = u128::from(calls - u64::from(rounds)) * u128::from((*last - *before).0) / u128::from(half.max(1));
    // Folding keeps the order of ranks: the first kernel is that of rank 0.
    let end = outcome.last_ends.first().filter(|_| settings.timing.of_rank_0).unwrap_or(last);
    let each = (u128::from(end.0 + ends.0) + rest) / u128::from(calls);
    Ok(SimDuration(u64::try_from(each).unwrap_or(u64::MAX)))
}

/// Workers, with their ports, from which on calls run one at a time: 0.3 to 0.5 GiB. The largest that are simulated take
/// up to 2 GiB, and threads that each have one would need as much again each.
const LARGE: u64 = 1_500_000;
/// Whose turn it is among large calls.
static TURN: Mutex<()> = Mutex::new(());

/// Waits for other large calls to end, where one is to be laid.
fn turn<'s>(schedules: impl IntoIterator<Item = &'s Schedule>) -> Option<MutexGuard<'static, ()>> {
    // Ranks have about as many.
    let size = |schedule: &Schedule| {
        let first = schedule.workers().take_while(|of| of.0 == Rank(0));
        let ports = first.map(|(.., worker)| (1 + worker.recv.len() + worker.send.len()) as u64);
        ports.sum::<u64>() * u64::from(schedule.call.ranks)
    };
    let large = schedules.into_iter().map(size).sum::<u64>() >= LARGE;
    large.then(|| TURN.lock().unwrap_or_else(PoisonError::into_inner))
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

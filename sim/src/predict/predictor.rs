//! What predicts calls on one machine, and what it knows of NCCL there.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use rustc_hash::FxHashMap;

use super::error::PredictError;
use super::parts::Parts;
use super::prediction::Prediction;
use super::settings::{Settings, Whole};
use crate::call::{Call, CallError};
use crate::collective::{Algorithm, DataType, Launch};
use crate::domain::{Beyond, Reason};
use crate::engine::Teller;
use crate::ids::{Rank, VertexId};
use crate::memo::Memo;
use crate::nccl::rules::{Float8, Rules};
use crate::nccl::search::{self, Given, Options, Sends};
use crate::nccl::{Graphs, Plan, Transport, Tuner, Version};
use crate::network::{Grounds, order_by};
use crate::profile::Profile;
use crate::schedule::{Order, ScheduleError, valid_algorithms};
use crate::topology::Topology;

/// Predicts calls on one machine with one profile; shares routes between calls.
#[derive(Debug)]
pub struct Predictor<'a> {
    pub(super) topology: &'a Topology,
    pub(super) profile: &'a Profile,
    /// The tuner plugin that NCCL asks before its table.
    pub(super) tuner: Option<Tuner>,
    /// Graphs in place of NCCL's search.
    pub(super) given: Given,
    /// Nodes that were searched, of this machine and of views of it.
    pub(super) nodes: search::Known,
    /// What NCCL finds, by what it depends on: on the machine and on views of it.
    found: Arc<Memo<Asked, Found>>,
    /// Connections of earlier calls, on the machine and on views of it.
    pub(super) grounds: Arc<Grounds>,
    /// Calls of groups together, by what decides how they run.
    pub(super) together: Mutex<FxHashMap<RunsAs, Together>>,
    /// Its hosts, and parts of it.
    pub(super) parts: Parts,
    /// Is told how far its simulations are.
    pub(super) teller: Teller,
}

/// What decides how groups run together: what was laid (its hash), the cut of each, settings, and the bits of the share of
/// their speed that slowed blocks keep.
pub(super) type RunsAs = (u64, Vec<Plan>, Settings, Option<u64>);

/// A prediction of groups together, the shares of its resources in their order, and that with slower blocks.
pub(super) type Together = (Prediction, Vec<f64>, Option<Prediction>);

/// What graphs depend on: the GPUs of its ranks, multicast, reduction in the network, transport, channels of sends, and what
/// the ranks are a part of.
type Asked = (Vec<VertexId>, bool, bool, Transport, Sends, Option<Whole>);

/// The graphs that NCCL finds, and in which order its channels visit ranks.
type Found = (Arc<Graphs>, Arc<Order>);

impl<'a> Predictor<'a> {
    /// Predicts on a machine with a profile; the tuner plugin is that of the machine.
    pub fn new(topology: &'a Topology, profile: &'a Profile) -> Self {
        let tuner = Tuner::of(topology);
        let given = Given::default();
        let nodes = search::Known::default();
        let (found, grounds, together) = (Arc::default(), Arc::default(), Mutex::default());
        let (parts, teller) = (Parts::default(), Teller::default());
        Self { topology, profile, tuner, given, nodes, found, grounds, together, parts, teller }
    }

    /// Predicts on a view or a part of the machine, with what is known of its nodes; of a view, with its routes too.
    pub fn on<'v>(&self, view: &'v Topology) -> Predictor<'v>
    where
        'a: 'v,
    {
        let nodes = self.nodes.clone();
        let alone = Predictor { nodes, ..Predictor::new(view, self.profile).with_tuner(self.tuner.clone()) };
        if !view.is_view_of(self.topology) {
            return alone;
        }
        let grounds = self.grounds.clone();
        let found = if self.given == Given::default() { self.found.clone() } else { Arc::default() };
        Predictor { grounds, found, ..alone }
    }

    /// Tells somebody how far its simulations are; not those of predictors on views of the machine.
    #[must_use]
    pub fn telling(self, teller: Teller) -> Self {
        Self { teller, ..self }
    }

    /// Who is told how far simulations are.
    pub(crate) fn teller(&self) -> &Teller {
        &self.teller
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
        Self { given, found: Arc::default(), ..self }
    }

    /// The graphs that NCCL finds for the first `ranks` GPUs.
    pub fn graph(&self, ranks: u32, settings: &Settings) -> Arc<Graphs> {
        self.found(ranks, settings).0
    }

    /// In which order NCCL's channels visit the first `ranks` GPUs.
    pub(super) fn order(&self, ranks: u32, settings: &Settings) -> Arc<Order> {
        self.found(ranks, settings).1
    }

    fn found(&self, ranks: u32, settings: &Settings) -> Found {
        let told = (&settings.nccl, self.version(settings));
        let options = Options::new(self.topology, told, settings.transport, Given::default());
        let all: Vec<Rank> = (0..ranks.min(self.topology.ranks())).map(Rank).collect();
        let gpus = all.iter().map(|&rank| self.topology.gpu_of(rank)).collect();
        let asked = (gpus, options.multicast, options.collnet, options.transport, options.sends, settings.whole);
        let part = settings.whole.map(|whole| (whole, self.found(ranks, &Settings { whole: None, ..*settings })));
        self.found.get(asked, || {
            if let Some((whole, (graphs, order))) = part {
                let hosts = whole.hosts.max(graphs.hosts);
                return (Arc::new(Graphs { ranks: whole.ranks, hosts, ..(*graphs).clone() }), order);
            }
            let options = Options { given: self.given.clone(), ..options };
            let graphs = search::graphs_of(self.topology, &all, &options, &self.nodes);
            let order = order_by(self.topology, &graphs, &settings.transport);
            (Arc::new(graphs), Arc::new(order))
        })
    }

    /// The version of NCCL whose rules hold: the user's, the machine's, or the newest known.
    pub fn version(&self, settings: &Settings) -> Version {
        settings.version.or(self.topology.software.nccl).unwrap_or_default().nearest()
    }

    pub(super) fn check_ranks(&self, call: &Call, settings: &Settings) -> Result<(), PredictError> {
        if call.ranks == 0 {
            return Err(ScheduleError::from(CallError::Ranks(0)).into());
        }
        if call.ranks > self.topology.ranks() && settings.whole.is_none() {
            return Err(PredictError::TooFewGpus {
                ranks: call.ranks,
                topology: self.topology.name.clone(),
                gpus: self.topology.ranks(),
            });
        }
        Ok(())
    }

    /// Whether NCCL takes the type of a call's elements on these GPUs.
    pub(super) fn check_type(&self, call: &Call, settings: &Settings) -> Result<(), PredictError> {
        let Call { collective, dtype, .. } = *call;
        if !matches!(dtype, DataType::Float8E4m3 | DataType::Float8E5m2) {
            return Ok(());
        }
        let version = self.version(settings);
        let needs_hopper = match Rules::of(version).float8 {
            Float8::None => return Err(PredictError::NoFloat8 { version, dtype }),
            // Others are made of sends.
            Float8::CollectivesFromHopper => valid_algorithms(collective) != [Algorithm::Direct],
            Float8::ReductionsFromHopper => collective.reduces(),
        };
        let capability = self.graph(call.ranks, settings).compute_capability.0;
        if needs_hopper && capability < 90 {
            return Err(PredictError::Float8BeforeHopper { version, collective, dtype, capability });
        }
        Ok(())
    }

    /// How such calls go beyond the hardware, launch modes and host counts of the profile's evidence.
    pub fn beyond(&self, ranks: u32, launch: Launch) -> Beyond {
        let mut beyond = Beyond::default();
        if self.profile.is_cited() {
            beyond.insert(Reason::Cited(self.profile.name.clone()));
            return beyond;
        }
        let gpu = self.topology.gpu(self.topology.gpu_of(Rank(0)));
        let (model, family) = gpu.map(|g| (g.model.as_str(), g.family())).unwrap_or_default();
        if !model.is_empty() && !self.profile.gpus.iter().any(|known| *known == family || known == model) {
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

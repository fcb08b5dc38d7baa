//! A scenario with its machine, ready to be simulated.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use collcast_scenarios::file::{self, Scenario};
use collcast_sim::collective::Launch;
use collcast_sim::ids::{ChannelId, Rank, VertexId};
use collcast_sim::nccl::Transport;
use collcast_sim::network::Router;
use collcast_sim::predict::{PredictError, Predictor, Settings};
use collcast_sim::topology::{Link, Topology};
use collcast_sim::units::{Bandwidth, SimDuration};
use collcast_sim::workload::{Device, OpGraph, Simulator, WorkloadError};

use super::request::Request;
use crate::confidence::{Grounds, On};
use crate::error::Error;
use crate::site::{Site, SiteSpec, Told};
use crate::validate::gpus_of_another;
use crate::vary::{Key, To};
use crate::watch::Watch;

/// A machine that steps run on.
pub(super) struct Machine {
    pub(super) site: Site,
    /// The site's machine, with slow links where a scenario has them.
    pub(super) topology: Topology,
    pub(super) device: Device,
    pub(super) settings: Settings,
    /// Follows what is simulated on it.
    pub(super) watch: Watch,
}

impl Machine {
    /// The machine of a site; frameworks run a process a GPU.
    pub(super) fn new(site: Site, launch: Option<Launch>) -> Result<Self, Error> {
        if site.spec.graph.is_some() {
            return Err(Error::usage(
                "the communicators of a step have graphs of their own: it takes no graph file",
                "leave out --graph; `collcast simulate MACHINE` takes it for one call",
            ));
        }
        let device = site.device()?;
        let settings = Settings { launch: launch.unwrap_or(Launch::Processes), ..*site.settings() };
        Ok(Self { topology: site.topology.clone(), site, device, settings, watch: Watch::default() })
    }

    /// The site with slow links and with what frameworks tell NCCL.
    pub(super) fn as_calls_see_it(&self) -> Site {
        let Self { site, topology, settings, .. } = self;
        let told = Told { settings: *settings, ..site.told.clone() };
        Site { topology: topology.clone(), told, ..site.clone() }
    }

    /// The same machine, and who follows what is simulated on it.
    pub(super) fn followed(self, watch: Watch) -> Self {
        Self { watch, ..self }
    }

    fn predictor(&self) -> Predictor<'_> {
        Predictor::new(&self.topology, &self.site.profile).with_tuner(self.site.told.tuner.clone())
    }

    pub(super) fn simulator(&self) -> Simulator<'_> {
        Simulator::new(self.predictor(), self.device, self.settings)
    }

    /// One for so many simulations, whose progress is told.
    pub(super) fn telling_simulator(&self, runs: usize) -> Simulator<'_> {
        Simulator::new(self.predictor().telling(self.watch.of_runs(runs)), self.device, self.settings)
    }

    /// The same with something of it changed, as far as it has that; none where it has nothing of it.
    pub(super) fn changed(&self, settings: &[(&str, To)]) -> Option<Self> {
        let mut site = self.as_calls_see_it();
        let mut set = |(key, to): &(&str, To)| {
            let keys = Key::of(key).unwrap_or_default();
            keys.into_iter().filter(|key| key.set(&mut site, to).is_ok()).count()
        };
        let done: usize = settings.iter().map(&mut set).sum();
        (done > 0).then(|| Self {
            topology: site.topology.clone(),
            device: self.device,
            settings: self.settings,
            watch: Watch::default(),
            site,
        })
    }

    /// What steps of so many ranks rest on.
    pub(super) fn grounds(&self, ranks: usize) -> Grounds {
        let ranks = u32::try_from(ranks).unwrap_or(u32::MAX).min(self.topology.ranks());
        let beyond = self.simulator().predictor().beyond(ranks, self.settings.launch);
        let on = On { topology: &self.topology, profile: &self.site.profile, settings: &self.settings };
        Grounds::of_step(on, ranks, &beyond)
    }
}

/// A scenario with everything that it runs on.
pub(super) struct Loaded {
    pub(super) scenario: Scenario,
    pub(super) machine: Machine,
}

impl Loaded {
    pub(super) fn new(text: &str, label: &str, request: &Request) -> Result<Self, Error> {
        let name = &request.name;
        let named = if label.is_empty() { name.clone() } else { format!("{name} with {label}") };
        let scenario = file::read(text, &named)?;
        let (own, asked) = (&scenario.machine, &request.site);
        let spec = SiteSpec {
            topology: Some(own.topology.clone()),
            nodes: asked.nodes.or(own.nodes),
            gpus: asked.gpus.or(own.gpus),
            profiles: if asked.profiles.is_empty() { own.profile.clone() } else { asked.profiles.clone() },
            ..asked.clone()
        };
        if asked.launch == Some(Launch::SingleThread) {
            return Err(Error::usage(
                "--launch single_thread: the ranks of a scenario are processes or threads of their own",
                "leave it out, or give --launch graph for a step that is one CUDA graph",
            ));
        }
        let mut machine = Machine::new(spec.load()?, asked.launch)?;
        machine.topology = slowed(&machine.topology, machine.settings.transport, &scenario.slow_links);
        Ok(Self { scenario, machine })
    }

    /// The same, and who follows what is simulated of it.
    pub(super) fn followed(self, watch: Watch) -> Self {
        Self { machine: self.machine.followed(watch), ..self }
    }

    pub(super) fn graph(&self) -> OpGraph {
        self.graph_of(&self.scenario)
    }

    /// The step without stragglers, and the machine without slow links, where the scenario has some.
    pub(super) fn even(&self) -> Option<(OpGraph, Machine)> {
        let even = self.scenario.even()?;
        let Machine { site, device, settings, watch, .. } = &self.machine;
        let (site, device, settings, watch) = (site.clone(), *device, *settings, watch.clone());
        Some((self.graph_of(&even), Machine { topology: site.topology.clone(), site, device, settings, watch }))
    }

    /// What another scenario's ranks do on the machine. A CUDA graph of the step leaves the host nothing to launch in it.
    pub(super) fn graph_of(&self, scenario: &Scenario) -> OpGraph {
        let mut graph = scenario.graph(&self.machine.site.profile, self.machine.device);
        if self.machine.settings.launch == Launch::Graph {
            let ops = graph.programs.iter_mut().flat_map(|program| &mut program.ops);
            ops.for_each(|op| op.issue = SimDuration::ZERO);
        }
        graph
    }
}

/// Kinds of GPU that a machine has.
pub(super) fn gpus(topology: &Topology) -> BTreeSet<String> {
    let gpus = (0..topology.ranks()).filter_map(|rank| topology.gpu(topology.gpu_of(Rank(rank))));
    gpus.map(|gpu| gpu.model.clone()).filter(|model| !model.is_empty()).collect()
}

/// Whether GPUs of these names are of another kind than a machine's.
pub(super) fn is_of_others(names: &BTreeSet<&str>, topology: &Topology) -> bool {
    gpus_of_another(Path::new(""), names, topology).is_some()
}

/// The machine with the links of some ranks' GPUs, and of the NICs that NCCL takes for them, slower. GPUs share NICs: a link has
/// the least share that a rank gives it.
fn slowed(topology: &Topology, transport: Transport, slow: &[(u32, f64)]) -> Topology {
    let mut router = Router::with(topology, transport);
    let mut shares: BTreeMap<VertexId, f64> = BTreeMap::new();
    for &(rank, share) in slow.iter().filter(|(rank, _)| *rank < topology.ranks()) {
        let (rank, node) = (Rank(rank), topology.node_of(Rank(rank)));
        // What comes from elsewhere enters through the NICs of the receiver.
        let far = (0..topology.ranks()).map(Rank).find(|&other| topology.node_of(other) != node);
        let nics = topology.hosts()[topology.host_of(rank).index()].nics.len();
        let channels = (0..nics as u32).map(ChannelId);
        let routes = far.into_iter().flat_map(|far| channels.clone().map(move |channel| (far, channel)));
        let routes = routes.filter_map(|(far, channel)| router.route(far, rank, channel));
        let nics: Vec<VertexId> = routes.flat_map(|route| route.nics).map(|(_, enters)| enters).collect();
        for end in nics.into_iter().chain([topology.gpu_of(rank)]) {
            let least = shares.entry(end).or_insert(share);
            *least = least.min(share);
        }
    }
    let share = |end| shares.get(&end).copied().unwrap_or(1.0);
    topology.with_links(|id, link| {
        let (from, to) = topology.ends(id);
        scale(link, share(from).min(share(to)))
    })
}

fn scale(link: Link, share: f64) -> Link {
    let rate = Bandwidth::from_gb_per_s(link.rate.gb_per_s() * share);
    Link { rate, ..link }
}

pub(super) fn failed(error: WorkloadError) -> Error {
    match error {
        WorkloadError::Predict(error @ PredictError::TooFewGpus { .. }) => {
            Error::usage(error.to_string(), "give the machine more hosts, or the layout fewer ranks")
        }
        WorkloadError::Predict(error) => error.into(),
        other => Error::usage(other.to_string(), "change what it names, in the scenario or the trace"),
    }
}

pub(super) fn ms(time: SimDuration) -> f64 {
    time.as_us() / 1e3
}

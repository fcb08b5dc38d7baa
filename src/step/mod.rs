//! One training step: how long it takes, what of its communication is exposed, by what, and what would help.

mod advice;
mod timeline;
mod variants;

use std::collections::BTreeMap;
use std::path::Path;

use collcast_reports::model::Input;
use collcast_scenarios::file::{self, Scenario};
use collcast_scenarios::study::{self, Breakdown};
use collcast_scenarios::{builtin, device};
use collcast_sim::collective::Launch;
use collcast_sim::domain::Beyond;
use collcast_sim::ids::{LinkId, Rank};
use collcast_sim::predict::{Predictor, Settings};
use collcast_sim::topology::{Link, Topology, VertexKind};
use collcast_sim::units::{Bandwidth, SimDuration};
use collcast_sim::workload::{Device, Level, Mechanisms, OpGraph, Simulator, Step, WorkloadError};
use serde::Serialize;

use crate::error::Error;
use crate::files::read_text;
use crate::site::{Site, SiteSpec, assumptions};
pub use advice::Change;
pub use timeline::timeline;

/// Ranks that an answer shows, the first of their roles.
const SHOWN_RANKS: usize = 8;
/// Links that an answer shows.
const SHOWN_LINKS: usize = 8;

/// A training step to simulate.
#[derive(Clone, Debug)]
pub struct Request {
    /// The scenario as TOML.
    pub text: String,
    /// Its name, for messages.
    pub name: String,
    /// What is asked of the machine in place of what the scenario says.
    pub site: SiteSpec,
    /// Other values of keys, `key=a,b`; each combination is a variant.
    pub vary: Vec<String>,
    /// How communication is simulated.
    pub level: Level,
}

impl Request {
    /// A scenario by built-in name or file; none where the argument is neither.
    ///
    /// A file is a scenario where it says so: `schema = "collcast/scenario/1"`.
    pub fn find(name: &str) -> Option<Self> {
        let request = |text: String, name: String| Self {
            text,
            name,
            site: SiteSpec::default(),
            vary: Vec::new(),
            level: Level::Auto,
        };
        if let Some(text) = builtin::text(name) {
            return Some(request(text.to_owned(), format!("{name} (built in)")));
        }
        let path = Path::new(name);
        if path.extension().is_none_or(|e| e != "toml") || !path.is_file() {
            return None;
        }
        let text = read_text("read", path).ok()?;
        let says = |line: &str| line.trim_start().starts_with("schema") && line.contains("collcast/scenario/");
        text.lines().any(says).then(|| request(text, name.to_owned()))
    }
}

/// A simulated step. Times are in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The scenario.
    pub scenario: String,
    /// The step as it is, or each variant.
    pub variants: Vec<Variant>,
    /// Where the time of the step goes; none where several variants were asked for.
    pub detail: Option<Detail>,
    /// Profiles that it depends on.
    pub inputs: Vec<Input>,
    /// What was assumed.
    pub notes: Vec<String>,
    /// What to know before using the numbers.
    pub warnings: Vec<String>,
    /// How far it goes beyond what the profile was made with.
    #[serde(skip)]
    pub beyond: Beyond,
    /// The machine, with slowed links.
    #[serde(skip)]
    pub topology: Topology,
    /// The graph of operations of the first variant.
    #[serde(skip)]
    pub graph: OpGraph,
    /// Its simulated step.
    #[serde(skip)]
    pub step: Step,
    /// What its time consists of.
    #[serde(skip)]
    pub parts: Breakdown,
}

/// A step under one set of values.
#[derive(Clone, Debug, Serialize)]
pub struct Variant {
    /// What was varied; empty for the scenario as it is.
    pub label: String,
    /// Ranks.
    pub ranks: u64,
    /// The step.
    pub step_ms: f64,
    /// Its computation, waits for other ranks included.
    pub compute_ms: f64,
    /// What communication adds.
    pub exposed_ms: f64,
    /// Of that: computation and communication slow and delay each other.
    pub interference_ms: f64,
    /// Of that: launches by the host, and streams that wait for each other.
    pub launch_ms: f64,
    /// Of that: copies that the framework adds.
    pub framework_ms: f64,
    /// Of that: the last calls, and those that computation waits for.
    pub unhidden_ms: f64,
    /// Of the computation: waits for other ranks.
    pub bubble_ms: f64,
    /// Events of the simulation.
    pub events: u64,
}

/// Where the time of a step goes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Detail {
    /// Communication by rank and kind.
    pub communication: Vec<Communication>,
    /// Streams by rank.
    pub streams: Vec<Stream>,
    /// The critical path, added up.
    pub path: Vec<PathPart>,
    /// Links that different calls shared, and the share of their capacity that was used.
    pub links: Vec<(String, f64)>,
    /// What stragglers and jitter cost.
    pub disturbed: Vec<Disturbed>,
    /// What would help, the best first; none where it was not tried.
    pub advice: Option<Vec<Change>>,
}

/// Communication of one kind on one rank.
#[derive(Clone, Debug, Serialize)]
pub struct Communication {
    /// The rank.
    pub rank: u32,
    /// Ranks that do the same.
    pub like: usize,
    /// What kind.
    pub kind: String,
    /// Calls.
    pub calls: usize,
    /// Time with such a call under way.
    pub busy_ms: f64,
    /// Time of that without any computation beside it.
    pub exposed_ms: f64,
    /// Algorithm, protocol and channels.
    pub how: String,
}

/// One stream of one rank.
#[derive(Clone, Debug, Serialize)]
pub struct Stream {
    /// The rank.
    pub rank: u32,
    /// The stream.
    pub stream: String,
    /// Time with something under way.
    pub busy_ms: f64,
    /// The rest of the step.
    pub idle_ms: f64,
}

/// Parts of the critical path that are alike.
#[derive(Clone, Debug, Serialize)]
pub struct PathPart {
    /// What was done.
    pub what: String,
    /// What bounded it; empty where it is no call.
    pub bound_by: String,
    /// How many parts.
    pub parts: u64,
    /// Their time.
    pub time_ms: f64,
}

/// The step with or without stragglers, or over seeds of its jitter.
#[derive(Clone, Debug, Serialize)]
pub struct Disturbed {
    /// Which.
    pub case: String,
    /// The step, or its median.
    pub step_ms: f64,
    /// The shortest and the longest over the seeds.
    pub range_ms: Option<(f64, f64)>,
    /// The first and the last seed.
    pub seeds: Option<(u64, u64)>,
}

/// Simulates a training step, or each variant of it.
///
/// # Errors
/// A scenario or machine that cannot be read, a layout that does not fit, a call that cannot be forecast.
pub fn step(request: &Request) -> Result<Outcome, Error> {
    let variants = variants::variants(request)?;
    let Some(((label, text), others)) = variants.split_first() else {
        return Err(Error::usage("there is nothing to simulate", "give a scenario"));
    };
    let loaded = Loaded::new(text, label, request)?;
    let simulator = loaded.simulator();
    let (graph, step, parts, row) = simulated(label, &loaded, &simulator, request.level)?;
    let (mut rows, mut beyond) = (vec![row], vec![loaded.beyond()]);
    for (label, text) in others {
        let loaded = Loaded::new(text, label, request)?;
        rows.push(simulated(label, &loaded, &loaded.simulator(), request.level)?.3);
        beyond.push(loaded.beyond());
    }
    let beyond: Beyond = beyond.into_iter().collect();
    let mut notes = assumptions(&loaded.topology, &loaded.site.profile, &loaded.settings, &beyond);
    notes.insert(0, format!("scenario {}: {}", loaded.scenario.name, loaded.scenario.description));
    notes.push(format!(
        "communication as {}; ranks of the same role once: {} -> {}",
        if step.slices { "slices, all at once" } else { "flows, each call simulated alone first" },
        graph.ranks.len(),
        step.ranks.len()
    ));
    notes.extend(loaded.site.told.notes.iter().cloned());
    let detail = match variants.len() {
        1 => Some(detail(&loaded, &simulator, (&graph, &step), request, &mut notes)?),
        _ => None,
    };
    drop(simulator);
    Ok(Outcome {
        scenario: loaded.scenario.name.clone(),
        variants: rows,
        detail,
        inputs: loaded.site.sources.clone(),
        notes,
        warnings: loaded.site.told.warnings.clone(),
        beyond,
        topology: loaded.topology,
        graph,
        step,
        parts,
    })
}

/// A scenario with everything that it runs on.
struct Loaded {
    scenario: Scenario,
    site: Site,
    /// The site's machine with the scenario's slow links.
    topology: Topology,
    device: Device,
    settings: Settings,
}

impl Loaded {
    fn new(text: &str, label: &str, request: &Request) -> Result<Self, Error> {
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
        let site = spec.load()?;
        if site.told.tuner.is_some() || spec.graph.is_some() {
            return Err(Error::usage(
                "a scenario's calls take NCCL's own choice and channels: no tuner's table, no graph file",
                "leave out --graph and NCCL_TUNER_CONFIG_FILE; `collcast simulate MACHINE` takes them for one call",
            ));
        }
        // Frameworks run a process a GPU.
        let launch = asked.launch.unwrap_or(Launch::Processes);
        let device = device(&site.topology).ok_or_else(|| {
            Error::usage(
                format!("nothing is known of the GPUs of `{}`", site.topology.name),
                "give their kind in the topology file, such as kind = \"H100-SXM5-80GB\"",
            )
        })?;
        let topology = slowed(&site.topology, &scenario.slow_links);
        let settings = Settings { launch, ..*site.settings() };
        Ok(Self { scenario, site, topology, device, settings })
    }

    fn simulator(&self) -> Simulator<'_> {
        Simulator::new(Predictor::new(&self.topology, &self.site.profile), self.device, self.settings)
    }

    /// Whether the profile was made elsewhere.
    fn beyond(&self) -> Beyond {
        self.simulator().predictor().beyond(self.topology.ranks(), self.settings.launch)
    }

    fn graph(&self) -> OpGraph {
        self.scenario.graph(&self.site.profile, self.device)
    }
}

/// The machine with the links of some ranks' GPUs, and of the NICs with the same numbers, slower.
fn slowed(topology: &Topology, slow: &[(u32, f64)]) -> Topology {
    if slow.is_empty() {
        return topology.clone();
    }
    let share = |id: LinkId| {
        let (from, to) = topology.ends(id);
        let touches = |rank: u32| {
            let gpu = topology.gpu_of(Rank(rank));
            let (host, index) = (topology.host_of(Rank(rank)), topology.gpu(gpu).map(|g| g.index));
            [from, to].into_iter().any(|end| {
                let vertex = topology.vertex(end);
                let nic =
                    matches!(&vertex.kind, VertexKind::Nic(n) if Some(n.index) == index && vertex.host == Some(host));
                end == gpu || nic
            })
        };
        slow.iter().filter(|(rank, _)| *rank < topology.ranks() && touches(*rank)).map(|s| s.1).product::<f64>()
    };
    topology.with_links(|id, link| scale(link, share(id)))
}

fn scale(link: Link, share: f64) -> Link {
    let rate = Bandwidth::from_gb_per_s(link.rate.gb_per_s() * share);
    Link { rate, ..link }
}

fn failed(error: WorkloadError) -> Error {
    match error {
        WorkloadError::Predict(error) => error.into(),
        other => Error::usage(other.to_string(), "change the layout or the strategy of the scenario"),
    }
}

fn ms(time: SimDuration) -> f64 {
    time.as_us() / 1e3
}

/// Simulates a variant.
fn simulated(
    label: &str,
    loaded: &Loaded,
    simulator: &Simulator<'_>,
    level: Level,
) -> Result<(OpGraph, Step, Breakdown, Variant), Error> {
    let graph = loaded.graph();
    let step = simulator.run(&graph, Mechanisms::default(), level).map_err(failed)?;
    let parts = study::breakdown(simulator, &graph, &step).map_err(failed)?;
    let signed = |picoseconds: study::Signed| picoseconds as f64 / 1e9;
    let variant = Variant {
        label: label.to_owned(),
        ranks: loaded.scenario.layout.ranks(),
        step_ms: ms(parts.step),
        compute_ms: ms(parts.compute),
        exposed_ms: ms(parts.step) - ms(parts.compute),
        interference_ms: signed(parts.interference),
        launch_ms: signed(parts.launch),
        framework_ms: signed(parts.framework),
        unhidden_ms: signed(parts.unhidden),
        bubble_ms: ms(parts.compute) - ms(parts.busiest),
        events: step.events,
    };
    Ok((graph, step, parts, variant))
}

fn detail(
    loaded: &Loaded,
    simulator: &Simulator<'_>,
    (graph, step): (&OpGraph, &Step),
    request: &Request,
    notes: &mut Vec<String>,
) -> Result<Detail, Error> {
    let advice = if loaded.scenario.layout.data <= advice::MOST_RANKS {
        Some(advice::advice(request, loaded, simulator)?)
    } else {
        notes.push(format!(
            "what would help is not tried with more than {} ranks in a communicator (it takes minutes); \
             try changes with --vary, such as --vary communication.channels=8,16",
            advice::MOST_RANKS
        ));
        None
    };
    let links = step.links.iter().take(SHOWN_LINKS);
    Ok(Detail {
        communication: communication(step),
        streams: streams(graph, step),
        path: path(step),
        links: links.map(|(link, share)| (loaded.topology.link_name(*link), *share)).collect(),
        disturbed: disturbed(loaded, simulator, graph)?,
        advice,
    })
}

fn communication(step: &Step) -> Vec<Communication> {
    let mut all = Vec::new();
    for rank in step.ranks.iter().take(SHOWN_RANKS) {
        all.extend(rank.communication.iter().map(|(kind, (calls, busy, exposed))| Communication {
            rank: rank.rank.0,
            like: rank.count,
            kind: kind.to_string(),
            calls: *calls,
            busy_ms: ms(*busy),
            exposed_ms: ms(*exposed),
            how: step.how.get(kind).cloned().unwrap_or_default(),
        }));
    }
    all
}

fn streams(graph: &OpGraph, step: &Step) -> Vec<Stream> {
    let mut streams = Vec::new();
    for rank in step.ranks.iter().take(SHOWN_RANKS) {
        for (stream, busy) in graph.programs[rank.program].streams.iter().zip(&rank.busy) {
            let busy_ms = ms(*busy);
            let idle_ms = ms(step.time) - busy_ms;
            streams.push(Stream { rank: rank.rank.0, stream: stream.name.to_string(), busy_ms, idle_ms });
        }
    }
    streams
}

/// The critical path, added up by what its time went to, the longest first.
fn path(step: &Step) -> Vec<PathPart> {
    let mut sums: BTreeMap<(&str, &str), (u64, f64)> = BTreeMap::new();
    for part in &step.path {
        let sum = sums.entry((&part.what, part.bound_by.unwrap_or(""))).or_default();
        *sum = (sum.0 + 1, sum.1 + ms(part.to - part.from));
    }
    let part = |((what, bound_by), (parts, time_ms)): ((&str, &str), (u64, f64))| PathPart {
        what: what.to_owned(),
        bound_by: bound_by.to_owned(),
        parts,
        time_ms,
    };
    let mut all: Vec<PathPart> = sums.into_iter().map(part).collect();
    all.sort_by(|a, b| b.time_ms.total_cmp(&a.time_ms));
    all
}

/// What stragglers and jitter cost: the step with and without.
fn disturbed(loaded: &Loaded, simulator: &Simulator<'_>, graph: &OpGraph) -> Result<Vec<Disturbed>, Error> {
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
    let mut all = Vec::new();
    for (name, graph) in cases {
        let step = simulator.run(graph, Mechanisms::default(), Level::Flows).map_err(failed)?;
        all.push(Disturbed { case: name.to_owned(), step_ms: ms(step.time), range_ms: None, seeds: None });
        if let Some((jitter, seeds)) = scenario.jitter {
            let spread = study::spread(simulator, graph, jitter, seeds).map_err(failed)?;
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

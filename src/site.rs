//! Where calls run: a machine, what is known of it (its profile), and what NCCL is told there.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use collcast_hwbackend::read::ENVIRONMENT;
use collcast_reports::model::Input;
use collcast_reports::ports;
use collcast_scenarios::device;
use collcast_scenarios::training::calls::Calls;
use collcast_sim::collective::Launch;
use collcast_sim::domain::Basis;
use collcast_sim::ids::{HostId, Rank, VertexId};
use collcast_sim::nccl::plugin;
use collcast_sim::nccl::search::Given;
use collcast_sim::nccl::settings::{self, SettingsError};
use collcast_sim::nccl::{CsvTuner, Environment, Tuner, Version};
use collcast_sim::nccl::{NicSet, Transport};
use collcast_sim::predict::{Predictor, Settings};
use collcast_sim::profile::Profile;
use collcast_sim::split::Split;
use collcast_sim::topology::Topology;
use collcast_sim::workload::Device;
use collcast_topologies::builtin::{resize, spec_any};
use collcast_topologies::placement::place;

use crate::confidence::On;
use crate::error::Error;
use crate::files::{input_of, read_text};
use crate::own_tuner;
use crate::profiles::{self, Folders, Taken};

/// The machine where none is named.
pub const DEFAULT_MACHINE: &str = "dgx-h100";

/// Which machine, and how NCCL is run on it. What is left out is the machine's own, or NCCL's default.
///
/// ```
/// let site = collcast::SiteSpec::new("aws-p5").nodes(4).env("NCCL_ALGO", "Ring").load()?;
/// assert_eq!(site.topology.ranks(), 32);
/// # Ok::<(), collcast::Error>(())
/// ```
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SiteSpec {
    /// Built-in machine or topology file (.toml, NCCL's .xml, `nvidia-smi topo -m` as .txt); `dgx-h100` where none is named.
    pub topology: Option<String>,
    /// Hosts.
    pub nodes: Option<u32>,
    /// GPUs of each host, from the first.
    pub gpus: Option<u32>,
    /// Ranks of the calls, from the first GPU; all where none are given.
    pub ranks: Option<u32>,
    /// The communicators that these ranks are split into; one where none is given.
    pub split: Option<Split>,
    /// NICs that are down: the host and its NIC, both counted from 0.
    pub down: Vec<(u32, u32)>,
    /// Which GPU each rank runs on: see [`collcast_topologies::placement::place`].
    pub placement: Option<String>,
    /// Profiles, names or TOML files; several layer, and the later wins per constant. The best that there is for the
    /// machine where none is named: see [`profiles::take`].
    pub profiles: Vec<String>,
    /// Folders with profiles of the user's own, besides the built-in ones.
    pub profile_folders: Vec<PathBuf>,
    /// Graphs in place of NCCL's search, as `NCCL_GRAPH_FILE` takes them.
    pub graph: Option<PathBuf>,
    /// NCCL version whose rules hold; the machine's, else the newest known.
    pub nccl: Option<String>,
    /// Variables that NCCL is run with, after the machine's own; of a name given twice the last counts.
    pub env: Vec<(String, String)>,
    /// How kernels are started; by itself as nccl-tests does for such calls: processes on several hosts, else threads.
    pub launch: Option<Launch>,
    /// One first call in place of a loop of calls back to back.
    pub cold: bool,
    /// NCCL has registered the buffers.
    pub registered: bool,
}

impl SiteSpec {
    /// A machine by built-in name or topology file.
    pub fn new(topology: impl Into<String>) -> Self {
        Self { topology: Some(topology.into()), ..Self::default() }
    }

    /// With so many hosts.
    #[must_use]
    pub fn nodes(self, nodes: u32) -> Self {
        Self { nodes: Some(nodes), ..self }
    }

    /// With a profile over those named before.
    #[must_use]
    pub fn profile(mut self, name: impl Into<String>) -> Self {
        self.profiles.push(name.into());
        self
    }

    /// With a variable of NCCL.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// With a way to start kernels.
    #[must_use]
    pub fn launch(self, launch: Launch) -> Self {
        Self { launch: Some(launch), ..self }
    }

    /// The machine alone, its ranks placed.
    ///
    /// # Errors
    /// A machine or placement that cannot be read.
    pub fn topology(&self) -> Result<Topology, Error> {
        let name = self.topology.as_deref().unwrap_or(DEFAULT_MACHINE);
        let mut spec = resize(spec_any(name)?, self.nodes, self.gpus)?;
        for &(host, nic) in &self.down {
            spec = spec.with_down(host, nic)?;
        }
        let topology = spec.build()?;
        let Some(text) = &self.placement else { return Ok(topology) };
        let mut topology = place(&topology, text).map_err(|e| {
            Error::usage(format!("--placement: {e}"), "`collcast topo show` lists the hosts and GPUs of a machine")
        })?;
        let placed = if text.len() > 60 || text.contains('\n') { "a list" } else { text.as_str() };
        topology.assumptions.push(format!("ranks placed by {placed}: {} of them", topology.ranks()));
        Ok(topology)
    }

    /// The site: all files read and checked.
    ///
    /// # Errors
    /// A file that cannot be read, a profile or version that does not exist, a variable that NCCL would not take.
    pub fn load(&self) -> Result<Site, Error> {
        self.load_onto(self.topology()?)
    }

    /// The same for a machine that is there already.
    ///
    /// # Errors
    /// As of [`SiteSpec::load`].
    pub fn load_onto(&self, topology: Topology) -> Result<Site, Error> {
        let Taken { profile, mut sources, why } = self.profile_for(&topology)?;
        let files = [("topology", self.topology.as_deref().map(Path::new)), ("graph", self.graph.as_deref())];
        // A name is no file, and a pipe is read once.
        for (role, path) in files.into_iter().filter_map(|(role, path)| Some((role, path.filter(|p| p.is_file())?))) {
            sources.push(input_of(role, path)?);
        }
        let mut told = told(&topology, self.nccl.as_deref(), &self.env)?;
        let several = hosts_of(&self.communicator(&topology)) > 1;
        told.settings.launch = self.launch.unwrap_or(if several { Launch::Processes } else { Launch::Threads });
        (told.settings.cold, told.settings.registered) = (self.cold, self.registered);
        let graphs = match &self.graph {
            Some(path) => collcast_topologies::graph::read_path(path)?,
            None => Given::default(),
        };
        Ok(Site { spec: self.clone(), topology, profile, sources, why, told, graphs })
    }

    /// The site of a trace: as many hosts as its ranks need where no number is given, each rank a process. `option` is the one
    /// that names the machine.
    ///
    /// # Errors
    /// As of [`SiteSpec::load`]; a machine with fewer GPUs than ranks.
    pub fn for_ranks(&self, world: u32, option: &str) -> Result<Site, Error> {
        let spec = Self { launch: self.launch.or(Some(Launch::Processes)), ..self.clone() };
        let mut topology = spec.topology()?;
        if topology.ranks() < world && spec.nodes.is_none() {
            let hosts = world.div_ceil(gpus_a_host(&topology));
            topology = Self { nodes: Some(hosts), ..spec.clone() }.topology()?;
        }
        if topology.ranks() < world {
            return Err(Error::usage(
                format!("the trace is of {world} ranks; `{}` has {} GPUs", topology.name, topology.ranks()),
                format!("give the machine more hosts with --nodes, or name a larger one with {option}"),
            ));
        }
        spec.load_onto(topology)
    }

    /// The profiles named, or the best there is for calls on a machine.
    ///
    /// # Errors
    /// A profile that cannot be read, or does not exist.
    pub fn profile_for(&self, topology: &Topology) -> Result<Taken, Error> {
        let folders = Folders::of(self.topology.as_deref(), &self.profile_folders);
        profiles::take(&self.profiles, &self.communicator(topology), &folders)
    }

    /// The machine as the ranks of a call see it; of several communicators as the first on the most hosts does.
    fn communicator<'t>(&self, topology: &'t Topology) -> Cow<'t, Topology> {
        let all = topology.ranks();
        let ranks = self.ranks.unwrap_or(all).min(all);
        let hosts = |group: &Vec<Rank>| group.iter().map(|&rank| topology.host_of(rank)).collect::<BTreeSet<_>>().len();
        let group = match self.split {
            Some(split) => split.groups(ranks).into_iter().min_by_key(|group| Reverse(hosts(group))),
            None => (ranks < all).then(|| (0..ranks).map(Rank).collect()),
        };
        let gpus = |group: Vec<Rank>| group.into_iter().map(|rank| topology.gpu_of(rank)).collect::<Vec<_>>();
        // No ranks are refused where they are called.
        let view = group.and_then(|group| topology.placed(&gpus(group)).ok());
        view.map_or(Cow::Borrowed(topology), Cow::Owned)
    }
}

/// A machine with its profile, and how NCCL is run on it.
#[derive(Clone, Debug)]
pub struct Site {
    /// What was asked for.
    pub spec: SiteSpec,
    /// The machine.
    pub topology: Topology,
    /// What is known of its links, blocks, kernels and hosts.
    pub profile: Profile,
    /// The profiles and files of the machine that were read, with hashes of their contents.
    pub sources: Vec<Input>,
    /// Why the profile was taken, where neither a user nor the machine named it.
    pub why: Option<String>,
    /// What NCCL is told.
    pub told: Told,
    /// Graphs in place of NCCL's search.
    pub graphs: Given,
}

/// Hosts that have ranks.
fn hosts_of(topology: &Topology) -> u32 {
    let hosts: BTreeSet<HostId> = (0..topology.ranks()).map(|rank| topology.host_of(Rank(rank))).collect();
    u32::try_from(hosts.len()).unwrap_or(u32::MAX)
}

/// GPUs of a host of a machine whose hosts are alike.
pub(crate) fn gpus_a_host(topology: &Topology) -> u32 {
    let hosts = u32::try_from(topology.hosts().len()).unwrap_or(u32::MAX);
    (topology.ranks() / hosts.max(1)).max(1)
}

impl Site {
    /// A built-in machine, or one from a file, as it is.
    ///
    /// # Errors
    /// As of [`SiteSpec::load`].
    pub fn load(topology: &str) -> Result<Self, Error> {
        SiteSpec::new(topology).load()
    }

    /// How calls are run.
    pub fn settings(&self) -> &Settings {
        &self.told.settings
    }

    /// The machine as the ranks of a call see it; of several communicators as the first on the most hosts does.
    pub fn communicator(&self) -> Cow<'_, Topology> {
        self.spec.communicator(&self.topology)
    }

    /// Hosts that hold the ranks of a call; of several communicators those of the one on the most.
    pub fn nodes(&self) -> u32 {
        hosts_of(&self.communicator())
    }

    /// What its GPUs can do.
    ///
    /// # Errors
    /// A machine of unknown GPUs.
    pub fn device(&self) -> Result<Device, Error> {
        device(&self.topology).ok_or_else(|| {
            Error::usage(
                format!("nothing is known of the GPUs of `{}`", self.topology.name),
                "give their kind in the topology file, such as kind = \"H100-SXM5-80GB\"",
            )
        })
    }

    /// What calls of jobs take here.
    ///
    /// # Errors
    /// A machine of unknown GPUs.
    pub(crate) fn calls(&self) -> Result<Calls<'_>, Error> {
        Ok(Calls::new(self.predictor(), self.device()?, *self.settings()))
    }

    /// The same, with NCCL told more variables.
    ///
    /// # Errors
    /// A variable that NCCL would not take.
    pub(crate) fn with_env(&self, more: impl IntoIterator<Item = (String, String)>) -> Result<Self, Error> {
        let mut site = self.clone();
        site.spec.env.extend(more);
        site.told = told(&site.topology, site.spec.nccl.as_deref(), &site.spec.env)?;
        let Settings { nccl, transport, .. } = site.told.settings;
        site.told.settings = Settings { nccl, transport, ..*self.settings() };
        Ok(site)
    }

    /// What NCCL is told, for answers of many calls: whose rules they follow, then what is set.
    pub(crate) fn rules(&self) -> impl Iterator<Item = String> {
        let version = self.settings().version.unwrap_or_default();
        std::iter::once(format!("calls follow the rules of NCCL {version}")).chain(self.told.notes.iter().cloned())
    }

    /// What forecasts calls here; proofs and routes are shared between its calls.
    pub fn predictor(&self) -> Predictor<'_> {
        Predictor::new(&self.topology, &self.profile)
            .with_tuner(self.told.tuner.clone())
            .with_graphs(self.graphs.clone())
    }

    /// What forecasts there rest on.
    pub fn on(&self) -> On<'_> {
        On { topology: &self.topology, profile: &self.profile, settings: self.settings() }
    }

    /// Checks that graphs that were given are ones of the first `ranks` GPUs.
    ///
    /// # Errors
    /// Graphs of another machine.
    pub fn check_graphs(&self, ranks: u32) -> Result<(), Error> {
        self.spec.graph.as_ref().map_or(Ok(()), |path| check_graphs(&self.graphs, path, &self.topology, ranks))
    }

    /// What an answer says first: machine, version, launch mode, profile, and what was assumed.
    pub fn notes(&self, basis: Basis) -> Vec<String> {
        let mut lines = assumptions(&self.communicator(), &self.profile, self.settings(), basis);
        lines.extend(self.why.clone());
        lines.extend(self.told.notes.iter().cloned());
        lines
    }
}

/// Checks that the graphs of a file are ones of the first `ranks` GPUs of a machine.
///
/// # Errors
/// Graphs of another machine.
pub fn check_graphs(graphs: &Given, file: &Path, topology: &Topology, ranks: u32) -> Result<(), Error> {
    graphs.check(topology, ranks).map_err(|what| {
        Error::usage(
            format!("the graph `{}` is not one of `{}`: {what}", file.display(), topology.name),
            "use the graph of a host like these, with the same GPUs and NICs",
        )
    })
}

/// What NCCL is told on one machine.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// As forecasts take it.
    pub settings: Settings,
    /// A tuner that a variable names a table for.
    pub tuner: Option<Tuner>,
    /// What is set, for the first lines of an answer.
    pub notes: Vec<String>,
    /// What of it a forecast leaves out.
    pub warnings: Vec<String>,
    /// The variables of the machine and those given that have an effect, but for those of tuners, by name.
    pub in_effect: Vec<(String, String)>,
}

/// The variables of a text: one `NAME=VALUE`, or the path of a file of such lines.
///
/// # Errors
/// A file that cannot be read, or a line of it that is no variable.
pub fn variables(text: &str) -> Result<Vec<(String, String)>, Error> {
    if let Ok(pair) = settings::pair(text) {
        return Ok(vec![pair]);
    }
    let content = read_text("read the variables (--env takes NAME=VALUE or a file)", text)?;
    settings::pairs_of_file(text, &content)
        .map_err(|e| Error::usage(format!("{text}: {e}"), "the file holds one NAME=VALUE a line, # for comments"))
}

/// Variables that name tables of tuners: files of the host that NCCL runs on.
pub(crate) const TABLES: [&str; 2] = ["NCCL_TUNER_CONFIG_FILE", "COLLCAST_TUNER_TABLE"];

/// Variables that say who chooses, and not what there is to choose from.
const OF_TUNERS: [&str; 2] = ["NCCL_TUNER_", "COLLCAST_TUNER_"];

/// Whether a variable says who chooses.
pub(crate) fn is_of_tuners(name: &str) -> bool {
    OF_TUNERS.iter().any(|family| name.starts_with(family))
}

/// What NCCL is told on a machine: what its plugin sets, the machine's variables, then those given.
///
/// # Errors
/// A version whose rules nobody has read, variables that NCCL would not start with, a tuner's table that cannot be read.
pub fn told(topology: &Topology, nccl: Option<&str>, env: &[(String, String)]) -> Result<Told, Error> {
    let version = match nccl {
        Some(text) => Some(Version::asked(text).map_err(|e| Error::usage(format!("--nccl: {e}"), Version::known()))?),
        None => topology.software.nccl,
    };
    let (rules, note) = version.unwrap_or_default().covered();
    let pairs = plugin::environment(topology, rules, env);
    let (by_plugin, own) = pairs.split_at(pairs.len() - topology.software.env.len() - env.len());
    let environment = Environment::parse(&pairs, rules).map_err(|e| match e {
        SettingsError::SmallBuffer { .. } => Error::usage(e.to_string(), "leave it out for NCCL's default"),
        _ => {
            Error::usage(format!("NCCL {rules} would not start: {e}"), "names are separated by commas, without spaces")
        }
    })?;
    let moves = |name: &str| Transport::VARIABLES.contains(&name);
    let moving = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())).filter(|(name, _)| moves(name));
    let transport = Transport::from_env(topology, rules, moving)
        .map_err(|e| Error::Usage { message: format!("--env: {e}"), hint: None })?;
    let mut told = Told {
        settings: Settings { version: Some(rules), nccl: environment.settings, transport, ..Settings::default() },
        warnings: ports::warnings(topology),
        ..Told::default()
    };
    told.warnings.extend(environment.warnings);
    told.notes.extend(note);
    let plain = |pairs: &[(String, String)]| {
        let quoted = |value: &str| match value.contains(char::is_whitespace) {
            true => format!("'{value}'"),
            false => value.to_owned(),
        };
        // Of a name given twice the last counts.
        let counts = |at: usize| pairs[at + 1..].iter().all(|later| later.0 != pairs[at].0);
        let set = pairs.iter().enumerate().filter(|(at, _)| counts(*at));
        let set: Vec<String> = set.map(|(_, (name, value))| format!("{name}={}", quoted(value))).collect();
        set.join(" ")
    };
    if let Some(plugin) = topology.software.plugin.as_ref().filter(|_| !by_plugin.is_empty()) {
        told.notes.push(format!("{plugin} sets where nothing else does: {}", plain(by_plugin)));
    }
    if !own.is_empty() {
        told.notes.push(format!("{ENVIRONMENT}{}", plain(own)));
    }
    let in_effect =
        |name: &str| !is_of_tuners(name) && (moves(name) || !environment.ignored.iter().any(|ignored| ignored == name));
    // Of a name given twice the last counts.
    let set: BTreeMap<&String, &String> = own.iter().map(|(name, value)| (name, value)).collect();
    let set = set.into_iter().filter(|(name, _)| in_effect(name));
    told.in_effect = set.map(|(name, value)| (name.clone(), value.clone())).collect();
    let ignored: Vec<&str> = environment.ignored.iter().map(String::as_str).filter(|name| !moves(name)).collect();
    if !ignored.is_empty() {
        told.notes.push(format!("without effect on the forecast: {}", ignored.join(" ")));
    }
    told.warnings.extend(environment.not_modelled.iter().map(|what| format!("not_modelled: {what}")));
    let provider = own.iter().rfind(|(name, _)| name == "FI_PROVIDER").map(|(_, value)| value.as_str());
    if let Some(provider) = provider.filter(|provider| plugin::has_efa(topology) && plugin::without_efa(provider)) {
        told.warnings
            .push(format!("FI_PROVIDER={provider}: libfabric has no EFA then, and data between hosts goes over TCP"));
    }
    let hcas = pairs.iter().filter(|(name, _)| name == "NCCL_IB_HCA");
    let unknown = hcas.filter_map(|(_, value)| Some((value, NicSet::of_hcas(topology, value).err()?)));
    told.warnings.extend(unknown.map(|(value, why)| format!("not_modelled: NCCL_IB_HCA={value}: {why}")));
    if let Some(path) = environment.tuner_file.filter(|_| !environment.settings.no_tuner) {
        let text = read_text("read the tuner's table (NCCL_TUNER_CONFIG_FILE)", &path)?;
        let csv = CsvTuner::parse(&text);
        told.warnings.extend(csv.warnings.iter().take(8).map(|warning| format!("{path}: {warning}")));
        told.notes.push(format!("NVIDIA's example tuner plugin is loaded, with {path}"));
        told.tuner = Some(Tuner::Csv(Arc::new(csv)));
    }
    if let Some(paths) = environment.own_tables {
        let here = |name: &str| pairs.iter().rfind(|(known, _)| known == name).map(|(_, value)| value.clone());
        let (tuner, warnings) = own_tuner::load(&paths, environment.next_tuner.as_deref(), topology, rules, &here)?;
        told.warnings.extend(warnings);
        let paths = if paths.is_empty() { "no table" } else { &paths };
        told.notes.push(format!("collcast-tuner is loaded, with {paths}"));
        told.tuner = Some(tuner);
    }
    Ok(told)
}

/// The hosts that have ranks, and their GPUs with ranks: `2 hosts x 8 H100-SXM5-80GB, 1 host x 4 A100-PCIE-40GB`.
fn hosts_by_kind(topology: &Topology) -> String {
    let mut by_host: BTreeMap<HostId, (usize, String)> = BTreeMap::new();
    for rank in (0..topology.ranks()).map(Rank) {
        let model = topology.gpu(topology.gpu_of(rank)).map(|g| g.model.clone()).filter(|m| !m.is_empty());
        let host = by_host.entry(topology.host_of(rank)).or_insert((0, model.unwrap_or_else(|| "GPUs".to_owned())));
        host.0 += 1;
    }
    let mut kinds: Vec<((usize, String), usize)> = Vec::new();
    for kind in by_host.into_values() {
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, hosts)) => *hosts += 1,
            None => kinds.push((kind, 1)),
        }
    }
    let plural = |hosts| if hosts == 1 { "" } else { "s" };
    let kind = |((gpus, model), hosts)| format!("{hosts} host{} x {gpus} {model}", plural(hosts));
    kinds.into_iter().map(kind).collect::<Vec<_>>().join(", ")
}

/// What a profile rests on, without the command that made it, which names every file.
pub(crate) fn made_of(evidence: &str) -> String {
    if let Some(values) = evidence.strip_prefix("none: ") {
        return format!("nothing measured; {values}");
    }
    let fitted = evidence.strip_prefix("collcast calibrate ").and_then(|command| command.split_once(": "));
    fitted.map_or_else(|| evidence.to_owned(), |(_, rows)| format!("fitted to {rows}"))
}

/// What profiles were measured on the GPU of a machine that takes none of them.
fn unmeasured(topology: &Topology) -> String {
    // Reading them takes a tenth of a small sweep; programs that ask often do so once.
    static BUILTIN: LazyLock<Vec<Profile>> =
        LazyLock::new(|| Profile::builtin_names().filter_map(|name| Profile::builtin(name).ok()).collect());
    let of = |&gpu: &VertexId| Some(topology.gpu(gpu)?.family());
    let gpus: BTreeSet<String> = topology.hosts().iter().flat_map(|host| &host.gpus).filter_map(of).collect();
    let measured = BUILTIN.iter().filter_map(|profile| {
        let [fewest, most] = profile.ranks.filter(|_| profile.gpus.iter().any(|gpu| gpus.contains(gpu)))?;
        let hosts = if profile.across_hosts { "several hosts" } else { "one host" };
        Some(format!("{} ({fewest} to {most} GPUs of {hosts})", profile.name))
    });
    match measured.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => "; no profile was measured on this GPU".to_owned(),
        some => format!("; profiles that were measured on this GPU: {some}"),
    }
}

/// Which profile is taken, and what it rests on.
pub(crate) fn profile_line(topology: &Topology, profile: &Profile, basis: Basis) -> String {
    format!(
        "profile {}: {}{}{}",
        profile.name,
        made_of(&profile.evidence),
        if topology.profile.is_none() && profile.name == "prior" { unmeasured(topology) } else { String::new() },
        if basis == Basis::Extrapolated { "; EXTRAPOLATED beyond what it was made with" } else { "" }
    )
}

/// Machine, version, launch mode, profile, and what the machine assumes.
pub fn assumptions(topology: &Topology, profile: &Profile, settings: &Settings, basis: Basis) -> Vec<String> {
    let version = settings.version.unwrap_or_default();
    let nccl = if topology.software.nccl.is_some() { version.to_string() } else { format!("{version} rules") };
    let mut lines = vec![
        format!(
            "topology {}: {}; NCCL {nccl}; launch {}{}",
            topology.name,
            hosts_by_kind(topology),
            settings.launch,
            if settings.cold { ", one cold call" } else { ", calls back to back" },
        ),
        profile_line(topology, profile, basis),
    ];
    lines.extend(topology.assumptions.iter().map(|a| format!("assumed: {a}")));
    lines
}

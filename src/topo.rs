//! Machines: which are built in, what a file is that is none, the channels that NCCL finds on one, and the routes of its
//! data.
//!
//! ```
//! use collcast::sim::ids::Rank;
//! use collcast::topo::{PathsRequest, paths};
//! let outcome = paths(&PathsRequest { site: collcast::SiteSpec::new("h200x4"), from: Rank(0), to: Rank(3) })?;
//! assert_eq!(outcome.routes[0].class.name(), "NVL");
//! # Ok::<(), collcast::Error>(())
//! ```

use std::path::Path;

use collcast_sim::ids::{ChannelId, LinkId, Rank};
use collcast_sim::nccl::PathClass;
use collcast_sim::nccl::graphs::{ChannelPath, Graph, Graphs, Pattern};
use collcast_sim::nccl::search::{self, Given};
use collcast_sim::network::{Hop, Route, Router};
use collcast_sim::predict::Settings;
use collcast_sim::topology::Topology;
use collcast_topologies::xml::{self, Document};
use collcast_topologies::{builtin, graph};
use serde::{Serialize, Serializer};

use crate::error::Error;
use crate::files::read_text;
use crate::site::{SiteSpec, Told, check_graphs, told};

/// The machines that are known by name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Builtins {
    /// In the order in which they are listed.
    pub machines: Vec<Builtin>,
}

/// A machine that is known by name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Builtin {
    /// The name.
    pub name: &'static str,
    /// One line about it.
    pub description: String,
}

/// Lists the machines that are known by name.
pub fn builtins() -> Builtins {
    let one = |&name: &&'static str| Builtin { name, description: builtin::describe(name).unwrap_or_default() };
    Builtins { machines: builtin::names().iter().map(one).collect() }
}

/// An XML of NCCL's that is no machine.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NoMachine {
    /// A PCIe tree as clouds ship it, which a machine has to be merged with.
    Template {
        /// The file.
        file: String,
        /// CPU sockets or NUMA nodes.
        cpus: usize,
        /// PCIe switches.
        switches: usize,
        /// Places of GPUs.
        gpus: usize,
        /// Places of NICs.
        nics: usize,
        /// Places of devices of no known class.
        unknown: usize,
        /// What the file does not say.
        assumptions: Vec<String>,
    },
    /// The channels that NCCL chose on some machine.
    Graphs(Vec<xml::Graph>),
}

/// What an NCCL XML is that is no machine; none for machines, and for what cannot be read.
pub fn no_machine(name: &str) -> Option<NoMachine> {
    let path = Path::new(name);
    if !path.extension().is_some_and(|e| e.eq_ignore_ascii_case("xml")) {
        return None;
    }
    // Whatever cannot be read here is refused with its reason where machines are loaded.
    let text = read_text("read", path).ok()?;
    match xml::read(&text, name).ok()? {
        Document::Machine(_) => None,
        Document::Template(template) => Some(NoMachine::Template {
            file: name.to_owned(),
            cpus: template.cpus.len(),
            switches: template.switches.len(),
            gpus: template.gpus.len(),
            nics: template.nics.len(),
            unknown: template.unknown.len(),
            assumptions: template.assumptions,
        }),
        Document::Graph(graph) => Some(NoMachine::Graphs(graph.graphs)),
    }
}

/// Whose channels are to be found.
#[derive(Clone, Debug, Default)]
pub struct GraphsRequest {
    /// The machine, what NCCL is told there, and graphs in place of its search.
    pub site: SiteSpec,
    /// Ranks, from the first GPU; all GPUs by default.
    pub ranks: Option<u32>,
}

/// The channels that NCCL finds.
#[derive(Clone, Debug, Serialize)]
pub struct GraphsOutcome {
    /// Ranks of the communicator.
    pub ranks: u32,
    /// Hosts; those of one NVLink domain count as one.
    pub hosts: u32,
    /// Channels for ring, tree and what takes their graphs.
    pub channels: u32,
    /// Channels for NVLS and NVLS tree.
    pub nvls_channels: u32,
    /// Channels for send and receive, and those to one peer.
    pub p2p_channels: (u32, u32),
    /// The graphs that there are.
    pub rows: Vec<GraphRow>,
    /// What was assumed.
    pub notes: Vec<String>,
    /// What to know before using them.
    pub warnings: Vec<String>,
    /// The graphs in full.
    #[serde(skip)]
    pub graphs: Graphs,
}

/// One graph of a communicator.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct GraphRow {
    /// What it is for.
    pub graph: &'static str,
    /// The shape that was found.
    #[serde(serialize_with = "pattern")]
    pub pattern: Pattern,
    /// Its channels.
    pub channels: u32,
    /// Speed of one channel inside hosts.
    pub speed_intra_gbps: f64,
    /// Speed of one channel between hosts.
    pub speed_inter_gbps: f64,
    /// Worst class of path between GPUs.
    #[serde(serialize_with = "class")]
    pub type_intra: PathClass,
    /// Worst class of path between GPU and NIC.
    #[serde(serialize_with = "class")]
    pub type_inter: PathClass,
    /// NICs and GPUs of the first host in the order in which the first channel visits them.
    pub order: Vec<String>,
}

fn class<S: Serializer>(class: &PathClass, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(class.name())
}

fn pattern<S: Serializer>(pattern: &Pattern, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{pattern:?}"))
}

/// Finds the channels of a communicator as NCCL does.
///
/// # Errors
/// A machine, a file of graphs or a variable that cannot be read; more ranks than GPUs, or none.
pub fn graphs(request: &GraphsRequest) -> Result<GraphsOutcome, Error> {
    let site = &request.site;
    let topology = site.topology()?;
    let ranks = request.ranks.unwrap_or_else(|| topology.ranks());
    if !(1..=topology.ranks()).contains(&ranks) {
        return Err(Error::usage(
            format!("{ranks} ranks, but `{}` has {} GPUs", topology.name, topology.ranks()),
            format!("--ranks takes 1 to {}", topology.ranks()),
        ));
    }
    let given = match &site.graph {
        Some(file) => {
            let given = graph::read_path(file)?;
            check_graphs(&given, file, &topology, ranks)?;
            given
        }
        None => Given::default(),
    };
    let told = told(&topology, site.nccl.as_deref(), &site.env)?;
    let Settings { nccl, version, transport, .. } = &told.settings;
    let options = search::Options::new(&topology, (nccl, version.unwrap_or_default()), *transport, given);
    let graphs = search::graphs(&topology, ranks, &options);
    let all = [
        ("ring", Some(&graphs.ring)),
        ("tree", Some(&graphs.tree)),
        ("nvls", graphs.nvls.as_ref()),
        ("collnet_chain", graphs.collnet_chain.as_ref()),
        ("collnet_direct", graphs.collnet_direct.as_ref()),
    ];
    let row = |(name, graph): (&'static str, Option<&Graph>)| {
        let graph = graph?;
        let first = graph.paths.first().and_then(|channels| channels.first());
        Some(GraphRow {
            graph: name,
            pattern: graph.pattern,
            channels: graph.channels,
            speed_intra_gbps: graph.speed_intra,
            speed_inter_gbps: graph.speed_inter,
            type_intra: graph.type_intra,
            type_inter: graph.type_inter,
            order: first.map_or_else(Vec::new, order),
        })
    };
    Ok(GraphsOutcome {
        ranks,
        hosts: graphs.hosts,
        channels: graphs.channels,
        nvls_channels: graphs.nvls_channels,
        p2p_channels: graphs.p2p_channels,
        rows: all.into_iter().filter_map(row).collect(),
        notes: notes(&topology, &told),
        warnings: told.warnings,
        graphs,
    })
}

impl GraphsOutcome {
    /// The graphs of the first host, as `NCCL_GRAPH_DUMP_FILE` writes them.
    pub fn xml(&self) -> String {
        graph::xml(&self.graphs, 0)
    }
}

/// What a channel visits, by name.
fn order(path: &ChannelPath) -> Vec<String> {
    let gpus = path.gpus.iter().map(|gpu| format!("gpu{gpu}"));
    let (enter, leave) = path.nics.unzip();
    let nic = |nic: Option<u32>| nic.map(|nic| format!("nic{nic}"));
    nic(enter).into_iter().chain(gpus).chain(nic(leave)).collect()
}

/// What an answer about a machine says first.
fn notes(topology: &Topology, told: &Told) -> Vec<String> {
    let assumed = topology.assumptions.iter().map(|a| format!("assumed: {a}"));
    assumed.chain(told.notes.iter().cloned()).collect()
}

/// Between which GPUs routes are looked for.
#[derive(Clone, Debug)]
pub struct PathsRequest {
    /// The machine, and what NCCL is told there.
    pub site: SiteSpec,
    /// Who sends.
    pub from: Rank,
    /// Who receives.
    pub to: Rank,
}

/// The routes between two GPUs.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PathsOutcome {
    /// Who sends.
    pub from: Rank,
    /// Who receives.
    pub to: Rank,
    /// Distinct routes.
    pub routes: Vec<PathRow>,
    /// What was assumed.
    pub notes: Vec<String>,
    /// What to know before using them.
    pub warnings: Vec<String>,
}

/// A route, with the channels that take it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PathRow {
    /// The channels.
    pub channels: Vec<ChannelId>,
    /// Class of the worst part inside a host.
    #[serde(serialize_with = "class")]
    pub class: PathClass,
    /// Rate of its narrowest link.
    pub rate_gbps: f64,
    /// Devices that it visits, by name.
    pub devices: Vec<String>,
}

/// Channels whose routes are looked at.
pub const CHANNELS_ROUTED: u32 = 8;

/// Finds the routes of the first channels between two GPUs.
///
/// # Errors
/// A machine or variable that cannot be read; ranks that are not there, are the same or are not joined.
pub fn paths(request: &PathsRequest) -> Result<PathsOutcome, Error> {
    let PathsRequest { site, from, to } = request;
    let topology = site.topology()?;
    if let Some(rank) = [from, to].into_iter().find(|rank| rank.0 >= topology.ranks()) {
        return Err(Error::usage(
            format!("rank {rank} is not one of the {} GPUs of `{}`", topology.ranks(), topology.name),
            format!("ranks are 0 to {}", topology.ranks() - 1),
        ));
    }
    let told = told(&topology, site.nccl.as_deref(), &site.env)?;
    let mut router = Router::with(&topology, told.settings.transport);
    let mut known: Vec<(Route, Vec<ChannelId>)> = Vec::new();
    for channel in (0..CHANNELS_ROUTED).map(ChannelId) {
        let Some(route) = router.route(*from, *to, channel) else { continue };
        match known.iter_mut().find(|(other, _)| *other == route) {
            Some((_, channels)) => channels.push(channel),
            None => known.push((route, vec![channel])),
        }
    }
    if from == to || known.is_empty() {
        return Err(Error::usage(
            format!("there is nothing to route from rank {from} to rank {to}"),
            "give two ranks that are joined by links",
        ));
    }
    Ok(PathsOutcome {
        from: *from,
        to: *to,
        routes: known.into_iter().map(|(route, channels)| path_row(&topology, &route, channels)).collect(),
        notes: notes(&topology, &told),
        warnings: told.warnings,
    })
}

fn path_row(topology: &Topology, route: &Route, channels: Vec<ChannelId>) -> PathRow {
    // A block that reads through from host memory asks for it the way back, which carries no data.
    let asked = |link: LinkId, share: u64| {
        let (from, to) = topology.ends(link);
        route
            .load
            .iter()
            .any(|&(hop, other)| matches!(hop, Hop::Link(data) if other > share && topology.ends(data) == (to, from)))
    };
    let links: Vec<LinkId> = route.links().filter(|&(link, share)| !asked(link, share)).map(|(link, _)| link).collect();
    let mut devices: Vec<String> = Vec::new();
    for &link in &links {
        let (from, to) = topology.ends(link);
        if devices.last() != Some(&topology.vertex(from).name) {
            devices.push(topology.vertex(from).name.clone());
        }
        devices.push(topology.vertex(to).name.clone());
    }
    let rates = links.iter().map(|&link| topology.link(link).rate.gb_per_s());
    // NCCL goes through the CPU where a NIC does not reach the GPU (`src/graph/paths.cc`).
    let class = if route.staged.contains(&true) { route.class.max(PathClass::Phb) } else { route.class };
    PathRow { channels, class, rate_gbps: rates.fold(f64::INFINITY, f64::min), devices }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each answer about a machine is data, with the words that NCCL has for shapes and classes.
    #[test]
    fn outcomes_are_data() {
        let list = serde_json::to_value(builtins()).unwrap();
        assert!(list["machines"].as_array().unwrap().iter().any(|m| m["name"] == "dgx-h100"), "{list}");
        let site = SiteSpec::new("dgx-h100").nodes(2);
        let found = graphs(&GraphsRequest { site: site.clone(), ranks: None }).unwrap();
        let found = serde_json::to_value(&found).unwrap();
        assert_eq!((&found["ranks"], &found["rows"][0]["pattern"]), (&16.into(), &"Ring".into()));
        assert_eq!(found["rows"][0]["order"].as_array().unwrap().len(), 10, "8 GPUs between 2 NICs: {found}");
        let routes = paths(&PathsRequest { site, from: Rank(3), to: Rank(12) }).unwrap();
        let routes = serde_json::to_value(&routes).unwrap();
        assert!(routes["routes"][0]["rate_gbps"].as_f64() > Some(0.0) && routes["routes"][0]["class"].is_string());
        let file = no_machine("tests/data/h200x4/nccl_graph_4gpu.xml").unwrap();
        let file = serde_json::to_value(&file).unwrap();
        assert!(!file["graphs"].as_array().unwrap().is_empty(), "{file}");
        assert_eq!(no_machine("dgx-h100"), None);
    }
}

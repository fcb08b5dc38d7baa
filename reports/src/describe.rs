//! A machine on one screen: what `topo show` prints.
//!
//! Rates are nominal and of one direction. The bisection is a true minimum cut of the link
//! graph, not a product of port counts, so that a dead link or a thin spine shows.

use std::collections::{BTreeMap, BTreeSet};

use collcast_sim::ids::VertexId;
use collcast_sim::topology::{Link, LinkKind, Topology, VertexKind};
use collcast_sim::units::Bandwidth;
use petgraph::algo::dinics;
use petgraph::graph::{DiGraph, NodeIndex};
use serde_json::{Map, Value, json};

use crate::machine::{bundles_from, gpus_text, is_fabric_switch, level_text, nics_text, rate_text};
use crate::model::{Column, Report, Status, Table, Verdict};
use crate::ports;

/// The facts of a machine, and everything that was assumed about it.
///
/// The table `facts` is for people; JSON has the same values as numbers under `machine`.
pub fn describe(topology: &Topology) -> Report {
    let mut report = Report::new("topology", env!("CARGO_PKG_VERSION"));
    report.assumptions.clone_from(&topology.assumptions);
    report.warnings = ports::warnings(topology);
    let hosts: Vec<usize> = hosts_with_gpus(topology);
    let mut facts = Facts::default();
    let mut machine = Map::new();

    facts.add("machine", &topology.name);
    facts.add("hosts", hosts.len().to_string());
    facts.add("GPUs", topology.ranks().to_string());
    machine.insert("name".to_owned(), json!(topology.name));
    machine.insert("hosts".to_owned(), json!(hosts.len()));
    machine.insert("gpus".to_owned(), json!(topology.ranks()));

    let kinds = host_kinds(topology, &hosts);
    for kind in &kinds {
        if kinds.len() > 1 {
            facts.add("hosts of a kind", kind.names(topology));
        }
        for (property, value) in &kind.facts {
            facts.add(property, value);
        }
    }
    machine.insert("host_kinds".to_owned(), kinds.iter().map(|kind| kind.json(topology)).collect());
    let cut = bisection(topology);
    add_fabric(topology, cut, &mut facts, &mut machine);
    add_ports(topology, &mut facts, &mut machine);

    let software = &topology.software;
    let nccl = software.nccl.map(|version| version.to_string());
    facts.add("NCCL", nccl.as_deref().unwrap_or("not said"));
    if let Some(plugin) = &software.plugin {
        facts.add("plugin", plugin);
    }
    facts.add("profile", topology.profile.as_deref().unwrap_or("none named"));
    machine.insert("nccl".to_owned(), json!(nccl));
    machine.insert("plugin".to_owned(), json!(software.plugin));
    machine.insert("profile".to_owned(), json!(topology.profile));

    report.verdict = Some(verdict(topology, &hosts, cut));
    report.tables.push(facts.table);
    report.extra.insert("machine".to_owned(), machine.into());
    report
}

/// Nominal rate between two halves of a machine, in bytes per second of one direction: the
/// minimum cut between the GPUs of the first and of the second half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bisection {
    /// Rate over the NICs and the switches of the network, between halves of the hosts;
    /// none for a single host.
    pub network: Option<u64>,
    /// Rate over NVLink between the halves; none where it does not join them.
    pub nvlink: Option<u64>,
    /// Rate over all links inside a single host, for one that NVLink does not join.
    pub other: Option<u64>,
    /// Sum of the port rates of the first half of the hosts, without management.
    pub nic_rate: u64,
}

impl Bisection {
    /// Port rate of half the hosts over what the fabric carries between the halves: 1 for a
    /// full-bisection fabric; none where there is no network.
    pub fn oversubscription(&self) -> Option<f64> {
        match self.network {
            Some(rate) if rate > 0 && self.nic_rate > 0 => Some(self.nic_rate as f64 / rate as f64),
            _ => None,
        }
    }
}

/// The [`Bisection`] of a machine. Of an odd number of hosts (or GPUs, on a single host) the
/// first half is the smaller.
pub fn bisection(topology: &Topology) -> Bisection {
    let hosts = hosts_with_gpus(topology);
    let mut side = BTreeMap::new();
    let mut rates = [0_u64; 2];
    if hosts.len() > 1 {
        // A host is one vertex of the cut: what limits inside it is not the fabric's doing.
        let half: BTreeMap<usize, usize> =
            hosts.iter().enumerate().map(|(place, &host)| (host, usize::from(place >= hosts.len() / 2))).collect();
        for (id, vertex) in topology.vertices() {
            let Some(&half) = vertex.host.and_then(|h| half.get(&h.index())) else {
                continue;
            };
            side.insert(id, half);
            match topology.nic(id) {
                Some(nic) if !nic.management => rates[half] = rates[half].saturating_add(nic.rate.get()),
                _ => {}
            }
        }
    } else {
        let gpus: Vec<VertexId> = hosts.iter().flat_map(|&h| topology.hosts()[h].gpus.iter().copied()).collect();
        for (place, &gpu) in gpus.iter().enumerate() {
            side.insert(gpu, usize::from(place >= gpus.len() / 2));
        }
    }
    let positive = |rate: u64| (rate > 0).then_some(rate);
    let nvlink = positive(min_cut(topology, &side, |l| l.kind == LinkKind::Nvlink));
    let single = hosts.len() < 2;
    Bisection {
        network: (!single).then(|| min_cut(topology, &side, |l| l.kind.is_network())),
        nvlink,
        other: if single && nvlink.is_none() { positive(min_cut(topology, &side, |_| true)) } else { None },
        nic_rate: rates[0].min(rates[1]),
    }
}

fn hosts_with_gpus(topology: &Topology) -> Vec<usize> {
    (0..topology.hosts().len()).filter(|&h| !topology.hosts()[h].gpus.is_empty()).collect()
}

struct Facts {
    table: Table,
}

impl Default for Facts {
    fn default() -> Self {
        Self { table: Table::new("facts", "", [Column::text("property", "property"), Column::text("value", "value")]) }
    }
}

impl Facts {
    fn add(&mut self, property: &str, value: impl Into<String>) {
        self.table.push([property.into(), value.into().into()]);
    }
}

/// Hosts that look the same.
struct HostKind {
    hosts: Vec<usize>,
    facts: Vec<(&'static str, String)>,
}

impl HostKind {
    /// First and last name, which is how people speak of a range.
    fn names(&self, topology: &Topology) -> String {
        let name = |h: Option<&usize>| h.map_or("", |&h| topology.hosts()[h].name.as_str());
        match self.hosts.len() {
            1 => name(self.hosts.first()).to_owned(),
            n => format!("{n}: {} .. {}", name(self.hosts.first()), name(self.hosts.last())),
        }
    }

    fn json(&self, topology: &Topology) -> Value {
        let host = &topology.hosts()[self.hosts[0]];
        let gpu = host.gpus.first().copied();
        let bundles = gpu.map(|g| bundles_from(topology, g)).unwrap_or_default();
        let gbps = |rate: u64| rate as f64 / 1e9;
        let per_gpu = |kind: LinkKind| bundles.get(&kind).map(|b| json!({"links": b.width, "rate_gbps": gbps(b.rate)}));
        let nics: Vec<Value> = host
            .nics
            .iter()
            .filter_map(|&n| topology.nic(n))
            .map(|nic| {
                json!({
                    "name": nic.name,
                    "kind": nic.kind.name(),
                    "rate_gbps": nic.rate.gb_per_s(),
                    "gpudirect": nic.gpudirect,
                    "rail": nic.rail,
                })
            })
            .collect();
        let gpu = gpu.and_then(|g| topology.gpu(g));
        json!({
            "count": self.hosts.len(),
            "first": host.name,
            "gpus": host.gpus.len(),
            "gpu_model": gpu.map(|g| &g.model).filter(|m| !m.is_empty()),
            "compute_capability": gpu.map(|g| g.compute_capability).filter(|&c| c > 0),
            "memory_rate_gbps": gpu.and_then(|g| g.memory_rate).map(Bandwidth::gb_per_s),
            "nvlink_per_gpu": per_gpu(LinkKind::Nvlink),
            "c2c_per_gpu": per_gpu(LinkKind::C2c),
            "pcie_per_gpu": per_gpu(LinkKind::Pcie),
            "nics": nics,
        })
    }
}

/// Groups hosts by what would be said of them, in the order of their first member.
fn host_kinds(topology: &Topology, hosts: &[usize]) -> Vec<HostKind> {
    let mut kinds: Vec<HostKind> = Vec::new();
    let mut known = BTreeMap::new();
    for &host in hosts {
        let facts = host_facts(topology, host);
        let place = *known.entry(facts.clone()).or_insert(kinds.len());
        match kinds.get_mut(place) {
            Some(kind) => kind.hosts.push(host),
            None => kinds.push(HostKind { hosts: vec![host], facts }),
        }
    }
    kinds
}

fn host_facts(topology: &Topology, host: usize) -> Vec<(&'static str, String)> {
    let host = &topology.hosts()[host];
    let mut facts = vec![("GPUs per host", gpus_text(topology, &host.gpus))];
    let each = |text: &dyn Fn(VertexId) -> Option<String>| {
        let values: BTreeSet<Option<String>> = host.gpus.iter().map(|&g| text(g)).collect();
        let values: Vec<String> = values.into_iter().map(|v| v.unwrap_or_else(|| "none".to_owned())).collect();
        (values != ["none"]).then(|| values.join(" or "))
    };
    let capability = each(&|g| {
        let capability = topology.gpu(g)?.compute_capability;
        (capability > 0).then(|| format!("{}.{}", capability / 10, capability % 10))
    });
    let memory = each(&|g| Some(rate_text(topology.gpu(g)?.memory_rate?.get())));
    let link = |kind: LinkKind| {
        each(&|g| {
            let bundle = *bundles_from(topology, g).get(&kind)?;
            Some(if kind == LinkKind::Pcie || bundle.width < 2 {
                bundle.label()
            } else {
                format!("{} = {}", bundle.label(), rate_text(bundle.rate))
            })
        })
    };
    for (property, value) in [
        ("compute capability", capability),
        ("memory rate", memory),
        ("NVLink per GPU", link(LinkKind::Nvlink)),
        ("C2C per GPU", link(LinkKind::C2c)),
        ("PCIe per GPU", link(LinkKind::Pcie)),
    ] {
        if let Some(value) = value {
            facts.push((property, value));
        }
    }
    let nics = nics_text(topology, &host.nics);
    facts.push(("NICs per host", nics.unwrap_or_else(|| "none".to_owned())));
    let nics: Vec<_> = host.nics.iter().filter_map(|&n| topology.nic(n)).collect();
    if !nics.is_empty() {
        let direct = nics.iter().filter(|n| n.gpudirect).count();
        let over_tcp = direct > 0 && nics.iter().all(|n| n.kind == LinkKind::Ethernet);
        facts.push((
            "GPUDirect RDMA",
            match direct {
                0 => "no: through host memory".to_owned(),
                _ if over_tcp => {
                    let plugin = topology.software.plugin.as_deref().unwrap_or("a plugin");
                    format!("none: TCP, which {plugin} places in GPU memory")
                }
                n if n == nics.len() => match nics.iter().filter_map(|n| n.gpudirect_rate).min() {
                    Some(rate) => format!("yes, at most {rate} a NIC each way"),
                    None => "yes".to_owned(),
                },
                n => format!("{n} of {} NICs", nics.len()),
            },
        ));
        let rails: BTreeSet<u32> = nics.iter().filter_map(|n| n.rail).collect();
        if !rails.is_empty() {
            facts.push(("rails", rails.len().to_string()));
        }
    }
    facts
}

fn add_fabric(topology: &Topology, cut: Bisection, facts: &mut Facts, machine: &mut Map<String, Value>) {
    let mut levels: BTreeMap<u32, usize> = BTreeMap::new();
    let mut shared_nvswitches = 0;
    // What joins management ports alone carries no collective's data.
    let manages = |switch: VertexId| {
        let mut ports = topology.links_from(switch).map(|(_, port, _)| topology.nic(port)).peekable();
        ports.peek().is_some() && ports.all(|nic| nic.is_some_and(|nic| nic.management))
    };
    for (id, vertex) in topology.vertices() {
        match vertex.kind {
            VertexKind::NetSwitch { .. } if manages(id) => {}
            VertexKind::NetSwitch { level } => *levels.entry(level).or_default() += 1,
            ref kind if is_fabric_switch(kind) && vertex.host.is_none() => shared_nvswitches += 1,
            _ => {}
        }
    }
    if !levels.is_empty() {
        let text: Vec<String> = levels.iter().map(|(&level, count)| format!("{count} {}", level_text(level))).collect();
        facts.add("network switches", text.join(", "));
    }
    if shared_nvswitches > 0 {
        facts.add("NVSwitches between hosts", shared_nvswitches.to_string());
    }

    let halves = if cut.network.is_some() { "hosts" } else { "GPUs" };
    for (rate, over) in [(cut.network, "the network"), (cut.nvlink, "NVLink"), (cut.other, "all links")] {
        if let Some(rate) = rate {
            facts.add("bisection", format!("{} over {over}, between halves of the {halves}", rate_text(rate)));
        }
    }
    let oversubscription = cut.oversubscription();
    if let Some(ratio) = oversubscription {
        facts.add(
            "over-subscription",
            match () {
                () if ratio > 1.0 => format!("{ratio:.2} : 1"),
                () if is_assumed(topology) => "unknown; taken as none".to_owned(),
                () => format!("none ({ratio:.2})"),
            },
        );
    }
    let gbps = |rate: Option<u64>| rate.map(|r| r as f64 / 1e9);
    machine.insert("bisection_gbps".to_owned(), json!(gbps(cut.network.or(cut.nvlink).or(cut.other))));
    machine.insert("network_bisection_gbps".to_owned(), json!(gbps(cut.network)));
    machine.insert("nvlink_bisection_gbps".to_owned(), json!(gbps(cut.nvlink)));
    machine.insert("oversubscription".to_owned(), json!(oversubscription));
}

/// Ports that are dead, and the slowest.
fn add_ports(topology: &Topology, facts: &mut Facts, machine: &mut Map<String, Value>) {
    let down = ports::down(topology);
    if !down.is_empty() {
        facts.add("ports down", ports::names(topology, &down));
    }
    let slow = ports::slow(topology);
    let slowest = slow.iter().map(|slow| slow.rate).min();
    if let Some(rate) = slowest {
        let of: Vec<_> = slow.iter().filter(|slow| slow.rate == rate).collect();
        let usual = of.iter().map(|slow| slow.usual.get()).max().unwrap_or(0);
        let names = ports::names(topology, &of.iter().map(|slow| slow.port).collect::<Vec<_>>());
        facts.add("slowest port", format!("{names}: {}, peers {}", rate_text(rate.get()), rate_text(usual)));
    }
    machine.insert("ports_down".to_owned(), json!(down.len()));
    machine.insert("slowest_port_gbps".to_owned(), json!(slowest.map(Bandwidth::gb_per_s)));
}

/// Whether nobody knows what the fabric carries.
fn is_assumed(topology: &Topology) -> bool {
    topology.assumptions.iter().any(|assumption| assumption.contains("over-subscription is unknown"))
}

fn verdict(topology: &Topology, hosts: &[usize], cut: Bisection) -> Verdict {
    let first = hosts.first().map(|&h| gpus_text(topology, &topology.hosts()[h].gpus)).unwrap_or_default();
    let size = if hosts.len() == 1 {
        format!("1 host with {first}")
    } else {
        format!("{} hosts with {} GPUs", hosts.len(), topology.ranks())
    };
    let (status, fabric) = match (cut.network, cut.oversubscription()) {
        (Some(0), _) => (Status::Warning, ", whose halves no network joins".to_owned()),
        (_, Some(ratio)) if ratio > 1.005 => (Status::Warning, format!(", on a fabric over-subscribed {ratio:.2} : 1")),
        (_, Some(_)) if is_assumed(topology) => (Status::Ok, ", on a fabric taken to be of full bisection".to_owned()),
        (_, Some(_)) => (Status::Ok, ", on a fabric of full bisection".to_owned()),
        _ => (Status::Ok, String::new()),
    };
    let assumed = topology.assumptions.len();
    Verdict {
        status,
        sentence: format!("{size}{fabric}"),
        confidence: match assumed {
            0 => "high".to_owned(),
            1 => "1 assumption".to_owned(),
            n => format!("{n} assumptions"),
        },
        basis: "nominal rates".to_owned(),
        next: None,
    }
}

/// The least that links which `keep` takes carry from side 0 to side 1, in bytes per second: a maximum flow.
///
/// - `side`: the vertices of each side, each side contracted to one.
fn min_cut(topology: &Topology, side: &BTreeMap<VertexId, usize>, keep: impl Fn(Link) -> bool) -> u64 {
    let mut nodes: BTreeMap<VertexId, u32> = BTreeMap::new();
    let mut capacity: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    let management = |id: VertexId| topology.nic(id).is_some_and(|n| n.management);
    for (_, from, to, link) in topology.links() {
        if !keep(link) || management(from) || management(to) {
            continue;
        }
        let mut node = |id: VertexId| {
            side.get(&id).map(|&side| side as u32).unwrap_or_else(|| {
                let next = nodes.len() as u32 + 2;
                *nodes.entry(id).or_insert(next)
            })
        };
        let (from, to) = (node(from), node(to));
        if from != to {
            let sum = capacity.entry((from, to)).or_default();
            *sum = sum.saturating_add(link.rate.get());
        }
    }
    let edges = capacity.into_iter().map(|((from, to), rate)| (from, to, rate));
    let mut network = DiGraph::<(), u64>::from_edges(edges);
    while network.node_count() < 2 {
        network.add_node(());
    }
    dinics(&network, NodeIndex::new(0), NodeIndex::new(1)).0
}

//! A whole cluster as checked values: groups of equal hosts, the fabric, the exceptions.
//!
//! Readers make a [`ClusterSpec`]; `--nodes` and `--gpus` change it; [`ClusterSpec::build`]
//! draws the graph that everything else works on.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use collcast_sim::ids::{HostId, Rank, VertexId};
use collcast_sim::nccl::nvlink::Nvlinks;
use collcast_sim::topology::{Link, LinkKind, Software, Topology, TopologyBuilder, VertexKind};

use crate::error::{Diagnostic, Source, TopologiesError};
use crate::exception::{Deviation, Exception, Owner};
use crate::fabric::{FabricKind, FabricSpec, Joined, MAX_LINKS, Met, Routing, Uplinks};
use crate::host::HostSpec;
pub use crate::hostlist::MAX_GPUS;
use crate::hostlist::compress;

/// Hosts that are alike.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostGroup {
    /// Names, in rank order; never empty.
    pub names: Vec<String>,
    /// What each of them is.
    pub host: HostSpec,
    /// Whether they begin an NVLink domain of their own, though the one before has seats left.
    pub new_domain: bool,
}

/// A cluster.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClusterSpec {
    /// Name.
    pub name: String,
    /// One line for lists.
    pub description: String,
    /// The file it was read from, for messages.
    pub file: String,
    /// The text of that file, where it has exceptions.
    pub text: String,
    /// Profile that fits the hardware, where the source names one.
    pub profile: Option<String>,
    /// Software that decides what NCCL does.
    pub software: Software,
    /// Hosts, in rank order.
    pub groups: Vec<HostGroup>,
    /// The network; not needed for one host.
    pub fabric: Option<FabricSpec>,
    /// What is not as drawn.
    pub exceptions: Vec<Exception>,
    /// What was assumed, beside the assumptions of the hosts.
    pub assumptions: Vec<String>,
    /// Whether hosts of the file were left out, and switches with them that exceptions name.
    pub cut: bool,
}

impl ClusterSpec {
    /// One host as a cluster.
    pub fn single(name: &str, file: &str, host: HostSpec) -> Self {
        Self {
            name: name.to_owned(),
            file: file.to_owned(),
            groups: vec![HostGroup { names: vec!["host0".to_owned()], host, new_domain: false }],
            ..Self::default()
        }
    }

    /// Number of hosts.
    pub fn host_count(&self) -> usize {
        self.groups.iter().map(|g| g.names.len()).sum()
    }

    /// Number of GPUs.
    pub fn gpu_count(&self) -> usize {
        self.groups.iter().map(|g| g.names.len().saturating_mul(g.host.gpus.len())).sum()
    }

    fn whole(&self, message: String, hint: &str) -> Box<Diagnostic> {
        Box::new(Diagnostic { message, file: self.file.clone(), at: None, label: String::new(), hint: hint.to_owned() })
    }

    /// The same cluster with another number of hosts: the first ones, or more of the last kind.
    ///
    /// # Errors
    /// [`TopologiesError::Value`] for zero, [`TopologiesError::TooLarge`] beyond [`MAX_GPUS`],
    /// [`TopologiesError::Contradiction`] when hosts of mixed kinds would have to be invented.
    pub fn with_nodes(mut self, nodes: u32) -> Result<Self, TopologiesError> {
        let wanted = nodes as usize;
        let have = self.host_count();
        if wanted == 0 {
            return Err(TopologiesError::Value(
                self.whole("0 nodes: a cluster has at least one host".to_owned(), "use --nodes 1 or more"),
            ));
        }
        if wanted == have {
            return Ok(self);
        }
        if wanted > have {
            let group_count = self.groups.len();
            let [group] = self.groups.as_mut_slice() else {
                return Err(TopologiesError::Contradiction(self.whole(
                    format!(
                        "the file has {have} hosts of {group_count} kinds; {wanted} hosts would \
                         have to be invented"
                    ),
                    "use at most as many nodes as the file has, or add them to the file",
                )));
            };
            if wanted.saturating_mul(group.host.gpus.len().max(1)) > MAX_GPUS {
                let gpus = wanted.saturating_mul(group.host.gpus.len().max(1));
                return Err(self.too_many_gpus(gpus));
            }
            let taken: HashSet<String> = group.names.iter().cloned().collect();
            let mut next = group.names.len();
            while group.names.len() < wanted {
                let name = format!("host{next}");
                if !taken.contains(&name) {
                    group.names.push(name);
                }
                next += 1;
            }
        } else {
            let mut left = wanted;
            for group in &mut self.groups {
                group.names.truncate(left);
                left -= group.names.len();
            }
            self.groups.retain(|g| !g.names.is_empty());
            let names: HashSet<&str> = self.groups.iter().flat_map(|g| g.names.iter().map(String::as_str)).collect();
            self.exceptions.retain(|e| e.owner == Owner::Switch || names.contains(e.name.as_str()));
            self.cut = true;
        }
        if let Some(fabric) = &mut self.fabric
            && fabric.kind != FabricKind::DragonflyPlus
            && fabric.spine.take().is_some()
        {
            self.assumptions.push(format!(
                "fabric: the file counts spines for {have} hosts; for {wanted} they are drawn as \
                 needed, with the same uplinks a leaf"
            ));
        }
        Ok(self)
    }

    /// The same cluster with the first `gpus` GPUs of each host.
    ///
    /// # Errors
    /// [`TopologiesError::Value`] for zero, or for more than a host has.
    pub fn with_gpus(mut self, gpus: u32) -> Result<Self, TopologiesError> {
        let wanted = gpus as usize;
        let fewest = self.groups.iter().map(|g| g.host.gpus.len()).min();
        if wanted == 0 || fewest.is_some_and(|f| wanted > f) {
            return Err(TopologiesError::Value(self.whole(
                format!("{wanted} GPUs per host asked for, but a host of `{}` has {}", self.name, fewest.unwrap_or(0)),
                "--gpus keeps the first GPUs of each host, so it lies between 1 and what a host \
                 has",
            )));
        }
        for group in &mut self.groups {
            group.host.keep_gpus(wanted);
        }
        Ok(self)
    }

    fn too_many_gpus(&self, gpus: usize) -> TopologiesError {
        TopologiesError::TooLarge(
            self.whole(format!("the cluster has {gpus} GPUs; at most {MAX_GPUS} are supported"), "use fewer hosts"),
        )
    }

    fn check_size(&self) -> Result<(), TopologiesError> {
        let gpus = self.gpu_count();
        if gpus > MAX_GPUS {
            return Err(self.too_many_gpus(gpus));
        }
        let sum = |of: fn(&HostSpec) -> usize| -> usize {
            self.groups.iter().map(|g| g.names.len().saturating_mul(of(&g.host))).fold(0, usize::saturating_add)
        };
        let (vertices, links) = (sum(HostSpec::vertex_count), sum(HostSpec::link_count));
        let limit = collcast_sim::topology::MAX_VERTICES;
        if vertices > limit || links > MAX_LINKS {
            return Err(TopologiesError::TooLarge(self.whole(
                format!(
                    "the cluster has {vertices} vertices and {links} links; at most {limit} and \
                     {MAX_LINKS} are supported"
                ),
                "use fewer hosts, or hosts with fewer NICs and switches",
            )));
        }
        Ok(())
    }

    /// With a NIC of a host, both counted from 0, that is down.
    ///
    /// # Errors
    /// A host that is not there; [`build`](Self::build) refuses a NIC that is not.
    pub fn with_down(mut self, host: u32, nic: u32) -> Result<Self, TopologiesError> {
        let hosts = self.host_count();
        let mut names = self.groups.iter().flat_map(|group| &group.names);
        let Some(name) = names.nth(host as usize).cloned() else {
            let message = format!("host {host} has no NIC that could be down: there are {hosts} hosts, from 0 on");
            return Err(TopologiesError::Value(self.whole(message, "name one of them")));
        };
        self.exceptions.push(Exception::of_nic(&name, nic, Deviation::Down));
        Ok(self)
    }

    /// Draws the graph.
    ///
    /// # Errors
    /// Too large, a host name twice, an exception about a host or NIC that is not there, a
    /// fabric whose counts do not fit, or GPUs that cannot reach each other.
    pub fn build(&self) -> Result<Topology, TopologiesError> {
        self.check_size()?;
        let exceptions = self.exceptions_by_host()?;
        let mut builder = TopologyBuilder::new(self.name.clone());
        builder.software = self.software.clone();
        builder.assumptions.clone_from(&self.assumptions);
        builder.profile.clone_from(&self.profile);
        let hosts = self.host_count();
        let fabric = self.choose_fabric(&mut builder, hosts);
        let by_rail =
            fabric.as_ref().is_some_and(|f| matches!(f.kind, FabricKind::RailOptimised | FabricKind::RailOnly));
        let mut joined = Vec::new();
        let mut management = Vec::new();
        let mut domains = 0;
        // Switch of the NVLink domain that is being filled, and how many hosts it lacks; and of what hosts it is.
        let mut domain: Option<(VertexId, u32)> = None;
        let mut filled_by = None;
        for group in &self.groups {
            let kind = group.host.domain_kind();
            if group.new_domain || kind != filled_by {
                (domain, filled_by) = (None, kind);
            }
            if let (Some(first), Some((_, seats @ 1..))) = (group.names.first(), domain) {
                builder.assumptions.push(format!(
                    "NVLink: the hosts from {} on join the NVLink domain of those before them, which has {seats} seats left; \
                     new_domain = true in their [[hosts]] table begins another",
                    crate::error::quote(first)
                ));
            }
            let mut plain = group.host.clone();
            if by_rail {
                number_rails(&mut plain, &mut builder);
            }
            for name in &group.names {
                let (host, down) = match exceptions.get(name.as_str()) {
                    None => (None, Vec::new()),
                    Some(of) => {
                        let (host, down) = deviate(&plain, of);
                        (Some(host), down)
                    }
                };
                let host = host.as_ref().unwrap_or(&plain);
                if let Some(size) = host.nvlink_domain
                    && domain.is_none_or(|(_, seats)| seats == 0)
                {
                    domain = Some((builder.vertex(format!("nvlink{domains}"), VertexKind::NvSwitch, None), size));
                    domains += 1;
                }
                let nvswitch = domain.as_mut().map(|(switch, seats)| {
                    *seats -= 1;
                    *switch
                });
                let (_, vertices) = host.add_to(&mut builder, name, nvswitch);
                let other = vertices.iter().zip(&host.nics).find(|(_, n)| n.nic.management);
                management.extend(other.map(|(&vertex, n)| (vertex, n.nic.rate)));
                let data = vertices.into_iter().zip(&host.nics).enumerate().filter(|(_, (_, n))| !n.nic.management);
                let (nics, places) = (0..)
                    .zip(data)
                    .filter(|(_, (i, _))| !down.contains(i))
                    .map(|(place, (_, (vertex, n)))| ((vertex, n.nic.clone()), place))
                    .unzip();
                joined.push(Joined { name: name.clone(), nics, places });
            }
        }
        // Hosts of one NVLink domain need no NICs.
        let by_nvlink = domains == 1 && self.fabric.is_none() && joined.iter().all(|j| j.nics.is_empty());
        let odd: Vec<&Exception> = self.exceptions.iter().filter(|e| e.owner == Owner::Switch).collect();
        match fabric.filter(|_| !by_nvlink) {
            Some(fabric) => {
                if let Some(lonely) = joined.iter().find(|host| host.nics.is_empty())
                    && let Some(last) = exceptions.get(lonely.name.as_str()).and_then(|of| of.last())
                {
                    return Err(TopologiesError::Contradiction(self.at(
                        last.places.name.as_ref(),
                        format!("all NICs of host `{}` are down, so the fabric cannot reach it", lonely.name),
                        "no NIC of it is left",
                        "leave one of its NICs up, or take the host out of the cluster",
                    )));
                }
                let mut uplinks = Uplinks::new(&odd);
                fabric.join(&mut builder, &joined, &mut uplinks)?;
                self.check_met(&mut builder, &uplinks)?;
            }
            None if hosts > 1 => self.check_met(&mut builder, &Uplinks::new(&odd))?,
            None => {}
        }
        if hosts > 1 && management.len() == hosts {
            let switch = builder.vertex("management", VertexKind::NetSwitch { level: 0 }, None);
            for (vertex, rate) in management {
                builder.duplex(vertex, switch, Link { kind: LinkKind::Ethernet, rate, width: 1 });
            }
        }
        builder.build().map_err(|error| {
            TopologiesError::Topology(self.whole(
                error.to_string(),
                match error {
                    collcast_sim::topology::TopologyError::Disconnected { .. } => {
                        "join them: a PCIe parent, NVLinks or NICs that are up"
                    }
                    collcast_sim::topology::TopologyError::NoGpu(_) => "give `gpus`, or a file that lists GPUs",
                    _ => "",
                },
            ))
        })
    }

    /// What is wrong at a place of the file.
    fn at(&self, at: Option<&Range<usize>>, message: String, label: &str, hint: &str) -> Box<Diagnostic> {
        Box::new(Diagnostic {
            message,
            file: self.file.clone(),
            at: at.map(|at| Source::new(&self.file, &self.text).locate(at.clone())),
            label: label.to_owned(),
            hint: hint.to_owned(),
        })
    }

    /// Every exception of a switch must have met it, and leave a way to all hosts.
    fn check_met(&self, builder: &mut TopologyBuilder, uplinks: &Uplinks<'_>) -> Result<(), TopologiesError> {
        for (exception, met) in uplinks.met() {
            let name = crate::error::quote(&exception.name);
            let places = &exception.places;
            match met {
                Met::Yes => {}
                Met::NoSwitch if self.cut => {
                    builder
                        .assumptions
                        .push(format!("fabric: the exception of the switch `{name}` is left out with its hosts"));
                }
                Met::NoSwitch => {
                    let near = collcast_sim::collective::nearest(&exception.name, uplinks.switches());
                    return Err(TopologiesError::UnknownName(self.at(
                        places.name.as_ref(),
                        format!("an exception names the switch `{name}`, which has no uplinks in this network"),
                        &near.map_or_else(|| "no such switch".to_owned(), |near| format!("did you mean `{near}`?")),
                        "leaves are leaf0 or leaf1-rail3, spines spine0; those of [[fabric.switches]] have their names there",
                    )));
                }
                Met::NoUplink(count) => {
                    return Err(TopologiesError::UnknownName(self.at(
                        places.port.as_ref(),
                        format!("an exception names an uplink of `{name}` that it does not have: there are {count}"),
                        "no such uplink",
                        "uplinks are counted from 0",
                    )));
                }
                Met::Faster(rate) => {
                    return Err(TopologiesError::Contradiction(self.at(
                        places.deviation.as_ref(),
                        format!("an exception has an uplink of `{name}` run faster than the {rate} of the others"),
                        "above its own rate",
                        "an exception is a slower cable; `leaf.rate`, or `uplink_rate` of a listed switch, is the usual rate",
                    )));
                }
                Met::AllDown(switch) => {
                    return Err(TopologiesError::Contradiction(self.at(
                        places.name.as_ref(),
                        format!("all uplinks of the switch `{}` are down", crate::error::quote(&switch)),
                        "it has no way to other switches",
                        "leave one of its uplinks up; `switch` and `state = \"down\"` without `uplink` take a whole switch down",
                    )));
                }
                Met::CutsOff(hosts) => {
                    return Err(TopologiesError::Contradiction(self.at(
                        places.name.as_ref(),
                        format!("the switch `{name}` is down, and cuts off {}", crate::error::quote(&compress(&hosts))),
                        "no NIC of these hosts is left",
                        "take these hosts out of the cluster; `uplink` says that a single cable is down",
                    )));
                }
            }
        }
        Ok(())
    }

    fn exceptions_by_host(&self) -> Result<BTreeMap<&str, Vec<&Exception>>, TopologiesError> {
        let mut known: BTreeMap<&str, &HostSpec> = BTreeMap::new();
        for group in &self.groups {
            for name in &group.names {
                if known.insert(name, &group.host).is_some() {
                    return Err(TopologiesError::Contradiction(self.whole(
                        format!("the host name `{name}` is used twice"),
                        "host names give rank order, so each is used once",
                    )));
                }
            }
        }
        let mut by_host: BTreeMap<&str, Vec<&Exception>> = BTreeMap::new();
        for exception in self.exceptions.iter().filter(|e| e.owner == Owner::Host) {
            let Exception { port, places, .. } = exception;
            let Some((&name, host)) = known.get_key_value(exception.name.as_str()) else {
                // Comparing with 200,000 names is slow; the first thousand show the pattern.
                let near = collcast_sim::collective::nearest(&exception.name, known.keys().copied().take(1000));
                return Err(TopologiesError::UnknownName(self.at(
                    places.name.as_ref(),
                    format!(
                        "an exception names the host `{}`, which the cluster does not have",
                        crate::error::quote(&exception.name)
                    ),
                    &near.map_or_else(|| "no such host".to_owned(), |n| format!("did you mean `{n}`?")),
                    "hosts are named by `names`, otherwise host0, host1, ...",
                )));
            };
            let nics = host.data_nics().count();
            if let Some(nic) = port
                && *nic as usize >= nics
            {
                return Err(TopologiesError::UnknownName(self.at(
                    places.port.as_ref(),
                    format!("an exception names NIC {nic} of `{name}`, which has {nics} NICs"),
                    "no such NIC",
                    "NICs are counted from 0",
                )));
            }
            let meant = (0..).zip(host.data_nics()).filter(|(nic, _)| port.is_none_or(|port| port == *nic));
            if let Deviation::Rate(rate) = exception.deviation
                && let Some((nic, nominal)) = meant.map(|(nic, of)| (nic, of.nic.rate)).find(|(_, of)| rate > *of)
            {
                return Err(TopologiesError::Contradiction(self.at(
                    places.deviation.as_ref(),
                    format!("an exception has NIC {nic} of `{name}` run at {rate}, but its own rate is {nominal}"),
                    "above its own rate",
                    "an exception is a slower port; a host with faster NICs has a [[hosts]] table of its own",
                )));
            }
            by_host.entry(name).or_default().push(exception);
        }
        Ok(by_host)
    }

    fn choose_fabric(&self, builder: &mut TopologyBuilder, hosts: usize) -> Option<FabricSpec> {
        if self.fabric.is_some() || hosts < 2 {
            return self.fabric.clone().filter(|_| hosts > 1);
        }
        let host = &self.groups.first()?.host;
        let fabric = default_fabric(host);
        builder
            .assumptions
            .push(format!("fabric: none given for {hosts} hosts; {} assumed from the NICs", fabric.kind.name()));
        Some(fabric)
    }
}

/// The network that hosts of a kind usually get: rails for several RDMA NICs, else one switch.
pub fn default_fabric(host: &HostSpec) -> FabricSpec {
    let mut nics = host.data_nics().map(|n| n.nic.kind);
    let several = host.data_nics().count() > 1;
    if several && nics.all(|k| matches!(k, LinkKind::Infiniband | LinkKind::Roce)) {
        FabricSpec::plain(FabricKind::RailOptimised, Routing::Adaptive)
    } else {
        FabricSpec::plain(FabricKind::SingleSwitch, Routing::Spray)
    }
}

/// The profile that fits the hosts of a machine's ranks, where it names none, and whether it fits all of them: they may be of
/// several kinds, and the one of rank 0 counts.
///
/// `None` where no profile is of such GPUs.
pub fn profile_for(topology: &Topology) -> Option<(&'static str, bool)> {
    let mut hosts: BTreeMap<HostId, Vec<VertexId>> = BTreeMap::new();
    for rank in (0..topology.ranks()).map(Rank) {
        hosts.entry(topology.host_of(rank)).or_default().push(topology.gpu_of(rank));
    }
    let of = |gpus: &Vec<VertexId>| profile_of(topology, gpus, hosts.len());
    let profile = of(hosts.get(&topology.host_of(Rank(0)))?)?;
    Some((profile, hosts.values().all(|gpus| of(gpus) == Some(profile))))
}

/// The profile of one of several hosts, by GPU generation, how the GPUs that have ranks are joined and how many they are.
fn profile_of(topology: &Topology, gpus: &[VertexId], hosts: usize) -> Option<&'static str> {
    let gpu = topology.gpu(*gpus.first()?)?;
    let is_switch = |id: VertexId| topology.vertex(id).kind == VertexKind::NvSwitch;
    if !gpus.iter().all(|&gpu| topology.links_from(gpu).any(|(_, to, _)| is_switch(to))) {
        return None;
    }
    match Nvlinks::of(gpu.compute_capability)?.capability.start {
        80 => Some("a100-nvswitch"),
        90 if gpu.family() == "H200" => Some("h200-nvswitch"),
        // Measured on 2 to 4. Hosts of 8 are as near by `prior` where others measured them, several hosts nearer.
        90 if gpu.family() == "H100" && hosts == 1 && (2..=4).contains(&gpus.len()) => Some("h100-nvswitch"),
        100 => Some("b200-nvswitch"),
        _ => None,
    }
}

/// Rail fabrics need a rail for each NIC: where none is given, the n-th NIC is on rail n.
fn number_rails(host: &mut HostSpec, builder: &mut TopologyBuilder) {
    let mut assumed = false;
    let data = host.nics.iter_mut().filter(|n| !n.nic.management);
    for (i, nic) in data.enumerate() {
        if nic.nic.rail.is_none() {
            nic.nic.rail = u32::try_from(i).ok();
            assumed = true;
        }
    }
    let note = "fabric: NIC n of each host is taken to be on rail n, as no rails are given";
    if assumed && !builder.assumptions.iter().any(|a| a == note) {
        builder.assumptions.push(note.to_owned());
    }
}

/// A host with its exceptions applied, and which of its NICs are down.
fn deviate(plain: &HostSpec, exceptions: &[&Exception]) -> (HostSpec, Vec<usize>) {
    let mut host = plain.clone();
    let mut down = Vec::new();
    let mut seen = 0;
    for (i, nic) in host.nics.iter_mut().enumerate() {
        if nic.nic.management {
            continue;
        }
        for exception in exceptions {
            if exception.port.is_none_or(|n| n == seen) {
                match exception.deviation {
                    Deviation::Rate(rate) => nic.nic.rate = rate,
                    Deviation::Down => down.push(i),
                }
            }
        }
        seen += 1;
    }
    (host, down)
}

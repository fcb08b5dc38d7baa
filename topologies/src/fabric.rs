//! The network between hosts: checked values, and the generators that draw it.
//!
//! Leaves are [`VertexKind::NetSwitch`] of level 0. Packets of an adaptive or spraying fabric
//! use all uplinks of a leaf, so the spines are one vertex and a leaf's uplinks one bundle;
//! static hashing pins a flow to one path, so there every spine is a vertex of its own.

mod listed;
mod tree;
mod uplinks;

use collcast_sim::ids::VertexId;
use collcast_sim::topology::{Link, LinkKind, Nic, TopologyBuilder, VertexKind};
use collcast_sim::units::Bandwidth;

use crate::error::{Diagnostic, Location, TopologiesError};

pub use tree::{Ports, Tree, TreeSwitch};
use uplinks::Spines;
pub use uplinks::{Met, Uplinks};

/// Most switches of one layer, and most uplinks of one leaf.
pub const MAX_SWITCHES: u32 = 10_000;

/// Most link directions of a whole topology: bounds memory for any input.
pub const MAX_LINKS: usize = 10_000_000;

/// Shape of the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FabricKind {
    /// The n-th NIC of all hosts of a unit shares a leaf; spines join the leaves.
    RailOptimised,
    /// As rail-optimised, but rails are never joined: other rails are reached over NVLink.
    RailOnly,
    /// All NICs of a unit share a leaf; spines join the leaves.
    FatTree,
    /// Units with a layer of spines each, which are joined to each other directly.
    DragonflyPlus,
    /// Every NIC on one switch, or on a network that behaves as one.
    SingleSwitch,
    /// One machine whose processes take each other for hosts: a port has no rate of its own,
    /// whatever its NIC reports.
    Loopback,
    /// Switches by name, with what is below each: [`Tree`].
    Listed,
}

impl FabricKind {
    /// All kinds with their names in files.
    pub const ALL: &'static [(Self, &'static str)] = &[
        (Self::RailOptimised, "rail-optimised"),
        (Self::RailOnly, "rail-only"),
        (Self::FatTree, "fat-tree"),
        (Self::DragonflyPlus, "dragonfly+"),
        (Self::SingleSwitch, "single-switch"),
        (Self::Loopback, "loopback"),
        (Self::Listed, "listed"),
    ];

    /// The name in files.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(k, _)| *k == self).map_or("", |(_, name)| name)
    }

    fn by_rail(self) -> bool {
        matches!(self, Self::RailOptimised | Self::RailOnly)
    }
}

/// How a packet finds its way among equal paths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Routing {
    /// Switches choose the least loaded path.
    Adaptive,
    /// The sender spreads packets over many paths.
    Spray,
    /// Static ECMP; the seed makes the choice repeatable.
    Hash(u64),
}

/// Leaves, the switches that hosts plug into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeafSpec {
    /// Rate of each port, one direction.
    pub rate: Option<Bandwidth>,
    /// Ports to hosts.
    pub down: Option<u32>,
    /// Ports to spines.
    pub up: Option<u32>,
}

/// Spines, the switches that join leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpineSpec {
    /// How many; in a dragonfly+ per unit, in rail-only per rail.
    pub count: u32,
    /// Ports of each.
    pub ports: u32,
}

/// Rate into the leaves over rate out of them upwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Oversubscription {
    /// Not given.
    #[default]
    NotGiven,
    /// Given as unknown: 1 is assumed and said.
    Unknown,
    /// In thousandths: 1000 is non-blocking.
    Thousandths(u32),
}

/// Where the parts were written, for errors that only the whole shows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FabricPlaces {
    /// File name; empty for a fabric that no file gives.
    pub file: String,
    /// `kind`.
    pub kind: Option<Location>,
    /// `hosts_per_unit`.
    pub hosts_per_unit: Option<Location>,
    /// `leaf`.
    pub leaf: Option<Location>,
    /// `spine`.
    pub spine: Option<Location>,
    /// `oversubscription`.
    pub oversubscription: Option<Location>,
}

/// A checked network.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FabricSpec {
    /// Shape.
    pub kind: FabricKind,
    /// Hosts that share a set of leaves.
    pub hosts_per_unit: Option<u32>,
    /// Leaves.
    pub leaf: Option<LeafSpec>,
    /// Spines; generated as needed where absent.
    pub spine: Option<SpineSpec>,
    /// Routing.
    pub routing: Routing,
    /// Over-subscription of the leaves, where no count of uplinks gives it.
    pub oversubscription: Oversubscription,
    /// Whether switches reduce in the network (SHARP).
    pub sharp: bool,
    /// The switches of a listed network; none of others.
    pub tree: Tree,
    /// Where it was written.
    pub places: FabricPlaces,
}

/// A host that is to be joined: its name and the NICs that are up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Joined {
    /// Name of the host.
    pub name: String,
    /// Vertices and values of the NICs that carry collectives; `rail` is set for rail fabrics.
    pub nics: Vec<(VertexId, Nic)>,
    /// The place of each of these among all NICs of the host, from 0, management ones not counted.
    pub places: Vec<u32>,
}

/// One leaf while it is being filled.
struct Leaf {
    vertex: VertexId,
    unit: usize,
    rail: usize,
    used: u32,
    fastest: Bandwidth,
    kind: LinkKind,
}

impl FabricSpec {
    /// A fabric of a kind about which nothing else is known.
    pub fn plain(kind: FabricKind, routing: Routing) -> Self {
        Self {
            kind,
            hosts_per_unit: None,
            leaf: None,
            spine: None,
            routing,
            oversubscription: Oversubscription::NotGiven,
            sharp: false,
            tree: Tree::default(),
            places: FabricPlaces::default(),
        }
    }

    fn contradiction(&self, at: Option<&Location>, message: String, label: &str, hint: &str) -> TopologiesError {
        let at = at.or(self.places.kind.as_ref()).cloned();
        TopologiesError::Contradiction(Box::new(Diagnostic {
            message,
            file: self.places.file.clone(),
            // A label without a place would stand alone.
            label: at.as_ref().map_or("", |_| label).to_owned(),
            at,
            hint: hint.to_owned(),
        }))
    }

    /// Draws the network between hosts.
    ///
    /// What had to be assumed is added to the builder's assumptions, and `odd` says what its exceptions met.
    ///
    /// # Errors
    /// [`TopologiesError::Contradiction`] when counts do not fit each other: more NICs than
    /// leaf ports, more uplinks than spine ports, no uplink where spines are needed.
    /// [`TopologiesError::TooLarge`] beyond [`MAX_SWITCHES`] or [`MAX_LINKS`].
    pub fn join(
        &self,
        builder: &mut TopologyBuilder,
        hosts: &[Joined],
        odd: &mut Uplinks<'_>,
    ) -> Result<(), TopologiesError> {
        if hosts.len() > 1
            && let Some(lonely) = hosts.iter().find(|h| h.nics.is_empty())
        {
            return Err(self.contradiction(
                None,
                format!("host `{}` has no NIC that is up, so the fabric cannot reach it", lonely.name),
                "joins the hosts through their NICs",
                "give the host a [hosts.nics] table, or leave it out of the cluster",
            ));
        }
        builder.sharp = self.sharp;
        if let Routing::Hash(seed) = self.routing {
            builder.hash = Some(seed);
        }
        if matches!(self.kind, FabricKind::SingleSwitch | FabricKind::Loopback) {
            return self.single_switch(builder, hosts, odd);
        }
        if self.kind == FabricKind::Listed {
            return self.listed(builder, hosts, odd);
        }
        let per_unit = self.hosts_per_unit(builder, hosts);
        let leaves = self.leaves(builder, hosts, per_unit, odd)?;
        if leaves.len() <= 1 && matches!(self.oversubscription, Oversubscription::Thousandths(t) if t > 1000) {
            let note = format!(
                "fabric: over-subscription has no effect, as one leaf joins all {} hosts; fewer hosts_per_unit gives several",
                hosts.len()
            );
            assume(builder, &note);
        }
        if leaves.len() > 1 || self.spine.is_some() {
            self.spines(builder, &leaves, per_unit, odd)?;
        }
        Ok(())
    }

    fn single_switch(
        &self,
        builder: &mut TopologyBuilder,
        hosts: &[Joined],
        odd: &mut Uplinks<'_>,
    ) -> Result<(), TopologiesError> {
        match self.oversubscription {
            Oversubscription::Unknown => assume(
                builder,
                "fabric: the over-subscription is unknown; every NIC is taken to reach its full \
                 rate to every other",
            ),
            Oversubscription::Thousandths(t) if t > 1000 => {
                return Err(self.contradiction(
                    self.places.oversubscription.as_ref(),
                    "a single switch cannot be over-subscribed".to_owned(),
                    "more than 1",
                    "say kind = \"fat-tree\" with leaf = { rate, down, up }",
                ));
            }
            _ => {}
        }
        let switch = builder.vertex("switch", VertexKind::NetSwitch { level: 0 }, None);
        let down = odd.down("switch", None);
        for host in hosts {
            for (vertex, nic) in host.nics.iter().filter(|_| odd.plug(&host.name, down)) {
                let rate = match self.kind {
                    FabricKind::Loopback => Bandwidth::from_gb_per_s(LOOPBACK_GB_PER_S),
                    _ => self.leaf.and_then(|l| l.rate).map_or(nic.rate, |r| r.min(nic.rate)),
                };
                builder.duplex(*vertex, switch, port(nic.kind, rate, 1));
            }
        }
        Ok(())
    }

    fn hosts_per_unit(&self, builder: &mut TopologyBuilder, hosts: &[Joined]) -> usize {
        let down = self.leaf.and_then(|l| l.down);
        let per_host =
            if self.kind.by_rail() { 1 } else { hosts.iter().map(|h| h.nics.len()).max().unwrap_or(1).max(1) };
        let hosts_per_unit = match (self.hosts_per_unit, down) {
            (Some(given), _) => given as usize,
            (None, Some(down)) => (down as usize / per_host).max(1),
            (None, None) => {
                let units = hosts.len().min(DEFAULT_HOSTS_PER_UNIT);
                assume(
                    builder,
                    &format!(
                        "fabric: units of {units} hosts assumed, as neither hosts_per_unit nor \
                         leaf.down is given"
                    ),
                );
                units
            }
        };
        hosts_per_unit.max(1)
    }

    fn leaves(
        &self,
        builder: &mut TopologyBuilder,
        hosts: &[Joined],
        per_unit: usize,
        odd: &mut Uplinks<'_>,
    ) -> Result<Vec<Leaf>, TopologiesError> {
        let mut leaves: Vec<Leaf> = Vec::new();
        let mut index = std::collections::HashMap::new();
        for (h, host) in hosts.iter().enumerate() {
            let unit = h / per_unit;
            for (vertex, nic) in &host.nics {
                let rail = if self.kind.by_rail() { nic.rail.unwrap_or(nic.index) as usize } else { 0 };
                let (slot, down) = *index.entry((unit, rail)).or_insert_with(|| {
                    let name =
                        if self.kind.by_rail() { format!("leaf{unit}-rail{rail}") } else { format!("leaf{unit}") };
                    if let down @ Some(_) = odd.down(&name, None) {
                        return (0, down);
                    }
                    leaves.push(Leaf {
                        vertex: builder.vertex(name, VertexKind::NetSwitch { level: 0 }, None),
                        unit,
                        rail,
                        used: 0,
                        fastest: nic.rate,
                        kind: nic.kind,
                    });
                    (leaves.len() - 1, None)
                });
                if !odd.plug(&host.name, down) {
                    continue;
                }
                let leaf = &mut leaves[slot];
                leaf.used += 1;
                leaf.fastest = leaf.fastest.max(nic.rate);
                if let Some(down) = self.leaf.and_then(|l| l.down)
                    && leaf.used > down
                {
                    return Err(self.contradiction(
                        self.places.leaf.as_ref(),
                        format!(
                            "the leaf `{}` has {down} ports to hosts, but the NICs of {per_unit} \
                             hosts need more",
                            builder_name(leaf, self.kind)
                        ),
                        "down is too small",
                        "down is at least hosts_per_unit times the NICs that a host has on this \
                         leaf; or make hosts_per_unit smaller",
                    ));
                }
                let rate = self.leaf.and_then(|l| l.rate).map_or(nic.rate, |r| r.min(nic.rate));
                builder.duplex(*vertex, leaf.vertex, port(nic.kind, rate, 1));
            }
        }
        if leaves.len() > MAX_SWITCHES as usize {
            return Err(TopologiesError::TooLarge(Box::new(Diagnostic {
                message: format!("the fabric needs {} leaves; at most {MAX_SWITCHES} are supported", leaves.len()),
                file: self.places.file.clone(),
                at: self.places.hosts_per_unit.clone().or_else(|| self.places.kind.clone()),
                label: String::new(),
                hint: "make hosts_per_unit larger".to_owned(),
            })));
        }
        Ok(leaves)
    }

    /// Uplinks of a leaf whose hosts use up to `used` ports.
    fn uplinks(&self, builder: &mut TopologyBuilder, used: u32) -> Result<u32, TopologiesError> {
        let leaf = self.leaf;
        if let Some(up) = leaf.and_then(|l| l.up) {
            if up == 0 {
                return Err(self.contradiction(
                    self.places.leaf.as_ref(),
                    "the leaves have no uplinks, but several leaves must be joined".to_owned(),
                    "up = 0",
                    "give leaf.up, or say kind = \"rail-only\" with one unit",
                ));
            }
            return Ok(up);
        }
        let down = leaf.and_then(|l| l.down).unwrap_or(used).max(1);
        let thousandths = match self.oversubscription {
            Oversubscription::Thousandths(t) => t.max(1),
            Oversubscription::Unknown => {
                assume(
                    builder,
                    "fabric: the over-subscription is unknown; a non-blocking fabric is assumed, \
                     so real times may be longer",
                );
                1000
            }
            Oversubscription::NotGiven => {
                assume(
                    builder,
                    "fabric: as many uplinks as ports to hosts assumed (non-blocking), as \
                     neither leaf.up nor oversubscription is given",
                );
                1000
            }
        };
        let up =
            u32::try_from((u64::from(down) * 1000).div_ceil(u64::from(thousandths))).unwrap_or(MAX_SWITCHES).max(1);
        let met = f64::from(down) / f64::from(up);
        let asked = f64::from(thousandths) / 1000.0;
        if met < asked * 0.95 {
            assume(
                builder,
                &format!(
                    "fabric: leaves with {down} ports to hosts cannot be over-subscribed {asked:.2} : 1, and are {met:.2} : 1 \
                     with {up} uplinks; more hosts_per_unit, or leaf = {{ rate, down, up }}, says it otherwise"
                ),
            );
        }
        Ok(up)
    }

    fn spines(
        &self,
        builder: &mut TopologyBuilder,
        leaves: &[Leaf],
        per_unit: usize,
        odd: &mut Uplinks<'_>,
    ) -> Result<(), TopologiesError> {
        let widest = leaves.iter().map(|l| l.used).max().unwrap_or(1);
        let unit_count = leaves.iter().map(|l| l.unit + 1).max().unwrap_or(1);
        if self.kind == FabricKind::RailOnly && unit_count == 1 && self.spine.is_none() {
            assume(
                builder,
                &format!(
                    "fabric: one unit of up to {per_unit} hosts, so no spine is drawn; traffic \
                     between rails goes through NVLink or PCIe"
                ),
            );
            return Ok(());
        }
        let up = self.uplinks(builder, widest)?;
        if up > MAX_SWITCHES {
            return Err(self.too_many(up));
        }
        match self.kind {
            FabricKind::RailOnly => {
                let rails: std::collections::BTreeSet<usize> = leaves.iter().map(|l| l.rail).collect();
                for rail in rails {
                    let of: Vec<&Leaf> = leaves.iter().filter(|l| l.rail == rail).collect();
                    self.check_ports(builder, of.len(), up)?;
                    self.layer(builder, &format!("spine-rail{rail}"), &of, up, odd)?;
                }
                Ok(())
            }
            FabricKind::DragonflyPlus => self.dragonfly(builder, leaves, unit_count, up, odd),
            _ => {
                self.check_ports(builder, leaves.len(), up)?;
                let all: Vec<&Leaf> = leaves.iter().collect();
                self.layer(builder, "spine", &all, up, odd).map(drop)
            }
        }
    }

    fn too_many(&self, count: u32) -> TopologiesError {
        TopologiesError::TooLarge(Box::new(Diagnostic {
            message: format!(
                "a leaf with {count} uplinks, or as many spines; at most {MAX_SWITCHES} are \
                 supported"
            ),
            file: self.places.file.clone(),
            at: self.places.leaf.clone().or_else(|| self.places.kind.clone()),
            label: String::new(),
            hint: "count links, not Gb/s".to_owned(),
        }))
    }

    /// Uplinks must find a spine port each.
    fn check_ports(&self, builder: &mut TopologyBuilder, leaves: usize, up: u32) -> Result<(), TopologiesError> {
        let Some(spine) = self.spine else {
            return Ok(());
        };
        let uplinks = leaves as u64 * u64::from(up);
        let ports = u64::from(spine.count) * u64::from(spine.ports);
        if uplinks > ports {
            return Err(self.contradiction(
                self.places.spine.as_ref(),
                format!(
                    "{leaves} leaves x {up} up = {uplinks} uplinks, but {} spines x {} ports = \
                     {ports}",
                    spine.count, spine.ports
                ),
                &format!("{} ports too few", uplinks - ports),
                "more spines, or fewer uplinks a leaf; leaves are counted from the hosts: one \
                 per unit, and in rail fabrics one per rail and unit",
            ));
        }
        if uplinks < ports {
            assume(
                builder,
                &format!(
                    "fabric: {uplinks} uplinks use {ports} spine ports; the others are taken as \
                     spare"
                ),
            );
        }
        Ok(())
    }

    /// One layer of spines over some leaves; returns its vertices.
    fn layer(
        &self,
        builder: &mut TopologyBuilder,
        name: &str,
        leaves: &[&Leaf],
        up: u32,
        odd: &mut Uplinks<'_>,
    ) -> Result<Vec<VertexId>, TopologiesError> {
        let rate_of = |leaf: &Leaf| self.leaf.and_then(|l| l.rate).unwrap_or(leaf.fastest);
        let level = VertexKind::NetSwitch { level: 1 };
        let Routing::Hash(_) = self.routing else {
            let spine = builder.vertex(name, level, None);
            let above = Some(Spines { name, count: self.spine.map_or(up, |spine| spine.count) });
            for leaf in leaves {
                if let Some((rate, width)) = odd.bundle(&builder_name(leaf, self.kind), above, rate_of(leaf), up) {
                    builder.duplex(leaf.vertex, spine, port(leaf.kind, rate, width));
                }
            }
            let drawn = "drawn as one switch, since packets use all of it";
            match self.spine {
                None if !leaves.is_empty() => assume(
                    builder,
                    &format!("fabric: a spine layer joins the leaves, {up} uplinks each, and is {drawn}"),
                ),
                Some(spine) if spine.count > 1 => {
                    assume(builder, &format!("fabric: {} spines are {drawn}", spine.count));
                }
                _ => {}
            }
            return Ok(vec![spine]);
        };
        let count = match self.spine {
            Some(spine) => spine.count,
            None => {
                assume(builder, &format!("fabric: {up} spines assumed, one uplink of each leaf to each"));
                up
            }
        }
        .max(1);
        if count > MAX_SWITCHES || 2 * leaves.len().saturating_mul(up as usize) > MAX_LINKS {
            return Err(self.too_many(count));
        }
        let spines: Vec<VertexId> =
            (0..count).map(|i| builder.vertex(format!("{name}{i}"), level.clone(), None)).collect();
        for leaf in leaves {
            let cables = odd.cables(&builder_name(leaf, self.kind), Some(Spines { name, count }), rate_of(leaf), up);
            // Cables are dealt to the spines in turn. Hashing picks one of parallel cables too.
            for (&spine, i) in spines.iter().zip(0..) {
                for &rate in cables.iter().skip(i).step_by(count as usize).flatten() {
                    builder.duplex(leaf.vertex, spine, port(leaf.kind, rate, 1));
                }
            }
        }
        Ok(spines)
    }

    /// Units with their own spine layer; the layers are joined pairwise by what ports remain.
    fn dragonfly(
        &self,
        builder: &mut TopologyBuilder,
        leaves: &[Leaf],
        units: usize,
        up: u32,
        odd: &mut Uplinks<'_>,
    ) -> Result<(), TopologiesError> {
        let Some(spine) = self.spine else {
            return Err(self.contradiction(
                None,
                "a dragonfly+ needs its spines: they carry the links between units".to_owned(),
                "without `spine`",
                "give spine = { count = ..., ports = ... } per unit",
            ));
        };
        let ports = u64::from(spine.count) * u64::from(spine.ports);
        let local = leaves.iter().filter(|l| l.unit == 0).count() as u64 * u64::from(up);
        let others = units.saturating_sub(1) as u64;
        let global = ports.saturating_sub(local).checked_div(others);
        if local > ports || global == Some(0) || units > 1024 {
            return Err(self.contradiction(
                self.places.spine.as_ref(),
                format!(
                    "{} spines x {} ports = {ports} per unit: {local} go to the leaves and \
                     {others} other units need at least one each",
                    spine.count, spine.ports
                ),
                "too few ports, or over 1024 units",
                "more spines a unit, or larger units",
            ));
        }
        assume(
            builder,
            "fabric: the spines of a unit are drawn as one switch, and the ports that leaves do \
             not use are spread evenly over the other units",
        );
        let rate = leaves.first().map(|l| self.leaf.and_then(|s| s.rate).unwrap_or(l.fastest));
        let aggregated = Self { routing: Routing::Adaptive, ..self.clone() };
        let mut layers = Vec::new();
        for unit in 0..units {
            let of: Vec<&Leaf> = leaves.iter().filter(|l| l.unit == unit).collect();
            let name = format!("spine-unit{unit}");
            let working = odd.working(Spines { name: &name, count: spine.count });
            layers.extend(aggregated.layer(builder, &name, &of, up, odd)?.into_iter().map(|layer| (layer, working)));
        }
        if let (Some(rate), Some(global), Some(first)) = (rate, global, leaves.first()) {
            for (i, &(a, of_a)) in layers.iter().enumerate() {
                for &(b, of_b) in &layers[i + 1..] {
                    let global = (global * u64::from(of_a.min(of_b)) / u64::from(spine.count.max(1))).max(1);
                    let width = u32::try_from(global).unwrap_or(u32::MAX);
                    builder.duplex(a, b, port(first.kind, rate.times(global), width));
                }
            }
        }
        Ok(())
    }
}

/// More than any memory moves: what bounds a loopback is threads and memory.
const LOOPBACK_GB_PER_S: f64 = 10_000.0;

/// NVIDIA's DGX SuperPOD reference architectures build scalable units of 32 hosts.
const DEFAULT_HOSTS_PER_UNIT: usize = 32;

fn builder_name(leaf: &Leaf, kind: FabricKind) -> String {
    if kind.by_rail() { format!("leaf{}-rail{}", leaf.unit, leaf.rail) } else { format!("leaf{}", leaf.unit) }
}

fn assume(builder: &mut TopologyBuilder, note: &str) {
    if !builder.assumptions.iter().any(|a| a == note) {
        builder.assumptions.push(note.to_owned());
    }
}

fn port(kind: LinkKind, rate: Bandwidth, width: u32) -> Link {
    Link { kind, rate, width }
}

//! A network as it is listed: switches by name, with the hosts or the switches below each.
//!
//! Parallel switches of one layer are one entry, since packets of an adaptive or spraying network use all of them. So
//! every folded Clos is a tree, with the cables of a layer as its widths.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use collcast_sim::ids::VertexId;
use collcast_sim::topology::{LinkKind, TopologyBuilder, VertexKind};
use collcast_sim::units::Bandwidth;

use super::{FabricSpec, Joined, MAX_SWITCHES, Routing, assume, port};
use crate::error::{Diagnostic, Source, TopologiesError, quote};

/// Hosts that plug into a switch alike.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ports {
    /// The hosts.
    pub hosts: Vec<String>,
    /// Which of their NICs, from 0, management ones not counted; all where absent.
    pub nics: Option<Vec<u32>>,
}

impl Ports {
    /// All NICs of some hosts.
    pub fn all(hosts: Vec<String>) -> Vec<Self> {
        vec![Self { hosts, nics: None }]
    }
}

/// A switch, or several that work as one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TreeSwitch {
    /// Name.
    pub name: String,
    /// Hosts that plug in; empty for a switch above others.
    pub ports: Vec<Ports>,
    /// Names of the switches below.
    pub switches: Vec<String>,
    /// Rate of a port, one direction; that of the fastest NIC below where absent.
    pub rate: Option<Bandwidth>,
    /// Cables to the switch above; as the over-subscription says where absent.
    pub uplinks: Option<u32>,
    /// Where the name was written, in bytes of [`Tree::text`].
    pub at: Option<Range<usize>>,
}

/// All switches of a network.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tree {
    /// In file order.
    pub switches: Vec<TreeSwitch>,
    /// The text of the file that lists them, for messages; empty where none does.
    pub text: String,
}

/// Cables side by side that go into a switch from below.
#[derive(Clone, Copy)]
struct Cable {
    from: VertexId,
    kind: LinkKind,
    /// Of one.
    rate: Bandwidth,
    count: u32,
    /// Rate of the port at the lower end.
    fastest: Bandwidth,
}

impl Tree {
    /// For each switch the one above it, by place.
    ///
    /// # Errors
    /// A name twice, an unknown switch below one, a switch below two, a loop; neither hosts nor switches, or both.
    pub fn parents(&self, file: &str) -> Result<Vec<Option<usize>>, TopologiesError> {
        let mut place: HashMap<&str, usize> = HashMap::new();
        for (index, switch) in self.switches.iter().enumerate() {
            if place.insert(&switch.name, index).is_some() {
                return Err(self.wrong(file, index, "is listed twice", "each switch has a name of its own"));
            }
            if switch.ports.is_empty() == switch.switches.is_empty() {
                let what =
                    if switch.ports.is_empty() { "has nothing below it" } else { "has hosts and switches below it" };
                return Err(self.wrong(file, index, what, "give `ports`, or `switches`"));
            }
        }
        let mut parents = vec![None; self.switches.len()];
        for (index, switch) in self.switches.iter().enumerate() {
            for name in &switch.switches {
                let Some(&below) = place.get(name.as_str()) else {
                    let near = collcast_sim::collective::nearest(name, place.keys().copied().take(1000));
                    let hint = near.map_or_else(|| "list it too".to_owned(), |near| format!("did you mean `{near}`?"));
                    return Err(self.wrong(
                        file,
                        index,
                        &format!("has `{}` below it, which is not listed", quote(name)),
                        &hint,
                    ));
                };
                if parents[below].replace(index).is_some_and(|other| other != index) {
                    let hint = "draw switches that work in parallel as one, with the sum of their uplinks";
                    return Err(self.wrong(file, below, "is below two switches", hint));
                }
            }
        }
        // A walk upwards that is longer than there are switches runs in a circle.
        let mut known = vec![false; parents.len()];
        for start in 0..parents.len() {
            let (mut at, mut way) = (Some(start), Vec::new());
            while let Some(index) = at.filter(|&index| !known[index]) {
                if way.len() > parents.len() {
                    return Err(self.wrong(file, start, "is below itself", "a network is a tree of switches"));
                }
                way.push(index);
                at = parents[index];
            }
            way.into_iter().for_each(|index| known[index] = true);
        }
        Ok(parents)
    }

    /// An error about a switch, at its name where a file has it.
    fn wrong(&self, file: &str, index: usize, what: &str, hint: &str) -> TopologiesError {
        let switch = &self.switches[index];
        let at = switch.at.clone().map(|span| Source::new(file, &self.text).locate(span));
        TopologiesError::Contradiction(Box::new(Diagnostic {
            message: format!("the switch `{}` {what}", quote(&switch.name)),
            file: file.to_owned(),
            label: String::new(),
            at,
            hint: hint.to_owned(),
        }))
    }

    /// Switches with the leaves first, each before the one above it.
    fn upwards(parents: &[Option<usize>]) -> Vec<usize> {
        let mut waits = vec![0_usize; parents.len()];
        parents.iter().flatten().for_each(|&parent| waits[parent] += 1);
        let mut order: Vec<usize> = (0..parents.len()).filter(|&index| waits[index] == 0).collect();
        let mut at = 0;
        while let Some(&index) = order.get(at) {
            at += 1;
            if let Some(parent) = parents[index] {
                waits[parent] -= 1;
                if waits[parent] == 0 {
                    order.push(parent);
                }
            }
        }
        order
    }
}

impl FabricSpec {
    /// Draws the switches that have hosts of the cluster below them.
    pub(super) fn listed(&self, builder: &mut TopologyBuilder, hosts: &[Joined]) -> Result<(), TopologiesError> {
        let file = self.places.file.as_str();
        let tree = &self.tree;
        if let Routing::Hash(_) = self.routing {
            return Err(self.contradiction(
                None,
                "a listed network with static hashing".to_owned(),
                "parallel switches are one here",
                "leave `routing` out, or describe the network as a fat-tree",
            ));
        }
        let parents = tree.parents(file)?;
        if tree.switches.len() > MAX_SWITCHES as usize {
            return Err(self.too_many(u32::try_from(tree.switches.len()).unwrap_or(u32::MAX)));
        }
        let by_name: HashMap<&str, &Joined> = hosts.iter().map(|host| (host.name.as_str(), host)).collect();
        let mut plugged: HashSet<VertexId> = HashSet::new();
        let mut below: Vec<Vec<Cable>> = vec![Vec::new(); tree.switches.len()];
        let mut levels = vec![0; tree.switches.len()];
        let mut absent = 0;
        for index in Tree::upwards(&parents) {
            let switch = &tree.switches[index];
            let mut cables = std::mem::take(&mut below[index]);
            for (ports, name) in switch.ports.iter().flat_map(|ports| ports.hosts.iter().map(move |name| (ports, name)))
            {
                let Some(host) = by_name.get(name.as_str()) else {
                    absent += 1;
                    continue;
                };
                for ((vertex, nic), &place) in host.nics.iter().zip(&host.places) {
                    if ports.nics.as_ref().is_some_and(|nics| !nics.contains(&place)) {
                        continue;
                    }
                    if !plugged.insert(*vertex) {
                        let what = format!("has NIC {place} of `{}`, which is in another switch too", quote(name));
                        let hint = "a port has one cable; `nics` says which NICs plug in where";
                        return Err(tree.wrong(file, index, &what, hint));
                    }
                    let rate = switch.rate.map_or(nic.rate, |rate| rate.min(nic.rate));
                    cables.push(Cable { from: *vertex, kind: nic.kind, rate, count: 1, fastest: nic.rate });
                }
            }
            let (Some(first), Some(fastest)) = (cables.first(), cables.iter().map(|cable| cable.fastest).max()) else {
                continue;
            };
            let kind = first.kind;
            let vertex = builder.vertex(&switch.name, VertexKind::NetSwitch { level: levels[index] }, None);
            for cable in &cables {
                builder.duplex(
                    cable.from,
                    vertex,
                    port(cable.kind, cable.rate.times(u64::from(cable.count)), cable.count),
                );
            }
            if let Some(parent) = parents[index] {
                levels[parent] = levels[parent].max(levels[index] + 1);
                let rate = switch.rate.unwrap_or(fastest);
                let all = cables.iter().map(|cable| cable.rate.get().saturating_mul(u64::from(cable.count)));
                let needed = all.fold(0, u64::saturating_add).div_ceil(rate.get());
                let count = match switch.uplinks {
                    Some(count) => count.max(1),
                    None => self.uplinks(builder, u32::try_from(needed).unwrap_or(u32::MAX))?,
                };
                if count > MAX_SWITCHES {
                    return Err(self.too_many(count));
                }
                below[parent].push(Cable { from: vertex, kind, rate, count, fastest: rate });
            }
        }
        if absent > 0 {
            assume(builder, &format!("fabric: {absent} hosts that the switches list are not in this machine"));
        }
        for host in hosts {
            let loose = host.nics.iter().zip(&host.places).find(|((vertex, _), _)| !plugged.contains(vertex));
            if let Some((_, place)) = loose {
                return Err(self.contradiction(
                    None,
                    format!("NIC {place} of `{}` is in no switch", host.name),
                    "lists the switches",
                    "name the host in `ports` of a [[fabric.switches]]; a cluster with a listed network cannot grow",
                ));
            }
        }
        Ok(())
    }
}

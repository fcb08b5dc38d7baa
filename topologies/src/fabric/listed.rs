//! Draws a network as it is listed.

use std::collections::{HashMap, HashSet};

use collcast_sim::ids::VertexId;
use collcast_sim::topology::{LinkKind, TopologyBuilder, VertexKind};
use collcast_sim::units::Bandwidth;

use super::{FabricSpec, Joined, MAX_SWITCHES, Routing, Tree, Uplinks, assume, port};
use crate::error::{TopologiesError, quote};

/// Cables side by side that go into a switch from below.
#[derive(Clone, Copy)]
struct Cable {
    from: VertexId,
    kind: LinkKind,
    /// Of all.
    rate: Bandwidth,
    count: u32,
    /// Rate of the port at the lower end.
    fastest: Bandwidth,
}

impl FabricSpec {
    /// Draws the switches that have hosts of the cluster below them.
    pub(super) fn listed(
        &self,
        builder: &mut TopologyBuilder,
        hosts: &[Joined],
        odd: &mut Uplinks<'_>,
    ) -> Result<(), TopologiesError> {
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
        let upwards = Tree::upwards(&parents);
        // A switch that is down takes all below it along.
        let mut down = vec![None; tree.switches.len()];
        for &index in upwards.iter().rev() {
            let above = parents[index].and_then(|parent| down[parent]);
            down[index] = odd.down(&tree.switches[index].name, above);
        }
        for index in upwards {
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
                    if !odd.plug(name, down[index]) {
                        continue;
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
                builder.duplex(cable.from, vertex, port(cable.kind, cable.rate, cable.count));
            }
            if let Some(parent) = parents[index] {
                levels[parent] = levels[parent].max(levels[index] + 1);
                let rate = switch.uplink_rate.or(switch.rate).unwrap_or(fastest);
                let all = cables.iter().map(|cable| cable.rate.get());
                let needed = all.fold(0, u64::saturating_add).div_ceil(rate.get());
                let count = match switch.uplinks {
                    Some(count) => count.max(1),
                    None => self.uplinks(builder, u32::try_from(needed).unwrap_or(u32::MAX))?,
                };
                if count > MAX_SWITCHES {
                    return Err(self.too_many(count));
                }
                if let Some((all, up)) = odd.bundle(&switch.name, None, rate, count) {
                    below[parent].push(Cable { from: vertex, kind, rate: all, count: up, fastest: rate });
                }
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

//! Cables between switches as a tree: switches of one layer that reach the same leaves are one, with all their cables.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use collcast_sim::units::Bandwidth;

use super::slurm::few;
use super::{ListedHosts, Listing, plain_name};
use crate::error::{Source, TopologiesError};
use crate::exception::{Deviation, Exception};
use crate::fabric::{Ports, TreeSwitch};

/// A cable between two switches, by their places.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cable {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) rate: Option<Bandwidth>,
}

/// A cabled port of a host.
#[derive(Clone, Debug)]
pub(crate) struct Adapter {
    pub(crate) host: String,
    pub(crate) device: String,
    pub(crate) switch: usize,
    pub(crate) rate: Option<Bandwidth>,
}

/// A network as it is cabled.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cables {
    /// Names of the switches.
    pub(crate) switches: Vec<String>,
    pub(crate) between: Vec<Cable>,
    pub(crate) adapters: Vec<Adapter>,
    /// Whether switches reduce.
    pub(crate) reduces: bool,
    pub(crate) notes: Vec<String>,
}

/// Most layers of switches: twice what is built.
const LAYERS_MAX: u32 = 8;

/// A port of a host, and which NIC of the machine it is.
type Plugged = (u32, Adapter);

/// `mlx5_10` after `mlx5_9`.
fn natural(device: &str) -> (String, u64) {
    let start = device.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    (device[..start].to_owned(), device[start..].parse().unwrap_or(0))
}

impl Cables {
    /// Hosts with as many ports as a machine has NICs (`wanted` names, `rate` of each), and the switches above them.
    ///
    /// # Errors
    /// No host with so many ports; switches of one layer that are cabled to each other.
    pub(crate) fn listing(
        self,
        source: Source<'_>,
        wanted: &[String],
        rate: Option<Bandwidth>,
    ) -> Result<Listing, TopologiesError> {
        let Self { switches, between, adapters, reduces, mut notes } = self;
        let mut by_host: BTreeMap<String, Vec<Adapter>> = BTreeMap::new();
        for adapter in adapters {
            by_host.entry(adapter.host.clone()).or_default().push(adapter);
        }
        let (hosts, ports) = choose(source, by_host, wanted, &mut notes)?;
        let leaves: BTreeSet<usize> = ports.iter().map(|port| port.1.switch).collect();
        let layers = layers(switches.len(), &between, &leaves);
        let unreached = layers.iter().filter(|layer| layer.is_none()).count();
        if unreached > 0 {
            notes.push(format!("passed over: {unreached} switches that no cable leads to from these hosts"));
        }
        if let Some(cable) = between.iter().find(|c| layers[c.from].is_some() && layers[c.from] == layers[c.to]) {
            return Err(TopologiesError::Contradiction(source.whole(
                format!(
                    "the switches `{}` and `{}` are of one layer and joined: the network is no folded Clos",
                    switches[cable.from], switches[cable.to]
                ),
                "a dragonfly or a torus is not read; describe it by a topology file (collcast topo new)",
            )));
        }
        if layers.iter().flatten().any(|layer| *layer >= LAYERS_MAX) {
            return Err(TopologiesError::TooLarge(source.whole(
                format!("the network has over {LAYERS_MAX} layers of switches"),
                "a chain of switches is not read; networks that are built have up to four layers",
            )));
        }
        let (mut tree, group) = merge(&switches, &between, &layers, &mut notes);
        let mut exceptions = Vec::new();
        let cabled = most(ports.iter().filter_map(|port| port.1.rate));
        let usual = rate.or(cabled);
        if let (Some(cabled), Some(rate)) = (cabled, rate)
            && cabled > rate
        {
            notes.push(format!(
                "warning: the cables of the hosts carry {cabled}; the machine's NICs, which count here, {rate}"
            ));
        }
        let mut plugged: BTreeMap<(usize, u32), Vec<String>> = BTreeMap::new();
        let mut there: HashSet<(&str, u32)> = HashSet::new();
        for (nic, adapter) in &ports {
            plugged.entry((group[&adapter.switch], *nic)).or_default().push(adapter.host.clone());
            there.insert((&adapter.host, *nic));
            if let (Some(is), Some(usual)) = (adapter.rate, usual)
                && is < usual
            {
                exceptions.push(Exception::of_nic(&adapter.host, *nic, Deviation::Rate(is)));
            }
        }
        for host in &hosts {
            let lacking = (0..).take(wanted.len()).filter(|&nic| !there.contains(&(host.as_str(), nic)));
            exceptions.extend(lacking.map(|nic| Exception::of_nic(host, nic, Deviation::Down)));
        }
        for e in exceptions.iter().take(8) {
            let nic = e.port.unwrap_or(0);
            notes.push(match e.deviation {
                Deviation::Rate(rate) => format!("NIC {nic} of {} runs at {rate}", e.name),
                Deviation::Down => format!("NIC {nic} of {} is not in the list: taken as down", e.name),
            });
        }
        if exceptions.len() > 8 {
            notes.push(format!("and {} more NICs that are slower or down", exceptions.len() - 8));
        }
        plug(&mut tree, plugged);
        notes.insert(
            0,
            format!(
                "{} hosts, {} of {} switches as {}",
                hosts.len(),
                layers.iter().flatten().count(),
                switches.len(),
                tree.len()
            ),
        );
        let groups = vec![ListedHosts { names: hosts, like: None }];
        Ok(Listing {
            groups,
            switches: tree,
            by_nic: true,
            exceptions,
            sharp: Some(reduces),
            notes,
            ..Listing::default()
        })
    }
}

/// What there is most of.
fn most(rates: impl Iterator<Item = Bandwidth>) -> Option<Bandwidth> {
    let mut counts: BTreeMap<Bandwidth, usize> = BTreeMap::new();
    rates.for_each(|rate| *counts.entry(rate).or_default() += 1);
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(rate, _)| rate)
}

/// The hosts whose ports are those of the machine, and their ports by the NIC that each is.
fn choose(
    source: Source<'_>,
    by_host: BTreeMap<String, Vec<Adapter>>,
    wanted: &[String],
    notes: &mut Vec<String>,
) -> Result<(Vec<String>, Vec<Plugged>), TopologiesError> {
    let needed = wanted.len().max(1);
    let full = by_host.values().filter(|ports| ports.len() >= needed);
    // Which device is which NIC: by the machine's names, else the devices of most full hosts in order.
    let mut usual: BTreeMap<Vec<String>, usize> = BTreeMap::new();
    for ports in full {
        let mut devices: Vec<String> = ports.iter().map(|port| port.device.clone()).collect();
        devices.sort_by_key(|device| natural(device));
        *usual.entry(devices).or_default() += 1;
    }
    let Some((devices, _)) = usual.iter().max_by_key(|(_, count)| **count) else {
        let most = by_host.values().map(Vec::len).max().unwrap_or(0);
        return Err(TopologiesError::Contradiction(source.whole(
            format!("no host has {needed} ports, as the machine has NICs; the most that one has are {most}"),
            "name a machine with as many NICs as the hosts have ports: --like",
        )));
    };
    let named: Vec<String> = wanted.iter().filter(|name| !name.is_empty()).cloned().collect();
    let devices: Vec<String> = if named.len() == needed && named.iter().all(|name| devices.contains(name)) {
        named
    } else {
        if devices.len() > needed {
            let extra: Vec<String> = devices[needed..].to_vec();
            notes.push(format!("assumed: the first {needed} ports of a host carry collectives, not {}", few(&extra)));
        }
        devices[..needed].to_vec()
    };
    let place: HashMap<&str, u32> = devices.iter().map(String::as_str).zip(0..).collect();
    let (mut hosts, mut ports, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for (host, mut its) in by_host {
        its.sort_by_key(|port| natural(&port.device));
        let known = its.iter().filter(|port| place.contains_key(port.device.as_str())).count();
        if known == needed || (known == its.len() && 2 * known >= needed) {
            ports.extend(its.into_iter().filter_map(|port| Some((*place.get(port.device.as_str())?, port))));
        } else if its.len() >= needed {
            // Other names than most hosts have: the ports in order.
            ports.extend((0..).zip(its).take(needed));
        } else {
            others.push(host);
            continue;
        }
        hosts.push(host);
    }
    if !others.is_empty() {
        notes.push(format!("passed over: {} hosts with fewer ports than {needed}: {}", others.len(), few(&others)));
    }
    hosts.sort_by_key(|host| natural(host));
    Ok((hosts, ports))
}

/// Steps from the nearest leaf; none where no cable leads there.
fn layers(count: usize, between: &[Cable], leaves: &BTreeSet<usize>) -> Vec<Option<u32>> {
    let mut next: Vec<Vec<usize>> = vec![Vec::new(); count];
    for cable in between {
        next[cable.from].push(cable.to);
        next[cable.to].push(cable.from);
    }
    let mut layers = vec![None; count];
    let mut queue: VecDeque<usize> = leaves.iter().copied().collect();
    leaves.iter().for_each(|&leaf| layers[leaf] = Some(0));
    while let Some(at) = queue.pop_front() {
        for &to in &next[at] {
            if layers[to].is_none() {
                layers[to] = layers[at].map(|layer| layer + 1);
                queue.push_back(to);
            }
        }
    }
    layers
}

/// One switch for all of a layer that are joined through the layers below; and which one each switch is in.
fn merge(
    names: &[String],
    between: &[Cable],
    layers: &[Option<u32>],
    notes: &mut Vec<String>,
) -> (Vec<TreeSwitch>, HashMap<usize, usize>) {
    let mut root: Vec<usize> = (0..names.len()).collect();
    fn find(root: &mut [usize], mut at: usize) -> usize {
        while root[at] != at {
            root[at] = root[root[at]];
            at = root[at];
        }
        at
    }
    let top = layers.iter().flatten().copied().max().unwrap_or(0);
    let mut group: HashMap<usize, usize> = HashMap::new();
    let mut tree: Vec<TreeSwitch> = Vec::new();
    let mut taken: HashSet<String> = HashSet::new();
    // By layer: a set of joined switches below it, and the entry of the tree that is its highest.
    let mut highest: HashMap<usize, usize> = HashMap::new();
    for layer in 0..=top {
        for cable in between.iter().filter(|cable| layers[cable.from].max(layers[cable.to]) == Some(layer)) {
            if layers[cable.from].is_some() && layers[cable.to].is_some() {
                let (a, b) = (find(&mut root, cable.from), find(&mut root, cable.to));
                root[a.max(b)] = a.min(b);
            }
        }
        let mut merged: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for switch in (0..names.len()).filter(|&switch| layers[switch] == Some(layer)) {
            merged.entry(find(&mut root, switch)).or_default().push(switch);
        }
        let mut below: HashMap<usize, Vec<usize>> = HashMap::new();
        let mut roots: Vec<(usize, usize)> = highest.drain().collect();
        roots.sort_unstable();
        let mut now: HashMap<usize, usize> = HashMap::new();
        for (old, entry) in roots {
            let root = find(&mut root, old);
            if merged.contains_key(&root) {
                below.entry(root).or_default().push(entry);
            } else {
                now.insert(root, entry);
            }
        }
        for (root, members) in merged {
            let entry = tree.len();
            group.extend(members.iter().map(|&member| (member, entry)));
            let switches = below.remove(&root).unwrap_or_default().into_iter().map(|b| tree[b].name.clone()).collect();
            let name = plain_name(&names[members[0]], &mut taken);
            if members.len() > 1 {
                notes.push(format!("`{name}` stands for {} switches of layer {layer} in parallel", members.len()));
            }
            tree.push(TreeSwitch { name, switches, ..TreeSwitch::default() });
            now.insert(root, entry);
        }
        highest = now;
    }
    // Cables upwards, and what they carry together.
    let mut up: HashMap<usize, (u32, u64, u32)> = HashMap::new();
    for cable in between {
        let (Some(from), Some(to)) = (layers[cable.from], layers[cable.to]) else { continue };
        let lower = if from < to { cable.from } else { cable.to };
        let sum = up.entry(group[&lower]).or_default();
        sum.0 += 1;
        if let Some(rate) = cable.rate {
            (sum.1, sum.2) = (sum.1.saturating_add(rate.get()), sum.2 + 1);
        }
    }
    for (entry, (cables, sum, known)) in up {
        tree[entry].uplinks = Some(cables);
        tree[entry].uplink_rate = sum.checked_div(u64::from(known)).and_then(Bandwidth::new);
    }
    (tree, group)
}

/// Hosts into their leaves: those with the same NICs there together.
fn plug(tree: &mut [TreeSwitch], plugged: BTreeMap<(usize, u32), Vec<String>>) {
    let mut by_leaf: BTreeMap<usize, BTreeMap<String, Vec<u32>>> = BTreeMap::new();
    for ((leaf, nic), hosts) in plugged {
        for host in hosts {
            by_leaf.entry(leaf).or_default().entry(host).or_default().push(nic);
        }
    }
    for (leaf, hosts) in by_leaf {
        let mut alike: BTreeMap<Vec<u32>, Vec<String>> = BTreeMap::new();
        hosts.into_iter().for_each(|(host, nics)| alike.entry(nics).or_default().push(host));
        for (nics, mut hosts) in alike {
            hosts.sort_by_key(|host| natural(host));
            tree[leaf].ports.push(Ports { hosts, nics: Some(nics) });
        }
    }
}

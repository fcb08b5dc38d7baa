//! Networks as schedulers, fabrics and clouds list them: hosts and the switches above them, but no GPU, and seldom a rate.
//! What they lack comes from a machine that the user names.

pub(crate) mod clos;
pub mod ec2;
pub mod ibnet;
pub mod slurm;

use std::collections::BTreeSet;

use crate::cluster::{ClusterSpec, HostGroup};
use crate::error::{Diagnostic, TopologiesError, quote};
use crate::exception::Exception;
use crate::fabric::{FabricKind, FabricPlaces, FabricSpec, Oversubscription, Ports, Routing, Tree, TreeSwitch};
use crate::host::HostSpec;

/// Hosts that are listed together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedHosts {
    /// Names, in file order.
    pub names: Vec<String>,
    /// The built-in machine that the file itself says they are.
    pub like: Option<&'static str>,
}

/// What a file lists.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Listing {
    /// Hosts, in rank order.
    pub groups: Vec<ListedHosts>,
    /// Whether each group is one NVLink domain, where the machines have such.
    pub blocks: bool,
    /// The switches; of hosts without a list of NICs all NICs are below.
    pub switches: Vec<TreeSwitch>,
    /// Whether the switches say which NICs are below them.
    pub by_nic: bool,
    /// NICs that are not as the others.
    pub exceptions: Vec<Exception>,
    /// Whether the list shows switches that reduce; none where it does not say.
    pub sharp: Option<bool>,
    /// What was read, and what was passed over.
    pub notes: Vec<String>,
}

/// A listing with its hosts as machines.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// The whole cluster.
    pub cluster: ClusterSpec,
    /// For each group of it the machine that its hosts are like, as it was named.
    pub like: Vec<String>,
    /// Where what was taken from, and what was passed over.
    pub notes: Vec<String>,
}

impl Listing {
    /// Completes the list by machines: `base` gives one by name, and `like` is the one that the user names for all.
    ///
    /// # Errors
    /// No machine for hosts that need one; what `base` refuses; more hosts than are supported.
    pub fn complete(
        self,
        file: &str,
        like: Option<&str>,
        base: &mut dyn FnMut(&str) -> Result<ClusterSpec, TopologiesError>,
    ) -> Result<Listed, TopologiesError> {
        let mut notes = self.notes;
        let mut groups = Vec::new();
        let mut names = Vec::new();
        let mut first: Option<ClusterSpec> = None;
        for group in self.groups {
            let Some(name) = like.or(group.like) else {
                return Err(TopologiesError::Key(Box::new(Diagnostic {
                    message: format!("`{}` lists hosts, but no GPU of theirs", quote(file)),
                    file: file.to_owned(),
                    at: None,
                    label: String::new(),
                    hint: "name the machine that they are: --like dgx-h100 (`collcast topo list` has all)".to_owned(),
                })));
            };
            let spec = base(name)?;
            let host = spec.groups.first().map(|group| group.host.clone()).unwrap_or_default();
            if names.last().is_none_or(|last| last != name) {
                notes.push(format!(
                    "machine: {} GPUs and {} NICs of each host, with all rates, from `{name}`",
                    host.gpus.len(),
                    host.data_nics().count()
                ));
            }
            names.push(name.to_owned());
            let new_domain = self.blocks && host.nvlink_domain.is_some();
            groups.push(HostGroup { names: group.names, host, new_domain });
            first.get_or_insert(spec);
        }
        let base = first.unwrap_or_default();
        let host = groups.first().map(|group| group.host.clone()).unwrap_or_default();
        let own = self.blocks && host.nvlink_domain.is_some();
        if self.blocks {
            let what = if own { "an NVLink domain" } else { "a set of hosts below one leaf" };
            notes.push(format!("machine: a block is taken as {what}, since that is what `{}` has", names[0]));
        }
        let domain = groups.iter().map(|group| group.names.len()).max().unwrap_or(0);
        if let Some(size) = host.nvlink_domain.filter(|&size| own && domain > size as usize) {
            notes.push(format!("warning: a block has {domain} hosts, an NVLink domain of `{}` {size}", names[0]));
        }
        let fabric = if own {
            notes.push(format!("network: that of `{}`, as the file lists no switches", names[0]));
            base.fabric.clone()
        } else {
            let (fabric, said) = network(self.switches, self.by_nic, &host, base.fabric.as_ref(), &names[0]);
            notes.extend(said);
            Some(FabricSpec { sharp: self.sharp.unwrap_or(fabric.sharp), ..fabric })
        };
        let stem =
            std::path::Path::new(file).file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned());
        let cluster = ClusterSpec {
            name: stem,
            description: String::new(),
            file: file.to_owned(),
            text: String::new(),
            profile: base.profile,
            software: base.software,
            groups,
            fabric,
            exceptions: self.exceptions,
            assumptions: base.assumptions,
            cut: false,
        };
        // What cannot be drawn is refused here and not by who reads the result.
        cluster.build()?;
        Ok(Listed { cluster, like: names, notes })
    }
}

/// The network of listed switches: with what the machine's own network has, and a leaf for each rail where it has rails.
fn network(
    switches: Vec<TreeSwitch>,
    by_nic: bool,
    host: &HostSpec,
    base: Option<&FabricSpec>,
    like: &str,
) -> (FabricSpec, Vec<String>) {
    let mut notes = Vec::new();
    let kind = base.map_or(FabricKind::SingleSwitch, |fabric| fabric.kind);
    let rails: BTreeSet<u32> = host.data_nics().zip(0..).map(|(nic, place)| nic.nic.rail.unwrap_or(place)).collect();
    let rails = matches!(kind, FabricKind::RailOptimised | FabricKind::RailOnly) && !by_nic && rails.len() > 1;
    let switches = if rails {
        notes.push(format!("network: a leaf of the file is a leaf for each rail, since `{like}` has a NIC on each"));
        on_rails(switches, host, kind == FabricKind::RailOnly)
    } else {
        switches
    };
    let routing = match base.map(|fabric| fabric.routing) {
        None | Some(Routing::Hash(_)) => Routing::Adaptive,
        Some(routing) => routing,
    };
    let leaf = base.and_then(|fabric| fabric.leaf);
    let ratio = match base.map(|fabric| (fabric.oversubscription, leaf.and_then(|leaf| leaf.down.zip(leaf.up)))) {
        Some((Oversubscription::Thousandths(thousandths), _)) => thousandths,
        Some((Oversubscription::NotGiven, Some((down, up)))) if up > 0 => {
            let thousandths = (u64::from(down) * 1000 / u64::from(up)).clamp(1000, 1_000_000);
            u32::try_from(thousandths).unwrap_or(1000)
        }
        _ => 1000,
    };
    let below: BTreeSet<&String> = switches.iter().flat_map(|switch| &switch.switches).collect();
    let counted = switches.iter().all(|switch| switch.uplinks.is_some() || !below.contains(&switch.name));
    // That nothing is over-subscribed is what is hoped for: whoever reads the file has to say that nobody knows.
    let (oversubscription, said) = match ratio {
        _ if counted => (Oversubscription::NotGiven, None),
        1000 => (Oversubscription::Unknown, Some("unknown: 1 to 1 is assumed".to_owned())),
        _ => {
            let words = format!("{} to 1, that of `{like}`: an assumption", f64::from(ratio) / 1000.0);
            (Oversubscription::Thousandths(ratio), Some(words))
        }
    };
    if let Some(said) = said {
        notes.push(format!("network: rates of the ports are those of the NICs, and the over-subscription is {said}"));
    }
    let fabric = FabricSpec {
        kind: FabricKind::Listed,
        hosts_per_unit: None,
        leaf: None,
        spine: None,
        routing,
        oversubscription,
        sharp: base.is_some_and(|fabric| fabric.sharp),
        tree: Tree { switches },
        places: FabricPlaces::default(),
    };
    (fabric, notes)
}

/// A leaf for each rail in place of each leaf; where rails are never joined, all that is above too.
fn on_rails(switches: Vec<TreeSwitch>, host: &HostSpec, apart: bool) -> Vec<TreeSwitch> {
    let mut rails: std::collections::BTreeMap<u32, Vec<u32>> = std::collections::BTreeMap::new();
    for (nic, place) in host.data_nics().zip(0..) {
        rails.entry(nic.nic.rail.unwrap_or(place)).or_default().push(place);
    }
    let leaves: BTreeSet<String> = switches.iter().filter(|s| !s.ports.is_empty()).map(|s| s.name.clone()).collect();
    let on = |name: &str, rail: u32| format!("{name}-rail{rail}");
    let mut all = Vec::new();
    for switch in switches {
        if !switch.ports.is_empty() || apart {
            for (&rail, nics) in &rails {
                let ports = |ports: &Ports| Ports { hosts: ports.hosts.clone(), nics: Some(nics.clone()) };
                all.push(TreeSwitch {
                    name: on(&switch.name, rail),
                    ports: switch.ports.iter().map(ports).collect(),
                    switches: switch.switches.iter().map(|name| on(name, rail)).collect(),
                    ..switch.clone()
                });
            }
        } else {
            let below = |name: &String| match leaves.contains(name) {
                true => rails.keys().map(|&rail| on(name, rail)).collect(),
                false => vec![name.clone()],
            };
            all.push(TreeSwitch { switches: switch.switches.iter().flat_map(below).collect(), ..switch });
        }
    }
    all
}

/// A name that a host list can hold, different from those taken.
pub(crate) fn plain_name(name: &str, taken: &mut std::collections::HashSet<String>) -> String {
    let kept = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let plain: String = name.chars().take(64).map(kept).collect();
    let plain = plain.trim_matches('-');
    let plain = if plain.is_empty() { "switch" } else { plain };
    let mut named = plain.to_owned();
    let mut count = 1;
    while !taken.insert(named.clone()) {
        count += 1;
        named = format!("{plain}-{count}");
    }
    named
}

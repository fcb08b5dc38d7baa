//! EC2's `DescribeInstanceTopology` (`aws ec2 describe-instance-topology`): instances with the network nodes above them.
//!
//! # Source
//! The EC2 API reference, InstanceTopology: `NetworkNodes` goes from the top to the node that the instance connects to.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Deserialize;

use super::{ListedHosts, Listing, plain_name};
use crate::cluster::MAX_GPUS;
use crate::error::{Source, TopologiesError, quote};
use crate::fabric::{Ports, TreeSwitch};

/// Instance types of which there is a built-in machine.
const TYPES: [(&str, &str); 8] = [
    ("p4d.24xlarge", "aws-p4d"),
    ("p4de.24xlarge", "aws-p4de"),
    ("p5.48xlarge", "aws-p5"),
    ("p5e.48xlarge", "aws-p5e"),
    ("p5en.48xlarge", "aws-p5en"),
    ("p6-b200.48xlarge", "aws-p6-b200"),
    ("p6-b300.48xlarge", "aws-p6-b300"),
    ("p6e-gb200.36xlarge", "aws-p6e-gb200"),
];

/// Most layers of network nodes; EC2 gives 3 or 4.
const MAX_LAYERS: usize = 16;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    instances: Vec<Instance>,
    next_token: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Instance {
    instance_id: String,
    #[serde(default)]
    instance_type: String,
    #[serde(default)]
    network_nodes: Vec<String>,
    zone_id: Option<String>,
}

/// Whether a text is such an answer.
pub(crate) fn looks_like(text: &str) -> bool {
    text.trim_start().starts_with('{') && text.contains("\"NetworkNodes\"")
}

/// Reads the answer. Instances whose type is no machine that is known are taken only where the user names one (`all`).
///
/// # Errors
/// No such JSON, no instance that can be used, an instance twice, or without network nodes.
pub fn read(source: Source<'_>, all: bool) -> Result<Listing, TopologiesError> {
    let answer = parsed(source)?;
    let mut found = Found::default();
    for instance in answer.instances {
        found.take(instance, all).map_err(|message| bad(source, message))?;
    }
    let Found { left_out, zones, mut groups, above, order, hosts, tops, .. } = found;
    let mut notes = Vec::new();
    for (kind, count) in &left_out {
        notes.push(format!("passed over: {count} instances of `{}`, of which no machine is known", quote(kind)));
    }
    if groups.is_empty() {
        let kinds: Vec<&str> = TYPES.iter().map(|(kind, _)| *kind).collect();
        return Err(TopologiesError::Value(source.whole(
            "the answer has no instance whose machine is known",
            format!("known: {}; for others name one with --like", kinds.join(", ")),
        )));
    }
    let (switches, said) = tree(source, &order, &above, hosts, &tops)?;
    let count: usize = groups.iter().map(|group| group.names.len()).sum();
    notes.insert(0, format!("{count} instances below {} network nodes", order.len()));
    notes.extend(said);
    if zones.len() > 1 {
        notes.push(format!("warning: the instances are in {} zones; EFA does not reach across", zones.len()));
    }
    if answer.next_token.is_some_and(|token| !token.is_empty()) {
        notes.push("warning: the answer has a NextToken: more instances follow on another page".to_owned());
    }
    in_order(&mut groups, &switches);
    Ok(Listing { groups, switches, notes, ..Listing::default() })
}

/// The answer as JSON, within bounds.
fn parsed(source: Source<'_>) -> Result<Answer, TopologiesError> {
    let answer: Answer = serde_json::from_str(source.text).map_err(|error| {
        let line_start: usize =
            source.text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
        let at = (line_start + error.column().saturating_sub(1)).min(source.text.len());
        TopologiesError::Syntax(source.at(
            at..at + 1,
            format!("the file is no answer of DescribeInstanceTopology: {}", quote(&error.to_string())),
            "here",
            "save what `aws ec2 describe-instance-topology` prints",
        ))
    })?;
    if answer.instances.len() > MAX_GPUS {
        return Err(TopologiesError::TooLarge(
            source.whole(format!("the answer has over {MAX_GPUS} instances"), "ask for one placement group"),
        ));
    }
    Ok(answer)
}

/// What instances say of the network.
#[derive(Default)]
struct Found {
    /// Instances of which no machine is known, by type.
    left_out: BTreeMap<String, usize>,
    zones: HashSet<String>,
    groups: Vec<ListedHosts>,
    /// Instances by id.
    seen: HashSet<String>,
    /// Below which node a node is; names as EC2 has them.
    above: HashMap<String, String>,
    /// Nodes in the order that they are met in.
    order: Vec<String>,
    known: HashSet<String>,
    /// Instances by the lowest node that they are below.
    hosts: HashMap<String, Vec<String>>,
    tops: Vec<String>,
}

impl Found {
    /// Takes an instance; an error says what is wrong with it.
    fn take(&mut self, instance: Instance, all: bool) -> Result<(), String> {
        let like = TYPES.iter().find(|(kind, _)| *kind == instance.instance_type).map(|(_, like)| *like);
        if like.is_none() && !all {
            *self.left_out.entry(instance.instance_type).or_default() += 1;
            return Ok(());
        }
        let id = instance.instance_id;
        if id.is_empty() || !id.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
            return Err(format!("`{}` is no instance id", quote(&id)));
        }
        if !self.seen.insert(id.clone()) {
            return Err(format!("the instance `{id}` is there twice"));
        }
        self.zones.extend(instance.zone_id);
        self.nodes(&id, &instance.network_nodes)?;
        match self.groups.iter_mut().find(|group| all || group.like == like) {
            Some(group) => group.names.push(id),
            None => self.groups.push(ListedHosts { names: vec![id], like }),
        }
        Ok(())
    }

    /// The nodes above an instance, the highest first.
    fn nodes(&mut self, id: &str, nodes: &[String]) -> Result<(), String> {
        let Some(lowest) = nodes.last().filter(|_| nodes.len() <= MAX_LAYERS) else {
            return Err(format!("the instance `{id}` has {} network nodes", nodes.len()));
        };
        for pair in nodes.windows(2) {
            let (upper, lower) = (&pair[0], &pair[1]);
            if self.above.insert(lower.clone(), upper.clone()).is_some_and(|other| other != *upper) {
                return Err(format!("the network node `{}` is below two others", quote(lower)));
            }
        }
        for (layer, node) in nodes.iter().enumerate() {
            if self.known.insert(node.clone()) {
                self.order.push(node.clone());
                if layer == 0 {
                    self.tops.push(node.clone());
                }
            }
        }
        self.hosts.entry(lowest.clone()).or_default().push(id.to_owned());
        Ok(())
    }
}

/// Ranks follow the network: instances of one node are neighbours.
fn in_order(groups: &mut [ListedHosts], switches: &[TreeSwitch]) {
    let hosts = switches.iter().flat_map(|switch| &switch.ports).flat_map(|ports| &ports.hosts);
    let rank: HashMap<&str, usize> = hosts.zip(0..).map(|(name, rank)| (name.as_str(), rank)).collect();
    for group in groups {
        group.names.sort_by_key(|name| rank.get(name.as_str()));
    }
}

fn bad(source: Source<'_>, message: String) -> TopologiesError {
    TopologiesError::Contradiction(source.whole(message, "save what `aws ec2 describe-instance-topology` prints again"))
}

/// Network nodes as switches; several at the top get one above them.
fn tree(
    source: Source<'_>,
    order: &[String],
    above: &HashMap<String, String>,
    mut hosts: HashMap<String, Vec<String>>,
    tops: &[String],
) -> Result<(Vec<TreeSwitch>, Option<String>), TopologiesError> {
    let mut taken = HashSet::new();
    let name: HashMap<&str, String> = order.iter().map(|node| (node.as_str(), plain_name(node, &mut taken))).collect();
    let mut below: HashMap<&str, Vec<String>> = HashMap::new();
    for node in order {
        if let Some(upper) = above.get(node) {
            below.entry(upper).or_default().push(name[node.as_str()].clone());
        }
    }
    let mut switches = Vec::new();
    for node in order {
        let (hosts, below) = (hosts.remove(node).unwrap_or_default(), below.remove(node.as_str()).unwrap_or_default());
        if !hosts.is_empty() && !below.is_empty() {
            return Err(bad(source, format!("instances and nodes are below the network node `{}`", quote(node))));
        }
        let ports = if hosts.is_empty() { Vec::new() } else { Ports::all(hosts) };
        switches.push(TreeSwitch {
            name: name[node.as_str()].clone(),
            ports,
            switches: below,
            ..TreeSwitch::default()
        });
    }
    let mut note = None;
    if tops.len() > 1 {
        note = Some(format!("assumed: a switch joins {} network nodes that nothing is above of", tops.len()));
        let below = tops.iter().map(|node| name[node.as_str()].clone()).collect();
        let top = plain_name("top", &mut taken);
        switches.push(TreeSwitch { name: top, switches: below, ..TreeSwitch::default() });
    }
    Ok((switches, note))
}

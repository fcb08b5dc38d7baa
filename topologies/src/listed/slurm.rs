//! Slurm's `topology.conf`, as the plugins tree and block read it.
//!
//! # Source
//! The manual page topology.conf(5) of Slurm 24.05: keys, comments, continued lines, and that `LinkSpeed` is not used.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use super::{ListedHosts, Listing};
use crate::cluster::MAX_GPUS;
use crate::error::{Source, TopologiesError, quote};
use crate::fabric::{MAX_SWITCHES, Ports, TreeSwitch};
use crate::hostlist;

/// Whether a text is such a file.
pub(crate) fn looks_like(text: &str) -> bool {
    text.lines().take(2000).any(|line| {
        let line = line.trim_start().as_bytes();
        let starts = |key: &str| line.get(..key.len()).is_some_and(|start| start.eq_ignore_ascii_case(key.as_bytes()));
        starts("SwitchName=") || starts("BlockName=")
    })
}

/// A value with its place.
type At<'a> = (&'a str, Range<usize>);

/// Reads the file.
///
/// # Errors
/// A line that is no list of `Key=value`, a host list that is none, switches and blocks together, no host at all; with
/// line and column.
pub fn read(source: Source<'_>) -> Result<Listing, TopologiesError> {
    let mut switches: Vec<TreeSwitch> = Vec::new();
    let mut blocks: Vec<(String, Vec<String>)> = Vec::new();
    let mut ignored: BTreeMap<String, usize> = BTreeMap::new();
    let mut count = 0;
    for line in lines(source.text) {
        let mut keys: HashMap<String, At<'_>> = HashMap::new();
        for (word, span) in words(source.text, line) {
            let Some((key, value)) = word.split_once('=') else {
                return Err(TopologiesError::Syntax(source.at(
                    span,
                    format!("`{}` is no setting of topology.conf", quote(word)),
                    "expected Key=value",
                    "lines are such as SwitchName=leaf1 Nodes=gpu[001-032]",
                )));
            };
            let place = span.start + key.len() + 1..span.end;
            keys.insert(key.to_ascii_lowercase(), (value, place));
        }
        let (switch, block) = (keys.remove("switchname"), keys.remove("blockname"));
        let list = |list: Option<At<'_>>| match list {
            None => Ok(Vec::new()),
            Some((list, span)) => hostlist::expand(list).map_err(|error| {
                TopologiesError::Value(source.at(
                    span,
                    format!("`{}` is not a host list: {error}", quote(list)),
                    "expected a list such as gpu[001-032]",
                    "`scontrol show topology` prints names as Slurm has read them",
                ))
            }),
        };
        let nodes = list(keys.remove("nodes"))?;
        count += nodes.len();
        if count > MAX_GPUS || switches.len() + blocks.len() > MAX_SWITCHES as usize {
            return Err(TopologiesError::TooLarge(source.whole(
                format!("the file lists over {MAX_GPUS} hosts or {MAX_SWITCHES} switches"),
                "leave out those that are of no interest",
            )));
        }
        match (switch, block) {
            (Some((name, span)), None) => {
                let below = list(keys.remove("switches"))?;
                count += below.len();
                if hostlist::expand(name).ok().is_none_or(|names| names != [name]) {
                    return Err(TopologiesError::Value(source.at(
                        span,
                        format!("`{}` is not the name of a switch", quote(name)),
                        "expected letters, digits, - and _",
                        "each line has one SwitchName",
                    )));
                }
                let ports = if nodes.is_empty() { Vec::new() } else { Ports::all(nodes) };
                let name = name.to_owned();
                switches.push(TreeSwitch {
                    name,
                    ports,
                    switches: below,
                    at: Some(source.locate(span)),
                    ..TreeSwitch::default()
                });
            }
            (None, Some((name, _))) => blocks.push((name.to_owned(), nodes)),
            (Some(_), Some((_, span))) => {
                return Err(TopologiesError::Contradiction(source.at(
                    span,
                    "a line names a switch and a block",
                    "one of them",
                    "a line is of the plugin tree (SwitchName) or of the plugin block (BlockName)",
                )));
            }
            (None, None) => {}
        }
        keys.into_keys().for_each(|key| *ignored.entry(key).or_default() += 1);
    }
    let mut notes = Vec::new();
    if !ignored.is_empty() {
        let words: Vec<String> = ignored.iter().map(|(key, count)| format!("{} ({count})", quote(key))).collect();
        notes.push(format!("passed over: {}; Slurm uses these for scheduling alone, or not at all", words.join(", ")));
    }
    match (switches.is_empty(), blocks.is_empty()) {
        (false, true) => tree(source, switches, notes),
        (true, false) => Ok(of_blocks(source, blocks, notes)?),
        (false, false) => Err(TopologiesError::Contradiction(source.whole(
            "the file has switches and blocks; Slurm reads one of them",
            "keep the lines of the plugin that TopologyPlugin in slurm.conf names",
        ))),
        (true, true) => Err(TopologiesError::Syntax(source.whole(
            "the file names no switch and no block",
            "a line such as SwitchName=leaf1 Nodes=gpu[001-032] names one",
        ))),
    }
}

/// Logical lines as ranges of the text, without comments: a line that ends in a backslash goes on.
fn lines(text: &str) -> impl Iterator<Item = Vec<Range<usize>>> {
    let mut all: Vec<Vec<Range<usize>>> = Vec::new();
    let mut open = false;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let start = at;
        at += line.len();
        let kept = line.split('#').next().unwrap_or_default().trim_end();
        let goes_on = kept.ends_with('\\');
        let part = start..start + kept.trim_end_matches('\\').len();
        match all.last_mut() {
            Some(last) if open => last.push(part),
            _ => all.push(vec![part]),
        }
        open = goes_on;
    }
    all.into_iter()
}

/// The words of a logical line, with their places.
fn words(text: &str, parts: Vec<Range<usize>>) -> Vec<At<'_>> {
    let mut all = Vec::new();
    for part in parts {
        let line = &text[part.clone()];
        for word in line.split_whitespace() {
            let start = part.start + (word.as_ptr() as usize - line.as_ptr() as usize);
            all.push((word, start..start + word.len()));
        }
    }
    all
}

fn nowhere(source: Source<'_>) -> TopologiesError {
    TopologiesError::Value(source.whole("the file lists no host", "lines with Nodes= list them"))
}

/// Switches of the plugin tree; several that nothing joins get one above them.
fn tree(source: Source<'_>, switches: Vec<TreeSwitch>, mut notes: Vec<String>) -> Result<Listing, TopologiesError> {
    let mut seen: HashSet<&str> = HashSet::new();
    let mut names = Vec::new();
    for switch in &switches {
        for name in switch.ports.iter().flat_map(|ports| &ports.hosts) {
            if !seen.insert(name) {
                let message = format!("the host `{}` is below two switches", quote(name));
                let hint = "keep the leaf that its NICs plug into: Slurm's other lines of a host only rank it";
                return Err(TopologiesError::Contradiction(source.at(
                    switch.at.as_ref().map(|at| at.span.clone()).unwrap_or_default(),
                    message,
                    "again here",
                    hint,
                )));
            }
            names.push(name.clone());
        }
    }
    if names.is_empty() {
        return Err(nowhere(source));
    }
    let tree = crate::fabric::Tree { switches };
    let parents = tree.parents(source.file)?;
    let mut switches = tree.switches;
    let leaves = switches.iter().filter(|switch| !switch.ports.is_empty()).count();
    notes.insert(0, format!("{} hosts below {leaves} leaf switches, {} switches in all", names.len(), switches.len()));
    let roots: Vec<String> =
        switches.iter().zip(&parents).filter(|(_, parent)| parent.is_none()).map(|(s, _)| s.name.clone()).collect();
    if roots.len() > 1 {
        notes.push(format!("assumed: a switch joins {} that the file leaves apart ({})", roots.len(), few(&roots)));
        let mut taken: HashSet<String> = switches.iter().map(|switch| switch.name.clone()).collect();
        let name = super::plain_name("top", &mut taken);
        switches.push(TreeSwitch { name, switches: roots, ..TreeSwitch::default() });
    }
    switches.iter_mut().for_each(|switch| switch.at = None);
    Ok(Listing { groups: vec![ListedHosts { names, like: None }], switches, notes, ..Listing::default() })
}

/// Blocks of the plugin block: a group each, and a leaf each for machines without NVLink between hosts.
fn of_blocks(
    source: Source<'_>,
    blocks: Vec<(String, Vec<String>)>,
    mut notes: Vec<String>,
) -> Result<Listing, TopologiesError> {
    let mut seen: HashSet<&str> = HashSet::new();
    for name in blocks.iter().flat_map(|(_, nodes)| nodes) {
        if !seen.insert(name) {
            let message = format!("the host `{}` is in two blocks", quote(name));
            return Err(TopologiesError::Contradiction(source.whole(message, "a host is in one block")));
        }
    }
    let blocks: Vec<(String, Vec<String>)> = blocks.into_iter().filter(|(_, nodes)| !nodes.is_empty()).collect();
    let hosts: usize = blocks.iter().map(|(_, nodes)| nodes.len()).sum();
    if hosts == 0 {
        return Err(nowhere(source));
    }
    notes.insert(0, format!("{hosts} hosts in {} blocks", blocks.len()));
    let mut taken = HashSet::new();
    let mut switches: Vec<TreeSwitch> = Vec::new();
    for (name, nodes) in &blocks {
        let name = super::plain_name(name, &mut taken);
        switches.push(TreeSwitch { name, ports: Ports::all(nodes.clone()), ..TreeSwitch::default() });
    }
    if switches.len() > 1 {
        let below = switches.iter().map(|switch| switch.name.clone()).collect();
        let name = super::plain_name("top", &mut taken);
        switches.push(TreeSwitch { name, switches: below, ..TreeSwitch::default() });
    }
    let groups = blocks.into_iter().map(|(_, names)| ListedHosts { names, like: None }).collect();
    Ok(Listing { groups, blocks: true, switches, notes, ..Listing::default() })
}

/// The first names of a list.
pub(super) fn few(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(3).map(|name| quote(name)).collect();
    let more = if names.len() > 3 { ", ..." } else { "" };
    format!("{}{more}", shown.join(", "))
}

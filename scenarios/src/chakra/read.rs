//! Files of all ranks, one after another, as one graph.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;

use collcast_sim::ids::Rank;
use collcast_sim::units::{Bytes, SimDuration};
use collcast_sim::workload::{OpGraph, Program, RankSpec, Stream, StreamKind, What};
use flate2::bufread::MultiGzDecoder;

use super::error::ChakraError;
use super::names;
use super::node::{Context, Members, Task, Unused};
use super::order::{Ordered, ordered};
use super::wire::{GlobalMetadata, Node, node_type};
use crate::goal::{DEPENDENCIES_MAX, OPS_MAX};

/// Most bytes of one message: real ones have some hundred.
const MESSAGE_MAX: u64 = 4 << 20;
/// Most bytes of a file, unpacked.
const BYTES_MAX: u64 = 4 << 30;
/// Most nodes of a file.
const NODES_MAX: usize = 1_000_000;
/// Most groups and pairs of ranks, by tag.
const GROUPS_MAX: usize = 20_000;

/// A step as it was recorded, and what of it has no use.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// What all ranks do.
    pub graph: OpGraph,
    /// Nodes and attributes that nothing was made of, in words.
    pub warnings: Vec<String>,
}

/// Reads the files of a trace, in rank order.
#[derive(Debug)]
pub struct Reader {
    world: u32,
    memory_ppm: u32,
    /// Programs that differ, with their all-gathers whose bytes are what one rank gives.
    programs: Vec<(Program, Vec<usize>)>,
    /// By rank.
    ranks: Vec<usize>,
    /// Groups of each rank, which may differ where programs do not.
    groups: Vec<Vec<Members>>,
    ops: usize,
    unused: Unused,
}

impl Reader {
    /// A reader of so many files. Computations that do not say so need this part of the memory's rate, in millionths.
    pub fn new(world: u32, memory_ppm: u32) -> Self {
        let (programs, ranks, groups) = (Vec::new(), Vec::new(), Vec::new());
        Self { world, memory_ppm, programs, ranks, groups, ops: 0, unused: Unused::default() }
    }

    /// Reads the next rank's file, compressed by gzip or not. `file` is its name, for messages.
    ///
    /// # Errors
    /// Bytes that are no such file, more of them than are read, a node that contradicts itself or others.
    pub fn add(&mut self, file: &str, input: impl Read) -> Result<(), ChakraError> {
        let mut input = BufReader::new(input);
        let broken = |message: u64, reason: String| ChakraError::Broken { file: file.to_owned(), message, reason };
        let packed = input.fill_buf().map_err(|e| broken(0, e.to_string()))?.starts_with(&[0x1f, 0x8b]);
        let input: Box<dyn Read + '_> = if packed { Box::new(MultiGzDecoder::new(input)) } else { Box::new(input) };
        let mut messages =
            Messages { file, input: BufReader::new(input), left: BYTES_MAX, count: 0, bytes: Vec::new() };
        let head: GlobalMetadata = messages.next()?.ok_or_else(|| broken(0, "the file is empty".to_owned()))?;
        let streams = streams(&head);
        let rank = u32::try_from(self.ranks.len()).unwrap_or(u32::MAX);
        let all: Arc<[u32]> = (0..self.world).collect();
        let mut groups = BTreeMap::new();
        let mut nodes: Vec<Task> = Vec::new();
        let mut dependencies = 0;
        let context = Context { rank, world: self.world, all: &all, memory_ppm: self.memory_ppm };
        let refused =
            |id, name: &str, reason| ChakraError::Node { file: file.to_owned(), id, name: shortened(name), reason };
        while let Some(node) = messages.next::<Node>()? {
            if node.kind == node_type::METADATA {
                listed(&node, &mut groups, &mut self.unused);
            }
            dependencies += node.ctrl_deps.len() + node.data_deps.len();
            let too_many = |limit: String| Err(ChakraError::TooLarge { file: file.to_owned(), limit });
            if nodes.len() == NODES_MAX {
                return too_many(format!("{NODES_MAX} nodes"));
            }
            if dependencies > DEPENDENCIES_MAX {
                return too_many(format!("{DEPENDENCIES_MAX} dependencies"));
            }
            let (id, name) = (node.id, shortened(&node.name));
            let task = context.task(node, &mut self.unused);
            nodes.push(task.map_err(|reason| refused(id, &name, reason))?);
        }
        // Groups may be listed behind the nodes that name them.
        for task in &mut nodes {
            context.settle(task, &groups).map_err(|reason| refused(task.id, &task.name, reason))?;
        }
        let Ordered { program, groups, of_rank } = ordered(&nodes, &streams, &mut self.unused)
            .map_err(|(place, reason)| refused(nodes[place].id, &nodes[place].name, reason))?;
        self.groups.push(groups);
        let program = (program, of_rank);
        let known = self.programs.iter().position(|other| *other == program);
        let program = match known {
            Some(known) => known,
            None => {
                self.ops += program.0.ops.len();
                at_most(self.ops, file)?;
                self.programs.push(program);
                self.programs.len() - 1
            }
        };
        self.ranks.push(program);
        Ok(())
    }

    /// The step of all ranks.
    ///
    /// # Errors
    /// Groups that cannot be told.
    pub fn finish(self) -> Result<Recorded, ChakraError> {
        let bad = |group: &str, reason: String| ChakraError::Group { group: shortened(group), reason };
        // Of groups whose ranks no file lists, those take part that name them.
        let mut told: BTreeMap<&Members, Vec<u32>> = BTreeMap::new();
        for (rank, groups) in (0..).zip(&self.groups) {
            for members in groups {
                told.entry(members).or_default().push(rank);
            }
        }
        if told.len() > GROUPS_MAX {
            let (name, _) = told.keys().next().map_or_else(Default::default, |m| name(m));
            return Err(bad(&name, format!("there are {} groups and tags; at most {GROUPS_MAX} are read", told.len())));
        }
        let mut graph = OpGraph::default();
        let mut numbers: BTreeMap<&Members, usize> = BTreeMap::new();
        for (members, ranks) in &told {
            let (name, listed) = name(members);
            if let Some(missing) = listed.iter().find(|&rank| !ranks.contains(rank)) {
                let call = self.call(ranks[0], members);
                let reason =
                    format!("rank {missing} is in it and makes no call there; rank {} does, `{call}`", ranks[0]);
                return Err(bad(&name, reason));
            }
            let ranks = if listed.is_empty() { ranks.clone() } else { listed };
            if ranks.len() < 2 {
                return Err(bad(&name, format!("rank {} alone names it: give the files of its other ranks", ranks[0])));
            }
            numbers.insert(members, graph.groups.len());
            graph.groups.push(ranks.into_iter().map(Rank).collect());
        }
        // Programs by the number of ranks in each of their groups, where all-gathers say what one rank gives.
        let mut sized: BTreeMap<(usize, Vec<usize>), usize> = BTreeMap::new();
        let mut ops = 0;
        for (&program, members) in self.ranks.iter().zip(&self.groups) {
            let groups: Vec<usize> = members.iter().map(|members| numbers[members]).collect();
            let (as_read, of_rank) = &self.programs[program];
            let sizes: Vec<usize> = groups.iter().map(|&group| graph.groups[group].len()).collect();
            let key = (program, if of_rank.is_empty() { Vec::new() } else { sizes.clone() });
            let next = graph.programs.len();
            let program = *sized.entry(key).or_insert(next);
            if program == next {
                ops += as_read.ops.len();
                at_most(ops, "the trace")?;
                let mut whole = as_read.clone();
                for &op in of_rank {
                    let What::Collective(call) = &mut whole.ops[op].what else { continue };
                    let bytes = call.bytes.0.checked_mul(sizes[call.group] as u64);
                    let too_large =
                        || bad(&name(&members[call.group]).0, "an all-gather has 16 EiB or more".to_owned());
                    call.bytes = Bytes(bytes.ok_or_else(too_large)?);
                }
                graph.programs.push(whole);
            }
            graph.ranks.push(RankSpec { program, groups, pace_ppm: 1_000_000, late: SimDuration::ZERO });
        }
        Ok(Recorded { graph, warnings: self.unused.sentence().into_iter().collect() })
    }

    /// The name of a rank's first call in a group.
    fn call(&self, rank: u32, members: &Members) -> &str {
        let own = self.groups[rank as usize].iter().position(|own| own == members);
        let in_it = |what: &What| match what {
            What::Collective(call) => Some(call.group) == own,
            What::Send { group, .. } | What::Recv { group, .. } => Some(*group) == own,
            _ => false,
        };
        let ops = &self.programs[self.ranks[rank as usize]].0.ops;
        ops.iter().find(|op| in_it(&op.what)).map_or("", |op| &*op.label)
    }
}

/// Whether operations of all ranks that differ are as many as a step may have.
fn at_most(ops: usize, file: &str) -> Result<(), ChakraError> {
    let limit = format!("{OPS_MAX} operations, with those of the ranks before it that differ");
    if ops > OPS_MAX { Err(ChakraError::TooLarge { file: file.to_owned(), limit }) } else { Ok(()) }
}

/// A group's name, and its ranks where they are known.
fn name(members: &Members) -> (String, Vec<u32>) {
    match members {
        // That of all ranks has no name in traces.
        Members::Named(name, ranks) => {
            let name = if name.is_empty() { "all ranks" } else { name };
            (name.to_owned(), ranks.as_deref().unwrap_or_default().to_vec())
        }
        Members::Pair(low, high, tag) => (format!("messages of ranks {low} and {high}, tag {tag}"), vec![*low, *high]),
    }
}

/// A name that a message can hold.
fn shortened(name: &str) -> String {
    name.chars().take(80).collect()
}

/// The messages of a file.
struct Messages<'f, R> {
    file: &'f str,
    input: R,
    left: u64,
    count: u64,
    bytes: Vec<u8>,
}

impl<R: Read> Messages<'_, R> {
    /// The next message, none at the end.
    fn next<M: prost::Message + Default>(&mut self) -> Result<Option<M>, ChakraError> {
        let Some(length) = self.length().map_err(|e| self.broken(&e.to_string()))? else { return Ok(None) };
        if length > MESSAGE_MAX {
            return Err(self.broken(&format!("it has {length} bytes, at most {MESSAGE_MAX} are read")));
        }
        self.left = self.left.saturating_sub(length);
        if self.left == 0 {
            let limit = format!("{} GiB", BYTES_MAX >> 30);
            return Err(ChakraError::TooLarge { file: self.file.to_owned(), limit });
        }
        self.bytes.clear();
        let got =
            (&mut self.input).take(length).read_to_end(&mut self.bytes).map_err(|e| self.broken(&e.to_string()))?;
        if (got as u64) < length {
            return Err(self.broken(&format!("it has {length} bytes, and the file ends after {got} of them")));
        }
        let message = M::decode(&self.bytes[..]).map_err(|e| self.broken(&e.to_string()))?;
        self.count += 1;
        Ok(Some(message))
    }

    fn broken(&self, reason: &str) -> ChakraError {
        ChakraError::Broken { file: self.file.to_owned(), message: self.count, reason: shortened(reason) }
    }

    /// The length of the next message; none at the end of the file, or where it is 0, as Chakra's readers take it.
    fn length(&mut self) -> io::Result<Option<u64>> {
        let mut length = 0_u64;
        for shift in (0..64).step_by(7) {
            let mut byte = [0];
            if self.input.read(&mut byte)? == 0 {
                return if shift == 0 { Ok(None) } else { Err(io::Error::other("the file ends within a length")) };
            }
            length |= u64::from(byte[0] & 0x7f) << shift;
            if byte[0] & 0x80 == 0 {
                return Ok(Some(length).filter(|&length| length > 0));
            }
        }
        Err(io::Error::other("its length is no number"))
    }
}

/// The streams that we wrote down.
fn streams(head: &GlobalMetadata) -> BTreeMap<i64, Stream> {
    let stream = |attribute: &super::wire::Attribute| {
        let number = attribute.name.strip_prefix(names::STREAMS)?.parse().ok()?;
        let text = attribute.text()?;
        let mut fields = text.split('\t');
        let name = fields.next()?.into();
        let kind = match fields.next()? {
            "compute" => StreamKind::Compute,
            "communication" => StreamKind::Communication,
            "copy" => StreamKind::Copy,
            "host" => StreamKind::Host,
            _ => return None,
        };
        Some((number, Stream { name, kind, high_priority: fields.next().is_some() }))
    };
    head.attr.iter().filter_map(stream).collect()
}

/// Groups as PyTorch lists them: a JSON list of `pg_name` and `ranks` among the inputs.
fn listed(node: &Node, groups: &mut BTreeMap<String, Arc<[u32]>>, unused: &mut Unused) {
    #[derive(serde::Deserialize)]
    struct Listed {
        pg_name: String,
        ranks: Vec<u32>,
    }
    let Some(inputs) = &node.inputs else { return };
    let text = &inputs.values;
    let list = text.find("[{").zip(text.rfind("}]")).and_then(|(from, to)| text.get(from..to + 2));
    // PyTorch writes its strings once more as JSON.
    let list = list.map(|list| list.replace("\\\"", "\""));
    let Some(list) = list else { return };
    let entries: Vec<serde_json::Value> = serde_json::from_str(&list).unwrap_or_default();
    if entries.is_empty() {
        unused.count("lists of groups that are no JSON".to_owned());
    }
    for entry in entries {
        match serde_json::from_value::<Listed>(entry) {
            Ok(listed) => {
                groups.insert(listed.pg_name, listed.ranks.into());
            }
            Err(_) => unused.count("groups that are listed without a name and ranks".to_owned()),
        }
    }
}

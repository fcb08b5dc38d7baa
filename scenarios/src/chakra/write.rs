//! A step as Chakra's files: what each rank does.

use collcast_sim::collective::{Algorithm, Collective, Protocol};
use collcast_sim::ids::Rank;
use collcast_sim::predict::Choice;
use collcast_sim::units::{PS_PER_US, SimDuration};
use collcast_sim::workload::{Mover, Op, OpGraph, Program, RankSpec, StreamKind, What};
use serde_json::json;

use super::error::ChakraError;
use super::names;
use super::wire::{Attribute, GlobalMetadata, Node, Texts, Value, node_type};

/// Version of the schema that files say.
const VERSION: &str = "0.0.4";

/// The file of one rank: `PREFIX.RANK.et` by Chakra's custom.
///
/// The host's launches are nodes of the CPU, one before the node that each launches. Computations have the time that they take
/// alone on this rank's GPU; what happens to them beside communication is for the reader to find. Random differences
/// (`graph.jitter`) are left out.
///
/// # Errors
/// A rank that does not exist, or operations that name what is not there.
pub fn write(graph: &OpGraph, rank: Rank) -> Result<Vec<u8>, ChakraError> {
    let spec = graph.ranks.get(rank.index()).ok_or(ChakraError::Graph { rank: rank.0, what: "the rank" })?;
    let program =
        graph.programs.get(spec.program).ok_or(ChakraError::Graph { rank: rank.0, what: "the program of the rank" })?;
    let mut writer = Writer {
        graph,
        rank,
        spec,
        program,
        bytes: Vec::new(),
        next: 0,
        host: None,
        last_on: vec![None; program.streams.len()],
        written: vec![0; program.streams.len() + 1],
        nodes: Vec::new(),
    };
    writer.head();
    for op in &program.ops {
        writer.op(op)?;
    }
    Ok(writer.bytes)
}

struct Writer<'g> {
    graph: &'g OpGraph,
    rank: Rank,
    spec: &'g RankSpec,
    program: &'g Program,
    bytes: Vec<u8>,
    /// The next node's id.
    next: u64,
    /// The host's last node.
    host: Option<u64>,
    last_on: Vec<Option<u64>>,
    /// Picoseconds so far, by stream and then of the host: microseconds are cut from their sum, which loses nothing.
    written: Vec<u64>,
    /// By operation.
    nodes: Vec<u64>,
}

impl Writer<'_> {
    /// Streams, groups, and a host that starts late.
    fn head(&mut self) {
        let streams = self.program.streams.iter().enumerate().map(|(number, stream)| {
            let kind = match stream.kind {
                StreamKind::Compute => "compute",
                StreamKind::Communication => "communication",
                StreamKind::Copy => "copy",
                StreamKind::Host => "host",
            };
            let first = if stream.high_priority { "\tfirst" } else { "" };
            text(&format!("{}{number}", names::STREAMS), format!("{}\t{kind}{first}", stream.name.replace('\t', " ")))
        });
        let head = GlobalMetadata { version: VERSION.to_owned(), attr: streams.collect() };
        self.message(&head);
        let groups: Vec<_> = (self.spec.groups.iter())
            .filter_map(|&group| {
                let ranks: Vec<u32> = self.graph.groups.get(group)?.iter().map(|rank| rank.0).collect();
                Some(json!({ "pg_name": name_of(group), "ranks": ranks, "group_size": ranks.len() }))
            })
            .collect();
        let values = format!("['{}']", serde_json::Value::from(groups));
        let name = "## process_group:init ##".to_owned();
        let node = Node { name, kind: node_type::METADATA, inputs: Some(Texts { values }), ..Node::default() };
        self.node(node);
        if self.spec.late > SimDuration::ZERO {
            self.launch("late start", self.spec.late);
        }
    }

    /// The launching thread is busy.
    fn launch(&mut self, name: &str, time: SimDuration) {
        let mut node = Node { name: name.to_owned(), kind: node_type::COMP, ..Node::default() };
        node.ctrl_deps.extend(self.host);
        node.attr.push(Attribute::new(names::IS_CPU_OP, Value::Bool(true)));
        self.lasts(&mut node, time, self.program.streams.len());
        self.host = Some(self.node(node));
    }

    fn op(&mut self, op: &Op) -> Result<(), ChakraError> {
        let lost = |what| ChakraError::Graph { rank: self.rank.0, what };
        if op.stream >= self.program.streams.len() {
            return Err(lost("a stream"));
        }
        let data_deps: Vec<u64> = op.after.iter().filter_map(|&other| self.nodes.get(other).copied()).collect();
        if data_deps.len() < op.after.len() {
            return Err(lost("an operation before another"));
        }
        let on_host = matches!(op.what, What::Host(_));
        if op.issue > SimDuration::ZERO && !on_host {
            self.launch(&format!("launch {}", op.label), op.issue);
        }
        let before = self.host.into_iter().chain(self.last_on[op.stream]);
        let mut ctrl_deps: Vec<u64> = before.filter(|id| !data_deps.contains(id)).collect();
        ctrl_deps.dedup();
        let mut node = Node { name: op.label.to_string(), ctrl_deps, data_deps, ..Node::default() };
        node.attr.push(Attribute::new(names::IS_CPU_OP, Value::Bool(on_host)));
        node.attr.push(integer(names::STREAM, op.stream as u64));
        node.attr.push(text(names::KIND, op.kind.to_string()));
        if op.framework {
            node.attr.push(Attribute::new(names::FRAMEWORK, Value::Bool(true)));
        }
        self.what(op, &mut node)?;
        let id = self.node(node);
        self.nodes.push(id);
        self.last_on[op.stream] = Some(id);
        if on_host {
            self.host = Some(id);
        }
        Ok(())
    }

    /// What an operation does, in a node.
    fn what(&mut self, op: &Op, node: &mut Node) -> Result<(), ChakraError> {
        node.kind = node_type::COMP;
        let truth = |name| Attribute::new(name, Value::Bool(true));
        match &op.what {
            What::Compute(compute) => {
                let time = u128::from(compute.time.0) * u128::from(self.spec.pace_ppm) / 1_000_000;
                let time = SimDuration(u64::try_from(time).unwrap_or(u64::MAX));
                self.lasts(node, time, op.stream);
                let [tiles, of_others] = compute.tiles;
                let facts = [
                    (names::KERNELS, compute.kernels),
                    (names::WAVES, compute.waves),
                    (names::TILES[0], tiles),
                    (names::TILES[1], of_others),
                    (names::MEMORY, compute.memory_ppm),
                ];
                node.attr.extend(facts.map(|(name, value)| integer(name, value.into())));
            }
            What::Copy { time, memory_ppm } => {
                self.lasts(node, *time, op.stream);
                node.attr.push(truth(names::COPY_ENGINE));
                node.attr.push(integer(names::MEMORY, (*memory_ppm).into()));
            }
            What::Host(time) => self.lasts(node, *time, self.program.streams.len()),
            What::Collective(call) => {
                node.kind = node_type::COMM_COLL;
                let comm_type = names::COLLECTIVES.iter().position(|&c| c == call.collective);
                let comm_type = comm_type.ok_or(ChakraError::NoCollective { collective: call.collective })?;
                node.attr.push(Attribute::new(names::COMM_TYPE, Value::Int64(comm_type as i64)));
                let group = self.group(call.group)?;
                let ranks = self.graph.groups.get(group).map_or(1, Vec::len).max(1) as u64;
                let gathers = call.collective == Collective::AllGather;
                node.attr.push(size(if gathers { call.bytes.0.div_ceil(ranks) } else { call.bytes.0 }));
                node.attr.extend(gathers.then(|| integer(names::TOTAL, call.bytes.0)));
                node.attr.push(text(names::PG_NAME[0], name_of(group)));
                node.attr.push(text(names::DTYPE, call.dtype.name().to_owned()));
                node.attr.push(Attribute::new(names::IN_PLACE, Value::Bool(call.in_place)));
                node.attr.extend(choice(names::ALGORITHM, call.algorithm, Algorithm::name));
                node.attr.extend(choice(names::PROTOCOL, call.protocol, Protocol::name));
                node.attr.extend(call.channels.map(|channels| integer(names::CHANNELS, channels.into())));
            }
            What::Send { group, bytes, mover } | What::Recv { group, bytes, mover } => {
                let sends = matches!(op.what, What::Send { .. });
                node.kind = if sends { node_type::COMM_SEND } else { node_type::COMM_RECV };
                let group = self.group(*group)?;
                let ranks = self.graph.groups.get(group).map_or(&[][..], Vec::as_slice);
                let other = ranks.iter().find(|&&rank| rank != self.rank).filter(|_| ranks.len() == 2);
                let other =
                    other.ok_or(ChakraError::Graph { rank: self.rank.0, what: "the other end of a message" })?.0;
                let (from, to) = if sends { (self.rank.0, other) } else { (other, self.rank.0) };
                let ends = [(names::COMM_SRC, u64::from(from)), (names::COMM_DST, u64::from(to))];
                node.attr.extend(ends.map(|(name, value)| integer(name, value)));
                node.attr.push(integer(names::COMM_TAG, group as u64));
                node.attr.push(size(bytes.0));
                node.attr.extend((*mover == Mover::CopyEngine).then(|| truth(names::COPY_ENGINE)));
            }
        }
        Ok(())
    }

    /// The group that a program knows by a number.
    fn group(&self, slot: usize) -> Result<usize, ChakraError> {
        let known = self.spec.groups.get(slot).copied();
        known.ok_or(ChakraError::Graph { rank: self.rank.0, what: "a group" })
    }

    /// Whole microseconds, as far as the sum of a stream has them, and the rest.
    fn lasts(&mut self, node: &mut Node, time: SimDuration, stream: usize) {
        let before = self.written[stream];
        let after = before.saturating_add(time.0);
        self.written[stream] = after;
        node.duration_micros = after / PS_PER_US - before / PS_PER_US;
        let rest = i128::from(time.0) - i128::from(node.duration_micros) * i128::from(PS_PER_US);
        if rest != 0 {
            node.attr.push(Attribute::new(names::REST, Value::Sint64(i64::try_from(rest).unwrap_or_default())));
        }
    }

    fn node(&mut self, node: Node) -> u64 {
        let id = self.next;
        self.next += 1;
        self.message(&Node { id, ..node });
        id
    }

    fn message(&mut self, message: &impl prost::Message) {
        self.bytes.extend(message.encode_length_delimited_to_vec());
    }
}

/// A group's name: Chakra's groups count from 1, and 0 is all ranks.
fn name_of(group: usize) -> String {
    (group + 1).to_string()
}

fn text(name: &str, value: String) -> Attribute {
    Attribute::new(name, Value::Text(value))
}

fn integer(name: &str, value: u64) -> Attribute {
    Attribute::new(name, Value::Uint64(value))
}

/// As ASTRA-sim reads it, of a signed kind.
fn size(bytes: u64) -> Attribute {
    Attribute::new(names::COMM_SIZE, Value::Int64(i64::try_from(bytes).unwrap_or(i64::MAX)))
}

fn choice<T>(name: &str, choice: Choice<T>, word: fn(T) -> &'static str) -> Option<Attribute> {
    match choice {
        Choice::Auto => None,
        Choice::Best => Some(text(name, names::BEST.to_owned())),
        Choice::Forced(forced) => Some(text(name, word(forced).to_owned())),
    }
}

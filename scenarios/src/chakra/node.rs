//! What a node says, and what of it has no use here.

use std::collections::BTreeMap;
use std::sync::Arc;

use collcast_sim::collective::{Algorithm, Collective, DataType, Protocol};
use collcast_sim::predict::Choice;
use collcast_sim::units::{Bytes, PS_PER_US, SimDuration};
use collcast_sim::workload::{Communicate, Compute, Mover};

use super::names;
use super::wire::{Attribute, Node, Value, node_type};

/// Most different things that are named in warnings.
const UNUSED_NAMED: usize = 1000;
/// Bytes that a barrier reduces: an element of 4 bytes, as PyTorch does it.
const BARRIER_BYTES: u64 = 4;

/// What could not be used, and of how many nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Unused(BTreeMap<String, u64>);

impl Unused {
    pub(super) fn count(&mut self, what: String) {
        let known = self.0.len() < UNUSED_NAMED || self.0.contains_key(&what);
        *self.0.entry(if known { what } else { "others".to_owned() }).or_default() += 1;
    }

    /// The things and their numbers, as a sentence.
    pub(super) fn sentence(&self) -> Option<String> {
        let nodes =
            |(what, &count): (&String, &u64)| format!("{what} ({count} node{})", if count == 1 { "" } else { "s" });
        let all: Vec<String> = self.0.iter().map(nodes).collect();
        (!all.is_empty()).then(|| format!("no use was found for: {}", all.join(", ")))
    }
}

/// Who takes part in a call.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Members {
    /// A group by name, and its ranks where the file lists them.
    Named(String, Option<Arc<[u32]>>),
    /// Two ranks, the lower first, and the tag of their messages.
    Pair(u32, u32, i64),
}

/// What a node does.
#[derive(Clone, Debug)]
pub(super) enum Does {
    /// The CPU is busy.
    Host,
    Compute(Compute),
    Copy(u32),
    Collective {
        members: Members,
        call: Communicate,
        /// Whether its bytes are what one rank gives to an all-gather.
        of_rank: bool,
    },
    Message {
        sends: bool,
        members: Members,
        bytes: Bytes,
        mover: Mover,
    },
    /// Nothing that takes time.
    Nothing,
}

/// A node, without what is not used.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) id: u64,
    pub(super) name: Arc<str>,
    pub(super) does: Does,
    pub(super) time: SimDuration,
    pub(super) ctrl_deps: Vec<u64>,
    pub(super) data_deps: Vec<u64>,
    pub(super) stream: Option<i64>,
    pub(super) kind: Option<Arc<str>>,
    pub(super) framework: bool,
}

/// The attributes of a node, each asked for by name.
struct Attributes(Vec<Attribute>);

impl Attributes {
    fn take(&mut self, name: &str) -> Option<Attribute> {
        let at = self.0.iter().position(|a| a.name == name)?;
        Some(self.0.swap_remove(at))
    }

    fn integer(&mut self, name: &str) -> Option<i64> {
        self.take(name)?.integer()
    }

    fn truth(&mut self, name: &str) -> bool {
        self.integer(name) == Some(1)
    }

    fn text(&mut self, name: &str) -> Option<String> {
        self.take(name)?.text()
    }

    /// A number that a kernel has; none where it is none.
    fn number(&mut self, name: &str) -> Option<u32> {
        self.integer(name).and_then(|value| value.try_into().ok())
    }

    fn choice<T: std::str::FromStr>(&mut self, name: &str) -> Result<Choice<T>, String> {
        match self.text(name) {
            None => Ok(Choice::Auto),
            Some(word) if word == names::BEST => Ok(Choice::Best),
            Some(word) => {
                word.parse().map(Choice::Forced).map_err(|_| format!("`{name}` is `{word}`, which is not known"))
            }
        }
    }
}

/// A file's rank, and defaults.
pub(super) struct Context<'a> {
    pub(super) rank: u32,
    pub(super) world: u32,
    /// Its ranks: all.
    pub(super) all: &'a Arc<[u32]>,
    /// Part of the memory's rate that computations need which do not say so, in millionths.
    pub(super) memory_ppm: u32,
}

impl Context<'_> {
    /// Reads a node.
    pub(super) fn task(&self, node: Node, unused: &mut Unused) -> Result<Task, String> {
        let mut attributes = Attributes(node.attr);
        let on_cpu = attributes.truth(names::IS_CPU_OP);
        let stream = attributes.integer(names::STREAM);
        let kind: Option<Arc<str>> = attributes.text(names::KIND).map(Into::into);
        let framework = attributes.truth(names::FRAMEWORK);
        let rest = attributes.integer(names::REST).unwrap_or(0);
        let time = node.duration_micros.saturating_mul(PS_PER_US).saturating_add_signed(rest);
        let does = match node.kind {
            node_type::COMP if on_cpu => Does::Host,
            node_type::COMP if attributes.truth(names::COPY_ENGINE) => {
                Does::Copy(attributes.number(names::MEMORY).unwrap_or(0))
            }
            node_type::COMP => {
                if time == 0 && names::WORK.iter().any(|name| attributes.0.iter().any(|a| a.name == *name)) {
                    unused
                        .count("computations that have work in place of a duration, and take no time here".to_owned());
                }
                Does::Compute(self.compute(&mut attributes, time))
            }
            node_type::MEM_LOAD | node_type::MEM_STORE => Does::Copy(0),
            node_type::COMM_COLL => self.collective(&mut attributes, unused)?,
            node_type::COMM_SEND => self.message(&mut attributes, true)?,
            node_type::COMM_RECV => self.message(&mut attributes, false)?,
            node_type::METADATA => Does::Nothing,
            other => {
                unused.count(format!("node type {other}"));
                Does::Nothing
            }
        };
        for Attribute { name, .. } in attributes.0 {
            let silent = names::BOOKKEEPING.contains(&name.as_str()) || names::WORK.contains(&name.as_str());
            if !silent && node.kind != node_type::METADATA {
                unused.count(format!("attribute `{}`", name.chars().take(60).collect::<String>()));
            }
        }
        let Node { id, name, ctrl_deps, data_deps, .. } = node;
        let name = name.into();
        Ok(Task { id, name, does, time: SimDuration(time), ctrl_deps, data_deps, stream, kind, framework })
    }

    fn compute(&self, attributes: &mut Attributes, time: u64) -> Compute {
        let [tiles, of_others] = names::TILES.map(|name| attributes.number(name).unwrap_or(0));
        Compute {
            time: SimDuration(time),
            kernels: attributes.number(names::KERNELS).unwrap_or(1),
            waves: attributes.number(names::WAVES).unwrap_or(1),
            tiles: [tiles, of_others],
            memory_ppm: attributes.number(names::MEMORY).unwrap_or(self.memory_ppm),
        }
    }

    fn collective(&self, attributes: &mut Attributes, unused: &mut Unused) -> Result<Does, String> {
        let comm_type =
            attributes.integer(names::COMM_TYPE).ok_or("it has no `comm_type`, which says which collective it is")?;
        let size = attributes.integer(names::COMM_SIZE);
        let barrier = comm_type == names::BARRIER;
        let collective = match usize::try_from(comm_type).ok().and_then(|number| names::COLLECTIVES.get(number)) {
            Some(&collective) => collective,
            None if barrier => Collective::AllReduce,
            None => {
                return Err(format!("`comm_type` is {comm_type}; collectives have 0 to {}", names::BARRIER));
            }
        };
        let total = attributes.integer(names::TOTAL).filter(|_| collective == Collective::AllGather);
        let bytes = if barrier { BARRIER_BYTES } else { bytes(total.or(size))? };
        if let Some(Attribute { value: Some(Value::Bools(dims)), .. }) = attributes.take(names::INVOLVED_DIM)
            && dims.values.contains(&false)
        {
            unused.count(format!("attribute `{}`, where it leaves dimensions out", names::INVOLVED_DIM));
        }
        let [by_group, by_other] = names::PG_NAME.map(|name| attributes.text(name));
        let members = Members::Named(by_group.or(by_other).unwrap_or_default(), None);
        let dtype = attributes.text(names::DTYPE);
        let of_rank = collective == Collective::AllGather && dtype.is_none();
        let dtype = dtype.and_then(|name| name.parse().ok());
        let reduced = if bytes % 2 == 0 { DataType::Bfloat16 } else { DataType::Uint8 };
        // As scenarios take them: gradients are reduced in 16-bit floats, and scattered out of a buffer of copies.
        let dtype = dtype.unwrap_or(if collective.reduces() { reduced } else { DataType::Uint8 });
        let in_place = attributes.integer(names::IN_PLACE);
        let call = Communicate {
            group: 0,
            collective,
            bytes: Bytes(bytes),
            dtype,
            in_place: in_place
                .map_or(!matches!(collective, Collective::ReduceScatter | Collective::AllToAll), |value| value == 1),
            algorithm: attributes.choice::<Algorithm>(names::ALGORITHM)?,
            protocol: attributes.choice::<Protocol>(names::PROTOCOL)?,
            channels: attributes.number(names::CHANNELS),
        };
        if bytes == 0 {
            unused.count("collectives of no bytes, which NCCL leaves out".to_owned());
            return Ok(Does::Nothing);
        }
        Ok(Does::Collective { members, call, of_rank })
    }

    /// Gives a call the ranks of its group: those that the file lists, or all. A call of one rank does nothing.
    pub(super) fn settle(&self, task: &mut Task, groups: &BTreeMap<String, Arc<[u32]>>) -> Result<(), String> {
        let Does::Collective { members: Members::Named(name, listed), .. } = &mut task.does else { return Ok(()) };
        let ranks = match groups.get(name.as_str()) {
            Some(ranks) if ranks.is_empty() => Some(Arc::clone(self.all)),
            Some(ranks) => Some(Arc::clone(ranks)),
            None if name.is_empty() || name == "0" => Some(Arc::clone(self.all)),
            None => None,
        };
        let Some(ranks) = ranks else { return Ok(()) };
        if !ranks.contains(&self.rank) {
            return Err(format!("group `{name}` does not have rank {}, whose file this is", self.rank));
        }
        if let Some(other) = ranks.iter().find(|&&rank| rank >= self.world) {
            return Err(format!(
                "group `{name}` has rank {other}, and there are {} files: give one of each rank",
                self.world
            ));
        }
        let alone = ranks.len() < 2;
        *listed = Some(ranks);
        if alone {
            task.does = Does::Nothing;
        }
        Ok(())
    }

    fn message(&self, attributes: &mut Attributes, sends: bool) -> Result<Does, String> {
        let (own, other) = if sends { (names::COMM_SRC, names::COMM_DST) } else { (names::COMM_DST, names::COMM_SRC) };
        if let Some(rank) = attributes.integer(own).filter(|&rank| rank != i64::from(self.rank)) {
            return Err(format!("`{own}` is {rank} in the file of rank {}", self.rank));
        }
        let rank = attributes.integer(other).ok_or_else(|| format!("it has no `{other}`"))?;
        let known = u32::try_from(rank).ok().filter(|&rank| rank < self.world && rank != self.rank);
        let other = known.ok_or_else(|| {
            format!("`{other}` is {rank}: it should be another of the {} ranks, one for each file", self.world)
        })?;
        let members =
            Members::Pair(self.rank.min(other), self.rank.max(other), attributes.integer(names::COMM_TAG).unwrap_or(0));
        let bytes = bytes(attributes.integer(names::COMM_SIZE))?;
        let mover = if attributes.truth(names::COPY_ENGINE) { Mover::CopyEngine } else { Mover::Blocks };
        Ok(Does::Message { sends, members, bytes: Bytes(bytes), mover })
    }
}

fn bytes(size: Option<i64>) -> Result<u64, String> {
    let size = size.ok_or_else(|| format!("it has no `{}`, its bytes", names::COMM_SIZE))?;
    u64::try_from(size).map_err(|_| format!("`{}` is {size}", names::COMM_SIZE))
}

//! As a workload: an order in which no rank waits for ever, found by a run in which messages cost nothing.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use collcast_sim::ids::Rank;
use collcast_sim::units::{Bytes, SimDuration};
use collcast_sim::workload::{self, Mover, Op, OpGraph, Program, RankSpec, StreamKind};
use rustc_hash::{FxHashMap, FxHashSet};

use super::model::{Goal, GoalError, OPS_MAX, Operation, What};

/// Largest message that a send does not wait for its receive with: LogGOPSim's default for `S`, in bytes.
const EAGER: u64 = 65_535;

/// Most dependencies of operations of a workload, after those on starts and on eager sends are written out.
const EDGES_MAX: usize = 8_000_000;

/// A workload, and what of the schedule is taken otherwise than it says.
#[derive(Clone, Debug)]
pub struct Run {
    /// What all ranks do.
    pub graph: OpGraph,
    /// In words.
    pub notes: Vec<String>,
}

/// Messages and receives that are looked at for receives from any rank or with any tag.
const SEARCHED_MAX: u64 = 500_000_000;

/// An operation by rank and place.
type Place = (u32, u32);

impl Goal {
    /// Operations of all ranks.
    pub fn operations(&self) -> usize {
        self.ranks.iter().map(Vec::len).sum()
    }

    /// The workload that the engine runs: a calculation takes its ns, a message is forecast. Messages between two ranks go
    /// one after another, those of different pairs at once; calculations of a CPU go one after another.
    ///
    /// # Errors
    /// Messages that nobody sends or receives, operations that wait for each other, more dependencies than are run.
    pub fn graph(&self) -> Result<Run, GoalError> {
        Order::new(self)?.run()
    }
}

/// What a message waits in: the pair and the tag.
type Queue = (u32, u32, u32);

/// The run that finds the order.
struct Order<'g> {
    goal: &'g Goal,
    /// By rank and place: what it still waits for, and who waits for its end or start.
    waits: Vec<Vec<u32>>,
    on_end: Vec<Vec<Vec<u32>>>,
    on_start: Vec<Vec<Vec<u32>>>,
    /// When everything is there that it waits for, in ns.
    ready: BinaryHeap<Reverse<(u64, Place)>>,
    ready_at: Vec<Vec<u64>>,
    /// By rank and CPU: when it is free.
    cpus: FxHashMap<(u32, u32), u64>,
    /// By receiver: messages on their way, by sender and tag.
    sent: Vec<BTreeMap<(u32, u32), VecDeque<u32>>>,
    /// Receives that name both ends, by pair and tag; others by receiver.
    awaited: FxHashMap<Queue, VecDeque<u32>>,
    any: Vec<VecDeque<u32>>,
    /// Messages, as sender, receiver and places; and calculations: in order.
    done: Vec<Done>,
    wildcards: u64,
    /// Messages and receives that were looked at for those.
    searched: u64,
}

#[derive(Clone, Copy)]
enum Done {
    /// An operation has started.
    Started(Place),
    Calc(Place),
    /// Sender, receiver.
    Message(Place, Place),
}

impl<'g> Order<'g> {
    fn new(goal: &'g Goal) -> Result<Self, GoalError> {
        let sized = |operations: &Vec<Operation>| operations.len();
        let lists = || goal.ranks.iter().map(|o| vec![Vec::new(); sized(o)]).collect();
        let mut order = Self {
            goal,
            waits: goal.ranks.iter().map(|o| vec![0; sized(o)]).collect(),
            on_end: lists(),
            on_start: lists(),
            ready: BinaryHeap::new(),
            ready_at: goal.ranks.iter().map(|o| vec![0; sized(o)]).collect(),
            cpus: FxHashMap::default(),
            sent: vec![BTreeMap::new(); goal.ranks.len()],
            awaited: FxHashMap::default(),
            any: vec![VecDeque::new(); goal.ranks.len()],
            done: Vec::new(),
            wildcards: 0,
            searched: 0,
        };
        for (rank, operations) in goal.ranks.iter().enumerate() {
            for (place, operation) in operations.iter().enumerate() {
                let own = place as u32;
                order.waits[rank][place] = (operation.requires.len() + operation.irequires.len()) as u32;
                operation.requires.iter().for_each(|&other| order.on_end[rank][other as usize].push(own));
                operation.irequires.iter().for_each(|&other| order.on_start[rank][other as usize].push(own));
                if order.waits[rank][place] == 0 {
                    order.ready.push(Reverse((0, (rank as u32, own))));
                }
            }
        }
        Ok(order)
    }

    fn run(mut self) -> Result<Run, GoalError> {
        while let Some(Reverse((at, place))) = self.ready.pop() {
            self.release(place, at, true);
            self.done.push(Done::Started(place));
            if self.searched > SEARCHED_MAX {
                return Err(GoalError::Run(
                    "too many receives from any rank or with any tag wait at once: name rank and tag".to_owned(),
                ));
            }
            let operation = &self.goal.ranks[place.0 as usize][place.1 as usize];
            match operation.what {
                What::Calc(ns) => {
                    let free = self.cpus.entry((place.0, operation.cpu)).or_default();
                    let end = (*free).max(at).saturating_add(ns);
                    *free = end;
                    self.done.push(Done::Calc(place));
                    self.release(place, end, false);
                }
                What::Send { bytes, to, tag } => {
                    if bytes <= EAGER {
                        self.release(place, at, false);
                    }
                    let queue = (place.0, to, tag);
                    let waiting =
                        self.awaited.get_mut(&queue).and_then(VecDeque::pop_front).or_else(|| self.take_any(queue));
                    match waiting {
                        Some(recv) => self.meet(place, (to, recv), at),
                        None => self.sent[to as usize].entry((place.0, tag)).or_default().push_back(place.1),
                    }
                }
                What::Recv { from, tag, .. } => {
                    let queue = match (from, tag) {
                        (Some(from), Some(tag)) => Some((from, place.0, tag)),
                        _ => {
                            self.wildcards += 1;
                            let to_it = &self.sent[place.0 as usize];
                            self.searched += to_it.len() as u64;
                            let fits = |&&(source, its): &&(u32, u32)| {
                                from.is_none_or(|from| from == source) && tag.is_none_or(|tag| tag == its)
                            };
                            to_it.keys().find(fits).map(|&(source, its)| (source, place.0, its))
                        }
                    };
                    let send = queue.and_then(|(from, to, tag)| {
                        let sends = self.sent[to as usize].get_mut(&(from, tag))?;
                        let send = sends.pop_front()?;
                        if sends.is_empty() {
                            self.sent[to as usize].remove(&(from, tag));
                        }
                        Some((from, send))
                    });
                    match (send, from, tag) {
                        (Some(send), ..) => self.meet(send, place, at),
                        (None, Some(from), Some(tag)) => {
                            self.awaited.entry((from, place.0, tag)).or_default().push_back(place.1);
                        }
                        (None, ..) => self.any[place.0 as usize].push_back(place.1),
                    }
                }
            }
        }
        self.check()?;
        Builder::new(self.goal).build(&self.done, self.wildcards)
    }

    /// The first receive that takes any message of a queue.
    fn take_any(&mut self, (from, to, tag): Queue) -> Option<u32> {
        let operations = &self.goal.ranks[to as usize];
        let waiting = &mut self.any[to as usize];
        self.searched += waiting.len() as u64;
        let at = waiting.iter().position(|&recv| match operations[recv as usize].what {
            What::Recv { from: one, tag: its, .. } => {
                one.is_none_or(|one| one == from) && its.is_none_or(|its| its == tag)
            }
            _ => false,
        })?;
        waiting.remove(at)
    }

    fn meet(&mut self, send: Place, recv: Place, at: u64) {
        self.done.push(Done::Message(send, recv));
        let What::Send { bytes, .. } = self.goal.ranks[send.0 as usize][send.1 as usize].what else { return };
        if bytes > EAGER {
            self.release(send, at, false);
        }
        self.release(recv, at, false);
    }

    /// Whoever waits for the start or the end of an operation waits for one thing less.
    fn release(&mut self, (rank, place): Place, at: u64, start: bool) {
        let lists = if start { &mut self.on_start } else { &mut self.on_end };
        for next in std::mem::take(&mut lists[rank as usize][place as usize]) {
            let since = &mut self.ready_at[rank as usize][next as usize];
            *since = (*since).max(at);
            let waits = &mut self.waits[rank as usize][next as usize];
            *waits -= 1;
            if *waits == 0 {
                self.ready.push(Reverse((*since, (rank, next))));
            }
        }
    }

    /// Whether all operations ran, and all messages met. What waits for a message that an operation which never started may
    /// be the other end of is no cause of its own.
    fn check(&self) -> Result<(), GoalError> {
        let (mut sends, mut recvs) = (FxHashSet::<Queue>::default(), FxHashSet::<Queue>::default());
        let (mut sent_to, mut from_any) = (BTreeSet::new(), BTreeSet::new());
        let mut never = None;
        for (rank, waits) in (0_u32..).zip(&self.waits) {
            for (place, _) in waits.iter().enumerate().filter(|(_, waits)| **waits > 0) {
                never = never.or(Some((rank, place)));
                match self.goal.ranks[rank as usize][place].what {
                    What::Calc(_) => {}
                    What::Send { to, tag, .. } => {
                        sends.insert((rank, to, tag));
                        sent_to.insert(to);
                    }
                    What::Recv { from: Some(from), tag: Some(tag), .. } => {
                        recvs.insert((from, rank, tag));
                    }
                    What::Recv { .. } => {
                        from_any.insert(rank);
                    }
                }
            }
        }
        let sent = (0_u32..).zip(&self.sent).filter(|(to, _)| !from_any.contains(to)).flat_map(|(to, sends)| {
            sends.iter().map(move |(&(from, tag), messages)| ((from, to, tag), messages.len()))
        });
        let lonely: Vec<_> = sent.filter(|(queue, count)| *count > 0 && !recvs.contains(queue)).collect();
        if let Some(((from, to, tag), _)) = lonely.first() {
            let count: usize = lonely.iter().map(|(_, count)| count).sum();
            return Err(GoalError::Run(format!(
                "{count} messages have no receive, such as one of rank {from} to {to} with tag {tag}: give every step its own \
                 tag, and a receive for each send"
            )));
        }
        let waiting = self.awaited.iter().filter(|(_, recvs)| !recvs.is_empty()).map(|(queue, _)| *queue);
        if let Some((from, to, tag)) = waiting.filter(|queue| !sends.contains(queue)).min() {
            return Err(GoalError::Run(format!("rank {to} receives from {from} with tag {tag}, and nothing is sent")));
        }
        let mut any = (0_u32..).zip(&self.any).filter(|(_, recvs)| !recvs.is_empty()).map(|(rank, _)| rank);
        if let Some(rank) = any.find(|rank| !sent_to.contains(rank)) {
            return Err(GoalError::Run(format!("rank {rank} receives from any rank, and nothing is sent")));
        }
        match never {
            None => Ok(()),
            Some((rank, place)) => Err(GoalError::Run(format!(
                "rank {rank}: its operation {place} (from 0) never starts: it waits for itself, by way of other operations \
                 or of messages (over {EAGER} bytes a send ends when its receive starts)"
            ))),
        }
    }
}

/// A rank's program while it is written.
#[derive(Default)]
struct Written {
    program: Program,
    streams: FxHashMap<(bool, u32), usize>,
    cpus: FxHashMap<u32, usize>,
    /// Its pairs, by the number that its program gives them.
    pairs: Vec<(u32, u32)>,
    pair_of: FxHashMap<u32, usize>,
    /// By place.
    op: Vec<Option<usize>>,
    before: Vec<Vec<usize>>,
}

struct Builder<'g> {
    goal: &'g Goal,
    ranks: Vec<Written>,
    edges: usize,
    starts: u64,
    eager: u64,
    /// Receives with more room than their message has bytes.
    roomy: u64,
}

impl<'g> Builder<'g> {
    fn new(goal: &'g Goal) -> Self {
        let written = |operations: &Vec<Operation>| Written {
            op: vec![None; operations.len()],
            before: vec![Vec::new(); operations.len()],
            ..Written::default()
        };
        Self { goal, ranks: goal.ranks.iter().map(written).collect(), edges: 0, starts: 0, eager: 0, roomy: 0 }
    }

    fn build(mut self, done: &[Done], wildcards: u64) -> Result<Run, GoalError> {
        for one in done {
            match *one {
                Done::Started((rank, place)) => {
                    let after = self.after((rank, place))?;
                    self.ranks[rank as usize].before[place as usize] = after;
                }
                Done::Calc(place) => self.calc(place),
                Done::Message(send, recv) => {
                    let bytes = self.fits(send, recv)?;
                    self.message(send, recv.0, bytes, true);
                    self.message(recv, send.0, bytes, false);
                }
            }
        }
        let mut notes = Vec::new();
        let mut say = |count: u64, what: &str| {
            if count > 0 {
                notes.push(format!("{count} {what}"));
            }
        };
        say(self.starts, "irequires: an operation waits for what the other waits for, not for the other's own start");
        say(self.eager, "sends of at most 65,535 bytes: nobody waits for their end, as LogGOPSim has it by default");
        say(
            wildcards,
            "receives from any rank or with any tag: they take what comes first where messages cost nothing",
        );
        say(self.roomy, "receives have room for more than their message, whose bytes count, as with MPI");
        let mut graph = OpGraph::default();
        let mut groups: BTreeMap<(u32, u32), usize> = BTreeMap::new();
        let mut known: FxHashMap<u64, Vec<usize>> = FxHashMap::default();
        for written in self.ranks {
            let of = |pair: &(u32, u32)| {
                *groups.entry(*pair).or_insert_with(|| {
                    graph.groups.push(vec![Rank(pair.0), Rank(pair.1)]);
                    graph.groups.len() - 1
                })
            };
            let own = written.pairs.iter().map(of).collect();
            let alike = known.entry(written.program.ops.len() as u64).or_default();
            let program = match alike.iter().find(|&&other| graph.programs[other] == written.program) {
                Some(&other) => other,
                None => {
                    graph.programs.push(written.program);
                    alike.push(graph.programs.len() - 1);
                    graph.programs.len() - 1
                }
            };
            graph.ranks.push(RankSpec { program, groups: own, pace_ppm: 1_000_000, late: SimDuration::ZERO });
        }
        Ok(Run { graph, notes })
    }

    /// What an operation waits for, as operations of its rank's program.
    fn after(&mut self, (rank, place): Place) -> Result<Vec<usize>, GoalError> {
        let operation = &self.goal.ranks[rank as usize][place as usize];
        let written = &self.ranks[rank as usize];
        let mut after: Vec<usize> = Vec::new();
        for &other in &operation.requires {
            let sent = self.goal.ranks[rank as usize][other as usize].what;
            let eager = matches!(sent, What::Send { bytes, .. } if bytes <= EAGER);
            self.eager += u64::from(eager);
            match written.op[other as usize].filter(|_| !eager) {
                Some(op) => after.push(op),
                None => after.extend(&written.before[other as usize]),
            }
        }
        for &other in &operation.irequires {
            self.starts += 1;
            after.extend(&written.before[other as usize]);
        }
        // All that was looked at counts, though some of it is there twice.
        self.edges += after.len();
        if self.edges > EDGES_MAX {
            return Err(GoalError::Run(format!(
                "more than {EDGES_MAX} dependencies, the most that are run; at most {OPS_MAX} operations are"
            )));
        }
        after.sort_unstable();
        after.dedup();
        Ok(after)
    }

    fn push(&mut self, (rank, place): Place, stream: usize, what: workload::What, label: &str) {
        let written = &mut self.ranks[rank as usize];
        // What is on the same stream comes before it anyway.
        let on_others = |op: &usize| written.program.ops[*op].stream != stream;
        let after = written.before[place as usize].iter().copied().filter(on_others).collect();
        let op = written.program.push(Op {
            label: label.into(),
            kind: label.into(),
            stream,
            what,
            after,
            issue: SimDuration::ZERO,
            framework: false,
        });
        written.op[place as usize] = Some(op);
    }

    fn calc(&mut self, place: Place) {
        let operation = &self.goal.ranks[place.0 as usize][place.1 as usize];
        let What::Calc(ns) = operation.what else { return };
        let cpu = operation.cpu;
        let written = &mut self.ranks[place.0 as usize];
        let program = &mut written.program;
        let stream = *written
            .cpus
            .entry(cpu)
            .or_insert_with(|| program.stream(&format!("cpu {cpu}"), StreamKind::Compute, false));
        let time = SimDuration(ns.saturating_mul(1000));
        // A CPU's work takes nothing of a GPU, nor of another CPU.
        self.push(place, stream, workload::What::Copy { time, memory_ppm: 0 }, "calc");
    }

    /// The bytes of a message, for which its receive must have room.
    fn fits(&mut self, send: Place, recv: Place) -> Result<Bytes, GoalError> {
        let bytes = |place: Place| match self.goal.ranks[place.0 as usize][place.1 as usize].what {
            What::Send { bytes, .. } | What::Recv { bytes, .. } => bytes,
            What::Calc(_) => 0,
        };
        let (sent, room) = (bytes(send), bytes(recv));
        if room < sent {
            return Err(GoalError::Run(format!(
                "rank {}: its operation {} (from 0) receives {room} bytes, and the message for it, operation {} of rank {}, has \
                 {sent}: make the receive as large, or give the two tags of their own",
                recv.0, recv.1, send.1, send.0
            )));
        }
        self.roomy += u64::from(room > sent);
        Ok(Bytes(sent.max(1)))
    }

    fn message(&mut self, place: Place, peer: u32, bytes: Bytes, sends: bool) {
        let ranks = self.goal.ranks.len() as u32;
        let written = &mut self.ranks[place.0 as usize];
        let group = match written.pair_of.get(&peer) {
            Some(&group) => group,
            None => {
                written.pairs.push((place.0.min(peer), place.0.max(peer)));
                written.pair_of.insert(peer, written.pairs.len() - 1);
                written.pairs.len() - 1
            }
        };
        // The same in all ranks of a ring, so that they are of one kind.
        let away = (peer + ranks - place.0) % ranks;
        let word = if sends { "send" } else { "recv" };
        let program = &mut written.program;
        let stream = *written
            .streams
            .entry((sends, peer))
            .or_insert_with(|| program.stream(&format!("{word} +{away}"), StreamKind::Communication, true));
        // Messages of a network need no SM.
        let mover = Mover::CopyEngine;
        let what = if sends {
            workload::What::Send { group, bytes, mover }
        } else {
            workload::What::Recv { group, bytes, mover }
        };
        self.push(place, stream, what, word);
    }
}

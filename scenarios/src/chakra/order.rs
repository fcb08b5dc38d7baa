//! The nodes of a file as a program: an order in which each comes after all that it waits for, and streams.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use collcast_sim::units::SimDuration;
use collcast_sim::workload::{Op, Program, Stream, StreamKind, What};
use rustc_hash::FxHashMap;

use super::node::{Does, Members, Task, Unused};
use crate::goal::DEPENDENCIES_MAX;

/// What became of a node.
enum Done {
    /// An operation.
    Op(usize),
    /// The host's: all later operations wait for it anyway.
    Host,
    /// None: who waits for it waits for these.
    Nothing(Vec<usize>),
}

/// A program, who takes part in the calls of each of its groups, and all-gathers whose bytes are what one rank gives.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Ordered {
    pub(super) program: Program,
    pub(super) groups: Vec<Members>,
    pub(super) of_rank: Vec<usize>,
}

/// Why nodes have no order: the node, by its place, and the reason.
pub(super) type Refused = (usize, String);

/// Orders nodes. What a GPU does comes as soon as all is there that it waits for, and the CPU's nodes one after another, else by
/// their place in the file: Chakra's rule. `streams` are those that the file names, by number.
pub(super) fn ordered(
    tasks: &[Task],
    streams: &BTreeMap<i64, Stream>,
    unused: &mut Unused,
) -> Result<Ordered, Refused> {
    let mut places: FxHashMap<u64, usize> = FxHashMap::default();
    for (place, task) in tasks.iter().enumerate() {
        if places.insert(task.id, place).is_some() {
            return Err((place, format!("another node has the id {} too", task.id)));
        }
    }
    let mut waits = vec![0_usize; tasks.len()];
    let mut next: Vec<Vec<u32>> = vec![Vec::new(); tasks.len()];
    for (place, task) in tasks.iter().enumerate() {
        for id in task.data_deps.iter().chain(&task.ctrl_deps) {
            match places.get(id) {
                Some(&before) => {
                    next[before].push(u32::try_from(place).unwrap_or(u32::MAX));
                    waits[place] += 1;
                }
                None => unused.count("dependencies on nodes that are not in the file".to_owned()),
            }
        }
    }
    let turn = |place: usize| Reverse((matches!(tasks[place].does, Does::Host), place));
    let mut ready: BinaryHeap<_> = (0..tasks.len()).filter(|&place| waits[place] == 0).map(turn).collect();
    let mut builder = Builder {
        tasks,
        places: &places,
        program: Program { streams: streams.values().cloned().collect(), ops: Vec::new() },
        groups: Vec::new(),
        of_rank: Vec::new(),
        group_of: BTreeMap::new(),
        numbered: streams.keys().enumerate().map(|(place, &number)| (number, place)).collect(),
        named: BTreeMap::new(),
        done: (0..tasks.len()).map(|_| Done::Host).collect(),
        launch: None,
        dependencies: 0,
    };
    while let Some(Reverse((_, place))) = ready.pop() {
        builder.add(place)?;
        for &later in &next[place] {
            let later = later as usize;
            waits[later] -= 1;
            if waits[later] == 0 {
                ready.push(turn(later));
            }
        }
    }
    builder.flush();
    match waits.iter().position(|&left| left > 0) {
        Some(place) => Err((place, "it waits for itself, by way of others or not".to_owned())),
        None => Ok(Ordered { program: builder.program, groups: builder.groups, of_rank: builder.of_rank }),
    }
}

struct Builder<'t> {
    tasks: &'t [Task],
    places: &'t FxHashMap<u64, usize>,
    program: Program,
    groups: Vec<Members>,
    of_rank: Vec<usize>,
    group_of: BTreeMap<Members, usize>,
    /// Streams that have a number, and those that have none by what they are for.
    numbered: BTreeMap<i64, usize>,
    named: BTreeMap<String, usize>,
    /// By place.
    done: Vec<Done>,
    /// The place of a node of the host that waits for the host alone, and is no operation yet: if the next one waits for it, it
    /// is the launch of that one.
    launch: Option<usize>,
    dependencies: usize,
}

impl Builder<'_> {
    fn add(&mut self, place: usize) -> Result<(), Refused> {
        let task = &self.tasks[place];
        if matches!(task.does, Does::Nothing) {
            let waits = self.waits(task, None).map_err(|reason| (place, reason))?;
            self.done[place] = Done::Nothing(waits);
            return Ok(());
        }
        let on_host = matches!(task.does, Does::Host);
        // A launch has no stream by itself.
        if on_host && task.stream.is_none() && self.waits(task, None).is_ok_and(|waits| waits.is_empty()) {
            self.flush();
            self.launch = Some(place);
            return Ok(());
        }
        let launch = self.launch.take_if(|launch| !on_host && task.ctrl_deps.contains(&self.tasks[*launch].id));
        let issue = launch.map_or(SimDuration::ZERO, |launch| self.tasks[launch].time);
        self.flush();
        let stream = self.stream(task);
        let after = self.waits(task, Some(stream)).map_err(|reason| (place, reason))?;
        let op = self.push(task, stream, after, issue);
        if !on_host {
            self.done[place] = Done::Op(op);
        }
        Ok(())
    }

    /// Makes an operation of the host's last node, which launched nothing.
    fn flush(&mut self) {
        if let Some(launch) = self.launch.take() {
            let task = &self.tasks[launch];
            let stream = self.stream(task);
            self.push(task, stream, Vec::new(), SimDuration::ZERO);
        }
    }

    fn push(&mut self, task: &Task, stream: usize, after: Vec<usize>, issue: SimDuration) -> usize {
        let (what, kind) = self.what(task);
        if matches!(task.does, Does::Collective { of_rank: true, .. }) {
            self.of_rank.push(self.program.ops.len());
        }
        self.program.push(Op {
            label: Arc::clone(&task.name),
            kind: task.kind.clone().unwrap_or(kind),
            stream,
            what,
            after,
            issue,
            framework: task.framework,
        })
    }

    /// Operations that a node waits for, without those that its stream puts before it.
    fn waits(&mut self, task: &Task, stream: Option<usize>) -> Result<Vec<usize>, String> {
        let mut waits = Vec::new();
        let ctrl_from = task.data_deps.len();
        for (number, id) in task.data_deps.iter().chain(&task.ctrl_deps).enumerate() {
            let Some(&place) = self.places.get(id) else { continue };
            match &self.done[place] {
                Done::Op(op) => {
                    let in_order = number >= ctrl_from && Some(self.program.ops[*op].stream) == stream;
                    waits.extend((!in_order).then_some(*op));
                }
                Done::Host => {}
                Done::Nothing(others) => waits.extend(others),
            }
            if self.dependencies + waits.len() > DEPENDENCIES_MAX {
                return Err(format!("more than {DEPENDENCIES_MAX} dependencies up to here, the most that are read"));
            }
        }
        let mut seen = rustc_hash::FxHashSet::default();
        waits.retain(|&op| seen.insert(op));
        self.dependencies += waits.len();
        Ok(waits)
    }

    /// The stream of a node: its own, or one for what it does.
    fn stream(&mut self, task: &Task) -> usize {
        let (name, kind) = match &task.does {
            Does::Host | Does::Nothing => ("host".to_owned(), StreamKind::Host),
            Does::Compute(_) => ("compute".to_owned(), StreamKind::Compute),
            Does::Copy(_) => ("copies".to_owned(), StreamKind::Copy),
            Does::Collective { members: Members::Named(group, _), .. } => (said(group), StreamKind::Communication),
            Does::Collective { members: Members::Pair(..), .. } => (String::new(), StreamKind::Communication),
            Does::Message { sends, members, .. } => {
                let word = if *sends { "send" } else { "recv" };
                (format!("{word} {}", ends(members)), StreamKind::Communication)
            }
        };
        let first = kind == StreamKind::Communication;
        let program = &mut self.program;
        match task.stream {
            Some(number) => {
                *self.numbered.entry(number).or_insert_with(|| program.stream(&format!("stream {number}"), kind, first))
            }
            None => match self.named.get(&name) {
                Some(&stream) => stream,
                None => {
                    let stream = program.stream(&name, kind, first);
                    self.named.insert(name, stream);
                    stream
                }
            },
        }
    }

    fn what(&mut self, task: &Task) -> (What, Arc<str>) {
        match &task.does {
            Does::Host | Does::Nothing => (What::Host(task.time), "host".into()),
            Does::Compute(compute) => (What::Compute(*compute), "computation".into()),
            &Does::Copy(memory_ppm) => (What::Copy { time: task.time, memory_ppm }, "copies".into()),
            Does::Collective { members, call, .. } => {
                let group = self.group(members);
                let name = match members {
                    Members::Named(name, _) => said(name),
                    Members::Pair(..) => ends(members),
                };
                let kind = format!("{} of {name}", call.collective);
                (What::Collective(collcast_sim::workload::Communicate { group, ..call.clone() }), kind.into())
            }
            Does::Message { sends, members, bytes, mover } => {
                let (group, bytes, mover) = (self.group(members), *bytes, *mover);
                let what = if *sends { What::Send { group, bytes, mover } } else { What::Recv { group, bytes, mover } };
                (what, format!("send/recv {}", ends(members)).into())
            }
        }
    }

    /// The number of a group in this program.
    fn group(&mut self, members: &Members) -> usize {
        if let Some(&group) = self.group_of.get(members) {
            return group;
        }
        self.groups.push(members.clone());
        self.group_of.insert(members.clone(), self.groups.len() - 1);
        self.groups.len() - 1
    }
}

/// A group in words.
fn said(group: &str) -> String {
    if group.is_empty() || group == "0" { "all ranks".to_owned() } else { format!("group {group}") }
}

/// The ends of messages in words: the same in all ranks of a role, so that they are of one kind.
fn ends(members: &Members) -> String {
    match members {
        Members::Pair(low, high, _) => format!("{} ranks away", high - low),
        Members::Named(name, _) => said(name),
    }
}

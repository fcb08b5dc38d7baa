//! Runs a plan with symbols: what each chunk holds is an origin and the ranks whose chunks of that origin are added in it.
//!
//! Proved of one run: every output holds what the collective promises; nobody waits for ever; nothing is added twice; threads of a
//! block have met (`nop`) between data and what tells of it; and no two thread blocks touch a chunk in an undefined order
//! (happens-before by vector clocks). A plan has no choice by time, so neither data nor order depend on the run.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::rc::Rc;

use thiserror::Error;

use super::form::{Chunks, Gpu, MAX_OPERATIONS, Name, Operation, Plan};

/// What is wrong with a plan, and where.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[error("{place}: {what}")]
pub struct Flaw {
    /// GPU, thread block and operation.
    pub place: String,
    /// What.
    pub what: String,
}

/// Ranks whose chunks of one origin are added.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Symbol {
    origin: u64,
    ranks: Rc<BTreeSet<u32>>,
}

/// By thread block: how far it had come.
type Clock = Rc<Vec<u32>>;

#[derive(Clone, Default)]
struct Cell {
    holds: Option<Symbol>,
    /// The thread block that wrote last, and when.
    written: Option<(usize, u32)>,
    read: Vec<(usize, u32)>,
}

/// A thread block on its way.
struct Runner {
    rank: u32,
    block: usize,
    next: usize,
    clock: Vec<u32>,
    /// Data has moved since the threads met; they have waited since.
    moved: bool,
    waited: bool,
}

/// The buffer of a rank with one chunk: after aliases of calls in place.
type Address = (u32, u8, u64);

/// A channel or semaphore: the rank, and its number there.
type Numbered = (u32, u32);

struct Machine<'p> {
    plan: &'p Plan,
    cells: HashMap<Address, Cell>,
    /// By rank and channel of it: clocks of signals that wait there.
    signals: BTreeMap<Numbered, VecDeque<Clock>>,
    /// By rank and semaphore.
    semaphores: BTreeMap<Numbered, VecDeque<Clock>>,
    /// The other end of each channel.
    ends: HashMap<Numbered, Numbered>,
    /// The rank of each thread block.
    ranks: Vec<u32>,
}

impl Plan {
    /// Proves the plan.
    ///
    /// # Errors
    /// See [`Flaw`].
    pub fn check(&self) -> Result<(), Flaw> {
        let of = |what: String| Flaw { place: format!("plan `{}`", self.name), what };
        if !["allreduce", "allgather", "reducescatter", "alltoall"].contains(&self.collective.as_str()) {
            return Err(of(format!("`{}` promises nothing that is known", self.collective)));
        }
        let mut machine = Machine {
            plan: self,
            cells: HashMap::new(),
            signals: BTreeMap::new(),
            semaphores: BTreeMap::new(),
            ends: ends(self).map_err(of)?,
            ranks: self.gpus.iter().flat_map(|gpu| gpu.threadblocks.iter().map(|_| gpu.id)).collect(),
        };
        machine.fill();
        let mut runners: Vec<Runner> = Vec::new();
        let all = machine.ranks.len();
        for gpu in &self.gpus {
            for (number, semaphore) in (0..).zip(&gpu.semaphores) {
                if semaphore.init_value > 0 {
                    return Err(of(format!("semaphore {number} of gpu {} begins above 0", gpu.id)));
                }
                machine.semaphores.insert((gpu.id, number), VecDeque::new());
            }
            for (block, of_block) in gpu.threadblocks.iter().enumerate() {
                if of_block.ops.len() > MAX_OPERATIONS {
                    let what = format!("{} operations, the executor holds {MAX_OPERATIONS}", of_block.ops.len());
                    return Err(Flaw { place: format!("gpu {} threadblock {block}", gpu.id), what });
                }
                let mut clock = vec![0; all];
                // Whoever knows of that knows that it runs.
                clock[runners.len()] = 1;
                runners.push(Runner { rank: gpu.id, block, next: 0, clock, moved: false, waited: false });
            }
        }
        loop {
            let mut progress = false;
            for (index, runner) in runners.iter_mut().enumerate() {
                while machine.step(runner, index)? {
                    progress = true;
                }
            }
            if !progress {
                break;
            }
        }
        let ended = |r: &&Runner| r.next < self.gpus[r.rank as usize].threadblocks[r.block].ops.len();
        if let Some(waiting) = runners.iter().find(ended) {
            return Err(machine.flaw(waiting, "it waits for ever".to_owned()));
        }
        for (what, queues) in [("channel", &machine.signals), ("semaphore", &machine.semaphores)] {
            if let Some((rank, number)) = queues.iter().find(|(_, left)| !left.is_empty()).map(|(at, _)| *at) {
                return Err(of(format!(
                    "{what} {number} of gpu {rank} is counted up and not waited for: the next call is off"
                )));
            }
        }
        machine.promised().map_err(of)
    }

    /// Chunks of a rank's part.
    fn part(&self) -> u64 {
        self.gpus.first().map_or(0, |gpu| gpu.input_chunks.min(gpu.output_chunks)).max(1)
    }
}

/// The n-th channel of a rank to another ends in the n-th back.
fn ends(plan: &Plan) -> Result<HashMap<Numbered, Numbered>, String> {
    let ranks = plan.gpus.len() as u32;
    let mut by_pair: BTreeMap<(u32, u32), Vec<u32>> = BTreeMap::new();
    for (rank, gpu) in (0..).zip(&plan.gpus) {
        if gpu.id != rank {
            return Err(format!("gpu {} stands where gpu {rank} should", gpu.id));
        }
        let peers = gpu.channels.iter().flat_map(|of_type| &of_type.connected_to);
        for (number, &peer) in (0..).zip(peers) {
            if peer >= ranks || peer == rank {
                return Err(format!("gpu {rank} has a channel to {peer}, which is no other gpu"));
            }
            by_pair.entry((rank, peer)).or_default().push(number);
        }
    }
    let mut ends = HashMap::new();
    for (&(rank, peer), numbers) in &by_pair {
        let back = by_pair.get(&(peer, rank)).map_or(&[][..], Vec::as_slice);
        if back.len() != numbers.len() {
            return Err(format!("{} channels from gpu {rank} to {peer}, and {} back", numbers.len(), back.len()));
        }
        ends.extend(numbers.iter().zip(back).map(|(&number, &other)| ((rank, number), (peer, other))));
    }
    Ok(ends)
}

impl<'p> Machine<'p> {
    fn gpu(&self, rank: u32) -> &'p Gpu {
        &self.plan.gpus[rank as usize]
    }

    /// In place input and output are one buffer.
    fn address(&self, rank: u32, buffer: &str, chunk: u64) -> Result<Address, String> {
        let gpu = self.plan.gpus.get(rank as usize).ok_or_else(|| format!("there is no gpu {rank}"))?;
        let (kind, length) = match buffer {
            "i" => (0, gpu.input_chunks),
            "o" => (1, gpu.output_chunks),
            "s" => (2, gpu.scratch_chunks),
            other => return Err(format!("`{other}` is no buffer")),
        };
        if chunk >= length {
            return Err(format!("chunk {chunk} of buffer {buffer} of gpu {rank}, which has {length}"));
        }
        let part = u64::from(rank) * self.plan.part();
        Ok(match (self.plan.inplace, self.plan.collective.as_str(), kind) {
            (true, "allreduce", 0) => (rank, 1, chunk),
            (true, "allgather", 0) => (rank, 1, part + chunk),
            (true, "reducescatter", 1) => (rank, 0, part + chunk),
            _ => (rank, kind, chunk),
        })
    }

    /// Puts the inputs where they are.
    fn fill(&mut self) {
        for gpu in &self.plan.gpus {
            let begin = if self.plan.collective == "allgather" { u64::from(gpu.id) * self.plan.part() } else { 0 };
            for chunk in 0..gpu.input_chunks {
                let Ok(address) = self.address(gpu.id, "i", chunk) else { continue };
                let symbol = Symbol { origin: begin + chunk, ranks: Rc::new(BTreeSet::from([gpu.id])) };
                self.cells.entry(address).or_default().holds = Some(symbol);
            }
        }
    }

    fn promised(&self) -> Result<(), String> {
        let all: BTreeSet<u32> = self.plan.gpus.iter().map(|gpu| gpu.id).collect();
        // Chunks of what one rank gives another.
        let part = match self.plan.collective.as_str() {
            "alltoall" => self.plan.part() / (all.len() as u64).max(1),
            _ => self.plan.part(),
        };
        for gpu in &self.plan.gpus {
            let own = u64::from(gpu.id) * part;
            for chunk in 0..gpu.output_chunks {
                let from = u32::try_from(chunk / part.max(1)).unwrap_or(u32::MAX);
                let (origin, ranks) = match self.plan.collective.as_str() {
                    "allreduce" => (chunk, all.clone()),
                    "allgather" => (chunk, BTreeSet::from([from])),
                    "reducescatter" => (own + chunk, all.clone()),
                    _ => (own + chunk % part.max(1), BTreeSet::from([from])),
                };
                let address = self.address(gpu.id, "o", chunk)?;
                let holds = self.cells.get(&address).and_then(|cell| cell.holds.clone());
                if holds.as_ref().is_none_or(|holds| holds.origin != origin || *holds.ranks != ranks) {
                    return Err(format!("chunk {chunk} of the output of gpu {} is {holds:?}", gpu.id));
                }
            }
        }
        Ok(())
    }

    fn flaw(&self, runner: &Runner, what: String) -> Flaw {
        let Runner { rank, block, next, .. } = runner;
        let name = self.gpu(*rank).threadblocks[*block].ops.get(*next).map(|op| op.name);
        let name = name.map_or_else(String::new, |name| format!(" ({name:?})"));
        Flaw { place: format!("gpu {rank} threadblock {block} operation {next}{name}"), what }
    }

    /// One operation; false where it waits, or is at its end.
    fn step(&mut self, runner: &mut Runner, index: usize) -> Result<bool, Flaw> {
        let Some(op) = self.gpu(runner.rank).threadblocks[runner.block].ops.get(runner.next) else {
            return Ok(false);
        };
        match self.operate(op, runner, index) {
            Ok(true) => {
                runner.next += 1;
                Ok(true)
            }
            Ok(false) => Ok(false),
            Err(what) => Err(self.flaw(runner, what)),
        }
    }

    fn operate(&mut self, op: &'p Operation, runner: &mut Runner, index: usize) -> Result<bool, String> {
        if op.name == Name::Nop {
            (runner.moved, runner.waited) = (false, false);
            return Ok(true);
        }
        let tells = matches!(op.name, Name::Signal | Name::SemRelease);
        let waits = matches!(op.name, Name::Wait | Name::SemAcquire);
        if runner.moved && !waits {
            return Err("threads have not met since data moved: a nop is missing".to_owned());
        }
        if runner.waited && !tells && !waits {
            return Err("threads have not met since one of them waited: a nop is missing".to_owned());
        }
        if tells || waits {
            let at = self.counted(op, runner)?;
            if waits && at.iter().any(|key| self.queue(op.name, *key).is_none_or(|queue| queue.is_empty())) {
                return Ok(false);
            }
            let own: Clock = Rc::new(runner.clock.clone());
            for key in at {
                if tells {
                    let key = if op.name == Name::Signal { self.ends[&key] } else { key };
                    let queues = if op.name == Name::Signal { &mut self.signals } else { &mut self.semaphores };
                    queues.entry(key).or_default().push_back(Rc::clone(&own));
                } else if let Some(other) = self.queue(op.name, key).and_then(VecDeque::pop_front) {
                    runner.clock.iter_mut().zip(other.iter()).for_each(|(a, b)| *a = (*a).max(*b));
                }
            }
            runner.waited |= waits;
            // What follows is not what was told of.
            runner.clock[index] += 1;
            return Ok(true);
        }
        runner.clock[index] += 1;
        self.move_data(op, runner, index)?;
        runner.moved = true;
        Ok(true)
    }

    fn queue(&mut self, name: Name, key: (u32, u32)) -> Option<&mut VecDeque<Clock>> {
        if name == Name::Wait { self.signals.get_mut(&key) } else { self.semaphores.get_mut(&key) }
    }

    /// Which channels or semaphores of the GPU it counts.
    fn counted(&self, op: &Operation, runner: &Runner) -> Result<Vec<(u32, u32)>, String> {
        let gpu = self.gpu(runner.rank);
        if matches!(op.name, Name::SemRelease | Name::SemAcquire) {
            let known = op.semaphore_ids.iter().all(|&id| (id as usize) < gpu.semaphores.len());
            let all = op.semaphore_ids.iter().map(|&id| (runner.rank, id)).collect();
            return if known { Ok(all) } else { Err("a semaphore that the gpu does not have".to_owned()) };
        }
        let own: Vec<u32> =
            gpu.threadblocks[runner.block].channels.iter().flat_map(|of| of.channel_ids.iter().copied()).collect();
        let of = |id: &u32| {
            let key = (runner.rank, *own.get(*id as usize)?);
            self.ends.contains_key(&key).then_some(key)
        };
        op.channel_ids.iter().map(of).collect::<Option<_>>().ok_or_else(|| "a channel that it does not have".to_owned())
    }

    /// Whose memory, and which buffer.
    fn buffer(&self, chunks: &'p Chunks, runner: &Runner) -> Result<(u32, &'p str), String> {
        let gpu = self.gpu(runner.rank);
        if let Some(buffer) = &chunks.r#type {
            return Ok((runner.rank, buffer));
        }
        let refs = &gpu.threadblocks[runner.block].remote_buffer_refs;
        let ids: Vec<u32> = refs.iter().flat_map(|of| of.remote_buffer_ids.iter().copied()).collect();
        let remote = chunks.buffer_id.and_then(|id| gpu.remote_buffers.get(*ids.get(id as usize)? as usize));
        let remote = remote.ok_or("a remote buffer that it does not have")?;
        Ok((remote.rank, &remote.r#type))
    }

    fn move_data(&mut self, op: &'p Operation, runner: &Runner, index: usize) -> Result<(), String> {
        let (sources, targets) = match op.name {
            Name::Copy | Name::Put => (1, 1),
            Name::Re => (2, 1),
            _ => (2, 2),
        };
        if op.src_buff.len() < sources || op.dst_buff.len() < targets {
            return Err("too few sources or destinations".to_owned());
        }
        let count = op.src_buff[0].size;
        if op.src_buff.iter().chain(&op.dst_buff).any(|chunks| chunks.size != count) {
            return Err("sources and destinations of different sizes".to_owned());
        }
        for chunk in 0..count {
            let mut sum: Option<Symbol> = None;
            for source in &op.src_buff {
                let (rank, buffer) = self.buffer(source, runner)?;
                let address = self.address(rank, buffer, source.index + chunk)?;
                let read = self.read(address, runner, index)?;
                sum = Some(match sum {
                    None => read,
                    Some(sum) => added(&sum, &read)?,
                });
            }
            let Some(sum) = sum else { continue };
            for target in &op.dst_buff {
                let (rank, buffer) = self.buffer(target, runner)?;
                let address = self.address(rank, buffer, target.index + chunk)?;
                self.write(address, sum.clone(), runner, index)?;
            }
        }
        Ok(())
    }

    fn read(&mut self, address: Address, runner: &Runner, index: usize) -> Result<Symbol, String> {
        let cell = self.cells.entry(address).or_default();
        before(cell.written.as_ref(), runner, index, address)?;
        cell.read.retain(|(block, _)| *block != index);
        cell.read.push((index, runner.clock[index]));
        cell.holds.clone().ok_or_else(|| format!("{} holds nothing yet", named(address)))
    }

    fn write(&mut self, address: Address, symbol: Symbol, runner: &Runner, index: usize) -> Result<(), String> {
        let runs = self.ranks.iter().zip(&runner.clock).any(|(rank, when)| *rank == address.0 && *when > 0);
        if !runs {
            return Err(format!(
                "gpu {} may not run yet, and a call before may still use {}",
                address.0,
                named(address)
            ));
        }
        let cell = self.cells.entry(address).or_default();
        for other in cell.written.iter().chain(&cell.read) {
            before(Some(other), runner, index, address)?;
        }
        cell.read.clear();
        (cell.written, cell.holds) = (Some((index, runner.clock[index])), Some(symbol));
        Ok(())
    }
}

fn named((rank, buffer, chunk): Address) -> String {
    format!("chunk {chunk} of buffer {} of gpu {rank}", ["i", "o", "s"][usize::from(buffer.min(2))])
}

/// Whether a touch of a chunk is over by what a thread block knows.
fn before(other: Option<&(usize, u32)>, runner: &Runner, index: usize, address: Address) -> Result<(), String> {
    match other {
        Some(&(block, when)) if block != index && runner.clock[block] < when => {
            Err(format!("a race: {} is touched in no defined order", named(address)))
        }
        _ => Ok(()),
    }
}

fn added(a: &Symbol, b: &Symbol) -> Result<Symbol, String> {
    if a.origin != b.origin || !a.ranks.is_disjoint(&b.ranks) {
        return Err(format!("{a:?} and {b:?} are no parts of one sum"));
    }
    Ok(Symbol { origin: a.origin, ranks: Rc::new(a.ranks.union(&b.ranks).copied().collect()) })
}

//! The ends of a schedule's connections that one rank has: FIFOs of slots in registered memory, written by
//! RDMA, with credits the way back.
//!
//! A slice is written into its slot at the receiver with its number as immediate value, by the queue pairs of
//! its connection in turn. A small one goes as lines of LL into a ring of its own, which holds more of them: the
//! receiver sees it in its memory. The receiver gives slots back by a write to a word of the sender, how many slices
//! it is done with. Only some writes ask for a completion: as many as free the slots in time.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::device::{Completions, Done, Nic, Order};
use super::lines;
use super::memory::Memory;
use super::pair::{Address, Depths, Pair, Remote, Verb};
use crate::exec::ExecError;
use crate::flat::Flat;
use collcast_sim::schedule::wiring::UNUSED;

/// Bytes that slots are a multiple of: a cache line.
const LINE: usize = 64;
/// Small slices that may be under way on a connection. Words about them are rare then: on soft RoCE one takes as long as
/// a small slice.
const RING: u64 = 64;
/// Writes of which one asks for a completion where no slot waits for it.
const SELDOM: u64 = 16;
/// Most memory of all slots of a rank.
const MOST_BYTES: usize = 16 << 30;

/// One end of a connection, as the other one must know it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct End {
    conn: u32,
    sends: bool,
    pairs: Vec<Address>,
    /// Its memory, as each of the queue pairs reaches it.
    memory: Vec<Remote>,
}

/// A queue pair and what it did.
#[derive(Debug)]
struct Line {
    pair: Pair,
    end: usize,
    posted: u64,
    completed: u64,
    /// The last that asked for a completion, and whether a slot waits for one after it.
    asked: u64,
    owes: bool,
}

/// One end of a connection.
#[derive(Debug)]
struct Fifo {
    conn: u32,
    sends: bool,
    peer: u32,
    channel: u32,
    /// Its queue pairs, among the lines.
    lines: std::ops::Range<usize>,
    /// Where its memory begins: slots of slices that leave, or of those that arrive; then the ring, then the word.
    at: usize,
    /// That of the other end, as each of the queue pairs reaches it.
    remote: Vec<Remote>,
    /// Slices sent, or consumed.
    moved: u64,
    /// Slices that the sender was told the receiver is done with; of the receiver alone.
    told: u64,
    /// By slot, of a sender: the line and the write that must be done before the slot is ours.
    held: Vec<(usize, u64)>,
    /// By slot, of a receiver: the slice that came last, plus 1.
    arrived: Vec<u64>,
}

/// All ends of a rank.
#[derive(Debug)]
pub(crate) struct Wires {
    rank: u32,
    depth: u64,
    slot: usize,
    /// Writes that a queue pair has room for.
    sends: u64,
    /// Writes of which one asks for a completion where slots wait for it.
    every: u64,
    lines: Vec<Line>,
    fifos: Vec<Fifo>,
    /// Ends by connection: receiving and sending; a rank is never both.
    by_conn: Vec<usize>,
    queues: Vec<Completions>,
    memory: Memory,
    /// Receiving ends whose senders are to be told of free slots.
    untold: Vec<usize>,
    /// What the queues held, to be used again.
    done: Vec<(u64, Done)>,
}

impl Wires {
    /// The ends of a rank, not connected yet: `qps` queue pairs for each connection, which the NICs get in turn.
    ///
    /// # Errors
    /// More than the NICs have, memory that cannot be registered.
    pub(crate) fn new(flat: &Flat, rank: u32, nics: &[Arc<Nic>], qps: u32) -> Result<Self, ExecError> {
        let depth = u64::from(flat.depth);
        let slot = (flat.largest as usize).max(1).next_multiple_of(LINE);
        let sends = 2 * depth + RING;
        let per_pair = Depths { sends: sends as u32, receives: flat.depth + 1 };
        let mut fifos: Vec<Fifo> = Vec::new();
        let mut by_conn = vec![usize::MAX; flat.conns];
        let room = slot.saturating_mul(flat.depth as usize).saturating_add(RING as usize * lines::PLACE + LINE);
        for lane in flat.lanes.iter().filter(|lane| lane.rank == rank) {
            for port in lane.ports.iter().filter(|port| port.conn != UNUSED) {
                let (index, first) = (fifos.len(), fifos.len() * qps as usize);
                by_conn[port.conn as usize] = index;
                fifos.push(Fifo {
                    conn: port.conn,
                    sends: port.sends,
                    peer: port.peer,
                    channel: lane.channel,
                    lines: first..first + qps as usize,
                    at: index.saturating_mul(room),
                    remote: Vec::new(),
                    moved: 0,
                    told: 0,
                    held: vec![(first, 0); flat.depth as usize],
                    arrived: vec![0; flat.depth as usize],
                });
            }
        }
        let bytes = fifos.len().saturating_mul(room);
        if bytes > MOST_BYTES {
            return Err(ExecError::Refused {
                what: format!("the FIFOs of rank {rank} take {bytes} bytes, and {MOST_BYTES} are the most"),
                hint: "take fewer --channels or --ranks",
            });
        }
        let memory = Memory::new(bytes, nics, Order::Strict)?;
        // The number of a queue pair decides its NIC, at both ends alike where they have as many.
        let place = |fifo: &Fifo, index: usize| (fifo.conn as usize + index) % nics.len();
        let mut on_nic = vec![0_u32; nics.len()];
        for fifo in &fifos {
            (0..qps as usize).for_each(|index| on_nic[place(fifo, index)] += per_pair.sends + per_pair.receives);
        }
        let queues: Vec<Completions> =
            nics.iter().zip(&on_nic).map(|(nic, &entries)| Completions::new(nic, entries)).collect::<Result<_, _>>()?;
        let mut lines = Vec::new();
        for (end, fifo) in fifos.iter().enumerate() {
            for index in 0..qps as usize {
                let place = place(fifo, index);
                let pair = Pair::new(&queues[place], place, per_pair)?;
                lines.push(Line { pair, end, posted: 0, completed: 0, asked: 0, owes: false });
            }
        }
        let every = (depth / (2 * u64::from(qps))).max(1);
        let (untold, done) = (Vec::new(), Vec::new());
        Ok(Self { rank, depth, slot, sends, every, lines, fifos, by_conn, queues, memory, untold, done })
    }

    /// What the other ends must know.
    pub(crate) fn ends(&self) -> Vec<End> {
        let end = |fifo: &Fifo| {
            let lines = &self.lines[fifo.lines.clone()];
            let address = self.memory.address() + fifo.at as u64;
            let memory = lines.iter().map(|l| Remote { address, key: self.memory.keys(l.pair.place).1 });
            let pairs = lines.iter().map(|l| l.pair.address()).collect();
            End { conn: fifo.conn, sends: fifo.sends, pairs, memory: memory.collect() }
        };
        self.fifos.iter().map(end).collect()
    }

    /// Connects all queue pairs with those of the other ends, and posts the receives.
    ///
    /// # Errors
    /// An end that is missing or unlike ours, an address that cannot be reached.
    pub(crate) fn connect(&mut self, ends: &[End], patience: Duration) -> Result<(), ExecError> {
        for at in 0..self.fifos.len() {
            let fifo = &self.fifos[at];
            let other = ends.iter().find(|end| end.conn == fifo.conn && end.sends != fifo.sends);
            let other = other.filter(|end| end.pairs.len() == fifo.lines.len() && end.memory.len() == end.pairs.len());
            let Some(other) = other else {
                let what = format!("rank {} does not know its end of connection {}", fifo.peer, fifo.conn);
                return Err(ExecError::Rendezvous(what));
            };
            for (line, address) in fifo.lines.clone().zip(&other.pairs) {
                let pair = &self.lines[line].pair;
                pair.connect(address, patience).map_err(|error| self.broken(line, &error.to_string()))?;
                // What the receiver writes, the sender sees in its memory.
                for _ in 0..if fifo.sends { 0 } else { self.depth + 1 } {
                    pair.post_receive((line as u64) << 32, None)?;
                }
            }
            self.fifos[at].remote.clone_from(&other.memory);
        }
        Ok(())
    }

    fn fifo(&self, conn: u32) -> &Fifo {
        &self.fifos[self.by_conn[conn as usize]]
    }

    /// Queue pairs of a connection.
    fn qps(&self, fifo: &Fifo) -> u64 {
        fifo.lines.len() as u64
    }

    /// Slices that the receiver says it is done with.
    fn credited(&self, fifo: &Fifo) -> u64 {
        self.memory.word(self.word_at(fifo))
    }

    /// Whether the slice after `ahead` more, of so many bytes, has arrived, or has a free slot.
    pub(crate) fn ready(&self, conn: u32, ahead: u64, bytes: u32) -> bool {
        let fifo = self.fifo(conn);
        let slice = fifo.moved + ahead;
        let posts = if fifo.sends { slice % self.qps(fifo) } else { 0 };
        let line = &self.lines[fifo.lines.start + posts as usize];
        if line.posted - line.completed + ahead >= self.sends {
            return false;
        }
        let slot = (slice % self.depth) as usize;
        if fifo.sends {
            // The slot is ours again once the NIC is done with what it held.
            let (line, post) = fifo.held[slot];
            let most = if lines::small(bytes) { RING } else { self.depth };
            slice.saturating_sub(self.credited(fifo)) < most && self.lines[line].completed >= post
        } else if lines::small(bytes) {
            let flag = lines::flag(slice);
            self.ring(fifo, slice, bytes).all(|line| lines::whole(line, flag))
        } else {
            fifo.arrived[slot] == slice + 1
        }
    }

    /// Before a receiver waits for the slice after `ahead` more: tells the sender of slots without which it cannot send it.
    ///
    /// # Errors
    /// A queue pair that is in error.
    pub(crate) fn wait(&mut self, conn: u32, ahead: u64, bytes: u32) -> Result<(), ExecError> {
        let index = self.by_conn[conn as usize];
        let fifo = &self.fifos[index];
        if !lines::small(bytes) && fifo.moved > fifo.told && fifo.moved + ahead - fifo.told >= self.depth {
            return self.credit(index);
        }
        Ok(())
    }

    /// The slot of the slice after `ahead` more, with what has arrived in it.
    pub(crate) fn slot(&mut self, conn: u32, ahead: u64, bytes: u32) -> *mut u8 {
        let fifo = &self.fifos[self.by_conn[conn as usize]];
        let slice = fifo.moved + ahead;
        let at = self.slot_at(fifo, slice);
        if !fifo.sends && lines::small(bytes) {
            let first = self.ring_at(fifo, slice);
            let mut words = [0; lines::MOST];
            let words = &mut words[..lines::count(bytes)];
            words.iter_mut().zip(0..).for_each(|(word, line)| *word = self.memory.word(first + 8 * line));
            lines::unpack(words, self.memory.bytes_mut(at, bytes as usize));
        }
        self.memory.bytes_mut(at, bytes as usize).as_mut_ptr()
    }

    fn slot_at(&self, fifo: &Fifo, slice: u64) -> usize {
        fifo.at + (slice % self.depth) as usize * self.slot
    }

    /// The place of a small slice.
    fn ring_at(&self, fifo: &Fifo, slice: u64) -> usize {
        fifo.at + self.depth as usize * self.slot + (slice % RING) as usize * lines::PLACE
    }

    /// The word that a receiver tells its sender.
    fn word_at(&self, fifo: &Fifo) -> usize {
        fifo.at + self.depth as usize * self.slot + RING as usize * lines::PLACE
    }

    /// The lines of a small slice, as they are now.
    fn ring(&self, fifo: &Fifo, slice: u64, bytes: u32) -> impl Iterator<Item = u64> {
        let at = self.ring_at(fifo, slice);
        (0..lines::count(bytes)).map(move |line| self.memory.word(at + 8 * line))
    }

    /// Sends the next slice, which is in its slot.
    ///
    /// # Errors
    /// A queue pair that is in error; a receiver that gave back what it was not sent.
    pub(crate) fn send(&mut self, conn: u32, bytes: u32) -> Result<(), ExecError> {
        let index = self.by_conn[conn as usize];
        let fifo = &self.fifos[index];
        let (slice, start) = (fifo.moved, fifo.at);
        let place = (slice % self.qps(fifo)) as usize;
        let (slot, line, to) = (self.slot_at(fifo, slice), fifo.lines.start + place, fifo.remote[place]);
        let credited = self.credited(fifo);
        if credited > slice {
            return Err(self.broken(line, &format!("it gave back {credited} slots, which were not sent")));
        }
        let to = |at: usize| Remote { address: to.address + (at - start) as u64, ..to };
        let (verb, at, length) = if lines::small(bytes) {
            let at = self.ring_at(fifo, slice);
            let packed = lines::pack(self.memory.bytes_mut(slot, bytes as usize), lines::flag(slice));
            let count = lines::count(bytes);
            packed[..count].iter().zip(0..).for_each(|(&line, place)| self.memory.set_word(at + 8 * place, line));
            (Verb::Write(to(at)), at, 8 * count as u32)
        } else {
            (Verb::WriteImmediate(to(slot), slice as u32), slot, bytes)
        };
        let holds = !self.lines[line].pair.inlines(length);
        self.post(line, verb, (at, length), holds)?;
        let (post, fifo) = (self.lines[line].posted, &mut self.fifos[index]);
        fifo.held[(slice % self.depth) as usize] = if holds { (line, post) } else { (line, 0) };
        fifo.moved += 1;
        Ok(())
    }

    /// Gives the oldest slot back, of a slice of so many bytes. The sender is told at once where half of its slots are
    /// to be told of, else by [`Self::tell`], before this rank sleeps: one word tells of several slots.
    ///
    /// # Errors
    /// A queue pair that is in error.
    pub(crate) fn free(&mut self, conn: u32, bytes: u32) -> Result<(), ExecError> {
        let index = self.by_conn[conn as usize];
        let fifo = &mut self.fifos[index];
        fifo.moved += 1;
        let slots = if lines::small(bytes) { RING } else { self.depth };
        if fifo.moved - fifo.told >= (slots / 2).max(1) {
            return self.credit(index);
        }
        if fifo.moved - fifo.told == 1 {
            self.untold.push(index);
        }
        Ok(())
    }

    /// Tells all senders of the slots that are theirs again.
    ///
    /// # Errors
    /// A queue pair that is in error.
    pub(crate) fn tell(&mut self) -> Result<(), ExecError> {
        while let Some(index) = self.untold.pop() {
            if self.fifos[index].moved > self.fifos[index].told {
                self.credit(index)?;
            }
        }
        Ok(())
    }

    fn credit(&mut self, index: usize) -> Result<(), ExecError> {
        let at = self.word_at(&self.fifos[index]);
        let fifo = &mut self.fifos[index];
        fifo.told = fifo.moved;
        let (line, told, to) = (fifo.lines.start, fifo.moved, fifo.remote[0]);
        let to = Remote { address: to.address + (at - fifo.at) as u64, ..to };
        // Where a NIC cannot take the word at once, it may send a later one twice.
        self.memory.set_word(at, told);
        self.post(line, Verb::Write(to), (at, 8), false)
    }

    /// Posts a write; whether it holds memory of ours until it is done.
    fn post(&mut self, line: usize, verb: Verb, (at, bytes): (usize, u32), holds: bool) -> Result<(), ExecError> {
        let Line { pair, posted, asked, owes, .. } = &mut self.lines[line];
        let number = (line as u64) << 32 | u64::from(*posted as u32);
        *owes |= holds;
        let signalled = *posted + 1 - *asked >= if *owes { self.every } else { SELDOM };
        if let Err(error) = pair.post(verb, (&self.memory, at, bytes), number, signalled) {
            return Err(self.broken(line, &error.to_string()));
        }
        *posted += 1;
        if signalled {
            (*asked, *owes) = (*posted, false);
        }
        Ok(())
    }

    /// Takes what the NICs say; whether there was anything.
    ///
    /// # Errors
    /// A queue pair that is in error, with its peer.
    pub(crate) fn poll(&mut self) -> Result<bool, ExecError> {
        let mut done = std::mem::take(&mut self.done);
        done.clear();
        self.queues.iter().try_for_each(|queue| queue.poll(&mut done))?;
        let any = !done.is_empty();
        // The first failure says why; those after it, that the queue was flushed.
        let result = done.drain(..).try_for_each(|(number, what)| self.take(number, what));
        self.done = done;
        result.map(|()| any)
    }

    fn take(&mut self, number: u64, what: Done) -> Result<(), ExecError> {
        let index = (number >> 32) as usize;
        let line = &mut self.lines[index];
        let fifo = &mut self.fifos[line.end];
        match what {
            Done::Sent => {
                let behind = (line.posted as u32).wrapping_sub((number as u32).wrapping_add(1));
                line.completed = line.posted - u64::from(behind);
            }
            Done::Arrived(immediate, _) => {
                let ahead = u64::from(immediate.wrapping_sub(fifo.moved as u32));
                let slice = fifo.moved + ahead;
                let slot = (slice % self.depth) as usize;
                let place = (slice % fifo.lines.len() as u64) as usize;
                let awaited = !fifo.sends && ahead < self.depth && place == index - fifo.lines.start;
                if !awaited || fifo.arrived[slot] > slice {
                    return Err(self.broken(index, &format!("slice {immediate} came, which was not awaited")));
                }
                fifo.arrived[slot] = slice + 1;
                line.pair.post_receive((index as u64) << 32, None)?;
            }
            Done::Failed(words, vendor) => {
                return Err(self.broken(index, &format!("{words} (vendor's code {vendor:#x})")));
            }
        }
        Ok(())
    }

    fn broken(&self, line: usize, what: &str) -> ExecError {
        let line = &self.lines[line];
        let fifo = &self.fifos[line.end];
        let nic = line.pair.nic();
        let trouble = nic.trouble().map_or_else(String::new, |trouble| format!("; {trouble}"));
        ExecError::Connection {
            rank: self.rank,
            peer: fifo.peer,
            channel: fifo.channel,
            what: format!("{what}, on {}{trouble}", nic.name),
        }
    }

    /// What is wrong with the NICs of a connection that does not move.
    pub(crate) fn trouble(&self, conn: u32) -> Option<ExecError> {
        let fifo = self.fifo(conn);
        let line = fifo.lines.clone().find(|&line| self.lines[line].pair.nic().trouble().is_some())?;
        Some(self.broken(line, "it does not move"))
    }

    /// Sleeps until a NIC has something to say, or for so long.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn sleep(&mut self, longest: Duration) -> Result<(), ExecError> {
        self.queues.iter().try_for_each(Completions::arm)?;
        // What came before the queue was armed wakes nobody.
        if self.poll()? {
            return Ok(());
        }
        super::device::sleep(&self.queues, longest)
    }

    /// Puts a queue pair into error, for tests of what then happens.
    pub(crate) fn fail(&self, line: usize) -> Result<(), ExecError> {
        self.lines.get(line % self.lines.len().max(1)).map_or(Ok(()), |line| line.pair.fail())
    }
}

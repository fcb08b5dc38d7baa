//! The ends of a schedule's connections that one rank has: FIFOs of slots in registered memory, written by
//! RDMA, with credits the way back.
//!
//! A slice is written into its slot at the receiver with its number as immediate value, by the queue pairs of
//! its connection in turn. The receiver gives the slot back by a write of no bytes whose immediate value is how
//! many slices it is done with. Only some sends ask for a completion: as many as free the slots in time.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::device::{Address, Completions, Depths, Done, Memory, Nic, Order, Pair, Remote, Verb};
use crate::exec::ExecError;
use crate::flat::Flat;
use collcast_sim::schedule::wiring::UNUSED;

/// Bytes that slots are a multiple of: a cache line.
const LINE: usize = 64;
/// Most memory of all slots of a rank.
const MOST_BYTES: usize = 16 << 30;

/// One end of a connection, as the other one must know it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct End {
    conn: u32,
    sends: bool,
    pairs: Vec<Address>,
    /// Slot 0, as each of the queue pairs reaches it.
    slots: Vec<Remote>,
}

/// A queue pair and what it did.
#[derive(Debug)]
struct Line {
    pair: Pair,
    end: usize,
    posted: u64,
    completed: u64,
    arrived: u64,
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
    /// Slot 0 in our memory: of slices that leave, or of those that arrive.
    slots: usize,
    /// Slot 0 of the receiver, as each of the queue pairs reaches it.
    remote: Vec<Remote>,
    /// Slices sent, or consumed.
    moved: u64,
    /// Slices that the receiver is done with, as the sender knows it: heard by the sender, told by the receiver.
    credited: u64,
}

/// All ends of a rank.
#[derive(Debug)]
pub(crate) struct Wires {
    rank: u32,
    depth: u64,
    slot: usize,
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
        let per_pair = Depths { sends: 2 * flat.depth + 2, receives: flat.depth + 1 };
        let mut fifos: Vec<Fifo> = Vec::new();
        let mut by_conn = vec![usize::MAX; flat.conns];
        let room = slot.saturating_mul(flat.depth as usize);
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
                    slots: index.saturating_mul(room),
                    remote: Vec::new(),
                    moved: 0,
                    credited: 0,
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
                lines.push(Line { pair, end, posted: 0, completed: 0, arrived: 0 });
            }
        }
        Ok(Self { rank, depth, slot, lines, fifos, by_conn, queues, memory, untold: Vec::new(), done: Vec::new() })
    }

    /// What the other ends must know.
    pub(crate) fn ends(&self) -> Vec<End> {
        let end = |fifo: &Fifo| {
            let lines = &self.lines[fifo.lines.clone()];
            let address = self.memory.address() + fifo.slots as u64;
            let slots = lines.iter().map(|l| Remote { address, key: self.memory.remote_key(l.pair.place) });
            let pairs = lines.iter().map(|l| l.pair.address()).collect();
            End { conn: fifo.conn, sends: fifo.sends, pairs, slots: slots.collect() }
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
            let other = other.filter(|end| end.pairs.len() == fifo.lines.len() && end.slots.len() == end.pairs.len());
            let Some(other) = other else {
                let what = format!("rank {} does not know its end of connection {}", fifo.peer, fifo.conn);
                return Err(ExecError::Rendezvous(what));
            };
            for (index, (line, address)) in fifo.lines.clone().zip(&other.pairs).enumerate() {
                let pair = &self.lines[line].pair;
                pair.connect(address, patience).map_err(|error| self.broken(line, &error.to_string()))?;
                // Slices to the receiver by all pairs in turn; credits to the sender by the first.
                let receives = if !fifo.sends || index == 0 { self.depth + 1 } else { 0 };
                for _ in 0..receives {
                    pair.post_receive((line as u64) << 32, None)?;
                }
            }
            self.fifos[at].remote.clone_from(&other.slots);
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

    /// Whether the slice after `ahead` more has arrived, or has a free slot.
    pub(crate) fn ready(&self, conn: u32, ahead: u64) -> bool {
        let fifo = self.fifo(conn);
        let (slice, qps) = (fifo.moved + ahead, self.qps(fifo));
        let line = &self.lines[fifo.lines.start + (slice % qps) as usize];
        if !fifo.sends {
            let credit = &self.lines[fifo.lines.start];
            return line.arrived > slice / qps && credit.posted - credit.completed + ahead < 2 * self.depth;
        }
        if slice - fifo.credited >= self.depth {
            return false;
        }
        // The slot is ours again once the NIC is done with what it held.
        let Some(before) = slice.checked_sub(self.depth) else { return true };
        self.lines[fifo.lines.start + (before % qps) as usize].completed > before / qps
    }

    /// The slot of the slice after `ahead` more.
    pub(crate) fn slot(&mut self, conn: u32, ahead: u64, bytes: usize) -> *mut u8 {
        let fifo = self.fifo(conn);
        let at = self.slot_at(fifo, fifo.moved + ahead);
        self.memory.bytes_mut(at, bytes).as_mut_ptr()
    }

    fn slot_at(&self, fifo: &Fifo, slice: u64) -> usize {
        fifo.slots + (slice % self.depth) as usize * self.slot
    }

    /// Sends the next slice, which is in its slot.
    ///
    /// # Errors
    /// A queue pair that is in error.
    pub(crate) fn send(&mut self, conn: u32, bytes: u32) -> Result<(), ExecError> {
        let index = self.by_conn[conn as usize];
        let fifo = &self.fifos[index];
        let (slice, qps) = (fifo.moved, self.qps(fifo));
        let place = (slice % qps) as usize;
        let (at, line) = (self.slot_at(fifo, slice), fifo.lines.start + place);
        let to = fifo.remote[place];
        let to = Remote { address: to.address + (at - fifo.slots) as u64, ..to };
        let every = (self.depth / (2 * qps)).max(1);
        self.post(line, Verb::WriteImmediate(to, slice as u32), (at, bytes), every)?;
        self.fifos[index].moved += 1;
        Ok(())
    }

    /// Gives the oldest slot back. The sender is told at once where half of its slots are to be told of, else by
    /// [`Self::tell`], before this rank sleeps: one word tells of several slots, and costs as much as a small slice.
    ///
    /// # Errors
    /// A queue pair that is in error.
    pub(crate) fn free(&mut self, conn: u32) -> Result<(), ExecError> {
        let index = self.by_conn[conn as usize];
        let fifo = &mut self.fifos[index];
        fifo.moved += 1;
        if fifo.moved - fifo.credited >= (self.depth / 2).max(1) {
            return self.credit(index);
        }
        if fifo.moved - fifo.credited == 1 {
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
            if self.fifos[index].moved > self.fifos[index].credited {
                self.credit(index)?;
            }
        }
        Ok(())
    }

    fn credit(&mut self, index: usize) -> Result<(), ExecError> {
        let fifo = &mut self.fifos[index];
        fifo.credited = fifo.moved;
        let (line, done, to) = (fifo.lines.start, fifo.moved as u32, fifo.remote[0]);
        self.post(line, Verb::WriteImmediate(to, done), (0, 0), (self.depth / 2).max(1))
    }

    fn post(&mut self, line: usize, verb: Verb, (at, bytes): (usize, u32), every: u64) -> Result<(), ExecError> {
        let Line { pair, posted, .. } = &self.lines[line];
        let number = (line as u64) << 32 | u64::from(*posted as u32);
        let signalled = (posted + 1).is_multiple_of(every);
        pair.post(verb, (&self.memory, at, bytes), number, signalled)
            .map_err(|error| self.broken(line, &error.to_string()))?;
        self.lines[line].posted += 1;
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
            Done::Arrived(immediate, bytes) if fifo.sends => {
                let more = immediate.wrapping_sub(fifo.credited as u32);
                let credited = fifo.credited + u64::from(more);
                if bytes > 0 || credited > fifo.moved {
                    return Err(self.broken(index, &format!("it gave back {credited} slots, which were not sent")));
                }
                fifo.credited = credited;
                line.pair.post_receive((index as u64) << 32, None)?;
            }
            Done::Arrived(immediate, _) => {
                let place = (index - fifo.lines.start) as u64;
                let slice = line.arrived * fifo.lines.len() as u64 + place;
                if immediate != slice as u32 {
                    return Err(self.broken(index, &format!("slice {immediate} came in place of {}", slice as u32)));
                }
                line.arrived += 1;
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

//! The lanes of one rank, pulled through their records: each goes on as soon as what it receives has arrived
//! and what it sends has a free slot. One thread moves them all, as NCCL's proxy thread does for its channels.

use std::time::{Duration, Instant};

use super::numbers::Arithmetic;
use super::wires::Wires;
use crate::check::{self, POISON};
use crate::exec::{ExecError, Mismatch};
use crate::flat::{
    ACCUMULATE, DST_OUTPUT, DST_SCRATCH, Flat, FlatLane, HAS_DST, HAS_SRC, Record, SIGNAL, SRC_OUTPUT, SRC_SCRATCH,
    buffer_bytes,
};
use collcast_sim::ids::Rank;
use collcast_sim::schedule::Schedule;
use collcast_sim::schedule::program::Buffer;

/// How long to ask the NICs again and again before sleeping: waking takes some tens of microseconds.
const SPIN: Duration = Duration::from_micros(200);
/// How often to look before the clock is asked and other threads have their turn, which takes longer.
const LOOKS: u32 = 1024;
/// Looks of which one asks the NICs: what small slices wait for is in memory.
const ASKS: u32 = 4;
/// Shortest and longest sleep at once: what a NIC writes without telling wakes nobody.
const NAP: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(1));

/// The memory of a rank: input, output, scratch; the first two are one when in place.
#[derive(Debug)]
pub(crate) struct Buffers {
    parts: [Vec<u8>; 3],
    rank: Rank,
    range: u32,
}

impl Buffers {
    /// Of a rank, with nothing in them.
    pub(crate) fn new(schedule: &Schedule, rank: Rank, range: u32) -> Self {
        let [first, second] = buffer_bytes(&schedule.call, rank);
        let scratch = schedule.scratch_len(rank) * schedule.element_size();
        let parts = [first, second, scratch].map(|bytes| vec![0; bytes as usize]);
        Self { parts, rank, range }
    }

    /// The buffer of one name, its first byte in it, and its bytes.
    fn place(schedule: &Schedule, rank: Rank, buffer: Buffer) -> (usize, usize, usize) {
        let call = &schedule.call;
        let element = call.dtype.size() as usize;
        let length = if buffer == Buffer::Input { call.input_len(rank) } else { call.output_len(rank) };
        if call.in_place {
            (0, call.in_place_offset(rank, buffer) as usize * element, length as usize * element)
        } else {
            (usize::from(buffer == Buffer::Output), 0, length as usize * element)
        }
    }

    /// Poison everywhere but in the input.
    pub(crate) fn fill(&mut self, schedule: &Schedule, with: &Arithmetic) {
        self.parts.iter_mut().for_each(|part| part.fill(POISON));
        let (part, at, length) = Self::place(schedule, self.rank, Buffer::Input);
        let (rank, range) = (self.rank.0, self.range);
        (with.fill)(&mut self.parts[part][at..at + length], &|e| check::value(rank, e, range));
    }

    /// Compares every element of the output; how many there are.
    pub(crate) fn check(&self, schedule: &Schedule, with: &Arithmetic) -> Result<u64, ExecError> {
        let call = &schedule.call;
        let element = call.dtype.size() as usize;
        let (part, at, length) = Self::place(schedule, self.rank, Buffer::Output);
        let output = &self.parts[part][at..at + length];
        let (mut checked, mut wrong, mut first) = (0, 0, None);
        for part in check::parts(call, self.rank) {
            let (from, count) = (part.at as usize, part.count as usize);
            let bytes = &output[from * element..(from + count) * element];
            let found = (with.compare)(bytes, &|i| check::expected(&part, i, call.op, self.range));
            wrong += found.0;
            first = first.or(found.1.map(|index| part.at + index));
            checked += part.count;
        }
        match first {
            Some(element) => Err(ExecError::Wrong(Mismatch { rank: self.rank.0, element, wrong })),
            None => Ok(checked),
        }
    }
}

/// The lanes of a rank.
#[derive(Debug)]
pub(crate) struct Lanes<'a> {
    flat: &'a Flat,
    rank: u32,
    /// Indices of our lanes, and their next records.
    lanes: Vec<(usize, usize)>,
    /// How often each lane has signalled in this run.
    signals: Vec<u64>,
    /// The connections of the record that is done, as [`conns`] has them, and their slots.
    slots: Vec<(u32, bool, *mut u8)>,
    with: Arithmetic,
    /// Longest time in which nothing moves.
    patience: Duration,
}

impl<'a> Lanes<'a> {
    pub(crate) fn new(flat: &'a Flat, rank: u32, with: Arithmetic, patience: Duration) -> Self {
        let ours = flat.lanes.iter().enumerate().filter(|(_, lane)| lane.rank == rank);
        let lanes = ours.map(|(index, _)| (index, 0)).collect();
        Self { flat, rank, lanes, signals: vec![0; flat.lanes.len()], slots: Vec::new(), with, patience }
    }

    /// Runs all records once.
    ///
    /// # Errors
    /// A connection that failed, or nothing that moved for too long: who waited for whom.
    pub(crate) fn run(&mut self, wires: &mut Wires, buffers: &mut Buffers) -> Result<(), ExecError> {
        self.lanes.iter_mut().for_each(|lane| lane.1 = 0);
        self.signals.fill(0);
        let (mut idle_since, mut looks) = (None, 0_u32);
        loop {
            let mut moved = looks.is_multiple_of(ASKS) && wires.poll()?;
            let mut over = true;
            for index in 0..self.lanes.len() {
                while self.step(index, wires, buffers)? {
                    moved = true;
                }
                let (lane, at) = self.lanes[index];
                over &= at >= self.flat.lanes[lane].records.len();
            }
            if over {
                return Ok(());
            }
            if moved {
                (idle_since, looks) = (None, 0);
                continue;
            }
            // The clock and other threads have their turn when nothing has come for some time.
            looks += 1;
            if looks < LOOKS {
                std::hint::spin_loop();
                continue;
            }
            let idle = idle_since.get_or_insert_with(Instant::now).elapsed();
            if idle > self.patience {
                return Err(self.stuck(wires));
            }
            if idle < SPIN {
                std::thread::yield_now();
            } else {
                // Whoever may wait for us must know all that it may send; before, more than half of it was known.
                wires.tell()?;
                wires.sleep((idle / 4).clamp(NAP.0, NAP.1))?;
            }
        }
    }

    /// Does the next record of a lane, if it can; whether it did.
    fn step(&mut self, index: usize, wires: &mut Wires, buffers: &mut Buffers) -> Result<bool, ExecError> {
        let (at, flat) = (self.lanes[index], self.flat);
        let lane = &flat.lanes[at.0];
        let Some(record) = lane.records.get(at.1) else { return Ok(false) };
        if record.waits > 0 {
            let other = lane.tokens[usize::from(record.waits) - 1 - lane.ports.len()];
            if self.signals[other as usize] < record.src {
                return Ok(false);
            }
        } else {
            if let Some((conn, sends, ahead)) = blocking(lane, record, wires) {
                if !sends {
                    wires.wait(conn, ahead, record.bytes)?;
                }
                return Ok(false);
            }
            self.perform(lane, record, wires, buffers)?;
            self.signals[at.0] += u64::from(record.flags & SIGNAL != 0);
        }
        self.lanes[index].1 += 1;
        Ok(true)
    }

    fn perform(
        &mut self,
        lane: &FlatLane,
        record: &Record,
        wires: &mut Wires,
        buffers: &mut Buffers,
    ) -> Result<(), ExecError> {
        let bytes = record.bytes as usize;
        let mut place = |at: u64, output: u8, scratch: u8| {
            let part = usize::from(record.flags & output != 0) + 2 * usize::from(record.flags & scratch != 0);
            // `Flat` refuses what reaches outside; a record of no bytes has no place.
            buffers.parts[part][at as usize..at as usize + bytes].as_mut_ptr()
        };
        let has = |flag: u8| record.flags & flag != 0 && bytes > 0;
        let dst = has(HAS_DST).then(|| place(record.dst, DST_OUTPUT, DST_SCRATCH));
        let src = has(HAS_SRC).then(|| place(record.src, SRC_OUTPUT, SRC_SCRATCH));
        let slots = &mut self.slots;
        slots.clear();
        slots.extend(
            conns(lane, record).map(|(conn, sends, ahead)| (conn, sends, wires.slot(conn, ahead, record.bytes))),
        );
        // Local data first: the destination may be where the source is.
        let accumulated = dst.filter(|_| has(ACCUMULATE));
        let arrived = slots.iter().filter(|s| !s.1).map(|s| s.2);
        let mut sources = accumulated.into_iter().chain(src).chain(arrived);
        let leaving = slots.iter().filter(|s| s.1).map(|s| s.2);
        let mut targets = dst.into_iter().chain(leaving);
        if let (Some(first), Some(target)) = (sources.next(), targets.next()) {
            // SAFETY: all places have so many bytes; slots that arrived are ours until they are given back, and those
            // that leave since the NIC was done with them. Buffers belong to this thread.
            unsafe {
                std::ptr::copy(first, target, bytes);
                sources.for_each(|other| (self.with.combine)(target, other, bytes));
                targets.for_each(|copy| std::ptr::copy_nonoverlapping(target, copy, bytes));
            }
        }
        for &(conn, sends, _) in &*slots {
            if sends {
                wires.send(conn, record.bytes)?;
            } else {
                wires.free(conn, record.bytes)?;
            }
        }
        Ok(())
    }

    /// Who waits for whom: of the first lane that waits for a peer, as others may wait for that lane.
    fn stuck(&self, wires: &Wires) -> ExecError {
        let waiting = || {
            self.lanes.iter().filter_map(|&(lane, at)| {
                let lane = &self.flat.lanes[lane];
                let record = lane.records.get(at)?;
                let blocked = if record.waits > 0 { None } else { blocking(lane, record, wires) };
                Some((lane, at, blocked))
            })
        };
        let found = waiting().find(|(_, _, blocked)| blocked.is_some()).or_else(|| waiting().next());
        let Some((lane, at, blocked)) = found else {
            return ExecError::Rendezvous(format!("rank {} stopped for no reason", self.rank));
        };
        if let Some(error) = blocked.and_then(|(conn, ..)| wires.trouble(conn)) {
            return error;
        }
        let peer = |conn: u32| lane.ports.iter().find(|p| p.conn == conn).map_or(lane.rank, |p| p.peer);
        let (what, peer) = match blocked {
            Some((conn, false, _)) => ("data from", peer(conn)),
            Some((conn, true, _)) => ("credit from", peer(conn)),
            None => ("another lane of", lane.rank),
        };
        let (channel, step, seconds) = (lane.channel, at as u32, self.patience.as_secs());
        ExecError::Timeout { rank: lane.rank, channel, lane: lane.lane, step, seconds, what, peer }
    }
}

/// The connections of a record: which, whether it sends there, and how many slices of the record go before.
fn conns<'a>(lane: &'a FlatLane, record: &'a Record) -> impl Iterator<Item = (u32, bool, u64)> + 'a {
    let receives = usize::from(record.receives);
    let ports = &record.ports[..receives + usize::from(record.sends)];
    let earlier = |end: usize| ports[..end].iter().filter(|&&p| p == ports[end]).count() as u64;
    (0..ports.len()).map(move |end| (lane.ports[usize::from(ports[end])].conn, end >= receives, earlier(end)))
}

/// The first connection that a record must wait for, as [`conns`] has it.
fn blocking(lane: &FlatLane, record: &Record, wires: &Wires) -> Option<(u32, bool, u64)> {
    conns(lane, record).find(|&(conn, _, ahead)| !wires.ready(conn, ahead, record.bytes))
}

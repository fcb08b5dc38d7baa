//! Proves a schedule before anyone runs it.
//!
//! One untimed run with the real FIFO depths and symbols for data. A symbol is a set of ranks
//! and an origin: "the sum of element e of the inputs of these ranks". Checked: every output
//! holds what the collective promises (postcondition); everything sent is received, in equal
//! amounts (delivery); nobody waits for ever (no deadlock); no contribution is added twice, also
//! where a switch adds what a group sends;
//! and no two lanes touch one piece of memory in an undefined order (happens-before by vector
//! clocks). Programs have no any-source receive, test or priority, so neither data nor
//! deadlock depend on timing: one run proves all of them.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::rc::Rc;

use smallvec::SmallVec;
use thiserror::Error;

use super::program::{Buffer, Step};
use super::wiring::{Slice, SliceCursor, UNUSED, WiredConn, Wiring, WiringError, end_of};
use super::{Call, Schedule};
use crate::collective::Collective;
use crate::ids::Rank;

/// Above this number of workers clocks would dominate memory and races are not searched.
pub(super) const MAX_CLOCKED_WORKERS: usize = 1536;

/// What was proved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Proof {
    /// Slices moved.
    pub slices: u64,
    /// Whether memory races were searched too.
    pub races_checked: bool,
}

/// Why a schedule is wrong. Ranks, channels and lanes are named so that it can be mended.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum VerifyError {
    /// A connection without two ends.
    #[error(transparent)]
    Wiring(#[from] WiringError),
    /// Workers that wait for each other for ever.
    #[error("deadlock: {waiting} workers wait for ever; the first is {place}: {reason}")]
    Deadlock {
        /// How many wait.
        waiting: usize,
        /// The first of them.
        place: String,
        /// What it waits for.
        reason: String,
    },
    /// Something was sent that nobody received.
    #[error("{place} sent {count} slices that were never received")]
    Undelivered {
        /// The sender.
        place: String,
        /// How many.
        count: usize,
    },
    /// A port that does not exist.
    #[error("{place} uses {kind} port {port}, which it does not have")]
    BadPort {
        /// The worker.
        place: String,
        /// `receive` or `send`.
        kind: &'static str,
        /// The port.
        port: usize,
    },
    /// Sender and receiver disagree about how much.
    #[error("{place} expects a slice of {expected} elements but {sent} were sent")]
    WrongAmount {
        /// The receiver.
        place: String,
        /// What it expects.
        expected: u64,
        /// What was sent.
        sent: u64,
    },
    /// An instruction that makes no sense.
    #[error("{place}: {what}")]
    BadInstruction {
        /// The worker.
        place: String,
        /// What is wrong.
        what: String,
    },
    /// Memory read that nobody wrote, or outside the buffer.
    #[error("{place} reads element {element} of its {buffer:?}, which {problem}")]
    BadRead {
        /// The worker.
        place: String,
        /// The buffer.
        buffer: Buffer,
        /// The element.
        element: u64,
        /// `is outside the buffer` or `holds nothing yet`.
        problem: &'static str,
    },
    /// A contribution counted twice, or different elements added.
    #[error("{place} adds {what}")]
    BadSum {
        /// The worker.
        place: String,
        /// What was added to what.
        what: String,
    },
    /// Two lanes touch memory in an undefined order.
    #[error("race: {first} and {second} touch element {element} of one buffer in no defined order")]
    Race {
        /// A worker.
        first: String,
        /// Another.
        second: String,
        /// Element of the memory.
        element: u64,
    },
    /// An output that is not what the collective promises.
    #[error("rank {rank}: output element {element} is {found}, expected {expected}")]
    WrongResult {
        /// The rank.
        rank: u32,
        /// The element.
        element: u64,
        /// What it holds.
        found: String,
        /// What it should hold.
        expected: String,
    },
}

/// The sum of one element of the inputs of some ranks, each at most once.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Symbol {
    /// Element of the inputs, for the first element of a segment.
    origin: u64,
    /// Bit set of ranks.
    ranks: Rc<[u64]>,
}

impl Symbol {
    fn at(&self, distance: u64) -> Self {
        Self { origin: self.origin + distance, ranks: Rc::clone(&self.ranks) }
    }

    fn describe(&self) -> String {
        let ranks: Vec<u32> = (0..).zip(self.ranks.iter()).flat_map(|(w, &word)| bits(w, word)).collect();
        format!("the sum of element {} of ranks {ranks:?}", self.origin)
    }
}

fn bits(word_index: u32, word: u64) -> impl Iterator<Item = u32> {
    (0..64).filter(move |b| word >> b & 1 == 1).map(move |b| word_index * 64 + b)
}

fn set_of(n: u32, ranks: impl IntoIterator<Item = u32>) -> Rc<[u64]> {
    let mut words = vec![0; (n as usize).div_ceil(64)];
    for rank in ranks {
        words[rank as usize / 64] |= 1 << (rank % 64);
    }
    words.into()
}

/// When a worker touched a segment: worker and its own clock.
type Access = (u32, u32);

#[derive(Clone, Debug)]
struct Segment {
    len: u64,
    symbol: Option<Symbol>,
    written: Option<Access>,
    read: Vec<Access>,
}

/// A buffer as a map from first element to segment, without gaps.
#[derive(Clone, Debug, Default)]
struct Memory {
    len: u64,
    segments: BTreeMap<u64, Segment>,
}

impl Memory {
    fn new(len: u64) -> Self {
        let mut memory = Self { len, segments: BTreeMap::new() };
        if len > 0 {
            memory.segments.insert(0, Segment { len, symbol: None, written: None, read: Vec::new() });
        }
        memory
    }

    /// Makes `at` the start of a segment.
    fn split(&mut self, at: u64) {
        if at >= self.len {
            return;
        }
        let Some((&start, segment)) = self.segments.range_mut(..=at).next_back() else {
            return;
        };
        if start == at {
            return;
        }
        let mut tail = segment.clone();
        tail.len = start + segment.len - at;
        tail.symbol = tail.symbol.map(|s| s.at(at - start));
        segment.len = at - start;
        self.segments.insert(at, tail);
    }

    fn range(&mut self, from: u64, count: u64) -> impl Iterator<Item = (u64, &mut Segment)> {
        self.split(from);
        self.split(from + count);
        self.segments.range_mut(from..from + count).map(|(&at, s)| (at, s))
    }

    fn write(&mut self, from: u64, pieces: &[Piece], access: Option<Access>) {
        let count: u64 = pieces.iter().map(|p| p.len).sum();
        self.split(from);
        self.split(from + count);
        let old: Vec<u64> = self.segments.range(from..from + count).map(|(&at, _)| at).collect();
        for at in old {
            self.segments.remove(&at);
        }
        let mut at = from;
        for piece in pieces {
            let symbol = Some(piece.symbol.clone());
            self.segments.insert(at, Segment { len: piece.len, symbol, written: access, read: Vec::new() });
            at += piece.len;
        }
    }
}

/// Data on its way: a run of elements with one symbol.
#[derive(Clone, Debug)]
struct Piece {
    len: u64,
    symbol: Symbol,
}

#[derive(Clone)]
struct Message {
    count: u64,
    pieces: Vec<Piece>,
    clock: Option<Rc<[u32]>>,
}

/// The slots of a connection in use, oldest first, and how far each of its ends is.
struct Fifo {
    /// What arrived in each slot so far, combined, and from how many senders.
    slots: VecDeque<(Message, usize)>,
    /// Slices that all receivers are done with.
    gone: u64,
    /// Slices posted, by sender.
    sent: SmallVec<[u64; 1]>,
    /// Slices taken, by receiver.
    received: SmallVec<[u64; 1]>,
}

impl Fifo {
    fn new(conn: &WiredConn) -> Self {
        Self {
            slots: VecDeque::new(),
            gone: 0,
            sent: SmallVec::from_elem(0, conn.senders.len()),
            received: SmallVec::from_elem(0, conn.receivers.len()),
        }
    }

    fn has_credit(&self, sender: usize, depth: u32) -> bool {
        self.sent[sender] - self.gone < u64::from(depth)
    }

    /// The slot that a receiver takes next, if all senders have posted it.
    fn next(&self, receiver: usize) -> Option<&Message> {
        let slot = self.slots.get(usize::try_from(self.received[receiver] - self.gone).ok()?)?;
        (slot.1 == self.sent.len()).then_some(&slot.0)
    }

    fn take(&mut self, receiver: usize) -> Option<Message> {
        let message = self.next(receiver)?.clone();
        self.received[receiver] += 1;
        while self.received.iter().all(|&r| r > self.gone) {
            self.slots.pop_front();
            self.gone += 1;
        }
        Some(message)
    }
}

struct Verifier<'a> {
    schedule: &'a Schedule,
    wiring: Wiring,
    cursors: Vec<SliceCursor>,
    waiting: Vec<Option<Slice>>,
    finished: Vec<bool>,
    fifos: Vec<Fifo>,
    /// `[rank][input, output, scratch]`; in place the first two are one memory, kept as the first.
    memory: Vec<[Memory; 3]>,
    clocks: Vec<Vec<u32>>,
    /// By worker: the clock at each of its signals (empty without clocks), and who waits for them.
    signals: Vec<Vec<Rc<[u32]>>>,
    waiters: Vec<Vec<u32>>,
    slices: u64,
}

/// Proves a schedule, at its real sizes.
///
/// Cost: a few hundred nanoseconds a slice. To prove the pattern of a very large call, verify
/// the same call at a smaller size.
///
/// # Errors
/// The first flaw found, as a [`VerifyError`].
pub fn verify(schedule: &Schedule) -> Result<Proof, VerifyError> {
    let wiring = Wiring::new(schedule)?;
    let workers = wiring.workers.len();
    let clocked = workers <= MAX_CLOCKED_WORKERS;
    let mut waiters = vec![Vec::new(); workers];
    for (index, worker) in (0..).zip(&wiring.workers) {
        for &other in worker.tokens.iter().filter(|&&w| w != UNUSED) {
            waiters[other as usize].push(index);
        }
    }
    let mut verifier = Verifier {
        cursors: wiring.workers.iter().map(SliceCursor::new).collect(),
        waiting: vec![None; workers],
        finished: vec![false; workers],
        fifos: wiring.conns.iter().map(Fifo::new).collect(),
        memory: (0..schedule.call.ranks).map(|r| initial_memory(schedule, Rank(r))).collect(),
        signals: vec![Vec::new(); workers],
        waiters,
        clocks: if clocked { vec![vec![0; workers]; workers] } else { Vec::new() },
        schedule,
        wiring,
        slices: 0,
    };
    verifier.run()?;
    verifier.check_result()?;
    Ok(Proof { slices: verifier.slices, races_checked: clocked })
}

fn initial_memory(schedule: &Schedule, rank: Rank) -> [Memory; 3] {
    let (call, scratch) = (&schedule.call, Memory::new(schedule.scratch_len(rank)));
    let (input, output) = (call.input_len(rank), call.output_len(rank));
    let own = Piece { len: input, symbol: Symbol { origin: 0, ranks: set_of(call.ranks, [rank.0]) } };
    if call.in_place {
        let mut shared = Memory::new(input.max(output));
        if input > 0 {
            shared.write(call.in_place_offset(rank, Buffer::Input), &[own], None);
        }
        return [shared, Memory::default(), scratch];
    }
    let mut first = Memory::new(input);
    if input > 0 {
        first.write(0, &[own], None);
    }
    [first, Memory::new(output), scratch]
}

impl Verifier<'_> {
    fn place(&self, worker: usize) -> String {
        let w = &self.wiring.workers[worker];
        format!("rank {}, channel {}, lane {}, instruction {}", w.rank, w.channel, w.lane, self.cursors[worker].step.op)
    }

    fn run(&mut self) -> Result<(), VerifyError> {
        let mut queue: VecDeque<usize> = (0..self.wiring.workers.len()).collect();
        let mut queued = vec![true; self.wiring.workers.len()];
        while let Some(worker) = queue.pop_front() {
            queued[worker] = false;
            let mut wake = |peer: u32| {
                if !std::mem::replace(&mut queued[peer as usize], true) {
                    queue.push_back(peer as usize);
                }
            };
            while self.advance(worker)? {
                let (w, step) = (&self.wiring.workers[worker], &self.cursors[worker].step);
                for &port in &step.recv {
                    self.wiring.conns[w.recv[port] as usize].senders.iter().copied().for_each(&mut wake);
                }
                for &port in &step.send {
                    self.wiring.conns[w.send[port] as usize].receivers.iter().copied().for_each(&mut wake);
                }
                if step.signal {
                    self.waiters[worker].iter().for_each(|&w| wake(w));
                }
            }
        }
        if let Some(first) = self.finished.iter().position(|f| !f) {
            let (w, step) = (&self.wiring.workers[first], &self.cursors[first].step);
            let missing = step.recv.iter().find_map(|&p| self.missing_sender(first, w.recv[p] as usize));
            let token = step.wait.filter(|_| self.token(first).is_none());
            let reason = match missing {
                _ if token.is_some() => {
                    let (port, count) = token.unwrap_or_default();
                    let other = self.wiring.workers[w.tokens[port] as usize].lane;
                    format!("lane {other} of its rank has not signalled {count} times")
                }
                Some(rank) => format!("nothing arrives from rank {rank}"),
                None => format!("no credit from its receiver (FIFO of {} slices)", self.schedule.plan.fifo_slices),
            };
            let waiting = self.finished.iter().filter(|f| !**f).count();
            return Err(VerifyError::Deadlock { waiting, place: self.place(first), reason });
        }
        if let Some(conn) = self.fifos.iter().position(|f| !f.slots.is_empty()) {
            let fifo = &self.fifos[conn];
            let most = (0..fifo.sent.len()).max_by_key(|&s| fifo.sent[s]).unwrap_or(0);
            let sender = self.wiring.conns[conn].senders[most] as usize;
            return Err(VerifyError::Undelivered { place: self.place(sender), count: fifo.slots.len() });
        }
        Ok(())
    }

    /// The rank of a sender that has not posted what a worker is to receive next.
    fn missing_sender(&self, worker: usize, conn: usize) -> Option<Rank> {
        let (ends, fifo) = (&self.wiring.conns[conn], &self.fifos[conn]);
        let next = fifo.received[end_of(&ends.receivers, u32::try_from(worker).unwrap_or(UNUSED))];
        let late = fifo.sent.iter().position(|&sent| sent <= next)?;
        Some(self.wiring.workers[ends.senders[late] as usize].rank)
    }

    /// Does one slice if nothing is missing for it; `false` when blocked or finished.
    fn advance(&mut self, worker: usize) -> Result<bool, VerifyError> {
        if self.finished[worker] {
            return Ok(false);
        }
        let template = self.wiring.workers[worker].template;
        let slice = match self.waiting[worker] {
            Some(slice) => slice,
            None => match self.cursors[worker].next(self.schedule, template) {
                Some(slice) => slice,
                None => {
                    self.finished[worker] = true;
                    return Ok(false);
                }
            },
        };
        self.waiting[worker] = Some(slice);
        let step = self.cursors[worker].step.clone();
        let ports = |ports: &[usize], conns: &[u32], kind| {
            ports
                .iter()
                .map(|&port| match conns.get(port) {
                    Some(&conn) if conn != UNUSED => Ok(conn as usize),
                    _ => Err(VerifyError::BadPort { place: self.place(worker), kind, port }),
                })
                .collect::<Result<Vec<usize>, _>>()
        };
        let recv = ports(&step.recv, &self.wiring.workers[worker].recv, "receive")?;
        let send = ports(&step.send, &self.wiring.workers[worker].send, "send")?;
        let depth = self.schedule.plan.fifo_slices;
        let id = u32::try_from(worker).unwrap_or(UNUSED);
        let receiver = |c: usize| end_of(&self.wiring.conns[c].receivers, id);
        let sender = |c: usize| end_of(&self.wiring.conns[c].senders, id);
        if recv.iter().any(|&c| self.fifos[c].next(receiver(c)).is_none())
            || send.iter().any(|&c| !self.fifos[c].has_credit(sender(c), depth))
        {
            return Ok(false);
        }
        if let Some((port, _)) = step.wait
            && self.wiring.workers[worker].tokens.get(port).is_none_or(|&w| w == UNUSED)
        {
            return Err(VerifyError::BadPort { place: self.place(worker), kind: "token", port });
        }
        let Some(token) = self.token(worker) else {
            return Ok(false);
        };
        self.slices += send.len() as u64;
        self.waiting[worker] = None;
        self.learn(worker, &token);
        let data = self.gather(worker, &step, slice, &recv)?;
        if let Some((buffer, offset)) = step.dst {
            self.store(worker, buffer, offset + slice.from, slice.count, &data)?;
        }
        let clock = self.tick(worker);
        if step.signal && self.cursors[worker].at_last_slice(self.schedule) {
            let now = self.clocks.get(worker).map_or_else(|| Rc::from([]), |clock| clock.as_slice().into());
            self.signals[worker].push(now);
        }
        for &conn in &send {
            let message = Message { count: slice.count, pieces: data.clone(), clock: clock.clone() };
            self.post(worker, conn, message)?;
        }
        Ok(true)
    }

    /// Puts a sender's slice into its slot, added to what the other senders have put there.
    fn post(&mut self, worker: usize, conn: usize, message: Message) -> Result<(), VerifyError> {
        let sender = end_of(&self.wiring.conns[conn].senders, u32::try_from(worker).unwrap_or(UNUSED));
        let fifo = &mut self.fifos[conn];
        let place = usize::try_from(fifo.sent[sender] - fifo.gone).unwrap_or(usize::MAX);
        fifo.sent[sender] += 1;
        let Some((slot, posts)) = fifo.slots.get_mut(place) else {
            fifo.slots.push_back((message, 1));
            return Ok(());
        };
        *posts += 1;
        let there = slot.clone();
        if there.count != message.count {
            let place = self.place(worker);
            return Err(VerifyError::WrongAmount { place, expected: there.count, sent: message.count });
        }
        let pieces = self.add(worker, &there.pieces, &message.pieces)?;
        let clock =
            there.clock.zip(message.clock).map(|(a, b)| a.iter().zip(b.iter()).map(|(x, y)| *x.max(y)).collect());
        self.fifos[conn].slots[place].0 = Message { count: there.count, pieces, clock };
        Ok(())
    }

    /// The clock that comes with the token which a worker's instruction waits for (empty where
    /// it waits for none); `None` while it is not given.
    fn token(&self, worker: usize) -> Option<Rc<[u32]>> {
        let Some((port, count)) = self.cursors[worker].step.wait.filter(|w| w.1 > 0) else {
            return Some(Rc::from([]));
        };
        let other = self.wiring.workers[worker].tokens[port] as usize;
        let index = usize::try_from(count - 1).unwrap_or(usize::MAX);
        self.signals[other].get(index).map(Rc::clone)
    }

    /// What happened before a clock has happened before what a worker does next.
    fn learn(&mut self, worker: usize, clock: &[u32]) {
        if let Some(own) = self.clocks.get_mut(worker) {
            for (mine, &theirs) in own.iter_mut().zip(clock) {
                *mine = (*mine).max(theirs);
            }
        }
    }

    /// Receives, reads and combines what one slice needs.
    fn gather(&mut self, worker: usize, step: &Step, slice: Slice, recv: &[usize]) -> Result<Vec<Piece>, VerifyError> {
        let mut sources: Vec<Vec<Piece>> = Vec::new();
        for &conn in recv {
            let receiver = end_of(&self.wiring.conns[conn].receivers, u32::try_from(worker).unwrap_or(UNUSED));
            let Some(message) = self.fifos[conn].take(receiver) else {
                continue;
            };
            if message.count != slice.count {
                let place = self.place(worker);
                return Err(VerifyError::WrongAmount { place, expected: slice.count, sent: message.count });
            }
            if let Some(clock) = &message.clock {
                self.learn(worker, clock);
            }
            sources.push(message.pieces);
        }
        if let Some((buffer, offset)) = step.src {
            sources.push(self.load(worker, buffer, offset + slice.from, slice.count)?);
        }
        if let Some((buffer, offset)) = step.dst.filter(|_| step.accumulate) {
            sources.push(self.load(worker, buffer, offset + slice.from, slice.count)?);
        }
        let bad = |what: &str| VerifyError::BadInstruction { place: self.place(worker), what: what.to_owned() };
        if sources.len() > 1 && !step.reduce {
            return Err(bad("several sources are not combined"));
        }
        let mut sources = sources.into_iter();
        let Some(mut sum) = sources.next() else {
            // An instruction that only waits.
            if slice.count == 0 && step.dst.is_none() && step.send.is_empty() {
                return Ok(Vec::new());
            }
            return Err(bad("nothing to read from"));
        };
        for other in sources {
            sum = self.add(worker, &sum, &other)?;
        }
        Ok(sum)
    }

    fn add(&self, worker: usize, a: &[Piece], b: &[Piece]) -> Result<Vec<Piece>, VerifyError> {
        let mut sum = Vec::with_capacity(a.len());
        let (mut i, mut j, mut into_a, mut into_b) = (0, 0, 0, 0);
        while i < a.len() && j < b.len() {
            let (x, y) = (a[i].symbol.at(into_a), b[j].symbol.at(into_b));
            let len = (a[i].len - into_a).min(b[j].len - into_b);
            let twice = x.ranks.iter().zip(y.ranks.iter()).any(|(p, q)| p & q != 0);
            if x.origin != y.origin || twice {
                let what = format!("{} to {}", y.describe(), x.describe());
                return Err(VerifyError::BadSum { place: self.place(worker), what });
            }
            let ranks = x.ranks.iter().zip(y.ranks.iter()).map(|(p, q)| p | q).collect();
            sum.push(Piece { len, symbol: Symbol { origin: x.origin, ranks } });
            (into_a, into_b) = (into_a + len, into_b + len);
            if into_a == a[i].len {
                (i, into_a) = (i + 1, 0);
            }
            if into_b == b[j].len {
                (j, into_b) = (j + 1, 0);
            }
        }
        Ok(sum)
    }

    /// Which memory a reference means, and where in it.
    fn locate(&self, rank: Rank, buffer: Buffer, offset: u64) -> (usize, u64) {
        let call = &self.schedule.call;
        if buffer == Buffer::Scratch {
            (2, offset)
        } else if call.in_place {
            (0, call.in_place_offset(rank, buffer) + offset)
        } else {
            (usize::from(buffer == Buffer::Output), offset)
        }
    }

    fn check_bounds(
        &self,
        worker: usize,
        buffer: Buffer,
        offset: u64,
        count: u64,
    ) -> Result<(usize, u64), VerifyError> {
        let rank = self.wiring.workers[worker].rank;
        let (which, at) = self.locate(rank, buffer, offset);
        let len = self.memory[rank.index()][which].len;
        if at + count > len {
            let place = self.place(worker);
            return Err(VerifyError::BadRead {
                place,
                buffer,
                element: offset + count - 1,
                problem: "is outside the buffer",
            });
        }
        Ok((which, at))
    }

    fn load(&mut self, worker: usize, buffer: Buffer, offset: u64, count: u64) -> Result<Vec<Piece>, VerifyError> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let (which, at) = self.check_bounds(worker, buffer, offset, count)?;
        let rank = self.wiring.workers[worker].rank.index();
        let access = self.access(worker);
        let mut pieces = Vec::new();
        let mut race = None;
        let mut missing = None;
        for (start, segment) in self.memory[rank][which].range(at, count) {
            match &segment.symbol {
                Some(symbol) => pieces.push(Piece { len: segment.len, symbol: symbol.clone() }),
                None => missing = Some(offset + start - at),
            }
            if let (Some(written), Some(access)) = (segment.written, access) {
                race = race.or_else(|| unordered(&self.clocks, worker, written).then_some((written.0, start)));
                segment.read.retain(|r| r.0 != access.0);
            }
            segment.read.extend(access);
        }
        if let Some(element) = missing {
            return Err(VerifyError::BadRead {
                place: self.place(worker),
                buffer,
                element,
                problem: "holds nothing yet",
            });
        }
        self.report_race(worker, race)?;
        Ok(pieces)
    }

    fn store(
        &mut self,
        worker: usize,
        buffer: Buffer,
        offset: u64,
        count: u64,
        data: &[Piece],
    ) -> Result<(), VerifyError> {
        if count == 0 {
            return Ok(());
        }
        let (which, at) = self.check_bounds(worker, buffer, offset, count)?;
        let rank = self.wiring.workers[worker].rank.index();
        let access = self.access(worker);
        let mut race = None;
        if access.is_some() {
            for (start, segment) in self.memory[rank][which].range(at, count) {
                for &other in segment.written.iter().chain(&segment.read) {
                    race = race.or_else(|| unordered(&self.clocks, worker, other).then_some((other.0, start)));
                }
            }
        }
        self.report_race(worker, race)?;
        self.memory[rank][which].write(at, data, access);
        Ok(())
    }

    fn access(&self, worker: usize) -> Option<Access> {
        // Accesses of this slice count as of the tick that follows it.
        self.clocks.get(worker).map(|clock| (u32::try_from(worker).unwrap_or(UNUSED), clock[worker] + 1))
    }

    fn report_race(&self, worker: usize, race: Option<(u32, u64)>) -> Result<(), VerifyError> {
        match race {
            Some((other, element)) => {
                Err(VerifyError::Race { first: self.place(other as usize), second: self.place(worker), element })
            }
            None => Ok(()),
        }
    }

    fn tick(&mut self, worker: usize) -> Option<Rc<[u32]>> {
        let clock = self.clocks.get_mut(worker)?;
        clock[worker] += 1;
        (!self.cursors[worker].step.send.is_empty()).then(|| clock.as_slice().into())
    }

    fn check_result(&mut self) -> Result<(), VerifyError> {
        let call = self.schedule.call.clone();
        let n = call.ranks;
        let all = set_of(n, 0..n);
        for r in 0..n {
            let rank = Rank(r);
            for (offset, count, expected) in promised(&call, rank, &all) {
                if count == 0 {
                    continue;
                }
                let (which, at) = self.locate(rank, Buffer::Output, offset);
                for (start, segment) in self.memory[rank.index()][which].range(at, count) {
                    let expected = expected.at(start - at);
                    if segment.symbol.as_ref() != Some(&expected) {
                        return Err(VerifyError::WrongResult {
                            rank: r,
                            element: offset + start - at,
                            found: segment.symbol.as_ref().map_or("nothing".to_owned(), Symbol::describe),
                            expected: expected.describe(),
                        });
                    }
                }
            }
        }
        Ok(())
    }
}

/// Whether an earlier access is not known to have happened before what `worker` does now.
fn unordered(clocks: &[Vec<u32>], worker: usize, access: Access) -> bool {
    access.0 as usize != worker && clocks[worker][access.0 as usize] < access.1
}

/// What the collective promises to a rank: offset, count and symbol of each part of its output.
fn promised(call: &Call, rank: Rank, all: &Rc<[u64]>) -> Vec<(u64, u64, Symbol)> {
    let n = call.ranks;
    let from = |r: u32, origin: u64| Symbol { origin, ranks: set_of(n, [r]) };
    let sum = |origin: u64| Symbol { origin, ranks: Rc::clone(all) };
    match call.collective {
        Collective::AllReduce => vec![(0, call.count, sum(0))],
        Collective::Reduce if rank == call.root => vec![(0, call.count, sum(0))],
        Collective::ReduceScatter => vec![(0, call.count, sum(call.count * u64::from(rank.0)))],
        Collective::Broadcast => vec![(0, call.count, from(call.root.0, 0))],
        Collective::AllGather => (0..n).map(|r| (call.count * u64::from(r), call.count, from(r, 0))).collect(),
        Collective::Gather if rank == call.root => {
            (0..n).map(|r| (call.count * u64::from(r), call.count, from(r, 0))).collect()
        }
        Collective::Scatter => vec![(0, call.count, from(call.root.0, call.count * u64::from(rank.0)))],
        Collective::AllToAll => (0..n)
            .map(|r| {
                let origin = call.send_offset(Rank(r), rank);
                (call.recv_offset(Rank(r), rank), call.pair_count(Rank(r), rank), from(r, origin))
            })
            .collect(),
        Collective::SendRecv => vec![(0, call.count, from((rank.0 + n - 1) % n, 0))],
        Collective::Reduce | Collective::Gather => vec![],
    }
}

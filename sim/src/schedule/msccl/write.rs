//! Writes a schedule as MSCCL XML: unrolled, one thread block for each pair of peers.

use std::fmt::Write as _;

use quick_xml::escape::escape;
use rustc_hash::FxHashMap;
use thiserror::Error;

use super::algorithm::{Imported, Kind, Place};
use crate::collective::{Algorithm, Collective, Protocol};
use crate::ids::Rank;
use crate::nccl::plan::{Dealing, Plan};
use crate::schedule::program::{Buffer, Step};
use crate::schedule::wiring::{UNUSED, Wired, Wiring, WiringError};
use crate::schedule::{Call, Order, Schedule, ScheduleError};

/// Most steps of a file.
const MAX_STEPS: usize = 1_000_000;

/// A schedule that MSCCL XML cannot hold.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum ExportError {
    /// A flaw of the schedule.
    #[error(transparent)]
    Wiring(#[from] WiringError),
    /// A collective that the format does not know, or unequal counts.
    #[error("MSCCL XML has no {0}, and no counts that differ between ranks")]
    Collective(Collective),
    /// Reductions or multicasts in switches.
    #[error("{0} combines in switches, which MSCCL XML cannot say; export a ring, tree, PAT or CollTree")]
    Switches(Algorithm),
    /// More steps than anybody reads.
    #[error("the file would have over {MAX_STEPS} steps; export fewer ranks or channels")]
    TooLarge,
    /// An instruction that is none of the format's.
    #[error("an instruction combines three sources, which no MSCCL step does")]
    Sources,
}

/// The same call and plan at the smallest size at which every program goes once through its
/// loop of chunks.
///
/// # Errors
/// A call that has no schedule.
pub fn one_loop(call: &Call, plan: &Plan, order: &Order) -> Result<Schedule, ScheduleError> {
    let mut plan = *plan;
    // As many elements a channel as ranks, so that each has a part; in one chunk and slice.
    let each = u64::from(call.ranks.max(1));
    (plan.grain, plan.chunk, plan.per_channel) = (1, each, each);
    (plan.slices, plan.min_slice, plan.aggregate) = (1, 1, 1);
    plan.dealing = Dealing::Evenly;
    let sharers = if plan.algorithm == Algorithm::Direct { plan.channels_per_peer } else { plan.channels };
    let call = Call { count: each * u64::from(sharers), ..call.clone() };
    Schedule::new(call, plan, order)
}

/// One step of the file, before it is numbered.
struct Piece {
    kind: Kind,
    src: Place,
    dst: Place,
    count: u64,
    /// Block in its worker.
    block: usize,
    /// The worker and number of an instruction there that must have signalled.
    token: Option<(usize, usize)>,
}

/// A worker taken apart.
#[derive(Default)]
struct Parts {
    /// By block: connection sent on and received from.
    blocks: Vec<(Option<u32>, Option<u32>)>,
    pieces: Vec<Piece>,
    /// Last piece of every instruction that signals.
    signals: Vec<usize>,
    /// Elements of scratch of its own.
    scratch: u64,
}

/// What a file says of the whole algorithm.
struct Head<'a> {
    name: &'a str,
    in_place: bool,
    out_of_place: bool,
    min_bytes: u64,
    max_bytes: u64,
    threads: Option<u32>,
    /// Elements of a chunk; none for as many as all places and amounts are multiples of.
    unit: Option<u64>,
}

/// Largest size that a file is for where nothing limits it.
const MAX_BYTES: u64 = 1 << 50;

/// Writes a schedule, every step of it, as the algorithm `name`.
///
/// An instruction with several peers becomes several steps, in blocks of their own, one after
/// another. The schedule should be a small one (see [`one_loop`]): the file holds each step once.
///
/// # Errors
/// See [`ExportError`].
pub fn export(schedule: &Schedule, name: &str) -> Result<String, ExportError> {
    let in_place = schedule.call.in_place;
    let (min_bytes, max_bytes, threads, unit) = (0, MAX_BYTES, None, None);
    write(schedule, &Head { name, in_place, out_of_place: !in_place, min_bytes, max_bytes, threads, unit })
}

/// Writes an algorithm that was read: `smallest` is its schedule of a call of one element a chunk, which has each step once.
/// Chunks, sizes, threads and buffers stay as the file has them.
///
/// # Errors
/// See [`ExportError`].
pub fn rewrite(smallest: &Schedule, read: &Imported) -> Result<String, ExportError> {
    let head = Head {
        name: &read.name,
        in_place: read.in_place,
        out_of_place: read.out_of_place,
        min_bytes: read.min_bytes.unwrap_or(0),
        max_bytes: read.max_bytes.unwrap_or(MAX_BYTES),
        threads: read.threads,
        unit: Some(1),
    };
    write(smallest, &head)
}

fn write(schedule: &Schedule, head: &Head<'_>) -> Result<String, ExportError> {
    let call = &schedule.call;
    let collective = match call.collective {
        Collective::SendRecv => return Err(ExportError::Collective(call.collective)),
        _ if call.counts.is_some() => return Err(ExportError::Collective(call.collective)),
        Collective::AllReduce => "allreduce",
        Collective::AllGather => "allgather",
        Collective::AllToAll => "alltoall",
        other => other.name(),
    };
    let wiring = Wiring::new(schedule)?;
    if wiring.conns.iter().any(|c| c.conn.ranks().is_none()) {
        return Err(ExportError::Switches(schedule.plan.algorithm));
    }
    let channels = Channels::new(&wiring);
    let mut left = MAX_STEPS;
    // Scratch of a worker comes after that of the schedule and of the rank's workers before it.
    let mut scratch: Vec<u64> = (0..call.ranks).map(|r| schedule.scratch_len(Rank(r))).collect();
    let parts: Vec<Parts> = (wiring.workers.iter())
        .map(|worker| take_apart(schedule, worker, &channels, &mut scratch[worker.rank.index()], &mut left))
        .collect::<Result<_, _>>()?;
    let unit = head.unit.unwrap_or_else(|| unit(schedule, &parts));
    let names = Numbers::new(&wiring, &parts);
    let mut writer =
        Writer { schedule, wiring: &wiring, channels, parts: &parts, scratch, unit, names, xml: String::new() };
    writer.algo(head, collective);
    Ok(writer.xml)
}

/// Which channel of the file a connection is.
struct Channels<'a> {
    wiring: &'a Wiring,
    /// Channels for each of the schedule's.
    streams: u32,
}

impl<'a> Channels<'a> {
    /// Streams share a channel where no two of them join the same ranks.
    fn new(wiring: &'a Wiring) -> Self {
        let mut pairs: Vec<_> = wiring.conns.iter().map(|c| (c.conn.src, c.conn.dst, c.conn.channel)).collect();
        pairs.sort_unstable();
        let apart = pairs.windows(2).any(|w| w[0] == w[1]);
        let streams = if apart { 1 + wiring.conns.iter().map(|c| c.conn.stream).max().unwrap_or(0) } else { 1 };
        Self { wiring, streams }
    }

    fn of(&self, conn: u32) -> u32 {
        let conn = self.wiring.conns[conn as usize].conn;
        // Where there is one for each, all streams share it.
        conn.channel.0 * self.streams + if self.streams > 1 { conn.stream } else { 0 }
    }
}

/// Writes what has been taken apart.
struct Writer<'a> {
    schedule: &'a Schedule,
    wiring: &'a Wiring,
    channels: Channels<'a>,
    /// By worker.
    parts: &'a [Parts],
    /// By rank, in elements.
    scratch: Vec<u64>,
    /// Elements of a chunk.
    unit: u64,
    names: Numbers,
    xml: String,
}

impl Writer<'_> {
    fn say(&mut self, line: std::fmt::Arguments<'_>) {
        let _ = self.xml.write_fmt(line);
        self.xml.push('\n');
    }

    fn algo(&mut self, head: &Head<'_>, collective: &str) {
        let (call, plan) = (&self.schedule.call, &self.schedule.plan);
        let whole = if call.collective.size_is_total() { call.count * u64::from(call.ranks) } else { call.count };
        let protocol = match plan.protocol {
            Protocol::Ll => "LL",
            Protocol::Ll128 => "LL128",
            Protocol::Simple => "Simple",
        };
        let (inplace, outofplace) = (u8::from(head.in_place), u8::from(head.out_of_place));
        let threads = head.threads.map_or_else(String::new, |threads| format!(r#" nthreads="{threads}""#));
        let channels = plan.channels * self.channels.streams;
        self.say(format_args!(
            r#"<algo name="{}" proto="{protocol}" nchannels="{channels}" nchunksperloop="{}" ngpus="{}" coll="{collective}" inplace="{inplace}" outofplace="{outofplace}" minBytes="{}" maxBytes="{}"{threads}>"#,
            escape(head.name),
            (whole / self.unit).max(1),
            call.ranks,
            head.min_bytes,
            head.max_bytes,
        ));
        for rank in (0..call.ranks).map(Rank) {
            self.gpu(rank);
        }
        self.say(format_args!("</algo>"));
    }

    fn gpu(&mut self, rank: Rank) {
        let (call, unit) = (&self.schedule.call, self.unit);
        self.say(format_args!(
            r#"  <gpu id="{rank}" i_chunks="{}" o_chunks="{}" s_chunks="{}">"#,
            call.input_len(rank) / unit,
            call.output_len(rank) / unit,
            self.scratch[rank.index()] / unit
        ));
        let wiring = self.wiring;
        for (w, _) in wiring.workers.iter().enumerate().filter(|(_, w)| w.rank == rank) {
            for b in 0..self.parts[w].blocks.len() {
                self.block(w, b);
            }
        }
        self.say(format_args!("  </gpu>"));
    }

    /// A block of a worker.
    fn block(&mut self, w: usize, b: usize) {
        let (wiring, part) = (self.wiring, &self.parts[w]);
        let (send, recv) = part.blocks[b];
        let ranks = |conn: Option<u32>| conn.and_then(|c| wiring.conns[c as usize].conn.ranks());
        let to = ranks(send).map_or(-1, |(_, to)| i64::from(to.0));
        let from = ranks(recv).map_or(-1, |(from, _)| i64::from(from.0));
        let own = wiring.workers[w].channel.0 * self.channels.streams;
        let chan = send.or(recv).map_or(own, |conn| self.channels.of(conn));
        let id = self.names.first_block[w] + b;
        self.say(format_args!(r#"    <tb id="{id}" send="{to}" recv="{from}" chan="{chan}">"#));
        for (p, piece) in part.pieces.iter().enumerate().filter(|(_, p)| p.block == b) {
            self.step(w, p, piece);
        }
        self.say(format_args!("    </tb>"));
    }

    /// A piece of a worker.
    fn step(&mut self, w: usize, p: usize, piece: &Piece) {
        let (names, parts, unit) = (&self.names, self.parts, self.unit);
        let before = match piece.token {
            Some(token) => Some(names.signal(parts, token)),
            None => names.previous(&parts[w], w, p),
        };
        let (depid, deps) = before.map_or((-1, -1), |(b, s)| (b as i64, s as i64));
        let at = |used: bool, (buffer, offset): Place| {
            let letter = match buffer {
                Buffer::Input => "i",
                Buffer::Output => "o",
                Buffer::Scratch => "s",
            };
            if used { (letter, (offset / unit) as i64) } else { ("i", -1) }
        };
        let (src, dst) = (at(piece.kind.reads(), piece.src), at(piece.kind.writes(), piece.dst));
        let (number, awaited) = (names.number[w][p], u8::from(names.awaited[w][p]));
        self.say(format_args!(
            r#"      <step s="{number}" type="{}" srcbuf="{}" srcoff="{}" dstbuf="{}" dstoff="{}" cnt="{}" depid="{depid}" deps="{deps}" hasdep="{awaited}"/>"#,
            piece.kind.name(),
            src.0,
            src.1,
            dst.0,
            dst.1,
            piece.count / unit,
        ));
    }
}

/// The greatest chunk that all places and amounts are multiples of.
fn unit(schedule: &Schedule, parts: &[Parts]) -> u64 {
    let gcd = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let ranks = (0..schedule.call.ranks).map(Rank);
    let lengths =
        ranks.flat_map(|r| [schedule.call.input_len(r), schedule.call.output_len(r), schedule.scratch_len(r)]);
    let pieces = parts.iter().flat_map(|p| {
        let at = |used: bool, place: Place| if used { place.1 } else { 0 };
        let places =
            p.pieces.iter().flat_map(move |s| [at(s.kind.reads(), s.src), at(s.kind.writes(), s.dst), s.count]);
        places.chain([p.scratch])
    });
    lengths.chain(pieces).fold(0, gcd).max(1)
}

/// Where everything is in the file.
struct Numbers {
    /// By worker: number of its first block on its GPU.
    first_block: Vec<usize>,
    /// By worker and piece: number of the step in its block; and whether another block waits for it.
    number: Vec<Vec<usize>>,
    awaited: Vec<Vec<bool>>,
}

impl Numbers {
    fn new(wiring: &Wiring, parts: &[Parts]) -> Self {
        let mut blocks: FxHashMap<Rank, usize> = FxHashMap::default();
        let mut first_block = Vec::new();
        let mut number = Vec::new();
        for (worker, part) in wiring.workers.iter().zip(parts) {
            let first = blocks.entry(worker.rank).or_default();
            first_block.push(*first);
            *first += part.blocks.len();
            let mut next = vec![0; part.blocks.len()];
            let mut count = |p: &Piece| {
                next[p.block] += 1;
                next[p.block] - 1
            };
            number.push(part.pieces.iter().map(&mut count).collect());
        }
        let mut awaited: Vec<Vec<bool>> = parts.iter().map(|p| vec![false; p.pieces.len()]).collect();
        for (w, part) in parts.iter().enumerate() {
            for (p, piece) in part.pieces.iter().enumerate() {
                match piece.token {
                    Some((other, signal)) => awaited[other][parts[other].signals[signal]] = true,
                    None if p > 0 && part.pieces[p - 1].block != piece.block => awaited[w][p - 1] = true,
                    None => {}
                }
            }
        }
        Self { first_block, number, awaited }
    }

    fn place(&self, part: &Parts, worker: usize, piece: usize) -> (usize, usize) {
        (self.first_block[worker] + part.pieces[piece].block, self.number[worker][piece])
    }

    /// The step that a signal means.
    fn signal(&self, parts: &[Parts], (worker, signal): (usize, usize)) -> (usize, usize) {
        self.place(&parts[worker], worker, parts[worker].signals[signal])
    }

    /// The step before a piece of the same worker, where that is in another block.
    fn previous(&self, part: &Parts, worker: usize, piece: usize) -> Option<(usize, usize)> {
        let before = piece.checked_sub(1)?;
        (part.pieces[before].block != part.pieces[piece].block).then(|| self.place(part, worker, before))
    }
}

fn take_apart(
    schedule: &Schedule,
    worker: &Wired,
    channels: &Channels<'_>,
    scratch: &mut u64,
    left: &mut usize,
) -> Result<Parts, ExportError> {
    let template = &schedule.templates[worker.template];
    let mut steps: Vec<Step> = Vec::new();
    let (mut state, mut step) = (worker.start.clone(), Step::default());
    while template.next(&mut state, &mut step) {
        *left = left.checked_sub(1 + step.recv.len() + step.send.len()).ok_or(ExportError::TooLarge)?;
        if step.count > 0 || step.wait.is_some() || step.signal {
            steps.push(step.clone());
        }
    }
    let conn = |conns: &[u32], port: usize| conns.get(port).copied().filter(|&c| c != UNUSED);
    let used = |side: fn(&Step) -> &[usize], conns: &[u32]| {
        let mut all: Vec<u32> = Vec::new();
        for &port in steps.iter().flat_map(side) {
            if let Some(c) = conn(conns, port).filter(|c| !all.contains(c)) {
                all.push(c);
            }
        }
        all
    };
    let (recv, send) = (used(|s| &s.recv, &worker.recv), used(|s| &s.send, &worker.send));
    // A block has one peer of each kind, on one channel.
    let one_channel =
        recv.iter().chain(&send).all(|&c| channels.of(c) == channels.of(recv.first().copied().unwrap_or(c)));
    let alone = recv.len() <= 1 && send.len() <= 1 && one_channel;
    let mut parts = Parts::default();
    if alone {
        parts.blocks.push((send.first().copied(), recv.first().copied()));
    } else {
        parts.blocks.extend(recv.iter().map(|&c| (None, Some(c))).chain(send.iter().map(|&c| (Some(c), None))));
    }
    let temporary = (Buffer::Scratch, *scratch);
    for step in &steps {
        let recv: Vec<u32> = step.recv.iter().filter_map(|&p| conn(&worker.recv, p)).collect();
        let send: Vec<u32> = step.send.iter().filter_map(|&p| conn(&worker.send, p)).collect();
        let token = step.wait.filter(|w| w.1 > 0).map(|(port, count)| {
            let other = worker.tokens.get(port).copied().unwrap_or(UNUSED) as usize;
            (other, usize::try_from(count - 1).unwrap_or(usize::MAX))
        });
        let first = parts.pieces.len();
        // With several blocks a step may wait for the one before it already.
        if token.is_some() && !alone {
            parts.push(Kind::Nothing, temporary, temporary, 0, None, None);
            parts.pieces[first].token = token;
        }
        parts.add(step, &recv, &send, alone, temporary)?;
        if parts.pieces.len() == first && (token.is_some() || step.signal) {
            parts.push(Kind::Nothing, temporary, temporary, 0, None, None);
        }
        if token.is_some() {
            parts.pieces[first].token = token;
        }
        if step.signal {
            parts.signals.push(parts.pieces.len() - 1);
        }
    }
    if parts.pieces.is_empty() {
        parts.blocks.clear();
    }
    *scratch += parts.scratch;
    Ok(parts)
}

impl Parts {
    fn push(&mut self, kind: Kind, src: Place, dst: Place, count: u64, recv: Option<u32>, send: Option<u32>) {
        let own = |&(s, r): &(Option<u32>, Option<u32>)| {
            recv.is_none_or(|c| r == Some(c)) && send.is_none_or(|c| s == Some(c))
        };
        let found = (recv.is_some() || send.is_some()).then(|| self.blocks.iter().position(own)).flatten();
        // What has no peer stays where the step before it was.
        let block = found.or(self.pieces.last().map(|p| p.block)).unwrap_or(0);
        self.pieces.push(Piece { kind, src, dst, count, block, token: None });
    }

    /// The steps of one instruction; partial sums without a place wait in `temporary`.
    fn add(
        &mut self,
        step: &Step,
        recv: &[u32],
        send: &[u32],
        alone: bool,
        temporary: Place,
    ) -> Result<(), ExportError> {
        let (count, dst) = (step.count, step.dst);
        if count == 0 {
            return Ok(());
        }
        if step.accumulate && step.src.is_some() && !recv.is_empty() {
            return Err(ExportError::Sources);
        }
        // What is combined with what arrives.
        let local = step.src.or(dst.filter(|_| step.accumulate));
        let place = dst.unwrap_or(temporary);
        let from = match recv {
            [] => {
                let Some(src) = step.src else { return Ok(()) };
                if let Some(dst) = dst {
                    self.push(if step.accumulate { Kind::Reduce } else { Kind::Copy }, src, dst, count, None, None);
                }
                if step.accumulate { place } else { src }
            }
            &[one] if alone => {
                let to = send.first().copied();
                let kind = match (local.is_some(), to.is_some()) {
                    (true, true) if dst.is_none() => Kind::ReceiveReduceSend,
                    (true, true) => Kind::ReceiveReduceCopySend,
                    (true, false) => Kind::ReceiveReduceCopy,
                    (false, true) => Kind::ReceiveCopySend,
                    (false, false) => Kind::Receive,
                };
                if dst.is_none() && kind.writes() {
                    self.scratch = self.scratch.max(count);
                }
                self.push(kind, local.unwrap_or(place), place, count, Some(one), to);
                return Ok(());
            }
            several => {
                if dst.is_none() {
                    self.scratch = self.scratch.max(count);
                }
                let mut local = local;
                for &one in several {
                    let kind = if local.is_some() { Kind::ReceiveReduceCopy } else { Kind::Receive };
                    self.push(kind, local.unwrap_or(place), place, count, Some(one), None);
                    local = Some(place);
                }
                place
            }
        };
        for &to in send {
            self.push(Kind::Send, from, from, count, None, Some(to));
        }
        Ok(())
    }
}

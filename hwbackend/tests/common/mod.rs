//! Random schedules: every chunk is reduced up a random tree of its own and spread down again,
//! over random peers, channels, lanes and chunk sizes. Some partial sums wait in scratch memory,
//! until another lane of the rank, told by a signal, sends them on.

use std::collections::BTreeMap;

use collcast_sim::collective::{Algorithm, Collective, DataType, Protocol, ReduceOp};
use collcast_sim::ids::{ChannelId, Lane, Rank};
use collcast_sim::nccl::{Limits, Plan};
use collcast_sim::schedule::program::{Buffer, Code, Op, REGISTERS, Ref, Template, Wait, c};
use collcast_sim::schedule::{Call, Conn, Generator, Schedule, Worker};
use collcast_sim::units::Bytes;
use smallvec::SmallVec;

/// A small generator of numbers with a seed (Marsaglia, "Xorshift RNGs", 2003).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

#[derive(Debug, Default)]
struct Workers {
    workers: BTreeMap<(u32, u32, u32), Worker>,
    scratch: u64,
}

impl Generator for Workers {
    fn worker(&self, rank: Rank, channel: ChannelId, lane: Lane) -> Option<Worker> {
        self.workers.get(&(rank.0, channel.0, lane.0)).cloned()
    }

    fn scratch(&self, _: Rank) -> u64 {
        self.scratch
    }
}

/// What one worker does, as it grows.
#[derive(Default)]
struct Growing {
    code: Vec<Code>,
    recv: Vec<Conn>,
    send: Vec<Conn>,
    tokens: Vec<(ChannelId, Lane)>,
    signals: i64,
}

fn port<T: PartialEq>(ports: &mut Vec<T>, port: T) -> i64 {
    let at = ports.iter().position(|p| *p == port).unwrap_or_else(|| {
        ports.push(port);
        ports.len() - 1
    });
    at as i64
}

/// A random all-reduce of any protocol; the same for the same dice. `broken` leaves out one
/// rank's part in one chunk, so that its peers wait for ever.
pub(crate) fn random_all_reduce(dice: &mut Dice, ranks: u32, protocol: Protocol, broken: bool) -> Schedule {
    let mut call = Call::of_size(Collective::AllReduce, ranks, Bytes(0), DataType::Float32);
    call.dtype = [DataType::Float32, DataType::Int32, DataType::Float16, DataType::Bfloat16][dice.below(4) as usize];
    call.op = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min][dice.below(3) as usize];
    call.count = dice.below(40_000);
    call.in_place = dice.below(2) == 0;
    let (channels, lanes) = (1 + dice.below(4) as u32, 1 + dice.below(3) as u32);
    let mut plan =
        Plan::new(&call, Algorithm::Ring, protocol, &Limits { channels, exact_channels: true, ..Limits::default() });
    plan.channels = channels;
    plan.slices = 1 + dice.below(3) as u32;
    plan.fifo_slices = 2 + dice.below(6) as u32;
    plan.min_slice = 1 + dice.below(64);
    plan.threads = 32 * (1 + dice.below(5) as u32);

    let mut growing: BTreeMap<(u32, u32, u32), Growing> = BTreeMap::new();
    let mut at = 0;
    let mut dropped = broken;
    while at < call.count {
        let size = (1 + dice.below(6000)).min(call.count - at);
        let (channel, lane) = (dice.below(u64::from(channels)) as u32, dice.below(u64::from(lanes)) as u32);
        // A random tree: every rank but the first of a random order hangs under one before it,
        // which has room for it.
        let mut order: Vec<u32> = (0..ranks).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, dice.below(i as u64 + 1) as usize);
        }
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let mut parent: BTreeMap<u32, u32> = BTreeMap::new();
        for i in 1..order.len() {
            let free: Vec<u32> =
                order[..i].iter().copied().filter(|r| children.get(r).map_or(0, Vec::len) < 3).collect();
            let up = free[dice.below(free.len() as u64) as usize];
            parent.insert(order[i], up);
            children.entry(up).or_default().push(order[i]);
        }
        // Who sends up from which lane; every sending worker has a connection of its own.
        let detours: Vec<u32> =
            (0..ranks).map(|_| if dice.below(3) == 0 { dice.below(u64::from(lanes)) as u32 } else { lane }).collect();
        let up_conn = |src: u32, dst: u32| {
            let sender = detours[src as usize];
            Conn::pair(Rank(src), Rank(dst), ChannelId(channel), lane + lanes * (1 + sender))
        };
        let down_conn = |src, dst| Conn::pair(Rank(src), Rank(dst), ChannelId(channel), lane);
        let place = |buffer| Some(Ref { buffer, offset: c(at as i64) });
        let ports = |list: &mut Vec<Conn>, conns: &[Conn]| -> SmallVec<_> {
            conns.iter().map(|&conn| c(port(list, conn))).collect()
        };
        let mut grow = |(rank, lane): (u32, u32), from: &[Conn], to: &[Conn], mut op: Op, skip: bool| {
            let worker = growing.entry((rank, channel, lane)).or_default();
            (op.recv, op.send) = (ports(&mut worker.recv, from), ports(&mut worker.send, to));
            op.reduce = op.recv.len() + usize::from(op.src.is_some()) + usize::from(op.accumulate) > 1;
            (op.count, op.span) = (c(size as i64), c(size as i64));
            worker.signals += i64::from(op.signal && !skip);
            if let Some(Wait { port: from, count }) = &mut op.wait {
                // Given as the lane; becomes the place in the list of tokens.
                let told = Lane(from.eval(&[0; REGISTERS]) as u32);
                *from = c(port(&mut worker.tokens, (ChannelId(channel), told)));
                assert!(skip || count.eval(&[0; REGISTERS]) > 0);
            }
            if !skip {
                worker.code.push(Code::Op(op));
            }
            worker.signals
        };
        let none: Vec<u32> = vec![];
        let of = |rank: &u32| children.get(rank).unwrap_or(&none);
        let from_children = |rank: u32| of(&rank).iter().map(|&c| up_conn(c, rank)).collect::<Vec<_>>();
        let to_children = |rank: u32| of(&rank).iter().map(|&c| down_conn(rank, c)).collect::<Vec<_>>();
        // All workers go through all chunks in one order, leaves first and then the root, so no
        // two of them can wait for each other.
        for &rank in order.iter().rev() {
            let (from, sender) = (from_children(rank), detours[rank as usize]);
            let own = Op { src: place(Buffer::Input), ..Op::default() };
            match parent.get(&rank) {
                Some(&up) if sender != lane => {
                    let skip = std::mem::take(&mut dropped);
                    let keep = Op { dst: place(Buffer::Scratch), signal: from.is_empty(), ..own };
                    let mut told = grow((rank, lane), &[], &[], keep, skip);
                    if !from.is_empty() {
                        let add = Op { dst: place(Buffer::Scratch), accumulate: true, signal: true, ..Op::default() };
                        told = grow((rank, lane), &from, &[], add, skip);
                    }
                    let wait = Some(Wait { port: c(i64::from(lane)), count: c(told) });
                    let pass = Op { src: place(Buffer::Scratch), wait, ..Op::default() };
                    grow((rank, sender), &[], &[up_conn(rank, up)], pass, skip);
                }
                Some(&up) => {
                    grow((rank, lane), &from, &[up_conn(rank, up)], own, std::mem::take(&mut dropped));
                }
                None => {
                    grow((rank, lane), &from, &to_children(rank), Op { dst: place(Buffer::Output), ..own }, false);
                }
            }
        }
        for &rank in &order[1..] {
            let take = Op { dst: place(Buffer::Output), ..Op::default() };
            grow((rank, lane), &[down_conn(parent[&rank], rank)], &to_children(rank), take, false);
        }
        at += size;
    }
    let mut templates = Vec::new();
    let mut workers = Workers { scratch: call.count, ..Workers::default() };
    for (place, Growing { code, recv, send, tokens, .. }) in growing {
        let worker = Worker {
            template: templates.len(),
            parameters: vec![],
            recv,
            send,
            threads: plan.threads,
            others: 0,
            tokens,
        };
        workers.workers.insert(place, worker);
        templates.push(Template::new(&code));
    }
    Schedule::from_parts(call, plan, lanes, templates, Box::new(workers))
}

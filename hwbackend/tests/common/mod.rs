//! Random schedules: every chunk is reduced up a random tree of its own and spread down again,
//! over random peers, channels, lanes and chunk sizes.

use std::collections::BTreeMap;

use collcast_sim::collective::{Algorithm, Collective, DataType, Protocol, ReduceOp};
use collcast_sim::ids::{ChannelId, Lane, Rank};
use collcast_sim::schedule::plan::{Limits, Plan};
use collcast_sim::schedule::program::{Buffer, Code, Op, Ref, Template, c};
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
struct Workers(BTreeMap<(u32, u32, u32), Worker>);

impl Generator for Workers {
    fn worker(&self, rank: Rank, channel: ChannelId, lane: Lane) -> Option<Worker> {
        self.0.get(&(rank.0, channel.0, lane.0)).cloned()
    }
}

/// What one worker does, as it grows.
#[derive(Default)]
struct Growing {
    code: Vec<Code>,
    recv: Vec<Conn>,
    send: Vec<Conn>,
}

fn port(conns: &mut Vec<Conn>, conn: Conn) -> i64 {
    let at = conns.iter().position(|c| *c == conn).unwrap_or_else(|| {
        conns.push(conn);
        conns.len() - 1
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
        let conn = |src, dst| Conn::pair(Rank(src), Rank(dst), ChannelId(channel), lane);
        let place = |buffer| Some(Ref { buffer, offset: c(at as i64) });
        let mut grow = |rank: u32, from: &[u32], to: &[u32], src, dst, skip: bool| {
            let worker = growing.entry((rank, channel, lane)).or_default();
            let recv: SmallVec<_> = from.iter().map(|&p| c(port(&mut worker.recv, conn(p, rank)))).collect();
            let send: SmallVec<_> = to.iter().map(|&p| c(port(&mut worker.send, conn(rank, p)))).collect();
            let reduce = recv.len() + usize::from(Option::<Ref>::is_some(&src)) > 1;
            if skip {
                return;
            }
            worker.code.push(Code::Op(Op {
                recv,
                reduce,
                src,
                dst,
                send,
                count: c(size as i64),
                span: c(size as i64),
                accumulate: false,
                wait: None,
                signal: false,
            }));
        };
        let none: Vec<u32> = vec![];
        let of = |rank: &u32| children.get(rank).unwrap_or(&none);
        // All workers go through all chunks in one order, leaves first and then the root, so no
        // two of them can wait for each other.
        for rank in order.iter().rev() {
            match parent.get(rank) {
                Some(&up) => grow(*rank, of(rank), &[up], place(Buffer::Input), None, std::mem::take(&mut dropped)),
                None => grow(*rank, of(rank), of(rank), place(Buffer::Input), place(Buffer::Output), false),
            }
        }
        for rank in &order[1..] {
            grow(*rank, &[parent[rank]], of(rank), None, place(Buffer::Output), false);
        }
        at += size;
    }
    let mut templates = Vec::new();
    let mut workers = Workers::default();
    for (place, Growing { code, recv, send }) in growing {
        let worker =
            Worker { template: templates.len(), parameters: vec![], recv, send, threads: plan.threads, tokens: vec![] };
        workers.0.insert(place, worker);
        templates.push(Template::new(&code));
    }
    Schedule::from_parts(call, plan, lanes, templates, Box::new(workers))
}

//! Ring: neighbours in a circle. All-reduce, all-gather, reduce-scatter, broadcast, reduce.
//!
//! Position `i` of `n` talks to `i-1` and `i+1` only. The order of chunks is NCCL's
//! (`src/device/all_reduce.h` and its siblings, restated): what arrives is what the
//! neighbour has just finished.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::form::Form;
use super::program::{Buffer, Code, Expr, Op, Ref, Table, Template, Var, c, signed};
use super::{Call, Conn, Generator, Order, Worker};
use crate::collective::Collective;
use crate::ids::{ChannelId, Lane, Rank};
use crate::nccl::Plan;

const POS: Var = Var(0);
const N: Var = Var(1);
const START: Var = Var(2);
const LEN: Var = Var(3);
const CHUNK: Var = Var(4);
const GRAIN: Var = Var(5);
const LOOPS: Var = Var(6);
const COUNT: Var = Var(7);
const RING: Var = Var(8);
const L: Var = Var(9);
const OFF: Var = Var(10);
const SIZE: Var = Var(11);
const J: Var = Var(12);
const GRID: Var = Var(13);

#[derive(Debug)]
struct Ring {
    call: Call,
    plan: Plan,
    order: Arc<Order>,
    /// Position of each rank, per distinct order.
    positions: Vec<Vec<u32>>,
}

/// Each rank passes on what it gets; all-reduce does so twice, with a chunk a rank.
pub(super) fn form(call: &Call, order: &Order) -> Form {
    let channels = u32::try_from(order.rings.len()).unwrap_or(u32::MAX).max(2);
    let hops = u64::from(call.ranks - 1);
    match call.collective {
        Collective::AllReduce => Form { channels, chunks: hops + 1, sends: 2 * hops, each: 2 * hops },
        Collective::AllGather | Collective::ReduceScatter => Form { channels, chunks: 1, sends: hops, each: hops },
        _ => Form { channels, chunks: 1, sends: 1, each: 1 },
    }
}

pub(super) fn generate(call: &Call, plan: &Plan, order: &Arc<Order>) -> (u32, Vec<Template>, Box<dyn Generator>) {
    let templates = match call.collective {
        _ if call.ranks == 1 => vec![copy(call)],
        Collective::AllReduce => vec![all_reduce()],
        Collective::AllGather => vec![all_gather(call, order)],
        Collective::ReduceScatter => vec![reduce_scatter(order)],
        Collective::Broadcast => broadcast(call),
        _ => reduce(),
    };
    let positions = order
        .rings
        .iter()
        .map(|ring| {
            let mut positions = vec![0; ring.len()];
            for (position, &rank) in (0..).zip(ring.iter()) {
                positions[rank as usize] = position;
            }
            positions
        })
        .collect();
    let ring = Ring { call: call.clone(), plan: *plan, order: Arc::clone(order), positions };
    (1, templates, Box::new(ring))
}

impl Generator for Ring {
    fn worker(&self, rank: Rank, channel: ChannelId, _lane: Lane) -> Option<Worker> {
        let n = self.call.ranks;
        let ring_index = channel.index() % self.order.rings.len();
        let ring = &self.order.rings[ring_index];
        let position = self.positions[ring_index][rank.index()];
        let (from, to) = self.plan.range(channel.0, self.call.count);
        let length = to - from;
        // All-reduce spreads one loop over n chunks; the others move one chunk per loop.
        let per_loop = if self.call.collective == Collective::AllReduce {
            self.plan.chunk * u64::from(n)
        } else {
            self.plan.chunk
        };
        let root = self.positions[ring_index][self.call.root.index().min(n as usize - 1)];
        let after_root = (position + n - root) % n;
        let template = match self.call.collective {
            _ if n == 1 => 0,
            // Root, middle, last in the direction of the data.
            Collective::Broadcast => [0, 1, 2][if after_root == 0 { 0 } else { 1 + usize::from(after_root == n - 1) }],
            Collective::Reduce => [2, 0, 1][if after_root == 0 { 0 } else { 1 + usize::from(after_root != 1) }],
            _ => 0,
        };
        let at = |p: u32| Rank(ring[(p % n) as usize]);
        let conn = |src: Rank, dst: Rank| Conn::pair(src, dst, channel, 0);
        let (previous, next) = (at(position + n - 1), at(position + 1));
        let (mut recv, mut send) = (vec![conn(previous, rank)], vec![conn(rank, next)]);
        match (self.call.collective, template) {
            _ if n == 1 => (recv, send) = (vec![], vec![]),
            (Collective::Broadcast, 0) | (Collective::Reduce, 0) => recv.clear(),
            (Collective::Broadcast | Collective::Reduce, 2) => send.clear(),
            _ => {}
        }
        Some(Worker {
            template,
            parameters: vec![
                (POS, i64::from(position)),
                (N, i64::from(n)),
                (START, signed(from)),
                (LEN, signed(length)),
                (CHUNK, signed(self.plan.chunk)),
                (GRAIN, signed(self.plan.grain)),
                (LOOPS, signed(length.div_ceil(per_loop))),
                (COUNT, signed(self.call.count)),
                (RING, signed(ring_index as u64)),
                (GRID, signed(self.plan.last_grain())),
            ],
            recv,
            send,
            tokens: vec![],
            threads: self.plan.threads,
            others: 0,
        })
    }
}

/// An instruction on `count` of `span` elements; sources and destination as named.
struct Piece {
    recv: bool,
    send: bool,
    src: Option<Expr>,
    dst: Option<Expr>,
    count: Expr,
}

impl Piece {
    fn code(self) -> Code {
        let port = |used: bool| -> SmallVec<[Expr; 1]> { if used { smallvec![c(0)] } else { smallvec![] } };
        Code::Op(Op {
            reduce: self.recv && self.src.is_some(),
            recv: port(self.recv),
            send: port(self.send),
            src: self.src.map(|offset| Ref { buffer: Buffer::Input, offset }),
            dst: self.dst.map(|offset| Ref { buffer: Buffer::Output, offset }),
            count: self.count,
            span: SIZE.into(),
            ..Op::default()
        })
    }
}

fn all_reduce() -> Template {
    // Chunk `k` of the loop: where it is, and how much of it exists.
    let offset = |k: Expr| START + OFF + k % N * SIZE;
    let count = |k: Expr| (LEN - OFF - k % N * SIZE).max(0).min(SIZE);
    let piece = |recv, send, reads: bool, writes: bool, k: Expr| {
        Piece {
            recv,
            send,
            src: reads.then(|| offset(k.clone())),
            dst: writes.then(|| offset(k.clone())),
            count: count(k),
        }
        .code()
    };
    Template::new(&[Code::For(
        L,
        c(0),
        LOOPS.into(),
        vec![
            Code::Let(OFF, L * N * CHUNK),
            Code::Let(SIZE, ((LEN - OFF + N - 1) / N).round_up(GRID).min(CHUNK).min((LEN - OFF).round_up(GRAIN))),
            piece(false, true, true, false, POS + N - 1),
            Code::For(J, c(2), N.into(), vec![piece(true, true, true, false, POS + N - J)]),
            piece(true, true, true, true, POS.into()),
            Code::For(J, c(1), N - 1, vec![piece(true, true, false, true, POS + N - J)]),
            piece(true, false, false, true, POS + 1),
        ],
    )])
}

/// Loops over a channel's range one chunk at a time.
fn chunk_loop(body: Vec<Code>) -> Template {
    let mut code = vec![Code::Let(OFF, L * CHUNK), Code::Let(SIZE, (LEN - OFF).round_up(GRAIN).min(CHUNK))];
    code.extend(body);
    Template::new(&[Code::For(L, c(0), LOOPS.into(), code)])
}

fn here() -> Expr {
    START + OFF
}

fn exact() -> Expr {
    (LEN - OFF).min(SIZE)
}

/// The part of the rank at a position, by the order of the worker's ring.
fn part_at(order: &Order, position: Expr) -> Expr {
    let table: Table = order.rings.iter().flat_map(|ring| ring.iter().map(|&r| i64::from(r))).collect();
    Expr::Table(table, Box::new(RING * N + position % N)) * COUNT + here()
}

fn all_gather(call: &Call, order: &Order) -> Template {
    let part = |position: Expr| part_at(order, position);
    let forward =
        |send, position: Expr| Piece { recv: true, send, src: None, dst: Some(part(position)), count: exact() }.code();
    let own = (!call.in_place).then(|| part(POS.into()));
    chunk_loop(vec![
        Piece { recv: false, send: true, src: Some(here()), dst: own, count: exact() }.code(),
        Code::For(J, c(1), N - 1, vec![forward(true, POS + N - J)]),
        forward(false, POS + 1),
    ])
}

fn reduce_scatter(order: &Order) -> Template {
    let part = |position: Expr| part_at(order, position);
    let add =
        |recv, position: Expr| Piece { recv, send: true, src: Some(part(position)), dst: None, count: exact() }.code();
    chunk_loop(vec![
        add(false, POS + N - 1),
        Code::For(J, c(2), N.into(), vec![add(true, POS + N - J)]),
        Piece { recv: true, send: false, src: Some(part(POS.into())), dst: Some(here()), count: exact() }.code(),
    ])
}

/// Root, middle, last.
fn broadcast(call: &Call) -> Vec<Template> {
    let own = (!call.in_place).then(here);
    let piece = |recv, send, src, dst| chunk_loop(vec![Piece { recv, send, src, dst, count: exact() }.code()]);
    vec![
        piece(false, true, Some(here()), own),
        piece(true, true, None, Some(here())),
        piece(true, false, None, Some(here())),
    ]
}

/// First after the root, middle, root.
fn reduce() -> Vec<Template> {
    let piece = |recv, send, dst| chunk_loop(vec![Piece { recv, send, src: Some(here()), dst, count: exact() }.code()]);
    vec![piece(false, true, None), piece(true, true, None), piece(true, false, Some(here()))]
}

/// A single rank: a copy, or nothing when in place.
fn copy(call: &Call) -> Template {
    if call.in_place {
        return Template::new(&[]);
    }
    chunk_loop(vec![Piece { recv: false, send: false, src: Some(here()), dst: Some(here()), count: exact() }.code()])
}

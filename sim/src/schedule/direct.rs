//! Direct: every pair talks for itself. Send/receive and all-to-all, with or without counts.
//!
//! In round `r` a rank sends to `rank + r` and receives from `rank - r`. Rounds are dealt to
//! groups of `parts` channels, which share one message; a block sends and receives at once in
//! two lanes. Source: NCCL 2.30 `src/enqueue.cc` (point-to-point part), restated; NCCL orders
//! rounds by a quadratic walk over hosts, which on one host is this order.

use std::sync::Arc;

use smallvec::smallvec;

use super::program::{Buffer, Code, Expr, Op, Ref, Template, Var, c};
use super::{Call, Conn, Generator, Plan, Worker};
use crate::collective::Collective;
use crate::ids::{ChannelId, Lane, Rank};

const RANK: Var = Var(0);
const N: Var = Var(1);
const SLOT: Var = Var(2);
const STRIDE: Var = Var(3);
const ROUNDS: Var = Var(4);
const PART: Var = Var(5);
const PER: Var = Var(6);
const CHUNK: Var = Var(7);
const GRAIN: Var = Var(8);
const Q: Var = Var(9);
const PEER: Var = Var(10);
const LEN: Var = Var(11);
const L: Var = Var(12);
const OFF: Var = Var(13);
const SIZE: Var = Var(14);
const SELF: Var = Var(15);

const SEND: usize = 0;
const RECV: usize = 1;

#[derive(Debug)]
struct Direct {
    call: Call,
    plan: Plan,
}

pub(super) fn generate(call: &Call, plan: &Plan) -> (u32, Vec<Template>, Box<dyn Generator>) {
    let templates = vec![template(call, SEND), template(call, RECV)];
    (2, templates, Box::new(Direct { call: call.clone(), plan: *plan }))
}

fn template(call: &Call, lane: usize) -> Template {
    let n = call.ranks;
    let signed = |v: u64| i64::try_from(v).unwrap_or(i64::MAX);
    let table = |f: &dyn Fn(Rank, Rank) -> u64| -> Arc<[i64]> {
        (0..n).flat_map(|a| (0..n).map(move |b| (a, b))).map(|(a, b)| signed(f(Rank(a), Rank(b)))).collect()
    };
    let sends = lane == SEND;
    // From and to whom: the sender's lane walks to its right, the receiver's to its left.
    let pair = if sends { RANK * N + PEER } else { PEER * N + RANK };
    let (count, send_at, recv_at): (Expr, Expr, Expr) = match (&call.counts, call.collective) {
        (Some(_), _) => (
            Expr::Table(table(&|a, b| call.pair_count(a, b)), Box::new(pair.clone())),
            Expr::Table(table(&|a, b| call.send_offset(a, b)), Box::new(pair.clone())),
            Expr::Table(table(&|a, b| call.recv_offset(a, b)), Box::new(pair)),
        ),
        (None, Collective::AllToAll) => {
            let (from, to) = if sends { (RANK, PEER) } else { (PEER, RANK) };
            (c(signed(call.count)), to * signed(call.count), from * signed(call.count))
        }
        (None, _) => (c(signed(call.count)), c(0), c(0)),
    };
    let place = |buffer, base: &Expr| Some(Ref { buffer, offset: base.clone() + PART * PER + OFF });
    let op = |send: bool, recv: bool, src, dst| {
        Code::Op(Op {
            recv: if recv { smallvec![Q.into()] } else { smallvec![] },
            send: if send { smallvec![Q.into()] } else { smallvec![] },
            reduce: false,
            src,
            dst,
            count: (LEN - OFF).min(SIZE),
            span: SIZE.into(),
        })
    };
    // What a rank keeps for itself is a plain copy, done by the sending lane.
    let body = if sends {
        vec![
            Code::For(
                SELF,
                c(0),
                c(1).min(SLOT + Q * STRIDE),
                vec![op(true, false, place(Buffer::Input, &send_at), None)],
            ),
            Code::For(
                SELF,
                c(1).min(SLOT + Q * STRIDE),
                c(1),
                vec![op(false, false, place(Buffer::Input, &send_at), place(Buffer::Output, &recv_at))],
            ),
        ]
    } else {
        vec![Code::For(
            SELF,
            c(0),
            c(1).min(SLOT + Q * STRIDE),
            vec![op(false, true, None, place(Buffer::Output, &recv_at))],
        )]
    };
    let mut chunks = vec![Code::Let(OFF, L * CHUNK), Code::Let(SIZE, (LEN - OFF).round_up(GRAIN).min(CHUNK))];
    chunks.extend(body);
    let round = SLOT + Q * STRIDE;
    Template::new(&[Code::For(
        Q,
        c(0),
        ROUNDS.into(),
        vec![
            Code::Let(PEER, (if sends { RANK + round } else { RANK + N - round }) % N),
            Code::Let(LEN, (count - PART * PER).max(0).min(PER)),
            Code::For(L, c(0), (LEN + CHUNK - 1) / CHUNK, chunks),
        ],
    )])
}

impl Generator for Direct {
    fn worker(&self, rank: Rank, channel: ChannelId, lane: Lane) -> Option<Worker> {
        let n = self.call.ranks;
        let parts = self.plan.parts.max(1);
        let groups = (self.plan.channels / parts).max(1);
        let group = channel.0 / parts;
        // Which rounds this channel serves: first, distance, how many.
        let (slot, stride, rounds) = match self.call.collective {
            Collective::SendRecv => (1 % n, 1, 1),
            _ => (group, groups, (n + groups - 1 - group.min(n - 1)) / groups),
        };
        if group >= groups || slot >= n {
            return None;
        }
        let peers = |back: bool| {
            (0..rounds).map(move |q| {
                let round = (slot + q * stride) % n;
                Rank(if back { (rank.0 + n - round) % n } else { (rank.0 + round) % n })
            })
        };
        let own = |peer: Rank| peer == rank;
        let conn = |src, dst| Conn::pair(src, dst, channel, 0);
        // A port per round; the round with oneself has a port too, which is never used.
        let (recv, send) = if lane.0 as usize == SEND {
            (vec![], peers(false).map(|p| conn(rank, p)).collect::<Vec<_>>())
        } else if peers(true).all(own) {
            return None;
        } else {
            (peers(true).map(|p| conn(p, rank)).collect(), vec![])
        };
        let signed = |v: u64| i64::try_from(v).unwrap_or(i64::MAX);
        Some(Worker {
            template: lane.index(),
            parameters: vec![
                (RANK, i64::from(rank.0)),
                (N, i64::from(n)),
                (SLOT, i64::from(slot)),
                (STRIDE, i64::from(stride)),
                (ROUNDS, i64::from(rounds)),
                (PART, i64::from(channel.0 % parts)),
                (PER, signed(self.plan.per_channel)),
                (CHUNK, signed(self.plan.chunk)),
                (GRAIN, signed(self.plan.grain)),
            ],
            recv,
            send,
            threads: self.plan.threads / 2,
        })
    }
}

//! CollNet chain all-reduce: a chain inside each host to its head, a reduction in the network
//! between the heads, and back, both at once.
//!
//! Source: NCCL 2.30 `src/device/all_reduce.h`, `src/graph/connect.cc`, restated.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::form::Form;
use super::program::{Buffer, Code, Expr, Op, Ref, Template, Var, c, signed};
use super::tree::along_rings;
use super::{Call, Conn, End, Generator, Order, Worker};
use crate::ids::{ChannelId, Lane, Rank};
use crate::nccl::Plan;

const START: Var = Var(0);
const LEN: Var = Var(1);
const CHUNK: Var = Var(2);
const GRAIN: Var = Var(3);
const LOOPS: Var = Var(4);
const L: Var = Var(5);
const OFF: Var = Var(6);
const SIZE: Var = Var(7);

const UP: u32 = 0;
const DOWN: u32 = 1;

#[derive(Debug)]
struct Chain {
    call: Call,
    plan: Plan,
    /// `[channel][host]`: the ranks of a host, its head first.
    chains: Vec<Vec<Vec<u32>>>,
    /// Host of each rank.
    host: Arc<[u32]>,
}

/// Each chain; a rank sends to its head and away from it.
pub(super) fn form(order: &Order) -> Form {
    let chains = order.collnet.as_ref().map_or(order.rings.len(), Vec::len);
    Form { channels: u32::try_from(chains).unwrap_or(u32::MAX).max(2), chunks: 1, sends: 2, each: 1 }
}

pub(super) fn generate(call: &Call, plan: &Plan, order: &Order) -> (u32, Vec<Template>, Box<dyn Generator>) {
    let host = order.host_of_ranks(call.ranks);
    let chains = order.collnet.clone().unwrap_or_else(|| along_rings(order, &host));
    // Up lanes at the end of the chain and before it, then down lanes alike.
    let templates = [(true, true), (true, false), (false, true), (false, false)];
    let templates = templates.map(|(up, last)| template(up, last)).to_vec();
    (2, templates, Box::new(Chain { call: call.clone(), plan: *plan, chains, host }))
}

fn template(up: bool, last: bool) -> Template {
    let port = |used: bool| -> SmallVec<[Expr; 1]> { if used { smallvec![c(0)] } else { smallvec![] } };
    let at = |buffer| Some(Ref { buffer, offset: START + OFF });
    let op = Op {
        recv: port(!up || !last),
        reduce: up && !last,
        src: if up { at(Buffer::Input) } else { None },
        dst: if up { None } else { at(Buffer::Output) },
        send: port(up || !last),
        count: (LEN - OFF).min(SIZE),
        span: SIZE.into(),
        ..Op::default()
    };
    let size = (LEN - OFF).round_up(GRAIN).min(CHUNK);
    let body = vec![Code::Let(OFF, L * CHUNK), Code::Let(SIZE, size), Code::Op(op)];
    Template::new(&[Code::For(L, c(0), LOOPS.into(), body)])
}

impl Generator for Chain {
    fn worker(&self, rank: Rank, channel: ChannelId, lane: Lane) -> Option<Worker> {
        let chain = &self.chains[channel.index() % self.chains.len()][self.host[rank.index()] as usize];
        let at = chain.iter().position(|&r| r == rank.0)?;
        let up = lane.0 == 0;
        let pair = |a: u32, b: u32| {
            if up { Conn::pair(Rank(b), Rank(a), channel, UP) } else { Conn::pair(Rank(a), Rank(b), channel, DOWN) }
        };
        let heads = End::Group(0);
        // Towards the head, and away from it.
        let near =
            if at > 0 { pair(chain[at - 1], rank.0) } else { Conn { src: heads, dst: heads, channel, stream: UP } };
        let far = chain.get(at + 1).map(|&next| pair(rank.0, next));
        let template = usize::from(!up) * 2 + usize::from(far.is_some());
        let (near, far) = (vec![near], far.into_iter().collect());
        let (recv, send) = if up { (far, near) } else { (near, far) };
        let (from, to) = self.plan.range(channel.0, self.call.count);
        // NCCL halves the block, and gives two warps more to the way up of a large one.
        let half = self.plan.threads / 2;
        let threads_up = if half >= 256 { half + 64 } else { half };
        Some(Worker {
            template,
            parameters: vec![
                (START, signed(from)),
                (LEN, signed(to - from)),
                (CHUNK, signed(self.plan.chunk)),
                (GRAIN, signed(self.plan.grain)),
                (LOOPS, signed((to - from).div_ceil(self.plan.chunk))),
            ],
            recv,
            send,
            tokens: vec![],
            threads: if up { threads_up } else { self.plan.threads - threads_up },
            others: 0,
        })
    }
}

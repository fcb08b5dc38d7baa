//! CollTree: an all-reduce in two levels, both pipelined chunk by chunk.
//!
//! The ranks of a domain (a host, or what one NVLink switch joins) each lead one shard of every
//! chunk. Inside the domain a rank sends the other shards to their leaders, who add all they get
//! in one pass; between domains the leaders of one shard form a tree, over which the sum goes up
//! and the result down, as in [`super::tree`]; a leader hands the result to its domain. Leaders
//! of even and odd shards use complementary trees, so that no domain is a leaf of both. In
//! domains of unequal size there are as many leaders as the smallest has ranks.
//!
//! NCCL has no algorithm of this name: it is a schedule that one can ask about. A block has four
//! lanes: shards to leaders, up, down, results from leaders.

use smallvec::SmallVec;

use super::form::Form;
use super::program::{Buffer, Code, Expr, Op, Ref, Template, Var, c, signed};
use super::tree::double_tree;
use super::{Call, Conn, Generator, Order, Worker};
use crate::ids::{ChannelId, Lane, Rank};
use crate::nccl::Plan;

const SHARD: Var = Var(0);
const PEERS: Var = Var(1);
const START: Var = Var(2);
const LEN: Var = Var(3);
const L: Var = Var(4);
const OFF: Var = Var(5);
const SIZE: Var = Var(6);
const J: Var = Var(7);

/// Streams of the connections between two ranks of a domain: shares to a leader, results from it.
const TO_LEADER: u32 = 0;
const FROM_LEADER: u32 = 1;

/// Most children of a leader in another domain.
const MAX_CHILDREN: usize = 2;

#[derive(Clone, Copy)]
enum Role {
    /// Its shards to their leaders.
    Give,
    /// Adds its shard up and passes it to the parent.
    Up,
    /// The result from the parent to children and domain.
    Down,
    /// Up and down of the leader without a parent.
    Root,
    /// The other shards from their leaders.
    Take,
}

#[derive(Debug)]
struct CollTree {
    call: Call,
    plan: Plan,
    domains: Vec<Vec<u32>>,
    /// Domain and place in it, by rank.
    place_of: Vec<(usize, usize)>,
    shards: usize,
}

/// The parity of a channel tells trees apart; a round has a chunk for each leader.
pub(super) fn form(order: &Order) -> Form {
    let shards = order.hosts.iter().map(Vec::len).min().unwrap_or(1) as u64;
    Form { channels: 2, chunks: shards, sends: 2 * (shards + MAX_CHILDREN as u64), each: 1 }
}

pub(super) fn generate(call: &Call, plan: &Plan, order: &Order) -> (u32, Vec<Template>, Box<dyn Generator>) {
    let mut place_of = vec![(0, 0); call.ranks as usize];
    for (domain, ranks) in order.hosts.iter().enumerate() {
        for (local, &rank) in ranks.iter().enumerate() {
            place_of[rank as usize] = (domain, local);
        }
    }
    let shards = order.hosts.iter().map(Vec::len).min().unwrap_or(1);
    let ports = most_ports(&order.hosts);
    let program = |role, ports| template(role, ports, signed(shards as u64), plan);
    let mut templates = vec![program(Role::Give, 0), program(Role::Take, 0)];
    for role in [Role::Up, Role::Down, Role::Root] {
        templates.extend((0..=ports).map(|n| program(role, n)));
    }
    let domains = order.hosts.clone();
    (4, templates, Box::new(CollTree { call: call.clone(), plan: *plan, domains, place_of, shards }))
}

fn most_ports(domains: &[Vec<u32>]) -> usize {
    domains.iter().map(Vec::len).max().unwrap_or(1) - 1 + MAX_CHILDREN
}

/// `ports`: how many a leader receives from on its way up, and sends to on its way down.
fn template(role: Role, ports: usize, shards: i64, plan: &Plan) -> Template {
    let (chunk, grain) = (signed(plan.chunk), signed(plan.grain));
    let (alone, many): (SmallVec<[Expr; 1]>, SmallVec<[Expr; 1]>) =
        ([c(0)].into_iter().collect(), (0..ports).map(|p| c(signed(p as u64))).collect());
    let own = matches!(role, Role::Up | Role::Down | Role::Root);
    // A rank starts with the shard after its own, so that not all begin with one leader.
    let shard = if own { SHARD.into() } else { (SHARD + J) % shards };
    let at = |buffer| Some(Ref { buffer, offset: START + OFF + shard.clone() * SIZE });
    let mut op = Op { count: (LEN - OFF - shard.clone() * SIZE).max(0).min(SIZE), span: SIZE.into(), ..Op::default() };
    match role {
        Role::Give => (op.src, op.send) = (at(Buffer::Input), [J.into()].into_iter().collect()),
        Role::Take => (op.dst, op.recv) = (at(Buffer::Output), [J.into()].into_iter().collect()),
        Role::Up => (op.src, op.recv, op.send) = (at(Buffer::Input), many, alone),
        Role::Down => (op.dst, op.recv, op.send) = (at(Buffer::Output), alone, many),
        Role::Root => {
            (op.src, op.dst) = (at(Buffer::Input), at(Buffer::Output));
            (op.recv, op.send) = (many.clone(), many);
        }
    }
    op.reduce = op.src.is_some() && !op.recv.is_empty();
    let step = if own { Code::Op(op) } else { Code::For(J, c(0), PEERS.into(), vec![Code::Op(op)]) };
    Template::new(&[Code::For(
        L,
        c(0),
        (LEN + shards * chunk - 1) / (shards * chunk),
        vec![
            Code::Let(OFF, L * (shards * chunk)),
            Code::Let(SIZE, ((LEN - OFF + shards - 1) / shards).round_up(grain).min(chunk)),
            step,
        ],
    )])
}

impl Generator for CollTree {
    fn worker(&self, rank: Rank, channel: ChannelId, lane: Lane) -> Option<Worker> {
        let (domain, local) = self.place_of[rank.index()];
        let members = &self.domains[domain];
        let leads = local < self.shards;
        let conn = |src: u32, dst: u32, stream| Conn::pair(Rank(src), Rank(dst), channel, stream);
        let others = || members.iter().copied().filter(|&r| r != rank.0);
        // The shards that others lead: from the one after its own, or after its place.
        let first = if leads { local + 1 } else { local } % self.shards;
        let leaders = || (0..self.shards - usize::from(leads)).map(|j| members[(first + j) % self.shards]);
        let second = (local + channel.index()) % 2 == 1;
        let count = u32::try_from(self.domains.len()).unwrap_or(u32::MAX);
        let (parent, children) = double_tree(count, u32::try_from(domain).unwrap_or(0), second);
        let children: SmallVec<[u32; 2]> = children.into_iter().flatten().collect();
        let peer = |d: u32| self.domains[d as usize][local];
        let up = || {
            let domain = others().map(|r| conn(r, rank.0, TO_LEADER));
            domain.chain(children.iter().map(|&d| conn(peer(d), rank.0, TO_LEADER))).collect::<Vec<_>>()
        };
        let down = || {
            let domain = others().map(|r| conn(rank.0, r, FROM_LEADER));
            domain.chain(children.iter().map(|&d| conn(rank.0, peer(d), FROM_LEADER))).collect::<Vec<_>>()
        };
        let ports = others().count() + children.len();
        let leader_template = |role: usize| 2 + role * (most_ports(&self.domains) + 1) + ports;
        let (template, recv, send) = match (lane.0, parent) {
            (0, _) if leaders().next().is_some() => {
                (0, vec![], leaders().map(|r| conn(rank.0, r, TO_LEADER)).collect())
            }
            (1, Some(d)) if leads => (leader_template(0), up(), vec![conn(rank.0, peer(d), TO_LEADER)]),
            (1, None) if leads => (leader_template(2), up(), down()),
            (2, Some(d)) if leads => (leader_template(1), vec![conn(peer(d), rank.0, FROM_LEADER)], down()),
            (3, _) if leaders().next().is_some() => {
                (1, leaders().map(|r| conn(r, rank.0, FROM_LEADER)).collect(), vec![])
            }
            _ => return None,
        };
        let (from, to) = self.plan.range(channel.0, self.call.count);
        Some(Worker {
            template,
            parameters: vec![
                (SHARD, signed(if matches!(lane.0, 1 | 2) { local } else { first } as u64)),
                (PEERS, signed(leaders().count() as u64)),
                (START, signed(from)),
                (LEN, signed(to - from)),
            ],
            recv,
            send,
            tokens: vec![],
            // Each lane a quarter; the root's does the work of up and down.
            threads: self.plan.threads / if lane.0 == 1 && parent.is_none() { 2 } else { 4 },
            others: 0,
        })
    }
}

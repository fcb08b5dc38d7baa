//! Direct: every pair talks for itself. Send/receive, gather, scatter and all-to-all, with or
//! without counts.
//!
//! In each round a rank sends to the rank at some distance before it and receives from the one
//! at that distance behind it, in hosts and in places inside a host. Rounds are dealt to groups
//! of [`Plan::channels_per_peer`] channels, which share one message: one by one inside a host, and up to
//! eight of a host's together over several. A block serves up to [`Plan::peers_at_once`] rounds at a
//! time, with a lane each way for every one of them. What is spread over more has one lane each way, which takes a chunk of
//! each in turn. Source: NCCL 2.30 `src/init.cc` (order of rounds), `src/include/channel.h`
//! (`ncclP2pChannelBaseForRound`), `src/enqueue.cc` (point-to-point part), `src/device/sendrecv.h` (warps of each work),
//! restated.

use smallvec::smallvec;

use super::form::Form;
use super::program::{Buffer, Code, Expr, Op, Ref, Table, Template, Var, c, signed};
use super::{Call, Conn, Generator, Order, Worker};
use crate::collective::{Collective, Protocol};
use crate::ids::{ChannelId, Lane, Rank};
use crate::nccl::Plan;
use crate::nccl::plan::{PEER_BATCH, peer_batch};

const RANK: Var = Var(0);
const HOST: Var = Var(1);
const SLOT: Var = Var(2);
const MOST: Var = Var(3);
const ROUNDS: Var = Var(4);
const PART: Var = Var(5);
const LOCAL: Var = Var(6);
const ROUND: Var = Var(7);
const FIRST: Var = Var(8);
const Q: Var = Var(9);
const PEER: Var = Var(10);
const LEN: Var = Var(11);
const L: Var = Var(12);
const TURN: Var = Var(13);
const SIZE: Var = Var(14);
const SELF: Var = Var(15);

const SEND: usize = 0;
const RECV: usize = 1;

#[derive(Debug)]
struct Direct {
    call: Call,
    plan: Plan,
    rounds: Rounds,
    dealt: Dealt,
    /// See [`lanes_each_way`].
    each_way: u32,
}

/// Rounds by the group of channels that serves them.
#[derive(Debug)]
struct Dealt {
    /// All of them, those of the first group first.
    rounds: Vec<u32>,
    /// By group: where its rounds begin; and where the last ends.
    first: Vec<u32>,
}

impl Dealt {
    fn new(rounds: &Rounds, groups: u32) -> Self {
        let all = u32::try_from(rounds.distances.len()).unwrap_or(u32::MAX);
        let mut dealt: Vec<Vec<u32>> = vec![Vec::new(); groups as usize];
        for round in 0..all {
            dealt[(peer_batch(round, rounds.hosts, rounds.locals) % groups) as usize].push(round);
        }
        let first =
            (0..=groups as usize).map(|group| dealt[..group].iter().map(Vec::len).sum::<usize>() as u32).collect();
        Self { rounds: dealt.concat(), first }
    }

    /// The place of a round among those of a group, if the group serves it.
    fn place(&self, group: u32, round: u32) -> Option<u32> {
        let (from, to) = (self.first[group as usize], self.first[group as usize + 1]);
        (from..to).find(|&at| self.rounds[at as usize] == round)
    }
}

/// Groups of channels of a plan.
fn groups(plan: &Plan) -> u32 {
    (plan.channels / plan.channels_per_peer.max(1)).max(1)
}

/// Who talks to whom in which round.
#[derive(Debug)]
struct Rounds {
    hosts: u32,
    locals: u32,
    /// Host and place in it, by rank; and the rank, by host and place.
    place_of: Vec<(u32, u32)>,
    rank_of: Vec<u32>,
    /// Distance in hosts and in places, by round; and the round, by distances.
    distances: Vec<(u32, u32)>,
    round_of: Vec<u32>,
}

/// `0, 1, 3, 6, 10, ...` modulo the next power of two, those below `n`: all of them, once.
fn quadratic(n: u32) -> impl Iterator<Item = u32> {
    let padded = u64::from(n.next_power_of_two());
    (0..padded).map(move |i| u32::try_from((i * (i + 1) / 2) % padded).unwrap_or(n)).filter(move |&d| d < n)
}

impl Rounds {
    /// Hosts of unequal size count as one, as in NCCL.
    fn new(ranks: u32, hosts: &[Vec<u32>]) -> Self {
        let size = hosts.first().map_or(0, Vec::len);
        let equal =
            hosts.iter().all(|h| h.len() == size) && hosts.iter().map(Vec::len).sum::<usize>() == ranks as usize;
        let rank_of: Vec<u32> = if equal { hosts.concat() } else { (0..ranks).collect() };
        let locals = if equal { u32::try_from(size).unwrap_or(ranks) } else { ranks };
        let hosts = ranks / locals.max(1);
        let mut place_of = vec![(0, 0); ranks as usize];
        for (index, &rank) in (0..).zip(&rank_of) {
            place_of[rank as usize] = (index / locals, index % locals);
        }
        let distances: Vec<(u32, u32)> =
            quadratic(hosts).flat_map(|host| quadratic(locals).map(move |local| (host, local))).collect();
        let mut round_of = vec![0; ranks as usize];
        for (round, &(host, local)) in (0..).zip(&distances) {
            round_of[(host * locals + local) as usize] = round;
        }
        Self { hosts, locals, place_of, rank_of, distances, round_of }
    }

    fn peer(&self, rank: Rank, round: u32, back: bool) -> Rank {
        let ((host, local), (hosts, locals)) = (self.place_of[rank.index()], self.distances[round as usize]);
        let step = |at: u32, distance: u32, n: u32| if back { (at + n - distance) % n } else { (at + distance) % n };
        Rank(self.rank_of[(step(host, hosts, self.hosts) * self.locals + step(local, locals, self.locals)) as usize])
    }

    /// The round in which one rank sends to another.
    fn between(&self, from: Rank, to: Rank) -> u32 {
        let (a, b) = (self.place_of[from.index()], self.place_of[to.index()]);
        let host = (b.0 + self.hosts - a.0) % self.hosts;
        let local = (b.1 + self.locals - a.1) % self.locals;
        self.round_of[(host * self.locals + local) as usize]
    }

    /// [`Self::peer`] as an expression.
    fn peer_expr(&self, round: &Expr, back: bool) -> Expr {
        let (hosts, locals) = (i64::from(self.hosts), i64::from(self.locals));
        let table = |values: Table, index: Expr| Expr::Table(values, Box::new(index));
        let host = table(self.distances.iter().map(|d| i64::from(d.0)).collect(), round.clone());
        let local = table(self.distances.iter().map(|d| i64::from(d.1)).collect(), round.clone());
        let step = |at: Var, distance: Expr, n: i64| if back { (at + n - distance) % n } else { (at + distance) % n };
        let index = step(HOST, host, hosts) * locals + step(LOCAL, local, locals);
        table(self.rank_of.iter().map(|&r| i64::from(r)).collect(), index)
    }
}

/// A round has a chunk for each pair that talks, on every channel of its group.
pub(super) fn form(call: &Call, plan: &Plan) -> Form {
    let groups = u64::from(groups(plan));
    let pairs = if call.collective == Collective::AllToAll { u64::from(call.ranks) } else { 1 };
    Form { channels: plan.channels, chunks: 1, sends: pairs.div_ceil(groups), each: 1 }
}

pub(super) fn generate(call: &Call, plan: &Plan, order: &Order) -> (u32, Vec<Template>, Box<dyn Generator>) {
    let rounds = Rounds::new(call.ranks, &order.hosts);
    let dealt = Dealt::new(&rounds, groups(plan));
    let each_way = lanes_each_way(plan, &dealt);
    let templates = [SEND, RECV].map(|lane| template(call, plan, (&rounds, &dealt, each_way), lane));
    (2 * each_way, templates.into(), Box::new(Direct { call: call.clone(), plan: *plan, rounds, dealt, each_way }))
}

/// Lanes of a block in each direction, one for each peer that it serves at a time: as NCCL deals a block's warps to them.
fn lanes_each_way(plan: &Plan, dealt: &Dealt) -> u32 {
    let most = dealt.first.windows(2).map(|ends| ends[1] - ends[0]).max().unwrap_or(1).max(1);
    if plan.peers_at_once > PEER_BATCH { 1 } else { plan.peers_at_once.clamp(1, most) }
}

fn template(call: &Call, plan: &Plan, (rounds, dealt, each_way): (&Rounds, &Dealt, u32), lane: usize) -> Template {
    let n = call.ranks;
    let (per, chunk, grain) = (signed(plan.per_channel), signed(plan.chunk), signed(plan.grain));
    let table = |f: &dyn Fn(Rank, Rank) -> u64| -> Table {
        (0..n).flat_map(|a| (0..n).map(move |b| (a, b))).map(|(a, b)| signed(f(Rank(a), Rank(b)))).collect()
    };
    let sends = lane == SEND;
    // From and to whom: the sender's lane walks to its right, the receiver's to its left.
    let ranks = i64::from(n);
    let pair = if sends { RANK * ranks + PEER } else { PEER * ranks + RANK };
    let (count, send_at, recv_at): (Expr, Expr, Expr) = match (&call.counts, call.collective) {
        (Some(_), _) => (
            Expr::Table(table(&|a, b| call.pair_count(a, b)), Box::new(pair.clone())),
            Expr::Table(table(&|a, b| call.send_offset(a, b)), Box::new(pair.clone())),
            Expr::Table(table(&|a, b| call.recv_offset(a, b)), Box::new(pair)),
        ),
        (None, collective) => {
            let count = signed(call.count);
            let (from, to) = if sends { (RANK, PEER) } else { (PEER, RANK) };
            let (parts_in, parts_out) = match collective {
                Collective::AllToAll => (count, count),
                Collective::Scatter => (count, 0),
                Collective::Gather => (0, count),
                _ => (0, 0),
            };
            (c(count), to * parts_in, from * parts_out)
        }
    };
    let place = |buffer, base: &Expr| Some(Ref { buffer, offset: base.clone() + PART * per + L * chunk });
    let op = |send: bool, recv: bool, src, dst| {
        Code::Op(Op {
            recv: if recv { smallvec![Q.into()] } else { smallvec![] },
            send: if send { smallvec![Q.into()] } else { smallvec![] },
            reduce: false,
            src,
            dst,
            count: (LEN - L * chunk).min(SIZE),
            span: SIZE.into(),
            ..Op::default()
        })
    };
    // What a rank keeps for itself is a plain copy, done by the sending lane; in place it is there.
    let own = if call.in_place {
        vec![]
    } else {
        vec![op(false, false, place(Buffer::Input, &send_at), place(Buffer::Output, &recv_at))]
    };
    let to_others = || c(1).min(ROUND);
    // Whether this peer has a chunk left, where others have more.
    let left = || (LEN - L * chunk).max(0).min(1);
    let body = if sends {
        vec![
            Code::For(SELF, c(0), left() * to_others(), vec![op(true, false, place(Buffer::Input, &send_at), None)]),
            Code::For(SELF, to_others(), left(), own),
        ]
    } else {
        vec![Code::For(SELF, c(0), left(), vec![op(false, true, None, place(Buffer::Output, &recv_at))])]
    };
    // Nothing is received from oneself, nor copied in place.
    let part = (count - PART * per).max(0).min(per);
    let part = if sends && !call.in_place { part } else { part * to_others() };
    let served = Expr::Table(
        dealt.rounds.iter().map(|&round| i64::from(round)).collect(),
        Box::new(SLOT + Q * i64::from(each_way)),
    );
    let batch = i64::from((plan.peers_at_once / each_way).clamp(1, n));
    let size = || (ROUNDS - FIRST * batch).min(batch);
    let mut chunks = vec![
        // Warps that serve peers at once do not wait for each other: every other block begins in the middle.
        Code::Let(Q, FIRST * batch + (TURN + PART % 2 * (size() / 2)) % size()),
        Code::Let(ROUND, served),
        Code::Let(PEER, rounds.peer_expr(&ROUND.into(), !sends)),
        Code::Let(LEN, part),
        Code::Let(SIZE, (LEN - L * chunk).round_up(grain).min(chunk)),
    ];
    chunks.extend(body);
    Template::new(&[Code::For(
        FIRST,
        c(0),
        (ROUNDS + (batch - 1)) / batch,
        vec![Code::For(L, c(0), MOST.into(), vec![Code::For(TURN, c(0), size(), chunks)])],
    )])
}

impl Direct {
    /// Which rounds a channel group serves for a lane: the place of the first among all that are dealt, and how many.
    fn served(&self, rank: Rank, group: u32, sends: bool) -> Option<(u32, u32)> {
        let (n, root) = (self.call.ranks, self.call.root);
        let (first, end) = (self.dealt.first[group as usize], self.dealt.first[group as usize + 1]);
        let only = |round: u32| self.dealt.place(group, round).map(|at| (at, 1));
        match self.call.collective {
            Collective::SendRecv => {
                let (from, to) = if sends { (rank.0, rank.0 + 1) } else { (rank.0 + n - 1, rank.0) };
                only(self.rounds.between(Rank(from % n), Rank(to % n)))
            }
            Collective::Gather if sends => only(self.rounds.between(rank, root)),
            Collective::Gather if rank != root => None,
            Collective::Scatter if sends && rank != root => None,
            Collective::Scatter if !sends => only(self.rounds.between(root, rank)),
            _ => (first < end).then_some((first, end - first)),
        }
    }
}

impl Generator for Direct {
    /// With Simple what a block sends and what it receives share what its multiprocessor copies, each with half of its
    /// threads (NCCL `src/device/sendrecv.h` at commit 0e35f5d: a group of warps for each direction, 320 of
    /// 640 threads; the plan has 512).
    fn team(&self, lane: Lane) -> Lane {
        if self.plan.protocol == Protocol::Simple { Lane(0) } else { Lane(lane.0 / self.each_way * self.each_way) }
    }

    fn worker(&self, rank: Rank, channel: ChannelId, lane: Lane) -> Option<Worker> {
        let (direction, first) = (lane.0 / self.each_way, lane.0 % self.each_way);
        let sends = direction as usize == SEND;
        let parts = self.plan.channels_per_peer.max(1);
        let group = channel.0 / parts;
        if group >= groups(&self.plan) {
            return None;
        }
        let conn = |src, dst| Conn::pair(src, dst, channel, 0);
        let (slot, all) = self.served(rank, group, sends)?;
        let rounds = all.saturating_sub(first).div_ceil(self.each_way);
        if rounds == 0 {
            return None;
        }
        let peer_at = |at: u32| self.rounds.peer(rank, self.dealt.rounds[(slot + at) as usize], !sends);
        let peers: Vec<Rank> = (first..all).step_by(self.each_way as usize).map(peer_at).collect();
        if !sends && peers.iter().all(|&p| p == rank) {
            return None;
        }
        let count = |&peer: &Rank| {
            let (from, to) = if sends { (rank, peer) } else { (peer, rank) };
            if self.call.counts.is_some() { self.call.pair_count(from, to) } else { self.call.count }
        };
        let most =
            peers.iter().map(count).max().unwrap_or(0).min(self.plan.per_channel).div_ceil(self.plan.chunk.max(1));
        // A port per round; the round with oneself has a port too, which is never used.
        let (recv, send): (Vec<Conn>, Vec<Conn>) = if sends {
            (vec![], peers.into_iter().map(|p| conn(rank, p)).collect())
        } else {
            (peers.into_iter().map(|p| conn(p, rank)).collect(), vec![])
        };
        let (host, local) = self.rounds.place_of[rank.index()];
        // Half of the threads send and half receive, those of each direction shared by its peers.
        let half = self.plan.threads / 2;
        // A peer to which nothing goes has no call of its own, and no threads.
        let busy = |lane: &u32| (*lane..all).step_by(self.each_way as usize).any(|at| count(&peer_at(at)) > 0);
        let lanes = 0..all.min(self.each_way);
        let own = half / if self.call.counts.is_some() { lanes.filter(busy).count().max(1) as u32 } else { lanes.end };
        let threads = if self.plan.protocol == Protocol::Simple { self.plan.threads } else { half };
        let others = threads - own;
        Some(Worker {
            template: direction as usize,
            parameters: vec![
                (RANK, i64::from(rank.0)),
                (HOST, i64::from(host)),
                (LOCAL, i64::from(local)),
                (SLOT, i64::from(slot + first)),
                (MOST, signed(most)),
                (ROUNDS, i64::from(rounds)),
                (PART, i64::from(channel.0 % parts)),
            ],
            recv,
            send,
            tokens: vec![],
            threads,
            others,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: NCCL's walk over 16 hosts, by value; and it visits every distance once for any number.
    #[test]
    fn rounds_walk_quadratically() {
        assert_eq!(quadratic(16).collect::<Vec<_>>(), [0, 1, 3, 6, 10, 15, 5, 12, 4, 13, 7, 2, 14, 11, 9, 8]);
        for n in 1..=70 {
            let mut all: Vec<u32> = quadratic(n).collect();
            all.sort_unstable();
            assert_eq!(all, (0..n).collect::<Vec<_>>());
        }
    }

    /// Goal: hosts first, places in them second: the peers of rank 1 of 2 hosts of 4, by value.
    #[test]
    fn rounds_go_host_by_host() {
        let rounds = Rounds::new(8, &[(0..4).collect(), (4..8).collect()]);
        let peers = |back| (0..8).map(|r| rounds.peer(Rank(1), r, back).0).collect::<Vec<_>>();
        assert_eq!(peers(false), [1, 2, 0, 3, 5, 6, 4, 7]);
        assert_eq!(peers(true), [1, 0, 2, 3, 5, 4, 6, 7]);
        assert!((0..8).all(|r| rounds.between(Rank(1), rounds.peer(Rank(1), r, false)) == r));
    }
}

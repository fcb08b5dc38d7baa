//! Heads: some ranks of every host each answer for one slice of the data. NVLS, NVLS tree,
//! CollNet direct: all-reduce, all-gather, reduce-scatter.
//!
//! The ranks of a host hand head h their slice h; the head combines them, joins them with
//! those of the heads h of other hosts, and gives the result back to its host. With NVLS the
//! NVSwitch combines and multicasts, with CollNet direct every pair of ranks talks; between
//! hosts the network combines, or (NVLS tree) the heads form the double binary tree.
//! Source: NCCL 2.30 `src/device/all_reduce.h`, `all_gather.h`, `reduce_scatter.h`,
//! `src/transport/nvls.cc`, restated. What does not fill a loop of an all-reduce is dealt evenly
//! to all heads, as NVLS does. One difference: where NCCL's network gathers or scatters for all
//! hosts at once, here is one multicast or one reduction for each host.

use smallvec::{SmallVec, smallvec};

use super::form::Form;
use super::program::{Buffer, Code, Expr, Op, Ref, Table, Template, Var, c, signed};
use super::tree::double_tree;
use super::{Call, Conn, End, Generator, Head, Order, Worker};
use crate::collective::{Algorithm, Collective};
use crate::ids::{ChannelId, Lane, Rank};
use crate::nccl::plan::{MAX_NVLS_HEADS, Plan};

const START: Var = Var(0);
const LEN: Var = Var(1);
const CHUNK: Var = Var(2);
const GRAIN: Var = Var(3);
const LOOPS: Var = Var(4);
const COUNT: Var = Var(5);
const HEAD: Var = Var(6);
const HEADS: Var = Var(7);
const HOST: Var = Var(8);
const HOSTS: Var = Var(9);
const L: Var = Var(10);
const OFF: Var = Var(11);
const SIZE: Var = Var(12);
const J: Var = Var(13);

const UP: u32 = 0;
const DOWN: u32 = 1;
const NET: u32 = 2;

/// Templates: what goes to a head, what comes from one, what starts or ends at a head; then
/// those of heads by role and number of local ports.
const SCATTER: usize = 0;
const GATHER: usize = 1;
const ALONE: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Across {
    /// One host.
    Nothing,
    /// The network combines and multicasts.
    Network,
    /// Heads of all hosts form trees.
    Tree,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// From below to below.
    Root,
    /// From below to other hosts.
    Up,
    /// From other hosts to below.
    Down,
}

#[derive(Debug)]
struct Heads {
    call: Call,
    plan: Plan,
    /// Ranks of each host, its heads first.
    hosts: Vec<Vec<u32>>,
    /// Host of each rank and its place there.
    places: Vec<(usize, usize)>,
    /// Heads of each host: the first in its list.
    heads: usize,
    /// The switch of a host combines and multicasts.
    switch: bool,
    across: Across,
    /// Most ports below a head.
    most: usize,
}

/// The parity of a channel tells trees apart. A round has a chunk for each head, or one for each host.
pub(super) fn form(call: &Call, plan: &Plan, order: &Order) -> Form {
    let heads = count(plan.algorithm, order) as u64;
    let hosts = order.hosts.len() as u64;
    match call.collective {
        Collective::AllReduce => Form { channels: 2, chunks: heads, sends: heads + 3, each: 1 },
        _ => Form { channels: 2, chunks: 1, sends: (heads + 1) * hosts, each: 1 },
    }
}

/// Heads of each host.
fn count(algorithm: Algorithm, order: &Order) -> usize {
    let fewest = match order.heads(algorithm) {
        Some(heads) => heads.iter().map(Vec::len).min(),
        None => order.hosts.iter().map(Vec::len).min(),
    };
    fewest.unwrap_or(1).min(MAX_NVLS_HEADS)
}

/// The ranks of each host, its heads first.
fn heads_first(algorithm: Algorithm, order: &Order) -> Vec<Vec<u32>> {
    let Some(heads) = order.heads(algorithm) else { return order.hosts.clone() };
    let of_host = |(heads, ranks): (&Vec<Head>, &Vec<u32>)| {
        let heads: Vec<u32> = heads.iter().map(|head| head.rank).collect();
        let others = ranks.iter().filter(|rank| !heads.contains(rank));
        heads.iter().chain(others).copied().collect()
    };
    heads.iter().zip(&order.hosts).map(of_host).collect()
}

pub(super) fn generate(call: &Call, plan: &Plan, order: &Order) -> (u32, Vec<Template>, Box<dyn Generator>) {
    let hosts = heads_first(plan.algorithm, order);
    let mut places = vec![(0, 0); call.ranks as usize];
    for (host, ranks) in hosts.iter().enumerate() {
        for (place, &rank) in ranks.iter().enumerate() {
            places[rank as usize] = (host, place);
        }
    }
    let heads = count(plan.algorithm, order);
    let largest = hosts.iter().map(Vec::len).max().unwrap_or(1);
    let switch = plan.algorithm != Algorithm::CollnetDirect;
    let across = match plan.algorithm {
        Algorithm::NvlsTree => Across::Tree,
        _ if hosts.len() == 1 => Across::Nothing,
        _ => Across::Network,
    };
    let most = if switch { 3 } else { largest - 1 };
    let pattern = Heads { call: call.clone(), plan: *plan, hosts, places, heads, switch, across, most };
    let lanes = 2 * u32::try_from(heads).unwrap_or(u32::MAX) + 2;
    (lanes, pattern.templates(), Box::new(pattern))
}

fn ports(count: usize) -> SmallVec<[Expr; 1]> {
    (0..count).map(|p| c(i64::try_from(p).unwrap_or(0))).collect()
}

fn op(recv: SmallVec<[Expr; 1]>, src: Option<Expr>, dst: Option<Expr>, send: SmallVec<[Expr; 1]>, count: Expr) -> Code {
    Code::Op(Op {
        reduce: recv.len() + usize::from(src.is_some()) > 1,
        recv,
        src: src.map(|offset| Ref { buffer: Buffer::Input, offset }),
        dst: dst.map(|offset| Ref { buffer: Buffer::Output, offset }),
        send,
        count,
        span: SIZE.into(),
        ..Op::default()
    })
}

impl Heads {
    fn templates(&self) -> Vec<Template> {
        let reduced = self.call.collective == Collective::AllReduce;
        let roles = [Role::Root, Role::Up, Role::Down];
        let by_role = roles.into_iter().flat_map(|role| (0..=self.most).map(move |below| (role, below)));
        if reduced {
            let slice = || Some(START + OFF + HEAD * SIZE);
            let own = || if self.switch { None } else { slice() };
            let part = |recv, src, dst, send| {
                let count = (LEN - OFF - HEAD * SIZE).max(0).min(SIZE);
                let size = ((LEN - OFF + HEADS - 1) / HEADS).round_up(GRAIN).min(CHUNK);
                chunks(L * HEADS * CHUNK, size, op(recv, src, dst, send, count))
            };
            let fixed =
                [part(ports(0), slice(), None, ports(1)), part(ports(1), None, slice(), ports(0)), Template::new(&[])];
            let heads = by_role.map(|(role, below)| match role {
                Role::Root => part(ports(below), None, None, ports(below)),
                Role::Up => part(ports(below), own(), None, ports(1)),
                Role::Down => part(ports(1), None, own(), ports(below)),
            });
            return fixed.into_iter().chain(heads).collect();
        }
        // The part of head `HEAD` of the host that is J after this one.
        let table: Table = self.hosts.iter().flat_map(|h| h.iter().take(self.heads).map(|&r| i64::from(r))).collect();
        let owner = || Expr::Table(table.clone(), Box::new((HOST + J) % HOSTS * HEADS + HEAD));
        let part = || Some(owner() * COUNT + START + OFF);
        let own = || if self.switch { None } else { part() };
        let here = || Some(START + OFF);
        let port = || -> SmallVec<[Expr; 1]> { smallvec![J.into()] };
        let code = |code: Code| chunks(L * CHUNK, (LEN - OFF).round_up(GRAIN).min(CHUNK), code);
        let once = |recv, src, dst, send| code(op(recv, src, dst, send, (LEN - OFF).min(SIZE)));
        let every = |recv, src, dst, send| {
            code(Code::For(J, c(0), HOSTS.into(), vec![op(recv, src, dst, send, (LEN - OFF).min(SIZE))]))
        };
        let gathers = self.call.collective == Collective::AllGather;
        let fixed = [
            every(ports(0), part(), None, ports(1)),
            every(ports(1), None, part(), ports(0)),
            if gathers { once(ports(0), here(), None, ports(1)) } else { once(ports(1), None, here(), ports(0)) },
        ];
        let heads = by_role.map(|(role, below)| match role {
            Role::Root => Template::new(&[]),
            Role::Up => every(ports(below), own(), None, port()),
            Role::Down => every(port(), None, own(), ports(below)),
        });
        fixed.into_iter().chain(heads).collect()
    }

    fn role(&self, role: Role, below: usize) -> usize {
        ALONE + 1 + role as usize * (self.most + 1) + below
    }

    fn head(&self, host: usize, head: usize) -> Rank {
        Rank(self.hosts[host][head])
    }

    /// What one rank hands to a head of its host, and gets from it.
    fn local(&self, rank: Rank, head: usize, channel: ChannelId) -> (Conn, Conn) {
        let host = self.places[rank.index()].0;
        let to = self.head(host, head);
        if self.switch {
            let all = End::Group(u32::try_from(host).unwrap_or(u32::MAX));
            let up = Conn { src: all, dst: End::One(to), channel, stream: UP };
            return (up, Conn { src: End::One(to), dst: all, channel, stream: DOWN });
        }
        (Conn::pair(rank, to, channel, UP), Conn::pair(to, rank, channel, DOWN))
    }

    /// What a head gets from its host, and gives to it.
    fn below(&self, rank: Rank, channel: ChannelId) -> (Vec<Conn>, Vec<Conn>) {
        let (host, head) = self.places[rank.index()];
        if self.switch {
            let (up, down) = self.local(rank, head, channel);
            return (vec![up], vec![down]);
        }
        // From the next one on, so that equal ports join equal distances.
        let ranks = &self.hosts[host];
        (1..ranks.len()).map(|d| self.local(Rank(ranks[(head + d) % ranks.len()]), head, channel)).unzip()
    }

    /// All-gather: from a host to all. Reduce-scatter: from all to a host.
    fn network(&self, host: usize, head: usize, channel: ChannelId) -> Conn {
        let all = End::Group(u32::try_from(head).unwrap_or(u32::MAX));
        let one = End::One(self.head(host, head));
        match self.call.collective {
            Collective::AllGather => Conn { src: one, dst: all, channel, stream: NET },
            Collective::ReduceScatter => Conn { src: all, dst: one, channel, stream: NET },
            _ => Conn { src: all, dst: all, channel, stream: NET },
        }
    }

    /// Those of all hosts, from one's own on.
    fn networks(&self, host: usize, head: usize, channel: ChannelId) -> Vec<Conn> {
        let n = self.hosts.len();
        (0..n).map(|j| self.network((host + j) % n, head, channel)).collect()
    }

    /// Parent and children of a host on a channel; the parity of the channel picks the tree.
    fn tree(&self, host: usize, channel: ChannelId) -> (Option<usize>, Vec<usize>) {
        if self.across != Across::Tree {
            return (None, Vec::new());
        }
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let (up, down) = double_tree(number(self.hosts.len()), number(host), channel.0 % 2 == 1);
        (up.map(|h| h as usize), down.into_iter().flatten().map(|h| h as usize).collect())
    }

    /// Template, receive and send ports of the lane that takes from below (`up`) or gives to it.
    fn at_head(&self, rank: Rank, channel: ChannelId, up: bool) -> Option<(usize, Vec<Conn>, Vec<Conn>)> {
        let (host, head) = self.places[rank.index()];
        let (mut recv, mut send) = self.below(rank, channel);
        let (parent, children) = self.tree(host, channel);
        recv.extend(children.iter().map(|&h| Conn::pair(self.head(h, head), rank, channel, UP)));
        send.extend(children.iter().map(|&h| Conn::pair(rank, self.head(h, head), channel, DOWN)));
        let below = recv.len();
        let network = || self.network(host, head, channel);
        let joined = self.across == Across::Network;
        Some(match (self.call.collective, up) {
            (Collective::AllGather, true) => (ALONE, vec![], if joined { vec![network()] } else { send }),
            (Collective::AllGather, false) if joined => {
                (self.role(Role::Down, below), self.networks(host, head, channel), send)
            }
            (Collective::ReduceScatter, false) => (ALONE, if joined { vec![network()] } else { recv }, vec![]),
            (Collective::ReduceScatter, true) if joined => {
                (self.role(Role::Up, below), recv, self.networks(host, head, channel))
            }
            (Collective::AllGather, false) | (Collective::ReduceScatter, true) => return None,
            (_, true) if joined => (self.role(Role::Up, below), recv, vec![network()]),
            (_, false) if joined => (self.role(Role::Down, below), vec![network()], send),
            (_, true) => match parent {
                Some(h) => {
                    let up = Conn::pair(rank, self.head(h, head), channel, UP);
                    (self.role(Role::Up, below), recv, vec![up])
                }
                None => (self.role(Role::Root, below), recv, send),
            },
            (_, false) => {
                let down = Conn::pair(self.head(parent?, head), rank, channel, DOWN);
                (self.role(Role::Down, below), vec![down], send)
            }
        })
    }

    /// Threads of a lane's warps: NCCL's split of 20 warps, in proportion. All lanes that
    /// scatter are one group of warps, as are those that gather. (All-gather and reduce-scatter
    /// of CollNet direct are taken to be split as its all-reduce.)
    fn threads(&self, rank: Rank, channel: ChannelId, kind: Kind) -> u32 {
        let (host, place) = self.places[rank.index()];
        let many = self.call.ranks > 6;
        let [scatter, gather, up, down] = match (self.switch, self.call.collective, self.across) {
            // In sixths of a warp: 96 copying threads of 640 are 18.
            (false, ..) if self.hosts[host].len() == 1 => [0, 0, 72, 36],
            (false, ..) if place >= self.heads => [54, 36, 0, 0],
            (false, ..) => [18, 18, 54, 18],
            (true, Collective::AllGather, Across::Nothing) => [0, 48, 72, 0],
            (true, Collective::AllGather, _) => [0, 48, 36, 36],
            (true, Collective::ReduceScatter, Across::Nothing) => [48, 0, 0, 72],
            (true, Collective::ReduceScatter, _) => [48, 0, 36, 36],
            (true, _, Across::Network) => [48, 42, 18, 12],
            (true, _, Across::Tree) if self.tree(host, channel).0.is_some() => [36, 30, 30, 24],
            (true, ..) => {
                if many {
                    [48, 42, 30, 0]
                } else {
                    [42, 36, 42, 0]
                }
            }
        };
        let sixths = match kind {
            Kind::Scatter => scatter,
            Kind::Gather => gather,
            Kind::Up => up,
            Kind::Down => down,
        };
        (self.plan.threads * sixths / 120).max(1)
    }

    /// What a lane does, and for which head.
    fn kind(&self, lane: Lane) -> (Kind, usize) {
        match lane.index() {
            l if l < self.heads => (Kind::Scatter, l),
            l if l < 2 * self.heads => (Kind::Gather, l - self.heads),
            l if l == 2 * self.heads => (Kind::Up, 0),
            _ => (Kind::Down, 0),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Scatter,
    Gather,
    Up,
    Down,
}

/// Loops over a channel's range.
fn chunks(offset: Expr, size: Expr, code: Code) -> Template {
    Template::new(&[Code::For(L, c(0), LOOPS.into(), vec![Code::Let(OFF, offset), Code::Let(SIZE, size), code])])
}

impl Generator for Heads {
    fn worker(&self, rank: Rank, channel: ChannelId, lane: Lane) -> Option<Worker> {
        let (host, place) = self.places[rank.index()];
        let (kind, head) = self.kind(lane);
        let (template, recv, send) = match kind {
            // Between pairs, nobody hands anything to himself.
            Kind::Scatter | Kind::Gather if !self.switch && head == place => return None,
            Kind::Scatter if self.call.collective == Collective::AllGather => return None,
            Kind::Gather if self.call.collective == Collective::ReduceScatter => return None,
            Kind::Scatter => (SCATTER, vec![], vec![self.local(rank, head, channel).0]),
            Kind::Gather => (GATHER, vec![self.local(rank, head, channel).1], vec![]),
            _ if place >= self.heads => return None,
            _ => self.at_head(rank, channel, kind == Kind::Up)?,
        };
        let (from, to) = self.plan.range(channel.0, self.call.count);
        let per_loop = match self.call.collective {
            Collective::AllReduce => self.plan.chunk * self.heads as u64,
            _ => self.plan.chunk,
        };
        let own = matches!(kind, Kind::Up | Kind::Down);
        Some(Worker {
            template,
            parameters: vec![
                (START, signed(from)),
                (LEN, signed(to - from)),
                (CHUNK, signed(self.plan.chunk)),
                (GRAIN, signed(self.plan.grain)),
                (LOOPS, signed((to - from).div_ceil(per_loop))),
                (COUNT, signed(self.call.count)),
                (HEAD, signed(if own { place } else { head } as u64)),
                (HEADS, signed(self.heads as u64)),
                (HOST, signed(host as u64)),
                (HOSTS, signed(self.hosts.len() as u64)),
            ],
            recv,
            send,
            tokens: vec![],
            threads: self.threads(rank, channel, kind),
            others: 0,
        })
    }

    fn team(&self, lane: Lane) -> Lane {
        let heads = u32::try_from(self.heads).unwrap_or(u32::MAX);
        match self.kind(lane).0 {
            Kind::Scatter => Lane(0),
            Kind::Gather => Lane(heads),
            _ => lane,
        }
    }
}

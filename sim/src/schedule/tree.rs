//! Double binary tree all-reduce: reduce up and broadcast down, both at once or in turn.
//!
//! Hosts form two complementary binary trees (an inner host of one is a leaf of the other). The
//! channels of NCCL's search use the first, the communicator's copies of them the second, further
//! copies the first again, whatever a call uses. (Copies beyond those that CollNet adds run
//! otherwise, which is left out.) Inside a host the ranks form a chain whose head holds the
//! edge to the parent host; at which place child hosts attach is a matter of NCCL's pattern.
//! Source: NCCL 2.30 `src/graph/trees.cc`, `src/graph/connect.cc`, `src/device/all_reduce.h`, restated; in turn: its
//! 2.8, where a block of LL or Simple broadcasts what it has wholly reduced before.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::form::Form;
use super::program::{Buffer, Code, Expr, Op, Ref, Template, Var, c, signed};
use super::{Call, Chains, Conn, Generator, Order, Rail, Worker};
use crate::collective::Protocol;
use crate::ids::{ChannelId, Lane, Rank};
use crate::nccl::Plan;

const START: Var = Var(2);
const LEN: Var = Var(3);
const CHUNK: Var = Var(4);
const GRAIN: Var = Var(5);
const LOOPS: Var = Var(6);
const L: Var = Var(9);
const OFF: Var = Var(10);
const SIZE: Var = Var(11);

/// Most children of a rank: two hosts below, one rank down the chain.
const MAX_CHILDREN: usize = 3;
const UP: u32 = 0;
const DOWN: u32 = 1;

#[derive(Debug)]
struct Tree {
    call: Call,
    plan: Plan,
    chains: Chains,
    /// Host of each rank.
    host: Arc<[u32]>,
}

/// Both trees with each chain; a rank sends up and to its children.
pub(super) fn form(order: &Order) -> Form {
    let (of_a_tree, chains) =
        order.chains.as_ref().map_or((order.rings.len(), order.rings.len()), |c| (c.of_a_tree, c.ranks.len()));
    let (both, chains) = (2 * of_a_tree.max(1), chains.max(1));
    let channels = if both.is_multiple_of(chains) { both } else { both * chains };
    Form { channels: u32::try_from(channels).unwrap_or(u32::MAX), chunks: 1, sends: 2, each: 1 }
}

pub(super) fn generate(call: &Call, plan: &Plan, order: &Order) -> (u32, Vec<Template>, Box<dyn Generator>) {
    let host = order.host_of_ranks(call.ranks);
    let chains = chains(order, &host);
    // By role, then by number of children.
    let mut templates = Vec::new();
    for role in [Role::Root, Role::Up, Role::Down, Role::RootInTurn, Role::InTurn] {
        for children in 0..=MAX_CHILDREN {
            templates.push(template(role, children, call.in_place));
        }
    }
    (2, templates, Box::new(Tree { call: call.clone(), plan: *plan, chains, host }))
}

/// `[channel][host]`: chains in the order of the rings.
pub(super) fn along_rings(order: &Order, host: &[u32]) -> Vec<Vec<Vec<u32>>> {
    let split = |ring: &Arc<[u32]>| {
        let mut chains = vec![Vec::new(); order.hosts.len()];
        for &rank in ring.iter() {
            chains[host[rank as usize] as usize].push(rank);
        }
        chains
    };
    order.rings.iter().map(split).collect()
}

/// Those of the machine; without any, chains in the order of the rings.
fn chains(order: &Order, host: &[u32]) -> Chains {
    order.chains.clone().unwrap_or_else(|| Chains {
        ranks: along_rings(order, host),
        of_a_tree: order.rings.len(),
        children: [0, 0],
        rails: order.rails.clone(),
    })
}

impl Chains {
    /// Whether a channel uses the second tree.
    fn is_second(&self, channel: ChannelId) -> bool {
        channel.index() / self.of_a_tree.max(1) % 2 == 1
    }
}

/// NICs by channel.
pub(super) fn rails(order: &Order) -> Vec<Arc<[Rail]>> {
    order.chains.as_ref().map_or(&order.rails, |chains| &chains.rails).clone()
}

/// What a lane does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Reduces and broadcasts each chunk in one.
    Root,
    Up,
    Down,
    /// Reduces all chunks, then sends them down.
    RootInTurn,
    /// Sends all chunks up, then takes them down.
    InTurn,
}

impl Role {
    fn template(self, children: usize) -> usize {
        self as usize * (MAX_CHILDREN + 1) + children
    }
}

fn template(role: Role, children: usize, in_place: bool) -> Template {
    let ports = |n: usize| -> SmallVec<[Expr; 1]> { (0..n).map(|p| c(i64::try_from(p).unwrap_or(0))).collect() };
    let ports_after = |n: usize| -> SmallVec<[Expr; 1]> { ports(n + 1).into_iter().skip(1).collect() };
    let at = |buffer| Some(Ref { buffer, offset: START + OFF });
    let op = |recv: SmallVec<[Expr; 1]>, send, src: Option<Buffer>, dst: Option<Buffer>| Op {
        reduce: src == Some(Buffer::Input) && !recv.is_empty(),
        recv,
        send,
        src: src.and_then(at),
        dst: dst.and_then(at),
        count: (LEN - OFF).min(SIZE),
        span: SIZE.into(),
        ..Op::default()
    };
    let (input, output) = (Some(Buffer::Input), Some(Buffer::Output));
    let ops = match role {
        // A rank alone copies.
        Role::Root | Role::RootInTurn if children == 0 && in_place => vec![],
        Role::RootInTurn if children > 0 => {
            vec![op(ports(children), smallvec![], input, output), op(smallvec![], ports(children), output, None)]
        }
        Role::Root | Role::RootInTurn => vec![op(ports(children), ports(children), input, output)],
        Role::Up => vec![op(ports(children), smallvec![c(0)], input, None)],
        Role::Down => vec![op(smallvec![c(0)], ports(children), None, output)],
        // The parent is the last to receive from and the first to send to.
        Role::InTurn => vec![
            op(ports(children), smallvec![c(0)], input, None),
            op(smallvec![c(i64::try_from(children).unwrap_or(0))], ports_after(children), None, output),
        ],
    };
    let chunks = |op| {
        let size = Code::Let(SIZE, (LEN - OFF).round_up(GRAIN).min(CHUNK));
        Code::For(L, c(0), LOOPS.into(), vec![Code::Let(OFF, L * CHUNK), size, Code::Op(op)])
    };
    Template::new(&ops.into_iter().map(chunks).collect::<Vec<_>>())
}

/// How a block's threads are split: of line-flagged protocols 7 of 10 warps, rounded down, and the rest (NCCL 2.30
/// `src/device/all_reduce.h`); a lane that is alone gets all. With Simple each half of the warps moves as much as all
/// while the other half waits (one channel of tree/Simple, 64 KiB to 1 MiB on 4 H200: 25 GB/s a hop), so that lanes
/// share.
fn lane_threads(protocol: Protocol, threads: u32, role: Role) -> u32 {
    let up = (threads / 32 * 7 / 10).max(1) * 32;
    match (role, protocol) {
        (Role::Up, Protocol::Ll | Protocol::Ll128) => up,
        (Role::Down, Protocol::Ll | Protocol::Ll128) => threads.saturating_sub(up).max(32),
        _ => threads,
    }
}

/// Parent and the two children of a host: the first child has a lower number than its parent, the
/// second a higher one.
pub(super) type Edges = (Option<u32>, [Option<u32>; 2]);

/// The first tree over `hosts` of them.
fn binary_tree(hosts: u32, host: u32) -> Edges {
    if host == 0 {
        return (None, [None, (hosts > 1).then(|| 1 << (31 - (hosts - 1).leading_zeros()))]);
    }
    let bit = host & host.wrapping_neg();
    let up = (host ^ bit) | (bit << 1);
    let parent = if up >= hosts { host ^ bit } else { up };
    let mut step = bit / 2;
    let first = (step > 0).then(|| host - step);
    while step > 0 && host + step >= hosts {
        step /= 2;
    }
    (Some(parent), [first, (step > 0).then(|| host + step)])
}

/// Tree 0 or 1.
pub(super) fn double_tree(hosts: u32, host: u32, second: bool) -> Edges {
    if !second {
        return binary_tree(hosts, host);
    }
    let map = |x: u32| {
        if hosts.is_multiple_of(2) { hosts - 1 - x } else { (x + 1) % hosts }
    };
    let back = if hosts.is_multiple_of(2) { hosts - 1 - host } else { (host + hosts - 1) % hosts };
    let (parent, children) = binary_tree(hosts, back);
    (parent.map(map), children.map(|c| c.map(map)))
}

impl Tree {
    /// Parent and children of a rank on a channel.
    fn neighbours(&self, rank: Rank, channel: ChannelId) -> (Option<Rank>, SmallVec<[Rank; MAX_CHILDREN]>) {
        let second = self.chains.is_second(channel);
        let chains = &self.chains.ranks[channel.index() % self.chains.ranks.len()];
        let host = self.host[rank.index()];
        let chain = &chains[host as usize];
        let at = chain.iter().position(|&r| r == rank.0).unwrap_or(0);
        // A host may have fewer ranks than the pattern uses.
        let holder = |chain: &[u32], child: usize| self.chains.children[child].min(chain.len() - 1);
        let hosts = u32::try_from(chains.len()).unwrap_or(u32::MAX);
        let (up, down) = double_tree(hosts, host, second);
        let parent = match up {
            _ if at > 0 => Some(chain[at - 1]),
            Some(up) => {
                let child = usize::from(double_tree(hosts, up, second).1[1] == Some(host));
                let theirs = &chains[up as usize];
                Some(theirs[holder(theirs, child)])
            }
            None => None,
        };
        let below = down.iter().enumerate().filter(|&(child, _)| holder(chain, child) == at);
        let hosts_below = below.filter_map(|(_, h)| h.map(|h| chains[h as usize][0]));
        let children = hosts_below.chain(chain.get(at + 1).copied()).map(Rank).collect();
        (parent.map(Rank), children)
    }
}

impl Generator for Tree {
    fn team(&self, lane: Lane) -> Lane {
        if self.plan.protocol == Protocol::Simple { Lane(0) } else { lane }
    }

    fn worker(&self, rank: Rank, channel: ChannelId, lane: Lane) -> Option<Worker> {
        let (parent, children) = self.neighbours(rank, channel);
        let conn = |src, dst, stream| Conn::pair(src, dst, channel, stream);
        let from_children = || children.iter().map(|&r| conn(r, rank, UP)).collect::<Vec<_>>();
        let to_children = || children.iter().map(|&r| conn(rank, r, DOWN)).collect::<Vec<_>>();
        let in_turn = self.plan.old.in_turn;
        let (role, recv, send) = match (parent, lane.0) {
            (None, 0) => (if in_turn { Role::RootInTurn } else { Role::Root }, from_children(), to_children()),
            (Some(parent), 0) if in_turn => {
                let (mut recv, mut send) = (from_children(), vec![conn(rank, parent, UP)]);
                recv.push(conn(parent, rank, DOWN));
                send.extend(to_children());
                (Role::InTurn, recv, send)
            }
            (Some(_), _) if in_turn => return None,
            (Some(parent), 0) => (Role::Up, from_children(), vec![conn(rank, parent, UP)]),
            (Some(parent), _) => (Role::Down, vec![conn(parent, rank, DOWN)], to_children()),
            (None, _) => return None,
        };
        let (from, to) = self.plan.range(channel.0, self.call.count);
        Some(Worker {
            template: role.template(children.len()),
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
            threads: lane_threads(self.plan.protocol, self.plan.threads, role),
            others: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::{Algorithm, Collective, DataType};
    use crate::nccl::Limits;
    use crate::schedule::{End, Schedule};
    use crate::units::Bytes;

    /// Goal: the channels of the search are of the first tree, their copies of the second, copies of both of the first
    /// again: parents and NICs by channel on four hosts of a rank, two channels searched, worked by hand.
    #[test]
    fn copies_of_channels_are_of_the_second_tree() {
        let hosts: Vec<Vec<u32>> = (0..4).map(|rank| vec![rank]).collect();
        let rail = |nic| (0..4).map(|first| Rail { first, enter: nic, leave: nic }).collect();
        let rails = vec![rail(0), rail(1)];
        let chains = Chains { ranks: vec![hosts.clone()], of_a_tree: 2, children: [0, 0], rails };
        let order = Order { chains: Some(chains), ..Order::of_rings(vec![(0..4).collect()], hosts) };
        let call = Call::of_size(Collective::AllReduce, 4, Bytes(1 << 20), DataType::Float32);
        let limits = Limits { channels: 6, exact_channels: true, hosts: 4, ..Limits::default() };
        let schedule =
            Schedule::new(call.clone(), Plan::new(&call, Algorithm::Tree, Protocol::Simple, &limits), &order).unwrap();
        let parent = |channel| {
            let End::One(up) = schedule.worker(Rank(1), channel, Lane(0)).unwrap().send[0].dst else {
                panic!("a tree sends to one rank")
            };
            (up.0, schedule.nics((Rank(1), up), channel).unwrap())
        };
        let parents: Vec<_> = (0..6).map(|channel| parent(ChannelId(channel))).collect();
        let (even, odd) = ((0, 0), (1, 1));
        assert_eq!(parents, [(2, even), (2, odd), (3, even), (3, odd), (2, even), (2, odd)]);
    }

    /// Goal: the tree over 8 hosts that NCCL builds, by value.
    #[test]
    fn eight_hosts_form_the_known_tree() {
        let children = |host, second| double_tree(8, host, second).1.into_iter().flatten().collect::<Vec<_>>();
        assert_eq!(children(0, false), [4]);
        assert_eq!(children(4, false), [2, 6]);
        assert_eq!(children(2, false), [1, 3]);
        assert_eq!(children(6, false), [5, 7]);
        assert_eq!(children(7, true), [3]);
        assert_eq!(children(3, true), [5, 1]);
    }

    /// Goal: before NCCL 2.10 a rank with a parent and two children has sent all its chunks up before it takes the
    /// first one down, by value; its parent is the last that it receives from and the first that it sends to.
    #[test]
    fn halves_of_a_tree_follow_each_other() {
        let start = [(START, 0), (LEN, 40), (CHUNK, 16), (GRAIN, 4), (LOOPS, 3)];
        let steps = template(Role::InTurn, 2, false).steps(&start, 99);
        let ways: Vec<_> = steps.iter().map(|s| (s.recv.to_vec(), s.send.to_vec(), s.reduce, s.count)).collect();
        let up = |count| (vec![0, 1], vec![0], true, count);
        let down = |count| (vec![2], vec![1, 2], false, count);
        assert_eq!(ways, [up(16), up(16), up(8), down(16), down(16), down(8)]);
    }

    /// Goal: both trees are trees (one root, parents and children agree), and for an even
    /// number of hosts an inner host of one is a leaf of the other.
    #[test]
    fn both_trees_are_trees_and_complementary() {
        for hosts in 1..=70 {
            for second in [false, true] {
                let mut roots = 0;
                for host in 0..hosts {
                    let (parent, children) = double_tree(hosts, host, second);
                    match parent {
                        None => roots += 1,
                        Some(p) => assert!(double_tree(hosts, p, second).1.contains(&Some(host)), "{hosts} {host}"),
                    }
                    for child in children.into_iter().flatten() {
                        assert_eq!(double_tree(hosts, child, second).0, Some(host), "{hosts} {host}");
                    }
                }
                assert_eq!(roots, 1);
            }
            for host in 0..hosts {
                let inner = |second| usize::from(double_tree(hosts, host, second).1 != [None, None]);
                assert!(hosts < 3 || inner(false) + inner(true) <= 1 || hosts % 2 == 1, "{hosts} {host}");
            }
        }
    }
}

//! Which hosts of a call are alike, so that one of each kind stands for all and the others are never laid.
//!
//! Hosts, and the links between switches, are told apart by what they are, by what runs there and by whom that talks to,
//! until it tells nothing new: the colours of [`crate::engine::fold`], on a graph with a vertex a host in place of one a
//! lane. What its workers do among themselves is looked at once, in order; what goes from host to host is an edge, with
//! the links of its way. An edge has the same colour as another if the same happens on both, between hosts and over links
//! of the same colours. So the instance with one host of each colour runs as the whole one does, bit for bit, where
//! each resource carries what all edges of a colour take of it together.

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::hosts::Hosts;
use super::incast::Incast;
use super::route::{Hop, Leg, Router};
use crate::collective::Protocol;
use crate::engine::mix;
use crate::ids::{ChannelId, Lane, LinkId, Rank, VertexId};
use crate::nccl::Transport;
use crate::schedule::program::Ports;
use crate::schedule::wiring::UNUSED;
use crate::schedule::{Conn, End, Schedule, Worker};
use crate::topology::Topology;

/// Rounds after which hosts are taken to be all different: news travels a host in each.
const MAX_ROUNDS: usize = 200;
/// Rounds between two looks at whether anything is still being told apart.
const STRIDE: usize = 4;
/// Hosts from which it is worth while to look.
const LEAST_HOSTS: usize = 3;
/// Connections between hosts that are told apart, at 0.1 KB each.
const MOST_EDGES: usize = 3_000_000;

/// NICs at both ends of stripes, or the switches that they are joined to.
type Pairs = SmallVec<[(VertexId, VertexId); 1]>;

/// Links between switches by their places among them, with the shares that go over them.
type Way = Vec<(usize, u64)>;

/// A connection from one host to another.
struct Edge {
    /// Hosts.
    ends: [u32; 2],
    /// At the sender and the receiver: rank, channel, lane and port, 0 before they are known.
    slots: [u64; 2],
    /// What it is, apart from its hosts and the way between them.
    kind: u64,
    /// Number of the way between its NICs.
    way: u32,
}

/// Connections from host to host that are alike.
#[derive(Debug)]
pub(super) struct Edges {
    /// The one that stands for all: its sender's host stands for others.
    pub(super) conn: Conn,
    /// How many there are from one host, and to one.
    pub(super) each: [u64; 2],
    /// By link between switches that stands for others: how many go over it.
    pub(super) over: Vec<(LinkId, u64)>,
}

impl Edges {
    /// How many there are at one host, given the host at one end of the one that stands for all.
    pub(super) fn of(&self, alike: &Alike, host: u32) -> u64 {
        let sends = self.conn.ranks().is_some_and(|(src, _)| alike.hosts.of_rank(src).0 == host);
        self.each[usize::from(!sends)]
    }
}

/// Hosts that are alike, and what is alike between them.
#[derive(Debug)]
pub(super) struct Alike {
    pub(super) hosts: Hosts,
    /// By host: the first that is like it.
    first: Vec<u32>,
    /// By host that stands for others: how many.
    members: Vec<u64>,
    /// By connection between hosts: which of `edges` it is one of.
    kinds: FxHashMap<Conn, u32>,
    edges: Vec<Edges>,
    /// By link between switches: the first that is like it.
    links: FxHashMap<LinkId, LinkId>,
    /// The port on which most flows converge, where they are many.
    pub(super) congested: Option<LinkId>,
}

impl Alike {
    /// Those of a schedule; `None` where hosts differ, or cannot be told apart as hosts.
    pub(super) fn of(topology: &Topology, transport: &Transport, schedule: &Schedule) -> Option<Self> {
        // Where flows are pinned to ways by hashing, each host has ways of its own.
        if topology.hash.is_some() || topology.hosts().len() < LEAST_HOSTS {
            return None;
        }
        let hosts = Hosts::of(topology, schedule.call.ranks)?;
        let mut survey = Survey::new(topology, transport, schedule, hosts);
        for (rank, channel, lane, worker) in schedule.workers() {
            survey.add(rank, channel, lane, &worker)?;
        }
        survey.find_ways()?;
        survey.refine()
    }

    /// The ranks that stand for all, ascending.
    pub(super) fn ranks(&self) -> impl Iterator<Item = Rank> + '_ {
        let mut ranks: Vec<Rank> = (0..)
            .zip(&self.first)
            .filter(|&(host, &first)| host == first)
            .flat_map(|(host, _)| self.hosts.ranks[host as usize].iter().copied())
            .collect();
        ranks.sort_unstable();
        ranks.into_iter()
    }

    /// How many ranks one stands for.
    pub(super) fn members(&self, rank: Rank) -> u64 {
        self.members[self.hosts.of_rank(rank).0 as usize]
    }

    /// What a connection is one of, where it leads from host to host.
    pub(super) fn edges(&self, conn: &Conn) -> Option<&Edges> {
        self.kinds.get(conn).map(|&kind| &self.edges[kind as usize])
    }

    /// The connection that stands for one.
    pub(super) fn conn(&self, conn: &Conn) -> Conn {
        self.edges(conn).map_or(*conn, |edges| edges.conn)
    }

    /// The rank that stands for one.
    pub(super) fn rank(&self, rank: Rank) -> Rank {
        let (host, at) = self.hosts.of_rank(rank);
        self.hosts.rank((self.first[host as usize], at))
    }

    /// The vertex that stands for one.
    pub(super) fn vertex(&self, vertex: VertexId) -> VertexId {
        let (host, at) = self.hosts.of_vertex(vertex);
        if host == UNUSED { vertex } else { self.hosts.vertex((self.first[host as usize], at)) }
    }

    /// The link that stands for one.
    pub(super) fn link(&self, link: LinkId) -> LinkId {
        let (host, at) = self.hosts.of_link(link);
        if host == UNUSED {
            return self.links.get(&link).copied().unwrap_or(link);
        }
        self.hosts.link((self.first[host as usize], at))
    }
}

/// What is known of hosts and of what goes from one to another before they are told apart.
struct Survey<'a> {
    topology: &'a Topology,
    schedule: &'a Schedule,
    router: Router<'a>,
    hosts: Hosts,
    /// By host: a hash of what runs there.
    runs: Vec<u64>,
    /// Groups of workers that a switch joins: the host of each, and its number there.
    groups: FxHashMap<u32, (u32, u64)>,
    /// By host: how many groups.
    grouped: Vec<u64>,
    /// By template: ports that are alike.
    alike: Vec<[Ports; 2]>,
    edges: Vec<Edge>,
    numbers: FxHashMap<Conn, u32>,
    /// Ways between NICs, by the links between switches with their shares.
    ways: Vec<Vec<(LinkId, u64)>>,
    incast: Incast,
}

impl<'a> Survey<'a> {
    fn new(topology: &'a Topology, transport: &Transport, schedule: &'a Schedule, hosts: Hosts) -> Self {
        let router = Router::with(topology, *transport).among(schedule.call.ranks);
        let count = topology.hosts().len();
        Self {
            topology,
            schedule,
            router: router.with_lines(schedule.plan.protocol == Protocol::Ll),
            hosts,
            runs: vec![0; count],
            groups: FxHashMap::default(),
            grouped: vec![0; count],
            alike: vec![[Ports::new(), Ports::new()]; schedule.templates.len()],
            edges: Vec::new(),
            numbers: FxHashMap::default(),
            ways: vec![Vec::new()],
            incast: Incast::default(),
        }
    }

    /// Adds a worker to what runs on its host.
    fn add(&mut self, rank: Rank, channel: ChannelId, lane: Lane, worker: &Worker) -> Option<()> {
        let (host, at) = self.hosts.of_rank(rank);
        let template = &self.schedule.templates[worker.template];
        let place = [u64::from(at), channel.0.into(), lane.0.into()].into_iter().fold(0, mix);
        let runs = [worker.template as u64, worker.threads.into(), worker.others.into()];
        let registers = template.timing_registers(&template.start(&worker.parameters));
        let registers = (0_u64..).zip(registers).filter(|r| r.1 != 0).flat_map(|(i, value)| [i, value.cast_unsigned()]);
        let mut sum = runs.into_iter().chain(registers).fold(place, mix);
        for &(channel, lane) in &worker.tokens {
            sum = [channel.0, lane.0].into_iter().map(u64::from).fold(sum, mix);
        }
        for (side, ports) in [(0, &worker.send), (1, &worker.recv)] {
            if self.alike[worker.template][side].len() < ports.len() {
                self.alike[worker.template][side] = template.ports_alike(ports.len(), side == 0);
            }
            // Whichever of ports that are alike leads where: what they lead to is summed up.
            let mut local = 0_u64;
            for (index, conn) in ports.iter().enumerate() {
                let port = self.alike[worker.template][side][index] as u64;
                match self.inside(host, conn)? {
                    Some(inside) => local = local.wrapping_add(mix(mix(side as u64, port), inside)),
                    None => self.add_end(conn, side, mix(place, port))?,
                }
            }
            sum = mix(sum, local);
        }
        self.runs[host as usize] = mix(self.runs[host as usize], sum);
        Some(())
    }

    /// What a connection inside a host is, whatever host it is; nothing of one that leads to another.
    fn inside(&mut self, host: u32, conn: &Conn) -> Option<Option<u64>> {
        let mut sum = mix(conn.channel.0.into(), conn.stream.into());
        for end in [conn.src, conn.dst] {
            let (of, at) = match end {
                End::One(rank) => {
                    let (of, at) = self.hosts.of_rank(rank);
                    (of, 2 * u64::from(at))
                }
                End::Group(group) => {
                    let next = &mut self.grouped[host as usize];
                    let &mut (of, at) = self.groups.entry(group).or_insert_with(|| {
                        *next += 1;
                        (host, *next)
                    });
                    // One that joins hosts makes them no alike.
                    (of == host).then_some((of, 2 * at + 1))?
                }
            };
            if of != host {
                return Some(None);
            }
            sum = mix(sum, at);
        }
        Some(Some(sum))
    }

    /// Adds an end of a connection between hosts.
    fn add_end(&mut self, conn: &Conn, side: usize, slot: u64) -> Option<()> {
        let (src, dst) = conn.ranks()?;
        let next = u32::try_from(self.edges.len()).ok()?;
        let number = *self.numbers.entry(*conn).or_insert(next);
        if number == next {
            if self.edges.len() >= MOST_EDGES {
                return None;
            }
            let ends = [src, dst].map(|rank| self.hosts.of_rank(rank).0);
            self.edges.push(Edge { ends, slots: [0; 2], kind: conn.stream.into(), way: 0 });
        }
        let known = &mut self.edges[number as usize].slots[side];
        // Two workers at one end are an error, which laying them all tells.
        (std::mem::replace(known, slot | 1) == 0).then_some(())
    }

    /// Finds the way of each connection between hosts: by its NICs, which are those of any other between such ranks of
    /// such hosts, and the switches that they are joined to.
    fn find_ways(&mut self) -> Option<()> {
        // The NICs at both ends, by their places, and which links they send to and come from.
        type Shape = (u64, SmallVec<[(u32, u32); 1]>);
        let mut shapes: FxHashMap<_, Shape> = FxHashMap::default();
        let mut ways: FxHashMap<Pairs, u32> = FxHashMap::default();
        let mut ports: FxHashSet<(VertexId, VertexId)> = FxHashSet::default();
        for (conn, &number) in &self.numbers {
            let edge = &mut self.edges[number as usize];
            let (src, dst) = conn.ranks().filter(|_| edge.slots.iter().all(|&slot| slot > 0))?;
            let nics = self.schedule.nics((src, dst), conn.channel);
            let places = [src, dst].map(|rank| self.hosts.of_rank(rank));
            let kinds = places.map(|(host, at)| (self.hosts.kinds[host as usize], at));
            let shape = match shapes.entry((kinds, conn.channel, nics)) {
                std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
                std::collections::hash_map::Entry::Vacant(new) => {
                    let route = self.router.route_by(src, dst, conn.channel, nics)?;
                    let places =
                        route.nics.iter().map(|&(from, to)| (self.hosts.of_vertex(from).1, self.hosts.of_vertex(to).1));
                    let [(a, at), (b, to)] = kinds;
                    let (leave, enter) = nics.unwrap_or((UNUSED, UNUSED));
                    let key = [a, at.into(), b, to.into(), conn.channel.0.into(), leave.into(), enter.into()];
                    new.insert((key.into_iter().fold(0, mix), places.collect()))
                }
            };
            let packed = u64::from(self.schedule.packed(src, dst));
            edge.kind = [shape.0, packed, edge.slots[0], edge.slots[1]].into_iter().fold(edge.kind, mix);
            let nics = shape
                .1
                .iter()
                .map(|&(from, to)| (self.hosts.vertex((edge.ends[0], from)), self.hosts.vertex((edge.ends[1], to))));
            let nics: Pairs = nics.collect();
            let joined = |nic: VertexId| self.topology.links_from(nic).find(|l| l.2.kind.is_network()).map(|l| l.1);
            let switches: Option<Pairs> = nics.iter().map(|&(from, to)| joined(from).zip(joined(to))).collect();
            let key = switches?;
            edge.way = match ways.get(&key) {
                Some(&known) => known,
                None => {
                    let way = way_between(&mut self.router, &self.hosts, &nics)?;
                    let number = if way.is_empty() { 0 } else { u32::try_from(self.ways.len()).ok()? };
                    if number > 0 {
                        self.ways.push(way);
                    }
                    ways.insert(key, number);
                    number
                }
            };
            for &(from, to) in nics.iter().filter(|&&pair| ports.insert(pair)) {
                let last = joined(to).and_then(|switch| self.topology.link_between(switch, to));
                let links = self.ways[edge.way as usize].iter().map(|link| link.0).chain(last);
                links.for_each(|link| self.incast.add(self.topology, link, from));
            }
        }
        Some(())
    }

    /// Tells hosts and links apart.
    fn refine(self) -> Option<Alike> {
        let mut hosts: Vec<u64> =
            self.hosts.kinds.iter().zip(&self.runs).map(|(&kind, &runs)| mix(kind, runs)).collect();
        let mut between: Vec<LinkId> = self.ways.iter().flatten().map(|link| link.0).collect();
        between.sort_unstable();
        between.dedup();
        let place = |link: LinkId| between.binary_search(&link).unwrap_or(0);
        let ways: Vec<Way> =
            self.ways.iter().map(|way| way.iter().map(|&(link, share)| (place(link), share)).collect()).collect();
        let mut links: Vec<u64> = between
            .iter()
            .map(|&id| {
                let link = self.topology.link(id);
                mix(link.rate.get(), link.kind as u64)
            })
            .collect();
        let count = |colours: &[u64]| colours.iter().collect::<FxHashSet<_>>().len();
        let taking_part = self.hosts.ranks.iter().filter(|ranks| !ranks.is_empty()).count();
        let mut classes = [0; 2];
        for round in 0.. {
            if round % STRIDE == 0 {
                let now = [count(&hosts), count(&links)];
                if now == classes {
                    break;
                }
                classes = now;
            }
            if round == MAX_ROUNDS || classes[0] * 2 > taking_part + 1 {
                return None;
            }
            let colours = self.colours(&hosts, &links, &ways);
            let (mut next, mut over) = (vec![0_u64; hosts.len()], vec![0_u64; ways.len()]);
            for (edge, colour) in self.edges.iter().zip(colours) {
                for (side, &host) in (1..).zip(&edge.ends) {
                    next[host as usize] = next[host as usize].wrapping_add(mix(colour, side));
                }
                over[edge.way as usize] = over[edge.way as usize].wrapping_add(mix(colour, 0));
            }
            hosts.iter_mut().zip(next).for_each(|(host, news)| *host = mix(*host, news));
            let mut next = vec![0_u64; links.len()];
            for (way, sum) in ways.iter().zip(over) {
                way.iter().for_each(|&(link, share)| next[link] = next[link].wrapping_add(mix(sum, share)));
            }
            links.iter_mut().zip(next).for_each(|(link, news)| *link = mix(*link, news));
        }
        let colours: Vec<u64> = self.colours(&hosts, &links, &ways).collect();
        self.classes(&hosts, (&between, &links), &ways, &colours)
    }

    /// The colours of all edges, by those of hosts and links.
    fn colours<'s>(&'s self, hosts: &'s [u64], links: &[u64], ways: &[Way]) -> impl Iterator<Item = u64> + 's {
        let over = |way: &Way| way.iter().fold(0_u64, |sum, &(link, share)| sum.wrapping_add(mix(links[link], share)));
        let ways: Vec<u64> = ways.iter().map(over).collect();
        self.edges.iter().map(move |edge| {
            let [from, to] = edge.ends.map(|host| hosts[host as usize]);
            [from, to, ways[edge.way as usize]].into_iter().fold(edge.kind, mix)
        })
    }

    /// What stands for what, by the colours of hosts, links and edges.
    fn classes(
        self,
        hosts: &[u64],
        (between, links): (&[LinkId], &[u64]),
        ways: &[Way],
        colours: &[u64],
    ) -> Option<Alike> {
        let number = |colours: &[u64]| -> Vec<u32> {
            let mut firsts = FxHashMap::default();
            (0..).zip(colours).map(|(index, &colour)| *firsts.entry(colour).or_insert(index)).collect()
        };
        let (first, first_link) = (number(hosts), number(links));
        let mut members = vec![0; first.len()];
        first.iter().for_each(|&host| members[host as usize] += 1);
        let mut kinds: FxHashMap<u64, u32> = FxHashMap::default();
        // One of each kind, how many of it there are at each end, and over each link, with the share of it.
        type Found = (Option<Conn>, [u64; 2], FxHashMap<usize, (u64, u64)>);
        let mut edges: Vec<Found> = Vec::new();
        let mut numbers = self.numbers;
        // In the order in which they were found, which is that of ranks.
        let mut all: Vec<(&Conn, &mut u32)> = numbers.iter_mut().collect();
        all.sort_unstable_by_key(|(_, number)| **number);
        for (conn, number) in all {
            let edge = &self.edges[*number as usize];
            let next = u32::try_from(edges.len()).unwrap_or(UNUSED);
            let kind = *kinds.entry(colours[*number as usize]).or_insert(next);
            if kind == next {
                edges.push((None, [0; 2], FxHashMap::default()));
            }
            *number = kind;
            let (one, each, over) = &mut edges[kind as usize];
            for (side, &host) in edge.ends.iter().enumerate() {
                each[side] += u64::from(first[host as usize] == host);
            }
            if first[edge.ends[0] as usize] == edge.ends[0] {
                one.get_or_insert(*conn);
            }
            for &(link, share) in ways[edge.way as usize].iter().filter(|w| first_link[w.0] as usize == w.0) {
                let known = over.entry(link).or_insert((share, 0));
                known.1 += 1;
                // Ways that take unequal parts of links that are alike are seldom, and laid one by one.
                if known.0 != share {
                    return None;
                }
            }
        }
        let edges: Option<Vec<Edges>> = edges
            .into_iter()
            .map(|(conn, each, over)| {
                let over = over.into_iter().map(|(link, (_, count))| (between[link], count)).collect();
                Some(Edges { conn: conn?, each, over })
            })
            .collect();
        let links = between.iter().zip(first_link).map(|(&link, first)| (link, between[first as usize])).collect();
        let congested = self.incast.worst(self.topology);
        Some(Alike { hosts: self.hosts, first, members, kinds: numbers, edges: edges?, links, congested })
    }
}

/// The links between switches on the ways between NICs, with the shares that go over them.
fn way_between(router: &mut Router<'_>, hosts: &Hosts, nics: &[(VertexId, VertexId)]) -> Option<Vec<(LinkId, u64)>> {
    let share = crate::engine::flows::WEIGHT_ONE.div_ceil(nics.len().max(1) as u64);
    let mut way: Vec<(LinkId, u64)> = Vec::new();
    for &(from, to) in nics {
        let leg: Leg = router.fabric(from, to, share, 0)?;
        for (hop, share) in leg {
            let Hop::Link(link) = hop else { continue };
            if hosts.of_link(link).0 != UNUSED {
                continue;
            }
            match way.iter_mut().find(|known| known.0 == link) {
                Some(known) => known.1 += share,
                None => way.push((link, share)),
            }
        }
    }
    way.sort_unstable();
    Some(way)
}

//! Patterns: what is proved of a schedule that is too long to be proved itself.

use std::sync::Arc;

use rayon::prelude::*;
use rustc_hash::FxHashSet;

use super::form::Form;
use super::program::Shape;
use super::verify::MAX_CLOCKED_WORKERS;
use super::{Call, Chains, Head, MAX_CHANNELS, Order, Schedule, ScheduleError};
use super::{chain, coll_tree, direct, heads, pat, ring, tree};
use crate::collective::{Algorithm, ReduceOp};
use crate::ids::{ChannelId, Lane, Rank};
use crate::nccl::plan::{Dealing, Plan};

/// Ranks of a twin, if the call has them: twice the slices of NCCL's deepest FIFO but PAT's, [`STEPS`](crate::nccl::plan::STEPS).
const LEAST_RANKS: u32 = 16;
/// Slices, about, up to which a twin has all ranks of the call: a tenth of a second.
const MOST_SLICES: u64 = 60_000;

impl Form {
    fn of(call: &Call, plan: &Plan, order: &Order) -> Self {
        match plan.algorithm {
            Algorithm::Tree => tree::form(order),
            Algorithm::Direct => direct::form(call, plan),
            Algorithm::Pat if call.ranks > 1 => pat::form(call, plan),
            Algorithm::CollTree if call.ranks > 1 => coll_tree::form(order),
            Algorithm::Nvls | Algorithm::NvlsTree | Algorithm::CollnetDirect => heads::form(call, plan, order),
            Algorithm::CollnetChain => chain::form(order),
            _ => ring::form(call, order),
        }
    }

    /// Slices that a call sends, about.
    fn slices(self, call: &Call, plan: &Plan) -> u64 {
        let rounds = plan.per_channel.div_ceil(plan.chunk.max(1) * self.chunks.max(1)).max(1);
        let (first, end) = plan.used();
        [u64::from(end - first), u64::from(call.ranks), self.sends.max(1), u64::from(plan.slices)]
            .into_iter()
            .fold(rounds, u64::saturating_mul)
    }
}

/// The pattern of a schedule, by its smaller *twin*.
///
/// A generator writes the program of each role once and goes on with it for more ranks, channels and bytes. So a long
/// schedule is proved by a twin: the same generator's schedule of a call that is cut down. A pattern is all that the
/// generator sees of that twin (call, plan, order), and so it is the key of its proof too: nothing that the verifier's
/// answer depends on can be left out of it.
///
/// What makes the twin enough:
/// - It has the machine's own orders and trees, those of the ranks kept: each order of a ring, chain of a host and kind
///   of tree that tells channels apart, the root, and the parity of the number of hosts, which the second tree
///   depends on.
/// - It has all *roles* of the schedule ([`Schedule::roles`]): each worker's program, as instructions with the number of
///   ports that they fuse, their buffers and whether they add or wait. A twin that lacks one is taken larger.
/// - Its FIFOs have the same depth, its chunks the same number of slices. A connection carries two FIFOs full at
///   least (but for PAT that packs small chunks, and so has too few to fill one), so that senders wait for credit;
///   programs go twice through their loops at least, and then once with a rest.
/// - It has 16 ranks at least, more than a FIFO holds slices, so that no chunk's way around fits into one.
///
/// What it does not show: a flaw that needs more ranks than it has and shows in no role.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Pattern {
    call: Call,
    plan: Plan,
    order: Arc<Order>,
}

impl Pattern {
    /// That of a schedule: with all its ranks where such a twin is small, else with the fewest that have all its roles;
    /// where there are several, one in which races are searched too. `None` for schedules of strangers
    /// ([`Schedule::from_parts`]).
    ///
    /// # Errors
    /// No twin has a schedule: our bug.
    pub fn of(schedule: &Schedule) -> Result<Option<Self>, ScheduleError> {
        let Some(order) = &schedule.order else { return Ok(None) };
        let (call, plan) = (&schedule.call, &schedule.plan);
        let all: Vec<u32> = (0..call.ranks).collect();
        let whole = Self::among(&all, call, plan, order);
        let clocked = |twin: &Schedule| twin.workers().take(MAX_CLOCKED_WORKERS + 1).count() <= MAX_CLOCKED_WORKERS;
        if call.ranks <= LEAST_RANKS || whole.slices() <= MOST_SLICES && clocked(&whole.twin()?) {
            return Ok(Some(whole));
        }
        let roles = schedule.roles(Form::of(call, plan, order).channels);
        let mut smallest = None;
        for (hosts, each) in sizes(order) {
            let pattern = Self::among(&kept(order, hosts, each, call.root), call, plan, order);
            // Too few ranks or hosts for the algorithm, or for its roles.
            let Ok(twin) = pattern.twin() else { continue };
            if !roles.is_subset(&twin.roles(MAX_CHANNELS)) {
                continue;
            }
            if clocked(&twin) {
                return Ok(Some(pattern));
            }
            if smallest.is_none() {
                smallest = Some(pattern);
            } else if pattern.slices() > MOST_SLICES {
                break;
            }
        }
        Ok(Some(smallest.unwrap_or(whole)))
    }

    /// All of a schedule, which is then its own twin. `None` for schedules of strangers, and for counts by pair, which are as
    /// many as the pairs.
    pub(crate) fn itself(schedule: &Schedule) -> Option<Self> {
        let order = schedule.order.clone().filter(|_| schedule.call.counts.is_none())?;
        Some(Self { call: schedule.call.clone(), plan: schedule.plan, order })
    }

    /// That among the ranks `kept`, in ascending order.
    fn among(kept: &[u32], call: &Call, plan: &Plan, order: &Order) -> Self {
        let (order, from_ranks) = (order.among(kept), call.ranks as usize);
        let ranks = u32::try_from(kept.len()).unwrap_or(u32::MAX);
        let root = Rank(u32::try_from(kept.partition_point(|&rank| rank < call.root.0)).unwrap_or(0).min(ranks - 1));
        // The verifier asks whether something is added, not how.
        let mut call = Call { ranks, root, op: ReduceOp::Sum, ..call.clone() };
        // What a transfer costs is not proved: threads, and who copies.
        let mut plan = Plan { threads: 32, direct: false, dealing: Dealing::Evenly, ..*plan };
        plan.old.fetches_work = false;
        // Two messages a pair, two rounds at once.
        let groups = (plan.channels / plan.channels_per_peer.max(1)).clamp(1, 2);
        plan.channels_per_peer = plan.channels_per_peer.clamp(1, 2);
        if plan.algorithm == Algorithm::Direct {
            plan.channels = plan.channels_per_peer * groups;
        }
        plan = plan.of_short_chunks();
        plan.old.last_grain = match plan.last_grain() {
            all if all == plan.grain => 0,
            last => last.min(3 * plan.grain),
        };
        let form = Form::of(&call, &plan, &order);
        plan.channels = form.channels.clamp(1, MAX_CHANNELS);
        let fill = (2 * u64::from(plan.fifo_slices)).div_ceil(u64::from(plan.slices) * form.each.max(1));
        plan.per_channel = plan.chunk * form.chunks.max(1) * fill.max(2) + plan.grain;
        let sharers = if plan.algorithm == Algorithm::Direct { plan.channels_per_peer } else { plan.channels };
        call.count = plan.per_channel * u64::from(sharers) - 1;
        if let Some(counts) = &call.counts {
            // What is missing in a count matrix stays missing.
            let pair = |from: u32, to: u32| from as usize * from_ranks + to as usize;
            let pairs = kept.iter().flat_map(|&from| kept.iter().map(move |&to| pair(from, to)));
            call.counts = Some(pairs.map(|pair| counts[pair].min(call.count)).collect());
        }
        Self { call, plan, order: Arc::new(order) }
    }

    /// The twin.
    ///
    /// # Errors
    /// Too few ranks or hosts for the algorithm.
    pub fn twin(&self) -> Result<Schedule, ScheduleError> {
        Schedule::new(self.call.clone(), self.plan, &self.order)
    }

    /// The twin's call.
    pub fn call(&self) -> &Call {
        &self.call
    }

    fn slices(&self) -> u64 {
        Form::of(&self.call, &self.plan, &self.order).slices(&self.call, &self.plan)
    }
}

/// Hosts and ranks of each that a twin may keep, the fewest ranks first.
fn sizes(order: &Order) -> Vec<(usize, usize)> {
    let (all, most) = (order.hosts.len(), order.hosts.iter().map(Vec::len).max().unwrap_or(0));
    let grown = |from: usize, to: usize| (from..).map(|bits| 1 << bits).take_while(move |&n| n < to).chain([to]);
    // The double tree of an even number of hosts is built otherwise than that of an odd one.
    let hosts = grown(1, all).map(|hosts| if hosts % 2 == all % 2 { hosts } else { hosts + 1 }).map(|n| n.min(all));
    // Hosts of unequal size are kept whole.
    let equal = order.hosts.iter().all(|host| host.len() == most);
    let each: Vec<usize> = if equal { grown(2, most).collect() } else { vec![most] };
    let mut sizes: Vec<(usize, usize)> = hosts.flat_map(|hosts| each.iter().map(move |&each| (hosts, each))).collect();
    sizes.retain(|&(hosts, each)| hosts * each >= LEAST_RANKS as usize);
    sizes.sort_by_key(|&(hosts, each)| (hosts * each, each));
    sizes
}

/// The ranks of a twin, ascending: of `hosts` hosts, with the largest and the smallest and that of the root, `each`
/// ranks, the root among them.
fn kept(order: &Order, hosts: usize, each: usize, root: Rank) -> Vec<u32> {
    let size = |&index: &usize| order.hosts[index].len();
    let all = 0..order.hosts.len();
    let of_root = all.clone().find(|&index| order.hosts[index].contains(&root.0));
    let mut chosen: Vec<usize> = of_root.into_iter().collect();
    for index in all.clone().max_by_key(size).into_iter().chain(all.clone().min_by_key(size)).chain(all) {
        if chosen.len() < hosts && !chosen.contains(&index) {
            chosen.push(index);
        }
    }
    let of_host = |&index: &usize| {
        let host = &order.hosts[index];
        let own = host.iter().copied().filter(|&rank| rank == root.0);
        own.chain(host.iter().copied().filter(|&rank| rank != root.0)).take(each).collect::<Vec<_>>()
    };
    let mut kept: Vec<u32> = chosen.iter().flat_map(of_host).collect();
    kept.sort_unstable();
    kept
}

impl Order {
    /// The same among some ranks, in ascending order, which are numbered anew; without NICs.
    fn among(&self, kept: &[u32]) -> Self {
        let number = |rank: &u32| kept.binary_search(rank).ok().and_then(|at| u32::try_from(at).ok());
        let some = |ranks: &[u32]| ranks.iter().filter_map(number).collect::<Vec<u32>>();
        // Hosts that keep nobody are gone from all lists.
        let of_hosts = |hosts: &Vec<Vec<u32>>| hosts.iter().map(|h| some(h)).filter(|h| !h.is_empty()).collect();
        let of_channels = |channels: &Vec<Vec<Vec<u32>>>| channels.iter().map(of_hosts).collect::<Vec<Vec<Vec<u32>>>>();
        let chains = self.chains.as_ref().map(|chains| Chains {
            ranks: of_channels(&chains.ranks),
            // As many channels a tree as there are chains that differ.
            of_a_tree: chains.of_a_tree.min(chains.ranks.len()),
            children: chains.children,
            rails: Vec::new(),
        });
        let hosts: Vec<Vec<u32>> = of_hosts(&self.hosts);
        // Where a host keeps none of its heads, its first ranks are.
        let head = |head: &Head| Some(Head { rank: number(&head.rank)?, ..*head });
        let heads = |heads: &Vec<Vec<Head>>| -> Vec<Vec<Head>> {
            heads
                .iter()
                .map(|heads| heads.iter().filter_map(head).collect::<Vec<_>>())
                .filter(|h| !h.is_empty())
                .collect()
        };
        let nvls_tree = self.nvls_tree.as_ref().map(heads).filter(|heads| heads.len() == hosts.len());
        Self {
            rings: self.rings.iter().map(|ring| some(ring).into()).collect(),
            rails: Vec::new(),
            chains,
            collnet: self.collnet.as_ref().map(of_channels),
            nvls_tree,
            hosts,
        }
    }
}

impl Schedule {
    /// The roles of a schedule: the programs of its workers, whatever their sizes and peers; of its first `channels`
    /// channels.
    pub fn roles(&self, channels: u32) -> FxHashSet<Vec<Shape>> {
        let (first, end) = self.plan.used();
        let end = end.min(first.saturating_add(channels));
        let places =
            |rank| (first..end).flat_map(move |channel| (0..self.lanes).map(move |lane| (rank, channel, lane)));
        let note = |mut used: Vec<bool>, rank: u32| {
            for (rank, channel, lane) in places(rank) {
                if let Some(worker) = self.worker(Rank(rank), ChannelId(channel), Lane(lane)) {
                    used[worker.template] = true;
                }
            }
            used
        };
        let none = || vec![false; self.templates.len()];
        let either = |a: Vec<bool>, b: Vec<bool>| a.into_iter().zip(b).map(|(a, b)| a || b).collect();
        let used: Vec<bool> = (0..self.call.ranks).into_par_iter().fold(none, note).reduce(none, either);
        self.templates.iter().zip(used).filter(|(_, used)| *used).map(|(template, _)| template.shape()).collect()
    }

    /// Slices that it sends, about.
    pub fn slices(&self) -> Option<u64> {
        self.order.as_ref().map(|order| Form::of(&self.call, &self.plan, order).slices(&self.call, &self.plan))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::program::Mutation;
    use super::super::verify::verify;
    use super::super::{Generator, Worker, valid_algorithms, valid_protocols};
    use super::*;
    use crate::collective::{Collective, DataType, Protocol};
    use crate::nccl::{Limits, Version};
    use crate::units::Bytes;

    /// Hosts of 8, of which channels start each at another rank, as NCCL's do where each has a NIC of its own.
    fn order(hosts: u32, channels: u32) -> Order {
        let hosts: Vec<Vec<u32>> = (0..hosts).map(|h| (8 * h..8 * (h + 1)).collect()).collect();
        let turned = |c: usize| -> Vec<Vec<u32>> {
            hosts.iter().map(|host| (0..8).map(|at| host[(at + c) % 8]).collect()).collect()
        };
        let chains: Vec<_> = (0..channels as usize).map(turned).collect();
        let rings = chains.iter().map(|hosts| hosts.concat().into()).collect();
        let chains = Chains { of_a_tree: chains.len(), ranks: chains, children: [1, 0], rails: Vec::new() };
        Order { chains: Some(chains), ..Order::of_rings(rings, hosts) }
    }

    fn made(call: &Call, algorithm: Algorithm, protocol: Protocol, version: Version, order: &Order) -> Schedule {
        let hosts = u32::try_from(order.hosts.len()).unwrap();
        let limits = Limits { channels: 8, exact_channels: true, hosts, version, ..Limits::default() };
        let plan = Plan::new(call, algorithm, protocol, &limits);
        Schedule::new(call.clone(), plan, order).unwrap()
    }

    fn all_reduce(hosts: u32) -> Call {
        Call::of_size(Collective::AllReduce, 8 * hosts, Bytes(1 << 30), DataType::Float32)
    }

    /// Goal: no two schedules that the verifier could judge differently share a proof: those that differ only in the
    /// order of their ranks, its last channel's at that, in protocol, in whether trees work in turn, in memory or root.
    #[test]
    fn what_the_verifier_sees_is_in_the_key() {
        let (order, call) = (order(4, 4), all_reduce(4));
        let mut other = order.clone();
        // Ranks 3 and 1, which every twin has.
        let mut last = other.rings[3].to_vec();
        last.swap(0, 6);
        other.rings[3] = last.into();
        other.chains.as_mut().unwrap().ranks[3][0].swap(0, 6);
        let (new, old) = (Version::NEWEST, Version::OLDEST);
        let key = |call: &Call, algorithm, protocol, version, order: &Order| {
            Pattern::of(&made(call, algorithm, protocol, version, order)).unwrap().unwrap()
        };
        let mut keys = FxHashSet::default();
        let mut add = |key: Pattern| assert!(keys.insert(key.clone()), "{key:?}");
        for algorithm in [Algorithm::Ring, Algorithm::Tree] {
            for protocol in [Protocol::Ll, Protocol::Ll128, Protocol::Simple] {
                for order in [&order, &other] {
                    add(key(&call, algorithm, protocol, new, order));
                }
            }
        }
        add(key(&call, Algorithm::Tree, Protocol::Simple, old, &order));
        add(key(&Call { in_place: true, ..call.clone() }, Algorithm::Ring, Protocol::Simple, new, &order));
        for (collective, root) in [(Collective::Broadcast, 0), (Collective::Broadcast, 9), (Collective::Reduce, 0)] {
            let call = Call { collective, root: Rank(root), ..call.clone() };
            add(key(&call, Algorithm::Ring, Protocol::Simple, new, &order));
        }
        // What it does not see is not: sizes, and what costs alone.
        let half = Call { count: call.count / 2, op: ReduceOp::Max, ..call.clone() };
        let again = key(&half, Algorithm::Ring, Protocol::Simple, new, &order);
        assert_eq!(again, key(&call, Algorithm::Ring, Protocol::Simple, new, &order));
    }

    /// Goal: whatever is large has a small twin with all of its roles, which is proved, races too; trees of even and odd
    /// numbers of hosts among them, and roots and hosts that are not the first.
    #[test]
    fn twins_of_large_schedules_have_all_roles() {
        let reduced = [Collective::AllReduce, Collective::AllGather, Collective::Broadcast, Collective::AllToAll];
        for hosts in [96, 97] {
            let order = order(hosts, 4);
            for (collective, algorithm) in
                reduced.iter().flat_map(|&c| valid_algorithms(c).iter().map(move |&a| (c, a)))
            {
                for &protocol in valid_protocols(algorithm) {
                    let size = if collective == Collective::AllReduce { 1 << 30 } else { 1 << 20 };
                    let mut call = Call::of_size(collective, 8 * hosts, Bytes(size), DataType::Float32);
                    call.root = Rank(8 * hosts - 3);
                    let schedule = made(&call, algorithm, protocol, Version::NEWEST, &order);
                    let twin = Pattern::of(&schedule).unwrap().unwrap().twin().unwrap();
                    let what = format!("{collective} {algorithm}/{protocol} on {hosts} hosts");
                    assert!(schedule.roles(MAX_CHANNELS).is_subset(&twin.roles(MAX_CHANNELS)), "{what}");
                    assert!((16..=64).contains(&twin.call.ranks), "{what}: {}", twin.call.ranks);
                    assert_eq!(twin.plan.fifo_slices, schedule.plan.fifo_slices, "{what}");
                    let proof = verify(&twin).unwrap_or_else(|error| panic!("{what}: {error}"));
                    assert!(proof.races_checked, "{what}");
                }
            }
        }
        let schedule = made(&all_reduce(1000), Algorithm::Tree, Protocol::Simple, Version::OLDEST, &order(1000, 1));
        let twin = Pattern::of(&schedule).unwrap().unwrap().twin().unwrap();
        assert!(schedule.roles(MAX_CHANNELS).is_subset(&twin.roles(MAX_CHANNELS)));
    }

    /// Goal: the smallest twin is not taken where it lacks a role: heads of CollNet direct on hosts of 8 hear 7 others, on
    /// hosts of 4 only 3. Rings have one role.
    #[test]
    fn a_twin_without_a_role_is_taken_larger() {
        let order = order(96, 4);
        for (algorithm, each) in [(Algorithm::CollnetDirect, 8), (Algorithm::Ring, 4)] {
            let schedule = made(&all_reduce(96), algorithm, Protocol::Simple, Version::NEWEST, &order);
            let hosts = Pattern::of(&schedule).unwrap().unwrap().order.hosts.clone();
            assert_eq!(hosts.iter().map(Vec::len).collect::<Vec<_>>(), vec![each; 16 / each], "{algorithm}");
        }
    }

    /// Goal: a flaw in any role of a schedule that is too large to be proved itself is a flaw of its twin: every program
    /// that some worker of a tree over 97 hosts runs, with an instruction left out or done twice.
    #[test]
    fn a_broken_role_of_a_large_schedule_is_found() {
        for (version, roles) in [(Version::NEWEST, 7), (Version::OLDEST, 4)] {
            let schedule = made(&all_reduce(97), Algorithm::Tree, Protocol::Simple, version, &order(97, 1));
            let pattern = Pattern::of(&schedule).unwrap().unwrap();
            let used: FxHashSet<usize> = schedule.workers().map(|(.., worker)| worker.template).collect();
            assert!(used.len() >= roles, "{}", used.len());
            for template in used {
                for mutation in [Mutation::Delete, Mutation::Duplicate] {
                    let mut twin = pattern.twin().unwrap();
                    twin.templates[template] = twin.templates[template].mutated(mutation, 0);
                    assert!(verify(&twin).is_err(), "{mutation:?} of {template}");
                }
            }
        }
    }

    /// A ring whose ranks on the second half of its way look for their neighbours' parts where their own are.
    #[derive(Debug)]
    struct Astray(Schedule);

    impl Generator for Astray {
        fn worker(&self, rank: Rank, channel: ChannelId, lane: Lane) -> Option<Worker> {
            let mut worker = self.0.worker(rank, channel, lane)?;
            if rank.0 >= self.0.call.ranks / 2 {
                worker.parameters[0].1 += 1;
            }
            Some(worker)
        }
    }

    /// Goal: a generator that goes wrong on many ranks is found on few: a variant of the ring over 768 ranks.
    #[test]
    fn a_broken_generator_is_found_at_a_large_size() {
        let schedule = made(&all_reduce(96), Algorithm::Ring, Protocol::Simple, Version::NEWEST, &order(96, 4));
        let twin = Pattern::of(&schedule).unwrap().unwrap().twin().unwrap();
        verify(&twin).unwrap();
        let (call, plan, lanes, templates) = (twin.call.clone(), twin.plan, twin.lanes, twin.templates.clone());
        let broken = Schedule::from_parts(call, plan, lanes, templates, Box::new(Astray(twin)));
        assert!(verify(&broken).is_err());
    }

    /// Goal: a twin's order is the machine's among the ranks kept, by value.
    #[test]
    fn an_order_among_some_ranks_keeps_their_turns() {
        let ring: Arc<[u32]> = [3, 0, 2, 1, 5, 7, 4, 6].into();
        let order = Order::of_rings(vec![ring], vec![vec![0, 1, 2, 3], vec![4, 5, 6, 7]]);
        let few = order.among(&kept(&order, 2, 2, Rank(7)));
        // Ranks 0, 1, 4 and 7, the root.
        assert_eq!((&few.rings[0][..], &few.hosts), (&[0, 1, 3, 2][..], &vec![vec![0, 1], vec![2, 3]]));
    }
}

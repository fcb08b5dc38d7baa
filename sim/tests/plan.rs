//! Goal: algorithms are written as execution plans of MSCCL++ that compute what they should, and a plan that does not is
//! found out. Method: plans are run with symbols; changed ones too.

use crate::common::nvswitch_box;
use collcast_sim::collective::{Algorithm, Collective, DataType, Protocol};
use collcast_sim::nccl::{Limits, Plan as Cut};
use collcast_sim::network::order;
use collcast_sim::schedule::Call;
use collcast_sim::schedule::msccl::plan::{MAX_OPERATIONS, Name, Plan, PlanError};
use collcast_sim::schedule::msccl::{Imported, export, one_loop};
use collcast_sim::topology::Topology;
use collcast_sim::units::Bytes;
use proptest::prelude::*;
use proptest::sample::Index;

const PAIRS: &str = include_str!("data/pairs2.xml");

fn imported(
    collective: Collective,
    algorithm: Algorithm,
    topology: &Topology,
    channels: u32,
    in_place: bool,
) -> Imported {
    let ranks = topology.ranks();
    let call = Call { in_place, ..Call::of_size(collective, ranks, Bytes(1 << 20), DataType::Float32) };
    let limits =
        Limits { channels, p2p_channels: (2 * channels, 2 * channels), exact_channels: true, ..Limits::default() };
    let cut = Cut::new(&call, algorithm, Protocol::Simple, &limits);
    let schedule = one_loop(&call, &cut, &order(topology, ranks)).unwrap();
    Imported::parse(&export(&schedule, algorithm.name()).unwrap(), "a.xml").unwrap()
}

const PLANNED: [(Collective, Algorithm); 8] = [
    (Collective::AllReduce, Algorithm::Ring),
    (Collective::AllReduce, Algorithm::Tree),
    (Collective::AllReduce, Algorithm::CollTree),
    (Collective::AllGather, Algorithm::Ring),
    (Collective::AllGather, Algorithm::Pat),
    (Collective::ReduceScatter, Algorithm::Ring),
    (Collective::ReduceScatter, Algorithm::Pat),
    (Collective::AllToAll, Algorithm::Direct),
];

fn copies(plan: &Plan) -> usize {
    plan.gpus.iter().flat_map(|g| &g.threadblocks).flat_map(|b| &b.ops).filter(|op| op.name == Name::Copy).count()
}

/// Goal: what we generate for one host is a plan that is proved, within the executor's limits, on any number of ranks and
/// channels, in place and out of place; the same comes back from JSON.
#[test]
fn our_algorithms_are_plans() {
    let mut written = 0;
    for ranks in [2, 3, 8] {
        let topology = nvswitch_box(ranks, 450.0);
        for (collective, algorithm) in PLANNED {
            for (channels, in_place) in [(1, false), (3, true)] {
                if collective == Collective::AllToAll && in_place {
                    continue;
                }
                let what = format!("{collective} {algorithm} {ranks} ranks, {channels} channels, {in_place}");
                let plan = imported(collective, algorithm, &topology, channels, in_place).plan();
                let plan = plan.unwrap_or_else(|error| panic!("{what}: {error}"));
                let blocks = || plan.gpus.iter().flat_map(|gpu| &gpu.threadblocks);
                assert!(blocks().all(|block| (1..=MAX_OPERATIONS).contains(&block.ops.len())), "{what}");
                assert_eq!(plan.gpus.len(), ranks as usize);
                written += 1;
            }
        }
    }
    assert!(written >= 40, "{written}");
}

/// Goal: a ring's gather is put where it belongs without a copy, and more operations than the executor holds become thread
/// blocks that follow each other.
#[test]
fn data_is_put_where_it_belongs() {
    let topology = nvswitch_box(8, 450.0);
    for in_place in [false, true] {
        let ring = imported(Collective::AllReduce, Algorithm::Ring, &topology, 1, in_place).plan().unwrap();
        assert_eq!(copies(&ring), 0, "{ring:?}");
        // Seven messages of the first half are added to what is there; those of the second land in the output.
        assert_eq!(ring.gpus[0].scratch_chunks, 7);
        assert_eq!(ring.gpus[0].threadblocks.len(), 2);
        let ops: usize = ring.gpus[0].threadblocks.iter().map(|block| block.ops.len()).sum();
        assert!(ops > MAX_OPERATIONS, "{ops}");
    }
    // Offsets of the largest size fit 32 bits.
    let ring = imported(Collective::AllReduce, Algorithm::Ring, &topology, 1, false).plan().unwrap();
    let chunk = ring.max_message_size / ring.gpus[0].input_chunks;
    assert!(chunk * ring.gpus[0].input_chunks <= u64::from(u32::MAX) && chunk.is_multiple_of(16));
}

/// Goal: a stranger's file, whose blocks wait for each other, is a plan as well; without a dependency it is a race.
#[test]
fn dependencies_are_kept() {
    Imported::parse(PAIRS, "pairs2.xml").unwrap().plan().unwrap();
    let text = PAIRS.replacen(r#"depid="0" deps="1""#, r#"depid="-1" deps="-1""#, 1);
    let error = Imported::parse(&text, "pairs2.xml").unwrap().plan().unwrap_err();
    assert!(matches!(error, PlanError::Flaw(_)), "{error}");
}

/// Goal: what has no plan is refused by name.
#[test]
fn what_a_plan_cannot_hold_is_refused() {
    let topology = nvswitch_box(4, 450.0);
    let broadcast = imported(Collective::Broadcast, Algorithm::Ring, &topology, 1, false);
    assert!(broadcast.plan().unwrap_err().to_string().contains("no MSCCL++ plan is written of broadcast"));
    let ring = imported(Collective::AllReduce, Algorithm::Ring, &topology, 1, false);
    let mut packets = ring;
    packets.protocol = Protocol::Ll;
    assert!(packets.plan().unwrap_err().to_string().contains("take --protocol simple"));
    let many = imported(Collective::AllReduce, Algorithm::Ring, &nvswitch_box(16, 450.0), 64, false);
    assert!(many.plan().unwrap_err().to_string().contains("fewer --channels"));
}

/// A change of a plan that must not go unnoticed.
#[derive(Clone, Copy, Debug)]
enum Change {
    Drop,
    Swap,
    MoveSource,
    MoveTarget,
    OtherChannel,
    OtherSemaphore,
}

/// Where operations stand: GPU, thread block and number in it.
fn places(plan: &Plan) -> Vec<(usize, usize, usize)> {
    let blocks = plan.gpus.iter().enumerate().flat_map(|(g, gpu)| (0..gpu.threadblocks.len()).map(move |b| (g, b)));
    blocks.flat_map(|(g, b)| (0..plan.gpus[g].threadblocks[b].ops.len()).map(move |o| (g, b, o))).collect()
}

/// A plan with one operation changed; none where that operation has nothing of the kind.
fn changed(plan: &Plan, change: Change, (g, b, o): (usize, usize, usize)) -> Option<Plan> {
    let mut plan = plan.clone();
    let gpu = &mut plan.gpus[g];
    let semaphores = gpu.semaphores.len() as u32;
    let block = &mut gpu.threadblocks[b];
    let channels = block.channels[0].channel_ids.len() as u32;
    let last = o + 1 == block.ops.len();
    let same = last || block.ops[o] == block.ops[o + 1];
    let op = &mut block.ops[o];
    match change {
        Change::Drop => {
            block.ops.remove(o);
        }
        Change::Swap if !same => block.ops.swap(o, o + 1),
        Change::MoveSource => op.src_buff.first_mut()?.index += 1,
        Change::MoveTarget => op.dst_buff.last_mut()?.index += 1,
        Change::OtherChannel if channels > 1 => {
            let id = op.channel_ids.first_mut()?;
            *id = (*id + 1) % channels;
        }
        Change::OtherSemaphore if semaphores > 1 => {
            let id = op.semaphore_ids.first_mut()?;
            *id = (*id + 1) % semaphores;
        }
        _ => return None,
    }
    Some(plan)
}

/// Goal: an operation that is left out is noticed, and so is one that takes other chunks, channels or semaphores.
/// Method: each operation of each plan changed in each way that it can be.
#[test]
fn changes_are_noticed() {
    use Change::{Drop, MoveSource, MoveTarget, OtherChannel, OtherSemaphore};
    let topology = nvswitch_box(4, 450.0);
    let mut tried = [Drop, MoveSource, MoveTarget, OtherChannel, OtherSemaphore].map(|change| (change, 0));
    for (collective, algorithm) in PLANNED {
        let plan = imported(collective, algorithm, &topology, 1, false).plan().unwrap();
        for place in places(&plan) {
            for (change, tried) in &mut tried {
                let Some(other) = changed(&plan, *change, place) else { continue };
                assert!(other.check().is_err(), "{collective} {algorithm}: {change:?} of {place:?}");
                *tried += 1;
            }
        }
    }
    assert!(tried.iter().all(|(_, tried)| *tried >= 20), "{tried:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Goal: no order of operations makes the check panic or hang.
    #[test]
    fn any_order_is_judged(at in prop::collection::vec(any::<Index>(), 1..20)) {
        let mut plan = imported(Collective::AllReduce, Algorithm::Tree, &nvswitch_box(4, 450.0), 2, true).plan().unwrap();
        let places = places(&plan);
        for at in at {
            plan = changed(&plan, Change::Swap, *at.get(&places)).unwrap_or(plan);
        }
        let _ = plan.check();
    }
}

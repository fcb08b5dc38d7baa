//! Goal: graphs of operations run as a GPU and its host would, on ideal links by hand calculation.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

mod common;

use collcast_sim::engine::flows::WEIGHT_ONE;
use collcast_sim::engine::{Gate, Instance, Outcome, TaskSpec, Unobserved, run};
use collcast_sim::units::{SimDuration, SimTime};
use proptest::prelude::*;

fn outcome(resources: &[u64], tasks: Vec<TaskSpec>) -> Outcome {
    run(&Instance { resources: resources.to_vec(), tasks, ..Instance::default() }, &mut Unobserved).unwrap()
}

fn lasts(ps: u64, after: &[u32]) -> TaskSpec {
    TaskSpec {
        lasts: SimDuration(ps),
        after: after.iter().map(|&t| (t, SimDuration::ZERO)).collect(),
        ..TaskSpec::default()
    }
}

fn ends(outcome: &Outcome) -> Vec<u64> {
    outcome.task_ends.iter().map(|t| t.0).collect()
}

/// Goal: tasks start when all they wait for is over, each lag included, and say who let them.
#[test]
fn tasks_follow_each_other() {
    let mut last = lasts(5, &[0, 1]);
    last.after[0].1 = SimDuration(100);
    let done = outcome(&[], vec![lasts(10, &[]), lasts(40, &[0]), last, lasts(0, &[2])]);
    assert_eq!(ends(&done), [10, 50, 115, 115]);
    assert_eq!(done.task_causes, [u32::MAX, 0, 0, 2]);
    assert_eq!(done.end, SimTime(115));
}

/// Goal: what a task holds is missing to others from its start to the end of the task it names.
#[test]
fn holds_take_capacity_for_their_time() {
    let flow = TaskSpec { uses: [(0, WEIGHT_ONE)].as_slice().into(), work: 1000, ..TaskSpec::default() };
    let holder = TaskSpec { holds: [(0, 750)].as_slice().into(), until: Some(2), ..lasts(0, &[]) };
    // 1000 units a second: 250 of them for 2 s, then all for the other half.
    let second = 1_000_000_000_000;
    let done = outcome(&[1000], vec![flow, holder, lasts(2 * second, &[1])]);
    assert_eq!(done.task_ends[0].0, 2 * second + second / 2);
}

/// Goal: who enters waits for the kernel that is running, an urgent one for its wave only, and the
/// next kernel for nobody who is in.
#[test]
fn gates_open_between_kernels_and_waves() {
    let occupies =
        |ps, after: &[u32], first, last| TaskSpec { gate: Gate::Occupies { gate: 0, first, last }, ..lasts(ps, after) };
    let enters = |at, urgent| TaskSpec { gate: Gate::Enters { gate: 0, urgent }, at: SimTime(at), ..lasts(7, &[]) };
    let kernels =
        || vec![occupies(10, &[], true, false), occupies(10, &[0], false, true), occupies(10, &[1], true, true)];
    for (at, urgent, starts) in [(3, true, 10), (3, false, 20), (12, true, 20), (0, false, 0), (25, true, 30)] {
        let mut tasks = kernels();
        tasks.push(enters(at, urgent));
        let done = outcome(&[], tasks);
        assert_eq!(done.task_starts[3].0, starts, "at {at}, urgent {urgent}");
        assert_eq!(done.end.0, (starts + 7).max(30), "the kernels go on beside it");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Goal: the event loop gives the longest way through any graph where nothing is shared, and
    /// so one more dependency never makes it shorter.
    #[test]
    fn a_graph_without_sharing_takes_its_longest_way(
        tasks in prop::collection::vec((0_u64..1000, prop::collection::vec((any::<u32>(), 0_u64..50), 0..4)), 1..40),
        extra in (any::<u32>(), any::<u32>()),
    ) {
        let n = u32::try_from(tasks.len()).unwrap();
        let mut specs: Vec<TaskSpec> = (0..).zip(&tasks).map(|(index, (length, before))| TaskSpec {
            lasts: SimDuration(*length),
            after: before.iter().filter(|_| index > 0).map(|&(b, lag)| (b % index.max(1), SimDuration(lag))).collect(),
            ..TaskSpec::default()
        }).collect();
        let longest = |specs: &[TaskSpec]| {
            let mut ends: Vec<u64> = Vec::new();
            for spec in specs {
                let start = spec.after.iter().map(|&(b, lag)| ends[b as usize] + lag.0).max().unwrap_or(0);
                ends.push(start + spec.lasts.0);
            }
            ends
        };
        let before = outcome(&[], specs.clone());
        prop_assert_eq!(ends(&before), longest(&specs));
        if n > 1 {
            let later = 1 + extra.0 % (n - 1);
            specs[later as usize].after.push((extra.1 % later, SimDuration::ZERO));
            let after = outcome(&[], specs.clone());
            prop_assert_eq!(ends(&after), longest(&specs));
            prop_assert!(after.end >= before.end);
        }
    }
}

//! Texts that are read and refused, and the workload that a schedule becomes.

use collcast_sim::workload::{OpGraph, What as Work};
use proptest::prelude::*;

use super::*;

/// A binomial broadcast that Schedgen2 wrote.
const BROADCAST: &str = include_str!("../../tests/data/goal/schedule.goal");

fn graph(text: &str) -> Run {
    read(text, "t.goal").unwrap_or_else(|e| panic!("{e}")).graph().unwrap_or_else(|e| panic!("{e}"))
}

/// `(stream, what, after)` of a rank's operations.
fn ops(graph: &OpGraph, rank: usize) -> Vec<(String, String, Vec<usize>)> {
    let program = &graph.programs[graph.ranks[rank].program];
    let said = |what: &Work| match what {
        Work::Send { bytes, .. } => format!("send {}", bytes.0),
        Work::Recv { bytes, .. } => format!("recv {}", bytes.0),
        Work::Copy { time, .. } => format!("calc {}", time.0),
        other => format!("{other:?}"),
    };
    let ops = program.ops.iter();
    ops.map(|op| (program.streams[op.stream].name.to_string(), said(&op.what), op.after.clone())).collect()
}

/// Goal: LogGOPSim's own sample becomes its messages and their order.
#[test]
fn a_sample_of_the_peers_is_a_workload() {
    assert!(looks_like(BROADCAST) && looks_like("// x\n/* y */ num_ranks 2\n") && !looks_like("HYBRID num_ranks 2"));
    let Run { graph, notes } = graph(BROADCAST);
    assert_eq!((graph.ranks.len(), graph.groups.len()), (8, 7));
    assert_eq!(ops(&graph, 0).len(), 3);
    // Rank 1 forwards what it got.
    let [recv, first, second] = &ops(&graph, 1)[..] else { panic!("{:?}", ops(&graph, 1)) };
    assert_eq!((recv.0.as_str(), recv.1.as_str(), recv.2.len()), ("recv +7", "recv 8", 0));
    assert_eq!((&first.2, &second.2), (&vec![0], &vec![0]));
    assert_eq!(notes, Vec::<String>::new());
}

/// Goal: another of its samples, of 16 ranks and one tag, is a tree of 15 messages.
#[test]
fn a_sample_with_one_tag_is_a_tree() {
    let Run { graph, notes } = graph(include_str!("../../tests/data/goal/binary_tree_16.goal"));
    let sends = |rank| ops(&graph, rank).iter().filter(|op| op.1 == "send 1").count();
    assert_eq!((graph.ranks.len(), (0..16).map(sends).sum::<usize>(), sends(0), sends(1)), (16, 15, 4, 3));
    assert!(notes.is_empty() && ops(&graph, 15)[0].1 == "recv 1", "{notes:?}");
}

/// Goal: an operation of one CPU that is ready later stands later, so that ranks do not wait for each other for ever.
#[test]
fn calculations_stand_in_the_order_in_which_they_are_ready() {
    let text = "num_ranks 2\nrank 0 {\na: calc 5\nr: recv 100000b from 1 tag 1\na requires r\nb: calc 7\ns: send 100000b to 1 tag 2\n\
                s requires b\n}\nrank 1 {\nr: recv 100000b from 0 tag 2\ns: send 100000b to 0 tag 1\ns requires r\n}\n";
    let Run { graph, .. } = graph(text);
    let found = ops(&graph, 0);
    let calcs: Vec<&str> = found.iter().filter(|op| op.0 == "cpu 0").map(|op| op.1.as_str()).collect();
    assert_eq!(calcs, ["calc 7000", "calc 5000"], "{found:?}");
}

/// Goal: starts, eager sends and receives from anyone are what the notes say.
#[test]
fn starts_eager_sends_and_wildcards_are_taken_as_said() {
    let text = "num_ranks 3\nrank 0 {\nc: calc 3\ns: send 8b to 1 tag 4\ns requires c\nd: calc 2 cpu 1\nd requires s\ne: calc 1 cpu 2\n\
                e irequires d\n}\nrank 1 {\nr: recv 8b from -1 tag -1\n}\nrank 2 {\n}\n";
    let Run { graph, notes } = graph(text);
    let found = ops(&graph, 0);
    let of = |cpu: &str| found.iter().find(|op| op.0 == cpu).map(|op| op.2.clone()).unwrap();
    // The send waits for the calculation; what waits for the send or for its waiters' starts does so too.
    assert_eq!((of("cpu 0"), of("cpu 1"), of("cpu 2")), (vec![], vec![0], vec![0]));
    assert_eq!(notes.len(), 3, "{notes:?}");
    assert!(graph.programs[graph.ranks[2].program].ops.is_empty());
}

/// Goal: a receive may have room for more than its message, as with MPI and LogGOPSim: the message's bytes count at both ends.
#[test]
fn receives_may_have_more_room() {
    let text = "num_ranks 2\nrank 0 {\nsend 8b to 1 tag 5\n}\nrank 1 {\nrecv 1000000b from 0 tag 5\n}\n";
    let Run { graph, notes } = graph(text);
    assert_eq!((ops(&graph, 0)[0].1.as_str(), ops(&graph, 1)[0].1.as_str()), ("send 8", "recv 8"));
    assert!(notes[0].contains("1 receives have room for more"), "{notes:?}");
}

/// Goal: what cannot be meant is refused with its line and the way out.
#[test]
fn mistakes_are_refused_with_their_line() {
    for (text, expected) in [
        ("", "no `num_ranks N`"),
        ("rank 0 {\n}\n", "rank 0 of 0"),
        ("num_ranks 0\n", "0 ranks"),
        ("num_ranks 2\nrank 2 {\n}\n", "t:2: rank 2 of 2"),
        ("num_ranks 2\nrank 1 {\n}\nrank 1 {\n}\n", "t:4: rank 1 has two blocks"),
        ("num_ranks 2\nrank 1 {\nsend 5b to 0\n", "ends inside the block of rank 1"),
        ("num_ranks 2\nrank 1 {\nsend 5 to 0\n}\n", "t:3: `to`: expected `b`"),
        ("num_ranks 2\nrank 1 {\nsend 5b from 0\n}\n", "expected `to`"),
        ("num_ranks 2\nrank 1 {\nsend 5b to 1\n}\n", "sends to itself"),
        ("num_ranks 2\nrank 1 {\na: calc 1\na: calc 2\n}\n", "`a` is there twice"),
        ("num_ranks 2\nrank 1 {\na: calc 1\na requires b\n}\n", "t:4: the label `b` is not defined above"),
        ("num_ranks 2\nrank 1 {\na: calc 99999999999999999999\n}\n", "fits 64 bits"),
        ("num_ranks 2\nrank 1 {\na calc 1\n}\n", "expected `:`"),
        ("num_ranks 2\n/* rank", "not closed"),
        ("num_ranks 2\nrank 1 {\nsend 5b to 0 tag -1\n}\n", "expected a tag"),
    ] {
        let error = read(text, "t").unwrap_err().to_string();
        assert!(error.contains(expected), "`{expected}` of {text:?}: {error}");
    }
    for (text, expected) in [
        (
            "num_ranks 2\nrank 0 {\nsend 5b to 1 tag 7\n}\n",
            "1 messages have no receive, such as one of rank 0 to 1 with tag 7",
        ),
        ("num_ranks 2\nrank 0 {\nrecv 5b from 1 tag 7\n}\n", "rank 0 receives from 1 with tag 7, and nothing is sent"),
        ("num_ranks 2\nrank 0 {\nrecv 5b from -1\n}\n", "receives from any rank"),
        (
            "num_ranks 2\nrank 0 {\nsend 9b to 1\n}\nrank 1 {\nrecv 8b from 0\n}\n",
            "rank 1: its operation 0 (from 0) receives 8 bytes, and the message for it, operation 0 of rank 0, has 9",
        ),
        ("num_ranks 2\nrank 0 {\na: calc 1\nb: calc 1\na requires b\nb requires a\n}\n", "waits for itself"),
        // Nothing waits for itself where the other end of a message is missing.
        (
            "num_ranks 2\nrank 1 {\nr: recv 5b from 0 tag 7\na: calc 1\na requires r\n}\n",
            "rank 1 receives from 0 with tag 7, and nothing is sent",
        ),
        (
            "num_ranks 2\nrank 0 {\ns: send 99999b to 1 tag 7\na: calc 1\na requires s\n}\n",
            "1 messages have no receive, such as one of rank 0 to 1 with tag 7",
        ),
        (
            "num_ranks 2\nrank 1 {\nr: recv 5b from -1\na: calc 1\na requires r\n}\n",
            "rank 1 receives from any rank, and nothing is sent",
        ),
        // Two sends, each behind the other's receive.
        (
            "num_ranks 2\nrank 0 {\nr: recv 5b from 1\ns: send 5b to 1\ns requires r\n}\n\
             rank 1 {\nr: recv 5b from 0\ns: send 5b to 0\ns requires r\n}\n",
            "rank 0: its operation 1 (from 0) never starts: it waits for itself",
        ),
    ] {
        let error = read(text, "t").unwrap().graph().unwrap_err().to_string();
        assert!(error.contains(expected), "`{expected}` of {text:?}: {error}");
    }
}

/// Goal: the binary form is that of LogGOPSim's converter, byte by byte. Method: a schedule of two ranks, put together by hand
/// after its source.
#[test]
fn the_binary_form_is_that_of_the_converter() {
    let text = "num_ranks 2\nrank 0 {\na: calc 5 cpu 1\nb: send 7b to 1 tag 3 nic 2\nb requires a\n}\nrank 1 {\nr: recv 7b from 0 tag 3\n}\n";
    let bytes = to_binary(&read(text, "t").unwrap()).unwrap();
    let numbers = |values: &[u32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let part = [
        numbers(&[2, 1, 0]),
        [numbers(&[0]), vec![3], numbers(&[0, 5, 0, 0]), vec![1, 0], numbers(&[1, 0, 0, 1])].concat(),
        [numbers(&[1]), vec![1], numbers(&[1, 7, 0, 3]), vec![0, 2], numbers(&[0, 1, 0, 1])].concat(),
        numbers(&[1]),
    ]
    .concat();
    let other = [numbers(&[1, 1, 0, 0]), vec![2], numbers(&[0, 7, 0, 3]), vec![0, 0], numbers(&[0, 0, 0, 0])].concat();
    let begin = 4 + 2 + 32;
    let table: Vec<u8> = [begin, begin + part.len(), begin + part.len(), begin + part.len() + other.len()]
        .iter()
        .flat_map(|&at| (at as u64).to_le_bytes())
        .collect();
    let head = [4223_u64.to_le_bytes().to_vec(), numbers(&[2]), vec![1, 2]].concat();
    assert_eq!(bytes, [head, table, part, other].concat());
    for (change, expected) in [
        (None, "it ends before byte"),
        (Some((8, 0_u8)), "0 ranks"),
        (Some((8 + begin + 12 + 4, 9)), "is of kind 9"),
        (Some((8 + begin + 12, 1)), "operation 0 of rank 0 waits for 1 others, and 0 say so"),
    ] {
        let mut wrong = bytes.clone();
        match change {
            Some((at, value)) => wrong[at] = value,
            None => wrong.truncate(bytes.len() - 30),
        }
        let error = from_binary(&wrong, "b.bin").unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("b.bin"), "{error}");
    }
}

/// Kind, bytes, peer, tag, CPU, NIC; and what it waits for.
type Drawn = ((u8, u32, u32, u32, u32, u32), u16, u16);

fn any_goal() -> impl Strategy<Value = Goal> {
    let operation = (0_u8..3, any::<u32>(), 0_u32..4, any::<u32>(), 0_u32..3, 0_u32..3);
    let rank = proptest::collection::vec((operation, any::<u16>(), any::<u16>()), 0..8);
    proptest::collection::vec(rank, 4).prop_map(|ranks| {
        let of = |own: usize, list: Vec<Drawn>| {
            let count = list.len() as u16;
            let one = |((kind, bytes, peer, tag, cpu, nic), first, second): Drawn| {
                let peer = if peer as usize == own { (peer + 1) % 4 } else { peer };
                let what = match kind {
                    0 => What::Send { bytes: bytes.into(), to: peer, tag },
                    1 => What::Recv {
                        bytes: bytes.into(),
                        from: (tag % 5 > 0).then_some(peer),
                        tag: (tag % 7 > 0).then_some(tag),
                    },
                    _ => What::Calc(bytes.into()),
                };
                let nic = if kind == 2 { 0 } else { nic };
                let waits = |at: u16| if at.is_multiple_of(3) { vec![] } else { vec![u32::from(at % count)] };
                Operation { what, cpu, nic, requires: waits(first), irequires: waits(second) }
            };
            list.into_iter().map(one).collect()
        };
        Goal { ranks: ranks.into_iter().enumerate().map(|(own, list)| of(own, list)).collect() }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Goal: what is written is read as the same, and no schedule breaks the way to a workload.
    #[test]
    fn a_schedule_survives_the_way_through_text(goal in any_goal()) {
        let text = write(&goal, "a comment\nof two lines");
        prop_assert_eq!(&read(&text, "t").unwrap(), &goal);
        let _ = goal.graph();
    }

    /// Goal: the same through the binary form, where dependencies have no order; cut or changed bytes are refused or read.
    #[test]
    fn a_schedule_survives_the_binary_form(goal in any_goal(), at in any::<u16>(), bits in any::<u8>()) {
        let bytes = to_binary(&goal).unwrap();
        prop_assert!(is_binary(&bytes));
        let mut sorted = from_binary(&bytes, "b").unwrap();
        let mut expected = goal;
        for operation in sorted.ranks.iter_mut().chain(&mut expected.ranks).flatten() {
            operation.requires.sort_unstable();
            operation.irequires.sort_unstable();
        }
        prop_assert_eq!(&sorted, &expected);
        let at = usize::from(at) % bytes.len();
        // What nothing points at is not missed.
        if at + 200 < bytes.len() || at < 80 {
            prop_assert!(from_binary(&bytes[..at], "b").is_err());
        }
        let mut changed = bytes;
        changed[at] ^= bits;
        if let Ok(goal) = from_binary(&changed, "b") {
            let _ = goal.graph();
        }
    }

    /// Goal: no bytes panic or hang. Method: a sample cut, flipped and mixed with words of the format.
    #[test]
    fn no_mutated_text_panics(
        edits in proptest::collection::vec((any::<u16>(), 0_usize..30, prop_oneof![
            "[ -~\n]{0,5}", Just(" requires ".to_owned()), Just("irequires l1\n".to_owned()), Just("num_ranks 9".to_owned()),
            Just("l7: calc 18446744073709551615\n".to_owned()), Just(" from -1 tag -1".to_owned()), Just("/*".to_owned()),
        ]), 1..6),
        cut in any::<u16>(),
    ) {
        let mut bytes = BROADCAST.as_bytes().to_vec();
        for (at, length, text) in edits {
            let start = usize::from(at) % (bytes.len() + 1);
            let end = (start + length).min(bytes.len());
            bytes.splice(start..end, text.bytes());
        }
        bytes.truncate(usize::from(cut) % (2 * bytes.len()) + 1);
        if let Ok(text) = std::str::from_utf8(&bytes) && let Ok(goal) = read(text, "t") {
            let _ = goal.graph();
        }
    }
}

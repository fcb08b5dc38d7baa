//! SimAI's own examples as steps, what is refused, and that no bytes break the reader.

use collcast_sim::collective::Collective;
use collcast_sim::workload::{OpGraph, What};
use proptest::prelude::*;

use super::*;

/// One layer of eight tensor parallel ranks.
const MICRO: &str = include_str!("../../tests/data/simai/microAllReduce.txt");
/// A model with experts on 32 GPUs.
const EXPERTS: &str = include_str!("../../tests/data/simai/workload_ep_test.txt");

fn run(text: &str) -> Run {
    read(text, "t.txt", None).unwrap_or_else(|e| panic!("{e}")).graph(0)
}

/// Goal: the smallest example is one call of 512 MiB after a computation of 556 us.
#[test]
fn one_layer_is_a_computation_and_a_call() {
    assert!(looks_like(MICRO) && looks_like(EXPERTS) && !looks_like("num_ranks 4"));
    // A header tells a workload without a policy, or with one of another program.
    assert!(
        ["", "PIPELINE "].iter().all(|policy| looks_like(&format!("{policy}model_parallel_NPU_group: 8 all_gpus: 8")))
    );
    let Run { graph, notes } = run(MICRO);
    assert_eq!((graph.ranks.len(), graph.groups.len(), graph.programs.len()), (8, 1, 1));
    let ops = &graph.programs[0].ops;
    let What::Compute(first) = &ops[0].what else { panic!() };
    assert_eq!(first.time.0, 556_000_000);
    let What::Collective(call) = &ops[1].what else { panic!() };
    assert_eq!((call.collective, call.bytes.0), (Collective::AllReduce, 512 << 20));
    assert_eq!(ops[2].after, [1], "the backward pass waits for the call");
    assert_eq!(notes, Vec::<String>::new());
}

/// Goal: data parallel calls beside tensor parallel ones are those of SimAI's example; workloads of ASTRA-sim 1 take the
/// machine's GPUs, and a policy that is not run is refused by name.
#[test]
fn further_examples_of_the_peers_are_workloads() {
    let Run { graph, .. } = run(include_str!("../../tests/data/simai/microAllReduce_dp.txt"));
    let calls = |graph: &OpGraph| {
        let of = |what: &What| match what {
            What::Collective(call) => Some((call.collective, call.bytes.0 >> 20, call.group)),
            _ => None,
        };
        graph.programs[0].ops.iter().filter_map(|op| of(&op.what)).collect::<Vec<_>>()
    };
    let reduce = |mebibytes, group| (Collective::AllReduce, mebibytes, group);
    assert_eq!(calls(&graph), [reduce(16, 0), reduce(16, 0), reduce(128, 1), reduce(64, 1)]);
    let micro = include_str!("../../tests/data/astra/microAllReduce.txt");
    assert!(looks_like(micro) && read(micro, "t", None).unwrap_err().to_string().contains("no `all_gpus`"));
    let workload = read(micro, "t", Some(16)).unwrap();
    assert!(workload.gpus == 16 && workload.notes[0].contains("the 16 GPUs of the machine"), "{:?}", workload.notes);
    assert_eq!(calls(&workload.graph(0).graph), [reduce(1, 0)]);
    let transformer = include_str!("../../tests/data/astra/Transformer_HybridParallel_Fwd_In_Bckwd.txt");
    let workload = read(transformer, "t", Some(16)).unwrap();
    assert_eq!((workload.tensor, workload.layers.len(), &workload.checkpoints[..]), (4, 21, &[2, 11][..]));
    // Those of the file, and those that checkpoints repeat.
    let found = calls(&workload.graph(0).graph);
    let told = |column: usize| {
        let lines = transformer.lines().skip(2);
        lines.filter(|line| line.split_whitespace().nth(column) == Some("ALLREDUCE")).count()
    };
    assert!(found.len() >= told(3) + told(6) + told(9), "{found:?}");
    let custom = include_str!("../../tests/data/astra/sample_per_layer_parallel_HybridCustomized.txt");
    let error = read(custom, "t", Some(16)).unwrap_err().to_string();
    assert!(looks_like(custom) && error.contains("the policy HYBRID_CUSTOMIZED is not run"), "{error}");
}

/// Goal: groups of an example with experts are those that its header says.
#[test]
fn groups_follow_from_the_header() {
    let workload = read(EXPERTS, "t.txt", None).unwrap();
    assert_eq!((workload.gpus, workload.tensor, workload.expert, workload.layers.len()), (32, 4, 4, 43));
    let Run { graph, .. } = workload.graph(0);
    let spec = &graph.ranks[13];
    let groups: Vec<Vec<u32>> =
        spec.groups.iter().map(|&group| graph.groups[group].iter().map(|rank| rank.0).collect()).collect();
    assert_eq!(
        groups,
        [vec![12, 13, 14, 15], vec![1, 5, 9, 13, 17, 21, 25, 29], vec![1, 5, 9, 13], vec![13, 29]],
        "tensor, data, experts, data of experts"
    );
    let calls = graph.programs[0].ops.iter().filter(|op| matches!(op.what, What::Collective(_))).count();
    let told = EXPERTS.split_whitespace().collect::<Vec<_>>();
    let none =
        told.windows(2).filter(|w| w[0].starts_with("ALL") || w[0].starts_with("RED")).filter(|w| w[1] != "0").count();
    assert_eq!(calls, none, "a call for each of the file that has bytes");
}

/// Goal: checkpoints repeat the forward pass from the one before, without the layer that begins to recompute, as in SimAI.
#[test]
fn checkpoints_repeat_the_forward_pass() {
    let head = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 1 pp: 1 vpp: 1 ga: 1 all_gpus: 2";
    let layers = "a -1 10 NONE 0 20 NONE 0 30 NONE 0 0\n".repeat(3);
    let plain = run(&format!("{head} checkpoints: 0 checkpoint_initiates: 0\n3\n{layers}"));
    let again = run(&format!("{head} checkpoints: 1 0 checkpoint_initiates: 1 2\n3\n{layers}"));
    let itself = run(&format!("{head} checkpoints: 1 2 checkpoint_initiates: 1 2\n3\n{layers}"));
    let count = |run: &Run, kind: &str| run.graph.programs[0].ops.iter().filter(|op| &*op.label == kind).count();
    assert_eq!([&plain, &again, &itself].map(|run| count(run, "forward")), [3, 5, 4]);
    assert_eq!((count(&plain, "input gradient"), count(&again, "input gradient")), (3, 3));
}

/// Goal: the bubble of a pipeline, which the file's layers do not have, is said to be left out.
#[test]
fn bubbles_are_left_out_aloud() {
    let layer = "1\na -1 10 NONE 0 20 NONE 0 30 NONE 0 0\n";
    let notes = |head: &str| read(&format!("HYBRID_TRANSFORMER {head}\n{layer}"), "t", None).unwrap().notes.join("; ");
    let staged = notes("model_parallel_NPU_group: 2 pp: 4 vpp: 1 ga: 8 all_gpus: 8");
    assert!(staged.contains("the bubble of 4 stages is left out: SimAI adds 3/8"), "{staged}");
    assert_eq!(notes("model_parallel_NPU_group: 2 pp: 1 vpp: 1 ga: 8 all_gpus: 8"), "");
}

/// Goal: what is not run is named, with its line and the way out.
#[test]
fn mistakes_are_refused_with_their_line() {
    let head = "HYBRID_TRANSFORMER model_parallel_NPU_group: 2 all_gpus: 4";
    for (text, expected) in [
        (String::new(), "t:1: the file is empty"),
        ("DATA\n1\n".to_owned(), "the policy DATA is not run"),
        ("DATUM\n1\n".to_owned(), "`DATUM` is no policy"),
        ("HYBRID_TRANSFORMER all_gpus: 4\n1\n".to_owned(), "no `model_parallel_NPU_group`"),
        ("HYBRID_TRANSFORMER model_parallel_NPU_group: 3 all_gpus: 4\n1\n".to_owned(), "4 GPUs are no multiple of 3"),
        (format!("{head} ep: 5\n1\n"), "2 data parallel ranks are no multiple of 5"),
        (format!("{head} tp: 5\n1\n"), "`tp` is no key"),
        (format!("{head} ga: 2 ga: 5\n1\n"), "`ga` is twice"),
        (format!("{head} ga: 0\n1\n"), "`ga` is 0: 1 to"),
        (format!("{head}\nx\n"), "t:2: `x` is no number of layers"),
        (format!("{head}\n2\na -1 1 NONE 0 1 NONE 0 1 NONE 0 1\n"), "2 layers, but 1 follow"),
        (format!("{head}\n1\na -1 1 NONE 0 1 NONE 0 1 NONE 0\n"), "t:3: a layer has 12 columns, this line 11"),
        (format!("{head}\n1\na -1 x NONE 0 1 NONE 0 1 NONE 0 1\n"), "column 3 is `x`"),
        (format!("{head}\n1\na -1 1 SUM 4 1 NONE 0 1 NONE 0 1\n"), "`SUM` is no communication"),
        (format!("{head}\n1\na -1 1 ALLREDUCEALLTOALL 4 1 NONE 0 1 NONE 0 1\n"), "write it so"),
        (format!("{head} checkpoints: 1 7\n1\na -1 1 NONE 0 1 NONE 0 1 NONE 0 1\n"), "a checkpoint is layer 7"),
        (
            format!("{head} checkpoint_initiates: 1 0\n1\na -1 1 NONE 0 1 NONE 0 1 NONE 0 1\n"),
            "no checkpoint is at or before",
        ),
    ] {
        let error = read(&text, "t", None).unwrap_err().to_string();
        assert!(error.contains(expected), "`{expected}` of {text:?}: {error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Goal: no bytes panic, and what is read can be run. Method: examples cut, flipped and with words replaced.
    #[test]
    fn no_mutated_file_panics(
        large in any::<bool>(),
        edits in proptest::collection::vec((any::<u16>(), 0_usize..20, "[ -~\n\t]{0,6}"), 1..6),
        cut in any::<u16>(),
    ) {
        let mut bytes = if large { EXPERTS } else { MICRO }.as_bytes().to_vec();
        for (at, length, text) in edits {
            let start = usize::from(at) % (bytes.len() + 1);
            let end = (start + length).min(bytes.len());
            bytes.splice(start..end, text.bytes());
        }
        bytes.truncate(usize::from(cut) % (2 * bytes.len()) + 1);
        if let Ok(text) = std::str::from_utf8(&bytes) && let Ok(workload) = read(text, "t", None) {
            let Run { graph, .. } = workload.graph(0);
            prop_assert_eq!(graph.ranks.len(), workload.gpus as usize);
        }
    }
}

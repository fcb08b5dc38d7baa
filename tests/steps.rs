//! Goal: what a step's answer advises can be had, and is worth what it says; variants are compared where that means something.

use crate::common::collcast;
use serde_json::Value;

/// A scenario of layers with 20 M parameters, and more text after them.
fn scenario(machine: &str, rest: &str) -> (tempfile::TempDir, String) {
    let text = format!(
        "schema = \"collcast/scenario/1\"\nname = \"layers\"\n[machine]\n{machine}\n[[layers]]\nname = \"layer\"\ncount = 8\n\
         forward = \"2 ms\"\nbackward = \"4 ms\"\nkernels = 12\nparameters = [20000000]\n{rest}"
    );
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("step.toml");
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (dir, path)
}

fn answer(args: &[&str]) -> (Value, String) {
    let (code, out, err) = collcast(&[&["simulate"], args, &["--format", "json"]].concat());
    assert_eq!(code, 0, "{args:?}: {err}");
    (serde_json::from_str(&out).unwrap(), err)
}

/// The change of a name in the advice of an answer.
fn advised<'a>(answer: &'a Value, change: &str) -> Option<&'a Value> {
    answer["advice"].as_array().unwrap().iter().find(|row| row["change"] == change)
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap()
}

const TWO_HOSTS: &str =
    "topology = \"dgx-h100\"\nnodes = 2\n[layout]\ntensor = 8\ndata = 2\n[data_parallel]\nkind = \"at_end\"\n";

/// Goal: a faster network is one whose NICs, PCIe and switches are faster. Method: PCIe carries less than a NIC here (48 of
/// 50 GB/s), so that NICs alone would gain nothing; each GPU's all-reduce of 320 MB at the end is some 7 of 55 ms.
#[test]
fn a_faster_network_is_all_of_it() {
    let (_dir, path) = scenario(TWO_HOSTS, "");
    let (answer, _) = answer(&[&path]);
    let network = advised(&answer, "network twice as fast: NICs, PCIe and switches").unwrap();
    assert!(number(network, "gain") > 3.0, "{network}");
    assert!(advised(&answer, "NVLink twice as fast").is_some(), "{}", answer["advice"]);
}

/// Goal: what would help is tried with the tuner that the machine has. Method: its table has two channels for every call, which
/// bound it, whatever NVLink does.
#[test]
fn advice_asks_the_tuner() {
    let dir = tempfile::tempdir().unwrap();
    let table = dir.path().join("tuner.csv");
    std::fs::write(&table, "allreduce,0,8589934592,ring,simple,2,-1,-1,-1,-1\n").unwrap();
    let variable = format!("NCCL_TUNER_CONFIG_FILE={}", table.display());
    let example = "NCCL_TUNER_PLUGIN=libnccl-tuner-example.so";
    let (answer, _) = answer(&["gpt-ddp", "--env", &variable, "--env", example]);
    let links = advised(&answer, "NVLink twice as fast").unwrap();
    assert!(number(links, "gain").abs() < 2.0, "{links}");
}

/// Goal: advice says what memory it takes, and what no GPU has is none. Method: eight units of 40 MB, of which two are held
/// at once, or of 28 GB on a GPU of 141 GB.
#[test]
fn advice_fits_into_memory() {
    let keep = "keep parameters after the forward pass";
    let machine = "topology = \"h200x4\"\n[layout]\ndata = 4\n[data_parallel]\nkind = \"fsdp\"\n";
    let (_dir, path) = scenario(machine, "");
    let (small, _) = answer(&[&path]);
    let kept = advised(&small, keep).unwrap();
    assert!((number(kept, "memory_gib") - 0.24 / 1.073_741_824).abs() < 0.051, "{kept}");
    let (_dir, path) = scenario(machine, "");
    std::fs::write(&path, std::fs::read_to_string(&path).unwrap().replace("20000000", "14000000000")).unwrap();
    let (large, said) = answer(&[&path]);
    assert!(advised(&large, keep).is_none(), "{}", large["advice"]);
    assert!(said.contains("data_parallel.reshard=false is no advice: it keeps 156.5 GiB more on a GPU of"), "{said}");
}

/// Goal: what a slow rank costs is a part of the step and an advice, and no computation of the others.
#[test]
fn stragglers_are_a_part_of_their_own() {
    let machine = "topology = \"h200x4\"\n[layout]\ndata = 4\n[data_parallel]\nkind = \"at_end\"\n";
    let (_dir, path) = scenario(machine, "[[stragglers]]\nrank = 1\nslow = 1.5\n");
    let (answer, said) = answer(&[&path]);
    let row = &answer["rows"][0];
    assert!((number(row, "straggler_ms") - 24.0).abs() < 1e-6 && number(row, "bubble_ms").abs() < 1e-6, "{row}");
    let parts: f64 = answer["parts"].as_array().unwrap().iter().map(|part| number(part, "time_ms")).sum();
    assert!((parts - number(row, "step_ms")).abs() < 1e-3, "{}", answer["parts"]);
    let even = advised(&answer, "no stragglers").unwrap();
    assert!((number(row, "step_ms") - number(even, "step_ms") - 24.0).abs() < 0.1, "{even}");
    assert!(said.contains("Next: no stragglers: rank 1 at the pace of the others would save"), "{said}");
}

/// Goal: one variant that is not possible does not hide the others, and equal ones are not ranked.
#[test]
fn variants_go_on_past_a_bad_one() {
    let vary = "communication.algorithm=auto,ring,nvls_tree";
    let (answer, said) = answer(&["gpt-ddp", "--vary", vary]);
    assert_eq!(answer["rows"].as_array().unwrap().len(), 2);
    assert!(
        said.contains("not possible: communication.algorithm=nvls_tree: nvls_tree needs at least 2 hosts"),
        "{said}"
    );
    assert!(said.contains("no difference: each of 2 variants takes"), "{said}");
    let (code, _, said) = collcast(&["simulate", "gpt-ddp", "--vary", "communication.algorithm=nvls_tree,pat"]);
    assert!(code == 2 && said.contains("nvls_tree needs at least 2 hosts"), "{said}");
}

/// Goal: layers that were timed on one kind of GPU say nothing of another, alone or beside it.
#[test]
fn steps_on_other_gpus_are_not_ranked() {
    for (machines, ranked) in [("h200x4,dgx-b200", false), ("dgx-a100", false), ("h200x4,dgx-h200", true)] {
        let (_, said) = answer(&["gpt-ddp", "--vary", &format!("machine.topology={machines}")]);
        let warned = said.contains("layers take what the scenario says for H200-SXM5-141GB");
        assert!(warned != ranked && said.contains("fastest of") == ranked, "{machines}: {said}");
        assert_eq!(said.contains("low: computations take what they took on another kind of GPU"), !ranked, "{said}");
    }
}

/// Goal: in a CUDA graph the host launches nothing; a thread for all ranks is none of theirs.
#[test]
fn a_graph_has_no_launches_of_the_host() {
    let machine = "topology = \"h200x4\"\n[layout]\ndata = 4\n[data_parallel]\nkind = \"fsdp\"\n";
    let (_dir, path) = scenario(machine, "");
    // Layers so short that the host is behind.
    let short = std::fs::read_to_string(&path).unwrap().replace("2 ms", "20 us").replace("4 ms", "40 us");
    std::fs::write(&path, short.replace("20000000", "100000")).unwrap();
    let step = |more: &[&str]| answer(&[&[path.as_str()][..], more].concat()).0;
    let launched = step(&[]);
    let graph = step(&["--launch", "graph"]);
    let ms = |answer: &Value, key: &str| number(&answer["rows"][0], key);
    assert!(ms(&graph, "launch_ms") < ms(&launched, "launch_ms"), "{} {}", graph["rows"], launched["rows"]);
    assert!(ms(&graph, "step_ms") < ms(&launched, "step_ms"));
    assert!(graph["assumptions"].to_string().contains("the host launches nothing in it"));
    let (code, _, said) = collcast(&["simulate", &path, "--launch", "single_thread"]);
    assert!(code == 2 && said.contains("processes or threads of their own") && said.contains("hint: "), "{said}");
}

/// Goal: kernels that were recorded on one kind of GPU are said to be none of another's.
#[test]
fn recorded_kernels_are_of_their_gpu() {
    let traces = ["tests/data/trace/fsdp_0.json.gz", "tests/data/trace/fsdp_1.json.gz"];
    for (machine, other) in [("dgx-h100", false), ("h200x4", true), ("dgx-a100", true)] {
        let (code, _, said) = collcast(&[&["trace"], &traces[..], &["--on", machine, "--gpus", "2"]].concat());
        assert_eq!(code, 0, "{said}");
        assert_eq!(said.contains("only calls are those of this machine"), other, "{machine}: {said}");
        assert_eq!(said.contains("low: computations take what they took on another kind of GPU"), other, "{said}");
    }
}

/// Goal: of several communicators at once one of them is explained, and trusted, and not as many ranks of one host.
/// Method: groups of one GPU of each of eight hosts; ranks of one host have NVLink.
#[test]
fn a_communicator_of_a_split_is_explained() {
    let call = ["dgx-h100", "--nodes", "8", "-c", "all_reduce", "-s", "800M", "--explain-choice"];
    let (split, said) = answer(&[&call[..], &["--split", "%8"]].concat());
    let (choice, row) = (&split["choices"][0], &split["rows"][0]);
    for key in ["algorithm", "protocol"] {
        assert_eq!(choice[key], row[key], "{choice} {row}");
    }
    assert!(choice["nodes"] == 8 && said.contains("between hosts"), "{choice} {said}");
    // A ring over hosts: NCCL reckons with the NIC's rate, and not with the rates of NVLink.
    let costs = split["cost_table"].as_array().unwrap();
    let ring = costs.iter().find(|row| row["algorithm"] == "ring" && row["protocol"] == "simple").unwrap();
    assert!(number(ring, "bandwidth_gbps") < 60.0, "{ring}");
}

/// Goal: a step waits for the slowest of its groups, whichever leaf has lost its links; and calls beside each other share NICs
/// however many hosts they span.
#[test]
fn groups_that_share_a_way_slow_each_other() {
    let step = |machine: &str, nodes: u32, tensor: u32, data: u32| {
        let machine = format!(
            "topology = {machine:?}\nnodes = {nodes}\n[layout]\ntensor = {tensor}\ndata = {data}\n[data_parallel]\nkind = \"at_end\"\n"
        );
        let (_folder, path) = scenario(&machine, "");
        number(&answer(&[&path, "--level", "flows"]).0["rows"][0], "step_ms")
    };
    let folder = tempfile::tempdir().unwrap();
    let without = |leaf: Option<u32>| {
        let mut text = "schema = \"collcast/topology/1\"\n[[hosts]]\nlike = \"dgx-h100\"\ncount = 4\n[fabric]\nkind = \"fat-tree\"\n\
            hosts_per_unit = 1\nleaf = { rate = \"400 Gb/s\", down = 8, up = 8 }\n"
            .to_owned();
        for uplink in leaf.iter().flat_map(|_| 1..8) {
            let leaf = leaf.unwrap_or(0);
            text += &format!("[[exceptions]]\nswitch = \"leaf{leaf}\"\nuplink = {uplink}\nstate = \"down\"\n");
        }
        let path = folder.path().join("machine.toml");
        std::fs::write(&path, text).unwrap();
        step(path.to_str().unwrap(), 4, 16, 2)
    };
    let [healthy, first, last] = [None, Some(0), Some(3)].map(without);
    assert!((first / last - 1.0).abs() < 1e-6 && last > 1.5 * healthy, "{healthy} {first} {last}");
    let [fewer, more] = [128, 129].map(|hosts| step("h200x4", hosts, 4, hosts));
    assert!(more > 0.999 * fewer, "{more} ms on 129 hosts, {fewer} ms on 128");
}

/// Goal: groups that run the same calls on the same NICs slow each other by as much whether or not all ranks are in step.
/// Method: eight tensor-parallel or data-parallel groups a host; a rank that is 1 ns late, jitter of 0.01%, and a rank that is 10% slow, the last
/// beside the step slice by slice. Without their siblings calls on abci-a100 took 32% less time, as their memory was shared no more.
#[test]
fn a_rank_out_of_step_leaves_its_siblings() {
    for (machine, layout) in [("abci-a100", "tensor = 2\ndata = 8"), ("gcp-a3", "tensor = 8\ndata = 2")] {
        let machine = format!("topology = \"{machine}\"\nnodes = 2\n[layout]\n{layout}\n");
        let machine = machine + "[data_parallel]\nkind = \"ddp\"\nbucket = \"100 MiB\"\ncopies = false";
        let ms = |rest: &str, level: &str| {
            let (_dir, path) = scenario(&machine, &format!("sum = \"40 MiB\"\n{rest}"));
            let (answer, _) = answer(&[&path, "--level", level]);
            number(&answer["rows"][0], "step_ms")
        };
        let calm = ms("", "flows");
        for rest in ["[[stragglers]]\nrank = 3\nlate = \"1 ns\"\n", "[jitter]\nrelative = 0.0001\n"] {
            let disturbed = ms(rest, "flows");
            assert!((disturbed / calm - 1.0).abs() < 2e-3, "{machine} {rest}: {disturbed} beside {calm}");
        }
        let slow = "[[stragglers]]\nrank = 3\nslow = 1.1\n";
        let [flows, slices] = ["flows", "slices"].map(|level| ms(slow, level));
        assert!((flows / slices - 1.0).abs() < 0.05, "{machine}: {flows} as flows, {slices} as slices");
    }
}

/// Goal: variants with jitter are compared by their medians, which have their range, and 0 is what they are compared with.
#[test]
fn variants_keep_their_jitter() {
    let machine = "topology = \"h200x4\"\n[layout]\ndata = 4\n[data_parallel]\nkind = \"at_end\"\n";
    let (_dir, path) = scenario(machine, "");
    let (answer, said) = answer(&[&path, "--vary", "jitter.relative=0,0.1"]);
    let [calm, shaken] = [0, 1].map(|row| {
        let row = &answer["rows"][row];
        ["step_ms", "low_ms", "median_ms", "high_ms"].map(|key| number(row, key))
    });
    assert!(calm.iter().all(|time| (time / calm[0] - 1.0).abs() < 2e-3), "{calm:?}");
    let [step, low, median, high] = shaken;
    assert!(step == calm[0] && step < low && low < median && median < high, "{shaken:?}");
    assert!(said.contains("fastest of 2 at the median of its jitter: jitter.relative=0,"), "{said}");
}

/// Goal: variants, and what would help, are simulated at one level, which the answer names. Method: all-reduces of a bucket size
/// each, of which the small ones are too many slices; and a small pipeline, whose copy engines have no slices.
#[test]
fn all_of_an_answer_is_at_one_level() {
    let machine = "topology = \"h200x4\"\n[layout]\ndata = 4\n[data_parallel]\nkind = \"ddp\"\n";
    let (_dir, path) = scenario(machine, "");
    let tensors = format!("parameters = [{}]", ["2400000"; 8].join(", "));
    let text = std::fs::read_to_string(&path).unwrap().replace("parameters = [20000000]", &tensors);
    std::fs::write(&path, text.replace("count = 8", "count = 20")).unwrap();
    let steps = |level: &str, buckets: &str| -> Vec<f64> {
        let buckets = format!("data_parallel.bucket={buckets}");
        let (answer, _) = answer(&[&path, "--vary", &buckets, "--level", level]);
        answer["rows"].as_array().unwrap().iter().map(|row| number(row, "step_ms")).collect()
    };
    let (mixed, large) = ("5 MiB,200 MiB", "100 MiB,200 MiB");
    assert_eq!(steps("auto", mixed), steps("flows", mixed));
    assert_eq!(steps("auto", large), steps("slices", large));
    assert_ne!(steps("flows", large), steps("slices", large));
    let (at_once, said) = answer(&["gpt-pipeline"]);
    let copies = "sends by copy engines (no SM)";
    assert!(advised(&at_once, copies).is_none() && said.contains("--level flows tries them"), "{said}");
    assert!(advised(&answer(&["gpt-pipeline", "--level", "flows"]).0, copies).is_some());
}

/// Goal: `link` of a straggler slows the NICs that NCCL takes for its GPU, and is worth a line of its own. Method: of the eight
/// GPUs of a p4d each two share one of four NICs, whatever their numbers; where both are slow, their NIC is as slow as for one.
#[test]
fn slow_links_are_those_of_the_rank() {
    let machine = "topology = \"aws-p4d\"\nnodes = 2\n[layout]\ndata = 16\n[data_parallel]\nkind = \"at_end\"\n";
    let of = |ranks: &[u32]| {
        let slow: String = ranks.iter().map(|rank| format!("[[stragglers]]\nrank = {rank}\nlink = 0.5\n")).collect();
        let (_dir, path) = scenario(machine, &slow);
        answer(&[&path]).0
    };
    let ms = |answer: &Value| number(&answer["rows"][0], "step_ms");
    let even = ms(&of(&[]));
    let slow = [0, 1, 4, 7].map(|rank| ms(&of(&[rank])));
    assert!(slow.iter().all(|one| *one > 1.1 * even && (one / slow[0] - 1.0).abs() < 0.05), "{even} {slow:?}");
    let both = of(&[0, 1]);
    assert!((ms(&both) / slow[0] - 1.0).abs() < 0.05, "{} {slow:?}", ms(&both));
    // Without them the step is as long as it was.
    let without = both["disturbed"].as_array().unwrap().iter().find(|row| row["case"] == "without stragglers").unwrap();
    assert!((number(without, "step_ms") - even).abs() < 1e-3, "{without} {even}");
    let advice = advised(&both, "no stragglers").unwrap();
    assert!((number(advice, "step_ms") - even).abs() < 1e-3, "{advice} {even}");
}

/// Goal: a rank has one entry of stragglers, in which all of it is; a second one is refused, and not passed over.
#[test]
fn a_straggler_is_named_once() {
    let machine = "topology = \"h200x4\"\n[layout]\ndata = 4\n[data_parallel]\nkind = \"at_end\"\n";
    let (_dir, path) =
        scenario(machine, "[[stragglers]]\nrank = 1\nslow = 1.5\n[[stragglers]]\nrank = 1\nlate = \"2 ms\"\n");
    let (code, _, err) = collcast(&["simulate", &path]);
    assert!(code == 2 && err.contains("rank 1 is in two [[stragglers]]"), "{err}");
}

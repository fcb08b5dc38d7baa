//! Goal: what a user meets at the command line: output on stdout, notes and one verdict on
//! stderr, exit codes of the contract, and refusals that say what, where and the way out.

use std::collections::BTreeSet;
use std::io::Write;

use crate::common::collcast;
use collcast_sim::schedule::msccl::plan::Plan;

fn file(name: &str, content: &[u8]) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::File::create(&path).unwrap().write_all(content).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (dir, path)
}

fn check_refused(args: &[&str], expected: &[&str]) {
    let (code, out, err) = collcast(args);
    assert_eq!(code, 2, "{args:?}: {err}");
    assert_eq!(out, "", "{args:?} printed data");
    assert!(!err.contains("panicked"), "{args:?}: {err}");
    for part in expected {
        assert!(err.contains(part), "{args:?}: `{part}` is missing in:\n{err}");
    }
}

/// Goal: whatever the command, the verdict names the reasons for doubt that hold and no other, and the first lines say
/// where a machine names no profile.
#[test]
fn doubt_is_named() {
    let cited = "medium: no measurement is behind profile prior; forecasts of unseen runs on all machines of this kind (5 runs, NVLink inside one host) were";
    let pcie = "low: no measurement is behind profile prior; forecasts of unseen runs on all machines of this kind (3 runs, PCIe, staging in host memory or TCP) were";
    let own = "forecasts of rows that the fit had not seen were";
    let none = "nothing measured; values from publications, data sheets and NCCL's own tuning constants; ";
    let elsewhere = "low: the profile was measured on H200, not H100-SXM5-80GB; the profile was measured over 2 to 4 \
                     ranks, not 8; forecasts of unseen runs on all machines of this kind (5 runs";
    let squares = ["(root mean square over publishers)", "off at large sizes, root mean square over publishers;"];
    for (args, expected) in [
        ("simulate dgx-h100 -s 1M", [none, cited]),
        ("simulate dgx-h100 --group 64K*2", [none, cited]),
        (
            "simulate dgx-h100 --nodes 2 -s 1G",
            [
                "profile hopper-ib-published is taken for such machines: 7 runs of 5 publishers that it had not seen",
                "(confidence: high: forecasts of unseen runs on all machines of this kind (11 runs, InfiniBand or RoCE",
            ],
        ),
        (
            "simulate dgx-h200 --profile prior -s 1M",
            ["profile prior: nothing measured; values from publications", cited],
        ),
        (
            "simulate dgx-h200 -s 1M",
            [
                "profile h200-nvswitch",
                "medium: the profile was measured over 2 to 4 ranks, not 8; forecasts of unseen runs on all machines of this kind (5 runs",
            ],
        ),
        ("simulate dgx-h100 --gpus 4 -s 1M --algorithm ring", ["profile h100-nvswitch", own]),
        ("simulate dgx-h100 --nodes 2 -s 2G", squares),
        ("sweep pcie-box -s 1M,2M", [none, pcie]),
        ("tune pcie-box -s 1M", [none, pcie]),
        ("simulate h200x4 -s 1M", ["profile h200-nvswitch", own]),
        ("simulate ddp-buckets", ["profile h200-nvswitch", "was measured on H200 alone; basis: measured constants"]),
        ("sweep dgx-h100 --profile h200-nvswitch -s 1M --algorithm ring", ["EXTRAPOLATED", elsewhere]),
        (
            "simulate dgx-h200 --gpus 4 -s 1M --algorithm nvls",
            [
                "EXTRAPOLATED",
                "low: no row of nvls/simple was measured; constants of switches are cited, not measured; forecasts of",
            ],
        ),
    ] {
        let (code, out, err) = collcast(&args.split(' ').collect::<Vec<_>>());
        assert_eq!(code, 0, "{args}: {err}");
        for part in expected {
            assert!(out.contains(part) || err.contains(part), "{args}: `{part}` is missing in:\n{out}\n{err}");
        }
    }
}

#[test]
fn bad_usage_is_refused_with_a_way_out() {
    for (args, expected) in [
        (&["sweep", "dgx-h10"][..], &["dgx-h100"][..]),
        (&["sweep", "-c", "al_reduce"], &["did you mean `all_reduce`"]),
        (&["sweep", "--algorithm", "rign"], &["did you mean `ring`"]),
        (&["sweep", "--protocol", "ll129"], &["did you mean `ll128`"]),
        (&["sweep", "-s", "64Q"], &["64Q", "64K"]),
        (&["sweep", "-s", "99999999999G"], &["too large"]),
        (&["sweep", "-s", "8:4:2"], &["range", "empty"]),
        (&["sweep", "-e", "1K"], &["without -b sizes begin at 32M", "-b 8 -e 1K"]),
        (&["sweep", "-s", "8:4G:1"], &["factor"]),
        (&["sweep", "-s", "0:4G:2"], &["empty"]),
        (&["sweep", "--channels", "65"], &["1 to 64"]),
        (&["sweep", "--channels", "0"], &["1 to 64"]),
        (&["sweep", "--launch", "thread"], &["did you mean `threads`"]),
        (&["sweep", "--dtype", "float33"], &["float32"]),
        (&["sweep", "--ranks", "9"], &["9 ranks", "8 GPUs", "--nodes"]),
        (&["sweep", "--ranks", "0"], &["1 to", "not 0"]),
        (&["sweep", "-c", "broadcast", "--root", "8"], &["root 8"]),
        (&["sweep", "-c", "all_gather", "--algorithm", "tree"], &["tree does not do all_gather", "ring"]),
        (&["sweep", "dgx-a100", "--algorithm", "nvls"], &["`dgx-a100`", "compute capability 80", "use ring or tree"]),
        (&["sweep", "h200x4", "--algorithm", "nvls"], &["driver offers no NVLink multicast"]),
        (&["sweep", "aws-p5", "--nodes", "2", "--algorithm", "collnet_chain"], &["`aws-p5`", "no SHARP"]),
        (&["sweep", "--algorithm", "collnet_direct"], &["at least 2 hosts"]),
        (&["sweep", "-c", "send_recv", "--in-place"], &["in-place"]),
        (&["sweep", "--schedule", "nowhere.xml"], &["read the schedule", "nowhere.xml"]),
        (&["sweep", "--schedule", "sim/tests/data/pairs2.xml"], &["pairs2.xml:1", "--in-place"]),
        (&["sweep", "--schedule", "a.xml", "--algorithm", "ring"], &["cannot be used with"]),
        (&["sweep", "--nccl", "3.0"], &["NCCL 3.0.0", "2.8.0 to 2.30.7"]),
        (&["sweep", "--nccl", "2.31.1"], &["NCCL 2.31.1"]),
        (&["sweep", "--nccl", "2.4.8"], &["NCCL 2.4.8", "from 2.5.0"]),
        (&["sweep", "--split", "%8", "--ranks", "4000000000"], &["4000000000 ranks", "8 GPUs"]),
        (&["sweep", "--split", "/4000000000"], &["only 8 ranks", "/N"]),
        (
            &["topo", "import", "topologies/tests/data/h200x4-nccl-topo.xml", "--like", "dgx-h10"],
            &["did you mean `dgx-h100`", "h200x4"],
        ),
        (
            &["topo", "import", "topologies/tests/data/h200x4-nccl-topo.xml", "--like", "dgx-h100"],
            &["is a machine", "leave --like out"],
        ),
        (&["simulate", "--group", "64K*0"], &["`64K*0`", "1 to", "all_reduce:64K*48"]),
        (&["simulate", "--group", "al_reduce:64K"], &["did you mean `all_reduce`"]),
        (&["simulate", "--group", "64K", "-s", "1M"], &["cannot be used with"]),
        (&["simulate", "--group", "all_to_all:64K"], &["one group", "sends and receives"]),
        (&["simulate", "--group", "64K*513"], &["`64K*513`", "1 to 512"]),
        (&["simulate", "--group", "64K*300,1M*300"], &["600", "512"]),
        (&["simulate", "--group", "0*3,64K"], &["needs elements"]),
        (&["simulate", "--group", "64K", "--algorithm", "coll_tree"], &["NCCL has no coll_tree"]),
        (&["simulate", "--group", "8G*64"], &["slices", "fewer bytes"]),
        (&["simulate", "ddp-buckets", "--group", "64K"], &["scenario has its own calls"]),
        (&["simulate", "--group", "64K", "--nccl", "2.18.5"], &["2.18.5", "2.22"]),
        (&["simulate", "--group", "64K", "--algorithm", "ring,tree"], &["one algorithm"]),
        (&["convert", "-c", "send_recv"], &["MSCCL XML has no send_recv"]),
        (&["sweep", "--profile", "h200-nvswich"], &["did you mean `h200-nvswitch`"]),
        (&["sweep", "--profile", "missing.toml"], &["missing.toml"]),
        (&["sweep", "--nodes", "0"], &["0"]),
        (&["simulate", "h200x4", "--vary", "a=1"], &["this is none", "ddp-buckets"]),
        (&["simulate", "ddp-buckets", "--vary", "bucket"], &["--vary bucket has no value"]),
        (&["simulate", "ddp-buckets", "--vary", "layout.dat=2"], &["ddp-buckets", "did you mean `data`"]),
        (&["simulate", "ddp-buckets", "--vary", "layers.9.count=2"], &["`layers.9` leads nowhere"]),
        (&["simulate", "ddp-buckets", "--vary", "layout.data=5"], &["5 ranks", "4 GPUs"]),
        (
            &["simulate", "gpt-tensor", "--vary", "layout.tensor=4,2,1"],
            &["layout.tensor=2: layers say what one of 4 tensor-parallel ranks computes", "--vary layers.0.forward"],
        ),
        (&["simulate", "ten-and-twelve", "--vary", "layers.0.backward=9000 s"], &["rank 0", "over 5 hours"]),
        (&["simulate", "ddp-buckets", "-s", "8M"], &["a scenario says itself"]),
        (&["simulate", "-s", "8,16"], &["takes one call, and 2 are named", "sweep"]),
        (&["simulate", "--nodes", "1,2"], &["sweep"]),
        (&["validate"], &["MEASUREMENTS"]),
        (&["validate", "no-such-file.log", "-t", "h200x4"], &["no-such-file.log"]),
        (&["validate", "tests/data/h200x4/nccl.csv"], &["-t TOPOLOGY"]),
        (&["validate", "tests/data/h200x4/nccl.csv", "-t", "h200x4", "--max-error", "lots"], &["percentage"]),
        (&["topo", "show", "no-such.toml"], &["no-such.toml"]),
        (&["topo", "paths", "h200x4", "0", "9"], &["rank 9", "0 to 3"]),
        (&["simulate", "tests/data/h200x4/nccl_graph_4gpu.xml"], &["graph", "topo import"]),
        (&["sweep", "--counts", "tests/data/h200x4/nccl.csv", "-c", "all_to_all"], &["not a count"]),
    ] {
        check_refused(args, expected);
    }
}

#[test]
fn bad_files_are_refused_with_their_place() {
    for (name, content, expected) in [
        ("empty.log", &b""[..], &["empty.log"][..]),
        ("binary.log", &[0, 159, 146, 150, 0, 1, 2, 255][..], &["binary.log"]),
        ("prose.txt", b"hello world\n", &["prose.txt"]),
        ("short.csv", b"collective,ranks\nall_reduce,4\n", &["short.csv"]),
        (
            "ours.csv",
            b"# collcast: predicted, not measured\ncollective,ranks,size_bytes,time_us\nall_reduce,4,8,1\n",
            &["ours.csv", "predicted"],
        ),
        ("size.csv", b"collective,ranks,size_bytes,time_us\nall_reduce,4,99999999999999999999,1\n", &["size.csv"]),
    ] {
        let (_dir, path) = file(name, content);
        check_refused(&["validate", &path, "-t", "h200x4"], expected);
    }
    for (name, content, expected) in [
        ("t.toml", &b"schema = \"collcast/topology/1\"\nname = \"x\"\n[[hosts]]\ncount = 2\nlike = \"dgx-h100\"\n[hosts.nics]\nkind = \"infiniband\"\ncount = 8\nrate = 400\n"[..], &["t.toml:9", "400", "Gb/s"][..]),
        ("u.toml", b"schema = \"collcast/topology/1\"\nname = \"x\"\n[[host]]\ncount = 1\n", &["u.toml:3", "hosts"]),
        ("v.xml", b"<system version=\"1\"><cpu", &["v.xml"]),
        ("w.xml", b"<!DOCTYPE x [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;\">]><system version=\"1\">&b;</system>", &["w.xml"]),
        ("x.toml", b"", &["x.toml"]),
    ] {
        let (_dir, path) = file(name, content);
        check_refused(&["topo", "show", &path], expected);
    }
    let folder = tempfile::tempdir().unwrap();
    check_refused(&["validate", folder.path().to_str().unwrap(), "-t", "h200x4"], &["empty", "*.log"]);
}

/// Goal: a cloud's template is described, refused as a machine, and usable once merged.
#[test]
fn a_template_is_described_refused_and_imported() {
    let template = "topologies/tests/data/azure-ndv5-topo.xml";
    let (code, out, err) = collcast(&["topo", "show", template]);
    assert!(code == 0 && out.contains("template") && err.contains("topo import"), "{out}{err}");
    check_refused(&["simulate", template, "-s", "1M"], &["template", "topo import FILE --like dgx-h100"]);
    let dir = tempfile::tempdir().unwrap();
    let merged = dir.path().join("merged.xml");
    let merged = merged.to_str().unwrap();
    let (code, _, err) = collcast(&["topo", "import", template, "--like", "dgx-h100", "-o", merged]);
    assert!(code == 0 && err.contains("template:") && err.contains("machine:"), "{err}");
    let (code, out, err) = collcast(&["simulate", merged, "-s", "1M"]);
    assert!(code == 0 && out.contains("8 H100"), "{out}{err}");
    // What the XML of a host cannot hold is named.
    let (_, _, err) = collcast(&["topo", "import", template, "--like", "aws-p5", "-o", merged]);
    assert!(err.contains("not in the XML") && err.contains("the fabric, the storage, the plugin"), "{err}");
}

/// Goal: hosts of several kinds, and GPUs without a rank, are counted as they are.
#[test]
fn mixed_hosts_are_described() {
    let text = "schema = \"collcast/topology/1\"\n[[hosts]]\ncount = 2\nlike = \"dgx-h200\"\n\
                [[hosts]]\nnames = \"b0\"\nlike = \"dgx-a100\"\n";
    let (_dir, path) = file("mixed.toml", text.as_bytes());
    let (code, out, err) = collcast(&["simulate", &path, "-s", "1M", "--placement", "0-9,16-23"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("1 host x 8 H200-SXM5-141GB, 1 host x 2 H200-SXM5-141GB, 1 host x 8 A100"), "{out}");
    assert!(out.contains("first of several kinds of hosts"), "{out}");
}

#[test]
fn a_sweep_prints_a_table_and_one_verdict() {
    let (code, out, err) = collcast(&["sweep", "h200x4", "-s", "8:1G:8"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("topology h200x4") && out.contains("busbw GB/s"), "{out}");
    assert_eq!(err.lines().filter(|l| l.starts_with("ok:")).count(), 1, "{err}");
}

/// Goal: of lists of collectives, algorithms and protocols all that there is runs, and what is left out is said.
#[test]
fn lists_leave_out_what_a_collective_lacks() {
    let lists = ["-c", "all_reduce,all_gather", "--algorithm", "ring,tree,pat", "--protocol", "ll,simple"];
    for command in [&["sweep", "h200x4"][..], &["bench", "h200x4", "--budget", "10ms", "--batches", "3"]] {
        let (code, out, err) = collcast(&[command, &["-s", "64K", "--format", "csv"], &lists].concat());
        assert_eq!(code, 0, "{err}");
        assert!(err.contains("note: all_reduce has no pat/ll, pat/simple: left out"), "{err}");
        assert!(err.contains("note: all_gather has no tree/ll, tree/simple, pat/ll: left out"), "{err}");
        let rows = |pair: &str| out.lines().filter(|line| line.contains(pair)).count();
        let pairs = ["ring,ll,", "ring,simple,", "tree,ll,", "tree,simple,", "pat,ll,", "pat,simple,"].map(rows);
        assert_eq!(pairs, [2, 2, 1, 1, 0, 1], "{command:?}: {out}");
    }
}

/// Goal: a verdict over several algorithms tells the least time of its size, as its peak is the largest of all.
#[test]
fn a_verdict_over_algorithms_tells_the_best_of_them() {
    let args = ["sweep", "dgx-h100", "--nodes", "2", "--algorithm", "ring,tree", "--protocol", "ll,simple", "-s", "1M"];
    let (code, out, err) = collcast(&[&args[..], &["--format", "json"]].concat());
    assert_eq!(code, 0, "{err}");
    let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
    let times = answer["rows"].as_array().unwrap().iter().map(|row| row["time_us"].as_f64().unwrap());
    let least = times.fold(f64::INFINITY, f64::min);
    assert!(err.contains(&format!("1 MiB takes {least:.1} us")), "{least}: {err}");
}

/// Goal: a rank alone sends nothing over a bus, and 0 B have no bandwidth: a verdict tells what there is.
#[test]
fn a_verdict_tells_a_bandwidth_that_there_is() {
    for (words, says) in [
        (&["sweep", "h200x4", "--ranks", "1", "-s", "1M,4M"][..], "GB/s of algorithm bandwidth"),
        (&["simulate", "h200x4", "--ranks", "1", "-s", "1M"], "GB/s of algorithm bandwidth"),
        (&["sweep", "h200x4", "-s", "0"], "over 4 ranks: 0 B takes"),
        (&["simulate", "h200x4", "-s", "0"], "over 4 ranks takes 0.0 ns, bound by nothing to do"),
        (&["sweep", "h200x4", "-s", "1M"], "GB/s of bus bandwidth"),
    ] {
        let (code, _, err) = collcast(words);
        assert!(code == 0 && err.contains(says) && !err.contains("0.000 GB/s"), "{words:?}: {err}");
    }
}

/// Goal: a comment for a pull request has the columns that a terminal shows.
#[test]
fn markdown_has_the_columns_of_a_terminal() {
    let (_, table, _) = collcast(&["sweep", "h200x4", "-s", "1M"]);
    let (_, comment, _) = collcast(&["sweep", "h200x4", "-s", "1M", "--format", "markdown"]);
    let of_table = table.lines().find(|line| line.trim_start().starts_with("size")).unwrap();
    let of_comment = comment.lines().find(|line| line.starts_with("| size")).expect(&comment);
    let words = |line: &str, apart: &str| -> Vec<String> {
        line.split(apart).map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect()
    };
    assert_eq!(words(of_table, "  "), words(of_comment, "|"));
}

/// Goal: sizes are counted as nccl-tests does: the part of every rank starts on 16 bytes.
/// Method: 3 ranks of 4096 B by hand: 85 groups of 16 B each, 4080 B in all; of an all-reduce, which has no parts, all.
#[test]
fn sizes_are_those_of_nccl_tests() {
    for (collective, expected) in [("all_gather", "4080"), ("all_to_all", "4080"), ("all_reduce", "4096")] {
        let args = ["sweep", "h200x4", "--ranks", "3", "-c", collective, "-s", "4K", "--format", "csv"];
        let (code, out, err) = collcast(&args);
        assert_eq!(code, 0, "{err}");
        let mut lines = out.lines().filter(|line| !line.starts_with('#'));
        let place = lines.next().unwrap().split(',').position(|column| column == "size_bytes").unwrap();
        assert_eq!(lines.next().unwrap().split(',').nth(place), Some(expected), "{out}");
    }
    // A smallest size alone goes on to where nccl-tests ends by itself, and is the size of a command that takes one.
    let (_, out, err) = collcast(&["sweep", "h200x4", "-b", "8M", "--format", "csv"]);
    assert_eq!(out.lines().filter(|line| !line.starts_with('#')).count(), 1 + 3, "{out}{err}");
    let (code, out, err) = collcast(&["simulate", "h200x4", "-b", "8M"]);
    assert!(code == 0 && out.contains("8 MiB"), "{out}{err}");
}

/// Goal: what is printed for nccl-tests' readers is read back by our own, and refused as a
/// measurement.
#[test]
fn our_nccl_tests_table_is_not_taken_for_a_measurement() {
    let (code, out, err) = collcast(&["sweep", "h200x4", "-s", "1K:1M:4", "--format", "nccl-tests"]);
    assert_eq!(code, 0, "{err}");
    let (_dir, path) = file("ours.log", out.as_bytes());
    check_refused(&["validate", &path, "-t", "h200x4"], &["predicted"]);
    let (code, out, err) =
        collcast(&["validate", &path, "-t", "h200x4", "--launch", "threads", "--allow-predicted", "--format", "json"]);
    assert_eq!(code, 0, "{err}");
    let result: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(result["overall_with_auto"]["median_abs_error"].as_f64().unwrap() < 0.01, "{out}");
}

#[test]
fn json_is_of_the_contract() {
    let (code, out, err) = collcast(&["simulate", "h200x4", "-s", "1M", "--format", "json"]);
    assert_eq!(code, 0, "{err}");
    let result: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(result["schema"], "collcast/simulate/1");
    let row = &result["rows"][0];
    for key in [
        "collective",
        "algorithm",
        "protocol",
        "channels",
        "ranks",
        "nodes",
        "size_bytes",
        "time_us",
        "time_us_low",
        "time_us_high",
        "algbw_gbps",
        "busbw_gbps",
        "messages",
        "folded",
    ] {
        assert!(!row[key].is_null(), "{key} is missing: {row}");
    }
    for key in ["status", "sentence", "confidence", "basis"] {
        assert!(!result["verdict"][key].is_null(), "{key}");
    }
}

#[test]
fn a_trace_is_json_that_viewers_take() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.json");
    let (code, _, err) = collcast(&[
        "simulate",
        "h200x4",
        "-s",
        "1M",
        "--algorithm",
        "tree",
        "--protocol",
        "ll128",
        "--timeline",
        path.to_str().unwrap(),
    ]);
    assert_eq!(code, 0, "{err}");
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let kinds = |ph: &str| events.iter().filter(|e| e["ph"] == ph).count();
    assert!(kinds("X") > 100 && kinds("M") > 10 && kinds("C") > 20);
}

/// Goal: the timeline is that of the call which is predicted, also where a tuner chose the channels.
#[test]
fn a_trace_has_the_channels_of_the_prediction() {
    let dir = tempfile::tempdir().unwrap();
    let (path, table) = (dir.path().join("trace.json"), dir.path().join("tuner.csv"));
    std::fs::write(&table, "allreduce,0,4294967295,ring,simple,5,-1,-1,-1,-1\n").unwrap();
    let config = format!("NCCL_TUNER_CONFIG_FILE={}", table.display());
    let (plugin, trace) = ("NCCL_TUNER_PLUGIN=libnccl-tuner-example.so", path.to_str().unwrap());
    let asked = ["simulate", "h200x4", "-s", "4M", "--env", plugin, "--env", &config];
    let (code, out, err) = collcast(&[&asked[..], &["--format", "json", "--timeline", trace]].concat());
    assert_eq!(code, 0, "{err}");
    let result: serde_json::Value = serde_json::from_str(&out).unwrap();
    let predicted = result["rows"][0]["channels"].as_u64().unwrap();
    let trace = std::fs::read_to_string(&path).unwrap();
    let channel = |rest: &str| rest.split(' ').next().unwrap().to_owned();
    let of_rank_0: BTreeSet<String> = trace.split("rank 0 channel ").skip(1).map(channel).collect();
    assert_eq!((of_rank_0.len() as u64, predicted), (5, 5), "{of_rank_0:?}");
    // A line for registered buffers is for these, and for those of a CUDA graph.
    std::fs::write(&table, "allreduce,0,4294967295,ring,simple,5,-1,-1,-1,1\n").unwrap();
    for (told, channels) in [(&[][..], 1), (&["--registered"], 5), (&["--launch", "graph"], 5)] {
        let (_, out, err) = collcast(&[&asked[..], &["--format", "json"], told].concat());
        let result: serde_json::Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{err}"));
        assert_eq!(result["rows"][0]["channels"], channels, "{told:?}");
    }
}

/// Goal: a scenario's name that is not quite right is answered with the one that is meant.
#[test]
fn a_misspelt_scenario_is_recognised() {
    let (code, _, err) = collcast(&["simulate", "ddp-bucket"]);
    assert!(code == 2 && err.contains("did you mean `ddp-buckets`?"), "{err}");
}

#[test]
fn every_builtin_machine_shows_draws_and_sweeps() {
    let (code, out, _) = collcast(&["topo", "list", "--format", "csv"]);
    assert_eq!(code, 0);
    let names: Vec<&str> =
        out.lines().filter(|l| !l.starts_with('#')).skip(1).filter_map(|l| l.split(',').next()).collect();
    assert!(names.len() >= 9, "{out}");
    for name in names {
        for args in [
            &["topo", "show", name][..],
            &["topo", "draw", name],
            &["topo", "draw", name, "--dot"],
            &["topo", "graph", name],
            &["sweep", name, "-s", "1M"],
        ] {
            let (code, out, err) = collcast(args);
            assert_eq!(code, 0, "{args:?}: {err}");
            assert!(out.len() > 100, "{args:?}");
        }
    }
}

/// Goal: what NCCL is told decides `auto`, the layer is named, and slips are refused or noted.
#[test]
fn the_choice_of_nccl_is_explained() {
    check_refused(&["sweep", "--nccl", "two"], &["two", "2.8.0 to 2.30.7"]);
    check_refused(&["sweep", "--env", "NCCL_ALGO=rong"], &["would not start", "did you mean `Ring`"]);
    check_refused(&["sweep", "--env", "no-such.env"], &["no-such.env"]);
    check_refused(&["sweep", "-c", "broadcast", "--env", "NCCL_ALGO=Tree"], &["would fail broadcast", "NCCL_ALGO"]);
    check_refused(&["sweep", "--env", "NCCL_TUNER_CONFIG_FILE=no-such.csv"], &["no-such.csv"]);

    let explain = ["--explain-choice", "--format", "json"];
    let run = |args: &[&str]| {
        let (code, out, err) = collcast(&[args, &explain].concat());
        assert_eq!(code, 0, "{args:?}: {err}");
        serde_json::from_str::<serde_json::Value>(&out).unwrap()
    };
    let tuned = run(&["simulate", "aws-p5", "--nodes", "4", "-s", "1M"]);
    assert_eq!(tuned["choices"][0]["layer"], "aws-ofi-nccl region tuner", "{tuned}");
    assert_eq!((&tuned["rows"][0]["algorithm"], &tuned["rows"][0]["protocol"]), (&"tree".into(), &"ll128".into()));
    let sets_fifos = |nccl| {
        let told = run(&["simulate", "aws-p5", "--nodes", "2", "-s", "1M", "--nccl", nccl]);
        told["assumptions"].to_string().contains("NCCL_BUFFSIZE=8388608")
    };
    assert!(sets_fifos("2.26.2") && !sets_fifos("2.25.1"), "aws-ofi-nccl sets them since 2025");
    let table = run(&["simulate", "h200x4", "-s", "16M"]);
    assert_eq!(table["choices"][0]["layer"], "cost table");
    let costs = table["cost_table"].as_array().unwrap();
    let state = |algorithm: &str| {
        let row = costs.iter().find(|r| r["algorithm"] == algorithm && r["protocol"] == "simple").unwrap();
        (row["time_us"].as_f64(), row["state"].as_str().unwrap().to_owned())
    };
    // 28.8 us and 16 MiB at 240 GB/s, as NCCL 2.28.9 has it on this machine.
    let (time, chosen) = state("ring");
    assert!((time.unwrap() - 98.705).abs() < 0.01 && chosen == "chosen", "{time:?} {chosen}");
    assert_eq!(state("nvls"), (None, "NCCL_NVLS_ENABLE is 0".to_owned()));
    let forced = run(&["simulate", "h200x4", "-s", "16M", "--env", "NCCL_ALGO=tree", "--env", "NCCL_PROTO=LL128"]);
    assert_eq!(forced["choices"][0]["layer"], "environment");
    let older = run(&["simulate", "h200x4", "-s", "16M", "--nccl", "2.7.1", "--env", "NCCL_ALGOS=Ring"]);
    assert!(older["assumptions"].to_string().contains("older"), "{older}");
    assert!(older["warnings"].to_string().contains("did you mean NCCL_ALGO?"), "{older}");
}

/// Goal: the channels of a machine are shown, written as NCCL dumps them, and taken back.
#[test]
fn graphs_are_shown_written_and_taken() {
    let (code, out, err) = collcast(&["topo", "graph", "dgx-h100", "--nodes", "2"]);
    assert!(code == 0 && err.contains("16 ranks on 2 hosts get 16 channels"), "{out}{err}");
    assert!(out.contains("nic0 gpu0 gpu7 gpu6 gpu5 gpu4 gpu3 gpu2 gpu1 nic1"), "{out}");
    let (code, out, _) = collcast(&["topo", "graph", "h200x4", "--xml"]);
    assert!(code == 0 && out.contains("nchannels=\"12\" speedintra=\"30\""), "{out}");
    let measured = "tests/data/h200x4/nccl_graph_4gpu.xml";
    let with = collcast(&["simulate", "h200x4", "-s", "1M", "--graph", measured, "--format", "csv"]);
    let without = collcast(&["simulate", "h200x4", "-s", "1M", "--format", "csv"]);
    let rows = |csv: &str| csv.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!((with.0, rows(&with.1)), (0, rows(&without.1)), "the search finds what was measured");
    check_refused(&["simulate", "dgx-h100", "-s", "1M", "--graph", measured], &["nccl_graph_4gpu.xml", "visits GPUs"]);
    check_refused(&["simulate", "h200x4", "-s", "1M", "--graph", "Cargo.toml"], &["Cargo.toml"]);
    check_refused(&["topo", "graph", "h200x4", "--ranks", "9"], &["9 ranks", "1 to 4"]);
    // Settings of NCCL change both graphs and routes.
    let rails = ["topo", "graph", "dgx-h100", "--nodes", "2", "--env", "NCCL_CROSS_NIC=0"];
    let (_, out, _) = collcast(&rails);
    assert!(out.contains("nic0 gpu0 gpu7 gpu6 gpu5 gpu4 gpu3 gpu2 gpu1 nic0"), "{out}");
    let paths = |env| collcast(&["topo", "paths", "dgx-h100", "3", "12", "--nodes", "2", "--env", env]).1;
    assert!(paths("NCCL_PXN_DISABLE=0").contains("host0/gpu4 > host0/pcisw4 > host0/nic4"));
    assert!(paths("NCCL_PXN_DISABLE=1").contains("host0/gpu3 > host0/pcisw3 > host0/nic3"));
    // Through host memory, to its end.
    let staged = paths("NCCL_NET_GDR_LEVEL=LOC");
    assert!(staged.contains("PHB ") && staged.contains("host1/cpu1 > host1/pcisw4 > host1/gpu4\n"), "{staged}");
    // What joins management ports is no leaf.
    assert!(collcast(&["topo", "show", "aws-p5", "--nodes", "2"]).1.contains("network switches     1 leaf\n"));
}

/// Goal: a rack of GB200 is predicted over NVLink alone, by ring and by NVLS (which NCCL picks); two
/// racks use NICs, and ranks may be placed in any order.
#[test]
fn a_rack_is_one_nvlink_domain() {
    let run = |args: &[&str]| -> serde_json::Value {
        let (code, out, err) = collcast(&[&["simulate", "gb200-nvl72", "-s", "1G", "--format", "json"], args].concat());
        assert_eq!(code, 0, "{args:?}: {err}");
        serde_json::from_str(&out).unwrap()
    };
    let algorithm = |result: &serde_json::Value| result["rows"][0]["algorithm"].as_str().unwrap().to_owned();
    let busbw = |result: &serde_json::Value| result["rows"][0]["busbw_gbps"].as_f64().unwrap();
    let rack = run(&["--nodes", "18"]);
    assert_eq!((algorithm(&rack).as_str(), rack["rows"][0]["ranks"].as_u64()), ("nvls", Some(72)));
    let ring = run(&["--nodes", "18", "--algorithm", "ring", "--protocol", "simple"]);
    // 18 links of 50 GB/s each way, of which some is lost; reduction in the switch halves the bytes.
    assert!((400.0..900.0).contains(&busbw(&ring)) && busbw(&rack) > busbw(&ring), "{ring}{rack}");
    for result in [&rack, &ring] {
        assert!(!result.to_string().contains("/nic"), "{result}");
    }
    let racks = run(&["--nodes", "36", "--algorithm", "ring", "--protocol", "simple"]);
    assert!(busbw(&racks) < busbw(&ring), "{racks}");
    let turns = run(&["--nodes", "36", "--algorithm", "ring", "--protocol", "simple", "--placement", "cyclic"]);
    assert_eq!(busbw(&turns), busbw(&racks));
}

/// Goal: every built-in machine is described, and half of a cluster reaches the other half at the
/// rate that its fabric allows, in GB/s.
#[test]
fn built_in_machines_are_described() {
    let show = |name: &str, nodes: &str| -> serde_json::Value {
        let (code, out, err) = collcast(&["topo", "show", name, "--nodes", nodes, "--format", "json"]);
        assert_eq!(code, 0, "{name}: {err}");
        serde_json::from_str(&out).unwrap()
    };
    for name in collcast_topologies::builtin::names() {
        assert_eq!(show(name, "2")["machine"]["hosts"], 2, "{name}");
    }
    for (name, nodes, bisection) in [
        ("aws-p5en", "4", 800.0),          // 2 hosts x 16 x 25.
        ("azure-nd-h100-v5", "8", 1600.0), // 4 hosts x 8 x 50, one unit.
        ("gb300-nvl72", "2", 400.0),
        ("kestrel-h100", "16", 400.0),
        // Two racks of 34: 68 ports of 12.5 down, a third of them up.
        ("abci-v100", "68", 287.5),
    ] {
        assert_eq!(show(name, nodes)["machine"]["network_bisection_gbps"], bisection, "{name}");
    }
}

/// Goal: an algorithm is written, read back and timed; a file that is wrong is refused with its flaw.
#[test]
fn schedules_are_written_and_read() {
    let ring = ["-c", "all_reduce", "--algorithm", "ring", "--protocol", "simple", "--channels", "2"];
    let (code, xml, err) = collcast(&[&["convert", "h200x4"][..], &ring].concat());
    assert_eq!(code, 0, "{err}");
    let (_dir, path) = file("ring.xml", xml.as_bytes());
    let (code, out, err) = collcast(&["sweep", "h200x4", "--schedule", &path, "-s", "12,32,1M,64M", "--format", "csv"]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("sizes that the file is not for are left out") && err.contains("12 B"), "{err}");
    assert_eq!(out.lines().filter(|l| l.contains("msccl,simple,2")).count(), 3, "{out}");
    let (_dir, wrong) = file("wrong.xml", xml.replacen("type=\"rrcs\"", "type=\"rcs\"", 1).as_bytes());
    check_refused(&["simulate", "h200x4", "--schedule", &wrong, "-s", "1M"], &["does not do what it says", "rank"]);
}

/// Goal: a file for fewer ranks than the machine has GPUs is forecast on the hosts that hold these, as such a call is.
#[test]
fn schedules_run_where_their_ranks_are() {
    let ring = ["-c", "all_gather", "-s", "1M", "--algorithm", "ring", "--protocol", "simple", "--channels", "4"];
    let (_, xml, _) = collcast(&[&["convert", "dgx-h100"][..], &ring].concat());
    let (_dir, path) = file("ring.xml", xml.as_bytes());
    let of = |nodes: &str| {
        let of = ["sweep", "dgx-h100", "--schedule", &path, "-s", "1M", "--format", "json", "--nodes", nodes];
        let (code, out, err) = collcast(&of);
        assert_eq!(code, 0, "{err}");
        let report: serde_json::Value = serde_json::from_str(&out).unwrap();
        (report["rows"].clone(), report["assumptions"][0].clone(), report["assumptions"][1].clone())
    };
    let one = of("1");
    assert!(one.0[0]["nodes"] == 1 && one.0[0]["launch"] == "threads", "{one:?}");
    assert_eq!(of("2"), one);
    assert_eq!(of("1,2,3"), one, "the first 8 ranks are on one host of each");
}

/// Goal: a file of 24 chunks is forecast without a size, and over a range of sizes, though no power of two is 24 chunks.
#[test]
fn sizes_nobody_named_fit_the_file() {
    let ring = ["convert", "dgx-h100", "--algorithm", "ring", "--protocol", "simple", "--channels", "3", "-s", "96M"];
    let (code, xml, err) = collcast(&ring);
    assert_eq!(code, 0, "{err}");
    let (_dir, path) = file("ring.xml", xml.as_bytes());
    let of = ["dgx-h100", "--schedule", &path];
    let (code, _, err) = collcast(&[&["simulate"][..], &of].concat());
    assert!(code == 0 && err.contains("no size given; this is 67108800 B"), "{err}");
    let (code, out, err) = collcast(&[&["sweep", "-s", "8:1M:2", "--format", "csv"][..], &of].concat());
    assert!(code == 0 && err.contains("rounded down to what the 24 chunks of the file are equal parts of"), "{err}");
    let sizes = out.lines().filter(|line| line.contains(",msccl,")).count();
    // From 128 B on; the smaller are no whole chunk.
    assert_eq!((sizes, out.contains(",1048512,")), (14, true), "{out}");
    // A size that is named is taken as it is.
    check_refused(&[&["simulate", "-s", "64M"][..], &of].concat(), &["cuts the buffer into 24 chunks"]);
    let (code, _, err) = collcast(&[
        "convert",
        "dgx-h100",
        "-c",
        "all_gather",
        "--algorithm",
        "ring",
        "--channels",
        "3",
        "-s",
        "96M",
        "-o",
        &path,
    ]);
    assert_eq!(code, 0, "{err}");
    let (code, _, err) = collcast(&[&["simulate", "--dtype", "float16"][..], &of].concat());
    assert_eq!(code, 0, "{err}");
}

/// Goal: hosts of an NVLink domain are imported as XML, which loses the domain and says so, and get it back beside `xml`.
#[test]
fn an_imported_host_gets_its_nvlink_domain() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (rack, host, back) = (at("rack.toml"), at("host.xml"), at("back.toml"));
    let head = "schema = \"collcast/topology/1\"\n";
    let write = |path: &str, text: String| std::fs::write(path, text).unwrap();
    write(&rack, format!("{head}[software]\nmulticast = false\n[[hosts]]\ncount = 2\nlike = \"gb200-nvl72\"\n"));
    let (code, _, err) = collcast(&["topo", "import", &rack, "-o", &host]);
    assert!(code == 0 && err.contains("the NVLink domain, the profile, that there is no multicast"), "{err}");
    let text = |nvlink: &str| {
        format!(
            "{head}profile = \"b200-nvswitch\"\n[software]\nmulticast = false\n[[hosts]]\ncount = 2\nxml = \"host.xml\"\n{nvlink}\n\
             [fabric]\nkind = \"single-switch\"\nrouting = \"spray\"\n"
        )
    };
    let time = |path: &str| {
        let (code, out, err) = collcast(&["simulate", path, "--algorithm", "ring", "-s", "64M", "--format", "json"]);
        assert_eq!(code, 0, "{err}");
        serde_json::from_str::<serde_json::Value>(&out).unwrap()["rows"][0]["time_us"].as_f64().unwrap()
    };
    write(&back, text("nvlink = { kind = \"nvswitch\", domain = 18 }"));
    let joined = time(&back);
    assert!((joined / time(&rack) - 1.0).abs() < 0.01, "{joined}");
    write(&back, text(""));
    assert!(time(&back) > 2.0 * joined, "{joined}");
}

/// Goal: a file that is read and written is the same algorithm, with its chunks, limits and threads; one with more
/// thread blocks than the call says so.
#[test]
fn schedules_are_written_as_they_were() {
    let pairs = include_str!("../sim/tests/data/pairs2.xml");
    let limits = r#"inplace="1" outofplace="0" minBytes="1024" maxBytes="1048576" nthreads="256""#;
    let (_dir, given) = file("given.xml", pairs.replacen(r#"inplace="1""#, limits, 1).as_bytes());
    let of = ["--schedule", given.as_str(), "--in-place", "-s", "1M"];
    let (code, xml, err) = collcast(&[&["convert", "h200x4"][..], &of].concat());
    assert_eq!(code, 0, "{err}");
    // Without a size it is the nearest to 64 MiB that the file is for.
    let (code, without, err) = collcast(&[&["convert", "h200x4"][..], &of[..3]].concat());
    assert!((code, &without) == (0, &xml) && err.contains("what 1 MiB would use"), "{err}");
    assert!(xml.contains(r#"nchunksperloop="2""#) && xml.contains(&format!("{limits}>")), "{xml}");
    assert_eq!(xml.matches("<step").count(), pairs.matches("<step").count());
    let (_dir, written) = file("written.xml", xml.as_bytes());
    let time = |path: &str| {
        let args = ["simulate", "h200x4", "--schedule", path, "--in-place", "-s", "1M", "--format", "json"];
        let (code, out, err) = collcast(&args);
        assert_eq!(code, 0, "{err}");
        serde_json::from_str::<serde_json::Value>(&out).unwrap()["rows"][0]["time_us"].as_f64().unwrap()
    };
    assert_eq!(time(&written), time(&given));
    let (code, json, err) = collcast(&[&["convert", "h200x4", "--target", "mscclpp"][..], &of].concat());
    assert_eq!(code, 0, "{err}");
    let plan: Plan = serde_json::from_str(&json).unwrap();
    let sizes = (plan.min_message_size, plan.max_message_size, plan.num_threads_per_block);
    assert_eq!(sizes, (1024, 1 << 20, 256));
    let tree = ["convert", "dgx-h100", "--algorithm", "coll_tree", "--protocol", "simple", "--channels", "2"];
    let (code, _, err) = collcast(&tree);
    assert!(code == 0 && err.contains("up to 56 thread blocks a GPU, and not the 2 of the call"), "{err}");
    let ring = ["convert", "dgx-h100", "--algorithm", "ring", "--protocol", "simple", "--channels", "2"];
    let (code, _, err) = collcast(&ring);
    assert!(code == 0 && !err.contains("thread blocks") && !err.contains("by forecast"), "{err}");
}

/// Goal: the time of a file is said beside that of the call where they differ, as `simulate` gives them; a file in which
/// MSCCL would wait for ever is not written, but its messages are.
#[test]
fn schedules_say_what_msccl_makes_of_them() {
    let root = ["-c", "broadcast", "--algorithm", "ring", "--protocol", "ll", "--channels", "16", "-s", "64M"];
    let (code, xml, err) = collcast(&[&["convert", "h200x4"][..], &root].concat());
    assert_eq!(code, 0, "{err}");
    let (_dir, path) = file("root.xml", xml.as_bytes());
    let time = |of: &[&str]| {
        let (code, out, err) = collcast(&[&["simulate", "h200x4", "--format", "json"][..], of].concat());
        assert_eq!(code, 0, "{err}");
        serde_json::from_str::<serde_json::Value>(&out).unwrap()["rows"][0]["time_us"].as_f64().unwrap()
    };
    let (file, call) = (time(&["--schedule", &path, "-s", "64M"]), time(&root));
    assert!(file > 1.2 * call, "{file} {call}");
    assert!(err.contains(&format!("more time than the call, {file:.2} us and not {call:.2} us")), "{err}");
    let pat = ["convert", "dgx-h100", "-c", "all_gather", "--algorithm", "pat", "--channels", "2", "-s", "1M"];
    check_refused(&pat, &["MSCCL would wait for ever", "--algorithm ring"]);
    let (code, _, err) = collcast(&[&pat[..], &["--target", "goal"]].concat());
    assert_eq!(code, 0, "{err}");
}

/// Goal: an algorithm is written as a plan of MSCCL++ that does what it should, told by the file's name too; what has no plan is
/// refused by name with the way out.
#[test]
fn plans_of_mscclpp_are_written() {
    let ring = ["-c", "all_reduce", "--algorithm", "ring", "--protocol", "simple", "--channels", "2"];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ring.json").display().to_string();
    let (code, _, err) = collcast(&[&["convert", "dgx-h100", "-o", &path][..], &ring].concat());
    assert_eq!(code, 0, "{err}");
    let text = std::fs::read_to_string(&path).unwrap();
    let plan: Plan = serde_json::from_str(&text).unwrap();
    plan.check().unwrap();
    assert_eq!((plan.gpus.len(), plan.collective.as_str(), plan.inplace), (8, "allreduce", false));
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["gpus"][1]["threadblocks"][0]["ops"][0]["name"], "signal");
    assert_eq!(json["gpus"][0]["channels"][0]["connected_to"], serde_json::json!([1, 1, 7, 7]));
    // Without one of its signals the file that was read back is found out.
    let mut silent = plan;
    silent.gpus[3].threadblocks[0].ops.remove(0);
    assert!(silent.check().unwrap_err().to_string().contains("waits for ever"));
    let to = ["--target", "mscclpp"];
    check_refused(&[&["convert", "dgx-h100", "--nodes", "2"][..], &ring, &to].concat(), &["on 2 hosts", "--nodes 1"]);
    check_refused(&[&["convert", "dgx-h100", "--op", "max"][..], &ring, &to].concat(), &["has no max"]);
    let ll = ["convert", "dgx-h100", "--algorithm", "ring", "--protocol", "ll", "-s", "1M"];
    check_refused(&[&ll[..], &to].concat(), &["packets", "--protocol simple"]);
    check_refused(&[&["convert", "dgx-h100", "-c", "broadcast"][..], &to].concat(), &["broadcast"]);
}

/// Goal: a file made for a size can be used at it, whatever number of channels the call would have there.
#[test]
fn written_schedules_fit_their_size() {
    for size in ["48K", "64K", "1M"] {
        let (code, xml, err) = collcast(&["convert", "dgx-h100", "--nodes", "2", "-s", size]);
        assert_eq!(code, 0, "{err}");
        let (_dir, path) = file("schedule.xml", xml.as_bytes());
        let (code, _, err) = collcast(&["simulate", "dgx-h100", "--nodes", "2", "-s", size, "--schedule", &path]);
        assert_eq!(code, 0, "{size}: {err}");
    }
    let (code, _, err) = collcast(&["convert", "h200x4", "-s", "64K", "--channels", "3"]);
    assert!(code == 0 && err.contains("the file is not for 64 KiB"), "{err}");
}

/// Goal: calls of a group share a choice, and channels are dealt to them: 48 small all-reduces take much less than one
/// after another.
#[test]
fn groups_are_one_kernel() {
    let (code, out, err) = collcast(&["simulate", "h200x4", "--group", "64K*48,all_gather:1M", "--format", "json"]);
    assert_eq!(code, 0, "{err}");
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    let (rows, calls) = (&json["rows"][0], json["calls"].as_array().unwrap());
    assert_eq!(calls.len(), 49);
    let choices: BTreeSet<u64> = calls.iter().map(|call| call["choice"].as_u64().unwrap()).collect();
    assert_eq!(choices.len(), 2);
    assert!(rows["time_us"].as_f64().unwrap() < rows["apart_us"].as_f64().unwrap() / 4.0, "{rows}");
    let (_, table, _) = collcast(&["simulate", "h200x4", "--group", "64K*48,all_gather:1M"]);
    assert!(table.contains("1-48"), "{table}");
    // The all-gather has the most traffic of one call, so it is dealt first, and the reductions have what it leaves.
    let of = |call: usize| calls[call]["channels"].as_str().unwrap();
    assert!(of(48).starts_with('0') && !of(0).starts_with('0') && of(47) == "23", "{} {} {}", of(48), of(0), of(47));
}

/// Goal: ranks are placed as asked, and communicators that share NICs slow each other.
#[test]
fn ranks_are_placed_and_split() {
    let run = |args: &[&str]| -> serde_json::Value {
        let common = ["sweep", "dgx-h100", "--nodes", "4", "-s", "1G", "--algorithm", "ring", "--protocol", "simple"];
        let (code, out, err) = collcast(&[&common, args, &["--format", "json"]].concat());
        assert_eq!(code, 0, "{args:?}: {err}");
        serde_json::from_str(&out).unwrap()
    };
    let time = |args: &[&str]| run(args)["rows"][0]["time_us"].as_f64().unwrap();
    // The same GPUs in another order of ranks: NCCL's rings go host by host all the same.
    let (block, cyclic) = (time(&[]), time(&["--placement", "cyclic"]));
    assert!((block / cyclic - 1.0).abs() < 0.02, "{block} {cyclic}");
    // One GPU of each host: 8 communicators, each with a NIC of its own, take as long as one alone.
    let (alone, rails) = (time(&["--placement", "0,8,16,24"]), time(&["--split", "%8"]));
    assert!((rails / alone - 1.0).abs() < 0.02, "{alone} {rails}");
    // Two that share the GPUs' NICs of each host pairwise take longer than one.
    let both = run(&["--split", "/16"]);
    assert_eq!((&both["rows"][0]["ranks"], &both["rows"][0]["nodes"]), (&16.into(), &2.into()));
    assert!(both["assumptions"].to_string().contains("2 communicators of up to 16 ranks"), "{both}");
    // Of several the slowest counts, whichever is named first.
    let small = |args: &[&str]| {
        let common = ["sweep", "dgx-h100", "--nodes", "2", "--profile", "prior", "-s", "512K", "--format", "csv"];
        let (code, out, err) = collcast(&[&common, args].concat());
        assert_eq!(code, 0, "{args:?}: {err}");
        let row = out.lines().rfind(|line| !line.starts_with('#')).unwrap_or_default();
        // All but what it took to simulate.
        row.split(",latency,").next().unwrap_or_default().to_owned()
    };
    let slowest = small(&["--placement", "6,7,8"]);
    for placement in ["6,7,8,0,1,2", "0,1,2,6,7,8"] {
        assert_eq!(small(&["--placement", placement, "--split", "/3"]), slowest, "{placement}");
    }
    check_refused(&["sweep", "--split", "8"], &["--split", "not a split"]);
    check_refused(&["sweep", "--placement", "99"], &["--placement", "GPU 99"]);
    check_refused(&["convert", "h200x4", "--split", "%2"], &["takes no --split"]);
}

/// Goal: one communicator has one profile, launch mode and time, however its ranks are chosen.
#[test]
fn a_communicator_is_forecast_by_its_own_hosts() {
    let run = |args: &[&str]| {
        let (code, out, err) = collcast(&[&["sweep", "dgx-h100", "-s", "80M", "--format", "json"], args].concat());
        assert_eq!(code, 0, "{args:?}: {err}");
        let report: serde_json::Value = serde_json::from_str(&out).unwrap();
        let notes: Vec<&str> = report["assumptions"].as_array().unwrap().iter().filter_map(|n| n.as_str()).collect();
        let note =
            |start: &str| notes.iter().find(|note| note.starts_with(start)).copied().unwrap_or_default().to_owned();
        (
            report["rows"][0]["time_us"].as_f64(),
            report["rows"][0]["nodes"].as_u64(),
            note("topology "),
            note("profile "),
        )
    };
    let one = run(&["--nodes", "1"]);
    assert!(one.1 == Some(1) && one.2.contains("1 host x 8") && one.2.contains("launch threads"), "{one:?}");
    for chosen in [&["--ranks", "8"][..], &["--placement", "0-7"], &["--ranks", "8", "--split", "/8"]] {
        assert_eq!(run(&[&["--nodes", "2"], chosen].concat()), one, "{chosen:?}");
    }
    let (_, nodes, machine, profile) = run(&["--nodes", "2", "--ranks", "9"]);
    assert!(nodes == Some(2) && machine.contains("launch processes") && profile != one.3, "{machine} {profile}");
}

/// Goal: several node counts print how bandwidth scales and which choice holds where.
#[test]
fn a_sweep_over_node_counts_prints_its_scaling() {
    let (code, out, err) = collcast(&["sweep", "dgx-h100", "--nodes", "2,4", "-s", "8K,1G", "--format", "json"]);
    assert_eq!(code, 0, "{err}");
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    let scaling = report["scaling"].as_array().unwrap();
    assert_eq!(scaling.len(), 4);
    assert_eq!((&scaling[0]["nodes"], &scaling[0]["efficiency"]), (&2.into(), &1.0.into()));
    let efficiency = scaling[1]["efficiency"].as_f64().unwrap();
    assert!(efficiency > 0.2 && efficiency < 1.0, "{efficiency}");
    assert!(report["crossovers"].as_array().unwrap().len() >= 2);
    assert_eq!(report["rows"].as_array().unwrap().len(), 4);
    let within = |p: &serde_json::Value| {
        p["time_us_low"].as_f64() < p["time_us"].as_f64() && p["time_us"].as_f64() < p["time_us_high"].as_f64()
    };
    assert!(scaling.iter().all(within), "{scaling:?}");
    // Sizes of an all-gather round by the number of ranks, and those that round to nothing are one row.
    let sizes =
        ["sweep", "dgx-h100", "--nodes", "2,3,4", "-c", "all_gather", "-s", "8,16,32,8K,16K,1M,2M", "--format", "json"];
    let (code, out, err) = collcast(&sizes);
    assert_eq!(code, 0, "{err}");
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    let bytes = |point: &serde_json::Value| point["size_bytes"].as_f64().unwrap();
    let scaling = report["scaling"].as_array().unwrap();
    assert_eq!(scaling.len(), 9);
    for alike in scaling.chunks(3) {
        let off = |point| (bytes(point) / bytes(&alike[0]) - 1.0).abs();
        assert!(alike.iter().all(|point| off(point) < 0.02) && alike[0]["efficiency"] == 1.0, "{alike:?}");
    }
    let empty = report["rows"].as_array().unwrap().iter().filter(|row| bytes(row) == 0.0);
    assert_eq!(empty.count(), 3);
    // Launch mode and profile are those of each row: one mode for all, and profiles that differ are all said.
    let (_, out, err) =
        collcast(&["sweep", "dgx-h100", "--nodes", "1,2,4", "-c", "all_gather", "-s", "4,5,6,1M", "--format", "json"]);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["launch"] == "processes"), "{rows:?}");
    let said: Vec<&str> = report["assumptions"].as_array().unwrap().iter().filter_map(|line| line.as_str()).collect();
    assert!(said[0].contains("4 hosts x 8") && said[0].contains("launch processes"), "{said:?}");
    assert!(said.iter().any(|line| line.starts_with("on 1 host: profile prior: ")), "{said:?}");
    assert!(!said.iter().any(|line| line.starts_with("on 2")), "{said:?}");
    let read = |name: &str| report["inputs"].as_array().unwrap().iter().any(|input| input["path"] == name);
    assert!(read("prior (built-in)") && read("hopper-ib-published (built-in)"), "{}", report["inputs"]);
    assert!(rows.len() == 6 && err.contains("are one row"), "4, 5 and 6 B are nothing each: {err}");
    // In place a rank alone moves nothing: it has a time, and no bandwidth.
    let (_, out, _) = collcast(&["sweep", "h200x2", "--ranks", "1", "--in-place", "-s", "1M"]);
    assert!(out.contains("all_reduce over 1 rank\n") && !out.contains("1 ranks"), "{out}");
    let (_, out, _) = collcast(&["sweep", "h200x2", "--ranks", "1", "--in-place", "-s", "1M", "--format", "json"]);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    let sentence = report["verdict"]["sentence"].as_str().unwrap();
    assert!(sentence.contains("over 1 rank: 1 MiB takes"), "{sentence}");
    // Ranks that the same hosts hold are one forecast.
    let (code, out, err) =
        collcast(&["sweep", "dgx-h100", "--nodes", "2,4", "--ranks", "8", "-s", "1M", "--format", "json"]);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(code == 0 && report["rows"].as_array().unwrap().len() == 1, "{out}");
    assert!(err.contains("note: the ranks are on 1 host with several of these --nodes: shown once"), "{err}");
    // The verdict is of the number that is least sure.
    let (code, _, err) = collcast(&["sweep", "dgx-h100", "--nodes", "2,16", "-s", "1M,1G"]);
    assert!(code == 0 && err.contains("all_reduce over 128 ranks") && err.contains("confidence: low: "), "{err}");
}

/// Goal: a scenario prints its parts, which add up, what would help, and a timeline; `--vary` a row
/// for each value.
#[test]
fn a_scenario_is_taken_apart_and_varied() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("step.json");
    let (code, out, err) =
        collcast(&["simulate", "ten-and-twelve", "--format", "json", "--timeline", trace.to_str().unwrap()]);
    assert_eq!(code, 0, "{err}");
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    let row = &json["rows"][0];
    let field = |key: &str| row[key].as_f64().unwrap();
    let parts = ["interference_ms", "launch_ms", "framework_ms", "unhidden_ms"].map(field).iter().sum::<f64>();
    assert!((field("compute_ms") - 10.0).abs() < 1e-9 && (parts - field("exposed_ms")).abs() < 1e-6, "{row}");
    assert!(json["advice"].as_array().unwrap().len() >= 3, "{out}");
    let trace: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    assert_eq!(events.iter().filter(|e| e["cat"] == "backward").count(), 40);
    assert_eq!(events.iter().filter(|e| e["cat"] == "data-parallel all_reduce").count(), 40);
    assert!(events.iter().any(|e| e["ph"] == "C"));

    let vary = ["--vary", "data_parallel.kind=none,at_end,ddp", "--format", "csv"];
    let (code, out, err) = collcast(&[&["simulate", "ten-and-twelve"][..], &vary].concat());
    assert_eq!(code, 0, "{err}");
    assert_eq!(out.lines().filter(|l| l.contains("data_parallel.kind=")).count(), 3, "{out}");
    assert!(
        err.contains("fastest of 3: data_parallel.kind=none, ") && err.contains("; slowest: data_parallel.kind="),
        "{err}"
    );

    // The same facts give the same confidence, whether a scenario is alone or one of several.
    let elsewhere = ["simulate", "ten-and-twelve", "--vary", "machine.topology=dgx-h100"];
    for more in [&[][..], &["--vary", "data_parallel.kind=at_end,ddp"]] {
        let (code, _, err) = collcast(&[&elsewhere[..], more].concat());
        assert!(
            code == 0
                && err.contains(
                    "low: computations take what they took on another kind of GPU; no measurement is behind profile prior"
                ),
            "{err}"
        );
    }
}

/// Goal: steps of more micro-batches are not slower for that, other layers are not ranked, and who does not count the kernels of
/// a long layer is told what is taken.
#[test]
fn variants_of_different_work_are_not_ranked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pp.toml");
    let text = "schema = \"collcast/scenario/1\"\nname = \"pp\"\nmachine = { topology = \"h200x4\" }\n\
                layout = { pipeline = 4, micro_batches = 4 }\n[[layers]]\nname = \"block\"\ncount = 4\n\
                forward = \"10 ms\"\nbackward = \"20 ms\"\noutput = \"1 MiB\"\n";
    std::fs::write(&path, text).unwrap();
    let said = |vary: &str| {
        let (code, out, err) = collcast(&["simulate", path.to_str().unwrap(), "--vary", vary]);
        assert_eq!(code, 0, "{err}");
        out + &err
    };
    let more = said("layout.micro_batches=4,8");
    assert!(
        more.contains("fastest of 2 by micro-batch: layout.micro_batches=8, ") && more.contains("ms a micro-batch")
    );
    assert!(more.contains("layer `block`: its forward pass is taken as 1 kernel") && more.contains("10.000 ms long"));
    assert!(said("layers.0.count=4,8").contains("2 variants whose layers are different work, not ranked"));
    let kernels = said("layers.0.kernels=1,20");
    assert!(kernels.contains("fastest of 2: layers.0.kernels=20, ") && !kernels.contains("is taken as 1 kernel"));
}

/// Goal: what a version of NCCL has not is not forecast for it: algorithms that came later, LL128 on GPUs that its list lacks;
/// where a list leaves nothing before 2.24, ring and tree are open again (`src/graph/tuning.cc` of 2.20.5 and 2.22.3).
#[test]
fn versions_do_what_they_can() {
    let (code, _, err) = collcast(&["simulate", "dgx-h100", "-s", "64M", "--algorithm", "nvls", "--nccl", "2.16.2"]);
    assert!(code == 2 && err.contains("NCCL 2.16.2 has no nvls; it came with 2.17"), "{err}");
    let pair = |args: &[&str]| -> String {
        let (code, out, err) = collcast(&[&["simulate"], args, &["--format", "json"]].concat());
        assert_eq!(code, 0, "{err}");
        let row = &serde_json::from_str::<serde_json::Value>(&out).unwrap()["rows"][0];
        format!("{}/{}", row["algorithm"].as_str().unwrap(), row["protocol"].as_str().unwrap())
    };
    let l40s = ["pcie-box", "--nodes", "4", "--gpus", "1", "-s", "4M", "--nccl"];
    assert_eq!(pair(&[&l40s[..], &["2.20.5"]].concat()), "ring/simple");
    assert_eq!(pair(&[&l40s[..], &["2.28.9"]].concat()), "ring/ll128");
    let only = ["dgx-h100", "--nodes", "4", "-s", "4K", "--env", "NCCL_ALGO=CollnetChain", "--nccl", "2.20.5"];
    assert_eq!(pair(&only), "tree/ll");
}

/// Goal: no interval of an exchange by a table begins below what its links carry: as much as of the same call without one.
#[test]
fn a_table_of_counts_has_the_bounds_of_its_call() {
    let row = (0..16).map(|_| "4194304").collect::<Vec<_>>().join(",") + "\n";
    let (_dir, path) = file("counts.csv", row.repeat(16).as_bytes());
    let low = |more: &[&str]| -> f64 {
        let args = ["simulate", "dgx-h100", "--nodes", "2", "-c", "all_to_all", "--format", "json"];
        let (code, out, err) = collcast(&[&args[..], more].concat());
        assert_eq!(code, 0, "{err}");
        serde_json::from_str::<serde_json::Value>(&out).unwrap()["rows"][0]["time_us_low"].as_f64().unwrap()
    };
    let (told, plain) = (low(&["--counts", &path]), low(&["-s", "256M"]));
    assert!((told / plain - 1.0).abs() < 1e-6, "{told} {plain}");
}

/// Goal: bus bandwidth of an exchange by a table is what crosses the busiest rank's links: with half of the bytes in one's own
/// place it is nccl-tests', and with none it is not less than the link carries. Expected by hand: 1 GB leaves each of two GPUs.
#[test]
fn a_table_of_counts_counts_what_others_get() {
    let row = |rows: &str| {
        let (_dir, path) = file("counts.csv", rows.as_bytes());
        let args = ["simulate", "dgx-h100", "--ranks", "2", "-c", "all_to_all", "--counts", &path, "--format", "json"];
        let (code, out, err) = collcast(&args);
        assert_eq!(code, 0, "{err}");
        let row = &serde_json::from_str::<serde_json::Value>(&out).unwrap()["rows"][0];
        ["time_us", "busbw_gbps"].map(|key| row[key].as_f64().unwrap())
    };
    for rows in ["0,250000000\n250000000,0\n", "250000000,250000000\n250000000,250000000\n", "0,250000000\n0,0\n"] {
        let [time_us, busbw] = row(rows);
        assert!((busbw * time_us * 1e3 / 1e9 - 1.0).abs() < 1e-9, "{rows}: {busbw} GB/s in {time_us} us");
    }
}

/// Goal: `NCCL_P2P_LL_THRESHOLD` moves the size up to which sends go by LL, as NCCL has it.
#[test]
fn sends_go_by_lines_up_to_the_threshold() {
    for (threshold, size, protocol) in [("0", "8K", "simple"), ("16384", "8K", "ll"), ("1000000000", "64M", "ll")] {
        let env = format!("NCCL_P2P_LL_THRESHOLD={threshold}");
        let args = ["simulate", "dgx-h100", "-c", "all_to_all", "-s", size, "--env", &env, "--format", "json"];
        let (code, out, err) = collcast(&args);
        assert_eq!(code, 0, "{err}");
        let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(answer["rows"][0]["protocol"], protocol, "{env}");
    }
}

/// Goal: what NCCL does not set up is refused where it is forced, too, and says why: NVLS where a host has one rank.
#[test]
fn nvls_needs_ranks_on_each_host() {
    let args = ["simulate", "dgx-h100", "--placement", "0-7,8", "--nodes", "2", "-s", "1G"];
    let forced = [&args[..], &["--algorithm", "nvls_tree"]].concat();
    let asked = [&args[..], &["--env", "NCCL_ALGO=NVLSTree"]].concat();
    for (args, says) in [(forced, "at least 2 ranks on every host"), (asked, "it needs two ranks on each host")] {
        let (code, _, err) = collcast(&args);
        assert!(code == 2 && err.contains(says), "{err}");
    }
}

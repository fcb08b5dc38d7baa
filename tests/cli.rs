//! Goal: what a user meets at the command line: output on stdout, notes and one verdict on
//! stderr, exit codes of the contract, and refusals that say what, where and the way out.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

use std::io::Write;
use std::process::{Command, Stdio};

fn collcast(args: &[&str]) -> (i32, String, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_collcast"))
        .args(args)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    (out.status.code().unwrap_or(-1), text(&out.stdout), text(&out.stderr))
}

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
        (&["sweep", "--algorithm", "nvls"], &["nvls"]),
        (&["sweep", "-c", "send_recv", "--in-place"], &["in-place"]),
        (&["sweep", "--schedule", "nowhere.xml"], &["read the schedule", "nowhere.xml"]),
        (&["sweep", "--schedule", "sim/tests/data/pairs2.xml"], &["pairs2.xml:1", "--in-place"]),
        (&["sweep", "--schedule", "a.xml", "--algorithm", "ring"], &["cannot be used with"]),
        (&["convert", "-c", "send_recv"], &["MSCCL XML has no send_recv"]),
        (&["sweep", "--profile", "h200-nvswich"], &["did you mean `h200-nvswitch`"]),
        (&["sweep", "--profile", "missing.toml"], &["missing.toml"]),
        (&["sweep", "--nodes", "0"], &["0"]),
        (&["simulate", "-s", "8,16"], &["exactly one point", "sweep"]),
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
    check_refused(&["simulate", template, "-s", "1M"], &["template", "topo import FILE --onto dgx-h100"]);
    let dir = tempfile::tempdir().unwrap();
    let merged = dir.path().join("merged.xml");
    let merged = merged.to_str().unwrap();
    let (code, _, err) = collcast(&["topo", "import", template, "--onto", "dgx-h100", "-o", merged]);
    assert!(code == 0 && err.contains("template:") && err.contains("machine:"), "{err}");
    let (code, out, err) = collcast(&["simulate", merged, "-s", "1M"]);
    assert!(code == 0 && out.contains("8 H100"), "{out}{err}");
}

#[test]
fn a_sweep_prints_a_table_and_one_verdict() {
    let (code, out, err) = collcast(&["sweep", "h200x4", "-s", "8:1G:8"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("topology h200x4") && out.contains("busbw GB/s"), "{out}");
    assert_eq!(err.lines().filter(|l| l.starts_with("ok:")).count(), 1, "{err}");
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
        "--trace",
        path.to_str().unwrap(),
    ]);
    assert_eq!(code, 0, "{err}");
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let kinds = |ph: &str| events.iter().filter(|e| e["ph"] == ph).count();
    assert!(kinds("X") > 100 && kinds("M") > 10 && kinds("C") > 20);
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
            &["sweep", name, "-s", "1M"],
        ] {
            let (code, out, err) = collcast(args);
            assert_eq!(code, 0, "{args:?}: {err}");
            assert!(out.len() > 100, "{args:?}");
        }
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
    let (_dir, wrong) = file("wrong.xml", xml.replacen("type=\"rrs\"", "type=\"rcs\"", 1).as_bytes());
    check_refused(&["simulate", "h200x4", "--schedule", &wrong, "-s", "1M"], &["does not do what it says", "rank"]);
}

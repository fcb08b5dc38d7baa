//! Goal: `collcast check` tells what moved NCCL's choices and our forecasts, in every format, and is
//! silent otherwise. Method: small suites of their own; none of them depends on what is predicted.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::common::collcast;

const TOPOLOGY: &str = r#"schema = "collcast/topology/1"
name = "box"
description = "four GPUs over NVSwitch"

[software]
nccl = "2.26.2"

[[hosts]]
gpus = { count = 4, kind = "H200-SXM5-141GB", compute_capability = 90, memory_rate = "4.8 TB/s" }
nvlink = { kind = "nvswitch", links_per_gpu = 18, rate_per_link = "25 GB/s" }
pcie = { generation = 5, lanes = 16, switches_per_socket = 0, sockets = 1, interconnect = "40 GB/s", cpu = "GenuineIntel" }
"#;

const PROFILE: &str = r#"schema = "collcast/profile/1"
name = "site"
evidence = "none"
uncertainty = 0.2

[parameters."efficiency.nvlink"]
value = 0.8
origin = "assumed"
source = "a test"

[parameters."kernel.simple"]
value = 10.0
origin = "assumed"
source = "a test"
"#;

const SUITE: &str = r#"schema = "collcast/suite/1"
sizes = ["64K", "256M"]
range = "64K:256M:4"
env = ["job.env"]

[[machines]]
topology = "box.toml"
profile = ["site.toml"]
"#;

/// Variables that keep the choice, so that a change of the machine shows in times.
const ENV: &str = "NCCL_ALGO=Ring\nNCCL_PROTO=Simple\nNCCL_NVLS_ENABLE=0\n";

/// A suite in a folder of its own, with its baseline.
struct Suite {
    folder: TempDir,
}

impl Suite {
    fn new(suite: &str) -> Self {
        let made = Self { folder: tempfile::tempdir().unwrap() };
        for (name, text) in [("box.toml", TOPOLOGY), ("site.toml", PROFILE), ("job.env", ENV), ("suite.toml", suite)] {
            std::fs::write(made.path(name), text).unwrap();
        }
        let (code, out, err) = made.check(&["--update"]);
        assert!(code == 0 && out.is_empty() && err.contains("ok: the baseline"), "{out}{err}");
        made
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn change(&self, name: &str, from: &str, to: &str) {
        let text = std::fs::read_to_string(self.path(name)).unwrap();
        assert!(text.contains(from), "{name} has no {from}:\n{text}");
        std::fs::write(self.path(name), text.replacen(from, to, 1)).unwrap();
    }

    fn check(&self, args: &[&str]) -> (i32, String, String) {
        let suite = self.path("suite.toml");
        collcast(&[&["check", suite.to_str().unwrap()], args].concat())
    }

    fn json(&self, args: &[&str]) -> (i32, Value) {
        let (code, out, err) = self.check(&[args, &["--format", "json"]].concat());
        assert!(code < 2, "{err}");
        (code, serde_json::from_str(&out).unwrap())
    }
}

fn findings(result: &Value) -> &Vec<Value> {
    result["findings"].as_array().unwrap()
}

/// A change of an input is caught, named with its values, and the sole cause of every finding; the
/// output has `kinds`.
fn check_caught(suite: &Suite, cause: &str, from_to: &str, kinds: &[&str]) {
    let (code, result) = suite.json(&[]);
    assert_eq!(code, 1, "{result}");
    let found = findings(&result);
    assert!(!found.is_empty());
    assert!(found.iter().all(|f| f["cause"] == cause), "{result}");
    for kind in kinds {
        assert!(found.iter().any(|f| f["kind"] == *kind), "{kind}: {result}");
    }
    let changed = result["changed"].as_array().unwrap();
    let row = changed.iter().find(|row| row["input"] == cause).unwrap();
    assert!(row["from_to"].as_str().unwrap().contains(from_to), "{row}");
    assert_eq!(row["caused"], found.len());
    for (format, expected) in [
        ("table", &["failed ", cause, from_to][..]),
        ("csv", &["verdict,kind,machine", "failed,", cause]),
        ("junit", &["<testcase classname=\"collcast.check.box\"", "<failure message=", cause]),
        ("markdown", &["### ❌ collcast check", "| failed |", cause]),
        ("github", &["::error title=box%2C NCCL ", cause]),
    ] {
        let (code, out, err) = suite.check(&["--format", format]);
        assert_eq!(code, 1, "{format}: {err}");
        assert!(expected.iter().all(|part| out.contains(part)), "{format} lacks some of {expected:?}:\n{out}");
        assert!(
            err.contains("failed: ")
                && err.contains(" unseen runs on all machines of this kind (")
                && err.contains(" off at ")
                && err.contains("; basis: "),
            "{err}"
        );
        assert_eq!(out, suite.check(&["--format", format]).1, "{format}: the same bytes again");
    }
}

#[test]
fn a_changed_constant_is_caught() {
    let suite = Suite::new(SUITE);
    suite.change("site.toml", "value = 0.8", "value = 0.6");
    check_caught(&suite, "profile", "efficiency.nvlink 0.8 -> 0.6", &["slower"]);
    // What is within the tolerance is nothing; what is accepted is nothing any more.
    assert_eq!(suite.check(&["--time-tolerance", "90%"]).0, 0);
    assert_eq!(suite.check(&["--update"]).0, 0);
    assert_eq!(suite.check(&["--strict"]).0, 0);
}

#[test]
fn a_changed_link_is_caught() {
    let suite = Suite::new(SUITE);
    suite.change("box.toml", "\"25 GB/s\"", "\"12.5 GB/s\"");
    check_caught(&suite, "topology", "8 nvlink of 450 GB/s -> 8 nvlink of 225 GB/s", &["slower"]);
}

#[test]
fn a_changed_setting_is_caught() {
    let suite = Suite::new(SUITE);
    suite.change("job.env", "NCCL_PROTO=Simple", "NCCL_PROTO=LL");
    check_caught(&suite, "settings", "NCCL_PROTO Simple -> LL", &["choice changed", "slower"]);
    let (_, result) = suite.json(&[]);
    let choice = findings(&result).iter().find(|f| f["kind"] == "choice changed").unwrap();
    assert!(choice["before"].as_str().unwrap().starts_with("ring/simple "), "{choice}");
    assert!(choice["after"].as_str().unwrap().starts_with("ring/ll "), "{choice}");
    assert!(choice["change"].as_f64().unwrap() > 0.02, "{choice}");
    // The loss is what fails, and the limit is the user's.
    let (code, result) = suite.json(&["--choice-tolerance", "100000%", "--time-tolerance", "100000%"]);
    assert_eq!(code, 0, "{result}");
    assert!(findings(&result).iter().all(|f| f["verdict"] == "reported"), "{result}");
}

/// Goal: fewer channels cost what they cost, whichever variable takes them, and programs read sizes, choices and channels as
/// keys. Method: 4 channels of NVLS, and of NVLS trees, in place of 16.
#[test]
fn fewer_channels_of_nvls_lose() {
    for (nodes, algorithm, variable) in [
        (1, "nvls", "NCCL_NVLS_NCHANNELS=4"),
        (1, "nvls", "NCCL_MAX_CTAS=4"),
        (2, "nvls_tree", "NCCL_NVLS_NCHANNELS=4"),
    ] {
        let suite = Suite::new(&format!(
            "schema = \"collcast/suite/1\"\nsizes = [\"1K\"]\nrange = \"64M:256M:2\"\nenv = [\"NCCL_ALGO={}\"]\n[[machines]]\n\
             topology = \"dgx-h100\"\nnodes = {nodes}\n",
            algorithm.replace('_', "")
        ));
        let told = format!("\"NCCL_ALGO={}\"", algorithm.replace('_', ""));
        suite.change("suite.toml", &told, &format!("{told}, \"{variable}\""));
        let (code, result) = suite.json(&[]);
        let choice = findings(&result).iter().find(|f| f["kind"] == "choice changed").unwrap();
        assert_eq!((code, choice["verdict"].as_str()), (1, Some("failed")), "{variable}: {choice}");
        assert!(choice["change"].as_f64() > Some(0.3), "{variable}: {choice}");
        let keys = ["from_bytes", "to_bytes", "channels_before", "channels_after"].map(|key| choice[key].as_u64());
        assert_eq!(keys, [Some(64 << 20), Some(256 << 20), Some(16), Some(4)], "{variable}: {choice}");
        let names = ["algorithm_before", "algorithm_after", "protocol_before", "protocol_after"];
        let names = names.map(|key| choice[key].as_str().unwrap());
        assert_eq!(names, [algorithm, algorithm, "simple", "simple"], "{variable}: {choice}");
        assert!(choice["before_us"].is_null(), "{choice}");
    }
}

/// Goal: errors beyond what a suite allows name that limit, whatever the baseline has; a suite without a collective is refused.
#[test]
fn limits_of_a_suite_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let suite = folder.path().join("suite.toml");
    let measured = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/h200x4/nccl.csv");
    let text = |collectives: &str| {
        format!(
            "schema = \"collcast/suite/1\"\nsizes = [\"1M\"]\ncollectives = {collectives}\n[[machines]]\ntopology = \"h200x4\"\n\
             [[measured]]\nname = \"x\"\nmachine = \"h200x4\"\nfiles = [\"{}\"]\nmax_error = \"0.1%\"\n",
            measured.display()
        )
    };
    let path = suite.to_str().unwrap();
    std::fs::write(&suite, text("[\"all_reduce\"]")).unwrap();
    let (code, _, err) = collcast(&["check", path, "--update"]);
    assert!(code == 0 && err.contains("above max_error of the suite (0.1%), and accepted all the same"), "{err}");
    let (code, out, err) = collcast(&["check", path]);
    assert!(
        code == 1 && (out + &err).contains("above max_error of the suite") && err.contains("raise max_error"),
        "{err}"
    );
    std::fs::write(&suite, text("[]")).unwrap();
    let (code, _, err) = collcast(&["check", path, "--update"]);
    assert!(code == 2 && err.contains("no collective"), "{err}");
}

/// Goal: a version that takes the place of another is held against it. NCCL's constants for NVLS and
/// trees changed between these; `strict`, since what the change costs is a forecast.
#[test]
fn a_changed_version_is_caught() {
    let suite = Suite::new(
        "schema = \"collcast/suite/1\"\nstrict = true\nnccl = [\"2.21.5\"]\nsizes = [\"1K\"]\n
        [[machines]]\nname = \"box\"\ntopology = \"dgx-h100\"\nnodes = 2\n",
    );
    suite.change("suite.toml", "2.21.5", "2.30.7");
    check_caught(&suite, "NCCL version", "2.21.5 -> 2.30.7", &["choice changed"]);
}

/// Goal: with several inputs changed, the one at fault is found by putting one back at a time, or
/// by all others being put back in vain; else all are named.
#[test]
fn one_cause_is_told_from_others() {
    let suite = Suite::new(SUITE);
    suite.change("job.env", "NCCL_ALGO", "NCCL_DEBUG=INFO\nNCCL_ALGO");
    assert_eq!(suite.check(&["--strict"]), (0, String::new(), suite.check(&[]).2), "a harmless setting");
    suite.change("site.toml", "value = 0.8", "value = 0.6");
    let causes = |suite: &Suite| -> Vec<String> {
        let (_, result) = suite.json(&[]);
        assert!(!findings(&result).is_empty());
        findings(&result).iter().map(|f| f["cause"].as_str().unwrap().to_owned()).collect()
    };
    assert!(causes(&suite).iter().all(|c| c == "profile"), "{:?}", causes(&suite));
    suite.change("site.toml", "value = 0.6", "value = 0.8");
    suite.change("box.toml", "\"25 GB/s\"", "\"12.5 GB/s\"");
    assert!(causes(&suite).iter().all(|c| c == "topology"), "{:?}", causes(&suite));
    suite.change("site.toml", "value = 0.8", "value = 0.4");
    let expected = "several changed: topology, profile";
    assert!(causes(&suite).iter().any(|c| c.starts_with(expected)), "{:?}", causes(&suite));
}

/// Goal: what only our own model moved is a class of its own, and fails only when asked to.
#[test]
fn our_own_model_is_a_class_of_its_own() {
    let suite = Suite::new(SUITE);
    let baseline = std::fs::read_to_string(suite.path("suite.baseline.toml")).unwrap();
    let line = |start: &str| baseline.lines().find(|l| l.starts_with(start)).unwrap();
    suite.change("suite.baseline.toml", line("model = "), "model = \"fnv1a64:0000000000000000\"");
    assert_eq!(suite.check(&["--strict"]).0, 0, "the model changed and nothing moved");
    suite.change("suite.baseline.toml", line("times_us = "), "times_us = { 64KiB = 1.0, 256MiB = 1.0 }");
    let (code, result) = suite.json(&[]);
    assert_eq!(code, 0, "{result}");
    assert_eq!(findings(&result).len(), 2);
    assert!(findings(&result).iter().all(|f| f["kind"] == "model moved, choice same"), "{result}");
    assert!(suite.check(&["--format", "github"]).1.starts_with("::warning title=box"));
    assert_eq!(suite.json(&["--strict"]).0, 1);
    // The same times with a changed choice are no such thing, nor with one that is not known.
    for to in ["16MiB ring/ll", "16MiB ring/simple"] {
        let written = std::fs::read_to_string(suite.path("suite.baseline.toml")).unwrap();
        suite.change("suite.baseline.toml", "256MiB ring/simple", to);
        let (code, result) = suite.json(&[]);
        assert!(code == 1 && findings(&result).iter().any(|f| f["kind"] == "slower"), "{to}: {result}");
        std::fs::write(suite.path("suite.baseline.toml"), written).unwrap();
    }
    // What makes calls slower beside it is named, and fails, though all are faster than they were.
    suite.change("suite.baseline.toml", "{ 64KiB = 1.0, 256MiB = 1.0 }", "{ 64KiB = 1e5, 256MiB = 1e5 }");
    suite.change("site.toml", "value = 0.8", "value = 0.6");
    let (code, result) = suite.json(&[]);
    let failed: Vec<&Value> = findings(&result).iter().filter(|f| f["verdict"] == "failed").collect();
    let [one] = failed.as_slice() else { panic!("{result}") };
    assert_eq!(
        (code, &one["kind"], &one["cause"], &one["size"]),
        (1, &"slower".into(), &"profile".into(), &"256MiB".into())
    );
}

#[test]
fn what_is_faster_or_new_is_reported_and_what_is_removed_fails() {
    let suite = Suite::new(SUITE);
    suite.change("site.toml", "value = 0.8", "value = 0.9");
    suite.change("suite.toml", "sizes = [\"64K\"", "sizes = [\"64K\", \"128K\"");
    suite.change("suite.toml", "[[machines]]", "[[machines]]\nname = \"another\"\ntopology = \"h200x4\"\n[[machines]]");
    let (code, result) = suite.json(&[]);
    assert_eq!(code, 0, "{result}");
    let kinds: Vec<(&str, &str, Option<&str>)> = (findings(&result).iter())
        .map(|f| (f["kind"].as_str().unwrap(), f["machine"].as_str().unwrap(), f["size"].as_str()))
        .collect();
    let expected = [("faster", "box", Some("256MiB")), ("new", "another", Some("")), ("new", "box", Some("128KiB"))];
    assert_eq!(kinds, expected);
    assert_eq!(result["verdict"]["status"], "warning");
    let times = ["from_bytes", "before_us", "after_us"].map(|key| findings(&result)[0][key].as_f64());
    assert!(times[0] == Some(f64::from(256 << 20)) && times[1] > times[2], "{result}");
    assert_eq!(suite.check(&["--strict"]).0, 1);
    let junit = suite.check(&["--format", "junit"]).1;
    assert!(junit.contains("failures=\"0\"") && junit.contains("<system-out>faster at 256MiB"), "{junit}");
    // A size, and a machine, that are gone: what is guarded no more is accepted, or fails.
    assert_eq!(suite.check(&["--update"]).0, 0);
    suite.change("suite.toml", "\"64K\", ", "");
    let (code, _, err) = suite.check(&[]);
    assert!(code == 1 && err.contains("removed at 64KiB") && err.contains("or put back what is gone"), "{err}");
    assert_eq!(suite.check(&["--update"]).0, 0);
    suite.change("suite.toml", "[[machines]]\nname = \"another\"\ntopology = \"h200x4\"\n", "");
    let (code, result) = suite.json(&[]);
    assert_eq!(
        (code, findings(&result)[0]["kind"].as_str(), findings(&result)[0]["machine"].as_str()),
        (1, Some("removed"), Some("another"))
    );
    let (code, junit, _) = suite.check(&["--format", "junit"]);
    assert!(code == 1 && junit.contains("failures=\"1\"") && junit.contains("name=\"another\""), "{junit}");
    // Choices are kept at some sizes as times are.
    assert_eq!(suite.check(&["--update"]).2.matches("removed: machine another").count(), 1);
    suite.change("suite.toml", "64K:256M:4", "1M:1G:4");
    let (code, result) = suite.json(&[]);
    let found = |kind: &str, size: &str| findings(&result).iter().any(|f| f["kind"] == kind && f["size"] == size);
    assert!(code == 1 && found("removed", "64KiB..256KiB") && found("new", "1GiB"), "{result}");
    assert!(suite.check(&["--update"]).2.contains("removed: box, NCCL 2.26.2, all_reduce: choices at 64KiB..256KiB"));
    // A baseline of something else.
    suite.change("suite.toml", "[[machines]]", "[[machines]]\nname = \"other\"");
    let (code, out, err) = suite.check(&[]);
    assert!(code == 1 && out.contains("failed") && err.contains("nothing was compared"), "{out}{err}");
}

/// Goal: what switches do is an input, and what nobody can compare with is no "nothing got worse". Method: the network
/// reduces no more, so that the old choice has no time.
#[test]
fn a_choice_of_unknown_loss_fails() {
    let suite = Suite::new(
        "schema = \"collcast/suite/1\"\nsizes = [\"2M\"]\nrange = \"8:1G:4\"\nnccl = [\"2.28.9\"]\n\
         env = [\"NCCL_COLLNET_ENABLE=1\", \"NCCL_ALGO=CollnetChain,Ring\"]\n[[machines]]\ntopology = \"box.toml\"\n",
    );
    let fabric = "schema = \"collcast/topology/1\"\nname = \"m\"\n[[hosts]]\ncount = 4\nlike = \"dgx-h100\"\n[fabric]\n\
                  kind = \"rail-optimised\"\nhosts_per_unit = 4\nleaf = { per = \"rail\", rate = \"400 Gb/s\", down = 4, up = 4 }\n\
                  spine = { count = 4, ports = 8 }\nsharp = true\nrouting = \"adaptive\"\n";
    std::fs::write(suite.path("box.toml"), fabric).unwrap();
    assert_eq!(suite.check(&["--update"]).0, 0);
    suite.change("box.toml", "sharp = true", "sharp = false");
    check_caught(&suite, "topology", "gone: SHARP", &["choice changed"]);
    let (_, result) = suite.json(&[]);
    let choices = || findings(&result).iter().filter(|f| f["kind"] == "choice changed");
    let unknown = |f: &&Value| f["change"].is_null() && f["verdict"] == "failed";
    assert!(choices().any(|f| unknown(&f)) && choices().any(|f| f["change"].is_number()), "{result}");
}

/// Goal: a version that comes is held against the nearest older one, which may stay.
#[test]
fn a_new_version_answers_to_the_nearest_older_one() {
    let suite = Suite::new(&SUITE.replace("sizes", "nccl = [\"2.21.5\", \"2.26.2\"]\nsizes"));
    let compared = |suite: &Suite| -> (Vec<Value>, Vec<Value>) {
        let (code, result) = suite.json(&["--strict"]);
        assert_eq!(code, 1, "{result}");
        let found = findings(&result).iter().map(|f| serde_json::json!([f["kind"], f["nccl"]])).collect();
        (found, result["changed"].as_array().unwrap().iter().map(|row| row["from_to"].clone()).collect())
    };
    let expected = |kind: &str, nccl: &str| (vec![serde_json::json!([kind, nccl])], vec!["2.26.2 -> 2.28.9".into()]);
    suite.change("suite.toml", "\"2.26.2\"]", "\"2.26.2\", \"2.28.9\"]");
    assert_eq!(compared(&suite), expected("new", "2.28.9"));
    suite.change("suite.toml", "\"2.21.5\", \"2.26.2\", ", "");
    assert_eq!(compared(&suite), expected("removed", "2.21.5"));
}

/// Goal: calls that NCCL refuses and names that it does not know are told of, accepted or not; a table lies beside the suite.
#[test]
fn warnings_are_there_when_all_passes() {
    let suite = Suite::new(&SUITE.replace("sizes", "collectives = [\"all_reduce\", \"broadcast\"]\nsizes"));
    std::fs::write(suite.path("tuner.csv"), "allreduce,0,1000000000,ring,simple,-1,-1,-1\n").unwrap();
    let env = "NCCL_ALGO=NVLS\nNCCL_ALG0=Ring\nNCCL_TUNER_CONFIG_FILE=tuner.csv\n";
    std::fs::write(suite.path("job.env"), env).unwrap();
    for args in [&["--update"][..], &[], &["--format", "github"], &["--format", "json"], &["--format", "junit"]] {
        let (code, _, err) = suite.check(args);
        assert_eq!(code, 0, "{err}");
        for part in ["NCCL_ALG0 is not a variable of NCCL", "NCCL 2.26.2 refuses broadcast at 64KiB..256MiB"] {
            assert_eq!(err.matches(part).count(), 1, "{args:?}: {err}");
        }
    }
    assert!(suite.check(&[]).2.contains("(NCCL refuses calls of 1)"));
    // Of several machines in one line.
    suite.change("suite.toml", "[[machines]]", "[[machines]]\nname = \"another\"\ntopology = \"h200x4\"\n[[machines]]");
    let (_, _, err) = suite.check(&[]);
    let lines: Vec<&str> = err.lines().filter(|line| line.contains("is not a variable of NCCL")).collect();
    assert!(lines.len() == 1 && lines[0].starts_with("warning: another and box: NCCL_ALG0"), "{err}");
}

#[test]
fn a_larger_error_against_measurements_is_caught() {
    let log = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/h200x4/all_reduce_Ring_Simple.log");
    let measured = format!("\n[[measured]]\nfiles = [{log:?}]\nmachine = \"box\"\nname = \"a run\"\n");
    let suite = Suite::new(&format!("{SUITE}{measured}"));
    assert_eq!(suite.check(&["--strict"]).0, 0);
    suite.change("site.toml", "value = 10.0", "value = 90.0");
    let (code, result) = suite.json(&["--time-tolerance", "10000%"]);
    assert_eq!(code, 1);
    let [finding] = findings(&result).as_slice() else { panic!("{result}") };
    assert_eq!((&finding["kind"], &finding["machine"]), (&"error changed".into(), &"a run".into()));
    assert_eq!(finding["cause"], "profile");
    assert_eq!(suite.check(&["--time-tolerance", "10000%", "--error-tolerance", "10000%"]).0, 0);
    // A limit holds whatever the baseline says.
    suite.change("suite.toml", "name = \"a run\"", "name = \"a run\"\nmax_error = \"1%\"");
    assert_eq!(suite.check(&["--update"]).0, 0);
    assert_eq!(suite.check(&[]).0, 1);
    // What it was stands beside what it is, and the change is between these.
    suite.change("site.toml", "value = 90.0", "value = 10.0");
    assert_eq!(suite.check(&["--update"]).0, 0);
    suite.change("site.toml", "value = 10.0", "value = 90.0");
    let (_, result) = suite.json(&["--time-tolerance", "10000%"]);
    let finding = findings(&result).iter().find(|f| f["kind"] == "error changed").unwrap();
    let number = |key: &str| finding[key].as_str().unwrap().split('%').next().unwrap().parse::<f64>().unwrap();
    let apart = (number("after") - number("before")) / 100.0;
    assert!((finding["change"].as_f64().unwrap() - apart).abs() < 1e-4, "{finding}");
    assert_eq!(finding["cause"], "above max_error of the suite (1%)");
    let shown = suite.check(&["--time-tolerance", "10000%"]).1;
    assert!(shown.contains(&format!("{:+.1} points", apart * 100.0)), "{shown}");
}

/// Goal: a log whose values were wrong, or whose run failed, is no measure of forecasts, and no baseline.
#[test]
fn wrong_measurements_are_refused() {
    let log = std::fs::read_to_string("tests/data/h200x4/all_reduce_Ring_Simple.log").unwrap();
    let suite = Suite::new(SUITE);
    suite.change(
        "suite.toml",
        "[[machines]]",
        "[[measured]]\nfiles = [\"run.log\"]\nmachine = \"box\"\nname = \"a run\"\n[[machines]]",
    );
    for (text, said) in [
        (log.replacen("N/A", "4", 1), "4 values were wrong"),
        (log.clone() + "srun: error: n1: task 0: Exited with exit code 1\n", "Exited with exit code 1"),
    ] {
        std::fs::write(suite.path("run.log"), text).unwrap();
        for args in [&[][..], &["--update"]] {
            let (code, out, err) = suite.check(args);
            assert!(code == 2 && err.contains("measured a run: ") && err.contains(said), "{out}{err}");
        }
    }
}

/// Goal: rows that are no more are told of, and forecasts of rows do not blame what they do not use.
#[test]
fn measured_rows_do_not_vanish() {
    let log = std::fs::read_to_string("tests/data/h200x4/all_reduce_Ring_Simple.log").unwrap();
    let suite = Suite::new(SUITE);
    std::fs::write(suite.path("all_reduce.log"), &log).unwrap();
    suite.change(
        "suite.toml",
        "[[machines]]",
        "[[measured]]\nfiles = [\"all_reduce.log\"]\nmachine = \"box\"\nname = \"box\"\n[[machines]]",
    );
    let junit = suite.check(&["--format", "junit"]).1;
    assert!(junit.contains("skipped=\"1\""), "the measurements are new, the machine is not: {junit}");
    assert_eq!(suite.check(&["--update"]).0, 0);
    suite.change("job.env", "NCCL_ALGO", "NCCL_BUFFSIZE=8388608\nNCCL_ALGO");
    let cut: Vec<&str> = log.lines().filter(|line| !line.trim_start().starts_with("8 ")).collect();
    std::fs::write(suite.path("all_reduce.log"), cut.join("\n").replacen(" 27.57 ", " what ", 1)).unwrap();
    let (code, result) = suite.json(&[]);
    let removed = findings(&result).iter().find(|f| f["kind"] == "removed").unwrap();
    assert_eq!(
        (code, &removed["before"], &removed["cause"]),
        (1, &"60 rows".into(), &"measurements".into()),
        "{result}"
    );
    assert!(result["warnings"][0].as_str().unwrap().starts_with("measured box: "), "{result}");
    // Without its logs as well.
    let measured = "[[measured]]\nfiles = [\"all_reduce.log\"]\nmachine = \"box\"\nname = \"box\"\n";
    suite.change("suite.toml", measured, "");
    let (code, out, err) = suite.check(&[]);
    assert!(code == 1 && out.contains("removed") && err.contains("box: removed"), "{out}{err}");
    suite.change("suite.toml", "[[machines]]", &format!("{measured}[[machines]]"));
    let written = std::fs::read_to_string(suite.path("suite.baseline.toml")).unwrap();
    let line = written.lines().find(|line| line.starts_with("median_error_percent")).unwrap();
    suite.change("suite.baseline.toml", line, "median_error_percent = nan");
    let (code, _, err) = suite.check(&[]);
    assert!(code == 2 && err.contains("`box` is NaN%"), "{err}");
}

/// Goal: a setting that changed and moves nothing is named, as one that is not modelled may matter.
#[test]
fn a_changed_setting_that_moves_nothing_is_named() {
    let suite = Suite::new(SUITE);
    suite.change("job.env", "NCCL_NVLS_ENABLE=0\n", "NCCL_NVLS_ENABLE=0\nNCCL_IB_HCA=mlx5_0\n");
    let (code, out, err) = suite.check(&[]);
    assert_eq!((code, out.as_str()), (0, ""), "{err}");
    assert!(err.contains("though settings did: NCCL_IB_HCA unset -> mlx5_0"), "{err}");
    // So is a version.
    let suite = Suite::new(SUITE);
    suite.change("suite.toml", "[\"site.toml\"]", "[\"site.toml\"]\nnccl = [\"2.28.3\"]");
    assert_eq!(suite.check(&["--update"]).0, 0);
    suite.change("suite.toml", "2.28.3", "2.28.9");
    let (code, _, err) = suite.check(&[]);
    assert!(code == 0 && err.contains("though the version of NCCL did: 2.28.3 -> 2.28.9"), "{err}");
}

#[test]
fn an_unchanged_run_is_silent() {
    let suite = Suite::new(SUITE);
    for format in ["table", "csv", "markdown", "github"] {
        let (code, out, err) = suite.check(&["--format", format]);
        assert_eq!((code, out.as_str(), err.lines().count()), (0, "", 1), "{format}: {err}");
        assert!(err.starts_with("ok: no choice and no time"), "{err}");
    }
    // Programs get a whole document; a file is written, or an old one would stay.
    let (code, result) = suite.json(&[]);
    assert_eq!((code, &result["schema"], findings(&result).len()), (0, &"collcast/check/1".into(), 0));
    let (code, out, _) = suite.check(&["--format", "junit"]);
    assert!(code == 0 && out.contains("tests=\"1\" failures=\"0\""), "{out}");
    let comment = suite.path("comment.md");
    assert_eq!(suite.check(&["--format", "markdown", "-o", comment.to_str().unwrap()]).0, 0);
    assert!(std::fs::read_to_string(comment).unwrap().starts_with("### ✅ collcast check"));
    let before = std::fs::read(suite.path("suite.baseline.toml")).unwrap();
    let (_, _, err) = suite.check(&["--update"]);
    assert!(err.contains("is up to date"), "{err}");
    assert_eq!(std::fs::read(suite.path("suite.baseline.toml")).unwrap(), before);
}

#[test]
fn mistakes_are_shown_where_they_are() {
    let suite = Suite::new(SUITE);
    for (from, to, expected) in [
        ("collcast/suite/1", "collcast/suite/9", &["suite.toml:1:10", "expected \"collcast/suite/1\""][..]),
        ("sizes = ", "size = ", &["the key `size` is not known", "did you mean `sizes`?"]),
        (
            "sizes = ",
            "collectives = [\"al_reduce\"]\nsizes = ",
            &["suite.toml:2:16", "did you mean `all_reduce`", "^^^"],
        ),
        ("\"64K\"", "\"64X\"", &["suite.toml:2:10", "64X"]),
        ("64K:256M:4", "64K:256M:1", &["suite.toml:3", "the factor `1`"]),
        ("range = ", "nccl = [\"two\"]\nrange = ", &["`two` is not a version of NCCL", "suite.toml:3"]),
        ("box.toml", "bocks.toml", &["neither a built-in topology nor a file", "suite.toml:7:12"]),
        ("site.toml", "sight.toml", &["sight.toml"]),
        ("job.env", "jobs.env", &["jobs.env", "suite.toml:4:8", "NAME=VALUE"]),
        ("[[machines]]", "[[machines]]\nnodes = 0", &["nodes is 0", "suite.toml:7:9"]),
        ("[[machines]]", "[[machines]]\ntopology = \"box.toml\"\n[[machines]]", &["`box` is there twice", "name = "]),
        ("[[machines]]", "[tolerance]\ntime = \"much\"\n[[machines]]", &["`much` is not a percentage"]),
        ("profile", "launch = \"thread\"\nprofile", &["`thread` is not a launch mode, did you mean `threads`"]),
        (
            "[[machines]]\ntopology = \"box.toml\"\nprofile = [\"site.toml\"]\n",
            "",
            &["the suite has no machine", "[[machines]]"],
        ),
    ] {
        let good = std::fs::read_to_string(suite.path("suite.toml")).unwrap();
        suite.change("suite.toml", from, to);
        let (code, out, err) = suite.check(&[]);
        assert_eq!((code, out.as_str()), (2, ""), "{to}: {err}");
        assert!(expected.iter().all(|part| err.contains(part)), "{to}:\n{err}");
        std::fs::write(suite.path("suite.toml"), good).unwrap();
    }
    let good = std::fs::read_to_string(suite.path("suite.baseline.toml")).unwrap();
    let choices = &good[good.find("choices = [").unwrap()..good.find("times_us").unwrap()];
    for (from, to) in [("\"64KiB", "\"64,KiB"), ("ring/", "rink/"), (choices, "choices = []\n")] {
        suite.change("suite.baseline.toml", from, to);
        let (code, _, err) = suite.check(&[]);
        assert!(code == 2 && err.contains("suite.baseline.toml") && err.contains("--update"), "{to}: {err}");
        std::fs::write(suite.path("suite.baseline.toml"), &good).unwrap();
    }
    std::fs::remove_file(suite.path("suite.baseline.toml")).unwrap();
    let (code, _, err) = suite.check(&[]);
    assert!(code == 2 && err.contains("has no baseline") && err.contains("suite.toml --update`"), "{err}");
    let other = suite.path("other.toml").display().to_string();
    let (code, _, err) = suite.check(&["--baseline", &other]);
    assert!(code == 2 && err.contains(&format!("suite.toml --baseline {other} --update`")), "{err}");
    for (args, expected) in [
        (&["check"][..], "<SUITE>"),
        (&["check", "no-such.toml"], "no-such.toml"),
        (&["check", "Cargo.toml"], "the key `"),
        (&["check", "checks/suite.toml", "--time-tolerance", "much"], "--time-tolerance"),
    ] {
        let (code, out, err) = collcast(args);
        assert!(code == 2 && out.is_empty() && err.contains(expected), "{args:?}: {err}");
    }
}

#[test]
fn the_schema_describes_every_key() {
    let (code, out, _) = collcast(&["check", "--schema"]);
    let schema: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &schema["title"]), (0, &"Collcast suite".into()));
    for key in ["schema", "machines", "collectives", "sizes", "range", "nccl", "env", "launch", "measured", "strict"] {
        assert!(schema["properties"][key]["description"].is_string(), "{key}");
    }
}

/// Goal: our own forecasts do not move unnoticed. After a change that is meant to move them:
/// `cargo run --release -- check checks/suite.toml --update`.
#[test]
fn our_own_suite_is_as_it_was_accepted() {
    let (code, out, err) = collcast(&["check", "checks/suite.toml", "--format", "json"]);
    assert_eq!(code, 0, "{err}");
    let result: Value = serde_json::from_str(&out).unwrap();
    assert!(result["overall"]["machines"].as_u64() >= Some(12), "{}", result["overall"]);
    assert!(result["overall"]["entries"].as_u64() >= Some(12 * 5 * 3), "{}", result["overall"]);
}

/// The commands of an example that start with `collcast `: of a shell, line breaks joined, or a list of words in YAML.
fn commands(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let before = ["# ", "run: ", "timeout 60 "];
    let lines = joined.lines().map(|line| {
        let line = before.iter().fold(line.trim(), |line, begin| line.trim_start_matches(begin));
        line.strip_prefix("command: [").map_or(line.to_owned(), |list| list.replace(['"', ',', ']'], ""))
    });
    lines
        .filter(|line| line.starts_with("collcast "))
        .map(|line| line.split(" ||").next().unwrap().to_owned())
        .collect()
}

/// Goal: the examples can be copied. Method: every command is read by our own command line, up to
/// the `--help` that is put at its end; scripts are read by bash; the suite runs.
#[test]
fn the_examples_are_right() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/ci");
    let mut files = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let is_yaml = name.contains(".y");
        if !is_yaml && !name.contains(".sh") {
            continue;
        }
        files += 1;
        let commands = commands(&text);
        assert!(!commands.is_empty(), "{name}");
        for command in commands {
            // The folder is of the container.
            let command = command.replace("/metrics/", "");
            let words: Vec<&str> = command.split_whitespace().map(|word| word.trim_matches('"')).collect();
            let (code, out, err) = collcast(&[&words[1..], &["--help"]].concat());
            assert!(code == 0 && out.contains("Usage: collcast"), "{name}: {command}: {err}");
        }
        if is_yaml {
            check_yaml(name, &text);
        } else {
            let status = Command::new("bash").arg("-n").arg(&path).status().unwrap();
            assert!(status.success(), "{name}");
        }
    }
    assert_eq!(files, 6);
    let copy = tempfile::tempdir().unwrap();
    for file in ["suite.toml", "nccl.env"] {
        std::fs::copy(folder.join(file), copy.path().join(file)).unwrap();
    }
    let suite = copy.path().join("suite.toml");
    let (code, _, err) = collcast(&["check", suite.to_str().unwrap(), "--update"]);
    assert_eq!(code, 0, "{err}");
}

/// What can be said of YAML without a parser: no tabs, even indentation, keys once in their map.
fn check_yaml(name: &str, text: &str) {
    let mut open: Vec<(usize, Vec<String>)> = Vec::new();
    let mut block: Option<usize> = None;
    for (number, line) in text.lines().enumerate() {
        let at = format!("{name}:{}: {line}", number + 1);
        assert!(!line.contains('\t') && line.trim_end() == line, "{at}");
        let indent = line.len() - line.trim_start().len();
        if line == "---" {
            open.clear();
        }
        if line.trim().is_empty() || line.trim_start().starts_with('#') || line == "---" {
            continue;
        }
        // The text of a block is not YAML.
        if block.is_some_and(|of| indent > of) {
            continue;
        }
        block = line.ends_with(" |").then_some(indent).or_else(|| line.trim().eq("- |").then_some(indent));
        assert_eq!(indent % 2, 0, "{at}");
        let item = line.trim_start().starts_with("- ");
        let (indent, body) =
            if item { (indent + 2, line.trim_start()[2..].trim_start()) } else { (indent, line.trim_start()) };
        open.retain(|(depth, _)| *depth < indent || (*depth == indent && !item));
        let Some((key, _)) = body
            .split_once(':')
            .filter(|(key, _)| key.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c)))
        else {
            assert!(item, "neither a key nor an item: {at}");
            continue;
        };
        if open.last().is_none_or(|(depth, _)| *depth < indent) {
            open.push((indent, Vec::new()));
        }
        let keys = &mut open.last_mut().unwrap().1;
        assert!(!keys.iter().any(|known| known == key), "a key twice: {at}");
        keys.push(key.to_owned());
    }
}

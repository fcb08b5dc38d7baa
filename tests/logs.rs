//! Goal: logs that are broken, or of another machine or several runs, do not pass as what they are not.
//! Method: nccl-tests text written here: healthy runs of an 8-GPU host, each with one thing wrong.

use std::fmt::Write as _;

use crate::common::collcast;
use serde_json::{Value, json};

/// Sizes of the runs, with what a DGX H100 takes with rings, roughly: the tests are of judgement, not of times.
const ROWS: [(u64, f64); 5] =
    [(1 << 20, 25.0), (4 << 20, 55.0), (16 << 20, 120.0), (64 << 20, 360.0), (1 << 30, 5280.0)];

/// One run of all-reduce over 8 GPUs as nccl-tests prints it: `line(size, time)` gives out-of-place time, in-place time
/// and wrong values.
fn log(gpu: &str, env: &str, line: impl Fn(u64, f64) -> (f64, f64, u64)) -> String {
    let mut text = String::from("# Collective test starting: all_reduce_perf\n");
    if !env.is_empty() {
        writeln!(text, "# env: {env}").unwrap();
    }
    text.push_str("# nThread 1 nGpus 1 minBytes 8\n# Using devices\n");
    for rank in 0..8 {
        writeln!(text, "#  Rank {rank} Group 0 Pid {} on n1 device {rank} [0000:0{rank}:00] NVIDIA {gpu}", 100 + rank)
            .unwrap();
    }
    for (size, time) in ROWS {
        let (out, within, wrong) = line(size, time);
        let half = |time: f64| {
            let algbw = size as f64 / time / 1e3;
            format!("{time:.2} {algbw:.2} {:.2} {wrong}", algbw * 1.75)
        };
        writeln!(text, "{size} {} float sum -1 {} {}", size / 4, half(out), half(within)).unwrap();
    }
    text + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 200 \n"
}

fn validate(text: &str, more: &[&str]) -> (i32, Value) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.log");
    std::fs::write(&path, text).unwrap();
    let (code, out, err) =
        collcast(&[&["validate", path.to_str().unwrap(), "-t", "dgx-h100", "--format", "json"], more].concat());
    (code, serde_json::from_str(&out).unwrap_or_else(|_| panic!("{err}")))
}

fn kinds(result: &Value) -> Vec<&str> {
    result["anomalies"].as_array().unwrap().iter().map(|a| a["kind"].as_str().unwrap()).collect()
}

const RINGS: &str = "NCCL_NVLS_ENABLE=0";

/// Goal: wrong results and tests that stopped are errors, whatever the times say.
#[test]
fn failed_runs_are_errors() {
    let healthy = log("H100 80GB HBM3", RINGS, |_, time| (time, time, 0));
    let (code, result) = validate(&healthy, &[]);
    assert!(!kinds(&result).contains(&"run_failed") && code == 0, "{:?}", result["anomalies"]);
    let wrong = log("H100 80GB HBM3", RINGS, |size, time| (time, time, u64::from(size > 1 << 24)));
    let stopped = healthy + "n1: Test NCCL failure common.cu:958 'unhandled system error'\n";
    for (text, says) in [(wrong, "1 values were wrong"), (stopped, "Test NCCL failure")] {
        let (code, result) = validate(&text, &["--no-doctor"]);
        assert_eq!((code, kinds(&result)), (1, vec!["run_failed"]));
        assert!(result["anomalies"][0]["evidence"].as_str().unwrap().contains(says), "{}", result["anomalies"]);
    }
}

/// Goal: wrong results fail also where nccl-tests wrote them as JSON, whose counts have a decimal point.
#[test]
fn wrong_results_in_json_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.json");
    let validate = |wrong: &str, bounds: u32| {
        let half = format!(r#"{{"time": 400.0, "alg_bw": 167.77, "bus_bw": 293.6, "nwrong": {wrong}}}"#);
        let okay = bounds == 0;
        let text = format!(
            r#"{{"args": ["all_reduce_perf"], "env": ["NCCL_NVLS_ENABLE=0"], "config": {{"nthreads": 1, "ngpus": 1,
            "devices": [{{"rank": 0, "hostname": "a"}}, {{"rank": 7, "hostname": "a"}}]}},
            "results": [{{"size": 67108864, "count": 16777216, "type": "float", "redop": "sum", "root": "    -1",
            "out_of_place": {half}, "in_place": {half}}}],
            "out_of_bounds": {{"count": {bounds}, "okay": "{okay}"}}}}"#
        );
        std::fs::write(&path, text).unwrap();
        let path = path.to_str().unwrap();
        let (code, out, err) = collcast(&["validate", path, "-t", "dgx-h100", "--no-doctor", "--format", "json"]);
        let result: Value = serde_json::from_str(&out).expect(&err);
        (code, result["anomalies"].to_string())
    };
    assert_eq!(validate("0.000000", 0), (0, "[]".to_owned()));
    for (wrong, bounds, says) in [("4096.000000", 0, "4096 values were wrong"), ("0.000000", 3, "3 values were out of")]
    {
        let (code, found) = validate(wrong, bounds);
        assert!(code == 1 && found.contains("run_failed") && found.contains(says), "{code} {found}");
    }
}

/// Goal: a log that ends before nccl-tests' last words is told as cut, by every command that reads it.
#[test]
fn a_log_that_was_cut_is_told() {
    let whole = log("H100 80GB HBM3", RINGS, |_, time| (time, time, 0));
    let cut = whole.split("# Out of bounds").next().unwrap();
    let said = |text: &str| validate(text, &["--no-doctor"]).1["warnings"].to_string();
    assert!(!said(&whole).contains("was stopped"), "{}", said(&whole));
    assert!(said(cut).contains("run.log:17: no `Out of bounds values`"), "{}", said(cut));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.log");
    std::fs::write(&path, cut).unwrap();
    let path = path.to_str().unwrap();
    let (_, out, err) = collcast(&["compare", path, path, "--format", "json"]);
    assert!(out.contains("the run was stopped"), "{out} {err}");
}

/// Goal: a run that hung, was killed or failed after its table is no pass in any format, whatever its rows reach. One whose end
/// says so is a failure; one without an end is one where a pass is asked for.
/// Method: a healthy run cut at each of its rows, with the words of launchers, kernels and of nobody.
#[test]
fn runs_that_end_badly_are_no_pass() {
    let whole = log("H100 80GB HBM3", RINGS, |_, time| (time, time, 0));
    let lines: Vec<&str> = whole.lines().collect();
    let rows = lines.iter().position(|line| line.starts_with("1048576 ")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.log");
    let path = path.to_str().unwrap();
    for (kept, end, failed) in [
        (2, "", false),
        (5, "", false),
        (0, "", true),
        (0, "srun: error: n1: tasks 0-7: Killed", true),
        (2, "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-28T03:30:00 DUE TO TIME LIMIT ***", true),
        (3, "slurmstepd: error: Detected 1 oom_kill event in StepId=123.0.", true),
        (5, "mpirun noticed that process rank 3 with PID 0 on node n1 exited on signal 11 (Segmentation fault).", true),
        (5, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", true),
        (7, "srun: error: n1: task 3: Exited with exit code 1", true),
    ] {
        let text: String = lines[..rows + kept].iter().chain([&end]).map(|line| format!("{line}\n")).collect();
        std::fs::write(path, text).unwrap();
        for (require_pass, expected) in [(false, failed), (true, true)] {
            let told = |format: &str| {
                let args = ["validate", path, "-t", "dgx-h100", "--no-doctor", "--format", format];
                let (code, out, err) =
                    collcast(&[&args[..], &["--require-pass"][..usize::from(require_pass)]].concat());
                assert_eq!(code, i32::from(expected), "{kept} {end} {format}: {out}{err}");
                out
            };
            let result: Value = serde_json::from_str(&told("json")).unwrap();
            let verdict = &result["verdict"];
            assert_ne!(result["health"], "pass", "{kept} {end}: {verdict}");
            assert_eq!(verdict["status"], if expected { "failed" } else { "warning" }, "{kept} {end}: {verdict}");
            assert_eq!(kinds(&result).contains(&"run_failed"), failed, "{kept} {end}: {verdict}");
            let sentence = verdict["sentence"].as_str().unwrap();
            assert!(
                sentence.starts_with(if failed { "run_failed" } else { "cannot tell" }),
                "{kept} {end}: {sentence}"
            );
            assert!(failed || sentence.contains("cut before nccl-tests' last words: "), "{sentence}");
            let (junit, github) = (told("junit"), told("github"));
            assert_eq!(junit.contains("<failure"), expected, "{kept} {end}: {junit}");
            assert_eq!(github.contains("::error"), expected, "{kept} {end}: {github}");
            assert!(expected || github.contains("::warning") && junit.contains("cannot tell"), "{github}{junit}");
            let mark = if expected { "### \u{274c}" } else { "### \u{26a0}" };
            assert!(told("markdown").contains(mark), "{kept} {end}: {}", told("markdown"));
        }
    }
}

/// Goal: a slow machine fails without any gate. A gate holds for rows where NCCL chose, and is not passed where no row
/// could be judged.
#[test]
fn gates_judge_something() {
    let slow = log("H100 80GB HBM3", RINGS, |_, time| (3.0 * time, 3.0 * time, 0));
    assert_eq!(validate(&slow, &["--no-doctor"]).0, 1);
    let healthy = log("H100 80GB HBM3", RINGS, |_, time| (time, time, 0));
    assert_eq!(validate(&healthy, &["--no-doctor", "--max-error", "1%"]).0, 1);
    for gate in ["--max-error", "--fail-below"] {
        let (code, result) = validate(&slow, &["--gpus", "4", "--no-doctor", gate, "50%"]);
        assert_eq!(code, 1, "{gate}");
        assert!(result["verdict"]["sentence"].as_str().unwrap().contains("no row could be judged"));
        assert_eq!(result["verdict"]["confidence"], "low: nothing was judged");
    }
}

/// Goal: `--require-pass` lets nothing through of which a part was not judged: a file without rows, a run that was cut, sizes
/// without a counterpart. JUnit has a case for each, also without that gate.
#[test]
fn a_pass_is_of_all_that_was_measured() {
    let good = log("H100 80GB HBM3", RINGS, |_, time| (time, time, 0));
    let other = log("H100 80GB HBM3", RINGS, |_, time| (time * 1.001, time * 1.001, 0));
    let cut = other.split("# Out of bounds").next().unwrap();
    let short: String =
        good.lines().filter(|line| !line.starts_with("1073741824 ")).map(|line| format!("{line}\n")).collect();
    for (name, beside, expected, says) in [
        ("whole.log", other.as_str(), &good, None),
        ("empty.log", "", &good, Some("empty.log")),
        ("talk.log", "no table here\n", &good, Some("talk.log")),
        ("cut.log", cut, &good, Some("the run was stopped")),
        ("whole.log", &other, &short, Some("2 rows have no counterpart")),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (runs, against) = (folder.path().join("runs"), folder.path().join("good.log"));
        std::fs::create_dir(&runs).unwrap();
        std::fs::write(runs.join("a.log"), &good).unwrap();
        std::fs::write(runs.join(name), beside).unwrap();
        std::fs::write(&against, expected).unwrap();
        let args = ["validate", runs.to_str().unwrap(), "--against", against.to_str().unwrap(), "--format", "junit"];
        let (code, out, err) = collcast(&args);
        assert!(
            code == 0 && says.is_none_or(|says| out.contains("<skipped") && out.contains(says)),
            "{name}: {out}{err}"
        );
        let (code, out, err) = collcast(&[&args[..], &["--require-pass"]].concat());
        assert_eq!(
            (code, out.contains("type=\"unjudged\"")),
            (i32::from(says.is_some()), says.is_some()),
            "{name}: {out}{err}"
        );
        assert!(says.is_none() || err.contains("where --require-pass asks for a pass"), "{name}: {err}");
    }
}

/// Goal: times in place and out of place that differ by far, a run that is faster than the machine, and
/// a log of other GPUs are told as such.
#[test]
fn what_misleads_is_said() {
    let (_, result) = validate(&log("H100 80GB HBM3", RINGS, |_, time| (time, 4.0 * time, 0)), &[]);
    assert!(kinds(&result).contains(&"halves_differ"), "{:?}", result["anomalies"]);
    let (_, result) = validate(&log("H100 80GB HBM3", RINGS, |_, time| (time / 3.0, time / 3.0, 0)), &[]);
    assert_eq!(kinds(&result), ["faster_than_expected"]);
    let other = |gpu: &str| {
        let (_, result) = validate(&log(gpu, RINGS, |_, time| (time, time, 0)), &[]);
        result["warnings"].to_string().contains("`dgx-h100` has H100")
    };
    assert!(other("A100-SXM4-80GB") && other("H200") && !other("H100 80GB HBM3"));
    // Half of the ranks on other GPUs: both are named, and nothing is certain.
    let healthy = log("H100 80GB HBM3", RINGS, |_, time| (time, time, 0));
    let mixed = healthy.replace("device 7 [0000:07:00] NVIDIA H100 80GB HBM3", "device 7 [0000:07:00] NVIDIA H200");
    let (code, result) = validate(&mixed, &["--no-doctor"]);
    let (warnings, verdict) = (result["warnings"].to_string(), result["verdict"].to_string());
    assert!(warnings.contains("NVIDIA H100 80GB HBM3 and NVIDIA H200"), "{warnings}");
    assert!(
        code == 0 && result["health"] == "unsure" && verdict.contains("low: what is expected is of other GPUs"),
        "{verdict}"
    );
}

/// Goal: of several runs in one file each is judged under its own variables.
#[test]
fn runs_of_one_file_keep_their_variables() {
    let run = |env: String| log("H100 80GB HBM3", &env, |_, time| (time, time, 0));
    for nvls in [["0", "1"], ["1", "0"]] {
        let text = nvls.map(|on| run(format!("NCCL_NVLS_ENABLE={on}"))).concat();
        let (_, result) = validate(&text, &["--no-doctor"]);
        let at_1_gib: Vec<&str> = result["rows"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|r| r["size_bytes"] == 1 << 30 && r["in_place"] == false)
            .map(|r| r["algorithm"].as_str().unwrap())
            .collect();
        assert_eq!(at_1_gib, nvls.map(|on| if on == "1" { "nvls" } else { "ring" }));
    }
}

/// Goal: a log that does not say its collective is that of `-c`, for every command that reads logs; each run of a file is
/// forecast with its own NCCL version.
#[test]
fn logs_that_say_little_are_completed() {
    let text = log("H100 80GB HBM3", RINGS, |_, time| (time, time, 0));
    let silent = text.replace("# Collective test starting: all_reduce_perf\n", "");
    assert_eq!(validate(&silent, &["-c", "all_reduce", "--no-doctor"]).0, validate(&text, &["--no-doctor"]).0);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.log");
    std::fs::write(&path, silent).unwrap();
    let path = path.to_str().unwrap();
    for (args, way_out) in [
        (&["validate", path, "-t", "dgx-h100"][..], "-c all_reduce"),
        (&["compare", path, path], "-c all_reduce"),
        (&["compare", path, path, "-c", "all_reduse"], "did you mean `all_reduce`?"),
        (&["calibrate", path, "-t", "dgx-h100"], "-c all_reduce"),
        (&["tune", "dgx-h100", "--measurements", path], "-c all_reduce"),
    ] {
        let (code, _, err) = collcast(args);
        assert!(code == 2 && err.contains(way_out), "{args:?}: {err}");
    }
    assert_eq!(collcast(&["compare", path, path, "-c", "all_reduce"]).0, 0);
    let versions = ["2.19.3", "2.28.9"].map(|version| format!("NCCL version {version}+cuda12.4\n{text}")).concat();
    let (_, result) = validate(&versions, &["--no-doctor"]);
    let said = result["assumptions"].to_string();
    assert!(said.contains("NCCL versions: 2.19.3 (10 rows), 2.28.9 (10 rows)") && !said.contains("rules"), "{said}");
}

/// Goal: times of CPU threads are never held against forecasts of GPUs, nor beside times of GPUs.
#[test]
fn times_of_cpu_threads_stand_apart() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, before: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("{before}collective,ranks,size_bytes,time_us\nall_reduce,4,67108864,900\n"))
            .unwrap();
        path.to_str().unwrap().to_owned()
    };
    let cpu = write("cpu.csv", "# measured by backend host on threads on 2 CPU cores; no GPU is involved\n");
    let gpu = write("gpu.csv", "");
    for args in [
        &["validate", &cpu, "-t", "h200x4"][..],
        &["validate", &gpu, &cpu, "-t", "h200x4"],
        &["validate", &cpu, "--against", &gpu],
        &["validate", &gpu, "--against", &cpu],
        &["compare", &cpu, &gpu],
        &["calibrate", &cpu, "-t", "h200x4"],
        &["tune", "h200x4", "--measurements", &cpu],
    ] {
        let (code, _, err) = collcast(args);
        assert!(code == 2 && err.contains("cpu.csv` was measured on CPU threads"), "{args:?}: {err}");
    }
    assert_eq!(collcast(&["validate", &cpu, "--against", &cpu]).0, 0);
}

/// The same run as `-J` of nccl-tests writes it, so many times as long, with what NCCL warned of last.
fn json(gpu: &str, factor: f64, warned: &[&str], last: &Value) -> String {
    let devices: Vec<Value> = (0..8)
        .map(|rank| {
            let bus = format!("0000:0{rank}:00");
            json!({"rank": rank, "group": 0, "pid": 100 + rank, "hostname": "n1", "device": rank, "device_hex": bus,
                "device_info": format!("NVIDIA {gpu}")})
        })
        .collect();
    let result = |(size, time): (u64, f64)| {
        let algbw = size as f64 / (time * factor) / 1e3;
        let half = json!({"time": time * factor, "alg_bw": algbw, "bus_bw": algbw * 1.75, "nwrong": 0.0});
        json!({"size": size, "count": size / 4, "type": "float", "redop": "sum", "root": "-1", "out_of_place": half,
            "in_place": half})
    };
    json!({"version": 2, "args": ["all_reduce_perf"], "env": [RINGS], "nccl_version": 22_703,
        "config": {"nthreads": 1, "ngpus": 1, "graph": 0, "iterations": 20, "devices": devices},
        "results": ROWS.map(result), "out_of_bounds": last, "errors": warned})
    .to_string()
}

/// Goal: a run that hung after its device lines fails its log, though that of another test after it is healthy. The same test was
/// started anew.
#[test]
fn a_run_that_hung_before_another_is_not_lost() {
    let healthy = log("H100 80GB HBM3", RINGS, |_, time| (time, time, 0));
    let (head, _) = healthy.split_once("1048576").unwrap();
    let (code, _) = validate(&format!("{head}{healthy}"), &["--no-doctor"]);
    assert_eq!(code, 0);
    let head = head.replace("all_reduce_perf", "all_gather_perf");
    let (code, result) = validate(&format!("{head}{healthy}"), &["--no-doctor"]);
    assert_eq!((code, &kinds(&result)[..]), (1, &["run_failed"][..]), "{}", result["anomalies"]);
    let evidence = result["anomalies"][0]["evidence"].as_str().unwrap();
    assert!(evidence.contains("the run ended before its first row"), "{evidence}");
}

/// Goal: runs of several communicators at once are no runs of one over all ranks, in text and in JSON.
#[test]
fn splits_are_refused() {
    let text = log("H100 80GB HBM3", RINGS, |_, time| (time, time, 0)).replace("Rank 7 Group 0", "Rank 7 Group 1");
    let json = json("H100 80GB HBM3", 1.0, &[], &json!({"count": 0, "okay": "true"}));
    for (name, text) in [("run.log", text), ("run.json", json.replacen("\"group\":0", "\"group\":1", 1))] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let (code, _, err) = collcast(&["validate", path.to_str().unwrap(), "-t", "dgx-h100"]);
        assert!(code == 2 && err.contains("several communicators at once (NCCL_TESTS_SPLIT): groups 0 to 1"), "{err}");
    }
}

/// Goal: what NCCL warned of last, which it never forgets, is a note of a run that came to a good end, and an error of
/// another.
#[test]
fn a_last_warning_is_no_failure() {
    let good = json!({"count": 0, "okay": "true"});
    let text = log("H100 80GB HBM3", RINGS, |_, time| (time, time, 0)) + "# error: NET/IB : no device\n";
    let json = |last| json("H100 80GB HBM3", 1.0, &["NET/IB : no device"], last);
    for (text, code) in [(text, 0), (json(&good), 0), (json(&Value::Null), 1)] {
        let (found, result) = validate(&text, &["--no-doctor"]);
        assert_eq!(
            (found, kinds(&result).contains(&"run_failed")),
            (code, code == 1),
            "{text}: {}",
            result["anomalies"]
        );
        let notes = result["files"].to_string();
        assert_eq!(notes.contains("NCCL's last warning: NET/IB : no device"), code == 0, "{}", result["files"]);
    }
}

/// Goal: times of other GPUs than the machine's are no evidence of a fault, whatever the doctor would make of them.
#[test]
fn other_gpus_have_no_cause() {
    let good = json!({"count": 0, "okay": "true"});
    let slow = |size: u64, time: f64| time * if size > 32 << 20 { 1.9 } else { 1.3 };
    let text = log("A100-SXM4-80GB", RINGS, |size, time| (slow(size, time), slow(size, time), 0));
    for text in [text, json("A100-SXM4-80GB", 1.9, &[], &good)] {
        let (code, result) = validate(&text, &[]);
        assert_eq!((code, kinds(&result).len()), (0, 0), "{}", result["anomalies"]);
        let warned = result["warnings"].to_string();
        assert!(result["health"] == "unsure" && warned.contains("name the machine that was measured"), "{warned}");
    }
}

/// Goal: the cause of a slow run is its own, where another failed; what to run next is about it too.
#[test]
fn a_failed_run_is_no_cause_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let slow = log("H100 80GB HBM3", RINGS, |_, time| (2.0 * time, 2.0 * time, 0));
    std::fs::write(folder.path().join("a.log"), log("H100 80GB HBM3", RINGS, |_, time| (time, time, 3))).unwrap();
    std::fs::write(folder.path().join("b.log"), slow).unwrap();
    let path = folder.path().display().to_string();
    let (code, out, _) = collcast(&["validate", &path, "-t", "dgx-h100", "--format", "json"]);
    let result: Value = serde_json::from_str(&out).unwrap();
    let says = result["verdict"]["sentence"].as_str().unwrap();
    assert!(code == 1 && says.starts_with("slow (1 of 2 runs)") && says.contains("runs failed at"), "{says}");
    assert!(!says.contains("likely cause: run_failed"), "{says}");
    let next = result["verdict"]["next"].as_str().unwrap();
    assert!(!next.contains("what corrupts the data"), "{next}");
}

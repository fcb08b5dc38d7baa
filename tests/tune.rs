//! `collcast tune` as a user runs it: what it advises, what it refuses to advise, the files.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::common::collcast;
use serde_json::Value;

/// Rows of all-reduce on 4 GPUs over some sizes: the forecast of ring and tree with each
/// protocol, times `factor(algorithm, protocol, size)`.
fn measured(name: &str, sizes: &str, factor: impl Fn(&str, &str, u64) -> f64) -> PathBuf {
    let (code, text, _) = collcast(&[
        "sweep",
        "h200x4",
        "-s",
        sizes,
        "--algorithms",
        "ring,tree",
        "--protocols",
        "ll,ll128,simple",
        "--format",
        "json",
    ]);
    assert_eq!(code, 0);
    let rows: Value = serde_json::from_str(&text).unwrap();
    let mut csv = "run,collective,ranks,launch,algorithm,protocol,size_bytes,time_us\n".to_owned();
    for row in rows["rows"].as_array().unwrap() {
        let (a, p) = (row["algorithm"].as_str().unwrap(), row["protocol"].as_str().unwrap());
        let size = row["size_bytes"].as_u64().unwrap();
        let us = row["time_us"].as_f64().unwrap() * factor(a, p, size);
        writeln!(csv, "{a}_{p},all_reduce,4,threads,{a},{p},{size},{us}").unwrap();
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.csv"));
    std::fs::write(&path, csv).unwrap();
    path
}

fn tune(args: &[&str]) -> Value {
    let (code, out, err) = collcast(&[&["tune", "--format", "json"], args].concat());
    assert_eq!(code, 0, "{err}");
    serde_json::from_str(&out).unwrap()
}

fn changes(report: &Value) -> Vec<&Value> {
    report["rows"].as_array().unwrap().iter().filter(|r| r["advice"] == "change").collect()
}

/// Goal: measured times that differ by noise advise nothing, and it is they that say so.
/// Method: the forecast's own times, off by up to 5% either way.
#[test]
fn noise_is_no_advice() {
    let noise = |a: &str, p: &str, size: u64| {
        let seed = size.trailing_zeros() * 7 + u32::try_from(a.len() * 5 + p.len() * 3).unwrap();
        1.0 + 0.05 * (f64::from(seed * 37 % 21) / 10.0 - 1.0)
    };
    let path = measured("noise", "1K:64M:4", noise);
    let report = tune(&["h200x4", "--measurements", path.to_str().unwrap()]);
    assert_eq!(changes(&report), Vec::<&Value>::new());
    assert_eq!(report["rows"].as_array().unwrap().iter().map(|r| r["gain"].as_f64().unwrap()).sum::<f64>(), 0.0);
    let verdict = &report["verdict"];
    assert_eq!((&verdict["basis"], &verdict["confidence"]), (&"measured".into(), &"high: measured here".into()));
    assert!(!verdict["next"].as_str().unwrap().contains("--measurements"), "{verdict}");
}

/// Goal: NCCL left free and forced to what it takes are one choice. Where both differ, others do not gain by their mean.
/// Method: forecasts as times; ring/LL, which NCCL takes up to 64 KiB, 1.6 times as long where it was left free. Tree/LL, at
/// 1.1 times the forced ring/LL, is faster than their mean.
#[test]
fn runs_of_one_choice_that_differ_are_no_gain() {
    let path = measured("free", "1K:64M:4", |_, _, _| 1.0);
    let mut csv = std::fs::read_to_string(&path).unwrap();
    let forced: Vec<String> = csv.lines().filter(|line| line.starts_with("ring_ll,")).map(str::to_owned).collect();
    for line in &forced {
        let fields: Vec<&str> = line.split(',').collect();
        let (size, us): (u64, f64) = (fields[6].parse().unwrap(), fields[7].parse().unwrap());
        if size <= 65_536 {
            writeln!(csv, "free,all_reduce,4,threads,,,{size},{}", 1.6 * us).unwrap();
        }
    }
    std::fs::write(&path, csv).unwrap();
    let report = tune(&["h200x4", "--measurements", path.to_str().unwrap()]);
    assert_eq!(changes(&report), Vec::<&Value>::new());
}

/// Goal: an algorithm that is faster at some sizes is advised there only, as measured, and no variable,
/// which would hold for all sizes.
/// Method: tree/LL takes half of ring/LL's time up to 64 KiB.
#[test]
fn a_faster_algorithm_is_found() {
    let path =
        measured("tree", "1K:64M:4", |a, p, size| if (a, p) == ("tree", "ll") && size <= 65_536 { 0.4 } else { 1.0 });
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tuned");
    let report = tune(&["h200x4", "--measurements", path.to_str().unwrap(), "-o", folder.to_str().unwrap()]);
    let changes = changes(&report);
    assert_eq!(changes.len(), 1, "{changes:?}");
    let change = changes[0];
    assert_eq!((&change["algorithm"], &change["protocol"]), (&"tree".into(), &"ll".into()));
    assert_eq!((&change["default_algorithm"], &change["basis"]), (&"ring".into(), &"measured".into()));
    // What is smaller was neither asked about nor measured.
    let begin = change["size_min_bytes"].as_u64().unwrap();
    assert!((513..=1024).contains(&begin), "{begin}");
    let end = change["size_max_bytes"].as_u64().unwrap();
    assert!((65_536..262_144).contains(&end), "{end}");
    assert!(change["gain"].as_f64().unwrap() > 0.2);

    // Each range has the channels of a line of the table.
    let lines = std::fs::read_to_string(folder.join("tuner.csv")).unwrap();
    for row in report["rows"].as_array().unwrap() {
        let [algorithm, protocol] = ["algorithm", "protocol"].map(|key| row[key].as_str().unwrap());
        let named = format!(",{},{algorithm},{protocol},{},1,4,", row["size_max_bytes"], row["channels"]);
        assert!(lines.contains(&named), "{named} is none of:\n{lines}");
    }

    // The table does what was advised, and leaves the rest to what NCCL would take.
    let config = format!("NCCL_TUNER_CONFIG_FILE={}", folder.join("tuner.csv").display());
    let plugin = "NCCL_TUNER_PLUGIN=libnccl-tuner-example.so";
    let sweep = |env: &[&str]| {
        let (code, out, err) = collcast(&[&["sweep", "h200x4", "-s", "1K:64M:4", "--format", "json"], env].concat());
        assert_eq!(code, 0, "{err}");
        let value: Value = serde_json::from_str(&out).unwrap();
        let row = |r: &Value| (r["algorithm"].clone(), r["protocol"].clone(), r["channels"].clone());
        value["rows"].as_array().unwrap().iter().map(row).collect::<Vec<_>>()
    };
    let (tuned, free) = (sweep(&["--env", plugin, "--env", &config]), sweep(&[]));
    assert_eq!(tuned[..4].iter().map(|r| &r.0).collect::<Vec<_>>(), ["tree"; 4]);
    assert_eq!(tuned[4..], free[4..]);
    for name in ["nccl.env", "tune.json", "tune.md"] {
        assert!(folder.join(name).is_file(), "{name}");
    }
}

/// Goal: one time that went wrong, between neighbours that agree, flips no choice and is named.
/// Method: forecasts as times; that of ring/LL at 16 KiB, which NCCL takes there, is doubled. Tree/LL takes 4% less than
/// the forecast of ring/LL: too little to be sure.
#[test]
fn one_wrong_time_flips_no_choice() {
    let wrong = |a: &str, p: &str, size: u64| match (a, p, size) {
        ("ring", "ll", 16_384) => 2.0,
        ("tree", "ll", _) => 0.88,
        _ => 1.0,
    };
    let path = measured("wrong", "1K:64M:4", wrong);
    let report = tune(&["h200x4", "--measurements", path.to_str().unwrap()]);
    assert_eq!(changes(&report), Vec::<&Value>::new());
    let warnings = report["warnings"].to_string();
    assert!(warnings.contains("1 measured times do not count") && warnings.contains("ring/ll at 16 KiB"), "{warnings}");
}

/// Goal: changes that were found for registered buffers are taken for these alone; NVIDIA's example finds NCCL's own choice
/// for others.
#[test]
fn changes_for_registered_buffers_are_for_these() {
    use collcast_tuner::table::{COLLECTIVES, Communicator, Table};

    let faster = |a: &str, p: &str, size: u64| if (a, p) == ("tree", "ll") && size <= 65_536 { 0.4 } else { 1.0 };
    let path = measured("registered", "1K:64M:4", faster);
    let text = std::fs::read_to_string(&path).unwrap();
    let (header, rows) = text.split_once('\n').unwrap();
    let rows = rows.lines().map(|row| format!("{row},1\n")).collect::<String>();
    std::fs::write(&path, format!("{header},registered\n{rows}")).unwrap();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tuned_registered");
    tune(&["h200x4", "--registered", "--measurements", path.to_str().unwrap(), "-o", folder.to_str().unwrap()]);
    let text = std::fs::read_to_string(folder.join("tuner.csv")).unwrap();
    let table = Table::read(&text, Communicator { ranks: 4, nodes: 1, a_domain: None }).unwrap();
    let all_reduce = COLLECTIVES.iter().position(|known| *known == "allreduce").unwrap();
    let changes = [true, false].map(|registered| table.matching(all_reduce, 4096, 1, registered).count());
    assert_eq!(changes, [1, 0], "{text}");
    let kept = text.split_once("# kept:").unwrap().1;
    let mut spans: Vec<(u64, u64)> = lines(kept.split_once('\n').unwrap().1).iter().map(|l| (l.1, l.2)).collect();
    spans.sort_unstable();
    assert_eq!((spans[0].0, spans.last().unwrap().1), (0, i64::MAX as u64), "{text}");
    assert!(spans.windows(2).all(|two| two[0].1 + 1 == two[1].0), "{text}");
    assert!(!kept.contains(",tree,") && !kept.contains(",1\n"), "{text}");
}

/// Goal: a folder has numbers for programs and words for people, in whatever format the terminal shows the answer.
#[test]
fn a_folder_has_numbers_for_programs() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("numbers");
    let args = ["h200x4", "-s", "1M,8G", "-o", folder.to_str().unwrap()];
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let as_json = tune(&args);
    assert_eq!(serde_json::from_str::<Value>(&read("tune.json")).unwrap(), as_json);
    let page = read("tune.md");
    let (code, shown, err) = collcast(&[&["tune"], &args[..]].concat());
    assert!(code == 0 && shown.contains(" end "), "{shown}{err}");
    assert_eq!(serde_json::from_str::<Value>(&read("tune.json")).unwrap(), as_json);
    assert!(as_json["rows"].as_array().unwrap().iter().all(|row| row["size_max_bytes"].is_u64()), "{as_json}");
    assert!(read("tune.md") == page && page.contains("| end |"), "{page}");
}

/// Goal: what helps at one size and harms at none is written as variables, which NCCL accepts, and
/// which do not turn on LL128 where NCCL has it off.
#[test]
fn variables_are_safe() {
    let always = |a: &str, _: &str, _: u64| if a == "tree" { 0.2 } else { 1.0 };
    let path = measured("always", "8:8G:2", always);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("always");
    let report = tune(&["h200x4", "--measurements", path.to_str().unwrap(), "-o", folder.to_str().unwrap()]);
    assert_eq!(report["environment"][0]["algorithms"], "tree", "{}", report["environment"]);
    let env = folder.join("nccl.env");
    let text = std::fs::read_to_string(&env).unwrap();
    assert!(text.contains("may slow others.\nNCCL_ALGO=allreduce:tree\n"), "{text}");
    // A list that forbids nothing here would turn LL128 on for communicators whose paths NCCL excludes.
    assert!(!text.contains("NCCL_PROTO") && report["environment"][0]["protocols"] == "", "{text}");
    assert!(!report["verdict"]["next"].as_str().unwrap().contains("nccl.env"), "{}", report["verdict"]);
    let (code, out, err) = collcast(&[
        "sweep",
        "h200x4",
        "-c",
        "all_reduce,broadcast",
        "-s",
        "64K",
        "--env",
        env.to_str().unwrap(),
        "--format",
        "csv",
    ]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("tree") && out.contains("broadcast"), "{out}");

    // A variable holds for sizes that nobody looked at too, and would take the place of one that is given.
    let some = measured("some", "1K:1M:4", always);
    let report = tune(&["h200x4", "--measurements", some.to_str().unwrap(), "-o", folder.to_str().unwrap()]);
    assert!(!changes(&report).is_empty() && report["environment"].as_array().unwrap().is_empty(), "{report}");
    let table = std::fs::read_to_string(folder.join("tuner.csv")).unwrap();
    let last = table.lines().rfind(|line| !line.starts_with('#')).unwrap();
    assert!(last.contains("ring,simple,24"), "{table}");
    let given = tune(&["h200x4", "--measurements", path.to_str().unwrap(), "--env", "NCCL_PROTO=^LL"]);
    assert!(given["environment"].as_array().unwrap().is_empty(), "{given}");

    // PCIe: LL128 is off there by NCCL's own rule.
    let (code, out, _) = collcast(&["tune", "pcie-box", "-c", "all", "-s", "1K:64M:8", "--format", "json"]);
    assert_eq!(code, 0);
    let report: Value = serde_json::from_str(&out).unwrap();
    for row in report["rows"].as_array().unwrap() {
        assert_ne!(row["protocol"], "ll128", "{row}");
    }
    for row in report["environment"].as_array().unwrap() {
        assert!(!row["protocols"].as_str().unwrap().contains("ll128"), "{row}");
    }
}

/// Goal: on the measured box NCCL's all-reduce choices are nearly the best there are, and the
/// forecast's own would lose little more.
#[test]
fn regret_on_real_data() {
    let report = tune(&["h200x4", "--measurements", "tests/data/h200x4/nccl.csv"]);
    let regret = report["regret"].as_array().unwrap();
    let measured = regret.iter().find(|r| r["basis"] == "measured").unwrap();
    assert!(measured["default_mean"].as_f64().unwrap() < 0.01, "{measured}");
    assert!(measured["forecast_mean"].as_f64().unwrap() < 0.05, "{measured}");
}

/// Goal: measured times that do not belong together give no settings: exit code 1 and the way out; `--force` writes them.
#[test]
fn shuffled_times_are_refused() {
    // Times of another size: from a third to three times what they were.
    let path = measured("shuffled", "1K:64M:4", |a, p, size| {
        3_f64.powi((size.ilog2() as i32 * 5 + a.len() as i32 * 3 + p.len() as i32) % 3 - 1)
    });
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("tuned").display().to_string();
    let args = ["tune", "h200x4", "--measurements", path.to_str().unwrap(), "-o", &at];
    let (code, _, err) = collcast(&args);
    assert!(code == 1 && err.contains("nothing to use") && err.contains("--force"), "{code}: {err}");
    assert!(!Path::new(&at).exists());
    let (code, _, err) = collcast(&[&args[..], &["--force"]].concat());
    assert!(code == 0 && Path::new(&at).join("tuner.csv").is_file(), "{err}");
}

/// Goal: the search measures through the executors of `bench`, on CPU threads here, and what it measured is read again.
#[test]
fn a_search_measures_and_its_times_are_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("tuned").display().to_string();
    let ask = ["tune", "h200x4", "--ranks", "2", "-s", "1K,64K", "--launch", "threads"];
    let search = ["--measure", "--backend", "host", "--budget", "1s", "--force", "-o", &at];
    let (code, _, err) = collcast(&[&ask[..], &search].concat());
    assert_eq!(code, 0, "{err}");
    let csv = std::fs::read_to_string(format!("{at}/measured.csv")).unwrap();
    assert!(csv.lines().count() > 2 && csv.starts_with("run,collective,algorithm"), "{csv}");
    let table = std::fs::read_to_string(format!("{at}/tuner.csv")).unwrap();
    assert!(table.contains("# Undo: "), "{table}");
    let changes = !table.contains("\n# changes:\n# kept");
    for name in ["slurm.sh", "kubernetes.yaml"] {
        let text = std::fs::read_to_string(format!("{at}/{name}")).unwrap();
        assert_eq!((text.contains("# Undo: "), text.starts_with("# Nothing to load: ")), (changes, !changes), "{text}");
    }
    let (code, out, err) =
        collcast(&[&ask[..], &["--measurements", &format!("{at}/measured.csv"), "--force"]].concat());
    assert!(code == 0 && (out.clone() + &err).contains("measured times: "), "{out}{err}");
    let (code, _, err) = collcast(&["tune", "h200x4", "--backend", "host"]);
    assert!(code == 2 && err.contains("--measure"), "{err}");
}

/// Goal: each communicator of a job is measured on ranks of its own, and the file says whose times are whose.
#[test]
fn communicators_are_measured() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("tuned").display().to_string();
    let ask = ["tune", "dgx-h100", "--communicators", "tp=2,dp=4", "-s", "1K,64K", "--launch", "threads"];
    let search = ["--measure", "--backend", "host", "--budget", "2s", "--force", "-o", &at];
    let (code, _, err) = collcast(&[&ask[..], &search].concat());
    assert_eq!(code, 0, "{err}");
    let csv = std::fs::read_to_string(format!("{at}/measured.csv")).unwrap();
    let ranks = |run: &str| -> Vec<String> {
        let rows = csv.lines().filter(|line| line.starts_with(run));
        rows.map(|line| line.split(',').nth(4).unwrap().to_owned()).collect()
    };
    // NVLS was off, and whoever reads files or table is told.
    let (table, beside) = (format!("{at}/tuner.csv"), format!("{at}/measured.toml"));
    let [table, beside] = [table, beside].map(|path| std::fs::read_to_string(path).unwrap());
    assert!(
        table.contains("\n# with: NCCL_NVLS_ENABLE=0\n") && beside.contains("NCCL_NVLS_ENABLE = \"0\""),
        "{beside}"
    );
    let (tp, dp) = (ranks("search:tp,"), ranks("search:dp,"));
    assert!(!tp.is_empty() && tp.iter().all(|ranks| ranks == "2"), "{csv}");
    assert!(!dp.is_empty() && dp.iter().all(|ranks| ranks == "4"), "{csv}");
    assert_eq!(csv.lines().count(), 1 + tp.len() + dp.len(), "{csv}");
}

/// Lines of a table: collective, first and last byte count, algorithm, hosts and ranks.
fn lines(table: &str) -> Vec<(String, u64, u64, String, String)> {
    let line = |line: &str| {
        let f: Vec<&str> = line.split(',').collect();
        (f[0].to_owned(), f[1].parse().unwrap(), f[2].parse().unwrap(), f[3].to_owned(), format!("{}x{}", f[6], f[7]))
    };
    table.lines().filter(|l| !l.starts_with('#')).map(line).collect()
}

/// Goal: one table has lines for every communicator of a job, each from 0 bytes to the end without a hole or overlap.
#[test]
fn a_job_has_one_table() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("tuned").display().to_string();
    let job = ["dgx-h100", "--nodes", "4", "--communicators", "tp=4,dp=8", "-c", "all_reduce,all_gather"];
    let report = tune(&[&job[..], &["-s", "64K,1M,64M", "-o", &at]].concat());
    let named: Vec<&str> =
        report["rows"].as_array().unwrap().iter().map(|row| row["communicator"].as_str().unwrap()).collect();
    assert!(named.contains(&"tp") && named.contains(&"dp"), "{named:?}");
    let table = lines(&std::fs::read_to_string(format!("{at}/tuner.csv")).unwrap());
    for shape in ["1x4", "4x8"] {
        for collective in ["allreduce", "allgather"] {
            let mut spans: Vec<(u64, u64)> =
                table.iter().filter(|l| l.0 == collective && l.4 == shape).map(|l| (l.1, l.2)).collect();
            spans.sort_unstable();
            assert_eq!((spans[0].0, spans.last().unwrap().1), (0, i64::MAX as u64), "{collective} {shape}: {spans:?}");
            assert!(spans.windows(2).all(|two| two[0].1 + 1 == two[1].0), "{collective} {shape}: {spans:?}");
        }
    }
    assert_eq!(table.iter().filter(|l| l.4 != "1x4" && l.4 != "4x8").count(), 0);
}

/// Goal: a communicator whose ranks are one a host shares each NIC with nobody, and one that is all of a machine is tuned as
/// that machine: the same choices.
#[test]
fn a_communicator_of_all_is_the_machine() {
    let ask = ["-s", "4K,1M,256M", "-c", "all_reduce"];
    let whole = tune(&[&["dgx-h100", "--nodes", "2"], &ask[..]].concat());
    let named = tune(&[&["dgx-h100", "--nodes", "2", "--communicators", "dp=16"], &ask[..]].concat());
    let rows = |report: &Value| -> Vec<(Value, Value, Value)> {
        let rows = report["rows"].as_array().unwrap().iter();
        rows.map(|r| (r["algorithm"].clone(), r["protocol"].clone(), r["predicted_us"].clone())).collect()
    };
    assert_eq!(rows(&whole), rows(&named));
}

/// Goal: the calls of a step are tuned where that makes the step faster, and the step with the table is what `simulate` says
/// of it.
#[test]
fn a_step_is_tuned() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("tuned").display().to_string();
    let report = tune(&["megatron-128", "-o", &at]);
    let step = &report["step"][0];
    let (default, tuned) = (step["default_ms"].as_f64().unwrap(), step["tuned_ms"].as_f64().unwrap());
    // Gradients of 100 MiB take 30% less time by a ring, beside a backward pass that takes no less.
    assert_eq!(tuned < default, !changes(&report).is_empty(), "{step}");
    let told = report["verdict"].to_string().contains("and the step takes no less time");
    assert!(tuned <= default && told == (tuned == default), "{report}");
    let calls: u64 = report["calls"].as_array().unwrap().iter().map(|call| call["calls"].as_u64().unwrap()).sum();
    assert!(calls > 100, "{}", report["calls"]);
    let simulated = |env: &[&str]| {
        let (code, out, err) = collcast(&[&["simulate", "megatron-128", "--format", "json"], env].concat());
        assert_eq!(code, 0, "{err}");
        let report: Value = serde_json::from_str(&out).unwrap();
        report["rows"][0]["step_ms"].as_f64().unwrap()
    };
    let table = format!("NCCL_TUNER_CONFIG_FILE={at}/tuner.csv");
    let plugin = "NCCL_TUNER_PLUGIN=libnccl-tuner-example.so";
    assert!((simulated(&[]) - default).abs() < 1e-3);
    assert!((simulated(&["--env", plugin, "--env", &table]) - tuned).abs() < 1e-3);
}

/// Goal: a rank that has two roles of one shape makes the calls of both, and a note names the role that has no line.
#[test]
fn roles_of_one_shape_add_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step.toml").display().to_string();
    let text = "schema = \"collcast/scenario/1\"\nname = \"step\"\n[machine]\ntopology = \"h200x4\"\n[layout]\ntensor = 2\n\
                data = 2\n[data_parallel]\nkind = \"ddp\"\nbucket = \"32 MiB\"\n[[layers]]\nname = \"block\"\ncount = 4\n\
                forward = \"1 ms\"\nbackward = \"2 ms\"\nparameters = [16777216]\noutput = \"32 MiB\"\nsum = \"32 MiB\"\n\
                sum_backward = \"32 MiB\"\n";
    std::fs::write(&path, text).unwrap();
    let report = tune(&[&path]);
    // In each of four layers one sum forward, one backward and one of gradients.
    assert_eq!((report["calls"].as_array().unwrap().len(), &report["calls"][0]["calls"]), (1, &12.into()), "{report}");
    let notes = report["assumptions"].to_string();
    assert!(
        notes.contains("data-parallel has as many ranks and hosts as tensor-parallel (2 ranks, 1 nodes)"),
        "{notes}"
    );
}

/// Goal: what cannot be tuned is refused with the way out.
#[test]
fn bad_questions_are_refused() {
    for (args, what) in [
        (&["tune", "h200x4", "-c", "all_to_all"][..], "nothing to choose for all_to_all"),
        (&["tune", "h200x4", "--algorithm", "ring"], "--env"),
        (&["tune", "h200x4", "--communicators", "tp"], "NAME=RANKS"),
        (&["tune", "h200x4", "--communicators", "tp=8"], "has 4 GPUs"),
        (&["tune", "h200x4", "--communicators", "tp=1"], "two ranks"),
        (&["tune", "h200x4", "--objective", "step"], "name a scenario"),
        (&["tune", "gpt-fsdp", "-c", "all_reduce"], "--collective has no meaning here"),
        (&["tune", "h200x4", "--ranks", "3", "--measurements", "tests/data/sockets"], "no measured row"),
        // Measured with FIFOs that are not NCCL's own.
        (
            &["tune", "h200x4", "--ranks", "2", "--measurements", "tests/data/h200x4_bench/nccl_buffers_lines_2.csv"],
            "no measured row",
        ),
    ] {
        let (code, _, err) = collcast(args);
        assert_eq!(code, 2, "{args:?}: {err}");
        assert!(err.contains(what), "{args:?}: {err}");
    }
}

/// Goal: the plugin, which may use nothing of the simulator, has the same names and places in NCCL's tables.
#[test]
fn the_plugin_counts_as_the_simulator_does() {
    use collcast::sim::collective::Algorithm::{self, CollnetChain, CollnetDirect, Nvls, NvlsTree, Ring, Tree};
    use collcast::sim::collective::{Collective, Protocol};
    use collcast::sim::nccl::{ALGORITHMS, FUNCTIONS};
    use collcast_tuner::{abi, table};

    assert_eq!(table::ALGORITHMS, ALGORITHMS.map(Algorithm::name));
    assert_eq!(table::PROTOCOLS.to_vec(), Protocol::ALL.iter().map(|p| p.name()).collect::<Vec<_>>());
    assert_eq!(table::COLLECTIVES.map(str::to_owned), FUNCTIONS.map(|(name, _)| name.to_lowercase()));
    let places = [abi::TREE, abi::RING, abi::COLLNET_DIRECT, abi::COLLNET_CHAIN, abi::NVLS, abi::NVLS_TREE];
    assert_eq!(places.map(|a| ALGORITHMS[a]), [Tree, Ring, CollnetDirect, CollnetChain, Nvls, NvlsTree]);
    assert_eq!(Protocol::ALL[abi::SIMPLE], Protocol::Simple);
    let collectives = [abi::ALL_GATHER, abi::REDUCE_SCATTER, abi::ALL_REDUCE].map(|c| FUNCTIONS[c].1);
    assert_eq!(collectives, [Collective::AllGather, Collective::ReduceScatter, Collective::AllReduce]);
}

/// Goal: our plugin reads what `tune` writes: of every collective and size it takes the advice, or NCCL's own choice.
#[test]
fn the_plugin_takes_what_is_advised() {
    use collcast::sim::nccl::{ALGORITHMS, FUNCTIONS};
    use collcast::tune::Request;
    use collcast_tuner::table::{COLLECTIVES, Communicator, MadeFor, PROTOCOLS, Table};

    for machine in ["h200x4", "pcie-box"] {
        let site = collcast::Site::load(machine).unwrap();
        let collectives = FUNCTIONS.map(|(_, collective)| collective).to_vec();
        let sizes = Some(vec![8, 4096, 1 << 20, 1 << 28]);
        let outcome = collcast::tune::tune(&site, &Request { collectives, sizes, ..Request::default() }).unwrap();
        let whole = Communicator { ranks: site.topology.ranks() as usize, nodes: 1, a_domain: None };
        let changes = Table::read(&outcome.tuner_csv, whole).unwrap();
        // As NVIDIA's example reads it.
        let table = Table::read(&outcome.tuner_csv.replace("# kept:", "#"), whole).unwrap();
        let gpu = site.topology.gpu(site.topology.gpu_of(collcast::sim::ids::Rank(0))).unwrap();
        assert!(MadeFor::of(&outcome.tuner_csv).check(None, Some(&format!("NVIDIA {}", gpu.model))).is_ok());
        for call in &outcome.calls {
            let name = call.collective.name().replace('_', "");
            let collective = COLLECTIVES.iter().position(|known| *known == name).unwrap();
            let entry = table.matching(collective, call.size_bytes, 1, false).next().unwrap();
            let ours = changes.matching(collective, call.size_bytes, 1, false).next();
            assert_eq!(ours, Some(entry).filter(|_| call.advice.is_some()), "{machine} {name}");
            let taken = (ALGORITHMS[entry.algorithm].name(), PROTOCOLS[entry.protocol], entry.channels);
            let advised = &call.taken().prediction;
            let (algorithm, protocol) = advised.instead_of.unwrap_or(call.taken().pair);
            assert_eq!(taken, (algorithm.name(), protocol.name(), call.taken().channels_most), "{machine} {name}");
        }
        // No size is left without a line.
        for (collective, bytes) in (0..COLLECTIVES.len()).flat_map(|c| [0, 7, 12_345, 1 << 40].map(|bytes| (c, bytes)))
        {
            assert!(table.matching(collective, bytes, 1, false).next().is_some(), "{machine} {collective} {bytes}");
        }
    }
}

/// Goal: advice does not reach far from the sizes that were asked about: between them stand NCCL's own choices.
#[test]
fn advice_ends_near_its_sizes() {
    let table = |sizes: &str| {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().to_str().unwrap();
        let (code, _, err) = collcast(&["tune", "dgx-h100", "-s", sizes, "--output", folder]);
        assert_eq!(code, 0, "{err}");
        let text = std::fs::read_to_string(dir.path().join("tuner.csv")).unwrap();
        let lines = text.lines().filter(|line| line.starts_with("allreduce,"));
        let cells = lines.map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>());
        // By size: what the table takes.
        let of = cells.map(|c| (c[1].parse().unwrap(), c[2].parse().unwrap(), format!("{} {} {}", c[3], c[4], c[5])));
        of.collect::<Vec<(u64, u64, String)>>()
    };
    let (sparse, full) = (table("1M,64M"), table("1M,2M,4M,8M,16M,32M,64M"));
    let takes = |table: &[(u64, u64, String)], bytes: u64| {
        let line = table.iter().find(|line| (line.0..=line.1).contains(&bytes));
        line.map(|line| line.2.clone()).unwrap()
    };
    for mebibytes in [1, 2, 4, 8, 16, 32, 64] {
        assert_eq!(takes(&sparse, mebibytes << 20), takes(&full, mebibytes << 20), "{mebibytes} MiB");
    }
}

/// Goal: a table is put to use and taken out again by two commands; what is no table or no library is refused.
#[test]
fn a_table_is_installed_and_undone() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (folder, env, plugin) = (at("tuned"), at("job.env"), at("plugin.so"));
    let (code, _, err) = collcast(&["tune", "h200x4", "-s", "1M", "--output", &folder]);
    assert_eq!(code, 0, "{err}");
    let table = std::fs::read_to_string(format!("{folder}/tuner.csv")).unwrap();
    let lines = table.lines().filter(|line| !line.starts_with('#')).count();
    assert!(
        table.contains("\n# for: nccl=2.28.9 gpu=H200 form=other\n") && table.contains("Every host needs the same"),
        "{table}"
    );
    assert!(table.ends_with(&format!("\n# end: {lines} lines\n")), "{table}");
    let before = "export NCCL_DEBUG=WARN\nNCCL_TUNER_PLUGIN=ofi\n";
    std::fs::write(&env, before).unwrap();
    std::fs::write(&plugin, "").unwrap();
    let install = ["tune", "install", &folder, "--into", &env, "--plugin", &plugin];
    let (code, out, err) = collcast(&install);
    assert!(code == 0 && out.is_empty() && err.contains("changes none of NCCL's choices"), "{out}{err}");
    let with = std::fs::read_to_string(&env).unwrap();
    let set = format!("\nexport COLLCAST_TUNER_TABLE={folder}/tuner.csv\nexport COLLCAST_TUNER_NEXT=ofi\n");
    assert!(with.contains(&set), "{with}");
    // The machine runs without NVLS, and the file does not say so.
    let (code, out, err) = collcast(&["lint", &env]);
    assert!(code == 0 && out.matches(" [").count() == 1 && out.contains("NCCL_NVLS_ENABLE=0"), "{out}{err}");
    assert_eq!(collcast(&["tune", "undo", &env]), (0, String::new(), String::new()));
    assert_eq!(std::fs::read_to_string(&env).unwrap(), before);
    // All else stays as it was, bytes that show nothing among it.
    let marked = "\u{feff}export NCCL_DEBUG=WARN\r\nNCCL_TUNER_PLUGIN=ofi\r\n";
    std::fs::write(&env, marked).unwrap();
    assert_eq!(collcast(&install).0, 0);
    let with = std::fs::read_to_string(&env).unwrap();
    assert!(with.starts_with("\u{feff}# collcast tune install: begin"), "{with}");
    let rest = "export NCCL_DEBUG=WARN\r\n# collcast tune install: was NCCL_TUNER_PLUGIN=ofi\r\n";
    assert!(with.ends_with(rest) && with.contains("\nexport COLLCAST_TUNER_NEXT=ofi\n"), "{with}");
    assert_eq!(collcast(&["tune", "undo", &env]), (0, String::new(), String::new()));
    assert_eq!(std::fs::read_to_string(&env).unwrap(), marked);
    let cut = at("cut.csv");
    std::fs::write(&cut, table.replace(&format!("# end: {lines} lines\n"), "")).unwrap();
    for (args, says) in [
        (&["tune", "install", &env, "--plugin", &plugin][..], "is no table"),
        (&["tune", "install", &folder, "--plugin", "/nowhere/x.so"][..], "cargo build"),
        (&["tune", "undo", "/nowhere/x.env"][..], "cannot read"),
        (&["tune", "h200x4", "-s", "1M", "--output", &at("run10:30")][..], "a `:` in the path"),
        (&["tune", "install", &cut, "--plugin", &plugin][..], "`# end:`, is not there"),
    ] {
        let (code, _, err) = collcast(args);
        assert!(code == 2 && err.contains(says), "{args:?}: {err}");
    }
}

/// Goal: times of other calls do not count: other buffers, reductions and element types. What is measured between the
/// sizes asked about has a word in the advice.
#[test]
fn rows_of_other_calls_do_not_count() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, rows: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, format!("collective,ranks,size_bytes,time_us,launch,in_place,dtype,op\n{rows}")).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let row = |bytes: u64, rest: &str| format!("all_reduce,4,{bytes},30,threads,{rest}\n");
    let some = [row(1 << 20, "0,float,sum"), row(1 << 20, "1,float,sum"), row(1 << 21, "0,half,sum")].concat();
    let some = file("some.csv", &(some + &row(1 << 21, "0,float,max") + &row(1 << 21, "0,float,sum")));
    let sizes = |args: &[&str]| -> (usize, String) {
        let (code, out, err) = collcast(&[&["tune", "h200x4", "--measurements", &some], args].concat());
        assert_eq!(code, 0, "{err}");
        (out.matches("\nall_reduce").count(), out + &err)
    };
    for (args, used) in [(&[][..], "2 rows"), (&["--in-place"], "1 rows"), (&["--dtype", "float16"], "1 rows")] {
        let said = sizes(args).1;
        assert!(said.contains(&format!("measured times: {used} launched by threads")), "{args:?}: {said}");
    }
    let other = sizes(&["-c", "all_gather", "-s", "1M"]).1;
    assert!(other.contains("threads, 2 of them of other collectives than are tuned (-c)"), "{other}");
    assert!(sizes(&["-s", "1M,4M"]).1.contains("at all 3 sizes"), "{}", sizes(&["-s", "1M,4M"]).1);
    let (code, _, err) = collcast(&["tune", "h200x4", "--measurements", &some, "--op", "min"]);
    assert!(code == 2 && err.contains("reduce by sum (--op)") && err.contains("in place (--in-place)"), "{err}");
}

/// Goal: times that several versions of NCCL took are named as such; those of one are not.
#[test]
fn versions_are_not_mixed_in_silence() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("versions.csv");
    for (other, says) in [("2.27.3", true), ("2.28.9", false)] {
        let row = |bytes: u32, version: &str| format!("all_reduce,4,{bytes},20,threads,{version}\n");
        let rows = row(1 << 20, "2.28.9") + &row(1 << 21, other);
        std::fs::write(&path, format!("collective,ranks,size_bytes,time_us,launch,nccl_version\n{rows}")).unwrap();
        let report = tune(&["h200x4", "--measurements", path.to_str().unwrap()]);
        let warnings = report["warnings"].to_string();
        assert_eq!(warnings.contains("NCCL 2.27.3 and 2.28.9"), says, "{warnings}");
    }
}

/// Goal: a table with a line that no plugin takes is refused when it is installed, and paths are quoted in a shell.
#[test]
fn what_is_installed_can_be_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("of a job").display().to_string();
    let plugin = dir.path().join("plugin.so").display().to_string();
    std::fs::write(&plugin, "").unwrap();
    assert_eq!(collcast(&["tune", "h200x4", "-s", "1M", "--output", &folder]).0, 0);
    let into = dir.path().join("job.sh").display().to_string();
    let install = ["tune", "install", &folder, "--into", &into, "--plugin", &plugin];
    assert_eq!(collcast(&install).0, 0);
    let lines = std::fs::read_to_string(&into).unwrap();
    assert!(lines.contains(&format!("\nexport COLLCAST_TUNER_TABLE='{folder}/tuner.csv'\n")), "{lines}");
    let table = std::fs::read_to_string(format!("{folder}/tuner.csv")).unwrap();
    for (from, to) in [(",24,", ",99,"), ("allreduce,0,", "allreduce,99999999999999,"), ("\nallreduce", "\nallreduces")]
    {
        assert!(table.contains(from), "{table}");
        std::fs::write(format!("{folder}/tuner.csv"), table.replacen(from, to, 1)).unwrap();
        let (code, _, err) = collcast(&install);
        assert!(code == 2 && err.contains("is no line of a table"), "{to}: {err}");
    }
}

/// A profile of hosts that are far apart, so that FIFOs of NCCL's size run dry.
const FAR: &str = r#"schema = "collcast/profile/1"
name = "far"
evidence = "made up: 5 ms between hosts"
uncertainty = 0.05
across_hosts = true
gpus = ["H100"]
launches = ["processes"]

[parameters]
"latency.network.ll" = { value = 5000.0, origin = "fitted", source = "made up" }
"latency.network.ll128" = { value = 5000.0, origin = "fitted", source = "made up" }
"latency.network.simple" = { value = 5000.0, origin = "fitted", source = "made up" }
"#;

/// Goal: where forecasts are sure that larger FIFOs save time over all calls, they are advised without a measurement: in the
/// answer, in all files with what undoes them, and in what `tune install` writes. They save what `simulate` says.
#[test]
fn a_forecast_advises_fifos() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (profile, folder, env, plugin) = (at("far.toml"), at("tuned"), at("job.env"), at("plugin.so"));
    std::fs::write(&profile, FAR).unwrap();
    let machine =
        ["dgx-h100", "--nodes", "2", "--profile", "prior", "--profile", &profile, "--env", "NCCL_NVLS_ENABLE=0"];
    let report = tune(&[&machine[..], &["-s", "64M:8G:2", "-o", &folder]].concat());
    let process = report["process"].as_array().unwrap();
    assert_eq!((process.len(), &process[0]["advice"]), (1, &"change".into()), "{process:?}");
    let setting = process[0]["settings"].as_str().unwrap();
    let (name, value) = setting.split_once('=').unwrap();
    assert!(name.ends_with("BUFFSIZE") && value.parse::<u64>().unwrap() > 4 << 20, "{setting}");
    let (gain, doubt) = (process[0]["gain"].as_f64().unwrap(), process[0]["doubt"].as_f64().unwrap());
    assert!(gain > 0.2 && -(-gain).ln_1p() > 1.645 * doubt && process[0]["rounds"] == 0, "{process:?}");
    assert!(
        report["verdict"]["sentence"].as_str().unwrap().contains(&format!("{setting} saves")),
        "{}",
        report["verdict"]
    );

    let table = format!("NCCL_TUNER_CONFIG_FILE={folder}/tuner.csv");
    let plugged = ["--env", "NCCL_TUNER_PLUGIN=libnccl-tuner-example.so", "--env", &table];
    let times = |more: &[&str]| -> Vec<f64> {
        let sweep = ["sweep", "-s", "64M:8G:2", "--format", "json"];
        let (code, out, err) = collcast(&[&sweep[..1], &machine, &sweep[1..], &plugged, more].concat());
        assert_eq!(code, 0, "{err}");
        let report: Value = serde_json::from_str(&out).unwrap();
        report["rows"].as_array().unwrap().iter().map(|row| row["time_us"].as_f64().unwrap()).collect()
    };
    let (without, with) = (times(&[]), times(&["--env", setting]));
    let saved =
        without.iter().zip(&with).map(|(without, with)| (without / with).ln()).sum::<f64>() / without.len() as f64;
    assert!((1.0 - (-saved).exp() - gain).abs() < 0.01, "{saved} {gain}: {without:?} {with:?}");

    let read = |path: &str| std::fs::read_to_string(path).unwrap();
    assert!(read(&format!("{folder}/nccl.env")).contains(&format!("\n{setting}\n# Undo: unset {name}\n")));
    assert!(read(&format!("{folder}/slurm.sh")).contains(&format!("\nexport {setting}\n")));
    assert!(read(&format!("{folder}/kubernetes.yaml")).contains(&format!("- name: {name}\n    value: \"{value}\"\n")));
    // A table that was made with a setting is refused in a job without it.
    std::fs::write(&env, "").unwrap();
    std::fs::write(&plugin, "").unwrap();
    let (code, _, err) = collcast(&["tune", "install", &folder, "--into", &env, "--plugin", &plugin]);
    assert!(code == 0 && err.contains("made with NCCL_NVLS_ENABLE=0, and here it is not set"), "{err}");
    let before = format!("export NCCL_NVLS_ENABLE=0\nexport {name}=1048576\n");
    std::fs::write(&env, &before).unwrap();
    std::fs::write(&plugin, "").unwrap();
    let install = ["tune", "install", &folder, "--into", &env, "--plugin", &plugin];
    assert_eq!(collcast(&install), (0, String::new(), String::new()));
    assert!(read(&env).contains(&format!("\nexport {setting}\n# collcast tune install: end\n")), "{}", read(&env));
    assert!(read(&env).ends_with(&format!("# collcast tune install: was export {name}=1048576\n")), "{}", read(&env));
    assert_eq!(collcast(&["tune", "undo", &env]), (0, String::new(), String::new()));
    assert_eq!(read(&env), before);

    // A second value must gain beyond its own doubt too. Both then are as unsure as their doubts together.
    let known = |uncertainty: &str| {
        std::fs::write(&profile, FAR.replace("0.05", uncertainty)).unwrap();
        let low =
            ["--env", "NCCL_ALGO=Ring", "--env", "NCCL_PROTO=^LL128", "-c", "all_reduce,all_gather", "-s", "256K:4G:4"];
        let process = tune(&[&machine[..], &low].concat())["process"][0].clone();
        (process["settings"].as_str().unwrap().to_owned(), process["doubt"].as_f64().unwrap())
    };
    let (one, both) = (known("0.3"), known("0.05"));
    assert_eq!((&*one.0, &*both.0), ("NCCL_BUFFSIZE=16777216", "NCCL_BUFFSIZE=16777216 NCCL_LL_BUFFSIZE=2097152"));
    // Each alone 0.0104.
    assert!(both.1 > 0.012, "{both:?}");

    // Near hosts keep FIFOs full.
    let near = tune(&["dgx-h100", "--nodes", "2", "-s", "64M:8G:2", "--env", "NCCL_NVLS_ENABLE=0"]);
    assert!(near["process"].as_array().unwrap().is_empty(), "{}", near["process"]);
}

//! Goal: `bench` as a user meets it on a machine without a GPU: exact results on the host, files
//! that `validate` reads, and plain refusals with exit code 3 where hardware is missing.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

mod common;

use std::process::{Command, Stdio};

fn collcast(args: &[&str], env: &[(&str, &str)]) -> (i32, String, String) {
    common::run(common::program().args(args).envs(env.iter().copied()))
}

const QUICK: [&str; 4] = ["--batches", "3", "--budget", "0.01"];

/// Goal: the default backend runs several collectives and protocols; its files are read back, and hold beside each
/// other, but not beside forecasts of GPUs, in any of the formats.
#[test]
fn host_results_are_written_and_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("host.csv");
    let path = path.to_str().unwrap();
    let args = ["bench", "h200x4", "-c", "all_reduce,all_gather", "-s", "16,4K", "--algorithm", "ring"];
    let args =
        [&args[..], &["--protocol", "ll,simple", "--channels", "2", "--format", "csv", "-o", path], &QUICK].concat();
    let (code, out, err) = collcast(&args, &[]);
    assert_eq!((code, out.as_str()), (0, ""), "{err}");
    assert!(err.contains("8 of 8 points ran"), "{err}");
    let csv = std::fs::read_to_string(path).unwrap();
    assert_eq!(csv.lines().filter(|l| l.starts_with("host,")).count(), 8, "{csv}");
    let toml = std::fs::read_to_string(path.replace(".csv", ".toml")).unwrap();
    assert!(toml.contains("topology = \"h200x4\"") && toml.contains("date = \"20"), "{toml}");
    let (code, out, err) = collcast(&["compare", path, path], &[]);
    assert_eq!(code, 0, "{out}{err}");
    let refused = |args: &[&str]| {
        let (code, _, err) = collcast(args, &[]);
        assert!(code == 2 && err.contains("was measured on CPU threads") && err.contains("hint:"), "{args:?} {err}");
    };
    for command in ["validate", "calibrate"] {
        refused(&[command, path, "-t", "h200x4"]);
    }
    refused(&["tune", "h200x4", "--measurements", path]);
    // Comments get lost; the file beside it says the same.
    let bare: String = csv.lines().filter(|l| !l.starts_with('#')).map(|l| format!("{l}\n")).collect();
    std::fs::write(path, bare).unwrap();
    refused(&["validate", path, "-t", "h200x4"]);
    for (format, name) in [("json", "run.json"), ("nccl-tests", "all_reduce.log")] {
        let path = dir.path().join(name);
        let path = path.to_str().unwrap();
        let args = ["bench", "--ranks", "2", "-s", "4K", "--protocol", "ll", "--format", format, "-o", path];
        assert_eq!(collcast(&[&args[..], &QUICK].concat(), &[]).0, 0);
        let toml = std::path::Path::new(path).with_extension("toml");
        std::fs::write(toml, "ranks = 2\n").unwrap();
        refused(&["validate", path, "-t", "h200x4"]);
    }
}

/// Goal: nccl-tests' table, both halves, nothing wrong.
#[test]
fn nccl_tests_table_is_complete() {
    let args = ["bench", "--ranks", "3", "-s", "1000,4K", "--protocol", "ll", "--format", "nccl-tests"];
    let (code, out, err) = collcast(&[&args[..], &QUICK].concat(), &[]);
    assert_eq!(code, 0, "{err}");
    let rows: Vec<Vec<&str>> =
        out.lines().filter(|l| !l.starts_with('#')).map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 2, "{out}");
    for row in rows {
        assert_eq!((row.len(), row[8], row[12]), (13, "0", "0"), "{out}");
    }
}

/// Goal: what is missing is said, with exit code 3 and a way out; never a panic.
#[test]
fn missing_hardware_is_exit_code_3() {
    for backend in ["cuda", "nccl", "nccl-p2p", "verbs"] {
        let (code, out, err) = collcast(&["bench", "--backend", backend, "-s", "8"], &[]);
        if code == 0 {
            common::skipped("a GPU is there");
            continue;
        }
        assert_eq!((code, out.as_str()), (3, ""), "{err}");
        let what = match backend {
            "verbs" => "RDMA",
            _ => "CUDA",
        };
        assert!(err.contains("hint:") && err.contains(what) && !err.contains("panicked"), "{err}");
    }
    let dir = tempfile::tempdir().unwrap();
    let (code, out, err) = collcast(&["probe", "-o", dir.path().to_str().unwrap(), "--quick"], &[]);
    if code != 0 {
        assert_eq!((code, out.as_str()), (3, ""), "{err}");
        assert!(err.contains("hint:") && err.contains("CUDA"), "{err}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

/// Goal: under any launcher a job over verbs on a host without NICs ends at every rank with exit code 3, and no rank waits
/// for others for long; where mpirun of Open MPI is installed, under that too.
#[test]
fn launched_processes_say_what_is_missing() {
    let args = ["bench", "--backend", "verbs", "h200x4", "--gpus", "2", "-s", "8", "--algorithm", "ring"];
    if collcast(&args, &[]).0 != 3 {
        common::skipped("RDMA devices are there");
        return;
    }
    let launchers: [[(&str, &str); 4]; 3] = [
        [
            ("OMPI_COMM_WORLD_RANK", ""),
            ("OMPI_COMM_WORLD_LOCAL_RANK", ""),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ],
        [("SLURM_PROCID", ""), ("SLURM_LOCALID", ""), ("SLURM_NTASKS", "2"), ("SLURM_STEP_NODELIST", "localhost")],
        [("PMI_RANK", ""), ("MPI_LOCALRANKID", ""), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2")],
    ];
    for launcher in launchers {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
        let rank = |rank: &'static str| {
            let port = port.clone();
            std::thread::spawn(move || {
                let own = launcher.map(|(name, value)| (name, if value.is_empty() { rank } else { value }));
                collcast(&args, &[&own[..], &[("COLLCAST_PORT", &port)]].concat())
            })
        };
        for (code, out, err) in [rank("0"), rank("1")].map(|rank| rank.join().unwrap()) {
            assert_eq!((code, out.as_str()), (3, ""), "{launcher:?}: {err}");
            assert!(err.contains("RDMA") && err.contains("hint:"), "{err}");
        }
    }
    let mpirun = ["--allow-run-as-root", "--oversubscribe", "-n", "2", env!("CARGO_BIN_EXE_collcast")];
    match std::process::Command::new("mpirun").args(mpirun).args(args).output() {
        Ok(told) => {
            let err = String::from_utf8_lossy(&told.stderr);
            assert!(err.contains("RDMA") && err.contains("hint:"), "{err}");
            assert_eq!(told.status.code(), Some(3), "{err}");
        }
        Err(error) => common::skipped(&format!("mpirun cannot be started: {error}")),
    }
}

/// Goal: results in types of 8 bits are checked.
#[test]
fn types_of_8_bits_are_checked() {
    for dtype in ["int8", "uint8", "float8_e4m3", "float8_e5m2"] {
        let args = ["bench", "h200x4", "-c", "all_reduce,all_gather", "-s", "4K", "--dtype", dtype, "--format", "json"];
        let (code, out, err) = collcast(&[&args[..], &QUICK].concat(), &[]);
        assert_eq!(code, 0, "{dtype}: {err}");
        let result: serde_json::Value = serde_json::from_str(&out).expect(&err);
        let rows = result["rows"].as_array().map_or(&[][..], Vec::as_slice);
        assert!(rows.len() == 2 && rows.iter().all(|row| row["dtype"] == dtype && row["checked"] == 4 * 4096), "{out}");
    }
}

/// Goal: bad requests are refused with what to do.
#[test]
fn bad_requests_are_refused() {
    let world = [("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")];
    for (args, env, says) in [
        (&["--dtype", "float64", "-s", "8"][..], &[][..], "float64"),
        (&["--dtype", "f8e5m2", "-s", "8", "--ranks", "8"], &[], "a sum over 8 ranks is not exact in float8_e5m2"),
        (&["--op", "prod", "-s", "8"], &[], "prod"),
        (&["-s", "4G"], &[], "smaller --size"),
        (&["--budget", "0"], &[], "a time from 1ms"),
        (&["--backend", "nccl", "--env", "NCCL_NVLS_ENABLE=1", "--ranks", "2", "-s", "8"], &[], "add --nvls"),
        (&["--backend", "nccl", "--launch", "threads", "-s", "8"], &world, "under a launcher"),
        (&["--backend", "nccl", "-s", "8"], &[("RANK", "0"), ("WORLD_SIZE", "0"), ("LOCAL_RANK", "0")], "not below"),
    ] {
        let (code, _, err) = collcast(&[&["bench"], args].concat(), env);
        assert!(matches!(code, 1 | 2), "{args:?}: {code} {err}");
        assert!(err.contains(says) && !err.contains("panicked"), "{args:?}: {err}");
    }
}

/// Goal: a run that fails at its first point leaves nothing; one that fails later leaves what it measured.
#[test]
fn a_failed_run_leaves_what_it_measured() {
    let dir = tempfile::tempdir().unwrap();
    for (name, sizes, rows) in [("none.csv", "4G,8", None), ("one.csv", "8,4G", Some(1))] {
        let path = dir.path().join(name);
        let (code, out, err) =
            collcast(&[&["bench", "-s", sizes, "-o", path.to_str().unwrap()], &QUICK[..]].concat(), &[]);
        assert!(matches!(code, 1 | 2) && out.is_empty() && err.contains("smaller --size"), "{code} {out} {err}");
        let written = std::fs::read_to_string(&path).ok();
        let measured = written.map(|csv| csv.lines().filter(|line| line.starts_with("host,")).count());
        assert_eq!((measured, path.with_extension("toml").exists()), (rows, rows.is_some()), "{name}");
    }
}

/// Goal: Ctrl-C ends the run with exit code 130 and keeps what is finished as a whole table.
/// Method: many points that take up to two seconds each; the signal comes once the program runs.
#[cfg(target_os = "linux")]
#[test]
fn an_interrupt_keeps_what_is_finished() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("part.csv");
    // The rows of a whole run are there already.
    std::fs::write(&path, "whole\n").unwrap();
    let mut run = common::program()
        .args(["bench", "h200x4", "-s", "8:1M:2", "--batches", "10000", "--budget", "2", "--format", "csv", "-o"])
        .arg(&path)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A process catches the signal from when bit 1 (SIGINT is 2) of its mask is set.
    let status = format!("/proc/{}/status", run.id());
    let caught = |text: String| {
        let mask =
            text.lines().find_map(|l| l.strip_prefix("SigCgt:").map(|m| u64::from_str_radix(m.trim(), 16).unwrap()));
        mask.is_some_and(|m| m & 2 != 0)
    };
    while !std::fs::read_to_string(&status).is_ok_and(caught) {
        assert!(run.try_wait().unwrap().is_none(), "it ended before it could be interrupted");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(Command::new("kill").args(["-INT", &run.id().to_string()]).status().unwrap().success());
    assert_eq!(run.wait().unwrap().code(), Some(130));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "whole\n");
    let csv = std::fs::read_to_string(path.with_extension("interrupted.csv")).unwrap();
    let rows = csv.lines().filter(|l| l.starts_with("host,")).count();
    assert!(csv.contains("size_bytes") && rows < 18, "{csv}");
}

/// Goal: `simulate` and `bench` run the same schedule for the same command, also an imported one and
/// over several hosts.
#[test]
fn simulate_and_bench_say_the_same_schedule_hash() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tree.xml");
    let file = file.to_str().unwrap();
    let convert = ["convert", "h200x4", "--algorithm", "tree", "--channels", "2", "-o", file];
    let (code, _, err) = collcast(&convert, &[]);
    assert_eq!(code, 0, "{err}");
    let mut hashes = std::collections::BTreeSet::new();
    let commands = [
        "h200x4 --algorithm ring --protocol simple -s 64K",
        "h200x4 --algorithm ring --protocol simple -s 64K --in-place",
        "h200x4 --algorithm ring --protocol ll128 -s 64K --channels 3",
        "h200x4 --algorithm tree --protocol ll -s 10000",
        "h200x4 -c all_gather --algorithm pat -s 4K",
        "h200x4 -c reduce_scatter --algorithm pat -s 4K --ranks 3",
        "h200x4 -c all_to_all -s 4K",
        "h200x4 -c broadcast -s 100 --root 2",
        "h200x4 --algorithm coll_tree --protocol simple -s 64K",
        "h200x4 --nodes 2 --gpus 2 --algorithm coll_tree --protocol simple -s 64K",
        "h200x4 -s 8",
        "h200x4 -s 1M --env NCCL_BUFFSIZE=65536",
        &format!("h200x4 -s 64K --schedule {file}"),
    ];
    for command in commands {
        let words: Vec<&str> = command.split(' ').collect();
        let json = |args: &[&str]| -> serde_json::Value {
            let (code, out, err) = collcast(&[args, &words, &["--format", "json"]].concat(), &[]);
            assert_eq!(code, 0, "{args:?} {command}: {err}");
            serde_json::from_str(&out).unwrap()
        };
        let (simulated, run) = (json(&["simulate"]), json(&[&["bench"], &QUICK[..]].concat()));
        let hash = run["rows"][0]["schedule_hash"].as_str().unwrap().to_owned();
        let facts = simulated["facts"].as_array().unwrap();
        let fact = facts.iter().find(|f| f["fact"] == "schedule hash").unwrap();
        assert_eq!(fact["value"], hash.as_str(), "{command}");
        assert!(hash.len() == 16 && hashes.insert(hash), "{command}");
    }
}

/// What a run over sets of 6 GPUs wrote, with times of our own in place of those of threads, which are noise; `factor` is
/// what a set's times are slower by, by its GPUs.
fn run_over_sets(sets: &[&str], path: &std::path::Path, factor: impl Fn(&[u32]) -> f64) {
    let file = path.to_str().unwrap();
    let args = ["bench", "dgx-h100", "--ranks", "6", "-s", "4K,16K,64K", "--protocol", "simple", "-o", file];
    let (code, _, err) = collcast(&[&args[..], sets, &QUICK].concat(), &[]);
    assert_eq!(code, 0, "{err}");
    let written = std::fs::read_to_string(path).unwrap();
    let mut text = String::new();
    let mut columns = Vec::new();
    for line in written.lines() {
        let mut cells: Vec<String> = line.split(',').map(str::to_owned).collect();
        if line.starts_with("run,") {
            columns.clone_from(&cells);
        } else if line.starts_with("host ") {
            let at = |name: &str| columns.iter().position(|column| column == name).unwrap();
            let gpus: Vec<u32> =
                cells[at("gpus")].split(' ').map(|gpu| gpu.rsplit(':').next().unwrap().parse().unwrap()).collect();
            let size: f64 = cells[at("size_bytes")].parse().unwrap();
            // Off by up to 0.4%, by the name of the run.
            let noise = 1.0 + f64::from(cells[0].bytes().map(u32::from).sum::<u32>() * 7 % 9) / 2000.0;
            cells[at("time_us")] = format!("{:.3}", (5.0 + size / 1e3) * noise * factor(&gpus));
            ["algbw_gbps", "busbw_gbps"].iter().for_each(|rate| cells[at(rate)].clear());
        }
        text += &(cells.join(",") + "\n");
    }
    std::fs::write(path, text).unwrap();
}

/// Goal: which GPU is slow, or which link between two, is said from runs over pairs, and from those over halves and of
/// each GPU alone which GPU is: beside a good run, whose pairs need not be alike.
#[test]
fn sets_of_gpus_say_which_is_slow() {
    let dir = tempfile::tempdir().unwrap();
    let across = |gpus: &[u32]| if gpus[0] < 3 && gpus[gpus.len() - 1] >= 3 { 1.6 } else { 1.0 };
    let check = |sets: &[&str], runs: usize, slow: &dyn Fn(&[u32]) -> f64, kind: &str, said: &str| {
        let (good, bad) = (dir.path().join("good.csv"), dir.path().join("bad.csv"));
        run_over_sets(sets, &good, across);
        run_over_sets(sets, &bad, |gpus| across(gpus) * slow(gpus));
        let written = std::fs::read_to_string(&bad).unwrap();
        let names = written.lines().filter(|l| l.starts_with("host ")).map(|l| l.split(',').next().unwrap());
        assert_eq!(names.collect::<std::collections::BTreeSet<_>>().len(), runs, "{written}");
        let args = ["validate", bad.to_str().unwrap(), "--against", good.to_str().unwrap(), "--format", "json"];
        let (_, out, err) = collcast(&args, &[]);
        let answer: serde_json::Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{err}"));
        let found =
            answer["anomalies"].as_array().unwrap().iter().find(|a| a["kind"].as_str().unwrap().starts_with("slow_"));
        let found = found.unwrap_or_else(|| panic!("{sets:?}: {out}"));
        let evidence = found["evidence"].as_str().unwrap();
        assert_eq!((found["kind"].as_str().unwrap(), found["severity"].as_str().unwrap()), (kind, "error"), "{found}");
        assert!(evidence.contains(said) && evidence.matches(" certain").count() == 1, "{sets:?}: {evidence}");
    };
    let gpu = |gpus: &[u32]| if gpus.contains(&2) { 1.3 } else { 1.0 };
    check(&["--pairs"], 15, &gpu, "slow_gpu", "sets: GPU 2 of host ");
    check(&["--halves", "--rounds", "2"], 12, &gpu, "slow_gpu", "sets: GPU 2 of host ");
    check(&["--alone", "--rounds", "3"], 18, &gpu, "slow_gpu", "sets: GPU 2 of host ");
    let link = |gpus: &[u32]| if *gpus == [1, 4] { 1.5 } else { 1.0 };
    check(&["--pairs", "--rounds", "3"], 45, &link, "slow_link", "sets: link between GPUs 1 and 4 of host ");
}

/// Goal: sets that cannot be, and back ends that cannot be given them, are refused with the way out.
#[test]
fn odd_sets_are_refused() {
    let world = [("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("MASTER_ADDR", "127.0.0.1")];
    for (args, env, says) in [
        (&["--pairs", "--ranks", "2"][..], &[][..], "--pairs: 2 GPUs give no sets"),
        (&["--halves", "--ranks", "3"], &[], "--halves: 3 GPUs"),
        (&["--rounds", "2"], &[], "no sets are run"),
        (&["--pairs", "--format", "nccl-tests"], &[], "--format csv"),
        (&["--pairs", "--backend", "cuda"], &[], "GPUs of their own"),
        (&["--pairs", "--backend", "nccl", "--ranks", "4"], &world, "start the command once"),
    ] {
        let (code, out, err) = collcast(&[&["bench", "-s", "8"][..], args].concat(), env);
        assert!(code == 2 && out.is_empty() && err.contains(says) && err.contains("hint:"), "{args:?}: {code} {err}");
    }
}

/// Goal: what no run would heed is refused, and nothing is timed under the name of what NCCL does not do; a job that a launcher
/// described badly is bad input (2), and no host that is unfit (1).
#[test]
fn what_no_run_would_heed_is_refused() {
    let ranks = ["--ranks", "2", "-s", "1K"];
    let refused = |args: &[&str], env: &[(&str, &str)], what: &str| {
        let (code, _, err) = collcast(&[&["bench"], args, &ranks].concat(), env);
        assert!(code == 2 && err.contains(what) && err.contains("hint:"), "{args:?} {env:?}: {code} {err}");
    };
    let nccl = |args: &[&str], what| refused(&[&["--backend", "nccl"], args].concat(), &[], what);
    nccl(&["-c", "all_reduce", "--algorithm", "direct", "--protocol", "ll"], "direct does not do all_reduce");
    nccl(&["-c", "all_reduce", "--algorithm", "coll_tree", "--protocol", "ll"], "NCCL has no coll_tree");
    nccl(&["-c", "all_gather", "--algorithm", "pat", "--protocol", "ll"], "pat has no ll kernel");
    nccl(&["-c", "all_to_all", "--protocol", "ll"], "NCCL takes no protocol for all_to_all");
    nccl(&["--env", "NCCL_NVLS_ENABLE=0", "--nvls"], "beside --nvls");
    refused(&["--launch", "graph"], &[], "--launch has no meaning here");
    refused(&["--iterations", "9"], &[], "--iterations has no meaning here");
    let job = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")];
    refused(&["--expect", "dgx-h100"], &job, "RANK but not LOCAL_RANK");
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_str().unwrap();
    let copies = ["bench", "--backend", "transfer", "--drives-only", "--folder", place, "-s"];
    let (code, out, err) = collcast(&[&copies[..], &["1K"]].concat(), &[]);
    assert!(code == 2 && out.is_empty() && err.contains("from 4096 to"), "{out}{err}");
    let (code, out, err) = collcast(&[&copies[..], &["5000", "--batches", "3", "--format", "csv"]].concat(), &[]);
    assert!(code == 0 && out.contains(",8192,") && !out.contains(",5000,"), "whole pages are read: {out}{err}");
}

/// Goal: a run that is told to end (SIGTERM) leaves no file behind; processes that it started end with it, also where it was
/// killed.
/// Method: copies of a drive, in a folder that is looked at; a process of NCCL's that waits for another which never comes.
#[test]
fn what_a_run_has_made_ends_with_it() {
    let patience = std::time::Duration::from_secs(60);
    let until = |what: &str, holds: &dyn Fn() -> bool| {
        let begin = std::time::Instant::now();
        while !holds() {
            assert!(begin.elapsed() < patience, "{what}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    };
    let signal = |name: &str, id: u32| {
        let told = Command::new("kill").args([name, &id.to_string()]).status().unwrap();
        assert!(told.success(), "{name} {id}");
    };
    let quiet = |args: &[&str]| {
        let mut command = common::program();
        command.args(args).stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_str().unwrap();
    let files = || std::fs::read_dir(folder.path()).unwrap().count();
    let sizes = (1..=500).map(|pages| format!("{}K", 4 * pages)).collect::<Vec<_>>().join(",");
    let copies = ["bench", "--backend", "transfer", "--drives-only", "--folder", place, "--batches", "3", "-s"];
    let copies = [&copies[..], &[sizes.as_str()]].concat();
    let mut run = quiet(&copies).spawn().unwrap();
    until("a file is made", &|| files() == 1);
    signal("-TERM", run.id());
    run.wait().unwrap();
    assert_eq!(files(), 0);

    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let job = [("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")];
    let args = ["bench", "--backend", "nccl", "-s", "1K", "--algorithm", "ring", "--protocol", "ll"];
    let mut run = quiet(&args).envs(job).env("COLLCAST_PORT", port).spawn().unwrap();
    let known = format!("/proc/{0}/task/{0}/children", run.id());
    let children = || std::fs::read_to_string(&known).unwrap_or_default();
    until("a process is started", &|| !children().trim().is_empty());
    let child = children().trim().to_owned();
    signal("-KILL", run.id());
    run.wait().unwrap();
    // One that nobody has asked how it ended is dead all the same.
    let lives = || std::fs::read_to_string(format!("/proc/{child}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    until("its process has ended", &|| !lives());
}

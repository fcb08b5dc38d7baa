//! Goal: a host that is slow does not get the job, and one that is not does; exit code, line and metrics agree.
//! Method: runs with the times of forecasts, changed; and the program itself on CPU threads.

use collcast::bench::{Backend, MeasuredCall, Outcome, Planned};
use collcast::guard::{Expected, guard};
use collcast::health::{Gate, State};
use collcast::sim::collective::{Collective, Launch};
use collcast::sim::units::Bytes;
use collcast::views::guard::prometheus;
use collcast::{Query, SiteSpec};

use crate::common::{collcast, skipped};

/// A run on 4 H200 that takes `times` what is forecast from 32 MiB on.
fn run(times: f64) -> Outcome {
    let site = SiteSpec::new("h200x4").launch(Launch::Processes).env("NCCL_NVLS_ENABLE", "0").load().unwrap();
    let predictor = site.predictor();
    let mut outcome = Outcome {
        backend: Backend::Nccl,
        launch: Launch::Processes,
        points: 9,
        planned: Vec::new(),
        rows: Vec::new(),
        facts: vec![("gpu".to_owned(), "NVIDIA H200".to_owned()), ("nccl_version".to_owned(), "2.28.9".to_owned())],
        environment: vec![("NCCL_NVLS_ENABLE".to_owned(), "0".to_owned())],
        interrupted: false,
        failure: None,
    };
    for (planned, size) in [8, 64, 1024, 8 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20].iter().enumerate()
    {
        let size_bytes = size * 1024;
        let query = Query::new(&site, Collective::AllReduce, Bytes(size_bytes));
        let expected = query.predict(&predictor, &query.settings(site.settings())).unwrap().time.as_us();
        let time_us = if size_bytes >= 32 << 20 { expected * times } else { expected };
        let algbw_gbps = size_bytes as f64 / time_us / 1e3;
        outcome.rows.push(MeasuredCall {
            planned,
            collective: Collective::AllReduce,
            algorithm: None,
            protocol: None,
            ranks: 4,
            set: None,
            gpus: Vec::new(),
            launch: Launch::Processes,
            channels: None,
            asked: String::new(),
            dtype: query.call.dtype,
            op: query.call.op,
            in_place: false,
            size_bytes,
            time_us,
            time_us_p5: time_us,
            time_us_p95: time_us,
            algbw_gbps,
            busbw_gbps: algbw_gbps * 1.5,
            checked: 1,
            nccl_model_us: None,
            schedule_hash: None,
            times_us: vec![time_us],
        });
        outcome.planned.push(Planned::new(query));
    }
    outcome
}

/// Goal: beside the forecast, and beside a good run, a host at the expected times is let through and one that is slow by
/// a quarter is not; the metrics say the same; a run that failed has the metric that says so.
#[test]
fn a_slow_host_is_held_back() {
    let folder = tempfile::tempdir().unwrap();
    let good = folder.path().join("good.csv");
    std::fs::write(&good, collcast::reports::csv::render(&run(1.0).report())).unwrap();
    for expected in [Expected::Machine(Box::new(SiteSpec::new("h200x4"))), Expected::Runs(vec![good])] {
        for (times, state) in [(1.0, State::Pass), (1.25, State::Slow)] {
            let outcome = guard(&run(times), &expected, Gate::default()).unwrap();
            assert_eq!((outcome.health.state, outcome.failed), (state, state == State::Slow), "{expected:?} {times}");
            let text = prometheus(Some(&outcome), 1_764_000_000);
            let ok = if outcome.failed { "collcast_ok 0\n" } else { "collcast_ok 1\n" };
            assert!(text.contains(ok) && text.contains("collcast_last_run_timestamp_seconds 1764000000\n"), "{text}");
            let large = text.lines().find(|l| l.starts_with("collcast_busbw_expected_ratio") && l.contains("large"));
            let share: f64 = large.unwrap().rsplit(' ').next().unwrap().parse().unwrap();
            assert!((share - 1.0 / times).abs() < 0.03, "{text}");
        }
        // A quarter more time is 80% of the bandwidth.
        assert!(!guard(&run(1.25), &expected, Gate { fail_below: Some(0.7), ..Gate::default() }).unwrap().failed);
    }
    assert!(prometheus(None, 0).starts_with("# HELP collcast_ok") && prometheus(None, 0).contains("\ncollcast_ok 0\n"));
}

/// Goal: the program prints one line and keeps its rows, writes metrics that agree with its exit code, and refuses what
/// cannot be judged: CPU threads beside a forecast of GPUs, a gate without anything expected.
#[test]
fn the_program_says_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (good, rows, metrics) = (file("good.csv"), file("rows.csv"), file("host.prom"));
    let run = ["bench", "--ranks", "2", "--quick", "--budget", "0.02"];
    let (code, _, err) = collcast(&[&run[..], &["-o", &good]].concat());
    assert_eq!(code, 0, "{err}");
    let judged = ["--expect-from", &good, "--fail-below", "1%", "--prometheus", &metrics, "-o", &rows];
    let (code, out, err) = collcast(&[&run[..], &judged].concat());
    let text = std::fs::read_to_string(&metrics).unwrap();
    // How fast threads are is not what is tested.
    assert!(text.contains(&format!("collcast_ok {}\n", 1 - code)) && out.is_empty(), "{code} {out} {err} {text}");
    let verdicts = err.lines().filter(|l| l.contains("all_reduce over 2 ranks")).count();
    assert_eq!(verdicts, 1, "{err}");
    assert_eq!(std::fs::read_to_string(&rows).unwrap().lines().filter(|l| l.starts_with("host,")).count(), 8);
    // Metrics that cannot be written take away nothing of what was found; a folder that lacks is named before anything runs.
    for (metrics, said) in [(folder.path().to_str().unwrap(), "cannot write"), (&file("no/host.prom"), "make it first")]
    {
        let judged = ["--expect-from", &good, "--fail-below", "1%", "--prometheus", metrics];
        let (code, _, err) = collcast(&[&run[..], &judged].concat());
        let ran = said == "cannot write";
        assert!(err.contains(said) && err.contains("all_reduce over 2 ranks") == ran, "{err}");
        assert_eq!(code, if err.contains("failed: ") { 1 } else { 2 }, "{err}");
    }
    // What is good is not written over, nor joined by the run that it judges.
    let before = std::fs::read(&good).unwrap();
    let beside = folder.path().join("more.csv").to_str().unwrap().to_owned();
    for (expected, output) in [(&*good, &good), (folder.path().to_str().unwrap(), &beside)] {
        let (code, _, err) = collcast(&[&run[..], &["--expect-from", expected, "-o", output]].concat());
        assert!(code == 2 && err.contains("would be"), "{err}");
    }
    assert_eq!(std::fs::read(&good).unwrap(), before);
    // Of several runs each series is told apart, and runs are named that have no file.
    let pairs = ["bench", "--ranks", "3", "--pairs", "-s", "1K:16K:4", "--budget", "0.02"];
    let (code, _, err) = collcast(&[&pairs[..], &["-o", &good]].concat());
    assert_eq!(code, 0, "{err}");
    let (_, _, err) = collcast(&[&pairs[..], &["--expect-from", &good, "--prometheus", &metrics]].concat());
    let text = std::fs::read_to_string(&metrics).unwrap();
    let series: Vec<&str> =
        text.lines().filter(|l| !l.starts_with('#')).filter_map(|l| Some(l.rsplit_once(' ')?.0)).collect();
    let distinct: std::collections::BTreeSet<&&str> = series.iter().collect();
    assert!(series.len() > 9 && distinct.len() == series.len() && !err.contains("this-host.csv"), "{err} {text}");
    let (code, _, err) = collcast(&[&run[..], &["--backend", "host", "--expect", "h200x4"]].concat());
    assert!(code == 2 && err.contains("CPU threads") && err.contains("hint:"), "{err}");
    let (code, _, err) = collcast(&[&run[..], &["--prometheus", &metrics]].concat());
    assert!(code == 2 && err.contains("nothing says what is expected") && err.contains("--expect"), "{err}");
}

/// Goal: Prometheus takes the metrics of a run of several algorithms and protocols: no series is there twice.
#[test]
fn no_series_is_there_twice() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (good, metrics) = (file("good.csv"), file("host.prom"));
    let run = ["bench", "--ranks", "2", "-s", "64K,1M", "--algorithm", "ring,tree", "--protocol", "ll,simple"];
    let run = [&run[..], &["--budget", "0.02"]].concat();
    let (code, _, err) = collcast(&[&run[..], &["-o", &good]].concat());
    assert_eq!(code, 0, "{err}");
    let (code, _, err) = collcast(&[&run[..], &["--expect-from", &good, "--prometheus", &metrics]].concat());
    assert!(code < 2, "{err}");
    let text = std::fs::read_to_string(&metrics).unwrap();
    let series: Vec<&str> =
        text.lines().filter(|l| !l.starts_with('#')).filter_map(|l| Some(l.rsplit_once(' ')?.0)).collect();
    let distinct: std::collections::BTreeSet<&&str> = series.iter().collect();
    assert_eq!(distinct.len(), series.len(), "{text}");
    assert!(text.contains("algorithm=\"tree\"") && text.contains("protocol=\"simple\""), "{text}");
}

/// Goal: of CPU threads that are slow, nobody is sent to look at GPUs; and an error names what was given.
/// Method: the good run has a hundredth of its times, so that any other is slow.
#[test]
fn threads_are_no_gpus() {
    let folder = tempfile::tempdir().unwrap();
    let good = folder.path().join("good.csv").to_str().unwrap().to_owned();
    let run = ["bench", "--ranks", "2", "--quick", "--budget", "0.02"];
    let (code, _, err) = collcast(&[&run[..], &["-o", &good]].concat());
    assert_eq!(code, 0, "{err}");
    let text = std::fs::read_to_string(&good).unwrap();
    let at = text.lines().find_map(|line| line.split(',').position(|name| name == "time_us")).unwrap();
    let faster = |line: &str| -> String {
        let mut cells: Vec<String> = line.split(',').map(str::to_owned).collect();
        if let Some(us) = cells.get(at).and_then(|cell| cell.parse::<f64>().ok()) {
            cells[at] = (us / 100.0).to_string();
        }
        cells.join(",") + "\n"
    };
    std::fs::write(&good, text.lines().map(faster).collect::<String>()).unwrap();
    let (code, out, err) = collcast(&[&run[..], &["--expect-from", &good]].concat());
    assert!(code == 1 && err.contains("failed: slow"), "{out}{err}");
    assert!(!err.contains("GPU") && !err.contains("nvidia-smi"), "{err}");
    let (code, _, err) = collcast(&["bench", "--ranks", "3", "--quick", "--budget", "0.02", "--expect-from", &good]);
    assert!(code == 2 && err.contains(&good) && !err.contains("--against"), "{err}");
}

/// Goal: the Slurm prolog drains a host that is slow or has lost GPUs, lets jobs through where collcast says nothing of
/// the host, with a line that says why, and leaves jobs without GPUs alone.
/// Method: the script under bash, with a program on PATH that ends as collcast would; and with none.
#[test]
#[cfg(unix)]
fn the_prolog_drains_what_is_unfit() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let plant = |name: &str, text: &str| {
        let program = folder.path().join(name);
        std::fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    plant("nvidia-smi", "echo 'GPU 0: a'\necho 'GPU 1: b'");
    plant("logger", "exit 0");
    let metrics = folder.path().join("host.prom");
    let prolog_of = |metrics: &std::path::Path| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/ci/slurm-prolog.sh");
        let mut command = std::process::Command::new("bash");
        let path = format!("{}:/usr/bin:/bin", folder.path().display());
        command.arg(script).env("PATH", path).env("COLLCAST_GOOD", "/none").env_remove("COLLCAST_ALWAYS");
        command.env("COLLCAST_METRICS", metrics).env("COLLCAST_BIN", "/none");
        command
    };
    let prolog = |code: Option<u8>, gpus: Option<&str>| {
        if let Some(code) = code {
            plant("collcast", &format!("echo \"ran $*\" >&2\nexit {code}"));
        }
        let mut command = prolog_of(&metrics);
        command.env_remove("SLURM_JOB_GPUS").envs(gpus.map(|gpus| ("SLURM_JOB_GPUS", gpus)));
        let out = command.output().unwrap();
        (out.status.code().unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    let (code, err) = prolog(None, Some("0,1"));
    assert!(code == 0 && err.contains("not judged, exit code 127: collcast cannot be started"), "{err}");
    std::fs::remove_file(&metrics).unwrap();
    for (ends, expected, said) in [
        (0, 0, "ran bench -t dgx-h100 --backend nccl --quick --expect dgx-h100"),
        (1, 1, "ran bench"),
        (2, 0, "not judged, exit code 2: its options"),
        (3, 0, "not judged, exit code 3: NCCL or another library"),
        (124, 1, "not done within 60 s: a GPU or a link hangs"),
        (4, 0, "not judged, exit code 4"),
    ] {
        let (code, err) = prolog(Some(ends), Some("0,1"));
        assert!(code == expected && err.contains(said), "{ends}: {code} {err}");
        assert_eq!(err.contains("not judged"), expected == 0 && ends != 0, "{err}");
        // collcast writes the others.
        let written = std::fs::read_to_string(&metrics).is_ok_and(|text| text == "collcast_ok 0\n");
        assert_eq!(written, !matches!(ends, 0 | 1), "{ends}");
        let _ = std::fs::remove_file(&metrics);
    }
    // Metrics have a folder made for them; where none can be, the host is judged all the same.
    for (place, made, reported) in [("new/host.prom", true, true), ("logger/host.prom", false, false)] {
        let place = folder.path().join(place);
        let mut command = prolog_of(&place);
        command.env("SLURM_JOB_GPUS", "0,1");
        plant("collcast", "echo \"ran $*\" >&2\nexit 1");
        let out = command.output().unwrap();
        let err = String::from_utf8(out.stderr).unwrap();
        assert!(out.status.code() == Some(1) && err.contains("ran bench"), "{err}");
        assert_eq!((err.contains("--prometheus"), place.parent().unwrap().is_dir()), (reported, made), "{err}");
        assert_eq!(err.contains("cannot be written to"), !reported, "{err}");
    }
    // Beside other jobs nothing is judged.
    for (gpus, expected) in [(None, 0), (Some("1"), 0), (Some("0,1"), 1), (Some("0-1"), 1)] {
        let (code, err) = prolog(Some(1), gpus);
        assert!(code == expected && err.is_empty() == (expected == 0), "{gpus:?}: {code} {err}");
    }
    // As Slurm starts it.
    let mut command = std::process::Command::new("/bin/bash");
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/ci/slurm-prolog.sh")).env_clear();
    command.env("COLLCAST_BIN", folder.path()).env("COLLCAST_ALWAYS", "1").env("COLLCAST_METRICS", &metrics);
    let out = command.output().unwrap();
    assert!(out.status.code() == Some(1) && out.stderr.starts_with(b"ran bench"), "{out:?}");
}

/// Goal: the DaemonSet measures where no job has the GPUs, and says that a node is unfit where nvidia-smi or collcast fail.
/// Method: its script under bash, with programs on PATH that answer as nvidia-smi and collcast would, and a `sleep` that
/// ends it.
#[test]
#[cfg(unix)]
fn the_daemon_set_leaves_jobs_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let manifest = include_str!("../examples/ci/kubernetes-guard.yaml");
    assert!(manifest.contains("      hostPID: true\n"));
    let tolerated = "      tolerations:\n        - { key: nvidia.com/gpu, operator: Exists, effect: NoSchedule }\n";
    assert_eq!(manifest.matches(tolerated).count(), 2);
    // Each state that metrics tell has its alert.
    for alert in ["collcast_ok == 0", "collcast_state == 1", "absent(collcast_last_run_timestamp_seconds)"] {
        assert!(manifest.contains(&format!("#      {alert}\n")), "{alert}");
    }
    let lines = manifest.lines().skip_while(|line| line.trim() != "- |").skip(1);
    let script: String =
        lines.take_while(|line| line.starts_with("              ")).map(|line| format!("{line}\n")).collect();
    let folder = tempfile::tempdir().unwrap();
    let metrics = folder.path().join("collcast.prom");
    let script = script.replace("/metrics/", &format!("{}/", folder.path().display()));
    let fails = "echo 'Failed to initialize NVML'; exit 17";
    for (apps, used, ends, ran, written) in [
        ("", "echo '0, 4'; echo '0, 600'", 0, true, "collcast_ok 1\n"),
        ("", "echo '[N/A], [N/A]'", 1, true, "collcast_ok 1\n"),
        ("", "echo '0, 4'", 2, true, "collcast_ok 0\n"),
        ("", "echo '0, 4'", 3, true, "collcast_ok 0\n"),
        ("", "echo '0, 4'", 124, true, "collcast_ok 0\n"),
        ("echo 4711", "echo '0, 4'", 1, false, "collcast_ok 1\n"),
        ("", "echo '0, 4'; echo '97, 4'", 1, false, "collcast_ok 1\n"),
        ("", "echo '0, 60000'", 1, false, "collcast_ok 1\n"),
        (fails, fails, 0, false, "collcast_ok 0\n"),
        ("", fails, 0, false, "collcast_ok 0\n"),
    ] {
        for (name, text) in [
            ("nvidia-smi", format!("case $1 in *apps*) {apps}\n;; *) {used}\n;; esac")),
            ("collcast", format!("echo \"ran $*\" >&2\nexit {ends}")),
            ("sleep", "kill $PPID".to_owned()),
        ] {
            let program = folder.path().join(name);
            std::fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        std::fs::write(&metrics, "collcast_ok 1\n").unwrap();
        let path = format!("{}:/usr/bin:/bin", folder.path().display());
        let out = std::process::Command::new("bash").args(["-c", &script]).env("PATH", path).output().unwrap();
        let err = String::from_utf8(out.stderr).unwrap();
        assert_eq!(err.contains("ran bench -t dgx-h100"), ran, "{apps} {used} {ends}: {err}");
        let text = std::fs::read_to_string(&metrics).unwrap();
        assert!(text.starts_with(written), "{apps} {used} {ends}: {err} {text}");
        // When it was looked at stays with what was found.
        let dated = text.lines().any(|line| line.starts_with("collcast_last_run_timestamp_seconds 1"));
        assert_eq!(dated, written == "collcast_ok 0\n", "{text}");
    }
    // The time of a node that is always busy counts from the start.
    std::fs::remove_file(&metrics).unwrap();
    std::fs::write(folder.path().join("nvidia-smi"), "#!/bin/sh\necho 1\n").unwrap();
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    std::process::Command::new("bash").args(["-c", &script]).env("PATH", path).output().unwrap();
    let text = std::fs::read_to_string(&metrics).unwrap();
    assert!(text.starts_with("collcast_last_run_timestamp_seconds 1") && text.lines().count() == 1, "{text}");
}

/// Goal: a host that is judged and has no GPU is unfit, with exit code 1 and the metric that says so; one that is only
/// measured lacks hardware.
#[test]
fn a_host_without_its_gpus_is_unfit() {
    let folder = tempfile::tempdir().unwrap();
    let metrics = folder.path().join("host.prom").display().to_string();
    let run = ["bench", "--backend", "nccl", "--quick"];
    let (code, _, err) = collcast(&run);
    if code != 3 {
        skipped("a GPU is there");
        return;
    }
    assert!(err.contains("CUDA"), "{err}");
    let (code, _, err) = collcast(&[&run[..], &["--expect", "dgx-h100", "--prometheus", &metrics]].concat());
    assert!(code == 1 && err.contains("this host is not fit: ") && err.contains("hint: "), "{code} {err}");
    assert!(std::fs::read_to_string(metrics).unwrap().contains("\ncollcast_ok 0\n"));
}

/// Goal: a real host that is well passes, beside its forecast and beside its own run of before; slower, it does not, and it is
/// told what to do with one host.
/// Method: two H100, measured by the guard's own command; the same with times doubled.
#[test]
fn a_real_host_that_is_well_gets_the_job() {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/h100x2/");
    let [rows, good, machine] = ["guard_1.csv", "guard_2.csv", "machine.toml"].map(|name| format!("{data}{name}"));
    let folder = tempfile::tempdir().unwrap();
    let slow = folder.path().join("slow.csv").display().to_string();
    let halved = |line: &str| match line.strip_prefix("nccl,") {
        Some(row) => {
            let mut cells: Vec<String> = row.split(',').map(str::to_owned).collect();
            for (at, factor) in [(10, 2.0), (11, 2.0), (12, 2.0), (13, 0.5), (14, 0.5)] {
                cells[at] = (cells[at].parse::<f64>().unwrap() * factor).to_string();
            }
            format!("nccl,{}\n", cells.join(","))
        }
        None => format!("{line}\n"),
    };
    std::fs::write(&slow, std::fs::read_to_string(&rows).unwrap().lines().map(halved).collect::<String>()).unwrap();
    for (file, code) in [(&rows, 0), (&slow, 1)] {
        for beside in [["-t", &machine], ["--against", &good]] {
            let (ended, _, said) = collcast(&["validate", file, beside[0], beside[1], "--no-doctor"]);
            assert_eq!(ended, code, "{file} {beside:?} {said}");
            assert_eq!(said.contains("pairs of its GPUs"), code == 1, "{said}");
        }
    }
}

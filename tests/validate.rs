//! Goal: predictions hold against committed measurements of 2 and 4 H200 over NVSwitch.
//! Method: the program itself judges the folder; each group of rows with a forced algorithm
//! and protocol has a bound on its median error, and the shapes people know are checked apart. The
//! profile was fitted to these rows: this holds the model's form; `collcast calibrate` tells the errors
//! on rows held back.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::common::collcast;

fn judged() -> Value {
    let (code, out, err) = collcast(&["validate", "tests/data/h200x4", "-t", "h200x4", "--format", "json"]);
    assert_eq!(code, 0, "{err}");
    serde_json::from_str(&out).unwrap()
}

/// Groups whose median is beyond 20%, with what it is and why: the host thread of these two
/// runs issued at 8.5 us a GPU instead of 5.8 (rows of one run jump between 23 and 35 us).
const SLOW_HOST: [(&str, &str, &str, f64); 3] = [
    ("single_thread", "tree ll", "< 64 KiB", 0.25),
    ("single_thread", "tree ll128", "< 64 KiB", 0.36),
    ("single_thread", "tree ll128", "64 KiB-16 MiB", 0.37),
];

#[test]
fn every_forced_group_is_within_twenty_percent() {
    let result = judged();
    let groups = result["groups"].as_array().unwrap();
    let mut checked = 0;
    for group in groups {
        let text = |key: &str| group[key].as_str().unwrap().to_owned();
        let (launch, what, band) = (text("launch"), text("group"), text("band"));
        if what.contains("NCCL chose") || launch == "all" {
            continue;
        }
        let slow = SLOW_HOST.iter().find(|g| (g.0, g.1, g.2) == (launch.as_str(), what.as_str(), band.as_str()));
        let bound = slow.map_or(0.20, |g| g.3);
        let median = group["median_abs_error"].as_f64().unwrap();
        assert!(median <= bound, "{launch} {what} {band}: median error {median:.3}");
        checked += 1;
    }
    assert!(checked >= 30, "{checked} groups");
    let overall = &result["overall"];
    assert!(overall["median_abs_error"].as_f64().unwrap() < 0.05, "{overall}");
    assert!(overall["mean_abs_error"].as_f64().unwrap() < 0.07, "{overall}");
    assert!(overall["count"].as_u64().unwrap() > 1500, "{overall}");
}

/// Goal: four hosts over TCP sockets, which two rows calibrate, come out of the mechanism of
/// threads, messages and copies at all other sizes, and much nearer than NCCL's own model.
#[test]
fn sockets_come_out_of_their_threads() {
    let (code, out, err) =
        collcast(&["validate", "tests/data/sockets", "-t", "tests/data/h200-loopback.toml", "--format", "json"]);
    assert_eq!(code, 0, "{err}");
    let result: Value = serde_json::from_str(&out).unwrap();
    let overall = &result["overall_with_auto"];
    assert!(overall["count"].as_u64().unwrap() >= 48, "{overall}");
    assert!(overall["median_abs_error"].as_f64().unwrap() < 0.16, "{overall}");
    assert!(overall["nccl_model"]["median_abs_error"].as_f64().unwrap() > 0.5, "{overall}");
}

/// Time in us of one prediction per size.
fn sweep(topology: &str, algorithm: &str, protocol: &str, channels: &str, launch: &str) -> BTreeMap<u64, f64> {
    let (code, out, err) = collcast(&[
        "sweep",
        topology,
        "--algorithm",
        algorithm,
        "--protocol",
        protocol,
        "--channels",
        channels,
        "--launch",
        launch,
        "-s",
        "8:4GiB:2",
        "--format",
        "json",
    ]);
    assert_eq!(code, 0, "{err}");
    let result: Value = serde_json::from_str(&out).unwrap();
    let rows = result["rows"].as_array().unwrap();
    rows.iter().map(|r| (r["size_bytes"].as_u64().unwrap(), r["time_us"].as_f64().unwrap())).collect()
}

fn busbw(size: u64, time_us: f64, ranks: f64) -> f64 {
    size as f64 / time_us / 1e3 * 2.0 * (ranks - 1.0) / ranks
}

#[test]
fn the_shapes_are_those_of_the_hardware() {
    let large = 4 << 30;
    let one = sweep("h200x4", "ring", "simple", "1", "threads");
    let per_channel = busbw(large, one[&large], 4.0);
    assert!((22.0..28.0).contains(&per_channel), "ring/Simple per channel: {per_channel}");
    let ring = sweep("h200x4", "ring", "simple", "auto", "threads");
    let saturated = busbw(large, ring[&large], 4.0);
    // 356 on the hardware: there channels drift apart, here all leave the links idle at once.
    assert!((335.0..375.0).contains(&saturated), "ring/Simple saturates at {saturated}");
    let tree = sweep("h200x4", "tree", "simple", "auto", "threads");
    assert!(tree[&large] > 1.2 * ring[&large], "tree must saturate below ring on 4 GPUs");
    let (ring2, tree2) =
        (sweep("h200x2", "ring", "simple", "auto", "threads"), sweep("h200x2", "tree", "simple", "auto", "threads"));
    // On the hardware from 64 MiB; here the filling of the pipe with whole chunks weighs more.
    for size in [256 << 20, 1 << 30, large] {
        assert!(tree2[&size] < ring2[&size] * 1.02, "tree must not be below ring on 2 GPUs at {size}");
    }
}

/// Size at which `b` becomes faster for good, interpolated between powers of two.
fn crossover(a: &BTreeMap<u64, f64>, b: &BTreeMap<u64, f64>) -> Option<f64> {
    let last_slower = *a.keys().filter(|s| b.get(s).is_some_and(|t| *t > a[s])).max()?;
    let next = *b.keys().find(|s| **s > last_slower && a.contains_key(s))?;
    let ratio = |s: u64| (b[&s] / a[&s]).ln();
    let share = ratio(last_slower) / (ratio(last_slower) - ratio(next));
    Some(last_slower as f64 * (next as f64 / last_slower as f64).powf(share))
}

/// Goal: protocols cross over within a factor of two of where they do in the `graph` runs.
#[test]
fn protocols_cross_where_they_do_on_the_hardware() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/h200x4/nccl.csv")).unwrap();
    let measured = |run: &str| -> BTreeMap<u64, f64> {
        text.lines()
            .map(|l| l.split(',').collect::<Vec<_>>())
            .filter(|f| f[0] == run && f[14] == "0")
            .map(|f| (f[10].parse().unwrap(), f[11].parse().unwrap()))
            .collect()
    };
    let mut crossed = 0;
    for algorithm in ["Ring", "Tree"] {
        for (small, large) in [("LL", "LL128"), ("LL", "Simple"), ("LL128", "Simple")] {
            let real = crossover(
                &measured(&format!("G4_all_reduce_{algorithm}_{small}")),
                &measured(&format!("G4_all_reduce_{algorithm}_{large}")),
            );
            let ours = crossover(
                &sweep("h200x4", algorithm, small, "auto", "graph"),
                &sweep("h200x4", algorithm, large, "auto", "graph"),
            );
            // A pair that does not cross inside the measured range says nothing.
            let Some(real) = real else { continue };
            let ours = ours.expect("a crossover");
            crossed += 1;
            println!("{algorithm} {small} -> {large}: measured {real:.0}, predicted {ours:.0}");
            let factor = (ours / real).max(real / ours);
            // From 8 to 32 MiB ring/LL128 and ring/Simple are within 10% of each other.
            // From 1 to 2 MiB so are tree/LL and tree/LL128.
            let most = match (algorithm, small, large) {
                ("Ring", "LL128", "Simple") => 3.0,
                ("Tree", "LL", "LL128") => 2.2,
                _ => 2.0,
            };
            assert!(factor <= most, "{algorithm} {small} -> {large}: measured {real:.0}, predicted {ours:.0}");
        }
    }
    assert!(crossed >= 4, "{crossed} cross");
}

/// Goal: `--plots` writes pictures that hold every curve.
#[test]
fn plots_are_written() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("plots");
    let path = folder.to_str().unwrap();
    let (code, _, err) =
        collcast(&["validate", "tests/data/sockets", "-t", "tests/data/h200-loopback.toml", "--plots", path]);
    assert!(code <= 1, "{err}");
    let svg = std::fs::read_to_string(folder.join("all_gather_4x4_processes.svg")).unwrap();
    assert!(svg.contains("pat, NCCL's protocol") || svg.contains("pat, NCCL&apos;s protocol"), "{err}");
    assert!(svg.contains("all_gather over 4 ranks on 4 hosts"), "{err}");
    // Rows in place are drawn where there are no others.
    collcast(&["validate", "tests/data/doctor/p2p_disable_1_4.csv", "--no-doctor", "--plots", path]);
    let svg = std::fs::read_to_string(folder.join("all_reduce_4_processes.svg")).unwrap();
    assert!(svg.contains("launched by processes, in place"), "{svg}");
}

/// Goal: a value that NCCL would not take leaves the variables beside it in force, and is named.
#[test]
fn a_refused_variable_leaves_the_others_in_force() {
    let folder = tempfile::tempdir().unwrap();
    let csv = folder.path().join("run.csv");
    let header = "collective,ranks,launch,size_bytes,time_us,in_place";
    std::fs::write(&csv, format!("{header}\nall_reduce,4,graph,67108864,400.0,0\n")).unwrap();
    let forecast = |env: &str| {
        std::fs::write(csv.with_extension("toml"), format!("nccl_version = \"2.28.9\"\n[env]\n{env}")).unwrap();
        let path = csv.to_str().unwrap();
        let (_, out, err) = collcast(&["validate", path, "-t", "h200x4", "--no-doctor", "--format", "json"]);
        let result: Value = serde_json::from_str(&out).expect(&err);
        (result["rows"][0]["predicted_us"].as_f64().expect(&out), result["warnings"].to_string())
    };
    let (plain, _) = forecast("");
    let (off, said) = forecast("NCCL_P2P_DISABLE = \"1\"\n");
    assert!(off > 2.0 * plain && !said.contains("NCCL_NET_MERGE_LEVEL"), "{off} {plain} {said}");
    let (beside, said) = forecast("NCCL_P2P_DISABLE = \"1\"\nNCCL_NET_MERGE_LEVEL = \"PIX\"\n");
    assert_eq!(beside, off, "{said}");
    assert!(said.contains("NCCL_NET_MERGE_LEVEL=PIX: expected LOC"), "{said}");
}

/// Goal: `--nccl` and `--env` stand for what a file does not say of its NCCL, as the `.toml` beside it would, and never against
/// what is said.
#[test]
fn options_say_what_files_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run.log");
    std::fs::write(&run, log("1K,1M,1G", ("NVIDIA H100 80GB HBM3", [8, 8]), |_| 1.0)).unwrap();
    let forecast = |beside: &str, told: &[&str]| {
        std::fs::write(run.with_extension("toml"), beside).unwrap();
        let asked = ["validate", run.to_str().unwrap(), "-t", "dgx-h100", "--no-doctor", "--format", "json"];
        let (_, out, err) = collcast(&[&asked[..], told].concat());
        let result: Value = serde_json::from_str(&out).expect(&err);
        let rows = result["rows"].as_array().unwrap().iter();
        rows.map(|row| row["predicted_us"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    let (old, ring) = ("nccl_version = \"2.18.3\"\n", "[env]\nNCCL_ALGO = \"Ring\"\n");
    let plain = forecast("", &[]);
    for (beside, told) in [
        (old.to_owned(), &["--nccl", "2.18.3"][..]),
        (ring.to_owned(), &["--env", "NCCL_ALGO=Ring"]),
        (format!("{old}{ring}"), &["--nccl", "2.18.3", "--env", "NCCL_ALGO=Ring"]),
    ] {
        let said = forecast(&beside, &[]);
        assert_eq!(forecast("", told), said, "{told:?}");
        assert_ne!(plain, said, "{told:?}");
    }
    let all = format!("{old}{ring}");
    assert_eq!(forecast(&all, &["--nccl", "2.28.9", "--env", "NCCL_ALGO=Tree"]), forecast(&all, &[]));
    std::fs::remove_file(run.with_extension("toml")).unwrap();
    let path = run.to_str().unwrap();
    for (option, value, says) in [("--nccl", "9", "--nccl: "), ("--env", "NCCL_ALGO=Rign", "would not start")] {
        let (code, _, err) = collcast(&["validate", path, "-t", "dgx-h100", option, value]);
        assert!(code == 2 && err.contains(says), "{err}");
    }
}

/// Goal: more calls than can be predicted are refused with the limit and a way out, before any is.
/// Method: 626 runs of 32 sizes, which all runs have at least, forced to as many channels as there are runs.
#[test]
fn too_many_calls_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let csv = folder.path().join("run.csv");
    let row = |i: usize| format!("all_reduce,4,{},{},10\n", 1 + i / 32, 8 * (1 + i % 32));
    let rows: String = (0..20_001).map(row).collect();
    std::fs::write(&csv, format!("collective,ranks,channels,size_bytes,time_us\n{rows}")).unwrap();
    let (code, _, err) = collcast(&["validate", csv.to_str().unwrap(), "-t", "h200x4"]);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("20001 different calls inside a host; at most 20000") && err.contains("hint:"), "{err}");
}

/// Goal: hosts that run the same calls share their forecasts, so that a fleet is no more calls than one of its hosts.
/// Method: 201 pairs of hosts run 20 sizes: 4,020 calls, were they not alike, where 4,000 over several hosts are the most.
#[test]
fn a_fleet_is_forecast_as_one_host_is() {
    let folder = tempfile::tempdir().unwrap();
    for pair in 0..201 {
        let mut text = "# Collective test starting: all_reduce_perf\n# Using devices\n".to_owned();
        for rank in 0..16 {
            let (host, device) = (2 * pair + rank / 8, rank % 8);
            text += &format!(
                "#  Rank {rank} Group 0 Pid {rank} on n{host} device {device} [0000:0{device}:00] NVIDIA H100 80GB HBM3\n"
            );
        }
        for size in (10..30).map(|power| 1_u64 << power) {
            let time = 60.0 + size as f64 / 2e5 + 0.01 * f64::from(pair);
            let rate = size as f64 / time / 1e3;
            let half = format!("{time:.2} {rate:.2} {:.2} 0", rate * 1.875);
            text += &format!("{size} {} float sum -1 {half} {half}\n", size / 4);
        }
        std::fs::write(folder.path().join(format!("{pair}.log")), text + "# Out of bounds values : 0 OK\n").unwrap();
    }
    let folder = folder.path().to_str().unwrap();
    let (code, out, err) = collcast(&["validate", folder, "-t", "dgx-h100", "--no-doctor", "--format", "json"]);
    assert!(code < 2, "{err}");
    let result: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(result["rows"].as_array().unwrap().len(), 2 * 20 * 201, "{}", result["warnings"]);
}

/// Goal: of a run with very many sizes some are forecast, evenly over their logarithm, and the others are said to be left
/// aside; a slow end is found all the same.
#[test]
fn of_many_sizes_some_are_forecast() {
    let folder = tempfile::tempdir().unwrap();
    let csv = folder.path().join("run.csv");
    let size = |i: u32| 8 * (2.0_f64.powf(7.0 + 20.0 * f64::from(i) / 4999.0) as u64);
    let row = |i: u32| format!("all_reduce,4,{},{}\n", size(i), 30.0 + size(i) as f64 / 2e4);
    let rows: String = (0..5000).map(row).collect();
    std::fs::write(&csv, format!("collective,ranks,size_bytes,time_us\n{rows}")).unwrap();
    let (code, out, err) = collcast(&["validate", csv.to_str().unwrap(), "-t", "h200x4", "--format", "json"]);
    let result: Value = serde_json::from_str(&out).expect(&err);
    let rows = result["rows"].as_array().unwrap();
    let mut sizes: Vec<u64> = rows.iter().map(|r| r["size_bytes"].as_u64().unwrap()).collect();
    // Below 32 KiB neighbours round to the same size.
    sizes.dedup();
    assert_eq!((code, sizes.len()), (1, 256), "{err}");
    assert_eq!((sizes[0], *sizes.last().unwrap()), (size(0), size(4999)));
    // Of 20 octaves.
    let steps = sizes.windows(2).map(|w| (w[1] as f64 / w[0] as f64).log2());
    assert!(steps.fold(0.0, f64::max) < 2.0 * 20.0 / 255.0, "{sizes:?}");
    let said = "more than 256 sizes, 256 are: evenly over their logarithm";
    assert!(result["warnings"].to_string().contains(said), "{result}");
}

/// Goal: a forecast that is read back asks for itself, so that nothing is between the two; or is refused with what its
/// rows do not say.
#[test]
fn forecasts_are_read_back_as_themselves() {
    let folder = tempfile::tempdir().unwrap();
    let errors = |command: &str, machine: &str, asked: &str, format: &str| -> Result<Vec<f64>, String> {
        let path = folder.path().join(if format == "nccl-tests" { "x.log".to_owned() } else { format!("x.{format}") });
        let path = path.to_str().unwrap();
        let asked: Vec<&str> = asked.split_whitespace().collect();
        let size = if command == "sweep" { "64K,4M" } else { "4M" };
        let (code, _, err) =
            collcast(&[&[command, machine, "-s", size, "--format", format, "-o", path], &asked[..]].concat());
        assert_eq!(code, 0, "{err}");
        let args = ["validate", path, "-t", machine, "--allow-predicted", "--no-doctor", "--format", "json"];
        let (code, out, err) = collcast(&args);
        if code == 2 {
            return Err(err);
        }
        let result: Value = serde_json::from_str(&out).unwrap();
        Ok(result["rows"].as_array().unwrap().iter().map(|row| row["error"].as_f64().unwrap().abs()).collect())
    };
    for (machine, asked) in [
        ("h200x4", "--launch graph"),
        ("h200x4", "--launch graph --registered -c all_gather"),
        ("h200x4", "--algorithm ring --protocol simple"),
        ("h200x4", "--channels 4 -c alltoall"),
        ("h200x4", "--ranks 3 -c broadcast --root 2 --dtype float16"),
        ("h200x4", "--nccl 2.20 --env NCCL_BUFFSIZE=1048576 --env NCCL_PROTO=Simple"),
        ("dgx-h100", "--nodes 2 --gpus 4"),
        ("dgx-h100", "--nodes 2 --ranks 5"),
    ] {
        for format in ["csv", "json", "nccl-tests"] {
            // Text has two decimals of a microsecond, and says of a graph that buffers are registered.
            if format == "nccl-tests" && asked == "--launch graph" {
                continue;
            }
            let most = if format == "nccl-tests" { 1e-3 } else { 1e-12 };
            let errors = errors("sweep", machine, asked, format).unwrap();
            assert!(errors.len() >= 2 && errors.iter().all(|&error| error < most), "{asked} {format}: {errors:?}");
        }
    }
    for format in ["csv", "json"] {
        assert_eq!(errors("simulate", "h200x4", "--launch graph --in-place", format), Ok(vec![0.0]));
    }
    for (machine, asked, format, says) in [
        ("dgx-h100", "--nodes 2 --ranks 9", "csv", "how many ranks each host has"),
        ("dgx-h100", "--nodes 2 --ranks 12", "json", "how many ranks each host has"),
        ("h200x4", "--cold", "csv", "--cold"),
        ("h200x4", "--split %2", "json", "--split"),
        ("h200x4", "--placement 3,1,0,2", "csv", "--placement"),
        ("h200x4", "--launch graph", "nccl-tests", "--registered"),
        ("h200x4", "--algorithm best", "nccl-tests", "best"),
    ] {
        let error = errors("sweep", machine, asked, format).unwrap_err();
        assert!(error.contains(&format!("rows do not say {says}")) && error.contains("hint:"), "{asked}: {error}");
    }
}

/// Goal: ranks that ran on other GPUs than the first ones are forecast on theirs, where `--placement` says which.
#[test]
fn ranks_are_judged_where_they_were_placed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("placed.csv");
    let placed = ["--nodes", "2", "--placement", "0-3,12-15"];
    let sweep = ["sweep", "dgx-h100", "-s", "256M", "--algorithm", "ring", "--protocol", "simple", "--format", "json"];
    let (code, out, err) = collcast(&[&sweep[..], &placed].concat());
    assert_eq!(code, 0, "{err}");
    let us = serde_json::from_str::<Value>(&out).unwrap()["rows"][0]["time_us"].as_f64().unwrap();
    let error = |hosts: &str, placed: &[&str]| {
        let columns = "collective,ranks,nodes,algorithm,protocol,size_bytes,time_us";
        std::fs::write(&path, format!("{columns}\nall_reduce,8,{hosts},ring,simple,{},{us}\n", 256 << 20)).unwrap();
        let args = ["validate", path.to_str().unwrap(), "-t", "dgx-h100", "--no-doctor", "--format", "json"];
        let (_, out, err) = collcast(&[&args, placed].concat());
        serde_json::from_str::<Value>(&out).expect(&err)["rows"][0]["error"].as_f64().unwrap()
    };
    // Two hosts with four ranks each are not two hosts of four GPUs.
    let errors = [error("", &placed), error("2", &placed), error("", &placed[..2])];
    assert!(errors[0].abs() < 1e-6 && errors[1].abs() < 1e-6 && errors[2] < -0.2, "{errors:?}");
    let (code, _, err) = collcast(&["validate", path.to_str().unwrap(), "-t", "dgx-h100", "--placement", "99"]);
    assert!(code == 2 && err.contains("--placement") && err.contains("GPU 99"), "{err}");
}

/// Goal: rows of more channels than NCCL takes by itself are forecast on as many, and a call of all 28 is faster than of 24, as
/// it was.
#[test]
fn more_channels_than_usual_are_forecast() {
    let file = "tests/data/h200x4_bench/nccl_steps_2.csv";
    let args = ["validate", file, "--rows", "--no-doctor", "--format", "json"];
    let (code, out, err) = collcast(&args);
    assert_eq!(code, 0, "{err}");
    let result: Value = serde_json::from_str(&out).unwrap();
    let rows = result["rows"].as_array().unwrap();
    let times = |channels: u64, of: &str| -> Vec<f64> {
        let rows = rows.iter().filter(|row| row["channels"] == channels && row["size_bytes"] == 256_u64 << 20);
        rows.map(|row| row[of].as_f64().unwrap()).collect()
    };
    for of in ["predicted_us", "measured_us"] {
        let (usual, more) = (times(24, of), times(28, of));
        assert_eq!((usual.len(), more.len()), (2, 2), "{of}");
        assert!(usual.iter().zip(&more).all(|(usual, more)| more < usual), "{of}: {usual:?} {more:?}");
    }
}

/// A log of nccl-tests as forecasts of two hosts of 8 H100 would be, each time as many times as long as `times` says of its size.
fn log(sizes: &str, (gpu, hosts): (&str, [usize; 2]), times: impl Fn(u64) -> f64) -> String {
    let (_, good, err) = collcast(&["sweep", "dgx-h100", "--nodes", "2", "--format", "json", "-s", sizes]);
    let good: Value = serde_json::from_str(&good).unwrap_or_else(|e| panic!("{e}: {err}"));
    let mut text = "# Collective test starting: all_reduce_perf\n# Using devices\n".to_owned();
    let places = (1..).zip(hosts).flat_map(|(host, gpus)| (0..gpus).map(move |gpu| (host, gpu)));
    for (rank, (host, device)) in places.enumerate() {
        text += &format!(
            "#  Rank {rank:2} Group  0 Pid {rank} on node{host} device {device} [0000:{device:02x}:00] {gpu}\n"
        );
    }
    text += "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n";
    let ranks = hosts.iter().sum::<usize>() as f64;
    for row in good["rows"].as_array().unwrap() {
        let (size, time) = (row["size_bytes"].as_u64().unwrap(), row["time_us"].as_f64().unwrap());
        let time = time * times(size);
        let rate = size as f64 / time / 1e3;
        let half = format!("{time:.2} {rate:.2} {:.2} 0", rate * 2.0 * (ranks - 1.0) / ranks);
        text += &format!("{size} {} float sum -1 {half} {half}\n", size / 4);
    }
    text + "# Out of bounds values : 0 OK\n"
}

/// Goal: a machine is called slow by one large size, and is not judged where the run is of other GPUs, of hosts that differ, or
/// faster than such a machine can be; one size far off is named, and so are sizes in the middle that nobody can judge.
#[test]
fn runs_of_other_machines_are_not_judged() {
    const H100: (&str, [usize; 2]) = ("NVIDIA H100 80GB HBM3", [8, 8]);
    let folder = tempfile::tempdir().unwrap();
    let said = |text: &str| {
        let file = folder.path().join("run.log");
        std::fs::write(&file, text).unwrap();
        let (code, out, err) = collcast(&["validate", &file.display().to_string(), "-t", "dgx-h100", "--no-doctor"]);
        (code, format!("{out}{err}"))
    };
    let sizes = "1M:8G:2";
    let middle = |times| log(sizes, H100, move |size| if (4 << 20..=256 << 20).contains(&size) { times } else { 1.0 });
    for (text, expected, parts) in [
        (log(sizes, H100, |_| 1.0), 0, &["ok: healthy"][..]),
        (log("8G", H100, |_| 2.0), 1, &["failed: slow", "50%"]),
        (log(sizes, ("NVIDIA H20", [8, 8]), |_| 1.4), 0, &["cannot tell", "NVIDIA H20", "name the machine"]),
        (log(sizes, ("NVIDIA H100 PCIe", [8, 8]), |_| 1.4), 0, &["cannot tell", "name the machine"]),
        (log(sizes, ("NVIDIA H100 80GB HBM3", [8, 4]), |_| 1.0), 0, &["4 and 8 ranks", "cannot tell"]),
        (log(sizes, H100, |_| 0.2), 0, &["cannot tell", "5.0 times as fast", "name the machine"]),
        (
            log(sizes, H100, |size| if size == 1 << 30 { 3.0 } else { 1.0 }),
            0,
            &["cannot tell", "1 GiB alone reaches 33%"],
        ),
        (middle(1.4), 0, &["ok: healthy", "; but 8 MiB to 256 MiB reaches 71%, as healthy machines may (67% or more)"]),
        (
            middle(1.53),
            0,
            &["cannot tell", "reaches 65% of the expected bus bandwidth at 128 MiB to 256 MiB", "--against GOOD"],
        ),
    ] {
        let (code, said) = said(&text);
        assert_eq!(code, expected, "{said}");
        assert!(parts.iter().all(|part| said.contains(part)), "{parts:?}: {said}");
    }
    // As containers and `kubectl logs --timestamps` print it.
    let plain = log(sizes, H100, |_| 1.0);
    for tag in ["2026-05-01T10:00:00.123456789Z ", "trainer-0  | "] {
        let (code, said) = said(&plain.lines().map(|line| format!("{tag}{line}\n")).collect::<String>());
        assert!(code == 0 && said.contains("ok: healthy"), "{tag}: {said}");
    }
}

/// Goal: where small calls alone are slow, the verdict says up to which size, and sends to the host, not to its links.
#[test]
fn slow_small_calls_are_the_hosts() {
    // PyTorch's graphs of small calls take twice as long as those of others, and are healthy.
    for (launch, host, slow) in [("threads", true, 2.0), ("graph", false, 3.0)] {
        let (_, good, err) = collcast(&["sweep", "h200x4", "--format", "json", "-s", "8:256M:2", "--launch", launch]);
        let good: Value = serde_json::from_str(&good).unwrap_or_else(|e| panic!("{e}: {err}"));
        let mut rows = String::from("collective,ranks,launch,size_bytes,time_us\n");
        for row in good["rows"].as_array().unwrap() {
            let (size, time) = (row["size_bytes"].as_u64().unwrap(), row["time_us"].as_f64().unwrap());
            let times = if size <= 64 << 10 { slow } else { 1.0 };
            rows += &format!("all_reduce,4,{launch},{size},{:.2}\n", times * time);
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("slow.csv");
        std::fs::write(&file, rows).unwrap();
        let (code, out, err) = collcast(&["validate", &file.display().to_string(), "-t", "h200x4", "--no-doctor"]);
        let said = format!("{out}{err}");
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("it is slow up to 64 KiB") && said.contains("--launch graph") == host, "{said}");
    }
}

/// Measured rows of all-reduce over 4 GPUs, from 1 KiB to 4 GiB: times so many times those of a good run, by size and whether in
/// place. `how`: launch mode, algorithm and protocol.
fn rows(how: &str, factor: impl Fn(u64, u8) -> f64) -> String {
    let row = |size: u64, in_place: u8| {
        let time = (20.0 + size as f64 / 2e5) * factor(size, in_place);
        format!("all_reduce,4,{how},{size},{time:.3},{in_place}\n")
    };
    (10..33).map(|power| row(1 << power, 0) + &row(1 << power, 1)).collect()
}

/// Exit code and verdict of rows beside good ones.
fn beside(measured: &str, good: &str, more: &[&str]) -> (i32, String) {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, rows: &str| {
        let path = folder.path().join(name);
        let header = "collective,ranks,launch,algorithm,protocol,size_bytes,time_us,in_place";
        std::fs::write(&path, format!("{header}\n{rows}")).unwrap();
        path.display().to_string()
    };
    let (measured, good) = (write("measured.csv", measured), write("good.csv", good));
    let (code, out, err) = collcast(&[&["validate", &measured, "--against", &good][..], more].concat());
    (code, format!("{out}{err}"))
}

/// Goal: the words of a verdict are those of its table: how many sizes lie below what healthy machines reach, and where the
/// limit is. One size alone makes no run slow, nor does a half that takes longer than the other at all sizes.
/// Expected by hand: healthy runs reach 96% here, and the limit of large sizes is between 91 and 92%.
#[test]
fn words_are_those_of_the_table() {
    let one = "threads,,";
    let largest = |from: u64| move |size: u64, _: u8| if size >= from { 1.35 } else { 1.0 };
    let limit = ["--fail-below", "80%"];
    for (measured, more, code, says) in [
        (rows(one, |_, _| 1.06), &[][..], 0, "below healthy, above the limit: "),
        (rows(one, |_, _| 1.06), &[], 0, "that nearly all healthy machines reach and the 91.3% below which it fails"),
        (rows(one, |_, _| 1.03), &[], 0, "healthy: all_reduce over 4 ranks reaches 97% of the expected bus bandwidth"),
        (rows(one, |_, _| 1.03), &[], 0, ", where healthy machines reach 96% or more"),
        (
            rows(one, |_, _| 1.06),
            &[],
            0,
            "but 5 of 5 large sizes lie below the 96% that healthy machines reach, down to 94%",
        ),
        (rows(one, |_, _| 1.16), &limit, 0, "86% of the expected"),
        (
            rows(one, |_, _| 1.16),
            &limit,
            0,
            "below the 96% that healthy machines reach, but not below the limit of 80%",
        ),
        (rows(one, largest(4 << 30)), &[], 0, "but 4 GiB alone reaches 74%"),
        (rows(one, largest(2 << 30)), &[], 1, "slow: "),
        (rows(one, |_, in_place| if in_place == 1 { 1.09 } else { 1.0 }), &[], 0, "below healthy, above the limit: "),
    ] {
        let (found, said) = beside(&measured, &rows(one, |_, _| 1.0), more);
        assert!(found == code && said.contains(says), "{says}: {said}");
    }
}

/// Goal: rows are held beside good ones that ran as they did, whatever else the good file has; where there are only others,
/// that is said and nothing is certain.
#[test]
fn like_is_held_beside_like() {
    let good = |how| rows(how, |_, _| 1.0);
    let forced = |how| rows(how, |_, _| 0.4);
    let mixed = good("threads,,") + &forced("threads,ring,ll") + &forced("threads,tree,ll") + &forced("graph,,");
    let (code, said) = beside(&good("threads,,"), &mixed, &[]);
    assert!(code == 0 && said.contains("healthy: ") && said.contains("reaches 100% of"), "{said}");
    // A launch mode that is not said may be any.
    let (code, said) = beside(&good(",,"), &good("threads,,"), &[]);
    assert!(code == 0 && said.contains("healthy: "), "{said}");
    let slow = rows("threads,,", |_, _| 1.3);
    for other in ["graph,,", "threads,ring,simple"] {
        let (code, said) = beside(&slow, &good(other), &[]);
        assert!(code == 0 && said.contains("cannot tell: ") && said.contains("ran another way"), "{other}: {said}");
    }
}

/// Goal: rows of one run that differ in data type, operation or root are each held beside their like: a good run passes
/// beside itself, and one whose floats alone are slow does not hide among bytes that take twice as long.
#[test]
fn data_types_are_held_apart() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, float: f64| {
        let row = |size: u64| {
            let time = 20.0 + size as f64 / 2e5;
            format!(
                "all_reduce,4,float,sum,{size},{:.3}\nall_reduce,4,uint8,sum,{size},{:.3}\n",
                time * float,
                time * 2.0
            )
        };
        let path = folder.path().join(name);
        let rows: String = (10..33).map(|power| row(1 << power)).collect();
        std::fs::write(&path, format!("collective,ranks,dtype,op,size_bytes,time_us\n{rows}")).unwrap();
        path.display().to_string()
    };
    let good = write("good.csv", 1.0);
    for (measured, code, says) in
        [(good.clone(), 0, "healthy (2 of 2 runs)"), (write("slow.csv", 1.4), 1, "slow (1 of 2 runs)")]
    {
        let (found, out, err) = collcast(&["validate", &measured, "--against", &good]);
        assert!(found == code && err.contains(says), "{out}{err}");
    }
}

/// Goal: a run with a forced algorithm is judged, whether or not NCCL chose in another file. Of one file and call it is left
/// out, and that is said.
#[test]
fn forced_runs_are_judged_beside_others() {
    let folder = tempfile::tempdir().unwrap();
    let run = |algorithm: &str, protocol: &str, times: f64| -> String {
        let row =
            |(size, time): (u64, f64)| format!("all_reduce,4,threads,{algorithm},{protocol},{size},{}\n", times * time);
        let [a, p] = [algorithm, protocol].map(|name| if name.is_empty() { "auto" } else { name });
        sweep("h200x4", a, p, "auto", "threads").into_iter().map(row).collect()
    };
    let judged = |files: &[(&str, &str)]| {
        let write = |(name, rows): &(&str, &str)| {
            let path = folder.path().join(name).display().to_string();
            std::fs::write(&path, format!("collective,ranks,launch,algorithm,protocol,size_bytes,time_us\n{rows}"))
                .unwrap();
            path
        };
        let paths: Vec<String> = files.iter().map(write).collect();
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        let gate = ["-t", "h200x4", "--no-doctor", "--require-pass", "--format", "json"];
        let (code, out, err) = collcast(&[&["validate"][..], &paths, &gate].concat());
        (code, serde_json::from_str::<Value>(&out).expect(&err))
    };
    let (auto, sick) = (run("", "", 1.0), run("ring", "simple", 1.3));
    assert_eq!(judged(&[("auto.csv", &auto)]).0, 0);
    let (code, result) = judged(&[("auto.csv", &auto), ("forced.csv", &sick)]);
    assert_eq!((code, &result["health"]), (1, &"slow".into()), "{}", result["verdict"]);
    // Each size says of which file it is.
    let slow = result["sizes"].as_array().unwrap().iter().filter(|size| size["state"] == "slow");
    let files: Vec<bool> = slow.map(|size| size["file"].as_str().unwrap().ends_with("forced.csv")).collect();
    assert!(!files.is_empty() && files.iter().all(|of_forced| *of_forced), "{}", result["sizes"]);
    let (code, result) = judged(&[("both.csv", &(auto + &sick))]);
    assert_eq!((code, &result["health"]), (1, &"pass".into()), "{}", result["verdict"]);
    assert!(result["warnings"].to_string().contains("were forced are not judged"), "{}", result["warnings"]);
}

/// Goal: where there are several files an annotation says of which it is.
#[test]
fn annotations_name_their_file() {
    let folder = tempfile::tempdir().unwrap();
    for (name, times) in [("good.csv", 1.0), ("sick.csv", 1.5)] {
        let rows = rows("threads", |_, _| times);
        let header = "collective,ranks,launch,size_bytes,time_us,in_place";
        std::fs::write(folder.path().join(name), format!("{header}\n{rows}")).unwrap();
    }
    let [good, all] = [folder.path().join("good.csv"), folder.path().to_owned()].map(|path| path.display().to_string());
    let said = |runs: &str| collcast(&["validate", runs, "--against", &good, "--format", "github"]).1;
    let errors = said(&all);
    let errors: Vec<&str> = errors.lines().filter(|line| line.contains("title=4 ranks")).collect();
    assert!(!errors.is_empty() && errors.iter().all(|line| line.contains("sick.csv::")), "{errors:?}");
    let one = said(&folder.path().join("sick.csv").display().to_string());
    assert!(one.contains("title=4 ranks%2C large sizes::"), "{one}");
}

/// The published rows of two hosts of H100, with their times changed by size, and what describes them beside these.
fn changed(folder: &std::path::Path, name: &str, time_us: impl Fn(u64, f64) -> f64) -> String {
    let source = "tests/data/published/nebius_h100_2n_allreduce";
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let rows = std::fs::read_to_string(root.join(format!("{source}.csv"))).unwrap();
    let row = |line: &str| -> String {
        let mut cells: Vec<String> = line.split(',').map(str::to_owned).collect();
        if let (Ok(size), Ok(us)) = (cells[6].parse(), cells[7].parse()) {
            cells[7] = format!("{:.2}", time_us(size, us));
            (cells[8], cells[9]) = (String::new(), String::new());
        }
        cells.join(",") + "\n"
    };
    let path = folder.join(format!("{name}.csv"));
    std::fs::write(&path, rows.lines().map(row).collect::<String>()).unwrap();
    std::fs::copy(root.join(format!("{source}.toml")), path.with_extension("toml")).unwrap();
    path.display().to_string()
}

/// Goal: a size is not slow that reaches what healthy machines may, and a run is slow from where no size behind it passes.
#[test]
fn what_healthy_machines_reach_is_not_slow() {
    let folder = tempfile::tempdir().unwrap();
    let path = changed(folder.path(), "half", |size, us| if size >= 16 << 20 { 2.0 * us } else { us });
    let (code, out, err) = collcast(&["validate", &path, "--format", "json"]);
    assert!(code == 1 && err.contains("; it is slow from 16 MiB on"), "{err}");
    let result: Value = serde_json::from_str(&out).unwrap();
    for row in result["sizes"].as_array().unwrap() {
        let (busbw, low) = (row["busbw_gbps"].as_f64().unwrap(), row["low_gbps"].as_f64().unwrap());
        assert!(row["state"] != "slow" || busbw < low, "{row}");
        assert!(row["state"] == "slow" || row["size_bytes"].as_u64() < Some(16 << 20), "{row}");
    }
}

/// Goal: programs read `pass` of what people read as `between` or `healthy`, and a size is slow only below the limit of its band.
#[test]
fn sizes_are_slow_by_their_own_figures() {
    let folder = tempfile::tempdir().unwrap();
    let good = changed(folder.path(), "good", |_, us| us);
    for factor in [1.05, 1.2] {
        let path = changed(folder.path(), "run", |_, us| factor * us);
        let (_, out, err) = collcast(&["validate", &path, "--against", &good, "--format", "json"]);
        let result: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {err}"));
        let run = &result["bands"][0];
        for line in run["lines"].as_array().unwrap() {
            let of = |other: &&Value| other["part"] == line["part"];
            let band = run["bands"].as_array().unwrap().iter().find(of).unwrap();
            assert_eq!(line["state"], band["state"], "{factor}: {line} {band}");
        }
        for row in result["sizes"].as_array().unwrap() {
            let below = row["percent"].as_f64() < row["fails_below_percent"].as_f64();
            assert_eq!(row["state"], if below { "slow" } else { "pass" }, "{factor}: {row}");
        }
        // The sizes before them lack as much.
        assert_eq!(err.contains("; bandwidth is lost from "), factor > 1.1, "{err}");
    }
}

/// Goal: each of several runs that failed is a case of its own.
#[test]
fn failed_runs_are_cases_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let log = std::fs::read_to_string("tests/data/h200x4/all_reduce_Ring_Simple.log").unwrap();
    for name in ["a.log", "b.log"] {
        std::fs::write(folder.path().join(name), format!("# {name}\n{}", log.replacen("N/A", "4", 1))).unwrap();
    }
    let (_, junit, err) =
        collcast(&["validate", &folder.path().display().to_string(), "-t", "h200x4", "--format", "junit"]);
    for name in ["a.log", "b.log"] {
        let case = format!("name=\"run_failed, {}\"", folder.path().join(name).display());
        assert_eq!(junit.matches(&case).count(), 1, "{junit}{err}");
    }
}

/// Goal: one size that takes 2.5 times as long between good ones is in the verdict and makes it less sure, beside a forecast and
/// beside a good run.
#[test]
fn a_size_far_off_by_itself_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let one = changed(folder.path(), "one", |size, us| if size == 64 << 20 { 2.5 * us } else { us });
    let good = changed(folder.path(), "good", |_, us| us);
    for (more, told) in [(&[][..], "; but 64 MiB reaches 40%"), (&["--against", &good], "; but 64 MiB reaches 40%")] {
        let (code, out, err) = collcast(&[&["validate", &one][..], more].concat());
        assert!(code == 0 && err.contains(told) && err.contains("confidence: medium"), "{more:?} {out}{err}");
    }
    let (_, _, err) = collcast(&["validate", &good]);
    assert!(err.contains("confidence: high") && !err.contains("; but"), "{err}");
}

/// Goal: of candidates, one that fits far worse than another is not the first thing to look at. Method: 60 us more a call.
#[test]
fn a_candidate_that_fits_badly_is_not_named_first() {
    let folder = tempfile::tempdir().unwrap();
    let path = changed(folder.path(), "late", |_, us| us + 60.0);
    let (code, out, err) = collcast(&["validate", &path]);
    assert!(code == 1 && out.contains("candidates: ") && out.contains("launch_bound"), "{out}{err}");
    assert!(!out.contains("first of all") && !err.contains("first of all"), "{out}{err}");
    // Nor is it named as the cause: twice as long below 128 KiB, which a late host makes of it and peer access through the host not.
    let path = changed(folder.path(), "small", |size, us| if size < 128 << 10 { 2.0 * us } else { us });
    let (_, out, _) = collcast(&["validate", &path, "--format", "json", "--fail-below", "90%"]);
    let result: Value = serde_json::from_str(&out).unwrap();
    for anomaly in result["anomalies"].as_array().unwrap() {
        let evidence = anomaly["evidence"].as_str().unwrap();
        let percent = |text: &str| text.rsplit(' ').next()?.parse::<f64>().ok();
        let fits = evidence.split_once("% off at these sizes").and_then(|(before, _)| percent(before));
        let without = evidence.split_once("% off without a fault").and_then(|(before, _)| percent(before));
        assert!(fits.zip(without).is_none_or(|(fits, without)| fits < without), "{evidence}");
    }
}

/// Goal: with a limit of the user, repeats that lie apart leave a band unsure, and only a share below the limit is slow. Method: three
/// repeats, 15% apart, around what a good run takes, or twice as long.
#[test]
fn unsteady_repeats_are_not_below_a_limit() {
    let one = "threads,,";
    let repeats = |times: f64| [0.85, 1.0, 1.15].map(|apart| rows(one, |_, _| times * apart)).concat();
    for (times, more, code, says, never) in [
        (1.0, &[][..], 1, "slow: all_reduce over 4 ranks is unsteady at", "--fail-below"),
        (1.0, &["--fail-below", "10%"], 0, "cannot tell: all_reduce over 4 ranks is unsteady at", "--fail-below"),
        (2.0, &["--fail-below", "85%"], 1, "reaches 50% of the expected", "unsteady"),
    ] {
        let (exit, said) = beside(&repeats(times), &rows(one, |_, _| 1.0), more);
        let verdict = said.lines().last().unwrap_or_default();
        assert!(exit == code && verdict.contains(says) && !verdict.contains(never), "{times} {more:?}: {exit} {said}");
    }
}

/// Goal: where the typical time of a size is as it should be, no fault of the machine is named, but what its repeats differ by.
/// Method: three repeats, of which one takes twice as long, and calls in place that all do.
#[test]
fn what_disturbs_a_run_is_no_fault_of_the_machine() {
    let folder = tempfile::tempdir().unwrap();
    let path = changed(folder.path(), "run", |_, us| us);
    // Rows of which the last cell ends so, each `times` as long.
    let rows = |ends: &str, times: f64| -> String {
        let other = changed(folder.path(), "other", |_, us| times * us);
        let text = std::fs::read_to_string(other).unwrap();
        text.lines().filter(|line| line.ends_with(ends)).map(|line| line.to_owned() + "\n").collect()
    };
    let both = |times: f64| rows("false", times) + &rows("true", times);
    let head = rows("in_place", 1.0);
    let kinds = |path: &str| {
        let (code, out, _) = collcast(&["validate", path, "--format", "json"]);
        let result: Value = serde_json::from_str(&out).unwrap();
        let of = |a: &Value| (a["kind"].as_str().unwrap().to_owned(), a["severity"].as_str().unwrap().to_owned());
        let kinds: Vec<_> = result["anomalies"].as_array().unwrap().iter().map(of).collect();
        (code, kinds, result["verdict"]["sentence"].as_str().unwrap().to_owned())
    };
    std::fs::write(&path, head.clone() + &both(1.0) + &both(2.0) + &both(1.01)).unwrap();
    let (code, found, says) = kinds(&path);
    assert_eq!((code, &found[..]), (1, &[("noise".to_owned(), "error".to_owned())][..]), "{says}");
    std::fs::write(&path, head + &rows("false", 1.0) + &rows("true", 2.0)).unwrap();
    let (code, found, says) = kinds(&path);
    assert_eq!((code, &found[..]), (1, &[("halves_differ".to_owned(), "error".to_owned())][..]), "{says}");
    assert!(says.ends_with("; calls in place and out of place differ"), "{says}");
}

/// Goal: a pass beside a forecast says what it leaves open, from the numbers of its own band: the fastest healthy machine reaches as
/// much above the forecast as the slowest below it.
#[test]
fn a_pass_says_what_it_leaves_open() {
    let file = "tests/data/published/azure_nd_h100_v5_1n_allreduce.csv";
    let (code, out, err) = collcast(&["validate", file, "--no-doctor", "--format", "json"]);
    assert_eq!(code, 0, "{err}");
    let result: serde_json::Value = serde_json::from_str(&out).unwrap();
    let bands = result["bands"][0]["bands"].as_array().unwrap();
    let band = bands.iter().find(|band| band["part"] == "large").unwrap();
    let of = |key: &str| band[key].as_f64().unwrap();
    let open = (1.0 - of("share") * of("low")) * 100.0;
    let says = result["verdict"]["sentence"].as_str().unwrap();
    assert!(
        open > 0.0 && says.contains(&format!("(a loss of up to {open:.0}% would look the same)")),
        "{open}: {says}"
    );
}

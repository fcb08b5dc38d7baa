//! Goal: `lint` finds each pitfall and cries no wolf; every rule has a sample that it finds; no file breaks it.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{collcast, program, run};
use collcast::SiteSpec;
use collcast::lint::{Input, Request, lint, rules};
use serde::Deserialize;

const FOLDER: &str = "tests/data/lint";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    sample: Vec<Sample>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sample {
    file: String,
    topology: Option<String>,
    nodes: Option<u32>,
    nccl: Option<String>,
    findings: Vec<String>,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn samples() -> Vec<Sample> {
    let text = std::fs::read_to_string(root().join(FOLDER).join("expected.toml")).unwrap();
    toml::from_str::<Expected>(&text).unwrap().sample
}

/// `LINE RULE` of each finding of a sample, in order.
fn found(sample: &Sample) -> Vec<String> {
    let topology = sample.topology.as_ref().map(|name| match root().join(name) {
        path if path.is_file() => path.display().to_string(),
        _ => name.clone(),
    });
    let machine =
        topology.map(|name| SiteSpec { nodes: sample.nodes, nccl: sample.nccl.clone(), ..SiteSpec::new(name) });
    let input = Input::read(&root().join(FOLDER).join(&sample.file)).unwrap();
    let outcome = lint(&Request { inputs: vec![input], machine, ..Request::default() }).unwrap();
    let mut found: Vec<String> = (outcome.findings.iter())
        .map(|finding| format!("{} {}", finding.place.line.unwrap_or(0), finding.rule))
        .collect();
    found.sort();
    found
}

/// Goal: of each sample all that is wrong is found, and nothing else. Every file of the folder is a sample.
#[test]
fn samples_have_the_findings_that_they_should() {
    let samples = samples();
    let mut listed: Vec<&str> = samples.iter().map(|sample| sample.file.as_str()).collect();
    let mut there: Vec<String> = std::fs::read_dir(root().join(FOLDER))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "expected.toml")
        .collect();
    listed.sort_unstable();
    there.sort();
    assert_eq!(listed, there);
    assert!(samples.len() >= 60, "{} samples", samples.len());
    let mut wrong = Vec::new();
    for sample in &samples {
        let mut expected = sample.findings.clone();
        expected.sort();
        let found = found(sample);
        if found != expected {
            wrong.push(format!("{}: found {found:?}, expected {expected:?}", sample.file));
        }
        assert_eq!(sample.file.contains("bad"), !sample.findings.is_empty(), "{}", sample.file);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Goal: of NICs that hosts lack all hosts are named, the one with fewest first.
#[test]
fn hosts_that_lack_nics_are_named() {
    let (_, out, err) =
        collcast(&["lint", "tests/data/lint/few_nics.bad.log", "-t", "dgx-h100", "--nodes", "2", "--format", "json"]);
    assert!(out.contains("gpu02 uses 1 of 8 RDMA devices, gpu01 2\""), "{out}{err}");
}

/// Goal: of a log without findings it is said what was understood, and what was not judged; of a text that says nothing of
/// NCCL neither.
#[test]
fn a_clean_log_says_what_was_understood() {
    let log = format!("{FOLDER}/rdma.good.log");
    let (code, _, err) = collcast(&["lint", &log]);
    let said = "nothing is wrong in the log of 2 hosts: NCCL 2.28.9+cuda13.0, 16 ranks, IB, 8 devices, GDRDMA";
    assert!(code == 0 && err.contains(said) && err.contains("no machine says") && err.contains("-t TOPOLOGY"), "{err}");
    let (_, _, err) = collcast(&["lint", &log, "-t", "dgx-h100", "--nodes", "2"]);
    assert!(err.contains(said) && err.contains("confidence: high"), "{err}");
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("none.log");
    std::fs::write(&empty, "gpu01:1:2 [0] NCCL INFO cudaDriverVersion 13000\n").unwrap();
    let (_, _, err) = collcast(&["lint", empty.to_str().unwrap()]);
    assert!(err.contains("nothing was judged"), "{err}");
}

/// Goal: files as Windows' shells write them, and logs as terminals colour and containers keep them, have the findings of the
/// same text without that.
#[test]
fn files_are_read_as_they_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let found = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let outcome = lint(&Request { inputs: vec![Input::read(&path).unwrap()], ..Request::default() }).unwrap();
        let kind = outcome.looked_at[0].kind;
        let findings = outcome.findings.iter().map(|one| (one.rule, one.place.line, one.what.clone()));
        (kind, findings.collect::<Vec<_>>())
    };
    let env = std::fs::read_to_string(root().join(FOLDER).join("numbers.bad.env")).unwrap();
    let log = std::fs::read_to_string(root().join(FOLDER).join("few_nics.bad.log")).unwrap();
    for (name, text) in [("job.env", &env), ("run.log", &log)] {
        let plain = found(name, text.as_bytes());
        assert!(!plain.1.is_empty());
        let wide =
            |unit: fn(u16) -> [u8; 2]| format!("\u{feff}{text}").encode_utf16().flat_map(unit).collect::<Vec<u8>>();
        for bytes in [wide(u16::to_le_bytes), wide(u16::to_be_bytes), format!("\u{feff}{text}").into_bytes()] {
            assert_eq!(found(name, &bytes), plain, "{name}");
        }
    }
    let plain = found("run.log", log.as_bytes());
    let coloured = log.replace("NCCL INFO", "\u{1b}[01;31mNCCL\u{1b}[m INFO");
    assert_eq!(found("run.log", coloured.as_bytes()), plain);
    let line = |line: &str| serde_json::json!({"log": format!("{line}\n"), "stream": "stdout"}).to_string() + "\n";
    let kept: String = log.lines().map(line).collect();
    assert_eq!(found("run.log", kept.as_bytes()), plain);
}

/// Goal: how many NICs of several are named is said of machines whose NICs have no names.
#[test]
fn nics_without_names_are_counted() {
    let bad = format!("{FOLDER}/hca_unnamed.bad.env");
    let (_, out, err) = collcast(&["lint", &bad, "-t", "dgx-h100", "--nodes", "2"]);
    let said = "NCCL_IB_HCA=mlx5_0: lists 1 device by the beginnings of names, and a host has 8 NICs [fewer-nics]";
    assert!(out.contains(said), "{out}{err}");
    let (_, _, err) = collcast(&["sweep", "dgx-h100", "--nodes", "2", "-s", "1K", "--env", "NCCL_IB_HCA=mlx5_0"]);
    assert!(err.contains("so all are used, though 1 of 8 are listed"), "{err}");
    let (_, out, err) =
        collcast(&["sweep", "dgx-h100", "--nodes", "2", "-s", "1K", "--env", "NCCL_FASTRAK_CTRL_DEV=eth0"]);
    assert!(!err.contains("not a variable") && out.contains("without effect"), "{out}{err}");
}

/// Goal: a name that is the beginning of others is said to stand for these too, as NCCL takes it, and `=` ends that.
#[test]
fn names_stand_for_what_begins_so() {
    let folder = tempfile::tempdir().unwrap();
    let machine = folder.path().join("machine.toml").display().to_string();
    let template = std::fs::read_to_string(root().join("topologies/data/template.toml")).unwrap();
    std::fs::write(&machine, template.replace("mlx5_[0-7]", "mlx5_[0-1,3-6,10-11]")).unwrap();
    for (value, more) in [
        ("mlx5_0,mlx5_1", Some("`mlx5_1` also stands for mlx5_10, mlx5_11")),
        ("^mlx5_1", Some("`mlx5_1` also stands for mlx5_10, mlx5_11")),
        ("mlx5_1,mlx5_10", Some("`mlx5_1` also stands for mlx5_11")),
        ("mlx5_1:1,mlx5_10,mlx5_11", None),
        ("=mlx5_0,mlx5_1", None),
        ("mlx5", None),
    ] {
        let input = Input { name: "job.env".to_owned(), text: format!("NCCL_IB_HCA={value}\n") };
        let machine = Some(SiteSpec::new(machine.clone()));
        let outcome = lint(&Request { inputs: vec![input], machine, ..Request::default() }).unwrap();
        let found = outcome.findings.iter().find(|finding| finding.rule == "hca-beginning");
        let said = found.map(|finding| finding.what.as_str());
        assert_eq!(said, more.map(|more| format!("NCCL_IB_HCA={value}: {more}")).as_deref(), "{value}");
    }
}

/// What is wrong with a text, by rule and in words.
fn said(name: &str, text: &str) -> Vec<(&'static str, String)> {
    let input = Input { name: name.to_owned(), text: text.to_owned() };
    let outcome = lint(&Request { inputs: vec![input], ..Request::default() }).unwrap();
    outcome.findings.into_iter().map(|finding| (finding.rule, finding.what)).collect()
}

/// Goal: mpirun of Open MPI leaves behind what is exported and `-x` does not name, where it starts processes on other hosts;
/// launchers that hand all on are not blamed.
#[test]
fn mpirun_leaves_behind_what_is_not_named() {
    // Exported before, or in front of mpirun alone: then it is its own.
    let set = "export NCCL_IB_HCA=mlx5\n";
    for (before, command, fires) in [
        (set, "mpirun -np 16 -H a:8,b:8 ./train", true),
        (set, "mpirun -np 16 --host=a,b ./train", true),
        (set, "mpirun -np 16 -H $HOSTS ./train", true),
        (set, "mpirun -np 16 --hostfile hosts ./train", true),
        (set, "mpirun -np 16 -machinefile hosts ./train", true),
        (set, "mpiexec --map-by ppr:8:node --hostfile hosts ./train", true),
        (set, "mpirun -np 16 -H a:8,b:8 -x PATH ./train", true),
        (set, "mpirun -np 16 -H a:8,b:8 -x NCCL_IB_HCA ./train", false),
        (set, "mpirun -np 8 ./train", false),
        (set, "mpirun -np 8 -H localhost:8 -x PATH ./train", false),
        (set, "mpirun -np 8 -H a,a ./train", false),
        (set, "mpirun -np 16 --hostfile hosts --mca mca_base_env_list NCCL_IB_HCA ./train", false),
        (set, "mpiexec -n 16 -hostfile hosts ./train", false),
        (set, "mpirun -n 16 -genvall -machinefile hosts ./train", false),
        (set, "mpirun -n 16 -ppn 8 -hostfile hosts ./train", false),
        (set, "export I_MPI_FABRICS=ofi\nmpirun -n 16 -hostfile hosts ./train", false),
        ("", "NCCL_IB_HCA=mlx5 mpirun -np 16 -H a:8,b:8 ./train", true),
        ("", "NCCL_IB_HCA=mlx5 mpirun -np 16 -H a:8,b:8 -x NCCL_IB_HCA ./train", false),
        ("", "NCCL_IB_HCA=mlx5 mpirun -np 8 ./train", false),
        ("", "NCCL_IB_HCA=mlx5 ./one\nmpirun -np 16 -H a:8,b:8 ./train", false),
    ] {
        let found = said("job.sh", &format!("{before}{command}\n"));
        assert_eq!(found.iter().any(|(rule, _)| *rule == "not-forwarded"), fires, "{command}: {found:?}");
    }
    let found = said("job.sh", "export PATH=/opt/bin\nmpirun -np 16 -H a:8,b:8 ./train\n");
    assert!(found.is_empty(), "{found:?}");
}

/// Goal: what two files set differently is said once, at the later one, with the place of the other; the same value is none.
#[test]
fn files_that_differ_are_named() {
    let input = |name: &str, text: &str| Input { name: name.to_owned(), text: text.to_owned() };
    let inputs = vec![
        input("a.env", "NCCL_CROSS_NIC=2\nNCCL_IB_TIMEOUT=22\n"),
        input("nccl.conf", "NCCL_IB_TIMEOUT=20\nNCCL_CROSS_NIC=2\n"),
        input("job.sh", "export NCCL_IB_TIMEOUT=$T\n"),
    ];
    let outcome = lint(&Request { inputs, ..Request::default() }).unwrap();
    let found = outcome.findings.iter().filter(|finding| finding.rule == "differs-between-files");
    let found: Vec<_> = found.map(|one| (one.place.file.as_str(), one.place.line, one.what.as_str())).collect();
    assert_eq!(found, [("nccl.conf", Some(1), "NCCL_IB_TIMEOUT=20, and NCCL_IB_TIMEOUT=22 in a.env:2")]);
}

/// Goal: a script is judged with the files that it sources, where they are here: plain lines of them reach no process,
/// exported ones do, and what the script sets after them is no slip. A file that sources itself ends.
#[test]
fn files_that_scripts_source_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("job.sh").display().to_string();
    for (file, text, finds) in [
        ("NCCL_IB_HCA=mlx5\n", "source ./local.env", "[(\"not-exported\", \"NCCL_IB_HCA=mlx5 is not exported\")]"),
        (
            "NCCL_IB_HCA=mlx5\nNCCL_CROSS_NIC=1\nNCCL_IB_TC=106\n",
            ". ./local.env",
            "[(\"not-exported\", \"NCCL_CROSS_NIC=1 and 2 more are not exported\")]",
        ),
        ("NCCL_IB_HCA=mlx5\n", "set -a; source ./local.env; set +a", "[]"),
        ("NCCL_IB_HCA=mlx5\n", "set -o allexport\nsource ./local.env\nset +o allexport", "[]"),
        ("NCCL_IB_HCA=mlx5\n", "source ./local.env\nexport NCCL_IB_HCA", "[]"),
        ("NCCL_IB_HCA=mlx5\n", "export NCCL_IB_HCA=mlx5_1\nsource ./local.env", "[]"),
        ("export NCCL_IB_HCA=mlx5\n", "source ./local.env\nexport NCCL_IB_HCA=mlx5_1", "[]"),
        ("source ./local.env\nsource ./local.env\n", "source ./local.env", "[]"),
        ("NCCL_IB_HCA=mlx5\n", "source ./elsewhere.env\nsource $HOME/local.env", "[]"),
    ] {
        std::fs::write(folder.path().join("local.env"), file).unwrap();
        let found = said(&script, &format!("#!/bin/bash\n{text}\nsrun ./train\n"));
        assert_eq!(format!("{found:?}"), finds, "{text}");
    }
}

/// Goal: what settings cost only together is one finding that names those that hide each other, and no others; what they
/// cost one by one is not said again.
#[test]
fn settings_that_hide_each_other_are_named_together() {
    let costs = |text: &str| -> Vec<(&'static str, String)> {
        let input = Input { name: "job.env".to_owned(), text: text.to_owned() };
        let machine = Some(SiteSpec::new("dgx-h100").nodes(2));
        let outcome = lint(&Request { inputs: vec![input], machine, ..Request::default() }).unwrap();
        let of_costs = outcome.findings.into_iter().filter(|finding| finding.rule.ends_with("time"));
        of_costs.map(|finding| (finding.rule, finding.what)).collect()
    };
    let both = costs("NCCL_NVLS_ENABLE=0\nNCCL_CROSS_NIC=2\nNCCL_ALGO=Ring\n");
    let named = "NCCL_ALGO=Ring and NCCL_NVLS_ENABLE=0 together cost ";
    let joint: Vec<_> = both.iter().filter(|(_, what)| what.contains("together")).collect();
    assert!(
        matches!(joint[..], [("costs-time", what)] if what.starts_with(named) && what.contains(" without them ")),
        "{both:?}"
    );
    for one in ["NCCL_NVLS_ENABLE=0\n", "NCCL_ALGO=Ring\n", "NCCL_NVLS_ENABLE=0\nNCCL_DEBUG=WARN\n"] {
        let alone = costs(one);
        assert!(!alone.is_empty() && alone.iter().all(|(_, what)| !what.contains("together")), "{alone:?}");
    }
}

/// Goal: a finding shows where it cuts a value, and says of `^LL` that it leaves LL128 in.
#[test]
fn values_are_shown_as_they_are_meant() {
    let long = "NCCL_ALGO=allreduce:tree,ring;broadcast:ring;reduce:ring;allgather:ring;reducescatter:rign\n";
    let (_, what) = said("job.env", long).into_iter().find(|(rule, _)| *rule == "refused-value").unwrap();
    assert!(what.contains("rign"), "{what}");
    let long = format!("NCCL_NET_PLUGIN=/{}\nNCCL_NET_PLUGIN=none\n", "x".repeat(80));
    let (_, what) = said("job.env", &long).into_iter().find(|(rule, _)| *rule == "set-twice").unwrap();
    assert!(what.ends_with("xxx... in line 1"), "{what}");
    for (value, does) in [("^LL", "leaves LL128 in, as naming it does"), ("^Simple;allreduce:LL128", "names LL128")] {
        let text = format!("NCCL_PROTO={value}\n");
        let (_, what) = said("job.env", &text).into_iter().find(|(rule, _)| *rule == "forced-ll128").unwrap();
        assert_eq!(what, format!("NCCL_PROTO={value} {does}"));
    }
}

/// Goal: a table that several files name is looked at once, and the file itself counts.
#[test]
fn a_table_is_looked_at_once() {
    let table = root().join(FOLDER).join("tuner_table.bad.csv");
    let text = format!("NCCL_TUNER_PLUGIN=/opt/libnccl-tuner-example.so\nNCCL_TUNER_CONFIG_FILE={}\n", table.display());
    let env = |name: &str| Input { name: name.to_owned(), text: text.clone() };
    let findings = |inputs| {
        let outcome = lint(&Request { inputs, ..Request::default() }).unwrap();
        outcome.findings.iter().filter(|finding| finding.rule.starts_with("table-")).count()
    };
    let alone = findings(vec![Input::read(&table).unwrap()]);
    assert_eq!(alone, 9);
    assert_eq!(findings(vec![env("a.env"), env("b.env")]), alone);
    assert_eq!(findings(vec![env("a.env"), Input::read(&table).unwrap()]), alone);
}

/// Goal: a loss within the doubt of the forecasts is a note with its interval, and the verdict is as sure as they are.
#[test]
fn costs_say_how_sure_they_are() {
    let (code, out, err) =
        collcast(&["lint", &format!("{FOLDER}/cross_nic.bad.env"), "-t", "dgx-h100", "--nodes", "4"]);
    assert!(code == 0 && out.contains("% (likely -") && out.contains("[may-cost-time]"), "{out}{err}");
    assert!(err.contains("(what is said to cost time)") && !err.contains("confidence: high"), "{err}");
    let (_, out, _) = collcast(&["lint", &format!("{FOLDER}/slow_choice.bad.log"), "-t", "dgx-h100", "--nodes", "2"]);
    assert!(out.contains("ring/ll, ours nvls_tree/simple; it costs ") && out.contains("% by the forecast"), "{out}");
}

/// Goal: no rule is dead: each is found in a sample, on the host of `a_planted_host_is_read`, or on the machine of
/// `names_stand_for_what_begins_so`.
#[test]
fn every_rule_has_a_sample() {
    let of_hosts = ["acs-on", "iommu-on", "no-peer-memory", "port-down", "far-cores"];
    let samples = samples();
    let found: BTreeSet<&str> = (samples.iter().flat_map(|sample| &sample.findings))
        .filter_map(|finding| Some(finding.split_once(' ')?.1))
        .chain(of_hosts)
        // What one file alone does not show is tested by itself.
        .chain(["hca-beginning", "differs-between-files"])
        .collect();
    let missing: Vec<&str> =
        rules::all().iter().map(|rule| rule.id.as_str()).filter(|id| !found.contains(id)).collect();
    assert!(missing.is_empty(), "without a sample: {missing:?}");
}

/// Writes a file of a planted host.
fn plant(root: &Path, path: &str, bytes: impl AsRef<[u8]>) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// The configuration space of a PCI bridge whose access control has these bits.
fn bridge(control: u8) -> Vec<u8> {
    let mut config = vec![0; 0x200];
    config[0x100..0x104].copy_from_slice(&0x000d_u32.to_le_bytes());
    config[0x106] = control;
    config
}

/// The rules that a host breaks, by the program.
fn of_host(root: &Path) -> (i32, BTreeSet<String>) {
    let (code, out, err) = collcast(&["lint", "--host", "--host-root", root.to_str().unwrap(), "--format", "json"]);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}{err}"));
    let rule = |finding: &serde_json::Value| finding["rule"].as_str().unwrap().to_owned();
    (code, report["findings"].as_array().unwrap().iter().map(rule).collect())
}

/// Goal: a host is read through a folder: one that has every fault, the same one without them, one that cannot be read, and none.
#[test]
fn a_planted_host_is_read() {
    let bad = tempfile::tempdir().unwrap();
    let good = tempfile::tempdir().unwrap();
    for (path, ill, well) in [
        ("proc/sys/net/ipv4/ip_local_port_range", "50000\t50100\n", "32768\t60999\n"),
        (
            "proc/self/limits",
            "Max locked memory         65536                65536                bytes\n",
            "Max locked memory         unlimited            unlimited            bytes\n",
        ),
        ("etc/nccl.conf", "NCCL_DEUBG=WARN\n", "NCCL_DEBUG=WARN\n"),
        ("proc/mounts", "shm /dev/shm tmpfs rw,size=65536k 0 0\n", "tmpfs /dev/shm tmpfs rw,size=64g 0 0\n"),
        ("proc/cmdline", "quiet intel_iommu=on\n", "quiet intel_iommu=on iommu=pt\n"),
        ("proc/self/status", "Cpus_allowed_list:\t0-3\n", "Cpus_allowed_list:\t0-7\n"),
        ("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n", "4: ACTIVE\n"),
        ("usr/local/lib/python3.12/site-packages/nvidia_nccl_cu12-2.27.3.dist-info/METADATA", "", ""),
    ] {
        plant(bad.path(), path, ill);
        plant(good.path(), path, well);
    }
    plant(bad.path(), "usr/lib/x86_64-linux-gnu/libnccl.so.2.18.3", "");
    plant(good.path(), "usr/lib/x86_64-linux-gnu/libnccl.so.2.27.3", "");
    plant(good.path(), "dev/infiniband/uverbs0", "");
    plant(good.path(), "sys/module/nvidia_peermem/version", "");
    for (root, control) in [(bad.path(), 0x1d), (good.path(), 0x00)] {
        plant(root, "sys/module/nvidia/version", "");
        plant(root, "sys/bus/pci/devices/0000:10:00.0/config", bridge(control));
        plant(root, "sys/devices/system/cpu/online", "0-7\n");
        plant(root, "sys/devices/system/node/node1/cpulist", "4-7\n");
        for (what, text) in [("class", "0x030200\n"), ("vendor", "0x10de\n"), ("numa_node", "1\n")] {
            plant(root, &format!("sys/bus/pci/devices/0000:11:00.0/{what}"), text);
        }
    }
    let all = [
        "acs-on",
        "far-cores",
        "iommu-on",
        "memlock",
        "misspelt-name",
        "narrow-ports",
        "no-peer-memory",
        "no-rdma-device",
        "port-down",
        "small-shm",
        "two-nccls",
    ];
    assert_eq!(of_host(bad.path()), (1, all.map(str::to_owned).into()));
    assert_eq!(of_host(good.path()), (0, BTreeSet::new()));
    plant(bad.path(), "proc/self/status", "Cpus_allowed_list:\t3\n");
    assert!(of_host(bad.path()).1.contains("one-core"));
    // What was checked is counted and named, and so is what was not.
    let verdict = |root: &Path| collcast(&["lint", "--host", "--host-root", root.to_str().unwrap()]);
    let (code, out, err) = verdict(good.path());
    assert_eq!((code, out.as_str()), (0, ""), "{err}");
    assert!(err.contains("nothing is wrong with 1 setting in 1 place; 8 checks of the host ran: ports, "), "{err}");
    assert!(!err.contains("not checked"), "{err}");
    std::fs::remove_file(good.path().join("proc/cmdline")).unwrap();
    std::fs::remove_file(good.path().join("etc/nccl.conf")).unwrap();
    plant(good.path(), "sys/bus/pci/devices/0000:10:00.0/config", &bridge(0)[..64]);
    let (_, _, err) = verdict(good.path());
    assert!(err.contains("ok: nothing is wrong; 6 checks of the host ran: "), "{err}");
    assert!(err.contains("IOMMU (cannot read /proc/cmdline)") && err.contains("PCIe bridges (cannot"), "{err}");
    // A folder that is no host's is not one without faults.
    let empty = tempfile::tempdir().unwrap();
    for (root, says) in
        [(empty.path().to_owned(), "no folder proc, sys or etc"), (empty.path().join("x"), "is no folder")]
    {
        let (code, _, err) = verdict(&root);
        assert!(code == 2 && err.contains(says) && err.contains("--host-root"), "{err}");
    }
}

/// Goal: exit codes, formats, processes: what CI sees.
#[test]
fn outputs_say_where() {
    let bad = format!("{FOLDER}/numbers.bad.env");
    let (code, out, err) = collcast(&["lint", &bad]);
    assert_eq!(code, 1, "{err}");
    assert!(out.contains("numbers.bad.env:1: error: NCCL_BUFFSIZE=8M is read as 8 [number-with-text]"), "{out}");
    assert!(out.contains("way out: write NCCL_SHM_DISABLE=1\n") && err.contains("4 errors"), "{out}{err}");
    let (_, out, err) = collcast(&["lint", &format!("{FOLDER}/lists.bad.env")]);
    assert!(out.contains("way out: write NCCL_IB_HCA=mlx5_0,mlx5_1\n"), "{out}{err}");
    let (code, out, err) = collcast(&["lint", &format!("{FOLDER}/numbers.good.env")]);
    assert_eq!((code, out.as_str()), (0, ""), "{err}");
    assert!(err.contains("nothing is wrong with 4 settings in 1 place"), "{err}");
    let (_, out, _) = collcast(&["lint", &bad, "--format", "github"]);
    assert!(out.contains(&format!("::error file={bad},line=1,title=")), "{out}");
    let (_, out, _) = collcast(&["lint", &bad, "--format", "sarif"]);
    let sarif: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(sarif["runs"][0]["results"].as_array().unwrap().len(), 5);
    let (code, out, _) = collcast(&["lint", &bad, "--format", "junit"]);
    assert!(code == 1 && out.contains("failures=\"4\""), "{out}");
    // Warnings and notes alone are no failure.
    assert_eq!(collcast(&["lint", &format!("{FOLDER}/debug_info.bad.env")]).0, 0);
    for (args, says) in [
        (&["lint"][..], "nothing to look at"),
        (&["lint", "no-such-file.env"], "cannot read"),
        (&["lint", &bad, "-t", "dgx-h10"], "dgx-h100"),
        (&["lint", "--host-root", "/"], "--host"),
        (&["lint", "--pid", "4294967294"], "cannot read"),
    ] {
        let (code, _, err) = collcast(args);
        assert!(code == 2 && err.contains(says), "{args:?}: {code} {err}");
    }
}

/// Goal: variables of a process are read as those of a file, by its number and as one's own.
#[test]
fn processes_are_read() {
    let mut sleeper = std::process::Command::new("sleep").arg("60").env("NCCL_DEUBG", "INFO").spawn().unwrap();
    // The variables are those of `sleep` once the system has started it.
    let environ = format!("/proc/{}/environ", sleeper.id());
    let until = Instant::now() + Duration::from_secs(20);
    while !std::fs::read(&environ).is_ok_and(|text| !text.is_empty()) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    let (code, out, err) = collcast(&["lint", "--pid", &sleeper.id().to_string()]);
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert!(code == 1 && out.contains("did you mean NCCL_DEBUG?"), "{out}{err}");
    let (code, out, err) = run(program().args(["lint", "--own-env"]).env("NCCL_IB_SHARP", "1"));
    assert!(code == 1 && out.contains("the environment: error: NCCL_IB_SHARP"), "{out}{err}");
    // It is no file that code scanning could show.
    let (_, out, _) = run(program().args(["lint", "--own-env", "--format", "sarif"]).env("NCCL_IB_SHARP", "1"));
    assert!(out.contains("logicalLocations") && !out.contains("physicalLocation"), "{out}");
}

/// Goal: whatever the bytes and the name of a file, there is an answer.
/// Method: samples with pieces cut out, doubled, swapped and overwritten, under the names of all kinds.
#[test]
fn no_file_breaks_it() {
    let seconds = std::env::var("COLLCAST_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
    let until = Instant::now() + Duration::from_secs(seconds);
    let texts: Vec<Vec<u8>> =
        (samples().iter()).map(|sample| std::fs::read(root().join(FOLDER).join(&sample.file)).unwrap()).collect();
    let names = ["x.env", "x.sh", "Dockerfile", "x.yaml", "x.py", "x.log", "x.conf", "x"];
    // A generator of numbers that is the same everywhere: Knuth's, in MMIX.
    let mut state = 20_261_125_u64;
    let mut next = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below.max(1)
    };
    let mut runs = 0_u64;
    while runs < 400 || Instant::now() < until {
        let mut bytes = texts[next(texts.len())].clone();
        for _ in 0..=next(6) {
            let (at, length) = (next(bytes.len()), next(40));
            let end = (at + length).min(bytes.len());
            match next(4) {
                0 => drop(bytes.drain(at..end)),
                1 => bytes.extend_from_within(at..end),
                2 => bytes[at..end].fill(b" \n\"'\\{[=$#\0\xff"[next(12)]),
                _ => {
                    let other = &texts[next(texts.len())];
                    let from = next(other.len());
                    let piece = other[from..(from + length).min(other.len())].to_vec();
                    bytes.splice(at..at, piece);
                }
            }
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let input = Input { name: names[next(names.len())].to_owned(), text };
        let outcome = lint(&Request { inputs: vec![input], ..Request::default() }).unwrap();
        let _ = (outcome.lines(), outcome.sarif());
        runs += 1;
    }
    // Long lines and deep nesting take time in proportion to their length.
    for text in ["[".repeat(1 << 20), "- ".repeat(1 << 19), "a:\n ".repeat(1 << 18), "NCCL_A=1\n".repeat(1 << 16)] {
        for name in names {
            let input = Input { name: name.to_owned(), text: text.clone() };
            lint(&Request { inputs: vec![input], ..Request::default() }).unwrap();
        }
    }
}

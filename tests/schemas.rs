//! Goal: what `--format json` prints is what the schemas in `docs/schemas` say, and all that it prints is in them. What an
//! earlier schema promised is still there.
//! Method: each command is run in each of its shapes, and its answer held against the schema of its kind, as it is and with no
//! key beside those that are named. `tests/data/schemas` has what versions promised; `COLLCAST_UPDATE=1` writes that of a
//! version which has no file yet.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use collcast::hwbackend::verbs::{Kind, Measured};
use collcast::probe::{Kernels, NetworkOutcome, Outcome, Spot, TimedLong, TimedMemory, TimedProduct, Times};
use collcast::schema::{Of, all, find};
use collcast::sim::collective::{Algorithm, Collective, Launch, Protocol};
use collcast::sim::units::Bytes;
use collcast::{Query, SiteSpec, bench};
use rayon::prelude::*;
use serde_json::{Value, json};

use crate::common::collcast;

/// Commands in all shapes of their answers, without `--format json`; DIR is an empty folder.
const SAMPLES: [&str; 83] = [
    "sweep h200x4 -s 1K:64M:64",
    "sweep dgx-h100 --nodes 1,2 -s 1M,64M -c all_reduce,all_to_all",
    "sweep dgx-h100 -s 1M --explain-choice",
    "sweep dgx-h100 --nodes 2 --split %8 -s 1M",
    "sweep h200x4 --schedule sim/tests/data/pairs2.xml --in-place -s 1M",
    "simulate h200x4 -s 1M",
    "simulate h200x4 -c all_gather -s 1M",
    "simulate dgx-h100 --nodes 2 -s 64M --explain-choice",
    "simulate h200x4 --schedule sim/tests/data/pairs2.xml --in-place -s 1M",
    "simulate dgx-h100 --group 64K*4,all_gather:1M",
    "simulate ddp-buckets",
    "simulate gpt-pipeline",
    "simulate gpt-tensor --vary jitter.relative=0.01",
    "simulate ddp-buckets --vary data_parallel.bucket=5MiB,25MiB",
    "bench h200x4 -s 1K,64K --batches 3 --budget 10ms",
    "bench h200x4 --pairs -s 64K --batches 3 --budget 10ms",
    "bench --backend transfer --drives-only --batches 3 --budget 10ms -s 1M --folder DIR",
    "plan llama3-8b --gpus 16",
    "plan llama3-8b --gpus 16 --tokens 1T --price 2.5 --sensitivities",
    "plan llama3-8b --gpus 16 --sensitivities",
    "plan llama3-8b --gpus 16 --vary nic.rate=x1,x2 --layout tp=2",
    "plan llama3-8b --gpus 8,16",
    "plan llama3-8b --gpus 12,16 --layout tp=2",
    "plan llama3-8b --gpus 8,16 --tokens 1T --price 2.5",
    "plan mixtral-8x7b --gpus 64 --layout tp=2,ep=8",
    "plan llama3-405b --gpus 8 --layout tp=8",
    "serve llama3-8b --aggregated 1x1 --rate 2 --duration 20s",
    "serve llama3-8b --prefill 1x1 --decode 1x1 --rate 2 --duration 20s",
    "serve llama3-8b --prefixes 20,1024 --host-cache 1T --rate 2 --duration 20s",
    "serve llama3-8b --try-splits 2x1 --rate 2 --duration 20s",
    "serve llama3-8b --try-splits 2x1 --rate 2 --duration 20s --slo tpot=1ms",
    "serve llama3-8b --smallest 4 --rate 2 --duration 20s",
    "serve llama3-8b --smallest 4 --on dgx-h100 --on dgx-b200 --rate 2 --duration 20s",
    "serve llama3-8b --prefill 1x8 --decode 1x8 --rate 2 --duration 20s --vary nics=4 --price 2",
    "serve llama3-8b --rate 2 --duration 20s --vary nvlink.rate=x0.5 --slo tpot=1ms",
    "transfer --from gpu:0 --to gpu:9 -s 1G",
    "transfer --from gpu:0 --to gpu:8 -s 1G --layers 8 --overlap-prefill 1.2s",
    "transfer --from gpu:0 --to gpu:8 -s 1G --beside all_reduce,256M,gpu:0-15",
    "transfer --break-even llama3-8b",
    "validate tests/data/h200x4/nccl.csv -t h200x4",
    "validate tests/data/doctor/p2p_disable_1_4.csv --closest",
    "validate tests/data/compute/probe_h100 --compute h100",
    "validate tests/data/transfer/h100x2_copies.csv --compute h100",
    "validate tests/data/h200x4/nccl.csv --against tests/data/h200x4/nccl.csv",
    "validate --host-names node[01-08] --next-runs DIR",
    "validate hwbackend/tests/data/shahizat_h100_2n_allreduce_default.log -t dgx-h100 --next-runs DIR --host-names node[01-04]",
    "validate hwbackend/tests/data/azure_nd_h100_v5_1n_allreduce.csv -t azure-nd-h100-v5 --history DIR",
    "compare tests/data/h200x4/nccl.csv --where-a in_place=0 --where-b in_place=1",
    "compare tests/data/h200x4/nccl.csv --where-a size=8:1M --where-b size=64K:4M",
    "trace tests/data/trace/ddp_0.json.gz tests/data/trace/ddp_1.json.gz",
    "trace tests/data/trace/ddp_0.json.gz",
    "trace tests/data/trace/fsdp_0.json.gz tests/data/trace/fsdp_1.json.gz -t dgx-b200 --gpus 2",
    "trace tests/data/trace/recorder_0.json tests/data/trace/recorder_1.json",
    "trace tests/data/trace/recorder_0.json",
    "trace tests/data/trace/hta_backward_thread.json",
    "trace tests/data/trace/ddp_0.json.gz tests/data/trace/ddp_1.json.gz --on dgx-h100",
    "tune h200x4 -s 1M",
    "tune h200x4 --measurements tests/data/h200x4/nccl.csv --launch graph",
    "tune h200x4 --measure --backend host --budget 1s --ranks 2 -s 1K,64K",
    "tune ddp-buckets",
    "tune dgx-h100 --nodes 2 --communicators tp=8,dp=2 -s 64M",
    "calibrate tests/data/h200x4_bench/nccl_processes_2.csv -t h200x4 --hold-back none",
    "calibrate tests/data/h200x4_bench/nccl_processes_2.csv -t h200x4 --fit latency.nvlink.ll",
    "calibrate tests/data/compute/probe_h100 --compute h100",
    "calibrate tests/data/transfer/h100x2_copies.csv -t dgx-h100",
    "check checks/suite.toml",
    "check examples/check/after.toml --baseline DIR",
    "lint tests/data/lint/numbers.bad.env",
    "lint tests/data/lint/numbers.good.env --host",
    "topo list",
    "topo show dgx-h100",
    "topo show topologies/tests/data/azure-ndv5-topo.xml",
    "topo graph h200x4",
    "topo paths h200x4 0 1",
    "topo paths dgx-h100 0 9 --nodes 2",
    "profile list -t dgx-h100",
    "profile show h200-nvswitch",
    "profile show prior --all",
    "profile diff prior h200-nvswitch",
    "schema",
    "self-test",
    "--show-config",
    "sweep h200x4 --show-config",
];

/// Answers that take hardware; their tables are made up below.
const UNSEEN: [&str; 1] = ["probe"];

/// The answers in JSON, each with its command.
fn answers() -> Vec<(&'static str, Value)> {
    let one = |command: &&'static str| {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("room");
        let words = command.split(' ').map(|word| word.replace("DIR", place.to_str().unwrap()));
        let words: Vec<String> = words.chain(["--format".to_owned(), "json".to_owned()]).collect();
        if command.contains("--folder DIR") {
            std::fs::create_dir(&place).unwrap();
        }
        if command.contains("--baseline DIR") {
            let before = ["check", "examples/check/before.toml", "--baseline", place.to_str().unwrap(), "--update"];
            assert_eq!(collcast(&before).0, 0);
        }
        let (code, out, err) = collcast(&words.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(matches!(code, 0 | 1), "{command}: {err}");
        (*command, serde_json::from_str(&out).unwrap_or_else(|error| panic!("{command}: {error}\n{out}")))
    };
    SAMPLES.par_iter().map(one).collect()
}

fn kind(answer: &Value) -> &str {
    answer["schema"].as_str().unwrap().split('/').nth(1).unwrap()
}

/// A schema that allows no key beside those that it names. Of several shapes each allows those of the whole too.
fn strict(schema: &Value) -> Value {
    let mut schema = schema.clone();
    close(&mut schema, true);
    schema
}

fn close(schema: &mut Value, whole: bool) {
    let Value::Object(fields) = schema else { return };
    if whole && fields.contains_key("properties") {
        fields.insert("unevaluatedProperties".to_owned(), json!(false));
    }
    for (key, value) in fields.iter_mut() {
        match (key.as_str(), value) {
            ("properties", Value::Object(properties)) => properties.values_mut().for_each(|one| close(one, true)),
            ("anyOf", Value::Array(shapes)) => shapes.iter_mut().for_each(|shape| close(shape, false)),
            ("items", items) => close(items, true),
            _ => {}
        }
    }
}

fn check_valid(command: &str, schema: &Value, answer: &Value) {
    let validator = jsonschema::draft202012::new(schema).unwrap();
    let errors: Vec<String> =
        validator.iter_errors(answer).take(3).map(|error| format!("{}: {error:.300}", error.instance_path())).collect();
    assert!(
        errors.is_empty(),
        "{command}: its answer is not of docs/schemas/{}.json:\n{}",
        kind(answer),
        errors.join("\n")
    );
}

#[test]
fn answers_are_of_their_schema() {
    let mut seen = BTreeSet::new();
    for (command, answer) in answers() {
        let schema: Value = serde_json::from_str(&find(kind(&answer)).unwrap().text).unwrap();
        check_valid(command, &schema, &answer);
        check_valid(command, &strict(&schema), &answer);
        seen.insert(kind(&answer).to_owned());
    }
    let named: BTreeSet<String> =
        all().into_iter().filter(|schema| schema.of == Of::Answer).map(|schema| schema.name.to_owned()).collect();
    seen.extend(UNSEEN.map(str::to_owned));
    assert_eq!(seen, named, "each answer has a schema, and each schema is seen");
}

/// Goal: what a probe of GPUs and of NICs answers is of its schema too.
/// Method: made-up times in every table.
#[test]
fn answers_of_hardware_are_of_their_schema() {
    let site = SiteSpec { launch: Some(Launch::Threads), ..SiteSpec::new("h200x2") }.load().unwrap();
    let query = Query::new(&site, Collective::AllReduce, Bytes(1024)).forced(Algorithm::Ring, Protocol::Simple);
    let rows = bench::bench(&site, &bench::Request::new(bench::Backend::Host, vec![query])).unwrap().rows;
    let times = Times { us: 5.0, least_us: 4.0, most_us: 6.0 };
    let spot = Spot { kind: "copy".to_owned(), size_bytes: 1 << 20, time_us: 5.0, ..Spot::default() };
    let gpus = Outcome {
        folder: "probe".into(),
        topology: "probe/topology.toml".into(),
        peers: true,
        spots: vec![spot.clone(), Spot { src: Some(0), dst: Some(1), gbps: Some(9.5), ..spot }],
        rows,
        kernels: Kernels {
            products: vec![TimedProduct { dtype: "bf16", kind: "forward", shape: [1, 2, 3], times }],
            sustained: vec![TimedLong { size: 8192, seconds: 2.0, us: 5.0 }],
            memory: vec![TimedMemory { kernel: "device_copy_bytes", bytes: 1 << 20, times }],
        },
        facts: vec![("gpu".to_owned(), "made up".to_owned())],
        interrupted: false,
        failure: None,
    };
    let measured = |kind, bytes| Measured {
        kind,
        src: 0,
        dst: 1,
        nic: "mlx5_0".to_owned(),
        qps: 1,
        bytes,
        times_us: vec![2.0; 5],
    };
    let nics = NetworkOutcome {
        folder: "probe".into(),
        rows: [Kind::LatencyWrite, Kind::Post, Kind::Completion, Kind::Bandwidth]
            .map(|kind| measured(kind, 8))
            .to_vec(),
        amd: false,
        facts: vec![("host".to_owned(), "made up".to_owned())],
    };
    let schema: Value = serde_json::from_str(&find("probe").unwrap().text).unwrap();
    for (what, report) in [("probe", gpus.report()), ("probe --backend verbs", nics.report())] {
        let answer: Value = serde_json::from_str(&collcast::reports::json::render(&report)).unwrap();
        assert!(answer.as_object().unwrap().len() > 8, "{answer}");
        check_valid(what, &schema, &answer);
        check_valid(what, &strict(&schema), &answer);
    }
}

/// Goal: schemas say what all answers have in common alike, and each key says what it is.
#[test]
fn schemas_are_alike() {
    let mut common: Option<Value> = None;
    for schema in all().into_iter().filter(|schema| schema.of == Of::Answer) {
        let name = schema.name;
        let text: Value = serde_json::from_str(&schema.text).unwrap();
        assert_eq!(text["properties"]["schema"]["const"], format!("collcast/{name}/1"), "{name}");
        assert_eq!(text["$id"], format!("urn:collcast:{name}:1"));
        let keys = ["version", "predicted", "inputs", "assumptions", "warnings", "verdict"];
        let of_all: Value = keys.iter().map(|key| text["properties"][key].clone()).collect();
        assert_eq!(*common.get_or_insert(of_all.clone()), of_all, "{name}");
        for key in keys {
            assert!(text["required"].as_array().unwrap().contains(&json!(key)), "{name}: {key}");
        }
        check_described(name, &text);
    }
}

fn check_described(place: &str, schema: &Value) {
    for (key, one) in schema["properties"].as_object().into_iter().flatten().filter(|(key, _)| *key != "schema") {
        assert!(one["description"].as_str().is_some_and(|text| !text.is_empty()), "{place}: {key} says not what it is");
        check_described(&format!("{place}.{key}"), one);
        check_described(&format!("{place}.{key}"), &one["items"]);
    }
    schema["anyOf"].as_array().into_iter().flatten().for_each(|shape| check_described(place, shape));
}

/// What a schema promises to who reads its answers: the types of each key that is always there, by its place.
fn promised(place: &str, schema: &Value, into: &mut BTreeMap<String, String>) {
    let types = match &schema["type"] {
        Value::String(one) => one.clone(),
        Value::Array(several) => several.iter().map(|one| one.as_str().unwrap()).collect::<Vec<_>>().join(" or "),
        _ => String::new(),
    };
    into.insert(place.to_owned(), types);
    for key in schema["required"].as_array().into_iter().flatten().map(|key| key.as_str().unwrap()) {
        promised(&format!("{place}.{key}"), &schema["properties"][key], into);
    }
    if schema["items"].is_object() {
        promised(&format!("{place}[]"), &schema["items"], into);
    }
    for shape in schema["anyOf"].as_array().into_iter().flatten() {
        promised(&format!("{place} ({})", shape["title"].as_str().unwrap()), shape, into);
    }
}

/// What all answers promise, by what their key `schema` says.
fn promises() -> BTreeMap<String, BTreeMap<String, String>> {
    let answers = all().into_iter().filter(|schema| schema.of == Of::Answer);
    let of = answers.map(|schema| {
        let text: Value = serde_json::from_str(&schema.text).unwrap();
        let mut all = BTreeMap::new();
        promised("", &text, &mut all);
        (text["properties"]["schema"]["const"].as_str().unwrap().to_owned(), all)
    });
    of.collect()
}

/// Goal: who reads the answers of an earlier version can read those of this one, as long as `schema` says the same: no key that
/// was always there is gone, and none has a type that it had not.
#[test]
fn promises_are_kept() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/schemas");
    let now = promises();
    let this = folder.join(format!("{}.json", env!("CARGO_PKG_VERSION")));
    if std::env::var_os("COLLCAST_UPDATE").is_some() && !this.exists() {
        std::fs::write(&this, serde_json::to_string_pretty(&now).unwrap() + "\n").unwrap();
    }
    let mut versions = 0;
    for file in std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
        if file.extension().is_none_or(|ending| ending != "json") {
            continue;
        }
        versions += 1;
        let then: BTreeMap<String, BTreeMap<String, String>> =
            serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        for (schema, keys) in then {
            let kept = now
                .get(&schema)
                .unwrap_or_else(|| panic!("{schema} was promised by {}, and no answer is of it", file.display()));
            for (place, types) in keys {
                let types_now = kept.get(&place).unwrap_or_else(|| {
                    panic!(
                        "{schema}: `{place}` was promised by {}: a schema without it has another number",
                        file.display()
                    )
                });
                let known = |one: &str| types.split(" or ").any(|then| then == one);
                let same = types_now.split(" or ").all(known);
                assert!(same, "{schema}: `{place}` was {types} in {}, and is {types_now}", file.display());
            }
        }
    }
    assert!(versions > 0);
    assert!(this.exists(), "{} is not there: COLLCAST_UPDATE=1 cargo test --test program schemas", this.display());
}

/// Goal: a schema is found by its name and by what an answer says, and names that are none are refused with the nearest.
#[test]
fn schemas_are_printed() {
    for (name, part) in [
        ("sweep", "urn:collcast:sweep:1"),
        ("collcast/plan/1", "layouts"),
        ("topology.toml", "fabric"),
        ("model.toml", "hidden"),
    ] {
        let (code, out, err) = collcast(&["schema", name]);
        assert!(code == 0 && out.contains(part), "{out}{err}");
        serde_json::from_str::<Value>(&out).unwrap();
    }
    let (code, _, err) = collcast(&["schema", "swep"]);
    assert!(code == 2 && err.contains("did you mean `sweep`?"), "{err}");
    let (code, _, err) = collcast(&["schema", "sweep", "--format", "csv"]);
    assert!(code == 2 && err.contains("a schema is JSON"), "{err}");
}

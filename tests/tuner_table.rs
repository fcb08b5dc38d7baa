//! What `collcast tune` writes into a table and beside it, as NCCL, its plugins and forecasts take it.

use std::path::Path;

use crate::common::collcast;
use serde_json::Value;

/// Goal: a change does not reach sizes where it is slower: it begins and ends at sizes that gain.
/// Method: at 1 MiB ring/LL was measured faster than ring/LL128, which gains from 2 to 16 MiB.
#[test]
fn a_change_ends_where_it_stops_to_gain() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    let measured = ["--measurements", "tests/data/tuner/h200x4_graph_search.csv", "--launch", "graph"];
    let (code, _, err) = collcast(&[&["tune", "h200x4", "-c", "all_gather", "-o", folder][..], &measured].concat());
    assert_eq!(code, 0, "{err}");
    let table = std::fs::read_to_string(dir.path().join("tuner.csv")).unwrap();
    assert!(table.contains("\nallgather,2097152,16777216,ring,ll128,24,1,4,-1,-1\n"), "{table}");
}

/// Goal: lines that keep NCCL's choice are NCCL's choice between the sizes that were looked at too, with its channels.
#[test]
fn kept_lines_are_nccls_own_at_every_size() {
    use collcast::sim::call::Call;
    use collcast::sim::collective::{Collective, DataType};
    use collcast::sim::nccl::{CsvTuner, Tuner};
    use collcast::sim::predict::Choice;
    use collcast::sim::units::Bytes;
    use collcast::tune::Request;

    for machine in ["h200x4", "dgx-h100"] {
        let site = collcast::Site::load(machine).unwrap();
        let collectives = vec![Collective::AllGather, Collective::AllReduce];
        let request =
            Request { collectives: collectives.clone(), sizes: Some(vec![4096, 1 << 20]), ..Request::default() };
        let mut outcome = collcast::tune::tune(&site, &request).unwrap();
        let kept = outcome.tuner_csv.split_once("# kept:").unwrap().1;
        let example = Tuner::Csv(std::sync::Arc::new(CsvTuner::parse(kept.split_once('\n').unwrap().1)));
        let (free, tuned) = (site.predictor(), site.predictor().with_tuner(Some(example)));
        outcome.calls.retain(|call| call.advice.is_none());
        assert!(!outcome.calls.is_empty());
        let mut channels = std::collections::BTreeSet::new();
        for collective in collectives {
            let changed = outcome.ranges.iter().filter(|range| range.changes && range.collective == collective);
            let changed: Vec<(u64, u64)> = changed.map(|range| (range.from_bytes, range.to_bytes)).collect();
            for size in (0..400_u64).map(|at| 1000 + 137 * at.pow(3)) {
                let call = Call::of_size(collective, site.topology.ranks(), Bytes(size), DataType::Float32);
                if changed.iter().any(|(from, to)| (from..=to).contains(&&call.size().0)) {
                    continue;
                }
                let choice = |of: &collcast::sim::predict::Predictor<'_>| {
                    let chosen = of.decide(&call, Choice::Auto, Choice::Auto, site.settings()).unwrap();
                    (chosen.algorithm, chosen.protocol, chosen.channels)
                };
                assert_eq!(choice(&tuned), choice(&free), "{machine} {collective} {size}");
                channels.insert(choice(&free).2);
            }
        }
        assert!(channels.len() > 4, "{channels:?}");
    }
}

/// Goal: where a network's plugin brings a tuner along, it is asked where the table says nothing: by all files. They load
/// nothing where the table changes nothing.
#[test]
fn the_tuner_of_the_network_stays() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (folder, script, plugin) = (at("of a job"), at("job.sh"), at("plugin.so"));
    let read = |path: &str| std::fs::read_to_string(path).unwrap();
    let site = collcast::SiteSpec::new("aws-p5").nodes(2).load().unwrap();
    let request = collcast::tune::Request { sizes: Some(vec![1 << 16]), ..Default::default() };
    let mut outcome = collcast::tune::tune(&site, &request).unwrap();
    let write = |outcome: &collcast::tune::Outcome| {
        let report = outcome.report(collcast::views::tune::Show::default());
        collcast::tune::write(outcome, &report, &report, Path::new(&folder), None).unwrap();
    };
    outcome.calls.iter_mut().for_each(|call| call.advice = None);
    write(&outcome);
    for name in ["slurm.sh", "kubernetes.yaml"] {
        assert!(read(&format!("{folder}/{name}")).starts_with("# Nothing to load: "), "{name}");
    }
    let advice = collcast::tune::Advice { candidate: 1, gain: 0.2, basis: collcast::tune::Basis::Cited };
    let call = outcome.calls.iter_mut().find(|call| call.candidates.len() > 1).unwrap();
    call.advice = Some(advice);
    write(&outcome);
    let slurm = read(&format!("{folder}/slurm.sh"));
    assert!(slurm.contains("\nexport COLLCAST_TUNER_NEXT=libnccl-net.so\n"), "{slurm}");
    assert!(slurm.contains(&format!("\nexport COLLCAST_TUNER_TABLE='{folder}/tuner.csv'\n")), "{slurm}");
    let yaml = read(&format!("{folder}/kubernetes.yaml"));
    assert!(yaml.contains("- name: COLLCAST_TUNER_NEXT\n    value: \"libnccl-net.so\"\n"), "{yaml}");
    std::fs::write(&plugin, "").unwrap();
    for (text, next) in [
        ("srun ./train\n", Some("libnccl-net.so")),
        ("export NCCL_NET_PLUGIN=ofi\n", Some("ofi")),
        ("export NCCL_TUNER_PLUGIN=none\n", None),
    ] {
        std::fs::write(&script, text).unwrap();
        for _ in 0..2 {
            assert_eq!(collcast(&["tune", "install", &folder, "--into", &script, "--plugin", &plugin]).0, 0);
            let with = read(&script);
            let named = with.lines().find_map(|line| line.strip_prefix("export COLLCAST_TUNER_NEXT="));
            assert_eq!(named, next, "{with}");
        }
    }
    // Forecasts ask it too, where our plugin is told to.
    let choice = |env: &[&str]| {
        let sweep = ["sweep", "aws-p5", "--nodes", "4", "-s", "64M", "--format", "json"];
        let (code, out, err) = collcast(&[&sweep[..], env].concat());
        assert_eq!(code, 0, "{err}");
        let report: Value = serde_json::from_str(&out).unwrap();
        report["rows"][0]["chosen_by"].as_str().unwrap().to_owned()
    };
    let ours = ["--env", "NCCL_TUNER_PLUGIN=libcollcast_tuner.so"];
    let next = ["--env", "COLLCAST_TUNER_NEXT=libnccl-net.so"];
    assert!(choice(&[]).contains("region tuner"), "{}", choice(&[]));
    assert_eq!(choice(&ours), "cost table");
    assert!(!choice(&[&ours[..], &next].concat()).contains("cost table"));
}

/// Goal: a table says whose rules, which form of the GPU and which settings it was made with; calls without bytes are no
/// calls.
#[test]
fn a_table_says_what_it_was_made_with() {
    use collcast::tune::{Request, tune};

    let spec = collcast::SiteSpec::new("dgx-h100").env("NCCL_NVLS_ENABLE", "0").env("NCCL_DEBUG", "INFO");
    let sizes = Some(vec![8, 4096]);
    let outcome = tune(&spec.load().unwrap(), &Request { sizes: sizes.clone(), ..Request::default() }).unwrap();
    let said = |what: &str| outcome.tuner_csv.contains(what);
    assert!(said("\n# for: nccl=2.30.7 gpu=H100 form=other\n") && said("\n# with: NCCL_NVLS_ENABLE=0\n"));
    assert!(!said("NCCL_DEBUG") && !said("# next:"), "{}", outcome.tuner_csv);
    // Of the machine and of who asks, of whom the latter counts.
    let told = |spec: collcast::SiteSpec| spec.load().unwrap().told.in_effect;
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let h200 = || collcast::SiteSpec::new("h200x4").env("NCCL_DEBUG", "INFO");
    assert_eq!(told(h200().env("NCCL_NVLS_ENABLE", "2")), [pair("NCCL_NVLS_ENABLE", "2")]);
    assert_eq!(told(h200().env("NCCL_ALGO", "Ring")), [pair("NCCL_ALGO", "Ring"), pair("NCCL_NVLS_ENABLE", "0")]);
    let site = collcast::SiteSpec { nodes: Some(16), gpus: Some(1), ..collcast::SiteSpec::new("dgx-h100") };
    let collectives = vec![collcast::sim::collective::Collective::AllGather];
    let outcome = tune(&site.load().unwrap(), &Request { sizes, collectives, ..Request::default() }).unwrap();
    let asked: Vec<u64> = outcome.asked().map(|call| call.size_bytes).collect();
    assert_eq!(asked, [4096]);
    assert!(outcome.calls.iter().all(|call| call.size_bytes > 0));
}

/// Goal: `install` says which launcher leaves its variables behind, and which lines a job's own lists close.
#[test]
fn install_says_what_keeps_a_table_from_working() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (table, script, plugin) = (at("tuner.csv"), at("job.sh"), at("plugin.so"));
    std::fs::write(
        &table,
        "# changes:\nallreduce,0,9,tree,ll,4,2,16\nallreduce,10,9223372036854775807,ring,ll,4,2,16\n",
    )
    .unwrap();
    std::fs::write(&plugin, "").unwrap();
    for (text, says) in [
        ("#!/bin/bash\nmpirun -np 16 -H a:8,b:8 -x NCCL_DEBUG -x NCCL_TUNER_PLUGIN ./train\n", Some("(not-forwarded)")),
        ("#!/bin/bash\nmpirun -np 64 -H node001:8,node002:8 ./train\n", Some("(not-forwarded)")),
        ("#!/bin/bash\nmpirun -np 8 ./train\n", None),
        ("export NCCL_ALGO=Ring\nsrun ./train\n", Some("(table-closed)")),
        ("export NCCL_DEBUG=WARN\nsrun ./train\n", None),
    ] {
        std::fs::write(&script, text).unwrap();
        let (code, _, err) = collcast(&["tune", "install", &table, "--into", &script, "--plugin", &plugin]);
        assert_eq!(code, 0, "{err}");
        match says {
            Some(says) => assert!(err.contains("warning: ") && err.contains(says), "{err}"),
            None => assert_eq!(err, ""),
        }
    }
}

/// Goal: forecasts take the lines of our plugin, leave to NCCL what it leaves, and say of a table why the plugin refuses it.
#[test]
fn forecasts_take_the_lines_of_our_plugin() {
    let dir = tempfile::tempdir().unwrap();
    let table = dir.path().join("tuner.csv");
    let text = "# for: nccl=2.28.9 gpu=H200 form=other\n# changes:\nallreduce,8192,16384,tree,simple,3,1,4,-1,-1\n\
        # kept:\nallreduce,16385,99999999,ring,ll,1,1,4,-1,-1\n# end: 2 lines\n";
    let of = |text: &str, plugin: bool| {
        std::fs::write(&table, text).unwrap();
        let named = format!("COLLCAST_TUNER_TABLE={}", table.display());
        let plugin = if plugin { &["--env", "NCCL_TUNER_PLUGIN=libcollcast_tuner.so"][..] } else { &[] };
        let sweep = ["sweep", "h200x4", "-s", "4K,16K,1M", "--format", "json", "--env", &named];
        let (code, out, err) = collcast(&[&sweep[..], plugin].concat());
        assert_eq!(code, 0, "{err}");
        let report: Value = serde_json::from_str(&out).unwrap();
        let row = |row: &Value| format!("{} {} {}", row["algorithm"], row["channels"], row["chosen_by"]);
        let rows: Vec<String> = report["rows"].as_array().unwrap().iter().map(row).collect();
        (rows, out)
    };
    let (free, _) = of(text, false);
    let (tuned, _) = of(text, true);
    assert!(tuned[1].starts_with("\"tree\" ") && tuned[1].contains("collcast-tuner"), "{tuned:?}");
    assert_eq!((&tuned[0], &tuned[2]), (&free[0], &free[2]));
    let (refused, out) = of(&text.replace("2.28.9", "2.30.3"), true);
    assert!(refused == free && out.contains("it is for NCCL 2.30, and this is 2.28"), "{refused:?} {out}");
    // As the plugin does.
    assert_eq!(of(&format!("\u{feff}{text}"), true).0, tuned);
}

//! Goal: what a user of `collcast compare` meets: verdicts and exit codes, formats, refusals.
//! The statistic has its own tests beside it.

use std::path::Path;

use serde_json::Value;

use crate::common::collcast;
use crate::random::Random;

const LOG: &str = "tests/data/h200x4/all_reduce_Ring_Simple.log";
const CSV: &str = "tests/data/h200x4/nccl.csv";

/// The log, with the times of sizes in `sizes` longer by a factor.
fn planted(folder: &Path, sizes: std::ops::RangeInclusive<u64>, factor: f64) -> String {
    let log = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(LOG)).unwrap();
    let line = |line: &str| -> String {
        let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        if words.len() == 13 && words[0].parse().is_ok_and(|size| sizes.contains(&size)) {
            for at in [5, 9] {
                words[at] = format!("{:.2}", words[at].parse::<f64>().unwrap() * factor);
                for rate in [at + 1, at + 2] {
                    words[rate] = format!("{:.2}", words[rate].parse::<f64>().unwrap() / factor);
                }
            }
            return words.join(" ");
        }
        line.to_owned()
    };
    let path = folder.join("after.log");
    std::fs::write(&path, log.lines().map(|l| line(l) + "\n").collect::<String>()).unwrap();
    path.to_str().unwrap().to_owned()
}

fn json(args: &[&str]) -> (i32, Value) {
    let (code, out, err) = collcast(&[&["compare", "--format", "json"], args].concat());
    assert!(code < 2, "{args:?}: {err}");
    (code, serde_json::from_str(&out).unwrap())
}

/// Goal: a file beside itself, or a copy of it, has not changed, whatever the tolerance; two halves of it can have.
#[test]
fn a_file_has_not_changed_beside_itself() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy.log");
    std::fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join(LOG), &copy).unwrap();
    for args in [&[LOG, LOG][..], &[LOG, copy.to_str().unwrap()], &[CSV, CSV], &[LOG, LOG, "--tolerance", "0%"]] {
        let (code, result) = json(args);
        assert_eq!((code, &result["overall"]["verdict"]), (0, &"no change".into()), "{args:?} {result}");
        assert_eq!((&result["predicted"], &result["overall"]["bands_cannot_tell"]), (&false.into(), &0.into()));
    }
    let (_, result) = json(&[LOG, LOG, "--where-a", "in_place=0", "--where-b", "in_place=1", "--tolerance", "0%"]);
    assert_ne!(result["overall"]["verdict"], "no change", "{result}");
}

#[test]
fn a_planted_slowdown_fails_and_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let after = planted(folder.path(), 32 << 20..=4 << 30, 1.05);
    let (code, out, err) = collcast(&["compare", LOG, &after]);
    assert_eq!(code, 1, "{out}{err}");
    assert_eq!(err.lines().filter(|l| l.starts_with("failed: B is slower in 2 of 6 bands")).count(), 1, "{err}");
    let slower: Vec<&str> = out.lines().filter(|l| l.starts_with("slower")).collect();
    assert!(slower.len() == 2 && slower.iter().all(|l| l.contains("> 16 MiB") && l.contains("1.050")), "{out}");

    // Where only some sizes changed, the headline has their change and not that of the range.
    let some = planted(folder.path(), 512 << 10..=2 << 20, 1.5);
    let (code, out, _) = collcast(&["compare", LOG, &some, "--format", "markdown"]);
    assert!(code == 1 && out.lines().next().unwrap().contains("at worst by 50.0%"), "{out}");

    let small = planted(folder.path(), 8..=32 << 10, 1.15);
    let (code, result) = json(&[LOG, &small]);
    assert_eq!(code, 1, "{result}");
    assert_eq!(result["overall"]["verdict"], "slower");
    let (code, result) = json(&[&small, LOG]);
    assert_eq!((code, &result["overall"]["verdict"]), (0, &"faster".into()), "{result}");
    // A tolerance above the change lets it pass.
    assert_eq!(json(&[LOG, &small, "--tolerance", "40%"]).0, 0);
}

#[test]
fn the_same_file_twice_is_no_failure() {
    let (code, result) = json(&[LOG, LOG]);
    assert_eq!(code, 0);
    assert_eq!(result["schema"], "collcast/compare/1");
    let overall = &result["overall"];
    assert_eq!((&overall["bands_slower"], &overall["bands_faster"]), (&0.into(), &0.into()));
    assert_eq!((&overall["rows"], &overall["rows_only_in_a"]), (&60.into(), &0.into()));
    let row = &result["rows"][0];
    for key in [
        "collective",
        "ranks",
        "launch",
        "algorithm",
        "protocol",
        "in_place",
        "size_bytes",
        "time_a_us",
        "time_b_us",
        "ratio",
        "low",
        "high",
        "verdict",
    ] {
        assert!(!row[key].is_null(), "{key}: {row}");
    }
    for key in ["status", "sentence", "confidence", "basis"] {
        assert!(result["verdict"][key].is_string(), "{key}");
    }
}

/// Goal: of two sizes that ran once, one disturbed measurement could be all of a change: the interval says so as well as the
/// verdict, and the sizes are named. Three runs of each are none.
#[test]
fn two_sizes_may_have_been_disturbed() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, factor: f64, runs: usize| {
        let path = folder.path().join(name);
        let row = |run: usize, size: u64| format!("{run},all_reduce,8,{size},{}\n", 1e-4 * size as f64 * factor);
        let rows: String = (0..runs).flat_map(|run| [32 << 20, 64 << 20].map(|size| row(run, size))).collect();
        std::fs::write(&path, format!("run,collective,ranks,size_bytes,time_us\n{rows}")).unwrap();
        path.display().to_string()
    };
    let (_, result) = json(&[&file("a.csv", 1.0, 1), &file("b.csv", 1.13, 1)]);
    let band = &result["bands"][0];
    assert_eq!(band["verdict"], "cannot tell", "{result}");
    assert!(band["low"].as_f64() < Some(1.0) && band["high"].as_f64() > Some(1.13), "{band}");
    let warned = result["warnings"].to_string();
    assert!(warned.contains("one disturbed measurement") && warned.contains("32 MiB 1.130"), "{warned}");
    let (code, result) = json(&[&file("c.csv", 1.0, 3), &file("d.csv", 1.13, 3)]);
    assert!(code == 1 && result["bands"][0]["low"].as_f64() > Some(1.0), "{result}");
}

/// Goal: repeats that agree to the last digit stay, and a table that its file holds twice is told.
#[test]
fn repeats_stay_and_copies_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let rows: String =
        (0..9).flat_map(|at| [100, 100, 100, 140].map(|us| format!("all_reduce,8,{},{us}\n", 1024 << at))).collect();
    let file = |name: &str, rows: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("collective,ranks,size_bytes,time_us\n{rows}")).unwrap();
        path.display().to_string()
    };
    let (code, out, err) = collcast(&["compare", &file("a.csv", &rows), &file("b.csv", &rows.repeat(2))]);
    assert_eq!(code, 0, "{err}");
    let said = |side: &str| out.lines().find(|line| line.starts_with(side)).unwrap().to_owned();
    assert!(said("# A: ").ends_with("a.csv, 36 rows"), "{out}");
    assert!(said("# B: ").ends_with("b.csv, 36 rows; 36 more were second copies of rows of its files"), "{out}");
}

/// Goal: a run with wrong values, or one that stopped, is no good one whatever its times: exit 1 and a case of its own; not
/// so where it was the same before. A change that is certain but below the tolerance does not matter.
#[test]
fn wrong_values_and_failed_runs_fail() {
    let folder = tempfile::tempdir().unwrap();
    let log = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(LOG)).unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let good = file("good.log", &log);
    let wrong = file("wrong.log", &log.replacen("N/A", "3", 1));
    assert_ne!(std::fs::read(&wrong).unwrap(), log.as_bytes());
    let half: String = log.lines().take(30).map(|line| format!("{line}\n")).collect();
    let crashed =
        file("crashed.log", &(half.clone() + "vm: Test NCCL failure all_reduce.cu:44 'unhandled system error'\n"));
    let cut = file("cut.log", &half);
    for (bad, expected) in [(&wrong, "3 values were wrong"), (&crashed, "Test NCCL failure"), (&cut, "Out of bounds")] {
        let (code, out, err) = collcast(&["compare", &good, bad, "--format", "junit"]);
        assert_eq!(code, 1, "{out}{err}");
        assert!(out.contains("failures=\"1\"") && out.contains("name=\"run_failed, "), "{out}");
        assert!(out.contains(expected) && err.contains("failed: B is not as A was: "), "{out}{err}");
        let (code, result) = json(&[bad, bad]);
        assert_eq!((code, &result["overall"]["verdict"]), (0, &"no change".into()), "{result}");
        assert_eq!(json(&[bad, &good]).0, 0);
    }
    let below = planted(folder.path(), 32 << 20..=4 << 30, 1.035);
    assert_eq!(json(&[LOG, &below]).0, 0);
    assert_eq!(json(&[LOG, &below, "--tolerance", "3%"]).0, 1);
}

/// Goal: what is wrong with B is told also where A had some of it; runs that were cut alike are no news.
#[test]
fn failures_are_told_whatever_a_had() {
    let folder = tempfile::tempdir().unwrap();
    let log = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(LOG)).unwrap();
    let wrong = log.replacen("N/A", "3", 1);
    let cut: String =
        log.lines().take_while(|line| !line.contains("Out of bounds")).map(|l| format!("{l}\n")).collect();
    let set = |name: &str, files: &[&String]| {
        let at = folder.path().join(name);
        std::fs::create_dir(&at).unwrap();
        for (index, text) in files.iter().enumerate() {
            // Files of their own and no copies of each other.
            let text = text.replacen("# ", &format!("# run {index} of {name}\n# "), 1);
            std::fs::write(at.join(format!("{index}.log")), text).unwrap();
        }
        at.display().to_string()
    };
    let a = set("one_wrong", &[&log, &log, &log, &wrong]);
    let b = set("all_wrong", &[&wrong, &wrong]);
    let (code, result) = json(&[&a, &b]);
    let sentence = result["verdict"]["sentence"].as_str().unwrap();
    assert!(code == 1 && sentence.starts_with("2 files of B and 1 of A are wrong, failed or were cut: "), "{sentence}");
    // A run that failed before its first line is no run that is missing.
    let (code, result) = json(&[&set("good", &[&log, &log]), &set("one_empty", &[&log, &String::new()])]);
    assert!(code == 1 && result["verdict"]["sentence"].as_str().unwrap().contains("it is empty"), "{result}");
    let few = set("one_cut", &[&log, &log, &cut]);
    let more = set("two_cut", &[&log, &cut, &cut]);
    let all = set("all_cut", &[&cut, &cut]);
    let same = set("all_cut_too", &[&cut, &cut, &cut]);
    for (a, b, expected) in [(&few, &more, 1), (&more, &few, 0), (&all, &same, 0), (&few, &all, 1)] {
        let (code, result) = json(&[a, b]);
        assert_eq!(code, expected, "{a} {b}: {}", result["verdict"]);
    }
}

/// A night of a fleet: a log a host, whose times are so many times those of the first, with noise of its own.
fn night(folder: &Path, name: &str, hosts: usize, seed: u64, factor: impl Fn(usize) -> f64) -> String {
    let at = folder.join(name);
    std::fs::create_dir(&at).unwrap();
    let mut random = Random::new(seed);
    for host in 0..hosts {
        let mut text =
            String::from("# Collective test starting: all_reduce_perf\n# nThread 1 nGpus 1\n# Using devices\n");
        for rank in 0..8 {
            text += &format!(
                "# Rank {rank} Group 0 Pid {rank} on gpu{host:02} device {rank} [0000:0{rank}:00] NVIDIA H100\n"
            );
        }
        for size in (10..32).map(|power| 1_u64 << power) {
            let mut half = || {
                let time = (20.0 + size as f64 / 2e5) * factor(host) * (0.01 * random.normal()).exp();
                let rate = size as f64 / time / 1e3;
                format!("{time:.2} {rate:.2} {:.2} 0", rate * 1.75)
            };
            text += &format!("{size} {} float sum -1 {} {}\n", size / 4, half(), half());
        }
        text += "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 200 \n";
        std::fs::write(at.join(format!("{host:02}.log")), text).unwrap();
    }
    at.display().to_string()
}

/// Goal: one host of many that is slower is named with how much; hosts of one fleet differ by themselves, which is no change.
#[test]
fn hosts_are_held_against_themselves() {
    let folder = tempfile::tempdir().unwrap();
    let own = |host: usize| 1.0 + 0.02 * host as f64;
    let a = night(folder.path(), "a", 16, 1, own);
    let same = night(folder.path(), "same", 16, 2, own);
    let one = night(folder.path(), "one", 16, 3, |host| own(host) * if host == 5 { 2.0 } else { 1.0 });
    let some = night(folder.path(), "some", 16, 4, |host| own(host) * if host < 6 { 1.3 } else { 1.0 });
    let (code, result) = json(&[&a, &same]);
    assert_eq!((code, result["hosts"].as_array().unwrap().len()), (0, 16 * 6), "{}", result["verdict"]);
    let fewer = night(folder.path(), "fewer", 15, 5, own);
    let (code, result) = json(&[&a, &fewer]);
    let verdict = &result["verdict"];
    let sentence = verdict["sentence"].as_str().unwrap();
    assert!(code == 0 && sentence.contains("1 host of A is not in B: gpu15"), "{sentence}");
    assert_eq!(verdict["status"], "warning");
    let (code, result) = json(&[&a, &one]);
    let verdict = &result["verdict"];
    let sentence = verdict["sentence"].as_str().unwrap();
    assert!(code == 1 && sentence.contains("1 of 16 hosts takes longer in B than in A: gpu05 2.0"), "{sentence}");
    assert!(verdict["next"].as_str().unwrap().contains("on gpu05"), "{verdict}");
    let slower: Vec<&Value> =
        result["hosts"].as_array().unwrap().iter().filter(|host| host["verdict"] == "slower").collect();
    assert!(slower.len() == 6 && slower.iter().all(|host| host["hosts"] == "gpu05"), "{slower:?}");
    // A host that was repaired is no noise that hides one which became slower.
    let slow = |at: usize| move |host: usize| if host == at { 1.5 } else { 1.0 };
    let (before, after) = (night(folder.path(), "before", 4, 6, slow(1)), night(folder.path(), "after", 4, 7, slow(0)));
    let (code, _, err) = collcast(&["compare", &before, &after]);
    assert!(code == 1 && err.contains("1 of 4 hosts takes longer in B than in A: gpu00 1.5"), "{err}");
    let (code, out, err) = collcast(&["compare", &a, &some]);
    assert!(
        code == 1 && err.contains("6 of 16 hosts take longer in B than in A: ") && err.contains(" and 2 more"),
        "{err}"
    );
    assert!(out.contains("gpu05"), "{out}");
    let (_, junit, _) = collcast(&["compare", &a, &one, "--format", "junit"]);
    assert!(junit.contains("failures=\"6\"") && junit.contains("gpu05"), "{junit}");
    let (_, github, _) = collcast(&["compare", &a, &one, "--format", "github"]);
    assert!(github.contains("::error title=all_reduce") && github.contains("gpu05"), "{github}");
}

/// Goal: a collective, or a range of its sizes, that one host of B lacks is told, and so is a set of hosts that is missing.
#[test]
fn what_one_host_lacks_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let set = |name: &str, seed: u64| night(folder.path(), name, 4, seed, |_| 1.0);
    let (a, b, c) = (set("a", 1), set("b", 2), set("c", 3));
    // The same host's all-gather, whose bus bandwidth is half of that of an all-reduce; `most` rows of it.
    let gather = |at: &str, host: usize, most: usize| {
        let text = std::fs::read_to_string(Path::new(at).join(format!("{host:02}.log"))).unwrap();
        let mut rows = 0;
        let line = |line: &str| -> Option<String> {
            let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            if words.len() != 13 || line.starts_with('#') {
                return Some(line.replace("all_reduce", "all_gather"));
            }
            words[1] = (words[0].parse::<u64>().unwrap() / 32).to_string();
            words[3] = "none".to_owned();
            for rate in [7, 11] {
                words[rate] = format!("{:.2}", words[rate].parse::<f64>().unwrap() / 2.0);
            }
            rows += 1;
            (rows <= most).then(|| words.join(" "))
        };
        let text: Vec<String> = text.lines().filter_map(line).collect();
        std::fs::write(Path::new(at).join(format!("gather{host}.log")), text.join("\n") + "\n").unwrap();
    };
    for host in 0..4 {
        gather(&a, host, 99);
        gather(&c, host, if host == 2 { 14 } else { 99 });
    }
    (0..3).for_each(|host| gather(&b, host, 99));
    for (with, lacks) in [
        (&b, "B lacks all_gather over 8 ranks on gpu03"),
        (&c, "B lacks all_gather over 8 ranks at sizes > 16 MiB on gpu02"),
    ] {
        let (code, result) = json(&[&a, with]);
        let (verdict, sentence) = (&result["verdict"], result["verdict"]["sentence"].as_str().unwrap());
        assert!(code == 0 && verdict["status"] == "warning" && sentence.ends_with(lacks), "{verdict}");
        let (_, junit, _) = collcast(&["compare", &a, with, "--format", "junit"]);
        assert!(junit.contains(&format!("name=\"{}\"", lacks[8..].replace('>', "&gt;"))), "{junit}");
    }
    // One of two hosts is missing as a whole.
    std::fs::remove_file(Path::new(&c).join("02.log")).unwrap();
    std::fs::remove_file(Path::new(&c).join("gather2.log")).unwrap();
    let (_, junit, _) = collcast(&["compare", &a, &c, "--format", "junit"]);
    assert!(junit.contains("name=\"gpu02\""), "{junit}");
}

/// Goal: a range of sizes that became faster is no answer for one of which nothing can be told.
#[test]
fn a_faster_range_hides_no_open_one() {
    let folder = tempfile::tempdir().unwrap();
    let faster = planted(folder.path(), 32 << 20..=4 << 30, 0.8);
    let (code, result) = json(&[LOG, &faster]);
    let verdict = &result["verdict"];
    assert_eq!((code, &result["overall"]["verdict"], &verdict["status"]), (0, &"faster".into(), &"warning".into()));
    let sentence = verdict["sentence"].as_str().unwrap();
    assert!(sentence.contains("B is faster in 2 of 6 bands") && sentence.contains("could not be seen"), "{sentence}");
}

/// Goal: a run that failed before its first line is told also where all rows are those of A, and no news where A had it.
#[test]
fn an_empty_log_beside_the_same_rows_fails() {
    let folder = tempfile::tempdir().unwrap();
    let set = |name: &str, empty: bool| {
        let at = folder.path().join(name);
        std::fs::create_dir(&at).unwrap();
        std::fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join(LOG), at.join("run.log")).unwrap();
        if empty {
            std::fs::write(at.join("empty.log"), "").unwrap();
        }
        at.display().to_string()
    };
    let (whole, with) = (set("whole", false), set("with", true));
    let (code, result) = json(&[&whole, &with]);
    assert!(code == 1 && result["verdict"]["sentence"].as_str().unwrap().contains("it is empty"), "{result}");
    assert_eq!((json(&[&with, &with]).0, json(&[&with, &whole]).0), (0, 0));
}

/// Goal: parts of one file are compared, and the output says what differs.
#[test]
fn parts_of_one_file_are_compared() {
    let (code, out, err) = collcast(&["compare", CSV, "--where-a", "in_place=0", "--where-b", "in_place=1"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("# A and B differ in in_place: no -> yes"), "{out}");
    let (code, out, err) = collcast(&[
        "compare",
        CSV,
        "--where-a",
        "run=all_reduce_default",
        "--where-b",
        "run=all_reduce_Ring_LL",
        "--where",
        "size=8:2M",
    ]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("algorithm: auto -> ring") && out.contains("protocol: auto -> ll"), "{out}");
    assert!(out.contains("38 rows"), "{out}");
}

#[test]
fn what_has_no_partner_is_counted_and_named() {
    let both = &["--where-a", "run=all_reduce_Ring_LL,all_gather_Ring_LL", "--where-b", "run=all_reduce_Ring_LL"];
    let (_, result) = json(&[&[CSV], &both[..]].concat());
    assert_eq!(result["overall"]["rows_only_in_a"], 50);
    assert_eq!(result["unmatched"].as_array().unwrap().len(), 2, "one for each column of nccl-tests");
    assert!(result["warnings"][0].as_str().unwrap().contains("50 rows are in A only: all_gather, 4 ranks"), "{result}");
}

/// Goal: where B lacks a collective that A has, or a range of its sizes, what is left is no all-clear; single sizes may be left out.
#[test]
fn what_b_lacks_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, lines: &[(&str, u64)]| {
        let path = folder.path().join(name).display().to_string();
        let rows: String =
            lines.iter().map(|(call, size)| format!("{call},8,{size},{}\n", 20 + size / 100_000)).collect();
        std::fs::write(&path, format!("collective,ranks,size_bytes,time_us\n{rows}")).unwrap();
        path
    };
    let sizes = |call, powers: std::ops::Range<u32>| powers.map(|power| (call, 1_u64 << power)).collect::<Vec<_>>();
    let all = file("a.csv", &[sizes("all_reduce", 20..30), sizes("all_gather", 20..30)].concat());
    for (name, gather, lacks) in [
        ("b.csv", 0..0, Some("B lacks all_gather over 8 ranks")),
        ("c.csv", 20..24, Some("B lacks all_gather over 8 ranks at sizes > 16 MiB")),
        ("d.csv", 20..29, None),
    ] {
        let part = file(name, &[sizes("all_reduce", 20..30), sizes("all_gather", gather)].concat());
        let (code, result) = json(&[&all, &part, "--tolerance", "50%"]);
        let (verdict, sentence) = (&result["verdict"], result["verdict"]["sentence"].as_str().unwrap());
        assert_eq!((code, verdict["status"] == "warning"), (0, lacks.is_some()), "{verdict}");
        assert!(lacks.is_none_or(|lacks| sentence.ends_with(lacks)), "{sentence}");
    }
}

#[test]
fn every_format_says_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let after = planted(folder.path(), 32 << 20..=4 << 30, 1.05);
    for (format, expected) in [
        ("csv", &["time_a_us,time_b_us,ratio", "slower"][..]),
        ("junit", &["<testcase classname=\"collcast.compare.all_reduce\"", "type=\"slower\"", "failures=\"2\""]),
        ("markdown", &["### ❌ collcast compare: B is slower in 2 of 6 bands", "| slower |", "<details>"]),
        ("github", &["::error title=all_reduce%2C 4 ranks"]),
    ] {
        let (code, out, err) = collcast(&["compare", LOG, &after, "--format", format]);
        assert_eq!(code, 1, "{err}");
        assert!(expected.iter().all(|part| out.contains(part)), "{format}:\n{out}");
        assert_eq!(out, collcast(&["compare", LOG, &after, "--format", format]).1, "{format}: the same bytes again");
    }
}

/// Goal: forecasts are compared when asked for, by the tolerance alone, and only then.
#[test]
fn forecasts_are_compared_when_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let sweep = |name: &str, protocol: &str| {
        let path = folder.path().join(name).to_str().unwrap().to_owned();
        let args = [
            "sweep",
            "h200x4",
            "-s",
            "1M:64M:4",
            "--algorithm",
            "ring",
            "--protocol",
            protocol,
            "--format",
            "json",
            "-o",
            &path,
        ];
        let (code, _, err) = collcast(&args);
        assert_eq!(code, 0, "{err}");
        path
    };
    let (simple, ll) = (sweep("simple.json", "simple"), sweep("ll.json", "ll"));
    let (code, out, err) = collcast(&["compare", &simple, &ll]);
    assert!(code == 2 && out.is_empty() && err.contains("--allow-predicted"), "{err}");
    let (code, result) = json(&[&simple, &simple, "--allow-predicted"]);
    assert_eq!((code, &result["overall"]["verdict"]), (0, &"no change".into()));
    let (code, result) = json(&[&simple, &ll, "--allow-predicted"]);
    assert_eq!(code, 1, "{result}");
    // The error of a forecast beside measurements is in no interval.
    let usual = folder.path().join("usual.json").display().to_string();
    let (code, _, err) = collcast(&["sweep", "h200x4", "-s", "1M:4G:4", "--format", "json", "-o", &usual]);
    assert_eq!(code, 0, "{err}");
    let (_, mixed) = json(&[&usual, LOG, "--allow-predicted"]);
    assert!(mixed["verdict"]["confidence"].as_str().unwrap().starts_with("low: "), "{}", mixed["verdict"]);
    assert_eq!(mixed["verdict"]["basis"], "measured beside forecasts");
    assert_eq!(result["predicted"], true);
    assert!(result["assumptions"].to_string().contains("protocol: simple -> ll"), "{result}");
}

/// Goal: forecasts of NCCL's choice are matched by their call, whatever it chose: a setting that makes one size slower is
/// seen. What has no partner on either side is no proof that nothing changed.
#[test]
fn what_nccl_chose_is_no_setting() {
    let folder = tempfile::tempdir().unwrap();
    let sweep = |name: &str, more: &[&str]| {
        let path = folder.path().join(name).to_str().unwrap().to_owned();
        let (code, _, err) = collcast(&[&["sweep", "h200x4", "-o", &path][..], more].concat());
        assert_eq!(code, 0, "{err}");
        path
    };
    let json_of = ["--format", "json"];
    let usual = sweep("a.json", &[&["-s", "1M,16M"][..], &json_of].concat());
    let simple = ["-s", "1M,16M", "--env", "NCCL_PROTO=Simple"];
    for changed in [
        sweep("b.json", &[&simple[..], &json_of].concat()),
        sweep("b.csv", &[&simple[..], &["--format", "csv"]].concat()),
    ] {
        let (code, result) = json(&[&usual, &changed, "--allow-predicted"]);
        assert_eq!((code, &result["overall"]["verdict"]), (1, &"slower".into()), "{result}");
        assert_eq!(result["overall"]["rows_only_in_b"], 0, "{result}");
        assert!(result["warnings"].to_string().contains("ring/ll -> ring/simple"), "{result}");
    }
    let eight = sweep("c.json", &[&["-s", "1M,16M", "--channels", "8,16"][..], &json_of].concat());
    let four = sweep("d.json", &[&["-s", "1M,16M", "--channels", "4,16"][..], &json_of].concat());
    let (code, result) = json(&[&eight, &four, "--allow-predicted"]);
    assert_eq!(
        (code, &result["verdict"]["status"], &result["overall"]["rows_only_in_a"]),
        (0, &"warning".into(), &2.into()),
        "{result}"
    );
}

#[test]
fn bad_usage_is_refused_with_a_way_out() {
    for (args, expected) in [
        (&["compare"][..], &["<A>"][..]),
        (&["compare", CSV], &["nothing to compare", "--where-a"]),
        (&["compare", CSV, "no-such.log"], &["no-such.log"]),
        (&["compare", CSV, CSV, "--tolerance", "much"], &["--tolerance", "percentage"]),
        (
            &["compare", CSV, CSV, "--tolerance", "0.05"],
            &["may be a share or a percentage", "write `--tolerance 5%` or `--tolerance 0.05%`"],
        ),
        (&["compare", CSV, "--where-a", "in_place"], &["KEY=VALUE"]),
        (&["compare", CSV, "--where-a", "inplace=1"], &["did you mean `in_place`"]),
        (&["compare", CSV, "--where-a", "foo=1"], &["rows have no `foo`\n"]),
        (&["compare", CSV, "--where-a", "in_place=2"], &["in_place is 0 or 1"]),
        (&["compare", CSV, "--where-a", "algorithm=rign"], &["did you mean `ring`"]),
        (&["compare", CSV, "--where-a", "size=1X"], &["1X", "size=1M:4G"]),
        (&["compare", CSV, "--where-a", "run=none"], &["no row of", "run: G2_all_gather_Ring_LL"]),
        (
            &["compare", CSV, "--where-a", "ranks=2", "--where-b", "ranks=4"],
            &["no row of A has a partner in B", "--where"],
        ),
        (&["compare", CSV, CSV, "--format", "nccl-tests"], &["invalid value 'nccl-tests'", "csv, json"]),
    ] {
        let (code, out, err) = collcast(args);
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}: {err}");
        assert!(expected.iter().all(|part| err.contains(part)), "{args:?}:\n{err}");
    }
}

/// Goal: the version of NCCL, GPUs and variables by which rows are not matched are named where they differ throughout, and
/// warned of where one set mixes them; programs read the same.
#[test]
fn what_logs_say_of_their_runs_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let log = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(LOG)).unwrap();
    let later = log
        .replace("nccl-library=22809", "nccl-library=22602")
        .replace("NVIDIA H200", "NVIDIA H100 80GB HBM3")
        .replace("NCCL_PROTO=Simple", "NCCL_PROTO=Simple NCCL_NVLS_ENABLE=0 NCCL_DEBUG=WARN");
    let after = folder.path().join("after.log");
    std::fs::write(&after, later.replace(" 27.12 ", " 27.13 ")).unwrap();
    let after = after.to_str().unwrap();
    let (code, out, err) = collcast(&["compare", LOG, after]);
    assert_eq!(code, 0, "{err}");
    let line =
        "NCCL version: 2.28.9 -> 2.26.2; GPU: NVIDIA H200 -> NVIDIA H100 80GB HBM3; NCCL_NVLS_ENABLE: unset -> 0\n";
    assert!(out.contains(line) && !err.contains("several of"), "{out}{err}");
    let differences = |args: &[&str]| -> Vec<[String; 4]> {
        let (_, result) = json(args);
        let rows = result["differences"].as_array().unwrap().iter();
        rows.map(|row| ["kind", "setting", "a", "b"].map(|key| row[key].as_str().unwrap().to_owned())).collect()
    };
    let row = |of: [&str; 4]| of.map(str::to_owned);
    let expected = [
        row(["said", "NCCL version", "2.28.9", "2.26.2"]),
        row(["said", "GPU", "NVIDIA H200", "NVIDIA H100 80GB HBM3"]),
        row(["said", "NCCL_NVLS_ENABLE", "unset", "0"]),
    ];
    assert_eq!(differences(&[LOG, after]), expected);
    assert!(differences(&[LOG, LOG]).is_empty());
    // Settings that rows are matched by are what is compared.
    assert_eq!(differences(&[LOG, LOG, "--where-a", "in_place=0", "--where-b", "in_place=1"])[0][0], "compared");

    let both = folder.path().join("both");
    std::fs::create_dir(&both).unwrap();
    std::fs::write(both.join("1.log"), log.replace(" 27.12 ", " 27.14 ")).unwrap();
    std::fs::write(both.join("2.log"), later).unwrap();
    let both = both.to_str().unwrap();
    let (_, _, err) = collcast(&["compare", both, after]);
    let line = "A: several of NCCL version, and medians are of all: A has 2.26.2, 2.28.9; B has 2.26.2";
    assert!(err.contains(line) && err.matches("several of").count() == 3, "{err}");
    let mixed = differences(&[both, after]);
    assert!(mixed.contains(&row(["mixed", "NCCL_NVLS_ENABLE", "0,unset", "0"])), "{mixed:?}");
}

//! Goal: a run is judged by the past of its own hosts, says since when they are slower, and is recorded, whoever else writes.
//! Method: logs written here, one a day of each host.

use std::path::{Path, PathBuf};

use crate::common::collcast;
use collcast::SiteSpec;
use collcast::health::{Gate, State};
use collcast::validate::{Outcome, Request, validate};
use collcast::views::validate::Shown;
use collcast_reports::model::Status;

/// The log of a day of November 2026 on a host: all-reduce over 8 GPUs whose times are so many times those of a good day.
fn log(folder: &Path, host: &str, day: u32, factor: f64) -> PathBuf {
    let mut text = format!("2026-11-{day:02} 03:00:00\n# Collective test starting: all_reduce_perf\n");
    text += "# nThread 1 nGpus 1 minBytes 8\n# Using devices\n";
    for rank in 0..8 {
        text += &format!(
            "#  Rank {rank} Group 0 Pid {} on {host} device {rank} [0000:0{rank}:00] NVIDIA H100\n",
            100 + rank
        );
    }
    for size in (10..33).map(|power| 1_u64 << power) {
        let time = (20.0 + size as f64 / 2e5) * factor * (1.0 + 0.002 * f64::from(day % 3));
        let rate = size as f64 / time / 1e3;
        let half = format!("{time:.2} {rate:.2} {:.2} 0", rate * 1.75);
        text += &format!("{size} {} float sum -1 {half} {half}\n", size / 4);
    }
    let path = folder.join(format!("{host}-{day}.log"));
    std::fs::write(&path, text + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 200 \n").unwrap();
    path
}

fn judge(file: &Path, history: &Path) -> (Outcome, Status, String) {
    let request = Request { history: Some(history.to_owned()), ..Request::new([file]) };
    let outcome = validate(&request).unwrap();
    let verdict = outcome.report(Shown { for_people: true, ..Shown::default() }).verdict.unwrap();
    (outcome, verdict.status, verdict.sentence)
}

/// Names of recorded logs, of all hosts.
fn recorded(history: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(history)
        .unwrap()
        .flat_map(|host| std::fs::read_dir(host.unwrap().path()).unwrap())
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.ends_with(".toml"))
        .collect();
    names.sort();
    names
}

/// A folder and a history in it, with good runs of `n1` on its first days.
fn with_past(days: u32) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let history = folder.path().join("history");
    for day in 1..=days {
        judge(&log(folder.path(), "n1", day, 1.0), &history);
    }
    (folder, history)
}

/// Goal: a host that slows down by 1% a day is told before it has lost a fifth: it does not take what it is held against with
/// it.
#[test]
fn a_slow_decline_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let history = folder.path().join("history");
    let slow = (1..=30).find(|&day| {
        let file = log(folder.path(), "node1", day, 1.0 + 0.01 * f64::from(day - 1));
        judge(&file, &history).1 == Status::Failed
    });
    assert!(slow.is_some_and(|day| (10..20).contains(&day)), "{slow:?}");
}

/// Goal: a gate that nothing is held against is not passed: where no run is judged, and where the past judges and the limit
/// is of forecasts. Without one the first night is no failure, and what only forecasts heed is refused.
#[test]
fn a_gate_without_a_judgement_is_not_passed() {
    let folder = tempfile::tempdir().unwrap();
    let history = folder.path().join("history");
    let judge = |day: u32, fail_below: Option<f64>, max_error: Option<f64>| {
        let gate = Gate { fail_below, ..Gate::default() };
        let file = log(folder.path(), "n1", day, 1.0);
        let outcome = validate(&Request { history: Some(history.clone()), gate, max_error, ..Request::new([file]) });
        let outcome = outcome.unwrap();
        (outcome.failed, outcome.report(Shown::default()).verdict.unwrap().sentence)
    };
    assert!(!judge(1, None, None).0);
    for (day, gate) in [(2, (Some(0.8), None)), (3, (None, Some(0.2)))] {
        let (failed, said) = judge(day, gate.0, gate.1);
        assert!(failed && said.contains("the gate is not passed"), "{said}");
    }
    assert!(!judge(4, Some(0.8), None).0);
    let (failed, said) = judge(5, None, Some(0.2));
    assert!(failed && said.starts_with("--max-error: "), "{said}");
    let file = log(folder.path(), "n1", 6, 1.0);
    let history = history.to_str().unwrap();
    let (code, _, err) =
        collcast(&["validate", file.to_str().unwrap(), "--history", history, "--max-error", "20%", "--closest"]);
    assert!(code == 2 && err.contains("--max-error, --closest have no meaning here"), "{err}");
}

/// Goal: the first runs cannot be judged and say so; then each is held against the median of the healthy ones before it.
/// A slow one fails, says since when, is recorded as slow, and is no reference. A run is recorded once.
#[test]
fn hosts_are_held_against_their_own_past() {
    let folder = tempfile::tempdir().unwrap();
    let history = folder.path().join("history");
    for day in 1..=3 {
        let (outcome, status, sentence) = judge(&log(folder.path(), "n1", day, 1.0), &history);
        assert!(!outcome.failed && status == Status::Warning && sentence.starts_with("cannot tell"), "{sentence}");
        let next = outcome.report(Shown::default()).verdict.unwrap().next.unwrap();
        assert!(next.starts_with("record 3 runs"), "{next}");
        assert!(outcome.notes.iter().any(|n| n.contains(&format!("{} earlier runs", day - 1))), "{:?}", outcome.notes);
    }
    for day in 4..=10 {
        let (outcome, status, sentence) = judge(&log(folder.path(), "n1", day, 1.0), &history);
        assert!(outcome.health.state == State::Pass && status == Status::Ok, "{sentence}");
        assert!(
            sentence.contains(&match day - 1 {
                earlier @ ..=8 => format!("of the median of {earlier} earlier runs since 2026-11-01"),
                earlier => format!("of the median of the first 8 of {earlier} earlier runs since 2026-11-01"),
            }),
            "{sentence}"
        );
    }
    for day in 11..=13 {
        let file = log(folder.path(), "n1", day, 1.15);
        let (outcome, status, sentence) = judge(&file, &history);
        assert!(outcome.failed && status == Status::Failed, "{sentence}");
        assert!(
            sentence.contains("87% of the median of the first 8 of 10 earlier runs since 2026-11-01"),
            "{sentence}"
        );
        let runs = if day == 11 { "1 run".to_owned() } else { format!("{} runs", day - 10) };
        assert!(sentence.ends_with(&format!("slower since 2026-11-11 ({runs})")), "{sentence}");
    }
    let names = recorded(&history);
    assert_eq!(names.len(), 13);
    assert!(names[9].starts_with("2026-11-10T03-00-00Z_healthy_") && names[10].contains("_slow_"), "{names:?}");
    // Again, and from elsewhere: the same content is there.
    let again = judge(&log(folder.path(), "n1", 13, 1.15), &history).2;
    assert!(again.ends_with("slower since 2026-11-11 (3 runs)"), "{again}");
    assert_eq!(recorded(&history), names);
    // Logs of a host are a set for `compare`, and good runs for `--against`.
    let (own, last) = (history.join("n1"), folder.path().join("n1-5.log"));
    let code = |args: &[&str]| collcast(args).0;
    assert_eq!(code(&["compare", own.to_str().unwrap(), last.to_str().unwrap()]), 0);
    assert_eq!(code(&["validate", last.to_str().unwrap(), "--against", own.to_str().unwrap()]), 0);
    let slow = folder.path().join("n1-13.log");
    let args = ["validate", slow.to_str().unwrap(), "--history", history.to_str().unwrap(), "--format"];
    for (format, says) in
        [("json", "\"history\""), ("junit", "<failure"), ("github", "::error"), ("markdown", "2026-11-11")]
    {
        let (code, out, err) = collcast(&[&args[..], &[format]].concat());
        assert!(code == 1 && out.contains(says), "{format}: {out} {err}");
    }
}

/// Goal: of a fleet each host has a past of its own, and the trend of all says since when all are slower.
#[test]
fn a_fleet_has_a_trend_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let history = folder.path().join("history");
    let mut last = None;
    for day in 1..=8 {
        // n2 is always slower than n1, which is no change; from the 7th day on both are slower still.
        for (host, own) in [("n1", 1.0), ("n2", 1.1)] {
            let factor = if day >= 7 { 1.2 } else { 1.0 };
            let (outcome, _, sentence) = judge(&log(folder.path(), host, day, own * factor), &history);
            assert_eq!(outcome.failed, day >= 7, "{host} {day}: {sentence}");
            last = outcome.history;
        }
    }
    let trends = &last.unwrap()[0].trends;
    assert_eq!(trends.iter().map(|t| (t.host_sets, t.runs)).collect::<Vec<_>>(), [(1, 8), (2, 16)]);
    for trend in trends {
        let changed = trend.changed.as_ref().unwrap();
        assert_eq!((changed.since.as_str(), changed.runs), ("2026-11-07", 2 * trend.host_sets));
    }
}

/// Goal: runs that were cut or killed are no reference for later ones, whatever their files are named.
#[test]
fn runs_that_ended_badly_are_no_reference() {
    let folder = tempfile::tempdir().unwrap();
    let history = folder.path().join("history");
    let broken = |day: u32, end: &str| {
        let path = log(folder.path(), "n1", day, 1.0);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.split("# Out of bounds").next().unwrap().to_owned() + end).unwrap();
        path
    };
    let killed = "srun: error: n1: tasks 0-7: Killed\n";
    for (day, end, name) in [(1, "", "_unsure_"), (2, killed, "_failed_"), (3, "", "_unsure_")] {
        let (outcome, ..) = judge(&broken(day, end), &history);
        assert_eq!(outcome.failed, !end.is_empty());
        assert!(recorded(&history).last().unwrap().contains(name), "{:?}", recorded(&history));
    }
    // Earlier versions called them healthy.
    for name in recorded(&history) {
        let at = history.join("n1").join(&name);
        std::fs::rename(&at, history.join("n1").join(name.replace("unsure", "healthy"))).unwrap();
    }
    for day in 4..=6 {
        let (outcome, _, sentence) = judge(&log(folder.path(), "n1", day, 1.0), &history);
        assert!(!outcome.by_past && sentence.starts_with("cannot tell"), "{sentence}");
    }
    let (_, _, sentence) = judge(&log(folder.path(), "n1", 7, 1.0), &history);
    assert!(sentence.contains("of the median of 3 earlier runs"), "{sentence}");
    // One that is judged by the past and was cut is no pass either.
    let (outcome, status, sentence) = judge(&broken(8, ""), &history);
    assert!(outcome.health.state == State::Unsure && status == Status::Warning, "{sentence}");
    assert!(
        sentence.starts_with("cannot tell") && sentence.contains("cut before nccl-tests' last words"),
        "{sentence}"
    );
    assert!(recorded(&history).last().unwrap().contains("_unsure_"), "{:?}", recorded(&history));
}

/// Goal: of one night of a fleet there is one row of all hosts, whose level is the median host's, and no change where a few of
/// them are slower.
#[test]
fn a_night_of_a_fleet_is_one_row() {
    const HOSTS: usize = 12;
    let folder = tempfile::tempdir().unwrap();
    let history = folder.path().join("history");
    let mut last = None;
    for day in 1..=5 {
        let slow = |host: usize| if day == 5 && host < 3 { 1.3 } else { 1.0 + 0.05 * host as f64 };
        let files: Vec<PathBuf> =
            (0..HOSTS).map(|host| log(folder.path(), &format!("n{host:02}"), day, slow(host))).collect();
        let outcome = validate(&Request { history: Some(history.clone()), ..Request::new(&files) }).unwrap();
        assert_eq!(outcome.failed, day == 5);
        last = Some(outcome);
    }
    let outcome = last.unwrap();
    let all: Vec<_> = outcome.history.iter().flatten().flat_map(|h| &h.trends).collect();
    let fleet: Vec<_> = all.iter().filter(|trend| trend.host_sets > 1).collect();
    let [fleet] = fleet[..] else { panic!("{fleet:?}") };
    assert_eq!((fleet.host_sets, fleet.runs, &fleet.changed), (HOSTS, 5 * HOSTS, &None));
    assert!((0.99..1.01).contains(&fleet.share), "{fleet:?}");
    assert_eq!(all.len(), HOSTS + 1);
    // People see those that changed, and which they are.
    let report = outcome.report(Shown { for_people: true, ..Shown::default() });
    let rows = &report.tables.iter().find(|table| table.name == "history").unwrap().rows;
    assert_eq!(rows.len(), 4, "{rows:?}");
    let verdict = report.verdict.unwrap();
    for told in [&verdict.sentence, verdict.next.as_ref().unwrap()] {
        assert!(["n00", "n01", "n02"].iter().all(|host| told.contains(host)) && !told.contains("n03"), "{told}");
    }
}

/// Goal: writers at the same time lose nothing.
#[test]
fn writers_do_not_disturb_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let history = folder.path().join("history");
    let files: Vec<PathBuf> = (1..=16).map(|day| log(folder.path(), "n1", day, 1.0)).collect();
    std::thread::scope(|scope| {
        for file in files.iter().chain(&files[..4]) {
            let history = &history;
            scope.spawn(move || judge(file, history));
        }
    });
    let days: std::collections::BTreeSet<String> =
        recorded(&history).iter().map(|name| name[..10].to_owned()).collect();
    assert_eq!(days.len(), 16);
}

/// Goal: dates of `date` are of their zone. One that several places use is told, and the file's own time counts, unless the
/// `.toml` beside the log says when it was.
#[test]
fn dates_are_of_their_zone() {
    let folder = tempfile::tempdir().unwrap();
    let file = log(folder.path(), "a", 3, 1.0);
    let text = std::fs::read_to_string(&file).unwrap();
    let record = |date: &str| {
        std::fs::write(&file, text.replace("2026-11-03 03:00:00", date)).unwrap();
        let history = folder.path().join(date);
        let warnings = judge(&file, &history).0.warnings.join(" ");
        (recorded(&history).remove(0), warnings)
    };
    for date in ["Tue Nov  3 23:30:00 PST 2026", "Tue 03 Nov 2026 11:30:00 PM PST", "Wed Nov  4 08:30:00 +01 2026"] {
        let (name, warnings) = record(date);
        assert!(name.starts_with("2026-11-04T07-30-00Z") && !warnings.contains("its date"), "{name} {warnings}");
    }
    let doubtful = "Tue Nov  3 23:30:00 CST 2026";
    let (name, warnings) = record(doubtful);
    assert!(!name.starts_with("2026-11-03T23-30-00Z") && warnings.contains("`CST`"), "{name} {warnings}");
    std::fs::remove_dir_all(folder.path().join(doubtful)).unwrap();
    std::fs::write(file.with_extension("toml"), "date = \"2026-11-03T15:30:00Z\"\n").unwrap();
    let (name, warnings) = record(doubtful);
    assert!(name.starts_with("2026-11-03T15-30-00Z") && !warnings.contains("CST"), "{name} {warnings}");
}

/// Goal: JSON of nccl-tests is recorded without the environment's secrets, and a run without hosts has a past too.
#[test]
fn secrets_are_not_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let (path, history) = (folder.path().join("run.json"), folder.path().join("history"));
    let half = r#"{"time": 400.0, "alg_bw": 167.77, "bus_bw": 293.6, "nwrong": 0}"#;
    let text = format!(
        r#"{{"args": ["all_reduce_perf"], "env": ["NCCL_ALGO=Ring", "TOKEN=sesame"], "config": {{"nthreads": 1, "ngpus": 1,
        "devices": [{{"rank": 0, "hostname": "a"}}, {{"rank": 7, "hostname": "a"}}]}},
        "results": [{{"size": 67108864, "count": 16777216, "type": "float", "redop": "sum", "root": "-1",
        "out_of_place": {half}, "in_place": {half}}}], "out_of_bounds": {{"count": 0, "okay": "true"}}}}"#
    );
    std::fs::write(&path, text).unwrap();
    judge(&path, &history);
    let names = recorded(&history);
    let kept = std::fs::read_to_string(history.join("a").join(&names[0])).unwrap();
    assert!(kept.contains("NCCL_ALGO=Ring") && !kept.contains("sesame"), "{kept}");
    judge(&path, &history);
    assert_eq!(recorded(&history), names);
}

/// Goal: of runs that are judged together each has its own yardstick. One without a past is held against a forecast, and where
/// no machine is named it is not passed for the past of another. What was recorded when nothing could be said of it gets the
/// name of what is said later.
#[test]
fn a_host_without_a_past_is_judged_too() {
    let (folder, history) = with_past(4);
    let files = [log(folder.path(), "n1", 5, 1.0), log(folder.path(), "n2", 5, 1.5)];
    let judged = |topology: Option<&str>, require_pass| {
        let site = SiteSpec { topology: topology.map(str::to_owned), ..SiteSpec::default() };
        let gate = Gate { require_pass, ..Gate::default() };
        let history = Some(history.clone());
        let outcome = validate(&Request { site, gate, history, doctor: false, ..Request::new(&files) }).unwrap();
        let sentence = outcome.report(Shown::default()).verdict.unwrap().sentence;
        (outcome, sentence)
    };
    let count = |verdict: &str| recorded(&history).iter().filter(|name| name.contains(verdict)).count();
    for require_pass in [false, true] {
        let (outcome, sentence) = judged(None, require_pass);
        assert_eq!((outcome.health.state, outcome.failed), (State::Unsure, require_pass), "{sentence}");
        assert!(sentence.starts_with("cannot tell (1 of 2 runs)") && sentence.contains("n2-5.log"), "{sentence}");
        assert_eq!([count("_healthy_"), count("_unsure_"), count("_slow_")], [2, 4, 0]);
    }
    let (outcome, sentence) = judged(Some("dgx-h100"), false);
    assert!(outcome.failed && sentence.starts_with("slow (1 of 2 runs)"), "{sentence}");
    assert!(sentence.contains("of the expected bus bandwidth") && sentence.contains("n2-5.log"), "{sentence}");
    let states: Vec<_> = outcome.health.runs.iter().map(|run| (run.kind.is_some(), run.state)).collect();
    assert_eq!(states, [(false, State::Pass), (true, State::Slow)]);
    assert_eq!([count("_healthy_"), count("_unsure_"), count("_slow_")], [2, 3, 1]);
}

/// Goal: each size is judged by the earlier runs that have it. Where too few do, nothing is said of it, and the run is not
/// recorded as healthy; large sizes that came after eight runs of small ones are found slow all the same.
#[test]
fn sizes_that_came_later_have_a_past_too() {
    let folder = tempfile::tempdir().unwrap();
    let history = folder.path().join("history");
    let of = |day: u32, keeps: fn(u64) -> bool, factor: fn(u64) -> f64| {
        let path = log(folder.path(), "n1", day, 1.0);
        let row = |line: &str| -> Option<String> {
            let words: Vec<&str> = line.split(' ').collect();
            let Some(size) = words[0].parse::<u64>().ok().filter(|_| words.len() > 5) else {
                return Some(line.to_owned());
            };
            let time = words[5].parse::<f64>().unwrap() * factor(size);
            let rate = size as f64 / time / 1e3;
            let half = format!("{time:.2} {rate:.2} {:.2} 0", rate * 1.75);
            keeps(size).then(|| format!("{} {half} {half}", words[..5].join(" ")))
        };
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.lines().filter_map(row).collect::<Vec<_>>().join("\n") + "\n").unwrap();
        judge(&path, &history)
    };
    for day in 1..=8 {
        of(day, |size| size <= 1 << 20, |_| 1.0);
    }
    for day in 9..=11 {
        let (outcome, _, sentence) = of(day, |_| true, |_| 1.0);
        assert!(outcome.health.state == State::Unsure && sentence.contains(": not every row of"), "{sentence}");
        assert!(
            outcome.notes.iter().any(|note| note.contains(&format!("{} earlier runs of all_reduce of 2 MiB", day - 9)))
        );
    }
    assert_eq!(recorded(&history).iter().filter(|name| name.contains("_unsure_")).count(), 3 + 3);
    let (outcome, _, sentence) = of(12, |_| true, |size| if size > 64 << 20 { 1.5 } else { 1.0 });
    assert!(outcome.failed && sentence.contains("of the median of 3 earlier runs since 2026-11-09"), "{sentence}");
}

/// Goal: a GPU is the same product by whichever of its names: in a history, and of good runs.
#[test]
fn names_of_a_gpu_are_one_product() {
    let folder = tempfile::tempdir().unwrap();
    let history = folder.path().join("history");
    let renamed = |day: u32, name: &str| {
        let path = log(folder.path(), "n1", day, 1.0);
        let text = std::fs::read_to_string(&path).unwrap().replace("NVIDIA H100", name);
        std::fs::write(&path, text).unwrap();
        path
    };
    for day in 1..=3 {
        judge(&renamed(day, "NVIDIA H100 80GB HBM3"), &history);
    }
    let last = renamed(4, "H100-SXM5-80GB");
    let (outcome, _, sentence) = judge(&last, &history);
    assert!(outcome.by_past && outcome.health.state == State::Pass, "{sentence}");
    let beside = |good: &Path| {
        let outcome = validate(&Request { against: vec![good.to_owned()], ..Request::new([&last]) }).unwrap();
        (outcome.other_gpus, outcome.health.state)
    };
    assert_eq!(beside(&folder.path().join("n1-1.log")), (false, State::Pass));
    assert_eq!(beside(&renamed(5, "NVIDIA H200")), (true, State::Unsure));
}

/// Goal: one content that two writers recorded at the same time is one run, by what is better known of it; a copy that was not
/// finished is none.
#[test]
fn a_content_counts_once() {
    let (folder, history) = with_past(2);
    for name in recorded(&history) {
        let of = |name: &str| history.join("n1").join(name);
        for ending in ["log", "toml"] {
            let from = of(&name).with_extension(ending);
            std::fs::copy(&from, of(&name.replace("_unsure_", "_healthy_")).with_extension(ending)).unwrap();
        }
        std::fs::copy(of(&name), of(&format!("{name}.part"))).unwrap();
    }
    let (outcome, _, sentence) = judge(&log(folder.path(), "n1", 3, 1.0), &history);
    assert!(sentence.starts_with("cannot tell"), "{sentence}");
    assert!(outcome.notes.iter().any(|note| note.contains("the history has 2 earlier runs")), "{:?}", outcome.notes);
    assert_eq!(outcome.warnings.iter().filter(|warning| warning.contains(".part: no name of")).count(), 2);
}

/// Goal: each of two runs of a file has a level of its own.
#[test]
fn runs_of_one_file_have_levels_of_their_own() {
    let (folder, history) = with_past(4);
    let [good, slow] = [1.0, 1.4].map(|factor| std::fs::read_to_string(log(folder.path(), "n1", 5, factor)).unwrap());
    let both = folder.path().join("both.log");
    std::fs::write(&both, good + &slow).unwrap();
    let (outcome, _, sentence) = judge(&both, &history);
    let shares: Vec<i64> =
        outcome.history.iter().flatten().flat_map(|h| &h.trends).map(|t| (t.share * 100.0).round() as i64).collect();
    assert_eq!(shares, [100, 71], "{sentence}");
}

/// Goal: a run without a row is not recorded, and that is said; a good run that is named judges in place of the past, and that
/// is said too.
#[test]
fn what_the_history_does_not_do_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let history = folder.path().join("history");
    let good = log(folder.path(), "n1", 1, 1.0);
    let text = std::fs::read_to_string(&good).unwrap();
    let head: String = text.lines().take_while(|line| !line.starts_with("1024 ")).map(|l| format!("{l}\n")).collect();
    let none = folder.path().join("none.log");
    std::fs::write(&none, head + "srun: error: n1: task 0: Exited with exit code 1\n").unwrap();
    for files in [vec![none.clone()], vec![good.clone(), none.clone()]] {
        let outcome = validate(&Request { history: Some(history.clone()), ..Request::new(&files) }).unwrap();
        let is_said = |note: &String| note.contains("none.log is not recorded: no row was measured");
        assert!(outcome.notes.iter().any(is_said), "{:?}", outcome.notes);
    }
    let request = Request { history: Some(history), against: vec![good.clone()], ..Request::new([&good]) };
    let outcome = validate(&request).unwrap();
    assert!(outcome.notes.iter().any(|note| note.starts_with("the runs of --against judge")), "{:?}", outcome.notes);
}

/// Goal: where logs of a slow run and of those that judge it differ in NCCL's version or variables, that is told, and comes
/// before a search of the hardware.
#[test]
fn other_settings_are_told_before_hardware() {
    let folder = tempfile::tempdir().unwrap();
    let history = folder.path().join("history");
    let of = |day: u32, factor: f64, version: u32, env: &str| {
        let path = log(folder.path(), "n1", day, factor);
        let text = std::fs::read_to_string(&path).unwrap();
        let said = format!("# nccl-tests version 2.19.6 nccl-headers={version} nccl-library={version}\n");
        let text = text.replace("# nThread", &format!("{said}# env: NCCL_IB_TIMEOUT=22{env}\n# nThread"));
        std::fs::write(&path, text).unwrap();
        path
    };
    for day in 1..=3 {
        judge(&of(day, 1.0, 22809, ""), &history);
    }
    let slow = of(4, 1.4, 23004, " NCCL_P2P_LEVEL=LOC");
    let beside = Request { against: vec![folder.path().join("n1-1.log")], ..Request::new([&slow]) };
    for outcome in [judge(&slow, &history).0, validate(&beside).unwrap()] {
        let report = outcome.report(Shown { for_people: true, ..Shown::default() });
        let next = report.verdict.unwrap().next.unwrap();
        for told in [&next, &report.assumptions.join("\n")] {
            assert!(told.contains("2.28.9 -> 2.30.4") && told.contains("NCCL_P2P_LEVEL: unset -> LOC"), "{told}");
        }
    }
}

//! Goal: `validate --next-runs` leads from no runs to the slow host, through the scripts that it writes.
//! Method: a launcher of our own on PATH plays nccl-tests on hosts of which one is slow.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::collcast;
use serde_json::Value;

/// Rounds until a host must be named.
const ROUNDS: usize = 6;
/// The same one after the other, where later rounds are of one run.
const RUNS: usize = 12;

/// Plays `srun` and `mpirun` with `all_reduce_perf`: rank lines, and rows at what a DGX H100 is forecast to reach; those of
/// runs with the slow host take 1.25 times as long, and those with the dead one are killed before their first row. Each run is off by up to half a percent of its own.
const LAUNCHER: &str = r##"#!/bin/bash
case $(basename "$0") in
  srun)
    for word in "$@"; do case $word in --nodelist=*) hosts=${word#*=} ;; esac; done ;;
  mpirun)
    while [ $# -gt 0 ]; do [ "$1" = -H ] && hosts=${2//:8/}; shift; done ;;
esac
IFS=, read -ra hosts <<<"$hosts"
count=${#hosts[@]}
ranks=$((count * 8))
echo "# nThread 1 nGpus 1 minBytes 268435456 maxBytes 4294967296 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0"
echo "# Using devices"
speed=345 slow=1000 rank=0
[ "$count" -le 2 ] && speed=465
for host in "${hosts[@]}"; do
  [ "$host" = "$SLOW_HOST" ] && slow=1250
  for gpu in 0 1 2 3 4 5 6 7; do
    echo "#  Rank $rank Group 0 Pid $((2000 + rank)) on ${host%%.*} device $gpu [0000:0$gpu:00] NVIDIA H100 80GB HBM3"
    rank=$((rank + 1))
  done
done
for host in "${hosts[@]}"; do
  [ "$host" = "$DEAD_HOST" ] && echo "srun: error: $host: tasks 0-7: Killed" && exit 1
done
noise=$((9950 + $(cksum <<<"${hosts[*]}" | cut -d' ' -f1) % 101))
size=268435456
while [ $size -le 4294967296 ]; do
  # In hundredths of us, of GB/s.
  time=$((size * 2 * (ranks - 1) / ranks * slow / 1000 * noise / speed / 100000))
  algbw=$((size / 10 * 100 / time))
  busbw=$((size / 10 * 200 * (ranks - 1) / ranks / time))
  row=$(printf '%d.%02d %d.%02d %d.%02d 0' $((time / 100)) $((time % 100)) $((algbw / 100)) $((algbw % 100)) $((busbw / 100)) $((busbw % 100)))
  echo "$size $((size / 4)) float sum -1 $row $row"
  size=$((size * 2))
done
echo "# Out of bounds values : 0 OK"
"##;

fn write_launchers(folder: &Path) {
    for name in ["srun", "mpirun"] {
        let path = folder.join(name);
        std::fs::write(&path, LAUNCHER).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// Runs a script of a round, as a job that started elsewhere does.
fn run(script: &Path, launchers: &Path, (slow, dead): (&str, &str)) {
    let out = Command::new("bash")
        .arg(script)
        .current_dir(launchers)
        .env("PATH", format!("{}:{}", launchers.display(), std::env::var("PATH").unwrap()))
        .env("SLOW_HOST", slow)
        .env("DEAD_HOST", dead)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    let well = if dead.is_empty() {
        out.status.success() && said.is_empty()
    } else {
        said.is_empty() || said.contains(": failed")
    };
    assert!(well, "{said}");
}

fn parsed(script: &Path) {
    let said = Command::new("bash").arg("-n").arg(script).output().unwrap();
    assert!(said.status.success() && said.stderr.is_empty(), "{}", String::from_utf8_lossy(&said.stderr));
}

/// From no runs until nothing is to run: the last answer, and the rounds that it took.
fn search(script: &str, slow: &str, more: &[&str]) -> (Value, usize) {
    search_beside(script, (slow, ""), more)
}

/// The same where a host kills each run that it is in.
fn search_beside(script: &str, hosts: (&str, &str), more: &[&str]) -> (Value, usize) {
    let folder = tempfile::tempdir().unwrap();
    write_launchers(folder.path());
    let round = |number: usize| folder.path().join(format!("round{number}"));
    let most = if more.contains(&"--one-at-a-time") { RUNS } else { ROUNDS };
    for rounds in 0..=most {
        let folders: Vec<String> = (1..=rounds).map(|number| round(number).display().to_string()).collect();
        let next = round(rounds + 1);
        let mut args: Vec<&str> = vec!["validate"];
        args.extend(folders.iter().map(String::as_str));
        args.extend(["--host-names", "node[01-16]", "--format", "json", "--next-runs", next.to_str().unwrap()]);
        args.extend(more);
        let (_, out, err) = collcast(&args);
        let answer: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{err}"));
        let scripts_are_quiet = !answer["files"].to_string().contains(".sh");
        assert!(scripts_are_quiet, "{}", answer["files"]);
        assert!(!answer.to_string().contains("round.out"), "{answer}");
        println!("{}", answer["verdict"]["sentence"]);
        let Some(sets) = answer["next_runs"].as_array() else {
            assert!(!next.exists(), "nothing is to run, and yet there are scripts");
            return (answer, rounds);
        };
        let said = answer["verdict"]["next"].as_str().unwrap();
        assert!(said.contains("sbatch round.slurm.sh)`, then `collcast validate "), "{said}");
        assert!(said.contains(&format!("--next-runs {}", round(rounds + 2).display())), "{said}");
        for script in ["round.slurm.sh", "round.mpirun.sh"] {
            parsed(&next.join(script));
        }
        run(&next.join(script), folder.path(), hosts);
        // Where Slurm keeps what the script says.
        std::fs::write(next.join("round.out"), "srun: job 17 has been allocated resources\n").unwrap();
        let logs = sets.iter().filter(|set| next.join(set["log"].as_str().unwrap()).is_file());
        assert_eq!(logs.count(), sets.len());
    }
    panic!("no answer after {most} rounds");
}

/// Goal: one host of 16 that is slow by 25% is named, and no other, in at most 6 rounds: by a forecast and without one,
/// by either script, at the same time and one after the other.
#[test]
fn a_slow_host_is_named_in_a_few_rounds() {
    for (script, slow, more) in [
        ("round.slurm.sh", "node11", &["-t", "dgx-h100", "--no-doctor"][..]),
        ("round.mpirun.sh", "node03", &[]),
        ("round.slurm.sh", "node16", &["--one-at-a-time"]),
    ] {
        let (answer, rounds) = search(script, slow, more);
        let sentence = answer["verdict"]["sentence"].as_str().unwrap();
        assert!(sentence.contains(&format!("host {slow}")), "{script} {more:?}: {sentence}");
        assert_eq!(sentence.matches("node").count(), sentence.matches(slow).count(), "{sentence}");
        let suspect = &answer["suspects"][0];
        assert!(suspect["chance"].as_f64().unwrap() > 0.5, "{suspect}");
        assert!((1.1..1.4).contains(&suspect["times"].as_f64().unwrap()), "{suspect}");
        println!("{script} {more:?}: {rounds} rounds: {sentence}");
    }
}

/// Goal: a host that kills each run that it is in is named with the runs that failed, is never said to be as fast as the
/// others, and the search for slow ones goes on without it.
#[test]
fn a_host_that_kills_runs_is_named() {
    for (slow, more) in [("none", &["-t", "dgx-h100", "--no-doctor"][..]), ("node11", &[])] {
        let (answer, rounds) = search_beside("round.slurm.sh", (slow, "node03"), more);
        let sentence = answer["verdict"]["sentence"].as_str().unwrap();
        assert!(sentence.contains("runs with node03 failed; "), "{rounds}: {sentence}");
        assert!(!sentence.contains("of 16 hosts") && sentence.contains("the other 15 hosts"), "{sentence}");
        assert_eq!(sentence.contains("host node11"), slow == "node11", "{sentence}");
        assert_eq!(answer["verdict"]["status"], "failed", "{sentence}");
        assert!(answer["verdict"]["next"].as_str().unwrap().starts_with("leave out node03; "), "{}", answer["verdict"]);
        assert_eq!(answer["failed_runs"][0]["hosts"], "node03");
    }
}

/// Goal: a round of which all runs failed is an answer, and the next one has other sets.
#[test]
fn a_round_of_failures_is_an_answer() {
    let folder = tempfile::tempdir().unwrap();
    let [first, next] = ["round1", "round2"].map(|name| folder.path().join(name));
    std::fs::create_dir(&first).unwrap();
    let pairs = [["a", "b"], ["c", "d"], ["e", "f"], ["g", "h"]];
    for (index, hosts) in pairs.iter().enumerate() {
        let mut text = "# nThread 1 nGpus 1\n# Using devices\n".to_owned();
        for rank in 0..16 {
            let host = hosts[rank / 8];
            text += &format!(
                "#  Rank {rank} Group 0 Pid 1 on {host} device {} [0000:0{}:00] NVIDIA H100\n",
                rank % 8,
                rank % 8
            );
        }
        std::fs::write(first.join(format!("set-0{}.log", index + 1)), text + "srun: error: a: task 0: Killed\n")
            .unwrap();
    }
    for more in [&["-t", "dgx-h100"][..], &[]] {
        let next = next.with_extension(more.len().to_string()).display().to_string();
        let args = ["validate", first.to_str().unwrap(), "--next-runs", &next, "--format", "json"];
        let (code, out, err) = collcast(&[&args[..], more].concat());
        let answer: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{err}"));
        let sentence = answer["verdict"]["sentence"].as_str().unwrap();
        assert!(code == 1 && sentence.starts_with("all 4 runs failed; to run: "), "{sentence}");
        let sets: Vec<&str> =
            answer["next_runs"].as_array().unwrap().iter().map(|set| set["hosts"].as_str().unwrap()).collect();
        assert!(sets.iter().any(|set| !pairs.iter().any(|pair| pair.join(",") == **set)), "{sets:?}");
    }
}

/// Goal: a script whose runs fail says which, and ends so too, where some fail as where all do.
#[test]
fn scripts_of_failed_runs_fail() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("srun", "case $* in *node01*) exit 1 ;; esac"), ("mpirun", "exit 1")] {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("#!/bin/bash\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    for (number, more) in [&[][..], &["--one-at-a-time"]].into_iter().enumerate() {
        let round = folder.path().join(number.to_string());
        let args = ["validate", "--host-names", "node[01-04]", "--next-runs", round.to_str().unwrap()];
        let (_, _, err) = collcast(&[&args[..], more].concat());
        for (script, all) in [("round.slurm.sh", false), ("round.mpirun.sh", true)] {
            let text = std::fs::read_to_string(round.join(script)).unwrap_or_else(|_| panic!("{err}"));
            let sets = text.lines().filter(|line| line.starts_with("run set-")).count();
            assert_eq!(text.contains("#SBATCH --output=round.out\n"), script == "round.slurm.sh", "{text}");
            let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
            let out = Command::new("bash").arg(round.join(script)).env("PATH", path).output().unwrap();
            let said = String::from_utf8(out.stderr).unwrap();
            assert_eq!(out.status.code(), Some(1), "{script} {more:?}: {said}");
            let failed = said.lines().filter(|line| line.ends_with(".log: failed")).count();
            assert!(failed == if all { sets } else { failed.clamp(1, sets) }, "{script} {more:?}: {said}");
        }
    }
}

/// Goal: where no host is slow that is said, and nothing more is to run.
#[test]
fn a_fleet_of_good_hosts_is_said_to_be_so() {
    let (answer, rounds) = search("round.slurm.sh", "none", &[]);
    let sentence = answer["verdict"]["sentence"].as_str().unwrap();
    assert!(sentence.contains("of 16 hosts none is slower than the others") && rounds <= 4, "{rounds}: {sentence}");
}

/// Goal: without logs there are sets, scripts and words on how long it takes; the hosts of a file are read.
#[test]
fn without_logs_the_first_round_is_planned() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hosts");
    std::fs::write(&file, "# rack 1\ngpu[1-4].site\ngpu05\ngpu6\n").unwrap();
    let [hosts, next] = [format!("@{}", file.display()), folder.path().join("a b").display().to_string()];
    let (code, out, err) = collcast(&["validate", "--next-runs", &next, "--host-names", &hosts]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("set-01.log"), "{out}");
    assert!(err.contains("usually 2 rounds say who is slow"), "{err}");
    assert!(err.contains("8 GPUs a host are assumed") || out.contains("8 GPUs a host are assumed"), "{out}{err}");
    assert!(err.contains("a b' && sbatch round.slurm.sh"), "{err}");
    let script = std::fs::read_to_string(Path::new(&next).join("round.slurm.sh")).unwrap();
    assert!(script.contains("gpu1.site") && script.contains("--ntasks-per-node=8"), "{script}");
    // What is there of an earlier round is not replaced.
    std::fs::write(Path::new(&next).join("set-01.log"), "").unwrap();
    let (code, _, err) = collcast(&["validate", "--next-runs", &next, "--host-names", &hosts]);
    assert!(code == 2 && err.contains("earlier round") && err.contains("hint: name a new folder"), "{err}");
}

/// Goal: what cannot be planned is refused, or said, and no script is written.
#[test]
fn what_cannot_be_planned_writes_no_script() {
    let folder = tempfile::tempdir().unwrap();
    let next = folder.path().join("round1").display().to_string();
    for (hosts, said) in
        [("a;id,b", "cannot contain"), ("a,a", "named twice"), ("a.x,a.y", "one name in logs"), ("a", "fewer than 2")]
    {
        let (code, _, err) = collcast(&["validate", "--next-runs", &next, "--host-names", hosts]);
        assert!(code == 2 && err.contains(said) && err.contains("hint: "), "{hosts}: {err}");
    }
    let (code, _, err) = collcast(&["validate", "--next-runs", &next, "--host-names", "a,b"]);
    assert!(code == 0 && err.contains("no sets of these"), "{err}");
    assert!(!Path::new(&next).exists());
    // Of three, sets run one after the other.
    let three = folder.path().join("three").display().to_string();
    let (code, _, err) = collcast(&["validate", "--next-runs", &three, "--host-names", "a,b,c"]);
    assert!(code == 0 && err.contains("the 3 hosts are to run in 3 sets"), "{err}");
    let (code, _, err) = collcast(&["validate", "--next-runs", &next]);
    assert!(code == 2 && err.contains("MEASUREMENTS"), "{err}");
}

/// Goal: the suggested command keeps what this one was told of machine, measurements and limits.
#[test]
fn the_next_command_keeps_what_was_told() {
    let folder = tempfile::tempdir().unwrap();
    let next = folder.path().join("round1").display().to_string();
    let told = "-t dgx-h100 --host-names node[01-16] --nodes 16 --gpus 8 --launch processes -c all_reduce --fail-below 85% --max-error 50% \
                --history past --profile prior --profile hopper-ib-published --against good --one-at-a-time --no-doctor --closest --allow-predicted";
    let words: Vec<&str> = told.split_whitespace().collect();
    let (code, _, err) = collcast(&[&["validate", "--next-runs", &next][..], &words].concat());
    assert_eq!(code, 0, "{err}");
    let said = err.split_whitespace().collect::<Vec<_>>().join(" ");
    let expected =
        words.join(" ").replace("node[01-16]", "'node[01-16]'").replace("85%", "'85%'").replace("50%", "'50%'");
    assert!(
        said.contains(&format!("`collcast validate {next} {expected} --next-runs {}2`", &next[..next.len() - 1])),
        "{said}"
    );
}

/// The log of a run over one-letter hosts of 8 GPUs that takes so many times as long, whole or cut after its first row.
fn run_of(hosts: &str, times: f64, whole: bool) -> String {
    let mut text = "# nThread 1 nGpus 1\n# Using devices\n".to_owned();
    for (place, host) in hosts.chars().enumerate() {
        for gpu in 0..8 {
            let rank = 8 * place + gpu;
            text += &format!("#  Rank {rank} Group 0 Pid 1 on {host} device {gpu} [0000:0{gpu}:00] NVIDIA H100\n");
        }
    }
    let ranks = 8.0 * hosts.len() as f64;
    for size in (28..33).map(|power| 1_u64 << power).take(if whole { 5 } else { 1 }) {
        let time = (20.0 + size as f64 / 2e5) * times;
        let rate = size as f64 / time / 1e3;
        let half = format!("{time:.2} {rate:.2} {:.2} 0", rate * 2.0 * (ranks - 1.0) / ranks);
        text += &format!("{size} {} float sum -1 {half} {half}\n", size / 4);
    }
    text + if whole { "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 200 \n" } else { "" }
}

/// Judges runs, and gives the verdict.
fn verdict_of(runs: &[String]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("runs");
    std::fs::create_dir(&at).unwrap();
    for (index, text) in runs.iter().enumerate() {
        std::fs::write(at.join(format!("{index}.log")), text).unwrap();
    }
    let next = folder.path().join("next").display().to_string();
    let at = at.display().to_string();
    let (_, out, err) = collcast(&["validate", &at, "-c", "all_reduce", "--next-runs", &next, "--format", "json"]);
    serde_json::from_str::<Value>(&out).unwrap_or_else(|_| panic!("{err}"))["verdict"].clone()
}

/// Goal: a host whose runs were all cut is no `ok`, where the others are alike.
#[test]
fn a_host_whose_runs_are_cut_is_a_warning() {
    let sets = ["ab", "cd", "ef", "gh", "ac", "bd", "eg", "fh"];
    let runs = sets.iter().enumerate().map(|(at, set)| run_of(set, 1.0 + 0.001 * (at % 3) as f64, !set.contains('f')));
    let verdict = verdict_of(&runs.collect::<Vec<_>>());
    let sentence = verdict["sentence"].as_str().unwrap();
    assert!(sentence.starts_with("2 of 2 runs with f failed; of the other 7 hosts none is slower"), "{sentence}");
    assert_eq!(verdict["status"], "warning", "{verdict}");
}

/// Goal: a host that is known to be slow stays so where no sets can tell of the others.
#[test]
fn what_is_known_of_three_hosts_stays_known() {
    for rounds in [2, 3] {
        let runs = (0..rounds).flat_map(|_| [("a", 1.0), ("b", 1.001), ("c", 1.3)]);
        let verdict = verdict_of(&runs.map(|(host, times)| run_of(host, times, true)).collect::<Vec<_>>());
        let (sentence, confidence) = (verdict["sentence"].as_str().unwrap(), verdict["confidence"].as_str().unwrap());
        assert!(sentence.starts_with(&format!("known to be slow after {} runs: host c", 3 * rounds)), "{sentence}");
        assert!(sentence.contains("whether others are"), "{sentence}");
        assert!(!confidence.contains("sets would all be slow"), "{confidence}");
    }
}

//! Goal: an answer that several machines work out in parts is the answer of one, to the last byte; what does not go together
//! is refused.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{collcast, program, without_own};

/// Works out all parts of a command, in a folder.
fn parts(folder: &Path, of: usize, command: &[&str]) -> Vec<String> {
    let part = |index: usize| {
        let path = folder.join(format!("part-{index}.json")).to_str().unwrap().to_owned();
        let shard = format!("{index}/{of}");
        let (code, out, err) = collcast(&[command, &["--shard", &shard, "-o", &path]].concat());
        assert!(code == 0 && out.is_empty() && err.contains(&format!("ok: part {shard} has the times of")), "{err}");
        path
    };
    (1..=of).map(part).collect()
}

/// Holds the merged answer of some parts against that of the command.
fn same(command: &[&str], parts: &[String], formats: &[&str]) {
    for format in formats {
        let files: Vec<&str> = parts.iter().rev().map(String::as_str).collect();
        let whole = collcast(&[command, &["--format", format]].concat());
        let merged = collcast(&[&["merge"][..], &files, &["--format", format]].concat());
        assert!(!whole.1.is_empty(), "{command:?}: {}", whole.2);
        assert_eq!(merged, whole, "{command:?} as {format}");
    }
}

/// Goal: sweeps over machines, collectives and choices are the same in every format, with the verdict.
#[test]
fn sweeps_are_merged_to_the_last_byte() {
    let folder = tempfile::tempdir().unwrap();
    let command = [
        "sweep",
        "aws-p5",
        "--nodes",
        "1,2,4",
        "-s",
        "1K,1M,64M",
        "-c",
        "all_reduce,all_to_all",
        "--algorithm",
        "auto,best",
        "--explain-choice",
    ];
    let parts = parts(folder.path(), 3, &command);
    same(&command, &parts, &["table", "json", "csv", "markdown"]);
}

/// Goal: parts are merged wherever they were written from, and what a command is refused for here is said.
#[test]
fn parts_are_merged_from_within_their_folder() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("parts");
    fs::create_dir(&inner).unwrap();
    let run = |at: &Path, words: &[&str]| {
        let out = program().args(words).current_dir(at).output().unwrap();
        (out.status.code().unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    let part = ["sweep", "h200x4", "-s", "1M", "--shard", "1/1", "-o", "parts/1.json"];
    assert_eq!(run(folder.path(), &part).0, 0);
    let (code, err) = run(&inner, &["merge", "1.json", "-o", "whole.json"]);
    assert!(code == 0, "{err}");
    // With letters together, and where one of them says nothing of how it went.
    for quiet in [["-qo", "parts/a.json", "-s"], ["-o", "parts/b.json", "-qs"]] {
        let words =
            [&["sweep", "h200x4", "--shard", if quiet[0] == "-o" { "2/2" } else { "1/2" }], &quiet[..], &["1M"]];
        assert_eq!(run(folder.path(), &words.concat()).0, 0);
    }
    let (code, err) = run(&inner, &["merge", "a.json", "b.json", "-o", "both.json"]);
    assert!(code == 0, "{err}");
    let text = fs::read_to_string(inner.join("1.json")).unwrap();
    fs::write(inner.join("1.json"), text.replacen("\"-s\",", "\"--sizzes\",", 1)).unwrap();
    let (code, err) = run(&inner, &["merge", "1.json"]);
    assert!(code == 2 && err.contains("refused here: ") && err.contains("--sizzes"), "{err}");
}

/// Goal: a check of parts accepts and finds the same as a check. Method: a variable moves NCCL's choices.
#[test]
fn checks_are_merged_with_their_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("suite.toml");
    let suite = |channels: &str| {
        let text = format!(
            "schema = \"collcast/suite/1\"\n[[machines]]\nname = \"ours\"\ntopology = \"h200x4\"\nsizes = [\"1M\", \"64M\"]\n\
             collectives = [\"all_reduce\", \"all_gather\"]\nenv = [\"NCCL_MAX_NCHANNELS={channels}\"]\n\
             [[machines]]\nname = \"theirs\"\ntopology = \"dgx-h100\"\nsizes = [\"1M\"]\ncollectives = [\"all_reduce\"]\n"
        );
        fs::write(&file, text).unwrap();
    };
    let command = ["check", file.to_str().unwrap()];
    let baseline = folder.path().join("suite.baseline.toml");
    suite("8");
    let accepted = parts(folder.path(), 2, &["check", file.to_str().unwrap(), "--update"]);
    let (code, _, err) = collcast(&["merge", &accepted[0], &accepted[1]]);
    assert!(code == 0 && err.contains("is written"), "{err}");
    let text = fs::read(&baseline).unwrap();
    fs::remove_file(&baseline).unwrap();
    assert_eq!(collcast(&[&command[..], &["--update"]].concat()).0, 0);
    assert_eq!(fs::read(&baseline).unwrap(), text);
    suite("2");
    let found = parts(folder.path(), 3, &command);
    same(&command, &found, &["table", "json", "junit"]);
    assert_eq!(collcast(&[&["merge"][..], &found.iter().map(String::as_str).collect::<Vec<_>>()].concat()).0, 1);
}

/// Goal: parts of a check are of the tuner table and of the machine's variables that they were made with: where one of them
/// changes in between, nothing is merged.
#[test]
fn parts_of_a_check_know_what_nccl_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let table = |algorithm: &str| {
        fs::write(path("table.csv"), format!("allreduce,0,9223372036854775807,{algorithm},ll,-1,-1,-1,-1,-1\n"))
            .unwrap();
    };
    let machine = |protocol: &str| {
        let text = fs::read_to_string("tests/data/h100x4/machine.toml").unwrap();
        let env = format!("[software]\nenv = {{ NCCL_PROTO = \"{protocol}\" }}\n");
        fs::write(path("machine.toml"), text.replace("[software]\n", &env)).unwrap();
    };
    let suite = "schema = \"collcast/suite/1\"\ncollectives = [\"all_reduce\"]\nsizes = [\"1K\", \"1M\"]\n\
                 [[machines]]\nname = \"table\"\ntopology = \"h200x4\"\nnccl = [\"2.28.9\"]\n\
                 env = [\"NCCL_TUNER_PLUGIN=libnccl-tuner-example.so\", \"NCCL_TUNER_CONFIG_FILE=table.csv\"]\n\
                 [[machines]]\nname = \"file\"\ntopology = \"machine.toml\"\n";
    fs::write(path("suite.toml"), suite).unwrap();
    let both = |first: (&str, &str), second: (&str, &str)| {
        let parts = [("1/2", first), ("2/2", second)].map(|(shard, told)| {
            table(told.0);
            machine(told.1);
            let part = path(&shard.replace("/2", ".json"));
            assert_eq!(collcast(&["check", &path("suite.toml"), "--update", "--shard", shard, "-o", &part]).0, 0);
            part
        });
        collcast(&["merge", &parts[0], &parts[1]])
    };
    let (code, _, err) = both(("tree", "LL"), ("tree", "LL"));
    assert_eq!(code, 0, "{err}");
    for second in [("ring", "LL"), ("tree", "Simple")] {
        let (code, _, err) = both(("tree", "LL"), second);
        assert!(code == 2 && err.contains("parts of different answers"), "{second:?}: {err}");
    }
}

/// Goal: plans on several machines are the same, with one that nothing fits on.
#[test]
fn plans_are_merged_to_the_last_byte() {
    let folder = tempfile::tempdir().unwrap();
    let command =
        ["plan", "llama3-8b", "--on", "dgx-h100", "--on", "h200x4", "--gpus", "1,4", "--tokens", "1T", "--top", "2"];
    let parts = parts(folder.path(), 3, &command);
    same(&command, &parts, &["json", "table"]);
    let (code, _, err) = collcast(&["plan", "llama3-8b", "--gpus", "8", "--shard", "1/2"]);
    assert!(code == 2 && err.contains("one search takes seconds"), "{err}");
}

/// Goal: whatever is no part of this answer is refused, with the way out.
#[test]
fn what_does_not_go_together_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let machine = folder.path().join("machine.toml");
    let read = |name: &str| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap();
    let text = read("examples/scale/star.toml").replace("count = 4096", "count = 4");
    fs::write(&machine, &text).unwrap();
    let command = ["sweep", machine.to_str().unwrap(), "-s", "1K,1M"];
    let parts = parts(folder.path(), 2, &command);
    let other = folder.path().join("other.json").to_str().unwrap().to_owned();
    let refused = |files: &[&str], words: &[&str]| {
        let (code, out, err) = collcast(&[&["merge"], files].concat());
        assert!(code == 2 && out.is_empty(), "{files:?}: {code} {err}");
        words.iter().for_each(|word| assert!(err.contains(word), "{files:?}: no `{word}` in {err}"));
    };
    let [one, two] = [parts[0].as_str(), parts[1].as_str()];
    refused(&[two], &["of 2 parts these are missing: 1", "the first with --shard 1/2", "--array=1"]);
    refused(&[one, two, two], &["are both part 2/2", "leave one of them out"]);
    // However many are missing, by runs; no file asks for more than machines can be.
    let of = |count: &str| fs::read_to_string(two).unwrap().replace("\"of\":2", &format!("\"of\":{count}"));
    fs::write(&other, of("1000")).unwrap();
    refused(&[&other], &["of 1000 parts these are missing: 1,3-1000", "--array=1,3-1000"]);
    fs::write(&other, of("99999999999")).unwrap();
    refused(&[&other], &["is no shard", "N at most 1000000"]);
    assert_eq!(collcast(&["sweep", "h200x4", "-s", "1K,1M", "--shard", "2/2", "-o", &other]).0, 0);
    refused(&[one, &other], &["parts of different answers", "`sweep h200x4 -s 1K,1M`"]);
    assert_eq!(collcast(&[&command[..], &["--shard", "2/3", "-o", &other]].concat()).0, 0);
    refused(&[one, &other], &["parts of different answers: one of 2, the other of 3"]);
    let (code, _, err) = collcast(&[&command[..], &["--shard", "2/3", "-o", "part.csv"]].concat());
    assert!(code == 2 && err.contains("a part is JSON"), "{err}");
    for (text, what) in [
        ("", "it is cut short, or empty"),
        ("a,b", "it is no JSON"),
        ("{}", "it has no key `schema`"),
        ("{\"schema\":\"collcast/sweep/1\"}", "its schema is collcast/sweep/1"),
        ("{\"schema\":\"collcast/part/1\",\"version\":\"0.0.1\"}", "was made by version 0.0.1"),
    ] {
        fs::write(&other, text).unwrap();
        refused(&[&other], &[what]);
    }
    assert_eq!(collcast(&[&command[..], &["--shard", "1/1", "-o", &other]].concat()).0, 0);
    let written = fs::read_to_string(&other).unwrap();
    for (from, to, what) in [
        ("\"index\":1", "\"index\":0", "`0/1` is no shard"),
        ("\"command\":[", "\"command\":[\"collcast\",\"topo\",\"list\",", "which is no command that is merged"),
        ("\"time\":", "\"tome\":", "is no part of an answer"),
    ] {
        assert!(written.contains(from), "{from}");
        fs::write(&other, written.replacen(from, to, 1)).unwrap();
        refused(&[&other], &[what]);
    }
    fs::write(&machine, text.replace("400 Gb/s", "200 Gb/s")).unwrap();
    assert_ne!(fs::read_to_string(&machine).unwrap(), text);
    refused(&[one, two], &["is not what it was when the parts were made", "make all parts again"]);
    for (shard, more) in [("0/2", ""), ("3/2", ""), ("2", ""), ("a/b", ""), ("1/2", "--format=csv")] {
        let (code, _, err) =
            collcast(&["sweep", "h200x4", "--shard", shard, more].map(|w| if w.is_empty() { "-q" } else { w }));
        assert!(
            code == 2 && (err.contains("is no shard: write 1/N to N/N") || err.contains("cannot be used with")),
            "{shard}: {err}"
        );
    }
}

/// Runs a script of an example in a folder, with the program on its path.
fn script(text: &str, folder: &Path, variables: &[(&str, &str)]) {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_collcast"));
    let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let out = without_own(&mut Command::new("bash"))
        .args(["-euo", "pipefail", "-c", text])
        .current_dir(folder)
        .envs(variables.iter().copied())
        .envs([("PATH", path.as_str()), ("COLLCAST_CONFIG", ""), ("COLLCAST_PROFILES", "")])
        .output()
        .unwrap();
    assert!(out.status.success(), "{text}\n{}", String::from_utf8_lossy(&out.stderr));
}

/// An example, its machine made small.
fn example(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/scale").join(name);
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains("64,256,1024"), "{name}");
    text.replace("64,256,1024", "1,2")
}

/// Goal: the array job of Slurm can be copied. Method: bash runs each of its tasks, and what its head says merges.
#[test]
fn the_array_job_works() {
    let folder = tempfile::tempdir().unwrap();
    let text = example("slurm-array.sh").replace("8:8G:2", "1M,16M");
    for task in 1..=16 {
        script(&text, folder.path(), &[("SLURM_ARRAY_TASK_ID", &task.to_string())]);
    }
    let merge = text.lines().find_map(|line| line.split_once("--wrap=\"")).unwrap().1.trim_end_matches('"');
    script(merge, folder.path(), &[]);
    let collectives = "all_reduce,all_gather,reduce_scatter,all_to_all";
    let command = ["sweep", "dgx-h100", "--nodes", "1,2", "-s", "1M,16M", "-c", collectives, "--format", "csv"];
    assert_eq!(fs::read_to_string(folder.path().join("sweep.csv")).unwrap(), collcast(&command).1);
}

/// Goal: the Job of Kubernetes can be copied. Method: bash runs its scripts, those of parts once for each index.
#[test]
fn the_indexed_job_works() {
    let folder = tempfile::tempdir().unwrap();
    let parts = folder.path().join("first");
    let text = example("kubernetes-job.yaml").replace("/parts/first", parts.to_str().unwrap());
    let lines: Vec<&str> = text.lines().collect();
    let scripts: Vec<String> = (lines.iter().enumerate())
        .filter(|(_, line)| line.ends_with("- |"))
        .map(|(at, line)| {
            let deep = |next: &&str| next.find(|c| c != ' ') > line.find('-');
            lines[at + 1..].iter().copied().take_while(deep).collect::<Vec<_>>().join("\n")
        })
        .collect();
    let [part, merge] = scripts.as_slice() else { panic!("{scripts:?}") };
    let part = part.replace("--shard", "-s 1M,16M --shard");
    let merge = merge.replace("sleep 5", "sleep 0.1");
    // Both Jobs are applied at once: the merge may be there before any part.
    std::thread::scope(|scope| {
        let merging = scope.spawn(|| script(&merge, folder.path(), &[]));
        while !parts.exists() && !merging.is_finished() {
            std::thread::yield_now();
        }
        for index in 0..16 {
            script(&part, folder.path(), &[("JOB_COMPLETION_INDEX", &index.to_string())]);
        }
    });
    let command = ["sweep", "dgx-h100", "--nodes", "1,2", "-s", "1M,16M", "--format", "csv"];
    assert_eq!(fs::read_to_string(parts.join("sweep.csv")).unwrap(), collcast(&command).1);
}

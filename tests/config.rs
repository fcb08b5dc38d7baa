//! Goal: defaults from a file and from variables: which wins, where each is from, that answers say so, and that what is wrong in
//! them is named with its place.

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::common::{program, run};

/// A folder with a file of defaults.
struct Room {
    _folder: tempfile::TempDir,
    file: PathBuf,
}

impl Room {
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        std::fs::write(&file, text).unwrap();
        Self { _folder: folder, file }
    }

    /// Exit code, stdout and stderr of a command with these variables.
    fn run(&self, command: &str, variables: &[(&str, &str)]) -> (i32, String, String) {
        let arguments = command.split_whitespace();
        run(program().args(arguments).env("COLLCAST_CONFIG", &self.file).envs(variables.iter().copied()))
    }

    fn json(&self, command: &str, variables: &[(&str, &str)]) -> Value {
        let (code, out, err) = self.run(&format!("{command} --format json"), variables);
        assert_eq!(code, 0, "{command}: {err}");
        serde_json::from_str(&out).unwrap()
    }

    /// Value and origin of an option, as `--show-config` has them.
    fn shown(&self, command: &str, option: &str, variables: &[(&str, &str)]) -> (String, String) {
        let all = self.json(&format!("{command} --show-config"), variables);
        let row = all["rows"].as_array().unwrap().iter().find(|row| row["option"] == option).unwrap().clone();
        let text = |key: &str| row[key].as_str().unwrap_or("-").to_owned();
        (text("value"), text("from"))
    }

    fn line(&self, line: u32) -> String {
        format!("{}:{line}", self.file.display())
    }
}

/// Goal: a flag wins over a variable, that over the table of a command, and that over the whole file; each is named.
#[test]
fn the_nearest_default_wins() {
    let room = Room::new("channels = 2\n\n[sweep]\nchannels = 4 # of sweep alone\nsize = [\"1M\", \"64M\"]\n");
    let of = |command: &str, variables: &[(&str, &str)]| room.shown(command, "--channels", variables);
    assert_eq!(of("simulate", &[]), ("2".to_owned(), room.line(1)));
    assert_eq!(of("sweep", &[]), ("4".to_owned(), room.line(4)));
    let variable = [("COLLCAST_CHANNELS", "8")];
    assert_eq!(of("sweep", &variable), ("8".to_owned(), "COLLCAST_CHANNELS".to_owned()));
    assert_eq!(of("sweep --channels 16", &variable), ("16".to_owned(), "command line".to_owned()));
    assert_eq!(room.shown("sweep", "--dtype", &[]).1, "built in");
    // And it is what runs, and what the answer says.
    let answer = room.json("sweep h200x4 --algorithm ring", &variable);
    let rows = answer["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "{answer}");
    assert!(rows.iter().all(|row| row["channels"] == 8), "{answer}");
    let told: Vec<&str> = answer["assumptions"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(told.contains(&"--channels 8 is from COLLCAST_CHANNELS"), "{told:?}");
    assert!(told.contains(&format!("--size 1M,64M is from {}", room.line(5)).as_str()), "{told:?}");
    assert!(!told.iter().any(|line| line.contains("--algorithm")), "{told:?}");
}

/// Goal: an answer without defaults from outside does not speak of them, and one without a report tells them all the same.
#[test]
fn answers_say_what_is_from_outside() {
    let none = Room::new("");
    let (code, out, err) = none.run("sweep h200x4 -s 1M", &[]);
    assert!(code == 0 && !out.contains("is from") && !err.contains("is from"), "{out}{err}");
    let room = Room::new("strict = true\nnodes = 1\n");
    let told = format!("note: --strict true is from {}", room.line(1));
    let (code, out, err) = room.run("check checks/suite.toml", &[]);
    assert!(code == 0 && out.is_empty() && err.contains(&told), "{out}{err}");
    assert!(!err.contains("--nodes"), "{err}");
    let (_, xml, err) = room.run("convert h200x4 --algorithm ring -s 64K", &[]);
    assert!(xml.contains("<algo") && err.contains("note: --nodes 1 is from"), "{err}");
    // An error may come from one.
    let (code, _, err) = room.run("sweep dgx-h100 -s 1M", &[("COLLCAST_RANKS", "9000")]);
    assert!(code == 2 && err.contains("note: --ranks 9000 is from COLLCAST_RANKS"), "{err}");
}

/// Goal: formats of other programs have no place for defaults from outside, and a note tells them. Method: GitHub's and SARIF's of
/// findings, GitHub's and nccl-tests' of a forecast; JSON tells them itself, and once.
#[test]
fn formats_of_other_programs_leave_the_telling_to_a_note() {
    let room = Room::new("nccl = \"2.28.9\"\n");
    let told = format!("note: --nccl 2.28.9 is from {}", room.line(1));
    for command in [
        "lint tests/data/lint/choice.bad.log --format github",
        "lint tests/data/lint/choice.bad.log --format sarif",
        "sweep h200x4 -s 1M --format github",
        "sweep h200x4 -s 1M --format nccl-tests",
    ] {
        let (_, out, err) = room.run(command, &[]);
        assert!(!out.contains("is from") && err.contains(&told), "{command}: {out}{err}");
    }
    let (code, out, err) = room.run("sweep h200x4 -s 1M --format json", &[]);
    assert!(code == 0 && out.contains("--nccl 2.28.9 is from") && !err.contains("is from"), "{out}{err}");
}

/// Goal: a default gives way to what is named in another way, and serves what needs it.
#[test]
fn defaults_give_way() {
    let room =
        Room::new("topology = \"h200x2\"\nformat = \"json\"\non = \"dgx-h200\"\nnccl = \"2.28.9\"\nin-place = true\n");
    for (command, expected) in [
        ("sweep -s 1M", "topology h200x2"),
        // A machine or a scenario that has a place.
        ("sweep dgx-a100 -s 1M", "topology dgx-a100"),
        ("simulate ddp-buckets", "topology h200x4"),
        // What the option is needed for.
        ("lint tests/data/lint/numbers.good.env --nodes 1", "collcast/lint/1"),
        ("profile list --nodes 1", "h200-nvswitch is taken"),
        // A trace of PyTorch is judged, and not forecast elsewhere.
        ("trace tests/data/trace/ddp_0.json.gz tests/data/trace/ddp_1.json.gz", "topology h200x2"),
    ] {
        let (code, out, err) = room.run(command, &[]);
        assert!(code <= 1 && out.starts_with('{') && out.contains(expected), "{command}: {out}{err}");
    }
    // The name of a file says its form.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("table.csv");
    let (code, _, err) = room.run(&format!("sweep -s 1M -o {}", file.display()), &[]);
    assert_eq!(code, 0, "{err}");
    assert!(std::fs::read_to_string(&file).unwrap().contains("collective,"), "a table");
    // A variable switches off what a file switches on.
    let (value, from) = room.shown("sweep", "--in-place", &[("COLLCAST_IN_PLACE", "false")]);
    assert_eq!((value.as_str(), from.as_str()), ("false", "COLLCAST_IN_PLACE"));
    let answer = room.json("sweep -s 1M", &[("COLLCAST_IN_PLACE", "false")]);
    assert_eq!(answer["rows"][0]["in_place"], false);
    // What would have no meaning is not refused for a default's sake.
    let (code, _, err) = Room::new("nccl = \"2.28.9\"").run("trace tests/data/trace/recorder_0.json", &[]);
    assert!(code <= 1, "{err}");
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    for (text, expected) in [
        ("\ntopolgy = \"h200x4\"\n", &[":2: `topolgy`", "did you mean `topology`?"][..]),
        ("[sweeep]\nsize = \"1M\"\n", &[":1: [sweeep]", "did you mean `sweep`?"]),
        ("quiet = true\n", &[":1: `quiet` has no default", "give it each time"]),
        ("[sweep]\nvary = \"a=1\"\n", &[":2: `vary`", "is no option"]),
        ("[topo.show]\nnodes = 2\nxml = true\n", &[":3: `xml`"]),
        ("nodes = \"many\"\n", &[":1: invalid value 'many' for '--nodes'"]),
        ("[sweep]\nnodes = 2\nin-place = 5\n", &[":3: --in-place is yes or no"]),
        ("output = \"x.csv\"\n", &[":1: `output` has no default", "give it each time"]),
        ("update = true\n", &["`update` has no default"]),
        ("nodes = 1979-05-27\n", &[":1: `nodes` is neither text nor number"]),
        ("nodes = [1,\n", &[":1: "]),
    ] {
        let room = Room::new(text);
        let (code, out, err) = room.run("sweep h200x4 -s 1M", &[]);
        assert!(code == 2 && out.is_empty(), "{text}: {out}{err}");
        for part in expected {
            assert!(err.contains(part), "{text}: `{part}` is missing in\n{err}");
        }
    }
    let room = Room::new("");
    let (code, _, err) = room.run("sweep h200x4 -s 1M", &[("COLLCAST_FORMAT", "jsn")]);
    assert!(
        code == 2 && err.contains("COLLCAST_FORMAT: invalid value 'jsn' for '--format'") && err.contains("json"),
        "{err}"
    );
    let (code, _, err) = room.run("sweep h200x4 -s 1M", &[("COLLCAST_TOPOLGY", "h200x4")]);
    assert!(code == 0 && err.contains("COLLCAST_TOPOLGY sets nothing: did you mean COLLCAST_TOPOLOGY?"), "{err}");
    let (code, _, err) = room.run("topo list", &[("COLLCAST_QUIET", "1")]);
    assert!(code == 0 && err.contains("COLLCAST_QUIET sets nothing: --quiet is given each time"), "{err}");
    // A machine that a route names counts, and no default is said to be in use.
    let own = &[("COLLCAST_TOPOLOGY", "aws-p5")];
    let ((code, out, err), plain) = (room.run("topo paths h200x4 0 1", own), room.run("topo paths h200x4 0 1", &[]));
    assert!(code == 0 && out == plain.1 && err == plain.2, "{out}{err}");
    assert!(room.run("topo paths 0 1", own).1.contains("--topology aws-p5 is from COLLCAST_TOPOLOGY"));
    let (code, _, err) = room.run("topo list", &[("COLLCAST_CONFIG", "nowhere.toml")]);
    assert!(code == 2 && err.contains("nowhere.toml"), "{err}");
    assert_eq!(room.run("topo list", &[("COLLCAST_CONFIG", "")]).0, 0);
}

/// Goal: no variable of an option is one that means something else: to the program, the tuner plugin or the tests.
#[test]
fn variables_have_one_meaning() {
    let all = Room::new("").json("--show-config", &[]);
    let variables: BTreeSet<&str> =
        all["rows"].as_array().unwrap().iter().filter_map(|row| row["variable"].as_str()).collect();
    assert!(variables.len() > 100 && variables.contains("COLLCAST_TOPOLOGY"), "{variables:?}");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut read = 0;
    let mut folders: Vec<PathBuf> =
        ["src", "sim", "hwbackend", "topologies", "scenarios", "reports", "tests", "benches", ".ci"]
            .map(|name| root.join(name))
            .into();
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let ending = path.extension().map(|ending| ending.to_string_lossy().into_owned()).unwrap_or_default();
            // These speak of options on purpose.
            if path.ends_with("cli/config") || path.ends_with("python/tests") {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if ["rs", "sh", "py", "c", ""].contains(&ending.as_str()) && !path.ends_with("tests/config.rs") {
                let Ok(text) = std::fs::read_to_string(&path) else { continue };
                for part in text.split("COLLCAST_").skip(1) {
                    let end = part.find(|c: char| !c.is_ascii_uppercase() && c != '_').unwrap_or(part.len());
                    let name = format!("COLLCAST_{}", &part[..end]);
                    assert!(!variables.contains(name.as_str()), "{}: {name} is also that of an option", path.display());
                    read += 1;
                }
            }
        }
    }
    assert!(read > 40, "{read}");
}

//! Goal: the edge of the program: streams that are gone, files of every kind, text of strangers, options
//! that have no meaning where they are given.

#![cfg(unix)]

use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{collcast, program, skipped};

/// Goal: a stderr that is full or closed loses notes and errors, and changes no exit code.
#[test]
fn exit_codes_need_no_stderr() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for (args, code) in [
        (&["simulate", "-s", "8"][..], 0),
        (&["simulate", "dgx-h10"], 2),
        (&["sweep", "--no-such-flag"], 2),
        (&["simulate", "ddp-buckets", "--format", "json"], 0),
    ] {
        let status = program().args(args).stdout(Stdio::null()).stderr(full()).status().unwrap();
        assert_eq!(status.code(), Some(code), "{args:?} with a full stderr");
        let closed = format!("exec \"$0\" {} >/dev/null 2>&-", args.join(" "));
        let status = Command::new("sh").args(["-c", &closed, env!("CARGO_BIN_EXE_collcast")]).status().unwrap();
        assert_eq!(status.code(), Some(code), "{args:?} with a closed stderr");
    }
}

fn list(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// The program writes the list of machines there.
fn lists_machines_to(path: &Path) {
    let (code, out, err) = collcast(&["topo", "list", "-o", path.to_str().unwrap()]);
    assert_eq!((code, out.as_str()), (0, ""), "{}: {err}", path.display());
}

fn holds_machines(path: &Path) {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains("dgx-h100"), "{}: {text}", path.display());
}

/// Goal: what is no regular file is written to and stays what it is; links are followed; an existing
/// file keeps its mode, a new one has that of the umask.
#[test]
fn output_is_written_to_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);

    assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
    let (pipe, mut text) = (at("pipe"), String::new());
    let reader = std::thread::spawn(move || {
        std::fs::File::open(pipe).unwrap().read_to_string(&mut text).unwrap();
        text
    });
    lists_machines_to(&at("pipe"));
    assert!(reader.join().unwrap().contains("dgx-h100"));
    assert!(std::fs::metadata(at("pipe")).unwrap().file_type().is_fifo());

    std::fs::write(at("real"), "old").unwrap();
    std::os::unix::fs::symlink("real", at("link")).unwrap();
    std::os::unix::fs::symlink("new", at("dangling")).unwrap();
    for (link, real) in [("link", "real"), ("dangling", "new")] {
        lists_machines_to(&at(link));
        assert!(at(link).is_symlink(), "{link} is no link any more");
        holds_machines(&at(real));
    }
    std::os::unix::fs::symlink("/dev/null", at("null")).unwrap();
    lists_machines_to(&at("null"));
    assert!(at("null").is_symlink() && std::fs::metadata("/dev/null").unwrap().file_type().is_char_device());

    std::fs::write(at("private"), "old").unwrap();
    std::fs::set_permissions(at("private"), std::fs::Permissions::from_mode(0o600)).unwrap();
    lists_machines_to(&at("private"));
    let mode = |name: &str| std::fs::metadata(at(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("private"), 0o600);
    std::fs::write(at("plain"), "").unwrap();
    assert_eq!(mode("new"), mode("plain"));

    // A file that the shell has open, by the name that is everybody's.
    let open = std::fs::File::create(at("redirected")).unwrap();
    let status = program().args(["topo", "list", "-o", "/dev/stdout"]).stdout(open).status().unwrap();
    assert!(status.success());
    holds_machines(&at("redirected"));
    assert_eq!(list(dir.path()), ["dangling", "link", "new", "null", "pipe", "plain", "private", "real", "redirected"]);
}

/// Goal: what a killed writer left is swept by the next one of the same file; what another writer holds
/// is left alone, as are other files.
#[test]
fn parts_of_killed_writers_do_not_add_up() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for name in [".x.csv.aaaaaa.part", ".x.csv.bbbbbb.part", ".y.csv.aaaaaa.part", ".x.csv.held.part"] {
        std::fs::write(at(name), "half").unwrap();
    }
    let held = std::fs::File::open(at(".x.csv.held.part")).unwrap();
    held.lock().unwrap();
    lists_machines_to(&at("x.csv"));
    assert_eq!(list(dir.path()), [".x.csv.held.part", ".y.csv.aaaaaa.part", "x.csv"]);
}

/// Goal: a disk without room leaves the old file and no part of the new one.
/// Method: a limit on the size of files, of which the program gets an error as of a full disk.
#[test]
fn a_full_disk_leaves_the_old_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("machines.txt");
    std::fs::write(&file, "old").unwrap();
    let script = "trap '' XFSZ; ulimit -f 1; exec \"$0\" topo list --format json -o \"$1\"";
    let out = Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_collcast")]).arg(&file).output().unwrap();
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(2), "{err}");
    assert!(err.contains("cannot write") && err.contains("machines.txt"), "{err}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "old");
    assert_eq!(list(dir.path()), ["machines.txt"]);
}

/// Goal: the .toml that `bench` writes beside its data replaces only one of its own, never a machine.
#[test]
fn bench_keeps_a_machine_beside_its_data() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let machine = "schema = \"collcast/topology/1\"\nname = \"x\"\n[[hosts]]\nlike = \"h200x4\"\n";
    std::fs::write(at("mybox.toml"), machine).unwrap();
    let bench = |output: &str| {
        let args = ["bench", &at("mybox.toml"), "-s", "8", "--ranks", "2", "--batches", "3", "-o"];
        collcast(&[&args[..], &[&at(output), "--format", "csv"]].concat())
    };
    for (output, why) in [("mybox.csv", "another file"), ("run.toml", "no report as .toml")] {
        let (code, _, err) = bench(output);
        assert_eq!(code, 2, "{err}");
        assert!(err.contains(why) && (err.contains("take another name") || err.contains(".csv, .json")), "{err}");
    }
    assert_eq!(std::fs::read_to_string(at("mybox.toml")).unwrap(), machine);
    for _ in 0..2 {
        let (code, _, err) = bench("run.csv");
        assert_eq!(code, 0, "{err}");
    }
    assert_eq!(list(dir.path()), ["mybox.toml", "run.csv", "run.toml"]);
}

/// Goal: no option waits for a pipe that nobody writes to or reads a device without end; what the shell
/// opens is read like a file, also twice.
#[test]
fn inputs_are_files_with_an_end() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    assert!(
        Command::new("mkfifo").args(["pipe", "pipe.toml", "pipe.xml", "pipe.0.et"].map(at)).status().unwrap().success()
    );
    let zero = at("zero.toml");
    std::os::unix::fs::symlink("/dev/zero", &zero).unwrap();
    let placement = format!("@{}", at("pipe"));
    let tuner = format!("NCCL_TUNER_CONFIG_FILE={}", at("pipe"));
    let suite = "schema = \"collcast/suite/1\"\n[[machines]]\ntopology = \"h200x4\"\nenv = [\"pipe\"]\n";
    std::fs::write(at("suite.toml"), suite).unwrap();
    let machine = "schema = \"collcast/topology/1\"\nname = \"x\"\n[[hosts]]\nxml = \"pipe.xml\"\n";
    std::fs::write(at("machine.toml"), machine).unwrap();
    for args in [
        &["simulate", "-s", "8", "--profile", &zero][..],
        &["simulate", "-s", "8", "--profile", &at("pipe.toml")],
        &["simulate", "-s", "8", "--schedule", "/dev/urandom"],
        &["simulate", "-s", "8", "--graph", &at("pipe")],
        &["simulate", "-c", "all_to_all", "--counts", &at("pipe")],
        &["simulate", "-s", "8", "--placement", "@/dev/zero"],
        &["simulate", "-s", "8", "--placement", &placement],
        &["simulate", "-s", "8", "--env", &at("pipe")],
        &["simulate", "-s", "8", "--env", &tuner],
        &["simulate", &zero, "-s", "8"],
        &["simulate", &at("pipe.toml"), "-s", "8"],
        &["simulate", &at("machine.toml"), "-s", "8"],
        &["topo", "show", &at("pipe.xml")],
        &["topo", "import", &at("pipe.xml")],
        &["trace", &at("pipe")],
        &["trace", &at("pipe.0.et"), "--on", "dgx-h100"],
        &["trace", "/dev/zero"],
        &["check", &at("pipe.toml")],
        &["check", &at("suite.toml"), "--update"],
        &["check", "checks/suite.toml", "--baseline", &zero],
    ] {
        let mut limited = Command::new("timeout");
        limited.args(["60", env!("CARGO_BIN_EXE_collcast")]).args(args).current_dir(env!("CARGO_MANIFEST_DIR"));
        let out = limited.stdin(Stdio::null()).output().unwrap();
        let err = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{args:?}: {err}");
        assert!(err.contains("a device or a pipe"), "{args:?}: {err}");
    }
    let sweep = "\"$0\" sweep aws-p5 --nodes 1,2 -s 1M --format csv";
    let text = |script: &str| {
        let out = Command::new("bash").args(["-c", script, env!("CARGO_BIN_EXE_collcast")]).output().unwrap();
        assert!(out.status.success(), "{script}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    let plain = text(&format!("{sweep} --env NCCL_ALGO=ring"));
    assert_eq!(text(&format!("{sweep} --env <(echo NCCL_ALGO=ring)")), plain);
    assert_eq!(text(&format!("echo NCCL_ALGO=ring | {sweep} --env /dev/stdin")), plain);
    assert_ne!(text(sweep), plain);
}

/// Goal: a file beyond what is read is refused by its size.
#[test]
fn inputs_have_a_largest_size() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("large.env");
    std::fs::File::create(&path).unwrap().set_len((64 << 20) + 1).unwrap();
    let (code, _, err) = collcast(&["simulate", "-s", "8", "--env", path.to_str().unwrap()]);
    assert!(code == 2 && err.contains("more than 64 MiB"), "{code} {err}");
}

/// Goal: no name of a file, word in it or argument reaches the terminal as a control sequence or turns its
/// direction, nor stands at the start of a line, where GitHub looks for commands.
#[test]
fn text_of_strangers_is_shown_as_text() {
    const EVIL: &str = "x\u{1b}[31m\u{202e}\n::error::gone";
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str, content: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let profile =
        at("p.toml", "schema = \"collcast/profile/1\"\n[parameters]\n\"x\\u001b[31m\\n::error::\\u202e\" = 1\n");
    let csv = at("rows.csv", "collective,ranks,size_bytes,time_us,\u{1b}[31m\u{202e}\nal\u{1b}[31m_reduce,4,8,1\n");
    let dump = std::fs::read_to_string("topologies/tests/data/h200x4-nccl-topo.xml").unwrap();
    let xml = at(
        "x.xml",
        &dump.replacen(
            "<nvlink target=\"0000:",
            "<nvlink target=\"&#10;::error::\u{202e}\" count=\"1\" tclass=\"0x010000\"/><nvlink target=\"0000:",
            1,
        ),
    );
    let suite = format!(
        "schema = \"collcast/suite/1\"\n[[machines]]\ntopology = \"{}\"\n",
        EVIL.escape_unicode().to_string().replace("\\u{", "\\U{")
    );
    let suite = at("suite.toml", &suite);
    for args in [
        &["simulate", "-s", "8", "--profile", &profile][..],
        &["simulate", "-s", "8", "--profile", EVIL],
        &["simulate", "-s", "8", "--profile", &format!("{EVIL}.toml")],
        &["simulate", "-s", EVIL],
        &["simulate", EVIL],
        &["simulate", "-c", EVIL],
        &["simulate", "--env", EVIL],
        &["simulate", "--nodes", EVIL],
        &["simulate", &format!("--{EVIL}")],
        &["validate", &csv, "-t", "h200x4"],
        &["validate", EVIL],
        &["topo", "import", EVIL],
        &["topo", "import", &xml],
        &["check", &suite],
        &["check", "checks/suite.toml", "--baseline", EVIL],
    ] {
        let (_, out, err) = collcast(args);
        assert!(!err.is_empty(), "{args:?} says nothing");
        let out = if args[0] == "topo" { "" } else { &out };
        for c in ['\u{1b}', '\u{202e}'] {
            assert!(!err.contains(c) && !out.contains(c), "{args:?}: {c:?} in {err:?}");
        }
        assert!(err.lines().all(|line| !line.trim_start().starts_with("::")), "{args:?}: {err}");
    }
}

/// Goal: a matrix of counts has a row and a column for each rank, and a size that is simulated.
#[test]
fn matrices_of_counts_fit_the_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let rows = |counts: &[usize]| counts.iter().map(|&n| vec!["4096"; n].join(",") + "\n").collect::<String>();
    let tib = "274877906944,".repeat(3) + "274877906944\n";
    for (text, expected) in [
        (rows(&[4; 4]), ""),
        (rows(&[8; 2]), "1: 4 ranks need 4 rows of 4 counts; this one has 8"),
        (rows(&[1; 16]), "1: 4 ranks need 4 rows of 4 counts; this one has 1"),
        (rows(&[4, 5, 3, 4]), "2: 4 ranks need 4 rows of 4 counts; this one has 5"),
        (rows(&[4; 3]), "4 ranks need 4 rows of 4 counts; there are 3"),
        (tib.repeat(4), "at most 1 TiB are simulated"),
    ] {
        let path = dir.path().join("m.csv");
        std::fs::write(&path, &text).unwrap();
        let (code, _, err) = collcast(&["simulate", "h200x4", "-c", "all_to_all", "--counts", path.to_str().unwrap()]);
        assert_eq!(code, if expected.is_empty() { 0 } else { 2 }, "{err}");
        assert!(err.contains(expected), "{err}");
    }
}

/// Goal: an error says what is allowed, or the name nearest to what was given.
#[test]
fn errors_name_the_way_out() {
    for (args, expected) in [
        (&["sweep", "-c", "broadcast", "--root", "8"][..], "with --root"),
        (&["sweep", "--ranks", "0"], "leave --ranks out"),
        (&["sweep", "gcp-a3", "--nodes", "16", "-s", "500T", "-c", "all_reduce"], "64K, 1MiB or 4G"),
        (&["sweep", "-c", "all_gather", "--algorithm", "tree"], "with --algorithm"),
        (&["sweep", "--algorithm", "pat", "-c", "all_gather", "--protocol", "ll"], "with --protocol"),
        (&["sweep", "-c", "send_recv", "--in-place"], "leave --in-place out"),
        (&["sweep", "--dtype", "float"], ""),
        (&["sweep", "--dtype", "flt32"], "did you mean"),
        (&["sweep", "-c", "allred"], "did you mean `all_reduce`"),
        (&["sweep", "--profile", "profile.toml"], "paths start where"),
        (&["sweep", "--schedule", "Cargo.tml"], "did you mean `Cargo.toml`"),
    ] {
        let (code, _, err) =
            collcast(&[args, if args[0] == "sweep" && !args.contains(&"-s") { &["-s", "8"] } else { &[] }].concat());
        assert_eq!(code, if expected.is_empty() { 0 } else { 2 }, "{args:?}: {err}");
        assert!(
            expected.is_empty() || (err.contains(expected) && err.contains("hint: ") || err.contains("did you mean")),
            "{args:?}: {err}"
        );
    }
}

/// Goal: an error quotes no more of a value than it takes to find it.
#[test]
fn values_in_errors_are_short() {
    let dir = tempfile::tempdir().unwrap();
    let counts = dir.path().join("counts.csv");
    std::fs::write(&counts, "x".repeat(1 << 20)).unwrap();
    for (args, says) in [
        (
            &["simulate", "h200x4", "-c", "all_to_all", "--counts", counts.to_str().unwrap()][..],
            "xxx...` is not a count",
        ),
        (&["serve", "llama3-8b", "--rate", "1e300"], "1e300 requests a second over 600 s"),
    ] {
        let (code, _, err) = collcast(args);
        assert!(code == 2 && err.contains(says) && err.len() < 1000, "{} bytes: {err:.2000}", err.len());
    }
}

/// Goal: 8-bit floats that a version or a GPU does not have are refused as NCCL refuses them, with the way out.
#[test]
fn eight_bit_floats_are_refused_where_nccl_refuses_them() {
    for (args, expected) in [
        (
            &["dgx-h100", "--nccl", "2.22.3"][..],
            &["NCCL 2.22.3 has no float8_e4m3; it came with 2.24", "--nccl 2.24"][..],
        ),
        (&["dgx-h100", "--nccl", "2.22.3", "-c", "send_recv"], &["has no float8_e4m3", "--dtype uint8"]),
        (&["dgx-h100", "--nccl", "2.24"], &[]),
        (&["dgx-a100"], &["compute capability 9.0", "have 8.0", "bfloat16"]),
        (&["dgx-a100", "--algorithm", "ring", "--protocol", "simple"], &["compute capability 9.0"]),
        (&["dgx-a100", "--algorithm", "best"], &["compute capability 9.0"]),
        (&["dgx-a100", "-c", "all_gather", "--nccl", "2.25.1"], &["all_gather of float8_e4m3", "--dtype uint8"]),
        (&["dgx-a100", "-c", "all_gather", "--nccl", "2.28.3"], &[]),
        (&["dgx-a100", "-c", "all_to_all", "--nccl", "2.25.1"], &[]),
    ] {
        let (code, _, err) = collcast(&[&["sweep"], args, &["-s", "1M", "--dtype", "f8e4m3"]].concat());
        assert_eq!(code, if expected.is_empty() { 0 } else { 2 }, "{args:?}: {err}");
        assert!(expected.iter().all(|part| err.contains(part)), "{args:?}: {err}");
    }
}

/// Goal: names are taken as people write them, and `all` where several collectives are.
#[test]
fn names_have_no_case() {
    let sweep = |args: &[&str]| {
        let (code, out, err) = collcast(&[&["sweep", "-s", "1M", "--format", "csv"], args].concat());
        assert_eq!(code, 0, "{args:?}: {err}");
        out
    };
    assert_eq!(
        sweep(&["DGX-H100", "--profile", "Prior", "--dtype", "fp16"]),
        sweep(&["dgx-h100", "--profile", "prior", "--dtype", "half"])
    );
    let all = sweep(&["h200x4", "-c", "all"]);
    assert_eq!(all.lines().filter(|line| !line.starts_with(['#', 'c'])).count(), 9, "{all}");
}

/// Goal: a gate that fails says what was allowed.
#[test]
fn failed_gates_state_their_limit() {
    for (data, gate, expected) in [
        ("tests/data/h200x4/nccl.csv", ["--max-error", "0.1%"], "more than the 0.1% of --max-error"),
        ("tests/data/doctor/p2p_disable_1_4.csv", ["--fail-below", "85%"], "less than the 85% of --fail-below"),
    ] {
        let (code, _, err) = collcast(&[&["validate", data, "-t", "h200x4", "--no-doctor"][..], &gate].concat());
        assert!(code == 1 && err.contains(expected), "{code} {err}");
    }
}

/// Goal: the help of each command says the sizes that it takes by itself, and no error names an option of
/// another command as if it were its own.
#[test]
fn help_and_hints_are_of_the_command() {
    let (one, many) = ("such as 64M", "FROM:TO:FACTOR");
    for (command, of, sizes) in
        [("simulate", one, "64M"), ("convert", one, "64M"), ("sweep", many, "8:8GiB:2"), ("bench", many, "8:1GiB:2")]
    {
        let (_, help, _) = collcast(&[command, "--help"]);
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains(&format!("{of} [default: {sizes}")), "{command}: {help}");
    }
    let dir = tempfile::tempdir().unwrap();
    let (code, _, err) = collcast(&["probe", "--quick", "-o", dir.path().to_str().unwrap()]);
    if code != 3 {
        skipped("there is a GPU here");
        return;
    }
    assert!(!err.contains("--backend") || err.contains("collcast bench --backend"), "{err}");
}

/// Goal: an option that would do nothing is refused, by name.
#[test]
fn options_without_effect_are_refused() {
    for args in [
        &["simulate", "ddp-buckets", "--channels", "4"][..],
        &["simulate", "ddp-buckets", "--algorithm", "ring"],
        &["simulate", "ddp-buckets", "--protocol", "auto"],
        &["simulate", "ddp-buckets", "--collective", "all_gather"],
        &["simulate", "ddp-buckets", "--op", "max"],
        &["simulate", "ddp-buckets", "--dtype", "half"],
        &["simulate", "ddp-buckets", "--cold"],
        &["simulate", "ddp-buckets", "--explain-choice"],
        &["simulate", "ddp-buckets", "--graph", "tests/data/h200x4/nccl_graph_4gpu.xml"],
        &["simulate", "-s", "8", "--level", "flows"],
        &["simulate", "-s", "8", "--split", "%2", "--timeline", "no/such/file"],
        &["simulate", "-s", "8", "-c", "all_gather", "--op", "max"],
        &["sweep", "-s", "8", "--root", "1"],
        &["sweep", "--stepfactor", "4"],
        &["sweep", "-c", "all_to_all", "--counts", "no/such/file", "--size", "8"],
        &["sweep", "-s", "8", "--algorithm", "ring", "--protocol", "ll", "--explain-choice"],
        &["tune", "--explain-choice"],
        &["convert", "--graph", "tests/data/h200x4/nccl_graph_4gpu.xml"],
        &["bench", "-s", "8", "--registered"],
        &["bench", "-s", "8", "--cold"],
        &["bench", "-s", "8", "--nvls"],
        &["bench", "-s", "8", "--backend", "nccl", "--schedule", "sim/tests/data/pairs2.xml"],
        &["calibrate", "tests/data/h200x4/nccl.csv", "--hold-back", "size", "--folds", "3"],
        &["check", "no/such/suite.toml", "--update", "--format", "json"],
        &["topo", "show", "h200x4", "--profile", "prior"],
        &["topo", "draw", "h200x4", "--profile", "prior"],
        &["topo", "graph", "h200x4", "--xml", "--format", "json"],
    ] {
        let (code, out, err) = collcast(args);
        let option = args.iter().rev().find(|arg| arg.starts_with("--")).unwrap();
        assert!(code == 2 && out.is_empty(), "{args:?}: {code} {err}");
        assert!(
            err.contains("no meaning here") && err.contains("hint: ") && err.contains(option)
                || err.contains("--graph"),
            "{args:?}: {err}"
        );
    }
    let (code, _, err) =
        collcast(&["sweep", "h200x4", "-s", "8", "-c", "broadcast,all_reduce", "--root", "1", "--op", "max"]);
    assert_eq!(code, 0, "{err}");
}

/// Goal: the name of a file says its format, and a command lists those that it has.
#[test]
fn formats_follow_the_name_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    for (name, begins) in [
        ("x.json", "{"),
        ("x.csv", "# collcast: predicted"),
        ("x.md", "###"),
        ("x.xml", "<?xml"),
        ("x.txt", "# predicted"),
        ("x", "# predicted"),
    ] {
        let (code, _, err) = collcast(&["sweep", "h200x4", "-s", "8", "-o", &at(name)]);
        assert_eq!(code, 0, "{err}");
        let text = std::fs::read_to_string(at(name)).unwrap();
        assert!(text.starts_with(begins), "{name}: {text}");
    }
    for (args, expected) in
        [(&["sweep", "-s", "8", "-o"][..], ".csv, .json, .md"), (&["topo", "draw", "h200x4", "-o"], ".svg, .dot")]
    {
        let (code, _, err) = collcast(&[args, &[&at("x.png")]].concat());
        assert!(code == 2 && err.contains(expected) && !Path::new(&at("x.png")).exists(), "{code} {err}");
    }
    for (name, begins) in [("x.svg", "<svg"), ("x.dot", "graph")] {
        assert_eq!(collcast(&["topo", "draw", "h200x4", "-o", &at(name)]).0, 0);
        assert!(std::fs::read_to_string(at(name)).unwrap().contains(begins), "{name}");
    }
    for (command, has) in [("sweep", true), ("bench", true), ("simulate", false), ("check", false), ("tune", false)] {
        let (_, help, _) = collcast(&[command, "--help"]);
        assert_eq!(help.contains("nccl-tests:") || help.contains("- nccl-tests"), has, "{command}: {help}");
    }
}

/// Goal: where neither the name of the file nor --format says a format that the command has, nothing is written.
#[test]
fn unknown_endings_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    for (name, why) in
        [("x.tsv", "no report as .tsv"), ("x.dat", "no report as .dat"), ("x.sarif", ".sarif"), ("x.htm", "--report")]
    {
        let (code, _, err) = collcast(&["sweep", "h200x4", "-s", "8", "-o", &at(name)]);
        assert!(code == 2 && err.contains(why) && !Path::new(&at(name)).exists(), "{name}: {err}");
    }
    assert_eq!(collcast(&["sweep", "h200x4", "-s", "8", "-o", &at("x.dat"), "--format", "csv"]).0, 0);
    assert_eq!(collcast(&["lint", "tests/data/lint/numbers.bad.env", "-o", &at("x.sarif")]).0, 1);
    assert!(std::fs::read_to_string(at("x.sarif")).unwrap().contains("\"version\": \"2.1.0\""));
}

/// Goal: no command writes over a file that it reads, whichever options name the two.
#[test]
fn files_that_are_read_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let [file, csv, graph] = [at("settings.txt"), at("counts.csv"), at("graph.xml")];
    std::fs::write(&file, "NCCL_ALGO=Ring\n").unwrap();
    std::fs::write(&csv, "1024,1024\n1024,1024\n").unwrap();
    assert_eq!(collcast(&["topo", "graph", "h200x4", "-o", &graph]).0, 0);
    let placement = format!("@{file}");
    for (command, of, words) in [
        ("lint", &file, vec![&*file, "-o", &file]),
        ("lint", &file, vec![&file, "--format", "json", "-o", &file]),
        ("sweep", &file, vec!["h200x4", "-s", "1K", "--env", &file, "-o", &file]),
        ("sweep", &file, vec!["h200x4", "-s", "1K", "--placement", &placement, "-o", &file]),
        ("simulate", &csv, vec!["h200x2", "-c", "all_to_all", "--counts", &csv, "-o", &csv]),
        ("simulate", &graph, vec!["h200x4", "-s", "1M", "--graph", &graph, "--timeline", &graph]),
    ] {
        let before = std::fs::read_to_string(of).unwrap();
        let (code, _, err) = collcast(&[&[command], &words[..]].concat());
        assert!(code == 2 && err.contains("would be written over"), "{command} {words:?}: {err}");
        assert_eq!(std::fs::read_to_string(of).unwrap(), before, "{command}");
    }
}

/// Goal: paragraphs of help fill the lines of the terminal, whatever its width.
/// Method: a line that ends before the next word had to wrap was broken by hand.
#[test]
fn help_wraps_once() {
    for command in ["sweep", "bench", "calibrate", "check", "compare", "convert", "probe", "tune", "validate"] {
        let out = program().args([command, "--help"]).env("COLUMNS", "70").output().unwrap();
        let help = String::from_utf8(out.stdout).unwrap();
        for pair in help.lines().collect::<Vec<_>>().windows(2) {
            let [line, next] = pair else { continue };
            let word = next.split(' ').next().unwrap_or_default();
            if !line.starts_with([' ', '-']) && word.starts_with(|c: char| c.is_lowercase()) && !line.is_empty() {
                assert!(line.len() + 1 + word.len() > 70, "{command}: `{line}` ends before `{next}`");
            }
        }
    }
}

/// Goal: a file in a folder that is not there is refused before anything is worked out.
#[test]
fn folders_of_outputs_are_there() {
    for args in [["topo", "list", "-o", "no/such/list.csv"], ["simulate", "dgx-h100", "--report", "no/such/page.html"]]
    {
        let (code, out, err) = collcast(&args);
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}: {err}");
        assert!(err.contains("there is no folder `no/such`; make it first"), "{args:?}: {err}");
    }
}

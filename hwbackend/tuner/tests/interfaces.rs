//! Goal: every interface of NCCL 2.21 to 2.30 answers as the table says, through C, and nothing breaks the job.
//! Method: a program in C with NCCL's layouts loads the library and asks, under sanitizers where the
//! compiler has them. It is `cc` that Rust links with too, so it is there.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// Interfaces.
const ALL: [u32; 5] = [2, 3, 4, 5, 6];

struct Built {
    _folder: tempfile::TempDir,
    harness: PathBuf,
    library: PathBuf,
    /// Other tuners, by interface.
    others: Vec<PathBuf>,
    nccl: PathBuf,
}

fn cc(arguments: &[&str]) -> bool {
    Command::new("cc")
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The library that cargo has made beside this test.
fn library() -> Option<PathBuf> {
    let mut folder = std::env::current_exe().unwrap();
    folder.pop();
    [folder.clone(), folder.parent()?.to_owned()]
        .into_iter()
        .map(|f| f.join("libcollcast_tuner.so"))
        .find(|f| f.exists())
}

/// What the tests run, made once.
fn built() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let source = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name).display().to_string();
        let harness = at("harness");
        let (into, from) = (harness.display().to_string(), source("harness.c"));
        let plain = ["-O2", "-Wall", "-Wextra", "-Werror", "-rdynamic", "-o", &into, &from, "-ldl", "-lpthread"];
        // Memory that is used wrongly, or left, ends the program; where the compiler can tell.
        let sanitized = [&plain[..], &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]].concat();
        assert!(cc(&sanitized) || cc(&plain), "cc cannot compile {from}");
        let other = |interface: u32| {
            let into = at(&format!("other{interface}.so"));
            let define = format!("-DINTERFACE={interface}");
            let path = into.display().to_string();
            assert!(cc(&[
                "-O2",
                "-Wall",
                "-Wno-unused-function",
                "-shared",
                "-fPIC",
                &define,
                "-o",
                &path,
                &source("other.c")
            ]));
            into
        };
        let (others, nccl) = (ALL.map(other).to_vec(), at("libnccl.so"));
        assert!(cc(&["-O2", "-Wall", "-shared", "-fPIC", "-o", nccl.to_str().unwrap(), &source("nccl.c")]));
        Built { harness, library: library().unwrap(), others, nccl, _folder: folder }
    })
}

/// Answers to calls, what the log says is in use, and what else it says.
struct Answer {
    lines: Vec<Vec<i64>>,
    chunk: String,
    used: String,
    log: String,
}

fn run(interface: u32, ranks: u32, nodes: u32, calls: &str, variables: &[(&str, &str)]) -> Answer {
    let output = raw(built(), interface, (ranks, nodes), calls, variables);
    let all = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "v{interface} {calls}: {:?} {all}", output.status);
    let (used, log): (Vec<&str>, Vec<&str>) = all.lines().partition(|line| line.contains(" lines in use, hash "));
    let text = String::from_utf8(output.stdout).unwrap();
    let (chunk, lines): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with("chunk"));
    let numbers = |line: &&str| line.split(' ').map(|number| number.parse().unwrap()).collect();
    Answer {
        lines: lines.iter().map(numbers).collect(),
        chunk: chunk.concat(),
        used: used.concat(),
        log: log.join("\n"),
    }
}

fn raw(built: &Built, interface: u32, (ranks, nodes): (u32, u32), calls: &str, variables: &[(&str, &str)]) -> Output {
    let words = [interface, ranks, nodes, 1].map(|number| number.to_string());
    let mut command = Command::new(&built.harness);
    command.arg(&built.library).args(words).env_clear().envs(variables.iter().copied());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(calls.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

const TABLE: &str = "# for: nccl=2.28.9 gpu=H200\n\
    allreduce,0,65535,ring,ll,4,1,8,-1,-1\n\
    allreduce,65536,18446744073709551615,nvls,simple,16,1,8,-1,-1\n\
    allgather,0,18446744073709551615,ring,ll,-1,1,8\n\
    allreduce,0,18446744073709551615,ring,simple,2,2,16,-1,-1\n\
    # end: 4 lines\n";

fn table(folder: &Path, text: &[u8]) -> String {
    let path = folder.join("tuner.csv");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// Goal: the table answers through each interface: by size, collective and communicator; what NCCL cannot do stays so;
/// where nothing matches nothing changes.
#[test]
fn every_interface_answers_from_the_table() {
    let built = built();
    let folder = tempfile::tempdir().unwrap();
    let path = table(folder.path(), TABLE.as_bytes());
    for interface in ALL {
        // Cell 14 is nvls/simple; 3 is ring/ll, closed by -1024.
        let calls =
            "4 65535 1 0 -1\n4 65536 1 0 -1\n4 65536 1 0 14\n2 5 1 1 -1\n0 5 1 0 -1\n-1 5 1 0 -1\n99 5 1 0 -1\n";
        let variables = [("COLLCAST_TUNER_TABLE", path.as_str())];
        let answer = run(interface, 8, 1, calls, &variables[..]);
        let taken: Vec<&[i64]> = answer.lines.iter().map(|line| &line[..3]).collect();
        // Costs grow from cell to cell: by itself NCCL takes the first, tree/ll.
        let nothing: &[i64] = if interface == 2 { &[-1, -1, 0] } else { &[0, 0, 0] };
        let expected: [&[i64]; 7] = [&[1, 0, 4], &[4, 2, 16], nothing, &[1, 0, 0], nothing, nothing, nothing];
        // The table is for 2.28; older and newer interfaces refuse it unless NCCL says that it is that.
        if interface == 5 {
            assert_eq!(taken, expected, "v{interface}");
            assert_eq!(answer.lines[2][3], 0, "a closed cell was changed");
        } else {
            assert!(taken.iter().all(|line| *line == nothing), "v{interface}: {taken:?}");
            assert!(answer.log.contains("it is for NCCL 2.28"), "{}", answer.log);
        }
        let told = [variables[0], ("HARNESS_NCCL", "22809")];
        let answer = run(interface, 8, 1, calls, &told);
        let taken: Vec<&[i64]> = answer.lines.iter().map(|line| &line[..3]).collect();
        assert_eq!(taken, expected, "v{interface}");
        assert_eq!(answer.log, "", "v{interface}");
        // 3 is INFO, 2 is WARN.
        assert!(answer.used.starts_with("log 3 TUNER/Collcast: 3 lines in use"), "{}", answer.used);
        let other = run(interface, 16, 2, "4 5 1 0 -1\n", &told);
        assert_eq!(other.lines[0][..3], [1, 2, 2], "v{interface}");
        let none = run(interface, 4, 1, "4 5 1 0 -1\n", &told);
        assert_eq!(&none.lines[0][..3], nothing, "v{interface}");
        assert_eq!(none.log.lines().count(), 1, "{}", none.log);
        let foreign = run(interface, 8, 1, "4 5 1 0 -1\n", &[variables[0], ("HARNESS_NCCL", "22707")]);
        assert_eq!(&foreign.lines[0][..3], nothing, "v{interface}");
        assert!(foreign.log.contains("it is for NCCL 2.28, and this is 2.27"), "{}", foreign.log);
        assert!(foreign.log.starts_with("log 2 ") && none.log.starts_with("log 3 "), "{}{}", foreign.log, none.log);
        // An NCCL that the process cannot see is found by its logger.
        let hidden = [variables[0], ("HARNESS_LIBRARY", built.nccl.to_str().unwrap())];
        let answer = run(interface, 8, 1, "4 65535 1 0 -1\n", &hidden);
        assert_eq!((&answer.lines[0][..3], answer.log.as_str()), (&[1, 0, 4][..], ""), "v{interface}");
    }
}

/// Goal: where the user asks for it no communicator is made whose table cannot be used; one without lines for it is no fault.
#[test]
fn a_strict_job_does_not_start() {
    let built = built();
    let folder = tempfile::tempdir().unwrap();
    let path = table(folder.path(), TABLE.replace("# end: 4 lines\n", "").as_bytes());
    for interface in ALL {
        for (strict, ranks, code) in [("1", 8, 5), ("0", 8, 0)] {
            let variables = [("COLLCAST_TUNER_TABLE", path.as_str()), ("COLLCAST_TUNER_STRICT", strict)];
            let output =
                raw(built, interface, (ranks, 1), "", &[&variables[..], &[("HARNESS_NCCL", "22809")]].concat());
            let log = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "v{interface}: {log}");
            assert!(log.contains("its last line, `# end:`, is not there"), "v{interface}: {log}");
        }
    }
    let path = table(folder.path(), TABLE.as_bytes());
    let variables =
        [("COLLCAST_TUNER_TABLE", path.as_str()), ("COLLCAST_TUNER_STRICT", "1"), ("HARNESS_NCCL", "22809")];
    assert_eq!(raw(built, 5, (4, 1), "", &variables).status.code(), Some(0));
}

/// Goal: a line is not used for what NCCL would not take for the sake of the result: rings that add FP8 over more than 8 ranks.
/// Nor, through v2, where costs do not say so, for what NCCL does not have.
#[test]
fn what_nccl_avoids_is_not_taken() {
    let folder = tempfile::tempdir().unwrap();
    let text = "allreduce,0,99,ring,ll,2,-1,-1\nallgather,0,99,ring,ll,2,-1,-1\n";
    let path = table(folder.path(), text.as_bytes());
    for interface in 3..=6 {
        for (ranks, factor, taken) in [(16, "1", [1, 1]), (16, "1024", [0, 1]), (8, "1024", [1, 1])] {
            let variables = [("COLLCAST_TUNER_TABLE", path.as_str()), ("HARNESS_RING", factor)];
            let answer = run(interface, ranks, 2, "4 5 1 0 -1\n2 5 1 0 -1\n", &variables);
            assert_eq!([answer.lines[0][0], answer.lines[1][0]], taken, "v{interface} {ranks} {factor}");
        }
    }
    let text = "broadcast,0,99,tree,ll,2,-1,-1\nallreduce,0,9,nvls,ll,2,-1,-1\nallgather,0,99,nvls_tree,simple,2,-1,-1\n\
        allreduce,10,19,nvls_tree,simple,2,-1,-1\nallgather,100,199,nvls,simple,2,-1,-1\nallreduce,20,29,tree,ll,2,-1,-1\n";
    let path = table(folder.path(), text.as_bytes());
    let calls = "0 5 1 0 -1\n4 5 1 0 -1\n2 5 1 0 -1\n4 15 1 0 -1\n2 150 1 0 -1\n4 25 1 0 -1\n";
    for (nodes, taken) in [(1, [-1, -1, -1, -1, 4, 0]), (2, [-1, -1, -1, 5, -1, 0])] {
        let answer = run(2, 8, nodes, calls, &[("COLLCAST_TUNER_TABLE", path.as_str())]);
        assert_eq!(answer.lines.iter().map(|line| line[0]).collect::<Vec<_>>(), taken, "{nodes} hosts");
    }
    // What NCCL 2.21 knows of paths and NICs it does not tell: LL128, and gathers across hosts by switches.
    let text = "allreduce,0,9,ring,ll128,2,-1,-1\nallreduce,0,9,ring,ll,3,-1,-1\nallreduce,10,19,tree,ll128,2,-1,-1\n\
        allgather,0,9,nvls,simple,2,-1,-1\nreducescatter,0,9,collnet_direct,simple,2,-1,-1\nallreduce,20,29,nvls,simple,2,-1,-1\n";
    let path = table(folder.path(), text.as_bytes());
    let variables = [("COLLCAST_TUNER_TABLE", path.as_str()), ("HARNESS_COLLNET", "1")];
    let answer = run(2, 16, 2, "4 5 1 0 -1\n4 15 1 0 -1\n2 5 1 0 -1\n3 5 1 0 -1\n4 25 1 0 -1\n", &variables);
    let taken: Vec<&[i64]> = answer.lines.iter().map(|line| &line[..3]).collect();
    let nothing: &[i64] = &[-1, -1, 0];
    assert_eq!(taken, [&[1, 0, 3][..], nothing, nothing, nothing, &[4, 2, 0]]);
}

/// Goal: NCCL is told no channels for what switches of the network reduce, which it would start beyond those that it has.
#[test]
fn channels_of_collnet_are_left_to_nccl() {
    let folder = tempfile::tempdir().unwrap();
    let path = table(folder.path(), b"allreduce,0,9,collnet_chain,simple,64,-1,-1\nallreduce,10,19,ring,ll,64,-1,-1\n");
    for interface in ALL {
        let variables = [("COLLCAST_TUNER_TABLE", path.as_str()), ("HARNESS_COLLNET", "1")];
        let answer = run(interface, 16, 2, "4 5 1 0 -1\n4 15 1 0 -1\n", &variables);
        let taken: Vec<&[i64]> = answer.lines.iter().map(|line| &line[..3]).collect();
        assert_eq!(taken, [&[3, 2, 0][..], &[1, 0, 64]], "v{interface}");
    }
}

/// Goal: a byte-order mark, as editors on Windows write it, hides nothing of the first line; other encodings are refused.
#[test]
fn a_byte_order_mark_is_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let text = "allreduce,0,9,ring,ll,3,-1,-1\n";
    let wide: Vec<u8> = format!("\u{feff}{text}").encode_utf16().flat_map(u16::to_le_bytes).collect();
    for (bytes, channels) in [(format!("\u{feff}{text}").into_bytes(), 3), (wide, 0)] {
        let path = table(folder.path(), &bytes);
        let answer = run(4, 16, 2, "4 5 1 0 -1\n", &[("COLLCAST_TUNER_TABLE", path.as_str())]);
        assert_eq!(answer.lines[0][2], channels, "{}", answer.log);
    }
}

/// Goal: NVLink domains pick among lines where NCCL says them, which it does from v5 on; a table that was measured on
/// another kind of host is refused with one line of the log, and one that was measured with other NICs is used with one.
#[test]
fn domains_and_hosts_count() {
    let folder = tempfile::tempdir().unwrap();
    let text = "# ranks of a domain: 8 to 8\nallreduce,0,9,ring,ll,1,2,16\n\
        # ranks of a domain: 4 to 12\nallreduce,0,9,ring,ll,2,2,16\n";
    let path = table(folder.path(), text.as_bytes());
    for interface in ALL {
        for (domains, channels) in [("2,8,8", 1), ("2,4,12", 2), ("2,6,10", 0), ("0,0,0", 1)] {
            let variables = [("COLLCAST_TUNER_TABLE", path.as_str()), ("HARNESS_DOMAINS", domains)];
            let answer = run(interface, 16, 2, "4 5 1 0 -1\n", &variables);
            let expected = if interface < 5 { 1 } else { channels };
            assert_eq!(answer.lines[0][2], expected, "v{interface} {domains}: {}", answer.log);
            assert_eq!(answer.log.lines().count(), usize::from(expected == 0), "v{interface}: {}", answer.log);
        }
    }
    let own = collcast_tuner::host::Host::here();
    for part in collcast_tuner::host::PARTS {
        let text = format!("# for: {part}=99xffff\n{text}# end: 2 lines\n");
        let path = table(folder.path(), text.as_bytes());
        let answer = run(5, 16, 2, "4 5 1 0 -1\n", &[("COLLCAST_TUNER_TABLE", path.as_str())]);
        let (channels, says) = match own.part(part) {
            // What this host has none of does not tell it apart.
            None => (1, ""),
            Some(_) if part == collcast_tuner::host::NICS => (1, "used, though it was measured with nics 99xffff"),
            Some(_) => (0, "another kind of host"),
        };
        assert!(answer.lines[0][2] == channels && answer.log.contains(says), "{}", answer.log);
        assert_eq!(answer.log.lines().count(), usize::from(!says.is_empty()), "{}", answer.log);
    }
}

/// Goal: a library without variables, or one that names what is not there, leaves NCCL alone with one line of the log.
#[test]
fn what_is_missing_breaks_nothing() {
    let folder = tempfile::tempdir().unwrap();
    // A pipe that nobody reads holds up who opens it.
    let pipe = folder.path().join("pipe").display().to_string();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for interface in ALL {
        let nothing: &[i64] = if interface == 2 { &[-1, -1, 0] } else { &[0, 0, 0] };
        for (variables, lines) in [
            (&[][..], 0),
            (&[("COLLCAST_TUNER_TABLE", "/nowhere/x.csv")][..], 1),
            (&[("COLLCAST_TUNER_TABLE", "/dev/zero")][..], 1),
            (&[("COLLCAST_TUNER_NEXT", "none")][..], 0),
            (&[("COLLCAST_TUNER_NEXT", "/nowhere/x.so")][..], 1),
            (&[("COLLCAST_TUNER_RECORD", "/nowhere/x.csv")][..], 1),
            (&[("COLLCAST_TUNER_RECORD", pipe.as_str())][..], 1),
        ] {
            let answer = run(interface, 8, 1, "4 5 1 0 -1\n", variables);
            assert_eq!(&answer.lines[0][..3], nothing, "v{interface} {variables:?}");
            assert_eq!(answer.log.lines().count(), lines, "v{interface} {variables:?}: {}", answer.log);
        }
    }
}

/// Goal: the tuner before answers where the table has no line, whatever its interface; chunks are its own; one that is
/// this plugin is refused.
#[test]
fn the_next_tuner_is_asked() {
    let built = built();
    let folder = tempfile::tempdir().unwrap();
    let path = table(folder.path(), TABLE.as_bytes());
    for interface in ALL {
        let nothing: &[i64] = if interface == 2 { &[-1, -1, 0] } else { &[0, 0, 0] };
        for (of, next) in ALL.iter().zip(&built.others) {
            let next = next.to_str().unwrap();
            let variables =
                [("COLLCAST_TUNER_TABLE", path.as_str()), ("COLLCAST_TUNER_NEXT", next), ("HARNESS_NCCL", "22809")];
            let answer = run(interface, 8, 1, "4 5 1 0 -1\n0 5 1 0 -1\n0 5 1 0 2\n", &variables);
            assert_eq!(answer.lines[0][..3], [1, 0, 4], "v{interface} over v{of}");
            // New interfaces give constants that old ones lack, and v2 has no costs.
            let served = match interface {
                2 => *of == 2,
                3 | 4 => *of <= 4,
                _ => true,
            };
            let expected: &[i64] = if served { &[0, 2, 3] } else { nothing };
            assert_eq!(&answer.lines[1][..3], expected, "v{interface} over v{of}: {}", answer.log);
            assert_eq!(answer.log.is_empty(), served, "v{interface} over v{of}: {}", answer.log);
            let chunk = if interface == 6 && *of == 6 { "chunk 12345" } else { "chunk 4096" };
            assert_eq!(answer.chunk, chunk, "v{interface} over v{of}");
        }
        let own = built.library.to_str().unwrap();
        let answer = run(interface, 8, 1, "4 5 1 0 -1\n", &[("COLLCAST_TUNER_NEXT", own)]);
        assert!(answer.log.contains("is this plugin"), "v{interface}: {}", answer.log);
    }
}

/// Goal: what was asked and chosen is in the record, a line a call.
#[test]
fn calls_are_recorded() {
    let built = built();
    let folder = tempfile::tempdir().unwrap();
    let path = table(folder.path(), TABLE.as_bytes());
    let record = folder.path().join("record.csv");
    let variables = [
        ("COLLCAST_TUNER_TABLE", path.as_str()),
        ("COLLCAST_TUNER_RECORD", record.to_str().unwrap()),
        ("COLLCAST_TUNER_NEXT", built.others[2].to_str().unwrap()),
    ];
    // Ranks that start at once share the file.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| run(5, 8, 1, "4 8 1 0 -1\n0 16 2 1 -1\n", &variables));
        }
    });
    let text = std::fs::read_to_string(record).unwrap();
    let header = collcast_tuner::record::HEADER;
    assert!(text.starts_with(header) && text.matches(header).count() == 1, "{text}");
    let pids = |begin: &str| -> std::collections::BTreeSet<&str> {
        text.lines().filter_map(|line| line.strip_prefix(begin)).collect()
    };
    assert_eq!(pids("c0ffee,8,1,allreduce,8,1,0,table,ring,ll,4,").len(), 4, "{text}");
    assert_eq!(pids("c0ffee,8,1,broadcast,16,2,1,next,tree,simple,3,").len(), 4, "{text}");
}

/// Goal: no table breaks the job: the answer is one of the table's or NCCL's own, and closed cells stay closed.
/// Method: the table with bytes overwritten, cut out, doubled, and cut off.
#[test]
fn corrupt_tables_break_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let seconds = std::env::var("COLLCAST_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(seconds);
    // A generator of numbers that is the same everywhere: Knuth's, in MMIX.
    let mut state = 20_261_125_u64;
    let mut next = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below.max(1)
    };
    let mut runs = 0;
    while runs < 100 || std::time::Instant::now() < until {
        let mut bytes = TABLE.as_bytes().to_vec();
        for _ in 0..=next(4) {
            let at = next(bytes.len());
            let end = (at + next(30)).min(bytes.len());
            match next(4) {
                0 => bytes.truncate(at),
                1 => drop(bytes.drain(at..end)),
                2 => bytes.extend_from_within(at..end),
                _ => bytes[at..end].fill(b"9-,\n#\0\xffx"[next(8)]),
            }
            if bytes.is_empty() {
                break;
            }
        }
        let path = table(folder.path(), &bytes);
        let variables = [("COLLCAST_TUNER_TABLE", path.as_str()), ("HARNESS_NCCL", "22809")];
        let answer = run(ALL[runs % 5], 8, 1, "4 5 1 0 3\n4 70000 1 0 -1\n2 9 1 1 -1\n", &variables);
        for line in &answer.lines {
            assert!(
                (-1..7).contains(&line[0]) && (-1..3).contains(&line[1]) && (0..=64).contains(&line[2]),
                "{line:?}"
            );
        }
        if runs % 5 > 0 {
            assert!(answer.lines[0][..2] != [1, 0], "a closed cell was taken: {}", String::from_utf8_lossy(&bytes));
        }
        runs += 1;
    }
}

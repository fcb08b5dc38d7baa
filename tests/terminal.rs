//! Goal: a terminal shows what fits it: lines of its width, bars, colours where they are wanted, how far long answers are;
//! a pipe gets plain text. `--quiet` leaves nothing but errors on stderr.
//!
//! Method: the test holds the other end of a pseudo-terminal.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::common::{collcast, program};

/// Columns of the terminal, and what begins a control sequence.
const WIDTH: u16 = 80;
const ESCAPE: char = '\u{1b}';
/// The first character of the line that erases progress, and a bar.
const BAR: char = '\u{2588}';

/// A command as a user of any terminal runs it, with variables: what the screen gets.
fn on_a_terminal(args: &str, variables: &[(&str, &str)]) -> String {
    let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&screen).unwrap();
    unlockpt(&screen).unwrap();
    tcsetwinsize(&screen, Winsize { ws_row: 50, ws_col: WIDTH, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let name = ptsname(&screen, Vec::new()).unwrap();
    let terminal = File::options().read(true).write(true).open(OsStr::from_bytes(name.as_bytes())).unwrap();
    let mut command = program();
    command.args(args.split(' ')).env("TERM", "xterm-256color");
    // CI is taken for a terminal with colours, whatever TERM says.
    for name in ["CI", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS"] {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied()).stdout(terminal.try_clone().unwrap()).stderr(terminal);
    let mut child = command.spawn().unwrap();
    // Its ends of the terminal are the last: once they are closed, reading ends, on Linux with an error.
    drop(command);
    let mut text = Vec::new();
    let _ = File::from(screen).read_to_end(&mut text);
    child.wait().unwrap();
    String::from_utf8(text).unwrap().replace("\r\n", "\n")
}

/// What stays on the screen of text without colours: what was written over is gone.
fn left(text: &str) -> String {
    text.lines().map(|line| line.rsplit('\r').next().unwrap().trim_start_matches("\u{1b}[2K")).fold(
        String::new(),
        |mut all, line| {
            all.push_str(line);
            all.push('\n');
            all
        },
    )
}

/// Commands that take wide tables, long facts and long verdicts.
const COMMANDS: [&str; 12] = [
    "sweep dgx-h100 --nodes 4 -s 1K:1G:16",
    "simulate h200x4 -s 64M",
    "simulate ddp-buckets",
    "plan llama3-8b --on dgx-h100 --gpus 8 --top 3",
    "validate tests/data/doctor/p2p_disable_1_4.csv",
    "compare examples/compare/before.log examples/compare/after.log",
    "tune h200x2 --measurements tests/data/h200x4/nccl.csv --launch graph",
    "bench --backend host --ranks 2 -s 1K,8K --batches 3",
    "transfer --from gpu:0 --to gpu:9 -s 1G",
    "trace tests/data/trace/ddp_0.json.gz tests/data/trace/ddp_1.json.gz",
    "topo list",
    "profile list",
];

/// Goal: no line is wider than the terminal, unless it is a command to copy or one long word; nothing is left out.
#[test]
fn lines_fit_the_terminal() {
    for args in COMMANDS {
        let text = on_a_terminal(args, &[("NO_COLOR", "1")]);
        let text = left(&text);
        assert!(!text.contains(ESCAPE), "{args}: {text:?}");
        for line in text.lines().filter(|line| line.chars().count() > WIDTH.into()) {
            let (copied, word) = (line.trim_start().starts_with("next: "), line.trim_start_matches(['#', ' ']));
            assert!(copied || !word.contains(' '), "{args}: {line}");
        }
        // Every column of the pipe is a heading or told below the table.
        let words: Vec<&str> = args.split(' ').collect();
        let (_, piped, _) = collcast(&words);
        let all: String = text.split_whitespace().collect();
        let rules: Vec<&str> = piped.lines().collect();
        for pair in rules.windows(2).filter(|pair| pair[1].starts_with("----")) {
            for heading in pair[0].split("   ").map(str::trim).filter(|heading| !heading.is_empty()) {
                for word in heading.split(' ') {
                    assert!(all.contains(word), "{args}: {heading} is not shown");
                }
            }
        }
    }
}

/// Goal: a variable that says no columns says nothing of the width.
#[test]
fn no_columns_are_no_width() {
    let [zero, unset] = [&[("COLUMNS", "0")][..], &[]].map(|columns| on_a_terminal("sweep h200x4 -s 1M", columns));
    assert_eq!(zero, unset);
}

/// Goal: numbers that are compared have bars, the longest of the largest.
#[test]
fn numbers_have_bars() {
    let text = on_a_terminal("sweep dgx-h100 --nodes 4 -s 1K:1G:16", &[("NO_COLOR", "1")]);
    let bars: Vec<usize> = (text.lines().filter(|line| line.contains("GiB") || line.contains("MiB")))
        .map(|line| line.matches(BAR).count())
        .filter(|count| *count > 0)
        .collect();
    assert!(bars.len() >= 3 && bars.is_sorted() && bars.last() == Some(&10), "{text}");
    let (_, piped, _) = collcast(&["sweep", "dgx-h100", "--nodes", "4", "-s", "1K:1G:16"]);
    assert!(!piped.contains(BAR), "{piped}");
}

/// Goal: colours come on a terminal that has them and wants them, and on a pipe only where they are forced.
#[test]
fn colours_are_as_asked_for() {
    let args = "validate tests/data/doctor/p2p_disable_1_4.csv --no-doctor";
    let red = "\u{1b}[31m";
    for (variables, coloured) in [
        (&[][..], true),
        (&[("NO_COLOR", "1")], false),
        (&[("CLICOLOR", "0")], false),
        (&[("TERM", "dumb")], false),
        (&[("NO_COLOR", "1"), ("CLICOLOR_FORCE", "1")], false),
    ] {
        let text = on_a_terminal(args, variables);
        assert_eq!(left(&text).contains(red), coloured, "{variables:?}: {text:?}");
    }
    let piped = |force: bool| {
        let mut command = program();
        command.args(args.split(' ')).env_remove("NO_COLOR");
        if force {
            command.env("CLICOLOR_FORCE", "1");
        }
        let out = command.output().unwrap();
        String::from_utf8([out.stdout, out.stderr].concat()).unwrap()
    };
    assert!(!piped(false).contains(ESCAPE) && piped(true).contains(red));
}

/// Goal: what takes longer than a second says how far it is and how long it will take, on a terminal alone.
#[test]
fn long_answers_say_how_far_they_are() {
    // Half a minute of a core, on any number of them longer than the second from which on it is said.
    let args = "plan llama3-70b --on dgx-h100 --gpus 256";
    let text = on_a_terminal(args, &[("NO_COLOR", "1")]);
    let counted = text.contains("simulating layouts [") && text.contains("%, about ") && text.contains(" left");
    assert!(counted, "{text:?}");
    assert!(!left(&text).contains("about "), "it stays: {text:?}");
    let quiet = on_a_terminal(&format!("{args} --quiet"), &[("NO_COLOR", "1")]);
    assert!(!quiet.contains("simulating"), "{quiet:?}");
    // To a pipe: what writes progress on a terminal.
    let (_, _, err) = collcast(&LONG[1].0.split(' ').collect::<Vec<_>>());
    assert!(!err.contains(LONG[1].1), "{err}");
}

/// Commands that each take a core some seconds, and what they do meanwhile; a faster core sees fewer lines, not none.
const LONG: [(&str, &str); 3] = [
    ("simulate dgx-h100 --nodes 128 -s 1G --collective all_gather --algorithm pat", "simulating the call in a loop ["),
    ("simulate megatron-128", "trying what would help ["),
    ("validate tests/data/published/nebius_h100_2n_allreduce.csv", "looking for the cause ["),
];

/// Goal: one long simulation, the changes of a scenario and the search for a cause say their share and what is left.
#[test]
fn long_simulations_say_how_far_they_are() {
    for (args, doing) in LONG {
        let text = on_a_terminal(args, &[("NO_COLOR", "1")]);
        let counted = |line: &&str| line.contains(doing) && line.contains("%, about ") && line.contains(" left");
        assert!(text.split('\r').any(|line| counted(&line)), "{args}: {doing}: {text:?}");
        assert!(!left(&text).contains("about "), "it stays: {text:?}");
    }
}

/// Goal: `--quiet` means the same everywhere: the same on stdout, nothing on stderr, the same exit code; errors stay.
#[test]
fn quiet_leaves_nothing_but_errors() {
    let more = ["simulate dgx-h100", "lint tests/data/lint/debug.bad.env", "topo show dgx-h100", "self-test"];
    for (index, args) in COMMANDS.into_iter().chain(more).filter(|args| !args.starts_with("bench")).enumerate() {
        let words: Vec<&str> = args.split(' ').collect();
        let loud = collcast(&words);
        let quiet = if index % 2 == 0 { [&["-q"], &words[..]].concat() } else { [&words[..], &["--quiet"]].concat() };
        assert_eq!(collcast(&quiet), (loud.0, loud.1.clone(), String::new()), "{quiet:?}");
        assert!(!loud.2.is_empty() || args == "profile list" || args == "topo list", "{args}");
    }
    for args in [["sweep", "no-such-machine"], ["sweep", "--no-such-option"]] {
        let (code, _, err) = collcast(&[&["-q"], &args[..]].concat());
        assert!(code == 2 && err.contains("no-such"), "{args:?}: {err}");
    }
}

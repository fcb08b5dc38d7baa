//! Goal: a flag means the same in every command that has it: one kind of value, one set of allowed values, one meaning, which
//! is how its help begins. Where it cannot, the reason is below. `docs/flags.md` is the table of all flags, written from
//! what clap knows: `COLLCAST_UPDATE=1` writes it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use clap::{Arg, Command};

const PAGE: &str = "docs/flags.md";

/// Flags that are not the same in a command, with the reason, as the page tells it.
const OTHERWISE: [(&str, &str, &str); 10] = [
    ("--backend", "probe", "a probe asks GPUs or NICs; it runs no calls"),
    ("--format", "bench", "nccl-tests' table is of runs and of forecasts of runs"),
    ("--format", "sweep", "nccl-tests' table is of runs and of forecasts of runs"),
    ("--format", "lint", "SARIF is of findings in files"),
    ("--gpus", "plan", "a plan begins with the GPUs of the job, and hosts follow from them"),
    ("--output", "calibrate", "the profile is written there, and the report is printed all the same"),
    ("--output", "man", "several files are written, into a folder"),
    ("--output", "probe", "several files are written, into a folder"),
    ("--output", "report", "a page is all that is written, and a browser goes by its name"),
    ("--output", "tune", "several files are written, into a folder"),
];

/// Commands that print no report, so that they have no `--format`, with what they print instead.
const NO_REPORT: [(&str, &str); 9] = [
    ("completions", "a script for a shell"),
    ("convert", "an algorithm in the form of another program"),
    ("man", "man pages"),
    ("report", "a page"),
    ("topo draw", "a picture"),
    ("topo import", "a machine: a topology file, or NCCL's XML of a host"),
    ("topo new", "a topology file"),
    ("tune install", "lines for a file of settings"),
    ("tune undo", "a file of settings"),
];

/// One flag of one command.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Flag {
    command: String,
    /// What stands for its value, without what says that there may be several; none of a flag without value.
    value: Option<String>,
    /// The type that it is read as, and the values that it may have.
    read: String,
    /// How its help begins.
    meaning: String,
    /// Its one letter.
    short: Option<char>,
    /// Its name where this is another spelling.
    spelling_of: Option<String>,
}

impl Flag {
    fn of(command: &str, arg: &Arg) -> Self {
        let value = arg.get_action().takes_values().then(|| {
            let names: Vec<&str> =
                arg.get_value_names().unwrap_or_default().iter().map(clap::builder::Str::as_str).collect();
            names.join(" ").split('[').next().unwrap().to_owned()
        });
        let allowed: Vec<String> = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
        Self {
            command: command.to_owned(),
            value,
            read: format!("{:?} {}", arg.get_value_parser().type_id(), allowed.join(" ")),
            meaning: beginning(&arg.get_help().map(ToString::to_string).unwrap_or_default()),
            short: arg.get_short(),
            spelling_of: None,
        }
    }

    fn sets_apart(&self) -> (&Option<String>, &str, &str) {
        (&self.value, &self.read, &self.meaning)
    }
}

/// Help up to where it begins to speak of this command.
fn beginning(help: &str) -> String {
    let ends = [". ", "; ", ": ", " ["].iter().filter_map(|end| help.find(end)).min();
    help[..ends.unwrap_or(help.len())].trim_end_matches('.').to_owned()
}

/// All commands that run something, by the words that name them.
fn commands(of: &Command, path: &str, found: &mut Vec<(String, Command)>) {
    for command in of.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help") {
        let path = format!("{path} {}", command.get_name()).trim_start().to_owned();
        if command.get_arguments().any(|arg| arg.get_id() != "help") {
            found.push((path.clone(), command.clone()));
        }
        commands(command, &path, found);
    }
}

/// The flags by name, and other spellings of them.
fn flags() -> (BTreeMap<String, Vec<Flag>>, BTreeMap<char, BTreeSet<String>>) {
    let mut all = Vec::new();
    commands(&collcast::cli::definition(), "", &mut all);
    assert!(all.len() > 20, "{} commands", all.len());
    let (mut flags, mut shorts) = (BTreeMap::<String, Vec<Flag>>::new(), BTreeMap::<char, BTreeSet<String>>::new());
    for (path, command) in &all {
        for arg in command.get_arguments().filter(|arg| arg.get_id() != "help" && !arg.is_hide_set()) {
            let Some(long) = arg.get_long() else { continue };
            let flag = Flag::of(path, arg);
            for other in arg.get_all_aliases().unwrap_or_default() {
                let spelling_of = Some(format!("--{long}"));
                flags.entry(format!("--{other}")).or_default().push(Flag { spelling_of, ..flag.clone() });
            }
            flags.entry(format!("--{long}")).or_default().push(flag);
            if let Some(short) = arg.get_short() {
                shorts.entry(short).or_default().insert(format!("--{long}"));
            }
        }
    }
    (flags, shorts)
}

fn reason(flag: &str, command: &str) -> Option<&'static str> {
    OTHERWISE.iter().find(|known| (known.0, known.1) == (flag, command)).map(|known| known.2)
}

#[test]
fn a_flag_means_the_same_in_every_command() {
    let (flags, shorts) = flags();
    let mut needed = BTreeSet::new();
    for (name, all) in &flags {
        // Old spellings may be what others are called now.
        let named: Vec<&Flag> = all.iter().filter(|flag| flag.spelling_of.is_none()).collect();
        let Some(first) = named.iter().find(|flag| reason(name, &flag.command).is_none()) else { continue };
        for flag in &named {
            assert!(!flag.meaning.is_empty(), "{name} of {} says not what it is for", flag.command);
            let same = flag.sets_apart() == first.sets_apart();
            match reason(name, &flag.command) {
                Some(_) if !same => _ = needed.insert((name.as_str(), flag.command.as_str())),
                Some(_) => {}
                None => assert!(
                    same,
                    "{name} is not the same in\n  {}: {:?}\n  {}: {:?}",
                    first.command,
                    first.sets_apart(),
                    flag.command,
                    flag.sets_apart()
                ),
            }
        }
    }
    let listed: BTreeSet<(&str, &str)> = OTHERWISE.iter().map(|known| (known.0, known.1)).collect();
    assert_eq!(needed, listed, "flags that are the same need no reason");
    for (short, longs) in &shorts {
        // Where a machine is one of several questions its flag has a name of its own, and both spellings are known.
        let one = longs.len() == 1 || *short == 't';
        assert!(one, "-{short} stands for {longs:?}");
    }
}

/// Goal: every answer can be had in every common format.
#[test]
fn every_command_says_how_to_print() {
    let mut all = Vec::new();
    commands(&collcast::cli::definition(), "", &mut all);
    let formats = |command: &Command| command.get_arguments().any(|arg| arg.get_long() == Some("format"));
    let ends = |command: &Command| command.get_subcommands().all(|inner| inner.get_name() == "help");
    let without: Vec<&str> =
        all.iter().filter(|(_, command)| ends(command) && !formats(command)).map(|(path, _)| path.as_str()).collect();
    let listed: BTreeSet<&str> = NO_REPORT.iter().map(|known| known.0).collect();
    assert_eq!(without.into_iter().collect::<BTreeSet<_>>(), listed);
}

/// The page of all flags.
fn page(flags: &BTreeMap<String, Vec<Flag>>) -> String {
    let mut text = String::from(
        "# Flags\n\nA flag means the same in every command whose `--help` names it, and takes the same values, but for the few\n\
         [below](#not-the-same-everywhere). [Other spellings](#other-spellings) are read in the commands beside them alone. They may be the\n\
         name of something else in others: `--trace` is the timeline of `simulate`, and a file of requests in `serve`. `collcast COMMAND\n\
         --help` says what is special to a command, and its defaults.\n\n\
         Generated by `COLLCAST_UPDATE=1 cargo test --test program flags`.\n",
    );
    let commands = |all: &[&Flag]| {
        let mut names: Vec<&str> = all.iter().map(|flag| flag.command.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
    };
    let line = |name: &str, all: &[&Flag]| {
        let usual = all.iter().find(|flag| reason(name, &flag.command).is_none()).unwrap_or(&all[0]);
        let value = usual.value.as_deref().map_or(String::new(), |value| format!(" {value}").replace('|', "\\|"));
        let short = usual.short.map_or(String::new(), |short| format!("-{short}, "));
        format!("| `{short}{name}{value}` | {} | {} |\n", usual.meaning.replace('|', "\\|"), commands(all))
    };
    let mut tables = [String::new(), String::new()];
    let mut spellings = String::new();
    for (name, all) in flags {
        let named: Vec<&Flag> = all.iter().filter(|flag| flag.spelling_of.is_none()).collect();
        if !named.is_empty() {
            tables[usize::from(named.len() == 1)] += &line(name, &named);
        }
        let mut by_name: BTreeMap<&str, Vec<&Flag>> = BTreeMap::new();
        for flag in all {
            if let Some(of) = &flag.spelling_of {
                by_name.entry(of).or_default().push(flag);
            }
        }
        for (of, all) in by_name {
            writeln!(spellings, "| `{name}` | `{of}` | {} |", commands(&all)).unwrap();
        }
    }
    let head = "| flag | meaning | commands |\n|---|---|---|\n";
    write!(text, "\n## Of several commands\n\n{head}{}", tables[0]).unwrap();
    text += "\n## Not the same everywhere\n\n| flag | command | why |\n|---|---|---|\n";
    for (flag, command, why) in OTHERWISE {
        writeln!(text, "| `{flag}` | `{command}` | {why} |").unwrap();
    }
    text += "\nThese have no `--format`, because they print no report:\n\n| command | prints |\n|---|---|\n";
    for (command, what) in NO_REPORT {
        writeln!(text, "| `{command}` | {what} |").unwrap();
    }
    text += "\n## Other spellings\n\nThey are read too, and no `--help` shows them. Some are names that a flag had before.\n\n";
    write!(text, "| spelling | flag | commands |\n|---|---|---|\n{spellings}").unwrap();
    write!(text, "\n## Of one command\n\n{head}{}", tables[1]).unwrap();
    text
}

/// What a version reads: by command and spelling whether it takes a value, and which values where they are listed.
type Spellings = BTreeMap<String, BTreeMap<String, Option<Vec<String>>>>;

/// Those that `--help` shows, or all of them.
fn spellings(hidden: bool) -> Spellings {
    let mut all = Vec::new();
    commands(&collcast::cli::definition(), "", &mut all);
    let of = |command: &Command| {
        let mut read = BTreeMap::new();
        for arg in command.get_arguments().filter(|arg| hidden || !arg.is_hide_set()) {
            let values = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
            let values = arg.get_action().takes_values().then_some(values);
            let names = arg.get_long().into_iter().chain(arg.get_all_aliases().unwrap_or_default());
            read.extend(names.map(|name| (format!("--{name}"), values.clone())));
            let shorts = arg.get_short().into_iter().chain(arg.get_all_short_aliases().unwrap_or_default());
            read.extend(shorts.map(|name| (format!("-{name}"), values.clone())));
        }
        read
    };
    all.iter().map(|(path, command)| (path.clone(), of(command))).collect()
}

/// Goal: what a version of the last two read is read on: commands, spellings of options, whether they take a value, and values
/// that are listed. Method: a file a version, which is written once and whose lines nobody takes out.
#[test]
fn what_was_read_is_read_on() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/flags");
    let this = folder.join(format!("{}.json", env!("CARGO_PKG_VERSION")));
    if std::env::var_os("COLLCAST_UPDATE").is_some() && !this.exists() {
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(&this, serde_json::to_string_pretty(&spellings(false)).unwrap() + "\n").unwrap();
    }
    assert!(this.exists(), "{} is not there: COLLCAST_UPDATE=1 cargo test --test program flags", this.display());
    let now = spellings(true);
    for file in std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
        let then: Spellings = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        for (command, spellings) in then {
            let read = now.get(&command).unwrap_or_else(|| panic!("{} had the command {command}", file.display()));
            for (name, values) in spellings {
                let place = format!("{name} of {command} in {}", file.display());
                let kept = read.get(&name).unwrap_or_else(|| panic!("{place} is not read any more"));
                assert_eq!(kept.is_some(), values.is_some(), "{place} takes a value, or took one");
                // Where none are listed any more, it takes others too.
                let (kept, values) = (kept.clone().unwrap_or_default(), values.unwrap_or_default());
                let gone: Vec<&String> = values.iter().filter(|value| !kept.contains(value)).collect();
                assert!(kept.is_empty() || gone.is_empty(), "{place} took {gone:?}");
            }
        }
    }
}

/// Goal: the table in the book is that of the program.
#[test]
fn the_page_has_all_flags() {
    let text = page(&flags().0);
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    if std::env::var_os("COLLCAST_UPDATE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(written, text, "{PAGE} is not current: COLLCAST_UPDATE=1 cargo test --test program flags");
}

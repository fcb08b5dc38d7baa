//! `--show-config`: which value each option has, and where it is from.

use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, ValueEnum as _};
use collcast_reports::model::{Cell, Column, Report, Status, Table, Verdict};

use super::super::output::{Format, OutputArgs};
use super::apply::{Found, defaults, found, innermost, named, refused};
use super::file;
use super::known::{FILE, OWN, SHOW, may, options, variable};

/// The value that an option has where it is left out, and where that is from.
type Given = Option<(String, String)>;

/// What `--show-config` prints, and how, where words ask for it.
pub(in super::super) fn shown(all: &Command, words: &[OsString]) -> Option<Result<(Report, OutputArgs), clap::Error>> {
    let matches = all.clone().ignore_errors(true).try_get_matches_from(words).ok()?;
    let here = innermost(&matches);
    if !here.try_get_one::<bool>(SHOW).ok().flatten().copied().unwrap_or(false) {
        return None;
    }
    let (names, command, _) = named(all, words);
    let report = match names.as_slice() {
        [] => whole(all),
        names => of_command(all, command, names, words, here),
    };
    Some(report.and_then(|report| Ok((report, OutputArgs { format: format(words)?, output: None }))))
}

/// What `--format` says, which commands without a report have not.
fn format(words: &[OsString]) -> Result<Option<Format>, clap::Error> {
    let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    let next = words.iter().position(|word| *word == "--format").and_then(|at| words.get(at + 1).copied());
    let joined = words.iter().find_map(|word| word.strip_prefix("--format="));
    let read = |name: &str| {
        let what = format!("`{name}` is no format: take table, csv, json or markdown\n");
        Format::from_str(name, false).map_err(|_| clap::Error::raw(ErrorKind::InvalidValue, what))
    };
    next.or(joined).map(read).transpose()
}

fn report(columns: impl IntoIterator<Item = Column>) -> (Report, Table) {
    let mut report = Report::new("config", env!("CARGO_PKG_VERSION"));
    report.assumptions.push(match file::path() {
        Some(path) => format!("defaults are read from {}", path.display()),
        None => format!("there is no file of defaults: {FILE} names one, else ~/.config/collcast/config.toml is read"),
    });
    (report, Table::new("rows", "", columns))
}

fn verdict(sentence: String) -> Verdict {
    Verdict { status: Status::Ok, sentence, confidence: String::new(), basis: String::new(), next: None }
}

/// All options that may have a default, where one is set or not, with their variables.
fn whole(all: &Command) -> Result<Report, clap::Error> {
    let (mut report, mut table) = report([
        Column::text("option", "option"),
        Column::text("variable", "variable"),
        Column::text("value", "value"),
        Column::text("from", "from"),
        Column::text("commands", "commands"),
    ]);
    let mut commands = Vec::new();
    leaves(all, &mut Vec::new(), &mut commands);
    // Of each option: its defaults, as value and from where, with the commands that have them.
    let mut rows: BTreeMap<&str, BTreeMap<Given, Vec<String>>> = BTreeMap::new();
    for (names, command) in commands {
        let defaults = defaults(all, &names).map_err(|error| refused(&error))?;
        for option in options(command).into_iter().filter_map(Arg::get_long) {
            let default = defaults.get(option).map(|default| (default.values.join(" "), default.from.clone()));
            rows.entry(option).or_default().entry(default).or_default().push(names.join(" "));
        }
    }
    let mut set = 0;
    for (option, of) in rows {
        for (default, commands) in of {
            set += usize::from(default.is_some());
            let (value, from) = default.unzip();
            table.push([option.into(), variable(option).into(), value.into(), from.into(), commands.join(", ").into()]);
        }
    }
    report.tables.push(table);
    report.verdict = Some(verdict(format!("{set} options have a default from a file or a variable")));
    Ok(report)
}

/// Commands without others within them, with the words that name them.
fn leaves<'a>(command: &'a Command, names: &mut Vec<String>, found: &mut Vec<(Vec<String>, &'a Command)>) {
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        names.push(inner.get_name().to_owned());
        if inner.has_subcommands() {
            leaves(inner, names, found);
        }
        if inner.get_arguments().any(may) {
            found.push((names.clone(), inner));
        }
        names.pop();
    }
}

/// The options of one command with their values.
fn of_command(
    all: &Command,
    command: &Command,
    names: &[String],
    words: &[OsString],
    here: &ArgMatches,
) -> Result<Report, clap::Error> {
    let (mut report, mut table) =
        report([Column::text("option", "option"), Column::text("value", "value"), Column::text("from", "from")]);
    // Without what is missing or does not go together: only where values are from is asked.
    let bare: Vec<OsString> = words.iter().take(1).cloned().chain(names.iter().map(OsString::from)).collect();
    let lenient = all.clone().ignore_errors(true);
    let Found { taken, .. } = match found(lenient, words.to_vec(), false) {
        Ok(found) => found,
        Err(_) => found(all.clone().ignore_errors(true), bare, false)?,
    };
    for arg in command.get_arguments().filter(|arg| !OWN.contains(&arg.get_id().as_str())) {
        let Some(long) = arg.get_long().filter(|long| *long != "help" && *long != "version") else { continue };
        let id = arg.get_id().as_str();
        let said = here.value_source(id) == Some(ValueSource::CommandLine);
        let raw = here.get_raw(id).into_iter().flatten().map(|value| value.to_string_lossy().into_owned());
        let built_in: Vec<String> = arg.get_default_values().iter().map(|v| v.to_string_lossy().into_owned()).collect();
        let default = taken.iter().find(|default| default.option == long);
        let (value, from): (Cell, Cell) = match (said, default) {
            (true, _) => (raw.collect::<Vec<_>>().join(" ").into(), "command line".into()),
            (false, Some(default)) => (default.values.join(" ").into(), default.from.as_str().into()),
            (false, None) if built_in.is_empty() => (Cell::Missing, Cell::Missing),
            (false, None) => (built_in.join(" ").into(), "built in".into()),
        };
        table.push([format!("--{long}").into(), value, from]);
    }
    report.tables.push(table);
    report.verdict = Some(verdict(format!(
        "{} options of `{}` have a default from a file or a variable",
        taken.len(),
        names.join(" ")
    )));
    Ok(report)
}

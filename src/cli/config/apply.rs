//! What words say, with defaults in place of what they leave out.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use collcast::Error;
use collcast_sim::collective::nearest;

use super::super::output::may_write;
use super::file;
use super::known::{Default, OTHERS, PREFIX, has_none, may, options, variable};

/// Commands that shells and packages run: no default changes what they write.
const WITHOUT: [&str; 2] = ["completions", "man"];

/// What words say, with defaults in place of what they leave out.
pub(in super::super) struct Found {
    pub(in super::super) matches: ArgMatches,
    /// The defaults that were taken.
    pub(in super::super) taken: Vec<Default>,
    /// Options, with dashes, that are given as words because others need them, and that nobody named.
    pub(in super::super) unnamed: BTreeSet<String>,
}

/// The words that name a command, such as `topo`, `show`; the command, and where its options begin.
pub(super) fn named<'a>(all: &'a Command, words: &[OsString]) -> (Vec<String>, &'a Command, usize) {
    let (mut names, mut command) = (Vec::new(), all);
    let mut at = words.iter().skip(1).take_while(|word| word.to_string_lossy().starts_with('-')).count() + 1;
    while let Some(inner) = words.get(at).and_then(|word| command.find_subcommand(word)) {
        names.push(inner.get_name().to_owned());
        (command, at) = (inner, at + 1);
    }
    (names, command, at)
}

/// The defaults of a command, by option: those of variables in place of those of the file.
pub(super) fn defaults(all: &Command, names: &[String]) -> Result<BTreeMap<String, Default>, Error> {
    let of_file = file::defaults(all, names)?;
    let mut found: BTreeMap<String, Default> = of_file.into_iter().map(|one| (one.option.clone(), one)).collect();
    for option in options(all).into_iter().filter_map(Arg::get_long) {
        let set = variable(option).and_then(|from| Some((std::env::var_os(&from)?, from)));
        let Some((value, from)) = set else { continue };
        if value.is_empty() {
            // None, whatever the file says.
            found.remove(option);
            continue;
        }
        let value = value.into_string().map_err(|_| Error::usage(format!("{from} is no text"), "write it in UTF-8"))?;
        found.insert(option.to_owned(), Default { option: option.to_owned(), values: vec![value], from, rank: 0 });
    }
    Ok(found)
}

/// Variables that look like defaults and are none, with what is meant.
pub(in super::super) fn misspelt(all: &Command) -> Vec<String> {
    let known: BTreeSet<String> = options(all).into_iter().filter_map(|arg| variable(arg.get_long()?)).collect();
    let ours = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let strange =
        ours.filter(|name| name.starts_with(PREFIX) && !OTHERS.contains(&name.as_str()) && !known.contains(name));
    let told = |name: String| {
        let option = name[PREFIX.len()..].replace('_', "-").to_lowercase();
        if has_none(&option) {
            return Some(format!("{name} sets nothing: --{option} is given each time"));
        }
        // The beginning that all share makes none alike.
        let own = &name[PREFIX.len()..];
        let near = nearest(own, known.iter().map(|one| &one[PREFIX.len()..]))?;
        // Nobody misses the first letter; names of others are short.
        let meant = near.starts_with(own.chars().next()?);
        meant.then(|| format!("{name} sets nothing: did you mean {PREFIX}{near}?"))
    };
    strange.filter_map(told).collect()
}

/// The options that words name, of the innermost command.
fn explicit(matches: &ArgMatches) -> BTreeSet<String> {
    if let Some((_, inner)) = matches.subcommand() {
        return explicit(inner);
    }
    let named = |id: &&clap::Id| matches.value_source(id.as_str()) == Some(ValueSource::CommandLine);
    // A route of three words begins with its machine.
    let route = matches.try_get_raw("route").ok().flatten().is_some_and(|words| words.len() == 3);
    let machine = route.then(|| "topology".to_owned());
    matches.ids().filter(named).map(|id| id.as_str().to_owned()).chain(machine).collect()
}

/// Reads words, with defaults. A program that asks has no use for `format`.
pub(in super::super) fn found(all: Command, words: Vec<OsString>, asked: bool) -> Result<Found, clap::Error> {
    let (names, command, place) = named(&all, &words);
    // Before the file is read: its errors are no answer to a question for help or version.
    let given = explicit(&all.clone().ignore_errors(true).try_get_matches_from(&words)?);
    let without = command.is_hide_set() || names.first().is_some_and(|name| WITHOUT.contains(&name.as_str()));
    let mut defaults =
        if without { BTreeMap::new() } else { defaults(&all, &names).map_err(|error| refused(&error))? };
    let arg_of = |option: &str| command.get_arguments().find(|arg| arg.get_long() == Some(option));
    let apart = |arg: &Arg, other: &Arg| {
        let refuses = |a: &Arg, b: &Arg| command.get_arg_conflicts_with(a).iter().any(|one| one.get_id() == b.get_id());
        refuses(arg, other) || refuses(other, arg)
    };
    let conflicts = |arg: &Arg| {
        let named = |other: &&Arg| given.contains(other.get_id().as_str());
        command.get_arguments().filter(named).any(|other| apart(arg, other))
    };
    defaults.retain(|option, _| {
        // The name of a file says how it is written.
        let format = option == "format" && (asked || given.contains("output"));
        !format
            && arg_of(option).is_some_and(|arg| may(arg) && !given.contains(arg.get_id().as_str()) && !conflicts(arg))
    });
    // Of two that do not go together the stronger one stays.
    let ranks: Vec<(&Arg, usize)> =
        defaults.values().filter_map(|one| Some((arg_of(&one.option)?, one.rank))).collect();
    defaults.retain(|option, one| {
        let stronger =
            |other: &(&Arg, usize)| other.1 < one.rank && arg_of(option).is_some_and(|arg| apart(arg, other.0));
        !ranks.iter().any(stronger)
    });
    for default in defaults.values_mut() {
        if let Some(arg) = arg_of(&default.option) {
            default.values = checked(arg, default).map_err(|error| refused(&error))?;
        }
    }
    let ids: BTreeMap<String, String> = (defaults.keys())
        .filter_map(|option| Some((option.clone(), arg_of(option)?.get_id().as_str().to_owned())))
        .collect();
    let all = with(all, &names, &ids, &defaults);
    let (mut words, mut unnamed) = (words, BTreeSet::new());
    let matches = loop {
        match all.clone().try_get_matches_from(&words) {
            Ok(matches) => break matches,
            Err(error) => {
                let needed =
                    defaults.values().find(|one| !unnamed.contains(&one.option) && is_missing(&error, &one.option));
                let Some(needed) = needed else { return Err(error) };
                // What an option needs is there, and clap counts only what is given.
                let given = needed.values.iter().map(|value| format!("--{}={value}", needed.option).into());
                words.splice(place..place, given);
                unnamed.insert(needed.option.clone());
            }
        }
    };
    may_write(named(&all, &words).1, innermost(&matches)).map_err(|error| refused(&error))?;
    let source = |option: &String| innermost(&matches).value_source(&ids[option]);
    let taken =
        |one: &&Default| unnamed.contains(&one.option) || source(&one.option) == Some(ValueSource::DefaultValue);
    let taken = defaults.values().filter(taken).cloned().collect();
    let unnamed = unnamed.iter().map(|option| format!("--{}", ids[option].replace('_', "-"))).collect();
    Ok(Found { matches, taken, unnamed })
}

fn without_head(text: &str) -> &str {
    text.strip_prefix("error: ").unwrap_or(text)
}

/// An error as clap tells its own.
pub(super) fn refused(error: &Error) -> clap::Error {
    clap::Error::raw(ErrorKind::ValueValidation, format!("{}\n", without_head(&error.render())))
}

pub(super) fn innermost(matches: &ArgMatches) -> &ArgMatches {
    matches.subcommand().map_or(matches, |(_, inner)| innermost(inner))
}

/// Whether words are refused because an option is not given.
fn is_missing(error: &clap::Error, option: &str) -> bool {
    let missing = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(missing)) => missing.as_slice(),
        _ => &[],
    };
    let is = |text: &String| text.split([' ', '=', '[']).next() == Some(&format!("--{option}"));
    error.kind() == ErrorKind::MissingRequiredArgument && missing.iter().any(is)
}

/// The values of a default as its option takes them.
fn checked(arg: &Arg, default: &Default) -> Result<Vec<String>, Error> {
    let (name, from) = (format!("--{}", default.option), &default.from);
    if !arg.get_action().takes_values() {
        return match default.values.as_slice() {
            [one] if matches!(one.as_str(), "true" | "1" | "yes") => Ok(vec!["true".to_owned()]),
            [one] if matches!(one.as_str(), "false" | "0" | "no" | "") => Ok(vec!["false".to_owned()]),
            _ => Err(Error::usage(format!("{from}: {name} is yes or no"), "give true or false")),
        };
    }
    let values: Vec<String> = match arg.get_value_delimiter() {
        Some(delimiter) => default.values.iter().flat_map(|all| all.split(delimiter)).map(str::to_owned).collect(),
        // Lists are joined as people write them, where an option is given once.
        None if !matches!(arg.get_action(), ArgAction::Append) => vec![default.values.join(",")],
        None => default.values.clone(),
    };
    let lone = Arg::new("value").value_parser(arg.get_value_parser().clone()).allow_hyphen_values(true);
    let command = Command::new("collcast").no_binary_name(true).disable_help_flag(true).arg(lone);
    for value in &values {
        if let Err(error) = command.clone().try_get_matches_from([value]) {
            let text = error.to_string().replace("'[value]'", &format!("'{name}'"));
            let what = without_head(text.split("\n\nFor more").next().unwrap_or_default().trim_end());
            return Err(Error::usage(
                format!("{from}: {what}"),
                format!("`collcast --help` of the command says what {name} takes"),
            ));
        }
    }
    Ok(values)
}

/// The commands with defaults in the one that words name.
fn with(
    command: Command,
    names: &[String],
    ids: &BTreeMap<String, String>,
    defaults: &BTreeMap<String, Default>,
) -> Command {
    match names {
        [first, rest @ ..] => command.mut_subcommand(first, |inner| with(inner, rest, ids, defaults)),
        [] => defaults.values().fold(command, |command, default| {
            let values = default.values.clone();
            command.mut_arg(&ids[&default.option], |arg| arg.default_values(values))
        }),
    }
}

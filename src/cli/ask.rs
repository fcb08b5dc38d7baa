//! Commands for programs: options by name, and the answer as data.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use clap::{Arg, ArgAction, Command, CommandFactory as _};
use collcast_sim::collective::nearest;
use rayon::ThreadPoolBuilder;

use super::call::{self, Answer, NO_PROGRAM};
use super::config;
use super::program::{Cli, Parsed, parsed, run};
use collcast::Error;

/// Stack of a thread that answers: as large as that of a program.
const STACK: usize = 8 << 20;
/// The process that asked first: Rayon's threads are in it, and not in what it forks.
static FIRST: OnceLock<u32> = OnceLock::new();

/// A value of an option.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// A flag is given, or left out.
    Flag(bool),
    /// A value as the command line takes it.
    Text(String),
    /// Several of them.
    Many(Vec<String>),
}

/// An option of a command, or a value without a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice {
    /// Its name with underscores, such as `next_runs`.
    pub name: String,
    /// It has no name on the command line, only a place.
    pub positional: bool,
    /// What it takes.
    pub takes: Takes,
    /// What it is for.
    pub help: String,
}

/// What an option takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Takes {
    /// Nothing.
    Flag,
    /// One value, or several joined by commas.
    Value,
    /// One value or several, each by itself.
    Values,
}

/// All commands with their options, as clap has them.
pub fn definition() -> Command {
    let mut all = Cli::command();
    all.build();
    all
}

/// The commands, in the order of `collcast --help`.
pub fn commands() -> Vec<String> {
    let shown = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
    Cli::command().get_subcommands().filter(shown).map(|command| command.get_name().to_owned()).collect()
}

fn command(name: &str) -> Result<Command, Error> {
    let (all, name) = (Cli::command(), name.replace('_', "-"));
    all.find_subcommand(&name)
        .filter(|found| !found.is_hide_set())
        .cloned()
        .ok_or_else(|| Error::usage(format!("there is no command `{name}`"), "`collcast --help` lists them"))
}

fn takes(arg: &Arg) -> Takes {
    match arg.get_action() {
        ArgAction::SetTrue | ArgAction::SetFalse | ArgAction::Count => Takes::Flag,
        ArgAction::Append => Takes::Values,
        _ => Takes::Value,
    }
}

/// The named options of commands within a command, each once, without those that it has itself.
fn inner(command: &Command) -> Vec<&Arg> {
    let within = command.get_subcommands().flat_map(|inner| inner.get_arguments().chain(self::inner(inner)));
    let mut named: Vec<&Arg> = Vec::new();
    for arg in within.filter(|arg| arg.get_long().is_some()) {
        if command.get_arguments().chain(named.iter().copied()).all(|known| known.get_long() != arg.get_long()) {
            named.push(arg);
        }
    }
    named
}

/// What a command can be asked with, and the commands within it.
///
/// # Errors
/// A command that does not exist.
pub fn choices(name: &str) -> Result<Vec<Choice>, Error> {
    let command = command(name)?;
    let choice = |arg: &Arg| {
        let named = arg.get_long().unwrap_or(arg.get_id().as_str());
        Choice {
            name: named.replace('-', "_"),
            positional: arg.is_positional(),
            takes: takes(arg),
            help: arg.get_help().map(ToString::to_string).unwrap_or_default(),
        }
    };
    let shown = |arg: &&Arg| !arg.is_hide_set() && arg.get_id() != "help";
    Ok(command.get_arguments().chain(inner(&command)).filter(shown).map(choice).collect())
}

/// What a command is for, in a line.
///
/// # Errors
/// A command that does not exist.
pub fn about(name: &str) -> Result<String, Error> {
    Ok(command(name)?.get_about().map(ToString::to_string).unwrap_or_default())
}

/// The words of a command with options by name. Values come behind them, but for the name of a command within it, such as
/// `list` of `topo`.
///
/// # Errors
/// A command or an option that does not exist, or a value that the option does not take.
pub fn words(name: &str, values: &[String], options: &[(String, Value)]) -> Result<Vec<OsString>, Error> {
    let mut command = command(name)?;
    let mut words: Vec<OsString> = vec!["collcast".into(), command.get_name().into()];
    let mut values = values;
    while let Some((first, rest)) = values.split_first()
        && let Some(inner) = command.find_subcommand(first)
    {
        words.push(first.into());
        (command, values) = (inner.clone(), rest);
    }
    let gives = |name| options.iter().any(|(option, value)| option == name && *value != Value::Flag(false));
    let knows = |name| command.get_arguments().any(|arg| arg.get_long() == Some(name));
    if gives("format") && !gives("output") && knows("format") {
        return Err(Error::usage(
            format!("`format` of `{name}` says how a file is written, and there is no `output`"),
            "leave it out: the answer is data, and saved by the ending of a file's name",
        ));
    }
    for (option, value) in options {
        let long = option.replace('_', "-");
        let is = |arg: &&Arg| {
            let aliases = arg.get_all_aliases().unwrap_or_default();
            arg.get_long() == Some(long.as_str()) || aliases.contains(&long.as_str())
        };
        let arg = command.get_arguments().find(is).ok_or_else(|| {
            let known: Vec<String> =
                command.get_arguments().filter_map(Arg::get_long).map(|l| l.replace('-', "_")).collect();
            let near = nearest(option, known.iter().map(String::as_str));
            let hint = near.map_or_else(
                || format!("`collcast {name} --help` lists them"),
                |near| format!("did you mean `{near}`?"),
            );
            Error::usage(format!("`{name}` has no option `{option}`"), hint)
        })?;
        match (takes(arg), value) {
            (_, Value::Flag(false)) => {}
            (Takes::Flag, Value::Flag(true)) => words.push(format!("--{long}").into()),
            (Takes::Flag, _) => {
                return Err(Error::usage(format!("`{option}` of `{name}` is yes or no"), "give True, or leave it out"));
            }
            (_, Value::Flag(true)) => {
                return Err(Error::usage(format!("`{option}` of `{name}` takes a value"), "give it in place of True"));
            }
            (_, Value::Text(text)) => words.push(format!("--{long}={text}").into()),
            (Takes::Values, Value::Many(many)) => words.extend(many.iter().map(|one| format!("--{long}={one}").into())),
            (Takes::Value, Value::Many(many)) => words.push(format!("--{long}={}", many.join(",")).into()),
        }
    }
    // What looks like an option is a value there.
    words.extend((!values.is_empty()).then(|| "--".into()));
    words.extend(values.iter().map(OsString::from));
    Ok(words)
}

/// Answers a command as a program wants it: reports as `--format json` has them, and no text on stdout or stderr. `program`
/// is what to start where a command needs processes of its own; a set `stop` ends what can be ended. A process that was
/// forked from one that asked may ask too.
///
/// # Errors
/// Of the command; what clap says of words that are none.
pub fn ask(words: Vec<OsString>, program: Option<PathBuf>, stop: Arc<AtomicBool>) -> Result<Answer, Error> {
    let here = std::process::id();
    if *FIRST.get_or_init(|| here) == here {
        return answer(words, program, stop);
    }
    // A pool for each call: in one for several, a call that waits would take up another on its own thread.
    let pool = ThreadPoolBuilder::new().stack_size(STACK).build().map_err(|error| Error::Exec {
        code: 3,
        message: format!("cannot start threads: {error}"),
        hint: Some("raise the number of processes that may run: ulimit -u".to_owned()),
    })?;
    pool.install(|| answer(words, program, stop))
}

fn answer(words: Vec<OsString>, program: Option<PathBuf>, stop: Arc<AtomicBool>) -> Result<Answer, Error> {
    let Parsed { cli, given, taken } = parsed(&words, true).map_err(|error| Error::Usage {
        message: error.to_string().trim_start_matches("error: ").trim_end().to_owned(),
        hint: None,
    })?;
    let (result, answer) = call::by_program(words, program, stop, || {
        call::with_defaults(taken);
        config::misspelt(&Cli::command()).iter().for_each(|line| say!("warning: {line}"));
        let result = run(cli, &given);
        call::untold().iter().for_each(|line| say!("note: {line}"));
        result
    });
    Ok(Answer { code: result.map_err(with_way_out)?.0, ..answer })
}

/// An error that says what is missing, where nothing was named to start.
fn with_way_out(error: Error) -> Error {
    if !error.render().contains(NO_PROGRAM) {
        return error;
    }
    Error::Exec {
        code: 3,
        message: "this needs processes of its own, and the program `collcast` is not there to start them".to_owned(),
        hint: Some("install the wheel with pip, which puts the script `collcast` beside python".to_owned()),
    }
}

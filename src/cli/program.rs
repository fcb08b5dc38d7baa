//! The program: its commands, and how it runs them for a shell.

use std::ffi::OsString;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use clap::error::{ContextKind, ErrorKind};
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use collcast_sim::text::{is_shown, one_line};

use super::call::{self, Code};
use super::config::{self, Default, Found};
use super::scenario::expand;
use super::selectors::Named;
use super::{
    bench, calibrate, check, compare, completions, convert, lint, merge, output, plan, probe, profile, report, schema,
    self_test, serve, simulate, sweep, topo, trace, transfer, tune, validate,
};
use collcast::Error;
use collcast::shard::Parts;

/// Forecasts GPU collectives on a given machine, proves the schedules it forecasts, and holds
/// the forecast against measurements.
#[derive(Parser)]
#[command(name = "collcast", version, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = "Data goes to stdout; notes and one verdict line to stderr.
Exit codes: 0 done, 1 a comparison failed, 2 bad input or usage, 3 hardware or library missing, \
4 internal error (please report it), 130 interrupted.

  collcast sweep                            expected nccl-tests table of a DGX H100
  collcast sweep aws-p5 --nodes 32          the same for a cluster
  collcast simulate h200x4 -s 64M           one run: what bounds it, which links are busy
  collcast plan llama3-70b --gpus 1024      the fastest layout, whether it fits, how fast it trains
  collcast serve llama3-70b --prefill 2x8 --decode 2x8 --rate 10   time to first token, goodput
  collcast transfer --from gpu:0 --to gpu:9 -s 1G   1 GiB moved between hosts, by each way
  collcast simulate ddp-buckets             one training step: what communication costs, what would help
  collcast bench --backend cuda             our own schedules on the GPUs of this host
  collcast probe -o DIR                     a new machine: its topology file and measurements
  collcast calibrate LOGS -t h200x4         a profile from measurements, and how good it is
  collcast validate LOGS -t h200x4          measurements against the forecast
  collcast compare BEFORE AFTER             what became slower: logs, CSV, JSON or folders
  collcast trace rank*.json.gz -t dgx-h100  a training step: exposed time, launch gaps, slow calls
  collcast tune h200x4 --output DIR         which settings beat NCCL's own choice
  collcast lint job.env pod.yaml nccl.log   which settings are wrong, idle or harmful, and why
  collcast check SUITE.toml                 did a choice of NCCL or a forecast change, and why
  collcast report RESULT.json -o PAGE.html  results as one page for a browser, with pictures
  collcast topo list                        the built-in machines
  collcast profile list -t dgx-h100         what is known of a machine, and which of it is taken
  collcast self-test                        what works on this machine, and what is missing for what")]
pub(super) struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Say which value each option has and where it is from: command line, environment, file or built in
    #[arg(long, global = true)]
    show_config: bool,
    /// Write nothing but errors to stderr: no notes, warnings, progress or verdict, which the exit code says
    #[arg(short, long, global = true)]
    quiet: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Predict: one call or one training step (SCENARIO) in detail; --timeline writes it for Perfetto
    Simulate(simulate::Args),
    /// Predict: a table over sizes, algorithms, protocols, channels and node counts
    Sweep(sweep::Args),
    /// Predict: the fastest layout of a model on so many GPUs, its memory, and when the run is done
    Plan(plan::Args),
    /// Predict: how long users of a served model wait, by its workers and load
    Serve(serve::Args),
    /// Predict: how long a transfer between two memories takes, and by which way
    Transfer(transfer::Args),
    /// Measure: run calls for real, check every result, time them
    Bench(bench::Args),
    /// Measure: what this machine is and can do, for `calibrate`
    Probe(probe::Args),
    /// One process of `bench --backend nccl`
    #[command(hide = true)]
    BenchWorker,
    /// Measure: fit a profile to measurements, with intervals and errors on rows held back
    Calibrate(calibrate::Args),
    /// Decide: hold measurements against the forecast
    Validate(validate::Args),
    /// Decide: what became slower between two sets of measurements or results
    Compare(compare::Args),
    /// Decide: what a recorded training step says: exposed time, launch gaps, late ranks, slow calls
    Trace(trace::Args),
    /// Decide: which algorithm and protocol to set where NCCL's choice leaves time
    Tune(tune::Args),
    /// Guard: what is wrong with NCCL's settings in files, processes and logs, or with this host
    Lint(lint::Args),
    /// Guard: choices of NCCL and forecasts against a committed baseline, with what caused a change
    Check(check::Args),
    /// Files: the answer of `sweep`, `check` or `plan` from parts that several machines worked out
    Merge(merge::Args),
    /// Files: results of other commands as one page for a browser, with pictures
    Report(report::Args),
    /// Files: the shape of every answer as JSON Schema, and of files that you write
    Schema(schema::Args),
    /// Files: write an algorithm as MSCCL XML or a GOAL schedule
    Convert(convert::Args),
    /// Files: list, show, draw, import machines and routes between GPUs
    Topo(topo::Args),
    /// Files: which profiles there are, which is taken for a machine, what they are made of
    Profile(profile::Args),
    /// Setup: what works on this machine: the simulator, GPUs, CUDA's compiler, NCCL, RDMA
    SelfTest(self_test::Args),
    /// Setup: completions of a shell
    Completions(completions::Args),
    /// Setup: man pages
    Man(completions::ManArgs),
}

/// Runs the program with words as a shell gives them, its name first. `program` is what to start where a command needs
/// processes of its own, if that is not the program that runs.
pub fn main(words: Vec<OsString>, program: Option<PathBuf>) -> ExitCode {
    ExitCode::from(exit_code(words, program))
}

/// [`main()`], with the exit code as a number.
pub fn exit_code(words: Vec<OsString>, program: Option<PathBuf>) -> u8 {
    caught(|| answered(words, program)).unwrap_or_else(|error| {
        output::complain(&format!("{}\n", error.render()));
        error.code()
    })
}

/// Calls something in which a panic, on any thread that it waits for, is an error that says what and where. Who sets
/// RUST_BACKTRACE sees it as Rust shows it too.
fn caught<T>(call: impl FnOnce() -> T) -> Result<T, Error> {
    let first: Arc<OnceLock<String>> = Arc::default();
    let (said, shown) = (Arc::clone(&first), std::env::var_os("RUST_BACKTRACE").is_some());
    let before = Arc::new(panic::take_hook());
    let usual = Arc::clone(&before);
    panic::set_hook(Box::new(move |panic| {
        let what = panic.payload_as_str().unwrap_or("a panic without words");
        let place = panic.location().map_or_else(String::new, |place| format!(" ({place})"));
        let _ = said.set(format!("{what}{place}"));
        if shown {
            usual(panic);
        }
    }));
    let result = panic::catch_unwind(AssertUnwindSafe(call));
    panic::set_hook(Box::new(move |panic| before(panic)));
    result.map_err(|_| Error::Internal(first.get().cloned().unwrap_or_default()))
}

fn answered(words: Vec<OsString>, program: Option<PathBuf>) -> u8 {
    call::by_shell(words, program);
    let words = call::words();
    let result = match expand(Cli::command(), &words).ok().and_then(|words| config::shown(&Cli::command(), &words)) {
        Some(shown) => shown.map(|(report, output)| output.print(&report, None).map(|()| Code::SUCCESS)),
        None => parsed(&words, false).map(|Parsed { cli, given, taken }| {
            call::with_defaults(taken);
            if cli.quiet {
                call::be_quiet();
            }
            config::misspelt(&Cli::command()).iter().for_each(|line| say!("note: {line}"));
            run(cli, &given)
        }),
    };
    let result = match result {
        Ok(result) => result,
        Err(error) => {
            refuse(&error);
            // Help and version are no errors; everything else is bad usage.
            return u8::from(error.use_stderr()) * 2;
        }
    };
    call::untold().iter().for_each(|line| say!("note: {line}"));
    match result {
        Ok(Code(code)) => code,
        Err(Error::BrokenPipe) => 0,
        Err(error) => {
            output::complain(&format!("{}\n", error.render()));
            error.code()
        }
    }
}

/// What words say.
pub(super) struct Parsed {
    pub(super) cli: Cli,
    /// The options that the words name.
    pub(super) given: Named,
    /// Defaults from a file or variables that stand in place of what they leave out, as they are told.
    pub(super) taken: Vec<String>,
}

/// What words say; whether a program asks.
pub(super) fn parsed(words: &[OsString], asked: bool) -> Result<Parsed, clap::Error> {
    let Found { matches, taken, unnamed } = config::found(Cli::command(), expand(Cli::command(), words)?, asked)?;
    let given = Named::of(&matches).without_unnamed(&unnamed);
    Ok(Parsed { cli: Cli::from_arg_matches(&matches)?, given, taken: taken.iter().map(Default::told).collect() })
}

/// Runs a command.
pub(super) fn run(cli: Cli, given: &Named) -> Result<Code, Error> {
    match cli.command {
        Command::Simulate(args) => simulate::run(&args, given),
        Command::Sweep(args) => sweep::run(&args, given),
        Command::Plan(args) => plan::run(&args),
        Command::Serve(args) => serve::run(&args, given),
        Command::Transfer(args) => transfer::run(&args, given),
        Command::Bench(args) => bench::run(&args, given),
        Command::Probe(args) => probe::run(&args, given),
        Command::BenchWorker => bench::work(),
        Command::Calibrate(args) => calibrate::run(&args, given),
        Command::Validate(args) => validate::run(&args, given),
        Command::Compare(args) => compare::run(&args),
        Command::Trace(args) => trace::run(&args, given),
        Command::Tune(args) => tune::run(&args, given),
        Command::Lint(args) => lint::run(&args),
        Command::Check(args) => check::run(&args, given),
        Command::Merge(args) => merge(&args),
        Command::Report(args) => report::run(&args),
        Command::Schema(args) => schema::run(&args, given),
        Command::Convert(args) => convert::run(&args, given),
        Command::Topo(args) => topo::run(&args, given),
        Command::Profile(args) => profile::run(&args),
        Command::SelfTest(args) => self_test::run(&args),
        Command::Completions(args) => completions::run(&args, Cli::command()),
        Command::Man(args) => completions::man(&args, Cli::command()),
    }
}

/// Runs the command that parts are of, with what they say.
fn merge(args: &merge::Args) -> Result<Code, Error> {
    let parts = Parts::read(&args.parts)?;
    let words = ["collcast"].into_iter().chain(parts.command.iter().map(String::as_str));
    let words: Vec<OsString> = words.map(Into::into).collect();
    let refused = |why: &str, hint: &str| {
        Error::usage(format!("the parts are of `{}`, which is {why}", parts.command.join(" ")), hint)
    };
    let other = || refused("no command that is merged", "merge what sweep, check or plan wrote with --shard");
    let name = parts.command.iter().find(|word| !word.starts_with('-')).map(String::as_str);
    if !matches!(name, Some("sweep" | "check" | "plan")) {
        return Err(other());
    }
    let Parsed { cli, given, taken } = parsed(&words, call::asked()).map_err(|error| {
        let text = error.to_string();
        let what = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
        refused(
            &format!("refused here: {what}"),
            "merge in the folder where the parts were made, with the files that were there",
        )
    })?;
    call::with_defaults(taken);
    let (output, page) = (args.output.clone(), args.page.clone());
    match cli.command {
        Command::Sweep(mut of) => {
            (of.output, of.page) = (output, page);
            sweep::answer(&of, &given, Some(&parts))
        }
        Command::Check(mut of) => {
            (of.output, of.page) = (output, page);
            check::answer(&of, &given, Some(&parts))
        }
        Command::Plan(mut of) => {
            (of.output, of.page) = (output, page);
            plan::answer(&of, Some(&parts))
        }
        _ => Err(other()),
    }
}

/// What options are called here that readers give by the names of other commands.
const ELSEWHERE: [(&str, &str, &str); 2] =
    [("plan", "--nodes", "give --gpus: a plan takes whole hosts"), ("", "-n", "--nodes is the number of hosts")];

/// Prints what clap says: on one line where an argument in it might drive the terminal.
fn refuse(error: &clap::Error) {
    let words = call::words();
    let unknown = error.get(ContextKind::InvalidArg).filter(|_| error.kind() == ErrorKind::UnknownArgument);
    let is_it = |(command, option, _): &&(&str, &str, &str)| {
        unknown.is_some_and(|unknown| unknown.to_string() == *option)
            && (command.is_empty() || words.iter().any(|word| word == command))
    };
    if let Some((_, option, hint)) = ELSEWHERE.iter().find(is_it) {
        output::complain(&format!("{}\n", Error::usage(format!("there is no {option} here"), *hint).render()));
        return;
    }
    let hostile = |arg: OsString| arg.to_string_lossy().chars().any(|c| !is_shown(c));
    if error.use_stderr() && call::words().into_iter().any(hostile) {
        output::complain(&format!("{}\n", one_line(&error.render().to_string())));
    } else {
        let _ = error.print();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a panic is an internal error with its message and place, exit code 4, also on a thread of a pool; what does not
    /// panic is as it was.
    #[test]
    fn a_panic_is_an_internal_error() {
        let none: Vec<u8> = Vec::new();
        let here = caught(|| none[0]);
        let elsewhere = caught(|| rayon::join(|| (), || none[0]).1);
        for error in [here.err(), elsewhere.err()] {
            let told = error.as_ref().map(Error::render).unwrap_or_default();
            assert_eq!(error.map(|error| error.code()), Some(4));
            assert!(told.starts_with("internal error: index out of bounds") && told.contains("program.rs:"), "{told}");
            assert!(told.contains("please report it"), "{told}");
        }
        assert_eq!(caught(|| 7).ok(), Some(7));
    }
}

//! `collcast check SUITE`: did NCCL's choices or our forecasts move since the baseline, and why?

use std::path::{Path, PathBuf};

use collcast::Error;
use collcast::check::{self, Baseline, Outcome, Request, Suite, baseline_of, json_schema};
use collcast::files::read_text;
use collcast::shard::Parts;
use collcast::values::percent;
use collcast::views::{only, shorten};
use collcast_reports::terminal;

use super::call::Code;
use super::output::{Format, OutputArgs, PageArgs, screen_of, tell, write};
use super::progress::watched;
use super::selectors::Named;
use super::shard::{ShardArgs, write_part};

#[derive(clap::Args, Debug)]
#[command(
    after_help = "The suite names machines, collectives, sizes, NCCL versions, variables and measured logs; the \
baseline beside it holds what was predicted when it was last accepted, and from which inputs. Each \
choice of NCCL and each time that changed is reported with its cause: topology, profile, NCCL \
version, settings (environment, launch mode) or our model. Where several changed, one is put back \
at a time.

  fails         a changed choice with a loss beyond --choice-tolerance, or one that cannot be told; a
                time slower beyond --time-tolerance; an error against measurements beyond
                --error-tolerance; what the baseline has and the suite or a log has no more;
                a baseline that has no entry of the suite
  reported      a changed choice that loses nothing, a time that is faster, what is new, and
                `model moved, choice same`: a time that only our own model moved;
                what is new is not guarded before --update accepts it
  --strict      everything that is reported fails

With nothing to report, stdout stays empty (JSON and JUnit are whole documents all the same).

  collcast check checks/suite.toml --update                        accept what is predicted today
  collcast check checks/suite.toml                                 exit 1 where something got worse
  collcast check checks/suite.toml --format markdown -o comment.md   a comment for a pull request
  collcast check checks/suite.toml --format junit -o check.xml
  collcast check --schema                                          JSON schema of suites"
)]
pub(crate) struct Args {
    /// Suite of machines and calls (.toml)
    #[arg(value_name = "SUITE", required_unless_present = "schema")]
    suite: Option<PathBuf>,
    /// Write the baseline: what is predicted today is accepted
    #[arg(long)]
    update: bool,
    /// Baseline [default: the suite's name with .baseline.toml]
    #[arg(long, value_name = "PATH")]
    baseline: Option<PathBuf>,
    /// Fail on everything that is reported
    #[arg(long)]
    strict: bool,
    /// Change of a predicted time that does not matter [default: the suite's, else 5%]
    #[arg(long, value_name = "PERCENT", help_heading = "Tolerances")]
    time_tolerance: Option<String>,
    /// Predicted loss of a changed choice that does not matter [default: the suite's, else 2%]
    #[arg(long, value_name = "PERCENT", help_heading = "Tolerances")]
    choice_tolerance: Option<String>,
    /// Points of median error against measurements that do not matter [default: the suite's, else 2%]
    #[arg(long, value_name = "PERCENT", help_heading = "Tolerances")]
    error_tolerance: Option<String>,
    /// Print the JSON schema of these files: suites
    #[arg(long)]
    schema: bool,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(flatten)]
    pub(super) page: PageArgs,
    #[command(flatten)]
    shard: ShardArgs,
}

/// What takes long.
const SIMULATING: &str = "simulating the suite";
/// Findings that a screen shows, the worst first, and lines of what is removed.
const SHOWN: usize = 40;

pub(crate) fn run(args: &Args, given: &Named) -> Result<Code, Error> {
    answer(args, given, None)
}

/// A part of the answer, or all of it; of that parts may be known.
pub(super) fn answer(args: &Args, given: &Named, merged: Option<&Parts>) -> Result<Code, Error> {
    let Some(path) = args.suite.as_ref().filter(|_| !args.schema) else {
        write(args.output.output.as_deref(), format!("{}\n", json_schema()).as_bytes())?;
        return Ok(Code::SUCCESS);
    };
    let shard = args.shard.of(merged);
    if args.update && shard.is_none() && merged.is_none() {
        let judging = [
            "--format",
            "--output",
            "--report",
            "--strict",
            "--time-tolerance",
            "--choice-tolerance",
            "--error-tolerance",
        ];
        given.without(&judging, "--update judges nothing, it accepts", "leave it out, or --update")?;
    }
    let mut suite = Suite::read(path)?;
    for note in &suite.notes {
        say!("note: {note}");
    }
    for (flag, text, value) in [
        ("--time-tolerance", &args.time_tolerance, &mut suite.tolerance.time),
        ("--choice-tolerance", &args.choice_tolerance, &mut suite.tolerance.choice),
        ("--error-tolerance", &args.error_tolerance, &mut suite.tolerance.error),
    ] {
        if let Some(text) = text {
            *value = percent(flag, text)?;
        }
    }
    suite.strict |= args.strict;
    if let Some(shard) = shard {
        let request = Request::new(suite, Baseline::default());
        let (question, part) = watched(SIMULATING, |watch| check::part(&request.watched(watch), shard))?;
        return write_part(&args.output, &question, shard, &part);
    }
    let predicted = |request: Request| {
        watched(SIMULATING, |watch| match merged {
            Some(parts) => check::merged(&request.watched(watch), parts),
            None => check::check(&request.watched(watch)),
        })
    };
    let file = args.baseline.clone().unwrap_or_else(|| baseline_of(path));
    if args.update {
        return accept(&file, &predicted(Request::new(suite, Baseline::default()))?);
    }
    let outcome = predicted(Request::new(suite, Baseline::read_for(path, &file)?))?;
    args.page.write(|| outcome.page())?;
    print(&args.output, &outcome)?;
    Ok(Code::from(u8::from(outcome.failed())))
}

/// Writes what is predicted today as the baseline.
fn accept(file: &Path, outcome: &Outcome) -> Result<Code, Error> {
    let text = outcome.next_baseline();
    let same = read_text("read the baseline", file).is_ok_and(|old| old == text);
    let lost = Baseline::read(file).map_or_else(|_| Vec::new(), |old| old.lost(&outcome.today));
    if !same {
        write(Some(file), text.as_bytes())?;
    }
    for warning in &outcome.warnings {
        say!("warning: {warning}");
    }
    for finding in outcome.findings.iter().filter(|finding| finding.is_beyond_limit()) {
        say!("warning: {}: {finding}, and accepted all the same", finding.place().join(" "));
    }
    for what in lost.iter().take(SHOWN) {
        say!("removed: {what}");
    }
    if lost.len() > SHOWN {
        say!("removed: and {} more", lost.len() - SHOWN);
    }
    let done = if same { "is up to date" } else { "is written" };
    say!("ok: the baseline {} {done}: {}", file.display(), outcome.today.counts());
    Ok(Code::SUCCESS)
}

/// Prints what was found. With nothing to report, stdout stays empty, but for programs and files.
fn print(output: &OutputArgs, outcome: &Outcome) -> Result<(), Error> {
    let format = output.format();
    let mut report = outcome.report(!matches!(format, Format::Json | Format::Csv));
    match format {
        Format::Csv => only(&mut report, "findings"),
        Format::Table => shorten(&mut report, "findings", SHOWN, "rows"),
        _ => {}
    }
    let whole = matches!(format, Format::Json | Format::Junit) || output.output.is_some();
    if outcome.findings.is_empty() && !whole {
        tell(&terminal::notes(&report, screen_of(&std::io::stderr())));
        return Ok(());
    }
    output.print(&report, None)
}

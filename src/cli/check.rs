//! `collcast check SUITE`: did NCCL's choices or our forecasts move since the baseline, and why?

mod baseline;
mod judge;
mod suite;
mod today;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use collcast_reports::model::{Case, CaseOutcome, Cell, Column, Input, Report, Status, Table, Verdict};
use collcast_reports::terminal;
use collcast_sim::domain::Beyond;
use rayon::prelude::*;

use crate::output::write;
use crate::output::{Format, OutputArgs, tell};
use crate::selectors::{CallArgs, MachineArgs, Named, content_hash, trust};
use crate::validate::{median_error, percent};
use baseline::{Baseline, Measured, Recorded, digits};
use collcast::Error as CliError;
use collcast::files::read_text;
use judge::{Cause, Changed, Finding, Kind, judge, signed};
use suite::{Suite, Tolerance};
use today::Machine;

#[derive(clap::Args, Debug)]
#[command(
    after_help = "The suite names machines, collectives, sizes, NCCL versions, variables and measured logs; the \
baseline beside it holds what was predicted when it was last accepted, and from which inputs. Each \
choice of NCCL and each time that changed is reported with its cause: topology, profile, NCCL \
version, settings (environment, launch mode) or our model. Where several changed, one is put back \
at a time.

  fails         a changed choice with a predicted loss beyond --choice-tolerance; a time slower
                beyond --time-tolerance; an error against measurements beyond --error-tolerance
  reported      a changed choice that loses nothing, a time that is faster, what is new or removed,
                and `model moved, choice same`: a time that only our own model moved
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
    /// Print the JSON schema of suites
    #[arg(long)]
    schema: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// The selectors as every command reads them, for what a suite says.
#[derive(clap::Parser)]
#[command(disable_help_flag = true)]
struct Selectors {
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    call: CallArgs,
}

/// Findings that a screen shows; the worst come first.
const SHOWN: usize = 40;
/// Machines that a line names.
const NAMED: usize = 4;

pub(crate) fn run(args: &Args, given: &Named) -> Result<ExitCode, CliError> {
    let Some(path) = args.suite.as_ref().filter(|_| !args.schema) else {
        write(args.output.output.as_deref(), format!("{}\n", suite::json_schema()).as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    };
    if args.update {
        let judging =
            ["--format", "--output", "--strict", "--time-tolerance", "--choice-tolerance", "--error-tolerance"];
        given.without(&judging, "--update judges nothing, it accepts", "leave it out, or --update")?;
    }
    let mut suite = suite::read(path)?;
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
    let file = args.baseline.clone().unwrap_or_else(|| path.with_extension("baseline.toml"));
    // What cannot be read shows before anything is predicted.
    let old = if args.update { None } else { Some(read_baseline(&file, path)?) };

    let machines: Vec<Machine<'_>> = suite.machines.par_iter().map(Machine::load).collect::<Result<_, _>>()?;
    let (recorded, beyond): (Vec<Recorded>, Vec<Beyond>) = (machines.par_iter())
        .map(|machine| {
            let (nccl, beyond) = machine.entries()?;
            Ok((Recorded { nccl, ..machine.recorded()? }, beyond))
        })
        .collect::<Result<Vec<_>, CliError>>()?
        .into_iter()
        .unzip();
    let measured: BTreeMap<String, Measured> = (suite.measured.iter())
        .map(|spec| {
            let machine = &machines[spec.machine];
            let (rows, error, files) = median_error(&spec.files, &machine.full, &machine.profile)?;
            let median_error_percent = digits(error * 100.0);
            Ok((spec.name.clone(), Measured { files, rows, median_error_percent }))
        })
        .collect::<Result<_, CliError>>()?;
    match old {
        None => update(&file, &machines, recorded, measured),
        Some(old) => compare(args, &suite, (&file, &old), &machines, (&recorded, &beyond), &measured),
    }
}

fn read_baseline(file: &Path, suite: &Path) -> Result<Baseline, CliError> {
    if !file.exists() {
        return Err(CliError::usage(
            format!("the suite has no baseline: there is no file `{}`", file.display()),
            format!("write it with `collcast check {} --update`, and commit it", suite.display()),
        ));
    }
    Baseline::read(file)
}

fn update(
    file: &Path,
    machines: &[Machine<'_>],
    recorded: Vec<Recorded>,
    measured: BTreeMap<String, Measured>,
) -> Result<ExitCode, CliError> {
    let mut baseline = Baseline { measured, ..Baseline::new() };
    for (machine, mut recorded) in machines.iter().zip(recorded) {
        let constants = machine.constants();
        // Two profiles may have one name.
        if baseline.profiles.get(&recorded.profile).is_some_and(|other| *other != constants) {
            recorded.profile = format!("{} of {}", recorded.profile, machine.spec.name);
        }
        baseline.profiles.insert(recorded.profile.clone(), constants);
        baseline.machines.insert(machine.spec.name.clone(), recorded);
    }
    let names: Vec<&str> = machines.iter().map(|m| m.spec.name.as_str()).collect();
    let text = baseline.render(&names);
    let same = read_text("read the baseline", file).is_ok_and(|old| old == text);
    if !same {
        write(Some(file), text.as_bytes())?;
    }
    for warning in machines.iter().flat_map(|m| &m.warnings) {
        say!("warning: {warning}");
    }
    let done = if same { "is up to date" } else { "is written" };
    say!("ok: the baseline {} {done}: {}", file.display(), counts(&baseline));
    Ok(ExitCode::SUCCESS)
}

fn plural(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn counts(baseline: &Baseline) -> String {
    let versions: BTreeSet<&String> = baseline.machines.values().flat_map(|m| m.nccl.keys()).collect();
    let entries: usize = baseline.machines.values().flat_map(|m| m.nccl.values()).map(BTreeMap::len).sum();
    format!(
        "{}, {} of NCCL, {} in all",
        plural(baseline.machines.len(), "machine", "machines"),
        plural(versions.len(), "version", "versions"),
        plural(entries, "entry", "entries")
    )
}

fn compare(
    args: &Args,
    suite: &Suite,
    (file, old): (&Path, &Baseline),
    machines: &[Machine<'_>],
    (recorded, beyond): (&[Recorded], &[Beyond]),
    measured: &BTreeMap<String, Measured>,
) -> Result<ExitCode, CliError> {
    let judged = (machines.par_iter().zip(recorded))
        .map(|(machine, today)| judge(machine, today, old, suite.tolerance))
        .collect::<Result<Vec<_>, CliError>>()?;
    let mut changed: Vec<Changed> = Vec::new();
    let mut findings: Vec<Finding> = Vec::new();
    for machine in judged {
        changed.extend(machine.changed);
        findings.extend(machine.findings);
    }
    let names: BTreeSet<&str> = machines.iter().map(|m| m.spec.name.as_str()).collect();
    findings.extend(old.machines.keys().filter(|n| !names.contains(n.as_str())).map(|n| bare(Kind::Removed, n)));
    of_measurements(suite, old, measured, &mut changed, &mut findings);
    for finding in &mut findings {
        finding.failed |= suite.strict;
    }
    findings.sort_by(|a, b| {
        let size = |f: &Finding| f.change.map_or(0.0, f64::abs);
        (!a.failed, a.kind).cmp(&(!b.failed, b.kind)).then(size(b).total_cmp(&size(a)))
    });

    let failed = findings.iter().any(|f| f.failed);
    let mut report = report(args, suite, (file, old), machines, recorded, &changed, &findings);
    let about = |machine: &Machine<'_>| {
        let measured = || suite.measured.iter().filter(|m| suite.machines[m.machine].name == machine.spec.name);
        findings.iter().any(|f| f.machine == machine.spec.name || measured().any(|m| m.name == f.machine))
    };
    let beyond = machines.iter().zip(beyond).filter(|(machine, _)| about(machine)).map(|(_, beyond)| beyond.clone());
    report.verdict = Some(verdict(args, recorded, &findings, &beyond.collect()));
    let whole = matches!(args.output.format(), Format::Json | Format::Junit) || args.output.output.is_some();
    if findings.is_empty() && !whole {
        tell(&terminal::notes(&Report { warnings: Vec::new(), ..report }));
    } else {
        args.output.print(&report, None)?;
    }
    Ok(ExitCode::from(u8::from(failed)))
}

/// A finding about a whole machine or file.
fn bare(kind: Kind, name: &str) -> Finding {
    Finding {
        kind,
        machine: name.to_owned(),
        nccl: String::new(),
        collective: String::new(),
        size: String::new(),
        before: String::new(),
        after: String::new(),
        change: None,
        causes: Vec::new(),
        failed: false,
    }
}

fn of_measurements(
    suite: &Suite,
    old: &Baseline,
    measured: &BTreeMap<String, Measured>,
    changed: &mut Vec<Changed>,
    findings: &mut Vec<Finding>,
) {
    for spec in &suite.measured {
        let today = &measured[&spec.name];
        let machine = &suite.machines[spec.machine].name;
        let beyond = spec.max_error.is_some_and(|most| today.median_error_percent > most * 100.0);
        let mut finding = Finding {
            after: format!("{}% of {} rows", today.median_error_percent, today.rows),
            failed: beyond,
            ..bare(Kind::Error, &spec.name)
        };
        let Some(before) = old.measured.get(&spec.name) else {
            findings.push(if beyond {
                Finding { before: format!("at most {}%", spec.max_error.unwrap_or(0.0) * 100.0), ..finding }
            } else {
                bare(Kind::New, &spec.name)
            });
            continue;
        };
        let growth = (today.median_error_percent - before.median_error_percent) / 100.0;
        if !beyond && growth.abs() <= suite.tolerance.error {
            continue;
        }
        let of_machine = changed.iter().filter(|c| &c.machine == machine).map(|c| c.cause);
        finding.causes = of_machine.collect::<BTreeSet<_>>().into_iter().collect();
        if before.files != today.files {
            let what = format!("{} -> {} rows", before.rows, today.rows);
            changed.push(Changed { machine: spec.name.clone(), cause: Cause::Measurements, what });
            finding.causes.push(Cause::Measurements);
        }
        finding.before = format!("{}% of {} rows", before.median_error_percent, before.rows);
        finding.change = Some(growth);
        finding.failed |= growth > suite.tolerance.error;
        findings.push(finding);
    }
    let names: BTreeSet<&String> = measured.keys().collect();
    findings.extend(old.measured.keys().filter(|n| !names.contains(n)).map(|n| bare(Kind::Removed, n)));
}

fn report(
    args: &Args,
    suite: &Suite,
    (file, old): (&Path, &Baseline),
    machines: &[Machine<'_>],
    recorded: &[Recorded],
    changed: &[Changed],
    findings: &[Finding],
) -> Report {
    let mut report = Report::new("check", env!("CARGO_PKG_VERSION"));
    report.predicted = true;
    for (name, path) in [("suite", args.suite.as_deref()), ("baseline", Some(file))] {
        let Some(path) = path else { continue };
        let hash = content_hash(read_text("read", path).unwrap_or_default().as_bytes());
        report.inputs.push(Input { name: name.to_owned(), path: Some(path.display().to_string()), hash });
    }
    let mut seen = BTreeSet::new();
    let inputs = machines.iter().flat_map(|m| &m.inputs).filter(|i| seen.insert((i.path.clone(), i.hash.clone())));
    report.inputs.extend(inputs.cloned());
    let Tolerance { time, choice, error } = suite.tolerance;
    let percent = |f: f64| digits(f * 100.0);
    report.assumptions.push(format!("baseline {} of collcast {}: {}", file.display(), old.tool, counts(old)));
    report.assumptions.push(format!(
        "tolerances: times {}%, loss of a changed choice {}%, points of measured error {}%{}",
        percent(time),
        percent(choice),
        percent(error),
        if suite.strict { "; strict: everything that is reported fails" } else { "" }
    ));
    report.warnings.extend(machines.iter().flat_map(|m| m.warnings.clone()));
    report.cases = cases(machines, suite, findings);
    report.extra.insert("overall".to_owned(), overall(suite, recorded, findings));
    if args.output.format() == Format::Csv {
        report.tables.push(findings_table(findings, false));
        return report;
    }
    let json = args.output.format() == Format::Json;
    if findings.is_empty() && !json {
        return report;
    }
    let mut table = findings_table(findings, !json);
    if args.output.format() == Format::Table && table.rows.len() > SHOWN {
        let more = table.rows.len() - SHOWN;
        report.warnings.push(format!("{more} more rows are not shown; --format csv, json or markdown has them"));
        table.rows.truncate(SHOWN);
    }
    report.tables = vec![changed_table(changed, findings), table];
    report
}

/// What changed, with the machines that it changed on and how much it explains.
fn changed_table(changed: &[Changed], findings: &[Finding]) -> Table {
    let columns = [
        Column::text("input", "what changed"),
        Column::text("from_to", "from -> to"),
        Column::text("machines", "machines"),
        Column::number("caused", "caused"),
        Column::number("failed", "of these fail"),
    ];
    let mut table = Table::new("changed", "what changed since the baseline", columns);
    let mut groups: BTreeMap<(Cause, &str), BTreeSet<&str>> = BTreeMap::new();
    for change in changed {
        groups.entry((change.cause, &change.what)).or_default().insert(&change.machine);
    }
    for ((cause, what), machines) in groups {
        let caused = || findings.iter().filter(|f| f.causes == [cause] && machines.contains(f.machine.as_str()));
        let more = machines.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let named: Vec<&str> = machines.iter().copied().take(NAMED).collect();
        table.push([
            cause.name().into(),
            what.into(),
            format!("{}{more}", named.join(", ")).into(),
            caused().count().into(),
            caused().filter(|f| f.failed).count().into(),
        ]);
    }
    table
}

/// Findings; for people, those that differ in the version only are one row, and changes percentages.
fn findings_table(findings: &[Finding], people: bool) -> Table {
    let mut rows: Vec<Finding> = Vec::new();
    for finding in findings {
        let alike = |row: &&mut Finding| Finding { nccl: finding.nccl.clone(), ..(**row).clone() } == *finding;
        match rows.iter_mut().find(alike).filter(|_| people) {
            Some(row) => row.nccl = format!("{}, {}", row.nccl, finding.nccl),
            None => rows.push(finding.clone()),
        }
    }
    let columns = [
        Column::text("verdict", "verdict"),
        Column::text("kind", "what"),
        Column::text("machine", "machine"),
        Column::text("nccl", "NCCL"),
        Column::text("collective", "collective"),
        Column::text("size", "size"),
        Column::text("before", "before"),
        Column::text("after", "after"),
        Column::number("change", "change"),
        Column::text("cause", "cause"),
    ];
    let title = "differences from the baseline; the change of a choice is in its predicted time";
    let mut table = Table::new("findings", title, columns);
    for finding in &rows {
        let text = |text: &str| if text.is_empty() { Cell::Missing } else { text.into() };
        table.push([
            if finding.failed { "failed" } else { "reported" }.into(),
            finding.kind.name().into(),
            finding.machine.as_str().into(),
            text(&finding.nccl),
            text(&finding.collective),
            text(&finding.size),
            text(&finding.before),
            text(&finding.after),
            finding.change.map_or(Cell::Missing, |c| if people { signed(c).into() } else { Cell::float(c, 4) }),
            match finding.kind {
                Kind::New | Kind::Removed => Cell::Missing,
                _ => finding.cause().into(),
            },
        ]);
    }
    table
}

/// One case for each version and collective of a machine, and for each set of measurements.
fn cases(machines: &[Machine<'_>], suite: &Suite, findings: &[Finding]) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut case = |group: &str, name: String, about: Vec<&Finding>| {
        let line = |f: &Finding| f.to_string();
        let outcome = match (about.first(), about.iter().filter(|f| f.failed).count()) {
            (None, _) => CaseOutcome::Passed,
            (Some(first), 0) if first.kind == Kind::New => CaseOutcome::Skipped("not in the baseline yet".to_owned()),
            (Some(_), 0) => CaseOutcome::Noted(about.iter().map(|f| line(f)).collect::<Vec<_>>().join("; ")),
            (Some(first), failed) => CaseOutcome::Failed {
                kind: first.kind.name().to_owned(),
                message: format!(
                    "{}{}",
                    line(first),
                    if failed > 1 { format!("; {} more fail here", failed - 1) } else { String::new() }
                ),
                details: about.iter().map(|f| format!("{}\n", line(f))).collect(),
            },
        };
        cases.push(Case { group: group.to_owned(), name, outcome });
    };
    for machine in machines {
        let spec = machine.spec;
        for version in &machine.versions {
            let version = version.to_string();
            for collective in &spec.collectives {
                let about = findings.iter().filter(|f| {
                    let of_version = f.nccl.is_empty() || f.nccl.rsplit(' ').next() == Some(version.as_str());
                    let of_collective = f.collective.is_empty() || f.collective == collective.name();
                    f.machine == spec.name && of_version && of_collective && f.kind != Kind::Error
                });
                case(&spec.name, format!("{}, NCCL {version}, {collective}", spec.name), about.collect());
            }
        }
    }
    for spec in &suite.measured {
        let about = findings.iter().filter(|f| f.machine == spec.name && (f.kind == Kind::Error || f.nccl.is_empty()));
        case("measured", format!("measured {}", spec.name), about.collect());
    }
    cases
}

fn overall(suite: &Suite, recorded: &[Recorded], findings: &[Finding]) -> serde_json::Value {
    let count = |kind: Kind| findings.iter().filter(|f| f.kind == kind).count();
    serde_json::json!({
        "machines": recorded.len(),
        "entries": entries(recorded),
        "findings": findings.len(),
        "failed": findings.iter().filter(|f| f.failed).count(),
        "choices_changed": count(Kind::Choice),
        "slower": count(Kind::Slower),
        "faster": count(Kind::Faster),
        "model_moved": count(Kind::ModelMoved),
        "errors_changed": count(Kind::Error),
        "new": count(Kind::New),
        "removed": count(Kind::Removed),
        "time_tolerance": suite.tolerance.time,
        "choice_tolerance": suite.tolerance.choice,
        "error_tolerance": suite.tolerance.error,
        "strict": suite.strict,
    })
}

fn entries(recorded: &[Recorded]) -> usize {
    recorded.iter().flat_map(|m| m.nccl.values()).map(BTreeMap::len).sum()
}

fn verdict(args: &Args, recorded: &[Recorded], findings: &[Finding], beyond: &Beyond) -> Verdict {
    let all = plural(entries(recorded), "entry", "entries");
    let differences = plural(findings.len(), "difference", "differences");
    let failed = findings.iter().filter(|f| f.failed).count();
    let suite = args.suite.as_deref().unwrap_or_else(|| Path::new("SUITE")).display();
    let named = |finding: &Finding| {
        let place = [&finding.machine, &finding.nccl, &finding.collective];
        let place: Vec<&str> = place.into_iter().map(String::as_str).filter(|p| !p.is_empty()).collect();
        format!("{}: {finding}", place.join(" "))
    };
    let sentence = match findings.first() {
        None => format!("no choice and no time beyond tolerance changed in {all}"),
        Some(first) if failed > 0 => {
            let mut by: BTreeMap<&str, usize> = BTreeMap::new();
            for finding in findings.iter().filter(|f| f.failed && !f.causes.is_empty()) {
                let one = if let [one] = finding.causes.as_slice() { one.name() } else { "several causes" };
                *by.entry(one).or_default() += 1;
            }
            let by: Vec<String> = by.iter().map(|(cause, count)| format!("{count} by {cause}")).collect();
            let by = if by.is_empty() { String::new() } else { format!(" ({})", by.join("; ")) };
            format!("{failed} of {differences} in {all} fail{by}, the first in {}", named(first))
        }
        Some(first) => {
            format!("nothing got worse; {differences} in {all}, the first in {}", named(first))
        }
    };
    let (_, confidence, basis) = trust(beyond);
    let told = findings.iter().filter(|f| !matches!(f.kind, Kind::New | Kind::Removed));
    let (told, untold): (Vec<&Finding>, Vec<&Finding>) = told.partition(|f| f.causes.len() == 1);
    Verdict {
        status: match (failed, findings.is_empty()) {
            (0, true) => Status::Ok,
            (0, false) => Status::Warning,
            _ => Status::Failed,
        },
        sentence,
        confidence: match (told.len(), untold.len()) {
            _ if findings.is_empty() => "high: forecasts are held against forecasts".to_owned(),
            (told, untold) if untold > 0 && beyond.is_empty() => {
                format!("medium: {told} of {} have one cause", told + untold)
            }
            _ => confidence,
        },
        basis,
        next: (!findings.is_empty())
            .then(|| format!("accept it with `collcast check {suite} --update`, or undo the cause")),
    }
}

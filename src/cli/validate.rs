//! `collcast validate`: measurements against the forecast, by group and as a whole.

mod plots;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use collcast_hwbackend::read::{FileReport, ReadOptions, cut_runs, read_paths};
use collcast_reports::model::{Input, Report, Status, Verdict};
use collcast_sim::collective::Launch;
use collcast_sim::domain::Beyond;
use collcast_sim::ids::Rank;
use collcast_sim::measurement::Measurement;
use collcast_sim::predict::Settings;
use collcast_sim::topology::Topology;

use crate::output::{Format, OutputArgs};
use crate::selectors::{MachineArgs, assumptions, trust};
use collcast::Error as CliError;
pub(crate) use collcast::bands::{BANDS, band};
pub(crate) use collcast::validate::can_be_asked;
pub(crate) use collcast::validate::judged;
use collcast::validate::tables::{Key, Stats, files_table, group, group_table, rows_table};
use collcast::validate::{by_path, doctor};
use collcast::values::percent;
use doctor::Anomaly;
use judged::{Judged, hosts_of_rows, judge, left_aside};

#[derive(clap::Args, Debug)]
#[command(
    after_help = "Reads nccl-tests logs (text and JSON) and CSV, files or folders. Rows that set a constant of the \
profile (its anchors) are left out of every figure. Rows where NCCL chose the algorithm are \
predicted through `auto` and grouped apart. The .toml beside a file can name machine, NCCL version and \
environment; hosts and GPUs of each follow from the rows.

Runs that are not as expected are simulated under each known cause (RDMA fell back to TCP, GPUDirect or \
P2P off, idle or slow NICs, slow NVLink or PCIe, a straggler, few channels, forced settings, no NVLS or \
SHARP, launch, cold start, noise); the one whose curve fits clearly best is named with what to run next. \
Logs over different sets of hosts (pairs, halves, rails) rank hosts and NICs. An anomaly of severity \
error makes the exit code 1."
)]
pub(crate) struct Args {
    /// Measurements: files or folders
    #[arg(required = true, value_name = "MEASUREMENTS")]
    measurements: Vec<PathBuf>,
    /// Built-in machine or topology file
    #[arg(short, long, value_name = "TOPOLOGY", help_heading = "Machine")]
    topology: Option<String>,
    /// Hosts
    #[arg(long, alias = "hosts", value_name = "N", help_heading = "Machine")]
    nodes: Option<u32>,
    /// GPUs of each host
    #[arg(long, value_name = "N", help_heading = "Machine")]
    gpus: Option<u32>,
    /// Profile: built-in name or TOML file; several layer
    #[arg(long, value_name = "PROFILE", help_heading = "Machine")]
    profile: Vec<String>,
    /// Launch mode of rows that do not say theirs
    #[arg(long, value_name = "MODE")]
    launch: Option<String>,
    /// Fail (exit 1) when the median error of a group is larger, such as 20%: of those forced, where there are any
    #[arg(long, value_name = "PERCENT")]
    max_error: Option<String>,
    /// Fail (exit 1) when a row reaches less of the expected bus bandwidth, such as 90%
    #[arg(long, value_name = "PERCENT")]
    min_busbw: Option<String>,
    /// Also name the algorithm and protocol whose prediction is closest to each row
    #[arg(long)]
    closest: bool,
    /// Do not look for the cause of what is slow
    #[arg(long)]
    no_doctor: bool,
    /// Accept our own predictions as measurements
    #[arg(long)]
    allow_predicted: bool,
    /// Write pictures into a folder: measured points on predicted curves, an SVG for each collective,
    /// number of ranks and launch mode
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    plots: Option<PathBuf>,
    /// Print every row too
    #[arg(long)]
    rows: bool,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, CliError> {
    let max_error = args.max_error.as_deref().map(|t| percent("--max-error", t)).transpose()?;
    let min_busbw = args.min_busbw.as_deref().map(|t| percent("--min-busbw", t)).transpose()?;
    let default_launch = args
        .launch
        .as_deref()
        .map(|l| {
            l.parse().map_err(|e: collcast_sim::collective::UnknownName| CliError::Usage {
                message: e.to_string(),
                hint: None,
            })
        })
        .transpose()?;
    let read =
        read_paths(&args.measurements, &ReadOptions { allow_predicted: args.allow_predicted, keep_duplicates: false })?;
    can_be_asked(&read.files)?;

    let named = args.topology.clone().or_else(|| read.machine().map(str::to_owned));
    let name = named.ok_or_else(|| {
        CliError::usage(
            "the measurements do not say which machine they are from",
            "name it with `-t TOPOLOGY` (collcast topo list), or put `topology = \"...\"` in a .toml beside the file",
        )
    })?;
    let at_most = read.files.iter().filter_map(|f| f.hosts_at_most).min();
    let (nodes, gpus) = hosts_of_rows(&name, (args.nodes, args.gpus), at_most, &read.measurements)?;
    let machine = MachineArgs { machine: Some(name), gpus, profile: args.profile.clone(), ..MachineArgs::default() };
    let mut topology = machine.load(nodes)?;
    let versions: BTreeSet<&String> = read.files.iter().filter_map(|f| f.nccl.as_ref()).collect();
    if let (1, Some(&version)) = (versions.len(), versions.first()) {
        topology.software.nccl = Some(version.clone());
    }
    let (profile, mut inputs) = machine.load_profile(&topology)?;
    inputs.extend(read.files.iter().filter(|f| f.rows > 0).map(|f| Input {
        name: "measurements".to_owned(),
        path: Some(f.path.display().to_string()),
        hash: f.hash.clone(),
    }));

    let repeated: usize = read.files.iter().map(|f| f.duplicates).sum();
    let unusable: usize = read.files.iter().map(|f| f.unusable).sum();
    let rows: Vec<&Measurement> = read.measurements.iter().collect();
    let files = by_path(&read.files);
    let (judged, skipped, anchors) = judge(&rows, &files, &topology, &profile, default_launch, args.closest)?;
    let settings = Settings {
        launch: judged.first().map_or(Launch::Threads, Judged::launch),
        version: topology.software.nccl.as_deref().and_then(|text| text.parse().ok()),
        ..Settings::default()
    };
    let untried = judged.iter().filter(|j| args.closest && j.closest.is_none()).count();
    let each: Vec<Beyond> = judged.iter().map(|j| j.prediction.beyond.clone()).collect();

    let mut report = Report::new("validate", env!("CARGO_PKG_VERSION"));
    report.inputs = inputs;
    report.assumptions = assumptions(&topology, &profile, &settings, &Beyond::default());
    if let Some(line) = report.assumptions.first_mut()
        && let Some(at) = line.find("; launch")
    {
        line.truncate(at);
    }
    report.assumptions.push(format!(
        "{} rows from {} files ({repeated} more were second copies of these, {unusable} unusable: time rounded to 0 or no bytes); {anchors} set a constant of the profile and are left out",
        read.measurements.len(),
        read.files.iter().filter(|f| f.rows > 0).count(),
    ));
    for (reason, count) in &skipped {
        report.warnings.push(format!("{count} rows are not predicted: {reason}"));
    }
    if untried > 0 {
        report.warnings.push(format!(
            "--closest: at {untried} of {} rows no other algorithm was tried: of a run with many sizes, 64 at most",
            judged.len()
        ));
    }
    report.warnings.extend(cut_runs(&read.files));
    report.warnings.extend(left_aside(&read.files, &topology));
    let seen = profile.fitted_to(read.files.iter().filter(|f| f.rows > 0).map(|f| f.hash.as_str()));
    if seen > 0 {
        report.warnings.push(format!(
            "profile {} was fitted to {seen} of these files: their errors are no evidence for it; `collcast calibrate` prints those on rows held back",
            profile.name
        ));
    }
    let extrapolated = each.iter().filter(|b| b.extrapolated()).count();
    let reasons: Beyond = each.into_iter().collect();
    if extrapolated > 0 {
        report.warnings.push(format!("{extrapolated} of {} predictions extrapolate: {reasons}", judged.len()));
    }

    report.warnings.extend(read.files.iter().find_map(|file| other_gpus(file, &topology)));
    let groups = group(&judged);
    let overall: Vec<&Judged<'_>> = judged.iter().filter(|j| j.row.forced()).collect();
    let people = matches!(args.output.format(), Format::Table | Format::Markdown);
    report.tables.push(group_table(&groups, &overall, people));
    report.tables.push(files_table(&read.files));
    let mut anomalies: Vec<Anomaly> = read.files.iter().filter_map(defective).collect();
    anomalies.extend(min_busbw.map_or_else(Vec::new, |least| slow_rows(&judged, least)));
    if !args.no_doctor {
        let findings = doctor::examine(&judged, &topology, &profile);
        report.warnings.extend(findings.warnings);
        anomalies.extend(findings.anomalies);
        report.extra.insert("causes".to_owned(), findings.causes);
    }
    if !anomalies.is_empty() || args.output.format() == Format::Json {
        report.tables.push(doctor::table(&anomalies, people));
    }
    if args.rows || args.output.format() != Format::Table {
        report.tables.push(rows_table(&judged));
    }
    report.extra.insert("overall".to_owned(), Stats::of(&overall).json());
    let all: Vec<&Judged<'_>> = judged.iter().collect();
    report.extra.insert("overall_with_auto".to_owned(), Stats::of(&all).json());

    // Without forced runs those where NCCL chose are what there is to judge.
    let any_forced = groups.keys().any(|k| k.forced);
    let worst = groups
        .iter()
        .filter(|(k, _)| k.forced == any_forced)
        .map(|(k, rows)| (Stats::of(rows).median, k))
        .max_by(|a, b| a.0.total_cmp(&b.0));
    let beyond = max_error.zip(worst.as_ref()).is_some_and(|(most, (median, _))| *median > most);
    // A gate that nothing was held against is not passed.
    let unjudged = judged.is_empty() && (max_error.is_some() || min_busbw.is_some());
    let failed = beyond || unjudged || anomalies.iter().any(|a| a.error);
    let doubt = if 2 * extrapolated > judged.len() {
        Some(trust(&reasons).1)
    } else {
        (extrapolated > 0).then(|| format!("medium: {extrapolated} of {} predictions extrapolate", judged.len()))
    };
    let found = verdict(&overall, &all, worst.as_ref(), failed, &anomalies, (max_error, min_busbw));
    let confidence = doubt.filter(|_| found.confidence == "high").unwrap_or(found.confidence);
    report.verdict = Some(Verdict { confidence, ..found });
    if let Some(folder) = &args.plots {
        let names = plots::write_all(folder, &judged)?;
        say!("note: {} pictures in {}: {}", names.len(), folder.display(), names.join(" "));
    }
    args.output.print(&report, None)?;
    Ok(ExitCode::from(u8::from(failed)))
}

/// A percentage as it was given: without digits that only floats have.
fn digits(percent: f64) -> f64 {
    (percent * 1e6).round() / 1e6
}

/// Data-centre GPUs by the word of their name that tells them apart.
const MODELS: [&str; 10] = ["V100", "T4", "A100", "A10G", "H100", "H200", "GH200", "B200", "GB200", "B300"];

/// Says where the rank lines of a log name other GPUs than the machine has.
fn other_gpus(file: &FileReport, topology: &Topology) -> Option<String> {
    let model = |name: &str| name.split([' ', '-']).find(|word| MODELS.contains(word)).map(str::to_owned);
    let has: BTreeSet<String> =
        (0..topology.ranks()).filter_map(|r| model(&topology.gpu(topology.gpu_of(Rank(r)))?.model)).collect();
    let other = file.gpus.iter().find(|name| model(name).is_some_and(|m| !has.is_empty() && !has.contains(&m)))?;
    let has: Vec<&str> = has.iter().map(String::as_str).collect();
    Some(format!(
        "{} is of {other}, `{}` has {}: name the machine that was measured with -t",
        file.path.display(),
        topology.name,
        has.join(", ")
    ))
}

/// A file whose run failed, or gave wrong results: its times are no evidence.
fn defective(file: &FileReport) -> Option<Anomaly> {
    Some(Anomaly {
        kind: "run_failed",
        error: true,
        evidence: file.defect()?,
        suggestion: "find what corrupts the data or stops the run (NCCL_DEBUG=INFO, ECC and link errors of nvidia-smi -q) and measure again".to_owned(),
    })
}

/// Rows that reach less than a share of the expected bus bandwidth.
fn slow_rows(judged: &[Judged<'_>], least: f64) -> Vec<Anomaly> {
    let slow = judged.iter().filter(|j| j.prediction.time.as_us() / j.row.time.as_us() < least);
    slow.map(|j| Anomaly {
        kind: "slower_than_expected",
        error: true,
        evidence: format!(
            "{} {}: {} takes {:.2} us, expected {:.2} us",
            j.row.run,
            j.row.collective,
            j.row.size,
            j.row.time.as_us(),
            j.prediction.time.as_us()
        ),
        suggestion: format!("{}:{}", j.row.origin.file, j.row.origin.line),
    })
    .collect()
}

fn verdict(
    overall: &[&Judged<'_>],
    all: &[&Judged<'_>],
    worst: Option<&(f64, &Key)>,
    failed: bool,
    anomalies: &[Anomaly],
    (max_error, min_busbw): (Option<f64>, Option<f64>),
) -> Verdict {
    let stats = Stats::of(if overall.is_empty() { all } else { overall });
    let kind = if overall.is_empty() { "rows where NCCL chose" } else { "rows with a forced algorithm" };
    let mut sentence = if stats.count == 0 {
        "no row could be predicted".to_owned()
    } else {
        format!("{} {kind}: median error {:.1}%, bias {:+.1}%", stats.count, stats.median * 100.0, stats.bias * 100.0)
    };
    if let Some((median, key)) = worst {
        sentence += &format!(
            "; the worst group is {} {} {} with {:.1}%",
            key.launch,
            key.what,
            BANDS[usize::from(key.band)],
            median * 100.0
        );
        if let Some(most) = max_error.filter(|most| median > most) {
            sentence += &format!(", more than the {}% of --max-error", digits(most * 100.0));
        }
    }
    let slow = anomalies.iter().filter(|a| a.kind == "slower_than_expected").count();
    if slow > 0 {
        let least = digits(min_busbw.unwrap_or(0.0) * 100.0);
        sentence += &format!("; {slow} rows reach less than the {least}% of expected bus bandwidth of --min-busbw");
    }
    let found = anomalies.iter().find(|a| a.kind != "slower_than_expected");
    if let Some(found) = found {
        sentence += &format!("; found {}", found.kind);
    }
    Verdict {
        status: if failed {
            Status::Failed
        } else if found.is_some() || stats.count == 0 || stats.median > max_error.unwrap_or(0.2) {
            Status::Warning
        } else {
            Status::Ok
        },
        sentence,
        confidence: if stats.count >= 30 { "high" } else { "low: few rows" }.to_owned(),
        basis: "measured against predicted".to_owned(),
        next: found.map(|a| a.suggestion.clone()).or_else(|| {
            (stats.median > 0.2)
                .then(|| "look at the rows with --rows; check the topology and the launch mode".to_owned())
        }),
    }
}

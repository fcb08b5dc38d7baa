//! `collcast calibrate`: from measurements to a profile, with intervals and held-out errors.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use collcast_hwbackend::read::{FileReport, ReadOptions, ReadReport, cut_runs, read_paths};
use collcast_reports::model::{Cell, Column, Input, Report, Status, Table, Verdict};
use collcast_sim::calibrate::{
    CalibrateError, Crossed, Estimate, Fit, Judged, SIZE_BANDS, Sample, Split, Study, coverage, mean, size_band,
    spreads,
};
use collcast_sim::collective::{Collective, Launch, nearest};
use collcast_sim::doctor::Question;
use collcast_sim::ids::Rank;
use collcast_sim::measurement::Measurement;
use collcast_sim::predict::Predictor;
use collcast_sim::profile::{Constant, DataFile, OriginKind, Parameter, Profile};
use collcast_sim::topology::Topology;
use rayon::prelude::*;

use crate::output::write;
use crate::output::{Format, OutputArgs, formats};
use crate::selectors::{MachineArgs, Named};
use crate::validate::can_be_asked;
use crate::validate::judged::{hosts_of_rows, left_aside, not_predicted, question};
use collcast::Error as CliError;

#[derive(clap::Args, Debug)]
#[command(
    after_help = "Reads what `validate` reads: nccl-tests logs (text and JSON), CSV, `collcast bench`. Fits latencies, \
rates and launch intervals to all rows at once, over the simulator, starting from a profile whose values \
stay where the data say nothing. Errors are told on the rows fitted to and on rows held back.

Files may come from several machines of one kind: the .toml beside each names its `topology`, and may name \
who measured (`publisher = \"...\"`; else each file is a source of its own). One profile is fitted to all.

  collcast calibrate LOGS -t h200x4 -o mine.toml
  collcast validate OTHER_LOGS -t h200x4 --profile mine.toml
  collcast calibrate SITE_A.csv SITE_B.csv --split source -o both.toml"
)]
pub(crate) struct Args {
    /// Measurements: files or folders
    #[arg(required = true, value_name = "MEASUREMENTS")]
    measurements: Vec<PathBuf>,
    /// Built-in machine or topology file, of all measurements [default: what the .toml beside each names]
    #[arg(short, long, value_name = "TOPOLOGY", help_heading = "Machine")]
    topology: Option<String>,
    /// Profile to start from, the prior: built-in name or TOML file; several layer
    #[arg(long, value_name = "PROFILE", default_value = "prior", help_heading = "Machine")]
    profile: Vec<String>,
    /// Launch mode of rows that do not say theirs
    #[arg(long, value_name = "MODE")]
    launch: Option<String>,
    /// Smallest size that counts, in nccl-tests' column
    #[arg(long, value_name = "SIZE", default_value = "1K")]
    min_size: String,
    /// Fit these parameters only; `latency.` takes all that begin so
    #[arg(long, value_name = "NAME[,NAME]", value_delimiter = ',', conflicts_with = "keep")]
    fit: Vec<String>,
    /// Leave these parameters at their prior
    #[arg(long, value_name = "NAME[,NAME]", value_delimiter = ',')]
    keep: Vec<String>,
    /// Hold rows back by: source, run, collective, algorithm, protocol, ranks, channels, size, all or none
    #[arg(long, value_name = "BY[,BY]", value_delimiter = ',', default_value = "run")]
    split: Vec<String>,
    /// Also write, into a folder, a profile fitted without each source: SOURCE.toml
    #[arg(long, value_name = "DIR")]
    held_out: Option<PathBuf>,
    /// Groups in which runs are held back; other splits hold back one value at a time
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..))]
    folds: u16,
    /// Name of the profile [default: the stem of --output]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Accept our own predictions as measurements
    #[arg(long)]
    allow_predicted: bool,
    /// Write the profile there
    #[arg(short, long, value_name = "PROFILE")]
    output: Option<PathBuf>,
    /// How to print the report
    #[arg(long, value_parser = formats(), default_value = "table", help_heading = "Output")]
    format: Format,
}

/// Rows that are shown with the largest held-out errors.
const WORST: usize = 5;
/// Source of a value that was fitted.
const FITTED: &str = "fitted to `data`";

pub(crate) fn run(args: &Args, given: &Named) -> Result<ExitCode, CliError> {
    let started = Instant::now();
    let splits = splits(&args.split)?;
    if !splits.contains(&Split::Run) {
        given.without(&["--folds"], "only runs are held back in groups", "leave it out, or add --split run")?;
    }
    let may = names(&args.fit, &args.keep)?;
    let min_size = collcast_sim::units::parse_size(&args.min_size)
        .map_err(|e| CliError::usage(format!("--min-size: {e}"), "sizes look like 1K or 64KiB"))?;
    let launch = (args.launch.as_deref())
        .map(|l| l.parse::<Launch>().map_err(|e| CliError::Usage { message: e.to_string(), hint: None }))
        .transpose()?;
    let options = ReadOptions { allow_predicted: args.allow_predicted, keep_duplicates: false };
    let read = read_paths(&args.measurements, &options)?;
    can_be_asked(&read.files)?;
    let machines = Machines::of(&read, args.topology.as_deref())?;
    let profile = MachineArgs { profile: args.profile.clone(), ..MachineArgs::default() };
    let (prior, mut inputs) = profile.load_profile(&machines.topologies[0])?;
    let usable = usable(&read, &machines, &prior, launch, min_size.0)?;
    inputs.extend(read.files.iter().filter(|f| f.rows > 0).map(|f| Input {
        name: "measurements".to_owned(),
        path: Some(f.path.display().to_string()),
        hash: f.hash.clone(),
    }));

    let samples: Vec<Sample> = usable.rows.iter().map(|(_, sample)| sample.clone()).collect();
    let study = Study::new(&machines.topologies, &prior, samples).map_err(error)?;
    say!(
        "{} rows of {} runs, {} kernels, {} parameters enter",
        study.samples().len(),
        study.samples().iter().map(|s| &s.run).collect::<BTreeSet<_>>().len(),
        study.cases(),
        study.constants().len()
    );
    let all: Vec<usize> = (0..study.samples().len()).collect();
    let mut fit = study.fit(&all, &|name| may(name)).map_err(error)?;
    say!("fitted in {} steps, {:.1} s", fit.steps, started.elapsed().as_secs_f64());
    let mut crossed = BTreeMap::new();
    let describe = |fit: Fit, name: &str, rows: &[usize]| describe(fit, name, rows, args, &usable, &machines);
    let stem = args.output.as_ref().and_then(|p| p.file_stem()).map(|s| s.to_string_lossy().into_owned());
    let name = args.name.clone().or(stem).unwrap_or_else(|| "fitted".to_owned());
    if let Some(folder) = &args.held_out {
        let (judged, fits) = study.apart(Split::Source, &|name| may(name)).map_err(error)?;
        std::fs::create_dir_all(folder).map_err(|source| CliError::File {
            what: "make the folder",
            path: folder.clone(),
            source,
        })?;
        for (source, fit) in fits {
            let rows: Vec<usize> = all.iter().copied().filter(|&r| study.samples()[r].source != source).collect();
            let fit = describe(fit, &format!("{name} without {source}"), &rows);
            let path = folder.join(format!("{}.toml", plain(&source)));
            write(Some(&path), profile_text(&fit).as_bytes())?;
        }
        crossed.insert(Split::Source, judged);
        say!("fitted without each source, {:.1} s", started.elapsed().as_secs_f64());
    }
    for &split in splits.iter().filter(|&&s| s != Split::Source || args.held_out.is_none()) {
        let folds = (split == Split::Run).then_some(usize::from(args.folds));
        crossed.insert(split, study.cross(&fit, split, folds).map_err(error)?);
        say!("held back by {}, {:.1} s", split.name(), started.elapsed().as_secs_f64());
    }
    // Who measured tells more apart than runs of one machine do.
    let held = |split: Split| Some((split, crossed.get(&split).filter(|c| !c.held.is_empty())?));
    let (by, unseen) = held(Split::Source).or_else(|| held(Split::Run)).unzip();
    fit = describe(fit, &name, &all);
    if let Some(crossed) = unseen {
        fit.profile.spreads = spreads(study.samples(), &crossed.held, &all);
    }

    let mut report = Report::new("calibrate", env!("CARGO_PKG_VERSION"));
    report.inputs = inputs;
    let of = |t: &Topology| format!("topology {}: {} GPUs", t.name, t.ranks());
    report.assumptions = machines.topologies.iter().map(of).collect();
    report.assumptions.extend([
        format!("starts from profile {}", args.profile.join(" + ")),
        format!("{} rows from {} B up, {} left out as smaller", study.samples().len(), min_size.0, usable.small),
    ]);
    report.warnings = read.files.iter().filter_map(FileReport::defect).chain(cut_runs(&read.files)).collect();
    report.warnings.extend(usable.skipped.iter().map(|(why, n)| format!("{n} rows are not predicted: {why}")));
    report.warnings.extend(machines.topologies.first().into_iter().flat_map(|t| left_aside(&read.files, t)));
    report.warnings.extend(fit.estimates.iter().filter(|e| e.at_bound).map(|e| {
        format!("`{}` ended at a bound, {:.4}: a mechanism may be missing, or the topology wrong", e.constant, e.value)
    }));
    let people = args.format == Format::Table;
    report.tables.push(parameter_table(&fit, people));
    report.tables.push(error_table(&study, &fit, (by, unseen), people));
    report.tables.push(split_table(&study, &fit, &crossed, people));
    report.tables.push(worst_table(&usable, &fit, unseen));
    report.verdict = Some(verdict(&fit, unseen, args));
    if let Some(path) = &args.output {
        write(Some(path), profile_text(&fit).as_bytes())?;
    }
    OutputArgs { format: Some(args.format), output: None }.print(&report, None)?;
    Ok(ExitCode::SUCCESS)
}

fn error(error: CalibrateError) -> CliError {
    match error {
        CalibrateError::Predict(error) => error.into(),
        CalibrateError::NoRows => CliError::usage(
            "no row of the measurements can be used",
            "they need a size of --min-size or more, a time, and as many ranks as the machine has GPUs or fewer",
        ),
        CalibrateError::NothingToFit => CliError::usage(error.to_string(), "leave out --fit and --keep"),
    }
}

fn splits(names: &[String]) -> Result<Vec<Split>, CliError> {
    let mut splits = Vec::new();
    for name in names {
        match Split::ALL.into_iter().find(|s| s.name() == name) {
            Some(split) => splits.push(split),
            None if name == "all" => splits.extend(Split::ALL),
            None if name == "none" => {}
            None => {
                let known = Split::ALL.map(Split::name);
                let hint = nearest(name, known).map_or_else(
                    || format!("it is one of {}, all, none", known.join(", ")),
                    |near| format!("did you mean `{near}`?"),
                );
                return Err(CliError::usage(format!("--split: `{name}` is no property of rows"), hint));
            }
        }
    }
    Ok(splits)
}

/// Which parameters may move, by the flags.
fn names(fit: &[String], keep: &[String]) -> Result<impl Fn(&str) -> bool, CliError> {
    for (flag, name) in fit.iter().map(|n| ("--fit", n)).chain(keep.iter().map(|n| ("--keep", n))) {
        if !Constant::ALL.iter().any(|c| c.name().starts_with(name.as_str())) {
            let hint = Constant::near(name).map_or_else(
                || "`sim/profiles/prior.toml` lists all of them".to_owned(),
                |near| format!("did you mean `{near}`?"),
            );
            return Err(CliError::usage(format!("{flag}: there is no parameter `{name}`"), hint));
        }
    }
    let (fit, keep) = (fit.to_vec(), keep.to_vec());
    let any = |names: &[String], name: &str| names.iter().any(|n| name.starts_with(n.as_str()));
    Ok(move |name: &str| (fit.is_empty() || any(&fit, name)) && !any(&keep, name))
}

/// Rows that can be fitted to, and what became of the others.
struct Usable<'r> {
    rows: Vec<(&'r Measurement, Sample)>,
    skipped: BTreeMap<String, usize>,
    small: usize,
}

/// The machines that measurements are from, and which one each file is of.
struct Machines {
    topologies: Vec<Topology>,
    files: BTreeMap<String, MachineOf>,
}

/// What files of one machine share: its name, the NCCL version, the most hosts to look at.
type Kind<'f> = (&'f str, Option<&'f str>, Option<u32>);

/// What is known of the rows of one file.
struct MachineOf {
    machine: usize,
    source: String,
    report: FileReport,
    data: DataFile,
    nccl: Option<String>,
}

impl Machines {
    /// Of all files the one that is asked for, else of each what the `.toml` beside it names.
    fn of(read: &ReadReport, asked: Option<&str>) -> Result<Self, CliError> {
        let mut rows: BTreeMap<&str, Vec<&Measurement>> = BTreeMap::new();
        for row in &read.measurements {
            rows.entry(row.origin.file.as_str()).or_default().push(row);
        }
        let mut kinds: BTreeMap<Kind<'_>, Vec<&FileReport>> = BTreeMap::new();
        for file in read.files.iter().filter(|f| f.rows > 0) {
            let machine = asked.or(file.machine.as_deref()).ok_or_else(|| {
                CliError::usage(
                    format!("{}: the measurements do not say which machine they are from", file.path.display()),
                    "name it with `-t TOPOLOGY` (collcast topo list), or put `topology = \"...\"` in a .toml beside the file",
                )
            })?;
            kinds.entry((machine, file.nccl.as_deref(), file.hosts_at_most)).or_default().push(file);
        }
        let mut machines = Self { topologies: Vec::new(), files: BTreeMap::new() };
        for ((name, nccl, at_most), files) in kinds {
            let path = |file: &FileReport| file.path.display().to_string();
            let of = files.iter().filter_map(|f| rows.get(path(f).as_str())).flatten().copied();
            let (nodes, gpus) = hosts_of_rows(name, (None, None), at_most, of)?;
            let machine = MachineArgs { machine: Some(name.to_owned()), gpus, ..MachineArgs::default() };
            let mut topology = machine.load(nodes)?;
            topology.software.nccl = nccl.map(str::to_owned).or(topology.software.nccl);
            for file in files {
                let of = MachineOf {
                    machine: machines.topologies.len(),
                    source: file.publisher.clone().unwrap_or_else(|| path(file)),
                    report: file.clone(),
                    data: DataFile { file: path(file), hash: file.hash.clone(), rows: 0 },
                    nccl: file.nccl.clone(),
                };
                machines.files.insert(path(file), of);
            }
            machines.topologies.push(topology);
        }
        if machines.topologies.is_empty() {
            return Err(error(CalibrateError::NoRows));
        }
        Ok(machines)
    }
}

fn usable<'r>(
    read: &'r ReadReport,
    machines: &Machines,
    prior: &Profile,
    launch: Option<Launch>,
    min_size: u64,
) -> Result<Usable<'r>, CliError> {
    let predictors: Vec<Predictor<'_>> = machines.topologies.iter().map(|t| Predictor::new(t, prior)).collect();
    let mut skipped: BTreeMap<String, usize> = BTreeMap::new();
    let (small, large): (Vec<_>, Vec<_>) = read.measurements.iter().partition(|row| row.size.0 < min_size);
    let results: Vec<Result<(&Measurement, Sample), String>> = (large.par_iter())
        .map(|&row| {
            let of = machines.files.get(&row.origin.file).ok_or("their file names no machine")?;
            let (machine, predictor) = (of.machine, &predictors[of.machine]);
            if let Some(reason) = not_predicted(row, predictor.topology()) {
                return Err(reason);
            }
            let Question { mut call, algorithm, protocol, settings } =
                question(row, Some(of.report.env_of(&row.run)), predictor, launch);
            // An all-reduce in place and one out of place are the same schedule, but for registered buffers.
            call.in_place &= call.collective != Collective::AllReduce || settings.registered;
            let resolved = predictor.resolve(&call, algorithm, protocol, &settings).map_err(|e| e.to_string())?;
            if let Some((algorithm, protocol)) = resolved.instead_of {
                return Err(format!("NCCL picks {algorithm}/{protocol}, which is not modelled"));
            }
            let graphs = predictor.graph(row.ranks, &settings);
            let nccl = predictor.model(&graphs, &settings).predicted_us(&call, resolved.algorithm, resolved.protocol);
            let settings =
                collcast_sim::predict::Settings { channels: settings.channels.or(resolved.channels), ..settings };
            // A name of a run means one thing in one file; our own files have many curves in one run.
            let set = &row.settings;
            let forced = (row.collective, row.ranks, set.algorithm, set.protocol, set.channels);
            let run = format!("{}:{} {forced:?}", row.origin.file, row.run);
            let (algorithm, protocol) = (resolved.algorithm, resolved.protocol);
            let (time_us, nccl_us) = (row.time.as_us(), nccl.map(f64::from));
            let source = of.source.clone();
            Ok((row, Sample { source, machine, run, call, algorithm, protocol, settings, time_us, nccl_us }))
        })
        .collect();
    let mut rows = Vec::new();
    for result in results {
        match result {
            Ok(row) => rows.push(row),
            Err(reason) => *skipped.entry(reason).or_default() += 1,
        }
    }
    if rows.is_empty() {
        let reasons: Vec<String> = skipped.iter().map(|(reason, n)| format!("{n}: {reason}")).collect();
        let most = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) };
        return Err(CliError::usage(
            format!("no row of the measurements can be used{most}"),
            format!(
                "rows need {min_size} B or more (--min-size) and at most {} ranks; `collcast validate` lists what was read",
                machines.topologies.iter().map(Topology::ranks).max().unwrap_or(0)
            ),
        ));
    }
    Ok(Usable { rows, skipped, small: small.len() })
}

/// Completes the profile of a fit to some of the rows: its name, evidence, data and domain.
fn describe(mut fit: Fit, name: &str, rows: &[usize], args: &Args, usable: &Usable<'_>, machines: &Machines) -> Fit {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for &r in rows {
        *counts.entry(usable.rows[r].0.origin.file.as_str()).or_default() += 1;
    }
    let of: Vec<&MachineOf> = counts.keys().filter_map(|file| machines.files.get(*file)).collect();
    let versions: BTreeSet<&str> = of.iter().filter_map(|f| f.nccl.as_deref()).collect();
    let versions: Vec<&str> = versions.into_iter().collect();
    let nccl = if versions.is_empty() { String::new() } else { format!(", NCCL {}", versions.join(" and ")) };
    let profile = &mut fit.profile;
    profile.name = name.to_owned();
    profile.evidence = format!("{}: {} rows{nccl}", command(args), rows.len());
    // A built-in profile is found again by its name; what else was below has to be named by who uses it.
    let below = args.profile.first().filter(|p| args.profile.len() == 1 && *p != "prior");
    profile.over = below.filter(|p| Profile::builtin_text(p).is_some()).cloned();
    for Estimate { constant, .. } in fit.estimates.iter().filter(|e| e.identified) {
        let fitted = Parameter { origin: OriginKind::Fitted, source: FITTED.to_owned(), ..profile[*constant].clone() };
        profile.parameters.insert(*constant, fitted);
    }
    let rows_of = |f: &&MachineOf| DataFile { rows: counts[f.data.file.as_str()], ..f.data.clone() };
    profile.data = of.iter().map(rows_of).collect();
    profile.anchors.clear();
    profile.spreads.clear();
    // The family's name: `H200` of `H200-SXM5-141GB`.
    let seen: BTreeSet<usize> = of.iter().map(|f| f.machine).collect();
    let models: BTreeSet<String> = (seen.iter().map(|&m| &machines.topologies[m]))
        .flat_map(|t| (0..t.ranks()).filter_map(|r| t.gpu(t.gpu_of(Rank(r)))))
        .filter_map(|gpu| gpu.model.split('-').next().map(str::to_owned))
        .filter(|model| !model.is_empty())
        .collect();
    profile.gpus = models.into_iter().collect();
    let launches: BTreeSet<Launch> = rows.iter().map(|&r| usable.rows[r].1.settings.launch).collect();
    profile.launches = launches.into_iter().collect();
    let samples = rows.iter().map(|&r| &usable.rows[r].1);
    profile.set_domain(samples.map(|s| (s.algorithm, s.protocol, &s.call)));
    fit.profile.across_hosts = rows.iter().any(|&r| {
        let Sample { machine, call, .. } = &usable.rows[r].1;
        Predictor::new(&machines.topologies[*machine], &fit.profile).hosts(call.ranks) > 1
    });
    fit
}

/// What was asked for, as it is typed.
fn command(args: &Args) -> String {
    let paths: Vec<String> = args.measurements.iter().map(|p| p.display().to_string()).collect();
    let mut text = format!("collcast calibrate {}", paths.join(" "));
    let mut flag = |flag: &str, value: &str| text += &format!(" {flag} {value}");
    args.topology.iter().for_each(|t| flag("-t", t));
    args.profile.iter().filter(|p| *p != "prior").for_each(|p| flag("--profile", p));
    [("--fit", &args.fit), ("--keep", &args.keep)]
        .into_iter()
        .filter(|(_, names)| !names.is_empty())
        .for_each(|(name, names)| flag(name, &names.join(",")));
    text
}

/// A source's name as that of a file.
fn plain(source: &str) -> String {
    source.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect()
}

/// The profile of a fit as TOML, a parameter that was fitted a line.
fn profile_text(fit: &Fit) -> String {
    let profile = &fit.profile;
    let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
    let list = |items: Vec<String>| format!("[{}]", items.iter().map(|i| quoted(i)).collect::<Vec<_>>().join(", "));
    let mut text =
        String::from("# Fitted by `collcast calibrate`; everything else is the value of the profile below it.\n");
    let _ = writeln!(text, "schema = {}", quoted(&profile.schema));
    let _ = writeln!(text, "name = {}", quoted(&profile.name));
    let _ = writeln!(text, "evidence = {}", quoted(&profile.evidence));
    if let Some(below) = &profile.over {
        let _ = writeln!(text, "over = {}", quoted(below));
    }
    let _ = writeln!(text, "uncertainty = {}", profile.uncertainty);
    let _ = writeln!(text, "gpus = {}", list(profile.gpus.clone()));
    let _ = writeln!(text, "launches = {}", list(profile.launches.iter().map(ToString::to_string).collect()));
    let _ = writeln!(text, "across_hosts = {}", profile.across_hosts);
    let _ = writeln!(text, "choices = {}", list(profile.choices.clone()));
    if let Some(ranks) = profile.ranks {
        let _ = writeln!(text, "ranks = {ranks:?}");
    }
    for data in &profile.data {
        let (file, hash, rows) = (quoted(&data.file), quoted(&data.hash), data.rows);
        let _ = writeln!(text, "\n[[data]]\nfile = {file}\nhash = {hash}\nrows = {rows}");
    }
    for s in &profile.spreads {
        let (class, low, high, rows) = (quoted(&s.class), s.low, s.high, s.rows);
        let _ = writeln!(text, "\n[[spreads]]\nclass = {class}\nlow = {low:.4}\nhigh = {high:.4}\nrows = {rows}");
    }
    text += "\n[parameters]\n";
    let fitted: BTreeSet<Constant> = fit.estimates.iter().filter(|e| e.identified).map(|e| e.constant).collect();
    for constant in fitted {
        let p = &profile[constant];
        let interval = p.interval.map_or_else(String::new, |[low, high]| format!(", interval = [{low:.4}, {high:.4}]"));
        let origin = toml::Value::try_from(p.origin).map_or_else(|_| String::new(), |v| v.to_string());
        let _ = writeln!(
            text,
            "{} = {{ value = {:.4}, origin = {origin}, source = {}{interval} }}",
            quoted(constant.name()),
            p.value,
            quoted(&p.source)
        );
    }
    text
}

fn parameter_table(fit: &Fit, people: bool) -> Table {
    let columns = [
        Column::text("parameter", "parameter"),
        Column::text("unit", "unit"),
        Column::number("value", "value"),
        Column::number("low", "low"),
        Column::number("high", "high"),
        Column::number("prior", "prior"),
        Column::text("identified", "identified"),
        Column::number("error_at_prior", if people { "error % at prior" } else { "error at prior" }),
    ];
    let mut table = Table::new("parameters", "parameters, with 90% intervals", columns);
    for e in &fit.estimates {
        table.push([
            e.constant.name().into(),
            e.constant.spec().unit.into(),
            Cell::float(e.value, 4),
            Cell::float(e.interval.0, 4),
            Cell::float(e.interval.1, 4),
            Cell::float(e.prior, 4),
            if e.identified { "yes" } else { "no: at its prior" }.into(),
            share(e.error_at_prior, people),
        ]);
    }
    table
}

/// Percentages for people, fractions for files.
fn share(value: f64, people: bool) -> Cell {
    if people { Cell::float(value * 100.0, 1) } else { Cell::float(value, 5) }
}

/// Error figures of some rows.
struct Figures {
    mean: f64,
    p95: f64,
    bias: f64,
}

fn figures(judged: &[Judged], rows: &[usize]) -> Figures {
    let mut errors: Vec<f64> = rows.iter().map(|&r| judged[r].error().abs()).collect();
    errors.sort_by(f64::total_cmp);
    let last = errors.len().saturating_sub(1);
    Figures {
        mean: mean(errors.iter().copied()),
        p95: errors.get((0.95 * last as f64).round() as usize).copied().unwrap_or(0.0),
        bias: mean(rows.iter().map(|&r| judged[r].error())),
    }
}

/// Errors on rows that were fitted to and on the same rows held back, by protocol, launch
/// mode and size.
fn error_table(study: &Study<'_>, fit: &Fit, (by, unseen): (Option<Split>, Option<&Crossed>), people: bool) -> Table {
    let columns = [
        Column::text("protocol", "protocol"),
        Column::text("launch", "launch"),
        Column::text("band", "size"),
        Column::number("count", "rows"),
        Column::number("train_mean_abs_error", if people { "fitted %" } else { "fitted" }),
        Column::number("mean_abs_error", if people { "held out %" } else { "held out" }),
        Column::number("p95_abs_error", "p95"),
        Column::number("bias", "bias"),
        Column::number("coverage", "in interval"),
        Column::number("width", "width"),
        Column::number("nccl_mean_abs_error", "NCCL's model"),
    ];
    let held_out = by.map_or_else(String::new, |split| format!("; held out by {}", split.name()));
    let mut table = Table::new("errors", format!("error = predicted / measured - 1{held_out}"), columns);
    let samples = study.samples();
    let inside = unseen.map(|c| coverage(samples, &c.held, &c.fold, &fit.profile));
    let mut groups: BTreeMap<(String, String, usize), Vec<usize>> = BTreeMap::new();
    for (r, sample) in samples.iter().enumerate() {
        let band = SIZE_BANDS.iter().position(|b| *b == size_band(sample.call.size().0)).unwrap_or(0);
        groups.entry((sample.protocol.to_string(), sample.settings.launch.to_string(), band)).or_default().push(r);
        groups.entry((sample.protocol.to_string(), "all".to_owned(), band)).or_default().push(r);
        groups.entry(("all".to_owned(), sample.settings.launch.to_string(), SIZE_BANDS.len())).or_default().push(r);
        groups.entry(("all".to_owned(), "all".to_owned(), SIZE_BANDS.len())).or_default().push(r);
    }
    for ((protocol, launch, band), rows) in groups {
        let held = unseen.map(|c| figures(&c.held, &rows));
        let covered: Option<Vec<(bool, f64)>> = inside.as_ref().map(|i| rows.iter().filter_map(|&r| i[r]).collect());
        let covered = covered.filter(|c| !c.is_empty());
        let width = covered.as_ref().map(|c| {
            let mut widths: Vec<f64> = c.iter().map(|c| c.1).collect();
            widths.sort_by(f64::total_cmp);
            widths[widths.len() / 2]
        });
        let nccl: Option<Vec<f64>> =
            rows.iter().map(|&r| Some(samples[r].nccl_us? / samples[r].time_us - 1.0)).collect();
        let cell = |value: Option<f64>| value.map(|v| share(v, people)).into();
        table.push([
            protocol.as_str().into(),
            launch.as_str().into(),
            SIZE_BANDS.get(band).copied().unwrap_or("all").into(),
            rows.len().into(),
            share(figures(&fit.judged, &rows).mean, people),
            cell(held.as_ref().map(|h| h.mean)),
            cell(held.as_ref().map(|h| h.p95)),
            cell(held.as_ref().map(|h| h.bias)),
            cell(covered.as_ref().map(|c| mean(c.iter().map(|c| f64::from(u8::from(c.0)))))),
            cell(width),
            cell(nccl.map(|n| mean(n.iter().map(|e| e.abs())))),
        ]);
    }
    table
}

/// By property, the error of fits without each of its values, on these.
fn split_table(study: &Study<'_>, fit: &Fit, crossed: &BTreeMap<Split, Crossed>, people: bool) -> Table {
    let columns = [
        Column::text("split", "held back by"),
        Column::text("value", "value"),
        Column::number("count", "rows"),
        Column::number("fitted_mean_abs_error", "fitted with it"),
        Column::number("train_mean_abs_error", "on the others"),
        Column::number("mean_abs_error", "held out"),
        Column::number("p95_abs_error", "p95"),
        Column::number("bias", "bias"),
    ];
    let mut table = Table::new("splits", "fits without some rows, judged on these (errors)", columns);
    for (split, crossed) in crossed.iter().filter(|(_, c)| !c.held.is_empty()) {
        let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (r, sample) in study.samples().iter().enumerate() {
            let key = match split {
                Split::Run => format!("group {}", crossed.fold[r] + 1),
                Split::Ranks => split.key(sample).trim_start_matches('0').to_owned(),
                _ => split.key(sample),
            };
            groups.entry(key).or_default().push(r);
        }
        for (key, rows) in groups {
            let held = figures(&crossed.held, &rows);
            table.push([
                split.name().into(),
                key.as_str().into(),
                rows.len().into(),
                share(figures(&fit.judged, &rows).mean, people),
                share(crossed.trained[crossed.fold[rows[0]]], people),
                share(held.mean, people),
                share(held.p95, people),
                share(held.bias, people),
            ]);
        }
    }
    table
}

fn worst_table(usable: &Usable<'_>, fit: &Fit, unseen: Option<&Crossed>) -> Table {
    let columns = [
        Column::text("run", "run"),
        Column::number("size_bytes", "size B"),
        Column::number("measured_us", "measured us"),
        Column::number("predicted_us", "predicted us"),
        Column::number("error", "error"),
        Column::text("bound", "bound by"),
        Column::text("place", "place"),
    ];
    let title = if unseen.is_some() { "the worst rows, held out" } else { "the worst rows" };
    let mut table = Table::new("worst", title, columns);
    let judged = unseen.map_or(&fit.judged, |c| &c.held);
    let mut order: Vec<usize> = (0..judged.len()).collect();
    order.sort_by(|&a, &b| judged[b].residual.abs().total_cmp(&judged[a].residual.abs()).then(a.cmp(&b)));
    for r in order.into_iter().take(WORST) {
        let (row, sample) = &usable.rows[r];
        table.push([
            row.run.as_str().into(),
            row.size.0.into(),
            Cell::float(sample.time_us, 2),
            Cell::float(judged[r].predicted_us, 2),
            Cell::float(judged[r].error(), 3),
            judged[r].bound.into(),
            format!("{}:{}", row.origin.file, row.origin.line).into(),
        ]);
    }
    table
}

fn verdict(fit: &Fit, unseen: Option<&Crossed>, args: &Args) -> Verdict {
    let rows: Vec<usize> = (0..fit.judged.len()).collect();
    let trained = figures(&fit.judged, &rows);
    let held = unseen.map(|c| figures(&c.held, &rows));
    let known = fit.estimates.iter().filter(|e| e.identified).count();
    let out = held.as_ref().map_or_else(String::new, |h| {
        format!(", {:.1}% on rows held back (bias {:+.1}%)", h.mean * 100.0, h.bias * 100.0)
    });
    let unknown = fit.estimates.len() - known;
    let at_prior = if unknown > 0 { format!(", {unknown} are not told by these rows") } else { String::new() };
    let over = held.as_ref().is_some_and(|h| h.mean > 2.0 * trained.mean);
    Verdict {
        status: if over { Status::Warning } else { Status::Ok },
        sentence: format!(
            "{known} parameters fitted to {} rows{at_prior}: mean error {:.1}%{out}",
            rows.len(),
            trained.mean * 100.0
        ),
        confidence: if rows.len() >= 200 && !over { "high" } else { "low: few rows, or worse on rows held back" }
            .to_owned(),
        basis: "fitted over the simulator".to_owned(),
        next: args.output.as_ref().map(|p| format!("collcast validate OTHER_MEASUREMENTS --profile {}", p.display())),
    }
}

//! `collcast tune`: where NCCL's own choice leaves time, what to take in its place, and as which setting.

mod advice;
mod env;
mod options;
mod write;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use collcast_hwbackend::read::{FileReport, ReadOptions, cut_runs, read_paths};
use collcast_reports::model::{Cell, Column, Input, Report, Status, Table, Verdict};
use collcast_sim::domain::Beyond;
use collcast_sim::nccl::FUNCTIONS;
use collcast_sim::predict::{Predictor, Settings};
use collcast_sim::units::Bytes;

use crate::output::{Format, OutputArgs, formats};
use crate::selectors::{CallArgs, MachineArgs, Named, UNMEASURED_SWITCHES, assumptions, default_sizes, points, trust};
use crate::validate::can_be_asked;
use advice::{Advice, Range, Regret};
use collcast::Error as CliError;
use options::{Basis, Measured, Site};

#[derive(clap::Args, Debug)]
#[command(
    after_help = "Times every algorithm and protocol that NCCL may use, and sets them against what NCCL picks by itself. \
A change is advised only where its gain exceeds the 90% interval of the forecast or, with \
--measurements, the spread of measured times. Writes into --output DIR:
  tuner.csv   for NVIDIA's example tuner plugin (NCCL_TUNER_CONFIG_FILE)
  nccl.env    NCCL_ALGO and NCCL_PROTO that slow no size, where there are such
  tune.json, tune.md   the same tables as on the terminal"
)]
#[command(mut_arg("size", default_sizes("8:8GiB:2, or those measured")))]
pub(crate) struct Args {
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    call: CallArgs,
    /// Measured times of forced algorithms and protocols: files or folders
    #[arg(long, value_name = "PATH", num_args = 1.., help_heading = "Collective")]
    measurements: Vec<PathBuf>,
    /// Print only the sizes where another choice is advised
    #[arg(long, help_heading = "Output")]
    changes_only: bool,
    /// How to print
    #[arg(long, value_parser = formats(), default_value = "table", help_heading = "Output")]
    format: Format,
    /// Folder for tuner.csv, nccl.env, tune.json and tune.md; made if it is not there
    #[arg(short, long, value_name = "DIR", help_heading = "Output")]
    output: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, given: &Named) -> Result<ExitCode, CliError> {
    let mut call = args.call.clone();
    check(&mut call)?;
    given.without(&["--explain-choice"], "every choice is explained", "leave it out")?;
    call.check(given)?;
    let topology = args.machine.load(args.machine.one_node_count()?)?;
    let (profile, mut inputs) = args.machine.load_profile(&topology)?;
    let told = call.told(&topology)?;
    let predictor = Predictor::new(&topology, &profile)
        .with_tuner(told.tuner.clone())
        .with_graphs(args.machine.graphs(&topology, call.ranks)?);
    let mut defects = Vec::new();
    let measured = if args.measurements.is_empty() {
        Measured::default()
    } else {
        let read = read_paths(&args.measurements, &ReadOptions::default())?;
        can_be_asked(&read.files)?;
        inputs.extend(read.files.iter().filter(|f| f.rows > 0).map(|f| Input {
            name: "measurements".to_owned(),
            path: Some(f.path.display().to_string()),
            hash: f.hash.clone(),
        }));
        defects.extend(read.files.iter().filter_map(FileReport::defect).chain(cut_runs(&read.files)));
        let ranks = call.ranks.unwrap_or(topology.ranks());
        Measured::of(&read.measurements, ranks, told.settings.launch, call.launch.is_some())?
    };
    let settings = Settings { launch: measured.launch.unwrap_or(told.settings.launch), ..told.settings };
    // Sizes that were measured are sites too.
    if call.size.is_none() && call.minbytes.is_none() && !measured.sizes().is_empty() {
        call.size = Some(measured.sizes().iter().map(u64::to_string).collect::<Vec<_>>().join(","));
    }
    let hosts = u32::try_from(topology.hosts().len()).unwrap_or(u32::MAX);
    let machines = BTreeMap::from([(hosts, topology.clone())]);
    let asked = options::sites(&points(&call, &machines)?, &predictor, &settings, &measured)?;
    let all = CallArgs { size: None, minbytes: None, maxbytes: None, stepfactor: None, ..call.clone() };
    let others = options::beyond(&asked, points(&all, &machines)?);
    let others = options::sites(&others, &predictor, &settings, &Measured::default())?;
    let sites = options::joined(asked, others);
    let advice = advice::advise(&sites);
    let ranges = advice::ranges(&sites, &advice);
    let env = env::find(&sites, &advice, &predictor, &settings)?;

    let mut report = Report::new("tune", env!("CARGO_PKG_VERSION"));
    report.predicted = true;
    report.inputs = inputs;
    let beyond: Beyond = sites.iter().flat_map(|s| &s.options).map(|o| o.prediction.beyond.clone()).collect();
    report.assumptions = assumptions(&topology, &profile, &settings, &beyond);
    report.assumptions.extend(told.notes);
    report.warnings.extend(defects);
    report.warnings.extend(told.warnings);
    report.assumptions.extend(measured.note());
    if beyond.switches() {
        report.assumptions.push(UNMEASURED_SWITCHES.to_owned());
    }
    let asked: Vec<&Site> = sites.iter().filter(|s| !s.beyond).collect();
    let of = |what: &dyn Fn(&Site) -> bool| asked.iter().filter(|s| what(s)).count();
    let not_modelled = of(&|s| s.not_modelled().is_some());
    if not_modelled > 0 {
        report.warnings.push(format!(
            "not_modelled: at {not_modelled} of {} sizes NCCL picks what has no schedule here; nothing is advised there",
            asked.len()
        ));
    }
    let contradicted = of(&Site::is_contradicted);
    if contradicted > of(&|s| s.default_option().measured.is_some()) / 2 {
        report.warnings.push(format!(
            "at {contradicted} of {} sizes NCCL's choice took other than the forecast's interval; `collcast validate` says whether machine or model is at fault",
            asked.len()
        ));
    }
    let shown: Vec<&Range> = ranges.iter().filter(|r| !args.changes_only || r.changes).collect();
    report.tables.push(advice_table(&shown, args.format == Format::Table));
    report.tables.push(regret_table(&advice::regrets(&sites)));
    report.tables.push(env.table());
    report.verdict = Some(verdict(&sites, &advice, &env, args.output.is_some(), trust(&beyond)));
    if let Some(folder) = &args.output {
        let machine = write::Machine { name: &topology.name, hosts, ranks: sites[0].call.ranks };
        write::folder(folder, &report, &write::tuner_csv(&sites, &advice, &machine), &env.text(&machine))?;
    }
    OutputArgs { format: Some(args.format), output: None }.print(&report, None)?;
    Ok(ExitCode::SUCCESS)
}

/// A range that goes beyond this has no end.
const END: u64 = 1 << 60;

/// What of the selectors has no meaning here.
fn check(call: &mut CallArgs) -> Result<(), CliError> {
    call.no_split("tune")?;
    let free = call.algorithm == "auto" && call.protocol == "auto";
    if !free || call.schedule.is_some() || call.counts.is_some() {
        return Err(CliError::usage(
            "tune compares all algorithms and protocols; --algorithm, --protocol, --schedule and --counts are not its own",
            "what may not be used goes into NCCL's environment: --env NCCL_ALGO=^nvls",
        ));
    }
    if call.collective == "all" {
        call.collective = FUNCTIONS.map(|(_, c)| c.name()).join(",");
    }
    for collective in call.collectives()? {
        if !FUNCTIONS.iter().any(|(_, known)| *known == collective) {
            return Err(CliError::usage(
                format!("NCCL has nothing to choose for {collective}: it is sends and receives"),
                format!("tunable are {}", FUNCTIONS.map(|(_, c)| c.name()).join(", ")),
            ));
        }
    }
    Ok(())
}

fn advice_table(ranges: &[&Range], people: bool) -> Table {
    let columns = [
        Column::text("collective", "collective"),
        Column::number("size_min_bytes", "from B"),
        Column::number("size_max_bytes", "to B"),
        Column::text("advice", "advice"),
        Column::text("algorithm", "algorithm"),
        Column::text("protocol", "protocol"),
        Column::number("channels", "ch"),
        Column::number("predicted_us", "us"),
        Column::text("default_algorithm", "NCCL's"),
        Column::text("default_protocol", "choice"),
        Column::number("default_predicted_us", "us"),
        Column::number("gain", "gain"),
        Column::text("basis", "basis"),
        Column::number("measured_us", "measured us"),
        Column::number("default_measured_us", "NCCL's us"),
    ];
    let mut table = Table::new("rows", "What to take", columns);
    for r in ranges {
        table.push([
            r.collective.name().into(),
            r.from.into(),
            if people && r.to > END { "end".into() } else { r.to.into() },
            if r.changes { "change" } else { "keep" }.into(),
            r.pair.0.name().into(),
            r.pair.1.name().into(),
            r.channels.into(),
            Cell::float(r.predicted_us, 2),
            r.default_pair.0.name().into(),
            r.default_pair.1.name().into(),
            Cell::float(r.default_predicted_us, 2),
            Cell::float(r.gain, 3),
            r.basis.name().into(),
            r.measured_us.map_or(Cell::Missing, |(us, _)| Cell::float(us, 2)),
            r.measured_us.map_or(Cell::Missing, |(_, us)| Cell::float(us, 2)),
        ]);
    }
    table
}

fn regret_table(regrets: &[Regret]) -> Table {
    let columns = [
        Column::text("collective", "collective"),
        Column::text("basis", "by"),
        Column::number("sizes", "sizes"),
        Column::number("default_mean", "NCCL's mean"),
        Column::number("default_max", "max"),
        Column::number("default_max_at_bytes", "at B"),
        Column::number("forecast_mean", "forecast's mean"),
        Column::number("forecast_max", "max"),
    ];
    let mut table = Table::new("regret", "Time lost to the best choice, as a fraction of it", columns);
    for r in regrets {
        table.push([
            r.collective.name().into(),
            r.basis.name().into(),
            r.sizes.into(),
            Cell::float(r.default.mean, 3),
            Cell::float(r.default.max, 3),
            r.default.at.into(),
            r.forecast.as_ref().map_or(Cell::Missing, |f| Cell::float(f.mean, 3)),
            r.forecast.as_ref().map_or(Cell::Missing, |f| Cell::float(f.max, 3)),
        ]);
    }
    table
}

fn verdict(
    sites: &[Site],
    advice: &[Option<Advice>],
    env: &env::Env,
    written: bool,
    (status, confidence, basis): (Status, String, String),
) -> Verdict {
    let best = sites.iter().zip(advice).filter_map(|(s, a)| Some((s, a.as_ref()?))).max_by(|a, b| {
        let gain = |a: &(&Site, &Advice)| a.1.gain;
        gain(a).total_cmp(&gain(b))
    });
    let changes = advice.iter().flatten().count();
    let asked = sites.iter().filter(|s| !s.beyond).count();
    let Some((site, advice)) = best else {
        return Verdict {
            status,
            sentence: format!(
                "NCCL's choice stands at {}: nothing beats it beyond doubt",
                if asked == 1 { "the one size".to_owned() } else { format!("all {asked} sizes") }
            ),
            confidence,
            basis,
            next: Some("with forced runs of nccl-tests as --measurements smaller gains show".to_owned()),
        };
    };
    let option = &site.options[advice.option];
    let sentence = format!(
        "{changes} of {asked} sizes gain, most {} at {}: {}/{} in place of {}/{} saves {:.0}%{}",
        site.call.collective,
        Bytes(site.call.size().0),
        option.pair.0,
        option.pair.1,
        site.default_option().pair.0,
        site.default_option().pair.1,
        100.0 * advice.gain,
        if env.lines.is_empty() { "; no environment variable alone does it" } else { "" },
    );
    let next = if written {
        "load tuner.csv with NVIDIA's example tuner, or source nccl.env; measure again and `collcast compare`"
    } else {
        "`--output DIR` writes the settings"
    };
    let measured = advice.basis == Basis::Measured;
    Verdict {
        status: if measured { Status::Ok } else { status },
        sentence,
        confidence: if measured { "high: measured here".to_owned() } else { confidence },
        basis: if measured { "measured".to_owned() } else { basis },
        next: Some(next.to_owned()),
    }
}

//! `collcast bench`: runs calls for real, checks every element of every result, and times them.

mod worker;

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use collcast_hwbackend::cuda::{Cuda, gpus};
use collcast_hwbackend::exec::{Case, Effort, Executor, Sample};
use collcast_hwbackend::host::Host;
use collcast_hwbackend::nccl::p2p::NcclP2p;
use collcast_hwbackend::rendezvous::World;
use collcast_hwbackend::verbs;
use collcast_reports::model::{Cell, Column, Report, Status, Table, Verdict};
use collcast_reports::nccl_tests::{self, NcclTests, NcclTestsRow};
use collcast_sim::collective::{Algorithm, Collective, Launch, Protocol};
use collcast_sim::nccl::{NcclSettings, is_read};
use collcast_sim::predict::{Choice, Predictor, Settings};
use collcast_sim::topology::Topology;

use crate::output::write;
use crate::output::{Format, OutputArgs, with_nccl_tests};
use crate::selectors::{CallArgs, MachineArgs, Named, Point, default_sizes, points};
use collcast::Error as CliError;
use collcast::files::{is_regular, read_text};
use collcast::views::forecast::schedule_hash;

pub(crate) use worker::run as work;

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Backend {
    /// Schedules on CPU threads: works everywhere, says nothing of a GPU's speed
    Host,
    /// Schedules on the GPUs of this host, by an interpreter kernel
    Cuda,
    /// NCCL's own collectives; under torchrun, mpirun or srun one process a GPU
    Nccl,
    /// Schedules on the GPUs of this host, every slice a message of ncclSend and ncclRecv
    NcclP2p,
    /// Schedules over RDMA verbs: not there yet
    Verbs,
}

#[derive(clap::Args, Debug)]
#[command(after_help = "Every element of every result is compared with its exact value; a wrong one ends the command.
-o NAME.csv also writes NAME.toml: command, date, launch, hardware, which `validate` reads. It replaces only what an \
earlier `bench` wrote there.
With --backend nccl, {rank} in a value of --env is the rank: --env NCCL_HOSTID=h{rank} --launch processes makes NCCL \
take every process for a host of its own.
Under torchrun, mpirun or srun start this command in every process; rank 0 prints.")]
#[command(mut_arg("format", with_nccl_tests))]
#[command(mut_arg("size", default_sizes("8:1GiB:2, on CPU threads 8:1MiB:2")))]
pub(crate) struct Args {
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    call: CallArgs,
    /// Who runs the calls
    #[arg(long, value_enum, default_value = "host", help_heading = "Measurement")]
    backend: Backend,
    /// Operations back to back in a batch; fewer for long operations
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000), help_heading = "Measurement")]
    iterations: u32,
    /// Batches, each of which gives one time; the median is reported
    #[arg(long, value_name = "N", default_value_t = 21, value_parser = clap::value_parser!(u32).range(3..=10_000), help_heading = "Measurement")]
    batches: u32,
    /// Operations before the first that counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=100_000), help_heading = "Measurement")]
    warmup: u32,
    /// Seconds that the batches of one point may take together
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = seconds, help_heading = "Measurement")]
    budget: f64,
    /// Seconds that a device may wait for a peer
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = seconds, help_heading = "Measurement")]
    watchdog: f64,
    /// Let NCCL use NVLink multicast (NVLS); off by default
    #[arg(long, help_heading = "Measurement")]
    nvls: bool,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|s| (0.001..=3600.0).contains(s)).ok_or_else(|| "seconds from 0.001 to 3600".to_owned())
}

impl Args {
    /// Refuses what no run of this back end would heed.
    fn check(&self, given: &Named) -> Result<(), CliError> {
        let forecast = ["--graph", "--cold", "--registered", "--explain-choice"];
        given.without(
            &forecast,
            "it changes a forecast, and this is a run",
            "leave it out, or use `collcast sweep`",
        )?;
        if !matches!(self.backend, Backend::Nccl | Backend::NcclP2p) {
            given.without(&["--nvls"], "only NCCL has NVLS", "leave it out, or use --backend nccl")?;
        }
        if self.backend == Backend::Nccl {
            given.without(&["--schedule"], "NCCL runs its own", "use --backend nccl-p2p, cuda or host")?;
            let why = "NCCL is the one that is installed";
            given.without(&["--nccl"], why, "leave it out; LD_LIBRARY_PATH says which is found")?;
        }
        self.call.check(given)
    }
}

/// One point with what is known about it before it runs.
pub(crate) struct Planned {
    pub(crate) point: Point,
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) protocol: Option<Protocol>,
    pub(crate) channels: Option<u32>,
}

/// A point that was measured.
pub(crate) struct Row {
    pub(crate) planned: usize,
    pub(crate) sample: Sample,
    /// Of the schedule that was run, where one was.
    pub(crate) schedule: Option<u64>,
}

/// What a run of several points gave.
#[derive(Default)]
pub(crate) struct Measured {
    pub(crate) rows: Vec<Row>,
    pub(crate) facts: Vec<(String, String)>,
    pub(crate) interrupted: bool,
    pub(crate) error: Option<CliError>,
}

pub(crate) fn run(args: &Args, given: &Named) -> Result<ExitCode, CliError> {
    args.call.no_split("bench")?;
    args.check(given)?;
    let beside = beside(args.output.output.as_deref())?;
    let world = match args.backend {
        Backend::Nccl => World::from_env(&|name| std::env::var(name).ok())?,
        Backend::Verbs => match verbs::open()? {},
        Backend::NcclP2p if std::env::var_os("NCCL_NVLS_ENABLE").is_none() => return worker::with_environment(args),
        Backend::Host | Backend::Cuda | Backend::NcclP2p => None,
    };
    let topology = args.machine.load(args.machine.one_node_count()?)?;
    if args.machine.name().is_none() {
        say!("note: no topology given; channels and `auto` are planned as on `{}`", topology.name);
    }
    let mut call = args.call.clone();
    if call.launch.is_none() && args.backend != Backend::Nccl {
        if topology.hosts().len() > 1 {
            say!("note: the hosts of `{}` are played by this one", topology.name);
        }
        let launch = if args.backend == Backend::NcclP2p { Launch::SingleThread } else { Launch::Threads };
        call.launch = Some(launch.name().to_owned());
    }
    if call.size.is_none() && call.minbytes.is_none() && call.maxbytes.is_none() {
        let default = if args.backend == Backend::Host { "8:1MiB:2" } else { "8:1GiB:2" };
        say!("note: no size given; these are {default}");
        call.size = Some(default.to_owned());
    }
    if call.ranks.is_none() {
        call.ranks = match (&world, args.backend) {
            (Some(world), _) => Some(world.size),
            (None, Backend::Host) => None,
            (None, _) => {
                let machine = &args.machine;
                let named = machine.name().is_some() || machine.gpus.is_some() || !machine.nodes.is_empty();
                Some(ranks_here(gpus()?, &topology, named)?)
            }
        };
    }
    if world.is_some() && call.launch.is_none() {
        call.launch = Some(Launch::Processes.name().to_owned());
    }
    let launch = call.launch(topology.hosts().len())?;
    if world.is_some() && launch != Launch::Processes {
        return Err(CliError::usage(
            format!("--launch {launch} under a launcher of processes"),
            "leave --launch out, or start the command once, without torchrun, mpirun or srun",
        ));
    }
    let told = call.told(&topology)?.settings;
    let planned = plan(args, &call, &told, &topology)?;
    let effort = Effort {
        warmup: args.warmup,
        iterations: args.iterations,
        batches: args.batches,
        budget: Duration::from_secs_f64(args.budget),
        patience: Duration::from_secs_f64(args.watchdog),
    };
    let stop = Arc::new(AtomicBool::new(false));
    let handler = Arc::clone(&stop);
    // A second Ctrl-C while the first is being honoured changes nothing; rows are kept.
    let _ = ctrlc::set_handler(move || handler.store(true, Ordering::Relaxed));

    let measured = match args.backend {
        Backend::Host => schedules(&mut Host, args, &planned, &topology, &told, &effort, &stop)?,
        Backend::Cuda => schedules(&mut Cuda::open()?, args, &planned, &topology, &told, &effort, &stop)?,
        Backend::NcclP2p => schedules(&mut NcclP2p::open()?, args, &planned, &topology, &told, &effort, &stop)?,
        Backend::Nccl => worker::measure(&planned, launch, &effort, &environment(args)?, world.as_ref(), &stop),
        Backend::Verbs => match verbs::open()? {},
    };
    if world.is_some_and(|w| w.rank != 0) {
        return match measured.error {
            Some(error) => Err(error),
            None => Ok(ExitCode::SUCCESS),
        };
    }
    print(args, &planned, &measured, launch, beside.as_deref())?;
    match measured.error {
        Some(error) => Err(error),
        None if measured.interrupted => Ok(ExitCode::from(130)),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// The ranks that run where none are asked for: one a GPU. Fewer than a machine has that was asked for are
/// no run of it.
fn ranks_here(gpus: u32, topology: &Topology, named: bool) -> Result<u32, CliError> {
    let wanted = topology.ranks();
    if named && gpus < wanted {
        return Err(CliError::usage(
            format!("`{}` as asked for has {wanted} GPUs, and this host has {gpus}", topology.name),
            format!("--ranks {gpus} runs the calls on those that are here"),
        ));
    }
    Ok(gpus.min(wanted))
}

/// The .toml beside the data, for what the data cannot say itself. One that `bench` did not write stays: it
/// may be the machine.
fn beside(output: Option<&Path>) -> Result<Option<PathBuf>, CliError> {
    let Some(data) = output.filter(|path| is_regular(path)) else { return Ok(None) };
    let path = data.with_extension("toml");
    let ours = |text: &str| {
        let table = text.parse::<toml::Table>().unwrap_or_default();
        let source = table.get("source").and_then(toml::Value::as_str);
        !table.contains_key("schema") && source.is_some_and(|source| source.starts_with("collcast bench"))
    };
    let free = !path.exists() || read_text("read", &path).is_ok_and(|text| ours(&text));
    if free && path != data {
        return Ok(Some(path));
    }
    Err(CliError::usage(
        format!(
            "`bench` writes what was run into `{}`, beside the data, and that is {}",
            path.display(),
            if path == data { "the data itself" } else { "another file" }
        ),
        format!("take another name for the data, such as -o {}", data.with_extension("bench.csv").display()),
    ))
}

/// What NCCL's processes are given beyond the settings of a point: `--env`, and NVLS on or off.
fn environment(args: &Args) -> Result<Vec<(String, String)>, CliError> {
    let mut pairs = args.call.nccl.variables()?;
    if !args.nvls && pairs.iter().any(|(name, value)| name == "NCCL_NVLS_ENABLE" && value != "0") {
        return Err(CliError::usage("--env NCCL_NVLS_ENABLE without --nvls", "add --nvls to let NCCL use multicast"));
    }
    pairs.retain(|(name, _)| name != "NCCL_NVLS_ENABLE");
    pairs.push(("NCCL_NVLS_ENABLE".to_owned(), u8::from(args.nvls).to_string()));
    Ok(pairs)
}

/// The points, with `auto` resolved where schedules are run: NCCL resolves its own.
fn plan(args: &Args, call: &CallArgs, told: &Settings, topology: &Topology) -> Result<Vec<Planned>, CliError> {
    let hosts = u32::try_from(topology.hosts().len()).unwrap_or(u32::MAX);
    let mut points = points(call, &BTreeMap::from([(hosts, topology.clone())]))?;
    if args.output.format() == Format::NcclTests {
        // nccl-tests runs every size out of place and in place.
        let pairs = |p: &Point| matches!(p.call.collective, Collective::AllToAll | Collective::SendRecv);
        points = points
            .into_iter()
            .flat_map(|p| {
                let placed = |in_place| {
                    let mut point = p.clone();
                    point.query.call.in_place = in_place;
                    point
                };
                let both = [Some(placed(false)), (!pairs(&p)).then(|| placed(true))];
                both.into_iter().flatten()
            })
            .collect();
    }
    let (profile, _) = args.machine.load_profile(topology)?;
    let predictor = Predictor::new(topology, &profile);
    points
        .into_iter()
        .map(|point| {
            let forced = |c: Choice<Algorithm>| match c {
                Choice::Forced(a) => Some(a),
                _ => None,
            };
            let as_asked =
                args.backend == Backend::Nccl && point.algorithm != Choice::Best && point.protocol != Choice::Best;
            if as_asked {
                let protocol = match point.protocol {
                    Choice::Forced(p) => Some(p),
                    _ => None,
                };
                return Ok(Planned { algorithm: forced(point.algorithm), protocol, channels: point.channels, point });
            }
            // A prediction proves the schedule, which is what makes it fit to run.
            let predicted = point.predict(&predictor, &settings(args, &point, told))?;
            Ok(Planned {
                algorithm: Some(predicted.algorithm),
                protocol: Some(predicted.protocol),
                channels: if args.backend == Backend::Nccl { point.channels } else { Some(predicted.plan.channels) },
                point,
            })
        })
        .collect()
}

/// Settings of plan and schedule. Without NVLS, unless NCCL may use it: our backends have none.
fn settings(args: &Args, point: &Point, told: &Settings) -> Settings {
    let nvls = Some(args.nvls && args.backend == Backend::Nccl);
    Settings { channels: point.channels, nccl: NcclSettings { nvls, ..told.nccl }, ..*told }
}

/// Runs schedules, one point after another.
fn schedules(
    executor: &mut dyn Executor,
    args: &Args,
    planned: &[Planned],
    topology: &Topology,
    told: &Settings,
    effort: &Effort,
    stop: &AtomicBool,
) -> Result<Measured, CliError> {
    let (profile, _) = args.machine.load_profile(topology)?;
    let predictor = Predictor::new(topology, &profile);
    let facts = executor.facts().into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let mut measured = Measured { facts, ..Measured::default() };
    let bar = progress(planned.len());
    for (index, plan) in planned.iter().enumerate() {
        if stop.load(Ordering::Relaxed) {
            measured.interrupted = true;
            break;
        }
        let settings = settings(args, &plan.point, told);
        let (Some(algorithm), Some(protocol)) = (plan.algorithm, plan.protocol) else {
            continue;
        };
        let schedule = match &plan.point.schedule {
            Some(imported) => predictor.imported_schedule(imported, &plan.point.call, &settings)?,
            None => predictor.schedule(&plan.point.call, algorithm, protocol, &settings)?,
        };
        let case = Case { call: &plan.point.call, schedule: Some(&schedule), launch: told.launch };
        match executor.run(&case, effort) {
            Ok(sample) => {
                measured.rows.push(Row { planned: index, sample, schedule: Some(schedule.identity()) });
            }
            Err(error) => {
                measured.error = Some(CliError::from(error).at(&describe(plan)));
                break;
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let after = executor.facts().into_iter().filter(|(key, _)| *key == "clocks_mhz");
    measured.facts.extend(after.map(|(_, value)| ("clocks_mhz_after".to_owned(), value)));
    Ok(measured)
}

pub(crate) fn progress(points: usize) -> indicatif::ProgressBar {
    if std::io::stderr().is_terminal() {
        indicatif::ProgressBar::new(points as u64)
    } else {
        indicatif::ProgressBar::hidden()
    }
}

/// A point in words, for messages.
pub(crate) fn describe(plan: &Planned) -> String {
    let call = &plan.point.call;
    let name = |text: Option<&str>| text.unwrap_or("auto").to_owned();
    format!(
        "{} {}/{}, {} ranks, {}{}",
        call.collective,
        name(plan.algorithm.map(Algorithm::name)),
        name(plan.protocol.map(Protocol::name)),
        call.ranks,
        call.size(),
        if call.in_place { " in place" } else { "" },
    )
}

#[expect(clippy::cast_precision_loss, reason = "an edge")]
fn algbw(plan: &Planned, time_us: f64) -> f64 {
    plan.point.call.size().0 as f64 / time_us / 1e3
}

fn busbw(plan: &Planned, time_us: f64) -> f64 {
    algbw(plan, time_us) * plan.point.call.collective.bus_factor(plan.point.call.ranks)
}

fn print(
    args: &Args,
    planned: &[Planned],
    measured: &Measured,
    launch: Launch,
    beside: Option<&Path>,
) -> Result<(), CliError> {
    let backend = args.backend.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned());
    let mut report = Report::new("bench", env!("CARGO_PKG_VERSION"));
    let facts = |key: &str| measured.facts.iter().find(|f| f.0 == key).map(|f| f.1.clone());
    let on = facts("gpu").or_else(|| facts("host")).unwrap_or_else(|| "unknown hardware".to_owned());
    report.assumptions.push(format!("measured by backend {backend} on {on}; launch {launch}"));
    let libraries: Vec<String> =
        ["driver", "cuda", "nvrtc", "nccl_version"].iter().filter_map(|k| Some(format!("{k} {}", facts(k)?))).collect();
    if !libraries.is_empty() {
        report.assumptions.push(libraries.join(", "));
    }
    if args.backend == Backend::Nccl {
        report.assumptions.push(format!("NCCL_NVLS_ENABLE={}", u8::from(args.nvls)));
    }
    report.tables.push(table(&backend, planned, measured, launch));
    report.verdict = verdict(args.backend, planned, measured);
    let text = match args.output.format() {
        Format::NcclTests => Some(nccl_tests_text(planned, measured, &report)?),
        _ => None,
    };
    if let Some(path) = beside.filter(|_| !measured.rows.is_empty()) {
        let title = format!("collcast bench, backend {backend}, every result checked");
        let mut text = sidecar(&title, args.machine.name(), &measured.facts, launch);
        if args.backend == Backend::Nccl {
            // What the processes inherit too: NCCL ran with it.
            let inherited = std::env::vars().filter(|(name, _)| is_read(name));
            let env = inherited.chain(environment(args)?).map(|(name, value)| named((&name, value)));
            text.insert("env".to_owned(), toml::Value::Table(env.collect()));
        }
        write(Some(path), text.to_string().as_bytes())?;
    }
    args.output.print(&report, text)
}

pub(crate) fn table(backend: &str, planned: &[Planned], measured: &Measured, launch: Launch) -> Table {
    let columns = [
        Column::text("run", "backend"),
        Column::text("collective", "collective"),
        Column::text("algorithm", "algorithm"),
        Column::text("protocol", "protocol"),
        Column::number("ranks", "ranks"),
        Column::text("launch", "launch"),
        Column::number("channels", "ch"),
        Column::text("dtype", "type"),
        Column::text("op", "op"),
        Column::number("in_place", "in place"),
        Column::number("size_bytes", "size B"),
        Column::number("time_us", "time us"),
        Column::number("time_us_p5", "p5"),
        Column::number("time_us_p95", "p95"),
        Column::number("algbw_gbps", "algbw GB/s"),
        Column::number("busbw_gbps", "busbw GB/s"),
        Column::number("checked", "checked"),
        Column::number("nccl_model_us", "NCCL says us"),
        Column::text("schedule_hash", "schedule hash"),
    ];
    let mut table = Table::new("rows", "", columns);
    for row in &measured.rows {
        let (plan, sample) = (&planned[row.planned], &row.sample);
        let call = &plan.point.call;
        let time = sample.median_us();
        table.push([
            backend.into(),
            call.collective.name().into(),
            plan.algorithm.map(Algorithm::name).into(),
            plan.protocol.map(Protocol::name).into(),
            call.ranks.into(),
            launch.name().into(),
            plan.channels.into(),
            call.dtype.name().into(),
            call.op.name().into(),
            u8::from(call.in_place).into(),
            call.size().0.into(),
            Cell::float(time, 2),
            Cell::float(sample.percentile(5), 2),
            Cell::float(sample.percentile(95), 2),
            Cell::float(algbw(plan, time), 2),
            Cell::float(busbw(plan, time), 2),
            sample.checked.into(),
            sample.predicted_us.map_or(Cell::Missing, |us| Cell::float(us, 2)),
            row.schedule.map(schedule_hash).into(),
        ]);
    }
    table
}

fn verdict(backend: Backend, planned: &[Planned], measured: &Measured) -> Option<Verdict> {
    let speed = |row: &&Row| busbw(&planned[row.planned], row.sample.median_us());
    let best = measured.rows.iter().max_by(|a, b| speed(a).total_cmp(&speed(b)))?;
    let plan = &planned[best.planned];
    let checked: u64 = measured.rows.iter().map(|r| r.sample.checked).sum();
    Some(Verdict {
        status: if measured.interrupted || measured.error.is_some() { Status::Warning } else { Status::Ok },
        sentence: format!(
            "{} of {} points ran, {checked} elements exact; best bus bandwidth {:.1} GB/s ({})",
            measured.rows.len(),
            planned.len(),
            speed(&best),
            describe(plan),
        ),
        confidence: "high: every element was compared".to_owned(),
        basis: "measured".to_owned(),
        next: Some(match backend {
            Backend::Host => "results are right; times of CPU threads say nothing of GPUs".to_owned(),
            _ => "hold it against the forecast: `collcast validate FILE.csv -t TOPOLOGY`".to_owned(),
        }),
    })
}

fn nccl_tests_text(planned: &[Planned], measured: &Measured, report: &Report) -> Result<String, CliError> {
    let series = |p: &Planned| (p.point.call.collective, p.point.algorithm, p.point.protocol, p.point.channels);
    let Some(first) = planned.first() else {
        return Err(CliError::usage("there is nothing to run", "name a size"));
    };
    if planned.iter().any(|p| series(p) != series(first)) {
        return Err(CliError::usage(
            "nccl-tests' table holds one collective, algorithm, protocol and channel count",
            "ask for one of each, or use --format table, csv or json",
        ));
    }
    let mut rows: Vec<NcclTestsRow> = Vec::new();
    for row in &measured.rows {
        let call = &planned[row.planned].point.call;
        let time = row.sample.median_us();
        if call.in_place {
            if let Some(last) = rows.last_mut() {
                last.in_place_us = Some(time);
            }
            continue;
        }
        rows.push(NcclTestsRow {
            size_bytes: call.size().0,
            count: call.count,
            data_type: call.dtype,
            redop: call.collective.reduces().then_some(call.op),
            root: call.collective.rooted().then_some(call.root.0),
            out_of_place_us: time,
            in_place_us: None,
            bus_factor: call.collective.bus_factor(call.ranks),
        });
    }
    Ok(nccl_tests::render(&NcclTests {
        collective: first.point.call.collective,
        predicted: false,
        checked: true,
        comments: report.assumptions.clone(),
        rows,
    }))
}

fn named((key, value): (&str, String)) -> (String, toml::Value) {
    (key.to_owned(), toml::Value::String(value))
}

/// The file beside the data: what the data cannot say itself.
pub(crate) fn sidecar(title: &str, topology: Option<&str>, facts: &[(String, String)], launch: Launch) -> toml::Table {
    let command: Vec<String> = std::iter::once("collcast".to_owned()).chain(std::env::args().skip(1)).collect();
    let own = [
        ("title", title.to_owned()),
        ("source", command.join(" ")),
        ("date", date()),
        ("launch", launch.name().to_owned()),
    ];
    let topology = topology.map(|name| ("topology", name.to_owned()));
    let facts = facts.iter().map(|(key, value)| (key.as_str(), value.clone()));
    own.into_iter().chain(topology).chain(facts).map(named).collect()
}

/// Today in UTC, such as 2026-11-21.
pub(crate) fn date() -> String {
    let days = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() / 86_400);
    civil(days)
}

/// The date of a day since 1970-01-01, by the calendar's 400-year cycle of 146,097 days.
fn civil(days: u64) -> String {
    let shifted = days + 719_468; // Days since 0000-03-01, so that leap days come last.
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{:04}-{month:02}-{day:02}", era * 400 + year + later)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a machine that was asked for runs whole or not at all; without one the GPUs that are here run.
    #[test]
    fn fewer_gpus_than_asked_for_are_refused() {
        let topology = collcast_topologies::load_any("dgx-h100", None, None).unwrap();
        let refused = ranks_here(4, &topology, true).unwrap_err();
        assert!(refused.code() == 2 && refused.render().contains("has 8 GPUs, and this host has 4"));
        assert!(refused.render().contains("--ranks 4"));
        assert_eq!(ranks_here(4, &topology, false).unwrap(), 4);
        assert_eq!(ranks_here(16, &topology, true).unwrap(), 8);
    }

    /// Goal: dates by value, around leap days and centuries.
    #[test]
    fn days_become_dates() {
        for (days, date) in [(0, "1970-01-01"), (11_016, "2000-02-29"), (11_017, "2000-03-01"), (20_778, "2026-11-21")]
        {
            assert_eq!(civil(days), date);
        }
    }
}

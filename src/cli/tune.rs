//! `collcast tune`: where NCCL's own choice leaves time, what to take in its place, and as which setting.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;
use collcast::bench;
use collcast::files::{read_bytes, read_text};
use collcast::step::{self, Collectives};
use collcast::tune::install::{Install, LIBRARY, doubts, undo};
use collcast::tune::{
    Budget, Communicators, Live, Objective, Outcome, ProcessSetting, Request, tune, tune_measuring, write,
};
use collcast::views::tune::Show;
use collcast::{Error, Site, SiteSpec};
use collcast_hwbackend::exec::Effort;
use collcast_sim::collective::UnknownName;
use collcast_sim::ids::Rank;
use collcast_sim::nccl::FUNCTIONS;
use collcast_tuner::table::{MadeFor, Table};

use super::bench::{Runner, inherited};
use super::call::{self, Code};
use super::output::{FormatArgs, PageArgs, write as write_to};
use super::progress::{told, watched};
use super::selectors::{CallArgs, MachineArgs, Named, OF_A_CALL, default_sizes, refused, span};

#[derive(clap::Args, Debug)]
#[command(
    after_help = "Times every algorithm and protocol that NCCL may use, and compares them with what NCCL picks by itself. \
A change is advised only where 19 of 20 such gains are real: forecasts and measured times \
count by how unsure they are.

  collcast tune h200x4 --measure --backend nccl --budget 5m -o tuned
  collcast tune dgx-h100 --nodes 64 --communicators tp=8,dp=64 -c all -o tuned

In place of a machine, a SCENARIO of `collcast simulate`: the calls of its step are tuned, \
and the step is simulated with and without the table.

--measure runs what is expected to gain most beside NCCL's own choice, in turns; a change is repeated five times. \
What changes leave of a quarter of the time is for threads and FIFOs of the whole process. \
Measured --channels are fewer than NCCL takes for a call: its variables do not raise them. Each of --communicators is measured whose ranks are on this host. \
Ctrl-C, an error, or the end of --budget keeps what was measured; an error's exit code stays. Writes into --output DIR:
  tuner.csv   for our tuner plugin (`tune install`) and NVIDIA's example (NCCL_TUNER_CONFIG_FILE)
  slurm.sh, kubernetes.yaml   the variables that load tuner.csv, and what undoes them
  measured.csv   what --measure has measured, with measured.toml; --measurements reads both again
  nccl.env    NCCL_ALGO and NCCL_PROTO that slow no size here, but may slow other communicators; threads and FIFOs that \
help all calls
  tune.json, tune.md   the same tables as on the terminal"
)]
#[command(mut_args(refused(&["algorithm", "protocol", "counts", "schedule", "explain_choice"])))]
#[command(mut_arg("size", default_sizes("8:8GiB:2, or those measured")))]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    table: Option<TableCommand>,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    call: CallArgs,
    /// Communicators that each rank is in, the innermost first as ranks are numbered: one table has lines for all of them
    #[arg(long, value_name = "NAME=RANKS[,...]", conflicts_with = "ranks", help_heading = "Collective")]
    communicators: Option<String>,
    /// What a gain counts: by the part of a call's time that is saved, by the time, or by the time of a scenario's step
    #[arg(long, value_enum, help_heading = "Collective")]
    objective: Option<ObjectiveArg>,
    /// Measured times of forced algorithms and protocols: files or folders; logs that do not say their collective are of
    /// the one that -c names
    #[arg(long, value_name = "PATH", num_args = 1.., help_heading = "Collective")]
    measurements: Vec<PathBuf>,
    /// Measure on this host what is expected to gain most
    #[arg(long, help_heading = "Measurement")]
    measure: bool,
    /// Who runs the calls
    #[arg(long, value_enum, default_value = "nccl", requires = "measure", help_heading = "Measurement")]
    backend: Runner,
    /// Time that measurements may take: all of them, such as 90s or 5m
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = span, requires = "measure", help_heading = "Measurement")]
    budget: Duration,
    /// Let NCCL use NVLink multicast (NVLS); off by default
    #[arg(long, requires = "measure", help_heading = "Measurement")]
    nvls: bool,
    /// Write in spite of doubt: also settings where the measured times do not belong together
    #[arg(long, help_heading = "Output")]
    force: bool,
    /// Print only the sizes where another choice is advised
    #[arg(long, help_heading = "Output")]
    changes_only: bool,
    #[command(flatten)]
    format: FormatArgs,
    /// Write there: the folder for tuner.csv, nccl.env, slurm.sh, kubernetes.yaml, tune.json and tune.md; made if it is not there
    #[arg(short, long, value_name = "DIR", help_heading = "Output")]
    output: Option<PathBuf>,
    #[command(flatten)]
    page: PageArgs,
}

/// See [`Objective`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum ObjectiveArg {
    /// Each size alike
    Latency,
    /// Sizes by the time that they take
    Bandwidth,
    /// Calls by the time that they take in a scenario's step
    Step,
}

/// What to do with a table that is written.
#[derive(Subcommand, Debug)]
enum TableCommand {
    /// Write the lines that load our tuner plugin with a table, and the threads and FIFOs that go with it
    Install {
        /// Folder that `tune --output` wrote, or the table in it
        #[arg(value_name = "DIR")]
        table: PathBuf,
        /// File that gets the lines on top: `/etc/nccl.conf`, or one that a shell sources; to stdout by itself
        #[arg(long, value_name = "FILE")]
        into: Option<PathBuf>,
        /// The plugin's library [default: libcollcast_tuner.so beside this program]
        #[arg(long, value_name = "FILE")]
        plugin: Option<PathBuf>,
        /// File that gets a line for each call: what NCCL asked, and what was chosen
        #[arg(long, value_name = "FILE")]
        record: Option<PathBuf>,
    },
    /// Take the lines out of a file again
    Undo {
        /// File that they are in
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

impl TableCommand {
    fn run(&self) -> Result<Code, Error> {
        match self {
            Self::Install { table, into, plugin, record } => {
                let table = if table.is_dir() { table.join("tuner.csv") } else { table.clone() };
                let made = read_text("read the table", &table)?;
                let changes = Table::check(&made).map_err(|why| {
                    let message = format!("{} is no table of `tune`: {why}", table.display());
                    Error::usage(message, "write one: collcast tune TOPOLOGY -c all --output DIR")
                })?;
                let (mark, text) = match into {
                    Some(file) if file.exists() => read_marked(file)?,
                    _ => Default::default(),
                };
                if let Some(file) = into.as_ref().filter(|file| !Install::holds_settings(file, &text)) {
                    let message = format!("{} is no script of a shell and no file of settings", file.display());
                    let hint = "name one that ends in .sh, .sbatch, .env or .conf, or begins with #!/bin/bash; without --into the lines are printed";
                    return Err(Error::usage(message, hint));
                }
                let exported = into.as_ref().is_none_or(|file| Install::is_exported(file, &text));
                let plugin = whole(&library(plugin.as_ref())?)?;
                let record = record.as_deref().map(whole).transpose()?;
                let beside = table.with_file_name("nccl.env");
                let process = match beside.is_file() {
                    true => ProcessSetting::of_file(&read_text("read the settings beside the table", &beside)?),
                    false => Vec::new(),
                };
                if changes == 0 && process.is_empty() {
                    say!("warning: {} changes none of NCCL's choices: it does as without it", table.display());
                }
                let next = MadeFor::of(&made).next;
                let install = Install { plugin, table: listed(&table)?, record, next, process, exported };
                let file = into.as_deref().unwrap_or("stdout".as_ref());
                let lines = install.added_to(file, &text)?;
                for doubt in doubts(file, &text, &lines)? {
                    say!("warning: {doubt}");
                }
                write_to(into.as_deref(), (mark.to_owned() + &lines).as_bytes())?;
            }
            Self::Undo { file } => {
                let (mark, text) = read_marked(file)?;
                write_to(Some(file), (mark.to_owned() + &undo(file, &text)?).as_bytes())?;
            }
        }
        Ok(Code::SUCCESS)
    }
}

/// A file of settings, and the byte-order mark that it begins with, which stays in front of all.
fn read_marked(file: &Path) -> Result<(&'static str, String), Error> {
    let mark = if read_bytes("read the settings", file)?.starts_with(MARK.as_bytes()) { MARK } else { "" };
    Ok((mark, read_text("read the settings", file)?))
}

/// UTF-8's byte-order mark.
const MARK: &str = "\u{feff}";

/// The plugin's library beside this program.
fn beside() -> Option<PathBuf> {
    let program = call::program().ok()?;
    let folder = program.parent()?;
    [folder.join(LIBRARY), folder.join("../lib").join(LIBRARY)].into_iter().find(|file| file.is_file())
}

/// The plugin's library, as named or beside this program.
fn library(named: Option<&PathBuf>) -> Result<PathBuf, Error> {
    named.filter(|file| file.is_file()).cloned().or_else(|| named.is_none().then(beside)?).ok_or_else(|| {
        let what = named.map_or_else(|| format!("{LIBRARY} beside this program"), |file| file.display().to_string());
        Error::usage(
            format!("there is no {what}"),
            "build it: cargo build --release -p collcast-tuner; then name it with --plugin",
        )
    })
}

/// A path that holds from every folder.
fn whole(path: &Path) -> Result<PathBuf, Error> {
    let failed = |source| Error::File { what: "find", path: path.to_owned(), source };
    std::path::absolute(path).map_err(failed)
}

/// A path that holds from every folder, and that a list of paths can have.
fn listed(path: &Path) -> Result<PathBuf, Error> {
    let whole = whole(path)?;
    if whole.to_string_lossy().contains(':') {
        let message = format!("{}: the plugin reads a `:` in the path of a table as the end of it", whole.display());
        return Err(Error::usage(message, "name a folder without `:`"));
    }
    Ok(whole)
}

pub(crate) fn run(args: &Args, given: &Named) -> Result<Code, Error> {
    if let Some(table) = &args.table {
        return table.run();
    }
    args.output.as_deref().map(listed).transpose()?;
    let mut call = args.call.clone();
    check(&mut call)?;
    given.without(&["--explain-choice"], "every choice is explained", "leave it out")?;
    let scenario = args.machine.machine.as_deref().and_then(step::Request::find);
    let mut request = request(&call, args)?;
    let told = |spec: SiteSpec| if args.measure { as_run(args, spec) } else { Ok(spec) };
    let site = match scenario {
        Some(scenario) => {
            let own: Vec<&str> = OF_A_CALL.into_iter().filter(|option| *option != "--channels").collect();
            given.without(
                &[&own[..], &["--communicators"]].concat(),
                "a scenario says itself which calls there are",
                "leave it out, or name a machine",
            )?;
            let site = SiteSpec {
                topology: args.machine.topology.clone(),
                ..call.spec(&args.machine, args.machine.one_node_count()?)?
            };
            let step = Collectives::of(&step::Request { site: told(site)?, ..scenario })?;
            let site = step.site.clone();
            (request.step, request.objective) = (Some(step), Objective::Step);
            site
        }
        None => {
            call.check(given)?;
            let spec = call.spec(&args.machine, args.machine.one_node_count()?)?;
            // One collective that was named is that of logs which do not say theirs.
            if let ([one], true) = (&request.collectives[..], given.has("--collective")) {
                request.read.collective = Some(*one);
            }
            told(spec)?.load()?
        }
    };
    request.objective = match (args.objective, &request.step) {
        (None, _) => request.objective,
        (Some(ObjectiveArg::Latency), _) => Objective::Latency,
        (Some(ObjectiveArg::Bandwidth), _) => Objective::Bandwidth,
        (Some(ObjectiveArg::Step), Some(_)) => Objective::Step,
        (Some(ObjectiveArg::Step), None) => {
            let known: Vec<&str> = collcast::scenarios::builtin::names().collect();
            return Err(Error::usage(
                "--objective step counts the calls of a scenario, and this is a machine",
                format!("name a scenario in place of the machine: a file, or {}", known.join(" ")),
            ));
        }
    };
    let outcome = if args.measure {
        measured(args, &site, request)?
    } else {
        watched("simulating choices", |watch| tune(&site, &Request { watch: watch.clone(), ..request }))?
    };
    let usable = outcome.refused.is_none() || args.force;
    let output = args.output.as_deref().filter(|_| usable);
    let (changes_only, written) = (args.changes_only, output);
    let report = |for_people| outcome.report(Show { for_people, changes_only, written });
    if let Some(folder) = output {
        let plugin = beside().map(|file| whole(&file)).transpose()?;
        write(&outcome, &report(false), &report(true), folder, plugin.as_deref())?;
    }
    args.page.write(|| report(true))?;
    args.format.print(&report(args.format.for_people()))?;
    Ok(match &outcome.ended {
        _ if !usable => Code::FAILURE,
        Some(ended) => Code::from(ended.code),
        None => Code::SUCCESS,
    })
}

/// Batches of one measured time, and the seconds that they may take: the search repeats what matters.
const BATCHES: u32 = 7;
const SECONDS: f64 = 0.3;

/// A machine whose NCCL is told what the processes of a measurement are: what they inherit, what they are given, and NVLS as
/// `--nvls` says.
fn as_run(args: &Args, spec: SiteSpec) -> Result<SiteSpec, Error> {
    let inherits = matches!(args.backend, Runner::Nccl | Runner::NcclP2p);
    let inherited: Vec<(String, String)> = if inherits { inherited().collect() } else { Vec::new() };
    let mut given = bench::environment(spec.env.clone(), args.nvls)?;
    if args.nvls {
        // NCCL takes it by itself where nothing says otherwise, and a table need not ask for that.
        let machine = spec.topology()?.software.env;
        let is_said = |(name, _): &(String, String)| name == NVLS;
        given.retain(|pair| !is_said(pair) || machine.iter().chain(&inherited).any(is_said));
    }
    Ok(SiteSpec { env: inherited.into_iter().chain(given).collect(), ..spec })
}

/// The variable that switches NVLS.
const NVLS: &str = "NCCL_NVLS_ENABLE";

/// Tunes with measurements on this host.
fn measured(args: &Args, site: &Site, mut request: Request) -> Result<Outcome, Error> {
    let (progress, watch) = told("measuring", "");
    request.watch = watch;
    let effort = Effort { batches: BATCHES, budget: Duration::from_secs_f64(SECONDS), ..Effort::default() };
    let env = args.call.nccl.variables()?;
    let Some(backend) = args.backend.backend() else {
        return Err(Error::usage("copies are no calls to tune", "use --backend nccl, cuda or host"));
    };
    let bench = bench::Request {
        effort,
        env,
        nvls: args.nvls,
        worker: call::other_program(),
        ..bench::Request::new(backend, Vec::new())
    };
    let budget = Budget { time: args.budget, ..Budget::default() };
    let outcome = tune_measuring(site, &request, &mut Live { site, request: bench, gpu: None }, budget);
    drop(progress);
    outcome
}

/// What of the selectors has no meaning here.
fn check(call: &mut CallArgs) -> Result<(), Error> {
    call.no_split("tune")?;
    let free = call.algorithm == "auto" && call.protocol == "auto";
    if !free || call.schedule.is_some() || call.counts.is_some() {
        return Err(Error::usage(
            "tune compares all algorithms and protocols; --algorithm, --protocol, --schedule and --counts are not its own",
            "what may not be used goes into NCCL's environment: --env NCCL_ALGO=^nvls",
        ));
    }
    if call.collective == "all" {
        call.collective = FUNCTIONS.map(|(_, c)| c.name()).join(",");
    }
    Ok(())
}

fn communicators(text: &str) -> Result<Communicators, Error> {
    let refused =
        |message| Error::usage(format!("--communicators: {message}"), "such as tp=8,dp=64, the innermost first");
    text.parse().map_err(refused)
}

fn request(call: &CallArgs, args: &Args) -> Result<Request, Error> {
    let measurements = &args.measurements;
    let named = |e: UnknownName| Error::Usage { message: e.to_string(), hint: None };
    // Where there are measurements, a largest size alone leaves their sizes.
    let to = call.maxbytes.is_some() && measurements.is_empty();
    let sized = call.size.is_some() || call.minbytes.is_some() || to;
    Ok(Request {
        collectives: call.collectives()?,
        sizes: sized.then(|| call.sizes()).transpose()?,
        ranks: call.ranks,
        communicators: args.communicators.as_deref().map(communicators).transpose()?,
        dtype: call.dtype.parse().map_err(named)?,
        op: call.op.parse().map_err(named)?,
        root: Rank(call.root),
        in_place: call.in_place,
        channels: call.channel_counts()?,
        measurements: measurements.clone(),
        this_launch: call.launch.is_some(),
        ..Request::default()
    })
}

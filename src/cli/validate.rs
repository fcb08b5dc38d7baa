//! `collcast validate`: measurements against the forecast, by group and as a whole.

use std::path::{Path, PathBuf};

use collcast::files::{make_folder, quoted, read_text};
use collcast::health::suspects::{Pace, Plan};
use collcast::kernels;
use collcast::next::{self, Next};
use collcast::validate::plots::plots;
use collcast::validate::{Outcome, Request, validate};
use collcast::values::percent;
use collcast::views::validate::Shown;
use collcast::{Error, SiteSpec};
use collcast_hwbackend::read::ReadOptions;
use collcast_sim::collective::UnknownName;
use collcast_sim::nccl::Version;

use super::call::Code;
use super::output::{Format, OutputArgs, PageArgs, write};
use super::progress::watched;
use super::selectors::{GateArgs, Named, NcclArgs, PlacementArgs, ReadArgs, profile_folders};

#[derive(clap::Args, Debug)]
#[command(
    after_help = "A line a size says the bus bandwidth that was measured and the one to expect, then a verdict: healthy; below \
healthy, above the limit; slow; or cannot tell. Bands of sizes are judged by what healthy machines reach, never single rows. A slow machine makes the exit \
code 1. --against holds a run beside a good one: then no topology is needed.

  collcast validate --next-runs round1 --host-names node[01-64]     which sets of hosts to run, as scripts
  collcast validate round1 --next-runs round2                       and after that, until the slow host is named

Reads nccl-tests logs (text and JSON) and CSV, files or folders. Rows that set a constant of the \
profile (its anchors) are left out of every figure. Rows where NCCL chose the algorithm are \
predicted through `auto` and grouped apart. The .toml beside a file can name machine, NCCL version and \
environment; hosts and GPUs of each follow from the rows. --nccl and --env are for files that say none.

Runs that are not as expected are simulated under each known cause (RDMA fell back to TCP, GPUDirect or \
P2P off, idle or slow NICs, slow NVLink or PCIe, a straggler, few channels, forced settings, no NVLS or \
SHARP, launch, cold start, noise); the one whose curve fits clearly best is named with what to run next. \
Logs over different sets of hosts (pairs, halves, rails) rank hosts and NICs. An anomaly of severity \
error makes the exit code 1."
)]
pub(crate) struct Args {
    /// Measurements: files or folders
    #[arg(required_unless_present = "host_names", value_name = "MEASUREMENTS")]
    measurements: Vec<PathBuf>,
    /// Built-in machine or topology file
    #[arg(short, long, value_name = "TOPOLOGY", help_heading = "Machine")]
    topology: Option<String>,
    /// Hosts
    #[arg(long, alias = "hosts", value_name = "N", help_heading = "Machine")]
    nodes: Option<u32>,
    /// GPUs of each host, from the first
    #[arg(long, value_name = "N", help_heading = "Machine")]
    gpus: Option<u32>,
    #[command(flatten)]
    placement: PlacementArgs,
    /// Profile of links and hosts: built-in name or TOML file; several layer, the later wins per parameter
    #[arg(long, value_name = "PROFILE[,PROFILE]", value_delimiter = ',', help_heading = "Machine")]
    profile: Vec<String>,
    /// Read tables of kernels (docs/formats.md): judge them by this GPU, which is a100, h100, h100-500w, h200, b200, gb200, or a TOML file
    #[arg(long, value_name = "GPU", help_heading = "Machine", conflicts_with_all = [
        "topology", "nodes", "gpus", "placement", "profile", "launch", "fail_below", "require_pass", "against", "history",
        "next_runs", "closest", "no_doctor", "plots", "collective", "allow_predicted", "nccl", "env",
    ])]
    compute: Option<String>,
    #[command(flatten)]
    nccl: NcclArgs,
    /// How kernels are started: the launch mode of rows that do not say theirs
    #[arg(long, value_name = "MODE")]
    launch: Option<String>,
    /// Fail (exit 1) when the median error of a group is larger, such as 20%: of those forced, where there are any
    #[arg(long, value_name = "PERCENT", help_heading = "Gate")]
    max_error: Option<String>,
    #[command(flatten)]
    gate: GateArgs,
    /// Judge by a run that is known to be good, in place of a forecast or a history: a file, or a folder of a fleet's runs,
    /// whose median counts; again for more
    #[arg(long, value_name = "GOOD")]
    against: Vec<PathBuf>,
    /// Folder of past runs: judge by the median of the first 8 earlier runs of the same hosts, where there are 3 or more, and record
    /// this one
    #[arg(long, value_name = "DIR")]
    history: Option<PathBuf>,
    /// Say which sets of hosts to run next, so that their times tell which host is slow, and write scripts that run them
    /// into a folder of their own
    #[arg(long, value_name = "DIR", help_heading = "Next runs")]
    next_runs: Option<PathBuf>,
    /// Hosts that sets are made of: `node[01-64]`, `a,b,c`, or @FILE with a name a line; those of the logs by themselves
    #[arg(long, value_name = "LIST", requires = "next_runs", help_heading = "Next runs")]
    host_names: Option<String>,
    /// Run sets one after the other, where they would share a fabric
    #[arg(long, requires = "next_runs", help_heading = "Next runs")]
    one_at_a_time: bool,
    /// Also name the algorithm and protocol whose prediction is closest to each row
    #[arg(long)]
    closest: bool,
    /// Do not look for the cause of what is slow
    #[arg(long)]
    no_doctor: bool,
    #[command(flatten)]
    read: ReadArgs,
    /// Write pictures into a folder: measured points on predicted curves, an SVG for each collective,
    /// number of ranks and launch mode
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    plots: Option<PathBuf>,
    /// Also print the errors of the forecasts, by group
    #[arg(long)]
    model_errors: bool,
    /// Print every row too
    #[arg(long)]
    rows: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    page: PageArgs,
}

impl Args {
    fn request(&self) -> Result<Request, Error> {
        let max_error = self.max_error.as_deref().map(|text| percent("--max-error", text)).transpose()?;
        let unknown = |e: UnknownName| Error::Usage { message: e.to_string(), hint: None };
        let version = self.nccl.nccl.as_deref().map(Version::asked).transpose();
        let version = version.map_err(|e| Error::usage(format!("--nccl: {e}"), Version::known()))?;
        let site = SiteSpec {
            topology: self.topology.clone(),
            nodes: self.nodes,
            gpus: self.gpus,
            placement: self.placement.read()?,
            profiles: self.profile.clone(),
            profile_folders: profile_folders()?,
            launch: self.launch.as_deref().map(|text| text.parse().map_err(unknown)).transpose()?,
            ..SiteSpec::default()
        };
        Ok(Request {
            site,
            max_error,
            gate: self.gate.gate()?,
            against: self.against.clone(),
            history: self.history.clone(),
            closest: self.closest,
            doctor: !self.no_doctor,
            next: self.next_runs.as_ref().map(|_| self.asked_next()).transpose()?,
            read: ReadOptions {
                nccl: version.map(|version| version.to_string()),
                env: self.nccl.variables()?.into_iter().collect(),
                ..self.read.options()?
            },
            ..Request::new(&self.measurements)
        })
    }

    fn asked_next(&self) -> Result<next::Request, Error> {
        Ok(next::Request {
            hosts: self.host_names.as_deref().map(next::host_names).transpose()?.unwrap_or_default(),
            pace: if self.one_at_a_time { Pace::OneByOne } else { Pace::Together },
            gpus: self.gpus,
        })
    }

    /// The commands that go on from a round in that folder: all that this one was told of machine and measurements.
    fn then(&self, folder: &Path) -> String {
        let [round, following] = [folder.to_string_lossy().into_owned(), following(&folder.to_string_lossy())];
        let path = |path: &PathBuf| Some(path.to_string_lossy().into_owned());
        let text = |text: &Option<String>| text.clone();
        let number = |number: Option<u32>| number.map(|n| n.to_string());
        let mut options = vec![
            ("-t", text(&self.topology)),
            ("--host-names", text(&self.host_names)),
            ("--nodes", number(self.nodes)),
            ("--gpus", number(self.gpus)),
            ("--placement", text(&self.placement.placement)),
            ("--nccl", text(&self.nccl.nccl)),
            ("--launch", text(&self.launch)),
            ("-c", self.read.collective.clone()),
            ("--fail-below", text(&self.gate.fail_below)),
            ("--max-error", text(&self.max_error)),
            ("--history", self.history.as_ref().and_then(path)),
        ];
        options.extend(self.profile.iter().map(|profile| ("--profile", Some(profile.clone()))));
        options.extend(self.nccl.env.iter().map(|variable| ("--env", Some(variable.clone()))));
        options.extend(self.against.iter().map(|good| ("--against", path(good))));
        let flags = [
            ("--one-at-a-time", self.one_at_a_time),
            ("--no-doctor", self.no_doctor),
            ("--require-pass", self.gate.require_pass),
            ("--closest", self.closest),
            ("--allow-predicted", self.read.allow_predicted),
        ];
        let mut words = vec!["collcast".to_owned(), "validate".to_owned()];
        words.extend(self.measurements.iter().filter_map(path));
        words.push(round.clone());
        words.extend(options.into_iter().filter_map(|(flag, value)| Some([flag.to_owned(), value?])).flatten());
        words.extend(flags.into_iter().filter(|flag| flag.1).map(|flag| flag.0.to_owned()));
        words.extend(["--next-runs".to_owned(), following]);
        let command: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        format!("`(cd {} && sbatch round.slurm.sh)`, then `{}`", quoted(&round), command.join(" "))
    }
}

/// The name of the folder of the round after that of this one: `round2` after `round1`.
fn following(folder: &str) -> String {
    let folder = folder.trim_end_matches('/');
    let name = folder.trim_end_matches(|c: char| c.is_ascii_digit());
    match folder[name.len()..].parse::<u32>() {
        Ok(number) => format!("{name}{}", number.saturating_add(1)),
        Err(_) => format!("{folder}2"),
    }
}

/// Writes the scripts of a round, where there is one, into a folder that no other round's logs are in.
fn write_scripts(next: &Next, folder: &Path) -> Result<(), Error> {
    let scripts = next::scripts(next);
    if scripts.is_empty() {
        say!("note: nothing is to run, so that no scripts are written");
        return Ok(());
    }
    make_folder(folder)?;
    if let Plan::Run(round) = &next.plan
        && let log = folder.join(next::log_name(1, round.sets.len()))
        && log.exists()
    {
        return Err(Error::usage(
            format!(
                "--next-runs: `{}` is there already: it is of an earlier round, which this one would replace",
                log.display()
            ),
            format!(
                "name a new folder, such as `{}`, and give that of the earlier round as measurements",
                following(&folder.to_string_lossy())
            ),
        ));
    }
    for script in &scripts {
        let path = folder.join(script.name);
        if read_text("read", &path).is_ok_and(|text| !text.contains("collcast validate")) {
            return Err(Error::usage(
                format!("--next-runs: `{}` is there already, and is no script of a round", path.display()),
                "name a new folder",
            ));
        }
        write(Some(&path), script.text.as_bytes())?;
    }
    let names: Vec<&str> = scripts.iter().map(|script| script.name).collect();
    say!("note: scripts in {}: {}", folder.display(), names.join(" "));
    Ok(())
}

/// Plans where nothing was run yet.
fn plan_first(args: &Args, folder: &Path) -> Result<Code, Error> {
    let next = next::next(&[], &[], &args.asked_next()?)?;
    write_scripts(&next, folder)?;
    args.output.print(&next.report(&args.then(folder)), None)?;
    Ok(Code::SUCCESS)
}

/// Judges tables of kernels in place of runs of collectives.
fn judge_kernels(args: &Args, gpu: &str) -> Result<Code, Error> {
    let outcome = kernels::judge(&kernels::Request {
        measurements: args.measurements.clone(),
        gpu: gpu.to_owned(),
        max_error: args.max_error.as_deref().map(|text| percent("--max-error", text)).transpose()?,
    })?;
    let format = args.output.format();
    args.page.write(|| outcome.report(true))?;
    args.output.print(&outcome.report(args.rows || format != Format::Table), None)?;
    Ok(Code::from(u8::from(outcome.failed)))
}

pub(crate) fn run(args: &Args, given: &Named) -> Result<Code, Error> {
    if let (Some(folder), []) = (&args.next_runs, &args.measurements[..]) {
        return plan_first(args, folder);
    }
    if let Some(gpu) = &args.compute {
        return judge_kernels(args, gpu);
    }
    if !args.against.is_empty() {
        let of_forecasts = [
            "--max-error",
            "--topology",
            "--nodes",
            "--gpus",
            "--placement",
            "--profile",
            "--closest",
            "--model-errors",
            "--plots",
        ];
        given.without(&of_forecasts, "--against takes a run in place of a forecast", "leave it out, or --against")?;
    }
    if args.history.is_some() {
        let of_forecasts = ["--max-error", "--closest", "--model-errors", "--plots"];
        let hint = "leave it out, or --history; --fail-below and --require-pass hold runs against their past";
        given.without(
            &of_forecasts,
            "--history takes earlier runs in place of a forecast, where there are enough",
            hint,
        )?;
    }
    let request = args.request()?;
    let outcome =
        watched("simulating what was measured", |watch| validate(&Request { watch: watch.clone(), ..request }))?;
    let format = args.output.format();
    let all = Shown { for_people: true, model_errors: true, rows: true, no_anomalies: false };
    args.page.write(|| outcome.report(all))?;
    let mut report = outcome.report(Shown {
        for_people: args.output.for_people(),
        model_errors: args.model_errors || args.max_error.is_some() || args.closest || format == Format::Json,
        rows: args.rows || format != Format::Table,
        no_anomalies: format == Format::Json,
    });
    if let (Some(folder), Some(next)) = (&args.next_runs, &outcome.next) {
        write_scripts(next, folder)?;
        next.add_to(&mut report, &args.then(folder));
    }
    if let Some(folder) = &args.plots {
        draw(&outcome, folder)?;
    }
    args.output.print(&report, None)?;
    Ok(Code::from(u8::from(outcome.failed)))
}

/// Writes the pictures of an answer into a folder.
fn draw(outcome: &Outcome, folder: &Path) -> Result<(), Error> {
    make_folder(folder)?;
    let pictures = plots(outcome)?;
    for picture in &pictures {
        write(Some(&folder.join(&picture.name)), picture.svg.as_bytes())?;
    }
    let names: Vec<&str> = pictures.iter().map(|picture| picture.name.as_str()).collect();
    say!("note: {} pictures in {}: {}", names.len(), folder.display(), names.join(" "));
    Ok(())
}

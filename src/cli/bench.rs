//! `collcast bench`: runs calls for real, checks every element of every result, and times them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use collcast::bench::{
    self, Backend, Children, Outcome, PARENT, Request, Set, TransferRequest, crowded, environment, of_rank,
    plays_hosts, ranks_here,
};
use collcast::files::{is_regular, read_text};
use collcast::{Error, Query, Site, SiteSpec};
use collcast_hwbackend::exec::Effort;
use collcast_hwbackend::rendezvous::World;
use collcast_hwbackend::verbs::{self, Verbs};
use collcast_sim::collective::Launch;
use collcast_sim::nccl::settings::OWN;
use collcast_sim::nccl::{Transport, is_read};
use collcast_sim::topology::Topology;

use super::call::{self, Code};
use super::guard::{GuardArgs, SIZES, SIZES_OF_THREADS};
use super::launch;
use super::output::{Format, OutputArgs, PageArgs, in_folder, with_nccl_tests, write};
use super::progress::told;
use super::queries::queries;
use super::selectors::{CallArgs, MachineArgs, Named, default_sizes, refused, span};
use super::sets::SetsArgs;

/// Batches of a quick run, and the time that those of a size may take: the nine sizes of it take some seconds.
const QUICK_BATCHES: u32 = 7;
const QUICK_BUDGET: Duration = Duration::from_millis(500);

/// The back ends, as the command line names them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Runner {
    /// Schedules on CPU threads: works everywhere, says nothing of a GPU's speed
    Host,
    /// Schedules on the GPUs of this host, by an interpreter kernel
    Cuda,
    /// NCCL's own collectives; under torchrun, mpirun or srun one process a GPU
    Nccl,
    /// Schedules on the GPUs of this host, every slice a message of ncclSend and ncclRecv
    NcclP2p,
    /// Schedules over RDMA verbs, one process a rank
    Verbs,
    /// No calls: copies between GPU and host memory, two GPUs, drives and a GPU
    Transfer,
}

impl Runner {
    /// Who runs calls; nobody where copies are run.
    pub(crate) fn backend(self) -> Option<Backend> {
        match self {
            Self::Host => Some(Backend::Host),
            Self::Cuda => Some(Backend::Cuda),
            Self::Nccl => Some(Backend::Nccl),
            Self::NcclP2p => Some(Backend::NcclP2p),
            Self::Verbs => Some(Backend::Verbs),
            Self::Transfer => None,
        }
    }
}

#[derive(clap::Args, Debug)]
#[command(after_help = "Every element of every result is compared with its exact value; a wrong one ends the command.
-o NAME.csv also writes NAME.toml: command, date, launch, hardware, which `validate` reads. It replaces only what an \
earlier `bench` wrote there.
With --expect or --expect-from the run is judged as `validate` judges a file of it: exit code 0 or 1, one line on standard \
error, --format json for programs. --quick does it in seconds: see examples/ci for Slurm and Kubernetes.
With --backend nccl, {rank} in a value of --env is the rank: --env NCCL_HOSTID=h{rank} --launch processes makes NCCL \
take every process for a host of its own, also where they share a GPU: --nodes 4 --gpus 1 then plays four hosts on one GPU.
--pairs, --halves and --alone run the calls on sets of this host's GPUs, one after the other, and the column `gpus` of the CSV \
names them: `validate` says from it which GPU or link is slow.
Under torchrun, mpirun or srun start this command in every process; rank 0 prints.")]
#[command(mut_arg("format", with_nccl_tests))]
#[command(mut_args(refused(&["cold", "split", "explain_choice"])))]
#[command(mut_arg("size", default_sizes("8:1GiB:2, on CPU threads 8:1MiB:2")))]
pub(crate) struct Args {
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    call: CallArgs,
    /// Who runs the calls [default: host (CPU threads); nccl where --expect names a machine]
    #[arg(long = "backend", value_enum, value_name = "BACKEND", help_heading = "Measurement")]
    asked: Option<Runner>,
    /// Operations back to back in a batch; fewer for long operations
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000), help_heading = "Measurement")]
    iterations: u32,
    /// Batches, each of which gives one time; the median is reported
    #[arg(long, value_name = "N", default_value_t = 21, value_parser = clap::value_parser!(u32).range(3..=10_000), help_heading = "Measurement")]
    batches: u32,
    /// Operations before the first that counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=100_000), help_heading = "Measurement")]
    warmup: u32,
    /// Time that measurements may take: the batches of one point together
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = span, help_heading = "Measurement")]
    budget: Duration,
    /// Time that a device may wait for a peer
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = span, help_heading = "Measurement")]
    watchdog: Duration,
    /// Let NCCL use NVLink multicast (NVLS); off by default
    #[arg(long, help_heading = "Measurement")]
    nvls: bool,
    #[command(flatten)]
    verbs: VerbsArgs,
    #[command(flatten)]
    copies: CopyArgs,
    #[command(flatten)]
    sets: SetsArgs,
    #[command(flatten)]
    guard: GuardArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    page: PageArgs,
}

/// What copies are run with.
#[derive(clap::Args, Clone, Debug)]
struct CopyArgs {
    /// Folder on the drives in question for the file of --backend transfer, which is removed in the end
    #[arg(long, value_name = "DIR", default_value = ".", help_heading = "Measurement")]
    folder: PathBuf,
    /// Leave GPUs out: reads and writes of drives alone, with --backend transfer
    #[arg(long, help_heading = "Measurement")]
    drives_only: bool,
    /// Write what follows of drives and copies as a profile, with --backend transfer
    #[arg(long, value_name = "FILE", value_parser = in_folder, help_heading = "Measurement")]
    profile_out: Option<PathBuf>,
}

/// Which NICs, and how they are used.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct VerbsArgs {
    /// NICs of each rank for verbs, in turn; {rank} is the rank [default: one that is up]
    #[arg(long, value_name = "NIC[,NIC]", value_delimiter = ',', help_heading = "Measurement")]
    nics: Vec<String>,
    /// Queue pairs of a connection for verbs; its slices go over them in turn
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), help_heading = "Measurement")]
    qps: u32,
}

impl VerbsArgs {
    /// Those of one process.
    pub(crate) fn options(&self, rank: u32) -> verbs::Options {
        verbs::Options {
            nics: self.nics.iter().map(|nic| of_rank(nic, rank)).collect(),
            qps: self.qps,
            ..verbs::Options::default()
        }
    }
}

impl Args {
    fn backend(&self) -> Runner {
        let expected = self.guard.machine().is_some();
        self.asked.unwrap_or(if expected { Runner::Nccl } else { Runner::Host })
    }

    /// Refuses what no run of this back end would heed.
    fn check(&self, given: &Named) -> Result<(), Error> {
        let forecast = ["--graph", "--cold", "--registered", "--explain-choice"];
        given.without(
            &forecast,
            "it changes a forecast, and this is a run",
            "leave it out, or use `collcast sweep`",
        )?;
        let copies = ["--folder", "--drives-only", "--profile-out"];
        if self.backend() == Runner::Transfer {
            let calls = [
                "--collective",
                "--algorithm",
                "--protocol",
                "--channels",
                "--launch",
                "--dtype",
                "--op",
                "--root",
                "--in-place",
                "--ranks",
                "--nodes",
                "--topology",
                "--schedule",
                "--nccl",
                "--expect",
                "--expect-from",
                "--gpus",
                "--placement",
                "--profile",
                "--env",
                "--counts",
                "--iterations",
            ];
            given.without(&calls, "copies are run, and no calls", "leave it out; -s names the sizes of copies")?;
            if let Some(machine) = self.machine.name() {
                return Err(Error::usage(
                    format!("`{machine}` has no meaning here: copies are run on this host"),
                    "leave it out",
                ));
            }
        } else {
            given.without(&copies, "it is of copies", "leave it out, or use --backend transfer")?;
        }
        if !matches!(self.backend(), Runner::Nccl | Runner::NcclP2p) {
            given.without(&["--nvls"], "only NCCL has NVLS", "leave it out, or use --backend nccl")?;
        }
        if self.backend() == Runner::Host {
            let why = "a forecast is of GPUs, and CPU threads are none";
            given.without(&["--expect"], why, "take --backend nccl or cuda, or use --expect-from")?;
            let why = "CPU threads run each call once a batch";
            given.without(&["--iterations", "--warmup", "--launch"], why, "leave it out")?;
        }
        if self.backend() != Runner::Verbs {
            given.without(&["--nics", "--qps"], "it is of RDMA verbs", "leave it out, or use --backend verbs")?;
        }
        if self.backend() == Runner::Nccl {
            given.without(&["--schedule"], "NCCL runs its own", "use --backend nccl-p2p, cuda or host")?;
            let why = "NCCL is the one that is installed";
            given.without(&["--nccl"], why, "leave it out; LD_LIBRARY_PATH says which is found")?;
        }
        if !matches!(self.backend(), Runner::Host | Runner::Nccl) {
            let why = "its processes cannot be given GPUs of their own";
            given.without(&["--pairs", "--halves", "--alone"], why, "use --backend nccl, or host to try it")?;
        }
        if self.sets.any() && self.output.format() == Format::NcclTests {
            let hint = "use --format csv, which names the GPUs of each run";
            return Err(Error::usage("nccl-tests' table holds one run, and sets of GPUs are several", hint));
        }
        self.guard.check(given, self.output.output.as_deref())?;
        self.call.check(given)
    }

    fn effort(&self) -> Effort {
        let (batches, budget) = if self.guard.quick() {
            (self.batches.min(QUICK_BATCHES), self.budget.min(QUICK_BUDGET))
        } else {
            (self.batches, self.budget)
        };
        Effort { warmup: self.warmup, iterations: self.iterations, batches, budget, patience: self.watchdog }
    }

    /// The calls on a machine with what is left out filled in, and the sets of GPUs that run them.
    fn calls(&self, topology: &Topology, world: Option<&World>) -> Result<(CallArgs, Vec<Set>), Error> {
        let mut call = self.call.clone();
        if call.launch.is_none() && self.backend() != Runner::Nccl {
            if topology.hosts().len() > 1 && self.backend() != Runner::Verbs {
                say!("note: the hosts of `{}` are played by this one", topology.name);
            }
            let launch = match self.backend() {
                Runner::NcclP2p => Launch::SingleThread,
                Runner::Verbs => Launch::Processes,
                Runner::Host | Runner::Cuda | Runner::Nccl | Runner::Transfer => Launch::Threads,
            };
            call.launch = Some(launch.name().to_owned());
        }
        if call.size.is_none() && call.minbytes.is_none() && call.maxbytes.is_none() {
            let default = match (self.guard.quick(), self.backend()) {
                (true, Runner::Host) => SIZES_OF_THREADS,
                (true, _) => SIZES,
                (false, Runner::Host) => "8:1MiB:2",
                (false, _) => "8:1GiB:2",
            };
            if !self.guard.quick() {
                say!("note: no size given; these are {default}");
            }
            call.size = Some(default.to_owned());
        }
        if call.ranks.is_none() {
            call.ranks = match (world, self.backend()) {
                (Some(world), _) => Some(world.size),
                (None, Runner::Host) => None,
                (None, Runner::Nccl) if plays_hosts(call.launch.as_deref(), &call.nccl.variables()?) => {
                    Some(topology.ranks())
                }
                (None, _) => {
                    let (machine, guard) = (&self.machine, &self.guard);
                    let named = machine.name().or(guard.machine()).is_some()
                        || machine.gpus.is_some()
                        || !machine.nodes.is_empty();
                    // A host that has lost GPUs is unfit: where it is judged that is the verdict.
                    Some(ranks_here(topology, named).map_err(|error| guard.lacking(error))?)
                }
            };
        }
        if let (Some(ranks), Runner::Cuda | Runner::Nccl, None) = (call.ranks, self.backend(), world)
            && let Some(note) = crowded(ranks)
        {
            say!("note: {note}");
        }
        let sets = self.sets.of(call.ranks.unwrap_or(topology.ranks()))?;
        if let Some(set) = sets.first() {
            call.ranks = Some(set.gpus.len() as u32);
        }
        if world.is_some() && call.launch.is_none() {
            call.launch = Some(Launch::Processes.name().to_owned());
        }
        Ok((call, sets))
    }

    /// The calls one by one: nccl-tests runs every size out of place and in place.
    fn queries(&self, call: &CallArgs, site: &Site) -> Result<Vec<Query>, Error> {
        let queries = queries(call, std::slice::from_ref(site))?.concat();
        if self.output.format() != Format::NcclTests {
            return Ok(queries);
        }
        let both = |query: Query| {
            let placed = |in_place| {
                let mut query = query.clone();
                query.call.in_place = in_place;
                query
            };
            [Some(placed(false)), (query.call.collective.in_place()).then(|| placed(true))].into_iter().flatten()
        };
        Ok(queries.into_iter().flat_map(both).collect())
    }
}

pub(crate) fn run(args: &Args, given: &Named) -> Result<Code, Error> {
    args.call.no_split("bench")?;
    args.check(given)?;
    let Some(backend) = args.backend().backend() else { return copies(args) };
    let beside = beside(args.output.output.as_deref())?;
    let again = launch::works_for_parent();
    let world = match args.backend() {
        Runner::Nccl | Runner::Verbs => {
            World::from_env(&|name| std::env::var(name).ok()).inspect_err(|_| args.guard.metrics_of_failure())?
        }
        Runner::NcclP2p if !again => return with_environment(args),
        Runner::Host | Runner::Cuda | Runner::NcclP2p | Runner::Transfer => None,
    };
    let mut spec = args.machine.spec(args.machine.one_node_count()?)?;
    spec.topology = spec.topology.or_else(|| args.guard.machine().map(str::to_owned));
    args.guard.readable(&spec, &args.call.nccl)?;
    let topology = spec.topology()?;
    let rank = world.as_ref().map_or(0, |world| world.rank);
    if args.backend() == Runner::Verbs && world.is_none() {
        Verbs::find(&args.verbs.options(rank), 0)?;
        return launch::processes(args.call.ranks.unwrap_or(topology.ranks()));
    }
    if spec.topology.is_none() && args.guard.quick() {
        say!("note: no topology given; calls are planned as on `{}`", topology.name);
    } else if spec.topology.is_none() {
        say!("note: no topology given; channels and `auto` are planned as on `{}`", topology.name);
    }
    let (call, sets) = args.calls(&topology, world.as_ref())?;
    let (nccl, env) = (call.nccl.nccl.clone(), call.nccl.variables()?);
    let (ranks, launch) = (call.ranks, call.launch()?);
    let site = SiteSpec { ranks, nccl, env: env.clone(), launch, ..spec.clone() }.load_onto(topology)?;
    let queries = args.queries(&call, &site)?;
    let (progress, watch) = told("running", "");
    let leads = rank == 0;
    let (effort, nvls, verbs) = (args.effort(), args.nvls, args.verbs.options(rank));
    let worker = call::other_program();
    let request = Request { effort, nvls, env, world, verbs, watch, sets, worker, ..Request::new(backend, queries) };
    let outcome = bench::bench(&site, &request)?;
    drop(progress);
    // A table of nothing looks like a result.
    let nothing = outcome.rows.is_empty() && outcome.failure.is_some();
    let judged = args.guard.judges() && outcome.failure.is_none() && !outcome.interrupted;
    if leads && !nothing {
        let output = if outcome.interrupted { apart(&args.output) } else { args.output.clone() };
        let beside = if output.output == args.output.output { beside } else { self::beside(output.output.as_deref())? };
        print(args, &output, &outcome, beside.as_deref(), judged)?;
    }
    if leads && judged {
        return args.guard.judge(&outcome, spec, &args.output, &args.page);
    }
    if leads {
        args.guard.metrics_of_failure();
    }
    match outcome.failure {
        Some(failure) => Err(failure.into()),
        None if leads && outcome.interrupted => Ok(Code::from(130)),
        None => Ok(Code::SUCCESS),
    }
}

/// Runs copies in place of calls.
fn copies(args: &Args) -> Result<Code, Error> {
    const SIZES: &str = "4K:1G:16";
    let mut call = args.call.clone();
    if call.size.is_none() && call.minbytes.is_none() && call.maxbytes.is_none() {
        say!("note: no size given; these are {SIZES}");
        call.size = Some(SIZES.to_owned());
    }
    let (progress, watch) = told("copying", "note: ");
    let outcome = bench::transfer(&TransferRequest {
        sizes: call.sizes()?,
        folder: args.copies.folder.clone(),
        effort: args.effort(),
        drives_only: args.copies.drives_only,
        watch,
    })?;
    drop(progress);
    args.output.print(&outcome.report(), None)?;
    args.page.write(|| outcome.report())?;
    if let Some(path) = &args.copies.profile_out {
        let nothing =
            || Error::usage("nothing that a profile holds was measured", "name larger sizes, such as -s 4K:1G:16");
        write(Some(path), outcome.profile().ok_or_else(nothing)?.as_bytes())?;
    }
    Ok(Code::SUCCESS)
}

/// Does the job on standard input: one process of NCCL's, which [`run`] has started.
pub(crate) fn work() -> Result<Code, Error> {
    launch::works_for_parent();
    let well = bench::work(&mut std::io::stdin(), &mut std::io::stdout())?;
    Ok(if well { Code::SUCCESS } else { Code::FAILURE })
}

/// This command, as the files beside data name it.
pub(crate) fn source() -> String {
    let given = call::words().into_iter().skip(1).map(|word| word.to_string_lossy().into_owned());
    let command: Vec<String> = std::iter::once("collcast".to_owned()).chain(given).collect();
    command.join(" ")
}

/// The .toml beside the data, for what the data cannot say itself. One that `bench` did not write stays: it
/// may be the machine.
fn beside(output: Option<&Path>) -> Result<Option<PathBuf>, Error> {
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
    Err(Error::usage(
        format!(
            "`bench` writes what was run into `{}`, beside the data, and that is {}",
            path.display(),
            if path == data { "the data itself" } else { "another file" }
        ),
        format!("take another name for the data, such as -o {}", data.with_extension("bench.csv").display()),
    ))
}

/// Where rows of a run go that was interrupted: not over those of a whole one.
fn apart(output: &OutputArgs) -> OutputArgs {
    let format = Some(output.format());
    let path = output.output.as_ref().filter(|path| path.is_file());
    let Some(path) = path else { return OutputArgs { format, output: output.output.clone() } };
    let ending = path.extension().unwrap_or_default().to_string_lossy();
    let other = path.with_extension(format!("interrupted.{ending}"));
    say!("note: `{}` stays as it was; the rows are in `{}`", path.display(), other.display());
    OutputArgs { format, output: Some(other) }
}

/// Prints the rows, and writes what they cannot say beside them; where they are judged, what was found stands in their
/// place, but in a file.
fn print(
    args: &Args,
    output: &OutputArgs,
    outcome: &Outcome,
    beside: Option<&Path>,
    judged: bool,
) -> Result<(), Error> {
    let text = match output.format() {
        Format::NcclTests => Some(outcome.nccl_tests()?),
        _ => None,
    };
    // The rows come in any case, and then what keeps the files beside them from being written.
    let sidecar = beside.filter(|_| !outcome.rows.is_empty()).map_or(Ok(()), |path| {
        let machine = args.machine.name().or(args.guard.machine());
        write(Some(path), outcome.sidecar(&source(), machine, inherited()).as_bytes())
    });
    // The page of a run that is judged is that of the judgement.
    let page = if judged { Ok(()) } else { args.page.write(|| outcome.report()) };
    if !judged || output.output.is_some() {
        output.print(&outcome.report(), text)?;
    }
    sidecar.and(page)
}

/// What NCCL's processes inherit: the variables of this one that NCCL and its plugins read.
pub(crate) fn inherited() -> impl Iterator<Item = (String, String)> {
    let is_theirs = |name: &str| is_read(name) || Transport::VARIABLES.contains(&name) || OWN.contains(&name);
    let pairs = std::env::vars_os().filter_map(|(name, value)| name.into_string().ok().zip(value.into_string().ok()));
    pairs.filter(move |(name, _)| is_theirs(name))
}

/// Starts this command again with what NCCL reads from its environment, once, before it starts.
fn with_environment(args: &Args) -> Result<Code, Error> {
    let file = |source| Error::File { what: "start", path: "this program".into(), source };
    let settings = environment(args.call.nccl.variables()?, args.nvls)?;
    let mut command = launch::again()?;
    command.envs(settings.iter().map(|(name, value)| (name, of_rank(value, 0))));
    command.env(PARENT, std::process::id().to_string());
    let mut children = Children(vec![command.spawn().map_err(file)?]);
    launch::answered(&mut children.0[0], "the process that runs NCCL")
}

//! The selectors: which machine, collective, sizes, algorithms. The same in every command.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use clap::parser::ValueSource;
use collcast_hwbackend::read::ReadOptions;
use collcast_sim::collective::{Algorithm, Collective, DataType, Launch, Protocol, ReduceOp, UnknownName};
use collcast_sim::ids::Rank;
use collcast_sim::predict::{Choice, MOST_CALLS, PredictError};
use collcast_sim::schedule::Call;
use collcast_sim::schedule::msccl::Imported;
use collcast_sim::split::{Split, SplitError};
use collcast_sim::topology::Topology;
use collcast_sim::units::Bytes;
use collcast_topologies::error::quote;

use collcast::files::read_text;
use collcast::health::Gate;
use collcast::site::DEFAULT_MACHINE;
use collcast::{Error, Query, Site, SiteSpec, site, values};

use super::config;

#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct MachineArgs {
    /// Built-in machine or topology file (.toml, NCCL .xml, nvidia-smi topo -m .txt, log of NCCL_DEBUG=INFO)
    #[arg(value_name = "TOPOLOGY", help_heading = "Machine")]
    pub(crate) machine: Option<String>,
    /// Built-in machine or topology file: the same as TOPOLOGY without a name
    #[arg(short, long, value_name = "TOPOLOGY", conflicts_with = "machine", help_heading = "Machine")]
    pub(crate) topology: Option<String>,
    /// Hosts; in sweep also a list such as 2,4,8
    #[arg(long, alias = "hosts", value_name = "N[,N]", value_delimiter = ',', help_heading = "Machine")]
    pub(crate) nodes: Vec<u32>,
    /// GPUs of each host, from the first
    #[arg(long, value_name = "N", help_heading = "Machine")]
    pub(crate) gpus: Option<u32>,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
    /// Profile of links and hosts: built-in name or TOML file; several layer, the later wins per parameter
    #[arg(long, value_name = "PROFILE[,PROFILE]", value_delimiter = ',', help_heading = "Machine")]
    pub(crate) profile: Vec<String>,
    /// Channels to take in place of NCCL's search: a graph XML, as NCCL_GRAPH_FILE takes it
    #[arg(long, value_name = "FILE", help_heading = "Machine")]
    pub(crate) graph: Option<PathBuf>,
}

#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct PlacementArgs {
    /// Rank order and GPUs used: block, cyclic, plane=N, a list such as 0-3,8-11 or
    /// gpu[01-04]:0-3, or @FILE with such lines
    #[arg(long, value_name = "PLACEMENT", help_heading = "Machine")]
    pub(crate) placement: Option<String>,
}

impl PlacementArgs {
    /// The placement itself, read where a file has it.
    pub(crate) fn read(&self) -> Result<Option<String>, Error> {
        match self.placement.as_deref().map(|text| (text, text.strip_prefix('@'))) {
            Some((_, Some(path))) => Ok(Some(read_text("read the placement", path)?)),
            Some((text, None)) => Ok(Some(text.to_owned())),
            None => Ok(None),
        }
    }
}

#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct GateArgs {
    /// Share of the expected bus bandwidth below which a band of sizes is slow (exit 1), such as 85%, where forecast and noise
    /// leave no doubt; by itself at most 91% at large sizes and 80% below them, less where the forecast is unsure
    #[arg(long, alias = "min-busbw", value_name = "PERCENT", help_heading = "Gate")]
    pub(crate) fail_below: Option<String>,
    /// Exit 1 also where nothing can be told, such as of a kind of machine that few have published runs of, and where a part
    /// of the measurements was not judged
    #[arg(long, help_heading = "Gate")]
    pub(crate) require_pass: bool,
}

impl GateArgs {
    pub(crate) fn gate(&self) -> Result<Gate, Error> {
        let fail_below = self.fail_below.as_deref().map(|text| values::percent("--fail-below", text)).transpose()?;
        if fail_below.is_some_and(|share| !(0.01..=1.0).contains(&share)) {
            let given = self.fail_below.as_deref().unwrap_or_default();
            return Err(Error::usage(
                format!("--fail-below (--min-busbw) `{given}` is no share of the expected bus bandwidth"),
                "take 1% to 100%, such as --fail-below 85%; it is no bandwidth in GB/s",
            ));
        }
        Ok(Gate { fail_below, require_pass: self.require_pass })
    }
}

#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct NcclArgs {
    /// NCCL version whose rules choose [default: the machine's, else the newest known]
    #[arg(long, value_name = "VERSION", help_heading = "NCCL")]
    pub(crate) nccl: Option<String>,
    /// Variables that NCCL is run with: NAME=VALUE or a file of such lines; several add up
    #[arg(long, value_name = "FILE|K=V", help_heading = "NCCL")]
    pub(crate) env: Vec<String>,
}

/// The options that the command line names, whatever their value.
#[derive(Clone, Debug, Default)]
pub(crate) struct Named(Vec<String>);

impl Named {
    /// Those of the innermost command.
    pub(crate) fn of(found: &clap::ArgMatches) -> Self {
        if let Some((_, inner)) = found.subcommand() {
            return Self::of(inner);
        }
        let named = |id: &&clap::Id| found.value_source(id.as_str()) == Some(ValueSource::CommandLine);
        Self(found.ids().filter(named).map(|id| format!("--{}", id.as_str().replace('_', "-"))).collect())
    }

    /// The same without options that others asked for.
    pub(crate) fn without_unnamed(self, unnamed: &BTreeSet<String>) -> Self {
        Self(self.0.into_iter().filter(|option| !unnamed.contains(option)).collect())
    }

    /// Refuses options that would do nothing.
    pub(crate) fn without(&self, options: &[&str], why: &str, hint: &str) -> Result<(), Error> {
        let named: Vec<&str> = options.iter().copied().filter(|option| self.has(option)).collect();
        match named.as_slice() {
            [] => Ok(()),
            [one] => Err(Error::usage(format!("{one} has no meaning here: {why}"), hint)),
            many => Err(Error::usage(format!("{} have no meaning here: {why}", many.join(", ")), hint)),
        }
    }

    pub(crate) fn has(&self, option: &str) -> bool {
        self.0.iter().any(|given| given == option)
    }
}

/// Options of a call, or of the search for its channels, that no call of a scenario heeds.
pub(crate) const OF_A_CALL: [&str; 18] = [
    "--size",
    "--minbytes",
    "--maxbytes",
    "--stepfactor",
    "--ranks",
    "--split",
    "--schedule",
    "--collective",
    "--algorithm",
    "--protocol",
    "--channels",
    "--dtype",
    "--op",
    "--root",
    "--in-place",
    "--counts",
    "--cold",
    "--explain-choice",
];

/// How measurements are read.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ReadArgs {
    /// Collectives: the one of logs that do not say theirs
    #[arg(short, long, value_name = "NAME")]
    pub(crate) collective: Option<String>,
    /// Accept our own predictions as measurements
    #[arg(long)]
    pub(crate) allow_predicted: bool,
}

impl ReadArgs {
    pub(crate) fn options(&self) -> Result<ReadOptions, Error> {
        let unknown = |e: UnknownName| Error::Usage { message: format!("--collective: {e}"), hint: None };
        let collective = self.collective.as_deref().map(|name| name.parse().map_err(unknown)).transpose()?;
        Ok(ReadOptions { allow_predicted: self.allow_predicted, collective, ..ReadOptions::default() })
    }
}

/// A time from a millisecond to a day, such as 0.5, 90s or 5min; a bare number is seconds.
pub(crate) fn span(text: &str) -> Result<Duration, String> {
    let seconds = values::time_or_bare(text, 1.0).ok().filter(|s| (0.001..=86_400.0).contains(s));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "a time from 1ms to 24h, such as 500ms, 90s or 5min".to_owned())
}

/// Leaves options that a command refuses, and says why, out of its help.
pub(crate) fn refused(ids: &'static [&'static str]) -> impl Fn(clap::Arg) -> clap::Arg {
    move |arg| {
        let hidden = ids.contains(&arg.get_id().as_str());
        if hidden { arg.hide(true) } else { arg }
    }
}

/// Adds to the help of `--size` what a command takes where none is given.
pub(crate) fn default_sizes(sizes: &'static str) -> impl Fn(clap::Arg) -> clap::Arg {
    move |arg| {
        let help = format!("{} [default: {sizes}]", arg.get_help().cloned().unwrap_or_default());
        arg.help(help)
    }
}

/// The options of a call where a command takes one call alone, and which size it takes by itself.
pub(crate) fn of_one_call(size: &'static str) -> impl Fn(clap::Arg) -> clap::Arg {
    move |arg| {
        let help = arg.get_help().cloned().unwrap_or_default().to_string();
        match arg.get_id().as_str() {
            "size" => {
                arg.help(format!("{} [default: {size}]", help.replace(", a list, or a range FROM:TO:FACTOR", "")))
            }
            "collective" => arg.help(help.replace(", or all", "; one of them here")),
            _ => arg,
        }
    }
}

/// The only one of the calls that options name.
pub(crate) fn only_one(mut queries: Vec<Query>, command: &str) -> Result<Query, Error> {
    let count = queries.len();
    let one = queries.pop().filter(|_| count == 1);
    one.ok_or_else(|| {
        Error::usage(
            format!("{command} takes one call, and {count} are named"),
            "give one collective, size, algorithm, protocol and number of channels; `collcast sweep` takes several",
        )
    })
}

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct CallArgs {
    /// Several communicators at once on the same links, as NCCL_TESTS_SPLIT: %N, /N, &N or |N of
    /// the rank; sizes and rows are those of one
    #[arg(long, value_name = "SPLIT", help_heading = "Collective", conflicts_with = "schedule")]
    pub(crate) split: Option<String>,
    /// Ranks, from the first GPU; all GPUs by default
    #[arg(long, value_name = "N", help_heading = "Collective")]
    pub(crate) ranks: Option<u32>,
    /// Collectives: all_reduce all_gather reduce_scatter broadcast reduce all_to_all send_recv gather scatter, or all
    #[arg(
        short,
        long,
        alias = "collectives",
        value_name = "NAME[,NAME]",
        default_value = "all_reduce",
        help_heading = "Collective"
    )]
    pub(crate) collective: String,
    /// Size of the data: as nccl-tests counts it, such as 64M, a list, or a range FROM:TO:FACTOR
    #[arg(short, long, alias = "sizes", value_name = "SIZE", help_heading = "Collective")]
    pub(crate) size: Option<String>,
    /// Smallest size, as in nccl-tests
    #[arg(short = 'b', long, value_name = "SIZE", conflicts_with = "size", help_heading = "Collective")]
    pub(crate) minbytes: Option<String>,
    /// Largest size, as in nccl-tests
    #[arg(short = 'e', long, value_name = "SIZE", conflicts_with = "size", help_heading = "Collective")]
    pub(crate) maxbytes: Option<String>,
    /// Factor between sizes, as in nccl-tests
    #[arg(short = 'f', long, value_name = "N", conflicts_with = "size", help_heading = "Collective")]
    pub(crate) stepfactor: Option<u64>,
    /// Algorithms: ring tree pat nvls nvls_tree collnet_direct collnet_chain coll_tree direct, auto (NCCL's choice) or
    /// best (our fastest)
    #[arg(long, alias = "algorithms", value_name = "NAME[,NAME]", default_value = "auto", help_heading = "Collective")]
    pub(crate) algorithm: String,
    /// Protocols: ll ll128 simple, auto or best
    #[arg(long, alias = "protocols", value_name = "NAME[,NAME]", default_value = "auto", help_heading = "Collective")]
    pub(crate) protocol: String,
    /// Channels: auto or numbers from 1 to 64
    #[arg(long, value_name = "N[,N]", default_value = "auto", help_heading = "Collective")]
    pub(crate) channels: String,
    /// How kernels are started: single_thread, threads, processes or graph [default: processes on several hosts, else threads]
    #[arg(long, value_name = "MODE", help_heading = "Collective")]
    pub(crate) launch: Option<String>,
    /// Element type
    #[arg(long, value_name = "TYPE", default_value = "float32", help_heading = "Collective")]
    pub(crate) dtype: String,
    /// Reduction
    #[arg(long, value_name = "OP", default_value = "sum", help_heading = "Collective")]
    pub(crate) op: String,
    /// Root of broadcast, reduce, gather and scatter
    #[arg(long, value_name = "RANK", default_value_t = 0, help_heading = "Collective")]
    pub(crate) root: u32,
    /// Input and output in one buffer
    #[arg(long, help_heading = "Collective")]
    pub(crate) in_place: bool,
    /// NCCL has registered the buffers: memory of ncclMemAlloc in a CUDA graph, or of ncclCommRegister
    #[arg(long, help_heading = "Collective")]
    pub(crate) registered: bool,
    /// An algorithm in MSCCL XML, which says what it does, how and over how many ranks
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["collective", "algorithm", "protocol", "channels", "counts"],
        help_heading = "Collective"
    )]
    pub(crate) schedule: Option<PathBuf>,
    #[arg(skip)]
    read: OnceLock<Arc<Imported>>,
    /// Elements from each rank (row) to each rank (column) of an all_to_all: CSV without header
    #[arg(long, value_name = "FILE", help_heading = "Collective")]
    pub(crate) counts: Option<PathBuf>,
    /// One first call in place of a loop of calls back to back
    #[arg(long, help_heading = "Collective")]
    pub(crate) cold: bool,
    #[command(flatten)]
    pub(crate) nccl: NcclArgs,
    /// Print who decided (environment, tuner, cost table) and the table, for `auto`
    #[arg(long, help_heading = "NCCL")]
    pub(crate) explain_choice: bool,
}

impl NcclArgs {
    /// The variables that `--env` gives.
    pub(crate) fn variables(&self) -> Result<Vec<(String, String)>, Error> {
        self.env.iter().map(|text| site::variables(text)).collect::<Result<Vec<_>, _>>().map(|lists| lists.concat())
    }

    /// A machine with what NCCL is told there.
    pub(crate) fn on(&self, site: SiteSpec) -> Result<SiteSpec, Error> {
        Ok(SiteSpec { nccl: self.nccl.clone(), env: self.variables()?, ..site })
    }
}

/// The user's own folders of profiles: those that COLLCAST_PROFILES names, or else the one in the user's configuration.
///
/// # Errors
/// COLLCAST_PROFILES names what is no folder.
pub(crate) fn profile_folders() -> Result<Vec<PathBuf>, Error> {
    let Some(paths) = std::env::var_os("COLLCAST_PROFILES") else {
        return Ok(config::folder().map(|folder| folder.join("profiles")).into_iter().collect());
    };
    let paths: Vec<PathBuf> = std::env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty()).collect();
    match paths.iter().find(|path| !path.is_dir()) {
        None => Ok(paths),
        Some(path) => Err(Error::usage(
            format!("COLLCAST_PROFILES names `{}`, which is no folder", path.display()),
            "name folders of profiles with `:` between them; --profile takes a file",
        )),
    }
}

impl MachineArgs {
    pub(crate) fn name(&self) -> Option<&str> {
        self.machine.as_deref().or(self.topology.as_deref())
    }

    /// What is asked of the machine, with a number of hosts.
    pub(crate) fn spec(&self, nodes: Option<u32>) -> Result<SiteSpec, Error> {
        Ok(SiteSpec {
            topology: self.name().map(str::to_owned),
            nodes,
            gpus: self.gpus,
            placement: self.placement.read()?,
            profiles: self.profile.clone(),
            profile_folders: profile_folders()?,
            graph: self.graph.clone(),
            ..SiteSpec::default()
        })
    }

    /// Loads the machine with a number of hosts.
    pub(crate) fn load(&self, nodes: Option<u32>) -> Result<Topology, Error> {
        self.spec(nodes)?.topology()
    }

    /// Says which machine it is where none is named.
    pub(crate) fn note_default(&self) {
        if self.name().is_none() {
            say!("note: no topology given; this is `{DEFAULT_MACHINE}` (others: collcast topo list)");
        }
    }

    /// The number of hosts where only one makes sense.
    pub(crate) fn one_node_count(&self) -> Result<Option<u32>, Error> {
        match self.nodes.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(*one)),
            _ => Err(Error::usage("--nodes takes one number here", "use `collcast sweep` for a list of node counts")),
        }
    }
}

fn list<T: FromStr>(text: &str) -> Result<Vec<T>, Error>
where
    T::Err: std::fmt::Display,
{
    text.split(',')
        .map(|item| item.trim().parse().map_err(|e: T::Err| Error::Usage { message: e.to_string(), hint: None }))
        .collect()
}

fn choices<T: FromStr + Copy>(text: &str) -> Result<Vec<Choice<T>>, Error>
where
    T::Err: std::fmt::Display,
{
    text.split(',')
        .map(|item| match item.trim().to_lowercase().as_str() {
            "auto" => Ok(Choice::Auto),
            "best" => Ok(Choice::Best),
            _ => item
                .trim()
                .parse()
                .map(Choice::Forced)
                .map_err(|e: T::Err| Error::Usage { message: format!("{e} (or auto, best)"), hint: None }),
        })
        .collect()
}

/// A size in bytes.
fn size(text: &str) -> Result<u64, Error> {
    let (bytes, note) = values::size(text)?;
    if let Some(note) = note {
        say!("note: {note}");
    }
    Ok(bytes)
}

/// The size of one call where none is given.
const ONE_SIZE: Bytes = Bytes(64 << 20);

/// The size that nccl-tests begins with, and ends with, by itself; what begins above ends there.
const NCCL_TESTS: &str = "32M";

impl CallArgs {
    /// Takes a size where none is given, and says which: 64 MiB, or of a file that is not for that a size near it.
    pub(crate) fn take_size(&mut self) -> Result<Option<Bytes>, Error> {
        if let Some(one) = self.minbytes.clone() {
            self.maxbytes.get_or_insert(one);
        }
        if self.size.is_some() || self.minbytes.is_some() {
            return Ok(None);
        }
        let size = match self.imported()? {
            None => ONE_SIZE,
            Some(of) => {
                let size = ONE_SIZE.0.max(of.min_bytes.unwrap_or(0)).min(of.max_bytes.unwrap_or(u64::MAX));
                Bytes(self.fitting(of, size)?)
            }
        };
        self.size = Some(size.0.to_string());
        Ok(Some(size))
    }

    /// The algorithm of the file that is named, if one is: read once, as a pipe can be.
    pub(super) fn imported(&self) -> Result<Option<&Arc<Imported>>, Error> {
        let Some(path) = &self.schedule else { return Ok(None) };
        if let Some(known) = self.read.get() {
            return Ok(Some(known));
        }
        let text = read_text("read the schedule", path)?;
        let imported = Imported::parse(&text, &path.display().to_string())?;
        Ok(Some(self.read.get_or_init(|| Arc::new(imported))))
    }

    /// Ranks of a call, where an option or the file says how many.
    pub(super) fn asked_ranks(&self) -> Result<Option<u32>, Error> {
        Ok(self.ranks.or(self.imported()?.map(|of| of.ranks)))
    }

    /// The largest size up to one that an algorithm's chunks are equal parts of, as nccl-tests rounds sizes down; the size
    /// itself where there is none.
    pub(super) fn fitting(&self, of: &Imported, size: u64) -> Result<u64, Error> {
        let call = |size| self.call(of.collective, self.ranks.unwrap_or(of.ranks), size);
        let unit = of.chunks * call(size)?.dtype.size();
        // Parts of ranks begin on 16 bytes, which as many chunks as that are.
        let below = (0..16).map_while(|units| (size - size % unit).checked_sub(units * unit)).filter(|&size| size > 0);
        for smaller in below {
            if of.check(&call(smaller)?).is_ok() {
                return Ok(smaller);
            }
        }
        Ok(size)
    }

    /// The sizes asked for.
    pub(crate) fn sizes(&self) -> Result<Vec<u64>, Error> {
        let text = match &self.size {
            Some(text) => text.clone(),
            None if self.minbytes.is_none() && self.maxbytes.is_none() && self.stepfactor.is_none() => {
                "8:8GiB:2".to_owned()
            }
            None => {
                let usual = || NCCL_TESTS.to_owned();
                let from = self.minbytes.clone().unwrap_or_else(usual);
                let above = values::size(&from)?.0 > values::size(NCCL_TESTS)?.0;
                let to = self.maxbytes.clone().unwrap_or_else(|| if above { from.clone() } else { usual() });
                if self.minbytes.is_none() && values::size(&to)?.0 < values::size(NCCL_TESTS)?.0 {
                    let message = format!("-e {to}: without -b sizes begin at {NCCL_TESTS}, as in nccl-tests");
                    return Err(Error::usage(message, format!("give -b too, such as -b 8 -e {to}")));
                }
                format!("{from}:{to}:{}", self.stepfactor.unwrap_or(2))
            }
        };
        let sizes: values::Sizes = text.parse()?;
        for note in &sizes.notes {
            say!("note: {note}");
        }
        Ok(sizes.bytes)
    }

    pub(crate) fn collectives(&self) -> Result<Vec<Collective>, Error> {
        match self.collective.as_str() {
            "all" => Ok(Collective::ALL.to_vec()),
            names => list(names),
        }
    }

    pub(crate) fn algorithms(&self) -> Result<Vec<Choice<Algorithm>>, Error> {
        choices(&self.algorithm)
    }

    pub(crate) fn protocols(&self) -> Result<Vec<Choice<Protocol>>, Error> {
        choices(&self.protocol)
    }

    pub(crate) fn channel_counts(&self) -> Result<Vec<Option<u32>>, Error> {
        self.channels
            .split(',')
            .map(|item| match item.trim() {
                "auto" => Ok(None),
                number => number.parse().ok().filter(|n| (1..=64).contains(n)).map(Some).ok_or_else(|| {
                    Error::usage(
                        format!("`{number}` is not a number of channels"),
                        "give auto, or numbers from 1 to 64",
                    )
                }),
            })
            .collect()
    }

    /// The launch mode that was asked for.
    pub(crate) fn launch(&self) -> Result<Option<Launch>, Error> {
        let unknown = |e: UnknownName| Error::Usage { message: e.to_string(), hint: None };
        self.launch.as_deref().map(str::parse).transpose().map_err(unknown)
    }

    /// What is asked of a machine, and how NCCL is told to run the call on it.
    pub(crate) fn spec(&self, machine: &MachineArgs, nodes: Option<u32>) -> Result<SiteSpec, Error> {
        let (ranks, split, launch) = (self.asked_ranks()?, self.split()?, self.launch()?);
        let site = self.nccl.on(machine.spec(nodes)?)?;
        Ok(SiteSpec { ranks, split, launch, cold: self.cold, registered: self.registered, ..site })
    }

    /// The machine with a number of hosts, and how NCCL is run on it.
    pub(crate) fn site(&self, machine: &MachineArgs, nodes: Option<u32>) -> Result<Site, Error> {
        self.spec(machine, nodes)?.load()
    }

    /// The calls of a group (`[COLLECTIVE:]SIZE[*TIMES]`, separated by commas), for so many ranks.
    pub(crate) fn grouped(&self, text: &str, ranks: u32) -> Result<Vec<Call>, Error> {
        let hint = "calls look like 64K, all_gather:1M or all_reduce:64K*48, with commas between them";
        if self.collective.contains(',') {
            return Err(Error::usage("a group takes one --collective, for calls that name none", hint));
        }
        let mut calls = Vec::new();
        for item in text.split(',') {
            let (collective, rest) = match item.trim().split_once(':') {
                Some((name, rest)) => (name, rest),
                None => (self.collective.as_str(), item.trim()),
            };
            let collective: Collective =
                collective.trim().parse().map_err(|e: UnknownName| Error::usage(format!("--group: {e}"), hint))?;
            let (bytes, times) = match rest.split_once('*') {
                None => (rest, Some(1)),
                Some((bytes, times)) => {
                    (bytes, times.trim().parse::<usize>().ok().filter(|n| (1..=MOST_CALLS).contains(n)))
                }
            };
            let times = times.ok_or_else(|| {
                Error::usage(format!("--group: `{item}` is to be done 1 to {MOST_CALLS} times"), hint)
            })?;
            let call = self.call(collective, ranks, size(bytes.trim())?)?;
            calls.extend(std::iter::repeat_n(call, times));
        }
        Ok(calls)
    }

    /// Refuses options that none of the calls asked for would heed.
    pub(crate) fn check(&self, given: &Named) -> Result<(), Error> {
        if self.counts.is_some() {
            let sizes = ["--size", "--minbytes", "--maxbytes", "--stepfactor"];
            given.without(&sizes, "--counts says how much is sent", "leave it out, or --counts")?;
        }
        if self.minbytes.is_none() && self.maxbytes.is_none() {
            given.without(&["--stepfactor"], "it goes from one size to a largest", "add --minbytes and --maxbytes")?;
        }
        if self.schedule.is_some() {
            return given.without(&["--explain-choice"], "a file leaves NCCL no choice", "leave it out, or --schedule");
        }
        if !self.collectives()?.into_iter().any(Collective::reduces) {
            let why = format!("{} reduces nothing", self.collective);
            given.without(&["--op"], &why, "leave it out; all_reduce, reduce_scatter and reduce take it")?;
        }
        if !self.collectives()?.into_iter().any(Collective::rooted) {
            let why = format!("{} has no root", self.collective);
            given.without(&["--root"], &why, "leave it out; broadcast, reduce, gather and scatter take it")?;
        }
        let chosen = self.algorithms()?.contains(&Choice::Auto) || self.protocols()?.contains(&Choice::Auto);
        match chosen {
            true => Ok(()),
            false => given.without(
                &["--explain-choice"],
                "NCCL has nothing to choose",
                "leave out --algorithm or --protocol",
            ),
        }
    }

    /// Refuses `--split` where a command does one communicator's work.
    pub(crate) fn no_split(&self, command: &str) -> Result<(), Error> {
        match &self.split {
            Some(_) => Err(Error::usage(
                format!("{command} takes no --split"),
                "leave it out; `collcast sweep --split` forecasts several communicators at once",
            )),
            None => Ok(()),
        }
    }

    /// How `--split` splits ranks.
    fn split(&self) -> Result<Option<Split>, Error> {
        let hint = "as NCCL_TESTS_SPLIT of nccl-tests, such as --split %8";
        let unknown = |e: SplitError| Error::usage(format!("--split: {e}"), hint);
        self.split.as_deref().map(str::parse).transpose().map_err(unknown)
    }

    /// The communicators that `--split` makes of the first ranks.
    pub(super) fn groups(&self, topology: &Topology, ranks: u32) -> Result<Option<Arc<Vec<Vec<Rank>>>>, Error> {
        let Some(split) = self.split()? else { return Ok(None) };
        if ranks > topology.ranks() {
            let (gpus, topology) = (topology.ranks(), topology.name.clone());
            return Err(PredictError::TooFewGpus { ranks, topology, gpus }.into());
        }
        if !split.fits(ranks) {
            return Err(Error::usage(
                format!("--split {}: there are only {ranks} ranks to split", self.split.as_deref().unwrap_or_default()),
                "%N makes N communicators, /N communicators of N ranks",
            ));
        }
        Ok(Some(Arc::new(split.groups(ranks))))
    }

    /// The call of one collective and size.
    pub(crate) fn call(&self, collective: Collective, ranks: u32, size: u64) -> Result<Call, Error> {
        let named = |e: UnknownName| Error::Usage { message: e.to_string(), hint: None };
        let dtype: DataType = self.dtype.parse().map_err(named)?;
        let op: ReduceOp = self.op.parse().map_err(named)?;
        let mut call = Call::of_size(collective, ranks, Bytes(size), dtype).aligned();
        call.op = op;
        call.root = Rank(self.root);
        call.in_place = self.in_place;
        if let Some(path) = &self.counts {
            call.counts = Some(read_counts(path, ranks, dtype)?);
        }
        Ok(call)
    }
}

/// Most bytes that a matrix of counts may send in all, 1 TiB: nothing of such a call is simulated once for many.
const MAX_MATRIX_BYTES: u64 = 1 << 40;

/// The matrix of elements from each of so many ranks to each.
fn read_counts(path: &Path, ranks: u32, dtype: DataType) -> Result<Arc<[u64]>, Error> {
    const HINT: &str = "the file holds one row per sending rank, whole numbers separated by commas, no header";
    let text = read_text("read the counts", path)?;
    let at = |row: usize, what: String| Error::usage(format!("{}:{}: {what}", path.display(), row + 1), HINT);
    let mut counts: Vec<u64> = Vec::new();
    let mut rows = 0;
    for (row, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        for (column, cell) in cells.iter().enumerate() {
            let wrong = || at(row, format!("column {}: `{}` is not a count of elements", column + 1, quote(cell)));
            counts.push(cell.parse().map_err(|_| wrong())?);
        }
        if cells.len() != ranks as usize {
            return Err(at(
                row,
                format!("{ranks} ranks need {ranks} rows of {ranks} counts; this one has {}", cells.len()),
            ));
        }
        rows += 1;
    }
    if rows != ranks {
        let what = format!("{ranks} ranks need {ranks} rows of {ranks} counts; there are {rows}",);
        return Err(Error::usage(format!("{}: {what}", path.display()), HINT));
    }
    let sum = counts.iter().fold(0_u64, |sum, &count| sum.saturating_add(count)).saturating_mul(dtype.size());
    if sum > MAX_MATRIX_BYTES {
        return Err(Error::usage(
            format!(
                "{}: the ranks send {sum} bytes in all; at most {} are simulated",
                path.display(),
                Bytes(MAX_MATRIX_BYTES)
            ),
            "counts are elements, not bytes: divide all of them by the same number, the pattern stays",
        ));
    }
    Ok(counts.into())
}

//! The selectors: which machine, collective, sizes, algorithms. The same in every command.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use clap::parser::ValueSource;
use collcast_hwbackend::read::{ENVIRONMENT, UNSAID};
use collcast_reports::model::{Cell, Column, Input, Status, Table};
use collcast_sim::collective::{Algorithm, Collective, DataType, Launch, Protocol, ReduceOp};
use collcast_sim::domain::Beyond;
use collcast_sim::engine::Unobserved;
use collcast_sim::ids::{HostId, Rank};
use collcast_sim::model::nccl::search::Given;
use collcast_sim::model::nccl::settings::{self, SettingsError};
use collcast_sim::model::nccl::{CsvTuner, Environment, Tuner, Version};
use collcast_sim::network::{NicSet, Transport};
use collcast_sim::predict::{Choice, MOST_CALLS, PredictError, Prediction, Predictor, Settings};
use collcast_sim::profile::{Layer, Profile};
use collcast_sim::schedule::Call;
use collcast_sim::schedule::msccl::Imported;
use collcast_sim::split::{Split, SplitError};
use collcast_sim::topology::Topology;
use collcast_sim::units::{Bytes, parse_size};
use collcast_topologies::placement::place;

use crate::error::CliError;
use crate::files::read_text;

/// Most points of a sweep: a slip such as `1:8G:1` must not run for ever.
const MAX_POINTS: usize = 100_000;

#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct MachineArgs {
    /// Built-in machine or topology file (.toml, NCCL .xml, nvidia-smi topo -m .txt)
    #[arg(value_name = "TOPOLOGY", help_heading = "Machine")]
    pub(crate) machine: Option<String>,
    /// The same as the positional TOPOLOGY
    #[arg(short, long, value_name = "TOPOLOGY", conflicts_with = "machine", help_heading = "Machine")]
    pub(crate) topology: Option<String>,
    /// Hosts; a list such as 2,4,8 in sweep
    #[arg(long, alias = "hosts", value_name = "N[,N]", value_delimiter = ',', help_heading = "Machine")]
    pub(crate) nodes: Vec<u32>,
    /// GPUs of each host, from the first
    #[arg(long, value_name = "N", help_heading = "Machine")]
    pub(crate) gpus: Option<u32>,
    /// Rank order and GPUs used: block, cyclic, plane=N, a list such as 0-3,8-11 or
    /// gpu[01-04]:0-3, or @FILE with such lines
    #[arg(long, value_name = "PLACEMENT", help_heading = "Machine")]
    pub(crate) placement: Option<String>,
    /// Profile: built-in name or TOML file; several layer, the later wins per parameter
    #[arg(long, value_name = "PROFILE", help_heading = "Machine")]
    pub(crate) profile: Vec<String>,
    /// Channels to take in place of NCCL's search: a graph XML, as NCCL_GRAPH_FILE takes it
    #[arg(long, value_name = "FILE", help_heading = "Machine")]
    pub(crate) graph: Option<PathBuf>,
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

    /// Refuses options that would do nothing.
    pub(crate) fn without(&self, options: &[&str], why: &str, hint: &str) -> Result<(), CliError> {
        let named: Vec<&str> = options.iter().copied().filter(|option| self.has(option)).collect();
        match named.as_slice() {
            [] => Ok(()),
            [one] => Err(CliError::usage(format!("{one} has no meaning here: {why}"), hint)),
            many => Err(CliError::usage(format!("{} have no meaning here: {why}", many.join(", ")), hint)),
        }
    }

    fn has(&self, option: &str) -> bool {
        self.0.iter().any(|given| given == option)
    }
}

/// Adds to the help of `--size` what a command takes where none is given.
pub(crate) fn default_sizes(sizes: &'static str) -> impl Fn(clap::Arg) -> clap::Arg {
    move |arg| {
        let help = format!("{} [default: {sizes}]", arg.get_help().cloned().unwrap_or_default());
        arg.help(help)
    }
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
    /// Sizes as nccl-tests counts them: 64M, a list, or a range FROM:TO:FACTOR
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
    /// single_thread, threads, processes or graph [default: processes on several hosts, else threads]
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

/// What NCCL is told on one machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    pub(crate) settings: Settings,
    /// A tuner that a variable names a table for.
    pub(crate) tuner: Option<Tuner>,
    /// For the first lines of the output.
    pub(crate) assumptions: Vec<String>,
    pub(crate) warnings: Vec<String>,
}

impl NcclArgs {
    /// The variables that `--env` gives.
    pub(crate) fn variables(&self) -> Result<Vec<(String, String)>, CliError> {
        self.env.iter().map(|text| variables(text)).collect::<Result<Vec<_>, _>>().map(|lists| lists.concat())
    }

    /// What NCCL is told on a machine: its own variables, then those given.
    pub(crate) fn told(&self, topology: &Topology) -> Result<Told, CliError> {
        let version = match &self.nccl {
            Some(text) => {
                Some(Version::asked(text).map_err(|e| CliError::usage(format!("--nccl: {e}"), Version::known()))?)
            }
            None => topology.software.nccl.as_deref().and_then(|text| text.parse().ok()),
        };
        let (rules, note) = version.unwrap_or_default().covered();
        let mut pairs = topology.software.env.clone();
        pairs.extend(self.variables()?);
        let environment = Environment::parse(&pairs, rules).map_err(|e| match e {
            SettingsError::SmallBuffer { .. } => CliError::usage(e.to_string(), "leave it out for NCCL's default"),
            _ => CliError::usage(
                format!("NCCL {rules} would not start: {e}"),
                "names are separated by commas, without spaces",
            ),
        })?;
        let moves = |name: &str| Transport::VARIABLES.contains(&name);
        let moving = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())).filter(|(name, _)| moves(name));
        let transport = Transport::from_env(topology, rules, moving)
            .map_err(|e| CliError::Usage { message: format!("--env: {e}"), hint: None })?;
        let mut told = Told {
            settings: Settings { version: Some(rules), nccl: environment.settings, transport, ..Settings::default() },
            warnings: environment.warnings,
            ..Told::default()
        };
        told.assumptions.extend(note);
        if !pairs.is_empty() {
            let quoted = |value: &str| match value.contains(char::is_whitespace) {
                true => format!("'{value}'"),
                false => value.to_owned(),
            };
            let set: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}={}", quoted(value))).collect();
            told.assumptions.push(format!("{ENVIRONMENT}{}", set.join(" ")));
        }
        let ignored: Vec<&str> = environment.ignored.iter().map(String::as_str).filter(|name| !moves(name)).collect();
        if !ignored.is_empty() {
            told.assumptions.push(format!("without effect on the forecast: {}", ignored.join(" ")));
        }
        told.warnings.extend(environment.not_modelled.iter().map(|what| format!("not_modelled: {what}")));
        let hcas = pairs.iter().filter(|(name, _)| name == "NCCL_IB_HCA");
        let unknown = hcas.filter_map(|(_, value)| Some((value, NicSet::of_hcas(topology, value).err()?)));
        told.warnings.extend(unknown.map(|(value, why)| format!("not_modelled: NCCL_IB_HCA={value}: {why}")));
        if let Some(path) = environment.tuner_file.filter(|_| !environment.settings.no_tuner) {
            let text = read_text("read the tuner's table (NCCL_TUNER_CONFIG_FILE)", &path)?;
            let csv = CsvTuner::parse(&text);
            told.warnings.extend(csv.warnings.iter().take(8).map(|warning| format!("{path}: {warning}")));
            told.assumptions.push(format!("NVIDIA's example tuner plugin is loaded, with {path}"));
            told.tuner = Some(Tuner::Csv(Arc::new(csv)));
        }
        Ok(told)
    }
}

impl MachineArgs {
    pub(crate) fn name(&self) -> Option<&str> {
        self.machine.as_deref().or(self.topology.as_deref())
    }

    /// Loads the machine with a number of hosts.
    pub(crate) fn load(&self, nodes: Option<u32>) -> Result<Topology, CliError> {
        let name = self.name().unwrap_or("dgx-h100");
        let topology = collcast_topologies::load_any(name, nodes, self.gpus)?;
        let Some(placement) = &self.placement else { return Ok(topology) };
        let text = match placement.strip_prefix('@') {
            Some(path) => read_text("read the placement", path)?,
            None => placement.clone(),
        };
        let mut topology = place(&topology, &text).map_err(|e| {
            CliError::usage(format!("--placement: {e}"), "`collcast topo show` lists the hosts and GPUs of a machine")
        })?;
        let placed = if placement.len() > 60 { "a list" } else { placement.as_str() };
        topology.assumptions.push(format!("ranks placed by {placed}: {} of them", topology.ranks()));
        Ok(topology)
    }

    /// The number of hosts where only one makes sense.
    pub(crate) fn one_node_count(&self) -> Result<Option<u32>, CliError> {
        match self.nodes.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(*one)),
            _ => {
                Err(CliError::usage("--nodes takes one number here", "use `collcast sweep` for a list of node counts"))
            }
        }
    }

    /// The graphs given for the first `ranks` GPUs of a machine.
    pub(crate) fn graphs(&self, topology: &Topology, ranks: Option<u32>) -> Result<Given, CliError> {
        let Some(path) = &self.graph else { return Ok(Given::default()) };
        let given = collcast_topologies::graph::read_path(path)?;
        let ranks = ranks.unwrap_or_else(|| topology.ranks());
        given.check(topology, ranks).map_err(|what| {
            CliError::usage(
                format!("the graph `{}` is not one of `{}`: {what}", path.display(), topology.name),
                "use the graph of a host like these, with the same GPUs and NICs",
            )
        })?;
        Ok(given)
    }

    /// The profile asked for, or the one that the machine names, with notes on what was taken.
    pub(crate) fn load_profile(&self, topology: &Topology) -> Result<(Profile, Vec<Input>), CliError> {
        let mut names = self.profile.clone();
        if names.is_empty() {
            names.push(topology.profile.clone().unwrap_or_else(|| "prior".to_owned()));
        }
        let mut profile = Profile::builtin("prior")?;
        let mut inputs = Vec::new();
        for name in names {
            let (text, path) = match Profile::builtin_text(&name) {
                Some(text) => (text.to_owned(), None),
                None if name.ends_with(".toml") || name.contains('/') => {
                    let path = PathBuf::from(&name);
                    let text = read_text("read the profile", &path)?;
                    (text, Some(name.clone()))
                }
                None => {
                    Profile::builtin(&name)?;
                    continue;
                }
            };
            profile = profile.layered(Layer::stacked(&text, &name)?);
            inputs.push(Input { name: "profile".to_owned(), path, hash: content_hash(text.as_bytes()) });
        }
        Ok((profile, inputs))
    }
}

/// What of a forecast no column or line of its output can say, so that `validate` could not ask for the same.
pub(crate) fn unsaid(machine: &MachineArgs, call: &CallArgs, machines: &BTreeMap<u32, Topology>) -> Vec<&'static str> {
    let spread = |(&nodes, topology): (&u32, &Topology)| {
        let mut on: BTreeMap<HostId, u32> = BTreeMap::new();
        for rank in 0..call.ranks.unwrap_or(topology.ranks()).min(topology.ranks()) {
            *on.entry(topology.host_of(Rank(rank))).or_default() += 1;
        }
        let mut each = on.values();
        let first = each.next();
        on.len() == nodes as usize && each.all(|ranks| Some(ranks) == first)
    };
    let flags = [
        ("--split", call.split.is_some()),
        ("--schedule", call.schedule.is_some()),
        ("--counts", call.counts.is_some()),
        ("--cold", call.cold),
        ("--placement", machine.placement.is_some()),
        ("--graph", machine.graph.is_some()),
        ("how many ranks each host has", !machines.iter().all(spread)),
    ];
    flags.into_iter().filter(|flag| flag.1).map(|flag| flag.0).collect()
}

/// The line that tells readers of the output so.
pub(crate) fn unsaid_line(what: &[&str]) -> Option<String> {
    (!what.is_empty()).then(|| format!("{UNSAID}{}: `validate` cannot ask for the same again", what.join(", ")))
}

/// Columns that say what a forecast was asked for, beside algorithm, protocol and channels.
pub(crate) fn asked_columns() -> [Column; 7] {
    [
        Column::text("launch", "launch"),
        Column::text("registered", "registered"),
        Column::text("in_place", "in place"),
        Column::text("dtype", "type"),
        Column::text("op", "op"),
        Column::number("root", "root"),
        Column::text("nccl_version", "NCCL"),
    ]
}

/// The cells of [`asked_columns`].
pub(crate) fn asked_cells(call: &Call, settings: &Settings) -> [Cell; 7] {
    let version = settings.version.unwrap_or_default().to_string();
    [
        settings.launch.name().into(),
        settings.registered.into(),
        call.in_place.into(),
        call.dtype.name().into(),
        call.collective.reduces().then_some(call.op.name()).map(Cell::from).into(),
        call.collective.rooted().then_some(call.root.0).into(),
        version.into(),
    ]
}

/// Takes columns out of a table.
pub(crate) fn hide(table: &mut Table, hidden: &[&str]) {
    let keep: Vec<bool> = table.columns.iter().map(|c| !hidden.contains(&c.key)).collect();
    let mut kept = keep.iter();
    table.columns.retain(|_| *kept.next().unwrap_or(&true));
    for row in &mut table.rows {
        let mut kept = keep.iter();
        row.retain(|_| *kept.next().unwrap_or(&true));
    }
}

/// A hash of content that is the same on every machine (FNV-1a, 64 bits).
pub(crate) fn content_hash(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("fnv1a64:{hash:016x}")
}

fn list<T: FromStr>(text: &str) -> Result<Vec<T>, CliError>
where
    T::Err: std::fmt::Display,
{
    text.split(',')
        .map(|item| item.trim().parse().map_err(|e: T::Err| CliError::Usage { message: e.to_string(), hint: None }))
        .collect()
}

fn choices<T: FromStr + Copy>(text: &str) -> Result<Vec<Choice<T>>, CliError>
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
                .map_err(|e: T::Err| CliError::Usage { message: format!("{e} (or auto, best)"), hint: None }),
        })
        .collect()
}

fn size(text: &str) -> Result<u64, CliError> {
    let bytes = parse_size(text).map_err(|e| CliError::usage(e.to_string(), "sizes look like 8, 64K, 1MiB or 4G"))?;
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').trim();
    if matches!(unit, "kB" | "KB" | "MB" | "GB" | "TB") {
        say!("note: {text} is decimal: {} bytes; nccl-tests' {} is binary", bytes.0, unit.trim_end_matches('B'));
    }
    Ok(bytes.0)
}

impl CallArgs {
    /// The sizes asked for.
    pub(crate) fn sizes(&self) -> Result<Vec<u64>, CliError> {
        let text = match &self.size {
            Some(text) => text.clone(),
            None if self.minbytes.is_none() && self.maxbytes.is_none() && self.stepfactor.is_none() => {
                "8:8GiB:2".to_owned()
            }
            None => {
                let from = self.minbytes.clone().unwrap_or_else(|| "32M".to_owned());
                let to = self.maxbytes.clone().unwrap_or_else(|| from.clone());
                format!("{from}:{to}:{}", self.stepfactor.unwrap_or(2))
            }
        };
        let mut sizes = Vec::new();
        for item in text.split(',') {
            match item.split(':').collect::<Vec<_>>().as_slice() {
                [one] => sizes.push(size(one)?),
                [from, to] | [from, to, _] => {
                    let factor = match item.split(':').nth(2) {
                        None => 2,
                        Some(f) => f.trim().parse::<u64>().ok().filter(|&f| f >= 2).ok_or_else(|| {
                            CliError::usage(
                                format!("the factor `{f}` of the range `{item}` must be a whole number from 2"),
                                "ranges are FROM:TO:FACTOR, such as 8:8GiB:2",
                            )
                        })?,
                    };
                    let (from, to) = (size(from)?, size(to)?);
                    if from == 0 || from > to {
                        return Err(CliError::usage(
                            format!("the range `{item}` is empty"),
                            "ranges go from a size above 0 up to a larger one",
                        ));
                    }
                    let mut at = from;
                    while at <= to {
                        sizes.push(at);
                        match at.checked_mul(factor) {
                            Some(next) => at = next,
                            None => break,
                        }
                    }
                }
                _ => {
                    return Err(CliError::usage(
                        format!("`{item}` is not a size or a range"),
                        "ranges are FROM:TO:FACTOR, such as 8:8GiB:2",
                    ));
                }
            }
        }
        Ok(sizes)
    }

    pub(crate) fn collectives(&self) -> Result<Vec<Collective>, CliError> {
        match self.collective.as_str() {
            "all" => Ok(Collective::ALL.to_vec()),
            names => list(names),
        }
    }

    pub(crate) fn algorithms(&self) -> Result<Vec<Choice<Algorithm>>, CliError> {
        choices(&self.algorithm)
    }

    pub(crate) fn protocols(&self) -> Result<Vec<Choice<Protocol>>, CliError> {
        choices(&self.protocol)
    }

    pub(crate) fn channel_counts(&self) -> Result<Vec<Option<u32>>, CliError> {
        self.channels
            .split(',')
            .map(|item| match item.trim() {
                "auto" => Ok(None),
                number => number.parse().ok().filter(|n| (1..=64).contains(n)).map(Some).ok_or_else(|| {
                    CliError::usage(
                        format!("`{number}` is not a number of channels"),
                        "give auto, or numbers from 1 to 64",
                    )
                }),
            })
            .collect()
    }

    /// The launch mode, by default that of nccl-tests on such a machine.
    pub(crate) fn launch(&self, hosts: usize) -> Result<Launch, CliError> {
        match &self.launch {
            Some(text) => text.parse().map_err(|e: collcast_sim::collective::UnknownName| CliError::Usage {
                message: e.to_string(),
                hint: None,
            }),
            None if hosts > 1 => Ok(Launch::Processes),
            None => Ok(Launch::Threads),
        }
    }

    /// What NCCL is told on a machine, and how it is called.
    pub(crate) fn told(&self, topology: &Topology) -> Result<Told, CliError> {
        let mut told = self.nccl.told(topology)?;
        told.settings.launch = self.launch(topology.hosts().len())?;
        (told.settings.cold, told.settings.registered) = (self.cold, self.registered);
        Ok(told)
    }

    /// The calls of a group (`[COLLECTIVE:]SIZE[*TIMES]`, separated by commas), for so many ranks.
    pub(crate) fn grouped(&self, text: &str, ranks: u32) -> Result<Vec<Call>, CliError> {
        let hint = "calls look like 64K, all_gather:1M or all_reduce:64K*48, with commas between them";
        if self.collective.contains(',') {
            return Err(CliError::usage("a group takes one --collective, for calls that name none", hint));
        }
        let mut calls = Vec::new();
        for item in text.split(',') {
            let (collective, rest) = match item.trim().split_once(':') {
                Some((name, rest)) => (name, rest),
                None => (self.collective.as_str(), item.trim()),
            };
            let collective: Collective = collective
                .trim()
                .parse()
                .map_err(|e: collcast_sim::collective::UnknownName| CliError::usage(format!("--group: {e}"), hint))?;
            let (bytes, times) = match rest.split_once('*') {
                None => (rest, Some(1)),
                Some((bytes, times)) => {
                    (bytes, times.trim().parse::<usize>().ok().filter(|n| (1..=MOST_CALLS).contains(n)))
                }
            };
            let times = times.ok_or_else(|| {
                CliError::usage(format!("--group: `{item}` is to be done 1 to {MOST_CALLS} times"), hint)
            })?;
            let call = self.call(collective, ranks, size(bytes.trim())?)?;
            calls.extend(std::iter::repeat_n(call, times));
        }
        Ok(calls)
    }

    /// Refuses options that none of the calls asked for would heed.
    pub(crate) fn check(&self, given: &Named) -> Result<(), CliError> {
        if self.counts.is_some() {
            let sizes = ["--size", "--minbytes", "--maxbytes", "--stepfactor"];
            given.without(&sizes, "--counts says how much is sent", "leave it out, or --counts")?;
        }
        if self.maxbytes.is_none() {
            given.without(&["--stepfactor"], "it goes from one size to a largest", "add --maxbytes")?;
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
    pub(crate) fn no_split(&self, command: &str) -> Result<(), CliError> {
        match &self.split {
            Some(_) => Err(CliError::usage(
                format!("{command} takes no --split"),
                "leave it out; `collcast sweep --split` forecasts several communicators at once",
            )),
            None => Ok(()),
        }
    }

    /// The communicators that `--split` makes of the first ranks.
    fn groups(&self, topology: &Topology, ranks: u32) -> Result<Option<Arc<Vec<Vec<Rank>>>>, CliError> {
        let Some(text) = &self.split else { return Ok(None) };
        let split: Split = text.parse().map_err(|e: SplitError| {
            CliError::usage(format!("--split: {e}"), "as NCCL_TESTS_SPLIT of nccl-tests, such as --split %8")
        })?;
        if ranks > topology.ranks() {
            let (gpus, topology) = (topology.ranks(), topology.name.clone());
            return Err(PredictError::TooFewGpus { ranks, topology, gpus }.into());
        }
        if !split.fits(ranks) {
            return Err(CliError::usage(
                format!("--split {text}: there are only {ranks} ranks to split"),
                "%N makes N communicators, /N communicators of N ranks",
            ));
        }
        Ok(Some(Arc::new(split.groups(ranks))))
    }

    /// The call of one collective and size.
    pub(crate) fn call(&self, collective: Collective, ranks: u32, size: u64) -> Result<Call, CliError> {
        let named = |e: collcast_sim::collective::UnknownName| CliError::Usage { message: e.to_string(), hint: None };
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

/// The variables of one `--env`: a pair, or a file of pairs.
fn variables(text: &str) -> Result<Vec<(String, String)>, CliError> {
    if let Ok(pair) = settings::pair(text) {
        return Ok(vec![pair]);
    }
    let content = read_text("read the variables (--env takes NAME=VALUE or a file)", text)?;
    settings::pairs_of_file(&content)
        .map_err(|e| CliError::usage(format!("{text}: {e}"), "the file holds one NAME=VALUE a line, # for comments"))
}

/// Most bytes that a matrix of counts may send in all, 1 TiB: nothing of such a call is simulated once for many.
const MAX_MATRIX_BYTES: u64 = 1 << 40;

/// The matrix of elements from each of so many ranks to each.
fn read_counts(path: &Path, ranks: u32, dtype: DataType) -> Result<Arc<[u64]>, CliError> {
    const HINT: &str = "the file holds one row per sending rank, whole numbers separated by commas, no header";
    let text = read_text("read the counts", path)?;
    let at = |row: usize, what: String| CliError::usage(format!("{}:{}: {what}", path.display(), row + 1), HINT);
    let mut counts: Vec<u64> = Vec::new();
    let mut rows = 0;
    for (row, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        for (column, cell) in cells.iter().enumerate() {
            let wrong = || at(row, format!("column {}: `{cell}` is not a count of elements", column + 1));
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
        return Err(CliError::usage(format!("{}: {what}", path.display()), HINT));
    }
    let sum = counts.iter().fold(0_u64, |sum, &count| sum.saturating_add(count)).saturating_mul(dtype.size());
    if sum > MAX_MATRIX_BYTES {
        return Err(CliError::usage(
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

/// One point of a sweep.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(crate) nodes: u32,
    pub(crate) call: Call,
    pub(crate) algorithm: Choice<Algorithm>,
    pub(crate) protocol: Choice<Protocol>,
    pub(crate) channels: Option<u32>,
    /// In place of algorithm, protocol and channels.
    pub(crate) schedule: Option<Arc<Imported>>,
    /// The communicators that do the call at once, if there are several; `call` is that of the first.
    pub(crate) groups: Option<Arc<Vec<Vec<Rank>>>>,
}

/// The points of an imported algorithm: the sizes that it is for.
fn imported_points(
    call: &CallArgs,
    path: &PathBuf,
    machines: &BTreeMap<u32, Topology>,
) -> Result<Vec<Point>, CliError> {
    let text = read_text("read the schedule", path)?;
    let imported = Arc::new(Imported::parse(&text, &path.display().to_string())?);
    let (mut points, mut misfits) = (Vec::new(), Vec::new());
    for &nodes in machines.keys() {
        for size in call.sizes()? {
            let call = call.call(imported.collective, call.ranks.unwrap_or(imported.ranks), size)?;
            match imported.check(&call) {
                Ok(()) => points.push(Point {
                    nodes,
                    call,
                    algorithm: Choice::Forced(Algorithm::Msccl),
                    protocol: Choice::Forced(imported.protocol),
                    channels: None,
                    groups: None,
                    schedule: Some(Arc::clone(&imported)),
                }),
                Err(error) => misfits.push(error),
            }
        }
    }
    match misfits.into_iter().next() {
        Some(error) if points.is_empty() => return Err(error.into()),
        Some(error) => say!("note: sizes that the file is not for are left out: {}", error.what),
        None => {}
    }
    Ok(points)
}

/// All points of a sweep, machines by node count.
pub(crate) fn points(call: &CallArgs, machines: &BTreeMap<u32, Topology>) -> Result<Vec<Point>, CliError> {
    if let Some(path) = &call.schedule {
        return imported_points(call, path, machines);
    }
    let (algorithms, protocols, channels) = (call.algorithms()?, call.protocols()?, call.channel_counts()?);
    let (collectives, sizes) = (call.collectives()?, call.sizes()?);
    let count = [machines.len(), collectives.len(), algorithms.len(), protocols.len(), channels.len(), sizes.len()]
        .into_iter()
        .fold(1_usize, usize::saturating_mul);
    if count > MAX_POINTS {
        return Err(CliError::usage(
            format!("the sweep has {count} points; at most {MAX_POINTS} are run"),
            "take fewer sizes or algorithms",
        ));
    }
    let mut points = Vec::with_capacity(count);
    for (&nodes, topology) in machines {
        let ranks = call.ranks.unwrap_or(topology.ranks());
        let groups = call.groups(topology, ranks)?;
        let ranks = groups.as_ref().and_then(|g| g.first()).map_or(ranks, |g| u32::try_from(g.len()).unwrap_or(ranks));
        for &collective in &collectives {
            for &algorithm in &algorithms {
                for &protocol in &protocols {
                    for &channels in &channels {
                        for &size in &sizes {
                            points.push(Point {
                                nodes,
                                call: call.call(collective, ranks, size)?,
                                algorithm,
                                protocol,
                                channels,
                                schedule: None,
                                groups: groups.clone(),
                            });
                        }
                    }
                }
            }
        }
    }
    Ok(points)
}

/// What predictions say that rest on constants of switches which nobody measured.
pub(crate) const UNMEASURED_SWITCHES: &str =
    "reduction and multicast in switches: constants cited from NCCL's cost model, not measured";

/// How far to trust predictions: status, confidence and what they rest on.
pub(crate) fn trust(beyond: &Beyond) -> (Status, String, String) {
    let (status, confidence) =
        if beyond.is_empty() { (Status::Ok, "medium".to_owned()) } else { (Status::Warning, format!("low: {beyond}")) };
    (status, confidence, beyond.basis().to_owned())
}

impl Point {
    /// Predicts this point.
    pub(crate) fn predict(&self, predictor: &Predictor<'_>, settings: &Settings) -> Result<Prediction, PredictError> {
        match &self.schedule {
            Some(imported) => predictor.predict_imported(imported, &self.call, settings, &mut Unobserved),
            None => match &self.groups {
                Some(groups) => {
                    let call = |ranks| Call { count: self.count_for(ranks), ranks, ..self.call.clone() };
                    predictor.predict_split(groups, &call, (self.algorithm, self.protocol), settings)
                }
                None => predictor.predict(&self.call, self.algorithm, self.protocol, settings),
            },
        }
    }

    /// What an output says of several communicators at once.
    pub(crate) fn split_note(&self) -> Option<String> {
        let groups = self.groups.as_ref()?;
        let most = groups.iter().map(Vec::len).max().unwrap_or(0);
        Some(format!("{} communicators of up to {most} ranks at once; the slowest counts", groups.len()))
    }

    /// Elements of a call of the same size over another number of ranks.
    fn count_for(&self, ranks: u32) -> u64 {
        Call::of_size(self.call.collective, ranks, self.call.size(), self.call.dtype).aligned().count
    }
}

/// The hosts that have ranks, and their GPUs with ranks: `2 hosts x 8 H100-SXM5-80GB, 1 host x 4 A100-PCIE-40GB`.
fn hosts_by_kind(topology: &Topology) -> String {
    let mut by_host: BTreeMap<HostId, (usize, String)> = BTreeMap::new();
    for rank in (0..topology.ranks()).map(Rank) {
        let model = topology.gpu(topology.gpu_of(rank)).map(|g| g.model.clone()).filter(|m| !m.is_empty());
        let host = by_host.entry(topology.host_of(rank)).or_insert((0, model.unwrap_or_else(|| "GPUs".to_owned())));
        host.0 += 1;
    }
    let mut kinds: Vec<((usize, String), usize)> = Vec::new();
    for kind in by_host.into_values() {
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, hosts)) => *hosts += 1,
            None => kinds.push((kind, 1)),
        }
    }
    let plural = |hosts| if hosts == 1 { "" } else { "s" };
    let kind = |((gpus, model), hosts)| format!("{hosts} host{} x {gpus} {model}", plural(hosts));
    kinds.into_iter().map(kind).collect::<Vec<_>>().join(", ")
}

/// What every output says first.
pub(crate) fn assumptions(topology: &Topology, profile: &Profile, settings: &Settings, beyond: &Beyond) -> Vec<String> {
    let version = settings.version.unwrap_or_default();
    let stated = topology.software.nccl.as_deref().and_then(|text| text.parse::<Version>().ok()).is_some();
    let nccl = if stated { version.to_string() } else { format!("{version} rules") };
    let mut lines = vec![
        format!(
            "topology {}: {}; NCCL {nccl}; launch {}{}",
            topology.name,
            hosts_by_kind(topology),
            settings.launch,
            if settings.cold { ", one cold call" } else { ", calls back to back" },
        ),
        format!(
            "profile {}{}: {}{}",
            profile.name,
            if topology.profile.is_none() && profile.name == "prior" { " (the machine names none)" } else { "" },
            profile.evidence,
            if beyond.basis() == "extrapolated" { "; EXTRAPOLATED beyond what it was made with" } else { "" }
        ),
    ];
    lines.extend(topology.assumptions.iter().map(|a| format!("assumed: {a}")));
    lines
}

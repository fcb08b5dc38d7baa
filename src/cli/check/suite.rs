//! The suite file `collcast/suite/1`: what `check` predicts and guards.
//!
//! The doc comments of the raw structs are the descriptions of the JSON schema. Paths are
//! relative to the suite.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use clap::Parser as _;
use collcast_sim::collective::{Collective, Launch, nearest};
use collcast_sim::nccl::{Version, settings};
use collcast_topologies::builtin;
use collcast_topologies::error::Source;
use collcast_topologies::file::parse;
use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;

use super::Selectors;
use crate::validate::percent;
use collcast::Error as CliError;
use collcast::files::read_text;

/// The schema that this module reads.
const SCHEMA: &str = "collcast/suite/1";

/// Most sizes of all entries together: a slip such as `1:8G:1` must not run for ever.
const MAX_POINTS: usize = 1_000_000;

/// A struct with the keys that the suite gives for all machines, and a machine for itself; written
/// out in both, since places in the file are lost where serde flattens.
macro_rules! with_calls {
    ($(#[$meta:meta])* struct $name:ident { $($fields:tt)* }) => {
        #[derive(Deserialize, JsonSchema)]
        $(#[$meta])*
        #[serde(deny_unknown_fields)]
        struct $name {
            $($fields)*
            /// Collectives: all_reduce all_gather reduce_scatter broadcast reduce all_to_all
            /// send_recv; by itself all_reduce
            #[schemars(with = "Option<Vec<String>>")]
            collectives: Option<Vec<Spanned<String>>>,
            /// Sizes whose times are kept, such as `64K` or `8:8GiB:32`; by itself 1K, 1M, 256M
            #[schemars(with = "Option<Vec<String>>")]
            sizes: Option<Vec<Spanned<String>>>,
            /// Sizes over which NCCL's choice is kept; by itself `8:8GiB:2`
            #[schemars(with = "Option<String>")]
            range: Option<Spanned<String>>,
            /// Versions of NCCL; by itself the machine's, else the newest known]
            #[schemars(with = "Option<Vec<String>>")]
            nccl: Option<Vec<Spanned<String>>>,
            /// Variables that NCCL is run with: NAME=VALUE, or a file of such lines; those of the
            /// machine come after those of the suite
            #[schemars(with = "Option<Vec<String>>")]
            env: Option<Vec<Spanned<String>>>,
            /// single_thread, threads, processes or graph [processes on several hosts, else threads]
            #[schemars(with = "Option<String>")]
            launch: Option<Spanned<String>>,
        }
    };
}

with_calls! {
    #[schemars(title = "Collcast suite", rename = "Suite")]
    struct RawSuite {
        /// `collcast/suite/1`
        #[schemars(with = "String")]
        schema: Option<Spanned<String>>,
        /// Changes that do not matter
        #[serde(default)]
        tolerance: RawTolerance,
        /// Everything that is reported fails, as with `--strict`
        #[serde(default)]
        strict: bool,
        /// The machines, at least one
        #[serde(default)]
        machines: Vec<RawMachine>,
        /// Measurements that the forecasts are held against
        #[serde(default)]
        measured: Vec<RawMeasured>,
    }
}

with_calls! {
    /// A machine; what it does not say is as the suite says.
    #[schemars(rename = "Machine")]
    struct RawMachine {
        /// Built-in machine or topology file
        #[schemars(with = "String")]
        topology: Spanned<String>,
        /// Name in the baseline and in reports [the topology's, with the number of hosts]
        #[schemars(with = "Option<String>")]
        name: Option<Spanned<String>>,
        /// Hosts
        #[schemars(with = "Option<u32>")]
        nodes: Option<Spanned<i64>>,
        /// GPUs of each host, from the first
        #[schemars(with = "Option<u32>")]
        gpus: Option<Spanned<i64>>,
        /// Profiles, built-in or files; the later wins per parameter [the machine's]
        #[schemars(with = "Option<Vec<String>>")]
        profile: Option<Vec<Spanned<String>>>,
    }
}

/// Changes that do not matter; flags go before.
#[derive(Deserialize, JsonSchema, Default)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Tolerance")]
struct RawTolerance {
    /// Change of a predicted time [5%]
    #[schemars(with = "Option<String>")]
    time: Option<Spanned<String>>,
    /// Predicted loss of a changed choice [2%]
    #[schemars(with = "Option<String>")]
    choice: Option<Spanned<String>>,
    /// Growth of the median error of measurements, in points [2%]
    #[schemars(with = "Option<String>")]
    error: Option<Spanned<String>>,
}

/// Measurements of a machine.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Measured")]
struct RawMeasured {
    /// nccl-tests logs, JSON, CSV or folders of them
    #[schemars(with = "Vec<String>")]
    files: Spanned<Vec<String>>,
    /// Name of the machine, as in this suite
    #[schemars(with = "String")]
    machine: Spanned<String>,
    /// Name in the baseline and in reports [the first file's]
    #[schemars(with = "Option<String>")]
    name: Option<Spanned<String>>,
    /// Fails where the median error is larger, whatever the baseline says
    #[schemars(with = "Option<String>")]
    max_error: Option<Spanned<String>>,
}

/// A checked suite.
#[derive(Clone, Debug)]
pub(crate) struct Suite {
    pub(crate) machines: Vec<MachineSpec>,
    pub(crate) measured: Vec<MeasuredSpec>,
    pub(crate) tolerance: Tolerance,
    pub(crate) strict: bool,
}

/// Changes that do not matter, as fractions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tolerance {
    pub(crate) time: f64,
    pub(crate) choice: f64,
    pub(crate) error: f64,
}

/// A machine and what is called on it.
#[derive(Clone, Debug)]
pub(crate) struct MachineSpec {
    pub(crate) name: String,
    pub(crate) topology: String,
    pub(crate) nodes: Option<u32>,
    pub(crate) gpus: Option<u32>,
    pub(crate) profile: Vec<String>,
    pub(crate) collectives: Vec<Collective>,
    /// Whose times are kept, ascending.
    pub(crate) sizes: Vec<u64>,
    /// Over which choices are kept, ascending.
    pub(crate) range: Vec<u64>,
    pub(crate) nccl: Vec<Version>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) launch: Option<Launch>,
}

/// Measurements that the forecasts of a machine are held against.
#[derive(Clone, Debug)]
pub(crate) struct MeasuredSpec {
    pub(crate) name: String,
    /// Index of the machine.
    pub(crate) machine: usize,
    pub(crate) files: Vec<PathBuf>,
    pub(crate) max_error: Option<f64>,
}

/// The JSON schema of suites.
pub(crate) fn json_schema() -> String {
    serde_json::to_string_pretty(&schemars::schema_for!(RawSuite)).unwrap_or_default()
}

/// Reads a suite.
pub(crate) fn read(path: &Path) -> Result<Suite, CliError> {
    let text = read_text("read the suite", path)?;
    let file = path.display().to_string();
    let folder = path.parent().unwrap_or_else(|| Path::new(""));
    Reader { source: Source::new(&file, &text), folder }.suite()
}

struct Reader<'a> {
    source: Source<'a>,
    folder: &'a Path,
}

impl Reader<'_> {
    fn suite(&self) -> Result<Suite, CliError> {
        let raw: RawSuite = parse(self.source)?;
        match &raw.schema {
            Some(schema) if schema.get_ref() == SCHEMA => {}
            Some(schema) => {
                let known = format!("expected \"{SCHEMA}\"");
                return Err(self.bad(schema.span(), "the schema is not known", known, ""));
            }
            None => {
                let hint = format!("start it with: schema = \"{SCHEMA}\"");
                return Err(self.source.whole("the file does not say its schema", hint).into());
            }
        }
        if raw.machines.is_empty() {
            let hint = "add [[machines]] with topology = \"dgx-h100\" (collcast topo list)";
            return Err(self.source.whole("the suite has no machine", hint).into());
        }
        let machines: Vec<MachineSpec> =
            raw.machines.iter().map(|machine| self.machine(machine, &raw)).collect::<Result<_, _>>()?;
        let mut names = BTreeSet::new();
        for (machine, raw) in machines.iter().zip(&raw.machines) {
            if !names.insert(machine.name.as_str()) {
                let span = raw.name.as_ref().map_or(raw.topology.span(), Spanned::span);
                let message = format!("the machine `{}` is there twice", machine.name);
                return Err(self.bad(span, message, "the second", "tell them apart with name = \"...\""));
            }
        }
        let points = |m: &MachineSpec| (m.sizes.len() + m.range.len()) * m.collectives.len() * m.nccl.len().max(1);
        let all: usize = machines.iter().map(points).sum();
        if all > MAX_POINTS {
            let message = format!("the suite has {all} points; at most {MAX_POINTS} are run");
            return Err(self.source.whole(message, "take fewer sizes, or a larger factor in `range`").into());
        }
        let mut measured: Vec<MeasuredSpec> = Vec::new();
        for raw in &raw.measured {
            let spec = self.measured(raw, &machines)?;
            if measured.iter().any(|other| other.name == spec.name) {
                let span = raw.name.as_ref().map_or(raw.files.span(), Spanned::span);
                let message = format!("the measurements `{}` are there twice", spec.name);
                return Err(self.bad(span, message, "the second", "tell them apart with name = \"...\""));
            }
            measured.push(spec);
        }
        let fraction =
            |text: &Option<Spanned<String>>, default| text.as_ref().map_or(Ok(default), |text| self.fraction(text));
        let tolerance = Tolerance {
            time: fraction(&raw.tolerance.time, 0.05)?,
            choice: fraction(&raw.tolerance.choice, 0.02)?,
            error: fraction(&raw.tolerance.error, 0.02)?,
        };
        Ok(Suite { machines, measured, tolerance, strict: raw.strict })
    }

    fn machine(&self, raw: &RawMachine, suite: &RawSuite) -> Result<MachineSpec, CliError> {
        let topology = raw.topology.get_ref();
        let nodes = self.count("nodes", raw.nodes.as_ref())?;
        let name = match &raw.name {
            Some(name) => self.name(name)?,
            None => {
                let stem = Path::new(topology).file_stem().map_or_else(|| topology.into(), |s| s.to_string_lossy());
                nodes.map_or_else(|| stem.to_string(), |n| format!("{stem} x{n}"))
            }
        };
        // Whether there is such a machine shows when it is loaded; a slip in a name is shown here.
        if builtin::text(topology).is_none() && !self.folder.join(topology).is_file() {
            let near = nearest(topology, builtin::names());
            return Err(self.bad(
                raw.topology.span(),
                format!("`{topology}` is neither a built-in topology nor a file beside the suite"),
                near.map_or_else(|| "no such machine".to_owned(), |near| format!("did you mean `{near}`?")),
                "`collcast topo list` names the built-ins",
            ));
        }
        let collectives = match raw.collectives.as_ref().or(suite.collectives.as_ref()) {
            None => vec![Collective::AllReduce],
            Some(names) => names.iter().map(|name| self.named(name)).collect::<Result<_, _>>()?,
        };
        let sizes = match raw.sizes.as_ref().or(suite.sizes.as_ref()) {
            None => vec![1 << 10, 1 << 20, 256 << 20],
            Some(texts) => {
                let sizes: Vec<Vec<u64>> = texts.iter().map(|text| self.sizes(text)).collect::<Result<_, _>>()?;
                sorted(sizes.concat())
            }
        };
        let range = match raw.range.as_ref().or(suite.range.as_ref()) {
            None => (3..=33).map(|power| 1 << power).collect(),
            Some(text) => sorted(self.sizes(text)?),
        };
        let version = |text: &Spanned<String>| {
            Version::asked(text.get_ref())
                .map_err(|error| self.bad(text.span(), error.to_string(), "no known version", Version::known()))
        };
        let versions = raw.nccl.as_ref().or(suite.nccl.as_ref()).into_iter().flatten();
        let mut nccl: Vec<Version> = versions.map(version).collect::<Result<_, _>>()?;
        nccl.sort();
        nccl.dedup();
        let mut env = Vec::new();
        for text in suite.env.iter().chain(&raw.env).flatten() {
            env.extend(self.variables(text)?);
        }
        let launch = raw.launch.as_ref().or(suite.launch.as_ref()).map(|text| self.named(text)).transpose()?;
        let profile = raw.profile.iter().flatten().map(|name| self.profile(name)).collect::<Result<_, _>>()?;
        let topology = if builtin::text(topology).is_some() { topology.clone() } else { self.beside(topology) };
        let gpus = self.count("gpus", raw.gpus.as_ref())?;
        Ok(MachineSpec { name, topology, nodes, gpus, profile, collectives, sizes, range, nccl, env, launch })
    }

    fn measured(&self, raw: &RawMeasured, machines: &[MachineSpec]) -> Result<MeasuredSpec, CliError> {
        let wanted = raw.machine.get_ref();
        let machine = machines.iter().position(|m| &m.name == wanted).ok_or_else(|| {
            let near = nearest(wanted, machines.iter().map(|m| m.name.as_str()));
            let names: Vec<&str> = machines.iter().map(|m| m.name.as_str()).collect();
            self.bad(
                raw.machine.span(),
                format!("`{wanted}` is no machine of this suite"),
                near.map_or_else(|| "no such machine".to_owned(), |near| format!("did you mean `{near}`?")),
                format!("machines: {}", names.join(", ")),
            )
        })?;
        let Some(first) = raw.files.get_ref().first() else {
            return Err(self.bad(raw.files.span(), "there are no measurements", "expected files or folders", ""));
        };
        let name = raw.name.as_ref().map_or_else(|| Ok(first.clone()), |name| self.name(name))?;
        let files = raw.files.get_ref().iter().map(|file| self.beside(file).into()).collect();
        let max_error = raw.max_error.as_ref().map(|text| self.fraction(text)).transpose()?;
        Ok(MeasuredSpec { name, machine, files, max_error })
    }

    fn bad(
        &self,
        span: Range<usize>,
        message: impl Into<String>,
        label: impl Into<String>,
        hint: impl Into<String>,
    ) -> CliError {
        self.source.at(span, message, label, hint).into()
    }

    /// The text of an error of one value, at that value.
    fn at_value(&self, span: Range<usize>, error: &CliError) -> CliError {
        match error {
            CliError::Usage { message, hint } => {
                self.bad(span, message, "this value", hint.clone().unwrap_or_default())
            }
            other => self.bad(span, other.to_string(), "this value", ""),
        }
    }

    fn named<T: std::str::FromStr>(&self, text: &Spanned<String>) -> Result<T, CliError>
    where
        T::Err: std::fmt::Display,
    {
        text.get_ref().parse().map_err(|error: T::Err| self.bad(text.span(), error.to_string(), "not known", ""))
    }

    /// A name that a line of TOML and of a report can hold.
    fn name(&self, text: &Spanned<String>) -> Result<String, CliError> {
        let name = text.get_ref().trim();
        if name.is_empty() || name.chars().any(char::is_control) || name.chars().count() > 100 {
            return Err(self.bad(text.span(), "this is no name", "expected 1 to 100 letters", ""));
        }
        Ok(name.to_owned())
    }

    fn fraction(&self, text: &Spanned<String>) -> Result<f64, CliError> {
        percent("a tolerance", text.get_ref()).map_err(|_| {
            let message = format!("`{}` is not a percentage", text.get_ref());
            self.bad(text.span(), message, "expected such as \"5%\"", "")
        })
    }

    fn count(&self, what: &str, number: Option<&Spanned<i64>>) -> Result<Option<u32>, CliError> {
        let Some(number) = number else { return Ok(None) };
        let good = u32::try_from(*number.get_ref()).ok().filter(|&n| n > 0);
        good.map(Some).ok_or_else(|| {
            let message = format!("{what} is {}", number.get_ref());
            self.bad(number.span(), message, "expected a whole number from 1", "")
        })
    }

    fn sizes(&self, text: &Spanned<String>) -> Result<Vec<u64>, CliError> {
        let args = ["check".to_owned(), format!("--size={}", text.get_ref())];
        let parsed = Selectors::try_parse_from(args).map_err(|e| CliError::usage(e.to_string(), ""));
        parsed.and_then(|s| s.call.sizes()).map_err(|error| self.at_value(text.span(), &error))
    }

    /// A path as written, from the folder of the suite.
    fn beside(&self, path: &str) -> String {
        self.folder.join(path).display().to_string()
    }

    fn profile(&self, name: &Spanned<String>) -> Result<String, CliError> {
        let text = name.get_ref();
        let is_file = text.ends_with(".toml") || text.contains('/');
        Ok(if is_file { self.beside(text) } else { text.clone() })
    }

    fn variables(&self, text: &Spanned<String>) -> Result<Vec<(String, String)>, CliError> {
        if let Ok(pair) = settings::pair(text.get_ref()) {
            return Ok(vec![pair]);
        }
        let path = self.beside(text.get_ref());
        let content = read_text("read the variables", Path::new(&path)).map_err(|error| {
            self.bad(text.span(), error.to_string(), "expected NAME=VALUE or a file beside the suite", "")
        })?;
        settings::pairs_of_file(&content).map_err(|error| {
            self.bad(
                text.span(),
                format!("{path}: {error}"),
                "this file",
                "the file holds one NAME=VALUE a line, # for comments",
            )
        })
    }
}

fn sorted(mut sizes: Vec<u64>) -> Vec<u64> {
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

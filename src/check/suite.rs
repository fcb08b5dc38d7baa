//! The suite file `collcast/suite/1`: what `check` predicts and guards.
//!
//! The doc comments of the raw structs are the descriptions of the JSON schema. Paths are
//! relative to the suite.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use collcast_hwbackend::read::ReadOptions;
use collcast_reports::model::Input;
use collcast_sim::collective::{Collective, UnknownName, nearest};
use collcast_sim::nccl::{Version, settings};
use collcast_topologies::builtin;
use collcast_topologies::error::Source;
use collcast_topologies::file::parse;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::error::Error;
use crate::files::{content_hash, read_text};
use crate::site::SiteSpec;
use crate::values::{Sizes, percent};

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
            /// Versions of NCCL; by itself the machine's, else the newest known
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
    /// Collective of logs that do not say theirs
    #[schemars(with = "Option<String>")]
    collective: Option<Spanned<String>>,
    /// Fails where the median error is larger, whatever the baseline says
    #[schemars(with = "Option<String>")]
    max_error: Option<Spanned<String>>,
}

/// A checked suite: machines, what is called on them, and what of a change does not matter.
#[derive(Clone, Debug, Default)]
pub struct Suite {
    /// At least one, each of its own name.
    pub machines: Vec<MachineSpec>,
    /// Measurements that the forecasts are held against.
    pub measured: Vec<MeasuredSpec>,
    /// Changes that do not matter.
    pub tolerance: Tolerance,
    /// Whatever is reported fails.
    pub strict: bool,
    /// The file that it is from.
    pub source: Option<Input>,
    /// What a reader of the file may have meant otherwise.
    pub notes: Vec<String>,
}

/// Changes that do not matter, as fractions.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Tolerance {
    /// Of a predicted time.
    pub time: f64,
    /// Predicted loss of a changed choice.
    pub choice: f64,
    /// Points of median error against measurements.
    pub error: f64,
}

impl Default for Tolerance {
    fn default() -> Self {
        Self { time: 0.05, choice: 0.02, error: 0.02 }
    }
}

/// A machine and what is called on it.
#[derive(Clone, Debug)]
pub struct MachineSpec {
    /// In the baseline and in reports.
    pub name: String,
    /// The machine, its profile, variables and launch mode; its version of NCCL is not looked at.
    pub site: SiteSpec,
    /// Versions of NCCL, ascending; the machine's, else the newest known, where there is none.
    pub nccl: Vec<Version>,
    /// What is called, by all of its ranks.
    pub collectives: Vec<Collective>,
    /// Sizes in bytes whose times are kept, ascending.
    pub sizes: Vec<u64>,
    /// Sizes in bytes over which choices are kept, ascending; at least one.
    pub range: Vec<u64>,
    /// Where a tuner's table lies that a variable names.
    pub folder: PathBuf,
}

impl MachineSpec {
    /// All-reduce on a machine: times of three sizes, choices from 8 B to 8 GiB.
    pub fn new(name: impl Into<String>, site: SiteSpec) -> Self {
        Self {
            name: name.into(),
            site,
            nccl: Vec::new(),
            collectives: vec![Collective::AllReduce],
            sizes: vec![1 << 10, 1 << 20, 256 << 20],
            range: (3..=33).map(|power| 1 << power).collect(),
            folder: PathBuf::new(),
        }
    }
}

/// Measurements that the forecasts of a machine are held against.
#[derive(Clone, Debug)]
pub struct MeasuredSpec {
    /// In the baseline and in reports.
    pub name: String,
    /// Index in [`Suite::machines`].
    pub machine: usize,
    /// nccl-tests logs, JSON, CSV or folders of them.
    pub files: Vec<PathBuf>,
    /// How they are read.
    pub read: ReadOptions,
    /// A median error that is too large whatever the baseline says, as a fraction.
    pub max_error: Option<f64>,
}

/// The JSON schema of suites.
pub fn json_schema() -> String {
    serde_json::to_string_pretty(&schemars::schema_for!(RawSuite)).unwrap_or_default()
}

impl Suite {
    /// Reads a suite (.toml). Paths in it are relative to its folder.
    ///
    /// # Errors
    /// A file that cannot be read, or what is wrong in it, with its place.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let text = read_text("read the suite", path)?;
        let file = path.display().to_string();
        let folder = path.parent().unwrap_or_else(|| Path::new(""));
        let reader = Reader { source: Source::new(&file, &text), folder, notes: RefCell::default() };
        let suite = reader.suite()?;
        let source = Input { name: "suite".to_owned(), path: Some(file.clone()), hash: content_hash(text.as_bytes()) };
        Ok(Self { source: Some(source), notes: reader.notes.into_inner(), ..suite })
    }
}

struct Reader<'a> {
    source: Source<'a>,
    folder: &'a Path,
    notes: RefCell<Vec<String>>,
}

impl Reader<'_> {
    fn suite(&self) -> Result<Suite, Error> {
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
        let idle = |list: &Option<Vec<Spanned<String>>>| list.as_ref().is_some_and(Vec::is_empty);
        if idle(&raw.collectives) || raw.machines.iter().any(|machine| idle(&machine.collectives)) {
            let hint = "name some, as in collectives = [\"all_reduce\"], or leave the line out";
            return Err(self.source.whole("the suite has no collective", hint).into());
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
        Ok(Suite {
            machines,
            measured,
            tolerance: self.tolerance(&raw.tolerance)?,
            strict: raw.strict,
            ..Suite::default()
        })
    }

    fn tolerance(&self, raw: &RawTolerance) -> Result<Tolerance, Error> {
        let fraction =
            |text: &Option<Spanned<String>>, default| text.as_ref().map_or(Ok(default), |text| self.fraction(text));
        let Tolerance { time, choice, error } = Tolerance::default();
        Ok(Tolerance {
            time: fraction(&raw.time, time)?,
            choice: fraction(&raw.choice, choice)?,
            error: fraction(&raw.error, error)?,
        })
    }

    fn machine(&self, raw: &RawMachine, suite: &RawSuite) -> Result<MachineSpec, Error> {
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
        let mut spec = MachineSpec::new(name, SiteSpec { nodes, ..SiteSpec::default() });
        if let Some(names) = raw.collectives.as_ref().or(suite.collectives.as_ref()) {
            spec.collectives = names.iter().map(|name| self.named(name)).collect::<Result<_, _>>()?;
        }
        if let Some(texts) = raw.sizes.as_ref().or(suite.sizes.as_ref()) {
            let sizes: Vec<Vec<u64>> = texts.iter().map(|text| self.sizes(text)).collect::<Result<_, _>>()?;
            spec.sizes = sorted(sizes.concat());
        }
        if let Some(text) = raw.range.as_ref().or(suite.range.as_ref()) {
            spec.range = sorted(self.sizes(text)?);
        }
        let version = |text: &Spanned<String>| {
            Version::asked(text.get_ref())
                .map_err(|error| self.bad(text.span(), error.to_string(), "no known version", Version::known()))
        };
        let versions = raw.nccl.as_ref().or(suite.nccl.as_ref()).into_iter().flatten();
        spec.nccl = versions.map(version).collect::<Result<_, _>>()?;
        spec.nccl.sort();
        spec.nccl.dedup();
        for text in suite.env.iter().chain(&raw.env).flatten() {
            spec.site.env.extend(self.variables(text)?);
        }
        self.folder.clone_into(&mut spec.folder);
        spec.site.launch = raw.launch.as_ref().or(suite.launch.as_ref()).map(|text| self.named(text)).transpose()?;
        spec.site.profiles = raw.profile.iter().flatten().map(|name| self.profile(name)).collect();
        let builtin = builtin::text(topology).is_some();
        spec.site.topology = Some(if builtin { topology.clone() } else { self.beside(topology) });
        spec.site.gpus = self.count("gpus", raw.gpus.as_ref())?;
        Ok(spec)
    }

    fn measured(&self, raw: &RawMeasured, machines: &[MachineSpec]) -> Result<MeasuredSpec, Error> {
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
        let collective = raw.collective.as_ref().map(|name| {
            name.get_ref().parse().map_err(|error: UnknownName| self.bad(name.span(), error.to_string(), "", ""))
        });
        let read = ReadOptions { collective: collective.transpose()?, ..ReadOptions::default() };
        Ok(MeasuredSpec { name, machine, files, read, max_error })
    }

    fn bad(
        &self,
        span: Range<usize>,
        message: impl Into<String>,
        label: impl Into<String>,
        hint: impl Into<String>,
    ) -> Error {
        self.source.at(span, message, label, hint).into()
    }

    /// The text of an error of one value, at that value.
    fn at_value(&self, span: Range<usize>, error: &Error) -> Error {
        match error {
            Error::Usage { message, hint } => self.bad(span, message, "this value", hint.clone().unwrap_or_default()),
            other => self.bad(span, other.to_string(), "this value", ""),
        }
    }

    fn named<T: std::str::FromStr>(&self, text: &Spanned<String>) -> Result<T, Error>
    where
        T::Err: std::fmt::Display,
    {
        text.get_ref().parse().map_err(|error: T::Err| self.bad(text.span(), error.to_string(), "not known", ""))
    }

    /// A name that a line of TOML and of a report can hold.
    fn name(&self, text: &Spanned<String>) -> Result<String, Error> {
        let name = text.get_ref().trim();
        if name.is_empty() || name.chars().any(char::is_control) || name.chars().count() > 100 {
            return Err(self.bad(text.span(), "this is no name", "expected 1 to 100 letters", ""));
        }
        Ok(name.to_owned())
    }

    fn fraction(&self, text: &Spanned<String>) -> Result<f64, Error> {
        percent("a tolerance", text.get_ref()).map_err(|_| {
            let message = format!("`{}` is not a percentage", text.get_ref());
            self.bad(text.span(), message, "expected such as \"5%\"", "")
        })
    }

    fn count(&self, what: &str, number: Option<&Spanned<i64>>) -> Result<Option<u32>, Error> {
        let Some(number) = number else { return Ok(None) };
        let good = u32::try_from(*number.get_ref()).ok().filter(|&n| n > 0);
        good.map(Some).ok_or_else(|| {
            let message = format!("{what} is {}", number.get_ref());
            self.bad(number.span(), message, "expected a whole number from 1", "")
        })
    }

    fn sizes(&self, text: &Spanned<String>) -> Result<Vec<u64>, Error> {
        let sizes: Sizes = text.get_ref().parse().map_err(|error| self.at_value(text.span(), &error))?;
        self.notes.borrow_mut().extend(sizes.notes);
        Ok(sizes.bytes)
    }

    /// A path as written, from the folder of the suite.
    fn beside(&self, path: &str) -> String {
        self.folder.join(path).display().to_string()
    }

    fn profile(&self, name: &Spanned<String>) -> String {
        let text = name.get_ref();
        let is_file = text.ends_with(".toml") || text.contains('/');
        if is_file { self.beside(text) } else { text.clone() }
    }

    fn variables(&self, text: &Spanned<String>) -> Result<Vec<(String, String)>, Error> {
        if let Ok(pair) = settings::pair(text.get_ref()) {
            return Ok(vec![pair]);
        }
        let path = self.beside(text.get_ref());
        let content = read_text("read the variables", Path::new(&path)).map_err(|error| {
            self.bad(text.span(), error.to_string(), "expected NAME=VALUE or a file beside the suite", "")
        })?;
        settings::pairs_of_file(&path, &content).map_err(|error| {
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

//! What is wrong with the settings of a job, its host or its log, before anything is measured.
//!
//! Files of many kinds become settings by scope (`read`): what one process will see. Rules are data (`rules.toml`) as far
//! as they ask for settings or for texts of logs. Names and values are held beside the table of NCCL's variables
//! (`names`), logs beside the machine (`log`), and a host is read through a folder that stands for `/` (`host`). What a
//! setting costs is a forecast with it and without it (`cost`).
//!
//! ```
//! use collcast::lint::{Input, Request, lint};
//! let input = Input { name: "job.env".to_owned(), text: "NCCL_BUFFSIZE=8M\n".to_owned() };
//! let outcome = lint(&Request { inputs: vec![input], ..Request::default() })?;
//! assert_eq!((outcome.findings[0].rule, outcome.findings[0].place.line), ("number-with-text", Some(1)));
//! # Ok::<(), collcast::Error>(())
//! ```

mod cost;
mod finding;
mod found;
mod host;
mod launch;
mod log;
mod machine;
mod names;
mod read;
pub mod rules;
mod setting;

use std::path::{Path, PathBuf};

use collcast_topologies::input;
use serde::Serialize;

use crate::error::Error;
use crate::site::SiteSpec;
use crate::watch::Watch;
pub use finding::{Finding, Severity};
use found::Found;
use machine::Machine;
pub use read::Kind;
pub use setting::Place;
use setting::{Scope, Setting};

/// A file that is already read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Input {
    /// Its name, for findings and by its ending.
    pub name: String,
    /// What is in it.
    pub text: String,
}

impl Input {
    /// Reads a file; what is not UTF-8 in it is replaced.
    ///
    /// # Errors
    /// What the system says.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let bytes = input::read(path).map_err(|source| Error::File { what: "read", path: path.to_owned(), source })?;
        Ok(Self { name: path.display().to_string(), text: String::from_utf8_lossy(&bytes).into_owned() })
    }
}

/// What to look at.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Files.
    pub inputs: Vec<Input>,
    /// Variables of a process, with words for where they are from.
    pub process: Option<(String, Vec<(String, String)>)>,
    /// The machine that the job runs on.
    pub machine: Option<SiteSpec>,
    /// A folder that stands for `/` of a host.
    pub host: Option<PathBuf>,
    /// Stops it.
    pub watch: Watch,
}

/// What was found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Outcome {
    /// The findings, by file and line.
    pub findings: Vec<Finding>,
    /// What was looked at: files, with the number of settings in each.
    pub looked_at: Vec<LookedAt>,
    /// What was assumed of the machine.
    pub notes: Vec<String>,
}

/// What a host is taken for.
pub(crate) const HOST: &str = "host";

/// A place that was looked at.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LookedAt {
    /// Its name.
    pub name: String,
    /// What it was taken for.
    pub kind: &'static str,
    /// Settings in it.
    pub settings: usize,
    /// What was understood of a log, such as `1 host: IB, 8 devices, GDRDMA`, or checked of a host.
    pub says: Option<String>,
}

impl Outcome {
    /// How many findings are so bad.
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }
}

/// Looks at files, a process, a host.
///
/// # Errors
/// A machine that cannot be read, nothing to look at, a folder that is no host's, [`Error::Cancelled`].
pub fn lint(request: &Request) -> Result<Outcome, Error> {
    if request.inputs.is_empty() && request.process.is_none() && request.host.is_none() {
        return Err(Error::usage("there is nothing to look at", "name files, or give --own-env, --pid N or --host"));
    }
    let machine = request.machine.as_ref().map(Machine::load).transpose()?;
    let mut outcome = Outcome { notes: machine.as_ref().map(Machine::notes).unwrap_or_default(), ..Outcome::default() };
    let mut findings = Vec::new();
    for input in request.inputs.iter().chain(&of_host(request.host.as_deref())?) {
        if request.watch.stopped() {
            return Err(Error::Cancelled);
        }
        let kind = Kind::of(Path::new(&input.name), &input.text);
        let mut found = Found::of(input.name.as_str(), &mut findings);
        let mut scopes = read::scopes(kind, &input.text);
        let mut says = None;
        if kind == Kind::Log {
            let (scope, understood) = log::check(&input.text, machine.as_ref(), &mut found)?;
            scopes.push(scope);
            says = understood;
        }
        outcome.looked_at.push(LookedAt {
            name: input.name.clone(),
            kind: kind.name(),
            settings: scopes.iter().map(|scope| scope.settings.len()).sum(),
            says,
        });
        for scope in &scopes {
            check(scope, machine.as_ref(), &mut found)?;
        }
    }
    if let Some((name, variables)) = &request.process {
        let scope = read::of_process(variables.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let settings = scope.settings.len();
        outcome.looked_at.push(LookedAt { name: name.clone(), kind: Kind::Process.name(), settings, says: None });
        check(&scope, machine.as_ref(), &mut Found::of(name.as_str(), &mut findings))?;
    }
    if let Some(root) = &request.host {
        let says = host::check(root, &mut findings)?;
        let name = root.display().to_string();
        outcome.looked_at.push(LookedAt { name, kind: HOST, settings: 0, says });
    }
    findings.sort_by(|a, b| (&a.place, a.severity, a.rule).cmp(&(&b.place, b.severity, b.rule)));
    outcome.findings = findings;
    Ok(outcome)
}

/// What NCCL reads on a host by itself.
fn of_host(root: Option<&Path>) -> Result<Option<Input>, Error> {
    let file = root.map(|root| root.join("etc/nccl.conf"));
    file.filter(|file| file.is_file()).map(|file| Input::read(&file)).transpose()
}

/// Holds the settings of one scope beside all rules.
fn check(scope: &Scope, machine: Option<&Machine>, found: &mut Found<'_>) -> Result<(), Error> {
    for sign in &scope.signs {
        found.add(sign.rule, sign.line, sign.what.clone());
    }
    names::check(scope, machine, found);
    let settings = scope.last();
    // The plugin of a machine with EFA asks for it where nobody says otherwise.
    let efa = Setting { name: "FI_PROVIDER".to_owned(), value: "efa".to_owned(), line: None };
    let mut in_force = settings.clone();
    if machine.is_some_and(|machine| machine.has("efa")) {
        in_force.entry(&efa.name).or_insert(&efa);
    }
    for rule in rules::all() {
        let matters = rule.machine.as_deref().is_none_or(|needed| machine.is_none_or(|machine| machine.has(needed)));
        // A log is there because somebody asked for it.
        let of_debug = rule.when.iter().any(|condition| condition.starts_with("NCCL_DEBUG"));
        if !matters || (scope.log && of_debug) {
            continue;
        }
        if let Some(by) = rule.holds(&in_force) {
            let said = by.iter().filter(|setting| settings.contains_key(setting.name.as_str()));
            let texts: Vec<String> = said.map(|setting| setting.text()).collect();
            found.add(&rule.id, by[0].line, format!("{}: {}", texts.join(" and "), rule.what));
        }
    }
    machine.map_or(Ok(()), |machine| cost::check(&settings, machine, found))
}

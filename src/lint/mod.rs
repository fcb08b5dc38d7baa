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
mod paths;
mod read;
pub mod rules;
mod setting;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use collcast_sim::nccl::Environment;
use collcast_topologies::input;
use serde::Serialize;

use crate::confidence::{Grounds, Trust};
use crate::error::Error;
use crate::site::{SiteSpec, TABLES};
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
    /// Reads a file of UTF-8, of which what is no character is replaced, or of UTF-16.
    ///
    /// # Errors
    /// What the system says.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let bytes = input::read(path).map_err(|source| Error::File { what: "read", path: path.to_owned(), source })?;
        Ok(Self { name: path.display().to_string(), text: input::lossy(&bytes).into_owned() })
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
    /// How far to trust the forecasts that findings rest on.
    #[serde(skip)]
    pub trust: Option<Trust>,
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
    let mut grounds = Vec::new();
    let mut tables: Vec<PathBuf> = request.inputs.iter().map(|input| PathBuf::from(&input.name)).collect();
    let mut values = Values::default();
    for input in request.inputs.iter().chain(&of_host(request.host.as_deref())?) {
        if request.watch.stopped() {
            return Err(Error::Cancelled);
        }
        let path = Path::new(&input.name);
        let kind = Kind::of(path, &input.text);
        let mut found = Found::of(input.name.as_str(), &mut findings);
        let mut scopes = read::scopes(kind, path, &input.text);
        let mut says = None;
        if kind == Kind::Log {
            let understood = log::check(&input.text, machine.as_ref(), &mut found)?;
            scopes.push(understood.scope);
            says = understood.says;
            grounds.extend(understood.grounds);
        }
        let lines = if kind == Kind::Table { table::check(&input.text, &mut found) } else { 0 };
        if kind == Kind::Table && table::is_ours(&input.text) {
            table::refused(&input.text, machine.as_ref(), None, &mut found);
        }
        outcome.looked_at.push(LookedAt {
            name: input.name.clone(),
            kind: kind.name(),
            settings: count(&scopes) + lines,
            says,
        });
        for scope in &scopes {
            grounds.extend(check(scope, machine.as_ref(), &mut found)?);
        }
        if kind != Kind::Log {
            values.compare(&input.name, &scopes, &mut found);
        }
        scopes.iter().for_each(|scope| of_tables(scope, machine.as_ref(), &mut tables, &mut outcome, &mut findings));
    }
    if let Some((name, variables)) = &request.process {
        let scope = read::of_process(variables.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let settings = scope.settings.len();
        outcome.looked_at.push(LookedAt { name: name.clone(), kind: Kind::Process.name(), settings, says: None });
        grounds.extend(check(&scope, machine.as_ref(), &mut Found::of(name.as_str(), &mut findings))?);
        of_tables(&scope, machine.as_ref(), &mut tables, &mut outcome, &mut findings);
    }
    if let Some(root) = &request.host {
        let says = host::check(root, &mut findings)?;
        let name = root.display().to_string();
        outcome.looked_at.push(LookedAt { name, kind: HOST, settings: 0, says });
    }
    findings.sort_by(|a, b| (&a.place, a.severity, a.rule).cmp(&(&b.place, b.severity, b.rule)));
    outcome.findings = findings;
    outcome.trust = (!grounds.is_empty()).then(|| grounds.into_iter().collect::<Grounds>().trust());
    Ok(outcome)
}

/// How many settings there are: one that several processes see counts once.
fn count(scopes: &[Scope]) -> usize {
    let all: BTreeSet<&Setting> = scopes.iter().flat_map(|scope| &scope.settings).collect();
    all.len()
}

/// What files before set, by name: the first file and its setting.
#[derive(Default)]
struct Values(BTreeMap<String, (String, Setting)>);

impl Values {
    /// Names that a file sets otherwise than one before it.
    fn compare(&mut self, file: &str, scopes: &[Scope], found: &mut Found<'_>) {
        let settings = scopes.iter().flat_map(|scope| scope.last().into_values()).filter(|setting| setting.is_read());
        for setting in settings {
            let own = || (file.to_owned(), setting.clone());
            let (other, earlier) = self.0.entry(setting.name.clone()).or_insert_with(own);
            if other != file && earlier.value.trim() != setting.value.trim() {
                let line = earlier.line.map_or(String::new(), |line| format!(":{line}"));
                let what = format!("{}, and {} in {other}{line}", setting.text(), earlier.text());
                found.add("differs-between-files", setting.line, what);
            }
        }
    }
}

/// What NCCL reads on a host by itself.
fn of_host(root: Option<&Path>) -> Result<Option<Input>, Error> {
    let file = root.map(|root| root.join("etc/nccl.conf"));
    file.filter(|file| file.is_file()).map(|file| Input::read(&file)).transpose()
}

/// The tables that a setting names and that are here.
fn tables_of<'s>(scope: &'s Scope, name: &str) -> impl Iterator<Item = Input> + use<'s> {
    let settings = scope.last();
    let value = settings.get(name).filter(|setting| setting.is_known()).map_or("", |setting| setting.value.as_str());
    // Ours takes several, one behind the other.
    let paths = value.split(if name == TABLES[0] { '\0' } else { ':' }).map(Path::new).filter(|path| path.is_file());
    paths.filter_map(|path| Input::read(path).ok()).filter(|input| !table::is_too_long(&input.text))
}

/// Looks at the tables that settings name, each once; whether our plugin uses one is asked of each process.
fn of_tables(
    scope: &Scope,
    machine: Option<&Machine>,
    seen: &mut Vec<PathBuf>,
    outcome: &mut Outcome,
    findings: &mut Vec<Finding>,
) {
    for (variable, input) in TABLES.into_iter().flat_map(|name| tables_of(scope, name).map(move |input| (name, input)))
    {
        let path = PathBuf::from(&input.name);
        let mut found = Found::of(input.name.as_str(), findings);
        if !seen.contains(&path) {
            seen.push(path);
            let settings = table::check(&input.text, &mut found);
            let (name, says) = (input.name.clone(), None);
            outcome.looked_at.push(LookedAt { name, kind: Kind::Table.name(), settings, says });
        }
        if variable != TABLES[0] {
            table::refused(&input.text, machine, Some(scope), &mut found);
        }
    }
}

/// Lists of algorithms and protocols beside a table, whose lines they close.
fn closed_tables(scope: &Scope, machine: Option<&Machine>, found: &mut Found<'_>) {
    let settings = scope.last();
    let lists =
        ["NCCL_ALGO", "NCCL_PROTO"].map(|name| settings.get(name).copied().filter(|setting| setting.is_known()));
    let lists: Vec<&Setting> = lists.into_iter().flatten().collect();
    let pairs: Vec<_> = lists.iter().map(|list| (list.name.clone(), list.value.clone())).collect();
    let version = machine.and_then(|machine| machine.site.settings().version).unwrap_or_default();
    let Ok(Environment { settings: set, .. }) = Environment::parse(&pairs, version) else { return };
    if set.algorithms.is_free() && set.protocols.is_free() {
        return;
    }
    let texts: Vec<String> = lists.iter().map(|list| list.text()).collect();
    let line = lists.iter().filter_map(|list| list.line).max();
    for name in TABLES.into_iter().filter(|name| settings.get(name).is_some_and(|s| !s.value.is_empty())) {
        let here: Vec<Input> = tables_of(scope, name).collect();
        let counts = here.iter().map(|input| table::closed(&input.text, &set));
        let (closed, all) = counts.fold((0, 0), |sum, (closed, all)| (sum.0 + closed, sum.1 + all));
        let what = match closed {
            0 if !here.is_empty() => continue,
            0 => format!("{} beside a table", texts.join(" and ")),
            _ if texts.len() > 1 => format!("{} close {closed} of {all} lines of the table", texts.join(" and ")),
            _ => format!("{} closes {closed} of {all} lines of the table", texts.join(" and ")),
        };
        found.add("table-closed", line, format!("{what} ({name})"));
    }
}

/// Holds the settings of one scope beside all rules; gives back what forecasts of findings rest on.
fn check(scope: &Scope, machine: Option<&Machine>, found: &mut Found<'_>) -> Result<Vec<Grounds>, Error> {
    for sign in &scope.signs {
        found.add(sign.rule, sign.line, sign.what.clone());
    }
    names::check(scope, machine, found);
    closed_tables(scope, machine, found);
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
    machine.map_or(Ok(Vec::new()), |machine| cost::check(&settings, machine, found))
}

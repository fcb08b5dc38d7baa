//! What a profile was fitted to, and the profile as a file that says so.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use collcast_sim::calibrate::{Estimate, Fit, Sample};
use collcast_sim::collective::Launch;
use collcast_sim::predict::Predictor;
use collcast_sim::profile::{Constant, DataFile, OriginKind, Parameter, Profile};
use collcast_sim::text::toml_string;

use super::request::Request;
use super::rows::{MachineOf, Machines, Usable};
use crate::profiles::families;

/// Source of a value that was fitted.
const FITTED: &str = "fitted to `data`";

/// What profiles are about.
pub(super) struct About<'a> {
    pub(super) request: &'a Request,
    pub(super) usable: &'a Usable<'a>,
    pub(super) machines: &'a Machines,
}

impl About<'_> {
    /// The profile of a fit to some of the rows, with its name, evidence, data and domain.
    pub(super) fn describe(&self, fit: &Fit, name: &str, rows: &[usize]) -> Profile {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for &r in rows {
            *counts.entry(self.usable.rows[r].0.origin.file.as_str()).or_default() += 1;
        }
        let of: Vec<&MachineOf> = counts.keys().filter_map(|file| self.machines.files.get(*file)).collect();
        let versions: BTreeSet<&str> = of.iter().filter_map(|f| f.nccl.as_deref()).collect();
        let versions: Vec<&str> = versions.into_iter().collect();
        let nccl = if versions.is_empty() { String::new() } else { format!(", NCCL {}", versions.join(" and ")) };
        let mut profile = fit.profile.clone();
        profile.name = name.to_owned();
        profile.evidence = format!("{}: {} rows{nccl}", command(self.request), rows.len());
        // A built-in profile is found again by its name; of what else was below, `profile_text` takes the values.
        let below = self.request.profiles.first().filter(|p| self.request.profiles.len() == 1 && *p != "prior");
        profile.over = below.filter(|p| Profile::builtin_text(p).is_some()).cloned();
        for Estimate { constant, .. } in fit.estimates.iter().filter(|e| e.identified) {
            let (origin, source) = (OriginKind::Fitted, FITTED.to_owned());
            profile.parameters.insert(*constant, Parameter { origin, source, ..profile[*constant].clone() });
        }
        let rows_of = |f: &&MachineOf| DataFile { rows: counts[f.data.file.as_str()], ..f.data.clone() };
        profile.data = of.iter().map(rows_of).collect();
        profile.anchors.clear();
        profile.spreads.clear();
        profile.gpus = self.families(of.iter().map(|f| f.machine));
        let machines: BTreeSet<&String> = of.iter().map(|f| &self.machines.topologies[f.machine].name).collect();
        profile.machines = machines.into_iter().cloned().collect();
        // What was fitted to forecasts is for no machine, so that nobody has it unasked.
        if self.request.read.allow_predicted {
            (profile.gpus, profile.machines) = (Vec::new(), Vec::new());
        }
        let launches: BTreeSet<Launch> = rows.iter().map(|&r| self.usable.rows[r].1.settings.launch).collect();
        profile.launches = launches.into_iter().collect();
        let samples = rows.iter().map(|&r| &self.usable.rows[r].1);
        profile.set_domain(samples.map(|s| (s.algorithm, s.protocol, &s.call)));
        profile.across_hosts = rows.iter().any(|&r| {
            let Sample { machine, call, .. } = &self.usable.rows[r].1;
            Predictor::new(&self.machines.topologies[*machine], &profile).hosts(call.ranks) > 1
        });
        profile
    }

    /// Families of the GPUs of some machines: `H200` of `H200-SXM5-141GB`.
    fn families(&self, machines: impl Iterator<Item = usize>) -> Vec<String> {
        let machines: BTreeSet<usize> = machines.collect();
        let all: BTreeSet<String> = machines.iter().flat_map(|&m| families(&self.machines.topologies[m])).collect();
        all.into_iter().collect()
    }
}

/// What was asked for, as it is typed.
fn command(request: &Request) -> String {
    let paths: Vec<String> = request.measurements.iter().map(|p| p.display().to_string()).collect();
    let mut text = format!("collcast calibrate {}", paths.join(" "));
    let mut flag = |flag: &str, value: &str| text += &format!(" {flag} {value}");
    request.topology.iter().for_each(|t| flag("-t", t));
    request.profiles.iter().filter(|p| *p != "prior").for_each(|p| flag("--profile", p));
    [("--fit", &request.fit), ("--keep", &request.keep)]
        .into_iter()
        .filter(|(_, names)| !names.is_empty())
        .for_each(|(name, names)| flag(name, &names.join(",")));
    request.launch.iter().for_each(|launch| flag("--launch", launch.name()));
    request.read.collective.iter().for_each(|collective| flag("-c", collective.name()));
    if request.min_size != Request::default().min_size {
        flag("--min-size", &request.min_size.0.to_string());
    }
    if request.read.allow_predicted {
        text += " --allow-predicted";
    }
    text
}

/// The profile of a fit as TOML, with fewer digits than serde would write: a line for each parameter that was fitted, and that
/// another profile below it set where that is no built-in one.
pub(super) fn profile_text(profile: &Profile, fit: &Fit) -> String {
    let list =
        |items: Vec<String>| format!("[{}]", items.iter().map(|i| toml_string(i)).collect::<Vec<_>>().join(", "));
    let mut text =
        String::from("# Fitted by `collcast calibrate`; everything else is the value of the profile below it.\n");
    let _ = writeln!(text, "schema = {}", toml_string(&profile.schema));
    let _ = writeln!(text, "name = {}", toml_string(&profile.name));
    let _ = writeln!(text, "evidence = {}", toml_string(&profile.evidence));
    if let Some(below) = &profile.over {
        let _ = writeln!(text, "over = {}", toml_string(below));
    }
    let _ = writeln!(text, "uncertainty = {}", profile.uncertainty);
    let _ = writeln!(text, "gpus = {}", list(profile.gpus.clone()));
    let _ = writeln!(text, "machines = {}", list(profile.machines.clone()));
    let _ = writeln!(text, "launches = {}", list(profile.launches.iter().map(ToString::to_string).collect()));
    let _ = writeln!(text, "across_hosts = {}", profile.across_hosts);
    let _ = writeln!(text, "choices = {}", list(profile.choices.clone()));
    if let Some(ranks) = profile.ranks {
        let _ = writeln!(text, "ranks = {ranks:?}");
    }
    for data in &profile.data {
        let (file, hash, rows) = (toml_string(&data.file), toml_string(&data.hash), data.rows);
        let _ = writeln!(text, "\n[[data]]\nfile = {file}\nhash = {hash}\nrows = {rows}");
    }
    for s in &profile.spreads {
        let (class, low, high, rows) = (toml_string(&s.class), s.low, s.high, s.rows);
        let _ = writeln!(text, "\n[[spreads]]\nclass = {class}\nlow = {low:.4}\nhigh = {high:.4}\nrows = {rows}");
    }
    text += "\n[parameters]\n";
    let mut told: BTreeSet<Constant> = fit.estimates.iter().filter(|e| e.identified).map(|e| e.constant).collect();
    if let (None, Ok(prior)) = (&profile.over, Profile::builtin("prior")) {
        let set = |constant: &&Constant| (profile[**constant].value - prior[**constant].value).abs() > 0.0;
        told.extend(Constant::ALL.iter().filter(set));
    }
    for constant in told {
        let _ = writeln!(text, "{}", profile[constant].line(constant));
    }
    text
}

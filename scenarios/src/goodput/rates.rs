//! How often what fails: published rates, or a file of one's own (`collcast/failures/1`).

use collcast_sim::collective::nearest;
use collcast_topologies::error::{Diagnostic, Source, TopologiesError};
use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::simulate::Stragglers;

/// The schema of the file.
const SCHEMA: &str = "collcast/failures/1";
/// Longest file, in bytes.
const MAX_FILE_BYTES: usize = 1 << 20;
/// Most components of a file.
const MAX_COMPONENTS: usize = 1000;

const BUILTIN: &[(&str, &str)] = &[
    ("llama3-405b", include_str!("../../failures/llama3-405b.toml")),
    ("rsc-1", include_str!("../../failures/rsc-1.toml")),
    ("rsc-2", include_str!("../../failures/rsc-2.toml")),
    ("bloom", include_str!("../../failures/bloom.toml")),
];

/// Names of built-in rates.
pub fn names() -> impl Iterator<Item = &'static str> {
    BUILTIN.iter().map(|(name, _)| *name)
}

/// The file of built-in rates, whatever the case of its name.
pub fn text(name: &str) -> Option<&'static str> {
    BUILTIN.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, text)| *text)
}

/// What a rate is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Per {
    /// A GPU.
    Gpu,
    /// A host.
    Host,
    /// A NIC, with its cable and port.
    Nic,
    /// The job as a whole.
    Job,
}

/// A component that fails.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Component {
    /// Its name.
    pub name: String,
    /// What there is one of for each.
    pub per: Per,
    /// Failures an hour of one.
    pub per_hour: f64,
}

/// Ranks that are slow for a while, and slow all others down.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Slow {
    /// What there is one of for each.
    pub per: Per,
    /// How often an hour one gets slow.
    pub per_hour: f64,
    /// How many times as long a step takes meanwhile.
    pub slowdown: f64,
    /// Hours until it is found and gone.
    pub hours: f64,
}

/// How often components fail.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Rates {
    /// Name.
    pub name: String,
    /// Share of the failures that need other hardware.
    pub hardware: f64,
    /// Components.
    pub components: Vec<Component>,
    /// Stragglers, where they were counted.
    pub stragglers: Option<Slow>,
}

/// How many of what a job runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Fleet {
    /// GPUs.
    pub gpus: u64,
    /// Hosts.
    pub hosts: u64,
    /// NICs.
    pub nics: u64,
}

impl Fleet {
    /// Hosts with 8 GPUs and 8 NICs, as those of DGX systems.
    pub fn of_eight(gpus: u64) -> Self {
        Self { gpus, hosts: gpus.div_ceil(8), nics: gpus }
    }

    fn count(&self, per: Per) -> f64 {
        match per {
            Per::Gpu => self.gpus as f64,
            Per::Host => self.hosts as f64,
            Per::Nic => self.nics as f64,
            Per::Job => 1.0,
        }
    }
}

impl Rates {
    /// Failures an hour by component, in the order of the file.
    pub fn by_component(&self, fleet: &Fleet) -> Vec<(&str, f64)> {
        self.components.iter().map(|c| (c.name.as_str(), c.per_hour * fleet.count(c.per))).collect()
    }

    /// Mean time between failures of a job, in seconds; infinite where nothing fails.
    pub fn mtbf(&self, fleet: &Fleet) -> f64 {
        // A sum of nothing would be -0.
        3600.0 / self.by_component(fleet).iter().fold(0.0, |sum, (_, rate)| sum + rate)
    }

    /// What stragglers do to a job; nothing where none were counted.
    pub fn stragglers(&self, fleet: &Fleet) -> Option<Stragglers> {
        let Slow { per, per_hour, slowdown, hours } = self.stragglers?;
        let between = 3600.0 / (per_hour * fleet.count(per));
        between.is_finite().then_some(Stragglers { between, slowdown, lasts: hours * 3600.0 })
    }

    /// Rates by name or path.
    ///
    /// # Errors
    /// A name that is neither, with the nearest; a file that cannot be read; any mistake in it, with its place.
    pub fn load(name: &str) -> Result<Self, TopologiesError> {
        if let Some(text) = text(name) {
            return Self::read(text, &format!("<built-in {name}>"));
        }
        let text = collcast_topologies::input::read_text(std::path::Path::new(name)).map_err(|error| {
            let near = nearest(name, names());
            let shown = collcast_sim::text::one_line(&name.chars().take(60).collect::<String>());
            TopologiesError::Unreadable(Box::new(Diagnostic {
                message: format!("the failure rates `{shown}` are no built-in, and no file that can be read: {error}"),
                file: String::new(),
                at: None,
                label: near.map_or_else(String::new, |near| format!("did you mean `{near}`?")),
                hint: format!("built-in: {}; a file has schema {SCHEMA}", names().collect::<Vec<_>>().join(", ")),
            }))
        })?;
        Self::read(&text, name)
    }

    /// Rates from the text of a file.
    ///
    /// # Errors
    /// Any mistake, with its place.
    pub fn read(text: &str, file: &str) -> Result<Self, TopologiesError> {
        let source = Source::new(file, text);
        if text.len() > MAX_FILE_BYTES {
            let message =
                format!("the file has {} bytes; one of failure rates has at most {MAX_FILE_BYTES}", text.len());
            return Err(TopologiesError::TooLarge(source.whole(message, "")));
        }
        let raw: RawFile = collcast_topologies::file::parse(source)?;
        let fault = |span, message: String, label: &str| {
            TopologiesError::Value(source.at(span, message, label, "scenarios/failures/ has files to start from"))
        };
        if raw.schema.get_ref() != SCHEMA {
            let message = "the file is of another schema than that of failure rates".to_owned();
            return Err(TopologiesError::Schema(source.at(
                raw.schema.span(),
                message,
                format!("expected \"{SCHEMA}\""),
                "",
            )));
        }
        if raw.components.len() > MAX_COMPONENTS {
            return Err(fault(0..0, format!("the file has more than {MAX_COMPONENTS} components"), ""));
        }
        let number = |of: &Spanned<f64>, what: &str, least: f64| {
            let value = *of.get_ref();
            if value.is_finite() && value >= 0.0 && (value > 0.0 || least == 0.0) {
                return Ok(value);
            }
            let expected = if least == 0.0 { "a finite number, not negative" } else { "a finite number above zero" };
            Err(fault(of.span(), format!("{what} is {value}"), expected))
        };
        let hardware = number(&raw.hardware, "hardware", 0.0)?;
        if hardware > 1.0 {
            return Err(fault(raw.hardware.span(), format!("hardware is {hardware}"), "a share is at most 1"));
        }
        let per_hour = |count: f64, units: &Spanned<f64>, hours: &Spanned<f64>| {
            let rate = count / (number(units, "units", 1.0)? * number(hours, "hours", 1.0)?);
            let no_number = || fault(units.span(), "units x hours is no number of double precision".to_owned(), "");
            if rate.is_finite() { Ok(rate) } else { Err(no_number()) }
        };
        let components = raw.components.iter().map(|component| {
            let failures = number(&component.failures, "failures", 0.0)?;
            let per_hour = per_hour(failures, &component.units, &component.hours)?;
            Ok(Component { name: component.name.clone(), per: component.per, per_hour })
        });
        let components = components.collect::<Result<_, _>>()?;
        let stragglers = raw.stragglers.map(|slow| {
            let per_hour = per_hour(number(&slow.count, "count", 0.0)?, &slow.units, &slow.hours)?;
            let slowdown = number(&slow.slowdown, "slowdown", 1.0)?;
            if slowdown < 1.0 {
                let label = "expected 1 or more: 1.2 is a step that takes a fifth longer";
                return Err(fault(slow.slowdown.span(), format!("slowdown is {slowdown}"), label));
            }
            let hours = number(&slow.hours_until_found, "hours_until_found", 0.0)?;
            Ok(Slow { per: slow.per, per_hour, slowdown, hours })
        });
        Ok(Self { name: raw.name, hardware, components, stragglers: stragglers.transpose()? })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    schema: Spanned<String>,
    name: String,
    /// Share of the failures that need other hardware.
    hardware: Spanned<f64>,
    components: Vec<RawComponent>,
    stragglers: Option<RawSlow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawComponent {
    name: String,
    per: Per,
    /// Failures that were counted, among so many units in so many hours.
    failures: Spanned<f64>,
    units: Spanned<f64>,
    hours: Spanned<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSlow {
    per: Per,
    /// Stragglers that were counted, among so many units in so many hours.
    count: Spanned<f64>,
    units: Spanned<f64>,
    hours: Spanned<f64>,
    /// How many times as long a step takes with one.
    slowdown: Spanned<f64>,
    hours_until_found: Spanned<f64>,
}

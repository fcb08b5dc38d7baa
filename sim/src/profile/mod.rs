//! What a machine really does: latencies, efficiencies and rates, each with its origin.
//!
//! [`Constant`] names all there are, and says what each one means. The built-in profile `prior` gives every one of
//! them a cited value, and a machine's profile replaces those that were measured there: what a file says is a
//! [`Layer`], the later one wins per constant, and what lies over `prior` is a [`Profile`], which has all of them.
//! No constant is indexed by message size, rank count, collective or algorithm.

mod blocks;
mod builtin;
mod constants;
pub(crate) mod declare;
mod gpu;
mod links;
mod parameter;
mod parse;
mod values;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Index;

use serde::Deserialize;

use crate::call::Call;
use crate::collective::{Algorithm, Launch, Protocol};
use crate::domain::{Beyond, Reason};
use crate::units::SimDuration;

pub use constants::Constant;
pub use declare::{Role, Spec};
pub use links::Reach;
pub use parameter::{OriginKind, Parameter};
pub use parse::ProfileError;
pub use values::Values;

/// How much wider than elsewhere the interval of a prediction is outside the domain of its profile: our estimate, which
/// [`coverage`](crate::calibrate::coverage) holds against rows that a fit has not seen.
const EXTRAPOLATED: f64 = 1.5;

/// How far measurements were from predictions that are bound alike: rows that the fit had not seen.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// See [`Spread::class`].
    pub class: String,
    /// Lower end of the 90% interval of measured over predicted.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
    /// Rows behind it.
    pub rows: usize,
}

impl Spread {
    /// What predictions of one class have in common: the launch mode where that is the bound, else
    /// protocol and bound.
    pub fn class(protocol: Protocol, launch: Launch, bound: &str) -> String {
        if bound == "launch rate" { format!("{bound} {launch}") } else { format!("{bound} {protocol}") }
    }
}

/// A file that a profile was fitted to.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataFile {
    /// Its path, as it was named.
    pub file: String,
    /// Hash of its content, as readers of measurements report it.
    pub hash: String,
    /// Rows that were used.
    pub rows: usize,
}

/// A measured row that set a parameter: left out when predictions are judged.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Anchor {
    /// Name of the run.
    pub run: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Both halves of nccl-tests' row are left out.
    #[serde(default)]
    pub parameter: String,
}

/// A profile: of all constants, or of those that `P` holds.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile<P = Values> {
    /// `collcast/profile/1`.
    pub schema: String,
    /// Name.
    pub name: String,
    /// Machine, driver, NCCL version and date of the evidence.
    pub evidence: String,
    /// Built-in profile that it lies over and was fitted with, beside `prior`.
    #[serde(default)]
    pub over: Option<String>,
    /// Relative half-width of the 90% interval of a prediction inside the domain.
    pub uncertainty: f64,
    /// GPU models that it was made on.
    #[serde(default)]
    pub gpus: Vec<String>,
    /// Names of the machines whose measurements it was fitted to; it is theirs where nobody names another.
    #[serde(default)]
    pub machines: Vec<String>,
    /// Launch modes that it was made with; others are extrapolated.
    #[serde(default)]
    pub launches: Vec<Launch>,
    /// Whether it was made across hosts too.
    #[serde(default)]
    pub across_hosts: bool,
    /// Algorithms with the protocols that it was made with, such as `tree/ll128`; others are extrapolated, where it says
    /// any.
    #[serde(default)]
    pub choices: Vec<String>,
    /// Fewest and most ranks that it was made with; others are extrapolated.
    #[serde(default)]
    pub ranks: Option<[u32; 2]>,
    /// Rows that set parameters.
    #[serde(default)]
    pub anchors: Vec<Anchor>,
    /// Files that it was fitted to.
    #[serde(default)]
    pub data: Vec<DataFile>,
    /// Intervals of predictions inside its domain, by what bounds them.
    #[serde(default)]
    pub spreads: Vec<Spread>,
    /// The constants' values.
    pub parameters: P,
}

/// What one file says: some constants, to lie over others.
pub type Layer = Profile<BTreeMap<Constant, Parameter>>;

impl<P> Profile<P> {
    /// The same with other parameters.
    fn with<Q>(self, parameters: Q) -> Profile<Q> {
        Profile {
            schema: self.schema,
            name: self.name,
            evidence: self.evidence,
            over: self.over,
            uncertainty: self.uncertainty,
            gpus: self.gpus,
            machines: self.machines,
            launches: self.launches,
            across_hosts: self.across_hosts,
            choices: self.choices,
            ranks: self.ranks,
            anchors: self.anchors,
            data: self.data,
            spreads: self.spreads,
            parameters,
        }
    }
}

impl<P: Extend<(Constant, Parameter)>> Profile<P> {
    /// This profile with a layer over it: the later wins per constant.
    #[must_use]
    pub fn layered(mut self, mut over: Layer) -> Self {
        self.parameters.extend(std::mem::take(&mut over.parameters));
        self.anchors.append(&mut over.anchors);
        self.data.append(&mut over.data);
        Self { anchors: self.anchors, data: self.data, ..over.with(self.parameters) }
    }
}

impl Index<Constant> for Profile {
    type Output = Parameter;

    fn index(&self, constant: Constant) -> &Parameter {
        &self.parameters[constant]
    }
}

impl Profile {
    /// A constant's value.
    fn value(&self, constant: Constant) -> f64 {
        self[constant].value
    }

    /// The value of a constant that is measured in us.
    fn time(&self, constant: Constant) -> SimDuration {
        SimDuration::from_us(self.value(constant))
    }

    /// The 90% interval of a prediction, in parts of its time: what unseen measurements of its class
    /// showed, or the profile's general uncertainty, wider outside its domain.
    pub fn interval(&self, class: &str, extrapolated: bool) -> (f64, f64) {
        let known = self.spreads.iter().find(|s| s.class == class).filter(|_| !extrapolated);
        let width = self.uncertainty * if extrapolated { EXTRAPOLATED } else { 1.0 };
        known.map_or((1.0 / (1.0 + width), 1.0 + width), |s| (s.low, s.high))
    }

    /// Says that it was made with these calls.
    pub fn set_domain<'c>(&mut self, calls: impl Iterator<Item = (Algorithm, Protocol, &'c Call)>) {
        let mut choices = BTreeSet::new();
        self.ranks = None;
        for (algorithm, protocol, call) in calls {
            choices.insert(format!("{algorithm}/{protocol}"));
            let [fewest, most] = self.ranks.unwrap_or([call.ranks; 2]);
            self.ranks = Some([fewest.min(call.ranks), most.max(call.ranks)]);
        }
        self.choices = choices.into_iter().collect();
    }

    /// Whether no measurement is behind it: its values are cited.
    pub fn is_cited(&self) -> bool {
        self.gpus.is_empty() && self.launches.is_empty()
    }

    /// How a call goes beyond the choices and ranks that it was made with, where it says with which. Sizes do not count:
    /// small messages all go in one slice, and what bounds large ones bounds larger ones too.
    pub fn beyond(&self, algorithm: Algorithm, protocol: Protocol, call: &Call) -> Beyond {
        let mut beyond = Beyond::default();
        if !self.choices.is_empty() && !self.choices.contains(&format!("{algorithm}/{protocol}")) {
            beyond.insert(Reason::Choice(algorithm, protocol));
        }
        if let Some(seen) = self.ranks.filter(|[fewest, most]| !(fewest..=most).contains(&&call.ranks)) {
            beyond.insert(Reason::Ranks { seen, here: call.ranks });
        }
        beyond
    }

    /// Of some files' hashes, those that it was fitted to.
    pub fn fitted_to<'h>(&self, hashes: impl Iterator<Item = &'h str>) -> usize {
        hashes.filter(|hash| self.data.iter().any(|d| d.hash == *hash)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: no constant without a source, at most 40 that data of one machine set.
    #[test]
    fn the_prior_gives_every_constant_a_source() {
        let prior = Profile::builtin("prior").unwrap();
        for (constant, parameter) in prior.parameters.iter() {
            assert!(parameter.source.len() > 10, "{constant}");
        }
        for name in Profile::builtin_names() {
            let profile = Profile::builtin(name).unwrap();
            let is_fitted = |(_, p): &(_, &Parameter)| matches!(p.origin, OriginKind::Fitted | OriginKind::Anchor);
            let fitted = profile.parameters.iter().filter(is_fitted).count();
            assert!(fitted <= 40, "{name}: {fitted}");
        }
    }

    /// Goal: a constant without a value is an error, whichever it is; one that a layer leaves out is that below.
    #[test]
    fn a_constant_without_a_value_is_refused() {
        let text = Profile::builtin_text("prior").unwrap();
        let whole = Layer::parse(text, "x.toml").unwrap();
        for &constant in Constant::ALL {
            let mut layer = whole.clone();
            layer.parameters.remove(&constant).unwrap();
            let missing = ProfileError::Missing { file: "x.toml".to_owned(), name: constant.name() };
            assert_eq!(layer.complete("x.toml"), Err(missing));
        }
        let (prior, v100) = (Profile::builtin("prior").unwrap(), Profile::builtin("v100-nvlink").unwrap());
        assert_eq!(v100[Constant::LatencyPcieLl], prior[Constant::LatencyPcieLl]);
        assert!(v100[Constant::BlockLl].value < prior[Constant::BlockLl].value);
    }

    /// Goal: names are each constant's own and found again, and bounds leave room for more than one value.
    #[test]
    fn constants_are_told_apart() {
        let mut names = BTreeSet::new();
        for &constant in Constant::ALL {
            let [least, most] = constant.spec().bounds;
            assert_eq!(Constant::named(constant.name()), Some(constant));
            assert!(names.insert(constant.name()) && least < most, "{constant}");
        }
        assert_eq!(Constant::named("latency.nvlink"), None);
    }

    /// Goal: what a profile scales is the prior's value of today, by the ratio that it names: sources of the form
    /// "N of the prior, ...: A to B". By clocks go instructions of a GPU alone.
    #[test]
    fn scaled_values_follow_the_prior() {
        let prior = Profile::builtin("prior").unwrap();
        let mut scaled = 0;
        for name in Profile::builtin_names() {
            let own = Layer::parse(Profile::builtin_text(name).unwrap(), name).unwrap();
            for (constant, parameter) in own.parameters {
                let Some((of, how)) = parameter.source.split_once(" of the prior") else { continue };
                let (of, ratio) = (of.parse::<f64>().unwrap(), how.rsplit_once([':', ',']).unwrap().1);
                let ratio: Vec<f64> = ratio.split_whitespace().filter_map(|word| word.parse().ok()).collect();
                // Clocks are named from the prior's GPU to this one: more time; rates the other way round.
                let factor = ratio[0] / ratio[1];
                assert_eq!(of, prior[constant].value, "{name}: {constant}");
                assert!((parameter.value / (of * factor) - 1.0).abs() < 0.03, "{name}: {constant} {}", parameter.value);
                assert!(!how.contains("clock") || constant.role().is_of_blocks(), "{name}: {constant}");
                scaled += 1;
            }
        }
        assert_eq!(scaled, 21);
    }

    /// Goal: mistakes in a profile are named.
    #[test]
    fn bad_profiles_are_refused() {
        let good = Profile::builtin_text("prior").unwrap();
        for (from, to, expected) in [
            ("collcast/profile/1", "collcast/profile/9", "schema"),
            ("\"efficiency.nvlink\"", "\"efficiency.nvlnk\"", "did you mean `efficiency.nvlink`?"),
            ("uncertainty", "unsertainty", "unsertainty"),
            ("\"efficiency.c2c\" = { value = 0", "\"efficiency.c2c\" = { value = 1", "of nominal, expected 0.001 to 1"),
            (
                "\"sync.simple\" = { value = ",
                "\"sync.simple\" = { interval = [2, 3], value = ",
                "inside its `interval`",
            ),
        ] {
            assert!(good.contains(from), "{from}");
            let error = Layer::parse(&good.replacen(from, to, 1), "x.toml").unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("x.toml"), "{error}");
        }
    }
}

//! What is not as it was accepted, and why.

use std::fmt;

use collcast_sim::collective::Collective;
use serde::Serialize;

use super::baseline::{Measured, digits, size_name, span};
use super::picked::Picked;

/// What a forecast depends on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The machine.
    Topology,
    /// Constants of its profile.
    Profile,
    /// Version of NCCL.
    Version,
    /// Variables and launch mode.
    Settings,
    /// The code that predicts.
    Model,
    /// The measured files.
    Measurements,
}

impl Cause {
    /// The words in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Topology => "topology",
            Self::Profile => "profile",
            Self::Version => "NCCL version",
            Self::Settings => "settings",
            Self::Model => "our model",
            Self::Measurements => "measurements",
        }
    }
}

/// Versions of NCCL that answer to each other.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Versions {
    /// In the baseline.
    pub before: String,
    /// Today.
    pub after: String,
}

impl Versions {
    /// One that is there before or after only.
    pub(super) fn one(version: &str) -> Self {
        Self { before: version.to_owned(), after: version.to_owned() }
    }
}

impl fmt::Display for Versions {
    /// `2.26.2`, or `2.26.2 -> 2.28.9`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.before == self.after {
            true => f.write_str(&self.after),
            false => write!(f, "{} -> {}", self.before, self.after),
        }
    }
}

/// Kinds of differences, worst first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// NCCL chooses something else.
    Choice,
    /// A time beyond tolerance.
    Slower,
    /// The error against measurements.
    Error,
    /// A time beyond tolerance.
    Faster,
    /// A time beyond tolerance, by our own doing and with the same choice.
    ModelMoved,
    /// Not in the baseline.
    New,
    /// In the baseline only.
    Removed,
}

impl Kind {
    /// The words in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Choice => "choice changed",
            Self::Slower => "slower",
            Self::Error => "error changed",
            Self::Faster => "faster",
            Self::ModelMoved => "model moved, choice same",
            Self::New => "new",
            Self::Removed => "removed",
        }
    }
}

/// What differs.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// NCCL's choice over a range of sizes.
    Choice {
        /// The smallest size.
        from_bytes: u64,
        /// The largest size.
        to_bytes: u64,
        /// What it was.
        before: Picked,
        /// What it is.
        after: Picked,
        /// Predicted time over that of the old choice, less 1; where that cannot be predicted, over the recorded time;
        /// none where there is none.
        loss: Option<f64>,
    },
    /// A predicted time.
    Time {
        /// Size of the call.
        size_bytes: u64,
        /// What it was; where our own model changed too, what it is with the input at fault put back.
        before_us: f64,
        /// What it is.
        after_us: f64,
        /// Only our own model moved it, and NCCL's choice is the same.
        model_only: bool,
    },
    /// The median error of forecasts against measurements.
    Error {
        /// What it was; none where the baseline has none.
        before: Option<Measured>,
        /// What it is.
        after: Measured,
        /// A median error that is too large whatever it was, as a fraction.
        limit: Option<f64>,
    },
    /// Something that the baseline does not have.
    New {
        /// Sizes that are new; none where all of it is.
        sizes_bytes: Vec<u64>,
        /// Of choices: the first and the last size of a range. Else of times.
        choices: bool,
    },
    /// Something that the baseline has and the suite does not ask for.
    Removed {
        /// Sizes that are gone; none where all of it is.
        sizes_bytes: Vec<u64>,
        /// Of choices: the first and the last size of a range. Else of times.
        choices: bool,
    },
    /// Measurements that are new, gone, or have fewer rows than they had.
    Rows {
        /// What the baseline has.
        before: Option<Measured>,
        /// What there is.
        after: Option<Measured>,
    },
}

impl What {
    /// All of something is new.
    pub(super) const NEW: Self = Self::New { sizes_bytes: Vec::new(), choices: false };
    /// All of something is gone.
    pub(super) const REMOVED: Self = Self::Removed { sizes_bytes: Vec::new(), choices: false };
}

/// One difference from the baseline.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Finding {
    /// The machine, or set of measurements.
    pub machine: String,
    /// Versions of NCCL; none where it is of all.
    pub nccl: Option<Versions>,
    /// The collective; none where it is of all.
    pub collective: Option<Collective>,
    /// What differs.
    pub what: What,
    /// One is the cause, several may be; none where no recorded input changed.
    pub causes: Vec<Cause>,
    /// It got worse beyond tolerance, or everything that is reported fails.
    pub failed: bool,
}

impl Finding {
    /// About the whole of a machine or of measurements, of no known cause, not a failure.
    pub(super) fn new(machine: &str, what: What) -> Self {
        Self { machine: machine.to_owned(), nccl: None, collective: None, what, causes: Vec::new(), failed: false }
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        match &self.what {
            What::Choice { .. } => Kind::Choice,
            What::Time { model_only: true, .. } => Kind::ModelMoved,
            What::Time { before_us, after_us, .. } if after_us > before_us => Kind::Slower,
            What::Time { .. } => Kind::Faster,
            What::Error { .. } => Kind::Error,
            What::New { .. } | What::Rows { before: None, .. } => Kind::New,
            What::Removed { .. } | What::Rows { .. } => Kind::Removed,
        }
    }

    /// Whether it is about measurements, not about a machine.
    pub fn is_of_measurements(&self) -> bool {
        matches!(self.what, What::Error { .. } | What::Rows { .. })
    }

    /// Whether nothing of what it is about is in the baseline.
    pub(crate) fn is_all_new(&self) -> bool {
        self.kind() == Kind::New && self.values().is_none()
    }

    /// The machine, the version and the collective.
    pub(crate) fn place(&self) -> Vec<String> {
        let nccl = self.nccl.as_ref().map(ToString::to_string);
        let collective = self.collective.map(|collective| collective.name().to_owned());
        [Some(self.machine.clone()), nccl, collective].into_iter().flatten().collect()
    }

    /// Time after over time before, less 1. Of a choice: its predicted loss, where that is known. Of measurements: points
    /// of median error, as a fraction.
    pub fn change(&self) -> Option<f64> {
        match &self.what {
            What::Choice { loss, .. } => *loss,
            What::Time { before_us, after_us, .. } => Some(after_us / before_us - 1.0),
            What::Error { before, after, .. } => {
                before.as_ref().map(|before| (after.median_error_percent - before.median_error_percent) / 100.0)
            }
            What::New { .. } | What::Removed { .. } | What::Rows { .. } => None,
        }
    }

    /// `64KiB`, a range, or a list; empty where it is of all.
    pub fn sizes(&self) -> String {
        match &self.what {
            What::Choice { from_bytes, to_bytes, .. } => span(*from_bytes, *to_bytes),
            What::Time { size_bytes, .. } => size_name(*size_bytes),
            What::New { sizes_bytes, choices } | What::Removed { sizes_bytes, choices } => {
                match sizes_bytes.as_slice() {
                    &[from, to] if *choices => span(from, to),
                    sizes => sizes.iter().map(|&size| size_name(size)).collect::<Vec<_>>().join(", "),
                }
            }
            What::Error { .. } | What::Rows { .. } => String::new(),
        }
    }

    /// The smallest and the largest size in bytes; none where it is of all, or of none.
    pub fn bytes(&self) -> Option<[u64; 2]> {
        match &self.what {
            What::Choice { from_bytes, to_bytes, .. } => Some([*from_bytes, *to_bytes]),
            What::Time { size_bytes, .. } => Some([*size_bytes; 2]),
            What::New { sizes_bytes, .. } | What::Removed { sizes_bytes, .. } => {
                Some([*sizes_bytes.first()?, *sizes_bytes.last()?])
            }
            What::Error { .. } | What::Rows { .. } => None,
        }
    }

    /// The times before and after in us; none where it is about something else.
    pub fn times_us(&self) -> Option<[f64; 2]> {
        match self.what {
            What::Time { before_us, after_us, .. } => Some([before_us, after_us]),
            _ => None,
        }
    }

    /// NCCL's choices before and after; none where it is about something else.
    pub fn picked(&self) -> Option<[Picked; 2]> {
        match self.what {
            What::Choice { before, after, .. } => Some([before, after]),
            _ => None,
        }
    }

    /// What it was and what it is, in words; none where only one is there.
    pub fn values(&self) -> Option<[String; 2]> {
        let error = |m: &Measured| format!("{}% of {} rows", m.median_error_percent, m.rows);
        let kept = |choices: bool| if choices { "choices" } else { "times" }.to_owned();
        let none = || "none".to_owned();
        match &self.what {
            What::Choice { before, after, .. } => Some([before.to_string(), after.to_string()]),
            What::Time { before_us, after_us, .. } => Some([format!("{before_us} us"), format!("{after_us} us")]),
            What::Error { before, after, limit } => {
                let most = limit.map(|limit| format!("at most {}%", limit * 100.0));
                let before = before.as_ref().map(error);
                Some([before.or(most).unwrap_or_default(), error(after)])
            }
            What::Rows { before: Some(before), after: Some(after) } => {
                Some([before.rows, after.rows].map(|rows| format!("{rows} rows")))
            }
            What::New { sizes_bytes, .. } | What::Removed { sizes_bytes, .. } if sizes_bytes.is_empty() => None,
            What::New { choices, .. } => Some([none(), kept(*choices)]),
            What::Removed { choices, .. } => Some([kept(*choices), none()]),
            What::Rows { .. } => None,
        }
    }

    /// Whether errors exceed what the suite allows, whatever the baseline has.
    pub fn is_beyond_limit(&self) -> bool {
        self.exceeded().is_some()
    }

    /// The median error that the suite allows, in percent, where errors exceed it.
    fn exceeded(&self) -> Option<f64> {
        match &self.what {
            What::Error { after, limit, .. } => {
                limit.map(|most| digits(most * 100.0)).filter(|most| after.median_error_percent > *most)
            }
            _ => None,
        }
    }

    /// `profile`, or `several changed: topology, profile`.
    pub fn cause(&self) -> String {
        if let Some(most) = self.exceeded() {
            return format!("above max_error of the suite ({most}%)");
        }
        match self.causes.as_slice() {
            [] => "cause not known: no recorded input changed".to_owned(),
            [one] => one.name().to_owned(),
            several => {
                let names: Vec<&str> = several.iter().map(|c| c.name()).collect();
                format!("several changed: {}", names.join(", "))
            }
        }
    }
}

/// A signed percentage.
pub(crate) fn signed(fraction: f64) -> String {
    format!("{:+.1}%", fraction * 100.0)
}

impl fmt::Display for Finding {
    /// `slower at 64KiB: 20.1 us -> 22.4 us (+11.4%), caused by profile`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind().name())?;
        let sizes = self.sizes();
        if !sizes.is_empty() {
            write!(f, " at {sizes}")?;
        }
        let Some([before, after]) = self.values() else {
            return f.write_str(if self.kind() == Kind::Removed { ", though the baseline has it" } else { "" });
        };
        write!(f, ": {before} -> {after}")?;
        match (&self.what, self.change()) {
            (What::Choice { .. }, Some(loss)) => write!(f, " ({} in time)", signed(loss))?,
            (What::Choice { .. }, None) => f.write_str(" (loss not known)")?,
            (What::Time { .. }, Some(change)) => write!(f, " ({})", signed(change))?,
            _ => {}
        }
        match self.causes.len() {
            0 if matches!(self.kind(), Kind::New | Kind::Removed) => Ok(()),
            _ if self.is_beyond_limit() => write!(f, ", {}", self.cause()),
            1 => write!(f, ", caused by {}", self.cause()),
            _ => write!(f, ", {}", self.cause()),
        }
    }
}

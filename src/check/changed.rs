//! Inputs that are not what they were, each with what they were and are.

use std::collections::BTreeMap;
use std::fmt;

use collcast_sim::nccl::settings;
use serde::ser::{Serialize, SerializeStruct, Serializer};

use super::baseline::Recorded;
use super::finding::{Cause, Versions};

/// An input of a machine that is not what it was.
#[derive(Clone, PartialEq, Debug)]
pub struct Changed {
    /// The machine, or set of measurements.
    pub machine: String,
    /// Which input, from what to what.
    pub what: InputChange,
}

impl Serialize for Changed {
    /// Which input stands beside the change, and that in words.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("Changed", 3)?;
        out.serialize_field("machine", &self.machine)?;
        out.serialize_field("cause", &self.what.cause())?;
        out.serialize_field("what", &self.what.to_string())?;
        out.end()
    }
}

/// A value before and after; none where there was or is none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Moved<T> {
    /// Its name.
    pub name: String,
    /// In the baseline.
    pub before: Option<T>,
    /// Today.
    pub after: Option<T>,
}

/// An input, from what to what.
#[derive(Clone, PartialEq, Debug)]
pub enum InputChange {
    /// Links of the machine by kind, rate and number, and what its switches do. Where none differ, something else does.
    Links {
        /// In the baseline only.
        gone: Vec<String>,
        /// Today only.
        came: Vec<String>,
    },
    /// The baseline has no such profile.
    NewProfile,
    /// Constants of the profile.
    Constants(Vec<Moved<f64>>),
    /// Launch mode and variables. Where none differ, a file that a variable names does.
    Settings(Vec<Moved<String>>),
    /// Version of NCCL.
    Version(Versions),
    /// Hashes of the code that predicts.
    Model {
        /// In the baseline.
        before: String,
        /// Today.
        after: String,
    },
    /// Rows of measured files.
    Measurements {
        /// In the baseline.
        before: usize,
        /// Today.
        after: usize,
    },
}

impl InputChange {
    /// Which of the things that a forecast depends on it is.
    pub fn cause(&self) -> Cause {
        match self {
            Self::Links { .. } => Cause::Topology,
            Self::NewProfile | Self::Constants(_) => Cause::Profile,
            Self::Settings(_) => Cause::Settings,
            Self::Version(_) => Cause::Version,
            Self::Model { .. } => Cause::Model,
            Self::Measurements { .. } => Cause::Measurements,
        }
    }

    pub(super) fn links(old: &Recorded, today: &Recorded) -> Self {
        let less = |a: &[String], b: &[String]| a.iter().filter(|link| !b.contains(link)).cloned().collect();
        Self::Links { gone: less(&old.links, &today.links), came: less(&today.links, &old.links) }
    }

    pub(super) fn constants(old: &BTreeMap<String, f64>, today: &BTreeMap<String, f64>) -> Self {
        Self::Constants(moved(old, today))
    }

    pub(super) fn settings(old: &Recorded, today: &Recorded) -> Self {
        let told = |recorded: &Recorded| -> BTreeMap<String, String> {
            recorded.env.iter().filter_map(|text| settings::pair(text).ok()).collect()
        };
        let launch = |recorded: &Recorded| BTreeMap::from([("launch".to_owned(), recorded.launch.clone())]);
        let mut all = moved(&launch(old), &launch(today));
        all.extend(moved(&told(old), &told(today)));
        Self::Settings(all)
    }
}

/// Values that differ, by name.
fn moved<T: Clone + PartialEq>(old: &BTreeMap<String, T>, today: &BTreeMap<String, T>) -> Vec<Moved<T>> {
    let mut names: Vec<&String> = old.keys().chain(today.keys()).collect();
    names.sort();
    names.dedup();
    let of =
        |name: &String| Moved { name: name.clone(), before: old.get(name).cloned(), after: today.get(name).cloned() };
    names.into_iter().map(of).filter(|one| one.before != one.after).collect()
}

/// Constants that are named in one line.
const CONSTANTS_SHOWN: usize = 4;

/// `sync.simple 1.7 -> 1.8` for each; `none` stands for what is not there.
fn listed<T: fmt::Display>(all: &[Moved<T>], none: &str) -> String {
    let value = |value: &Option<T>| value.as_ref().map_or_else(|| none.to_owned(), ToString::to_string);
    let one = |m: &Moved<T>| format!("{} {} -> {}", m.name, value(&m.before), value(&m.after));
    all.iter().map(one).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for InputChange {
    /// From what to what, in words.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Links { gone, came } => match (gone.join(", "), came.join(", ")) {
                (gone, came) if gone.is_empty() && came.is_empty() => {
                    f.write_str("the same links; devices, places or plugin differ")
                }
                (gone, came) if gone.is_empty() => write!(f, "new: {came}"),
                (gone, came) if came.is_empty() => write!(f, "gone: {gone}"),
                (gone, came) => write!(f, "{gone} -> {came}"),
            },
            Self::NewProfile => f.write_str("not in the baseline"),
            Self::Constants(all) => {
                let (shown, more) = all.split_at(all.len().min(CONSTANTS_SHOWN));
                f.write_str(&listed(shown, "none"))?;
                if more.is_empty() { Ok(()) } else { write!(f, " and {} more", more.len()) }
            }
            Self::Settings(all) if all.is_empty() => f.write_str("a file that a variable names"),
            Self::Settings(all) => f.write_str(&listed(all, "unset")),
            Self::Version(versions) => versions.fmt(f),
            Self::Model { before, after } => write!(f, "{before} -> {after}"),
            Self::Measurements { before, after } => write!(f, "{before} -> {after} rows"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: JSON has which input it is, and the change in words.
    #[test]
    fn changes_are_words_in_files() {
        let recorded = |links: &[&str], launch: &str, env: &[&str]| Recorded {
            links: links.iter().map(|&link| link.to_owned()).collect(),
            launch: launch.to_owned(),
            env: env.iter().map(|&pair| pair.to_owned()).collect(),
            ..Recorded::default()
        };
        let old = recorded(&["8 nvlink of 450 GB/s"], "threads", &["NCCL_ALGO=Ring"]);
        let new = recorded(&["8 nvlink of 400 GB/s"], "graph", &["NCCL_ALGO=Tree", "NCCL_PROTO=LL"]);
        let constants = |all: &[(&str, f64)]| all.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        let five = constants(&[("a", 1.0), ("b", 2.0), ("c", 3.5), ("d", 4.0), ("e", 5.0)]);
        let version = |text: &str| text.to_owned();
        for (what, cause, words) in [
            (InputChange::links(&old, &new), "topology", "8 nvlink of 450 GB/s -> 8 nvlink of 400 GB/s"),
            (InputChange::links(&Recorded::default(), &new), "topology", "new: 8 nvlink of 400 GB/s"),
            (InputChange::links(&old, &Recorded::default()), "topology", "gone: 8 nvlink of 450 GB/s"),
            (InputChange::links(&old, &old), "topology", "the same links; devices, places or plugin differ"),
            (InputChange::NewProfile, "profile", "not in the baseline"),
            (
                InputChange::constants(&constants(&[("a", 1.5)]), &constants(&[("b", 2.0)])),
                "profile",
                "a 1.5 -> none, b none -> 2",
            ),
            (
                InputChange::constants(&constants(&[]), &five),
                "profile",
                "a none -> 1, b none -> 2, c none -> 3.5, d none -> 4 and 1 more",
            ),
            (
                InputChange::settings(&old, &new),
                "settings",
                "launch threads -> graph, NCCL_ALGO Ring -> Tree, NCCL_PROTO unset -> LL",
            ),
            (InputChange::settings(&old, &old), "settings", "a file that a variable names"),
            (
                InputChange::Version(Versions { before: version("2.26.2"), after: version("2.28.9") }),
                "version",
                "2.26.2 -> 2.28.9",
            ),
            (InputChange::Model { before: version("1"), after: version("2") }, "model", "1 -> 2"),
            (InputChange::Measurements { before: 60, after: 64 }, "measurements", "60 -> 64 rows"),
        ] {
            let changed = Changed { machine: "ours".to_owned(), what };
            let expected = serde_json::json!({"machine": "ours", "cause": cause, "what": words});
            assert_eq!(serde_json::to_value(&changed).unwrap(), expected);
        }
    }
}

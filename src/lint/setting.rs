//! Settings as they were found, and what else their place says.

use std::collections::BTreeMap;

/// Letters of a value that a finding shows.
const VALUE_MAX: usize = 60;

/// Where something was found.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default, serde::Serialize)]
pub struct Place {
    /// A file as the user named it, or words such as `the environment of this process`.
    pub file: String,
    /// Its line, from 1.
    pub line: Option<u64>,
}

/// One variable with its value.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Setting {
    /// Its name as written.
    pub(super) name: String,
    /// Its value as written, without quotes.
    pub(super) value: String,
    /// The line it is on.
    pub(super) line: Option<u64>,
}

impl Setting {
    /// Whether the value is there to be read: a shell or a template fills in the others later.
    pub(super) fn is_known(&self) -> bool {
        !self.value.contains('$') && !self.value.contains("{{")
    }

    /// Whether NCCL reads the variable, and its value is there.
    pub(super) fn is_read(&self) -> bool {
        self.is_known() && collcast_sim::nccl::is_read(&self.name)
    }

    /// `NAME=VALUE`, short enough for a line.
    pub(super) fn text(&self) -> String {
        let mut letters = self.value.chars();
        let value: String = letters.by_ref().take(VALUE_MAX).collect();
        let cut = if letters.next().is_some() { "..." } else { "" };
        format!("{}={value}{cut}", self.name)
    }
}

/// What a file says beside its settings: one of the rules of the catalogue, at a line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Sign {
    /// The rule.
    pub(super) rule: &'static str,
    /// The line.
    pub(super) line: Option<u64>,
    /// What was found.
    pub(super) what: String,
}

/// What one process will see: the settings of a file, a container or a process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Scope {
    /// Settings in the order of the file; of a name set twice the last holds.
    pub(super) settings: Vec<Setting>,
    /// What the file says beside them.
    pub(super) signs: Vec<Sign>,
    /// GPUs are asked for, so what the container lacks matters.
    pub(super) gpus: bool,
    /// Whether RDMA devices are given to it; `None` where the file does not decide.
    pub(super) rdma_device: Option<bool>,
    /// The line that RDMA devices would be named at.
    pub(super) line: Option<u64>,
    /// Processes that torchrun starts, over all commands.
    pub(super) processes: u64,
    /// A log, whose settings NCCL itself has read.
    pub(super) log: bool,
}

impl Scope {
    /// Adds a setting.
    pub(super) fn set(&mut self, name: &str, value: &str, line: Option<u64>) {
        self.settings.push(Setting { name: name.to_owned(), value: value.to_owned(), line });
    }

    /// Adds a sign.
    pub(super) fn sign(&mut self, rule: &'static str, line: Option<u64>, what: impl Into<String>) {
        self.signs.push(Sign { rule, line, what: what.into() });
    }

    /// Adds a sign for each name that has two values.
    pub(super) fn sign_twice(&mut self) {
        let mut first: BTreeMap<&str, &Setting> = BTreeMap::new();
        let mut twice = Vec::new();
        for setting in &self.settings {
            let earlier = *first.entry(&setting.name).or_insert(setting);
            if earlier.value != setting.value {
                let above = earlier.line.map_or(String::new(), |line| format!(" in line {line}"));
                twice.push((setting.line, format!("{}, and {}{above}", setting.text(), earlier.text())));
            }
        }
        for (line, what) in twice {
            self.sign("set-twice", line, what);
        }
    }

    /// The settings that hold, by name.
    pub(super) fn last(&self) -> BTreeMap<&str, &Setting> {
        self.settings.iter().map(|setting| (setting.name.as_str(), setting)).collect()
    }

    /// Whether it asks for RDMA by its settings.
    pub(super) fn wants_rdma(&self) -> Option<&Setting> {
        let settings = self.last();
        let off = settings.get("NCCL_IB_DISABLE").is_some_and(|s| s.value.trim() == "1");
        let named = |s: &&&Setting| {
            s.name == "NCCL_IB_HCA"
                || s.name == "NCCL_IB_GID_INDEX"
                || (s.name == "FI_PROVIDER" && s.value.contains("efa"))
                || (s.name == "NCCL_NET" && s.value.eq_ignore_ascii_case("ib"))
        };
        settings.values().find(named).copied().filter(|_| !off)
    }
}

/// Whether a word is the name of a variable as shells take it.
pub(super) fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 128
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Families of variables that collectives of some library read.
const FAMILIES: [&str; 22] = [
    "NCCL_",
    "OFI_NCCL_",
    "FI_",
    "TORCH_NCCL_",
    "TORCH_DISTRIBUTED_",
    "GLOO_",
    "RCCL_",
    "MSCCL_",
    "CCL_",
    "HCCL_",
    "MCCL_",
    "CNCL_",
    "BCCL_",
    "HSA_",
    "CUDA_LAUNCH_",
    "LD_PRELOAD",
    "PL_TORCH_",
    "OMPI_MCA_",
    "UCC_",
    "NCCL",
    "nccl_",
    TUNER,
];

/// How variables of our tuner plugin begin.
const TUNER: &str = "COLLCAST_TUNER_";

/// Whether every process of a job should have the variable: NCCL or a plugin in its process reads it.
pub(super) fn is_of_processes(name: &str) -> bool {
    collcast_sim::nccl::is_read(name) || name.starts_with(TUNER)
}

/// Whether a variable is one that this tool has an opinion of. The first word of a name that is one letter off `NCCL`
/// is taken for a slip of it only where the rest is that of a variable.
pub(super) fn is_of_interest(name: &str) -> bool {
    FAMILIES.iter().any(|family| name.starts_with(family)) || meant(name).is_some()
}

/// The variable that a name with a slip in `NCCL_` means: `NCLL_DEBUG`, `nccl_debug`, `NCCL__DEBUG`.
pub(super) fn meant(name: &str) -> Option<String> {
    let (family, rest) = name.split_once('_')?;
    let others =
        ["RCCL", "HCCL", "MCCL", "CNCL", "BCCL", "TCCL", "ACCL", "XCCL", "ECCL", "CCL", "OCCL", "VCCL", "UCCL"];
    let near = family != "NCCL"
        && !others.contains(&family)
        && (family.eq_ignore_ascii_case("NCCL") || strsim::damerau_levenshtein(family, "NCCL") == 1);
    let as_nccl = |rest: &str| format!("NCCL_{}", rest.trim_start_matches('_').to_uppercase());
    let found = as_nccl(rest);
    let slip = near || rest != rest.to_uppercase() || rest.starts_with('_');
    (slip && family.len() >= 3 && collcast_sim::nccl::is_read(&found)).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: slips in the family's name are seen, other libraries are not taken for them.
    #[test]
    fn slips_of_the_family_are_seen() {
        for (name, means) in [
            ("NCLL_DEBUG", Some("NCCL_DEBUG")),
            ("NNCL_ALGO", Some("NCCL_ALGO")),
            ("nccl_debug", Some("NCCL_DEBUG")),
            ("NCCL_debug", Some("NCCL_DEBUG")),
            ("NCCL__DEBUG", Some("NCCL_DEBUG")),
            ("RCCL_DEBUG", None),
            ("CCL_ALGO", None),
            ("NCCL_DEBUG", None),
            ("NCLL_VERSION", None),
            ("PATH", None),
        ] {
            assert_eq!(meant(name).as_deref(), means, "{name}");
        }
    }
}

//! The catalogue of rules, which is data: `rules.toml`.
//!
//! A rule whose `when` lists conditions on settings, or whose `log` lists texts, needs no code. The others are named
//! where they are found.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use collcast_sim::nccl::parameters::{Parameter, strtoll};
use serde::Deserialize;

use super::finding::Severity;
use super::setting::Setting;

/// The catalogue.
const CATALOGUE: &str = include_str!("rules.toml");

/// A rule.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Its name in outputs.
    pub id: String,
    /// How bad what it finds is.
    pub severity: Severity,
    /// Conditions that must all hold: `NAME` (or `A|B`), `NAME=VALUE` (or `NAME=A|B`), `NAME~TEXT`, `NAME>=NUMBER`, and any of them
    /// behind `!`, which no setting may fulfil. A value that NCCL does not take is none.
    #[serde(default)]
    pub when: Vec<String>,
    /// Texts of which a line of a log has one.
    #[serde(default)]
    pub log: Vec<String>,
    /// What a machine must have, where one is known: `rdma`, `verbs`, `no-plugin`, `nvlink`, `several-hosts`.
    #[serde(default)]
    pub machine: Option<String>,
    /// What is wrong, after the settings that say it.
    #[serde(default)]
    pub what: String,
    /// Why it matters.
    pub why: String,
    /// What to do.
    pub way_out: String,
}

#[derive(Deserialize)]
struct Catalogue {
    rule: Vec<Rule>,
}

/// The rules of the catalogue, in its order. A test reads the same text, so it is one.
static RULES: LazyLock<Vec<Rule>> =
    LazyLock::new(|| toml::from_str::<Catalogue>(CATALOGUE).map(|catalogue| catalogue.rule).unwrap_or_default());

/// All rules.
pub fn all() -> &'static [Rule] {
    &RULES
}

impl Rule {
    /// The rule of a name.
    pub fn of(id: &str) -> Option<&'static Self> {
        RULES.iter().find(|rule| rule.id == id)
    }

    /// The settings that fulfil the conditions, those set first; `None` where one does not hold.
    pub(super) fn holds<'s>(&self, settings: &BTreeMap<&str, &'s Setting>) -> Option<Vec<&'s Setting>> {
        let mut found = Vec::new();
        for condition in &self.when {
            let met = |condition: &str| {
                let condition = Condition::of(condition);
                settings.values().find(|setting| condition.is_met(setting)).copied()
            };
            match condition.strip_prefix('!') {
                Some(not) if settings.contains_key(not) || met(not).is_some() => return None,
                Some(_) => {}
                None => found.push(met(condition)?),
            }
        }
        (!found.is_empty()).then_some(found)
    }
}

/// A condition on a setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Condition<'r> {
    /// `NAME=VALUE`: it has the value, or one of several, as text in any case or as a number.
    Is(&'r str, &'r str),
    /// `NAME~TEXT`: it contains the text, in any case; what a list names behind `^` does not count.
    Has(&'r str, &'r str),
    /// `NAME>=NUMBER`.
    Least(&'r str, i64),
    /// `NAME`, or one of `A|B`: it has a value; a name that ends in `*` is any that begins so.
    Set(&'r str),
}

impl<'r> Condition<'r> {
    fn of(text: &'r str) -> Self {
        if let Some((name, number)) = text.split_once(">=") {
            Self::Least(name, strtoll(number).0)
        } else if let Some((name, value)) = text.split_once('=') {
            Self::Is(name, value)
        } else if let Some((name, part)) = text.split_once('~') {
            Self::Has(name, part)
        } else {
            Self::Set(text)
        }
    }

    fn is_met(self, setting: &Setting) -> bool {
        let value = setting.value.trim();
        let known = setting.is_known();
        let number = || Some(strtoll(value)).filter(|(_, rest)| !rest).map(|(number, _)| number);
        match self {
            Self::Is(name, is) => {
                let mut all = is.split('|');
                let taken = Parameter::of(name).and_then(|parameter| parameter.takes(value)) != Some(false);
                let same = |is| value.eq_ignore_ascii_case(is) || number().is_some_and(|n| strtoll(is) == (n, false));
                setting.name == name && known && taken && all.any(same)
            }
            Self::Has(name, part) => {
                let mut lists = value.split(';').filter(|list| !list.contains('^'));
                setting.name == name && known && lists.any(|list| list.to_lowercase().contains(part))
            }
            Self::Least(name, least) => setting.name == name && known && number().is_some_and(|n| n >= least),
            Self::Set(names) => {
                let is = |name: &str| match name.strip_suffix('*') {
                    Some(start) => setting.name.starts_with(start),
                    None => setting.name == name,
                };
                names.split('|').any(is) && !value.is_empty()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Goal: the catalogue is read whole, and no two rules have one name.
    #[test]
    fn the_catalogue_is_whole() {
        let rules = toml::from_str::<Catalogue>(CATALOGUE).unwrap().rule;
        let names: BTreeSet<&str> = rules.iter().map(|rule| rule.id.as_str()).collect();
        assert!(rules.len() > 40 && names.len() == rules.len(), "{} of {}", names.len(), rules.len());
        for rule in &rules {
            assert!(!rule.why.is_empty() && !rule.way_out.is_empty(), "{}", rule.id);
            assert!(rule.when.is_empty() && rule.log.is_empty() || !rule.what.is_empty(), "{}", rule.id);
        }
    }

    /// Goal: each form of a condition is met by what it says, and unknown values meet none on values.
    #[test]
    fn conditions_are_met() {
        let setting = |name: &str, value: &str| Setting { name: name.to_owned(), value: value.to_owned(), line: None };
        for (condition, name, value, met) in [
            ("A", "A", "1", true),
            ("A", "A", "", false),
            ("A=1", "A", "0x1", true),
            ("A=1", "A", "10", false),
            ("A=loc", "A", "LOC", true),
            ("A=loc|0", "A", "0", true),
            ("A=1", "A", "$ONE", false),
            ("NCCL_P2P_LEVEL=LOC", "NCCL_P2P_LEVEL", "LOC", true),
            ("NCCL_P2P_LEVEL=LOC", "NCCL_P2P_LEVEL", "loc", false),
            ("A~tcp", "A", "my-TCP", true),
            ("A~tcp", "A", "a:^tcp,b", false),
            ("A~tcp", "A", "^b;a:tcp", true),
            ("A>=8", "A", "9", true),
            ("A>=8", "A", "9M", false),
            ("A_*", "A_B", "x", true),
            ("A|B", "B", "x", true),
            ("A|B", "C", "x", false),
            ("A", "B", "1", false),
        ] {
            assert_eq!(Condition::of(condition).is_met(&setting(name, value)), met, "{condition} of {name}={value}");
        }
    }
}

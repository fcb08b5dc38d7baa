//! The syntax of `NCCL_ALGO` and `NCCL_PROTO`, as sets per collective.
//!
//! One or more sections separated by `;`. A section is `[func:]list`; only the first may omit
//! `func:`, and then applies to every collective; later ones override it. A list is names
//! separated by commas; a leading `^` means all but these. Case does not matter.
//!
//! Source: `parseList` in NCCL's `src/graph/tuning.cc`, 2.24 and later.

use std::collections::BTreeMap;
use std::str::FromStr;

use collcast_sim::collective::{Algorithm, Collective, Protocol, UnknownName, nearest};
use thiserror::Error;

/// The collectives that a section can name, as NCCL spells them.
const FUNCTIONS: [(&str, Collective); 5] = [
    ("Broadcast", Collective::Broadcast),
    ("Reduce", Collective::Reduce),
    ("AllGather", Collective::AllGather),
    ("ReduceScatter", Collective::ReduceScatter),
    ("AllReduce", Collective::AllReduce),
];

/// The algorithms that NCCL knows, in its order.
pub const NCCL_ALGORITHMS: [Algorithm; 7] = [
    Algorithm::Tree,
    Algorithm::Ring,
    Algorithm::CollnetDirect,
    Algorithm::CollnetChain,
    Algorithm::Nvls,
    Algorithm::NvlsTree,
    Algorithm::Pat,
];

/// Longest text that is looked at; NCCL's own settings are far shorter.
const TEXT_MAX: usize = 4096;

/// Why a `NCCL_ALGO` or `NCCL_PROTO` could not be understood.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum NcclEnvError {
    /// Nothing between two separators.
    #[error("`{0}` has an empty name; expected names such as `ring,tree`")]
    EmptyName(String),
    /// A section after the first without its collective.
    #[error("`{0}` names no collective; only the first section may leave out `func:`")]
    MissingFunction(String),
    /// A collective that NCCL does not know here.
    #[error(
        "`{given}` is not a collective of NCCL{}; known: broadcast reduce allgather reducescatter allreduce",
        suggestion.as_ref().map(|s| format!(", did you mean `{s}`?")).unwrap_or_default()
    )]
    UnknownFunction {
        /// What was written.
        given: String,
        /// The nearest known one.
        suggestion: Option<String>,
    },
    /// An algorithm or protocol that is none.
    #[error(transparent)]
    UnknownName(#[from] UnknownName),
    /// A name that is ours, but that NCCL does not have.
    #[error("`{0}` is not an algorithm of NCCL; known: tree ring collnetdirect collnetchain nvls nvlstree pat")]
    NotNccl(String),
    /// Too long to be meant.
    #[error("the setting has {0} bytes; expected at most {TEXT_MAX}")]
    TooLong(usize),
}

/// Names of one section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names<T> {
    /// Whether `names` are the forbidden ones (a leading `^`).
    pub excluded: bool,
    /// The names, as written.
    pub names: Vec<T>,
}

/// What `NCCL_ALGO` or `NCCL_PROTO` says of each collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvSets<T> {
    /// The section for all collectives, if there is one.
    pub default: Option<Names<T>>,
    /// Sections of one collective; they override `default`.
    pub overrides: BTreeMap<Collective, Names<T>>,
}

impl<T: Copy + PartialEq> EnvSets<T> {
    /// The section that holds for `collective`; `None` where NCCL is free.
    pub fn section(&self, collective: Collective) -> Option<&Names<T>> {
        if !FUNCTIONS.iter().any(|&(_, known)| known == collective) {
            return None; // Send and receive have no algorithm to choose.
        }
        self.overrides.get(&collective).or(self.default.as_ref())
    }

    /// Whether `collective` may use `name`.
    pub fn allows(&self, collective: Collective, name: T) -> bool {
        self.section(collective).is_none_or(|section| section.names.contains(&name) != section.excluded)
    }

    /// The one name that `collective` is forced to, if it is exactly one.
    pub fn forced(&self, collective: Collective) -> Option<T> {
        let section = self.section(collective)?;
        match section.names.as_slice() {
            [first, rest @ ..] if !section.excluded && rest.iter().all(|name| name == first) => Some(*first),
            _ => None,
        }
    }
}

/// Reads `NCCL_ALGO`.
///
/// # Errors
/// Any name or section that NCCL would refuse.
///
/// ```
/// use collcast_hwbackend::read::nccl_env::parse_algorithms;
/// use collcast_sim::collective::{Algorithm, Collective};
/// let sets = parse_algorithms("ring,tree;allreduce:nvls")?;
/// assert_eq!(sets.forced(Collective::AllReduce), Some(Algorithm::Nvls));
/// assert!(sets.allows(Collective::Broadcast, Algorithm::Tree));
/// # Ok::<(), collcast_hwbackend::read::nccl_env::NcclEnvError>(())
/// ```
pub fn parse_algorithms(text: &str) -> Result<EnvSets<Algorithm>, NcclEnvError> {
    parse(text, |name| {
        let algorithm = Algorithm::from_str(name)?;
        if NCCL_ALGORITHMS.contains(&algorithm) { Ok(algorithm) } else { Err(NcclEnvError::NotNccl(name.to_owned())) }
    })
}

/// Reads `NCCL_PROTO`.
///
/// # Errors
/// Any name or section that NCCL would refuse.
pub fn parse_protocols(text: &str) -> Result<EnvSets<Protocol>, NcclEnvError> {
    parse(text, |name| Ok(Protocol::from_str(name)?))
}

fn parse<T>(text: &str, name: impl Fn(&str) -> Result<T, NcclEnvError>) -> Result<EnvSets<T>, NcclEnvError> {
    if text.len() > TEXT_MAX {
        return Err(NcclEnvError::TooLong(text.len()));
    }
    let mut sets = EnvSets { default: None, overrides: BTreeMap::new() };
    for (index, section) in text.split(';').enumerate() {
        let (function, list) = match section.split_once(':') {
            Some((function, list)) => (Some(parse_function(function)?), list),
            None if index == 0 => (None, section),
            None => return Err(NcclEnvError::MissingFunction(section.to_owned())),
        };
        let list = list.trim();
        let (excluded, list) = match list.strip_prefix('^') {
            Some(rest) => (true, rest),
            None => (false, list),
        };
        let mut names = Vec::new();
        for item in list.split(',') {
            if item.trim().is_empty() {
                return Err(NcclEnvError::EmptyName(section.to_owned()));
            }
            names.push(name(item.trim())?);
        }
        let names = Names { excluded, names };
        match function {
            Some(collective) => {
                sets.overrides.insert(collective, names);
            }
            None => sets.default = Some(names),
        }
    }
    Ok(sets)
}

fn parse_function(text: &str) -> Result<Collective, NcclEnvError> {
    let text = text.trim();
    FUNCTIONS.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|&(_, collective)| collective).ok_or_else(
        || NcclEnvError::UnknownFunction {
            given: text.to_owned(),
            suggestion: nearest(text, FUNCTIONS.map(|(name, _)| name)).map(str::to_owned),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Goal: the examples of NCCL's documentation mean what NCCL makes of them.
    #[test]
    fn sections_lists_and_exclusions_are_read_as_nccl_does() {
        let ring = parse_algorithms("Ring").unwrap();
        assert_eq!(ring.forced(Collective::Broadcast), Some(Algorithm::Ring));
        assert!(!ring.allows(Collective::AllReduce, Algorithm::Tree));
        assert_eq!(ring.section(Collective::SendRecv), None);

        let mixed = parse_algorithms("ring,tree;allreduce:tree,NVLS").unwrap();
        assert_eq!(mixed.forced(Collective::AllReduce), None);
        assert!(mixed.allows(Collective::AllReduce, Algorithm::Nvls));
        assert!(!mixed.allows(Collective::AllReduce, Algorithm::Ring));
        assert!(mixed.allows(Collective::Reduce, Algorithm::Ring));

        let protocols = parse_protocols("^LL128;allreduce:LL128").unwrap();
        assert_eq!(protocols.forced(Collective::AllReduce), Some(Protocol::Ll128));
        assert_eq!(protocols.forced(Collective::Broadcast), None);
        assert!(!protocols.allows(Collective::Broadcast, Protocol::Ll128));
        assert!(protocols.allows(Collective::Broadcast, Protocol::Ll));

        let pat = parse_algorithms("allgather:pat;reducescatter:pat").unwrap();
        assert_eq!(pat.forced(Collective::AllGather), Some(Algorithm::Pat));
        assert_eq!(pat.section(Collective::AllReduce), None);
    }

    /// Goal: what NCCL refuses is refused, with its own message.
    #[test]
    fn what_nccl_refuses_is_refused() {
        for (text, part) in [
            ("", "empty name"),
            ("ring,,tree", "empty name"),
            ("ring;tree", "only the first section"),
            ("ring;alreduce:tree", "did you mean `AllReduce`"),
            ("rong", "did you mean `ring`"),
            ("direct", "not an algorithm of NCCL"),
        ] {
            let error = parse_algorithms(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(parse_algorithms(&"r".repeat(TEXT_MAX + 1)).is_err());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[a-zA-Z0-9^,;: ]{0,80}|\\PC{0,80}") {
            let _ = parse_algorithms(&text);
            let _ = parse_protocols(&text);
        }
    }
}

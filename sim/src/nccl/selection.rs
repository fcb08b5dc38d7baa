//! The syntax of `NCCL_ALGO` and `NCCL_PROTO`: which names each collective is left.
//!
//! One or more sections separated by `;`. A section is `[func:]list`; only the first may omit
//! `func:`, and then applies to every collective; later ones override it. A list is names
//! separated by commas; a leading `^` means all but these. Case does not matter, spaces do, and
//! nothing between two separators is passed over, as C's `strtok` does.
//!
//! Until 2.23 there are no sections and a name that NCCL does not know is passed over in
//! silence; since 2.24 it fails the start of the communicator. An empty value leaves no name
//! until 2.23, and all since.
//!
//! Source: `parseList` in NCCL's `src/graph/tuning.cc`.

use std::marker::PhantomData;

use thiserror::Error;

use super::rules::Rules;
use super::version::Version;
use crate::collective::{Algorithm, Collective, Protocol, nearest};

/// The collectives that NCCL's tables know, in its order and spelling.
pub const FUNCTIONS: [(&str, Collective); 5] = [
    ("Broadcast", Collective::Broadcast),
    ("Reduce", Collective::Reduce),
    ("AllGather", Collective::AllGather),
    ("ReduceScatter", Collective::ReduceScatter),
    ("AllReduce", Collective::AllReduce),
];

/// The algorithms of NCCL, in its order.
pub const ALGORITHMS: [Algorithm; 7] = [
    Algorithm::Tree,
    Algorithm::Ring,
    Algorithm::CollnetDirect,
    Algorithm::CollnetChain,
    Algorithm::Nvls,
    Algorithm::NvlsTree,
    Algorithm::Pat,
];

/// Longest text that is looked at; settings that people use are far shorter.
const TEXT_MAX: usize = 4096;

/// The place of a collective in NCCL's tables; `None` for send and receive.
pub(super) fn function_index(collective: Collective) -> Option<usize> {
    FUNCTIONS.iter().position(|&(_, known)| known == collective)
}

/// What a list can name.
pub trait Listed: Copy + PartialEq + 'static {
    /// The kind of name, with its article.
    const WHAT: &'static str;
    /// All names in NCCL's order, at most 8.
    const NAMES: &'static [(&'static str, Self)];

    /// Its name, where NCCL has it.
    fn spelling(self) -> Option<&'static str> {
        Self::NAMES.iter().find(|(_, named)| *named == self).map(|(name, _)| *name)
    }
}

impl Listed for Algorithm {
    const WHAT: &'static str = "an algorithm";
    const NAMES: &'static [(&'static str, Self)] = &[
        ("Tree", Self::Tree),
        ("Ring", Self::Ring),
        ("CollNetDirect", Self::CollnetDirect),
        ("CollNetChain", Self::CollnetChain),
        ("NVLS", Self::Nvls),
        ("NVLSTree", Self::NvlsTree),
        ("PAT", Self::Pat),
    ];
}

impl Listed for Protocol {
    const WHAT: &'static str = "a protocol";
    const NAMES: &'static [(&'static str, Self)] =
        &[("LL", Self::Ll), ("LL128", Self::Ll128), ("Simple", Self::Simple)];
}

/// Why NCCL refuses a `NCCL_ALGO` or `NCCL_PROTO`.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum SelectionError {
    /// A section after the first without its collective.
    #[error("`{0}` names no collective; only the first section may leave out `func:`")]
    MissingFunction(String),
    /// A name that NCCL does not have.
    #[error(
        "`{given}` is not {what} of NCCL{}; known: {known}",
        suggestion.map(|s| format!(", did you mean `{s}`?")).unwrap_or_default()
    )]
    Unknown {
        /// What kind of name was expected.
        what: &'static str,
        /// What was written.
        given: String,
        /// The nearest known one.
        suggestion: Option<&'static str>,
        /// All known ones.
        known: String,
    },
    /// Too long to be meant.
    #[error("the setting has {0} bytes; expected at most {TEXT_MAX}")]
    TooLong(usize),
}

fn unknown(what: &'static str, given: &str, names: impl Iterator<Item = &'static str> + Clone) -> SelectionError {
    SelectionError::Unknown {
        what,
        given: given.chars().take(80).collect(),
        suggestion: nearest(given, names.clone()),
        known: names.collect::<Vec<_>>().join(" "),
    }
}

/// The names that each collective is left; collectives without a section are free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Selection<T> {
    /// `[function]`: a bit for each name that is allowed.
    masks: [Option<u8>; FUNCTIONS.len()],
    names: PhantomData<T>,
}

impl<T> Default for Selection<T> {
    fn default() -> Self {
        Self { masks: [None; FUNCTIONS.len()], names: PhantomData }
    }
}

impl<T: Listed> Selection<T> {
    /// Reads a list as a version of NCCL does; also gives the names that it passes over.
    ///
    /// # Errors
    /// Since 2.24 what NCCL refuses.
    ///
    /// ```
    /// use collcast_sim::collective::{Algorithm, Collective};
    /// use collcast_sim::nccl::{Selection, Version};
    /// let (algo, _) = Selection::<Algorithm>::parse("ring,tree;allreduce:nvls", Version::NEWEST)?;
    /// assert_eq!(algo.forced(Collective::AllReduce), Some(Algorithm::Nvls));
    /// assert_eq!(algo.allows(Collective::Broadcast, Algorithm::Tree), Some(true));
    /// # Ok::<(), collcast_sim::nccl::SelectionError>(())
    /// ```
    pub fn parse(text: &str, version: Version) -> Result<(Self, Vec<String>), SelectionError> {
        if text.len() > TEXT_MAX {
            return Err(SelectionError::TooLong(text.len()));
        }
        let strict = Rules::of(version).strict_lists;
        let mut selection = Self::default();
        let mut passed_over = Vec::new();
        let sections: Vec<&str> = if strict { tokens(text, ';').collect() } else { vec![text] };
        for (index, section) in sections.into_iter().enumerate() {
            let mut parts = tokens(section, ':');
            let (function, list) = match (parts.next(), parts.next()) {
                (Some(function), Some(list)) if strict => (Some(function), list),
                _ if index > 0 => return Err(SelectionError::MissingFunction(section.to_owned())),
                (Some(list), _) if strict => (None, list),
                _ => (None, section),
            };
            let functions = match function {
                None => 0..FUNCTIONS.len(),
                Some(name) => {
                    let at = FUNCTIONS.iter().position(|(known, _)| known.eq_ignore_ascii_case(name));
                    let at = at.ok_or_else(|| unknown("a collective", name, FUNCTIONS.iter().map(|f| f.0)))?;
                    at..at + 1
                }
            };
            let (excluded, list) = match list.strip_prefix('^') {
                Some(rest) => (true, rest),
                None => (false, list),
            };
            let mut named = 0;
            for name in tokens(list, ',') {
                match T::NAMES.iter().position(|(known, _)| known.eq_ignore_ascii_case(name)) {
                    Some(bit) => named |= 1 << bit,
                    None if strict => return Err(unknown(T::WHAT, name, T::NAMES.iter().map(|n| n.0))),
                    None => passed_over.push(name.to_owned()),
                }
            }
            let all = u8::MAX >> (8 - T::NAMES.len());
            selection.masks[functions].fill(Some(if excluded { all & !named } else { named }));
        }
        Ok((selection, passed_over))
    }

    /// One name for every collective.
    pub fn only(name: T) -> Self {
        let bit = T::NAMES.iter().position(|&(_, known)| known == name);
        Self { masks: [bit.map(|bit| 1 << bit); FUNCTIONS.len()], names: PhantomData }
    }

    /// Whether `collective` may use `name`; `None` where the setting does not say.
    pub fn allows(&self, collective: Collective, name: T) -> Option<bool> {
        let mask = self.masks[function_index(collective)?]?;
        Some(T::NAMES.iter().enumerate().any(|(bit, &(_, known))| known == name && mask & (1 << bit) != 0))
    }

    /// Whether the setting says anything of `collective`.
    pub fn says(&self, collective: Collective) -> bool {
        function_index(collective).is_some_and(|index| self.masks[index].is_some())
    }

    /// The one name that `collective` is left, if it is exactly one.
    pub fn forced(&self, collective: Collective) -> Option<T> {
        let mask = self.masks[function_index(collective)?]?;
        (mask.count_ones() == 1).then(|| T::NAMES[mask.trailing_zeros() as usize].1)
    }

    /// The one name that every collective is left, if it is the same for all.
    pub fn forced_everywhere(&self) -> Option<T> {
        let first = self.masks[0];
        (self.masks.iter().all(|&mask| mask == first)).then(|| self.forced(FUNCTIONS[0].1)).flatten()
    }

    /// Whether it leaves everything to NCCL.
    pub fn is_free(&self) -> bool {
        self.masks.iter().all(Option::is_none)
    }
}

/// Parts between separators, without the empty ones.
fn tokens(text: &str, separator: char) -> impl Iterator<Item = &str> {
    text.split(separator).filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OLD: Version = Version::new(2, 23, 4);

    fn algorithms(text: &str) -> Selection<Algorithm> {
        Selection::parse(text, Version::NEWEST).unwrap().0
    }

    /// Goal: the examples of NCCL's documentation mean what NCCL makes of them.
    #[test]
    fn sections_lists_and_exclusions_are_read_as_nccl_does() {
        let ring = algorithms("Ring");
        assert_eq!(ring.forced(Collective::Broadcast), Some(Algorithm::Ring));
        assert_eq!(ring.forced_everywhere(), Some(Algorithm::Ring));
        assert_eq!(ring.allows(Collective::AllReduce, Algorithm::Tree), Some(false));
        assert!(!ring.says(Collective::SendRecv));

        let mixed = algorithms("ring,tree;allreduce:tree,NVLS");
        assert_eq!((mixed.forced(Collective::AllReduce), mixed.forced_everywhere()), (None, None));
        assert_eq!(mixed.allows(Collective::AllReduce, Algorithm::Nvls), Some(true));
        assert_eq!(mixed.allows(Collective::AllReduce, Algorithm::Ring), Some(false));
        assert_eq!(mixed.allows(Collective::Reduce, Algorithm::Ring), Some(true));

        let protocols = Selection::<Protocol>::parse("^LL128;allreduce:LL128", Version::NEWEST).unwrap().0;
        assert_eq!(protocols.forced(Collective::AllReduce), Some(Protocol::Ll128));
        assert_eq!(protocols.forced(Collective::Broadcast), None);
        assert_eq!(protocols.allows(Collective::Broadcast, Protocol::Ll128), Some(false));
        assert_eq!(protocols.allows(Collective::Broadcast, Protocol::Ll), Some(true));

        let pat = algorithms("allgather:pat;reducescatter:pat");
        assert_eq!(pat.forced(Collective::AllGather), Some(Algorithm::Pat));
        assert!(!pat.says(Collective::AllReduce));
        assert!(!pat.is_free());

        // strtok passes over what is empty; `^` alone forbids nothing.
        assert_eq!(algorithms("ring,,tree;;allreduce:ring"), algorithms("ring,tree;allreduce:ring"));
        assert!(algorithms("").is_free());
        assert_eq!(algorithms("^").allows(Collective::AllReduce, Algorithm::Pat), Some(true));
    }

    /// Goal: what NCCL refuses since 2.24 is refused; what it passed over before is passed over.
    #[test]
    fn what_a_version_refuses_is_refused() {
        for (text, part) in [
            ("ring;tree", "only the first section"),
            ("ring;alreduce:tree", "did you mean `AllReduce`"),
            ("rong", "did you mean `Ring`"),
            ("direct", "not an algorithm of NCCL"),
            ("ring, tree", "` tree` is not an algorithm"),
            ("collnet_direct", "did you mean `CollNetDirect`"),
            ("ring;allreduce:", "only the first section"),
        ] {
            let error = Selection::<Algorithm>::parse(text, Version::new(2, 24, 3)).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
            assert!(Selection::<Algorithm>::parse(text, OLD).is_ok(), "{text}");
        }
        // Set to nothing.
        let empty = |version| Selection::<Algorithm>::parse("", version).unwrap().0;
        assert_eq!(empty(OLD).allows(Collective::AllReduce, Algorithm::Nvls), Some(false));
        assert!(empty(Version::NEWEST).is_free());
        let (old, passed_over) = Selection::<Algorithm>::parse("allreduce:tree,ring,rong", OLD).unwrap();
        assert_eq!(old.forced_everywhere(), Some(Algorithm::Ring));
        assert_eq!(passed_over, ["allreduce:tree", "rong"]);
        assert!(Selection::<Algorithm>::parse(&"r".repeat(TEXT_MAX + 1), OLD).is_err());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[a-zA-Z0-9^,;: ]{0,80}|\\PC{0,80}") {
            for version in [OLD, Version::NEWEST] {
                let _ = Selection::<Algorithm>::parse(&text, version);
                let _ = Selection::<Protocol>::parse(&text, version);
            }
        }
    }
}

//! NCCL versions, in order.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A version of NCCL.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Version {
    /// 2 so far.
    pub major: u16,
    /// The release: 28 of 2.28.9.
    pub minor: u16,
    /// The patch: 9 of 2.28.9.
    pub patch: u16,
}

/// What is not a version.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[error("`{0}` is not a version of NCCL; expected such as 2.28.9 or 2.28")]
pub struct NotAVersion(String);

/// A version that cannot be asked for.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum NotKnown {
    /// It is none.
    #[error(transparent)]
    NotAVersion(#[from] NotAVersion),
    /// Rules that nobody here has read.
    #[error("the rules of NCCL {0} are not known here")]
    Rules(Version),
}

impl Version {
    /// The first whose constants are known here.
    pub const OLDEST: Self = Self::new(2, 8, 0);
    /// The last whose constants are known here.
    pub const NEWEST: Self = Self::new(2, 30, 7);

    /// Those whose cost model (`src/graph/tuning.cc`) was read, in order; that of 2.28.9 was checked against its log, cell by
    /// cell. Others have rules between those of their neighbours here.
    pub const READ: [Self; 14] = [
        Self::new(2, 8, 4),
        Self::new(2, 17, 1),
        Self::new(2, 18, 1),
        Self::new(2, 18, 3),
        Self::new(2, 20, 3),
        Self::new(2, 20, 5),
        Self::new(2, 21, 5),
        Self::new(2, 22, 3),
        Self::new(2, 23, 4),
        Self::new(2, 25, 1),
        Self::new(2, 26, 2),
        Self::new(2, 28, 3),
        Self::new(2, 28, 9),
        Self::NEWEST,
    ];

    /// The first that the rules of the oldest known one stand in for: LL128 and the choice among algorithms.
    const OLDEST_ASKED: Self = Self::new(2, 5, 0);

    /// A version that a user asks for: any patch of a known release, and what the oldest rules stand in for.
    ///
    /// # Errors
    /// Text that is no version, a later release than is known, one before 2.5.
    pub fn asked(text: &str) -> Result<Self, NotKnown> {
        let version: Self = text.parse()?;
        let next = Self::new(Self::NEWEST.major, Self::NEWEST.minor + 1, 0);
        match (Self::OLDEST_ASKED..next).contains(&version) {
            true => Ok(version),
            false => Err(NotKnown::Rules(version)),
        }
    }

    /// Which versions can be [asked](Self::asked) for.
    pub fn known() -> String {
        let (oldest, newest, asked) = (Self::OLDEST, Self::NEWEST, Self::OLDEST_ASKED);
        format!("known: {oldest} to {newest} and its patches; from {asked} on the rules of {oldest} stand in")
    }

    /// `major.minor.patch`.
    pub const fn new(major: u16, minor: u16, patch: u16) -> Self {
        Self { major, minor, patch }
    }

    /// Whether it is the first patch of `2.minor` or later.
    pub fn since(self, minor: u16) -> bool {
        self >= Self::new(2, minor, 0)
    }

    /// The version whose rules are used for this one.
    pub fn nearest(self) -> Self {
        self.clamp(Self::OLDEST, Self::NEWEST)
    }

    /// The same, and what to say where it is another, or one that was not read.
    pub fn covered(self) -> (Self, Option<String>) {
        let nearest = self.nearest();
        // A later patch of the newest release is that release.
        if Self::READ.contains(&self) || (nearest < self && self.minor == nearest.minor) {
            return (nearest, None);
        }
        let note = if nearest == self {
            let before = Self::READ.iter().rfind(|read| **read < self).map(|read| format!("{read} and "));
            let after = Self::READ.iter().find(|read| **read > self).unwrap_or(&Self::NEWEST);
            let before = before.unwrap_or_default();
            format!("NCCL {self}: its source was not read; its rules are taken from {before}{after}")
        } else {
            let side = if self > nearest { "newer" } else { "older" };
            format!("NCCL {self} is {side} than what is known here; the rules of {nearest} are used")
        };
        (nearest, Some(note))
    }
}

impl Default for Version {
    fn default() -> Self {
        Self::NEWEST
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl FromStr for Version {
    type Err = NotAVersion;

    /// `2.28.9`, `2.28` (its first patch) or `v2.28.9-1+cuda13.0`.
    fn from_str(text: &str) -> Result<Self, NotAVersion> {
        let bad = || NotAVersion(text.chars().take(40).collect());
        let plain = text.trim().trim_start_matches('v');
        let plain = plain.split(['-', '+']).next().unwrap_or_default();
        let parts: Vec<u16> = plain.split('.').map(|part| part.parse().map_err(|_| bad())).collect::<Result<_, _>>()?;
        match parts.as_slice() {
            [major, minor] if *major >= 2 => Ok(Self::new(*major, *minor, 0)),
            [major, minor, patch] if *major >= 2 => Ok(Self::new(*major, *minor, *patch)),
            _ => Err(bad()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: versions order by number, not by text, and unknown ones say which rules stand in.
    #[test]
    fn versions_order_and_clamp() {
        let version = |text: &str| text.parse::<Version>().unwrap();
        assert!(version("2.9.6") < version("2.18.1"));
        assert_eq!(version("v2.28.9-1+cuda13.0"), Version::new(2, 28, 9));
        assert_eq!(version("2.18.3").covered(), (Version::new(2, 18, 3), None));
        for (text, read) in [
            ("2.8", "taken from 2.8.4"),
            ("2.19.3", "taken from 2.18.3 and 2.20.3"),
            ("2.30.3", "taken from 2.28.9 and 2.30.7"),
        ] {
            let (used, note) = version(text).covered();
            assert_eq!(used, version(text));
            assert!(note.is_some_and(|note| note.contains(read)), "{text}");
        }
        assert!(Version::READ.is_sorted());
        assert_eq!(version("2.30.9").covered(), (Version::NEWEST, None));
        let (used, note) = version("2.31.1").covered();
        assert_eq!(used, Version::NEWEST);
        assert!(note.unwrap().contains("newer"));
        for (text, known) in
            [("2.30.9", true), ("2.5", true), ("2.31", false), ("2.99.0", false), ("3.0", false), ("2.4.8", false)]
        {
            assert_eq!(Version::asked(text).is_ok(), known, "{text}");
        }
        assert!(version("2.7.8").covered().1.unwrap().contains("older"));
        for text in ["", "2", "two", "2.28.9.1", "1.3.4", "2.-1", "2.99999.1"] {
            assert!(text.parse::<Version>().is_err(), "{text}");
        }
    }
}

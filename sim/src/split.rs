//! Which communicators ranks are split into, as nccl-tests' `NCCL_TESTS_SPLIT` says it.

use std::str::FromStr;

use rustc_hash::FxHashMap;
use thiserror::Error;

use crate::ids::Rank;

/// Splits ranks into groups of one colour, all of which do a call at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Split {
    operator: Operator,
    number: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operator {
    And,
    Or,
    Mod,
    Div,
}

/// A split that is none.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[error("`{0}` is not a split; expected %N or MOD N (every N-th rank), /N or DIV N (N in a row), &N, |N")]
pub struct SplitError(String);

impl FromStr for Split {
    type Err = SplitError;

    fn from_str(text: &str) -> Result<Self, SplitError> {
        let error = || SplitError(text.to_owned());
        let upper = text.trim().to_uppercase();
        let names = [("AND", Operator::And), ("OR", Operator::Or), ("MOD", Operator::Mod), ("DIV", Operator::Div)];
        let signs = [("&", Operator::And), ("|", Operator::Or), ("%", Operator::Mod), ("/", Operator::Div)];
        let (operator, rest) = (names.into_iter().chain(signs))
            .find_map(|(name, operator)| upper.strip_prefix(name).map(|rest| (operator, rest.trim())))
            .ok_or_else(error)?;
        let number = match rest.strip_prefix("0X") {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => rest.parse().ok(),
        };
        let number = number.filter(|&n| n > 0 || matches!(operator, Operator::And | Operator::Or));
        Ok(Self { operator, number: number.ok_or_else(error)? })
    }
}

impl Split {
    /// Whether so many ranks can be cut by its number; masks fit any.
    pub fn fits(self, ranks: u32) -> bool {
        self.number <= ranks || matches!(self.operator, Operator::And | Operator::Or)
    }

    /// The groups in the order of their first ranks.
    pub fn groups(self, ranks: u32) -> Vec<Vec<Rank>> {
        let colour = |rank: u32| match self.operator {
            Operator::And => rank & self.number,
            Operator::Or => rank | self.number,
            Operator::Mod => rank % self.number,
            Operator::Div => rank / self.number,
        };
        let mut groups: Vec<Vec<Rank>> = Vec::new();
        let mut places = FxHashMap::default();
        for rank in 0..ranks {
            let place = *places.entry(colour(rank)).or_insert(groups.len());
            if place == groups.len() {
                groups.push(Vec::new());
            }
            groups[place].push(Rank(rank));
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each form gives the groups that nccl-tests makes of it.
    #[test]
    fn ranks_are_split_as_nccl_tests_does() {
        let groups = |text: &str| -> Vec<Vec<u32>> {
            let split: Split = text.parse().unwrap();
            split.groups(6).iter().map(|g| g.iter().map(|r| r.0).collect()).collect()
        };
        assert_eq!(groups("%2"), [[0, 2, 4], [1, 3, 5]]);
        assert_eq!(groups("DIV 3"), [[0, 1, 2], [3, 4, 5]]);
        assert_eq!(groups("AND 0x1"), groups("mod 2"));
        assert_eq!(groups("|3"), [vec![0, 1, 2, 3], vec![4, 5]]);
        for bad in ["", "8", "%0", "/", "MOD x"] {
            assert!(bad.parse::<Split>().unwrap_err().to_string().contains("not a split"), "{bad}");
        }
    }
}

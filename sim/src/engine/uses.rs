//! What a slice takes on its way through a connection.

use smallvec::SmallVec;

use super::flows::Use;

/// A section of a slice's way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Section {
    /// What the sender's lane writes through before a proxy takes over.
    Store,
    /// What a proxy's work on a slice takes.
    Posting,
    /// The transfer.
    Transfer,
    /// What the work of the receiver's proxy on a slice takes.
    Taking,
    /// What the receiver's lane reads through.
    Load,
}

impl Section {
    const ALL: [Self; 5] = [Self::Store, Self::Posting, Self::Transfer, Self::Taking, Self::Load];
}

/// Resources with weights, by [`Section`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Uses {
    /// Those of all sections, one section after the other: most connections have a handful in all.
    all: SmallVec<[Use; 4]>,
    /// Where each section ends.
    ends: [u16; 5],
}

impl Uses {
    /// Adds one to a section.
    pub fn push(&mut self, section: Section, used: Use) {
        self.all.insert(self.ends[section as usize].into(), used);
        self.ends[section as usize..].iter_mut().for_each(|end| *end += 1);
    }

    /// Those of a section.
    pub fn of(&self, section: Section) -> &[Use] {
        let from = (section as usize).checked_sub(1).map_or(0, |before| self.ends[before]);
        self.all.get(from.into()..self.ends[section as usize].into()).unwrap_or_default()
    }

    /// All, each with its section.
    pub fn iter(&self) -> impl Iterator<Item = (Section, Use)> + '_ {
        let mut section = 0;
        self.all.iter().enumerate().map(move |(at, &used)| {
            while usize::from(self.ends[section]) <= at {
                section += 1;
            }
            (Section::ALL[section], used)
        })
    }

    /// The same resources by other numbers.
    pub fn renumber(&mut self, number: impl Fn(u32) -> u32) {
        self.all.iter_mut().for_each(|used| used.0 = number(used.0));
    }

    /// Gives back the room that is left over.
    pub fn shrink_to_fit(&mut self) {
        self.all.shrink_to_fit();
    }
}

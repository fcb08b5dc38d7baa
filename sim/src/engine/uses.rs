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
    /// Where each section ends. A switch that reduces for 20,000 hosts takes more of them than 16 bits count.
    ends: [u32; 5],
}

impl Uses {
    /// Adds one to a section.
    pub fn push(&mut self, section: Section, used: Use) {
        self.all.insert(self.ends[section as usize] as usize, used);
        self.ends[section as usize..].iter_mut().for_each(|end| *end += 1);
    }

    /// Those of a section.
    pub fn of(&self, section: Section) -> &[Use] {
        let from = (section as usize).checked_sub(1).map_or(0, |before| self.ends[before]);
        self.all.get(from as usize..self.ends[section as usize] as usize).unwrap_or_default()
    }

    /// All, each with its section.
    pub fn iter(&self) -> impl Iterator<Item = (Section, Use)> + '_ {
        let mut section = 0;
        self.all.iter().enumerate().map(move |(at, &used)| {
            while self.ends[section] as usize <= at {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: switches join any number of links.
    #[test]
    fn sections_hold_more_than_16_bits_count() {
        let (mut uses, links) = (Uses::default(), 70_000);
        (0..links).for_each(|link| uses.push(Section::Transfer, (link, 1)));
        uses.push(Section::Posting, (links, 2));
        assert_eq!((uses.of(Section::Transfer).len(), uses.of(Section::Posting)), (links as usize, &[(links, 2)][..]));
        assert_eq!(uses.iter().last(), Some((Section::Transfer, (links - 1, 1))));
    }
}

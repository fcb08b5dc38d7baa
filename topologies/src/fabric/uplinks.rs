//! Cables above the leaves that are slow or down.

use std::collections::{BTreeMap, BTreeSet};

use collcast_sim::units::Bandwidth;

use crate::exception::{Deviation, Exception};

/// What an exception met when the network was drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Met {
    /// An uplink.
    Yes,
    /// No switch of its name, or one with none above it.
    NoSwitch,
    /// A switch with so many uplinks, which are too few.
    NoUplink(u32),
    /// An uplink of a lower rate.
    Faster(Bandwidth),
    /// A switch that is left without uplinks.
    AllDown,
}

/// The exceptions about uplinks, and what became of each.
#[derive(Debug)]
pub struct Uplinks<'e> {
    of: BTreeMap<&'e str, Vec<usize>>,
    met: Vec<(&'e Exception, Met)>,
    /// Names of switches that have uplinks; the first of very many.
    switches: BTreeSet<String>,
}

/// Names that are compared with one that is not there.
const COMPARED: usize = 1000;

impl<'e> Uplinks<'e> {
    /// None of them met yet.
    pub fn new(exceptions: &[&'e Exception]) -> Self {
        let mut of: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (index, exception) in exceptions.iter().enumerate() {
            of.entry(&exception.name).or_default().push(index);
        }
        Self { of, met: exceptions.iter().map(|&e| (e, Met::NoSwitch)).collect(), switches: BTreeSet::new() }
    }

    /// Each exception, and what it met.
    pub fn met(&self) -> impl Iterator<Item = (&'e Exception, Met)> {
        self.met.iter().copied()
    }

    /// Switches that have uplinks.
    pub fn switches(&self) -> impl Iterator<Item = &str> {
        self.switches.iter().map(String::as_str)
    }

    /// The rate of each of `count` cables from a switch to those above it, `None` where it is down.
    pub(super) fn cables(&mut self, switch: &str, rate: Bandwidth, count: u32) -> Vec<Option<Bandwidth>> {
        let mut cables = vec![Some(rate); count as usize];
        if self.of.is_empty() {
            return cables;
        }
        if self.switches.len() < COMPARED {
            self.switches.insert(switch.to_owned());
        }
        for &index in self.of.get(switch).into_iter().flatten() {
            let (exception, met) = &mut self.met[index];
            let meant = match exception.port {
                Some(port) => cables.get_mut(port as usize..=port as usize),
                None => Some(&mut cables[..]),
            };
            *met = match (meant, exception.deviation) {
                (None, _) => Met::NoUplink(count),
                (Some(_), Deviation::Rate(slow)) if slow > rate => Met::Faster(rate),
                (Some(meant), Deviation::Rate(slow)) => {
                    meant.fill(Some(slow));
                    Met::Yes
                }
                (Some(meant), Deviation::Down) => {
                    meant.fill(None);
                    Met::Yes
                }
            };
            if cables.iter().all(Option::is_none) {
                self.met[index].1 = Met::AllDown;
            }
        }
        cables
    }

    /// The same as one bundle: the rate of all cables that are up, and their number; `None` where none is.
    pub(super) fn bundle(&mut self, switch: &str, rate: Bandwidth, count: u32) -> Option<(Bandwidth, u32)> {
        let up: Vec<u64> = self.cables(switch, rate, count).into_iter().flatten().map(Bandwidth::get).collect();
        let all = Bandwidth::new(up.iter().fold(0, |sum, &rate| sum.saturating_add(rate)))?;
        Some((all, u32::try_from(up.len()).unwrap_or(u32::MAX)))
    }
}

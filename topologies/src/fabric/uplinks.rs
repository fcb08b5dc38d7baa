//! Cables above the leaves that are slow or down, and switches that are down.

use std::collections::{BTreeMap, BTreeSet};

use collcast_sim::units::Bandwidth;

use crate::exception::{Deviation, Exception};

/// What an exception met when the network was drawn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Met {
    /// An uplink, or a switch.
    Yes,
    /// No switch of its name, or one with none above it.
    NoSwitch,
    /// A switch with so many uplinks, which are too few.
    NoUplink(u32),
    /// An uplink of a lower rate.
    Faster(Bandwidth),
    /// A switch of this name is left without uplinks.
    AllDown(String),
    /// A switch that is down, and was the last way to these hosts.
    CutsOff(Vec<String>),
}

/// The spines above some leaves, to which cables are dealt in turn: their common name, and how many there are.
#[derive(Clone, Copy)]
pub(super) struct Spines<'n> {
    pub name: &'n str,
    pub count: u32,
}

impl Spines<'_> {
    /// The name of one of them.
    fn named(&self, place: u32) -> String {
        format!("{}{place}", self.name)
    }

    /// Which of them has a name.
    fn place(&self, name: &str) -> Option<u32> {
        let place = name.strip_prefix(self.name)?.parse().ok()?;
        (place < self.count && self.named(place) == name).then_some(place)
    }
}

/// The exceptions about switches, and what became of each.
#[derive(Debug)]
pub struct Uplinks<'e> {
    of: BTreeMap<&'e str, Vec<usize>>,
    met: Vec<(&'e Exception, Met)>,
    /// Names of switches that may have exceptions; the first of very many.
    switches: BTreeSet<String>,
    /// Hosts with a NIC in a switch that works.
    reached: BTreeSet<String>,
    /// Hosts with a NIC in a switch that is down, and the exception that says so.
    lost: Vec<(usize, String)>,
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
        let met = exceptions.iter().map(|&e| (e, Met::NoSwitch)).collect();
        Self { of, met, switches: BTreeSet::new(), reached: BTreeSet::new(), lost: Vec::new() }
    }

    /// Each exception, and what it met.
    pub fn met(&self) -> impl Iterator<Item = (&'e Exception, Met)> {
        let mut cut: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
        for (index, host) in self.lost.iter().filter(|(_, host)| !self.reached.contains(host)) {
            cut.entry(*index).or_default().insert(host.clone());
        }
        self.met.iter().enumerate().map(move |(index, (exception, met))| match cut.remove(&index) {
            Some(hosts) => (*exception, Met::CutsOff(hosts.into_iter().collect())),
            None => (*exception, met.clone()),
        })
    }

    /// Switches that may have exceptions.
    pub fn switches(&self) -> impl Iterator<Item = &str> {
        self.switches.iter().map(String::as_str)
    }

    /// The exception by which the whole switch is down, itself or by one above it.
    pub(super) fn down(&mut self, switch: &str, above: Option<usize>) -> Option<usize> {
        self.know(switch);
        let Some(of) = self.of.get(switch) else { return above };
        let own = of.iter().copied().find(|&index| self.met[index].0.is_whole());
        let down = own.or(above)?;
        of.iter().for_each(|&index| self.met[index].1 = Met::Yes);
        Some(down)
    }

    /// Whether a NIC of the host works in a switch which is down by that exception, if by any.
    pub(super) fn plug(&mut self, host: &str, down: Option<usize>) -> bool {
        match down {
            _ if self.of.is_empty() => {}
            Some(index) => self.lost.push((index, host.to_owned())),
            None => drop(self.reached.insert(host.to_owned())),
        }
        down.is_none()
    }

    /// The rate of each of `count` cables from a switch to those above it, `None` where it is down.
    pub(super) fn cables(
        &mut self,
        switch: &str,
        above: Option<Spines<'_>>,
        rate: Bandwidth,
        count: u32,
    ) -> Vec<Option<Bandwidth>> {
        let mut cables = vec![Some(rate); count as usize];
        if self.of.is_empty() {
            return cables;
        }
        self.know(switch);
        let own = self.of.get(switch).into_iter().flatten().map(|&index| (index, None));
        let of_spines = above.iter().flat_map(|spines| {
            let placed = self.of.iter().filter_map(|(name, of)| Some((spines.place(name)?, of)));
            placed.flat_map(move |(place, of)| of.iter().map(move |&index| (index, Some((place, spines.count)))))
        });
        for (index, spine) in own.chain(of_spines) {
            let (exception, met) = &mut self.met[index];
            let (meant, step) = match (spine, exception.port) {
                (None, None) => (0..count, 1),
                (None, Some(port)) if port < count => (port..port + 1, 1),
                (Some((place, spines)), None) => (place..count, spines),
                (None, Some(_)) => {
                    *met = Met::NoUplink(count);
                    continue;
                }
                (Some(_), Some(_)) => {
                    *met = Met::NoUplink(0);
                    continue;
                }
            };
            let is = match exception.deviation {
                Deviation::Rate(slow) if slow > rate => {
                    *met = Met::Faster(rate);
                    continue;
                }
                Deviation::Rate(slow) => Some(slow),
                Deviation::Down => None,
            };
            meant.step_by(step as usize).for_each(|cable| cables[cable as usize] = is);
            // Of several leaves below a spine, the first that is cut off tells.
            if cables.iter().all(Option::is_none) {
                *met = Met::AllDown(switch.to_owned());
            } else if *met == Met::NoSwitch {
                *met = Met::Yes;
            }
        }
        if let Some(spines) = above
            && !self.switches.contains(&spines.named(0))
        {
            (0..spines.count).take(COMPARED).for_each(|place| self.know(&spines.named(place)));
        }
        cables
    }

    /// The same as one bundle: the rate of all cables that are up, and their number; `None` where none is.
    pub(super) fn bundle(
        &mut self,
        switch: &str,
        above: Option<Spines<'_>>,
        rate: Bandwidth,
        count: u32,
    ) -> Option<(Bandwidth, u32)> {
        let up: Vec<u64> = self.cables(switch, above, rate, count).into_iter().flatten().map(Bandwidth::get).collect();
        let all = Bandwidth::new(up.iter().fold(0, |sum, &rate| sum.saturating_add(rate)))?;
        Some((all, u32::try_from(up.len()).unwrap_or(u32::MAX)))
    }

    /// How many of these spines are not down.
    pub(super) fn working(&self, spines: Spines<'_>) -> u32 {
        let dead = |of: &[usize]| of.iter().any(|&index| self.met[index].0.is_whole());
        let down: BTreeSet<u32> =
            self.of.iter().filter(|(_, of)| dead(of)).filter_map(|(name, _)| spines.place(name)).collect();
        spines.count.saturating_sub(u32::try_from(down.len()).unwrap_or(u32::MAX))
    }

    /// A switch has this name.
    fn know(&mut self, switch: &str) {
        if !self.of.is_empty() && self.switches.len() < COMPARED {
            self.switches.insert(switch.to_owned());
        }
    }
}

//! A network as it is listed: switches by name, with the hosts or the switches below each.
//!
//! Parallel switches of one layer are one entry, since packets of an adaptive or spraying network use all of them. So
//! every folded Clos is a tree, with the cables of a layer as its widths.

use std::collections::HashMap;

use collcast_sim::units::Bandwidth;

use crate::error::{Diagnostic, Location, TopologiesError, quote};

/// Hosts that plug into a switch alike.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ports {
    /// The hosts.
    pub hosts: Vec<String>,
    /// Which of their NICs, from 0, management ones not counted; all where absent.
    pub nics: Option<Vec<u32>>,
}

impl Ports {
    /// All NICs of some hosts.
    pub fn all(hosts: Vec<String>) -> Vec<Self> {
        vec![Self { hosts, nics: None }]
    }
}

/// A switch, or several that work as one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TreeSwitch {
    /// Name.
    pub name: String,
    /// Hosts that plug in; empty for a switch above others.
    pub ports: Vec<Ports>,
    /// Names of the switches below.
    pub switches: Vec<String>,
    /// Rate of a port, one direction; that of the fastest NIC below where absent.
    pub rate: Option<Bandwidth>,
    /// Cables to the switch above; as the over-subscription says where absent.
    pub uplinks: Option<u32>,
    /// Rate of one of these, one direction; that of a port where absent.
    pub uplink_rate: Option<Bandwidth>,
    /// Where the name was written.
    pub at: Option<Location>,
}

/// All switches of a network.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tree {
    /// In file order.
    pub switches: Vec<TreeSwitch>,
}

impl Tree {
    /// For each switch the one above it, by place.
    ///
    /// # Errors
    /// A name twice, an unknown switch below one, a switch below two, a loop; neither hosts nor switches, or both.
    pub fn parents(&self, file: &str) -> Result<Vec<Option<usize>>, TopologiesError> {
        let mut place: HashMap<&str, usize> = HashMap::new();
        for (index, switch) in self.switches.iter().enumerate() {
            if place.insert(&switch.name, index).is_some() {
                return Err(self.wrong(file, index, "is listed twice", "each switch has a name of its own"));
            }
            if switch.ports.is_empty() == switch.switches.is_empty() {
                let what =
                    if switch.ports.is_empty() { "has nothing below it" } else { "has hosts and switches below it" };
                return Err(self.wrong(file, index, what, "give `ports`, or `switches`"));
            }
        }
        let mut parents = vec![None; self.switches.len()];
        for (index, switch) in self.switches.iter().enumerate() {
            for name in &switch.switches {
                let Some(&below) = place.get(name.as_str()) else {
                    // Neither the switch itself nor another one that it names is meant.
                    let meant = |known: &&str| *known != switch.name && !switch.switches.iter().any(|own| own == known);
                    let near = collcast_sim::collective::nearest(name, place.keys().copied().filter(meant).take(1000));
                    let hint = near.map_or_else(|| "list it too".to_owned(), |near| format!("did you mean `{near}`?"));
                    return Err(self.wrong(
                        file,
                        index,
                        &format!("has `{}` below it, which is not listed", quote(name)),
                        &hint,
                    ));
                };
                if parents[below].replace(index).is_some_and(|other| other != index) {
                    let hint = "draw switches that work in parallel as one, with the sum of their uplinks";
                    return Err(self.wrong(file, below, "is below two switches", hint));
                }
            }
        }
        // A walk upwards that is longer than there are switches runs in a circle.
        let mut known = vec![false; parents.len()];
        for start in 0..parents.len() {
            let (mut at, mut way) = (Some(start), Vec::new());
            while let Some(index) = at.filter(|&index| !known[index]) {
                if way.len() > parents.len() {
                    return Err(self.wrong(file, start, "is below itself", "a network is a tree of switches"));
                }
                way.push(index);
                at = parents[index];
            }
            way.into_iter().for_each(|index| known[index] = true);
        }
        Ok(parents)
    }

    /// An error about a switch, at its name where a file has it.
    pub(super) fn wrong(&self, file: &str, index: usize, what: &str, hint: &str) -> TopologiesError {
        let switch = &self.switches[index];
        TopologiesError::Contradiction(Box::new(Diagnostic {
            message: format!("the switch `{}` {what}", quote(&switch.name)),
            file: file.to_owned(),
            label: String::new(),
            at: switch.at.clone(),
            hint: hint.to_owned(),
        }))
    }

    /// Switches with the leaves first, each before the one above it.
    pub(super) fn upwards(parents: &[Option<usize>]) -> Vec<usize> {
        let mut waits = vec![0_usize; parents.len()];
        parents.iter().flatten().for_each(|&parent| waits[parent] += 1);
        let mut order: Vec<usize> = (0..parents.len()).filter(|&index| waits[index] == 0).collect();
        let mut at = 0;
        while let Some(&index) = order.get(at) {
            at += 1;
            if let Some(parent) = parents[index] {
                waits[parent] -= 1;
                if waits[parent] == 0 {
                    order.push(parent);
                }
            }
        }
        order
    }
}

//! The communicators of a job: which ranks call together, and who calls at the same time on the same hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use collcast_sim::ids::{HostId, Rank};
use collcast_sim::nccl::Transport;
use collcast_sim::predict::PredictError;
use collcast_sim::topology::Topology;
use collcast_sim::workload::siblings;
use serde::Serialize;

use crate::error::Error;
use crate::site::Site;

/// What a tuner plugin knows of a communicator, with the name that the user gives it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Communicator {
    /// Its name, such as `tp`; none where all ranks are one communicator.
    pub name: Option<String>,
    /// Hosts, or NVLink domains where these are larger: what NCCL calls nodes.
    pub nodes: u32,
    /// Ranks.
    pub ranks: u32,
    /// The fewest and the most of them in one NVLink domain; NCCL says so from 2.28 on.
    pub a_domain: (u32, u32),
}

impl fmt::Display for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, nodes, ranks, .. } = self;
        let name = name.as_deref().unwrap_or("all");
        write!(f, "{name} ({ranks} ranks, {nodes} nodes)")
    }
}

/// Sizes of the communicators that each rank is in, the innermost first, as ranks are numbered: `tp=8,dp=64`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Communicators(Vec<(String, u32)>);

impl FromStr for Communicators {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let part = |part: &str| {
            let (name, ranks) =
                part.split_once('=').ok_or_else(|| format!("`{part}` is no NAME=RANKS, such as tp=8"))?;
            let named = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
            let ranks = ranks.parse().ok().filter(|ranks| *ranks > 0);
            let ranks = ranks.filter(|_| named).ok_or_else(|| format!("`{part}` is no NAME=RANKS, such as tp=8"))?;
            Ok((name.to_owned(), ranks))
        };
        let parts: Vec<(String, u32)> = text.split(',').map(|p| part(p.trim())).collect::<Result<_, String>>()?;
        if let Some((name, _)) =
            parts.iter().enumerate().find(|(at, p)| parts[..*at].iter().any(|q| q.0 == p.0)).map(|p| p.1)
        {
            return Err(format!("`{name}` is there twice"));
        }
        Ok(Self(parts))
    }
}

/// Which GPUs a communicator's ranks are on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spot {
    /// Ranks.
    pub ranks: u32,
    /// They are the first of the machine, one after another.
    pub first: bool,
    /// Places of their GPUs on their host, from 0; none where they are on several hosts.
    pub gpus: Option<Vec<u32>>,
}

impl Communicator {
    /// What NCCL tells a plugin of it.
    pub(super) fn shape(&self) -> (u32, u32, (u32, u32)) {
        (self.nodes, self.ranks, self.a_domain)
    }

    /// That another role has its shape.
    pub(super) fn stands_for(&self, role: &str) -> String {
        format!(
            "{role} has as many ranks and hosts as {self}, and NCCL's plugin tells them apart by nothing else: the latter's lines hold for both"
        )
    }
}

/// A machine as NCCL's settings make it: its nodes are fewer or more with them.
pub(super) struct Machine<'t> {
    pub(super) topology: &'t Topology,
    pub(super) transport: Transport,
}

impl<'t> Machine<'t> {
    pub(super) fn of(site: &'t Site) -> Self {
        Self { topology: &site.topology, transport: site.settings().transport }
    }
}

/// One communicator on a machine.
pub(super) struct Group {
    pub(super) communicator: Communicator,
    /// Its ranks, and those of its like that share a host with it, each in the order of the communicator. None where all
    /// ranks are one communicator.
    pub(super) together: Vec<Vec<Rank>>,
}

impl Group {
    /// All of the first ranks as one.
    pub(super) fn whole(on: &Machine<'_>, ranks: u32) -> Self {
        let first: Vec<Rank> = (0..ranks.min(on.topology.ranks())).map(Rank).collect();
        Self { communicator: communicator(None, on, &first, ranks), together: Vec::new() }
    }

    /// One with a name, beside others of the same role.
    pub(super) fn named<'g>(
        name: &str,
        on: &Machine<'_>,
        ranks: &[Rank],
        others: impl IntoIterator<Item = &'g [Rank]>,
    ) -> Self {
        let count = u32::try_from(ranks.len()).unwrap_or(u32::MAX);
        Self {
            communicator: communicator(Some(name.to_owned()), on, ranks, count),
            together: siblings(on.topology, ranks, others),
        }
    }

    /// The machine as its ranks see it; none where these are the first of the machine as it is.
    ///
    /// # Errors
    /// A rank that the machine has not.
    pub(super) fn view(&self, topology: &Topology) -> Result<Option<Topology>, PredictError> {
        let Some(ranks) = self.together.first() else { return Ok(None) };
        let gpus: Vec<_> = ranks.iter().map(|&rank| topology.gpu_of(rank)).collect();
        Ok(Some(topology.placed(&gpus)?))
    }

    /// Where its ranks are.
    pub(super) fn spot(&self, topology: &Topology) -> Spot {
        let ranks = self.communicator.ranks;
        let first = || (0..ranks.min(topology.ranks())).map(Rank).collect();
        let own: Vec<Rank> = self.together.first().cloned().unwrap_or_else(first);
        let place = |rank: &Rank| topology.gpu(topology.gpu_of(*rank)).map(|gpu| gpu.index);
        let hosts: BTreeSet<HostId> = own.iter().map(|&rank| topology.host_of(rank)).collect();
        let gpus = (hosts.len() == 1).then(|| own.iter().map(place).collect()).flatten();
        Spot { ranks, first: self.is_first(), gpus }
    }

    /// Whether it is the ranks that a run of nccl-tests has: the first, one after another.
    pub(super) fn is_first(&self) -> bool {
        self.together.first().is_none_or(|ranks| ranks.iter().zip(0..).all(|(rank, at)| rank.0 == at))
    }
}

fn communicator(name: Option<String>, on: &Machine<'_>, ranks: &[Rank], count: u32) -> Communicator {
    let mut domains: BTreeMap<u32, u32> = BTreeMap::new();
    for &rank in ranks {
        *domains.entry(on.transport.node_of(on.topology, rank)).or_default() += 1;
    }
    let of = |most: bool| if most { domains.values().max() } else { domains.values().min() };
    let a_domain = [false, true].map(|most| of(most).copied().unwrap_or_default());
    Communicator { name, nodes: domains.len() as u32, ranks: count, a_domain: a_domain.into() }
}

impl Communicators {
    /// The communicators on a machine, one of each role. Those of one rank make no call; of those that NCCL's plugin cannot
    /// tell apart, by hosts and ranks, the first stands for all, as the note says.
    ///
    /// # Errors
    /// More ranks than the machine has.
    pub(super) fn on(&self, machine: &Machine<'_>) -> Result<(Vec<Group>, Vec<String>), Error> {
        let topology = machine.topology;
        let ranks =
            self.0.iter().try_fold(1_u32, |product, (_, ranks)| product.checked_mul(*ranks)).unwrap_or(u32::MAX);
        if ranks > topology.ranks() {
            let (gpus, topology) = (topology.ranks(), topology.name.clone());
            return Err(PredictError::TooFewGpus { ranks, topology, gpus }.into());
        }
        let (mut groups, mut notes) = (Vec::<Group>::new(), Vec::new());
        let mut stride = 1;
        for (name, size) in self.0.iter().filter(|(_, size)| *size > 1) {
            // Ranks that differ in this role alone.
            let of = |first: u32| -> Vec<Rank> { (0..*size).map(|at| Rank(first + at * stride)).collect() };
            let firsts = (1..ranks).filter(|rank| rank / stride % size == 0);
            let others: Vec<Vec<Rank>> = firsts.map(of).collect();
            let group = Group::named(name, machine, &of(0), others.iter().map(Vec::as_slice));
            stride *= size;
            let shape = |group: &Group| group.communicator.shape();
            match groups.iter().find(|other| shape(other) == shape(&group)) {
                Some(other) => notes.push(other.communicator.stands_for(name)),
                None => groups.push(group),
            }
        }
        let idle = topology.ranks() - ranks;
        if idle > 0 {
            notes.push(format!(
                "the communicators take the first {ranks} of {} GPUs: {idle} are in none",
                topology.ranks()
            ));
        }
        if groups.is_empty() {
            return Err(Error::usage("no communicator has two ranks", "name their sizes, such as tp=8,dp=64"));
        }
        Ok((groups, notes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::SiteSpec;

    /// Goal: a role's ranks and the others of its role on the same hosts, by hand: two hosts of 8, tp=4, dp=4.
    #[test]
    fn roles_by_hand() -> Result<(), Box<dyn std::error::Error>> {
        let topology = SiteSpec::new("dgx-h100").nodes(2).topology()?;
        let on = Machine { topology: &topology, transport: Transport::default() };
        let (groups, notes) = "tp=4,pp=1,dp=4".parse::<Communicators>()?.on(&on)?;
        assert!(notes.is_empty(), "{notes:?}");
        let ranks = |group: &Group| -> Vec<Vec<u32>> {
            group.together.iter().map(|ranks| ranks.iter().map(|rank| rank.0).collect()).collect()
        };
        assert_eq!(ranks(&groups[0]), [vec![0, 1, 2, 3], vec![4, 5, 6, 7]]);
        assert_eq!(ranks(&groups[1]), [vec![0, 4, 8, 12], vec![1, 5, 9, 13], vec![2, 6, 10, 14], vec![3, 7, 11, 15]]);
        assert_eq!(groups[0].communicator.to_string(), "tp (4 ranks, 1 nodes)");
        assert_eq!(groups[1].communicator.to_string(), "dp (4 ranks, 2 nodes)");
        assert!(groups[0].is_first() && !groups[1].is_first());
        let (groups, notes) = "a=2,b=2".parse::<Communicators>()?.on(&on)?;
        assert_eq!((groups.len(), notes.len()), (1, 2), "one is alike, and 12 GPUs are in none: {notes:?}");
        assert!("a=8,b=4".parse::<Communicators>()?.on(&on).is_err());
        for bad in ["", "tp", "tp=0", "=4", "tp=x", "tp=2,tp=4", "tp=1"] {
            assert!(bad.parse::<Communicators>().is_err_and(|e| !e.is_empty()) || bad == "tp=1", "{bad}");
        }
        Ok(())
    }
}

//! What bounds a run, by how busy its resources were.

use crate::network::ResourceName;
use crate::topology::Topology;

/// How busy the busiest of each kind of resource was, as a share of its capacity.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(super) struct Busy {
    /// Links.
    pub link: f64,
    /// Blocks and the memory of GPUs, which they move data through.
    pub lane: f64,
    /// Threads of hosts that send and receive through networks.
    pub proxy: f64,
    /// Memory of hosts, and what NICs read of GPUs.
    pub memory: f64,
}

impl Busy {
    /// By the name of each resource and how busy it was.
    pub(super) fn of(topology: &Topology, uses: impl Iterator<Item = (ResourceName, f64)>) -> Self {
        let mut busy = Self::default();
        for (name, used) in uses {
            let kind = match name {
                ResourceName::Link(_) => &mut busy.link,
                ResourceName::Lane(..) | ResourceName::Own(..) => &mut busy.lane,
                ResourceName::Memory(at) if topology.gpu(at).is_some() => &mut busy.lane,
                ResourceName::Memory(_) | ResourceName::Direct(..) => &mut busy.memory,
                ResourceName::Proxy(_) | ResourceName::Helpers(_) => &mut busy.proxy,
            };
            *kind = kind.max(used);
        }
        busy
    }

    /// That of the busiest of all.
    pub(super) fn most(self) -> f64 {
        self.link.max(self.lane).max(self.proxy).max(self.memory)
    }

    /// What bounds a run: see `Prediction::bound_by`.
    pub(super) fn bound(self, by_launches: bool) -> &'static str {
        if by_launches {
            "launch rate"
        } else if self.proxy >= 0.7 && self.proxy >= self.link.max(self.memory) {
            "proxy threads"
        } else if self.memory >= 0.7 && self.memory >= self.link {
            "host memory"
        } else if self.link >= 0.7 && self.link >= self.lane {
            "links"
        } else if self.lane >= 0.7 {
            "block rate"
        } else {
            "latency"
        }
    }
}

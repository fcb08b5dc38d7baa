//! The machine that settings are judged on.

use collcast_sim::topology::LinkKind;

use crate::error::Error;
use crate::site::{Site, SiteSpec};

/// A machine with what rules ask of it.
pub(super) struct Machine {
    /// As it was asked for, without the settings that are judged.
    pub(super) site: Site,
}

impl Machine {
    pub(super) fn load(spec: &SiteSpec) -> Result<Self, Error> {
        Ok(Self { site: spec.load()? })
    }

    /// The same machine with variables.
    pub(super) fn with(&self, env: &[(String, String)]) -> Result<Site, Error> {
        let mut spec = self.site.spec.clone();
        spec.env.extend(env.iter().cloned());
        spec.load_onto(self.site.topology.clone())
    }

    /// What was taken for granted.
    pub(super) fn notes(&self) -> Vec<String> {
        self.site.notes(collcast_sim::domain::Basis::default())
    }

    /// Whether it has what a rule of the catalogue needs.
    pub(super) fn has(&self, what: &str) -> bool {
        match what {
            "rdma" => self.has_rdma(),
            "nvlink" => self.has_nvlink(),
            "several-hosts" => self.site.nodes() > 1,
            _ => false,
        }
    }

    /// Whether its hosts reach each other by RDMA.
    pub(super) fn has_rdma(&self) -> bool {
        self.site.nodes() > 1 && self.nics() > 0
    }

    /// Whether NVLink joins its GPUs.
    pub(super) fn has_nvlink(&self) -> bool {
        self.site.topology.links().any(|(.., link)| link.kind == LinkKind::Nvlink)
    }

    /// RDMA devices of its first host.
    pub(super) fn nics(&self) -> usize {
        let topology = &self.site.topology;
        let rdma = |kind| matches!(kind, LinkKind::Infiniband | LinkKind::Roce | LinkKind::Efa | LinkKind::Slingshot);
        let first = topology.hosts().first();
        first.map_or(0, |host| host.nics.iter().filter_map(|&nic| topology.nic(nic)).filter(|n| rdma(n.kind)).count())
    }
}

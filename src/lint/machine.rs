//! The machine that settings are judged on.

use std::collections::BTreeMap;

use collcast_sim::nccl::plugin;
use collcast_sim::topology::LinkKind;

use super::setting::Setting;
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

    /// The same machine with all settings that NCCL reads but one.
    pub(super) fn with_all(&self, settings: &BTreeMap<&str, &Setting>, but: Option<&str>) -> Result<Site, Error> {
        let kept = settings.values().filter(|s| s.is_read() && but != Some(s.name.as_str()));
        // A table of a tuner is a file of another machine.
        let kept = kept.filter(|s| s.name != "NCCL_TUNER_CONFIG_FILE");
        self.with(&kept.map(|s| (s.name.clone(), s.value.clone())).collect::<Vec<_>>())
    }

    /// What was taken for granted.
    pub(super) fn notes(&self) -> Vec<String> {
        self.site.notes(collcast_sim::domain::Basis::default())
    }

    /// Whether it has what a rule of the catalogue needs.
    pub(super) fn has(&self, what: &str) -> bool {
        match what {
            "rdma" => self.has_rdma(),
            "no-plugin" => !plugin::needs_plugin(&self.site.topology),
            "efa" => plugin::has_efa(&self.site.topology),
            "verbs" => self.site.nodes() > 1 && self.count(is_of_verbs) > 0,
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
        self.count(|kind| is_of_verbs(kind) || matches!(kind, LinkKind::Efa | LinkKind::Slingshot))
    }

    /// NICs of its first host that are of some kinds.
    fn count(&self, is: impl Fn(LinkKind) -> bool) -> usize {
        let topology = &self.site.topology;
        let first = topology.hosts().first();
        first.map_or(0, |host| host.nics.iter().filter_map(|&nic| topology.nic(nic)).filter(|n| is(n.kind)).count())
    }
}

/// Whether NCCL's own verbs serve such NICs; the others have plugins, which read none of `NCCL_IB_*`.
fn is_of_verbs(kind: LinkKind) -> bool {
    matches!(kind, LinkKind::Infiniband | LinkKind::Roce)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: NICs of EFA are RDMA, and nothing that NCCL's verbs would serve.
    #[test]
    fn verbs_are_told_from_plugins() -> Result<(), Error> {
        for (name, verbs) in [("aws-p5", false), ("dgx-h100", true)] {
            let machine = Machine::load(&SiteSpec::new(name).nodes(2))?;
            assert_eq!((machine.has("rdma"), machine.has("verbs")), (true, verbs), "{name}");
        }
        Ok(())
    }
}

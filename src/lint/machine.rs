//! The machine that settings are judged on.

use std::collections::BTreeMap;

use collcast_sim::nccl::settings::OWN;
use collcast_sim::nccl::{Version, plugin};
use collcast_sim::topology::{LinkKind, Nic};

use super::setting::Setting;
use crate::error::Error;
use crate::site::{Site, SiteSpec, TABLES};

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

    /// The same machine with all settings that NCCL reads but some.
    pub(super) fn with_all(&self, settings: &BTreeMap<&str, &Setting>, but: &[&Setting]) -> Result<Site, Error> {
        let of_tuner = |s: &Setting| s.is_known() && OWN.contains(&s.name.as_str());
        let kept = settings.values().filter(|s| (s.is_read() || of_tuner(s)) && !but.contains(s));
        // A table of a tuner is a file of another machine.
        let kept = kept.filter(|s| !TABLES.contains(&s.name.as_str()));
        self.with(&kept.map(|s| (s.name.clone(), s.value.clone())).collect::<Vec<_>>())
    }

    /// Settings with which NCCL would not start on the machine, whatever the others are, each with what it says.
    pub(super) fn refused<'s>(&self, settings: &BTreeMap<&'s str, &'s Setting>) -> Vec<(&'s Setting, String)> {
        let said = |setting: &Setting| {
            let why = self.with(&[(setting.name.clone(), setting.value.clone())]).err()?.to_string();
            Some(why.strip_prefix("--env: ").unwrap_or(&why).to_owned())
        };
        let read = settings.values().filter(|s| s.is_read() && !TABLES.contains(&s.name.as_str()));
        read.filter_map(|setting| Some((*setting, said(setting)?))).collect()
    }

    /// NCCL's version there, where somebody says it.
    pub(super) fn version(&self) -> Option<Version> {
        let said = self.site.spec.nccl.is_some() || self.site.topology.software.nccl.is_some();
        self.site.settings().version.filter(|_| said)
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

    /// Whether NICs of its first host reach the memory of GPUs.
    pub(super) fn has_gpudirect(&self) -> bool {
        self.first_nics().any(|nic| nic.gpudirect)
    }

    /// RDMA devices of its first host for each GPU.
    pub(super) fn nics_a_gpu(&self) -> usize {
        self.nics() / self.site.topology.hosts().first().map_or(1, |host| host.gpus.len()).max(1)
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
        self.first_nics().filter(|nic| is(nic.kind)).count()
    }

    /// NICs of its first host.
    fn first_nics(&self) -> impl Iterator<Item = &Nic> {
        let topology = &self.site.topology;
        let of_host = topology.hosts().first().map(|host| host.nics.as_slice()).unwrap_or_default();
        of_host.iter().filter_map(|&nic| topology.nic(nic))
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

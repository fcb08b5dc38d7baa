//! Scenarios on built-in machines, as the command line runs them.

use collcast_scenarios::file::{self, Scenario};
use collcast_sim::collective::Launch;
use collcast_sim::predict::{Predictor, Settings};
use collcast_sim::profile::Profile;
use collcast_sim::topology::Topology;
use collcast_sim::workload::{Device, OpGraph, Simulator};

pub(crate) struct Machine {
    pub(crate) topology: Topology,
    pub(crate) profile: Profile,
    pub(crate) device: Device,
}

impl Machine {
    pub(crate) fn new(name: &str, nodes: Option<u32>) -> Self {
        let topology = collcast_topologies::load_any(name, nodes, None).unwrap();
        let named = topology.profile.as_deref().and_then(|name| Profile::builtin(name).ok());
        let profile = named.unwrap_or_else(|| Profile::builtin("prior").unwrap());
        let device = collcast_scenarios::device(&topology).unwrap();
        Self { topology, profile, device }
    }

    pub(crate) fn simulator(&self) -> Simulator<'_> {
        let version = self.topology.software.nccl;
        let mut settings = Settings { launch: Launch::Processes, version, ..Settings::default() };
        settings.nccl.nvls = Some(false); // As the machine was measured.
        Simulator::new(Predictor::new(&self.topology, &self.profile), self.device, settings)
    }

    pub(crate) fn graph(&self, scenario: &Scenario) -> OpGraph {
        scenario.graph(&self.profile, self.device)
    }
}

/// A built-in scenario with some keys changed.
pub(crate) fn builtin(name: &str, changes: &[(&str, &str)]) -> Scenario {
    let mut text = collcast_scenarios::builtin::text(name).unwrap().to_owned();
    for (key, value) in changes {
        text = file::with_value(&text, key, value).unwrap();
    }
    read(&text)
}

pub(crate) fn read(text: &str) -> Scenario {
    file::read(text, "test.toml").unwrap_or_else(|e| panic!("{}", e.render()))
}

//! One host as checked values: what every reader produces and the fabric multiplies.

use collcast_sim::ids::{HostId, VertexId};
use collcast_sim::topology::{Gpu, Link, LinkKind, Nic, Storage, TopologyBuilder, VertexKind};
use collcast_sim::units::Bandwidth;

use crate::catalogue;

/// What a PCIe device hangs from: an index into [`HostSpec::cpus`] or [`HostSpec::switches`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parent {
    /// A CPU's own PCIe port.
    Cpu(usize),
    /// A PCIe switch. Its index must be lower than that of a switch that hangs from it.
    Switch(usize),
}

/// A CPU socket or NUMA node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CpuSpec {
    /// `GenuineIntel`, `AuthenticAMD`, ...; empty where unknown.
    pub vendor: String,
    /// Rate to each other socket, one direction; all pairs are joined.
    pub interconnect: Bandwidth,
}

/// A PCIe switch or bridge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SwitchSpec {
    /// PCI bus id, where the source has one.
    pub bus_id: Option<String>,
    /// What it hangs from.
    pub parent: Parent,
    /// Rate of its upstream link.
    pub rate: Bandwidth,
}

/// The other end of an NVLink bundle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NvlinkTarget {
    /// The host's NVSwitches, which are one vertex.
    Switch,
    /// Another GPU, by its place in [`HostSpec::gpus`].
    Gpu(usize),
}

/// NVLinks that leave a GPU together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NvlinkSpec {
    /// Where they go.
    pub target: NvlinkTarget,
    /// How many.
    pub count: u32,
    /// Nominal rate of one, one direction.
    pub rate_per_link: Bandwidth,
}

/// A GPU and its attachments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GpuSpec {
    /// The GPU itself.
    pub gpu: Gpu,
    /// What its PCIe link hangs from.
    pub parent: Parent,
    /// Rate of its PCIe link.
    pub pcie_rate: Bandwidth,
    /// Its NVLinks. GPU to GPU bundles are listed at both ends.
    pub nvlinks: Vec<NvlinkSpec>,
    /// Rate of its chip-to-chip link to the CPU, where it has one.
    pub c2c: Option<Bandwidth>,
}

/// A NIC and its attachment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NicSpec {
    /// The NIC itself.
    pub nic: Nic,
    /// What its PCIe link hangs from.
    pub parent: Parent,
    /// Rate of its PCIe link.
    pub pcie_rate: Bandwidth,
    /// PCI bus id, where the source has one.
    pub bus_id: Option<String>,
}

/// A link between two PCIe switches, beside the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwitchLink {
    /// One switch, by its place in [`HostSpec::switches`].
    pub from: usize,
    /// The other.
    pub to: usize,
    /// Rate, one direction.
    pub rate: Bandwidth,
}

/// A host.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HostSpec {
    /// CPU sockets or NUMA nodes.
    pub cpus: Vec<CpuSpec>,
    /// PCIe switches, parents first.
    pub switches: Vec<SwitchSpec>,
    /// GPUs, in rank order.
    pub gpus: Vec<GpuSpec>,
    /// NICs, management ones included.
    pub nics: Vec<NicSpec>,
    /// Hosts, in order, whose GPUs share one layer of NVSwitches, where those are not the
    /// host's own.
    pub nvlink_domain: Option<u32>,
    /// Links between PCIe switches beside the tree (`pcilink` of NCCL's XML).
    pub switch_links: Vec<SwitchLink>,
    /// Drives and ports to object stores, where the source has them.
    pub storage: Option<Storage>,
    /// What was assumed because the source does not say.
    pub assumptions: Vec<String>,
}

impl HostSpec {
    /// Of which NVLink domain of several hosts it may be: its seats, and the GPUs.
    pub(crate) fn domain_kind(&self) -> Option<(u32, &str)> {
        self.nvlink_domain.zip(self.gpus.first().map(|gpu| gpu.gpu.model.as_str()))
    }

    /// GPUs whose source does not say what they are count as the oldest with so many NVLinks.
    pub(crate) fn assume_capability(&mut self) {
        let unknown = |gpu: &GpuSpec| gpu.gpu.compute_capability == 0;
        let links = |gpu: &GpuSpec| gpu.nvlinks.iter().map(|bundle| bundle.count).fold(0, u32::saturating_add);
        let Some(most) = self.gpus.iter().filter(|gpu| unknown(gpu)).map(links).max() else { return };
        let Some(capability) = catalogue::capability_of_nvlinks(most) else {
            self.assume(format!(
                "the compute capability of GPUs with {most} NVLinks is unknown: they count as Hopper, but without NVLS"
            ));
            return;
        };
        self.assume(format!("compute capability {capability} is assumed of GPUs with {most} NVLinks"));
        for gpu in self.gpus.iter_mut().filter(|gpu| unknown(gpu)) {
            gpu.gpu.compute_capability = capability;
        }
    }

    /// Adds the host to a topology under `name` and returns the NIC vertices, in order. NVLinks
    /// to NVSwitches go to those of the host's NVLink `domain`, where it is in one.
    pub fn add_to(
        &self,
        builder: &mut TopologyBuilder,
        name: &str,
        domain: Option<VertexId>,
    ) -> (HostId, Vec<VertexId>) {
        let host = builder.host(name);
        if let Some(storage) = self.storage {
            builder.store(host, storage);
        }
        let at = Some(host);
        let link = |kind, rate, width| Link { kind, rate, width };
        let cpus: Vec<VertexId> = self
            .cpus
            .iter()
            .enumerate()
            .map(|(i, cpu)| {
                builder.vertex(format!("{name}/cpu{i}"), VertexKind::Cpu { vendor: cpu.vendor.clone() }, at)
            })
            .collect();
        for (i, cpu) in self.cpus.iter().enumerate() {
            for other in i + 1..cpus.len() {
                let rate = cpu.interconnect.min(self.cpus[other].interconnect);
                builder.duplex(cpus[i], cpus[other], link(LinkKind::CpuInterconnect, rate, 1));
            }
        }
        let mut switches: Vec<VertexId> = Vec::new();
        for (i, switch) in self.switches.iter().enumerate() {
            let id = builder.vertex(format!("{name}/pcisw{i}"), VertexKind::PcieSwitch, at);
            let parent = resolve(switch.parent, &cpus, &switches);
            if let Some(parent) = parent {
                builder.duplex(id, parent, link(LinkKind::Pcie, switch.rate, 16));
            }
            switches.push(id);
        }
        for extra in &self.switch_links {
            if let (Some(&a), Some(&b)) = (switches.get(extra.from), switches.get(extra.to)) {
                builder.duplex(a, b, link(LinkKind::Pcie, extra.rate, 16));
            }
        }
        let gpus: Vec<VertexId> = self
            .gpus
            .iter()
            .enumerate()
            .map(|(i, g)| builder.vertex(format!("{name}/gpu{i}"), VertexKind::Gpu(g.gpu.clone()), at))
            .collect();
        let has_nvswitch = self.gpus.iter().flat_map(|g| &g.nvlinks).any(|n| n.target == NvlinkTarget::Switch);
        let own = || builder.vertex(format!("{name}/nvswitch"), VertexKind::NvSwitch, at);
        let nvswitch = domain.or_else(|| has_nvswitch.then(own));
        for (gpu, &id) in self.gpus.iter().zip(&gpus) {
            if let Some(parent) = resolve(gpu.parent, &cpus, &switches) {
                builder.duplex(id, parent, link(LinkKind::Pcie, gpu.pcie_rate, 16));
            }
            if let (Some(rate), Some(&cpu)) = (gpu.c2c, self.cpu_of(gpu.parent).and_then(|c| cpus.get(c))) {
                builder.duplex(id, cpu, link(LinkKind::C2c, rate, 1));
            }
            for bundle in &gpu.nvlinks {
                let nvlink = link(LinkKind::Nvlink, bundle.rate_per_link.times(u64::from(bundle.count)), bundle.count);
                match (bundle.target, nvswitch) {
                    (NvlinkTarget::Switch, Some(switch)) => builder.duplex(id, switch, nvlink),
                    (NvlinkTarget::Gpu(peer), _) if peer < gpus.len() && gpus[peer] != id => {
                        builder.link(id, gpus[peer], nvlink);
                    }
                    _ => {}
                }
            }
        }
        let nics = self
            .nics
            .iter()
            .enumerate()
            .map(|(i, n)| {
                let id = builder.vertex(format!("{name}/nic{i}"), VertexKind::Nic(n.nic.clone()), at);
                if let Some(parent) = resolve(n.parent, &cpus, &switches) {
                    builder.duplex(id, parent, link(LinkKind::Pcie, n.pcie_rate, 16));
                }
                id
            })
            .collect();
        for note in &self.assumptions {
            if !builder.assumptions.contains(note) {
                builder.assumptions.push(note.clone());
            }
        }
        (host, nics)
    }

    /// The CPU at the root of what a device hangs from, if there is one.
    pub fn cpu_of(&self, parent: Parent) -> Option<usize> {
        let mut at = parent;
        // A parent has a lower index than its child, so this ends.
        for _ in 0..=self.switches.len() {
            match at {
                Parent::Cpu(cpu) => return (cpu < self.cpus.len()).then_some(cpu),
                Parent::Switch(switch) => at = self.switches.get(switch)?.parent,
            }
        }
        None
    }

    /// Keeps the first `count` GPUs; NVLinks to the others go with them, NICs stay.
    pub fn keep_gpus(&mut self, count: usize) {
        self.gpus.truncate(count);
        let kept = self.gpus.len();
        for gpu in &mut self.gpus {
            gpu.nvlinks.retain(|n| match n.target {
                NvlinkTarget::Gpu(peer) => peer < kept,
                NvlinkTarget::Switch => true,
            });
        }
    }

    /// Vertices that [`HostSpec::add_to`] adds at most.
    pub fn vertex_count(&self) -> usize {
        self.cpus.len() + self.switches.len() + self.gpus.len() + self.nics.len() + 1
    }

    /// Links that [`HostSpec::add_to`] adds at most, both directions counted.
    pub fn link_count(&self) -> usize {
        let nvlinks: usize = self.gpus.iter().map(|g| g.nvlinks.len()).sum();
        self.cpus.len() * self.cpus.len()
            + 2 * (self.switches.len() + 2 * self.gpus.len() + self.nics.len() + nvlinks)
            + 2 * self.switch_links.len()
    }

    /// NICs that carry collectives.
    pub fn data_nics(&self) -> impl Iterator<Item = &NicSpec> {
        self.nics.iter().filter(|n| !n.nic.management)
    }

    /// Whether every GPU has NVLinks to the host's NVSwitches.
    pub fn has_nvswitch(&self) -> bool {
        !self.gpus.is_empty()
            && self.gpus.iter().all(|g| g.nvlinks.iter().any(|n| n.target == NvlinkTarget::Switch && n.count > 0))
    }

    /// Records an assumption once.
    pub fn assume(&mut self, note: impl Into<String>) {
        let note = note.into();
        if !self.assumptions.contains(&note) {
            self.assumptions.push(note);
        }
    }
}

fn resolve(parent: Parent, cpus: &[VertexId], switches: &[VertexId]) -> Option<VertexId> {
    match parent {
        Parent::Cpu(i) => cpus.get(i).copied(),
        Parent::Switch(i) => switches.get(i).copied(),
    }
}

//! A host as people describe it, checked but not yet drawn: what `like` copies and own keys
//! replace.

use collcast_sim::topology::{Gpu, LinkKind, Nic, Storage};
use collcast_sim::units::{Bandwidth, SimDuration};

use crate::catalogue;
use crate::host::{CpuSpec, GpuSpec, HostSpec, NicSpec, NvlinkSpec, NvlinkTarget, Parent, SwitchSpec};

/// The GPUs of a host.
#[derive(Clone, Debug)]
pub(crate) struct GpuPlan {
    pub(crate) count: u32,
    pub(crate) model: String,
    pub(crate) compute_capability: u32,
    pub(crate) memory_rate: Option<Bandwidth>,
    pub(crate) c2c: Option<Bandwidth>,
}

/// How NVLinks join the GPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NvlinkKind {
    /// All links to NVSwitches.
    Switch,
    /// The links spread evenly over all other GPUs.
    Mesh,
    /// GPU 0 with 1, 2 with 3, ...: bridges.
    Pairs,
    /// Half of the links to the GPU before, half to the one after.
    Ring,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct NvlinkPlan {
    pub(crate) kind: NvlinkKind,
    pub(crate) links_per_gpu: u32,
    pub(crate) rate_per_link: Bandwidth,
    /// Hosts that share the NVSwitches, where those are not each host's own.
    pub(crate) domain: Option<u32>,
}

/// The PCIe tree.
#[derive(Clone, Debug)]
pub(crate) struct PciePlan {
    pub(crate) rate: Bandwidth,
    pub(crate) switches_per_socket: u32,
    pub(crate) sockets: u32,
    pub(crate) interconnect: Option<Bandwidth>,
    pub(crate) cpu: String,
}

/// The NICs that carry collectives.
#[derive(Clone, Debug)]
pub(crate) struct NicPlan {
    pub(crate) kind: LinkKind,
    pub(crate) count: u32,
    /// Where the source gives them, as many as there are.
    pub(crate) names: Vec<String>,
    pub(crate) rate: Bandwidth,
    pub(crate) gpu: Option<Vec<u32>>,
    pub(crate) socket: Option<Vec<u32>>,
    pub(crate) per_gpu: Option<u32>,
    pub(crate) rail: Option<Vec<u32>>,
    /// Of a card: so many NICs in a row are one.
    pub(crate) ports: u32,
    pub(crate) gpudirect: Option<bool>,
    pub(crate) gpudirect_rate: Option<Bandwidth>,
    pub(crate) latency: Option<SimDuration>,
}

/// The NIC for ssh and storage.
#[derive(Clone, Debug)]
pub(crate) struct ManagementPlan {
    pub(crate) name: String,
    pub(crate) rate: Bandwidth,
}

/// A host: `None` where the source says nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostPlan {
    pub(crate) gpus: Option<GpuPlan>,
    pub(crate) keep_gpus: Option<u32>,
    pub(crate) nvlink: Option<NvlinkPlan>,
    pub(crate) pcie: Option<PciePlan>,
    pub(crate) nics: Option<NicPlan>,
    pub(crate) management: Option<ManagementPlan>,
    pub(crate) storage: Option<Storage>,
    pub(crate) assumptions: Vec<String>,
}

impl HostPlan {
    /// Draws the host; checked before, so that it cannot fail. Without GPUs or PCIe it is
    /// empty.
    pub(crate) fn draw(&self) -> HostSpec {
        let mut host = HostSpec { assumptions: self.assumptions.clone(), storage: self.storage, ..HostSpec::default() };
        let (Some(gpus), Some(pcie)) = (&self.gpus, &self.pcie) else {
            return host;
        };
        draw_pcie(&mut host, pcie);
        let places = attachment_points(&host);
        for index in 0..gpus.count {
            let parent = spread(&places, index, gpus.count);
            host.gpus.push(GpuSpec {
                gpu: Gpu {
                    index,
                    model: gpus.model.clone(),
                    compute_capability: gpus.compute_capability,
                    memory_rate: gpus.memory_rate,
                    bus_id: None,
                },
                parent,
                pcie_rate: pcie.rate,
                nvlinks: Vec::new(),
                c2c: gpus.c2c,
            });
        }
        if let Some(nvlink) = self.nvlink {
            draw_nvlinks(&mut host, nvlink);
            host.nvlink_domain = nvlink.domain;
        }
        if let Some(nics) = &self.nics {
            draw_nics(&mut host, nics, pcie.rate);
        }
        if let Some(management) = &self.management {
            draw_management(&mut host, management);
        }
        if let Some(keep) = self.keep_gpus {
            host.keep_gpus(keep as usize);
        }
        host
    }
}

fn draw_pcie(host: &mut HostSpec, pcie: &PciePlan) {
    let interconnect = pcie.interconnect.unwrap_or_else(|| {
        let (rate, what) = catalogue::cpu_interconnect("", &pcie.cpu, 0x55);
        if pcie.sockets > 1 {
            host.assume(format!("{rate} between CPU sockets assumed: NCCL's figure for {what}"));
        }
        rate
    });
    for socket in 0..pcie.sockets as usize {
        host.cpus.push(CpuSpec { vendor: pcie.cpu.clone(), interconnect });
        for _ in 0..pcie.switches_per_socket {
            host.switches.push(SwitchSpec { bus_id: None, parent: Parent::Cpu(socket), rate: pcie.rate });
        }
    }
}

/// Where devices plug in: the switches, or the CPUs when there are none.
pub(crate) fn attachment_points(host: &HostSpec) -> Vec<Parent> {
    if host.switches.is_empty() {
        (0..host.cpus.len().max(1)).map(Parent::Cpu).collect()
    } else {
        (0..host.switches.len()).map(Parent::Switch).collect()
    }
}

/// The place of device `index` of `count` when they are spread evenly in order.
pub(crate) fn spread(places: &[Parent], index: u32, count: u32) -> Parent {
    let at = u64::from(index) * places.len() as u64 / u64::from(count.max(1));
    let at = usize::try_from(at).unwrap_or(0);
    places.get(at).copied().unwrap_or(Parent::Cpu(0))
}

fn draw_nvlinks(host: &mut HostSpec, nvlink: NvlinkPlan) {
    let count = host.gpus.len();
    let bundle = |target, count| NvlinkSpec { target, count, rate_per_link: nvlink.rate_per_link };
    let peers = u32::try_from(count.saturating_sub(1)).unwrap_or(0);
    for (i, gpu) in host.gpus.iter_mut().enumerate() {
        match nvlink.kind {
            NvlinkKind::Switch => gpu.nvlinks.push(bundle(NvlinkTarget::Switch, nvlink.links_per_gpu)),
            NvlinkKind::Mesh => {
                let each = nvlink.links_per_gpu / peers.max(1);
                for peer in (0..count).filter(|&p| p != i && each > 0) {
                    gpu.nvlinks.push(bundle(NvlinkTarget::Gpu(peer), each));
                }
            }
            NvlinkKind::Pairs => {
                let peer = i ^ 1;
                if peer < count {
                    gpu.nvlinks.push(bundle(NvlinkTarget::Gpu(peer), nvlink.links_per_gpu));
                }
            }
            NvlinkKind::Ring if count == 2 => {
                gpu.nvlinks.push(bundle(NvlinkTarget::Gpu(1 - i), nvlink.links_per_gpu));
            }
            NvlinkKind::Ring => {
                let neighbours = [(i + count - 1) % count, (i + 1) % count];
                for peer in neighbours.into_iter().filter(|&peer| peer != i) {
                    gpu.nvlinks.push(bundle(NvlinkTarget::Gpu(peer), nvlink.links_per_gpu / 2));
                }
            }
        }
    }
}

/// Adds the NICs of a plan to a host that has its GPUs; what was there before is replaced.
pub(crate) fn draw_nics(host: &mut HostSpec, nics: &NicPlan, pcie_rate: Bandwidth) {
    host.nics.retain(|n| n.nic.management);
    let rdma = nics.kind != LinkKind::Ethernet;
    if nics.gpudirect.is_none() && rdma {
        host.assume("NICs are taken to read GPU memory themselves (GPUDirect)");
    }
    let places = attachment_points(host);
    for index in 0..nics.count {
        let behind = match (&nics.gpu, nics.per_gpu) {
            (Some(list), _) => list.get(index as usize).copied(),
            (None, Some(per)) => Some(index / per.max(1)),
            (None, None) => None,
        };
        let socket = nics.socket.as_ref().and_then(|list| list.get(index as usize));
        let parent = match (socket, behind.and_then(|g| host.gpus.get(g as usize))) {
            (Some(&socket), _) => Parent::Cpu(socket as usize),
            (None, Some(gpu)) => gpu.parent,
            (None, None) => spread(&places, index, nics.count),
        };
        host.nics.push(NicSpec {
            nic: Nic {
                index,
                name: nics.names.get(index as usize).cloned().unwrap_or_default(),
                kind: nics.kind,
                rate: nics.rate,
                gpudirect: nics.gpudirect.unwrap_or(rdma),
                gpudirect_rate: nics.gpudirect_rate,
                rail: nics.rail.as_ref().and_then(|r| r.get(index as usize).copied()),
                card: (nics.ports > 1).then(|| index / nics.ports),
                management: false,
                latency: nics.latency,
            },
            parent,
            pcie_rate,
            bus_id: None,
        });
    }
    // Data NICs first, so that their numbers are their places.
    host.nics.sort_by_key(|n| n.nic.management);
}

/// Adds the management NIC, behind the first CPU.
pub(crate) fn draw_management(host: &mut HostSpec, management: &ManagementPlan) {
    host.nics.retain(|n| !n.nic.management);
    let index = u32::try_from(host.nics.len()).unwrap_or(u32::MAX);
    host.nics.push(NicSpec {
        nic: Nic {
            index,
            name: management.name.clone(),
            kind: LinkKind::Ethernet,
            rate: management.rate,
            gpudirect: false,
            gpudirect_rate: None,
            rail: None,
            card: None,
            management: true,
            latency: None,
        },
        parent: Parent::Cpu(0),
        pcie_rate: management.rate,
        bus_id: None,
    });
}

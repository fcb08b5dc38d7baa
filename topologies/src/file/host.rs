//! The parts of a host: GPUs, NVLinks, PCIe and NICs.

use std::ops::Range;

use collcast_sim::topology::{LinkKind, Storage};
use collcast_sim::units::Bandwidth;

use super::values::{MAX_PER_HOST, MAX_SOCKETS, Reader, text_of};
use crate::catalogue;
use crate::error::{TopologiesError, quote};
use crate::plan::{GpuPlan, HostPlan, ManagementPlan, NicPlan, NvlinkKind, NvlinkPlan, PciePlan};
use crate::raw::{At, RawGpus, RawList, RawManagement, RawNics, RawNvlink, RawPcie, RawRate, RawStorage};

/// Most ports of a card.
const MAX_PORTS: u32 = 4;

/// The `kind` of NVLinks that go to NVSwitches.
const NVSWITCH: &str = "nvswitch";

impl Reader<'_> {
    pub(super) fn gpus(&self, raw: &RawGpus, span: &Range<usize>, plan: &mut HostPlan) -> Result<(), TopologiesError> {
        let count = self.number("the count of GPUs", &raw.count, 1, MAX_PER_HOST)?;
        let Some(kind) = &raw.kind else {
            let Some(base) = &plan.gpus else {
                return Err(TopologiesError::Key(self.source.at(
                    span.clone(),
                    "the GPUs have no `kind`",
                    "needs `kind`",
                    "for example kind = \"H100-SXM5-80GB\"",
                )));
            };
            if count > base.count {
                return Err(self.contradiction(
                    &raw.count.span,
                    format!("{count} GPUs of a host that has {}", base.count),
                    &format!("at most {}", base.count),
                    "a count without `kind` keeps the first GPUs; give `kind` to replace them",
                ));
            }
            plan.keep_gpus = Some(count);
            return Ok(());
        };
        let product = catalogue::by_name(&kind.value);
        let capability = self.optional_number("compute_capability", raw.compute_capability.as_ref(), 10, 999)?;
        let memory_rate = raw.memory_rate.as_ref().map(|r| self.rate("memory_rate", r)).transpose()?;
        let Some(compute_capability) = capability.or_else(|| product.map(|p| p.compute_capability)) else {
            let known: Vec<&str> = catalogue::PRODUCTS.iter().map(|p| p.name).collect();
            return Err(TopologiesError::UnknownName(self.source.at(
                kind.span.clone(),
                format!("the GPU `{}` is not known", quote(&kind.value)),
                catalogue::did_you_mean(&kind.value).unwrap_or_else(|| "unknown product".to_owned()),
                format!(
                    "for another product add compute_capability = 90 and memory_rate = \"3.35 \
                     TB/s\"; known: {}",
                    known.join(", ")
                ),
            )));
        };
        plan.gpus = Some(GpuPlan {
            count,
            model: product.map_or_else(|| kind.value.clone(), |p| p.name.to_owned()),
            compute_capability,
            memory_rate: memory_rate.or_else(|| product.map(catalogue::Product::memory_rate)),
            c2c: raw.c2c.as_ref().map(|r| self.rate("c2c", r)).transpose()?,
        });
        plan.keep_gpus = None;
        Ok(())
    }

    pub(super) fn nvlink(
        &self,
        raw: &RawNvlink,
        span: &Range<usize>,
        gpus: u32,
    ) -> Result<Option<NvlinkPlan>, TopologiesError> {
        let kind = self.choice(
            "a way to join GPUs",
            &raw.kind,
            &[
                (Some(NvlinkKind::Switch), NVSWITCH),
                (Some(NvlinkKind::Mesh), "mesh"),
                (Some(NvlinkKind::Pairs), "pairs"),
                (Some(NvlinkKind::Ring), "ring"),
                (None, "none"),
            ],
        )?;
        let Some(kind) = kind else {
            return Ok(None);
        };
        let missing = |key: &str| {
            TopologiesError::Key(self.source.at(
                span.clone(),
                format!("the key `{key}` is missing"),
                format!("needs `{key}`"),
                "for example links_per_gpu = 18, rate_per_link = \"25 GB/s\"",
            ))
        };
        let links = raw.links_per_gpu.as_ref().ok_or_else(|| missing("links_per_gpu"))?;
        let rate = raw.rate_per_link.as_ref().ok_or_else(|| missing("rate_per_link"))?;
        let links_per_gpu = self.number("links_per_gpu", links, 1, MAX_PER_HOST)?;
        if kind == NvlinkKind::Mesh && gpus > 1 && !links_per_gpu.is_multiple_of(gpus - 1) {
            return Err(self.contradiction(
                &links.span,
                format!("{links_per_gpu} links of a GPU do not spread evenly over {} others", gpus - 1),
                &format!("expected a multiple of {}", gpus - 1),
                "an uneven mesh is written as NCCL topology XML: xml = \"nccl_topo.xml\"",
            ));
        }
        if kind == NvlinkKind::Ring && !links_per_gpu.is_multiple_of(2) {
            return Err(self.contradiction(
                &links.span,
                format!("{links_per_gpu} links of a GPU in a ring do not go evenly to both neighbours"),
                "expected an even number",
                "half of the links go to the GPU before, half to the one after",
            ));
        }
        let domain = self.domain(raw)?;
        Ok(Some(NvlinkPlan { kind, links_per_gpu, rate_per_link: self.rate("rate_per_link", rate)?, domain }))
    }

    /// Hosts that share NVSwitches, where those are several.
    pub(super) fn domain(&self, raw: &RawNvlink) -> Result<Option<u32>, TopologiesError> {
        let domain = self.optional_number("the hosts of an NVLink domain", raw.domain.as_ref(), 1, MAX_PER_HOST)?;
        if let Some(place) = raw.domain.as_ref().filter(|_| raw.kind.value != NVSWITCH) {
            return Err(self.contradiction(
                &place.span,
                "an NVLink domain of several hosts needs NVSwitches".to_owned(),
                "without nvswitch",
                "say kind = \"nvswitch\", or leave `domain` out",
            ));
        }
        Ok(domain.filter(|&hosts| hosts > 1))
    }

    pub(super) fn pcie(&self, raw: &RawPcie) -> Result<PciePlan, TopologiesError> {
        let generation = self.number("the PCIe generation", &raw.generation, 1, 6)?;
        let lanes = self.number("lanes", &raw.lanes, 1, 32)?;
        let rate = catalogue::pcie_generation_rate(generation, lanes).ok_or_else(|| {
            self.value(&raw.generation.span, "the PCIe generation is not known".to_owned(), "expected 1 to 6", "")
        })?;
        Ok(PciePlan {
            rate,
            switches_per_socket: self.number("switches_per_socket", &raw.switches_per_socket, 0, MAX_SOCKETS)?,
            sockets: self.number("sockets", &raw.sockets, 1, MAX_SOCKETS)?,
            interconnect: raw.interconnect.as_ref().map(|r| self.rate("interconnect", r)).transpose()?,
            cpu: text_of(raw.cpu.as_ref()),
        })
    }

    fn nic_names(&self, list: &At<RawList>, count: u32) -> Result<Vec<String>, TopologiesError> {
        let names = self.expand(list, "mlx5_[0,3-6]", "devices are listed as Slurm lists hosts")?;
        if names.len() != count as usize {
            return Err(self.contradiction(
                &list.span,
                format!("count is {count}, but `{}` names {} NICs", quote(&list.value.0), names.len()),
                &format!("{} names", names.len()),
                "one name per port",
            ));
        }
        Ok(names)
    }

    pub(super) fn nics(&self, raw: &RawNics, gpus: u32, sockets: u32) -> Result<NicPlan, TopologiesError> {
        let kinds: Vec<(LinkKind, &str)> =
            LinkKind::ALL.iter().filter(|k| k.is_network()).map(|&k| (k, k.name())).collect();
        let kind = self.choice("a kind of NIC", &raw.kind, &kinds)?;
        let count = self.number("the count of NICs", &raw.count, 1, MAX_PER_HOST)?;
        let names = raw.names.as_ref().map(|list| self.nic_names(list, count)).transpose()?.unwrap_or_default();
        let rate = self.rate("the rate of the NICs", &raw.rate)?;
        let per_gpu = self.optional_number("per_gpu", raw.per_gpu.as_ref(), 1, MAX_PER_HOST)?;
        if let (Some(per), Some(place)) = (per_gpu, &raw.per_gpu)
            && per.saturating_mul(gpus) != count
        {
            return Err(self.contradiction(
                &place.span,
                format!("{per} NICs per GPU x {gpus} GPUs is not count = {count}"),
                &format!("{per} x {gpus} = {}", u64::from(per) * u64::from(gpus)),
                "list the GPUs in `gpu` where they have unequal numbers of NICs",
            ));
        }
        let ports = self.optional_number("ports", raw.ports.as_ref(), 1, MAX_PORTS)?.unwrap_or(1);
        if let Some(place) = &raw.ports
            && !count.is_multiple_of(ports)
        {
            return Err(self.contradiction(
                &place.span,
                format!("count = {count} ports are no whole number of cards with {ports}"),
                &format!("a multiple of {ports}"),
                "count counts ports, not cards",
            ));
        }
        let gpu = raw.gpu.as_ref().map(|list| self.gpu_list(list, count, gpus)).transpose()?;
        if let Some(place) = raw.socket.as_ref().filter(|_| gpu.is_some() || per_gpu.is_some()) {
            return Err(self.contradiction(
                &place.span,
                "`socket` beside `gpu` or `per_gpu`".to_owned(),
                "one of them",
                "a NIC is behind the switch of a GPU or hangs from a CPU",
            ));
        }
        let socket =
            (raw.socket.as_ref()).map(|list| self.list("socket", list, count, sockets, "sockets")).transpose()?;
        let rail =
            raw.rail.as_ref().map(|list| self.list("rail", list, count, MAX_PER_HOST, "rail numbers")).transpose()?;
        let gpudirect_rate = raw.gpudirect_rate.as_ref().map(|r| self.rate("gpudirect_rate", r)).transpose()?;
        let gpudirect = raw.gpudirect;
        let latency = raw.latency.as_ref().map(|latency| self.time("the latency of the NICs", latency)).transpose()?;
        Ok(NicPlan { kind, count, names, rate, gpu, socket, per_gpu, rail, ports, gpudirect, gpudirect_rate, latency })
    }

    /// A list with one number per NIC, each below `limit`.
    fn list(
        &self,
        key: &str,
        list: &At<Vec<At<i64>>>,
        count: u32,
        limit: u32,
        what: &str,
    ) -> Result<Vec<u32>, TopologiesError> {
        if list.value.len() != count as usize {
            return Err(self.contradiction(
                &list.span,
                format!("`{key}` has {} entries, but there are {count} NICs", list.value.len()),
                &format!("expected {count} entries"),
                "one entry per NIC, in order",
            ));
        }
        list.value
            .iter()
            .map(|entry| match u32::try_from(entry.value) {
                Ok(value) if value < limit => Ok(value),
                _ => Err(self.contradiction(
                    &entry.span,
                    format!("`{key}` names {}, which is none", entry.value),
                    &format!("expected {what} from 0 to {}", limit.saturating_sub(1)),
                    "they are counted from 0",
                )),
            })
            .collect()
    }

    /// Each GPU that is listed must be listed equally often: a mistyped index shows that way.
    fn gpu_list(&self, list: &At<Vec<At<i64>>>, count: u32, gpus: u32) -> Result<Vec<u32>, TopologiesError> {
        let indices = self.list("gpu", list, count, gpus, "GPUs")?;
        let times = |gpu: u32| indices.iter().filter(|&&g| g == gpu).count();
        let fewest = indices.iter().map(|&g| times(g)).min().unwrap_or(0);
        for (i, &gpu) in indices.iter().enumerate() {
            let seen = indices[..=i].iter().filter(|&&g| g == gpu).count();
            if seen > fewest {
                return Err(self.contradiction(
                    &list.value[i].span,
                    format!("GPU {gpu} is listed {} times in `gpu`, others less often", times(gpu)),
                    "listed again",
                    "list each GPU equally often; an uneven machine is written as NCCL topology \
                     XML: xml = \"nccl_topo.xml\"",
                ));
            }
        }
        Ok(indices)
    }

    pub(super) fn management(&self, raw: &RawManagement) -> Result<ManagementPlan, TopologiesError> {
        Ok(ManagementPlan {
            name: raw.name.value.clone(),
            rate: self.rate("the rate of the management NIC", &raw.rate)?,
        })
    }

    pub(super) fn storage(&self, raw: &RawStorage, span: &Range<usize>) -> Result<Storage, TopologiesError> {
        let names = catalogue::DRIVES.map(|drive| (Some(drive), drive.name));
        let kind = raw.kind.as_ref().map(|kind| self.choice("a kind of drive", kind, &names)).transpose()?.flatten();
        let rate = |what: &str, given: Option<&At<RawRate>>, of_kind: Option<f64>| match (given, of_kind) {
            (Some(rate), _) => self.rate(what, rate),
            (None, Some(rate)) => Ok(Bandwidth::from_gb_per_s(rate)),
            (None, None) => Err(TopologiesError::Key(self.source.at(
                span.clone(),
                format!("nothing says what a drive {what}"),
                "needs `kind`, or `read` and `write`",
                "for example kind = \"nvme-gen4\", or read = \"7 GB/s\", write = \"3.8 GB/s\"",
            ))),
        };
        Ok(Storage {
            drives: self.number("the count of drives", &raw.drives, 1, MAX_PER_HOST)?,
            read: rate("reads", raw.read.as_ref(), kind.map(|drive| drive.read_gb_per_s))?,
            write: rate("writes", raw.write.as_ref(), kind.map(|drive| drive.write_gb_per_s))?,
            network: raw.network.as_ref().map(|rate| self.rate("network", rate)).transpose()?,
        })
    }
}

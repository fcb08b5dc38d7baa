//! Writes what `topo import` prints: a host as NCCL topology XML, which this crate (and NCCL, through
//! `NCCL_TOPO_FILE`) reads back, and a listed cluster as a topology file.

mod cluster;

use std::fmt::Write as _;

use collcast_sim::topology::LinkKind;
use collcast_sim::units::{Bandwidth, SimDuration};
use quick_xml::escape::escape;

use crate::catalogue::{self, by_name};
use crate::host::{HostSpec, NicSpec, NvlinkTarget, Parent};

pub use cluster::toml;
pub(crate) use cluster::{exact, named, quoted};

/// PCIe speeds as sysfs writes them, with NCCL's figure per lane in units of 1/80 GB/s.
const SPEEDS: [(&str, f64); 6] = [
    ("2.5 GT/s PCIe", 15.0),
    ("5.0 GT/s PCIe", 30.0),
    ("8.0 GT/s PCIe", 60.0),
    ("16.0 GT/s PCIe", 120.0),
    ("32.0 GT/s PCIe", 240.0),
    ("64.0 GT/s PCIe", 480.0),
];

/// Speed and width whose rate by NCCL's rule is nearest, the wider of equals.
fn pcie(rate: Bandwidth) -> (&'static str, u32) {
    let mut best = (f64::INFINITY, SPEEDS[0].0, 16);
    for width in [16, 8, 4, 2, 1] {
        for (speed, per_lane) in SPEEDS {
            let distance = (per_lane * f64::from(width) / 80.0 - rate.gb_per_s()).abs();
            if distance < best.0 {
                best = (distance, speed, width);
            }
        }
    }
    (best.1, best.2)
}

/// A host as NCCL topology XML.
///
/// GPU products without a PCI device id are not kept: the format has no place for them. The rate between CPU sockets is kept where
/// NCCL has a CPU of the vendor with that rate.
pub fn xml(host: &HostSpec) -> String {
    let mut out = String::from("<system version=\"1\">\n");
    for (index, cpu) in host.cpus.iter().enumerate() {
        let vendor = escape(&cpu.vendor);
        let (arch, model) = catalogue::cpu_of(&cpu.vendor, cpu.interconnect);
        let _ = write!(out, "  <cpu numaid=\"{index}\" arch=\"{arch}\" vendor=\"{vendor}\"");
        if let Some(model) = model {
            // All of Intel's are of family 6.
            let _ = write!(out, " familyid=\"6\" modelid=\"{model}\"");
        }
        out.push_str(">\n");
        children(host, Parent::Cpu(index), 2, &mut out);
        out.push_str("  </cpu>\n");
    }
    out.push_str("</system>\n");
    out
}

/// A bus id that no real device has, for devices whose source gives none.
fn made_up(kind: u32, index: usize) -> String {
    format!("{:04x}:{:02x}:00.0", 0xc000 + kind, index)
}

fn children(host: &HostSpec, parent: Parent, depth: usize, out: &mut String) {
    let pad = "  ".repeat(depth);
    let open = |out: &mut String, bus: &str, class: &str, device: &str, rate: Bandwidth| {
        let (speed, width) = pcie(rate);
        let _ = writeln!(
            out,
            "{pad}<pci busid=\"{}\" class=\"{class}\"{device} link_speed=\"{speed}\" link_width=\"{width}\">",
            escape(bus)
        );
    };
    for (index, switch) in host.switches.iter().enumerate().filter(|(_, s)| s.parent == parent) {
        let bus = switch.bus_id.clone().unwrap_or_else(|| made_up(0, index));
        open(out, &bus, "0x060400", "", switch.rate);
        children(host, Parent::Switch(index), depth + 1, out);
        let _ = writeln!(out, "{pad}</pci>");
    }
    let gpu_bus = |index: usize| host.gpus[index].gpu.bus_id.clone().unwrap_or_else(|| made_up(1, index));
    for (index, gpu) in host.gpus.iter().enumerate().filter(|(_, g)| g.parent == parent) {
        let device = by_name(&gpu.gpu.model)
            .and_then(|p| p.device_ids.first())
            .map_or_else(String::new, |id| format!(" vendor=\"0x10de\" device=\"0x{id:04x}\""));
        open(out, &gpu_bus(index), "0x030200", &device, gpu.pcie_rate);
        let cc = gpu.gpu.compute_capability;
        let _ = writeln!(out, "{pad}  <gpu dev=\"{index}\" sm=\"{cc}\" rank=\"{index}\" gdr=\"1\">");
        for bundle in &gpu.nvlinks {
            let (target, class) = match bundle.target {
                NvlinkTarget::Switch => ("fffffff:ff:ff.0".to_owned(), "0x068000"),
                NvlinkTarget::Gpu(peer) if peer < host.gpus.len() => (gpu_bus(peer), "0x030200"),
                NvlinkTarget::Gpu(_) => continue,
            };
            let count = bundle.count;
            let _ =
                writeln!(out, "{pad}    <nvlink target=\"{}\" count=\"{count}\" tclass=\"{class}\"/>", escape(&target));
        }
        if let Some(rate) = gpu.c2c {
            let _ = writeln!(out, "{pad}    <c2c bw=\"{}\" count=\"1\"/>", rate.get() / 1_000_000);
        }
        let _ = writeln!(out, "{pad}  </gpu>\n{pad}</pci>");
    }
    for (index, spec) in host.nics.iter().enumerate().filter(|(_, n)| n.parent == parent) {
        let nic = &spec.nic;
        let mate = |n: Option<&NicSpec>| nic.card.is_some() && n.is_some_and(|n| n.nic.card == nic.card);
        let first = index == 0 || !mate(host.nics.get(index - 1));
        let last = !mate(host.nics.get(index + 1));
        let prefix = match nic.kind {
            LinkKind::Efa => "rdmap",
            LinkKind::Slingshot => "cxi",
            LinkKind::Roce => "roce",
            LinkKind::Ethernet => "eth",
            _ => "mlx5_",
        };
        // The reader knows RoCE by its name only.
        let name = if nic.name.is_empty() || nic.kind == LinkKind::Roce {
            format!("{prefix}{}", nic.index)
        } else {
            nic.name.clone()
        };
        let bus = spec.bus_id.clone().unwrap_or_else(|| made_up(2, index));
        if first {
            open(out, &bus, "0x020700", "", spec.pcie_rate);
            let _ = writeln!(out, "{pad}  <nic>");
        }
        let rail = nic.rail.map_or_else(String::new, |r| format!(" rail=\"{r}\""));
        // NCCL asks EFA's plugin for what the file leaves out.
        let latency = match nic.latency {
            None if nic.kind == LinkKind::Efa => String::new(),
            known => format!(" latency=\"{}\"", known.unwrap_or(SimDuration::ZERO).as_us()),
        };
        let _ = writeln!(
            out,
            "{pad}    <net name=\"{}\" dev=\"{}\" speed=\"{}\" port=\"1\"{latency} guid=\"0x{index:x}\" maxconn=\"65536\" gdr=\"{}\"{rail}/>",
            escape(&name),
            nic.index,
            nic.rate.get() / 125_000,
            u8::from(nic.gpudirect),
        );
        if last {
            let _ = writeln!(out, "{pad}  </nic>\n{pad}</pci>");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin::spec_any;
    use crate::xml::{self, Document};

    /// Goal: what is written is read back as the same graph.
    #[test]
    fn a_built_in_machine_survives_the_way_through_xml() {
        for name in ["dgx-h100", "dgx-a100", "pcie-box", "h200x4", "oci-h100"] {
            let host = spec_any(name).unwrap().groups[0].host.clone();
            let Document::Machine(back) = xml::read(&xml(&host), "x.xml").unwrap() else { panic!("{name}") };
            assert_eq!(back.gpus.len(), host.gpus.len(), "{name}");
            assert_eq!(back.switches.len(), host.switches.len(), "{name}");
            for (a, b) in back.gpus.iter().zip(&host.gpus) {
                assert_eq!((&a.nvlinks, a.pcie_rate, &a.gpu.model), (&b.nvlinks, b.pcie_rate, &b.gpu.model), "{name}");
            }
            for (a, b) in back.nics.iter().zip(&host.nics) {
                assert_eq!((a.nic.rate, a.nic.kind, a.pcie_rate), (b.nic.rate, b.nic.kind, b.pcie_rate), "{name}");
                assert_eq!(a.nic.card.is_some(), b.nic.card.is_some(), "{name}");
            }
        }
    }
}

//! Reads what `lstopo --of xml` writes (hwloc 2): where the devices of a host sit. What they are comes from a machine
//! that the user names, as for a PCIe template of NCCL's.
//!
//! # Source
//! hwloc's `hwloc2.dtd`: objects, their attributes and nesting; OS devices of type 2 are network interfaces, of type 3
//! RDMA devices. A link's speed is in GB/s of its lanes, after the bus's encoding.

use collcast_sim::units::Bandwidth;
use roxmltree::{Node, NodeId};

use crate::catalogue;
use crate::error::{Source, TopologiesError, quote};
use crate::host::{CpuSpec, Parent, SwitchSpec};
use crate::xml::{self, TemplateDevice, TemplateSpec};

/// Most NUMA nodes and devices of a host.
const MAX_DEVICES: usize = 1024;

/// Most host bridges: a socket has up to 8.
const MAX_BRIDGES: usize = 256;

/// Rate of a lane in GB/s by PCIe generation, after 8b/10b to 2 and 128b/130b from 3 on; source: PCI-SIG, and what
/// hwloc computes from sysfs.
const LANES: [f64; 6] = [0.25, 0.5, 0.984_615, 1.969_231, 3.938_462, 7.876_923];

/// Whether a text is such a file.
pub(crate) fn looks_like(text: &str) -> bool {
    let start: String = text.chars().take(1000).collect();
    start.contains("<topology") && !start.contains("<system")
}

/// Rate by NCCL's rule of the link whose lanes carry so many GB/s; none for 0, which means unknown.
fn rate(speed: f64) -> Option<Bandwidth> {
    let found = (1_u32..).zip(LANES).flat_map(|(generation, lane)| {
        [16, 8, 4, 2, 1].map(|lanes| ((lane * f64::from(lanes) - speed).abs(), generation, lanes))
    });
    let (_, generation, lanes) = found.filter(|(off, ..)| *off < 0.02 * speed).min_by(|a, b| a.0.total_cmp(&b.0))?;
    catalogue::pcie_generation_rate(generation, lanes)
}

/// Reads the file.
///
/// # Errors
/// Malformed XML, another root or version, no NUMA node, no GPU; each with its place.
pub fn read(source: Source<'_>) -> Result<TemplateSpec, TopologiesError> {
    // The document type names hwloc's own grammar, and says nothing more: it is blanked, so that places stay.
    let mut text = source.text.to_owned();
    if let Some(start) = text.find("<!DOCTYPE")
        && let Some(length) = text[start..].find('>')
        && !text[start..start + length].contains('[')
    {
        text.replace_range(start..=start + length, &" ".repeat(length + 1));
    }
    let source = Source { file: source.file, text: &text };
    let tree = xml::parse(source)?;
    let root = tree.root_element();
    let wrong = |message: String, hint: &str| TopologiesError::Schema(source.whole(message, hint));
    if !root.has_tag_name("topology") {
        return Err(wrong(format!("`<{}>` is not the root of a file of lstopo", quote(root.tag_name().name())), HINT));
    }
    if root.attribute("version").is_none_or(|version| !version.starts_with(['2', '3'])) {
        return Err(wrong("the file is of hwloc 1, whose objects are others".to_owned(), HINT));
    }
    let host = TemplateSpec { file: source.file.to_owned(), ..TemplateSpec::default() };
    let mut walk = Walk { source, host, cpus: Vec::new(), nics: Vec::new() };
    let mut other = 0;
    for node in objects(root).filter(|node| node.attribute("type") == Some("NUMANode")) {
        // Memory of a GPU is a node without cores, or says what it is.
        let cores = node.attribute("cpuset").is_none_or(|set| set.chars().any(|c| matches!(c, '1'..='9' | 'a'..='f')));
        if cores && node.attribute("subtype").is_none_or(|kind| kind != "GPUMemory") {
            walk.cpu(node)?;
        } else {
            other += 1;
        }
    }
    if walk.host.cpus.is_empty() {
        return Err(wrong("the file has no NUMA node".to_owned(), HINT));
    }
    let bridges: Vec<Node<'_, '_>> = objects(root).filter(|node| is_host_bridge(*node)).collect();
    if bridges.len() > MAX_BRIDGES {
        return Err(wrong(format!("the file has over {MAX_BRIDGES} host bridges"), HINT));
    }
    for bridge in bridges.into_iter().filter(|bridge| useful(*bridge)) {
        let parent = Parent::Cpu(walk.cpu_of(bridge));
        for child in children(bridge) {
            walk.device(child, parent, None)?;
        }
    }
    walk.finish(other)
}

const HINT: &str = "write it with `lstopo --of xml FILE.xml`, hwloc 2 or later";

fn objects<'a, 'i>(root: Node<'a, 'i>) -> impl Iterator<Item = Node<'a, 'i>> {
    root.descendants().filter(|node| node.has_tag_name("object"))
}

fn children<'a, 'i>(node: Node<'a, 'i>) -> impl Iterator<Item = Node<'a, 'i>> {
    node.children().filter(|child| child.has_tag_name("object"))
}

fn is_host_bridge(node: Node<'_, '_>) -> bool {
    node.attribute("type") == Some("Bridge") && node.attribute("bridge_type").is_some_and(|kind| kind.starts_with('0'))
}

/// Class and vendor of a PCI device: `0302 [10de:2330] [10de:16c1] a1`.
fn class(node: Node<'_, '_>) -> Option<(u32, u32)> {
    let text = node.attribute("pci_type")?;
    let class = u32::from_str_radix(text.split_whitespace().next()?, 16).ok()?;
    let vendor = text.split_once('[').and_then(|(_, rest)| u32::from_str_radix(rest.get(..4)?, 16).ok())?;
    Some((class, vendor))
}

/// NVIDIA's number among PCI vendors.
const NVIDIA: u32 = 0x10de;

/// Whether there is a GPU or a NIC below, or it is one.
fn useful(node: Node<'_, '_>) -> bool {
    objects(node).any(|node| {
        node.attribute("type") == Some("PCIDev")
            && class(node).is_some_and(|(class, vendor)| class >> 8 == 0x02 || (class >> 8 == 0x03 && vendor == NVIDIA))
    })
}

struct Walk<'s> {
    source: Source<'s>,
    host: TemplateSpec,
    /// The NUMA node of each CPU.
    cpus: Vec<NodeId>,
    /// Whether each NIC has an RDMA device.
    nics: Vec<bool>,
}

impl Walk<'_> {
    fn too_many(&self, what: &str) -> TopologiesError {
        let message = format!("the file has over {MAX_DEVICES} {what}");
        TopologiesError::TooLarge(self.source.whole(message, "one file describes one host"))
    }

    fn cpu(&mut self, node: Node<'_, '_>) -> Result<(), TopologiesError> {
        if self.host.cpus.len() >= MAX_DEVICES {
            return Err(self.too_many("NUMA nodes"));
        }
        let info = |name: &str| {
            node.ancestors().find_map(|at| {
                let infos = at.children().filter(|child| child.has_tag_name("info"));
                infos.into_iter().find(|i| i.attribute("name") == Some(name)).and_then(|i| i.attribute("value"))
            })
        };
        let vendor = info("CPUVendor").unwrap_or_default();
        let model = info("CPUModelNumber").and_then(|model| model.parse().ok()).unwrap_or(0);
        let arch = info("Architecture").unwrap_or_default();
        let (interconnect, _) = catalogue::cpu_interconnect(arch, vendor, model);
        self.host.cpus.push(CpuSpec { vendor: vendor.to_owned(), interconnect });
        self.host.cpu_named.push(!vendor.is_empty());
        self.cpus.push(node.id());
        Ok(())
    }

    /// The NUMA node that a bridge is nearest to, by its order in the file.
    fn cpu_of(&mut self, bridge: Node<'_, '_>) -> usize {
        for at in bridge.ancestors() {
            let mut near = objects(at).filter_map(|node| self.cpus.iter().position(|id| *id == node.id()));
            let Some(nearest) = near.next() else { continue };
            let note = "devices that lstopo shows at no one NUMA node are put at the first of several".to_owned();
            if near.next().is_some() && !self.host.assumptions.contains(&note) {
                self.host.assumptions.push(note);
            }
            return nearest;
        }
        0
    }

    /// A bridge with what is below it, or a device. `above` is the narrowest link on the way.
    fn device(&mut self, node: Node<'_, '_>, parent: Parent, above: Option<Bandwidth>) -> Result<(), TopologiesError> {
        if !useful(node) {
            return Ok(());
        }
        let speed = node.attribute("pci_link_speed").and_then(|speed| speed.parse().ok()).unwrap_or(0.0);
        let link = match (rate(speed), above) {
            (Some(own), Some(above)) => Some(own.min(above)),
            (own, above) => own.or(above),
        };
        if node.attribute("type") == Some("Bridge") {
            let below: Vec<Node<'_, '_>> = children(node).filter(|child| useful(*child)).collect();
            // A port has one thing below; what has several is a switch.
            if let [one] = below[..] {
                return self.device(one, parent, link);
            }
            if self.host.switches.len() >= MAX_DEVICES {
                return Err(self.too_many("PCIe switches"));
            }
            let bus_id = node.attribute("pci_busid").map(str::to_lowercase);
            let rate = link.unwrap_or_else(catalogue::unknown_pcie_rate);
            self.host.switches.push(SwitchSpec { bus_id, parent, rate });
            let switch = Parent::Switch(self.host.switches.len() - 1);
            return below.into_iter().try_for_each(|child| self.device(child, switch, None));
        }
        let (Some((class, _)), Some(bus)) = (class(node), node.attribute("pci_busid")) else { return Ok(()) };
        if self.host.gpus.len() + self.host.nics.len() >= MAX_DEVICES {
            return Err(self.too_many("GPUs and NICs"));
        }
        let device = TemplateDevice { bus_id: bus.to_lowercase(), parent, rate: link };
        if class >> 8 == 0x03 {
            self.host.gpus.push(device);
        } else {
            let rdma = children(node).any(|child| child.attribute("osdev_type") == Some("3"));
            self.host.nics.push(device);
            self.nics.push(rdma);
        }
        Ok(())
    }

    fn finish(mut self, other: usize) -> Result<TemplateSpec, TopologiesError> {
        let Self { host, nics, source, .. } = &mut self;
        if host.gpus.is_empty() {
            return Err(TopologiesError::NotAMachine(source.whole(
                format!("`{}` shows no GPU of NVIDIA", quote(source.file)),
                "run lstopo on a GPU host, and outside containers that hide PCI devices",
            )));
        }
        host.gpus.sort_by(|a, b| a.bus_id.cmp(&b.bus_id));
        if nics.contains(&true) && nics.contains(&false) {
            let mut rdma = nics.iter();
            let before = host.nics.len();
            host.nics.retain(|_| rdma.next().copied().unwrap_or(false));
            host.assumptions.push(format!("{} NICs without RDMA are left out", before - host.nics.len()));
        }
        host.nics.sort_by(|a, b| a.bus_id.cmp(&b.bus_id));
        if other > 0 {
            host.assumptions.push(format!("{other} NUMA nodes without cores, such as memory of GPUs, are left out"));
        }
        Ok(self.host)
    }
}

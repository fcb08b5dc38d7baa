//! NCCL's XML: topology dumps, PCIe templates that clouds ship, and graph files.
//!
//! One reader, three kinds of document, told apart by content: a `system` with a `gpu` is a
//! machine, one without is a template, a `graphs` root is what NCCL chose.
//!
//! # Source
//! NCCL `src/graph/xml.cc`, `xml.h`, `topo.cc`: tags, attributes and what NCCL ignores.

mod attributes;
mod document;
mod graphs;
mod scan;

use std::collections::HashMap;

use collcast_sim::topology::{Gpu, LinkKind, Nic};
use collcast_sim::units::{Bandwidth, SimDuration};
use roxmltree::{Document as Tree, Node, ParsingOptions};

use crate::catalogue;
use crate::error::{Source, TopologiesError, quote};
use crate::host::{CpuSpec, GpuSpec, HostSpec, NicSpec, NvlinkSpec, NvlinkTarget, Parent, SwitchLink, SwitchSpec};

use attributes::{Reader, name_span, value_span};
pub use document::{Channel, Document, Graph, GraphSpec, TemplateDevice, TemplateSpec};
use scan::scan;
pub use scan::{MAX_ATTRIBUTES, MAX_DEPTH, MAX_ELEMENTS};

/// Most CPUs, and most GPUs, of one host.
const MAX_DEVICES: usize = 1024;

/// What NCCL assumes for a NIC that reports no speed, in GB/s: 10 Gbit/s; source: NCCL `src/graph/topo.cc`.
const UNKNOWN_NIC_GB_PER_S: f64 = 1.25;

/// What NCCL writes for an NVSwitch that a virtual machine does not show.
const HIDDEN_NVSWITCH: &str = "fffffff:ff:ff.0";

/// Reads a document of any class.
///
/// # Errors
/// Truncated or otherwise malformed XML, a DTD or entity declaration, too deep or too large,
/// another root, a device twice, a value that is no number: each with line and column.
pub fn read(text: &str, file: &str) -> Result<Document, TopologiesError> {
    let source = Source::decode(file, text.as_bytes())?;
    let tree = parse(source)?;
    let root = tree.root_element();
    let reader = Reader { source };
    reader.check_version(root)?;
    match root.tag_name().name() {
        "graphs" => reader.graphs(root).map(Document::Graph),
        "system" => {
            let machine = root.descendants().any(|n| n.has_tag_name("gpu") && n.attribute("dev").is_some());
            let mut walk = Walk::new(reader);
            walk.system(root)?;
            if machine {
                walk.into_machine().map(Document::Machine)
            } else {
                Ok(Document::Template(walk.into_template()))
            }
        }
        other => Err(TopologiesError::Schema(source.at(
            name_span(root),
            format!("`<{}>` is not the root of a file of NCCL", quote(other)),
            "expected <system> or <graphs>",
            "NCCL writes the file with NCCL_TOPO_DUMP_FILE=nccl_topo.xml",
        ))),
    }
}

/// XML as a tree of bounded depth and size, without entities.
///
/// # Errors
/// As [`read`].
pub(crate) fn parse(source: Source<'_>) -> Result<Tree<'_>, TopologiesError> {
    scan(source)?;
    let options =
        ParsingOptions { allow_dtd: false, nodes_limit: MAX_ELEMENTS.saturating_mul(4), ..ParsingOptions::default() };
    Tree::parse_with_options(source.text, options).map_err(|error| malformed(source, &error))
}

/// Reads a whole machine.
///
/// # Errors
/// As [`read`]; [`TopologiesError::NotAMachine`] for a template or a graph file, naming the
/// way out.
pub fn read_machine(text: &str, file: &str) -> Result<HostSpec, TopologiesError> {
    let source = Source::new(file, text);
    match read(text, file)? {
        Document::Machine(host) => Ok(host),
        Document::Template(_) => Err(TopologiesError::NotAMachine(source.whole(
            format!("`{}` is a PCIe template: it says where devices sit, but lists no <gpu>", quote(file)),
            "merge it with a machine: topo import FILE --like dgx-h100",
        ))),
        Document::Graph(_) => Err(TopologiesError::NotAMachine(source.whole(
            format!("`{}` is a graph file: the channels that NCCL chose, not a machine", quote(file)),
            "dump the machine with NCCL_TOPO_DUMP_FILE, or merge a template: topo import FILE \
             --like dgx-h100",
        ))),
    }
}

fn malformed(source: Source<'_>, error: &roxmltree::Error) -> TopologiesError {
    let place = error.pos();
    let line_start =
        source.text.split_inclusive('\n').take((place.row as usize).saturating_sub(1)).map(str::len).sum::<usize>();
    let column =
        source.text[line_start..].char_indices().nth((place.col as usize).saturating_sub(1)).map_or(0, |(i, _)| i);
    let start = line_start + column;
    TopologiesError::Syntax(source.at(
        start..start + 1,
        format!("the file cannot be read as XML: {}", quote(&error.to_string())),
        "here",
        "NCCL writes the file with NCCL_TOPO_DUMP_FILE=nccl_topo.xml",
    ))
}

/// A GPU as found, before its NVLink targets are known.
struct FoundGpu<'a, 'i> {
    dev: u32,
    spec: GpuSpec,
    node: Node<'a, 'i>,
}

/// What is said of the rate between sockets that the file gives no other one for.
pub(crate) const OF_SOCKETS: &str = "between CPU sockets: NCCL's figure for the CPU model";

/// The second pass over a `system`: collects devices.
struct Walk<'a, 'i, 's> {
    reader: Reader<'s>,
    host: HostSpec,
    cpu_named: Vec<bool>,
    gpus: Vec<FoundGpu<'a, 'i>>,
    bus_ids: HashMap<String, ()>,
    switch_by_bus: HashMap<String, usize>,
    pci_links: Vec<(usize, Node<'a, 'i>, Bandwidth)>,
    template_gpus: Vec<TemplateDevice>,
    template_nics: Vec<TemplateDevice>,
    unknown: Vec<TemplateDevice>,
    no_speed: u32,
    zero_width: u32,
}

/// The rate of a PCIe link as the file gives it.
struct PciLink {
    rate: Bandwidth,
    given: bool,
    no_lane: bool,
}

impl<'a, 'i, 's> Walk<'a, 'i, 's> {
    fn new(reader: Reader<'s>) -> Self {
        Self {
            reader,
            host: HostSpec::default(),
            cpu_named: Vec::new(),
            gpus: Vec::new(),
            bus_ids: HashMap::new(),
            switch_by_bus: HashMap::new(),
            pci_links: Vec::new(),
            template_gpus: Vec::new(),
            template_nics: Vec::new(),
            unknown: Vec::new(),
            no_speed: 0,
            zero_width: 0,
        }
    }

    fn system(&mut self, root: Node<'a, 'i>) -> Result<(), TopologiesError> {
        for cpu in root.children().filter(Node::is_element) {
            if cpu.has_tag_name("cpu") {
                self.cpu(cpu)?;
            } else {
                self.skip(cpu);
            }
        }
        if self.host.cpus.is_empty() {
            return Err(TopologiesError::Schema(self.reader.source.at(
                name_span(root),
                "the file has no <cpu>",
                "nothing inside",
                "NCCL puts every device below a CPU; dump the file again",
            )));
        }
        if self.no_speed > 0 {
            self.host
                .assume(format!("{} PCIe links without a known speed: PCIe 3.0 assumed, as NCCL does", self.no_speed));
        }
        if self.zero_width > 0 {
            self.host.assume(format!("{} PCIe links of width 0: 16 lanes assumed, as NCCL does", self.zero_width));
        }
        if self.host.cpus.len() > 1 {
            let rates: std::collections::BTreeSet<String> =
                self.host.cpus.iter().map(|c| c.interconnect.to_string()).collect();
            let rates: Vec<String> = rates.into_iter().collect();
            self.host.assume(format!("{} {OF_SOCKETS}", rates.join(", ")));
        }
        Ok(())
    }

    fn skip(&mut self, node: Node<'_, '_>) {
        self.host.assume(format!("<{}> is not understood and left out", quote(node.tag_name().name())));
    }

    fn cpu(&mut self, node: Node<'a, 'i>) -> Result<(), TopologiesError> {
        if self.host.cpus.len() >= MAX_DEVICES / 4 {
            return Err(self.too_many(node, "CPUs", MAX_DEVICES / 4));
        }
        let vendor = node.attribute("vendor").unwrap_or_default();
        let arch = node.attribute("arch").unwrap_or_default();
        let model = self.reader.small(node, "modelid", u32::MAX)?.unwrap_or(0);
        let (interconnect, _) = catalogue::cpu_interconnect(arch, vendor, model);
        let index = self.host.cpus.len();
        self.host.cpus.push(CpuSpec { vendor: vendor.trim().to_owned(), interconnect });
        self.cpu_named.push(!vendor.is_empty() || !arch.is_empty());
        for child in node.children().filter(Node::is_element) {
            match child.tag_name().name() {
                "pci" => self.pci(child, Parent::Cpu(index))?,
                "nic" => self.nic(child, Parent::Cpu(index), None)?,
                _ => self.skip(child),
            }
        }
        Ok(())
    }

    fn too_many(&self, node: Node<'_, '_>, what: &str, limit: usize) -> TopologiesError {
        TopologiesError::TooLarge(self.reader.source.at(
            name_span(node),
            format!("the file has over {limit} {what}"),
            "one too many",
            "one file describes one host",
        ))
    }

    /// Speed and width of a PCIe link by NCCL's rule.
    fn pci_link(&mut self, node: Node<'_, '_>) -> Result<PciLink, TopologiesError> {
        let lanes = self.reader.small(node, "link_width", 1024)?;
        let text = node.attribute("link_speed").unwrap_or_default().trim();
        let number: String = text.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
        let known = number.parse::<f64>().ok().and_then(|speed| catalogue::pcie_rate(speed, lanes.unwrap_or(0)));
        let rate = known
            .or_else(|| catalogue::pcie_rate(8.0, lanes.unwrap_or(0)))
            .unwrap_or_else(catalogue::unknown_pcie_rate);
        Ok(PciLink { rate, given: known.is_some(), no_lane: lanes == Some(0) })
    }

    /// The rate of a link that the machine has; of places in a template it is the device's own that counts.
    fn taken(&mut self, link: &PciLink) -> Bandwidth {
        self.no_speed += u32::from(!link.given);
        self.zero_width += u32::from(link.no_lane);
        link.rate
    }

    fn pci(&mut self, node: Node<'a, 'i>, parent: Parent) -> Result<(), TopologiesError> {
        let Some(bus_id) = node.attribute("busid").map(str::to_lowercase) else {
            return Err(self.reader.value_error(node, "busid", "a PCI bus id such as 0000:18:00.0"));
        };
        if self.bus_ids.insert(bus_id.clone(), ()).is_some() {
            return Err(TopologiesError::Contradiction(self.reader.source.at(
                value_span(node, "busid"),
                format!("the PCI device `{}` is listed twice", quote(&bus_id)),
                "listed again",
                "each device has one place in the tree",
            )));
        }
        let class = node.attribute("class").unwrap_or_default();
        let class =
            parse_class(class).ok_or_else(|| self.reader.value_error(node, "class", "a class such as 0x060400"))?;
        let has = |tag: &str| node.children().any(|c| c.has_tag_name(tag));
        let link = self.pci_link(node)?;
        let device =
            |rate: &PciLink| TemplateDevice { bus_id: bus_id.clone(), parent, rate: rate.given.then_some(rate.rate) };
        if has("gpu") {
            let rate = self.taken(&link);
            return self.gpu(node, &bus_id, parent, rate);
        }
        match class {
            _ if has("nic") && !has("pci") => {
                let rate = self.taken(&link);
                for nic in node.children().filter(|c| c.has_tag_name("nic")) {
                    self.nic(nic, parent, Some((&bus_id, rate)))?;
                }
            }
            Some(0x06_8000) => {
                self.host.assume("NVSwitches of the PCIe tree are left out: all NVSwitches are one element");
            }
            Some(c) if c >> 16 == 0x03 => self.template_gpus.push(device(&link)),
            Some(c) if c >> 16 == 0x02 => self.template_nics.push(device(&link)),
            _ if has("pci") || has("pcilink") || class.is_some_and(|c| c >> 8 == 0x0604) => {
                let rate = self.taken(&link);
                self.switch(node, bus_id, parent, rate)?;
            }
            _ => self.unknown.push(device(&link)),
        }
        Ok(())
    }

    fn switch(
        &mut self,
        node: Node<'a, 'i>,
        bus_id: String,
        parent: Parent,
        rate: Bandwidth,
    ) -> Result<(), TopologiesError> {
        let index = self.host.switches.len();
        self.switch_by_bus.insert(bus_id.clone(), index);
        self.host.switches.push(SwitchSpec { bus_id: Some(bus_id), parent, rate });
        let below = Parent::Switch(index);
        for child in node.children().filter(Node::is_element) {
            match child.tag_name().name() {
                "pci" => self.pci(child, below)?,
                "nic" => self.nic(child, below, None)?,
                "pcilink" => self.pci_links.push((index, child, rate)),
                _ => self.skip(child),
            }
        }
        Ok(())
    }

    fn gpu(
        &mut self,
        pci: Node<'a, 'i>,
        bus_id: &str,
        parent: Parent,
        pcie_rate: Bandwidth,
    ) -> Result<(), TopologiesError> {
        let product = self
            .reader
            .int(pci, "device", 0, i64::from(u32::MAX))?
            .and_then(|d| u32::try_from(d).ok())
            .and_then(catalogue::by_device_id);
        for node in pci.children().filter(|c| c.has_tag_name("gpu")) {
            let Some(dev) = self.reader.small(node, "dev", u32::MAX)? else {
                self.host.assume("a <gpu> without `dev` is left out, as NCCL does");
                continue;
            };
            if self.gpus.len() >= MAX_DEVICES {
                return Err(self.too_many(node, "GPUs", MAX_DEVICES));
            }
            if self.gpus.iter().any(|g| g.dev == dev) {
                return Err(TopologiesError::Contradiction(self.reader.source.at(
                    value_span(node, "dev"),
                    format!("GPU {dev} is listed twice"),
                    "listed again",
                    "`dev` is the CUDA device number, different for each GPU",
                )));
            }
            let said = self.reader.small(node, "sm", 999)?.filter(|&capability| capability > 0);
            let capability = said.or(product.map(|p| p.compute_capability)).unwrap_or(0);
            self.gpus.push(FoundGpu {
                dev,
                node,
                spec: GpuSpec {
                    gpu: Gpu {
                        index: 0,
                        model: product.map_or_else(String::new, |p| p.name.to_owned()),
                        compute_capability: capability,
                        memory_rate: product.map(catalogue::Product::memory_rate),
                        bus_id: Some(bus_id.to_owned()),
                    },
                    parent,
                    pcie_rate,
                    nvlinks: Vec::new(),
                    c2c: self.c2c(node)?,
                },
            });
        }
        Ok(())
    }

    /// Rate of the chip-to-chip links: MB/s a link times the count.
    fn c2c(&self, gpu: Node<'_, '_>) -> Result<Option<Bandwidth>, TopologiesError> {
        let mut total = 0_u64;
        for node in gpu.children().filter(|c| c.has_tag_name("c2c")) {
            let rate = self.reader.small(node, "bw", 100_000_000)?.unwrap_or(0);
            let count = self.reader.small(node, "count", 1024)?.unwrap_or(0);
            total += u64::from(rate) * u64::from(count) * 1_000_000;
        }
        Ok(Bandwidth::new(total))
    }

    fn nic(
        &mut self,
        node: Node<'a, 'i>,
        parent: Parent,
        pci: Option<(&str, Bandwidth)>,
    ) -> Result<(), TopologiesError> {
        let vendor = node.parent_element().and_then(|p| p.attribute("vendor")).unwrap_or_default();
        let ports = node.children().filter(|n| n.has_tag_name("net") && n.has_attribute("dev")).count();
        let card = (ports > 1).then(|| u32::try_from(self.host.nics.len()).unwrap_or(u32::MAX));
        for net in node.children().filter(Node::is_element) {
            if !net.has_tag_name("net") {
                self.skip(net);
                continue;
            }
            let Some(dev) = self.reader.int(net, "dev", 0, 1 << 20)? else {
                self.host.assume("a <net> without `dev` is left out, as NCCL does");
                continue;
            };
            if self.host.nics.len() >= MAX_DEVICES {
                return Err(self.too_many(net, "NICs", MAX_DEVICES));
            }
            let speed = self.reader.int(net, "speed", -1, 100_000_000)?.unwrap_or(0);
            let known = u64::try_from(speed).ok().and_then(|mega_bits| Bandwidth::new(mega_bits * 125_000));
            let rate = known.unwrap_or_else(|| {
                self.host.assume("a NIC without a speed: 10 Gb/s assumed, as NCCL does");
                Bandwidth::from_gb_per_s(UNKNOWN_NIC_GB_PER_S)
            });
            let name = net.attribute("name").unwrap_or_default().to_owned();
            let gdr = self.reader.small(net, "gdr", 100)?.unwrap_or(0) > 0;
            let port = self.reader.int(net, "port", -1, 1 << 20)?.unwrap_or(0);
            let latency = self.reader.real(net, "latency")?;
            let latency = net.has_attribute("latency").then(|| SimDuration::from_us(latency));
            let kind = self.nic_kind(&name, vendor, gdr, port);
            if pci.is_none() {
                self.host
                    .assume(format!("NIC `{}` sits below no PCI device: its own rate is its only limit", quote(&name)));
            }
            self.host.nics.push(NicSpec {
                nic: Nic {
                    index: u32::try_from(dev).unwrap_or(0),
                    name,
                    kind,
                    rate,
                    gpudirect: gdr,
                    gpudirect_rate: None,
                    rail: self.reader.int(net, "rail", -1, 1023)?.and_then(|r| u32::try_from(r).ok()),
                    card,
                    management: false,
                    latency,
                },
                parent,
                pcie_rate: pci.map_or(rate, |p| p.1),
                bus_id: pci.map(|p| p.0.to_owned()),
            });
        }
        Ok(())
    }

    /// What a NIC speaks, by driver name and PCI vendor: the file does not say.
    fn nic_kind(&mut self, name: &str, vendor: &str, gdr: bool, port: i64) -> LinkKind {
        let starts = |prefixes: &[&str]| prefixes.iter().any(|p| name.starts_with(p));
        if vendor == "0x1d0f" || starts(&["efa", "rdmap", "rdma"]) {
            LinkKind::Efa
        } else if starts(&["cxi", "hsn"]) {
            LinkKind::Slingshot
        } else if starts(&["roce", "bnxt_re", "irdma"]) {
            LinkKind::Roce
        } else if starts(&["eth", "en", "bond", "lo"]) || (!gdr && port == 0) {
            LinkKind::Ethernet
        } else {
            self.host.assume("NICs are taken as InfiniBand: NCCL's file does not tell it from RoCE");
            LinkKind::Infiniband
        }
    }

    fn nvlinks(&mut self) -> Result<(), TopologiesError> {
        let place: HashMap<String, usize> =
            self.host.gpus.iter().enumerate().filter_map(|(i, g)| g.gpu.bus_id.clone().map(|b| (b, i))).collect();
        let nodes: Vec<Node<'a, 'i>> = self.gpus.iter().map(|g| g.node).collect();
        for (i, node) in nodes.into_iter().enumerate() {
            let capability = self.host.gpus[i].gpu.compute_capability;
            for link in node.children().filter(|c| c.has_tag_name("nvlink")) {
                let count = self.reader.small(link, "count", 1024)?.unwrap_or(0);
                if count == 0 {
                    continue;
                }
                let rate = catalogue::nvlink_rate(capability).unwrap_or_else(|| {
                    self.host.assume("the GPU generation has no known NVLink rate: 25 GB/s a link assumed");
                    catalogue::unknown_nvlink_rate()
                });
                self.nvlink(i, link, count, rate, &place);
            }
        }
        self.mirror_nvlinks();
        Ok(())
    }

    fn nvlink(&mut self, gpu: usize, link: Node<'_, '_>, count: u32, rate: Bandwidth, place: &HashMap<String, usize>) {
        let target = link.attribute("target").unwrap_or_default().to_lowercase();
        let class = parse_class(link.attribute("tclass").unwrap_or_default()).flatten();
        let peer = place.get(&target).copied();
        let target = match (class, peer) {
            (_, Some(peer)) if peer == gpu => {
                self.host.assume(format!(
                    "{count} NVLinks of GPU {gpu} point at the GPU itself and are left out: the \
                     file hides their other end"
                ));
                return;
            }
            (_, Some(peer)) => NvlinkTarget::Gpu(peer),
            (Some(0x06_8000), None) => NvlinkTarget::Switch,
            (Some(0x06_8001), None) => {
                // NVLink to a POWER CPU: a link to the CPU like C2C.
                let all = rate.times(u64::from(count));
                let gpu = &mut self.host.gpus[gpu];
                let sum = gpu.c2c.map_or(0, Bandwidth::get).saturating_add(all.get());
                gpu.c2c = Bandwidth::new(sum);
                return;
            }
            (None, None) if target == HIDDEN_NVSWITCH => NvlinkTarget::Switch,
            _ => {
                self.host.assume(format!(
                    "{count} NVLinks of GPU {gpu} go to `{}`, which the file does not list; they \
                     are left out",
                    quote(&target)
                ));
                return;
            }
        };
        let bundles = &mut self.host.gpus[gpu].nvlinks;
        match bundles.iter_mut().find(|b| b.target == target) {
            Some(bundle) => bundle.count = bundle.count.saturating_add(count).min(1024),
            None => bundles.push(NvlinkSpec { target, count, rate_per_link: rate }),
        }
    }

    /// Bundles between GPUs are listed at both ends; a missing end is added.
    fn mirror_nvlinks(&mut self) {
        let mut missing = Vec::new();
        for (i, gpu) in self.host.gpus.iter().enumerate() {
            for bundle in &gpu.nvlinks {
                if let NvlinkTarget::Gpu(peer) = bundle.target
                    && let Some(other) = self.host.gpus.get(peer)
                    && !other.nvlinks.iter().any(|b| b.target == NvlinkTarget::Gpu(i))
                {
                    let mut back = bundle.clone();
                    back.target = NvlinkTarget::Gpu(i);
                    missing.push((peer, back));
                }
            }
        }
        for (gpu, bundle) in missing {
            self.host.assume(format!("NVLinks of GPU {gpu} that only the other end lists are taken as both ways"));
            self.host.gpus[gpu].nvlinks.push(bundle);
        }
    }

    fn switch_links(&mut self) {
        for (from, node, rate) in std::mem::take(&mut self.pci_links) {
            let target = node.attribute("target").unwrap_or_default().to_lowercase();
            match self.switch_by_bus.get(&target) {
                Some(&to) if to > from || !self.has_switch_link(to, from) => {
                    if to != from && !self.has_switch_link(from, to) {
                        self.host.switch_links.push(SwitchLink { from, to, rate });
                    }
                }
                Some(_) => {}
                None => self.host.assume(format!(
                    "a PCIe link goes to `{}`, which the file does not list; it is left out",
                    quote(&target)
                )),
            }
        }
    }

    fn has_switch_link(&self, a: usize, b: usize) -> bool {
        self.host.switch_links.iter().any(|l| (l.from == a && l.to == b) || (l.from == b && l.to == a))
    }

    fn into_machine(mut self) -> Result<HostSpec, TopologiesError> {
        self.gpus.sort_by_key(|g| g.dev);
        for (i, gpu) in self.gpus.iter().enumerate() {
            let mut spec = gpu.spec.clone();
            spec.gpu.index = u32::try_from(i).unwrap_or(u32::MAX);
            self.host.gpus.push(spec);
        }
        self.nvlinks()?;
        self.host.assume_capability();
        self.switch_links();
        if !self.template_gpus.is_empty() {
            self.host
                .assume(format!("{} GPUs of the PCIe tree have no <gpu> and are left out", self.template_gpus.len()));
        }
        self.slow_switches();
        finish_nics(&mut self.host);
        Ok(self.host)
    }

    /// Some bridges report the speed of their management port; the file is followed all the
    /// same, and the user told.
    fn slow_switches(&mut self) {
        let below: Vec<(Parent, Bandwidth)> = self
            .host
            .switches
            .iter()
            .map(|s| (s.parent, s.rate))
            .chain(self.host.gpus.iter().map(|g| (g.parent, g.pcie_rate)))
            .collect();
        let slow = (0..self.host.switches.len())
            .filter(|&i| below.iter().any(|(p, r)| *p == Parent::Switch(i) && *r > self.host.switches[i].rate))
            .count();
        if slow > 0 {
            self.host.assume(format!(
                "{slow} PCIe switches report an uplink slower than what is below them; taken as \
                 the file says, which is also what NCCL does"
            ));
        }
    }

    fn into_template(self) -> TemplateSpec {
        TemplateSpec {
            file: self.reader.source.file.to_owned(),
            cpus: self.host.cpus,
            cpu_named: self.cpu_named,
            switches: self.host.switches,
            gpus: self.template_gpus,
            nics: self.template_nics,
            unknown: self.unknown,
            assumptions: self.host.assumptions,
        }
    }
}

/// Numbers the NICs and sets Ethernet apart for management where there is RDMA.
pub(crate) fn finish_nics(host: &mut HostSpec) {
    host.nics.sort_by_key(|n| n.nic.index);
    let rdma = host.nics.iter().any(|n| n.nic.kind != LinkKind::Ethernet);
    if rdma {
        let mut set_apart = false;
        for nic in &mut host.nics {
            if nic.nic.kind == LinkKind::Ethernet {
                nic.nic.management = true;
                set_apart = true;
            }
        }
        if set_apart {
            host.assume("Ethernet NICs beside RDMA ones are taken as management only");
        }
    }
    host.nics.sort_by_key(|n| n.nic.management);
    for (i, nic) in host.nics.iter_mut().enumerate() {
        nic.nic.index = u32::try_from(i).unwrap_or(u32::MAX);
    }
}

/// A PCI class; `Some(None)` where there is none, `None` where it is no number.
#[allow(clippy::option_option)]
fn parse_class(text: &str) -> Option<Option<u32>> {
    if text.is_empty() {
        return Some(None);
    }
    let digits = text.trim_start_matches("0x");
    u32::from_str_radix(digits, 16).ok().map(Some)
}

//! Reads a log of `NCCL_DEBUG=INFO` as a machine: with the subsystem GRAPH it has the whole host, as NCCL sees it, and
//! without it the hosts, the version and the variables alone.
//!
//! # Source
//! NCCL `src/graph/topo.cc` (`ncclTopoPrint`, versions 2.12 to 2.28) and logs of them: below `=== System`, a line a link,
//! indented by its depth, rates in GB/s by NCCL's rules.

use std::collections::{BTreeMap, HashMap, HashSet};

use collcast_sim::nccl::nvlink::{self, Nvlinks};
use collcast_sim::nccl::version::Version;
use collcast_sim::topology::{Gpu, LinkKind, Nic, Software};
use collcast_sim::units::Bandwidth;

use crate::catalogue;
use crate::cluster::{ClusterSpec, HostGroup, MAX_GPUS};
use crate::error::{Source, TopologiesError};
use crate::host::{CpuSpec, GpuSpec, HostSpec, NicSpec, NvlinkSpec, NvlinkTarget, Parent, SwitchSpec};

/// What stands before each line of NCCL's.
const INFO: &str = "NCCL INFO ";

/// Most devices of a host, and most lines of one printed system.
const MAX_DEVICES: usize = 1024;

/// Rate in GB/s from which a NIC that the log does not name is taken for InfiniBand and not for Ethernet; assumed: 40 Gbit/s,
/// as the slowest InfiniBand of GPU hosts has.
const INFINIBAND_GB_PER_S: f64 = 5.0;

/// What a log says of the machine.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct LogMachine {
    /// Hosts by their lowest rank.
    pub hosts: Vec<String>,
    /// The host as the log draws it; none without the subsystem GRAPH.
    pub host: Option<HostSpec>,
    /// Most ranks of a host.
    pub ranks_a_host: usize,
    /// NCCL's version and the variables that it read.
    pub software: Software,
    /// What was read, and what was passed over.
    pub notes: Vec<String>,
}

/// Whether a text is a log of NCCL.
pub(crate) fn looks_like(text: &str) -> bool {
    text.lines().take(5000).any(|line| !line.starts_with('#') && line.contains(INFO))
}

/// Reads the log. `product` is the GPU where the caller knows it.
///
/// # Errors
/// No rank of any host; a system that has no GPU, or too many devices; with its line.
pub fn read(source: Source<'_>, product: Option<&str>) -> Result<LogMachine, TopologiesError> {
    let lines = Lines::of(source)?;
    let Lines { ranks, nodes, systems, software, gpu_names, nics } = lines;
    let mut by_host: BTreeMap<&str, (u32, usize)> = BTreeMap::new();
    for (Writer { host, .. }, rank) in &ranks {
        let known = by_host.entry(host).or_insert((*rank, 0));
        *known = (known.0.min(*rank), known.1 + 1);
    }
    let mut hosts: Vec<(&str, (u32, usize))> = by_host.into_iter().collect();
    hosts.sort_by_key(|(_, (rank, _))| *rank);
    if hosts.is_empty() {
        return Err(TopologiesError::NotAMachine(source.whole(
            "the log names no rank of a communicator",
            "keep the lines of NCCL_DEBUG=INFO from `NCCL version` on, of all ranks",
        )));
    }
    let ranks_a_host = hosts.iter().map(|(_, (_, ranks))| *ranks).max().unwrap_or(0);
    let mut hosts: Vec<String> = hosts.into_iter().map(|(name, _)| name.to_owned()).collect();
    let mut notes = vec![format!("log: {} ranks on {} hosts", ranks.len(), hosts.len())];
    if nodes as usize > hosts.len() && nodes as usize <= MAX_GPUS {
        notes.push(format!(
            "log: {} more hosts have no line, and are taken as those that have",
            nodes as usize - hosts.len()
        ));
        let known: HashSet<String> = hosts.iter().cloned().collect();
        let others = (0..).map(|place| format!("host{place}")).filter(|name| !known.contains(name));
        hosts.extend(others.take(nodes as usize - hosts.len()));
    }
    // The fullest system: a communicator of some GPUs alone shows those alone.
    let largest =
        systems.into_iter().max_by_key(|system| system.iter().filter(|line| line.text.contains("GPU/")).count());
    let named = gpu_names.iter().next().map(|(name, _)| name.as_str());
    let host = match largest {
        Some(system) => {
            let host = draw(source, &system, (product.or(named), software.nccl), &nics)?;
            notes.push(format!(
                "log: the tree of one host, with {} GPUs and {} NICs",
                host.gpus.len(),
                host.nics.len()
            ));
            if host.gpus.len() < ranks_a_host {
                let gpus = host.gpus.len();
                notes.push(format!(
                    "warning: a host has {ranks_a_host} ranks and its tree {gpus} GPUs: the log is cut, or its lines are mixed"
                ));
            }
            Some(host)
        }
        None => {
            notes.push("log: no line of the subsystem GRAPH, so no device of the hosts".to_owned());
            None
        }
    };
    if gpu_names.len() > 1 {
        let names: Vec<&str> = gpu_names.keys().map(String::as_str).collect();
        notes.push(format!("warning: the log has several GPUs ({}); all are taken as the first", names.join(", ")));
    }
    Ok(LogMachine { hosts, host, ranks_a_host, software, notes })
}

/// A whole log as a cluster, where it draws its hosts.
///
/// # Errors
/// As [`read`]; [`TopologiesError::NotAMachine`] without the subsystem GRAPH.
pub fn read_cluster(source: Source<'_>, stem: &str) -> Result<ClusterSpec, TopologiesError> {
    let log = read(source, None)?;
    let Some(mut host) = log.host else {
        return Err(TopologiesError::NotAMachine(source.whole(
            "the log has hosts and ranks, but no device of them",
            "run with NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH, or name the machine: topo import FILE --like dgx-h100",
        )));
    };
    for note in log.notes {
        host.assume(note);
    }
    let mut cluster = ClusterSpec::single(stem, source.file, HostSpec::default());
    cluster.groups = vec![HostGroup { names: log.hosts, host, new_domain: false }];
    cluster.software = log.software;
    Ok(cluster)
}

/// A line of a printed system.
struct Line<'a> {
    /// 0 of a CPU, more of what is below it.
    depth: usize,
    /// `PCI[48.0] - GPU/0-1b000 (0)`, or `CPU/0-0 (1/1/2)`.
    text: &'a str,
    start: usize,
}

/// What the lines of a log say, before anything is concluded.
#[derive(Default)]
struct Lines<'a> {
    /// Rank by who has it.
    ranks: HashMap<Writer<'a>, u32>,
    nodes: u32,
    systems: Vec<Vec<Line<'a>>>,
    software: Software,
    gpu_names: BTreeMap<String, usize>,
    /// Names and kinds of RDMA devices, by the number that NCCL gives them.
    nics: BTreeMap<usize, (String, LinkKind)>,
}

impl<'a> Lines<'a> {
    fn of(source: Source<'a>) -> Result<Self, TopologiesError> {
        let mut lines = Self::default();
        // By who writes: the system that is being printed.
        let mut open: HashMap<&str, Vec<Line<'a>>> = HashMap::new();
        let mut at = 0;
        for line in source.text.split_inclusive('\n') {
            let start = at;
            at += line.len();
            let line = line.trim_end();
            if let Some(version) = version(line) {
                lines.software.nccl = lines.software.nccl.or(version.parse().ok());
            }
            if line.starts_with('#') {
                // nccl-tests: `#  Rank  0 Group  0 Pid 17 on host device  0 [0000:18:00] NVIDIA H100 80GB HBM3`.
                if let Some((_, name)) = line.split_once("] ").filter(|(before, _)| before.contains(" device ")) {
                    *lines.gpu_names.entry(name.trim().to_owned()).or_default() += 1;
                }
                continue;
            }
            let Some(found) = line.find(INFO) else { continue };
            let who = line[..found].trim_end();
            let text = &line[found + INFO.len()..];
            let place = start + found + INFO.len();
            if text.starts_with("=== System") {
                open.insert(who, Vec::new());
            } else if text.starts_with("===") {
                lines.systems.extend(open.remove(who).filter(|system| !system.is_empty()));
            } else if let Some(system) = open.get_mut(who) {
                let trimmed = text.trim_start();
                if trimmed.starts_with("+ ") || trimmed.starts_with("CPU/") {
                    let spaces = text.len() - trimmed.len();
                    // The links of a CPU are not indented.
                    let depth = if trimmed.starts_with("CPU/") { 0 } else { spaces + 1 };
                    system.push(Line { depth, text: trimmed.trim_start_matches("+ "), start: place + spaces });
                    if system.len() > 16 * MAX_DEVICES {
                        return Err(TopologiesError::TooLarge(source.at(
                            place..place + text.len(),
                            "the system of a host has too many links",
                            "too many",
                            "one system describes one host, or one NVLink domain",
                        )));
                    }
                } else if trimmed.contains(" :GPU/") {
                    // The matrix of paths follows: the frame's end was lost.
                    lines.systems.extend(open.remove(who).filter(|system| !system.is_empty()));
                }
            }
            lines.line(who, text);
        }
        lines.systems.extend(open.into_values().filter(|system| !system.is_empty()));
        Ok(lines)
    }

    fn line(&mut self, who: &'a str, text: &'a str) {
        if let Some((name, value)) = variable(text) {
            if name.starts_with("NCCL_") && !name.starts_with("NCCL_DEBUG") {
                let env = &mut self.software.env;
                if env.len() < MAX_DEVICES && env.iter().all(|(known, _)| known != name) {
                    env.push((name.to_owned(), value.to_owned()));
                }
            }
        } else if let Some(devices) = text.strip_prefix("NET/IB : Using ") {
            for device in devices.split(';').next().unwrap_or_default().split_whitespace() {
                // `[0]mlx5_0:1/IB`.
                let parts = device.strip_prefix('[').and_then(|rest| rest.split_once(']'));
                if let Some((number, (name, kind))) =
                    parts.and_then(|(n, rest)| Some((n.parse().ok()?, rest.split_once(':')?)))
                    && self.nics.len() < MAX_DEVICES
                {
                    let kind = if kind.contains("RoCE") { LinkKind::Roce } else { LinkKind::Infiniband };
                    self.nics.entry(number).or_insert((name.to_owned(), kind));
                }
            }
        } else if text.contains("comm 0x") {
            let words: Vec<&str> = text.split_whitespace().collect();
            let after = |name: &str| {
                words.windows(2).find(|w| w[0].eq_ignore_ascii_case(name)).and_then(|w| w[1].parse::<u32>().ok())
            };
            if let (Some(rank), Some(writer)) = (after("rank"), writer(who)) {
                let ranks = after("nranks").unwrap_or(0);
                if ranks > 0 && rank < ranks {
                    self.ranks.entry(writer).or_insert(rank);
                    self.nodes = self.nodes.max(after("nnodes").unwrap_or(0));
                }
            }
        }
    }
}

/// The variable that NCCL says it was given, with its value: `NCCL_ALGO set by environment to Ring`, and `NCCL_IB_HCA set to
/// mlx5_0` of those that networks and plugins read themselves.
pub fn variable(text: &str) -> Option<(&str, &str)> {
    let own = |name: &&str| name.starts_with("NCCL_") && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let (before, value) = text.split_once(" set by environment to ").or_else(|| {
        let said = text.split_once(" set to ")?;
        said.0.split_whitespace().next_back().filter(own).map(|_| said)
    })?;
    Some((before.split_whitespace().next_back()?, value.trim().trim_end_matches('.')))
}

/// The version that NCCL says it has, as it writes it: `2.18.3+cuda12.2`. Up to 2.18 the line has nothing before it, nor below
/// `NCCL_DEBUG=INFO` later.
pub fn version(line: &str) -> Option<&str> {
    let version = line.split("NCCL version ").nth(1)?.split_whitespace().next()?;
    version.starts_with(|c: char| c.is_ascii_digit()).then_some(version)
}

/// Who writes a line.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Writer<'a> {
    /// The host.
    pub host: &'a str,
    /// Number of the process there.
    pub process: &'a str,
    /// The GPU of the process, as NCCL counts; empty where it does not say.
    pub device: &'a str,
}

/// Who writes a line that begins with `host:pid:tid [dev]`, after whatever a launcher or a clock puts before.
pub fn writer(before: &str) -> Option<Writer<'_>> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let mut words = before.split_whitespace();
    while let Some(word) = words.next() {
        let mut parts = word.rsplitn(3, ':');
        if let (Some(thread), Some(process), Some(host)) = (parts.next(), parts.next(), parts.next())
            && is_number(thread)
            && is_number(process)
        {
            // Launchers put their own words in front: `[1,0]<stdout>:host`.
            let host = host.rsplit([':', '>']).next().unwrap_or(host);
            let known = !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
            let device = words.next().unwrap_or_default().trim_matches(['[', ']']);
            return known.then_some(Writer { host, process, device });
        }
    }
    None
}

/// A link and the device at its end: `PCI[48.0] - GPU/0-1b000 (0)`.
struct Step<'a> {
    link: &'a str,
    rate: Bandwidth,
    device: &'a str,
    /// What stands in the brackets behind it.
    facts: Vec<&'a str>,
}

fn step(text: &str) -> Option<Step<'_>> {
    let (link, rest) = text.split_once('[')?;
    let (rate, rest) = rest.split_once(']')?;
    let rate = rate.parse::<f64>().ok().filter(|rate| *rate > 0.0 && *rate < 1e6)?;
    let device = rest.trim_start().strip_prefix('-')?.trim_start();
    let (device, facts) = device.split_once(' ').unwrap_or((device, ""));
    let facts = facts.trim().trim_matches(['(', ')']).split('/').collect();
    Some(Step { link: link.trim(), rate: Bandwidth::from_gb_per_s(rate), device, facts })
}

/// The id of a device without the host's: `1b000` of `GPU/0-1b000`.
fn id(device: &str) -> &str {
    let id = device.split_once('/').map_or(device, |(_, id)| id);
    id.split_once('-').map_or(id, |(_, id)| id)
}

/// `1b000` as `0000:1b:00.0`.
fn bus_id(id: &str) -> Option<String> {
    let number = u64::from_str_radix(id, 16).ok()?;
    Some(format!("{:04x}:{:02x}:{:02x}.{:x}", number >> 20, number >> 12 & 0xff, number >> 4 & 0xff, number & 0xf))
}

/// A GPU with the rank that it has, and its NVLinks as NCCL's rates.
struct Found<'a> {
    spec: GpuSpec,
    rank: u32,
    id: &'a str,
    nvlinks: Vec<(&'a str, Bandwidth)>,
}

/// A printed system as a host.
fn draw(
    source: Source<'_>,
    lines: &[Line<'_>],
    (product, version): (Option<&str>, Option<Version>),
    names: &BTreeMap<usize, (String, LinkKind)>,
) -> Result<HostSpec, TopologiesError> {
    let mut drawing = Drawing::default();
    for line in lines {
        if line.text.starts_with("CPU/") {
            drawing.cpu(line.text);
            continue;
        }
        if drawing.is_full() {
            return Err(TopologiesError::TooLarge(source.at(
                line.start..line.start + line.text.len(),
                format!("the system has over {MAX_DEVICES} devices"),
                "one too many",
                "one system describes one host",
            )));
        }
        if drawing.link(line, names).is_none() {
            drawing.passed += 1;
        }
    }
    let Drawing { mut host, mut gpus, passed, .. } = drawing;
    if gpus.is_empty() {
        return Err(TopologiesError::NotAMachine(
            source.whole("the system that the log prints has no GPU", "keep all lines from `=== System` to `=====`"),
        ));
    }
    if passed > 0 {
        host.assume(format!("{passed} lines of the log's system are not understood and left out"));
    }
    gpus.sort_by_key(|gpu| gpu.rank);
    finish(&mut host, gpus, product, version);
    Ok(host)
}

/// A host as far as lines have drawn it.
#[derive(Default)]
struct Drawing<'a> {
    host: HostSpec,
    gpus: Vec<Found<'a>>,
    /// What is above the next line: depth, device, rate of its link.
    above: Vec<(usize, Parent, Bandwidth)>,
    /// The line before was a GPU, or one of its links.
    on_gpu: bool,
    /// Lines that are not understood.
    passed: usize,
}

impl<'a> Drawing<'a> {
    /// Whether it has all the devices that a host may have.
    fn is_full(&self) -> bool {
        self.host.switches.len() + self.gpus.len() + self.host.nics.len() > MAX_DEVICES
    }

    /// A CPU, which begins a tree: `CPU/0-0 (1/1/2)`.
    fn cpu(&mut self, text: &str) {
        let (_, facts) = text.split_once(' ').unwrap_or((text, ""));
        let facts: Vec<&str> = facts.trim().trim_matches(['(', ')']).split('/').collect();
        let (arch, vendor, model) = cpu(&facts);
        let (interconnect, _) = catalogue::cpu_interconnect(arch, vendor, model);
        self.above = vec![(0, Parent::Cpu(self.host.cpus.len()), interconnect)];
        self.host.cpus.push(CpuSpec { vendor: vendor.to_owned(), interconnect });
        self.on_gpu = false;
    }

    /// A link with the device at its end; none where it is not understood.
    fn link(&mut self, line: &Line<'a>, names: &BTreeMap<usize, (String, LinkKind)>) -> Option<()> {
        let step = step(line.text)?;
        let cpu = self.host.cpus.len().checked_sub(1)?;
        if self.on_gpu && matches!(step.link, "NVL" | "C2C") {
            let gpu = self.gpus.last_mut()?;
            match step.link {
                "C2C" => gpu.spec.c2c = Some(step.rate),
                _ => gpu.nvlinks.push((step.device, step.rate)),
            }
            return Some(());
        }
        if step.link == "SYS" {
            self.host.cpus[cpu].interconnect = step.rate;
            return Some(());
        }
        self.above.retain(|(depth, ..)| *depth < line.depth);
        let above = self.above.last();
        let (parent, up) = above.map_or((Parent::Cpu(cpu), step.rate), |(_, parent, rate)| (*parent, *rate));
        self.on_gpu = false;
        match step.device.split('/').next().unwrap_or_default() {
            "PCI" => {
                self.host.switches.push(SwitchSpec { bus_id: bus_id(id(step.device)), parent, rate: step.rate });
                self.above.push((line.depth, Parent::Switch(self.host.switches.len() - 1), step.rate));
            }
            // The card: its ports follow.
            "NIC" => self.above.push((line.depth, parent, step.rate)),
            "NET" => self.nic(&step, (parent, up), names),
            "GPU" => {
                let rank = step.facts.first().and_then(|rank| rank.parse().ok()).unwrap_or(u32::MAX);
                let bus_id = bus_id(id(step.device));
                let gpu = Gpu { index: 0, model: String::new(), compute_capability: 0, memory_rate: None, bus_id };
                let spec = GpuSpec { gpu, parent, pcie_rate: step.rate, nvlinks: Vec::new(), c2c: None };
                self.gpus.push(Found { spec, rank, id: id(step.device), nvlinks: Vec::new() });
                self.on_gpu = true;
            }
            _ => return None,
        }
        Some(())
    }

    /// A port, with what is above its card; the log names it elsewhere, if at all.
    fn nic(&mut self, step: &Step<'_>, (parent, up): (Parent, Bandwidth), names: &BTreeMap<usize, (String, LinkKind)>) {
        let number = usize::from_str_radix(id(step.device), 16).unwrap_or(self.host.nics.len());
        let (name, kind) = names.get(&number).cloned().unwrap_or_else(|| {
            let slow = step.rate.gb_per_s() < INFINIBAND_GB_PER_S;
            let kind = if slow { LinkKind::Ethernet } else { LinkKind::Infiniband };
            self.host.assume(format!("NIC {number} is taken as {}: the log does not name it", kind.name()));
            (String::new(), kind)
        });
        let exact = step.facts.last().and_then(|rate| rate.parse::<f64>().ok()).filter(|r| *r > 0.0 && *r < 1e6);
        self.host.nics.push(NicSpec {
            nic: Nic {
                index: u32::try_from(number).unwrap_or(u32::MAX),
                name,
                kind,
                rate: exact.map_or(step.rate, Bandwidth::from_gb_per_s),
                gpudirect: kind != LinkKind::Ethernet,
                gpudirect_rate: None,
                rail: None,
                card: None,
                management: false,
                latency: None,
            },
            parent,
            pcie_rate: up,
            bus_id: None,
        });
    }
}

/// Architecture, vendor and a model of which [`catalogue::cpu_interconnect`] knows the rate, by NCCL's numbers.
fn cpu(facts: &[&str]) -> (&'static str, &'static str, u32) {
    let number = |at: usize| facts.get(at).and_then(|fact| fact.parse::<i32>().ok()).unwrap_or(-1);
    let arch = match number(0) {
        2 => "ppc64",
        3 => "arm64",
        _ => "x86_64",
    };
    match number(1) {
        // NCCL's models: Broadwell, Skylake, Sapphire Rapids, later.
        1 => (arch, "GenuineIntel", [0x4f, 0x55, 0x8f, 0xcf][(number(2).clamp(1, 4) - 1) as usize]),
        2 => (arch, "AuthenticAMD", 0),
        3 => (arch, "Shanghai", 0),
        _ => (arch, "", 0),
    }
}

/// GPUs get what they are, NVLinks become counts, NICs the order of their numbers.
fn finish(host: &mut HostSpec, gpus: Vec<Found<'_>>, product: Option<&str>, version: Option<Version>) {
    let product = product.and_then(catalogue::by_name);
    let is_switch = |target: &str| target.starts_with("NVS");
    let printed: Vec<(f64, bool)> =
        (gpus.iter().flat_map(|gpu| &gpu.nvlinks)).map(|(target, rate)| (rate.gb_per_s(), is_switch(target))).collect();
    let fitting = if printed.is_empty() { Vec::new() } else { Nvlinks::printed(version, &printed) };
    let capability = product.map(|product| product.compute_capability).or(match fitting[..] {
        [one] => Some(one.capability.start),
        _ => None,
    });
    match (product, capability, &fitting[..]) {
        (Some(product), ..) => host.assume(format!("GPUs are taken as {}", product.name)),
        (None, Some(cc), _) => host.assume(format!(
            "the log does not name the GPUs: compute capability {cc} assumed from the rate of their NVLinks"
        )),
        (None, None, []) if printed.is_empty() => {
            host.assume("the log does not name the GPUs, and shows no NVLink: their kind is unknown");
        }
        (None, None, []) => host.assume("the log does not name the GPUs, and no kind that is known has such NVLinks"),
        (None, None, several) => {
            let several: Vec<String> = several.iter().map(|links| links.capability.start.to_string()).collect();
            host.assume(format!(
                "the log does not name the GPUs: their NVLinks may be of compute capability {}, their kind is unknown",
                several.join(" or ")
            ));
        }
    }
    let places: HashMap<String, usize> = gpus.iter().zip(0..).map(|(gpu, place)| (gpu.id.to_owned(), place)).collect();
    // Where several fit, they count alike.
    let counted_as = capability.or_else(|| fitting.first().map(|links| links.capability.start)).unwrap_or(0);
    let rate_per_link = catalogue::nvlink_rate(counted_as).unwrap_or_else(catalogue::unknown_nvlink_rate);
    for (place, found) in gpus.into_iter().enumerate() {
        let mut spec = found.spec;
        spec.gpu.index = u32::try_from(place).unwrap_or(u32::MAX);
        spec.gpu.compute_capability = capability.unwrap_or(0);
        if let Some(product) = product {
            product.name.clone_into(&mut spec.gpu.model);
            spec.gpu.memory_rate = Some(product.memory_rate());
        }
        for (target, rate) in found.nvlinks {
            let target = match places.get(id(target)) {
                _ if is_switch(target) => NvlinkTarget::Switch,
                Some(&peer) if peer != place => NvlinkTarget::Gpu(peer),
                _ => continue,
            };
            let count = nvlink::number(counted_as, version, rate.gb_per_s()).clamp(1, MAX_DEVICES as u32);
            spec.nvlinks.push(NvlinkSpec { target, count, rate_per_link });
        }
        host.gpus.push(spec);
    }
    crate::xml::finish_nics(host);
}

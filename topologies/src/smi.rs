//! Reads the matrix of `nvidia-smi topo -m`: tabs with terminal codes, copied text with
//! spaces, or a Markdown table.
//!
//! The matrix says how devices are joined, not how fast: rates are assumed from the GPU
//! product where the caller names one, otherwise from the number of NVLinks, and noted.
//!
//! # Source
//! The legend that nvidia-smi prints: X self, PIX at most one PCIe bridge, PXB several
//! bridges, PHB the host bridge, NODE between host bridges of a NUMA node, SYS between NUMA
//! nodes, NV# that many NVLinks bonded.

use std::collections::BTreeMap;
use std::ops::Range;

use collcast_sim::topology::{Gpu, LinkKind, Nic};
use collcast_sim::units::Bandwidth;

use crate::catalogue::{self, Product};
use crate::error::{Source, TopologiesError, quote};
use crate::host::{CpuSpec, GpuSpec, HostSpec, NicSpec, NvlinkSpec, NvlinkTarget, Parent, SwitchSpec};

/// Most devices of a matrix.
const MAX_DEVICES: usize = 256;

/// Most NVLinks of a GPU so far; source: data sheets of H100, H200, B200.
const MAX_NVLINKS: u32 = 18;

/// A cell: how two devices are joined.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Relation {
    Same,
    Nvlink(u32),
    Pix,
    Pxb,
    Phb,
    Node,
    Sys,
}

impl Relation {
    fn parse(cell: &str) -> Option<Self> {
        Some(match cell {
            "X" => Self::Same,
            "PIX" => Self::Pix,
            "PXB" => Self::Pxb,
            "PHB" => Self::Phb,
            "NODE" => Self::Node,
            "SYS" | "SOC" => Self::Sys,
            _ => {
                let count: u32 = cell.strip_prefix("NV")?.parse().ok()?;
                Self::Nvlink((1..=1024).contains(&count).then_some(count)?)
            }
        })
    }
}

impl std::fmt::Display for Relation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Same => f.write_str("X"),
            Self::Nvlink(count) => write!(f, "NV{count}"),
            Self::Pix => f.write_str("PIX"),
            Self::Pxb => f.write_str("PXB"),
            Self::Phb => f.write_str("PHB"),
            Self::Node => f.write_str("NODE"),
            Self::Sys => f.write_str("SYS"),
        }
    }
}

/// A word of a line with its place in the text.
#[derive(Clone, Copy)]
struct Word<'a> {
    text: &'a str,
    start: usize,
}

impl Word<'_> {
    fn span(&self) -> Range<usize> {
        self.start..self.start + self.text.len()
    }
}

/// The words of a line; terminal codes and the bars of Markdown are blanks.
fn words(line: &str, offset: usize) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut start = None;
    let mut skip_to = 0;
    for (i, c) in line.char_indices() {
        if i < skip_to {
            continue;
        }
        let blank = if c == '\u{1b}' {
            // ESC [ digits letter.
            let end = line[i + 1..].find(|c: char| c.is_ascii_alphabetic()).map_or(line.len(), |e| i + 1 + e + 1);
            skip_to = end;
            true
        } else {
            c.is_whitespace() || c == '|'
        };
        match (blank, start) {
            (true, Some(s)) => {
                words.push(Word { text: &line[s..i], start: offset + s });
                start = None;
            }
            (false, None) => start = Some(i),
            _ => {}
        }
    }
    if let Some(s) = start {
        words.push(Word { text: &line[s..], start: offset + s });
    }
    words
}

fn is_gpu(name: &str) -> bool {
    name.strip_prefix("GPU").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// Whether a text holds the heading of the matrix.
pub(crate) fn looks_like(text: &str) -> bool {
    text.lines().take(200).any(|line| {
        let words = words(line, 0);
        words.first().is_some_and(|w| is_gpu(w.text))
            && (words.get(1).is_some_and(|w| is_gpu(w.text) || w.text == "X")
                || words.iter().any(|w| w.text == "Affinity"))
    })
}

/// The matrix as text, before anything is concluded from it.
struct Matrix<'a> {
    names: Vec<Word<'a>>,
    rows: BTreeMap<usize, Vec<Relation>>,
    numa: Vec<Option<String>>,
    nic_names: BTreeMap<String, String>,
    nic_numa: BTreeMap<String, String>,
}

/// Reads a host.
///
/// - `text`, `file`: the output, and its name for messages.
/// - `model`: the GPU product if the caller knows it, such as `H100-SXM5-80GB`.
///
/// # Errors
/// No matrix, a row with too few cells, a cell of no known word, two cells that contradict
/// each other, or an unknown `model`; each with line and column.
pub fn read(text: &str, file: &str, model: Option<&str>) -> Result<HostSpec, TopologiesError> {
    let source = Source::decode(file, text.as_bytes())?;
    let product = match model {
        None => None,
        Some(name) => Some(catalogue::by_name(name).ok_or_else(|| {
            let known: Vec<&str> = catalogue::PRODUCTS.iter().map(|p| p.name).collect();
            TopologiesError::UnknownName(source.whole(
                format!(
                    "the GPU `{}` is not known{}",
                    quote(name),
                    catalogue::did_you_mean(name).map_or_else(String::new, |meant| format!(", {meant}"))
                ),
                format!("known: {}", known.join(", ")),
            ))
        })?),
    };
    let matrix = Matrix::read(source)?;
    matrix.check(source)?;
    Ok(matrix.host(product))
}

impl<'a> Matrix<'a> {
    fn read(source: Source<'a>) -> Result<Self, TopologiesError> {
        let mut matrix: Option<Self> = None;
        let mut offset = 0;
        for line in source.text.split_inclusive('\n') {
            let words = words(line, offset);
            offset += line.len();
            let Some(first) = words.first() else {
                continue;
            };
            match &mut matrix {
                None if is_gpu(first.text) => {
                    let names: Vec<Word<'a>> =
                        words.iter().copied().take_while(|w| !matches!(w.text, "CPU" | "NUMA" | "GPU")).collect();
                    if names.len() > MAX_DEVICES {
                        return Err(TopologiesError::TooLarge(source.at(
                            first.span(),
                            format!("the matrix has over {MAX_DEVICES} devices"),
                            "too many",
                            "one matrix describes one host",
                        )));
                    }
                    matrix = Some(Self {
                        numa: vec![None; names.len()],
                        names,
                        rows: BTreeMap::new(),
                        nic_names: BTreeMap::new(),
                        nic_numa: BTreeMap::new(),
                    });
                }
                None => {}
                Some(matrix) => matrix.line(source, line, &words)?,
            }
        }
        if let Some(matrix) = &mut matrix {
            matrix.fill_numa();
        }
        matrix.ok_or_else(|| {
            TopologiesError::Syntax(source.whole(
                "the text has no matrix of nvidia-smi",
                "paste the output of `nvidia-smi topo -m`, from the line with GPU0 on",
            ))
        })
    }

    /// A line after the heading: a row, a NIC's name, or something else.
    fn line(&mut self, source: Source<'a>, line: &str, words: &[Word<'a>]) -> Result<(), TopologiesError> {
        if line.trim_start().starts_with("NIC mapping") {
            self.mapping(line);
            return Ok(());
        }
        let Some(first) = words.first() else {
            return Ok(());
        };
        // The legend: `NIC0: mlx5_0`.
        if let (Some(nic), Some(name)) = (first.text.strip_suffix(':'), words.get(1)) {
            if self.names.iter().any(|n| n.text == nic) && words.len() == 2 {
                self.nic_names.insert(nic.to_owned(), name.text.to_owned());
            }
            return Ok(());
        }
        let Some(index) = self.names.iter().position(|n| n.text == first.text) else {
            return Ok(());
        };
        let count = self.names.len();
        let cells = &words[1..];
        if cells.len() < count {
            return Err(TopologiesError::Syntax(source.at(
                first.span(),
                format!("the row `{}` has {} cells, the heading {count} devices", quote(first.text), cells.len()),
                "cells are missing",
                "copy the whole line; terminals cut long ones off",
            )));
        }
        if self.rows.contains_key(&index) {
            return Err(TopologiesError::Contradiction(source.at(
                first.span(),
                format!("the row `{}` is there twice", quote(first.text)),
                "again",
                "give the matrix of one host",
            )));
        }
        let mut row = Vec::with_capacity(count);
        for cell in &cells[..count] {
            row.push(Relation::parse(cell.text).ok_or_else(|| {
                TopologiesError::Syntax(source.at(
                    cell.span(),
                    format!("`{}` is no entry of the matrix", quote(cell.text)),
                    "expected X, NV#, PIX, PXB, PHB, NODE or SYS",
                    "terminals cut long lines off; copy the output from a file",
                ))
            })?);
        }
        self.rows.insert(index, row);
        // CPU affinity, then NUMA affinity.
        self.numa[index] = cells.get(count + 1).map(|w| w.text).filter(|t| *t != "N/A").map(str::to_owned);
        Ok(())
    }

    /// `NIC mapping: NIC0=mlx5_0 (NUMA 0), ..., NIC7=mlx5_8/rdma7 (NUMA 1)`.
    fn mapping(&mut self, line: &str) {
        let list = line.split_once(':').map_or("", |(_, list)| list);
        for entry in list.split(',') {
            let Some((nic, rest)) = entry.trim().split_once('=') else {
                continue;
            };
            let nic = nic.trim().to_owned();
            let name = rest.split(['(', '/', ' ']).next().unwrap_or_default();
            if !name.is_empty() {
                self.nic_names.insert(nic.clone(), name.to_owned());
            }
            if let Some((_, numa)) = rest.split_once("NUMA") {
                let numa = numa.trim().trim_end_matches(')').trim();
                self.nic_numa.insert(nic, numa.to_owned());
            }
        }
    }

    /// A mapping that leaves NICs out (`...`) says their NUMA node where both neighbours agree.
    fn fill_numa(&mut self) {
        let nics: Vec<&str> = self.names.iter().map(|n| n.text).filter(|n| !is_gpu(n)).collect();
        let known: Vec<Option<String>> = nics.iter().map(|n| self.nic_numa.get(*n).cloned()).collect();
        for (i, nic) in nics.iter().enumerate() {
            if known[i].is_none() {
                let before = known[..i].iter().rev().flatten().next();
                let after = known[i..].iter().flatten().next();
                if let (Some(before), true) = (before, before == after) {
                    self.nic_numa.insert((*nic).to_owned(), before.clone());
                }
            }
        }
    }

    fn check(&self, source: Source<'_>) -> Result<(), TopologiesError> {
        for (i, name) in self.names.iter().enumerate() {
            if self.names[..i].iter().any(|n| n.text == name.text) {
                return Err(TopologiesError::Contradiction(source.at(
                    name.span(),
                    format!("the heading has `{}` twice", quote(name.text)),
                    "again",
                    "give the matrix of one host",
                )));
            }
            if is_gpu(name.text) && !self.rows.contains_key(&i) {
                return Err(TopologiesError::Syntax(source.at(
                    name.span(),
                    format!("the matrix has no row for `{}`", name.text),
                    "in the heading only",
                    "copy the whole output",
                )));
            }
        }
        for (&i, row) in &self.rows {
            for (&j, other) in self.rows.range(i + 1..) {
                if row[j] != other[i] {
                    return Err(TopologiesError::Contradiction(source.at(
                        self.names[j].span(),
                        format!(
                            "`{}` to `{}` is {}, but the other way {}",
                            quote(self.names[i].text),
                            quote(self.names[j].text),
                            row[j],
                            other[i]
                        ),
                        "this column",
                        "the matrix is symmetric; copy it again",
                    )));
                }
            }
        }
        Ok(())
    }

    fn relation(&self, a: usize, b: usize) -> Option<Relation> {
        self.rows.get(&a).map(|r| r[b]).or_else(|| self.rows.get(&b).map(|r| r[a]))
    }

    fn numa_of(&self, device: usize) -> Option<&str> {
        self.numa[device].as_deref().or_else(|| self.nic_numa.get(self.names[device].text).map(String::as_str))
    }

    /// Sets of devices that a relation joins, as the lowest member of each.
    fn groups(&self, joined: impl Fn(usize, usize) -> bool) -> Vec<usize> {
        let mut root: Vec<usize> = (0..self.names.len()).collect();
        for a in 0..root.len() {
            for b in a + 1..root.len() {
                if joined(a, b) && root[a] != root[b] {
                    let (keep, drop) = (root[a].min(root[b]), root[a].max(root[b]));
                    for r in &mut root {
                        if *r == drop {
                            *r = keep;
                        }
                    }
                }
            }
        }
        root
    }

    fn host(&self, product: Option<&Product>) -> HostSpec {
        let mut host = HostSpec::default();
        let count = self.names.len();
        let gpus: Vec<usize> = (0..count).filter(|&i| is_gpu(self.names[i].text)).collect();
        let most_nvlinks = gpus
            .iter()
            .flat_map(|g| self.rows.get(g))
            .flatten()
            .filter_map(|r| match r {
                Relation::Nvlink(n) => Some(*n),
                _ => None,
            })
            .max()
            .unwrap_or(0);
        let generation = product.map_or_else(
            || match most_nvlinks {
                13.. => 5,
                7..=12 => 4,
                _ => 3,
            },
            |p| p.pcie_generation,
        );
        let pcie_rate = catalogue::pcie_generation_rate(generation, 16).unwrap_or_else(catalogue::unknown_pcie_rate);
        host.assume(format!(
            "nvidia-smi gives no rates: PCIe {generation}.0 x16 assumed from the {}",
            if product.is_some() { "GPU product" } else { "number of NVLinks" }
        ));
        let parents = self.draw_pcie(&mut host, &gpus, pcie_rate);
        for (index, &device) in gpus.iter().enumerate() {
            host.gpus.push(GpuSpec {
                gpu: Gpu {
                    index: u32::try_from(index).unwrap_or(u32::MAX),
                    model: product.map_or_else(String::new, |p| p.name.to_owned()),
                    compute_capability: product.map_or(0, |p| p.compute_capability),
                    memory_rate: product.map(Product::memory_rate),
                    bus_id: None,
                },
                parent: parents[device],
                pcie_rate,
                nvlinks: Vec::new(),
                c2c: None,
            });
        }
        if most_nvlinks > 0 {
            self.draw_nvlinks(&mut host, &gpus, product);
        }
        self.draw_nics(&mut host, &parents, pcie_rate, generation);
        if product.is_none() {
            host.assume("nvidia-smi topo does not name the GPU; its memory rate is unknown");
            host.assume_capability();
        }
        host
    }

    /// CPUs, and a switch for each set of devices behind common bridges.
    fn draw_pcie(&self, host: &mut HostSpec, gpus: &[usize], pcie_rate: Bandwidth) -> Vec<Parent> {
        let node = self.groups(|a, b| {
            let near =
                matches!(self.relation(a, b), Some(Relation::Pix | Relation::Pxb | Relation::Phb | Relation::Node));
            let same = self.numa_of(a).is_some() && self.numa_of(a) == self.numa_of(b);
            near || same
        });
        // A GPU of which nothing but NVLink and SYS is known shares a node with its like.
        let lone = |d: usize| self.numa_of(d).is_none() && node.iter().filter(|&&n| n == node[d]).count() == 1;
        let lone_gpus: Vec<usize> = gpus.iter().copied().filter(|&g| lone(g)).collect();
        let mut cpu_of_node: BTreeMap<usize, usize> = BTreeMap::new();
        let mut cpu = Vec::new();
        for (d, &own) in node.iter().enumerate() {
            let key = if lone_gpus.contains(&d) { lone_gpus[0] } else { own };
            let next = cpu_of_node.len();
            cpu.push(*cpu_of_node.entry(key).or_insert(next));
        }
        if lone_gpus.len() > 1 {
            host.assume(
                "the matrix does not say which CPU the GPUs hang from; one for all of them is \
                 assumed",
            );
        }
        let (interconnect, _) = catalogue::cpu_interconnect("", "", 0);
        for _ in 0..cpu_of_node.len() {
            host.cpus.push(CpuSpec { vendor: String::new(), interconnect });
        }
        if host.cpus.len() > 1 {
            host.assume(format!("{interconnect} between CPU sockets assumed, as the CPU is not named"));
        }
        let wide = self.groups(|a, b| matches!(self.relation(a, b), Some(Relation::Pix | Relation::Pxb)));
        let narrow = self.groups(|a, b| self.relation(a, b) == Some(Relation::Pix));
        let mut parents: Vec<Parent> = cpu.iter().map(|&c| Parent::Cpu(c)).collect();
        let mut wide_switch = BTreeMap::new();
        let mut narrow_switch = BTreeMap::new();
        for d in 0..parents.len() {
            let many = |groups: &[usize]| groups.iter().filter(|&&g| g == groups[d]).count() > 1;
            if many(&wide) && wide.iter().zip(&narrow).any(|(w, n)| *w == wide[d] && *n != narrow[d]) {
                let parent = parents[d];
                let switch = *wide_switch.entry(wide[d]).or_insert_with(|| {
                    host.switches.push(SwitchSpec { bus_id: None, parent, rate: pcie_rate });
                    host.switches.len() - 1
                });
                parents[d] = Parent::Switch(switch);
            }
        }
        for d in 0..parents.len() {
            let members = narrow.iter().filter(|&&g| g == narrow[d]).count();
            let below_wide = matches!(parents[d], Parent::Switch(_));
            if members > 1 || below_wide {
                let parent = parents[d];
                let switch = *narrow_switch.entry(narrow[d]).or_insert_with(|| {
                    host.switches.push(SwitchSpec { bus_id: None, parent, rate: pcie_rate });
                    host.switches.len() - 1
                });
                parents[d] = Parent::Switch(switch);
            }
        }
        parents
    }

    fn draw_nvlinks(&self, host: &mut HostSpec, gpus: &[usize], product: Option<&Product>) {
        let rate = product.and_then(|p| catalogue::nvlink_rate(p.compute_capability)).unwrap_or_else(|| {
            host.assume(
                "the rate of an NVLink is not given: 25 GB/s assumed (Volta to Hopper; \
                     Blackwell has 50)",
            );
            catalogue::unknown_nvlink_rate()
        });
        let pair = |a: usize, b: usize| match self.relation(gpus[a], gpus[b]) {
            Some(Relation::Nvlink(n)) => Some(n),
            _ => None,
        };
        let count = gpus.len();
        let first = (count > 1).then(|| pair(0, 1)).flatten();
        let uniform = first.is_some() && (0..count).all(|a| (a + 1..count).all(|b| pair(a, b) == first));
        let links = first.unwrap_or(0);
        let others = u32::try_from(count.saturating_sub(1)).unwrap_or(u32::MAX);
        // Every pair has all links of a GPU: only a switch can do that. Two GPUs with 18 links
        // are part of an NVSwitch machine, as no bridge has that many.
        let switched = uniform && (links.saturating_mul(others) > MAX_NVLINKS || (count == 2 && links == MAX_NVLINKS));
        if switched {
            host.assume(format!("every pair of GPUs is joined by {links} NVLinks, so NVSwitches are assumed"));
        }
        for a in 0..count {
            let bundles = &mut host.gpus[a].nvlinks;
            if switched {
                bundles.push(NvlinkSpec { target: NvlinkTarget::Switch, count: links, rate_per_link: rate });
                continue;
            }
            for b in (0..count).filter(|&b| b != a) {
                if let Some(count) = pair(a, b) {
                    bundles.push(NvlinkSpec { target: NvlinkTarget::Gpu(b), count, rate_per_link: rate });
                }
            }
        }
    }

    fn draw_nics(&self, host: &mut HostSpec, parents: &[Parent], pcie_rate: Bandwidth, generation: u32) {
        // The NIC generation that was sold with each PCIe generation: ConnectX-5, 6, 7.
        let rate = Bandwidth::from_gb_per_s(match generation {
            5.. => 50.0,
            4 => 25.0,
            _ => 12.5,
        });
        for (device, name) in self.names.iter().enumerate() {
            if is_gpu(name.text) {
                continue;
            }
            let index = u32::try_from(host.nics.len()).unwrap_or(u32::MAX);
            host.nics.push(NicSpec {
                nic: Nic {
                    index,
                    name: self.nic_names.get(name.text).cloned().unwrap_or_else(|| name.text.to_owned()),
                    kind: LinkKind::Infiniband,
                    rate,
                    gpudirect: true,
                    gpudirect_rate: None,
                    rail: None,
                    card: None,
                    management: false,
                    latency: None,
                },
                parent: parents[device],
                pcie_rate,
                bus_id: None,
            });
        }
        if !host.nics.is_empty() {
            host.assume(format!(
                "nvidia-smi gives no rate and kind of the NICs: InfiniBand of {rate} with \
                 GPUDirect assumed"
            ));
        }
    }
}

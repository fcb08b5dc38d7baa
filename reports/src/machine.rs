//! Facts about a machine that its picture and its description share.

use std::collections::BTreeMap;

use collcast_sim::ids::VertexId;
use collcast_sim::topology::{Link, LinkKind, Topology, VertexKind};

/// Parallel links of one kind in one direction, seen as one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Bundle {
    pub(crate) kind: LinkKind,
    /// Physical links, or lanes for PCIe.
    pub(crate) width: u64,
    /// Bytes per second of all together.
    pub(crate) rate: u64,
}

/// Bundles of several kinds, at most one of each.
pub(crate) type Bundles = BTreeMap<LinkKind, Bundle>;

pub(crate) fn add_link(bundles: &mut Bundles, link: Link) {
    let bundle = bundles.entry(link.kind).or_insert(Bundle { kind: link.kind, width: 0, rate: 0 });
    bundle.width = bundle.width.saturating_add(u64::from(link.width.max(1)));
    bundle.rate = bundle.rate.saturating_add(link.rate.get());
}

impl Bundle {
    /// `18 x 25 GB/s` for links, `x16 63 GB/s` for lanes.
    pub(crate) fn label(self) -> String {
        match (self.kind, self.width) {
            (_, 0 | 1) => rate_text(self.rate),
            (LinkKind::Pcie, lanes) => format!("x{lanes} {}", rate_text(self.rate)),
            (_, links) => format!("{links} x {}", rate_text(self.rate / links)),
        }
    }
}

/// The links that leave a vertex, by kind.
pub(crate) fn bundles_from(topology: &Topology, vertex: VertexId) -> Bundles {
    let mut bundles = Bundles::new();
    for (_, _, link) in topology.links_from(vertex) {
        add_link(&mut bundles, link);
    }
    bundles
}

/// A rate for people: at most two digits after the point, none that are zero.
pub(crate) fn rate_text(bytes_per_s: u64) -> String {
    let (unit, name) = if bytes_per_s >= 1_000_000_000_000 { (1e12, "TB/s") } else { (1e9, "GB/s") };
    let text = format!("{:.2}", bytes_per_s as f64 / unit);
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text} {name}")
}

/// What people call a kind of link.
pub(crate) fn kind_text(kind: LinkKind) -> &'static str {
    match kind {
        LinkKind::Nvlink => "NVLink",
        LinkKind::C2c => "NVLink-C2C",
        LinkKind::Pcie => "PCIe",
        LinkKind::CpuInterconnect => "CPU interconnect",
        LinkKind::Infiniband => "InfiniBand",
        LinkKind::Roce => "RoCE",
        LinkKind::Efa => "EFA",
        LinkKind::Slingshot => "Slingshot",
        LinkKind::Ethernet => "Ethernet",
    }
}

/// A vertex name without the host in front: `host3/gpu0` is `gpu0`.
pub(crate) fn short_name(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// `8 x H100-SXM5-80GB`, more kinds joined by a comma.
pub(crate) fn gpus_text(topology: &Topology, gpus: &[VertexId]) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for gpu in gpus.iter().filter_map(|&g| topology.gpu(g)) {
        let model = if gpu.model.is_empty() { "GPU" } else { &gpu.model };
        match counts.iter_mut().find(|(known, _)| *known == model) {
            Some((_, count)) => *count += 1,
            None => counts.push((model, 1)),
        }
    }
    let parts: Vec<String> = counts.iter().map(|(model, count)| format!("{count} x {model}")).collect();
    if parts.is_empty() { "no GPU".to_owned() } else { parts.join(", ") }
}

/// `8 x InfiniBand 50 GB/s`, more kinds joined by a comma; none without NICs.
pub(crate) fn nics_text(topology: &Topology, nics: &[VertexId]) -> Option<String> {
    let mut counts: Vec<((LinkKind, u64), usize)> = Vec::new();
    for nic in nics.iter().filter_map(|&n| topology.nic(n)) {
        let key = (nic.kind, nic.rate.get());
        match counts.iter_mut().find(|(known, _)| *known == key) {
            Some((_, count)) => *count += 1,
            None => counts.push((key, 1)),
        }
    }
    let parts: Vec<String> = counts
        .iter()
        .map(|((kind, rate), count)| format!("{count} x {} {}", kind_text(*kind), rate_text(*rate)))
        .collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// What people call a level of network switches.
pub(crate) fn level_text(level: u32) -> String {
    match level {
        0 => "leaf".to_owned(),
        1 => "spine".to_owned(),
        2 => "core".to_owned(),
        more => format!("level {more}"),
    }
}

/// Whether a vertex is a switch that no host contains.
pub(crate) fn is_fabric_switch(kind: &VertexKind) -> bool {
    matches!(kind, VertexKind::NetSwitch { .. } | VertexKind::NvSwitch)
}

/// The first host that has a GPU; there is one in any checked topology.
pub(crate) fn first_host(topology: &Topology) -> usize {
    topology.hosts().iter().position(|h| !h.gpus.is_empty()).unwrap_or(0)
}

/// The links from one vertex to another, by kind.
pub(crate) fn bundles_between(topology: &Topology, from: VertexId, to: VertexId) -> Vec<Bundle> {
    let mut bundles = BTreeMap::new();
    for (_, end, link) in topology.links_from(from) {
        if end == to {
            add_link(&mut bundles, link);
        }
    }
    bundles.into_values().collect()
}

/// `text`, cut to `chars` characters.
pub(crate) fn cut(text: &str, chars: usize) -> String {
    if text.chars().count() <= chars {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(chars.saturating_sub(1)).collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: rates as data sheets write them.
    #[test]
    fn rates_are_short() {
        for (rate, text) in [
            (25_000_000_000, "25 GB/s"),
            (12_500_000_000, "12.5 GB/s"),
            (63_015_384_615, "63.02 GB/s"),
            (3_350_000_000_000, "3.35 TB/s"),
            (100_000_000_000, "100 GB/s"),
            (1, "0 GB/s"),
        ] {
            assert_eq!(rate_text(rate), text);
        }
    }
}

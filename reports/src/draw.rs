//! A machine as a picture, for documents and for a check by eye: [`svg`] and [`dot`].
//!
//! The first host is drawn in full: NVSwitch, GPUs, PCIe switches, NICs, CPUs, every line
//! with its nominal rate of one direction. Hosts of a cluster are boxes under their leaf and
//! spine switches. Long rows are cut in the middle, with a count of what is left out. The SVG
//! is one file without scripts or outside fonts; it brings its own light background, so that
//! it reads the same on a dark page.

mod busy;
mod canvas;
mod dot;
mod fabric;
mod host;

use std::collections::BTreeMap;

use collcast_sim::ids::VertexId;
use collcast_sim::topology::{LinkKind, Topology, VertexKind};

use crate::figure::Machine;
use crate::machine::{Bundle, Bundles, add_link, cut, first_host, gpus_text, kind_text};
use busy::Busy;
use canvas::{Anchor, Canvas, Style};
use fabric::Fabric;
use host::HostTree;

pub use dot::dot;

const MARGIN: i64 = 28;

/// The picture as SVG.
pub fn svg(topology: &Topology) -> String {
    let mut canvas = Canvas::default();
    let name = cut(&topology.name, 60);
    let subtitle = cut(&subtitle(topology), 160);
    canvas.text(MARGIN, 40, &name, Style::Title, Anchor::Start);
    canvas.text(MARGIN, 60, &subtitle, Style::Small, Anchor::Start);
    let (width, y) = rows(topology, first_host(topology), &mut canvas, 80);
    let (legend_width, y) = legend(topology, &mut canvas, y + 24);
    let width = width.max(legend_width).max(canvas::small_width(&subtitle)).max(canvas::small_width(&name) * 7 / 3)
        + 2 * MARGIN;
    canvas.finish(&topology.name, width, y + MARGIN - 10)
}

/// The picture as an element of a page, with lines by how busy they are; `labels` are the ids of its name and its words.
/// The busiest host is the one in full.
pub(crate) fn busy(machine: &Machine, labels: &str) -> String {
    let mut canvas = Canvas::of(Busy::new(machine));
    let (width, y) = rows(&machine.topology, busiest_host(machine), &mut canvas, 4);
    canvas.finish_inside(&machine.times.join("|"), labels, width + 2 * MARGIN, y + 4)
}

/// The host whose own links carry most, of equal ones the first.
fn busiest_host(machine: &Machine) -> usize {
    let topology = &machine.topology;
    let mut sums = vec![0.0; topology.hosts().len()];
    for (&link, shares) in &machine.busy {
        let (from, to) = topology.ends(link);
        for host in [from, to].into_iter().filter_map(|end| topology.vertex(end).host) {
            sums[host.index()] += shares.first().copied().unwrap_or(0.0);
        }
    }
    let has_gpus = |host: usize| !topology.hosts()[host].gpus.is_empty();
    let most = |best: usize, host: usize| {
        // What sums differ by in the last digits is no difference.
        if has_gpus(host) && sums[host] > sums[best] * (1.0 + 1e-9) { host } else { best }
    };
    (0..sums.len()).fold(first_host(topology), most)
}

/// The network with its hosts, and below them one host in full; returns the width and the lower end.
fn rows(topology: &Topology, first: usize, canvas: &mut Canvas<'_>, top: i64) -> (i64, i64) {
    let tree = HostTree::new(topology, first);
    let mut y = top;
    let host = host::Layout::new(&tree, canvas.is_of_loads());
    let mut width = host.width();
    let fabric = Fabric::new(topology, first);
    if let Some(fabric) = &fabric {
        width = width.max(fabric.width());
        y = fabric.draw(canvas, MARGIN, y, width) + 34;
    }
    let left = MARGIN + (width - host.width()) / 2;
    let title = match &fabric {
        Some(_) => format!("{} in detail", tree.name),
        None => tree.name.clone(),
    };
    (width, host.draw(canvas, left, y, &title))
}

fn subtitle(topology: &Topology) -> String {
    let mut kinds: Vec<(String, usize)> = Vec::new();
    for host in topology.hosts().iter().filter(|h| !h.gpus.is_empty()) {
        let text = gpus_text(topology, &host.gpus);
        match kinds.iter_mut().find(|(known, _)| *known == text) {
            Some((_, count)) => *count += 1,
            None => kinds.push((text, 1)),
        }
    }
    let more = kinds.len().saturating_sub(3);
    let mut parts: Vec<String> = kinds
        .iter()
        .take(3)
        .map(|(text, count)| match count {
            1 => format!("1 host: {text}"),
            n => format!("{n} hosts: {text} each"),
        })
        .collect();
    if more > 0 {
        parts.push(format!("{more} more kinds of host"));
    }
    parts.push("rates are nominal, one direction".to_owned());
    parts.join(" \u{b7} ")
}

/// One line for each kind of link, with its rates; returns the width and the lower end.
fn legend(topology: &Topology, canvas: &mut Canvas<'_>, top: i64) -> (i64, i64) {
    const RATES: usize = 4;
    let mut kinds: BTreeMap<LinkKind, BTreeMap<(u64, u64), usize>> = BTreeMap::new();
    for (id, vertex) in topology.vertices() {
        // As on the lines: parallel links are one, all NVSwitches are one, seen from the GPU.
        let nvswitch = |id| topology.vertex(id).kind == VertexKind::NvSwitch;
        if vertex.kind == VertexKind::NvSwitch {
            continue;
        }
        let mut ends: BTreeMap<Option<VertexId>, Bundles> = BTreeMap::new();
        for (_, to, link) in topology.links_from(id) {
            let end = (!nvswitch(to)).then_some(to);
            add_link(ends.entry(end).or_default(), link);
        }
        for bundle in ends.into_values().flat_map(BTreeMap::into_values) {
            let rates = kinds.entry(bundle.kind).or_default();
            *rates.entry((bundle.width, bundle.rate)).or_default() += 1;
        }
    }
    let mut y = top;
    let mut width = 0;
    for (kind, rates) in kinds {
        let mut common: Vec<_> = rates.into_iter().collect();
        common.sort_by_key(|&(rate, count)| (std::cmp::Reverse(count), rate));
        let mut texts: Vec<String> =
            common.iter().take(RATES).map(|&((width, rate), _)| Bundle { kind, width, rate }.label()).collect();
        if common.len() > RATES {
            texts.push(format!("{} more", common.len() - RATES));
        }
        let rates = texts.join(", ");
        canvas.line((MARGIN, y), (MARGIN + 34, y), (kind, 3), None);
        canvas.text(MARGIN + 46, y + 4, kind_text(kind), Style::Name, Anchor::Start);
        canvas.text(MARGIN + 170, y + 4, &rates, Style::Small, Anchor::Start);
        width = width.max(170 + canvas::small_width(&rates));
        y += 20;
    }
    (width, y)
}

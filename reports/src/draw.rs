//! A machine as a picture, for documents and for a check by eye: [`svg`] and [`dot`].
//!
//! The first host is drawn in full: NVSwitch, GPUs, PCIe switches, NICs, CPUs, every line
//! with its nominal rate of one direction. Hosts of a cluster are boxes under their leaf and
//! spine switches. Long rows are cut in the middle, with a count of what is left out. The SVG
//! is one file without scripts or outside fonts; it brings its own light background, so that
//! it reads the same on a dark page.

mod canvas;
mod dot;
mod fabric;
mod host;

use std::collections::BTreeMap;

use collcast_sim::ids::VertexId;
use collcast_sim::topology::{LinkKind, Topology, VertexKind};

use crate::machine::{Bundle, Bundles, add_link, cut, first_host, gpus_text, kind_text};
use canvas::{Anchor, Canvas, Style};
use fabric::Fabric;
use host::HostTree;

pub use dot::dot;

const MARGIN: i64 = 28;

/// The picture as SVG.
pub fn svg(topology: &Topology) -> String {
    let first = first_host(topology);
    let tree = HostTree::new(topology, first);
    let mut canvas = Canvas::default();

    let name = cut(&topology.name, 60);
    let subtitle = cut(&subtitle(topology), 160);
    canvas.text(MARGIN, 40, &name, Style::Title, Anchor::Start);
    canvas.text(MARGIN, 60, &subtitle, Style::Small, Anchor::Start);
    let mut y = 80;
    let host = host::Layout::new(&tree);
    let mut width = host.width();
    let fabric = Fabric::new(topology, first);
    if let Some(fabric) = &fabric {
        width = width.max(fabric.width());
        y = fabric.draw(&mut canvas, MARGIN, y, width) + 34;
    }
    let left = MARGIN + (width - host.width()) / 2;
    let title = match &fabric {
        Some(_) => format!("{} in detail", tree.name),
        None => tree.name.clone(),
    };
    y = host.draw(&mut canvas, left, y, &title) + 24;
    let (legend_width, y) = legend(topology, &mut canvas, y);
    let width = width.max(legend_width).max(canvas::small_width(&subtitle)).max(canvas::small_width(&name) * 7 / 3)
        + 2 * MARGIN;
    canvas.finish(&topology.name, width, y + MARGIN - 10)
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
fn legend(topology: &Topology, canvas: &mut Canvas, top: i64) -> (i64, i64) {
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
        canvas.line((MARGIN, y), (MARGIN + 34, y), kind, 3);
        canvas.text(MARGIN + 46, y + 4, kind_text(kind), Style::Name, Anchor::Start);
        canvas.text(MARGIN + 170, y + 4, &rates, Style::Small, Anchor::Start);
        width = width.max(170 + canvas::small_width(&rates));
        y += 20;
    }
    (width, y)
}

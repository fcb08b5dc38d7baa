//! The same picture for Graphviz, for those who want to lay it out themselves.

use std::fmt::Write as _;

use collcast_sim::topology::Topology;

use super::fabric::{Fabric, Item};
use super::host::{HostTree, NodeKind};
use crate::machine::{Bundle, first_host};
use collcast_sim::text::one_line;

/// The picture as a Graphviz graph; `dot -Tsvg` draws it.
pub fn dot(topology: &Topology) -> String {
    let first = first_host(topology);
    let tree = HostTree::new(topology, first);
    let mut out = String::new();
    let name = quote(&topology.name);
    let _ = writeln!(
        out,
        "graph {name} {{\n  label={name}; labelloc=t; rankdir=TB; bgcolor=\"#fbfaf7\";\n  \
         node [shape=box, style=\"rounded,filled\", fillcolor=\"#ffffff\", fontname=\"Helvetica\"];\n  \
         edge [fontname=\"Helvetica\", fontsize=10];"
    );
    let fabric = Fabric::new(topology, first);
    if let Some(fabric) = &fabric {
        draw_fabric(&mut out, fabric, first);
    }
    let _ =
        writeln!(out, "  subgraph cluster_host {{\n    label={};", quote(&format!("{}: {}", tree.name, tree.summary)));
    if !tree.nvswitch.is_empty() {
        node(&mut out, "nvswitch", &tree.nvswitch, "#cfe6c2");
    }
    for (place, drawn) in tree.nodes.iter().enumerate() {
        let fill = match drawn.kind {
            NodeKind::Gpu => "#e4f2dc",
            NodeKind::Nic if drawn.management => "#f3f3f1",
            NodeKind::Nic => "#dfebf7",
            NodeKind::Switch => "#e9edf0",
            NodeKind::Cpu => "#f4ead9",
            NodeKind::More => "#fbfaf7",
        };
        node(&mut out, &format!("v{place}"), &drawn.words, fill);
    }
    for (place, bundle) in &tree.to_nvswitch {
        edge(&mut out, "nvswitch", &format!("v{place}"), *bundle);
    }
    for (place, drawn) in tree.nodes.iter().enumerate() {
        for &child in &drawn.children {
            // GPUs above their switch, NICs below it, as in the SVG.
            let (own, other) = (format!("v{place}"), format!("v{child}"));
            let below = tree.nodes[child].kind == NodeKind::Nic && drawn.kind != NodeKind::Cpu;
            let (upper, lower) = if below { (own, other) } else { (other, own) };
            for &bundle in &tree.nodes[child].links {
                edge(&mut out, &upper, &lower, bundle);
            }
        }
    }
    for &(a, b, bundle) in &tree.across {
        edge(&mut out, &format!("v{a}"), &format!("v{b}"), bundle);
    }
    out.push_str("  }\n}\n");
    out
}

fn draw_fabric(out: &mut String, fabric: &Fabric, first: usize) {
    for (level, row) in fabric.rows.iter().enumerate().rev() {
        out.push_str("  { rank=same;\n");
        for item in &row.items {
            match *item {
                Item::One(place) => {
                    let fill = if level == 0 { "#ffffff" } else { "#d2e3f3" };
                    let mut words = row.words[place].clone();
                    if level == 0 && place == first {
                        words.push("(shown below)".to_owned());
                    }
                    node(out, &format!("r{level}_{place}"), &words, fill);
                }
                Item::More(count) => {
                    let words = [format!("... {count} more")];
                    node(out, &format!("r{level}_more"), &words, "#fbfaf7");
                }
            }
        }
        out.push_str("  }\n");
    }
    let drawn = |spot: (usize, usize)| fabric.rows[spot.0].items.contains(&Item::One(spot.1));
    for (&(a, b), bundles) in &fabric.edges {
        if drawn(a) && drawn(b) {
            for &bundle in bundles.values() {
                let (lower, upper) = (format!("r{}_{}", a.0, a.1), format!("r{}_{}", b.0, b.1));
                edge(out, &upper, &lower, bundle);
            }
        }
    }
    for (index, domain) in fabric.domains.iter().enumerate() {
        let id = format!("d{index}");
        node(out, &id, std::slice::from_ref(&domain.name), "#cfe6c2");
        for (&host, bundles) in domain.hosts.iter().filter(|(h, _)| drawn((0, **h))) {
            for &bundle in bundles.values() {
                edge(out, &format!("r0_{host}"), &id, bundle);
            }
        }
    }
}

fn node(out: &mut String, id: &str, words: &[String], fill: &str) {
    let words: Vec<String> = words.iter().map(|w| escape(w)).collect();
    let _ = writeln!(out, "    {id} [label=\"{}\", fillcolor=\"{fill}\"];", words.join("\\n"));
}

fn edge(out: &mut String, from: &str, to: &str, bundle: Bundle) {
    let _ = writeln!(
        out,
        "    {from} -- {to} [label={}, color=\"{}\"];",
        quote(&bundle.label()),
        crate::palette::link(bundle.kind)
    );
}

fn quote(text: &str) -> String {
    format!("\"{}\"", escape(text))
}

fn escape(text: &str) -> String {
    one_line(text).replace('\\', "\\\\").replace('"', "\\\"")
}

//! Writes a listed cluster as a topology file.

use std::fmt::Write as _;

use crate::exception::{Deviation, Owner};
use crate::fabric::{FabricKind, FabricSpec, Oversubscription, Routing};
use crate::hostlist::compress;
use crate::input::is_topology_file;
use crate::listed::Listed;
use crate::raw::SCHEMA;

/// A text as a TOML string.
pub(crate) fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// A machine as a topology file names it. A file is looked for beside the one that names it, wherever that is written.
pub(crate) fn named(machine: &str) -> String {
    if crate::texts::text(machine).is_some() {
        return machine.to_owned();
    }
    std::path::absolute(machine).map_or_else(|_| machine.to_owned(), |path| path.display().to_string())
}

/// The cluster as a topology file, which reads back as the same machine.
pub fn toml(listed: &Listed) -> String {
    let cluster = &listed.cluster;
    let mut out = String::new();
    for note in &listed.notes {
        let _ = writeln!(out, "# {}", note.replace(['\n', '\r'], " "));
    }
    let _ = writeln!(out, "schema = {}\nname = {}", quoted(SCHEMA), quoted(&cluster.name));
    if let Some(profile) = &cluster.profile {
        let _ = writeln!(out, "profile = {}", quoted(profile));
    }
    let software = &cluster.software;
    if *software != collcast_sim::topology::Software::default() {
        out.push_str("\n[software]\n");
        let nccl = software.nccl.map(|version| version.to_string());
        for (key, value) in [("nccl", &nccl), ("plugin", &software.plugin)] {
            if let Some(value) = value {
                let _ = writeln!(out, "{key} = {}", quoted(value));
            }
        }
        if software.multicast_off {
            out.push_str("multicast = false\n");
        }
        if !software.env.is_empty() {
            out.push_str("[software.env]\n");
            for (name, value) in &software.env {
                let _ = writeln!(out, "{} = {}", quoted(name), quoted(value));
            }
        }
    }
    for (group, like) in cluster.groups.iter().zip(&listed.like) {
        let names = quoted(&compress(&group.names));
        let key = if is_topology_file(like) || crate::texts::text(like).is_some() { "like" } else { "xml" };
        let _ = writeln!(out, "\n[[hosts]]\nnames = {names}\n{key} = {}", quoted(&named(like)));
        if group.new_domain {
            out.push_str("new_domain = true\n");
        }
    }
    if let Some(fabric) = cluster.fabric.as_ref().filter(|fabric| fabric.kind == FabricKind::Listed) {
        network(fabric, &mut out);
    }
    for exception in &cluster.exceptions {
        let (owner, port) = match exception.owner {
            Owner::Host => ("host", "nic"),
            Owner::Switch => ("switch", "uplink"),
        };
        let _ = writeln!(out, "\n[[exceptions]]\n{owner} = {}", quoted(&exception.name));
        if let Some(at) = exception.port {
            let _ = writeln!(out, "{port} = {at}");
        }
        let _ = match exception.deviation {
            Deviation::Rate(rate) => writeln!(out, "rate = {}", quoted(&exact(rate))),
            Deviation::Down => writeln!(out, "state = \"down\""),
        };
    }
    out
}

/// A rate to the byte.
pub(crate) fn exact(rate: collcast_sim::units::Bandwidth) -> String {
    format!("{} GB/s", rate.get() as f64 / 1e9)
}

fn network(fabric: &FabricSpec, out: &mut String) {
    out.push_str("\n[fabric]\nkind = \"listed\"\n");
    let routing = if fabric.routing == Routing::Spray { "spray" } else { "adaptive" };
    let _ = writeln!(out, "routing = \"{routing}\"");
    match fabric.oversubscription {
        Oversubscription::Thousandths(t) => drop(writeln!(out, "oversubscription = {:?}", f64::from(t) / 1000.0)),
        Oversubscription::Unknown => out.push_str("oversubscription = \"unknown\"\n"),
        Oversubscription::NotGiven => {}
    }
    if fabric.sharp {
        out.push_str("sharp = true\n");
    }
    for switch in &fabric.tree.switches {
        let _ = writeln!(out, "\n[[fabric.switches]]\nname = {}", quoted(&switch.name));
        if !switch.ports.is_empty() {
            let ports: Vec<String> = (switch.ports.iter())
                .map(|ports| {
                    let nics = ports.nics.as_ref().map_or_else(String::new, |nics| format!(", nics = {nics:?}"));
                    format!("{{ hosts = {}{nics} }}", quoted(&compress(&ports.hosts)))
                })
                .collect();
            let _ = writeln!(out, "ports = [{}]", ports.join(", "));
        }
        if !switch.switches.is_empty() {
            let _ = writeln!(out, "switches = {}", quoted(&compress(&switch.switches)));
        }
        if let Some(rate) = switch.rate {
            let _ = writeln!(out, "rate = {}", quoted(&exact(rate)));
        }
        if let Some(uplinks) = switch.uplinks {
            let _ = writeln!(out, "uplinks = {uplinks}");
        }
        if let Some(rate) = switch.uplink_rate {
            let _ = writeln!(out, "uplink_rate = {}", quoted(&exact(rate)));
        }
    }
}

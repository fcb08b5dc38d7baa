//! Lines of a drawn machine by how busy the links are that they stand for.

use std::fmt::Write as _;

use collcast_sim::ids::VertexId;
use collcast_sim::topology::LinkKind;

use crate::figure::Machine;
use crate::machine::kind_text;

/// How busy links are.
pub(super) struct Busy<'m> {
    machine: &'m Machine,
    /// Those that carry anything: from, to, kind, and the shares of each time.
    used: Vec<(VertexId, VertexId, LinkKind, &'m [f64])>,
}

/// How busy what a line stands for is: its busiest link, at each of the times.
pub(super) struct Load {
    /// The busiest link and its kind.
    pub(super) name: String,
    /// The shares, in percent.
    pub(super) percent: Vec<u32>,
}

impl<'m> Busy<'m> {
    pub(super) fn new(machine: &'m Machine) -> Self {
        let link = |(&id, shares): (_, &'m Vec<f64>)| {
            let (from, to) = machine.topology.ends(id);
            (from, to, machine.topology.link(id).kind, &shares[..])
        };
        Self { machine, used: machine.busy.iter().map(link).collect() }
    }

    /// The load of the links of a kind between two sets of vertices, in both directions.
    pub(super) fn between(&self, kind: LinkKind, a: &dyn Fn(VertexId) -> bool, b: &dyn Fn(VertexId) -> bool) -> Load {
        let ends = |from, to| (a(from) && b(to)) || (b(from) && a(to));
        let mut most = vec![0.0_f64; self.machine.times.len()];
        let mut busiest = None;
        for &(from, to, _, shares) in self.used.iter().filter(|link| link.2 == kind && ends(link.0, link.1)) {
            let first = shares.first().copied().unwrap_or(0.0);
            if busiest.is_none_or(|(_, _, known)| known < first) {
                busiest = Some((from, to, first));
            }
            for (most, share) in most.iter_mut().zip(shares) {
                *most = most.max(*share);
            }
        }
        let vertex = |id| &self.machine.topology.vertex(id).name;
        let name = busiest.map_or_else(
            || kind_text(kind).to_owned(),
            |(from, to, _)| format!("{} -> {}, {}", vertex(from), vertex(to), kind_text(kind)),
        );
        Load { name, percent: most.into_iter().map(percent).collect() }
    }
}

/// A share as whole percent. What is used at all is at least one.
fn percent(share: f64) -> u32 {
    let percent = (share.clamp(0.0, 1.0) * 100.0).round() as u32;
    if share > 0.0 { percent.max(1) } else { percent }
}

impl Load {
    /// Over the whole time.
    pub(super) fn whole(&self) -> u32 {
        self.percent.first().copied().unwrap_or(0)
    }

    /// As an attribute holds them.
    pub(super) fn list(&self) -> String {
        let mut list = String::new();
        for percent in &self.percent {
            let _ = write!(list, "{}{percent}", if list.is_empty() { "" } else { " " });
        }
        list
    }
}

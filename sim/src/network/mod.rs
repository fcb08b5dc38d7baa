//! From schedule to machine: the order of ranks, routes between them, and laying a schedule on both.

mod lay;
mod route;

use crate::ids::Rank;
use crate::schedule::Order;
use crate::topology::Topology;

pub use lay::{Laid, LayError, ResourceName, check_multicast, check_sharp, lay, smallest_latency};
pub use route::{PathClass, Route, Router};

/// In which order rings visit the first `ranks` GPUs of a machine: inside a host by number,
/// between hosts each channel enters at another GPU.
pub fn order(topology: &Topology, ranks: u32) -> Order {
    let mut hosts: Vec<Vec<u32>> = Vec::new();
    let mut last = None;
    for rank in 0..ranks.min(topology.ranks()) {
        let host = topology.host_of(Rank(rank));
        if last != Some(host) {
            hosts.push(Vec::new());
            last = Some(host);
        }
        if let Some(members) = hosts.last_mut() {
            members.push(rank);
        }
    }
    let shifts = if hosts.len() > 1 { hosts.iter().map(Vec::len).min().unwrap_or(1) } else { 1 };
    let rings = (0..shifts)
        .map(|shift| hosts.iter().flat_map(|h| (0..h.len()).map(move |i| h[(i + shift) % h.len()])).collect())
        .collect();
    Order { rings, hosts }
}

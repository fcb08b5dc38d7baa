//! Lower bounds on the time of a collective: what no schedule can beat on a machine.
//!
//! For any set of ranks, what its members must learn from outside has to enter it, and what
//! others need of it has to leave. The cuts checked are every rank, every host, and each half
//! of the hosts; the links of every level are checked by the bytes that really went over them.
//! Source: Chan, Heimlich, Purkayastha, van de Geijn, "Collective communication: theory,
//! practice, and experience", CCPE 19(13), 2007, section 3 (lower bounds).

use crate::collective::Collective;
use crate::ids::{Rank, VertexId};
use crate::schedule::Call;
use crate::topology::Topology;
use crate::units::{Bytes, PS_PER_S, SimDuration};

/// A cut that bounds the time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bound {
    /// Time below which the collective cannot end.
    pub time: SimDuration,
    /// The cut, for messages.
    pub what: String,
}

/// Bytes that must enter and leave a set of `inside` of the call's ranks, without reduction
/// in the network. `root_inside`: whether the root is one of them.
fn crossing(call: &Call, inside: u64, root_inside: bool) -> (u64, u64) {
    let n = u64::from(call.ranks);
    let outside = n - inside.min(n);
    let part = call.count * call.dtype.size();
    if inside == 0 || outside == 0 {
        return (0, 0);
    }
    match call.collective {
        // Of send/receive: a contiguous set of ranks has one neighbour on each side.
        Collective::AllReduce | Collective::SendRecv => (part, part),
        Collective::AllGather => (outside * part, inside * part),
        Collective::ReduceScatter => (inside * part, outside * part),
        Collective::Broadcast => {
            if root_inside {
                (0, part)
            } else {
                (part, 0)
            }
        }
        Collective::Reduce => {
            if root_inside {
                (part, 0)
            } else {
                (0, part)
            }
        }
        Collective::Gather => {
            if root_inside {
                (outside * part, 0)
            } else {
                (0, inside * part)
            }
        }
        Collective::Scatter => {
            if root_inside {
                (0, outside * part)
            } else {
                (inside * part, 0)
            }
        }
        Collective::AllToAll if call.counts.is_some() => (0, 0),
        Collective::AllToAll => (inside * outside * part, inside * outside * part),
    }
}

fn time_over(bytes: u64, rate: u64) -> SimDuration {
    if rate == 0 {
        return SimDuration::ZERO;
    }
    let ps = u128::from(bytes) * PS_PER_S / u128::from(rate);
    SimDuration(u64::try_from(ps).unwrap_or(u64::MAX))
}

/// The strongest bound of all cuts.
pub fn bandwidth(topology: &Topology, call: &Call) -> Bound {
    let mut best = Bound { time: SimDuration::ZERO, what: "nothing to move".to_owned() };
    let mut consider = |time: SimDuration, what: &dyn Fn() -> String| {
        if time > best.time {
            best = Bound { time, what: what() };
        }
    };
    let rate =
        |vertex: VertexId| topology.links_from(vertex).map(|(_, _, l)| l.rate.get()).fold(0, u64::saturating_add);
    let mut all_rates = 0_u64;
    for r in 0..call.ranks {
        let rate = rate(topology.gpu_of(Rank(r)));
        all_rates = all_rates.saturating_add(rate);
        let (enter, leave) = crossing(call, 1, call.root == Rank(r));
        consider(time_over(enter.max(leave), rate), &|| format!("the links of rank {r}"));
    }
    if call.collective == Collective::AllReduce {
        // Every rank but one gives its data away once, and gets the result once.
        let total = 2 * u64::from(call.ranks - 1) * call.count * call.dtype.size();
        consider(time_over(total, all_rates), &|| "the links of all ranks together".to_owned());
    }
    let mut hosts: Vec<(u64, bool, u64)> = vec![(0, false, 0); topology.hosts().len()];
    for r in 0..call.ranks {
        let host = &mut hosts[topology.host_of(Rank(r)).index()];
        host.0 += 1;
        host.1 |= call.root == Rank(r);
    }
    for (index, host) in topology.hosts().iter().enumerate() {
        let network = host.nics.iter().flat_map(|&n| topology.links_from(n)).filter(|l| l.2.kind.is_network());
        hosts[index].2 = network.map(|l| l.2.rate.get()).fold(0, u64::saturating_add);
        let (inside, root, rate) = hosts[index];
        let (enter, leave) = crossing(call, inside, root);
        consider(time_over(enter.max(leave), rate), &|| format!("the NICs of host {}", host.name));
    }
    let used: Vec<_> = hosts.iter().filter(|h| h.0 > 0).collect();
    if used.len() > 2 {
        let half = &used[..used.len() / 2];
        let (inside, root) = (half.iter().map(|h| h.0).sum(), half.iter().any(|h| h.1));
        let (enter, leave) = crossing(call, inside, root);
        let rate = half.iter().map(|h| h.2).fold(0, u64::saturating_add);
        consider(time_over(enter.max(leave), rate), &|| "the NICs of half of the hosts".to_owned());
    }
    best
}

/// Whether every resource carried no more than its capacity allows in a time.
///
/// # Errors
/// The first resource that did: its index and how many units it carried.
pub fn check_loads(capacities: &[u64], loads: &[u128], time: SimDuration, one: u64) -> Result<(), (usize, u128)> {
    for (index, (&capacity, &load)) in capacities.iter().zip(loads).enumerate() {
        // One unit a flow may be lost to rounding up of ends; ends are rounded up, so none is.
        let most = u128::from(capacity) * u128::from(time.0 + 1) / PS_PER_S + 1;
        if load / u128::from(one) > most {
            return Err((index, load));
        }
    }
    Ok(())
}

/// The bytes of a call, for messages.
pub fn size_text(call: &Call) -> Bytes {
    call.size()
}

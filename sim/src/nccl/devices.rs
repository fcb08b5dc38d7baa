//! The network devices that NCCL sees of a host's NICs, and which of them a GPU takes.

use super::transport::{Interface, NicsPerGpu, Ports, Transport};
use crate::ids::VertexId;
use crate::topology::{Host, LinkKind, Topology};

/// The NICs of a host as the devices that NCCL sees: the EFA NICs of one GPU act as one, as the
/// aws-ofi-nccl plugin makes them, and the ports of a card as [`Ports`] says; any other NIC, or interface
/// of sockets, is a device of its own.
pub(crate) fn nic_devices(topology: &Topology, host: &Host, transport: &Transport) -> Vec<Vec<VertexId>> {
    let interface = transport.interface;
    let nics = if interface == Interface::Management { &host.management } else { &host.nics };
    let usable = |v: &&VertexId| {
        interface != Interface::Data || topology.nic(**v).is_none_or(|nic| transport.nics.has(nic.index))
    };
    let nics: Vec<VertexId> = nics.iter().filter(usable).copied().collect();
    let is = |v: &VertexId, kind| interface == Interface::Data && topology.nic(*v).is_some_and(|n| n.kind == kind);
    let efa = |v: &VertexId| is(v, LinkKind::Efa);
    let card = |v: &VertexId| {
        let verbs = is(v, LinkKind::Infiniband) || is(v, LinkKind::Roce);
        topology.nic(*v).and_then(|n| n.card).filter(|_| verbs)
    };
    let of_card = |c| nics.iter().filter(|v| card(v) == c).count();
    let merged = match transport.ports {
        Ports::Apart => false,
        Ports::Merged => true,
        Ports::AllOrNone => nics.first().is_some_and(|first| {
            card(first).is_some() && nics.iter().all(|v| of_card(card(v)) == of_card(card(first)))
        }),
    };
    let one_card = |a: &VertexId, b: &VertexId| merged && card(a).is_some() && card(a) == card(b);
    let each = nics.iter().filter(|v| efa(v)).count() / host.gpus.len().max(1);
    let parent = |v: VertexId| topology.links_from(v).find(|(_, _, l)| l.kind == LinkKind::Pcie).map(|l| l.1);
    let mut devices: Vec<Vec<VertexId>> = Vec::new();
    for &nic in &nics {
        match devices.last_mut() {
            Some(last) if one_card(&nic, &last[0]) => last.push(nic),
            Some(last) if last.len() < each && efa(&nic) && efa(&last[0]) && parent(nic) == parent(last[0]) => {
                last.push(nic);
            }
            _ => devices.push(vec![nic]),
        }
    }
    devices
}

/// The network devices that a GPU takes by channel of those nearest to it, where it is the `number`-th of
/// its host and `sharers` GPUs are as near to them (NCCL 2.30 `src/graph/topo.cc`,
/// restated).
pub(crate) fn share_out<T: Clone>(devices: &[T], sharers: usize, number: usize, policy: NicsPerGpu) -> Vec<T> {
    let (count, sharers) = (devices.len(), sharers.max(1));
    let mut start = number % sharers;
    if count.is_power_of_two() {
        start = mirror_bits(start, count);
    }
    let each = match policy {
        NicsPerGpu::Share => count.div_ceil(sharers),
        NicsPerGpu::All => count,
        NicsPerGpu::Most(most) => count.min(most as usize),
    };
    (0..each).map(|c| devices[(start + c) % count].clone()).collect()
}

/// The lowest `bits` of a number, `count = 2^bits`, in reverse order.
fn mirror_bits(value: usize, count: usize) -> usize {
    let (mut mirrored, mut high) = (0, count >> 1);
    let mut low = 1;
    while low < count {
        if value & low != 0 {
            mirrored |= high;
        }
        low <<= 1;
        high >>= 1;
    }
    mirrored
}

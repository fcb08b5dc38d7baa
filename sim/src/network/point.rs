//! Ways between any two memories, of GPUs or hosts: for transfers that are part of no collective.

use super::route::{Hop, Leg, Router, add};
use crate::engine::flows::WEIGHT_ONE;
use crate::ids::VertexId;
use crate::nccl::PathClass;
use crate::topology::{LinkKind, VertexKind};

/// NICs that a transfer of host memory is striped over at most (UCX `UCX_MAX_RNDV_RAILS`, 2 by default). Those of a GPU are
/// as many as a GPU has.
const RAILS: usize = 2;

/// A way through the network.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Across {
    /// What bytes go through, NICs' own ways to memory included.
    pub leg: Leg,
    /// NICs at which it leaves and enters, by stripe.
    pub nics: Vec<(VertexId, VertexId)>,
    /// Fabric of these NICs.
    pub kind: LinkKind,
    /// Whether those NICs read and write the GPU memory at both ends themselves, where there is any.
    pub gpudirect: bool,
}

impl Router<'_> {
    /// The way between two memories, each of a GPU or a CPU, of one host or NVLink domain.
    pub fn within(&mut self, from: VertexId, to: VertexId) -> Option<(Leg, PathClass)> {
        let (links, class) = self.inside(from, to)?;
        let links = links.into_iter().map(|link| (Hop::Link(link), WEIGHT_ONE));
        Some((links.chain(self.memories(&[from, to])).collect(), class))
    }

    /// The way between two memories of different hosts, in equal stripes over the NICs nearest to the receiver's; each
    /// stripe leaves by the sender's nearest NIC that reaches its own. `None` where none does.
    pub fn across(&mut self, from: VertexId, to: VertexId) -> Option<Across> {
        let (near, others, mut enters) = (self.nearest_nics(from), self.host_nics(from), self.nearest_nics(to));
        if self.topology().gpu(to).is_none() {
            enters.truncate(RAILS);
        }
        let share = WEIGHT_ONE.div_ceil(enters.len().max(1) as u64);
        let mut leg: Leg = Vec::new();
        let mut nics = Vec::new();
        let mut gpudirect = true;
        for (index, &enter) in enters.iter().enumerate() {
            let first = near.get(index % near.len().max(1)).copied();
            let mut leaves = first.into_iter().chain(others.iter().copied());
            let (leave, middle) = leaves.find_map(|leave| Some((leave, self.fabric(leave, enter, share, 0)?)))?;
            let (out, class_out) = self.inside(from, leave)?;
            let (inward, class_in) = self.inside(enter, to)?;
            // NVIDIA's GPUDirect RDMA works through PCIe switches and one CPU, not between sockets.
            gpudirect &= class_out.max(class_in) <= PathClass::Phb;
            let hops = |links: Vec<_>| links.into_iter().map(move |link| (Hop::Link(link), share));
            add(&mut leg, hops(out).chain(middle).chain(hops(inward)));
            add(
                &mut leg,
                self.direct(from, leave, true, share).into_iter().chain(self.direct(to, enter, false, share)),
            );
            gpudirect &= [(from, leave), (to, enter)].into_iter().all(|(memory, nic)| self.reaches(memory, nic));
            nics.push((leave, enter));
        }
        let kind = self.topology().nic(nics.first()?.0)?.kind;
        leg.extend(self.memories(&[from, to]));
        Some(Across { leg, nics, kind, gpudirect })
    }

    /// Memories of CPUs among some.
    fn memories(&self, of: &[VertexId]) -> Leg {
        let is_cpu = |v: &&VertexId| matches!(self.topology().vertex(**v).kind, VertexKind::Cpu { .. });
        of.iter().filter(is_cpu).map(|&cpu| (Hop::Memory(cpu), WEIGHT_ONE)).collect()
    }

    /// Whether a NIC reads and writes a memory itself: all do so with a host's.
    fn reaches(&self, memory: VertexId, nic: VertexId) -> bool {
        self.topology().gpu(memory).is_none() || self.topology().nic(nic).is_some_and(|nic| nic.gpudirect)
    }

    /// The limit of a NIC that reads or writes GPU memory, where it has one.
    fn direct(&self, memory: VertexId, nic: VertexId, reads: bool, share: u64) -> Option<(Hop, u64)> {
        self.topology().gpu(memory)?;
        let rate = self.topology().nic(nic)?.gpudirect_rate?;
        Some((Hop::Direct(nic, reads, rate), share))
    }

    /// NICs of the host of a memory that are up.
    fn host_nics(&self, memory: VertexId) -> Vec<VertexId> {
        let host = self.topology().vertex(memory).host.unwrap_or_default();
        self.topology().hosts()[host.index()].nics.clone()
    }
}

//! Proofs.

use std::sync::{Arc, PoisonError};

use super::simulate::describe;
use super::{PredictError, Predictor, Settings};
use crate::collective::{Algorithm, Collective, Protocol};
use crate::schedule::verify::verify;
use crate::schedule::{Call, Order, Schedule};

/// How a schedule was proved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProofKind {
    /// At its real size.
    Proved,
    /// Its pattern at a smaller size, or with fewer ranks.
    Sampled,
}

/// A schedule and how it was proved.
#[derive(Debug)]
pub(crate) struct Proven {
    pub(crate) schedule: Schedule,
    pub(crate) proof: ProofKind,
}

/// Ranks up to which a sampled proof uses the real number.
const PROOF_RANKS: u32 = 64;
/// Slices up to which the real call is proved.
const PROOF_SLICES: u64 = 4_000;

impl Predictor<'_> {
    /// The schedule of a call, proved.
    pub(crate) fn proven(
        &self,
        call: &Call,
        algorithm: Algorithm,
        protocol: Protocol,
        settings: &Settings,
    ) -> Result<Proven, PredictError> {
        let schedule = self.schedule(call, algorithm, protocol, settings)?;
        let proof = self.prove(&schedule, settings)?;
        Ok(Proven { schedule, proof })
    }
    /// Proves a schedule, or a smaller one of the same pattern; each pattern once.
    pub(super) fn prove(&self, schedule: &Schedule, settings: &Settings) -> Result<ProofKind, PredictError> {
        let unproved = |error| PredictError::Unproved { what: describe(schedule), error };
        let call = &schedule.call;
        let plan = &schedule.plan;
        let per_loop = plan.chunk.max(1) * u64::from(call.ranks);
        let count = call.counts.as_ref().map_or(call.count, |counts| counts.iter().copied().max().unwrap_or(0));
        let slices = (count / per_loop + 1) * u64::from(call.ranks).pow(2) * 2 * u64::from(plan.slices);
        let slices = slices.saturating_mul(u64::from(plan.channels));
        if slices <= PROOF_SLICES {
            return verify(schedule).map(|_| ProofKind::Proved).map_err(unproved);
        }
        let key = format!(
            "{} {} {} {} {} {} {} {}",
            call.collective,
            plan.algorithm,
            call.ranks,
            call.in_place,
            call.root,
            plan.slices,
            plan.fifo_slices,
            plan.aggregate
        );
        // A count matrix is a pattern of its own; what is missing in it stays missing.
        let pattern = Arc::clone(self.proofs.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default());
        let mut known = pattern.lock().unwrap_or_else(PoisonError::into_inner);
        if *known && call.counts.is_none() {
            return Ok(ProofKind::Sampled);
        }
        // Fewer ranks stand on fewer hosts, and on fewer of each.
        let order = self.order(call.ranks, settings);
        let (ranks, order) = if call.ranks > PROOF_RANKS {
            let fewest = self.graph(call.ranks, settings).ranks_per_host.0;
            let per_host = (PROOF_RANKS / 8).min(fewest).max(1);
            let hosts = u32::try_from(order.hosts.len()).unwrap_or(u32::MAX).min(PROOF_RANKS / per_host);
            if hosts == 1 {
                (PROOF_RANKS, Arc::new(Order::one_host(PROOF_RANKS)))
            } else {
                (hosts * per_host, Arc::new(Order::grid(hosts, per_host)))
            }
        } else {
            // Of channels that are left the second is to be of the second tree.
            let mut order = (*order).clone();
            order.chains.iter_mut().for_each(|chains| chains.of_a_tree = 1);
            (call.ranks, Arc::new(order))
        };
        let mut small = Call { ranks, counts: None, ..call.clone() };
        small.root.0 = small.root.0.min(ranks - 1);
        let mut plan = *plan;
        // Two channels (both trees), two loops and a bit, the real number of slices a chunk.
        plan.channels = plan.channels.min(2 * plan.parts.max(1));
        plan.chunk = plan.grain * 4 * u64::from(plan.slices);
        plan.min_slice = plan.grain;
        (plan.grid, plan.dealt) = (plan.grid.min(3), None);
        let one_a_loop = matches!(plan.algorithm, Algorithm::Ring | Algorithm::Pat | Algorithm::Direct)
            && call.collective != Collective::AllReduce;
        let chunks = if one_a_loop { 1 } else { u64::from(ranks) };
        (plan.per_channel, plan.even) = (plan.chunk * chunks * 2 + plan.grain, 0);
        let sharers = if plan.algorithm == Algorithm::Direct { plan.parts } else { plan.channels };
        small.count = plan.per_channel * u64::from(sharers) - 1;
        if ranks == call.ranks {
            small.counts = call.counts.as_ref().map(|counts| counts.iter().map(|&c| c.min(small.count)).collect());
        }
        let twin = Schedule::new(small, plan, &order)?;
        verify(&twin).map_err(unproved)?;
        *known = true;
        Ok(ProofKind::Sampled)
    }
}

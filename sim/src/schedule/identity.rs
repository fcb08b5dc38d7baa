//! What tells two schedules apart: a hash of all that whoever runs one pulls out of it.

use std::hash::{Hash, Hasher};

use super::Schedule;
use crate::hash::Fnv;
use crate::ids::Rank;

fn hash(value: impl Hash) -> u64 {
    let mut hasher = Fnv::default();
    value.hash(&mut hasher);
    hasher.finish()
}

impl Schedule {
    /// A hash of the call, of every worker's program, parameters, connections and tokens, and of how
    /// slices and FIFOs are cut: everything that a cursor is made of, and so everything that it
    /// yields. Not part of it: which algorithm it is, and programs that no worker runs.
    pub fn identity(&self) -> u64 {
        let programs: Vec<u64> = self.templates.iter().map(hash).collect();
        let plan = &self.plan;
        let mut hasher = Fnv::after(hash((&self.call, plan.protocol, plan.slices, plan.min_slice, plan.fifo_slices)));
        for (rank, channel, lane, worker) in self.workers() {
            (rank, channel, lane, programs.get(worker.template), self.team(lane)).hash(&mut hasher);
            (&worker.parameters, &worker.recv, &worker.send, &worker.tokens, worker.threads).hash(&mut hasher);
        }
        for rank in (0..self.call.ranks).map(Rank) {
            self.scratch_len(rank).hash(&mut hasher);
        }
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::program::Mutation;
    use super::super::{Call, Order};
    use super::*;
    use crate::collective::{Algorithm, Collective, DataType, Protocol};
    use crate::nccl::{Limits, Plan};
    use crate::units::Bytes;
    use std::collections::BTreeSet;

    fn ring(count: u64, in_place: bool, channels: u32) -> Schedule {
        let mut call = Call::of_size(Collective::AllReduce, 4, Bytes(0), DataType::Float32);
        (call.count, call.in_place) = (count, in_place);
        let limits = Limits { channels, exact_channels: true, ..Limits::default() };
        let plan = Plan::new(&call, Algorithm::Ring, Protocol::Simple, &limits);
        Schedule::new(call, plan, &Order::one_host(4)).unwrap()
    }

    /// Goal: the same command gives the same hash; any difference of call, cut or a single
    /// instruction another.
    #[test]
    fn a_hash_tells_schedules_apart() {
        assert_eq!(ring(1000, false, 2).identity(), ring(1000, false, 2).identity());
        let mut seen = BTreeSet::new();
        for (count, in_place, channels) in [(1000, false, 2), (1001, false, 2), (1000, true, 2), (1000, false, 3)] {
            assert!(seen.insert(ring(count, in_place, channels).identity()));
        }
        let mut deeper = ring(1000, false, 2);
        deeper.plan.fifo_slices += 1;
        assert!(seen.insert(deeper.identity()));
        for op in 0..ring(1000, false, 2).templates[0].ops().len() {
            for mutation in [Mutation::Delete, Mutation::Duplicate] {
                let mut mutant = ring(1000, false, 2);
                mutant.templates[0] = mutant.templates[0].mutated(mutation, op);
                assert!(seen.insert(mutant.identity()), "{mutation:?} of {op}");
            }
        }
    }
}

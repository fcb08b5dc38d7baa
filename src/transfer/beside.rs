//! A collective beside a transfer: its bytes as flows on the same links.

use std::str::FromStr;

use collcast_sim::collective::Collective;
use collcast_sim::ids::Rank;
use collcast_sim::topology::Topology;
use collcast_sim::transfer::{Backend, Fleet, Load, Place, ways};

use super::places::places;
use crate::error::Error;
use crate::values::size;

/// GPUs at most: an all-to-all has a flow for each pair of them.
const MOST: usize = 128;

/// A collective that begins with the transfer.
#[derive(Clone, PartialEq, Debug)]
pub struct Beside {
    /// Which.
    pub collective: Collective,
    /// Its size, as nccl-tests counts it.
    pub bytes: u64,
    /// Its ranks, in order.
    pub ranks: Vec<Rank>,
}

impl FromStr for Beside {
    type Err = Error;

    /// Reads `all_reduce,256M,gpu:0-15`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |what: &str| {
            let hint = "write it as all_reduce,256M,gpu:0-15: a collective, its size, its GPUs";
            Error::usage(format!("--beside: `{text}` {what}"), hint)
        };
        let cells: Vec<&str> = text.split(',').collect();
        let &[collective, bytes, gpus] = cells.as_slice() else { return Err(wrong("has not three parts")) };
        let collective: Collective = collective.parse().map_err(|_| wrong("names no collective"))?;
        let known = [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter, Collective::AllToAll];
        if !known.contains(&collective) {
            return Err(wrong("is none of all_reduce, all_gather, reduce_scatter and alltoall"));
        }
        let of = |place: Place| match place {
            Place::Gpu(rank) => Some(rank),
            _ => None,
        };
        let ranks: Option<Vec<Rank>> = places("--beside", gpus)?.into_iter().map(of).collect();
        let ranks = ranks.filter(|ranks| (2..=MOST).contains(&ranks.len()));
        let ranks = ranks.ok_or_else(|| wrong(&format!("has not 2 to {MOST} GPUs")))?;
        Ok(Self { collective, bytes: size(bytes)?.0, ranks })
    }
}

impl Beside {
    /// What each rank sends to which: to all others in an all-to-all; else around rings, one for each place in a host, that
    /// have equal parts and change hosts there.
    fn sends(&self, topology: &Topology) -> Vec<(Rank, Rank, u64)> {
        let count = self.ranks.len();
        let all = self.ranks.iter().copied();
        if self.collective == Collective::AllToAll {
            let each = self.bytes / count as u64;
            return all
                .flat_map(|from| self.ranks.iter().map(move |&to| (from, to, each)))
                .filter(|s| s.0 != s.1)
                .collect();
        }
        let passes = if self.collective == Collective::AllReduce { 2.0 } else { 1.0 };
        let through = self.bytes as f64 * passes * (count - 1) as f64 / count as f64;
        // Ranks by host, in order.
        let mut hosts: Vec<Vec<Rank>> = Vec::new();
        for rank in all {
            match hosts.last_mut().filter(|host| topology.host_of(host[0]) == topology.host_of(rank)) {
                Some(host) => host.push(rank),
                None => hosts.push(vec![rank]),
            }
        }
        let rings = hosts.iter().map(Vec::len).min().unwrap_or(1).max(1);
        let bytes = (through / rings as f64) as u64;
        let mut sends = Vec::new();
        for ring in 0..rings {
            let order: Vec<Rank> = (hosts.iter().enumerate())
                .flat_map(|(at, host)| {
                    // It enters each host where the one before left: at the same place, which differs by ring.
                    let first = (ring + at * (host.len() - 1)) % host.len();
                    (0..host.len()).map(move |i| host[(first + i) % host.len()])
                })
                .collect();
            sends.extend((0..count).map(|i| (order[i], order[(i + 1) % count], bytes)));
        }
        sends
    }

    /// Its bytes as loads by the ways that NCCL takes: NVLink, PCIe or host memory (SHM) in a host, GPUDirect RDMA or TCP
    /// between hosts.
    ///
    /// # Errors
    /// Ranks that no way joins, or that the machine has not.
    pub(crate) fn loads(&self, fleet: &mut Fleet<'_>) -> Result<Vec<Load>, Error> {
        let mut loads = Vec::new();
        for (from, to, bytes) in self.sends(fleet.topology()) {
            let known = ways(fleet, Place::Gpu(from), Place::Gpu(to));
            let way = known.into_iter().find(|way| way.backend != Backend::RdmaStaged).ok_or_else(|| {
                Error::usage(format!("--beside: no way leads from GPU {from} to GPU {to}"), "name GPUs that NCCL joins")
            })?;
            // NCCL's buffers are registered and its connections stand.
            let way = collcast_sim::transfer::Way { request: collcast_sim::units::SimDuration::ZERO, ..way };
            loads.push(Load { way, bytes, block: bytes.max(1), register: false, ready: Vec::new() });
        }
        Ok(loads)
    }
}

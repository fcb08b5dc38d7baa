//! Parts of a machine: some of its hosts alone.

use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxHashMap;

use crate::ids::{HostId, LinkId, Rank, VertexId};
use crate::network::{Row, row};
use crate::topology::{Topology, TopologyError};

/// What is known of a machine's hosts, and those of its parts that were built: with the link directions of the whole.
#[derive(Default, Debug)]
pub(super) struct Parts {
    rows: Mutex<FxHashMap<u32, Option<Row>>>,
    machines: Mutex<FxHashMap<(u32, u32, u32), Arc<Part>>>,
}

/// A part of a machine, and its link directions in the whole.
pub(super) type Part = (Topology, Vec<LinkId>);

impl Parts {
    /// The hosts of the first `ranks` ranks of a machine, where they are a row.
    pub(super) fn row(&self, topology: &Topology, ranks: u32) -> Option<Row> {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows.entry(ranks).or_insert_with(|| row(topology, ranks)).clone()
    }

    /// Some hosts in a row, from one of it on, with their ranks.
    pub(super) fn part(
        &self,
        topology: &Topology,
        (from, hosts): (u32, u32),
        row: &Row,
    ) -> Result<Arc<Part>, TopologyError> {
        let key = (from, hosts, row.each);
        if let Some(known) = self.machines.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(Arc::clone(known));
        }
        let ranks = (from * row.each..(from + hosts) * row.each).map(Rank);
        let gpus: Vec<VertexId> = ranks.clone().map(|rank| topology.gpu_of(rank)).collect();
        let on: Vec<HostId> = ranks.step_by(row.each as usize).map(|rank| topology.host_of(rank)).collect();
        let part = Arc::new(topology.of_hosts(&on, &gpus)?);
        self.machines.lock().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::clone(&part));
        Ok(part)
    }
}

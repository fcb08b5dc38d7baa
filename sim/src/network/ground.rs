//! The connections of a schedule on a machine. Calls that differ in size alone have the same, and share them.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::{FxHashMap, FxHasher};

use super::alike::Alike;
use super::laid::LayError;
use super::layer::{Layer, Resources};
use crate::engine::{ConnSpec, Folds};
use crate::ids::{LinkId, Rank};
use crate::nccl::Transport;
use crate::profile::Profile;
use crate::schedule::Schedule;
use crate::schedule::wiring::{WiredConn, Wiring};
use crate::topology::Topology;

/// Connections that are remembered, at 0.3 KB each.
const MOST: usize = 300_000;

/// Connections with what they take, and how calls over them fold.
#[derive(Debug, Default)]
pub(super) struct Ground {
    pub(super) conns: Arc<Vec<ConnSpec>>,
    /// Those of the connections.
    pub(super) resources: Resources,
    /// The port on which most flows converge, where they are many.
    pub(super) congested: Option<LinkId>,
    pub(super) folds: Arc<Folds>,
}

impl Ground {
    pub(super) fn lay(
        topology: &Topology,
        profile: &Profile,
        transport: &Transport,
        schedule: &Schedule,
        wiring: &Wiring,
        alike: Option<&Alike>,
    ) -> Result<Self, LayError> {
        let mut conns = Vec::with_capacity(wiring.conns.len());
        let mut layer = Layer::new(topology, profile, transport, schedule);
        layer.find_several(wiring)?;
        for (index, wired) in (0..).zip(&wiring.conns) {
            let before = layer.resources();
            let conn = lay_conn(&mut layer, schedule, wiring, index, wired)?;
            let edges = alike.and_then(|alike| Some((alike, alike.edges(&wired.conn)?)));
            conns.push(match edges {
                Some((alike, edges)) => layer.for_all(conn, before, alike, edges),
                None => conn,
            });
        }
        let (resources, congested) = layer.finish();
        Ok(Self { conns: Arc::new(conns), resources, congested, folds: Arc::default() })
    }
}

/// Lays the connection with an index.
fn lay_conn(
    layer: &mut Layer<'_>,
    schedule: &Schedule,
    wiring: &Wiring,
    index: u32,
    wired: &WiredConn,
) -> Result<ConnSpec, LayError> {
    let channel = wired.conn.channel;
    let mut conn = match wired.conn.ranks() {
        Some((src, dst)) => {
            let nics = schedule.nics((src, dst), channel);
            let mut conn = layer.pair((src, dst), channel, nics, index)?;
            // A proxy works once for all that goes as one message.
            let packed = u64::from(schedule.packed(src, dst));
            conn.post = conn.post.map(|work| work.div_ceil(packed));
            conn
        }
        None => {
            let ranks = |workers: &[u32]| workers.iter().map(|&w| wiring.workers[w as usize].rank).collect();
            let (senders, receivers): (Vec<Rank>, Vec<Rank>) = (ranks(&wired.senders), ranks(&wired.receivers));
            layer.group(&senders, &receivers, wired.conn)?
        }
    };
    conn.direct &= schedule.plan.direct;
    conn.depth = schedule.plan.fifo_slices;
    Ok(conn)
}

/// What decides which connections a schedule has on a machine, what they take, and which lanes and ports they join: a hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Key(u64);

impl Key {
    pub(super) fn of(transport: &Transport, schedule: &Schedule, wiring: &Wiring) -> Self {
        let mut hasher = FxHasher::default();
        let plan = &schedule.plan;
        (transport, schedule.call.ranks, plan.protocol, plan.direct, plan.fifo_slices).hash(&mut hasher);
        schedule.templates.hash(&mut hasher);
        for worker in &wiring.workers {
            let place = (worker.rank, worker.channel, worker.lane, worker.template);
            let block = (worker.team, worker.others > 0);
            (place, block, &worker.recv, &worker.send, &worker.tokens).hash(&mut hasher);
        }
        for WiredConn { conn, .. } in &wiring.conns {
            let pair = |(src, dst)| (schedule.nics((src, dst), conn.channel), schedule.packed(src, dst));
            (conn, conn.ranks().map(pair)).hash(&mut hasher);
        }
        Self(hasher.finish())
    }
}

/// Connections that were laid before on one machine with one profile.
#[derive(Debug, Default)]
pub struct Grounds(Mutex<(FxHashMap<Key, Arc<Ground>>, usize)>);

impl Grounds {
    /// Those of a key; `lay` lays them, so many, where they are not there.
    pub(super) fn of(
        &self,
        key: Key,
        conns: usize,
        lay: impl FnOnce() -> Result<Ground, LayError>,
    ) -> Result<Arc<Ground>, LayError> {
        if let Some(known) = self.0.lock().unwrap_or_else(PoisonError::into_inner).0.get(&key) {
            return Ok(known.clone());
        }
        let ground = Arc::new(lay()?);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, kept) = &mut *all;
        if *kept + conns <= MOST && known.insert(key, ground.clone()).is_none() {
            *kept += conns;
        }
        Ok(ground)
    }
}

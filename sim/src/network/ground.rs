//! The connections of a schedule on a machine. Calls that differ in size alone have the same, and share them; all calls of a
//! communicator share the ways between its GPUs and NICs.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::{FxHashMap, FxHasher};

use super::alike::Alike;
use super::laid::LayError;
use super::layer::{Layer, Resources};
use super::route::{Roads, Router};
use crate::collective::Protocol;
use crate::engine::{ConnSpec, Folds};
use crate::ids::{LinkId, Rank};
use crate::nccl::Transport;
use crate::profile::Profile;
use crate::schedule::Schedule;
use crate::schedule::wiring::{WiredConn, Wiring};
use crate::topology::Topology;

/// Connections that are remembered, at 0.3 KB each.
const MOST: usize = 300_000;
/// Ways between GPUs, NICs and switches that are remembered, at 0.1 KB each.
const MOST_WAYS: usize = 1_000_000;

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
    /// Lays the connections of a schedule by routes of its communicator, and gives back what is known of those.
    pub(super) fn lay(
        router: Router<'_>,
        profile: &Profile,
        schedule: &Schedule,
        wiring: &Wiring,
        alike: Option<&Alike>,
    ) -> Result<(Self, Roads), LayError> {
        let mut conns = Vec::with_capacity(wiring.conns.len());
        let mut layer = Layer::new(router, profile, schedule.plan.protocol);
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
        let (resources, congested, roads) = layer.finish();
        Ok((Self { conns: Arc::new(conns), resources, congested, folds: Arc::default() }, roads))
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
            // Proxies work once for all that goes as one message.
            let packed = u64::from(schedule.packed(src, dst));
            conn.post = conn.post.map(|work| work.div_ceil(packed));
            conn.take = conn.take.div_ceil(packed);
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

/// Which GPUs the ranks of a communicator are, and how it reaches them: a hash.
type Placed = u64;

fn placed(topology: &Topology, transport: &Transport, ranks: u32) -> Placed {
    let mut hasher = FxHasher::default();
    (transport, ranks).hash(&mut hasher);
    (0..ranks).for_each(|rank| topology.gpu_of(Rank(rank)).hash(&mut hasher));
    hasher.finish()
}

/// What decides which connections a schedule has on a machine, what they take, and which lanes and ports they join: a hash.
fn key(placed: Placed, schedule: &Schedule, wiring: &Wiring) -> u64 {
    let mut hasher = FxHasher::default();
    let plan = &schedule.plan;
    (placed, plan.protocol, plan.direct, plan.fifo_slices).hash(&mut hasher);
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
    hasher.finish()
}

/// Connections that were laid before on one machine with one profile, for any communicator there.
#[derive(Debug, Default)]
pub struct Grounds(Mutex<Laid>);

#[derive(Debug, Default)]
struct Laid {
    grounds: FxHashMap<u64, Arc<Ground>>,
    /// Connections of all of them.
    kept: usize,
    /// By communicator: who lays a call takes one, and puts it back.
    roads: FxHashMap<Placed, Vec<Roads>>,
    /// Ways of all of them.
    ways: usize,
}

impl Laid {
    fn take(&mut self, placed: Placed) -> Roads {
        let roads = self.roads.get_mut(&placed).and_then(Vec::pop).unwrap_or_default();
        self.ways -= roads.count();
        roads
    }

    fn put_back(&mut self, placed: Placed, roads: Roads) {
        if self.ways + roads.count() <= MOST_WAYS {
            self.ways += roads.count();
            self.roads.entry(placed).or_default().push(roads);
        }
    }
}

impl Grounds {
    /// Those of a schedule, laid where they are not there.
    pub(super) fn of(
        &self,
        topology: &Topology,
        (profile, transport): (&Profile, &Transport),
        schedule: &Schedule,
        wiring: &Wiring,
    ) -> Result<Arc<Ground>, LayError> {
        let placed = placed(topology, transport, schedule.call.ranks);
        let key = key(placed, schedule, wiring);
        let all = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all().grounds.get(&key) {
            return Ok(known.clone());
        }
        let roads = all().take(placed);
        let router = router(topology, transport, schedule).with_roads(roads);
        let (ground, roads) = Ground::lay(router, profile, schedule, wiring, None)?;
        let ground = Arc::new(ground);
        let mut all = all();
        all.put_back(placed, roads);
        let conns = wiring.conns.len();
        if all.kept + conns <= MOST && all.grounds.insert(key, ground.clone()).is_none() {
            all.kept += conns;
        }
        Ok(ground)
    }
}

/// Routes of a schedule's communicator.
pub(super) fn router<'t>(topology: &'t Topology, transport: &Transport, schedule: &Schedule) -> Router<'t> {
    let lines = schedule.plan.protocol == Protocol::Ll;
    Router::with(topology, *transport).among(schedule.call.ranks).with_lines(lines)
}

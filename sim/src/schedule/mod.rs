//! Schedules: which chunk each worker sends, receives, reduces and copies, in which order.
//!
//! A worker is a (rank, channel, lane). Its program is a [`Template`] with parameters; its
//! connections are computed on demand. Nothing here grows with ranks times steps. An
//! algorithm is a generator in its own file (`ring.rs`, `tree.rs`, `pat.rs`, ...); whoever
//! consumes a [`Schedule`] cannot tell which one made it.

mod chain;
mod coll_tree;
mod conn;
mod direct;
mod error;
mod fits;
mod form;
mod heads;
mod identity;
pub mod msccl;
mod order;
mod pat;
mod pattern;
pub mod program;
mod ring;
mod tree;
mod valid;
pub mod verify;
pub mod wiring;
mod worker;

use std::sync::Arc;

pub use conn::{Conn, End};
pub use error::ScheduleError;
pub use fits::{check_fits, check_supported};
pub use order::{Chains, Head, Order, Rail};
pub use pattern::Pattern;
pub use valid::{MAX_CHANNELS, valid_algorithms, valid_protocols};
pub use worker::{Generator, Worker};

pub use crate::call::{Call, MAX_RANKS};

use crate::collective::Algorithm;
use crate::ids::{ChannelId, Lane, Rank};
use crate::nccl::Plan;
use program::Template;

/// A complete plan of one call: every worker, what it does, and over which FIFOs.
#[derive(Debug)]
pub struct Schedule {
    /// What is computed.
    pub call: Call,
    /// Channels, threads, chunks, slices and FIFOs.
    pub plan: Plan,
    /// Lanes of every block.
    pub lanes: u32,
    /// Programs by role.
    pub templates: Vec<Template>,
    /// NICs of each channel, reused cyclically; none where ranks take those next to them.
    pub rails: Vec<Arc<[Rail]>>,
    /// Place of each rank's host in [`Schedule::rails`].
    hosts: Arc<[u32]>,
    /// What it was generated with; none of a stranger's.
    order: Option<Arc<Order>>,
    generator: Box<dyn Generator>,
}

impl Schedule {
    /// Generates the schedule of a call.
    ///
    /// `order`: for each channel of a pattern the ranks in the order in which it visits them;
    /// channels beyond the list reuse it from the start. See [`Order`].
    ///
    /// # Errors
    /// See [`ScheduleError`].
    pub fn new(call: Call, plan: Plan, order: &Order) -> Result<Self, ScheduleError> {
        call.check()?;
        if plan.channels == 0 || plan.channels > MAX_CHANNELS {
            return Err(ScheduleError::Channels(plan.channels));
        }
        check_fits(&call, plan.algorithm, order)?;
        if !valid_protocols(plan.algorithm).contains(&plan.protocol) {
            return Err(ScheduleError::NoKernel { algorithm: plan.algorithm, protocol: plan.protocol });
        }
        let order = Arc::new(order.clone());
        let (lanes, templates, generator): (u32, Vec<Template>, Box<dyn Generator>) = match plan.algorithm {
            Algorithm::Tree => tree::generate(&call, &plan, &order),
            Algorithm::Direct => direct::generate(&call, &plan, &order),
            Algorithm::Pat if call.ranks > 1 => pat::generate(&call, &plan),
            Algorithm::CollTree if call.ranks > 1 => coll_tree::generate(&call, &plan, &order),
            Algorithm::Nvls | Algorithm::NvlsTree | Algorithm::CollnetDirect => heads::generate(&call, &plan, &order),
            Algorithm::CollnetChain => chain::generate(&call, &plan, &order),
            _ => ring::generate(&call, &plan, &order),
        };
        let (rails, hosts) = match plan.algorithm {
            Algorithm::Tree => (tree::rails(&order), order.host_of_ranks(call.ranks)),
            Algorithm::Ring => (order.rails.clone(), order.host_of_ranks(call.ranks)),
            Algorithm::NvlsTree if order.nvls_tree.is_some() => (Vec::new(), order.host_of_ranks(call.ranks)),
            // Heads and peers take the NICs next to them.
            _ => (Vec::new(), Arc::default()),
        };
        Ok(Self { call, plan, lanes, templates, rails, hosts, order: Some(order), generator })
    }

    /// A schedule from a stranger's templates and generator: imported algorithms and tests.
    pub fn from_parts(
        call: Call,
        plan: Plan,
        lanes: u32,
        templates: Vec<Template>,
        generator: Box<dyn Generator>,
    ) -> Self {
        Self { call, plan, lanes, templates, rails: Vec::new(), hosts: Arc::default(), order: None, generator }
    }

    /// The NICs (by their numbers in host or NVLink domain) through which two ranks of different ones
    /// exchange a channel's data; `None` where the nearest will do.
    pub fn nics(&self, (src, dst): (Rank, Rank), channel: ChannelId) -> Option<(u32, u32)> {
        let heads = self.order.as_ref().and_then(|order| order.heads(self.plan.algorithm));
        let rails = self.rails.get(channel.index() % self.rails.len().max(1));
        let nic = |rank: Rank| {
            let host = *self.hosts.get(rank.index())?;
            if let Some(heads) = heads {
                return heads.get(host as usize)?.iter().find(|head| head.rank == rank.0).map(|head| (host, head.nic));
            }
            let rail = rails?.get(host as usize)?;
            Some((host, if rail.first == rank.0 { rail.enter } else { rail.leave }))
        };
        let ((from, leave), (to, enter)) = nic(src).zip(nic(dst))?;
        (from != to).then_some((leave, enter))
    }

    /// The worker at a place.
    pub fn worker(&self, rank: Rank, channel: ChannelId, lane: Lane) -> Option<Worker> {
        self.generator.worker(rank, channel, lane)
    }

    /// The lane whose threads a lane uses: see [`Generator::team`].
    pub fn team(&self, lane: Lane) -> Lane {
        self.generator.team(lane)
    }

    /// Messages between two ranks that go over the network as one: see [`Generator::packed`].
    pub fn packed(&self, src: Rank, dst: Rank) -> u32 {
        self.generator.packed(src, dst)
    }

    /// All workers with their places, in order.
    pub fn workers(&self) -> impl Iterator<Item = (Rank, ChannelId, Lane, Worker)> {
        (0..self.call.ranks).flat_map(|rank| self.workers_of(Rank(rank)))
    }

    /// Those of a rank, in order.
    pub fn workers_of(&self, rank: Rank) -> impl Iterator<Item = (Rank, ChannelId, Lane, Worker)> {
        let ((first, end), lanes) = (self.plan.used(), self.lanes);
        let places = (first..end).flat_map(move |c| (0..lanes).map(move |l| (ChannelId(c), Lane(l))));
        places.filter_map(move |(c, l)| self.worker(rank, c, l).map(|w| (rank, c, l, w)))
    }

    /// Elements of a rank's scratch memory.
    pub fn scratch_len(&self, rank: Rank) -> u64 {
        self.generator.scratch(rank)
    }

    /// Bytes of one element.
    pub fn element_size(&self) -> u64 {
        self.call.dtype.size()
    }
}

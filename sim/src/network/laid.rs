//! A schedule laid on a machine, as the engine takes it, and why one cannot be.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use crate::engine::{Folded, Folds, Instance, fold_known};
use crate::ids::{ChannelId, Lane, LinkId, Rank, VertexId};
use crate::schedule::wiring::{Wiring, WiringError};

/// What a resource of an instance is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ResourceName {
    /// A link direction.
    Link(LinkId),
    /// The memory of a CPU, or of a GPU that copies for itself alone.
    Memory(VertexId),
    /// What a NIC reads (`true`) or writes itself of GPU memory.
    Direct(VertexId, bool),
    /// The thread of a rank that drives all its connections over the network.
    Proxy(Rank),
    /// The helper threads of one connection over sockets.
    Helpers(u32),
    /// The warps of a rank, channel and lane, the first of those that share them.
    Lane(Rank, ChannelId, Lane),
    /// Those that a lane has for itself of warps that it shares.
    Own(Rank, ChannelId, Lane),
}

/// An instance with the names of its resources.
#[derive(Debug)]
pub struct Laid<'a> {
    /// For the engine.
    pub instance: Instance<'a>,
    /// By resource.
    pub names: Vec<ResourceName>,
    /// The schedule's workers and connections, in the instance's order.
    pub wiring: Wiring,
    /// A port of a lossless fabric on which so many flows converge that its congestion, which is
    /// not modelled, may matter.
    pub congested: Option<LinkId>,
    /// How it folds, as far as others with the same connections were folded.
    pub folds: Arc<Folds>,
}

impl<'a> Laid<'a> {
    /// Folds it.
    pub fn fold(&self) -> Folded<'a> {
        fold_known(&self.instance, &self.folds)
    }

    /// A hash of all that decides how it runs: equal ones run alike, whatever their resources are called.
    pub(crate) fn identity(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let Instance { resources, conns, lanes, kernels, schedules, tasks: _ } = &self.instance;
        (resources, conns, kernels).hash(&mut hasher);
        for lane in lanes {
            (lane.job, lane.template, &lane.recv, &lane.send, &lane.tokens, lane.issue.0, lane.own).hash(&mut hasher);
            (lane.costs(), lane.element, lane.kernel, lane.multiplicity).hash(&mut hasher);
        }
        schedules.iter().for_each(|schedule| schedule.identity().hash(&mut hasher));
        hasher.finish()
    }

    /// Whether switches reduce for it or multicast: NVSwitches, and those of a network, which proxies send to.
    pub(crate) fn switches(&self) -> [bool; 2] {
        let mut found = [false; 2];
        let conns = self.wiring.conns.iter().zip(self.instance.conns.iter());
        for (_, conn) in conns.filter(|(wired, _)| wired.conn.ranks().is_none()) {
            found[usize::from(conn.proxy.is_some())] = true;
        }
        found
    }

    /// Leaves blocks so much of their rate.
    pub(crate) fn slow_blocks(&mut self, kept: f64) {
        for (rate, name) in self.instance.resources.iter_mut().zip(&self.names) {
            if matches!(name, ResourceName::Lane(..) | ResourceName::Own(..)) {
                *rate = ((*rate as f64 * kept) as u64).max(1);
            }
        }
    }
}

/// Why a schedule could not be laid on a machine.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum LayError {
    /// A flaw of the schedule.
    #[error(transparent)]
    Wiring(#[from] WiringError),
    /// No route.
    #[error(
        "no route from rank {src} to rank {dst}: hosts need NICs that are up and joined by a fabric, GPUs without peer access a CPU"
    )]
    NoRoute {
        /// Sender.
        src: Rank,
        /// Receiver.
        dst: Rank,
    },
    /// No NVSwitch that reduces and multicasts.
    #[error("`{topology}` cannot reduce in NVSwitch: {reason}; use ring or tree")]
    NoMulticast {
        /// Name of the machine.
        topology: String,
        /// What it lacks.
        reason: String,
    },
    /// No network that reduces.
    #[error(
        "the network of `{0}` does not reduce (no SHARP): use ring or tree, or say `sharp = true` in its [fabric] if it does"
    )]
    NoSharp(String),
}

//! Workloads: compute, communication and the host's launches of a training step, in one run.
//!
//! An [`OpGraph`] says what every rank does: streams, operations on them in launch order, events
//! between streams, collectives over process groups. [`Simulator::run`] lowers it to tasks of the
//! engine ([`crate::engine::TaskSpec`]); what overlaps, waits or is slowed follows from there.
//! Nothing here knows a strategy (DDP, FSDP, pipelines): those are programs that build graphs.
//!
//! Two levels of traffic, on one engine:
//! - *flows*: each call is first simulated alone, slice by slice ([`footprint`]); its time and its
//!   load on links, blocks and memory become one flow that alone takes exactly that time. Ranks of
//!   the same role ([`fold`]) are run once.
//! - *slices*: the schedules themselves run, lane by lane, together with the computations; every
//!   rank is run.
//!
//! What computation and communication do to each other on a GPU, with the parameters of the
//! profile: a communication kernel has one block a channel and takes an SM for each, once a wave
//! or kernel that fills the GPU is over or leaves enough of them ([`crate::engine::Gate`]); products then
//! take more rounds of tiles, and lose power to it; what it sends takes memory bandwidth; while a
//! computation keeps memory busy its blocks move less. Copy engines take memory bandwidth alone.

mod deadlock;
pub mod fold;
pub mod footprint;
mod graph;
mod lower;
mod lowered;
mod outcome;
mod slices;

use crate::engine::run;
use crate::ids::Rank;

pub use footprint::{Footprint, Simulator, siblings};
pub use graph::{
    Communicate, Compute, Device, Jitter, Level, Mechanisms, Mover, Op, OpGraph, Program, RankSpec, Stream, StreamKind,
    What, WorkloadError,
};
pub use outcome::{Activity, CallLinks, Calls, PathPart, RankResult, Step};

impl Simulator<'_> {
    /// The level at which a step is simulated that is asked for at one.
    pub fn level(&self, graph: &OpGraph, asked: Level) -> Level {
        match asked {
            Level::Auto if footprint::tasks_are_few(graph) && self.slices_are_few(graph) => Level::Slices,
            Level::Auto => Level::Flows,
            told => told,
        }
    }

    /// Simulates a step.
    ///
    /// # Errors
    /// See [`WorkloadError`].
    pub fn run(&self, graph: &OpGraph, mechanisms: Mechanisms, level: Level) -> Result<Step, WorkloadError> {
        let mut teller = self.predictor().teller().begins("simulating the step");
        let folded = fold::fold(graph, self.topology())?;
        if level == Level::Slices && !footprint::tasks_are_few(graph) {
            let what = "operations of all ranks beside their calls, slice by slice; simulate it as flows".to_owned();
            return Err(WorkloadError::TooLarge { what, limit: footprint::FEW_HELD });
        }
        let level = self.level(graph, level);
        if level == Level::Flows {
            let tasks: Vec<u64> = graph.programs.iter().map(|p| p.ops.iter().map(graph::tasks_of).sum()).collect();
            let of = |rank: Rank| tasks.get(graph.ranks[rank.index()].program).copied().unwrap_or(0);
            let all: u64 = folded.ranks.iter().map(|&(rank, _)| of(rank)).sum();
            if all > lower::MAX_TASKS {
                let what = format!("{all} parts of operations of {} ranks that differ", folded.ranks.len());
                return Err(WorkloadError::TooLarge { what, limit: lower::MAX_TASKS });
            }
        }
        // Without communication there are no slices, only ranks that wait for each other.
        let flows = || lower::flows(self, graph, &folded, mechanisms);
        let step = if level == Level::Slices && mechanisms.communication {
            slices::slices(self, graph, &folded, mechanisms)
        } else {
            let lowered = flows()?;
            let outcome = run(&lowered.instance, &mut teller).map_err(WorkloadError::run);
            outcome.map(|outcome| outcome::of(graph, &lowered, &outcome))
        };
        let step = step.map_err(|error| match error {
            WorkloadError::Stuck(_) => flows().map_or_else(|error| error, |lowered| deadlock::found(graph, &lowered)),
            other => other,
        })?;
        if step.time >= lower::LONGEST {
            return Err(WorkloadError::TooLong("the step takes".to_owned()));
        }
        Ok(step)
    }
}

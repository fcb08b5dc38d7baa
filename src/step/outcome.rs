//! A simulated step: its parts, where its time goes, and what would help.

use collcast_reports::model::Input;
use collcast_scenarios::study::Breakdown;
use collcast_sim::ids::LinkId;
use collcast_sim::topology::Topology;
use collcast_sim::units::SimTime;
use collcast_sim::workload::{OpGraph, Step};
use serde::Serialize;

use super::advice::Change;
use super::choices::{Choices, changed};
use crate::confidence::Grounds;
use crate::site::Site;

/// A simulated step. Times are in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// What of the scenario is its machine's, and in no file of what ranks do: slow links, jitter.
    pub not_in_files: Vec<&'static str>,
    /// The scenario.
    pub scenario: String,
    /// The step as it is, or each variant.
    pub variants: Vec<Variant>,
    /// Whether a micro-batch is the same work in all variants.
    pub same_work: bool,
    /// Where the time of the step goes; none where several variants were asked for.
    pub detail: Option<Detail>,
    /// Profiles that it depends on.
    pub inputs: Vec<Input>,
    /// What was assumed.
    pub notes: Vec<String>,
    /// What to know before using the numbers.
    pub warnings: Vec<String>,
    /// Whether all variants have the GPUs that the scenario's layers have their times for.
    pub same_gpus: bool,
    /// What it rests on.
    #[serde(skip)]
    pub grounds: Grounds,
    /// The machine, with slowed links.
    #[serde(skip)]
    pub topology: Topology,
    /// The same with its profile, as the step's calls see it.
    #[serde(skip)]
    pub site: Site,
    /// The graph of operations of the first variant.
    #[serde(skip)]
    pub graph: OpGraph,
    /// Its simulated step.
    #[serde(skip)]
    pub step: Step,
    /// What its calls take of links.
    #[serde(skip)]
    pub link_use: Vec<LinkUse>,
    /// What its time consists of.
    #[serde(skip)]
    pub parts: Breakdown,
}

impl Outcome {
    /// With the variant of another outcome, which is the same work or is not.
    pub(super) fn join(&mut self, other: Self, same_work: bool) {
        self.same_work &= same_work;
        self.same_gpus &= other.same_gpus;
        let new = other.warnings.into_iter().filter(|warning| !self.warnings.contains(warning));
        self.warnings.extend(new.collect::<Vec<_>>());
        self.variants.extend(other.variants);
        self.grounds = [std::mem::take(&mut self.grounds), other.grounds].into_iter().collect();
    }
}

/// What a call takes of links while it runs, beside whatever else does; both ends of a call are one entry each.
#[derive(Clone, Debug)]
pub struct LinkUse {
    /// From its first byte.
    pub from: SimTime,
    /// To its last one.
    pub to: SimTime,
    /// Share of each link's rate over this time, the busiest first.
    pub links: Vec<(LinkId, f64)>,
}

/// A step under one set of values.
#[derive(Clone, Debug, Serialize)]
pub struct Variant {
    /// What was varied; empty for the scenario as it is.
    pub label: String,
    /// Ranks.
    pub ranks: u64,
    /// Micro-batches of a step, of all replicas; 1 of a step that was recorded.
    pub micro_batches: u64,
    /// The step.
    pub step_ms: f64,
    /// Its computation, waits for other ranks included.
    pub compute_ms: f64,
    /// What communication adds.
    pub exposed_ms: f64,
    /// Of that: computation and communication slow and delay each other.
    pub interference_ms: f64,
    /// Of that: launches by the host, and streams that wait for each other.
    pub launch_ms: f64,
    /// Of that: copies that the framework adds.
    pub framework_ms: f64,
    /// Of that: the last calls, and those that computation waits for.
    pub unhidden_ms: f64,
    /// Of the computation: waits for other stages.
    pub bubble_ms: f64,
    /// Of the computation: what slow and late ranks add to it.
    pub straggler_ms: f64,
    /// The step over seeds of its jitter, where it has some and several variants are compared.
    pub jitter: Option<Jittered>,
    /// Algorithms and protocols that NCCL chooses, by kind of call.
    #[serde(skip)]
    pub choices: Choices,
    /// Events of the simulation.
    pub events: u64,
}

/// A step over seeds of its jitter.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Jittered {
    /// Its median.
    pub median_ms: f64,
    /// The shortest and the longest.
    pub range_ms: (f64, f64),
    /// The first and the last seed.
    pub seeds: (u64, u64),
}

impl Variant {
    /// What a step takes: the median over its jitter, where it has some.
    pub fn usual_ms(&self) -> f64 {
        self.jitter.map_or(self.step_ms, |jitter| jitter.median_ms)
    }

    /// Says where NCCL chooses otherwise for another variant.
    pub(super) fn chooses_otherwise(&self, other: &Self) -> Option<String> {
        let choice = changed(&self.choices, &other.choices);
        (!choice.is_empty())
            .then(|| format!("{}: NCCL chooses otherwise than with {}: {choice}", other.label, self.label))
    }
}

/// Where the time of a step goes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Detail {
    /// Communication by rank and kind.
    pub communication: Vec<Communication>,
    /// Streams by rank.
    pub streams: Vec<Stream>,
    /// The critical path, added up.
    pub path: Vec<PathPart>,
    /// Links that different calls shared, and the share of their capacity that was used.
    pub links: Vec<(String, f64)>,
    /// What stragglers and jitter cost.
    pub disturbed: Vec<Disturbed>,
    /// What would help, the best first; none where it was not tried.
    pub advice: Option<Vec<Change>>,
}

/// Communication of one kind on one rank.
#[derive(Clone, Debug, Serialize)]
pub struct Communication {
    /// The rank.
    pub rank: u32,
    /// Ranks that do the same.
    pub like: usize,
    /// What kind.
    pub kind: String,
    /// Calls.
    pub calls: usize,
    /// Time in which such calls move bytes.
    pub busy_ms: f64,
    /// Time of that without any computation beside it.
    pub exposed_ms: f64,
    /// Time before, in which they wait for other ranks and nothing computes.
    pub waits_ms: f64,
    /// Algorithm, protocol and channels.
    pub how: String,
}

/// One stream of one rank.
#[derive(Clone, Debug, Serialize)]
pub struct Stream {
    /// The rank.
    pub rank: u32,
    /// The stream.
    pub stream: String,
    /// Time with something under way; what waits for other ranks is not.
    pub busy_ms: f64,
    /// The rest of the step.
    pub idle_ms: f64,
}

/// Parts of the critical path that are alike.
#[derive(Clone, Debug, Serialize)]
pub struct PathPart {
    /// What was done.
    pub what: String,
    /// What bounded it; empty where it is no call.
    pub bound_by: String,
    /// How many parts.
    pub parts: u64,
    /// Their time.
    pub time_ms: f64,
}

/// The step with or without stragglers, or over seeds of its jitter.
#[derive(Clone, Debug, Serialize)]
pub struct Disturbed {
    /// Which.
    pub case: String,
    /// The step, or its median.
    pub step_ms: f64,
    /// The shortest and the longest over the seeds.
    pub range_ms: Option<(f64, f64)>,
    /// The first and the last seed.
    pub seeds: Option<(u64, u64)>,
}

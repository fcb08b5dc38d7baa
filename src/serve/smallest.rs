//! Which is the smallest fleet that meets an objective, and why is no other?
//!
//! Each layout of a worker has a bound first: see [`super::bound`]. Fleets are then run, those of the fewest GPUs first. One
//! that fails has a successor with one more worker of the kind that was short. What a run says of one kind of worker holds
//! for all fleets with as few of it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use collcast_scenarios::serving::summary::{Objective, Summary};
use collcast_scenarios::serving::{Policy, Role};
use collcast_scenarios::training::calls::{Exchange, Shape};
use collcast_sim::compute::Precision;
use serde::Serialize;

use super::bound::Demand;
use super::fleet::{Fleet, Group};
use super::request::{MOST_STEPS, Request};
use super::run::{load, run};
use super::setup::{Exchanges, Setup, role_name, steps};
use super::split::Candidate;
use crate::error::Error;
use crate::watch::Watch;

/// Fleets that are run at most.
const MOST_RUNS: usize = 150;
/// GPUs of an answer at most.
const MOST_GPUS: u32 = 2048;
/// GPUs that split products: powers of two up to what NVLink joins on machines that are sold.
const TENSOR: [u32; 5] = [1, 2, 4, 8, 16];
/// Stages of a worker, where no layout without holds the weights.
const STAGES: [u32; 3] = [2, 4, 8];
/// GPUs over which experts are split: DeepSeek-V3's report serves on 32 to 320.
const EXPERTS: [u32; 6] = [8, 16, 32, 64, 128, 256];
/// Tokens of a step at most that are tried beside the request's, of workers that take prompts: defaults of vLLM and of
/// SGLang for smaller GPUs.
const CHUNKS: [u64; 2] = [2048, 512];

/// A layout of a worker, and how many of them a load needs at least.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Layout {
    /// What the worker does.
    pub role: &'static str,
    /// One of them.
    pub worker: Group,
    /// Tokens of its steps at most.
    pub chunk: u64,
    /// How many at least, or why no number is enough.
    pub least: Result<u32, String>,
}

/// A fleet that was run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Sized {
    /// It, and what came of it.
    pub candidate: Candidate,
    /// Tokens of a step of its workers at most.
    pub chunk: u64,
    /// Whether it meets the objective.
    pub meets: bool,
}

/// Fleets by size, those that meet the objective first.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Smallest {
    /// GPUs at most.
    pub most: u32,
    /// What is to be met.
    pub objective: Objective,
    /// Fleets that were run.
    pub fleets: Vec<Sized>,
    /// Layouts with their bounds.
    pub layouts: Vec<Layout>,
    /// Whether fleets were left that nobody ran.
    pub cut: bool,
    /// The next precision of fewer bits that the GPUs have.
    pub lower: Option<&'static str>,
}

/// Looks for the smallest fleet of at most so many GPUs that meets the objective of a request, and for the smallest of the
/// other kind: aggregated or disaggregated.
///
/// # Errors
/// As of [`serve`](super::serve()); a model that no layout holds.
pub fn smallest(request: &Request, most: u32, watch: &Watch) -> Result<Smallest, Error> {
    if !(1..=MOST_GPUS).contains(&most) {
        let hint = format!("give 1 to {MOST_GPUS}");
        return Err(Error::usage(format!("a fleet of at most {most} GPUs is none that is searched"), hint));
    }
    let setup = Setup::new(request, most)?;
    let asked = load(request)?;
    let policy = Policy { steps: MOST_STEPS / 8, ..request.policy };
    let request = &Request { policy, ..request.clone() };
    let demand = Demand::new(&asked, request.objective);
    let mut search = Search::new(request.objective, most, layouts(&setup, request, most, &demand)?);
    let mut fleets = Vec::new();
    let parts = watch.parts(MOST_RUNS);
    while let Some((fleet, chunk)) = search.next() {
        if fleets.len() == MOST_RUNS {
            search.cut = true;
            break;
        }
        let policy = Policy { chunk, ..policy };
        let outcome = run(&Request { policy, ..request.clone() }, &setup, fleet, &asked);
        let meets = outcome.as_ref().is_ok_and(|outcome| search.heard(fleet, chunk, &outcome.summary));
        let outcome = outcome.map_err(|error| error.to_string());
        fleets.push(Sized { candidate: Candidate { fleet, outcome }, chunk, meets });
        parts.done()?;
    }
    let last = |sized: &Sized| sized.candidate.outcome.as_ref().map_or(f64::INFINITY, |run| run.summary.whole.p90);
    let met = |sized: &Sized| sized.candidate.outcome.as_ref().map_or(0.0, |run| run.summary.met);
    fleets.sort_by(|a, b| {
        let size = |sized: &Sized| (!sized.meets, sized.candidate.fleet.gpus());
        let nearest = if a.meets { std::cmp::Ordering::Equal } else { met(b).total_cmp(&met(a)) };
        (!a.meets).cmp(&!b.meets).then(nearest).then(size(a).cmp(&size(b))).then(last(a).total_cmp(&last(b)))
    });
    let lower = setup.lower(request.precision).map(Precision::name);
    Ok(Smallest { most, objective: request.objective, fleets, layouts: search.layouts, cut: search.cut, lower })
}

/// All layouts of a worker that hold the model, with their bounds.
fn layouts(setup: &Setup, request: &Request, most: u32, demand: &Demand) -> Result<Vec<Layout>, Error> {
    let mut known: Vec<(Group, u64)> = Vec::new();
    let mut refused = None;
    let mut add = |group: Group| {
        if group.gpus() > most {
            return;
        }
        match setup.blocks(group, request) {
            Ok(blocks) => known.push((group, blocks)),
            Err(error) => refused = Some(error),
        }
    };
    let whole = |tensor: u32| Group::new(1, tensor);
    TENSOR.into_iter().for_each(|tensor| add(whole(tensor)));
    if setup.model.experts.is_some() {
        for (gpus, tensor) in EXPERTS.into_iter().flat_map(|gpus| TENSOR.map(|tensor| (gpus, tensor))) {
            if gpus > tensor {
                add(Group { replicas: gpus / tensor, ..whole(tensor) });
            }
        }
    }
    for pipeline in STAGES {
        TENSOR.into_iter().for_each(|tensor| add(Group { pipeline, ..whole(tensor) }));
    }
    // Stages make a prompt no faster: they are for models that hosts do not hold.
    if known.iter().any(|(group, _)| group.pipeline == 1) {
        known.retain(|(group, _)| group.pipeline == 1);
    }
    if known.is_empty() {
        let none = || Error::usage(format!("no layout of at most {most} GPUs holds the model"), "allow more GPUs");
        return Err(refused.unwrap_or_else(none));
    }
    let calls = setup.site.calls()?;
    let exchanges = Exchanges::new(&calls);
    let exchange = |shape: Shape, exchange: Exchange, bytes: u64| exchanges.taken(shape, exchange, bytes);
    let mut layouts = Vec::new();
    for (worker, blocks) in known {
        let mut steps = steps(setup, worker, request.precision, &exchange)?;
        // In smaller steps a prompt waits less for others, and running requests for prompts.
        let smaller = CHUNKS.into_iter().filter(|&chunk| chunk < request.policy.chunk);
        let chunks: Vec<u64> = std::iter::once(request.policy.chunk).chain(smaller).collect();
        // Who only decodes has no prompts to cut.
        for (role, chunks) in [(Role::Both, &chunks[..]), (Role::Prefill, &chunks[..]), (Role::Decode, &chunks[..1])] {
            for &chunk in chunks {
                let policy = Policy { chunk, ..request.policy };
                let least = demand.least((role, worker), blocks, policy, &mut steps);
                layouts.push(Layout { role: role_name(role), worker, chunk, least });
            }
        }
    }
    if let Some(error) = exchanges.failed.take() {
        return Err(error.into());
    }
    Ok(layouts)
}

/// A role, a layout and the tokens of a step at most, which are 0 of who only decodes.
type Kind = (&'static str, [u32; 3], u64);

/// Fleets still to be run.
struct Search {
    most: u32,
    objective: Objective,
    layouts: Vec<Layout>,
    /// By GPUs, then in the order in which they came up.
    queue: BinaryHeap<Reverse<(u32, usize)>>,
    known: Vec<(Fleet, u64)>,
    /// By role and layout: workers that are too few.
    short: HashMap<Kind, u32>,
    /// GPUs of the smallest fleet that met the objective: aggregated, disaggregated.
    found: [Option<u32>; 2],
    cut: bool,
}

impl Search {
    /// Begins with the smallest fleet of each layout, or pair of them.
    fn new(objective: Objective, most: u32, layouts: Vec<Layout>) -> Self {
        let (queue, known, short, found) = Default::default();
        let mut search = Self { most, objective, layouts, queue, known, short, found, cut: false };
        search.begin();
        search
    }

    fn begin(&mut self) {
        let of = |role: Role| -> Vec<(Group, u64)> {
            let with = |layout: &Layout| {
                let workers = *layout.least.as_ref().ok()?;
                (layout.role == role_name(role)).then_some((Group { workers, ..layout.worker }, layout.chunk))
            };
            self.layouts.iter().filter_map(with).collect()
        };
        let (both, prefills, decodes) = (of(Role::Both), of(Role::Prefill), of(Role::Decode));
        both.into_iter().for_each(|(group, chunk)| self.push(Fleet::Aggregated(group), chunk));
        // Smaller steps follow where larger ones fail.
        let first = prefills.iter().map(|(_, chunk)| *chunk).max();
        for (prefill, chunk) in prefills.into_iter().filter(|(_, chunk)| Some(*chunk) == first) {
            decodes.iter().for_each(|&(decode, _)| self.push(Fleet::Disaggregated { prefill, decode }, chunk));
        }
    }

    fn push(&mut self, fleet: Fleet, chunk: u64) {
        let gpus: u64 = fleet.groups().iter().map(|(_, g)| u64::from(g.workers) * u64::from(g.gpus())).sum();
        if gpus <= u64::from(self.most) && !self.known.contains(&(fleet, chunk)) {
            self.queue.push(Reverse((gpus as u32, self.known.len())));
            self.known.push((fleet, chunk));
        }
    }

    /// The next fleet to run, which nothing that is known rules out.
    fn next(&mut self) -> Option<(Fleet, u64)> {
        while let Some(Reverse((gpus, index))) = self.queue.pop() {
            let (fleet, chunk) = self.known[index];
            if self.found[usize::from(matches!(fleet, Fleet::Disaggregated { .. }))].is_some_and(|found| gpus > found) {
                continue;
            }
            let lifted = self.lifted(fleet, chunk);
            if lifted == fleet {
                return Some((fleet, chunk));
            }
            self.push(lifted, chunk);
        }
        None
    }

    /// With more workers than those that are known to be too few.
    fn lifted(&self, fleet: Fleet, chunk: u64) -> Fleet {
        let lift = |role: Role, group: Group| {
            let short = self.short.get(&kind(role, group, chunk)).copied().unwrap_or(0);
            Group { workers: group.workers.max(short + 1), ..group }
        };
        match fleet {
            Fleet::Aggregated(group) => Fleet::Aggregated(lift(Role::Both, group)),
            Fleet::Disaggregated { prefill, decode } => {
                Fleet::Disaggregated { prefill: lift(Role::Prefill, prefill), decode: lift(Role::Decode, decode) }
            }
        }
    }

    /// What came of a fleet: whether it met the objective, and which of its workers were too few.
    fn heard(&mut self, fleet: Fleet, chunk: u64, summary: &Summary) -> bool {
        let objective = self.objective;
        let [first, tokens] = objective.held(summary);
        if first && tokens {
            let found = &mut self.found[usize::from(matches!(fleet, Fleet::Disaggregated { .. }))];
            *found = Some(found.map_or(fleet.gpus(), |gpus| gpus.min(fleet.gpus())));
            return true;
        }
        let short: Vec<Role> = match fleet {
            Fleet::Aggregated(_) => vec![Role::Both],
            Fleet::Disaggregated { .. } => {
                // Prompts that are through wait for memory of decoders.
                let full = !first && summary.hand_off.p90 > objective.ttft / 2.0;
                let decode = (!tokens || full).then_some(Role::Decode);
                let prefill = (!first && !full).then_some(Role::Prefill);
                prefill.into_iter().chain(decode).collect()
            }
        };
        for (role, group) in fleet.groups().into_iter().filter(|(role, _)| short.contains(role)) {
            let known = self.short.entry(kind(role, group, chunk)).or_default();
            *known = (*known).max(group.workers);
        }
        self.push(self.lifted(fleet, chunk), chunk);
        // Steps that are smaller do no more prompts a second: they help where the queue alone is not too long.
        if let (false, Some((fleet, chunk))) = (first, self.smaller(fleet, chunk))
            && summary.queue.p90 <= objective.ttft
        {
            self.push(fleet, chunk);
        }
        false
    }

    /// The same fleet with the next smaller steps of its workers that only prefill.
    fn smaller(&self, fleet: Fleet, chunk: u64) -> Option<(Fleet, u64)> {
        let Fleet::Disaggregated { prefill, decode } = fleet else { return None };
        let alike = |layout: &&Layout| {
            let worker = Group { workers: prefill.workers, ..layout.worker };
            layout.role == role_name(Role::Prefill) && layout.chunk < chunk && worker == prefill
        };
        let next = self.layouts.iter().filter(alike).max_by_key(|layout| layout.chunk)?;
        let workers = prefill.workers.max(*next.least.as_ref().ok()?);
        Some((Fleet::Disaggregated { prefill: Group { workers, ..prefill }, decode }, next.chunk))
    }
}

fn kind(role: Role, group: Group, chunk: u64) -> Kind {
    let chunk = if role == Role::Decode { 0 } else { chunk };
    (role_name(role), [group.tensor, group.pipeline, group.replicas], chunk)
}

//! What a scenario's step comes to, what its exposed time consists of, and what would help: all
//! of it by running the step again with one thing changed.

use collcast_sim::units::SimDuration;
use collcast_sim::workload::{Jitter, Level, Mechanisms, OpGraph, Simulator, Step, WorkloadError};

/// Parts of the time that a step takes beyond its computation. They add up to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Breakdown {
    /// The step.
    pub step: SimDuration,
    /// With communication that takes no time and a framework that adds nothing: computation, and
    /// waits for other ranks (a pipeline's bubble, stragglers).
    pub compute: SimDuration,
    /// What of it stragglers add: ranks at a pace of their own, and those that start late.
    pub stragglers: Signed,
    /// What of the rest the busiest rank computes; the remainder is bubble.
    pub busiest: SimDuration,
    /// Computation and communication slow and delay each other.
    pub interference: Signed,
    /// Launches by the host, and streams that wait for each other.
    pub launch: Signed,
    /// Copies that the framework adds.
    pub framework: Signed,
    /// What is left when nothing slows anything: the last calls, and those that computation waits for.
    pub unhidden: Signed,
}

/// A difference of times in picoseconds: removing a cost may also make a step longer.
pub type Signed = i64;

fn difference(a: SimDuration, b: SimDuration) -> Signed {
    i64::try_from(a.0).unwrap_or(i64::MAX).saturating_sub(i64::try_from(b.0).unwrap_or(i64::MAX))
}

/// Simulations of [`breakdown`], of a step with stragglers or without.
pub fn runs(straggles: bool) -> usize {
    4 + usize::from(straggles)
}

/// Takes a step apart by leaving out one mechanism after another: interference, launches, what the
/// framework adds, communication, stragglers. The parts add up to the step exactly. `even` is the step without its stragglers,
/// where it has some.
///
/// # Errors
/// As [`Simulator::run`].
pub fn breakdown(
    simulator: &Simulator<'_>,
    (graph, even): (&OpGraph, Option<&OpGraph>),
    step: &Step,
) -> Result<Breakdown, WorkloadError> {
    let level = step.level();
    let mut on = Mechanisms { interference: false, ..Mechanisms::default() };
    let mut without = |change: &dyn Fn(&mut Mechanisms)| {
        change(&mut on);
        simulator.run(graph, on, level)
    };
    let calm = without(&|_| {})?;
    let launched = without(&|m| m.launch = false)?;
    let bare = without(&|m| m.framework = false)?;
    let silent = without(&|m| m.communication = false)?;
    let even = even.map(|even| simulator.run(even, on, level)).transpose()?;
    let together = even.as_ref().unwrap_or(&silent);
    Ok(Breakdown {
        step: step.time,
        compute: silent.time,
        stragglers: difference(silent.time, together.time),
        busiest: together.ranks.iter().map(|r| r.compute).max().unwrap_or_default(),
        interference: difference(step.time, calm.time),
        launch: difference(calm.time, launched.time),
        framework: difference(launched.time, bare.time),
        unhidden: difference(bare.time, silent.time),
    })
}

/// The spread of a step over seeds of its jitter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spread {
    /// Step times by seed, in order of seeds.
    pub times: Vec<(u64, SimDuration)>,
}

impl Spread {
    /// The shortest, the median and the longest; of an even number the median is the mean of the two in the middle.
    pub fn quantiles(&self) -> [SimDuration; 3] {
        let mut times: Vec<SimDuration> = self.times.iter().map(|t| t.1).collect();
        times.sort_unstable();
        let at = |index: usize| times.get(index).copied().unwrap_or_default();
        let last = times.len().saturating_sub(1);
        [at(0), SimDuration((at(last / 2).0 + at(times.len() / 2).0) / 2), at(last)]
    }
}

/// Runs a step with jitter, once a seed, at the level of the step itself. Without any, all seeds are alike.
///
/// # Errors
/// As [`Simulator::run`].
pub fn spread(
    simulator: &Simulator<'_>,
    graph: &OpGraph,
    (jitter, seeds): (Jitter, u32),
    level: Level,
) -> Result<Spread, WorkloadError> {
    let mut graph = graph.clone();
    let mut times = Vec::new();
    let seeds = if jitter.ppm == 0 { 1 } else { seeds };
    for seed in (0..seeds).map(|nth| jitter.seed.wrapping_add(nth.into())) {
        graph.jitter = Some(Jitter { seed, ..jitter });
        times.push((seed, simulator.run(&graph, Mechanisms::default(), level)?.time));
    }
    Ok(Spread { times })
}

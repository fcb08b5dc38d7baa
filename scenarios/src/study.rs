//! What a scenario's step comes to, what its exposed time consists of, and what would help: all
//! of it by running the step again with one thing changed.

use collcast_sim::ids::Rank;
use collcast_sim::units::SimDuration;
use collcast_sim::workload::{Jitter, Level, Mechanisms, OpGraph, RankSpec, Simulator, Step, WorkloadError};

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

/// Simulations of [`breakdown`].
pub fn runs(graph: &OpGraph) -> usize {
    4 + usize::from(!stragglers(graph).is_empty())
}

/// The pace of ranks that are like the scenario's layers, in millionths of their time.
const USUAL_PACE: u64 = 1_000_000;

/// Ranks that are slower than the scenario's layers, or start late.
pub fn stragglers(graph: &OpGraph) -> Vec<Rank> {
    let lags = |rank: &RankSpec| rank.pace_ppm > USUAL_PACE || rank.late > SimDuration::ZERO;
    (0..).map(Rank).zip(&graph.ranks).filter(|(_, spec)| lags(spec)).map(|(rank, _)| rank).collect()
}

/// The step without its [`stragglers`], if it has some.
pub fn even(graph: &OpGraph) -> Option<OpGraph> {
    let lagging = stragglers(graph);
    (!lagging.is_empty()).then(|| {
        let mut even = graph.clone();
        for rank in lagging {
            let spec = &mut even.ranks[rank.index()];
            (spec.pace_ppm, spec.late) = (spec.pace_ppm.min(USUAL_PACE), SimDuration::ZERO);
        }
        even
    })
}

/// Takes a step apart by leaving out one mechanism after another: interference, launches, what the
/// framework adds, communication, stragglers. The parts add up to the step exactly.
///
/// # Errors
/// As [`Simulator::run`].
pub fn breakdown(simulator: &Simulator<'_>, graph: &OpGraph, step: &Step) -> Result<Breakdown, WorkloadError> {
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
    let even = even(graph).map(|even| simulator.run(&even, on, level)).transpose()?;
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
    /// The shortest, the median and the longest.
    pub fn quantiles(&self) -> [SimDuration; 3] {
        let mut times: Vec<SimDuration> = self.times.iter().map(|t| t.1).collect();
        times.sort_unstable();
        let at = |index: usize| times.get(index).copied().unwrap_or_default();
        [at(0), at(times.len() / 2), at(times.len().saturating_sub(1))]
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
    for seed in (jitter.seed..).take(seeds as usize) {
        graph.jitter = Some(Jitter { seed, ..jitter });
        times.push((seed, simulator.run(&graph, Mechanisms::default(), level)?.time));
    }
    Ok(Spread { times })
}

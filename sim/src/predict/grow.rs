//! Calls over many hosts, by how the same call grows from few of them to more.
//!
//! A double tree over twice as many hosts has one level more, and each level of hosts that are alike takes as long as the
//! one below. A ring, PAT and exchanges of pairs have as many more steps as there are more ranks. So the same cut is
//! simulated on three numbers of hosts, each half of the next as the halves of the whole are, and where the second doubling
//! adds what the first says, so do those that are left out. A host or link that is unlike the others is among those that are
//! simulated.

use rayon::prelude::*;

use super::error::PredictError;
use super::grown::{COMPARED, Grown};
use super::prediction::Prediction;
use super::predictor::Predictor;
use super::proof::Proven;
use super::settings::Settings;
use super::time::{APART, ROUNDS, is_alone};
use crate::bounds;
use crate::call::Call;
use crate::collective::{Algorithm, Collective, Protocol};
use crate::domain::Reason;
use crate::engine::{MOST_WORK, Unobserved, WORK_PER_SECOND, mix};
use crate::ids::Rank;
use crate::measurement::Timing;
use crate::nccl::plan::peer_batches;
use crate::network::Row;
use crate::schedule::Schedule;
use crate::units::SimDuration;

/// Hosts of the smallest call that is simulated: all that a double tree tells apart occurs among them.
const FEWEST_HOSTS: u32 = 8;
/// Hosts of the smallest call that is forecast from fewer.
const LEAST_HOSTS: u32 = 128;
/// The part of the forecast by which two doublings may differ over all that is left out.
const STEADY: f64 = 0.01;
/// The same where the whole is too large to be simulated, or nearly: about as much as runs of all hosts were seen to differ,
/// `grown.rs`.
const NEARLY_STEADY: f64 = 0.05;
/// As [`APART`] for steps past a host that is unlike the others, where a loop of the largest part takes over a second to
/// simulate: what the call before leaves behind is little of a long one. With a NIC down, PAT of 1 GiB over 64 and 128 DGX
/// H100 ranks takes 0.5% less and 0.8% more in a loop.
const STEPS_APART: f64 = 0.05;
/// How many times as many hosts as the largest part the whole has at least.
const LEAST_TIMES: u32 = 8;
/// The same where the whole is too large to be simulated.
const LEAST_TIMES_TOO_LARGE: u32 = 2;
/// Ranks up to which every call is simulated whole.
const FEW_RANKS: u32 = 1024;
/// Lanes from which on a call is forecast from fewer hosts, as well as where its simulation takes more than a second.
const MANY_LANES: u64 = 50_000;

/// What adds time to a call where there are more hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Growth {
    /// A level of a tree: one for twice as many hosts.
    Levels,
    /// Steps: as many as there are ranks.
    Steps,
}

impl Growth {
    fn of(algorithm: Algorithm) -> Option<Self> {
        match algorithm {
            Algorithm::Tree | Algorithm::NvlsTree => Some(Self::Levels),
            Algorithm::Ring | Algorithm::Pat | Algorithm::Direct => Some(Self::Steps),
            _ => None,
        }
    }

    /// What a number of hosts comes to; differences are in proportion to time.
    fn size(self, hosts: u32, whole: u32) -> f64 {
        match self {
            // Hosts are whole parts of all, rounded up.
            Self::Levels => -(f64::from(whole) / f64::from(hosts)).log2().round(),
            Self::Steps => f64::from(hosts),
        }
    }
}

/// Parts of a call that were simulated, by their hosts.
pub(super) type Simulated = Vec<(u32, Prediction)>;

impl Predictor<'_> {
    /// A call over many hosts by fewer of them, where those grow steadily, however soon all could be simulated.
    ///
    /// # Errors
    /// See [`PredictError`].
    pub fn predict_from_fewer_hosts(
        &self,
        call: &Call,
        (algorithm, protocol): (Algorithm, Protocol),
        settings: &Settings,
    ) -> Result<Option<Prediction>, PredictError> {
        let whole = self.proven(call, algorithm, protocol, settings)?;
        Ok(self.by_fewer(&whole, settings, (LEAST_TIMES_TOO_LARGE, STEADY), &mut Simulated::new(), |_, _| Some(STEADY)))
    }

    /// A call over many hosts by fewer of them; `None` where it does not grow steadily, has few hosts, or is soon simulated
    /// whole.
    pub(super) fn grow(&self, whole: &Proven, settings: &Settings, known: &mut Simulated) -> Option<Prediction> {
        if whole.schedule.call.ranks <= FEW_RANKS {
            return None;
        }
        self.by_fewer(whole, settings, (LEAST_TIMES, STEADY), known, |part, times| {
            // As many more ranks have as many more steps each; what folds in a part may not in the whole.
            let more =
                if Growth::of(part.algorithm) == Some(Growth::Steps) { times.saturating_mul(times) } else { times };
            let takes_long = part.work.saturating_mul(more) >= WORK_PER_SECOND;
            let worth = takes_long || part.folded.0.saturating_mul(times) >= MANY_LANES;
            let takes_too_long = part.work.saturating_mul(times) >= MOST_WORK / 2;
            worth.then_some(if takes_too_long { NEARLY_STEADY } else { STEADY })
        })
    }

    /// A call that is too large to be simulated whole, by fewer hosts, though these may grow less steadily.
    pub(super) fn grow_too_large(
        &self,
        whole: &Proven,
        settings: &Settings,
        known: &mut Simulated,
    ) -> Option<Prediction> {
        self.by_fewer(whole, settings, (LEAST_TIMES_TOO_LARGE, NEARLY_STEADY), known, |_, _| Some(STEADY))
    }

    /// From the first parts that grow steadily, or else from the largest ones whose doublings differ by `most_off` of the
    /// forecast at most. The whole has `times_least` times as many hosts as the largest part at least. `worth` is asked of
    /// that part, and how many times as many there are: by how much doublings may differ, where it is worth while.
    fn by_fewer(
        &self,
        whole: &Proven,
        settings: &Settings,
        (times_least, most_off): (u32, f64),
        known: &mut Simulated,
        worth: impl Fn(&Prediction, u64) -> Option<f64>,
    ) -> Option<Prediction> {
        let (schedule, call) = (&whole.schedule, &whole.schedule.call);
        let growth = Growth::of(schedule.plan.algorithm).filter(|_| settings.fold && call.counts.is_none())?;
        let row = self.row_of(call.ranks)?;
        let rooted = call.collective.rooted();
        // The steps of rings of equal hosts are few in the whole, too. A root is the first rank of any part.
        let is_even_ring = schedule.plan.algorithm == Algorithm::Ring && row.unlike.is_none() && !rooted;
        if is_even_ring || rooted && (row.unlike.is_some() || call.root.0 >= row.each) {
            return None;
        }
        let plan = &whole.schedule.plan;
        let groups = plan.channels / plan.channels_per_peer.max(1);
        // Fewer hosts than groups of channels leave some without a peer, or with fewer at a time than there are of all hosts.
        let served = |hosts: u32| (hosts * row.each / groups.max(1)).min(plan.peers_at_once);
        let too_few = |hosts| {
            plan.algorithm == Algorithm::Direct
                && (peer_batches(hosts, row.each) < groups || served(hosts) < served(row.hosts))
        };
        // Larger parts together take as long as the whole.
        let numbers = numbers(row.hosts, row.below).take_while(|hosts| hosts * times_least <= row.hosts);
        let windows = numbers.filter(|&hosts| !too_few(hosts)).filter_map(|hosts| Some((window(hosts, &row)?, hosts)));
        let windows: Vec<(u32, u32)> = windows.collect();
        // The largest first, as it takes longest.
        let simulate = |windows: &[(u32, u32)], settings: &Settings| {
            let parts = windows.par_iter().rev().with_max_len(1).map(|&of| self.part(whole, of, &row, settings));
            let parts: Vec<Result<Prediction, PredictError>> = parts.collect();
            // Where a part cannot be simulated, the whole says why.
            windows
                .iter()
                .zip(parts.into_iter().rev())
                .map_while(|(of, part)| Some((of.1, part.ok()?)))
                .collect::<Vec<_>>()
        };
        let alone = Settings { timing: Timing { calls: 1, ..settings.timing }, ..*settings };
        // What a loop of calls would take is asked only where one call alone does not tell.
        let dear = growth == Growth::Steps && row.unlike.is_some();
        let mut nearly = None;
        for last in COMPARED..=windows.len() {
            let window = &windows[last - COMPARED..last];
            let missing: Vec<_> = window.iter().filter(|of| known.iter().all(|k| k.0 != of.1)).copied().collect();
            known.extend(simulate(&missing, if dear { &alone } else { settings }));
            let parts: Vec<_> = known.iter().filter(|known| window.iter().any(|of| of.1 == known.0)).cloned().collect();
            let Ok(mut parts) = <[_; COMPARED]>::try_from(parts) else { break };
            // All are timed as the largest: in a loop where its first rank is done long before its last.
            let (smaller, largest) = parts.split_at(COMPARED - 1);
            let again = match largest[0].1.apart {
                _ if is_alone(settings) => None,
                apart if dear => {
                    let long = largest[0].1.work.saturating_mul(ROUNDS.into()) >= WORK_PER_SECOND;
                    (apart > if long { STEPS_APART } else { APART }).then_some(settings)
                }
                apart => (apart <= APART && smaller.iter().any(|part| part.1.apart > APART)).then_some(&alone),
            };
            if let Some(settings) = again {
                let Ok(timed) = <[_; COMPARED]>::try_from(simulate(window, settings)) else { break };
                parts = timed;
            }
            let steady = worth(&parts[COMPARED - 1].1, u64::from(row.hosts / window[COMPARED - 1].1))?;
            let grown = self.carried_on(&parts, growth, &row, whole, settings);
            match grown.grown.map_or(0.0, |grown| grown.off) {
                off if off <= steady => return Some(grown),
                off if off <= most_off => nearly = Some(grown),
                _ => {}
            }
        }
        nearly
    }

    /// The hosts of many ranks, where there are many. Where flows are pinned to ways by hashing, each number of hosts has
    /// its own.
    fn row_of(&self, ranks: u32) -> Option<Row> {
        if ranks < LEAST_HOSTS || self.topology.hosts().len() < LEAST_HOSTS as usize || self.topology.hash.is_some() {
            return None;
        }
        self.parts.row(self.topology, ranks).filter(|row| row.hosts >= LEAST_HOSTS)
    }

    /// The same cut on some hosts in a row.
    fn part(
        &self,
        whole: &Proven,
        (from, hosts): (u32, u32),
        row: &Row,
        settings: &Settings,
    ) -> Result<Prediction, PredictError> {
        let ranks = hosts * row.each;
        let part = self.parts.part(self.topology, (from, hosts), row)?;
        let (machine, links) = &*part;
        let predictor = self.on(machine).with_graphs(self.given.clone());
        let (call, plan) = whole.schedule.plan.of_ranks(&whole.schedule.call, ranks);
        let schedule = Schedule::new(call, plan, &predictor.order(ranks, settings))?;
        // Its pattern is that of the whole, which is proved.
        let part = Proven { schedule, proof: whole.proof };
        let mut prediction = predictor.simulate(&part, settings, &mut Unobserved)?;
        prediction.busiest.iter_mut().for_each(|used| used.link = links[used.link.index()]);
        Ok(prediction)
    }

    /// The forecast of the whole, and how far the second of two differences is from what the first says.
    fn carried_on(
        &self,
        seen: &[(u32, Prediction); COMPARED],
        growth: Growth,
        row: &Row,
        whole: &Proven,
        settings: &Settings,
    ) -> Prediction {
        let (call, all) = (&whole.schedule.call, row.hosts);
        let at = seen.each_ref().map(|seen| growth.size(seen.0, all));
        let kernels = seen.each_ref().map(|seen| seen.1.kernel.as_us());
        let [first, second] = [0, 1].map(|i| (kernels[i + 1] - kernels[i]) / (at[i + 1] - at[i]));
        let left = growth.size(all, all) - at[2];
        let (each, apart) = match growth {
            // Levels differ by chance, as chunks meet; the steps of the fewest hosts are not those of many yet.
            Growth::Levels => (f64::midpoint(first, second), (second - first).abs() / 2.0),
            Growth::Steps => (second, (second - first).abs()),
        };
        // No call is faster over more hosts: what seems so is chance.
        let (grown, off) = (kernels[2] + each.max(0.0) * left, apart.max(-each) * left);
        let off = off / grown.max(1e-9);
        let last = &seen[2].1;
        // Of those that grow, NVLS tree alone reduces in switches.
        let bound = bounds::bandwidth(self.topology, call, last.algorithm == Algorithm::NvlsTree);
        let kernel = SimDuration::from_us(grown).max(bound.time);
        let busy = last.uses();
        let mut beyond = self.beyond_of(&whole.schedule, settings);
        if last.beyond.switches() {
            beyond.insert(Reason::Switches);
        }
        let timed =
            self.timed(kernel, (call.ranks, whole.schedule.plan.blocks()), (last.protocol, busy, &beyond), settings);
        let count = |of: &dyn Fn(&Prediction) -> u64| carried(seen, all, of);
        // Ranks of an exchange have as many lanes each, which grow in steps of a batch of peers.
        let lanes = match call.collective {
            Collective::AllToAll => {
                whole.schedule.workers().take_while(|of| of.0 == Rank(0)).count() as u64 * u64::from(call.ranks)
            }
            _ => count(&|p| p.folded.0),
        };
        let sum = |of: &dyn Fn(&Prediction) -> u64| seen.iter().map(|seen| of(&seen.1)).fold(0, u64::saturating_add);
        Prediction {
            time: timed.time,
            kernel,
            issue: timed.issue,
            low: SimDuration::from_us(timed.low.as_us() * (1.0 - off.min(1.0))).max(bound.time),
            high: SimDuration::from_us(timed.high.as_us() * (1.0 + off)),
            beyond,
            messages: count(&|p| p.messages),
            events: sum(&|p| p.events),
            work: sum(&|p| p.work),
            folded: (lanes, last.folded.1),
            plan: whole.schedule.plan,
            proof: whole.proof,
            bound,
            trace_hash: seen.iter().map(|seen| seen.1.trace_hash).fold(0, mix),
            grown: Some(Grown {
                hosts: seen.each_ref().map(|seen| seen.0),
                of: all,
                uneven: !all.is_power_of_two() || row.unlike.is_some() || row.below > 1,
                off,
            }),
            ..last.clone()
        }
    }
}

/// The whole, halved again and again and rounded up, from the fewest on that are simulated: no fewer than share a switch
/// that they can fill.
fn numbers(hosts: u32, below: u32) -> impl Iterator<Item = u32> {
    let halves = (1..u32::BITS).map(move |times| hosts.div_ceil(1 << times));
    let mut numbers: Vec<u32> = halves.take_while(|&hosts| hosts >= FEWEST_HOSTS.max(below)).collect();
    numbers.reverse();
    numbers.into_iter()
}

/// The first of some hosts in a row that those that are unlike the others are among. The first of them has the same place in
/// the lower levels of both trees as in the whole; what is no root there is none here.
fn window(hosts: u32, row: &Row) -> Option<u32> {
    let Some((first, last)) = row.unlike else { return Some(0) };
    let place = match first % hosts {
        0 if first > 0 => hosts / 2,
        place if place + 1 == hosts && first + 1 < row.hosts => hosts / 2 - 1,
        place => place,
    };
    let from = (first - place).min(row.hosts - hosts);
    (last < from + hosts).then_some(from)
}

/// A count of the whole by the parabola through those of three parts: messages grow with hosts, or with their square.
fn carried(seen: &[(u32, Prediction); COMPARED], hosts: u32, of: &dyn Fn(&Prediction) -> u64) -> u64 {
    let at = seen.each_ref().map(|seen| i128::from(seen.0));
    let hosts = i128::from(hosts);
    let over = |i: usize| (1..COMPARED).map(|j| hosts - at[(i + j) % COMPARED]).product::<i128>();
    let under = |i: usize| (1..COMPARED).map(|j| at[i] - at[(i + j) % COMPARED]).product::<i128>();
    let others = |i: usize| (1..COMPARED).map(|j| under((i + j) % COMPARED)).product::<i128>();
    let sum: i128 = (0..COMPARED).map(|i| i128::from(of(&seen[i].1)) * over(i) * others(i)).sum();
    u64::try_from(sum / (0..COMPARED).map(under).product::<i128>()).unwrap_or(0)
}

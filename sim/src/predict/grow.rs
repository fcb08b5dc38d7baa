//! Calls over many hosts, by how the same call grows from few of them to more.
//!
//! A double tree over twice as many hosts has one level more, and each level of hosts that are alike takes as long as the
//! one below. A ring, PAT and exchanges of pairs have as many more steps as there are more ranks. So the same cut is
//! simulated on three numbers of hosts, each half of the next as the halves of the whole are, and where the second doubling
//! adds what the first says, so do those that are left out.
//!
//! A host or link that is unlike the others is among those that are simulated. Where that takes much longer than equal hosts
//! do, the whole is forecast from equal ones. What the unlike ones add to two parts is added to it.

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
const LEAST_HOSTS: u32 = 64;
/// The part of the forecast by which two doublings may differ over all that is left out.
const STEADY: f64 = 0.01;
/// The same where the whole is too large to be simulated, or nearly: about as much as runs of all hosts were seen to differ,
/// `grown.rs`.
const NEARLY_STEADY: f64 = 0.05;
/// As [`APART`] for steps, where a loop of the largest part takes over a second to simulate: what the call before leaves behind
/// is little of a long one. With a NIC down, PAT of 1 GiB over 64 and 128 DGX H100 ranks takes 0.5% less and 0.8% more in a loop.
const STEPS_APART: f64 = 0.05;
/// By how much a loop of calls differs from one alone, as a part of what its first rank is done before the last: PAT of 1 to
/// 64 MiB over 128 hosts with a NIC down by 0.18 to 0.35 of that.
const LOOPED: f64 = 0.4;
/// The part by which what unlike hosts add a host more may differ between two doublings, where it is taken to go on. Where that is
/// not so it is taken to end: what PAT of 1 GiB past a NIC that is down loses a host more is 0.7, 0.9 and then 0 us.
const EVEN: f64 = 0.1;
/// How many times as many lanes a part with unlike hosts has as one of equal ones, from where on few of its like are simulated.
const CHEAPER: usize = 4;
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

/// Parts of a call that were simulated.
pub(super) type Simulated = Vec<Part>;

/// A part of a call that was simulated.
pub(super) struct Part {
    hosts: u32,
    /// Whether one call alone was timed, and no loop of them.
    alone: bool,
    prediction: Prediction,
}

/// The first of some hosts in a row, and how many they are.
type Window = (u32, u32);

/// What is forecast from parts of it.
#[derive(Clone, Copy)]
struct Run<'r> {
    whole: &'r Proven,
    row: &'r Row,
    growth: Growth,
    settings: &'r Settings,
}

/// The same call over hosts that are all alike: as large parts, beside the unlike ones.
struct Equal<'r> {
    run: Run<'r>,
    windows: Vec<Window>,
    known: Simulated,
}

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
        let (call, plan) = (&whole.schedule.call, &whole.schedule.plan);
        // Equal hosts of a ring mostly take few steps in the whole, too.
        let ring = plan.algorithm == Algorithm::Ring && !call.collective.rooted();
        if call.ranks <= FEW_RANKS || ring && self.row_of(call.ranks)?.unlike.is_none() {
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

    /// From the first parts that grow steadily, or else from the largest ones that are off by `most_off` of the forecast at
    /// most. The whole has `times_least` times as many hosts as the largest part at least. `worth` is asked of that part, and
    /// how many times as many there are: by how much it may be off, where it is worth while.
    fn by_fewer(
        &self,
        whole: &Proven,
        settings: &Settings,
        (times_least, most_off): (u32, f64),
        known: &mut Simulated,
        worth: impl Fn(&Prediction, u64) -> Option<f64>,
    ) -> Option<Prediction> {
        let (call, plan) = (&whole.schedule.call, &whole.schedule.plan);
        let growth = Growth::of(plan.algorithm).filter(|_| settings.fold && call.counts.is_none())?;
        let row = self.row_of(call.ranks)?;
        // A root is the first rank of any part.
        if call.collective.rooted() && (row.unlike.is_some() || call.root.0 >= row.each) {
            return None;
        }
        let groups = plan.channels / plan.channels_per_peer.max(1);
        // Fewer hosts than groups of channels leave some without a peer, or with fewer at a time than there are of all hosts.
        let served = |hosts: u32| (hosts * row.each / groups.max(1)).min(plan.peers_at_once);
        let too_few = |&hosts: &u32| {
            plan.algorithm == Algorithm::Direct
                && (peer_batches(hosts, row.each) < groups || served(hosts) < served(row.hosts))
        };
        // Larger parts together take as long as the whole.
        let numbers = numbers(row.hosts, row.below).take_while(|hosts| hosts * times_least <= row.hosts);
        let windows = numbers.filter(|hosts| !too_few(hosts)).filter_map(|hosts| Some((window(hosts, &row)?, hosts)));
        let windows: Vec<Window> = windows.collect();
        let run = Run { whole, row: &row, growth, settings };
        let Some(unlike) = row.unlike.filter(|_| plan.algorithm != Algorithm::Ring) else {
            return self.of_parts(&run, &windows, most_off, known, worth);
        };
        let equal_row = Row { unlike: None, ..row.clone() };
        let equal = beside(unlike, windows.last()?.1, row.hosts).map(|start| Equal {
            run: Run { row: &equal_row, ..run },
            windows: windows.iter().map(|of| (start, of.1)).collect(),
            known: Simulated::new(),
        });
        if growth == Growth::Levels && !equal.as_ref().is_some_and(|equal| self.folds_better(equal, &run, &windows)) {
            return self.of_parts(&run, &windows, most_off, known, &worth);
        }
        equal.and_then(|equal| self.with_unlike((&run, &windows, known), equal, most_off, &worth)).or_else(|| {
            match growth {
                Growth::Levels => None,
                Growth::Steps => self.of_parts(&run, &windows, most_off, known, &worth),
            }
        })
    }

    /// Whether equal hosts fold to far fewer lanes than as many with unlike ones among them.
    fn folds_better(&self, equal: &Equal<'_>, run: &Run<'_>, windows: &[Window]) -> bool {
        let lanes = |run: &Run<'_>, windows: &[Window]| {
            let of_part = |predictor: &Predictor<'_>, part: &Proven| predictor.folds_to(&part.schedule, run.settings);
            self.with_part(run.whole, *windows.first()?, run.row, run.settings, of_part).ok()
        };
        let (equal, unlike) = (lanes(&equal.run, &equal.windows), lanes(run, windows));
        equal.zip(unlike).is_some_and(|(equal, unlike)| equal.saturating_mul(CHEAPER) <= unlike)
    }

    /// A call from parts that grow.
    fn of_parts(
        &self,
        run: &Run<'_>,
        windows: &[Window],
        most_off: f64,
        known: &mut Simulated,
        worth: impl Fn(&Prediction, u64) -> Option<f64>,
    ) -> Option<Prediction> {
        let settings = run.settings;
        let alone = alone(settings);
        let steps = run.growth == Growth::Steps;
        let mut nearly: Option<Prediction> = None;
        for window in windows.windows(COMPARED) {
            // Twice as many hosts take twice as many steps each.
            let takes_long =
                |part: &Part| part.hosts == window[COMPARED - 2].1 && part.prediction.work > WORK_PER_SECOND;
            if steps && run.row.unlike.is_some() && known.iter().any(takes_long) {
                break;
            }
            // What a loop of steps would take is asked only where one call alone does not tell.
            let parts = self.parts(run, window, if steps { &alone } else { settings }, known);
            let Ok(mut parts) = <[_; COMPARED]>::try_from(parts) else { break };
            // All are timed as the largest: in a loop where its first rank is done long before its last.
            let (smaller, largest) = parts.split_at(COMPARED - 1);
            let again = match largest[0].1.apart {
                _ if is_alone(settings) => None,
                apart if steps => {
                    let long = largest[0].1.work.saturating_mul(ROUNDS.into()) >= WORK_PER_SECOND;
                    (apart > if long { STEPS_APART } else { APART }).then_some(settings)
                }
                apart => (apart <= APART && smaller.iter().any(|part| part.1.apart > APART)).then_some(&alone),
            };
            if let Some(settings) = again {
                let timed = self.parts(run, window, settings, known);
                let Ok(timed) = <[_; COMPARED]>::try_from(timed) else { break };
                parts = timed;
            }
            let steady = worth(&parts[COMPARED - 1].1, u64::from(run.row.hosts / window[COMPARED - 1].1))?;
            let grown = self.carried_on(&parts, run);
            // Where steps differ, those of larger parts are nearer to those of many.
            let at_once = if run.growth == Growth::Steps { STEADY } else { steady };
            match grown.grown.map_or(0.0, |grown| grown.off) {
                off if off <= at_once => return Some(grown),
                off if off <= most_off.max(steady) => nearly = Some(grown),
                _ => {}
            }
        }
        nearly
    }

    /// A call over hosts some of which are unlike the others: by what it takes were all alike, and what the unlike ones add
    /// to parts.
    fn with_unlike(
        &self,
        (run, windows, known): (&Run<'_>, &[Window], &mut Simulated),
        Equal { run: of_equal, windows: beside, known: mut known_equal }: Equal<'_>,
        most_off: f64,
        worth: impl Fn(&Prediction, u64) -> Option<f64>,
    ) -> Option<Prediction> {
        let alone = alone(run.settings);
        let compared = match run.growth {
            Growth::Levels => 2,
            Growth::Steps => COMPARED,
        };
        // What the unlike ones add is asked at least of the first parts, which run beside the equal ones.
        let before = known.len();
        let (as_alike, _) = rayon::join(
            || self.of_parts(&of_equal, &beside, most_off, &mut known_equal, |_, _| Some(STEADY)),
            || self.parts(run, windows.get(..compared).unwrap_or_default(), &alone, known),
        );
        let Some(as_alike) = as_alike else {
            known.truncate(before);
            return None;
        };
        let mut nearly = None;
        for (window, beside) in windows.windows(compared).zip(beside.windows(compared)) {
            let parts = self.parts(run, window, &alone, known);
            let alike = self.parts(&of_equal, beside, &alone, &mut known_equal);
            let [.., (hosts, largest)] = &parts[..] else { break };
            if parts.len().min(alike.len()) < compared {
                break;
            }
            let steady = worth(largest, u64::from(run.row.hosts / hosts))?;
            let added =
                parts.iter().zip(&alike).map(|(part, alike)| (part.0, part.1.kernel.as_us() - alike.1.kernel.as_us()));
            let (added, apart) = added_to_all(&added.collect::<Vec<_>>(), run.row.hosts);
            let kernel = (as_alike.kernel.as_us() + added).max(largest.kernel.as_us());
            let grown = as_alike.grown?;
            let looped = if is_alone(run.settings) { 0.0 } else { LOOPED * largest.apart * largest.kernel.as_us() };
            let off = grown.off + (apart + looped) / kernel.max(1e-9);
            let sum = |of: fn(&Prediction) -> u64| {
                parts.iter().map(|part| of(&part.1)).fold(of(&as_alike), u64::saturating_add)
            };
            let told = Prediction {
                messages: as_alike.messages,
                events: sum(|p| p.events),
                work: sum(|p| p.work),
                folded: (as_alike.folded.0, largest.folded.1),
                trace_hash: parts.iter().map(|part| part.1.trace_hash).fold(as_alike.trace_hash, mix),
                grown: Some(Grown { uneven: true, off, ..grown }),
                ..self.told(run, largest, (kernel, off))
            };
            match off {
                off if off <= steady => return Some(told),
                off if off <= most_off => nearly = Some(told),
                _ => {}
            }
            // Twice as many hosts take twice as many steps each.
            if run.growth == Growth::Steps && largest.work > WORK_PER_SECOND {
                break;
            }
        }
        nearly
    }

    /// Parts that are known, or else are simulated, by their hosts: the first ones, up to one that cannot be.
    fn parts(
        &self,
        run: &Run<'_>,
        windows: &[Window],
        settings: &Settings,
        known: &mut Simulated,
    ) -> Vec<(u32, Prediction)> {
        let alone = is_alone(settings);
        let is =
            |part: &Part, of: &Window| part.hosts == of.1 && (part.alone == alone || part.prediction.apart <= APART);
        let missing: Vec<_> = windows.iter().filter(|of| !known.iter().any(|part| is(part, of))).copied().collect();
        // The largest first, as it takes longest.
        let parts = missing.par_iter().rev().with_max_len(1).map(|&of| self.part(run.whole, of, run.row, settings));
        let parts: Vec<Result<Prediction, PredictError>> = parts.collect();
        // Where a part cannot be simulated, the whole says why.
        let parts = missing.iter().zip(parts.into_iter().rev());
        known.extend(parts.map_while(|(of, part)| Some(Part { hosts: of.1, alone, prediction: part.ok()? })));
        let of = |window: &Window| Some((window.1, known.iter().find(|part| is(part, window))?.prediction.clone()));
        windows.iter().map_while(of).collect()
    }

    /// The hosts of many ranks, where there are many. Where flows are pinned to ways by hashing, each number of hosts has
    /// its own.
    fn row_of(&self, ranks: u32) -> Option<Row> {
        if ranks < LEAST_HOSTS || self.topology.hosts().len() < LEAST_HOSTS as usize || self.topology.hash.is_some() {
            return None;
        }
        self.parts.row(self.topology, ranks).filter(|row| row.hosts >= LEAST_HOSTS)
    }

    /// The same cut on some hosts in a row, simulated.
    fn part(&self, whole: &Proven, window: Window, row: &Row, settings: &Settings) -> Result<Prediction, PredictError> {
        let simulate = |predictor: &Predictor<'_>, part: &Proven| predictor.simulate(part, settings, &mut Unobserved);
        let mut prediction = self.with_part(whole, window, row, settings, simulate)?;
        let links = &self.parts.part(self.topology, window, row)?.1;
        prediction.busiest.iter_mut().for_each(|used| used.link = links[used.link.index()]);
        Ok(prediction)
    }

    /// Asks something of the same cut on some hosts in a row.
    fn with_part<T>(
        &self,
        whole: &Proven,
        (from, hosts): Window,
        row: &Row,
        settings: &Settings,
        ask: impl FnOnce(&Predictor<'_>, &Proven) -> Result<T, PredictError>,
    ) -> Result<T, PredictError> {
        let ranks = hosts * row.each;
        let part = self.parts.part(self.topology, (from, hosts), row)?;
        let (machine, _) = &*part;
        let predictor = self.on(machine).with_graphs(self.given.clone());
        let (call, plan) = whole.schedule.plan.of_ranks(&whole.schedule.call, ranks);
        let schedule = Schedule::new(call, plan, &predictor.order(ranks, settings))?;
        // Its pattern is that of the whole, which is proved.
        ask(&predictor, &Proven { schedule, proof: whole.proof })
    }

    /// The forecast of the whole, and how far the second of two differences is from what the first says.
    fn carried_on(&self, seen: &[(u32, Prediction); COMPARED], run: &Run<'_>) -> Prediction {
        let (call, row, all) = (&run.whole.schedule.call, run.row, run.row.hosts);
        let at = seen.each_ref().map(|seen| run.growth.size(seen.0, all));
        let kernels = seen.each_ref().map(|seen| seen.1.kernel.as_us());
        let [first, second] = [0, 1].map(|i| (kernels[i + 1] - kernels[i]) / (at[i + 1] - at[i]));
        let left = run.growth.size(all, all) - at[2];
        let (each, apart) = match run.growth {
            // Levels differ by chance, as chunks meet; the steps of the fewest hosts are not those of many yet.
            Growth::Levels => (f64::midpoint(first, second), (second - first).abs() / 2.0),
            Growth::Steps => (second, (second - first).abs()),
        };
        // No call is faster over more hosts: what seems so is chance.
        let (grown, off) = (kernels[2] + each.max(0.0) * left, apart.max(-each) * left);
        let off = off / grown.max(1e-9);
        let last = &seen[2].1;
        let count = |of: &dyn Fn(&Prediction) -> u64| carried(seen, all, of);
        // Ranks of an exchange have as many lanes each, which grow in steps of a batch of peers.
        let lanes = match call.collective {
            Collective::AllToAll => {
                let workers = run.whole.schedule.workers();
                workers.take_while(|of| of.0 == Rank(0)).count() as u64 * u64::from(call.ranks)
            }
            _ => count(&|p| p.folded.0),
        };
        let sum = |of: &dyn Fn(&Prediction) -> u64| seen.iter().map(|seen| of(&seen.1)).fold(0, u64::saturating_add);
        Prediction {
            messages: count(&|p| p.messages),
            events: sum(&|p| p.events),
            work: sum(&|p| p.work),
            folded: (lanes, last.folded.1),
            trace_hash: seen.iter().map(|seen| seen.1.trace_hash).fold(0, mix),
            grown: Some(Grown {
                hosts: seen.each_ref().map(|seen| seen.0),
                of: all,
                uneven: !all.is_power_of_two() || row.unlike.is_some() || row.below > 1,
                off,
            }),
            ..self.told(run, last, (grown, off))
        }
    }

    /// A part as the whole, whose kernel takes so many microseconds, off by a part of that.
    fn told(&self, run: &Run<'_>, part: &Prediction, (kernel, off): (f64, f64)) -> Prediction {
        let (schedule, settings) = (&run.whole.schedule, run.settings);
        let call = &schedule.call;
        // Of those that grow, NVLS tree alone reduces in switches.
        let bound = bounds::bandwidth(self.topology, call, part.algorithm == Algorithm::NvlsTree);
        let kernel = SimDuration::from_us(kernel).max(bound.time);
        let mut beyond = self.beyond_of(schedule, settings);
        if part.beyond.switches() {
            beyond.insert(Reason::Switches);
        }
        let blocks = (call.ranks, schedule.plan.blocks());
        let timed = self.timed(kernel, blocks, (part.protocol, part.uses(), &beyond), settings);
        Prediction {
            time: timed.time,
            kernel,
            issue: timed.issue,
            low: SimDuration::from_us(timed.low.as_us() * (1.0 - off.min(1.0))).max(bound.time),
            high: SimDuration::from_us(timed.high.as_us() * (1.0 + off)),
            beyond,
            plan: schedule.plan,
            proof: run.whole.proof,
            bound,
            ..part.clone()
        }
    }
}

/// What unlike hosts add to a call over all hosts, and how far off that may be, both in microseconds, by what they add to parts
/// of so many hosts: two parts of a tree, three where steps grow.
fn added_to_all(parts: &[(u32, f64)], hosts: u32) -> (f64, f64) {
    let rate = |from: (u32, f64), to: (u32, f64)| (to.1 - from.1) / f64::from(to.0 - from.0);
    match *parts {
        // Steps past them take so much longer each, or some of them do.
        [first, second, last] => {
            let (before, rate) = (rate(first, second), rate(second, last));
            let left = f64::from(hosts - last.0);
            match (rate - before).abs() < EVEN * rate.abs() {
                true => (last.1 + rate * left, (rate - before).abs() * left),
                false => (last.1, rate.abs() * left),
            }
        }
        [first, last] => (last.1, (last.1 - first.1).abs()),
        _ => (0.0, f64::INFINITY),
    }
}

/// Settings for which one call alone is timed.
fn alone(settings: &Settings) -> Settings {
    Settings { timing: Timing { calls: 1, ..settings.timing }, ..*settings }
}

/// Where parts of up to so many hosts begin that the unlike ones are not among: as all hosts do, or after the unlike ones.
fn beside((first, last): (u32, u32), most: u32, hosts: u32) -> Option<u32> {
    if first >= most {
        return Some(0);
    }
    let start = (last + 1).next_multiple_of(most);
    (start + most <= hosts).then_some(start)
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

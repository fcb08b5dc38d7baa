//! Lays what is proved on the machine, runs it, and says what that came to.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::busy::Busy;
use super::choose::Resolved;
use super::error::PredictError;
use super::prediction::{LinkUse, Prediction, Shares, Warning};
use super::predictor::{Predictor, RunsAs};
use super::proof::{ProofKind, Proven, describe};
use super::settings::{Choice, Settings};
use super::time::{ROUNDS, check_possible, kernel_time, utilisations};
use crate::bounds::{self, Bound};
use crate::call::{Call, CallError};
use crate::collective::{Algorithm, Protocol};
use crate::domain::{Beyond, Reason};
use crate::engine::{Instance, Observer, Unobserved, run, run_steady, run_steady_told};
use crate::ids::{LinkId, Rank};
use crate::network::{Laid, LayError, ResourceName, join, lay, lay_known, lay_one_of_each};
use crate::schedule::{Schedule, ScheduleError};
use crate::topology::Topology;
use crate::units::SimTime;

impl Predictor<'_> {
    /// Lays a schedule that is proved, and runs it.
    pub(crate) fn simulate<O: Observer>(
        &self,
        Proven { schedule, proof }: &Proven,
        settings: &Settings,
        observer: &mut O,
    ) -> Result<Prediction, PredictError> {
        let _turn = turn([schedule]);
        let laid = self.lay(schedule, settings)?;
        let alone = Part { predictor: self, schedule, switches: laid.switches() };
        Ok(self.evaluate(&[alone], *proof, &laid, settings, observer)?.0)
    }

    /// How many lanes a schedule folds to.
    pub(super) fn folds_to(&self, schedule: &Schedule, settings: &Settings) -> Result<usize, PredictError> {
        Ok(self.lay(schedule, settings)?.fold().instance.lanes.len())
    }

    fn lay<'s>(&self, schedule: &'s Schedule, settings: &Settings) -> Result<Laid<'s>, LayError> {
        let (topology, profile, transport) = (self.topology, self.profile, &settings.transport);
        if settings.fold && schedule.call.ranks >= MANY {
            lay_one_of_each(topology, profile, transport, schedule)
        } else {
            lay_known(topology, profile, transport, schedule, &self.grounds)
        }
    }

    /// The share of each resource's capacity that a schedule uses over its run on the device, on every host: of a schedule
    /// that was predicted, as this proves nothing.
    ///
    /// # Errors
    /// See [`PredictError`].
    pub fn shares(&self, schedule: &Schedule, settings: &Settings) -> Result<Shares, PredictError> {
        let _turn = turn([schedule]);
        let laid = lay(self.topology, self.profile, &settings.transport, schedule)?;
        let folded = laid.fold();
        let stopped = |error| PredictError::Engine { what: describe(schedule), error };
        let outcome = run_steady(&folded.instance).map_err(stopped)?;
        let uses = utilisations(&folded.instance.resources, &outcome.load, outcome.end - SimTime(0));
        Ok(laid.names.iter().zip(&folded.resource).map(|(&name, &place)| (name, uses[place as usize])).collect())
    }

    /// Predicts the same call of several communicators at once, on links that they share: the
    /// ranks of a machine in groups, `call` being given the ranks of one. Time, plan and choice are those of the
    /// slowest group ([`Prediction::group`]).
    ///
    /// # Errors
    /// See [`PredictError`].
    pub fn predict_split(
        &self,
        groups: &[Vec<Rank>],
        call: &dyn Fn(u32) -> Call,
        (algorithm, protocol): (Choice<Algorithm>, Choice<Protocol>),
        settings: &Settings,
    ) -> Result<Prediction, PredictError> {
        Ok(self.predict_groups(groups, call, (algorithm, protocol), settings, None)?.0)
    }

    /// As [`Self::predict_split`], with the share of each resource's capacity that was used over
    /// the simulated run, and, given a part of their rate that blocks keep beside something else,
    /// the prediction for such blocks. Groups may be a part of larger ones ([`Settings::whole`]), whose call is given.
    ///
    /// # Errors
    /// See [`PredictError`].
    pub fn predict_groups(
        &self,
        groups: &[Vec<Rank>],
        call: &dyn Fn(u32) -> Call,
        (algorithm, protocol): (Choice<Algorithm>, Choice<Protocol>),
        settings: &Settings,
        kept: Option<f64>,
    ) -> Result<(Prediction, Shares, Option<Prediction>), PredictError> {
        let views: Vec<Topology> = (groups.iter())
            .map(|group| {
                let gpus: Vec<_> = group.iter().map(|&rank| self.topology.gpu_of(rank)).collect();
                self.topology.placed(&gpus)
            })
            .collect::<Result<_, _>>()?;
        let predictors: Vec<Predictor<'_>> = views.iter().map(|view| self.on(view)).collect();
        let (mut choices, mut schedules) = (Vec::new(), Vec::new());
        let (mut proof, mut proved) = (ProofKind::Proved { races: true }, BTreeSet::new());
        for predictor in &predictors {
            let call = call(settings.whole.map_or(predictor.topology.ranks(), |whole| whole.ranks));
            predictor.check_ranks(&call, settings)?;
            let resolved = if algorithm == Choice::Best || protocol == Choice::Best {
                let alone = predictor.predict(&call, algorithm, protocol, settings)?;
                Resolved {
                    algorithm: alone.algorithm,
                    protocol: alone.protocol,
                    channels: None,
                    layer: alone.layer,
                    instead_of: alone.instead_of,
                }
            } else {
                predictor.resolve(&call, algorithm, protocol, settings)?
            };
            let settings = Settings { channels: settings.channels.or(resolved.channels), ..*settings };
            let schedule = predictor.schedule(&call, resolved.algorithm, resolved.protocol, &settings)?;
            if proved.insert(schedule.identity()) {
                proof = proof.least(predictor.prove(&schedule)?);
            }
            schedules.push(schedule);
            choices.push(resolved);
        }
        let _turn = turn(&schedules);
        let laid = (views.iter().zip(&schedules))
            .map(|(view, schedule)| lay_known(view, self.profile, &settings.transport, schedule, &self.grounds))
            .collect::<Result<Vec<_>, _>>()?;
        let parts: Vec<Part<'_>> = (predictors.iter().zip(&schedules).zip(&laid))
            .map(|((predictor, schedule), laid)| Part { predictor, schedule, switches: laid.switches() })
            .collect();
        let mut laid = join(laid, false);
        // Groups on hosts that are alike run alike: once.
        let plans = schedules.iter().map(|schedule| schedule.plan).collect();
        let key: RunsAs = (laid.identity(), plans, *settings, kept.map(f64::to_bits));
        let known = self.together.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        let (together, shares, slower) = match known {
            Some(known) => known,
            None => {
                let evaluate = |laid: &_| self.evaluate(&parts, proof, laid, settings, &mut Unobserved);
                let (together, uses) = evaluate(&laid)?;
                let slower = match kept {
                    Some(kept) => {
                        laid.slow_blocks(kept);
                        Some(evaluate(&laid)?.0)
                    }
                    None => None,
                };
                let made = (together, uses.iter().map(|u| u.1).collect::<Vec<_>>(), slower);
                self.together.lock().unwrap_or_else(PoisonError::into_inner).insert(key, made.clone());
                made
            }
        };
        let uses = laid.names.iter().copied().zip(shares).collect();
        let Resolved { layer, instead_of, .. } = choices[together.group];
        Ok((Prediction { layer, instead_of, ..together }, uses, slower))
    }

    /// Runs what was laid of one communicator or several, and checks the result against what cannot be. Also gives the
    /// share of each resource's capacity that was used.
    fn evaluate<O: Observer>(
        &self,
        parts: &[Part<'_>],
        proof: ProofKind,
        laid: &Laid<'_>,
        settings: &Settings,
        observer: &mut O,
    ) -> Result<(Prediction, Shares), PredictError> {
        let bounds = parts.iter().map(Part::bound);
        let (Some(first), Some(bound)) = (parts.first(), bounds.max_by_key(|bound| bound.time)) else {
            return Err(ScheduleError::from(CallError::Ranks(0)).into());
        };
        let what = describe(first.schedule);
        let folded = settings.fold.then(|| laid.fold());
        let instance = folded.as_ref().map_or(&laid.instance, |f| &f.instance);
        // Who watches wants to see every round.
        let steady = |i: &Instance<'_>, what| run_steady_told(i, &mut self.teller.begins(what));
        let outcome = if settings.fold { steady(instance, "simulating the call") } else { run(instance, observer) };
        let stopped = |error| PredictError::Engine { what: what.clone(), error };
        let outcome = outcome.map_err(stopped)?;

        let place = |index: usize| folded.as_ref().map_or(index, |f| f.resource[index] as usize);
        // Of resources that are folded into one, the first.
        let mut firsts = vec![0; instance.resources.len()];
        for index in (0..laid.names.len()).rev() {
            firsts[place(index)] = index;
        }
        let name_of = |resource: usize| laid.names[firsts[resource]];
        let moves = parts.iter().any(|part| part.schedule.call.size().0 > 0);
        check_possible(instance, &outcome, &bound, moves, name_of, || what.clone())?;

        let ended = |group: usize| (outcome.job_ends[group], self.profile.kernel(&parts[group].schedule.plan));
        let slowest = (1..parts.len()).fold(0, |last, group| if ended(group) > ended(last) { group } else { last });
        let (Part { predictor, schedule, .. }, ends) = (&parts[slowest], ended(slowest).1);
        let (algorithm, protocol) = (schedule.plan.algorithm, schedule.plan.protocol);
        let work = Cell::new(outcome.work);
        let again = |i: &Instance<'_>| steady(i, LOOP).inspect(|outcome| work.set(work.get() + outcome.work));
        let (kernel, apart) = kernel_time(instance, &outcome, ends, settings, (ROUNDS, &again)).map_err(stopped)?;
        let kernel = kernel.max(bound.time);
        let beyond: Beyond = parts.iter().map(|part| part.beyond(settings)).collect();
        let uses = utilisations(&instance.resources, &outcome.load, outcome.end - SimTime(0));
        let shares = laid.names.iter().enumerate().map(|(index, &name)| (name, uses[place(index)])).collect();
        let busy = Busy::of(self.topology, uses.iter().enumerate().map(|(resource, &used)| (name_of(resource), used)));
        let ranks_and_blocks = (schedule.call.ranks, schedule.plan.blocks());
        let timed = predictor.timed(kernel, ranks_and_blocks, (protocol, busy, &beyond), settings);
        let lanes = |instance: &Instance<'_>| instance.lanes.iter().map(|lane| lane.multiplicity).sum::<u64>();
        let nvls = matches!(schedule.plan.algorithm, Algorithm::Nvls | Algorithm::NvlsTree);
        let registered = (nvls && settings.registered).then_some(Warning::RegisteredNvlsNotModelled);
        let prediction = Prediction {
            algorithm,
            protocol,
            layer: None,
            tuned_channels: None,
            instead_of: None,
            plan: schedule.plan,
            time: timed.time,
            kernel,
            issue: timed.issue,
            low: timed.low.max(bound.time),
            high: timed.high,
            beyond,
            messages: outcome.messages,
            events: outcome.events,
            work: work.get(),
            folded: (lanes(instance), instance.lanes.len()),
            apart,
            grown: None,
            group: slowest,
            proof,
            bound,
            busiest: busiest_links(&uses, name_of),
            lane_utilisation: busy.lane,
            proxy_utilisation: busy.proxy,
            memory_utilisation: busy.memory,
            warnings: laid.congested.map(|link| self.congestion(link)).into_iter().chain(registered).collect(),
            trace_hash: outcome.trace_hash,
            schedule_hash: schedule.identity(),
        };
        Ok((prediction, shares))
    }

    /// How a schedule goes beyond the profile, but for switches that reduce.
    pub(super) fn beyond_of(&self, schedule: &Schedule, settings: &Settings) -> Beyond {
        let (call, plan) = (&schedule.call, &schedule.plan);
        let measured = self.profile.beyond(plan.algorithm, plan.protocol, call);
        [self.beyond(call.ranks, settings.launch), measured].into_iter().collect()
    }

    /// What is left out where many NICs send through a link.
    pub(super) fn congestion(&self, link: LinkId) -> Warning {
        let (from, to) = self.topology.ends(link);
        let port = format!("{} > {}", self.topology.vertex(from).name, self.topology.vertex(to).name);
        Warning::CongestionNotModelled(port)
    }
}

/// A communicator, of those that run at once.
struct Part<'p> {
    /// On the machine as it sees it.
    predictor: &'p Predictor<'p>,
    schedule: &'p Schedule,
    /// See [`Laid::switches`].
    switches: [bool; 2],
}

impl Part<'_> {
    /// The time below which it cannot be.
    fn bound(&self) -> Bound {
        bounds::bandwidth(self.predictor.topology, &self.schedule.call, self.switches != [false; 2])
    }

    /// How it goes beyond the profile.
    fn beyond(&self, settings: &Settings) -> Beyond {
        let mut beyond = self.predictor.beyond_of(self.schedule, settings);
        let (nvswitch, sharp) = self.predictor.profile.switches_measured();
        if self.switches.into_iter().zip([nvswitch, sharp]).any(|(goes, measured)| goes && !measured) {
            beyond.insert(Reason::Switches);
        }
        beyond
    }
}

/// The four busiest links, by how much each resource was used.
fn busiest_links(uses: &[f64], name_of: impl Fn(usize) -> ResourceName) -> Vec<LinkUse> {
    let link = |(resource, &utilisation): (usize, &f64)| match name_of(resource) {
        ResourceName::Link(link) => Some(LinkUse { link, utilisation }),
        _ => None,
    };
    let mut links: Vec<LinkUse> = uses.iter().enumerate().filter_map(link).collect();
    links.sort_by(|a, b| b.utilisation.total_cmp(&a.utilisation));
    links.truncate(4);
    links
}

/// What is simulated where some ranks are done before others.
const LOOP: &str = "simulating the call in a loop";

/// Ranks from which on hosts are told apart before they are laid: fewer are laid sooner, once for all sizes.
const MANY: u32 = 1024;

/// Workers, with their ports, from which on calls run one at a time: 0.3 to 0.5 GiB. The largest that are simulated take
/// up to 2 GiB, and threads that each have one would need as much again each.
const LARGE: u64 = 1_500_000;
/// Whose turn it is among large calls.
static TURN: Mutex<()> = Mutex::new(());

/// Waits for other large calls to end, where one is to be laid.
fn turn<'s>(schedules: impl IntoIterator<Item = &'s Schedule>) -> Option<MutexGuard<'static, ()>> {
    // Ranks have about as many.
    let size = |schedule: &Schedule| {
        let first = schedule.workers().take_while(|of| of.0 == Rank(0));
        let ports = first.map(|(.., worker)| (1 + worker.recv.len() + worker.send.len()) as u64);
        ports.sum::<u64>() * u64::from(schedule.call.ranks)
    };
    let large = schedules.into_iter().map(size).sum::<u64>() >= LARGE;
    large.then(|| TURN.lock().unwrap_or_else(PoisonError::into_inner))
}

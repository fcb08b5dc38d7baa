//! Several collectives of one communicator in one group (`ncclGroupStart` to `ncclGroupEnd`): one kernel.
//!
//! Calls of one collective, type and operation whose traffic is within a factor of four share NCCL's choice, made for
//! all their bytes ([`shared_choices`]). The kinds of calls come in the order of their largest traffic, and of one kind
//! the smallest first. The channels are then dealt to the calls one after another ([`deal`]), and each block does what
//! it has of each, in that order. The channels of NVLS are dealt for themselves, and each call by CollNet has all.
//! Left out: that NCCL makes several kernels where a group has more work than one is told of, and what the host takes
//! to plan a group.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::busy::Busy;
use super::error::PredictError;
use super::prediction::Warning;
use super::predictor::Predictor;
use super::proof::ProofKind;
use super::settings::{Choice, Settings};
use super::time::{ROUNDS, check_possible, kernel_time, utilisations};
use crate::bounds;
use crate::call::Call;
use crate::collective::{Algorithm, Protocol};
use crate::domain::{Beyond, Reason};
use crate::engine::run;
use crate::ids::{ChannelId, Rank};
use crate::nccl::Limits;
use crate::nccl::cost::place;
use crate::nccl::dealing::{Share, deal, evenly};
use crate::nccl::plan::{Dealing, Dealt, Plan};
use crate::nccl::rules::{Deals, Rules};
use crate::nccl::{Layer, shared_choices};
use crate::network::{Laid, join, lay};
use crate::schedule::{Schedule, ScheduleError, valid_algorithms};
use crate::units::{SimDuration, SimTime};

/// Calls that a group may have.
pub const MOST_CALLS: usize = 512;
/// Slices that all calls of a group may send, about: nothing is folded, and more take minutes.
const MOST_SLICES: u64 = 2_000_000;

/// One call of a group.
#[derive(Clone, PartialEq, Debug)]
pub struct GroupCall {
    /// Which of the choices, from 0: calls with the same number share it.
    pub choice: usize,
    /// NCCL's, or the user's.
    pub algorithm: Algorithm,
    /// NCCL's, or the user's.
    pub protocol: Protocol,
    /// Who decided, if not the user.
    pub layer: Option<Layer>,
    /// Its channels, and its elements on them.
    pub dealt: Dealt,
}

/// The prediction of a group.
#[derive(Clone, PartialEq, Debug)]
pub struct GroupPrediction {
    /// By call, in the order given.
    pub calls: Vec<GroupCall>,
    /// Time of the group as a loop of them would show it.
    pub time: SimDuration,
    /// Ends of the 90% interval.
    pub low: SimDuration,
    /// See `low`.
    pub high: SimDuration,
    /// Time on the device.
    pub kernel: SimDuration,
    /// What bounds it, as [`super::Prediction::bound_by`] says it.
    pub bound: &'static str,
    /// Share of the busiest resource that it uses.
    pub busy: f64,
    /// The calls one after another instead, each as a kernel of its own.
    pub apart: SimDuration,
    /// How it goes beyond what the profile was made with.
    pub beyond: Beyond,
    /// How the schedules were proved: the least of them.
    pub proof: ProofKind,
    /// Events handled.
    pub events: u64,
    /// What is left out where it may matter.
    pub warnings: Vec<Warning>,
}

impl Predictor<'_> {
    /// Predicts calls in one group.
    ///
    /// # Errors
    /// See [`PredictError`]; sends and receives, algorithms that NCCL has not, versions before 2.22, calls without
    /// elements or of different ranks, and groups too large are [`PredictError::NoGroup`].
    pub fn predict_group(
        &self,
        calls: &[Call],
        choice: (Choice<Algorithm>, Choice<Protocol>),
        settings: &Settings,
    ) -> Result<GroupPrediction, PredictError> {
        let ranks = self.check_group(calls, choice, settings)?;
        let (chosen, mut order) = self.choose(calls, choice, settings)?;
        let several = self.hosts(ranks) > 1;
        order.sort_by_key(|&c| Kind::of(chosen[c].algorithm, several));
        let (group, plans) = self.cut_group(calls, &chosen, &order, settings);
        let slices: u64 = calls.iter().zip(&plans).map(|(call, plan)| slices(call, plan)).fold(0, u64::saturating_add);
        if slices > MOST_SLICES {
            return Err(PredictError::NoGroup(format!(
                "they send about {slices} slices, more than {MOST_SLICES}: take fewer bytes or ranks"
            )));
        }
        let most = u32::try_from(MOST_SLICES / slices.max(1)).unwrap_or(u32::MAX);
        let rounds = (most / 2 * 2).clamp(2, ROUNDS);
        let GroupTime { kernel, proof, events, busy, congested } =
            self.run_group(calls, &order, &plans, settings, rounds)?;
        let of_calls = group.iter().zip(calls).map(|(c, call)| self.profile.beyond(c.algorithm, c.protocol, call));
        let mut beyond: Beyond = of_calls.chain([self.beyond(ranks, settings.launch)]).collect();
        // That of the call with the most to do.
        let main =
            group.iter().zip(calls).max_by_key(|(_, call)| call.size()).map_or(Protocol::Simple, |c| c.0.protocol);
        let (nvswitch, sharp) = self.profile.switches_measured();
        let unmeasured = group.iter().any(|c| match c.algorithm {
            Algorithm::Nvls => !nvswitch || several && !sharp,
            Algorithm::NvlsTree => !nvswitch,
            _ => Kind::of(c.algorithm, several) == Kind::Collnet && !sharp,
        });
        if unmeasured {
            beyond.insert(Reason::Switches);
        }
        let channels = plans.iter().map(|plan| plan.used().1).max().unwrap_or(0);
        let timed = self.timed(kernel, (ranks, channels), (main, busy, &beyond), settings);
        Ok(GroupPrediction {
            calls: group,
            time: timed.time,
            low: timed.low,
            high: timed.high,
            kernel,
            bound: timed.bound,
            busy: busy.most(),
            apart: self.apart(calls, choice, settings)?,
            beyond,
            proof,
            events,
            warnings: congested.into_iter().collect(),
        })
    }

    /// Whether calls are a group that is modelled; its ranks.
    fn check_group(
        &self,
        calls: &[Call],
        (algorithm, protocol): (Choice<Algorithm>, Choice<Protocol>),
        settings: &Settings,
    ) -> Result<u32, PredictError> {
        let no = |why: String| Err(PredictError::NoGroup(why));
        let Some(first) = calls.first() else { return no("it has no calls".to_owned()) };
        if calls.len() > MOST_CALLS {
            return no(format!("{} calls are more than the {MOST_CALLS} that are dealt at once", calls.len()));
        }
        let version = self.version(settings);
        if Rules::of(version).dealing.deals != Deals::Traffic {
            return no(format!(
                "NCCL {version} deals channels to them by a rule that is not modelled; 2.22 and newer are"
            ));
        }
        if let Choice::Forced(a) = algorithm
            && place(a, Protocol::Simple).is_none()
        {
            return no(format!("NCCL has no {a}"));
        }
        for call in calls {
            self.check_ranks(call, settings)?;
            call.check().map_err(ScheduleError::from)?;
            if call.count == 0 || call.ranks != first.ranks {
                return no("each needs elements, and all the same ranks".to_owned());
            }
            if valid_algorithms(call.collective) == [Algorithm::Direct] {
                return no(format!("{} is sends and receives, which NCCL groups by another rule", call.collective));
            }
        }
        if algorithm == Choice::Best || protocol == Choice::Best {
            return no("`best` would need a forecast of every combination: name an algorithm or take auto".to_owned());
        }
        Ok(first.ranks)
    }

    /// Deals the channels to calls of each kind in this order, and cuts each call for those that it has.
    fn cut_group(
        &self,
        calls: &[Call],
        chosen: &[Chosen],
        order: &[usize],
        settings: &Settings,
    ) -> (Vec<GroupCall>, Vec<Plan>) {
        let (ranks, version) = (calls[0].ranks, self.version(settings));
        let (all, several) = (self.limits(ranks, settings).channels, self.hosts(ranks) > 1);
        let kind_of = |c: usize| Kind::of(chosen[c].algorithm, several);
        let mut planned: Vec<Option<(GroupCall, Plan)>> = vec![None; calls.len()];
        for kind in [Kind::Plain, Kind::Nvls, Kind::Collnet] {
            let of_kind: Vec<usize> = order.iter().copied().filter(|&c| kind_of(c) == kind).collect();
            let shares: Vec<Share> = of_kind
                .iter()
                .map(|&c| Share::new(&calls[c], chosen[c].protocol, chosen[c].channels, version))
                .collect();
            let most = of_kind.iter().map(|&c| chosen[c].channels).max().unwrap_or(1);
            let channels = if kind == Kind::Plain { all.max(most) } else { most };
            let dealt = match kind {
                Kind::Collnet => shares.iter().map(evenly).collect(),
                _ => deal(&shares, channels, version),
            };
            for (&index, dealt) in of_kind.iter().zip(dealt) {
                let Chosen { choice, algorithm, protocol, layer, threads, .. } = chosen[index];
                let limits = Limits {
                    channels: dealt.last - dealt.first + 1,
                    exact_channels: true,
                    ..self.limits_of(&calls[index], algorithm, protocol, settings)
                };
                let plan = Plan::new(&calls[index], algorithm, protocol, &limits);
                let plan = Plan {
                    channels,
                    threads,
                    dealing: Dealing::ByTraffic(dealt),
                    per_channel: dealt.most(&calls[index]),
                    ..plan
                };
                planned[index] = Some((GroupCall { choice, algorithm, protocol, layer, dealt }, plan));
            }
        }
        planned.into_iter().flatten().unzip()
    }

    /// Time of the calls one after another, each as a kernel of its own.
    fn apart(
        &self,
        calls: &[Call],
        (algorithm, protocol): (Choice<Algorithm>, Choice<Protocol>),
        settings: &Settings,
    ) -> Result<SimDuration, PredictError> {
        let mut apart = SimDuration::ZERO;
        let mut known: FxHashMap<&Call, SimDuration> = FxHashMap::default();
        for call in calls {
            let alone = match known.get(call) {
                Some(&time) => time,
                None => self.predict(call, algorithm, protocol, settings)?.time,
            };
            known.insert(call, alone);
            apart += alone;
        }
        if settings.cold {
            // The queue is empty before the first one only.
            let (first, gap) = (self.profile.first_launch(), self.profile.gap(settings.launch));
            let others = calls.len() as u64 - 1;
            apart = SimDuration((apart + gap.times(others)).0.saturating_sub(first.times(others).0));
        }
        Ok(apart)
    }

    /// NCCL's choices by call, and the order in which it deals channels.
    fn choose(
        &self,
        calls: &[Call],
        (algorithm, protocol): (Choice<Algorithm>, Choice<Protocol>),
        settings: &Settings,
    ) -> Result<(Vec<Chosen>, Vec<usize>), PredictError> {
        let mut chosen = vec![None; calls.len()];
        let mut order = Vec::new();
        let alike = |a: &Call, b: &Call| (a.collective, a.op, a.dtype) == (b.collective, b.op, b.dtype);
        let version = self.version(settings);
        let traffic = |call: &Call| Share::new(call, Protocol::Simple, 1, version).traffic();
        let largest = |of: &Call| calls.iter().filter(|call| alike(call, of)).map(traffic).max();
        let mut shared = shared_choices(calls);
        shared.sort_by_key(|members| std::cmp::Reverse(largest(&calls[members[0]])));
        // A pair that is forced needs no choice, as in a call alone.
        let pair = match (algorithm, protocol) {
            (Choice::Forced(a), Choice::Forced(p)) => Some((a, p)),
            _ => None,
        };
        let number = u32::try_from(calls.len()).unwrap_or(u32::MAX);
        for (choice, members) in shared.into_iter().enumerate() {
            let whole = Call { count: members.iter().map(|&m| calls[m].count).sum(), ..calls[members[0]].clone() };
            let (algorithm, protocol, layer, channels) = match pair {
                Some((a, p)) => {
                    let graphs = self.graph(whole.ranks, settings);
                    (a, p, None, self.model(&graphs, settings).call_channels(a, p, whole.size().0))
                }
                None => {
                    let decision = self.decide_among(&whole, number, algorithm, protocol, settings)?;
                    (decision.algorithm, decision.protocol, Some(decision.layer), decision.channels)
                }
            };
            self.check_machine(&whole, algorithm, settings)?;
            let plan = Plan::new(&whole, algorithm, protocol, &self.limits_of(&whole, algorithm, protocol, settings));
            let channels = settings.channels.unwrap_or(channels).max(1);
            // Registered buffers take fewer.
            let channels = if plan.direct { channels.min(plan.channels) } else { channels };
            for &member in &members {
                chosen[member] = Some(Chosen { choice, algorithm, protocol, layer, channels, threads: plan.threads });
            }
            order.extend(members);
        }
        Ok((chosen.into_iter().flatten().collect(), order))
    }

    /// Lays all calls, each block doing one after the other, and runs them, in `rounds` where ranks end apart.
    fn run_group(
        &self,
        calls: &[Call],
        order: &[usize],
        plans: &[Plan],
        settings: &Settings,
        rounds: u32,
    ) -> Result<GroupTime, PredictError> {
        let mut schedules = Vec::new();
        let mut proof = ProofKind::Proved { races: true };
        for &index in order {
            let schedule =
                Schedule::new(calls[index].clone(), plans[index], &self.order(calls[index].ranks, settings))?;
            proof = proof.least(self.prove(&schedule)?);
            schedules.push(schedule);
        }
        let laid = (schedules.iter())
            .map(|schedule| lay(self.topology, self.profile, &settings.transport, schedule))
            .collect::<Result<Vec<_>, _>>()?;
        let blocks: Vec<(Rank, ChannelId)> = laid
            .iter()
            .flat_map(|laid| laid.wiring.workers.iter().map(|worker| (worker.rank, worker.channel)))
            .collect();
        let Laid { mut instance, names, congested, .. } = join(laid, true);
        // One kernel a rank; of each call a block does what it has, then what it has of the next.
        instance.kernels.truncate(calls[0].ranks as usize);
        let mut first: BTreeMap<(Rank, ChannelId), u32> = BTreeMap::new();
        for (lane, (rank, channel)) in instance.lanes.iter_mut().zip(blocks) {
            (lane.kernel, lane.block, lane.turn) = (rank.0, channel.0, lane.job);
            // Blocks start apart once.
            if *first.entry((rank, channel)).or_insert(lane.job) != lane.job {
                lane.at = SimTime(0);
            }
        }
        let ends = plans.iter().map(|plan| self.profile.kernel(plan)).max().unwrap_or_default();
        instance.kernels.iter_mut().for_each(|kernel| kernel.gap = ends);
        let what = || format!("a group of {} calls", calls.len());
        let stopped = |error| PredictError::Engine { what: what(), error };
        let outcome = run(&instance, &mut self.teller.begins("simulating the group")).map_err(stopped)?;
        let several = self.hosts(calls[0].ranks) > 1;
        let in_switches = |plan: &Plan| Kind::of(plan.algorithm, several) != Kind::Plain;
        let bound = (calls.iter().zip(plans))
            .map(|(call, plan)| bounds::bandwidth(self.topology, call, in_switches(plan)))
            .max_by_key(|bound| bound.time)
            .unwrap_or_else(|| bounds::Bound { time: SimDuration::ZERO, what: String::new() });
        check_possible(&instance, &outcome, &bound, true, |resource| names[resource], what)?;
        let uses = utilisations(&instance.resources, &outcome.load, outcome.end - SimTime(0));
        let busy = Busy::of(self.topology, names.iter().copied().zip(uses));
        let kernel = kernel_time(
            &instance,
            &outcome,
            ends,
            settings,
            (rounds, &|i| run(i, &mut self.teller.begins("simulating the group in a loop"))),
        )
        .map_err(stopped)?
        .0
        .max(bound.time);
        let congested = congested.map(|link| self.congestion(link));
        Ok(GroupTime { kernel, proof, events: outcome.events, busy, congested })
    }
}

/// What a run came to.
struct GroupTime {
    kernel: SimDuration,
    proof: ProofKind,
    events: u64,
    busy: Busy,
    congested: Option<Warning>,
}

/// Slices that a call sends, about: as often as rings pass them on.
fn slices(call: &Call, plan: &Plan) -> u64 {
    let (first, end) = plan.used();
    let chunks = call.count / plan.chunk.max(1) + u64::from(end - first);
    chunks.saturating_mul(2 * u64::from(call.ranks) * u64::from(plan.slices))
}

/// A choice as dealing needs it.
#[derive(Clone, Copy)]
struct Chosen {
    choice: usize,
    algorithm: Algorithm,
    protocol: Protocol,
    layer: Option<Layer>,
    channels: u32,
    threads: u32,
}

/// Calls that share out channels among each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Plain,
    Nvls,
    Collnet,
}

impl Kind {
    /// NCCL counts NVLS over several hosts, which reduces in the network, as CollNet.
    fn of(algorithm: Algorithm, several_hosts: bool) -> Self {
        match algorithm {
            Algorithm::Nvls if several_hosts => Self::Collnet,
            Algorithm::Nvls | Algorithm::NvlsTree => Self::Nvls,
            Algorithm::CollnetDirect | Algorithm::CollnetChain => Self::Collnet,
            _ => Self::Plain,
        }
    }
}

//! What NCCL could do for each call, with the time it takes: predicted, and measured where somebody has.

use std::collections::BTreeMap;
use std::sync::Arc;

use collcast_sim::collective::Collective;
use collcast_sim::engine::Unobserved;
use collcast_sim::nccl::Plan;
use collcast_sim::predict::{Choice, PredictError, Prediction, Predictor, Settings};
use collcast_sim::schedule::Call;
use nalgebra::DMatrix;
use rayon::prelude::*;

use super::communicator::Group;
use super::measured::Measured;
use super::request::ALL_SIZES;
use super::tuned::{Candidate, Own, Pair, Tuned};
use crate::error::Error;
use crate::watch::Watch;

/// A call whose candidates are to be timed.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) call: Call,
    /// Channels that each algorithm and protocol is tried with; none is NCCL's number.
    pub(super) channels: Vec<Option<u32>>,
    pub(super) beyond: bool,
    /// How often a rank makes it in a step; 1 where no step is asked about.
    pub(super) times: u64,
}

/// What times the candidates of one communicator.
pub(super) struct Clock<'s> {
    /// Of the whole machine.
    pub(super) whole: &'s Predictor<'s>,
    /// Of the communicator's ranks alone.
    pub(super) predictor: &'s Predictor<'s>,
    pub(super) group: Group,
    pub(super) settings: Settings,
    pub(super) measured: Measured,
    /// Whether calls are to be measured.
    pub(super) measures: bool,
    /// Whether lists of algorithms are looked for. They hold for all calls, so that all candidates of all sizes count.
    pub(super) lists: bool,
}

/// The calls of a communicator, timed.
pub(super) struct Timed {
    pub(super) calls: Vec<Tuned>,
    /// What was asked about and is left out.
    pub(super) warning: Option<String>,
}

impl Clock<'_> {
    /// Times all candidates of each call, in the order of collectives and sizes. What is too large to be simulated is left
    /// out: a candidate, or the call where that is NCCL's own choice.
    ///
    /// # Errors
    /// What has no forecast, if only since all is too large; [`Error::Cancelled`].
    pub(super) fn time(&self, asked: Vec<Asked>, watch: &Watch) -> Result<Timed, Error> {
        let collectives: Vec<Collective> = asked.iter().map(|a| a.call.collective).collect();
        let own = self.own(&asked)?;
        let parts = watch.parts(asked.len());
        // Large calls first: they take longest.
        let mut order: Vec<(usize, Asked)> = asked.into_iter().enumerate().collect();
        order.sort_by_key(|(_, asked)| std::cmp::Reverse(asked.call.size()));
        let timed = order.into_par_iter().with_max_len(1).map(|(index, asked)| {
            let steps = own.get(&asked.call.collective).cloned().unwrap_or_default();
            let tuned = self.candidates(asked, steps)?;
            parts.done()?;
            Ok((index, tuned))
        });
        let timed = timed.collect::<Result<Vec<(usize, (Option<Tuned>, Vec<PredictError>))>, Error>>()?;
        let (mut calls, mut left_out) = (Vec::new(), Vec::new());
        for (index, (tuned, too_large)) in timed {
            calls.extend(tuned.map(|tuned| (index, tuned)));
            left_out.extend(too_large);
        }
        calls.sort_by_key(|(index, tuned)| {
            let collective = collectives.iter().position(|c| *c == tuned.collective);
            (collective, tuned.call.size(), *index)
        });
        let calls: Vec<Tuned> = calls.into_iter().map(|(_, tuned)| tuned).collect();
        let count = left_out.len();
        match left_out.into_iter().next() {
            Some(first) if calls.iter().all(|call| call.beyond) => Err(first.into()),
            first => Ok(Timed {
                calls,
                warning: first
                    .map(|first| format!("{count} choices are left out, and nothing is advised of them: {first}")),
            }),
        }
    }

    /// What NCCL takes by itself for each collective, over all sizes: looked at between the usual sizes too, since its channels
    /// change there.
    fn own(&self, asked: &[Asked]) -> Result<BTreeMap<Collective, Arc<[Own]>>, PredictError> {
        let mut first: BTreeMap<Collective, &Call> = BTreeMap::new();
        for Asked { call, .. } in asked {
            first.entry(call.collective).or_insert(call);
        }
        let steps = |(collective, like): (Collective, &Call)| {
            let unit = Call { count: 1, ..like.clone() }.size().0;
            let at = |count: u64| -> Result<(u64, (Pair, u32)), PredictError> {
                let call = Call { count, ..like.clone() };
                let chosen = self.predictor.decide(&call, Choice::Auto, Choice::Auto, &self.settings)?;
                Ok((count, ((chosen.algorithm, chosen.protocol), chosen.channels)))
            };
            let mut last = at(1)?;
            let mut own = vec![Own { from: 0, pair: last.1.0, channels: last.1.1 }];
            for size in ALL_SIZES.into_iter().filter(|size| size / unit > 1) {
                let next = at(size / unit)?;
                changes(last, next, &at, &mut |count, (pair, channels)| {
                    own.push(Own { from: count * unit, pair, channels });
                })?;
                last = next;
            }
            Ok((collective, own.into()))
        };
        first.into_par_iter().map(steps).collect()
    }

    /// A call as the communicator makes it, beside the others on its hosts that do the same.
    pub(super) fn forecast(
        &self,
        call: &Call,
        pair: Option<Pair>,
        settings: &Settings,
    ) -> Result<Prediction, PredictError> {
        let choice = pair.map_or((Choice::Auto, Choice::Auto), |(a, p)| (Choice::Forced(a), Choice::Forced(p)));
        match (self.group.together.as_slice(), pair) {
            (several @ [_, _, ..], _) => self.whole.predict_split(several, &|_| call.clone(), choice, settings),
            (_, Some((a, p))) => self.predictor.predict_one(call, a, p, settings, &mut Unobserved),
            (_, None) => self.predictor.predict(call, choice.0, choice.1, settings),
        }
    }

    /// How NCCL cuts a call under a choice.
    ///
    /// # Errors
    /// A call without a schedule.
    pub(super) fn cut(&self, call: &Call, pair: Pair, settings: &Settings) -> Result<Plan, PredictError> {
        Ok(self.predictor.schedule(call, pair.0, pair.1, settings)?.plan)
    }

    /// A call with its candidates, and those that are too large to be simulated; no call where NCCL's own choice is. What
    /// nobody asked about is left out without a word.
    fn candidates(&self, asked: Asked, steps: Arc<[Own]>) -> Result<(Option<Tuned>, Vec<PredictError>), PredictError> {
        let Asked { call, channels, beyond, times: in_step } = asked;
        let Self { predictor, settings, measured, .. } = self;
        let times = |pair, channels, default| measured.times(&call, pair, channels, default);
        let mut left_out = Vec::new();
        let chosen = match self.forecast(&call, None, settings) {
            Ok(chosen) => chosen,
            Err(error) if error.is_too_large() => {
                left_out.extend(Some(error).filter(|_| !beyond));
                return Ok((None, left_out));
            }
            Err(error) => return Err(error),
        };
        let pair = (chosen.algorithm, chosen.protocol);
        let own = settings.channels;
        let decision = predictor.decide(&call, Choice::Auto, Choice::Auto, settings)?;
        let mut candidates = vec![Candidate::new((pair, own), decision.channels, chosen, times(pair, own, true))];
        // What NCCL's table has closed, no tuner opens; a variable that names it could do harm.
        let open =
            |other: Pair| decision.candidates.iter().any(|c| (c.algorithm, c.protocol) == other && c.time_us.is_some());
        for other in predictor.candidates(&call, Choice::Best, Choice::Best, settings) {
            if !open(other) {
                continue;
            }
            for &channels in channels.iter().filter(|&&c| other != pair || c != own) {
                let forced = Settings { channels: channels.or(own), ..*settings };
                let choice = (Choice::Forced(other.0), Choice::Forced(other.1));
                let channels_under = |settings: &Settings| -> Result<u32, PredictError> {
                    Ok(predictor.decide(&call, choice.0, choice.1, settings)?.channels)
                };
                let measured = times(other, forced.channels, false);
                if beyond && !self.lists && measured.is_none() {
                    continue;
                }
                // NCCL's variables bound the channels of a communicator, so more than it takes for a call by itself
                // cannot be measured. A table would give them to it.
                if let Some(told) = channels
                    && (self.measures || measured.is_some())
                    && channels_under(settings)? <= told
                {
                    continue;
                }
                let most = channels_under(&forced)?;
                match self.forecast(&call, Some(other), &forced) {
                    Ok(prediction) => {
                        candidates.push(Candidate::new((other, forced.channels), most, prediction, measured));
                    }
                    Err(error) if error.is_too_large() => left_out.extend(Some(error).filter(|_| !beyond)),
                    Err(error) => return Err(error),
                }
            }
        }
        let (collective, size_bytes, launch) = (call.collective, call.size().0, settings.launch);
        let communicator = self.group.communicator.clone();
        let covariance = DMatrix::zeros(candidates.len(), candidates.len());
        let tuned = Tuned {
            communicator,
            collective,
            size_bytes,
            call,
            launch,
            candidates,
            default: 0,
            own: steps,
            beyond,
            in_step,
            advice: None,
            covariance,
        };
        Ok((Some(tuned), left_out))
    }
}

/// Hands on where between two counts NCCL changes its choice. Where it is the same for both, it is for those between.
fn changes<K: Copy + PartialEq, E>(
    (below, from): (u64, K),
    (above, to): (u64, K),
    at: &impl Fn(u64) -> Result<(u64, K), E>,
    found: &mut impl FnMut(u64, K),
) -> Result<(), E> {
    if from == to {
        return Ok(());
    }
    if above - below == 1 {
        found(above, to);
        return Ok(());
    }
    let middle = at(below.midpoint(above))?;
    changes((below, from), middle, at, found)?;
    changes(middle, (above, to), at, found)
}

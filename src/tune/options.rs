//! What NCCL could do for each call, with the time it takes: predicted, and measured where somebody has.

use collcast_sim::collective::Collective;
use collcast_sim::engine::{EngineError, Unobserved};
use collcast_sim::nccl::Plan;
use collcast_sim::predict::{Choice, PredictError, Prediction, Predictor, Settings};
use collcast_sim::schedule::Call;
use rayon::prelude::*;

use super::communicator::Group;
use super::measured::Measured;
use super::tuned::{Candidate, Pair, Tuned};
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

impl Clock<'_> {
    /// Times all candidates of each call, in the order of collectives and sizes.
    ///
    /// # Errors
    /// What has no forecast; [`Error::Cancelled`].
    pub(super) fn time(&self, asked: Vec<Asked>, watch: &Watch) -> Result<Vec<Tuned>, Error> {
        let collectives: Vec<Collective> = asked.iter().map(|a| a.call.collective).collect();
        let parts = watch.parts(asked.len());
        // Large calls first: they take longest.
        let mut order: Vec<(usize, Asked)> = asked.into_iter().enumerate().collect();
        order.sort_by_key(|(_, asked)| std::cmp::Reverse(asked.call.size()));
        let timed = order.into_par_iter().with_max_len(1).map(|(index, asked)| {
            let tuned = self.candidates(asked)?;
            parts.done()?;
            Ok((index, tuned))
        });
        let mut timed = timed.collect::<Result<Vec<(usize, Tuned)>, Error>>()?;
        timed.sort_by_key(|(index, tuned)| {
            let collective = collectives.iter().position(|c| *c == tuned.collective);
            (collective, tuned.call.size(), *index)
        });
        Ok(timed.into_iter().map(|(_, tuned)| tuned).collect())
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

    fn candidates(&self, Asked { call, channels, beyond, times: in_step }: Asked) -> Result<Tuned, PredictError> {
        let Self { predictor, settings, measured, .. } = self;
        let times = |pair, channels, default| measured.times(&call, pair, channels, default);
        let chosen = self.forecast(&call, None, settings)?;
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
                let prediction = match self.forecast(&call, Some(other), &forced) {
                    Ok(prediction) => prediction,
                    // What nobody asked about is not worth an answer that takes too long: nothing is advised of it.
                    Err(PredictError::Engine { error: EngineError::TooLong, .. }) if beyond => continue,
                    Err(error) => return Err(error),
                };
                candidates.push(Candidate::new((other, forced.channels), most, prediction, measured));
            }
        }
        let (collective, size_bytes, launch) = (call.collective, call.size().0, settings.launch);
        let communicator = self.group.communicator.clone();
        Ok(Tuned {
            communicator,
            collective,
            size_bytes,
            call,
            launch,
            candidates,
            default: 0,
            beyond,
            in_step,
            advice: None,
        })
    }
}

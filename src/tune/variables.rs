//! Environment variables that help: they hold for all sizes of a collective, so most advice has none.

use collcast_sim::collective::{Algorithm, Collective, Protocol};
use collcast_sim::nccl::{Environment, FUNCTIONS, Rules, Selection};
use collcast_sim::predict::{Choice, Predictor, Settings};
use collcast_sim::schedule::Call;
use serde::Serialize;

use super::tuned::{Candidate, Pair, Tuned};
use crate::error::Error;

/// What a variable may cost at a size where it does not help: less than two runs differ by.
pub(super) const TOLERANCE: f64 = 0.01;
/// Total gains that are the same but for rounding.
const ALIKE: f64 = 1e-9;

/// Variables with what they do.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Variables {
    /// `NCCL_ALGO=...`, `NCCL_PROTO=...`; none where none help.
    pub lines: Vec<String>,
    /// What they do, by collective.
    pub effects: Vec<Effect>,
    /// Why there are none.
    pub why: String,
}

impl Variables {
    pub(super) fn none(why: &str) -> Self {
        Self { why: why.to_owned(), ..Self::default() }
    }
}

/// What the variables do to one collective.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Effect {
    /// What.
    pub collective: Collective,
    /// What it is left.
    pub lists: Lists,
    /// Sizes whose choice changes for the better beyond doubt.
    pub sizes: usize,
    /// The largest gain among them, as a fraction of what NCCL's choice takes.
    pub gain: f64,
}

/// Algorithms and protocols that a collective is left; an empty list leaves all, and is not written.
pub type Lists = (Vec<Algorithm>, Vec<Protocol>);

/// Finds lists of algorithms and protocols that beat NCCL's free choice at some size of a
/// collective beyond doubt, and lose at none.
///
/// A list never names LL128: that turns it on in every communicator of the process, whatever NCCL's own rule says of its paths
/// and GPUs (`protoEnable` of `src/graph/tuning.cc`). `^Simple` and the like do so too, so lists are positive.
///
/// # Errors
/// The settings found would stop NCCL: a fault of this search.
pub(super) fn find(calls: &[Tuned], predictor: &Predictor<'_>, settings: &Settings) -> Result<Variables, Error> {
    if !Rules::of(predictor.version(settings)).strict_lists {
        return Ok(Variables::none("lists by collective need NCCL 2.24; use the tuner table"));
    }
    if settings.nccl.algorithms != Selection::default() || settings.nccl.protocols != Selection::default() {
        let why = "lists would take the place of NCCL_ALGO and NCCL_PROTO as given; use the tuner table";
        return Ok(Variables::none(why));
    }
    if calls.iter().all(|call| call.advice.is_none()) {
        return Ok(Variables::none("nothing is to be gained beyond doubt"));
    }
    let search = Search { calls, predictor, settings };
    let mut found = Variables::none(
        "no value of NCCL_ALGO or NCCL_PROTO helps one size without loss at another; use the tuner table",
    );
    for of in search.collectives() {
        found.effects.extend(search.best(of)?);
    }
    let lists: Vec<_> = found.effects.iter().map(|effect| (effect.collective, &effect.lists)).collect();
    found.lines = sections(&lists);
    if found.lines.is_empty() || search.together(&found.lines)? {
        Ok(found)
    } else {
        Ok(Variables::none("lists that help one collective harm another; use the tuner table"))
    }
}

/// What lists are judged with.
struct Search<'s> {
    calls: &'s [Tuned],
    predictor: &'s Predictor<'s>,
    settings: &'s Settings,
}

/// What lists do to the sizes of a collective.
struct Judged {
    /// Sum of the logarithms of what is saved.
    total: f64,
    /// Sizes that gain beyond doubt.
    sizes: usize,
    /// The largest gain among them.
    most: f64,
}

impl Search<'_> {
    fn collectives(&self) -> impl Iterator<Item = &[Tuned]> {
        self.calls.chunk_by(|a, b| a.collective == b.collective)
    }

    /// The lists of one collective that gain most, of equal ones those that forbid least.
    fn best(&self, of: &[Tuned]) -> Result<Option<Effect>, Error> {
        let collective = of[0].collective;
        let pairs = || of.iter().flat_map(|call| call.candidates.iter().map(|c| c.pair));
        let algorithms = distinct(pairs().map(|pair| pair.0));
        let protocols = distinct(pairs().map(|pair| pair.1).filter(|&protocol| protocol != Protocol::Ll128));
        let mut best: Option<(f64, usize, Effect)> = None;
        for (forbidden, algorithms) in subsets(&algorithms) {
            for (also, protocols) in subsets(&protocols) {
                let lists = (algorithms.clone(), protocols.clone());
                let told = self.told(&sections(&[(collective, &lists)]))?;
                let Some(Judged { total, sizes, most }) = self.judge(of, &told) else { continue };
                let forbidden = forbidden + also;
                let better = (best.as_ref())
                    .is_none_or(|(most, least, _)| total > most + ALIKE || total > most - ALIKE && forbidden < *least);
                if sizes > 0 && better {
                    best = Some((total, forbidden, Effect { collective, lists, sizes, gain: most }));
                }
            }
        }
        Ok(best.map(|(.., effect)| effect))
    }

    /// Whether variables leave every collective a choice, and slow none.
    fn together(&self, lines: &[String]) -> Result<bool, Error> {
        let told = self.told(lines)?;
        let open = |collective| {
            self.calls.iter().all(|tuned| {
                let call = Call::of_size(collective, tuned.call.ranks, tuned.call.size(), tuned.call.dtype);
                self.predictor.decide(&call, Choice::Auto, Choice::Auto, &told).is_ok()
            })
        };
        let harmless = self.collectives().all(|of| self.judge(of, &told).is_some());
        Ok(harmless && FUNCTIONS.iter().all(|&(_, collective)| open(collective)))
    }

    /// Settings with variables on top.
    fn told(&self, lines: &[String]) -> Result<Settings, Error> {
        let pair = |line: &String| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        let pairs: Vec<(String, String)> = lines.iter().filter_map(pair).collect();
        let added = Environment::parse(&pairs, self.predictor.version(self.settings))
            .map_err(|e| Error::usage(format!("the settings found are refused: {e}"), "please report this"))?;
        let mut told = *self.settings;
        told.nccl.algorithms = added.settings.algorithms;
        told.nccl.protocols = added.settings.protocols;
        Ok(told)
    }

    /// None where a size loses, has no choice left, or would take what was not timed.
    fn judge(&self, of: &[Tuned], told: &Settings) -> Option<Judged> {
        let mut judged = Judged { total: 0.0, sizes: 0, most: 0.0 };
        for tuned in of {
            let decision = self.predictor.decide(&tuned.call, Choice::Auto, Choice::Auto, told).ok()?;
            let pair: Pair = (decision.algorithm, decision.protocol);
            let default = tuned.default_candidate();
            if tuned.not_modelled() == Some(pair) || default.pair == pair {
                continue;
            }
            let takes = |c: &&Candidate| c.pair == pair && c.channels == default.channels;
            let candidate = tuned.candidates.iter().find(takes)?;
            if tuned.measured() && candidate.measured.is_none() {
                return None;
            }
            // Measured times say nothing sure of sizes that nobody asked about.
            let forecast = 1.0 - candidate.predicted_us / default.predicted_us;
            let gain = tuned.gain(candidate).min(if tuned.beyond { forecast } else { 1.0 });
            // Nor is a loss to be likely: the 90% interval ends above it.
            if gain.min(candidate.belief.interval().0) < -TOLERANCE {
                return None;
            }
            judged.total -= (1.0 - gain).ln();
            if !tuned.beyond && candidate.belief.is_certain() {
                judged.sizes += 1;
                judged.most = judged.most.max(gain);
            }
        }
        Some(judged)
    }
}

fn distinct<T: Ord>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut items: Vec<T> = items.collect();
    items.sort_unstable();
    items.dedup();
    items
}

/// An empty list, which forbids nothing, and all lists of some of the items, each with how much it forbids: of all of them still
/// what only other communicators have.
fn subsets<T: Copy>(items: &[T]) -> Vec<(usize, Vec<T>)> {
    let of = |mask: usize| {
        let list: Vec<T> = (0..items.len()).filter(|bit| mask >> bit & 1 == 1).map(|bit| items[bit]).collect();
        (if list.is_empty() { 0 } else { 1 + items.len() - list.len() }, list)
    };
    (0..1 << items.len()).map(of).collect()
}

/// The variables of lists by collective.
fn sections(lists: &[(Collective, &Lists)]) -> Vec<String> {
    let line = |name: &str, names: &dyn Fn(&Lists) -> Vec<&'static str>| {
        let section = |(collective, lists): &(Collective, &Lists)| {
            let names = names(lists);
            (!names.is_empty()).then(|| format!("{}:{}", function(*collective), names.join(",")))
        };
        let sections: Vec<String> = lists.iter().filter_map(section).collect();
        (!sections.is_empty()).then(|| format!("{name}={}", sections.join(";")))
    };
    let algorithms = line("NCCL_ALGO", &|lists| lists.0.iter().map(|&algorithm| spelt(algorithm)).collect());
    let protocols = line("NCCL_PROTO", &|lists| lists.1.iter().map(|protocol| protocol.name()).collect());
    algorithms.into_iter().chain(protocols).collect()
}

/// NCCL's spelling of a collective.
fn function(collective: Collective) -> String {
    let known = FUNCTIONS.iter().find(|(_, c)| *c == collective);
    known.map_or_else(String::new, |(name, _)| name.to_lowercase())
}

/// NCCL's spelling of an algorithm.
fn spelt(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::CollnetDirect => "collnetdirect",
        Algorithm::CollnetChain => "collnetchain",
        Algorithm::NvlsTree => "nvlstree",
        other => other.name(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::Site;
    use crate::tune::{Belief, Request, tune};

    /// Goal: variables do not hold a size to a choice that may be slower there, however good its mean.
    #[test]
    fn a_likely_loss_forbids_variables() -> Result<(), Error> {
        let site = Site::load("h200x4")?;
        let mut calls = tune(&site, &Request { sizes: Some(vec![1 << 12, 1 << 20]), ..Request::default() })?.calls;
        calls.retain(|call| !call.beyond);
        let (predictor, settings) = (site.predictor(), site.settings());
        let mut allowed = |doubt: f64| {
            for candidate in calls.iter_mut().flat_map(|call| &mut call.candidates) {
                candidate.belief = Belief { time_us: candidate.predicted_us, saved: 0.1, doubt };
            }
            let search = Search { calls: &calls, predictor: &predictor, settings };
            let told = search.told(&["NCCL_ALGO=allreduce:tree".to_owned()])?;
            Ok::<bool, Error>(search.judge(&calls, &told).is_some())
        };
        assert!(allowed(0.01)? && !allowed(0.2)?);
        Ok(())
    }
}

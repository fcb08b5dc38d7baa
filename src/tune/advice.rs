//! Where another choice is worth it, over which sizes, and what is lost without it.

use collcast_sim::collective::Collective;
use serde::Serialize;

use super::posterior;
use super::tuned::{Advice, Basis, Candidate, Pair, Tuned};
use crate::statistics::{geometric_mean, mean};

/// Gives each call that was asked about its best certain change, if there is one.
pub(super) fn advise(calls: &mut [Tuned]) {
    posteriors(calls);
    for call in calls {
        call.advice = advice(call);
    }
}

/// Brings what is known of each call up to date with what was measured.
pub(super) fn posteriors(calls: &mut [Tuned]) {
    for of in calls.chunk_by_mut(Tuned::is_like) {
        posterior::judge(of);
    }
}

fn advice(call: &Tuned) -> Option<Advice> {
    if call.beyond || call.not_modelled().is_some() {
        return None;
    }
    // Measured times must agree, and a forecast does not overrule them.
    let heard = |c: &Candidate| c.measured.is_some() || !call.measured();
    let sure = |c: &Candidate| heard(c) && c.belief.is_certain() && call.gain(c) > 0.0;
    let candidate = call.fastest(|c| Some(c.belief.time_us).filter(|_| sure(c)))?;
    let better = &call.candidates[candidate];
    Some(Advice { candidate, gain: call.gain(better), basis: call.basis(better) })
}

/// Neighbouring sizes with one answer.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Range {
    /// The communicator's name, where there are several.
    pub communicator: Option<String>,
    /// What.
    pub collective: Collective,
    /// First byte count: see `runs` for where neighbours meet.
    pub from_bytes: u64,
    /// Last byte count.
    pub to_bytes: u64,
    /// What to take.
    pub pair: Pair,
    /// Its channels at the largest size, before the bytes are dealt to them: as the table for NCCL says them.
    pub channels: u32,
    /// What NCCL takes by itself.
    pub default_pair: Pair,
    /// Whether that is to be changed.
    pub changes: bool,
    /// What the comparison rests on.
    pub basis: Basis,
    /// Geometric mean of the predicted times of its sizes, in microseconds.
    pub predicted_us: f64,
    /// The same of NCCL's choice.
    pub default_predicted_us: f64,
    /// The same of measured times, where all sizes have them of both.
    pub measured_us: Option<f64>,
    /// The same of NCCL's choice.
    pub default_measured_us: Option<f64>,
    /// Saved time, as a fraction of what NCCL's choice takes.
    pub gain: f64,
}

/// Last byte count for which the smaller of two neighbouring calls stands. NCCL's own choices meet where NCCL changes
/// them. A change that would be slower at its neighbour ends at its own size: nobody knows where between them it stops to
/// gain. Else it reaches to the geometric mean of both sizes.
fn boundary(small: &Tuned, large: &Tuned) -> u64 {
    let (least, most) = (small.size_bytes, large.size_bytes.saturating_sub(1).max(small.size_bytes));
    let middle = ((small.size_bytes as f64 * large.size_bytes as f64).sqrt() as u64).clamp(least, most);
    let (up, down) = (large.bears(small.taken()), small.bears(large.taken()));
    match (small.advice.is_some(), large.advice.is_some()) {
        (false, false) => {
            let change = large.own.iter().rfind(|own| (least + 1..=large.size_bytes).contains(&own.from));
            change.map_or(middle, |own| own.from - 1)
        }
        (true, false) if !up => least,
        (false, true) if !down => most,
        (true, true) if up && !down => most,
        (true, true) if down && !up => least,
        _ => middle,
    }
}

/// The last byte count of a table.
pub(super) const LARGEST: u64 = i64::MAX as u64;

/// Neighbouring calls, with the first and last byte count that they stand for.
pub(super) struct Span<'s> {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) calls: &'s [Tuned],
}

/// Runs of neighbouring calls with equal `key`, each with its first and last byte count, which leave no gap.
pub(super) fn runs<K: PartialEq>(calls: &[Tuned], key: impl Fn(&Tuned) -> K) -> Vec<Span<'_>> {
    let same = |a: &Tuned, b: &Tuned| a.is_like(b) && key(a) == key(b);
    let chunks: Vec<&[Tuned]> = calls.chunk_by(same).collect();
    let run = |index: usize| {
        let calls = chunks[index];
        let (first, last) = (&calls[0], &calls[calls.len() - 1]);
        let neighbour = |chunk: &&&[Tuned]| chunk[0].is_like(first);
        let before = index.checked_sub(1).and_then(|i| chunks.get(i)).filter(neighbour).and_then(|chunk| chunk.last());
        let after = chunks.get(index + 1).filter(neighbour).and_then(|chunk| chunk.first());
        let from = before.map_or(0, |below| boundary(below, first) + 1);
        let to = after.map_or(LARGEST, |above| boundary(last, above));
        Span { from, to, calls }
    };
    (0..chunks.len()).map(run).collect()
}

/// What to take over which sizes, of those that were asked about.
pub(super) fn ranges(calls: &[Tuned]) -> Vec<Range> {
    let key = |call: &Tuned| {
        let taken = call.taken();
        (taken.pair, taken.channels, call.default_candidate().pair, call.advice.as_ref().map(|a| a.basis))
    };
    runs(calls, key).iter().filter_map(range).collect()
}

/// The channels of a range at its largest size.
fn channels(run: &Span<'_>, like: &Tuned) -> u32 {
    let last = run.calls.last().unwrap_or(like);
    let own = last.own.iter().rfind(|own| own.from <= run.to).filter(|_| last.advice.is_none());
    own.map_or(last.taken().channels_most, |own| own.channels)
}

/// One range; none where nothing of it was asked about.
fn range(run: &Span<'_>) -> Option<Range> {
    let asked: Vec<&Tuned> = run.calls.iter().filter(|call| !call.beyond).collect();
    let &last = asked.last()?;
    let (taken, default) = (last.taken(), last.default_candidate());
    let both = |c: &&Tuned| Some((c.taken().measured?.time_us, c.default_candidate().measured?.time_us));
    let both: Option<Vec<(f64, f64)>> = asked.iter().map(both).collect();
    let means = |of: Vec<(f64, f64)>| (geometric_mean(of.iter().map(|m| m.0)), geometric_mean(of.iter().map(|m| m.1)));
    let measured = both.map(means);
    let predicted_us = geometric_mean(asked.iter().map(|c| c.taken().predicted_us));
    let default_predicted_us = geometric_mean(asked.iter().map(|c| c.default_candidate().predicted_us));
    let basis = last.advice.as_ref().map_or_else(|| last.basis(taken), |advice| advice.basis);
    let (measured_us, default_measured_us) = measured.unzip();
    Some(Range {
        communicator: last.communicator.name.clone(),
        collective: last.collective,
        from_bytes: run.from,
        to_bytes: run.to,
        pair: taken.pair,
        channels: channels(run, last),
        default_pair: default.pair,
        changes: last.advice.is_some(),
        basis,
        predicted_us,
        default_predicted_us,
        measured_us,
        default_measured_us,
        gain: 1.0 - geometric_mean(asked.iter().map(|c| 1.0 - c.gain(c.taken()))),
    })
}

/// Time lost against the best candidate, as fractions of its time.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Loss {
    /// Mean over the sizes.
    pub mean: f64,
    /// The largest.
    pub max: f64,
    /// The size of the largest, in bytes.
    pub max_at_bytes: u64,
}

impl Loss {
    fn of(losses: &[(u64, f64)]) -> Self {
        let (max_at_bytes, max) = losses.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default();
        Self { mean: mean(losses.iter().map(|l| l.1)), max, max_at_bytes }
    }
}

/// What a collective loses by each way to choose.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Regret {
    /// The communicator's name, where there are several.
    pub communicator: Option<String>,
    /// What.
    pub collective: Collective,
    /// Whose times are compared.
    pub basis: Basis,
    /// Sizes that are.
    pub sizes: usize,
    /// By NCCL's choice.
    pub default: Loss,
    /// By the forecast's, against measured times; its own times have none.
    pub forecast: Option<Loss>,
}

/// A communicator by name, and what it calls.
type Whose = (Option<String>, Collective);

/// Regret by the forecast, and by measured times where NCCL's choice and another were measured.
pub(super) fn regrets(calls: &[Tuned]) -> Vec<Regret> {
    let mut out = Vec::new();
    for of in calls.chunk_by(Tuned::is_like) {
        let whose = (of[0].communicator.name.clone(), of[0].collective);
        let of: Vec<&Tuned> = of.iter().filter(|call| !call.beyond).collect();
        out.push(predicted_regret(whose.clone(), &of));
        out.extend(measured_regret(whose, &of));
    }
    out
}

fn predicted_regret((communicator, collective): Whose, of: &[&Tuned]) -> Regret {
    let lost = |call: &&Tuned| {
        let best = call.fastest(|c| Some(c.predicted_us))?;
        let us = call.default_candidate().predicted_us;
        Some((call.size_bytes, us / call.candidates[best].predicted_us - 1.0))
    };
    let modelled = of.iter().filter(|call| call.not_modelled().is_none());
    let losses: Vec<(u64, f64)> = modelled.filter_map(lost).collect();
    let basis = Basis::of(of.iter().flat_map(|call| &call.candidates));
    Regret { communicator, collective, basis, sizes: losses.len(), default: Loss::of(&losses), forecast: None }
}

/// The best of several measured times is partly luck, so this is a little too high.
fn measured_regret((communicator, collective): Whose, of: &[&Tuned]) -> Option<Regret> {
    let lost = |call: &&Tuned| {
        let us = |index: usize| call.candidates[index].measured.map(|m| m.time_us);
        let best = us(call.fastest(|c| c.measured.map(|m| m.time_us))?)?;
        let pick = us(call.fastest(|c| c.measured.map(|_| c.predicted_us))?)?;
        Some(((call.size_bytes, us(call.default)? / best - 1.0), (call.size_bytes, pick / best - 1.0)))
    };
    let (default, forecast): (Vec<_>, Vec<_>) = of.iter().filter(|call| call.timed() > 1).filter_map(lost).unzip();
    let (sizes, basis) = (default.len(), Basis::Measured);
    let (default, forecast) = (Loss::of(&default), Some(Loss::of(&forecast)));
    let regret = Regret { communicator, collective, basis, sizes, default, forecast };
    (sizes > 0).then_some(regret)
}
